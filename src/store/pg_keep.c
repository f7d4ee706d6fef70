/* SPDX-License-Identifier: MIT
 *
 * pg_keep.c: how long things are kept (watermark, purge), and what is only ever added (outbox, audit).
 *
 * Invariants: a watermark rises; purge deletes final rows only, at most `max` a call, each with its attempts, and waits
 * for nobody: a row that somebody has locked is left for the next time.
 */
#include <ctype.h>

#include "base/ids.h"
#include "store/pg.h"

/* ---- watermark and purge ------------------------------------------------------------------------- */

semel_status semel__pg_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                 int64_t watermark_us, struct semel_error *err)
{
    static const struct pg_sql sql = {
        "semel_watermark",
        "INSERT INTO semel.watermark AS w (consumer, source, watermark, updated_at) "
        "VALUES ($1, $2, $3::timestamptz, coalesce($4::timestamptz, pg_catalog.clock_timestamp())) "
        "ON CONFLICT (consumer, source) DO UPDATE SET "
        "watermark = excluded.watermark, updated_at = excluded.updated_at WHERE w.watermark < excluded.watermark"};
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    semel__pg_start(&trip, d, "raising the watermark");
    semel__pg_text(&trip, consumer);
    semel__pg_key(&trip, source);
    semel__pg_time(&trip, watermark_us);
    semel__pg_time(&trip, d->clock != NULL ? semel__now(d->clock) : SEMEL_NONE);
    semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* The oldest are found by an index, to the second, and then to the microsecond by the row. They are deleted by the
 * places at which they were locked, so that no plan can begin to read the table; a row that moved meanwhile is left for
 * the next time. */
#define PURGE(kind, column, before)                                                                                   \
    "WITH gone AS (DELETE FROM semel.inbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel.inbox "                     \
    "WHERE consumer = $1::text AND source = $2::text AND " kind " AND " PG_FINAL " AND " column                       \
    "::timestamptz(0) <= " before "::timestamptz(0) AND " column " < " before " ORDER BY " column "::timestamptz(0) " \
    "LIMIT $3::bigint FOR UPDATE SKIP LOCKED)) RETURNING message_id), "                                               \
    "tries AS (DELETE FROM semel.attempt WHERE id = ANY (ARRAY(SELECT a.id FROM gone AS g CROSS JOIN LATERAL "        \
    "(SELECT id FROM semel.attempt WHERE consumer = $1 AND source = $2 AND message_id = g.message_id "                \
    "OFFSET 0) AS a))) SELECT pg_catalog.count(*) FROM gone"
#define WATERMARK "(SELECT watermark FROM semel.watermark WHERE consumer = $1 AND source = $2)"

static const struct pg_sql sql_aged = {"semel_purge_aged",
                                       PURGE("message_time IS NOT NULL", "message_time", WATERMARK)};
static const struct pg_sql sql_timeless = {"semel_purge_timeless",
                                           PURGE("message_time IS NULL", "processed_at", "$4::timestamptz")};

static semel_status purge_by(struct pg_store *d, const struct pg_sql *sql, struct semel_str consumer,
                             struct semel_str source, size_t max, int64_t before_us, size_t *ret_n,
                             struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "purging the inbox");
    semel__pg_text(&trip, consumer);
    semel__pg_key(&trip, source);
    semel__pg_int(&trip, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    if (sql == &sql_timeless)
        semel__pg_time(&trip, before_us);
    size_t at = semel__pg_add(&trip, sql);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        *ret_n = (size_t)semel__pg_get_int(trip.results[at], 0, 0);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                             int64_t before_us, size_t max, size_t *ret_deleted, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    size_t aged = 0, timeless = 0;
    semel_status status = purge_by(d, &sql_aged, consumer, source, max, SEMEL_NONE, &aged, err);
    if (status == SEMEL_OK && aged < max && before_us != SEMEL_NONE)
        status = purge_by(d, &sql_timeless, consumer, source, max - aged, before_us, &timeless, err);
    if (status == SEMEL_OK)
        *ret_deleted = aged + timeless;
    return status;
}

semel_status semel__pg_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us, size_t max,
                                      size_t *ret_deleted, struct semel_error *err)
{
    static const struct pg_sql sql = {
        "semel_purge_business",
        "DELETE FROM semel.business_key WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel.business_key WHERE consumer = "
        "$1 "
        "AND expires_at IS NOT NULL AND expires_at <= $2::timestamptz ORDER BY expires_at LIMIT $3::bigint "
        "FOR UPDATE SKIP LOCKED))"};
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "purging business keys");
    semel__pg_text(&trip, consumer);
    semel__pg_time(&trip, now_us);
    semel__pg_int(&trip, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    size_t at = semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        *ret_deleted = semel__pg_affected(trip.results[at]);
    semel__pg_end(&trip);
    return status;
}

/* ---- outbox -------------------------------------------------------------------------------------- */

static semel_status put_event(struct pg_store *d, const struct semel__event *event, const char *id, int64_t now_us,
                              struct semel_error *err)
{
    static const struct pg_sql sql = {
        "semel_outbox_put",
        "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, payload, headers, destination, created_at, "
        "traceparent) VALUES ($1::text::uuid, $2, $3, $4, $5, coalesce($6::text, '{}'), $7, $8::timestamptz, $9) "
        "ON CONFLICT (id) DO NOTHING"};
    const struct semel_str texts[] = {semel__str(id), event->aggregatetype, event->aggregateid, event->type,
                                      event->payload, event->headers,       event->destination};
    struct pg_trip trip;
    semel__pg_start(&trip, d, "adding to the outbox");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        semel__pg_text(&trip, texts[i]);
    semel__pg_time(&trip, now_us);
    semel__pg_text(&trip, event->traceparent);
    size_t at = semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK && semel__pg_affected(trip.results[at]) == 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "outbox: an event with the id %s is there already", id);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                  char ret_id[37], struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    char id[SEMEL_UUID_TEXT] = "";
    if (!semel__str_given(event->id))
        semel__uuid7_new(now_us, d->rng, id);
    for (size_t i = 0; i < event->id.n && i < sizeof(id) - 1; i++) /* one spelling a UUID */
        id[i] = (char)tolower((unsigned char)event->id.p[i]);
    semel_status status = put_event(d, event, id, now_us, err);
    if (status == SEMEL_OK && ret_id != NULL)
        memcpy(ret_id, id, sizeof(id));
    return status;
}

/* ---- audit --------------------------------------------------------------------------------------- */

semel_status semel__pg_audit(struct semel_store *store, const struct semel_audit *line, int64_t now_us,
                             struct semel_error *err)
{
    static const struct pg_sql sql = {"semel_audit",
                                      "INSERT INTO semel.audit (at, who, what, reason, consumer, source, message_id) "
                                      "VALUES ($1::timestamptz, $2, $3, $4, $5, $6, $7)"};
    const struct semel_str texts[] = {line->who, line->what, line->reason, line->consumer, line->source, line->id};
    struct pg_trip trip;
    if (semel__pg_of(store)->operator_)
        return semel__pg_operator_line(semel__pg_of(store), line, err);
    semel__pg_start(&trip, semel__pg_of(store), "writing the audit");
    semel__pg_time(&trip, now_us);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        semel__pg_text(&trip, texts[i]);
    semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}
