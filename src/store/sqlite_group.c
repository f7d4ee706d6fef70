/* SPDX-License-Identifier: MIT
 *
 * sqlite_group.c: a transaction around calls of the library that join one, for programs of ours that have no business
 * with a client library: one commit for many small calls. It is what a user's own BEGIN and COMMIT would be.
 *
 * Invariants: after either function has failed no transaction is open. A call that failed inside has taken back its own
 * part; a failure that ended the whole transaction (a full disk may) is told by the commit.
 */
#include "store/sqlite.h"

static bool is_open(sqlite3 *db)
{
    return db != NULL && sqlite3_get_autocommit(db) == 0;
}

static semel_status run(sqlite3 *db, const char *sql, const char *doing, struct semel_error *err)
{
    if (db == NULL)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "%s: the database connection is gone", doing);
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? SEMEL_OK : semel__sqlite_fail(db, rc, doing, err);
}

semel_status semel__sqlite_group_begin(sqlite3 *db, struct semel_error *err)
{
    return run(db, "BEGIN IMMEDIATE", "begin", err);
}

semel_status semel__sqlite_group_commit(sqlite3 *db, struct semel_error *err)
{
    if (!is_open(db))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "commit: the transaction was ended by a failure inside of it");
    semel_status status = run(db, "COMMIT", "commit", err);
    if (is_open(db))
        (void)run(db, "ROLLBACK", "rollback", NULL);
    return status;
}
