/* SPDX-License-Identifier: MIT
 *
 * caller_private.h: shared by the callers. Not for their users.
 *
 * Invariants: waits use a kernel timer on the monotonic clock, so setting the clock neither prolongs nor shortens a
 * call; no thread gets SIGPIPE while a caller writes, whatever the process does with signals.
 */
#ifndef SEMEL_HANDLER_CALLER_PRIVATE_H
#define SEMEL_HANDLER_CALLER_PRIVATE_H

#include <signal.h>

#include "base/random.h"
#include "base/str.h"
#include "base/trace.h"
#include "handler/caller.h"

#define CALL_REASON_TEXT 201 /* a reason has at most 200 bytes, and a NUL */

/* RUNS: started, not ended. ENDED: its end was not reported yet. REPORTED: its strings live until the next wait. There
 * are twice as many slots as calls may run, so one is free whenever a call may start. */
enum call_state { CALL_FREE, CALL_RUNS, CALL_ENDED, CALL_REPORTED };

/* ---- signals and time ---- */

struct pipe_hold {
    sigset_t was;
    bool pending; /* it was pending before: leave it */
};
void semel__pipe_hold(struct pipe_hold *hold);
void semel__pipe_release(const struct pipe_hold *hold);

int semel__timer_new(void);                /* -1: see errno */
void semel__timer_set(int fd, int64_t us); /* readable after so long; negative: never */

/* ---- texts ---- */

#define CALL_ERRNO_TEXT 96
const char *semel__call_errno(int code, char out[CALL_ERRNO_TEXT]); /* returns out */

/* NUL-terminated; semel__call_wipe overwrites and frees it. NULL: no memory. */
char *semel__call_copy(struct semel_str s);
void semel__call_wipe(char *copy);

/* The result of an unknown outcome: a call that honours its key is simply repeated. */
static inline enum semel_result semel__call_unknown(const struct semel_call *call, bool idempotent)
{
    return idempotent && !call->ask ? SEMEL_TRANSIENT : SEMEL_MAYBE;
}

/* The traceparent of a call: a child of the message's trace, or of a new one. */
void semel__call_trace(const struct semel__msg *msg, struct semel_random *rng, char out[SEMEL_TRACE_TEXT]);

/* Can it be stored as an outcome: JSON that is not too long? Without memory it cannot. */
bool semel__call_outcome(struct semel_str text);

/* Ends a call with a result of the other side. `what` ("HTTP 503", "exit 75") and `said`, the other side's text if
 * given, make the reason. */
void semel__call_says(struct semel_call_end *end, char reason[CALL_REASON_TEXT], enum semel_result result,
                      const char *what, struct semel_str said);

#endif
