/* SPDX-License-Identifier: MIT
 *
 * watch.c: what must hold after every commit. It is called before anybody else runs, so what the database shows is
 * committed, and the one who committed it is known.
 *
 * What is compared with the last look: final rows stay as they are until they are purged below the watermark; every
 * move is legal; attempts stay below the cap; tokens ascend; a lease is ended by its owner or, once it ran out, by
 * recovery; effect and record come together; no effect comes twice, nor out of order.
 */
#include "sim.h"

#include "core/state.h"

struct sim_event *sim_event_of(struct sim_world *world, struct semel_str id)
{
    int n = 0;

    if (id.n != SEMEL_UUID_TEXT - 1)
        return NULL;
    for (size_t i = 32; i < 36; i++)
        n = n * 16 + (id.p[i] <= '9' ? id.p[i] - '0' : id.p[i] - 'a' + 10);
    if (n < 0 || n >= world->scene.n_events || !semel__str_eqz(id, world->events[n].id))
        return NULL;
    return &world->events[n];
}

bool sim_nobody_holds(const struct sim_world *world, const struct sim_event *event)
{
    for (int i = 0; i < world->n_actors; i++)
        if (event->held[i] == world->actors[i].serial && world->actors[i].alive)
            return false;
    for (int i = 0; i < SIM_CALLS; i++)
        if (world->calls[i].open && world->calls[i].event == event && !world->calls[i].ended)
            return false;
    return true;
}

/* ---- effects ---- */

/* A keyed effect may have happened although its end was not recorded, and may be repeated: a version counts as applied
 * when its row says so. */
static bool late_version(const struct sim_world *world)
{
    return (world->effects & 1u << SEMEL_EFFECT_KEYED) != 0 && (world->orders & 1u << SEMEL_ORDER_VERSION) != 0;
}

/* One that waits for a business key, in the store or with its broker, has no place in its order. */
static bool shares_intent(const struct sim_world *world, const struct sim_event *event)
{
    for (int i = 0; world->scene.business && i < world->scene.n_events; i++)
        if (i != event->n && world->events[i].business == event->business)
            return true;
    return false;
}

/* Rows that were stored without an order key, or without a version, have no place among those that have one. */
static bool has_place(const struct sim_event *event, enum semel_order order)
{
    return order != SEMEL_ORDER_NONE && event->keyed && (order != SEMEL_ORDER_VERSION || event->versioned);
}

/* By arrival, as the rows have it: also after a restore, which brings messages again in another order. */
static void check_stored_order(struct sim_world *world, const struct sim_event *event)
{
    if (event->arrival <= world->last_stored[event->key])
        sim_broken(world, "order per key, as stored", "key %d: the effect of event %d, arrival %lld, came after %lld",
                   event->key, event->n, (long long)event->arrival, (long long)world->last_stored[event->key]);
    world->last_stored[event->key] = event->arrival;
}

void sim_note_effect(struct sim_world *world, struct sim_event *event, bool late, enum semel_order order)
{
    int64_t place = order == SEMEL_ORDER_VERSION ? event->version : event->n;
    int64_t *last = order == SEMEL_ORDER_VERSION ? &world->last_version[event->key] : &world->last_arrival[event->key];

    world->counts[SIM_EFFECTS]++;
    if (++event->effects > 1)
        sim_broken(world, "no effect twice", "event %d took effect %d times", event->n, event->effects);
    if (world->scene.business && ++world->business_effects[event->business] > 1)
        sim_broken(world, "no business effect twice", "business key %d took effect again by event %d", event->business,
                   event->n);
    if (late && late_version(world))
        return; /* no fence reaches the outside world: its row may be stale by now */
    if ((order == SEMEL_ORDER_ARRIVAL && shares_intent(world, event)) || !has_place(event, order))
        return;
    if (order == SEMEL_ORDER_ARRIVAL)
        check_stored_order(world, event);
    if (place <= *last &&
        (order == SEMEL_ORDER_VERSION || world->n_restores == 0)) /* it brings again what came before */
        sim_broken(world, "order per key", "key %d: the effect of event %d at place %lld came after place %lld",
                   event->key, event->n, (long long)place, (long long)*last);
    if (!late_version(world) || order == SEMEL_ORDER_ARRIVAL || !event->outside)
        *last = place;
}

static void look_at_effects(struct sim_world *world)
{
    const struct semel_mem_effect *effects;
    size_t n = semel__mem_effects(world->db, &effects);

    for (; world->effects_seen < n; world->effects_seen++) {
        struct sim_event *event = sim_event_of(world, effects[world->effects_seen].key);
        if (event == NULL)
            sim_broken(world, "the message is whole", "an effect of nobody");
        sim_note_effect(world, event, false, world->committed->policy.order);
        if (!event->there || event->state != SEMEL_ROW_COMPLETED)
            sim_broken(world, "effect and record are one", "event %d took effect, and its row is %s", event->n,
                       event->there ? semel__row_status_name(event->state) : "not there");
    }
}

/* ---- rows ---- */

static void find_owner(struct sim_world *world, const struct semel_row *row, struct sim_event *event)
{
    event->owner = -1;
    if (row->progress.state != SEMEL_ROW_PROCESSING)
        return;
    for (int i = 0; i < world->n_actors; i++) {
        struct sim_actor *actor = &world->actors[i];
        if (!actor->alive || !semel__str_eqz(row->progress.lease_owner, actor->owner))
            continue;
        event->owner = i;
        event->owner_incarnation = actor->incarnation;
        event->held[i] = actor->serial;
        if (!event->there || event->token != row->progress.lease_token) {
            event->claimed[i] = world->looks;
            event->ordered = actor->policy.order != SEMEL_ORDER_NONE;
        }
    }
}

/* No two claims ever have the same token, whatever was restored (P79): but by chance, one in a million of two that
 * are made in the same millisecond, which here come often. A unique index of the stores keeps such two apart. */
static void check_token(struct sim_world *world, const struct sim_event *event, const struct semel_row *row)
{
    int64_t token = row->progress.lease_token;

    if (token == SEMEL_NONE || token == event->token)
        return;
    for (size_t i = 0; i < world->n_tokens && i < SIM_TOKENS; i++)
        if (world->tokens[i] == token && world->n_chances++ > 0)
            sim_broken(world, "a token is given once", "event %d has token %lld, which was given before", event->n,
                       (long long)token);
    world->tokens[world->n_tokens++ % SIM_TOKENS] = token;
}

/* By what its last token says. */
static bool claimed_atomic(const struct sim_event *event)
{
    enum semel_effect effect = SEMEL_EFFECT_ATOMIC;

    return !semel__token_effect(event->token, &effect) || effect == SEMEL_EFFECT_ATOMIC;
}

/* A lease that was there ends. */
static void check_end_of_lease(struct sim_world *world, const struct sim_event *event, const struct semel_row *row)
{
    const struct sim_actor *by = world->committed;
    bool own = event->owner == by->number && event->owner_incarnation == by->incarnation;

    if (own)
        return;
    if (claimed_atomic(event) && !event->alone && row->progress.attempts >= event->attempts)
        sim_broken(world, "nobody is charged for others", "event %d ran together with others and is charged", event->n);
    if (row->progress.state == SEMEL_ROW_COMPLETED || row->progress.state == SEMEL_ROW_REJECTED)
        sim_broken(world, "no completion under a stale token", "event %d became %s by %s, who had no lease", event->n,
                   semel__row_status_name(row->progress.state), by->owner);
    if (row->updated_us <= event->lease_until_us)
        sim_broken(world, "a live lease is respected", "event %d became %s by %s before its lease ran out", event->n,
                   semel__row_status_name(row->progress.state), by->owner);
}

static void check_move(struct sim_world *world, const struct sim_event *event, const struct semel_row *row)
{
    enum semel_row_status to = row->progress.state;

    if (event->there && semel__state_final(event->state))
        sim_broken(world, "a final row stays", "event %d was %s and became %s", event->n,
                   semel__row_status_name(event->state), semel__row_status_name(to));
    if (!semel__move_legal(event->there ? event->state : SEMEL_ROW_ABSENT, to))
        sim_broken(world, "every move is legal", "event %d went from %s to %s", event->n,
                   semel__row_status_name(event->there ? event->state : SEMEL_ROW_ABSENT), semel__row_status_name(to));
    bool stopped = to == SEMEL_ROW_QUARANTINED || (world->scene.business && to == SEMEL_ROW_PREVENTED);
    if (event->was_final && !event->there && !stopped)
        sim_broken(world, "purging reopens nothing", "event %d was purged and is %s now", event->n,
                   semel__row_status_name(to));
    if (to == SEMEL_ROW_PROCESSING && event->token != SEMEL_NONE && row->progress.lease_token < event->token)
        sim_broken(world, "tokens ascend", "event %d has token %lld after %lld", event->n,
                   (long long)row->progress.lease_token, (long long)event->token);
    if (event->there && event->state == SEMEL_ROW_PROCESSING &&
        (to != SEMEL_ROW_PROCESSING || row->progress.lease_token != event->token))
        check_end_of_lease(world, event, row);
}

/* The same claim with another end of its lease. */
static void check_renewal(const struct sim_world *world, const struct sim_event *event, const struct semel_row *row)
{
    const struct sim_actor *by = world->committed;

    if (!event->there || event->state != SEMEL_ROW_PROCESSING || row->progress.state != SEMEL_ROW_PROCESSING ||
        row->progress.lease_token != event->token || row->progress.lease_until_us == event->lease_until_us)
        return;
    if (event->owner != by->number || event->owner_incarnation != by->incarnation)
        sim_broken(world, "a lease is renewed by its owner", "event %d was renewed by %s", event->n, by->owner);
}

static void check_row(struct sim_world *world, const struct sim_event *event, const struct semel_row *row)
{
    struct semel_error err;

    if (semel__row_check(row, &err) != SEMEL_OK)
        sim_broken(world, "rows are sound", "event %d: %s", event->n, err.text);
    if (row->progress.attempts - row->progress.attempts_before > world->cap)
        sim_broken(world, "attempts stay below the cap", "event %d: %d attempts, %d of them before the last retry",
                   event->n, row->progress.attempts, row->progress.attempts_before);
    if (event->there && event->kept && !row->kept && !semel__state_final(row->progress.state))
        sim_broken(world, "a stored payload stays until the end", "event %d is %s without it", event->n,
                   semel__row_status_name(row->progress.state));
    if (row->progress.retries < event->retries)
        sim_broken(world, "retries are counted", "event %d: %d after %d", event->n, row->progress.retries,
                   event->retries);
}

/* ---- versions (P74) ---- */

/* It is recorded, now or before it was purged, that it took effect. */
static bool applied(const struct sim_event *event)
{
    return (event->was_final && (event->effects > 0 || (event->foregone && event->was_completed))) ||
           (event->there && event->state == SEMEL_ROW_COMPLETED);
}

static bool over(const struct sim_event *event)
{
    return event->was_final || (event->there && semel__state_final(event->state));
}

/* Only what had an effect leaves an earlier version behind; else its own version has had its turn under another id. */
static void check_stale(const struct sim_world *world, const struct sim_event *event)
{
    if (event->was_final)
        return; /* so it was itself, before it was purged and forced */
    for (int i = 0; i < world->to_push; i++) {
        const struct sim_event *other = &world->events[i];
        if (other->key != event->key || other == event)
            continue;
        if ((applied(other) && other->version >= event->version) || (other->version == event->version && over(other)))
            return;
    }
    sim_broken(world, "no version is left behind by what had no effect",
               "event %d, version %lld of key %d, is stale, and no later one had an effect", event->n,
               (long long)event->version, event->key);
}

/* All messages of this version have ended before the look `until`, and there was one. */
static bool version_over(const struct sim_world *world, int key, int64_t version, uint64_t until)
{
    bool one = false;

    for (int i = 0; i < world->scene.n_events; i++) {
        const struct sim_event *other = &world->events[i];
        if (other->key != key || other->version != version)
            continue;
        if (!over(other) || other->ended >= until)
            return false;
        one = true;
    }
    return one;
}

/* What ended without effect is stepped over: whoever waits for versions waits for one that has not ended. */
static void check_gap(const struct sim_world *world, const struct sim_event *event)
{
    /* One whose gap has timed out is dead, also when the missing version ends in the very same transaction. */
    const uint64_t until = event->state == SEMEL_ROW_DEAD ? world->looks : UINT64_MAX;

    if (world->scene.policy.first_version == SEMEL_FIRST_VERSION_ANY || world->reordered)
        return; /* nothing is remembered until something was applied */
    int64_t last = world->scene.policy.first_version - 1;
    for (int i = 0; i < world->to_push; i++) {
        const struct sim_event *other = &world->events[i];
        if (other->key == event->key && applied(other) && other->version > last && other->version < event->version)
            last = other->version;
    }
    for (int64_t version = last + 1; version < event->version; version++)
        if (!version_over(world, event->key, version, until))
            return;
    for (int i = 0; i < world->to_push; i++) { /* the first of its own version is woken, and then this one */
        const struct sim_event *other = &world->events[i];
        if (other != event && other->key == event->key && other->version == event->version && other->there &&
            semel__state_unfinished(other->state))
            return;
    }
    sim_broken(world, "a gap is one", "event %d, version %lld of key %d, waits for versions, and all before it ended",
               event->n, (long long)event->version, event->key);
}

static void check_versions(const struct sim_world *world, struct sim_event *event)
{
    if (!event->judged)
        return;
    event->judged = false;
    if (event->state == SEMEL_ROW_STALE)
        check_stale(world, event);
    else
        check_gap(world, event);
}

static void look_at_row(void *ctx, struct semel_str consumer, const struct semel_row *row)
{
    struct sim_world *world = ctx;
    struct sim_event *event = sim_event_of(world, row->id);
    const struct semel_progress *progress = &row->progress;

    (void)consumer;
    if (event == NULL)
        sim_broken(world, "the message is whole", "there is a row of nobody");
    event->mark = world->looks;
    event->arrival = row->arrival;
    event->gap = progress->state == SEMEL_ROW_WAITING && progress->error_class == SEMEL_CLASS_GAP;
    if (event->there && event->state == progress->state && event->attempts == progress->attempts &&
        event->attempts_before == progress->attempts_before && event->updated_us == row->updated_us &&
        (progress->lease_token == SEMEL_NONE || event->token == progress->lease_token) &&
        event->lease_until_us == progress->lease_until_us && event->processed_us == progress->processed_us)
        return;
    check_row(world, event, row);
    check_move(world, event, row);
    check_renewal(world, event, row);
    check_token(world, event, row);
    if (!event->there || event->state != progress->state)
        sim_trace(world, "event %d: %s -> %s (attempts %d, %s) by %s", event->n,
                  event->there ? semel__row_status_name(event->state) : "absent",
                  semel__row_status_name(progress->state), progress->attempts, semel__class_name(progress->error_class),
                  world->committed->owner);
    find_owner(world, row, event);
    event->judged = progress->state == SEMEL_ROW_STALE ||
                    (progress->error_class == SEMEL_CLASS_GAP &&
                     (progress->state == SEMEL_ROW_DEAD || progress->state == SEMEL_ROW_WAITING));
    event->keyed = semel__str_given(row->order_key);
    event->versioned = row->version != SEMEL_NONE;
    if (progress->state == SEMEL_ROW_COMPLETED && late_version(world) && event->versioned && event->keyed &&
        event->outside && world->committed->inbox.policy->order == SEMEL_ORDER_VERSION &&
        world->last_version[event->key] < event->version)
        world->last_version[event->key] = event->version;
    if (semel__state_final(progress->state) && !(event->there && event->state == progress->state))
        event->ended = world->looks;
    event->there = true;
    event->state = progress->state;
    event->attempts = progress->attempts;
    event->attempts_before = progress->attempts_before;
    event->retries = progress->retries;
    event->alone = progress->alone;
    event->kept = row->kept;
    event->prevented |= progress->state == SEMEL_ROW_PREVENTED;
    event->doubted |= progress->state == SEMEL_ROW_STALE && progress->attempts > 0;
    if (progress->lease_token != SEMEL_NONE)
        event->token = progress->lease_token; /* the last one stays to be compared */
    event->lease_until_us = progress->lease_until_us;
    event->processed_us = progress->processed_us;
    event->updated_us = row->updated_us;
    event->error_class = progress->error_class;
}

static void check_gone(struct sim_world *world, struct sim_event *event)
{
    int64_t time_us = 0, watermark_us = semel__mem_watermark(world->db, SEMEL_STR("c"), semel__str(event->source));

    if (!semel__state_final(event->state))
        sim_broken(world, "only final rows are purged", "event %d was %s", event->n,
                   semel__row_status_name(event->state));
    if (!semel__id_time(semel__str(event->id), false, world->now_us, &time_us) || watermark_us == SEMEL_NONE ||
        time_us >= watermark_us)
        sim_broken(world, "purged below the watermark", "event %d is gone", event->n);
    event->there = false;
    event->was_final = true;
    event->was_completed = event->state == SEMEL_ROW_COMPLETED;
    event->retries = event->starts = 0;
}

/* Where the effect is in the transaction several may be claimed, and the transaction itself keeps the order. */
static void check_keys(struct sim_world *world)
{
    const struct sim_event *holders[SIM_KEYS] = {0};

    for (int i = 0; i < world->to_push; i++) {
        const struct sim_event *event = &world->events[i];
        if (!event->there || event->state != SEMEL_ROW_PROCESSING || !event->keyed || !event->ordered ||
            claimed_atomic(event))
            continue;
        const struct sim_event *other = holders[event->key];
        if (other != NULL)
            sim_broken(world, "one at a time per key", "events %d and %d of key %d are both processing", other->n,
                       event->n, event->key);
        holders[event->key] = event;
    }
}

void sim_watch(struct sim_world *world)
{
    world->looks++;
    semel__mem_rows(world->db, look_at_row, world);
    look_at_effects(world);
    for (int i = 0; i < world->to_push; i++) {
        struct sim_event *event = &world->events[i];
        if (event->there && event->mark != world->looks)
            check_gone(world, event);
        if (event->there)
            check_versions(world, event);
        if (event->there && event->state == SEMEL_ROW_COMPLETED && event->effects == 0 && !event->foregone)
            sim_broken(world, "effect and record are one", "event %d is completed and had no effect", event->n);
    }
    check_keys(world);
    world->committed = NULL;
}
