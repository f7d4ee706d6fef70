/* SPDX-License-Identifier: MIT
 *
 * sqlite_look.c: what operators ask of the inbox as a whole: lists and groups.
 *
 * Invariants: a list that no index supports is read in windows, so that it never keeps a snapshot for long: an old
 * snapshot holds up the checkpoints of the write-ahead log (P25). Groups look at no more rows than they may (P44). A
 * damaged row is counted by the list, and uses up no place in it.
 */
#include <stdlib.h>

#include "base/digest.h"
#include "core/state.h"
#include "store/records.h"
#include "store/sqlite_look.h"

#define WINDOW 20000
#define DAMAGED_MAX 100000

/* ---- list --------------------------------------------------------------------------------------- */

struct listing {
    struct sqlite_store *d;
    bool with_payload;
    struct semel_arena *arena;
    struct sqlite_list rows;
    size_t damaged;
};

static semel_status read_row(struct listing *l, int64_t arrival, struct semel_error *err)
{
    struct semel_row read;
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, l->d, Q_LOOK_ROW, "reading a message");
    semel__sqlite_int(&run, 1, l->with_payload);
    semel__sqlite_int(&run, 2, arrival);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK || !row)
        return status;
    status = semel__sqlite_read(run.stmt, l->arena, &read, err);
    semel__sqlite_end(&run);
    if (semel__sqlite_damaged(status)) {
        l->damaged++;
        return SEMEL_OK;
    }
    if (status != SEMEL_OK)
        return status;
    struct semel_row *place = semel__sqlite_list_add(&l->rows, sizeof(read));
    if (place == NULL)
        return semel__fail_memory(err);
    *place = read;
    return SEMEL_OK;
}

/* One window: chooses and reads under one snapshot. */
static semel_status list_window(struct listing *l, struct sqlite_choice *choice, struct semel_error *err)
{
    bool begun = false;
    semel_status status = semel__sqlite_snapshot(&l->d->sql, &begun, err);
    if (status == SEMEL_OK)
        status = semel__sqlite_choose(l->d, choice, err);
    for (size_t i = 0; status == SEMEL_OK && i < choice->n; i++)
        status = read_row(l, choice->arrivals[i], err);
    semel__sqlite_snapshot_end(&l->d->sql, begun);
    semel__free(choice->arrivals);
    return status;
}

static semel_status look_list(struct semel_store *store, const struct semel_filter *filter, int64_t after_arrival,
                              size_t max, bool with_payload, struct semel_arena *arena, struct semel_row **ret,
                              size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    struct listing l = {.d = semel__sqlite_of(store), .with_payload = with_payload, .arena = arena};
    int64_t after = after_arrival != SEMEL_NONE ? after_arrival : 0; /* NULL would compare with nothing */
    bool more = true;
    void *given = NULL;
    semel_status status = semel__sqlite_usable(l.d, err);
    if (status != SEMEL_OK)
        return status;
    while (status == SEMEL_OK && more && l.rows.n < max && l.damaged < DAMAGED_MAX) {
        struct sqlite_choice choice = {.filter = filter, .after = after, .max = max - l.rows.n, .budget = WINDOW};
        status = list_window(&l, &choice, err);
        more = choice.more;
        after = choice.reached;
    }
    status = semel__sqlite_list_give(&l.rows, sizeof(struct semel_row), status, arena, &given, err);
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err); /* damage is counted, it is no error of the call */
    *ret = given;
    *ret_n = l.rows.n;
    if (ret_damaged != NULL)
        *ret_damaged = l.damaged;
    return SEMEL_OK;
}

/* ---- groups ------------------------------------------------------------------------------------- */

/* A row under the digest of what it is grouped by; then, one a group, the sums. */
struct cause {
    unsigned char digest[SEMEL_SHA256];
    int64_t arrival, n, first_us, last_us; /* arrival: of the oldest */
};

static int cmp_cause(const void *a, const void *b)
{
    const struct cause *x = a, *y = b;
    int c = memcmp(x->digest, y->digest, sizeof(x->digest));
    return c != 0 ? c : x->arrival < y->arrival ? -1 : x->arrival > y->arrival;
}

static int cmp_size(const void *a, const void *b)
{
    const struct cause *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return x->arrival < y->arrival ? -1 : x->arrival > y->arrival;
}

/* Consumer, state, class and text; the lengths before them keep them apart, and nothing apart from empty. */
static semel_status digest_cause(sqlite3_stmt *stmt, struct cause *cause, struct semel_error *err)
{
    int64_t lengths[4];
    struct semel_str parts[5] = {{(const char *)lengths, sizeof(lengths)}};
    for (int i = 0; i < 4; i++) {
        semel_status status = semel__sqlite_peek(stmt, 1 + i, SIZE_MAX, &parts[1 + i], err);
        if (status != SEMEL_OK)
            return status;
        lengths[i] = semel__str_given(parts[1 + i]) ? (int64_t)parts[1 + i].n : -1;
    }
    return semel__sha256(parts, 5, cause->digest) ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status read_cause(struct sqlite_store *d, int64_t arrival, struct cause *ret, struct semel_error *err)
{
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_LOOK_CAUSE, "reading a cause");
    semel__sqlite_int(&run, 1, arrival);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK || !row)
        return status;
    int64_t received_us = semel__sqlite_number(run.stmt, 0);
    *ret = (struct cause){.arrival = arrival, .n = 1, .first_us = received_us, .last_us = received_us};
    status = digest_cause(run.stmt, ret, err);
    semel__sqlite_end(&run);
    return status;
}

/* Sums up what has the same digest; how many groups there are. */
static size_t sum_up(struct cause *causes, size_t n)
{
    size_t groups = 0;
    qsort(causes, n, sizeof(*causes), cmp_cause);
    for (size_t i = 0; i < n; i++) {
        struct cause *group = groups > 0 ? &causes[groups - 1] : NULL;
        if (group == NULL || memcmp(group->digest, causes[i].digest, sizeof(group->digest)) != 0) {
            causes[groups++] = causes[i];
            continue;
        }
        group->n += causes[i].n;
        group->first_us = causes[i].first_us < group->first_us ? causes[i].first_us : group->first_us;
        group->last_us = causes[i].last_us > group->last_us ? causes[i].last_us : group->last_us;
    }
    qsort(causes, groups, sizeof(*causes), cmp_size);
    return groups;
}

/* The oldest row of the group has all that they have in common. A status that is none of ours makes no group. */
static semel_status read_group(struct sqlite_store *d, const struct cause *cause, struct semel_arena *arena,
                               struct semel_group *groups, size_t *n, struct semel_error *err)
{
    struct semel_group group = {.n = cause->n, .first_us = cause->first_us, .last_us = cause->last_us};
    const struct {
        enum sqlite_col col;
        size_t max;
        struct semel_str *to;
    } texts[] = {{COL_consumer, SEMEL_ID_MAX, &group.consumer},
                 {COL_source, SEMEL_ID_MAX, &group.source},
                 {COL_message_id, SEMEL_ID_MAX, &group.id},
                 {COL_error_class, SEMEL_ID_MAX, &group.error_class},
                 {COL_error_text, SEMEL_ERROR_TEXT_MAX, &group.error_text}};
    struct semel_str state = {0};
    struct sqlite_run run;
    bool row = false;
    semel__sqlite_start(&run, d, Q_LOOK_ROW, "reading a message");
    semel__sqlite_int(&run, 1, 0);
    semel__sqlite_int(&run, 2, cause->arrival);
    semel_status status = semel__sqlite_step(&run, &row, err);
    if (status != SEMEL_OK || !row)
        return status;
    for (size_t i = 0; status == SEMEL_OK && i < sizeof(texts) / sizeof(texts[0]); i++)
        status = semel__sqlite_copy(run.stmt, (int)texts[i].col, texts[i].max, arena, texts[i].to, err);
    if (status == SEMEL_OK)
        status = semel__sqlite_peek(run.stmt, COL_status, SEMEL_ID_MAX, &state, err);
    if (status == SEMEL_OK && semel__state_parse(state, &group.state))
        groups[(*n)++] = group;
    semel__sqlite_end(&run);
    return status;
}

static semel_status group_chosen(struct sqlite_store *d, const struct sqlite_choice *choice, size_t max,
                                 struct semel_arena *arena, struct semel_group **ret, size_t *ret_n,
                                 struct semel_error *err)
{
    struct cause *causes = semel__calloc(choice->n, sizeof(*causes));
    semel_status status = SEMEL_OK;
    if (causes == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < choice->n; i++)
        status = read_cause(d, choice->arrivals[i], &causes[i], err);
    size_t n = status == SEMEL_OK ? sum_up(causes, choice->n) : 0;
    n = n < max ? n : max;
    *ret = semel__arena_alloc(arena, n, sizeof(**ret));
    if (status == SEMEL_OK && *ret == NULL && n > 0)
        status = semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = read_group(d, &causes[i], arena, *ret, ret_n, err);
    semel__free(causes);
    return status;
}

static semel_status look_groups(struct semel_store *store, const struct semel_filter *filter, int64_t cap, size_t max,
                                struct semel_arena *arena, struct semel_group **ret, size_t *ret_n, bool *ret_capped,
                                struct semel_error *err)
{
    struct sqlite_store *d = semel__sqlite_of(store);
    struct sqlite_choice choice = {.filter = filter, .budget = cap};
    struct semel_group *groups = NULL;
    bool begun = false;
    size_t n = 0;
    semel_status status = semel__sqlite_snapshot(&d->sql, &begun, err);
    if (status == SEMEL_OK)
        status = semel__sqlite_choose(d, &choice, err);
    if (status == SEMEL_OK && choice.n > 0)
        status = group_chosen(d, &choice, max, arena, &groups, &n, err);
    semel__sqlite_snapshot_end(&d->sql, begun);
    semel__free(choice.arrivals);
    if (status != SEMEL_OK)
        return status;
    *ret = groups;
    *ret_n = n;
    *ret_capped = choice.more;
    return SEMEL_OK;
}

const struct semel_look_ops semel__sqlite_look = {
    .counts = semel__record_counts,
    .list = look_list,
    .groups = look_groups,
    .history = semel__record_history,
    .outbox = semel__record_outbox_count,
    .select = semel__sqlite_select,
    .selection = semel__record_selection,
    .selected = semel__record_selected,
    .mark = semel__record_mark,
};
