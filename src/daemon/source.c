/* SPDX-License-Identifier: MIT
 *
 * source.c: the source thread of a route: polls the broker, hands deliveries to the workers, applies their answers.
 *
 * Invariants: nothing but this thread touches the broker. It never waits for a worker: when the hand is full it keeps
 * polling, for nothing, so that the membership, heartbeats and visibility are kept. An acknowledgement is sent only for
 * what a worker has answered, and it answers after its commit.
 */
#include "base/error.h"
#include "daemon/positions.h"
#include "daemon/run.h"

#define POLL_MAX 2000
#define IDLE_MS 1000 /* the longest wait: for new deliveries, or for a stop */
#define BUSY_MS 10   /* while workers have something, their answers are due soon */
#define FULL_MS 100  /* the longest wait for room that is worth a poll */
#define HELD_MS 50
#define LOOK_US 1000000
#define ARENA_MAX ((size_t)256 << 20)

struct source {
    struct run_route *route;
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

static void set_up(struct source *source, bool up)
{
    if (atomic_exchange(&source->route->source.up, up) != up)
        semel__stats_source_up(source->route->stats, up);
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
    run_log_failure(source->route, SEMEL_LOG_WARN, "the source took no answer", status, &err);
    source->down = true;
    return false;
}

static void apply_all(struct source *source, struct semel_answer *answers)
{
    while (answers != NULL) {
        struct semel_answer *answer = answers;
        answers = answer->next;
        if (!source->down && !semel__hand_stale(source->route->hand, answer))
            (void)apply(source, answer);
        semel__hand_applied(source->route->hand, answer);
    }
}

/* ---- the world ----------------------------------------------------------------------------------- */

static void wait_out(struct source *source, const struct semel_error *err)
{
    source->failures++;
    run_source_down(source->route, err);
    set_up(source, false);
    run_sleep(daemon_of(source), run_backoff_ms(source->failures, &source->rng));
}

static bool reopen(struct source *source)
{
    struct semel_error err = {0};
    semel_status status = semel_broker_reopen(source->broker, &err);
    if (status != SEMEL_OK) {
        run_log_failure(source->route, err.cls == SEMEL_CLASS_BROKEN ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN,
                        "the source cannot be reached", status, &err);
        wait_out(source, &err);
        return false;
    }
    semel__hand_void(source->route->hand);
    source->down = false;
    return true;
}

static bool open_broker(struct source *source)
{
    struct run_route *route = source->route;
    while (!run_stopping(route->daemon)) {
        struct semel_error err = {0};
        run_beat(&route->source);
        semel_status status = run_open_broker(route, &source->broker, &err);
        if (status == SEMEL_OK)
            return true;
        run_log_failure(route, status == SEMEL_INVALID ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN,
                        "the source cannot be opened", status, &err);
        wait_out(source, &err);
    }
    return false;
}

/* Positions that are kept with the effects (I23) are asked for at every assignment, so they come first. */
static bool open_positions(struct source *source)
{
    struct run_route *route = source->route;
    bool wanted = semel__source_stores_positions(&route->conf->from);
    while (wanted && !run_stopping(route->daemon)) {
        struct semel_error err = {0};
        run_beat(&route->source);
        semel_status status = run_open_store(route->daemon, &source->store, &err);
        if (status == SEMEL_OK) {
            atomic_store(&route->positions, semel__positions_new(source->store, route->conf->name));
            return atomic_load(&route->positions) != NULL;
        }
        run_log_failure(route, SEMEL_LOG_WARN, "the store of the positions cannot be opened", status, &err);
        wait_out(source, &err);
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
        run_log_failure(source->route, SEMEL_LOG_WARN, "the positions cannot be looked at", status, &err);
}

static void look(struct source *source)
{
    int64_t now_us = semel__steady_us();
    if (now_us < source->next_look_us)
        return;
    source->next_look_us = now_us + LOOK_US;
    size_t out;
    struct semel_source_gauges gauges = {-1, -1, -1};
    (void)semel__hand_room(source->route->hand, &out);
    if (source->route->conf->from.kind->gauges != NULL)
        source->route->conf->from.kind->gauges(source->broker, &gauges);
    look_positions(source);
    semel__stats_source(source->route->stats, out, gauges.behind, gauges.assigned, gauges.stopped);
}

/* ---- a turn -------------------------------------------------------------------------------------- */

/* What the server refuses may be mended there, so INVALID means opening anew as well; but not while there is something
 * that can still be acknowledged. */
static void polled(struct source *source, semel_status status, const struct semel_error *err)
{
    size_t out;
    if (status == SEMEL_OK) {
        source->failures = 0;
        set_up(source, true);
        return;
    }
    (void)semel__hand_room(source->route->hand, &out);
    source->down |= status == SEMEL_CLOSED || (status == SEMEL_INVALID && out == 0);
    run_log_failure(source->route, err->cls == SEMEL_CLASS_BROKEN ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN,
                    "the source delivers nothing", status, err);
    wait_out(source, err);
}

/* Applies what was answered. Each poll has a parcel of its own, and one for a handful is mostly waste: while the
 * workers have plenty, room is left to grow. */
static size_t collect(struct source *source, size_t *ret_out)
{
    struct semel_hand *hand = source->route->hand;
    size_t room = semel__hand_room(hand, ret_out);
    int64_t until_us = semel__steady_us() + FULL_MS * 1000;
    for (;;) {
        bool wait = room == 0 || room < *ret_out / 8;
        apply_all(source, semel__hand_answers(hand, wait ? BUSY_MS : 0));
        source->down |= semel__hand_wants_void(hand);
        room = semel__hand_room(hand, ret_out);
        if (!wait || source->down || semel__steady_us() >= until_us || run_stopping(daemon_of(source)))
            return room;
    }
}

static void turn(struct source *source)
{
    struct semel_hand *hand = source->route->hand;
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
        status = semel__hand_give_take(hand, &source->arena, deliveries, n, &err);
        source->down |= status != SEMEL_OK; /* no memory to hand them out: they come again */
    }
    polled(source, status, &err);
    look(source);
}

static bool workers_ended(const struct run_route *route)
{
    for (size_t i = 0; i < route->n_workers; i++)
        if (route->workers[i].thread.started && !atomic_load(&route->workers[i].thread.ended))
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
        run_beat(&source->route->source);
        apply_all(source, semel__hand_answers(source->route->hand, BUSY_MS));
        keep_alive(source);
    }
    apply_all(source, semel__hand_answers(source->route->hand, 0));
}

/* ---- a route that is held ------------------------------------------------------------------------ */

/* Nothing is read before the route may run: others may have the partitions. */
static bool wait_to_run(struct source *source)
{
    while (!run_stopping(daemon_of(source)) && atomic_load(&source->route->held)) {
        run_beat(&source->route->source);
        run_sleep(daemon_of(source), HELD_MS);
    }
    return !run_stopping(daemon_of(source));
}

/* An answer must not meet the tags of another connection: the source stays open until nobody has one left. */
static bool let_go(struct source *source)
{
    while (!run_stopping(daemon_of(source)) && atomic_load(&source->route->held)) {
        bool rest = run_settings_rest(source->route);
        run_beat(&source->route->source);
        apply_all(source, semel__hand_answers(source->route->hand, rest ? 0 : BUSY_MS));
        if (rest && run_settings_rest(source->route))
            return true;
        keep_alive(source);
    }
    return false;
}

static void close_broker(struct source *source)
{
    semel__hand_source(source->route->hand, NULL);
    semel_broker_close(source->broker);
    source->broker = NULL;
    source->down = false;
    semel__hand_void(source->route->hand);
    set_up(source, false);
}

/* Until it stops, or the route is held. */
static void serve(struct source *source)
{
    struct run_route *route = source->route;
    SEMEL__LOG(route->daemon->log, SEMEL_LOG_INFO, "the source is open", SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_Z("kind", route->conf->from.kind->name));
    semel__hand_source(route->hand, source->broker);
    while (!run_stopping(route->daemon)) {
        run_beat(&route->source);
        if (atomic_load(&route->held) && let_go(source))
            break;
        turn(source);
    }
    if (run_stopping(route->daemon))
        finish(source);
    close_broker(source);
}

void *run_source(void *arg)
{
    struct source source = {.route = arg};
    struct run_route *route = arg;
    semel__random_seed_os(&source.rng);
    semel__arena_init(&source.arena, ARENA_MAX);
    if (wait_to_run(&source) && open_positions(&source))
        while (wait_to_run(&source) && open_broker(&source))
            serve(&source);
    close_positions(&source);
    semel__arena_done(&source.arena);
    set_up(&source, false);
    atomic_store(&route->source.ended, true);
    return NULL;
}
