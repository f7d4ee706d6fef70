/* SPDX-License-Identifier: MIT
 *
 * settings.c: whether a route may run: only while what its file says of the consumer is what is stored (I24).
 *
 * The first worker of a route stores the file's settings. Where stored messages speak against them the route is held:
 * it takes nothing and calls nobody, but it keeps house under the settings that are stored, so that leases run out and
 * waiting versions are decided; and it asks again. A route that runs looks at every tick. When somebody else has stored
 * another order, effect, source rule or first version, it is held until they are again as its file says: of two files
 * the one that is not as stored pauses. It never writes them back by itself: two would do so in turn for ever.
 *
 * Invariants: only the first worker's thread decides; the others and the source read one flag. A held route lets what
 * runs end, and has its source closed once no worker can answer any more.
 */
#include <stdio.h>

#include "base/error.h"
#include "base/str.h"
#include "core/consumer.h"
#include "core/house.h"
#include "daemon/internal.h"
#include "ops/explain.h"

#define ASK_US (INT64_C(10) * 1000000)
#define HOUSE_ROWS 100

/* ---- reporting ----------------------------------------------------------------------------------- */

static void log_held(struct daemon_route *route, const char *why, const char *command)
{
    SEMEL__LOG(route->daemon->log, SEMEL_LOG_ERROR, "route held: its settings are not those that are stored",
               SEMEL_F_STR("consumer", route->conf->name), SEMEL_F_Z("error", why), SEMEL_F_Z("to_force", command));
}

/* Logged when it is news. */
static void hold(struct daemon_route *route, const char *why, const char *command)
{
    bool news;
    pthread_mutex_lock(&route->lock);
    news = strcmp(route->why_held, why) != 0;
    snprintf(route->why_held, sizeof route->why_held, "%s", why);
    pthread_mutex_unlock(&route->lock);
    atomic_store(&route->held, true);
    semel__stats_held(route->stats, true);
    semel__daemon_wake(route, true); /* nothing more is taken from here on */
    if (news)
        log_held(route, why, command);
}

static void let_run(struct daemon_route *route)
{
    bool was_reported;
    pthread_mutex_lock(&route->lock);
    was_reported = route->why_held[0] != '\0';
    route->why_held[0] = '\0';
    pthread_mutex_unlock(&route->lock);
    atomic_store(&route->held, false);
    semel__stats_held(route->stats, false);
    semel__daemon_wake(route, false);
    if (was_reported)
        SEMEL__LOG(route->daemon->log, SEMEL_LOG_INFO, "route resumes: its settings are stored",
                   SEMEL_F_STR("consumer", route->conf->name));
}

static void hold_refused(struct daemon_route *route, const struct semel_setting *now, const struct semel_error *err)
{
    struct semel_buf command;
    semel__buf_init(&command, (size_t)2 * SEMEL_SETTINGS_MAX);
    semel__buf_addz(&command, "semel consumer set ");
    semel__put_word(&command, route->conf->name);
    semel__buf_addz(&command, " ");
    semel__put_word(&command, now->change);
    semel__buf_addz(&command, " --force --reason '...' --store ");
    semel__put_word(&command, route->daemon->conf->store_said);
    semel__buf_add(&command, "", 1);
    hold(route, err->text, command.failed ? "semel consumer set --force --reason" : command.p);
    semel__buf_done(&command);
}

/* The first of the four that differs. */
static void hold_changed(struct daemon_route *route, const struct semel_policy *stored)
{
    static const char *const names[] = {"order", "effect", "one_source", "first_version"};
    char ours[32] = "", theirs[32] = "", why[160];
    const char *name = names[0];
    for (size_t i = 0; i < sizeof names / sizeof names[0] && strcmp(ours, theirs) == 0; i++) {
        name = names[i];
        semel__setting_show(&route->conf->policy, name, ours, sizeof ours);
        semel__setting_show(stored, name, theirs, sizeof theirs);
    }
    snprintf(why, sizeof why, "%s is %s in the route's file, and %s is stored", name, ours, theirs);
    hold(route, why, "");
}

/* ---- deciding ------------------------------------------------------------------------------------ */

static semel_status load(struct daemon_worker *worker, struct semel_policy *ret, struct semel_error *err)
{
    struct semel_arena arena;
    semel__arena_init(&arena, (size_t)4 * SEMEL_SETTINGS_MAX);
    semel_status status = semel__consumer_load(worker->store, worker->route->conf->name, &arena, ret, NULL, err);
    semel__arena_done(&arena);
    return status;
}

/* Stores the file's settings for C, SQL and the command line, or holds the route. */
static semel_status store_settings(struct daemon_worker *worker, struct semel_error *err)
{
    struct daemon_route *route = worker->route;
    const struct semel_daemon *daemon = route->daemon;
    const struct semel_setter by = {.who = semel__str(worker->owner),
                                    .reason = SEMEL_STR("the settings of a route's file"),
                                    .host = semel__str(daemon->host),
                                    .file = semel__str(daemon->options.file),
                                    .adopts = route->stored_only};
    struct semel_setting now;
    struct semel_arena arena;
    semel__arena_init(&arena, (size_t)8 * SEMEL_SETTINGS_MAX);
    semel_status status = semel__consumer_change(worker->store, route->conf->name, route->conf->settings, &by, &arena,
                                                 &now, err);
    if (status == SEMEL_OK) {
        if (now.changed)
            SEMEL__LOG(daemon->log, SEMEL_LOG_INFO, "the route's settings are stored",
                       SEMEL_F_STR("consumer", route->conf->name), SEMEL_F_STR("change", now.change),
                       SEMEL_F_Z("hint", now.hint != NULL ? now.hint : ""));
        route->stored = true;
        let_run(route);
    } else if (now.refused) {
        hold_refused(route, &now, err);
        status = SEMEL_OK;
    }
    semel__arena_done(&arena);
    return status;
}

static semel_status compare(struct daemon_worker *worker, struct semel_error *err)
{
    struct semel_policy stored;
    semel_status status = load(worker, &stored, err);
    if (status == SEMEL_INVALID) { /* nobody can say what the rows mean */
        hold(worker->route, err->text, "");
        return SEMEL_OK;
    }
    if (status != SEMEL_OK)
        return status;
    if (!semel__policy_same(&stored, &worker->route->conf->policy))
        hold_changed(worker->route, &stored);
    else if (atomic_load(&worker->route->held))
        let_run(worker->route);
    return SEMEL_OK;
}

semel_status semel__daemon_settings_ask(struct daemon_worker *worker, struct semel_error *err)
{
    semel_status status = worker->route->stored ? compare(worker, err) : store_settings(worker, err);
    worker->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    return status;
}

/* ---- held ---------------------------------------------------------------------------------------- */

/* What time does by itself, by the rules under which the rows were stored. */
static semel_status keep_house(struct daemon_worker *worker, size_t *ret_n, struct semel_error *err)
{
    struct semel_inbox *inbox = &worker->inbox;
    struct semel_policy stored;
    semel_status status = load(worker, &stored, err);
    *ret_n = 0;
    if (status != SEMEL_OK)
        return status == SEMEL_INVALID ? SEMEL_OK : status; /* the caller has reported it */
    stored.consumer = worker->route->conf->name;
    inbox->policy = &stored;
    status = semel__house_keep(inbox, HOUSE_ROWS, ret_n, err);
    inbox->policy = &worker->route->conf->policy;
    return status;
}

/* The first worker's round: what is due, and now and then the question. */
static void round_of_first(struct daemon_worker *worker)
{
    struct daemon_route *route = worker->route;
    struct semel_error err = {0};
    int64_t steady_us = semel__steady_us(), now_us = semel__now(&semel__clock_real);
    semel_status status = SEMEL_OK;
    size_t n = 0;
    if (steady_us < route->rest_us)
        return;
    if (worker->pump.store_down) {
        status = semel_store_reopen(worker->store, &err);
        worker->pump.store_down = status != SEMEL_OK;
    }
    if (status == SEMEL_OK && steady_us >= route->next_ask_us) {
        route->next_ask_us = steady_us + ASK_US;
        status = semel__daemon_settings_ask(worker, &err);
    }
    if (status == SEMEL_OK && atomic_load(&route->held) && semel__daemon_worker_wait_ms(worker, now_us) == 0) {
        status = keep_house(worker, &n, &err);
        semel__daemon_worker_ticked(worker, now_us, n == 0);
    }
    worker->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    if (status != SEMEL_OK)
        route->next_ask_us = 0; /* nobody has answered */
    route->rest_us = steady_us +
                     (int64_t)semel__daemon_worker_report(worker, status, &err) * 1000; /* others must not sleep here */
}

bool semel__daemon_settings_hold(struct daemon_worker *worker)
{
    struct daemon_route *route = worker->route;
    bool held = atomic_load(&route->held);
    if ((route->listens || route->stored_only) && worker->broker != NULL && worker->serves == held) {
        worker->serves = !held;
        if (route->listens)
            semel__ingest_serve(worker->broker, !held);
        if (worker->index == 0)
            semel__daemon_source_up(route, !held, NULL);
    }
    if (!held) {
        atomic_store(&worker->rests, false);
        return false;
    }
    if (worker->index == 0)
        round_of_first(worker);
    return true;
}

bool semel__daemon_settings_rest(const struct daemon_route *route)
{
    bool all = atomic_load(&route->held);
    for (size_t i = 0; all && i < route->n_workers; i++)
        all = route->workers[i].broker == NULL || atomic_load(&route->workers[i].rests) ||
              atomic_load(&route->workers[i].task.ended);
    return all;
}
