/* SPDX-License-Identifier: MIT
 *
 * pg_operate.c: the commands of people whose role only reads the tables (sql/postgres/roles.sql).
 *
 * Core judges as ever. What it locks and writes on the way goes through functions of the owner (018_work.sql), which
 * make a change only as a command may, and write its line of the audit with the role that logged in. So a line comes
 * before its change: its reason is kept until then.
 *
 * Invariants: without a reason the database makes no change; anything that is no command is refused by the rights.
 */
#include <stdio.h>

#include "core/state.h"
#include "store/pg.h"

/* With the parameters of the statement that has the name. */
static const struct {
    const char *of;
    struct pg_sql sql;
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
    {"semel_position_set",
     {"semel_operator_rewind", "SELECT r.source, r.partition, r.epoch, r.next_offset FROM "
                               "semel._operator_rewind($1::text, $2::text[], $3::integer[], $4::bigint[], $5::text) "
                               "AS r"}},
    {"look_mark", {"semel_operator_mark", "SELECT semel._operator_mark($1::bigint, $2::bigint, $3::text)"}},
};

const struct pg_sql *semel__pg_instead(const struct pg_sql *sql)
{
    for (size_t i = 0; sql->name != NULL && i < sizeof instead / sizeof instead[0]; i++)
        if (strcmp(instead[i].of, sql->name) == 0)
            return &instead[i].sql;
    return sql;
}

semel_status semel__pg_operator_line(struct pg_store *d, const struct semel_audit *line, struct semel_error *err)
{
    if (line->reason.n >= sizeof d->reason)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the reason has more than %zu bytes",
                           sizeof d->reason - 1);
    if (line->reason.n > 0)
        memcpy(d->reason, line->reason.p, line->reason.n);
    d->reason[line->reason.n] = '\0';
    d->forced = line->forced;
    return SEMEL_OK;
}

semel_status semel__pg_operate_consumer(struct pg_store *d, struct semel_str consumer, struct semel_str settings,
                                        struct semel_error *err)
{
    static const struct pg_sql sql = {"semel_operator_consumer",
                                      "SELECT semel._operator_consumer($1::text, $2::text::jsonb, $3::boolean, "
                                      "$4::text)"};
    struct pg_trip trip;
    semel__pg_start(&trip, d, "storing a consumer's settings");
    semel__pg_text(&trip, consumer);
    semel__pg_text(&trip, settings);
    semel__pg_bool(&trip, d->forced);
    semel__pg_text(&trip, semel__str(d->reason));
    semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* One command about one row. Keys, business keys and the audit are the function's. */
semel_status semel__pg_operate(struct pg_store *d, struct semel_settle_batch *batch, struct semel_error *err)
{
    static const struct pg_sql sql = {"semel_operate",
                                      "SELECT semel._operate($1::text, $2::text, $3::text, $4::text, $5::text, "
                                      "$6::text, $7::text)"};
    struct semel_change *change = &batch->changes[0];
    struct pg_trip trip;
    if (batch->n_changes != 1 || change->remove || change->live.state == SEMEL_STATE_PROCESSING)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "this role may give commands about stored messages, and handle none: it has no rights on "
                           "semel.inbox but to read it");
    semel__pg_start(&trip, d, "updating the inbox");
    semel__pg_text(&trip, batch->consumer);
    semel__pg_key(&trip, change->source);
    semel__pg_text(&trip, change->id);
    semel__pg_text(&trip, semel__str(semel__state_name(change->from)));
    semel__pg_text(&trip, semel__str(semel__state_name(change->live.state)));
    semel__pg_text(&trip, change->live.outcome);
    semel__pg_text(&trip, semel__str(d->reason));
    size_t at = semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    change->applied = status == SEMEL_OK && semel__pg_get_bool(trip.results[at], 0, 0);
    semel__pg_end(&trip);
    d->reason[0] = '\0';
    return status;
}
