/* SPDX-License-Identifier: MIT
 *
 * exec_private.h: the parts of the caller `exec`: exec.c the calls and what they wait for, exec_child.c how a program
 * is started, exec_end.c what its end means.
 */
#ifndef SEMEL_HANDLER_EXEC_PRIVATE_H
#define SEMEL_HANDLER_EXEC_PRIVATE_H

#include <signal.h>
#include <sys/types.h>

#include "handler/caller_private.h"

#define EXEC_TAIL 1024 /* bytes of stderr's end that are looked at */
#define EXEC_CHILD_STACK ((size_t)64 * 1024)

/* RUNS: as it likes. ASKED: SIGTERM was sent. KILLED: SIGKILL was sent. */
enum exec_stage { EXEC_RUNS, EXEC_ASKED, EXEC_KILLED };

/* The descriptors of a call. */
enum exec_fd { EXEC_PID, EXEC_IN, EXEC_OUT, EXEC_ERR, EXEC_TIMER, EXEC_FDS };

struct exec_call {
    enum call_state state;
    struct semel_call call;
    enum exec_stage stage;
    bool cancelled; /* why it was killed, if not for the time */
    pid_t pid;
    int pidfd; /* -1: this kernel has none */
    int in, out, err, timer;
    short ready[EXEC_FDS]; /* what poll said of them */
    size_t given;          /* bytes of the payload that it has taken */
    struct semel_buf said; /* what it printed */
    bool over;             /* more than is kept, or no memory for it */
    char tail[EXEC_TAIL];
    size_t n_tail;

    struct semel_call_end end;
    char reason[CALL_REASON_TEXT];
};

struct exec_program {
    char *file;
    char **argv; /* ended by NULL */
};

struct exec_caller {
    struct semel_caller base;
    struct exec_program effect, reconcile;
    char **env; /* "NAME=value", ended by NULL; may be secret */
    int64_t timeout_us;
    bool idempotent;
    int timer;
    struct semel_random rng;
    char *stack;        /* of a child, until it has become its program */
    struct pollfd *fds; /* 2, and EXEC_FDS a running call */
    short **ready;      /* where what poll says of them goes */
    size_t n_fds;
    pid_t *lingering; /* killed, and not gone: the call has ended without them */
    size_t n_lingering;
    struct exec_call *calls; /* twice base.concurrency */
};

/* ---- exec_child.c ---- */

/* Starts the program of the call. On OK pid, pidfd, in, out and err are set, and the descriptors do not block.
 * RETRY: certainly not started, ENVIRONMENT. INVALID: cannot be started, BROKEN; or, with class PERMANENT, not for
 * this message. */
semel_status semel__exec_spawn(struct exec_caller *exec, struct exec_call *c, struct semel_error *err);

/* ---- exec_end.c ---- */

void semel__exec_take_said(struct exec_call *c, const char *p, size_t n);
void semel__exec_take_tail(struct exec_call *c, const char *p, size_t n);
/* What its end means; info is NULL: nobody knows how it ended. */
void semel__exec_judge(const struct exec_caller *exec, struct exec_call *c, const siginfo_t *info);

#endif
