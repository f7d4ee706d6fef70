/* SPDX-License-Identifier: MIT
 *
 * world_child.c: workers as real processes: started, stopped, killed, waited for. See world.h.
 */
#define _GNU_SOURCE /* pipe2 */
#include "fault/world.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#ifdef SEMEL_WITH_POSTGRES
#include "support/world_pg.h"
#endif

#define DEADLINE_MS 40000
#define ARGS_MAX 40

static const char *worker_path;

static int run_on(const char *program, const char *store, const struct CMUnitTest *tests, size_t n)
{
    int failed;

    if (strcmp(store, "sqlite") == 0)
        return _cmocka_run_group_tests(program, tests, n, NULL, NULL);
    if (strcmp(store, "postgres") != 0) {
        fprintf(stderr, "%s: the store is %s; it must be sqlite or postgres\n", program, store);
        return 1;
    }
#ifdef SEMEL_WITH_POSTGRES
    world_pg_start(books_prepare);
    failed = _cmocka_run_group_tests(program, tests, n, NULL, NULL);
    world_pg_done();
    return failed;
#else
    (void)tests;
    (void)n;
    (void)failed;
    printf("skipped: built without PostgreSQL\n");
    return 77;
#endif
}

int world_group(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    const char *only = getenv("SEMEL_TEST_ONLY");

    if (only != NULL)
        cmocka_set_test_filter(only);
    signal(SIGPIPE, SIG_IGN); /* a child that died is a finding, not the end of the test */
    return run_on(argv[0], argc > 2 ? argv[2] : "sqlite", tests, n);
}

int world_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    worker_path = argc > 1 ? argv[1] : getenv("SEMEL_TEST_WORKER");
    if (worker_path == NULL || access(worker_path, X_OK) != 0) {
        fprintf(stderr, "%s: give the path of the worker program, or set SEMEL_TEST_WORKER\n", argv[0]);
        return 1;
    }
#ifndef SEMEL_POINTS
    printf("skipped: built without crash points (-Dpoints=true)\n");
    return 77;
#endif
    return world_group(argc, argv, tests, n);
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static _Noreturn void become_worker(const struct world *w, const char *order, const char *const *args, int in, int out)
{
    char texts[3][BOOKS_URL + 16], label[64];
    const char *argv[ARGS_MAX] = {worker_path, texts[0], texts[1], texts[2]};
    const char *equals = order != NULL ? strchr(order, '=') : NULL;
    size_t n = 4;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_DFL);
    snprintf(texts[0], sizeof texts[0], "store=%s", w->store);
    snprintf(texts[1], sizeof texts[1], "spool=%s", w->spool);
    snprintf(texts[2], sizeof texts[2], "dir=%s", w->dir);
    for (; *args != NULL && n < ARGS_MAX - 1; args++)
        argv[n++] = *args;
    argv[n] = NULL;
    if (equals != NULL) {
        snprintf(label, sizeof label, "%.*s", (int)(equals - order), order);
        setenv(label, equals + 1, 1);
    }
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0)
        _exit(126);
    execv(worker_path, (char *const *)argv);
    _exit(127);
}

struct child *world_start(struct world *w, const char *order, const char *const *args)
{
    struct child *child = w->children;
    int in[2], out[2];

    while (child < w->children + WORLD_CHILDREN && child->pid != 0)
        child++;
    assert_true(child < w->children + WORLD_CHILDREN);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    child->pid = fork();
    assert_true(child->pid >= 0);
    if (child->pid == 0)
        become_worker(w, order, args, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    child->in = in[1];
    child->out = out[0];
    return child;
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

static int wait_for(struct child *child, int options)
{
    const int64_t give_up_us = semel__now(&semel__clock_real) + DEADLINE_MS * INT64_C(1000);
    int status = 0;
    pid_t pid;

    while ((pid = waitpid(child->pid, &status, WNOHANG | options)) == 0 || (pid < 0 && errno == EINTR)) {
        if (semel__now(&semel__clock_real) > give_up_us)
            fail_msg("worker %ld does not end", (long)child->pid);
        poll(NULL, 0, 1);
    }
    assert_int_equal(pid, child->pid);
    return status;
}

static void forget(struct child *child)
{
    if (child->in >= 0)
        close(child->in);
    if (child->out >= 0)
        close(child->out);
    *child = (struct child){0};
}

int world_end(struct world *w, struct child *child)
{
    int status;

    (void)w;
    close(child->in); /* the end of what it reads */
    child->in = -1;
    status = wait_for(child, 0);
    forget(child);
    return status;
}

void world_stopped(struct world *w, struct child *child)
{
    const int status = wait_for(child, WUNTRACED);

    (void)w;
    assert_true(WIFSTOPPED(status));
}

bool killed(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

void world_run(struct world *w, const char *const *args)
{
    const int status = world_end(w, world_start(w, NULL, args));

    if (status != 0)
        fail_msg("the worker ended with status 0x%x", (unsigned)status);
}

void world_crash(struct world *w, const char *at, const char *const *args)
{
    char order[96];
    int status;

    snprintf(order, sizeof order, "SEMEL_CRASH_AT=%s", at);
    status = world_end(w, world_start(w, order, args));
    if (!killed(status))
        fail_msg("the worker was to die at %s and ended with status 0x%x", at, (unsigned)status);
}

void world_reap(struct world *w)
{
    for (struct child *child = w->children; child < w->children + WORLD_CHILDREN; child++) {
        if (child->pid == 0)
            continue;
        kill(child->pid, SIGKILL);
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        forget(child);
    }
}

/* ---- talking ------------------------------------------------------------------------------------------ */

void world_say(struct child *child, const char *text)
{
    assert_int_equal(write(child->in, text, strlen(text)), strlen(text));
}

void world_hear(struct child *child, char *line, size_t size)
{
    struct pollfd ready = {.fd = child->out, .events = POLLIN};
    size_t n = 0;

    while (n + 1 < size) {
        if (poll(&ready, 1, DEADLINE_MS) != 1 || read(child->out, line + n, 1) != 1)
            fail_msg("worker %ld does not answer", (long)child->pid);
        if (line[n] == '\n')
            break;
        n++;
    }
    line[n] = '\0';
}

/* The line of a file that begins with `text`; false: there is none. */
static bool find_line(struct world *w, const char *file, const char *text, char *line, size_t size)
{
    char path[256];
    bool found = false;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", w->dir, file);
    f = fopen(path, "re");
    while (f != NULL && !found && fgets(line, (int)size, f) != NULL)
        found = strncmp(line, text, strlen(text)) == 0;
    if (f != NULL)
        fclose(f);
    return found;
}

long world_report(struct world *w, const char *name, const char *what)
{
    char file[96], key[96], line[512];

    snprintf(file, sizeof file, "report.%s", name);
    snprintf(key, sizeof key, "%s ", what);
    if (!find_line(w, file, key, line, sizeof line))
        fail_msg("%s has no %s", file, what);
    return strtol(line + strlen(key), NULL, 10);
}

bool world_alerted(struct world *w, const char *text)
{
    char line[512];

    return find_line(w, "alerts", text, line, sizeof line);
}
