/* SPDX-License-Identifier: MIT
 *
 * sqlite_keep.c: how long things are kept (watermark, purge), and what is only ever added (outbox, audit).
 *
 * Invariants: a watermark rises; purge deletes final rows only, at most `max` a call, and the attempts of the same
 * rows just before: both statements choose the same victims because nothing changes between them.
 */
#include <ctype.h>
#include <stdio.h>

#include "base/ids.h"
#include "store/sqlite.h"

static struct semel_str source_of(struct semel_str source)
{
    return semel__str_given(source) ? source : SEMEL_STR("");
}

semel_status semel__sqlite_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                     int64_t watermark_us, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_WATERMARK_RAISE, "raising the watermark");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, source_of(source));
    semel__sqlite_int(&run, 3, watermark_us);
    semel__sqlite_int(&run, 4, semel__now(d->sql.clock));
    return semel__sqlite_exec(&run, NULL, err);
}

struct victims {
    struct semel_str consumer, source;
    int64_t before_us;
    size_t max;
};

static void start_purge(struct sqlite_run *run, struct sqlite_store *d, enum sqlite_q q, const struct victims *v)
{
    semel__sqlite_start(run, d, q, "purging the inbox");
    semel__sqlite_text(run, 1, v->consumer);
    semel__sqlite_text(run, 2, source_of(v->source));
    semel__sqlite_int(run, 3, (int64_t)v->max);
    semel__sqlite_int(run, 4, v->before_us);
}

semel_status semel__sqlite_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                int64_t before_us, size_t max, size_t *ret_n, int64_t *ret_latest_us,
                                struct semel_error *err)
{
    const struct victims v = {.consumer = consumer, .source = source, .before_us = before_us, .max = max};
    struct sqlite_run run;
    start_purge(&run, semel__sqlite_of(store), Q_AGED, &v);
    bool more = false;
    semel_status status = semel__sqlite_step(&run, &more, err);
    if (status == SEMEL_OK && more) {
        *ret_n = (size_t)sqlite3_column_int64(run.stmt, 0);
        *ret_latest_us = sqlite3_column_type(run.stmt, 1) != SQLITE_NULL ? sqlite3_column_int64(run.stmt, 1)
                                                                         : SEMEL_NONE;
    }
    semel__sqlite_end(&run);
    return status;
}

semel_status semel__sqlite_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                 int64_t before_us, size_t max, size_t *ret_deleted, struct semel_error *err)
{
    const struct victims v = {.consumer = consumer, .source = source, .before_us = before_us, .max = max};
    struct sqlite_store *d = semel__sqlite_of(store);
    struct sqlite_run run;
    start_purge(&run, d, Q_PURGE_ATTEMPTS, &v);
    semel_status status = semel__sqlite_exec(&run, NULL, err);
    if (status != SEMEL_OK)
        return status;
    start_purge(&run, d, Q_PURGE, &v);
    return semel__sqlite_exec(&run, ret_deleted, err);
}

semel_status semel__sqlite_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us,
                                          size_t max, size_t *ret_deleted, struct semel_error *err)
{
    struct sqlite_run run;
    size_t n = 0;
    semel__sqlite_start(&run, semel__sqlite_of(store), Q_PURGE_BUSINESS, "purging business keys");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_int(&run, 2, now_us);
    semel__sqlite_int(&run, 3, (int64_t)max);
    semel_status status = semel__sqlite_exec(&run, &n, err);
    if (status == SEMEL_OK)
        *ret_deleted = n;
    return status;
}

/* The last of the keys that are looked at this time; "": there are none behind `place`. */
static semel_status last_key(struct sqlite_store *d, struct semel_str consumer, const char *place, size_t max,
                             char ret[SEMEL_ID_MAX + 1], bool *ret_more, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_PURGE_KEYS_END, "looking for old order keys");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, semel__str(place));
    semel__sqlite_int(&run, 3, (int64_t)max);
    semel_status status = semel__sqlite_step(&run, &row, err);
    ret[0] = '\0';
    *ret_more = false;
    if (status == SEMEL_OK && row) {
        const char *key = (const char *)sqlite3_column_text(run.stmt, 0);
        *ret_more = sqlite3_column_int64(run.stmt, 1) == (int64_t)max;
        if (key != NULL)
            snprintf(ret, SEMEL_ID_MAX + 1, "%s", key);
    }
    semel__sqlite_end(&run);
    return status;
}

semel_status semel__sqlite_purge_side(struct semel_store *store, struct semel_str consumer, int64_t before_us,
                                      size_t max, char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct sqlite_run run;
    char last[SEMEL_ID_MAX + 1];
    bool more;
    semel__sqlite_start(&run, d, Q_PURGE_CONFLICTS, "purging conflicts");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_int(&run, 2, before_us);
    semel__sqlite_int(&run, 3, (int64_t)max);
    semel_status status = semel__sqlite_exec(&run, NULL, err);
    if (status == SEMEL_OK)
        status = last_key(d, consumer, place, 10 * max, last, &more, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_PURGE_KEYS, "purging order keys");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, semel__str(place));
    semel__sqlite_text(&run, 3, semel__str(last));
    status = semel__sqlite_exec(&run, NULL, err);
    if (status == SEMEL_OK)
        snprintf(place, SEMEL_ID_MAX + 1, "%s", more ? last : "");
    return status;
}

/* ---- outbox -------------------------------------------------------------------------------------- */

semel_status semel__sqlite_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                      char ret_id[37], struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    char id[SEMEL_UUID_TEXT] = "";
    size_t changes = 0;
    if (!semel__str_given(event->id))
        semel__uuid7_new(now_us, d->sql.rng, id);
    for (size_t i = 0; i < event->id.n && i < sizeof(id) - 1; i++) /* one spelling a UUID */
        id[i] = (char)tolower((unsigned char)event->id.p[i]);

    struct sqlite_run run;
    sqlite3_int64 callers_rowid = sqlite3_last_insert_rowid(d->db); /* a handler may ask for that of its own insert */
    semel__sqlite_start(&run, d, Q_OUTBOX_PUT, "adding to the outbox");
    semel__sqlite_text(&run, 1, semel__str(id));
    semel__sqlite_text(&run, 2, event->aggregatetype);
    semel__sqlite_text(&run, 3, event->aggregateid);
    semel__sqlite_text(&run, 4, event->type);
    semel__sqlite_blob(&run, 5, event->payload);
    semel__sqlite_text(&run, 6, event->headers);
    semel__sqlite_text(&run, 7, event->destination);
    semel__sqlite_int(&run, 8, now_us);
    semel__sqlite_text(&run, 9, event->traceparent);
    semel_status status = semel__sqlite_exec(&run, &changes, err);
    sqlite3_set_last_insert_rowid(d->db, callers_rowid);
    if (status != SEMEL_OK)
        return status;
    if (changes == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "outbox: an event with the id %s is there already", id);
    if (ret_id != NULL)
        memcpy(ret_id, id, sizeof(id));
    return SEMEL_OK;
}
