/* SPDX-License-Identifier: MIT
 *
 * records_row.c: a row of the inbox as it is read.
 *
 * Types and CHECKs keep honest programs honest, but a table can be altered and a file edited: what is read is hostile.
 *
 * Invariants: nothing is copied that is longer than its bound; only a row that passed every check takes room in the
 * arena.
 */
#include <limits.h>

#include "store/records.h"

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
    struct semel_progress *p = &row->progress;
    struct semel_str *all[] = {&row->consumer,    &row->source,    &row->id,       &row->type,
                               &row->order_key,   &row->position,  &row->headers,  &row->payload,
                               &row->traceparent, &p->lease_owner, &p->error_text, &p->outcome};
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
