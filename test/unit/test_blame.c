/* SPDX-License-Identifier: MIT
 *
 * test_blame.c: when something fails: who is charged, who is not, and what stands.
 *
 * A message is blamed in a transaction of its own, or, where failures are about, behind a savepoint of its own in the
 * transaction of its batch. The world's failures charge nobody.
 */
#include "unit/engine.h"

#include <stdlib.h>

#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

static void assert_clean(struct engine *e, const char *id)
{
    struct semel_row row = row_of(e, id);
    assert_int_equal(row.progress.state, SEMEL_ROW_COMPLETED);
    assert_int_equal(row.progress.attempts, 1);
    assert_int_equal(attempts_of(e, id), 0);
    assert_int_equal(effects_of(e, id), 1);
}

static void assert_blamed(struct engine *e, const char *id, enum semel_row_status state, enum semel_class cls)
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
    assert_int_equal(state_of(e, id), SEMEL_ROW_ABSENT);
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
    assert_blamed(e, "b", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
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
    assert_blamed(e, "a", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "b");
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_DEAD], 1);
    assert_non_null(strstr(e->alert_text, "cannot be done"));
}

static void every_message_may_fail_and_each_is_charged_once(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "fail"), msg("b", "bad"), msg("c", "fail")};

    process(e, msgs, 3);
    assert_blamed(e, "a", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_blamed(e, "b", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    assert_blamed(e, "c", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
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
    assert_blamed(e, "f", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
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
        assert_blamed(e, ids[1], SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    }
    assert_int_equal(sql_int(e, "SELECT count(*) FROM parent"), 1);
}

/* A constraint that a statement violates is the message's fault, a missing table is nobody's. */
static void failing_statement_is_judged_by_its_code(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "sql:INSERT INTO parent VALUES (1)"), msg("b", "ok")};

    process(e, msgs, 2);
    assert_blamed(e, "a", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
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
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_REJECTED);
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
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_REJECTED);
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
        assert_blamed(e, ids[2], SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
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
    assert_blamed(e, "c", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "a");
    assert_clean(e, "b");
    assert_clean(e, "d");
    assert_clean(e, "e");
}

/* ---- where failures are about ------------------------------------------------------------------------- */

static void make_wary(struct engine *e)
{
    e->inbox.wary = 1000;
    e->inbox.run = 4;
}

static struct semel__msg with_intent(struct semel__msg m, const char *business)
{
    m.business[0] = semel__str(business);
    m.n_business = 1;
    return m;
}

static void process_as_one(struct engine *e, const struct semel__msg *msgs, size_t n)
{
    uint64_t before = e->inbox.counts.transactions, cuts = e->inbox.counts.cuts;
    process(e, msgs, n);
    assert_int_equal(e->inbox.counts.transactions - before, 1);
    assert_int_equal(e->inbox.counts.cuts, cuts);
}

/* I15 */
static void failing_message_is_blamed_in_the_transaction_of_its_batch(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "fail"), msg("c", "ok"), msg("d", "out")};

    make_wary(e);
    process_as_one(e, msgs, 4);
    assert_clean(e, "a");
    assert_clean(e, "c");
    assert_clean(e, "d");
    assert_str(row_of(e, "d").progress.outcome, "{\"made\":1}");
    assert_blamed(e, "b", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_str(row_of(e, "b").progress.error_text, "try again");
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_int_equal(e->inbox.counts.done, 3);
    assert_int_equal(e->inbox.counts.failed, 1);
    assert_int_equal(e->inbox.counts.blamed, 1);
}

/* Only a failure makes the inbox wary, and only for so long. */
static void savepoints_are_set_only_where_failures_are_about(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[8];
    static char ids[40][8];

    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < 8; k++) {
            snprintf(ids[8 * i + k], sizeof ids[0], "%zu-%zu", i, k);
            msgs[k] = msg(ids[8 * i + k], i == 1 && k == 7 ? "bad" : "ok");
        }
        if (i == 3)
            e->inbox.wary = 8;
        e->seen.savepoints = 0;
        process(e, msgs, 8);
        assert_int_equal(e->seen.savepoints, i == 0 || i == 4 ? 0 : 1); /* i = 1: the one that failed, alone */
    }
    assert_int_equal(e->inbox.wary, 0);
}

static void several_may_fail_in_one_batch_and_each_is_charged_once(void **state)
{
    struct engine *e = *state;
    static const char *const words[] = {"fail", "ok", "ok", "bad", "reject", "bad", "ok", "ok", "ok", "fail", "out"};
    static char ids[COUNT(words)][8];
    struct semel__msg msgs[COUNT(words)];

    for (size_t i = 0; i < COUNT(words); i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = msg(ids[i], words[i]);
    }
    make_wary(e);
    process_as_one(e, msgs, COUNT(words));
    for (size_t i = 0; i < COUNT(words); i++) {
        if (words[i][0] == 'o')
            assert_clean(e, ids[i]);
        else if (words[i][0] == 'f')
            assert_blamed(e, ids[i], SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
        else
            assert_blamed(e, ids[i], words[i][0] == 'b' ? SEMEL_ROW_DEAD : SEMEL_ROW_REJECTED,
                          words[i][0] == 'b' ? SEMEL_CLASS_PERMANENT : SEMEL_CLASS_REJECTED);
    }
}

static unsigned runs_of_b;

static void heal_b(struct engine *e, const struct semel__msg *m)
{
    e->mended = semel__str_eqz(m->id, "b") && ++runs_of_b > 1;
}

/* It fails among others and succeeds alone: nobody is charged. */
static void message_that_succeeds_alone_is_not_charged(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "bad"), msg("c", "ok")};

    make_wary(e);
    runs_of_b = 0;
    e->on_run = heal_b;
    process_as_one(e, msgs, 3);
    assert_int_equal(runs_of_b, 2);
    assert_clean(e, "a");
    assert_clean(e, "b");
    assert_clean(e, "c");
}

/* I13: what follows in the key is judged in the next transaction, by what has become of the first. */
static void message_behind_one_that_failed_in_its_batch_waits(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "ok", "ka", SEMEL_NONE), keyed("a2", "fail", "ka", SEMEL_NONE),
                                keyed("a3", "ok", "ka", SEMEL_NONE), keyed("a4", "ok", "ka", SEMEL_NONE),
                                keyed("b1", "ok", "kb", SEMEL_NONE), keyed("c1", "reject", "kc", SEMEL_NONE),
                                keyed("c2", "ok", "kc", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    make_wary(e);
    process(e, msgs, COUNT(msgs));
    assert_int_equal(e->inbox.counts.transactions, 2);
    assert_clean(e, "a1");
    assert_blamed(e, "a2", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    for (size_t i = 2; i < 4; i++) {
        assert_settled(e, i, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
        assert_int_equal(row_of(e, i == 2 ? "a3" : "a4").progress.attempts, 0);
        assert_int_equal(effects_of(e, i == 2 ? "a3" : "a4"), 0);
    }
    assert_clean(e, "b1");
    assert_blamed(e, "c1", SEMEL_ROW_REJECTED, SEMEL_CLASS_REJECTED);
    assert_clean(e, "c2"); /* behind what is at its end it runs */
    e->now_us += 10 * SECOND_US;
    e->mended = true;
    size_t n = 0;
    for (int i = 0; i < 3; i++)
        assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(state_of(e, "a4"), SEMEL_ROW_COMPLETED);
}

static void later_version_does_not_run_past_one_that_failed_in_its_batch(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "ok", "ka", 1), keyed("a2", "fail", "ka", 2), keyed("a3", "ok", "ka", 3),
                                keyed("b1", "reject", "kb", 1), keyed("b2", "ok", "kb", 2)};

    e->policy.order = SEMEL_ORDER_VERSION;
    make_wary(e);
    process(e, msgs, COUNT(msgs));
    assert_int_equal(e->inbox.counts.transactions, 2);
    assert_clean(e, "a1");
    assert_blamed(e, "a2", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_int_equal(state_of(e, "a3"), SEMEL_ROW_WAITING);
    assert_int_equal(effects_of(e, "a3"), 0);
    assert_blamed(e, "b1", SEMEL_ROW_REJECTED, SEMEL_CLASS_REJECTED);
    assert_clean(e, "b2"); /* what was rejected is stepped over */
}

/* P78: while the holder may still succeed the other one waits; one that was rejected gives its key up. */
static void business_duplicate_of_one_that_failed_in_its_batch_is_not_prevented(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {with_intent(msg("a", "fail"), "x"),   with_intent(msg("b", "ok"), "x"),
                                with_intent(msg("c", "reject"), "y"), with_intent(msg("d", "ok"), "y"),
                                with_intent(msg("e", "ok"), "z"),     with_intent(msg("f", "ok"), "z")};

    make_wary(e);
    process(e, msgs, COUNT(msgs));
    assert_int_equal(e->inbox.counts.transactions, 2);
    assert_blamed(e, "a", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    assert_blamed(e, "c", SEMEL_ROW_REJECTED, SEMEL_CLASS_REJECTED);
    assert_clean(e, "d");
    assert_clean(e, "e");
    assert_int_equal(state_of(e, "f"), SEMEL_ROW_PREVENTED);
}

/* Only what this transaction has inserted is taken out again: a stored row that is left out stays as it is. */
static void stored_row_whose_intent_fails_in_its_batch_stays(void **state)
{
    struct engine *e = *state;
    struct semel__msg first = keyed("first", "fail", "kb", SEMEL_NONE);
    struct semel__msg msgs[] = {with_intent(keyed("a", "fail", "ka", SEMEL_NONE), "x"),
                                with_intent(keyed("b", "ok", "kb", SEMEL_NONE), "x")};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process_one(e, first);
    process_one(e, msgs[1]);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    int64_t arrival = row_of(e, "b").arrival;
    make_wary(e);
    process(e, msgs, COUNT(msgs));
    assert_blamed(e, "a", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "b").arrival, arrival);
}

/* j is prevented by i, and j2, which is behind it, has run when i is rejected: neither can be left out, so the batch is
 * cut. */
static void batch_is_cut_when_a_dependent_has_run_already(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {with_intent(keyed("i", "reject", "kz", SEMEL_NONE), "x"),
                                with_intent(keyed("j", "ok", "ka", SEMEL_NONE), "x"),
                                keyed("j2", "ok", "ka", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    make_wary(e);
    process(e, msgs, COUNT(msgs));
    assert_int_equal(e->inbox.counts.cuts, 1);
    assert_clean(e, "j");
    assert_clean(e, "j2");
    assert_int_equal(state_of(e, "i"), SEMEL_ROW_PREVENTED);
    const char *committed = strstr(e->trace, "rollback ");
    assert_non_null(committed);
    assert_non_null(strstr(committed, "run:j run:j2 commit "));
}

/* I11: evidence is kept once, whichever transaction decides. */
static void copies_of_one_that_is_left_out_share_its_fate(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {keyed("a1", "fail", "ka", SEMEL_NONE), keyed("a2", "ok", "ka", SEMEL_NONE),
                                keyed("a2", "ok", "ka", SEMEL_NONE), keyed("a2", "out", "ka", SEMEL_NONE),
                                keyed("a1", "fail", "ka", SEMEL_NONE)};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    make_wary(e);
    process(e, msgs, COUNT(msgs));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_settled(e, 4, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_FAILED);
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_WAITING);
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_CONFLICT, SEMEL_ROW_WAITING);
    assert_int_equal(conflicts_of(e, "a2"), 1);
    assert_int_equal(attempts_of(e, "a1"), 1);
}

/* P15 */
static void unknown_commit_of_a_batch_with_a_failure_charges_once(void **state)
{
    struct engine *e = *state;
    static const enum fault faults[] = {FAULT_UNKNOWN_DONE, FAULT_UNKNOWN_LOST};
    char ids[4][8];

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    for (size_t i = 0; i < COUNT(faults); i++) {
        struct semel__msg msgs[4];
        for (size_t k = 0; k < 4; k++) {
            snprintf(ids[k], sizeof ids[k], "%zu-%zu", i, k);
            msgs[k] = keyed(ids[k], k == 1 ? "fail" : "ok", k == 0 ? "other" : ids[1], SEMEL_NONE);
        }
        make_wary(e);
        fail_at(e, "commit", 1, faults[i]);
        process(e, msgs, 4);
        assert_clean(e, ids[0]);
        assert_blamed(e, ids[1], SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
        assert_int_equal(state_of(e, ids[2]), SEMEL_ROW_WAITING);
        assert_int_equal(state_of(e, ids[3]), SEMEL_ROW_WAITING);
    }
}

/* P62: each run is checked once deferred constraints are known to fail. */
static void deferred_constraint_is_blamed_in_the_transaction_of_its_batch(void **state)
{
    struct engine *e = *state;
    static const char *const ids[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    struct semel__msg msgs[9];

    for (size_t i = 0; i < 9; i++)
        msgs[i] = msg(ids[i], i == 5 ? "sql:INSERT INTO child VALUES (99)" : "sql:INSERT INTO child VALUES (1)");
    make_wary(e);
    e->inbox.wary_deferred = 1000;
    process_as_one(e, msgs, 9);
    for (size_t i = 0; i < 9; i++)
        if (i != 5)
            assert_clean(e, ids[i]);
    assert_blamed(e, "f", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_int_equal(sql_int(e, "SELECT count(*) FROM child"), 8);
}

/* Between the statements of one message a constraint stays deferred, also behind a check. */
static void constraints_stay_deferred_behind_a_check(void **state)
{
    struct engine *e = *state;
    static const char both[] = "sql:INSERT INTO child VALUES (7); INSERT INTO parent VALUES (7)";
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "fail"), msg("c", both)};

    make_wary(e);
    e->inbox.run = 1;
    e->inbox.wary_deferred = 1000;
    process_as_one(e, msgs, 3);
    assert_clean(e, "a");
    assert_blamed(e, "b", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_clean(e, "c");
}

/* P62: b fails by itself; what a has broken is a's, whether it is found in its run or by the COMMIT. */
static void deferred_constraint_of_a_neighbour_is_not_charged_to_the_suspect(void **state)
{
    struct engine *e = *state;
    char ids[4][8];

    for (size_t run = 1; run <= 4; run += 3) {
        struct semel__msg msgs[4];
        static const char *const words[] = {"ok", "sql:INSERT INTO child VALUES (99)", "bad@1", "ok"};
        for (size_t k = 0; k < 4; k++) {
            snprintf(ids[k], sizeof ids[k], "%zu-%zu", run, k);
            msgs[k] = msg(ids[k], words[k]);
        }
        make_wary(e);
        e->inbox.run = run;
        e->inbox.wary_deferred = 0;
        process(e, msgs, 4);
        assert_clean(e, ids[0]);
        assert_blamed(e, ids[1], SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
        assert_blamed(e, ids[2], SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
        assert_clean(e, ids[3]);
    }
}

/* P62: the suspect succeeds when it runs alone, and what is broken then is a neighbour's. The COMMIT would not notice:
 * c brings what is missing. */
static void suspect_that_succeeds_is_not_charged_with_what_a_neighbour_broke(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "sql:INSERT INTO child VALUES (99)"), msg("b", "bad"),
                                msg("c", "sql:INSERT INTO parent VALUES (99)")};

    make_wary(e);
    runs_of_b = 0;
    e->on_run = heal_b;
    process(e, msgs, 3);
    assert_blamed(e, "a", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_clean(e, "b");
    assert_clean(e, "c");
}

/* Nobody has noticed it before the COMMIT: halves find it, as ever. */
static void deferred_constraint_that_fails_the_commit_is_found_by_halves(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "sql:INSERT INTO child VALUES (99)"), msg("c", "ok")};

    make_wary(e);
    process(e, msgs, 3);
    assert_true(e->inbox.counts.cuts > 0);
    assert_clean(e, "a");
    assert_blamed(e, "b", SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
    assert_clean(e, "c");
    assert_true(e->inbox.wary_deferred > 0);
}

/* A constraint (class 23) is the message's own; so is bad data (class 22), but not what a function raises. */
static void only_failures_of_data_are_blamed_in_the_transaction_of_a_batch(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "sql:INSERT INTO parent VALUES (1)"), msg("c", "ok")};

    make_wary(e);
    process_as_one(e, msgs, 3);
    assert_clean(e, "a");
    assert_blamed(e, "b", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "c");
    if (is_postgres(e)) {
        struct semel__msg more[] = {msg("d", "ok"), msg("e", "sql:SELECT 1 / 0"), msg("f", "ok")};
        process_as_one(e, more, 3);
        assert_blamed(e, "e", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    }
    struct semel__msg last[] = {msg("g", "ok"),
                                msg("h",
                                    is_postgres(e) ? "sql:DO $$ BEGIN RAISE EXCEPTION 'no'; END $$" : "sql:COMMIT"),
                                msg("i", "ok")};
    uint64_t cuts = e->inbox.counts.cuts;
    process(e, last, 3);
    assert_int_equal(e->inbox.counts.cuts, cuts + 1);
    assert_clean(e, "g");
    assert_blamed(e, "h", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "i");
}

/* P63: the failure before it is rolled back with the rest, and charged when it comes again. */
static void world_that_fails_behind_a_failure_charges_nobody(void **state)
{
    struct engine *e = *state;
    static const char *const words[] = {"world", "broken", "closed"};
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "fail"), msg("c", ""), msg("d", "ok")};

    for (size_t i = 0; i < COUNT(words); i++) {
        make_wary(e);
        msgs[2] = msg("c", words[i]);
        assert_int_not_equal(try_process(e, msgs, 4), SEMEL_OK);
        if (e->dead)
            assert_ok(e, semel_store_reopen(e->store, &e->err));
        assert_untouched(e, 0, "a");
        assert_untouched(e, 1, "b");
        assert_untouched(e, 2, "c");
        assert_untouched(e, 3, "d");
    }
}

static void ten_failures_in_a_row_stop_a_wary_batch(void **state)
{
    struct engine *e = *state;
    static char ids[30][8];
    struct semel__msg msgs[30];

    for (size_t i = 0; i < 30; i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = msg(ids[i], i < 5 || i == 11 ? "ok" : i == 12 ? "reject" : "bad");
    }
    make_wary(e);
    e->inbox.failures_max = 10;
    e->inbox.failures = 9;
    assert_int_equal(try_process(e, msgs, 30), SEMEL_RETRY);
    assert_string_equal(e->err.text, "10 messages failed in a row: the route pauses");
    for (size_t i = 13; i < 23; i++)
        assert_blamed(e, ids[i], SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    for (size_t i = 23; i < 30; i++)
        assert_untouched(e, i, ids[i]);
    assert_int_equal(e->inbox.counts.transactions, 1);
}

#ifdef SEMEL_WITH_POSTGRES
/* As the handler `sql` does it: nothing is waited for. */
static semel_status queue_each(void *ctx, struct semel_store *store, const struct semel__msg *m, int attempt,
                               struct semel__reply *reply, struct semel_error *err)
{
    char id[32], sql[128];
    const char *const values[] = {id};
    const struct semel_pg_statement effect = {.sql = "INSERT INTO effect VALUES ($1, 1)", .n = 1, .values = values};
    const struct semel_pg_statement more = {.sql = sql};
    (void)ctx;
    (void)attempt;
    snprintf(id, sizeof id, "%.*s", (int)m->id.n, m->id.p);
    snprintf(sql, sizeof sql, "%.*s", (int)m->payload.n, m->payload.p);
    semel_status status = semel__pg_queue(store, &effect, err);
    if (status == SEMEL_OK && strcmp(sql, "bad") == 0)
        return semel__reply_set(reply, SEMEL_PERMANENT, SEMEL_STR("no"), (struct semel_str){0}) ? SEMEL_OK
                                                                                                : SEMEL_RETRY;
    return status == SEMEL_OK && strcmp(sql, "ok") != 0 ? semel__pg_queue(store, &more, err) : status;
}

/* The failure is learnt when the answers are read, long after its handler has returned. */
static void queued_statement_that_fails_is_blamed_in_the_transaction_of_its_batch(void **state)
{
    struct engine *e = *state;
    static const char unique[] = "INSERT INTO parent VALUES (1)", data[] = "SELECT 1 / 0";
    static const char late[] = "INSERT INTO child VALUES (99)";
    static char ids[300][8];
    struct semel__msg msgs[300];

    e->handler.each = queue_each;
    for (size_t i = 0; i < COUNT(msgs); i++) {
        const char *word = i % 100 == 0 || i == 7 || i == 8 ? unique : i == 150 || i == 299 ? data : "ok";
        word = i == 152 || i == 201 ? "bad" : i == 42 ? late : word;
        snprintf(ids[i], sizeof ids[i], "m%03zu", i);
        msgs[i] = msg(ids[i], word);
    }
    make_wary(e);
    e->inbox.wary_deferred = 1000;
    process_as_one(e, msgs, COUNT(msgs));
    for (size_t i = 0; i < COUNT(msgs); i++) {
        if (semel__str_eqz(msgs[i].payload, "ok"))
            assert_clean(e, ids[i]);
        else
            assert_blamed(e, ids[i], i == 42 ? SEMEL_ROW_FAILED : SEMEL_ROW_DEAD,
                          i == 42 ? SEMEL_CLASS_TRANSIENT : SEMEL_CLASS_PERMANENT);
    }
    assert_int_equal(e->inbox.counts.blamed, 10);
}
#endif

#define DRAWN 14

struct drawn {
    char id[8], key[4], intent[4];
    const char *word;
    int64_t version;
};

struct end {
    enum semel_row_status state;
    enum semel_class cls;
    int attempts;
    int64_t effects, logged;
};

static void draw_batch(struct semel_random *rng, enum semel_order order, struct drawn *drawn)
{
    static const char *const words[] = {"ok", "ok", "ok", "ok", "fail", "bad", "reject", "out"};
    int64_t versions[3] = {0};
    for (size_t i = 0; i < DRAWN; i++) {
        size_t key = semel__random_below(rng, 3);
        snprintf(drawn[i].id, sizeof drawn[i].id, "m%02zu", i);
        snprintf(drawn[i].key, sizeof drawn[i].key, "k%zu", key);
        snprintf(drawn[i].intent, sizeof drawn[i].intent, "b%u", (unsigned)semel__random_below(rng, 8));
        drawn[i].word = words[semel__random_below(rng, COUNT(words))];
        drawn[i].version = order == SEMEL_ORDER_VERSION ? ++versions[key] : SEMEL_NONE;
    }
    for (size_t i = 0; order == SEMEL_ORDER_VERSION && i < 2; i++) { /* some versions come early */
        size_t a = semel__random_below(rng, DRAWN), b = semel__random_below(rng, DRAWN);
        if (strcmp(drawn[a].key, drawn[b].key) == 0) {
            int64_t version = drawn[a].version;
            drawn[a].version = drawn[b].version;
            drawn[b].version = version;
        }
    }
}

/* What becomes of the messages when `at_once` of them come together. */
static void run_drawn(const struct drawn *drawn, enum semel_order order, size_t at_once, size_t run, struct end *ret)
{
    struct engine *e = calloc(1, sizeof *e);
    struct semel__msg msgs[DRAWN];
    assert_non_null(e);
    engine_init(e);
    assert_ok(e, engine_open(e, "mem"));
    e->policy.order = order;
    e->inbox.wary = run > 0 ? 1000 : 0;
    e->inbox.run = run;
    for (size_t i = 0; i < DRAWN; i++) {
        const char *key = order == SEMEL_ORDER_NONE ? "" : drawn[i].key;
        msgs[i] = keyed(drawn[i].id, drawn[i].word, key, drawn[i].version);
        if (order == SEMEL_ORDER_NONE)
            msgs[i] = with_intent(msg(drawn[i].id, drawn[i].word), drawn[i].intent);
    }
    for (size_t i = 0; i < DRAWN; i += at_once)
        process(e, msgs + i, at_once < DRAWN - i ? at_once : DRAWN - i);
    for (size_t i = 0; i < DRAWN; i++) {
        struct semel_row row = row_of(e, drawn[i].id);
        ret[i] = (struct end){row.progress.state, row.progress.error_class, row.progress.attempts,
                              effects_of(e, drawn[i].id), attempts_of(e, drawn[i].id)};
    }
    engine_close(e);
    free(e);
}

/* I15: whether a message fails in its batch or alone, all of them end alike. */
static void wary_batch_ends_as_its_messages_do_one_by_one(void **state)
{
    struct semel_random rng;
    struct drawn drawn[DRAWN];
    struct end alone[DRAWN], together[DRAWN];

    (void)state;
    semel__random_seed(&rng, 11);
    for (size_t round = 0; round < 1500; round++) {
        const enum semel_order order = (enum semel_order)(round % 3);
        const size_t run = 1 + semel__random_below(&rng, 6), at_once = 2 + semel__random_below(&rng, DRAWN - 1);
        draw_batch(&rng, order, drawn);
        run_drawn(drawn, order, 1, 0, alone);
        run_drawn(drawn, order, at_once, run, together);
        for (size_t i = 0; i < DRAWN; i++) {
            const struct end *a = &alone[i], *b = &together[i];
            /* One that waits behind a gap is woken by the version before the missing one, if that comes by itself. */
            bool same = a->state == b->state && (a->cls == b->cls || a->state == SEMEL_ROW_WAITING);
            if (!same || a->attempts != b->attempts || a->effects != b->effects || a->logged != b->logged)
                fail_msg("round %zu, message %zu: alone %d %d %d, together %d %d %d", round, i, (int)a->state,
                         (int)a->cls, a->attempts, (int)b->state, (int)b->cls, b->attempts);
        }
    }
}

/* P57: a statement for all of them says not who failed: halves, as ever. */
static void set_based_handler_is_halved_also_where_failures_are_about(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("c", "ok"), msg("d", "ok")};

    make_wary(e);
    use_sets(e, SET_SKIP, "c");
    process(e, msgs, 4);
    assert_blamed(e, "c", SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
    assert_clean(e, "a");
    assert_clean(e, "b");
    assert_clean(e, "d");
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
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
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
        e->inbox.wary = 0;
        assert_int_equal(try_process(e, msgs, 4), statuses[i]);
        if (statuses[i] == SEMEL_CLOSED)
            assert_ok(e, semel_store_reopen(e->store, &e->err));
        assert_clean(e, ids[0]); /* the batch was cut around the failing one first */
        assert_blamed(e, ids[1], SEMEL_ROW_FAILED, SEMEL_CLASS_TRANSIENT);
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
            assert_blamed(e, ids[i], SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT);
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
        ON_EACH(failing_message_is_blamed_in_the_transaction_of_its_batch),
        ON_EACH(savepoints_are_set_only_where_failures_are_about),
        ON_EACH(several_may_fail_in_one_batch_and_each_is_charged_once),
        ON_EACH(message_that_succeeds_alone_is_not_charged),
        ON_EACH(message_behind_one_that_failed_in_its_batch_waits),
        ON_EACH(later_version_does_not_run_past_one_that_failed_in_its_batch),
        ON_EACH(business_duplicate_of_one_that_failed_in_its_batch_is_not_prevented),
        ON_EACH(stored_row_whose_intent_fails_in_its_batch_stays),
        ON_EACH(batch_is_cut_when_a_dependent_has_run_already),
        ON_EACH(copies_of_one_that_is_left_out_share_its_fate),
        ON_MEM(unknown_commit_of_a_batch_with_a_failure_charges_once),
        ON_TABLES(unknown_commit_of_a_batch_with_a_failure_charges_once),
        ON_TABLES(deferred_constraint_is_blamed_in_the_transaction_of_its_batch),
        ON_TABLES(constraints_stay_deferred_behind_a_check),
        ON_TABLES(deferred_constraint_of_a_neighbour_is_not_charged_to_the_suspect),
        ON_TABLES(suspect_that_succeeds_is_not_charged_with_what_a_neighbour_broke),
        ON_TABLES(deferred_constraint_that_fails_the_commit_is_found_by_halves),
        ON_TABLES(only_failures_of_data_are_blamed_in_the_transaction_of_a_batch),
        ON_EACH(world_that_fails_behind_a_failure_charges_nobody),
        ON_EACH(ten_failures_in_a_row_stop_a_wary_batch),
        ON_EACH(set_based_handler_is_halved_also_where_failures_are_about),
        cmocka_unit_test(wary_batch_ends_as_its_messages_do_one_by_one),
#ifdef SEMEL_WITH_POSTGRES
        ON_POSTGRES(queued_statement_that_fails_is_blamed_in_the_transaction_of_its_batch),
#endif
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
