/* SPDX-License-Identifier: MIT
 *
 * pg_keep.c: how long things are kept (watermark, purge), and what is only ever added (outbox).
 *
 * Invariants: a watermark rises; purge deletes final rows only, at most `max` a call, each with its attempts, and waits
 * for nobody: a row that somebody has locked is left for the next time.
 */
#include <ctype.h>
#include <stdio.h>

#include "base/ids.h"
#include "store/pg.h"

/* ---- watermark and purge ------------------------------------------------------------------------- */

#define THIS_MARK "consumer = $1::text AND source = $2::text"
#define MARK_LOCK PG_MARK_LOCK("$1", "$2")

/* Whoever makes a row holds the lock of its name, shared by deliveries (pg_admit.c), so that no insert waits here. */
static const struct sql_text sql_mark_put = {
    "semel_watermark_put",
    "INSERT INTO semel.watermark (consumer, source, watermark, updated_at) SELECT $1, $2, $3::timestamptz, "
    "coalesce($4::timestamptz, pg_catalog.clock_timestamp()) WHERE NOT EXISTS (SELECT FROM semel.watermark "
    "WHERE " THIS_MARK ") AND pg_catalog.pg_try_advisory_xact_lock(" MARK_LOCK ") ON CONFLICT (consumer, source) DO "
    "NOTHING"};
static const struct sql_text sql_mark_raise = {
    "semel_watermark_raise",
    "UPDATE semel.watermark SET watermark = $3::timestamptz, updated_at = coalesce($4::timestamptz, "
    "pg_catalog.clock_timestamp()) WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel.watermark WHERE " THIS_MARK
    " AND watermark < $3 FOR UPDATE SKIP LOCKED))"};
static const struct sql_text sql_mark_look = {"semel_watermark_look", "SELECT FROM semel.watermark WHERE " THIS_MARK
                                                                      " AND watermark >= $3::timestamptz"};

semel_status semel__pg_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                 int64_t watermark_us, struct semel_error *err)
{
    static const struct sql_text *const steps[] = {&sql_mark_put, &sql_mark_raise, &sql_mark_look};
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    size_t at = 0;
    semel__pg_start(&trip, d, "raising the watermark");
    for (size_t i = 0; i < 3; i++) {
        semel__pg_text(&trip, consumer);
        semel__pg_key(&trip, source);
        semel__pg_time(&trip, watermark_us);
        if (i < 2)
            semel__pg_time(&trip, d->sql.clock != NULL ? semel__now(d->sql.clock) : SEMEL_NONE);
        at = semel__pg_add(&trip, steps[i]);
    }
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK && PQntuples(trip.results[at]) == 0)
        status = semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a watermark is held by another transaction");
    semel__pg_end(&trip);
    return status;
}

/* The oldest are found by an index, to the second, and then to the microsecond by the row; the time of the message is
 * looked at in the row. They are deleted by the places at which they were locked, so that no plan can begin to read the
 * table; a row that moved meanwhile is left for the next time. */
#define AGED(before)                                                                                            \
    "(SELECT ctid, message_time FROM semel.inbox WHERE consumer = $1::text AND source = $2::text AND " PG_FINAL \
    " AND processed_at::timestamptz(0) <= $4::timestamptz::timestamptz(0) AND processed_at < $4::timestamptz "  \
    "ORDER BY processed_at::timestamptz(0) LIMIT 10 * $3::bigint) AS s WHERE message_time IS NULL OR "          \
    "message_time < " before " LIMIT $3::bigint"
#define WATERMARK \
    "least($4, coalesce((SELECT watermark FROM semel.watermark WHERE " THIS_MARK "), '-infinity'::timestamptz))"

static const struct sql_text sql_aged = {
    "semel_aged",
    "SELECT pg_catalog.count(*), pg_catalog.max(message_time) FROM (SELECT message_time FROM " AGED("$4") ") AS a"};
#define OLD "ctid = ANY (ARRAY(SELECT ctid FROM " AGED(WATERMARK) ")) AND consumer = $1 AND " PG_FINAL
#define ATTEMPTS \
    "SELECT id FROM semel.attempt WHERE consumer = $1 AND source = $2 AND message_id = g.message_id OFFSET 0"
static const struct sql_text sql_purge = {
    "semel_purge",
    "WITH gone AS (DELETE FROM semel.inbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel.inbox WHERE " OLD
    " FOR UPDATE SKIP LOCKED)) RETURNING message_id), tries AS (DELETE FROM semel.attempt WHERE "
    "id = ANY (ARRAY(SELECT a.id FROM gone AS g CROSS JOIN LATERAL (" ATTEMPTS ") AS a))) "
    "SELECT pg_catalog.count(*) FROM gone"};

static size_t add_aged(struct pg_trip *trip, const struct sql_text *sql, struct semel_str consumer,
                       struct semel_str source, int64_t before_us, size_t max)
{
    semel__pg_text(trip, consumer);
    semel__pg_key(trip, source);
    semel__pg_int(trip, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    semel__pg_time(trip, before_us);
    return semel__pg_add(trip, sql);
}

semel_status semel__pg_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                            int64_t before_us, size_t max, size_t *ret_n, int64_t *ret_latest_us,
                            struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "looking for old rows");
    size_t at = add_aged(&trip, &sql_aged, consumer, source, before_us, max);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK) {
        *ret_n = (size_t)semel__pg_get_int(trip.results[at], 0, 0);
        *ret_latest_us = semel__pg_get_time(trip.results[at], 0, 1);
    }
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                             int64_t before_us, size_t max, size_t *ret_deleted, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "purging the inbox");
    size_t at = add_aged(&trip, &sql_purge, consumer, source, before_us, max);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        *ret_deleted = (size_t)semel__pg_get_int(trip.results[at], 0, 0);
    semel__pg_end(&trip);
    return status;
}

/* ---- conflicts and order keys -------------------------------------------------------------------- */

static const struct sql_text sql_conflicts = {
    "semel_purge_conflicts",
    "DELETE FROM semel.conflict WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel.conflict WHERE consumer = $1 AND "
    "last_at < $2::timestamptz ORDER BY last_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED))"};
static const struct sql_text sql_keys_end = {"semel_purge_keys_end",
                                             "SELECT pg_catalog.max(order_key), pg_catalog.count(*) FROM (SELECT "
                                             "order_key FROM semel.order_key WHERE consumer = $1 AND "
                                             "order_key > $2 ORDER BY order_key LIMIT 10 * $3::bigint) AS k"};
/* A change of the key's unfinished set moves updated_at, which the lock looks at again. */
static const struct sql_text sql_keys = {
    "semel_purge_keys",
    "DELETE FROM semel.order_key WHERE ctid = ANY (ARRAY(SELECT k.ctid FROM semel.order_key AS k WHERE "
    "k.consumer = $1 AND k.order_key > $2 AND k.order_key <= $3 AND k.last_version IS NULL AND "
    "k.skipped IS NULL AND k.updated_at < $4::timestamptz AND NOT EXISTS (SELECT FROM semel.inbox AS i WHERE "
    "i.consumer = $1 AND "
    "i.order_key = k.order_key AND i." PG_UNFINISHED ") FOR UPDATE SKIP LOCKED))"};

static semel_status purge_keys(struct pg_store *d, struct semel_str consumer, int64_t before_us, const char *place,
                               struct semel_str last, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "purging order keys");
    semel__pg_text(&trip, consumer);
    semel__pg_text(&trip, semel__str(place));
    semel__pg_text(&trip, last);
    semel__pg_time(&trip, before_us);
    semel__pg_add(&trip, &sql_keys);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_purge_side(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                                  char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    int64_t most = max < INT32_MAX / 10 ? (int64_t)max : INT32_MAX / 10;
    char last[SEMEL_ID_MAX + 1] = "";
    bool more = false;
    struct pg_trip trip;
    semel__pg_start(&trip, d, "purging conflicts");
    semel__pg_text(&trip, consumer);
    semel__pg_time(&trip, before_us);
    semel__pg_int(&trip, most);
    semel__pg_add(&trip, &sql_conflicts);
    semel__pg_text(&trip, consumer);
    semel__pg_text(&trip, semel__str(place));
    semel__pg_int(&trip, most);
    size_t at = semel__pg_add(&trip, &sql_keys_end);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK) {
        struct semel_str key = semel__pg_get_text(trip.results[at], 0, 0);
        snprintf(last, sizeof last, "%.*s", key.n <= SEMEL_ID_MAX ? (int)key.n : 0, key.n > 0 ? key.p : "");
        more = semel__pg_get_int(trip.results[at], 0, 1) == 10 * most;
    }
    semel__pg_end(&trip);
    if (status == SEMEL_OK && last[0] != '\0')
        status = purge_keys(d, consumer, before_us, place, semel__str(last), err);
    if (status == SEMEL_OK)
        snprintf(place, SEMEL_ID_MAX + 1, "%s", more ? last : "");
    return status;
}

semel_status semel__pg_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us, size_t max,
                                      size_t *ret_deleted, struct semel_error *err)
{
    static const struct sql_text sql = {
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
    static const struct sql_text sql = {
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
        semel__uuid7_new(now_us, d->sql.rng, id);
    for (size_t i = 0; i < event->id.n && i < sizeof(id) - 1; i++) /* one spelling a UUID */
        id[i] = (char)tolower((unsigned char)event->id.p[i]);
    semel_status status = put_event(d, event, id, now_us, err);
    if (status == SEMEL_OK && ret_id != NULL)
        memcpy(ret_id, id, sizeof(id));
    return status;
}
