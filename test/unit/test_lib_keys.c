/* SPDX-License-Identifier: MIT
 *
 * test_lib_keys.c: idempotency keys by the C calls, on SQLite and PostgreSQL. The argument is the store. The rules
 * themselves are in spec/keys.txt.
 */
#include "unit/handle.h"
#ifdef SEMEL_WITH_POSTGRES
#include "unit/handle_pg.h"
#endif

#define NOTHING semel_str(NULL)
#define PAIRS "[[\"a\",\"1\"],[\"a\",\"2\"]]"

static struct semel_key_request request(const char *fingerprint)
{
    struct semel_key_request r;
    semel_key_request_init(&r);
    r.scope = semel_str("alice");
    r.key = semel_str("key-00001");
    r.fingerprint = semel_str(fingerprint);
    return r;
}

static struct semel_key_verdict key_begin(struct handle *d, const char *fingerprint)
{
    struct semel_key_request r = request(fingerprint);
    struct semel_key_verdict v;
    assert_fine(d, semel_key_begin(d->s, &r, &v, &d->err));
    return v;
}

static struct semel_key_verdict key_claim(struct handle *d, enum semel_key_effect effect)
{
    struct semel_key_request r = request("f");
    struct semel_key_verdict v;
    assert_fine(d, semel_key_claim(d->s, &r, effect, 60000, &v, &d->err));
    return v;
}

static semel_status finish(struct handle *d, int64_t token)
{
    return semel_key_finish(d->s, token, 201, semel_str(PAIRS), semel_str("body"), &d->err);
}

/* A1 A3 A8 P101 */
static void answer_is_committed_with_its_effect_and_replayed(void **state)
{
    struct handle *d = *state;
    sql(d, "BEGIN");
    struct semel_key_verdict v = key_begin(d, "f");
    assert_int_equal(v.act, SEMEL_KEY_RUN);
    effect(d, "a");
    assert_int_equal(semel_pending(d->s), 1);
    assert_fine(d, finish(d, v.token));
    assert_int_equal(semel_pending(d->s), 0);
    sql(d, "COMMIT");
    sql(d, "BEGIN");
    v = key_begin(d, "f");
    assert_int_equal(v.act, SEMEL_KEY_REPLAY);
    assert_int_equal(v.status, 201);
    assert_str(v.headers, PAIRS);
    assert_str(v.body, "body");
    assert_int_equal(v.token, SEMEL_NONE);
    assert_int_equal(key_begin(d, "g").act, SEMEL_KEY_MISMATCH);
    sql(d, "COMMIT");
    assert_int_equal(effects(d, NULL), 1);
}

/* What this transaction has written: changes of SQLite, or the number that PostgreSQL has given it. */
static int64_t written(struct handle *d)
{
    return handle_db == NULL ? sqlite3_total_changes64(d->db)
                             : sql_int(d, "SELECT coalesce(pg_current_xact_id_if_assigned()::text::bigint, 0)");
}

/* A1 A10 */
static void replay_writes_nothing(void **state)
{
    struct handle *d = *state;
    sql(d, "BEGIN");
    assert_fine(d, finish(d, key_begin(d, "f").token));
    sql(d, "COMMIT");
    int64_t before = written(d);
    sql(d, "BEGIN");
    assert_int_equal(key_begin(d, "f").act, SEMEL_KEY_REPLAY);
    assert_int_equal(written(d), before);
    sql(d, "COMMIT");
}

/* A3 P38 */
static void begin_without_its_end_cannot_commit(void **state)
{
    struct handle *d = *state;
    sql(d, "BEGIN");
    assert_int_equal(key_begin(d, "f").act, SEMEL_KEY_RUN);
    effect(d, "a");
    assert_commit_refused(d);
    assert_int_equal(effects(d, NULL), 0);
    assert_int_equal(all_keys(d), 0);
}

/* A begin that a savepoint has undone is noticed, by the next call at the latest. */
static void undone_begin_lets_the_transaction_commit(void **state)
{
    struct handle *d = *state;
    sql(d, "BEGIN");
    sql(d, "SAVEPOINT s");
    key_begin(d, "f");
    sql(d, "ROLLBACK TO s");
    struct semel_key_verdict v = key_begin(d, "g");
    assert_int_equal(v.act, SEMEL_KEY_RUN);
    assert_int_equal(semel_pending(d->s), 1);
    assert_fine(d, semel_key_fail(d->s, v.token, SEMEL_KEY_END_RELEASED, NOTHING, &d->err));
    sql(d, "COMMIT");
    assert_int_equal(all_keys(d), 0);
}

/* P59 P80: the first savepoint is older than the begin. */
static void end_that_a_savepoint_took_back_is_to_be_written_again(void **state)
{
    struct handle *d = *state;
    for (int again = 0; again <= 1; again++) {
        sql(d, "BEGIN");
        sql(d, "SAVEPOINT first");
        struct semel_key_verdict v = key_begin(d, "f");
        assert_int_equal(v.act, SEMEL_KEY_RUN);
        effect(d, "a");
        sql(d, "SAVEPOINT s");
        if (again)
            assert_fine(d, finish(d, v.token));
        else
            assert_fine(d, semel_key_fail(d->s, v.token, SEMEL_KEY_END_UNKNOWN, NOTHING, &d->err));
        sql(d, "ROLLBACK TO s");
        if (again)
            assert_fine(d, finish(d, v.token));
        if (again)
            sql(d, "COMMIT");
        else
            assert_commit_refused(d);
        assert_int_equal(effects(d, NULL), again);
        assert_int_equal(all_keys(d), again);
    }
}

/* It has no part in what was begun. */
static void end_of_a_claim_is_undone_without_a_word(void **state)
{
    struct handle *d = *state;
    int64_t token = key_claim(d, SEMEL_KEY_OUTSIDE).token;
    sql(d, "BEGIN");
    struct semel_key_request r = request("f");
    struct semel_key_verdict v;
    r.key = semel_str("key-00002");
    assert_fine(d, semel_key_begin(d->s, &r, &v, &d->err));
    sql(d, "SAVEPOINT s");
    assert_fine(d, finish(d, token));
    assert_fine(d, finish(d, v.token));
    sql(d, "ROLLBACK TO s");
    assert_fine(d, finish(d, v.token));
    assert_int_equal(semel_pending(d->s), 0);
    sql(d, "COMMIT");
    assert_fine(d, finish(d, token));
}

/* A9 P80 */
static void late_finish_of_an_atomic_claim_prevents_the_commit(void **state)
{
    struct handle *d = *state;
    int64_t token = key_claim(d, SEMEL_KEY_ATOMIC).token;
    pass(d, 61 * SECOND_US);
    struct semel_key_verdict again = key_claim(d, SEMEL_KEY_ATOMIC);
    assert_int_equal(again.act, SEMEL_KEY_RUN);
    assert_str(again.why, "retry");
    sql(d, "BEGIN");
    effect(d, "late");
    assert_int_equal(finish(d, token), SEMEL_FENCED);
    assert_commit_refused(d);
    sql(d, "BEGIN");
    effect(d, "right");
    assert_fine(d, finish(d, again.token));
    sql(d, "COMMIT");
    assert_int_equal(effects(d, "late"), 0);
    assert_int_equal(effects(d, "right"), 1);
}

/* A7 P47 */
static void expired_claim_is_unknown_until_its_late_answer(void **state)
{
    struct handle *d = *state;
    size_t n = 0;
    int64_t token = key_claim(d, SEMEL_KEY_OUTSIDE).token;
    assert_int_equal(key_claim(d, SEMEL_KEY_OUTSIDE).act, SEMEL_KEY_BUSY);
    assert_fine(d, semel_key_renew(d->s, token, 120000, &d->err));
    pass(d, 121 * SECOND_US);
    struct semel_key_verdict v = key_claim(d, SEMEL_KEY_OUTSIDE);
    assert_int_equal(v.act, SEMEL_KEY_UNKNOWN);
    assert_str(v.why, "lease_expired");
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 1);
    assert_int_equal(semel_key_renew(d->s, token, 60000, &d->err), SEMEL_FENCED);
    assert_fine(d, finish(d, token));
    assert_int_equal(key_claim(d, SEMEL_KEY_OUTSIDE).act, SEMEL_KEY_REPLAY);
    assert_int_equal(finish(d, token), SEMEL_FENCED);
}

/* The store of a handle whose next commit is answered by nobody. */
static struct {
    const struct semel_store_ops *real;
    struct semel_store_ops ops;
    bool done; /* it was done nevertheless */
    int left;
} doubt;

static semel_status commit_in_doubt(struct semel_store *store, struct semel_error *err)
{
    if (doubt.left == 0)
        return doubt.real->commit(store, err);
    doubt.left--;
    if (doubt.done)
        assert_int_equal(doubt.real->commit(store, err), SEMEL_OK);
    else
        doubt.real->rollback(store);
    return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_ENVIRONMENT, "the connection was lost during commit");
}

static void doubt_commits(struct handle *d, int n, bool done)
{
    doubt.real = d->s->store->ops;
    doubt.ops = *doubt.real;
    doubt.ops.commit = commit_in_doubt;
    doubt.done = done;
    doubt.left = n;
    d->s->store->ops = &doubt.ops;
}

static semel_status claim_in_doubt(struct handle *d, int n, bool done, struct semel_key_verdict *ret)
{
    struct semel_key_request r = request("f");
    doubt_commits(d, n, done);
    semel_status status = semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 60000, ret, &d->err);
    d->s->store->ops = doubt.real;
    d->db = handle_db == NULL ? semel_native(d->s) : NULL;
    return status;
}

/* P98 */
static void claim_whose_commit_is_in_doubt_is_the_callers_or_nobodys(void **state)
{
    struct handle *d = *state;
    struct semel_key_verdict v;
    assert_refused(d, claim_in_doubt(d, 1, false, &v), SEMEL_RETRY, "nothing was claimed");
    assert_int_equal(all_keys(d), 0);
    assert_fine(d, claim_in_doubt(d, 1, true, &v)); /* it was done, and is not left to become unknown */
    assert_int_equal(v.act, SEMEL_KEY_RUN);
    pass(d, 59 * SECOND_US);
    assert_int_equal(key_claim(d, SEMEL_KEY_OUTSIDE).act, SEMEL_KEY_BUSY);
    assert_fine(d, finish(d, v.token));
    assert_refused(d, claim_in_doubt(d, 1, true, &v), SEMEL_RETRY, "repeat the call"); /* an answer: read again */
    assert_int_equal(key_claim(d, SEMEL_KEY_OUTSIDE).act, SEMEL_KEY_REPLAY);
}

/* P98: the look at it may fail, too. */
static void claim_that_cannot_be_looked_at_again_stays_in_doubt(void **state)
{
    struct handle *d = *state;
    struct semel_key_verdict v;
    assert_refused(d, claim_in_doubt(d, 2, true, &v), SEMEL_UNKNOWN, "lost during commit");
    assert_int_equal(key_claim(d, SEMEL_KEY_OUTSIDE).act, SEMEL_KEY_BUSY);
}

static void unknown_says_why(void **state)
{
    struct handle *d = *state;
    int64_t token = key_claim(d, SEMEL_KEY_OUTSIDE).token;
    assert_fine(d, semel_key_fail(d->s, token, SEMEL_KEY_END_UNKNOWN, semel_str("time\nout"), &d->err));
    struct semel_key_verdict v = key_claim(d, SEMEL_KEY_OUTSIDE);
    assert_int_equal(v.act, SEMEL_KEY_UNKNOWN);
    assert_int_equal(v.why.n, 8);
}

/* A4 */
static void bad_input_is_refused(void **state)
{
    struct handle *d = *state;
    struct semel_key_request r = request("f");
    struct semel_key_verdict v;
    r.key = semel_str("1234567");
    assert_int_equal(semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 1000, &v, &d->err), SEMEL_INVALID);
    assert_string_equal(d->err.text, "key has 7 characters; it must have 8 to 255");
    r = request("f");
    r.answer_ms = 1000;
    assert_int_equal(semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 1000, &v, &d->err), SEMEL_INVALID);
    r = request("f");
    r.keep_ms = INT64_MAX;
    assert_int_equal(semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 1000, &v, &d->err), SEMEL_INVALID);
    r = request("");
    assert_int_equal(semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 1000, &v, &d->err), SEMEL_INVALID);
    r = request("f");
    assert_int_equal(semel_key_claim(d->s, &r, (enum semel_key_effect)7, 1000, &v, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 0, &v, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 86400001, &v, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_claim(d->s, NULL, SEMEL_KEY_OUTSIDE, 1000, &v, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 1000, NULL, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_begin(d->s, &r, &v, &d->err), SEMEL_INVALID); /* outside a transaction */
    assert_int_equal(semel_key_finish(d->s, 1, 199, NOTHING, NOTHING, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_finish(d->s, 1, 200, semel_str("{}"), NOTHING, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_finish(d->s, 0, 200, NOTHING, NOTHING, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_key_fail(d->s, 1, SEMEL_KEY_END_COMPLETED, NOTHING, &d->err), SEMEL_INVALID);
    r.key = semel_str("1731850000");
    assert_fine(d, semel_key_claim(d->s, &r, SEMEL_KEY_OUTSIDE, 1000, &v, &d->err));
    assert_true(v.key_is_time);
}

static void begun_keys_of_one_transaction_are_bounded(void **state)
{
    struct handle *d = *state;
    struct semel_key_request r = request("f");
    struct semel_key_verdict v;
    char key[32];
    sql(d, "BEGIN");
    for (int i = 0; i <= SEMEL_BEGUN_KEYS_MAX; i++) {
        snprintf(key, sizeof key, "key-%08d", i);
        r.key = semel_str(key);
        semel_status status = semel_key_begin(d->s, &r, &v, &d->err);
        assert_int_equal(status, i < SEMEL_BEGUN_KEYS_MAX ? SEMEL_OK : SEMEL_INVALID);
    }
    sql(d, "ROLLBACK");
    sql(d, "BEGIN"); /* where nobody reports the end of a transaction, the next call notices it */
    assert_int_equal(key_begin(d, "f").act, SEMEL_KEY_RUN);
    assert_int_equal(semel_pending(d->s), 1);
    sql(d, "ROLLBACK");
}

/* What both are is lost together, so that it is the caller's to choose. */
static void key_of_a_transaction_is_as_durable_as_its_effect(void **state)
{
    struct handle *d = *state;
    if (handle_db == NULL)
        skip(); /* SQLite has no such setting per transaction */
    sql(d, "BEGIN");
    sql(d, "SET LOCAL synchronous_commit = off");
    struct semel_key_verdict v = key_begin(d, "f");
    assert_int_equal(v.act, SEMEL_KEY_RUN);
    effect(d, "a");
    assert_fine(d, finish(d, v.token));
    sql(d, "COMMIT");
    assert_int_equal(key_claim(d, SEMEL_KEY_OUTSIDE).act, SEMEL_KEY_REPLAY);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(answer_is_committed_with_its_effect_and_replayed),
        ON_BOTH(replay_writes_nothing),
        ON_BOTH(begin_without_its_end_cannot_commit),
        ON_BOTH(undone_begin_lets_the_transaction_commit),
        ON_WRAPPED(end_that_a_savepoint_took_back_is_to_be_written_again),
        ON_BOTH(end_of_a_claim_is_undone_without_a_word),
        ON_BOTH(late_finish_of_an_atomic_claim_prevents_the_commit),
        ON_BOTH(expired_claim_is_unknown_until_its_late_answer),
        ON_FILE(claim_whose_commit_is_in_doubt_is_the_callers_or_nobodys),
        ON_FILE(claim_that_cannot_be_looked_at_again_stays_in_doubt),
        ON_OWN(unknown_says_why),
        ON_OWN(bad_input_is_refused),
        ON_OWN(begun_keys_of_one_transaction_are_bounded),
        ON_BOTH(key_of_a_transaction_is_as_durable_as_its_effect),
    };

    if (argc > 1 && strcmp(argv[1], "postgres") == 0) {
#ifdef SEMEL_WITH_POSTGRES
        handle_db = &handle_pg;
#else
        return 77;
#endif
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
