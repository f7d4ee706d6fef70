/* SPDX-License-Identifier: MIT
 *
 * test_pg_lib.c: libsemel on PostgreSQL: on a connection of its own, and on the caller's. What the calls mean is
 * tested on SQLite (test_lib_*.c); here it is what is different: who refuses the commit, whose isolation level it is,
 * and that the SQL functions are another API to the same rows.
 */
#include <stdlib.h>

#include <libpq-fe.h>

#include "core/token.h"
#include "unit/pg_lib.h"

struct handle {
    PGconn *conn; /* the caller's own */
    struct semel *s;
    struct semel_error err;
    struct semel_verdict v;
};

/* ---- the handle ------------------------------------------------------------------------------------------ */

static int up_with(void **state, unsigned flags)
{
    struct handle *d = calloc(1, sizeof *d);
    char url[PG_SERVER_TEXT], conninfo[PG_SERVER_TEXT];

    assert_non_null(d);
    world_pg_database("lib", url);
    d->conn = PQconnectdb(pg_server_conninfo(&world_server, "lib", conninfo));
    assert_int_equal(PQstatus(d->conn), CONNECTION_OK);
    assert_fine(d, semel_wrap_pg(&d->s, d->conn, flags, &d->err));
    semel_verdict_init(&d->v);
    *state = d;
    return 0;
}

static int up(void **state)
{
    return up_with(state, 0);
}

static int up_loose(void **state)
{
    return up_with(state, SEMEL_LOOSE);
}

static int down(void **state)
{
    struct handle *d = *state;

    semel_close(d->s);
    assert_int_equal(PQstatus(d->conn), CONNECTION_OK); /* it is ours */
    PQfinish(d->conn);
    free(d);
    return 0;
}

/* The SQLSTATE of the first failure; "" for none. */
static const char *sql_try(struct handle *d, const char *text)
{
    static char code[8];
    PGresult *result = PQexec(d->conn, text);
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    snprintf(code, sizeof code, "%s", state != NULL ? state : "");
    PQclear(result);
    return code;
}

static void sql(struct handle *d, const char *text)
{
    if (strcmp(sql_try(d, text), "") != 0)
        fail_msg("%s: %s", text, PQerrorMessage(d->conn));
}

static long long ask(const char *text)
{
    return pg_server_ask(&world_server, "lib", text);
}

static struct semel_msg mail(const char *id)
{
    struct semel_msg m;

    semel_msg_init(&m);
    m.consumer = semel_str("c");
    m.id = semel_str(id);
    m.payload = semel_str("{\"n\":1}");
    return m;
}

static void begin(struct handle *d, const struct semel_msg *m, enum semel_act act)
{
    assert_fine(d, semel_inbox_begin(d->s, m, &d->v, &d->err));
    assert_int_equal(d->v.act, act);
}

static void done(struct handle *d, const struct semel_msg *m)
{
    assert_fine(d, semel_inbox_done(d->s, m, semel_str(NULL), &d->err));
}

/* ---- in the caller's transaction ------------------------------------------------------------------------ */

/* I10: a session in which a backslash escapes what follows it, as those of old programs. */
static void backslashes_of_the_caller_may_mean_something_else(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("0192d4a5-0000-7000-8000-000000000001");
    struct semel_msg again = mail("0192d4a5-0000-7000-8000-000000000002");

    m.business_key = again.business_key = semel_str("k");
    sql(d, "SET standard_conforming_strings = off");
    sql(d, "BEGIN");
    begin(d, &m, SEMEL_RUN);
    done(d, &m);
    sql(d, "COMMIT");
    sql(d, "BEGIN");
    begin(d, &again, SEMEL_ACK);
    assert_int_equal(d->v.why, SEMEL_WHY_BUSINESS);
    sql(d, "COMMIT");
}

/* I2, I5 */
static void effect_and_record_are_one_commit_and_a_duplicate_is_acknowledged(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    sql(d, "BEGIN");
    begin(d, &m, SEMEL_RUN);
    sql(d, "INSERT INTO effect VALUES ('a')");
    done(d, &m);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 1);
    sql(d, "BEGIN");
    begin(d, &m, SEMEL_ACK);
    assert_int_equal(d->v.why, SEMEL_WHY_DUPLICATE);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM effect"), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.held"), 0);
}

/* P59 */
static void begin_without_its_end_cannot_commit(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a"), other = mail("b");

    sql(d, "BEGIN");
    begin(d, &m, SEMEL_RUN);
    sql(d, "INSERT INTO effect VALUES ('a')");
    assert_string_equal(sql_try(d, "COMMIT"), "23000");
    assert_int_equal(PQtransactionStatus(d->conn), PQTRANS_IDLE);
    assert_int_equal(ask("SELECT (SELECT count(*) FROM effect) + (SELECT count(*) FROM semel.inbox)"), 0);
    sql(d, "BEGIN"); /* what was begun before is forgotten */
    begin(d, &other, SEMEL_RUN);
    assert_int_equal(semel_pending(d->s), 1);
    done(d, &other);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 1);
}

/* P59: a savepoint takes back the end, and leaves the begin. */
static void end_that_a_savepoint_took_back_cannot_commit_either(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    sql(d, "BEGIN");
    begin(d, &m, SEMEL_RUN);
    sql(d, "SAVEPOINT s");
    done(d, &m);
    sql(d, "ROLLBACK TO s");
    assert_string_equal(sql_try(d, "COMMIT"), "23000");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
}

/* P59: and the effect that was written again is not run a second time. */
static void end_that_a_savepoint_took_back_can_be_written_again(void **state)
{
    struct handle *d = *state;
    const struct semel_msg a = mail("a"), b = mail("b");

    sql(d, "BEGIN");
    begin(d, &a, SEMEL_RUN);
    sql(d, "SAVEPOINT s");
    done(d, &a);
    sql(d, "ROLLBACK TO s");
    begin(d, &b, SEMEL_RUN);
    assert_int_equal(semel_pending(d->s), 2);
    done(d, &b);
    done(d, &a);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 2);
    assert_int_equal(ask("SELECT count(*) FROM semel.held"), 0);
}

/* Nobody tells that a transaction is over: what was begun and ended in it must not be met in the next one. */
static void former_transaction_is_forgotten_whichever_way_it_ended(void **state)
{
    struct handle *d = *state;
    const struct semel_msg a = mail("a"), b = mail("b");

    sql(d, "BEGIN");
    begin(d, &a, SEMEL_RUN);
    done(d, &a);
    begin(d, &b, SEMEL_RUN);
    sql(d, "ROLLBACK; BEGIN");
    assert_int_equal(semel_inbox_done(d->s, &b, semel_str(NULL), &d->err), SEMEL_INVALID);
    begin(d, &a, SEMEL_RUN);
    assert_int_equal(semel_pending(d->s), 1);
    done(d, &a);
    sql(d, "COMMIT; BEGIN");
    begin(d, &a, SEMEL_ACK);
    begin(d, &b, SEMEL_RUN);
    assert_int_equal(semel_pending(d->s), 1);
    done(d, &b);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 2);
}

static void begin_that_a_savepoint_took_back_may_commit(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    sql(d, "BEGIN; SAVEPOINT s");
    begin(d, &m, SEMEL_RUN);
    sql(d, "ROLLBACK TO s; INSERT INTO effect VALUES ('z'); COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
    assert_int_equal(ask("SELECT count(*) FROM effect"), 1);
}

static void loose_handle_lets_a_begin_without_its_end_commit(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    sql(d, "BEGIN");
    begin(d, &m, SEMEL_RUN);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'processing'"), 1);
}

/* I7, P62 */
static void failure_is_recorded_after_the_effect_was_rolled_back(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    sql(d, "BEGIN; SAVEPOINT s");
    begin(d, &m, SEMEL_RUN);
    assert_string_equal(sql_try(d, "INSERT INTO effect VALUES (NULL)"), "23502");
    sql(d, "ROLLBACK TO s");
    assert_fine(d, semel_inbox_fail(d->s, &m, SEMEL_TRANSIENT, semel_str("no id"), &d->v, &d->err));
    assert_int_equal(d->v.act, SEMEL_ACK);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'failed' AND attempts = 1"), 1);
}

static void call_without_a_transaction_says_what_is_missing(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    assert_int_equal(semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_INVALID);
    assert_non_null(strstr(d->err.text, "BEGIN first"));
}

/* P13 */
static void serialization_failure_is_a_retry_at_every_higher_level(void **state)
{
    static const char *const levels[] = {"REPEATABLE READ", "SERIALIZABLE"};
    struct handle *d = *state;

    for (size_t i = 0; i < COUNT(levels); i++) {
        char id[16], text[200];
        snprintf(id, sizeof id, "m%zu", i);
        const struct semel_msg m = mail(id);
        snprintf(text, sizeof text, "BEGIN ISOLATION LEVEL %s; SELECT count(*) FROM effect", levels[i]);
        sql(d, text);
        snprintf(text, sizeof text, "SELECT semel.inbox_begin('c', '%s'); SELECT semel.inbox_done('c', '%s')", id, id);
        pg_server_sql(&world_server, "lib", text);
        assert_int_equal(semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_RETRY);
        assert_int_equal(d->err.cls, SEMEL_CLASS_TRANSIENT);
        sql(d, "ROLLBACK; BEGIN");
        begin(d, &m, SEMEL_ACK);
        sql(d, "COMMIT");
    }
}

/* ---- C and SQL ------------------------------------------------------------------------------------------ */

/* I5, I9: what one of them did is a duplicate through the other, and SQL may end what C began. */
static void c_and_sql_know_of_each_other(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a"), n = mail("b");

    sql(d, "BEGIN; SELECT semel.inbox_begin('c', 'a'); SELECT semel.inbox_done('c', 'a'); COMMIT; BEGIN");
    begin(d, &m, SEMEL_ACK);
    sql(d, "COMMIT; BEGIN");
    begin(d, &n, SEMEL_RUN);
    sql(d, "SELECT semel.inbox_done('c', 'b'); COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 2);
    assert_int_equal(ask("SELECT (act = 'ack' AND why = 'duplicate')::int FROM semel.inbox_begin('c', 'b')"), 1);
}

/* P59: a handle ends only what it began itself; refused in words, the message is still open, and still SQL's to end. */
static void what_sql_began_is_for_sql_to_end(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    for (int ordered = 0; ordered < 2; ordered++) {
        const char *begin_sql = ordered ? "BEGIN; SELECT semel.inbox_begin('c', 'a', order_key => 'k')"
                                        : "BEGIN; SELECT semel.inbox_begin('c', 'a')";
        sql(d, begin_sql);
        assert_int_equal(semel_inbox_done(d->s, &m, semel_str(NULL), &d->err), SEMEL_INVALID);
        assert_non_null(strstr(d->err.text, "was not begun"));
        assert_string_equal(sql_try(d, "COMMIT"), "23000");
        assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
    }
    sql(d, "BEGIN; SELECT semel.inbox_begin('c', 'a')");
    assert_int_equal(semel_inbox_done(d->s, &m, semel_str(NULL), &d->err), SEMEL_INVALID);
    sql(d, "SELECT semel.inbox_done('c', 'a'); COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 1);
}

/* P59: SQL has ended what C began: for C it has its end, and the next one is begun as ever. */
static void what_sql_ended_is_over_for_c(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a"), n = mail("b");

    sql(d, "BEGIN");
    begin(d, &m, SEMEL_RUN);
    sql(d, "SELECT semel.inbox_fail('c', 'a', class => 'permanent')");
    assert_int_equal(semel_inbox_done(d->s, &m, semel_str(NULL), &d->err), SEMEL_INVALID);
    begin(d, &n, SEMEL_RUN);
    done(d, &n);
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'a' AND status = 'dead'"), 1);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'b' AND status = 'completed'"), 1);
}

/* ---- in our transactions -------------------------------------------------------------------------------- */

static semel_status insert_effect(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                                  struct semel_reply *reply, struct semel_error *err)
{
    char id[64];
    const char *values[1] = {strncmp(msg->id.p, "bad", 3) == 0 ? NULL : id};
    semel_status status = SEMEL_OK;
    PGresult *result;

    (void)ctx;
    (void)attempt;
    (void)reply;
    snprintf(id, sizeof id, "%.*s", (int)msg->id.n, msg->id.p);
    result = PQexecParams(semel_native(s), "INSERT INTO effect VALUES ($1)", 1, NULL, values, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        status = semel_fail_pg(s, result, err);
    PQclear(result);
    return status;
}

static void process(struct handle *d, struct semel *s)
{
    struct semel_msg msgs[] = {mail("p1"), mail("bad"), mail("p2"), mail("p1")};
    struct semel_verdict verdicts[COUNT(msgs)];

    assert_fine(d, semel_inbox_process(s, msgs, COUNT(msgs), insert_effect, NULL, verdicts, &d->err));
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_int_equal(verdicts[i].act, SEMEL_ACK);
    assert_int_equal(ask("SELECT count(*) FROM effect"), 2);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 2);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE message_id = 'bad' AND status = 'dead'"), 1);
}

/* I2, I7, P71 */
static void batch_on_the_callers_connection_blames_only_the_culprit(void **state)
{
    struct handle *d = *state;

    process(d, d->s);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE error_text LIKE '%23502%'"), 1);
    assert_int_equal(PQtransactionStatus(d->conn), PQTRANS_IDLE);
    assert_int_equal(PQpipelineStatus(d->conn), PQ_PIPELINE_OFF);
    assert_int_equal(ask("SELECT count(*) FROM pg_prepared_statements"), 0);
}

static void batch_on_a_connection_of_its_own_does_the_same(void **state)
{
    struct handle *d = *state;
    struct semel *s = NULL;
    char url[PG_SERVER_TEXT];

    assert_fine(d, semel_open(&s, pg_server_url(&world_server, "lib", url), 0, &d->err));
    process(d, s);
    semel_close(s);
}

static void claim_without_a_word_about_the_effect_is_refused(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    assert_int_equal(semel_inbox_claim(d->s, &m, 0, &d->v, &d->err), SEMEL_INVALID);
    assert_non_null(strstr(d->err.text, "has not said where its effect is"));
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 0);
}

/* I3 */
static void claim_is_committed_and_finished_under_its_token(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");

    assert_fine(d, semel_consumer_set(d->s, "c", "{\"effect\": \"keyed\"}", &d->err));
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
    assert_int_equal(d->v.act, SEMEL_RUN);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'processing'"), 1);
    assert_fine(d, semel_inbox_renew(d->s, d->v.token, 1000, &d->err));
    assert_int_equal(semel_inbox_finish(d->s, d->v.token + 4096, SEMEL_DONE, semel_str(NULL), semel_str(NULL), &d->err),
                     SEMEL_FENCED);
    assert_fine(d, semel_inbox_finish(d->s, d->v.token, SEMEL_DONE, semel_str("{\"n\":1}"), semel_str(NULL), &d->err));
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox WHERE status = 'completed'"), 1);
    assert_fine(d, semel_tick(d->s, 100, NULL, &d->err));
}

/* A8 P80: the token tells that its effect is in this database, whoever claimed it and even when its row is gone. */
static void late_done_keeps_the_effect_from_being_committed(void **state)
{
    struct handle *d = *state;
    const struct semel_msg m = mail("a");
    int64_t tokens[2];

    assert_fine(d, semel_consumer_set(d->s, "c", "{\"effect\": \"atomic\"}", &d->err));
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
    tokens[0] = d->v.token;
    tokens[1] = ask("SELECT token FROM semel.inbox_claim('c', 'b')");
    for (int i = 0; i < 2; i++) { /* A7: both make the same kind */
        enum semel_effect effect;
        assert_true(semel__token_effect(tokens[i], &effect) && effect == SEMEL_EFFECT_ATOMIC);
        assert_true(llabs(semel__token_us(tokens[i]) / 1000000 - ask("SELECT extract(epoch FROM now())::bigint")) < 60);
        assert_true((tokens[i] & 127) != 0);
    }
    ask("WITH gone AS (DELETE FROM semel.inbox RETURNING 1) SELECT count(*) FROM gone");
    for (int i = 0; i < 2; i++) {
        sql(d, "BEGIN");
        assert_int_equal(semel_inbox_finish(d->s, tokens[i], SEMEL_TRANSIENT, semel_str(NULL), semel_str(NULL),
                                            &d->err),
                         SEMEL_FENCED);
        sql(d, "COMMIT"); /* a failure that comes late has no effect */
        sql(d, "BEGIN");
        assert_int_equal(semel_inbox_finish(d->s, tokens[i], SEMEL_DONE, semel_str(NULL), semel_str(NULL), &d->err),
                         SEMEL_FENCED);
        assert_non_null(strstr(d->err.text, "must not be committed"));
        sql(d, "INSERT INTO effect VALUES ('a')");
        assert_string_equal(sql_try(d, "COMMIT"), "55000");
        assert_int_equal(ask("SELECT count(*) FROM effect"), 0);
    }
    sql(d, "BEGIN; INSERT INTO effect VALUES ('a'); COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM effect"), 1);
}

/* I21 */
static void event_leaves_only_with_the_commit(void **state)
{
    struct handle *d = *state;
    struct semel_event event;
    char id[SEMEL_EVENT_ID_SIZE];

    semel_event_init(&event);
    event.aggregatetype = semel_str("order");
    event.aggregateid = semel_str("1");
    event.type = semel_str("paid");
    sql(d, "BEGIN");
    assert_fine(d, semel_outbox_put(d->s, &event, id, &d->err));
    sql(d, "ROLLBACK; BEGIN");
    assert_fine(d, semel_outbox_put(d->s, &event, id, &d->err));
    sql(d, "COMMIT");
    assert_int_equal(ask("SELECT count(*) FROM semel.outbox"), 1);
}

static struct semel_event event_of(const char *aggregate)
{
    struct semel_event event;
    semel_event_init(&event);
    event.aggregatetype = semel_str("order");
    event.aggregateid = semel_str(aggregate);
    event.type = semel_str("paid");
    event.lock = true;
    return event;
}

static long long numbers_drawn(void)
{
    return ask("SELECT last_value FROM semel.outbox_seq_seq");
}

/* O5 */
static void event_with_lock_locks_its_aggregate_before_the_number_is_drawn(void **state)
{
    struct handle *d = *state, other = {0};
    struct semel_event event = event_of("1");
    char conninfo[PG_SERVER_TEXT];

    other.conn = PQconnectdb(pg_server_conninfo(&world_server, "lib", conninfo));
    sql(&other, "SET lock_timeout = '50ms'");
    sql(d, "SET lock_timeout = '50ms'; BEGIN");
    assert_fine(d, semel_outbox_put(d->s, &event, NULL, &d->err));
    assert_string_equal(sql_try(&other, "SELECT semel.outbox_put('order', '1', 'paid', lock => true)"), "55P03");
    sql(&other, "SELECT semel.outbox_put('order', '2', 'paid', lock => true)");
    sql(d, "COMMIT");
    sql(&other, "BEGIN; SELECT semel.outbox_put('order', '1', 'paid', lock => true)");

    long long drawn = numbers_drawn();
    sql(d, "BEGIN");
    assert_int_equal(semel_outbox_put(d->s, &event, NULL, &d->err), SEMEL_RETRY);
    assert_int_equal(numbers_drawn(), drawn);
    sql(d, "ROLLBACK; BEGIN");
    event.size = offsetof(struct semel_event, lock); /* a caller that was compiled before there was a lock */
    assert_fine(d, semel_outbox_put(d->s, &event, NULL, &d->err));
    assert_int_equal(numbers_drawn(), drawn + 1);
    sql(d, "COMMIT");
    PQfinish(other.conn);
}

/* P83 */
static void events_with_lock_from_c_and_sql_have_one_bound_per_transaction(void **state)
{
    struct handle *d = *state;
    char name[16];

    sql(d, "BEGIN; SELECT count(semel.outbox_put('order', i::text, 'paid', lock => true)) "
           "FROM generate_series(1, 980) AS i");
    for (int i = 981; i <= 1000; i++) {
        snprintf(name, sizeof name, "%d", i);
        struct semel_event event = event_of(name);
        assert_fine(d, semel_outbox_put(d->s, &event, NULL, &d->err));
    }
    struct semel_event event = event_of("1001");
    assert_int_equal(semel_outbox_put(d->s, &event, NULL, &d->err), SEMEL_INVALID);
    assert_non_null(strstr(d->err.text, "more than 1000 aggregates"));
    event.lock = false;
    assert_fine(d, semel_outbox_put(d->s, &event, NULL, &d->err)); /* nothing was put, and the transaction goes on */
    assert_string_equal(sql_try(d, "SELECT semel.outbox_put('order', '1002', 'paid', lock => true)"), "22023");
    sql(d, "ROLLBACK");
    event.lock = true;
    assert_fine(d, semel_outbox_put(d->s, &event, NULL, &d->err));
    assert_int_equal(ask("SELECT count(*) FROM semel.outbox"), 1);

    /* Calls are counted, locks are what is bounded. */
    sql(d, "BEGIN");
    for (int i = 0; i < 1010; i++)
        assert_fine(d, semel_outbox_put(d->s, &event, NULL, &d->err));
    sql(d, "COMMIT");
}

/* ---- bad input ------------------------------------------------------------------------------------------ */

static void wrong_calls_are_refused_in_words(void **state)
{
    struct handle *d = *state;
    struct semel *s = NULL;

    assert_int_equal(semel_wrap_pg(NULL, d->conn, 0, &d->err), SEMEL_INVALID);
    assert_int_equal(semel_wrap_pg(&s, NULL, 0, &d->err), SEMEL_INVALID);
    assert_non_null(strstr(d->err.text, "conn is NULL"));
    assert_int_equal(semel_wrap_pg(&s, d->conn, SEMEL_CREATE, &d->err), SEMEL_INVALID);
    assert_non_null(strstr(d->err.text, "SEMEL_MIGRATE and SEMEL_LOOSE"));
    sql(d, "BEGIN");
    assert_string_equal(sql_try(d, "SELECT 1 / 0"), "22012");
    assert_int_equal(semel_wrap_pg(&s, d->conn, 0, &d->err), SEMEL_INVALID);
    assert_null(s);
    sql(d, "ROLLBACK");
    assert_int_equal(semel_open(&s, "postgres://nobody@127.0.0.1:1/x", 0, &d->err), SEMEL_RETRY);
    assert_int_equal(d->err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_int_equal(semel_fail_sqlite(d->s, 19, &d->err), SEMEL_INVALID);
    assert_non_null(strstr(d->err.text, "not one on SQLite"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        TEST(effect_and_record_are_one_commit_and_a_duplicate_is_acknowledged),
        TEST(backslashes_of_the_caller_may_mean_something_else),
        TEST(begin_without_its_end_cannot_commit),
        TEST(end_that_a_savepoint_took_back_cannot_commit_either),
        TEST(end_that_a_savepoint_took_back_can_be_written_again),
        TEST(former_transaction_is_forgotten_whichever_way_it_ended),
        TEST(begin_that_a_savepoint_took_back_may_commit),
        cmocka_unit_test_setup_teardown(loose_handle_lets_a_begin_without_its_end_commit, up_loose, down),
        TEST(failure_is_recorded_after_the_effect_was_rolled_back),
        TEST(call_without_a_transaction_says_what_is_missing),
        TEST(serialization_failure_is_a_retry_at_every_higher_level),
        TEST(c_and_sql_know_of_each_other),
        TEST(what_sql_began_is_for_sql_to_end),
        TEST(what_sql_ended_is_over_for_c),
        TEST(batch_on_the_callers_connection_blames_only_the_culprit),
        TEST(batch_on_a_connection_of_its_own_does_the_same),
        TEST(claim_without_a_word_about_the_effect_is_refused),
        TEST(claim_is_committed_and_finished_under_its_token),
        TEST(late_done_keeps_the_effect_from_being_committed),
        TEST(event_leaves_only_with_the_commit),
        TEST(event_with_lock_locks_its_aggregate_before_the_number_is_drawn),
        TEST(events_with_lock_from_c_and_sql_have_one_bound_per_transaction),
        TEST(wrong_calls_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
