/* SPDX-License-Identifier: MIT
 *
 * transaction.h: one begin, body and commit, for every path that writes.
 *
 * What it is: the only place that begins, commits and rolls back. When the result of a commit is unknown it connects
 * anew and runs the body again, which reads the rows before it writes (P15).
 *
 * What it is not: a savepoint or a cut. A batch that fails is cut by its caller.
 *
 * Invariants: a body that did not return OK leaves nothing behind. A body never waits for anything but the database.
 */
#ifndef SEMEL_CORE_TRANSACTION_H
#define SEMEL_CORE_TRANSACTION_H

#include "core/store.h"

struct semel__transaction {
    /* Runs inside the transaction, which is rolled back unless it returns OK, and also when it sets *undo: it only
     * read, or nothing is to be kept. May run several times, and starts from nothing each time. */
    semel_status (*body)(void *ctx, int64_t now_us, bool *undo, struct semel_error *err);
    /* NULL, or: called when a commit returned UNKNOWN. Notes what the next run must recognise as its own. */
    void (*unknown)(void *ctx);
    bool again;      /* after an unknown commit: connect anew and run the body again, at most 3 times */
    bool persistent; /* the same after a connection was lost on the way, and after contention */
};

/* OK: committed, or undone on purpose. CLOSED also when no new connection can be made. */
semel_status semel__transaction_run(struct semel_store *store, const struct semel__transaction *tx, void *ctx,
                                    struct semel_error *err);

#endif
