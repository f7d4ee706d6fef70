/* SPDX-License-Identifier: MIT
 *
 * worker.c: the workers of a route. One whose effects are in the database is core's pump on a queue of the handoff, or
 * on the HTTP endpoint of a route that listens; another calls what is outside of it; and the thread of a `pull` route
 * answers those who fetch what the workers have stored.
 *
 * The first worker of a route also ticks: recovery, stored work that is due, purge. Every process does, and core makes
 * that safe. Where messages come from the inbox itself every worker ticks, and there is nothing else to do.
 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>
#include <sys/epoll.h>
#include <stdio.h>

#include "admin/reconcile.h"
#include "base/error.h"
#include "store/query.h"
#include "daemon/internal.h"
#include "daemon/positions.h"
#include "base/str.h"

#define LATER_MS 1000
#define QUIET_MAX 3
#define COUNT_EVERY_US INT64_C(1000000)
#define WARY_US (INT64_C(120) * 1000000)
#define TICK_ROWS 100
#define HELD_MS 200
#define QUIET_MS 1000 /* the longest wait of a worker that does not tick */
#define PULL_MS 250
#define PULL_ARENA_MAX ((size_t)1 << 24)
#define ARENA_MAX ((size_t)128 << 20)
/* Of what is taken at once; more than the inbox reads: memory must not end here, after the commit. */
#define TAKEN_MAX ((size_t)2 << 30)
#define ASK_FIRST_US (INT64_C(2) * 1000000)
#define ASK_CEILING_US (INT64_C(60) * 1000000)
#define ENDS_MAX 64
#define COUNT_PAUSE_US INT64_C(1000000)
#define ASK_ROWS 16
#define UNHEARD_MAX \
    10 /* probes that asked in vain, before a message has to find out: the reconcile alone may be down */

/* ---- opening ------------------------------------------------------------------------------------- */

static void alerted(void *ctx, enum semel_alert alert, const struct semel__msg *msg, struct semel_str text)
{
    static const char *const names[SEMEL_ALERT_COUNT] = {
        [SEMEL_ALERT_DEAD] = "a message is dead",
        [SEMEL_ALERT_CONFLICT] = "the same id came with another payload",
        [SEMEL_ALERT_QUARANTINED] = "a message was put into quarantine",
        [SEMEL_ALERT_UNKNOWN] = "nobody knows whether a message had its effect",
        [SEMEL_ALERT_GAP] = "a missing version did not come in time",
        [SEMEL_ALERT_DAMAGED] = "a stored row cannot be read",
        [SEMEL_ALERT_PARKED_FULL] = "too many messages wait: the source pauses",
    };
    struct daemon_worker *worker = ctx;
    struct daemon_route *route = worker->route;
    char key[SEMEL_STEP_KEY_TEXT];
    bool asked = alert == SEMEL_ALERT_UNKNOWN && msg != NULL && /* the other side knows it by this key */
                 semel__step_key(route->conf->name, msg->source, msg->id, SEMEL_STR("effect"), key);
    semel__stats_alert(route->stats, alert);
    SEMEL__LOG(route->daemon->log, SEMEL_LOG_WARN, names[alert], SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_STR("source", msg != NULL ? msg->source : (struct semel_str){0}),
               SEMEL_F_STR("id", msg != NULL ? msg->id : (struct semel_str){0}),
               SEMEL_F_STR("type", msg != NULL ? msg->type : (struct semel_str){0}),
               SEMEL_F_STR("traceparent", msg != NULL ? msg->traceparent : (struct semel_str){0}),
               SEMEL_F_Z("idempotency_key", asked ? key : NULL), SEMEL_F_STR("why", text));
}

static void observed(void *ctx, const struct semel__msg *msgs, const struct semel_settled *settled, size_t n)
{
    struct daemon_worker *worker = ctx;
    semel__stats_report(worker->stats, msgs, settled, n,
                        worker->route->listens ? semel__ingest_age_us(worker->broker)
                                               : semel__handoff_age_us(worker->broker));
}

/* The source thread takes the partition again, or finds that it is not ours. */
static void fenced(void *ctx, struct semel_str source, int32_t partition, int64_t epoch)
{
    struct daemon_route *route = ctx;
    struct semel_positions *positions = atomic_load(&route->positions);
    if (positions != NULL)
        semel__positions_fenced(positions, source, partition, epoch);
}

/* The gauge is the route's: it is up when every worker is. */
static bool all_up(const struct daemon_route *route)
{
    for (size_t i = 0; i < route->n_workers; i++)
        if (!atomic_load(&route->workers[i].task.up))
            return false;
    return true;
}

/* A batch of slow statements is no thread that hangs. */
static semel_status each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                         struct semel__reply *reply, struct semel_error *err)
{
    struct daemon_worker *worker = ctx;
    const struct semel__handler *sql = semel__sql_handler(worker->sql);
    semel__task_beat(&worker->task);
    return sql->each(sql->ctx, store, msg, attempt, reply, err);
}

static semel_status set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                        struct semel_set *handled, struct semel_error *err)
{
    struct daemon_worker *worker = ctx;
    const struct semel__handler *sql = semel__sql_handler(worker->sql);
    semel__task_beat(&worker->task);
    return sql->set(sql->ctx, store, msgs, n, handled, err);
}

static semel_status open_sql(struct daemon_worker *worker, struct semel_error *err)
{
    const struct semel_route *conf = worker->route->conf;
    struct sql_share *shared = worker->route->daemon->shared;
    struct semel_sql_desc desc = {
        .statement = conf->handler.u.sql.statement,
        .mode = conf->handler.u.sql.set ? SEMEL_SQL_SET : SEMEL_SQL_EACH,
        .values = conf->values.at,
        .n_values = conf->values.n,
        .ordered = conf->policy.order != SEMEL_ORDER_NONE,
    };
    semel__share_lock(shared);
    semel_status status = semel__sql_handler_new(&worker->sql, &desc, worker->store, err);
    semel__share_unlock(shared);
    if (status == SEMEL_OK)
        worker->handler = (struct semel__handler){.ctx = worker,
                                                  .each = each,
                                                  .set = semel__sql_handler(worker->sql)->set != NULL ? set : NULL};
    return status;
}

static semel_status open_all(struct daemon_worker *worker, struct semel_error *err)
{
    struct daemon_route *route = worker->route;
    semel_status status = SEMEL_OK;
    if (worker->store == NULL)
        status = semel__daemon_open_store(route->daemon, &worker->store, err);
    if (status == SEMEL_OK && route->conf->handler.kind == SEMEL_DO_SQL)
        status = open_sql(worker, err);
    if (status != SEMEL_OK && worker->store != NULL) {
        semel_store_close(worker->store);
        worker->store = NULL;
    }
    return status;
}

static void close_all(struct daemon_worker *worker)
{
    struct sql_share *shared = worker->route->daemon->shared;
    semel__share_lock(shared);
    semel__sql_handler_free(worker->sql);
    semel__share_unlock(shared);
    semel_store_close(worker->store);
    worker->sql = NULL;
    worker->store = NULL;
}

static void set_pump(struct daemon_worker *worker)
{
    const struct semel_route *conf = worker->route->conf;
    const struct semel_conf *all = worker->route->daemon->conf;
    struct semel_pump *pump = &worker->pump;
    semel__inbox_init(&worker->inbox, worker->store, &conf->policy, &worker->handler, &worker->rng,
                      semel__str(worker->owner));
    worker->inbox.observer = (struct semel_observer){worker, alerted};
    semel__pump_init(pump, &worker->inbox, worker->broker, &conf->rules);
    pump->breaker = &worker->route->breaker;
    pump->batch_max = (size_t)conf->batch;
    /* In pieces, between which it may stop. */
    int64_t piece = worker->route->stored_only ? conf->batch : TICK_ROWS;
    pump->tick_max = (size_t)(all->schedule.rows < piece ? all->schedule.rows : piece);
    pump->purge_every_us = all->schedule.purge_us;
    pump->later_ms = LATER_MS;
    pump->put_only = conf->handler.kind != SEMEL_DO_SQL;
    /* Kafka's driver says of which deliveries somebody else may have died. */
    pump->doubt = (conf->from.kind->flags & SEMEL_KIND_DOUBTS) == 0;
    pump->observe = observed;
    pump->observe_ctx = worker;
    pump->position_updates.fenced = fenced;
    pump->position_updates.fenced_ctx = worker->route;
}

/* For every worker: a store, an inbox and a pump. Waits and tries again until it succeeds; false: stopped. */
static bool worker_open(struct daemon_worker *worker)
{
    struct daemon_route *route = worker->route;
    semel__random_seed_os(&worker->rng);
    while (!semel__daemon_stopping(route->daemon)) {
        struct semel_error err = {0};
        semel__task_beat(&worker->task);
        semel_status status = open_all(worker, &err);
        if (status == SEMEL_OK) {
            set_pump(worker);
            (void)semel__task_set_up(&worker->task, true, NULL);
            semel__stats_store_up(route->stats, all_up(route));
            worker->failures = 0;
            return true;
        }
        int wait_ms = semel__daemon_backoff_ms(++worker->failures, &worker->rng);
        (void)semel__task_set_up(&worker->task, false, err.text);
        semel__daemon_log(route, status == SEMEL_INVALID ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN,
                          "cannot start the route; retrying", status, &err, wait_ms);
        semel__stats_store_up(route->stats, false);
        semel__daemon_sleep(route->daemon, wait_ms);
    }
    return false;
}

static void worker_close(struct daemon_worker *worker)
{
    if (worker->route->listens && worker->broker != NULL)
        semel__ingest_serve(worker->broker, false); /* who still waits is answered */
    semel__pump_done(&worker->pump);
    semel__inbox_done(&worker->inbox);
    close_all(worker);
}

/* ---- turning ------------------------------------------------------------------------------------- */

/* Waits until it is woken, or, where deliveries are wanted, a poll would deliver: then true. */
static bool worker_wait(struct daemon_worker *worker, int wait_ms, bool deliveries)
{
    struct pollfd fds[] = {{.fd = worker->wake_fd, .events = POLLIN},
                           {.fd = deliveries ? semel_broker_fd(worker->broker) : -1, .events = POLLIN}};
    uint64_t count;
    if (poll(fds, 2, wait_ms) <= 0)
        return false;
    while (fds[0].revents != 0 && read(worker->wake_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    return fds[1].revents != 0;
}

/* Where the worker listens and takes nothing before until_us: nobody has to wait for that. */
static void worker_pauses(struct daemon_worker *worker, int64_t now_us)
{
    if (worker->route->listens && worker->pump.resume_us != SEMEL_NONE && worker->pump.resume_us > now_us)
        semel__ingest_full(worker->broker, worker->pump.resume_us);
}

int semel__daemon_worker_report(struct daemon_worker *worker, semel_status status, const struct semel_error *err)
{
    struct daemon_route *route = worker->route;
    bool up = !worker->pump.store_down;
    if (semel__task_set_up(&worker->task, up, err->text) != up)
        semel__stats_store_up(route->stats, all_up(route));
    semel__stats_counts(worker->stats, &worker->inbox.counts);
    if (status == SEMEL_OK) {
        worker->failures = 0;
        return 0;
    }
    int wait_ms = semel__daemon_backoff_ms(++worker->failures, &worker->rng);
    semel__daemon_log(route, status == SEMEL_FENCED ? SEMEL_LOG_INFO : SEMEL_LOG_WARN,
                      status == SEMEL_FENCED ? "partition reassigned; batch rolled back"
                      : up                   ? "cannot finish a batch; retrying"
                                             : "cannot reach the store; retrying",
                      status, err, wait_ms);
    return wait_ms;
}

/* Counts the unknown outcomes of the route, at most once per second (unknown.next_us is 0: now), and reports when there
 * are unknown_max of them, or fewer again: into worker->unknown.full, the log and the metrics (A10). */
static void count_unknown(struct daemon_worker *worker, struct semel_arena *arena)
{
    const struct semel_route *conf = worker->route->conf;
    struct semel_error err = {0};
    struct semel_count *counts;
    size_t n = 0;
    bool full = false;
    int64_t now_us = semel__steady_us();
    if (conf->policy.effect != SEMEL_EFFECT_OUTSIDE || now_us < worker->unknown.next_us || worker->pump.store_down)
        return;
    worker->unknown.next_us = now_us + COUNT_EVERY_US;
    semel__arena_reset(arena);
    if (semel_query_counts(worker->store, conf->name, conf->unknown_max, 0, arena, &counts, &n, &err) != SEMEL_OK)
        return; /* it stays as it was; the next user of the store reports the error */
    for (size_t i = 0; i < n; i++)
        full |= counts[i].state == SEMEL_ROW_UNKNOWN && counts[i].n >= conf->unknown_max;
    if (full != worker->unknown.full)
        SEMEL__LOG(worker->route->daemon->log, full ? SEMEL_LOG_ERROR : SEMEL_LOG_INFO,
                   full ? "unknown_max is reached: the route takes nothing new until unknown outcomes are resolved"
                        : "fewer outcomes are unknown than unknown_max: the route takes messages again",
                   SEMEL_F_STR("consumer", conf->name), SEMEL_F_INT("unknown_max", conf->unknown_max));
    worker->unknown.full = full;
    semel__stats_full(worker->route->stats, full);
}

/* Reports it, and waits for as long as the environment is to be left alone. */
static void note(struct daemon_worker *worker, semel_status status, const struct semel_error *err)
{
    int wait_ms = semel__daemon_worker_report(worker, status, err);
    if (wait_ms > 0)
        (void)worker_wait(worker, wait_ms, false);
}

void semel__daemon_worker_ticked(struct daemon_worker *worker, int64_t now_us, bool idle)
{
    const struct semel_counts *counts = &worker->inbox.counts;
    uint64_t trouble = counts->failed + counts->recovered + counts->why[SEMEL_WHY_BLOCKED] + counts->why[SEMEL_WHY_GAP];
    if (trouble != worker->trouble)
        worker->wary_until_us = now_us + WARY_US;
    worker->trouble = trouble;
    bool wary = now_us < worker->wary_until_us && worker->wary_until_us - now_us <= WARY_US;
    worker->quiet = !idle || wary || worker->route->stored_only ? 0
                    : worker->quiet < QUIET_MAX                 ? worker->quiet + 1
                                                                : QUIET_MAX;
    worker->next_tick_us = now_us + (worker->route->daemon->conf->schedule.every_us << worker->quiet);
}

int semel__daemon_worker_wait_ms(const struct daemon_worker *worker, int64_t now_us)
{
    if (worker->index > 0 && !worker->route->stored_only)
        return QUIET_MS;
    int64_t left_us = worker->next_tick_us - now_us;
    int64_t every_us = worker->route->daemon->conf->schedule.every_us;
    if (left_us <= 0 || left_us > every_us << QUIET_MAX) /* a clock that jumped back */
        return 0;
    return (int)((left_us + 999) / 1000);
}

static void tick(struct daemon_worker *worker, int64_t now_us)
{
    struct semel_error err = {0};
    size_t n = 0;
    semel_status status = semel__pump_tick(&worker->pump, now_us, &n, &err);
    if (status == SEMEL_OK && worker->index == 0 && !worker->pump.store_down)
        status = semel__daemon_settings_ask(worker, &err);
    bool more = status == SEMEL_OK && n >= worker->pump.tick_max;
    semel__daemon_worker_ticked(worker, now_us, n == 0);
    if (more)
        worker->next_tick_us = now_us;
    note(worker, status, &err);
    if (n > 0 && worker->route->pull != NULL)
        semel__pull_wake(worker->route->pull);
}

static void step(struct daemon_worker *worker, int64_t now_us, int wait_ms)
{
    struct semel_error err = {0};
    size_t n = 0;
    worker->pump.wait_ms = wait_ms;
    semel_status status = semel__pump_step(&worker->pump, now_us, &n, &err);
    note(worker, status, &err);
    worker->quiet = n > 0 ? 0 : worker->quiet;
    if (n > 0 && worker->route->pull != NULL)
        semel__pull_wake(worker->route->pull);
}

static void rest(struct daemon_worker *worker, int64_t until_us, int64_t now_us, int wait_ms)
{
    int64_t left_us = until_us - now_us;
    if (left_us < (int64_t)wait_ms * 1000)
        wait_ms = (int)(left_us / 1000) + 1;
    worker_pauses(worker, now_us);
    (void)worker_wait(worker, wait_ms, false);
}

/* A worker that has the probe keeps others from probing: it asks for it only with a message, or if it must connect. */
static void probe(struct daemon_worker *worker, int wait_ms)
{
    bool down = worker->pump.store_down || worker->pump.broker_down;
    if (down || worker_wait(worker, wait_ms, true))
        step(worker, semel__now(&semel__clock_real), 0);
}

static void turn(struct daemon_worker *worker)
{
    if (semel__daemon_settings_hold(worker)) {
        atomic_store(&worker->rests, true);
        (void)worker_wait(worker, HELD_MS, false);
        return;
    }
    int64_t now_us = semel__now(&semel__clock_real);
    if (semel__daemon_worker_wait_ms(worker, now_us) == 0) {
        tick(worker, now_us);
        now_us = semel__now(&semel__clock_real);
    }
    int wait_ms = semel__daemon_worker_wait_ms(worker, now_us); /* 0: more is due, and deliveries have their turn too */
    int64_t until_us = semel__pump_until(&worker->pump, now_us);
    if (until_us != SEMEL_NONE)
        rest(worker, until_us, now_us, wait_ms);
    else if (semel__pump_probes(&worker->pump, now_us))
        probe(worker, wait_ms);
    else
        step(worker, now_us, wait_ms);
}

static void run_worker(void *arg)
{
    struct daemon_worker *worker = arg;
    if (!worker_open(worker))
        return;
    while (!semel__daemon_stopping(worker->route->daemon)) {
        semel__task_beat(&worker->task);
        turn(worker);
    }
    worker_close(worker);
}

/* ---- pull ---------------------------------------------------------------------------------------- */

static void turn_pull(struct daemon_worker *worker, struct semel_arena *arena)
{
    struct daemon_route *route = worker->route;
    struct semel_error err = {0};
    size_t n = 0;
    semel_status status = SEMEL_OK;
    if (semel__daemon_settings_hold(worker)) {
        semel__pull_close(route->pull);
        (void)worker_wait(worker, PULL_MS, false);
        (void)semel__serve_pull(route->daemon->serve, route->conf);
        return;
    }
    if (worker->pump.store_down) {
        status = semel_store_reopen(worker->store, &err);
        worker->pump.store_down = status != SEMEL_OK;
    }
    if (semel__pull_unknown(route->pull))
        worker->unknown.next_us = 0;
    count_unknown(worker, arena);
    semel__pull_full(route->pull, worker->unknown.full);
    if (status == SEMEL_OK)
        status = semel__pull_step(route->pull, &worker->inbox, PULL_MS, &n, &err);
    worker->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    note(worker, status, &err);
}

static void run_pull(void *arg)
{
    struct daemon_worker *worker = arg;
    struct semel_arena arena;
    semel__arena_init(&arena, PULL_ARENA_MAX);
    if (worker_open(worker)) {
        while (!semel__daemon_stopping(worker->route->daemon)) {
            semel__task_beat(&worker->task);
            turn_pull(worker, &arena);
        }
        worker_close(worker);
    }
    semel__pull_close(worker->route->pull);
    semel__arena_done(&arena);
}

/* ==== effects outside the database ===================================================================
 *
 * Such a worker claims, calls, renews and commits the ends.
 *
 * Invariants: a call starts only after its claim was committed, and at most `concurrency` run. Leases are renewed at a
 * third of their time, whatever the calls do. The worker tries to commit an end until it is committed: the result of a
 * call is kept as long as this process lives; if it dies, the lease runs out. A call that certainly did nothing is no
 * attempt. The worker asks for unknown outcomes (E2) and never repeats a call on a guess. An outage makes few unknown
 * outcomes: a route that pauses asks for one of them before it tries a message, and at `unknown_max` nothing starts.
 */

enum slot_state { SLOT_FREE, SLOT_CALLS, SLOT_ENDED, SLOT_UNTOUCHED };

struct slot {
    enum slot_state state;
    struct semel_arena arena;
    struct semel_call call;
    struct semel_lease lease;   /* of a call that is no reconcile */
    struct semel_ending ending; /* ENDED */
    int64_t started_us, renew_us;
    int64_t updated_us; /* of the row that is asked for */
    bool probe;         /* its answer says whether the other side is back */
};

struct outside {
    struct daemon_worker *worker;
    struct semel_caller *caller;
    int ready_fd; /* an epoll: the worker is woken, or a poll would deliver */
    struct semel_arena arena;
    struct slot *slots;
    struct semel_lease *leases; /* room for as many as there are slots */
    struct semel_ending *endings;
    size_t *which;
    size_t n, used;
    bool may_be_due; /* a message */
    bool cancelled;
    int64_t next_ask_us, ask_every_us;
    int64_t ask_after;  /* the arrival that was asked for last: each has its turn; SEMEL_NONE */
    int64_t rest_us;    /* the store fails: it is left alone until then */
    bool asking, heard; /* while the route pauses: a probe asks; one was answered, so a message may be tried */
    int unheard;        /* probes in a row that asked in vain */
};

/* Calls go on and leases are renewed whatever the store does: so nothing sleeps here. */
static void outside_note(struct outside *o, semel_status status, const struct semel_error *err)
{
    int64_t wait_us = (int64_t)semel__daemon_worker_report(o->worker, status, err) * 1000;
    int64_t most_us = o->worker->route->conf->policy.lease_us / 10;
    if (wait_us > 0)
        o->rest_us = semel__steady_us() + (wait_us < most_us ? wait_us : most_us);
}

/* ---- slots --------------------------------------------------------------------------------------- */

static struct slot *free_slot(struct outside *o)
{
    for (size_t i = 0; i < o->n; i++)
        if (o->slots[i].state == SLOT_FREE)
            return &o->slots[i];
    return NULL;
}

static void slot_free(struct outside *o, struct slot *slot)
{
    slot->state = SLOT_FREE;
    semel__arena_reset(&slot->arena);
    o->used--;
}

static bool slot_fill(struct outside *o, struct slot *slot, const struct semel__msg *msg, int attempt, bool ask)
{
    struct daemon_route *route = o->worker->route;
    if (!semel__msg_copy(&slot->arena, msg, &slot->lease.msg) ||
        !semel__step_key(route->conf->name, msg->source, msg->id, SEMEL_STR("effect"), slot->call.key))
        return false;
    slot->call.tag = slot;
    slot->call.consumer = route->conf->name;
    slot->call.msg = &slot->lease.msg;
    slot->call.attempt = attempt;
    slot->call.ask = ask;
    slot->started_us = semel__steady_us();
    return true;
}

/* Leases that were claimed or taken begin to run. Their time runs since `from_us`, before the claim was begun: one that
 * has lost half of it already is given back, for it could run out before it is renewed. */
static void start_all(struct outside *o, struct semel_lease *leases, size_t n, int64_t from_us)
{
    int64_t lease_us = o->worker->route->conf->policy.lease_us;
    for (size_t i = 0; i < n; i++) {
        struct slot *slot = free_slot(o);
        o->used++;
        slot->lease = leases[i];
        slot->lease.progress.error_text = slot->lease.progress.outcome = (struct semel_str){0};
        slot->lease.progress.lease_owner = semel__str(o->worker->owner);
        slot->renew_us = from_us + lease_us / 3;
        if (!slot_fill(o, slot, &leases[i].msg, leases[i].progress.attempts, false)) {
            struct semel_error ignored = {0}; /* no memory to keep it: given back now, or the lease runs out */
            (void)semel__pump_release(&o->worker->pump, semel__now(&semel__clock_real), &leases[i], 1, &ignored);
            slot_free(o, slot);
            continue;
        }
        slot->state = slot->started_us - from_us > lease_us / 2 ? SLOT_UNTOUCHED : SLOT_CALLS;
        if (slot->state == SLOT_CALLS)
            semel__caller_start(o->caller, &slot->call);
    }
}

/* ---- new work ------------------------------------------------------------------------------------ */

static void claim(struct outside *o, int64_t now_us)
{
    struct semel_error err = {0};
    size_t n = 0;
    int64_t from_us = semel__steady_us();
    semel__arena_reset(&o->arena);
    o->worker->pump.wait_ms = 0;
    semel_status status = semel__pump_claim(&o->worker->pump, now_us, o->n - o->used, &o->arena, o->leases, &n, &err);
    o->heard &= n == 0; /* its end says more than an answer of before */
    start_all(o, o->leases, n, from_us);
    outside_note(o, status, &err);
}

static void take_due(struct outside *o, int64_t now_us)
{
    struct semel_error err = {0};
    size_t n = 0, room = o->n - o->used;
    int64_t from_us = semel__steady_us();
    semel__arena_reset(&o->arena);
    semel_status status = semel__pump_take(&o->worker->pump, now_us, room, &o->arena, o->leases, &n, &err);
    o->heard &= n == 0;
    start_all(o, o->leases, n, from_us);
    o->may_be_due = status == SEMEL_OK && n > 0;
    outside_note(o, status, &err);
}

static void outside_tick(struct outside *o, int64_t now_us)
{
    struct daemon_worker *worker = o->worker;
    struct semel_error err = {0};
    size_t n = 0;
    semel_status status = semel__pump_tick(&worker->pump, now_us, &n, &err);
    if (status == SEMEL_OK && !worker->pump.store_down)
        status = semel__daemon_settings_ask(worker, &err);
    semel__daemon_worker_ticked(worker, now_us, n == 0 && o->used == 0);
    o->may_be_due = status == SEMEL_OK;
    outside_note(o, status, &err);
}

/* ---- what is unknown ----------------------------------------------------------------------------- */

/* Asked for already; or our own call of it, whose lease was lost, runs on: the other side could only say "not yet". */
static bool in_work(const struct outside *o, const struct semel_row *row)
{
    for (size_t i = 0; i < o->n; i++)
        if (o->slots[i].state != SLOT_FREE && semel__str_eq(o->slots[i].lease.msg.id, row->id) &&
            semel__str_eq(o->slots[i].lease.msg.source, row->source))
            return true;
    return false;
}

/* false: it is not asked for now. */
static bool ask_row(struct outside *o, const struct semel_row *row, int64_t store_us, bool probe)
{
    struct semel__msg msg;
    struct slot *slot = free_slot(o);
    if (slot == NULL || in_work(o, row))
        return false;
    if (semel__reconcile_too_early(&o->worker->route->conf->handler, row, store_us)) {
        o->ask_every_us = ASK_FIRST_US;
        return false;
    }
    semel__row_msg(row, &msg);
    o->used++;
    slot->updated_us = row->updated_us;
    slot->probe = probe;
    if (!slot_fill(o, slot, &msg, row->progress.attempts, true)) {
        slot_free(o, slot);
        return false;
    }
    slot->state = SLOT_CALLS;
    semel__caller_start(o->caller, &slot->call);
    return true;
}

/* The next unknown ones after those that were listed last; by the store's clock it is *ret_store_us then. */
static semel_status list_unknown(struct outside *o, size_t max, struct semel_row **ret, size_t *ret_n,
                                 int64_t *ret_store_us)
{
    struct daemon_worker *worker = o->worker;
    struct semel_filter filter = {.consumer = worker->route->conf->name,
                                  .states = 1u << SEMEL_ROW_UNKNOWN,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    struct semel_error err = {0};
    size_t damaged;
    *ret_n = 0;
    semel__arena_reset(&o->arena);
    semel_status status = semel_query_list(worker->store, &filter, o->ask_after, max, false, &o->arena, ret, ret_n,
                                           &damaged, &err);
    if (status == SEMEL_OK && *ret_n > 0)
        status = semel_store_now(worker->store, ret_store_us, &err);
    if (status != SEMEL_OK)
        semel__daemon_log(worker->route, SEMEL_LOG_WARN, "cannot list unknown outcomes", status, &err, 0);
    return status;
}

static bool pauses(const struct outside *o)
{
    return semel__route_breaker_read(o->worker->pump.breaker).state != SEMEL_BREAKER_CLOSED;
}

static void ask(struct outside *o)
{
    struct semel_row *rows;
    size_t n;
    int64_t now_us = semel__steady_us(), store_us = 0;
    if (!o->caller->can_ask || now_us < o->next_ask_us || o->used == o->n || o->worker->pump.store_down)
        return;
    if (pauses(o) && !o->heard)
        return; /* the probe asks */
    o->next_ask_us = now_us + o->ask_every_us;
    o->ask_every_us = o->ask_every_us * 2 < ASK_CEILING_US ? o->ask_every_us * 2 : ASK_CEILING_US;
    if (list_unknown(o, o->n - o->used, &rows, &n, &store_us) != SEMEL_OK)
        return;
    for (size_t i = 0; i < n; i++)
        (void)ask_row(o, &rows[i], store_us, false);
    if (o->ask_after != SEMEL_NONE && n == 0)
        o->next_ask_us = now_us; /* begin again with the first */
    o->ask_after = n > 0 ? rows[n - 1].arrival : SEMEL_NONE;
}

/* ---- while the route pauses ---------------------------------------------------------------------- */

/* Asks for one that is unknown; each has its turn. false: there is none to ask for. */
static bool ask_one(struct outside *o)
{
    struct semel_row *rows;
    size_t n;
    int64_t store_us = 0;
    for (bool again = true; again;) {
        again = o->ask_after != SEMEL_NONE;
        if (list_unknown(o, ASK_ROWS, &rows, &n, &store_us) != SEMEL_OK)
            return false;
        for (size_t i = 0; i < n; i++) {
            o->ask_after = rows[i].arrival;
            if (ask_row(o, &rows[i], store_us, true))
                return true;
        }
        if (n < ASK_ROWS)
            o->ask_after = SEMEL_NONE;
    }
    return false;
}

/* May messages be taken? While the route pauses only after a reconcile was answered: a message that is tried while the
 * other side is down is one more unknown outcome. Where too many are unknown, it asks nevertheless. */
static bool may_start(struct outside *o, int64_t now_us)
{
    struct semel_pump *pump = &o->worker->pump;
    if (!pauses(o))
        o->heard = false;
    else if (o->caller->can_ask && !o->heard && !pump->store_down) {
        if (o->asking || o->used == o->n || semel__route_breaker_ask(pump->breaker, pump, now_us) != SEMEL_GATE_PROBE)
            return false;
        o->asking = ask_one(o);
        if (o->asking)
            return false;
        o->heard = true; /* nothing is unknown: a message has to find out */
        semel__route_breaker_end(pump->breaker, pump, now_us);
    }
    return !o->worker->unknown.full;
}

/* A probe has asked. */
static void probed(struct outside *o, const struct semel_call_end *end)
{
    struct semel_pump *pump = &o->worker->pump;
    int64_t now_us = semel__now(&semel__clock_real);
    bool heard = end->not_asked || (end->status == SEMEL_OK && end->heard);
    o->asking = false;
    o->unheard = heard ? 0 : o->unheard + 1;
    if (heard || o->unheard > UNHEARD_MAX) {
        o->heard = true;
        o->unheard = 0;
        semel__route_breaker_end(pump->breaker, pump, now_us);
    } else {
        semel__pump_fail(pump, SEMEL_CLASS_UNKNOWN, "the reconcile was not answered", now_us);
    }
}

/* The other side has answered: what was unknown is known, or stays so. */
static void answered(struct outside *o, struct slot *slot, const struct semel_call_end *end)
{
    struct daemon_worker *worker = o->worker;
    const struct semel__msg *msg = &slot->lease.msg;
    struct semel_str reason;
    bool done;
    struct semel_error err = {0};
    if (slot->probe)
        probed(o, end);
    if (end->not_asked)
        SEMEL__LOG(worker->route->daemon->log, SEMEL_LOG_WARN, "cannot reconcile; the outcome stays unknown",
                   SEMEL_F_STR("consumer", worker->route->conf->name), SEMEL_F_STR("source", msg->source),
                   SEMEL_F_STR("id", msg->id), SEMEL_F_Z("idempotency_key", slot->call.key),
                   SEMEL_F_STR("why", end->reason));
    semel_status status = semel__reconcile_record(&worker->inbox, msg, slot->updated_us, SEMEL_STR("reconcile"), end,
                                                  &reason, &done, &err);
    if (done)
        SEMEL__LOG(worker->route->daemon->log, SEMEL_LOG_INFO, "reconciled",
                   SEMEL_F_STR("consumer", worker->route->conf->name), SEMEL_F_STR("source", msg->source),
                   SEMEL_F_STR("id", msg->id), SEMEL_F_Z("idempotency_key", slot->call.key),
                   SEMEL_F_STR("why", reason));
    else if (status != SEMEL_OK)
        semel__daemon_log(worker->route, SEMEL_LOG_WARN, "cannot record what the reconcile reported", status, &err, 0);
    worker->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    if (semel__str_given(reason)) {
        o->ask_every_us = ASK_FIRST_US;
        o->may_be_due = true;
    }
    slot_free(o, slot);
}

/* ---- ends ---------------------------------------------------------------------------------------- */

static void ended(struct outside *o, const struct semel_call_end *end)
{
    struct slot *slot = end->tag;
    struct daemon_route *route = o->worker->route;
    semel__stats_call(route->stats, end->status == SEMEL_OK ? end->result : SEMEL_TRANSIENT, end->ask, end->refused_key,
                      semel__steady_us() - slot->started_us);
    if (end->ask) {
        answered(o, slot, end);
        return;
    }
    slot->state = SLOT_ENDED;
    slot->ending = (struct semel_ending){.result = end->result};
    if (end->status != SEMEL_OK) {
        slot->state = SLOT_UNTOUCHED;
        semel__pump_fail(&o->worker->pump, end->err.cls, end->err.text, semel__now(&semel__clock_real));
        semel__daemon_log(route, end->err.cls == SEMEL_CLASS_BROKEN ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN,
                          "cannot make a call; its message is given back", end->status, &end->err, 0);
        return;
    }
    (void)semel__arena_copy(&slot->arena, end->reason, &slot->ending.text);
    (void)semel__arena_copy(&slot->arena, end->outcome, &slot->ending.outcome);
    if (end->result == SEMEL_MAYBE) {
        o->worker->unknown.next_us = 0;
        o->ask_every_us = ASK_FIRST_US;
        o->next_ask_us = semel__steady_us() + ASK_FIRST_US;
    }
}

static size_t gather(struct outside *o, enum slot_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++) {
        if (o->slots[i].state != state)
            continue;
        o->leases[n] = o->slots[i].lease;
        o->endings[n] = o->slots[i].ending;
        o->which[n++] = i;
    }
    return n;
}

/* Commits what has ended and gives back what was not touched; what could not be is tried again. */
static void settle(struct outside *o)
{
    struct daemon_worker *worker = o->worker;
    struct semel_error err = {0};
    int64_t now_us = semel__now(&semel__clock_real);
    semel_status status = SEMEL_OK;
    size_t n = gather(o, SLOT_ENDED);
    bool tried = n > 0;
    if (n > 0)
        status = semel__pump_finish(&worker->pump, now_us, o->leases, o->endings, n, &err);
    for (size_t i = 0; i < n; i++) {
        /* One that others hold locked does not keep the rest from being committed. */
        if (status != SEMEL_OK && !o->leases[i].lost && o->leases[i].progress.state == SEMEL_ROW_PROCESSING)
            continue;
        slot_free(o, &o->slots[o->which[i]]);
        o->may_be_due = true; /* the next of its key may run */
    }
    n = status == SEMEL_OK ? gather(o, SLOT_UNTOUCHED) : 0;
    tried |= n > 0;
    if (n > 0)
        status = semel__pump_release(&worker->pump, now_us, o->leases, n, &err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        slot_free(o, &o->slots[o->which[i]]);
    if (tried)
        outside_note(o, status, &err);
}

static void renew(struct outside *o)
{
    struct daemon_worker *worker = o->worker;
    struct semel_error err = {0};
    int64_t now_us = semel__steady_us();
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++) {
        struct slot *slot = &o->slots[i];
        if (slot->state != SLOT_CALLS || slot->call.ask || slot->lease.lost || slot->renew_us > now_us)
            continue;
        o->leases[n] = slot->lease;
        o->which[n++] = i;
    }
    if (n == 0)
        return;
    semel_status status = semel__pump_renew(&worker->pump, semel__now(&semel__clock_real), o->leases, n, &err);
    for (size_t i = 0; i < n; i++) {
        struct slot *slot = &o->slots[o->which[i]];
        slot->renew_us = now_us + worker->route->conf->policy.lease_us / (status == SEMEL_OK ? 3 : 10);
        slot->lease.progress.lease_until_us = o->leases[i].progress.lease_until_us;
        slot->lease.lost = o->leases[i].lost;
        if (status == SEMEL_OK && slot->lease.lost)
            SEMEL__LOG(worker->route->daemon->log, SEMEL_LOG_WARN, "lease expired during call; result will be refused",
                       SEMEL_F_STR("consumer", worker->route->conf->name), SEMEL_F_STR("id", slot->lease.msg.id));
    }
    outside_note(o, status, &err);
}

/* ---- turning ------------------------------------------------------------------------------------- */

static bool rests(const struct outside *o)
{
    return semel__steady_us() < o->rest_us;
}

static int wait_of(const struct outside *o, bool stopping)
{
    int64_t now_us = semel__steady_us();
    int64_t wait_ms = stopping || atomic_load(&o->worker->route->held)
                          ? 100
                          : semel__daemon_worker_wait_ms(o->worker, semel__now(&semel__clock_real));
    if (!stopping && now_us < o->rest_us)
        wait_ms = (o->rest_us - now_us) / 1000 + 1;
    for (size_t i = 0; i < o->n; i++) {
        const struct slot *slot = &o->slots[i];
        int64_t left_ms = (slot->renew_us - now_us) / 1000;
        if (slot->state == SLOT_CALLS && !slot->call.ask && !slot->lease.lost && left_ms < wait_ms)
            wait_ms = left_ms > 0 ? left_ms : 0;
    }
    return (int)wait_ms;
}

static void wait_ends(struct outside *o, bool stopping)
{
    struct daemon_worker *worker = o->worker;
    struct semel_call_end ends[ENDS_MAX];
    int64_t now_us = semel__now(&semel__clock_real);
    bool paused = semel__pump_until(&worker->pump, now_us) != SEMEL_NONE;
    bool held = atomic_load(&worker->route->held);
    bool open = !stopping && !held && !rests(o) && !paused && o->used < o->n, again = open && o->may_be_due;
    size_t n = semel__caller_wait(o->caller, again ? 0 : wait_of(o, stopping), open ? o->ready_fd : worker->wake_fd,
                                  ends, ENDS_MAX);
    (void)worker_wait(worker, 0, false); /* consumes the wake-up */
    for (size_t i = 0; i < n; i++)
        ended(o, &ends[i]);
}

/* Calls that run come to their end; nothing is begun. */
static void turn_held(struct outside *o)
{
    atomic_store(&o->worker->rests, o->used == 0);
    wait_ends(o, false);
    renew(o);
    if (!rests(o))
        settle(o);
}

static void outside_turn(struct outside *o)
{
    if (semel__daemon_settings_hold(o->worker)) {
        turn_held(o);
        return;
    }
    int64_t now_us = semel__now(&semel__clock_real);
    if (!rests(o) && semel__daemon_worker_wait_ms(o->worker, now_us) == 0)
        outside_tick(o, now_us);
    if (!rests(o))
        count_unknown(o->worker, &o->arena);
    if (o->worker->unknown.full)
        o->worker->pump.resume_us = now_us + COUNT_PAUSE_US;
    bool start = !rests(o) && may_start(o, now_us);
    if (start && o->may_be_due && o->used < o->n)
        take_due(o, now_us);
    if (start && !rests(o) && o->used < o->n)
        claim(o, now_us);
    worker_pauses(o->worker, now_us);
    if (!rests(o))
        ask(o);
    wait_ends(o, false);
    renew(o);
    if (!rests(o))
        settle(o);
}

/* Waits for running calls, up to the limit for stopping; then cancels them and records their outcome as it is known. */
static void outside_finish(struct outside *o)
{
    struct semel_daemon *daemon = o->worker->route->daemon;
    while (o->used > 0) {
        semel__task_beat(&o->worker->task);
        if (!o->cancelled && atomic_load(&daemon->cancel)) {
            o->cancelled = true;
            semel__caller_cancel(o->caller);
        }
        wait_ends(o, true);
        renew(o);
        settle(o); /* there is no time for a rest */
        if (o->cancelled && semel__steady_us() > atomic_load(&daemon->stop_us))
            return;
    }
}

/* ---- life ---------------------------------------------------------------------------------------- */

static bool open_caller(struct outside *o)
{
    struct daemon_route *route = o->worker->route;
    const struct semel_do *handler = &route->conf->handler;
    for (int failures = 1; !semel__daemon_stopping(route->daemon); failures++) {
        struct semel_error err = {0};
        semel__task_beat(&o->worker->task);
        semel_status status = semel__reconcile_caller(&o->caller, handler, INT64_MAX, &err);
        if (status == SEMEL_OK)
            return true;
        int wait_ms = semel__daemon_backoff_ms(failures, &o->worker->rng);
        semel__daemon_log(route, SEMEL_LOG_ERROR, "cannot start the route; retrying", status, &err, wait_ms);
        semel__daemon_sleep(route->daemon, wait_ms);
    }
    return false;
}

static bool make_ready_fd(struct outside *o)
{
    struct epoll_event wanted = {.events = EPOLLIN};
    o->ready_fd = epoll_create1(EPOLL_CLOEXEC);
    return o->ready_fd >= 0 && epoll_ctl(o->ready_fd, EPOLL_CTL_ADD, o->worker->wake_fd, &wanted) == 0 &&
           epoll_ctl(o->ready_fd, EPOLL_CTL_ADD, semel_broker_fd(o->worker->broker), &wanted) == 0;
}

static bool make_slots(struct outside *o)
{
    o->n = o->caller->concurrency;
    o->slots = semel__calloc(o->n, sizeof *o->slots);
    o->leases = semel__calloc(o->n, sizeof *o->leases);
    o->endings = semel__calloc(o->n, sizeof *o->endings);
    o->which = semel__calloc(o->n, sizeof *o->which);
    if (o->slots == NULL || o->leases == NULL || o->endings == NULL || o->which == NULL)
        return false;
    for (size_t i = 0; i < o->n; i++)
        semel__arena_init(&o->slots[i].arena, ARENA_MAX);
    return true;
}

static void outside_done(struct outside *o)
{
    for (size_t i = 0; o->slots != NULL && i < o->n; i++)
        semel__arena_done(&o->slots[i].arena);
    semel__free(o->slots);
    semel__free(o->leases);
    semel__free(o->endings);
    semel__free(o->which);
    semel__arena_done(&o->arena);
    if (o->caller != NULL)
        semel__caller_free(o->caller);
    if (o->ready_fd >= 0)
        close(o->ready_fd);
}

static void run_outside(void *arg)
{
    struct daemon_worker *worker = arg;
    struct outside o = {
        .worker = arg, .ready_fd = -1, .may_be_due = true, .ask_every_us = ASK_FIRST_US, .ask_after = SEMEL_NONE};
    semel__arena_init(&o.arena, TAKEN_MAX);
    if (open_caller(&o) && worker_open(worker)) {
        if (make_slots(&o) && make_ready_fd(&o)) {
            while (!semel__daemon_stopping(worker->route->daemon)) {
                semel__task_beat(&worker->task);
                outside_turn(&o);
            }
            outside_finish(&o);
        }
        worker_close(worker);
    }
    outside_done(&o);
}

/* ==== the thread ===================================================================================== */

semel_status semel__daemon_worker_start(struct daemon_worker *worker, struct semel_error *err)
{
    const enum semel_do_kind kind = worker->route->conf->handler.kind;
    const bool calls = kind == SEMEL_DO_HTTP || kind == SEMEL_DO_EXEC;
    if (worker->broker == NULL)
        return semel__task_start(&worker->task, "pull", run_pull, worker, err);
    return semel__task_start(&worker->task, calls ? "calls" : "worker", calls ? run_outside : run_worker, worker, err);
}
