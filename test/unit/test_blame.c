/* SPDX-License-Identifier: MIT
 *
 * test_blame.c: when something fails: who is charged, who is not, and what stands.
 *
 * Only a transaction of a single message may be blamed. The world's failures charge nobody.
 */
#include "unit/engine.h"

static void assert_clean(struct engine *e, const char *id)
{
    struct semel_row row = row_of(e, id);
    assert_int_equal(row.progress.state, SEMEL_STATE_COMPLETED);
    assert_int_equal(row.progress.attempts, 1);
    assert_int_equal(attempts_of(e, id), 0);
    assert_int_equal(effects_of(e, id), 1);
}

static void assert_blamed(struct engine *e, const char *id, enum semel_state state, enum semel_class cls)
{
    struct semel_row row = row_of(e, id);
    assert_int_equal(row.progress.state, state);
    assert_int_equal(row.progress.error_class, cls);
    assert_int_equal(row.progress.attempts, 1);
    assert_int_equal(attempts_of(e, id), 1);
    assert_int_equal(effects_of(e, id), 0);
}

static void assert_untouched(struct engine *e, size_t i, const char *id)
{
    assert_int_equal(e->settled[i].act, SEMEL_LATER);
    assert_int_equal(state_of(e, id), SEMEL_STATE_ABSENT);
    assert_int_equal(effects_of(e, id), 0);
    assert_int_equal(attempts_of(e, id), 0);
}

/* ---- the culprit -------------------------------------------------------------------------------------- */

/* T3, I15: a b c d with b failing are four transactions: all, then a, b, and c with d. */
static void failing_message_is_cut_out_and_its_neighbours_are_not_charged(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "fail"), msg("c", "ok"), msg("d", "ok")};

    process(e, msgs, 4);
    assert_clean(e, "a");
    assert_clean(e, "c");
    assert_clean(e, "d");
    assert_blamed(e, "b", SEMEL_STATE_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_STATE_FAILED);
    struct semel_row row = row_of(e, "b");
    assert_str(row.progress.error_text, "try again");
    assert_str(row.payload, "fail");
    assert_true(row.progress.due_us > e->now_us);
    assert_true(row.progress.due_us <= e->now_us + SECOND_US + 1000);
    assert_int_equal(e->inbox.counts.transactions, 4);
    assert_int_equal(e->inbox.counts.cuts, 1);
    assert_int_equal(e->inbox.counts.failed, 1);
    assert_int_equal(e->inbox.counts.done, 3);
}

/* T5, I14 */
static void permanent_failure_is_dead_at_once_with_an_alert(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "bad"), msg("b", "ok")};

    process(e, msgs, 2);
    assert_blamed(e, "a", SEMEL_STATE_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "b");
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 1);
    assert_non_null(strstr(e->alert_text, "cannot be done"));
}

static void every_message_may_fail_and_each_is_charged_once(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "fail"), msg("b", "bad"), msg("c", "fail")};

    process(e, msgs, 3);
    assert_blamed(e, "a", SEMEL_STATE_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_blamed(e, "b", SEMEL_STATE_DEAD, SEMEL_CLASS_PERMANENT);
    assert_blamed(e, "c", SEMEL_STATE_FAILED, SEMEL_CLASS_TRANSIENT);
}

/* P62: the COMMIT of eight fails and names nobody; halving finds the one. */
static void deferred_foreign_key_blames_the_single_culprit(void **state)
{
    struct engine *e = *state;
    static const char *const ids[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    struct semel__msg msgs[8];

    for (size_t i = 0; i < 8; i++)
        msgs[i] = msg(ids[i], i == 5 ? "sql:INSERT INTO child VALUES (99)" : "sql:INSERT INTO child VALUES (1)");
    process(e, msgs, 8);
    for (size_t i = 0; i < 8; i++)
        if (i != 5)
            assert_clean(e, ids[i]);
    assert_blamed(e, "f", SEMEL_STATE_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_str(row_of(e, "f").progress.error_text, "a deferred foreign key is violated");
    assert_int_equal(sql_int(e, "SELECT count(*) FROM child"), 7);
}

/* P58 */
static void handler_that_ends_the_transaction_is_stopped_and_blamed_alone(void **state)
{
    struct engine *e = *state;
    static const char *const sqls[] = {"sql:COMMIT",
                                       "sql:ROLLBACK",
                                       "sql:INSERT OR ROLLBACK INTO parent VALUES (1)",
                                       "sql:SAVEPOINT x",
                                       "sql:PRAGMA foreign_keys = OFF",
                                       "sql:BEGIN"};
    char ids[3][8];

    for (size_t i = 0; i < COUNT(sqls); i++) {
        struct semel__msg msgs[3];
        for (size_t k = 0; k < 3; k++) {
            snprintf(ids[k], sizeof ids[k], "%zu-%zu", i, k);
            msgs[k] = msg(ids[k], k == 1 ? sqls[i] : "ok");
        }
        process(e, msgs, 3);
        assert_clean(e, ids[0]);
        assert_clean(e, ids[2]);
        assert_blamed(e, ids[1], SEMEL_STATE_DEAD, SEMEL_CLASS_PERMANENT);
    }
    assert_int_equal(sql_int(e, "SELECT count(*) FROM parent"), 1);
}

/* A constraint that a statement violates is the message's fault, a missing table is nobody's. */
static void failing_statement_is_judged_by_its_code(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "sql:INSERT INTO parent VALUES (1)"), msg("b", "ok")};

    process(e, msgs, 2);
    assert_blamed(e, "a", SEMEL_STATE_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "b");
    msgs[0] = msg("c", "ok");
    msgs[1] = msg("d", "sql:INSERT INTO missing VALUES (1)");
    assert_int_equal(try_process(e, msgs, 2), SEMEL_INVALID);
    assert_int_equal(e->err.cls, SEMEL_CLASS_BROKEN);
    assert_untouched(e, 0, "c");
    assert_untouched(e, 1, "d");
}

/* ---- rejected ----------------------------------------------------------------------------------------- */

/* I14: the handler had written something before it refused. */
static void rejected_is_final_leaves_no_effect_and_releases_its_business_key(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "reject");

    m.business[0] = SEMEL_STR("order-1");
    m.n_business = 1;
    process_one(e, m);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_STATE_REJECTED);
    struct semel_row row = row_of(e, "a");
    assert_str(row.progress.error_text, "no stock");
    assert_str(row.progress.outcome, "{\"no\":1}");
    assert_int_equal(row.progress.due_us, SEMEL_NONE);
    assert_int_equal(effects_of(e, "a"), 0);
    assert_int_equal(e->inbox.counts.rejected, 1);
    assert_int_equal(e->inbox.counts.failed, 0);

    struct semel__msg other = msg("b", "ok");
    other.business[0] = SEMEL_STR("order-1");
    other.n_business = 1;
    process_one(e, other);
    assert_clean(e, "b");
    process_one(e, m); /* I9: its own repeat is given what was said */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_STATE_REJECTED);
    assert_str(e->settled[0].outcome, "{\"no\":1}");
}

/* ---- sets --------------------------------------------------------------------------------------------- */

static void use_sets(struct engine *e, enum set_mode mode, const char *odd)
{
    e->handler.set = engine_handle_set;
    e->set_mode = mode;
    e->odd = odd;
}

/* P57 */
static void set_based_statement_must_name_each_id_exactly_once(void **state)
{
    struct engine *e = *state;
    static const enum set_mode modes[] = {SET_SKIP, SET_REPEAT, SET_STRANGER};
    static const char *const texts[] = {"named 0 of 1 messages;", "named 1 of 1 messages, and others;",
                                        "named 1 of 1 messages, and others;"};
    char ids[4][8];

    for (size_t i = 0; i < COUNT(modes); i++) {
        struct semel__msg msgs[4];
        for (size_t k = 0; k < 4; k++) {
            snprintf(ids[k], sizeof ids[k], "%zu-%zu", i, k);
            msgs[k] = msg(ids[k], "ok");
        }
        use_sets(e, modes[i], ids[2]);
        process(e, msgs, 4);
        assert_clean(e, ids[0]);
        assert_clean(e, ids[1]);
        assert_clean(e, ids[3]);
        assert_blamed(e, ids[2], SEMEL_STATE_DEAD, SEMEL_CLASS_PERMANENT);
        struct semel_str text = row_of(e, ids[2]).progress.error_text;
        assert_true(text.n < 200);
        assert_non_null(strstr(text.p, texts[i]));
    }
}

static void set_based_handler_gets_the_whole_batch_at_once(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "ok")};

    use_sets(e, SET_ALL, NULL);
    process(e, msgs, 3);
    assert_int_equal(e->set_calls, 1);
    assert_string_equal(e->trace, "begin set run:a run:b run:c commit ");
    assert_int_equal(e->seen.settles, 0);
}

/* P57: of one key at most one message a call. */
static void set_based_call_meets_an_order_key_at_most_once(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "ok", "ka", SEMEL_NONE),
                                keyed("b1", "ok", "kb", SEMEL_NONE),
                                keyed("a2", "ok", "ka", SEMEL_NONE),
                                keyed("a3", "ok", "ka", SEMEL_NONE),
                                keyed("b2", "ok", "kb", SEMEL_NONE),
                                msg("c1", "ok"),
                                msg("c2", "ok")};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    use_sets(e, SET_ALL, NULL);
    process(e, msgs, COUNT(msgs));
    assert_false(e->key_repeated);
    assert_string_equal(e->trace, "begin set run:c1 run:c2 run:a1 run:b1 set run:a2 run:b2 set run:a3 commit ");
}

/* The statement failed and says not for whom: halves find the one. */
static void failing_set_is_halved_until_the_culprit_is_alone(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "sql:INSERT INTO parent VALUES (1)"),
                                msg("d", "ok"), msg("e", "ok")};

    use_sets(e, SET_ALL, NULL);
    process(e, msgs, 5);
    assert_blamed(e, "c", SEMEL_STATE_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "a");
    assert_clean(e, "b");
    assert_clean(e, "d");
    assert_clean(e, "e");
}

/* ---- the world ---------------------------------------------------------------------------------------- */

/* P61: every transaction of more than one message meets contention. 1 + 2 + 4 - 1 = 3 cuts for four. */
static void contention_cuts_in_half_and_charges_nobody(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "ok"), msg("d", "ok")};

    e->plan = (struct plan){.op = "admit", .nth = 1, .on = true, .above = 1, .fault = FAULT_CONTENTION};
    process(e, msgs, 4);
    assert_clean(e, "a");
    assert_clean(e, "b");
    assert_clean(e, "c");
    assert_clean(e, "d");
    assert_int_equal(e->inbox.counts.cuts, 3);
    assert_int_equal(e->inbox.counts.contention, 3);
    assert_int_equal(e->inbox.counts.failed, 0);
}

static void contention_that_stays_leaves_the_rest_for_later(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "busy"), msg("c", "ok")};

    assert_int_equal(try_process(e, msgs, 3), SEMEL_RETRY);
    assert_int_equal(e->err.cls, SEMEL_CLASS_TRANSIENT);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_STATE_COMPLETED);
    assert_untouched(e, 1, "b");
    assert_untouched(e, 2, "c");
}

/* P63, I6: whatever says so, the handler or the store. What stood before it stands. */
static void world_that_fails_charges_nobody_and_leaves_the_rest_for_later(void **state)
{
    struct engine *e = *state;
    static const char *const words[] = {"world", "broken", "closed"};
    static const semel_status statuses[] = {SEMEL_RETRY, SEMEL_INVALID, SEMEL_CLOSED};
    char ids[4][8];

    for (size_t i = 0; i < COUNT(words); i++) {
        struct semel__msg msgs[4];
        for (size_t k = 0; k < 4; k++) {
            snprintf(ids[k], sizeof ids[k], "%zu-%zu", i, k);
            msgs[k] = msg(ids[k], k == 1 ? "fail" : k == 2 ? words[i] : "ok");
        }
        assert_int_equal(try_process(e, msgs, 4), statuses[i]);
        if (statuses[i] == SEMEL_CLOSED)
            assert_ok(e, semel_store_reopen(e->store, &e->err));
        assert_clean(e, ids[0]); /* the batch was cut around the failing one first */
        assert_blamed(e, ids[1], SEMEL_STATE_FAILED, SEMEL_CLASS_TRANSIENT);
        assert_untouched(e, 2, ids[2]);
        assert_untouched(e, 3, ids[3]);
    }
}

static void store_that_fails_charges_nobody(void **state)
{
    struct engine *e = *state;
    static const char *const ops[] = {"begin", "admit", "commit"};
    static const enum fault faults[] = {FAULT_WORLD, FAULT_BROKEN, FAULT_CLOSED};
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    for (size_t i = 0; i < COUNT(ops); i++)
        for (size_t k = 0; k < COUNT(faults); k++) {
            forget(e);
            fail_at(e, ops[i], 1, faults[k]);
            assert_int_not_equal(try_process(e, msgs, 2), SEMEL_OK);
            assert_int_not_equal(e->err.cls, SEMEL_CLASS_TRANSIENT);
            if (faults[k] == FAULT_CLOSED)
                assert_ok(e, semel_store_reopen(e->store, &e->err));
            assert_untouched(e, 0, "a");
            assert_untouched(e, 1, "b");
        }
    forget(e);
    process(e, msgs, 2);
    assert_clean(e, "a");
    assert_clean(e, "b");
}

/* A store that is busy at the door would be busy for a half, too. */
static void busy_begin_is_not_cut(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    fail_at(e, "begin", 1, FAULT_CONTENTION);
    assert_int_equal(try_process(e, msgs, 2), SEMEL_RETRY);
    assert_int_equal(e->inbox.counts.cuts, 0);
    assert_untouched(e, 0, "a");
}

/* ---- a broken handler --------------------------------------------------------------------------------- */

/* P63: of twenty that fail, ten are charged and the others stay with the broker. */
static void ten_failures_in_a_row_stop_the_batch(void **state)
{
    struct engine *e = *state;
    static char ids[20][8];
    struct semel__msg msgs[20];

    for (size_t i = 0; i < 20; i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = msg(ids[i], "bad");
    }
    e->inbox.failures_max = 10;
    assert_int_equal(try_process(e, msgs, 20), SEMEL_RETRY);
    assert_int_equal(e->err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_string_equal(e->err.text, "10 messages failed in a row: the route pauses");
    for (size_t i = 0; i < 20; i++) {
        if (i < 10)
            assert_blamed(e, ids[i], SEMEL_STATE_DEAD, SEMEL_CLASS_PERMANENT);
        else
            assert_untouched(e, i, ids[i]);
    }
}

/* Nine, one that succeeds, nine: no ten in a row. */
static void success_between_failures_starts_the_count_again(void **state)
{
    struct engine *e = *state;
    static char ids[19][8];
    struct semel__msg msgs[19];

    for (size_t i = 0; i < 19; i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = msg(ids[i], i == 9 ? "ok" : "bad");
    }
    e->inbox.failures_max = 10;
    process(e, msgs, 19);
    assert_int_equal(e->inbox.counts.failed, 18);
    assert_clean(e, "m09");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(failing_message_is_cut_out_and_its_neighbours_are_not_charged),
        ON_EACH(permanent_failure_is_dead_at_once_with_an_alert),
        ON_EACH(every_message_may_fail_and_each_is_charged_once),
        ON_SQLITE(deferred_foreign_key_blames_the_single_culprit),
        ON_SQLITE(handler_that_ends_the_transaction_is_stopped_and_blamed_alone),
        ON_SQLITE(failing_statement_is_judged_by_its_code),
        ON_EACH(rejected_is_final_leaves_no_effect_and_releases_its_business_key),
        ON_EACH(set_based_statement_must_name_each_id_exactly_once),
        ON_MEM(set_based_handler_gets_the_whole_batch_at_once),
        ON_EACH(set_based_call_meets_an_order_key_at_most_once),
        ON_SQLITE(failing_set_is_halved_until_the_culprit_is_alone),
        ON_EACH(contention_cuts_in_half_and_charges_nobody),
        ON_EACH(contention_that_stays_leaves_the_rest_for_later),
        ON_EACH(world_that_fails_charges_nobody_and_leaves_the_rest_for_later),
        ON_EACH(store_that_fails_charges_nobody),
        ON_MEM(busy_begin_is_not_cut),
        ON_EACH(ten_failures_in_a_row_stop_the_batch),
        ON_EACH(success_between_failures_starts_the_count_again),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
