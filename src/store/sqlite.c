/* SPDX-License-Identifier: MIT
 *
 * sqlite.c: the SQLite driver: opening, closing, wrapping, and the table of functions.
 *
 * An own connection runs in WAL mode with synchronous=FULL (P24) and foreign keys on, each of them read back
 * after it was set. SQLite has one writer at a time; we keep one connection a process and file (P26), which
 * a registry of (device, inode, process) sees to. The registry looks at files by stat() only: closing a
 * descriptor of a database file would drop the locks that this process holds on it.
 *
 * After fork() the child must neither use nor close what the parent opened (POSIX locks are not inherited, and a
 * closing connection cleans up the WAL), so there closing forgets without touching the file.
 *
 * Invariants: a handle that is open is in the registry once, or is wrapped or in memory; open leaves nothing
 * behind when it fails.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "store/sqlite.h"

#define TIMEOUT_MS 5000
#define SQLITE_NEEDED 3037000 /* STRICT tables */
#define PATH_BYTES 4096

/* ---- one own connection a process and file ------------------------------------------------------- */

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
        status = semel__sqlite_own_fail(d, rc, sql, err);
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

static semel_status settings(struct sqlite_store *d, struct semel_error *err)
{
    static const char *const pairs[][3] = {
        {"PRAGMA synchronous = FULL", "PRAGMA synchronous", "2"},
        {"PRAGMA foreign_keys = ON", "PRAGMA foreign_keys", "1"},
    };
    semel_status status = wal(d, err);
    for (size_t i = 0; status == SEMEL_OK && i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        status = pragma(d, pairs[i][0], NULL, NULL, err);
        if (status == SEMEL_OK)
            status = pragma(d, pairs[i][1], pairs[i][2], NULL, err);
    }
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------- */

static semel_status prepare(struct sqlite_store *d, struct semel_error *err)
{
    const struct semel_store_options *o = &d->sql.store.options;
    d->sql.driver = &semel__sqlite_driver;
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

static void disconnect(struct sqlite_store *d)
{
    bool ours = d->pid == getpid();
    if (d->db != NULL && ours) {
        d->guarded = false;
        semel__sqlite_rollback(&d->sql.store);
    }
    if (d->db != NULL)
        semel__sqlite_unwatch(d); /* before the statements: without them a connection that was closed early is gone */
    if (d->db != NULL && ours) {
        semel__sqlite_finalize(d);
        if (!d->wrapped)
            sqlite3_close_v2(d->db);
    }
    d->db = NULL;
    memset(d->stmts, 0, sizeof(d->stmts));
    memset(d->kept, 0, sizeof(d->kept));
    delist(d);
}

/* What SQLite would refuse with less to say, and what it would not refuse: a directory, a missing file. */
static semel_status look(const struct sqlite_store *d, struct semel_error *err)
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
    semel_status status = semel__sqlite_own_fail(d, rc, "opening the database", err);
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
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_EXRESCODE | (d->sql.store.options.create ? SQLITE_OPEN_CREATE : 0);
    semel_status status = d->memory ? SEMEL_OK : look(d, err);
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
        semel__sqlite_watch(d);
        status = semel__sqlite_schema_check(d, d->sql.store.options.migrate, err); /* before anything is changed */
    }
    if (status == SEMEL_OK)
        status = settings(d, err);
    if (status == SEMEL_OK && d->sql.store.options.migrate)
        status = semel__sqlite_migrate(&d->sql.store, NULL, NULL, err);
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
    struct sqlite_store *d = semel__sqlite_of(store);
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
    struct sqlite_store *d = semel__sqlite_of(store);
    disconnect(d);
    semel__free(d->path);
    d->path = NULL;
}

/* A database in memory and a caller's handle are the connection itself: there the transaction is rolled back. */
static semel_status sqlite_reopen(struct semel_store *store, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    if (!d->memory && !d->wrapped) {
        disconnect(d);
        d->pid = getpid();
        d->broken = false;
        return connect_own(d, err);
    }
    semel__sqlite_rollback(store);
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
    bool migrate = d->sql.store.options.migrate;
    semel_status status = prepare(d, err);
    if (status == SEMEL_OK)
        status = semel__sqlite_schema_check(d, migrate, err);
    if (status == SEMEL_OK && migrate)
        status = semel__sqlite_migrate(&d->sql.store, NULL, NULL, err);
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
    return semel__sqlite_of(store)->db;
}

const struct semel_store_ops semel__store_sqlite = {
    .name = "sqlite",
    .capabilities = SEMEL_STORE_ATOMIC | SEMEL_STORE_DURABLE | SEMEL_STORE_SQL,
    .size = sizeof(struct sqlite_store),
    .open = sqlite_open,
    .close = sqlite_close,
    .reopen = sqlite_reopen,
    .native = sqlite_native,
    .migrate = semel__sqlite_migrate,
    .begin = semel__sqlite_begin,
    .commit = semel__sqlite_commit,
    .rollback = semel__sqlite_rollback,
    .savepoint = semel__sqlite_savepoint,
    .data_fault = semel__sqlite_data_fault,
    .rollback_to = semel__sqlite_rollback_to,
    .leave = semel__sqlite_leave,
    .guard = semel__sqlite_guard,
    .check = semel__sqlite_check,
    .busy = semel__sqlite_busy,
    SEMEL_RECORDS,
};
