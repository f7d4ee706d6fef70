/* SPDX-License-Identifier: MIT
 *
 * breaker.c: the breaker of a route in the daemon: its lock, and who is told when it changes: the gauges, the log, the
 * door of a `listen` route, and workers that wait.
 *
 * Invariant: locks are taken in this order: the breaker's, then the hand's or the door's. Neither of those asks the
 * breaker while it has its own.
 */
#include "base/error.h"
#include "daemon/run.h"

#define SOON_MS 1000

static void lock(void *ctx)
{
    struct run_route *route = ctx;
    pthread_mutex_lock(&route->breaker_lock);
}

static void unlock(void *ctx)
{
    struct run_route *route = ctx;
    pthread_mutex_unlock(&route->breaker_lock);
}

static void log_pause(const struct run_route *route, enum semel_log_level level, const char *text,
                      const struct semel_breaker *now)
{
    SEMEL__LOG(route->daemon->log, level, text, SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_INT("failures", now->failures), SEMEL_F_Z("cause", semel__class_name(now->cause)),
               SEMEL_F_INT("until_ms", now->next_us / 1000));
}

/* A probe that met nothing is no news, one that failed is. */
static void log_change(struct run_route *route, enum semel_breaker_state before, const struct semel_breaker *now)
{
    if (now->state == SEMEL_BREAKER_CLOSED)
        SEMEL__LOG(route->daemon->log, SEMEL_LOG_INFO, "the route goes on", SEMEL_F_STR("consumer", route->conf->name));
    else if (before == SEMEL_BREAKER_CLOSED)
        log_pause(route, SEMEL_LOG_ERROR, "too much fails in a row: the route pauses and probes", now);
    else if (now->state == SEMEL_BREAKER_OPEN && now->openings != route->openings)
        log_pause(route, SEMEL_LOG_WARN, "a probe failed: the route stays paused", now);
    route->openings = now->openings;
}

static void changed(void *ctx, enum semel_breaker_state before, const struct semel_breaker *now)
{
    struct run_route *route = ctx;
    semel__stats_breaker(route->stats, now->state);
    log_change(route, before, now);
    if (run_gives_back(route))
        semel__serve_paused(route->daemon->serve, route->conf, now);
    if (now->state != SEMEL_BREAKER_PROBING)
        semel__hand_nudge(route->hand);
}

semel_status run_breaker_init(struct run_route *route, struct semel_error *err)
{
    const struct semel_route *conf = route->conf;
    if (pthread_mutex_init(&route->breaker_lock, NULL) != 0)
        return semel__fail_memory(err);
    semel__route_breaker_init(&route->breaker, (int)conf->breaker.failures, conf->breaker.first_us,
                              conf->breaker.ceiling_us);
    route->breaker.ctx = route;
    route->breaker.lock = lock;
    route->breaker.unlock = unlock;
    route->breaker.changed = changed;
    return SEMEL_OK;
}

void run_breaker_done(struct run_route *route)
{
    if (route->breaker.lock != NULL)
        pthread_mutex_destroy(&route->breaker_lock);
}

bool run_gives_back(const struct run_route *route)
{
    return semel__route_listens(route->conf) != NULL;
}

bool run_give_back(struct run_worker *worker, int64_t until_us, int64_t now_us)
{
    struct run_route *route = worker->route;
    struct semel_error err = {0};
    if (!run_gives_back(route))
        return true;
    bool probing = semel__route_breaker_look(&route->breaker).state == SEMEL_BREAKER_PROBING;
    int64_t left_ms = (until_us - now_us) / 1000 + 1;
    semel_status status = semel__hand_return(worker->side, probing || left_ms < SOON_MS ? SOON_MS : (int)left_ms, &err);
    if (status != SEMEL_OK)
        run_log_failure(route, SEMEL_LOG_WARN, "what waits cannot be given back", status, &err);
    return status == SEMEL_OK;
}
