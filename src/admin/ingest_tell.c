/* SPDX-License-Identifier: MIT
 *
 * ingest_tell.c: what came of messages, in the words and statuses of HTTP.
 *
 *   202 accepted   it is ours now: done, or stored to be done
 *   200 duplicate  it was ours before
 *   409 conflict   the id was used for another payload
 *   422 kept       stored, and cannot run: `why` says it
 *   503 later      it is not ours: send it again
 *
 * Invariants: every `why` has its word; a word other than `later` is said only of what was acknowledged, that is after
 * the commit; the outcome of an earlier run goes with a duplicate (I9).
 */
#include <stdio.h>

#include "admin/ingest.h"
#include "admin/text.h"
#include "base/error.h"
#include "base/json.h"
#include "core/row.h"

struct word {
    int code;
    const char *text;
};

static const struct word accepted = {202, "accepted"}, duplicate = {200, "duplicate"}, conflict = {409, "conflict"},
                         kept = {422, "kept"}, later = {503, "later"};

static struct word word_of(const struct ingest_part *part)
{
    if (part->state != INGEST_DONE || part->later)
        return later;
    switch (part->settled.why) {
    case SEMEL_WHY_NEW:
    case SEMEL_WHY_RETRIED:
    case SEMEL_WHY_GAP:
    case SEMEL_WHY_BLOCKED:
        return accepted;
    case SEMEL_WHY_DUPLICATE:
    case SEMEL_WHY_STALE:
    case SEMEL_WHY_BUSINESS:
    case SEMEL_WHY_BUSY:
    case SEMEL_WHY_BACKOFF:
    case SEMEL_WHY_UNKNOWN:
        return duplicate;
    case SEMEL_WHY_CONFLICT:
        return conflict;
    case SEMEL_WHY_DEAD:
    case SEMEL_WHY_TOO_OLD:
    case SEMEL_WHY_NO_ID:
        return kept;
    case SEMEL_WHY_DAMAGED:
    case SEMEL_WHY_UNSET:
        return later;
    }
    return later;
}

static void put_part(struct semel_buf *buf, const struct ingest_part *part, const struct word *word, bool with_code)
{
    semel__buf_addf(buf, "{\"result\":\"%s\"", word->text);
    if (with_code)
        semel__buf_addf(buf, ",\"code\":%d", word->code);
    if (word->code != 503) {
        semel__json_put_pair(buf, "why", semel__str(semel__why_name(part->settled.why)));
        if (part->settled.state != SEMEL_STATE_ABSENT)
            semel__json_put_pair(buf, "status", semel__str(semel__state_name(part->settled.state)));
        size_t before = buf->n;
        if (semel__str_given(part->settled.outcome)) {
            semel__buf_addz(buf, ",\"outcome\":");
            if (!semel__json_put_raw(buf, part->settled.outcome, SEMEL_OUTCOME_MAX))
                buf->n = before;
        }
    }
    semel__buf_addz(buf, "}");
}

static int wait_s(const struct ingest_request *request)
{
    int most_ms = 1000;
    for (size_t i = 0; i < request->n; i++)
        if (request->parts[i].later && request->parts[i].delay_ms > most_ms)
            most_ms = request->parts[i].delay_ms;
    return most_ms / 1000 + (most_ms % 1000 > 0 ? 1 : 0);
}

void semel__ingest_answer(struct semel_ingest *ingest, struct ingest_request *request)
{
    struct semel_http_exchange *x = request->x;
    struct semel_buf *body = semel__http_body(x);
    struct word word = {200, ""};
    bool again = false;
    request->x = NULL;
    if (request->batch)
        semel__buf_addz(body, "[");
    for (size_t i = 0; i < request->n; i++) {
        word = word_of(&request->parts[i]);
        again |= word.code == 503;
        if (i > 0)
            semel__buf_addz(body, ",\n");
        put_part(body, &request->parts[i], &word, request->batch);
        semel__door_count(ingest->serve, SEMEL_FAMILY_INGEST, ingest->route->name, word.text, NULL, 1);
    }
    semel__buf_addz(body, request->batch ? "]\n" : "\n");
    if (again) {
        char after[16];
        snprintf(after, sizeof(after), "%d", wait_s(request));
        semel__http_set_header(x, "Retry-After", semel__str(after));
    }
    semel__http_answer(x, request->batch ? 200 : word.code);
}
