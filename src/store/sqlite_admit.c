/* SPDX-License-Identifier: MIT
 *
 * sqlite_admit.c: admit and fetch: lock, insert first, read what was refused.
 *
 * The write lock of the database is held since begin, so that "locking" a row or a key is having begun. The facts
 * of keys leave out what this transaction inserted: its arrivals are the highest. The watermarks are read after the
 * rows were inserted (P60).
 *
 * Invariants: a message that is new costs one statement; one that is there costs one more. Arrivals are
 * drawn once per batch. A row that was refused and cannot be found is damage, not "new".
 */
#include "core/version.h"
#include "store/sqlite.h"

semel_status semel__sqlite_draw(struct sqlite_store *d, const char *counter, size_t n, int64_t *ret_first,
                                struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_DRAW, "drawing a number");
    semel__sqlite_text(&run, 1, semel__str(counter));
    semel__sqlite_int(&run, 2, (int64_t)n);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK)
        return status;
    int64_t first = row && sqlite3_column_type(run.stmt, 0) == SQLITE_INTEGER ? sqlite3_column_int64(run.stmt, 0) : 0;
    semel__sqlite_end(&run);
    if (first < 1)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "damaged table semel_counter: row %s must be 1 or more", counter);
    *ret_first = first;
    return SEMEL_OK;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

static int64_t fact(const struct sqlite_run *run, int col)
{
    return sqlite3_column_type(run->stmt, col) == SQLITE_INTEGER ? sqlite3_column_int64(run->stmt, col) : SEMEL_NONE;
}

static semel_status key_head(struct sqlite_store *d, struct semel_str consumer, struct semel_key *key,
                             struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, key->by_version ? Q_HEAD_VERSION : Q_HEAD_ARRIVAL, "reading the head of an order key");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, key->key);
    semel__sqlite_int(&run, 3, d->first_arrival);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK)
        return status;
    key->head_arrival = row ? fact(&run, 0) : SEMEL_NONE;
    key->head_version = row ? fact(&run, 1) : SEMEL_NONE;
    semel__sqlite_end(&run);
    return SEMEL_OK;
}

/* INVALID, BROKEN: they are damaged. */
static semel_status read_skipped(sqlite3_stmt *stmt, int col, struct semel_arena *arena, struct semel_key *key,
                                 struct semel_error *err)
{
    int type = sqlite3_column_type(stmt, col);
    if (type != SQLITE_TEXT && type != SQLITE_NULL)
        return semel__version_damaged(err);
    const char *p = (const char *)sqlite3_column_text(stmt, col);
    if (p == NULL && type == SQLITE_TEXT)
        return semel__fail_memory(err);
    return semel__version_read((struct semel_str){p, (size_t)sqlite3_column_bytes(stmt, col)}, arena, key, err);
}

static semel_status key_facts(struct sqlite_store *d, struct semel_str consumer, int64_t now_us, struct semel_key *key,
                              struct semel_arena *arena, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_KEY_PUT, "locking an order key");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, key->key);
    semel__sqlite_int(&run, 3, now_us);
    semel_status status = semel__sqlite_exec(&run, NULL, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_KEY_FACTS, "reading an order key");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, key->key);
    semel__sqlite_int(&run, 3, d->first_arrival);
    status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK)
        return status;
    key->last_version = fact(&run, 0);
    key->parked = fact(&run, 1);
    key->open = fact(&run, 2) == 1;
    status = read_skipped(run.stmt, 3, arena, key, err);
    key->damaged = status == SEMEL_INVALID;
    semel__sqlite_end(&run);
    return status == SEMEL_OK || key->damaged ? key_head(d, consumer, key, err) : status;
}

static semel_status all_keys(struct sqlite_store *d, struct semel_str consumer, int64_t now_us, struct semel_key *keys,
                             size_t n, struct semel_arena *arena, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = key_facts(d, consumer, now_us, &keys[i], arena, err);
    return status;
}

/* ---- business keys ------------------------------------------------------------------------------- */

static semel_status column_id(struct sqlite_run *run, int col, struct semel_arena *arena, struct semel_str *ret,
                              struct semel_error *err)
{
    int n = sqlite3_column_bytes(run->stmt, col);
    if (sqlite3_column_type(run->stmt, col) != SQLITE_TEXT || n > SEMEL_ID_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "damaged row in semel_business_key: source and message_id must be text of at most %d bytes",
                           SEMEL_ID_MAX);
    const char *p = (const char *)sqlite3_column_text(run->stmt, col);
    if (p == NULL || !semel__arena_copy(arena, (struct semel_str){p, (size_t)n}, ret))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

static semel_status holder(struct sqlite_store *d, struct semel_str consumer, struct semel_business *b,
                           struct semel_arena *arena, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_BUSINESS_HOLDER, "reading a business key");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, b->key);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK)
        return status;
    if (!row)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "semel_business_key refused a key that it does not have");
    status = column_id(&run, 0, arena, &b->held_source, err);
    if (status == SEMEL_OK)
        status = column_id(&run, 1, arena, &b->held_id, err);
    b->unfinished = fact(&run, 2) == 1;
    b->wanted = fact(&run, 3);
    semel__sqlite_end(&run);
    b->taken = !semel__str_eq(b->held_source, b->source) || !semel__str_eq(b->held_id, b->id);
    return status;
}

static semel_status take_business(struct sqlite_store *d, struct semel_str consumer, int64_t now_us,
                                  struct semel_business *b, struct semel_arena *arena, struct semel_error *err)
{
    struct sqlite_run run;
    size_t changes = 0;
    semel__sqlite_start(&run, d, Q_BUSINESS_TAKE, "taking a business key");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, b->key);
    semel__sqlite_text(&run, 3, b->source);
    semel__sqlite_text(&run, 4, b->id);
    semel__sqlite_int(&run, 5, now_us);
    semel__sqlite_int(&run, 6, b->expires_us);
    semel_status status = semel__sqlite_exec(&run, &changes, err);
    if (status != SEMEL_OK)
        return status;
    b->taken = b->unfinished = false;
    b->wanted = 0;
    b->inserted = changes > 0;
    b->held_source = b->held_id = (struct semel_str){0};
    return b->inserted ? SEMEL_OK : holder(d, consumer, b, arena, err);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static void bind_live(struct sqlite_run *run, const struct semel_live *live)
{
    semel__sqlite_text(run, 5, semel__str(semel__state_name(live->state)));
    semel__sqlite_int(run, 6, live->attempts);
    semel__sqlite_int(run, 7, live->attempts_before);
    semel__sqlite_int(run, 8, live->retries);
    semel__sqlite_int(run, 9, live->alone);
    semel__sqlite_int(run, 16, live->processed_us);
    semel__sqlite_int(run, 17, live->due_us);
    semel__sqlite_text(run, 18, live->lease_owner);
    semel__sqlite_int(run, 19, live->lease_until_us);
    semel__sqlite_int(run, 20, live->lease_token);
    if (live->error_class != SEMEL_CLASS_NONE)
        semel__sqlite_text(run, 21, semel__str(semel__class_name(live->error_class)));
    semel__sqlite_text(run, 22, live->error_text);
    semel__sqlite_text(run, 23, live->outcome);
}

static semel_status insert(struct sqlite_store *d, struct semel_str consumer, struct semel_admit *item,
                           struct semel_error *err)
{
    const struct semel_row *row = &item->row;
    unsigned char fp[1 + SEMEL_FP_MAX];
    size_t fp_n = semel__fp_encode(&row->fp, fp), changes = 0;
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_INSERT, "inserting into the inbox");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, semel__str_given(row->source) ? row->source : SEMEL_STR(""));
    semel__sqlite_text(&run, 3, row->id);
    semel__sqlite_text(&run, 4, row->type);
    bind_live(&run, &row->live);
    semel__sqlite_blob(&run, 10, (struct semel_str){fp_n > 0 ? (const char *)fp : NULL, fp_n});
    semel__sqlite_text(&run, 11, row->order_key);
    semel__sqlite_int(&run, 12, row->version);
    semel__sqlite_int(&run, 13, row->message_time_us);
    semel__sqlite_int(&run, 14, row->received_us);
    semel__sqlite_int(&run, 15, row->updated_us);
    semel__sqlite_text(&run, 24, row->position);
    if (row->kept) {
        semel__sqlite_text(&run, 25, row->headers);
        semel__sqlite_blob(&run, 26, semel__str_given(row->payload) ? row->payload : SEMEL_STR(""));
    }
    semel__sqlite_text(&run, 27, row->traceparent);
    semel__sqlite_int(&run, 28, row->arrival);
    semel_status status = semel__sqlite_exec(&run, &changes, err);
    item->inserted = changes > 0;
#ifdef SEMEL_MUTANT_NO_INSERT
    item->inserted = true;
#endif
    return status;
}

/* The row of (source, id), if there is one. Damage is told in `damage` and is no failure of the call. */
static semel_status read_row(struct sqlite_store *d, struct semel_str consumer, struct semel_str source,
                             struct semel_str id, struct semel_arena *arena, struct semel_row *ret, bool *ret_present,
                             bool *ret_damaged, struct semel_error *damage, struct semel_error *err)
{
    struct sqlite_run run;
    semel__sqlite_start(&run, d, Q_FETCH, "reading the inbox");
    semel__sqlite_int(&run, 1, 1);
    semel__sqlite_text(&run, 2, consumer);
    semel__sqlite_text(&run, 3, semel__str_given(source) ? source : SEMEL_STR(""));
    semel__sqlite_text(&run, 4, id);
    *ret_present = *ret_damaged = false;
    semel_status status = semel__sqlite_step(&run, ret_present, err);
    if (status != SEMEL_OK || !*ret_present)
        return status;
    status = semel__sqlite_read(run.stmt, arena, ret, damage);
    semel__sqlite_end(&run);
    if (semel__sqlite_damaged(status)) {
        *ret_damaged = true;
        return SEMEL_OK;
    }
    if (status != SEMEL_OK && err != NULL)
        *err = *damage;
    return status;
}

static semel_status draw_numbers(struct sqlite_store *d, struct semel_admit_batch *batch, struct semel_error *err)
{
    size_t places = 0;
    int64_t arrival = 0;
    for (size_t i = 0; i < batch->n_items; i++) {
        const struct semel_admit *item = &batch->items[i];
        places = item->place >= places ? item->place + 1 : places;
    }
    semel_status status = places > 0 ? semel__sqlite_draw(d, "arrival", places, &arrival, err) : SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    if (places > 0 && arrival < d->first_arrival)
        d->first_arrival = arrival;
    for (size_t i = 0; i < batch->n_items; i++) {
        struct semel_admit *item = &batch->items[i];
        item->row.arrival = arrival + (int64_t)item->place;
    }
    return SEMEL_OK;
}

static semel_status admit_rows(struct sqlite_store *d, struct semel_admit_batch *batch, struct semel_arena *arena,
                               struct semel_error *err)
{
    semel_status status = draw_numbers(d, batch, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++)
        status = insert(d, batch->consumer, &batch->items[i], err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++) {
        struct semel_admit *item = &batch->items[i];
        bool present = false;
        item->damaged = false;
        if (item->inserted)
            continue;
        status = read_row(d, batch->consumer, item->row.source, item->row.id, arena, &item->found, &present,
                          &item->damaged, &item->damage, err);
        if (status == SEMEL_OK && !present)
            status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                                 "semel_inbox refused a row that it does not have");
    }
    return status;
}

/* ---- watermarks ---------------------------------------------------------------------------------- */

static semel_status watermark(struct sqlite_store *d, struct semel_str consumer, struct semel_str source, int64_t *ret,
                              struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    *ret = SEMEL_NONE;
    semel__sqlite_start(&run, d, Q_WATERMARK_GET, "reading the watermark");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_text(&run, 2, semel__str_given(source) ? source : SEMEL_STR(""));
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK || !row)
        return status;
    *ret = fact(&run, 0);
    semel__sqlite_end(&run);
    if (*ret == SEMEL_NONE) /* a watermark that cannot be read must not let anything pass */
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "damaged row in semel_watermark: watermark must be a time");
    return SEMEL_OK;
}

/* One statement a source: the items are sorted by it. */
static semel_status watermarks(struct sqlite_store *d, struct semel_admit_batch *batch, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++) {
        struct semel_admit *item = &batch->items[i];
        item->watermark_us = SEMEL_NONE;
#ifdef SEMEL_MUTANT_NO_WATERMARK
        continue;
#endif
        if (i > 0 && semel__str_eq(batch->items[i - 1].row.source, item->row.source))
            item->watermark_us = batch->items[i - 1].watermark_us;
        else
            status = watermark(d, batch->consumer, item->row.source, &item->watermark_us, err);
    }
    return status;
}

/* ---- the two operations -------------------------------------------------------------------------- */

semel_status semel__sqlite_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    semel_status status = all_keys(d, batch->consumer, batch->now_us, batch->keys, batch->n_keys, arena, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_business; i++)
        status = take_business(d, batch->consumer, batch->now_us, &batch->business[i], arena, err);
    if (status == SEMEL_OK)
        status = admit_rows(d, batch, arena, err);
    return status == SEMEL_OK ? watermarks(d, batch, err) : status;
}

semel_status semel__sqlite_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    semel_status status = all_keys(d, batch->consumer, batch->now_us, batch->keys, batch->n_keys, arena, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_business; i++)
        status = take_business(d, batch->consumer, batch->now_us, &batch->business[i], arena, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++) {
        struct semel_fetched *item = &batch->items[i];
        status = read_row(d, batch->consumer, item->source, item->id, arena, &item->row, &item->present, &item->damaged,
                          &item->damage, err);
    }
    return status;
}
