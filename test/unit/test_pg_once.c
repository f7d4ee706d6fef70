/* SPDX-License-Identifier: MIT
 *
 * test_pg_once.c: transactions of one call on PostgreSQL: begin, statements and commit in one round trip. What they do
 * is what three trips do, whatever is lost on the way.
 */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/keys.h"
#include "pg/proxy.h"
#include "unit/test_pg.h"

#define OWNER SEMEL_STR("me")
#define HOUR_US INT64_C(3600000000)

static struct semel_tokens tokens;
static struct semel_random rng;
static time_t slept_s;

/* For this program the machine has slept. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
    int failed = (int)syscall(SYS_clock_gettime, id, ret);
    if (id == CLOCK_BOOTTIME)
        ret->tv_sec += slept_s;
    return failed;
}

static struct semel_key_claim claim_of(const char *key)
{
    return (struct semel_key_claim){.want = {.scope = SEMEL_STR("alice"),
                                             .key = semel__str(key),
                                             .answer_us = 24 * HOUR_US,
                                             .keep_us = 24 * HOUR_US},
                                    .effect = SEMEL_EFFECT_OUTSIDE};
}

static bool look; /* at rows in the same trip */

static semel_status write_claims(struct world *w, struct semel_key_claim *claims, size_t n, int64_t now_us)
{
    const struct semel_key_batch batch = {.claims = claims,
                                          .n_claims = n,
                                          .look = look,
                                          .owner = OWNER,
                                          .tokens = &tokens,
                                          .rng = &rng,
                                          .arena = &w->arena};
    return w->store->ops->keys->write(w->store, &batch, now_us, &w->err);
}

/* One claim as all of a transaction; its status is that of the call, else that of the commit. */
static semel_status try_claim(struct world *w, struct semel_key_claim *claim)
{
    int64_t now_us = 0;
    semel_status status = semel_store_begin(w->store, SEMEL_TX_ONCE, &now_us, &w->err);
    if (status != SEMEL_OK)
        return status;
    claim->want.lease_until_us = now_us + HOUR_US;
    status = write_claims(w, claim, 1, now_us);
    if (status == SEMEL_OK)
        return semel_store_commit(w->store, &w->err);
    semel_store_rollback(w->store);
    return status;
}

static semel_status try_end(struct world *w, int64_t token, enum semel_key_end how, bool *ret_applied)
{
    struct semel_key_ending ending = {.token = token, .end = how, .code = 201};
    const struct semel_key_batch batch = {.ends = &ending, .n_ends = 1};
    int64_t now_us = 0;
    ok(w, semel_store_begin(w->store, SEMEL_TX_ONCE, &now_us, &w->err));
    semel_status status = w->store->ops->keys->write(w->store, &batch, now_us, &w->err);
    *ret_applied = ending.applied;
    if (status == SEMEL_OK)
        return semel_store_commit(w->store, &w->err);
    semel_store_rollback(w->store);
    return status;
}

static bool end(struct world *w, int64_t token)
{
    bool applied = false;
    ok(w, try_end(w, token, SEMEL_KEY_END_COMPLETED, &applied));
    return applied;
}

/* The first transaction of a connection asks for the time. */
static void warm_up(struct world *w)
{
    semel__random_seed_os(&rng);
    look = false;
    begin(w);
    semel_store_rollback(w->store);
}

static long long keys(void)
{
    return ask("SELECT count(*) FROM semel.idempotency");
}

static void claim_and_end_are_one_round_trip_each(void **state)
{
    struct world *w = *state; /* A10 */
    struct semel_key_claim first = claim_of("key-00001"), second = claim_of("key-00001");
    warm_up(w);
    int64_t trips = semel__pg_trips(w->store);
    ok(w, try_claim(w, &first));
    assert_int_equal(semel__pg_trips(w->store), trips + 1);
    assert_int_equal(first.act, SEMEL_KEY_RUN);
    assert_int_equal(ask("SELECT count(*) FROM semel.idempotency WHERE status = 'processing' AND "
                         "lease_until BETWEEN now() + interval '59 minutes' AND now() + interval '61 minutes'"),
                     1);
    assert_true(end(w, first.token));
    assert_int_equal(semel__pg_trips(w->store), trips + 2);
    assert_false(end(w, first.token));
    ok(w, try_claim(w, &second));
    assert_int_equal(second.act, SEMEL_KEY_REPLAY);
    assert_false(second.again);
}

/* A7: a lease that was reckoned by a clock that had stood still would be over when it begins. */
static void time_is_asked_for_after_the_machine_has_slept(void **state)
{
    struct world *w = *state;
    int64_t now_us;
    warm_up(w);
    int64_t trips = semel__pg_trips(w->store);
    slept_s += 600;
    ok(w, semel_store_begin(w->store, SEMEL_TX_ONCE, &now_us, &w->err));
    assert_int_equal(semel__pg_trips(w->store), trips + 1);
    semel_store_rollback(w->store);
}

/* A10: whoever expects it has it with the first trip. */
static void row_that_is_there_costs_a_trip_more_unless_it_is_expected(void **state)
{
    struct world *w = *state;
    struct semel_key_claim first = claim_of("key-00001"), claims[2] = {first, claim_of("key-00002")};
    int64_t now_us = 0;
    warm_up(w);
    ok(w, try_claim(w, &first));
    for (int i = 0; i < 2; i++) {
        int64_t trips = semel__pg_trips(w->store);
        look = i > 0;
        ok(w, semel_store_begin(w->store, SEMEL_TX_ONCE, &now_us, &w->err));
        claims[0].want.lease_until_us = claims[1].want.lease_until_us = now_us + HOUR_US;
        ok(w, write_claims(w, claims, 2, now_us));
        ok(w, semel_store_commit(w->store, &w->err));
        assert_int_equal(semel__pg_trips(w->store), trips + (look ? 1 : 2));
        assert_int_equal(claims[0].act, SEMEL_KEY_BUSY);
        assert_true(claims[0].row.token == first.token);
        assert_int_equal(claims[1].act, look ? SEMEL_KEY_BUSY : SEMEL_KEY_RUN);
    }
}

static struct {
    struct sql_driver driver;
    const struct sql_driver *real;
    int flushes; /* until the server ends the session */
} cut;

static semel_status flush_or_cut(struct sql *db, struct semel_error *err)
{
    if (--cut.flushes == 0) {
        sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'semel'");
        while (ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'semel'") > 0)
            continue;
    }
    return cut.real->flush(db, err);
}

/* P15, P98: what was inserted is committed when the connection is lost on the way to the rows of others. */
static void rows_that_cannot_be_read_leave_the_claims_in_doubt(void **state)
{
    struct world *w = *state;
    struct semel_key_claim first = claim_of("key-00001"), claims[2] = {first, claim_of("key-00002")};
    struct sql *db = semel__db_of(w->store);
    int64_t now_us = 0;
    warm_up(w);
    ok(w, try_claim(w, &first));
    cut.real = db->driver;
    cut.driver = *cut.real;
    cut.driver.flush = flush_or_cut;
    cut.flushes = 2;
    ok(w, semel_store_begin(w->store, SEMEL_TX_ONCE, &now_us, &w->err));
    db->driver = &cut.driver;
    claims[0].want.lease_until_us = claims[1].want.lease_until_us = now_us + HOUR_US;
    assert_int_equal(write_claims(w, claims, 2, now_us), SEMEL_UNKNOWN);
    assert_int_equal(w->err.status, SEMEL_UNKNOWN);
    db->driver = cut.real;
    semel_store_rollback(w->store);
    assert_int_equal(keys(), 2);
}

/* P64: the limits are the session's from then on, and it is not asked again at once. */
static void limits_of_the_first_transaction_hold_for_the_session(void **state)
{
    struct world *w = *state;
    struct semel_key_claim claim = claim_of("key-00001"), more = claim_of("key-00002");
    warm_up(w);
    ok(w, try_claim(w, &claim));
    ok(w, try_claim(w, &more));
    assert_true(handler(w, "SELECT 1 / (current_setting('lock_timeout') <> '0' AND current_setting('statement_timeout')"
                           " = '1min' AND current_setting('idle_in_transaction_session_timeout') = '1min')::integer"));
}

/* P15, P98: none of it, or all of it; that is not known. */
static void trip_without_an_answer_is_unknown_whatever_came_of_it(void **state)
{
    static const enum pg_proxy_order orders[] = {PG_PROXY_CUT_REQUEST, PG_PROXY_CUT_ANSWER};
    struct world *w = *state;
    struct pg_proxy proxy;
    char url[PG_SERVER_TEXT];
    pg_proxy_start(&proxy, world_server.port);
    snprintf(url, sizeof(url), "postgres://postgres@127.0.0.1:%d/t", proxy.port);
    semel_store_close(w->store);
    w->store = NULL;
    ok(w, semel_store_open(&w->store, linked, url, &usual, &w->err));
    for (size_t i = 0; i < COUNT(orders); i++) {
        struct semel_key_claim known = claim_of(i == 0 ? "known-0001" : "known-0002");
        struct semel_key_claim claim = claim_of("key-00001");
        warm_up(w);
        ok(w, try_claim(w, &known));
        pg_proxy_order(&proxy, orders[i], 0);
        assert_int_equal(try_claim(w, &claim), SEMEL_UNKNOWN);
        assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
        assert_true(claim.token > 0);
        assert_int_equal(semel_store_begin(w->store, SEMEL_TX_ONCE, &(int64_t){0}, &w->err), SEMEL_CLOSED);
        ok(w, semel_store_reopen(w->store, &w->err));
        assert_int_equal(ask("SELECT count(*) FROM semel.idempotency WHERE key = 'key-00001'"), i);
    }
    pg_proxy_done(&proxy);
}

/* P72 */
static void trip_that_would_not_be_durable_is_refused_and_writes_nothing(void **state)
{
    struct world *w = *state;
    static const enum semel_key_end ends[] = {SEMEL_KEY_END_COMPLETED, SEMEL_KEY_END_RELEASED, SEMEL_KEY_END_UNKNOWN};
    struct semel_key_claim known = claim_of("known-0001"), claim = claim_of("key-00001");
    warm_up(w);
    ok(w, try_claim(w, &known));
    assert_true(handler(w, "SET synchronous_commit = off"));
    assert_int_equal(try_claim(w, &claim), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_non_null(strstr(w->err.text, "synchronous_commit"));
    for (size_t i = 0; i < COUNT(ends); i++) {
        assert_int_equal(try_end(w, known.token, ends[i], &(bool){false}), SEMEL_INVALID);
        assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
    }
    assert_int_equal(keys(), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.idempotency WHERE status = 'processing'"), 1);
    assert_true(handler(w, "SET synchronous_commit = on"));
    ok(w, try_claim(w, &claim));
    assert_int_equal(keys(), 2);
}

static void statement_that_fails_leaves_nothing_and_a_usable_connection(void **state)
{
    struct world *w = *state;
    struct semel_key_claim claim = claim_of("key-00001");
    warm_up(w);
    sql("ALTER TABLE semel.idempotency ADD CONSTRAINT never CHECK (key <> 'key-00001')");
    assert_int_equal(try_claim(w, &claim), SEMEL_INVALID);
    assert_false(w->store->ended);
    sql("ALTER TABLE semel.idempotency DROP CONSTRAINT never");
    ok(w, try_claim(w, &claim));
    assert_int_equal(claim.act, SEMEL_KEY_RUN);
}

/* A row that the first statements do not insert is taken over by a transaction of its own. */
static void row_that_may_run_again_is_left_to_another_transaction(void **state)
{
    struct world *w = *state;
    struct semel_key_claim claim = claim_of("key-00001");
    int64_t now_us = 0;
    warm_up(w);
    ok(w, try_claim(w, &claim));
    assert_true(end(w, claim.token));
    sql("UPDATE semel.idempotency SET key_until = now() - interval '1 day', answer_until = now() - interval '1 day'");
    claim = claim_of("key-00001");
    ok(w, try_claim(w, &claim));
    assert_true(claim.again && claim.act != SEMEL_KEY_RUN);
    assert_int_equal(ask("SELECT count(*) FROM semel.idempotency WHERE status = 'completed'"), 1);
    ok(w, semel_store_begin(w->store, SEMEL_TX_BARE, &now_us, &w->err));
    claim.want.lease_until_us = now_us + HOUR_US;
    ok(w, write_claims(w, &claim, 1, now_us));
    ok(w, semel_store_commit(w->store, &w->err));
    assert_true(claim.act == SEMEL_KEY_RUN && !claim.again);
}

/* Damage is found when the answer is read: the row beside it is there by then, and whoever asked is told so. */
static void damage_that_is_read_behind_the_commit_does_not_hide_it(void **state)
{
    struct world *w = *state;
    struct semel_key_claim claims[2] = {claim_of("key-00001"), claim_of("key-00002")};
    int64_t now_us = 0;
    warm_up(w);
    ok(w, try_claim(w, &claims[0]));
    sql("UPDATE semel.idempotency SET token = -5");
    ok(w, semel_store_begin(w->store, SEMEL_TX_ONCE, &now_us, &w->err));
    claims[1].want.lease_until_us = now_us + HOUR_US;
    assert_int_equal(write_claims(w, claims, 2, now_us), SEMEL_INVALID);
    assert_true(w->store->ended);
    semel_store_rollback(w->store);
    assert_int_equal(keys(), 2);
}

int main(void)
{
#define OPEN(test) cmocka_unit_test_setup_teardown(test, opened, world_teardown)
    const struct CMUnitTest tests[] = {
        OPEN(claim_and_end_are_one_round_trip_each),
        OPEN(time_is_asked_for_after_the_machine_has_slept),
        OPEN(row_that_is_there_costs_a_trip_more_unless_it_is_expected),
        OPEN(rows_that_cannot_be_read_leave_the_claims_in_doubt),
        OPEN(limits_of_the_first_transaction_hold_for_the_session),
        OPEN(trip_without_an_answer_is_unknown_whatever_came_of_it),
        OPEN(trip_that_would_not_be_durable_is_refused_and_writes_nothing),
        OPEN(statement_that_fails_leaves_nothing_and_a_usable_connection),
        OPEN(row_that_may_run_again_is_left_to_another_transaction),
        OPEN(damage_that_is_read_behind_the_commit_does_not_hide_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
