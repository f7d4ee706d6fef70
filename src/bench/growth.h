/* SPDX-License-Identifier: MIT
 *
 * growth.h: private to `semel bench growth`: how the inbox behaves when it grows.
 *
 *   growth.c     the command: options, the tables, the text and the JSON
 *   growth_pg.c  on PostgreSQL: the steps in which the inbox is filled, the purge of its oldest quarter, and the books
 *
 * There are two lanes, one with time-ordered ids and one with random ones, each with a consumer and a ledger of its own
 * in the one inbox. A message can be made again from the number of its batch, so that old ones come back as they were.
 */
#ifndef SEMEL_BENCH_GROWTH_H
#define SEMEL_BENCH_GROWTH_H

#include "bench/bench.h"

#define GROWTH_STEPS_MAX 100

struct growth_options {
    int64_t rows; /* per kind of ids */
    int64_t steps, batch, chunk;
    const volatile sig_atomic_t *stop;                            /* not 0: the user has interrupted */
    void (*progress)(void *ctx, int64_t step, const char *doing); /* NULL: no progress shown */
    void *ctx;
};

/* The figures of a step. The bytes of table and indexes are the growth that this lane caused. */
struct growth_step {
    int64_t rows; /* of this lane, at the end of the step */
    double per_s, duplicates_per_s;
    double table_bytes, index_bytes;
    double wal_bytes; /* per message of this step */
};

struct growth_purge {
    int64_t rows, chunks;
    double per_s, longest_ms;
    double calm_per_s, meanwhile_per_s; /* new messages, before the purge and while it ran */
};

struct growth_result {
    struct growth_step steps[GROWTH_STEPS_MAX][BENCH_IDS];
    struct growth_purge purges[BENCH_IDS];
    int64_t n_steps;
    double commit_us, rss_start_mb, rss_end_mb;
    bool stopped;
};

/* ---- growth_pg.c ---- */

/* As bench_pg of bench.h. */
semel_status bench_growth_pg(const char *url, const struct growth_options *options, struct growth_result *ret,
                             bool *ret_opened, bool *ret_used, struct semel_error *err);

#endif
