/* SPDX-License-Identifier: MIT
 *
 * past.c: backups and restores of the database.
 *
 * A restore takes back what was committed since the backup. The workers live on, with leases, tokens and calls of that
 * lost future; the broker brings again what the database does not know to have ended. Effects in the database are taken
 * back with it, those outside are not: whoever is called again has his effect again, but once in what is now true.
 */
#include "sim.h"

#include "core/state.h"

void sim_past_done(struct sim_world *world)
{
    semel__mem_db_free(world->past.db);
    world->past.db = NULL;
}

void sim_backup(struct sim_world *world)
{
    struct sim_past *past = &world->past;
    struct semel_mem_db *db = NULL;

    if (world->committed != NULL)
        sim_watch(world);
    if (semel__mem_db_copy(world->db, &db) != SEMEL_OK)
        return; /* somebody is in a transaction */
    sim_past_done(world);
    past->db = db;
    past->look = world->looks;
    past->effects_seen = world->effects_seen;
    memcpy(past->events, world->events, sizeof past->events);
    memcpy(past->last_arrival, world->last_arrival, sizeof past->last_arrival);
    memcpy(past->last_stored, world->last_stored, sizeof past->last_stored);
    memcpy(past->last_version, world->last_version, sizeof past->last_version);
    memcpy(past->business_effects, world->business_effects, sizeof past->business_effects);
    world->counts[SIM_BACKUPS]++;
    sim_trace(world, "a backup is made");
}

/* What is known of it goes back; what it is, and what actors hold of it, stays. */
static void go_back(struct sim_event *event, const struct sim_event *was)
{
    event->effects = was->effects;
    event->starts = was->starts;
    event->there = was->there;
    event->state = was->state;
    event->gap = was->gap;
    event->kept = was->kept;
    event->judged = was->judged;
    event->attempts = was->attempts;
    event->attempts_before = was->attempts_before;
    event->retries = was->retries;
    event->token = was->token;
    event->lease_until_us = was->lease_until_us;
    event->processed_us = was->processed_us;
    event->updated_us = was->updated_us;
    event->arrival = was->arrival;
    event->error_class = was->error_class;
    event->owner = was->owner;
    event->owner_incarnation = was->owner_incarnation;
    event->was_final = was->was_final;
    event->was_completed = was->was_completed;
    event->alone = was->alone;
    event->prevented = was->prevented;
    event->doubted = was->doubted;
    event->superseded = was->superseded;
    event->keyed = was->keyed;
    event->versioned = was->versioned;
    event->ordered = was->ordered;
    event->outside = was->outside;
    event->contradicted = false; /* nobody knows any more */
}

/* An effect outside stays done, whatever the database has forgotten. */
static void forget(struct sim_world *world, struct sim_event *event, const struct sim_event *was)
{
    event->foregone |= event->outside && event->effects > was->effects;
    world->counts[SIM_FORGOTTEN] += event->there && event->state == SEMEL_ROW_PROCESSING &&
                                    !(was->there && was->token == event->token);
    go_back(event, was);
}

void sim_restore(struct sim_world *world)
{
    struct sim_past *past = &world->past;
    enum semel_effect effect;

    if (past->db == NULL || world->n_restores == SIM_RESTORES_MAX)
        return;
    if (world->committed != NULL)
        sim_watch(world);
    effect = sim_stored_effect(world);
    if (semel__mem_db_restore(world->db, past->db) != SEMEL_OK)
        sim_broken(world, "memory", "there is none");
    world->counts[SIM_RESTORES]++;
    sim_trace(world, "the database is restored");
    world->restores[world->n_restores].from = past->look;
    world->restores[world->n_restores++].at = world->looks++;
    if (sim_stored_effect(world) != effect) /* a restore that changes the effect is a change of the effect */
        sim_stop_all(world);
    for (int i = 0; i < world->n_actors; i++)
        world->actors[i].cut = true;
    world->effects_seen = past->effects_seen;
    memcpy(world->last_arrival, past->last_arrival, sizeof past->last_arrival);
    memcpy(world->last_stored, past->last_stored, sizeof past->last_stored);
    memcpy(world->last_version, past->last_version, sizeof past->last_version);
    memcpy(world->business_effects, past->business_effects, sizeof past->business_effects);
    for (int i = 0; i < world->scene.n_events; i++)
        forget(world, &world->events[i], &past->events[i]);
    for (int i = 0; i < world->to_push; i++)
        if (!world->events[i].there || !semel__state_final(world->events[i].state))
            sim_redeliver(world, &world->events[i]);
}

bool sim_forgotten(const struct sim_world *world, uint64_t look)
{
    for (int i = 0; i < world->n_restores; i++)
        if (look > world->restores[i].from && look <= world->restores[i].at)
            return true;
    return false;
}
