/* SPDX-License-Identifier: MIT
 *
 * sqlite_watch.c: tells a handle of the savepoints of the caller's transaction.
 *
 * SQLite has no hook for ROLLBACK TO. But it tells a virtual table that was written in the transaction of each
 * savepoint, by its number from the outside, and of the way back to it. So there is an empty one, semel_watch, and a
 * begin writes nothing into it. The outermost savepoint that is itself the transaction is number -1; the savepoint
 * of a statement of several writes has the number behind the others.
 *
 * Invariants: the link lives as long as the module, which is as long as a table of it is in a transaction, and may
 * outlive the handle. Of two tables of one link in a transaction only the first one reports.
 */
#ifdef SEMEL_SQLITE_EXT
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT3
#else
#include <sqlite3.h>
#endif

#include "base/error.h"
#include "base/mem.h"
#include "store/sqlite_store.h"

struct semel_sqlite_link {
    struct semel_sqlite_watch *watch; /* NULL: it has gone */
};

struct table {
    sqlite3_vtab base;
    struct semel_sqlite_link *link;
    bool reports;
};

static int connect(sqlite3 *db, void *link, int n, const char *const *args, sqlite3_vtab **ret, char **err)
{
    (void)n;
    (void)args;
    (void)err;
    int rc = sqlite3_declare_vtab(db, "CREATE TABLE semel_watch (x)");
    struct table *table = rc == SQLITE_OK ? semel__calloc(1, sizeof *table) : NULL;
    if (table == NULL)
        return rc == SQLITE_OK ? SQLITE_NOMEM : rc;
    table->link = link;
    *ret = &table->base;
    return SQLITE_OK;
}

static int disconnect(sqlite3_vtab *base)
{
    semel__free(base);
    return SQLITE_OK;
}

static int refuse_to_read(sqlite3_vtab *base, sqlite3_index_info *info)
{
    (void)base;
    (void)info;
    return SQLITE_CONSTRAINT; /* there is no plan */
}

static int refuse_to_write(sqlite3_vtab *base, int n, sqlite3_value **values, sqlite3_int64 *ret)
{
    (void)base;
    (void)n;
    (void)values;
    (void)ret;
    return SQLITE_READONLY;
}

static int join(sqlite3_vtab *base)
{
    struct table *table = (struct table *)base;
    struct semel_sqlite_watch *watch = table->link->watch;
    table->reports = watch != NULL && !watch->on;
    if (table->reports)
        watch->on = true;
    return SQLITE_OK;
}

static struct semel_sqlite_watch *watch_of(sqlite3_vtab *base)
{
    const struct table *table = (const struct table *)base;
    return table->reports ? table->link->watch : NULL;
}

static int leave(sqlite3_vtab *base)
{
    struct semel_sqlite_watch *watch = watch_of(base);
    if (watch != NULL)
        watch->on = false;
    return SQLITE_OK;
}

static int saved(sqlite3_vtab *base, int number)
{
    struct semel_sqlite_watch *watch = watch_of(base);
    return watch == NULL || watch->saved(watch->ctx, number) ? SQLITE_OK : SQLITE_NOMEM;
}

static int undone(sqlite3_vtab *base, int number)
{
    struct semel_sqlite_watch *watch = watch_of(base);
    if (watch != NULL)
        watch->undone(watch->ctx, number);
    return SQLITE_OK;
}

static const sqlite3_module module = {
    /* no xCreate: CREATE VIRTUAL TABLE is refused */
    .iVersion = 2,       .xConnect = connect,   .xBestIndex = refuse_to_read, .xDisconnect = disconnect,
    .xBegin = join,      .xCommit = leave,      .xUpdate = refuse_to_write,   .xRollback = leave,
    .xSavepoint = saved, .xRollbackTo = undone,
};

static void forget(void *ctx)
{
    struct semel_sqlite_link *link = ctx;
    if (link->watch != NULL)
        semel__sqlite_unwatch(link->watch);
    semel__free(link);
}

semel_status semel__sqlite_watch(struct semel_sqlite_watch *watch, sqlite3 *db, struct semel_error *err)
{
    int rc = SQLITE_OK;
    if (watch->on)
        return SEMEL_OK;
    if (watch->db != db) { /* a connection of our own may be another one by now */
        semel__sqlite_unwatch(watch);
        struct semel_sqlite_link *link = semel__calloc(1, sizeof *link);
        if (link == NULL)
            return semel__fail_memory(err);
        *link = (struct semel_sqlite_link){watch};
        watch->link = link;
        watch->db = db;
        rc = sqlite3_create_module_v2(db, "semel_watch", &module, link, forget);
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "INSERT INTO semel_watch SELECT 0 WHERE 0", NULL, NULL, NULL);
    if (rc == SQLITE_OK && !watch->on)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "begin: there is another table named semel_watch");
    semel_status status = rc == SQLITE_OK ? SEMEL_OK : semel__sqlite_fail(db, rc, "begin", err);
    if (status == SEMEL_INVALID && err != NULL)
        err->cls = SEMEL_CLASS_BROKEN;
    return status;
}

void semel__sqlite_unwatch(struct semel_sqlite_watch *watch)
{
    if (watch->link != NULL)
        watch->link->watch = NULL;
    watch->link = NULL;
    watch->db = NULL;
    watch->on = false;
}
