/* SPDX-License-Identifier: MIT
 *
 * internal.h: private to the daemon: what runs, and who may touch it.
 */
#ifndef SEMEL_DAEMON_INTERNAL_H
#define SEMEL_DAEMON_INTERNAL_H

#include "admin/serve.h"
#include "admin/stats.h"
#include "base/wait.h"
#include "core/pump.h"
#include "daemon/daemon.h"
#include "daemon/handoff.h"
#include "daemon/task.h"
#include "handler/caller.h"
#include "handler/sql.h"
#include "store/share.h"

/* ---- units ---------------------------------------------------------------------------------------
 *
 * What a daemon runs is a list of units, each made from an entry of the settings. daemon.c knows kinds of units by
 * this table alone. */

struct semel_unit;

enum semel_unit_ready {
    SEMEL_UNIT_STARTING,
    SEMEL_UNIT_HELD,
    SEMEL_UNIT_READY
}; /* held: on purpose, until a person acts */

struct semel_unit_kind {
    const char *section; /* of the settings */
    /* Makes every unit of the kind, with its tasks, and adds it; no thread runs yet. */
    semel_status (*build)(struct semel_daemon *daemon, struct semel_error *err);
    semel_status (*start)(struct semel_unit *unit, struct semel_error *err);
    void (*stop)(struct semel_unit *unit); /* the daemon stops: wakes its tasks, which see that */
    /* Not READY: appends the reason, for /readyz. Any thread. */
    enum semel_unit_ready (*ready)(struct semel_unit *unit, struct semel_buf *why);
    void (*json)(struct semel_unit *unit, struct semel_buf *json); /* one object. Any thread */
    /* Counts what the unit has in the store, for its gauges. By the task that counts. */
    semel_status (*count)(struct semel_unit *unit, struct semel_store *store, struct semel_arena *arena,
                          struct semel_error *err);
    /* Both NULL, or: reads certificates again; uses them, or drops them. */
    semel_status (*reload)(struct semel_unit *unit, struct semel_error *err);
    void (*reloaded)(struct semel_unit *unit, bool use);
    void (*free)(struct semel_unit *unit);
};

struct semel_unit {
    const struct semel_unit_kind *kind;
    struct semel_daemon *daemon;
    struct semel_unit *next;
};

extern const struct semel_unit_kind semel__daemon_routes;   /* route.c */
extern const struct semel_unit_kind semel__daemon_outboxes; /* outbox.c */
extern const struct semel_unit_kind semel__daemon_gateways; /* gateway.c */

struct semel_daemon {
    const struct semel_conf *conf;
    struct semel_daemon_options options;
    struct semel_log *log;
    struct semel_stats *stats;
    struct semel_serve *serve;
    struct sql_share *shared; /* SQLite */
    struct semel_unit *units, **units_end;
    size_t n_units;
    struct semel_serve_view view;
    char host[64];
    struct semel_tasks tasks;
    struct semel_task http, counts, api, others;
    pthread_mutex_t lock; /* for who waits for the stop, or until it is roused */
    pthread_cond_t stops;
    atomic_bool stopping, cancel; /* cancel: what still runs is given up */
    _Atomic int64_t stop_us;      /* by the steady clock: when patience ends */
};

void semel__daemon_add(struct semel_daemon *daemon, struct semel_unit *unit);
bool semel__daemon_stopping(const struct semel_daemon *daemon);
/* Waits until it stops, but not longer; for threads that have nothing else to wait for. */
void semel__daemon_sleep(struct semel_daemon *daemon, int ms);
/* The same, or until *roused, if it is given: then true. Who sets that calls the second. */
bool semel__daemon_doze(struct semel_daemon *daemon, int ms, const atomic_bool *roused);
void semel__daemon_rouse(struct semel_daemon *daemon);
/* How long to wait after the n-th failure in a row, with jitter: 50 ms to 5 s. */
int semel__daemon_backoff_ms(int failures, struct semel_random *rng);
semel_status semel__daemon_open_store(struct semel_daemon *daemon, struct semel_store **ret, struct semel_error *err);

/* ---- routes -------------------------------------------------------------------------------------- */

struct daemon_route;

struct daemon_worker {
    struct semel_task task;
    struct daemon_route *route;
    size_t index;
    char owner[128];             /* of leases: unique to this incarnation */
    int wake_fd;                 /* an eventfd: somebody wants it to look around */
    struct semel_broker *broker; /* a queue of the handoff, or its handle of the endpoint; NULL: it answers pulls */
    /* Of its thread alone. */
    struct semel_store *store;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_pump pump;
    struct semel_worker_stats *stats;
    bool serves;       /* the endpoint, where its route listens; without a source: it runs */
    atomic_bool rests; /* its route is held, and it has nothing that it could still answer; for the source */
    struct semel_sql *sql;
    struct semel__handler handler;
    int64_t next_tick_us;
    int quiet;             /* ticks in a row that found nothing while nothing came */
    uint64_t trouble;      /* what has failed or waits, as counted at the last tick */
    int64_t wary_until_us; /* something has, a while ago: retries are to be in time */
    int failures;          /* of the environment, in a row */
    struct {
        bool full; /* as many outcomes are unknown as may be: nothing starts */
        int64_t next_us;
    } unknown;
};

struct daemon_route {
    struct semel_unit unit;
    struct semel_daemon *daemon;
    const struct semel_route *conf;
    bool listens;     /* its workers poll the HTTP endpoint; there is no source thread */
    bool stored_only; /* `from: inbox`: nothing is delivered; every worker ticks, and the handoff is empty */
    struct semel_handoff *handoff; /* NULL: it listens */
    struct semel_pull *pull;
    struct semel_positions *_Atomic positions; /* of the source thread; a worker reports that one was taken over */
    struct semel_task source;                  /* without a source thread: up while its workers serve */
    struct daemon_worker *workers;
    size_t n_workers;
    struct semel_route_stats *stats;
    struct semel_route_breaker breaker; /* of all its workers */
    pthread_mutex_t breaker_lock;
    int openings;                  /* as they were logged last; under that lock */
    atomic_bool held;              /* what is stored is not what the file says: nothing is taken */
    pthread_mutex_t lock;          /* of why_held */
    char why_held[SEMEL_TASK_WHY]; /* "": not known yet */
    bool stored;                   /* the file's settings were stored; of the first worker's thread, as is the next */
    int64_t next_ask_us, rest_us;  /* by the steady clock */
};

/* retry_ms: when it is tried again; 0: that is left out. */
void semel__daemon_log(const struct daemon_route *route, enum semel_log_level level, const char *text,
                       semel_status status, const struct semel_error *err, int retry_ms);

/* route.c: whether the route may run. Asks the store, and holds the route or lets it run: by the first worker, at
 * every tick. */
semel_status semel__daemon_settings_ask(struct daemon_worker *worker, struct semel_error *err);
/* The turn of a worker whose route is held: serves nobody, keeps house, asks again. false: it is not held. */
bool semel__daemon_settings_hold(struct daemon_worker *worker);

/* worker.c: starts its thread: for effects in the database, for calls (http, exec), or for those who pull. */
semel_status semel__daemon_worker_start(struct daemon_worker *worker, struct semel_error *err);
/* Reports and counts what a step or tick came to; returns how long to leave the environment alone, in milliseconds. */
int semel__daemon_worker_report(struct daemon_worker *worker, semel_status status, const struct semel_error *err);
/* When it ticks again: after the set time, and where nothing happens after up to eight times as long. */
void semel__daemon_worker_ticked(struct daemon_worker *worker, int64_t now_us, bool idle);
/* Milliseconds until the next tick; one that is due is 0. */
int semel__daemon_worker_wait_ms(const struct daemon_worker *worker, int64_t now_us);

#endif
