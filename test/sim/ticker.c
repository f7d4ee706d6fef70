/* SPDX-License-Identifier: MIT
 *
 * ticker.c: sessions that only tick: what happens by itself is done by many at once. Now and then one of them sits in
 * an open transaction.
 */
#include "sim.h"

static semel_status tick(struct sim_actor *actor, struct semel_error *err)
{
    struct sim_world *world = actor->world;
    size_t n = 0, max = (size_t)sim_between(world, 1, 40);
    semel_status status = semel__inbox_recover(&actor->inbox, max, &n, err);

    if (status == SEMEL_OK && !actor->dead)
        status = semel__inbox_gaps(&actor->inbox, max, &n, err);
    if (status == SEMEL_OK && !actor->dead) {
        status = semel__inbox_sweep(&actor->inbox, max, &n, err);
        world->counts[SIM_SWEPT] += status == SEMEL_OK ? n : 0;
    }
    if (status == SEMEL_OK && !actor->dead && sim_chance(world, 300))
        status = semel__inbox_purge(&actor->inbox, max, &n, err);
    world->counts[SIM_TICKS] += status == SEMEL_OK;
    return status;
}

static semel_status sit(struct sim_actor *actor, struct semel_error *err)
{
    struct sim_world *world = actor->world;
    int64_t now_us;
    semel_status status = semel_store_begin(actor->store, SEMEL_TX_OWN, &now_us, err);

    if (status != SEMEL_OK)
        return status;
    world->counts[SIM_SITTERS]++;
    sim_stall(actor, sim_between(world, 100 * SIM_MS, 2 * SIM_SECOND));
    semel_store_rollback(actor->store);
    return SEMEL_OK;
}

void sim_ticker_main(void *arg)
{
    struct sim_actor *actor = arg;
    struct sim_world *world = actor->world;
    struct semel_error err = {0};
    bool down = false;

    while (!actor->dead && !world->stopping) {
        actor->serial++;
        semel_status status = down ? semel_store_reopen(actor->store, &err) : SEMEL_OK;
        if (status == SEMEL_OK && !actor->dead && !sim_settings_round(actor))
            status = SEMEL_CLOSED;
        if (status == SEMEL_OK && !actor->dead)
            status = !world->quiet && sim_chance(world, world->scene.faults.sit) ? sit(actor, &err) : tick(actor, &err);
        sim_report(actor, "tick", status, 0, &err);
        down = status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
        if (actor->dead)
            break;
        if (world->committed != NULL)
            sim_watch(world);
        actor->wake_us = world->now_us + sim_between(world, 100 * SIM_MS, 3 * SIM_SECOND);
        fiber_yield();
    }
    if (world->committed != NULL)
        sim_watch(world);
}
