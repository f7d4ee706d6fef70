/* SPDX-License-Identifier: MIT
 *
 * leased.c: workers that claim first: the messages are run by somebody else, who may go on when his worker is gone.
 *
 * Two lives. SIM_LEASES is that of a daemon whose effects are outside: it claims what comes and takes what is due, has
 * it called, renews while the calls run, commits their ends, and gives back what was not called. SIM_HANDS is that of
 * a program with a lease in its hand: it stores what comes, takes, renews, gives back, or runs.
 *
 * Invariants: a call starts only under a lease; an end, a renewal and a release do to the row what they say they did.
 */
#include "sim.h"

/* ---- calls ---- */

static int64_t steady_us(const struct sim_world *world)
{
    return world->now_us - world->jumped_us;
}

static struct sim_call *call_new(struct sim_world *world)
{
    for (int i = 0; i < SIM_CALLS; i++)
        if (!world->calls[i].open)
            return &world->calls[i];
    sim_broken(world, "the simulator", "there are too many calls");
}

/* Whoever was called has come to an end. */
static void call_end(struct sim_world *world, struct sim_call *call)
{
    struct sim_event *event = call->event;
    bool late = event->state != SEMEL_ROW_PROCESSING || event->owner != call->actor ||
                event->owner_incarnation != call->incarnation;

    call->ended = true;
    call->ending = sim_outcome(world, event);
    sim_trace(world, "the call of event %d ends: %s%s", event->n, semel__result_name(call->ending.result),
              call->orphan ? ", and nobody listens" : "");
    if (call->ending.effect) {
        world->counts[SIM_LATE_EFFECTS] += late;
        sim_effect_outside(world, event, call->keyed, late, call->born, call->order);
    }
    if (call->orphan)
        call->open = false;
    else if (!world->quiet && sim_chance(world, world->scene.faults.unknown)) /* the answer is lost */
        call->ending.result = SEMEL_MAYBE;
}

void sim_calls_end(struct sim_world *world)
{
    for (int i = 0; i < SIM_CALLS; i++) {
        struct sim_call *call = &world->calls[i];
        if (call->open && !call->ended && call->end_us <= steady_us(world))
            call_end(world, call);
    }
}

int64_t sim_calls_next(const struct sim_world *world)
{
    int64_t next_us = SEMEL_NONE;

    for (int i = 0; i < SIM_CALLS; i++) {
        const struct sim_call *call = &world->calls[i];
        if (call->open && !call->ended && (next_us == SEMEL_NONE || call->end_us < next_us))
            next_us = call->end_us;
    }
    return next_us != SEMEL_NONE ? next_us + world->jumped_us : SEMEL_NONE;
}

/* ---- slots ---- */

void sim_slots_open(struct sim_actor *actor)
{
    actor->n_slots = (int)sim_between(actor->world, 1, SIM_SLOTS);
    semel__arena_init(&actor->arena, (size_t)1 << 20);
    for (int i = 0; i < SIM_SLOTS; i++) {
        actor->slots[i] = (struct sim_slot){0};
        semel__arena_init(&actor->slots[i].arena, (size_t)1 << 20);
    }
}

/* Some of the calls end with who made them, others go on. */
void sim_slots_close(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;

    for (int i = 0; i < SIM_SLOTS; i++) {
        struct sim_call *call = actor->slots[i].call;
        if (call != NULL) {
            call->orphan = true;
            call->open = !call->ended && sim_chance(world, 600);
            world->counts[SIM_ORPHANS] += call->open;
        }
        semel__arena_done(&actor->slots[i].arena);
    }
    semel__arena_done(&actor->arena);
}

static int used(const struct sim_actor *actor)
{
    int n = 0;

    for (int i = 0; i < actor->n_slots; i++)
        n += actor->slots[i].state != SIM_SLOT_FREE;
    return n;
}

static void slot_free(struct sim_slot *slot)
{
    if (slot->call != NULL)
        slot->call->open = false;
    slot->call = NULL;
    slot->state = SIM_SLOT_FREE;
    semel__arena_reset(&slot->arena);
}

static struct sim_slot *slot_fill(struct sim_actor *actor, const struct semel_lease *lease)
{
    struct sim_slot *slot = actor->slots;

    while (slot->state != SIM_SLOT_FREE)
        slot++;
    slot->lease = *lease;
    slot->lease.progress.error_text = slot->lease.progress.outcome = (struct semel_str){0};
    slot->lease.progress.lease_owner = semel__str(actor->owner);
    slot->renew_us = steady_us(actor->world) + actor->policy.lease_us / 3;
    slot->state = SIM_SLOT_UNTOUCHED;
    if (!semel__msg_copy(&slot->arena, &lease->msg, &slot->lease.msg))
        sim_broken(actor->world, "memory", "there is none");
    return slot;
}

/* Copies of what is in this state, for one call. */
struct some {
    struct semel_lease leases[SIM_SLOTS];
    struct semel_ending endings[SIM_SLOTS];
    struct sim_slot *which[SIM_SLOTS];
    size_t n;
    uint64_t left;
    int64_t now_us;
};

static void some_add(struct some *some, struct sim_slot *slot)
{
    some->leases[some->n] = slot->lease;
    some->endings[some->n] = slot->ending;
    some->which[some->n++] = slot;
}

static void some_of(struct sim_actor *actor, enum sim_slot_state state, struct some *ret)
{
    *ret = (struct some){.left = actor->left, .now_us = actor->world->now_us};
    for (int i = 0; i < actor->n_slots; i++)
        if (actor->slots[i].state == state)
            some_add(ret, &actor->slots[i]);
}

/* ---- what was said to have been done ---- */

/* Whether the rows are still as the call left them. */
static bool undisturbed(struct sim_actor *actor, const struct some *some)
{
    if (actor->world->committed != NULL)
        sim_watch(actor->world);
    return !actor->dead && actor->left == some->left;
}

static void check_renewed(struct sim_actor *actor, const struct some *some)
{
    struct sim_world *world = actor->world;
    bool certain = undisturbed(actor, some);

    for (size_t i = 0; i < some->n; i++) {
        const struct sim_event *event = sim_event_whole(actor, &some->leases[i].msg);
        world->counts[some->leases[i].lost ? SIM_LOST_LEASES : SIM_RENEWED]++;
        if (!certain || some->leases[i].lost)
            continue;
        if (event->state != SEMEL_ROW_PROCESSING || event->token != some->leases[i].progress.lease_token ||
            event->lease_until_us != some->leases[i].progress.lease_until_us ||
            event->lease_until_us < some->now_us + actor->policy.lease_us)
            sim_broken(world, "a renewed lease is prolonged", "event %d has its lease until %lld", event->n,
                       (long long)event->lease_until_us);
    }
}

static void check_released(struct sim_actor *actor, const struct some *some)
{
    struct sim_world *world = actor->world;
    bool certain = undisturbed(actor, some);

    for (size_t i = 0; i < some->n; i++) {
        const struct sim_event *event = sim_event_whole(actor, &some->leases[i].msg);
        world->counts[some->leases[i].lost ? SIM_LOST_LEASES : SIM_RELEASED]++;
        if (!certain || some->leases[i].lost)
            continue;
        if (event->attempts != some->leases[i].progress.attempts - 1 ||
            (event->state != SEMEL_ROW_WAITING && event->state != SEMEL_ROW_FAILED))
            sim_broken(world, "what is given back counts no attempt", "event %d is %s after %d attempts", event->n,
                       semel__row_status_name(event->state), event->attempts);
    }
}

static bool fits(const struct sim_actor *actor, const struct semel_lease *lease, enum semel_result result)
{
    enum semel_row_status state = lease->progress.state;
    bool tried = state == SEMEL_ROW_FAILED || state == SEMEL_ROW_DEAD;

    switch (result) {
    case SEMEL_DONE:
        return state == SEMEL_ROW_COMPLETED;
    case SEMEL_REJECTED:
        return state == SEMEL_ROW_REJECTED;
    case SEMEL_MAYBE:
        return semel__effect_of(&actor->policy, lease->progress.lease_token) == SEMEL_EFFECT_KEYED &&
                       actor->policy.effect == SEMEL_EFFECT_KEYED
                   ? tried
                   : state == SEMEL_ROW_UNKNOWN;
    case SEMEL_TRANSIENT:
    case SEMEL_PERMANENT:
        return tried;
    }
    return false;
}

static void check_finished(struct sim_actor *actor, const struct some *some)
{
    struct sim_world *world = actor->world;
    bool certain = undisturbed(actor, some);

    for (size_t i = 0; i < some->n; i++) {
        const struct sim_event *event = sim_event_whole(actor, &some->leases[i].msg);
        world->counts[some->leases[i].lost ? SIM_LOST_LEASES : SIM_FINISHED]++;
        if (some->leases[i].lost)
            continue;
        if (!fits(actor, &some->leases[i], some->endings[i].result) ||
            (certain && event->there && event->state != some->leases[i].progress.state))
            sim_broken(world, "an end is what it was said to be", "event %d: %s, and it is said to be %s and is %s",
                       event->n, semel__result_name(some->endings[i].result),
                       semel__row_status_name(some->leases[i].progress.state), semel__row_status_name(event->state));
    }
}

/* ---- a daemon's life ---- */

static void start_call(struct sim_actor *actor, struct sim_slot *slot, struct sim_event *event)
{
    struct sim_world *world = actor->world;
    int64_t lease_us = actor->policy.lease_us, for_us = sim_between(world, 0, lease_us / 2);

    if (event->kind == SIM_SLOW && sim_misbehaves(event)) {
        world->counts[SIM_OUTLASTED]++;
        for_us = sim_between(world, lease_us, 3 * lease_us);
    }
    slot->state = SIM_SLOT_CALLS;
    slot->call = call_new(world);
    *slot->call = (struct sim_call){.event = event,
                                    .open = true,
                                    .actor = actor->number,
                                    .incarnation = actor->incarnation,
                                    .born = event->claimed[actor->number],
                                    .keyed = actor->policy.effect == SEMEL_EFFECT_KEYED,
                                    .order = actor->policy.order,
                                    .end_us = steady_us(world) + (world->quiet ? 0 : for_us)};
    event->starts++;
    world->counts[SIM_CALLS_MADE]++;
    sim_trace(world, "%s has event %d called", actor->owner, event->n);
}

static void start(struct sim_actor *actor, struct sim_slot *slot)
{
    struct sim_world *world = actor->world;
    struct sim_event *event = sim_event_whole(actor, &slot->lease.msg);

    if (event->claimed[actor->number] == world->looks) /* else the clock may have jumped since */
        sim_check_lease(actor, event);
    if (event->kind == SIM_KILLER) {
        event->starts++;
        sim_kill_worker(actor, event);
    } else if (world->quiet || !sim_chance(world, world->scene.faults.handler_world)) {
        start_call(actor, slot, event);
    } else {
        semel__pump_fail(&actor->pump, SEMEL_CLASS_ENVIRONMENT, "", world->now_us); /* it is given back */
    }
}

/* One that has lost half its lease already is given back: it could run out before it is renewed. */
static void start_all(struct sim_actor *actor, const struct semel_lease *leases, size_t n, int64_t from_us)
{
    struct sim_world *world = actor->world;

    if (world->committed != NULL)
        sim_watch(world);
    for (size_t i = 0; i < n && !actor->dead; i++) {
        struct sim_slot *slot = slot_fill(actor, &leases[i]);
        if (steady_us(world) - from_us <= actor->policy.lease_us / 2)
            start(actor, slot);
    }
}

static size_t begin_work(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    struct semel_lease leases[SIM_SLOTS];
    struct semel_error err;
    size_t taken = 0, claimed = 0;
    int64_t from_us = steady_us(world);

    semel__arena_reset(&actor->arena);
    if (used(actor) < actor->n_slots) {
        semel_status status = semel__pump_take(&actor->pump, world->now_us, (size_t)(actor->n_slots - used(actor)),
                                               &actor->arena, leases, &taken, &err);
        sim_report(actor, "take", status, taken, &err);
        start_all(actor, leases, taken, from_us);
    }
    from_us = steady_us(world);
    if (!actor->dead && used(actor) < actor->n_slots) {
        semel_status status = semel__pump_claim(&actor->pump, world->now_us, (size_t)(actor->n_slots - used(actor)),
                                                &actor->arena, leases, &claimed, &err);
        sim_report(actor, "claim", status, claimed, &err);
        start_all(actor, leases, claimed, from_us);
    }
    world->counts[SIM_TAKEN] += taken;
    world->counts[SIM_CLAIMED] += claimed;
    return taken + claimed;
}

static void hear_ends(struct sim_actor *actor)
{
    for (int i = 0; i < actor->n_slots; i++) {
        struct sim_slot *slot = &actor->slots[i];
        if (slot->state != SIM_SLOT_CALLS || !slot->call->ended)
            continue;
        slot->state = SIM_SLOT_ENDED;
        slot->ending = (struct semel_ending){.result = slot->call->ending.result, .text = SEMEL_STR("so it went")};
    }
}

static void renew(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    struct some some = {.left = actor->left, .now_us = world->now_us};
    struct semel_error err;

    for (int i = 0; i < actor->n_slots; i++) {
        struct sim_slot *slot = &actor->slots[i];
        if (slot->state == SIM_SLOT_CALLS && !slot->lease.lost && slot->renew_us <= steady_us(world))
            some_add(&some, slot);
    }
    if (some.n == 0)
        return;
    semel_status status = semel__pump_renew(&actor->pump, world->now_us, some.leases, some.n, &err);
    sim_report(actor, "renew", status, some.n, &err);
    if (status == SEMEL_OK)
        check_renewed(actor, &some);
    for (size_t i = 0; i < some.n; i++) {
        some.which[i]->renew_us = steady_us(world) + actor->policy.lease_us / (status == SEMEL_OK ? 3 : 10);
        some.which[i]->lease.progress.lease_until_us = some.leases[i].progress.lease_until_us;
        some.which[i]->lease.lost = some.leases[i].lost;
    }
}

/* What could not be committed or given back is tried again. */
static void settle(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    struct semel_error err;
    struct some some;
    semel_status status = SEMEL_OK;

    some_of(actor, SIM_SLOT_ENDED, &some);
    if (some.n > 0) {
        status = semel__pump_finish(&actor->pump, world->now_us, some.leases, some.endings, some.n, &err);
        sim_report(actor, "finish", status, some.n, &err);
        if (status == SEMEL_OK)
            check_finished(actor, &some);
    }
    for (size_t i = 0; i < some.n; i++) {
        if (status != SEMEL_OK && !some.leases[i].lost && some.leases[i].progress.state == SEMEL_ROW_PROCESSING)
            world->counts[SIM_HELD_OVER]++;
        else
            slot_free(some.which[i]);
    }
    some_of(actor, SIM_SLOT_UNTOUCHED, &some);
    if (status != SEMEL_OK || some.n == 0 || actor->dead)
        return;
    status = semel__pump_release(&actor->pump, world->now_us, some.leases, some.n, &err);
    sim_report(actor, "release", status, some.n, &err);
    if (status != SEMEL_OK)
        return;
    check_released(actor, &some);
    for (size_t i = 0; i < some.n; i++)
        slot_free(some.which[i]);
}

/* Until something ends, is to be renewed, or a while has passed. */
static void wait_for_ends(struct sim_actor *actor, bool busy)
{
    struct sim_world *world = actor->world;
    int64_t wake_us = world->now_us +
                      (busy ? sim_between(world, 0, 20 * SIM_MS) : sim_between(world, 200 * SIM_MS, 2 * SIM_SECOND));

    if (world->committed != NULL)
        sim_watch(world);
    for (int i = 0; i < actor->n_slots; i++) {
        const struct sim_slot *slot = &actor->slots[i];
        if (slot->state != SIM_SLOT_CALLS)
            continue;
        int64_t at_us = slot->call->ended || slot->call->end_us < slot->renew_us ? slot->call->end_us : slot->renew_us;
        if (at_us + world->jumped_us < wake_us)
            wake_us = at_us + world->jumped_us;
    }
    actor->wake_us = wake_us;
    fiber_yield();
}

/* There is nobody else to have an effect in the transaction. */
static size_t step(struct sim_actor *actor)
{
    struct semel_error err;
    size_t n = 0;
    semel_status status = semel__pump_step(&actor->pump, actor->world->now_us, &n, &err);

    sim_report(actor, "step", status, n, &err);
    return n;
}

void sim_leased_main(void *arg)
{
    struct sim_actor *actor = arg;
    struct sim_world *world = actor->world;
    struct semel_error err;

    while (!actor->dead && !world->stopping) {
        size_t ticked = 0, begun = 0;
        actor->serial++;
        bool goes = sim_settings_round(actor);
        if (goes && !actor->dead) {
            semel_status status = semel__pump_tick(&actor->pump, world->now_us, &ticked, &err);
            sim_report(actor, "tick", status, ticked, &err);
        }
        if (goes && !actor->dead)
            begun = actor->policy.effect == SEMEL_EFFECT_ATOMIC ? step(actor) : begin_work(actor);
        if (actor->dead)
            break;
        wait_for_ends(actor, ticked + begun > 0);
        hear_ends(actor);
        renew(actor);
        if (!actor->dead)
            settle(actor);
    }
    if (world->committed != NULL)
        sim_watch(world);
}

/* ---- by hand ---- */

/* Renews, gives back, or leaves alone: what a program may do with a lease before it runs the message. */
static void handle_some(struct sim_actor *actor, struct some *some)
{
    struct sim_world *world = actor->world;
    struct semel_error err;

    if (sim_chance(world, 300)) {
        semel_status status = semel__lease_renew(&actor->inbox, some->leases, some->n, &err);
        sim_report(actor, "renew", status, some->n, &err);
        if (status == SEMEL_OK)
            check_renewed(actor, some);
    }
    if (actor->dead || world->quiet || !sim_chance(world, 100))
        return;
    some->left = actor->left;
    semel_status status = semel__lease_release(&actor->inbox, some->leases, some->n, &err);
    sim_report(actor, "release", status, some->n, &err);
    if (status == SEMEL_OK)
        check_released(actor, some);
    some->n = 0;
}

static semel_status run_taken(struct sim_actor *actor, size_t *ret_n, struct semel_error *err)
{
    struct sim_world *world = actor->world;
    struct some some = {0};
    size_t n = 0;

    semel__arena_reset(&actor->arena);
    semel_status status = semel__lease_take(&actor->inbox, (size_t)actor->n_slots, &actor->arena, some.leases, &n, err);
    sim_report(actor, "take", status, n, err);
    *ret_n = some.n = n;
    some.left = actor->left;
    some.now_us = world->now_us;
    if (status != SEMEL_OK || n == 0 || actor->dead)
        return status;
    handle_some(actor, &some);
    if (actor->dead || some.n == 0)
        return SEMEL_OK;
    world->counts[SIM_HAND_RUN] += some.n;
    status = semel__lease_run(&actor->inbox, some.leases, some.n, err);
    sim_report(actor, "run", status, some.n, err);
    return status;
}

void sim_hands_main(void *arg)
{
    struct sim_actor *actor = arg;
    struct sim_world *world = actor->world;
    struct semel_error err;

    while (!actor->dead && !world->stopping) {
        size_t stored = 0, ticked = 0, run = 0;
        semel_status status = SEMEL_OK;
        actor->serial++;
        bool goes = sim_settings_round(actor);
        if (goes && !actor->dead) {
            status = semel__pump_step(&actor->pump, world->now_us, &stored, &err);
            sim_report(actor, "step", status, stored, &err);
        }
        world->counts[SIM_PUT] += stored;
        if (goes && !actor->dead) {
            status = semel__pump_tick(&actor->pump, world->now_us, &ticked, &err);
            sim_report(actor, "tick", status, ticked, &err);
        }
        if (goes && !actor->dead && !actor->pump.store_down)
            status = run_taken(actor, &run, &err);
        actor->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
        if (actor->dead)
            break;
        if (world->committed != NULL)
            sim_watch(world);
        actor->wake_us = world->now_us + (stored + ticked + run > 0 ? sim_between(world, 0, 20 * SIM_MS)
                                                                    : sim_between(world, 200 * SIM_MS, 2 * SIM_SECOND));
        fiber_yield();
    }
    if (world->committed != NULL)
        sim_watch(world);
}
