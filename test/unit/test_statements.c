/* SPDX-License-Identifier: MIT
 *
 * test_statements.c: every statement of sql/statements is prepared on a real PostgreSQL and on SQLite; the server's
 * parameters and columns must be those that the compiled statement names. So a wrong column or kind fails here, and not
 * in the operation that runs it once a year. Plans are looked at by test_sqlite_store.c and test_pg_look.c, and here
 * those of statements that name a row by its full key, where the server knows nothing of the table yet.
 */
#include <sqlite3.h>

#include "store/pg.h"
#include "store/sqlite_store.h"
#include "unit/test_pg.h"

/* Types of PostgreSQL by their numbers. */
enum { BOOL = 16, BYTEA = 17, INT8 = 20, INT2 = 21, INT4 = 23, TEXT = 25, TIMESTAMPTZ = 1184 };

static bool counted(const struct sql_statement *s)
{
    return s->n_gives > 0 && (s->gives[0] == SQL_NAME_changes || s->gives[0] == SQL_NAME_applied);
}

/* ---- PostgreSQL ---------------------------------------------------------------------------------- */

static unsigned type_of(enum sql_kind kind)
{
    switch (kind) {
    case SQL_TEXT:
    case SQL_KEY:
    case SQL_STATUS:
    case SQL_CLASS:
        return TEXT;
    case SQL_BYTES:
    case SQL_FINGERPRINT:
    case SQL_ID:
        return BYTEA;
    case SQL_INT:
        return INT8;
    case SQL_TIME:
        return TIMESTAMPTZ;
    case SQL_BOOL:
        return BOOL;
    }
    return 0;
}

static unsigned array_of(unsigned type)
{
    return type == BOOL ? 1000 : type == BYTEA ? 1001 : type == INT8 ? 1016 : type == TEXT ? 1009 : 1185;
}

static bool fits(unsigned type, enum sql_kind kind)
{
    return type == type_of(kind) || (kind == SQL_INT && (type == INT2 || type == INT4));
}

static void check_described(const struct sql_statement *s, const PGresult *described)
{
    assert_int_equal(PQnparams(described), s->n_params);
    for (size_t i = 0; i < s->n_params; i++) {
        unsigned type = type_of(semel__db_kind(s->params[i].name));
        if (PQparamtype(described, (int)i) != (s->params[i].source == SQL_ARRAY ? array_of(type) : type))
            fail_msg("%s: :%s has another type", s->sql.name, semel__db_name(s->params[i].name));
    }
    if (counted(s) || s->n_gives == 0)
        return;
    assert_int_equal(PQnfields(described), s->n_gives);
    for (size_t i = 0; i < s->n_gives; i++) {
        const char *name = semel__db_name(s->gives[i]);
        if (strcmp(PQfname(described, (int)i), name) != 0)
            fail_msg("%s: column %zu is %s, not %s", s->sql.name, i + 1, PQfname(described, (int)i), name);
        if (!fits(PQftype(described, (int)i), semel__db_kind(s->gives[i])))
            fail_msg("%s: column %s has another type than its name says", s->sql.name, name);
    }
}

static void check_plain(PGconn *conn, const struct sql_statement *s)
{
    PGresult *result = PQprepare(conn, s->sql.name, s->sql.text, 0, NULL);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        fail_msg("%s: %s\n%s", s->sql.name, PQresultErrorMessage(result), s->sql.text);
    PQclear(result);
    result = PQdescribePrepared(conn, s->sql.name);
    assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
    check_described(s, result);
    PQclear(result);
}

/* A statement whose text is written by the shape of its items, as a plain one: column c is NULL in all of them, the
 * same or different, by turns that begin at `turn`. Its text is the caller's. */
static struct sql_statement shaped(const struct sql_statement *s, unsigned turn, struct sql_param params[PG_PARAMS_MAX])
{
    struct pg_spread spread;
    struct sql_statement plain = *s;
    memcpy(params, s->params, s->n_params * sizeof(params[0]));
    for (size_t c = 0; c < s->n_shaped; c++) {
        spread.of[c] = c < s->n_always ? PG_EACH : (enum pg_spread_of)((c + turn) % 3);
        if (spread.of[c] != PG_NULL)
            params[plain.n_params++] = (struct sql_param){spread.of[c] == PG_EACH ? SQL_ARRAY : SQL_SINGLE,
                                                          s->shaped[c]};
    }
    char *text = semel__pg_shaped(s, &spread);
    assert_non_null(text);
    plain.sql = (struct sql_text){s->sql.name, text};
    plain.params = params;
    plain.n_shaped = 0;
    return plain;
}

static void check_on_postgres(PGconn *conn, const struct sql_statement *s)
{
    struct sql_param params[PG_PARAMS_MAX];
    char name[64];
    if (s->n_shaped == 0)
        check_plain(conn, s);
    for (unsigned turn = 0; s->n_shaped > 0 && turn < 3; turn++) {
        struct sql_statement plain = shaped(s, turn, params);
        snprintf(name, sizeof(name), "%s_%u", s->sql.name, turn);
        plain.sql.name = name;
        check_plain(conn, &plain);
        semel__free((char *)(uintptr_t)plain.sql.text);
    }
}

static void every_statement_is_what_postgres_takes_it_for(void **state)
{
    PGconn *conn = connect_to(*state);
    for (int id = 0; id < SQL_COUNT; id++) {
        const struct sql_statement *s = &semel__pg_statements[id];
        if (s->sql.text != NULL && !s->maps) /* test_mapped has the templates */
            check_on_postgres(conn, s);
        if (s->by_operator != NULL)
            check_on_postgres(conn, s->by_operator);
    }
    PQfinish(conn);
}

/* ---- plans before the first ANALYZE ------------------------------------------------------------- */

/* A value for the plan: of the items there are two. */
static void put_value(struct semel_buf *out, const struct sql_param *param)
{
    static const char *const values[] = {
        [SQL_TEXT] = "c",          [SQL_KEY] = "c",    [SQL_BYTES] = "",  [SQL_INT] = "1",        [SQL_BOOL] = "f",
        [SQL_TIME] = "2026-01-01", [SQL_STATUS] = "c", [SQL_CLASS] = "c", [SQL_FINGERPRINT] = "", [SQL_ID] = ""};
    const char *value = values[semel__db_kind(param->name)];
    if (param->source == SQL_SINGLE)
        semel__buf_addz(out, "NULL"); /* of a pair: there is an array */
    else if (param->source == SQL_ARRAY)
        semel__buf_addf(out, "'{\"%s\",\"%s\"}'", value, value);
    else
        semel__buf_addf(out, "'%s'", value);
}

static PGresult *plan_of(PGconn *conn, const struct sql_statement *s)
{
    struct semel_buf sql;
    semel__buf_init(&sql, 65536);
    semel__buf_addf(&sql, "EXPLAIN (COSTS off) EXECUTE %s", s->sql.name);
    for (size_t k = 0; k < s->n_params; k++) {
        semel__buf_addz(&sql, k == 0 ? " (" : ", ");
        put_value(&sql, &s->params[k]);
    }
    semel__buf_add(&sql, ")", 2);
    PGresult *plan = PQexec(conn, sql.p);
    if (PQresultStatus(plan) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql.p, PQerrorMessage(conn));
    semel__buf_done(&sql);
    return plan;
}

/* Every way to the inbox is by the whole of its primary key, or by the order of one key. */
static void check_plan(const struct sql_statement *s, PGresult *plan)
{
    for (int i = 0; i < PQntuples(plan); i++) {
        const char *line = PQgetvalue(plan, i, 0), *next = i + 1 < PQntuples(plan) ? PQgetvalue(plan, i + 1, 0) : "";
        bool by_key = strstr(line, "Index Scan using record_pkey on") && strstr(next, "((key)::bytea = ");
        bool in_order = strstr(line, "using inbox_order on") != NULL || strstr(line, "using inbox_version on") != NULL;
        bool at_place = strstr(line, "Tid Scan on record") != NULL;
        bool a_way = strstr(line, "Scan") != NULL && strstr(line, " record") != NULL;
        if (a_way && !by_key && !in_order && !at_place)
            fail_msg("%s reads more than its rows: %s\n%s", s->sql.name, line, next);
    }
}

/* The cost of a look-up must not grow with the table, which autovacuum analyses for the first time when it has 50,000
 * rows (001_inbox.sql). */
static void row_is_found_by_its_key_before_the_table_was_ever_analysed(void **state)
{
    static const enum sql_id ids[] = {SQL_inbox_final,         SQL_inbox_lock,      SQL_inbox_lock_free,
                                      SQL_inbox_lock_open,     SQL_inbox_read,      SQL_settle_update,
                                      SQL_settle_remove,       SQL_settle_waiters,  SQL_settle_wake,
                                      SQL_settle_wake_version, SQL_business_holders};
    PGconn *conn = connect_to(*state);
    exec(conn, "ALTER TABLE semel.record SET (autovacuum_enabled = off)");
    exec(conn, "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, received_at, updated_at, "
               "processed_at, error_class) SELECT i, 'c', 's', i, s, now(), now(), CASE s WHEN 'completed' THEN now() "
               "END, CASE s WHEN 'waiting' THEN 'business_duplicate' END FROM generate_series(1, 6000) AS i "
               "CROSS JOIN LATERAL (SELECT (ARRAY['completed', 'failed', 'waiting', 'dead'])[1 + i % 4] AS s) AS x");
    for (size_t i = 0; i < 2 * sizeof(ids) / sizeof(ids[0]); i++) {
        const struct sql_statement *s = &semel__pg_statements[ids[i / 2]];
        exec(conn, i % 2 == 0 ? "SET plan_cache_mode = force_generic_plan" : "SET plan_cache_mode = force_custom_plan");
        if (i % 2 == 0)
            check_on_postgres(conn, s);
        PGresult *plan = plan_of(conn, s);
        check_plan(s, plan);
        PQclear(plan);
    }
    PQfinish(conn);
}

/* The gateway's connections live long, and plan while there are few keys. By its name, or by its token. */
static void key_is_found_by_an_index_before_the_table_was_ever_analysed(void **state)
{
    static const enum sql_id ids[] = {SQL_idempotency_put,     SQL_idempotency_find,     SQL_idempotency_finish,
                                      SQL_idempotency_release, SQL_idempotency_unknown,  SQL_idempotency_renew,
                                      SQL_idempotency_held,    SQL_idempotency_lock_free};
    PGconn *conn = connect_to(*state);
    exec(conn, "ALTER TABLE semel.idempotency SET (autovacuum_enabled = off)");
    exec(conn, "SET plan_cache_mode = force_generic_plan");
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        struct sql_param params[PG_PARAMS_MAX];
        const struct sql_statement *s = &semel__pg_statements[ids[i]];
        const struct sql_statement plain = s->n_shaped > 0 ? shaped(s, 0, params) : *s;
        check_plain(conn, &plain);
        PGresult *plan = plan_of(conn, &plain);
        for (int k = 0; k < PQntuples(plan); k++) {
            const char *line = PQgetvalue(plan, k, 0);
            if (strstr(line, "Scan") != NULL && strstr(line, " idempotency") != NULL &&
                strstr(line, "idempotency_pkey") == NULL && strstr(line, "idempotency_token") == NULL &&
                strstr(line, "Bitmap Heap Scan") == NULL && strstr(line, "Tid Scan") == NULL)
                fail_msg("%s reads more than its rows: %s", s->sql.name, line);
        }
        PQclear(plan);
        if (s->n_shaped > 0)
            semel__free((char *)(uintptr_t)plain.sql.text);
    }
    PQfinish(conn);
}

/* People ask the view, and do not know of open_for: the rows that are not final must not be looked for among all. */
static void question_to_the_view_by_status_finds_the_rows_that_are_not_final(void **state)
{
    static const char *const statuses[] = {"processing", "failed", "waiting", "unknown", "dead", "quarantined"};
    PGconn *conn = connect_to(*state);
    exec(conn,
         "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, received_at, updated_at, "
         "processed_at) SELECT i, 'c', 's', i, 'completed', now(), now(), now() FROM generate_series(1, 20000) AS i");
    exec(conn, "ANALYZE semel.record");
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        char sql[160];
        snprintf(sql, sizeof(sql),
                 "EXPLAIN (COSTS off) SELECT message_id FROM semel.inbox WHERE consumer = 'c' AND "
                 "status = '%s'",
                 statuses[i]);
        PGresult *plan = PQexec(conn, sql);
        assert_int_equal(PQresultStatus(plan), PGRES_TUPLES_OK);
        for (int k = 0; k < PQntuples(plan); k++)
            if (strstr(PQgetvalue(plan, k, 0), "Seq Scan on record") != NULL)
                fail_msg("all rows are read for those that are %s", statuses[i]);
        PQclear(plan);
    }
    PQfinish(conn);
}

/* ---- SQLite -------------------------------------------------------------------------------------- */

static void check_on_sqlite(sqlite3 *db, const struct sql_statement *s)
{
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v2(db, s->sql.text, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s\n%s", s->sql.name, sqlite3_errmsg(db), s->sql.text);
    assert_int_equal(sqlite3_bind_parameter_count(stmt), s->n_params);
    if (counted(s) || s->n_gives == 0)
        assert_int_equal(sqlite3_column_count(stmt), 0); /* a SELECT whose rows nobody reads is a mistake */
    else
        assert_int_equal(sqlite3_column_count(stmt), s->n_gives);
    for (int i = 0; i < sqlite3_column_count(stmt); i++)
        if (strcmp(sqlite3_column_name(stmt, i), semel__db_name(s->gives[i])) != 0)
            fail_msg("%s: column %d is %s, not %s", s->sql.name, i + 1, sqlite3_column_name(stmt, i),
                     semel__db_name(s->gives[i]));
    sqlite3_finalize(stmt);
}

static void every_statement_is_what_sqlite_takes_it_for(void **state)
{
    static const struct semel_store_ops *const drivers[] = {&semel__store_sqlite, NULL};
    static const struct semel_store_options options = {.create = true, .migrate = true};
    struct semel_store *store = NULL;
    struct semel_error err;
    (void)state;
    assert_int_equal(semel_store_open(&store, drivers, "sqlite::memory:", &options, &err), SEMEL_OK);
    for (int id = 0; id < SQL_COUNT; id++)
        if (semel__sqlite_statements[id].sql.text != NULL && !semel__sqlite_statements[id].maps)
            check_on_sqlite(semel_store_native(store), &semel__sqlite_statements[id]);
    semel_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_statement_is_what_sqlite_takes_it_for),
        cmocka_unit_test_setup_teardown(every_statement_is_what_postgres_takes_it_for, opened, world_teardown),
        cmocka_unit_test_setup_teardown(row_is_found_by_its_key_before_the_table_was_ever_analysed, opened,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(question_to_the_view_by_status_finds_the_rows_that_are_not_final, opened,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(key_is_found_by_an_index_before_the_table_was_ever_analysed, opened,
                                        world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
