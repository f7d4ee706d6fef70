/* SPDX-License-Identifier: MIT
 *
 * growth_pg.c: `semel bench growth` on PostgreSQL: the steps in which the inbox is filled, the purge, and the books.
 *
 * The batch path inserts every row, with a handler of one statement per batch, and all of it is measured: no row is
 * inserted by other means. Within a step the two lanes alternate in pieces, so that a checkpoint, a vacuum or a busy
 * machine hits both alike, and the growth of table and indexes during a piece is counted for its lane. The clock
 * stops while messages are made. Then batches from all over the past are delivered once more.
 *
 * Ordered ids are one per millisecond. WAL is that of the whole server: nobody else may use it.
 *
 * At the end the oldest quarter of each lane is purged. First new messages are processed alone, to know their speed;
 * then another process purges, in transactions of one chunk and without a pause, as a daemon with a backlog would,
 * while this one continues processing. It calls the same functions as core, watermark first, with times that this
 * benchmark chose instead of a retention, whose minimum is an hour.
 *
 * Invariants: at the end the ledgers have every message once, and the inbox has every message but the purged ones, or
 * there is no result. The process that was started has been waited for.
 */
#define _GNU_SOURCE /* pipe2 */
#include "bench/growth.h"
#include "bench/pg.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "lib/handle.h"

#define PIECE 40 /* batches whose messages are made at once */
#define ID_US 1000
#define SEED UINT64_C(20261117)
#define LANE_SEEDS (UINT64_C(1) << 40)
#define MADE_US 50       /* between the messages i and i + 1 of a stream: see msg.c */
#define CALM (4 * PIECE) /* batches, but no more than a step has */

struct growth_lane {
    enum bench_ids ids;
    struct bench_pg_lane pg;
    struct bench_pg_sql sql;
    int64_t batches; /* batches processed so far */
    /* The oldest quarter: its rows, and the time at which it was complete; 0: not yet. */
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
    struct bench_msg *msgs; /* PIECE batches */
    struct semel_msg *given;
    struct semel_verdict *verdicts;
};

static const struct bench_pg_kind kind = {"growth", BENCH_SETS, false, false};

static bool growth_stopped(const struct growth *g)
{
    return *g->options->stop != 0;
}

static size_t batch_size(const struct growth *g)
{
    return (size_t)g->options->batch;
}

/* ---- a batch ------------------------------------------------------------------------------------- */

/* Makes the messages of one batch at the place `at` of g->msgs: the same number gives the same messages. */
static semel_status growth_make(struct growth *g, struct growth_lane *lane, int64_t batch, size_t at,
                                struct semel_error *err)
{
    struct bench_stream stream = {.ids = lane->ids, .first_us = g->first_us};
    size_t n = batch_size(g), first = (size_t)batch * n;
    semel_status status = SEMEL_OK;
    semel__random_seed(&stream.rng, SEED + LANE_SEEDS * (uint64_t)lane->ids + (uint64_t)batch);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = bench_msg_make(&stream, (first + i) * (ID_US / MADE_US), i, &g->msgs[at * n + i], err);
    return status;
}

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    struct growth_lane *lane = ctx;
    (void)s;
    return bench_pg_set(&lane->sql, msgs, n, named, err);
}

/* Processes the batch at this place of g->msgs; all of its messages must be new, or all duplicates. */
static semel_status growth_run(struct growth *g, struct growth_lane *lane, size_t at, bool again,
                               struct semel_error *err)
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

/* ---- disk usage ---------------------------------------------------------------------------------- */

struct meter {
    double table, indexes, wal;
};

static semel_status read_meter(struct growth *g, struct meter *ret, struct semel_error *err)
{
    semel_status status = bench_pg_number(g->conn, "SELECT pg_table_size('semel.record')", &ret->table, err);
    if (status == SEMEL_OK)
        status = bench_pg_number(g->conn, "SELECT pg_indexes_size('semel.record')", &ret->indexes, err);
    if (status == SEMEL_OK)
        status = bench_pg_number(g->conn, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')", &ret->wal, err);
    return status;
}

/* ---- a step -------------------------------------------------------------------------------------- */

/* The cost of the pieces of one lane in this step. */
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
    return end - lane->batches < PIECE ? (size_t)(end - lane->batches) : PIECE;
}

/* The time before which the oldest quarter, and nothing else, was processed. */
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
    size_t n = lane->batches < PIECE ? (size_t)lane->batches : PIECE;
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

static void report_step(const struct growth *g, int64_t step, const char *doing)
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
    report_step(g, number, "filling");
    for (bool more = true; more && status == SEMEL_OK && !growth_stopped(g);) {
        more = false;
        for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS; ids++) {
            struct growth_lane *lane = &g->lanes[ids];
            if (lane->batches < goal)
                status = fill(g, lane, piece_size(g, lane, goal), &steps[ids], &taken[ids], err);
            more = more || lane->batches < goal;
        }
    }
    report_step(g, number, "duplicates");
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

/* ---- the process that purges --------------------------------------------------------------------- */

struct report {
    semel_status status;
    struct semel_error err;
    int64_t rows, chunks, took_us, longest_us;
};

static semel_status end(struct semel_store *store, semel_status status, struct semel_error *err)
{
    if (status == SEMEL_OK)
        return semel_store_commit(store, err);
    semel_store_rollback(store);
    return status;
}

static semel_status raise_watermark(struct growth *g, const struct growth_lane *lane, struct semel_store *store,
                                    struct semel_error *err)
{
    int64_t now_us;
    if (lane->ids != BENCH_ORDERED)
        return SEMEL_OK; /* these have no time */
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_watermark(store, semel__str(lane->pg.consumer), SEMEL_STR(BENCH_SOURCE),
                                   g->first_us + lane->old_rows * ID_US, err);
    return end(store, status, err);
}

static semel_status purge_chunk(struct growth *g, const struct growth_lane *lane, struct semel_store *store,
                                size_t *ret_n, struct semel_error *err)
{
    int64_t now_us;
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_purge(store, semel__str(lane->pg.consumer), SEMEL_STR(BENCH_SOURCE), lane->old_us,
                               (size_t)g->options->chunk, 10 * (size_t)g->options->chunk, ret_n, err);
    return end(store, status, err);
}

static void purge(struct growth *g, const struct growth_lane *lane, struct report *report)
{
    struct semel *s = NULL;
    size_t n = 1;
    report->status = semel_open(&s, g->url, 0, &report->err);
    if (report->status != SEMEL_OK)
        return;
    int64_t start_us = semel__now(&semel__clock_real), before_us = start_us;
    report->status = raise_watermark(g, lane, s->store, &report->err);
    while (report->status == SEMEL_OK && n > 0 && !growth_stopped(g)) {
        report->status = purge_chunk(g, lane, s->store, &n, &report->err);
        int64_t now_us = semel__now(&semel__clock_real);
        if (now_us - before_us > report->longest_us)
            report->longest_us = now_us - before_us;
        before_us = now_us;
        report->rows += (int64_t)n;
        report->chunks += n > 0;
    }
    report->took_us = before_us - start_us;
    semel_close(s);
}

/* ---- the consumer meanwhile ---------------------------------------------------------------------- */

static bool is_over(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) > 0;
}

/* Processes new messages, for the given number of batches, or (0) until the process at the other end of `fd` writes, at
 * least one. Returns the rate per second. */
static semel_status process_new(struct growth *g, struct growth_lane *lane, int64_t most, int fd, double *ret_per_s,
                                struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    int64_t us = 0, batches = 0;
    for (bool over = false; status == SEMEL_OK && !over;) {
        size_t n = most > 0 && most - batches < PIECE ? (size_t)(most - batches) : PIECE;
        for (size_t i = 0; status == SEMEL_OK && i < n; i++)
            status = growth_make(g, lane, lane->batches + (int64_t)i, i, err);
        int64_t start_us = semel__now(&semel__clock_real);
        for (size_t i = 0; status == SEMEL_OK && i < n && !over; i++) {
            status = growth_run(g, lane, i, false, err);
            lane->batches += status == SEMEL_OK;
            batches++;
            over = growth_stopped(g) || (most > 0 ? batches == most : is_over(fd));
        }
        us += semel__now(&semel__clock_real) - start_us;
    }
    *ret_per_s = (double)(batches * g->options->batch) * 1e6 / (double)(us > 0 ? us : 1);
    return status;
}

/* ---- both ---------------------------------------------------------------------------------------- */

static semel_status start(struct growth *g, const struct growth_lane *lane, pid_t *ret_pid, int *ret_fd,
                          struct semel_error *err)
{
    int ends[2] = {-1, -1};
    pid_t pid = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
    if (pid < 0) {
        int error = errno;
        if (ends[0] >= 0) {
            close(ends[0]);
            close(ends[1]);
        }
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process cannot be started (error %d)", error);
    }
    if (pid == 0) { /* it uses only our memory: inherited descriptors stay untouched */
        struct report report = {0};
        close(ends[0]);
        purge(g, lane, &report);
        _exit(bench_pg_write(ends[1], &report, sizeof report) ? 0 : 1);
    }
    close(ends[1]);
    *ret_pid = pid;
    *ret_fd = ends[0];
    return SEMEL_OK;
}

static semel_status finish(pid_t pid, int fd, struct report *report, struct semel_error *err)
{
    bool complete = bench_pg_read(fd, report, sizeof *report);
    close(fd);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (!complete)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the process that purges has died");
    if (report->status != SEMEL_OK)
        *err = report->err;
    return report->status;
}

/* Purges the oldest quarter of the lane in another process, while this one continues to process new messages. */
static semel_status growth_purge(struct growth *g, struct growth_lane *lane, struct growth_purge *ret,
                                 struct semel_error *err)
{
    struct report report = {0};
    struct semel_error ignored;
    pid_t pid = -1;
    int fd = -1;
    int64_t step = (g->options->rows / g->options->steps + g->options->batch - 1) / g->options->batch;
    semel_status status = process_new(g, lane, step < CALM ? step : CALM, -1, &ret->calm_per_s, err);
    if (status == SEMEL_OK)
        status = start(g, lane, &pid, &fd, err);
    if (status != SEMEL_OK)
        return status;
    status = process_new(g, lane, 0, fd, &ret->meanwhile_per_s, err);
    if (status != SEMEL_OK)
        kill(pid, SIGTERM); /* it ends after its chunk */
    semel_status purged = finish(pid, fd, &report, status == SEMEL_OK ? err : &ignored);
    ret->rows = report.rows;
    ret->chunks = report.chunks;
    ret->per_s = (double)report.rows * 1e6 / (double)(report.took_us > 0 ? report.took_us : 1);
    ret->longest_ms = (double)report.longest_us / 1000;
    return status == SEMEL_OK ? purged : status;
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
    g->msgs = semel__calloc(PIECE * n, sizeof *g->msgs);
    g->given = semel__calloc(n, sizeof *g->given);
    g->verdicts = semel__calloc(n, sizeof *g->verdicts);
    if (g->msgs == NULL || g->given == NULL || g->verdicts == NULL)
        return semel__fail_memory(err);
    semel__random_seed(&g->rng, SEED);
    /* Twice as far back as the rows reach, in whole batches: the purge is accompanied by more of them. */
    const int64_t reach = g->options->rows + 4 * g->options->batch;
    g->first_us = semel__now(&semel__clock_real) / ID_US * ID_US - 2 * reach * ID_US;
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
        report_step(g, g->options->steps, "purging");
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
    status = bench_pg_measure(g.conn, ret_used, &ret->commit_us, err);
    if (status == SEMEL_OK && !*ret_used)
        status = measure(&g, ret, err);
    ret->rss_end_mb = bench_rss_mb();
    ret->stopped = growth_stopped(&g);
    semel_close(g.s);
    return status;
}
