/* SPDX-License-Identifier: MIT
 *
 * test_pg_purge.c: purge among those who work: it goes in chunks, behind a watermark that was committed before, waits
 * for nobody, and nobody waits for it. That a purged message is not run again while both race is in test_races.c.
 *
 * Whoever waits for a lock in here waits for ever, because its holder is this same process; so a server's time-out ends
 * it, and the call fails.
 */
#include <poll.h>
#include <pthread.h>

#include <libpq-fe.h>

#include "lib/handle.h"
#include "semel/semel.h"
#include "support/world_pg.h"
#include "unit/unit.h"

#define DAY_US INT64_C(86400000000)
#define OLD_DAYS 60 /* older than the retention, which is 45 days unless a consumer says otherwise */
#define CHUNK 1000

static struct semel *handle;
static struct semel_error err;
static int handled;

#define assert_fine(call)                        \
    do {                                         \
        if ((call) != SEMEL_OK)                  \
            fail_msg("%s: %s", #call, err.text); \
    } while (0)

/* ---- the world ----------------------------------------------------------------------------------------- */

static int start(void **state)
{
    (void)state;
    world_pg_start(NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    world_pg_done();
    return 0;
}

static void open_handle(void)
{
    char url[PG_SERVER_TEXT];
    assert_fine(semel_open(&handle, pg_server_url(&world_server, "purge", url), SEMEL_MIGRATE, &err));
}

static int up(void **state)
{
    char url[PG_SERVER_TEXT];
    (void)state;
    world_pg_database("purge", url);
    pg_server_sql(&world_server, NULL, "ALTER DATABASE purge SET lock_timeout = '10s'");
    open_handle();
    handled = 0;
    return 0;
}

static int down(void **state)
{
    (void)state;
    semel_close(handle);
    handle = NULL;
    return 0;
}

static long long ask(const char *query)
{
    return pg_server_ask(&world_server, "purge", query);
}

/* Rows old-1, old-2 ... that were completed long ago: with a time, or with none. */
static void put_old(int n, bool timed)
{
    char sql[600];

    snprintf(sql, sizeof sql,
             "INSERT INTO semel.inbox (arrival, received_at, updated_at, processed_at, message_time, consumer, source, "
             "message_id, status, attempts) SELECT i, t, t, t, %s, 'billing', 's', 'old-' || i, 'completed', 1 "
             "FROM (SELECT i, now() - interval '%d days' + i * interval '1 ms' AS t FROM generate_series(1, %d) AS i) "
             "AS r",
             timed ? "t" : "NULL", OLD_DAYS, n);
    pg_server_sql(&world_server, "purge", sql);
    pg_server_sql(&world_server, "purge", "ANALYZE semel.record");
}

static semel_status count_it(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                             struct semel_reply *reply, struct semel_error *error)
{
    (void)ctx, (void)s, (void)msg, (void)attempt, (void)reply, (void)error;
    handled++;
    return SEMEL_OK;
}

static enum semel_why deliver(const char *id, int64_t message_time_us)
{
    struct semel_msg msg;
    struct semel_verdict verdict;

    semel_msg_init(&msg);
    semel_verdict_init(&verdict);
    msg.consumer = SEMEL_STR("billing");
    msg.source = SEMEL_STR("s");
    msg.id = semel__str(id);
    msg.payload = SEMEL_STR("{}");
    msg.message_time_us = message_time_us;
    assert_fine(semel_inbox_process(handle, &msg, 1, count_it, NULL, &verdict, &err));
    return verdict.why;
}

static size_t tick(size_t max)
{
    size_t n = 0;
    assert_fine(semel_tick(handle, max, &n, &err));
    return n;
}

static PGconn *outsider(const char *sql)
{
    char conninfo[PG_SERVER_TEXT];
    PGconn *conn = PQconnectdb(pg_server_conninfo(&world_server, "purge", conninfo));
    PGresult *result = PQexec(conn, sql);

    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    PQclear(result);
    return conn;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

/* I18, P60: a long purge is many short transactions, and all of them come after that of the watermark. */
static void purge_goes_in_chunks_behind_a_watermark_that_is_committed(void **state)
{
    (void)state;
    for (int timed = 0; timed < 2; timed++) {
        put_old(2 * CHUNK + CHUNK / 2, timed);
        pg_server_sql(&world_server, "purge",
                      "CREATE TABLE IF NOT EXISTS seen (tx bigint, n bigint, marks bigint); TRUNCATE seen;"
                      "CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen "
                      "SELECT txid_current(), (SELECT count(*) FROM gone), (SELECT count(*) FROM semel.watermark WHERE "
                      "xmin::text::bigint <> txid_current()); RETURN NULL; END $$;"
                      "DROP TRIGGER IF EXISTS note ON semel.record; CREATE TRIGGER note AFTER DELETE ON semel.record "
                      "REFERENCING OLD TABLE AS gone "
                      "FOR EACH STATEMENT EXECUTE FUNCTION note()");
        assert_int_equal(tick(100000), 2 * CHUNK + CHUNK / 2);
        assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
        assert_int_equal(ask("SELECT count(DISTINCT tx) FROM seen WHERE n > 0"), 3);
        assert_int_equal(ask("SELECT max(n) FROM seen"), CHUNK);
        /* What has no time moves no watermark. */
        assert_int_equal(ask(timed ? "SELECT count(*) FROM seen WHERE n > 0 AND marks <> 1"
                                   : "SELECT count(*) FROM seen WHERE n > 0 AND marks <> 0"),
                         0);
    }
}

static void purge_stops_at_what_it_was_allowed(void **state)
{
    (void)state;
    put_old(CHUNK + 500, true);
    assert_int_equal(tick(CHUNK + 200), CHUNK + 200);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 300);
    assert_int_equal(tick(CHUNK), 300);
}

/* The rows are found by an index and deleted where they were found. A prepared statement may be planned without its
 * values, and then the planner does not know how few they are. */
static void purge_never_reads_the_whole_table(void **state)
{
    static const char scans[] = "SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables WHERE schemaname = 'semel' "
                                "AND relname IN ('record', 'attempt')";
    static const char deleted[] = "SELECT n_tup_del FROM pg_stat_user_tables WHERE schemaname = 'semel' AND relname = "
                                  "'record'";
    (void)state;
    for (int timed = 0; timed < 2; timed++) {
        long long gone = ask(deleted);
        semel_close(handle);
        put_old(20000, timed);
        pg_server_sql(&world_server, NULL, "ALTER DATABASE purge SET plan_cache_mode = force_generic_plan");
        long long before = ask(scans);
        open_handle();
        assert_int_equal(tick(CHUNK), CHUNK);
        semel_close(handle); /* which tells what it has done */
        handle = NULL;
        for (int tries = 0; ask(deleted) < gone + CHUNK; tries++) {
            assert_true(tries < 3000);
            poll(NULL, 0, 10);
        }
        assert_int_equal(ask(scans), before);
        pg_server_sql(&world_server, "purge", "DELETE FROM semel.inbox");
        open_handle();
    }
}

/* ---- nobody waits --------------------------------------------------------------------------------------- */

static size_t tick_by(bool sql, size_t max)
{
    return sql ? (size_t)ask("SELECT semel.tick()") : tick(max);
}

/* I18, P60: with a time or without, through the library and through the SQL function. */
static void row_that_somebody_has_locked_is_left_for_the_next_time(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool timed = i % 2 == 0, sql = i / 2 == 0;
        put_old(5, timed);
        PGconn *conn = outsider("BEGIN; SELECT * FROM semel.inbox WHERE message_id = 'old-2' FOR UPDATE");
        assert_int_equal(tick_by(sql, 100), 4);
        assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'old-2'"), 1);
        PQclear(PQexec(conn, "ROLLBACK"));
        PQfinish(conn);
        assert_int_equal(tick_by(sql, 100), 1);
        assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
    }
}

static void work_while_a_purge_is_open(const char *prefix)
{
    char id[32];
    int before = handled;

    for (int i = 0; i < 3; i++) {
        snprintf(id, sizeof id, "%s-%d", prefix, i);
        assert_int_equal(deliver(id, SEMEL_NONE), SEMEL_WHY_NEW);
        assert_int_equal(deliver(id, SEMEL_NONE), SEMEL_WHY_DUPLICATE);
    }
    assert_int_equal(handled, before + 3);
}

/* I18, P60: by C or by SQL, a purge that has deleted and not yet committed is in nobody's way. */
static void consumers_go_on_while_a_purge_is_under_way(void **state)
{
    int64_t now_us;
    size_t n = 0;
    char url[PG_SERVER_TEXT];
    struct semel *purger = NULL;

    (void)state;
    put_old(10, true);
    PGconn *conn = outsider("BEGIN; SELECT semel.tick()");
    work_while_a_purge_is_open("during-tick");
    PQclear(PQexec(conn, "ROLLBACK"));
    PQfinish(conn);

    assert_fine(semel_open(&purger, pg_server_url(&world_server, "purge", url), 0, &err));
    assert_fine(semel_store_begin(purger->store, SEMEL_TX_OWN, &now_us, &err));
    assert_fine(semel_store_watermark(purger->store, SEMEL_STR("billing"), SEMEL_STR("s"), now_us - 45 * DAY_US, &err));
    assert_fine(semel_store_commit(purger->store, &err));
    assert_fine(semel_store_begin(purger->store, SEMEL_TX_OWN, &now_us, &err));
    assert_fine(semel_store_purge(purger->store, SEMEL_STR("billing"), SEMEL_STR("s"), now_us - 45 * DAY_US, 100, 1000,
                                  &n, &err));
    assert_int_equal(n, 10);
    work_while_a_purge_is_open("during-purge");
    assert_fine(semel_store_commit(purger->store, &err));
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id LIKE 'old-%'"), 0);
    assert_int_equal(deliver("old-1", now_us - OLD_DAYS * DAY_US), SEMEL_WHY_TOO_OLD);
    semel_close(purger);
}

/* Leases of the keys a and b that ran out, the first of the keys c and d waiting without a due time, an old row. */
static void put_house(void)
{
    put_old(1, true);
    assert_fine(semel_consumer_set(handle, "billing", "{\"effect\": \"outside\", \"order\": \"arrival\"}", &err));
    pg_server_sql(
        &world_server, "purge",
        "INSERT INTO semel.order_key (consumer, order_key) SELECT 'billing', k FROM unnest('{a,b,c,d}'::text[])"
        " AS k; INSERT INTO semel.inbox (arrival, received_at, updated_at, consumer, source, message_id, "
        "status, attempts, order_key, payload, lease_owner, lease_until, lease_token) SELECT 100 + ascii(k), "
        "now(), now(), 'billing', 's', k, 'processing', 1, k, '', 'w', now() - interval '1 minute', "
        "4611686018427389952 + 1024 * ascii(k) FROM unnest('{a,b}'::text[]) AS k; INSERT INTO semel.inbox "
        "(arrival, received_at, updated_at, consumer, source, message_id, status, order_key, error_class, "
        "payload) SELECT 100 + ascii(k), now(), now(), 'billing', 's', k, 'waiting', k, 'blocked', '' "
        "FROM unnest('{c,d}'::text[]) AS k");
}

/* A5 P77: order keys, rows, and a watermark that is being made are left for the next time. */
static void tick_waits_for_no_lock(void **state)
{
    static const char *const holds[] = {
        "BEGIN; SELECT * FROM semel.order_key WHERE order_key IN ('a', 'c') FOR UPDATE",
        "BEGIN; SELECT * FROM semel.inbox WHERE message_id IN ('a', 'c') FOR UPDATE",
    };
    (void)state;
    pg_server_sql(&world_server, NULL, "ALTER DATABASE purge SET lock_timeout = '30ms'");
    semel_close(handle);
    open_handle();
    for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++) {
        pg_server_sql(&world_server, "purge", "TRUNCATE semel.record, semel.order_key, semel.watermark");
        put_house();
        PGconn *rows = outsider(holds[i]);
        PGconn *mark = outsider("BEGIN; SELECT pg_advisory_xact_lock_shared(semel._watermark_lock('billing', 's')); "
                                "INSERT INTO semel.watermark VALUES ('billing', 's', '-infinity', now())");
        assert_int_equal(tick(100), 2);
        assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'b' AND status = 'unknown'"), 1);
        assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'd' AND due_at IS NOT NULL"), 1);
        PQclear(PQexec(rows, "ROLLBACK"));
        assert_int_equal(tick(100), 2);
        PQclear(PQexec(mark, "COMMIT"));
        assert_int_equal(tick(100), 1);
        PQfinish(rows);
        PQfinish(mark);
    }
}

/* P77: a business key that somebody has costs only the lease that gives it back. */
static void recovery_passes_over_a_business_key_that_somebody_has(void **state)
{
    (void)state;
    assert_fine(semel_consumer_set(handle, "billing", "{\"effect\": \"atomic\"}", &err));
    pg_server_sql(&world_server, "purge",
                  "INSERT INTO semel.inbox (arrival, received_at, updated_at, consumer, source, message_id, status, "
                  "attempts, payload, lease_owner, lease_until, lease_token) SELECT 200 + ascii(k), now(), now(), "
                  "'billing', 's', k, 'processing', 1, '', 'w', now() - interval '1 minute', "
                  "4611686018427388929 + 4096 * ascii(k) FROM unnest('{a,b}'::text[]) AS k; "
                  "INSERT INTO semel.business_key (consumer, business_key, source, message_id, taken_at) "
                  "VALUES ('billing', 'inv-1', 's', 'a', now())");
    PGconn *key = outsider("BEGIN; SELECT * FROM semel.business_key FOR UPDATE");
    assert_int_equal(tick(100), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'b' AND status = 'waiting'"), 1);
    PQclear(PQexec(key, "ROLLBACK"));
    PQfinish(key);
    assert_int_equal(tick(100), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'a' AND status = 'waiting'"), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.business_want WHERE message_id = 'a'"), 1);
}

/* Messages a, b ... of which each wants the business key of its own name and is due; a stands first. */
static void put_wishes(const char *names)
{
    char sql[900];
    snprintf(sql, sizeof sql,
             "INSERT INTO semel.inbox (arrival, received_at, updated_at, consumer, source, message_id, status, due_at, "
             "error_class, payload) SELECT 300 + ascii(k), now(), now(), 'billing', 's', k, 'waiting', now() + "
             "(ascii(k) - 200) * interval '1s', 'business_duplicate', '' FROM unnest('{%s}'::text[]) AS k; "
             "INSERT INTO semel.business_want (consumer, business_key, source, message_id) "
             "SELECT 'billing', k, 's', k FROM unnest('{%s}'::text[]) AS k",
             names, names);
    pg_server_sql(&world_server, "purge", sql);
}

static void ignore(void *ctx, const struct semel_msg *msg, const struct semel_verdict *verdict)
{
    (void)ctx, (void)msg, (void)verdict;
}

static size_t take(size_t max)
{
    size_t n = 0;
    assert_fine(semel_inbox_take(handle, "billing", max, 60000, ignore, NULL, &n, &err));
    return n;
}

/* A6 P77: somebody who sits on business keys costs the rows that want those, and no others, however few are wanted. */
static void take_passes_over_only_the_rows_whose_business_key_somebody_is_taking(void **state)
{
    (void)state;
    assert_fine(semel_consumer_set(handle, "billing", "{\"effect\": \"outside\"}", &err));
    put_wishes("a,b,c,d,e");
    PGconn *sitter = outsider("BEGIN; INSERT INTO semel.business_key (consumer, business_key, source, message_id, "
                              "taken_at) SELECT 'billing', k, 's', 'x', now() FROM unnest('{a,c}'::text[]) AS k");
    assert_int_equal(take(1), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'b' AND status = 'processing'"), 1);
    assert_int_equal(take(5) + take(5) + take(5), 2);
    assert_int_equal(ask("SELECT count(*) FROM semel.business_key WHERE business_key IN ('b', 'd', 'e') "
                         "AND message_id = business_key"),
                     3);
    assert_int_equal(take(5), 0);
    PQclear(PQexec(sitter, "ROLLBACK"));
    PQfinish(sitter);
    assert_int_equal(take(5), 2);
}

/* The same for what a tick decides: a waiter whose intent is done is prevented. */
/* A5: what was overtaken ends, and its key, which it keeps, begins to expire. */
static void tick_passes_over_only_the_row_whose_own_business_key_somebody_has(void **state)
{
    (void)state;
    assert_fine(semel_consumer_set(handle, "billing",
                                   "{\"effect\": \"keyed\", \"order\": \"version\", \"business_retention\": \"1d\"}",
                                   &err));
    pg_server_sql(&world_server, "purge",
                  "INSERT INTO semel.order_key (consumer, order_key, last_version) SELECT 'billing', k, 5 FROM "
                  "unnest('{a,b,c}'::text[]) AS k; "
                  "INSERT INTO semel.inbox (arrival, received_at, updated_at, consumer, source, message_id, status, "
                  "attempts, attempts_before, payload, order_key, version, error_class, error_text, due_at) "
                  "SELECT 200 + ascii(k), now(), now(), 'billing', 's', k, 'waiting', 1, 0, '', k, 3, 'gap', 'g', "
                  "now() - interval '1 minute' FROM unnest('{a,b,c}'::text[]) AS k; "
                  "INSERT INTO semel.business_key (consumer, business_key, source, message_id, taken_at) "
                  "SELECT 'billing', 'of-' || k, 's', k, now() FROM unnest('{a,b,c}'::text[]) AS k");
    PGconn *sitter = outsider("BEGIN; SELECT * FROM semel.business_key WHERE message_id = 'b' FOR UPDATE");
    tick(100);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'stale'"), 2);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'b' AND status = 'waiting'"), 1);
    PQclear(PQexec(sitter, "ROLLBACK"));
    PQfinish(sitter);
    tick(100);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'stale'"), 3);
    assert_int_equal(ask("SELECT count(*) FROM semel.business_key WHERE expires_at IS NOT NULL"), 3);
}

static void tick_passes_over_only_the_waiter_whose_business_key_somebody_is_taking(void **state)
{
    (void)state;
    assert_fine(semel_consumer_set(handle, "billing", "{\"effect\": \"outside\"}", &err));
    put_wishes("a,b,c");
    pg_server_sql(&world_server, "purge",
                  "INSERT INTO semel.business_key (consumer, business_key, source, message_id, taken_at) "
                  "SELECT 'billing', k, 's', 'gone', now() FROM unnest('{a,b,c}'::text[]) AS k");
    PGconn *sitter = outsider("BEGIN; DELETE FROM semel.business_key WHERE business_key = 'b'");
    tick(100);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'prevented'"), 2);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'b' AND status = 'waiting'"), 1);
    PQclear(PQexec(sitter, "ROLLBACK"));
    PQfinish(sitter);
    tick(100);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'prevented'"), 3);
}

static semel_status reject(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *error)
{
    (void)ctx, (void)s, (void)msg, (void)attempt, (void)error;
    return semel_reply_set(reply, SEMEL_REJECTED, SEMEL_STR("no"), (struct semel_str){0});
}

static void *redeliver(void *arg)
{
    struct semel_msg msg;
    struct semel_verdict verdict;
    semel_msg_init(&msg);
    semel_verdict_init(&verdict);
    msg.consumer = SEMEL_STR("billing");
    msg.source = SEMEL_STR("s");
    msg.id = SEMEL_STR("a");
    msg.payload = SEMEL_STR("{}");
    *(semel_status *)arg = semel_inbox_process(handle, &msg, 1, reject, NULL, &verdict, &err);
    return NULL;
}

/* A6 P61: order keys, business keys, rows: also for a redelivery that does not name the key which its row holds, and
 * whose end frees it. */
static void redelivery_waits_for_the_business_key_of_its_row_before_it_holds_the_row(void **state)
{
    static const char waits[] = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'semel' AND "
                                "wait_event_type = 'Lock' AND datname = 'purge'";
    pthread_t thread;
    semel_status status = SEMEL_CLOSED;
    (void)state;
    pg_server_sql(
        &world_server, "purge",
        "INSERT INTO semel.inbox (arrival, received_at, updated_at, consumer, source, message_id, status, "
        "attempts, due_at, error_class, payload) VALUES (500, now(), now(), 'billing', 's', 'a', 'failed', 1, "
        "now() - interval '1s', 'transient', '{}'); INSERT INTO semel.business_key (consumer, business_key, "
        "source, message_id, taken_at) VALUES ('billing', 'inv-1', 's', 'a', now())");
    PGconn *sitter = outsider("BEGIN; SELECT * FROM semel.business_key FOR UPDATE");
    assert_int_equal(pthread_create(&thread, NULL, redeliver, &status), 0);
    for (int tries = 0; ask(waits) == 0; tries++) {
        assert_true(tries < 3000);
        poll(NULL, 0, 10);
    }
    PQfinish(outsider("BEGIN; SELECT * FROM semel.inbox WHERE message_id = 'a' FOR UPDATE NOWAIT; ROLLBACK"));
    PQclear(PQexec(sitter, "ROLLBACK"));
    PQfinish(sitter);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(status, SEMEL_OK);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'a' AND status = 'rejected'"), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.business_key"), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, up, down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(purge_goes_in_chunks_behind_a_watermark_that_is_committed),
        TEST(purge_stops_at_what_it_was_allowed),
        TEST(purge_never_reads_the_whole_table),
        TEST(row_that_somebody_has_locked_is_left_for_the_next_time),
        TEST(consumers_go_on_while_a_purge_is_under_way),
        TEST(tick_waits_for_no_lock),
        TEST(recovery_passes_over_a_business_key_that_somebody_has),
        TEST(take_passes_over_only_the_rows_whose_business_key_somebody_is_taking),
        TEST(tick_passes_over_only_the_row_whose_own_business_key_somebody_has),
        TEST(tick_passes_over_only_the_waiter_whose_business_key_somebody_is_taking),
        TEST(redelivery_waits_for_the_business_key_of_its_row_before_it_holds_the_row),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
