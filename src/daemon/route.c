/* SPDX-License-Identifier: MIT
 *
 * route.c: a route as a unit of the daemon: built from its settings, started, stopped, and shown; whether it may run;
 * its source thread; and its circuit breaker, with the lock that its workers share. The workers are in worker.c.
 *
 * Invariants: locks are taken in this order: the breaker's, then the handoff's or the endpoint's. Neither of those asks
 * the breaker while it has its own.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/eventfd.h>

#include "base/error.h"
#include "base/str.h"
#include "store/query.h"
#include "daemon/internal.h"
#include "core/consumer.h"
#include "core/house.h"
#include "ops/explain.h"
#include "daemon/positions.h"

#define ASK_US (INT64_C(10) * 1000000)
#define HOUSE_ROWS 100
#define POLL_MAX 2000
#define IDLE_MS 1000 /* the longest wait: for new deliveries, or for a stop */
#define BUSY_MS 10   /* while workers have something, their answers are due soon */
#define FULL_MS 100  /* the longest wait for room that is worth a poll */
#define HELD_MS 50
#define GAUGES_US 1000000
#define ARENA_MAX ((size_t)256 << 20)
#define COUNT_CAP 10000

/* ---- what its tasks share ------------------------------------------------------------------------ */

void semel__daemon_log(const struct daemon_route *route, enum semel_log_level level, const char *text,
                       semel_status status, const struct semel_error *err, int retry_ms)
{
    SEMEL__LOG(route->daemon->log, level, text, SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_Z("status", semel__status_name(status)), SEMEL_F_Z("class", semel__class_name(err->cls)),
               SEMEL_F_Z("error", err->text), SEMEL_F_INT("retry_ms", retry_ms > 0 ? retry_ms : SEMEL_NONE));
}

/* Workers that wait look around. `polls`: those that poll, too, or are about to: that poll delivers nothing. Any
 * thread. */
static void wake_workers(struct daemon_route *route, bool polls)
{
    const uint64_t one = 1;
    for (size_t i = 0; i < route->n_workers; i++) {
        struct daemon_worker *worker = &route->workers[i];
        while (write(worker->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
        if (polls && worker->broker != NULL)
            semel_broker_wake(worker->broker);
    }
}

/* Reports whether the source is connected; err: why not, where that is known. */
static void source_up(struct daemon_route *route, bool up, const struct semel_error *err)
{
    if (semel__task_set_up(&route->source, up, err != NULL ? err->text : NULL) != up)
        semel__stats_source_up(route->stats, up);
}

/* ==== may it run? ===================================================================================
 *
 * Only while what its file says of the consumer is what is stored (I24). The first worker of a route stores the file's
 * settings. Where stored messages speak against them the route is held: it takes nothing and calls nobody, but it keeps
 * house under the settings that are stored, so that leases run out and waiting versions are decided; and it asks again.
 * A route that runs looks at every tick. When somebody else has stored another order, effect, source rule or first
 * version, it is held until they are again as its file says: of two files the one that is not as stored pauses. It
 * never writes them back by itself: two would do so in turn for ever.
 *
 * Invariants: only the first worker's thread decides; the others and the source read one flag. A held route lets what
 * runs end, and has its source closed once no worker can answer any more.
 */

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
    wake_workers(route, true); /* nothing more is taken from here on */
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
    wake_workers(route, false);
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

/* Housekeeping (core/house.h), under the consumer's stored settings. */
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
            source_up(route, !held, NULL);
    }
    if (!held) {
        atomic_store(&worker->rests, false);
        return false;
    }
    if (worker->index == 0)
        round_of_first(worker);
    return true;
}

/* The route is held, and no worker has anything to answer. */
static bool settings_rest(const struct daemon_route *route)
{
    bool all = atomic_load(&route->held);
    for (size_t i = 0; all && i < route->n_workers; i++)
        all = route->workers[i].broker == NULL || atomic_load(&route->workers[i].rests) ||
              atomic_load(&route->workers[i].task.ended);
    return all;
}

/* ==== the source thread =============================================================================
 *
 * It polls the broker, hands deliveries to the workers, and applies their answers.
 *
 * Invariants: nothing but this thread touches the broker. It never waits for a worker: when the handoff is full it
 * keeps polling, for nothing, so that the membership, heartbeats and visibility are kept. It acknowledges only what a
 * worker has answered, and a worker answers after its commit.
 */

struct source {
    struct daemon_route *route;
    struct semel_broker *broker;
    struct semel_store *store; /* for positions that are kept there */
    struct semel_arena arena;
    struct semel_random rng;
    bool down;
    int failures;
    int64_t next_gauges_us;
};

static struct semel_daemon *daemon_of(const struct source *source)
{
    return source->route->daemon;
}

/* ---- answers ------------------------------------------------------------------------------------- */

/* FENCED is somebody else's delivery by now; anything else means that what we believe of the broker is not so, and
 * opening it anew makes everything unanswered come again. */
static bool apply(struct source *source, const struct semel_answered *answer)
{
    struct semel_error err = {0};
    semel_status status = semel_broker_answer(source->broker, answer->replies, answer->n, &err);
    if (status == SEMEL_OK || status == SEMEL_FENCED)
        return true;
    semel__daemon_log(source->route, SEMEL_LOG_WARN, "cannot acknowledge; reconnecting", status, &err, 0);
    source->down = true;
    return false;
}

static void apply_all(struct source *source, struct semel_answered *answers)
{
    while (answers != NULL) {
        struct semel_answered *answer = answers;
        answers = answer->next;
        if (!source->down && !semel__handoff_stale(source->route->handoff, answer))
            (void)apply(source, answer);
        semel__handoff_applied(source->route->handoff, answer);
    }
}

/* ---- connecting ---------------------------------------------------------------------------------- */

/* Reports the failure, and waits until it is time for the next try. */
static void wait_out(struct source *source, const char *text, semel_status status, const struct semel_error *err)
{
    int wait_ms = semel__daemon_backoff_ms(++source->failures, &source->rng);
    bool broken = err->cls == SEMEL_CLASS_BROKEN || status == SEMEL_INVALID;
    semel__daemon_log(source->route, broken ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN, text, status, err, wait_ms);
    source_up(source->route, false, err);
    semel__daemon_sleep(daemon_of(source), wait_ms);
}

static bool reopen(struct source *source)
{
    struct semel_error err = {0};
    semel_status status = semel_broker_reopen(source->broker, &err);
    if (status != SEMEL_OK) {
        wait_out(source, "cannot reach the source; retrying", status, &err);
        return false;
    }
    semel__handoff_invalidate(source->route->handoff);
    source->down = false;
    return true;
}

static void client_logs(void *ctx, int level, const char *facility, const char *text)
{
    struct daemon_route *route = ctx;
    SEMEL__LOG(route->daemon->log,
               level <= 3   ? SEMEL_LOG_WARN
               : level <= 5 ? SEMEL_LOG_INFO
                            : SEMEL_LOG_DEBUG,
               route->conf->from.kind->client_reports, SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_Z("facility", facility), SEMEL_F_Z("reported", text));
}

static semel_status open_driver(struct daemon_route *route, struct semel_broker **ret, struct semel_error *err)
{
    const struct semel_source *from = &route->conf->from;
    struct semel_positions *positions = atomic_load(&route->positions);
    struct semel_source_hooks hooks = {.log = client_logs, .log_ctx = route};
    if (from->kind->open == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this program was built without %s",
                           from->kind->name);
    if (positions != NULL) {
        hooks.assigned = semel__positions_assigned;
        hooks.revoked = semel__positions_revoked;
        hooks.ctx = positions;
    }
    return from->kind->open(ret, from->options, &hooks, err);
}

static bool open_broker(struct source *source)
{
    struct daemon_route *route = source->route;
    while (!semel__daemon_stopping(route->daemon)) {
        struct semel_error err = {0};
        semel__task_beat(&route->source);
        semel_status status = open_driver(route, &source->broker, &err);
        if (status == SEMEL_OK)
            return true;
        wait_out(source, "cannot open the source; retrying", status, &err);
    }
    return false;
}

/* Positions that are kept with the effects (I23) are asked for at every assignment, so they come first. */
static bool open_positions(struct source *source)
{
    struct daemon_route *route = source->route;
    bool wanted = semel__source_stores_positions(&route->conf->from);
    while (wanted && !semel__daemon_stopping(route->daemon)) {
        struct semel_error err = {0};
        semel__task_beat(&route->source);
        semel_status status = semel__daemon_open_store(route->daemon, &source->store, &err);
        if (status == SEMEL_OK) {
            atomic_store(&route->positions, semel__positions_new(source->store, route->conf->name));
            return atomic_load(&route->positions) != NULL;
        }
        wait_out(source, "cannot open the store for positions; retrying", status, &err);
    }
    return !wanted;
}

static void close_positions(struct source *source)
{
    semel__positions_free(atomic_exchange(&source->route->positions, NULL));
    semel_store_close(source->store);
}

/* Each delivery carries the epoch under which it was read; one that somebody raised means reading anew. */
static void stamp(struct source *source, struct semel_delivery *deliveries, size_t n)
{
    struct semel_positions *positions = atomic_load(&source->route->positions);
    if (positions == NULL)
        return;
    semel__positions_stamp(positions, deliveries, n);
    if (semel__positions_stale(positions))
        source->down = true;
}

static void check_positions(struct source *source)
{
    struct semel_positions *positions = atomic_load(&source->route->positions);
    struct semel_error err = {0};
    semel_status status = positions != NULL ? semel__positions_check(positions, &err) : SEMEL_OK;
    if (status != SEMEL_OK)
        semel__daemon_log(source->route, SEMEL_LOG_WARN, "cannot check the positions", status, &err, 0);
}

static void update_gauges(struct source *source)
{
    int64_t now_us = semel__steady_us();
    if (now_us < source->next_gauges_us)
        return;
    source->next_gauges_us = now_us + GAUGES_US;
    size_t out;
    struct semel_source_gauges gauges = {-1, -1, -1};
    (void)semel__handoff_room(source->route->handoff, &out);
    if (source->route->conf->from.kind->gauges != NULL)
        source->route->conf->from.kind->gauges(source->broker, &gauges);
    check_positions(source);
    semel__stats_source(source->route->stats, out, gauges.behind, gauges.assigned, gauges.stopped);
}

/* ---- a turn -------------------------------------------------------------------------------------- */

/* What the server refuses may be fixed there, so INVALID means opening anew as well; but not while there is something
 * that can still be acknowledged. */
static void polled(struct source *source, semel_status status, const struct semel_error *err)
{
    size_t out;
    if (status == SEMEL_OK) {
        source->failures = 0;
        source_up(source->route, true, NULL);
        return;
    }
    (void)semel__handoff_room(source->route->handoff, &out);
    source->down |= status == SEMEL_CLOSED || (status == SEMEL_INVALID && out == 0);
    wait_out(source, "cannot poll the source; retrying", status, err);
}

/* Applies what was answered. Each poll has a batch of its own, and one for a handful is mostly waste: while the
 * workers have plenty, room is left to grow. */
static size_t collect(struct source *source, size_t *ret_out)
{
    struct semel_handoff *handoff = source->route->handoff;
    size_t room = semel__handoff_room(handoff, ret_out);
    int64_t until_us = semel__steady_us() + FULL_MS * 1000;
    for (;;) {
        bool wait = room == 0 || room < *ret_out / 8;
        apply_all(source, semel__handoff_answers(handoff, wait ? BUSY_MS : 0));
        source->down |= semel__handoff_wants_reopen(handoff);
        room = semel__handoff_room(handoff, ret_out);
        if (!wait || source->down || semel__steady_us() >= until_us || semel__daemon_stopping(daemon_of(source)))
            return room;
    }
}

static void turn(struct source *source)
{
    struct semel_handoff *handoff = source->route->handoff;
    struct semel_error err = {0};
    struct semel_delivery *deliveries;
    size_t n = 0, out, room = collect(source, &out);
    if (source->down && !reopen(source))
        return;
    size_t max = room < POLL_MAX ? room : POLL_MAX;
    semel__arena_reset(&source->arena);
    semel_status status = semel_broker_poll(source->broker, max,
                                            room == 0 ? 0
                                            : out > 0 ? BUSY_MS
                                                      : IDLE_MS,
                                            &source->arena, &deliveries, &n, &err);
    if (status == SEMEL_OK)
        stamp(source, deliveries, n);
    if (status == SEMEL_OK && n > 0 && !source->down) {
        status = semel__handoff_give_take(handoff, &source->arena, deliveries, n, &err);
        source->down |= status != SEMEL_OK; /* no memory to hand them out: they come again */
    }
    polled(source, status, &err);
    update_gauges(source);
}

static bool workers_ended(const struct daemon_route *route)
{
    for (size_t i = 0; i < route->n_workers; i++)
        if (!semel__task_over(&route->workers[i].task))
            return false;
    return true;
}

static void keep_alive(struct source *source)
{
    struct semel_delivery *deliveries;
    struct semel_error err = {0};
    size_t n;
    semel__arena_reset(&source->arena);
    if (!source->down && semel_broker_poll(source->broker, 0, 0, &source->arena, &deliveries, &n, &err) == SEMEL_CLOSED)
        source->down = true;
}

/* Waits until the workers have finished and answered the messages that they run. */
static void finish(struct source *source)
{
    while (!workers_ended(source->route)) {
        semel__task_beat(&source->route->source);
        apply_all(source, semel__handoff_answers(source->route->handoff, BUSY_MS));
        keep_alive(source);
    }
    apply_all(source, semel__handoff_answers(source->route->handoff, 0));
}

/* ---- a route that is held ------------------------------------------------------------------------ */

/* Nothing is read before the route may run: others may have the partitions. */
static bool wait_to_run(struct source *source)
{
    while (!semel__daemon_stopping(daemon_of(source)) && atomic_load(&source->route->held)) {
        semel__task_beat(&source->route->source);
        semel__daemon_sleep(daemon_of(source), HELD_MS);
    }
    return !semel__daemon_stopping(daemon_of(source));
}

/* An answer must not meet the tags of another connection: the source stays open until nobody has one left. */
static bool let_go(struct source *source)
{
    while (!semel__daemon_stopping(daemon_of(source)) && atomic_load(&source->route->held)) {
        bool rest = settings_rest(source->route);
        semel__task_beat(&source->route->source);
        apply_all(source, semel__handoff_answers(source->route->handoff, rest ? 0 : BUSY_MS));
        if (rest && settings_rest(source->route))
            return true;
        keep_alive(source);
    }
    return false;
}

static void close_broker(struct source *source)
{
    semel__handoff_set_source(source->route->handoff, NULL);
    semel_broker_close(source->broker);
    source->broker = NULL;
    source->down = false;
    semel__handoff_invalidate(source->route->handoff);
    source_up(source->route, false, NULL);
}

/* Until it stops, or the route is held. */
static void serve(struct source *source)
{
    struct daemon_route *route = source->route;
    SEMEL__LOG(route->daemon->log, SEMEL_LOG_INFO, "source open", SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_Z("kind", route->conf->from.kind->name));
    semel__handoff_set_source(route->handoff, source->broker);
    while (!semel__daemon_stopping(route->daemon)) {
        semel__task_beat(&route->source);
        if (atomic_load(&route->held) && let_go(source))
            break;
        turn(source);
    }
    if (semel__daemon_stopping(route->daemon))
        finish(source);
    close_broker(source);
}

/* The bodies of tasks. */
static void source_run(void *arg)
{
    struct source source = {.route = arg};
    struct daemon_route *route = arg;
    semel__random_seed_os(&source.rng);
    semel__arena_init(&source.arena, ARENA_MAX);
    if (wait_to_run(&source) && open_positions(&source))
        while (wait_to_run(&source) && open_broker(&source))
            serve(&source);
    close_positions(&source);
    semel__arena_done(&source.arena);
    source_up(route, false, NULL);
}

/* ==== the unit ====================================================================================== */

/* ---- the circuit breaker -------------------------------------------------------------------------- */

static void lock(void *ctx)
{
    struct daemon_route *route = ctx;
    pthread_mutex_lock(&route->breaker_lock);
}

static void unlock(void *ctx)
{
    struct daemon_route *route = ctx;
    pthread_mutex_unlock(&route->breaker_lock);
}

static void log_open(const struct daemon_route *route, enum semel_log_level level, const char *text,
                     const struct semel_breaker *now)
{
    SEMEL__LOG(route->daemon->log, level, text, SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_INT("failures", now->failures), SEMEL_F_Z("cause", semel__class_name(now->cause)),
               SEMEL_F_Z("why", route->breaker.why), /* its lock is held */
               SEMEL_F_INT("until_ms", now->next_us / 1000));
}

/* A probe that met nothing is no news, one that failed is. */
static void log_change(struct daemon_route *route, enum semel_breaker_state before, const struct semel_breaker *now)
{
    if (now->state == SEMEL_BREAKER_CLOSED)
        SEMEL__LOG(route->daemon->log, SEMEL_LOG_INFO, "circuit breaker closed; the route resumes",
                   SEMEL_F_STR("consumer", route->conf->name));
    else if (before == SEMEL_BREAKER_CLOSED)
        log_open(route, SEMEL_LOG_ERROR, "circuit breaker open: the route pauses and probes", now);
    else if (now->state == SEMEL_BREAKER_OPEN && now->openings != route->openings)
        log_open(route, SEMEL_LOG_WARN, "probe failed; the circuit breaker stays open", now);
    route->openings = now->openings;
}

static void changed(void *ctx, enum semel_breaker_state before, const struct semel_breaker *now)
{
    struct daemon_route *route = ctx;
    semel__stats_breaker(route->stats, now->state);
    log_change(route, before, now);
    if (route->listens)
        semel__serve_paused(route->daemon->serve, route->conf, now);
    if (now->state != SEMEL_BREAKER_PROBING)
        wake_workers(route, false); /* a probe that met nothing must not end the next one */
}

static void breaker_init(struct daemon_route *route)
{
    const struct semel_route *conf = route->conf;
    semel__route_breaker_init(&route->breaker, (int)conf->breaker.failures, conf->breaker.first_us,
                              conf->breaker.ceiling_us);
    route->breaker.ctx = route;
    route->breaker.lock = lock;
    route->breaker.unlock = unlock;
    route->breaker.changed = changed;
}

/* ---- building ------------------------------------------------------------------------------------ */

static struct daemon_route *route_of(struct semel_unit *unit)
{
    return (struct daemon_route *)unit;
}

/* Beside the batch that it works on, the next one of each worker waits. */
static size_t in_flight(const struct semel_route *conf)
{
    const struct semel_source *from = &conf->from;
    size_t wanted = (size_t)(2 * conf->workers * conf->batch);
    return from->kind->in_flight != NULL ? from->kind->in_flight(from->options, wanted) : wanted;
}

static semel_status build_worker(struct daemon_route *route, size_t i, bool pulls, struct semel_random *rng,
                                 struct semel_error *err)
{
    struct daemon_worker *worker = &route->workers[i];
    struct semel_str name = route->conf->name;
    worker->route = route;
    worker->index = i;
    route->n_workers++;
    snprintf(worker->owner, sizeof worker->owner, "%s/%ld/%08x/%zu", route->daemon->host, (long)getpid(),
             (unsigned)semel__random_next(rng), i);
    if (pulls)
        semel__task_add(&route->daemon->tasks, &worker->task, "pull of route %.*s", (int)name.n, name.p);
    else
        semel__task_add(&route->daemon->tasks, &worker->task, "worker %zu of route %.*s", i, (int)name.n, name.p);
    worker->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    worker->stats = semel__stats_worker(route->stats);
    if (!pulls)
        worker->broker = route->listens ? semel__serve_ingest(route->daemon->serve, route->conf)
                                        : semel__handoff_queue(route->handoff, i);
    if (worker->wake_fd < 0 || worker->stats == NULL || (worker->broker == NULL && !pulls))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no memory or descriptors for a route");
    return SEMEL_OK;
}

static semel_status build_workers(struct daemon_route *route, struct semel_error *err)
{
    const struct semel_route *conf = route->conf;
    bool pull = conf->handler.kind == SEMEL_DO_PULL;
    bool outside = conf->handler.kind == SEMEL_DO_HTTP || conf->handler.kind == SEMEL_DO_EXEC;
    /* A worker that moves a position gets all of a partition. */
    bool lanes = conf->policy.order != SEMEL_ORDER_NONE || semel__source_stores_positions(&conf->from);
    size_t n = outside || (pull && route->stored_only) ? 1 : (size_t)conf->workers;
    semel_status status = SEMEL_OK;
    struct semel_random rng;
    semel__random_seed_os(&rng);
    if (!route->listens)
        status = semel__handoff_new(&route->handoff, n, in_flight(conf), lanes, err);
    if (status != SEMEL_OK)
        return status;
    route->workers = semel__calloc(n + pull, sizeof *route->workers);
    if (route->workers == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < n + pull; i++)
        status = build_worker(route, i, i == n, &rng, err);
    return status;
}

static semel_status build_route(struct semel_daemon *daemon, const struct semel_route *conf, struct semel_error *err)
{
    struct daemon_route *route = semel__calloc(1, sizeof *route);
    if (route == NULL)
        return semel__fail_memory(err);
    route->unit.kind = &semel__daemon_routes;
    semel__daemon_add(daemon, &route->unit); /* from here on it is freed with the others */
    route->daemon = daemon;
    route->conf = conf;
    route->listens = semel__route_listens(conf) != NULL;
    route->stored_only = semel__route_stored(conf);
    route->held = true; /* until its settings are stored */
    pthread_mutex_init(&route->lock, NULL);
    pthread_mutex_init(&route->breaker_lock, NULL);
    breaker_init(route);
    semel__task_add(&daemon->tasks, &route->source, "source of route %.*s", (int)conf->name.n, conf->name.p);
    route->stats = semel__stats_route(daemon->stats, conf->name, conf->promise.label.text);
    if (route->stats == NULL)
        return semel__fail_memory(err);
    if (conf->handler.kind == SEMEL_DO_PULL && (route->pull = semel__serve_pull(daemon->serve, conf)) == NULL)
        return semel__fail_memory(err);
    return build_workers(route, err);
}

static semel_status build(struct semel_daemon *daemon, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < daemon->conf->n_routes; i++)
        status = build_route(daemon, &daemon->conf->routes[i], err);
    return status;
}

static void free_route(struct semel_unit *unit)
{
    struct daemon_route *route = route_of(unit);
    for (size_t i = 0; i < route->n_workers; i++) {
        struct daemon_worker *worker = &route->workers[i];
        if (route->listens && worker->broker != NULL)
            semel_broker_close(worker->broker);
        if (worker->wake_fd >= 0)
            close(worker->wake_fd);
    }
    semel__handoff_free(route->handoff);
    semel__free(route->workers);
    pthread_mutex_destroy(&route->breaker_lock);
    pthread_mutex_destroy(&route->lock);
    semel__free(route);
}

/* ---- starting and stopping ------------------------------------------------------------------------ */

static semel_status start(struct semel_unit *unit, struct semel_error *err)
{
    struct daemon_route *route = route_of(unit);
    const struct semel_route *conf = route->conf;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < route->n_workers; i++)
        status = semel__daemon_worker_start(&route->workers[i], err);
    if (status == SEMEL_OK && !route->listens && !route->stored_only)
        status = semel__task_start(&route->source, "source", source_run, route, err);
    SEMEL__LOG(route->daemon->log, SEMEL_LOG_INFO, "route starts", SEMEL_F_STR("consumer", conf->name),
               SEMEL_F_Z("from", conf->from.kind->name), SEMEL_F_Z("do", semel__do_name(conf->handler.kind)),
               SEMEL_F_Z("guarantee", conf->promise.label.text),
               SEMEL_F_Z("order", semel__order_rests_name(conf->promise.order)), SEMEL_F_INT("workers", conf->workers));
    return status;
}

static void stop(struct semel_unit *unit)
{
    struct daemon_route *route = route_of(unit);
    if (route->handoff != NULL)
        semel__handoff_wake_source(route->handoff);
    wake_workers(route, true);
}

/* ---- what others may know ------------------------------------------------------------------------ */

static bool store_up(const struct daemon_route *route)
{
    for (size_t i = 0; i < route->n_workers; i++)
        if (!atomic_load(&route->workers[i].task.up))
            return false;
    return true;
}

/* Whoever reads it needs no token: an error's text has neither ids nor secrets in it. */
/* The first worker that is not up, and why. false: all are. */
static bool worker_down(struct daemon_route *route, char down[SEMEL_TASK_WHY])
{
    for (size_t i = 0; i < route->n_workers; i++)
        if (!atomic_load(&route->workers[i].task.up)) {
            semel__task_why(&route->workers[i].task, down);
            return true;
        }
    return false;
}

static enum semel_unit_ready ready(struct semel_unit *unit, struct semel_buf *why)
{
    struct daemon_route *route = route_of(unit);
    const char *what = NULL;
    char down[SEMEL_TASK_WHY] = "";
    if (worker_down(route, down))
        what = "the store is not connected, or the handler cannot be used";
    else if (!atomic_load(&route->source.up)) {
        what = "the source is not connected";
        semel__task_why(&route->source, down);
    }
    bool held = atomic_load(&route->held);
    pthread_mutex_lock(&route->lock);
    held = held && route->why_held[0] != '\0';
    if (held) {
        what = "its settings are not those that are stored";
        memcpy(down, route->why_held, sizeof down);
    }
    pthread_mutex_unlock(&route->lock);
    if (what == NULL)
        return SEMEL_UNIT_READY;
    semel__buf_addf(why, "%sroute %.*s: %s%s%s", why->n > 0 ? "; " : "", (int)route->conf->name.n, route->conf->name.p,
                    what, down[0] != '\0' ? ": " : "", down);
    return held ? SEMEL_UNIT_HELD : SEMEL_UNIT_STARTING;
}

static void json(struct semel_unit *unit, struct semel_buf *buf)
{
    static const char *const states[] = {"closed", "open", "probing"};
    const struct daemon_route *route = route_of(unit);
    const struct semel_route *conf = route->conf;
    semel__buf_addf(buf,
                    "{\"name\":\"%.*s\",\"source\":\"%s\",\"handler\":\"%s\",\"guarantee\":\"%s\","
                    "\"order\":\"%s\",\"breaker\":\"%s\",\"source_up\":%s,\"store_up\":%s,\"held\":%s}",
                    (int)conf->name.n, conf->name.p, conf->from.kind->name, semel__do_name(conf->handler.kind),
                    conf->promise.label.text, semel__order_rests_name(conf->promise.order),
                    states[semel__route_breaker_read(&route->breaker).state],
                    atomic_load(&route->source.up) ? "true" : "false", store_up(route) ? "true" : "false",
                    atomic_load(&route->held) ? "true" : "false");
}

static semel_status count(struct semel_unit *unit, struct semel_store *store, struct semel_arena *arena,
                          struct semel_error *err)
{
    struct daemon_route *route = route_of(unit);
    struct semel_count *counts;
    size_t n;
    semel_status status = semel_query_counts(store, route->conf->name, COUNT_CAP, 0, arena, &counts, &n, err);
    if (status == SEMEL_OK)
        semel__stats_rows(route->stats, counts, n, semel__now(&semel__clock_real));
    return status;
}

const struct semel_unit_kind semel__daemon_routes = {
    .section = "routes",
    .build = build,
    .start = start,
    .stop = stop,
    .ready = ready,
    .json = json,
    .count = count,
    .free = free_route,
};
