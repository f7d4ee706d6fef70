/* SPDX-License-Identifier: MIT
 *
 * bench_growth_pg.c: `semel bench growth` on PostgreSQL: the steps in which the inbox is filled, and the books.
 *
 * Every row is put in by the batch path, with a handler of one statement a batch, and all of it is measured: there is
 * no filling on the side. Within a step the two lanes take turns by pieces, so that a checkpoint, a vacuum or a busy
 * machine hits both alike, and what table and indexes grow by during a piece is put down to its lane. The clock stands
 * still while messages are made. Then batches from all over the past are delivered once more.
 *
 * Ordered ids are one a millisecond. WAL is the server's whole: nobody else may use it.
 *
 * Invariants: at the end the ledgers have every message once, and the inbox has every message but the purged ones, or
 * there is no result.
 */
#include "cli/bench_growth_pg.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"

#define SEED UINT64_C(20261117)
#define LANE_SEEDS (UINT64_C(1) << 40)
#define MADE_US 50 /* between the messages i and i + 1 of a stream: see bench_msg.c */

static const struct bench_pg_kind kind = {"growth", BENCH_SETS, false, false};

bool growth_stopped(const struct growth *g)
{
    return *g->options->stop != 0;
}

static size_t batch_size(const struct growth *g)
{
    return (size_t)g->options->batch;
}

/* ---- a batch ------------------------------------------------------------------------------------- */

semel_status growth_make(struct growth *g, struct growth_lane *lane, int64_t batch, size_t at, struct semel_error *err)
{
    struct bench_stream stream = {.ids = lane->ids, .first_us = g->first_us};
    size_t n = batch_size(g), first = (size_t)batch * n;
    semel_status status = SEMEL_OK;
    semel__random_seed(&stream.rng, SEED + LANE_SEEDS * (uint64_t)lane->ids + (uint64_t)batch);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = bench_msg_make(&stream, (first + i) * (GROWTH_ID_US / MADE_US), i, &g->msgs[at * n + i], err);
    return status;
}

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    struct growth_lane *lane = ctx;
    (void)s;
    return bench_pg_set(&lane->sql, msgs, n, named, err);
}

semel_status growth_run(struct growth *g, struct growth_lane *lane, size_t at, bool again, struct semel_error *err)
{
    const enum semel_why want = again ? SEMEL_WHY_DUPLICATE : SEMEL_WHY_NEW;
    size_t n = batch_size(g);
    for (size_t i = 0; i < n; i++) {
        const struct bench_msg *from = &g->msgs[at * n + i];
        struct semel_msg *msg = &g->given[i];
        semel_msg_init(msg);
        msg->consumer = semel__str(lane->pg.consumer);
        msg->source = SEMEL_STR(BENCH_SOURCE);
        msg->type = SEMEL_STR(BENCH_TYPE);
        msg->id = (struct semel_str){from->id, SEMEL_UUID_TEXT - 1};
        msg->payload = (struct semel_str){from->payload, BENCH_PAYLOAD};
    }
    semel_status status = semel_inbox_process_set(g->s, g->given, n, handle_set, lane, g->verdicts, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        if (g->verdicts[i].act != SEMEL_ACK || g->verdicts[i].why != want)
            return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN, "%s: a message was %s and must be %s",
                               lane->pg.name, semel_why_name(g->verdicts[i].why), semel_why_name(want));
    return status;
}

/* ---- what it left behind ------------------------------------------------------------------------- */

struct meter {
    double table, indexes, wal;
};

static semel_status read_meter(struct growth *g, struct meter *ret, struct semel_error *err)
{
    semel_status status = bench_pg_number(g->conn, "SELECT pg_table_size('semel.inbox')", &ret->table, err);
    if (status == SEMEL_OK)
        status = bench_pg_number(g->conn, "SELECT pg_indexes_size('semel.inbox')", &ret->indexes, err);
    if (status == SEMEL_OK)
        status = bench_pg_number(g->conn, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')", &ret->wal, err);
    return status;
}

/* ---- a step -------------------------------------------------------------------------------------- */

/* What the pieces of one lane have taken in this step. */
struct taken {
    int64_t batches, us;
    double wal;
};

static double rate(const struct growth *g, const struct taken *taken)
{
    return (double)(taken->batches * g->options->batch) * 1e6 / (double)(taken->us > 0 ? taken->us : 1);
}

static semel_status run_piece(struct growth *g, struct growth_lane *lane, size_t n, bool again, struct taken *taken,
                              struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    int64_t start_us = semel__now(&semel__clock_real);
    for (size_t i = 0; status == SEMEL_OK && i < n && !growth_stopped(g); i++)
        status = growth_run(g, lane, i, again, err);
    taken->us += semel__now(&semel__clock_real) - start_us;
    taken->batches += (int64_t)n;
    return status;
}

static int64_t quarter(const struct growth *g)
{
    return (g->options->rows / 4 + g->options->batch - 1) / g->options->batch; /* batches */
}

/* How many batches the next piece has: up to the goal, and not beyond the end of the oldest quarter. */
static size_t piece_size(const struct growth *g, const struct growth_lane *lane, int64_t goal)
{
    int64_t end = lane->batches < quarter(g) && goal > quarter(g) ? quarter(g) : goal;
    return end - lane->batches < GROWTH_PIECE ? (size_t)(end - lane->batches) : GROWTH_PIECE;
}

/* The moment before which the oldest quarter, and nothing else, was processed. */
static semel_status note_quarter(struct growth *g, struct growth_lane *lane, struct semel_error *err)
{
    double now_us = 0;
    if (lane->batches != quarter(g))
        return SEMEL_OK;
    semel_status status = bench_pg_number(g->conn, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
                                          &now_us, err);
    lane->old_rows = lane->batches * g->options->batch;
    lane->old_us = (int64_t)now_us;
    return status;
}

static semel_status fill(struct growth *g, struct growth_lane *lane, size_t n, struct growth_step *step,
                         struct taken *taken, struct semel_error *err)
{
    struct meter before = {0}, after = {0};
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = growth_make(g, lane, lane->batches + (int64_t)i, i, err);
    if (status == SEMEL_OK)
        status = read_meter(g, &before, err);
    if (status == SEMEL_OK)
        status = run_piece(g, lane, n, false, taken, err);
    if (status == SEMEL_OK)
        status = read_meter(g, &after, err);
    if (status != SEMEL_OK)
        return status;
    lane->batches += (int64_t)n;
    taken->wal += after.wal - before.wal;
    step->table_bytes += after.table - before.table;
    step->index_bytes += after.indexes - before.indexes;
    return note_quarter(g, lane, err);
}

static semel_status repeat(struct growth *g, struct growth_lane *lane, struct growth_step *step,
                           struct semel_error *err)
{
    struct taken taken = {0};
    size_t n = lane->batches < GROWTH_PIECE ? (size_t)lane->batches : GROWTH_PIECE;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        int64_t any = (int64_t)semel__random_below(&g->rng, (uint64_t)lane->batches);
        status = growth_make(g, lane, any, i, err);
    }
    if (status == SEMEL_OK)
        status = run_piece(g, lane, n, true, &taken, err);
    step->duplicates_per_s = rate(g, &taken);
    return status;
}

static void tell(const struct growth *g, int64_t step, const char *doing)
{
    if (g->options->progress != NULL)
        g->options->progress(g->options->ctx, step, doing);
}

static semel_status run_step(struct growth *g, int64_t number, struct growth_step steps[BENCH_IDS],
                             struct semel_error *err)
{
    struct taken taken[BENCH_IDS] = {0};
    semel_status status = SEMEL_OK;
    const int64_t rows = number * g->options->rows / g->options->steps;
    const int64_t goal = (rows + g->options->batch - 1) / g->options->batch;
    tell(g, number, "filling");
    for (bool more = true; more && status == SEMEL_OK && !growth_stopped(g);) {
        more = false;
        for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS; ids++) {
            struct growth_lane *lane = &g->lanes[ids];
            if (lane->batches < goal)
                status = fill(g, lane, piece_size(g, lane, goal), &steps[ids], &taken[ids], err);
            more = more || lane->batches < goal;
        }
    }
    tell(g, number, "duplicates");
    for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS; ids++) {
        int64_t messages = taken[ids].batches * g->options->batch;
        steps[ids].rows = g->lanes[ids].batches * g->options->batch;
        steps[ids].per_s = rate(g, &taken[ids]);
        steps[ids].wal_bytes = messages > 0 ? taken[ids].wal / (double)messages : 0;
        status = repeat(g, &g->lanes[ids], &steps[ids], err);
    }
    return status;
}

static semel_status run_steps(struct growth *g, struct growth_result *ret, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (int64_t i = 0; status == SEMEL_OK && i < g->options->steps && !growth_stopped(g); i++) {
        for (enum bench_ids ids = BENCH_ORDERED; i > 0 && ids < BENCH_IDS; ids++) {
            ret->steps[i][ids].table_bytes = ret->steps[i - 1][ids].table_bytes;
            ret->steps[i][ids].index_bytes = ret->steps[i - 1][ids].index_bytes;
        }
        status = run_step(g, i + 1, ret->steps[i], err);
        ret->n_steps = i + 1;
    }
    return status;
}

/* ---- the books ----------------------------------------------------------------------------------- */

static semel_status expect(const struct growth_lane *lane, const char *what, int64_t n, int64_t must,
                           struct semel_error *err)
{
    if (n == must)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN,
                       "the books do not balance: %s has %" PRId64 " %s, and must have %" PRId64, lane->pg.name, n,
                       what, must);
}

static semel_status balance(struct growth *g, const struct growth_lane *lane, const struct growth_purge *purge,
                            struct semel_error *err)
{
    char query[128];
    double rows = 0;
    int64_t effects = 0, messages = lane->batches * g->options->batch;
    snprintf(query, sizeof query, "SELECT count(*) FROM semel.inbox WHERE consumer = '%s'", lane->pg.consumer);
    semel_status status = bench_pg_number(g->conn, query, &rows, err);
    if (status == SEMEL_OK)
        status = bench_pg_effects(g->conn, BENCH_SETS, lane->pg.name, &effects, err);
    if (status == SEMEL_OK)
        status = expect(lane, "effects", effects, messages, err);
    if (status == SEMEL_OK)
        status = expect(lane, "purged rows", purge->rows, lane->old_rows, err);
    return status == SEMEL_OK ? expect(lane, "rows", (int64_t)rows, messages - purge->rows, err) : status;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static semel_status open_lane(struct growth *g, enum bench_ids ids, struct semel_error *err)
{
    struct growth_lane *lane = &g->lanes[ids];
    *lane = (struct growth_lane){.ids = ids, .pg = {.kind = &kind, .ids = ids}};
    snprintf(lane->pg.name, sizeof lane->pg.name, "%s_%s", kind.name, bench_ids_names[ids]);
    snprintf(lane->pg.consumer, sizeof lane->pg.consumer, "bench-%s-%s", kind.name, bench_ids_names[ids]);
    semel_status status = bench_pg_tables(g->conn, kind.work, lane->pg.name, err);
    return status == SEMEL_OK ? bench_pg_sql_init(&lane->sql, g->conn, &lane->pg, err) : status;
}

static semel_status set_up(struct growth *g, struct semel_error *err)
{
    size_t n = batch_size(g);
    semel_status status = SEMEL_OK;
    g->msgs = semel__calloc(GROWTH_PIECE * n, sizeof *g->msgs);
    g->given = semel__calloc(n, sizeof *g->given);
    g->verdicts = semel__calloc(n, sizeof *g->verdicts);
    if (g->msgs == NULL || g->given == NULL || g->verdicts == NULL)
        return semel__fail_memory(err);
    semel__random_seed(&g->rng, SEED);
    /* Twice as far back as the rows reach: the purge is accompanied by more of them. */
    g->first_us = semel__now(&semel__clock_real) / GROWTH_ID_US * GROWTH_ID_US - 2 * g->options->rows * GROWTH_ID_US;
    for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS; ids++)
        status = open_lane(g, ids, err);
    return status;
}

static semel_status measure(struct growth *g, struct growth_result *ret, struct semel_error *err)
{
    semel_status status = set_up(g, err);
    if (status == SEMEL_OK)
        status = run_steps(g, ret, err);
    for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS && !growth_stopped(g); ids++) {
        tell(g, g->options->steps, "purging");
        status = growth_purge(g, &g->lanes[ids], &ret->purges[ids], err);
    }
    for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS && !growth_stopped(g); ids++)
        status = balance(g, &g->lanes[ids], &ret->purges[ids], err);
    for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++)
        bench_pg_sql_done(&g->lanes[ids].sql);
    semel__free(g->msgs);
    semel__free(g->given);
    semel__free(g->verdicts);
    return status;
}

semel_status bench_growth_pg(const char *url, const struct growth_options *options, struct growth_result *ret,
                             bool *ret_opened, bool *ret_used, struct semel_error *err)
{
    struct growth g = {.url = url, .options = options};
    *ret = (struct growth_result){.rss_start_mb = bench_rss_mb()};
    semel_status status = semel_open(&g.s, url, SEMEL_CREATE | SEMEL_MIGRATE, err);
    *ret_opened = status == SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    g.conn = semel_native(g.s);
    status = bench_pg_look(g.conn, ret_used, &ret->commit_us, err);
    if (status == SEMEL_OK && !*ret_used)
        status = measure(&g, ret, err);
    ret->rss_end_mb = bench_rss_mb();
    ret->stopped = growth_stopped(&g);
    semel_close(g.s);
    return status;
}
