/* SPDX-License-Identifier: MIT
 *
 * worker.c: a worker whose effects are in the database: core's pump on a queue of the handoff, or on the HTTP endpoint
 * of a route that listens. And the thread of a `pull` route that answers those who fetch what the workers have stored.
 *
 * The first worker of a route also ticks: recovery, stored work that is due, purge. Every process does, and core makes
 * that safe. Where messages come from the inbox itself every worker ticks, and there is nothing else to do.
 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "store/query.h"
#include "daemon/internal.h"
#include "daemon/positions.h"

#define LATER_MS 1000
#define QUIET_MAX 3
#define COUNT_EVERY_US INT64_C(1000000)
#define WARY_US (INT64_C(120) * 1000000)
#define TICK_ROWS 100
#define HELD_MS 200
#define QUIET_MS 1000 /* the longest wait of a worker that does not tick */
#define PULL_MS 250
#define PULL_ARENA_MAX ((size_t)1 << 24)

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

bool semel__daemon_worker_open(struct daemon_worker *worker)
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

void semel__daemon_worker_close(struct daemon_worker *worker)
{
    if (worker->route->listens && worker->broker != NULL)
        semel__ingest_serve(worker->broker, false); /* who still waits is answered */
    semel__pump_done(&worker->pump);
    semel__inbox_done(&worker->inbox);
    close_all(worker);
}

/* ---- turning ------------------------------------------------------------------------------------- */

bool semel__daemon_worker_wait(struct daemon_worker *worker, int wait_ms, bool deliveries)
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

void semel__daemon_worker_pauses(struct daemon_worker *worker, int64_t now_us)
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

void semel__daemon_count_unknown(struct daemon_worker *worker, struct semel_arena *arena)
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
        full |= counts[i].state == SEMEL_STATE_UNKNOWN && counts[i].n >= conf->unknown_max;
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
        (void)semel__daemon_worker_wait(worker, wait_ms, false);
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
    if (status == SEMEL_OK && worker->index == 0)
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
    semel__daemon_worker_pauses(worker, now_us);
    (void)semel__daemon_worker_wait(worker, wait_ms, false);
}

/* Whoever has the probe keeps it from the others: so only who has a message takes it, or who must connect first. */
static void probe(struct daemon_worker *worker, int wait_ms)
{
    bool down = worker->pump.store_down || worker->pump.broker_down;
    if (down || semel__daemon_worker_wait(worker, wait_ms, true))
        step(worker, semel__now(&semel__clock_real), 0);
}

static void turn(struct daemon_worker *worker)
{
    if (semel__daemon_settings_hold(worker)) {
        atomic_store(&worker->rests, true);
        (void)semel__daemon_worker_wait(worker, HELD_MS, false);
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

void semel__daemon_worker(void *arg)
{
    struct daemon_worker *worker = arg;
    if (!semel__daemon_worker_open(worker))
        return;
    while (!semel__daemon_stopping(worker->route->daemon)) {
        semel__task_beat(&worker->task);
        turn(worker);
    }
    semel__daemon_worker_close(worker);
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
        (void)semel__daemon_worker_wait(worker, PULL_MS, false);
        (void)semel__serve_pull(route->daemon->serve, route->conf);
        return;
    }
    if (worker->pump.store_down) {
        status = semel_store_reopen(worker->store, &err);
        worker->pump.store_down = status != SEMEL_OK;
    }
    if (semel__pull_unknown(route->pull))
        worker->unknown.next_us = 0;
    semel__daemon_count_unknown(worker, arena);
    semel__pull_full(route->pull, worker->unknown.full);
    if (status == SEMEL_OK)
        status = semel__pull_step(route->pull, &worker->inbox, PULL_MS, &n, &err);
    worker->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    note(worker, status, &err);
}

void semel__daemon_pull(void *arg)
{
    struct daemon_worker *worker = arg;
    struct semel_arena arena;
    semel__arena_init(&arena, PULL_ARENA_MAX);
    if (semel__daemon_worker_open(worker)) {
        while (!semel__daemon_stopping(worker->route->daemon)) {
            semel__task_beat(&worker->task);
            turn_pull(worker, &arena);
        }
        semel__daemon_worker_close(worker);
    }
    semel__pull_close(worker->route->pull);
    semel__arena_done(&arena);
}
