/* SPDX-License-Identifier: MIT
 *
 * pump_work.h: what pump.c and pump_lease.c share.
 */
#ifndef SEMEL_CORE_PUMP_WORK_H
#define SEMEL_CORE_PUMP_WORK_H

#include "core/pump.h"

/* One poll, in the pump's arena. */
struct pump_batch {
    struct semel_delivery *deliveries;
    struct semel__msg *msgs;
    struct semel_settled *settled;
    struct semel_reply *replies;
    size_t n;
    bool prepared;
};

/* What a status says of the world. Both return what is left of it for the caller. */
semel_status semel__pump_note_store(struct semel_pump *pump, semel_status status, const struct semel_error *err,
                                    int64_t now_us);
semel_status semel__pump_note_broker(struct semel_pump *pump, semel_status status);
semel_status semel__pump_connect_store(struct semel_pump *pump, int64_t now_us, struct semel_error *err);
semel_status semel__pump_connect(struct semel_pump *pump, int64_t now_us, struct semel_error *err);
/* A failure for the breaker. */
void semel__pump_failure(struct semel_pump *pump, enum semel_class cls, int64_t now_us);
/* A probe that met only duplicates, or nothing, has told nothing: the next step probes again. */
void semel__pump_end_probe(struct semel_pump *pump, int64_t now_us);
bool semel__pump_paused(const struct semel_pump *pump, int64_t now_us);
/* Room and messages for the deliveries; every one is LATER until something else is known. */
semel_status semel__pump_prepare(struct semel_pump *pump, struct pump_batch *batch, struct semel_error *err);
/* What others have claimed, with its payload, is acknowledged. Where too much is parked the pump pauses. */
void semel__pump_let_go(struct semel_pump *pump, struct pump_batch *batch, int64_t now_us);
/* The end of a batch that was processed or claimed with `status`, of which err tells: the world is noted, and all are
 * answered, by `settled`. */
semel_status semel__pump_conclude(struct semel_pump *pump, struct pump_batch *batch, semel_status status,
                                  int64_t now_us, size_t *ret_acked, struct semel_error *err);

#endif
