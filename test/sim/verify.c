/* SPDX-License-Identifier: MIT
 *
 * verify.c: what must hold once everything has come to its end.
 */
#include "sim.h"

#include "core/state.h"

bool sim_all_ended(struct sim_world *world)
{
    if (semel__mem_queue_unacked(world->queue) > 0)
        return false;
    for (int i = 0; i < world->scene.n_events; i++)
        if (world->events[i].there && semel__state_unfinished(world->events[i].state))
            return false;
    return true;
}

static void verify_fate(const struct sim_world *world, const struct sim_event *event)
{
    bool ended = event->there || event->was_final;

    if (event->effects > 1)
        sim_broken(world, "no effect twice", "event %d took effect %d times", event->n, event->effects);
    if (!ended)
        sim_broken(world, "none is lost", "event %d has neither effect nor record", event->n);
    switch (event->state) {
    case SEMEL_ROW_COMPLETED:
        if (event->effects != 1 && !(event->foregone && event->effects == 0))
            sim_broken(world, "none is lost", "event %d is completed and took effect %d times", event->n,
                       event->effects);
        return;
    case SEMEL_ROW_REJECTED:
    case SEMEL_ROW_PREVENTED:
    case SEMEL_ROW_STALE:
    case SEMEL_ROW_QUARANTINED:
        return;
    case SEMEL_ROW_PROCESSING:
    case SEMEL_ROW_FAILED:
    case SEMEL_ROW_WAITING:
    case SEMEL_ROW_UNKNOWN:
    case SEMEL_ROW_DEAD:
        /* Where no payloads are kept, the broker has to bring it again, and has only the other one left. */
        if (event->usurped && event->effects == 0 && world->scene.policy.keep == SEMEL_KEEP_NEVER)
            return;
        sim_broken(world, "nothing is parked for ever", "event %d of key %d is still %s (%s)", event->n, event->key,
                   semel__row_status_name(event->state), semel__class_name(event->error_class));
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_COUNT:
        break;
    }
    sim_broken(world, "none is lost", "event %d has no status", event->n);
}

/* It began, and was stale then: where a call may be repeated by its key, nobody knows whether one of them had its
 * effect, and the business key stays. */
static bool in_doubt(const struct sim_world *world, const struct sim_event *event)
{
    return event->doubted && (world->effects & 1u << SEMEL_EFFECT_KEYED) != 0;
}

/* Who was prevented was so by one that took effect: by itself where its record was purged (P73, P78). */
static void verify_prevented(const struct sim_world *world, const struct sim_event *event)
{
    for (int i = 0; i < world->scene.n_events; i++)
        if (world->events[i].business == event->business &&
            (world->events[i].effects > 0 || world->events[i].foregone || in_doubt(world, &world->events[i])))
            return;
    sim_broken(world, "prevented by an effect", "event %d was prevented, and nobody did what it stands for", event->n);
}

static void clear_conflict(void *ctx, const struct semel_mem_conflict *conflict)
{
    struct sim_event *event = sim_event_of(ctx, conflict->id);

    if (event != NULL)
        event->contradicted = false;
}

/* While the row is there, another payload is a conflict, and is kept. */
static void verify_conflicts(struct sim_world *world)
{
    semel__mem_conflicts(world->db, clear_conflict, world);
    for (int i = 0; i < world->scene.n_events && !world->scene.purge; i++)
        if (world->events[i].contradicted)
            sim_broken(world, "conflicts are kept", "event %d came with another payload, and nobody knows", i);
}

void sim_verify(struct sim_world *world)
{
    size_t unacked = semel__mem_queue_unacked(world->queue);

    for (int i = 0; i < world->scene.n_events; i++)
        verify_fate(world, &world->events[i]);
    if (unacked > 0)
        sim_broken(world, "every delivery is acknowledged", "%zu are not", unacked);
    for (int i = 0; i < world->scene.n_events; i++) {
        const struct sim_event *event = &world->events[i];
        if (event->prevented)
            verify_prevented(world, event);
        if ((event->kind == SIM_POISON || event->kind == SIM_KILLER || event->kind == SIM_REJECT) && event->effects > 0)
            sim_broken(world, "what failed has no effect", "event %d took effect", event->n);
    }
    verify_conflicts(world);
}
