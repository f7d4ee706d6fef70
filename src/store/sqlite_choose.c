/* SPDX-License-Identifier: MIT
 *
 * sqlite_choose.c: which rows match a filter.
 *
 * What it is: the choice of an index for a filter, walks along it, and the merge of several walks by arrival.
 *
 *   an id                      one probe of the unique key a consumer and source
 *   an order key, unfinished   the index of the key, a consumer
 *   failed, waiting, unknown,  the index of held rows, a consumer and state
 *   dead, quarantined
 *   these and processing       the index of open rows, a consumer
 *   anything else              the table itself, by arrival: nothing else finds final rows in order
 *
 * Each walk gives rows by ascending arrival. As soon as enough are known, or a walk has looked at as many rows as
 * it may, the others need not go further than that one did: `reached` shrinks.
 *
 * Invariants: every matching row after `after` and up to `reached` is among the chosen; a walk looks at no more rows
 * than the budget, and at least at one, so that repeating from `reached` comes to an end.
 */
#include <stdlib.h>

#include "core/state.h"
#include "store/sqlite_look.h"

#define CONSUMERS_MAX 10000
#define PROBES_MAX 100000
#define STATES_TEXT 256

struct walk {
    struct sqlite_store *d;
    struct sqlite_choice *c;
    enum sqlite_q q;
    struct semel_str consumer, source, states;
    enum semel_state state; /* of Q_LOOK_HELD */
    char states_text[STATES_TEXT];
};

/* ---- consumers, and the pin --------------------------------------------------------------------- */

void semel__sqlite_consumers_start(struct sqlite_consumers *all, struct sqlite_store *d, struct semel_str given)
{
    *all = (struct sqlite_consumers){.given = given};
    if (semel__str_given(given))
        return;
    semel__sqlite_start(&all->run, d, Q_CONSUMERS, "listing consumers");
    semel__sqlite_text(&all->run, 1, SEMEL_STR(""));
}

semel_status semel__sqlite_consumers_next(struct sqlite_consumers *all, struct semel_str *ret, bool *ret_row,
                                          struct semel_error *err)
{
    if (semel__str_given(all->given)) {
        *ret = all->given;
        *ret_row = all->n++ == 0;
        return SEMEL_OK;
    }
    semel_status status = semel__sqlite_step(&all->run, ret_row, err);
    if (status != SEMEL_OK || !*ret_row)
        return status;
    if (all->n++ == CONSUMERS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "there are more than %d consumers: name the one that is meant", CONSUMERS_MAX);
    return semel__sqlite_peek(all->run.stmt, 0, SIZE_MAX, ret, err);
}

void semel__sqlite_consumers_end(struct sqlite_consumers *all)
{
    semel__sqlite_end(&all->run);
}

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

static enum sqlite_q way_of(const struct semel_filter *filter)
{
    if (semel__str_given(filter->id))
        return Q_LOOK_ID;
    if (semel__str_given(filter->order_key) && only(filter->states, semel__state_unfinished))
        return Q_LOOK_KEY;
    if (only(filter->states, held))
        return Q_LOOK_HELD;
    return only(filter->states, unended) ? Q_LOOK_OPEN : Q_LOOK_ALL;
}

/* "|dead|failed|", for instr(); not given: any. */
static struct semel_str states_text(unsigned states, char out[STATES_TEXT])
{
    size_t n = 0;
    if (states == 0)
        return (struct semel_str){0};
    out[n++] = '|';
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++) {
        struct semel_str name = semel__str(semel__state_name((enum semel_state)i));
        if ((states & (1u << i)) == 0 || n + name.n + 1 > STATES_TEXT)
            continue;
        memcpy(out + n, name.p, name.n);
        n += name.n;
        out[n++] = '|';
    }
    return (struct semel_str){out, n};
}

/* ---- one walk ----------------------------------------------------------------------------------- */

static void start_walk(struct sqlite_run *run, const struct walk *w)
{
    const struct semel_filter *filter = w->c->filter;
    semel__sqlite_start(run, w->d, w->q, "choosing messages");
    semel__sqlite_text(run, 1, w->consumer);
    semel__sqlite_int(run, 2, w->c->after);
    semel__sqlite_int(run, 3, w->c->reached);
    if (w->q == Q_LOOK_HELD)
        semel__sqlite_text(run, 4, semel__str(semel__state_name(w->state)));
    semel__sqlite_text(run, 5, w->source);
    semel__sqlite_text(run, 6, filter->id);
    semel__sqlite_text(run, 7, filter->type);
    semel__sqlite_text(run, 8, filter->order_key);
    semel__sqlite_text(run, 9, w->states);
    semel__sqlite_text(run, 10, filter->error_class);
    semel__sqlite_blob(run, 11, filter->error_text);
    semel__sqlite_int(run, 12, filter->received_before_us);
    semel__sqlite_int(run, 13, filter->received_after_us);
}

static bool keep(struct sqlite_choice *c, int64_t arrival)
{
    if (c->n == c->room) {
        size_t room = c->room > 0 ? 2 * c->room : 64;
        int64_t *arrivals = semel__realloc(c->arrivals, room, sizeof(*arrivals));
        if (arrivals == NULL)
            return false;
        c->arrivals = arrivals;
        c->room = room;
    }
    c->arrivals[c->n++] = arrival;
    return true;
}

static int cmp_arrival(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Nothing after `arrival` is needed, or nothing is known of it. A walk never goes past `reached`. */
static void stop_at(struct sqlite_choice *c, int64_t arrival)
{
    c->more = true;
    if (c->max > 0)
        c->reached = arrival;
}

/* After a walk: the earliest `max` of those up to `reached`. */
static void merge(struct sqlite_choice *c)
{
    if (c->n == 0)
        return;
    qsort(c->arrivals, c->n, sizeof(*c->arrivals), cmp_arrival);
    while (c->n > 0 && c->arrivals[c->n - 1] > c->reached)
        c->n--;
    if (c->n <= c->max)
        return;
    c->n = c->max;
    stop_at(c, c->arrivals[c->n - 1]);
}

static semel_status walk(const struct walk *w, struct semel_error *err)
{
    struct sqlite_choice *c = w->c;
    struct sqlite_run run;
    size_t before = c->n;
    int64_t looked = 0, arrival = c->after;
    bool row = true;
    semel_status status = SEMEL_OK;
    start_walk(&run, w);
    for (;;) {
        status = semel__sqlite_step(&run, &row, err);
        if (status != SEMEL_OK || !row)
            break;
        if (looked == c->budget) {
            stop_at(c, arrival);
            break;
        }
        looked++;
        arrival = sqlite3_column_int64(run.stmt, 0);
        if (sqlite3_column_int(run.stmt, 1) != 0 && !keep(c, arrival)) {
            status = semel__fail_memory(err);
            break;
        }
        if (c->max > 0 && c->n - before == c->max) {
            stop_at(c, arrival);
            break;
        }
    }
    semel__sqlite_end(&run);
    if (c->max > 0)
        merge(c);
    else
        c->budget -= looked;
    return status;
}

/* ---- all walks ---------------------------------------------------------------------------------- */

static semel_status probe_sources(struct walk *w, size_t *probes, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = true;
    semel_status status = SEMEL_OK;
    semel__sqlite_start(&run, w->d, Q_SOURCES, "listing sources");
    semel__sqlite_text(&run, 1, w->consumer);
    while (status == SEMEL_OK) {
        status = semel__sqlite_step(&run, &row, err);
        if (status != SEMEL_OK || !row)
            break;
        if (++*probes > PROBES_MAX)
            status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                                 "there are more than %d sources: name the consumer and the source of the message",
                                 PROBES_MAX);
        else
            status = semel__sqlite_peek(run.stmt, 0, SIZE_MAX, &w->source, err);
        if (status == SEMEL_OK)
            status = walk(w, err);
    }
    semel__sqlite_end(&run);
    return status;
}

static semel_status walk_consumer(struct walk *w, size_t *probes, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (w->q == Q_LOOK_ID && !semel__str_given(w->c->filter->source))
        return probe_sources(w, probes, err);
    if (w->q != Q_LOOK_HELD)
        return walk(w, err);
    for (unsigned i = 0; status == SEMEL_OK && i < SEMEL_STATE_COUNT; i++) {
        w->state = (enum semel_state)i;
        if ((w->c->filter->states & (1u << i)) != 0)
            status = walk(w, err);
    }
    return status;
}

semel_status semel__sqlite_choose(struct sqlite_store *d, struct sqlite_choice *choice, struct semel_error *err)
{
    const struct semel_filter *filter = choice->filter;
    struct walk w = {.d = d, .c = choice, .q = way_of(filter), .consumer = filter->consumer, .source = filter->source};
    struct sqlite_consumers all;
    size_t probes = 0;
    bool row = true;
    semel_status status = SEMEL_OK;
    choice->reached = INT64_MAX;
    choice->more = false;
    w.states = states_text(filter->states, w.states_text);
    if (w.q == Q_LOOK_ALL)
        return walk(&w, err);
    semel__sqlite_consumers_start(&all, d, filter->consumer);
    while (status == SEMEL_OK && (choice->max > 0 || !choice->more)) {
        status = semel__sqlite_consumers_next(&all, &w.consumer, &row, err);
        if (status != SEMEL_OK || !row)
            break;
        status = walk_consumer(&w, &probes, err);
    }
    semel__sqlite_consumers_end(&all);
    return status;
}

/* ---- columns and lists -------------------------------------------------------------------------- */

semel_status semel__sqlite_peek(sqlite3_stmt *stmt, int col, size_t max, struct semel_str *ret, struct semel_error *err)
{
    int type = sqlite3_column_type(stmt, col);
    *ret = (struct semel_str){0};
    if (type != SQLITE_TEXT && type != SQLITE_BLOB)
        return SEMEL_OK;
    const char *p = type == SQLITE_TEXT ? (const char *)sqlite3_column_text(stmt, col) : sqlite3_column_blob(stmt, col);
    size_t n = (size_t)sqlite3_column_bytes(stmt, col);
    if (p == NULL && (n > 0 || type == SQLITE_TEXT)) /* an empty blob is NULL */
        return semel__fail_memory(err);
    *ret = (struct semel_str){n > 0 ? p : "", n < max ? n : max};
    return SEMEL_OK;
}

semel_status semel__sqlite_copy(sqlite3_stmt *stmt, int col, size_t max, struct semel_arena *arena,
                                struct semel_str *ret, struct semel_error *err)
{
    struct semel_str s;
    semel_status status = semel__sqlite_peek(stmt, col, max, &s, err);
    if (status == SEMEL_OK && !semel__arena_copy(arena, s, ret))
        status = semel__fail_memory(err);
    return status;
}

int64_t semel__sqlite_number(sqlite3_stmt *stmt, int col)
{
    return sqlite3_column_type(stmt, col) == SQLITE_INTEGER ? sqlite3_column_int64(stmt, col) : SEMEL_NONE;
}

void *semel__sqlite_list_add(struct sqlite_list *list, size_t size)
{
    if (list->n == list->cap) {
        size_t cap = list->cap > 0 ? 2 * list->cap : 16;
        char *items = semel__realloc(list->items, cap, size);
        if (items == NULL)
            return NULL;
        list->items = items;
        list->cap = cap;
    }
    return list->items + size * list->n++;
}

semel_status semel__sqlite_list_give(struct sqlite_list *list, size_t size, semel_status status,
                                     struct semel_arena *arena, void **ret, struct semel_error *err)
{
    void *copy = status == SEMEL_OK ? semel__arena_alloc(arena, list->n, size) : NULL;
    if (status == SEMEL_OK && copy == NULL && list->n > 0)
        status = semel__fail_memory(err);
    if (copy != NULL && list->n > 0)
        memcpy(copy, list->items, size * list->n);
    if (status == SEMEL_OK)
        *ret = copy;
    semel__free(list->items);
    list->items = NULL;
    return status;
}
