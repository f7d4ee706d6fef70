/* SPDX-License-Identifier: MIT
 *
 * pump.h: one worker of a route: from the broker through the inbox and back, one step at a time.
 *
 * A step polls a batch, extracts the fields, processes, and only then answers: it acknowledges committed deliveries
 * and gives the others back. A tick does recovery, stored work that is due, and purge. Neither sleeps nor loops
 * without a bound; time comes in as an argument, so a simulator can drive it.
 *
 * Invariants: no acknowledgement before the commit was answered OK. The next step reopens a dead connection. While
 * the breaker is open the pump polls nothing; a probe is one message, and those in front of it that wait for others.
 * Only the breaker counts failures of the environment; several pumps of a route may share it (breaker.h). The pump
 * reads `err`, so it must not be NULL.
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
    struct semel_route_breaker *breaker, own; /* the pump's own, or the route's */
    size_t batch_max, tick_max;               /* messages per step, rows per tick */
    size_t probe_past;                        /* messages of the last probe that wait for others */
    int wait_ms, later_ms;
    int64_t purge_every_us, next_purge_us;
    int64_t resume_us; /* too many are parked: no poll before this time; SEMEL_NONE */
    bool store_down, broker_down;
    bool put_only; /* deliveries are only stored for others to take, and a tick runs none of them */
    /* NULL, or: gets the results of a batch after its commit and before the answers. */
    void (*observe)(void *ctx, const struct semel__msg *msgs, const struct semel_settled *settled, size_t n);
    void *observe_ctx;
    bool doubt; /* a connection was lost before: a delivery without a delivery count may have killed the process */
    struct semel_position_updates
        position_updates; /* positions that the store keeps with the effects; the caller may set `fenced` */
    struct semel_arena arena;
};

void semel__pump_init(struct semel_pump *pump, struct semel_inbox *inbox, struct semel_broker *broker,
                      const struct semel_rules *rules);
void semel__pump_done(struct semel_pump *pump);

/* Both return OK when there is nothing to do. Another status is a failure of the environment that the pump has noted:
 * just call again later. *ret_n is the number of messages decided. FENCED: another worker has taken a partition, and
 * the batch was given back. */
semel_status semel__pump_step(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err);
semel_status semel__pump_tick(struct semel_pump *pump, int64_t now_us, size_t *ret_n, struct semel_error *err);

/* Until when the pump polls nothing: the breaker is open, or too many are parked. SEMEL_NONE: no pause. */
int64_t semel__pump_until(const struct semel_pump *pump, int64_t now_us);
/* The next step is a probe, unless another pump is faster: do not let it wait for a message while it has the probe. */
bool semel__pump_probes(const struct semel_pump *pump, int64_t now_us);

/* ---- for effects outside the database, of which several run at a time ---------------------------------- */

/* Polls at most max deliveries, claims those that may run and answers all of them: a claimed message is stored with its
 * payload, and recovery finds it if this process dies. ret_leases has room for max; their strings live until the next
 * call on the pump. */
semel_status semel__pump_claim(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                               struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err);
/* The same for stored work that is due. */
semel_status semel__pump_take(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                              struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err);
/* Commits ends and reports them to the breaker; renews; releases. Notes failures of the environment, as a step does. */
semel_status semel__pump_finish(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases,
                                const struct semel_ending *endings, size_t n, struct semel_error *err);
semel_status semel__pump_renew(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                               struct semel_error *err);
semel_status semel__pump_release(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                                 struct semel_error *err);
/* For the breaker: a call ended without effect, and not because of its message. */
void semel__pump_fail(struct semel_pump *pump, enum semel_class cls, const char *why, int64_t now_us);

#endif
