/* SPDX-License-Identifier: MIT
 *
 * test_breaker.c: one breaker for the pumps of a route: what counts as a row, who probes, and who is told. Two pumps on
 * one queue and one inbox take turns; threads are in test/daemon/test_breaker_threads.c.
 */
#include "unit/engine.h"

#include "support/mem_broker.h"

#define TURNS 8

struct turn {
    enum semel_breaker_state before, now;
};

struct route {
    struct engine *e;
    struct semel_mem_queue *queue;
    struct semel_broker *brokers[2];
    struct semel_rules rules;
    struct semel_route_breaker breaker;
    struct semel_pump pumps[2];
    struct turn reported[TURNS];
    size_t n_reported;
};

static struct route route;

static void changed(void *ctx, enum semel_breaker_state before, const struct semel_breaker *now)
{
    struct route *r = ctx;
    assert_true(r->n_reported < TURNS);
    r->reported[r->n_reported++] = (struct turn){before, now->state};
}

static int up(void **state)
{
    int rc = engine_on_mem(state);
    struct engine *e = *state;

    route = (struct route){.e = e};
    assert_int_equal(semel__mem_queue_new(&route.queue, SEMEL_QUEUE_UNORDERED, 1, &e->clock), SEMEL_OK);
    semel__route_breaker_init(&route.breaker, 10, SECOND_US, 60 * SECOND_US);
    route.breaker.ctx = &route;
    route.breaker.changed = changed;
    for (size_t i = 0; i < 2; i++) {
        assert_ok(e, semel__broker_mem_open(&route.brokers[i], route.queue, &e->err));
        semel__pump_init(&route.pumps[i], &e->inbox, route.brokers[i], &route.rules);
        route.pumps[i].breaker = &route.breaker;
    }
    return rc;
}

static int down(void **state)
{
    for (size_t i = 0; i < 2; i++) {
        semel__pump_done(&route.pumps[i]);
        semel_broker_close(route.brokers[i]);
    }
    semel__mem_queue_free(route.queue);
    return engine_down(state);
}

static void push_some(struct engine *e, const char *prefix, size_t n, const char *payload)
{
    char id[64];
    for (size_t i = 0; i < n; i++) {
        snprintf(id, sizeof id, "%s%02zu", prefix, i);
        const struct semel_pair header = {SEMEL_STR("id"), semel__str(id)};
        struct semel_mem_push m = {.source = SEMEL_STR("s"),
                                   .payload = semel__str(payload),
                                   .headers = &header,
                                   .n_headers = 1};
        assert_ok(e, semel__mem_queue_push(route.queue, &m, 1, &e->err));
    }
}

static size_t step(struct engine *e, size_t pump)
{
    size_t n = 99;
    (void)semel__pump_step(&route.pumps[pump], e->now_us, &n, &e->err);
    return n;
}

static void assert_reported(size_t i, enum semel_breaker_state before, enum semel_breaker_state now)
{
    assert_true(i < route.n_reported);
    assert_int_equal(route.reported[i].before, before);
    assert_int_equal(route.reported[i].now, now);
}

static void fail_to_open(struct engine *e)
{
    semel__pump_fail(&route.pumps[0], SEMEL_CLASS_BROKEN, "", e->now_us);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_OPEN);
}

/* P63: five failures of one and five of the other are ten in a row; the change is told once. */
static void failures_in_a_row_are_counted_over_all_pumps(void **state)
{
    struct engine *e = *state;

    route.pumps[0].batch_max = route.pumps[1].batch_max = 5;
    push_some(e, "bad", 20, "bad");
    assert_int_equal(step(e, 0), 5);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_CLOSED);
    assert_int_equal(step(e, 1), 5);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(step(e, 0), 0); /* it pauses for both */
    assert_int_equal(step(e, 1), 0);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 10);
    assert_int_equal(route.n_reported, 1);
    assert_reported(0, SEMEL_BREAKER_CLOSED, SEMEL_BREAKER_OPEN);
}

/* A10: an outage makes a handful of unknown outcomes, not a batch of them. */
static void unknown_outcomes_open_the_breaker_in_the_middle_of_a_batch(void **state)
{
    struct engine *e = *state;

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    push_some(e, "m", 30, "maybe");
    (void)step(e, 0);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(step(e, 1), 0);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_UNKNOWN], 10);
    assert_int_equal(effects_of(e, "m09"), 1);
    assert_int_equal(effects_of(e, "m10"), 0);
}

/* A10: nor of those that are stored, right after a start. */
static void unknown_outcomes_end_a_tick_in_its_middle(void **state)
{
    struct engine *e = *state;
    char ids[30][8];
    struct semel__msg msgs[30];
    size_t n;

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    for (size_t i = 0; i < COUNT(msgs); i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = msg(ids[i], "maybe");
    }
    assert_ok(e, semel__inbox_put_all(&e->inbox, msgs, COUNT(msgs), e->settled, &e->err));
    assert_int_equal(semel__pump_tick(&route.pumps[0], e->now_us, &n, &e->err), SEMEL_RETRY);
    assert_string_equal(e->err.text, "10 messages failed in a row: the route pauses");
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_UNKNOWN], 10);
    assert_int_equal(effects_of(e, "m09"), 1);
    assert_int_equal(effects_of(e, "m10"), 0);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_OPEN); /* or the next tick would run nine more */
}

static void a_success_of_any_pump_ends_the_row(void **state)
{
    struct engine *e = *state;

    push_some(e, "a", 8, "bad");
    assert_int_equal(step(e, 0), 8);
    push_some(e, "b", 1, "ok");
    assert_int_equal(step(e, 1), 1);
    push_some(e, "c", 8, "bad");
    assert_int_equal(step(e, 0), 8);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_CLOSED);
    assert_int_equal(route.n_reported, 0);
}

/* P63: one message is tried, by one of them, and when it succeeds both go on. */
static void one_pump_probes_and_its_success_opens_the_way_for_all(void **state)
{
    struct engine *e = *state;

    push_some(e, "m", 3, "ok");
    fail_to_open(e);
    e->now_us = route.breaker.now.next_us;
    assert_int_equal(semel__route_breaker_ask(&route.breaker, &route.pumps[0], e->now_us), SEMEL_GATE_PROBE);
    assert_int_equal(step(e, 1), 0);
    assert_false(semel__pump_probes(&route.pumps[1], e->now_us));
    assert_int_not_equal(semel__pump_until(&route.pumps[1], e->now_us), SEMEL_NONE);
    semel__route_breaker_end(&route.breaker, &route.pumps[0], e->now_us);

    assert_true(semel__pump_probes(&route.pumps[1], e->now_us));
    assert_int_equal(step(e, 0), 1);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_CLOSED);
    assert_int_equal(step(e, 1), 2);
}

/* P63: a tick that finds nothing to run has tried nothing. */
static void a_tick_without_work_gives_its_probe_back(void **state)
{
    struct engine *e = *state;
    size_t n;

    push_some(e, "m", 1, "ok");
    fail_to_open(e);
    e->now_us = route.breaker.now.next_us;
    assert_ok(e, semel__pump_tick(&route.pumps[0], e->now_us, &n, &e->err));
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(step(e, 1), 1); /* the other one need not wait */
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_CLOSED);
}

/* What was begun before it opened lengthens no pause, and takes nobody's probe away. */
static void late_failures_of_another_pump_change_nothing(void **state)
{
    struct engine *e = *state;

    fail_to_open(e);
    int64_t next_us = route.breaker.now.next_us;
    semel__pump_fail(&route.pumps[1], SEMEL_CLASS_ENVIRONMENT, "", e->now_us);
    assert_int_equal(route.breaker.now.cause, SEMEL_CLASS_BROKEN);
    e->now_us = next_us;
    assert_int_equal(semel__route_breaker_ask(&route.breaker, &route.pumps[0], e->now_us), SEMEL_GATE_PROBE);
    semel__pump_fail(&route.pumps[1], SEMEL_CLASS_BROKEN, "", e->now_us);
    semel__route_breaker_end(&route.breaker, &route.pumps[1], e->now_us);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_PROBING);
    assert_int_equal(route.breaker.now.openings, 1);
    semel__pump_fail(&route.pumps[0], SEMEL_CLASS_BROKEN, "", e->now_us);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(route.breaker.now.openings, 2);
}

static void a_probe_that_was_given_up_is_its_pumps_no_more(void **state)
{
    struct engine *e = *state;

    fail_to_open(e);
    e->now_us = route.breaker.now.next_us;
    assert_int_equal(semel__route_breaker_ask(&route.breaker, &route.pumps[0], e->now_us), SEMEL_GATE_PROBE);
    e->now_us += 60 * SECOND_US;
    assert_int_equal(semel__route_breaker_ask(&route.breaker, &route.pumps[1], e->now_us), SEMEL_GATE_PROBE);
    semel__route_breaker_end(&route.breaker, &route.pumps[0], e->now_us);
    semel__pump_fail(&route.pumps[0], SEMEL_CLASS_BROKEN, "", e->now_us);
    assert_int_equal(route.breaker.now.state, SEMEL_BREAKER_PROBING);
    assert_ptr_equal(route.breaker.prober, &route.pumps[1]);
}

/* Stands for another pump that opens the breaker while this one waits for its messages. */
static struct semel_broker_ops opening;

static semel_status poll_while_it_opens(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                                        struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    semel__pump_fail(&route.pumps[0], SEMEL_CLASS_BROKEN, "", route.e->now_us);
    return semel__broker_mem_unordered.poll(broker, max, wait_ms, arena, ret_deliveries, ret_n, err);
}

/* P63 */
static void who_was_let_through_before_it_opened_runs_nothing(void **state)
{
    struct engine *e = *state;

    push_some(e, "m", 3, "bad");
    opening = *route.brokers[1]->ops;
    opening.poll = poll_while_it_opens;
    route.brokers[1]->ops = &opening;
    assert_int_equal(step(e, 1), 0);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 0);
    assert_int_equal(semel__mem_queue_unacked(route.queue), 3);
    assert_int_equal(route.breaker.now.cause, SEMEL_CLASS_BROKEN);
}

/* M: failures have a class, whichever way the message came: by its delivery, or from the store. */
static void failures_of_stored_retries_are_counted_by_class(void **state)
{
    struct engine *e = *state;
    const struct semel_counts *counts = &e->inbox.counts;
    size_t n;

    push_some(e, "m", 2, "fail");
    assert_int_equal(step(e, 0), 2);
    assert_int_equal(counts->classes[SEMEL_CLASS_TRANSIENT], 2);
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__pump_tick(&route.pumps[0], e->now_us, &n, &e->err));
    assert_int_equal(n, 2);
    assert_int_equal(counts->classes[SEMEL_CLASS_TRANSIENT], 4);
    assert_int_equal(counts->failed + counts->rejected, 4);
}

#define CASE(test) ON(test, "mem", up, down)

static void who_looked_at_the_clock_first_and_asks_last_has_no_second_probe(void **state)
{
    struct engine *e = *state;
    const int64_t due_us = e->now_us + 60 * SECOND_US;
    for (int k = 0; k < 10; k++)
        semel__route_breaker_failure(&route.breaker, &route.pumps[0], SEMEL_CLASS_TRANSIENT, e->now_us, &e->rng);
    assert_int_equal(semel__route_breaker_ask(&route.breaker, &route.pumps[0], due_us), SEMEL_GATE_PROBE);
    assert_int_equal(semel__route_breaker_ask(&route.breaker, &route.pumps[1], due_us - 1), SEMEL_GATE_WAIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(failures_in_a_row_are_counted_over_all_pumps),
        CASE(unknown_outcomes_open_the_breaker_in_the_middle_of_a_batch),
        CASE(unknown_outcomes_end_a_tick_in_its_middle),
        CASE(a_success_of_any_pump_ends_the_row),
        CASE(one_pump_probes_and_its_success_opens_the_way_for_all),
        CASE(a_tick_without_work_gives_its_probe_back),
        CASE(late_failures_of_another_pump_change_nothing),
        CASE(a_probe_that_was_given_up_is_its_pumps_no_more),
        CASE(who_was_let_through_before_it_opened_runs_nothing),
        CASE(failures_of_stored_retries_are_counted_by_class),
        CASE(who_looked_at_the_clock_first_and_asks_last_has_no_second_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
