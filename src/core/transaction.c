/* SPDX-License-Identifier: MIT
 *
 * transaction.c: one begin, body and commit. The contract stands in transaction.h.
 */
#include "core/transaction.h"

#define REPEATS_MAX 3

static semel_status run_once(struct semel_store *store, const struct semel__transaction *tx, void *ctx,
                             struct semel_error *err)
{
    int64_t now_us;
    bool undo = false;
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = tx->body(ctx, now_us, &undo, err);
    if (status == SEMEL_OK && !undo)
        return semel_store_commit(store, err);
    semel_store_rollback(store);
    return status;
}

semel_status semel__transaction_run(struct semel_store *store, const struct semel__transaction *tx, void *ctx,
                                    struct semel_error *err)
{
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    for (int repeats = 0;; repeats++) {
        semel_status status = run_once(store, tx, ctx, err);
        bool contended = status == SEMEL_RETRY && err->cls == SEMEL_CLASS_TRANSIENT;
        bool lost = (status == SEMEL_UNKNOWN && tx->again) || (status == SEMEL_CLOSED && tx->persistent);
        if (status == SEMEL_UNKNOWN && tx->unknown != NULL)
            tx->unknown(ctx);
        if (repeats == REPEATS_MAX || !(lost || (contended && tx->persistent)))
            return status;
        if (lost && semel_store_reopen(store, err) != SEMEL_OK)
            return SEMEL_CLOSED;
    }
}
