/* SPDX-License-Identifier: MIT
 *
 * pull_tell.c: leased messages and ends as JSON.
 *
 * Numbers that JavaScript would round are strings: a token is digits in quotes. A payload that is JSON stands as it was
 * written, any other as payload_base64; headers are the object that the inbox keeps.
 *
 * Invariant: what is written is well-formed, whatever is stored.
 */
#include <inttypes.h>

#include "admin/pull.h"
#include "admin/text.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"

#define AROUND 4096 /* bytes of a message besides its payload and headers */

static const char *const op_names[] = {
    [PULL_TAKE] = "take", [PULL_RENEW] = "renew", [PULL_SETTLE] = "settle", [PULL_RELEASE] = "release"};

static void count(struct semel_pull *pull, enum pull_op op, const char *result, uint64_t n)
{
    semel__endpoint_count(pull->serve, SEMEL_FAMILY_PULL, pull->route->name, op_names[op], result, n);
}

size_t semel__pull_tell_fits(const struct semel_lease *leases, size_t n)
{
    size_t bytes = 0, fit = 0;
    for (; fit < n; fit++) {
        const struct semel__msg *msg = &leases[fit].msg;
        bytes += AROUND + msg->headers.n + msg->payload.n / 3 * 4;
        if (fit > 0 && bytes > SEMEL_PULL_BYTES)
            break;
    }
    return fit;
}

static void put_payload(struct semel_buf *buf, struct semel_str payload)
{
    size_t before = buf->n;
    semel__buf_addz(buf, ",\"payload\":");
    if (semel__json_put_raw(buf, payload, SEMEL_PAYLOAD_HARD_MAX))
        return;
    buf->n = before;
    semel__buf_addz(buf, ",\"payload_base64\":\"");
    semel__base64_put(buf, payload);
    semel__buf_addz(buf, "\"");
}

static void put_headers(struct semel_buf *buf, struct semel_str headers)
{
    semel__buf_addz(buf, ",\"headers\":");
    if (!semel__json_put_raw(buf, headers, SEMEL_HEADERS_MAX))
        semel__buf_addz(buf, "{}");
}

static void put_lease(struct semel_buf *buf, struct semel_str consumer, const struct semel_lease *lease)
{
    const struct semel__msg *msg = &lease->msg;
    char key[SEMEL_STEP_KEY_TEXT], until[SEMEL_TIME_TEXT];
    semel__time_format(lease->progress.lease_until_us, until);
    semel__buf_addf(buf, "{\"token\":\"%" PRId64 "\"", lease->progress.lease_token);
    semel__json_put_pair(buf, "id", msg->id);
    semel__json_put_pair(buf, "source", msg->source);
    semel__json_put_pair(buf, "type", msg->type);
    semel__buf_addf(buf, ",\"attempt\":%d", lease->progress.attempts);
    if (semel__step_key(consumer, msg->source, msg->id, SEMEL_STR("effect"), key))
        semel__json_put_pair(buf, "idempotency_key", semel__str(key));
    semel__json_put_pair(buf, "lease_until", semel__str(until));
    semel__json_put_pair(buf, "order_key", msg->order_key);
    if (msg->version != SEMEL_NONE)
        semel__buf_addf(buf, ",\"version\":\"%" PRId64 "\"", msg->version);
    semel__json_put_pair(buf, "position", msg->position);
    semel__json_put_pair(buf, "traceparent", msg->traceparent);
    put_headers(buf, msg->headers);
    put_payload(buf, msg->payload);
    semel__buf_addz(buf, "}");
}

void semel__pull_tell_taken(struct semel_pull *pull, struct pull_call *call, const struct semel_lease *leases, size_t n)
{
    struct semel_buf *buf = semel__http_body(call->x);
    semel__buf_addz(buf, "[");
    for (size_t i = 0; i < n; i++) {
        semel__buf_addz(buf, i > 0 ? ",\n" : "");
        put_lease(buf, pull->route->name, &leases[i]);
    }
    semel__buf_addz(buf, "]\n");
    count(pull, PULL_TAKE, "ok", n);
    semel__http_answer(call->x, 200);
    semel__pull_call_free(call);
}

void semel__pull_tell_none(struct pull_call *call)
{
    semel__buf_addz(semel__http_body(call->x), "[]\n");
    semel__http_answer(call->x, 200);
    semel__pull_call_free(call);
}

void semel__pull_tell_later(struct pull_call *call, const char *why)
{
    semel__endpoint_later(call->x, 1, why);
    semel__pull_call_free(call);
}

void semel__pull_tell_end(struct semel_pull *pull, struct pull_call *call)
{
    static const char *const words[] = {
        [PULL_TAKE] = "taken", [PULL_RENEW] = "renewed", [PULL_SETTLE] = "settled", [PULL_RELEASE] = "released"};
    struct semel_buf *buf = semel__http_body(call->x);
    char time[SEMEL_TIME_TEXT];
    semel__buf_addf(buf, "{\"result\":\"%s\"", call->lost ? "lost" : words[call->op]);
    bool told = (call->lost || call->op == PULL_SETTLE) && call->state != SEMEL_STATE_ABSENT;
    if (told)
        semel__json_put_pair(buf, "status", semel__str(semel__state_name(call->state)));
    if (!call->lost && call->op == PULL_RENEW) {
        semel__time_format(call->lease.progress.lease_until_us, time);
        semel__json_put_pair(buf, "lease_until", semel__str(time));
    }
    semel__buf_addz(buf, "}\n");
    count(pull, call->op, call->lost ? "lost" : "ok", 1);
    semel__http_answer(call->x, call->lost ? 409 : 200);
    semel__pull_call_free(call);
}
