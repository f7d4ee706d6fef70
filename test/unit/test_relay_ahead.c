/* SPDX-License-Identifier: MIT
 *
 * test_relay_ahead.c: what the relay reads, and deletes, while a call to the sink is on its way. Only PostgreSQL can.
 */
#include "relay_rig.h"

#include <stdlib.h>

#define KEYS 50

/* Events e1, e2 ... of the aggregates k0, k1 ... in turn, committed at once. */
static void put_many(PGconn *conn, int from, int n)
{
    char text[320];
    snprintf(text, sizeof text,
             "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), "
             "'order', 'k' || i %% %d, 'e' || i, '1' FROM generate_series(%d, %d) AS i ORDER BY i",
             KEYS, from, from + n - 1);
    sql(conn, text);
}

/* The same of an aggregate k0 in the shard of the given one. */
static void put_beside(PGconn *conn, const char *aggregate, int from, int n)
{
#define SHARD_OF(text) "(get_byte(decode(md5(" text "), 'hex'), 0) & 63)"
    char text[640];
    snprintf(text, sizeof text,
             "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), "
             "(SELECT 't' || j FROM generate_series(1, 5000) AS j WHERE " SHARD_OF("'t' || j || '/k0'") " = " SHARD_OF(
                 "'order/%s'") " LIMIT 1), 'k0', 'e' || i, '1' FROM generate_series(%d, %d) AS i ORDER BY i",
             aggregate, from, from + n - 1);
    sql(conn, text);
#undef SHARD_OF
}

/* How many different events of put_many came; those of each aggregate in the order of their numbers. */
static size_t count_in_order(void)
{
    int last[KEYS] = {0};
    size_t n = 0;
    for (size_t i = 0; i < rig.sink.n; i++) {
        const struct got *got = &rig.sink.got[i];
        if (got->key[0] != 'k' || got->type[0] != 'e')
            continue;
        const int key = (int)strtol(got->key + 1, NULL, 10), number = (int)strtol(got->type + 1, NULL, 10);
        bool again = false;
        for (size_t k = 0; !again && number <= last[key] && k < i; k++)
            again = strcmp(rig.sink.got[k].id, got->id) == 0;
        if (again)
            continue;
        assert_true(number > last[key]);
        assert_false(got->tombstone);
        last[key] = number;
        n++;
    }
    return n;
}

static void rows_of(size_t rows)
{
    struct semel_relay_options options = rig.options;
    options.rows = rows;
    again_with(options);
}

static void step_until_empty(void)
{
    for (int i = 0; i < 400 && count_in("", "true") > 0; i++)
        steps(1);
    assert_int_equal(count_in("", "true"), 0);
}

static void step_until_ahead(void)
{
    for (int i = 0; i < 20 && semel__relay_counts(rig.relay)->ahead == 0; i++)
        step_of(rig.relay);
    assert_int_equal(semel__relay_counts(rig.relay)->ahead, 1);
}

/* O5, O7. A large event among small ones is read whole. */
static void backlog_is_read_ahead_in_order_and_nothing_comes_twice(void **state)
{
    (void)state;
    PGconn *conn = session();
    rig.options.keep_us = 3600 * SECOND;
    rows_of(100);
    put_many(conn, 1, 1500);
    sql(conn, "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload) "
              "SELECT gen_random_uuid(), 'order', 'k1', 'e1501', convert_to(repeat('x', 200000), 'UTF8')");
    put_many(conn, 1502, 500);
    step_until_empty();
    assert_int_equal(rig.sink.n, 2001);
    assert_int_equal(count_in_order(), 2001);
    assert_int_equal(count_in("_sent", "true"), 2001);
    assert_in_range(semel__relay_counts(rig.relay)->ahead, 5, 100);
    rig.options.one_by_one = true; /* a repeat would make an aggregate go back */
    rows_of(100);
    rig.sink.n = 0;
    put_many(conn, 1, 500);
    pass(16 * SECOND);
    step_until_empty();
    assert_int_equal(count_in_order(), 500);
    assert_int_equal(semel__relay_counts(rig.relay)->ahead, 0);
    PQfinish(conn);
}

/* O5, P69: what was read behind a refused event does not overtake it. */
static void refused_event_is_not_overtaken_by_what_was_read_ahead(void **state)
{
    (void)state;
    PGconn *conn = session();
    int n = 0;
    rows_of(100);
    for (int i = 1; i <= 9; i++) { /* behind the refused one each call has one */
        const int between = i <= 5 ? 150 : 60;
        char type[8];
        put_beside(conn, "x", 1 + n, between);
        n += between;
        snprintf(type, sizeof type, "x%d", i);
        put_by(conn, "x", type);
    }
    rig.sink.refuse = "x5";
    step_until_empty();
    assert_int_equal(count_in_order(), n);
    assert_string_equal(got_of(&rig.sink, "x"), "x1 x2 x3 x4");
    rig.sink.refuse = NULL;
    for (int i = 0; i < 60 && count_in("_aside", "true") > 0; i++) {
        pass(10 * SECOND);
        steps(1);
    }
    assert_string_equal(got_of(&rig.sink, "x"), "x1 x2 x3 x4 x5 x6 x7 x8 x9");
    assert_true(semel__relay_counts(rig.relay)->ahead > 0);
    PQfinish(conn);
}

static PGconn *late, *busy;
static size_t late_at;

static void end_late(void)
{
    if (late == NULL || rig.sink.calls < late_at)
        return;
    sql(late, "COMMIT");
    put_by(busy, "late", "l2");
    PQfinish(late);
    late = NULL;
}

/* O5, P1, P70: a lower number commits while a call is on its way, and what is behind it is read ahead. */
static void lower_number_that_commits_during_a_call_is_not_overtaken(void **state)
{
    (void)state;
    busy = session();
    for (size_t at = 1; at <= 13; at += 3) {
        late = session();
        rows_of(100);
        rig.sink.n = rig.sink.calls = 0;
        pass(16 * SECOND);
        sql(late, "BEGIN");
        put_by(late, "late", "l1");
        put_beside(busy, "late", 1, 2000);
        steps(2);
        assert_int_equal(semel__relay_counts(rig.relay)->ahead, 0); /* nothing is proven yet */
        pass(2 * SECOND);
        late_at = rig.sink.calls + at;
        rig.sink.during = end_late;
        for (int i = 0; i < 100 && (late != NULL || count_in("", "true") > 0); i++)
            steps(1);
        rig.sink.during = NULL;
        assert_null(late);
        assert_string_equal(got_of(&rig.sink, "late"), "l1 l2");
        assert_int_equal(count_in_order(), 2000);
        assert_int_equal(count_in("", "true"), 0);
        assert_true(at < 4 || semel__relay_counts(rig.relay)->ahead > 0);
        assert_ok(rig.world, semel__relay_leave(rig.relay, &rig.world->err));
    }
    PQfinish(busy);
}

/* O2, O6: a relay that leaves deletes what was confirmed; one that dies leaves it to be sent again. */
static void confirmed_events_are_deleted_before_the_shards_are_given_back(void **state)
{
    (void)state;
    PGconn *conn = session();
    rows_of(100);
    put_many(conn, 1, 1000);
    step_until_ahead();
    assert_true(count_in("", "true") > 1000 - (int64_t)rig.sink.n);
    assert_ok(rig.world, semel__relay_leave(rig.relay, &rig.world->err));
    assert_int_equal(count_in("", "true"), 1000 - (int64_t)rig.sink.n);
    again_with(rig.options);
    step_until_ahead();
    const size_t before = rig.sink.n;
    again_with(rig.options); /* it dies */
    pass(16 * SECOND);
    step_until_empty();
    assert_int_equal(count_in_order(), 1000);
    assert_in_range(rig.sink.n, 1001, 1000 + before);
    PQfinish(conn);
}

/* O6: what was confirmed is deleted before a relay that joins gets its shards: nothing comes twice. */
static void confirmed_events_are_deleted_before_shards_are_given_away(void **state)
{
    (void)state;
    PGconn *conn = session();
    char why[SEMEL_RELAY_WHY];
    rows_of(100);
    put_many(conn, 1, 1000);
    rig.other = relay_on(rig.world->other, &rig.other_sink, "second");
    step_until_ahead();
    step_of(rig.other); /* it joins, and owns nothing yet */
    pass(6 * SECOND);
    step_of(rig.relay);
    assert_int_equal(semel__relay_owns(rig.relay, why), 32);
    put_many(conn, 1001, 500);
    for (int i = 0; i < 200 && count_in("", "true") > 0; i++) {
        pass(SECOND / 10);
        step_of(rig.other);
        steps(1);
    }
    assert_true(rig.other_sink.n > 0);
    assert_int_equal(rig.sink.n + rig.other_sink.n, 1500);
    PQfinish(conn);
}

/* O6: what was read ahead under a lease that was lost since is not sent. */
static void events_read_ahead_are_forgotten_with_the_lease(void **state)
{
    (void)state;
    PGconn *conn = session();
    char why[SEMEL_RELAY_WHY];
    rows_of(100);
    put_many(conn, 1, 1000);
    rig.other = relay_on(rig.world->other, &rig.other_sink, "second");
    step_until_ahead();
    const size_t sent = rig.sink.n;
    pass(16 * SECOND); /* it is stopped past its lease */
    for (int i = 0; i < 100 && count_in("", "true") > 0; i++)
        step_of(rig.other);
    assert_int_equal(count_in("", "true"), 0);
    step_of(rig.relay);
    assert_ok(rig.world, semel__relay_leave(rig.other, &rig.world->err));
    for (int i = 0; i < 5; i++) {
        pass(6 * SECOND);
        steps(1);
    }
    assert_int_equal(semel__relay_owns(rig.relay, why), 64);
    assert_int_equal(rig.sink.n, sent);
    PQfinish(conn);
}

static bool to_be_cut;

static void cut_connections(void)
{
    if (!to_be_cut || semel__relay_counts(rig.relay)->ahead < 2)
        return;
    to_be_cut = false;
    sql(busy, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
              "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%outbox%'");
}

/* O2: the connection is lost while events are read ahead and deleted. */
static void connection_that_is_lost_during_a_call_costs_repeats_only(void **state)
{
    (void)state;
    int wait_ms, failed = 0;
    busy = session();
    rows_of(100);
    put_many(busy, 1, 1500);
    to_be_cut = true;
    rig.sink.during = cut_connections;
    for (int i = 0; i < 40; i++) {
        if (semel__relay_step(rig.relay, &wait_ms, &rig.world->err) != SEMEL_OK) {
            failed++;
            assert_ok(rig.world, semel_store_reopen(rig.world->store, &rig.world->err));
            semel__relay_forget(rig.relay);
        }
        pass(SECOND / 10);
    }
    rig.sink.during = NULL;
    assert_int_equal(failed, 1);
    step_until_empty();
    assert_int_equal(count_in_order(), 1500);
    PQfinish(busy);
}

int main(void)
{
#define ON(test) cmocka_unit_test_setup_teardown(test, up, down)
    const struct CMUnitTest tests[] = {
        ON(backlog_is_read_ahead_in_order_and_nothing_comes_twice),
        ON(refused_event_is_not_overtaken_by_what_was_read_ahead),
        ON(lower_number_that_commits_during_a_call_is_not_overtaken),
        ON(confirmed_events_are_deleted_before_the_shards_are_given_back),
        ON(confirmed_events_are_deleted_before_shards_are_given_away),
        ON(events_read_ahead_are_forgotten_with_the_lease),
        ON(connection_that_is_lost_during_a_call_costs_repeats_only),
    };
    on_postgres = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
