/* SPDX-License-Identifier: MIT
 *
 * caller.c: functions that the callers share, and their interface with asserts.
 */
#include "handler/caller_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>

#include "base/error.h"
#include "base/json.h"
#include "core/row.h"

#define US_PER_SECOND 1000000

/* ---- the wrappers -------------------------------------------------------------------------------- */

void semel__caller_start(struct semel_caller *caller, const struct semel_call *call)
{
    assert(call->msg != NULL && strlen(call->key) == SEMEL_STEP_KEY_TEXT - 1);
    assert(caller->can_ask || !call->ask);
    caller->ops->start(caller, call);
}

size_t semel__caller_wait(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends,
                          size_t max)
{
    assert(max > 0);
    size_t n = caller->ops->wait(caller, wait_ms, wake_fd, ret_ends, max);
    assert(n <= max);
    for (size_t i = 0; i < n; i++)
        assert(ret_ends[i].status == SEMEL_OK || ret_ends[i].err.status == ret_ends[i].status);
    return n;
}

void semel__caller_cancel(struct semel_caller *caller)
{
    caller->ops->cancel(caller);
}

void semel__caller_free(struct semel_caller *caller)
{
    if (caller != NULL)
        caller->ops->free(caller);
}

#ifndef SEMEL_WITH_CURL
semel_status semel__http_caller_new(struct semel_caller **ret, const struct semel_http_caller_settings *settings,
                                    struct semel_error *err)
{
    (void)ret;
    (void)settings;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "this program was built without libcurl and cannot call by HTTP; build it with -Dcurl=enabled");
}
#endif

/* ---- signals and time ---------------------------------------------------------------------------- */

void semel__pipe_hold(struct pipe_hold *hold)
{
    sigset_t pipe, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigemptyset(&pending);
    sigpending(&pending);
    hold->pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe, &hold->was);
}

void semel__pipe_release(const struct pipe_hold *hold)
{
    const struct timespec at_once = {0};
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    while (!hold->pending && sigtimedwait(&pipe, NULL, &at_once) < 0 && errno == EINTR)
        continue;
    pthread_sigmask(SIG_SETMASK, &hold->was, NULL);
}

int semel__timer_new(void)
{
    return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
}

void semel__timer_set(int fd, int64_t us)
{
    struct itimerspec at = {0}; /* all zero: never */
    if (us >= 0) {
        at.it_value.tv_sec = (time_t)(us / US_PER_SECOND);
        at.it_value.tv_nsec = (long)(us % US_PER_SECOND) * 1000 + 1;
    }
    timerfd_settime(fd, 0, &at, NULL);
}

/* ---- texts --------------------------------------------------------------------------------------- */

const char *semel__call_errno(int code, char out[CALL_ERRNO_TEXT])
{
    if (strerror_r(code, out, CALL_ERRNO_TEXT) != 0)
        snprintf(out, CALL_ERRNO_TEXT, "error %d", code);
    return out;
}

char *semel__call_copy(struct semel_str s)
{
    char *copy = semel__alloc(s.n + 1);
    if (copy == NULL)
        return NULL;
    if (s.n > 0)
        memcpy(copy, s.p, s.n);
    copy[s.n] = '\0';
    return copy;
}

void semel__call_wipe(char *copy)
{
    if (copy != NULL)
        explicit_bzero(copy, strlen(copy));
    semel__free(copy);
}

void semel__call_trace(const struct semel__msg *msg, struct semel_random *rng, char out[SEMEL_TRACE_TEXT])
{
    struct semel_trace parent;
    bool given = semel__str_given(msg->traceparent) && semel__trace_parse(msg->traceparent, &parent);
    struct semel_trace ours = given ? semel__trace_child(&parent, rng) : semel__trace_new(rng, SEMEL_TRACE_SAMPLED);
    semel__trace_format(&ours, out);
}

bool semel__call_outcome(struct semel_str text)
{
    struct semel_json *json;
    _Static_assert(SEMEL_CALL_ANSWER_MAX <= SEMEL_OUTCOME_MAX, "what is kept of an answer fits in a row");
    if (text.n == 0 || semel__json_parse(&json, text, SEMEL_CALL_ANSWER_MAX, NULL) != SEMEL_OK)
        return false;
    semel__json_free(json);
    return true;
}

void semel__call_says(struct semel_call_end *end, char reason[CALL_REASON_TEXT], enum semel_result result,
                      const char *what, struct semel_str said)
{
    char shown[CALL_REASON_TEXT];
    semel__str_show(shown, sizeof shown, said);
    int n = snprintf(reason, CALL_REASON_TEXT, "%s%s%s", what, shown[0] != '\0' ? ": " : "", shown);
    end->status = SEMEL_OK;
    end->result = result;
    if (n >= CALL_REASON_TEXT) { /* not in the middle of a character */
        memcpy(shown, reason, CALL_REASON_TEXT);
        size_t cut = CALL_REASON_TEXT - 1;
        while (cut > 0 && !semel__utf8_valid((struct semel_str){shown, cut}))
            cut--;
        reason[cut] = '\0';
    }
    end->reason = semel__str(result != SEMEL_DONE ? reason : NULL);
}
