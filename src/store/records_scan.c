/* SPDX-License-Identifier: MIT
 *
 * records_scan.c: a row of the inbox as it is read, and bounded, unlocked looks at the inbox.
 *
 * Types and CHECKs keep honest programs honest, but a table can be altered and a file edited: what is read is hostile.
 *
 * Invariants: nothing is copied that is longer than its bound; only a row that passed every check takes room in the
 * arena. A scan gives at most `max` rows, and damaged ones do not use up that number: a heap of them at the front of an
 * index must not hide the good ones behind. So what is asked for is doubled until enough good ones came, or none are
 * left, or DAMAGED_MAX were met.
 */
#include <limits.h>

#include "core/state.h"
#include "store/records.h"

#define DAMAGED_MAX 100000

/* ---- a row --------------------------------------------------------------------------------------- */

struct read {
    struct semel_row row;
    struct semel_str wants;
};

#define ROW struct read
static const struct sql_field row_fields[] = {
    SQL_MUST(ROW, row.arrival, arrival, 0, 0),
    SQL_MUST(ROW, row.consumer, consumer, 0, SEMEL_ID_MAX),
    SQL_MUST(ROW, row.source, source, 0, SEMEL_ID_MAX),
    SQL_MUST(ROW, row.id, message_id, 0, SEMEL_ID_MAX),
    SQL_MAYBE(ROW, row.type, type, 0, SEMEL_ID_MAX),
    SQL_MUST(ROW, row.progress.state, status, 0, SEMEL_ID_MAX),
    SQL_MUST(ROW, row.progress.attempts, attempts, 0, INT_MAX),
    SQL_MUST(ROW, row.progress.attempts_before, attempts_before, 0, INT_MAX),
    SQL_MUST(ROW, row.progress.retries, retries, 0, INT_MAX),
    SQL_MUST(ROW, row.progress.alone, alone, 0, 1),
    SQL_MAYBE(ROW, row.fp, fingerprint, 0, 1 + SEMEL_FP_MAX),
    SQL_MAYBE(ROW, row.order_key, order_key, 0, SEMEL_ID_MAX),
    SQL_FIELD(ROW, row.version, version),
    SQL_FIELD(ROW, row.message_time_us, message_time),
    SQL_FIELD(ROW, row.received_us, received_at),
    SQL_FIELD(ROW, row.updated_us, updated_at),
    SQL_FIELD(ROW, row.progress.processed_us, processed_at),
    SQL_FIELD(ROW, row.progress.due_us, due_at),
    SQL_MAYBE(ROW, row.progress.lease_owner, lease_owner, 0, SEMEL_ID_MAX),
    SQL_FIELD(ROW, row.progress.lease_until_us, lease_until),
    SQL_FIELD(ROW, row.progress.lease_token, lease_token),
    SQL_MAYBE(ROW, row.progress.error_class, error_class, 0, SEMEL_ID_MAX),
    SQL_MAYBE(ROW, row.progress.error_text, error_text, 0, SEMEL_ERROR_TEXT_MAX),
    SQL_MAYBE(ROW, row.progress.outcome, outcome, 0, SEMEL_OUTCOME_MAX),
    SQL_MAYBE(ROW, row.position, position, 0, SEMEL_POSITION_MAX),
    SQL_MAYBE(ROW, row.traceparent, traceparent, 0, SEMEL_ID_MAX),
    SQL_MUST(ROW, row.kept, kept, 0, 1),
    SQL_MAYBE(ROW, row.headers, headers, 0, SEMEL_HEADERS_MAX),
    SQL_MAYBE(ROW, row.payload, payload, 0, SEMEL_PAYLOAD_HARD_MAX),
    SQL_MAYBE(ROW, wants, wants, 0, SEMEL_BUSINESS_MAX *(3 + SEMEL_ID_MAX)),
};

static semel_status keep(struct semel_row *row, struct semel_arena *arena, struct semel_error *err)
{
    struct semel_str *all[] = {&row->consumer,
                               &row->source,
                               &row->id,
                               &row->type,
                               &row->order_key,
                               &row->position,
                               &row->headers,
                               &row->payload,
                               &row->traceparent,
                               &row->progress.lease_owner,
                               &row->progress.error_text,
                               &row->progress.outcome};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!semel__arena_copy(arena, *all[i], all[i]))
            return semel__fail_memory(err);
    for (size_t i = 0; i < row->n_wants; i++)
        if (!semel__arena_copy(arena, row->wants[i], &row->wants[i]))
            return semel__fail_memory(err);
    return SEMEL_OK;
}

static semel_status read_row(const struct sql_row *row, struct read *read, struct semel_arena *arena,
                             struct semel_row *ret, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = semel__db_fill(row, SQL_FIELDS(row_fields), NULL, read, err);
    if (status != SEMEL_OK)
        return status;
    if (!semel__wants_read(read->wants, &read->row))
        return semel__db_damage(row, "business_key of a wish must be given at most 4 times", err);
    if (semel__row_check(&read->row, &why) != SEMEL_OK) {
        const char *colon = strchr(why.text, ':');
        return semel__db_damage(row, colon != NULL && colon[1] == ' ' ? colon + 2 : why.text, err);
    }
    status = keep(&read->row, arena, err);
    if (status == SEMEL_OK)
        *ret = read->row;
    return status;
}

semel_status semel__record_row(const struct sql_row *row, struct semel_arena *arena, struct semel_row *ret,
                               struct semel_error *err)
{
    struct read read = {0};
    return read_row(row, &read, arena, ret, err);
}

semel_status semel__record_final(const struct sql_row *row, const struct semel_row *key, struct semel_arena *arena,
                                 struct semel_row *ret, struct semel_error *err)
{
    struct sql_row known = *row;
    struct read read = {
        .row = {.consumer = key->consumer,
                .source = semel__str_given(key->source) ? key->source : SEMEL_STR(""),
                .id = key->id,
                .version = SEMEL_NONE,
                .message_time_us = SEMEL_NONE,
                .progress = {.due_us = SEMEL_NONE, .lease_until_us = SEMEL_NONE, .lease_token = SEMEL_NONE}}};
    known.key = key;
    return read_row(&known, &read, arena, ret, err);
}

struct args {
    struct semel_str consumer, statuses;
    int64_t limit, payload_max, after_arrival;
    struct semel_scan scan;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, payload_max, payload_max),
    SQL_FIELD(struct args, scan.with_payload, with_payload),
    SQL_FIELD(struct args, scan.now_us, now),
    SQL_FIELD(struct args, scan.kept, kept),
    SQL_FIELD(struct args, scan.token, lease_token),
    SQL_FIELD(struct args, scan.order_key, order_key),
    SQL_FIELD(struct args, scan.any_key, any_key),
    SQL_FIELD(struct args, scan.type, type),
    SQL_FIELD(struct args, after_arrival, after_arrival),
    SQL_FIELD(struct args, statuses, statuses),
};

/* ---- scan ---------------------------------------------------------------------------------------- */

struct semel_str semel__record_statuses(unsigned states, char out[RECORD_STATUSES])
{
    size_t n = 0;
    if (states == 0)
        return (struct semel_str){0};
    out[n++] = '|';
    for (unsigned i = 0; i < SEMEL_ROW_COUNT; i++) {
        struct semel_str name = semel__str(semel__row_status_name((enum semel_row_status)i));
        if ((states & (1u << i)) == 0 || n + name.n + 1 > RECORD_STATUSES)
            continue;
        memcpy(out + n, name.p, name.n);
        n += name.n;
        out[n++] = '|';
    }
    return (struct semel_str){out, n};
}

/* Are only states asked for that are in the index of what is not final? */
static bool only_open(unsigned states)
{
    for (unsigned i = 0; i < SEMEL_ROW_COUNT; i++)
        if ((states & (1u << i)) != 0 && semel__state_final((enum semel_row_status)i))
            return false;
    return states != 0;
}

static enum sql_id statement_of(const struct semel_scan *scan)
{
    switch (scan->kind) {
    case SEMEL_SCAN_DUE:
        return SQL_scan_due;
    case SEMEL_SCAN_EXPIRED:
        return SQL_scan_expired;
    case SEMEL_SCAN_TOKEN:
        return SQL_scan_token;
    case SEMEL_SCAN_KEY:
        return scan->by_version ? SQL_scan_key_version : SQL_scan_key;
    case SEMEL_SCAN_STILL:
        if (!semel__str_given(scan->order_key))
            return SQL_scan_still;
        return scan->by_version ? SQL_scan_still_keys_version : SQL_scan_still_keys;
    case SEMEL_SCAN_ALL:
        break;
    }
    return only_open(scan->states) ? SQL_scan_open : SQL_scan_all;
}

struct found {
    struct sql_list rows;
    size_t max, met, damaged;
};

static semel_status read_found(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct found *found = ctx;
    struct semel_row read;
    (void)item;
    found->met++;
    if (found->rows.n == found->max)
        return SEMEL_OK;
    semel_status status = semel__record_row(row, found->rows.arena, &read, err);
    if (status == SEMEL_INVALID) {
        found->damaged++;
        return SEMEL_OK;
    }
    return status == SEMEL_OK ? semel__db_list_put(&found->rows, &read, err) : status;
}

semel_status semel__record_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                                struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged,
                                struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    char statuses[RECORD_STATUSES];
    struct args args = {.consumer = scan->consumer,
                        .statuses = semel__record_statuses(scan->states, statuses),
                        .limit = semel__db_limit(scan->max),
                        .after_arrival = scan->after_arrival != SEMEL_NONE ? scan->after_arrival : 0,
                        .scan = *scan};
    struct found found = {.rows = {.arena = arena, .size = sizeof(struct semel_row)}, .max = scan->max};
    semel_status status = SEMEL_OK;
    for (bool more = true; status == SEMEL_OK && more; args.limit = 2 * args.limit + 16) {
        found.rows.n = found.met = found.damaged = 0;
        status = semel__db_do(db, "scanning the inbox", statement_of(scan), SQL_ONE(args_fields, &args), NULL,
                              read_found, &found, err);
        more = found.rows.n < scan->max && found.met >= (size_t)args.limit && found.damaged < DAMAGED_MAX;
    }
    status = semel__db_list_end(&found.rows, status, err);
    if (status != SEMEL_OK)
        return status;
    semel__error_clear(err); /* damage is counted, it is no error of the call */
    *ret_rows = found.rows.items;
    *ret_n = found.rows.n;
    if (ret_damaged != NULL)
        *ret_damaged = found.damaged;
    return SEMEL_OK;
}

/* ---- counts, before one more row is parked or kept ----------------------------------------------- */

semel_status semel__record_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                                  struct semel_error *err)
{
    const struct args args = {.consumer = consumer, .limit = max};
    return semel__db_count(semel__db_of(store), SQL_parked, "counting parked messages", SQL_ONE(args_fields, &args),
                           ret_n, err);
}

semel_status semel__record_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                                 int64_t *ret_n, struct semel_error *err)
{
    const struct args args = {.consumer = consumer, .limit = max, .payload_max = (int64_t)bytes};
    return semel__db_count(semel__db_of(store), SQL_large, "counting messages above payload_max",
                           SQL_ONE(args_fields, &args), ret_n, err);
}
