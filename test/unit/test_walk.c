/* SPDX-License-Identifier: MIT
 *
 * test_walk.c: a message's walk, and what may go wrong between two steps of it: the connection dies while handlers
 * run, a redelivery comes in another guise, two answers are lost in a row. Each of these was wrong once.
 */
#include "unit/engine.h"

static void work(struct engine *e)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
}

/* ---- ends that must not be lost ----------------------------------------------------------------------- */

static void lose_connection_at_b(struct engine *e, const struct semel__msg *m)
{
    if (semel__str_eqz(m->id, "b"))
        e->dead = true;
}

/* E2: what a handler has reported is not unknown because the connection died meanwhile. */
static void connection_that_dies_while_handlers_run_costs_no_end(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    e->on_run = lose_connection_at_b;
    (void)try_process(e, msgs, 2);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
}

/* P61 */
static void contention_at_the_end_is_repeated(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    fail_at(e, "settle", 1, FAULT_CONTENTION);
    process(e, msgs, 2);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* P15: the first of two lost answers was a success, and is not taken for somebody else's. */
static void two_lost_answers_in_a_row_leave_the_end_ours(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "ok");
    struct semel_ending done = {.result = SEMEL_DONE};
    struct semel_lease lease;
    size_t n;

    assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, true, &e->keep, &lease, &n, e->settled, &e->err));
    forget(e);
    e->plan = (struct plan){.op = "commit", .nth = 1, .fault = FAULT_UNKNOWN_DONE};
    e->then = (struct plan){.op = "commit", .nth = 2, .fault = FAULT_UNKNOWN_LOST};
    e->then.seen = 1;
    assert_ok(e, semel__lease_finish(&e->inbox, &lease, &done, 1, &e->err));
    assert_false(lease.lost);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(attempts_of(e, "a"), 0);
}

static semel_status say_unknown(void *ctx, struct semel_store *store, const struct semel__msg *m, int attempt,
                                struct semel__reply *reply, struct semel_error *err)
{
    (void)ctx, (void)store, (void)m, (void)attempt, (void)reply;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_UNKNOWN, "timed out after sending");
}

/* I14: the class says that the effect may have happened, whatever the status is. */
static void error_of_class_unknown_is_never_retried_on_a_guess(void **state)
{
    struct engine *e = *state;

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    e->handler.each = say_unknown;
    process_one(e, msg("a", "ok"));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_UNKNOWN);
}

/* ---- the breaker's bound ------------------------------------------------------------------------------ */

/* P63: an endpoint that refuses everything does not drain a batch into dead letters. */
static void failures_in_a_row_stop_an_outside_batch_too(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[30];
    char ids[30][8];
    int dead = 0;

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    e->inbox.failures_max = 10;
    for (int i = 0; i < 30; i++) {
        snprintf(ids[i], sizeof ids[i], "m%d", i);
        msgs[i] = msg(ids[i], "bad");
    }
    assert_int_equal(try_process(e, msgs, 30), SEMEL_RETRY);
    for (int i = 0; i < 30; i++)
        dead += state_of(e, ids[i]) == SEMEL_ROW_DEAD;
    assert_int_equal(dead, 10);
}

/* ---- the same message in another guise ---------------------------------------------------------------- */

/* I13: the row keeps its place in the key it came with. */
static void redelivery_under_another_key_leaves_the_row_in_its_place(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    process_one(e, keyed("m1", "fail@1", "A", SEMEL_NONE));
    process_one(e, keyed("m2", "ok", "A", SEMEL_NONE));
    e->now_us += 3600 * SECOND_US;
    process_one(e, keyed("m1", "fail@1", "B", SEMEL_NONE));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BACKOFF, SEMEL_ROW_FAILED);
    work(e);
    work(e);
    assert_int_equal(state_of(e, "m1"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "m2"), SEMEL_ROW_COMPLETED);
}

/* I12 */
static void redelivery_under_another_version_raises_nothing(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("m1", "fail@1", "A", 1));
    e->now_us += 3600 * SECOND_US;
    process_one(e, keyed("m1", "fail@1", "A", 5));
    work(e);
    process_one(e, keyed("m2", "ok", "A", 2));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* P57: one without an order key, whose lock key is the same text, does not part the messages of a key. */
static void lock_key_that_equals_an_order_key_parts_nothing(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "ok", "k", SEMEL_NONE), msg("b", "ok"), keyed("a2", "ok", "k", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->handler.set = engine_handle_set;
    msgs[1].lock_key = SEMEL_STR("k");
    process(e, msgs, 3);
    assert_false(e->key_repeated);
    assert_int_equal(effects_of(e, NULL), 3);
}

/* I11: a conflicting copy is counted once, by whichever path its message goes. */
static void conflicting_copy_is_counted_once_on_every_path(void **state)
{
    struct engine *e = *state;
    struct semel__msg again[] = {msg("x", "ok"), msg("x", "other")}, batch[] = {msg("y", "ok"), msg("y", "other")},
                      outside[] = {msg("z", "ok"), msg("z", "other")};

    again[0].delivery = again[1].delivery = 2;
    process(e, again, 2);
    process(e, batch, 2);
    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    process(e, outside, 2);
    assert_int_equal(conflicts_of(e, "x"), 1);
    assert_int_equal(conflicts_of(e, "y"), 1);
    assert_int_equal(conflicts_of(e, "z"), 1);
}

/* I13: a retried row that comes first in the order waits for the one that is at its effect. */
static void retried_row_does_not_run_beside_one_of_its_key(void **state)
{
    struct engine *e = *state;
    struct semel__msg old = keyed("", "ok", "k", SEMEL_NONE), m = keyed("m", "ok", "k", SEMEL_NONE);
    struct semel_command retry = {.kind = SEMEL_COMMAND_RETRY,
                                  .who = SEMEL_STR("ops"),
                                  .reason = SEMEL_STR("test"),
                                  .force = true};
    struct semel_command_result result;
    struct semel_lease lease;
    size_t n;

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    old.position = SEMEL_STR("old");
    process_one(e, old);
    assert_ok(e, semel__lease_claim(&e->inbox, &m, 1, true, &e->keep, &lease, &n, e->settled, &e->err));
    assert_ok(e, command_row(e, "position:old", retry, &result));
    assert_true(result.done);
    work(e);
    assert_int_equal(effects_of(e, NULL), 0);
    assert_ok(e, semel__lease_finish(&e->inbox, &lease, &(struct semel_ending){.result = SEMEL_DONE}, 1, &e->err));
    work(e);
    assert_int_equal(state_of(e, "position:old"), SEMEL_ROW_COMPLETED);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(connection_that_dies_while_handlers_run_costs_no_end),
        ON_EACH(contention_at_the_end_is_repeated),
        ON_EACH(two_lost_answers_in_a_row_leave_the_end_ours),
        ON_EACH(error_of_class_unknown_is_never_retried_on_a_guess),
        ON_EACH(failures_in_a_row_stop_an_outside_batch_too),
        ON_EACH(redelivery_under_another_key_leaves_the_row_in_its_place),
        ON_EACH(redelivery_under_another_version_raises_nothing),
        ON_EACH(lock_key_that_equals_an_order_key_parts_nothing),
        ON_EACH(conflicting_copy_is_counted_once_on_every_path),
        ON_EACH(retried_row_does_not_run_beside_one_of_its_key),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
