/* SPDX-License-Identifier: MIT
 *
 * pg_settle.c: settle: what rows and keys become, and the evidence; one trip.
 *
 * Invariants: a change applies only to a row that still is what core saw (status and, where given, fencing token); one
 * that does not apply has no side effects, which is why its attempt and the release of its business keys are parts of
 * the same statement. A key's row changes with every change of its unfinished set. Keys are woken after all rows have
 * changed. The rows are locked since admit or fetch, so that the order of updates cannot deadlock.
 */
#include "core/version.h"
#include "store/pg.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- rows ---------------------------------------------------------------------------------------- */

#define RELEASED                                                                          \
    "released AS (DELETE FROM semel.business_key AS k USING done WHERE done.release AND " \
    "k.consumer = $1 AND k.source = done.source AND k.message_id = done.message_id) "

static const struct sql_text sql_update = {
    "semel_update",
    "WITH done AS (UPDATE semel.inbox AS t SET status = coalesce(b.status, $11::text), "
    "attempts = coalesce(b.attempts, $13::bigint)::integer, "
    "attempts_before = coalesce(b.attempts_before, $15::bigint)::integer, "
    "retries = coalesce(b.retries, $17::bigint)::integer, alone = coalesce(b.alone, $19::boolean), "
    "due_at = coalesce(b.due_at, $21::timestamptz), processed_at = coalesce(b.processed_at, $23::timestamptz), "
    "lease_owner = coalesce(b.lease_owner, $25::text), lease_until = coalesce(b.lease_until, $27::timestamptz), "
    "lease_token = coalesce(b.lease_token, $29::bigint), updated_at = coalesce(b.updated_at, $31::timestamptz), "
    "error_class = coalesce(b.error_class, $33::text), "
    "error_text = coalesce(b.error_text, $35::text), outcome = coalesce(b.outcome, $37::text), "
    "headers = CASE WHEN coalesce(b.touch, $39::boolean) THEN coalesce(b.headers, $41::text) ELSE t.headers END, "
    "payload = CASE WHEN coalesce(b.touch, $39::boolean) THEN coalesce(b.payload, $43::bytea) ELSE t.payload END, "
    "fingerprint = coalesce(t.fingerprint, b.fingerprint, $49::bytea) "
    "FROM unnest($4::text[], $6::text[], $8::text[], $10::bigint[], $12::text[], $14::bigint[], $16::bigint[], "
    "$18::bigint[], $20::boolean[], $22::timestamptz[], $24::timestamptz[], $26::text[], $28::timestamptz[], "
    "$30::bigint[], $32::timestamptz[], $34::text[], $36::text[], $38::text[], $40::boolean[], $42::text[], "
    "$44::bytea[], $46::boolean[], $48::boolean[], $50::bytea[]) WITH ORDINALITY AS b (id, source, was, token, status, "
    "attempts, "
    "attempts_before, retries, alone, due_at, processed_at, lease_owner, lease_until, lease_token, updated_at, "
    "error_class, error_text, outcome, touch, headers, payload, logged, release, fingerprint, n) "
    "WHERE t.consumer = $1::text AND t.source = coalesce(b.source, $5::text) AND t.message_id = b.id "
    "AND t.status = coalesce(b.was, $7::text) AND (coalesce(b.token, $9::bigint) IS NULL "
    "OR t.lease_token = coalesce(b.token, $9::bigint)) "
    "RETURNING b.n, t.source, t.message_id, t.attempts, t.error_class, t.error_text, "
    "coalesce(b.logged, $45::boolean) AS logged, coalesce(b.release, $47::boolean) AS release), "
    "logged AS (INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text) "
    "SELECT $1, done.source, done.message_id, done.attempts, $3::timestamptz, $2::text, done.error_class, "
    "done.error_text FROM done WHERE done.logged ORDER BY done.n), " RELEASED "SELECT n FROM done"};

static const struct sql_text sql_remove = {
    "semel_remove",
    "WITH done AS (DELETE FROM semel.inbox AS t USING unnest($2::text[], $3::text[], $4::text[], $5::boolean[]) "
    "WITH ORDINALITY AS b (source, id, was, release, n) WHERE t.consumer = $1::text AND t.source = b.source "
    "AND t.message_id = b.id AND t.status = b.was RETURNING b.n, t.source, t.message_id, b.release), " RELEASED
    "SELECT n FROM done"};

static int64_t wanted_token(const struct semel_change *change)
{
#ifdef SEMEL_MUTANT_NO_TOKEN
    (void)change;
    return SEMEL_NONE;
#else
    return change->token;
#endif
}

static struct semel_str put_headers(const void *item)
{
    const struct semel_change *change = item;
    return change->payload == SEMEL_PAYLOAD_PUT ? change->put->headers : (struct semel_str){0};
}

static struct semel_str put_payload(const void *item)
{
    const struct semel_change *change = item;
    if (change->payload != SEMEL_PAYLOAD_PUT)
        return (struct semel_str){0};
    return semel__str_given(change->put->payload) ? change->put->payload : SEMEL_STR("");
}

/* What is not a field of the change as it stands. */
struct derived {
    int64_t token;
    bool touch;
    size_t fp_n; /* 0: none is put */
    unsigned char fp[1 + SEMEL_FP_MAX];
};

static struct semel_str put_fingerprint(const void *item)
{
    const struct derived *derived = item;
    return (struct semel_str){derived->fp_n > 0 ? (const char *)derived->fp : NULL, derived->fp_n};
}

#define FIELD(kind_, member)                                                      \
    {                                                                             \
        .kind = PG_FIELD_##kind_, .offset = offsetof(struct semel_change, member) \
    }
static const struct pg_column id_column = FIELD(TEXT, id), source_column = FIELD(KEY, source),
                              from_column = FIELD(STATE, from), release_column = FIELD(BOOL, release_business);
static const struct pg_column token_column = {.kind = PG_FIELD_INT64, .offset = offsetof(struct derived, token)};
static const struct pg_column touch_column = {.kind = PG_FIELD_BOOL, .offset = offsetof(struct derived, touch)};
static const struct pg_column fp_column = {.kind = PG_FIELD_BYTES_OF, .get = put_fingerprint};
static const struct pg_column live_columns[] = {
    FIELD(STATE, live.state),       FIELD(INT, live.attempts),     FIELD(INT, live.attempts_before),
    FIELD(INT, live.retries),       FIELD(BOOL, live.alone),       FIELD(TIME, live.due_us),
    FIELD(TIME, live.processed_us), FIELD(TEXT, live.lease_owner), FIELD(TIME, live.lease_until_us),
    FIELD(INT64, live.lease_token), FIELD(TIME, updated_us),       FIELD(CLASS, live.error_class),
    FIELD(TEXT, live.error_text),   FIELD(TEXT, live.outcome),
};
static const struct pg_column payload_columns[] = {
    {.kind = PG_FIELD_TEXT_OF, .get = put_headers},
    {.kind = PG_FIELD_BYTES_OF, .get = put_payload},
    FIELD(BOOL, log_attempt),
    FIELD(BOOL, release_business),
};

/* The changes of a batch, apart: what is updated, and what is taken away again. */
struct parts {
    const void **updates, **removes, **derived;
    struct derived *values;
    size_t n_updates, n_removes;
    size_t at_updates, at_removes;
};

static semel_status part(struct parts *p, const struct semel_settle_batch *batch, struct semel_error *err)
{
    size_t n = batch->n_changes;
    *p = (struct parts){0};
    p->updates = semel__calloc(n + 1, sizeof(*p->updates));
    p->removes = semel__calloc(n + 1, sizeof(*p->removes));
    p->derived = semel__calloc(n + 1, sizeof(*p->derived));
    p->values = semel__calloc(n + 1, sizeof(*p->values));
    if (p->updates == NULL || p->removes == NULL || p->derived == NULL || p->values == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        const struct semel_change *change = &batch->changes[i];
        if (change->remove) {
            p->removes[p->n_removes++] = change;
            continue;
        }
        p->values[p->n_updates] = (struct derived){.token = wanted_token(change),
                                                   .touch = change->payload != SEMEL_PAYLOAD_AS_IS};
        if (change->payload == SEMEL_PAYLOAD_PUT)
            p->values[p->n_updates].fp_n = semel__fp_encode(&change->put->fp, p->values[p->n_updates].fp);
        p->derived[p->n_updates] = &p->values[p->n_updates];
        p->updates[p->n_updates++] = change;
    }
    return SEMEL_OK;
}

static void free_parts(struct parts *p)
{
    semel__free(p->updates);
    semel__free(p->removes);
    semel__free(p->derived);
    semel__free(p->values);
}

static void add_updates(struct pg_trip *trip, const struct semel_settle_batch *batch, struct parts *p)
{
    size_t n = p->n_updates;
    if (n == 0)
        return;
    semel__pg_text(trip, batch->consumer);
    semel__pg_text(trip, batch->worker);
    semel__pg_time(trip, batch->now_us);
    semel__pg_array_of(trip, &id_column, p->updates, n);
    semel__pg_columns(trip, &source_column, 1, p->updates, n);
    semel__pg_columns(trip, &from_column, 1, p->updates, n);
    semel__pg_columns(trip, &token_column, 1, p->derived, n);
    semel__pg_columns(trip, live_columns, COUNT(live_columns), p->updates, n);
    semel__pg_columns(trip, &touch_column, 1, p->derived, n);
    semel__pg_columns(trip, payload_columns, COUNT(payload_columns), p->updates, n);
    semel__pg_columns(trip, &fp_column, 1, p->derived, n);
    p->at_updates = semel__pg_add(trip, &sql_update);
}

static void add_removes(struct pg_trip *trip, const struct semel_settle_batch *batch, struct parts *p)
{
    size_t n = p->n_removes;
    if (n == 0)
        return;
    semel__pg_text(trip, batch->consumer);
    semel__pg_array_of(trip, &source_column, p->removes, n);
    semel__pg_array_of(trip, &id_column, p->removes, n);
    semel__pg_array_of(trip, &from_column, p->removes, n);
    semel__pg_array_of(trip, &release_column, p->removes, n);
    p->at_removes = semel__pg_add(trip, &sql_remove);
}

/* RETURNING names the ones that applied (P7). */
static void read_applied(const PGresult *res, const void **changes, size_t n)
{
    for (int row = 0; row < PQntuples(res); row++) {
        int64_t at = semel__pg_get_int(res, row, 0);
        if (at < 1 || (size_t)at > n)
            continue;
        struct semel_change *change = (struct semel_change *)
            changes[at - 1]; /* the batch's own, which is ours to fill */
        change->applied = true;
    }
}

/* ---- evidence ------------------------------------------------------------------------------------ */

static const struct sql_text sql_drop = {
    "semel_business_drop", "DELETE FROM semel.business_key AS k USING unnest($2::text[], $3::text[], $4::text[]) "
                           "AS b (k, source, id) WHERE k.consumer = $1::text AND k.business_key = b.k "
                           "AND k.source = b.source AND k.message_id = b.id"};
/* The same one may come twice in a batch, which one INSERT cannot meet twice: they are counted first. */
static const struct sql_text sql_conflict = {
    "semel_conflict",
    "INSERT INTO semel.conflict AS c (consumer, source, message_id, fingerprint, count, first_at, last_at, type, "
    "position, headers, payload, traceparent) SELECT DISTINCT ON (b.source, b.id, b.fp) $1::text, b.source, b.id, "
    "b.fp, pg_catalog.count(*) OVER (PARTITION BY b.source, b.id, b.fp), $2::timestamptz, $2, b.type, b.position, "
    "b.headers, "
    "b.payload, b.traceparent FROM unnest($3::text[] COLLATE \"C\", $4::text[] COLLATE \"C\", $5::bytea[], $6::text[], "
    "$7::text[], $8::text[], $9::bytea[], $10::text[]) "
    "AS b (source, id, fp, type, position, headers, payload, traceparent) ORDER BY b.source, b.id, b.fp "
    "ON CONFLICT (consumer, source, message_id, fingerprint) DO UPDATE SET count = c.count + excluded.count, "
    "last_at = excluded.last_at"};
static const struct sql_text sql_conflict_bound = {
    "semel_conflict_bound",
    "DELETE FROM semel.conflict WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM (SELECT DISTINCT s, i FROM "
    "unnest($2::text[] COLLATE \"C\", $3::text[] COLLATE \"C\") AS u (s, i)) AS b CROSS JOIN LATERAL (SELECT ctid "
    "FROM semel.conflict WHERE consumer = $1::text AND source = b.s AND message_id = b.i ORDER BY last_at DESC "
    "OFFSET $4::bigint) AS o))"};
static const struct sql_text sql_note = {
    "semel_note", "INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_class, "
                  "error_text) SELECT $1::text, b.source, b.id, b.attempt, $2::timestamptz, $3::text, b.class, b.text "
                  "FROM unnest($4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[]) "
                  "WITH ORDINALITY AS b (source, id, attempt, class, text, n) ORDER BY b.n"};

/* Pointers to n items that lie one behind the other. NULL: no memory, and the trip knows. */
static const void **pointers(struct pg_trip *trip, const void *items, size_t size, size_t n)
{
    const void **list = semel__calloc(n, sizeof(*list));
    if (list == NULL && trip->status == SEMEL_OK)
        trip->status = semel__fail_memory(&trip->err);
    for (size_t i = 0; list != NULL && i < n; i++)
        list[i] = (const char *)items + i * size;
    return list;
}

static void arrays(struct pg_trip *trip, const struct pg_column *columns, size_t n_columns, const void *const *items,
                   size_t n)
{
    for (size_t i = 0; i < n_columns; i++)
        semel__pg_array_of(trip, &columns[i], items, n);
}

static void add_drops(struct pg_trip *trip, const struct semel_settle_batch *batch)
{
    static const struct pg_column columns[] = {
        {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_business, key)},
        {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_business, source)},
        {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_business, id)},
    };
    const void **items = batch->n_drop > 0 ? pointers(trip, batch->drop, sizeof(*batch->drop), batch->n_drop) : NULL;
    if (items == NULL)
        return;
    semel__pg_text(trip, batch->consumer);
    arrays(trip, columns, COUNT(columns), items, batch->n_drop);
    semel__pg_add(trip, &sql_drop);
    semel__free(items);
}

static const struct semel_fp *msg_fingerprint(const void *item)
{
    return &((const struct semel__msg *)item)->fp;
}

static struct semel_str msg_payload(const void *item)
{
    return ((const struct semel__msg *)item)->payload;
}

static void add_conflicts(struct pg_trip *trip, const struct semel_settle_batch *batch)
{
#define MSG(kind_, member)                                                      \
    {                                                                           \
        .kind = PG_FIELD_##kind_, .offset = offsetof(struct semel__msg, member) \
    }
    static const struct pg_column keys[] = {MSG(KEY, source), MSG(KEY, id)};
    static const struct pg_column rest[] = {MSG(TEXT, type),
                                            MSG(TEXT, position),
                                            MSG(TEXT, headers),
                                            {.kind = PG_FIELD_BYTES_OF, .get = msg_payload},
                                            MSG(TEXT, traceparent)};
    size_t n = batch->n_conflicts;
    const void **items = n > 0 ? pointers(trip, batch->conflicts, sizeof(*batch->conflicts), n) : NULL;
    if (items == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        items[i] = batch->conflicts[i].msg;
    semel__pg_text(trip, batch->consumer);
    semel__pg_time(trip, batch->now_us);
    arrays(trip, keys, COUNT(keys), items, n);
    semel__pg_fingerprints(trip, msg_fingerprint, items, n);
    arrays(trip, rest, COUNT(rest), items, n);
    semel__pg_add(trip, &sql_conflict);
    semel__pg_text(trip, batch->consumer);
    arrays(trip, keys, COUNT(keys), items, n);
    semel__pg_int(trip, SEMEL_CONFLICTS_MAX);
    semel__pg_add(trip, &sql_conflict_bound);
    semel__free(items);
}

static void add_notes(struct pg_trip *trip, const struct semel_settle_batch *batch)
{
#define NOTE(kind_, member)                                                     \
    {                                                                           \
        .kind = PG_FIELD_##kind_, .offset = offsetof(struct semel_note, member) \
    }
    static const struct pg_column columns[] = {NOTE(KEY, source), NOTE(KEY, id), NOTE(INT, attempt), NOTE(CLASS, cls),
                                               NOTE(TEXT, text)};
    size_t n = batch->n_notes;
    const void **items = n > 0 ? pointers(trip, batch->notes, sizeof(*batch->notes), n) : NULL;
    if (items == NULL)
        return;
    semel__pg_text(trip, batch->consumer);
    semel__pg_time(trip, batch->now_us);
    semel__pg_text(trip, batch->worker);
    arrays(trip, columns, COUNT(columns), items, n);
    semel__pg_add(trip, &sql_note);
    semel__free(items);
}

/* ---- business keys ------------------------------------------------------------------------------- */

/* Those that wait for a key of these messages look at once. Nobody is waited for: they look by themselves later. */
static const struct sql_text sql_waiters = {
    "semel_waiters_due",
    "UPDATE semel.inbox AS t SET due_at = $2::timestamptz, updated_at = CASE WHEN t.updated_at > $2 THEN t.updated_at "
    "+ interval '1 microsecond' ELSE $2 END WHERE t.ctid = ANY (ARRAY(SELECT i.ctid "
    "FROM unnest($3::text[], $4::text[]) AS b (source, id) JOIN semel.business_key AS k ON k.consumer = "
    "$1::text AND k.source = b.source AND k.message_id = b.id JOIN semel.business_want AS w ON w.consumer = k.consumer "
    "AND w.business_key = k.business_key JOIN semel.inbox AS i ON i.consumer = w.consumer AND i.source = w.source AND "
    "i.message_id = w.message_id WHERE i.status = 'waiting' AND i.error_class = 'business_duplicate' "
    "FOR UPDATE OF i SKIP LOCKED))"};
static const struct sql_text sql_want = {
    "semel_want", "INSERT INTO semel.business_want (consumer, business_key, source, message_id) SELECT $1::text, b.k, "
                  "b.source, b.id FROM unnest($2::text[], $3::text[], $4::text[]) AS b (k, source, id) "
                  "ON CONFLICT DO NOTHING"};
static const struct sql_text sql_want_held = {
    "semel_want_held",
    "INSERT INTO semel.business_want (consumer, business_key, source, message_id) SELECT k.consumer, "
    "k.business_key, k.source, k.message_id FROM unnest($2::text[], $3::text[]) AS b (source, id) "
    "JOIN semel.business_key AS k ON k.consumer = $1::text AND k.source = b.source AND "
    "k.message_id = b.id ON CONFLICT DO NOTHING"};
static const struct sql_text sql_grant = {
    "semel_want_grant",
    "DELETE FROM semel.business_want AS w USING unnest($2::text[], $3::text[]) "
    "AS b (source, id) WHERE w.consumer = $1::text AND w.source = b.source AND w.message_id = b.id"};
static const struct sql_text sql_until = {
    "semel_business_until", "UPDATE semel.business_key AS k SET expires_at = b.until FROM unnest($2::text[], "
                            "$3::text[], $4::timestamptz[]) AS b (source, id, until) WHERE k.consumer = $1::text "
                            "AND k.source = b.source AND k.message_id = b.id AND k.expires_at IS DISTINCT FROM "
                            "b.until"};

#define WANT(member)                                                        \
    {                                                                       \
        .kind = PG_FIELD_KEY, .offset = offsetof(struct semel_want, member) \
    }
#define HOLD(kind_, member)                                                     \
    {                                                                           \
        .kind = PG_FIELD_##kind_, .offset = offsetof(struct semel_hold, member) \
    }

/* Before the rows change. Whether any key is freed. */
static bool add_freed(struct pg_trip *trip, const struct semel_settle_batch *batch)
{
    size_t n = 0, wish = 0;
    const void **items = batch->n_changes > 0
                             ? pointers(trip, batch->changes, sizeof(*batch->changes), batch->n_changes)
                             : NULL;
    for (size_t i = 0; items != NULL && i < batch->n_changes; i++)
        if (batch->changes[i].release_business)
            items[n++] = &batch->changes[i];
    if (n > 0 && batch->impatient)
        semel__pg_patience(trip, false);
    if (n > 0) {
        semel__pg_text(trip, batch->consumer);
        semel__pg_time(trip, batch->now_us);
        semel__pg_array_of(trip, &source_column, items, n);
        semel__pg_array_of(trip, &id_column, items, n);
        semel__pg_add(trip, &sql_waiters);
    }
    for (size_t i = 0; i < n; i++)
        if (((const struct semel_change *)items[i])->wish_business)
            items[wish++] = items[i];
    if (wish > 0) {
        semel__pg_text(trip, batch->consumer);
        semel__pg_array_of(trip, &source_column, items, wish);
        semel__pg_array_of(trip, &id_column, items, wish);
        semel__pg_add(trip, &sql_want_held);
    }
    semel__free(items);
    return n > 0;
}

static void add_list(struct pg_trip *trip, struct semel_str consumer, const struct sql_text *sql,
                     const struct pg_column *columns, size_t n_columns, const void *list, size_t size, size_t n)
{
    const void **items = n > 0 ? pointers(trip, list, size, n) : NULL;
    if (items == NULL)
        return;
    semel__pg_text(trip, consumer);
    arrays(trip, columns, n_columns, items, n);
    semel__pg_add(trip, sql);
    semel__free(items);
}

static void add_business(struct pg_trip *trip, const struct semel_settle_batch *batch)
{
    static const struct pg_column message[] = {WANT(source), WANT(id)}, want[] = {WANT(key), WANT(source), WANT(id)},
                                  hold[] = {HOLD(KEY, source), HOLD(KEY, id), HOLD(TIME, until_us)};
    add_list(trip, batch->consumer, &sql_grant, message, COUNT(message), batch->granted, sizeof(*batch->granted),
             batch->n_granted);
    add_list(trip, batch->consumer, &sql_want, want, COUNT(want), batch->wants, sizeof(*batch->wants), batch->n_wants);
    add_list(trip, batch->consumer, &sql_until, hold, COUNT(hold), batch->holds, sizeof(*batch->holds), batch->n_holds);
}

/* ---- keys ---------------------------------------------------------------------------------------- */

static const struct sql_text sql_keys = {
    "semel_key_change",
    "INSERT INTO semel.order_key AS o (consumer, order_key, last_version, changes, updated_at) "
    "SELECT $1::text, b.k, b.version, 1, $4::timestamptz "
    "FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS b (k, version, n) ORDER BY b.n "
    "ON CONFLICT (consumer, order_key) DO UPDATE SET "
    "last_version = greatest(o.last_version, excluded.last_version), changes = o.changes + 1, updated_at = $4"};

static const struct sql_text sql_skip = {
    "semel_key_skip", "UPDATE semel.order_key AS o SET skipped = b.list::bigint[] "
                      "FROM unnest($2::text[], $3::text[]) AS b (k, list) WHERE o.consumer = $1::text "
                      "AND o.order_key = b.k"};

#define FIRST_OF_KEY                                                                                         \
    "SELECT i.source, i.message_id FROM semel.inbox AS i WHERE i.consumer = $1::text AND i.order_key = b.k " \
    "AND " PG_IN_ORDER("i")
/* Who has its row without its key (a copy under another key) is not waited for: a sweep wakes it later. */
#define WAKE(order)                                                                                          \
    "UPDATE semel.inbox AS u SET due_at = $3::timestamptz, error_class = 'blocked', updated_at = CASE WHEN " \
    "u.updated_at > $3 THEN u.updated_at + interval '1 microsecond' ELSE $3 END WHERE u.ctid = ANY (ARRAY("  \
    "SELECT t.ctid FROM pg_catalog.unnest($2::text[]) AS b (k) CROSS JOIN LATERAL (" FIRST_OF_KEY " " order  \
    " LIMIT 1) AS h JOIN semel.inbox AS t ON t.consumer = $1 AND t.source = h.source AND t.message_id = "    \
    "h.message_id WHERE t.status = 'waiting' FOR UPDATE OF t SKIP LOCKED))"

static const struct sql_text sql_wake_arrival = {"semel_wake", WAKE("ORDER BY i.arrival")};
static const struct sql_text sql_wake_version = {"semel_wake_version",
                                                 WAKE("ORDER BY i.version NULLS FIRST, i.arrival")};

static void add_wake(struct pg_trip *trip, const struct semel_settle_batch *batch, bool by_version)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_keys; i++)
        n += batch->keys[i].wake && batch->keys[i].by_version == by_version;
    if (n == 0)
        return;
    semel__pg_text(trip, batch->consumer);
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < batch->n_keys; i++)
        if (batch->keys[i].wake && batch->keys[i].by_version == by_version)
            semel__pg_item_key(trip, batch->keys[i].key);
    semel__pg_array_end(trip);
    semel__pg_time(trip, batch->now_us);
    semel__pg_add(trip, by_version ? &sql_wake_version : &sql_wake_arrival);
}

/* {1,2,3}, or NULL for an empty list. */
static void put_skipped(struct pg_trip *trip, const struct semel_key_change *key)
{
    struct semel_buf text;
    semel__buf_init(&text, SEMEL_SKIPPED_TEXT_MAX + 2);
    semel__buf_addz(&text, "{");
    semel__version_write(key->skipped, key->n_skipped, &text);
    semel__buf_addz(&text, "}");
    if (text.failed && trip->status == SEMEL_OK)
        trip->status = semel__fail_memory(&trip->err);
    semel__pg_item_text(trip, key->n_skipped > 0 ? semel__buf_str(&text) : (struct semel_str){0});
    semel__buf_done(&text);
}

static void add_skipped(struct pg_trip *trip, const struct semel_settle_batch *batch)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_keys; i++)
        n += batch->keys[i].skips;
    if (n == 0)
        return;
    semel__pg_text(trip, batch->consumer);
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < batch->n_keys; i++)
        if (batch->keys[i].skips)
            semel__pg_item_key(trip, batch->keys[i].key);
    semel__pg_array_end(trip);
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < batch->n_keys; i++)
        if (batch->keys[i].skips)
            put_skipped(trip, &batch->keys[i]);
    semel__pg_array_end(trip);
    semel__pg_add(trip, &sql_skip);
}

static void add_keys(struct pg_trip *trip, const struct semel_settle_batch *batch)
{
    static const struct pg_column columns[] = {
        {.kind = PG_FIELD_KEY, .offset = offsetof(struct semel_key_change, key)},
        {.kind = PG_FIELD_INT64, .offset = offsetof(struct semel_key_change, last_version)},
    };
    const void **items = batch->n_keys > 0 ? pointers(trip, batch->keys, sizeof(*batch->keys), batch->n_keys) : NULL;
    if (items == NULL)
        return;
    semel__pg_text(trip, batch->consumer);
    arrays(trip, columns, COUNT(columns), items, batch->n_keys);
    semel__pg_time(trip, batch->now_us);
    semel__pg_add(trip, &sql_keys);
    semel__free(items);
    add_skipped(trip, batch);
    add_wake(trip, batch, false);
    add_wake(trip, batch, true);
}

/* ---- all of it ----------------------------------------------------------------------------------- */

static semel_status settle(struct pg_store *d, struct semel_settle_batch *batch, struct parts *p,
                           struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "updating the inbox");
    bool freed = add_freed(&trip, batch);
    add_updates(&trip, batch, p);
    add_removes(&trip, batch, p);
    if (freed && batch->impatient)
        semel__pg_patience(&trip, true);
    add_drops(&trip, batch);
    add_business(&trip, batch);
    add_conflicts(&trip, batch);
    add_notes(&trip, batch);
    add_keys(&trip, batch);
    semel_status status = semel__pg_run(&trip, err);
    for (size_t i = 0; i < batch->n_changes; i++)
        batch->changes[i].applied = false;
    if (status == SEMEL_OK && p->n_updates > 0)
        read_applied(trip.results[p->at_updates], p->updates, p->n_updates);
    if (status == SEMEL_OK && p->n_removes > 0)
        read_applied(trip.results[p->at_removes], p->removes, p->n_removes);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    struct parts p;
    if (semel__pg_of(store)->sql.by_operator)
        return semel__pg_operate(semel__pg_of(store), batch, err);
    semel_status status = part(&p, batch, err);
    if (status == SEMEL_OK)
        status = settle(semel__pg_of(store), batch, &p, err);
    free_parts(&p);
    return status;
}
