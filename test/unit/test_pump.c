/* SPDX-License-Identifier: MIT
 *
 * test_pump.c: one worker from the broker through the inbox and back: when it acknowledges, when it pauses, and how
 * it comes back after the world failed. The store and the broker write into one trace, so that their order can be
 * seen.
 */
#include "unit/engine.h"

#include "support/mem_broker.h"

struct route {
    struct engine *e;
    struct semel_mem_queue *queue;
    struct semel_broker *broker;
    struct semel_rules rules;
    struct semel_pump pump;
    const char *op; /* the operation of the broker that fails once */
    enum semel_queue_fault fault;
};

static struct route route;

static enum semel_queue_fault on_broker(void *ctx, const char *op)
{
    struct route *r = ctx;
    note(r->e, op, (struct semel_str){0});
    if (r->op == NULL || strcmp(op, r->op) != 0)
        return SEMEL_QUEUE_GO;
    r->op = NULL;
    return r->fault;
}

static int up(void **state, int (*engine_up)(void **state))
{
    int rc = engine_up(state);
    struct engine *e = *state;

    route = (struct route){.e = e};
    assert_int_equal(semel__mem_queue_new(&route.queue, SEMEL_QUEUE_UNORDERED, 1, &e->clock), SEMEL_OK);
    assert_ok(e, semel__broker_mem_open(&route.broker, route.queue, &e->err));
    semel__broker_mem_set_hook(route.broker, on_broker, &route);
    semel__pump_init(&route.pump, &e->inbox, route.broker, &route.rules);
    return rc;
}

static int on_mem(void **state)
{
    return up(state, engine_on_mem);
}

static int on_sqlite(void **state)
{
    return up(state, engine_on_sqlite);
}

static int on_postgres(void **state)
{
    return up(state, engine_on_postgres);
}

static int down(void **state)
{
    semel__pump_done(&route.pump);
    semel_broker_close(route.broker);
    semel__mem_queue_free(route.queue);
    return engine_down(state);
}

static void push(struct engine *e, const char *id, const char *payload)
{
    const struct semel_pair header = {SEMEL_STR("id"), semel__str(id)};
    struct semel_mem_push m = {.source = SEMEL_STR("s"),
                               .payload = semel__str(payload),
                               .headers = &header,
                               .n_headers = 1};
    assert_ok(e, semel__mem_queue_push(route.queue, &m, 1, &e->err));
}

static semel_status step(struct engine *e, size_t *ret_n)
{
    return semel__pump_step(&route.pump, e->now_us, ret_n, &e->err);
}

static void step_ok(struct engine *e, size_t acked)
{
    size_t n = 99;
    assert_ok(e, step(e, &n));
    assert_int_equal(n, acked);
}

static size_t owed(void)
{
    return semel__mem_queue_unacked(route.queue);
}

/* ---- acknowledgements --------------------------------------------------------------------------------- */

/* T7, P38: the whole order of things, in one line. */
static void message_is_acknowledged_only_after_its_commit(void **state)
{
    struct engine *e = *state;

    push(e, "a", "ok");
    push(e, "b", "ok");
    step_ok(e, 2);
    assert_string_equal(e->trace, "poll begin run:a run:b commit ack ");
    assert_int_equal(owed(), 0);
    assert_int_equal(effects_of(e, NULL), 2);
}

/* T7: nothing is acknowledged when nothing was committed, and it comes again. */
static void message_without_a_commit_is_not_acknowledged(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "ok");
    fail_at(e, "commit", 1, FAULT_WORLD);
    assert_int_equal(step(e, &n), SEMEL_RETRY);
    assert_int_equal(n, 0);
    assert_string_equal(e->trace, "poll begin run:a commit later ");
    assert_int_equal(owed(), 1);
    forget(e);
    e->now_us += 10 * SECOND_US;
    step_ok(e, 1);
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(owed(), 0);
}

/* I3, I9: acknowledged, lost on the way, delivered again: one effect. */
static void lost_acknowledgement_brings_a_duplicate(void **state)
{
    struct engine *e = *state;

    push(e, "a", "ok");
    route.op = "ack";
    route.fault = SEMEL_QUEUE_LOST;
    step_ok(e, 1);
    assert_ok(e, semel_broker_reopen(route.broker, &e->err)); /* what was not acknowledged comes again */
    if (owed() == 0)
        assert_ok(e, semel__mem_queue_redeliver(route.queue, 0, &e->err));
    step_ok(e, 1);
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(e->inbox.counts.why[SEMEL_WHY_DUPLICATE], 1);
    assert_int_equal(owed(), 0);
}

/* I15: a failed message is kept and acknowledged; one that is busy goes back. */
static void poison_is_acknowledged_and_so_is_what_another_worker_has_claimed(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("b", "ok");
    struct semel_lease lease;
    size_t n;

    assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, true, &e->arena, &lease, &n, e->settled, &e->err));
    forget(e);
    push(e, "a", "bad");
    push(e, "b", "ok");
    step_ok(e, 2); /* its row has its payload: recovery has it if that worker dies, and nothing waits behind it */
    assert_int_equal(owed(), 0);
    assert_int_equal(e->inbox.counts.why[SEMEL_WHY_BUSY], 1);
    assert_int_equal(e->inbox.counts.done, 0);
}

/* P27: the delivery went to somebody else while it ran; the acknowledgement is fenced, and that is no error. */
static void expel_worker(struct engine *e, const struct semel__msg *m)
{
    (void)m;
    e->on_run = NULL;
    semel__mem_queue_expel(route.queue, route.broker);
}

static void fenced_acknowledgement_is_ignored(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "ok");
    e->on_run = expel_worker;
    assert_ok(e, step(e, &n));
    assert_int_equal(owed(), 1);
    assert_int_equal(effects_of(e, "a"), 1);
    step_ok(e, 1);
    assert_int_equal(owed(), 0);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* ---- coming back -------------------------------------------------------------------------------------- */

static void store_that_was_closed_is_opened_at_the_next_step(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "closed@1");
    assert_int_equal(step(e, &n), SEMEL_CLOSED);
    assert_true(route.pump.store_down);
    assert_int_equal(owed(), 1);
    forget(e);
    e->mended = true;
    e->now_us += 10 * SECOND_US;
    step_ok(e, 1);
    assert_string_equal(e->trace, "reopen poll begin rollback begin commit begin run:a commit ack ");
    assert_int_equal(effects_of(e, "a"), 1);
}

static void broker_that_was_closed_is_opened_at_the_next_step(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "ok");
    route.op = "ack";
    route.fault = SEMEL_QUEUE_CLOSE;
    assert_int_equal(step(e, &n), SEMEL_CLOSED);
    assert_true(route.pump.broker_down);
    assert_int_equal(effects_of(e, "a"), 1);
    step_ok(e, 1); /* it came again, and was done already */
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(owed(), 0);
    assert_false(route.pump.broker_down);
    forget(e);
    step_ok(e, 0);
    assert_string_equal(e->trace, "poll "); /* once, and where nothing comes nothing is begun */
}

/* The store failed first, and the broker when the message was given back: the first is the reason. */
static void failure_of_the_store_is_reported_before_that_of_the_broker(void **state)
{
    struct engine *e = *state;
    struct semel_error alone;
    size_t n;

    push(e, "a", "ok");
    fail_at(e, "commit", 1, FAULT_WORLD);
    assert_int_equal(step(e, &n), SEMEL_RETRY);
    alone = e->err;
    e->now_us += 10 * SECOND_US;
    fail_at(e, "commit", 1, FAULT_WORLD);
    route.op = "later";
    route.fault = SEMEL_QUEUE_CLOSE;
    assert_int_equal(step(e, &n), SEMEL_RETRY);
    assert_string_equal(e->err.text, alone.text);
    assert_true(route.pump.broker_down);
    e->now_us += 10 * SECOND_US;
    step_ok(e, 1);
}

static int64_t seen_us;

static void see(void *ctx, const struct semel__msg *msgs, const struct semel_settled *settled, size_t n)
{
    (void)ctx, (void)settled;
    assert_int_equal(n, 1);
    seen_us = msgs[0].message_time_us;
}

/* The time that an id holds is the message's, as the inbox has it. */
static void observer_sees_the_time_of_a_message(void **state)
{
    struct engine *e = *state;

    seen_us = 0;
    route.pump.observe = see;
    push(e, "018bcfe5-6800-7000-8000-000000000000", "ok");
    step_ok(e, 1);
    assert_int_equal(seen_us, INT64_C(1700000000000000));
}

static void store_that_cannot_be_opened_polls_nothing(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "ok");
    fail_at(e, "begin", 1, FAULT_CLOSED);
    assert_int_equal(step(e, &n), SEMEL_CLOSED);
    forget(e);
    fail_at(e, "reopen", 1, FAULT_CLOSED);
    e->now_us += 10 * SECOND_US;
    assert_int_equal(step(e, &n), SEMEL_CLOSED);
    assert_string_equal(e->trace, "reopen ");
    e->now_us += 100 * SECOND_US;
    step_ok(e, 1);
}

/* ---- the breaker -------------------------------------------------------------------------------------- */

/* P63: ten of fifteen are charged, five go back; nothing is polled; then one probe at a time. */
static void breaker_pauses_and_probes_with_one_message(void **state)
{
    struct engine *e = *state;
    char id[16];
    size_t n;

    for (int i = 0; i < 15; i++) {
        snprintf(id, sizeof id, "m%02d", i);
        push(e, id, "bad");
    }
    assert_int_equal(step(e, &n), SEMEL_RETRY);
    assert_int_equal(n, 10);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 10);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_OPEN);
    forget(e);
    step_ok(e, 0);
    assert_string_equal(e->trace, "");

    e->now_us = route.pump.own.now.next_us + 10 * SECOND_US; /* the others may come again by now, too */
    assert_ok(e, step(e, &n));
    assert_int_equal(n, 1);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 11);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_OPEN);

    e->mended = true;
    e->now_us = route.pump.own.now.next_us + 10 * SECOND_US;
    step_ok(e, 1);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_CLOSED);
    step_ok(e, 3); /* and now all that is left */
    assert_int_equal(owed(), 0);
    assert_int_equal(effects_of(e, NULL), 4);
}

/* P63: a missing table opens it at once, and charges nobody. */
static void broken_handler_opens_the_breaker_at_once(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "broken");
    push(e, "b", "ok");
    assert_int_equal(step(e, &n), SEMEL_INVALID);
    assert_int_equal(n, 0);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(route.pump.own.now.cause, SEMEL_CLASS_BROKEN);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_ABSENT);
    assert_int_equal(owed(), 2);
}

/* A probe that met nothing has told nothing: the next step probes again. */
static void probe_without_an_answer_is_tried_again(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "broken");
    route.pump.later_ms = 60000;
    assert_int_equal(step(e, &n), SEMEL_INVALID);
    e->now_us = route.pump.own.now.next_us; /* before the message may come again */
    e->mended = true;
    step_ok(e, 0);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(route.pump.own.now.next_us, e->now_us);
    e->now_us += 60 * SECOND_US;
    step_ok(e, 1);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_CLOSED);
}

/* I15: what stays in front of the queue, because it waits for another, does not keep the breaker open. */
static void probe_reaches_behind_messages_that_wait(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "ok");
    struct semel_lease lease;
    size_t n;

    e->policy.keep = SEMEL_KEEP_NEVER;
    assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, true, &e->arena, &lease, &n, e->settled, &e->err));
    push(e, "a", "ok"); /* another worker has it, and its payload is not kept: later */
    push(e, "b", "ok");
    semel__pump_fail(&route.pump, SEMEL_CLASS_BROKEN, "", e->now_us);
    e->now_us = route.pump.own.now.next_us;
    step_ok(e, 0);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_OPEN);
    e->now_us += 10 * SECOND_US;
    step_ok(e, 1);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_CLOSED);
}

/* The source pauses while too many are parked. */
static void source_pauses_when_parking_is_full(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.parked_key_max = 1;
    route.rules.order = (struct semel_rule){SEMEL_RULE_HEADER, SEMEL_STR("id")};
    push(e, "k", "bad");
    step_ok(e, 1);
    struct semel__msg parked = keyed("p", "ok", "k", SEMEL_NONE);
    process_one(e, parked);
    const struct semel_pair headers[] = {{SEMEL_STR("id"), SEMEL_STR("k")}, {SEMEL_STR("x"), SEMEL_STR("k2")}};
    route.rules.id = (struct semel_rule){SEMEL_RULE_HEADER, SEMEL_STR("x")};
    struct semel_mem_push m = {.source = SEMEL_STR("s"),
                               .payload = SEMEL_STR("ok"),
                               .headers = headers,
                               .n_headers = 2};
    assert_ok(e, semel__mem_queue_push(route.queue, &m, 1, &e->err));
    step_ok(e, 0);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_PARKED_FULL], 1);
    forget(e);
    step_ok(e, 0);
    assert_string_equal(e->trace, "");
}

/* ---- a tick ------------------------------------------------------------------------------------------- */

/* Recovery, due work and purge; purge once a minute. */
static void tick_recovers_works_and_purges(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("b", "ok");
    struct semel_lease lease;
    size_t n;

    process_one(e, msg("a", "fail@1"));
    assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, true, &e->arena, &lease, &n, e->settled, &e->err));
    e->now_us += e->policy.lease_us + 1;
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(n, 2); /* b recovered, a done */
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
    e->now_us += e->policy.retention_us + 60 * SECOND_US; /* down to the minute */
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_ABSENT);
    assert_int_equal(route.pump.next_purge_us, e->now_us + route.pump.purge_every_us);
}

static void purge_that_met_its_bound_goes_on_at_the_next_tick(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "ok")};
    size_t n;

    process(e, msgs, 3);
    route.pump.tick_max = 2;
    e->now_us += e->policy.retention_us + 60 * SECOND_US;
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_true(route.pump.next_purge_us <= e->now_us);
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(route.pump.next_purge_us, e->now_us + route.pump.purge_every_us);
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_int_equal(state_of(e, msgs[i].id.p), SEMEL_ROW_ABSENT);
}

/* P63: stored work probes too: one row, not a thousand. */
static void tick_of_an_open_breaker_probes_with_one_row(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "fail"), msg("b", "fail"), msg("c", "fail")};
    size_t n;

    process(e, msgs, 3);
    e->now_us += 10 * SECOND_US;
    semel__pump_fail(&route.pump, SEMEL_CLASS_BROKEN, "", e->now_us);
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(n, 0);
    e->now_us = route.pump.own.now.next_us;
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(n, 1);
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_OPEN);
    assert_string_not_equal(route.pump.own.why, ""); /* what the handler said */
    e->mended = true;
    e->now_us = route.pump.own.now.next_us;
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(route.pump.own.now.state, SEMEL_BREAKER_CLOSED);
}

#define ON_ROUTES(test) \
    ON(test, "mem", on_mem, down), ON(test, "sqlite", on_sqlite, down), ON(test, "postgres", on_postgres, down)

/* ---- what was lost before ----------------------------------------------------------------------------- */

static struct semel_broker_ops uncounted;

static semel_status poll_uncounted(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                                   struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    semel_status status = semel__broker_mem_unordered.poll(broker, max, wait_ms, arena, ret_deliveries, ret_n, err);
    for (size_t i = 0; status == SEMEL_OK && i < *ret_n; i++)
        (*ret_deliveries)[i].delivery = 0;
    return status;
}

/* I6: a source that cannot count its deliveries may bring, first of all, what killed the last process. */
static void first_messages_of_a_source_that_cannot_count_run_behind_a_claim(void **state)
{
    struct engine *e = *state;

    uncounted = *route.broker->ops;
    uncounted.poll = poll_uncounted;
    route.broker->ops = &uncounted;
    push(e, "a", "ok");
    step_ok(e, 1);
    assert_non_null(strstr(e->trace, "commit begin run:a commit ack "));
    forget(e);
    push(e, "b", "ok");
    step_ok(e, 1);
    assert_string_equal(e->trace, "poll begin run:b commit ack ");
}

/* I6: stored work needs no broker. */
static void tick_goes_on_while_the_broker_is_down(void **state)
{
    struct engine *e = *state;
    size_t n = 0;

    process_one(e, msg("a", "fail@1"));
    route.pump.broker_down = true;
    route.op = "reopen";
    route.fault = SEMEL_QUEUE_CLOSE;
    e->now_us += 3600 * SECOND_US;
    assert_ok(e, semel__pump_tick(&route.pump, e->now_us, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
}

static unsigned refused_at, asked;

static bool refuse_one(void *ctx)
{
    (void)ctx;
    return ++asked != refused_at;
}

/* P63: whichever allocation fails on the way to the inbox, the deliveries go back and come again. */
static void deliveries_that_met_a_lack_of_memory_come_again(void **state)
{
    struct engine *e = *state;
    static char large[20000];
    char id[16];
    size_t n;

    memset(large, 'x', sizeof large - 1);
    for (refused_at = 1; refused_at < 40; refused_at++) {
        snprintf(id, sizeof id, "m%u", refused_at);
        push(e, id, large);
        asked = 0;
        semel__alloc_set_hook(refuse_one, NULL);
        (void)step(e, &n);
        semel__alloc_set_hook(NULL, NULL);
        for (int i = 0; i < 20 && owed() > 0; i++) {
            e->now_us += 120 * SECOND_US;
            (void)step(e, &n);
        }
        assert_int_equal(owed(), 0);
        assert_int_equal(effects_of(e, id), 1);
    }
}

/* ---- leases: somebody else runs ----------------------------------------------------------------------- */

static struct semel_lease leases[8];

static semel_status claim(struct engine *e, size_t max, size_t *ret_n)
{
    return semel__pump_claim(&route.pump, e->now_us, max, &e->keep, leases, ret_n, &e->err);
}

static size_t claimed(struct engine *e, size_t max)
{
    size_t n = 99;
    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    assert_ok(e, claim(e, max, &n));
    return n;
}

static size_t taken(struct engine *e, size_t max)
{
    size_t n = 99;
    assert_ok(e, semel__pump_take(&route.pump, e->now_us, max, &e->keep, leases, &n, &e->err));
    return n;
}

static semel_status finish(struct engine *e, enum semel_result result, size_t n)
{
    struct semel_ending endings[8];
    for (size_t i = 0; i < n; i++)
        endings[i] = (struct semel_ending){.result = result};
    return semel__pump_finish(&route.pump, e->now_us, leases, endings, n, &e->err);
}

static enum semel_breaker_state breaker(void)
{
    return route.pump.own.now.state;
}

/* I2, T7: the claim keeps the payload, so nobody needs the broker for it any more; a copy of it neither, but what only
 * has its id. */
static void claimed_deliveries_are_acknowledged_after_the_commit_of_their_claim(void **state)
{
    struct engine *e = *state;

    push(e, "a", "ok");
    push(e, "b", "ok");
    push(e, "a", "ok");
    push(e, "b", "another");
    assert_int_equal(claimed(e, 8), 2);
    assert_string_equal(e->trace, "poll begin commit ack later ");
    assert_int_equal(owed(), 1);
    assert_int_equal(effects_of(e, NULL), 0);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PROCESSING);
    assert_ok(e, finish(e, SEMEL_DONE, 2));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
    e->now_us += 60 * SECOND_US;
    assert_int_equal(claimed(e, 8), 0); /* the other b is told now */
    assert_int_equal(owed(), 0);
    assert_int_equal(conflicts_of(e, "b"), 2); /* once per delivery */
    forget(e);
    route.pump.doubt = true;
    assert_int_equal(claimed(e, 8), 0);
    assert_string_equal(e->trace, "poll "); /* where nothing comes nothing is begun, */
    assert_true(route.pump.doubt);          /* and nothing is known of what comes next */
}

static void claim_that_was_not_committed_acknowledges_nothing(void **state)
{
    struct engine *e = *state;
    size_t n = 99;

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    push(e, "a", "ok");
    fail_at(e, "commit", 1, FAULT_CLOSED);
    assert_int_equal(claim(e, 8, &n), SEMEL_CLOSED);
    assert_int_equal(n, 0);
    assert_int_equal(owed(), 1);
    e->now_us += 60 * SECOND_US;
    assert_int_equal(claimed(e, 8), 1); /* over a new connection */
    assert_int_equal(owed(), 0);
}

/* I13: what handlers say elsewhere counts as what they say in a step. */
static void ends_of_leases_open_and_close_the_breaker(void **state)
{
    struct engine *e = *state;
    const enum semel_result bad[] = {SEMEL_TRANSIENT, SEMEL_PERMANENT, SEMEL_MAYBE};
    const enum semel_result good[] = {SEMEL_DONE, SEMEL_REJECTED};
    char id[16];

    for (int i = 0; i < 10; i++) {
        assert_int_equal(breaker(), SEMEL_BREAKER_CLOSED);
        snprintf(id, sizeof id, "m%d", i);
        push(e, id, "ok");
        assert_int_equal(claimed(e, 1), 1);
        assert_ok(e, finish(e, bad[i % 3], 1));
    }
    assert_int_equal(breaker(), SEMEL_BREAKER_OPEN);
    for (int i = 0; i < 2; i++) {
        snprintf(id, sizeof id, "p%d", i);
        push(e, id, "ok");
        push(e, id, "ok");
        forget(e);
        assert_int_equal(claimed(e, 8), 0);
        assert_int_equal(taken(e, 8), 0);
        assert_string_equal(e->trace, "");
        e->now_us = route.pump.own.now.next_us;
        assert_int_equal(claimed(e, 8), 1); /* a probe is one message, and goes on until its end */
        assert_int_equal(breaker(), SEMEL_BREAKER_PROBING);
        assert_int_equal(claimed(e, 8), 0);
        assert_ok(e, finish(e, good[i], 1));
        assert_int_equal(breaker(), SEMEL_BREAKER_CLOSED);
        assert_int_equal(claimed(e, 8), 0); /* the copy */
        for (int k = 0; k < 10; k++)
            semel__pump_fail(&route.pump, SEMEL_CLASS_TRANSIENT, "", e->now_us);
        assert_int_equal(breaker(), SEMEL_BREAKER_OPEN);
    }
}

/* A probe by stored work is one row; one that found nothing leaves the breaker open, to be probed at once. */
static void take_under_an_open_breaker_is_one_row_or_nothing(void **state)
{
    struct engine *e = *state;

    push(e, "a", "ok");
    push(e, "b", "ok");
    assert_int_equal(claimed(e, 8), 2);
    assert_ok(e, finish(e, SEMEL_TRANSIENT, 2));
    for (int k = 0; k < 10; k++)
        semel__pump_fail(&route.pump, SEMEL_CLASS_TRANSIENT, "", e->now_us);
    assert_int_equal(breaker(), SEMEL_BREAKER_OPEN);
    e->now_us = route.pump.own.now.next_us;
    if (row_of(e, "a").progress.due_us > e->now_us && row_of(e, "b").progress.due_us > e->now_us) {
        assert_int_equal(taken(e, 8), 0);
        assert_int_equal(breaker(), SEMEL_BREAKER_OPEN);
        assert_int_equal(claimed(e, 8), 0);
        assert_int_equal(breaker(), SEMEL_BREAKER_OPEN);
    }
    e->now_us += 3600 * SECOND_US;
    assert_int_equal(taken(e, 8), 1);
    assert_int_equal(breaker(), SEMEL_BREAKER_PROBING);
    assert_int_equal(taken(e, 8), 0);
    assert_ok(e, finish(e, SEMEL_DONE, 1));
    assert_int_equal(taken(e, 8), 1);
    assert_ok(e, finish(e, SEMEL_DONE, 1));
    assert_int_equal(effects_of(e, NULL), 0); /* a lease runs nothing by itself */
}

/* The connection is lost, and cannot be opened the next time. */
static void lose(struct engine *e)
{
    e->dead = true;
    fail_at(e, "reopen", 1, FAULT_CLOSED);
}

/* P63: each call on leases notes that the connection is lost, and the next one opens it. */
static void store_that_is_lost_under_leases_is_opened_by_the_next_call(void **state)
{
    struct engine *e = *state;
    size_t n;

    push(e, "a", "ok");
    assert_int_equal(claimed(e, 8), 1);
    lose(e);
    assert_int_equal(semel__pump_renew(&route.pump, e->now_us, leases, 1, &e->err), SEMEL_CLOSED);
    assert_true(route.pump.store_down);
    assert_ok(e, semel__pump_renew(&route.pump, e->now_us, leases, 1, &e->err));
    assert_false(route.pump.store_down);
    lose(e);
    assert_int_equal(finish(e, SEMEL_DONE, 1), SEMEL_CLOSED);
    assert_true(route.pump.store_down);
    assert_ok(e, finish(e, SEMEL_TRANSIENT, 1));
    e->now_us += 3600 * SECOND_US;
    e->dead = true; /* a take holds nothing that would be worth a second connection */
    assert_int_equal(semel__pump_take(&route.pump, e->now_us, 8, &e->keep, leases, &n, &e->err), SEMEL_CLOSED);
    assert_true(route.pump.store_down);
    assert_int_equal(taken(e, 8), 1);
    lose(e);
    assert_int_equal(semel__pump_release(&route.pump, e->now_us, leases, 1, &e->err), SEMEL_CLOSED);
    assert_true(route.pump.store_down);
    assert_ok(e, semel__pump_release(&route.pump, e->now_us, leases, 1, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_FAILED);
    assert_int_equal(taken(e, 8), 1); /* due at once */
    assert_ok(e, finish(e, SEMEL_DONE, 1));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
}

/* A pause ends at its time, and a clock that was set back does not prolong it. */
static void paused_route_claims_nothing_until_its_time(void **state)
{
    struct engine *e = *state;

    push(e, "a", "ok");
    route.pump.later_ms = 5000;
    route.pump.resume_us = e->now_us + 5 * SECOND_US;
    assert_int_equal(claimed(e, 8), 0);
    assert_int_equal(semel__pump_until(&route.pump, e->now_us), route.pump.resume_us);
    assert_string_equal(e->trace, "");
    e->now_us--;
    assert_int_equal(semel__pump_until(&route.pump, e->now_us), SEMEL_NONE);
    e->now_us = route.pump.resume_us;
    assert_int_equal(semel__pump_until(&route.pump, e->now_us), SEMEL_NONE);
    assert_int_equal(claimed(e, 8), 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_ROUTES(first_messages_of_a_source_that_cannot_count_run_behind_a_claim),
        ON_ROUTES(tick_goes_on_while_the_broker_is_down),
        ON_ROUTES(deliveries_that_met_a_lack_of_memory_come_again),
        ON_ROUTES(message_is_acknowledged_only_after_its_commit),
        ON_ROUTES(message_without_a_commit_is_not_acknowledged),
        ON_ROUTES(lost_acknowledgement_brings_a_duplicate),
        ON_ROUTES(poison_is_acknowledged_and_so_is_what_another_worker_has_claimed),
        ON_ROUTES(fenced_acknowledgement_is_ignored),
        ON_ROUTES(store_that_was_closed_is_opened_at_the_next_step),
        ON_ROUTES(broker_that_was_closed_is_opened_at_the_next_step),
        ON_ROUTES(failure_of_the_store_is_reported_before_that_of_the_broker),
        ON_ROUTES(observer_sees_the_time_of_a_message),
        ON_ROUTES(store_that_cannot_be_opened_polls_nothing),
        ON_ROUTES(breaker_pauses_and_probes_with_one_message),
        ON_ROUTES(broken_handler_opens_the_breaker_at_once),
        ON_ROUTES(probe_without_an_answer_is_tried_again),
        ON_ROUTES(probe_reaches_behind_messages_that_wait),
        ON_ROUTES(source_pauses_when_parking_is_full),
        ON_ROUTES(tick_recovers_works_and_purges),
        ON_ROUTES(purge_that_met_its_bound_goes_on_at_the_next_tick),
        ON_ROUTES(tick_of_an_open_breaker_probes_with_one_row),
        ON_ROUTES(claimed_deliveries_are_acknowledged_after_the_commit_of_their_claim),
        ON_ROUTES(claim_that_was_not_committed_acknowledges_nothing),
        ON_ROUTES(ends_of_leases_open_and_close_the_breaker),
        ON_ROUTES(take_under_an_open_breaker_is_one_row_or_nothing),
        ON_ROUTES(store_that_is_lost_under_leases_is_opened_by_the_next_call),
        ON_ROUTES(paused_route_claims_nothing_until_its_time),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
