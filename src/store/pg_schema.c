/* SPDX-License-Identifier: MIT
 *
 * pg_schema.c: which schema is there, and bringing it up to date.
 *
 * Each migration runs in a transaction of its own together with its row in semel.schema, behind an advisory lock. The
 * version is read again inside: of two processes that migrate at once the second finds the work done. The files record
 * themselves too, so that whoever runs them with psql need not know of the table.
 *
 * Invariants: a schema that is newer than this binary is not touched.
 */
#include "store/migrations.h"
#include "store/pg.h"
#include "store/pg_door.h"

#define LOCK INT64_C(0x73656d656c) /* "semel" */

static semel_status number(struct pg_store *d, const struct sql_text *sql, int64_t *ret, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "reading the schema");
    size_t at = semel__pg_add(&trip, sql);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        *ret = semel__pg_get_int(trip.results[at], 0, 0);
    semel__pg_end(&trip);
    return status;
}

static semel_status newest(struct pg_store *d, int64_t *ret_version, struct semel_error *err)
{
    static const struct sql_text sql_there = {
        "semel_there", "SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace "
                       "AS n ON n.oid = c.relnamespace WHERE n.nspname = 'semel' AND c.relname = "
                       "'schema'"};
    static const struct sql_text sql_newest = {"semel_newest",
                                               "SELECT coalesce(pg_catalog.max(version), 0) FROM semel.schema"};
    int64_t there = 0, version = 0;
    semel_status status = number(d, &sql_there, &there, err);
    if (status == SEMEL_OK && there > 0)
        status = number(d, &sql_newest, &version, err);
    if (status == SEMEL_OK && version < 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "damaged table semel.schema: version must be a number of 1 or more");
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
    if (version <= (int64_t)semel__pg_migrations_n)
        return SEMEL_OK;
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                "the database has schema version %lld, this program knows versions up to %zu: use a newer program",
                (long long)version, semel__pg_migrations_n);
    return refused(err, SEMEL_STORE_NEW_SCHEMA);
}

semel_status semel__pg_schema_check(struct pg_store *d, bool will_migrate, struct semel_error *err)
{
    int64_t version = 0;
    semel_status status = newest(d, &version, err);
    if (status == SEMEL_OK)
        status = not_newer(version, err);
    if (status != SEMEL_OK)
        return status;
    d->schema_found = (int)version;
    if (will_migrate || version == (int64_t)semel__pg_migrations_n)
        return SEMEL_OK;
    if (version == 0) {
        semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                    "the database has no schema semel: migrate it first, or run sql/postgres/*.sql in their order");
        return refused(err, SEMEL_STORE_NO_SCHEMA);
    }
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                "the database has schema version %lld, this program needs %zu: migrate it first", (long long)version,
                semel__pg_migrations_n);
    return refused(err, SEMEL_STORE_OLD_SCHEMA);
}

int semel__pg_schema_found(struct semel_store *store)
{
    return semel__pg_of(store)->schema_found;
}

/* ---- migrating ----------------------------------------------------------------------------------- */

/* Several statements in one text, which pipeline mode does not have. */
static semel_status script(struct pg_store *d, const char *sql, struct semel_error *err)
{
    static const char doing[] = "migrating";
    semel_status status = SEMEL_OK;
    if (PQsendQuery(d->conn, sql) == 0)
        return semel__pg_own_fail(d, NULL, doing, err);
    for (;;) {
        struct semel_error why;
        semel_status waited = semel__pg_wait(d, doing, &why);
        PGresult *result = waited == SEMEL_OK ? PQgetResult(d->conn) : NULL;
        if (waited != SEMEL_OK && err != NULL)
            *err = why;
        if (result == NULL)
            return waited != SEMEL_OK ? waited : status;
        if (status == SEMEL_OK && !semel__pg_succeeded(result))
            status = semel__pg_own_fail(d, result, doing, err);
        PQclear(result);
    }
}

static semel_status record(struct pg_store *d, const struct semel_migration *m, struct semel_error *err)
{
    static const struct sql_text sql = {"semel_record",
                                        "INSERT INTO semel.schema (version, name) VALUES ($1::bigint::integer, $2) "
                                        "ON CONFLICT (version) DO NOTHING"};
    struct pg_trip trip;
    semel__pg_start(&trip, d, "recording a migration");
    semel__pg_int(&trip, m->number);
    semel__pg_text(&trip, semel__str(m->name));
    semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* Nothing else has to be found while a migration runs (P85). */
static semel_status lock(struct pg_store *d, struct semel_error *err)
{
    static const struct sql_text sql_path = {"semel_migrate_path", "SET LOCAL search_path = pg_catalog, pg_temp"};
    static const struct sql_text sql = {"semel_migrate_lock", "SELECT pg_catalog.pg_advisory_xact_lock($1::bigint)"};
    struct pg_trip trip;
    semel__pg_start(&trip, d, "waiting for another migration");
    semel__pg_int(&trip, LOCK);
    semel__pg_add(&trip, &sql);
    semel__pg_add(&trip, &sql_path);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* Applies migration number version + 1, unless somebody else was faster. */
static semel_status step(struct pg_store *d, int64_t *version, struct semel_error *err)
{
    int64_t now_us = 0;
    semel_status status = semel__pg_begin(&d->sql.store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = lock(d, err);
    if (status == SEMEL_OK)
        status = newest(d, version, err);
    if (status == SEMEL_OK)
        status = not_newer(*version, err);
    if (status == SEMEL_OK && *version < (int64_t)semel__pg_migrations_n) {
        const struct semel_migration *m = &semel__pg_migrations[*version];
        status = script(d, m->sql, err);
        if (status == SEMEL_OK)
            status = record(d, m, err);
        *version += status == SEMEL_OK;
    }
    if (status == SEMEL_OK)
        return semel__pg_commit(&d->sql.store, err);
    semel__pg_rollback(&d->sql.store);
    return status;
}

semel_status semel__pg_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    int64_t from = 0;
    semel_status status = newest(d, &from, err);
    if (status == SEMEL_OK)
        status = not_newer(from, err);
    int64_t version = from;
    while (status == SEMEL_OK && version < (int64_t)semel__pg_migrations_n)
        status = step(d, &version, err);
    if (status == SEMEL_OK && ret_from != NULL)
        *ret_from = (int)from;
    if (status == SEMEL_OK && ret_to != NULL)
        *ret_to = (int)version;
    return status;
}
