/* SPDX-License-Identifier: MIT
 *
 * records_schema.c: which schema a database has, and bringing it up to date.
 *
 * Each migration runs in a transaction of its own together with its row in the table of versions. The version is read
 * again inside, behind the lock: of two processes that migrate at once the second finds the work done. The files of
 * PostgreSQL record themselves too, so that whoever runs them with psql need not know of the table.
 *
 * Invariants: a schema that is newer than this program is not touched.
 */
#include <stdio.h>

#include "base/error.h"
#include "store/migrations.h"
#include "store/records.h"

struct version {
    int64_t version;
    struct semel_str name;
    int64_t now_us;
};

static const struct sql_field version_fields[] = {
    SQL_MUST(struct version, version, version, 0, INT32_MAX),
    SQL_FIELD(struct version, name, migration),
    SQL_FIELD(struct version, now_us, now),
};

static semel_status newest(struct sql *db, int64_t *ret_version, struct semel_error *err)
{
    struct version v = {0};
    struct sql_into into = {SQL_FIELDS(version_fields), .items = &v, .size = sizeof(v)};
    int64_t there = 0;
    semel_status status = semel__db_count(db, SQL_schema_there, "reading the schema", NULL, &there, err);
    if (status == SEMEL_OK && there > 0) {
        status = semel__db_do(db, "reading the schema", SQL_schema_newest, NULL, NULL, semel__db_read_item, &into, err);
    }
    *ret_version = v.version;
    return status;
}

/* err->code says why, so that whoever shows it need not read the text. */
static semel_status refused(struct semel_error *err, enum semel_store_refusal why)
{
    if (err != NULL)
        err->code = (int)why;
    return SEMEL_INVALID;
}

static semel_status known(struct sql *db, int64_t *ret_version, struct semel_error *err)
{
    size_t n = *db->driver->n_migrations;
    semel_status status = newest(db, ret_version, err);
    if (status != SEMEL_OK || *ret_version <= (int64_t)n)
        return status;
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                "the database has schema version %lld, this program knows versions up to %zu: use a newer program",
                (long long)*ret_version, n);
    return refused(err, SEMEL_STORE_NEW_SCHEMA);
}

semel_status semel__record_schema_check(struct sql *db, struct semel_error *err)
{
    size_t n = *db->driver->n_migrations;
    int64_t version = 0;
    semel_status status = known(db, &version, err);
    if (status != SEMEL_OK)
        return status;
    db->schema_found = (int)version;
    if (db->store.options.migrate || version == (int64_t)n)
        return SEMEL_OK;
    if (version == 0) {
        semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                    "the database has no schema semel: migrate it first, or run sql/%s/*.sql in their order",
                    db->driver->folder);
        return refused(err, SEMEL_STORE_NO_SCHEMA);
    }
    semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                "the database has schema version %lld, this program needs %zu: migrate it first", (long long)version,
                n);
    return refused(err, SEMEL_STORE_OLD_SCHEMA);
}

int semel_query_schema_found(struct semel_store *store)
{
    return semel__db_of(store)->schema_found;
}

static semel_status apply(struct sql *db, const struct semel_migration *m, struct semel_error *err)
{
    struct version v = {m->number, semel__str(m->name), semel__now(db->clock != NULL ? db->clock : &semel__clock_real)};
    semel_status status = db->driver->script(db, m->sql, err);
    if (status != SEMEL_OK)
        return status;
    return semel__db_do(db, "recording a migration", SQL_schema_record, SQL_ONE(version_fields, &v), NULL, NULL, NULL,
                        err);
}

/* "55P03: canceling statement due to lock timeout" alone names neither the migration nor what has become of it. */
static semel_status stopped(const struct semel_migration *m, semel_status status, struct semel_error *err)
{
    char text[sizeof(err->text)];
    if (status != SEMEL_RETRY || err == NULL || err->cls != SEMEL_CLASS_TRANSIENT)
        return status;
    snprintf(text, sizeof(text), "%s", err->text);
    return semel__fail(err, status, err->cls,
                       "migration %d (%s) changed nothing: another transaction is in its way: %s", m->number, m->name,
                       text);
}

/* Applies migration number version + 1, unless another process was faster. */
static semel_status step(struct sql *db, int64_t *version, struct semel_error *err)
{
    struct semel_store *store = &db->store;
    const struct semel_migration *m = &db->driver->migrations[*version];
    int64_t now_us = 0;
    semel_status status = store->ops->begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__db_do(db, "waiting for another migration", SQL_schema_lock, NULL, NULL, NULL, NULL, err);
    if (status == SEMEL_OK)
        status = known(db, version, err);
    if (status == SEMEL_OK && *version < (int64_t)*db->driver->n_migrations) {
        m = &db->driver->migrations[*version];
        status = apply(db, m, err);
        *version += status == SEMEL_OK;
    }
    if (status == SEMEL_OK)
        return store->ops->commit(store, err);
    store->ops->rollback(store);
    return stopped(m, status, err);
}

semel_status semel__record_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    int64_t from = 0;
    semel_status status = known(db, &from, err);
    int64_t version = from;
    while (status == SEMEL_OK && version < (int64_t)*db->driver->n_migrations)
        status = step(db, &version, err);
    if (status == SEMEL_OK && ret_from != NULL)
        *ret_from = (int)from;
    if (status == SEMEL_OK && ret_to != NULL)
        *ret_to = (int)version;
    return status;
}
