/* SPDX-License-Identifier: MIT
 *
 * sqlite_run.c: the SQL port's run and flush on SQLite (sql.h): a statement is stepped through once per item, at once.
 *
 * Statements are prepared when they are first run and kept as long as the connection. Bound memory is borrowed
 * (SQLITE_STATIC) and forgotten when the statement is reset.
 *
 * Invariants: a statement is reset before run() returns, and nothing is bound to it then.
 */
#include "store/sqlite.h"

#define PARAMS_MAX 64

/* Where the parameters of a statement come from. */
struct plan {
    const struct sql_field *fields[PARAMS_MAX];
    bool of_item[PARAMS_MAX];
};

static bool make_plan(struct plan *plan, const struct sql_statement *statement, const struct sql_set *once,
                      const struct sql_set *each, struct sql *db)
{
    for (size_t i = 0; i < statement->n_params; i++) {
        uint16_t name = statement->params[i].name;
        const struct sql_field *field = semel__db_find(each, name);
        plan->of_item[i] = field != NULL;
        plan->fields[i] = field != NULL ? field : semel__db_find(once, name);
        if (plan->fields[i] == NULL || i == PARAMS_MAX - 1) {
            db->status = semel__db_no_value(statement, name, &db->err);
            return false;
        }
    }
    return true;
}

/* What is not bound is NULL. */
static int bind(sqlite3_stmt *stmt, int i, enum sql_kind kind, const struct sql_value *value)
{
    if (value->null)
        return SQLITE_OK;
    if (semel__db_is_number(kind))
        return sqlite3_bind_int64(stmt, i, value->number);
    if (kind == SQL_BYTES || kind == SQL_FINGERPRINT)
        return sqlite3_bind_blob64(stmt, i, value->text.p, value->text.n, SQLITE_STATIC);
    return sqlite3_bind_text64(stmt, i, value->text.p, value->text.n, SQLITE_STATIC, SQLITE_UTF8);
}

static int bind_all(sqlite3_stmt *stmt, const struct sql_statement *statement, const struct plan *plan,
                    const void *once, const void *item, unsigned char bytes[1 + SEMEL_FP_MAX])
{
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < statement->n_params; i++) {
        const struct sql_field *field = plan->fields[i];
        struct sql_value value = semel__db_value(field, plan->of_item[i] ? item : once, bytes);
        rc = bind(stmt, (int)i + 1, semel__db_kind(field->name), &value);
    }
    return rc;
}

/* Runs to the end. */
static void step_all(struct sqlite_store *d, struct sql_row *row, size_t item, int rc, sql_reader read, void *ctx)
{
    struct sql *db = &d->sql;
    const struct sql_statement *statement = row->statement;
    sqlite3_stmt *stmt = row->result;
    uint16_t gives = statement->n_gives > 0 ? statement->gives[0] : SQL_NAME_COUNT;
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(stmt);
        if (rc == SQLITE_ROW && read != NULL)
            db->status = read(ctx, item, row, &db->err);
        if (db->status != SEMEL_OK)
            return;
    }
    if (rc != SQLITE_DONE) {
        db->status = semel__sqlite_own_fail(d, rc, db->doing, &db->err);
        return;
    }
    row->changes = sqlite3_changes64(d->db);
    if (read != NULL && (gives == SQL_NAME_changes || (gives == SQL_NAME_applied && row->changes > 0)))
        db->status = read(ctx, item, row, &db->err);
}

/* ---- one moment ---------------------------------------------------------------------------------- */

/* A statement that was begun and is not ended keeps its snapshot, and with it that of all others. */
static semel_status pin(struct sqlite_store *d, bool *ret_begun, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    *ret_begun = false;
    if (d->stmts[Q_PIN] != NULL && sqlite3_stmt_busy(d->stmts[Q_PIN]))
        return SEMEL_OK;
    semel__sqlite_start(&run, d, Q_PIN, "beginning to read");
    semel_status status = semel__sqlite_step(&run, &row, err);
    *ret_begun = status == SEMEL_OK;
    return status;
}

static semel_status sqlite_snapshot(struct sql *db, bool *ret_begun, struct semel_error *err)
{
    struct sqlite_store *d = (struct sqlite_store *)db;
    semel_status status = semel__sqlite_usable(d, err);
    return status == SEMEL_OK ? pin(d, ret_begun, err) : status;
}

static void sqlite_snapshot_end(struct sql *db, bool begun)
{
    if (begun)
        sqlite3_reset(((struct sqlite_store *)db)->stmts[Q_PIN]);
}

/* ---- running ------------------------------------------------------------------------------------- */

static sqlite3_stmt *prepared(struct sqlite_store *d, const struct sql_statement *statement)
{
    sqlite3_stmt **kept = &d->kept[statement - semel__sqlite_statements];
    if (*kept != NULL)
        return *kept;
    int rc = sqlite3_prepare_v3(d->db, statement->sql.text, -1, SQLITE_PREPARE_PERSISTENT, kept, NULL);
    if (rc != SQLITE_OK)
        d->sql.status = semel__sqlite_own_fail(d, rc, d->sql.doing, &d->sql.err);
    return *kept;
}

static void sqlite_run(struct sql *db, const struct sql_statement *statement, const struct sql_set *once,
                       const struct sql_set *each, sql_reader read, void *ctx)
{
    struct sqlite_store *d = (struct sqlite_store *)db;
    struct plan plan;
    unsigned char bytes[1 + SEMEL_FP_MAX];
    bool pinned = false;
    each = statement->alone ? NULL : each;
    sqlite3_stmt *stmt = make_plan(&plan, statement, once, each, db) ? prepared(d, statement) : NULL;
    sqlite3_int64 callers_rowid = sqlite3_last_insert_rowid(d->db); /* a handler may ask for that of its own insert */
    const void *first = once != NULL ? semel__db_item(once, 0) : NULL;
    if (db->status == SEMEL_OK && each != NULL && each->n > 1 && sqlite3_stmt_readonly(stmt))
        db->status = pin(d, &pinned, &db->err);
    for (size_t i = 0; db->status == SEMEL_OK && i < (each != NULL ? each->n : 1); i++) {
        struct sql_row row = {.db = db, .statement = statement, .result = stmt};
        int rc = bind_all(stmt, statement, &plan, first, each != NULL ? semel__db_item(each, i) : NULL, bytes);
        step_all(d, &row, i, rc, read, ctx);
        sqlite3_reset(stmt);
        sqlite3_clear_bindings(stmt);
    }
    sqlite_snapshot_end(db, pinned);
    sqlite3_set_last_insert_rowid(d->db, callers_rowid);
}

static void sqlite_start(struct sql *db)
{
    db->status = semel__sqlite_usable((struct sqlite_store *)db, &db->err);
}

static semel_status sqlite_flush(struct sql *db, struct semel_error *err)
{
    if (db->status != SEMEL_OK && err != NULL)
        *err = db->err;
    return db->status;
}

static enum sql_cell sqlite_cell(const struct sql_row *row, int column, enum sql_kind kind, struct sql_value *ret)
{
    sqlite3_stmt *stmt = row->result;
    const int type = sqlite3_column_type(stmt, column);
    const bool bytes = kind == SQL_BYTES || kind == SQL_FINGERPRINT, number = semel__db_is_number(kind);
    *ret = (struct sql_value){.null = type == SQLITE_NULL};
    if (ret->null)
        return SQL_CELL_OK;
    if (type != (number ? SQLITE_INTEGER : bytes ? SQLITE_BLOB : SQLITE_TEXT))
        return SQL_CELL_OTHER_KIND;
    if (number) {
        ret->number = sqlite3_column_int64(stmt, column);
        return SQL_CELL_OK;
    }
    const void *p = bytes ? sqlite3_column_blob(stmt, column) : (const void *)sqlite3_column_text(stmt, column);
    ret->text = (struct semel_str){p, (size_t)sqlite3_column_bytes(stmt, column)};
    if (p == NULL && bytes && ret->text.n == 0) /* an empty blob; NULL for a text is lack of memory */
        ret->text.p = "";
    return ret->text.p != NULL ? SQL_CELL_OK : SQL_CELL_NO_MEMORY;
}

const struct sql_driver semel__sqlite_driver = {
    .statements = semel__sqlite_statements,
    .start = sqlite_start,
    .run = sqlite_run,
    .flush = sqlite_flush,
    .snapshot = sqlite_snapshot,
    .snapshot_end = sqlite_snapshot_end,
    .cell = sqlite_cell,
};
