/* SPDX-License-Identifier: MIT
 *
 * test_keys.c: business keys, order keys and versions, as the engine keeps them within a batch and across batches. The
 * table of all verdicts is in test_verdict.c.
 */
#include "unit/engine.h"

static struct semel__msg business(const char *id, const char *payload, const char *key)
{
    struct semel__msg m = msg(id, payload);
    m.business[0] = semel__str(key);
    m.n_business = 1;
    return m;
}

static void work(struct engine *e, size_t expected)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    assert_int_equal(n, expected);
}

/* ---- business keys ------------------------------------------------------------------------------------ */

/* I10, T8 */
static void business_duplicate_within_a_batch_is_prevented(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {business("a", "ok", "pay-1"), business("b", "ok", "pay-1"),
                                business("c", "ok", "pay-2")};

    process(e, msgs, 3);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, NULL), 2);
    assert_int_equal(row_of(e, "b").progress.attempts, 0);
    assert_int_equal(e->inbox.counts.why[SEMEL_WHY_BUSINESS], 1);
}

/* I10, T8 */
static void business_duplicate_in_a_later_batch_is_prevented(void **state)
{
    struct engine *e = *state;

    process_one(e, business("a", "ok", "pay-1"));
    process_one(e, business("b", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
    process_one(e, business("a", "ok", "pay-1")); /* its own repeat is an ordinary duplicate */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, NULL), 1);
}

/* A message that is still to be retried holds its key. */
static void failed_holder_keeps_its_key(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {business("a", "fail@1", "pay-1"), business("b", "ok", "pay-1")};

    process(e, msgs, 2);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
    e->now_us += 10 * SECOND_US;
    work(e, 1);
    work(e, 0);
    assert_int_equal(effects_of(e, "a"), 1);
    assert_int_equal(effects_of(e, "b"), 0);
    e->now_us += 60 * SECOND_US;
    work(e, 0);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_PREVENTED);
}

/* I10 A6 P78: the holder comes to nothing, and the one that waited for it does what both stand for. */
static void who_waited_runs_when_the_holder_is_discarded(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {business("a", "bad", "pay-1"), business("b", "ok", "pay-1")};
    struct semel_command discard = {.kind = SEMEL_COMMAND_DISCARD,
                                    .who = SEMEL_STR("ops@example.com"),
                                    .reason = SEMEL_STR("ticket 7")};
    struct semel_command_result result;

    process(e, msgs, 2);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_DEAD);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
    assert_ok(e, command_row(e, "a", discard, &result));
    assert_true(result.done);
    work(e, 1);
    assert_int_equal(effects_of(e, "b"), 1);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
}

/* At most parked_key_max want one key, those of the same batch included; the others stay with their source. */
static void batch_parks_no_more_for_a_business_key_than_may_wait(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {business("b", "ok", "pay-1"), business("c", "ok", "pay-1"),
                                business("d", "ok", "pay-1"), business("x", "ok", "pay-2"),
                                business("e", "ok", "pay-1")};

    e->policy.parked_key_max = 2;
    process_one(e, business("a", "fail@1", "pay-1"));
    process(e, msgs, 5);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
    assert_settled(e, 2, SEMEL_LATER, SEMEL_WHY_BUSINESS, SEMEL_ROW_ABSENT);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 4, SEMEL_LATER, SEMEL_WHY_BUSINESS, SEMEL_ROW_ABSENT);
    process_one(e, business("d", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BUSINESS, SEMEL_ROW_ABSENT);
}

/* For each letter a waiter of that name and key, which is due: its holder was discarded. */
static void put_waiters(struct engine *e, const char *letters)
{
    const struct semel_command discard = {.kind = SEMEL_COMMAND_DISCARD,
                                          .who = SEMEL_STR("ops@example.com"),
                                          .reason = SEMEL_STR("ticket 7")};
    struct semel_command_result result;
    static char names[26][2], holders[26][3];

    for (const char *c = letters; *c != '\0'; c++) {
        int i = *c - 'a';
        snprintf(names[i], sizeof names[i], "%c", *c);
        snprintf(holders[i], sizeof holders[i], "h%c", *c);
        process_one(e, business(holders[i], "bad", names[i]));
        process_one(e, business(names[i], "ok", names[i]));
        assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
        assert_ok(e, command_row(e, holders[i], discard, &result));
        e->now_us += SECOND_US / 1000;
    }
}

/* P77: what somebody else is taking costs those who want it, wherever they stand and however few are wanted. */
static void take_passes_over_only_those_who_want_a_key_that_is_being_taken(void **state)
{
    struct engine *e = *state;
    size_t n = 0;

    put_waiters(e, "abcde");
    e->sits_on = "ac";
    assert_ok(e, semel__inbox_work(&e->inbox, 1, &n, &e->err));
    assert_int_equal(effects_of(e, "b"), 1);
    work(e, 2);
    assert_int_equal(effects_of(e, "d"), 1);
    assert_int_equal(effects_of(e, "e"), 1);
    work(e, 0);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_WAITING);
    e->sits_on = NULL;
    work(e, 2);
    assert_int_equal(effects_of(e, NULL), 5);
}

/* Each failure costs time: past so many, all who want keys are passed over, and nobody else. */
static void take_gives_up_on_business_keys_when_too_many_are_being_taken(void **state)
{
    struct engine *e = *state;

    put_waiters(e, "abcdefghijklmnopqrst");
    process_one(e, msg("plain", "fail@1"));
    e->now_us += 3600 * SECOND_US;
    e->sits_on = "abcdefghijklmnopqrs";
    e->seen.fetches = 0;
    work(e, 1);
    assert_int_equal(effects_of(e, "plain"), 1);
    assert_int_equal(effects_of(e, "t"), 0);
    assert_true(e->seen.fetches < 100);
    e->sits_on = "abcdefghijklmno"; /* few enough: it is found behind all of them */
    work(e, 5);
    e->sits_on = NULL;
    work(e, 15);
}

/* A follower that wants such a key stays behind; the first of the key runs. */
static void follower_whose_key_is_being_taken_stays_behind_the_first(void **state)
{
    struct engine *e = *state;
    struct semel__msg behind = business("w", "ok", "p"), first = keyed("a1", "fail@1", "k", SEMEL_NONE);
    size_t n = 0;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, first);
    behind.order_key = SEMEL_STR("k");
    process_one(e, behind);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    e->now_us += 3600 * SECOND_US;
    e->sits_on = "p";
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(effects_of(e, "a1"), 1);
    assert_int_equal(effects_of(e, "w"), 0);
    e->sits_on = NULL;
    work(e, 1);
    assert_int_equal(effects_of(e, "w"), 1);
}

/* The same for a tick, which decides about waiters whose intent is done. */
static void tick_passes_over_only_those_who_want_a_key_that_is_being_taken(void **state)
{
    struct engine *e = *state;
    size_t n;

    static const char *const names[] = {"a", "b", "c"}, *const holders[] = {"ha", "hb", "hc"};

    for (size_t i = 0; i < 3; i++) {
        process_one(e, business(holders[i], "fail@1", names[i]));
        process_one(e, business(names[i], "ok", names[i]));
    }
    e->now_us += 10 * SECOND_US;
    for (size_t i = 0; i < 3; i++) {
        process_one(e, business(holders[i], "fail@1", names[i]));
        assert_int_equal(state_of(e, holders[i]), SEMEL_ROW_COMPLETED);
    }
    e->now_us += 3600 * SECOND_US;
    e->sits_on = "b";
    assert_ok(e, semel__inbox_gaps(&e->inbox, 100, &n, &e->err));
    assert_int_equal(n, 2);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PREVENTED);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_PREVENTED);
    e->sits_on = NULL;
    assert_ok(e, semel__inbox_gaps(&e->inbox, 100, &n, &e->err));
    assert_int_equal(n, 1);
}

/* The holder is refused by its handler in the same batch: the other one runs. */
static void other_message_runs_when_the_holder_is_rejected(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {business("a", "reject", "pay-1"), business("b", "ok", "pay-1")};

    process(e, msgs, 2);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_REJECTED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "b"), 1);
}

/* The holder is refused at the door (stale): the batch is cut, each is judged without the other. */
static void other_message_runs_when_the_holder_is_stale(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_VERSION;
    struct semel__msg first[] = {keyed("v1", "ok", "k", 1), keyed("v2", "ok", "k", 2)};
    process(e, first, 2);
    struct semel__msg msgs[] = {business("a", "ok", "pay-1"), business("b", "ok", "pay-1")};
    msgs[0].order_key = msgs[1].order_key = SEMEL_STR("k");
    msgs[0].version = 1;
    msgs[1].version = 3;
    process(e, msgs, 2);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_STALE, SEMEL_ROW_STALE);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    process_one(e, business("c", "ok", "pay-1")); /* no version: dead, but it must not have taken the key */
    assert_int_equal(effects_of(e, "b"), 1);
}

static void message_with_two_keys_is_prevented_by_either_and_takes_neither(void **state)
{
    struct engine *e = *state;
    struct semel__msg two = business("b", "ok", "pay-2");

    process_one(e, business("a", "ok", "pay-1"));
    two.business[1] = SEMEL_STR("pay-1");
    two.n_business = 2;
    process_one(e, two);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
    process_one(e, business("c", "ok", "pay-2"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* P78: it failed under one key, and came again under another one whose intent is done: the first is free again. */
static void message_that_is_prevented_gives_back_the_key_that_it_held(void **state)
{
    struct engine *e = *state;
    size_t n;

    process_one(e, business("done", "ok", "pay-2"));
    process_one(e, business("a", "fail", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    process_one(e, business("a", "fail", "pay-2"));
    e->now_us += 3600 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PREVENTED);
    process_one(e, business("b", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "b"), 1);
}

static void business_key_does_not_expire_before_its_holder_has_ended(void **state)
{
    struct engine *e = *state;

    e->policy.business_retention_us = 60 * SECOND_US;
    process_one(e, business("a", "fail@1", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    e->now_us += 120 * SECOND_US;
    process_one(e, business("b", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
    work(e, 1);
    assert_int_equal(effects_of(e, "a"), 1);
    e->now_us += 59 * SECOND_US;
    process_one(e, business("c", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
    e->now_us += 2 * SECOND_US;
    process_one(e, business("d", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

static void business_key_that_has_expired_is_free_again(void **state)
{
    struct engine *e = *state;

    e->policy.business_retention_us = 60 * SECOND_US;
    process_one(e, business("a", "ok", "pay-1"));
    e->now_us += 59 * SECOND_US;
    process_one(e, business("b", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_PREVENTED);
    process_one(e, business("a", "ok", "pay-1")); /* a copy of its holder does not prolong it */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    e->now_us += 2 * SECOND_US;
    process_one(e, business("c", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* ---- order -------------------------------------------------------------------------------------------- */

/* I13 */
static void failed_message_parks_its_successors_and_other_keys_go_on(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "fail@1", "a", SEMEL_NONE), keyed("b1", "ok", "b", SEMEL_NONE),
                                keyed("a2", "ok", "a", SEMEL_NONE), keyed("a3", "ok", "a", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process(e, msgs, 4);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "a2").progress.due_us, SEMEL_NONE); /* woken by its key, never by time */
    forget(e);
    e->now_us += 10 * SECOND_US;
    work(e, 3);
    assert_string_equal(strstr(e->trace, "run:a1"), strstr(e->trace, "run:"));
    assert_true(strstr(e->trace, "run:a1") < strstr(e->trace, "run:a2"));
    assert_true(strstr(e->trace, "run:a2") < strstr(e->trace, "run:a3"));
    assert_int_equal(effects_of(e, NULL), 4);
}

/* I13: and a dead one too, until it is resolved or skipped. */
static void dead_message_parks_its_successors(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, keyed("a1", "bad", "a", SEMEL_NONE));
    process_one(e, keyed("a2", "ok", "a", SEMEL_NONE));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    e->now_us += 1000 * SECOND_US;
    work(e, 0);
    assert_int_equal(effects_of(e, "a2"), 0);
}

/* Bound 2: the fourth is not parked, has no row, and goes back to its source. */
static void parking_is_bounded_by_key(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "bad", "a", SEMEL_NONE), keyed("a2", "ok", "a", SEMEL_NONE),
                                keyed("a3", "ok", "a", SEMEL_NONE), keyed("a4", "ok", "a", SEMEL_NONE),
                                keyed("b1", "ok", "b", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.parked_key_max = 2;
    process(e, msgs, 5);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_settled(e, 3, SEMEL_LATER, SEMEL_WHY_BLOCKED, SEMEL_ROW_ABSENT);
    assert_settled(e, 4, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "a4"), SEMEL_ROW_ABSENT);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_PARKED_FULL], 1);
    process_one(e, msgs[3]); /* and again, when the key is full before the batch */
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BLOCKED, SEMEL_ROW_ABSENT);
    assert_int_equal(state_of(e, "a4"), SEMEL_ROW_ABSENT);
}

static void parking_is_bounded_by_route(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "bad", "a", SEMEL_NONE), keyed("b1", "bad", "b", SEMEL_NONE),
                                keyed("a2", "ok", "a", SEMEL_NONE), keyed("b2", "ok", "b", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.parked_consumer_max = 1;
    process_one(e, keyed("z1", "ok", "z", SEMEL_NONE));
    assert_null(strstr(e->trace, "parked")); /* a route may have many: they are counted where one more would park */
    process(e, msgs, 4);
    assert_non_null(strstr(e->trace, "parked"));
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_settled(e, 3, SEMEL_LATER, SEMEL_WHY_BLOCKED, SEMEL_ROW_ABSENT);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_PARKED_FULL], 1);
}

/* A parked message that was not accepted gives its business key up. */
static void message_that_is_not_parked_does_not_keep_its_business_key(void **state)
{
    struct engine *e = *state;
    struct semel__msg full = business("a2", "ok", "pay-1");

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.parked_key_max = 1;
    process_one(e, keyed("a1", "bad", "a", SEMEL_NONE));
    process_one(e, keyed("a0", "ok", "a", SEMEL_NONE));
    full.order_key = SEMEL_STR("a");
    process_one(e, full);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BLOCKED, SEMEL_ROW_ABSENT);
    process_one(e, business("x", "ok", "pay-1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* On an ordered route suspicion spreads over the key: a2 must not overtake a1, which runs alone. */
static void key_keeps_its_order_when_one_of_its_messages_came_again(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "ok", "a", SEMEL_NONE), keyed("a2", "ok", "a", SEMEL_NONE),
                                keyed("b1", "ok", "b", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    msgs[0].delivery = 2;
    process(e, msgs, 3);
    assert_true(strstr(e->trace, "run:a1") < strstr(e->trace, "run:a2"));
    assert_int_equal(effects_of(e, NULL), 3);
    assert_int_equal(e->inbox.counts.transactions, 5); /* a claim and a run each for a1 and a2, one for b1 */
}

/* ---- versions ----------------------------------------------------------------------------------------- */

/* I12, T9 */
static void versions_are_applied_in_order_whatever_the_order_of_arrival(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("v3", "ok", "k", 3));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_GAP, SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "v3").progress.due_us, e->now_us + e->policy.gap_timeout_us);
    process_one(e, keyed("v1", "ok", "k", 1));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    process_one(e, keyed("v2", "ok", "k", 2));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    work(e, 1); /* woken by v2 */
    assert_int_equal(state_of(e, "v3"), SEMEL_ROW_COMPLETED);
    process_one(e, keyed("again", "ok", "k", 3));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_STALE);
    process_one(e, keyed("old", "ok", "k", 2));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_STALE, SEMEL_ROW_STALE);
    assert_int_equal(effects_of(e, NULL), 3);
}

static void gap_that_times_out_follows_the_policy(void **state)
{
    struct engine *e = *state;
    static const enum semel_gap gaps[] = {SEMEL_GAP_DEAD, SEMEL_GAP_APPLY, SEMEL_GAP_ALERT};
    static const enum semel_row_status states[] = {SEMEL_ROW_DEAD, SEMEL_ROW_COMPLETED, SEMEL_ROW_WAITING};
    static const char *const ids[] = {"x", "y", "z"};
    size_t n;

    e->policy.order = SEMEL_ORDER_VERSION;
    for (size_t i = 0; i < 3; i++) {
        e->policy.on_gap = gaps[i];
        process_one(e, keyed(ids[i], "ok", ids[i], 5));
        e->now_us += e->policy.gap_timeout_us;
        assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
        assert_int_equal(state_of(e, ids[i]), states[i]);
    }
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 1);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_GAP], 1);
    assert_int_equal(effects_of(e, NULL), 1);
}

/* I14, I12: what has no version on such a route is kept with the reason. */
static void message_without_version_or_key_is_kept_dead(void **state)
{
    struct engine *e = *state;

    e->policy.order = SEMEL_ORDER_VERSION;
    process_one(e, keyed("a", "ok", "k", SEMEL_NONE));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    assert_str(row_of(e, "a").progress.error_text,
               "the route goes by versions, and the message has none; it must be a whole number from 0");
    process_one(e, msg("b", "ok"));
    assert_str(row_of(e, "b").progress.error_text, "the route goes by versions, and the message has no order key");
    process_one(e, keyed("c", "ok", "k2", 1));
    assert_int_equal(effects_of(e, "c"), 1);
}

/* A2: a key that somebody else has written stops its own messages, and nobody else's. */
static void damaged_order_key_stops_its_own_messages_only(void **state)
{
    struct engine *e = *state;
    struct semel__msg first[] = {keyed("bad-1", "fail@1", "bad", 1), keyed("good-1", "fail@1", "good", 1)};
    struct semel__msg next[] = {keyed("bad-2", "ok", "bad", 2), keyed("fine", "ok", "fine", 1)};
    struct semel_command discard = {.kind = SEMEL_COMMAND_DISCARD,
                                    .who = SEMEL_STR("test"),
                                    .reason = SEMEL_STR("test")};
    struct semel_command_result result;
    size_t n = 0;

    e->policy.order = SEMEL_ORDER_VERSION;
    process(e, first, 2);
    sql_either(e, "UPDATE semel_order_key SET skipped = '5,5' WHERE order_key = 'bad'",
               "UPDATE semel.order_key SET skipped = '{5,5}' WHERE order_key = 'bad'");
    process(e, next, 2);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_DAMAGED, SEMEL_ROW_ABSENT);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DAMAGED], 1);
    assert_non_null(strstr(e->alert_text, "damaged order key"));
    assert_int_equal(state_of(e, "bad-2"), SEMEL_ROW_ABSENT);
    e->now_us += 3600 * SECOND_US;
    process_one(e, first[0]);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_DAMAGED, SEMEL_ROW_ABSENT);
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(state_of(e, "good-1"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "bad-1"), SEMEL_ROW_FAILED);
    assert_int_equal(command_row(e, "bad-1", discard, &result), SEMEL_INVALID);
    assert_non_null(strstr(e->err.text, "damaged order key"));
    sql_either(e, "UPDATE semel_order_key SET skipped = NULL", "UPDATE semel.order_key SET skipped = NULL");
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(state_of(e, "bad-1"), SEMEL_ROW_COMPLETED);
}

/* The same for leases that ran out. */
static void lease_under_a_damaged_order_key_is_left_and_the_others_are_recovered(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("bad-1", "ok", "bad", 1), keyed("good-1", "ok", "good", 1)};
    struct semel_lease leases[2];
    size_t n = 0;

    e->policy.order = SEMEL_ORDER_VERSION;
    e->policy.effect = SEMEL_EFFECT_KEYED;
    assert_ok(e, semel__lease_claim(&e->inbox, msgs, 2, true, &e->keep, leases, &n, e->settled, &e->err));
    assert_int_equal(n, 2);
    sql_either(e, "UPDATE semel_order_key SET skipped = '5,5' WHERE order_key = 'bad'",
               "UPDATE semel.order_key SET skipped = '{5,5}' WHERE order_key = 'bad'");
    e->now_us += e->policy.lease_us + 1;
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 1);
    assert_int_equal(state_of(e, "good-1"), SEMEL_ROW_FAILED);
    assert_int_equal(state_of(e, "bad-1"), SEMEL_ROW_PROCESSING);
    sql_either(e, "UPDATE semel_order_key SET skipped = NULL", "UPDATE semel.order_key SET skipped = NULL");
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(business_duplicate_within_a_batch_is_prevented),
        ON_EACH(business_duplicate_in_a_later_batch_is_prevented),
        ON_EACH(failed_holder_keeps_its_key),
        ON_EACH(who_waited_runs_when_the_holder_is_discarded),
        ON_EACH(batch_parks_no_more_for_a_business_key_than_may_wait),
        ON_EACH(take_passes_over_only_those_who_want_a_key_that_is_being_taken),
        ON_EACH(take_gives_up_on_business_keys_when_too_many_are_being_taken),
        ON_EACH(follower_whose_key_is_being_taken_stays_behind_the_first),
        ON_EACH(tick_passes_over_only_those_who_want_a_key_that_is_being_taken),
        ON_EACH(other_message_runs_when_the_holder_is_rejected),
        ON_EACH(other_message_runs_when_the_holder_is_stale),
        ON_EACH(message_with_two_keys_is_prevented_by_either_and_takes_neither),
        ON_EACH(message_that_is_prevented_gives_back_the_key_that_it_held),
        ON_EACH(business_key_does_not_expire_before_its_holder_has_ended),
        ON_EACH(business_key_that_has_expired_is_free_again),
        ON_EACH(failed_message_parks_its_successors_and_other_keys_go_on),
        ON_EACH(dead_message_parks_its_successors),
        ON_EACH(parking_is_bounded_by_key),
        ON_EACH(parking_is_bounded_by_route),
        ON_EACH(message_that_is_not_parked_does_not_keep_its_business_key),
        ON_EACH(key_keeps_its_order_when_one_of_its_messages_came_again),
        ON_EACH(versions_are_applied_in_order_whatever_the_order_of_arrival),
        ON_EACH(gap_that_times_out_follows_the_policy),
        ON_EACH(message_without_version_or_key_is_kept_dead),
        ON_TABLES(damaged_order_key_stops_its_own_messages_only),
        ON_TABLES(lease_under_a_damaged_order_key_is_left_and_the_others_are_recovered),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
