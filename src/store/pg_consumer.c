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
    semel__pg_start(&trip, semel__pg_of(store), "storing a consumer's settings");
    semel__pg_text(&trip, consumer);
    semel__pg_text(&trip, settings);
    semel__pg_time(&trip, now_us);
    semel__pg_add(&trip, &sql);
    semel_status status = semel__pg_run(&trip, err);
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
