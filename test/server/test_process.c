/* SPDX-License-Identifier: MIT
 *
 * test_process.c: what the private servers of other tests stand on: a server is started, stopped, frozen, started again
 * on its ports and on others, and is gone with its folder whatever becomes of the test.
 */
#include "server/process.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/unit.h"

/* A shell that writes down that it is ready, and sleeps. Its first starts end at once. */
struct sleeper {
    struct server_process process;
    int prepared, failing;
};

static void prepare(void *at)
{
    struct sleeper *sleeper = at;

    sleeper->prepared++;
}

static void path_of(const struct sleeper *sleeper, const char *name, char out[96])
{
    snprintf(out, 96, "%s/%s", sleeper->process.dir, name);
}

static void launch(void *at)
{
    struct sleeper *sleeper = at;
    const bool fails = sleeper->prepared <= sleeper->failing;
    char path[96];

    path_of(sleeper, "ready", path);
    unlink(path);
    server_launch(&sleeper->process,
                  (const char *const[]){"sh", "-c", fails ? "exit 1" : "echo $WORD >ready; exec sleep 1000", NULL});
}

static bool answers(void *at)
{
    char path[96], text[16] = "";
    FILE *f;

    path_of(at, "ready", path);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    (void)!fgets(text, sizeof text, f);
    fclose(f);
    return strcmp(text, "yes\n") == 0;
}

static void set_environment(const void *at)
{
    (void)at;
    setenv("WORD", "yes", 1);
}

static const struct server_kind kind = {.name = "sleeper",
                                        .folder = "sleeper",
                                        .death = SIGKILL,
                                        .prepare = prepare,
                                        .launch = launch,
                                        .answers = answers,
                                        .environment = set_environment};
/* One that the kernel does not end for us. */
static const struct server_kind kind_left = {.name = "sleeper",
                                             .folder = "sleeper",
                                             .prepare = prepare,
                                             .launch = launch,
                                             .answers = answers,
                                             .environment = set_environment};

static void start(struct sleeper *sleeper, const struct server_kind *of, int failing)
{
    *sleeper = (struct sleeper){.failing = failing};
    server_make(&sleeper->process, of);
    server_start(&sleeper->process);
}

static void server_can_be_stopped_and_started_again_and_leaves_nothing(void **state)
{
    static const int signals[] = {SIGTERM, SIGKILL};
    struct sleeper sleeper;
    char dir[64];

    (void)state;
    start(&sleeper, &kind, 0);
    memcpy(dir, sleeper.process.dir, sizeof dir);
    for (size_t i = 0; i < COUNT(signals); i++) {
        const pid_t pid = sleeper.process.pid;
        server_stop(&sleeper.process, signals[i]);
        assert_int_equal(sleeper.process.pid, 0);
        assert_true(kill(pid, 0) != 0);
        server_stop(&sleeper.process, signals[i]); /* nothing */
        server_again(&sleeper.process);
        assert_int_equal(kill(sleeper.process.pid, 0), 0);
    }
    assert_int_equal(sleeper.prepared, 1);
    server_done(&sleeper.process, SIGTERM);
    assert_true(access(dir, F_OK) != 0);
    server_done(&sleeper.process, SIGTERM); /* nothing */
}

static void frozen_server_can_be_stopped(void **state)
{
    struct sleeper sleeper;
    siginfo_t info = {0};

    (void)state;
    start(&sleeper, &kind, 0);
    server_freeze(&sleeper.process);
    assert_int_equal(waitid(P_PID, (id_t)sleeper.process.pid, &info, WSTOPPED), 0);
    server_stop(&sleeper.process, SIGTERM);
    assert_int_equal(sleeper.process.pid, 0);
    server_done(&sleeper.process, SIGKILL);
}

static void server_that_ends_is_prepared_anew(void **state)
{
    struct sleeper sleeper;

    (void)state;
    start(&sleeper, &kind, 2);
    assert_int_equal(sleeper.prepared, 3);
    server_stop(&sleeper.process, SIGTERM);
    sleeper.failing = 3;
    assert_false(server_up(&sleeper.process));
    assert_int_equal(sleeper.process.pid, 0);
    server_done(&sleeper.process, SIGKILL);
}

static void program_is_run_to_its_end_and_says_how_it_was(void **state)
{
    struct sleeper sleeper = {0};

    (void)state;
    server_make(&sleeper.process, &kind);
    assert_true(server_run(&sleeper.process, SERVER_AS_OURSELVES, (const char *const[]){"true", NULL}));
    assert_false(server_run(&sleeper.process, SERVER_AS_ITSELF, (const char *const[]){"false", NULL}));
    assert_false(server_run(&sleeper.process, SERVER_AS_ITSELF, (const char *const[]){"/no/such/program", NULL}));
    server_done(&sleeper.process, SIGKILL);
}

/* Runs `child` in a process of its own; its exit code, and what it wrote to standard error. */
static int code_of(void (*child)(void), char *text, size_t size)
{
    int ends[2], status = 0;
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], 2);
        child();
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    n = read(ends[0], text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void never_starts(void)
{
    struct sleeper sleeper;

    start(&sleeper, &kind, 1000);
}

static void writes_and_gives_up(void)
{
    struct sleeper sleeper = {0};

    server_make(&sleeper.process, &kind);
    server_run(&sleeper.process, SERVER_AS_ITSELF, (const char *const[]){"echo", "so it was", NULL});
    server_fail(&sleeper.process, "enough");
}

static void failure_prints_the_log_and_leaves(void **state)
{
    char text[512];

    (void)state;
    assert_int_equal(code_of(never_starts, text, sizeof text), 1);
    assert_non_null(strstr(text, "sleeper of this test: it does not start"));
    assert_int_equal(code_of(writes_and_gives_up, text, sizeof text), 1);
    assert_non_null(strstr(text, "sleeper of this test: enough"));
    assert_non_null(strstr(text, "so it was"));
}

/* Ended: it may still be waited for by whoever has inherited it. */
static bool runs(const struct sleeper *sleeper)
{
    char path[64], cwd[64];

    snprintf(path, sizeof path, "/proc/%ld/cwd", (long)sleeper->process.pid);
    return readlink(path, cwd, sizeof cwd) > 0;
}

/* By the kernel, or, where that is missed, by the leash. */
static void server_and_folder_go_when_the_test_is_killed(void **state)
{
    const struct server_kind *const kinds[] = {&kind, &kind_left};
    struct sleeper theirs;
    int ends[2], status;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            start(&theirs, kinds[i], 0);
            if (write(ends[1], &theirs, sizeof theirs) == (ssize_t)sizeof theirs)
                raise(SIGKILL);
            _exit(1);
        }
        assert_int_equal(read(ends[0], &theirs, sizeof theirs), sizeof theirs);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        for (int tries = 0; access(theirs.process.dir, F_OK) == 0 || runs(&theirs); tries++) {
            assert_true(tries < 3000);
            poll(NULL, 0, 10);
        }
    }
    close(ends[0]);
    close(ends[1]);
}

static void port_is_free_until_somebody_listens(void **state)
{
    (void)state;
    assert_true(server_port() > 0);
    assert_false(server_listens(server_port()));
}

/* A port of which another test was told, and on which nobody listens yet, is not given again. */
static void port_is_given_to_one_process(void **state)
{
    enum { N = 400 }; /* of 22,528: two would meet */
    int ours[N], theirs[N], ends[2];
    (void)state;
    for (int i = 0; i < N; i++)
        ours[i] = server_port();
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < N; i++)
            theirs[i] = server_port();
        _exit(write(ends[1], theirs, sizeof theirs) == sizeof theirs ? 0 : 1);
    }
    assert_int_equal(read(ends[0], theirs, sizeof theirs), sizeof theirs);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++)
            assert_true(ours[i] > 0 && ours[i] != theirs[k] && (i == k || ours[i] != ours[k]));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(server_can_be_stopped_and_started_again_and_leaves_nothing),
        cmocka_unit_test(frozen_server_can_be_stopped),
        cmocka_unit_test(server_that_ends_is_prepared_anew),
        cmocka_unit_test(program_is_run_to_its_end_and_says_how_it_was),
        cmocka_unit_test(failure_prints_the_log_and_leaves),
        cmocka_unit_test(server_and_folder_go_when_the_test_is_killed),
        cmocka_unit_test(port_is_free_until_somebody_listens),
        cmocka_unit_test(port_is_given_to_one_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
