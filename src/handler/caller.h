/* SPDX-License-Identifier: MIT
 *
 * caller.h: effects outside the database, many at a time, by one thread.
 *
 * A caller starts calls and tells their ends; who uses it holds the leases, renews them while calls run, and commits
 * the ends (daemon/outside.c). One driver a kind of handler: http.c (curl multi), exec.c (child processes).
 *
 * What the end of a call says
 *   status OK                      the call ended, `result` says how: DONE, TRANSIENT, PERMANENT, REJECTED, or MAYBE
 *                                  when nobody can know whether it had its effect.
 *   status RETRY, ENVIRONMENT      certainly nothing was done, and it is the world's fault (connection refused, no
 *                                  address, no memory, too many processes): the lease is given back, nobody is charged.
 *   status INVALID, BROKEN         the same, and repeating cannot help until somebody fixes the route (the program does
 *                                  not exist, the certificate is not trusted): the route stops by its breaker.
 * Of a reconcile (`ask`): DONE it has happened, TRANSIENT it certainly has not and may run again, REJECTED it was
 * refused for good, MAYBE still unknown; a status other than OK says nothing at all.
 *
 * Invariants: every call that was started ends exactly once, within its time-out; a call is never repeated by the
 * driver or by its library (P54); what came back is bounded (an answer of a gigabyte is cut off and still has its
 * end); the key is the same on every attempt and on every machine (E1). A caller belongs to one thread: that which
 * starts a call also waits for it, and lives until it has ended (a program is killed with the thread that started it,
 * see exec.c).
 */
#ifndef SEMEL_HANDLER_CALLER_H
#define SEMEL_HANDLER_CALLER_H

#include "core/broker.h"
#include "core/inbox.h"

struct semel_caller;

struct semel_call {
    void *tag; /* the user's own */
    struct semel_str consumer;
    const struct semel__msg *msg; /* borrowed until its end was told */
    int attempt;
    char key[SEMEL_STEP_KEY_TEXT]; /* semel__step_key of the message, step "effect" */
    bool ask;                      /* a reconcile: ask whether it has happened, do nothing */
};

struct semel_call_end {
    void *tag;
    bool ask, not_asked; /* not_asked: nothing was sent, because no URL can hold the message's id */
    semel_status status;
    struct semel_error err; /* when status is not OK */
    enum semel_result result;
    bool heard;                       /* of a reconcile: the other side answered it, if only that it does not know */
    bool refused_key;                 /* the other side says that the key was used for something else */
    struct semel_str reason, outcome; /* live until the next wait; outcome is JSON or not given */
};

struct semel_caller_ops {
    const char *name;
    /* The call begins now, or is told as an end by the next wait. At most `concurrency` at a time. */
    void (*start)(struct semel_caller *caller, const struct semel_call *call);
    /* Waits until a call ends, wake_fd (-1: none) is readable, or wait_ms passed (negative: no bound); tells at most
     * max ends. wake_fd is not read from. */
    size_t (*wait)(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends, size_t max);
    /* Gives up every call that runs: each ends as MAYBE, or as ENVIRONMENT where certainly nothing was sent yet. The
     * next waits tell it, without delay. */
    void (*cancel)(struct semel_caller *caller);
    void (*free)(struct semel_caller *caller); /* no call runs any more */
};

struct semel_caller {
    const struct semel_caller_ops *ops;
    size_t concurrency;
    bool can_ask; /* a reconcile is configured */
};

/* The same with asserts; what a driver's users call. free accepts NULL. */
void semel__caller_start(struct semel_caller *caller, const struct semel_call *call);
size_t semel__caller_wait(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends,
                          size_t max);
void semel__caller_cancel(struct semel_caller *caller);
void semel__caller_free(struct semel_caller *caller);

#define SEMEL_CALL_ANSWER_MAX ((size_t)64 * 1024) /* bytes that are kept of an answer or of what a program prints */

/* ---- http: POST of the payload ----------------------------------------------------------------------- */

/* Settings are copied. INVALID: they are wrong, err says how; or there is no libcurl in this program. */

struct semel_http_caller_settings {
    const char *url,
        *reconcile_url; /* http:// or https://; reconcile NULL: none. "{key}" and "{id}" in it are replaced */
    int64_t timeout_us;
    size_t concurrency;
    const struct semel_pair *headers; /* fixed ones, besides ours */
    size_t n_headers;
    bool idempotent;      /* the other side honours the key: an unknown outcome is TRANSIENT */
    const int *transient; /* statuses, 5xx, after which certainly nothing was done */
    size_t n_transient;
    const char *ca_file, *cert_file, *key_file, *key_password;
    bool verify; /* the other side's certificate */
};
semel_status semel__http_caller_new(struct semel_caller **ret, const struct semel_http_caller_settings *settings,
                                    struct semel_error *err);

/* ---- exec: a program, the payload on its standard input ------------------------------------------------ */

/* A program whose time is over gets SIGTERM, SIGKILL 2 s later, and at most 2 s more to go: then its call has ended.
 * Exits: 0 done, 75 transient, 65 permanent, 77 rejected, 69 unknown; any other, and a signal, is unknown as well. Of a
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
