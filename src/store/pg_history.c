/* SPDX-License-Identifier: MIT
 *
 * pg_history.c: what else is known of one message: its attempts, what operators did to it, conflicting copies,
 * business keys, and its place among those of its key.
 *
 * Invariants: of attempts and acts the latest are given, oldest first; no list is longer than it may be. Nothing here
 * has a check of its own when it is read, so texts are cut at the bound that they are written with. All lists come
 * from one snapshot.
 */
#include "core/state.h"
#include "store/pg_look.h"

#define FINGERPRINT_MAX (1 + SEMEL_FP_MAX)
#define THIS "WHERE consumer = $1::text AND source = $2::text AND message_id = $3::text "

static const struct sql_text tries = {"look_tries",
                                      "SELECT attempt, at, worker, error_class, error_text FROM semel.attempt " THIS
                                      "ORDER BY id DESC LIMIT $4::bigint"};
static const struct sql_text acts = {"look_acts", "SELECT at, who, what, reason FROM semel.audit " THIS
                                                  "ORDER BY id DESC LIMIT $4::bigint"};
static const struct sql_text conflicts = {
    "look_conflicts", "SELECT fingerprint, count, first_at, last_at FROM (SELECT * FROM semel.conflict " THIS
                      "ORDER BY fingerprint LIMIT $4::bigint) AS c ORDER BY first_at, fingerprint"};
static const struct sql_text business = {"look_business", "SELECT business_key FROM semel.business_key " THIS
                                                          "ORDER BY business_key LIMIT $4::bigint"};
static const struct sql_text rivals = {
    "look_rivals",
    "WITH k AS (SELECT business_key FROM semel.business_key " THIS
    "UNION SELECT business_key FROM semel.business_want " THIS
    ") SELECT pg_catalog.min(r.business_key), r.source, r.message_id, i.status, r.holds FROM (SELECT h.business_key, "
    "h.source, h.message_id, true AS holds FROM k JOIN semel.business_key AS h ON h.consumer = $1 AND "
    "h.business_key = k.business_key UNION ALL SELECT w.business_key, w.source, w.message_id, false FROM k JOIN "
    "semel.business_want AS w ON w.consumer = $1 AND w.business_key = k.business_key) AS r "
    "LEFT JOIN semel.inbox AS i ON i.consumer = $1 AND i.source = r.source AND i.message_id = r.message_id "
    "WHERE (r.source, r.message_id) <> ($2, $3) AND (r.holds OR (i.status = 'waiting' AND "
    "i.error_class = 'business_duplicate')) GROUP BY r.holds, i.arrival, r.source, r.message_id, i.status "
    "ORDER BY r.holds DESC, i.arrival, r.source, r.message_id LIMIT $4::bigint"};
/* One row: the watermark, the last version; and the head of the key where one was asked for. */
#define PLACE(order)                                                                                   \
    "SELECT (SELECT watermark FROM semel.watermark WHERE consumer = $1::text AND source = $2::text), " \
    "(SELECT last_version FROM semel.order_key WHERE consumer = $1 AND order_key = $3::text), "        \
    "h.source, h.message_id, h.status, h.version, "                                                    \
    "(SELECT skipped FROM semel.order_key WHERE consumer = $1 AND order_key = $3) "                    \
    "FROM (SELECT 1) AS one LEFT JOIN LATERAL "                                                        \
    "(SELECT i.source, i.message_id, i.status, i.version FROM semel.inbox AS i WHERE i.consumer = $1 " \
    "AND i.order_key = $3 AND i." PG_UNFINISHED " ORDER BY " order "i.arrival LIMIT 1) AS h ON true"
static const struct sql_text place_by_arrival = {"look_place", PLACE("")};
static const struct sql_text place_by_version = {"look_place_version", PLACE("i.version NULLS FIRST, ")};

struct past {
    const struct semel_row *row;
    size_t max;
    struct semel_arena *arena;
    bool more;
    struct semel_error *err;
};

struct part {
    int col;
    size_t max;
    struct semel_str *to;
};

static semel_status copy_parts(const struct past *past, const PGresult *res, int row, const struct part *parts,
                               size_t n)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = semel__pg_copy(res, row, parts[i].col, parts[i].max, past->arena, parts[i].to, past->err);
    return status;
}

/* ---- lines -------------------------------------------------------------------------------------- */

/* How to read a line of one kind. */
typedef semel_status (*read_line)(const struct past *past, const PGresult *res, int row, void *line);

static semel_status read_try(const struct past *past, const PGresult *res, int row, void *line)
{
    struct semel_try *try = line;
    const struct part parts[] = {{2, SEMEL_ID_MAX, &try->worker},
                                 {3, SEMEL_ID_MAX, &try->cls},
                                 {4, SEMEL_ERROR_TEXT_MAX, &try->text}};
    try->attempt = (int)semel__pg_get_int(res, row, 0);
    try->at_us = semel__pg_get_time(res, row, 1);
    return copy_parts(past, res, row, parts, 3);
}

static semel_status read_act(const struct past *past, const PGresult *res, int row, void *line)
{
    struct semel_act_line *act = line;
    const struct part parts[] = {{1, SEMEL_ID_MAX, &act->who},
                                 {2, SEMEL_ID_MAX, &act->what},
                                 {3, SEMEL_ERROR_TEXT_MAX, &act->reason}};
    act->at_us = semel__pg_get_time(res, row, 0);
    return copy_parts(past, res, row, parts, 3);
}

static semel_status read_conflict(const struct past *past, const PGresult *res, int row, void *line)
{
    struct semel_conflict_line *conflict = line;
    const struct part parts[] = {{0, FINGERPRINT_MAX, &conflict->fingerprint}};
    conflict->n = semel__pg_get_int(res, row, 1);
    conflict->first_us = semel__pg_get_time(res, row, 2);
    conflict->last_us = semel__pg_get_time(res, row, 3);
    return copy_parts(past, res, row, parts, 1);
}

static semel_status read_business(const struct past *past, const PGresult *res, int row, void *line)
{
    return semel__pg_copy(res, row, 0, SEMEL_ID_MAX, past->arena, line, past->err);
}

static semel_status read_rival(const struct past *past, const PGresult *res, int row, void *line)
{
    struct semel_rival *rival = line;
    const struct part parts[] = {{0, SEMEL_ID_MAX, &rival->key},
                                 {1, SEMEL_ID_MAX, &rival->source},
                                 {2, SEMEL_ID_MAX, &rival->id}};
    if (!semel__state_parse(semel__pg_get_text(res, row, 3), &rival->state))
        rival->state = SEMEL_STATE_ABSENT;
    rival->holds = semel__pg_get_bool(res, row, 4);
    return copy_parts(past, res, row, parts, 3);
}

/* `latest`: they come latest first, and are given oldest first. */
static semel_status read_lines(struct past *past, const PGresult *res, size_t size, read_line read, bool latest,
                               void **ret, size_t *ret_n)
{
    size_t given = (size_t)PQntuples(res), n = given < past->max ? given : past->max;
    char *lines = semel__arena_alloc(past->arena, n, size);
    semel_status status = SEMEL_OK;
    if (lines == NULL && n > 0)
        return semel__fail_memory(past->err);
    past->more |= given > n;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        void *line = lines + i * size;
        memset(line, 0, size);
        status = read(past, res, (int)(latest ? n - 1 - i : i), line);
    }
    *ret = lines;
    *ret_n = status == SEMEL_OK ? n : 0;
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------------ */

enum { T_TRIES, T_ACTS, T_CONFLICTS, T_BUSINESS, T_RIVALS, T_PLACE, T_COUNT };

static void ask(struct pg_trip *trip, const struct past *past)
{
    static const struct sql_text *const lists[] = {&tries, &acts, &conflicts, &business, &rivals};
    const struct semel_row *row = past->row;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        semel__pg_text(trip, row->consumer);
        semel__pg_key(trip, row->source);
        semel__pg_text(trip, row->id);
        semel__pg_int(trip, past->max < INT32_MAX ? (int64_t)past->max + 1 : INT32_MAX);
        semel__pg_add(trip, lists[i]);
    }
    bool queued = semel__str_given(row->order_key) && semel__state_unfinished(row->live.state);
    semel__pg_text(trip, row->consumer);
    semel__pg_key(trip, row->source);
    semel__pg_text(trip, queued ? row->order_key : (struct semel_str){0});
    semel__pg_add(trip, row->version != SEMEL_NONE ? &place_by_version : &place_by_arrival);
}

static semel_status read_place(const struct past *past, const PGresult *res, struct semel_history *h)
{
    const struct part parts[] = {{2, SEMEL_ID_MAX, &h->head_source}, {3, SEMEL_ID_MAX, &h->head_id}};
    struct semel_key key;
    semel_status status = semel__pg_get_skipped(res, 0, 6, past->arena, &key, past->err);
    if (status != SEMEL_OK)
        return status;
    h->skipped = key.skipped;
    h->n_skipped = key.n_skipped;
    h->watermark_us = semel__pg_get_time(res, 0, 0);
    h->last_version = semel__pg_get_int(res, 0, 1);
    h->has_head = semel__state_parse(semel__pg_get_text(res, 0, 4), &h->head_state);
    h->head_version = semel__pg_get_int(res, 0, 5);
    return h->has_head ? copy_parts(past, res, 0, parts, 2) : SEMEL_OK;
}

static semel_status read_all(struct past *past, const struct pg_trip *trip, struct semel_history *h)
{
    void *lines[T_PLACE] = {NULL};
    semel_status status = read_lines(past, trip->results[T_TRIES], sizeof(struct semel_try), read_try, true,
                                     &lines[T_TRIES], &h->n_tries);
    if (status == SEMEL_OK)
        status = read_lines(past, trip->results[T_ACTS], sizeof(struct semel_act_line), read_act, true, &lines[T_ACTS],
                            &h->n_acts);
    if (status == SEMEL_OK)
        status = read_lines(past, trip->results[T_CONFLICTS], sizeof(struct semel_conflict_line), read_conflict, false,
                            &lines[T_CONFLICTS], &h->n_conflicts);
    if (status == SEMEL_OK)
        status = read_lines(past, trip->results[T_BUSINESS], sizeof(struct semel_str), read_business, false,
                            &lines[T_BUSINESS], &h->n_business);
    if (status == SEMEL_OK)
        status = read_lines(past, trip->results[T_RIVALS], sizeof(struct semel_rival), read_rival, false,
                            &lines[T_RIVALS], &h->n_rivals);
    h->tries = lines[T_TRIES];
    h->acts = lines[T_ACTS];
    h->conflicts = lines[T_CONFLICTS];
    h->business = lines[T_BUSINESS];
    h->rivals = lines[T_RIVALS];
    h->more = past->more;
    return status == SEMEL_OK ? read_place(past, trip->results[T_PLACE], h) : status;
}

semel_status semel__pg_history(struct semel_store *store, const struct semel_row *row, size_t max,
                               struct semel_arena *arena, struct semel_history *ret, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct past past = {.row = row, .max = max, .arena = arena, .err = err};
    struct semel_history h = {.head_version = SEMEL_NONE, .last_version = SEMEL_NONE, .watermark_us = SEMEL_NONE};
    struct pg_trip trip;
    bool begun = false;
    semel_status status = semel__pg_usable(d, err);
    if (status == SEMEL_OK)
        status = semel__pg_snapshot(&d->sql, &begun, err);
    if (status != SEMEL_OK)
        return status;
    semel__pg_start(&trip, d, "reading the history of a message");
    ask(&trip, &past);
    status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK)
        status = read_all(&past, &trip, &h);
    semel__pg_end(&trip);
    semel__pg_snapshot_end(&d->sql, begun);
    if (status == SEMEL_OK)
        *ret = h;
    return status;
}
