/* SPDX-License-Identifier: MIT
 *
 * test_pg_batch.c: the shorter ways of a batch on PostgreSQL decide as the long one does: the insert that expects
 * nothing to be there, the look before the insert, and the transaction that is begun before it is asked for. A
 * duplicate leaves no error in the server's log.
 */
#include <stdio.h>
#include <stdlib.h>

#include <libpq-fe.h>

#include "unit/pg_lib.h"

#define BATCH 20

struct desk {
    struct semel *s;
    struct semel_error err;
    char ids[BATCH][24];
    struct semel_msg msgs[BATCH];
    struct semel_verdict verdicts[BATCH];
};

static int up(void **state)
{
    struct desk *d = calloc(1, sizeof *d);
    char url[PG_SERVER_TEXT];

    assert_non_null(d);
    assert_fine(d, semel_open(&d->s, world_pg_database("batch", url), 0, &d->err));
    *state = d;
    return 0;
}

static int down(void **state)
{
    struct desk *d = *state;

    semel_close(d->s);
    free(d);
    return 0;
}

static long long ask(const char *query)
{
    return pg_server_ask(&world_server, "batch", query);
}

/* How often the server has told its log of a duplicate since the last call. */
static long told_of_duplicates(void)
{
    static long before;
    char line[4096];
    long n = 0, last = before;
    FILE *log = fopen(world_server.process.log, "r");

    assert_non_null(log);
    while (fgets(line, sizeof line, log) != NULL)
        n += strstr(line, "ERROR:") != NULL && strstr(line, "record_pkey") != NULL;
    fclose(log);
    before = n;
    return n - last;
}

static semel_status insert_effect(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                                  struct semel_reply *reply, struct semel_error *err)
{
    char id[64];
    const char *values[1] = {id};
    semel_status status = SEMEL_OK;

    (void)ctx;
    (void)attempt;
    (void)reply;
    snprintf(id, sizeof id, "%.*s", (int)msg->id.n, msg->id.p);
    PGresult *result = PQexecParams(semel_native(s), "INSERT INTO effect VALUES ($1)", 1, NULL, values, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        status = semel_fail_pg(s, result, err);
    PQclear(result);
    return status;
}

/* Messages first, first + 1 ... */
static void fill(struct desk *d, int first)
{
    for (int i = 0; i < BATCH; i++) {
        snprintf(d->ids[i], sizeof d->ids[i], "m-%06d", first + i);
        semel_msg_init(&d->msgs[i]);
        d->msgs[i].consumer = SEMEL_STR("c");
        d->msgs[i].source = SEMEL_STR("s");
        d->msgs[i].id = semel__str(d->ids[i]);
        d->msgs[i].payload = SEMEL_STR("{}");
        semel_verdict_init(&d->verdicts[i]);
    }
}

static semel_status run(struct desk *d)
{
    return semel_inbox_process(d->s, d->msgs, BATCH, insert_effect, NULL, d->verdicts, &d->err);
}

static void process(struct desk *d, int first)
{
    fill(d, first);
    assert_fine(d, run(d));
    for (size_t i = 0; i < BATCH; i++)
        assert_int_equal(d->verdicts[i].act, SEMEL_ACK);
}

static void assert_once(int n)
{
    assert_int_equal(ask("SELECT count(*) FROM effect"), n);
    assert_int_equal(ask("SELECT count(DISTINCT id) FROM effect"), n);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), n);
}

/* ---- duplicates ---------------------------------------------------------------------------------------- */

/* I1, I3, P12 */
static void duplicate_is_refused_without_a_word_and_its_neighbours_run(void **state)
{
    struct desk *d = *state;

    told_of_duplicates();
    for (int i = 0; i < 6; i++)
        process(d, i * BATCH);
    process(d, 6 * BATCH - 1); /* the last one of the batch before, and new ones */
    assert_int_equal(d->verdicts[0].why, SEMEL_WHY_DUPLICATE);
    assert_int_equal(d->verdicts[1].why, SEMEL_WHY_NEW);
    assert_once(7 * BATCH - 1);
    assert_int_equal(told_of_duplicates(), 0);
}

/* ---- the insert that expects nothing ------------------------------------------------------------------- */

/* Rows that were inserted in a subtransaction, as semel._inbox_new does. */
static long long inserted_as_new(void)
{
    return ask("SELECT count(*) FROM semel.record AS r WHERE NOT EXISTS (SELECT FROM effect AS e "
               "WHERE e.id = convert_from(r.key, 'UTF8') AND e.xmin = r.xmin)");
}

/* I1, I3, P90 */
static void after_a_duplicate_conflicts_are_expected_for_a_while(void **state)
{
    struct desk *d = *state;
    int next = BATCH;

    process(d, 0);
    assert_int_equal(inserted_as_new(), BATCH);
    process(d, next - 1);
    next += BATCH - 1;
    assert_int_equal(d->verdicts[0].why, SEMEL_WHY_DUPLICATE);
    for (int i = 0; i < 64; i++, next += BATCH)
        process(d, next);
    assert_int_equal(inserted_as_new(), BATCH);
    process(d, next);
    assert_int_equal(inserted_as_new(), 2 * BATCH);
    assert_once(next + BATCH);
}

/* T2, I3: the other transaction commits as soon as ours waits for it. */
static void message_of_an_open_transaction_is_waited_for_and_then_a_duplicate(void **state)
{
    struct desk *d = *state;
    char url[PG_SERVER_TEXT];
    PGconn *other = PQconnectdb(pg_server_url(&world_server, "batch", url));

    assert_int_equal(PQstatus(other), CONNECTION_OK);
    told_of_duplicates();
    process(d, 100); /* the stream is there */
    PGresult *result = PQexec(other, "BEGIN; INSERT INTO semel.record (arrival, received_at, stream, key) "
                                     "SELECT 1, now(), stream, semel.message_key('m-000007') FROM semel.stream; "
                                     "INSERT INTO effect VALUES ('m-000007')");
    assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
    PQclear(result);
    assert_int_equal(PQsendQuery(other, "DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted) LOOP "
                                        "PERFORM pg_sleep(0.01); END LOOP; END $$; COMMIT"),
                     1);
    process(d, 0);
    for (int i = 0; i < BATCH; i++)
        assert_int_equal(d->verdicts[i].why, i == 7 ? SEMEL_WHY_DUPLICATE : SEMEL_WHY_NEW);
    PQfinish(other);
    assert_once(2 * BATCH);
    assert_int_equal(told_of_duplicates(), 0);
}

/* Messages that differ in everything, one in having none of it; or that have the same in everything. */
static void process_with_fields(struct desk *d, int first, bool differ)
{
    static const char letters[] = "abcdefghijklmnopqrst";

    fill(d, first);
    for (int i = 0; i < BATCH; i++) {
        struct semel_msg *msg = &d->msgs[i];
        const int n = differ ? i : 1;
        if (n == 4)
            continue;
        msg->type = n % 3 == 0 ? SEMEL_STR("paid") : SEMEL_STR("booked");
        msg->order_key = (struct semel_str){letters + n / 2, 1};
        msg->position = (struct semel_str){letters + n, 1};
        msg->traceparent = n % 2 == 0 ? SEMEL_STR("00-1-2-00") : SEMEL_STR("00-1-2-01");
        msg->version = n;
        msg->message_time_us = INT64_C(1700000000000000) + n;
    }
    assert_fine(d, run(d));
    assert_int_equal(d->verdicts[BATCH - 1].why, SEMEL_WHY_NEW);
}

/* In how many places of two batches the rows differ, but for their names and for when they came. */
static long long differ_in(int one, int other)
{
    char query[1024];

    snprintf(query, sizeof query,
             "WITH i AS (SELECT arrival %% 16384 AS place, substr(message_id, 3)::int / 100 * 100 AS first, "
             "to_jsonb(o) - '{arrival,message_id,key,received_at,updated_at,processed_at}'::text[] AS said "
             "FROM semel.inbox AS o) "
             "SELECT count(*) FROM (SELECT * FROM i WHERE first = %d) AS a FULL JOIN "
             "(SELECT * FROM i WHERE first = %d) AS b USING (place) WHERE a.said IS DISTINCT FROM b.said",
             one, other);
    return ask(query);
}

static void every_field_of_a_message_is_stored_by_either_way(void **state)
{
    struct desk *d = *state;

    assert_fine(d, semel_consumer_set(d->s, "c", "{\"order\":\"none\"}", &d->err));
    process_with_fields(d, 0, false);
    process_with_fields(d, 100, true);
    process(d, 1000);
    process(d, 1000);
    process_with_fields(d, 200, false);
    process_with_fields(d, 300, true);
    assert_int_equal(inserted_as_new(), 3 * BATCH);
    assert_int_equal(differ_in(0, 200), 0);
    assert_int_equal(differ_in(100, 300), 0);
    assert_int_equal(differ_in(0, 300), BATCH - 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE num_nulls(type, order_key, position, traceparent, "
                         "version, message_time) = 6"),
                     2 + BATCH);
}

/* ---- the look before ----------------------------------------------------------------------------------- */

/* I1, I2 */
static void old_unfinished_and_new_messages_are_told_apart_after_a_batch_of_duplicates(void **state)
{
    struct desk *d = *state;

    process(d, 0);
    process(d, 0);
    pg_server_sql(&world_server, "batch",
                  "UPDATE semel.inbox SET status = 'failed', processed_at = NULL, payload = '{}', due_at = "
                  "clock_timestamp() + interval '1 hour' WHERE message_id = 'm-000015';"
                  "DELETE FROM effect WHERE id = 'm-000015'");
    process(d, 12); /* 12 to 14 and 16 to 19 are done, 15 waits, the rest is new */
    for (int i = 0; i < BATCH; i++) {
        int id = 12 + i;
        enum semel_why why = id == 15 ? SEMEL_WHY_BACKOFF : id < BATCH ? SEMEL_WHY_DUPLICATE : SEMEL_WHY_NEW;
        assert_int_equal(d->verdicts[i].why, why);
    }
    assert_int_equal(ask("SELECT count(*) FROM effect"), 31);
    assert_int_equal(ask("SELECT count(DISTINCT id) FROM effect"), 31);
}

static void conflict_is_noticed_in_a_batch_of_duplicates(void **state)
{
    struct desk *d = *state;

    process(d, 0);
    process(d, 0);
    fill(d, 0);
    d->msgs[3].payload = SEMEL_STR("{\"other\":1}");
    assert_fine(d, run(d));
    assert_int_equal(d->verdicts[2].why, SEMEL_WHY_DUPLICATE);
    assert_int_equal(d->verdicts[3].why, SEMEL_WHY_CONFLICT);
    assert_once(BATCH);
}

/* ---- begun before it was asked for --------------------------------------------------------------------- */

static void settings_that_changed_between_two_batches_count_for_the_second(void **state)
{
    struct desk *d = *state;
    struct semel *other = NULL;
    char url[PG_SERVER_TEXT];

    process(d, 0);
    assert_fine(d, semel_open(&other, pg_server_url(&world_server, "batch", url), 0, &d->err));
    assert_fine(d, semel_consumer_set(other, "c", "{\"keep_payload\":\"always\"}", &d->err));
    semel_close(other);
    process(d, 100);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE payload IS NOT NULL"), BATCH);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE payload IS NULL"), BATCH);
}

static void batch_that_is_refused_leaves_no_transaction_behind(void **state)
{
    struct desk *d = *state;

    process(d, 0);
    fill(d, 100);
    d->msgs[7].consumer = SEMEL_STR("another");
    assert_int_equal(run(d), SEMEL_INVALID);
    assert_int_equal(PQtransactionStatus(semel_native(d->s)), PQTRANS_IDLE);
    assert_int_equal(PQpipelineStatus(semel_native(d->s)), PQ_PIPELINE_OFF);
    process(d, 100);
    assert_once(2 * BATCH);
}

/* P15 */
static void connection_that_died_between_two_batches_loses_nothing(void **state)
{
    struct desk *d = *state;
    char url[PG_SERVER_TEXT];

    process(d, 0);
    pg_server_sql(&world_server, NULL,
                  "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'batch'");
    fill(d, 100);
    assert_int_equal(run(d), SEMEL_CLOSED);
    semel_close(d->s);
    assert_fine(d, semel_open(&d->s, pg_server_url(&world_server, "batch", url), 0, &d->err));
    process(d, 100);
    assert_once(2 * BATCH);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        TEST(duplicate_is_refused_without_a_word_and_its_neighbours_run),
        TEST(after_a_duplicate_conflicts_are_expected_for_a_while),
        TEST(message_of_an_open_transaction_is_waited_for_and_then_a_duplicate),
        TEST(every_field_of_a_message_is_stored_by_either_way),
        TEST(old_unfinished_and_new_messages_are_told_apart_after_a_batch_of_duplicates),
        TEST(conflict_is_noticed_in_a_batch_of_duplicates),
        TEST(settings_that_changed_between_two_batches_count_for_the_second),
        TEST(batch_that_is_refused_leaves_no_transaction_behind),
        TEST(connection_that_died_between_two_batches_loses_nothing),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
