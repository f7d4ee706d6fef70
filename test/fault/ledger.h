/* SPDX-License-Identifier: MIT
 *
 * ledger.h: the business behind the process tests, with effects that show when they are lost or doubled.
 *
 * A message orders one booking and says how its handler is to behave. A booking inside the database is a line of
 * `ledger`, which may hold any number of lines for one message, and an amount in `accounts`; both are written before
 * the handler misbehaves, so that a rollback has something to take back. A booking outside is a line of a file, with
 * the key under which the other side would refuse a second one; there a failure comes before the effect.
 *
 * Invariants: nothing in here asks Semel whether a message was seen before.
 */
#ifndef SEMEL_TEST_LEDGER_H
#define SEMEL_TEST_LEDGER_H

#include "core/inbox.h"

/* What the handler does besides booking; `n` belongs to it. An attempt is counted from 1. */
#define TASK_MAP(X)                                                              \
    X(OK, "ok")           /* nothing */                                          \
    X(FLAKY, "flaky")     /* transient failure while attempt <= n */             \
    X(BAD, "bad")         /* permanent failure while attempt <= n */             \
    X(REJECT, "reject")   /* the business says no */                             \
    X(DIE, "die")         /* the process is killed while attempt <= n */         \
    X(GATE, "gate")       /* waits for the file gate.ID.WORKER.go */             \
    X(EMIT, "emit")       /* an outbox row; then transient while attempt <= n */ \
    X(MISSING, "missing") /* writes a table that is not there */

enum task_kind {
#define X(name, text) TASK_##name,
    TASK_MAP(X)
#undef X
        TASK_COUNT
};

struct task {
    enum task_kind kind;
    int n;
    char account[32], intent[48]; /* the account is the order key too */
    long long cents, version;
};

#define TASK_TEXT 256
const char *ledger_schema(const char *url);

/* The payload, and back. */
void task_write(const struct task *task, char out[TASK_TEXT]);
bool task_read(struct semel_str payload, struct task *ret);

struct ledger {
    const char *dir; /* of the gates, and of `effects` */
    const char *worker;
    struct semel_str consumer;
    bool outside;
    bool queued; /* inside PostgreSQL: statements are sent without waiting for their answers */
};

/* A semel__each_handler; ctx is a struct ledger. */
semel_status ledger_handle(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                           struct semel__reply *reply, struct semel_error *err);

#endif
