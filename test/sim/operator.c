/* SPDX-License-Identifier: MIT
 *
 * operator.c: people who retry, discard and resolve, and the reconcile that asks the outside world.
 *
 * An operator knows what really happened: what is done is resolved, what is not done is retried or discarded. As in
 * life, nobody may decide on an unknown outcome while the worker in question may still be at it (sim_nobody_holds).
 * Where the effect is outside, or force is used, reading and deciding is one step: a command has no condition but the
 * status of the row, so a stale decision could meet the same status of a later attempt.
 */
#include "sim.h"

static bool needs_care(const struct sim_event *event)
{
    return event->there && (event->state == SEMEL_ROW_DEAD || event->state == SEMEL_ROW_UNKNOWN ||
                            event->state == SEMEL_ROW_QUARANTINED);
}

/* A version that waits for earlier ones, and has had no effect, may be given up: those are waited for all the same. */
static bool may_be_given_up(const struct sim_world *world, const struct sim_event *event)
{
    return !world->quiet && event->there && event->gap && event->effects == 0 && !event->foregone;
}

/* Where nothing else ends a gap somebody has to: in the end, when what could come has come. */
static bool needs_push(const struct sim_world *world, const struct sim_event *event)
{
    return world->quiet && event->there && event->gap && world->scene.policy.on_gap == SEMEL_GAP_ALERT;
}

static bool hopeless(const struct sim_event *event)
{
    return event->kind == SIM_POISON || event->kind == SIM_KILLER;
}

/* All effects, whatever anybody may come to say. */
static bool in_database(const struct sim_world *world)
{
    return world->scene.settings == SIM_FIXED && world->scene.policy.effect == SEMEL_EFFECT_ATOMIC;
}

/* false: nothing can be said now. */
static bool decide(struct sim_world *world, const struct sim_event *event, struct semel_command *command)
{
    const bool kept = event->kept;

    command->kind = SEMEL_COMMAND_RETRY;
    if (needs_push(world, event)) {
        command->force = true;
        return true;
    }
    if (!in_database(world) && !sim_nobody_holds(world, event))
        return false;
    if (may_be_given_up(world, event)) {
        command->kind = SEMEL_COMMAND_DISCARD;
        return sim_chance(world, 200);
    }
    if (event->effects > 0 || event->foregone) {
        command->kind = SEMEL_COMMAND_RESOLVE;
    } else if (event->state == SEMEL_ROW_QUARANTINED) {
        bool harmless = kept && !world->scene.business && (world->orders & 1u << SEMEL_ORDER_ARRIVAL) == 0;
        if (!harmless || sim_chance(world, 200))
            command->kind = SEMEL_COMMAND_DISCARD;
        command->force = !sim_chance(world, 300);
    } else if (event->superseded) {
        command->kind = SEMEL_COMMAND_DISCARD; /* another message has its business key */
    } else if (!kept || (hopeless(event) && (world->quiet || sim_chance(world, 500)))) {
        command->kind = SEMEL_COMMAND_DISCARD;
    } else if (!world->quiet && sim_chance(world, 50)) {
        command->kind = SEMEL_COMMAND_DISCARD;
    } else {
        command->force = world->scene.purge;       /* it may be older than the retention */
        if (event->error_class == SEMEL_CLASS_GAP) /* in the end nobody else goes past what never comes */
            command->force |= world->quiet || sim_chance(world, 300);
    }
    return true;
}

static void count(struct sim_world *world, enum semel_command_kind kind)
{
    switch (kind) {
    case SEMEL_COMMAND_RETRY:
        world->counts[SIM_RETRIES]++;
        return;
    case SEMEL_COMMAND_DISCARD:
        world->counts[SIM_DISCARDS]++;
        return;
    case SEMEL_COMMAND_RESOLVE:
        world->counts[SIM_RESOLVES]++;
        return;
    case SEMEL_COMMAND_CORRECT:
        return; /* the simulator's operator corrects nothing */
    }
}

/* The row is read, and the command is given to whatever it has become meanwhile. */
static semel_status read_and_command(struct sim_actor *actor, const struct sim_event *event,
                                     struct semel_command command, struct semel_command_result *ret,
                                     struct semel_error *err)
{
    struct semel_arena arena;
    struct semel_fetched found = {.source = semel__str(event->source), .id = semel__str(event->id)};
    struct semel_fetch_batch batch = {.consumer = actor->inbox.policy->consumer, .items = &found, .n_items = 1};
    struct semel_row row = {.source = found.source, .id = found.id, .version = SEMEL_NONE};
    int64_t now_us;

    *ret = (struct semel_command_result){0};
    semel_status status = semel_store_begin(actor->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    semel__arena_init(&arena, (size_t)16 << 20);
    status = semel_store_fetch(actor->store, &batch, &arena, err);
    semel_store_rollback(actor->store);
    if (status == SEMEL_OK && found.present && !found.damaged)
        row = found.row;
    row.updated_us = 0;
    command.row = &row;
    if (status == SEMEL_OK)
        status = semel__inbox_command(&actor->inbox, &command, ret, err);
    semel__arena_done(&arena);
    return status;
}

static void give_order(struct sim_actor *actor, struct sim_event *event, const struct semel_command *command)
{
    static const char *const words[] = {"retry", "discard", "resolve"};
    struct sim_world *world = actor->world;
    struct semel_command_result result;
    struct semel_error err;

    sim_trace(world, "%s says %s to event %d", actor->owner, words[command->kind], event->n);
    semel_status status = read_and_command(actor, event, *command, &result, &err);
    if (world->committed != NULL)
        sim_watch(world);
    if (status == SEMEL_OK && result.done)
        count(world, command->kind);
    else if (status == SEMEL_OK)
        world->counts[SIM_LATE_ORDERS]++;
    else if (status == SEMEL_INVALID)
        world->counts[SIM_REFUSED]++;
    event->superseded = status == SEMEL_INVALID && err.cls == SEMEL_CLASS_BUSINESS;
    if (status == SEMEL_CLOSED || status == SEMEL_UNKNOWN)
        (void)semel_store_reopen(actor->store, &err);
    sim_trace(world, "%s event %d: %s%s", actor->owner, event->n, semel__status_name(status),
              result.done ? ", done" : "");
}

static void care(struct sim_actor *actor, struct sim_event *event)
{
    struct sim_world *world = actor->world;
    struct semel_command command = {.who = semel__str(actor->owner), .reason = SEMEL_STR("it had to be")};

    if (!decide(world, event, &command))
        return;
    bool certain = in_database(world) && !command.force;
    actor->atomic = !certain;
    give_order(actor, event, &command);
    actor->atomic = false;
    /* A second click; where the effect is outside or force is used, only on a command that cannot repeat it. */
    bool harmless = certain || command.kind != SEMEL_COMMAND_RETRY;
    if (!actor->dead && !world->quiet && harmless && sim_chance(world, 300))
        give_order(actor, event, &command);
}

static void care_for_one(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    int n = 0, chosen;

    for (int i = 0; i < world->to_push; i++)
        n += needs_care(&world->events[i]) || may_be_given_up(world, &world->events[i]);
    if (n == 0)
        return;
    chosen = (int)sim_between(world, 0, n - 1);
    for (int i = 0; i < world->to_push; i++)
        if ((needs_care(&world->events[i]) || may_be_given_up(world, &world->events[i])) && chosen-- == 0) {
            care(actor, &world->events[i]);
            return;
        }
}

void sim_operator_main(void *arg)
{
    struct sim_actor *actor = arg;
    struct sim_world *world = actor->world;

    while (!actor->dead && !world->stopping) {
        actor->serial++;
        actor->wake_us = world->now_us + sim_between(world, SIM_SECOND / 2, 10 * SIM_SECOND);
        fiber_yield();
        if (world->stopping)
            break;
        if (!sim_settings_round(actor))
            continue;
        if (!world->quiet) {
            if (sim_chance(world, world->scene.faults.set))
                sim_person_sets(actor);
            else
                care_for_one(actor);
            continue;
        }
        for (int i = 0; i < world->to_push && !actor->dead; i++)
            if (needs_care(&world->events[i]) || needs_push(world, &world->events[i]))
                care(actor, &world->events[i]);
    }
    if (world->committed != NULL)
        sim_watch(world);
}
