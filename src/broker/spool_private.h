/* SPDX-License-Identifier: MIT
 *
 * spool_private.h: the inside of the spool, shared by its two files:
 *   spool.c      opening, transactions, poll, answers         spool_file.c  pairs as text, push, publish, the rest
 */
#ifndef SEMEL_BROKER_SPOOL_PRIVATE_H
#define SEMEL_BROKER_SPOOL_PRIVATE_H

#include <sqlite3.h>

#include "base/error.h"
#include "base/str.h"
#include "broker/spool.h"

enum { SPOOL_READY = 0, SPOOL_TAKEN = 1, SPOOL_ACKED = 2 };

struct spool {
    struct semel_broker base;
    sqlite3 *db;             /* NULL: closed until reopen */
    char *path;              /* owned, with `source` behind it */
    struct semel_str source; /* not given: all */
    int64_t visibility_us;
    char name[48]; /* unique to this handle and its present epoch */
};

/* What SQLite's last answer means: RETRY for the world, CLOSED for the rest. */
semel_status semel__spool_fail(struct spool *spool, const char *doing, struct semel_error *err);
/* CLOSED when there is no connection. */
semel_status semel__spool_ready(const struct spool *spool, struct semel_error *err);
semel_status semel__spool_begin(struct spool *spool, struct semel_error *err);
/* Commits when `status` is OK or FENCED, else rolls back. Returns the status of it all. */
semel_status semel__spool_end(struct spool *spool, semel_status status, struct semel_error *err);
/* A statement; NULL: semel__spool_fail says why. */
sqlite3_stmt *semel__spool_prepare(struct spool *spool, const char *sql);
void semel__spool_bind(sqlite3_stmt *stmt, int at, struct semel_str s); /* as a blob; not given: NULL */

/* Pairs as netstrings, "5:ce_id,3:abc,", which any tool can read. */
bool semel__spool_encode(struct semel_buf *buf, const struct semel_pair *pairs, size_t n);
/* INVALID: not of ours. RETRY: no memory. */
semel_status semel__spool_decode(struct semel_str encoded, struct semel_arena *arena, const struct semel_pair **ret,
                                 size_t *ret_n);

semel_status semel__spool_publish(struct semel_broker *broker, struct semel_publish *items, size_t n,
                                  struct semel_error *err);

#endif
