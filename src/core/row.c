/* SPDX-License-Identifier: MIT
 *
 * row.c: checks a row that a database returned before a rule reads it.
 */
#include "core/row.h"

#include "base/error.h"
#include "base/str.h"
#include "core/state.h"

#define ATTEMPTS_MAX 1000000

static semel_status damaged(struct semel_error *err, const char *column, const char *right)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "damaged inbox row: %s must be %s", column, right);
}

semel_status semel__id_check(const char *what, struct semel_str id, size_t min, struct semel_error *err)
{
    if (id.n < min)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s is empty; it must have 1 to %d bytes", what,
                           SEMEL_ID_MAX);
    if (id.n > SEMEL_ID_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s has %zu bytes; at most %d are allowed", what,
                           id.n, SEMEL_ID_MAX);
    if (!semel__utf8_valid(id))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s is not UTF-8 text without NUL", what);
    return SEMEL_OK;
}

static semel_status check_texts(const struct semel_row *row, struct semel_error *err)
{
    const struct {
        const char *name;
        struct semel_str value;
        size_t min, max;
    } texts[] = {
        {"consumer", row->consumer, 0, SEMEL_ID_MAX},
        {"message_id", row->id, 1, SEMEL_ID_MAX},
        {"source", row->source, 0, SEMEL_ID_MAX},
        {"type", row->type, 0, SEMEL_ID_MAX},
        {"order_key", row->order_key, 0, SEMEL_ID_MAX},
        {"lease_owner", row->progress.lease_owner, 0, SEMEL_ID_MAX},
        {"position", row->position, 0, SEMEL_POSITION_MAX},
        {"traceparent", row->traceparent, 0, SEMEL_ID_MAX},
        {"error_text", row->progress.error_text, 0, SEMEL_ERROR_TEXT_MAX},
        {"outcome", row->progress.outcome, 0, SEMEL_OUTCOME_MAX},
        {"headers", row->headers, 0, SEMEL_HEADERS_MAX},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].value.n < texts[i].min || texts[i].value.n > texts[i].max || !semel__utf8_valid(texts[i].value))
            return damaged(err, texts[i].name, "UTF-8 text within its limit");
    if (row->payload.n > SEMEL_PAYLOAD_HARD_MAX)
        return damaged(err, "payload", "at most 64 MiB");
    for (size_t i = 0; i < row->n_wants; i++)
        if (row->wants[i].n < 1 || row->wants[i].n > SEMEL_ID_MAX || !semel__utf8_valid(row->wants[i]))
            return damaged(err, "business_key of a wish", "UTF-8 text within its limit");
    return SEMEL_OK;
}

static semel_status check_numbers(const struct semel_row *row, struct semel_error *err)
{
    const struct semel_progress *progress = &row->progress;
    if (row->arrival < 1)
        return damaged(err, "arrival", "1 or more");
    if (progress->attempts < 0 || progress->attempts > ATTEMPTS_MAX)
        return damaged(err, "attempts", "0 to 1000000");
    if (progress->state == SEMEL_ROW_PROCESSING && progress->attempts == 0)
        return damaged(err, "attempts", "1 or more while it is processing");
    if (progress->attempts_before < 0 || progress->attempts_before > progress->attempts)
        return damaged(err, "attempts_before", "0 to attempts");
    if (progress->retries < 0 || progress->retries > ATTEMPTS_MAX)
        return damaged(err, "retries", "0 to 1000000");
    if (row->version != SEMEL_NONE && (row->version < 0 || row->version == INT64_MAX))
        return damaged(err, "version", "from 0 to 2^63-2, or NULL");
    if (row->received_us == SEMEL_NONE || row->updated_us == SEMEL_NONE)
        return damaged(err, "received_at and updated_at", "times");
    return SEMEL_OK;
}

semel_status semel__row_check(const struct semel_row *row, struct semel_error *err)
{
    const struct semel_progress *progress = &row->progress;
    if ((unsigned)progress->state >= SEMEL_ROW_COUNT || progress->state == SEMEL_ROW_ABSENT)
        return damaged(err, "status", "one of the statuses");
    semel_status status = check_texts(row, err);
    if (status == SEMEL_OK)
        status = check_numbers(row, err);
    if (status != SEMEL_OK)
        return status;
    bool held = progress->lease_token != SEMEL_NONE && progress->lease_until_us != SEMEL_NONE &&
                progress->lease_owner.n > 0;
    bool free_ = progress->lease_token == SEMEL_NONE && progress->lease_until_us == SEMEL_NONE &&
                 progress->lease_owner.p == NULL;
    if (progress->state == SEMEL_ROW_PROCESSING ? !held : !free_)
        return damaged(err, "lease_owner, lease_until and lease_token",
                       "given for `processing`, and NULL for all others");
    if (progress->due_us != SEMEL_NONE && progress->state != SEMEL_ROW_FAILED && progress->state != SEMEL_ROW_WAITING)
        return damaged(err, "due_at", "NULL unless the row is failed or waiting");
    if (semel__state_final(progress->state) != (progress->processed_us != SEMEL_NONE))
        return damaged(err, "processed_at", "given for final rows, and NULL for all others");
    return SEMEL_OK;
}

bool semel__wants_read(struct semel_str text, struct semel_row *row)
{
    for (row->n_wants = 0; text.n > 0; row->n_wants++) {
        int64_t n = 0;
        if (row->n_wants == SEMEL_BUSINESS_MAX || text.n < 3 || !semel__str_int64((struct semel_str){text.p, 3}, &n) ||
            n < 1 || (size_t)n > text.n - 3)
            return false;
        row->wants[row->n_wants] = (struct semel_str){text.p + 3, (size_t)n};
        text = (struct semel_str){text.p + 3 + n, text.n - 3 - (size_t)n};
    }
    return true;
}

bool semel__progress_postponed(const struct semel_progress *progress, int64_t now_us)
{
    return progress->state == SEMEL_ROW_WAITING && progress->error_class == SEMEL_CLASS_NONE &&
           progress->due_us != SEMEL_NONE && progress->due_us > now_us;
}

bool semel__progress_waits_for_intent(const struct semel_progress *progress)
{
    return progress->state == SEMEL_ROW_WAITING && progress->error_class == SEMEL_CLASS_BUSINESS;
}

bool semel__progress_in_order(const struct semel_progress *progress)
{
    return semel__state_unfinished(progress->state) && !semel__progress_waits_for_intent(progress);
}

void semel__row_msg(const struct semel_row *row, struct semel__msg *ret_msg)
{
    semel__msg_init(ret_msg);
    ret_msg->source = row->source;
    ret_msg->id = row->id;
    ret_msg->type = row->type;
    ret_msg->payload = row->payload;
    ret_msg->headers = row->headers;
    ret_msg->n_business = row->n_wants;
    for (size_t i = 0; i < row->n_wants; i++)
        ret_msg->business[i] = row->wants[i];
    ret_msg->position = row->position;
    ret_msg->traceparent = row->traceparent;
    ret_msg->order_key = row->order_key;
    ret_msg->fp = row->fp;
    ret_msg->version = row->version;
    ret_msg->message_time_us = row->message_time_us;
}
