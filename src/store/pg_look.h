/* SPDX-License-Identifier: MIT
 *
 * pg_look.h: private to the files that answer operators.
 *
 *   pg_choose.c   which rows match a filter, by which index: the parts of a statement, and its parameters
 *   pg_look.c     list, groups; the table of functions
 *   pg_select.c   writes down a frozen selection
 *
 * A filter is answered by one statement, whose text depends only on the way to the rows:
 *
 *   an id and a source         one probe of the key a consumer
 *   an id alone                one probe a consumer and source that there is
 *   an order key, unfinished   the index of the key, a consumer
 *   failed, waiting, unknown,  the index of held rows, a consumer and state
 *   dead, quarantined
 *   these and processing       the index of open rows, a consumer
 *   anything else              the whole table: nothing else finds final rows in order
 *
 * Consumers and sources are found by hopping along the primary key, never by walking the rows.
 */
#ifndef SEMEL_STORE_PG_LOOK_H
#define SEMEL_STORE_PG_LOOK_H

#include "core/look.h"
#include "store/pg.h"

#define PG_NAMES_MAX 10000
#define PG_PROBES_MAX 100000

/* ---- the parts of a statement ------------------------------------------------------------------- */

/* $1 the consumer, $2 after which arrival, $3 a limit, $4 to $12 the rest of the filter. What is NULL matches all. */
#define PG_FILTER                                                                                   \
    "AND i.arrival > $2::bigint AND ($4::text IS NULL OR i.source = $4) "                           \
    "AND ($5::text IS NULL OR i.message_id = $5) AND ($6::text IS NULL OR i.type = $6) "            \
    "AND ($7::text IS NULL OR i.order_key = $7) AND ($9::text IS NULL OR i.error_class = $9) "      \
    "AND ($10::bytea IS NULL OR position($10 IN pg_catalog.convert_to(i.error_text, 'UTF8')) > 0) " \
    "AND ($11::timestamptz IS NULL OR i.received_at < $11) "                                        \
    "AND ($12::timestamptz IS NULL OR i.received_at > $12) "
/* Apart, for the way that goes by states already: said twice, the planner would take it for much rarer than it is. */
#define PG_STATES "AND ($8::text[] IS NULL OR i.status = ANY ($8)) "

#define PG_FIRST "ORDER BY i.arrival LIMIT $3::bigint "

/* `names`: the consumers, or the one that is given; `places`: each of their sources, and the empty one. */
#define PG_NAMES                                                                                                   \
    "WITH RECURSIVE hop (name) AS (SELECT coalesce($1::text COLLATE \"C\", (SELECT pg_catalog.min(consumer) FROM " \
    "semel.inbox)) "                                                                                               \
    "UNION ALL SELECT (SELECT pg_catalog.min(n.consumer) FROM semel.inbox AS n WHERE n.consumer > hop.name) "      \
    "FROM hop WHERE hop.name IS NOT NULL AND $1 IS NULL), "                                                        \
    "names AS (SELECT name FROM hop WHERE name IS NOT NULL LIMIT 10001), "                                         \
    "leap (name, source) AS (SELECT coalesce($1::text COLLATE \"C\", ''), ''::text COLLATE \"C\" "                 \
    "UNION ALL SELECT n.consumer, n.source FROM leap CROSS JOIN LATERAL (SELECT k.consumer, k.source "             \
    "FROM semel.inbox AS k WHERE (k.consumer, k.source) > (leap.name, leap.source) "                               \
    "ORDER BY k.consumer, k.source LIMIT 1) AS n WHERE $1 IS NULL OR n.consumer = $1), "                           \
    "places AS (SELECT name, source FROM leap LIMIT 100001)"

#define PG_HELD "i.status IN ('failed', 'waiting', 'unknown', 'dead', 'quarantined') "
#define PG_UNENDED "i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead', 'quarantined') "
#define PG_OF_KEY "i.status IN ('processing', 'failed', 'waiting', 'unknown', 'dead') AND i.order_key = $7::text "

/* The ways, as what stands after FROM: rows `i` of the inbox. `which` narrows, `tail` orders and limits. */
#define PG_FROM(names, where, which, tail) \
    "FROM " names " CROSS JOIN LATERAL (SELECT i.* FROM semel.inbox AS i WHERE " where which tail ") AS i "
#define PG_OF_NAME "i.consumer = c.name AND "
#define PG_WAY_MAP(X)                                                                                    \
    X(AT, "at", "names AS c", PG_OF_NAME "i.source = $4::text AND i.message_id = $5::text ", PG_STATES)  \
    X(ID, "id", "places AS c", PG_OF_NAME "i.source = c.source AND i.message_id = $5::text ", PG_STATES) \
    X(KEY, "key", "names AS c", PG_OF_NAME PG_OF_KEY, PG_STATES)                                         \
    X(HELD, "held", "names AS c CROSS JOIN pg_catalog.unnest($8::text[]) AS s (state)",                  \
      PG_OF_NAME "i.status = s.state AND " PG_HELD, "")                                                  \
    X(OPEN, "open", "names AS c", PG_OF_NAME PG_UNENDED, PG_STATES)                                      \
    X(ALL, "all", "(SELECT 1) AS c", "($1::text IS NULL OR i.consumer = $1) ", PG_STATES)

enum pg_way {
#define X(name, text, names, where, states) PG_WAY_##name,
    PG_WAY_MAP(X)
#undef X
        PG_WAYS
};

enum pg_way semel__pg_way(const struct semel_filter *filter);
/* Can it match anything? Text that no column can hold matches nothing. */
bool semel__pg_filter_sound(const struct semel_filter *filter);
/* The first twelve parameters. */
void semel__pg_filter_put(struct pg_trip *trip, const struct semel_filter *filter, int64_t after, int64_t limit);
/* Adds the question whether there are too many consumers or sources to go through, where the way has to; *ret_at: of
 * its result, SIZE_MAX: it was not needed. */
void semel__pg_bounds_add(struct pg_trip *trip, const struct semel_filter *filter, enum pg_way way, size_t *ret_at);
semel_status semel__pg_bounds_read(const struct pg_trip *trip, size_t at, struct semel_error *err);

/* ---- the other files ---------------------------------------------------------------------------- */

semel_status semel__pg_select(struct semel_store *store, const struct semel_filter *filter, size_t max, int64_t now_us,
                              struct semel_selection *selection, struct semel_error *err);

#endif
