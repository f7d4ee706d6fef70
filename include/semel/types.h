/* SPDX-License-Identifier: MIT
 *
 * semel/types.h: the values and enumerations that every part of Semel shares.
 *
 * What it is: plain values and enumerations, each with its text. No function here
 * allocates, blocks or keeps state. Clean as C99 and as C++11.
 *
 * Invariants: an enumeration and its texts come from one X-macro; a value never changes
 * its meaning once released; 0 is never a valid act or why, so a zeroed verdict is
 * recognisably unset.
 */
#ifndef SEMEL_TYPES_H
#define SEMEL_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Borrowed bytes. Any byte may occur, NUL too. {NULL, 0} is "not given", which is not the
 * same as {"", 0}: see semel__str_given() inside the library. */
struct semel_str {
    const char *p;
    size_t n;
};

/* An integer column that is NULL: no version, no time, no lease. */
#define SEMEL_NONE INT64_MIN

/* The longest message id, order key, business key, consumer or source, in bytes. */
#define SEMEL_ID_MAX 255

/* What the caller of a function must do next. */
#define SEMEL_STATUS_MAP(X)                                             \
    X(OK, "ok")                                                         \
    X(RETRY, "transient: the same call may be repeated")                \
    X(FENCED, "someone else owns it now: stop")                         \
    X(INVALID, "the call or its input is wrong: repeating cannot help") \
    X(UNKNOWN, "outcome unknown: reconcile before repeating")           \
    X(CLOSED, "this handle is dead: close and reopen")

enum semel_status {
#define X(name, text) SEMEL_##name,
    SEMEL_STATUS_MAP(X)
#undef X
};
typedef enum semel_status semel_status;

/* What went wrong with a message, or with its environment. ENVIRONMENT and BROKEN count for no message: the first
 * pauses the route, the second (a missing table, a handler that cannot run at all) stops it until a probe succeeds. */
#define SEMEL_CLASS_MAP(X)            \
    X(NONE, "none")                   \
    X(TRANSIENT, "transient")         \
    X(PERMANENT, "permanent")         \
    X(REJECTED, "rejected")           \
    X(UNKNOWN, "unknown")             \
    X(ENVIRONMENT, "environment")     \
    X(BROKEN, "broken")               \
    X(BLOCKED, "blocked")             \
    X(GAP, "gap")                     \
    X(TOO_OLD, "too_old")             \
    X(NO_ID, "no_id")                 \
    X(BUSINESS, "business_duplicate") \
    X(STALE, "stale")                 \
    X(LEASE, "lease_expired")         \
    X(RELEASED, "released")           \
    X(DISCARDED, "discarded")

enum semel_class {
#define X(name, text) SEMEL_CLASS_##name,
    SEMEL_CLASS_MAP(X)
#undef X
};

/* An error is a plain value. `code` is the backend's own number, `cls` the cause; `text` is safe to show: it never
 * quotes a payload. */
struct semel_error {
    semel_status status;
    enum semel_class cls;
    int code;
    char text[256];
};

/* What to do with a delivery. */
#define SEMEL_ACT_MAP(X) \
    X(RUN, "run")        \
    X(ACK, "ack")        \
    X(LATER, "later")

enum semel_act {
    SEMEL_ACT_UNSET,
#define X(name, text) SEMEL_##name,
    SEMEL_ACT_MAP(X)
#undef X
};

/* Why. UNKNOWN: an earlier attempt may have had its effect, ask before repeating it. DAMAGED: the stored row cannot be
 * read; the delivery stays with the broker. */
#define SEMEL_WHY_MAP(X)              \
    X(NEW, "new")                     \
    X(RETRIED, "retry")               \
    X(DUPLICATE, "duplicate")         \
    X(BUSY, "busy")                   \
    X(BACKOFF, "backoff")             \
    X(DEAD, "dead")                   \
    X(CONFLICT, "conflict")           \
    X(STALE, "stale")                 \
    X(GAP, "gap")                     \
    X(BLOCKED, "blocked")             \
    X(TOO_OLD, "too_old")             \
    X(BUSINESS, "business_duplicate") \
    X(NO_ID, "no_id")                 \
    X(UNKNOWN, "unknown")             \
    X(DAMAGED, "damaged")

enum semel_why {
    SEMEL_WHY_UNSET,
#define X(name, text) SEMEL_WHY_##name,
    SEMEL_WHY_MAP(X)
#undef X
};

/* The result that a handler reports. MAYBE: the effect may have happened. */
#define SEMEL_RESULT_MAP(X)   \
    X(DONE, "done")           \
    X(TRANSIENT, "transient") \
    X(PERMANENT, "permanent") \
    X(REJECTED, "rejected")   \
    X(MAYBE, "maybe")

enum semel_result {
#define X(name, text) SEMEL_##name,
    SEMEL_RESULT_MAP(X)
#undef X
};

/* The status of an inbox row; ABSENT is "there is no row". */
#define SEMEL_ROW_MAP(X)        \
    X(ABSENT, "absent")         \
    X(PROCESSING, "processing") \
    X(COMPLETED, "completed")   \
    X(FAILED, "failed")         \
    X(WAITING, "waiting")       \
    X(REJECTED, "rejected")     \
    X(UNKNOWN, "unknown")       \
    X(DEAD, "dead")             \
    X(STALE, "stale")           \
    X(PREVENTED, "prevented")   \
    X(QUARANTINED, "quarantined")

enum semel_row_status {
#define X(name, text) SEMEL_ROW_##name,
    SEMEL_ROW_MAP(X)
#undef X
        SEMEL_ROW_COUNT
};

/* What to do with a request by its idempotency key. */
#define SEMEL_KEY_ACT_MAP(X) \
    X(RUN, "run")            \
    X(REPLAY, "replay")      \
    X(BUSY, "busy")          \
    X(MISMATCH, "mismatch")  \
    X(UNKNOWN, "unknown")

enum semel_key_act {
    SEMEL_KEY_UNSET,
#define X(name, text) SEMEL_KEY_##name,
    SEMEL_KEY_ACT_MAP(X)
#undef X
};

/* What becomes of a key: it has its answer; nothing was done, and it is free; nobody knows. */
#define SEMEL_KEY_END_MAP(X)  \
    X(COMPLETED, "completed") \
    X(RELEASED, "released")   \
    X(UNKNOWN, "unknown")

enum semel_key_end {
#define X(name, text) SEMEL_KEY_END_##name,
    SEMEL_KEY_END_MAP(X)
#undef X
};

/* Where the effect of a request is, which decides what an expired lease means: in the transaction that finishes the
 * key (it runs again: the late one cannot commit); outside (unknown); outside, and safe to repeat under the key. */
enum semel_key_effect { SEMEL_KEY_ATOMIC, SEMEL_KEY_OUTSIDE, SEMEL_KEY_KEYED };

#ifdef __cplusplus
}
#endif
#endif
