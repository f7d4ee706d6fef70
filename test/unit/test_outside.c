/* SPDX-License-Identifier: MIT
 *
 * test_outside.c: effects outside the database: a lease first, no transaction while the handler runs, an end in a
 * second short transaction (I7, I14, E2).
 */
#include "unit/engine.h"

static int outside_on_mem(void **state)
{
    int rc = engine_on_mem(state);
    ((struct engine *)*state)->policy.effect = SEMEL_EFFECT_OUTSIDE;
    return rc;
}

static int outside_on_sqlite(void **state)
{
    int rc = engine_on_sqlite(state);
    ((struct engine *)*state)->policy.effect = SEMEL_EFFECT_OUTSIDE;
    return rc;
}

static int outside_on_postgres(void **state)
{
    int rc = engine_on_postgres(state);
    ((struct engine *)*state)->policy.effect = SEMEL_EFFECT_OUTSIDE;
    return rc;
}

static void assert_no_transaction(struct engine *e, const struct semel__msg *m)
{
    (void)m;
    assert_false(e->store->in_tx);
}

/* P22: one claim for both, one end for both, and nothing open in between. */
static void handler_runs_under_a_committed_lease_without_a_transaction(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "out"), msg("b", "ok")};

    e->on_run = assert_no_transaction;
    process(e, msgs, 2);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_str(e->settled[0].outcome, "{\"made\":1}");
    assert_int_equal(e->seen.commits, 2);
    assert_string_equal(e->trace, "begin commit begin rollback run:a begin rollback run:b begin commit ");
    process(e, msgs, 2);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, NULL), 2);
}

/* I14 */
static void each_result_has_its_state(void **state)
{
    struct engine *e = *state;
    static const char *const words[] = {"fail", "bad", "reject", "maybe"};
    static const enum semel_row_status states[] = {SEMEL_ROW_FAILED, SEMEL_ROW_DEAD, SEMEL_ROW_REJECTED,
                                                   SEMEL_ROW_UNKNOWN};

    for (size_t i = 0; i < COUNT(words); i++) {
        process_one(e, msg(words[i], words[i]));
        assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, states[i]);
        assert_int_equal(attempts_of(e, words[i]), 1);
    }
    process_one(e, msg("maybe", "maybe")); /* T11: never run again on a guess */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_UNKNOWN, SEMEL_ROW_UNKNOWN);
    assert_int_equal(effects_of(e, "maybe"), 1);
    e->policy.effect = SEMEL_EFFECT_KEYED;
    process_one(e, msg("keyed", "maybe"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
}

/* a ran, b met the world, c did not start. */
static void world_gives_back_what_was_not_touched_and_keeps_what_ended(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "world"), msg("c", "ok")};

    assert_int_equal(try_process(e, msgs, 3), SEMEL_RETRY);
    assert_string_equal(e->err.text, "the disk is full");
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(row_of(e, "b").progress.attempts, 0);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_WAITING);
    assert_int_equal(effects_of(e, "c"), 0);
    assert_int_equal(e->settled[0].act, SEMEL_ACK);
}

static void take_time(struct engine *e, const struct semel__msg *m)
{
    (void)m;
    e->now_us += 40 * SECOND_US; /* of a lease of 60 s */
}

/* I7: the lease of the group is renewed when half of it is gone. */
static void lease_is_renewed_before_the_next_handler_starts(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "ok")};
    size_t n;

    e->on_run = take_time;
    process(e, msgs, 3);
    for (size_t i = 0; i < 3; i++)
        assert_settled(e, i, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(e->seen.commits, 4); /* the claim, two renewals, the ends */
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 0);
}

static void take_time_and_look(struct engine *e, const struct semel__msg *m)
{
    assert_true(row_of(e, m->id.p[0] == 'a' ? "a" : "b").progress.lease_until_us > e->now_us);
    e->now_us += 40 * SECOND_US;
}

/* I7: a renewal that took longer than the lease is worth nothing: no handler starts under it. */
static void lease_that_ran_out_while_it_was_renewed_is_renewed_again(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    e->on_run = take_time_and_look;
    fail_at(e, "commit", 2, FAULT_STALL);
    process(e, msgs, 2);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(e->seen.commits, 4); /* the claim, two renewals, the ends */
}

/* The world is too slow: what was not started is given back. */
static void lease_that_cannot_be_kept_is_given_back(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    e->on_run = take_time_and_look;
    e->plan = (struct plan){.op = "commit", .nth = 2, .on = true, .fault = FAULT_STALL};
    assert_int_equal(try_process(e, msgs, 2), SEMEL_RETRY);
    assert_int_equal(e->inbox.counts.done + e->inbox.counts.fenced,
                     1); /* a: by its end, or by what came of the stall */
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "b").progress.attempts, 0);
}

static void stall_and_be_recovered(struct engine *e, const struct semel__msg *m)
{
    struct semel_inbox other;
    size_t n;
    if (!semel__str_eqz(m->id, "a"))
        return;
    e->now_us += 61 * SECOND_US;
    semel__inbox_init(&other, e->store, &e->policy, &e->handler, &e->rng, SEMEL_STR("worker-2"));
    assert_ok(e, semel__inbox_recover(&other, 10, &n, &e->err));
    assert_int_equal(n, 2);
    semel__inbox_done(&other);
}

/* I7: what was lost while another one ran is not started; the late end is refused and kept as evidence. */
static void message_whose_lease_was_lost_is_not_started(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    e->on_run = stall_and_be_recovered;
    process(e, msgs, 2);
    assert_null(strstr(e->trace, "run:b"));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_UNKNOWN);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_UNKNOWN);
    assert_int_equal(attempts_of(e, "a"), 2); /* the lease that ran out, and the late word */
    assert_int_equal(attempts_of(e, "b"), 1);
}

/* I13: order holds outside too: one of a key at a time. */
static void second_of_a_key_waits_for_the_first(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "fail@1", "a", SEMEL_NONE), keyed("a2", "ok", "a", SEMEL_NONE),
                                keyed("b1", "ok", "b", SEMEL_NONE)};
    size_t n;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process(e, msgs, 3);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_null(strstr(e->trace, "run:a2"));
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 2);
    assert_int_equal(state_of(e, "a2"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "a2"), 1);
}

#define ON_EACH_OUTSIDE(test)                                                                         \
    ON(test, "mem", outside_on_mem, engine_down), ON(test, "sqlite", outside_on_sqlite, engine_down), \
        ON(test, "postgres", outside_on_postgres, engine_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH_OUTSIDE(handler_runs_under_a_committed_lease_without_a_transaction),
        ON_EACH_OUTSIDE(each_result_has_its_state),
        ON_EACH_OUTSIDE(world_gives_back_what_was_not_touched_and_keeps_what_ended),
        ON_EACH_OUTSIDE(lease_is_renewed_before_the_next_handler_starts),
        ON_EACH_OUTSIDE(lease_that_ran_out_while_it_was_renewed_is_renewed_again),
        ON_EACH_OUTSIDE(lease_that_cannot_be_kept_is_given_back),
        ON_EACH_OUTSIDE(message_whose_lease_was_lost_is_not_started),
        ON_EACH_OUTSIDE(second_of_a_key_waits_for_the_first),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
