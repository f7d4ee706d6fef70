/* SPDX-License-Identifier: MIT
 *
 * pg_select.c: frozen selections (P43).
 *
 * What it is: the rows that matched at one moment, written down with who chose them, for what and why; each with the
 * time of its last change, so that whoever comes to it later can see whether it still is what was chosen.
 *
 * Invariants: a selection is written by one statement, whole or not at all, and never grows or shrinks; a place is
 * marked once, and the first mark stays; what is left is found by its own index.
 */
#include "store/pg_look.h"

/* ---- choosing ------------------------------------------------------------------------------------- */

/* $3 is one more than may be chosen; with that many nothing is written. */
#define CHOSEN ", chosen AS MATERIALIZED (SELECT i.arrival, i.consumer, i.source, i.message_id, i.updated_at "
#define FREEZE                                                                                                     \
    "), made AS (INSERT INTO semel.selection (word, who, reason, force, made_at) SELECT $13::text, $14::text, "    \
    "$15::text, $16::boolean, $17::timestamptz FROM (SELECT pg_catalog.count(*) AS n FROM chosen) AS t "           \
    "WHERE t.n BETWEEN 1 AND $3 - 1 RETURNING number), "                                                           \
    "put AS (INSERT INTO semel.selected (number, place, consumer, source, message_id, updated_at) "                \
    "SELECT made.number, pg_catalog.row_number() OVER (ORDER BY chosen.arrival), chosen.consumer, chosen.source, " \
    "chosen.message_id, chosen.updated_at FROM chosen CROSS JOIN made) "                                           \
    "SELECT (SELECT pg_catalog.count(*) FROM chosen), (SELECT number FROM made)"
/* The same by an operator's role. */
#define FREEZE_BY                                                                                                \
    "), picked AS (SELECT pg_catalog.count(*) AS n, pg_catalog.array_agg(c.consumer ORDER BY c.arrival) AS c, "  \
    "pg_catalog.array_agg(c.source ORDER BY c.arrival) AS s, "                                                   \
    "pg_catalog.array_agg(c.message_id ORDER BY c.arrival) AS i, "                                               \
    "pg_catalog.array_agg(c.updated_at ORDER BY c.arrival) AS u FROM chosen AS c) "                              \
    "SELECT p.n, CASE WHEN p.n BETWEEN 1 AND $3 - 1 AND $14::text IS NOT NULL AND $17::timestamptz IS NOT NULL " \
    "THEN semel._operator_select($13::text, $15::text, $16::boolean, p.c, p.s, p.i, p.u) END FROM picked AS p"
#define X(name, text, names, where, states)   \
    [PG_WAY_##name] = {"look_operator_" text, \
                       PG_NAMES CHOSEN PG_FROM(names, where, PG_FILTER states, PG_FIRST) PG_FIRST FREEZE_BY},
static const struct sql_text operator_selects[PG_WAYS] = {PG_WAY_MAP(X)};
#undef X
#define X(name, text, names, where, states) \
    [PG_WAY_##name] = {"look_select_" text, \
                       PG_NAMES CHOSEN PG_FROM(names, where, PG_FILTER states, PG_FIRST) PG_FIRST FREEZE},
static const struct sql_text selects[PG_WAYS] = {PG_WAY_MAP(X)};
#undef X

static semel_status read_frozen(const PGresult *res, size_t max, int64_t now_us, struct semel_selection *selection,
                                struct semel_error *err)
{
    int64_t n = semel__pg_get_int(res, 0, 0), number = semel__pg_get_int(res, 0, 1);
    if (n > (int64_t)max)
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
            "more than %zu messages match; narrow the filter (consumer, status, type, error, key or age) "
            "and take the rest afterwards",
            max);
    selection->number = number != SEMEL_NONE ? number : 0;
    selection->made_us = now_us;
    selection->n = selection->left = n;
    selection->done = selection->skipped = selection->refused = 0;
    return SEMEL_OK;
}

static semel_status nothing(int64_t now_us, struct semel_selection *selection)
{
    selection->number = 0;
    selection->made_us = now_us;
    selection->n = selection->left = selection->done = selection->skipped = selection->refused = 0;
    return SEMEL_OK;
}

semel_status semel__pg_select(struct semel_store *store, const struct semel_filter *filter, size_t max, int64_t now_us,
                              struct semel_selection *selection, struct semel_error *err)
{
    enum pg_way way = semel__pg_way(filter);
    struct pg_trip trip;
    size_t bounds, at;
    if (!semel__pg_filter_sound(filter))
        return nothing(now_us, selection);
    semel__pg_start(&trip, semel__pg_of(store), "writing down a selection");
    semel__pg_bounds_add(&trip, filter, way, &bounds);
    semel__pg_filter_put(&trip, filter, -1, max < INT32_MAX ? (int64_t)max + 1 : INT32_MAX);
    semel__pg_text(&trip, selection->word);
    semel__pg_text(&trip, selection->who);
    semel__pg_text(&trip, selection->reason);
    semel__pg_bool(&trip, selection->force);
    semel__pg_time(&trip, now_us);
    at = semel__pg_add(&trip, trip.d->sql.by_operator ? &operator_selects[way] : &selects[way]);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = semel__pg_bounds_read(&trip, bounds, err);
    if (status == SEMEL_OK)
        status = read_frozen(trip.results[at], max, now_us, selection, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- later -------------------------------------------------------------------------------------- */

static const struct sql_text get_selection = {
    "look_selection",
    "SELECT s.word, s.who, s.reason, s.force, s.made_at, t.n, t.done, t.skipped, t.refused FROM semel.selection AS s "
    "CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS n, pg_catalog.count(*) FILTER (WHERE m.result = 'done') AS "
    "done, "
    "pg_catalog.count(*) FILTER (WHERE m.result = 'skipped') AS skipped, pg_catalog.count(*) FILTER (WHERE m.result = "
    "'refused') AS refused "
    "FROM semel.selected AS m WHERE m.number = s.number) AS t WHERE s.number = $1::bigint"};

static semel_status no_selection(int64_t number, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there is no selection with the number %lld",
                       (long long)number);
}

static semel_status read_selection(const PGresult *res, struct semel_arena *arena, struct semel_selection *s,
                                   struct semel_error *err)
{
    s->force = semel__pg_get_bool(res, 0, 3);
    s->made_us = semel__pg_get_time(res, 0, 4);
    s->n = semel__pg_get_int(res, 0, 5);
    s->done = semel__pg_get_int(res, 0, 6);
    s->skipped = semel__pg_get_int(res, 0, 7);
    s->refused = semel__pg_get_int(res, 0, 8);
    s->left = s->n - s->done - s->skipped - s->refused;
    semel_status status = semel__pg_copy(res, 0, 0, SEMEL_ID_MAX, arena, &s->word, err);
    if (status == SEMEL_OK)
        status = semel__pg_copy(res, 0, 1, SEMEL_ID_MAX, arena, &s->who, err);
    return status == SEMEL_OK ? semel__pg_copy(res, 0, 2, SEMEL_ERROR_TEXT_MAX, arena, &s->reason, err) : status;
}

semel_status semel__pg_selection(struct semel_store *store, int64_t number, struct semel_arena *arena,
                                 struct semel_selection *ret, struct semel_error *err)
{
    struct semel_selection s = {.number = number};
    struct pg_trip trip;
    semel_status status = semel__pg_usable(semel__pg_of(store), err);
    if (status != SEMEL_OK)
        return status;
    semel__pg_start(&trip, semel__pg_of(store), "reading a selection");
    semel__pg_int(&trip, number);
    size_t at = semel__pg_add(&trip, &get_selection);
    status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = PQntuples(trip.results[at]) == 1 ? read_selection(trip.results[at], arena, &s, err)
                                                  : no_selection(number, err);
    semel__pg_end(&trip);
    if (status == SEMEL_OK)
        *ret = s;
    return status;
}

static const struct sql_text get_selected = {
    "look_selected", "SELECT place, consumer, source, message_id, updated_at FROM semel.selected "
                     "WHERE number = $1::bigint AND result IS NULL ORDER BY place LIMIT $2::bigint"};

static semel_status read_selected(const PGresult *res, struct semel_arena *arena, struct semel_selected **ret,
                                  size_t *ret_n, struct semel_error *err)
{
    size_t n = (size_t)PQntuples(res);
    struct semel_selected *items = semel__arena_alloc(arena, n, sizeof(*items));
    semel_status status = SEMEL_OK;
    if (items == NULL && n > 0)
        return semel__fail_memory(err);
    for (int i = 0; status == SEMEL_OK && i < (int)n; i++) {
        struct semel_selected *s = &items[i];
        *s = (struct semel_selected){.place = semel__pg_get_int(res, i, 0),
                                     .updated_us = semel__pg_get_time(res, i, 4)};
        status = semel__pg_copy(res, i, 1, SEMEL_ID_MAX, arena, &s->consumer, err);
        if (status == SEMEL_OK)
            status = semel__pg_copy(res, i, 2, SEMEL_ID_MAX, arena, &s->source, err);
        if (status == SEMEL_OK)
            status = semel__pg_copy(res, i, 3, SEMEL_ID_MAX, arena, &s->id, err);
    }
    if (status == SEMEL_OK) {
        *ret = items;
        *ret_n = n;
    }
    return status;
}

semel_status semel__pg_selected(struct semel_store *store, int64_t number, size_t max, struct semel_arena *arena,
                                struct semel_selected **ret, size_t *ret_n, struct semel_error *err)
{
    struct pg_trip trip;
    semel_status status = semel__pg_usable(semel__pg_of(store), err);
    if (status != SEMEL_OK)
        return status;
    semel__pg_start(&trip, semel__pg_of(store), "reading what was selected");
    semel__pg_int(&trip, number);
    semel__pg_int(&trip, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    size_t at = semel__pg_add(&trip, &get_selected);
    status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_selected(trip.results[at], arena, ret, ret_n, err);
    semel__pg_end(&trip);
    return status;
}

static const struct sql_text mark_selected = {"look_mark",
                                              "UPDATE semel.selected SET result = coalesce(result, $3::text) "
                                              "WHERE number = $1::bigint AND place = $2::bigint"};

semel_status semel__pg_mark(struct semel_store *store, int64_t number, int64_t place, struct semel_str result,
                            struct semel_error *err)
{
    struct pg_trip trip;
    size_t n = 0;
    semel__pg_start(&trip, semel__pg_of(store), "marking a selected message");
    semel__pg_int(&trip, number);
    semel__pg_int(&trip, place);
    semel__pg_text(&trip, result);
    size_t at = semel__pg_add(&trip, &mark_selected);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        n = semel__pg_affected(trip.results[at]);
    semel__pg_end(&trip);
    if (status == SEMEL_OK && n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "selection %lld has no place %lld",
                           (long long)number, (long long)place);
    return status;
}
