/* SPDX-License-Identifier: MIT
 *
 * mem_scan.c: which rows of the in-memory store a scan finds, and in which order.
 *
 * What it is not: indexed. SCAN_ALL walks all rows, every other scan the unfinished rows of all consumers.
 *
 * Invariants: a handle sees its own open transaction and, of another's, only what was there before it. The walk sees
 * each row once: those in the table that the other's transaction did not write, and those that it replaced.
 */
#include <stdlib.h>

#include "support/mem_table.h"

/* ---- walking what a handle may see -------------------------------------------------------------------- */

struct haul {
    const struct mem_store *store;
    const struct semel_scan *scan;
    const struct mem_consumer *consumer;
    const struct mem_row **rows;
    size_t n, cap;
    bool failed;
};

static bool still(const struct semel_row *row)
{
    return row->progress.state == SEMEL_ROW_WAITING && row->progress.due_us == SEMEL_NONE;
}

static bool matches(const struct haul *haul, const struct mem_row *row)
{
    const struct semel_scan *scan = haul->scan;
    const struct semel_progress *progress = &row->row.progress;

    if (scan->kind != SEMEL_SCAN_TOKEN && row->rec.key.consumer != haul->consumer)
        return false;
    switch (scan->kind) {
    case SEMEL_SCAN_DUE:
        return (progress->state == SEMEL_ROW_FAILED || progress->state == SEMEL_ROW_WAITING) &&
               progress->due_us != SEMEL_NONE && progress->due_us <= scan->now_us && (!scan->kept || row->row.kept);
    case SEMEL_SCAN_EXPIRED:
        return progress->state == SEMEL_ROW_PROCESSING && progress->lease_until_us < scan->now_us;
    case SEMEL_SCAN_TOKEN:
        return progress->lease_token != SEMEL_NONE && progress->lease_token == scan->token;
    case SEMEL_SCAN_KEY:
        return semel__progress_in_order(progress) && semel__str_eq(row->row.order_key, scan->order_key);
    case SEMEL_SCAN_STILL:
        if (!semel__str_given(scan->order_key))
            return still(&row->row) && row->row.kept && (scan->any_key || !semel__str_given(row->row.order_key));
        return semel__progress_in_order(progress) && semel__str_given(row->row.order_key) &&
               semel__str_cmp(row->row.order_key, scan->order_key) > 0;
    case SEMEL_SCAN_ALL:
        return row->row.arrival > scan->after_arrival &&
               (scan->states == 0 || (scan->states >> progress->state & 1) != 0) &&
               (!semel__str_given(scan->order_key) || semel__str_eq(row->row.order_key, scan->order_key)) &&
               (!semel__str_given(scan->type) || semel__str_eq(row->row.type, scan->type));
    }
    return false;
}

static void consider(struct haul *haul, const struct mem_row *row)
{
    if (haul->failed || !matches(haul, row))
        return;
    if (haul->n == haul->cap) {
        size_t cap = haul->cap > 0 ? haul->cap * 2 : 32;
        const struct mem_row **rows = semel__realloc(haul->rows, cap, sizeof(const struct mem_row *));
        if (rows == NULL) {
            haul->failed = true;
            return;
        }
        haul->rows = rows;
        haul->cap = cap;
    }
    haul->rows[haul->n++] = row;
}

static void walk(struct haul *haul)
{
    struct semel_mem_db *db = haul->store->db;
    const bool foreign = semel__mem_foreign(haul->store);

    if (haul->scan->kind == SEMEL_SCAN_ALL) {
        for (struct mem_rec *rec = NULL; (rec = semel__mem_next(db, MEM_ROW, rec)) != NULL;)
            if (!foreign || rec->tx != db->tx)
                consider(haul, (struct mem_row *)rec);
    } else {
        for (const struct mem_consumer *consumer = db->consumers; consumer != NULL; consumer = consumer->next)
            for (struct mem_row *row = consumer->unfinished; row != NULL; row = row->next)
                if (!foreign || row->rec.tx != db->tx)
                    consider(haul, row);
    }
    for (size_t i = 0; foreign && i < db->n_undo; i++)
        if (db->undo[i].kind == MEM_ROW && db->undo[i].was != NULL && db->undo[i].was->tx != db->tx)
            consider(haul, (struct mem_row *)db->undo[i].was);
}

/* ---- order -------------------------------------------------------------------------------------------- */

static int cmp_int64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static const struct semel_row *row_at(const void *p)
{
    return &(*(const struct mem_row *const *)p)->row;
}

static int cmp_arrival(const void *a, const void *b)
{
    return cmp_int64(row_at(a)->arrival, row_at(b)->arrival);
}

static int cmp_due(const void *a, const void *b)
{
    int cmp = cmp_int64(row_at(a)->progress.due_us, row_at(b)->progress.due_us);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_lease(const void *a, const void *b)
{
    int cmp = cmp_int64(row_at(a)->progress.lease_until_us, row_at(b)->progress.lease_until_us);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_version(const void *a, const void *b)
{
    int cmp = cmp_int64(row_at(a)->version, row_at(b)->version);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_key(const void *a, const void *b)
{
    int cmp = semel__str_cmp(row_at(a)->order_key, row_at(b)->order_key);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_key_version(const void *a, const void *b)
{
    int cmp = semel__str_cmp(row_at(a)->order_key, row_at(b)->order_key);
    return cmp != 0 ? cmp : cmp_version(a, b);
}

/* Of rows that are sorted by key: the first of each key of which one waits without a due time. */
static void keep_heads(struct haul *haul)
{
    size_t kept = 0;
    for (size_t i = 0, end; i < haul->n; i = end) {
        bool wanted = false;
        for (end = i; end < haul->n && semel__str_eq(haul->rows[end]->row.order_key, haul->rows[i]->row.order_key);
             end++)
            wanted |= still(&haul->rows[end]->row);
        if (wanted)
            haul->rows[kept++] = haul->rows[i];
    }
    haul->n = kept;
}

static int (*order_of(const struct semel_scan *scan))(const void *, const void *)
{
    switch (scan->kind) {
    case SEMEL_SCAN_DUE:
        return cmp_due;
    case SEMEL_SCAN_EXPIRED:
        return cmp_lease;
    case SEMEL_SCAN_KEY:
        return scan->by_version ? cmp_version : cmp_arrival;
    case SEMEL_SCAN_STILL:
        return scan->by_version ? cmp_key_version : cmp_key;
    case SEMEL_SCAN_TOKEN:
    case SEMEL_SCAN_ALL:
        break;
    }
    return cmp_arrival;
}

bool semel__mem_select(const struct mem_store *store, const struct semel_scan *scan, const struct mem_row ***ret,
                       size_t *ret_n)
{
    struct haul haul = {.store = store, .scan = scan, .consumer = semel__mem_consumer(store->db, scan->consumer)};

    walk(&haul);
    if (haul.n > 1)
        qsort(haul.rows, haul.n, sizeof(const struct mem_row *), order_of(scan));
    if (scan->kind == SEMEL_SCAN_STILL && semel__str_given(scan->order_key))
        keep_heads(&haul);
    *ret = haul.rows;
    *ret_n = haul.n;
    return !haul.failed;
}
