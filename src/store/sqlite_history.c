/* SPDX-License-Identifier: MIT
 *
 * sqlite_history.c: what else is known of one message: its attempts, what operators did to it, conflicting copies,
 * business keys, and its place among those of its key.
 *
 * Invariants: of attempts and acts the latest are given, oldest first; no list is longer than it may be. Nothing here
 * has a check of its own when it is read, so texts are cut at the bound that they are written with. All lists come
 * from one snapshot.
 */
#include <stdlib.h>

#include "core/state.h"
#include "store/sqlite_look.h"

#define LINE_BYTES (sizeof(struct semel_try) + sizeof(struct semel_act_line) + sizeof(struct semel_conflict_line))
#define FINGERPRINT_MAX (1 + SEMEL_FP_MAX)

struct past {
    struct sqlite_store *d;
    const struct semel_row *row;
    size_t max;
    struct semel_arena *arena;
    bool more;
};

/* How to read a line of one kind from the row that a statement stands on. */
typedef semel_status (*read_line)(sqlite3_stmt *stmt, struct semel_arena *arena, void *line, struct semel_error *err);

struct part {
    int col;
    size_t max;
    struct semel_str *to;
};

static semel_status copy_parts(sqlite3_stmt *stmt, struct semel_arena *arena, const struct part *parts, size_t n,
                               struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = semel__sqlite_copy(stmt, parts[i].col, parts[i].max, arena, parts[i].to, err);
    return status;
}

static semel_status read_try(sqlite3_stmt *stmt, struct semel_arena *arena, void *line, struct semel_error *err)
{
    struct semel_try *try = line;
    const struct part parts[] = {{2, SEMEL_ID_MAX, &try->worker},
                                 {3, SEMEL_ID_MAX, &try->cls},
                                 {4, SEMEL_ERROR_TEXT_MAX, &try->text}};
    try->attempt = sqlite3_column_int(stmt, 0);
    try->at_us = semel__sqlite_number(stmt, 1);
    return copy_parts(stmt, arena, parts, 3, err);
}

static semel_status read_act(sqlite3_stmt *stmt, struct semel_arena *arena, void *line, struct semel_error *err)
{
    struct semel_act_line *act = line;
    const struct part parts[] = {{1, SEMEL_ID_MAX, &act->who},
                                 {2, SEMEL_ID_MAX, &act->what},
                                 {3, SEMEL_ERROR_TEXT_MAX, &act->reason}};
    act->at_us = semel__sqlite_number(stmt, 0);
    return copy_parts(stmt, arena, parts, 3, err);
}

static semel_status read_conflict(sqlite3_stmt *stmt, struct semel_arena *arena, void *line, struct semel_error *err)
{
    struct semel_conflict_line *conflict = line;
    const struct part parts[] = {{0, FINGERPRINT_MAX, &conflict->fingerprint}};
    conflict->n = sqlite3_column_int64(stmt, 1);
    conflict->first_us = semel__sqlite_number(stmt, 2);
    conflict->last_us = semel__sqlite_number(stmt, 3);
    return copy_parts(stmt, arena, parts, 1, err);
}

static semel_status read_business(sqlite3_stmt *stmt, struct semel_arena *arena, void *line, struct semel_error *err)
{
    return semel__sqlite_copy(stmt, 0, SEMEL_ID_MAX, arena, line, err);
}

static semel_status read_rival(sqlite3_stmt *stmt, struct semel_arena *arena, void *line, struct semel_error *err)
{
    struct semel_rival *rival = line;
    struct semel_str state = {0};
    const struct part parts[] = {{0, SEMEL_ID_MAX, &rival->key},
                                 {1, SEMEL_ID_MAX, &rival->source},
                                 {2, SEMEL_ID_MAX, &rival->id}};
    semel_status status = semel__sqlite_peek(stmt, 3, SEMEL_ID_MAX, &state, err);
    if (status != SEMEL_OK || !semel__state_parse(state, &rival->state))
        rival->state = SEMEL_STATE_ABSENT;
    rival->holds = sqlite3_column_int(stmt, 4) == 0;
    return status == SEMEL_OK ? copy_parts(stmt, arena, parts, 3, err) : status;
}

/* ---- lists -------------------------------------------------------------------------------------- */

static void start(struct sqlite_run *run, const struct past *past, enum sqlite_q q)
{
    const struct semel_row *row = past->row;
    semel__sqlite_start(run, past->d, q, "reading the history of a message");
    semel__sqlite_text(run, 1, row->consumer);
    semel__sqlite_text(run, 2, semel__str_given(row->source) ? row->source : SEMEL_STR(""));
}

static semel_status read_lines(struct past *past, enum sqlite_q q, size_t size, read_line read, void **ret,
                               size_t *ret_n, struct semel_error *err)
{
    struct sqlite_list list = {0};
    struct sqlite_run run;
    bool row = true;
    semel_status status = SEMEL_OK;
    start(&run, past, q);
    semel__sqlite_text(&run, 3, past->row->id);
    semel__sqlite_int(&run, 4, past->max < INT32_MAX ? (int64_t)past->max + 1 : INT32_MAX);
    while (status == SEMEL_OK) {
        status = semel__sqlite_step(&run, &row, err);
        if (status != SEMEL_OK || !row)
            break;
        if (list.n == past->max) {
            past->more = true;
            break;
        }
        void *line = semel__sqlite_list_add(&list, size);
        if (line != NULL)
            memset(line, 0, size);
        status = line != NULL ? read(run.stmt, past->arena, line, err) : semel__fail_memory(err);
    }
    semel__sqlite_end(&run);
    status = semel__sqlite_list_give(&list, size, status, past->arena, ret, err);
    *ret_n = status == SEMEL_OK ? list.n : 0;
    return status;
}

/* From latest first to oldest first. */
static void reverse(char *items, size_t n, size_t size)
{
    char other[LINE_BYTES];
    for (size_t i = 0; i < n / 2; i++) {
        char *a = items + i * size, *b = items + (n - 1 - i) * size;
        memcpy(other, a, size);
        memcpy(a, b, size);
        memcpy(b, other, size);
    }
}

static int cmp_conflict(const void *a, const void *b)
{
    const struct semel_conflict_line *x = a, *y = b;
    if (x->first_us != y->first_us)
        return x->first_us < y->first_us ? -1 : 1;
    return semel__str_cmp(x->fingerprint, y->fingerprint);
}

static semel_status read_lists(struct past *past, struct semel_history *h, struct semel_error *err)
{
    void *tries = NULL, *acts = NULL, *conflicts = NULL, *business = NULL, *rivals = NULL;
    semel_status status = read_lines(past, Q_HISTORY_TRIES, sizeof(struct semel_try), read_try, &tries, &h->n_tries,
                                     err);
    if (status == SEMEL_OK)
        status = read_lines(past, Q_HISTORY_ACTS, sizeof(struct semel_act_line), read_act, &acts, &h->n_acts, err);
    if (status == SEMEL_OK)
        status = read_lines(past, Q_HISTORY_CONFLICTS, sizeof(struct semel_conflict_line), read_conflict, &conflicts,
                            &h->n_conflicts, err);
    if (status == SEMEL_OK)
        status = read_lines(past, Q_HISTORY_BUSINESS, sizeof(struct semel_str), read_business, &business,
                            &h->n_business, err);
    if (status == SEMEL_OK)
        status = read_lines(past, Q_HISTORY_RIVALS, sizeof(struct semel_rival), read_rival, &rivals, &h->n_rivals, err);
    if (status != SEMEL_OK)
        return status;
    reverse(tries, h->n_tries, sizeof(struct semel_try));
    reverse(acts, h->n_acts, sizeof(struct semel_act_line));
    if (h->n_conflicts > 0)
        qsort(conflicts, h->n_conflicts, sizeof(struct semel_conflict_line), cmp_conflict);
    h->tries = tries;
    h->acts = acts;
    h->conflicts = conflicts;
    h->business = business;
    h->rivals = rivals;
    h->more = past->more;
    return SEMEL_OK;
}

/* ---- its place ---------------------------------------------------------------------------------- */

static semel_status read_head(const struct past *past, struct semel_history *h, struct semel_error *err)
{
    struct semel_str state = {0};
    struct sqlite_run run;
    bool row = false, by_version = past->row->version != SEMEL_NONE;
    semel__sqlite_start(&run, past->d, by_version ? Q_SCAN_KEY_VERSION : Q_SCAN_KEY_ARRIVAL,
                        "reading the head of a key");
    semel__sqlite_int(&run, 1, 0);
    semel__sqlite_text(&run, 2, past->row->consumer);
    semel__sqlite_text(&run, 3, past->row->order_key);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK || !row)
        return status;
    const struct part parts[] = {{COL_source, SEMEL_ID_MAX, &h->head_source},
                                 {COL_message_id, SEMEL_ID_MAX, &h->head_id}};
    status = copy_parts(run.stmt, past->arena, parts, 2, err);
    if (status == SEMEL_OK)
        status = semel__sqlite_peek(run.stmt, COL_status, SEMEL_ID_MAX, &state, err);
    h->has_head = status == SEMEL_OK && semel__state_parse(state, &h->head_state);
    h->head_version = semel__sqlite_number(run.stmt, COL_version);
    semel__sqlite_end(&run);
    return status;
}

/* The only column of the only row; SEMEL_NONE when there is none. */
static semel_status read_number(struct sqlite_run *run, int64_t *ret, struct semel_error *err)
{
    bool row = false;
    semel_status status = semel__sqlite_step(run, &row, err);
    if (status == SEMEL_OK)
        *ret = row ? semel__sqlite_number(run->stmt, 0) : SEMEL_NONE;
    semel__sqlite_end(run);
    return status;
}

static semel_status read_versions(const struct past *past, struct semel_history *h, struct semel_error *err)
{
    struct semel_key key = {.key = past->row->order_key};
    struct sqlite_run run;
    bool row = false;
    start(&run, past, Q_HISTORY_VERSION);
    semel__sqlite_text(&run, 2, past->row->order_key);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK || !row)
        return status;
    h->last_version = semel__sqlite_number(run.stmt, 0);
    status = semel__sqlite_skipped(run.stmt, 1, past->arena, &key, err);
    semel__sqlite_end(&run);
    h->skipped = key.skipped;
    h->n_skipped = key.n_skipped;
    return status;
}

static semel_status read_place(const struct past *past, struct semel_history *h, struct semel_error *err)
{
    struct sqlite_run run;
    start(&run, past, Q_WATERMARK_GET);
    semel_status status = read_number(&run, &h->watermark_us, err);
    if (status != SEMEL_OK || !semel__str_given(past->row->order_key) ||
        !semel__state_unfinished(past->row->live.state))
        return status;
    status = read_versions(past, h, err);
    return status == SEMEL_OK ? read_head(past, h, err) : status;
}

semel_status semel__sqlite_history(struct semel_store *store, const struct semel_row *row, size_t max,
                                   struct semel_arena *arena, struct semel_history *ret, struct semel_error *err)
{
    struct past past = {.d = semel__sqlite_of(store), .row = row, .max = max, .arena = arena};
    struct semel_history h = {.head_version = SEMEL_NONE, .last_version = SEMEL_NONE, .watermark_us = SEMEL_NONE};
    bool begun = false;
    semel_status status = semel__sqlite_snapshot(&past.d->sql, &begun, err);
    if (status == SEMEL_OK)
        status = read_lists(&past, &h, err);
    if (status == SEMEL_OK)
        status = read_place(&past, &h, err);
    semel__sqlite_snapshot_end(&past.d->sql, begun);
    if (status == SEMEL_OK)
        *ret = h;
    return status;
}
