/* SPDX-License-Identifier: MIT
 *
 * test_sql_each.c: the handler `sql` with a statement a message, on both databases.
 */
#include "handler/route.h"

#define BOOK "INSERT INTO ledger (id, account, amount) VALUES ($1, $2, $3)"
#define BOOK_RULES "id json:/account json:/amount"

static void books(struct route *w)
{
    sql(w, "CREATE TABLE ledger (id text NOT NULL, account integer NOT NULL, amount integer NOT NULL "
           "CHECK (amount <> 13))");
}

static void note_table(struct route *w)
{
    sql(w, w->pg ? "CREATE TABLE note (id text PRIMARY KEY, body text, n bigint, raw bytea)"
                 : "CREATE TABLE note (id text PRIMARY KEY, body text, n bigint, raw blob)");
}

/* ---- effects ------------------------------------------------------------------------------------- */

static void each_message_takes_effect_once_however_often_it_comes(void **state)
{
    struct route *w = *state;
    enum { N = 150 };
    struct semel__msg msgs[2 * N];
    books(w);
    make(w, SEMEL_SQL_EACH, BOOK, BOOK_RULES);
    for (int i = 0; i < N; i++) /* each twice within the batch */
        msgs[i] = msgs[i + N] = booking(w, i, i % 7, i + 100);
    process(w, msgs, 2 * N);
    for (int i = 0; i < N; i++) /* and some again, among new ones */
        msgs[i] = booking(w, i + N / 2, i % 7, i + N / 2 + 100);
    process(w, msgs, N);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), N + N / 2);
    assert_int_equal(ask(w, "SELECT count(DISTINCT id) FROM ledger"), N + N / 2);
    assert_int_equal(rows(w, "completed"), N + N / 2);
}

static void rows_that_a_statement_returns_are_dropped(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[] = {booking(w, 1, 1, 1), booking(w, 2, 1, 1)};
    books(w);
    sql(w, "INSERT INTO ledger VALUES ('a', 1, 1), ('b', 1, 1), ('c', 1, 1)");
    make(w, SEMEL_SQL_EACH, "/* look */ SELECT * FROM ledger WHERE id <> $1;", "id");
    process(w, msgs, 2);
    make(w, SEMEL_SQL_EACH, "-- a note\nWITH x AS (SELECT 1) SELECT * FROM x", "");
    msgs[0] = booking(w, 3, 1, 1);
    process(w, msgs, 1);
    assert_int_equal(rows(w, "completed"), 3);
}

static void failing_message_is_blamed_alone_and_its_neighbours_are_done(void **state)
{
    struct route *w = *state; /* 23 is permanent */
    struct semel__msg msgs[20];
    books(w);
    make(w, SEMEL_SQL_EACH, BOOK, BOOK_RULES);
    for (int i = 0; i < 20; i++)
        msgs[i] = booking(w, i, 1, i);
    process(w, msgs, 20);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 19);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger WHERE amount = 13"), 0);
    assert_int_equal(rows(w, "completed"), 19);
    assert_int_equal(rows(w, "dead"), 1);
    assert_error_of(w, "m-13", w->pg ? "handler: 23514" : "CHECK constraint failed");
}

static void handler_goes_on_after_a_new_connection(void **state)
{
    struct route *w = *state;
    struct semel__msg a = booking(w, 1, 1, 1), b = booking(w, 2, 1, 1);
    books(w);
    make(w, SEMEL_SQL_EACH, BOOK, BOOK_RULES);
    process(w, &a, 1);
    assert_ok(w, semel_store_reopen(w->store, &w->err));
    process(w, &b, 1);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 2);
}

static void missing_table_stops_the_route_and_charges_no_message(void **state)
{
    struct route *w = *state; /* P63 */
    struct semel__msg msgs[] = {booking(w, 1, 1, 1), booking(w, 2, 1, 2)};
    books(w);
    make(w, SEMEL_SQL_EACH, BOOK, BOOK_RULES);
    sql(w, "DROP TABLE ledger");
    assert_int_equal(try_process(w, msgs, 2), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_int_equal(w->settled[0].act, SEMEL_LATER);
    assert_int_equal(w->settled[1].act, SEMEL_LATER);
    assert_int_equal(rows(w, NULL), 0);
    books(w);
    process(w, msgs, 2);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 2);
}

/* ---- values -------------------------------------------------------------------------------------- */

static void value_that_is_missing_is_null_only_where_it_may_be(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[] = {message("a", "{\"n\":1}"), message("b", "{\"t\":\"x\",\"n\":2}"),
                                message("c", "{}"),        message("d", "{\"t\":null,\"n\":null}"),
                                message("e", "no json"),   message("f", "{\"n\":3,\"t\":null}")};
    note_table(w);
    make(w, SEMEL_SQL_EACH, "INSERT INTO note (id, n, body) VALUES ($1, $2, $3)", "id json:/n optional:json:/t");
    process(w, msgs, COUNT(msgs));
    assert_int_equal(ask(w, "SELECT count(*) FROM note"), 3);
    assert_int_equal(ask(w, "SELECT count(*) FROM note WHERE id IN ('a', 'f') AND body IS NULL"), 2);
    assert_int_equal(ask(w, "SELECT n FROM note WHERE id = 'b' AND body = 'x'"), 2);
    assert_int_equal(rows(w, "dead"), 3);
    assert_error_of(w, "c", "value $2, json:/n: the message has none");
    assert_error_of(w, "d", "value $2, json:/n: the message has none");
    assert_error_of(w, "e", "the payload is not JSON: JSON: ");
}

static void hostile_text_reaches_the_table_as_it_is(void **state)
{
    struct route *w = *state;
    static const char text[] = "'; DROP TABLE note; -- \" \\ $1 {},NULL \x01\x1f\x7f \xc3\xa9 \xf0\x9f\x90\x98\n\t";
    struct semel__msg msg = message("it's \"$1\"; --", text);
    note_table(w);
    make(w, SEMEL_SQL_EACH, "INSERT INTO note (id, body) VALUES ($1, $2)", "id body");
    process(w, &msg, 1);
    assert_int_equal(ask(w, "SELECT count(*) FROM note WHERE id = 'it''s \"$1\"; --'"), 1);
    assert_int_equal(ask(w, "SELECT length(body) FROM note"), sizeof text - 1 - 1 - 3); /* two longer characters */
    assert_int_equal(ask(w, "SELECT count(*) FROM note WHERE body LIKE '''; DROP TABLE note; -- \" %'"), 1);
}

static void strings_of_json_are_given_decoded(void **state)
{
    struct route *w = *state;
    struct semel__msg msg = message("a", "{\"x\":[0,{\"k~/\\u0041\":\"q\\\"\\\\\\/\\n\\u00e9\\ud83d\\udc18\"}]}");
    note_table(w);
    make(w, SEMEL_SQL_EACH, "INSERT INTO note (id, body) VALUES ($1, $2)", "id json:/x/1/k~0~1A");
    process(w, &msg, 1);
    assert_int_equal(ask(w, "SELECT count(*) FROM note WHERE body = 'q\"\\/\n\xc3\xa9\xf0\x9f\x90\x98'"), 1);
}

static void text_that_no_database_holds_fails_for_good_and_alone(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[] = {message("a", "x"), message("b", "y"), message("c", "z"), message("d", "\xff\xfe")};
    msgs[1].payload = (struct semel_str){"y\0y", 3};
    note_table(w);
    make(w, SEMEL_SQL_EACH, "INSERT INTO note (id, body) VALUES ($1, $2)", "id body");
    process(w, msgs, COUNT(msgs));
    assert_int_equal(ask(w, "SELECT count(*) FROM note WHERE id IN ('a', 'c')"), 2);
    assert_int_equal(ask(w, "SELECT count(*) FROM note"), 2);
    assert_int_equal(rows(w, "dead"), 2);
    assert_error_of(w, "b", "value $2, body: it is not UTF-8 text without NUL");
    assert_error_of(w, "d", "value $2, body: it is not UTF-8 text without NUL");
}

static void bytes_are_kept_whatever_they_are(void **state)
{
    struct route *w = *state;
    struct semel__msg msgs[] = {message("a", ""), message("b", "")};
    msgs[0].payload = (struct semel_str){"\0\\x41\xff", 6};
    note_table(w);
    make(w, SEMEL_SQL_EACH, "INSERT INTO note (id, raw) VALUES ($1, $2)", "id bytes");
    process(w, msgs, 2);
    assert_int_equal(ask(w, "SELECT length(raw) FROM note WHERE id = 'a'"), 6);
    assert_int_equal(ask(w, "SELECT length(raw) FROM note WHERE id = 'b'"), 0);
    assert_int_equal(ask(w, w->pg ? "SELECT count(*) FROM note WHERE raw = '\\x005c783431ff'"
                                  : "SELECT count(*) FROM note WHERE raw = x'005c783431ff'"),
                     1);
}

static void numbers_and_truth_are_what_their_columns_say(void **state)
{
    struct route *w = *state;
    struct semel__msg msg = message("a", " { \"i\" : -7, \"r\" : 2.5e1, \"t\":true , \"f\":false, \"big\":"
                                         "123456789012345678901234567890, \"o\": {\"a\":[1, 2]} } ");
    sql(w, w->pg ? "CREATE TABLE v (i integer, r numeric, t boolean, f boolean, big numeric, o text)"
                 : "CREATE TABLE v (i, r, t, f, big, o)");
    make(w, SEMEL_SQL_EACH, "INSERT INTO v VALUES ($1, $2, $3, $4, $5, $6)",
         "json:/i json:/r json:/t json:/f json:/big json:/o");
    process(w, &msg, 1);
    assert_int_equal(ask(w, "SELECT count(*) FROM v WHERE i + 1 = -6 AND r * 2 = 50 AND t AND NOT f"), 1);
    assert_int_equal(ask(w, "SELECT count(*) FROM v WHERE o = '{\"a\":[1, 2]}'"), 1);
    assert_int_equal(ask(w, w->pg ? "SELECT count(*) FROM v WHERE big = 123456789012345678901234567890"
                                  : "SELECT count(*) FROM v WHERE big = '123456789012345678901234567890'"),
                     1);
}

static void fields_of_a_message_are_values_too(void **state)
{
    struct route *w = *state;
    struct semel__msg msg = message("a", "{}");
    msg.type = SEMEL_STR("paid");
    w->policy.order = SEMEL_ORDER_ARRIVAL; /* else keys are not kept */
    msg.order_key = SEMEL_STR("k");
    msg.version = 42;
    msg.message_time_us = INT64_C(1700000000000001);
    msg.position = SEMEL_STR("p-1");
    msg.headers = SEMEL_STR("{\"X-A\":\"one\",\"x-b\":[\"two\",\"three\"],\"x-c\":{\"hex\":\"ff\"}}");
    sql(w, "CREATE TABLE f (a text, b text, c text, d text, e text, f text, g text, h text, i text)");
    make(w, SEMEL_SQL_EACH, "INSERT INTO f VALUES ($1, $2, $3, CAST($4 AS text), $5, $6, $7, $8, $9)",
         "source type order_key version time position header:x-a header:X-B optional:traceparent");
    process(w, &msg, 1);
    assert_int_equal(ask(w,
                         "SELECT count(*) FROM f WHERE a = 's' AND b = 'paid' AND c = 'k' AND d = '42' AND "
                         "e = '2023-11-14T22:13:20.000001Z' AND f = 'p-1' AND g = 'one' AND h = 'two' AND i IS NULL"),
                     1);
    make(w, SEMEL_SQL_EACH, "INSERT INTO f (a) VALUES ($1)", "header:x-c");
    msg.id = SEMEL_STR("b");
    process(w, &msg, 1);
    assert_error_of(w, "b", "value $1, header:x-c: the header is not UTF-8 text");
}

/* ---- the end of the transaction ------------------------------------------------------------------ */

static void statement_that_ends_the_transaction_takes_nothing_with_it(void **state)
{
    struct route *w = *state; /* P58 */
    struct semel__msg msgs[9];
    books(w);
    if (w->pg)
        sql(w, "CREATE PROCEDURE book(id text, account integer, amount integer) LANGUAGE plpgsql AS $$ BEGIN "
               "INSERT INTO ledger VALUES (id, account, amount); IF amount = 5 THEN COMMIT; END IF; END $$");
    else
        sql(w, "CREATE UNIQUE INDEX one ON ledger (amount); INSERT INTO ledger VALUES ('x', 0, 5)");
    make(w, SEMEL_SQL_EACH,
         w->pg ? "CALL book($1, $2, $3)" : "INSERT OR ROLLBACK INTO ledger (id, account, amount) VALUES ($1, $2, $3)",
         BOOK_RULES);
    for (int i = 0; i < 9; i++)
        msgs[i] = booking(w, i, 1, i);
    process(w, msgs, 9);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger WHERE id <> 'x'"), 8);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger WHERE id = 'm-5'"), 0);
    assert_int_equal(rows(w, "completed"), 8);
    assert_int_equal(rows(w, "dead"), 1);
    assert_error_of(w, "m-5", w->pg ? "2D000: invalid transaction termination" : "the transaction was ended");
}

static void handler_that_makes_commits_unsafe_is_refused_and_blamed(void **state)
{
    struct route *w = *state; /* P72 */
    struct semel__msg msgs[] = {booking(w, 1, 1, 1), booking(w, 2, 1, 5), booking(w, 3, 1, 3)};
    if (!w->pg)
        skip();
    books(w);
    sql(w, "CREATE FUNCTION book(id text, account integer, amount integer) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
           "INSERT INTO ledger VALUES (id, account, amount); "
           "IF amount = 5 THEN PERFORM set_config('synchronous_commit', 'off', false); END IF; END $$");
    make(w, SEMEL_SQL_EACH, "SELECT book($1, $2, $3)", BOOK_RULES);
    process(w, msgs, 3);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 2);
    assert_int_equal(rows(w, "completed"), 2);
    assert_error_of(w, "m-2", "synchronous_commit");
}

static void what_a_statement_leaves_in_the_session_does_not_stop_the_next(void **state)
{
    struct route *w = *state; /* P64 */
    struct semel__msg msgs[4];
    if (!w->pg)
        skip();
    sql(w,
        "CREATE TABLE seen (id text, lock_timeout text, cursors integer); "
        "CREATE FUNCTION litter(id text) RETURNS void LANGUAGE plpgsql AS $$ DECLARE c refcursor; BEGIN "
        "INSERT INTO seen SELECT id, current_setting('lock_timeout'), count(*) FROM pg_cursors WHERE name LIKE '<%'; "
        "PERFORM set_config('lock_timeout', '7', false); "
        "OPEN c FOR SELECT 1; CREATE TEMP TABLE IF NOT EXISTS litter (x integer); END $$");
    make(w, SEMEL_SQL_EACH, "SELECT litter($1)", "id");
    for (int i = 0; i < 4; i++) {
        msgs[i] = booking(w, i, 1, 1);
        process(w, msgs + i, 1);
    }
    assert_int_equal(ask(w, "SELECT count(*) FROM seen WHERE lock_timeout = '500ms' AND cursors = 0"), 4);
}

/* ---- descriptions -------------------------------------------------------------------------------- */

static void description_is_checked_by_the_database(void **state)
{
    struct route *w = *state;
    books(w);
    assert_refused(w, SEMEL_SQL_EACH, "INSERT INTO nowhere VALUES ($1)", "id", "nowhere");
    assert_refused(w, SEMEL_SQL_EACH, "INSERT INTO ledger (nothing) VALUES ($1)", "id", "nothing");
    assert_refused(w, SEMEL_SQL_EACH, "INSERT INTO INTO ledger VALUES ($1)", "id", "syntax error");
    if (w->pg) {
        assert_refused(w, SEMEL_SQL_EACH, "SELECT * FROM ledger\nWHERE no = $1", "id", "at character 28");
        assert_refused(w, SEMEL_SQL_EACH, "SELECT $1::bytea", "body", "use the rule bytes for bytea");
        assert_refused(w, SEMEL_SQL_EACH, "SELECT $1::text", "bytes", "$1 is of type text, and its value is bytes");
        assert_refused(w, SEMEL_SQL_EACH, "SELECT jsonb_build_object('a', $1)", "id", "42P18");
    } else {
        assert_refused(w, SEMEL_SQL_SET, "SELECT $1", "id", "sets need PostgreSQL");
        assert_refused(w, SEMEL_SQL_EACH, "CALL something($1)", "id", "syntax error");
    }
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 0);
    make(w, SEMEL_SQL_EACH, BOOK, BOOK_RULES); /* the connection is as good as before */
}

static void effects_outside_are_not_for_sql(void **state)
{
    struct route *w = *state;
    struct semel__msg msg = booking(w, 1, 1, 1);
    books(w);
    w->policy.effect = SEMEL_EFFECT_OUTSIDE;
    w->policy.effect_said = true;
    make(w, SEMEL_SQL_EACH, BOOK, BOOK_RULES);
    assert_int_not_equal(try_process(w, &msg, 1), SEMEL_OK);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 0);
}

static void lack_of_memory_leaves_no_handler_behind(void **state)
{
    struct route *w = *state;
    struct fail_nth fail;
    unsigned at = 1;
    books(w);
    for (;; at++) {
        fail_nth_begin(&fail, at);
        semel_status status = try_make(w, SEMEL_SQL_EACH, BOOK, BOOK_RULES);
        bool reached = fail_nth_end(&fail);
        if (!reached) {
            assert_int_equal(status, SEMEL_OK);
            break;
        }
        if (status != SEMEL_OK)
            assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
        semel__sql_handler_free(w->sql);
        w->sql = NULL;
    }
    assert_true(at > 3);
    semel__sql_handler_free(w->sql);
    w->sql = NULL;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_ROUTE(each_message_takes_effect_once_however_often_it_comes),
        ON_ROUTE(rows_that_a_statement_returns_are_dropped),
        ON_ROUTE(failing_message_is_blamed_alone_and_its_neighbours_are_done),
        ON_ROUTE(handler_goes_on_after_a_new_connection),
        ON_ROUTE(missing_table_stops_the_route_and_charges_no_message),
        ON_ROUTE(value_that_is_missing_is_null_only_where_it_may_be),
        ON_ROUTE(hostile_text_reaches_the_table_as_it_is),
        ON_ROUTE(strings_of_json_are_given_decoded),
        ON_ROUTE(text_that_no_database_holds_fails_for_good_and_alone),
        ON_ROUTE(bytes_are_kept_whatever_they_are),
        ON_ROUTE(numbers_and_truth_are_what_their_columns_say),
        ON_ROUTE(fields_of_a_message_are_values_too),
        ON_ROUTE(statement_that_ends_the_transaction_takes_nothing_with_it),
        ON_ROUTE(handler_that_makes_commits_unsafe_is_refused_and_blamed),
        ON_ROUTE(what_a_statement_leaves_in_the_session_does_not_stop_the_next),
        ON_ROUTE(description_is_checked_by_the_database),
        ON_ROUTE(effects_outside_are_not_for_sql),
        ON_ROUTE(lack_of_memory_leaves_no_handler_behind),
    };
    return route_main(argc, argv, tests, COUNT(tests));
}
