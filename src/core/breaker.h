/* SPDX-License-Identifier: MIT
 *
 * breaker.h: one breaker for all pumps of a route in a process. The rules are retry.h's; here is who shares it.
 *
 * Core knows no threads: who shares one between threads gives it a lock. Every function takes it for a moment, and none
 * is called with it held.
 *
 * Invariants
 *  - Failures in a row are counted over all pumps: a success of any of them ends the row, and closes the breaker for
 *    all.
 *  - While it is not closed one pump at a time has the probe, and nobody else's failures count: they are of work that
 *    was begun before. A probe that is given up after the ceiling is its pump's no more.
 *  - Who was let through before another opened it runs nothing that he has not begun (semel__route_breaker_failures); a
 *    batch that runs then ends by itself, after at most `threshold` failures in a row of its own.
 *  - `changed` is called once for every change of state, in their order, under the lock. It must not come back here.
 */
#ifndef SEMEL_CORE_BREAKER_H
#define SEMEL_CORE_BREAKER_H

#include "core/retry.h"

struct semel_route_breaker {
    struct semel_breaker now; /* to be read by semel__route_breaker_look where there are threads */
    const void *prober;       /* PROBING: whose probe it is */
    void *ctx;
    void (*lock)(void *ctx); /* NULL: one thread */
    void (*unlock)(void *ctx);
    void (*changed)(void *ctx, enum semel_breaker_state before,
                    const struct semel_breaker *now); /* NULL: nobody asks */
};

/* Without a lock and without an observer; those are set before it is used. */
void semel__route_breaker_init(struct semel_route_breaker *breaker, int threshold, int64_t first_us,
                               int64_t ceiling_us);
/* As semel__breaker_ask; after PROBE it is who's, until a success, who's failure, or semel__route_breaker_end. */
enum semel_gate semel__route_breaker_ask(struct semel_route_breaker *breaker, const void *who, int64_t now_us);
void semel__route_breaker_success(struct semel_route_breaker *breaker);
void semel__route_breaker_failure(struct semel_route_breaker *breaker, const void *who, enum semel_class cls,
                                  int64_t now_us, struct semel_random *rng);
/* who's probe has told nothing: anybody may probe again, at once. Does nothing when who has none. */
void semel__route_breaker_end(struct semel_route_breaker *breaker, const void *who, int64_t now_us);
/* How many failures in a row who's next batch starts with: none where it is a probe, and as many as stop it where
 * others have opened the breaker since who was let through. */
int semel__route_breaker_failures(const struct semel_route_breaker *breaker, const void *who);
struct semel_breaker semel__route_breaker_look(const struct semel_route_breaker *breaker);

#endif
