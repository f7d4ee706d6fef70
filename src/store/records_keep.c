/* SPDX-License-Identifier: MIT
 *
 * records_keep.c: how long things are kept: watermark, purge.
 *
 * Invariants: a watermark rises; purge deletes final rows only, at most `max` per call, each with its attempts, and
 * waits for nobody: what somebody has locked is left for the next time.
 */
#include <stdio.h>

#include "store/records.h"

struct args {
    struct semel_str consumer, source, after_key, last_key;
    int64_t watermark_us, before_us, now_us, limit, looks;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer),
    SQL_FIELD(struct args, source, source),
    SQL_FIELD(struct args, after_key, after_key),
    SQL_FIELD(struct args, last_key, last_key),
    SQL_FIELD(struct args, watermark_us, watermark),
    SQL_FIELD(struct args, before_us, before),
    SQL_FIELD(struct args, now_us, now),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, looks, looks),
};

struct found {
    int64_t n, looked, time_us;
    struct semel_str key; /* cut: it only says how far to go */
};

/* Where the statement cannot count what it deleted, the database does. */
static const struct sql_field found_fields[] = {
    SQL_MUST(struct found, n, count, 0, INT64_MAX), SQL_MUST(struct found, n, changes, 0, INT64_MAX),
    SQL_FIELD(struct found, looked, looked),        SQL_FIELD(struct found, time_us, message_time),
    SQL_FIELD(struct found, time_us, watermark),    SQL_SHOWN(struct found, key, order_key, SEMEL_ID_MAX),
};

static void run(struct sql *db, enum sql_id id, const struct args *args, struct sql_into *into)
{
    semel__db_run(db, id, SQL_ONE(args_fields, args), NULL, into != NULL ? semel__db_read_item : NULL, into);
}

static semel_status find(struct sql *db, const char *doing, enum sql_id id, const struct args *args, struct found *ret,
                         struct semel_error *err)
{
    struct sql_into into = {SQL_FIELDS(found_fields), .items = ret, .size = sizeof *ret};
    return semel__db_do(db, doing, id, SQL_ONE(args_fields, args), NULL, semel__db_read_item, &into, err);
}

/* ---- sources ------------------------------------------------------------------------------------- */

/* A source that is none of ours has no row that we could purge: it is left out. */
static semel_status read_source(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field field[] = {
        {.name = SQL_NAME_source, .size = sizeof(struct semel_str), .high = SEMEL_ID_MAX, .required = true},
    };
    struct sql_list *list = ctx;
    struct semel_str source;
    (void)item;
    semel_status status = semel__db_fill(row, field, 1, NULL, &source, err);
    if (status == SEMEL_INVALID)
        return SEMEL_OK;
    return status == SEMEL_OK ? semel__db_list_text(list, source, err) : status;
}

semel_status semel__record_sources(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                   struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = {.consumer = consumer};
    struct sql_list list = {.arena = arena, .size = sizeof(**ret_sources)};
    /* Who purges looks here first. */
    semel_status status = db->driver->server_same != NULL ? db->driver->server_same(db, err) : SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    status = semel__db_do(db, "listing sources", SQL_source_list, SQL_ONE(args_fields, &args), NULL, read_source, &list,
                          err);
    status = semel__db_list_end(&list, status, err);
    if (status == SEMEL_OK) {
        *ret_sources = list.items;
        *ret_n = list.n;
    }
    return status;
}

/* ---- watermark and purge ------------------------------------------------------------------------- */

semel_status semel__record_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                     int64_t watermark_us, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = {.consumer = consumer,
                              .source = source,
                              .watermark_us = watermark_us,
                              .now_us = db->clock != NULL ? semel__now(db->clock) : SEMEL_NONE};
    struct found found;
    struct sql_into into = {SQL_FIELDS(found_fields), .items = &found, .size = sizeof found};
    semel__db_start(db, "raising the watermark");
    run(db, SQL_watermark_make, &args, NULL);
    run(db, SQL_watermark_raise, &args, NULL);
    run(db, SQL_watermark_raised, &args, &into);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK && into.filled == 0)
        status = semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a watermark is held by another transaction");
    return status;
}

semel_status semel__record_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                int64_t before_us, size_t max, size_t looks, struct semel_aged *ret,
                                struct semel_error *err)
{
    const struct args args = {consumer, source, .before_us = before_us, .limit = semel__db_limit(max),
                              .looks = semel__db_limit(looks)};
    struct found found = {.time_us = SEMEL_NONE};
    semel_status status = find(semel__db_of(store), "looking for old rows", SQL_aged, &args, &found, err);
    if (status == SEMEL_OK)
        *ret = (struct semel_aged){(size_t)found.n, (size_t)(found.looked > found.n ? found.looked : found.n),
                                   found.time_us};
    return status;
}

semel_status semel__record_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                 int64_t before_us, size_t max, size_t looks, size_t *ret_deleted,
                                 struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = {consumer, source, .before_us = before_us, .limit = semel__db_limit(max),
                              .looks = semel__db_limit(looks)};
    struct found found = {0};
    struct sql_into into = {SQL_FIELDS(found_fields), .items = &found, .size = sizeof found};
    semel__db_start(db, "purging the inbox");
    run(db, SQL_purge_attempts, &args, NULL);
    run(db, SQL_purge, &args, &into);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK)
        *ret_deleted = (size_t)found.n;
    return status;
}

semel_status semel__record_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us,
                                          size_t max, size_t *ret_deleted, struct semel_error *err)
{
    const struct args args = {consumer, .now_us = now_us, .limit = semel__db_limit(max)};
    struct found found = {0};
    semel_status status = find(semel__db_of(store), "purging business keys", SQL_purge_business, &args, &found, err);
    if (status == SEMEL_OK)
        *ret_deleted = (size_t)found.n;
    return status;
}

/* ---- conflicts and order keys -------------------------------------------------------------------- */

/* The last of the keys that are looked at this time; "": there are none behind the place. */
struct keys_end {
    char last[SEMEL_ID_MAX + 1];
    int64_t n;
};

static semel_status read_end(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct keys_end *end = ctx;
    struct found found = {0};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(found_fields), NULL, &found, err);
    end->n = found.n;
    if (found.key.n > 0)
        snprintf(end->last, sizeof end->last, "%.*s", (int)found.key.n, found.key.p);
    return status;
}

semel_status semel__record_purge_keys(struct semel_store *store, struct semel_str consumer, int64_t before_us,
                                      size_t max, char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct args args = {consumer, .after_key = semel__str(place), .before_us = before_us,
                        .limit = semel__db_limit(max)};
    struct keys_end end = {.n = 0};
    semel__db_start(db, "purging conflicts");
    run(db, SQL_purge_conflicts, &args, NULL);
    semel__db_run(db, SQL_purge_keys_end, SQL_ONE(args_fields, &args), NULL, read_end, &end);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK && end.last[0] != '\0') {
        args.last_key = semel__str(end.last);
        status = semel__db_do(db, "purging order keys", SQL_purge_keys, SQL_ONE(args_fields, &args), NULL, NULL, NULL,
                              err);
    }
    if (status == SEMEL_OK)
        snprintf(place, SEMEL_ID_MAX + 1, "%s", end.n == 10 * args.limit ? end.last : "");
    return status;
}
