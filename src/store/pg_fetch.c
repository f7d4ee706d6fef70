/* SPDX-License-Identifier: MIT
 *
 * pg_fetch.c: reading rows of which the keys are known: what an insert refused, and fetch.
 *
 * A final row never changes, so it is read without a lock, which would be a write a duplicate, and without what nobody
 * asks of it. All others are locked first and read by a later statement, with a snapshot that is younger than the lock.
 * Where commits wait for a standby final rows are locked, too: then our own COMMIT waits as well, and nothing is
 * acknowledged that only this server knows (P16).
 *
 * Invariants: locks are taken in the order of the array; a row that was refused and is gone again, or came back, is
 * contention and not "new".
 */
#include "core/state.h"
#include "store/pg.h"

#define ROWS_OF "FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS b (source, id, n) CROSS JOIN LATERAL (SELECT "
#define ROW_OF_B "FROM semel.inbox WHERE consumer = $1::text AND source = b.source AND message_id = b.id "

static const struct sql_text sql_final = {"semel_final", "SELECT b.n, " PG_FINAL_COLUMNS " " ROWS_OF "* " ROW_OF_B
                                                         "AND " PG_FINAL " OFFSET 0) AS i"};
static const struct sql_text sql_lock_open = {"semel_lock_open", "SELECT b.n " ROWS_OF "arrival " ROW_OF_B
                                                                 "AND " PG_OPEN " FOR UPDATE) AS i ORDER BY b.n"};
static const struct sql_text sql_lock_all = {"semel_lock_all",
                                             "SELECT b.n " ROWS_OF "arrival " ROW_OF_B "FOR UPDATE) AS i ORDER BY b.n"};
static const struct sql_text sql_lock_free = {"semel_lock_free", "SELECT b.n " ROWS_OF "arrival " ROW_OF_B
                                                                 "FOR UPDATE SKIP LOCKED) AS i ORDER BY b.n"};
static const struct sql_text sql_read = {"semel_read", "SELECT b.n, " PG_COLUMNS("true") " " ROWS_OF "* " ROW_OF_B
                                                                                         "OFFSET 0) AS i ORDER BY b.n"};

static const struct pg_column id_column = {.kind = PG_FIELD_TEXT, .offset = offsetof(struct semel_row, id)};
static const struct pg_column source_column = {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_row, source)};

static void put_row_keys(struct pg_trip *trip, struct semel_str consumer, const void *const *rows, size_t n)
{
    semel__pg_text(trip, consumer);
    semel__pg_array_of(trip, &source_column, rows, n);
    semel__pg_array_of(trip, &id_column, rows, n);
}

/* ---- final rows ---------------------------------------------------------------------------------- */

size_t semel__pg_add_final(struct pg_trip *trip, struct semel_str consumer, const void *const *rows, size_t n)
{
    put_row_keys(trip, consumer, rows, n);
    return semel__pg_add(trip, &sql_final);
}

static semel_status read_final(const PGresult *res, int row, struct semel_str consumer, struct semel_arena *arena,
                               struct semel_admit *item, struct semel_error *err)
{
    struct semel_row key = {.consumer = consumer, .source = item->row.source, .id = item->row.id};
    semel_status status = semel__pg_read_final(res, row, 1, &key, arena, &item->found, &item->damage);
    item->damaged = semel__pg_damaged(status);
    if (item->damaged)
        return SEMEL_OK;
    if (status != SEMEL_OK && err != NULL)
        *err = item->damage;
    return status;
}

/* A row that was given is known by `inserted`, which is put back: those left over are told from it. */
semel_status semel__pg_find_final(const PGresult *res, struct semel_str consumer, struct semel_admit *const *items,
                                  size_t n, struct semel_arena *arena, struct semel_admit **ret_left, size_t *ret_n,
                                  struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    size_t left = 0;
    for (int row = 0; status == SEMEL_OK && row < PQntuples(res); row++) {
        int64_t at = semel__pg_get_int(res, row, 0);
        if (at < 1 || (uint64_t)at > n || items[at - 1]->inserted)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "reading the inbox: a row came twice");
        items[at - 1]->inserted = true;
        status = read_final(res, row, consumer, arena, items[at - 1], err);
    }
    for (size_t i = 0; i < n; i++) {
        if (!items[i]->inserted)
            ret_left[left++] = items[i];
        items[i]->inserted = false;
    }
    *ret_n = left;
    return status;
}

/* ---- the others ---------------------------------------------------------------------------------- */

/* Reads row `row` of a result of sql_read. Damage is told in `damage` and is no failure of the call. */
static semel_status read_row(const PGresult *res, int row, struct semel_arena *arena, struct semel_row *ret,
                             bool *ret_damaged, struct semel_error *damage, struct semel_error *err)
{
    semel_status status = semel__pg_read(res, row, 1, arena, ret, damage);
    *ret_damaged = semel__pg_damaged(status);
    if (*ret_damaged)
        return SEMEL_OK;
    if (status != SEMEL_OK && err != NULL)
        *err = *damage;
    return status;
}

static semel_status read_locked(const struct pg_trip *trip, size_t locks, size_t rows, struct semel_admit *const *items,
                                size_t n, struct semel_arena *arena, struct semel_error *err)
{
    const PGresult *locked = trip->results[locks], *res = trip->results[rows];
    semel_status status = SEMEL_OK;
    int lock = 0;
    if (PQntuples(res) != (int)n)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a row of the inbox was deleted meanwhile");
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct semel_admit *item = items[i];
        bool held = lock < PQntuples(locked) && semel__pg_get_int(locked, lock, 0) == (int64_t)i + 1;
        lock += held;
        status = read_row(res, (int)i, arena, &item->found, &item->damaged, &item->damage, err);
        if (status == SEMEL_OK && !held && !item->damaged && !semel__state_final(item->found.live.state))
            status = semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a row of the inbox was replaced meanwhile");
    }
    return status;
}

semel_status semel__pg_find_locked(struct pg_store *d, struct semel_str consumer, struct semel_admit *const *items,
                                   const void *const *rows, size_t n, struct semel_arena *arena,
                                   struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "reading the inbox");
    put_row_keys(&trip, consumer, rows, n);
    semel__pg_business_lock(&trip); /* what runs now may end so that they are free */
    put_row_keys(&trip, consumer, rows, n);
    size_t locks = semel__pg_add(&trip, d->standby ? &sql_lock_all : &sql_lock_open);
    put_row_keys(&trip, consumer, rows, n);
    size_t found = semel__pg_add(&trip, &sql_read);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_locked(&trip, locks, found, items, n, arena, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- fetch --------------------------------------------------------------------------------------- */

static void put_fetched(struct pg_trip *trip, const struct semel_fetch_batch *batch)
{
    semel__pg_text(trip, batch->consumer);
    semel__pg_array(trip, PG_TEXTS, batch->n_items);
    for (size_t i = 0; i < batch->n_items; i++)
        semel__pg_item_key(trip, batch->items[i].source);
    semel__pg_array_end(trip);
    semel__pg_array(trip, PG_TEXTS, batch->n_items);
    for (size_t i = 0; i < batch->n_items; i++)
        semel__pg_item_key(trip, batch->items[i].id);
    semel__pg_array_end(trip);
}

/* Does row *at of the result belong to item i? Then the next one is looked at from now on. */
static bool is_of(const PGresult *res, int *at, size_t i)
{
    bool is = *at < PQntuples(res) && semel__pg_get_int(res, *at, 0) == (int64_t)i + 1;
    *at += is;
    return is;
}

/* A row that was not locked is not there: it is somebody else's, or came after the lock. */
static semel_status read_fetched(const PGresult *locked, const PGresult *res, struct semel_fetch_batch *batch,
                                 struct semel_arena *arena, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    int row = 0, lock = 0;
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++) {
        struct semel_fetched *item = &batch->items[i];
        bool found = is_of(res, &row, i), held = is_of(locked, &lock, i);
        item->present = found && (held || !batch->impatient);
        item->damaged = false;
        if (item->present)
            status = read_row(res, row - 1, arena, &item->row, &item->damaged, &item->damage, err);
    }
    return status;
}

semel_status semel__pg_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                             struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    struct pg_key_trip keys;
    struct pg_business_trip business;
    size_t rows = 0, locks = 0;
    semel__pg_start(&trip, d, "reading the inbox");
    semel__pg_keys_add(&trip, batch->consumer, batch->keys, batch->n_keys, !batch->impatient, &keys);
    semel__pg_business_try(&trip, batch, &business);
    semel__pg_business_hold(&trip, batch);
    if (batch->n_items > 0) {
        put_fetched(&trip, batch);
        locks = semel__pg_add(&trip, batch->impatient ? &sql_lock_free : &sql_lock_all);
        put_fetched(&trip, batch);
        rows = semel__pg_add(&trip, &sql_read);
    }
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = semel__pg_keys_read(&trip, batch->keys, batch->n_keys, &keys, arena, err);
    if (status == SEMEL_OK)
        status = semel__pg_business_read(&trip, batch->business, batch->n_business, &business, arena, err);
    if (status == SEMEL_OK && batch->n_items > 0)
        status = read_fetched(trip.results[locks], trip.results[rows], batch, arena, err);
    semel__pg_end(&trip);
    return status;
}
