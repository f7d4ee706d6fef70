/* SPDX-License-Identifier: MIT
 *
 * pg_select.c: writes down a frozen selection (P43); records_selections.c has what comes later.
 *
 * What it is: the rows that matched at one moment, written down with who chose them, for what and why; each with the
 * time of its last change, so that whoever comes to it later can see whether it still is what was chosen.
 *
 * Invariants: a selection is written by one statement, whole or not at all.
 */
#include "store/pg_look.h"

/* $3 is one more than may be chosen; with that many nothing is written. */
#define CHOSEN ", chosen AS MATERIALIZED (SELECT i.arrival, i.consumer, i.source, i.message_id, i.updated_at "
#define FREEZE                                                                                                     \
    "), made AS (INSERT INTO semel.selection (command, who, reason, force, made_at) SELECT $13::text, $14::text, " \
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
    semel__pg_text(&trip, selection->command);
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
