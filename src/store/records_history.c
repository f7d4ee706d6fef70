/* SPDX-License-Identifier: MIT
 *
 * records_history.c: the audit line of what a person did; what is known of one message besides its row: its attempts,
 * what operators did to it, conflicting copies, business keys, and its place among those of its key.
 *
 * Invariants: of attempts and acts the latest are given, oldest first; no list is longer than it may be. Nothing here
 * has a check of its own when it is read, so texts are cut at the bound that they are written with. All lists come
 * from one snapshot.
 */
#include <assert.h>
#include <stdlib.h>

#include "core/state.h"
#include "core/version.h"
#include "store/records.h"

#define FINGERPRINT_MAX (1 + SEMEL_FP_MAX)

struct args {
    struct semel_str consumer, source, id, order_key;
    int64_t limit;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer), SQL_FIELD(struct args, source, source),
    SQL_FIELD(struct args, id, message_id),     SQL_FIELD(struct args, order_key, order_key),
    SQL_FIELD(struct args, limit, limit),
};

/* ---- lines --------------------------------------------------------------------------------------- */

#define TRY struct semel_try
static const struct sql_field try_fields[] = {
    SQL_SHOWN(TRY, attempt, attempt, 0),
    SQL_SHOWN(TRY, at_us, at, 0),
    SQL_SHOWN(TRY, worker, worker, SEMEL_ID_MAX),
    SQL_SHOWN(TRY, cls, shown_class, SEMEL_ID_MAX),
    SQL_SHOWN(TRY, text, error_text, SEMEL_ERROR_TEXT_MAX),
};

#define ACT struct semel_act_line
static const struct sql_field act_fields[] = {
    SQL_SHOWN(ACT, at_us, at, 0),
    SQL_SHOWN(ACT, who, who, SEMEL_ID_MAX),
    SQL_SHOWN(ACT, what, what, SEMEL_ID_MAX),
    SQL_SHOWN(ACT, reason, reason, SEMEL_ERROR_TEXT_MAX),
};

semel_status semel__record_acts(struct sql *db, enum sql_id id, const struct sql_set *once, struct semel_arena *arena,
                                struct semel_act_line **ret, size_t *ret_n, struct semel_error *err)
{
    struct sql_list list = {SQL_FIELDS(act_fields), .arena = arena, .size = sizeof(ACT)};
    semel_status status = semel__db_do(db, "reading the audit", id, once, NULL, semel__db_read_list, &list, err);
    status = semel__db_list_end(&list, status, err);
    if (status == SEMEL_OK) {
        *ret = list.items;
        *ret_n = list.n;
    }
    return status;
}

#define CONFLICT struct semel_conflict_line
static const struct sql_field conflict_fields[] = {
    SQL_SHOWN(CONFLICT, fingerprint, digest, FINGERPRINT_MAX),
    SQL_SHOWN(CONFLICT, n, count, 0),
    SQL_SHOWN(CONFLICT, first_us, first_at, 0),
    SQL_SHOWN(CONFLICT, last_us, last_at, 0),
};

static const struct sql_field business_fields[] = {
    {.name = SQL_NAME_business_key, .size = sizeof(struct semel_str), .high = SEMEL_ID_MAX, .lenient = true},
};

#define RIVAL struct semel_rival
static const struct sql_field rival_fields[] = {
    SQL_SHOWN(RIVAL, key, business_key, SEMEL_ID_MAX),
    SQL_SHOWN(RIVAL, source, source, SEMEL_ID_MAX),
    SQL_SHOWN(RIVAL, id, message_id, SEMEL_ID_MAX),
    SQL_SHOWN(RIVAL, state, status, 0),
    SQL_SHOWN(RIVAL, holds, holds, 0),
};

enum { TRIES, ACTS, CONFLICTS, BUSINESS, RIVALS, LISTS };

/* One kind of lines. */
static const struct {
    enum sql_id id;
    const struct sql_field *fields;
    size_t n_fields, size;
    bool latest; /* they come latest first, and are given oldest first */
} lines[LISTS] = {
    [TRIES] = {SQL_history_tries, SQL_FIELDS(try_fields), sizeof(TRY), true},
    [ACTS] = {SQL_history_acts, SQL_FIELDS(act_fields), sizeof(ACT), true},
    [CONFLICTS] = {SQL_history_conflicts, SQL_FIELDS(conflict_fields), sizeof(CONFLICT), false},
    [BUSINESS] = {SQL_history_business, SQL_FIELDS(business_fields), sizeof(struct semel_str), false},
    [RIVALS] = {SQL_history_rivals, SQL_FIELDS(rival_fields), sizeof(RIVAL), false},
};

static void reverse(char *items, size_t n, size_t size)
{
    char other[sizeof(TRY) + sizeof(ACT)];
    for (size_t i = 0; i < n / 2; i++) {
        char *a = items + i * size, *b = items + (n - 1 - i) * size;
        memcpy(other, a, size);
        memcpy(a, b, size);
        memcpy(b, other, size);
    }
}

static int cmp_conflict(const void *a, const void *b)
{
    const CONFLICT *x = a, *y = b;
    if (x->first_us != y->first_us)
        return x->first_us < y->first_us ? -1 : 1;
    return semel__str_cmp(x->fingerprint, y->fingerprint);
}

/* One line more was asked for, to know whether there is one. */
static semel_status end_lists(struct sql_list lists[LISTS], size_t max, semel_status status, struct semel_history *h,
                              struct semel_error *err)
{
    for (size_t i = 0; i < LISTS; i++) {
        h->more |= lists[i].n > max;
        lists[i].n = lists[i].n < max ? lists[i].n : max;
        if (lines[i].latest)
            reverse(lists[i].items, lists[i].n, lines[i].size);
        status = semel__db_list_end(&lists[i], status, err);
    }
    if (status != SEMEL_OK)
        return status;
    h->tries = lists[TRIES].items;
    h->n_tries = lists[TRIES].n;
    h->acts = lists[ACTS].items;
    h->n_acts = lists[ACTS].n;
    h->conflicts = lists[CONFLICTS].items;
    h->n_conflicts = lists[CONFLICTS].n;
    h->business = lists[BUSINESS].items;
    h->n_business = lists[BUSINESS].n;
    h->rivals = lists[RIVALS].items;
    h->n_rivals = lists[RIVALS].n;
    if (h->n_conflicts > 0)
        qsort(h->conflicts, h->n_conflicts, sizeof(CONFLICT), cmp_conflict);
    return SEMEL_OK;
}

/* ---- its place ----------------------------------------------------------------------------------- */

struct place {
    struct semel_history history;
    struct semel_str skipped;
};

static const struct sql_field place_fields[] = {
    SQL_SHOWN(struct place, history.watermark_us, watermark, 0),
    SQL_SHOWN(struct place, history.last_version, last_version, 0),
    SQL_MAYBE(struct place, skipped, skipped, 0, SEMEL_SKIPPED_TEXT_MAX),
    SQL_SHOWN(struct place, history.head_source, head_source, SEMEL_ID_MAX),
    SQL_SHOWN(struct place, history.head_id, head_id, SEMEL_ID_MAX),
    SQL_SHOWN(struct place, history.head_state, head_status, 0),
    SQL_SHOWN(struct place, history.head_version, head_version, 0),
};

static semel_status end_place(struct place *place, struct semel_arena *arena, struct semel_error *err)
{
    struct semel_key key = {0};
    semel_status status = semel__version_read(place->skipped, arena, &key, err);
    place->history.skipped = key.skipped;
    place->history.n_skipped = key.n_skipped;
    place->history.has_head = place->history.head_state != SEMEL_ROW_ABSENT;
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------- */

semel_status semel_query_history(struct semel_store *store, const struct semel_row *row, bool by_version, size_t max,
                                 struct semel_arena *arena, struct semel_history *ret, struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    struct args args = {.consumer = row->consumer, .source = row->source, .id = row->id};
    struct place place = {
        .history = {.head_version = SEMEL_NONE, .last_version = SEMEL_NONE, .watermark_us = SEMEL_NONE}};
    struct sql_into into = {SQL_FIELDS(place_fields), .arena = arena, .items = &place, .size = sizeof place};
    struct sql_list lists[LISTS];
    bool begun = false;
    assert(max > 0);
    semel_status status = db != NULL ? db->driver->snapshot(db, &begun, err) : SEMEL_INVALID;
    if (status != SEMEL_OK)
        return status;
    args.limit = semel__db_limit(max < INT32_MAX ? max + 1 : max);
    if (semel__state_unfinished(row->progress.state))
        args.order_key = row->order_key;
    semel__db_start(db, "reading the history of a message");
    for (size_t i = 0; i < LISTS; i++) {
        lists[i] = (struct sql_list){lines[i].fields, lines[i].n_fields, .arena = arena, .size = lines[i].size};
        semel__db_run(db, lines[i].id, SQL_ONE(args_fields, &args), NULL, semel__db_read_list, &lists[i]);
    }
    semel__db_run(db, by_version ? SQL_history_place_version : SQL_history_place, SQL_ONE(args_fields, &args), NULL,
                  semel__db_read_item, &into);
    status = end_lists(lists, max, semel__db_flush(db, err), &place.history, err);
    db->driver->snapshot_end(db, begun);
    if (status == SEMEL_OK)
        status = end_place(&place, arena, err);
    if (status == SEMEL_OK)
        *ret = place.history;
    return status;
}

/* ---- the audit ----------------------------------------------------------------------------------- */

semel_status semel__record_audit(struct semel_store *store, const struct semel_audit *said, size_t n, int64_t now_us,
                                 struct semel_error *err)
{
    static const struct sql_field when[] = {{.name = SQL_NAME_now, .size = sizeof(int64_t)}};
    static const struct sql_field fields[] = {
        SQL_FIELD(struct semel_audit, who, who),           SQL_FIELD(struct semel_audit, what, what),
        SQL_FIELD(struct semel_audit, reason, reason),     SQL_FIELD(struct semel_audit, forced, forced),
        SQL_FIELD(struct semel_audit, consumer, consumer), SQL_FIELD(struct semel_audit, source, about_source),
        SQL_FIELD(struct semel_audit, id, message_id),
    };
    return semel__db_do(semel__db_of(store), "writing the audit", SQL_audit_put, SQL_ONE(when, &now_us),
                        SQL_EACH(fields, said, n), NULL, NULL, err);
}
