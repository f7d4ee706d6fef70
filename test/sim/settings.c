/* SPDX-License-Identifier: MIT
 *
 * settings.c: who says what the consumer promises, while its workers run.
 *
 * People say one thing after the other; workers then read what is stored, now and then, and go by it. Or each worker
 * has a file, of which there are two: it stores what the file says when it starts, and is held while that is refused,
 * or is not as stored; then it keeps house under what is stored (as src/daemon/route.c does).
 *
 * Invariants: what is refused changes nothing; what is allowed leaves no row behind that would mean something else.
 */
#include "sim.h"

#include <stdio.h>

#define ASK_US (10 * SIM_SECOND)
#define ARENA ((size_t)16 * SEMEL_SETTINGS_MAX)

/* ---- what is in use ---- */

static void name_fields(struct sim_actor *actor)
{
    const struct sim_scene *scene = &actor->world->scene;
    struct semel_rules *rules = &actor->rules;
    const struct semel_rule key = {SEMEL_RULE_HEADER, SEMEL_STR("key")};

    *rules = (struct semel_rules){.id = {SEMEL_RULE_HEADER, SEMEL_STR("id")}, .lock = key};
    if (actor->policy.order != SEMEL_ORDER_NONE)
        rules->order = key;
    if (actor->policy.order == SEMEL_ORDER_VERSION || scene->partitions > 2) /* also where it says nothing */
        rules->version = (struct semel_rule){SEMEL_RULE_HEADER, SEMEL_STR("version")};
    if (scene->business)
        rules->business[rules->n_business++] = (struct semel_rule){SEMEL_RULE_HEADER, SEMEL_STR("business")};
}

static void note_cap(struct sim_world *world, const struct semel_policy *policy)
{
    if (world->cap < policy->retry_max)
        world->cap = policy->retry_max;
    if (world->cap < policy->permanent_max)
        world->cap = policy->permanent_max;
}

static void note_use(struct sim_world *world, const struct semel_policy *policy)
{
    world->reordered |= (world->orders != 0 && world->orders != 1u << policy->order) ||
                        policy->first_version != world->scene.policy.first_version;
    world->effects |= 1u << policy->effect;
    world->orders |= 1u << policy->order;
}

static void use(struct sim_actor *actor, const struct semel_policy *policy)
{
    bool one_by_one = actor->policy.one_by_one;

    actor->policy = *policy;
    actor->policy.consumer = SEMEL_STR("c");
    actor->policy.one_by_one = one_by_one;
    actor->pump.put_only = actor->life == SIM_HANDS ||
                           (actor->life == SIM_LEASES && policy->effect != SEMEL_EFFECT_ATOMIC);
    name_fields(actor);
    note_cap(actor->world, policy);
    if (actor->role == SIM_WORKER)
        note_use(actor->world, policy);
}

static semel_status load(struct semel_store *store, struct semel_policy *ret, struct semel_error *err)
{
    struct semel_arena arena;

    semel__arena_init(&arena, ARENA);
    semel_status status = semel__consumer_load(store, SEMEL_STR("c"), &arena, ret, NULL, err);
    semel__arena_done(&arena);
    ret->consumer = SEMEL_STR("c");
    return status;
}

enum semel_effect sim_stored_effect(struct sim_world *world)
{
    struct semel_policy stored;
    struct semel_error err;

    if (load(world->eye, &stored, &err) != SEMEL_OK)
        sim_broken(world, "settings can be read", "%s", err.text);
    return stored.effect;
}

/* ---- a change ---- */

/* Rows that would mean something else. */
static bool speaks_against(const struct sim_event *event, const struct semel_policy *from,
                           const struct semel_policy *to)
{
    bool waits = event->state == SEMEL_ROW_WAITING || event->state == SEMEL_ROW_FAILED;
    bool sure = event->state == SEMEL_ROW_FAILED && event->attempts == 1 && event->error_class != SEMEL_CLASS_UNKNOWN &&
                event->error_class != SEMEL_CLASS_LEASE && event->error_class != SEMEL_CLASS_RELEASED;
    bool doubted = waits && event->attempts > 0 && !sure;

    if (!event->there)
        return false;
    if (to->one_source != from->one_source)
        return true;
    if (to->order < from->order && event->keyed && (waits || event->state == SEMEL_ROW_PROCESSING))
        return true;
    if (from->order == SEMEL_ORDER_VERSION && to->order != SEMEL_ORDER_VERSION && event->keyed && event->versioned &&
        (event->state == SEMEL_ROW_UNKNOWN || event->state == SEMEL_ROW_DEAD))
        return true;
    return from->effect == SEMEL_EFFECT_KEYED && to->effect != SEMEL_EFFECT_KEYED && doubted;
}

static void check_allowed(const struct sim_world *world, const struct semel_policy *from, const struct semel_policy *to)
{
    for (int i = 0; i < world->to_push; i++)
        if (speaks_against(&world->events[i], from, to))
            sim_broken(world, "rows mean what they meant", "a change was allowed against event %d, which is %s", i,
                       semel__row_status_name(world->events[i].state));
}

static bool same(const struct semel_policy *a, const struct semel_policy *b)
{
    return semel__policy_same(a, b) && a->retry_max == b->retry_max && a->permanent_max == b->permanent_max &&
           a->lease_us == b->lease_us && a->keep == b->keep && a->on_gap == b->on_gap &&
           a->retention_us == b->retention_us && a->parked_key_max == b->parked_key_max;
}

/* Nobody runs in between. */
static semel_status change(struct sim_actor *actor, struct semel_str settings, const struct semel_setter *by,
                           struct semel_setting *ret, struct semel_error *err)
{
    struct sim_world *world = actor->world;
    struct semel_policy before, after;
    struct semel_arena arena;
    const bool was_atomic = actor->atomic;

    actor->atomic = true;
    semel__arena_init(&arena, ARENA);
    if (load(world->eye, &before, err) != SEMEL_OK)
        sim_broken(world, "settings can be read", "%s", err->text);
    semel_status status = semel__consumer_change(actor->store, SEMEL_STR("c"), settings, by, &arena, ret, err);
    sim_trace(world, "%s sets %.*s: %s %s", actor->owner, (int)settings.n, settings.p, semel__status_name(status),
              status != SEMEL_OK ? err->text : "");
    if (world->committed != NULL)
        sim_watch(world);
    if (load(world->eye, &after, err) != SEMEL_OK)
        sim_broken(world, "settings can be read", "%s", err->text);
    note_cap(world, &after);
    world->reordered |= after.order != world->scene.policy.order ||
                        after.first_version != world->scene.policy.first_version;
    if (status == SEMEL_INVALID && !same(&before, &after))
        sim_broken(world, "what is refused changes nothing", "%.*s", (int)settings.n, settings.p);
    if (status == SEMEL_OK && !same(&ret->policy, &after))
        sim_broken(world, "settings are stored", "%.*s", (int)settings.n, settings.p);
    if (status == SEMEL_OK && !by->force)
        check_allowed(world, &before, &after);
    semel__arena_done(&arena);
    actor->atomic = was_atomic;
    return status;
}

/* ---- people ---- */

static const char *const effects[] = {"atomic", "outside", "keyed"}, *const orders[] = {"none", "arrival", "version"};

static void draw_change(struct sim_world *world, char *out, size_t size)
{
    static const char *const keeps[] = {"unfinished", "always"};
    enum semel_order order = (enum semel_order)sim_between(world, SEMEL_ORDER_NONE, SEMEL_ORDER_VERSION);

    if (order == SEMEL_ORDER_ARRIVAL && world->scene.mode != SEMEL_QUEUE_ORDERED)
        order = SEMEL_ORDER_NONE;
    switch (sim_between(world, 0, 8)) {
    case 0:
        snprintf(out, size, "{\"order\": \"%s\"}", orders[order]);
        return;
    case 1:
        snprintf(out, size, "{\"lease\": \"%ds\"}", (int)sim_between(world, 1, 8));
        return;
    case 2:
    case 3:
        snprintf(out, size, "{\"effect\": \"%s\"}", effects[sim_between(world, 0, 2)]);
        return;
    case 4:
        snprintf(out, size, "{\"retry_max\": %d}", (int)sim_between(world, 1, 6));
        return;
    case 5:
        snprintf(out, size, "{\"first_version\": %s}", sim_chance(world, 500) ? "1" : "\"any\"");
        return;
    case 6:
        snprintf(out, size, "{\"keep_payload\": \"%s\"}", keeps[sim_between(world, 0, 1)]);
        return;
    case 7:
        snprintf(out, size, "%s", sim_chance(world, 500) ? "{}" : "{\"permanent_max\": null}");
        return;
    default: /* where there are rows it is refused */
        snprintf(out, size, "{\"one_source\": %s}", world->events[0].there ? "true" : "false");
    }
}

/* Whoever gives a key or takes it away stops the processes first: one that does not know it yet would repeat a message
 * without its key, or have it repeated. */
void sim_stop_all(struct sim_world *world)
{
    for (int i = 0; i < world->n_actors; i++) {
        struct sim_actor *actor = &world->actors[i];
        if (actor->role == SIM_OPERATOR)
            continue;
        world->counts[SIM_STOPPED] += actor->alive && !actor->dead;
        actor->dead = true;
    }
}

static void draw_harmless(struct sim_world *world, char *out, size_t size)
{
    snprintf(out, size, "{\"retry_max\": %d}", (int)sim_between(world, 1, 6));
}

void sim_person_sets(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    bool marked = world->scene.settings == SIM_FILES;
    struct semel_setter by = {.who = semel__str(actor->owner), .reason = SEMEL_STR("it had to be")};
    struct semel_setting setting;
    struct semel_error err;
    char text[100];

    by.force = marked && sim_chance(world, 100);
    if (by.force)
        draw_harmless(world, text, sizeof text);
    else
        draw_change(world, text, sizeof text);
    if (strstr(text, "effect") != NULL) /* also where a file set it: another person may have forced something */
        sim_stop_all(world);
    semel_status status = change(actor, semel__str(text), &by, &setting, &err);
    if (status == SEMEL_OK)
        world->counts[setting.changed ? SIM_SETTINGS : SIM_SET_SAME]++;
    else if (status == SEMEL_INVALID)
        world->counts[SIM_SET_REFUSED]++;
    if (status == SEMEL_CLOSED || status == SEMEL_UNKNOWN)
        (void)semel_store_reopen(actor->store, &err);
}

/* ---- files ---- */

/* Whoever starts a process with a file that gives a key or takes it away has stopped the others. */
static void stop_others(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    const enum semel_effect from = sim_stored_effect(world), to = world->scene.files[actor->file].effect;

    if (from == to || (from != SEMEL_EFFECT_KEYED && to != SEMEL_EFFECT_KEYED))
        return;
    sim_stop_all(world);
    actor->dead = false;
}

static semel_status store_file(struct sim_actor *actor, struct semel_error *err)
{
    struct sim_world *world = actor->world;
    const struct semel_setter by = {.who = semel__str(actor->owner),
                                    .host = SEMEL_STR("h"),
                                    .file = actor->file == 0 ? SEMEL_STR("a.yaml") : SEMEL_STR("b.yaml")};
    struct semel_setting setting;
    struct semel_buf buf;

    stop_others(actor);
    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    semel__policy_write(&world->scene.files[actor->file], &buf);
    semel_status status = change(actor, semel__buf_str(&buf), &by, &setting, err);
    semel__buf_done(&buf);
    if (status == SEMEL_OK) {
        world->counts[SIM_SETTINGS] += setting.changed;
        actor->stored = true;
        actor->held = false;
    } else if (status == SEMEL_INVALID && setting.refused) {
        world->counts[SIM_FILE_REFUSED]++;
        world->counts[SIM_PAUSED] += !actor->held;
        actor->held = true;
        status = SEMEL_OK;
    }
    return status;
}

static semel_status compare(struct sim_actor *actor, struct semel_error *err)
{
    struct sim_world *world = actor->world;
    struct semel_policy stored;
    semel_status status = load(actor->store, &stored, err);

    if (status != SEMEL_OK)
        return status;
    bool held = !semel__policy_same(&stored, &actor->policy);
    world->counts[SIM_PAUSED] += held && !actor->held;
    world->counts[SIM_WENT_ON] += !held && actor->held;
    actor->held = held;
    return SEMEL_OK;
}

void sim_keep_house(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    struct semel_policy stored;
    struct semel_error err;
    size_t n;
    semel_status status = load(actor->store, &stored, &err);

    if (status == SEMEL_OK) {
        actor->inbox.policy = &stored;
        status = semel__inbox_recover(&actor->inbox, 40, &n, &err);
        if (status == SEMEL_OK && !actor->dead)
            status = semel__inbox_gaps(&actor->inbox, 40, &n, &err);
        if (status == SEMEL_OK && !actor->dead)
            status = semel__inbox_sweep(&actor->inbox, 40, &n, &err);
        if (status == SEMEL_OK && !actor->dead)
            status = semel__inbox_purge(&actor->inbox, 40, &n, &err);
        actor->inbox.policy = &actor->policy;
    }
    world->counts[SIM_HOUSES] += status == SEMEL_OK;
    actor->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
}

/* ---- rounds ---- */

void sim_settings_of(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;

    actor->file = sim_chance(world, 500);
    actor->stored = actor->held = actor->pump.store_down = false;
    actor->ask_us = world->now_us;
    actor->policy.one_by_one = actor->life == SIM_HANDS && sim_chance(world, 500);
    use(actor, world->scene.settings == SIM_FILES ? &world->scene.files[actor->file] : &world->scene.policy);
}

static semel_status ask(struct sim_actor *actor, struct semel_error *err)
{
    struct semel_policy stored;
    semel_status status;

    if (actor->world->scene.settings == SIM_FILES && actor->role == SIM_WORKER && !actor->world->quiet)
        return actor->stored ? compare(actor, err) : store_file(actor, err);
    status = load(actor->store, &stored, err); /* in the end all files say what is stored */
    if (status == SEMEL_OK) {
        use(actor, &stored);
        actor->held = false;
    }
    return status;
}

static bool connected(struct sim_actor *actor, struct semel_error *err)
{
    if (!actor->pump.store_down)
        return true;
    actor->pump.store_down = semel_store_reopen(actor->store, err) != SEMEL_OK;
    return !actor->pump.store_down;
}

bool sim_settings_round(struct sim_actor *actor)
{
    struct sim_world *world = actor->world;
    struct semel_error err;
    bool waits = actor->held || (world->scene.settings == SIM_FILES && !actor->stored);
    bool due = world->quiet || actor->role != SIM_WORKER || actor->ask_us <= world->now_us ||
               actor->ask_us > world->now_us + ASK_US;

    if (world->scene.settings == SIM_FIXED)
        return true;
    if (due && connected(actor, &err) && !actor->dead) {
        semel_status status = ask(actor, &err);
        actor->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
        if (status == SEMEL_OK)
            actor->ask_us = world->now_us + (actor->held ? ASK_US : sim_between(world, 0, 2 * SIM_SECOND));
        waits = actor->held || status != SEMEL_OK;
    }
    if (actor->dead)
        return false;
    if (actor->held && connected(actor, &err) && !actor->dead)
        sim_keep_house(actor);
    return !waits && !actor->held;
}

void sim_settings_open(struct sim_world *world)
{
    const struct semel_setter by = {.who = SEMEL_STR("first")};
    struct semel_setting setting;
    struct semel_arena arena;
    struct semel_error err;
    struct semel_buf buf;

    if (semel__store_mem_open(&world->eye, world->db, NULL, &err) != SEMEL_OK)
        sim_broken(world, "memory", "%s", err.text);
    if (world->scene.settings != SIM_PERSONS)
        return;
    semel__arena_init(&arena, ARENA);
    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    semel__policy_write(&world->scene.policy, &buf);
    if (semel__consumer_change(world->eye, SEMEL_STR("c"), semel__buf_str(&buf), &by, &arena, &setting, &err) !=
        SEMEL_OK)
        sim_broken(world, "settings are stored", "%s", err.text);
    semel__buf_done(&buf);
    semel__arena_done(&arena);
}

void sim_settings_close(struct sim_world *world)
{
    semel_store_close(world->eye);
}
