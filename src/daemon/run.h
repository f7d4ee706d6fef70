/* SPDX-License-Identifier: MIT
 *
 * run.h: private to the daemon: what runs, and who may touch it.
 */
#ifndef SEMEL_DAEMON_RUN_H
#define SEMEL_DAEMON_RUN_H

#include <pthread.h>
#include <stdatomic.h>

#include "admin/serve.h"
#include "admin/stats.h"
#include "base/wait.h"
#include "core/pump.h"
#include "daemon/daemon.h"
#include "daemon/hand.h"
#include "handler/caller.h"
#include "handler/sql.h"
#include "store/share.h"

struct semel_positions;

struct run_route;

/* What others may know of a thread. */
struct run_thread {
    pthread_t id;
    atomic_bool started;
    atomic_bool up; /* connected, and able to do its work */
    atomic_bool ended;
    _Atomic int64_t beat_us; /* monotonic: when it last came round */
};

struct run_worker {
    struct run_thread thread;
    struct run_route *route;
    size_t index;
    char owner[128]; /* of leases: unique to this incarnation */
    /* Of its thread alone. */
    struct semel_store *store;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_pump pump;
    struct semel_broker *side;
    struct semel_worker_stats *stats;
    atomic_bool rests; /* its route is held, and it has nothing that it could still answer; for the source */
    struct semel_sql *sql;
    struct semel__handler handler;
    int64_t next_tick_us;
    int quiet;             /* ticks in a row that found nothing while nothing came */
    uint64_t trouble;      /* what has failed or waits, as counted at the last tick */
    int64_t wary_until_us; /* something has, a while ago: retries are to be in time */
    int failures;          /* of the world, in a row */
    struct {
        bool full; /* as many outcomes are unknown as may be: nothing starts */
        int64_t next_us;
    } unknown;
};

struct run_route {
    struct semel_daemon *daemon;
    const struct semel_route *conf;
    struct semel_hand *hand;
    struct semel_broker *broker; /* of the source thread, once that has begun */
    struct semel_pull *pull;
    struct semel_positions *_Atomic positions; /* of the source thread, for workers to tell it that one was taken */
    struct run_thread source;
    char why_down[256]; /* what the source said last; under the daemon's lock */
    struct run_worker *workers;
    size_t n_workers;
    struct semel_route_stats *stats;
    struct semel_route_breaker breaker; /* of all its workers */
    pthread_mutex_t breaker_lock;
    int openings;                 /* as they were told last; under that lock */
    atomic_bool held;             /* what is stored is not what the file says: nothing is taken (settings.c) */
    char why_held[300];           /* "": not known yet; under the daemon's lock */
    bool stored;                  /* the file's settings were stored; of the first worker's thread, as is the next */
    int64_t next_ask_us, rest_us; /* monotonic */
};

struct semel_daemon {
    const struct semel_conf *conf;
    struct semel_daemon_options options;
    struct semel_log *log;
    struct semel_stats *stats;
    struct semel_serve *serve;
    struct sql_share *shared; /* SQLite */
    struct run_route *routes;
    size_t n_routes;
    struct semel_serve_view view;
    char host[64];
    struct run_thread http, watch, api;
    pthread_mutex_t lock; /* for who waits for the stop, and for why_down */
    pthread_cond_t stops;
    atomic_bool stopping, cancel; /* cancel: what still runs is given up */
    _Atomic int64_t stop_us;      /* monotonic: when patience ends */
};

/* The beat of a thread that is alive. */
void run_beat(struct run_thread *thread);
bool run_stopping(const struct semel_daemon *daemon);
/* Waits until it stops, but not longer; for threads that have nothing else to wait for. */
void run_sleep(struct semel_daemon *daemon, int ms);
/* How long to wait after the n-th failure in a row, with jitter: 50 ms to 5 s. */
int run_backoff_ms(int failures, struct semel_random *rng);
void run_log_failure(struct run_route *route, enum semel_log_level level, const char *text, semel_status status,
                     const struct semel_error *err);

/* What /readyz says until the source is up again. */
void run_source_down(struct run_route *route, const struct semel_error *err);

/* open.c: from settings to drivers. */
semel_status run_open_broker(struct run_route *route, struct semel_broker **ret, struct semel_error *err);
semel_status run_open_store(struct semel_daemon *daemon, struct semel_store **ret, struct semel_error *err);
semel_status run_open_caller(struct run_route *route, struct semel_caller **ret, struct semel_error *err);

/* The threads. Each takes its route, worker or daemon. */
void *run_source(void *route);
void *run_worker(void *worker);  /* effects in the database, and what is stored for pull */
void *run_outside(void *worker); /* http, exec */
void *run_pull(void *worker);    /* answers those who pull */
void *run_watch(void *daemon);   /* looks at the store for the gauges */
void *run_api(void *daemon);     /* answers operators */

/* settings.c: whether the route may run. Asks the store, and holds the route or lets it run: by the first worker, at
 * every tick. */
semel_status run_settings_ask(struct run_worker *worker, struct semel_error *err);
/* The turn of a worker whose route is held: gives back what waits, keeps house, asks again. false: it is not held. */
bool run_settings_hold(struct run_worker *worker);
/* The route is held, and no worker has anything to answer. */
bool run_settings_rest(const struct run_route *route);
/* Every route runs, or is held and says why. */
bool run_started(struct semel_daemon *daemon);

/* breaker.c: after the hand and the stats of the route are there, before its threads. */
semel_status run_breaker_init(struct run_route *route, struct semel_error *err);
void run_breaker_done(struct run_route *route);
/* Whether a route that pauses gives back what waits: who sent it by HTTP is told at once. */
bool run_gives_back(const struct run_route *route);
/* Does so, when it does; it pauses until then. false: it could not be given back, and that was logged. */
bool run_give_back(struct run_worker *worker, int64_t until_us, int64_t now_us);

/* worker.c: a store, an inbox and a pump for the thread. Waits and tries again until it succeeds; false: stopped. */
bool run_worker_open(struct run_worker *worker);
void run_worker_close(struct run_worker *worker);
/* What a step or tick came to: told and counted; returns how long to leave the world alone, in milliseconds. */
int run_worker_told(struct run_worker *worker, semel_status status, const struct semel_error *err);
/* The same, and waits for as long. */
/* Counts the unknown outcomes of the route, at most once a second (unknown.next_us is 0: now), and tells when there are
 * unknown_max of them, or fewer again: into worker->unknown.full, the log and the metrics (A10). */
void run_unknown_count(struct run_worker *worker, struct semel_arena *arena);
void run_worker_note(struct run_worker *worker, semel_status status, const struct semel_error *err);
/* When it ticks again: after the set time, and where nothing happens after up to eight times as long. */
void run_worker_ticked(struct run_worker *worker, int64_t now_us, bool idle);
/* Milliseconds until the next tick; one that is due is 0. */
int run_worker_wait_ms(const struct run_worker *worker, int64_t now_us);

#endif
