/* SPDX-License-Identifier: MIT
 *
 * exec.c: effects by programs: many children of one thread, all served by one poll.
 *
 * A call ends when its program does. Processes that the program has started and left behind may keep its pipes open:
 * we read what is in the pipes, and do not wait for more. When the time is over the whole process group gets SIGTERM,
 * two seconds later SIGKILL, and two seconds after that the call ends even if the kernel cannot end the program (a
 * dead file server); it is reaped when it ends. We wait for a child only by its own id.
 *
 * Invariants: only poll blocks; a group is signalled only while its leader is not reaped, so that the number cannot
 * belong to another group.
 */
#define _GNU_SOURCE 1 /* clone, pipe2, close_range */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/error.h"
#include "core/headers.h"
#include "handler/caller_private.h"

#define EXEC_TAIL 1024 /* bytes of stderr's end that are kept */
#define EXEC_CHILD_STACK ((size_t)64 * 1024)

/* RUNS: not signalled. ASKED: SIGTERM was sent. KILLED: SIGKILL was sent. */
enum exec_stage { EXEC_RUNS, EXEC_ASKED, EXEC_KILLED };

/* The descriptors of a call. */
enum exec_fd { EXEC_PID, EXEC_IN, EXEC_OUT, EXEC_ERR, EXEC_TIMER, EXEC_FDS };

struct exec_call {
    enum call_state state;
    struct semel_call call;
    enum exec_stage stage;
    bool cancelled; /* why it was killed, if not because of the time */
    pid_t pid;
    int pidfd; /* -1: this kernel has none */
    int in, out, err, timer;
    short ready[EXEC_FDS]; /* their events from poll */
    size_t given;          /* bytes of the payload that it has read */
    struct semel_buf said; /* its output */
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
    char *stack;        /* of a child, until it has executed its program */
    struct pollfd *fds; /* 2, and EXEC_FDS per running call */
    short **ready;      /* where the events of each go */
    size_t n_fds;
    pid_t *lingering; /* killed but not gone: their calls have ended */
    size_t n_lingering;
    struct exec_call *calls; /* twice base.concurrency */
};

/* ==== starting a program ============================================================================
 *
 * How a process with many threads starts a program.
 *
 * By clone with CLONE_VM and CLONE_VFORK, as posix_spawn does it: nothing is copied, and this thread waits until the
 * child has executed its program or failed. posix_spawn itself will not do because of one call between the two:
 * PR_SET_PDEATHSIG. Between clone and execve the child shares our memory, so all signals are blocked, no handler of
 * ours can run in it, and it makes system calls and nothing else.
 *
 * A child gets: three pipes and no other descriptor; a process group of its own; every signal's default and none
 * blocked; the limit of descriptors that we were started with; a file and an argument vector, no shell; the configured
 * environment, PATH and SEMEL_*.
 *
 * When we die: PR_SET_PDEATHSIG kills a program with SIGKILL when the thread that started it ends, however it ends.
 * The thread's end, not the process's, is right here: a caller belongs to one thread, and without that thread nobody
 * would report the end of the call, whose lease expires and whose outcome is then unknown. SIGKILL, because nobody
 * would be left to act when a SIGTERM is ignored, and the program would run beside its own repetition. It does not
 * reach processes that the program itself has started, nor a program with the set-uid bit.
 */

#define KERNEL_SIGNALS 64
#define KERNEL_SIGSET (KERNEL_SIGNALS / 8)
#define ENV_MAX_BYTES ((size_t)1 << 20)

/* ---- the environment ----------------------------------------------------------------------------- */

struct variables {
    struct semel_buf text;
    size_t at[16], n;
    const char *bad; /* the name of a variable that cannot be passed */
};

static void put_text(struct variables *v, const char *name, struct semel_str value)
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
    put_text(v, name, semel__str(text));
}

static void put_call(struct exec_caller *exec, const struct semel_call *call, struct variables *v)
{
    char trace[SEMEL_TRACE_TEXT];
    semel__call_trace(call->msg, &exec->rng, trace);
    put_text(v, "SEMEL_CONSUMER", call->consumer);
    put_text(v, "SEMEL_MESSAGE_ID", call->msg->id);
    put_text(v, "SEMEL_SOURCE", call->msg->source);
    put_text(v, "SEMEL_TYPE", call->msg->type);
    put_number(v, "SEMEL_ATTEMPT", call->attempt);
    put_text(v, "SEMEL_KEY", semel__str(call->key));
    put_text(v, "SEMEL_TRACEPARENT", semel__str(trace));
    put_number(v, "SEMEL_TIMEOUT_MS", exec->timeout_us / 1000);
    if (semel__is_tombstone(call->msg))
        put_text(v, "SEMEL_TOMBSTONE", SEMEL_STR("true"));
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

/* Not by sigaction: a sanitizer keeps data about handlers in the memory that we share. All zero is the default. */
static void reset_signals(void)
{
    static const unsigned long zero[16] = {0};
    for (int i = 1; i <= KERNEL_SIGNALS; i++)
        syscall(SYS_rt_sigaction, i, zero, NULL, KERNEL_SIGSET);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, zero, NULL, KERNEL_SIGSET);
}

/* Any of the three may occupy the number of another, when we run without a standard input. */
static bool place(struct child *c)
{
    int in = fcntl(c->in, F_DUPFD, 3), out = fcntl(c->out, F_DUPFD, 3), err = fcntl(c->err, F_DUPFD, 3);
    if (in < 0 || out < 0 || err < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        return false;
    close_range(3, ~0U, 0); /* an old kernel cannot; all our descriptors are close-on-exec */
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
            _exit(1); /* nobody is left to report it to */
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

/* Starts the program of the call. On OK pid, pidfd, in, out and err are set, and the descriptors do not block. RETRY,
 * ENVIRONMENT: certainly not started. INVALID: cannot be started, BROKEN; or, with class PERMANENT, not for this
 * message. */
static semel_status exec_spawn(struct exec_caller *exec, struct exec_call *c, struct semel_error *err)
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

/* ==== the end of a program ==========================================================================
 *
 * The output of a program, and the meaning of its end.
 *
 *     exit 0     done; what it printed is the outcome where it is JSON and was kept whole
 *     exit 75    transient: nothing was done, try again         (EX_TEMPFAIL of sysexits.h)
 *     exit 65    permanent: it will never be done               (EX_DATAERR)
 *     exit 77    rejected by the business: a final outcome      (EX_NOPERM)
 *     exit 69    unknown: it may have been done                 (EX_UNAVAILABLE)
 *     any other exit, a signal, the time-out: unknown as well
 * Where the program honours the key, unknown is transient. Of a reconcile: 0 it has happened, 75 it certainly has not,
 * 77 it was refused for good, any other unknown.
 *
 * Invariants: after SIGTERM was sent the exit status is ignored, because programs often clean up on SIGTERM and exit
 * with 0; the reason is stderr's last line, cut and without control characters.
 */

static void keep_said(struct exec_call *c, const char *p, size_t n)
{
    if (!c->over)
        c->over = !semel__buf_add(&c->said, p, n);
}

static void keep_tail(struct exec_call *c, const char *p, size_t n)
{
    if (n >= EXEC_TAIL) {
        memcpy(c->tail, p + n - EXEC_TAIL, EXEC_TAIL);
        c->n_tail = EXEC_TAIL;
        return;
    }
    size_t keep = c->n_tail + n > EXEC_TAIL ? EXEC_TAIL - n : c->n_tail;
    memmove(c->tail, c->tail + c->n_tail - keep, keep);
    memcpy(c->tail + keep, p, n);
    c->n_tail = keep + n;
}

static struct semel_str last_line(const struct exec_call *c)
{
    size_t end = c->n_tail;
    while (end > 0 && strchr("\r\n \t", c->tail[end - 1]) != NULL && c->tail[end - 1] != '\0')
        end--;
    size_t begin = end;
    while (begin > 0 && c->tail[begin - 1] != '\n' && c->tail[begin - 1] != '\r')
        begin--;
    return (struct semel_str){c->tail + begin, end - begin};
}

static enum semel_result by_exit(const struct exec_caller *exec, const struct exec_call *c, int status)
{
    switch (status) {
    case EX_OK:
        return SEMEL_DONE;
    case EX_TEMPFAIL:
        return SEMEL_TRANSIENT;
    case EX_NOPERM:
        return SEMEL_REJECTED;
    case EX_DATAERR:
        return c->call.ask ? SEMEL_MAYBE : SEMEL_PERMANENT;
    default:
        return semel__call_unknown(&c->call, exec->idempotent);
    }
}

/* Judges its end; info is NULL: nobody knows how it ended. */
static void exec_judge(const struct exec_caller *exec, struct exec_call *c, const siginfo_t *info)
{
    enum semel_result result = semel__call_unknown(&c->call, exec->idempotent);
    char what[64];
    if (c->stage != EXEC_RUNS)
        snprintf(what, sizeof what, c->cancelled ? "cancelled before it ended" : "stopped: the timeout was over");
    else if (info == NULL)
        snprintf(what, sizeof what, "ended with an unknown exit status");
    else if (info->si_code == CLD_EXITED) {
        result = by_exit(exec, c, info->si_status);
        c->end.heard = c->call.ask && (result != SEMEL_MAYBE || info->si_status == EX_UNAVAILABLE);
        snprintf(what, sizeof what, "exit %d", info->si_status);
    } else
        snprintf(what, sizeof what, "killed by signal %d", info->si_status);
    semel__call_says(&c->end, c->reason, result, what, last_line(c));
    struct semel_str said = semel__buf_str(&c->said);
    if (result == SEMEL_DONE && !c->over && semel__call_outcome(said))
        c->end.outcome = said;
}

/* ==== the calls ================================================================================== */

#define EXEC_GRACE_US 2000000
#define EXEC_LOOK_MS 20 /* how often a child is checked where there is no pidfd */
#define EXEC_READ ((size_t)64 * 1024)
#define EXEC_DRAIN_MAX ((size_t)1 << 20) /* the capacity of a pipe */
#define EXEC_PATH "/usr/local/bin:/usr/bin:/bin"

static struct exec_caller *exec_of(struct semel_caller *caller)
{
    return (struct exec_caller *)caller;
}

static size_t n_calls(const struct exec_caller *exec)
{
    return 2 * exec->base.concurrency;
}

static void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void shut_all(struct exec_call *c)
{
    shut(&c->pidfd);
    shut(&c->in);
    shut(&c->out);
    shut(&c->err);
    shut(&c->timer);
}

static void clear(struct exec_call *c)
{
    *c = (struct exec_call){.pidfd = -1, .in = -1, .out = -1, .err = -1, .timer = -1};
}

static void forget(struct exec_call *c)
{
    shut_all(c);
    semel__buf_done(&c->said);
    clear(c);
}

/* ---- starting ------------------------------------------------------------------------------------ */

static semel_status no_timer(struct semel_error *err)
{
    char why[CALL_ERRNO_TEXT];
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no timer: %s", semel__call_errno(errno, why));
}

static semel_status begin_call(struct exec_caller *exec, struct exec_call *c, struct semel_error *err)
{
    c->timer = semel__timer_new();
    if (c->timer < 0)
        return no_timer(err);
    semel_status status = exec_spawn(exec, c, err);
    if (status == SEMEL_OK)
        semel__timer_set(c->timer, exec->timeout_us);
    return status;
}

static void exec_start(struct semel_caller *caller, const struct semel_call *call)
{
    struct exec_caller *exec = exec_of(caller);
    struct exec_call *c = exec->calls;
    while (c < exec->calls + n_calls(exec) && c->state != CALL_FREE)
        c++;
    assert(c < exec->calls + n_calls(exec)); /* otherwise more calls run than were agreed */

    c->state = CALL_RUNS;
    c->call = *call;
    c->end = (struct semel_call_end){.tag = call->tag, .ask = call->ask};
    semel__buf_init(&c->said, SEMEL_CALL_ANSWER_MAX);
    c->end.status = begin_call(exec, c, &c->end.err);
    if (c->end.status == SEMEL_OK)
        return;
    c->state = CALL_ENDED;
    if (c->end.err.cls == SEMEL_CLASS_PERMANENT) /* because of the message, not of the route */
        semel__call_says(&c->end, c->reason, SEMEL_PERMANENT, c->end.err.text, (struct semel_str){0});
}

/* ---- pipes --------------------------------------------------------------------------------------- */

static void feed(struct exec_call *c)
{
    struct semel_str payload = c->call.msg->payload;
    while (c->given < payload.n) {
        ssize_t n = write(c->in, payload.p + c->given, payload.n - c->given);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            break; /* it does not read the rest */
        c->given += (size_t)n;
    }
    shut(&c->in);
}

typedef void (*take_fn)(struct exec_call *c, const char *p, size_t n);

/* Reads what is there, at most `max` bytes. */
static void drain(struct exec_call *c, int *fd, take_fn take, size_t max)
{
    char bytes[EXEC_READ];
    for (size_t taken = 0; *fd >= 0 && taken < max;) {
        ssize_t n = read(*fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            shut(fd);
            return;
        }
        take(c, bytes, (size_t)n);
        taken += (size_t)n;
    }
}

/* ---- ending -------------------------------------------------------------------------------------- */

static void end_call(struct exec_caller *exec, struct exec_call *c, const siginfo_t *info)
{
    drain(c, &c->out, keep_said, EXEC_DRAIN_MAX);
    drain(c, &c->err, keep_tail, EXEC_DRAIN_MAX);
    exec_judge(exec, c, info);
    shut_all(c);
    c->state = CALL_ENDED;
}

static void reap(struct exec_caller *exec, struct exec_call *c)
{
    siginfo_t info = {0};
    idtype_t kind = c->pidfd >= 0 ? P_PIDFD : P_PID;
    id_t id = c->pidfd >= 0 ? (id_t)c->pidfd : (id_t)c->pid;
    int looked = waitid(kind, id, &info, WEXITED | WNOHANG | WNOWAIT);
    if (looked == 0 && info.si_pid == 0)
        return;
    if (looked != 0 && errno == EINTR)
        return;
    if (looked != 0) { /* other code waits for our children, or SIGCHLD is ignored */
        end_call(exec, c, NULL);
        return;
    }
    if (c->stage != EXEC_RUNS)
        kill(-c->pid, SIGKILL); /* processes that it has left behind */
    waitid(kind, id, &info, WEXITED | WNOHANG);
    end_call(exec, c, &info);
}

static void next_stage(struct exec_caller *exec, struct exec_call *c)
{
    uint64_t times;
    if (read(c->timer, &times, sizeof times) != sizeof times)
        return;
    semel__timer_set(c->timer, EXEC_GRACE_US);
    switch (c->stage) {
    case EXEC_RUNS:
        kill(-c->pid, SIGTERM);
        c->stage = EXEC_ASKED;
        break;
    case EXEC_ASKED:
        kill(-c->pid, SIGKILL);
        c->stage = EXEC_KILLED;
        break;
    case EXEC_KILLED:
        if (exec->n_lingering < exec->base.concurrency)
            exec->lingering[exec->n_lingering++] = c->pid;
        end_call(exec, c, NULL);
        break;
    }
}

static void reap_lingering(struct exec_caller *exec)
{
    for (size_t i = 0; i < exec->n_lingering;) {
        siginfo_t info = {0};
        bool there = waitid(P_PID, (id_t)exec->lingering[i], &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0;
        if (there)
            i++;
        else
            exec->lingering[i] = exec->lingering[--exec->n_lingering];
    }
}

/* ---- waiting ------------------------------------------------------------------------------------- */

static void serve(struct exec_caller *exec, struct exec_call *c)
{
    if (c->ready[EXEC_IN] != 0)
        feed(c);
    if (c->ready[EXEC_OUT] != 0)
        drain(c, &c->out, keep_said, EXEC_READ);
    if (c->ready[EXEC_ERR] != 0)
        drain(c, &c->err, keep_tail, EXEC_READ);
    if (c->ready[EXEC_PID] != 0 || c->pidfd < 0)
        reap(exec, c);
    if (c->state == CALL_RUNS && c->ready[EXEC_TIMER] != 0)
        next_stage(exec, c);
}

/* Only open descriptors: poll refuses more entries than there may be descriptors. */
static void watch(struct exec_caller *exec, int fd, short events, short *ready)
{
    *ready = 0;
    if (fd < 0)
        return;
    exec->fds[exec->n_fds] = (struct pollfd){.fd = fd, .events = events};
    exec->ready[exec->n_fds++] = ready;
}

static void watch_call(struct exec_caller *exec, struct exec_call *c)
{
    watch(exec, c->pidfd, POLLIN, &c->ready[EXEC_PID]);
    watch(exec, c->in, POLLOUT, &c->ready[EXEC_IN]);
    watch(exec, c->out, POLLIN, &c->ready[EXEC_OUT]);
    watch(exec, c->err, POLLIN, &c->ready[EXEC_ERR]);
    watch(exec, c->timer, POLLIN, &c->ready[EXEC_TIMER]);
}

/* true: the wait is over: woken up, or the time has come. */
static bool rest(struct exec_caller *exec, int wake_fd, bool at_once)
{
    int wait_ms = at_once ? 0 : -1;
    short woken, late;
    exec->n_fds = 0;
    watch(exec, exec->timer, POLLIN, &late);
    watch(exec, wake_fd, POLLIN, &woken);
    for (size_t i = 0; i < n_calls(exec); i++) {
        struct exec_call *c = &exec->calls[i];
        if (c->state != CALL_RUNS)
            continue;
        watch_call(exec, c);
        if (c->pidfd < 0 && !at_once)
            wait_ms = EXEC_LOOK_MS;
    }
    if (poll(exec->fds, exec->n_fds, wait_ms) < 0)
        return errno != EINTR && poll(exec->fds, 1, EXEC_LOOK_MS) > 0; /* no memory: at least wait */
    for (size_t i = 0; i < exec->n_fds; i++)
        *exec->ready[i] = exec->fds[i].revents;
    for (size_t i = 0; i < n_calls(exec); i++)
        if (exec->calls[i].state == CALL_RUNS)
            serve(exec, &exec->calls[i]);
    return late != 0 || woken != 0;
}

static size_t report(struct exec_caller *exec, struct semel_call_end *ret_ends, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < n_calls(exec) && n < max; i++) {
        struct exec_call *c = &exec->calls[i];
        if (c->state != CALL_ENDED)
            continue;
        ret_ends[n++] = c->end;
        c->state = CALL_REPORTED;
    }
    return n;
}

static size_t exec_wait(struct semel_caller *caller, int wait_ms, int wake_fd, struct semel_call_end *ret_ends,
                        size_t max)
{
    struct exec_caller *exec = exec_of(caller);
    struct pipe_hold hold;
    size_t n;
    semel__pipe_hold(&hold);
    for (size_t i = 0; i < n_calls(exec); i++)
        if (exec->calls[i].state == CALL_REPORTED)
            forget(&exec->calls[i]);
    reap_lingering(exec);
    semel__timer_set(exec->timer, wait_ms < 0 ? -1 : (int64_t)wait_ms * 1000);
    rest(exec, -1, true); /* serves running calls even if others have ended already */
    for (bool over = wait_ms == 0;; over = rest(exec, wake_fd, false)) {
        n = report(exec, ret_ends, max);
        if (n > 0 || over)
            break;
    }
    semel__pipe_release(&hold);
    return n;
}

static void exec_cancel(struct semel_caller *caller)
{
    struct exec_caller *exec = exec_of(caller);
    for (size_t i = 0; i < n_calls(exec); i++) {
        struct exec_call *c = &exec->calls[i];
        if (c->state != CALL_RUNS || c->stage == EXEC_KILLED)
            continue;
        c->cancelled = c->stage == EXEC_RUNS;
        c->stage = EXEC_KILLED;
        kill(-c->pid, SIGKILL);
        semel__timer_set(c->timer, EXEC_GRACE_US);
    }
}

/* ---- making and freeing -------------------------------------------------------------------------- */

static void free_texts(char **texts)
{
    for (size_t i = 0; texts != NULL && texts[i] != NULL; i++)
        semel__call_wipe(texts[i]);
    semel__free(texts);
}

static void exec_free(struct semel_caller *caller)
{
    struct exec_caller *exec = exec_of(caller);
    for (size_t i = 0; exec->calls != NULL && i < n_calls(exec); i++) {
        if (exec->calls[i].state == CALL_RUNS) /* the caller gave up; nobody will reap it */
            kill(-exec->calls[i].pid, SIGKILL);
        forget(&exec->calls[i]);
    }
    shut(&exec->timer);
    semel__call_wipe(exec->effect.file);
    semel__call_wipe(exec->reconcile.file);
    free_texts(exec->effect.argv);
    free_texts(exec->reconcile.argv);
    free_texts(exec->env);
    semel__free(exec->stack);
    semel__free(exec->fds);
    semel__free(exec->ready);
    semel__free(exec->lingering);
    semel__free(exec->calls);
    semel__free(exec);
}

static const struct semel_caller_ops exec_ops = {
    .name = "exec",
    .start = exec_start,
    .wait = exec_wait,
    .cancel = exec_cancel,
    .free = exec_free,
};

static bool copy_program(struct exec_program *program, const char *file, const char *const *argv)
{
    size_t n = 0;
    if (argv == NULL)
        return true;
    while (argv[n] != NULL)
        n++;
    program->file = semel__call_copy(semel__str(file != NULL ? file : argv[0]));
    program->argv = semel__calloc(n + 1, sizeof *program->argv);
    for (size_t i = 0; i < n && program->argv != NULL; i++)
        if ((program->argv[i] = semel__call_copy(semel__str(argv[i]))) == NULL)
            return false;
    return program->file != NULL && program->argv != NULL;
}

static bool put_variable(char **at, struct semel_str name, struct semel_str value)
{
    struct semel_buf buf;
    semel__buf_init(&buf, name.n + value.n + 1);
    semel__buf_add(&buf, name.p, name.n);
    semel__buf_addz(&buf, "=");
    semel__buf_add(&buf, value.p, value.n);
    *at = buf.failed ? NULL : semel__call_copy(semel__buf_str(&buf));
    if (buf.p != NULL)
        explicit_bzero(buf.p, buf.n);
    semel__buf_done(&buf);
    return *at != NULL;
}

static semel_status copy_env(struct exec_caller *exec, const struct semel_pair *pairs, size_t n,
                             struct semel_error *err)
{
    bool path = false;
    exec->env = semel__calloc(n + 2, sizeof *exec->env);
    if (exec->env == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        struct semel_str name = pairs[i].name, value = pairs[i].value;
        bool ours = name.n >= 6 && memcmp(name.p, "SEMEL_", 6) == 0;
        bool bad = name.n == 0 || memchr(name.p, '=', name.n) != NULL || memchr(name.p, '\0', name.n) != NULL ||
                   (value.n > 0 && memchr(value.p, '\0', value.n) != NULL);
        if (ours || bad)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a variable of the environment %s",
                               ours ? "begins with SEMEL_: those are Semel's own" : "has no name, or a NUL byte in it");
        path |= semel__str_eqz(name, "PATH");
        if (!put_variable(&exec->env[i], name, value))
            return semel__fail_memory(err);
    }
    const char *inherited = getenv("PATH"); /* NOLINT(concurrency-mt-unsafe): nobody sets variables */
    if (!path && !put_variable(&exec->env[n], SEMEL_STR("PATH"), semel__str(inherited != NULL ? inherited : EXEC_PATH)))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

static semel_status fill(struct exec_caller *exec, const struct semel_exec_caller_settings *settings,
                         struct semel_error *err)
{
    size_t n = exec->base.concurrency;
    exec->timer = semel__timer_new();
    if (exec->timer < 0)
        return no_timer(err);
    exec->stack = semel__alloc(EXEC_CHILD_STACK);
    exec->fds = semel__calloc(2 + EXEC_FDS * n, sizeof *exec->fds);
    exec->ready = semel__calloc(2 + EXEC_FDS * n, sizeof *exec->ready);
    exec->lingering = semel__calloc(n, sizeof *exec->lingering);
    exec->calls = semel__calloc(n_calls(exec), sizeof *exec->calls);
    for (size_t i = 0; exec->calls != NULL && i < n_calls(exec); i++)
        clear(&exec->calls[i]);
    if (exec->stack == NULL || exec->fds == NULL || exec->ready == NULL || exec->lingering == NULL ||
        exec->calls == NULL || !semel__random_seed_os(&exec->rng) ||
        !copy_program(&exec->effect, settings->program, settings->argv) ||
        !copy_program(&exec->reconcile, settings->reconcile_program, settings->reconcile_argv))
        return semel__fail_memory(err);
    return copy_env(exec, settings->env, settings->n_env, err);
}

semel_status semel__exec_caller_new(struct semel_caller **ret, const struct semel_exec_caller_settings *settings,
                                    struct semel_error *err)
{
    if (settings->argv == NULL || settings->argv[0] == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is no program to start; name one");
    struct exec_caller *exec = semel__calloc(1, sizeof *exec);
    if (exec == NULL)
        return semel__fail_memory(err);
    exec->base.ops = &exec_ops;
    exec->base.concurrency = settings->concurrency > 0 ? settings->concurrency : 1;
    exec->base.can_ask = settings->reconcile_argv != NULL;
    exec->timeout_us = settings->timeout_us;
    exec->idempotent = settings->idempotent;
    exec->timer = -1;
    semel_status status = fill(exec, settings, err);
    if (status != SEMEL_OK) {
        exec_free(&exec->base);
        return status;
    }
    *ret = &exec->base;
    return SEMEL_OK;
}
