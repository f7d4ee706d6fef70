/* SPDX-License-Identifier: MIT
 *
 * sqlite.h: private to the files of the SQLite driver.
 *
 *   sqlite.c         opening, closing, wrapping; the table of functions
 *   sqlite_schema.c  migrations, and which schema is there
 *   sqlite_tx.c      transactions, savepoint, guard
 *   sqlite_stmt.c    the statements of transactions
 *   sqlite_run.c     the SQL port: statements of the records
 *   sqlite_fail.c    what a result code means
 *   sqlite_group.c   one commit for many calls
 *
 * Invariants: every value is bound, none is ever part of a statement's text; a statement is reset before
 * the function that ran it returns.
 */
#ifndef SEMEL_STORE_SQLITE_H
#define SEMEL_STORE_SQLITE_H

#ifdef SEMEL_SQLITE_EXT /* inside the loadable extension: every call goes through the table that the host gave */
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT3
#else
#include <sqlite3.h>
#endif
#include <sys/types.h>

#include "base/error.h"
#include "base/random.h"
#include "base/str.h"
#include "store/records.h"
#include "store/sqlite_store.h"

enum sqlite_q { Q_BEGIN, Q_COMMIT, Q_ROLLBACK, Q_SAVEPOINT, Q_RELEASE, Q_ROLLBACK_TO, Q_LOCK, Q_PIN, Q_COUNT };

struct sqlite_store {
    struct sql sql;
    sqlite3 *db;
    sqlite3_stmt *kept[SQL_COUNT]; /* statements of the records */
    sqlite3_stmt *stmts[Q_COUNT];
    char *path;     /* own connections: as opened, absolute; NULL for :memory: and wrapped ones */
    bool wrapped;   /* the caller's handle */
    bool memory;    /* an in-memory database: no file, no WAL */
    bool broken;    /* could not roll back: CLOSED until reopened */
    bool begun;     /* we began the open transaction, and we end it */
    bool saved;     /* the savepoint is set */
    bool guarded;   /* a handler runs */
    unsigned ended; /* how many transactions have ended on an own connection, counted by its hooks */
    struct semel_sqlite_witness witness;
    bool hooked;  /* a wrapped handle whose hooks are ours */
    bool refused; /* the caller's open transaction must not commit: it has what should have been taken back, or a handle
                   * before this one was closed while its witness would have refused */
    struct sqlite_store *next_hooked;
    unsigned ended_at_begin;
    int64_t callers_rowid; /* joined: what last_insert_rowid() was, and is to be again */
    int schema_found;      /* when it was opened, before a migration */
    int timeout_ms;
    struct semel_random own_rng;
    /* The registry of own connections (sqlite.c). */
    bool listed;
    dev_t dev;
    ino_t ino;
    pid_t pid;
    struct sqlite_store *next;
};

static inline struct sqlite_store *semel__sqlite_of(struct semel_store *store)
{
    return (struct sqlite_store *)store; /* the first member */
}

/* ---- statements --------------------------------------------------------------------------------- */

/* One use of a cached statement. The first failure sticks and is reported by the step. */
struct sqlite_run {
    struct sqlite_store *d;
    sqlite3_stmt *stmt;
    int rc;
    const char *doing;
};

void semel__sqlite_start(struct sqlite_run *run, struct sqlite_store *d, enum sqlite_q q, const char *doing);
/* OK and *ret_row: a row can be read. On failure, and at the end, the statement is reset. */
semel_status semel__sqlite_step(struct sqlite_run *run, bool *ret_row, struct semel_error *err);
/* Runs to the end. *ret_changes (may be NULL): how many rows it inserted, updated or deleted. */
semel_status semel__sqlite_exec(struct sqlite_run *run, size_t *ret_changes, struct semel_error *err);
void semel__sqlite_end(struct sqlite_run *run); /* resets; may be called twice */
void semel__sqlite_finalize(struct sqlite_store *d);
/* The text of a statement, for a test that asks for its plan. */
const char *semel__sqlite_sql(enum sqlite_q q);
/* The driver's own statement failed: as semel__sqlite_fail, but a violated constraint is no message's fault. */
semel_status semel__sqlite_own_fail(struct sqlite_store *d, int rc, const char *doing, struct semel_error *err);

/* ---- the parts ---------------------------------------------------------------------------------- */

/* INVALID: another encoding than UTF-8, a newer schema than this binary knows, none or an old one and !migrate. */
semel_status semel__sqlite_schema_check(struct sqlite_store *d, bool will_migrate, struct semel_error *err);
semel_status semel__sqlite_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err);

/* CLOSED: the connection is gone, or belongs to the process that forked this one. */
semel_status semel__sqlite_usable(const struct sqlite_store *d, struct semel_error *err);
semel_status semel__sqlite_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us,
                                 struct semel_error *err);
semel_status semel__sqlite_commit(struct semel_store *store, struct semel_error *err);
void semel__sqlite_rollback(struct semel_store *store);
semel_status semel__sqlite_savepoint(struct semel_store *store, struct semel_error *err);
bool semel__sqlite_data_fault(const struct semel_error *err);
semel_status semel__sqlite_rollback_to(struct semel_store *store, struct semel_error *err);
void semel__sqlite_leave(struct semel_store *store);
bool semel__sqlite_busy(struct semel_store *store);
semel_status semel__sqlite_guard(struct semel_store *store, bool on, struct semel_error *err);
semel_status semel__sqlite_check(struct semel_store *store, struct semel_error *err);
void semel__sqlite_watch(struct sqlite_store *d); /* sets authorizer and hooks on an own connection */
void semel__sqlite_unwatch(struct sqlite_store *d);

extern const struct sql_driver semel__sqlite_driver;

#endif
