/* SPDX-License-Identifier: MIT
 *
 * sqlite_scan.c: bounded, unlocked looks at the inbox.
 *
 * Invariants: at most `max` rows are given, and damaged ones do not use up that number: a heap of them at the
 * front of an index must not hide the good ones behind. DAMAGED_MAX bounds the look all the same.
 */
#include "store/sqlite.h"

#include "core/state.h"

#define DAMAGED_MAX 100000
#define STATES_TEXT 256

/* A growing array outside the arena, so that the arena holds only what is returned. */
struct list {
    char *items;
    size_t n, cap;
};

static void *add(struct list *list, size_t size)
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

/* Moves the items to the arena. */
static semel_status give(struct list *list, size_t size, struct semel_arena *arena, void **ret, struct semel_error *err)
{
    void *copy = semel__arena_alloc(arena, list->n, size);
    if (copy == NULL && list->n > 0)
        return semel__fail_memory(err);
    if (list->n > 0)
        memcpy(copy, list->items, size * list->n);
    *ret = copy;
    return SEMEL_OK;
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

/* Are only states asked for that are in the index of what is not final? */
static bool only_open(unsigned states)
{
    for (unsigned i = 0; i < SEMEL_STATE_COUNT; i++)
        if ((states & (1u << i)) != 0 && semel__state_final((enum semel_state)i))
            return false;
    return states != 0;
}

static void start_all(struct sqlite_run *run, struct sqlite_store *d, const struct semel_scan *scan,
                      char states[STATES_TEXT])
{
    semel__sqlite_start(run, d, only_open(scan->states) ? Q_SCAN_OPEN : Q_SCAN_ALL, "listing the inbox");
    semel__sqlite_text(run, 2, scan->consumer);
    /* NULL would compare with nothing. */
    semel__sqlite_int(run, 3, scan->after_arrival != SEMEL_NONE ? scan->after_arrival : 0);
    semel__sqlite_text(run, 4, scan->order_key);
    semel__sqlite_text(run, 5, scan->type);
    semel__sqlite_text(run, 6, states_text(scan->states, states));
}

static void start_still(struct sqlite_run *run, struct sqlite_store *d, const struct semel_scan *scan)
{
    bool keys = semel__str_given(scan->order_key);
    semel__sqlite_start(run, d,
                        !keys              ? Q_SCAN_STILL
                        : scan->by_version ? Q_SCAN_STILL_VERSION
                                           : Q_SCAN_STILL_ARRIVAL,
                        "looking for what waits without a due time");
    semel__sqlite_text(run, 2, scan->consumer);
    if (keys) {
        semel__sqlite_text(run, 3, scan->order_key);
        semel__sqlite_int(run, 4, (int64_t)scan->max);
    } else {
        semel__sqlite_int(run, 3, scan->any_key);
    }
}

static void start_scan(struct sqlite_run *run, struct sqlite_store *d, const struct semel_scan *scan,
                       char states[STATES_TEXT])
{
    switch (scan->kind) {
    case SEMEL_SCAN_DUE:
    case SEMEL_SCAN_EXPIRED:
        semel__sqlite_start(run, d, scan->kind == SEMEL_SCAN_DUE ? Q_SCAN_DUE : Q_SCAN_EXPIRED, "scanning the inbox");
        semel__sqlite_text(run, 2, scan->consumer);
        semel__sqlite_int(run, 3, scan->now_us);
        if (scan->kind == SEMEL_SCAN_DUE)
            semel__sqlite_int(run, 4, scan->kept);
        break;
    case SEMEL_SCAN_TOKEN:
        semel__sqlite_start(run, d, Q_SCAN_TOKEN, "finding a token");
        semel__sqlite_int(run, 2, scan->token);
        break;
    case SEMEL_SCAN_KEY:
        semel__sqlite_start(run, d, scan->by_version ? Q_SCAN_KEY_VERSION : Q_SCAN_KEY_ARRIVAL,
                            "scanning an order key");
        semel__sqlite_text(run, 2, scan->consumer);
        semel__sqlite_text(run, 3, scan->order_key);
        break;
    case SEMEL_SCAN_STILL:
        start_still(run, d, scan);
        break;
    case SEMEL_SCAN_ALL:
        start_all(run, d, scan, states);
        break;
    }
    semel__sqlite_int(run, 1, scan->with_payload);
}

static semel_status collect(struct sqlite_run *run, size_t max, struct semel_arena *arena, struct list *rows,
                            size_t *ret_damaged, struct semel_error *err)
{
    bool row = false;
    semel_status status = SEMEL_OK;
    while (rows->n < max && *ret_damaged < DAMAGED_MAX) {
        status = semel__sqlite_step(run, &row, err);
        if (status != SEMEL_OK || !row)
            break;
        struct semel_row read;
        status = semel__sqlite_read(run->stmt, arena, &read, err);
        if (semel__sqlite_damaged(status)) {
            ++*ret_damaged;
            status = SEMEL_OK;
            continue;
        }
        if (status != SEMEL_OK)
            break;
        struct semel_row *place = add(rows, sizeof(read));
        if (place == NULL) {
            status = semel__fail_memory(err);
            break;
        }
        *place = read;
    }
    semel__sqlite_end(run);
    return status;
}

semel_status semel__sqlite_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                                struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged,
                                struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    char states[STATES_TEXT];
    struct list rows = {0};
    struct sqlite_run run;
    size_t damaged = 0;
    void *given = NULL;
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    start_scan(&run, d, scan, states);
    status = collect(&run, scan->max, arena, &rows, &damaged, err);
    if (status == SEMEL_OK)
        status = give(&rows, sizeof(struct semel_row), arena, &given, err);
    semel__free(rows.items);
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err); /* damage is counted, it is no error of the call */
    *ret_rows = given;
    *ret_n = rows.n;
    if (ret_damaged != NULL)
        *ret_damaged = damaged;
    return SEMEL_OK;
}
