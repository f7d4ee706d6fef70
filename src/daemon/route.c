/* SPDX-License-Identifier: MIT
 *
 * route.c: a route as a unit of the daemon: built from its settings, started, stopped, and shown; and its circuit
 * breaker, with the lock that its workers share.
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

#define COUNT_CAP 10000

static struct daemon_route *route_of(struct semel_unit *unit)
{
    return (struct daemon_route *)unit;
}

/* ---- what its tasks share ------------------------------------------------------------------------ */

void semel__daemon_log(const struct daemon_route *route, enum semel_log_level level, const char *text,
                       semel_status status, const struct semel_error *err, int retry_ms)
{
    SEMEL__LOG(route->daemon->log, level, text, SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_Z("status", semel__status_name(status)), SEMEL_F_Z("class", semel__class_name(err->cls)),
               SEMEL_F_Z("error", err->text), SEMEL_F_INT("retry_ms", retry_ms > 0 ? retry_ms : SEMEL_NONE));
}

void semel__daemon_wake(struct daemon_route *route, bool polls)
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

void semel__daemon_source_up(struct daemon_route *route, bool up, const struct semel_error *err)
{
    if (semel__task_set_up(&route->source, up, err != NULL ? err->text : NULL) != up)
        semel__stats_source_up(route->stats, up);
}

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
        semel__daemon_wake(route, false); /* a probe that met nothing must not end the next one */
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
    static const struct {
        const char *name;
        void (*body)(void *);
    } bodies[] = {
        [SEMEL_DO_SQL] = {"worker", semel__daemon_worker},
        [SEMEL_DO_HTTP] = {"calls", semel__daemon_outside},
        [SEMEL_DO_EXEC] = {"calls", semel__daemon_outside},
        [SEMEL_DO_PULL] = {"worker", semel__daemon_worker},
    };
    struct daemon_route *route = route_of(unit);
    const struct semel_route *conf = route->conf;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < route->n_workers; i++) {
        struct daemon_worker *worker = &route->workers[i];
        bool pulls = worker->broker == NULL;
        status = semel__task_start(&worker->task, pulls ? "pull" : bodies[conf->handler.kind].name,
                                   pulls ? semel__daemon_pull : bodies[conf->handler.kind].body, worker, err);
    }
    if (status == SEMEL_OK && !route->listens && !route->stored_only)
        status = semel__task_start(&route->source, "source", semel__daemon_source, route, err);
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
    semel__daemon_wake(route, true);
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
                    states[semel__route_breaker_look(&route->breaker).state],
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
        semel__stats_look(route->stats, counts, n, semel__now(&semel__clock_real));
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
