/* SPDX-License-Identifier: MIT
 *
 * threads.c: starts the threads, waits for signals, and stops them in the order in which nothing is lost.
 */
#define _GNU_SOURCE /* pthread_setname_np */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"
#include "daemon/notify.h"
#include "daemon/run.h"

#define TURN_MS 500
#define STOP_TURN_MS 20
#define LAST_US (INT64_C(2) * 1000000) /* what is given up needs some time to be recorded */

/* ---- starting ------------------------------------------------------------------------------------ */

static semel_status start(struct run_thread *thread, const char *name, void *(*body)(void *), void *arg,
                          struct semel_error *err)
{
    run_beat(thread);
    int rc = pthread_create(&thread->id, NULL, body, arg);
    if (rc != 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no thread can be started (error %d)", rc);
    thread->started = true;
    (void)pthread_setname_np(thread->id, name);
    return SEMEL_OK;
}

static void *run_http(void *arg)
{
    struct semel_daemon *daemon = arg;
    struct semel_error err = {0};
    semel_status status = semel__serve_run(daemon->serve, &err);
    if (status != SEMEL_OK)
        SEMEL__LOG(daemon->log, SEMEL_LOG_ERROR, "HTTP cannot be served", SEMEL_F_Z("error", err.text));
    atomic_store(&daemon->http.ended, true);
    return NULL;
}

static semel_status start_route(struct run_route *route, struct semel_error *err)
{
    static const struct {
        const char *name;
        void *(*body)(void *);
    } bodies[] = {
        [SEMEL_DO_SQL] = {"worker", run_worker},
        [SEMEL_DO_HTTP] = {"calls", run_outside},
        [SEMEL_DO_EXEC] = {"calls", run_outside},
        [SEMEL_DO_PULL] = {"worker", run_worker},
    };
    enum semel_do_kind kind = route->conf->handler.kind;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < route->n_workers; i++) {
        bool pull = kind == SEMEL_DO_PULL && i + 1 == route->n_workers;
        status = start(&route->workers[i].thread, pull ? "pull" : bodies[kind].name,
                       pull ? run_pull : bodies[kind].body, &route->workers[i], err);
    }
    if (status == SEMEL_OK)
        status = start(&route->source, "source", run_source, route, err);
    const struct semel_route *conf = route->conf;
    SEMEL__LOG(route->daemon->log, SEMEL_LOG_INFO, "a route starts", SEMEL_F_STR("consumer", conf->name),
               SEMEL_F_Z("from", conf->from.kind->name), SEMEL_F_Z("do", semel__do_name(conf->handler.kind)),
               SEMEL_F_Z("guarantee", semel__guarantee_name(conf->promise.guarantee)),
               SEMEL_F_Z("order", semel__order_rests_name(conf->promise.order)), SEMEL_F_INT("workers", conf->workers));
    return status;
}

static semel_status start_all(struct semel_daemon *daemon, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (daemon->serve != NULL)
        status = start(&daemon->http, "http", run_http, daemon, err);
    if (status == SEMEL_OK)
        status = start(&daemon->watch, "watch", run_watch, daemon, err);
    if (status == SEMEL_OK && daemon->conf->admin.on)
        status = start(&daemon->api, "api", run_api, daemon, err);
    for (size_t i = 0; status == SEMEL_OK && i < daemon->n_routes; i++)
        status = start_route(&daemon->routes[i], err);
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

static void reload(struct semel_daemon *daemon, struct semel_notify *notify)
{
    struct semel_error err = {0};
    semel__notify_reloading(notify, semel__steady_us());
    struct semel_conf *fresh = daemon->options.reread != NULL ? daemon->options.reread(daemon->options.ctx) : NULL;
    semel_status status = SEMEL_OK;
    if (daemon->serve != NULL)
        status = semel__serve_reload(daemon->serve, &err);
    if (daemon->serve != NULL && status == SEMEL_OK) /* who takes a token back must not believe that it is gone */
        status = fresh != NULL ? semel__serve_tokens(daemon->serve, fresh, &err)
                               : semel__fail(&err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                                             "the settings could not be read again: every token stays as it was");
    semel__conf_free(fresh);
    if (status == SEMEL_OK)
        SEMEL__LOG(daemon->log, SEMEL_LOG_INFO, "certificates and tokens were read again",
                   SEMEL_F_INT("routes", daemon->n_routes));
    else
        SEMEL__LOG(daemon->log, SEMEL_LOG_ERROR, "not all certificates and tokens were read again",
                   SEMEL_F_Z("error", err.text));
    semel__notify_ready(notify);
}

/* Until a signal says to stop. */
static int serve_until_stopped(struct semel_daemon *daemon, struct semel_notify *notify)
{
    bool told = false;
    for (;;) {
        struct semel_buf why;
        int signal = next_signal(TURN_MS);
        if (signal == SIGHUP)
            reload(daemon, notify);
        else if (signal != 0)
            return signal;
        semel__buf_init(&why, 1024);
        if (!told && run_started(daemon)) {
            bool all = daemon->view.ready(daemon, &why);
            told = true;
            semel__notify_ready(notify);
            SEMEL__LOG(daemon->log, all ? SEMEL_LOG_INFO : SEMEL_LOG_WARN,
                       all ? "all routes run" : "all routes run but those that wait",
                       SEMEL_F_INT("routes", daemon->n_routes));
        }
        if (daemon->view.alive(daemon, &why))
            semel__notify_beat(notify, semel__steady_us());
        semel__buf_done(&why);
        semel__log_tick(daemon->log);
    }
}

/* ---- stopping ------------------------------------------------------------------------------------ */

static bool over(const struct run_thread *thread)
{
    return !thread->started || atomic_load(&thread->ended);
}

static bool all_over(const struct semel_daemon *daemon)
{
    bool ok = over(&daemon->watch) && over(&daemon->api);
    for (size_t i = 0; i < daemon->n_routes; i++) {
        ok = ok && over(&daemon->routes[i].source);
        for (size_t k = 0; k < daemon->routes[i].n_workers; k++)
            ok = ok && over(&daemon->routes[i].workers[k].thread);
    }
    return ok;
}

_Noreturn static void at_once(struct semel_daemon *daemon, int signal)
{
    SEMEL__LOG(daemon->log, SEMEL_LOG_WARN, "stopped at once: what ran is rolled back, and comes again",
               SEMEL_F_INT("signal", signal));
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
    for (size_t i = 0; i < daemon->n_routes; i++)
        semel__hand_close(daemon->routes[i].hand);
    while (!all_over(daemon) && semel__steady_us() < until_us) {
        int again = next_signal(STOP_TURN_MS);
        if (again == SIGTERM || again == SIGINT)
            at_once(daemon, again);
        /* Calls that will not end in time are given up while there is time to write that down. */
        if (semel__steady_us() > until_us - (LAST_US < within_us / 2 ? LAST_US : within_us / 2))
            atomic_store(&daemon->cancel, true);
    }
    return all_over(daemon);
}

static void join(struct run_thread *thread)
{
    if (thread->started)
        pthread_join(thread->id, NULL);
    thread->started = false;
}

static void join_all(struct semel_daemon *daemon)
{
    for (size_t i = 0; i < daemon->n_routes; i++) {
        for (size_t k = 0; k < daemon->routes[i].n_workers; k++)
            join(&daemon->routes[i].workers[k].thread);
        join(&daemon->routes[i].source);
    }
    join(&daemon->watch);
    join(&daemon->api);
    if (daemon->http.started)
        semel__serve_stop(daemon->serve, 1000);
    join(&daemon->http);
}

semel_status semel__daemon_run(struct semel_daemon *daemon, bool *ret_clean, struct semel_error *err)
{
    struct semel_notify notify;
    struct semel_error ignored = {0};
    if (semel__notify_init(&notify, &ignored) != SEMEL_OK)
        SEMEL__LOG(daemon->log, SEMEL_LOG_WARN, "the service manager cannot be told", SEMEL_F_Z("error", ignored.text));
    semel_status status = start_all(daemon, err);
    int signal = status == SEMEL_OK ? serve_until_stopped(daemon, &notify) : SIGTERM;
    *ret_clean = stop(daemon, &notify, signal);
    if (!*ret_clean)
        at_once(daemon, signal); /* threads that do not end cannot be joined */
    join_all(daemon);
    SEMEL__LOG(daemon->log, SEMEL_LOG_INFO, "stopped", SEMEL_F_INT("signal", signal));
    semel__notify_done(&notify);
    return status;
}
