/* SPDX-License-Identifier: MIT
 *
 * caller.h: effects outside the database, many at a time, by one thread.
 *
 * A caller starts calls and reports their ends; its user has the leases, renews them while calls run, and commits the
 * ends (daemon/worker.c). One driver per kind of handler: http.c (curl multi), exec.c (child processes).
 *
 * What the end of a call means
 *   status OK                      the call ended with `result`: DONE, TRANSIENT, PERMANENT, REJECTED, or MAYBE when it
 *                                  is unknown whether it had its effect.
 *   status RETRY, ENVIRONMENT      certainly nothing was done, and not because of the message (connection refused, no
 *                                  address, no memory, too many processes): the lease is released, and the attempt does
 *                                  not count.
 *   status INVALID, BROKEN         the same, and repeating cannot help until somebody fixes the route (the program does
 *                                  not exist, the certificate is not trusted): the route stops by its breaker.
 * Of a reconcile (`ask`): DONE it has happened, TRANSIENT it certainly has not and may run again, REJECTED it was
 * refused for good, MAYBE still unknown; a status other than OK is no answer.
 *
 * Invariants: every call that was started ends exactly once, within its time-out; a call is never repeated by the
 * driver or by its library (P54); answers are bounded (an answer of a gigabyte is cut off and the call still ends);
 * the key is the same on every attempt and on every machine (E1). A caller belongs to one thread: the thread that
 * starts a call also waits for it, and lives until it has ended (the kernel kills a program together with the thread
 * that started it, see exec.c).
 */
#ifndef SEMEL_HANDLER_CALLER_H
#define SEMEL_HANDLER_CALLER_H

#include "base/setting.h"
#include "core/broker.h"
#include "core/inbox.h"

struct semel_caller;

struct semel_call {
    void *tag; /* for the user */
    struct semel_str consumer;
    const struct semel__msg *msg; /* borrowed until its end was reported */
    int attempt;
    char key[SEMEL_STEP_KEY_TEXT]; /* semel__step_key of the message, step "effect" */
    bool ask;                      /* a reconcile: only ask whether it has happened */
};

struct semel_call_end {
    void *tag;
    bool ask, not_asked; /* not_asked: nothing was sent, because no URL can contain the message's id */
    semel_status status;
    struct semel_error err; /* when status is not OK */
    enum semel_result result;
    bool heard;                       /* of a reconcile: the other side answered, even if only that it does not know */
    bool refused_key;                 /* the other side reports that the key was used for something else */
    struct semel_str reason, outcome; /* live until the next wait; outcome is JSON or not given */
};

struct semel_caller_ops {
    const char *name;
    /* Starts the call now, or the next wait reports it as ended. At most `concurrency` at a time. */
    void (*start)(struct semel_caller *caller, const struct semel_call *call);
    /* Waits until a call ends, wake_fd (-1: none) is readable, or wait_ms passed (negative: no limit); returns at most
     * max ends. Does not read from wake_fd. */
    size_t (*wait)(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends, size_t max);
    /* Cancels every running call: each ends as MAYBE, or as ENVIRONMENT where certainly nothing was sent yet. The next
     * waits report them without delay. */
    void (*cancel)(struct semel_caller *caller);
    void (*free)(struct semel_caller *caller); /* when no call runs any more */
};

struct semel_caller {
    const struct semel_caller_ops *ops;
    size_t concurrency;
    bool can_ask; /* a reconcile is configured */
};

/* The same with asserts, for users of a driver. free accepts NULL. */
void semel__caller_start(struct semel_caller *caller, const struct semel_call *call);
size_t semel__caller_wait(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends,
                          size_t max);
void semel__caller_cancel(struct semel_caller *caller);
void semel__caller_free(struct semel_caller *caller);

#define SEMEL_CALL_ANSWER_MAX ((size_t)64 * 1024) /* bytes kept of an answer or of a program's output */

/* ---- http: POST of the payload ----------------------------------------------------------------------- */

/* Settings are copied. INVALID: they are wrong, err has the reason; or this program has no libcurl. */

struct semel_http_caller_settings {
    const char *url,
        *reconcile_url; /* http:// or https://; reconcile NULL: none. "{key}" and "{id}" in it are replaced */
    int64_t timeout_us;
    size_t concurrency;
    const struct semel_pair *headers; /* fixed headers, besides ours */
    size_t n_headers;
    bool idempotent;      /* the other side honours the key: an unknown outcome is TRANSIENT */
    const int *transient; /* 5xx statuses after which certainly nothing was done */
    size_t n_transient;
    struct semel_setting_tls tls; /* `on` does not count: the URL's scheme does */
};
semel_status semel__http_caller_new(struct semel_caller **ret, const struct semel_http_caller_settings *settings,
                                    struct semel_error *err);

/* ---- exec: a program, the payload on its standard input ------------------------------------------------ */

/* A program whose time is over gets SIGTERM, 2 s later SIGKILL, and its call ends at most 2 s after that. Exits: 0
 * done, 75 transient, 65 permanent, 77 rejected, 69 unknown; any other, and a signal, is unknown as well. Of a
 * reconcile: 0 it has happened, 75 it certainly has not, 77 it was refused for good, any other unknown. */

struct semel_exec_caller_settings {
    const char *const *argv, *const *reconcile_argv; /* ended by NULL; reconcile NULL: none */
    const char *program, *reconcile_program;         /* the files */
    int64_t timeout_us;
    size_t concurrency;
    const struct semel_pair *env; /* the whole environment besides ours (SEMEL_*) and PATH */
    size_t n_env;
    bool idempotent;
};
semel_status semel__exec_caller_new(struct semel_caller **ret, const struct semel_exec_caller_settings *settings,
                                    struct semel_error *err);

#endif
