/* SPDX-License-Identifier: MIT
 *
 * sqlite.c: the SQLite driver: result codes, the SQL port, transactions and the guard, opening and closing.
 *
 * An own connection runs in WAL mode with synchronous=FULL (P24) and foreign keys on, each of them read back
 * after it was set. SQLite has one writer at a time; we keep one connection per process and file (P26), which
 * a registry of (device, inode, process) sees to. The registry looks at files by stat() only: closing a
 * descriptor of a database file would drop the locks that this process holds on it.
 *
 * After fork() the child must neither use nor close what the parent opened (POSIX locks are not inherited, and a
 * closing connection cleans up the WAL), so there closing forgets without touching the file.
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
 * Invariants: every value is bound, none is ever part of a statement's text; a statement is reset before the function
 * that ran it returns, and nothing is bound to it then. OK from commit means that COMMIT answered DONE under
 * synchronous=FULL. A failed COMMIT after which the transaction is gone is UNKNOWN, unless the code proves that nothing
 * was written: the frames of the WAL may be complete on disk while the failure was in fsync or after it. A handle that
 * is open is in the registry once, or is wrapped or in memory; open leaves nothing behind when it fails. An error's
 * text never holds a value (P71): SQLite's messages name tables, columns and constraints; the few that quote data are
 * replaced by fixed ones.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef SEMEL_SQLITE_EXT /* inside the loadable extension: every call goes through the table that the host gave */
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT3
#else
#include <sqlite3.h>
#endif

#include "base/file.h"
#include "store/migrations.h"
#include "store/records.h"
#include "store/sqlite_store.h"

#define TIMEOUT_MS 5000
#define SQLITE_NEEDED 3037000   /* STRICT tables */
#define WAL_RESET_FIXED 3051003 /* several connections may reset the write-ahead log at once */
#define PATH_BYTES 4096
#define PARAMS_MAX 64
#define MANY_MAX 8
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Statements that are no part of a record. */
enum own { BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE, ROLLBACK_TO, N_OWN };

struct sqlite_store {
    struct sql sql;
    sqlite3 *db;
    sqlite3_stmt *kept[SQL_COUNT];      /* statements of the records */
    sqlite3_stmt *kept_many[SQL_COUNT]; /* ... for many items at once */
    sqlite3_stmt *own[N_OWN];           /* of transactions */
    char *path;                         /* own connections: as opened, absolute; NULL for :memory: and wrapped ones */
    bool wrapped;                       /* the caller's handle */
    bool memory;                        /* an in-memory database: no file, no WAL */
    bool broken;                        /* could not roll back: CLOSED until reopened */
    bool begun;                         /* we began the open transaction, and we end it */
    bool saved;                         /* the savepoint is set */
    bool guarded;                       /* a handler runs */
    unsigned ended; /* how many transactions have ended on an own connection, counted by its hooks */
    struct semel_sqlite_witness witness;
    bool hooked;  /* a wrapped handle whose hooks are ours */
    bool refused; /* the caller's open transaction must not commit: it has what should have been taken back, or a handle
                   * before this one was closed while its witness would have refused */
    struct sqlite_store *next_hooked;
    unsigned ended_at_begin;
    int64_t callers_rowid; /* joined: what last_insert_rowid() was, and is to be again */
    int timeout_ms;
    struct semel_random own_rng;
    /* The registry of own connections. */
    bool listed;
    dev_t dev;
    ino_t ino;
    pid_t pid;
    struct sqlite_store *next;
};

static struct sqlite_store *of(struct semel_store *store)
{
    return (struct sqlite_store *)store; /* the first member */
}

/* ---- what a result code means -------------------------------------------------------------------- */

/* One table, searched first for the extended code, then for the primary one. A code that is not in it stops the route
 * (BROKEN): it charges no message, and a person looks. */
static const struct meaning {
    int code;
    semel_status status;
    enum semel_class cls;
    const char *text; /* NULL: SQLite's own message */
} meanings[] = {
    /* extended codes that differ from their primary one */
    {SQLITE_CONSTRAINT_FOREIGNKEY, SEMEL_INVALID, SEMEL_CLASS_TRANSIENT, NULL},
    {SQLITE_BUSY_SNAPSHOT, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT,
     "another connection has written since this transaction began to read"},
    {SQLITE_IOERR_NOMEM, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "out of memory"},
    {SQLITE_READONLY_DBMOVED, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the database file was moved or replaced"},
    /* the environment */
    {SQLITE_BUSY, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the database is locked by another program"},
    {SQLITE_LOCKED, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    {SQLITE_FULL, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    {SQLITE_IOERR, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    {SQLITE_NOMEM, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "out of memory"},
    {SQLITE_CANTOPEN, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    {SQLITE_READONLY, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    {SQLITE_PROTOCOL, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    {SQLITE_INTERRUPT, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    {SQLITE_PERM, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, NULL},
    /* the message */
    {SQLITE_CONSTRAINT, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, NULL},
    {SQLITE_MISMATCH, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, NULL},
    {SQLITE_TOOBIG, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, NULL},
    {SQLITE_RANGE, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, NULL},
    {SQLITE_AUTH, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, NULL},
    {SQLITE_ABORT, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, NULL},
    /* the setup */
    {SQLITE_NOTADB, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the file is not a SQLite database"},
    {SQLITE_CORRUPT, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the database file is damaged"},
    {SQLITE_ERROR, SEMEL_INVALID, SEMEL_CLASS_BROKEN, NULL},
    {SQLITE_SCHEMA, SEMEL_INVALID, SEMEL_CLASS_BROKEN, NULL},
    {SQLITE_MISUSE, SEMEL_INVALID, SEMEL_CLASS_BROKEN, NULL},
};

/* SQLITE_ERROR also is what a function says of its argument. That is the message's fault, and such a text may
 * quote the argument, so that only its beginning is shown. */
static const char *const data_errors[] = {"malformed JSON",        "bad JSON path",    "JSON path error",
                                          "JSON cannot hold BLOB", "integer overflow", "fts5: "};

static const struct meaning *find_meaning(int code)
{
    for (size_t i = 0; i < COUNT(meanings); i++)
        if (meanings[i].code == code)
            return &meanings[i];
    return NULL;
}

/* SQLITE_ERROR is one of data_errors where it blames the message. */
static bool sqlite_data_fault(const struct semel_error *err)
{
    const int code = err->code & 0xff;
    return code == SQLITE_CONSTRAINT || code == SQLITE_MISMATCH || code == SQLITE_TOOBIG ||
           (code == SQLITE_ERROR && err->cls == SEMEL_CLASS_PERMANENT);
}

static const char *data_error(const char *message)
{
    for (size_t i = 0; i < COUNT(data_errors); i++)
        if (strncmp(message, data_errors[i], strlen(data_errors[i])) == 0)
            return data_errors[i];
    return NULL;
}

/* The code with all its detail; a caller's handle may have extended codes turned off. */
static int extended(sqlite3 *db, int rc)
{
    int last = db != NULL ? sqlite3_extended_errcode(db) : rc;
    return rc > 0xff || (last & 0xff) != rc ? rc : last;
}

semel_status semel__sqlite_fail(sqlite3 *db, int rc, const char *doing, struct semel_error *err)
{
    static const struct meaning other = {0, SEMEL_INVALID, SEMEL_CLASS_BROKEN, NULL};
    int code = extended(db, rc);
    const struct meaning *m = find_meaning(code);
    if (m == NULL)
        m = find_meaning(code & 0xff);
    if (m == NULL)
        m = &other;

    bool own = db != NULL && (sqlite3_errcode(db) & 0xff) == (code & 0xff);
    const char *message = own ? sqlite3_errmsg(db) : sqlite3_errstr(code);
    enum semel_class cls = m->cls;
    const char *data = (code & 0xff) == SQLITE_ERROR ? data_error(message) : NULL;
    if (data != NULL) {
        cls = SEMEL_CLASS_PERMANENT;
        message = data;
    }
    semel_status status = semel__fail(err, m->status, cls, "%s: %s", doing, m->text != NULL ? m->text : message);
    if (err != NULL)
        err->code = code;
    return status;
}

/* A statement of ours failed: a violated constraint is no message's fault. */
static semel_status own_fail(struct sqlite_store *d, int rc, const char *doing, struct semel_error *err)
{
    semel_status status = semel__sqlite_fail(d->db, rc, doing, err);
    if (err == NULL)
        return status;
    int code = err->code;
    if (code != SQLITE_BUSY_SNAPSHOT && (code & 0xff) == SQLITE_BUSY && !d->wrapped) {
        semel__fail(err, status, SEMEL_CLASS_ENVIRONMENT,
                    "%s: the database is locked by another program (waited %d ms)", doing, d->timeout_ms);
        err->code = code;
    }
    /* Two claims of the same moment may draw one token: then one of them draws again. */
    if (code == SQLITE_CONSTRAINT_UNIQUE && strstr(err->text, "lease_token") != NULL) {
        err->cls = SEMEL_CLASS_TRANSIENT;
        return err->status = SEMEL_RETRY;
    }
    /* Core checks what it gives us: a constraint that is violated all the same was broken by other hands. */
    if (status == SEMEL_INVALID)
        err->cls = SEMEL_CLASS_BROKEN;
    return status;
}

/* ---- the SQL port -------------------------------------------------------------------------------- */

/* CLOSED: the connection is gone, or belongs to the process that forked this one. */
static semel_status usable(const struct sqlite_store *d, struct semel_error *err)
{
    if (d->pid != getpid())
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the database was opened before fork(): the child must open its own");
    if (d->db == NULL || d->broken)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the database connection is gone: reopen it");
    return SEMEL_OK;
}

/* Where the parameters of a statement come from. */
struct plan {
    const struct sql_field *fields[PARAMS_MAX];
    bool of_item[PARAMS_MAX];
    bool plain[PARAMS_MAX]; /* a member whose bytes tell whether its value is another one */
};

/* The values that are bound to the parameters of one item. A text is bound by its address. */
struct slot {
    size_t n_bound;
    struct sql_value bound[PARAMS_MAX];
    uint64_t members[PARAMS_MAX][2]; /* the bytes of those that are plain */
    unsigned char bytes[1 + SEMEL_FP_MAX];
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
        plan->plain[i] = plan->fields[i]->at == NULL && plan->fields[i]->size <= sizeof(((struct slot *)0)->members[0]);
    }
    return true;
}

static int bind(sqlite3_stmt *stmt, int i, enum sql_kind kind, const struct sql_value *value)
{
    if (value->null)
        return sqlite3_bind_null(stmt, i);
    if (semel__db_is_number(kind))
        return sqlite3_bind_int64(stmt, i, value->number);
    if (kind == SQL_BYTES || kind == SQL_FINGERPRINT)
        return sqlite3_bind_blob64(stmt, i, value->text.p, value->text.n, SQLITE_STATIC);
    return sqlite3_bind_text64(stmt, i, value->text.p, value->text.n, SQLITE_STATIC, SQLITE_UTF8);
}

static bool same(const struct sql_value *a, const struct sql_value *b)
{
    return a->null == b->null && a->number == b->number && a->text.p == b->text.p && a->text.n == b->text.n;
}

/* Keeps the bytes of the member. Returns whether they are what they were. */
static inline bool same_member(uint64_t kept[2], const struct sql_field *field, const void *from)
{
    const char *at = (const char *)from + field->offset;
    uint64_t now[2] = {0};
    if (field->size == sizeof(now)) /* sizes that are known here are copied at once */
        memcpy(now, at, sizeof(now));
    else if (field->size == sizeof(now[0]))
        memcpy(now, at, sizeof(now[0]));
    else if (field->size == sizeof(int32_t))
        memcpy(now, at, sizeof(int32_t));
    else
        memcpy(now, at, field->size);
    const bool equal = now[0] == kept[0] && now[1] == kept[1];
    memcpy(kept, now, sizeof(now));
    return equal;
}

/* Binds what differs from the item that the slot had before: most values of a batch are those of all its items, though
 * a reader may have changed them since. At first everything is NULL. The first parameter is behind `at` others. */
static int bind_item(sqlite3_stmt *stmt, const struct sql_statement *statement, const struct plan *plan,
                     struct slot *slot, size_t at, const void *once, const void *item)
{
    int rc = SQLITE_OK;
    if (slot->n_bound == 0)
        memset(slot->members, 0, sizeof(slot->members));
    for (size_t i = 0; rc == SQLITE_OK && i < statement->n_params; i++) {
        const struct sql_field *field = plan->fields[i];
        assert(field != NULL); /* make_plan has found them all */
        const void *from = plan->of_item[i] ? item : once;
        assert(from != NULL);
        if (plan->plain[i] && same_member(slot->members[i], field, from) && i < slot->n_bound)
            continue;
        struct sql_value value = semel__db_value(field, from, slot->bytes);
        if (i < slot->n_bound ? !same(&slot->bound[i], &value) : !value.null)
            rc = bind(stmt, (int)(at + i) + 1, semel__db_kind(field->name), &value);
        slot->bound[i] = value;
    }
    slot->n_bound = statement->n_params;
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
        db->status = own_fail(d, rc, db->doing, &db->err);
        return;
    }
    row->changes = sqlite3_changes64(d->db);
    if (read != NULL && (gives == SQL_NAME_changes || (gives == SQL_NAME_applied && row->changes > 0)))
        db->status = read(ctx, item, row, &db->err);
}

/* Prepared when it is first run, kept as long as the connection; one that was made of a template is the caller's to
 * finalize. NULL: *ret says why. */
static sqlite3_stmt *prepared(struct sqlite_store *d, const struct sql_statement *statement, bool many,
                              const char *doing, semel_status *ret, struct semel_error *err)
{
    sqlite3_stmt *made = NULL, **kept = &made;
    if (!statement->maps)
        kept = &(many ? d->kept_many : d->kept)[statement - semel__sqlite_statements];
    if (*kept != NULL)
        return *kept;
    int rc = sqlite3_prepare_v3(d->db, many ? statement->many.text : statement->sql.text, -1,
                                statement->maps ? 0 : SQLITE_PREPARE_PERSISTENT, kept, NULL);
    if (rc != SQLITE_OK)
        *ret = own_fail(d, rc, doing, err);
    return *kept;
}

/* A statement that was begun and is not ended keeps its snapshot, and with it that of all others. */
static semel_status pin(struct sqlite_store *d, bool *ret_begun, struct semel_error *err)
{
    static const char doing[] = "beginning to read";
    semel_status status = SEMEL_OK;
    sqlite3_stmt *stmt = prepared(d, &semel__sqlite_statements[SQL_snapshot], false, doing, &status, err);
    *ret_begun = false;
    if (stmt == NULL || sqlite3_stmt_busy(stmt))
        return status;
    int rc = sqlite3_step(stmt);
    *ret_begun = rc == SQLITE_ROW;
    if (rc == SQLITE_ROW)
        return SEMEL_OK;
    status = own_fail(d, rc, doing, err);
    sqlite3_reset(stmt);
    return status;
}

static semel_status sqlite_snapshot(struct sql *db, bool *ret_begun, struct semel_error *err)
{
    struct sqlite_store *d = (struct sqlite_store *)db;
    semel_status status = usable(d, err);
    return status == SEMEL_OK ? pin(d, ret_begun, err) : status;
}

static void sqlite_snapshot_end(struct sql *db, bool begun)
{
    if (begun)
        sqlite3_reset(((struct sqlite_store *)db)->kept[SQL_snapshot]);
}

/* A run of a statement over items. */
struct run {
    struct sqlite_store *d;
    const struct sql_statement *statement;
    const struct sql_set *once, *each;
    const void *first; /* of the values for all items */
    struct plan plan;
    sql_reader read;
    void *ctx;
};

static void sqlite_run(struct sql *db, const struct sql_statement *statement, const struct sql_set *once,
                       const struct sql_set *each, sql_reader read, void *ctx);

/* For a reader that knows the items of the whole run. */
struct shifted {
    const struct run *run;
    size_t by;
};

static semel_status read_shifted(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    const struct shifted *shifted = ctx;
    return shifted->run->read(shifted->run->ctx, shifted->by + item, row, err);
}

/* The items from `at` on were run together, and so many were applied. */
static void tell_applied(const struct run *run, size_t at, int64_t applied)
{
    struct sql *db = &run->d->sql;
    const size_t n = run->statement->n_many;
    const struct sql_row row = {.db = db, .statement = run->statement, .changes = 1};
    for (size_t k = 0; db->status == SEMEL_OK && applied == (int64_t)n && k < n; k++)
        db->status = run->read(run->ctx, at + k, &row, &db->err);
    if (db->status != SEMEL_OK || applied == 0 || applied == (int64_t)n)
        return;
    struct sql_set part = *run->each;
    struct shifted shifted = {run, at};
    part.items = (const char *)part.items + at * (part.size > 0 ? part.size : sizeof(void *));
    part.n = n;
    sqlite_run(db, &semel__sqlite_statements[run->statement->which], run->once, &part, read_shifted, &shifted);
}

/* A statement for each n_many items: its cursors are opened once for all of them. Returns how many items it has run. */
static size_t run_many(const struct run *run)
{
    struct sqlite_store *d = run->d;
    struct sql *db = &d->sql;
    const struct sql_statement *statement = run->statement;
    const size_t n = statement->n_many;
    struct slot slots[MANY_MAX];
    size_t at = 0;
    sqlite3_stmt *stmt = prepared(d, statement, true, db->doing, &db->status, &db->err);
    for (size_t k = 0; k < n; k++)
        slots[k].n_bound = 0;
    for (; db->status == SEMEL_OK && at + n <= run->each->n; at += n) {
        int rc = SQLITE_OK;
        for (size_t k = 0; rc == SQLITE_OK && k < n; k++)
            rc = bind_item(stmt, statement, &run->plan, &slots[k], k * statement->n_params, run->first,
                           semel__db_item(run->each, at + k));
        rc = rc == SQLITE_OK ? sqlite3_step(stmt) : rc;
        if (rc != SQLITE_DONE)
            db->status = own_fail(d, rc, db->doing, &db->err);
        sqlite3_reset(stmt);
        tell_applied(run, at, sqlite3_changes64(d->db));
    }
    if (stmt != NULL)
        sqlite3_clear_bindings(stmt);
    return at;
}

/* A caller's connection may allow fewer parameters. */
static bool fits_many(const struct sqlite_store *d, const struct sql_statement *statement, size_t n)
{
    return statement->n_many > 0 && statement->n_many <= MANY_MAX && n >= statement->n_many &&
           sqlite3_limit(d->db, SQLITE_LIMIT_VARIABLE_NUMBER, -1) >= (int)(statement->n_many * statement->n_params);
}

static void run_each(const struct run *run, sqlite3_stmt *stmt, size_t at)
{
    struct sql *db = &run->d->sql;
    struct slot slot = {.n_bound = 0};
    for (; db->status == SEMEL_OK && at < (run->each != NULL ? run->each->n : 1); at++) {
        struct sql_row row = {.db = db, .statement = run->statement, .result = stmt};
        const void *item = run->each != NULL ? semel__db_item(run->each, at) : NULL;
        int rc = bind_item(stmt, run->statement, &run->plan, &slot, 0, run->first, item);
        step_all(run->d, &row, at, rc, run->read, run->ctx);
        sqlite3_reset(stmt);
    }
    if (stmt != NULL)
        sqlite3_clear_bindings(stmt);
}

static void sqlite_run(struct sql *db, const struct sql_statement *statement, const struct sql_set *once,
                       const struct sql_set *each, sql_reader read, void *ctx)
{
    struct sqlite_store *d = (struct sqlite_store *)db;
    struct run run = {.d = d, .statement = statement, .once = once, .read = read, .ctx = ctx};
    bool pinned = false;
    size_t at = 0;
    run.each = each = statement->alone ? NULL : each;
    run.first = once != NULL ? semel__db_item(once, 0) : NULL;
    sqlite3_stmt *stmt = NULL;
    if (make_plan(&run.plan, statement, once, each, db))
        stmt = prepared(d, statement, false, db->doing, &db->status, &db->err);
    sqlite3_int64 callers_rowid = sqlite3_last_insert_rowid(d->db); /* a handler may ask for that of its own insert */
    if (db->status == SEMEL_OK && each != NULL && each->n > 1 && sqlite3_stmt_readonly(stmt))
        db->status = pin(d, &pinned, &db->err);
    if (db->status == SEMEL_OK && each != NULL && fits_many(d, statement, each->n))
        at = run_many(&run);
    run_each(&run, stmt, at);
    if (statement->maps)
        sqlite3_finalize(stmt);
    sqlite_snapshot_end(db, pinned);
    sqlite3_set_last_insert_rowid(d->db, callers_rowid);
}

static void sqlite_start(struct sql *db)
{
    db->status = usable((struct sqlite_store *)db, &db->err);
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

static semel_status sqlite_script(struct sql *db, const char *text, struct semel_error *err)
{
    struct sqlite_store *d = (struct sqlite_store *)db;
    int rc = sqlite3_exec(d->db, text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? SEMEL_OK : own_fail(d, rc, "migrating", err);
}

static const struct sql_driver sqlite_driver = {
    .statements = semel__sqlite_statements,
    .start = sqlite_start,
    .run = sqlite_run,
    .flush = sqlite_flush,
    .snapshot = sqlite_snapshot,
    .snapshot_end = sqlite_snapshot_end,
    .cell = sqlite_cell,
    .script = sqlite_script,
    .folder = "sqlite",
    .migrations = semel__sqlite_migrations,
    .n_migrations = &semel__sqlite_migrations_n,
};

/* ---- transactions -------------------------------------------------------------------------------- */

static const char *const own_texts[N_OWN] = {
    [BEGIN] = "BEGIN IMMEDIATE",     [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",         [SAVEPOINT] = "SAVEPOINT semel_one",
    [RELEASE] = "RELEASE semel_one", [ROLLBACK_TO] = "ROLLBACK TO semel_one",
};

static int prepare_own(struct sqlite_store *d, enum own own)
{
    if (d->own[own] != NULL)
        return SQLITE_OK;
    return sqlite3_prepare_v3(d->db, own_texts[own], -1, SQLITE_PREPARE_PERSISTENT, &d->own[own], NULL);
}

static int step_own(struct sqlite_store *d, enum own own)
{
    int rc = prepare_own(d, own);
    return rc == SQLITE_OK ? sqlite3_step(d->own[own]) : rc;
}

static semel_status run_own(struct sqlite_store *d, enum own own, const char *doing, struct semel_error *err)
{
    int rc = step_own(d, own);
    semel_status status = rc == SQLITE_DONE ? SEMEL_OK : own_fail(d, rc, doing, err); /* the reset forgets why */
    sqlite3_reset(d->own[own]);
    return status;
}

/* A joined transaction may have begun without the write lock. */
static semel_status lock_writes(struct sqlite_store *d, struct semel_error *err)
{
    return semel__db_do(&d->sql, "begin", SQL_write_lock, NULL, NULL, NULL, NULL, err);
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

static semel_status sqlite_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us,
                                 struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    semel_status status = usable(d, err);
    if (status != SEMEL_OK)
        return status;
    bool open = sqlite3_get_autocommit(d->db) == 0;
    if (tx != SEMEL_TX_JOIN && open)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a transaction is already open on this connection: join it, or end it first");
    if (tx == SEMEL_TX_JOIN && !open)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "there is no open transaction to join: BEGIN IMMEDIATE first");
    status = tx != SEMEL_TX_JOIN ? run_own(d, BEGIN, "begin", err) : lock_writes(d, err);
    if (status != SEMEL_OK)
        return status;
    d->begun = tx != SEMEL_TX_JOIN;
    d->callers_rowid = sqlite3_last_insert_rowid(d->db);
    d->saved = d->guarded = false;
    d->ended_at_begin = d->ended;
    d->sql.admitted.first_arrival = INT64_MAX;
    *ret_now_us = semel__now(d->sql.clock);
    return SEMEL_OK;
}

static void sqlite_rollback(struct semel_store *store)
{
    struct sqlite_store *d = of(store);
    bool begun = d->begun;
    d->begun = d->saved = d->guarded = false;
    if (d->db == NULL || !begun || sqlite3_get_autocommit(d->db) != 0)
        return;
    if (run_own(d, ROLLBACK, "rollback", NULL) != SEMEL_OK && sqlite3_get_autocommit(d->db) == 0)
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
    sqlite_rollback(&d->sql.store);
    if (err != NULL)
        *err = why;
    return status;
}

static semel_status sqlite_commit(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    semel_status status = usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (!d->begun) /* joined: the caller commits */
        return SEMEL_OK;
    if (was_ended(d)) {
        sqlite_rollback(store);
        return ended(err);
    }
    int rc = step_own(d, COMMIT);
    if (rc != SQLITE_DONE)
        status = commit_failed(d, rc, err);
    sqlite3_reset(d->own[COMMIT]);
    d->begun = d->saved = false;
    return status;
}

/* Prepared before there is anything to take back: later there may be no memory for it. */
static semel_status ready(struct sqlite_store *d, enum own own, struct semel_error *err)
{
    int rc = prepare_own(d, own);
    return rc == SQLITE_OK ? SEMEL_OK : own_fail(d, rc, "savepoint", err);
}

static semel_status set_savepoint(struct sqlite_store *d, struct semel_error *err)
{
    if (d->saved) { /* one level; in a caller's transaction it may be gone with one of the caller's own */
        d->saved = false;
        semel_status status = run_own(d, RELEASE, "savepoint", err);
        if (status != SEMEL_OK && d->begun)
            return status;
    }
    semel_status status = ready(d, ROLLBACK_TO, err);
    if (status == SEMEL_OK)
        status = ready(d, RELEASE, err);
    if (status == SEMEL_OK)
        status = run_own(d, SAVEPOINT, "savepoint", err);
    d->saved = status == SEMEL_OK;
    return status;
}

/* The guard denies savepoints to handlers, not to us. */
static semel_status sqlite_savepoint(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    const bool guarded = d->guarded;
    if (was_ended(d))
        return ended(err);
    d->guarded = false;
    semel_status status = set_savepoint(d, err);
    d->guarded = guarded;
    return status;
}

static semel_status sqlite_rollback_to(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    d->guarded = false;
    if (was_ended(d))
        return ended(err);
    semel_status status = run_own(d, ROLLBACK_TO, "rollback to savepoint", err);
    /* sqlite3_interrupt() stops this one too, while a statement of the caller's runs around it. */
    if (status != SEMEL_OK && !d->begun && sqlite3_get_autocommit(d->db) == 0)
        d->refused = true;
    return status;
}

/* A savepoint of ours that went away with one of the caller's own cannot be released, and need not be. One that cannot
 * be released for another reason (an interrupt) tells that the statement around us will fail too: whoever is told so
 * must not find it done. */
static void sqlite_leave(struct semel_store *store)
{
    struct sqlite_store *d = of(store);
    struct semel_error why = {0};
    if (d->saved && d->db != NULL && sqlite3_get_autocommit(d->db) == 0 &&
        run_own(d, RELEASE, "leaving the transaction", &why) != SEMEL_OK && (why.code & 0xff) != SQLITE_ERROR)
        d->refused = true;
    d->saved = false;
    if (d->db != NULL) /* the caller may ask for that of its own insert */
        sqlite3_set_last_insert_rowid(d->db, d->callers_rowid);
}

static bool sqlite_busy(struct semel_store *store)
{
    const struct sqlite_store *d = of(store);
    return d->db != NULL && sqlite3_get_autocommit(d->db) == 0;
}

/* ---- the guard ----------------------------------------------------------------------------------- */

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

static void watch(struct sqlite_store *d)
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
    struct sqlite_store *d = of(store);
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
static void unwatch(struct sqlite_store *d)
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

static semel_status sqlite_guard(struct semel_store *store, bool on, struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    d->guarded = on;
    return was_ended(d) ? ended(err) : SEMEL_OK;
}

static semel_status sqlite_check(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    int now = 0, high = 0;
    if (was_ended(d))
        return ended(err);
    int rc = sqlite3_db_status(d->db, SQLITE_DBSTATUS_DEFERRED_FKS, &now, &high, 0);
    if (rc != SQLITE_OK)
        return own_fail(d, rc, "check of deferred constraints", err);
    if (now == 0)
        return SEMEL_OK;
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_TRANSIENT, "a deferred foreign key is violated");
    if (err != NULL)
        err->code = SQLITE_CONSTRAINT_FOREIGNKEY;
    return SEMEL_INVALID;
}

/* ---- one own connection per process and file ----------------------------------------------------- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sqlite_store *registry;

static bool enlist(struct sqlite_store *d, dev_t dev, ino_t ino)
{
    bool free_place = true;
    pthread_mutex_lock(&registry_lock);
    for (const struct sqlite_store *o = registry; o != NULL; o = o->next)
        if (o->dev == dev && o->ino == ino && o->pid == d->pid)
            free_place = false;
    if (free_place) {
        d->dev = dev;
        d->ino = ino;
        d->listed = true;
        d->next = registry;
        registry = d;
    }
    pthread_mutex_unlock(&registry_lock);
    return free_place;
}

static void delist(struct sqlite_store *d)
{
    if (!d->listed)
        return;
    pthread_mutex_lock(&registry_lock);
    for (struct sqlite_store **at = &registry; *at != NULL; at = &(*at)->next)
        if (*at == d) {
            *at = d->next;
            break;
        }
    pthread_mutex_unlock(&registry_lock);
    d->listed = false;
}

/* ---- settings ------------------------------------------------------------------------------------ */

/* Sets or reads a setting; what is then in force must be `expected`. */
static semel_status pragma(struct sqlite_store *d, const char *sql, const char *expected, int *ret_rc,
                           struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(d->db, sql, -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    semel_status status = SEMEL_OK;
    if (ret_rc != NULL)
        *ret_rc = rc;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        status = own_fail(d, rc, sql, err);
    else if (expected != NULL) {
        const char *got = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(stmt, 0) : NULL;
        if (rc == SQLITE_ROW && got == NULL)
            status = semel__fail_memory(err);
        else if (got == NULL || strcmp(got, expected) != 0)
            status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s gave %.20s; it must give %s", sql,
                                 got != NULL ? got : "nothing", expected);
    }
    sqlite3_finalize(stmt);
    return status;
}

/* Changing to WAL needs the file for itself, and SQLite does not always wait for that: we do. */
static semel_status wal(struct sqlite_store *d, struct semel_error *err)
{
    int rc = SQLITE_OK;
    semel_status status = SEMEL_OK;
    sqlite3_busy_timeout(d->db, 0);
    for (int waited_ms = 0;; waited_ms += 10) {
        status = pragma(d, "PRAGMA journal_mode = WAL", d->memory ? "memory" : "wal", &rc, err);
        if ((rc & 0xff) != SQLITE_BUSY || waited_ms >= d->timeout_ms)
            break;
        sqlite3_sleep(10);
    }
    sqlite3_busy_timeout(d->db, d->timeout_ms);
    return status;
}

/* An insert of several rows keeps the pages that it changes, as they were, until it ends: with random ids that is a
 * page per row, which would be written to a temporary file. */
static semel_status settings(struct sqlite_store *d, struct semel_error *err)
{
    static const char *const pairs[][3] = {
        {"PRAGMA synchronous = FULL", "PRAGMA synchronous", "2"},
        {"PRAGMA foreign_keys = ON", "PRAGMA foreign_keys", "1"},
        {"PRAGMA temp_store = MEMORY", "PRAGMA temp_store", "2"},
    };
    semel_status status = wal(d, err);
    for (size_t i = 0; status == SEMEL_OK && i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        status = pragma(d, pairs[i][0], NULL, NULL, err);
        if (status == SEMEL_OK)
            status = pragma(d, pairs[i][1], pairs[i][2], NULL, err);
    }
    return status;
}

/* Keys are compared by their bytes. */
static semel_status check_schema(struct sqlite_store *d, struct semel_error *err)
{
    semel_status status = pragma(d, "PRAGMA encoding", "UTF-8", NULL, err);
    return status == SEMEL_OK ? semel__record_schema_check(&d->sql, err) : status;
}

/* ---- opening ------------------------------------------------------------------------------------- */

static semel_status prepare(struct sqlite_store *d, struct semel_error *err)
{
    const struct semel_store_options *o = &d->sql.store.options;
    d->sql.driver = &sqlite_driver;
    d->timeout_ms = o->lock_timeout_ms > 0 ? o->lock_timeout_ms : TIMEOUT_MS;
    d->sql.clock = o->clock != NULL ? o->clock : &semel__clock_real;
    d->sql.rng = o->rng != NULL ? o->rng : &d->own_rng;
    d->pid = getpid();
    if (sqlite3_libversion_number() < SQLITE_NEEDED)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "SQLite %s is too old; 3.37.0 or newer is needed",
                           sqlite3_libversion());
    if (o->rng == NULL && !semel__random_seed_os(&d->own_rng))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the system gives no random bytes");
    return SEMEL_OK;
}

static void finalize(struct sqlite_store *d)
{
    for (size_t i = 0; i < N_OWN; i++)
        sqlite3_finalize(d->own[i]);
    for (size_t i = 0; i < SQL_COUNT; i++) {
        sqlite3_finalize(d->kept[i]);
        sqlite3_finalize(d->kept_many[i]);
    }
}

static void disconnect(struct sqlite_store *d)
{
    bool ours = d->pid == getpid();
    if (d->db != NULL && ours) {
        d->guarded = false;
        sqlite_rollback(&d->sql.store);
    }
    if (d->db != NULL)
        unwatch(d); /* before the statements: without them a connection that was closed early is gone */
    if (d->db != NULL && ours) {
        finalize(d);
        if (!d->wrapped)
            sqlite3_close_v2(d->db);
    }
    d->db = NULL;
    memset(d->own, 0, sizeof(d->own));
    memset(d->kept, 0, sizeof(d->kept));
    memset(d->kept_many, 0, sizeof(d->kept_many));
    delist(d);
}

/* What SQLite would refuse with less to say, and what it would not refuse: a directory, a missing file. */
static semel_status check_path(const struct sqlite_store *d, struct semel_error *err)
{
    struct stat st;
    if (stat(d->path, &st) == 0) {
        if (S_ISREG(st.st_mode))
            return SEMEL_OK;
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is not a regular file", d->path);
    }
    if (errno != ENOENT || d->sql.store.options.create)
        return SEMEL_OK;
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is no database %s", d->path);
    if (err != NULL)
        err->code = SEMEL_STORE_NO_DATABASE;
    return SEMEL_INVALID;
}

/* SQLite says only that it cannot; the system has said why. For a file that cannot be made that is of little use: the
 * last that SQLite tries is to open it without making it. */
static semel_status cannot_open(struct sqlite_store *d, int rc, struct semel_error *err)
{
    char why[128] = "the file cannot be made: its folder is missing, or must not be written to";
    int number = d->db != NULL ? sqlite3_system_errno(d->db) : 0;
    semel_status status = own_fail(d, rc, "opening the database", err);
    if ((rc & 0xff) != SQLITE_CANTOPEN || number == 0 || err == NULL)
        return status;
    if (number != ENOENT && strerror_r(number, why, sizeof(why)) != 0)
        return status;
    semel__fail(err, status, err->cls, "opening the database: %s", why);
    err->code = rc;
    return status;
}

static semel_status claim_file(struct sqlite_store *d, struct semel_error *err)
{
    struct stat st;
    if (sqlite3_db_readonly(d->db, "main") != 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "opening %s: the file is read-only", d->path);
    if (stat(d->path, &st) != 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "opening %s: error %d of stat(2)", d->path,
                           errno);
    if (!enlist(d, st.st_dev, st.st_ino))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "this process has %s open already: share that handle (SQLite has one writer)", d->path);
    return SEMEL_OK;
}

static semel_status connect_own(struct sqlite_store *d, struct semel_error *err)
{
    /* One thread has the connection at a time (share.c), so that SQLite need not lock it in every call. */
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
                (d->sql.store.options.create ? SQLITE_OPEN_CREATE : 0);
    semel_status status = d->memory ? SEMEL_OK : check_path(d, err);
    if (status != SEMEL_OK)
        return status;
    if (!d->memory && d->sql.store.options.create)
        semel__file_make_private(d->path);
    int rc = sqlite3_open_v2(d->memory ? ":memory:" : d->path, &d->db, d->memory ? flags | SQLITE_OPEN_CREATE : flags,
                             NULL);
    if (rc != SQLITE_OK)
        status = cannot_open(d, rc, err);
    if (status == SEMEL_OK && !d->memory)
        status = claim_file(d, err);
    if (status == SEMEL_OK) {
        sqlite3_busy_timeout(d->db, d->timeout_ms);
        sqlite3_db_config(d->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        sqlite3_db_config(d->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
        watch(d);
        status = check_schema(d, err); /* before anything is changed */
    }
    if (status == SEMEL_OK)
        status = settings(d, err);
    if (status == SEMEL_OK && d->sql.store.options.migrate)
        status = semel__record_migrate(&d->sql.store, NULL, NULL, err);
    if (status != SEMEL_OK)
        disconnect(d);
    return status;
}

/* The path as it is opened: absolute, so that a later chdir() does not matter, and never taken for a URI. */
static semel_status keep_path(struct sqlite_store *d, struct semel_str location, struct semel_error *err)
{
    char cwd[PATH_BYTES] = "";
    struct semel_buf buf;
    if (location.n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL names no file; it must look like sqlite:/path/to/file.db");
    if (memchr(location.p, '\0', location.n) != NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the database's path has a NUL in it");
    if (location.p[0] != '/' && getcwd(cwd, sizeof(cwd)) == NULL)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "the current directory has no name: error %d of getcwd(3)", errno);
    semel__buf_init(&buf, 2 * PATH_BYTES);
    if (location.p[0] != '/') {
        semel__buf_addz(&buf, cwd);
        semel__buf_addz(&buf, "/");
    }
    semel__buf_add(&buf, location.p, location.n);
    semel__buf_add(&buf, "", 1);
    if (buf.failed) {
        semel__buf_done(&buf);
        return location.n >= PATH_BYTES
                   ? semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the database's path is too long")
                   : semel__fail_memory(err);
    }
    d->path = buf.p; /* freed by semel__free */
    return SEMEL_OK;
}

static semel_status sqlite_open(struct semel_store *store, struct semel_str location, struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    d->memory = semel__str_eqz(location, ":memory:");
    semel_status status = prepare(d, err);
    if (status == SEMEL_OK && !d->memory)
        status = keep_path(d, location, err);
    if (status == SEMEL_OK)
        status = connect_own(d, err);
    if (status != SEMEL_OK) {
        semel__free(d->path);
        d->path = NULL;
    }
    return status;
}

static void sqlite_close(struct semel_store *store)
{
    struct sqlite_store *d = of(store);
    disconnect(d);
    semel__free(d->path);
    d->path = NULL;
}

/* A database in memory and a caller's handle are the connection itself: there the transaction is rolled back. */
static semel_status sqlite_reopen(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = of(store);
    if (!d->memory && !d->wrapped) {
        disconnect(d);
        d->pid = getpid();
        d->broken = false;
        return connect_own(d, err);
    }
    sqlite_rollback(store);
    if (d->db == NULL || d->pid != getpid() || (!d->wrapped && sqlite3_get_autocommit(d->db) == 0))
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "this connection cannot be opened again");
    d->broken = false;
    return SEMEL_OK;
}

semel_status semel__store_sqlite_wrap(struct semel_store **ret, sqlite3 *db, const struct semel_store_options *options,
                                      struct semel_error *err)
{
    struct sqlite_store *d = semel__calloc(1, sizeof(*d));
    if (d == NULL)
        return semel__fail_memory(err);
    d->sql.store.ops = &semel__store_sqlite;
    if (options != NULL)
        d->sql.store.options = *options;
    d->db = db;
    d->wrapped = true;
    semel_status status = prepare(d, err);
    if (status == SEMEL_OK)
        status = check_schema(d, err);
    if (status == SEMEL_OK && d->sql.store.options.migrate)
        status = semel__record_migrate(&d->sql.store, NULL, NULL, err);
    if (status != SEMEL_OK) {
        disconnect(d);
        semel__free(d);
        return status;
    }
    *ret = &d->sql.store;
    return SEMEL_OK;
}

static void *sqlite_native(struct semel_store *store)
{
    return of(store)->db;
}

/* ---- what a person should know of it ------------------------------------------------------------- */

void semel__sqlite_about(int version, char *out, size_t size)
{
    int n = snprintf(out, size, "SQLite %d.%d.%d", version / 1000000, version / 1000 % 1000, version % 1000);
    if (version >= WAL_RESET_FIXED || n < 0 || (size_t)n >= size)
        return;
    snprintf(out + n, size - (size_t)n,
             ": before 3.51.3 several connections that reset the write-ahead log at once may, rarely, damage the "
             "database; keep other writers few, or upgrade");
}

int semel__sqlite_version(void)
{
    return sqlite3_libversion_number();
}

int64_t semel__sqlite_wal_bytes(struct semel_store *store)
{
    const struct sqlite_store *d = (const struct sqlite_store *)store;
    char path[4200];
    struct stat st;
    if (d->path == NULL || snprintf(path, sizeof(path), "%s-wal", d->path) >= (int)sizeof(path))
        return SEMEL_NONE;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : SEMEL_NONE;
}

const struct semel_store_ops semel__store_sqlite = {.name = "sqlite",
                                                    .capabilities = SEMEL_STORE_ATOMIC | SEMEL_STORE_DURABLE |
                                                                    SEMEL_STORE_SQL,
                                                    .size = sizeof(struct sqlite_store),
                                                    .open = sqlite_open,
                                                    .close = sqlite_close,
                                                    .reopen = sqlite_reopen,
                                                    .native = sqlite_native,
                                                    .begin = sqlite_begin,
                                                    .commit = sqlite_commit,
                                                    .rollback = sqlite_rollback,
                                                    .savepoint = sqlite_savepoint,
                                                    .rollback_to = sqlite_rollback_to,
                                                    .leave = sqlite_leave,
                                                    .guard = sqlite_guard,
                                                    .check = sqlite_check,
                                                    .data_fault = sqlite_data_fault,
                                                    .busy = sqlite_busy,
                                                    .relay = &semel__record_relay_single,
                                                    .keys = &semel__record_keys,
                                                    SEMEL_RECORDS};
