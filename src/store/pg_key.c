/* SPDX-License-Identifier: MIT
 *
 * pg_key.c: order keys and business keys: how they are locked, and what is read of them.
 *
 * An order key is a row. It is made where it is missing, then locked FOR UPDATE in the order of the keys; only a later
 * statement looks at the rows of the key, with a snapshot that is younger than the lock (P65). Above READ COMMITTED the
 * snapshot is older, but then the lock fails with 40001 if the key has changed since: every change of its unfinished
 * set changes the key's row.
 *
 * Invariants: rows are visited in the order of the array, which is sorted; what this transaction inserted is known by
 * the numbers that it drew, not by their size: another one may have drawn a higher one and committed earlier.
 */
#include "core/version.h"
#include "store/pg.h"

#define OF_KEY(alias) alias ".consumer = $1 AND " alias ".order_key = b.k "
#define NOT_OWN(alias) "AND NOT (" alias ".arrival / 16384 = ANY ($4::bigint[])) "
#define IN_ORDER(alias) "AND " PG_IN_ORDER(alias) " "
#define UNFINISHED(alias) "AND " alias "." PG_UNFINISHED " "

static const struct sql_text sql_put = {
    "semel_key_put",
    "INSERT INTO semel.order_key (consumer, order_key) SELECT $1::text, b.k FROM pg_catalog.unnest($2::text[]) "
    "WITH ORDINALITY AS b (k, n) ORDER BY b.n ON CONFLICT (consumer, order_key) DO NOTHING"};

#define LOCK(how)                                                                                           \
    "SELECT b.n, o.last_version, o.skipped FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS b (k, n) " \
    "CROSS JOIN LATERAL (SELECT last_version, skipped FROM semel.order_key WHERE consumer = $1::text "      \
    "AND order_key = b.k " how ") AS o ORDER BY b.n"
static const struct sql_text sql_lock = {"semel_key_lock", LOCK("FOR UPDATE")};
static const struct sql_text sql_lock_free = {"semel_key_lock_free", LOCK("FOR UPDATE SKIP LOCKED")};
/* For an operator's role, which has the keys locked by sql_put already. */
static const struct sql_text sql_locked = {"semel_key_locked", LOCK("OFFSET 0")};

static const struct sql_text sql_facts = {
    "semel_key_facts",
    "SELECT b.n, (SELECT pg_catalog.count(*) FROM (SELECT 1 FROM semel.inbox AS w WHERE " OF_KEY("w") NOT_OWN(
        "w") "AND w.status = 'waiting' AND w.error_class IS DISTINCT FROM 'business_duplicate' LIMIT 100000) AS p), "
             "EXISTS (SELECT 1 FROM semel.inbox AS o WHERE " OF_KEY("o") NOT_OWN("o") UNFINISHED(
                 "o") "AND o.status IN ('processing', 'unknown')), h.arrival, h.version "
                      "FROM unnest($2::text[], $3::boolean[]) WITH ORDINALITY AS b (k, by_version, n) LEFT JOIN "
                      "LATERAL ("
                      "(SELECT a.arrival, a.version FROM semel.inbox AS a WHERE " OF_KEY("a") NOT_OWN("a")
                          IN_ORDER("a") "AND NOT b.by_version ORDER BY a.arrival LIMIT 1) UNION ALL "
                                        "(SELECT v.arrival, v.version FROM semel.inbox AS v WHERE " OF_KEY("v")
                                            NOT_OWN("v")
                                                IN_ORDER("v") "AND b.by_version ORDER BY v.version NULLS FIRST, "
                                                              "v.arrival LIMIT 1)) AS h ON true ORDER BY b.n"};

static void put_keys(struct pg_trip *trip, const struct semel_key *keys, size_t n)
{
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_key(trip, keys[i].key);
    semel__pg_array_end(trip);
}

static void add_facts(struct pg_trip *trip, struct semel_str consumer, const struct semel_key *keys, size_t n,
                      struct pg_key_trip *at)
{
    const struct pg_store *d = trip->d;
    semel__pg_text(trip, consumer);
    put_keys(trip, keys, n);
    semel__pg_array(trip, PG_BOOLS, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_bool(trip, keys[i].by_version);
    semel__pg_array_end(trip);
    semel__pg_array(trip, PG_INTS, d->n_draws);
    for (size_t i = 0; i < d->n_draws; i++)
        semel__pg_item_int(trip, d->draws[i]);
    semel__pg_array_end(trip);
    at->facts = semel__pg_add(trip, &sql_facts);
}

void semel__pg_keys_add(struct pg_trip *trip, struct semel_str consumer, const struct semel_key *keys, size_t n,
                        bool patient, struct pg_key_trip *at)
{
    *at = (struct pg_key_trip){.patient = patient};
    if (n == 0)
        return;
    if (patient) { /* a row in the order has its key, and an insert would wait for that of another one */
        semel__pg_text(trip, consumer);
        put_keys(trip, keys, n);
        semel__pg_add(trip, &sql_put);
    }
    semel__pg_text(trip, consumer);
    put_keys(trip, keys, n);
    at->locks = semel__pg_add(trip, !patient ? &sql_lock_free : trip->d->sql.by_operator ? &sql_locked : &sql_lock);
    add_facts(trip, consumer, keys, n, at);
}

/* From a cell of bigint[]. INVALID, BROKEN: they are damaged. */
static semel_status read_skipped(const PGresult *res, int row, int col, struct semel_arena *arena,
                                 struct semel_key *key, struct semel_error *err)
{
    const int64_t *list = NULL;
    size_t n = 0;
    key->skipped = NULL;
    key->n_skipped = 0;
    semel_status status = semel__pg_get_ints(res, row, col, SEMEL_SKIPPED_MAX, arena, &list, &n, err);
    if (status == SEMEL_INVALID)
        return semel__version_damaged(err);
    key->skipped = list;
    key->n_skipped = n;
    return status;
}

semel_status semel__pg_keys_read(const struct pg_trip *trip, struct semel_key *keys, size_t n,
                                 const struct pg_key_trip *at, struct semel_arena *arena, struct semel_error *err)
{
    if (n == 0)
        return SEMEL_OK;
    const PGresult *locks = trip->results[at->locks], *facts = trip->results[at->facts];
    int lock = 0;
    if ((at->patient && PQntuples(locks) != (int)n) || PQntuples(facts) != (int)n) /* it was purged: look again */
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "an order key was deleted meanwhile");
    for (size_t i = 0; i < n; i++) {
        int row = (int)i;
        semel_status status = SEMEL_OK;
        keys[i].busy = lock >= PQntuples(locks) || semel__pg_get_int(locks, lock, 0) != (int64_t)i + 1;
        keys[i].last_version = keys[i].busy ? SEMEL_NONE : semel__pg_get_int(locks, lock, 1);
        if (!keys[i].busy)
            status = read_skipped(locks, lock++, 2, arena, &keys[i], err);
        keys[i].damaged = status == SEMEL_INVALID;
        keys[i].parked = semel__pg_get_int(facts, row, 1);
        keys[i].open = semel__pg_get_bool(facts, row, 2);
        keys[i].head_arrival = semel__pg_get_int(facts, row, 3);
        keys[i].head_version = semel__pg_get_int(facts, row, 4);
        if (status != SEMEL_OK && !keys[i].damaged)
            return status;
    }
    return SEMEL_OK;
}

/* ---- business keys ------------------------------------------------------------------------------- */

static const struct sql_text sql_take = {
    "semel_business_take",
    "INSERT INTO semel.business_key AS t (consumer, business_key, source, message_id, taken_at, expires_at) "
    "SELECT $1::text, b.k, b.source, b.id, $2::timestamptz, b.expires_at "
    "FROM unnest($3::text[], $4::text[], $5::text[], $6::timestamptz[]) "
    "WITH ORDINALITY AS b (k, source, id, expires_at, n) ORDER BY b.n "
    "ON CONFLICT (consumer, business_key) DO UPDATE SET source = excluded.source, message_id = excluded.message_id, "
    "taken_at = excluded.taken_at, expires_at = excluded.expires_at WHERE t.expires_at <= excluded.taken_at "
    "RETURNING t.business_key"};

static const struct sql_text sql_holders = {
    "semel_business_holders",
    "SELECT b.n, h.source, h.message_id, CASE WHEN h.other THEN EXISTS (SELECT 1 FROM semel.inbox AS i WHERE "
    "i.consumer "
    "= $1 AND i.source = h.source AND i.message_id = h.message_id AND i." PG_UNFINISHED ") END, CASE WHEN h.other THEN "
    "(SELECT pg_catalog.count(*) FROM (SELECT 1 FROM semel.business_want AS w WHERE w.consumer = $1 AND w.business_key "
    "= b.k LIMIT 100000) AS c) END FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS b (k, "
    "source, id, n) LEFT JOIN LATERAL (SELECT t.source, t.message_id, t.source <> b.source OR t.message_id <> b.id AS "
    "other FROM semel.business_key AS t WHERE t.consumer = $1::text AND t.business_key = b.k OFFSET 0) AS h "
    "ON true ORDER BY b.n"};
/* Whoever is taking a key at the moment is not waited for. */
static const struct sql_text sql_impatient = {
    "semel_impatient", "SELECT pg_catalog.set_config('semel.patience'::text, pg_catalog.current_setting("
                       "'lock_timeout'::text), true), pg_catalog.set_config('lock_timeout'::text, '20'::text, true)"};
static const struct sql_text sql_patient = {
    "semel_patient", "SELECT pg_catalog.set_config('lock_timeout'::text, pg_catalog.current_setting("
                     "'semel.patience'::text), true)"};
/* Before the rows: the order of locks. */
static const struct sql_text sql_hold = {
    "semel_business_lock",
    "SELECT k.business_key FROM unnest($2::text[], $3::text[]) AS b (source, id) JOIN "
    "semel.business_key AS k ON k.consumer = $1::text AND k.source = b.source AND k.message_id = "
    "b.id ORDER BY k.business_key FOR UPDATE OF k"};

static const struct pg_column business_columns[] = {
    {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_business, key)},
    {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_business, source)},
    {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_business, id)},
    {.kind = PG_FIELD_TIME, .offset = offsetof(struct semel_business, expires_us)},
};

void semel__pg_business_add(struct pg_trip *trip, struct semel_str consumer, int64_t now_us,
                            const struct semel_business *business, size_t n, struct pg_business_trip *at)
{
    *at = (struct pg_business_trip){0};
    if (n == 0)
        return;
    const void **items = semel__calloc(n, sizeof(*items));
    if (items == NULL) {
        trip->status = semel__fail_memory(&trip->err);
        return;
    }
    for (size_t i = 0; i < n; i++)
        items[i] = &business[i];
    semel__pg_text(trip, consumer);
    semel__pg_time(trip, now_us);
    for (size_t i = 0; i < sizeof(business_columns) / sizeof(business_columns[0]); i++)
        semel__pg_array_of(trip, &business_columns[i], items, n);
    at->taken = semel__pg_add(trip, &sql_take);
    semel__pg_text(trip, consumer);
    for (size_t i = 0; i < 3; i++)
        semel__pg_array_of(trip, &business_columns[i], items, n);
    at->holders = semel__pg_add(trip, &sql_holders);
    semel__free(items);
}

void semel__pg_patience(struct pg_trip *trip, bool patient)
{
    semel__pg_add(trip, patient ? &sql_patient : &sql_impatient);
}

void semel__pg_business_try(struct pg_trip *trip, const struct semel_fetch_batch *batch, struct pg_business_trip *at)
{
    if (batch->n_business > 0)
        semel__pg_patience(trip, false);
    semel__pg_business_add(trip, batch->consumer, batch->now_us, batch->business, batch->n_business, at);
    if (batch->n_business > 0)
        semel__pg_patience(trip, true);
}

void semel__pg_business_lock(struct pg_trip *trip)
{
    semel__pg_add(trip, &sql_hold);
}

void semel__pg_business_hold(struct pg_trip *trip, const struct semel_fetch_batch *batch)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_items; i++)
        n += batch->items[i].frees;
    if (n == 0)
        return;
    semel__pg_text(trip, batch->consumer);
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < batch->n_items; i++)
        if (batch->items[i].frees)
            semel__pg_item_key(trip, batch->items[i].source);
    semel__pg_array_end(trip);
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < batch->n_items; i++)
        if (batch->items[i].frees)
            semel__pg_item_key(trip, batch->items[i].id);
    semel__pg_array_end(trip);
    semel__pg_business_lock(trip);
}

static struct semel_business *find(struct semel_business *business, size_t n, struct semel_str key)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = semel__str_cmp(business[middle].key, key);
        if (c == 0)
            return &business[middle];
        if (c < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static semel_status holder(const PGresult *res, int row, struct semel_business *b, struct semel_arena *arena,
                           struct semel_error *err)
{
    if (b->inserted)
        return SEMEL_OK;
    if (PQgetisnull(res, row, 1))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a business key was released meanwhile");
    semel_status status = semel__pg_copy(res, row, 1, SEMEL_ID_MAX, arena, &b->held_source, err);
    if (status == SEMEL_OK)
        status = semel__pg_copy(res, row, 2, SEMEL_ID_MAX, arena, &b->held_id, err);
    struct semel_str source = semel__str_given(b->source) ? b->source : SEMEL_STR("");
    b->taken = !semel__str_eq(b->held_source, source) || !semel__str_eq(b->held_id, b->id);
    b->unfinished = b->taken && semel__pg_get_bool(res, row, 3);
    b->wanted = b->taken ? semel__pg_get_int(res, row, 4) : 0;
    return status;
}

semel_status semel__pg_business_read(const struct pg_trip *trip, struct semel_business *business, size_t n,
                                     const struct pg_business_trip *at, struct semel_arena *arena,
                                     struct semel_error *err)
{
    if (n == 0)
        return SEMEL_OK;
    const PGresult *taken = trip->results[at->taken], *holders = trip->results[at->holders];
    for (size_t i = 0; i < n; i++) {
        business[i].taken = business[i].inserted = business[i].unfinished = false;
        business[i].held_source = business[i].held_id = (struct semel_str){0};
        business[i].wanted = 0;
    }
    for (int row = 0; row < PQntuples(taken); row++) {
        struct semel_business *b = find(business, n, semel__pg_get_text(taken, row, 0));
        if (b != NULL)
            b->inserted = true;
    }
    if (PQntuples(holders) != (int)n)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "reading business keys: a row is missing");
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = holder(holders, (int)i, &business[i], arena, err);
    return status;
}
