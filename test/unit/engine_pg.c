/* SPDX-License-Identifier: MIT
 *
 * engine_pg.c: the engine of a test on PostgreSQL. The contract stands in engine_pg.h.
 */
#include "unit/engine_pg.h"

#include <libpq-fe.h>

#include "store/pg_store.h"
#include "support/world_pg.h"

#define DATABASE "engine"
#define SQL_MAX 4096

static const struct semel_store_ops *const linked[] = {&semel__store_postgres, NULL};

static void add_tables(const char *url)
{
    (void)url;
    pg_server_sql(&world_server, "model",
                  "CREATE TABLE effect (id text NOT NULL, attempt integer NOT NULL);"
                  "CREATE INDEX effect_id ON effect (id);"
                  "CREATE TABLE parent (id integer PRIMARY KEY);"
                  "CREATE TABLE child (parent integer NOT NULL REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)");
}

void engine_pg_fresh(void)
{
    char url[PG_SERVER_TEXT];
    world_pg_need(add_tables);
    world_pg_database(DATABASE, url);
    pg_server_sql(&world_server, DATABASE, "INSERT INTO parent VALUES (1)");
}

static semel_status pg_open(struct engine *e)
{
    const struct semel_store_options options = {.clock = &e->clock, .rng = &e->rng};
    char url[PG_SERVER_TEXT];
    return semel_store_open(&e->store, linked, pg_server_url(&world_server, DATABASE, url), &options, &e->err);
}

/* ---- statements --------------------------------------------------------------------------------------- */

static bool succeeded(const PGresult *res)
{
    return PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK;
}

static semel_status judge(PGconn *conn, PGresult *res, struct semel_error *err)
{
    semel_status status = succeeded(res) ? SEMEL_OK : semel__pg_fail(conn, res, "handler", err);
    PQclear(res);
    return status;
}

static semel_status pg_effect(struct semel_store *store, struct semel_str id, int attempt, struct semel_error *err)
{
    PGconn *conn = semel_store_native(store);
    char text[256], number[16];
    const char *const values[] = {text, number};
    snprintf(text, sizeof text, "%.*s", (int)id.n, id.p);
    snprintf(number, sizeof number, "%d", attempt);
    return judge(conn,
                 PQexecParams(conn, "INSERT INTO effect (id, attempt) VALUES ($1, $2)", 2, NULL, values, NULL, NULL, 0),
                 err);
}

static semel_status pg_handler(struct semel_store *store, const char *sql, struct semel_error *err)
{
    PGconn *conn = semel_store_native(store);
    return judge(conn, PQexec(conn, sql), err);
}

static void translate(const char *sql, char out[SQL_MAX])
{
    static const char word[] = "semel_";
    char *to = out;
    assert_true(strlen(sql) < SQL_MAX);
    for (; *sql != '\0'; sql++) {
        bool found = strncmp(sql, word, sizeof word - 1) == 0;
        size_t n = found ? sizeof word - 1 : 1;
        memcpy(to, found ? "semel." : sql, n);
        to += n;
        sql += n - 1;
    }
    *to = '\0';
}

static PGresult *ask(struct engine *e, const char *sql)
{
    PGconn *conn = semel_store_native(e->store);
    char text[SQL_MAX];
    translate(sql, text);
    PGresult *res = PQexec(conn, text);
    if (!succeeded(res))
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    return res;
}

static int64_t pg_number(struct engine *e, const char *sql)
{
    PGresult *res = ask(e, sql);
    int64_t n = 0;
    assert_int_equal(PQntuples(res), 1);
    assert_true(semel__str_int64(semel__str(PQgetvalue(res, 0, 0)), &n));
    PQclear(res);
    return n;
}

static void pg_run(struct engine *e, const char *sql)
{
    PQclear(ask(e, sql));
}

static void pg_put(struct engine *e, const char *sql, const char *const *values, int n)
{
    PGconn *conn = semel_store_native(e->store);
    PGresult *res = PQexecParams(conn, sql, n, NULL, values, NULL, NULL, 0);
    if (!succeeded(res))
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    PQclear(res);
}

const struct engine_tables engine_pg_tables = {
    .name = "postgres",
    .open = pg_open,
    .effect = pg_effect,
    .handler = pg_handler,
    .number = pg_number,
    .run = pg_run,
    .put = pg_put,
};
