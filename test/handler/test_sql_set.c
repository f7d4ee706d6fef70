/* SPDX-License-Identifier: MIT
 *
 * test_sql_set.c: the handler `sql` with one statement for many messages, on PostgreSQL.
 */
#include <libpq-fe.h>

#include "handler/route.h"

#define RULES "id json:/account json:/amount"
#define MESSAGES "unnest($1::text[], $2::integer[], $3::integer[]) AS m (id, account, amount)"
/* The natural one, and a trap (P57): it applies one message an account, and drops the others without a word. */
#define UPDATE                                                                                   \
    "UPDATE account AS a SET balance = balance + m.amount, changes = changes + 1 FROM " MESSAGES \
    " WHERE a.account = m.account RETURNING m.id"
#define INSERT "INSERT INTO ledger (id, account, amount) SELECT * FROM " MESSAGES " RETURNING id"

static void books(struct route *w)
{
    sql(w, "CREATE TABLE ledger (id text, account integer, amount integer CHECK (amount <> 13)); "
           "CREATE TABLE account (account integer PRIMARY KEY, balance integer NOT NULL, changes integer NOT NULL); "
           "INSERT INTO account SELECT i, 0, 0 FROM generate_series(0, 9) AS i");
}

static void each_message_takes_effect_once_however_often_it_comes(void **state)
{
    struct route *w = *state;
    enum { N = 150 };
    struct semel__msg msgs[2 * N];
    books(w);
    make(w, SEMEL_SQL_SET, INSERT, RULES);
    for (int i = 0; i < N; i++)
        msgs[i] = msgs[i + N] = booking(w, i, i % 7, i + 100);
    process(w, msgs, 2 * N);
    for (int i = 0; i < N; i++)
        msgs[i] = booking(w, i + N / 2, i % 7, i + N / 2 + 100);
    process(w, msgs, N);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), N + N / 2);
    assert_int_equal(ask(w, "SELECT count(DISTINCT id) FROM ledger"), N + N / 2);
    assert_int_equal(rows(w, "completed"), N + N / 2);
    assert_int_equal(w->inbox.counts.cuts, 0);
}

/* ---- P57 ----------------------------------------------------------------------------------------- */

static void update_that_meets_a_row_twice_is_split_until_each_message_counts(void **state)
{
    struct route *w = *state; /* P57 */
    struct semel__msg msgs[15];
    books(w);
    make(w, SEMEL_SQL_SET, UPDATE, RULES);
    for (int i = 0; i < 15; i++)
        msgs[i] = booking(w, i, i % 10, 1 << i);
    process(w, msgs, 15);
    assert_int_equal(ask(w, "SELECT sum(changes) FROM account"), 15);
    assert_int_equal(ask(w, "SELECT sum(balance) FROM account"), (1 << 15) - 1);
    assert_int_equal(rows(w, "completed"), 15);
    assert_true(w->inbox.counts.cuts > 0);
}

static void sum_of_a_set_needs_no_split(void **state)
{
    struct route *w = *state; /* P57, as docs/handlers.md writes it */
    struct semel__msg msgs[15];
    books(w);
    make(w, SEMEL_SQL_SET,
         "WITH m AS (SELECT * FROM " MESSAGES "), a AS (UPDATE account AS a SET balance = a.balance + s.amount, "
         "changes = a.changes + s.n FROM (SELECT account, sum(amount) AS amount, count(*) AS n FROM m GROUP BY account)"
         " AS s WHERE a.account = s.account RETURNING a.account) SELECT m.id FROM m JOIN a USING (account)",
         RULES);
    for (int i = 0; i < 15; i++)
        msgs[i] = booking(w, i, i < 14 ? i % 10 : 77, 1 << i); /* there is no account 77 */
    process(w, msgs, 15);
    assert_int_equal(ask(w, "SELECT sum(changes) FROM account"), 14);
    assert_int_equal(ask(w, "SELECT sum(balance) FROM account"), (1 << 14) - 1);
    assert_int_equal(rows(w, "dead"), 1);
    assert_error_of(w, "m-14", "named 0 of 1 messages");
}

static void message_that_is_not_named_exactly_once_leaves_no_effect(void **state)
{
    static const char *const endings[] = {
        "SELECT id FROM m WHERE account <> 5",                           /* missing */
        "SELECT id FROM m UNION ALL SELECT id FROM m WHERE account = 5", /* repeated */
        "SELECT CASE account WHEN 5 THEN 'stranger' ELSE id END FROM m", /* foreign */
        "SELECT CASE account WHEN 5 THEN NULL ELSE id END FROM m",       /* nobody */
        "SELECT id FROM m UNION ALL SELECT '' FROM m WHERE account = 5", /* one too many */
        "SELECT CASE account WHEN 5 THEN upper(id) ELSE id END FROM m",  /* nearly */
    };
    struct route *w = *state; /* P57 */
    struct semel__msg msgs[16];
    books(w);
    for (size_t k = 0; k < COUNT(endings); k++) {
        char statement[400];
        sql(w, "TRUNCATE ledger");
        snprintf(statement, sizeof statement,
                 "WITH m AS (SELECT * FROM " MESSAGES "), i AS (INSERT INTO ledger SELECT * FROM m) %s", endings[k]);
        make(w, SEMEL_SQL_SET, statement, RULES);
        for (int i = 0; i < 16; i++)
            msgs[i] = booking(w, (int)k * 100 + i, i, 1);
        process(w, msgs, 16);
        assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 15);
        assert_int_equal(ask(w, "SELECT count(*) FROM ledger WHERE account = 5"), 0);
        assert_int_equal(rows(w, "dead"), k + 1);
        assert_int_equal(w->settled[5].state, SEMEL_ROW_DEAD);
    }
}

/* ---- order --------------------------------------------------------------------------------------- */

#define SPEAK                                                                                                 \
    "WITH m AS (SELECT * FROM unnest($1::text[], $2::text[]) AS m (id, key)), "                               \
    "c AS (INSERT INTO said (ids, keys, n) SELECT array_agg(id), array_agg(DISTINCT key), count(*) FROM m), " \
    "u AS (UPDATE story SET text = text || m.id || ' ' FROM m WHERE story.key = m.key RETURNING m.id) "       \
    "SELECT id FROM u"

static void stories(struct route *w)
{
    sql(w, "CREATE TABLE said (ids text[], keys text[], n integer); CREATE TABLE story (key text, text text); "
           "INSERT INTO story SELECT 'k' || i, '' FROM generate_series(0, 4) AS i");
}

static void key_of_an_ordered_route_is_once_in_a_statement(void **state)
{
    static const char *const keys[] = {"k0", "k1", "k2", "k3", "k4"};
    struct route *w = *state; /* P57 */
    struct semel__msg msgs[14];
    stories(w);
    w->policy.order = SEMEL_ORDER_ARRIVAL;
    make(w, SEMEL_SQL_SET, SPEAK, "id order_key");
    for (int i = 0; i < 14; i++) {
        msgs[i] = booking(w, i, 0, 0);
        msgs[i].order_key = semel__str(keys[i % 5]);
    }
    process(w, msgs, 14);
    assert_int_equal(ask(w, "SELECT count(*) FROM said WHERE cardinality(keys) <> n"), 0);
    assert_int_equal(ask(w, "SELECT count(*) FROM said"), 3); /* 5, 5 and 4 messages */
    assert_int_equal(ask(w, "SELECT sum(n) FROM said"), 14);
    assert_int_equal(ask(w, "SELECT count(*) FROM story WHERE text = 'm-' || right(key, 1) || ' m-' || "
                            "(right(key, 1)::integer + 5) || CASE key WHEN 'k4' THEN ' ' ELSE ' m-' || "
                            "(right(key, 1)::integer + 10) || ' ' END"),
                     5);
    assert_int_equal(w->inbox.counts.cuts, 0);
}

static void set_with_a_key_twice_is_refused_by_the_handler_itself(void **state)
{
    struct route *w = *state; /* P57: should core ever give it one */
    struct semel__msg a = booking(w, 1, 0, 0), b = booking(w, 2, 0, 0);
    const struct semel__msg *both[] = {&a, &b};
    int64_t now_us;
    stories(w);
    w->policy.order = SEMEL_ORDER_ARRIVAL;
    make(w, SEMEL_SQL_SET, SPEAK, "id order_key");
    a.order_key = b.order_key = SEMEL_STR("k1");
    const struct semel__handler *handler = semel__sql_handler(w->sql);
    assert_int_equal(handler->set(handler->ctx, w->store, both, 2, NULL, &w->err), SEMEL_INVALID); /* no transaction */
    assert_ok(w, semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err));
    assert_int_equal(handler->set(handler->ctx, w->store, both, 2, NULL, &w->err), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    semel_store_rollback(w->store);
}

static void messages_of_several_sources_are_a_statement_each(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[9];
    stories(w);
    sql(w, "UPDATE story SET key = 's' || right(key, 1)");
    make(w, SEMEL_SQL_SET,
         "WITH m AS (SELECT * FROM unnest($1::text[], $2::text[]) AS m (id, source)), "
         "c AS (INSERT INTO said SELECT array_agg(id), array_agg(DISTINCT source), count(*) FROM m) SELECT id FROM m",
         "id source");
    for (int i = 0; i < 9; i++) {
        msgs[i] = booking(w, i / 3, 0, 0); /* the same ids in each */
        msgs[i].source = i % 3 == 0 ? SEMEL_STR("s0") : i % 3 == 1 ? SEMEL_STR("s1") : SEMEL_STR("s2");
    }
    process(w, msgs, 9);
    assert_int_equal(rows(w, "completed"), 9);
    assert_int_equal(ask(w, "SELECT count(*) FROM said WHERE cardinality(keys) = 1 AND n = 3"), 3);
}

/* ---- what fails ---------------------------------------------------------------------------------- */

static void poison_in_a_set_is_split_out_and_blamed_alone(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[64];
    books(w);
    make(w, SEMEL_SQL_SET, INSERT, RULES);
    for (int i = 0; i < 64; i++)
        msgs[i] = booking(w, i, 1, i);
    process(w, msgs, 64);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 63);
    assert_int_equal(rows(w, "completed"), 63);
    assert_int_equal(rows(w, "dead"), 1);
    assert_int_equal(w->settled[13].attempt, 1);
    assert_error_of(w, "m-13", "handler: 23514");
}

static void value_that_a_message_does_not_have_fails_it_alone(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[] = {booking(w, 1, 1, 1),
                                message("a", "{\"account\":1}"),
                                booking(w, 2, 1, 1),
                                message("b", "{\"account\":1,\"amount\":\"many\"}"),
                                message("c", "{\"account\":1,\"amount\":99999999999}"),
                                message("d", "\xff")};
    books(w);
    make(w, SEMEL_SQL_SET, INSERT, RULES);
    process(w, msgs, COUNT(msgs));
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 2);
    assert_int_equal(rows(w, "dead"), 4);
    assert_error_of(w, "a", "value $3, json:/amount: the message has none");
    assert_error_of(w, "b", "22P02: invalid input syntax for type integer");
    assert_error_of(w, "c", "22003");
    assert_error_of(w, "d", "the payload is not JSON");
}

static void missing_table_stops_the_route_and_charges_no_message(void **state)
{
    struct route *w = *state; /* P63 */
    struct semel__msg msgs[] = {booking(w, 1, 1, 1), booking(w, 2, 1, 2)};
    books(w);
    make(w, SEMEL_SQL_SET, INSERT, RULES);
    sql(w, "DROP TABLE ledger");
    assert_int_equal(try_process(w, msgs, 2), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_int_equal(rows(w, NULL), 0);
}

static void procedure_hidden_in_a_function_cannot_end_the_transaction(void **state)
{
    struct route *w = *state; /* P58 */
    struct semel__msg msgs[] = {booking(w, 1, 1, 1), booking(w, 2, 1, 5), booking(w, 3, 1, 3)};
    books(w);
    sql(w, "CREATE PROCEDURE finish() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$; "
           "CREATE FUNCTION book(id text, amount integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN "
           "INSERT INTO ledger VALUES (id, 1, amount); IF amount = 5 THEN CALL finish(); END IF; RETURN id; END $$");
    make(w, SEMEL_SQL_SET, "SELECT book(id, amount) FROM unnest($1::text[], $2::integer[]) AS m (id, amount)",
         "id json:/amount");
    process(w, msgs, 3);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 2);
    assert_error_of(w, "m-2", "2D000");
}

static void lack_of_memory_in_a_run_charges_no_message(void **state)
{
    struct route *w = *state;
    struct fail_nth fail;
    unsigned at = 1;
    books(w);
    make(w, SEMEL_SQL_SET, INSERT, RULES);
    for (;; at++) {
        struct semel__msg msgs[] = {booking(w, (int)at * 2, 1, 1), booking(w, (int)at * 2 + 1, 1, 1)};
        fail_nth_begin(&fail, at);
        semel_status status = try_process(w, msgs, 2);
        bool reached = fail_nth_end(&fail);
        if (status != SEMEL_OK) {
            assert_true(reached);
            assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
            process(w, msgs, 2);
        }
        if (!reached)
            break;
    }
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 2 * at);
    assert_int_equal(rows(w, "completed"), 2 * at);
}

/* ---- values -------------------------------------------------------------------------------------- */

static void arrays_of_every_type_arrive_as_they_were_sent(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[] = {
        message("a'\"\\{},;", "{\"n\":12.50,\"b\":true,\"j\":{\"x\":[1,\"{\\\"\"]},\"t\":\"2026-11-15T01:02:03Z\","
                              "\"s\":\"it's \\\\ \\\"NULL\\\", {a,b}\\n\\u0001\",\"i\":-32768,\"l\":9007199254740993}"),
        message("null", "{}"),
        message("b", "{\"s\":\"NULL\",\"n\":-1e3,\"b\":false,\"i\":\"7\",\"l\":-1}"),
    };
    msgs[0].headers = SEMEL_STR("{\"h\":\"\"}");
    sql(w, "CREATE TABLE v (id text, n numeric, b boolean, j jsonb, t timestamptz, s text, i smallint, l bigint, "
           "h varchar, raw bytea)");
    make(w, SEMEL_SQL_SET,
         "INSERT INTO v SELECT * FROM unnest($1::text[], $2::numeric[], $3::boolean[], $4::jsonb[], "
         "$5::timestamptz[], $6::text[], $7::smallint[], $8::bigint[], $9::varchar[], $10::bytea[]) RETURNING id",
         "id optional:json:/n optional:json:/b optional:json:/j optional:json:/t optional:json:/s optional:json:/i "
         "optional:json:/l optional:header:H bytes");
    process(w, msgs, COUNT(msgs));
    assert_int_equal(ask(w, "SELECT count(*) FROM v WHERE id = 'a''\"\\{},;' AND n::text = '12.50' AND b AND "
                            "j = '{\"x\":[1,\"{\\\"\"]}' AND t = '2026-11-15T01:02:03Z' AND i = -32768 AND "
                            "s = E'it''s \\\\ \"NULL\", {a,b}\\n\\x01' AND l = 9007199254740993 AND h = ''"),
                     1);
    assert_int_equal(ask(w, "SELECT count(*) FROM v WHERE id = 'null' AND COALESCE(n::text, b::text, j::text, t::text, "
                            "s, i::text, l::text, h) IS NULL AND raw = '{}'"),
                     1);
    assert_int_equal(ask(w, "SELECT count(*) FROM v WHERE id = 'b' AND s = 'NULL' AND n = -1000 AND NOT b AND i = 7"),
                     1);
}

static void description_is_checked_by_the_server(void **state)
{
    struct route *w = *state;
    books(w);
    sql(w, "CREATE TABLE u (id uuid)");
    assert_refused(w, SEMEL_SQL_SET, "INSERT INTO ledger (id) VALUES ($1) RETURNING id", "id",
                   "$1 is of type text; in a set each parameter is an array: unnest($1::text[])");
    assert_refused(w, SEMEL_SQL_SET, "INSERT INTO ledger (id) SELECT unnest($1::text[])", "id", "add RETURNING");
    assert_refused(w, SEMEL_SQL_SET, "INSERT INTO u SELECT unnest($1::uuid[]) RETURNING id", "id",
                   "its first column is of type uuid");
    assert_refused(w, SEMEL_SQL_SET, "SELECT account::text FROM ledger WHERE account = ANY($1::integer[])",
                   "json:/account", "`id` is not among them");
    assert_refused(w, SEMEL_SQL_SET, "CALL something($1)", "id", "CALL returns no rows");
    assert_refused(w, SEMEL_SQL_SET, "SELECT unnest($1)", "id", "42725");
    assert_refused(w, SEMEL_SQL_SET, "SELECT unnest($1::bytea[])", "id", "use the rule bytes for bytea");
    make(w, SEMEL_SQL_SET, INSERT, RULES);
}

/* ---- connections --------------------------------------------------------------------------------- */

static void run_here(struct route *w, const char *text)
{
    PGresult *result = PQexec(semel_store_native(w->store), text);
    assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
    PQclear(result);
}

static int64_t prepared_here(struct route *w)
{
    PGresult *result = PQexec(semel_store_native(w->store),
                              "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'semel_ask%'");
    int64_t n = -1;
    assert_true(semel__str_int64(semel__str(PQgetvalue(result, 0, 0)), &n));
    PQclear(result);
    return n;
}

static void statement_is_prepared_once_and_again_when_it_is_gone(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[] = {booking(w, 1, 1, 1), booking(w, 2, 1, 1), booking(w, 3, 1, 1), booking(w, 4, 1, 1)};
    books(w);
    make(w, SEMEL_SQL_SET, INSERT, RULES);
    process(w, msgs, 1);
    process(w, msgs + 1, 1);
    assert_int_equal(prepared_here(w), 1);
    assert_ok(w, semel_store_reopen(w->store, &w->err));
    process(w, msgs + 2, 1);
    assert_int_equal(prepared_here(w), 1);
    PGresult *name = PQexec(semel_store_native(w->store),
                            "SELECT name FROM pg_prepared_statements WHERE name LIKE 'semel_ask%'");
    char text[80];
    snprintf(text, sizeof text, "DEALLOCATE %s", PQgetvalue(name, 0, 0));
    PQclear(name);
    run_here(w, text);
    assert_int_equal(try_process(w, msgs + 3, 1), SEMEL_RETRY);
    assert_int_equal(w->err.cls, SEMEL_CLASS_TRANSIENT);
    process(w, msgs + 3, 1);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 4);
}

static void handler_behind_a_pooler_leaves_nothing_in_the_session(void **state)
{
    struct route *w = *state; /* P17 */
    struct semel__msg msgs[] = {booking(w, 1, 1, 1), booking(w, 2, 1, 1)};
    books(w);
    route_reopen(w, "semel_pooler=1");
    make(w, SEMEL_SQL_SET, INSERT, RULES);
    process(w, msgs, 1);
    process(w, msgs + 1, 1);
    assert_int_equal(prepared_here(w), 0);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_ROUTE(each_message_takes_effect_once_however_often_it_comes),
        ON_ROUTE(update_that_meets_a_row_twice_is_split_until_each_message_counts),
        ON_ROUTE(sum_of_a_set_needs_no_split),
        ON_ROUTE(message_that_is_not_named_exactly_once_leaves_no_effect),
        ON_ROUTE(key_of_an_ordered_route_is_once_in_a_statement),
        ON_ROUTE(set_with_a_key_twice_is_refused_by_the_handler_itself),
        ON_ROUTE(messages_of_several_sources_are_a_statement_each),
        ON_ROUTE(poison_in_a_set_is_split_out_and_blamed_alone),
        ON_ROUTE(value_that_a_message_does_not_have_fails_it_alone),
        ON_ROUTE(missing_table_stops_the_route_and_charges_no_message),
        ON_ROUTE(procedure_hidden_in_a_function_cannot_end_the_transaction),
        ON_ROUTE(lack_of_memory_in_a_run_charges_no_message),
        ON_ROUTE(arrays_of_every_type_arrive_as_they_were_sent),
        ON_ROUTE(description_is_checked_by_the_server),
        ON_ROUTE(statement_is_prepared_once_and_again_when_it_is_gone),
        ON_ROUTE(handler_behind_a_pooler_leaves_nothing_in_the_session),
    };
    return route_main(argc, argv, tests, COUNT(tests));
}
