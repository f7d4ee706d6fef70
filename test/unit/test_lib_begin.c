/* SPDX-License-Identifier: MIT
 *
 * test_lib_begin.c: begin, done and fail inside the caller's own transaction.
 */
#include "unit/handle.h"

#include <stdlib.h>

/* ---- the straight way --------------------------------------------------------------------------------- */

static void begun_message_takes_effect_with_the_commit(void **state)
{
    /* I2 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(d->v.attempt, 1);
    assert_int_equal(d->v.token, SEMEL_NONE);
    assert_int_equal(semel_pending(d->s), 1);
    effect(d, "a");
    done(d, &m);
    assert_int_equal(semel_pending(d->s), 0);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "completed");
    assert_int_equal(effects(d, "a"), 1);
}

static void rolled_back_message_left_no_trace_and_runs_again(void **state)
{
    /* T1, T7 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    effect(d, "a");
    sql(d, "ROLLBACK");
    assert_int_equal(semel_pending(d->s), 0);
    assert_string_equal(state_of(d, "a"), "absent");
    run_once(d, &m);
    assert_int_equal(d->v.attempt, 1);
    assert_int_equal(effects(d, NULL), 1);
}

static void duplicate_is_acknowledged_with_the_first_outcome(void **state)
{
    /* I5, I9, T6 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_fine(d, semel_inbox_done(d->s, &m, semel_str("{\"n\":1}"), &d->err));
    sql(d, "COMMIT; BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_ACK, SEMEL_WHY_DUPLICATE);
    assert_int_equal(d->v.status, SEMEL_ROW_COMPLETED);
    assert_str(d->v.outcome, "{\"n\":1}");
    assert_int_equal(semel_pending(d->s), 0);
    sql(d, "COMMIT");
}

static void many_messages_share_one_transaction(void **state)
{
    struct handle *d = *state;
    struct semel_msg a = mail("a", "1"), b = mail("b", "2"), c = mail("c", "3");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    done(d, &a);
    begin(d, &c, SEMEL_RUN, SEMEL_WHY_NEW);
    done(d, &c);
    done(d, &b);
    sql(d, "COMMIT");
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_inbox WHERE status = 'completed'"), 3);
}

static void same_id_of_two_sources_is_two_messages(void **state)
{
    /* I1 */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "1"), b = a;
    a.source = semel_str("one");
    b.source = semel_str("two");
    run_once(d, &a);
    run_once(d, &b);
    /* A3 I24: both records would be forgotten */
    assert_refused(d, semel_consumer_set(d->s, "c", "{\"one_source\": true}", &d->err), SEMEL_INVALID, ": 2;");
    assert_fine(d, semel_consumer_set(d->s, "e", "{\"one_source\": true}", &d->err));
    a.consumer = b.consumer = semel_str("e");
    run_once(d, &a); /* kept under no source at all */
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &b, SEMEL_ACK, SEMEL_WHY_DUPLICATE);
    sql(d, "COMMIT");
}

/* ---- begin and its end belong together ---------------------------------------------------------------- */

static void begin_without_done_cannot_commit(void **state)
{
    /* P59, P38 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    effect(d, "a");
    assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
    assert_int_equal(sqlite3_get_autocommit(d->db), 1);
    assert_string_equal(state_of(d, "a"), "absent");
    assert_int_equal(effects(d, NULL), 0);
    run_once(d, &m); /* and nothing of it sticks */
    assert_int_equal(effects(d, NULL), 1);
}

static void begin_done_and_fail_are_refused_outside_a_transaction(void **state)
{
    /* P59 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    assert_refused(d, semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_INVALID, "BEGIN IMMEDIATE");
    assert_refused(d, semel_inbox_done(d->s, &m, semel_str(NULL), &d->err), SEMEL_INVALID, "BEGIN IMMEDIATE");
    assert_refused(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("x"), &d->v, &d->err), SEMEL_INVALID,
                   "BEGIN IMMEDIATE");
    assert_string_equal(state_of(d, "a"), "absent");
}

static void done_of_what_was_not_begun_is_refused(void **state)
{
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_refused(d, semel_inbox_done(d->s, &b, semel_str(NULL), &d->err), SEMEL_INVALID, "not begun");
    done(d, &a);
    assert_refused(d, semel_inbox_done(d->s, &a, semel_str(NULL), &d->err), SEMEL_INVALID, "not begun");
    sql(d, "COMMIT; BEGIN IMMEDIATE");
    assert_refused(d, semel_inbox_done(d->s, &a, semel_str(NULL), &d->err), SEMEL_INVALID, "not begun");
    sql(d, "ROLLBACK");
    assert_string_equal(state_of(d, "a"), "completed");
}

static void second_begin_in_the_same_transaction_is_busy(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    begin(d, &m, SEMEL_LATER, SEMEL_WHY_BUSY);
    assert_int_equal(semel_pending(d->s), 1); /* the first is not lost */
    assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    begin(d, &m, SEMEL_LATER, SEMEL_WHY_BUSY);
    done(d, &m);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "completed");
}

static void pending_messages_are_bounded(void **state)
{
    struct handle *d = *state;
    char id[32];
    sql(d, "BEGIN IMMEDIATE");
    for (int i = 0; i < SEMEL_PENDING_MAX; i++) {
        snprintf(id, sizeof id, "m%d", i);
        struct semel_msg m = mail(id, "x");
        begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    }
    struct semel_msg more = mail("more", "x"), first = mail("m0", "x");
    assert_refused(d, semel_inbox_begin(d->s, &more, &d->v, &d->err), SEMEL_INVALID, "10000 messages");
    done(d, &first);
    begin(d, &more, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK");
    assert_int_equal(semel_pending(d->s), 0);
}

/* ---- savepoints --------------------------------------------------------------------------------------- */

static void begin_that_a_savepoint_took_back_can_be_begun_again(void **state)
{
    /* P59 */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT mine");
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    effect(d, "b");
    sql(d, "ROLLBACK TO mine");
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(semel_pending(d->s), 2);
    effect(d, "b");
    done(d, &b);
    done(d, &a);
    sql(d, "RELEASE mine; COMMIT");
    assert_int_equal(effects(d, "b"), 1);
    assert_string_equal(state_of(d, "a"), "completed");
    assert_string_equal(state_of(d, "b"), "completed");
}

static void begin_that_a_savepoint_took_back_is_not_done(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE; SAVEPOINT mine");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK TO mine");
    assert_refused(d, semel_inbox_done(d->s, &m, semel_str(NULL), &d->err), SEMEL_INVALID, "rolled back");
    sql(d, "RELEASE mine; COMMIT"); /* there is nothing to keep it from */
    assert_string_equal(state_of(d, "a"), "absent");
}

static void begin_that_a_savepoint_took_back_lets_the_transaction_commit(void **state)
{
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE; SAVEPOINT mine");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK TO mine");
    assert_int_equal(semel_pending(d->s), 0);
    effect(d, "other");
    sql(d, "COMMIT; BEGIN IMMEDIATE; SAVEPOINT mine");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK TO mine");
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(semel_pending(d->s), 1);
    done(d, &b);
    sql(d, "COMMIT; SAVEPOINT outermost");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK TO outermost; RELEASE outermost");
    assert_string_equal(state_of(d, "a"), "absent");
    assert_string_equal(state_of(d, "b"), "completed");
    assert_int_equal(effects(d, "other"), 1);
}

/* What ends the message, what happens around its end, and whether the COMMIT is refused. */
static const struct {
    const char *before, *after;
    bool refused;
} undoings[] = {
    {"SAVEPOINT a", "ROLLBACK TO a", true},
    {"SAVEPOINT a", "ROLLBACK TO a; RELEASE a", true},
    {"SAVEPOINT a; SAVEPOINT b", "RELEASE b; ROLLBACK TO a", true},
    {"SAVEPOINT a; SAVEPOINT b", "ROLLBACK TO b; ROLLBACK TO a; RELEASE a", true},
    {"SAVEPOINT a; RELEASE a; SAVEPOINT b", "SAVEPOINT c; ROLLBACK TO b", true},
    {"SAVEPOINT a", "SAVEPOINT b; ROLLBACK TO b", false},
    {"SAVEPOINT a", "RELEASE a; SAVEPOINT b; INSERT INTO effect VALUES ('y'); ROLLBACK TO b", false},
    {"SAVEPOINT a", "INSERT OR FAIL INTO effect SELECT 'y' UNION ALL SELECT 'z'; RELEASE a", false},
};

static void end_that_a_savepoint_took_back_cannot_commit(void **state)
{
    /* P59: never completed without its effect, and never an effect of a message that is not */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x"), other = mail("b", "x");
    for (size_t i = 0; i < 2 * sizeof undoings / sizeof undoings[0]; i++) {
        sql(d, "DELETE FROM semel_inbox; DELETE FROM effect; BEGIN IMMEDIATE; SAVEPOINT outside");
        begin(d, &other, SEMEL_RUN, SEMEL_WHY_NEW);
        begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
        effect(d, "a");
        sql(d, undoings[i / 2].before);
        if (i % 2 == 0)
            done(d, &m);
        else
            assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
        sql(d, undoings[i / 2].after);
        assert_int_equal(semel_pending(d->s), undoings[i / 2].refused ? 2 : 1);
        done(d, &other);
        if (undoings[i / 2].refused)
            assert_commit_refused(d);
        else
            sql(d, "COMMIT");
        assert_int_equal(effects(d, "a"), !undoings[i / 2].refused);
    }
}

/* A statement that fails half way is undone like a savepoint. */
static void statement_that_fails_undoes_no_end(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "CREATE TABLE one (id INTEGER PRIMARY KEY); BEGIN");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(sql_try(d, "INSERT INTO one VALUES (1), (2), (1)") & 0xff, SQLITE_CONSTRAINT);
    assert_int_equal(semel_pending(d->s), 1);
    effect(d, "a");
    done(d, &m);
    assert_int_equal(sql_try(d, "INSERT INTO one VALUES (1), (2), (1)") & 0xff, SQLITE_CONSTRAINT);
    sql(d, "COMMIT");
    assert_int_equal(sql_int(d, "SELECT count(*) FROM one"), 0);
    assert_string_equal(state_of(d, "a"), "completed");
    sql(d, "BEGIN");
    m = mail("b", "x");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    done(d, &m);
    assert_int_equal(sql_try(d, "INSERT OR ROLLBACK INTO one VALUES (1), (2), (1)") & 0xff, SQLITE_CONSTRAINT);
    assert_int_equal(semel_pending(d->s), 0);
    run_once(d, &m);
}

static void roll_back(sqlite3_context *context, int n, sqlite3_value **values)
{
    (void)n;
    const char *text = (const char *)sqlite3_value_text(values[0]);
    assert_int_equal(sqlite3_exec(sqlite3_context_db_handle(context), text, NULL, NULL, NULL), SQLITE_OK);
}

/* Then it is undone itself, to a savepoint of its own that has gone with the caller's. */
static void statement_that_rolls_back_to_a_savepoint_brings_no_end_back(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    int rc = sqlite3_create_function(d->db, "roll_back", 1, SQLITE_UTF8, NULL, roll_back, NULL, NULL);
    assert_int_equal(rc, SQLITE_OK);
    sql(d, "BEGIN");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    effect(d, "a");
    sql(d, "SAVEPOINT s");
    done(d, &m);
    assert_int_equal(sql_try(d, "INSERT INTO effect SELECT roll_back('ROLLBACK TO s') UNION ALL SELECT 'b'"),
                     SQLITE_ABORT_ROLLBACK);
    assert_int_equal(semel_pending(d->s), 1);
    assert_commit_refused(d);
    assert_int_equal(effects(d, NULL), 0);
}

/* Its number is that of savepoints that are gone. */
static void deep_savepoints_are_counted(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    char text[40];
    sql(d, "BEGIN");
    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof text, "SAVEPOINT s%d", i);
        sql(d, text);
        if (i == 50)
            begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    }
    done(d, &m);
    sql(d, "ROLLBACK TO s70");
    assert_int_equal(semel_pending(d->s), 1);
    done(d, &m);
    sql(d, "ROLLBACK TO s51");
    assert_int_equal(semel_pending(d->s), 1);
    sql(d, "ROLLBACK TO s50");
    assert_int_equal(semel_pending(d->s), 0);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "absent");
}

static void done_that_a_savepoint_took_back_can_be_done_again(void **state)
{
    /* P59: the effect that was written again must not be run a second time */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT mine");
    effect(d, "a");
    done(d, &a);
    sql(d, "ROLLBACK TO mine");
    effect(d, "a");
    done(d, &a);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "completed");
    assert_int_equal(effects(d, "a"), 1);

    sql(d, "BEGIN IMMEDIATE");
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT mine");
    done(d, &b);
    sql(d, "ROLLBACK TO mine");
    assert_fine(d, semel_inbox_fail(d->s, &b, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    sql(d, "COMMIT");
}

static void done_that_a_savepoint_took_back_keeps_the_next_call_from_committing(void **state)
{
    /* P59 */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x"), c = mail("c", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT mine");
    done(d, &a);
    done(d, &b);
    sql(d, "ROLLBACK TO mine");
    effect(d, "a");
    begin(d, &c, SEMEL_RUN, SEMEL_WHY_NEW);
    done(d, &c);
    assert_int_equal(semel_pending(d->s), 2);
    assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
    assert_int_equal(effects(d, NULL), 0);
}

static void begins_that_savepoints_took_back_one_by_one_are_all_noticed(void **state)
{
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT one");
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT two");
    done(d, &a);
    sql(d, "ROLLBACK TO two");
    begin(d, &b, SEMEL_LATER, SEMEL_WHY_BUSY); /* a is pending again, and was begun before b */
    assert_int_equal(semel_pending(d->s), 2);
    sql(d, "ROLLBACK TO one");
    done(d, &a);
    assert_int_equal(semel_pending(d->s), 0);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "b"), "absent");
}

static void done_of_a_begin_that_was_taken_back_ends_nobody_elses_message(void **state)
{
    /* P38 */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE; SAVEPOINT mine");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK TO mine");
    assert_fine(d, semel_inbox_claim(d->s, &b, 0, &d->v, &d->err));
    assert_refused(d, semel_inbox_done(d->s, &a, semel_str(NULL), &d->err), SEMEL_INVALID, "rolled back");
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "b"), "processing");
}

static void what_has_ended_is_remembered_within_bounds(void **state)
{
    struct handle *d = *state;
    char id[32];
    sql(d, "BEGIN IMMEDIATE");
    for (int i = 0; i < SEMEL_ENDED_MAX + 2; i++) {
        snprintf(id, sizeof id, "m%d", i);
        struct semel_msg m = mail(id, "x");
        begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
        done(d, &m);
    }
    assert_int_equal(d->s->ended.n, SEMEL_ENDED_MAX);
    sql(d, "COMMIT");
    assert_int_equal(d->s->ended.n, 0);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_inbox WHERE status = 'completed'"), SEMEL_ENDED_MAX + 2);
}

static void failure_after_a_savepoint_took_the_effect_back_is_recorded(void **state)
{
    /* T3 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT mine");
    effect(d, "a");
    sql(d, "ROLLBACK TO mine");
    assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("busy\nshop"), &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_true(d->v.due_us > d->now_us);
    assert_int_equal(d->v.cls, SEMEL_CLASS_TRANSIENT);
    sql(d, "COMMIT");
    assert_int_equal(effects(d, NULL), 0);
    assert_int_equal(sql_int(d, "SELECT error_text = 'busy?shop' FROM semel_inbox"), 1);
}

static void failure_after_a_savepoint_took_the_begin_back_is_recorded(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE; SAVEPOINT mine");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    effect(d, "a");
    sql(d, "ROLLBACK TO mine");
    assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("no"), NULL, &d->err));
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "failed");
    assert_int_equal(sql_int(d, "SELECT attempts FROM semel_inbox"), 1);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_attempt"), 1);
}

/* ---- failures ----------------------------------------------------------------------------------------- */

static void failure_in_another_transaction_is_recorded(void **state)
{
    /* T3 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    effect(d, "a");
    sql(d, "ROLLBACK; BEGIN IMMEDIATE");
    assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_int_equal(d->v.attempt, 1);
    sql(d, "COMMIT");
    assert_int_equal(effects(d, NULL), 0);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_ACK, SEMEL_WHY_BACKOFF);
    sql(d, "COMMIT");
    pass(d, 20 * SECOND_US);
    run_once(d, &m);
    assert_int_equal(d->v.attempt, 2);
    assert_int_equal(d->v.why, SEMEL_WHY_RETRIED);
}

static void second_failure_in_another_transaction_counts_too(void **state)
{
    /* T3, I6: a row that failed before is recorded in one step as well */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    set(d, "{\"retry_max\": 2}");
    for (int i = 1; i <= 2; i++) {
        sql(d, "BEGIN IMMEDIATE");
        begin(d, &m, SEMEL_RUN, i == 1 ? SEMEL_WHY_NEW : SEMEL_WHY_RETRIED);
        sql(d, "ROLLBACK; BEGIN IMMEDIATE");
        assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
        assert_int_equal(d->v.attempt, i);
        sql(d, "COMMIT");
        pass(d, 20 * SECOND_US);
    }
    assert_string_equal(state_of(d, "a"), "dead"); /* T5 */
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_ACK, SEMEL_WHY_DEAD);
    sql(d, "COMMIT");
}

static void results_end_where_their_class_says(void **state)
{
    /* I14 */
    static const struct {
        enum semel_result result;
        enum semel_row_status state;
    } ends[] = {
        {SEMEL_TRANSIENT, SEMEL_ROW_FAILED},
        {SEMEL_PERMANENT, SEMEL_ROW_DEAD},
        {SEMEL_REJECTED, SEMEL_ROW_REJECTED},
        {SEMEL_MAYBE, SEMEL_ROW_UNKNOWN},
    };
    struct handle *d = *state;
    for (size_t i = 0; i < COUNT(ends); i++)
        for (int again = 0; again < 2; again++) {
            char id[16];
            snprintf(id, sizeof id, "m%zu-%d", i, again);
            struct semel_msg m = mail(id, "x");
            sql(d, "BEGIN IMMEDIATE");
            begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
            if (again)
                sql(d, "ROLLBACK; BEGIN IMMEDIATE");
            assert_fine(d, semel_inbox_fail(d->s, &m, ends[i].result, semel_str("why"), &d->v, &d->err));
            assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_NEW, ends[i].state);
            sql(d, "COMMIT");
        }
}

static void failure_without_a_payload_is_left_to_the_broker(void **state)
{
    /* A4 P76, I4 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x"), bare = mail("a", "x");
    bare.payload = semel_str(NULL);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &bare, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_fine(d, semel_inbox_fail(d->s, &bare, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_LATER, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_true(d->v.hint.n > 0);
    sql(d, "COMMIT");
    assert_int_equal(sql_int(d, "SELECT attempts = 1 AND payload IS NULL FROM semel_inbox"), 1);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_ACK, SEMEL_WHY_BACKOFF);
    assert_int_equal(d->v.hint.n, 0);
    sql(d, "COMMIT");
    assert_int_equal(sql_int(d, "SELECT attempts = 1 AND payload = CAST('x' AS BLOB) FROM semel_inbox"), 1);
}

static void failure_brings_the_payload_that_its_begin_did_not_have(void **state)
{
    /* A4 P76, I4: the begin's, else its own */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    a.payload = semel_str(NULL);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    a.payload = semel_str("own");
    b.payload = semel_str(NULL);
    assert_fine(d, semel_inbox_fail(d->s, &a, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_fine(d, semel_inbox_fail(d->s, &b, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    sql(d, "COMMIT");
    assert_int_equal(sql_int(d, "SELECT payload = CAST('own' AS BLOB) AND fingerprint IS NOT NULL FROM semel_inbox "
                                "WHERE message_id = 'a'"),
                     1);
    assert_int_equal(sql_int(d, "SELECT payload = CAST('x' AS BLOB) FROM semel_inbox WHERE message_id = 'b'"), 1);
}

static void success_is_no_way_to_fail(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_refused(d, semel_inbox_fail(d->s, &m, SEMEL_DONE, semel_str("x"), &d->v, &d->err), SEMEL_INVALID, "result");
    assert_refused(d, semel_inbox_fail(d->s, &m, (enum semel_result)77, semel_str("x"), &d->v, &d->err), SEMEL_INVALID,
                   "result is 77");
    assert_int_equal(semel_pending(d->s), 1);
    sql(d, "ROLLBACK");
}

static void failure_of_a_finished_message_tells_that_it_is_finished(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    run_once(d, &m);
    sql(d, "BEGIN IMMEDIATE");
    assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("late"), &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "completed");
}

static void outcome_must_be_json_within_its_bound(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    char *long_text = malloc(70000);
    assert_non_null(long_text);
    memset(long_text, ' ', 70000);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_refused(d, semel_inbox_done(d->s, &m, semel_str("{bad"), &d->err), SEMEL_INVALID, "outcome");
    assert_refused(d, semel_inbox_done(d->s, &m, (struct semel_str){long_text, 70000}, &d->err), SEMEL_INVALID,
                   "outcome has 70000 bytes");
    assert_refused(d, semel_inbox_done(d->s, &m, (struct semel_str){NULL, 3}, &d->err), SEMEL_INVALID, "outcome");
    assert_int_equal(semel_pending(d->s), 1);
    assert_fine(d, semel_inbox_done(d->s, &m, semel_str("7"), &d->err));
    sql(d, "COMMIT");
    free(long_text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(begun_message_takes_effect_with_the_commit),
        ON_BOTH(rolled_back_message_left_no_trace_and_runs_again),
        ON_BOTH(duplicate_is_acknowledged_with_the_first_outcome),
        ON_BOTH(many_messages_share_one_transaction),
        ON_OWN(same_id_of_two_sources_is_two_messages),
        ON_BOTH(begin_without_done_cannot_commit),
        ON_BOTH(begin_done_and_fail_are_refused_outside_a_transaction),
        ON_BOTH(done_of_what_was_not_begun_is_refused),
        ON_BOTH(second_begin_in_the_same_transaction_is_busy),
        ON_OWN(pending_messages_are_bounded),
        ON_BOTH(begin_that_a_savepoint_took_back_can_be_begun_again),
        ON_BOTH(begin_that_a_savepoint_took_back_is_not_done),
        ON_BOTH(begin_that_a_savepoint_took_back_lets_the_transaction_commit),
        ON_WRAPPED(end_that_a_savepoint_took_back_cannot_commit),
        ON_BOTH(statement_that_fails_undoes_no_end),
        ON_WRAPPED(statement_that_rolls_back_to_a_savepoint_brings_no_end_back),
        ON_BOTH(deep_savepoints_are_counted),
        ON_BOTH(done_that_a_savepoint_took_back_can_be_done_again),
        ON_BOTH(done_that_a_savepoint_took_back_keeps_the_next_call_from_committing),
        ON_BOTH(begins_that_savepoints_took_back_one_by_one_are_all_noticed),
        ON_BOTH(done_of_a_begin_that_was_taken_back_ends_nobody_elses_message),
        ON_OWN(what_has_ended_is_remembered_within_bounds),
        ON_BOTH(failure_after_a_savepoint_took_the_effect_back_is_recorded),
        ON_BOTH(failure_after_a_savepoint_took_the_begin_back_is_recorded),
        ON_BOTH(failure_in_another_transaction_is_recorded),
        ON_BOTH(second_failure_in_another_transaction_counts_too),
        ON_BOTH(results_end_where_their_class_says),
        ON_BOTH(failure_without_a_payload_is_left_to_the_broker),
        ON_BOTH(failure_brings_the_payload_that_its_begin_did_not_have),
        ON_OWN(success_is_no_way_to_fail),
        ON_OWN(failure_of_a_finished_message_tells_that_it_is_finished),
        ON_OWN(outcome_must_be_json_within_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
