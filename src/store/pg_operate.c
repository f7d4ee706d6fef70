/* SPDX-License-Identifier: MIT
 *
 * pg_operate.c: the commands of people whose role only reads the tables (sql/postgres/roles.sql).
 *
 * Core judges as ever. What it locks and writes on the way goes through functions of the owner (018_work.sql), which
 * make a change only as a command may, and write its line of the audit with the role that logged in. So a line comes
 * before its change: its reason is kept until then, in the transaction (sql/statements/postgres/audit.sql).
 *
 * Invariants: without a reason the database makes no change; anything that is no command is refused by the rights.
 */
#include "store/pg.h"

/* With the parameters of the statement that has the name. */
static const struct {
    const char *of;
    struct sql_text sql;
} instead[] = {
    {"semel_key_put", {"semel_operator_keys", "SELECT semel._operator_keys($1::text, $2::text[])"}},
    {"semel_lock_all", {"semel_operator_rows", "SELECT semel._operator_rows($1::text, $2::text[], $3::text[])"}},
    /* Which ones are free: nothing is taken before the change itself. */
    {"semel_business_take",
     {"semel_operator_free", "SELECT b.k FROM unnest($3::text[], $4::text[], $5::text[], $6::timestamptz[]) "
                             "AS b (k, source, id, expires_at) WHERE NOT EXISTS (SELECT 1 FROM semel.business_key AS t "
                             "WHERE t.consumer = $1::text AND t.business_key = b.k "
                             "AND (t.expires_at > $2::timestamptz) IS NOT FALSE)"}},
    {"semel_business_lock",
     {"semel_operator_business", "SELECT semel._operator_business($1::text, $2::text[], $3::text[])"}},
};

const struct sql_text *semel__pg_instead(const struct sql_text *sql)
{
    for (size_t i = 0; sql->name != NULL && i < sizeof instead / sizeof instead[0]; i++)
        if (strcmp(instead[i].of, sql->name) == 0)
            return &instead[i].sql;
    return sql;
}
