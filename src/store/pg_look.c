/* SPDX-License-Identifier: MIT
 *
 * pg_look.c: what operators ask of the inbox as a whole: lists and groups.
 *
 * Invariants: groups look at no more rows than they may (P44). A damaged row is counted by the list, and
 * uses up no place in it. Nothing here takes a lock that a consumer would wait for.
 */
#include "store/pg_look.h"
#include "store/records.h"

#include "core/state.h"

#define PAGE 1000
#define PAGE_PAYLOADS 50
#define DAMAGED_MAX 100000

/* ---- list --------------------------------------------------------------------------------------- */

#define X(name, text, names, where, states)                                                                        \
    [PG_WAY_##name] = {"look_list_" text, PG_NAMES                                                                 \
                       " SELECT " PG_COLUMNS("$13::boolean") " " PG_FROM(names, where, PG_FILTER states, PG_FIRST) \
                           PG_FIRST},
static const struct sql_text lists[PG_WAYS] = {PG_WAY_MAP(X)};
#undef X

struct listing {
    struct pg_store *d;
    const struct semel_filter *filter;
    enum pg_way way;
    bool with_payload;
    struct semel_arena *arena;
    struct semel_row *rows; /* outside the arena, so that the arena holds only what is returned */
    size_t n, max, room, damaged;
    int64_t after; /* the last arrival that was read */
};

static bool make_room(struct listing *l, size_t more)
{
    size_t room = l->room > 0 ? l->room : 64;
    while (room < l->n + more)
        room *= 2;
    if (room == l->room)
        return true;
    struct semel_row *rows = semel__realloc(l->rows, room, sizeof(*rows));
    if (rows == NULL)
        return false;
    l->rows = rows;
    l->room = room;
    return true;
}

static semel_status read_page(struct listing *l, const PGresult *res, struct semel_error *err)
{
    int n = PQntuples(res);
    if (n == 0)
        return SEMEL_OK;
    if (!make_room(l, (size_t)n))
        return semel__fail_memory(err);
    l->after = semel__pg_get_int(res, n - 1, PG_COL_arrival);
    for (int i = 0; i < n && l->n < l->max; i++) {
        semel_status status = semel__pg_read(res, i, 0, l->arena, &l->rows[l->n], err);
        if (status != SEMEL_OK && !semel__pg_damaged(status))
            return status;
        l->n += status == SEMEL_OK;
        l->damaged += status != SEMEL_OK;
    }
    return SEMEL_OK;
}

static semel_status list_page(struct listing *l, size_t wanted, size_t *ret_n, struct semel_error *err)
{
    struct pg_trip trip;
    size_t bounds, at;
    semel__pg_start(&trip, l->d, "listing the inbox");
    semel__pg_bounds_add(&trip, l->filter, l->way, &bounds);
    semel__pg_filter_put(&trip, l->filter, l->after, (int64_t)wanted);
    semel__pg_bool(&trip, l->with_payload);
    at = semel__pg_add(&trip, &lists[l->way]);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = semel__pg_bounds_read(&trip, bounds, err);
    if (status == SEMEL_OK) {
        *ret_n = (size_t)PQntuples(trip.results[at]);
        status = read_page(l, trip.results[at], err);
    }
    semel__pg_end(&trip);
    return status;
}

/* Where there is no index every page costs a walk over all rows: then it is one page, and when damaged rows took the
 * places of good ones, the next is twice as long. */
static semel_status list_all(struct listing *l, struct semel_error *err)
{
    bool walk = l->way == PG_WAY_ALL && !l->with_payload;
    size_t page = l->with_payload ? PAGE_PAYLOADS : walk ? l->max : PAGE;
    size_t least = 0, wanted = 0, got = 0;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && got == wanted && l->n < l->max && l->damaged < DAMAGED_MAX) {
        wanted = l->max - l->n < page ? l->max - l->n : page;
        wanted = wanted > least ? wanted : least;
        status = list_page(l, wanted, &got, err);
        least = walk ? 2 * wanted : 0;
    }
    return status;
}

static semel_status look_list(struct semel_store *store, const struct semel_filter *filter, int64_t after_arrival,
                              size_t max, bool with_payload, struct semel_arena *arena, struct semel_row **ret,
                              size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    struct listing l = {.d = semel__pg_of(store),
                        .filter = filter,
                        .way = semel__pg_way(filter),
                        .with_payload = with_payload,
                        .arena = arena,
                        .max = max < INT32_MAX ? max : INT32_MAX,
                        .after = after_arrival != SEMEL_NONE ? after_arrival : -1};
    struct semel_row *rows = NULL;
    semel_status status = semel__pg_usable(l.d, err);
    if (status == SEMEL_OK && semel__pg_filter_sound(filter))
        status = list_all(&l, err);
    if (status == SEMEL_OK && l.n > 0) {
        rows = semel__arena_alloc(arena, l.n, sizeof(*rows));
        if (rows != NULL)
            memcpy(rows, l.rows, l.n * sizeof(*rows));
        else
            status = semel__fail_memory(err);
    }
    semel__free(l.rows);
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err); /* damage is counted, it is no error of the call */
    *ret = rows;
    *ret_n = l.n;
    if (ret_damaged != NULL)
        *ret_damaged = l.damaged;
    return SEMEL_OK;
}

/* ---- groups ------------------------------------------------------------------------------------- */

/* One row more is looked at than may be, to know whether there is one. The oldest of a group is its example. */
#define LOOKED                                                                                                  \
    ", looked AS MATERIALIZED (SELECT i.arrival, i.received_at, i.consumer, i.source, i.message_id, i.status, " \
    "i.type, i.order_key, i.error_class, i.error_text, pg_catalog.row_number() OVER () AS k "
#define GROUPED                                                                                                    \
    "LIMIT $3::bigint + 1), grouped AS (SELECT i.consumer, i.status, i.error_class, i.error_text, "                \
    "pg_catalog.count(*) AS n, "                                                                                   \
    "pg_catalog.min(i.received_at) AS first, pg_catalog.max(i.received_at) AS last, pg_catalog.min(i.arrival) AS " \
    "arrival FROM looked AS i "                                                                                    \
    "WHERE i.k <= $3 " PG_FILTER PG_STATES                                                                         \
    "GROUP BY 1, 2, 3, 4 ORDER BY pg_catalog.count(*) DESC, pg_catalog.min(i.arrival) LIMIT $13::bigint) "         \
    "SELECT t.n > $3, g.consumer, g.status, g.error_class, g.error_text, g.n, g.first, g.last, e.source, "         \
    "e.message_id "                                                                                                \
    "FROM (SELECT pg_catalog.count(*) AS n FROM looked) AS t LEFT JOIN grouped AS g ON true "                      \
    "LEFT JOIN looked AS e ON e.arrival = g.arrival ORDER BY g.n DESC, g.arrival"
#define X(name, text, names, where, states) \
    [PG_WAY_##name] = {"look_groups_" text, PG_NAMES LOOKED PG_FROM(names, where, "", "LIMIT $3::bigint + 1") GROUPED},
static const struct sql_text groupings[PG_WAYS] = {PG_WAY_MAP(X)};
#undef X

enum group_col { G_CAPPED, G_CONSUMER, G_STATUS, G_CLASS, G_TEXT, G_N, G_FIRST, G_LAST, G_SOURCE, G_ID };

static semel_status read_group(const PGresult *res, int row, struct semel_arena *arena, struct semel_group *g,
                               struct semel_error *err)
{
    const struct {
        enum group_col col;
        size_t max;
        struct semel_str *to;
    } texts[] = {{G_CONSUMER, SEMEL_ID_MAX, &g->consumer},
                 {G_SOURCE, SEMEL_ID_MAX, &g->source},
                 {G_ID, SEMEL_ID_MAX, &g->id},
                 {G_CLASS, SEMEL_ID_MAX, &g->error_class},
                 {G_TEXT, SEMEL_ERROR_TEXT_MAX, &g->error_text}};
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < sizeof(texts) / sizeof(texts[0]); i++)
        status = semel__pg_copy(res, row, (int)texts[i].col, texts[i].max, arena, texts[i].to, err);
    g->n = semel__pg_get_int(res, row, G_N);
    g->first_us = semel__pg_get_time(res, row, G_FIRST);
    g->last_us = semel__pg_get_time(res, row, G_LAST);
    return status;
}

/* One row without a group where there is none. */
static semel_status read_groups(const PGresult *res, struct semel_arena *arena, struct semel_group **ret, size_t *ret_n,
                                bool *ret_capped, struct semel_error *err)
{
    int n = PQntuples(res);
    struct semel_group *groups = semel__arena_alloc(arena, (size_t)n, sizeof(*groups));
    semel_status status = SEMEL_OK;
    size_t found = 0;
    if (groups == NULL && n > 0)
        return semel__fail_memory(err);
    for (int i = 0; status == SEMEL_OK && i < n; i++)
        if (semel__state_parse(semel__pg_get_text(res, i, G_STATUS), &groups[found].state))
            status = read_group(res, i, arena, &groups[found++], err);
    *ret = groups;
    *ret_n = found;
    *ret_capped = n > 0 && semel__pg_get_bool(res, 0, G_CAPPED);
    return status;
}

static semel_status look_groups(struct semel_store *store, const struct semel_filter *filter, int64_t cap, size_t max,
                                struct semel_arena *arena, struct semel_group **ret, size_t *ret_n, bool *ret_capped,
                                struct semel_error *err)
{
    enum pg_way way = semel__pg_way(filter);
    struct semel_group *groups = NULL;
    struct pg_trip trip;
    size_t bounds, at, n = 0;
    bool capped = false;
    semel_status status = semel__pg_usable(semel__pg_of(store), err);
    if (status != SEMEL_OK)
        return status;
    if (semel__pg_filter_sound(filter)) {
        semel__pg_start(&trip, semel__pg_of(store), "grouping the inbox");
        semel__pg_bounds_add(&trip, filter, way, &bounds);
        semel__pg_filter_put(&trip, filter, -1, cap);
        semel__pg_int(&trip, max < INT32_MAX ? (int64_t)max : INT32_MAX);
        at = semel__pg_add(&trip, &groupings[way]);
        status = semel__pg_run(&trip, err);
        if (status == SEMEL_OK)
            status = semel__pg_bounds_read(&trip, bounds, err);
        if (status == SEMEL_OK)
            status = read_groups(trip.results[at], arena, &groups, &n, &capped, err);
        semel__pg_end(&trip);
    }
    if (status != SEMEL_OK)
        return status;
    *ret = groups;
    *ret_n = n;
    *ret_capped = capped;
    return SEMEL_OK;
}

const struct semel_look_ops semel__pg_look = {
    .counts = semel__record_counts,
    .list = look_list,
    .groups = look_groups,
    .history = semel__record_history,
    .outbox = semel__record_outbox_count,
    .select = semel__pg_select,
    .selection = semel__record_selection,
    .selected = semel__record_selected,
    .mark = semel__record_mark,
};
