/* SPDX-License-Identifier: MIT
 *
 * test_point.c: counting, looking, stopping and dying at a labelled place.
 */
#include "base/point.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

static void every_point_has_a_label_of_its_own(void **state)
{
    (void)state;
    for (int a = 0; a < SEMEL_POINT_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(semel__point_name((enum semel_point)a), semel__point_name((enum semel_point)b));
    assert_string_equal(semel__point_name(SEMEL_AT_PUMP_BEFORE_ACK), "pump.before_ack");
    assert_string_equal(semel__point_name(SEMEL_POINT_COUNT), "?");
}

static void visits_are_counted_per_label(void **state)
{
    (void)state;
    unsigned long begun = semel__point_visits(SEMEL_AT_BATCH_BEGUN), run = semel__point_visits(SEMEL_AT_LEASE_RUN);
    semel__point_visit(SEMEL_AT_BATCH_BEGUN);
    semel__point_visit(SEMEL_AT_BATCH_BEGUN);
    assert_int_equal(semel__point_visits(SEMEL_AT_BATCH_BEGUN), begun + 2);
    assert_int_equal(semel__point_visits(SEMEL_AT_LEASE_RUN), run);
    assert_int_equal(semel__point_visits(SEMEL_POINT_COUNT), 0);
}

static void remember(void *ctx, enum semel_point point)
{
    *(enum semel_point *)ctx = point;
}

static void a_hook_sees_the_point_until_it_is_removed(void **state)
{
    (void)state;
    enum semel_point last = SEMEL_POINT_COUNT;
    semel__point_set_hook(remember, &last);
    semel__point_visit(SEMEL_AT_PURGE_DELETED);
    assert_int_equal(last, SEMEL_AT_PURGE_DELETED);
    semel__point_set_hook(NULL, NULL);
    semel__point_visit(SEMEL_AT_LEASE_RUN);
    assert_int_equal(last, SEMEL_AT_PURGE_DELETED);
}

/* A child that goes to take.settled three times under the given order and then leaves with the number of visits. */
static pid_t visitor(const char *variable, const char *order)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    setenv(variable, order, 1);
    if (!semel__point_from_env())
        _exit(100);
    for (int i = 0; i < 3; i++) {
        semel__point_visit(SEMEL_AT_TAKE_COMMITTED);
        semel__point_visit(SEMEL_AT_TAKE_SETTLED);
    }
    _exit((int)semel__point_visits(SEMEL_AT_TAKE_SETTLED));
}

static void the_process_is_killed_at_the_visit_named(void **state)
{
    (void)state;
    int status;
    pid_t pid = visitor("SEMEL_CRASH_AT", "take.settled:3");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void the_process_lives_when_the_visit_named_does_not_come(void **state)
{
    (void)state;
    int status;
    pid_t pid = visitor("SEMEL_CRASH_AT", "take.settled:4");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

/* P64: a worker that is stopped, not dead. */
static void the_process_stops_at_the_visit_named_and_goes_on_when_told(void **state)
{
    (void)state;
    int status;
    pid_t pid = visitor("SEMEL_STOP_AT", "take.settled:2");
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(WSTOPSIG(status), SIGSTOP);
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status))
        kill(pid, SIGKILL); /* it stopped again, which is wrong: leave nothing behind */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

static void an_order_that_names_no_label_or_no_visit_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",   "take.settled",   "take.settled:", "take.settled:0",  "take.settled:-1", "no.such:1",
        ":1", "take.settled:x", "take.settle:1", "take.settled:1 ", "TAKE.SETTLED:1",
    };
    int saved = dup(STDERR_FILENO);
    assert_non_null(freopen("/dev/null", "w", stderr));
    for (size_t i = 0; i < COUNT(bad); i++) {
        setenv("SEMEL_CRASH_AT", bad[i], 1);
        assert_false(semel__point_from_env());
        unsetenv("SEMEL_CRASH_AT");
        setenv("SEMEL_STOP_AT", bad[i], 1);
        assert_false(semel__point_from_env());
        unsetenv("SEMEL_STOP_AT");
    }
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_true(semel__point_from_env());
    semel__point_visit(SEMEL_AT_TAKE_SETTLED); /* and nothing happens */
}

static void the_macro_names_the_point(void **state)
{
    (void)state;
    unsigned long before = semel__point_visits(SEMEL_AT_PUMP_ACKED);
    SEMEL_POINT(PUMP_ACKED);
#ifdef SEMEL_POINTS
    assert_int_equal(semel__point_visits(SEMEL_AT_PUMP_ACKED), before + 1);
#else
    assert_int_equal(semel__point_visits(SEMEL_AT_PUMP_ACKED), before);
#endif
}

int main(void)
{
    unsetenv("SEMEL_CRASH_AT");
    unsetenv("SEMEL_STOP_AT");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_point_has_a_label_of_its_own),
        cmocka_unit_test(visits_are_counted_per_label),
        cmocka_unit_test(a_hook_sees_the_point_until_it_is_removed),
        cmocka_unit_test(the_process_is_killed_at_the_visit_named),
        cmocka_unit_test(the_process_lives_when_the_visit_named_does_not_come),
        cmocka_unit_test(the_process_stops_at_the_visit_named_and_goes_on_when_told),
        cmocka_unit_test(an_order_that_names_no_label_or_no_visit_is_refused),
        cmocka_unit_test(the_macro_names_the_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
