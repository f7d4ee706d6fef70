/* SPDX-License-Identifier: MIT
 *
 * caller_private.h: what the callers share. Not for their users.
 *
 * Invariants: a wait ends by a timer of the kernel that runs by its monotonic clock, so a clock that is set neither
 * prolongs nor shortens a call; SIGPIPE reaches nobody while a caller writes, whatever the process does with signals.
 */
#ifndef SEMEL_HANDLER_CALLER_PRIVATE_H
#define SEMEL_HANDLER_CALLER_PRIVATE_H

#include <signal.h>

#include "base/random.h"
#include "base/str.h"
#include "base/trace.h"
#include "handler/caller.h"

#define CALL_REASON_TEXT 201 /* a reason has at most 200 bytes, and a NUL */

/* RUNS: begun, not ended. ENDED: its end was not told yet. TOLD: its strings live until the next wait. There are twice
 * as many slots as calls may run, so that one is free whenever a call may be started. */
enum call_state { CALL_FREE, CALL_RUNS, CALL_ENDED, CALL_REPORTED };

/* ---- signals and time ---- */

struct pipe_hold {
    sigset_t was;
    bool pending; /* before us: not ours to take away */
};
void semel__pipe_hold(struct pipe_hold *hold);
void semel__pipe_release(const struct pipe_hold *hold);

int semel__timer_new(void);                /* -1: errno says why */
void semel__timer_set(int fd, int64_t us); /* readable after so long; negative: never */

/* ---- texts ---- */

#define CALL_ERRNO_TEXT 96
const char *semel__call_errno(int code, char out[CALL_ERRNO_TEXT]); /* returns out */

/* NUL-terminated, to be given back by semel__call_wipe, which overwrites it first. NULL: no memory. */
char *semel__call_copy(struct semel_str s);
void semel__call_wipe(char *copy);

/* What an unknown outcome is: a call that honours its key is simply repeated. */
static inline enum semel_result semel__call_unknown(const struct semel_call *call, bool idempotent)
{
    return idempotent && !call->ask ? SEMEL_TRANSIENT : SEMEL_MAYBE;
}

/* Appends with %XX for what may not stand in a header (CloudEvents' rule: visible ASCII but " and %), or in a part of a
 * URL (all but RFC 3986's unreserved characters). */
void semel__call_encode(struct semel_buf *buf, struct semel_str s, bool url);

/* The traceparent that a call carries: a child of the message's, or of a trace of its own. */
void semel__call_trace(const struct semel__msg *msg, struct semel_random *rng, char out[SEMEL_TRACE_TEXT]);

/* Whether it can be kept as an outcome: JSON that is not too long. No memory: it cannot. */
bool semel__call_outcome(struct semel_str text);

/* The end of a call that says so itself. `what` ("HTTP 503", "exit 75") and `said`, if given, make the reason; said is
 * whatever the other side wrote. */
void semel__call_says(struct semel_call_end *end, char reason[CALL_REASON_TEXT], enum semel_result result,
                      const char *what, struct semel_str said);

#endif
