/* SPDX-License-Identifier: MIT
 *
 * test_put.c: batches of messages that are stored to be run later: the same as one after the other, in one transaction.
 */
#include "unit/engine.h"

#include "base/random.h"

static void put_all(struct engine *e, const struct semel__msg *msgs, size_t n)
{
    assert_ok(e, semel__inbox_put_all(&e->inbox, msgs, n, e->settled, &e->err));
}

static size_t work(struct engine *e)
{
    size_t n = 0;
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    return n;
}

static void a_batch_is_stored_in_one_transaction_and_runs_later(void **state)
{
    struct engine *e = *state;
    const struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("a", "ok"), msg("c", "ok")};
    put_all(e, msgs, COUNT(msgs));
    assert_int_equal(e->seen.commits, 1);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_WAITING);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_int_equal(effects_of(e, NULL), 0);
    assert_int_equal(row_of(e, "b").progress.attempts, 0);
    assert_int_equal(row_of(e, "b").progress.due_us, e->now_us);
    assert_int_equal(work(e), 3);
    assert_int_equal(effects_of(e, NULL), 3);
    put_all(e, msgs, COUNT(msgs));
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_settled(e, i, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
}

static void an_id_with_another_payload_is_a_conflict_and_the_first_stays(void **state)
{
    /* I11 */
    struct engine *e = *state;
    const struct semel__msg msgs[] = {msg("a", "ok"), msg("a", "out"), msg("b", "ok")};
    put_all(e, msgs, COUNT(msgs));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_int_equal(e->settled[1].why, SEMEL_WHY_CONFLICT);
    assert_int_equal(conflicts_of(e, "a"), 1);
    put_all(e, &msgs[1], 1);
    assert_int_equal(e->settled[0].why, SEMEL_WHY_CONFLICT);
    assert_int_equal(work(e), 2);
}

static void messages_of_a_key_are_parked_behind_the_first(void **state)
{
    /* I13 */
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    const struct semel__msg msgs[] = {keyed("a", "ok", "k", SEMEL_NONE), keyed("x", "ok", "l", SEMEL_NONE),
                                      keyed("b", "ok", "k", SEMEL_NONE), keyed("c", "ok", "k", SEMEL_NONE)};
    put_all(e, msgs, COUNT(msgs));
    assert_int_equal(e->seen.commits, 1);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "a").progress.due_us, e->now_us);
    assert_int_equal(row_of(e, "b").progress.due_us, SEMEL_NONE); /* only its key wakes it */
    assert_int_equal(row_of(e, "b").progress.error_class, SEMEL_CLASS_BLOCKED);
    forget(e);
    while (work(e) > 0)
        continue;
    assert_int_equal(effects_of(e, NULL), 4);
    const char *a = strstr(e->trace, "run:a"), *b = strstr(e->trace, "run:b"), *c = strstr(e->trace, "run:c");
    assert_true(a != NULL && b != NULL && c != NULL && a < b && b < c);
}

static void a_waiter_that_comes_again_has_no_place_in_its_key(void **state)
{
    /* A6 P78: it is left as it is, and nobody would wake what parked behind it. */
    struct engine *e = *state;
    struct semel__msg holder = msg("h", "fail@1"), waiter = keyed("w", "ok", "k", SEMEL_NONE);
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    holder.business[0] = waiter.business[0] = SEMEL_STR("inv-1");
    holder.n_business = waiter.n_business = 1;
    process_one(e, holder);
    process_one(e, waiter);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BUSINESS, SEMEL_ROW_WAITING);
    const struct semel_command discard = {.kind = SEMEL_COMMAND_DISCARD,
                                          .who = SEMEL_STR("me"),
                                          .reason = SEMEL_STR("no")};
    struct semel_command_result result;
    assert_ok(e, command_row(e, "h", discard, &result));
    assert_true(result.done);
    const struct semel__msg msgs[] = {waiter, keyed("x", "ok", "k", SEMEL_NONE)};
    put_all(e, msgs, COUNT(msgs));
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    while (work(e) > 0)
        continue;
    assert_int_equal(state_of(e, "x"), SEMEL_ROW_COMPLETED);
}

#define HOUR_US (INT64_C(3600) * 1000000)

static struct semel__msg later(struct semel__msg msg, int64_t not_before_us)
{
    msg.not_before_us = not_before_us;
    return msg;
}

static void assert_postponed(struct engine *e, const char *id, int64_t due_us)
{
    const struct semel_row row = row_of(e, id);
    assert_int_equal(row.progress.state, SEMEL_ROW_WAITING);
    assert_int_equal(row.progress.error_class, SEMEL_CLASS_NONE);
    assert_int_equal(row.progress.due_us, due_us);
}

static void a_message_for_later_runs_then_and_what_comes_behind_it_waits(void **state)
{
    /* I26 I13 */
    struct engine *e = *state;
    int64_t due_us = e->now_us + HOUR_US;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    const struct semel__msg msgs[] = {later(keyed("a", "ok", "k", SEMEL_NONE), due_us),
                                      keyed("b", "ok", "k", SEMEL_NONE), keyed("x", "ok", "l", SEMEL_NONE)};
    put_all(e, msgs, COUNT(msgs));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    while (work(e) > 0)
        continue;
    assert_int_equal(effects_of(e, NULL), 1);
    assert_postponed(e, "a", due_us);
    put_all(e, msgs, 1); /* a copy, as a delivery of it */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BACKOFF, SEMEL_ROW_WAITING);
    process_one(e, keyed("a", "ok", "k", SEMEL_NONE));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BACKOFF, SEMEL_ROW_WAITING);
    assert_postponed(e, "a", due_us);
    e->now_us = due_us;
    while (work(e) > 0)
        continue;
    assert_int_equal(effects_of(e, NULL), 3);
}

static void a_wake_does_not_bring_a_message_for_later_forward(void **state)
{
    /* I26: whatever it would have had to wait for besides, it is judged when its time has come */
    struct engine *e = *state;
    int64_t due_us = e->now_us + HOUR_US;
    e->policy.order = SEMEL_ORDER_VERSION;
    const struct semel__msg msgs[] = {keyed("v1", "ok", "k", 1), later(keyed("v2", "ok", "k", 2), due_us),
                                      later(keyed("v5", "ok", "m", 5), due_us),
                                      later(msg("past", "ok"), e->now_us - 1)};
    put_all(e, msgs, 3);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_GAP, SEMEL_ROW_WAITING);
    while (work(e) > 0)
        continue;
    assert_int_equal(effects_of(e, NULL), 1);
    assert_postponed(e, "v2", due_us);
    assert_postponed(e, "v5", due_us);
    e->now_us = due_us + 1;
    while (work(e) > 0)
        continue;
    assert_int_equal(state_of(e, "v2"), SEMEL_ROW_COMPLETED);
    assert_int_equal(row_of(e, "v5").progress.error_class, SEMEL_CLASS_GAP); /* the timer of the gap starts now */
    assert_int_equal(row_of(e, "v5").progress.due_us, due_us + 1 + e->policy.gap_timeout_us);
    e->policy.order = SEMEL_ORDER_NONE;
    put_all(e, &msgs[3], 1);
    assert_int_equal(row_of(e, "past").progress.due_us, e->now_us);
}

static void a_lower_version_behind_a_higher_one_is_not_locked_out(void **state)
{
    /* I12: nobody is at the effect of the higher one, so the lower one goes first; neither may wait for the other. */
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_VERSION;
    e->policy.first_version = SEMEL_FIRST_VERSION_ANY;
    const struct semel__msg msgs[] = {keyed("v2", "ok", "k", 2), keyed("v1", "ok", "k", 1)};
    put_all(e, msgs, COUNT(msgs));
    forget(e);
    for (int i = 0; i < 4; i++)
        work(e);
    assert_int_equal(effects_of(e, NULL), 2);
    assert_true(strstr(e->trace, "run:v1") < strstr(e->trace, "run:v2"));
}

static void contention_cuts_the_batch_and_loses_nothing(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[8];
    char ids[COUNT(msgs)][8];
    for (size_t i = 0; i < COUNT(msgs); i++) {
        snprintf(ids[i], sizeof ids[i], "m%zu", i);
        msgs[i] = msg(ids[i], "ok");
    }
    e->plan = (struct plan){.op = "admit", .nth = 1, .on = true, .above = 2, .fault = FAULT_CONTENTION};
    put_all(e, msgs, COUNT(msgs));
    e->plan = (struct plan){0};
    assert_true(e->inbox.counts.cuts > 0 && e->inbox.counts.contention > 0);
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_settled(e, i, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_int_equal(work(e), COUNT(msgs));
}

static void an_unknown_commit_is_read_again(void **state)
{
    /* P15 */
    static const enum fault faults[] = {FAULT_UNKNOWN_DONE, FAULT_UNKNOWN_LOST};
    struct engine *e = *state;
    for (size_t i = 0; i < COUNT(faults); i++) {
        const struct semel__msg msgs[] = {msg(i == 0 ? "a" : "c", "ok"), msg(i == 0 ? "b" : "d", "ok")};
        fail_at(e, "commit", 1, faults[i]);
        put_all(e, msgs, COUNT(msgs));
        for (size_t k = 0; k < COUNT(msgs); k++)
            assert_int_equal(e->settled[k].act, SEMEL_ACK);
    }
    assert_int_equal(work(e), 4);
    assert_int_equal(effects_of(e, NULL), 4);
}

static void what_the_world_left_undecided_is_later(void **state)
{
    struct engine *e = *state;
    const struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};
    fail_at(e, "admit", 1, FAULT_WORLD);
    assert_int_equal(semel__inbox_put_all(&e->inbox, msgs, COUNT(msgs), e->settled, &e->err), SEMEL_RETRY);
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_int_equal(e->settled[i].act, SEMEL_LATER);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_ABSENT);
}

static void past_the_parking_bound_the_source_keeps_the_rest_of_the_key(void **state)
{
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.parked_key_max = 2;
    const struct semel__msg msgs[] = {keyed("a", "ok", "k", SEMEL_NONE), keyed("b", "ok", "k", SEMEL_NONE),
                                      keyed("c", "ok", "k", SEMEL_NONE), keyed("x", "ok", "l", SEMEL_NONE)};
    put_all(e, msgs, COUNT(msgs));
    assert_int_equal(e->settled[0].act, SEMEL_ACK);
    assert_int_equal(e->settled[1].act, SEMEL_ACK);
    assert_int_equal(e->settled[2].act, SEMEL_LATER);
    assert_int_equal(e->settled[3].act, SEMEL_ACK);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_ABSENT);
}

/* What the batch itself has inserted is not parked before it is judged: else a large one would leave no room at all. */
static void rows_of_the_batch_itself_leave_room_for_those_that_wait(void **state)
{
    struct engine *e = *state;
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.parked_consumer_max = 2;
    const struct semel__msg msgs[] = {keyed("a", "ok", "k", SEMEL_NONE), keyed("b", "ok", "k", SEMEL_NONE),
                                      keyed("c", "ok", "k", SEMEL_NONE), keyed("d", "ok", "k", SEMEL_NONE)};
    put_all(e, msgs, COUNT(msgs));
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_int_equal(e->settled[i].act, i < 3 ? SEMEL_ACK : SEMEL_LATER);
    assert_int_equal(state_of(e, "d"), SEMEL_ROW_ABSENT);
}

/* ---- the same as one by one --------------------------------------------------------------------------- */

#define ROUNDS 60
#define IDS 9

/* Each id once a batch: copies within one are merged, and are not judged again as a later delivery is. */
static void shuffle(struct semel_random *rng, unsigned order[IDS])
{
    for (unsigned i = 0; i < IDS; i++) {
        unsigned k = (unsigned)semel__random_below(rng, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
}

static struct semel__msg any_msg(struct semel_random *rng, unsigned number, char id[8])
{
    static const char *const keys[] = {"k", "l"}, *const payloads[] = {"ok", "out"};
    snprintf(id, 8, "m%u", number % IDS);
    /* Mostly the same payload for the same id, sometimes a conflict. */
    struct semel__msg m = keyed(id, payloads[semel__random_next(rng) % 8 == 0], keys[number % 2], number / 2 + 1);
    if (semel__random_next(rng) % 4 == 0) {
        m.business[0] = semel__random_next(rng) % 2 == 0 ? SEMEL_STR("one") : SEMEL_STR("two");
        m.n_business = 1;
    }
    return m;
}

static void compare(struct engine *a, struct engine *b)
{
    for (int i = 0; i < IDS; i++) {
        char id[8];
        snprintf(id, sizeof id, "m%d", i);
        struct semel_row x = row_of(a, id);
        enum semel_row_status state = x.progress.state;
        int64_t due_us = x.progress.due_us;
        struct semel_row y = row_of(b, id);
        if (state != y.progress.state || (state != SEMEL_ROW_ABSENT && due_us != y.progress.due_us))
            fail_msg("%s: %s due %lld in a batch, %s due %lld one by one", id, semel__row_status_name(state),
                     (long long)due_us, semel__row_status_name(y.progress.state), (long long)y.progress.due_us);
        assert_int_equal(conflicts_of(a, id), conflicts_of(b, id));
    }
}

static void a_batch_equals_one_put_after_the_other(void **state)
{
    /* I11, I12, I13 */
    static const enum semel_order orders[] = {SEMEL_ORDER_NONE, SEMEL_ORDER_ARRIVAL, SEMEL_ORDER_VERSION};
    struct engine *outer = *state;
    const char *kind = outer->db != NULL ? "mem" : "sqlite";
    struct semel_random rng;
    semel__random_seed(&rng, 4711);
    for (int round = 0; round < ROUNDS; round++) {
        static struct engine a, b;
        struct semel__msg msgs[IDS];
        char ids[IDS][8];
        engine_init(&a);
        engine_init(&b);
        assert_int_equal(engine_open(&a, kind), SEMEL_OK);
        assert_int_equal(engine_open(&b, kind), SEMEL_OK);
        a.policy.order = b.policy.order = orders[round % 3];
        a.policy.first_version = b.policy.first_version = round % 2 == 0 ? 1 : SEMEL_FIRST_VERSION_ANY;
        for (int batch = 0; batch < 3; batch++) {
            size_t n = 1 + semel__random_below(&rng, IDS);
            unsigned order[IDS];
            shuffle(&rng, order);
            for (size_t i = 0; i < n; i++)
                msgs[i] = any_msg(&rng, order[i], ids[i]);
            put_all(&a, msgs, n);
            for (size_t i = 0; i < n; i++)
                assert_ok(&b, semel__inbox_put(&b.inbox, &msgs[i], &b.settled[i], &b.err));
            compare(&a, &b);
        }
        engine_close(&a);
        engine_close(&b);
    }
}

int main(int argc, char **argv)
{
    engine_stores(argc, argv);
    const struct CMUnitTest tests[] = {
        ON_EACH(a_batch_is_stored_in_one_transaction_and_runs_later),
        ON_EACH(an_id_with_another_payload_is_a_conflict_and_the_first_stays),
        ON_EACH(messages_of_a_key_are_parked_behind_the_first),
        ON_EACH(a_waiter_that_comes_again_has_no_place_in_its_key),
        ON_EACH(a_message_for_later_runs_then_and_what_comes_behind_it_waits),
        ON_EACH(a_wake_does_not_bring_a_message_for_later_forward),
        ON_EACH(a_lower_version_behind_a_higher_one_is_not_locked_out),
        ON_EACH(contention_cuts_the_batch_and_loses_nothing),
        ON_EACH(an_unknown_commit_is_read_again),
        ON_EACH(what_the_world_left_undecided_is_later),
        ON_EACH(past_the_parking_bound_the_source_keeps_the_rest_of_the_key),
        ON_EACH(rows_of_the_batch_itself_leave_room_for_those_that_wait),
        ON_MEM(a_batch_equals_one_put_after_the_other),
        ON_SQLITE(a_batch_equals_one_put_after_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
