/* SPDX-License-Identifier: MIT
 *
 * test_lib_rules.c: the rules of the inbox as begin shows them: keys, versions, business keys, conflicts; and handles
 * that leave the connection's hooks alone.
 */
#include "unit/handle.h"

/* In a transaction of its own, committed. */
static void answer(struct handle *d, struct semel_msg m, enum semel_act act, enum semel_why why)
{
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, act, why);
    if (act == SEMEL_RUN)
        done(d, &m);
    sql(d, "COMMIT");
}

static void fails(struct handle *d, struct semel_msg m)
{
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("no"), &d->v, &d->err));
    sql(d, "COMMIT");
}

static void first_message_with_a_key_settles_the_order(void **state)
{
    struct handle *d = *state;
    struct semel_str settings;
    answer(d, keyed("a", "k", SEMEL_NONE), SEMEL_RUN, SEMEL_WHY_NEW);
    assert_fine(d, semel_consumer_get(d->s, "c", &settings, &d->err));
    assert_non_null(strstr(settings.p, "\"order\":\"arrival\""));
    struct semel_msg contradicts = keyed("b", "k", 7);
    sql(d, "BEGIN IMMEDIATE");
    assert_refused(d, semel_inbox_begin(d->s, &contradicts, &d->v, &d->err), SEMEL_INVALID, "order is arrival");
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "b"), "absent");
}

static void failed_message_parks_its_successors(void **state)
{
    /* I13 */
    struct handle *d = *state;
    fails(d, keyed("a", "k", SEMEL_NONE));
    answer(d, keyed("b", "k", SEMEL_NONE), SEMEL_ACK, SEMEL_WHY_BLOCKED);
    assert_int_equal(d->v.status, SEMEL_ROW_WAITING);
    answer(d, keyed("x", "other", SEMEL_NONE), SEMEL_RUN, SEMEL_WHY_NEW);
    pass(d, 20 * SECOND_US);
    answer(d, keyed("a", "k", SEMEL_NONE), SEMEL_RUN, SEMEL_WHY_RETRIED);
    answer(d, keyed("b", "k", SEMEL_NONE), SEMEL_RUN, SEMEL_WHY_NEW);
}

static void done_needs_no_more_than_the_name_of_the_message(void **state)
{
    /* I12: the version that counts is the one that was begun */
    struct handle *d = *state;
    struct semel_msg m = keyed("v1", "k", 1), name = mail("v1", NULL);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    done(d, &name);
    sql(d, "COMMIT");
    assert_int_equal(sql_int(d, "SELECT last_version FROM semel_order_key"), 1);
}

static void versions_run_in_their_order(void **state)
{
    /* I12, T9 */
    struct handle *d = *state;
    answer(d, keyed("v1", "k", 1), SEMEL_RUN, SEMEL_WHY_NEW);
    answer(d, keyed("v3", "k", 3), SEMEL_ACK, SEMEL_WHY_GAP);
    answer(d, keyed("v1-again", "k", 1), SEMEL_ACK, SEMEL_WHY_DUPLICATE);
    answer(d, keyed("v2", "k", 2), SEMEL_RUN, SEMEL_WHY_NEW);
    answer(d, keyed("v3", "k", 3), SEMEL_RUN, SEMEL_WHY_NEW);
    answer(d, keyed("v2-late", "k", 2), SEMEL_ACK, SEMEL_WHY_STALE);
}

static void business_duplicate_is_prevented(void **state)
{
    /* I10, T8 */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "y"), c = mail("c", "z");
    a.business_key = b.business_key = c.business_key = semel_str("settlement-7");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_fine(d, semel_inbox_fail(d->s, &a, SEMEL_REJECTED, semel_str("no"), &d->v, &d->err));
    sql(d, "COMMIT"); /* which frees the key */
    answer(d, b, SEMEL_RUN, SEMEL_WHY_NEW);
    answer(d, c, SEMEL_ACK, SEMEL_WHY_BUSINESS);
    assert_int_equal(d->v.status, SEMEL_ROW_PREVENTED);
}

static void same_id_with_another_payload_is_a_conflict(void **state)
{
    /* I11 */
    struct handle *d = *state;
    answer(d, mail("a", "{\"x\": 1, \"y\": 2}"), SEMEL_RUN, SEMEL_WHY_NEW);
    answer(d, mail("a", "{\"y\":2,\"x\":1}"), SEMEL_ACK, SEMEL_WHY_DUPLICATE);
    answer(d, mail("a", "{\"x\": 2}"), SEMEL_ACK, SEMEL_WHY_CONFLICT);
    answer(d, mail("a", NULL), SEMEL_ACK, SEMEL_WHY_DUPLICATE); /* what has no payload is not compared */
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_conflict"), 1);
}

static void fingerprint_of_the_caller_is_compared_with_its_kind_only(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    m.fingerprint = semel_str("f1");
    answer(d, m, SEMEL_RUN, SEMEL_WHY_NEW);
    m.payload = semel_str("other bytes, which it says are the same");
    answer(d, m, SEMEL_ACK, SEMEL_WHY_DUPLICATE);
    m.fingerprint = semel_str("f2");
    answer(d, m, SEMEL_ACK, SEMEL_WHY_CONFLICT);
    answer(d, mail("a", "computed"), SEMEL_ACK, SEMEL_WHY_DUPLICATE);
}

static void message_without_an_id_is_quarantined(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail(NULL, "x");
    m.position = semel_str("topic/3/17");
    answer(d, m, SEMEL_ACK, SEMEL_WHY_NO_ID);
    assert_string_equal(state_of(d, "position:topic/3/17"), "quarantined");
}

static void time_is_taken_from_the_id(void **state)
{
    /* I18 */
    struct handle *d = *state;
    answer(d, mail("018bcfe5-6800-7000-8000-000000000000", "x"), SEMEL_RUN, SEMEL_WHY_NEW);
    struct semel_msg said = mail("b", "x");
    said.message_time_us = START_US - SECOND_US;
    answer(d, said, SEMEL_RUN, SEMEL_WHY_NEW);
    answer(d, mail("c", "x"), SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(sql_int(d, "SELECT message_time FROM semel_inbox WHERE arrival = 1"), START_US);
    assert_int_equal(sql_int(d, "SELECT message_time FROM semel_inbox WHERE arrival = 2"), START_US - SECOND_US);
    assert_int_equal(sql_int(d, "SELECT message_time IS NULL FROM semel_inbox WHERE arrival = 3"), 1);
    answer(d, mail("01HF7YAT000000000000000000", "x"), SEMEL_RUN, SEMEL_WHY_NEW); /* A11 P82: a ULID of START_US */
    set(d, "{\"timed_ids\": true}");
    answer(d, mail("01HF7YAT000000000000000001", "x"), SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(sql_int(d, "SELECT message_time IS NULL FROM semel_inbox WHERE arrival = 4"), 1);
    assert_int_equal(sql_int(d, "SELECT message_time FROM semel_inbox WHERE arrival = 5"), START_US);
}

static void too_old_message_is_quarantined(void **state)
{
    /* I18, P60, T10 */
    struct handle *d = *state;
    size_t n;
    struct semel_msg m = mail("a", "x");
    m.message_time_us = START_US;
    set(d, "{\"retention\": \"1h\"}");
    answer(d, m, SEMEL_RUN, SEMEL_WHY_NEW);
    pass(d, 7200 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 1);
    assert_string_equal(state_of(d, "a"), "absent");
    answer(d, m, SEMEL_ACK, SEMEL_WHY_TOO_OLD);
}

/* ---- hooks -------------------------------------------------------------------------------------------- */

static int count_calls(void *ctx)
{
    ++*(int *)ctx;
    return 0;
}

static void loose_handle_leaves_the_hooks_alone(void **state)
{
    struct handle *d = *state;
    int commits = 0;
    sqlite3_commit_hook(d->db, count_calls, &commits);
    run_once(d, &(struct semel_msg){.size = sizeof(struct semel_msg),
                                    .consumer = semel_str("c"),
                                    .id = semel_str("a"),
                                    .version = SEMEL_NONE,
                                    .message_time_us = SEMEL_NONE});
    assert_int_equal(commits, 1);
    sqlite3_commit_hook(d->db, NULL, NULL);
}

static void loose_handle_keeps_a_begin_until_its_lease_runs_out(void **state)
{
    /* P59, I7, T4 */
    struct handle *d = *state;
    size_t n;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "processing");
    pass(d, 61 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_string_equal(state_of(d, "a"), "failed"); /* not lost, not done */
    pass(d, 20 * SECOND_US);
    run_once(d, &m);
    assert_int_equal(d->v.attempt, 2);
}

static void loose_handle_notices_that_its_list_is_stale(void **state)
{
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(semel_pending(d->s), 1);
    sql(d, "ROLLBACK; BEGIN IMMEDIATE");
    assert_refused(d, semel_inbox_done(d->s, &a, semel_str(NULL), &d->err), SEMEL_INVALID, "rolled back");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK; BEGIN IMMEDIATE");
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(semel_pending(d->s), 1);
    done(d, &b);
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "absent");
    assert_string_equal(state_of(d, "b"), "completed");
}

static int refuse_pending(void *ctx)
{
    struct semel *s = ctx;
    int pending = semel_pending(s);
    semel_ended(s);
    return pending > 0;
}

static void own_hook_can_refuse_by_itself(void **state)
{
    /* P59 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sqlite3_commit_hook(d->db, refuse_pending, d->s);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
    sql(d, "INSERT INTO effect VALUES ('unrelated')"); /* and the next one is not in its way */
    run_once(d, &m);
    sqlite3_commit_hook(d->db, NULL, NULL);
    assert_int_equal(effects(d, NULL), 2);
}

static void closed_handle_gives_the_hooks_back(void **state)
{
    struct handle *d = *state;
    int commits = 0;
    semel_close(d->s);
    d->s = NULL;
    sqlite3_commit_hook(d->db, count_calls, &commits);
    sql(d, "INSERT INTO effect VALUES ('x')");
    assert_int_equal(commits, 1);
    assert_int_equal(sqlite3_total_changes(d->db) > 0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_OWN(first_message_with_a_key_settles_the_order),
        ON_BOTH(failed_message_parks_its_successors),
        ON_OWN(done_needs_no_more_than_the_name_of_the_message),
        ON_BOTH(versions_run_in_their_order),
        ON_OWN(business_duplicate_is_prevented),
        ON_OWN(same_id_with_another_payload_is_a_conflict),
        ON_OWN(fingerprint_of_the_caller_is_compared_with_its_kind_only),
        ON_OWN(message_without_an_id_is_quarantined),
        ON_OWN(time_is_taken_from_the_id),
        ON_BOTH(too_old_message_is_quarantined),
        ON_LOOSE(loose_handle_leaves_the_hooks_alone),
        ON_LOOSE(loose_handle_keeps_a_begin_until_its_lease_runs_out),
        ON_LOOSE(loose_handle_notices_that_its_list_is_stale),
        ON_LOOSE(own_hook_can_refuse_by_itself),
        ON_WRAPPED(closed_handle_gives_the_hooks_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
