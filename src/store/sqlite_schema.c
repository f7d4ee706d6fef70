/* SPDX-License-Identifier: MIT
 *
 * sqlite_schema.c: which schema is there, and bringing it up to date.
 *
 * Each migration runs in one IMMEDIATE transaction together with its row in semel_schema. The version is read
 * again inside: of two processes that migrate at once the second finds the work done.
 *
 * Invariants: a schema that is newer than this binary is not touched, not even read.
 */
#include "store/migrations.h"
#include "store/sqlite.h"

/* The first column of the first row: a number (SEMEL_NONE when it is none) and, where wanted, its text. No cache:
 * these run once. */
static semel_status ask(struct sqlite_store *d, const char *sql, int64_t *ret_int, char *text, size_t size,
                        struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    const char *p = "";
    semel_status status = SEMEL_OK;
    int rc = sqlite3_prepare_v2(d->db, sql, -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    *ret_int = SEMEL_NONE;
    if (rc == SQLITE_ROW && sqlite3_column_type(stmt, 0) == SQLITE_INTEGER)
        *ret_int = sqlite3_column_int64(stmt, 0);
    if (rc == SQLITE_ROW && text != NULL)
        p = (const char *)sqlite3_column_text(stmt, 0);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        status = semel__sqlite_own_fail(d, rc, "reading the schema", err);
    else if (p == NULL)
        status = semel__fail_memory(err);
    else if (text != NULL)
        semel__str_show(text, size, semel__str(p));
    sqlite3_finalize(stmt);
    return status;
}

static semel_status newest(struct sqlite_store *d, int64_t *ret_version, struct semel_error *err)
{
    int64_t there = 0, version = 0;
    semel_status status = ask(d,
                              "SELECT count(*) FROM main.sqlite_schema WHERE type = 'table' AND name = 'semel_schema'",
                              &there, NULL, 0, err);
    if (status == SEMEL_OK && there > 0) {
        status = ask(d, "SELECT coalesce(max(version), 0) FROM main.semel_schema", &version, NULL, 0, err);
        if (status == SEMEL_OK && version < 0)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "damaged table semel_schema: version must be a number of 1 or more");
    }
    *ret_version = version;
    return status;
}

/* So that who shows it need not read the text. */
static semel_status refused(struct semel_error *err, enum semel_store_refusal why)
{
    if (err != NULL)
        err->code = (int)why;
    return SEMEL_INVALID;
}

static semel_status not_newer(int64_t version, struct semel_error *err)
{
    if (version <= (int64_t)semel__sqlite_migrations_n)
        return SEMEL_OK;
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                "the database has schema version %lld, this program knows versions up to %zu: use a newer program",
                (long long)version, semel__sqlite_migrations_n);
    return refused(err, SEMEL_STORE_NEW_SCHEMA);
}

semel_status semel__sqlite_schema_check(struct sqlite_store *d, bool will_migrate, struct semel_error *err)
{
    char encoding[16] = "";
    int64_t version = 0;
    semel_status status = newest(d, &version, err);
    if (status == SEMEL_OK)
        status = not_newer(version, err);
    if (status == SEMEL_OK)
        status = ask(d, "PRAGMA encoding", &(int64_t){0}, encoding, sizeof(encoding), err);
    if (status != SEMEL_OK)
        return status;
    if (strcmp(encoding, "UTF-8") != 0) /* keys would not be compared by their bytes */
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the database's encoding is %s; it must be UTF-8",
                           encoding);
    d->schema_found = (int)version;
    if (will_migrate || version == (int64_t)semel__sqlite_migrations_n)
        return SEMEL_OK;
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                "the database has schema version %lld, this program needs %zu: migrate it first", (long long)version,
                semel__sqlite_migrations_n);
    return refused(err, version == 0 ? SEMEL_STORE_NO_SCHEMA : SEMEL_STORE_OLD_SCHEMA);
}

int semel__sqlite_schema_found(struct semel_store *store)
{
    return semel__sqlite_of(store)->schema_found;
}

static semel_status record(struct sqlite_store *d, const struct semel_migration *m, struct semel_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(d->db, "INSERT INTO main.semel_schema (version, name, applied_at) VALUES (?1, ?2, ?3)",
                                -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int(stmt, 1, m->number);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(stmt, 2, m->name, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(stmt, 3, semel__now(d->sql.clock));
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    semel_status status = rc == SQLITE_DONE ? SEMEL_OK : semel__sqlite_own_fail(d, rc, "recording a migration", err);
    sqlite3_finalize(stmt);
    return status;
}

/* Applies migration number version + 1, unless somebody else was faster. */
static semel_status step(struct sqlite_store *d, int64_t *version, struct semel_error *err)
{
    int64_t now_us = 0;
    semel_status status = semel__sqlite_begin(&d->sql.store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = newest(d, version, err);
    if (status == SEMEL_OK)
        status = not_newer(*version, err);
    if (status == SEMEL_OK && *version < (int64_t)semel__sqlite_migrations_n) {
        const struct semel_migration *m = &semel__sqlite_migrations[*version];
        int rc = sqlite3_exec(d->db, m->sql, NULL, NULL, NULL);
        status = rc == SQLITE_OK ? record(d, m, err) : semel__sqlite_own_fail(d, rc, "migrating", err);
        *version += status == SEMEL_OK;
    }
    if (status == SEMEL_OK)
        return semel__sqlite_commit(&d->sql.store, err);
    semel__sqlite_rollback(&d->sql.store);
    return status;
}

semel_status semel__sqlite_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    int64_t from = 0;
    semel_status status = newest(d, &from, err);
    if (status == SEMEL_OK)
        status = not_newer(from, err);
    int64_t version = from;
    while (status == SEMEL_OK && version < (int64_t)semel__sqlite_migrations_n)
        status = step(d, &version, err);
    if (status == SEMEL_OK && ret_from != NULL)
        *ret_from = (int)from;
    if (status == SEMEL_OK && ret_to != NULL)
        *ret_to = (int)version;
    return status;
}
