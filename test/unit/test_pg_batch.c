/* SPDX-License-Identifier: MIT
 *
 * test_pg_batch.c: the shorter ways of a batch on PostgreSQL decide as the long one does: the look before the insert,
 * and the transaction that is begun before it is asked for. A duplicate leaves no error in the server's log.
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
        TEST(old_unfinished_and_new_messages_are_told_apart_after_a_batch_of_duplicates),
        TEST(conflict_is_noticed_in_a_batch_of_duplicates),
        TEST(settings_that_changed_between_two_batches_count_for_the_second),
        TEST(batch_that_is_refused_leaves_no_transaction_behind),
        TEST(connection_that_died_between_two_batches_loses_nothing),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
