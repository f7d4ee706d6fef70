/* SPDX-License-Identifier: MIT
 *
 * retry.c: backoff and breaker.
 */
#include "core/retry.h"

#include "base/clock.h"

#define MILLISECOND_US 1000
#define ORDER_US INT64_C(1000000)

static int64_t doubled(int64_t first_us, int64_t ceiling_us, int times)
{
    int64_t us = first_us;
    while (times-- > 0 && us < ceiling_us)
        us = us > ceiling_us / 2 ? ceiling_us : us * 2;
    return us < ceiling_us ? us : ceiling_us;
}

int64_t semel__backoff_us(int64_t first_us, int64_t ceiling_us, int attempt, struct semel_random *rng)
{
    int64_t limit_us = doubled(first_us, ceiling_us, attempt - 1);
    if (limit_us <= MILLISECOND_US)
        return MILLISECOND_US;
    return MILLISECOND_US + (int64_t)semel__random_below(rng, (uint64_t)(limit_us - MILLISECOND_US + 1));
}

void semel__breaker_init(struct semel_breaker *breaker, int threshold, int64_t first_us, int64_t ceiling_us)
{
    *breaker = (struct semel_breaker){.state = SEMEL_BREAKER_CLOSED,
                                      .threshold = threshold,
                                      .first_us = first_us,
                                      .ceiling_us = ceiling_us};
}

int64_t semel__breaker_until(const struct semel_breaker *breaker, int64_t now_us)
{
    /* A clock that jumped back must not keep the breaker open for much longer than its ceiling. Of two threads, the one
     * that read the clock first may ask last; that is no jump. */
    bool shut = breaker->state != SEMEL_BREAKER_CLOSED && now_us < breaker->next_us &&
                breaker->next_us - now_us <= semel__time_add(breaker->ceiling_us, ORDER_US);
    return shut ? breaker->next_us : SEMEL_NONE;
}

enum semel_gate semel__breaker_ask(struct semel_breaker *breaker, int64_t now_us)
{
    if (breaker->state == SEMEL_BREAKER_CLOSED)
        return SEMEL_GATE_GO;
    if (semel__breaker_until(breaker, now_us) != SEMEL_NONE)
        return SEMEL_GATE_WAIT;
    breaker->state = SEMEL_BREAKER_PROBING;
    breaker->next_us = semel__time_add(now_us, breaker->ceiling_us);
    return SEMEL_GATE_PROBE;
}

void semel__breaker_success(struct semel_breaker *breaker)
{
    breaker->state = SEMEL_BREAKER_CLOSED;
    breaker->failures = breaker->openings = 0;
    breaker->cause = SEMEL_CLASS_NONE;
}

void semel__breaker_failure(struct semel_breaker *breaker, enum semel_class cls, int64_t now_us,
                            struct semel_random *rng)
{
    if (breaker->failures < breaker->threshold)
        breaker->failures++;
    breaker->cause = cls;
    bool stop = breaker->failures >= breaker->threshold || cls == SEMEL_CLASS_BROKEN;
    if (breaker->state == SEMEL_BREAKER_OPEN || (breaker->state == SEMEL_BREAKER_CLOSED && !stop))
        return;
    if (breaker->openings < 64)
        breaker->openings++;
    breaker->state = SEMEL_BREAKER_OPEN;
    breaker->next_us = semel__time_add(now_us, semel__backoff_us(breaker->first_us, breaker->ceiling_us,
                                                                 breaker->openings, rng));
}
