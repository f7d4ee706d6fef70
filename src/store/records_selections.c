/* SPDX-License-Identifier: MIT
 *
 * records_selections.c: frozen selections (P43) once they are made (records_list.c): what they are, what is left of
 * them, and what came of a place.
 *
 * Invariants: a selection never grows or shrinks; a place is marked once, and the first mark stays; what is left is
 * found by its own index, so that going on costs nothing for what was handled before.
 */
#include <assert.h>

#include "store/records.h"

struct args {
    int64_t number, place, limit;
    struct semel_str result;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, number, number),
    SQL_FIELD(struct args, place, place),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, result, result),
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
    const struct args args = {.number = number};
    struct semel_selection s = {.number = number};
    struct sql_into into = {SQL_FIELDS(selection_fields), .arena = arena, .items = &s, .size = sizeof s};
    if (db == NULL)
        return SEMEL_INVALID;
    semel__db_start(db, "reading a selection");
    semel__db_run(db, SQL_selection_get, SQL_ONE(args_fields, &args), NULL, semel__db_read_item, &into);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK && into.filled == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there is no selection with the number %lld",
                           (long long)number);
    s.left = s.n - s.done - s.skipped - s.refused;
    if (status == SEMEL_OK)
        *ret = s;
    return status;
}

semel_status semel_query_selected(struct semel_store *store, int64_t number, size_t max, struct semel_arena *arena,
                                  struct semel_selected **ret, size_t *ret_n, struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    const struct args args = {.number = number, .limit = semel__db_limit(max)};
    struct sql_list list = {SQL_FIELDS(selected_fields), .arena = arena, .size = sizeof(**ret)};
    assert(max > 0);
    if (db == NULL)
        return SEMEL_INVALID;
    semel__db_start(db, "reading what was selected");
    semel__db_run(db, SQL_selection_left, SQL_ONE(args_fields, &args), NULL, semel__db_read_list, &list);
    semel_status status = semel__db_list_end(&list, semel__db_flush(db, err), err);
    if (status == SEMEL_OK) {
        *ret = list.items;
        *ret_n = list.n;
    }
    return status;
}

semel_status semel_query_mark(struct semel_store *store, int64_t number, int64_t place, struct semel_str result,
                              struct semel_error *err)
{
    static const struct sql_field changes[] = {{.name = SQL_NAME_changes, .size = sizeof(int64_t)}};
    struct sql *db = semel__db_query(store, err);
    const struct args args = {.number = number, .place = place, .result = result};
    int64_t n = 0;
    struct sql_into into = {SQL_FIELDS(changes), .items = &n, .size = sizeof n};
    assert(store->in_tx);
    if (db == NULL)
        return SEMEL_INVALID;
    if (!semel__str_eqz(result, "done") && !semel__str_eqz(result, "skipped") && !semel__str_eqz(result, "refused"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "what came of a selected message is one of these: done, skipped, refused");
    semel__db_start(db, "marking a selected message");
    semel__db_run(db, SQL_selection_mark, SQL_ONE(args_fields, &args), NULL, semel__db_read_item, &into);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK && n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "selection %lld has no place %lld",
                           (long long)number, (long long)place);
    return status;
}
