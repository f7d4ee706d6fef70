/* SPDX-License-Identifier: MIT
 *
 * scene.c: what the seed says: the route, its messages and how much goes wrong.
 *
 * Invariant: whatever is drawn can come to a good end once the faults stop. So what would make a route stand still by
 * design is not drawn: small parking bounds where a paused source would have to be read on to find a missing version,
 * and versions that never come where the route waits for them for ever.
 */
#include "sim.h"

#include <stdio.h>

static unsigned maybe(struct sim_world *world, unsigned per_mille, int64_t low, int64_t high)
{
    return sim_chance(world, per_mille) ? (unsigned)sim_between(world, low, high) : 0;
}

static void draw_policy(struct sim_world *world)
{
    struct sim_scene *scene = &world->scene;
    struct semel_policy *policy = &scene->policy;

    semel__policy_init(policy, SEMEL_STR("c"));
    policy->effect = SEMEL_EFFECT_ATOMIC;
    if (sim_chance(world, 500))
        policy->effect = (enum semel_effect)sim_between(world, SEMEL_EFFECT_OUTSIDE, SEMEL_EFFECT_KEYED);
    policy->order = (enum semel_order)sim_between(world, SEMEL_ORDER_NONE, SEMEL_ORDER_VERSION);
    policy->on_gap = (enum semel_gap)sim_between(world, SEMEL_GAP_DEAD, SEMEL_GAP_ALERT);
    policy->first_version = sim_chance(world, 200) ? SEMEL_FIRST_VERSION_ANY : 1;
    policy->gap_timeout_us = sim_between(world, 1, 10) * SIM_SECOND;
    policy->retry_max = (int)sim_between(world, 1, 5);
    policy->permanent_max = (int)sim_between(world, 1, 2);
    policy->retry_first_us = sim_between(world, 10, 500) * SIM_MS;
    policy->retry_ceiling_us = sim_between(world, 1, 5) * SIM_SECOND;
    policy->lease_us = sim_between(world, 2, 8) * SIM_SECOND;
    scene->business = sim_chance(world, 300);
    if (policy->order == SEMEL_ORDER_VERSION && scene->business && policy->on_gap == SEMEL_GAP_ALERT)
        policy->on_gap = SEMEL_GAP_APPLY; /* a version that was prevented never comes */
    policy->keep = sim_chance(world, 200) ? SEMEL_KEEP_ALWAYS : SEMEL_KEEP_UNFINISHED;
    if (policy->effect == SEMEL_EFFECT_ATOMIC && policy->order == SEMEL_ORDER_NONE && sim_chance(world, 250))
        policy->keep = SEMEL_KEEP_NEVER;
    scene->purge = sim_chance(world, 300);
    policy->retention_us = scene->purge ? SIM_HOUR : 24 * 30 * SIM_HOUR;
}

static void draw_source(struct sim_world *world)
{
    struct sim_scene *scene = &world->scene;
    struct semel_policy *policy = &scene->policy;

    scene->mode = policy->order == SEMEL_ORDER_ARRIVAL || sim_chance(world, 400) ? SEMEL_QUEUE_ORDERED
                                                                                 : SEMEL_QUEUE_UNORDERED;
    scene->partitions = (size_t)sim_between(world, 1, 4);
    scene->batch_max = (size_t)sim_between(world, 1, sim_chance(world, 500) ? 20 : 4);
    scene->set = policy->effect == SEMEL_EFFECT_ATOMIC && sim_chance(world, 300);
    bool stuck = policy->order == SEMEL_ORDER_VERSION && policy->on_gap == SEMEL_GAP_ALERT;
    if (!stuck && sim_chance(world, 300))
        policy->parked_key_max = sim_between(world, 1, 3);
    if (!stuck && sim_chance(world, 100))
        policy->parked_consumer_max = sim_between(world, 1, 6);
}

/* What is not kept cannot be stored for others; an effect in the transaction has nobody else to run it. */
static void draw_lives(struct sim_world *world)
{
    struct sim_scene *scene = &world->scene;
    bool outside = scene->policy.effect != SEMEL_EFFECT_ATOMIC, kept = scene->policy.keep != SEMEL_KEEP_NEVER;
    unsigned leased = outside ? maybe(world, 700, 200, 1000) : 0, by_hand = kept ? maybe(world, 300, 100, 1000) : 0;

    for (int i = 0; i < scene->n_workers; i++) {
        scene->lives[i] = sim_chance(world, leased) ? SIM_LEASES : SIM_STEPS;
        if (sim_chance(world, by_hand))
            scene->lives[i] = SIM_HANDS;
    }
}

/* Another word about one thing. */
static void change_one(struct sim_world *world, struct semel_policy *policy)
{
    switch (sim_between(world, 0, 4)) {
    case 0:
        policy->effect = (enum semel_effect)sim_between(world, SEMEL_EFFECT_ATOMIC, SEMEL_EFFECT_KEYED);
        return;
    case 1:
        policy->first_version = policy->first_version == 1 ? SEMEL_FIRST_VERSION_ANY : 1;
        return;
    case 2:
        policy->retry_max = (int)sim_between(world, 1, 5);
        return;
    case 3:
        policy->lease_us = sim_between(world, 2, 8) * SIM_SECOND;
        return;
    default:
        policy->order = world->scene.mode == SEMEL_QUEUE_ORDERED || sim_chance(world, 500)
                            ? (enum semel_order)sim_between(world, SEMEL_ORDER_NONE, SEMEL_ORDER_VERSION)
                            : SEMEL_ORDER_VERSION;
        if (policy->order == SEMEL_ORDER_ARRIVAL && world->scene.mode != SEMEL_QUEUE_ORDERED)
            policy->order = SEMEL_ORDER_NONE;
    }
}

/* Where the order may change, whoever waits for versions for ever would do so by design. */
static void draw_settings(struct sim_world *world)
{
    struct sim_scene *scene = &world->scene;
    struct semel_error err;

    if (sim_chance(world, 400))
        scene->settings = sim_chance(world, 500) ? SIM_PERSONS : SIM_FILES;
    if (scene->settings != SIM_FIXED && scene->policy.on_gap == SEMEL_GAP_ALERT)
        scene->policy.on_gap = SEMEL_GAP_APPLY;
    scene->files[0] = scene->files[1] = scene->policy;
    for (int n = (int)sim_between(world, 1, 2); scene->settings == SIM_FILES && n > 0; n--)
        change_one(world, &scene->files[1]);
    if (semel__policy_check(&scene->files[1], &err) != SEMEL_OK)
        scene->files[1] = scene->policy;
}

static void draw_faults(struct sim_world *world)
{
    struct sim_faults *f = &world->scene.faults;

    *f = (struct sim_faults){.yield = (unsigned)sim_between(world, 50, 1000), .yield_in_tx = maybe(world, 500, 5, 300)};
    if (sim_chance(world, 50))
        return; /* a world in which nothing goes wrong */
    f->crash = maybe(world, 500, 1, 12);
    f->point_crash = maybe(world, 400, 2, 40);
    f->stall = maybe(world, 500, 1, 10);
    f->retry = maybe(world, 400, 1, 40);
    f->close = maybe(world, 400, 1, 20);
    f->unknown = maybe(world, 500, 5, 200);
    f->queue_error = maybe(world, 300, 5, 80);
    f->queue_close = maybe(world, 300, 2, 30);
    f->lost_ack = maybe(world, 400, 20, 400);
    f->redeliver = maybe(world, 600, 5, 80);
    f->conflict = maybe(world, 200, 5, 30);
    f->jump = maybe(world, 300, 2, 15);
    f->backward = maybe(world, 250, 2, 15);
    f->big_jump = world->scene.purge ? (unsigned)sim_between(world, 1, 6) : 0;
    f->handler_stall = maybe(world, 300, 2, 30);
    f->handler_world = maybe(world, 300, 5, 60);
    /* What is brought again comes last: one whose payload is with its source may wait for a key of one behind it. */
    if (!(world->scene.business && world->scene.policy.keep == SEMEL_KEEP_NEVER))
        f->backup = maybe(world, 250, 2, 20);
    f->restore = f->backup > 0 ? (unsigned)sim_between(world, 1, 6) : 0;
    f->sit = maybe(world, 300, 20, 200);
    f->set = world->scene.settings != SIM_FIXED ? (unsigned)sim_between(world, 50, 500) : 0;
}

static enum sim_kind draw_kind(struct sim_world *world, unsigned troubled)
{
    if (!sim_chance(world, troubled))
        return SIM_GOOD;
    return (enum sim_kind)sim_between(world, SIM_FLAKY, SIM_SLOW);
}

/* Versions ascend within a key, then some change places, so that they come early or late. */
static void draw_versions(struct sim_world *world)
{
    struct sim_scene *scene = &world->scene;
    unsigned shuffle = maybe(world, 700, 50, 500), skip = 0;
    int64_t last[SIM_KEYS] = {0};

    if (scene->policy.on_gap != SEMEL_GAP_ALERT)
        skip = maybe(world, 300, 20, 100);
    for (int i = 0; i < scene->n_events; i++) {
        struct sim_event *event = &world->events[i];
        last[event->key] += sim_chance(world, skip) ? sim_between(world, 0, 2) : 1;
        if (last[event->key] == 0)
            last[event->key] = 1;
        event->version = last[event->key];
    }
    for (int i = 0; i < scene->n_events; i++) {
        struct sim_event *one = &world->events[i];
        struct sim_event *other = &world->events[sim_between(world, i, scene->n_events - 1)];
        if (one->key != other->key || !sim_chance(world, shuffle))
            continue;
        int64_t version = one->version;
        one->version = other->version;
        other->version = version;
    }
}

static void draw_events(struct sim_world *world)
{
    struct sim_scene *scene = &world->scene;
    unsigned troubled = maybe(world, 800, 20, 450);
    unsigned shared = scene->business ? (unsigned)sim_between(world, 50, 500) : 0;
    int64_t at_us = world->now_us;

    for (int i = 0; i < scene->n_events; i++) {
        struct sim_event *event = &world->events[i];
        *event = (struct sim_event){.n = i, .owner = -1, .token = SEMEL_NONE};
        event->key = (int)sim_between(world, 0, scene->n_keys - 1);
        event->business = i > 0 && sim_chance(world, shared) ? (int)sim_between(world, 0, i - 1) : i;
        event->kind = draw_kind(world, troubled);
        event->trouble = (int)sim_between(world, 1, 3);
        event->transient = sim_chance(world, 500);
        if (sim_chance(world, 300))
            at_us += sim_between(world, 0, 2 * scene->chaos_us / scene->n_events);
        event->push_at_us = at_us;
    }
    draw_versions(world);
}

void sim_scene_draw(struct sim_world *world)
{
    struct sim_scene *scene = &world->scene;

    *scene = (struct sim_scene){.n_workers = (int)sim_between(world, 1, SIM_WORKERS),
                                .n_operators = (int)sim_between(world, 1, SIM_OPERATORS),
                                .n_tickers = sim_chance(world, 400) ? (int)sim_between(world, 1, SIM_TICKERS) : 0,
                                .n_events = (int)sim_between(world, 5, sim_chance(world, 300) ? SIM_EVENTS : 25),
                                .n_keys = (int)sim_between(world, 1, SIM_KEYS),
                                .chaos_us = sim_between(world, 10, 40) * SIM_SECOND};
    scene->two_sources = sim_chance(world, 300);
    draw_policy(world);
    draw_source(world);
    draw_settings(world);
    draw_lives(world);
    draw_faults(world);
    draw_events(world);
}

void sim_scene_describe(const struct sim_world *world, char *out, size_t size)
{
    static const char *const effects[] = {"atomic", "outside", "keyed"}, *const orders[] = {"none", "arrival",
                                                                                            "version"};
    static const char *const sets[] = {"", " persons,", " files,"};
    static const char *const gaps[] = {"dead", "apply", "alert"}, *const keeps[] = {"unfinished", "always", "never"};
    const struct sim_scene *s = &world->scene;
    const struct semel_policy *p = &s->policy;

    snprintf(out, size,
             "effect %s, order %s, gap %s, queue %s/%zu, workers %d, messages %d, keys %d, batch %zu, keep %s,%s%s%s%s "
             "retries %d, lease %llds, parked %lld/%lld",
             effects[p->effect], orders[p->order], gaps[p->on_gap],
             s->mode == SEMEL_QUEUE_ORDERED ? "ordered" : "unordered", s->partitions, s->n_workers, s->n_events,
             s->n_keys, s->batch_max, keeps[p->keep], s->business ? " business," : "", s->set ? " set," : "",
             s->purge ? " purge," : "", sets[s->settings], p->retry_max, (long long)(p->lease_us / SIM_SECOND),
             (long long)p->parked_key_max, (long long)p->parked_consumer_max);
}
