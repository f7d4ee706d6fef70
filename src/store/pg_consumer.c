/* SPDX-License-Identifier: MIT
 *
 * pg_consumer.c: the settings of consumers, and which consumers there are.
 *
 * Invariants: settings longer than their bound are damage and are never copied; the names are found by steps into two
 * indexes, two a name, however many rows a consumer has.
 */
#include "store/pg.h"

#define SETTINGS_BYTES 4096 /* the CHECK of semel.consumer */

static semel_status read_settings(const PGresult *res, struct semel_str consumer, struct semel_arena *arena,
                                  struct semel_str *ret, struct semel_error *err)
{
    struct semel_str settings = semel__pg_get_text(res, 0, 0);
    char name[72];
    if (semel__str_given(settings) && settings.n <= SETTINGS_BYTES)
        return semel__arena_copy(arena, settings, ret) ? SEMEL_OK : semel__fail_memory(err);
    semel__str_show(name, sizeof(name), consumer);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "damaged row in semel.consumer (consumer \"%s\"): settings must be text of at most %d bytes",
                       name, SETTINGS_BYTES);
}

size_t semel__pg_consumer_add(struct pg_trip *trip, struct semel_str consumer)
{
    static const struct pg_sql sql = {"semel_consumer_get",
                                      "SELECT settings::text FROM semel.consumer WHERE consumer = $1"};
    semel__pg_text(trip, consumer);
    return semel__pg_add(trip, &sql);
}

semel_status semel__pg_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                    struct semel_str *ret_settings, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct semel_str settings = {0};
    struct pg_trip trip = {0};
    const PGresult *res = NULL;
    semel_status status = semel__pg_ahead_settings(d, consumer, &res, err);
    if (status == SEMEL_OK && res == NULL) {
        semel__pg_start(&trip, d, "reading a consumer's settings");
        size_t at = semel__pg_consumer_add(&trip, consumer);
        status = semel__pg_run(&trip, err);
        res = trip.results[at];
    }
    if (status == SEMEL_OK && PQntuples(res) > 0)
        status = read_settings(res, consumer, arena, &settings, err);
    semel__pg_end(&trip);
    if (status == SEMEL_OK)
        *ret_settings = settings;
    return status;
}

semel_status semel__pg_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                    int64_t now_us, struct semel_error *err)
{
    static const struct pg_sql sql = {
        "semel_consumer_put",
        "INSERT INTO semel.consumer (consumer, settings, updated_at) VALUES ($1, $2::text::jsonb, $3::timestamptz) "
        "ON CONFLICT (consumer) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at"};
    struct pg_trip trip;
    if (semel__pg_of(store)->operator_)
        return semel__pg_operate_consumer(semel__pg_of(store), consumer, settings, err);
    semel__pg_start(&trip, semel__pg_of(store), "storing a consumer's settings");
    semel__pg_text(&trip, consumer);
    semel__pg_text(&trip, settings);
    semel__pg_time(&trip, now_us);
    semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

static semel_status read_all(const PGresult *res, struct semel_str consumer, struct semel_arena *arena,
                             struct semel_consumer *ret, struct semel_error *err)
{
    *ret = (struct semel_consumer){.by.at_us = SEMEL_NONE};
    if (PQntuples(res) == 0)
        return SEMEL_OK;
    semel_status status = read_settings(res, consumer, arena, &ret->settings, err);
    ret->by.at_us = semel__pg_get_time(res, 0, 3);
    if (status == SEMEL_OK && (!semel__arena_copy(arena, semel__pg_get_text(res, 0, 1), &ret->by.host) ||
                               !semel__arena_copy(arena, semel__pg_get_text(res, 0, 2), &ret->by.file)))
        status = semel__fail_memory(err);
    return status;
}

semel_status semel__pg_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                     struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
#define READ "SELECT settings::text, set_by_host, set_by_file, set_by_at FROM semel.consumer WHERE consumer = $1"
    static const struct pg_sql look = {"semel_consumer_read", READ};
    static const struct pg_sql locked = {"semel_consumer_lock", READ " FOR UPDATE"};
    static const struct pg_sql there = {
        "semel_consumer_there", /* what is not there cannot be locked */
        "INSERT INTO semel.consumer (consumer, settings, updated_at) "
        "VALUES ($1, '{}'::jsonb, pg_catalog.clock_timestamp()) ON CONFLICT (consumer) DO NOTHING"};
#undef READ
    struct semel_consumer stored;
    struct pg_trip trip;
    lock = lock && !semel__pg_of(store)->operator_; /* the function that makes the change locks and judges itself */
    semel__pg_start(&trip, semel__pg_of(store), "reading a consumer's settings");
    if (lock) {
        semel__pg_text(&trip, consumer);
        semel__pg_add(&trip, &there);
    }
    semel__pg_text(&trip, consumer);
    size_t at = semel__pg_add(&trip, lock ? &locked : &look);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_all(trip.results[at], consumer, arena, &stored, err);
    semel__pg_end(&trip);
    if (status == SEMEL_OK)
        *ret = stored;
    return status;
}

semel_status semel__pg_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                     const struct semel_set_by *by, struct semel_error *err)
{
    static const struct pg_sql sql = {"semel_consumer_mark",
                                      "UPDATE semel.consumer SET set_by_host = $2::text, set_by_file = $3::text, "
                                      "set_by_at = $4::timestamptz WHERE consumer = $1"};
    struct pg_trip trip;
    if (semel__pg_of(store)->operator_ && semel__str_given(by->file))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "this role may change settings by hand, and run no routes");
    if (semel__pg_of(store)->operator_)
        return semel__pg_operate_consumer(semel__pg_of(store), consumer, (struct semel_str){0}, err);
    semel__pg_start(&trip, semel__pg_of(store), "marking a consumer");
    semel__pg_text(&trip, consumer);
    semel__pg_text(&trip, by->host);
    semel__pg_text(&trip, by->file);
    semel__pg_time(&trip, by->at_us);
    semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

#define COUNTED(of) "SELECT pg_catalog.count(*) FROM (SELECT 1 FROM " of " LIMIT $2::bigint) AS r"
#define AFFECTED(which) COUNTED("semel.inbox AS i WHERE i.consumer = $1 " which)

static const struct pg_sql affected[SEMEL_AFFECTED_COUNT] = {
    [SEMEL_AFFECTED_ORDERED] = {"semel_affected_ordered",
                                AFFECTED("AND i.order_key IS NOT NULL AND i.status IN ('processing', 'failed', "
                                         "'waiting')")},
    [SEMEL_AFFECTED_VERSIONED] = {"semel_affected_versioned",
                                  AFFECTED("AND i.order_key IS NOT NULL AND i.version IS NOT NULL "
                                           "AND i.status IN ('unknown', 'dead')")},
    [SEMEL_AFFECTED_BELOW] = {"semel_affected_below",
                              AFFECTED("AND i.order_key IS NOT NULL AND i.status IN ('failed', 'waiting') "
                                       "AND i.version < $3::bigint AND NOT EXISTS (SELECT 1 FROM semel.order_key AS k "
                                       "WHERE k.consumer = i.consumer AND k.order_key = i.order_key "
                                       "AND k.last_version IS NOT NULL)")},
    [SEMEL_AFFECTED_DOUBTED] = {"semel_affected_doubted",
                                AFFECTED("AND i.status IN ('failed', 'waiting') AND i.attempts > 0 "
                                         "AND (i.status = 'waiting' OR i.attempts > 1 "
                                         "OR i.error_class IN ('unknown', 'lease_expired', 'released'))")},
    [SEMEL_AFFECTED_SOURCED] = {"semel_affected_sourced", AFFECTED("AND i.source > ''")},
    [SEMEL_AFFECTED_SOURCELESS] = {"semel_affected_sourceless", AFFECTED("AND i.source = ''")},
    [SEMEL_AFFECTED_ANY] = {"semel_affected_any", AFFECTED("")},
    [SEMEL_AFFECTED_KEYS] = {"semel_affected_keys", COUNTED("semel.order_key WHERE consumer = $1")},
    [SEMEL_AFFECTED_WATERMARKS] = {"semel_affected_watermarks", COUNTED("semel.watermark WHERE consumer = $1")},
};

semel_status semel__pg_count_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                      int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "counting what a change would touch");
    semel__pg_text(&trip, consumer);
    semel__pg_int(&trip, max);
    if (what == SEMEL_AFFECTED_BELOW)
        semel__pg_int(&trip, version);
    size_t at = semel__pg_add(&trip, &affected[what]);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        *ret_n = semel__pg_get_int(trip.results[at], 0, 0);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                 struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                 struct semel_error *err)
{
    /* One step into each index a name; $1 itself comes first and is left out. */
    static const struct pg_sql sql = {
        "semel_consumers",
        "WITH RECURSIVE c (name) AS (SELECT $1::text COLLATE \"C\" UNION ALL SELECT least("
        "(SELECT i.consumer FROM semel.inbox AS i WHERE i.consumer > c.name ORDER BY i.consumer LIMIT 1), "
        "(SELECT s.consumer FROM semel.consumer AS s WHERE s.consumer > c.name ORDER BY s.consumer LIMIT 1)) "
        "FROM c WHERE c.name IS NOT NULL) SELECT name FROM c WHERE name > $1 LIMIT $2::bigint"};
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "listing consumers");
    semel__pg_key(&trip, after);
    semel__pg_int(&trip, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    size_t at = semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = semel__pg_names(trip.results[at], arena, ret, ret_n, err);
    semel__pg_end(&trip);
    return status;
}
