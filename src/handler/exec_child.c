/* SPDX-License-Identifier: MIT
 *
 * exec_child.c: how a program is started from a process with many threads.
 *
 * By clone with CLONE_VM and CLONE_VFORK, as posix_spawn does it: nothing is copied, and this thread stands still
 * until the child has become its program or has failed. posix_spawn itself will not do because of one call between the
 * two: PR_SET_PDEATHSIG. Between clone and execve the child shares our memory, so all signals are blocked, no handler
 * of ours can run in it, and it makes system calls and nothing else.
 *
 * A child gets: three pipes and no other descriptor; a process group of its own; every signal's default and none
 * blocked; the limit of descriptors that we were started with; a file and an argument vector, no shell; the configured
 * environment, PATH and SEMEL_*.
 *
 * When we die: PR_SET_PDEATHSIG kills a program with SIGKILL when the thread that started it ends, however it ends.
 * That it is the thread's end and not the process's is what is wanted here: a caller belongs to one thread, and
 * without it nobody would ever tell what became of the call, whose lease runs out and whose outcome is then unknown.
 * SIGKILL, because nobody would be left to follow up a SIGTERM that is ignored, and a program that lingers would run
 * beside its own repetition. It does not reach what the program itself has started, nor a program with the set-uid
 * bit.
 */
#define _GNU_SOURCE 1 /* clone, pipe2, close_range */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/error.h"
#include "core/headers.h"
#include "handler/exec_private.h"

#define KERNEL_SIGNALS 64
#define KERNEL_SIGSET (KERNEL_SIGNALS / 8)
#define ENV_MAX_BYTES ((size_t)1 << 20)

/* ---- the environment ----------------------------------------------------------------------------- */

struct variables {
    struct semel_buf text;
    size_t at[16], n;
    const char *bad; /* the name of one that cannot be said */
};

static void put(struct variables *v, const char *name, struct semel_str value)
{
    if (value.n > 0 && memchr(value.p, '\0', value.n) != NULL)
        v->bad = name;
    v->at[v->n++] = v->text.n;
    semel__buf_addf(&v->text, "%s=", name);
    semel__buf_add(&v->text, value.p, value.n);
    semel__buf_add(&v->text, "", 1);
}

static void put_number(struct variables *v, const char *name, int64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)number);
    put(v, name, semel__str(text));
}

static void put_call(struct exec_caller *exec, const struct semel_call *call, struct variables *v)
{
    char trace[SEMEL_TRACE_TEXT];
    semel__call_trace(call->msg, &exec->rng, trace);
    put(v, "SEMEL_CONSUMER", call->consumer);
    put(v, "SEMEL_MESSAGE_ID", call->msg->id);
    put(v, "SEMEL_SOURCE", call->msg->source);
    put(v, "SEMEL_TYPE", call->msg->type);
    put_number(v, "SEMEL_ATTEMPT", call->attempt);
    put(v, "SEMEL_KEY", semel__str(call->key));
    put(v, "SEMEL_TRACEPARENT", semel__str(trace));
    put_number(v, "SEMEL_TIMEOUT_MS", exec->timeout_us / 1000);
    if (semel__is_tombstone(call->msg))
        put(v, "SEMEL_TOMBSTONE", SEMEL_STR("true"));
}

/* The vector for execve, to be freed; its strings are v's and the caller's. NULL: no memory. */
static char **vector(const struct exec_caller *exec, const struct variables *v)
{
    size_t n = 0, fixed = 0;
    while (exec->env[fixed] != NULL)
        fixed++;
    char **env = v->text.failed ? NULL : semel__calloc(fixed + v->n + 1, sizeof *env);
    if (env == NULL)
        return NULL;
    for (; n < fixed; n++)
        env[n] = exec->env[n];
    for (size_t i = 0; i < v->n; i++)
        env[n++] = v->text.p + v->at[i];
    return env;
}

/* ---- the child ----------------------------------------------------------------------------------- */

struct child {
    const char *file;
    char **argv, **env;
    int in, out, err;
    pid_t parent;
    int code; /* out: errno of what failed; 0: it runs */
};

/* Not by sigaction: a sanitizer's notes on handlers are in the memory that we share. All zero is the default. */
static void reset_signals(void)
{
    static const unsigned long zero[16] = {0};
    for (int i = 1; i <= KERNEL_SIGNALS; i++)
        syscall(SYS_rt_sigaction, i, zero, NULL, KERNEL_SIGSET);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, zero, NULL, KERNEL_SIGSET);
}

/* Any of the three may stand where another has to go, when we run without a standard input. */
static bool place(struct child *c)
{
    int in = fcntl(c->in, F_DUPFD, 3), out = fcntl(c->out, F_DUPFD, 3), err = fcntl(c->err, F_DUPFD, 3);
    if (in < 0 || out < 0 || err < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        return false;
    close_range(3, ~0U, 0); /* an old kernel cannot; all that is ours closes itself */
    close(in);
    close(out);
    close(err);
    return true;
}

__attribute__((no_sanitize("address"), no_sanitize("undefined"))) static int child_main(void *ctx)
{
    struct child *c = ctx;
    if (setpgid(0, 0) == 0 && place(c) && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0) {
        if (getppid() != c->parent)
            _exit(1); /* nobody is there any more to be told */
        reset_signals();
        semel__descriptors_restore();
        execve(c->file, c->argv, c->env);
    }
    c->code = errno;
    _exit(127);
}

/* ---- starting ------------------------------------------------------------------------------------ */

static void close_pipes(int pipes[3][2])
{
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 2; k++)
            if (pipes[i][k] >= 0)
                close(pipes[i][k]);
}

/* Ours are pipes[0][1], pipes[1][0] and pipes[2][0]: they do not block. The others are the child's, and do. */
static bool open_pipes(int pipes[3][2])
{
    memset(pipes, 0xff, sizeof(int[3][2]));
    for (size_t i = 0; i < 3; i++)
        if (pipe2(pipes[i], O_CLOEXEC) != 0 || fcntl(pipes[i][i == 0 ? 1 : 0], F_SETFL, O_NONBLOCK) != 0)
            return false;
    return true;
}

static pid_t start(struct exec_caller *exec, struct child *child, int *ret_pidfd)
{
    sigset_t all, was;
    *ret_pidfd = -1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    pid_t pid = clone(child_main, exec->stack + EXEC_CHILD_STACK, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, child,
                      ret_pidfd);
    if (pid < 0)
        child->code = errno;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return pid;
}

static semel_status not_started(const char *file, int code, struct semel_error *err)
{
    static const int broken[] = {ENOENT, EACCES,       EPERM, ENOEXEC, ENOTDIR, EISDIR,
                                 ELOOP,  ENAMETOOLONG, E2BIG, EINVAL,  ELIBBAD};
    char shown[128], why[CALL_ERRNO_TEXT];
    semel__str_show(shown, sizeof shown, semel__str(file));
    semel_status status = SEMEL_RETRY;
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        if (code == broken[i])
            status = SEMEL_INVALID;
    enum semel_class cls = status == SEMEL_INVALID ? SEMEL_CLASS_BROKEN : SEMEL_CLASS_ENVIRONMENT;
    semel__fail(err, status, cls, "%s could not be started: %s", shown, semel__call_errno(code, why));
    if (err != NULL)
        err->code = code;
    return status;
}

static semel_status spawn(struct exec_caller *exec, struct exec_call *c, char **env, struct semel_error *err)
{
    const struct exec_program *program = c->call.ask ? &exec->reconcile : &exec->effect;
    int pipes[3][2], pidfd = -1;
    if (!open_pipes(pipes)) {
        int code = errno;
        close_pipes(pipes);
        return not_started(program->file, code, err);
    }
    struct child child = {.file = program->file,
                          .argv = program->argv,
                          .env = env,
                          .in = pipes[0][0],
                          .out = pipes[1][1],
                          .err = pipes[2][1],
                          .parent = getpid()};
    pid_t pid = start(exec, &child, &pidfd);
    if (child.code != 0) {
        siginfo_t gone;
        while (pid > 0 && waitid(P_PID, (id_t)pid, &gone, WEXITED) != 0 && errno == EINTR)
            continue;
        if (pidfd >= 0)
            close(pidfd);
        close_pipes(pipes);
        return not_started(program->file, child.code, err);
    }
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    c->pid = pid;
    c->pidfd = pidfd;
    c->in = pipes[0][1];
    c->out = pipes[1][0];
    c->err = pipes[2][0];
    return SEMEL_OK;
}

semel_status semel__exec_spawn(struct exec_caller *exec, struct exec_call *c, struct semel_error *err)
{
    struct variables v = {0};
    semel_status status;
    semel__buf_init(&v.text, ENV_MAX_BYTES);
    put_call(exec, &c->call, &v);
    char **env = vector(exec, &v);
    if (v.bad != NULL)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "%s of the message has a NUL byte, which no environment can hold", v.bad);
    else if (env == NULL)
        status = semel__fail_memory(err);
    else
        status = spawn(exec, c, env, err);
    semel__free(env);
    semel__buf_done(&v.text);
    return status;
}
