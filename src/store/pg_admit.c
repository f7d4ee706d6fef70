/* SPDX-License-Identifier: MIT
 *
 * pg_admit.c: admit: lock, insert, read what was refused.
 *
 * One trip: the keys are locked and looked at, the business keys are taken, a number is drawn and all rows are inserted
 * by one statement, and then, in a statement of its own, the watermarks are read (P60). A second trip reads what the
 * insert refused: a row that was committed while the insert waited for it is in no snapshot but a later one (P12).
 *
 * A batch is mostly like the one before. If most of that was there already, final rows are read before anything is
 * inserted, and only what is not among them is. It changes nothing of what is decided: the primary key refuses, and a
 * final row never changes. Above READ COMMITTED, and where commits wait for a standby, nothing is looked at first.
 *
 * Invariants: the number is drawn while the keys are held; the watermarks are read after the insert.
 */
#include "core/state.h"
#include "store/pg.h"

#define NOBODY UINT16_MAX

/* Some of a batch, in its order. */
struct part {
    struct semel_admit **items;
    const void **rows; /* those of the items */
    size_t n;
};

#define MARKS                                                                                                         \
    "SELECT b.n, w.watermark FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS b (source, n) CROSS JOIN LATERAL " \
    "(SELECT watermark FROM semel.watermark WHERE consumer = $1::text AND source = b.source "
static const struct sql_text sql_watermarks = {"semel_watermarks", MARKS "OFFSET 0) AS w ORDER BY b.n"};
/* Above READ COMMITTED a watermark that was raised after our snapshot has to be noticed: both fail with 40001 then. The
 * lock is there so that a purge, which waits for nobody, does not insert while we do. */
#define MARK_LOCK PG_MARK_LOCK("$1", "b.source")
static const struct sql_text sql_watermarks_lock = {"semel_watermarks_lock",
                                                    "SELECT pg_catalog.pg_advisory_xact_lock_shared(" MARK_LOCK
                                                    ") FROM pg_catalog.unnest($2::text[]) "
                                                    "WITH ORDINALITY AS b (source, n) ORDER BY b.n"};
static const struct sql_text sql_watermarks_put = {
    "semel_watermarks_put",
    "INSERT INTO semel.watermark (consumer, source, watermark, updated_at) SELECT $1::text, b.source, '-infinity', "
    "$3::timestamptz FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS b (source, n) ORDER BY b.n "
    "ON CONFLICT (consumer, source) DO NOTHING"};
static const struct sql_text sql_watermarks_share = {"semel_watermarks_share", MARKS "FOR SHARE) AS w ORDER BY b.n"};

/* ---- what was inserted --------------------------------------------------------------------------- */

static semel_status places_fit(const struct semel_admit_batch *batch, struct semel_error *err)
{
    for (size_t i = 0; i < batch->n_items; i++)
        if (batch->items[i].place >= PG_PLACES || batch->n_items >= PG_PLACES)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a batch has at most %d places", PG_PLACES);
    return SEMEL_OK;
}

/* The arrival says which item it was. */
static semel_status read_inserted(struct pg_store *d, const PGresult *res, const struct part *part,
                                  struct semel_error *err)
{
    uint16_t at[PG_PLACES];
    memset(at, 0xff, sizeof(at));
    for (size_t i = 0; i < part->n; i++) {
        struct semel_admit *item = part->items[i];
        at[item->place] = (uint16_t)i;
#ifdef SEMEL_MUTANT_NO_INSERT
        item->inserted = true;
        item->row.arrival = 1;
#endif
    }
    for (int row = 0; row < PQntuples(res); row++) {
        int64_t arrival = semel__pg_get_int(res, row, 0);
        uint16_t i = arrival > 0 ? at[arrival % PG_PLACES] : NOBODY;
        if (i == NOBODY)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "damaged sequence semel.arrival: it must give numbers of 1 or more");
        part->items[i]->inserted = true;
        part->items[i]->row.arrival = arrival;
    }
    if (PQntuples(res) > 0) /* it was drawn once */
        d->draws[d->n_draws++] = semel__pg_get_int(res, 0, 0) / PG_PLACES;
    return SEMEL_OK;
}

/* ---- watermarks ---------------------------------------------------------------------------------- */

/* Is this the first item of its source? They are sorted by it. */
static bool begins_source(const struct semel_admit_batch *batch, size_t i)
{
    return i == 0 || !semel__str_eq(batch->items[i - 1].row.source, batch->items[i].row.source);
}

static void put_sources(struct pg_trip *trip, const struct semel_admit_batch *batch)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_items; i++)
        n += begins_source(batch, i);
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < batch->n_items; i++)
        if (begins_source(batch, i))
            semel__pg_item_key(trip, batch->items[i].row.source);
    semel__pg_array_end(trip);
}

static size_t add_watermarks(struct pg_trip *trip, const struct semel_admit_batch *batch)
{
    bool strict = trip->d->strict;
    if (strict) {
        semel__pg_text(trip, batch->consumer);
        put_sources(trip, batch);
        semel__pg_add(trip, &sql_watermarks_lock);
        semel__pg_text(trip, batch->consumer);
        put_sources(trip, batch);
        semel__pg_time(trip, batch->now_us);
        semel__pg_add(trip, &sql_watermarks_put);
    }
    semel__pg_text(trip, batch->consumer);
    put_sources(trip, batch);
    return semel__pg_add(trip, strict ? &sql_watermarks_share : &sql_watermarks);
}

static void read_watermarks(const PGresult *res, struct semel_admit_batch *batch)
{
    int64_t source = 0, watermark_us = SEMEL_NONE;
    int row = 0;
    for (size_t i = 0; i < batch->n_items; i++) {
        if (begins_source(batch, i)) {
            source++;
            watermark_us = SEMEL_NONE;
            if (row < PQntuples(res) && semel__pg_get_int(res, row, 0) == source)
                watermark_us = semel__pg_get_time(res, row++, 1);
        }
#ifdef SEMEL_MUTANT_NO_WATERMARK
        watermark_us = SEMEL_NONE;
#endif
        batch->items[i].watermark_us = watermark_us;
    }
}

/* ---- what is expected ---------------------------------------------------------------------------- */

static bool looks_first(const struct pg_store *d)
{
    return d->mostly_old && !d->strict && !d->standby;
}

static void learn(struct pg_store *d, const struct semel_admit_batch *batch)
{
    size_t refused = 0;
    for (size_t i = 0; i < batch->n_items; i++)
        refused += !batch->items[i].inserted;
    if (batch->n_items > 0)
        d->mostly_old = 2 * refused > batch->n_items;
}

/* ---- the ways ------------------------------------------------------------------------------------ */

struct first_trip {
    struct pg_trip trip;
    struct pg_key_trip keys;
    struct pg_business_trip business;
    size_t insert, watermarks, finals;
};

static void add_locks(struct first_trip *t, const struct semel_admit_batch *batch)
{
    semel__pg_keys_add(&t->trip, batch->consumer, batch->keys, batch->n_keys, true, &t->keys);
    semel__pg_business_add(&t->trip, batch->consumer, batch->now_us, batch->business, batch->n_business, &t->business);
}

static semel_status read_locks(const struct first_trip *t, struct semel_admit_batch *batch, struct semel_arena *arena,
                               struct semel_error *err)
{
    semel_status status = semel__pg_keys_read(&t->trip, batch->keys, batch->n_keys, &t->keys, arena, err);
    if (status == SEMEL_OK)
        status = semel__pg_business_read(&t->trip, batch->business, batch->n_business, &t->business, arena, err);
    return status;
}

static semel_status read_rows(struct first_trip *t, struct semel_admit_batch *batch, const struct part *part,
                              struct semel_error *err)
{
    semel_status status = read_inserted(t->trip.d, t->trip.results[t->insert], part, err);
    read_watermarks(t->trip.results[t->watermarks], batch);
    return status;
}

/* locked: the keys are held already. */
static semel_status insert(struct pg_store *d, struct semel_admit_batch *batch, const struct part *part, bool locked,
                           struct semel_arena *arena, struct semel_error *err)
{
    struct first_trip t = {0};
    semel__pg_start(&t.trip, d, "inserting into the inbox");
    if (!locked)
        add_locks(&t, batch);
    if (part->n > 0) {
        t.insert = semel__pg_insert(&t.trip, batch->consumer, part->items, part->rows, part->n);
        t.watermarks = add_watermarks(&t.trip, batch);
    }
    semel_status status = semel__pg_run(&t.trip, err);
    if (status == SEMEL_OK && !locked)
        status = read_locks(&t, batch, arena, err);
    if (status == SEMEL_OK && part->n > 0)
        status = read_rows(&t, batch, part, err);
    semel__pg_end(&t.trip);
    return status;
}

static semel_status look_first(struct pg_store *d, struct semel_admit_batch *batch, struct part *part,
                               struct semel_arena *arena, struct semel_error *err)
{
    struct first_trip t = {0};
    semel__pg_start(&t.trip, d, "reading the inbox");
    add_locks(&t, batch);
    t.finals = semel__pg_add_final(&t.trip, batch->consumer, part->rows, part->n);
    t.watermarks = add_watermarks(&t.trip, batch);
    semel_status status = semel__pg_run(&t.trip, err);
    if (status == SEMEL_OK)
        status = read_locks(&t, batch, arena, err);
    if (status == SEMEL_OK) {
        read_watermarks(t.trip.results[t.watermarks], batch);
        status = semel__pg_find_final(t.trip.results[t.finals], batch->consumer, part->items, part->n, arena,
                                      part->items, &part->n, err);
    }
    semel__pg_end(&t.trip);
    for (size_t i = 0; i < part->n; i++)
        part->rows[i] = &part->items[i]->row;
    if (status == SEMEL_OK && part->n > 0)
        status = insert(d, batch, part, true, arena, err);
    return status;
}

/* ---- what was refused ---------------------------------------------------------------------------- */

static void only_refused(struct part *part)
{
    size_t n = 0;
    for (size_t i = 0; i < part->n; i++)
        if (!part->items[i]->inserted)
            part->items[n++] = part->items[i];
    part->n = n;
    for (size_t i = 0; i < n; i++)
        part->rows[i] = &part->items[i]->row;
}

static semel_status find_finals(struct pg_store *d, struct semel_str consumer, struct part *part,
                                struct semel_arena *arena, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "reading the inbox");
    size_t at = semel__pg_add_final(&trip, consumer, part->rows, part->n);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = semel__pg_find_final(trip.results[at], consumer, part->items, part->n, arena, part->items, &part->n,
                                      err);
    semel__pg_end(&trip);
    for (size_t i = 0; i < part->n; i++)
        part->rows[i] = &part->items[i]->row;
    return status;
}

static semel_status find_refused(struct pg_store *d, struct semel_str consumer, struct part *part,
                                 struct semel_arena *arena, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    only_refused(part);
    if (part->n > 0 && !d->strict && !d->standby)
        status = find_finals(d, consumer, part, arena, err);
    if (status == SEMEL_OK && part->n > 0)
        status = semel__pg_find_locked(d, consumer, part->items, part->rows, part->n, arena, err);
    return status;
}

/* ---- the operation ------------------------------------------------------------------------------- */

static semel_status admit(struct pg_store *d, struct semel_admit_batch *batch, struct part *part,
                          struct semel_arena *arena, struct semel_error *err)
{
    semel_status status;
    for (size_t i = 0; i < batch->n_items; i++) {
        struct semel_admit *item = &batch->items[i];
        item->inserted = item->damaged = false;
        part->items[i] = item;
        part->rows[i] = &item->row;
    }
    part->n = batch->n_items;
    if (part->n > 0 && looks_first(d))
        status = look_first(d, batch, part, arena, err);
    else
        status = insert(d, batch, part, false, arena, err);
    if (status == SEMEL_OK)
        status = find_refused(d, batch->consumer, part, arena, err);
    if (status == SEMEL_OK)
        learn(d, batch);
    return status;
}

semel_status semel__pg_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                             struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel_status status = places_fit(batch, err);
    if (status != SEMEL_OK)
        return status;
    if (d->n_draws >= PG_DRAWS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "more than %d batches in one transaction",
                           PG_DRAWS_MAX);
    struct part part = {.items = semel__calloc(batch->n_items + 1, sizeof(struct semel_admit *)),
                        .rows = semel__calloc(batch->n_items + 1, sizeof(*part.rows))};
    if (part.items == NULL || part.rows == NULL)
        status = semel__fail_memory(err);
    else
        status = admit(d, batch, &part, arena, err);
    semel__free(part.items);
    semel__free(part.rows);
    return status;
}
