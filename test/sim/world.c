/* SPDX-License-Identifier: MIT
 *
 * world.c: one run: the clock, what the producers and the broker do by themselves, and who runs next.
 *
 * Time moves by small steps with every operation, and jumps to the next thing that is to happen when everybody sleeps.
 * The chaos lasts for a drawn time; then the faults stop and everything has to come to its end within a bounded number
 * of rounds. In the end some worlds bring every message once more, some of them after everything has been purged.
 */
#include "sim.h"

#include <stdio.h>

#define TURNS_MAX 6000
#define ROUNDS_MAX 700
#define START_US (INT64_C(1790000000) * SIM_SECOND)

bool sim_chance(struct sim_world *world, unsigned per_mille)
{
    return per_mille > 0 && semel__random_chance(&world->rng, per_mille);
}

int64_t sim_between(struct sim_world *world, int64_t low, int64_t high)
{
    return low + (int64_t)semel__random_below(&world->rng, (uint64_t)(high - low + 1));
}

static int64_t now_of(void *ctx)
{
    return ((struct sim_world *)ctx)->now_us;
}

/* ---- producers and broker ---- */

static void push(struct sim_world *world, struct sim_event *event, const char *payload)
{
    struct semel_pair headers[4] = {
        {SEMEL_STR("id"), semel__str(event->id)},
        {SEMEL_STR("key"), semel__str(event->key_text)},
        {SEMEL_STR("version"), semel__str(event->version_text)},
        {SEMEL_STR("business"), semel__str(event->business_text)},
    };
    const struct semel_mem_push message = {.source = semel__str(event->source),
                                           .key = semel__str(event->key_text),
                                           .payload = semel__str(payload),
                                           .headers = headers,
                                           .n_headers = 4};
    struct semel_error err;

    event->number = semel__mem_queue_count(world->queue);
    if (semel__mem_queue_push(world->queue, &message, 1, &err) != SEMEL_OK)
        sim_broken(world, "memory", "%s", err.text);
}

/* The id carries its time, and in its last digits the event's number. */
static void push_next(struct sim_world *world)
{
    struct sim_event *event = &world->events[world->to_push++];

    semel__uuid7_new(world->now_us, &world->rng, event->id);
    snprintf(event->id + 32, 5, "%04x", (unsigned)event->n);
    event->source[0] = world->scene.two_sources && event->key % 2 == 1 ? 't' : 's';
    snprintf(event->key_text, sizeof event->key_text, "k%d", event->key);
    snprintf(event->business_text, sizeof event->business_text, "b%d", event->business);
    snprintf(event->version_text, sizeof event->version_text, "%lld", (long long)event->version);
    snprintf(event->payload, sizeof event->payload, "%d", event->n);
    push(world, event, event->payload);
    event->pushed = true;
    world->counts[SIM_MESSAGES]++;
    sim_trace(world, "event %d is sent: %s, key %d, version %lld, business %d, kind %d", event->n, event->id,
              event->key, (long long)event->version, event->business, (int)event->kind);
}

void sim_redeliver(struct sim_world *world, struct sim_event *event)
{
    struct semel_error err;

    if (semel__mem_queue_redeliver(world->queue, event->number, &err) != SEMEL_OK)
        sim_broken(world, "memory", "%s", err.text);
    world->counts[SIM_REDELIVERED]++;
    sim_trace(world, "event %d is delivered once more", event->n);
}

static void redeliver(struct sim_world *world, struct sim_event *event)
{
    if (event->there || event->was_final) /* else it is still on its way */
        sim_redeliver(world, event);
}

static struct sim_event *any_event(struct sim_world *world)
{
    return world->to_push > 0 ? &world->events[sim_between(world, 0, world->to_push - 1)] : NULL;
}

static void send_conflict(struct sim_world *world, struct sim_event *event)
{
    char other[sizeof event->payload + 4];
    size_t number = event->number;

    if (!event->there && !event->was_final)
        return;
    snprintf(other, sizeof other, "%s.5", event->payload);
    push(world, event, other);
    event->number = number;
    event->contradicted = world->n_restores == 0; /* after a restore either payload may have come first */
    event->usurped = !event->contradicted;
    sim_trace(world, "event %d comes with another payload", event->n);
}

static void jump(struct sim_world *world, int64_t by_us)
{
    world->counts[by_us > 0 ? SIM_JUMPS : SIM_BACKWARD]++;
    sim_trace(world, "the clock jumps by %lld ms", (long long)(by_us / SIM_MS));
    world->now_us += by_us;
    world->jumped_us += by_us;
    for (int i = world->to_push; i < world->scene.n_events; i++)
        world->events[i].push_at_us += by_us;
}

/* What happens by itself between two turns. Returns by how much the end of the chaos moves. */
static int64_t happen(struct sim_world *world)
{
    const struct sim_faults *faults = &world->scene.faults;
    int64_t by_us = 0;

    while (world->to_push < world->scene.n_events && world->events[world->to_push].push_at_us <= world->now_us)
        push_next(world);
    if (any_event(world) == NULL)
        return 0;
    if (sim_chance(world, faults->redeliver))
        redeliver(world, any_event(world));
    if (sim_chance(world, faults->conflict))
        send_conflict(world, any_event(world));
    if (sim_chance(world, faults->backup))
        sim_backup(world);
    if (sim_chance(world, faults->restore))
        sim_restore(world);
    if (sim_chance(world, faults->jump))
        by_us = sim_between(world, 1, 3 * world->scene.policy.lease_us);
    else if (sim_chance(world, faults->backward))
        by_us = -sim_between(world, 1, 60 * SIM_SECOND);
    else if (sim_chance(world, faults->big_jump))
        by_us = sim_between(world, SIM_HOUR / 2, 2 * SIM_HOUR);
    if (by_us != 0)
        jump(world, by_us);
    return by_us;
}

/* ---- who runs ---- */

static void resume(struct sim_world *world, struct sim_actor *actor)
{
    sim_point_actor(actor);
    fiber_resume(actor->fiber);
    sim_point_actor(NULL);
    if (world->committed != NULL && world->committed != actor)
        sim_broken(world, "the simulator", "a commit was not looked at");
    if (!fiber_done(actor->fiber))
        return;
    sim_actor_close(actor);
    actor->wake_us = world->now_us + (world->quiet ? 0 : sim_between(world, 0, 3 * SIM_SECOND));
}

static bool due(int64_t at_us, int64_t now_us)
{
    return at_us != SEMEL_NONE && at_us <= now_us;
}

/* What the servers do to those that stall. */
static void time_out(struct sim_world *world, struct sim_actor *actor)
{
    if (due(actor->break_at_us, world->now_us)) {
        if (actor->store->in_tx || actor->ending) {
            world->counts[SIM_BROKEN_TX]++;
            sim_trace(world, "the server ends the transaction of %s", actor->owner);
            semel__mem_break(actor->store);
            actor->lost = true;
        }
        actor->break_at_us = SEMEL_NONE;
    }
    if (due(actor->expel_at_us, world->now_us)) {
        if (actor->broker != NULL) {
            world->counts[SIM_EXPELLED]++;
            semel__mem_queue_expel(world->queue, actor->broker);
        }
        actor->expel_at_us = SEMEL_NONE;
    }
}

static void sooner(int64_t *at_us, int64_t other_us)
{
    if (other_us != SEMEL_NONE && other_us < *at_us)
        *at_us = other_us;
}

static void sleep_all(struct sim_world *world)
{
    int64_t next_us = INT64_MAX;

    for (int i = 0; i < world->n_actors; i++) {
        sooner(&next_us, world->actors[i].wake_us);
        if (world->actors[i].alive) {
            sooner(&next_us, world->actors[i].break_at_us);
            sooner(&next_us, world->actors[i].expel_at_us);
        }
    }
    if (world->to_push < world->scene.n_events)
        sooner(&next_us, world->events[world->to_push].push_at_us);
    sooner(&next_us, sim_calls_next(world));
    if (next_us > world->now_us)
        world->now_us = next_us;
}

static void turn(struct sim_world *world)
{
    struct sim_actor *ready[SIM_ACTORS];
    int n = 0;

    for (int i = 0; i < world->n_actors; i++) {
        struct sim_actor *actor = &world->actors[i];
        if (actor->alive)
            time_out(world, actor);
        if (actor->wake_us > world->now_us)
            continue;
        if (!actor->alive)
            sim_actor_open(actor);
        ready[n++] = actor;
    }
    if (n == 0) {
        sleep_all(world);
        return;
    }
    struct sim_actor *actor = ready[sim_between(world, 0, n - 1)];
    actor->break_at_us = actor->expel_at_us = SEMEL_NONE; /* it is back */
    resume(world, actor);
}

static void chaos(struct sim_world *world)
{
    int64_t end_us = world->now_us + world->scene.chaos_us;

    for (int turns = 0; turns < TURNS_MAX && world->now_us < end_us; turns++) {
        end_us += happen(world);
        sim_calls_end(world);
        turn(world);
    }
}

/* ---- the quiet phase ---- */

static void round_of_all(struct sim_world *world)
{
    for (int i = 0; i < world->n_actors; i++) {
        struct sim_actor *actor = &world->actors[i];
        if (!actor->alive)
            sim_actor_open(actor);
        resume(world, actor);
        sim_calls_end(world);
    }
}

static void expel_all(struct sim_world *world)
{
    for (int i = 0; i < world->scene.n_workers; i++)
        if (world->actors[i].alive)
            semel__mem_queue_expel(world->queue, world->actors[i].broker);
}

static void calm_down(struct sim_world *world)
{
    int64_t step_us = 100 * SIM_MS;

    for (int rounds = 0; rounds < ROUNDS_MAX; rounds++) {
        round_of_all(world);
        if (sim_all_ended(world))
            return;
        if (rounds == 3)
            expel_all(world); /* so that what was acknowledged in vain comes again */
        world->now_us += step_us;
        if (step_us < 4 * SIM_SECOND)
            step_us += step_us / 8;
    }
}

static void quiet(struct sim_world *world)
{
    world->quiet = true;
    sim_trace(world, "the quiet phase");
    while (world->to_push < world->scene.n_events)
        push_next(world);
    for (int i = 0; i < world->n_actors; i++)
        world->actors[i].wake_us = world->now_us;
    calm_down(world);
    sim_verify(world);
    if (!sim_chance(world, 400))
        return;
    if (world->scene.purge) {
        jump(world, 3 * SIM_HOUR);
        round_of_all(world);
        round_of_all(world);
    }
    for (int i = 0; i < world->scene.n_events; i++)
        redeliver(world, &world->events[i]);
    calm_down(world);
    sim_verify(world);
}

/* ---- a run ---- */

static void create(struct sim_world *world, struct fiber **fibers)
{
    const struct sim_scene *scene = &world->scene;

    world->n_actors = scene->n_workers + scene->n_operators + scene->n_tickers;
    if (semel__mem_db_new(&world->db, &world->clock) != SEMEL_OK ||
        semel__mem_queue_new(&world->queue, scene->mode, scene->partitions, &world->clock) != SEMEL_OK)
        sim_broken(world, "memory", "there is none");
    sim_settings_open(world);
    for (int i = 0; i < world->n_actors; i++) {
        struct sim_actor *actor = &world->actors[i];
        *actor = (struct sim_actor){.world = world, .number = i, .fiber = fibers[i], .wake_us = world->now_us};
        actor->role = i < scene->n_workers                        ? SIM_WORKER
                      : i < scene->n_workers + scene->n_operators ? SIM_OPERATOR
                                                                  : SIM_TICKER;
        actor->life = actor->role == SIM_WORKER ? scene->lives[i] : SIM_STEPS;
        sim_actor_open(actor);
    }
    for (int i = 0; i < SIM_KEYS; i++)
        world->last_arrival[i] = world->last_stored[i] = world->last_version[i] = -1;
}

static void destroy(struct sim_world *world)
{
    world->stopping = true;
    for (int i = 0; i < world->n_actors; i++)
        while (world->actors[i].alive)
            resume(world, &world->actors[i]);
    sim_past_done(world);
    sim_settings_close(world);
    semel__mem_db_free(world->db);
    semel__mem_queue_free(world->queue);
}

void sim_run(struct sim_world *world, struct fiber **fibers, uint64_t seed)
{
    struct semel_error err;
    char text[400];

    world->seed = seed;
    world->now_us = START_US;
    world->clock = (struct semel_clock){now_of, world};
    semel__random_seed(&world->rng, seed);
    sim_scene_draw(world);
    if (semel__policy_check(&world->scene.policy, &err) != SEMEL_OK)
        sim_broken(world, "the simulator", "%s", err.text);
    sim_scene_describe(world, text, sizeof text);
    sim_trace(world, "%s", text);
    create(world, fibers);
    semel__point_set_hook(sim_point_hook, NULL);
    chaos(world);
    quiet(world);
    destroy(world);
    semel__point_set_hook(NULL, NULL);
    world->counts[SIM_SEEDS]++;
}
