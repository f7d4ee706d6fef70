/* SPDX-License-Identifier: MIT
 *
 * pg_position.c: positions of sources; one trip a call, however many partitions there are.
 *
 * Invariants: rows are locked in the order of the items, which is that of every other caller; a row is never taken
 * away, so that its epoch is never used again. That a position does not go back under the same epoch is said here and
 * checked once more by a trigger (sql/postgres/011_position.sql).
 */
#include "store/pg.h"

#define ITEMS "unnest($2::text[], $3::integer[]"

/* What is inserted or met is locked row by row, in the order of the SELECT. */
static const struct pg_sql sql_take = {
    "semel_position_take",
    "INSERT INTO semel.position AS p (consumer, source, partition, epoch, updated_at) "
    "SELECT $1::text, b.source, b.partition, 1, $4::timestamptz FROM " ITEMS
    ") WITH ORDINALITY AS b (source, partition, n) ORDER BY b.n "
    "ON CONFLICT (consumer, source, partition) DO UPDATE SET epoch = p.epoch + 1, updated_at = excluded.updated_at "
    "RETURNING source, partition, epoch, next_offset"};
static const struct pg_sql sql_set = {
    "semel_position_set",
    "INSERT INTO semel.position AS p (consumer, source, partition, next_offset, epoch, updated_at) "
    "SELECT $1::text, b.source, b.partition, b.o, 1, $5::timestamptz FROM " ITEMS
    ", $4::bigint[]) WITH ORDINALITY AS b (source, partition, o, n) ORDER BY b.n "
    "ON CONFLICT (consumer, source, partition) DO UPDATE SET next_offset = excluded.next_offset, "
    "epoch = p.epoch + 1, updated_at = excluded.updated_at RETURNING source, partition, epoch, next_offset"};
/* An UPDATE alone would lock in the order of its plan. */
static const struct pg_sql sql_lock = {
    "semel_position_lock", "SELECT p.epoch FROM semel.position AS p JOIN " ITEMS
                           ") AS b (source, partition) ON p.source = b.source AND p.partition = b.partition "
                           "WHERE p.consumer = $1::text ORDER BY p.source, p.partition FOR UPDATE OF p"};
/* Without an offset only the epoch is asked for. */
static const struct pg_sql sql_move = {
    "semel_position_move",
    "UPDATE semel.position AS p SET next_offset = greatest(p.next_offset, b.o), updated_at = $6::timestamptz "
    "FROM " ITEMS ", $4::bigint[], $5::bigint[]) WITH ORDINALITY AS b (source, partition, epoch, o, n) "
    "WHERE p.consumer = $1::text AND p.source = b.source AND p.partition = b.partition AND p.epoch = b.epoch "
    "RETURNING b.n"};
static const struct pg_sql sql_list = {"semel_position_list",
                                       "SELECT source, partition, next_offset, epoch, updated_at FROM semel.position "
                                       "WHERE consumer = $1 ORDER BY source, partition LIMIT $2::bigint"};

static semel_status damaged(struct semel_str consumer, const char *column, struct semel_error *err)
{
    char name[72];
    semel__str_show(name, sizeof(name), consumer);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "damaged row in semel.position (consumer \"%s\"): column %s", name, column);
}

/* ---- parameters ---------------------------------------------------------------------------------- */

static void add_items(struct pg_trip *trip, struct semel_str consumer, const struct semel_position *items, size_t n)
{
    semel__pg_text(trip, consumer);
    semel__pg_array(trip, PG_TEXTS, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_key(trip, items[i].source);
    semel__pg_array_end(trip);
    semel__pg_array(trip, PG_INT4S, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_int4(trip, items[i].partition);
    semel__pg_array_end(trip);
}

static void add_epochs(struct pg_trip *trip, const struct semel_position *items, size_t n)
{
    semel__pg_array(trip, PG_INTS, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_int(trip, items[i].epoch);
    semel__pg_array_end(trip);
}

static void add_offsets(struct pg_trip *trip, const struct semel_position *items, size_t n)
{
    semel__pg_array(trip, PG_INTS, n);
    for (size_t i = 0; i < n; i++)
        semel__pg_item_int(trip, items[i].offset);
    semel__pg_array_end(trip);
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* One row an item, in their order. */
static semel_status read_raised(const PGresult *res, struct semel_str consumer, struct semel_position *items, size_t n,
                                struct semel_error *err)
{
    if ((size_t)PQntuples(res) != n)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "taking positions: %d of %zu rows were given",
                           PQntuples(res), n);
    for (size_t i = 0; i < n; i++) {
        struct semel_str source = semel__str_given(items[i].source) ? items[i].source : SEMEL_STR("");
        if (!semel__str_eq(semel__pg_get_text(res, (int)i, 0), source) ||
            semel__pg_get_int(res, (int)i, 1) != items[i].partition)
            return damaged(consumer, "partition", err);
        items[i].epoch = semel__pg_get_int(res, (int)i, 2);
        items[i].offset = semel__pg_get_int(res, (int)i, 3);
        if (items[i].epoch < 1)
            return damaged(consumer, "epoch", err);
        if (items[i].offset != SEMEL_NONE && items[i].offset < 0)
            return damaged(consumer, "next_offset", err);
    }
    return SEMEL_OK;
}

semel_status semel__pg_positions_take(struct semel_store *store, struct semel_str consumer,
                                      struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "taking positions");
    add_items(&trip, consumer, items, n);
    semel__pg_time(&trip, now_us);
    size_t at = semel__pg_add(&trip, &sql_take);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_raised(trip.results[at], consumer, items, n, err);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_positions_set(struct semel_store *store, struct semel_str consumer, struct semel_position *items,
                                     size_t n, int64_t now_us, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    semel__pg_start(&trip, d, "setting positions");
    add_items(&trip, consumer, items, n);
    add_offsets(&trip, items, n);
    if (d->operator_)
        semel__pg_text(&trip, semel__str(d->reason));
    else
        semel__pg_time(&trip, now_us);
    size_t at = semel__pg_add(&trip, &sql_set);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_raised(trip.results[at], consumer, items, n, err);
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_positions_move(struct semel_store *store, struct semel_str consumer,
                                      struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "moving positions");
    if (n > 1) {
        add_items(&trip, consumer, items, n);
        semel__pg_add(&trip, &sql_lock);
    }
    add_items(&trip, consumer, items, n);
    add_epochs(&trip, items, n);
    add_offsets(&trip, items, n);
    semel__pg_time(&trip, now_us);
    size_t at = semel__pg_add(&trip, &sql_move);
    semel_status status = semel__pg_run(&trip, err);
    for (size_t i = 0; i < n; i++)
        items[i].fenced = true;
    for (int row = 0; status == SEMEL_OK && row < PQntuples(trip.results[at]); row++) {
        int64_t item = semel__pg_get_int(trip.results[at], row, 0);
        if (item >= 1 && (size_t)item <= n)
            items[item - 1].fenced = false;
    }
    semel__pg_end(&trip);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------- */

static semel_status read_position(const PGresult *res, int row, struct semel_str consumer, struct semel_arena *arena,
                                  struct semel_position *ret, struct semel_error *err)
{
    struct semel_str source = semel__pg_get_text(res, row, 0);
    int64_t partition = semel__pg_get_int(res, row, 1);
    ret->offset = semel__pg_get_int(res, row, 2);
    ret->epoch = semel__pg_get_int(res, row, 3);
    ret->updated_us = semel__pg_get_time(res, row, 4);
    if (!semel__str_given(source) || semel__id_check("source", source, 0, NULL) != SEMEL_OK)
        return damaged(consumer, "source", err);
    if (partition < 0 || partition > INT32_MAX)
        return damaged(consumer, "partition", err);
    if (ret->offset != SEMEL_NONE && ret->offset < 0)
        return damaged(consumer, "next_offset", err);
    if (ret->epoch < 1)
        return damaged(consumer, "epoch", err);
    ret->partition = (int32_t)partition;
    return semel__arena_copy(arena, source, &ret->source) ? SEMEL_OK : semel__fail_memory(err);
}

semel_status semel__pg_positions_list(struct semel_store *store, struct semel_str consumer, size_t max,
                                      struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                      struct semel_error *err)
{
    struct semel_position *items = NULL;
    struct pg_trip trip;
    semel__pg_start(&trip, semel__pg_of(store), "listing positions");
    semel__pg_text(&trip, consumer);
    semel__pg_int(&trip, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    size_t at = semel__pg_add(&trip, &sql_list);
    semel_status status = semel__pg_run(&trip, err);
    size_t n = status == SEMEL_OK ? (size_t)PQntuples(trip.results[at]) : 0;
    if (status == SEMEL_OK) {
        items = semel__arena_alloc(arena, n + 1, sizeof(*items));
        status = items != NULL ? SEMEL_OK : semel__fail_memory(err);
    }
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = read_position(trip.results[at], (int)i, consumer, arena, &items[i], err);
    semel__pg_end(&trip);
    if (status != SEMEL_OK)
        return status;
    *ret = items;
    *ret_n = n;
    return SEMEL_OK;
}
