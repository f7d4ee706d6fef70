/* SPDX-License-Identifier: MIT
 *
 * pg_rights.c: what the role lacks, as pg_rights.h says.
 *
 * The list is what the statements of this driver need that a consumer runs: roles.sql grants a worker a little more,
 * for operators.
 */
#include "store/pg_rights.h"

#include "store/pg.h"
#include "store/pg_ask.h"

#define PARAMS_MAX 64

#define SAME "SELECT,INSERT,UPDATE"
static const struct sql_text rights = {
    "semel_rights",
    "SELECT current_user::text, pg_catalog.current_setting('synchronous_commit') = 'off', "
    "pg_catalog.current_setting('fsync') = 'off', "
    "(SELECT pg_catalog.string_agg(w.what || ' on semel.' || n.name, ', ' ORDER BY n.name, w.what) FROM (VALUES "
    "('inbox', 'SELECT,INSERT,UPDATE,DELETE'), ('business_key', 'SELECT,INSERT,UPDATE,DELETE'), "
    "('business_want', 'SELECT,INSERT,DELETE'), "
    "('order_key', '" SAME "'), ('watermark', '" SAME "'), ('consumer', '" SAME "'), ('conflict', '" SAME "'), "
    "('attempt', 'SELECT,INSERT,DELETE'), ('position', '" SAME "'), ('arrival', 'USAGE')) "
    "AS n (name, whats) CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.string_to_array(n.whats, ',')) AS w (what) "
    "LEFT JOIN pg_catalog.pg_class AS c ON c.relname = n.name "
    "AND c.relnamespace = (SELECT s.oid FROM pg_catalog.pg_namespace AS s WHERE s.nspname = 'semel') "
    "WHERE (n.name <> 'position' OR $1::boolean) AND NOT coalesce(CASE w.what "
    "WHEN 'USAGE' THEN pg_catalog.has_sequence_privilege(c.oid, w.what) ELSE pg_catalog.has_table_privilege(c.oid, "
    "w.what) END, false)), "
    "(SELECT pg_catalog.has_schema_privilege('public', n.oid, 'CREATE') FROM pg_catalog.pg_namespace AS n "
    "WHERE n.nspname = 'public')"};

semel_status semel__pg_rights(struct semel_store *store, bool positions, struct semel_pg_rights *ret,
                              struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "looking at the rights");
    semel__pg_bool(&trip, positions);
    size_t at = semel__pg_add(&trip, &rights);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK) {
        const PGresult *res = trip.results[at];
        semel__str_show(ret->role, sizeof(ret->role), semel__pg_get_text(res, 0, 0));
        semel__str_show(ret->missing, sizeof(ret->missing), semel__pg_get_text(res, 0, 3));
        ret->unsafe = semel__pg_get_bool(res, 0, 1);
        ret->fsync_off = semel__pg_get_bool(res, 0, 2);
        ret->public_writable = semel__pg_get_bool(res, 0, 4);
    }
    semel__pg_end(&trip);
    return status;
}

static semel_status plan(struct semel_store *store, const char *sql, size_t n, struct semel_error *err)
{
    const char *nulls[PARAMS_MAX] = {NULL};
    const struct semel_pg_statement statement = {.sql = sql, .n = (int)n, .values = nulls};
    struct pg_result *res = NULL;
    int64_t now_us;
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__pg_ask(store, &statement, NULL, &res, err);
    PQclear(res);
    semel_store_rollback(store);
    return status;
}

semel_status semel__pg_may_run(struct semel_store *store, struct semel_str statement, size_t n, struct semel_error *err)
{
    struct semel_buf sql;
    if (n > PARAMS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a statement has at most %d parameters", PARAMS_MAX);
    semel__buf_init(&sql, statement.n + 16);
    semel__buf_addz(&sql, "EXPLAIN ");
    semel__buf_add(&sql, statement.p, statement.n);
    semel__buf_add(&sql, "", 1);
    semel_status status = sql.failed ? semel__fail_memory(err) : plan(store, sql.p, n, err);
    semel__buf_done(&sql);
    return status;
}
