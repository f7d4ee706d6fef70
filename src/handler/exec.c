/* SPDX-License-Identifier: MIT
 *
 * exec.c: effects by programs: many children of one thread, and everything that they wait for in one poll.
 *
 * A call ends when its program does. What the program has started and left behind may hold its pipes for as long as it
 * likes: what lies in them then is taken, and nobody waits for more. When the time is over the whole process group gets
 * SIGTERM, two seconds later SIGKILL, and two seconds after that the call ends even if the kernel cannot get rid of the
 * program (a dead file server); it is reaped when it goes. A child is only ever waited for by its own id.
 *
 * Invariants: nothing here blocks but poll; a group is signalled only while its leader is not reaped, so that the
 * number cannot be somebody else's.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "handler/exec_private.h"

#define EXEC_GRACE_US 2000000
#define EXEC_LOOK_MS 20 /* how often a child is looked at where there is no pidfd */
#define EXEC_READ ((size_t)64 * 1024)
#define EXEC_DRAIN_MAX ((size_t)1 << 20) /* what a pipe may hold */
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
    semel_status status = semel__exec_spawn(exec, c, err);
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
    assert(c < exec->calls + n_calls(exec)); /* else more calls run than were agreed upon */

    c->state = CALL_RUNS;
    c->call = *call;
    c->end = (struct semel_call_end){.tag = call->tag, .ask = call->ask};
    semel__buf_init(&c->said, SEMEL_CALL_ANSWER_MAX);
    c->end.status = begin_call(exec, c, &c->end.err);
    if (c->end.status == SEMEL_OK)
        return;
    c->state = CALL_ENDED;
    if (c->end.err.cls == SEMEL_CLASS_PERMANENT) /* the message's fault, not the route's */
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
            break; /* it does not want the rest */
        c->given += (size_t)n;
    }
    shut(&c->in);
}

typedef void (*take_fn)(struct exec_call *c, const char *p, size_t n);

/* At most `max` bytes; what is there. */
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
    drain(c, &c->out, semel__exec_take_said, EXEC_DRAIN_MAX);
    drain(c, &c->err, semel__exec_take_tail, EXEC_DRAIN_MAX);
    semel__exec_judge(exec, c, info);
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
    if (looked != 0) { /* somebody else waits for our children, or SIGCHLD is ignored */
        end_call(exec, c, NULL);
        return;
    }
    if (c->stage != EXEC_RUNS)
        kill(-c->pid, SIGKILL); /* what it has left behind */
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
        drain(c, &c->out, semel__exec_take_said, EXEC_READ);
    if (c->ready[EXEC_ERR] != 0)
        drain(c, &c->err, semel__exec_take_tail, EXEC_READ);
    if (c->ready[EXEC_PID] != 0 || c->pidfd < 0)
        reap(exec, c);
    if (c->state == CALL_RUNS && c->ready[EXEC_TIMER] != 0)
        next_stage(exec, c);
}

/* Only what is open: poll refuses more entries than there may be descriptors. */
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

/* true: the wait is over, somebody woke us or the time has come. */
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
        return errno != EINTR && poll(exec->fds, 1, EXEC_LOOK_MS) > 0; /* no memory: at least the time is kept */
    for (size_t i = 0; i < exec->n_fds; i++)
        *exec->ready[i] = exec->fds[i].revents;
    for (size_t i = 0; i < n_calls(exec); i++)
        if (exec->calls[i].state == CALL_RUNS)
            serve(exec, &exec->calls[i]);
    return late != 0 || woken != 0;
}

static size_t tell(struct exec_caller *exec, struct semel_call_end *ret_ends, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < n_calls(exec) && n < max; i++) {
        struct exec_call *c = &exec->calls[i];
        if (c->state != CALL_ENDED)
            continue;
        ret_ends[n++] = c->end;
        c->state = CALL_TOLD;
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
        if (exec->calls[i].state == CALL_TOLD)
            forget(&exec->calls[i]);
    reap_lingering(exec);
    semel__timer_set(exec->timer, wait_ms < 0 ? -1 : (int64_t)wait_ms * 1000);
    rest(exec, -1, true); /* those that run are served even where others have ended already */
    for (bool over = wait_ms == 0;; over = rest(exec, wake_fd, false)) {
        n = tell(exec, ret_ends, max);
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
        if (exec->calls[i].state == CALL_RUNS) /* somebody has lost patience; nobody will reap it */
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
