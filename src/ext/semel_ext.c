/* SPDX-License-Identifier: MIT
 *
 * semel_ext.c: the loadable extension of SQLite: its entry point, and the one handle of a connection.
 *
 * The handle is made at first use, for the tables need not be there when the extension is loaded. It keeps prepared
 * statements, and sqlite3_close() refuses a connection that has any; but it disconnects virtual tables before it looks.
 * So the handle lives only while one of our table-valued functions is connected: making it connects one, and it is
 * closed when the last one is let go of.
 *
 * Invariants
 *  - handle != NULL implies held > 0.
 *  - A begin without its end cannot commit, not even where a program tries to close its connection half way, is refused
 *    for a statement of its own, and goes on: from then until the rollback `orphaned` refuses the commit.
 *  - The struct lives as long as one function or module of it is registered.
 */
#include "ext/ext.h"

SQLITE_EXTENSION_INIT1

#define SQLITE_NEEDED 3037000 /* STRICT tables, sqlite3_changes64 */

struct ext {
    sqlite3 *db;
    struct semel *handle;
    int held;      /* connected table-valued functions */
    int refs;      /* registrations */
    bool orphaned; /* the handle was closed while a message that was begun had no end */
    struct ext_module modules[EXT_TABLES_MAX];
};

sqlite3 *semel__ext_db(const struct ext *ext)
{
    return ext->db;
}

/* ---- the handle ---------------------------------------------------------------------------------- */

static int refuse_commit(void *ctx)
{
    return ((const struct ext *)ctx)->orphaned; /* 1 makes the commit a rollback */
}

static void rolled_back(void *ctx)
{
    ((struct ext *)ctx)->orphaned = false;
}

static void close_handle(struct ext *ext)
{
    if (ext->handle == NULL)
        return;
    ext->orphaned = semel_pending(ext->handle) > 0;
    semel_close(ext->handle);
    ext->handle = NULL;
    if (ext->orphaned) {
        sqlite3_commit_hook(ext->db, refuse_commit, ext);
        sqlite3_rollback_hook(ext->db, rolled_back, ext);
    }
}

void semel__ext_hold(struct ext *ext)
{
    ext->held++;
}

void semel__ext_let_go(struct ext *ext)
{
    if (--ext->held == 0)
        close_handle(ext);
}

/* Preparing a statement on a table-valued function connects it, and it stays connected. */
static semel_status connect_one(struct ext *ext, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = ext->held > 0 ? SQLITE_OK
                           : sqlite3_prepare_v2(ext->db, "SELECT token FROM semel_inbox_take", -1, &stmt, NULL);

    sqlite3_finalize(stmt);
    if (ext->held > 0)
        return SEMEL_OK;
    if (rc == SQLITE_NOMEM)
        return semel__fail_memory(err);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "semel_inbox_take cannot be used here (an authorizer, or a table of that name)");
}

static semel_status open_handle(struct ext *ext, unsigned flags, struct semel_error *err)
{
    struct semel_error why = {0};
    semel_status status = connect_one(ext, err);

    if (status != SEMEL_OK)
        return status;
    status = semel_wrap_sqlite(&ext->handle, ext->db, flags, &why);
    if (status == SEMEL_OK)
        return status;
    ext->handle = NULL;
    if (strstr(why.text, "migrate it first") != NULL)
        return semel__fail(err, status, why.cls,
                           "the tables of semel are missing or old: run SELECT semel_migrate() or semel migrate first");
    *err = why;
    return status;
}

semel_status semel__ext_handle(struct ext *ext, struct semel **ret, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    if (ext->orphaned)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a message was begun before the connection was to be closed: ROLLBACK first");
    if (ext->handle == NULL)
        status = open_handle(ext, 0, err);
    *ret = ext->handle;
    return status;
}

/* The engine works behind savepoints, and SQLite sets none while a statement writes. */
static bool in_the_middle_of_a_write(sqlite3 *db)
{
    for (sqlite3_stmt *stmt = sqlite3_next_stmt(db, NULL); stmt != NULL; stmt = sqlite3_next_stmt(db, stmt))
        if (sqlite3_stmt_busy(stmt) && !sqlite3_stmt_readonly(stmt))
            return true;
    return false;
}

semel_status semel__ext_writable(struct ext *ext, const char *who, struct semel_error *err)
{
    if (sqlite3_get_autocommit(ext->db) != 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s: open a transaction first: BEGIN IMMEDIATE",
                           who);
    if (in_the_middle_of_a_write(ext->db))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "%s: another statement is in the middle of writing; call it in a SELECT of its own", who);
    return SEMEL_OK;
}

static semel_status schema_version(struct ext *ext, int64_t *ret, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(ext->db, "SELECT max(version) FROM main.semel_schema", -1, &stmt, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    *ret = rc == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
    sqlite3_finalize(stmt);
    if (rc == SQLITE_ROW)
        return SEMEL_OK;
    semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "semel_migrate: the version cannot be read: %s",
                sqlite3_errstr(rc));
    if (err != NULL)
        err->code = rc;
    return SEMEL_RETRY;
}

semel_status semel__ext_migrate(struct ext *ext, int64_t *ret_version, struct semel_error *err)
{
    semel_status status;

    if (sqlite3_get_autocommit(ext->db) == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "semel_migrate: a transaction is open; migrate outside of one");
    close_handle(ext);
    status = open_handle(ext, SEMEL_MIGRATE, err);
    return status == SEMEL_OK ? schema_version(ext, ret_version, err) : status;
}

int semel__ext_code(const struct semel_error *err)
{
    int code = err->code & 0xff;

    if (err->status != SEMEL_RETRY)
        return SQLITE_ERROR;
    if (err->code == SQLITE_IOERR_NOMEM || (code == SQLITE_OK && strcmp(err->text, "out of memory") == 0))
        return SQLITE_NOMEM;
    return code == SQLITE_OK || code == SQLITE_LOCKED ? SQLITE_BUSY : code;
}

/* ---- registering --------------------------------------------------------------------------------- */

static void unref(struct ext *ext)
{
    if (--ext->refs == 0)
        semel__free(ext);
}

static void function_gone(void *aux)
{
    unref(aux);
}

static void module_gone(void *aux)
{
    unref(((struct ext_module *)aux)->ext);
}

static int add_functions(struct ext *ext)
{
    int rc = SQLITE_OK;

    for (int i = 0; rc == SQLITE_OK && i < semel__ext_n_functions; i++) {
        const struct ext_function *f = &semel__ext_functions[i];
        for (int n = f->min; rc == SQLITE_OK && n <= f->max; n++) {
            ext->refs++;
            rc = sqlite3_create_function_v2(ext->db, f->name, n, SQLITE_UTF8 | SQLITE_DIRECTONLY | f->flags, ext,
                                            f->run, NULL, NULL, function_gone);
        }
    }
    return rc;
}

static int add_tables(struct ext *ext)
{
    int rc = SQLITE_OK;

    for (int i = 0; rc == SQLITE_OK && i < semel__ext_n_tables; i++) {
        ext->modules[i] = (struct ext_module){ext, &semel__ext_tables[i]};
        ext->refs++;
        rc = sqlite3_create_module_v2(ext->db, semel__ext_tables[i].name, &semel__ext_table_module, &ext->modules[i],
                                      module_gone);
    }
    return rc;
}

static bool is_loaded(sqlite3 *db)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, "SELECT semel_version()", -1, &stmt, NULL);

    sqlite3_finalize(stmt);
    return rc == SQLITE_OK;
}

static int add_all(sqlite3 *db)
{
    struct ext *ext = semel__calloc(1, sizeof(*ext));
    int rc;

    if (ext == NULL)
        return SQLITE_NOMEM;
    ext->db = db;
    ext->refs = 1;
    rc = add_functions(ext);
    if (rc == SQLITE_OK)
        rc = add_tables(ext);
    unref(ext);
    return rc;
}

__attribute__((visibility("default"))) int sqlite3_semel_init(sqlite3 *db, char **ret_text,
                                                              const sqlite3_api_routines *api);

int sqlite3_semel_init(sqlite3 *db, char **ret_text, const sqlite3_api_routines *api)
{
    if (api->libversion_number() < SQLITE_NEEDED) {
        *ret_text = api->mprintf("semel needs SQLite 3.37.0 or newer; this program has %s", api->libversion());
        return SQLITE_ERROR;
    }
    if (sqlite3_api != NULL && sqlite3_api != api) { /* connections of the other one would be given to this one */
        *ret_text = api->mprintf("semel is loaded into another copy of SQLite in this process already");
        return SQLITE_ERROR;
    }
    SQLITE_EXTENSION_INIT2(api);
    return is_loaded(db) ? SQLITE_OK : add_all(db); /* what was begun must not lose its handle */
}
