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
 * breaker alone, which several pumps of a route may share (breaker.h). `err` is read by the pump itself: it must not
 * be NULL.
 */
#ifndef SEMEL_CORE_PUMP_H
#define SEMEL_CORE_PUMP_H

#include "core/breaker.h"
#include "core/broker.h"
#include "core/extract.h"
#include "core/inbox.h"
#include "core/positions.h"

struct semel_pump {
    struct semel_inbox *inbox;
    struct semel_broker *broker; /* NULL: only ticks */
    const struct semel_rules *rules;
    struct semel_route_breaker *breaker, own; /* its own, unless it is given the route's */
    size_t batch_max, tick_max;               /* messages a step, rows a tick */
    int wait_ms, later_ms;
    int64_t purge_every_us, next_purge_us;
    int64_t resume_us; /* too many are parked: nothing is polled before; SEMEL_NONE */
    bool store_down, broker_down;
    bool put_only; /* deliveries are stored for others to take, and a tick runs none of them */
    /* NULL, or: what came of a batch, after its commit and before the answers. */
    void (*observe)(void *ctx, const struct semel__msg *msgs, const struct semel_settled *settled, size_t n);
    void *observe_ctx;
    bool doubt; /* something was lost before: a delivery that its source cannot count may be what killed the process */
    struct semel_position_updates
        position_updates; /* positions that are kept with the effects; `fenced` is the caller's to set */
    struct semel_arena arena;
};

void semel__pump_init(struct semel_pump *pump, struct semel_inbox *inbox, struct semel_broker *broker,
                      const struct semel_rules *rules);
void semel__pump_done(struct semel_pump *pump);

/* Both return OK when there is nothing to do. A status other than OK is the world's, has been noted, and needs no
 * more than another call later; *ret_n says how many messages were decided. FENCED: a partition has been taken by
 * somebody else, the batch was given back. */
semel_status semel__pump_step(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err);
semel_status semel__pump_tick(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err);

/* Until when nothing is polled: the breaker is open, or too many are parked. SEMEL_NONE: no pause. */
int64_t semel__pump_until(const struct semel_pump *pump, int64_t now_us);
/* The next step is a probe, unless another pump is faster: so it should not wait for its message while it has it. */
bool semel__pump_probes(const struct semel_pump *pump, int64_t now_us);

/* ---- for effects outside the database, of which several run at a time ---------------------------------- */

/* Polls at most max deliveries, claims what may run and answers all of them: what was claimed is kept with its payload,
 * and recovery has it should this process die. ret_leases has room for max; their strings live until the next
 * call on the pump. */
semel_status semel__pump_claim(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                               struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err);
/* The same for stored work that is due. */
semel_status semel__pump_take(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                              struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err);
/* Commits ends and tells the breaker; renews; gives back. The world's failures are noted, as by a step. */
semel_status semel__pump_finish(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases,
                                const struct semel_ending *endings, size_t n, struct semel_error *err);
semel_status semel__pump_renew(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                               struct semel_error *err);
semel_status semel__pump_release(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                                 struct semel_error *err);
/* For the breaker: a call ended without having done anything, and it was not the message's fault. */
void semel__pump_fail(struct semel_pump *pump, enum semel_class cls, int64_t now_us);

#endif
