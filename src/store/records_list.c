/* SPDX-License-Identifier: MIT
 *
 * records_list.c: what operators ask of the inbox as a whole: lists, groups, and frozen selections (P43).
 *
 * A filter decides by which index the rows are found:
 *
 *   an id                      one probe of the key per consumer and source
 *   an order key, unfinished   the index of the key, per consumer
 *   failed, waiting, unknown,  the index of held rows, per consumer and status
 *   dead, quarantined
 *   these and processing       the index of open rows, per consumer
 *   anything else              all rows by arrival: nothing else finds final rows in order
 *
 * Each probe or piece of an index is a walk. A page is the earliest rows of all walks; PostgreSQL merges them on the
 * server, SQLite's come walk by walk and are merged here. On SQLite a walk looks at no more rows than a window has, so
 * that no page keeps its snapshot for long: an old snapshot holds up the checkpoints of the write-ahead log (P25).
 *
 * On PostgreSQL a page of all rows costs a look at all of them. So who wants all pages finds the names of many rows at
 * once, within a window of arrivals, which costs what the window has while rows lie about in the order in which they
 * came (inbox_arrival); and then reads page after page by the names.
 *
 * Invariants: every matching row behind `after` and up to `until` is in the page. A damaged row is counted by the list,
 * and uses up no place in it. Groups look at no more rows than they may (P44). Nothing here takes a lock that a
 * consumer would wait for. A selection never grows or shrinks; a place is marked once, and the first mark stays; what
 * is left is found by its own index, so that going on costs nothing for what was handled before.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/state.h"
#include "store/records.h"

#define CONSUMERS_MAX 10000
#define SOURCES_MAX 100000
#define PAGE 1000
#define PAGE_PAYLOADS 50
#define WINDOW 20000
#define SELECT_PAGE 10000
#define DAMAGED_MAX 100000

enum way { BY_ID, BY_KEY, BY_HELD, BY_OPEN, BY_ALL };

static const struct {
    enum sql_id window, list, names, group;
} ways[] = {
    [BY_ID] = {0, SQL_list_id, SQL_list_id, SQL_group_id}, /* a probe needs no window */
    [BY_KEY] = {SQL_window_key, SQL_list_key, SQL_list_key, SQL_group_key},
    [BY_HELD] = {SQL_window_held, SQL_list_held, SQL_list_held, SQL_group_held},
    [BY_OPEN] = {SQL_window_open, SQL_list_open, SQL_list_open, SQL_group_open},
    [BY_ALL] = {SQL_window_all, SQL_list_all, SQL_names_all, SQL_group_all},
};

struct args {
    struct semel_filter filter;
    struct semel_str statuses, after_consumer;
    int64_t after, until, limit, window, cap;
    bool with_payload;
};

#define ARGS struct args
static const struct sql_field args_fields[] = {
    SQL_FIELD(ARGS, filter.consumer, consumer),
    SQL_FIELD(ARGS, filter.source, about_source),
    SQL_FIELD(ARGS, filter.id, message_id),
    SQL_FIELD(ARGS, filter.type, type),
    SQL_FIELD(ARGS, filter.order_key, order_key),
    SQL_FIELD(ARGS, filter.error_class, shown_class),
    SQL_FIELD(ARGS, filter.error_text, contains),
    SQL_FIELD(ARGS, filter.received_before_us, received_before),
    SQL_FIELD(ARGS, filter.received_after_us, received_after),
    SQL_FIELD(ARGS, statuses, statuses),
    SQL_FIELD(ARGS, after_consumer, after_consumer),
    SQL_FIELD(ARGS, after, after_arrival),
    SQL_FIELD(ARGS, until, until_arrival),
    SQL_FIELD(ARGS, limit, limit),
    SQL_FIELD(ARGS, window, window),
    SQL_FIELD(ARGS, cap, cap),
    SQL_FIELD(ARGS, with_payload, with_payload),
};

struct walk {
    struct semel_str consumer, source, id;
    enum semel_row_status status;
};

#define WALK struct walk
static const struct sql_field walk_fields[] = {
    SQL_SHOWN(WALK, consumer, consumer, 0),
    SQL_SHOWN(WALK, source, source, 0),
    SQL_SHOWN(WALK, id, message_id, 0),
    SQL_SHOWN(WALK, status, status, 0),
};

/* How every item begins that a page is made of. */
struct found {
    int64_t arrival;
    bool damaged;
};

struct listing {
    struct sql *db;
    const char *doing;
    enum way way;
    enum sql_id list; /* what finds a page */
    struct args args;
    int64_t ceiling; /* nothing behind it is looked for; of lists by names only */
    char statuses[RECORD_STATUSES];
    struct semel_arena *arena; /* for what is found */
    struct semel_arena names;  /* of the walks */
    struct sql_list walks;
    struct sql_list items; /* what was found: each begins with a struct found, and `fill` reads the rest */
    semel_status (*fill)(const struct sql_row *row, struct semel_arena *arena, struct found *found,
                         struct semel_error *err);
    size_t before; /* of them, by the pages before this one */
    size_t damaged;
};

/* ---- the way ------------------------------------------------------------------------------------- */

static bool held(enum semel_row_status state)
{
    return !semel__state_final(state) && state != SEMEL_ROW_PROCESSING && state != SEMEL_ROW_ABSENT;
}

static bool unended(enum semel_row_status state)
{
    return held(state) || state == SEMEL_ROW_PROCESSING;
}

static bool only(unsigned states, bool (*is)(enum semel_row_status))
{
    for (unsigned i = 0; i < SEMEL_ROW_COUNT; i++)
        if ((states & (1u << i)) != 0 && !is((enum semel_row_status)i))
            return false;
    return states != 0;
}

static enum way way_of(const struct semel_filter *filter)
{
    if (semel__str_given(filter->id))
        return BY_ID;
    if (semel__str_given(filter->order_key) && only(filter->states, semel__state_unfinished))
        return BY_KEY;
    if (only(filter->states, held))
        return BY_HELD;
    return only(filter->states, unended) ? BY_OPEN : BY_ALL;
}

/* Text that no column can hold matches nothing. */
static bool sound(const struct semel_filter *filter)
{
    const struct semel_str texts[] = {filter->consumer, filter->source,    filter->id,
                                      filter->type,     filter->order_key, filter->error_class};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].n > 0 && !semel__utf8_valid(texts[i]))
            return false;
    return true;
}

/* ---- the walks ----------------------------------------------------------------------------------- */

static semel_status add_walks(struct listing *l, struct semel_str consumer, struct semel_error *err)
{
    struct walk walk = {.consumer = consumer, .source = l->args.filter.source, .id = l->args.filter.id};
    semel_status status = SEMEL_OK;
    if (l->way != BY_HELD)
        return semel__db_list_put(&l->walks, &walk, err);
    for (unsigned i = 0; status == SEMEL_OK && i < SEMEL_ROW_COUNT; i++) {
        walk.status = (enum semel_row_status)i;
        if ((l->args.filter.states & (1u << i)) != 0)
            status = semel__db_list_put(&l->walks, &walk, err);
    }
    return status;
}

static semel_status ask_names(struct listing *l, enum sql_id id, size_t max, struct sql_list *list,
                              struct semel_error *err)
{
    l->args.limit = (int64_t)max + 1;
    return semel__db_do(l->db, l->doing, id, SQL_ONE(args_fields, &l->args), NULL, semel__db_read_list, list, err);
}

static semel_status walk_sources(struct listing *l, struct semel_error *err)
{
    semel_status status = ask_names(l, SQL_place_list, SOURCES_MAX, &l->walks, err);
    for (size_t i = 0; i < l->walks.n; i++)
        ((struct walk *)l->walks.items)[i].id = l->args.filter.id;
    if (status == SEMEL_OK && l->walks.n > SOURCES_MAX)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "there are more than %d sources: name the consumer and the source of the message",
                             SOURCES_MAX);
    return status;
}

static semel_status walk_consumers(struct listing *l, struct semel_error *err)
{
    struct sql_list names = {SQL_FIELDS(walk_fields), .arena = &l->names, .size = sizeof(struct walk)};
    semel_status status = ask_names(l, SQL_consumer_list, CONSUMERS_MAX, &names, err);
    if (status == SEMEL_OK && names.n > CONSUMERS_MAX)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "there are more than %d consumers: name the one that is meant", CONSUMERS_MAX);
    for (size_t i = 0; status == SEMEL_OK && i < names.n; i++)
        status = add_walks(l, ((struct walk *)names.items)[i].consumer, err);
    semel__free(names.items);
    return status;
}

/* Without walks yet. */
static semel_status start_empty(struct listing *l, struct semel_store *store, const struct semel_filter *filter,
                                const char *doing, struct semel_error *err)
{
    l->db = semel__db_query(store, err);
    l->doing = doing;
    l->way = way_of(filter);
    l->list = ways[l->way].list;
    l->args.filter = *filter;
    l->args.statuses = semel__record_statuses(filter->states, l->statuses);
    l->args.after = -1;
    l->args.until = l->ceiling = INT64_MAX;
    semel__arena_init(&l->names, INT32_MAX);
    l->walks = (struct sql_list){SQL_FIELDS(walk_fields), .arena = &l->names, .size = sizeof(struct walk)};
    return l->db != NULL ? SEMEL_OK : SEMEL_INVALID;
}

/* No walks: nothing can match. */
static semel_status start(struct listing *l, struct semel_store *store, const struct semel_filter *filter,
                          const char *doing, struct semel_error *err)
{
    semel_status status = start_empty(l, store, filter, doing, err);
    if (status != SEMEL_OK)
        return status;
    if (!sound(filter))
        return SEMEL_OK;
    if (l->way == BY_ID && !semel__str_given(filter->source))
        return walk_sources(l, err);
    if (l->way == BY_ALL || semel__str_given(filter->consumer))
        return add_walks(l, filter->consumer, err);
    return walk_consumers(l, err);
}

static void end(struct listing *l)
{
    semel__free(l->walks.items);
    semel__arena_done(&l->names);
}

/* ---- pages --------------------------------------------------------------------------------------- */

static int cmp_arrival(const void *a, const void *b)
{
    int64_t x = ((const struct found *)a)->arrival, y = ((const struct found *)b)->arrival;
    return x < y ? -1 : x > y;
}

static struct found *at(const struct listing *l, size_t i)
{
    return (struct found *)((char *)l->items.items + i * l->items.size);
}

/* The earliest rows of the page. When there are enough, nothing behind the last of them is needed. */
static bool cut(struct listing *l)
{
    size_t n = l->items.n - l->before, limit = (size_t)l->args.limit;
    if (n > 0)
        qsort(at(l, l->before), n, l->items.size, cmp_arrival);
    if (n < limit)
        return false;
    l->items.n = l->before + limit;
    l->args.until = at(l, l->items.n - 1)->arrival;
    return true;
}

static semel_status read_found(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field arrival[] = {SQL_FIELD(struct found, arrival, arrival)};
    struct listing *l = ctx;
    (void)item;
    if (l->items.n - l->before >= 2 * (size_t)l->args.limit)
        cut(l);
    struct found *found = semel__db_list_add(&l->items);
    semel_status status = found != NULL ? semel__db_fill(row, arrival, 1, NULL, found, err) : semel__fail_memory(err);
    if (status != SEMEL_OK)
        return status;
    status = l->fill(row, l->arena, found, err);
    found->damaged = status == SEMEL_INVALID;
    return found->damaged ? SEMEL_OK : status;
}

static semel_status shorten(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field arrival[] = {SQL_FIELD(struct found, arrival, arrival)};
    struct listing *l = ctx;
    struct found found;
    (void)item;
    semel_status status = semel__db_fill(row, arrival, 1, NULL, &found, err);
    if (status == SEMEL_OK && found.arrival < l->args.until)
        l->args.until = found.arrival;
    return status;
}

static semel_status read_page(struct listing *l, bool *ret_full, struct semel_error *err)
{
    const struct sql_set *once = SQL_ONE(args_fields, &l->args);
    const struct sql_set *each = SQL_EACH(walk_fields, (struct walk *)l->walks.items, l->walks.n);
    semel_status status = SEMEL_OK;
    l->args.until = l->ceiling;
    if (l->way != BY_ID) {
        status = semel__db_do(l->db, l->doing, ways[l->way].window, once, each, shorten, l, err);
    }
    if (status != SEMEL_OK)
        return status;
    status = semel__db_do(l->db, l->doing, l->list, once, each, read_found, l, err);
    *ret_full = status == SEMEL_OK && cut(l);
    return status;
}

/* Leaves out damaged rows of the page, and good ones that are too many. */
static void sift(struct listing *l, size_t max)
{
    size_t n = l->before;
    for (size_t i = l->before; i < l->items.n && n < max; i++) {
        l->damaged += at(l, i)->damaged;
        if (!at(l, i)->damaged)
            memmove(at(l, n++), at(l, i), l->items.size);
    }
    l->items.n = n;
}

/* Where there is no index, a page costs PostgreSQL a walk over all rows: then it is one page, and when damaged rows
 * took the places of good ones, the next is twice as long. */
static semel_status find_all(struct listing *l, size_t max, struct semel_error *err)
{
    size_t page = l->way == BY_ALL ? max : l->args.with_payload ? PAGE_PAYLOADS : PAGE;
    size_t least = 0;
    semel_status status = SEMEL_OK;
    l->args.window = 0;
    for (bool more = l->walks.n > 0; status == SEMEL_OK && more; l->args.after = l->args.until) {
        bool full = false;
        size_t limit = max - l->items.n < page ? max - l->items.n : page;
        l->before = l->items.n;
        l->args.limit = semel__db_limit(limit > least ? limit : least);
        l->args.window = 2 * l->args.window > l->args.limit ? 2 * l->args.window : l->args.limit;
        l->args.window = l->args.window < WINDOW ? l->args.window : WINDOW;
        status = read_page(l, &full, err);
        if (status == SEMEL_OK)
            sift(l, max);
        least = full && l->way == BY_ALL ? 2 * (size_t)l->args.limit : 0;
        more = l->args.until < l->ceiling && l->items.n < max && l->damaged < DAMAGED_MAX;
    }
    return status;
}

/* ---- list ---------------------------------------------------------------------------------------- */

struct listed {
    struct found found;
    struct semel_row row;
};

static semel_status fill_listed(const struct sql_row *row, struct semel_arena *arena, struct found *found,
                                struct semel_error *err)
{
    return semel__record_row(row, arena, &((struct listed *)found)->row, err);
}

static semel_status give_rows(const struct listing *l, struct semel_arena *arena, struct semel_row **ret,
                              struct semel_error *err)
{
    *ret = semel__arena_alloc(arena, l->items.n, sizeof(**ret));
    if (*ret == NULL && l->items.n > 0)
        return semel__fail_memory(err);
    for (size_t i = 0; i < l->items.n; i++)
        (*ret)[i] = ((const struct listed *)l->items.items)[i].row;
    return SEMEL_OK;
}

semel_status semel_query_list(struct semel_store *store, const struct semel_filter *filter, int64_t after_arrival,
                              size_t max, bool with_payload, struct semel_arena *arena, struct semel_row **ret,
                              size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    struct listing l = {.arena = arena, .items = {.size = sizeof(struct listed)}, .fill = fill_listed};
    struct semel_row *rows = NULL;
    assert(max > 0);
    semel_status status = start(&l, store, filter, "listing the inbox", err);
    l.args.after = after_arrival != SEMEL_NONE ? after_arrival : -1;
    l.args.with_payload = with_payload;
    if (status == SEMEL_OK)
        status = find_all(&l, max, err);
    if (status == SEMEL_OK)
        status = give_rows(&l, arena, &rows, err);
    semel__free(l.items.items);
    end(&l);
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err); /* damage is counted, it is no error of the call */
    *ret = rows;
    *ret_n = l.items.n;
    if (ret_damaged != NULL)
        *ret_damaged = l.damaged;
    return SEMEL_OK;
}

/* ---- a walk over all that match ------------------------------------------------------------------ */

#define SHORT_MAX 2 /* so many windows in turn that are not filled: the next has no end */

struct named {
    struct found found;
    struct walk walk;
};

#define NAMED struct named
static const struct sql_field named_fields[] = {
    SQL_MUST(NAMED, walk.consumer, consumer, 0, 0),
    SQL_MUST(NAMED, walk.source, source, 0, 0),
    SQL_MUST(NAMED, walk.id, message_id, 0, 0),
};

static semel_status fill_named(const struct sql_row *row, struct semel_arena *arena, struct found *found,
                               struct semel_error *err)
{
    return semel__db_fill(row, SQL_FIELDS(named_fields), arena, found, err);
}

void semel_walk_init(struct semel_walk *walk, const struct semel_filter *filter, size_t names_max)
{
    assert(names_max > 0);
    *walk = (struct semel_walk){.filter = *filter, .names_max = names_max, .after = -1, .more = true};
    semel__arena_init(&walk->arena, INT32_MAX);
}

void semel_walk_done(struct semel_walk *walk)
{
    semel__free(walk->names);
    semel__arena_done(&walk->arena);
}

/* Goes on behind the names that were found. The next window of arrivals is so wide that it should have twice as many
 * as are wanted: one that has fewer is lost time where PostgreSQL has to read the whole table for it. */
static void go_on(struct semel_walk *walk, const struct listing *l, size_t max)
{
    if (l->walks.n == 0) {
        walk->more = false;
    } else if (l->items.n == max) {
        const int64_t first = at(l, 0)->arrival, last = at(l, max - 1)->arrival;
        walk->after = last;
        walk->window = last - first < INT64_MAX / 64 ? 2 * (last - first) + 1 : 0;
        walk->n_short = 0;
    } else {
        walk->after = l->args.until;
        walk->more = walk->after < INT64_MAX;
        walk->window = ++walk->n_short < SHORT_MAX ? 8 * walk->window : 0;
    }
}

/* The names of those that match next. Of a way that has an index whole rows are read for them, so these are fewer. */
static semel_status find_names(struct semel_store *store, struct semel_walk *walk, struct semel_error *err)
{
    struct listing l = {.arena = &walk->arena, .items = {.size = sizeof(struct named)}, .fill = fill_named};
    semel__free(walk->names);
    walk->names = NULL;
    walk->n = walk->next = 0;
    semel__arena_reset(&walk->arena);
    semel_status status = start(&l, store, &walk->filter, "walking over the inbox", err);
    const size_t max = l.way == BY_ALL || walk->names_max < SELECT_PAGE ? walk->names_max : SELECT_PAGE;
    l.list = ways[l.way].names;
    l.args.after = walk->after;
    if (l.way == BY_ALL && walk->window > 0 && walk->after < INT64_MAX - walk->window)
        l.ceiling = walk->after + walk->window;
    if (status == SEMEL_OK)
        status = find_all(&l, max, err);
    if (status == SEMEL_OK) {
        go_on(walk, &l, max);
        walk->names = l.items.items;
        walk->n = l.items.n;
        walk->damaged += l.damaged;
    } else {
        semel__free(l.items.items);
    }
    end(&l);
    return status;
}

/* Their rows, as far as they are there and match still. */
static semel_status find_rows(struct listing *l, const struct named *names, size_t n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    l->way = BY_ID;
    l->list = SQL_list_id;
    l->args.filter.id = (struct semel_str){0}; /* each has its own */
    l->args.after = names[0].found.arrival - 1;
    l->ceiling = names[n - 1].found.arrival; /* what has come anew since is met later */
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = semel__db_list_put(&l->walks, &names[i].walk, err);
    l->args.limit = semel__db_limit(n);
    bool full;
    if (status == SEMEL_OK)
        status = read_page(l, &full, err);
    if (status == SEMEL_OK)
        sift(l, n);
    return status;
}

semel_status semel_query_walk(struct semel_store *store, struct semel_walk *walk, size_t max, struct semel_arena *arena,
                              struct semel_row **ret, size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    struct listing l = {.arena = arena, .items = {.size = sizeof(struct listed)}, .fill = fill_listed};
    semel_status status = SEMEL_OK;
    assert(max > 0);
    while (status == SEMEL_OK && walk->next == walk->n && walk->more)
        status = find_names(store, walk, err);
    const size_t n = walk->n - walk->next < max ? walk->n - walk->next : max;
    if (status == SEMEL_OK)
        status = start_empty(&l, store, &walk->filter, "reading the messages of a walk", err);
    l.args.with_payload = true;
    if (status == SEMEL_OK && n > 0)
        status = find_rows(&l, (const struct named *)walk->names + walk->next, n, err);
    if (status == SEMEL_OK)
        status = give_rows(&l, arena, ret, err);
    semel__free(l.items.items);
    end(&l);
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err);
    walk->next += n;
    *ret_n = l.items.n;
    *ret_damaged = walk->damaged + l.damaged;
    walk->damaged = 0;
    return SEMEL_OK;
}

/* ---- groups -------------------------------------------------------------------------------------- */

struct grouped {
    struct semel_group group;
    bool capped;
};

#define GROUPED struct grouped
static const struct sql_field group_fields[] = {
    SQL_SHOWN(GROUPED, group.consumer, consumer, SEMEL_ID_MAX),
    SQL_SHOWN(GROUPED, group.state, status, 0),
    SQL_SHOWN(GROUPED, group.error_class, shown_class, SEMEL_ID_MAX),
    SQL_SHOWN(GROUPED, group.error_text, error_text, SEMEL_ERROR_TEXT_MAX),
    SQL_SHOWN(GROUPED, group.n, count, 0),
    SQL_SHOWN(GROUPED, group.first_us, first_at, 0),
    SQL_SHOWN(GROUPED, group.last_us, last_at, 0),
    SQL_SHOWN(GROUPED, group.source, source, SEMEL_ID_MAX),
    SQL_SHOWN(GROUPED, group.id, message_id, SEMEL_ID_MAX),
    SQL_SHOWN(GROUPED, capped, capped, 0),
};

struct grouping {
    struct sql_list groups;
    bool capped;
};

/* A status that is none of ours makes no group. */
static semel_status read_group(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct grouping *g = ctx;
    struct grouped read = {0};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(group_fields), g->groups.arena, &read, err);
    g->capped = g->capped || read.capped;
    if (status != SEMEL_OK || read.group.state == SEMEL_ROW_ABSENT)
        return status;
    return semel__db_list_put(&g->groups, &read.group, err);
}

semel_status semel_query_groups(struct semel_store *store, const struct semel_filter *filter, int64_t cap, size_t max,
                                struct semel_arena *arena, struct semel_group **ret, size_t *ret_n, bool *ret_capped,
                                struct semel_error *err)
{
    struct listing l = {0};
    struct grouping g = {.groups = {.arena = arena, .size = sizeof(**ret)}};
    assert(cap > 0 && max > 0);
    semel_status status = start(&l, store, filter, "grouping the inbox", err);
    l.args.cap = cap;
    l.args.limit = semel__db_limit(max);
    if (status == SEMEL_OK) {
        status = semel__db_do(l.db, l.doing, ways[l.way].group, SQL_ONE(args_fields, &l.args),
                              SQL_EACH(walk_fields, (struct walk *)l.walks.items, l.walks.n), read_group, &g, err);
    }
    status = semel__db_list_end(&g.groups, status, err);
    end(&l);
    if (status != SEMEL_OK)
        return status;
    *ret = g.groups.items;
    *ret_n = g.groups.n;
    *ret_capped = g.capped;
    return SEMEL_OK;
}

/* ---- making a selection -------------------------------------------------------------------------- */

/* A row that was chosen, with the time of its last change, by which a later command sees whether it has changed. */
struct chosen {
    struct found found;
    struct semel_selected row;
};

#define CHOSEN struct chosen
static const struct sql_field chosen_fields[] = {
    SQL_MUST(CHOSEN, row.consumer, consumer, 0, 0),
    SQL_MUST(CHOSEN, row.source, source, 0, 0),
    SQL_MUST(CHOSEN, row.id, message_id, 0, 0),
    SQL_MUST(CHOSEN, row.updated_us, updated_at, 0, 0),
    SQL_FIELD(CHOSEN, row.place, place),
};

/* A damaged one has no name that could be written down. */
static semel_status fill_chosen(const struct sql_row *row, struct semel_arena *arena, struct found *found,
                                struct semel_error *err)
{
    return semel__db_fill(row, SQL_FIELDS(chosen_fields), arena, found, err);
}

struct making {
    struct semel_selection selection;
    int64_t now_us;
};

#define MAKING struct making
static const struct sql_field making_fields[] = {
    SQL_FIELD(MAKING, selection.command, command), SQL_FIELD(MAKING, selection.who, who),
    SQL_FIELD(MAKING, selection.reason, reason),   SQL_FIELD(MAKING, selection.force, force),
    SQL_FIELD(MAKING, selection.number, number),   SQL_FIELD(MAKING, now_us, now),
};
static const struct sql_field number_fields[] = {
    SQL_MUST(MAKING, selection.number, number, 1, INT64_MAX),
};

static semel_status check_selection(const struct semel_selection *s, struct semel_error *err)
{
    if (!semel__str_eqz(s->command, "retry") && !semel__str_eqz(s->command, "discard") &&
        !semel__str_eqz(s->command, "resolve"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "a selection is for one of these: retry, discard, resolve");
    if (s->reason.n == 0 || s->reason.n > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(s->reason))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the reason must be UTF-8 text of 1 to %d bytes",
                           SEMEL_ERROR_TEXT_MAX);
    return semel__id_check("who", s->who, 1, err);
}

/* A person has chosen: a line, besides those of the messages (B4). */
static semel_status audit_selection(struct semel_store *store, const struct semel_selection *s, int64_t now_us,
                                    struct semel_error *err)
{
    char what[100];
    snprintf(what, sizeof what, "selection %lld: %.*s of %lld messages", (long long)s->number, (int)s->command.n,
             s->command.p, (long long)s->n);
    struct semel_audit line = {.who = s->who, .what = semel__str(what), .reason = s->reason};
    return semel__record_audit(store, &line, 1, now_us, err);
}

/* One page of them, behind the `before` that are written down already. */
static semel_status fill_page(struct listing *l, struct making *m, size_t before, struct semel_error *err)
{
    struct chosen *chosen = l->items.items;
    struct sql_into into = {SQL_FIELDS(number_fields), .items = m, .size = sizeof(*m)};
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < l->items.n; i++)
        chosen[i].row.place = (int64_t)(before + i) + 1;
    if (before == 0)
        status = semel__db_do(l->db, l->doing, SQL_selection_make, SQL_ONE(making_fields, m), NULL, semel__db_read_item,
                              &into, err);
    if (status != SEMEL_OK)
        return status;
    return semel__db_do(l->db, l->doing, SQL_selection_fill, SQL_ONE(making_fields, m),
                        SQL_EACH(chosen_fields, chosen, l->items.n), NULL, NULL, err);
}

/* In the order of arrival, page by page, so that memory has to hold only one. */
static semel_status fill_all(struct listing *l, struct making *m, size_t max, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    size_t n = 0;
    for (bool more = true; status == SEMEL_OK && more;) {
        const size_t page = max - n < SELECT_PAGE ? max - n + 1 : SELECT_PAGE;
        semel__arena_reset(l->arena);
        l->items.n = 0;
        status = find_all(l, page, err);
        more = l->items.n == page;
        if (more)
            l->args.after = at(l, page - 1)->arrival;
        if (status == SEMEL_OK && n + l->items.n > max)
            status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                                 "more than %zu messages match; narrow the filter (consumer, status, type, error, key "
                                 "or age) and take the rest afterwards",
                                 max);
        if (status == SEMEL_OK && l->items.n > 0)
            status = fill_page(l, m, n, err);
        n += l->items.n;
    }
    m->selection.n = (int64_t)n;
    return status;
}

semel_status semel_query_select(struct semel_store *store, const struct semel_filter *filter, size_t max,
                                int64_t now_us, struct semel_selection *selection, struct semel_error *err)
{
    struct listing l = {.items = {.size = sizeof(struct chosen)}, .fill = fill_chosen};
    struct making m = {.selection = *selection, .now_us = now_us};
    struct semel_arena arena;
    assert(store->in_tx && max > 0);
    m.selection.number = 0;
    semel_status status = check_selection(selection, err);
    if (status != SEMEL_OK)
        return status;
    status = start(&l, store, filter, "writing down a selection", err);
    semel__arena_init(&arena, INT32_MAX);
    l.arena = &arena;
    if (status == SEMEL_OK)
        status = fill_all(&l, &m, max, err);
    semel__arena_done(&arena);
    semel__free(l.items.items);
    end(&l);
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err);
    selection->number = m.selection.number;
    selection->made_us = now_us;
    selection->n = selection->left = m.selection.n;
    selection->done = selection->skipped = selection->refused = 0;
    return selection->n > 0 ? audit_selection(store, selection, now_us, err) : SEMEL_OK;
}

/* ---- going on with a selection ------------------------------------------------------------------- */

struct marked {
    int64_t number, place, place_end, limit;
};

static const struct sql_field marked_fields[] = {
    SQL_FIELD(struct marked, number, number),
    SQL_FIELD(struct marked, place, place),
    SQL_FIELD(struct marked, place_end, place_end),
    SQL_FIELD(struct marked, limit, limit),
};

#define SELECTION struct semel_selection
static const struct sql_field selection_fields[] = {
    SQL_SHOWN(SELECTION, command, command, SEMEL_ID_MAX),
    SQL_SHOWN(SELECTION, who, who, SEMEL_ID_MAX),
    SQL_SHOWN(SELECTION, reason, reason, SEMEL_ERROR_TEXT_MAX),
    SQL_SHOWN(SELECTION, force, force, 0),
    SQL_SHOWN(SELECTION, made_us, made_at, 0),
    SQL_SHOWN(SELECTION, n, count, 0),
    SQL_SHOWN(SELECTION, done, done_n, 0),
    SQL_SHOWN(SELECTION, skipped, skipped_n, 0),
    SQL_SHOWN(SELECTION, refused, refused_n, 0),
};

#define SELECTED struct semel_selected
static const struct sql_field selected_fields[] = {
    SQL_SHOWN(SELECTED, place, place, 0),
    SQL_SHOWN(SELECTED, consumer, consumer, SEMEL_ID_MAX),
    SQL_SHOWN(SELECTED, source, source, SEMEL_ID_MAX),
    SQL_SHOWN(SELECTED, id, message_id, SEMEL_ID_MAX),
    SQL_SHOWN(SELECTED, updated_us, updated_at, 0),
};

semel_status semel_query_selection(struct semel_store *store, int64_t number, struct semel_arena *arena,
                                   struct semel_selection *ret, struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    const struct marked marked = {.number = number};
    struct semel_selection s = {.number = number};
    struct sql_into into = {SQL_FIELDS(selection_fields), .arena = arena, .items = &s, .size = sizeof s};
    if (db == NULL)
        return SEMEL_INVALID;
    semel_status status = semel__db_do(db, "reading a selection", SQL_selection_get, SQL_ONE(marked_fields, &marked),
                                       NULL, semel__db_read_item, &into, err);
    if (status == SEMEL_OK && into.filled == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there is no selection with the number %lld",
                           (long long)number);
    s.left = s.n - s.done - s.skipped - s.refused;
    if (status == SEMEL_OK)
        *ret = s;
    return status;
}

static semel_status read_selected(struct semel_store *store, enum sql_id statement, const struct marked *marked,
                                  struct semel_arena *arena, struct semel_selected **ret, size_t *ret_n,
                                  struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    struct sql_list list = {SQL_FIELDS(selected_fields), .arena = arena, .size = sizeof(**ret)};
    assert(marked->limit > 0);
    if (db == NULL)
        return SEMEL_INVALID;
    semel_status status = semel__db_do(db, "reading what was selected", statement, SQL_ONE(marked_fields, marked), NULL,
                                       semel__db_read_list, &list, err);
    status = semel__db_list_end(&list, status, err);
    if (status == SEMEL_OK) {
        *ret = list.items;
        *ret_n = list.n;
    }
    return status;
}

semel_status semel_query_selected(struct semel_store *store, int64_t number, size_t max, struct semel_arena *arena,
                                  struct semel_selected **ret, size_t *ret_n, struct semel_error *err)
{
    const struct marked marked = {.number = number, .limit = semel__db_limit(max)};
    return read_selected(store, SQL_selection_left, &marked, arena, ret, ret_n, err);
}

semel_status semel_query_again(struct semel_store *store, int64_t number, int64_t after, int64_t end, size_t max,
                               struct semel_arena *arena, struct semel_selected **ret, size_t *ret_n,
                               struct semel_error *err)
{
    const struct marked marked = {.number = number, .place = after, .place_end = end, .limit = semel__db_limit(max)};
    return read_selected(store, SQL_selection_again, &marked, arena, ret, ret_n, err);
}

static semel_status add_changes(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    (void)item;
    (void)err;
    *(int64_t *)ctx += row->changes;
    return SEMEL_OK;
}

semel_status semel_query_mark(struct semel_store *store, int64_t number, const struct semel_mark *marks, size_t n,
                              struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_FIELD(struct semel_mark, place, place),
        SQL_FIELD(struct semel_mark, result, result),
    };
    struct sql *db = semel__db_query(store, err);
    const struct marked marked = {.number = number};
    int64_t changes = 0;
    assert(store->in_tx && n > 0);
    if (db == NULL)
        return SEMEL_INVALID;
    for (size_t i = 0; i < n; i++)
        if (!semel__str_eqz(marks[i].result, "done") && !semel__str_eqz(marks[i].result, "skipped") &&
            !semel__str_eqz(marks[i].result, "refused"))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                               "what came of a selected message is one of these: done, skipped, refused");
    semel_status status = semel__db_do(db, "marking selected messages", SQL_selection_mark,
                                       SQL_ONE(marked_fields, &marked), SQL_EACH(fields, marks, n), add_changes,
                                       &changes, err);
    if (status == SEMEL_OK && changes < (int64_t)n)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "selection %lld has no place %lld%s",
                           (long long)number, (long long)marks[0].place, n > 1 ? ", or not one behind it" : "");
    return status;
}
