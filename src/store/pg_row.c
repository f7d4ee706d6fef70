/* SPDX-License-Identifier: MIT
 *
 * pg_row.c: a row of semel.inbox as it is read.
 *
 * What it is: every column looked at with its bound before anything is copied; then semel__row_check. Types and CHECKs
 * keep honest programs honest, but a table can be altered: what is read is hostile.
 *
 * Invariants: nothing is copied that is longer than its bound; damage names the table, the row's key and the column,
 * and never shows another value.
 */
#include <limits.h>

#include "store/pg.h"

struct reader {
    const PGresult *res;
    int row, first;
    const signed char *at;       /* where a column is, from `first` on; -1: it was not asked for */
    const struct semel_row *key; /* NULL: it is among the columns */
    struct semel_arena *arena;
    struct semel_error *err;
    semel_status status; /* the first failure sticks */
};

static const char *const names[] = {
#define X(name) #name,
    PG_ROW_MAP(X)
#undef X
        "payload",
    "headers", "payload", "business_key of a wish"};

bool semel__pg_damaged(semel_status status)
{
    return status == SEMEL_INVALID;
}

static struct semel_str raw(const struct reader *r, enum pg_col col)
{
    return r->at[col] >= 0 ? semel__pg_get_text(r->res, r->row, r->first + r->at[col]) : (struct semel_str){0};
}

static void damage_is(struct reader *r, const char *what)
{
    char source[40], id[72];
    if (r->status != SEMEL_OK)
        return;
    semel__str_show(source, sizeof(source), r->key != NULL ? r->key->source : raw(r, PG_COL_source));
    semel__str_show(id, sizeof(id), r->key != NULL ? r->key->id : raw(r, PG_COL_message_id));
    r->status = semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                            "damaged row in semel.inbox (source \"%s\", message_id \"%s\"): %s", source, id, what);
}

static void damage(struct reader *r, const char *column, const char *right)
{
    struct semel_error what;
    semel__fail(&what, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s must be %s", column, right);
    damage_is(r, what.text);
}

/* Borrowed from the result. */
static struct semel_str bytes(struct reader *r, enum pg_col col, size_t max)
{
    struct semel_str s = raw(r, col);
    if (s.n <= max)
        return s;
    damage(r, names[col], "within its limit");
    return (struct semel_str){0};
}

static int64_t number(struct reader *r, enum pg_col col)
{
    int64_t v = r->at[col] >= 0 ? semel__pg_get_int(r->res, r->row, r->first + r->at[col]) : SEMEL_NONE;
    if (v == SEMEL_NONE && semel__str_given(raw(r, col))) /* of the wrong size, or the one number that means none */
        damage(r, names[col], "an integer");
    return v;
}

static int64_t moment(struct reader *r, enum pg_col col)
{
    int64_t us = r->at[col] >= 0 ? semel__pg_get_time(r->res, r->row, r->first + r->at[col]) : SEMEL_NONE;
    if (us == SEMEL_NONE && semel__str_given(raw(r, col)))
        damage(r, names[col], "a time");
    return us;
}

static int small(struct reader *r, enum pg_col col)
{
    int64_t v = number(r, col);
    if (r->status == SEMEL_OK && (v < 0 || v > INT_MAX))
        damage(r, names[col], "an integer in range");
    return r->status == SEMEL_OK ? (int)v : 0;
}

static bool flag(const struct reader *r, enum pg_col col)
{
    return r->at[col] >= 0 && semel__pg_get_bool(r->res, r->row, r->first + r->at[col]);
}

static void read_live(struct reader *r, struct semel_live *live)
{
    struct semel_str status = bytes(r, PG_COL_status, SEMEL_ID_MAX);
    if (!semel__state_parse(status, &live->state) || live->state == SEMEL_STATE_ABSENT)
        damage(r, "status", "one of the statuses");
    live->attempts = small(r, PG_COL_attempts);
    live->attempts_before = small(r, PG_COL_attempts_before);
    live->retries = small(r, PG_COL_retries);
    live->alone = flag(r, PG_COL_alone);
    live->due_us = moment(r, PG_COL_due_at);
    live->processed_us = moment(r, PG_COL_processed_at);
    live->lease_owner = bytes(r, PG_COL_lease_owner, SEMEL_ID_MAX);
    live->lease_until_us = moment(r, PG_COL_lease_until);
    live->lease_token = number(r, PG_COL_lease_token);
    live->error_class = SEMEL_CLASS_NONE;
    struct semel_str cls = bytes(r, PG_COL_error_class, SEMEL_ID_MAX);
    if (semel__str_given(cls) && !semel__class_parse(cls, &live->error_class))
        damage(r, "error_class", "one of the classes");
    live->error_text = bytes(r, PG_COL_error_text, SEMEL_ERROR_TEXT_MAX);
    live->outcome = bytes(r, PG_COL_outcome, SEMEL_OUTCOME_MAX);
}

/* Keys are given always: NULL there is not "not given". */
static struct semel_str key_text(struct reader *r, enum pg_col col)
{
    struct semel_str s = bytes(r, col, SEMEL_ID_MAX);
    if (!semel__str_given(s))
        damage(r, names[col], "given");
    return s;
}

/* Only a row that passed every check takes room in the arena. */
static void keep(struct reader *r, struct semel_row *row)
{
    struct semel_str *all[] = {
        &row->consumer,        &row->source,      &row->id,      &row->type,        &row->order_key,
        &row->position,        &row->headers,     &row->payload, &row->traceparent, &row->live.lease_owner,
        &row->live.error_text, &row->live.outcome};
    for (size_t i = 0; r->status == SEMEL_OK && i < sizeof(all) / sizeof(all[0]); i++)
        if (!semel__arena_copy(r->arena, *all[i], all[i]))
            r->status = semel__fail_memory(r->err);
    for (size_t i = 0; r->status == SEMEL_OK && i < row->n_wants; i++)
        if (!semel__arena_copy(r->arena, row->wants[i], &row->wants[i]))
            r->status = semel__fail_memory(r->err);
}

static void read_fixed(struct reader *r, struct semel_row *row)
{
    row->type = bytes(r, PG_COL_type, SEMEL_ID_MAX);
    struct semel_str fp = bytes(r, PG_COL_fingerprint, 1 + SEMEL_FP_MAX);
    if (semel__str_given(fp) && !semel__fp_decode(fp, &row->fp))
        damage(r, "fingerprint", "a kind and a digest");
    row->order_key = bytes(r, PG_COL_order_key, SEMEL_ID_MAX);
    row->version = number(r, PG_COL_version);
    row->message_time_us = moment(r, PG_COL_message_time);
    row->received_us = moment(r, PG_COL_received_at);
    row->updated_us = moment(r, PG_COL_updated_at);
    row->position = bytes(r, PG_COL_position, SEMEL_POSITION_MAX);
    row->traceparent = bytes(r, PG_COL_traceparent, SEMEL_ID_MAX);
    row->kept = flag(r, PG_COL_kept);
    row->headers = bytes(r, PG_COL_headers, SEMEL_HEADERS_MAX);
    row->payload = bytes(r, PG_COL_payload, SEMEL_PAYLOAD_HARD_MAX);
    if (!semel__wants_read(bytes(r, PG_COL_wants, SEMEL_BUSINESS_MAX * (3 + SEMEL_ID_MAX)), row))
        damage(r, names[PG_COL_wants], "given at most 4 times");
}

/* All but the key. */
static semel_status read_rest(struct reader *r, struct semel_row *read, struct semel_row *ret)
{
    struct semel_error why;
    read->arrival = number(r, PG_COL_arrival);
    read_live(r, &read->live);
    read_fixed(r, read);
    if (r->status == SEMEL_OK && semel__row_check(read, &why) != SEMEL_OK) {
        const char *colon = strchr(why.text, ':');
        damage_is(r, colon != NULL && colon[1] == ' ' ? colon + 2 : why.text);
    }
    keep(r, read);
    if (r->status == SEMEL_OK)
        *ret = *read;
    return r->status;
}

semel_status semel__pg_read(const PGresult *res, int row, int first, struct semel_arena *arena, struct semel_row *ret,
                            struct semel_error *err)
{
#define X(name) PG_COL_##name,
    static const signed char at[PG_COL_COUNT] = {PG_ROW_MAP(X) PG_COL_kept, PG_COL_headers, PG_COL_payload,
                                                 PG_COL_wants};
#undef X
    struct reader r = {.res = res, .row = row, .first = first, .at = at, .arena = arena, .err = err};
    struct semel_row read = {0};
    read.consumer = key_text(&r, PG_COL_consumer);
    read.source = key_text(&r, PG_COL_source);
    read.id = key_text(&r, PG_COL_message_id);
    return read_rest(&r, &read, ret);
}

enum final_col {
#define X(name) FINAL_COL_##name,
    PG_FINAL_MAP(X)
#undef X
        FINAL_COL_kept
};

semel_status semel__pg_read_final(const PGresult *res, int row, int first, const struct semel_row *key,
                                  struct semel_arena *arena, struct semel_row *ret, struct semel_error *err)
{
    signed char at[PG_COL_COUNT];
    memset(at, -1, sizeof(at));
#define X(name) at[PG_COL_##name] = FINAL_COL_##name;
    PG_FINAL_MAP(X)
#undef X
    at[PG_COL_kept] = FINAL_COL_kept;
    struct reader r = {.res = res, .row = row, .first = first, .at = at, .key = key, .arena = arena, .err = err};
    struct semel_row read = {.consumer = key->consumer, .source = key->source, .id = key->id};
    if (!semel__str_given(read.source))
        read.source = SEMEL_STR("");
    return read_rest(&r, &read, ret);
}
