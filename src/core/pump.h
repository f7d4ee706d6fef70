/* SPDX-License-Identifier: MIT
 *
 * pump.h: one worker of a route: from the broker through the inbox and back, one step at a time.
 *
 * A step polls a batch, takes the fields, processes, and only then acknowledges: what the inbox has committed is
 * acknowledged, everything else goes back. A tick does what happens by itself: recovery, stored work that is due,
 * purge. Neither sleeps nor loops without a bound; time comes in as an argument, so a simulator can drive it.
 *
 * Invariants: no acknowledgement before the commit was answered OK. A dead connection is opened anew at the next
 * step. While the breaker is open nothing is polled; a probe is one message. The world's failures are counted by the
 * breaker alone.
 */
#ifndef SEMEL_CORE_PUMP_H
#define SEMEL_CORE_PUMP_H

#include "core/broker.h"
#include "core/extract.h"
#include "core/inbox.h"
#include "core/retry.h"

struct semel_pump {
    struct semel_inbox *inbox;
    struct semel_broker *broker; /* NULL: only ticks */
    const struct semel_rules *rules;
    struct semel_breaker breaker;
    size_t batch_max, tick_max; /* messages a step, rows a tick */
    int wait_ms, later_ms;
    int64_t purge_every_us, next_purge_us;
    int64_t resume_us; /* too many are parked: nothing is polled before; SEMEL_NONE */
    bool store_down, broker_down;
    bool doubt; /* something was lost before: a delivery that its source cannot count may be what killed the process */
    struct semel_arena arena;
};

void semel__pump_init(struct semel_pump *pump, struct semel_inbox *inbox, struct semel_broker *broker,
                      const struct semel_rules *rules);
void semel__pump_done(struct semel_pump *pump);

/* Both return OK when there is nothing to do. A status other than OK is the world's, has been noted, and needs no
 * more than another call later; *ret_n says how many messages were decided. */
semel_status semel__pump_step(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err);
semel_status semel__pump_tick(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err);

#endif
