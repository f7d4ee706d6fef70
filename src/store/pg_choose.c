/* SPDX-License-Identifier: MIT
 *
 * pg_choose.c: which way leads to the rows that match a filter, and the filter as parameters. See pg_look.h.
 */
#include "core/state.h"
#include "store/pg_look.h"

/* ---- the way -------------------------------------------------------------------------------------- */

static bool held(enum semel_state state)
{
    return !semel__state_final(state) && state != SEMEL_STATE_PROCESSING && state != SEMEL_STATE_ABSENT;
}

static bool unended(enum semel_state state)
{
    return held(state) || state == SEMEL_STATE_PROCESSING;
}

static bool only(unsigned states, bool (*is)(enum semel_state))
{
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++)
        if ((states & (1u << i)) != 0 && !is((enum semel_state)i))
            return false;
    return states != 0;
}

enum pg_way semel__pg_way(const struct semel_filter *filter)
{
    if (semel__str_given(filter->id))
        return semel__str_given(filter->source) ? PG_WAY_AT : PG_WAY_ID;
    if (semel__str_given(filter->order_key) && only(filter->states, semel__state_unfinished))
        return PG_WAY_KEY;
    if (only(filter->states, held))
        return PG_WAY_HELD;
    return only(filter->states, unended) ? PG_WAY_OPEN : PG_WAY_ALL;
}

/* ---- the filter ----------------------------------------------------------------------------------- */

bool semel__pg_filter_sound(const struct semel_filter *filter)
{
    const struct semel_str texts[] = {filter->consumer, filter->source,    filter->id,
                                      filter->type,     filter->order_key, filter->error_class};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (texts[i].n > 0 && !semel__utf8_valid(texts[i]))
            return false;
    return true;
}

static void put_states(struct pg_trip *trip, unsigned states)
{
    size_t n = 0;
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++)
        n += (states & (1u << i)) != 0;
    if (n == 0) {
        semel__pg_null(trip);
        return;
    }
    semel__pg_array(trip, PG_TEXTS, n);
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++)
        if ((states & (1u << i)) != 0)
            semel__pg_item_text(trip, semel__str(semel__state_name((enum semel_state)i)));
    semel__pg_array_end(trip);
}

void semel__pg_filter_put(struct pg_trip *trip, const struct semel_filter *filter, int64_t after, int64_t limit)
{
    semel__pg_text(trip, filter->consumer);
    semel__pg_int(trip, after);
    semel__pg_int(trip, limit);
    semel__pg_text(trip, filter->source);
    semel__pg_text(trip, filter->id);
    semel__pg_text(trip, filter->type);
    semel__pg_text(trip, filter->order_key);
    put_states(trip, filter->states);
    semel__pg_text(trip, filter->error_class);
    semel__pg_text(trip, filter->error_text);
    semel__pg_time(trip, filter->received_before_us);
    semel__pg_time(trip, filter->received_after_us);
}

/* ---- bounds --------------------------------------------------------------------------------------- */

static const struct sql_text many_names = {"look_names", PG_NAMES " SELECT pg_catalog.count(*), 0::bigint FROM names"};
static const struct sql_text many_places = {"look_places",
                                            PG_NAMES " SELECT 0::bigint, pg_catalog.count(*) FROM places"};

void semel__pg_bounds_add(struct pg_trip *trip, const struct semel_filter *filter, enum pg_way way, size_t *ret_at)
{
    *ret_at = SIZE_MAX;
    if (way == PG_WAY_ALL || (semel__str_given(filter->consumer) && way != PG_WAY_ID))
        return;
    semel__pg_text(trip, filter->consumer);
    *ret_at = semel__pg_add(trip, way == PG_WAY_ID ? &many_places : &many_names);
}

semel_status semel__pg_bounds_read(const struct pg_trip *trip, size_t at, struct semel_error *err)
{
    if (at == SIZE_MAX)
        return SEMEL_OK;
    if (semel__pg_get_int(trip->results[at], 0, 0) > PG_NAMES_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "there are more than %d consumers: name the one that is meant", PG_NAMES_MAX);
    if (semel__pg_get_int(trip->results[at], 0, 1) > PG_PROBES_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "there are more than %d sources: name the consumer and the source of the message",
                           PG_PROBES_MAX);
    return SEMEL_OK;
}
