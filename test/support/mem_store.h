/* SPDX-License-Identifier: MIT
 *
 * mem_store.h: the in-memory store, for teaching, tests and the simulator.
 *
 * What it is: a database in the heap that several handles share, with real transactions (undo log), one
 * writer at a time, and faults on demand. What it is not: durable, safe between threads, or able to join a
 * transaction that it did not begin.
 *
 * Invariants: what another handle sees through scan and sources is committed; a rolled back transaction
 * leaves nothing behind but used-up numbers (arrivals, tokens), as the sequences of a real database do; the
 * same calls give the same answers in the same order, whatever the addresses were.
 */
#ifndef SEMEL_TEST_SUPPORT_MEM_STORE_H
#define SEMEL_TEST_SUPPORT_MEM_STORE_H

#include "core/store.h"

struct semel_mem_db;

extern const struct semel_store_ops semel__store_mem; /* "mem:" is a private database that dies with its handle */

/* `clock` NULL: the machine's. It must outlive the database. */
semel_status semel__mem_db_new(struct semel_mem_db **ret, const struct semel_clock *clock);
/* Every handle on it must be closed. */
void semel__mem_db_free(struct semel_mem_db *db);
/* A handle on a shared database, to be closed by semel_store_close. The time is the database's. `options`: or NULL. */
semel_status semel__store_mem_open(struct semel_store **ret, struct semel_mem_db *db,
                                   const struct semel_store_options *options, struct semel_error *err);
struct semel_mem_db *semel__mem_db_of(struct semel_store *store);

/* ---- faults ------------------------------------------------------------------------------------------- */

enum semel_mem_fault {
    SEMEL_MEM_GO,
    SEMEL_MEM_RETRY,        /* RETRY, ENVIRONMENT; nothing is done, a commit is rolled back */
    SEMEL_MEM_CLOSE,        /* the connection is gone: rolled back, CLOSED until reopen */
    SEMEL_MEM_UNKNOWN_DONE, /* commit only: applied, the answer is UNKNOWN, then CLOSED until reopen */
    SEMEL_MEM_UNKNOWN_LOST  /* commit only: rolled back, the rest as above */
};

/* Called with the operation's name (that of its member in semel_store_ops, or "effect") before the operation
 * looks at anything: it may run other handles before it returns. rollback cannot fail: it heeds CLOSE only. */
typedef enum semel_mem_fault (*semel_mem_hook)(void *ctx, const char *op);
void semel__mem_set_hook(struct semel_store *store, semel_mem_hook hook, void *ctx); /* NULL removes it */

/* What a server's idle-in-transaction time-out does: the open transaction is rolled back from outside and the
 * connection cut, so that the handle answers CLOSED until reopen. Nothing happens to a handle without one. */
void semel__mem_break(struct semel_store *store);

/* A backup: what is committed. RETRY: a transaction is open, or there is no memory. Freed by semel__mem_db_free. */
semel_status semel__mem_db_copy(struct semel_mem_db *db, struct semel_mem_db **ret);
/* As it was when the backup was made, sequences too; an open transaction is lost, with its connection. RETRY: there is
 * no memory, and the database is empty. */
semel_status semel__mem_db_restore(struct semel_mem_db *db, struct semel_mem_db *backup);

/* Spoils a stored row, as a stranger's UPDATE would: it is `damaged` from then on. false: there is no such row. */
bool semel__mem_damage(struct semel_mem_db *db, struct semel_str consumer, struct semel_str source,
                       struct semel_str id);

/* ---- the handlers' table ------------------------------------------------------------------------------ */

struct semel_mem_effect {
    void *owned; /* the memory of the strings */
    struct semel_str key, value;
};
/* Appends in the open transaction, and is undone with it. INVALID without one. */
semel_status semel__mem_effect_add(struct semel_store *store, struct semel_str key, struct semel_str value,
                                   struct semel_error *err);

/* ---- looking at a database ---------------------------------------------------------------------------- */
/* For invariants and tests: what is there now, that of an open transaction included, in a repeatable order.
 * What is returned is borrowed until the next operation. A NULL `fn` only counts. */

size_t semel__mem_effects(struct semel_mem_db *db, const struct semel_mem_effect **ret); /* as appended */

typedef void (*semel_mem_row_fn)(void *ctx, struct semel_str consumer, const struct semel_row *row);
size_t semel__mem_rows(struct semel_mem_db *db, semel_mem_row_fn fn, void *ctx);

struct semel_mem_attempt {
    struct semel_str consumer, source, id, who;
    int attempt;
    enum semel_class cls;
    struct semel_str text;
    int64_t at_us, seq; /* seq ascends in the order of writing */
};
typedef void (*semel_mem_attempt_fn)(void *ctx, const struct semel_mem_attempt *attempt);
size_t semel__mem_attempts(struct semel_mem_db *db, semel_mem_attempt_fn fn, void *ctx);

struct semel_mem_conflict {
    struct semel_str consumer, source, id;
    struct semel_fp fp;
    int64_t count, first_us, last_us;
    struct semel_str payload, headers; /* of the first */
};
typedef void (*semel_mem_conflict_fn)(void *ctx, const struct semel_mem_conflict *conflict);
size_t semel__mem_conflicts(struct semel_mem_db *db, semel_mem_conflict_fn fn, void *ctx);

struct semel_mem_event {
    struct semel__event event;
    int64_t seq, created_us; /* seq ascends in the order of writing, not of the calls of fn */
};
typedef void (*semel_mem_event_fn)(void *ctx, const struct semel_mem_event *event);
size_t semel__mem_events(struct semel_mem_db *db, semel_mem_event_fn fn, void *ctx);

struct semel_mem_audit {
    void *owned; /* the memory of the strings */
    struct semel_audit line;
    int64_t at_us;
};
size_t semel__mem_audits(struct semel_mem_db *db, const struct semel_mem_audit **ret); /* as appended */

/* SEMEL_NONE: none. */
int64_t semel__mem_watermark(struct semel_mem_db *db, struct semel_str consumer, struct semel_str source);
/* The number of business keys, expired ones included. */
size_t semel__mem_business_count(struct semel_mem_db *db);

#endif
