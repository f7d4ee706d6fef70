/* SPDX-License-Identifier: MIT
 *
 * pg_admit.c: admit and fetch: lock, insert first, read what was refused.
 *
 * One trip: the keys are locked and looked at, the business keys are taken, a number is drawn and all rows are inserted
 * by one statement, and then, in a statement of its own, the watermarks are read (P60). A second trip reads what the
 * insert refused: a row that was committed while the insert waited for it is in no snapshot but a later one (P12).
 *
 * A final row never changes, so it is not locked, which would be a write a duplicate. Where commits wait for a standby
 * all of them are locked: then our own COMMIT waits too, and nothing is acknowledged that only this server knows (P16).
 *
 * Invariants: the number is drawn while the keys are held; a row that was refused and is gone again, or came back, is
 * contention and not "new".
 */
#include "core/state.h"
#include "store/pg.h"

#define NOBODY UINT16_MAX

static const struct pg_sql sql_insert = {
    "semel_insert",
    "WITH drawn AS MATERIALIZED (SELECT nextval('semel.arrival') AS v) "
    "INSERT INTO semel.inbox (consumer, arrival, message_id, fingerprint, lease_token, source, type, status, attempts, "
    "attempts_before, replays, alone, order_key, version, message_time, received_at, updated_at, processed_at, due_at, "
    "lease_owner, lease_until, error_class, error_text, outcome, position, headers, payload, traceparent) "
    "SELECT $1::text, (SELECT v FROM drawn) * 16384 + b.place, b.message_id, b.fingerprint, "
    "CASE WHEN coalesce(b.status, $9::text) = 'processing' THEN nextval('semel.token') END, "
    "coalesce(b.source, $5::text), coalesce(b.type, $7::text), coalesce(b.status, $9::text), "
    "coalesce(b.attempts, $11::bigint)::integer, coalesce(b.attempts_before, $13::bigint)::integer, "
    "coalesce(b.replays, $15::bigint)::integer, coalesce(b.alone, $17::boolean), coalesce(b.order_key, $19::text), "
    "coalesce(b.version, $21::bigint), coalesce(b.message_time, $23::timestamptz), "
    "coalesce(b.received_at, $25::timestamptz), coalesce(b.updated_at, $27::timestamptz), "
    "coalesce(b.processed_at, $29::timestamptz), coalesce(b.due_at, $31::timestamptz), "
    "coalesce(b.lease_owner, $33::text), coalesce(b.lease_until, $35::timestamptz), "
    "coalesce(b.error_class, $37::text), coalesce(b.error_text, $39::text), coalesce(b.outcome, $41::text), "
    "coalesce(b.position, $43::text), coalesce(b.headers, $45::text), coalesce(b.payload, $47::bytea), "
    "coalesce(b.traceparent, $49::text) "
    "FROM unnest($2::bigint[], $3::text[], $4::bytea[], $6::text[], $8::text[], $10::text[], $12::bigint[], "
    "$14::bigint[], $16::bigint[], $18::boolean[], $20::text[], $22::bigint[], $24::timestamptz[], "
    "$26::timestamptz[], $28::timestamptz[], $30::timestamptz[], $32::timestamptz[], $34::text[], "
    "$36::timestamptz[], $38::text[], $40::text[], $42::text[], $44::text[], $46::text[], $48::bytea[], $50::text[]) "
    "WITH ORDINALITY AS b (place, message_id, fingerprint, source, type, status, attempts, attempts_before, replays, "
    "alone, order_key, version, message_time, received_at, updated_at, processed_at, due_at, lease_owner, lease_until, "
    "error_class, error_text, outcome, position, headers, payload, traceparent, n) ORDER BY b.n "
    "ON CONFLICT (consumer, source, message_id) DO NOTHING RETURNING arrival, lease_token"};

#define ROWS_OF "FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS b (source, id, n) CROSS JOIN LATERAL (SELECT "
#define ROW_OF_B "FROM semel.inbox WHERE consumer = $1::text AND source = b.source AND message_id = b.id "

static const struct pg_sql sql_lock_open = {"semel_lock_open", "SELECT b.n " ROWS_OF "arrival " ROW_OF_B "AND " PG_OPEN
                                                               " FOR UPDATE) AS i ORDER BY b.n"};
static const struct pg_sql sql_lock_all = {"semel_lock_all",
                                           "SELECT b.n " ROWS_OF "arrival " ROW_OF_B "FOR UPDATE) AS i ORDER BY b.n"};
static const struct pg_sql sql_read = {"semel_read", "SELECT b.n, " PG_COLUMNS("true") " " ROWS_OF "* " ROW_OF_B
                                                                                       "OFFSET 0) AS i ORDER BY b.n"};

#define MARKS                                                                                              \
    "SELECT b.n, w.watermark FROM unnest($2::text[]) WITH ORDINALITY AS b (source, n) CROSS JOIN LATERAL " \
    "(SELECT watermark FROM semel.watermark WHERE consumer = $1::text AND source = b.source "
static const struct pg_sql sql_watermarks = {"semel_watermarks", MARKS "OFFSET 0) AS w ORDER BY b.n"};
/* Above READ COMMITTED a watermark that was raised after our snapshot has to be noticed: both fail with 40001 then. */
static const struct pg_sql sql_watermarks_put = {
    "semel_watermarks_put",
    "INSERT INTO semel.watermark (consumer, source, watermark, updated_at) SELECT $1::text, b.source, '-infinity', "
    "$3::timestamptz FROM unnest($2::text[]) WITH ORDINALITY AS b (source, n) ORDER BY b.n "
    "ON CONFLICT (consumer, source) DO NOTHING"};
static const struct pg_sql sql_watermarks_share = {"semel_watermarks_share", MARKS "FOR SHARE) AS w ORDER BY b.n"};

/* ---- parameters of the insert -------------------------------------------------------------------- */

static struct semel_str kept_headers(const void *item)
{
    const struct semel_row *row = item;
    return row->kept ? row->headers : (struct semel_str){0};
}

static struct semel_str kept_payload(const void *item)
{
    const struct semel_row *row = item;
    if (!row->kept)
        return (struct semel_str){0};
    return semel__str_given(row->payload) ? row->payload : SEMEL_STR("");
}

static const struct semel_fp *fingerprint(const void *item)
{
    return &((const struct semel_row *)item)->fp;
}

#define FIELD(kind_, member)                                                   \
    {                                                                          \
        .kind = PG_FIELD_##kind_, .offset = offsetof(struct semel_row, member) \
    }
static const struct pg_column insert_columns[] = {
    FIELD(KEY, source),
    FIELD(TEXT, type),
    FIELD(STATE, live.state),
    FIELD(INT, live.attempts),
    FIELD(INT, live.attempts_before),
    FIELD(INT, live.replays),
    FIELD(BOOL, live.alone),
    FIELD(TEXT, order_key),
    FIELD(INT64, version),
    FIELD(TIME, message_time_us),
    FIELD(TIME, received_us),
    FIELD(TIME, updated_us),
    FIELD(TIME, live.processed_us),
    FIELD(TIME, live.due_us),
    FIELD(TEXT, live.lease_owner),
    FIELD(TIME, live.lease_until_us),
    FIELD(CLASS, live.error_class),
    FIELD(TEXT, live.error_text),
    FIELD(TEXT, live.outcome),
    FIELD(TEXT, position),
    {.kind = PG_FIELD_TEXT_OF, .get = kept_headers},
    {.kind = PG_FIELD_BYTES_OF, .get = kept_payload},
    FIELD(TEXT, traceparent),
};
static const struct pg_column id_column = FIELD(TEXT, id), source_column = FIELD(KEY, source);

static size_t add_insert(struct pg_trip *trip, const struct semel_admit_batch *batch, const void *const *rows)
{
    size_t n = batch->n_items;
    semel__pg_text(trip, batch->consumer);
    semel__pg_array(trip, PG_INTS, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_int(trip, (int64_t)batch->items[i].place);
    semel__pg_array_end(trip);
    semel__pg_array_of(trip, &id_column, rows, n);
    semel__pg_fingerprints(trip, fingerprint, rows, n);
    semel__pg_columns(trip, insert_columns, sizeof(insert_columns) / sizeof(insert_columns[0]), rows, n);
    return semel__pg_add(trip, &sql_insert);
}

/* ---- what was inserted --------------------------------------------------------------------------- */

static semel_status places_fit(const struct semel_admit_batch *batch, struct semel_error *err)
{
    for (size_t i = 0; i < batch->n_items; i++)
        if (batch->items[i].place >= PG_PLACES || batch->n_items >= PG_PLACES)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a batch has at most %d places", PG_PLACES);
    return SEMEL_OK;
}

/* The arrival says which item it was. */
static semel_status read_inserted(struct pg_store *d, const PGresult *res, struct semel_admit_batch *batch,
                                  struct semel_error *err)
{
    uint16_t at[PG_PLACES];
    memset(at, 0xff, sizeof(at));
    for (size_t i = 0; i < batch->n_items; i++) {
        struct semel_admit *item = &batch->items[i];
        at[item->place] = (uint16_t)i;
        item->inserted = item->damaged = false;
#ifdef SEMEL_MUTANT_NO_INSERT
        item->inserted = true;
        item->row.arrival = 1;
        if (item->row.live.state == SEMEL_STATE_PROCESSING)
            item->row.live.lease_token = 1;
#endif
    }
    for (int row = 0; row < PQntuples(res); row++) {
        int64_t arrival = semel__pg_get_int(res, row, 0);
        uint16_t i = arrival > 0 ? at[arrival % PG_PLACES] : NOBODY;
        if (i == NOBODY)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "damaged sequence semel.arrival: it must give numbers of 1 or more");
        batch->items[i].inserted = true;
        batch->items[i].row.arrival = arrival;
        if (batch->items[i].row.live.state == SEMEL_STATE_PROCESSING)
            batch->items[i].row.live.lease_token = semel__pg_get_int(res, row, 1);
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

/* ---- what was refused ---------------------------------------------------------------------------- */

static void put_row_keys(struct pg_trip *trip, struct semel_str consumer, const void *const *rows, size_t n)
{
    semel__pg_text(trip, consumer);
    semel__pg_array_of(trip, &source_column, rows, n);
    semel__pg_array_of(trip, &id_column, rows, n);
}

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

static semel_status read_refused(const struct pg_trip *trip, size_t locks, size_t rows, struct semel_admit **refused,
                                 size_t n, struct semel_arena *arena, struct semel_error *err)
{
    const PGresult *locked = trip->results[locks], *res = trip->results[rows];
    semel_status status = SEMEL_OK;
    int lock = 0;
    if (PQntuples(res) != (int)n)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a row of the inbox was deleted meanwhile");
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct semel_admit *item = refused[i];
        bool held = lock < PQntuples(locked) && semel__pg_get_int(locked, lock, 0) == (int64_t)i + 1;
        lock += held;
        status = read_row(res, (int)i, arena, &item->found, &item->damaged, &item->damage, err);
        if (status == SEMEL_OK && !held && !item->damaged && !semel__state_final(item->found.live.state))
            status = semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a row of the inbox was replaced meanwhile");
    }
    return status;
}

static semel_status refused_rows(struct pg_store *d, struct semel_admit_batch *batch, const void **rows,
                                 struct semel_admit **refused, struct semel_arena *arena, struct semel_error *err)
{
    struct pg_trip trip;
    size_t n = 0;
    for (size_t i = 0; i < batch->n_items; i++)
        if (!batch->items[i].inserted) {
            rows[n] = &batch->items[i].row;
            refused[n++] = &batch->items[i];
        }
    if (n == 0)
        return SEMEL_OK;
    semel__pg_start(&trip, d, "reading the inbox");
    put_row_keys(&trip, batch->consumer, rows, n);
    size_t locks = semel__pg_add(&trip, d->standby ? &sql_lock_all : &sql_lock_open);
    put_row_keys(&trip, batch->consumer, rows, n);
    size_t found = semel__pg_add(&trip, &sql_read);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_refused(&trip, locks, found, refused, n, arena, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- the two operations -------------------------------------------------------------------------- */

static semel_status first_trip(struct pg_store *d, struct semel_admit_batch *batch, const void *const *rows,
                               struct semel_arena *arena, struct semel_error *err)
{
    struct pg_trip trip;
    struct pg_key_trip keys;
    struct pg_business_trip business;
    size_t inserted = 0, watermarks = 0;
    semel__pg_start(&trip, d, "inserting into the inbox");
    semel__pg_keys_add(&trip, batch->consumer, batch->keys, batch->n_keys, &keys);
    semel__pg_business_add(&trip, batch, &business);
    if (batch->n_items > 0) {
        inserted = add_insert(&trip, batch, rows);
        watermarks = add_watermarks(&trip, batch);
    }
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = semel__pg_keys_read(&trip, batch->keys, batch->n_keys, &keys, err);
    if (status == SEMEL_OK)
        status = semel__pg_business_read(&trip, batch, &business, arena, err);
    if (status == SEMEL_OK && batch->n_items > 0) {
        status = read_inserted(d, trip.results[inserted], batch, err);
        read_watermarks(trip.results[watermarks], batch);
    }
    semel__pg_end(&trip);
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
    const void **rows = semel__calloc(batch->n_items + 1, sizeof(*rows));
    struct semel_admit **refused = semel__calloc(batch->n_items + 1, sizeof(struct semel_admit *));
    if (rows == NULL || refused == NULL)
        status = semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++)
        rows[i] = &batch->items[i].row;
    if (status == SEMEL_OK)
        status = first_trip(d, batch, rows, arena, err);
    if (status == SEMEL_OK)
        status = refused_rows(d, batch, rows, refused, arena, err);
    semel__free(rows);
    semel__free(refused);
    return status;
}

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

static semel_status read_fetched(const PGresult *res, struct semel_fetch_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    int row = 0;
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++) {
        struct semel_fetched *item = &batch->items[i];
        item->present = row < PQntuples(res) && semel__pg_get_int(res, row, 0) == (int64_t)i + 1;
        item->damaged = false;
        if (item->present)
            status = read_row(res, row++, arena, &item->row, &item->damaged, &item->damage, err);
    }
    return status;
}

semel_status semel__pg_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                             struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    struct pg_key_trip keys;
    size_t rows = 0;
    semel__pg_start(&trip, d, "reading the inbox");
    semel__pg_keys_add(&trip, batch->consumer, batch->keys, batch->n_keys, &keys);
    if (batch->n_items > 0) {
        put_fetched(&trip, batch);
        semel__pg_add(&trip, &sql_lock_all);
        put_fetched(&trip, batch);
        rows = semel__pg_add(&trip, &sql_read);
    }
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = semel__pg_keys_read(&trip, batch->keys, batch->n_keys, &keys, err);
    if (status == SEMEL_OK && batch->n_items > 0)
        status = read_fetched(trip.results[rows], batch, arena, err);
    semel__pg_end(&trip);
    return status;
}
