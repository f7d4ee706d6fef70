/* SPDX-License-Identifier: MIT
 *
 * records_positions.c: how far a consumer has come in each partition of its source.
 *
 * Invariants: rows are locked in the order of the items, which every caller keeps. A row is never deleted, so that no
 * epoch is used twice. A position does not go back under the same epoch: the statements keep that, and a trigger checks
 * it once more.
 */
#include "store/records.h"

struct args {
    struct semel_str consumer;
    int64_t now_us, limit;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer),
    SQL_FIELD(struct args, now_us, now),
    SQL_FIELD(struct args, limit, limit),
};

#define POSITION struct semel_position
static const struct sql_field item_fields[] = {
    SQL_FIELD(POSITION, source, source),
    SQL_FIELD(POSITION, partition, partition),
    SQL_FIELD(POSITION, epoch, epoch),
    SQL_FIELD(POSITION, offset, next_offset),
};
static const struct sql_field raised_fields[] = {
    SQL_MUST(POSITION, epoch, epoch, 1, INT64_MAX),
    SQL_MAYBE(POSITION, offset, next_offset, 0, INT64_MAX),
};
static const struct sql_field row_fields[] = {
    SQL_MUST(POSITION, source, source, 0, SEMEL_ID_MAX),    SQL_MUST(POSITION, partition, partition, 0, INT32_MAX),
    SQL_MAYBE(POSITION, offset, next_offset, 0, INT64_MAX), SQL_MUST(POSITION, epoch, epoch, 1, INT64_MAX),
    SQL_MUST(POSITION, updated_us, updated_at, 0, 0),
};

/* ---- writing ------------------------------------------------------------------------------------- */

static semel_status raise_epochs(struct semel_store *store, enum sql_id id, const char *doing,
                                 struct semel_str consumer, struct semel_position *items, size_t n, int64_t now_us,
                                 struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct args args = {.consumer = consumer, .now_us = now_us};
    struct sql_into into = {SQL_FIELDS(raised_fields), .items = items, .size = sizeof(*items)};
    semel_status status = semel__db_do(db, doing, id, SQL_ONE(args_fields, &args), SQL_EACH(item_fields, items, n),
                                       semel__db_read_item, &into, err);
    if (status == SEMEL_OK && into.filled != n)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: %zu of %zu rows came back", doing, into.filled,
                           n);
    return status;
}

semel_status semel__record_positions_acquire(struct semel_store *store, struct semel_str consumer,
                                             struct semel_position *items, size_t n, int64_t now_us,
                                             struct semel_error *err)
{
    return raise_epochs(store, SQL_position_take, "taking positions", consumer, items, n, now_us, err);
}

semel_status semel__record_positions_set(struct semel_store *store, struct semel_str consumer,
                                         struct semel_position *items, size_t n, int64_t now_us,
                                         struct semel_error *err)
{
    return raise_epochs(store, SQL_position_set, "setting positions", consumer, items, n, now_us, err);
}

semel_status semel__record_positions_move(struct semel_store *store, struct semel_str consumer,
                                          struct semel_position *items, size_t n, int64_t now_us,
                                          struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct args args = {.consumer = consumer, .now_us = now_us};
    const struct sql_set *once = SQL_ONE(args_fields, &args), *each = SQL_EACH(item_fields, items, n);
    struct sql_noted noted = {items, sizeof(*items), offsetof(POSITION, fenced), false};
    for (size_t i = 0; i < n; i++)
        items[i].fenced = true;
    semel__db_start(db, "moving positions");
    if (n > 1)
        semel__db_run(db, SQL_position_lock, once, each, NULL, NULL);
    semel__db_run(db, SQL_position_move, once, each, semel__db_read_noted, &noted);
    return semel__db_flush(db, err);
}

/* ---- reading ------------------------------------------------------------------------------------- */

semel_status semel__record_positions_list(struct semel_store *store, struct semel_str consumer, size_t max,
                                          struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                          struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct args args = {.consumer = consumer, .limit = semel__db_limit(max)};
    struct sql_list list = {SQL_FIELDS(row_fields), .arena = arena, .size = sizeof(**ret)};
    semel_status status = semel__db_list_end(&list,
                                             semel__db_do(db, "listing positions", SQL_position_list,
                                                          SQL_ONE(args_fields, &args), NULL, semel__db_read_list, &list,
                                                          err),
                                             err);
    if (status == SEMEL_OK) {
        *ret = list.items;
        *ret_n = list.n;
    }
    return status;
}
