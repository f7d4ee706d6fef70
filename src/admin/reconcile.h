/* SPDX-License-Identifier: MIT
 *
 * reconcile.h: asks the URL of an idempotency key's rule now what became of it, and ends the key by the answer, as the
 * gateway does when its request comes again. For the command line and the operators' API.
 *
 * Invariants: `not_done` counts only when the first call can no longer be running (P95), by the database's clock. The
 * key is ended as it was when it was asked about: one that another request has by now is left alone. Nothing is asked
 * twice.
 */
#ifndef SEMEL_ADMIN_RECONCILE_H
#define SEMEL_ADMIN_RECONCILE_H

#include "conf/conf.h"
#include "ops/ops.h"

enum semel_reconcile_end {
    SEMEL_RECONCILE_REPORTED, /* the answer was carried out, or the key has changed: `report` */
    SEMEL_RECONCILE_NO_SUCH,  /* there is no such key */
    SEMEL_RECONCILE_REFUSED,  /* it has its answer, its request runs or may still run, or no rule has a URL */
    SEMEL_RECONCILE_NO_ANSWER /* the URL says neither done nor not_done */
};

struct semel_reconcile {
    enum semel_reconcile_end end;
    struct semel_key_report report;
    char text[512]; /* why it was not TOLD */
};

/* In three steps, so that a store need not wait for the other side. *ret_asking NULL: there is nothing to ask, and *ret
 * says why. _ask waits for the answer, in any thread, and touches no store; _cancel ends that from another thread, also
 * before it begins. */
struct semel_reconciling;
semel_status semel__reconcile_begin(struct semel_ops *ops, const struct semel_conf *conf, struct semel_str scope,
                                    struct semel_str key, uint64_t wait_ms, struct semel_reconciling **ret_asking,
                                    struct semel_reconcile *ret, struct semel_error *err);
void semel__reconcile_ask(struct semel_reconciling *asking);
void semel__reconcile_cancel(struct semel_reconciling *asking);
semel_status semel__reconcile_end(struct semel_ops *ops, const struct semel_reconciling *asking,
                                  struct semel_str reason, struct semel_reconcile *ret, struct semel_error *err);
void semel__reconcile_free(struct semel_reconciling *asking);

/* All of it; waits for the answer, for at most wait_ms. INVALID: a name that can be none, or no reason. */
semel_status semel__reconcile_key(struct semel_ops *ops, const struct semel_conf *conf, struct semel_str scope,
                                  struct semel_str key, struct semel_str reason, uint64_t wait_ms,
                                  struct semel_reconcile *ret, struct semel_error *err);

#endif
