/* SPDX-License-Identifier: MIT
 *
 * bench_pg.h: private to `semel bench inbox` on PostgreSQL.
 *
 *   bench_pg.c         the plan, the processes, the rounds and what is made of them
 *   bench_pg_worker.c  one process and its connection: the cases
 *   bench_pg_sql.c     the statements: the handwritten inbox, the limit, and the effects of all cases
 *
 * Every number of connections has lanes, tables and processes of its own. A round of a lane is handed out as two
 * orders: PREPARE makes the messages and what has to be there before, GO is what the clock is on.
 */
#ifndef SEMEL_CLI_BENCH_PG_H
#define SEMEL_CLI_BENCH_PG_H

#include <libpq-fe.h>

#include "cli/bench.h"
#include "core/store.h"

#define BENCH_PG_SEED UINT64_C(20261116)
#define BENCH_PG_LANES 18

/* ---- bench_pg.c ---- */

/* Is there anything in the inbox, or has a benchmark been here? If not, how long a commit takes. */
semel_status bench_pg_look(PGconn *conn, bool *ret_used, double *ret_commit_us, struct semel_error *err);

/* ---- bench_pg_worker.c ---- */

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

struct bench_pg_plan {
    const char *url;
    const struct bench_options *options;
    int connections;
    struct bench_pg_lane lanes[BENCH_PG_LANES];
    size_t n_lanes;
};

enum bench_pg_op { BENCH_PG_PREPARE, BENCH_PG_GO };
struct bench_pg_order {
    enum bench_pg_op op;
    size_t lane;
};

/* Behind it come n_took doubles: what each batch took, in milliseconds. */
struct bench_pg_report {
    semel_status status;
    struct semel_error err;
    size_t messages, n_took;
    int64_t effects, trips;
    double rss_mb;
};

/* Connects, says so by a first report, and obeys until there are no more orders. Returns the exit code. */
int bench_pg_worker(const struct bench_pg_plan *plan, int index, int in, int out);
/* All n bytes, whatever signals come. false: the other end is gone. */
bool bench_pg_read(int fd, void *to, size_t n);
bool bench_pg_write(int fd, const void *from, size_t n);

/* ---- bench_pg_sql.c ---- */

#define BENCH_PG_ARRAYS 6

/* The statements of one lane on one connection. */
struct bench_pg_sql {
    PGconn *conn;
    enum bench_work work;
    char table[64];
    char effect[256];
    struct semel_buf arrays[BENCH_PG_ARRAYS]; /* parameters in the making */
    int64_t trips;                            /* of those that the driver does not count */
};

/* The tables of a lane. */
semel_status bench_pg_tables(PGconn *conn, enum bench_work work, const char *name, struct semel_error *err);
semel_status bench_pg_sql_init(struct bench_pg_sql *sql, PGconn *conn, const struct bench_pg_lane *lane,
                               struct semel_error *err);
void bench_pg_sql_done(struct bench_pg_sql *sql);
/* One transaction, a round trip a statement. */
semel_status bench_pg_handwritten(struct bench_pg_sql *sql, const struct bench_msg *msg, struct semel_error *err);
/* One transaction, a round trip for the ids of a batch and one for the effects of those that are new. */
semel_status bench_pg_hand_sets(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n, size_t *ret_new,
                                struct semel_error *err);
/* Rows of the handwritten inbox and their effects: what grew before the clock was started. */
semel_status bench_pg_fill(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n, struct semel_error *err);
/* One transaction and one round trip, with the rows that the inbox would have written. */
semel_status bench_pg_limit(struct bench_pg_sql *sql, struct semel_str consumer, const struct bench_msg *msgs, size_t n,
                            int64_t now_us, struct semel_error *err);
/* The effects of many messages by one statement, which names each message that it handled. */
semel_status bench_pg_set(struct bench_pg_sql *sql, const struct semel_msg *msgs, size_t n, struct semel_named *named,
                          struct semel_error *err);
semel_status bench_pg_effects(PGconn *conn, enum bench_work work, const char *name, int64_t *ret_n,
                              struct semel_error *err);
/* One number that a query without parameters gives. */
semel_status bench_pg_number(PGconn *conn, const char *query, double *ret, struct semel_error *err);

#endif
