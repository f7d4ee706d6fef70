/* SPDX-License-Identifier: MIT
 *
 * daemon.c: builds the routes, starts the threads, and stops them.
 */
#include "daemon/daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"
#include "daemon/run.h"

#define STUCK_US (INT64_C(180) * 1000000) /* no statement, no poll and no wait takes as long */

/* ---- small things -------------------------------------------------------------------------------- */

void run_beat(struct run_thread *thread)
{
    atomic_store_explicit(&thread->beat_us, semel__steady_us(), memory_order_relaxed);
}

bool run_stopping(const struct semel_daemon *daemon)
{
    return atomic_load(&daemon->stopping);
}

void run_sleep(struct semel_daemon *daemon, int ms)
{
    int64_t until_us = semel__steady_us() + (int64_t)ms * 1000;
    pthread_mutex_lock(&daemon->lock);
    while (!run_stopping(daemon) && semel__cond_wait(&daemon->stops, &daemon->lock, until_us))
        ;
    pthread_mutex_unlock(&daemon->lock);
}

int run_backoff_ms(int failures, struct semel_random *rng)
{
    int shift = failures < 8 ? failures : 8;
    int limit = 50 << shift;
    limit = limit < 5000 ? limit : 5000;
    return limit / 2 + (int)semel__random_below(rng, (uint64_t)limit / 2 + 1);
}

void run_log_failure(struct run_route *route, enum semel_log_level level, const char *text, semel_status status,
                     const struct semel_error *err)
{
    SEMEL__LOG(route->daemon->log, level, text, SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_Z("status", semel__status_name(status)), SEMEL_F_Z("class", semel__class_name(err->cls)),
               SEMEL_F_Z("error", err->text));
}

/* ---- what others may know ------------------------------------------------------------------------ */

static bool moves(const struct run_thread *thread, int64_t now_us)
{
    return !thread->started || atomic_load(&thread->ended) || now_us - atomic_load(&thread->beat_us) < STUCK_US;
}

static bool alive(void *ctx, struct semel_buf *why)
{
    const struct semel_daemon *daemon = ctx;
    int64_t now_us = semel__steady_us();
    /* Not the API: what an operator asks for may take longer, and a restart would not make it shorter. */
    if (!moves(&daemon->watch, now_us)) {
        semel__buf_addz(why, "the thread that counts rows for metrics has not moved for three minutes");
        return false;
    }
    for (size_t i = 0; i < daemon->n_routes; i++) {
        const struct run_route *route = &daemon->routes[i];
        bool ok = moves(&route->source, now_us);
        for (size_t k = 0; k < route->n_workers; k++)
            ok = ok && moves(&route->workers[k].thread, now_us);
        if (ok)
            continue;
        semel__buf_addf(why, "route %.*s: a thread has not moved for three minutes", (int)route->conf->name.n,
                        route->conf->name.p);
        return false;
    }
    return true;
}

void run_source_down(struct run_route *route, const struct semel_error *err)
{
    pthread_mutex_lock(&route->daemon->lock);
    snprintf(route->why_down, sizeof(route->why_down), "%s", err->text);
    pthread_mutex_unlock(&route->daemon->lock);
}

/* The route is held, and it is known why. */
static bool held_why(struct run_route *route, char why[sizeof(route->why_held)])
{
    if (!atomic_load(&route->held))
        return false;
    pthread_mutex_lock(&route->daemon->lock);
    bool told = route->why_held[0] != '\0';
    if (told)
        memcpy(why, route->why_held, sizeof(route->why_held));
    pthread_mutex_unlock(&route->daemon->lock);
    return told;
}

/* Whoever reads it needs no token: an error's text has neither ids nor secrets in it. */
static bool route_ready(struct run_route *route, struct semel_buf *why)
{
    const char *what = NULL;
    char down[sizeof(route->why_held)] = "";
    _Static_assert(sizeof(route->why_held) >= sizeof(route->why_down), "either fits");
    for (size_t k = 0; k < route->n_workers; k++)
        if (!atomic_load(&route->workers[k].thread.up))
            what = "the store is not connected, or the handler cannot be used";
    if (!atomic_load(&route->source.up)) {
        what = "the source is not connected";
        pthread_mutex_lock(&route->daemon->lock);
        memcpy(down, route->why_down, sizeof(route->why_down));
        pthread_mutex_unlock(&route->daemon->lock);
    }
    if (held_why(route, down))
        what = "its settings are not those that are stored";
    if (what != NULL)
        semel__buf_addf(why, "%sroute %.*s: %s%s%s", why->n > 0 ? "; " : "", (int)route->conf->name.n,
                        route->conf->name.p, what, down[0] != '\0' ? ": " : "", down);
    return what == NULL;
}

static bool ready(void *ctx, struct semel_buf *why)
{
    const struct semel_daemon *daemon = ctx;
    bool all = true;
    if (run_stopping(daemon)) {
        semel__buf_addz(why, "stopping");
        return false;
    }
    for (size_t i = 0; i < daemon->n_routes; i++)
        all = route_ready(&daemon->routes[i], why) && all;
    return all;
}

bool run_started(struct semel_daemon *daemon)
{
    bool all = true;
    for (size_t i = 0; all && i < daemon->n_routes; i++) {
        char why[sizeof(daemon->routes[i].why_held)];
        struct semel_buf ignored;
        semel__buf_init(&ignored, 1024);
        all = held_why(&daemon->routes[i], why) || route_ready(&daemon->routes[i], &ignored);
        semel__buf_done(&ignored);
    }
    return all;
}

static void list_routes(void *ctx, struct semel_buf *json)
{
    static const char *const states[] = {"closed", "open", "probing"};
    const struct semel_daemon *daemon = ctx;
    for (size_t i = 0; i < daemon->n_routes; i++) {
        const struct run_route *route = &daemon->routes[i];
        bool store = true;
        for (size_t k = 0; k < route->n_workers; k++)
            store = store && atomic_load(&route->workers[k].thread.up);
        semel__buf_addf(json,
                        "%s{\"name\":\"%.*s\",\"source\":\"%s\",\"handler\":\"%s\",\"guarantee\":\"%s\","
                        "\"order\":\"%s\",\"breaker\":\"%s\",\"source_up\":%s,\"store_up\":%s,\"held\":%s}",
                        i > 0 ? "," : "", (int)route->conf->name.n, route->conf->name.p, route->conf->from.kind->name,
                        semel__do_name(route->conf->handler.kind),
                        semel__guarantee_name(route->conf->promise.guarantee),
                        semel__order_rests_name(route->conf->promise.order),
                        states[semel__route_breaker_look(&route->breaker).state],
                        atomic_load(&route->source.up) ? "true" : "false", store ? "true" : "false",
                        atomic_load(&route->held) ? "true" : "false");
    }
}

/* ---- building ------------------------------------------------------------------------------------ */

/* Beside the batch that it works on, the next one of each worker waits. */
static size_t in_flight(const struct semel_route *conf)
{
    const struct semel_source *from = &conf->from;
    size_t wanted = (size_t)(2 * conf->workers * conf->batch);
    return from->kind->in_flight != NULL ? from->kind->in_flight(from->options, wanted) : wanted;
}

static semel_status build_workers(struct run_route *route, struct semel_error *err)
{
    const struct semel_route *conf = route->conf;
    bool pull = conf->handler.kind == SEMEL_DO_PULL;
    bool outside = conf->handler.kind == SEMEL_DO_HTTP || conf->handler.kind == SEMEL_DO_EXEC;
    bool positions = semel__source_stores_positions(&conf->from); /* a worker that moves one gets all of a partition */
    size_t sides = outside ? 1 : (size_t)conf->workers;
    struct semel_random rng;
    semel__random_seed_os(&rng);
    semel_status status = semel__hand_new(&route->hand, sides, in_flight(conf),
                                          conf->policy.order != SEMEL_ORDER_NONE || positions,
                                          semel__route_listens(conf) != NULL, err);
    if (status != SEMEL_OK)
        return status;
    route->workers = semel__calloc(sides + pull, sizeof *route->workers);
    if (route->workers == NULL)
        return semel__fail_memory(err);
    route->n_workers = sides + pull;
    for (size_t i = 0; i < route->n_workers; i++) {
        struct run_worker *worker = &route->workers[i];
        worker->route = route;
        worker->index = i;
        worker->side = i < sides ? semel__hand_side(route->hand, i) : NULL;
        worker->stats = semel__stats_worker(route->stats);
        if (worker->stats == NULL)
            return semel__fail_memory(err);
        snprintf(worker->owner, sizeof worker->owner, "%s/%ld/%08x/%zu", route->daemon->host, (long)getpid(),
                 (unsigned)semel__random_next(&rng), i);
    }
    return SEMEL_OK;
}

static semel_status build_routes(struct semel_daemon *daemon, struct semel_error *err)
{
    const struct semel_conf *conf = daemon->conf;
    semel_status status = SEMEL_OK;
    daemon->routes = semel__calloc(conf->n_routes, sizeof *daemon->routes);
    if (daemon->routes == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < conf->n_routes; i++) {
        struct run_route *route = &daemon->routes[i];
        route->daemon = daemon;
        route->conf = &conf->routes[i];
        route->held = true; /* until its settings are stored */
        daemon->n_routes++;
        route->stats = semel__stats_route(daemon->stats, route->conf->name,
                                          semel__guarantee_name(route->conf->promise.guarantee));
        if (route->stats == NULL)
            return semel__fail_memory(err);
        status = build_workers(route, err);
        if (status == SEMEL_OK)
            status = run_breaker_init(route, err);
        if (status == SEMEL_OK && route->conf->handler.kind == SEMEL_DO_PULL) {
            route->pull = semel__serve_pull(daemon->serve, route->conf);
            if (route->pull == NULL)
                return semel__fail_memory(err);
        }
    }
    return status;
}

/* A store that is not fit is a mistake that somebody must mend; one that cannot be reached may come back. */
static semel_status try_store(struct semel_daemon *daemon, struct semel_error *err)
{
    struct semel_store *store = NULL;
    struct semel_error why = {0};
    semel_status status = run_open_store(daemon, &store, &why);
    semel_store_close(store);
    if (status == SEMEL_OK)
        return SEMEL_OK;
    bool sqlite = daemon->conf->store_kind == SEMEL_CONF_STORE_SQLITE;
    if (status == SEMEL_INVALID || sqlite) { /* the one connection of a file is opened here or nowhere */
        *err = why;
        return status;
    }
    SEMEL__LOG(daemon->log, SEMEL_LOG_WARN, "the store cannot be reached yet", SEMEL_F_Z("error", why.text));
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
    (void)gethostname(daemon->host, sizeof daemon->host - 1);
    daemon->view = (struct semel_serve_view){daemon, alive, ready, list_routes};
    semel_status status = semel__stats_new(&daemon->stats, err);
    if (status == SEMEL_OK)
        status = try_store(daemon, err);
    if (status == SEMEL_OK)
        status = semel__serve_new(&daemon->serve, conf, daemon->stats, &daemon->view, daemon->log, err);
    if (status == SEMEL_OK)
        status = build_routes(daemon, err);
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
    for (size_t i = 0; i < daemon->n_routes; i++) {
        run_breaker_done(&daemon->routes[i]);
        semel__hand_free(daemon->routes[i].hand);
        semel__free(daemon->routes[i].workers);
    }
    semel__free(daemon->routes);
    semel__serve_free(daemon->serve);
    semel__share_close(daemon->shared);
    semel__stats_free(daemon->stats);
    pthread_cond_destroy(&daemon->stops);
    pthread_mutex_destroy(&daemon->lock);
    semel__free(daemon);
}
