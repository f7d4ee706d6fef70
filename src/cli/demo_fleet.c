/* SPDX-License-Identifier: MIT
 *
 * demo_fleet.c: the workers of the demo as processes of this same program.
 *
 * A worker is a fork and an exec of /proc/self/exe with `demo worker ...`. The kernel kills it when the demo dies, by
 * whatever death (PR_SET_PDEATHSIG), so none is left behind. It ignores the terminal's Ctrl-C: the demo ends it. What
 * it prints goes to a file in the folder.
 *
 * Invariants: between fork and exec only async-signal-safe functions are called. Every process that was started is
 * waited for. A worker that ended without being killed or told to is a failure of the demo, never overlooked.
 */
#include "cli/demo.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define STOP_MS 10000
#define LOOK_AGAIN_MS 5
#define EXEC_FAILED 127

bool demo_fleet_open(struct demo_fleet *fleet, const struct demo_settings *set, struct semel_error *err)
{
    *fleet = (struct demo_fleet){.set = set, .n = (int)set->workers};
    fleet->log_fd = open(DEMO_LOG, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fleet->log_fd < 0)
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the file " DEMO_LOG " cannot be made: error %d", errno);
    return fleet->log_fd >= 0;
}

/* ---- starting --------------------------------------------------------------------------------------------- */

/* In the child. */
static _Noreturn void become_worker(char *const argv[], int log_fd, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, usual = {.sa_handler = SIG_DFL};

    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGTERM, &usual, NULL);
    sigaction(SIGHUP, &usual, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || nothing < 0 || dup2(nothing, 0) < 0 ||
        dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0)
        _exit(EXEC_FAILED);
    execv("/proc/self/exe", argv);
    _exit(EXEC_FAILED);
}

static bool start_one(struct demo_fleet *fleet, int i, struct semel_error *err)
{
    char program[] = "semel", demo[] = "demo", worker[] = "worker", with[] = "with", without[] = "without";
    char seed[24], number[24];
    char *const argv[] = {program, demo, worker, fleet->set->without ? without : with, seed, number, NULL};
    const pid_t parent = getpid();
    pid_t pid;

    snprintf(seed, sizeof seed, "%lld", (long long)fleet->set->seed);
    snprintf(number, sizeof number, "%lld", (long long)++fleet->started);
    pid = fork();
    if (pid == 0)
        become_worker(argv, fleet->log_fd, parent);
    if (pid < 0) {
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a worker cannot be started: error %d of fork(2)",
                    errno);
        return false;
    }
    fleet->pids[i] = pid;
    return true;
}

bool demo_fleet_start(struct demo_fleet *fleet, struct semel_error *err)
{
    for (int i = 0; i < fleet->n; i++)
        if (fleet->pids[i] == 0 && !start_one(fleet, i, err))
            return false;
    return true;
}

int demo_fleet_alive(const struct demo_fleet *fleet)
{
    int alive = 0;

    for (int i = 0; i < fleet->n; i++)
        alive += fleet->pids[i] != 0;
    return alive;
}

/* ---- ending ----------------------------------------------------------------------------------------------- */

static bool ended_by_itself(pid_t pid, int how, struct semel_error *err)
{
    semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN,
                WIFSIGNALED(how) ? "worker %ld died by itself, of signal %d; see " DEMO_LOG
                                 : "worker %ld ended by itself, with status %d; see " DEMO_LOG,
                (long)pid, WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    return false;
}

/* Waits for the worker if `wait`; *ret_gone: it is gone, and *ret_how is how. */
static void reap(struct demo_fleet *fleet, int i, bool wait, bool *ret_gone, int *ret_how)
{
    pid_t got;

    do
        got = waitpid(fleet->pids[i], ret_how, wait ? 0 : WNOHANG);
    while (got < 0 && errno == EINTR);
    *ret_gone = got == fleet->pids[i];
    if (*ret_gone)
        fleet->pids[i] = 0;
}

bool demo_fleet_kill(struct demo_fleet *fleet, int i, struct semel_error *err)
{
    const pid_t pid = fleet->pids[i];
    bool gone;
    int how = 0;

    if (pid == 0)
        return true;
    kill(pid, SIGKILL);
    reap(fleet, i, true, &gone, &how);
    fleet->pids[i] = 0;
    if (gone && !(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL))
        return ended_by_itself(pid, how, err); /* it was faster */
    fleet->killed++;
    return true;
}

bool demo_fleet_check(struct demo_fleet *fleet, struct semel_error *err)
{
    for (int i = 0; i < fleet->n; i++) {
        const pid_t pid = fleet->pids[i];
        bool gone = false;
        int how = 0;
        if (pid == 0)
            continue;
        reap(fleet, i, false, &gone, &how);
        if (gone)
            return ended_by_itself(pid, how, err);
    }
    return true;
}

/* Ended as it was told to. A worker that had only just been started may not have been listening yet. */
static bool ended_well(int how)
{
    return (WIFEXITED(how) && WEXITSTATUS(how) == 0) || (WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
}

bool demo_fleet_stop(struct demo_fleet *fleet, struct semel_error *err)
{
    const int64_t until_us = semel__time_add(semel__now(&semel__clock_real), STOP_MS * 1000);
    bool well = true;

    for (int i = 0; i < fleet->n; i++)
        if (fleet->pids[i] != 0)
            kill(fleet->pids[i], SIGTERM);
    while (demo_fleet_alive(fleet) > 0 && semel__now(&semel__clock_real) < until_us) {
        for (int i = 0; i < fleet->n; i++) {
            const pid_t pid = fleet->pids[i];
            bool gone = false;
            int how = 0;
            if (pid != 0)
                reap(fleet, i, false, &gone, &how);
            if (gone && !ended_well(how))
                well = ended_by_itself(pid, how, err);
        }
        poll(NULL, 0, LOOK_AGAIN_MS);
    }
    if (demo_fleet_alive(fleet) == 0)
        return well;
    semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN, "%d workers did not stop within %d s", demo_fleet_alive(fleet),
                STOP_MS / 1000);
    return false;
}

void demo_fleet_close(struct demo_fleet *fleet)
{
    const int64_t killed = fleet->killed;

    for (int i = 0; i < fleet->n; i++)
        demo_fleet_kill(fleet, i, NULL);
    fleet->killed = killed;
    if (fleet->log_fd > 0)
        close(fleet->log_fd);
    fleet->log_fd = 0;
}
