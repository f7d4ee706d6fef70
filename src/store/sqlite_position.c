/* SPDX-License-Identifier: MIT
 *
 * sqlite_position.c: positions of sources.
 *
 * Invariants: a row is never taken away, so that its epoch is never used again. That a position does not go back under
 * the same epoch is said here and checked once more by a trigger (sql/sqlite/004_position.sql).
 */
#include "store/sqlite.h"

static semel_status damaged(struct semel_str consumer, const char *column, struct semel_error *err)
{
    char name[72];
    semel__str_show(name, sizeof(name), consumer);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "damaged row in semel_position (consumer \"%s\"): column %s", name, column);
}

/* A column that is a number of at least `low`; or, where allowed, NULL. */
static bool read_int(sqlite3_stmt *stmt, int column, int64_t low, bool may_be_null, int64_t *ret)
{
    int type = sqlite3_column_type(stmt, column);
    *ret = type == SQLITE_INTEGER ? sqlite3_column_int64(stmt, column) : SEMEL_NONE;
    return (type == SQLITE_INTEGER && *ret >= low) || (type == SQLITE_NULL && may_be_null);
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Which row it is about: parameters 1 to 3. */
static void start(struct sqlite_run *run, struct semel_store *store, enum sqlite_q q, const char *doing,
                  struct semel_str consumer, const struct semel_position *item)
{
    semel__sqlite_start(run, semel__sqlite_of(store), q, doing);
    semel__sqlite_text(run, 1, consumer);
    semel__sqlite_text(run, 2, item->source);
    semel__sqlite_int(run, 3, item->partition);
}

static semel_status raise_epoch(struct sqlite_run *run, struct semel_str consumer, struct semel_position *item,
                                struct semel_error *err)
{
    bool row = false;
    semel_status status = semel__sqlite_step(run, &row, err);
    if (status != SEMEL_OK)
        return status;
    if (!row || !read_int(run->stmt, 0, 1, false, &item->epoch))
        status = damaged(consumer, "epoch", err);
    else if (!read_int(run->stmt, 1, 0, true, &item->offset))
        status = damaged(consumer, "next_offset", err);
    while (status == SEMEL_OK && row)
        status = semel__sqlite_step(run, &row, err);
    return status;
}

semel_status semel__sqlite_positions_take(struct semel_store *store, struct semel_str consumer,
                                          struct semel_position *items, size_t n, int64_t now_us,
                                          struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct sqlite_run run;
        start(&run, store, Q_POSITION_TAKE, "taking a position", consumer, &items[i]);
        semel__sqlite_int(&run, 4, now_us);
        status = raise_epoch(&run, consumer, &items[i], err);
        semel__sqlite_end(&run);
    }
    return status;
}

semel_status semel__sqlite_positions_set(struct semel_store *store, struct semel_str consumer,
                                         struct semel_position *items, size_t n, int64_t now_us,
                                         struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct sqlite_run run;
        start(&run, store, Q_POSITION_SET, "setting a position", consumer, &items[i]);
        semel__sqlite_int(&run, 4, items[i].offset);
        semel__sqlite_int(&run, 5, now_us);
        status = raise_epoch(&run, consumer, &items[i], err);
        semel__sqlite_end(&run);
    }
    return status;
}

semel_status semel__sqlite_positions_move(struct semel_store *store, struct semel_str consumer,
                                          struct semel_position *items, size_t n, int64_t now_us,
                                          struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct sqlite_run run;
        size_t changes = 0;
        start(&run, store, Q_POSITION_MOVE, "moving a position", consumer, &items[i]);
        semel__sqlite_int(&run, 4, items[i].epoch);
        semel__sqlite_int(&run, 5, items[i].offset);
        semel__sqlite_int(&run, 6, now_us);
        status = semel__sqlite_exec(&run, &changes, err);
        items[i].fenced = changes == 0;
    }
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* How many there are is known at the end. */
struct found {
    struct found *next;
    struct semel_position position;
};

static semel_status read_position(struct sqlite_run *run, struct semel_str consumer, struct semel_arena *arena,
                                  struct semel_position *ret, struct semel_error *err)
{
    sqlite3_stmt *stmt = run->stmt;
    bool text = sqlite3_column_type(stmt, 0) == SQLITE_TEXT;
    const char *p = text ? (const char *)sqlite3_column_text(stmt, 0) : NULL;
    const struct semel_str source = {p, p != NULL ? (size_t)sqlite3_column_bytes(stmt, 0) : 0};
    int64_t partition;
    if (text && p == NULL)
        return semel__fail_memory(err);
    if (!text || semel__id_check("source", source, 0, NULL) != SEMEL_OK)
        return damaged(consumer, "source", err);
    if (!read_int(stmt, 1, 0, false, &partition) || partition > INT32_MAX)
        return damaged(consumer, "partition", err);
    ret->partition = (int32_t)partition;
    if (!read_int(stmt, 2, 0, true, &ret->offset))
        return damaged(consumer, "next_offset", err);
    if (!read_int(stmt, 3, 1, false, &ret->epoch))
        return damaged(consumer, "epoch", err);
    if (!read_int(stmt, 4, INT64_MIN + 1, false, &ret->updated_us))
        return damaged(consumer, "updated_at", err);
    return semel__arena_copy(arena, source, &ret->source) ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status read_all(struct sqlite_run *run, struct semel_str consumer, struct semel_arena *arena,
                             struct found **first, size_t *n, struct semel_error *err)
{
    struct found **tail = first;
    bool row = true;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && row) {
        status = semel__sqlite_step(run, &row, err);
        if (status != SEMEL_OK || !row)
            continue;
        struct found *found = semel__arena_alloc(arena, 1, sizeof(*found));
        if (found == NULL)
            return semel__fail_memory(err);
        status = read_position(run, consumer, arena, &found->position, err);
        *tail = found;
        tail = &found->next;
        ++*n;
    }
    return status;
}

semel_status semel__sqlite_positions_list(struct semel_store *store, struct semel_str consumer, size_t max,
                                          struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                          struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct found *first = NULL;
    struct sqlite_run run;
    size_t n = 0;
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_POSITION_LIST, "listing positions");
    semel__sqlite_text(&run, 1, consumer);
    semel__sqlite_int(&run, 2, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    status = read_all(&run, consumer, arena, &first, &n, err);
    semel__sqlite_end(&run);
    if (status != SEMEL_OK)
        return status;
    struct semel_position *items = semel__arena_alloc(arena, n + 1, sizeof(*items));
    if (items == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++, first = first->next)
        items[i] = first->position;
    *ret = items;
    *ret_n = n;
    return SEMEL_OK;
}
