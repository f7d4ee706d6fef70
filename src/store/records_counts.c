/* SPDX-License-Identifier: MIT
 *
 * records_counts.c: how many rows each consumer has in each state, and how many events wait in the outbox.
 *
 * Invariants: no count looks at more rows than it may (P44), or takes a lock that a consumer would wait for; all counts
 * are of one snapshot.
 */
#include <assert.h>
#include <stdlib.h>

#include "core/state.h"
#include "store/records.h"

#define CONSUMERS_MAX 10000

struct args {
    struct semel_str after;
    int64_t limit, cap, final_cap;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, after, after_consumer),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, cap, cap),
    SQL_FIELD(struct args, final_cap, final_cap),
};

#define COUNT struct semel_count
static const struct sql_field item_fields[] = {
    SQL_FIELD(COUNT, consumer, consumer),
    SQL_FIELD(COUNT, state, status),
};
static const struct sql_field count_fields[] = {
    SQL_SHOWN(COUNT, state, status, 0),
    SQL_SHOWN(COUNT, n, count, 0),
    SQL_SHOWN(COUNT, oldest_us, oldest_at, 0),
    SQL_SHOWN(COUNT, next_us, next_at, 0),
};

struct counting {
    struct sql *db;
    struct args args;
    struct semel_arena *arena;
    struct sql_list names, processing, held, final; /* of struct semel_count; names: only the consumer */
};

/* ---- consumers ----------------------------------------------------------------------------------- */

static semel_status add(struct sql_list *list, struct semel_str consumer, enum semel_row_status state,
                        struct semel_error *err)
{
    const COUNT count = {.consumer = consumer, .state = state, .oldest_us = SEMEL_NONE, .next_us = SEMEL_NONE};
    return semel__db_list_put(list, &count, err);
}

static semel_status find_names(struct counting *c, struct semel_str given, struct semel_error *err)
{
    static const struct sql_field name[] = {SQL_SHOWN(COUNT, consumer, consumer, 0)};
    struct semel_str copy;
    if (semel__str_given(given) && !semel__utf8_valid(given)) /* nobody has that name */
        return SEMEL_OK;
    if (semel__str_given(given))
        return semel__arena_copy(c->arena, given, &copy) ? add(&c->names, copy, SEMEL_ROW_ABSENT, err)
                                                         : semel__fail_memory(err);
    c->names.fields = name;
    c->names.n_fields = 1;
    semel_status status = semel__db_do(c->db, "listing consumers", SQL_consumer_list, SQL_ONE(args_fields, &c->args),
                                       NULL, semel__db_read_list, &c->names, err);
    if (status == SEMEL_OK && c->names.n > CONSUMERS_MAX)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "there are more than %d consumers: name the one that is meant", CONSUMERS_MAX);
    return status;
}

/* ---- counting ------------------------------------------------------------------------------------ */

static semel_status make_items(struct counting *c, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < c->names.n; i++)
        for (unsigned s = SEMEL_ROW_ABSENT + 1; status == SEMEL_OK && s < SEMEL_ROW_COUNT; s++)
            if (!semel__state_final((enum semel_row_status)s))
                status = add(s == SEMEL_ROW_PROCESSING ? &c->processing : &c->held,
                             ((COUNT *)c->names.items)[i].consumer, (enum semel_row_status)s, err);
    return status;
}

static semel_status read_final(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct counting *c = ctx;
    semel_status status = add(&c->final, ((COUNT *)c->names.items)[item].consumer, SEMEL_ROW_ABSENT, err);
    if (status != SEMEL_OK)
        return status;
    return semel__db_fill(row, SQL_FIELDS(count_fields), NULL, (COUNT *)c->final.items + c->final.n - 1, err);
}

static semel_status count_items(struct counting *c, struct semel_error *err)
{
    const struct sql_set *once = SQL_ONE(args_fields, &c->args);
    const struct sql_list *const lists[] = {&c->processing, &c->held, &c->names};
    static const enum sql_id ids[] = {SQL_count_processing, SQL_count_held, SQL_count_final};
    struct sql_into into[2];
    semel__db_start(c->db, "counting the inbox");
    for (size_t i = 0; i < 3; i++) {
        const struct sql_set each = {SQL_FIELDS(item_fields), lists[i]->items, sizeof(COUNT), lists[i]->n};
        if (i < 2)
            into[i] = (struct sql_into){SQL_FIELDS(count_fields), .items = lists[i]->items, .size = sizeof(COUNT)};
        if (i < 2)
            semel__db_run(c->db, ids[i], once, &each, semel__db_read_item, &into[i]);
        else if (c->args.final_cap > 0)
            semel__db_run(c->db, ids[i], once, &each, read_final, c);
    }
    return semel__db_flush(c->db, err);
}

/* ---- the result ---------------------------------------------------------------------------------- */

static int cmp_count(const void *a, const void *b)
{
    const COUNT *x = a, *y = b;
    int c = semel__str_cmp(x->consumer, y->consumer);
    return c != 0 ? c : (int)x->state - (int)y->state;
}

/* All final states of a consumer are counted by one look at `final_cap` rows. */
static void cap_final(struct counting *c)
{
    COUNT *all = c->final.items;
    for (size_t i = 0, end; i < c->final.n; i = end) {
        int64_t sum = 0;
        for (end = i; end < c->final.n && semel__str_eq(all[end].consumer, all[i].consumer); end++)
            sum += all[end].n;
        for (size_t k = i; k < end; k++)
            all[k].capped = sum >= c->args.final_cap;
    }
}

/* States without rows are left out, and so is a status that is none of ours. */
static semel_status collect(struct counting *c, struct sql_list *ret, struct semel_error *err)
{
    const struct sql_list *const lists[] = {&c->processing, &c->held, &c->final};
    cap_final(c);
    for (size_t l = 0; l < 3; l++)
        for (size_t i = 0; i < lists[l]->n; i++) {
            COUNT count = ((COUNT *)lists[l]->items)[i];
            if (count.n <= 0 || count.state == SEMEL_ROW_ABSENT)
                continue;
            count.capped = count.capped || (l < 2 && count.n >= c->args.cap);
            semel_status status = semel__db_list_put(ret, &count, err);
            if (status != SEMEL_OK)
                return status;
        }
    if (ret->n > 0)
        qsort(ret->items, ret->n, sizeof(COUNT), cmp_count);
    return SEMEL_OK;
}

semel_status semel_query_counts(struct semel_store *store, struct semel_str consumer, int64_t cap, int64_t final_cap,
                                struct semel_arena *arena, struct semel_count **ret, size_t *ret_n,
                                struct semel_error *err)
{
    const struct sql_list empty = {.arena = arena, .size = sizeof(COUNT)};
    struct counting c = {.db = semel__db_query(store, err), .arena = arena, .names = empty, .processing = empty};
    struct sql_list counts = empty;
    bool begun = false;
    c.held = c.final = empty;
    c.args = (struct args){.limit = CONSUMERS_MAX + 1, .cap = cap, .final_cap = final_cap};
    assert(cap > 0 && final_cap >= 0);
    if (c.db == NULL)
        return SEMEL_INVALID;
    semel_status status = c.db->driver->snapshot(c.db, &begun, err);
    if (status == SEMEL_OK)
        status = find_names(&c, consumer, err);
    if (status == SEMEL_OK)
        status = make_items(&c, err);
    if (status == SEMEL_OK)
        status = count_items(&c, err);
    c.db->driver->snapshot_end(c.db, begun);
    if (status == SEMEL_OK)
        status = collect(&c, &counts, err);
    semel__free(c.names.items);
    semel__free(c.processing.items);
    semel__free(c.held.items);
    semel__free(c.final.items);
    status = semel__db_list_end(&counts, status, err);
    if (status == SEMEL_OK) {
        *ret = counts.items;
        *ret_n = counts.n;
    }
    return status;
}

semel_status semel_query_outbox(struct semel_store *store, int64_t cap, int64_t *ret_n, int64_t *ret_oldest_us,
                                struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    const struct args args = {.cap = cap};
    COUNT count = {.oldest_us = SEMEL_NONE};
    struct sql_into into = {SQL_FIELDS(count_fields), .items = &count, .size = sizeof count};
    assert(cap > 0);
    if (db == NULL)
        return SEMEL_INVALID;
    semel_status status = semel__db_do(db, "counting the outbox", SQL_count_outbox, SQL_ONE(args_fields, &args), NULL,
                                       semel__db_read_item, &into, err);
    if (status == SEMEL_OK) {
        *ret_n = count.n;
        *ret_oldest_us = count.oldest_us;
    }
    return status;
}
