/* SPDX-License-Identifier: MIT
 *
 * breaker.c: one breaker for several pumps.
 */
#include "core/breaker.h"

#include <stdio.h>
#include <string.h>

static void lock(const struct semel_route_breaker *breaker)
{
    if (breaker->lock != NULL)
        breaker->lock(breaker->ctx);
}

/* Reports a change before anybody else can make the next one. */
static void unlock(struct semel_route_breaker *breaker, enum semel_breaker_state before)
{
    if (breaker->now.state != SEMEL_BREAKER_PROBING)
        breaker->prober = NULL;
    if (breaker->now.state != before && breaker->changed != NULL)
        breaker->changed(breaker->ctx, before, &breaker->now);
    if (breaker->lock != NULL)
        breaker->unlock(breaker->ctx);
}

void semel__route_breaker_init(struct semel_route_breaker *breaker, int threshold, int64_t first_us, int64_t ceiling_us)
{
    *breaker = (struct semel_route_breaker){0};
    semel__breaker_init(&breaker->now, threshold, first_us, ceiling_us);
}

enum semel_gate semel__route_breaker_ask(struct semel_route_breaker *breaker, const void *who, int64_t now_us)
{
    lock(breaker);
    enum semel_breaker_state before = breaker->now.state;
    enum semel_gate gate = semel__breaker_ask(&breaker->now, now_us);
    if (gate == SEMEL_GATE_PROBE)
        breaker->prober = who;
    unlock(breaker, before);
    return gate;
}

void semel__route_breaker_success(struct semel_route_breaker *breaker)
{
    lock(breaker);
    enum semel_breaker_state before = breaker->now.state;
    semel__breaker_success(&breaker->now);
    unlock(breaker, before);
}

void semel__route_breaker_failure(struct semel_route_breaker *breaker, const void *who, enum semel_class cls,
                                  int64_t now_us, struct semel_random *rng)
{
    lock(breaker);
    enum semel_breaker_state before = breaker->now.state;
    if (before == SEMEL_BREAKER_CLOSED || (before == SEMEL_BREAKER_PROBING && breaker->prober == who))
        semel__breaker_failure(&breaker->now, cls, now_us, rng);
    unlock(breaker, before);
}

void semel__route_breaker_because(struct semel_route_breaker *breaker, const char *why)
{
    lock(breaker);
    if (breaker->now.state != SEMEL_BREAKER_OPEN) /* failures of work that began before say nothing new */
        snprintf(breaker->why, sizeof breaker->why, "%s", why);
    if (breaker->lock != NULL)
        breaker->unlock(breaker->ctx);
}

void semel__route_breaker_end(struct semel_route_breaker *breaker, const void *who, int64_t now_us)
{
    lock(breaker);
    enum semel_breaker_state before = breaker->now.state;
    if (before == SEMEL_BREAKER_PROBING && breaker->prober == who) {
        breaker->now.state = SEMEL_BREAKER_OPEN;
        breaker->now.next_us = now_us;
    }
    unlock(breaker, before);
}

int semel__route_breaker_failures(const struct semel_route_breaker *breaker, const void *who)
{
    lock(breaker);
    const struct semel_breaker *now = &breaker->now;
    int failures = now->state == SEMEL_BREAKER_CLOSED ? now->failures : breaker->prober == who ? 0 : now->threshold;
    if (breaker->lock != NULL)
        breaker->unlock(breaker->ctx);
    return failures;
}

struct semel_breaker semel__route_breaker_read(const struct semel_route_breaker *breaker)
{
    lock(breaker);
    struct semel_breaker now = breaker->now;
    if (breaker->lock != NULL)
        breaker->unlock(breaker->ctx);
    return now;
}
