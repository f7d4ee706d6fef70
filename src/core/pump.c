/* SPDX-License-Identifier: MIT
 *
 * pump.c: one worker: its step and its tick; and, for effects outside the database, its claims and their ends,
 * between which the caller runs them.
 *
 * Invariants: a claimed delivery is acknowledged after the commit of the claim: its payload is stored by then, and if
 * this process dies, recovery by any other finds the row. Nothing runs before that commit. positions.h has the rules
 * of the positions that move with a batch.
 */
#include <string.h>

#include "core/pump.h"
#include "base/error.h"
#include "base/point.h"
#include "base/str.h"
#include "core/positions.h"
#include "core/transaction.h"

/* ---- positions: what a worker remembers -------------------------------------------------------------- */

/* What a worker remembers about a partition between batches. */
struct position_lane {
    char *name; /* the memory of `source` */
    struct semel_str source;
    int32_t partition;
    int64_t epoch; /* the highest so far */
    int64_t hole;  /* the first offset that was given back and has not come again; SEMEL_NONE */
    /* the fields below belong to one batch */
    bool touched;
    int64_t asked; /* the lowest epoch in it: if there are two, the store refuses the older one */
    int64_t end;   /* behind the last delivery that may move it; SEMEL_NONE */
    int64_t stop;  /* the hole, as this batch would leave it */
};

static void updates_init(struct semel_position_updates *position_updates)
{
    *position_updates = (struct semel_position_updates){0};
}

static void updates_done(struct semel_position_updates *position_updates)
{
    for (size_t i = 0; i < position_updates->n; i++)
        semel__free(position_updates->lanes[i].name);
    semel__free(position_updates->lanes);
    semel__free(position_updates->items);
    *position_updates = (struct semel_position_updates){0};
}

/* The source was reopened: unacknowledged deliveries come again. */
static void updates_reopened(struct semel_position_updates *position_updates)
{
    position_updates->blind = false;
}

/* ---- lanes --------------------------------------------------------------------------------------- */

static int cmp_lane(const struct position_lane *lane, struct semel_str source, int32_t partition)
{
    int c = semel__str_cmp(lane->source, source);
    return c != 0 ? c : (lane->partition > partition) - (lane->partition < partition);
}

/* Its index, or where to insert it. */
static size_t place_of(const struct semel_position_updates *position_updates, struct semel_str source,
                       int32_t partition)
{
    size_t low = 0, high = position_updates->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cmp_lane(&position_updates->lanes[middle], source, partition) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool reserve(struct semel_position_updates *position_updates)
{
    size_t room = position_updates->room > 0 ? 2 * position_updates->room : 8;
    if (position_updates->n < position_updates->room)
        return true;
    if (position_updates->n >= SEMEL_POSITIONS_MAX)
        return false;
    struct semel_position *items = semel__realloc(position_updates->items, room, sizeof *items);
    if (items == NULL)
        return false;
    position_updates->items = items;
    struct position_lane *lanes = semel__realloc(position_updates->lanes, room, sizeof *lanes);
    if (lanes == NULL)
        return false;
    position_updates->lanes = lanes;
    position_updates->room = room;
    return true;
}

/* Finds or makes the lane of a delivery. NULL: no memory. */
static struct position_lane *lane_of(struct semel_position_updates *position_updates,
                                     const struct semel_delivery *delivery)
{
    struct semel_str source = semel__str_given(delivery->source) ? delivery->source : SEMEL_STR("");
    size_t at = place_of(position_updates, source, delivery->partition);
    if (at < position_updates->n && cmp_lane(&position_updates->lanes[at], source, delivery->partition) == 0)
        return &position_updates->lanes[at];
    char *name = reserve(position_updates) ? semel__alloc(source.n + 1) : NULL;
    if (name == NULL)
        return NULL;
    memcpy(name, source.p, source.n);
    memmove(&position_updates->lanes[at + 1], &position_updates->lanes[at],
            (position_updates->n - at) * sizeof *position_updates->lanes);
    position_updates->n++;
    position_updates->lanes[at] = (struct position_lane){.name = name,
                                                         .source = {name, source.n},
                                                         .partition = delivery->partition,
                                                         .hole = SEMEL_NONE};
    return &position_updates->lanes[at];
}

/* ---- one batch ----------------------------------------------------------------------------------- */

static bool is_marked(const struct semel_delivery *delivery)
{
    return delivery->epoch > 0 && delivery->partition >= 0 && delivery->offset >= 0 && delivery->offset < INT64_MAX;
}

/* A new epoch starts at the stored position: the source delivers the holes of the old epoch again. */
static void touch(struct position_lane *lane, int64_t epoch)
{
    if (epoch > lane->epoch) {
        lane->epoch = epoch;
        lane->hole = lane->stop = lane->end = SEMEL_NONE;
    }
    if (!lane->touched) {
        lane->stop = lane->hole;
        lane->end = SEMEL_NONE;
    }
    if (!lane->touched || epoch < lane->asked)
        lane->asked = epoch;
    lane->touched = true;
}

static void step(struct position_lane *lane, int64_t offset, bool acked)
{
    if (lane->stop != SEMEL_NONE && offset <= lane->stop)
        lane->stop = SEMEL_NONE; /* the source has gone back: its deliveries are in order again */
    if (lane->stop != SEMEL_NONE)
        return;
    if (acked)
        lane->end = offset + 1;
    else
        lane->stop = offset;
}

/* Computes where each partition would end; settled NULL: as if all were acknowledged. false: no memory. */
static bool compute_ends(struct semel_position_updates *position_updates, const struct semel_delivery *deliveries,
                         const struct semel_settled *settled, size_t n)
{
    for (size_t i = 0; i < position_updates->n; i++)
        position_updates->lanes[i].touched = false;
    for (size_t i = 0; i < n; i++) {
        if (!is_marked(&deliveries[i]))
            continue;
        struct position_lane *lane = lane_of(position_updates, &deliveries[i]);
        if (lane == NULL) {
            position_updates->blind = true;
            return false;
        }
        touch(lane, deliveries[i].epoch);
        if (deliveries[i].epoch == lane->epoch)
            step(lane, deliveries[i].offset, settled == NULL || settled[i].act == SEMEL_ACK);
    }
    return true;
}

/* Collects the positions of the touched partitions; with `ends`, only those that move. */
static void gather(struct semel_position_updates *position_updates, bool ends)
{
    position_updates->n_items = 0;
    for (size_t i = 0; i < position_updates->n; i++) {
        const struct position_lane *lane = &position_updates->lanes[i];
        if (!lane->touched || (ends && lane->end == SEMEL_NONE))
            continue;
        position_updates->items[position_updates->n_items++] = (struct semel_position){.source = lane->source,
                                                                                       .partition = lane->partition,
                                                                                       .offset = position_updates->blind
                                                                                                     ? SEMEL_NONE
                                                                                                     : lane->end,
                                                                                       .epoch = lane->asked};
    }
}

static bool any_marked(const struct semel_delivery *deliveries, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_marked(&deliveries[i]))
            return true;
    return false;
}

/* ---- moving -------------------------------------------------------------------------------------- */

static semel_status move(struct semel_position_updates *position_updates, struct semel_inbox *inbox, int64_t now_us,
                         struct semel_error *err)
{
    char name[72];
    semel_status status = semel_store_positions_move(inbox->store, inbox->policy->consumer, position_updates->items,
                                                     position_updates->n_items, now_us, err);
    for (size_t i = 0; status == SEMEL_OK && i < position_updates->n_items; i++) {
        const struct semel_position *item = &position_updates->items[i];
        if (!item->fenced)
            continue;
        semel__str_show(name, sizeof name, item->source);
        status = semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_TRANSIENT,
                             "partition %d of %s was given to somebody else, or its position was set", item->partition,
                             name);
    }
    position_updates->refused |= status == SEMEL_FENCED;
    return status;
}

semel_status semel__position_updates_move(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                          bool all, int64_t now_us, struct semel_error *err)
{
    gather(position_updates, false);
    for (size_t i = 0; !all && i < position_updates->n_items; i++)
        position_updates->items[i].offset = SEMEL_NONE;
    return move(position_updates, inbox, now_us, err);
}

/* Call before the inbox processes the deliveries; until updates_end the inbox knows the positions. Not
 * OK: do not process them. */
static semel_status updates_begin(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                  const struct semel_delivery *deliveries, size_t n, struct semel_error *err)
{
    position_updates->moved = position_updates->refused = false;
    position_updates->whole = position_updates->n_items = 0;
    inbox->position_updates = NULL;
    if (!any_marked(deliveries, n))
        return SEMEL_OK;
    if (!compute_ends(position_updates, deliveries, NULL, n))
        return semel__fail_memory(err);
    inbox->position_updates = position_updates;
    return SEMEL_OK;
}

struct moving {
    struct semel_position_updates *position_updates;
    struct semel_inbox *inbox;
};

static semel_status move_all(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    const struct moving *moving = ctx;
    (void)undo;
    return move(moving->position_updates, moving->inbox, now_us, err);
}

static semel_status move_behind(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = move_all};
    struct moving moving = {position_updates, inbox};
    gather(position_updates, true);
    if (position_updates->n_items == 0 || position_updates->blind)
        return SEMEL_OK;
    return semel__transaction_run(inbox->store, &tx, &moving, err);
}

static void report_fenced(const struct semel_position_updates *position_updates)
{
    for (size_t i = 0; position_updates->refused && position_updates->fenced != NULL && i < position_updates->n_items;
         i++)
        if (position_updates->items[i].fenced)
            position_updates->fenced(position_updates->fenced_ctx, position_updates->items[i].source,
                                     position_updates->items[i].partition, position_updates->items[i].epoch);
}

/* Call after the commits and before the answers to the source: notes deliveries that are given back and, with
 * `may_move`, moves the positions that were not moved yet. FENCED: an epoch has changed, here or in the batch. Other
 * statuses: nothing was moved, and the next batch will do it. */
static semel_status updates_end(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                const struct semel_delivery *deliveries, const struct semel_settled *settled, size_t n,
                                bool may_move, struct semel_error *err)
{
    bool begun = inbox->position_updates == position_updates, moved = begun && position_updates->moved,
         refused = begun && position_updates->refused;
    inbox->position_updates = NULL;
    position_updates->refused = refused;
    if (!any_marked(deliveries, n))
        return SEMEL_OK;
    report_fenced(position_updates); /* before compute_ends(): the items of the batch were refused */
    if (!compute_ends(position_updates, deliveries, settled, n))
        return SEMEL_OK;
    for (size_t i = 0; i < position_updates->n; i++)
        if (position_updates->lanes[i].touched)
            position_updates->lanes[i].hole = position_updates->lanes[i].stop;
    if (refused)
        return SEMEL_FENCED;
    semel_status status = may_move && !moved ? move_behind(position_updates, inbox, err) : SEMEL_OK;
    report_fenced(position_updates);
    return status;
}

#define ARENA_MAX ((size_t)1 << 30)
#define TICK_MAX 1000

/* One poll, in the pump's arena. */
struct pump_batch {
    struct semel_delivery *deliveries;
    struct semel__msg *msgs;
    struct semel_settled *settled;
    struct semel_reply *replies;
    size_t n;
    bool prepared;
    bool probe; /* of an open breaker */
};

void semel__pump_init(struct semel_pump *pump, struct semel_inbox *inbox, struct semel_broker *broker,
                      const struct semel_rules *rules)
{
    *pump = (struct semel_pump){.inbox = inbox,
                                .broker = broker,
                                .rules = rules,
                                .batch_max = 500,
                                .tick_max = TICK_MAX,
                                .wait_ms = 100,
                                .later_ms = 1000,
                                .purge_every_us = INT64_C(60) * 1000000,
                                .next_purge_us = SEMEL_NONE,
                                .resume_us = SEMEL_NONE,
                                .doubt = true};
    semel__route_breaker_init(&pump->own, 10, 1000000, INT64_C(60) * 1000000);
    pump->breaker = &pump->own;
    updates_init(&pump->position_updates);
    semel__arena_init(&pump->arena, ARENA_MAX);
}

void semel__pump_done(struct semel_pump *pump)
{
    updates_done(&pump->position_updates);
    semel__arena_done(&pump->arena);
}

/* ---- failures of the environment ----------------------------------------------------------------- */

void semel__pump_fail(struct semel_pump *pump, enum semel_class cls, const char *why, int64_t now_us)
{
    semel__route_breaker_because(pump->breaker, why);
    semel__route_breaker_failure(pump->breaker, pump, cls, now_us, pump->inbox->rng);
}

/* What a status says about store and broker. Both return the status for the caller. */
static semel_status note_store(struct semel_pump *pump, semel_status status, const struct semel_error *err,
                               int64_t now_us)
{
    if (status == SEMEL_OK)
        return status;
    pump->store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    pump->doubt |= pump->store_down;
    if (err->cls != SEMEL_CLASS_TRANSIENT)
        semel__pump_fail(pump, err->cls, err->text, now_us);
    return status;
}

static semel_status note_broker(struct semel_pump *pump, semel_status status)
{
    pump->broker_down |= status == SEMEL_CLOSED;
    pump->doubt |= pump->broker_down;
    return status == SEMEL_FENCED ? SEMEL_OK : status; /* the delivery belongs to somebody else now */
}

static semel_status connect_store(struct semel_pump *pump, int64_t now_us, struct semel_error *err)
{
    if (!pump->store_down)
        return SEMEL_OK;
    semel_status status = semel_store_reopen(pump->inbox->store, err);
    pump->store_down = status != SEMEL_OK;
    /* The cause that opened the breaker is over; an idle route would have nothing to probe with. */
    if (status == SEMEL_OK && semel__route_breaker_read(pump->breaker).cause == SEMEL_CLASS_ENVIRONMENT)
        semel__route_breaker_success(pump->breaker);
    return note_store(pump, status, err, now_us);
}

static semel_status connect(struct semel_pump *pump, int64_t now_us, struct semel_error *err)
{
    semel_status status = connect_store(pump, now_us, err);
    if (status != SEMEL_OK || !pump->broker_down)
        return status;
    status = semel_broker_reopen(pump->broker, err);
    pump->broker_down = status != SEMEL_OK;
    if (status == SEMEL_OK)
        updates_reopened(&pump->position_updates);
    return status;
}

/* A probe runs however many have failed before it. */
static void bound_failures(struct semel_pump *pump)
{
    pump->inbox->failures_max = semel__route_breaker_read(pump->breaker).threshold;
    pump->inbox->failures = semel__route_breaker_failures(pump->breaker, pump);
}

/* Reports to the breaker how the handler did in this batch. Duplicates tell nothing. All workers of the route share the
 * breaker's lock: of successes in a row only the first is reported. */
static void note_ends(struct semel_pump *pump, const struct semel_settled *settled, size_t n, int64_t now_us)
{
    bool good = false;
    for (size_t i = 0; i < n; i++) {
        bool ran = settled[i].why == SEMEL_WHY_NEW || settled[i].why == SEMEL_WHY_RETRIED;
        if (!ran)
            continue;
        if (settled[i].state == SEMEL_ROW_COMPLETED || settled[i].state == SEMEL_ROW_REJECTED) {
            if (!good)
                semel__route_breaker_success(pump->breaker);
            good = true;
        } else if (settled[i].state == SEMEL_ROW_FAILED || settled[i].state == SEMEL_ROW_DEAD ||
                   settled[i].state == SEMEL_ROW_UNKNOWN) {
            semel__pump_fail(pump, settled[i].cls, pump->inbox->why, now_us);
            good = false;
        }
    }
}

/* A probe that met only duplicates, or nothing, has no result: the next step probes again. */
static void end_probe(struct semel_pump *pump, int64_t now_us)
{
    semel__route_breaker_end(pump->breaker, pump, now_us);
}

/* ---- a step -------------------------------------------------------------------------------------- */

/* Memory and messages for the deliveries; each is LATER until it is decided. */
static semel_status prepare(struct semel_pump *pump, struct pump_batch *batch, struct semel_error *err)
{
    batch->msgs = semel__arena_alloc(&pump->arena, batch->n, sizeof *batch->msgs);
    batch->settled = semel__arena_alloc(&pump->arena, batch->n, sizeof *batch->settled);
    batch->replies = semel__arena_alloc(&pump->arena, batch->n, sizeof *batch->replies);
    if (batch->msgs == NULL || batch->settled == NULL || batch->replies == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < batch->n; i++)
        batch->settled[i].act = SEMEL_LATER; /* deliveries that never reach the inbox are given back too */
    for (size_t i = 0; i < batch->n; i++) {
        semel_status status = semel__extract(pump->rules, &batch->deliveries[i], pump->inbox->policy->payload_max,
                                             &pump->arena, &batch->msgs[i], err);
        if (status != SEMEL_OK)
            return status;
        if (pump->doubt && batch->msgs[i].delivery == 0)
            batch->msgs[i].delivery = 2;
    }
    batch->prepared = true;
    return SEMEL_OK;
}

static semel_status answer(struct semel_pump *pump, struct pump_batch *batch, size_t *ret_acked,
                           struct semel_error *err)
{
    *ret_acked = 0;
    for (size_t i = 0; i < batch->n; i++) {
        batch->replies[i] = (struct semel_reply){batch->deliveries[i].tag, &batch->settled[i], pump->later_ms};
        *ret_acked += batch->settled[i].act == SEMEL_ACK;
    }
    semel_status status = semel_broker_answer(pump->broker, batch->replies, batch->n, err);
    /* A delivery that could not be given back would be overtaken by the next poll and never come again: closing gives
     * it back. */
    pump->broker_down |= status != SEMEL_OK && status != SEMEL_FENCED;
    return note_broker(pump, status);
}

/* Moves the positions that the store keeps with the effects. The next batch moves those that cannot move now. */
static void keep_positions(struct semel_pump *pump, const struct pump_batch *batch)
{
    struct semel_error ignored = {0};
    semel_status status = updates_end(&pump->position_updates, pump->inbox, batch->deliveries, batch->settled, batch->n,
                                      !pump->store_down, &ignored);
    pump->store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    pump->broker_down |= pump->position_updates.blind ||
                         (status == SEMEL_FENCED && pump->position_updates.fenced == NULL);
}

/* Another worker runs it, and its row has its payload: recovery finds it if that worker dies. The broker would only
 * deliver it again and again, and hold up those behind it. */
static bool elsewhere(const struct semel_settled *settled)
{
    return settled->state == SEMEL_ROW_PROCESSING && settled->kept;
}

/* Acknowledges messages that others have claimed with their payload. Pauses the pump when too many are parked. */
static void let_go(struct semel_pump *pump, struct pump_batch *batch, int64_t now_us)
{
    for (size_t i = 0; i < batch->n; i++) {
        struct semel_settled *settled = &batch->settled[i];
        if (settled->act != SEMEL_LATER)
            continue;
        if (elsewhere(settled))
            settled->act = SEMEL_ACK;
        else if (settled->why == SEMEL_WHY_BLOCKED || settled->why == SEMEL_WHY_GAP)
            pump->resume_us = semel__time_add(now_us, (int64_t)pump->later_ms * 1000);
    }
}

/* Shows the observer the age of a message as the inbox saw it. */
static void show(struct semel_pump *pump, struct pump_batch *batch, int64_t now_us)
{
    if (pump->observe == NULL || !batch->prepared)
        return;
    for (size_t i = 0; i < batch->n; i++)
        batch->msgs[i].message_time_us = semel__msg_time(pump->inbox->policy, &batch->msgs[i], now_us);
    pump->observe(pump->observe_ctx, batch->msgs, batch->settled, batch->n);
}

static semel_status answer_all(struct semel_pump *pump, struct pump_batch *batch, int64_t now_us, size_t *ret_acked,
                               struct semel_error *err)
{
    keep_positions(pump, batch);
    show(pump, batch, now_us);
    SEMEL_POINT(PUMP_BEFORE_ACK);
    semel_status status = answer(pump, batch, ret_acked, err);
    if (status == SEMEL_OK)
        SEMEL_POINT(PUMP_ACKED);
    return status;
}

/* Messages that wait for others stay in front of the broker's queue, and their probe has no result. What they wait for
 * may be behind them, so the next probe reaches further. */
static void note_probe(struct semel_pump *pump, const struct pump_batch *batch)
{
    size_t waiting = 0;
    for (size_t i = 0; i < batch->n; i++)
        waiting += batch->settled[i].act == SEMEL_LATER && batch->settled[i].why != SEMEL_WHY_UNSET &&
                   batch->settled[i].why != SEMEL_WHY_NEW && batch->settled[i].why != SEMEL_WHY_RETRIED;
    pump->probe_past = batch->probe && waiting == batch->n ? waiting : 0;
}

/* The end of a batch that was processed or claimed with `status` and err: notes failures of the environment and answers
 * all deliveries by `settled`. */
static semel_status conclude(struct semel_pump *pump, struct pump_batch *batch, semel_status status, int64_t now_us,
                             size_t *ret_acked, struct semel_error *err)
{
    struct semel_error own = {0};
    semel_status answered = SEMEL_OK;
    (void)note_store(pump, status, err, now_us);
    pump->doubt = pump->doubt && status != SEMEL_OK;
    if (batch->settled != NULL && batch->replies != NULL) {
        note_probe(pump, batch);
        answered = answer_all(pump, batch, now_us, ret_acked, &own);
    } else {
        pump->broker_down = true; /* no memory to give them back one by one: closing gives back all */
    }
    if (status == SEMEL_OK && answered != SEMEL_OK)
        *err = own;
    return status != SEMEL_OK ? status : answered;
}

static semel_status pump_batch(struct semel_pump *pump, struct pump_batch *batch, int64_t now_us, size_t *ret_n,
                               struct semel_error *err)
{
    semel_status status = prepare(pump, batch, err);
    if (status == SEMEL_OK) {
#ifdef SEMEL_MUTANT_EARLY_ACK
        static const struct semel_settled early = {.act = SEMEL_ACK};
        for (size_t i = 0; i < batch->n; i++)
            batch->replies[i] = (struct semel_reply){.tag = batch->deliveries[i].tag, .settled = &early};
        struct semel_error ignored = {0};
        (void)semel_broker_answer(pump->broker, batch->replies, batch->n, &ignored);
#endif
        bound_failures(pump);
        status = updates_begin(&pump->position_updates, pump->inbox, batch->deliveries, batch->n, err);
    }
    if (status == SEMEL_OK) {
        status = pump->put_only ? semel__inbox_put_all(pump->inbox, batch->msgs, batch->n, batch->settled, err)
                                : semel__inbox_process(pump->inbox, batch->msgs, batch->n, batch->settled, err);
        let_go(pump, batch, now_us);
        note_ends(pump, batch->settled, batch->n, now_us);
    }
    return conclude(pump, batch, status, now_us, ret_n, err);
}

static bool paused(const struct semel_pump *pump, int64_t now_us)
{
    /* A clock that jumped back must not prolong the pause. */
    return pump->resume_us != SEMEL_NONE && now_us < pump->resume_us &&
           pump->resume_us - now_us <= (int64_t)pump->later_ms * 1000;
}

int64_t semel__pump_until(const struct semel_pump *pump, int64_t now_us)
{
    if (paused(pump, now_us))
        return pump->resume_us;
    const struct semel_breaker now = semel__route_breaker_read(pump->breaker);
    return semel__breaker_until(&now, now_us);
}

bool semel__pump_probes(const struct semel_pump *pump, int64_t now_us)
{
    const struct semel_breaker now = semel__route_breaker_read(pump->breaker);
    return now.state != SEMEL_BREAKER_CLOSED && semel__breaker_until(&now, now_us) == SEMEL_NONE;
}

/* The start of a step or a claim: deliveries, unless the route pauses. *ret_asked: the breaker was asked. */
static semel_status poll(struct semel_pump *pump, int64_t now_us, size_t max, struct pump_batch *batch, bool *ret_asked,
                         struct semel_error *err)
{
    *ret_asked = false;
    if (paused(pump, now_us))
        return SEMEL_OK;
    enum semel_gate gate = semel__route_breaker_ask(pump->breaker, pump, now_us);
    if (gate == SEMEL_GATE_WAIT)
        return SEMEL_OK;
    *ret_asked = true;
    batch->probe = gate == SEMEL_GATE_PROBE;
    if (batch->probe && max > pump->probe_past)
        max = pump->probe_past + 1;
    semel__arena_reset(&pump->arena);
    semel_status status = connect(pump, now_us, err);
    if (status == SEMEL_OK)
        status = note_broker(pump, semel_broker_poll(pump->broker, max, pump->wait_ms, &pump->arena, &batch->deliveries,
                                                     &batch->n, err));
    if (status == SEMEL_OK && batch->n > 0)
        SEMEL_POINT(PUMP_POLLED);
    return status;
}

semel_status semel__pump_step(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err)
{
    struct pump_batch batch = {0};
    bool asked;
    *ret_n = 0;
    semel_status status = poll(pump, now_us, pump->batch_max, &batch, &asked, err);
    if (status == SEMEL_OK && batch.n > 0)
        status = pump_batch(pump, &batch, now_us, ret_n, err);
    if (asked)
        end_probe(pump, now_us);
    return status;
}

/* ---- a tick -------------------------------------------------------------------------------------- */

static semel_status purge(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err)
{
    *ret_n = 0;
    if (pump->next_purge_us != SEMEL_NONE && now_us < pump->next_purge_us &&
        pump->next_purge_us - now_us <= pump->purge_every_us)
        return SEMEL_OK;
    semel_status status = semel__inbox_purge(pump->inbox, pump->tick_max, ret_n, err);
    if (status == SEMEL_OK && *ret_n < pump->tick_max)
        pump->next_purge_us = semel__time_add(now_us, pump->purge_every_us);
    return status;
}

/* Runs stored work, and reports to the breaker how its handlers did: all failures in a row, not one per tick. */
static semel_status work(struct semel_pump *pump, size_t max, int64_t now_us, size_t *ret_n, struct semel_error *err)
{
    const struct semel_inbox *inbox = pump->inbox;
    const uint64_t done = inbox->counts.done;
    int failures = inbox->failures;
    semel_status status = semel__inbox_work(pump->inbox, max, ret_n, err);
    if (inbox->counts.done > done || inbox->failures < failures) {
        semel__route_breaker_success(pump->breaker);
        failures = 0;
    }
    for (; failures < inbox->failures; failures++)
        semel__pump_fail(pump, SEMEL_CLASS_TRANSIENT, inbox->why, now_us);
    return status;
}

semel_status semel__pump_tick(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err)
{
    size_t n = 0;
    *ret_n = 0;
    enum semel_gate gate = semel__route_breaker_ask(pump->breaker, pump, now_us);
    if (gate == SEMEL_GATE_WAIT)
        return SEMEL_OK;
    semel_status status = connect_store(pump, now_us, err); /* stored work needs no broker */
    if (status != SEMEL_OK) {
        end_probe(pump, now_us);
        return status;
    }
    bound_failures(pump);
    status = semel__inbox_recover(pump->inbox, pump->tick_max, &n, err);
    if (status == SEMEL_OK && pump->put_only)
        status = semel__inbox_gaps(pump->inbox, pump->tick_max, ret_n, err);
    else if (status == SEMEL_OK)
        status = work(pump, gate == SEMEL_GATE_PROBE ? 1 : pump->tick_max, now_us, ret_n, err);
    *ret_n += n;
    if (status == SEMEL_OK)
        status = semel__inbox_sweep(pump->inbox, pump->tick_max, &n, err);
    if (status == SEMEL_OK)
        status = purge(pump, now_us, &n, err);
    (void)note_store(pump, status, err, now_us);
    end_probe(pump, now_us);
    return status;
}

/* ---- effects outside ----------------------------------------------------------------------------- */

static bool same(const struct semel__msg *a, const struct semel__msg *b)
{
    return semel__str_eq(a->id, b->id) && semel__str_eq(a->source, b->source);
}

/* Acknowledges the claimed messages and their copies in the batch: they no longer need the broker. */
static void acknowledge_claims(struct pump_batch *batch, const struct semel_lease *leases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t place = leases[i].index;
        for (size_t k = 0; k < batch->n; k++) {
            if (k != place && !same(&batch->msgs[k], &batch->msgs[place]))
                continue;
            if (k != place && semel__fp_differs(&batch->msgs[k].fp, &batch->msgs[place].fp))
                continue; /* a conflict: it goes back, and is reported when it comes again */
            if (batch->settled[k].act == SEMEL_LATER)
                batch->settled[k].why = k == place ? SEMEL_WHY_NEW : SEMEL_WHY_DUPLICATE;
            batch->settled[k].act = SEMEL_ACK;
        }
    }
}

static semel_status claim_batch(struct semel_pump *pump, struct pump_batch *batch, int64_t now_us,
                                struct semel_arena *arena, struct semel_lease *ret_leases, size_t *ret_n,
                                struct semel_error *err)
{
    size_t acked;
    semel_status status = prepare(pump, batch, err);
    if (status == SEMEL_OK) {
        status = semel__lease_claim(pump->inbox, batch->msgs, batch->n, true, arena, ret_leases, ret_n, batch->settled,
                                    err);
        acknowledge_claims(batch, ret_leases, *ret_n);
        let_go(pump, batch, now_us);
    }
    return conclude(pump, batch, status, now_us, &acked, err);
}

semel_status semel__pump_claim(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                               struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err)
{
    struct pump_batch batch = {0};
    bool asked;
    *ret_n = 0;
    semel_status status = poll(pump, now_us, max, &batch, &asked, err);
    if (status == SEMEL_OK && batch.n > 0)
        status = claim_batch(pump, &batch, now_us, arena, ret_leases, ret_n, err);
    if (asked && *ret_n == 0) /* otherwise the end of the call ends the probe */
        end_probe(pump, now_us);
    return status;
}

semel_status semel__pump_take(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                              struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err)
{
    *ret_n = 0;
    enum semel_gate gate = semel__route_breaker_ask(pump->breaker, pump, now_us);
    if (gate == SEMEL_GATE_WAIT)
        return SEMEL_OK;
    semel_status status = connect_store(pump, now_us, err);
    if (status == SEMEL_OK)
        status = note_store(pump,
                            semel__lease_take(pump->inbox, gate == SEMEL_GATE_PROBE ? 1 : max, arena, ret_leases, ret_n,
                                              err),
                            err, now_us);
    if (*ret_n == 0)
        end_probe(pump, now_us);
    return status;
}

semel_status semel__pump_finish(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases,
                                const struct semel_ending *endings, size_t n, struct semel_error *err)
{
    semel_status status = connect_store(pump, now_us, err);
    if (status == SEMEL_OK)
        status = note_store(pump, semel__lease_finish(pump->inbox, leases, endings, n, err), err, now_us);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        switch (endings[i].result) {
        case SEMEL_DONE:
        case SEMEL_REJECTED:
            semel__route_breaker_success(pump->breaker);
            break;
        case SEMEL_TRANSIENT:
        case SEMEL_PERMANENT:
        case SEMEL_MAYBE:
            semel__pump_fail(pump, SEMEL_CLASS_TRANSIENT, pump->inbox->why, now_us);
            break;
        }
    }
    return status;
}

semel_status semel__pump_renew(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                               struct semel_error *err)
{
    semel_status status = connect_store(pump, now_us, err);
    return status != SEMEL_OK ? status : note_store(pump, semel__lease_renew(pump->inbox, leases, n, err), err, now_us);
}

semel_status semel__pump_release(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                                 struct semel_error *err)
{
    semel_status status = connect_store(pump, now_us, err);
    return status != SEMEL_OK ? status
                              : note_store(pump, semel__lease_release(pump->inbox, leases, n, err), err, now_us);
}
