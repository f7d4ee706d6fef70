/* SPDX-License-Identifier: MIT
 *
 * test_lib_claim.c: claims under a lease, stored work, and everything that goes by a token.
 */
#include "unit/handle.h"

#define NOTHING semel_str(NULL)

static int64_t claim(struct handle *d, struct semel_msg m)
{
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
    assert_int_equal(d->v.act, SEMEL_RUN);
    assert_true(d->v.token > 0);
    return d->v.token;
}

static semel_status finish(struct handle *d, int64_t token, enum semel_result result)
{
    return semel_inbox_finish(d->s, token, result, NOTHING, NOTHING, &d->err);
}

/* ---- claim and finish --------------------------------------------------------------------------------- */

static void claim_is_committed_before_anything_runs(void **state)
{
    struct handle *d = *state;
    claim(d, mail("a", "x"));
    assert_int_equal(sqlite3_get_autocommit(d->db), 1);
    assert_verdict(&d->v, SEMEL_RUN, SEMEL_WHY_NEW, SEMEL_ROW_PROCESSING);
    assert_int_equal(d->v.lease_until_us, d->now_us + 60 * SECOND_US);
    assert_string_equal(state_of(d, "a"), "processing");
    assert_int_equal(semel_pending(d->s), 0);
}

static void finished_claim_is_completed_with_its_outcome(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    int64_t token = claim(d, m);
    assert_fine(d, semel_inbox_finish(d->s, token, SEMEL_DONE, semel_str("[1]"), NOTHING, &d->err));
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_str(d->v.outcome, "[1]");
}

static void claimed_message_is_busy_for_others(void **state)
{
    /* T2 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    claim(d, m);
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_LATER, SEMEL_WHY_BUSY, SEMEL_ROW_PROCESSING);
}

static void finish_refuses_what_it_cannot_keep(void **state)
{
    struct handle *d = *state;
    int64_t token = claim(d, mail("a", "x"));
    assert_refused(d, semel_inbox_finish(d->s, token, (enum semel_result)9, NOTHING, NOTHING, &d->err), SEMEL_INVALID,
                   "result is 9");
    assert_refused(d, semel_inbox_finish(d->s, token, SEMEL_DONE, semel_str("{"), NOTHING, &d->err), SEMEL_INVALID,
                   "outcome");
    assert_refused(d, semel_inbox_finish(d->s, token, SEMEL_DONE, NOTHING, (struct semel_str){NULL, 1}, &d->err),
                   SEMEL_INVALID, "reason");
    assert_refused(d, finish(d, 0, SEMEL_DONE), SEMEL_INVALID, "token is 0");
    assert_refused(d, finish(d, SEMEL_NONE, SEMEL_DONE), SEMEL_INVALID, "token");
    assert_fine(d, finish(d, token, SEMEL_DONE));
}

static void lease_of_the_call_counts(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    assert_fine(d, semel_inbox_claim(d->s, &m, 1500, &d->v, &d->err));
    assert_int_equal(d->v.lease_until_us, d->now_us + 1500000);
    assert_refused(d, semel_inbox_claim(d->s, &m, -1, &d->v, &d->err), SEMEL_INVALID, "lease_ms is -1");
    assert_refused(d, semel_inbox_claim(d->s, &m, 86400001, &d->v, &d->err), SEMEL_INVALID, "lease_ms");
    assert_refused(d, semel_inbox_renew(d->s, d->v.token, -5, &d->err), SEMEL_INVALID, "lease_ms");
}

static void renewed_lease_outlives_recovery(void **state)
{
    /* I7, P39 */
    struct handle *d = *state;
    size_t n;
    int64_t token = claim(d, mail("a", "x"));
    pass(d, 50 * SECOND_US);
    assert_fine(d, semel_inbox_renew(d->s, token, 0, &d->err));
    pass(d, 50 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 0);
    assert_fine(d, finish(d, token, SEMEL_DONE));
}

static void late_worker_is_fenced_and_its_word_is_kept(void **state)
{
    /* I7, P39, T4 */
    struct handle *d = *state;
    size_t n;
    struct semel_msg m = mail("a", "x");
    set(d, "{\"effect\": \"keyed\"}");
    int64_t late = claim(d, m);
    pass(d, 61 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 1);
    assert_string_equal(state_of(d, "a"), "failed");
    pass(d, 20 * SECOND_US);
    int64_t next = claim(d, m);
    assert_true(next > late);
    assert_int_equal(d->v.attempt, 2);
    assert_refused(d, semel_inbox_renew(d->s, late, 0, &d->err), SEMEL_FENCED, "token");
    assert_refused(d, semel_inbox_release(d->s, late, &d->err), SEMEL_FENCED, "token");
    assert_refused(d, finish(d, late, SEMEL_DONE), SEMEL_FENCED, "lease ran out");
    assert_string_equal(state_of(d, "a"), "processing");
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_attempt WHERE error_text LIKE '%worker reported done'"), 1);
    assert_fine(d, finish(d, next, SEMEL_DONE));
    assert_refused(d, finish(d, next, SEMEL_DONE), SEMEL_FENCED, "has its end");
}

static void token_that_nobody_has_is_fenced(void **state)
{
    struct handle *d = *state;
    assert_refused(d, finish(d, 4711, SEMEL_DONE), SEMEL_FENCED, "token 4711");
    assert_refused(d, semel_inbox_renew(d->s, 4711, 0, &d->err), SEMEL_FENCED, "token 4711");
    assert_refused(d, semel_inbox_release(d->s, 4711, &d->err), SEMEL_FENCED, "token 4711");
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_attempt"), 0);
}

/* I7 A7 P79: nothing that a rollback takes back could give it out once more */
static void token_of_a_claim_that_was_rolled_back_is_never_given_again(void **state)
{
    struct handle *d = *state;
    struct semel *other;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    int64_t token = claim(d, m);
    sql(d, "ROLLBACK");
    assert_fine(d, semel__handle_wrap(&other, d->db, SEMEL_LOOSE, &d->options, &d->err));
    assert_fine(d, semel_inbox_claim(other, &m, 0, &d->v, &d->err));
    int64_t next = d->v.token;
    assert_int_not_equal(next, token);
    assert_refused(d, finish(d, token, SEMEL_DONE), SEMEL_FENCED, "token");
    assert_refused(d, semel_inbox_renew(d->s, token, 0, &d->err), SEMEL_FENCED, "token");
    assert_refused(d, semel_inbox_release(d->s, token, &d->err), SEMEL_FENCED, "token");
    assert_fine(d, semel_inbox_finish(other, next, SEMEL_DONE, NOTHING, NOTHING, &d->err));
    semel_close(other);
    assert_string_equal(state_of(d, "a"), "completed");
}

/* A7 P79 */
static void token_that_a_client_rounded_is_an_error_that_says_so(void **state)
{
    struct handle *d = *state;
    pass(d, 1000 * 86400 * SECOND_US); /* tokens exceed 2^59, where a double is a multiple of 128 */
    int64_t token = claim(d, mail("a", "x"));
    double rounded = (double)token;
    assert_true((int64_t)rounded != token);
    assert_refused(d, finish(d, (int64_t)rounded, SEMEL_DONE), SEMEL_INVALID, "rounded");
    assert_refused(d, semel_inbox_renew(d->s, (int64_t)rounded, 0, &d->err), SEMEL_INVALID, "rounded");
    assert_refused(d, semel_inbox_release(d->s, (int64_t)rounded, &d->err), SEMEL_INVALID, "rounded");
    assert_fine(d, finish(d, token, SEMEL_DONE));
}

/* A7 P79: tokens of a message rise even where the clock does not */
static void tokens_of_a_message_rise_although_the_clock_steps_back(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    int64_t last = claim(d, m), updated = sql_int(d, "SELECT updated_at FROM semel_inbox");
    for (int i = 0; i < 5; i++) {
        pass(d, -3600 * SECOND_US);
        assert_fine(d, semel_inbox_release(d->s, last, &d->err));
        assert_true(sql_int(d, "SELECT updated_at FROM semel_inbox") > updated);
        updated = sql_int(d, "SELECT updated_at FROM semel_inbox");
        int64_t next = claim(d, m);
        assert_true(next > last);
        last = next;
    }
}

/* A8 P80: the token tells, even when its row is gone */
static void late_done_keeps_the_effect_from_being_committed(void **state)
{
    struct handle *d = *state;
    size_t n;
    int64_t late = claim(d, mail("a", "x"));
    pass(d, 61 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    for (int gone = 0; gone < 2; gone++) {
        sql(d, "BEGIN IMMEDIATE");
        effect(d, "a");
        assert_refused(d, finish(d, late, SEMEL_DONE), SEMEL_FENCED, "must not be committed");
        assert_int_equal(semel_pending(d->s), 1);
        sql(d, "SAVEPOINT mine; ROLLBACK TO mine; RELEASE mine");
        assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
        assert_int_equal(effects(d, "a"), 0);
        assert_int_equal(semel_pending(d->s), 0);
        sql(d, "BEGIN IMMEDIATE");
        assert_refused(d, finish(d, late, SEMEL_DONE), SEMEL_FENCED, "must not be committed");
        sql(d, "ROLLBACK; DELETE FROM semel_inbox"); /* and the next transaction commits */
    }
}

/* A8 P80: other ends, and the ends of what is elsewhere, leave the transaction alone */
static void late_end_of_anything_else_is_a_value(void **state)
{
    struct handle *d = *state;
    size_t n;
    int64_t atomic = claim(d, mail("a", "x"));
    set(d, "{\"effect\": \"outside\"}");
    int64_t outside = claim(d, mail("b", "x"));
    set(d, "{\"effect\": \"keyed\"}");
    int64_t keyed_one = claim(d, mail("c", "x"));
    pass(d, 61 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_string_equal(state_of(d, "a"), "failed"); /* A3: each by the effect that it was claimed under */
    assert_string_equal(state_of(d, "b"), "unknown");
    assert_string_equal(state_of(d, "c"), "failed");
    sql(d, "BEGIN IMMEDIATE");
    effect(d, "z");
    assert_refused(d, finish(d, atomic, SEMEL_TRANSIENT), SEMEL_FENCED, "lease ran out");
    assert_refused(d, semel_inbox_renew(d->s, atomic, 0, &d->err), SEMEL_FENCED, "lease ran out");
    assert_refused(d, semel_inbox_release(d->s, atomic, &d->err), SEMEL_FENCED, "lease ran out");
    assert_refused(d, finish(d, outside, SEMEL_DONE), SEMEL_FENCED, "lease ran out");
    assert_refused(d, finish(d, keyed_one, SEMEL_DONE), SEMEL_FENCED, "lease ran out");
    sql(d, "COMMIT");
    assert_int_equal(effects(d, "z"), 1);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_attempt WHERE error_text LIKE 'refused under%'"), 3);
}

static void claim_is_refused_until_the_consumer_has_said_where_its_effect_is(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "{}");
    assert_fine(d, semel_consumer_set(d->s, "c", "{\"effect\": null}", &d->err));
    assert_refused(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err), SEMEL_INVALID, "set effect to outside");
    assert_string_equal(state_of(d, "a"), "absent");
    set(d, "{\"effect\": \"outside\"}");
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
    assert_int_equal(d->v.act, SEMEL_RUN);
}

static void expired_lease_of_an_outside_effect_is_unknown(void **state)
{
    /* I14, E2, T11 */
    struct handle *d = *state;
    size_t n;
    struct semel_msg m = mail("a", "x");
    set(d, "{\"effect\": \"outside\"}");
    claim(d, m);
    pass(d, 61 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_string_equal(state_of(d, "a"), "unknown");
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
    assert_verdict(&d->v, SEMEL_ACK, SEMEL_WHY_UNKNOWN, SEMEL_ROW_UNKNOWN);
}

static void released_message_counts_no_attempt(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    assert_fine(d, semel_inbox_release(d->s, claim(d, m), &d->err));
    assert_int_equal(sql_int(d, "SELECT attempts FROM semel_inbox"), 0);
    claim(d, m);
    assert_int_equal(d->v.attempt, 1);
}

static void joined_claim_and_finish_belong_to_the_caller(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "BEGIN IMMEDIATE");
    claim(d, m);
    assert_int_equal(sqlite3_get_autocommit(d->db), 0);
    sql(d, "ROLLBACK");
    assert_string_equal(state_of(d, "a"), "absent");
    int64_t token = claim(d, m);
    sql(d, "BEGIN IMMEDIATE");
    effect(d, "a");
    assert_fine(d, finish(d, token, SEMEL_DONE));
    sql(d, "ROLLBACK");
    assert_string_equal(state_of(d, "a"), "processing");
    sql(d, "BEGIN IMMEDIATE");
    effect(d, "a");
    assert_fine(d, finish(d, token, SEMEL_DONE)); /* effect and end in one transaction, under the token */
    sql(d, "COMMIT");
    assert_string_equal(state_of(d, "a"), "completed");
    assert_int_equal(effects(d, "a"), 1);
}

/* ---- stored work -------------------------------------------------------------------------------------- */

struct taken {
    struct handle *d;
    char ids[256];
    int64_t tokens[16];
    size_t n;
    bool end;
};

static void note(void *ctx, const struct semel_msg *msg, const struct semel_verdict *v)
{
    struct taken *t = ctx;
    size_t n = strlen(t->ids);
    assert_str(msg->consumer, "c");
    assert_int_equal(v->act, SEMEL_RUN);
    snprintf(t->ids + n, sizeof t->ids - n, "%.*s:%.*s:%d ", (int)msg->id.n, msg->id.p, (int)msg->payload.n,
             msg->payload.p, v->attempt);
    t->tokens[t->n++] = v->token;
    if (t->end)
        assert_fine(t->d, semel_inbox_finish(t->d->s, v->token, SEMEL_DONE, NOTHING, NOTHING, &t->d->err));
    assert_str(msg->consumer, "c"); /* the strings are still there */
}

static struct taken take(struct handle *d, size_t max, bool end)
{
    struct taken t = {.d = d, .end = end};
    size_t n = 77;
    assert_fine(d, semel_inbox_take(d->s, "c", max, 0, note, &t, &n, &d->err));
    assert_int_equal(n, t.n);
    return t;
}

static void put(struct handle *d, struct semel_msg m, enum semel_act act, enum semel_why why,
                enum semel_row_status state)
{
    assert_fine(d, semel_inbox_put(d->s, &m, &d->v, &d->err));
    assert_verdict(&d->v, act, why, state);
}

static void put_message_is_taken_once(void **state)
{
    struct handle *d = *state;
    put(d, mail("a", "one"), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_int_equal(sql_int(d, "SELECT attempts FROM semel_inbox"), 0);
    assert_int_equal(sql_int(d, "SELECT due_at FROM semel_inbox"), d->now_us);
    put(d, mail("a", "one"), SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_WAITING);
    put(d, mail("a", "two"), SEMEL_ACK, SEMEL_WHY_CONFLICT, SEMEL_ROW_WAITING);
    struct taken t = take(d, 10, false);
    assert_string_equal(t.ids, "a:one:1 ");
    assert_int_equal(take(d, 10, false).n, 0);
    assert_fine(d, finish(d, t.tokens[0], SEMEL_DONE));
    put(d, mail("a", "one"), SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_int_equal(take(d, 10, false).n, 0);
}

static void put_joins_the_open_transaction(void **state)
{
    struct handle *d = *state;
    sql(d, "BEGIN IMMEDIATE");
    put(d, mail("a", "x"), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    sql(d, "ROLLBACK");
    assert_string_equal(state_of(d, "a"), "absent");
    sql(d, "BEGIN IMMEDIATE");
    put(d, mail("a", "x"), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    sql(d, "COMMIT");
    assert_int_equal(take(d, 1, true).n, 1);
}

static void put_takes_its_business_key_when_it_starts(void **state)
{
    /* I10 */
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    a.business_key = b.business_key = semel_str("intent");
    put(d, a, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    put(d, b, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    assert_string_equal(take(d, 9, true).ids, "a:x:1 ");
}

static void put_needs_a_payload_that_is_kept(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    set(d, "{\"keep_payload\": \"never\"}");
    assert_refused(d, semel_inbox_put(d->s, &m, &d->v, &d->err), SEMEL_INVALID, "keep_payload");
    assert_int_equal(take(d, 9, false).n, 0);
}

static void messages_of_one_key_are_taken_one_at_a_time(void **state)
{
    /* I13 */
    struct handle *d = *state;
    put(d, keyed("a1", "a", SEMEL_NONE), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    put(d, keyed("a2", "a", SEMEL_NONE), SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    put(d, keyed("b1", "b", SEMEL_NONE), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    struct taken t = take(d, 10, false);
    assert_string_equal(t.ids, "a1:a1:1 b1:b1:1 ");
    assert_fine(d, finish(d, t.tokens[0], SEMEL_TRANSIENT));
    assert_fine(d, finish(d, t.tokens[1], SEMEL_DONE));
    assert_int_equal(take(d, 10, false).n, 0);
    pass(d, 20 * SECOND_US);
    assert_string_equal(take(d, 10, true).ids, "a1:a1:2 ");
    assert_string_equal(take(d, 10, true).ids, "a2:a2:1 ");
}

static void failed_message_is_taken_when_it_is_due(void **state)
{
    /* I6 */
    struct handle *d = *state;
    assert_fine(d, finish(d, claim(d, mail("a", "x")), SEMEL_TRANSIENT));
    assert_int_equal(take(d, 10, true).n, 0);
    pass(d, 20 * SECOND_US);
    assert_string_equal(take(d, 10, true).ids, "a:x:2 ");
    assert_string_equal(state_of(d, "a"), "completed");
}

static void close_and_note(void *ctx, const struct semel_msg *msg, const struct semel_verdict *v)
{
    semel_close(((struct taken *)ctx)->d->s);
    note(ctx, msg, v);
}

static void taken_cannot_close_the_handle_that_calls_it(void **state)
{
    struct handle *d = *state;
    struct taken t = {.d = d, .end = true};
    struct semel_msg a = mail("a", "1"), b = mail("b", "2");
    size_t n;
    assert_fine(d, semel_inbox_put(d->s, &a, &d->v, &d->err));
    assert_fine(d, semel_inbox_put(d->s, &b, &d->v, &d->err));
    assert_fine(d, semel_inbox_take(d->s, "c", 10, 0, close_and_note, &t, &n, &d->err));
    assert_int_equal(n, 2);
    assert_string_equal(state_of(d, "b"), "completed");
}

static void take_joins_the_open_transaction(void **state)
{
    struct handle *d = *state;
    put(d, mail("a", "x"), SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_WAITING);
    sql(d, "BEGIN IMMEDIATE");
    assert_int_equal(take(d, 10, false).n, 1);
    sql(d, "ROLLBACK");
    assert_string_equal(state_of(d, "a"), "waiting");
    assert_int_equal(take(d, 10, false).n, 1);
}

static void take_refuses_what_makes_no_sense(void **state)
{
    struct handle *d = *state;
    struct taken t = {.d = d};
    assert_refused(d, semel_inbox_take(d->s, "c", 0, 0, note, &t, NULL, &d->err), SEMEL_INVALID, "max is 0");
    assert_refused(d, semel_inbox_take(d->s, "c", 10001, 0, note, &t, NULL, &d->err), SEMEL_INVALID, "max");
    assert_refused(d, semel_inbox_take(d->s, NULL, 1, 0, note, &t, NULL, &d->err), SEMEL_INVALID, "consumer");
    assert_refused(d, semel_inbox_take(d->s, "c", 1, 0, NULL, &t, NULL, &d->err), SEMEL_INVALID, "taken");
    assert_refused(d, semel_inbox_take(d->s, "c", 1, -1, note, &t, NULL, &d->err), SEMEL_INVALID, "lease_ms");
}

static void remembered_claims_are_bounded(void **state)
{
    struct handle *d = *state;
    char id[16];
    int64_t first = 0;
    for (int i = 0; i <= SEMEL_CLAIMS_MAX; i++) {
        snprintf(id, sizeof id, "m%d", i);
        int64_t token = claim(d, mail(id, "x"));
        first = i == 0 ? token : first;
    }
    assert_int_equal(d->s->claims.n, SEMEL_CLAIMS_MAX);
    assert_fine(d, finish(d, first, SEMEL_DONE)); /* forgotten by the handle, not by the store */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(claim_is_committed_before_anything_runs),
        ON_BOTH(finished_claim_is_completed_with_its_outcome),
        ON_OWN(claimed_message_is_busy_for_others),
        ON_OWN(finish_refuses_what_it_cannot_keep),
        ON_OWN(lease_of_the_call_counts),
        ON_BOTH(renewed_lease_outlives_recovery),
        ON_BOTH(late_worker_is_fenced_and_its_word_is_kept),
        ON_OWN(token_that_nobody_has_is_fenced),
        ON_BOTH(token_of_a_claim_that_was_rolled_back_is_never_given_again),
        ON_OWN(token_that_a_client_rounded_is_an_error_that_says_so),
        ON_OWN(tokens_of_a_message_rise_although_the_clock_steps_back),
        ON_BOTH(late_done_keeps_the_effect_from_being_committed),
        ON_BOTH(late_end_of_anything_else_is_a_value),
        ON_OWN(claim_is_refused_until_the_consumer_has_said_where_its_effect_is),
        ON_OWN(expired_lease_of_an_outside_effect_is_unknown),
        ON_OWN(released_message_counts_no_attempt),
        ON_BOTH(joined_claim_and_finish_belong_to_the_caller),
        ON_BOTH(put_message_is_taken_once),
        ON_BOTH(put_joins_the_open_transaction),
        ON_OWN(put_takes_its_business_key_when_it_starts),
        ON_OWN(put_needs_a_payload_that_is_kept),
        ON_BOTH(messages_of_one_key_are_taken_one_at_a_time),
        ON_OWN(failed_message_is_taken_when_it_is_due),
        ON_OWN(taken_cannot_close_the_handle_that_calls_it),
        ON_BOTH(take_joins_the_open_transaction),
        ON_OWN(take_refuses_what_makes_no_sense),
        ON_OWN(remembered_claims_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
