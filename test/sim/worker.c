/* SPDX-License-Identifier: MIT
 *
 * worker.c: an actor's life: opened, run, crashed or stopped, closed, and opened again under another name.
 */
#include "sim.h"

#include <stdio.h>

static struct semel_str owner_of(const struct sim_actor *actor)
{
    return semel__str(actor->owner);
}

static void observe(void *ctx, const struct semel__msg *msgs, const struct semel_settled *settled, size_t n)
{
    struct sim_actor *actor = ctx;

    for (size_t i = 0; i < n; i++) {
        const struct sim_event *event = sim_event_of(actor->world, msgs[i].id);
        sim_trace(actor->world, "%s event %d: %s, %s", actor->owner, event != NULL ? event->n : -1,
                  semel__act_name(settled[i].act), semel__why_name(settled[i].why));
    }
}

static void open_pump(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    struct semel_error err;

    if (semel__broker_mem_open(&actor->broker, world->queue, &err) != SEMEL_OK)
        sim_broken(world, "memory", "%s", err.text);
    semel__broker_mem_set_hook(actor->broker, sim_broker_hook, actor);
    semel__pump_init(&actor->pump, &actor->inbox, actor->broker, &actor->rules);
    semel__route_breaker_init(&actor->pump.own, (int)sim_between(world, 3, 20), 100 * SIM_MS, 5 * SIM_SECOND);
    actor->pump.observe = actor->world->verbose ? observe : NULL;
    actor->pump.observe_ctx = actor;
    actor->pump.batch_max = world->scene.batch_max;
    actor->pump.tick_max = (size_t)sim_between(world, 1, 40);
    actor->pump.later_ms = (int)sim_between(world, 10, 1000);
    actor->pump.purge_every_us = world->scene.purge ? 600 * SIM_SECOND : 24 * SIM_HOUR;
}

void sim_actor_open(struct sim_actor *actor)
{
    static void (*const lives[])(void *) = {sim_worker_main, sim_leased_main, sim_hands_main};
    static void (*const roles[])(void *) = {NULL, sim_operator_main, sim_ticker_main};
    static const char *const names[] = {"w", "o", "t"};
    struct sim_world *world = actor->world;
    const struct semel_store_options options = {.clock = &world->clock, .rng = &world->rng};
    struct semel_error err;

    actor->incarnation++;
    actor->serial++;
    actor->dead = actor->atomic = actor->ending = actor->lost = actor->cut = false;
    actor->break_at_us = actor->expel_at_us = SEMEL_NONE;
    snprintf(actor->owner, sizeof actor->owner, "%s%d.%d", names[actor->role], actor->number, actor->incarnation);
    if (semel__store_mem_open(&actor->store, world->db, &options, &err) != SEMEL_OK)
        sim_broken(world, "memory", "%s", err.text);
    semel__mem_set_hook(actor->store, sim_store_hook, actor);
    actor->handler = (struct semel__handler){.ctx = actor,
                                             .each = sim_handle_each,
                                             .set = world->scene.set ? sim_handle_set : NULL};
    semel__inbox_init(&actor->inbox, actor->store, &actor->policy, &actor->handler, &world->rng, owner_of(actor));
    actor->inbox.wary = sim_chance(world, 300) ? 1000 : 0;
    actor->inbox.wary_deferred = sim_chance(world, 300) ? 1000 : 0;
    actor->inbox.run = (size_t)sim_between(world, 1, 6);
    if (actor->role == SIM_WORKER)
        open_pump(actor);
    sim_settings_of(actor);
    if (actor->life != SIM_STEPS)
        sim_slots_open(actor);
    fiber_start(actor->fiber, actor->role == SIM_WORKER ? lives[actor->life] : roles[actor->role], actor);
    actor->alive = true;
}

static void add_counts(struct sim_world *world, const struct semel_counts *counts)
{
    for (int i = 0; i <= SEMEL_WHY_DAMAGED; i++)
        world->counts[SIM_DELIVERIES] += counts->why[i];
    world->counts[SIM_SUPPRESSED] += counts->why[SEMEL_WHY_DUPLICATE];
    world->counts[SIM_BUSINESS] += counts->why[SEMEL_WHY_BUSINESS];
    world->counts[SIM_GAPS] += counts->why[SEMEL_WHY_GAP];
    world->counts[SIM_STALE] += counts->why[SEMEL_WHY_STALE];
    world->counts[SIM_BLOCKED] += counts->why[SEMEL_WHY_BLOCKED];
    world->counts[SIM_CONFLICTS] += counts->why[SEMEL_WHY_CONFLICT];
    world->counts[SIM_FENCED] += counts->fenced;
    world->counts[SIM_RECOVERED] += counts->recovered;
    world->counts[SIM_CUTS] += counts->cuts;
    world->counts[SIM_BLAMED] += counts->blamed;
    world->counts[SIM_PURGED] += counts->purged;
    world->counts[SIM_REJECTED] += counts->rejected;
    world->counts[SIM_DEAD] += counts->alerts[SEMEL_ALERT_DEAD];
    world->counts[SIM_UNKNOWNS] += counts->alerts[SEMEL_ALERT_UNKNOWN];
    world->counts[SIM_QUARANTINED] += counts->alerts[SEMEL_ALERT_QUARANTINED];
    world->counts[SIM_PARKED_FULL] += counts->alerts[SEMEL_ALERT_PARKED_FULL];
}

void sim_actor_close(struct sim_actor *actor)
{
    add_counts(actor->world, &actor->inbox.counts);
    if (actor->life != SIM_STEPS)
        sim_slots_close(actor);
    if (actor->role == SIM_WORKER) {
        semel__pump_done(&actor->pump);
        semel_broker_close(actor->broker);
        actor->broker = NULL;
    }
    semel__inbox_done(&actor->inbox);
    semel_store_close(actor->store);
    actor->store = NULL;
    actor->alive = false;
    actor->serial++;
}

void sim_report(const struct sim_actor *actor, const char *what, semel_status status, size_t n,
                const struct semel_error *err)
{
    if (status != SEMEL_OK)
        sim_trace(actor->world, "%s %s: %s (%s), %zu decided", actor->owner, what, semel__status_name(status),
                  err->text, n);
    else if (n > 0)
        sim_trace(actor->world, "%s %s: %zu decided", actor->owner, what, n);
}

void sim_worker_main(void *arg)
{
    struct sim_actor *actor = arg;
    struct sim_world *world = actor->world;
    struct semel_error err;

    while (!actor->dead && !world->stopping) {
        size_t stepped = 0, ticked = 0;
        actor->serial++;
        bool goes = sim_settings_round(actor);
        if (goes && !actor->dead) {
            semel_status status = semel__pump_step(&actor->pump, world->now_us, &stepped, &err);
            sim_report(actor, "step", status, stepped, &err);
        }
        if (goes && !actor->dead) {
            semel_status status = semel__pump_tick(&actor->pump, world->now_us, &ticked, &err);
            sim_report(actor, "tick", status, ticked, &err);
        }
        if (actor->dead)
            break;
        if (world->committed != NULL)
            sim_watch(world);
        actor->wake_us = world->now_us + (stepped + ticked > 0 ? sim_between(world, 0, 20 * SIM_MS)
                                                               : sim_between(world, 200 * SIM_MS, 2 * SIM_SECOND));
        fiber_yield();
    }
    if (world->committed != NULL)
        sim_watch(world);
}
