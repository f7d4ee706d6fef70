/* SPDX-License-Identifier: MIT
 *
 * sqlite_stmt.c: the statements of transactions, and how they are run: prepared on first use, kept until the connection
 * is closed, with one place for errors. The statements of the records are those of sqlite_run.c.
 */
#include "store/sqlite.h"

static const char *const texts[Q_COUNT] = {
    [Q_BEGIN] = "BEGIN IMMEDIATE",
    [Q_COMMIT] = "COMMIT",
    [Q_ROLLBACK] = "ROLLBACK",
    [Q_SAVEPOINT] = "SAVEPOINT semel_one",
    [Q_RELEASE] = "RELEASE semel_one",
    [Q_ROLLBACK_TO] = "ROLLBACK TO semel_one",
    /* Writes nothing, but has to hold the write lock to find that out. */
    [Q_LOCK] = "UPDATE main.semel_counter SET value = value WHERE name = ''",
    [Q_PIN] = "SELECT max(version) FROM main.semel_schema",
};

const char *semel__sqlite_sql(enum sqlite_q q)
{
    return q < Q_COUNT ? texts[q] : NULL;
}

void semel__sqlite_start(struct sqlite_run *run, struct sqlite_store *d, enum sqlite_q q, const char *doing)
{
    *run = (struct sqlite_run){.d = d, .stmt = d->stmts[q], .rc = SQLITE_OK, .doing = doing};
    if (run->stmt != NULL)
        return;
    run->rc = sqlite3_prepare_v3(d->db, texts[q], -1, SQLITE_PREPARE_PERSISTENT, &run->stmt, NULL);
    d->stmts[q] = run->stmt;
}

void semel__sqlite_end(struct sqlite_run *run)
{
    if (run->stmt == NULL)
        return;
    sqlite3_reset(run->stmt);
    sqlite3_clear_bindings(run->stmt);
    run->stmt = NULL;
}

semel_status semel__sqlite_step(struct sqlite_run *run, bool *ret_row, struct semel_error *err)
{
    int rc = run->rc != SQLITE_OK ? run->rc : sqlite3_step(run->stmt);
    if (rc == SQLITE_ROW) {
        *ret_row = true;
        return SEMEL_OK;
    }
    /* The message must be read before the reset. */
    semel_status status = rc == SQLITE_DONE ? SEMEL_OK : semel__sqlite_own_fail(run->d, rc, run->doing, err);
    semel__sqlite_end(run);
    *ret_row = false;
    return status;
}

semel_status semel__sqlite_exec(struct sqlite_run *run, size_t *ret_changes, struct semel_error *err)
{
    bool row = false;
    semel_status status = semel__sqlite_step(run, &row, err);
    while (status == SEMEL_OK && row)
        status = semel__sqlite_step(run, &row, err);
    if (status == SEMEL_OK && ret_changes != NULL)
        *ret_changes = (size_t)sqlite3_changes64(run->d->db);
    return status;
}

void semel__sqlite_finalize(struct sqlite_store *d)
{
    for (size_t i = 0; i < Q_COUNT; i++) {
        sqlite3_finalize(d->stmts[i]);
        d->stmts[i] = NULL;
    }
    for (size_t i = 0; i < SQL_COUNT; i++) {
        sqlite3_finalize(d->kept[i]);
        d->kept[i] = NULL;
    }
}
