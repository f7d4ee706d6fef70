/* SPDX-License-Identifier: MIT
 *
 * breaker.h: one breaker for all pumps of a route in a process. The rules are in retry.h; this file adds the sharing.
 *
 * Core knows no threads: a caller that shares a breaker between threads gives it a lock. Every function takes the
 * lock for a moment; the caller must not hold it.
 *
 * Invariants
 *  - Failures in a row count over all pumps: a success of any pump resets the count and closes the breaker for all.
 *  - While it is not closed, one pump at a time has the probe, and failures of other pumps do not count: they belong
 *    to work that began before. A probe that is given up after the ceiling no longer belongs to its pump.
 *  - A pump that was let through before another pump opened the breaker starts no further message
 *    (semel__route_breaker_failures); a batch that already runs ends after at most `threshold` failures in a row of
 *    its own.
 *  - `changed` is called once for every change of state, in their order, under the lock. It must not call functions
 *    of this file.
 */
#ifndef SEMEL_CORE_BREAKER_H
#define SEMEL_CORE_BREAKER_H

#include "core/retry.h"

struct semel_route_breaker {
    struct semel_breaker now;    /* with threads, read it by semel__route_breaker_read */
    const void *prober;          /* PROBING: the pump that has the probe */
    char why[SEMEL_BREAKER_WHY]; /* of the last failure that was reported; "": not known */
    void *ctx;
    void (*lock)(void *ctx); /* NULL: one thread */
    void (*unlock)(void *ctx);
    void (*changed)(void *ctx, enum semel_breaker_state before,
                    const struct semel_breaker *now); /* NULL: no observer */
};

/* Without lock and observer; set those before the first use. */
void semel__route_breaker_init(struct semel_route_breaker *breaker, int threshold, int64_t first_us,
                               int64_t ceiling_us);
/* As semel__breaker_ask; after PROBE the probe belongs to `who` until a success, a failure of `who`, or
 * semel__route_breaker_end. */
enum semel_gate semel__route_breaker_ask(struct semel_route_breaker *breaker, const void *who, int64_t now_us);
void semel__route_breaker_success(struct semel_route_breaker *breaker);
void semel__route_breaker_failure(struct semel_route_breaker *breaker, const void *who, enum semel_class cls,
                                  int64_t now_us, struct semel_random *rng);
/* Why the failure that is reported next has happened. */
void semel__route_breaker_because(struct semel_route_breaker *breaker, const char *why);
/* The probe of `who` ended without a result: any pump may probe again at once. Does nothing when `who` has no probe. */
void semel__route_breaker_end(struct semel_route_breaker *breaker, const void *who, int64_t now_us);
/* The number of failures in a row with which the next batch of `who` starts: 0 for a probe, and enough to stop it where
 * another pump has opened the breaker since `who` was let through. */
int semel__route_breaker_failures(const struct semel_route_breaker *breaker, const void *who);
struct semel_breaker semel__route_breaker_read(const struct semel_route_breaker *breaker);

#endif
