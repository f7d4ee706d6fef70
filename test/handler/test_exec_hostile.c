/* SPDX-License-Identifier: MIT
 *
 * test_exec_hostile.c: programs that do not read, do not stop, do not end, leave others behind; and many at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "handler/program_rig.h"

static struct program_rig rig;

static int set_up(void **state)
{
    (void)state;
    program_rig_start(&rig);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    program_rig_stop(&rig);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left to be reaped */
    assert_int_equal(errno, ECHILD);
    return 0;
}

static long pid_in(const char *name)
{
    return strtol(program_text(&rig, name), NULL, 10);
}

/* ---- the time-out -------------------------------------------------------------------------------- */

/* T11 */
static void a_program_that_takes_too_long_is_stopped_and_its_outcome_unknown(void **state)
{
    static const char *const scripts[] = {
        "exec sleep 300",
        "trap 'exit 0' TERM; sleep 300 & wait", /* it says that it is done; who believes that? */
        "sleep 300; echo 1",
    };
    (void)state;
    rig.settings.timeout_us = 200000;
    for (size_t i = 0; i < 2 * COUNT(scripts); i++) {
        rig.settings.idempotent = i % 2 == 1;
        struct semel_call_end *end = program_run(&rig, scripts[i / 2]);
        assert_result(end, i % 2 == 1 ? SEMEL_TRANSIENT : SEMEL_MAYBE);
        assert_non_null(strstr(end->reason.p, "time"));
        assert_false(semel__str_given(end->outcome));
    }
}

static void a_program_that_ignores_sigterm_is_killed_with_all_that_it_started(void **state)
{
    (void)state;
    rig.settings.timeout_us = 200000;
    struct semel_call_end *end =
        program_run(&rig, "trap '' TERM; sleep 300 & echo $! > $DIR/child; echo $$ > $DIR/self; wait; wait; sleep 300");
    assert_result(end, SEMEL_MAYBE);
    program_wait_gone(pid_in("self"));
    program_wait_gone(pid_in("child"));
}

static void what_a_stopped_program_leaves_behind_is_killed(void **state)
{
    (void)state;
    rig.settings.timeout_us = 300000;
    assert_result(program_run(&rig, "(trap '' TERM; sleep 300 & echo $! > $DIR/child; wait; wait) & "
                                    "while [ ! -s $DIR/child ]; do :; done; exec sleep 300"),
                  SEMEL_MAYBE);
    program_wait_gone(pid_in("child"));
}

/* ---- pipes --------------------------------------------------------------------------------------- */

/* A process whose SIGPIPE is not ignored is not killed by it. */
static void a_program_need_not_read(void **state)
{
    static char large[8 << 20];
    (void)state;
    rig.msg.payload = (struct semel_str){large, sizeof large};
    assert_result(program_run(&rig, "exit 0"), SEMEL_DONE);
    assert_result(program_run(&rig, "exec 0<&-; echo 1 > $DIR/x; exit 0"), SEMEL_DONE);
    assert_str(program_run(&rig, "head -c 1 > /dev/null; echo 7")->outcome, "7\n");
    rig.settings.timeout_us = 200000;
    assert_result(program_run(&rig, "exec sleep 300"), SEMEL_MAYBE);
}

static void a_program_may_print_a_gigabyte(void **state)
{
    (void)state;
    struct semel_call_end *end = program_run(&rig, "head -c 1073741824 /dev/zero; exit 0");
    assert_result(end, SEMEL_DONE);
    assert_false(semel__str_given(end->outcome));
    end = program_run(&rig, "head -c 67108864 /dev/zero >&2; printf '\\nenough\\n' >&2; exit 75");
    assert_str(end->reason, "exit 75: enough");
    rig.settings.timeout_us = 200000;
    assert_result(program_run(&rig, "while :; do echo endless; echo endless >&2; done"), SEMEL_MAYBE);
}

static void a_call_ends_with_its_program_though_another_holds_the_pipes(void **state)
{
    (void)state;
    struct semel_call_end *end = program_run(&rig, "sleep 300 & echo $! > $DIR/child; echo 5; echo why >&2; exit 0");
    long child = pid_in("child");
    assert_result(end, SEMEL_DONE);
    assert_str(end->outcome, "5\n");
    assert_true(program_alive(child)); /* what a program leaves behind on purpose is its own affair */
    kill((pid_t)child, SIGKILL);
    program_wait_gone(child);
    end = program_run(&rig, "(while :; do echo endless; done) & echo $! > $DIR/loud; exit 75");
    assert_result(end, SEMEL_TRANSIENT);
    program_wait_gone(pid_in("loud")); /* by SIGPIPE */
}

static void a_program_that_closes_everything_is_waited_for(void **state)
{
    (void)state;
    rig.msg.payload = SEMEL_STR("x");
    assert_result(program_run(&rig, "exec <&- >&- 2>&-; (exit 0) ; exit 77"), SEMEL_REJECTED);
}

/* ---- dying with us ------------------------------------------------------------------------------- */

static void *start_and_end(void *ctx)
{
    (void)ctx;
    rig.argv[2] = "echo $$ > $DIR/self; exec sleep 300";
    program_start(&rig, &rig.msg, false);
    program_text(&rig, "self");
    return NULL;
}

static void a_program_dies_with_the_thread_that_started_it(void **state)
{
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, start_and_end, NULL), 0);
    pthread_join(thread, NULL);
    struct semel_call_end *end = program_wait(&rig);
    assert_result(end, SEMEL_MAYBE);
    assert_str(end->reason, "killed by signal 9");
}

static void a_program_dies_with_our_process(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        start_and_end(NULL);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    program_wait_gone(pid_in("self"));
}

/* Whoever ignores SIGCHLD never learns how a child ended. */
static void an_end_that_nobody_knows_is_unknown(void **state)
{
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    struct semel_call_end *end = program_run(&rig, "exit 0");
    signal(SIGCHLD, SIG_DFL);
    assert_result(end, SEMEL_MAYBE);
}

/* ---- many, woken, given up ----------------------------------------------------------------------- */

static void fifty_programs_run_at_a_time(void **state)
{
    static struct semel__msg msgs[50];
    static char ids[50][8];
    struct semel_call_end ends[7];
    bool ended[50] = {false};
    (void)state;
    rig.settings.concurrency = COUNT(msgs);
    rig.argv[2] = "echo x > $DIR/$SEMEL_MESSAGE_ID; read x < $DIR/gate; echo $SEMEL_MESSAGE_ID";
    assert_int_equal(mkfifo(program_path(&rig, "gate"), 0600), 0);
    for (size_t i = 0; i < COUNT(msgs); i++) {
        snprintf(ids[i], sizeof ids[i], "%zu", i);
        msgs[i] = rig.msg;
        msgs[i].id = semel__str(ids[i]);
        program_start(&rig, &msgs[i], false);
    }
    for (size_t i = 0; i < COUNT(msgs); i++) /* all of them are there before any may end */
        program_text(&rig, ids[i]);
    assert_int_equal(program_look(&rig, 0, -1, ends, COUNT(ends)), 0);
    for (size_t left = COUNT(msgs); left > 0;) {
        close(open(program_path(&rig, "gate"), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
        size_t n = program_look(&rig, 10, -1, ends, COUNT(ends));
        left -= n;
        for (size_t i = 0; i < n; i++) {
            size_t at = (size_t)((struct semel__msg *)ends[i].tag - msgs);
            assert_result(&ends[i], SEMEL_DONE);
            assert_int_equal(strtoul(ends[i].outcome.p, NULL, 10), at);
            assert_false(ended[at]);
            ended[at] = true;
        }
    }
}

static void a_wait_ends_when_it_is_woken_or_its_time_is_over(void **state)
{
    struct semel_call_end ends[2];
    uint64_t one = 1;
    int wake = eventfd(0, EFD_CLOEXEC);
    (void)state;
    rig.argv[2] = "exec sleep 300";
    program_start(&rig, &rig.msg, false);
    assert_int_equal(program_look(&rig, 20, wake, ends, COUNT(ends)), 0);
    assert_int_equal(program_look(&rig, 0, -1, ends, COUNT(ends)), 0);
    assert_int_equal(write(wake, &one, sizeof one), sizeof one);
    assert_int_equal(program_look(&rig, -1, wake, ends, COUNT(ends)), 0); /* or for ever */
    close(wake);
}

static void a_program_that_is_given_up_is_killed_with_its_group(void **state)
{
    (void)state;
    rig.argv[2] = "trap '' TERM; sleep 300 & echo $! > $DIR/child; wait";
    program_start(&rig, &rig.msg, false);
    long child = pid_in("child");
    semel__caller_cancel(rig.caller);
    struct semel_call_end *end = program_wait(&rig);
    assert_result(end, SEMEL_MAYBE);
    assert_non_null(strstr(end->reason.p, "cancelled"));
    program_wait_gone(child);
}

static void strings_of_an_end_live_until_the_next_wait(void **state)
{
    (void)state;
    rig.settings.concurrency = 1;
    rig.argv[2] = "echo 1; exit 0";
    for (int i = 0; i < 10; i++) {
        program_start(&rig, &rig.msg, false);
        struct semel_call_end first = *program_wait(&rig);
        program_start(&rig, &rig.msg, false); /* before the next wait */
        assert_str(first.outcome, "1\n");
        assert_result(program_wait(&rig), SEMEL_DONE);
    }
}

#define ON_RIG(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(a_program_that_takes_too_long_is_stopped_and_its_outcome_unknown),
        ON_RIG(a_program_that_ignores_sigterm_is_killed_with_all_that_it_started),
        ON_RIG(what_a_stopped_program_leaves_behind_is_killed),
        ON_RIG(a_program_need_not_read),
        ON_RIG(a_program_may_print_a_gigabyte),
        ON_RIG(a_call_ends_with_its_program_though_another_holds_the_pipes),
        ON_RIG(a_program_that_closes_everything_is_waited_for),
        ON_RIG(a_program_dies_with_the_thread_that_started_it),
        ON_RIG(a_program_dies_with_our_process),
        ON_RIG(an_end_that_nobody_knows_is_unknown),
        ON_RIG(fifty_programs_run_at_a_time),
        ON_RIG(a_wait_ends_when_it_is_woken_or_its_time_is_over),
        ON_RIG(a_program_that_is_given_up_is_killed_with_its_group),
        ON_RIG(strings_of_an_end_live_until_the_next_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
