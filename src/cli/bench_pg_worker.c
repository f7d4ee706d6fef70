/* SPDX-License-Identifier: MIT
 *
 * bench_pg_worker.c: one process of `semel bench inbox` on PostgreSQL, with a connection of its own.
 *
 * Ours is what users get: semel_inbox_process and semel_inbox_process_set of libsemel, with the handler `sql`, a
 * statement and rules as a route has them: account and amount are found in the JSON of the payload. The accounts of
 * `updates` are order keys of a consumer without an order, which sorts a batch by them (P61).
 *
 * Invariants: an order is answered by exactly one report, whatever came of it.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/bench_pg.h"
#include "handler/sql.h"
#include "lib/handle.h"
#include "store/pg_store.h"

#define HANDWRITTEN_SHARE 10 /* one transaction a message is slow: a tenth of the messages tells its rate */
#define ACCOUNT_AT 55        /* in a payload */
#define ACCOUNT_DIGITS 5

struct track {
    const struct bench_pg_lane *lane;
    struct bench_pg_sql sql;
    struct semel_sql *effect;
    struct bench_stream stream;
    size_t rounds;
    uint64_t seed;
};

struct worker {
    const struct bench_pg_plan *plan;
    size_t index, batch, mine; /* mine: messages a round */
    struct semel *s;
    struct bench_msg *msgs;
    struct semel_msg *given;
    struct semel_verdict *verdicts;
    struct semel__msg *shown; /* to the handler */
    const struct semel__msg **set;
    struct track *setting; /* whose set is processed */
    double *took_ms;
    size_t n_took;
    int64_t effects;
    struct track tracks[BENCH_PG_LANES];
};

bool bench_pg_read(int fd, void *to, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)to + done, n - done);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

bool bench_pg_write(int fd, const void *from, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = write(fd, (const char *)from + done, n - done);
        if (put < 0 && errno != EINTR)
            return false;
        done += put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* ---- the cases ----------------------------------------------------------------------------------- */

static bool by_hand(const struct track *track)
{
    return track->lane->kind->work == BENCH_HANDWRITTEN;
}

static bool at_limit(const struct track *track)
{
    return track->lane->kind->work == BENCH_LIMIT || track->lane->kind->work == BENCH_BLIND;
}

static bool is_ours(const struct track *track)
{
    return !by_hand(track) && !at_limit(track) && track->lane->kind->work != BENCH_HAND_SETS;
}

/* libsemel has parsed the payload for the fingerprint. */
static struct semel__msg show(const struct semel_msg *msg)
{
    return (struct semel__msg){.source = msg->source,
                               .id = msg->id,
                               .payload = msg->payload,
                               .fp = {.kind = SEMEL_FP_JSON}};
}

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *err)
{
    struct track *track = ctx;
    const struct semel__handler *effect = semel__sql_handler(track->effect);
    const struct semel__msg shown = show(msg);
    if (track->lane->kind->poison && bench_effect(msg->payload).poison)
        return semel_reply_set(reply, SEMEL_PERMANENT, SEMEL_STR("the account is closed"), (struct semel_str){0});
    return effect->each(effect->ctx, s->store, &shown, attempt, NULL, err);
}

static void name(void *ctx, struct semel_str source, struct semel_str id)
{
    semel_named_add(ctx, source, id);
}

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    struct worker *w = ctx;
    for (size_t i = 0; i < n; i++) {
        w->shown[i] = show(&msgs[i]);
        w->set[i] = &w->shown[i];
    }
    return semel__sql_run_set(w->setting->effect, s->store, w->set, n, name, named, err);
}

static semel_status make_handler(struct worker *w, struct track *track, struct semel_error *err)
{
    static const struct semel_str values[] = {SEMEL_STR("id"), SEMEL_STR("json:/account"), SEMEL_STR("json:/amount")};
    const bool sets = track->lane->kind->work == BENCH_SETS;
    char statement[256];
    if (sets)
        snprintf(statement, sizeof statement,
                 "INSERT INTO %s (message_id, account, amount) SELECT * FROM unnest($1::text[], $2::integer[], "
                 "$3::integer[]) RETURNING message_id",
                 track->sql.table);
    const struct semel_sql_desc desc = {
        .statement = semel__str(sets ? statement : track->sql.effect),
        .mode = sets ? SEMEL_SQL_SET : SEMEL_SQL_EACH,
        .values = values,
        .n_values = sizeof values / sizeof values[0],
    };
    return semel__sql_handler_new(&track->effect, &desc, w->s->store, err);
}

static void give(struct worker *w, const struct track *track, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct bench_msg *from = &w->msgs[first + i];
        struct semel_msg *msg = &w->given[i];
        semel_msg_init(msg);
        msg->consumer = semel__str(track->lane->consumer);
        msg->source = SEMEL_STR(BENCH_SOURCE);
        msg->type = SEMEL_STR(BENCH_TYPE);
        msg->id = (struct semel_str){from->id, SEMEL_UUID_TEXT - 1};
        msg->payload = (struct semel_str){from->payload, BENCH_PAYLOAD};
        if (track->lane->kind->work == BENCH_UPDATES)
            msg->order_key = (struct semel_str){from->payload + ACCOUNT_AT, ACCOUNT_DIGITS};
    }
}

static semel_status ours(struct worker *w, struct track *track, size_t first, size_t n, struct semel_error *err)
{
    give(w, track, first, n);
    w->setting = track;
    semel_status status = track->lane->kind->work == BENCH_SETS
                              ? semel_inbox_process_set(w->s, w->given, n, handle_set, w, w->verdicts, err)
                              : semel_inbox_process(w->s, w->given, n, handle, track, w->verdicts, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        if (w->verdicts[i].act != SEMEL_ACK)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s: a message was put off (%s)",
                               track->lane->name, semel_why_name(w->verdicts[i].why));
        w->effects += w->verdicts[i].why == SEMEL_WHY_NEW && w->verdicts[i].state == SEMEL_STATE_COMPLETED;
    }
    return status;
}

static semel_status run_batch(struct worker *w, struct track *track, size_t first, size_t n, struct semel_error *err)
{
    semel_status status;
    size_t effects = n;
    switch (track->lane->kind->work) {
    case BENCH_HAND_SETS:
        status = bench_pg_hand_sets(&track->sql, w->msgs + first, n, &effects, err);
        break;
    case BENCH_HANDWRITTEN:
        status = bench_pg_handwritten(&track->sql, &w->msgs[first], err);
        break;
    case BENCH_LIMIT:
    case BENCH_BLIND:
        status = bench_pg_limit(&track->sql, semel__str(track->lane->consumer), w->msgs + first, n,
                                semel__now(&semel__clock_real), err);
        break;
    case BENCH_LEDGER:
    case BENCH_SETS:
    case BENCH_UPDATES:
    default:
        return ours(w, track, first, n, err);
    }
    w->effects += (int64_t)effects;
    return status;
}

/* ---- orders -------------------------------------------------------------------------------------- */

static size_t share(const struct worker *w, const struct track *track)
{
    size_t n = by_hand(track) ? w->mine / HANDWRITTEN_SHARE : w->mine;
    return n > 0 ? n : 1;
}

static semel_status make_msgs(struct worker *w, struct track *track, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    bool repeats = track->lane->kind->repeats;
    if (repeats || track->rounds == 0)
        semel__random_seed(&track->stream.rng, track->seed);
    if (!repeats || track->rounds == 0)
        bench_stream_from(&track->stream, w->mine);
    for (size_t i = 0; status == SEMEL_OK && i < w->mine; i++)
        status = bench_msg_make(&track->stream, i, i % w->batch, &w->msgs[i], err);
    for (size_t i = 0; at_limit(track) && i < w->mine; i += w->batch)
        bench_msgs_sort(w->msgs + i, w->mine - i < w->batch ? w->mine - i : w->batch);
    return status;
}

/* What has to be there before the clock starts: the messages that are repeated, and a handwritten inbox as large as the
 * others. */
static semel_status get_ready(struct worker *w, struct track *track, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (track->sql.conn == NULL)
        status = bench_pg_sql_init(&track->sql, semel_native(w->s), track->lane, err);
    if (status == SEMEL_OK && is_ours(track) && track->effect == NULL)
        status = make_handler(w, track, err);
    if (status == SEMEL_OK)
        status = make_msgs(w, track, err);
    size_t n = share(w, track);
    for (size_t i = n; by_hand(track) && status == SEMEL_OK && i < w->mine; i += w->batch) {
        size_t some = w->mine - i < w->batch ? w->mine - i : w->batch;
        status = bench_pg_fill(&track->sql, w->msgs + i, some, err);
        w->effects += (int64_t)some;
    }
    for (size_t i = 0; track->lane->kind->repeats && track->rounds == 0 && status == SEMEL_OK && i < n; i += w->batch)
        status = ours(w, track, i, n - i < w->batch ? n - i : w->batch, err);
    track->rounds++;
    return status;
}

static semel_status go(struct worker *w, struct track *track, struct semel_error *err)
{
    size_t total = share(w, track), step = by_hand(track) ? 1 : w->batch;
    semel_status status = SEMEL_OK;
    int64_t before_us = semel__now(&semel__clock_real);
    for (size_t i = 0; status == SEMEL_OK && i < total && *w->plan->options->stop == 0; i += step) {
        status = run_batch(w, track, i, total - i < step ? total - i : step, err);
        int64_t now_us = semel__now(&semel__clock_real);
        w->took_ms[w->n_took++] = (double)(now_us - before_us) / 1000;
        before_us = now_us;
    }
    return status;
}

static bool answer(struct worker *w, int out, const struct bench_pg_report *report)
{
    return bench_pg_write(out, report, sizeof *report) &&
           bench_pg_write(out, w->took_ms, report->n_took * sizeof *w->took_ms);
}

static bool obey(struct worker *w, const struct bench_pg_order *order, int out)
{
    struct track *track = &w->tracks[order->lane];
    struct bench_pg_report report = {0};
    w->effects = 0;
    w->n_took = 0;
    int64_t trips = semel__pg_trips(w->s->store) + track->sql.trips;
    report.status = order->op == BENCH_PG_GO ? go(w, track, &report.err) : get_ready(w, track, &report.err);
    report.trips = semel__pg_trips(w->s->store) + track->sql.trips - trips;
    report.messages = share(w, track);
    report.effects = w->effects;
    report.n_took = w->n_took;
    report.rss_mb = bench_rss_mb();
    return answer(w, out, &report);
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static semel_status set_up(struct worker *w, struct semel_error *err)
{
    const struct bench_pg_plan *plan = w->plan;
    size_t messages = (size_t)plan->options->messages, n = (size_t)plan->connections;
    w->batch = (size_t)plan->options->batch;
    w->mine = messages / n + (w->index < messages % n);
    w->mine = w->mine > 0 ? w->mine : 1;
    w->msgs = semel__calloc(w->mine, sizeof *w->msgs);
    w->given = semel__calloc(w->batch, sizeof *w->given);
    w->verdicts = semel__calloc(w->batch, sizeof *w->verdicts);
    w->shown = semel__calloc(w->batch, sizeof *w->shown);
    w->set = semel__calloc(w->batch, sizeof *w->set);
    w->took_ms = semel__calloc(w->mine, sizeof *w->took_ms);
    if (w->msgs == NULL || w->given == NULL || w->verdicts == NULL || w->shown == NULL || w->set == NULL ||
        w->took_ms == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < plan->n_lanes; i++)
        w->tracks[i] = (struct track){
            .lane = &plan->lanes[i],
            .stream = {.ids = plan->lanes[i].ids, .poison = plan->lanes[i].kind->poison},
            .seed = BENCH_PG_SEED + (n * BENCH_PG_LANES + i) * 64 + w->index,
        };
    return semel_open(&w->s, plan->url, 0, err);
}

int bench_pg_worker(const struct bench_pg_plan *plan, int index, int in, int out)
{
    struct worker w = {.plan = plan, .index = (size_t)index};
    struct bench_pg_report hello = {0};
    struct bench_pg_order order;
    hello.status = set_up(&w, &hello.err);
    bool going = answer(&w, out, &hello) && hello.status == SEMEL_OK && w.s != NULL;
    while (going && bench_pg_read(in, &order, sizeof order))
        going = order.lane < plan->n_lanes && obey(&w, &order, out);
    for (size_t i = 0; i < plan->n_lanes; i++)
        bench_pg_sql_done(&w.tracks[i].sql);
    for (size_t i = 0; i < plan->n_lanes; i++)
        semel__sql_handler_free(w.tracks[i].effect);
    semel_close(w.s);
    semel__free(w.msgs);
    semel__free(w.given);
    semel__free(w.verdicts);
    semel__free(w.shown);
    semel__free(w.set);
    semel__free(w.took_ms);
    return 0;
}
