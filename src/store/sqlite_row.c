/* SPDX-License-Identifier: MIT
 *
 * sqlite_row.c: a row of semel_inbox as it is read.
 *
 * What it is: the column kinds and their bounds, checked before anything is copied; then semel__row_check.
 * STRICT and CHECK keep honest programs honest, but a file can be edited: what is read is hostile.
 *
 * Invariants: no column is converted (a number is never read as text); nothing is copied that is longer than
 * its bound; damage names the table, the row's key and the column, and never shows another value.
 */
#include <limits.h>

#include "store/sqlite.h"

struct reader {
    sqlite3_stmt *stmt;
    struct semel_arena *arena;
    struct semel_error *err;
    semel_status status; /* the first failure sticks */
};

static const char *const names[] = {
#define X(name) #name,
    SQLITE_ROW_MAP(X)
#undef X
        "payload",
    "headers", "payload", "business_key of a wish"};

bool semel__sqlite_damaged(semel_status status)
{
    return status == SEMEL_INVALID;
}

static struct semel_str peek(struct reader *r, enum sqlite_col col)
{
    if (sqlite3_column_type(r->stmt, (int)col) != SQLITE_TEXT)
        return SEMEL_STR("?");
    const void *p = sqlite3_column_text(r->stmt, (int)col);
    return p != NULL ? (struct semel_str){p, (size_t)sqlite3_column_bytes(r->stmt, (int)col)} : SEMEL_STR("?");
}

static void damage_is(struct reader *r, const char *what)
{
    char source[40], id[72];
    if (r->status != SEMEL_OK)
        return;
    semel__str_show(source, sizeof(source), peek(r, COL_source));
    semel__str_show(id, sizeof(id), peek(r, COL_message_id));
    r->status = semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                            "damaged row in semel_inbox (source \"%s\", message_id \"%s\"): %s", source, id, what);
}

static void damage(struct reader *r, const char *column, const char *right)
{
    struct semel_error what;
    semel__fail(&what, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s must be %s", column, right);
    damage_is(r, what.text);
}

static bool is_null(struct reader *r, enum sqlite_col col)
{
    return sqlite3_column_type(r->stmt, (int)col) == SQLITE_NULL;
}

/* Borrowed from SQLite until the next step. */
static struct semel_str bytes(struct reader *r, enum sqlite_col col, int type, size_t max)
{
    struct semel_str none = {0};
    if (r->status != SEMEL_OK || is_null(r, col))
        return none;
    if (sqlite3_column_type(r->stmt, (int)col) != type) {
        damage(r, names[col], type == SQLITE_TEXT ? "text" : "a blob");
        return none;
    }
    const void *p = type == SQLITE_TEXT ? (const void *)sqlite3_column_text(r->stmt, (int)col)
                                        : sqlite3_column_blob(r->stmt, (int)col);
    size_t n = (size_t)sqlite3_column_bytes(r->stmt, (int)col);
    if (n > max) {
        damage(r, names[col], "within its limit");
        return none;
    }
    /* An empty blob is NULL; an empty text is not, there NULL means that memory ran out. */
    if (p == NULL && (n > 0 || type == SQLITE_TEXT))
        r->status = semel__fail_memory(r->err);
    return (struct semel_str){n > 0 ? p : "", n};
}

static struct semel_str text(struct reader *r, enum sqlite_col col, size_t max)
{
    return bytes(r, col, SQLITE_TEXT, max);
}

/* SEMEL_NONE for NULL; the number SEMEL_NONE itself cannot be one of ours. */
static int64_t number(struct reader *r, enum sqlite_col col)
{
    if (r->status != SEMEL_OK || is_null(r, col))
        return SEMEL_NONE;
    int64_t v = sqlite3_column_int64(r->stmt, (int)col);
    if (sqlite3_column_type(r->stmt, (int)col) != SQLITE_INTEGER || v == SEMEL_NONE)
        damage(r, names[col], "an integer");
    return v;
}

static int small(struct reader *r, enum sqlite_col col, int max)
{
    int64_t v = number(r, col);
    if (r->status == SEMEL_OK && (v < 0 || v > max))
        damage(r, names[col], max == 1 ? "0 or 1" : "an integer in range");
    return r->status == SEMEL_OK ? (int)v : 0;
}

static void read_live(struct reader *r, struct semel_live *live)
{
    struct semel_str status = text(r, COL_status, SEMEL_ID_MAX);
    if (!semel__state_parse(status, &live->state) || live->state == SEMEL_STATE_ABSENT)
        damage(r, "status", "one of the statuses");
    live->attempts = small(r, COL_attempts, INT_MAX);
    live->attempts_before = small(r, COL_attempts_before, INT_MAX);
    live->retries = small(r, COL_retries, INT_MAX);
    live->alone = small(r, COL_alone, 1) != 0;
    live->due_us = number(r, COL_due_at);
    live->processed_us = number(r, COL_processed_at);
    live->lease_owner = text(r, COL_lease_owner, SEMEL_ID_MAX);
    live->lease_until_us = number(r, COL_lease_until);
    live->lease_token = number(r, COL_lease_token);
    live->error_class = SEMEL_CLASS_NONE;
    struct semel_str cls = text(r, COL_error_class, SEMEL_ID_MAX);
    if (semel__str_given(cls) && !semel__class_parse(cls, &live->error_class))
        damage(r, "error_class", "one of the classes");
    live->error_text = text(r, COL_error_text, SEMEL_ERROR_TEXT_MAX);
    live->outcome = text(r, COL_outcome, SEMEL_OUTCOME_MAX);
}

/* Keys are given always: NULL there is not "not given". */
static struct semel_str key_text(struct reader *r, enum sqlite_col col)
{
    if (is_null(r, col))
        damage(r, names[col], "given");
    return text(r, col, SEMEL_ID_MAX);
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

semel_status semel__sqlite_read(sqlite3_stmt *stmt, struct semel_arena *arena, struct semel_row *ret,
                                struct semel_error *err)
{
    struct reader r = {.stmt = stmt, .arena = arena, .err = err, .status = SEMEL_OK};
    struct semel_row row = {0};
    row.consumer = key_text(&r, COL_consumer);
    row.source = key_text(&r, COL_source);
    row.id = key_text(&r, COL_message_id);
    row.arrival = number(&r, COL_arrival);
    read_live(&r, &row.live);
    row.type = text(&r, COL_type, SEMEL_ID_MAX);
    struct semel_str fp = bytes(&r, COL_fingerprint, SQLITE_BLOB, 1 + SEMEL_FP_MAX);
    if (semel__str_given(fp) && !semel__fp_decode(fp, &row.fp))
        damage(&r, "fingerprint", "a kind and a digest");
    row.order_key = text(&r, COL_order_key, SEMEL_ID_MAX);
    row.version = number(&r, COL_version);
    row.message_time_us = number(&r, COL_message_time);
    row.received_us = number(&r, COL_received_at);
    row.updated_us = number(&r, COL_updated_at);
    row.position = text(&r, COL_position, SEMEL_POSITION_MAX);
    row.traceparent = text(&r, COL_traceparent, SEMEL_ID_MAX);
    row.kept = small(&r, COL_kept, 1) != 0;
    row.headers = text(&r, COL_headers, SEMEL_HEADERS_MAX);
    row.payload = bytes(&r, COL_payload, SQLITE_BLOB, SEMEL_PAYLOAD_HARD_MAX);
    if (!semel__wants_read(text(&r, COL_wants, SEMEL_BUSINESS_MAX * (3 + SEMEL_ID_MAX)), &row))
        damage(&r, names[COL_wants], "given at most 4 times");

    struct semel_error why;
    if (r.status == SEMEL_OK && semel__row_check(&row, &why) != SEMEL_OK) {
        const char *colon = strchr(why.text, ':');
        damage_is(&r, colon != NULL && colon[1] == ' ' ? colon + 2 : why.text);
    }
    keep(&r, &row);
    if (r.status == SEMEL_OK)
        *ret = row;
    return r.status;
}
