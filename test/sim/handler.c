/* SPDX-License-Identifier: MIT
 *
 * handler.c: what the handlers of the simulated route do.
 *
 * ATOMIC: the effect is a row in the database, written in the open transaction; a handler that fails may have written
 * it before, and it must then be gone. OUTSIDE: the effect happens at once and cannot be undone; TRANSIENT and
 * PERMANENT are said only when it did not happen, MAYBE when it may have. KEYED: the same, but a repeat has no effect.
 */
#include "sim.h"

#include <stdlib.h>

struct sim_event *sim_event_whole(struct sim_actor *actor, const struct semel__msg *msg)
{
    struct sim_event *event = sim_event_of(actor->world, msg->id);
    char *end;

    if (event == NULL || strtol(msg->payload.p, &end, 10) != event->n || end == msg->payload.p)
        sim_broken(actor->world, "the message is whole", "the handler got a message that nobody sent");
    return event;
}

/* Its starts are counted but for the first, and for one in the company of others; a restore forgets some. */
void sim_kill_worker(struct sim_actor *actor, struct sim_event *event)
{
    struct sim_world *world = actor->world;

    if (event->starts > (event->retries + 1) * world->cap + 2 + 2 * world->n_restores)
        sim_broken(world, "a killer is stopped", "event %d has killed %d workers with %d retries and %d retries",
                   event->n, event->starts, world->cap, event->retries);
    world->counts[SIM_KILLED]++;
    sim_trace(world, "%s is killed by event %d", actor->owner, event->n);
    actor->dead = true;
}

bool sim_misbehaves(struct sim_event *event)
{
    if (event->trouble <= 0)
        return false;
    event->trouble--;
    return true;
}

struct sim_ending sim_outcome(struct sim_world *world, struct sim_event *event)
{
    switch (event->kind) {
    case SIM_GOOD:
    case SIM_KILLER:
    case SIM_SLOW:
        break;
    case SIM_FLAKY:
        if (sim_misbehaves(event))
            return (struct sim_ending){SEMEL_TRANSIENT, false};
        break;
    case SIM_STUBBORN:
        if (sim_misbehaves(event))
            return (struct sim_ending){SEMEL_PERMANENT, false};
        break;
    case SIM_POISON:
        return (struct sim_ending){event->transient ? SEMEL_TRANSIENT : SEMEL_PERMANENT, false};
    case SIM_REJECT:
        return (struct sim_ending){SEMEL_REJECTED, false};
    case SIM_UNSURE:
        if (sim_misbehaves(event))
            return (struct sim_ending){SEMEL_MAYBE, sim_chance(world, 500)};
        break;
    }
    return (struct sim_ending){SEMEL_DONE, true};
}

static struct sim_ending decide(struct sim_actor *actor, struct sim_event *event)
{
    struct sim_world *world = actor->world;

    if (event->kind == SIM_SLOW && !world->quiet && sim_misbehaves(event)) {
        world->counts[SIM_OUTLASTED]++;
        sim_stall(actor, sim_between(world, actor->policy.lease_us, 3 * actor->policy.lease_us));
    }
    struct sim_ending ending = sim_outcome(world, event);
    /* The effect is written, and must be undone. */
    if (actor->policy.effect == SEMEL_EFFECT_ATOMIC && ending.result != SEMEL_DONE && ending.result != SEMEL_MAYBE)
        ending.effect = sim_chance(world, 500);
    return ending;
}

void sim_effect_outside(struct sim_world *world, struct sim_event *event, bool keyed, bool late, uint64_t born,
                        enum semel_order order)
{
    if (sim_forgotten(world, born)) {
        world->counts[SIM_FOREGONE]++;
        event->foregone = true;
    } else if (keyed && event->effects > 0) {
        world->counts[SIM_KEYED_REPEATS]++;
    } else {
        event->outside = true;
        sim_note_effect(world, event, late, order);
    }
}

static semel_status have_effect(struct sim_actor *actor, struct semel_store *store, struct sim_event *event,
                                struct semel_error *err)
{
    if (actor->policy.effect == SEMEL_EFFECT_ATOMIC)
        return semel__mem_effect_add(store, semel__str(event->id), semel__str(event->payload), err);
    if (!actor->dead) /* else too late: the process is gone */
        sim_effect_outside(actor->world, event, actor->policy.effect == SEMEL_EFFECT_KEYED,
                           event->state != SEMEL_ROW_PROCESSING || event->owner != actor->number,
                           event->claimed[actor->number], actor->policy.order);
    return SEMEL_OK;
}

static semel_status fail_closed(struct semel_error *err)
{
    return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the worker is dead");
}

/* Outside of a transaction a handler starts only under a lease that was just looked at; what happened since then,
 * nobody can know. */
void sim_check_lease(const struct sim_actor *actor, const struct sim_event *event)
{
    const struct sim_world *world = actor->world;

    if (actor->policy.effect == SEMEL_EFFECT_ATOMIC || actor->dead || actor->left != actor->left_at_begin)
        return;
    if (world->counts[SIM_BACKWARD] > 0)
        return; /* a lease that was recovered may look alive again */
    if (sim_forgotten(world, event->claimed[actor->number]))
        return; /* the database was restored to before the claim, which the worker learns at its end */
    if (event->state != SEMEL_ROW_PROCESSING || event->owner != actor->number || event->lease_until_us <= world->now_us)
        sim_broken(world, "a handler starts under a live lease", "event %d does not", event->n);
}

/* Runs one message as far as its ending. */
static semel_status handle(struct sim_actor *actor, struct semel_store *store, const struct semel__msg *msg,
                           struct sim_ending *ret, struct semel_error *err)
{
    struct sim_world *world = actor->world;
    struct sim_event *event = sim_event_whole(actor, msg);

    if (world->committed != NULL)
        sim_watch(world);
    sim_check_lease(actor, event);
    sim_pause(actor, "handler");
    if (actor->dead)
        return fail_closed(err);
    event->starts++;
    sim_trace(world, "%s handles event %d (%s)", actor->owner, event->n, event->id);
    if (!world->quiet && sim_chance(world, world->scene.faults.handler_stall))
        sim_stall(actor, sim_between(world, actor->policy.lease_us / 2, 2 * actor->policy.lease_us));
    if (event->kind == SIM_KILLER) {
        sim_kill_worker(actor, event);
        return fail_closed(err);
    }
    if (!world->quiet && sim_chance(world, world->scene.faults.handler_world))
        return sim_chance(world, 800)
                   ? semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the handler's world is down")
                   : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the handler cannot run at all");
    *ret = decide(actor, event);
    semel_status status = ret->effect ? have_effect(actor, store, event, err) : SEMEL_OK;
    if (status == SEMEL_OK)
        sim_trace(world, "%s event %d: %s", actor->owner, event->n, semel__result_name(ret->result));
    if (actor->policy.effect != SEMEL_EFFECT_ATOMIC)
        sim_pause(actor, "handled");
    return status;
}

static semel_status say_by_error(enum semel_result result, struct semel_error *err)
{
    static const enum semel_class classes[] = {
        [SEMEL_DONE] = SEMEL_CLASS_NONE,           [SEMEL_TRANSIENT] = SEMEL_CLASS_TRANSIENT,
        [SEMEL_PERMANENT] = SEMEL_CLASS_PERMANENT, [SEMEL_REJECTED] = SEMEL_CLASS_REJECTED,
        [SEMEL_MAYBE] = SEMEL_CLASS_UNKNOWN,
    };
    return semel__fail(err, SEMEL_INVALID, classes[result], "the statement failed");
}

semel_status sim_handle_each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                             struct semel__reply *reply, struct semel_error *err)
{
    struct sim_actor *actor = ctx;
    struct sim_ending ending = {SEMEL_DONE, false};

    (void)attempt;
    semel_status status = handle(actor, store, msg, &ending, err);
    if (status != SEMEL_OK)
        return status;
    bool plain = ending.result == SEMEL_TRANSIENT || ending.result == SEMEL_PERMANENT;
    if (plain && sim_chance(actor->world, 300))
        return say_by_error(ending.result, err);
    if (ending.result == SEMEL_MAYBE && sim_chance(actor->world, 300) && actor->policy.effect != SEMEL_EFFECT_ATOMIC)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_UNKNOWN, "no answer");
    if (!semel__reply_set(reply, ending.result, SEMEL_STR("so it went"), (struct semel_str){0}))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* P57: on an ordered route a key occurs at most once a statement. */
static void check_set(const struct sim_actor *actor, const struct semel__msg *const *msgs, size_t n)
{
    if (actor->policy.order == SEMEL_ORDER_NONE)
        return;
    for (size_t i = 1; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (semel__str_given(msgs[i]->order_key) && semel__str_eq(msgs[i]->order_key, msgs[k]->order_key))
                sim_broken(actor->world, "a key occurs once a statement", "it came twice");
}

/* One statement: it fails as a whole, or forgets to name the one that failed. */
semel_status sim_handle_set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                            struct semel_set *set, struct semel_error *err)
{
    struct sim_actor *actor = ctx;

    check_set(actor, msgs, n);
    for (size_t i = 0; i < n; i++) {
        struct sim_ending ending = {SEMEL_DONE, false};
        semel_status status = handle(actor, store, msgs[i], &ending, err);
        if (status != SEMEL_OK)
            return status;
        if (ending.result == SEMEL_DONE)
            semel__set_add(set, msgs[i]->source, msgs[i]->id);
        else if (n == 1 || sim_chance(actor->world, 500))
            return say_by_error(ending.result, err);
    }
    return SEMEL_OK;
}
