/* SPDX-License-Identifier: MIT
 *
 * side.h: a guest in the server's event loop that other threads can wake: for work that goes on beside the sockets.
 *
 * What it is: one wake-up, one timer, and a way to run a function in a thread of libuv's pool. While the server stops
 * it waits until the guest is not busy, or until its deadline (loop.h).
 *
 * Invariants: callbacks run in the loop's thread, and none after `_free`; a wake-up after the loop has ended is
 * dropped.
 */
#ifndef SEMEL_NET_SIDE_H
#define SEMEL_NET_SIDE_H

#include "net/http.h"

struct semel_side;

struct semel_side_events {
    void (*woken)(void *ctx); /* once or more often after _wake */
    void (*timer)(void *ctx);
    bool (*busy)(void *ctx);
    void (*give_up)(void *ctx); /* the server's deadline is over: must not be busy afterwards */
    void (*flush)(void *ctx);   /* before the loop waits for the next events */
};

/* Before the loop runs. */
semel_status semel__side_new(struct semel_side **ret, struct semel_http *http, const struct semel_side_events *events,
                             void *ctx, struct semel_error *err);
void semel__side_free(struct semel_side *side); /* after semel__http_free of its loop; accepts NULL */

void semel__side_wake(struct semel_side *side);                     /* any thread */
void semel__side_start_timer(struct semel_side *side, uint64_t ms); /* once, after ms; replaces the one that runs */
void semel__side_settled(struct semel_side *side);                  /* it is not busy any more */
/* Calls work(arg) in a thread of the pool, then done(arg) in the loop's. false: not possible. */
bool semel__side_run(struct semel_side *side, void (*work)(void *arg), void (*done)(void *arg), void *arg);

#endif
