/* SPDX-License-Identifier: MIT
 *
 * test_pg_queue.c: round trips on PostgreSQL: how many there are, statements that handlers only queue, batches larger
 * than every buffer on the way, and a pooler in between.
 */
#include "pg/pooler.h"
#include "unit/test_pg.h"

static semel_status queue(struct world *w, size_t tag, const char *text, const char *value)
{
    const char *const values[] = {value};
    const struct semel_pg_statement statement = {.sql = text, .n = value != NULL, .values = values};
    w->store->tag = tag;
    return semel__pg_queue(w->store, &statement, &w->err);
}

static void effects(void)
{
    sql("CREATE TABLE effect (n integer PRIMARY KEY)");
}

#define PUT "INSERT INTO effect VALUES ($1::integer)"

/* ---- the queue ----------------------------------------------------------------------------------- */

static void queued_statements_are_a_part_of_the_transaction(void **state)
{
    struct world *w = *state;
    size_t tag = 0;
    effects();
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, queue(w, 0, PUT, "1"));
    ok(w, queue(w, 1, PUT, "2"));
    ok(w, queue(w, 2, "SELECT generate_series(1, 1000)", NULL));
    ok(w, semel_store_collect(w->store, &tag, &w->err));
    assert_true(handler(w, "INSERT INTO effect VALUES (3)")); /* the connection is as it was */
    ok(w, semel_store_commit(w->store, &w->err));
    assert_int_equal(ask("SELECT count(*) FROM effect"), 3);
    begin(w);
    ok(w, queue(w, 0, PUT, "9"));
    semel_store_rollback(w->store);
    assert_int_equal(ask("SELECT count(*) FROM effect"), 3);
}

static void first_failure_is_told_with_the_tag_of_its_handler(void **state)
{
    struct world *w = *state;
    size_t tag = 99;
    effects();
    begin(w);
    ok(w, queue(w, 3, PUT, "1"));
    ok(w, queue(w, 4, PUT, "2"));
    ok(w, queue(w, 5, PUT, "1"));
    ok(w, queue(w, 6, PUT, "x"));
    assert_int_equal(semel_store_collect(w->store, &tag, &w->err), SEMEL_INVALID);
    assert_int_equal(tag, 5);
    assert_int_equal(w->err.cls, SEMEL_CLASS_PERMANENT);
    assert_int_equal(w->err.code, SEMEL_SQLSTATE('2', '3', '5', '0', '5'));
    semel_store_rollback(w->store);
    begin(w); /* the failure is told once */
    ok(w, queue(w, 7, PUT, "1"));
    ok(w, semel_store_collect(w->store, &tag, &w->err));
    ok(w, semel_store_commit(w->store, &w->err));
}

static void statement_that_cannot_be_prepared_is_blamed_on_its_handler(void **state)
{
    struct world *w = *state;
    size_t tag = 99;
    begin(w);
    ok(w, queue(w, 1, "SELECT 1", NULL));
    ok(w, queue(w, 2, "SELECT * FROM no_such_table", NULL));
    assert_int_equal(semel_store_collect(w->store, &tag, &w->err), SEMEL_INVALID);
    assert_int_equal(tag, 2);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    semel_store_rollback(w->store);
    sql("CREATE TABLE no_such_table ()");
    begin(w); /* and is prepared when it can be */
    ok(w, queue(w, 2, "SELECT * FROM no_such_table", NULL));
    ok(w, semel_store_collect(w->store, &tag, &w->err));
    ok(w, semel_store_commit(w->store, &w->err));
}

static void failure_met_by_another_operation_is_still_collected(void **state)
{
    struct world *w = *state;
    size_t tag = 99;
    const struct semel__event event = {.aggregatetype = SEMEL_STR("o"),
                                       .aggregateid = SEMEL_STR("1"),
                                       .type = SEMEL_STR("t")};
    char id[37];
    effects();
    begin(w);
    ok(w, queue(w, 5, PUT, "x"));
    assert_int_equal(semel_store_outbox_put(w->store, &event, NOW, id, &w->err), SEMEL_INVALID);
    w->store->tag = 6;
    assert_int_equal(semel_store_collect(w->store, &tag, &w->err), SEMEL_INVALID);
    assert_int_equal(tag, 5);
    semel_store_rollback(w->store);
}

/* Savepoints and checks go with the queue: nothing is waited for, and the one before the failure counts. */
static void savepoint_and_check_are_queued_behind_statements(void **state)
{
    struct world *w = *state;
    size_t tag = 99;
    effects();
    sql("CREATE TABLE late (n integer REFERENCES effect DEFERRABLE INITIALLY DEFERRED)");
    begin(w);
    ok(w, semel_store_savepoint(w->store, &w->err));
    int64_t trips = semel__pg_trips(w->store);
    ok(w, queue(w, 0, PUT, "1"));
    ok(w, semel_store_check(w->store, &w->err));
    ok(w, semel_store_savepoint(w->store, &w->err));
    ok(w, queue(w, 1, PUT, "2"));
    ok(w, queue(w, 2, PUT, "1"));
    ok(w, semel_store_savepoint(w->store, &w->err));
    ok(w, queue(w, 3, PUT, "3"));
    assert_int_equal(semel__pg_trips(w->store), trips);
    assert_int_equal(semel_store_collect(w->store, &tag, &w->err), SEMEL_INVALID);
    assert_int_equal(tag, 2);
    assert_int_equal(semel__pg_trips(w->store), trips + 1);
    ok(w, semel_store_rollback_to(w->store, &w->err));
    ok(w, queue(w, 4, "INSERT INTO late VALUES ($1::integer)", "9"));
    w->store->tag = 7;
    ok(w, semel_store_check(w->store, &w->err));
    assert_int_equal(semel_store_collect(w->store, &tag, &w->err), SEMEL_INVALID);
    assert_int_equal(tag, 7);
    assert_int_equal(w->err.code, SEMEL_SQLSTATE('2', '3', '5', '0', '3'));
    ok(w, semel_store_rollback_to(w->store, &w->err));
    ok(w, queue(w, 5, "INSERT INTO late VALUES ($1::integer)", "1"));
    ok(w, semel_store_check(w->store, &w->err));
    ok(w, queue(w, 5, "WITH late AS (INSERT INTO late VALUES (5)) SELECT 1", NULL)); /* still deferred */
    ok(w, queue(w, 5, PUT, "5"));
    ok(w, semel_store_collect(w->store, &tag, &w->err));
    ok(w, semel_store_commit(w->store, &w->err));
    assert_int_equal(ask("SELECT count(*) FROM effect WHERE n IN (1, 5)"), 2);
    assert_int_equal(ask("SELECT count(*) FROM effect"), 2);
    assert_int_equal(ask("SELECT count(*) FROM late"), 2);
}

static void only_statements_on_data_may_be_queued(void **state)
{
    static const char *const refused[] = {"COMMIT",
                                          "  rollback",
                                          "-- x\nEND",
                                          "/* /* */ */ BEGIN",
                                          "SAVEPOINT a",
                                          "SET x.y = 1",
                                          "DISCARD ALL",
                                          "",
                                          "COPY effect FROM STDIN",
                                          "LISTEN x",
                                          "PREPARE a AS SELECT 1",
                                          "selec"};
    static const char *const allowed[] = {"SELECT 1", " (select 1)", "-- x\nVALUES (1)",
                                          "/* a */ WITH x AS (SELECT 1) TABLE x", "DO $$ BEGIN END $$"};
    struct world *w = *state; /* P58 */
    size_t tag = 0;
    assert_int_equal(queue(w, 0, "SELECT 1", NULL), SEMEL_INVALID); /* no transaction */
    begin(w);
    for (size_t i = 0; i < COUNT(refused); i++) {
        assert_int_equal(queue(w, 0, refused[i], NULL), SEMEL_INVALID);
        assert_int_equal(w->err.cls, SEMEL_CLASS_PERMANENT);
    }
    for (size_t i = 0; i < COUNT(allowed); i++)
        ok(w, queue(w, 0, allowed[i], NULL));
    ok(w, semel_store_collect(w->store, &tag, &w->err));
    ok(w, queue(w, 8, "SELECT 1; COMMIT", NULL)); /* one statement: the server refuses the second */
    assert_int_equal(semel_store_collect(w->store, &tag, &w->err), SEMEL_INVALID);
    assert_int_equal(tag, 8);
    semel_store_rollback(w->store);
}

static void procedure_that_commits_fails_and_commits_nothing(void **state)
{
    struct world *w = *state; /* P58 */
    size_t tag = 0;
    effects();
    sql("CREATE PROCEDURE bad() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO effect VALUES (1); COMMIT; END $$");
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, queue(w, 1, "CALL bad()", NULL));
    ok(w, queue(w, 2, PUT, "2"));
    assert_int_equal(semel_store_collect(w->store, &tag, &w->err), SEMEL_INVALID);
    assert_int_equal(tag, 1);
    semel_store_rollback(w->store);
    assert_int_equal(ask("SELECT count(*) FROM effect") + ask("SELECT count(*) FROM semel.inbox"), 0);
}

static void one_text_is_prepared_once(void **state)
{
    struct world *w = *state;
    size_t tag = 0;
    effects();
    for (int round = 0; round < 3; round++) {
        begin(w);
        char value[8];
        for (int i = 0; i < 10; i++) {
            snprintf(value, sizeof(value), "%d", round * 10 + i);
            ok(w, queue(w, 0, PUT, value));
        }
        ok(w, semel_store_collect(w->store, &tag, &w->err));
        ok(w, semel_store_commit(w->store, &w->err));
    }
    assert_true(handler(w, "DO $$ BEGIN ASSERT (SELECT count(*) FROM pg_prepared_statements "
                           "WHERE statement LIKE 'INSERT INTO effect%') = 1; END $$"));
}

/* ---- sizes --------------------------------------------------------------------------------------- */

static void answers_larger_than_every_buffer_do_not_stop_the_sending(void **state)
{
    struct world *w = *state;
    static char value[8192];
    size_t tag = 0;
    memset(value, 'x', sizeof(value) - 1);
    begin(w);
    for (size_t i = 0; i < 3000; i++) /* 24 MB each way */
        ok(w, queue(w, i, "SELECT $1::text", value));
    ok(w, semel_store_collect(w->store, &tag, &w->err));
    ok(w, semel_store_commit(w->store, &w->err));
}

static void batch_with_large_payloads_is_kept_byte_for_byte(void **state)
{
    enum { N = 40 };
    struct world *w = *state;
    static char payload[1 << 20];
    static char ids[N][8];
    struct semel_admit items[N];
    struct semel_admit_batch batch = {.consumer = CONSUMER, .now_us = NOW, .items = items, .n_items = N};
    for (size_t i = 0; i < sizeof(payload); i++)
        payload[i] = (char)(i * 7 + i / 256);
    for (size_t i = 0; i < N; i++) {
        snprintf(ids[i], sizeof(ids[i]), "%03zu", i);
        items[i] = item_of(ids[i], SEMEL_ROW_WAITING, NULL);
        items[i].place = N - 1 - i;
        items[i].row.kept = true;
        items[i].row.payload = (struct semel_str){payload, sizeof(payload) - i};
        items[i].row.headers = SEMEL_STR("{}");
    }
    begin(w);
    ok(w, semel_store_admit(w->store, &batch, &w->arena, &w->err));
    for (size_t i = 0; i < N; i++)
        assert_true(items[i].inserted && items[i].row.arrival % SQL_PLACES == (int64_t)(N - 1 - i));
    ok(w, semel_store_commit(w->store, &w->err));
    begin(w);
    for (size_t i = 0; i < N; i += 13) {
        struct semel_admit again = item_of(ids[i], SEMEL_ROW_COMPLETED, NULL);
        ok(w, try_admit(w, w->store, &again, NULL));
        assert_false(again.inserted);
        assert_int_equal(again.found.payload.n, sizeof(payload) - i);
        assert_memory_equal(again.found.payload.p, payload, again.found.payload.n);
    }
    ok(w, semel_store_commit(w->store, &w->err));
}

/* Also where the rows of a batch differ: `alone = false` is what a begin in SQL inserts, which must not be committed
 * without its end. */
static void what_most_rows_have_is_kept_as_null(void **state)
{
    struct world *w = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_COMPLETED, NULL), item_of("b", SEMEL_ROW_WAITING, NULL)};
    struct semel_admit_batch batch = {.consumer = CONSUMER, .now_us = NOW, .items = items, .n_items = 2};
    items[0].row.progress.attempts = 1;
    items[1].place = 1;
    items[1].row.updated_us = NOW + 1;
    items[1].row.progress.alone = true;
    items[1].row.progress.retries = 2;
    items[1].row.progress.attempts_before = 3;
    begin(w);
    ok(w, semel_store_admit(w->store, &batch, &w->arena, &w->err));
    ok(w, semel_store_commit(w->store, &w->err));
    assert_int_equal(ask("SELECT count(*) FROM semel.record WHERE num_nulls(status, attempts, attempts_before, "
                         "retries, alone, updated_at, "
                         "processed_at, open_for) = 8"),
                     1);
    assert_int_equal(ask("SELECT count(*) FROM semel.record WHERE status = 'waiting' AND attempts = 0 AND "
                         "attempts_before = 3 AND retries = 2 AND "
                         "alone AND updated_at > received_at AND processed_at IS NULL AND open_for = 'c'"),
                     1);
}

/* ---- memory ---------------------------------------------------------------------------------------- */

static semel_status admit_and_settle(struct world *w)
{
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_business business = {.key = SEMEL_STR("b"),
                                      .source = SEMEL_STR("s"),
                                      .id = SEMEL_STR("a"),
                                      .expires_us = SEMEL_NONE};
    struct semel_admit item = item_of("a", SEMEL_ROW_WAITING, "k");
    struct semel_admit_batch batch = {.consumer = CONSUMER,
                                      .now_us = NOW,
                                      .keys = &key,
                                      .n_keys = 1,
                                      .business = &business,
                                      .n_business = 1,
                                      .items = &item,
                                      .n_items = 1};
    struct semel_change change = {.source = SEMEL_STR("s"),
                                  .id = SEMEL_STR("a"),
                                  .from = SEMEL_ROW_WAITING,
                                  .token = SEMEL_NONE,
                                  .progress = item_of("a", SEMEL_ROW_COMPLETED, NULL).row.progress};
    struct semel_key_change moved = {.key = SEMEL_STR("k"), .last_version = 3, .wake = true};
    const struct semel_note note = {.source = SEMEL_STR("s"), .id = SEMEL_STR("a"), .text = SEMEL_STR("late")};
    struct semel_settle_batch settle = {.consumer = CONSUMER,
                                        .worker = SEMEL_STR("w"),
                                        .now_us = NOW,
                                        .changes = &change,
                                        .n_changes = 1,
                                        .keys = &moved,
                                        .n_keys = 1,
                                        .notes = &note,
                                        .n_notes = 1};
    semel_status status = semel_store_admit(w->store, &batch, &w->arena, &w->err);
    if (status == SEMEL_OK)
        status = queue(w, 0, "SELECT $1::text", "x");
    return status == SEMEL_OK ? semel_store_settle(w->store, &settle, &w->err) : status;
}

static void allocation_that_fails_is_told_and_leaves_nothing_behind(void **state)
{
    struct world *w = *state;
    struct fail_nth fail;
    for (unsigned at = 1;; at++) {
        begin(w);
        fail_nth_begin(&fail, at);
        semel_status status = admit_and_settle(w);
        bool reached = fail_nth_end(&fail);
        semel_store_rollback(w->store);
        if (!reached) {
            ok(w, status);
            break;
        }
        if (status == SEMEL_CLOSED)
            ok(w, semel_store_reopen(w->store, &w->err));
        else
            assert_true(status == SEMEL_RETRY || status == SEMEL_OK); /* what is only kept for next time may fail */
        assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
    }
}

/* ---- round trips --------------------------------------------------------------------------------- */

static int64_t trips_of_a_batch(struct world *w, size_t n, const char *prefix, bool keyed)
{
    static struct semel_admit items[500];
    static char ids[500][24];
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_admit_batch batch = {
        .consumer = CONSUMER, .now_us = NOW, .items = items, .n_items = n, .keys = &key, .n_keys = keyed};
    int64_t before = semel__pg_trips(w->store);
    for (size_t i = 0; i < n; i++) {
        snprintf(ids[i], sizeof(ids[i]), "%s%03zu", prefix, i);
        items[i] = item_of(ids[i], SEMEL_ROW_COMPLETED, keyed ? "k" : NULL);
        items[i].place = i;
    }
    begin(w);
    ok(w, semel_store_admit(w->store, &batch, &w->arena, &w->err));
    ok(w, semel_store_guard(w->store, true, &w->err));
    ok(w, semel_store_guard(w->store, false, &w->err));
    ok(w, semel_store_commit(w->store, &w->err));
    return semel__pg_trips(w->store) - before;
}

static void number_of_round_trips_does_not_grow_with_the_batch(void **state)
{
    struct world *w = *state;
    assert_int_equal(trips_of_a_batch(w, 1, "a", false), 3);
    assert_int_equal(trips_of_a_batch(w, 500, "b", true), 3);
    assert_int_equal(trips_of_a_batch(w, 500, "b", true), 4); /* all refused */
}

/* What this session has not reported yet, which may be that of several transactions. */
static int64_t scans_so_far(struct world *w)
{
    PGresult *res = PQexec(semel_store_native(w->store), "SELECT seq_scan FROM pg_stat_xact_user_tables "
                                                         "WHERE schemaname = 'semel' AND relname = 'record'");
    int64_t n = -1;
    assert_true(semel__str_int64(semel__str(PQgetvalue(res, 0, 0)), &n));
    PQclear(res);
    return n;
}

/* How often a duplicate made the server read the whole inbox. */
static int64_t scans_of_a_duplicate(struct world *w)
{
    begin(w);
    int64_t before = scans_so_far(w);
    assert_false(admit(w, "a"));
    int64_t n = scans_so_far(w) - before;
    ok(w, semel_store_commit(w->store, &w->err));
    return n;
}

static void plan_for_an_empty_table_is_not_kept_when_it_fills(void **state)
{
    struct world *w = *state;
    int64_t scans = 0;
    sql("VACUUM ANALYZE semel.record"); /* now it is known to be empty */
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, semel_store_commit(w->store, &w->err));
    for (int i = 0; i < 10; i++) /* until the server keeps one plan for all */
        scans = scans_of_a_duplicate(w);
    assert_true(scans > 0);
    sql("INSERT INTO semel.inbox (arrival, received_at, updated_at, consumer, source, message_id, status) SELECT n, "
        "now(), now(), 'c', 's', 'other ' || n, 'completed' FROM generate_series(1, 5000) AS n");
    for (int i = 0; i < 300; i++)
        scans = scans_of_a_duplicate(w);
    assert_int_equal(scans, 0);
}

/* ---- a pooler (P17) ------------------------------------------------------------------------------ */

static void store_behind_a_transaction_pooler_leaves_nothing_in_the_session(void **state)
{
    struct world *w = *state; /* P17 */
    struct pg_pooler pooler;
    struct semel_store *stores[3] = {0};
    char url[PG_SERVER_TEXT];
    size_t tag = 0;
    effects();
    pg_pooler_start(&pooler, &world_server, 1);
    snprintf(url, sizeof(url), "postgres://postgres@127.0.0.1:%d/t?semel_pooler=1", pooler.port);
    for (size_t i = 0; i < COUNT(stores); i++)
        ok(w, semel_store_open(&stores[i], linked, url, &usual, &w->err));
    semel_store_close(w->store);
    for (int round = 0; round < 10; round++)
        for (size_t i = 0; i < COUNT(stores); i++) {
            char id[24];
            snprintf(id, sizeof(id), "%d", round * 10 + (int)i);
            w->store = stores[i];
            begin(w);
            assert_true(admit(w, id));
            ok(w, queue(w, 0, PUT, id));
            ok(w, semel_store_collect(w->store, &tag, &w->err));
            ok(w, semel_store_commit(w->store, &w->err));
        }
    assert_true(handler(w, "DO $$ BEGIN ASSERT (SELECT count(*) FROM pg_prepared_statements) = 0; "
                           "ASSERT current_setting('lock_timeout') = '0'; END $$"));
    for (size_t i = 1; i < COUNT(stores); i++)
        semel_store_close(stores[i]);
    w->store = stores[0];
    assert_int_equal(ask("SELECT count(*) FROM effect"), 30);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 30);
    pg_pooler_done(&pooler);
}

int main(void)
{
#define OPEN(test) cmocka_unit_test_setup_teardown(test, opened, world_teardown)
    const struct CMUnitTest tests[] = {
        OPEN(queued_statements_are_a_part_of_the_transaction),
        OPEN(first_failure_is_told_with_the_tag_of_its_handler),
        OPEN(statement_that_cannot_be_prepared_is_blamed_on_its_handler),
        OPEN(failure_met_by_another_operation_is_still_collected),
        OPEN(savepoint_and_check_are_queued_behind_statements),
        OPEN(only_statements_on_data_may_be_queued),
        OPEN(procedure_that_commits_fails_and_commits_nothing),
        OPEN(one_text_is_prepared_once),
        OPEN(answers_larger_than_every_buffer_do_not_stop_the_sending),
        OPEN(batch_with_large_payloads_is_kept_byte_for_byte),
        OPEN(what_most_rows_have_is_kept_as_null),
        OPEN(allocation_that_fails_is_told_and_leaves_nothing_behind),
        OPEN(number_of_round_trips_does_not_grow_with_the_batch),
        OPEN(plan_for_an_empty_table_is_not_kept_when_it_fills),
        OPEN(store_behind_a_transaction_pooler_leaves_nothing_in_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
