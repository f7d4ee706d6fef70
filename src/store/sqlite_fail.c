/* SPDX-License-Identifier: MIT
 *
 * sqlite_fail.c: what a result code of SQLite means: what to do, and whom to blame.
 *
 * What it is: one table, searched first for the extended code, then for the primary one. A code that is
 * not in it stops the route (BROKEN): it charges no message, and a person looks.
 *
 * Invariants: a text never holds a value (P71). SQLite's messages name tables, columns and constraints;
 * the few that quote data are replaced by fixed ones.
 */
#include "store/sqlite.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

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
    /* the world */
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

static const struct meaning *find(int code)
{
    for (size_t i = 0; i < COUNT(meanings); i++)
        if (meanings[i].code == code)
            return &meanings[i];
    return NULL;
}

/* SQLITE_ERROR is one of data_errors where it blames the message. */
bool semel__sqlite_data_fault(const struct semel_error *err)
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
    const struct meaning *m = find(code);
    if (m == NULL)
        m = find(code & 0xff);
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

semel_status semel__sqlite_own_fail(struct sqlite_store *d, int rc, const char *doing, struct semel_error *err)
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
