/* SPDX-License-Identifier: MIT
 *
 * refusal.h: what the gateway answers by itself: problem documents, which pages of listed origins can read (A2).
 *
 * Not the decision to refuse: that is the guard's (guard.h) or the gateway's.
 */
#ifndef SEMEL_GATEWAY_REFUSAL_H
#define SEMEL_GATEWAY_REFUSAL_H

#include "gateway/rules.h"

struct semel_refusal {
    enum semel_gateway_refusal why;
    int status;      /* 0: the one of its word */
    int64_t retry_s; /* 0: no Retry-After */
    const char *detail;
};

/* The headers by which a page of a listed origin can read our answer. */
void semel__refusal_put_cors(const struct semel_guard_rules *rules, struct semel_http_exchange *x,
                             struct semel_str origin);
/* Ends the exchange with a problem document. */
void semel__refusal_answer(const struct semel_guard_rules *rules, struct semel_http_exchange *x,
                           struct semel_str origin, const struct semel_refusal *refusal);

#endif
