/* SPDX-License-Identifier: MIT
 *
 * pump_lease.c: a worker whose effects are outside the database: it claims, somebody else runs, it commits the ends.
 *
 * Invariants: a delivery that was claimed is acknowledged after the commit of the claim: its payload is kept then, and
 * whatever becomes of this process, recovery by any other has the row. Nothing runs before that commit.
 */
#include "base/error.h"
#include "base/point.h"
#include "base/str.h"
#include "core/pump_work.h"

static bool same(const struct semel__msg *a, const struct semel__msg *b)
{
    return semel__str_eq(a->id, b->id) && semel__str_eq(a->source, b->source);
}

/* The claimed ones and their copies in the batch: nobody needs the broker for them any more. */
static void acknowledge_claims(struct pump_batch *batch, const struct semel_lease *leases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t place = leases[i].index;
        for (size_t k = 0; k < batch->n; k++) {
            if (k != place && !same(&batch->msgs[k], &batch->msgs[place]))
                continue;
            if (k != place && semel__fp_differs(&batch->msgs[k].fp, &batch->msgs[place].fp))
                continue; /* a conflict: it goes back, and is told when it comes again */
            if (batch->settled[k].act == SEMEL_LATER)
                batch->settled[k].why = k == place ? SEMEL_WHY_NEW : SEMEL_WHY_DUPLICATE;
            batch->settled[k].act = SEMEL_ACK;
        }
    }
}

static semel_status claim_batch(struct semel_pump *pump, struct pump_batch *batch, int64_t now_us,
                                struct semel_arena *arena, struct semel_lease *ret_leases, size_t *ret_n,
                                struct semel_error *err)
{
    size_t acked;
    semel_status status = semel__pump_prepare(pump, batch, err);
    if (status == SEMEL_OK) {
        status = semel__lease_claim(pump->inbox, batch->msgs, batch->n, true, arena, ret_leases, ret_n, batch->settled,
                                    err);
        acknowledge_claims(batch, ret_leases, *ret_n);
        semel__pump_let_go(pump, batch, now_us);
    }
    return semel__pump_conclude(pump, batch, status, now_us, &acked, err);
}

semel_status semel__pump_claim(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                               struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err)
{
    struct pump_batch batch = {0};
    *ret_n = 0;
    if (semel__pump_paused(pump, now_us))
        return SEMEL_OK;
    enum semel_gate gate = semel__route_breaker_ask(pump->breaker, pump, now_us);
    if (gate == SEMEL_GATE_WAIT)
        return SEMEL_OK;
    semel__arena_reset(&pump->arena);
    semel_status status = semel__pump_connect(pump, now_us, err);
    if (status == SEMEL_OK)
        status = semel__pump_note_broker(pump, semel_broker_poll(pump->broker, gate == SEMEL_GATE_PROBE ? 1 : max,
                                                                 pump->wait_ms, &pump->arena, &batch.deliveries,
                                                                 &batch.n, err));
    if (status == SEMEL_OK && batch.n > 0) {
        SEMEL_POINT(PUMP_POLLED);
        status = claim_batch(pump, &batch, now_us, arena, ret_leases, ret_n, err);
    }
    if (*ret_n == 0) /* else the end of the call ends the probe */
        semel__pump_end_probe(pump, now_us);
    return status;
}

semel_status semel__pump_take(struct semel_pump *pump, int64_t now_us, size_t max, struct semel_arena *arena,
                              struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err)
{
    *ret_n = 0;
    enum semel_gate gate = semel__route_breaker_ask(pump->breaker, pump, now_us);
    if (gate == SEMEL_GATE_WAIT)
        return SEMEL_OK;
    semel_status status = semel__pump_connect_store(pump, now_us, err);
    if (status == SEMEL_OK)
        status = semel__pump_note_store(pump,
                                        semel__lease_take(pump->inbox, gate == SEMEL_GATE_PROBE ? 1 : max, arena,
                                                          ret_leases, ret_n, err),
                                        err, now_us);
    if (*ret_n == 0)
        semel__pump_end_probe(pump, now_us);
    return status;
}

semel_status semel__pump_finish(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases,
                                const struct semel_ending *endings, size_t n, struct semel_error *err)
{
    semel_status status = semel__pump_connect_store(pump, now_us, err);
    if (status == SEMEL_OK)
        status = semel__pump_note_store(pump, semel__lease_finish(pump->inbox, leases, endings, n, err), err, now_us);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        switch (endings[i].result) {
        case SEMEL_DONE:
        case SEMEL_REJECTED:
            semel__route_breaker_success(pump->breaker);
            break;
        case SEMEL_TRANSIENT:
        case SEMEL_PERMANENT:
        case SEMEL_MAYBE:
            semel__pump_failure(pump, SEMEL_CLASS_TRANSIENT, now_us);
            break;
        }
    }
    return status;
}

semel_status semel__pump_renew(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                               struct semel_error *err)
{
    semel_status status = semel__pump_connect_store(pump, now_us, err);
    return status != SEMEL_OK
               ? status
               : semel__pump_note_store(pump, semel__lease_renew(pump->inbox, leases, n, err), err, now_us);
}

semel_status semel__pump_release(struct semel_pump *pump, int64_t now_us, struct semel_lease *leases, size_t n,
                                 struct semel_error *err)
{
    semel_status status = semel__pump_connect_store(pump, now_us, err);
    return status != SEMEL_OK
               ? status
               : semel__pump_note_store(pump, semel__lease_release(pump->inbox, leases, n, err), err, now_us);
}

void semel__pump_worldly(struct semel_pump *pump, enum semel_class cls, int64_t now_us)
{
    semel__pump_failure(pump, cls, now_us);
}
