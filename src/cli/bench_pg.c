/* SPDX-License-Identifier: MIT
 *
 * bench_pg.c: `semel bench inbox` on PostgreSQL: the processes, the rounds and what is made of them.
 *
 * The cases are run on 1, 2, 4 and 8 connections, each in a process of its own which was forked before it connected.
 * For one number of connections the rounds are interleaved as on SQLite. A round's clock runs from the moment when all
 * processes were ready until the last one has done its share. WAL is the server's whole: nobody else may use it.
 *
 * Invariants: at the end every lane has exactly the effects that its messages ask for, or there is no result; every
 * process that was started has been waited for.
 */
#define _GNU_SOURCE /* pipe2 */
#include "cli/bench_pg.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define WORKERS_MAX 8
#define COMMITS 100

static const struct bench_pg_kind kinds[] = {
    {"handwritten", BENCH_HANDWRITTEN, false, false},
    {"each", BENCH_LEDGER, false, false},
    {"handwritten-sets", BENCH_HAND_SETS, false, false},
    {"sets", BENCH_SETS, false, false},
    {"duplicates", BENCH_LEDGER, true, false},
    {"limit", BENCH_LIMIT, false, false},
    {"blind", BENCH_BLIND, false, false},
    {"updates", BENCH_UPDATES, false, false},
    {"poison", BENCH_LEDGER, false, true},
};

struct child {
    pid_t pid;
    int in, out; /* orders, reports; -1: closed */
};

/* What is known of a lane. */
struct tally {
    double *rates, *took_ms;
    size_t n_rates, n_took, room;
    int64_t effects, messages, trips;
    double wal_bytes, rss_mb;
};

struct bench {
    struct semel *s;
    PGconn *conn;
    struct bench_pg_plan plan;
    struct tally tallies[BENCH_PG_LANES];
    struct child children[WORKERS_MAX];
    size_t n_children;
};

bool bench_pg_url(const char *url)
{
    return strncmp(url, "postgres:", 9) == 0 || strncmp(url, "postgresql:", 11) == 0;
}

/* ---- processes ----------------------------------------------------------------------------------- */

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Never returns in the child. It has nothing of ours but the memory: what it inherits stays untouched. */
static semel_status start_child(struct bench *b, struct semel_error *err)
{
    int orders[2] = {-1, -1}, reports[2] = {-1, -1};
    struct child *child = &b->children[b->n_children];
    bool ok = pipe2(orders, O_CLOEXEC) == 0 && pipe2(reports, O_CLOEXEC) == 0;
    pid_t pid = ok ? fork() : -1;
    if (pid == 0) {
        close(orders[1]);
        close(reports[0]);
        for (size_t i = 0; i < b->n_children; i++) {
            close_end(&b->children[i].in);
            close_end(&b->children[i].out);
        }
        _exit(bench_pg_worker(&b->plan, (int)b->n_children, orders[0], reports[1]));
    }
    close_end(&orders[0]);
    close_end(&reports[1]);
    if (pid < 0) {
        close_end(&orders[1]);
        close_end(&reports[0]);
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process cannot be started (error %d)", errno);
    }
    *child = (struct child){.pid = pid, .in = orders[1], .out = reports[0]};
    b->n_children++;
    return SEMEL_OK;
}

static void end_children(struct bench *b)
{
    for (size_t i = 0; i < b->n_children; i++)
        close_end(&b->children[i].in); /* no more orders */
    for (size_t i = 0; i < b->n_children; i++) {
        close_end(&b->children[i].out);
        while (waitpid(b->children[i].pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    b->n_children = 0;
}

/* ---- a round ------------------------------------------------------------------------------------- */

static bool keep_times(struct tally *tally, const struct child *child, size_t n)
{
    if (tally->n_took + n > tally->room) {
        size_t room = 2 * (tally->n_took + n);
        double *more = semel__realloc(tally->took_ms, room, sizeof *more);
        if (more == NULL)
            return false;
        tally->took_ms = more;
        tally->room = room;
    }
    if (!bench_pg_read(child->out, tally->took_ms + tally->n_took, n * sizeof(double)))
        return false;
    tally->n_took += n;
    return true;
}

/* Reads a report of each process and adds it up. The first failure is told when all have been read. */
static semel_status collect(struct bench *b, struct tally *tally, size_t *ret_messages, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    *ret_messages = 0;
    tally->rss_mb = 0;
    for (size_t i = 0; i < b->n_children; i++) {
        struct bench_pg_report report;
        if (!bench_pg_read(b->children[i].out, &report, sizeof report) ||
            !keep_times(tally, &b->children[i], report.n_took))
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process of the benchmark has died");
        if (status == SEMEL_OK && report.status != SEMEL_OK) {
            status = report.status;
            *err = report.err;
        }
        *ret_messages += report.messages;
        tally->effects += report.effects;
        tally->trips += report.n_took > 0 ? report.trips : 0;
        tally->rss_mb += report.rss_mb;
    }
    return status;
}

static semel_status command(struct bench *b, size_t lane, enum bench_pg_op op, struct semel_error *err)
{
    const struct bench_pg_order order = {.op = op, .lane = lane};
    for (size_t i = 0; i < b->n_children; i++)
        if (!bench_pg_write(b->children[i].in, &order, sizeof order))
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process of the benchmark has died");
    return SEMEL_OK;
}

static semel_status wal_position(struct bench *b, double *ret, struct semel_error *err)
{
    return bench_pg_number(b->conn, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')", ret, err);
}

static semel_status run_round(struct bench *b, size_t lane, struct semel_error *err)
{
    struct tally *tally = &b->tallies[lane];
    double before = 0, after = 0;
    size_t messages = 0;
    semel_status status = command(b, lane, BENCH_PG_PREPARE, err);
    if (status == SEMEL_OK)
        status = collect(b, tally, &messages, err);
    if (status == SEMEL_OK)
        status = wal_position(b, &before, err);
    if (status != SEMEL_OK)
        return status;
    int64_t start_us = semel__now(&semel__clock_real);
    status = command(b, lane, BENCH_PG_GO, err);
    if (status == SEMEL_OK)
        status = collect(b, tally, &messages, err);
    int64_t took_us = semel__now(&semel__clock_real) - start_us;
    if (status == SEMEL_OK)
        status = wal_position(b, &after, err);
    tally->rates[tally->n_rates++] = (double)messages * 1e6 / (double)(took_us > 0 ? took_us : 1);
    tally->messages += (int64_t)messages;
    tally->wal_bytes += after - before;
    return status;
}

static semel_status run_rounds(struct bench *b, struct semel_error *err)
{
    const struct bench_options *options = b->plan.options;
    semel_status status = SEMEL_OK;
    for (int64_t round = 1; status == SEMEL_OK && round <= options->rounds; round++)
        for (size_t i = 0; status == SEMEL_OK && i < b->plan.n_lanes && *options->stop == 0; i++) {
            const struct bench_pg_lane *lane = &b->plan.lanes[i];
            if (options->progress != NULL)
                options->progress(options->ctx, round, lane->name, bench_ids_names[lane->ids]);
            status = run_round(b, i, err);
        }
    return status;
}

/* ---- a number of connections --------------------------------------------------------------------- */

static semel_status open_lane(struct bench *b, const struct bench_pg_kind *kind, enum bench_ids ids,
                              struct semel_error *err)
{
    struct bench_pg_lane *lane = &b->plan.lanes[b->plan.n_lanes];
    struct tally *tally = &b->tallies[b->plan.n_lanes++];
    *lane = (struct bench_pg_lane){.kind = kind, .ids = ids};
    *tally = (struct tally){.rates = semel__calloc((size_t)b->plan.options->rounds, sizeof(double))};
    if (tally->rates == NULL)
        return semel__fail_memory(err);
    bench_name(lane->name, sizeof lane->name, kind->name, ids);
    snprintf(lane->name + strlen(lane->name), sizeof lane->name - strlen(lane->name), "_%d", b->plan.connections);
    snprintf(lane->consumer, sizeof lane->consumer, "bench-%s-%s-%d", kind->name, bench_ids_names[ids],
             b->plan.connections);
    semel_status status = bench_pg_tables(b->conn, kind->work, lane->name, err);
    if (status == SEMEL_OK && kind->work == BENCH_UPDATES)
        status = semel_consumer_set(b->s, lane->consumer, "{\"order\":\"none\"}", err);
    return status;
}

static void close_lanes(struct bench *b)
{
    for (size_t i = 0; i < b->plan.n_lanes; i++) {
        semel__free(b->tallies[i].rates);
        semel__free(b->tallies[i].took_ms);
    }
    b->plan.n_lanes = 0;
}

static semel_status balance(struct bench *b, size_t i, struct semel_error *err)
{
    const struct bench_pg_lane *lane = &b->plan.lanes[i];
    int64_t n = 0;
    semel_status status = bench_pg_effects(b->conn, lane->kind->work, lane->name, &n, err);
    if (status == SEMEL_OK && n != b->tallies[i].effects)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN,
                           "the books do not balance: %s has %" PRId64 " effects, and must have %" PRId64, lane->name,
                           n, b->tallies[i].effects);
    return status;
}

static void conclude(const struct bench *b, size_t i, struct bench_case *ret)
{
    const struct bench_pg_lane *lane = &b->plan.lanes[i];
    const struct tally *tally = &b->tallies[i];
    double messages = tally->messages > 0 ? (double)tally->messages : 1;
    *ret = (struct bench_case){
        .name = lane->kind->name,
        .ids = bench_ids_names[lane->ids],
        .connections = b->plan.connections,
        .per_s = bench_percentile(tally->rates, tally->n_rates, 0.5),
        .p50_ms = bench_percentile(tally->took_ms, tally->n_took, 0.5),
        .p99_ms = bench_percentile(tally->took_ms, tally->n_took, 0.99),
        .rss_mb = tally->rss_mb,
        .trips = (double)tally->trips / messages,
        .wal_bytes = tally->wal_bytes / messages,
    };
}

static semel_status run_connections(struct bench *b, struct bench_result *ret, struct semel_error *err)
{
    const volatile sig_atomic_t *stop = b->plan.options->stop;
    struct tally hello = {0};
    size_t none;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS; ids++)
            if (bench_wanted(b->plan.options, kinds[i].name))
                status = open_lane(b, &kinds[i], ids, err);
    for (int i = 0; status == SEMEL_OK && i < b->plan.connections; i++)
        status = start_child(b, err);
    if (status == SEMEL_OK)
        status = collect(b, &hello, &none, err);
    if (status == SEMEL_OK)
        status = run_rounds(b, err);
    end_children(b);
    for (size_t i = 0; status == SEMEL_OK && *stop == 0 && i < b->plan.n_lanes; i++) {
        status = balance(b, i, err);
        conclude(b, i, &ret->cases[ret->n++]);
    }
    close_lanes(b);
    return status;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

semel_status bench_pg_look(PGconn *conn, bool *ret_used, double *ret_commit_us, struct semel_error *err)
{
    double used = 0, none, took_us[COMMITS];
    semel_status status = bench_pg_number(conn,
                                          "SELECT (EXISTS (SELECT 1 FROM semel.inbox) OR EXISTS (SELECT 1 FROM "
                                          "pg_catalog.pg_class WHERE relname LIKE 'bench\\_%'))::integer",
                                          &used, err);
    *ret_used = used != 0;
    if (status != SEMEL_OK || *ret_used)
        return status;
    /* A transaction that writes as little as possible: what it takes is the wait for the disk. */
    for (size_t i = 0; status == SEMEL_OK && i < COMMITS; i++) {
        int64_t start_us = semel__now(&semel__clock_real);
        status = bench_pg_number(conn, "SELECT pg_logical_emit_message(true, 'semel', 'bench') - '0/0'", &none, err);
        took_us[i] = (double)(semel__now(&semel__clock_real) - start_us);
    }
    *ret_commit_us = status == SEMEL_OK ? bench_percentile(took_us, COMMITS, 0.5) : 0;
    return status;
}

semel_status bench_pg(const char *url, const struct bench_options *options, struct bench_result *ret, bool *ret_opened,
                      bool *ret_used, struct semel_error *err)
{
    static struct bench b; /* its lanes are many */
    b = (struct bench){.plan = {.url = url, .options = options}};
    *ret = (struct bench_result){.name = "inbox-postgres", .server = true, .rss_start_mb = bench_rss_mb()};
    semel_status status = semel_open(&b.s, url, SEMEL_CREATE | SEMEL_MIGRATE, err);
    *ret_opened = status == SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    b.conn = semel_native(b.s);
    status = bench_pg_look(b.conn, ret_used, &ret->commit_us, err);
    for (int n = 1; status == SEMEL_OK && !*ret_used && n <= options->connections && *options->stop == 0; n *= 2) {
        b.plan.connections = n;
        status = run_connections(&b, ret, err);
    }
    ret->rss_end_mb = bench_rss_mb();
    ret->stopped = *options->stop != 0;
    semel_close(b.s);
    return status;
}
