/* SPDX-License-Identifier: MIT
 *
 * check_online.c: who asks, how long, and what came of it. See online.h.
 *
 * Invariants: one process asks at a time; it is gone before the next one is started, and it never returns from
 * start(). An answer that is cut or foreign ends the group as a failure, never as an answer.
 */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/online.h"

/* Questions end by themselves after ONLINE_ASK_MS; this is for what does not keep to that. */
#define PATIENCE_MS (ONLINE_ASK_MS + 2000)
#define ANSWERS_MAX 50000

_Static_assert(sizeof(struct online_answer) <= 4096, "a pipe takes it in one piece");

const char *online_result_name(enum online_result result)
{
    static const char *const names[] = {"ok", "warning", "failed", "failed"};
    return names[result];
}

/* ---- asking -------------------------------------------------------------------------------------- */

static void put(const struct online_asker *asker, const struct online_answer *answer)
{
    ssize_t n;
    do
        n = write(asker->fd, answer, sizeof(*answer));
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(*answer))
        _exit(CLI_FAILED); /* nobody listens any more */
}

void online_ask(const struct online_asker *asker, const char *question)
{
    struct online_answer answer = {.result = ONLINE_ASKING, .route = asker->route};
    semel__str_show(answer.question, sizeof(answer.question), semel__str(question));
    put(asker, &answer);
}

void online_tell(const struct online_asker *asker, enum online_result result, const char *question, const char *fmt,
                 ...)
{
    struct online_answer answer = {.result = result, .route = asker->route};
    char text[sizeof(answer.text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    semel__str_show(answer.question, sizeof(answer.question), semel__str(question));
    semel__str_show(answer.text, sizeof(answer.text), semel__str(text));
    put(asker, &answer);
}

typedef void (*online_group)(struct online_asker *asker);

struct child {
    pid_t pid;
    int fd;
};

static bool start(struct online_asker *asker, online_group group, struct child *ret)
{
    const pid_t parent = getpid();
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            _exit(CLI_FAILED);
        close(ends[0]);
        asker->fd = ends[1];
        group(asker);
        _exit(CLI_OK);
    }
    close(ends[1]);
    if (pid < 0)
        close(ends[0]);
    *ret = (struct child){pid, ends[0]};
    return pid > 0;
}

/* ---- what came of it ----------------------------------------------------------------------------- */

static bool keep(struct cli *cli, const struct online_answer *answer, struct online_answers *all)
{
    struct online_answer *copy = semel__arena_alloc(&cli->arena, 1, sizeof(*copy));
    if (copy == NULL || all->n == ANSWERS_MAX)
        return false;
    *copy = *answer;
    all->at[all->n++] = copy;
    all->warnings += answer->result == ONLINE_WARNING;
    all->failures += answer->result == ONLINE_FAILED;
    return true;
}

/* The next answer. 0: there are no more; -1: none came in time, or it is none. */
static int receive(int fd, struct online_answer *ret)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    int n;
    do
        n = poll(&poller, 1, PATIENCE_MS);
    while (n < 0 && errno == EINTR);
    ssize_t got = n > 0 ? read(fd, ret, sizeof(*ret)) : -1;
    ret->question[sizeof(ret->question) - 1] = ret->text[sizeof(ret->text) - 1] = '\0';
    return got == 0 ? 0 : got == (ssize_t)sizeof(*ret) ? 1 : -1;
}

static bool ended_well(pid_t pid)
{
    int how = 0;
    pid_t got;
    do
        got = waitpid(pid, &how, 0);
    while (got < 0 && errno == EINTR);
    return got == pid && WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

static bool ask_group(struct cli *cli, struct online_asker *asker, online_group group, struct online_answers *all)
{
    struct online_answer last = {.result = ONLINE_FAILED, .route = asker->route, .question = "asking"};
    struct online_answer answer;
    struct child child;
    bool ok = true;
    int got = 1;
    snprintf(last.text, sizeof(last.text), "no process can be started for it");
    if (!start(asker, group, &child))
        return keep(cli, &last, all);
    while (ok && (got = receive(child.fd, &answer)) > 0) {
        if (answer.result == ONLINE_ASKING)
            last = answer;
        else
            ok = keep(cli, &answer, all);
    }
    if (got < 0)
        kill(child.pid, SIGKILL);
    close(child.fd);
    bool well = ended_well(child.pid);
    if (!ok || (got == 0 && well))
        return ok;
    last.result = ONLINE_FAILED;
    snprintf(last.text, sizeof(last.text), "%s",
             got < 0 ? "cannot be reached: there was no answer in time" : "the process that asked has died");
    return keep(cli, &last, all);
}

/* ---- all of it ----------------------------------------------------------------------------------- */

static bool ask_all(struct cli *cli, const struct semel_conf *conf, struct online_answers *all)
{
    struct online_asker asker = {.conf = conf, .route = ONLINE_STORE, .fd = -1};
    bool ok = ask_group(cli, &asker, online_store, all);
    for (size_t i = 0; ok && i < conf->n_routes; i++) {
        asker.route = i;
        ok = ask_group(cli, &asker, online_source, all) && ask_group(cli, &asker, online_handler, all);
    }
    return ok;
}

/* What the store says of a route's statement stands with the route. */
static bool sort_by_route(struct cli *cli, const struct semel_conf *conf, struct online_answers *all)
{
    struct online_answer **sorted = semel__arena_alloc(&cli->arena, all->n + 1, sizeof(struct online_answer *));
    size_t n = 0;
    if (sorted == NULL)
        return false;
    for (size_t i = 0; i <= conf->n_routes; i++)
        for (size_t k = 0; k < all->n; k++)
            if (all->at[k]->route == (i == 0 ? ONLINE_STORE : i - 1))
                sorted[n++] = all->at[k];
    all->at = sorted;
    all->n = n;
    return true;
}

bool online_run(struct cli *cli, const struct semel_conf *conf, struct online_answers *ret)
{
    *ret = (struct online_answers){.at = semel__arena_alloc(&cli->arena, ANSWERS_MAX, sizeof(struct online_answer *))};
    return ret->at != NULL && ask_all(cli, conf, ret) && sort_by_route(cli, conf, ret);
}
