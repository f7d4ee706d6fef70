/* SPDX-License-Identifier: MIT
 *
 * bench_inbox.c: the cases of `semel bench inbox`, and the rounds in which they are run.
 *
 * A case is measured with time-ordered ids (UUIDv7) and with random ones (UUIDv4); each of these is a lane. The rounds
 * are interleaved: the first one of every lane, then the second one of every lane, so that what disturbs the machine
 * for a while disturbs all of them alike, and the median of a lane's rounds is not the luck of one moment.
 *
 * The clock runs while the batches of a round are handed over, and until the write-ahead log that they left is in the
 * database: every lane starts with an empty log and pays for its own pages. Making messages is not measured.
 *
 * Ours is what users get: semel_inbox_process and semel_inbox_process_set of libsemel.
 *
 * Invariants: at the end every lane has exactly the effects that its messages ask for, or there is no result; nothing
 * is allocated here after the first round has begun, so that the memory at the end tells of the library.
 */
#include "cli/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

#define HANDWRITTEN_SHARE 10 /* one transaction a message is slow: a tenth of the messages tells its rate */
#define SEED UINT64_C(20261115)

struct bench;
struct lane;

struct kind {
    const char *name;
    semel_status (*batch)(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err);
    enum bench_work work;
    bool repeats; /* only messages that were completed before */
    bool poison;  /* some of them cannot be handled */
};

struct lane {
    const struct kind *kind;
    enum bench_ids ids;
    char name[32], consumer[32];
    struct bench_sql *sql;
    struct bench_stream stream;
    int64_t effects; /* that there must be */
    double *rates, *took_ms;
    size_t n_rates, n_took;
    double rss_mb;
};

struct bench {
    struct semel *s;
    const struct bench_options *options;
    size_t messages, batch;
    struct bench_msg *msgs;
    struct semel_msg *given;
    struct semel_verdict *verdicts;
    struct lane lanes[BENCH_CASES_MAX];
    size_t n_lanes;
};

static semel_status sql_failed(struct bench *b, const struct lane *lane, int rc, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = semel_fail_sqlite(b->s, rc, &why);
    semel__fail(err, status, why.cls, "%s: %.200s", lane->name, why.text);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------ */

/* The messages of one round. Those of a lane that repeats itself are the same every time. */
static semel_status make_msgs(struct bench *b, struct lane *lane, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (lane->kind->repeats)
        semel__random_seed(&lane->stream.rng, SEED + (uint64_t)(lane - b->lanes));
    if (!lane->kind->repeats || lane->n_rates == 0)
        bench_stream_from(&lane->stream, b->messages);
    for (size_t i = 0; status == SEMEL_OK && i < b->messages; i++)
        status = bench_msg_make(&lane->stream, i, i % b->batch, &b->msgs[i], err);
    if (lane->kind->work == BENCH_LIMIT)
        for (size_t i = 0; i < b->messages; i += b->batch)
            bench_msgs_sort(b->msgs + i, b->messages - i < b->batch ? b->messages - i : b->batch);
    return status;
}

/* ---- by hand ------------------------------------------------------------------------------------- */

static semel_status handwritten(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    int rc = 0;
    for (size_t i = first; rc == 0 && i < first + n; i++)
        rc = bench_sql_handwritten(lane->sql, &b->msgs[i], semel__now(&semel__clock_real));
    lane->effects += (int64_t)n;
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status hand_sets(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    size_t fresh = 0;
    int rc = bench_sql_hand_sets(lane->sql, b->msgs + first, n, semel__now(&semel__clock_real), &fresh);
    lane->effects += (int64_t)fresh;
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status limit(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    int rc = bench_sql_limit(lane->sql, semel__str(lane->consumer), b->msgs + first, n, semel__now(&semel__clock_real));
    lane->effects += (int64_t)n;
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

/* ---- ours ---------------------------------------------------------------------------------------- */

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *err)
{
    struct lane *lane = ctx;
    (void)attempt;
    if (lane->kind->poison && bench_effect(msg->payload).poison)
        return semel_reply_set(reply, SEMEL_PERMANENT, SEMEL_STR("the account is closed"), (struct semel_str){0});
    int rc = bench_sql_effect(lane->sql, msg->id, msg->payload);
    return rc == 0 ? SEMEL_OK : semel_fail_sqlite(s, rc, err);
}

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    struct lane *lane = ctx;
    int rc = bench_sql_set(lane->sql, msgs, n, named);
    return rc == 0 ? SEMEL_OK : semel_fail_sqlite(s, rc, err);
}

static void give(struct bench *b, struct lane *lane, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct semel_msg *msg = &b->given[i];
        semel_msg_init(msg);
        msg->consumer = semel__str(lane->consumer);
        msg->source = SEMEL_STR(BENCH_SOURCE);
        msg->type = SEMEL_STR(BENCH_TYPE);
        msg->id = (struct semel_str){b->msgs[first + i].id, SEMEL_UUID_TEXT - 1};
        msg->payload = (struct semel_str){b->msgs[first + i].payload, BENCH_PAYLOAD};
    }
}

static semel_status ours(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    give(b, lane, first, n);
    semel_status status = lane->kind->work == BENCH_SETS
                              ? semel_inbox_process_set(b->s, b->given, n, handle_set, lane, b->verdicts, err)
                              : semel_inbox_process(b->s, b->given, n, handle, lane, b->verdicts, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        if (b->verdicts[i].act != SEMEL_ACK)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s: a message was put off (%s)", lane->name,
                               semel_why_name(b->verdicts[i].why));
        lane->effects += b->verdicts[i].why == SEMEL_WHY_NEW && b->verdicts[i].state == SEMEL_STATE_COMPLETED;
    }
    return status;
}

/* Those that are compared most stand side by side. */
static const struct kind kinds[] = {
    {"handwritten", handwritten, BENCH_HANDWRITTEN, false, false},
    {"each", ours, BENCH_LEDGER, false, false},
    {"limit", limit, BENCH_LIMIT, false, false},
    {"handwritten-sets", hand_sets, BENCH_HAND_SETS, false, false},
    {"sets", ours, BENCH_SETS, false, false},
    {"duplicates", ours, BENCH_LEDGER, true, false},
    {"updates", ours, BENCH_UPDATES, false, false},
    {"poison", ours, BENCH_LEDGER, false, true},
};

/* ---- rounds -------------------------------------------------------------------------------------- */

static bool by_hand(const struct lane *lane)
{
    return lane->kind->work == BENCH_HANDWRITTEN;
}

static size_t share(const struct bench *b, const struct lane *lane)
{
    size_t n = by_hand(lane) ? b->messages / HANDWRITTEN_SHARE : b->messages;
    return n > 0 ? n : 1;
}

/* What has to be there before the clock starts: the messages that are repeated, and a handwritten inbox as large as the
 * others. */
static semel_status lead_in(struct bench *b, struct lane *lane, struct semel_error *err)
{
    size_t n = share(b, lane), rest = b->messages - n;
    if (by_hand(lane) && rest > 0) {
        int rc = bench_sql_fill(lane->sql, b->msgs + n, rest, semel__now(&semel__clock_real));
        lane->effects += (int64_t)rest;
        return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
    }
    semel_status status = SEMEL_OK;
    for (size_t i = 0; lane->kind->repeats && lane->n_rates == 0 && status == SEMEL_OK && i < n; i += b->batch)
        status = ours(b, lane, i, n - i < b->batch ? n - i : b->batch, err);
    return status;
}

static semel_status flush(struct bench *b, struct lane *lane, struct semel_error *err)
{
    int rc = bench_sql_flush(b->s);
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status run_batches(struct bench *b, struct lane *lane, struct semel_error *err)
{
    size_t total = share(b, lane), step = by_hand(lane) ? 1 : b->batch;
    semel_status status = SEMEL_OK;
    int64_t start_us = semel__now(&semel__clock_real), before_us = start_us;
    for (size_t i = 0; status == SEMEL_OK && i < total && !*b->options->stop; i += step) {
        status = lane->kind->batch(b, lane, i, total - i < step ? total - i : step, err);
        int64_t now_us = semel__now(&semel__clock_real);
        lane->took_ms[lane->n_took++] = (double)(now_us - before_us) / 1000;
        before_us = now_us;
    }
    if (status == SEMEL_OK)
        status = flush(b, lane, err);
    int64_t took_us = semel__now(&semel__clock_real) - start_us;
    lane->rates[lane->n_rates++] = (double)total * 1e6 / (double)(took_us > 0 ? took_us : 1);
    return status;
}

static semel_status run_round(struct bench *b, struct lane *lane, int64_t round, struct semel_error *err)
{
    const struct bench_options *options = b->options;
    if (options->progress != NULL)
        options->progress(options->ctx, round, lane->kind->name, bench_ids_names[lane->ids]);
    semel_status status = make_msgs(b, lane, err);
    if (status == SEMEL_OK)
        status = lead_in(b, lane, err);
    if (status == SEMEL_OK)
        status = flush(b, lane, err);
    if (status == SEMEL_OK)
        status = run_batches(b, lane, err);
    lane->rss_mb = bench_rss_mb();
    return status;
}

/* ---- books and medians --------------------------------------------------------------------------- */

static semel_status balance(struct bench *b, struct lane *lane, struct semel_error *err)
{
    int64_t n = 0;
    int rc = bench_sql_effects(lane->sql, &n);
    if (rc != 0)
        return sql_failed(b, lane, rc, err);
    if (n != lane->effects)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN,
                           "the books do not balance: %s has %" PRId64 " effects, and must have %" PRId64, lane->name,
                           n, lane->effects);
    return SEMEL_OK;
}

static void conclude(struct lane *lane, struct bench_case *ret)
{
    *ret = (struct bench_case){
        .name = lane->kind->name,
        .ids = bench_ids_names[lane->ids],
        .connections = 1,
        .per_s = bench_percentile(lane->rates, lane->n_rates, 0.5),
        .p50_ms = bench_percentile(lane->took_ms, lane->n_took, 0.5),
        .p99_ms = bench_percentile(lane->took_ms, lane->n_took, 0.99),
        .rss_mb = lane->rss_mb,
    };
}

double bench_rate(const struct bench_result *result, const char *name, enum bench_ids ids, int connections)
{
    for (size_t i = 0; i < result->n; i++) {
        const struct bench_case *c = &result->cases[i];
        if (c->connections == connections && strcmp(c->name, name) == 0 && strcmp(c->ids, bench_ids_names[ids]) == 0)
            return c->per_s;
    }
    return 0;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static semel_status open_lane(struct bench *b, const struct kind *kind, enum bench_ids ids, struct semel_error *err)
{
    struct lane *lane = &b->lanes[b->n_lanes++];
    size_t rounds = (size_t)b->options->rounds;
    *lane = (struct lane){.kind = kind, .ids = ids};
    bench_name(lane->name, sizeof lane->name, kind->name, ids);
    snprintf(lane->consumer, sizeof lane->consumer, "bench-%s-%s", kind->name, bench_ids_names[ids]);
    lane->stream = (struct bench_stream){.ids = ids, .poison = kind->poison};
    semel__random_seed(&lane->stream.rng, SEED + (uint64_t)(lane - b->lanes));
    lane->rates = semel__calloc(rounds, sizeof *lane->rates);
    size_t steps = by_hand(lane) ? share(b, lane) : (b->messages + b->batch - 1) / b->batch;
    lane->took_ms = semel__calloc(rounds * steps, sizeof *lane->took_ms);
    if (lane->rates == NULL || lane->took_ms == NULL)
        return semel__fail_memory(err);
    int rc = bench_sql_new(&lane->sql, b->s, kind->work, lane->name);
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status set_up(struct bench *b, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    b->messages = (size_t)b->options->messages;
    b->batch = (size_t)b->options->batch;
    b->msgs = semel__calloc(b->messages, sizeof *b->msgs);
    b->given = semel__calloc(b->batch, sizeof *b->given);
    b->verdicts = semel__calloc(b->batch, sizeof *b->verdicts);
    if (b->msgs == NULL || b->given == NULL || b->verdicts == NULL)
        return semel__fail_memory(err);
    for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++)
        for (size_t i = 0; status == SEMEL_OK && i < sizeof kinds / sizeof kinds[0]; i++)
            if (bench_wanted(b->options, kinds[i].name))
                status = open_lane(b, &kinds[i], ids, err);
    return status;
}

static void tear_down(struct bench *b)
{
    for (size_t i = 0; i < b->n_lanes; i++) {
        bench_sql_free(b->lanes[i].sql);
        semel__free(b->lanes[i].rates);
        semel__free(b->lanes[i].took_ms);
    }
    semel__free(b->msgs);
    semel__free(b->given);
    semel__free(b->verdicts);
}

semel_status bench_inbox(struct semel *s, const struct bench_options *options, struct bench_result *ret,
                         struct semel_error *err)
{
    struct bench b = {.s = s, .options = options};
    semel_status status = set_up(&b, err);
    *ret = (struct bench_result){.name = "inbox-sqlite", .rss_start_mb = bench_rss_mb()};
    for (int64_t round = 1; status == SEMEL_OK && round <= options->rounds; round++)
        for (size_t i = 0; status == SEMEL_OK && i < b.n_lanes && !*options->stop; i++)
            status = run_round(&b, &b.lanes[i], round, err);
    ret->rss_end_mb = bench_rss_mb();
    ret->stopped = *options->stop != 0;
    for (size_t i = 0; status == SEMEL_OK && !ret->stopped && i < b.n_lanes; i++) {
        status = balance(&b, &b.lanes[i], err);
        conclude(&b.lanes[i], &ret->cases[ret->n++]);
    }
    tear_down(&b);
    return status;
}
