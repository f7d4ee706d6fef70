/* SPDX-License-Identifier: MIT
 *
 * sqlite_select.c: frozen selections (P43).
 *
 * What it is: the rows that matched at one moment, written down with who chose them, for what and why; each with the
 * time of its last change, so that whoever comes to it later can see whether it still is what was chosen.
 *
 * Invariants: a selection never grows or shrinks; a place is marked once, and the first mark stays; what is left is
 * found by its own index, so that going on costs nothing for what was handled before.
 */
#include "store/sqlite_look.h"

static semel_status put_selection(struct sqlite_store *d, const struct semel_selection *s, int64_t now_us,
                                  int64_t *ret_number, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_SELECTION_PUT, "writing down a selection");
    semel__sqlite_text(&run, 1, s->word);
    semel__sqlite_text(&run, 2, s->who);
    semel__sqlite_text(&run, 3, s->reason);
    semel__sqlite_int(&run, 4, s->force);
    semel__sqlite_int(&run, 5, now_us);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status == SEMEL_OK && row) {
        *ret_number = sqlite3_column_int64(run.stmt, 0);
        status = semel__sqlite_exec(&run, NULL, err);
    }
    return status;
}

static semel_status put_chosen(struct sqlite_store *d, int64_t number, const struct sqlite_choice *choice,
                               struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < choice->n; i++) {
        struct sqlite_run run;
        semel__sqlite_start(&run, d, Q_SELECTED_PUT, "writing down what was selected");
        semel__sqlite_int(&run, 1, number);
        semel__sqlite_int(&run, 2, (int64_t)i + 1);
        semel__sqlite_int(&run, 3, choice->arrivals[i]);
        status = semel__sqlite_exec(&run, NULL, err);
    }
    return status;
}

static semel_status freeze(struct sqlite_store *d, const struct sqlite_choice *choice, size_t max, int64_t now_us,
                           struct semel_selection *selection, struct semel_error *err)
{
    int64_t number = 0;
    semel_status status = SEMEL_OK;
    if (choice->n > max)
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
            "more than %zu messages match; narrow the filter (consumer, status, type, error, key or age) "
            "and take the rest afterwards",
            max);
    if (choice->n > 0)
        status = put_selection(d, selection, now_us, &number, err);
    if (status == SEMEL_OK)
        status = put_chosen(d, number, choice, err);
    if (status != SEMEL_OK)
        return status;
    selection->number = number;
    selection->made_us = now_us;
    selection->n = selection->left = (int64_t)choice->n;
    selection->done = selection->skipped = selection->refused = 0;
    return SEMEL_OK;
}

semel_status semel__sqlite_select(struct semel_store *store, const struct semel_filter *filter, size_t max,
                                  int64_t now_us, struct semel_selection *selection, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct sqlite_choice choice = {.filter = filter, .max = max < INT32_MAX ? max + 1 : max, .budget = INT64_MAX};
    semel_status status = semel__sqlite_choose(d, &choice, err);
    if (status == SEMEL_OK)
        status = freeze(d, &choice, max, now_us, selection, err);
    semel__free(choice.arrivals);
    return status;
}

/* ---- later -------------------------------------------------------------------------------------- */

static semel_status no_selection(int64_t number, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there is no selection with the number %lld",
                       (long long)number);
}

static semel_status read_selection(sqlite3_stmt *stmt, struct semel_arena *arena, struct semel_selection *s,
                                   struct semel_error *err)
{
    s->force = sqlite3_column_int64(stmt, 3) != 0;
    s->made_us = semel__sqlite_number(stmt, 4);
    s->n = sqlite3_column_int64(stmt, 5);
    s->done = sqlite3_column_int64(stmt, 6);
    s->skipped = sqlite3_column_int64(stmt, 7);
    s->refused = sqlite3_column_int64(stmt, 8);
    s->left = s->n - s->done - s->skipped - s->refused;
    semel_status status = semel__sqlite_copy(stmt, 0, SEMEL_ID_MAX, arena, &s->word, err);
    if (status == SEMEL_OK)
        status = semel__sqlite_copy(stmt, 1, SEMEL_ID_MAX, arena, &s->who, err);
    return status == SEMEL_OK ? semel__sqlite_copy(stmt, 2, SEMEL_ERROR_TEXT_MAX, arena, &s->reason, err) : status;
}

semel_status semel__sqlite_selection(struct semel_store *store, int64_t number, struct semel_arena *arena,
                                     struct semel_selection *ret, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct semel_selection s = {.number = number};
    struct sqlite_run run;
    bool row = false;
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_SELECTION_GET, "reading a selection");
    semel__sqlite_int(&run, 1, number);
    status = semel__sqlite_step(&run, &row, err);
    if (status == SEMEL_OK)
        status = row ? read_selection(run.stmt, arena, &s, err) : no_selection(number, err);
    semel__sqlite_end(&run);
    if (status == SEMEL_OK)
        *ret = s;
    return status;
}

static semel_status read_selected(sqlite3_stmt *stmt, struct semel_arena *arena, struct sqlite_list *list,
                                  struct semel_error *err)
{
    struct semel_selected *s = semel__sqlite_list_add(list, sizeof(*s));
    if (s == NULL)
        return semel__fail_memory(err);
    *s = (struct semel_selected){.place = sqlite3_column_int64(stmt, 0), .updated_us = semel__sqlite_number(stmt, 4)};
    semel_status status = semel__sqlite_copy(stmt, 1, SEMEL_ID_MAX, arena, &s->consumer, err);
    if (status == SEMEL_OK)
        status = semel__sqlite_copy(stmt, 2, SEMEL_ID_MAX, arena, &s->source, err);
    return status == SEMEL_OK ? semel__sqlite_copy(stmt, 3, SEMEL_ID_MAX, arena, &s->id, err) : status;
}

semel_status semel__sqlite_selected(struct semel_store *store, int64_t number, size_t max, struct semel_arena *arena,
                                    struct semel_selected **ret, size_t *ret_n, struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct sqlite_list list = {0};
    struct sqlite_run run;
    bool row = true;
    void *given = NULL;
    semel_status status = semel__sqlite_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    semel__sqlite_start(&run, d, Q_SELECTED_LEFT, "reading what was selected");
    semel__sqlite_int(&run, 1, number);
    semel__sqlite_int(&run, 2, max < INT32_MAX ? (int64_t)max : INT32_MAX);
    while (status == SEMEL_OK) {
        status = semel__sqlite_step(&run, &row, err);
        if (status != SEMEL_OK || !row)
            break;
        status = read_selected(run.stmt, arena, &list, err);
    }
    semel__sqlite_end(&run);
    status = semel__sqlite_list_give(&list, sizeof(struct semel_selected), status, arena, &given, err);
    if (status != SEMEL_OK)
        return status;
    *ret = given;
    *ret_n = list.n;
    return SEMEL_OK;
}

semel_status semel__sqlite_mark(struct semel_store *store, int64_t number, int64_t place, struct semel_str result,
                                struct semel_error *err)
{
    struct sqlite_run run;
    size_t n = 0;
    semel__sqlite_start(&run, semel__sqlite_of(store), Q_SELECTED_MARK, "marking a selected message");
    semel__sqlite_int(&run, 1, number);
    semel__sqlite_int(&run, 2, place);
    semel__sqlite_text(&run, 3, result);
    semel_status status = semel__sqlite_exec(&run, &n, err);
    if (status == SEMEL_OK && n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "selection %lld has no place %lld",
                           (long long)number, (long long)place);
    return status;
}
