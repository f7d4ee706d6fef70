/* SPDX-License-Identifier: MIT
 *
 * pg.h: the parts of `semel bench inbox` on PostgreSQL (inbox_pg.c) that `semel bench growth` uses: the tables and
 * statements of a lane, and pipes between processes.
 */
#ifndef SEMEL_BENCH_PG_H
#define SEMEL_BENCH_PG_H

#include <libpq-fe.h>

#include "bench/bench.h"
#include "core/store.h"

/* Does the inbox have rows, or has a benchmark run here before? If not, how long a commit takes. */
semel_status bench_pg_measure(PGconn *conn, bool *ret_used, double *ret_commit_us, struct semel_error *err);

struct bench_pg_kind {
    const char *name;
    enum bench_work work;
    bool repeats, poison;
};

struct bench_pg_lane {
    const struct bench_pg_kind *kind;
    enum bench_ids ids;
    char name[48], consumer[48];
};

/* All n bytes, whatever signals come. false: the other end is gone. */
bool bench_pg_read(int fd, void *to, size_t n);
bool bench_pg_write(int fd, const void *from, size_t n);

#define BENCH_PG_ARRAYS 6

/* The statements of one lane on one connection. */
struct bench_pg_sql {
    PGconn *conn;
    enum bench_work work;
    char table[64];
    char effect[256];
    struct semel_buf arrays[BENCH_PG_ARRAYS]; /* parameters under construction */
    int64_t trips;                            /* those that the driver does not count */
};

/* The tables of a lane. */
semel_status bench_pg_tables(PGconn *conn, enum bench_work work, const char *name, struct semel_error *err);
semel_status bench_pg_sql_init(struct bench_pg_sql *sql, PGconn *conn, const struct bench_pg_lane *lane,
                               struct semel_error *err);
void bench_pg_sql_done(struct bench_pg_sql *sql);
/* The effects of many messages by one statement, which names each message that it handled. */
semel_status bench_pg_set(struct bench_pg_sql *sql, const struct semel_msg *msgs, size_t n, struct semel_named *named,
                          struct semel_error *err);
semel_status bench_pg_effects(PGconn *conn, enum bench_work work, const char *name, int64_t *ret_n,
                              struct semel_error *err);
/* One number that a query without parameters gives. */
semel_status bench_pg_number(PGconn *conn, const char *query, double *ret, struct semel_error *err);

#endif
