/* SPDX-License-Identifier: MIT
 *
 * sql_sqlite.c: the handler `sql` on SQLite: one statement per message. There are no sets: without round trips they
 * would gain nothing.
 *
 * A value is bound with the type that json_extract would return: a whole number as INTEGER, another one as REAL, true
 * and false as 1 and 0, everything else as TEXT, and `bytes` as BLOB.
 *
 * Invariants: the statement is reset before the call returns; it is prepared under the guard, so that the authorizer
 * sees it (P58); it belongs to one connection, and a new connection gets its own.
 */
#include <sqlite3.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/number.h"
#include "handler/sql_private.h"
#include "store/sqlite_store.h"

struct state {
    sqlite3 *db; /* of the statement */
    sqlite3_stmt *stmt;
    int at[SEMEL_SQL_VALUES_MAX]; /* where $1, $2 ... are bound */
};

static semel_status prepare(struct semel_sql *sql, sqlite3 *db, sqlite3_stmt **ret, struct semel_error *err)
{
    int rc = sqlite3_prepare_v3(db, sql->text, -1, SQLITE_PREPARE_PERSISTENT, ret, NULL);
    return rc == SQLITE_OK ? SEMEL_OK : semel__sqlite_fail(db, rc, "handler", err);
}

static semel_status sqlite_check(struct semel_sql *sql, struct semel_store *store, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct state *state = semel__calloc(1, sizeof *state);
    if (state == NULL)
        return semel__fail_memory(err);
    sql->state = state;
    sqlite3 *db = semel_store_native(store);
    if (db == NULL)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the database connection is gone: reopen it");
    semel_status status = prepare(sql, db, &stmt, err);
    if (status == SEMEL_OK && sqlite3_bind_parameter_count(stmt) != (int)sql->n)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                             "statement: SQLite finds %d parameters in it, and there are %zu values",
                             sqlite3_bind_parameter_count(stmt), sql->n);
    sqlite3_finalize(stmt);
    return status;
}

static void sqlite_done(struct semel_sql *sql)
{
    struct state *state = sql->state;
    if (state != NULL)
        sqlite3_finalize(state->stmt);
    semel__free(state);
}

/* A closed connection stays allocated until its last statement is finalized: no other one has its address meanwhile. */
static semel_status ready(struct semel_sql *sql, sqlite3 *db, struct semel_error *err)
{
    struct state *state = sql->state;
    if (state->stmt != NULL && state->db == db)
        return SEMEL_OK;
    sqlite3_finalize(state->stmt);
    state->stmt = NULL;
    state->db = db;
    semel_status status = prepare(sql, db, &state->stmt, err);
    for (size_t i = 0; status == SEMEL_OK && i < sql->n; i++) {
        char name[24];
        snprintf(name, sizeof name, "$%zu", i + 1);
        state->at[i] = sqlite3_bind_parameter_index(state->stmt, name);
    }
    return status;
}

static int bind_number(sqlite3_stmt *stmt, int at, const struct sql_value *value)
{
    int64_t whole;
    if (semel__str_int64(value->text, &whole))
        return sqlite3_bind_int64(stmt, at, whole);
    if (value->kind == SQL_INTEGER) /* past 64 bits: keeps the digits as text */
        return sqlite3_bind_text64(stmt, at, value->text.p, value->text.n, SQLITE_STATIC, SQLITE_UTF8);
    struct semel_decimal decimal = semel__decimal_read(value->text);
    return sqlite3_bind_double(stmt, at, semel__decimal_to_double(&decimal));
}

static int bind(sqlite3_stmt *stmt, int at, const struct sql_value *value)
{
    switch (value->kind) {
    case SQL_NULL:
        return sqlite3_bind_null(stmt, at);
    case SQL_TEXT:
        return sqlite3_bind_text64(stmt, at, value->text.p, value->text.n, SQLITE_STATIC, SQLITE_UTF8);
    case SQL_BYTES:
        return sqlite3_bind_blob64(stmt, at, value->text.p, value->text.n, SQLITE_STATIC);
    case SQL_INTEGER:
    case SQL_REAL:
        return bind_number(stmt, at, value);
    case SQL_BOOLEAN:
        return sqlite3_bind_int(stmt, at, semel__str_eqz(value->text, "true"));
    }
    return SQLITE_MISUSE;
}

static semel_status sqlite_each(struct semel_sql *sql, struct semel_store *store, const struct sql_value *values,
                                struct semel_error *err)
{
    struct state *state = sql->state;
    sqlite3 *db = semel_store_native(store);
    semel_status status = ready(sql, db, err);
    if (status != SEMEL_OK)
        return status;
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < sql->n; i++)
        rc = bind(state->stmt, state->at[i], &values[i]);
    if (rc == SQLITE_OK)
        do
            rc = sqlite3_step(state->stmt);
        while (rc == SQLITE_ROW);
    if (rc != SQLITE_DONE)
        status = semel__sqlite_fail(db, rc, "handler", err); /* before the reset, which clears the error */
    sqlite3_reset(state->stmt);
    sqlite3_clear_bindings(state->stmt);
    return status;
}

const struct sql_backend semel__sql_sqlite = {
    .dialect = SEMEL_SQL_SQLITE,
    .check = sqlite_check,
    .done = sqlite_done,
    .each = sqlite_each,
};
