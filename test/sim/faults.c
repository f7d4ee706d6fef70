/* SPDX-License-Identifier: MIT
 *
 * faults.c: what goes wrong before an operation or at a labelled point.
 *
 * Every operation of a store or a broker comes here first. The actor is left for another one, stalls, dies, or is told
 * of a fault. A dead actor does nothing any more: all its operations answer CLOSED until its calls have returned.
 *
 * Invariants: a commit is looked at (watch.c) before anybody else runs; in the quiet phase nothing goes wrong here.
 */
#include "sim.h"

static struct sim_actor *running;

void sim_point_actor(struct sim_actor *actor)
{
    running = actor;
}

static void leave(struct sim_actor *actor)
{
    if (actor->atomic)
        return;
    actor->left++;
    fiber_yield();
}

void sim_stall(struct sim_actor *actor, int64_t for_us)
{
    struct sim_world *world = actor->world;

    if (actor->atomic || world->quiet)
        return;
    world->counts[SIM_STALLS]++;
    sim_trace(world, "%s stalls for %lld ms", actor->owner, (long long)(for_us / SIM_MS));
    actor->wake_us = world->now_us + for_us;
    actor->break_at_us = world->now_us + sim_between(world, 0, for_us);
    if (sim_chance(world, 700))
        actor->expel_at_us = world->now_us + sim_between(world, 0, for_us);
    actor->left++;
    fiber_yield();
}

static void crash(struct sim_actor *actor, const char *where)
{
    actor->world->counts[SIM_CRASHES]++;
    sim_trace(actor->world, "%s crashes at %s", actor->owner, where);
    actor->dead = true;
}

/* Before an operation. false: the actor is dead. */
static bool before(struct sim_actor *actor, const char *op, bool in_tx)
{
    struct sim_world *world = actor->world;
    const struct sim_faults *faults = &world->scene.faults;

    if (world->committed != NULL)
        sim_watch(world);
    world->counts[SIM_OPERATIONS]++;
    if (actor->dead || world->quiet || world->stopping)
        return !actor->dead;
    world->now_us += sim_between(world, 0, 500);
    if (sim_chance(world, faults->stall))
        sim_stall(actor, sim_between(world, world->scene.policy.lease_us / 4, 3 * world->scene.policy.lease_us));
    else if (sim_chance(world, in_tx ? faults->yield_in_tx : faults->yield))
        leave(actor);
    if (!world->quiet && sim_chance(world, faults->crash))
        crash(actor, op);
    return !actor->dead;
}

static bool named(const char *op, const char *name)
{
    return strcmp(op, name) == 0;
}

static enum semel_mem_fault commit_fault(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    const struct sim_faults *faults = &world->scene.faults;

    if (world->quiet || !sim_chance(world, faults->unknown))
        return SEMEL_MEM_GO;
    bool done = sim_chance(world, 500);
    world->counts[done ? SIM_UNKNOWN_DONE : SIM_UNKNOWN_LOST]++;
    sim_trace(world, "%s commit: unknown, %s", actor->owner, done ? "done" : "lost");
    return done ? SEMEL_MEM_UNKNOWN_DONE : SEMEL_MEM_UNKNOWN_LOST;
}

static enum semel_mem_fault store_fault(struct sim_actor *actor, const char *op)
{
    struct sim_world *world = actor->world;
    const struct sim_faults *faults = &world->scene.faults;

    if (world->quiet)
        return SEMEL_MEM_GO;
    if (sim_chance(world, faults->close)) {
        world->counts[SIM_CLOSED]++;
        sim_trace(world, "%s %s: the connection is lost", actor->owner, op);
        return SEMEL_MEM_CLOSE;
    }
    if (!named(op, "rollback") && sim_chance(world, faults->retry)) {
        world->counts[SIM_STORE_ERRORS]++;
        sim_trace(world, "%s %s: an error", actor->owner, op);
        return SEMEL_MEM_RETRY;
    }
    return SEMEL_MEM_GO;
}

enum semel_mem_fault sim_store_hook(void *ctx, const char *op)
{
    struct sim_actor *actor = ctx;
    struct sim_world *world = actor->world;
    bool ending = named(op, "commit") || named(op, "rollback");

    actor->ending = ending;
    bool alive = before(actor, op, ending || actor->store->in_tx);
    actor->ending = false;
    if (!alive)
        return SEMEL_MEM_CLOSE;
    if (named(op, "reopen"))
        actor->lost = actor->cut = false;
    if (actor->cut)
        return SEMEL_MEM_CLOSE;
    if (named(op, "begin"))
        actor->left_at_begin = actor->left;
    if (actor->lost)
        return SEMEL_MEM_GO; /* it will be told that the connection is gone */
    enum semel_mem_fault fault = store_fault(actor, op);
    if (fault == SEMEL_MEM_GO && named(op, "commit")) {
        fault = commit_fault(actor);
        if (fault != SEMEL_MEM_UNKNOWN_LOST)
            world->committed = actor;
        world->counts[SIM_COMMITS]++;
    }
    if (world->verbose && fault == SEMEL_MEM_GO)
        sim_trace(world, "%s %s", actor->owner, op);
    return fault;
}

enum semel_queue_fault sim_broker_hook(void *ctx, const char *op)
{
    struct sim_actor *actor = ctx;
    struct sim_world *world = actor->world;
    const struct sim_faults *faults = &world->scene.faults;

    if (!before(actor, op, false))
        return SEMEL_QUEUE_CLOSE;
    if (world->quiet)
        return SEMEL_QUEUE_GO;
    if (sim_chance(world, faults->queue_close)) {
        world->counts[SIM_QUEUE_ERRORS]++;
        sim_trace(world, "%s %s: the broker's connection is lost", actor->owner, op);
        return SEMEL_QUEUE_CLOSE;
    }
    if (sim_chance(world, faults->queue_error)) {
        world->counts[SIM_QUEUE_ERRORS]++;
        sim_trace(world, "%s %s: a broker's error", actor->owner, op);
        return SEMEL_QUEUE_RETRY;
    }
    if (named(op, "ack") && sim_chance(world, faults->lost_ack)) {
        world->counts[SIM_LOST_ACKS]++;
        sim_trace(world, "%s ack: lost", actor->owner);
        return SEMEL_QUEUE_LOST;
    }
    if (world->verbose)
        sim_trace(world, "%s %s", actor->owner, op);
    return SEMEL_QUEUE_GO;
}

void sim_point_hook(void *ctx, enum semel_point point)
{
    struct sim_actor *actor = running;

    (void)ctx;
    if (actor == NULL)
        return;
    struct sim_world *world = actor->world;
    if (world->committed != NULL)
        sim_watch(world);
    if (actor->dead || world->quiet || world->stopping)
        return;
    if (sim_chance(world, world->scene.faults.point_crash))
        crash(actor, semel__point_name(point));
    else if (sim_chance(world, world->scene.faults.stall))
        sim_stall(actor, sim_between(world, world->scene.policy.lease_us / 4, 3 * world->scene.policy.lease_us));
}

void sim_pause(struct sim_actor *actor, const char *what)
{
    (void)before(actor, what, actor->store->in_tx);
}
