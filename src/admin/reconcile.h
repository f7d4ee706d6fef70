/* SPDX-License-Identifier: MIT
 *
 * reconcile.h: asks now what became of what is unknown, and records the answer. Of an idempotency key it asks the URL
 * of the key's rule, as the gateway does when its request comes again. Of a message it asks by the `reconcile` of its
 * route; a daemon asks by itself, less and less often, and this is for the person who cannot wait. For the command
 * line and the operators' API; the daemon's workers record answers by it, too.
 *
 * Invariants: `not_done` counts only when the first call can no longer be running (P95, P45), by the database's clock.
 * A key or message is ended as it was when it was asked about: one that somebody else has changed by now is left
 * alone. It only asks, and never repeats a call. Nothing is asked twice.
 */
#ifndef SEMEL_ADMIN_RECONCILE_H
#define SEMEL_ADMIN_RECONCILE_H

#include "conf/conf.h"
#include "handler/caller.h"
#include "ops/ops.h"

enum semel_reconcile_end {
    SEMEL_RECONCILE_REPORTED,  /* of a key: the answer was carried out, or the key has changed: `report` */
    SEMEL_RECONCILE_ASKED,     /* of a message: `message` */
    SEMEL_RECONCILE_EARLY,     /* of a message: its call may still run: `message` */
    SEMEL_RECONCILE_NO_SUCH,   /* there is no such key */
    SEMEL_RECONCILE_REFUSED,   /* it is not unknown, its request may still run, or nobody can be asked */
    SEMEL_RECONCILE_NO_ANSWER, /* of a key: the URL says neither done nor not_done */
};

struct semel_reconcile {
    enum semel_reconcile_end end;
    struct semel_key_report report;
    struct semel_asked message;
    char text[512]; /* why, where it is none of the first three */
};

/* What is asked about: a message that is stored, or a key. */
struct semel_reconcile_about {
    const struct semel_row *row; /* with its payload, which a program is given; NULL: the key */
    struct semel_str scope, key;
};

/* In three steps, so that a store need not wait for the other side. *ret_asking NULL: there is nothing to ask, and *ret
 * says why. _ask waits for the answer, in any thread, and touches no store; _cancel ends that from another thread, also
 * before it begins. What _end returns in *ret lives as long as what was asked. `reason` is for a key, ops->who for
 * both. */
struct semel_reconciling;
semel_status semel__reconcile_begin(struct semel_ops *ops, const struct semel_conf *conf,
                                    const struct semel_reconcile_about *about, uint64_t wait_ms,
                                    struct semel_reconciling **ret_asking, struct semel_reconcile *ret,
                                    struct semel_error *err);
void semel__reconcile_ask(struct semel_reconciling *asking);
void semel__reconcile_cancel(struct semel_reconciling *asking);
semel_status semel__reconcile_end(struct semel_ops *ops, const struct semel_reconciling *asking,
                                  struct semel_str reason, struct semel_reconcile *ret, struct semel_error *err);
void semel__reconcile_free(struct semel_reconciling *asking);

/* All of it; waits for the answer, for at most wait_ms. INVALID: a name that can be none, or no reason. */
semel_status semel__reconcile_key(struct semel_ops *ops, const struct semel_conf *conf, struct semel_str scope,
                                  struct semel_str key, struct semel_str reason, uint64_t wait_ms,
                                  struct semel_reconcile *ret, struct semel_error *err);

/* ---- messages ---- */

/* What calls the other side of the handler, which is http or exec; a call takes at most most_us. */
semel_status semel__reconcile_caller(struct semel_caller **ret, const struct semel_do *handler, int64_t most_us,
                                     struct semel_error *err);
/* Its end was not reported, and its call may run until its time is over, by the store's clock (P45): only then can "not
 * done" be trusted. */
bool semel__reconcile_too_early(const struct semel_do *handler, const struct semel_row *row, int64_t store_us);
/* Records what a reconcile was answered: resolved, discarded or retried. *ret_reason: what the answer was; not given:
 * the outcome stays unknown. *ret_done: it is recorded; not, if the row has changed since updated_us. */
semel_status semel__reconcile_record(struct semel_inbox *inbox, const struct semel__msg *msg, int64_t updated_us,
                                     struct semel_str who, const struct semel_call_end *end,
                                     struct semel_str *ret_reason, bool *ret_done, struct semel_error *err);

/* `semel inbox reconcile`: all that are unknown, or those which are named; without threads. */
struct semel_reconcile_messages {
    const char *consumer;   /* NULL: every route that can be asked for */
    const char *const *ids; /* n_ids is 0: all */
    size_t n_ids;
    void (*report)(void *ctx, const struct semel_asked *one);
    void *ctx;
};
semel_status semel__reconcile_messages(const struct semel_conf *conf, const struct semel_store_ops *const *stores,
                                       const struct semel_reconcile_messages *what, struct semel_reconcile_sum *ret,
                                       struct semel_error *err);

#endif
