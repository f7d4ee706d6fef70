/* SPDX-License-Identifier: MIT
 *
 * transaction.h: one begin, body and commit, for every path that writes.
 *
 * What it is: the only place that begins, commits and rolls back, and that knows what to do when nobody knows whether
 * a commit was done: a new connection, and the body again, which reads what is there before it writes (P15).
 *
 * What it is not: a savepoint or a cut. A batch that fails is cut by its caller.
 *
 * Invariants: a body that did not return OK leaves nothing behind. Nothing that waits for the outside runs in a body.
 */
#ifndef SEMEL_CORE_TRANSACTION_H
#define SEMEL_CORE_TRANSACTION_H

#include "core/store.h"

struct semel__transaction {
    /* Inside the transaction. Not OK: it is rolled back, and also when *undo was set: the body only read, or nothing is
     * to be kept. May run several times, and starts from nothing each time. */
    semel_status (*body)(void *ctx, int64_t now_us, bool *undo, struct semel_error *err);
    /* NULL, or: a commit was answered UNKNOWN. Notes what the next run of the body must recognise as its own. */
    void (*unknown)(void *ctx);
    bool again;      /* after an unknown commit: a new connection, and the body once more, at most 3 times */
    bool persistent; /* the same after a connection that was lost on the way, and after contention */
};

/* OK: committed, or undone on purpose. CLOSED also when no new connection is to be had. */
semel_status semel__transaction_run(struct semel_store *store, const struct semel__transaction *tx, void *ctx,
                                    struct semel_error *err);

#endif
