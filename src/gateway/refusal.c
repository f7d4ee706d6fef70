/* SPDX-License-Identifier: MIT
 *
 * refusal.c: refusals as problem documents; see refusal.h.
 */
#include "gateway/refusal.h"

#include <stdio.h>

#include "base/json.h"

static const struct {
    int status;
    const char *word;
} refusals[] = {
#define X(id, status, word) {status, word},
    SEMEL_GATEWAY_REFUSAL_MAP(X)
#undef X
};

const char *semel__gateway_refusal_word(enum semel_gateway_refusal refusal)
{
    return refusals[refusal].word;
}

const char *semel__gateway_unknown_name(enum semel_gateway_unknown cause)
{
    static const char *const names[] = {"status", "said", "not_stored"};
    return cause < SEMEL_GATEWAY_UNKNOWN_STATUS ? semel__upstream_cause_name((enum semel_upstream_cause)cause)
                                                : names[cause - SEMEL_GATEWAY_UNKNOWN_STATUS];
}

void semel__refusal_put_cors(const struct semel_guard_rules *rules, struct semel_http_exchange *x,
                             struct semel_str origin)
{
    if (!semel__rules_cors(rules, origin))
        return;
    semel__http_set_header(x, "Access-Control-Allow-Origin", origin);
    semel__http_set_header(x, "Access-Control-Allow-Credentials", SEMEL_STR("true"));
    semel__http_set_header(x, "Access-Control-Expose-Headers", SEMEL_STR("Idempotent-Replayed, Retry-After"));
    semel__http_set_header(x, "Vary", SEMEL_STR("Origin"));
}

void semel__refusal_answer(const struct semel_guard_rules *rules, struct semel_http_exchange *x,
                           struct semel_str origin, const struct semel_refusal *refusal)
{
    const char *title = refusal->why == SEMEL_GATEWAY_REFUSED_UNKNOWN
                            ? "the outcome of the request is not known"
                            : "the request was refused by its idempotency key's rules";
    int status = refusal->status != 0 ? refusal->status : refusals[refusal->why].status;
    char text[24];
    struct semel_buf *body = semel__http_body(x);
    semel__buf_addf(body, "{\"type\":\"urn:semel:idempotency:%s\",\"title\":\"%s\",\"status\":%d,\"detail\":",
                    refusals[refusal->why].word, title, status);
    semel__json_put_string(body, semel__str(refusal->detail));
    semel__buf_addz(body, "}\n");
    semel__http_set_type(x, "application/problem+json");
    if (refusal->retry_s > 0) {
        snprintf(text, sizeof text, "%lld", (long long)refusal->retry_s);
        semel__http_set_header(x, "Retry-After", semel__str(text));
    }
    semel__refusal_put_cors(rules, x, origin);
    semel__http_answer(x, status);
}
