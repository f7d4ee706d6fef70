/* SPDX-License-Identifier: MIT
 *
 * sqlite_select.c: writes down a frozen selection (P43); records_selections.c has what comes later.
 *
 * What it is: the rows that matched at one moment, written down with who chose them, for what and why; each with the
 * time of its last change, so that whoever comes to it later can see whether it still is what was chosen.
 *
 * Invariants: what is chosen is written down in order of arrival, whole or not at all.
 */
#include "store/sqlite_look.h"

static semel_status put_selection(struct sqlite_store *d, const struct semel_selection *s, int64_t now_us,
                                  int64_t *ret_number, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_SELECTION_PUT, "writing down a selection");
    semel__sqlite_text(&run, 1, s->command);
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
