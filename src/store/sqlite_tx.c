/* SPDX-License-Identifier: MIT
 *
 * sqlite_tx.c: transactions, the savepoint, and the guard around handlers.
 *
 * Own transactions begin IMMEDIATE, so that none has to change from reading to writing half way (P23), and one
 * that is joined is made to hold the write lock before anything is read in it.
 *
 * The guard (P58). On an own connection, while a handler runs: an authorizer refuses statements that begin or
 * end a transaction, touch a savepoint, attach a database or change a setting; a commit hook turns every
 * COMMIT into a rollback, for what the authorizer cannot see (a statement prepared earlier; INSERT OR ROLLBACK,
 * after which each statement would commit by itself); and both hooks count the transactions that ended. The
 * authorizer is set once: setting it expires every prepared statement. On a caller's handle only the
 * autocommit flag is looked at, unless a witness has its hooks.
 *
 * Invariants: OK from commit means that COMMIT answered DONE under synchronous=FULL. A failed COMMIT after which
 * the transaction is gone is UNKNOWN, unless the code proves that nothing was written: the frames of the WAL
 * may be complete on disk while the failure was in fsync or after it.
 */
#include <pthread.h>
#include <unistd.h>

#include "store/sqlite.h"

static semel_status run(struct sqlite_store *d, enum sqlite_q q, const char *doing, struct semel_error *err)
{
    struct sqlite_run r;
    semel__sqlite_start(&r, d, q, doing);
    return semel__sqlite_exec(&r, NULL, err);
}

semel_status semel__sqlite_usable(const struct sqlite_store *d, struct semel_error *err)
{
    if (d->pid != getpid())
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the database was opened before fork(): the child must open its own");
    if (d->db == NULL || d->broken)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the database connection is gone: reopen it");
    return SEMEL_OK;
}

static bool was_ended(const struct sqlite_store *d)
{
    return sqlite3_get_autocommit(d->db) != 0 || d->ended != d->ended_at_begin;
}

static semel_status ended(struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "the transaction was ended by a statement inside it (ROLLBACK, INSERT OR ROLLBACK or COMMIT)");
}

semel_status semel__sqlite_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us,
                                 struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    bool open = sqlite3_get_autocommit(d->db) == 0;
    if (tx == SEMEL_TX_OWN && open)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a transaction is already open on this connection: join it, or end it first");
    if (tx == SEMEL_TX_JOIN && !open)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "there is no open transaction to join: BEGIN IMMEDIATE first");
    status = run(d, tx == SEMEL_TX_OWN ? Q_BEGIN : Q_LOCK, "begin", err);
    if (status != SEMEL_OK)
        return status;
    d->begun = tx == SEMEL_TX_OWN;
    d->callers_rowid = sqlite3_last_insert_rowid(d->db);
    d->saved = d->guarded = false;
    d->ended_at_begin = d->ended;
    d->sql.admitted.first_arrival = INT64_MAX;
    *ret_now_us = semel__now(d->sql.clock);
    return SEMEL_OK;
}

void semel__sqlite_rollback(struct semel_store *store)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    bool begun = d->begun;
    d->begun = d->saved = d->guarded = false;
    if (d->db == NULL || !begun || sqlite3_get_autocommit(d->db) != 0)
        return;
    struct sqlite_run r;
    semel__sqlite_start(&r, d, Q_ROLLBACK, "rollback");
    if (semel__sqlite_exec(&r, NULL, NULL) != SEMEL_OK && sqlite3_get_autocommit(d->db) == 0)
        d->broken = true;
}

/* A write that a handler began to step and did not finish keeps COMMIT from running, for ever. */
static bool write_unfinished(sqlite3 *db)
{
    for (sqlite3_stmt *stmt = sqlite3_next_stmt(db, NULL); stmt != NULL; stmt = sqlite3_next_stmt(db, stmt))
        if (sqlite3_stmt_busy(stmt) && !sqlite3_stmt_readonly(stmt))
            return true;
    return false;
}

/* Is it certain that a COMMIT which failed so left nothing behind? */
static bool certainly_not(int code)
{
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_CONSTRAINT:
    case SQLITE_FULL:
    case SQLITE_READONLY:
        return true;
    default:
        return false;
    }
}

static semel_status commit_failed(struct sqlite_store *d, int rc, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = semel__sqlite_fail(d->db, rc, "commit", &why);
    bool gone = sqlite3_get_autocommit(d->db) != 0;
    if (!gone && (rc & 0xff) == SQLITE_BUSY && write_unfinished(d->db))
        status = semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                             "commit: the handler left a writing statement unfinished; it must reset it");
    else if (gone && !certainly_not(rc))
        why.status = status = SEMEL_UNKNOWN;
    semel__sqlite_rollback(&d->sql.store);
    if (err != NULL)
        *err = why;
    return status;
}

semel_status semel__sqlite_commit(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (!d->begun) /* joined: the caller commits */
        return SEMEL_OK;
    if (was_ended(d)) {
        semel__sqlite_rollback(store);
        return ended(err);
    }
    struct sqlite_run r;
    semel__sqlite_start(&r, d, Q_COMMIT, "commit");
    int rc = r.rc != SQLITE_OK ? r.rc : sqlite3_step(r.stmt);
    if (rc != SQLITE_DONE)
        status = commit_failed(d, rc, err);
    semel__sqlite_end(&r);
    d->begun = d->saved = false;
    return status;
}

/* Prepared before there is anything to take back: later there may be no memory for it. */
static semel_status ready(struct sqlite_store *d, enum sqlite_q q, struct semel_error *err)
{
    struct sqlite_run r;
    semel__sqlite_start(&r, d, q, "savepoint");
    semel_status status = r.rc == SQLITE_OK ? SEMEL_OK : semel__sqlite_own_fail(d, r.rc, r.doing, err);
    semel__sqlite_end(&r);
    return status;
}

static semel_status set_savepoint(struct sqlite_store *d, struct semel_error *err)
{
    if (d->saved) { /* one level; in a caller's transaction it may be gone with one of the caller's own */
        d->saved = false;
        semel_status status = run(d, Q_RELEASE, "savepoint", err);
        if (status != SEMEL_OK && d->begun)
            return status;
    }
    semel_status status = ready(d, Q_ROLLBACK_TO, err);
    if (status == SEMEL_OK)
        status = ready(d, Q_RELEASE, err);
    if (status == SEMEL_OK)
        status = run(d, Q_SAVEPOINT, "savepoint", err);
    d->saved = status == SEMEL_OK;
    return status;
}

/* The guard denies savepoints to handlers, not to us. */
semel_status semel__sqlite_savepoint(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    const bool guarded = d->guarded;
    if (was_ended(d))
        return ended(err);
    d->guarded = false;
    semel_status status = set_savepoint(d, err);
    d->guarded = guarded;
    return status;
}

semel_status semel__sqlite_rollback_to(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    d->guarded = false;
    if (was_ended(d))
        return ended(err);
    semel_status status = run(d, Q_ROLLBACK_TO, "rollback to savepoint", err);
    /* sqlite3_interrupt() stops this one too, while a statement of the caller's runs around it. */
    if (status != SEMEL_OK && !d->begun && sqlite3_get_autocommit(d->db) == 0)
        d->refused = true;
    return status;
}

/* A savepoint of ours that went away with one of the caller's own cannot be released, and need not be. One that cannot
 * be released for another reason (an interrupt) tells that the statement around us will fail too: whoever is told so
 * must not find it done. */
void semel__sqlite_leave(struct semel_store *store)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct semel_error why = {0};
    if (d->saved && d->db != NULL && sqlite3_get_autocommit(d->db) == 0 &&
        run(d, Q_RELEASE, "leaving the transaction", &why) != SEMEL_OK && (why.code & 0xff) != SQLITE_ERROR)
        d->refused = true;
    d->saved = false;
    if (d->db != NULL) /* the caller may ask for that of its own insert */
        sqlite3_set_last_insert_rowid(d->db, d->callers_rowid);
}

bool semel__sqlite_busy(struct semel_store *store)
{
    const struct sqlite_store *d = semel__sqlite_of(store);
    return d->db != NULL && sqlite3_get_autocommit(d->db) == 0;
}

/* ---- the guard ---------------------------------------------------------------------------------- */

/* Settings that only look, or that end with the transaction. */
static bool pragma_harmless(const char *name)
{
    static const char *const harmless[] = {"table_info",         "table_xinfo",      "table_list",   "index_list",
                                           "index_info",         "index_xinfo",      "data_version", "foreign_key_list",
                                           "defer_foreign_keys", "foreign_key_check"};
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
        if (name != NULL && sqlite3_stricmp(name, harmless[i]) == 0)
            return true;
    return false;
}

static int authorize(void *ctx, int action, const char *a, const char *b, const char *db, const char *trigger)
{
    const struct sqlite_store *d = ctx;
    (void)b;
    (void)db;
    (void)trigger;
    if (!d->guarded)
        return SQLITE_OK;
    switch (action) {
    case SQLITE_TRANSACTION:
    case SQLITE_SAVEPOINT:
    case SQLITE_ATTACH:
    case SQLITE_DETACH:
        return SQLITE_DENY;
    case SQLITE_PRAGMA:
        return pragma_harmless(a) ? SQLITE_OK : SQLITE_DENY;
    default:
        return SQLITE_OK;
    }
}

static int on_commit(void *ctx)
{
    struct sqlite_store *d = ctx;
    if (d->guarded || d->refused)
        return 1; /* becomes a rollback, and on_rollback counts it */
    if (d->witness.may_commit != NULL && !d->witness.may_commit(d->witness.ctx))
        return 1;
    d->ended++;
    if (d->witness.ended != NULL)
        d->witness.ended(d->witness.ctx);
    return 0;
}

static void on_rollback(void *ctx)
{
    struct sqlite_store *d = ctx;
    d->ended++;
    d->refused = false;
    if (d->witness.ended != NULL)
        d->witness.ended(d->witness.ctx);
}

/* A connection has one pair of hooks: whoever set them last would silently take them from the one before. */
static pthread_mutex_t hooks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sqlite_store *hooks;

static bool claim_hooks(struct sqlite_store *d)
{
    bool free_place = true;
    pthread_mutex_lock(&hooks_lock);
    for (const struct sqlite_store *o = hooks; o != NULL; o = o->next_hooked)
        if (o->db == d->db && o->pid == d->pid)
            free_place = false;
    if (free_place) {
        d->next_hooked = hooks;
        hooks = d;
    }
    pthread_mutex_unlock(&hooks_lock);
    return free_place;
}

static void release_hooks(struct sqlite_store *d)
{
    pthread_mutex_lock(&hooks_lock);
    for (struct sqlite_store **at = &hooks; *at != NULL; at = &(*at)->next_hooked)
        if (*at == d) {
            *at = d->next_hooked;
            break;
        }
    pthread_mutex_unlock(&hooks_lock);
    d->next_hooked = NULL;
}

/* What stays on a caller's connection whose witness went while it would have refused: until the rollback. */
static char orphan_mark;

static int refuse_orphans(void *ctx)
{
    (void)ctx;
    return 1;
}

static void forget_orphans(void *db)
{
    sqlite3_commit_hook(db, NULL, NULL);
    sqlite3_rollback_hook(db, NULL, NULL);
}

static void set_hooks(struct sqlite_store *d)
{
    d->refused = sqlite3_commit_hook(d->db, on_commit, d) == &orphan_mark;
    sqlite3_rollback_hook(d->db, on_rollback, d);
}

void semel__sqlite_watch(struct sqlite_store *d)
{
    (void)claim_hooks(d); /* the connection is new */
    sqlite3_set_authorizer(d->db, authorize, d);
    set_hooks(d);
}

static void unhook(struct sqlite_store *d)
{
    bool refused = d->refused || (d->witness.may_commit != NULL && !d->witness.may_commit(d->witness.ctx));
    bool orphans = d->wrapped && refused && sqlite3_get_autocommit(d->db) == 0;
    sqlite3_commit_hook(d->db, orphans ? refuse_orphans : NULL, orphans ? &orphan_mark : NULL);
    sqlite3_rollback_hook(d->db, orphans ? forget_orphans : NULL, orphans ? d->db : NULL);
}

semel_status semel__sqlite_witness(struct semel_store *store, const struct semel_sqlite_witness *witness,
                                   struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    bool on = witness != NULL;
    if (d->wrapped && d->db != NULL && on != d->hooked) {
        if (on && !claim_hooks(d))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "another handle has the hooks of this connection: share that handle");
        if (on) {
            set_hooks(d);
        } else {
            unhook(d);
            release_hooks(d);
        }
        d->hooked = on;
    }
    d->witness = on ? *witness : (struct semel_sqlite_witness){0};
    return SEMEL_OK;
}

/* A handler's statement that was not finalised keeps the connection alive longer than its store. */
void semel__sqlite_unwatch(struct sqlite_store *d)
{
    if (!d->wrapped || d->hooked)
        release_hooks(d);
    if (d->pid != getpid() || (d->wrapped && !d->hooked))
        return;
    if (!d->wrapped)
        sqlite3_set_authorizer(d->db, NULL, NULL);
    unhook(d);
    d->hooked = false;
}

semel_status semel__sqlite_guard(struct semel_store *store, bool on, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    d->guarded = on;
    return was_ended(d) ? ended(err) : SEMEL_OK;
}

semel_status semel__sqlite_check(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    int now = 0, high = 0;
    if (was_ended(d))
        return ended(err);
    int rc = sqlite3_db_status(d->db, SQLITE_DBSTATUS_DEFERRED_FKS, &now, &high, 0);
    if (rc != SQLITE_OK)
        return semel__sqlite_own_fail(d, rc, "check of deferred constraints", err);
    if (now == 0)
        return SEMEL_OK;
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_TRANSIENT, "a deferred foreign key is violated");
    if (err != NULL)
        err->code = SQLITE_CONSTRAINT_FOREIGNKEY;
    return SEMEL_INVALID;
}
