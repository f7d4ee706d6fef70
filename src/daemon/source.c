/* SPDX-License-Identifier: MIT
 *
 * source.c: the source thread of a route: polls the broker, hands deliveries to the workers, applies their answers.
 *
 * Invariants: nothing but this thread touches the broker. It never waits for a worker: when the handoff is full it
 * keeps polling, for nothing, so that the membership, heartbeats and visibility are kept. It acknowledges only what a
 * worker has answered, and a worker answers after its commit.
 */
#include "base/error.h"
#include "daemon/positions.h"
#include "daemon/internal.h"

#define POLL_MAX 2000
#define IDLE_MS 1000 /* the longest wait: for new deliveries, or for a stop */
#define BUSY_MS 10   /* while workers have something, their answers are due soon */
#define FULL_MS 100  /* the longest wait for room that is worth a poll */
#define HELD_MS 50
#define LOOK_US 1000000
#define ARENA_MAX ((size_t)256 << 20)

struct source {
    struct daemon_route *route;
    struct semel_broker *broker;
    struct semel_store *store; /* for positions that are kept there */
    struct semel_arena arena;
    struct semel_random rng;
    bool down;
    int failures;
    int64_t next_look_us;
};

static struct semel_daemon *daemon_of(const struct source *source)
{
    return source->route->daemon;
}

/* ---- answers ------------------------------------------------------------------------------------- */

/* FENCED is somebody else's delivery by now; anything else means that what we believe of the broker is not so, and
 * opening it anew makes everything unanswered come again. */
static bool apply(struct source *source, const struct semel_answer *answer)
{
    struct semel_error err = {0};
    semel_status status = semel_broker_answer(source->broker, answer->replies, answer->n, &err);
    if (status == SEMEL_OK || status == SEMEL_FENCED)
        return true;
    semel__daemon_log(source->route, SEMEL_LOG_WARN, "cannot acknowledge; reconnecting", status, &err, 0);
    source->down = true;
    return false;
}

static void apply_all(struct source *source, struct semel_answer *answers)
{
    while (answers != NULL) {
        struct semel_answer *answer = answers;
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
    semel__daemon_source_up(source->route, false, err);
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

static void look_positions(struct source *source)
{
    struct semel_positions *positions = atomic_load(&source->route->positions);
    struct semel_error err = {0};
    semel_status status = positions != NULL ? semel__positions_look(positions, &err) : SEMEL_OK;
    if (status != SEMEL_OK)
        semel__daemon_log(source->route, SEMEL_LOG_WARN, "cannot check the positions", status, &err, 0);
}

static void look(struct source *source)
{
    int64_t now_us = semel__steady_us();
    if (now_us < source->next_look_us)
        return;
    source->next_look_us = now_us + LOOK_US;
    size_t out;
    struct semel_source_gauges gauges = {-1, -1, -1};
    (void)semel__handoff_room(source->route->handoff, &out);
    if (source->route->conf->from.kind->gauges != NULL)
        source->route->conf->from.kind->gauges(source->broker, &gauges);
    look_positions(source);
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
        semel__daemon_source_up(source->route, true, NULL);
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
    look(source);
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

/* What runs is finished by the workers, and answered. */
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
        bool rest = semel__daemon_settings_rest(source->route);
        semel__task_beat(&source->route->source);
        apply_all(source, semel__handoff_answers(source->route->handoff, rest ? 0 : BUSY_MS));
        if (rest && semel__daemon_settings_rest(source->route))
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
    semel__daemon_source_up(source->route, false, NULL);
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

void semel__daemon_source(void *arg)
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
    semel__daemon_source_up(route, false, NULL);
}
