/* SPDX-License-Identifier: MIT
 *
 * retry.h: how long to wait, and when to stop trying.
 *
 * Backoff: exponential with full jitter. The n-th wait is uniform in [1 ms, min(ceiling, first * 2^(n-1))].
 *
 * Breaker: counts failures in a row, of any message. At the threshold it opens: the source pauses, and after a
 * backoff of its own exactly one probe runs. A probe that succeeds closes it; one that fails opens it again for
 * longer. BROKEN opens it at once: with a missing table every message would fail. It exists so that a broken handler
 * does not drain a topic into dead letters (P63); attempts of messages are counted by the class of their error, never
 * by the breaker.
 *
 * Invariants: between opening and closing at most one probe is out at a time; an open breaker always has a time at
 * which it will try again; a probe without a result is given up after the breaker's ceiling.
 */
#ifndef SEMEL_CORE_RETRY_H
#define SEMEL_CORE_RETRY_H

#include "base/random.h"
#include "semel/types.h"

int64_t semel__backoff_us(int64_t first_us, int64_t ceiling_us, int attempt, struct semel_random *rng);

enum semel_breaker_state { SEMEL_BREAKER_CLOSED, SEMEL_BREAKER_OPEN, SEMEL_BREAKER_PROBING };
enum semel_gate { SEMEL_GATE_GO, SEMEL_GATE_PROBE, SEMEL_GATE_WAIT };

#define SEMEL_BREAKER_WHY 200 /* bytes of a reason */

struct semel_breaker {
    enum semel_breaker_state state;
    int threshold; /* failures in a row */
    int64_t first_us, ceiling_us;
    int failures;    /* in a row */
    int openings;    /* in a row, without a success in between */
    int64_t next_us; /* OPEN: when to probe; PROBING: when to give up the probe */
    enum semel_class cause;
};

void semel__breaker_init(struct semel_breaker *breaker, int threshold, int64_t first_us, int64_t ceiling_us);
/* GO: any number; PROBE: one message, whose end must be reported; WAIT: nothing before breaker->next_us. */
enum semel_gate semel__breaker_ask(struct semel_breaker *breaker, int64_t now_us);
/* Until when asking gives WAIT. SEMEL_NONE: it is closed, or a probe is due. */
int64_t semel__breaker_until(const struct semel_breaker *breaker, int64_t now_us);
void semel__breaker_success(struct semel_breaker *breaker);
void semel__breaker_failure(struct semel_breaker *breaker, enum semel_class cls, int64_t now_us,
                            struct semel_random *rng);

#endif
