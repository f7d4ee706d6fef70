/* SPDX-License-Identifier: MIT
 *
 * daemon.c: builds the units, starts their tasks, waits for signals, and stops everything in the order in which nothing
 * is lost.
 *
 * Besides the tasks of units there are four: `http` runs the server's loop, `counts` counts rows for the gauges by
 * bounded queries, on a connection of its own, so that who measures is in no worker's way (P44), `house` keeps house
 * for consumers that are no routes and for idempotency keys, and `api` answers operators, on a connection of
 * its own; on SQLite, which has one per process, on a handle of its own, so that a long list holds workers up for as
 * long as it is read.
 */
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include <stdio.h>

#include "daemon/daemon.h"
#include "base/error.h"
#include "base/str.h"
#include "daemon/internal.h"
#include "store/query.h"
#include "core/house.h"

#define ROWS 1000
#define PAUSE_US INT64_C(1000000) /* between rounds, at least */
#define QUIET_MAX 3               /* up to eight times as long where nothing happens */
#define TURN_MS 500
#define STOP_TURN_MS 20
#define LAST_US (INT64_C(2) * 1000000) /* what is given up needs some time to be recorded */
#define API_WAIT_MS 200
#define COUNT_EVERY_MS 5000
#define KEYS_CAP 10000
#define COUNT_ARENA_MAX ((size_t)16 << 20)

static const struct semel_unit_kind *const kinds[] = {&semel__daemon_routes, &semel__daemon_outboxes,
                                                      &semel__daemon_gateways};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* ---- what units share ---------------------------------------------------------------------------- */

void semel__daemon_add(struct semel_daemon *daemon, struct semel_unit *unit)
{
    unit->daemon = daemon;
    *daemon->units_end = unit;
    daemon->units_end = &unit->next;
    daemon->n_units++;
}

bool semel__daemon_stopping(const struct semel_daemon *daemon)
{
    return atomic_load(&daemon->stopping);
}

bool semel__daemon_doze(struct semel_daemon *daemon, int ms, const atomic_bool *roused)
{
    int64_t until_us = semel__steady_us() + (int64_t)ms * 1000;
    pthread_mutex_lock(&daemon->lock);
    while (!semel__daemon_stopping(daemon) && !(roused != NULL && atomic_load(roused)) &&
           semel__cond_wait(&daemon->stops, &daemon->lock, until_us))
        ;
    pthread_mutex_unlock(&daemon->lock);
    return roused != NULL && atomic_load(roused);
}

void semel__daemon_sleep(struct semel_daemon *daemon, int ms)
{
    (void)semel__daemon_doze(daemon, ms, NULL);
}

void semel__daemon_rouse(struct semel_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    pthread_cond_broadcast(&daemon->stops);
    pthread_mutex_unlock(&daemon->lock);
}

int semel__daemon_backoff_ms(int failures, struct semel_random *rng)
{
    int shift = failures < 8 ? failures : 8;
    int limit = 50 << shift;
    limit = limit < 5000 ? limit : 5000;
    return limit / 2 + (int)semel__random_below(rng, (uint64_t)limit / 2 + 1);
}

semel_status semel__daemon_open_store(struct semel_daemon *daemon, struct semel_store **ret, struct semel_error *err)
{
    struct semel_store_options options = {0};
    semel_status status = SEMEL_OK;
    if (daemon->conf->store_kind != SEMEL_CONF_STORE_SQLITE)
        return semel_store_open(ret, daemon->options.stores, daemon->conf->store.p, &options, err);
    if (daemon->shared == NULL) /* the first, before there are threads */
        status = semel__share_open(&daemon->shared, daemon->options.stores, daemon->conf->store.p, &options, err);
    if (status != SEMEL_OK)
        return status;
    *ret = semel__share_handle(daemon->shared);
    return *ret != NULL ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- what the HTTP server asks ------------------------------------------------------------------- */

static bool alive(void *ctx, struct semel_buf *why)
{
    const struct semel_daemon *daemon = ctx;
    const struct semel_task *stuck = semel__tasks_stuck(&daemon->tasks, semel__steady_us());
    if (stuck != NULL)
        semel__buf_addf(why, "%s has not moved for three minutes", stuck->name);
    return stuck == NULL;
}

/* The least ready of all units. */
static enum semel_unit_ready least_ready(const struct semel_daemon *daemon, struct semel_buf *why)
{
    enum semel_unit_ready least = SEMEL_UNIT_READY;
    for (struct semel_unit *unit = daemon->units; unit != NULL; unit = unit->next) {
        enum semel_unit_ready ready = unit->kind->ready(unit, why);
        least = ready < least ? ready : least;
    }
    return least;
}

static bool ready(void *ctx, struct semel_buf *why)
{
    const struct semel_daemon *daemon = ctx;
    if (semel__daemon_stopping(daemon)) {
        semel__buf_addz(why, "stopping");
        return false;
    }
    return least_ready(daemon, why) == SEMEL_UNIT_READY;
}

static void list(const struct semel_daemon *daemon, const struct semel_unit_kind *kind, struct semel_buf *json)
{
    const char *before = "";
    for (struct semel_unit *unit = daemon->units; unit != NULL; unit = unit->next) {
        if (unit->kind != kind)
            continue;
        semel__buf_addz(json, before);
        unit->kind->json(unit, json);
        before = ",";
    }
}

static void list_routes(void *ctx, struct semel_buf *json)
{
    list(ctx, &semel__daemon_routes, json);
}

static void list_outboxes(void *ctx, struct semel_buf *json)
{
    list(ctx, &semel__daemon_outboxes, json);
}

static void list_gateways(void *ctx, struct semel_buf *json)
{
    list(ctx, &semel__daemon_gateways, json);
}

static void http_turns(void *ctx)
{
    struct semel_daemon *daemon = ctx;
    semel__task_beat(&daemon->http);
}

/* ---- housekeeping for others ----------------------------------------------------------------------
 *
 * A task keeps house (core/house.h) for consumers that are no routes of this file, and for idempotency keys. So the
 * messages of a program that uses SQL alone get their leases recovered, their gaps decided and their old rows purged
 * wherever a daemon runs. No handler runs here: nobody but the program itself can do that.
 *
 * It has a connection of its own, so that it is in no worker's way; `schedule.others: false` turns it off. The first
 * worker of each route keeps house for that route. Rounds are bounded, at most ROWS rows each; a failure is logged
 * once, and tried again. */

struct others {
    struct semel_daemon *daemon;
    struct semel_store *store;
    struct semel_random rng;
    struct semel_house house;
    char owner[128];
    char said[sizeof((struct semel_error){0}.text)]; /* of the consumer that was reported last */
    int failures, quiet;
    bool down; /* the connection is to be made anew */
};

static bool is_no_route(void *ctx, struct semel_str consumer)
{
    const struct semel_conf *conf = ((const struct others *)ctx)->daemon->conf;
    for (size_t i = 0; i < conf->n_routes; i++)
        if (semel__str_eq(conf->routes[i].name, consumer))
            return false;
    return true;
}

/* A consumer whose settings cannot be read is news once. */
static void report(struct others *o, const struct semel_house_round *round, size_t keys)
{
    const char *damage = round->damage.status != SEMEL_OK ? round->damage.text : "";
    if (round->n + keys > 0)
        SEMEL__LOG(o->daemon->log, SEMEL_LOG_DEBUG, "housekeeping of other consumers",
                   SEMEL_F_INT("recovered", round->done[SEMEL_HOUSE_RECOVERED]),
                   SEMEL_F_INT("decided", round->done[SEMEL_HOUSE_DECIDED]),
                   SEMEL_F_INT("woken", round->done[SEMEL_HOUSE_WOKEN]),
                   SEMEL_F_INT("purged", round->done[SEMEL_HOUSE_PURGED]), SEMEL_F_INT("keys", keys));
    if (damage[0] != '\0' && strcmp(damage, o->said) != 0)
        SEMEL__LOG(o->daemon->log, SEMEL_LOG_WARN, "no housekeeping for a consumer", SEMEL_F_Z("error", damage));
    snprintf(o->said, sizeof o->said, "%s", damage);
}

/* *ret_full: there is more to do. */
static semel_status run_round(struct others *o, bool *ret_full, struct semel_error *err)
{
    struct semel_house_round round = {.wants = is_no_route, .ctx = o, .max = ROWS};
    size_t keys = 0;
    semel_status status = SEMEL_OK;
    if (o->store == NULL) {
        status = semel__daemon_open_store(o->daemon, &o->store, err);
        if (status != SEMEL_OK)
            return status;
        semel__house_init(&o->house, o->store, &o->rng, semel__str(o->owner));
    }
    if (o->down)
        status = semel_store_reopen(o->store, err);
    o->down = status != SEMEL_OK;
    if (status == SEMEL_OK)
        status = semel__house_round(&o->house, &round, err);
    if (status == SEMEL_OK)
        status = semel__house_keys(&o->house, ROWS, &keys, err);
    o->down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    report(o, &round, keys);
    *ret_full = round.n >= ROWS || keys >= ROWS;
    o->quiet = round.n + keys > 0 ? 0 : o->quiet < QUIET_MAX ? o->quiet + 1 : QUIET_MAX;
    return status;
}

static int pause_ms(const struct others *o)
{
    int64_t every_us = o->daemon->conf->schedule.every_us;
    return (int)(((every_us > PAUSE_US ? every_us : PAUSE_US) << o->quiet) / 1000);
}

static void keep_house(void *arg)
{
    struct others o = {.daemon = arg};
    semel__random_seed_os(&o.rng);
    snprintf(o.owner, sizeof o.owner, "%s/%ld/house", o.daemon->host, (long)getpid());
    while (!semel__daemon_stopping(o.daemon)) {
        struct semel_error err = {0};
        bool full = false;
        semel__task_beat(&o.daemon->others);
        semel_status status = run_round(&o, &full, &err);
        int wait_ms = full ? 0 : pause_ms(&o);
        if (status != SEMEL_OK) {
            wait_ms = semel__daemon_backoff_ms(++o.failures, &o.rng);
            if (o.failures == 1)
                SEMEL__LOG(o.daemon->log, SEMEL_LOG_WARN, "cannot keep house for other consumers; retrying",
                           SEMEL_F_Z("error", err.text), SEMEL_F_INT("retry_ms", wait_ms));
        } else
            o.failures = 0;
        semel__daemon_sleep(o.daemon, wait_ms);
    }
    if (o.store != NULL)
        semel__house_done(&o.house);
    semel_store_close(o.store);
}

/* ---- life ---------------------------------------------------------------------------------------- */

/* A store that is not fit is a mistake that somebody must fix; one that cannot be reached may come back. */
static semel_status try_store(struct semel_daemon *daemon, struct semel_error *err)
{
    struct semel_store *store = NULL;
    struct semel_error why = {0};
    semel_status status = semel__daemon_open_store(daemon, &store, &why);
    semel_store_close(store);
    if (status == SEMEL_OK)
        return SEMEL_OK;
    bool sqlite = daemon->conf->store_kind == SEMEL_CONF_STORE_SQLITE;
    if (status == SEMEL_INVALID || sqlite) { /* the one connection of a file is opened here or nowhere */
        *err = why;
        return status;
    }
    SEMEL__LOG(daemon->log, SEMEL_LOG_WARN, "cannot reach the store yet; routes try again",
               SEMEL_F_Z("error", why.text));
    return SEMEL_OK;
}

static void block_signals(sigset_t *ret)
{
    sigemptyset(ret);
    sigaddset(ret, SIGTERM);
    sigaddset(ret, SIGINT);
    sigaddset(ret, SIGHUP);
    pthread_sigmask(SIG_BLOCK, ret, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* where it was inherited as ignored nobody could tell how a program has ended */
}

semel_status semel__daemon_new(struct semel_daemon **ret, const struct semel_conf *conf,
                               const struct semel_daemon_options *options, struct semel_error *err)
{
    struct semel_daemon *daemon = semel__calloc(1, sizeof *daemon);
    sigset_t signals;
    if (daemon == NULL)
        return semel__fail_memory(err);
    if (pthread_mutex_init(&daemon->lock, NULL) != 0 || !semel__cond_init(&daemon->stops)) {
        semel__free(daemon);
        return semel__fail_memory(err);
    }
    block_signals(&signals);
    daemon->conf = conf;
    daemon->options = *options;
    daemon->log = options->log;
    daemon->units_end = &daemon->units;
    (void)gethostname(daemon->host, sizeof daemon->host - 1);
    daemon->view = (struct semel_serve_view){daemon,        alive,         ready,     list_routes,
                                             list_outboxes, list_gateways, http_turns};
    semel__tasks_init(&daemon->tasks, daemon->log);
    semel__task_add(&daemon->tasks, &daemon->http, "the HTTP server");
    semel__task_add(&daemon->tasks, &daemon->counts, "the task that counts rows");
    semel__task_add(&daemon->tasks, &daemon->api, "the task of the admin API");
    semel__task_add(&daemon->tasks, &daemon->others, "the housekeeping of other consumers");
    semel_status status = semel__stats_new(&daemon->stats, err);
    if (status == SEMEL_OK)
        status = try_store(daemon, err);
    if (status == SEMEL_OK)
        status = semel__serve_new(&daemon->serve, conf, daemon->stats, &daemon->view, daemon->log, err);
    for (size_t i = 0; status == SEMEL_OK && i < KINDS; i++)
        status = kinds[i]->build(daemon, err);
    if (status != SEMEL_OK) {
        semel__daemon_free(daemon);
        return status;
    }
    *ret = daemon;
    return SEMEL_OK;
}

void semel__daemon_free(struct semel_daemon *daemon)
{
    if (daemon == NULL)
        return;
    while (daemon->units != NULL) {
        struct semel_unit *unit = daemon->units;
        daemon->units = unit->next;
        unit->kind->free(unit);
    }
    semel__serve_free(daemon->serve);
    semel__share_close(daemon->shared);
    semel__stats_free(daemon->stats);
    pthread_cond_destroy(&daemon->stops);
    pthread_mutex_destroy(&daemon->lock);
    semel__free(daemon);
}

/* ---- tasks --------------------------------------------------------------------------------------- */

static void run_http(void *arg)
{
    struct semel_daemon *daemon = arg;
    struct semel_error err = {0};
    if (semel__serve_run(daemon->serve, &err) != SEMEL_OK)
        SEMEL__LOG(daemon->log, SEMEL_LOG_ERROR, "cannot serve HTTP", SEMEL_F_Z("error", err.text));
}

static semel_status count_keys(struct semel_daemon *daemon, struct semel_store *store, struct semel_arena *arena,
                               struct semel_error *err)
{
    struct semel_keys_state state;
    semel_status status = semel_query_keys_state(store, KEYS_CAP, arena, &state, err);
    if (status == SEMEL_OK)
        semel__stats_keys_rows(daemon->stats, &state, semel__now(&semel__clock_real));
    return status;
}

static void run_counts(void *arg)
{
    struct semel_daemon *daemon = arg;
    struct semel_store *store = NULL;
    struct semel_arena arena;
    semel__arena_init(&arena, COUNT_ARENA_MAX);
    while (!semel__daemon_stopping(daemon)) {
        struct semel_error err = {0};
        semel_status status = store == NULL ? semel__daemon_open_store(daemon, &store, &err) : SEMEL_OK;
        for (struct semel_unit *unit = daemon->units;
             status == SEMEL_OK && unit != NULL && !semel__daemon_stopping(daemon); unit = unit->next) {
            semel__arena_reset(&arena);
            semel__task_beat(&daemon->counts);
            status = unit->kind->count(unit, store, &arena, &err);
        }
        semel__arena_reset(&arena);
        if (status == SEMEL_OK && store->ops->keys != NULL && !semel__daemon_stopping(daemon))
            status = count_keys(daemon, store, &arena, &err);
        if (status != SEMEL_OK) {
            SEMEL__LOG(daemon->log, SEMEL_LOG_DEBUG, "cannot count rows for metrics", SEMEL_F_Z("error", err.text));
            semel_store_close(store);
            store = NULL;
        }
        semel__task_beat(&daemon->counts);
        semel__daemon_sleep(daemon, COUNT_EVERY_MS);
    }
    semel_store_close(store);
    semel__arena_done(&arena);
}

static void run_api(void *arg)
{
    struct semel_daemon *daemon = arg;
    struct semel_api *api = semel__serve_api(daemon->serve);
    struct semel_store *store = NULL;
    struct semel_random rng;
    int failures = 0;
    semel__random_seed_os(&rng);
    while (api != NULL && !semel__daemon_stopping(daemon)) {
        struct semel_error err = {0};
        semel_status status = SEMEL_OK;
        semel__task_beat(&daemon->api);
        if (store == NULL)
            status = semel__daemon_open_store(daemon, &store, &err);
        if (status == SEMEL_OK)
            status = semel__api_step(api, store, API_WAIT_MS, &err);
        (void)semel__task_set_up(&daemon->api, status == SEMEL_OK, err.text);
        failures = status == SEMEL_OK ? 0 : failures + 1;
        if (status == SEMEL_OK)
            continue;
        if (failures == 1)
            SEMEL__LOG(daemon->log, SEMEL_LOG_WARN,
                       "cannot reach the store for the admin API; requests are answered 503",
                       SEMEL_F_Z("error", err.text));
        semel__api_refuse(api, "the store cannot be reached");
        semel__daemon_sleep(daemon, semel__daemon_backoff_ms(failures, &rng));
    }
    semel__api_close(api);
    semel_store_close(store);
}

static semel_status start_all(struct semel_daemon *daemon, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (daemon->serve != NULL)
        status = semel__task_start(&daemon->http, "http", run_http, daemon, err);
    if (status == SEMEL_OK)
        status = semel__task_start(&daemon->counts, "counts", run_counts, daemon, err);
    if (status == SEMEL_OK && daemon->conf->admin.on)
        status = semel__task_start(&daemon->api, "api", run_api, daemon, err);
    if (status == SEMEL_OK && daemon->conf->schedule.others)
        status = semel__task_start(&daemon->others, "house", keep_house, daemon, err);
    for (struct semel_unit *unit = daemon->units; status == SEMEL_OK && unit != NULL; unit = unit->next)
        status = unit->kind->start(unit, err);
    return status;
}

/* ---- signals ------------------------------------------------------------------------------------- */

static int next_signal(int wait_ms)
{
    struct timespec wait = {wait_ms / 1000, (long)(wait_ms % 1000) * 1000000};
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    int signal = sigtimedwait(&signals, NULL, &wait);
    return signal > 0 ? signal : 0;
}

/* All of it or nothing: who takes a token back must not believe that it is gone. */
static semel_status renew(struct semel_daemon *daemon, const struct semel_conf *fresh, struct semel_error *err)
{
    semel_status status = daemon->serve != NULL ? semel__serve_reload(daemon->serve, err) : SEMEL_OK;
    for (struct semel_unit *unit = daemon->units; unit != NULL && status == SEMEL_OK; unit = unit->next)
        if (unit->kind->reload != NULL)
            status = unit->kind->reload(unit, err);
    if (status == SEMEL_OK && daemon->serve != NULL)
        status = fresh != NULL ? semel__serve_tokens(daemon->serve, fresh, err)
                               : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                                             "the settings could not be read again: every token stays as it was");
    if (daemon->serve != NULL)
        semel__serve_reloaded(daemon->serve, status == SEMEL_OK);
    for (struct semel_unit *unit = daemon->units; unit != NULL; unit = unit->next)
        if (unit->kind->reload != NULL)
            unit->kind->reloaded(unit, status == SEMEL_OK);
    return status;
}

static void reload(struct semel_daemon *daemon, struct semel_notify *notify)
{
    struct semel_error err = {0};
    semel__notify_reloading(notify, semel__steady_us());
    struct semel_conf *fresh = daemon->options.reread != NULL ? daemon->options.reread(daemon->options.ctx) : NULL;
    semel_status status = renew(daemon, fresh, &err);
    semel__conf_free(fresh);
    if (status == SEMEL_OK)
        SEMEL__LOG(daemon->log, SEMEL_LOG_INFO, "reloaded certificates, tokens and secrets",
                   SEMEL_F_INT("units", daemon->n_units));
    else
        SEMEL__LOG(daemon->log, SEMEL_LOG_ERROR, "reload failed; old certificates, tokens and secrets stay in use",
                   SEMEL_F_Z("error", err.text));
    semel__notify_ready(notify);
}

/* Once all units are there, or held: systemd may go on. */
static bool report_ready(const struct semel_daemon *daemon, struct semel_notify *notify)
{
    struct semel_buf why;
    semel__buf_init(&why, 4096);
    enum semel_unit_ready least = least_ready(daemon, &why);
    if (least != SEMEL_UNIT_STARTING)
        semel__notify_ready(notify);
    if (least == SEMEL_UNIT_READY)
        SEMEL__LOG(daemon->log, SEMEL_LOG_INFO, "ready: all routes connected", SEMEL_F_INT("routes", daemon->n_units));
    else if (least == SEMEL_UNIT_HELD)
        SEMEL__LOG(daemon->log, SEMEL_LOG_WARN, "ready, but for routes that are held",
                   SEMEL_F_INT("routes", daemon->n_units), SEMEL_F_STR("why", semel__buf_str(&why)));
    semel__buf_done(&why);
    return least != SEMEL_UNIT_STARTING;
}

/* Returns the signal that says to stop. */
static int serve_until_stopped(struct semel_daemon *daemon, struct semel_notify *notify)
{
    for (bool reported = false;;) {
        int signal = next_signal(TURN_MS);
        if (signal == SIGHUP)
            reload(daemon, notify);
        else if (signal != 0)
            return signal;
        reported = reported || report_ready(daemon, notify);
        semel__tasks_watch(&daemon->tasks, notify, semel__steady_us());
        semel__log_tick(daemon->log);
    }
}

/* ---- stopping ------------------------------------------------------------------------------------ */

/* All but the server, which has to answer until then. */
static bool all_over(const struct semel_daemon *daemon)
{
    for (const struct semel_task *task = daemon->tasks.first; task != NULL; task = task->next)
        if (task != &daemon->http && !semel__task_over(task))
            return false;
    return true;
}

static _Noreturn void exit_now(struct semel_daemon *daemon, int signal, const char *text)
{
    SEMEL__LOG(daemon->log, SEMEL_LOG_WARN, text, SEMEL_F_INT("signal", signal));
    _exit(128 + signal);
}

/* Workers finish what they have, sources apply the answers, and only then is there nobody left to answer HTTP. */
static bool stop(struct semel_daemon *daemon, struct semel_notify *notify, int signal)
{
    int64_t within_us = daemon->conf->stop_within_us;
    int64_t until_us = semel__steady_us() + within_us;
    SEMEL__LOG(daemon->log, SEMEL_LOG_INFO, "stopping", SEMEL_F_INT("signal", signal),
               SEMEL_F_INT("within_ms", within_us / 1000));
    semel__notify_stopping(notify);
    semel__notify_extend(notify, within_us + LAST_US);
    atomic_store(&daemon->stop_us, until_us);
    pthread_mutex_lock(&daemon->lock);
    atomic_store(&daemon->stopping, true);
    pthread_cond_broadcast(&daemon->stops);
    pthread_mutex_unlock(&daemon->lock);
    for (struct semel_unit *unit = daemon->units; unit != NULL; unit = unit->next)
        unit->kind->stop(unit);
    while (!all_over(daemon) && semel__steady_us() < until_us) {
        int again = next_signal(STOP_TURN_MS);
        if (again == SIGTERM || again == SIGINT)
            exit_now(daemon, again, "second signal: exiting; open work rolls back");
        /* Calls that will not end in time are given up while there is time to write that down. */
        if (semel__steady_us() > until_us - (LAST_US < within_us / 2 ? LAST_US : within_us / 2))
            atomic_store(&daemon->cancel, true);
    }
    return all_over(daemon);
}

static void join_all(struct semel_daemon *daemon)
{
    for (struct semel_task *task = daemon->tasks.first; task != NULL; task = task->next)
        if (task != &daemon->http)
            semel__task_join(task);
    if (atomic_load(&daemon->http.started))
        semel__serve_stop(daemon->serve, 1000);
    semel__task_join(&daemon->http);
}

semel_status semel__daemon_run(struct semel_daemon *daemon, bool *ret_clean, struct semel_error *err)
{
    struct semel_notify notify;
    struct semel_error ignored = {0};
    if (semel__notify_init(&notify, &ignored) != SEMEL_OK)
        SEMEL__LOG(daemon->log, SEMEL_LOG_WARN, "cannot notify systemd", SEMEL_F_Z("error", ignored.text));
    semel_status status = start_all(daemon, err);
    int signal = status == SEMEL_OK ? serve_until_stopped(daemon, &notify) : SIGTERM;
    *ret_clean = stop(daemon, &notify, signal);
    if (!*ret_clean) /* threads that do not end cannot be joined */
        exit_now(daemon, signal, "stop_within is over: exiting; open work rolls back");
    join_all(daemon);
    SEMEL__LOG(daemon->log, SEMEL_LOG_INFO, "stopped", SEMEL_F_INT("signal", signal));
    semel__notify_done(&notify);
    return status;
}
