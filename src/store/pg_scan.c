/* SPDX-License-Identifier: MIT
 *
 * pg_scan.c: bounded, unlocked looks at the inbox.
 *
 * Invariants: at most `max` rows are given, and damaged ones do not use up that number: a heap of them at the front of
 * an index must not hide the good ones behind. So what is asked for is doubled until enough good ones came, or none
 * are left, or DAMAGED_MAX were met.
 */
#include "core/state.h"
#include "store/pg.h"

#define DAMAGED_MAX 100000

/* $1: with payload; $2: how many. */
#define ROWS "SELECT " PG_COLUMNS("$1::boolean") " FROM semel.inbox AS i WHERE "
#define LIMIT " LIMIT $2::bigint"
#define OF_KEY "i.consumer = $3 AND i.order_key = $4 AND " PG_IN_ORDER("i")
#define OF_ALL                                                                               \
    "i.consumer = $3 AND i.arrival > $4::bigint AND ($5::text IS NULL OR i.order_key = $5) " \
    "AND ($6::text IS NULL OR i.type = $6) AND ($7::text[] IS NULL OR i.status = ANY ($7)) ORDER BY i.arrival" LIMIT

static const struct sql_text sql_due = {
    "semel_scan_due",
    ROWS "i.consumer = $3 AND i.due_at IS NOT NULL AND i.due_at <= $4 AND (NOT $5::boolean OR i.payload IS NOT NULL) "
         "ORDER BY i.due_at, i.arrival" LIMIT};
static const struct sql_text sql_expired = {"semel_scan_expired",
                                            ROWS "i.consumer = $3 AND i.status = 'processing' AND i.lease_until < $4 "
                                                 "ORDER BY i.lease_until, i.arrival" LIMIT};
static const struct sql_text sql_token = {"semel_scan_token", ROWS "i.lease_token = $3::bigint" LIMIT};
static const struct sql_text sql_key_arrival = {"semel_scan_key", ROWS OF_KEY " ORDER BY i.arrival" LIMIT};
static const struct sql_text sql_key_version = {"semel_scan_version",
                                                ROWS OF_KEY " ORDER BY i.version NULLS FIRST, i.arrival" LIMIT};
#define STILL(table) table "consumer = $3 AND " table "status = 'waiting' AND " table "due_at IS NULL AND "
#define NEXT_KEY(after) \
    "SELECT pg_catalog.min(w.order_key) FROM semel.inbox AS w WHERE " STILL("w.") "w.order_key > " after
#define HEAD(order) \
    "SELECT h.* FROM semel.inbox AS h WHERE h.consumer = $3 AND h.order_key = k.k AND " PG_IN_ORDER("h") " " order
/* One step into the index a key, however many rows it has. */
#define KEYS                                                                                        \
    "WITH RECURSIVE k (k, n) AS (SELECT (" NEXT_KEY("$4::text") "), 1 UNION ALL SELECT (" NEXT_KEY( \
        "k.k") "), k.n + 1 FROM k WHERE k.k IS NOT NULL AND k.n < $2::bigint) "
#define STILL_KEYS(order) \
    KEYS "SELECT " PG_COLUMNS("$1::boolean") " FROM k CROSS JOIN LATERAL (" HEAD(order) " LIMIT 1) AS i"
static const struct sql_text sql_still = {
    "semel_scan_still", ROWS STILL("i.") "($4::boolean OR i.order_key IS NULL) AND i.payload IS NOT NULL" LIMIT};
static const struct sql_text sql_still_arrival = {"semel_scan_still_keys", STILL_KEYS("ORDER BY h.arrival")};
static const struct sql_text sql_still_version = {"semel_scan_still_versions",
                                                  STILL_KEYS("ORDER BY h.version NULLS FIRST, h.arrival")};
static const struct sql_text sql_all = {"semel_scan_all", ROWS OF_ALL};
static const struct sql_text sql_open = {"semel_scan_open", ROWS "i." PG_OPEN " AND " OF_ALL};

/* Are only states asked for that are in the index of what is not final? */
static bool only_open(unsigned states)
{
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++)
        if ((states & (1u << i)) != 0 && semel__state_final((enum semel_state)i))
            return false;
    return states != 0;
}

static void put_states(struct pg_trip *trip, unsigned states)
{
    size_t n = 0;
    if (states == 0) {
        semel__pg_null(trip);
        return;
    }
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++)
        n += (states & (1u << i)) != 0;
    semel__pg_array(trip, PG_TEXTS, n);
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++)
        if ((states & (1u << i)) != 0)
            semel__pg_item_text(trip, semel__str(semel__state_name((enum semel_state)i)));
    semel__pg_array_end(trip);
}

static size_t add_scan(struct pg_trip *trip, const struct semel_scan *scan, size_t limit)
{
    semel__pg_bool(trip, scan->with_payload);
    semel__pg_int(trip, limit < INT32_MAX ? (int64_t)limit : INT32_MAX);
    switch (scan->kind) {
    case SEMEL_SCAN_DUE:
    case SEMEL_SCAN_EXPIRED:
        semel__pg_text(trip, scan->consumer);
        semel__pg_time(trip, scan->now_us);
        if (scan->kind == SEMEL_SCAN_EXPIRED)
            return semel__pg_add(trip, &sql_expired);
        semel__pg_bool(trip, scan->kept);
        return semel__pg_add(trip, &sql_due);
    case SEMEL_SCAN_TOKEN:
        semel__pg_int(trip, scan->token);
        return semel__pg_add(trip, &sql_token);
    case SEMEL_SCAN_KEY:
        semel__pg_text(trip, scan->consumer);
        semel__pg_text(trip, scan->order_key);
        return semel__pg_add(trip, scan->by_version ? &sql_key_version : &sql_key_arrival);
    case SEMEL_SCAN_STILL:
        semel__pg_text(trip, scan->consumer);
        if (!semel__str_given(scan->order_key)) {
            semel__pg_bool(trip, scan->any_key);
            return semel__pg_add(trip, &sql_still);
        }
        semel__pg_text(trip, scan->order_key);
        return semel__pg_add(trip, scan->by_version ? &sql_still_version : &sql_still_arrival);
    case SEMEL_SCAN_ALL:
        break;
    }
    semel__pg_text(trip, scan->consumer);
    semel__pg_int(trip, scan->after_arrival != SEMEL_NONE ? scan->after_arrival : 0);
    semel__pg_text(trip, scan->order_key);
    semel__pg_text(trip, scan->type);
    put_states(trip, scan->states);
    return semel__pg_add(trip, only_open(scan->states) ? &sql_open : &sql_all);
}

struct found {
    struct semel_row *rows;
    size_t n, damaged;
};

static semel_status read_all(const PGresult *res, size_t max, struct semel_arena *arena, struct found *found,
                             struct semel_error *err)
{
    size_t room = (size_t)PQntuples(res) < max ? (size_t)PQntuples(res) : max;
    semel_status status = SEMEL_OK;
    *found = (struct found){.rows = semel__arena_alloc(arena, room, sizeof(*found->rows))};
    if (found->rows == NULL && room > 0)
        return semel__fail_memory(err);
    for (int row = 0; status == SEMEL_OK && row < PQntuples(res) && found->n < max; row++) {
        status = semel__pg_read(res, row, 0, arena, &found->rows[found->n], err);
        if (semel__pg_damaged(status)) {
            found->damaged++;
            status = SEMEL_OK;
        } else {
            found->n += status == SEMEL_OK;
        }
    }
    return status;
}

/* *ret_more: the limit was reached, and damaged rows took the place of good ones. */
static semel_status look(struct pg_store *d, const struct semel_scan *scan, size_t limit, struct semel_arena *arena,
                         struct found *found, bool *ret_more, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, "scanning the inbox");
    size_t at = add_scan(&trip, scan, limit);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_all(trip.results[at], scan->max, arena, found, err);
    *ret_more = status == SEMEL_OK && found->n < scan->max && (size_t)PQntuples(trip.results[at]) >= limit;
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                            struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct found found = {0};
    bool more = true;
    semel_status status = SEMEL_OK;
    for (size_t limit = scan->max; status == SEMEL_OK && more; limit = 2 * limit + 16) {
        status = look(d, scan, limit, arena, &found, &more, err);
        more = more && found.damaged < DAMAGED_MAX;
    }
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err); /* damage is counted, it is no error of the call */
    *ret_rows = found.rows;
    *ret_n = found.n;
    if (ret_damaged != NULL)
        *ret_damaged = found.damaged;
    return SEMEL_OK;
}
