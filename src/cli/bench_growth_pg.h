/* SPDX-License-Identifier: MIT
 *
 * bench_growth_pg.h: what the two files of `semel bench growth` on PostgreSQL share.
 */
#ifndef SEMEL_CLI_BENCH_GROWTH_PG_H
#define SEMEL_CLI_BENCH_GROWTH_PG_H

#include "cli/bench_growth.h"
#include "cli/bench_pg.h"

#define GROWTH_PIECE 40 /* batches whose messages are made at once */
#define GROWTH_ID_US 1000

struct growth_lane {
    enum bench_ids ids;
    struct bench_pg_lane pg;
    struct bench_pg_sql sql;
    int64_t batches; /* that have been processed */
    /* The oldest quarter: its rows, and the moment at which it was there; 0: not yet. */
    int64_t old_rows, old_us;
};

struct growth {
    const char *url;
    const struct growth_options *options;
    struct semel *s;
    PGconn *conn;
    struct growth_lane lanes[BENCH_IDS];
    int64_t first_us; /* the time in the first ordered id */
    struct semel_random rng;
    struct bench_msg *msgs; /* GROWTH_PIECE batches */
    struct semel_msg *given;
    struct semel_verdict *verdicts;
};

/* Makes the messages of one batch, into the place `at` of g->msgs: the same number, the same messages. */
semel_status growth_make(struct growth *g, struct growth_lane *lane, int64_t batch, size_t at, struct semel_error *err);
/* Processes the batch at this place of g->msgs; all of its messages must be new, or all duplicates. */
semel_status growth_run(struct growth *g, struct growth_lane *lane, size_t at, bool again, struct semel_error *err);
bool growth_stopped(const struct growth *g);

/* ---- bench_growth_purge.c ---- */

/* Purges the oldest quarter of the lane in a process of its own, while this one goes on processing new messages. */
semel_status growth_purge(struct growth *g, struct growth_lane *lane, struct growth_purge *ret,
                          struct semel_error *err);

#endif
