/* SPDX-License-Identifier: MIT
 *
 * test_exec.c: what a program is given, and what its end means.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/trace.h"
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
    return 0;
}

/* ---- ends ---------------------------------------------------------------------------------------- */

/* I14 */
static void each_exit_has_its_result(void **state)
{
    static const struct {
        const char *script, *reason;
        enum semel_result result, idempotent;
    } rows[] = {
        {"exit 0", NULL, SEMEL_DONE, SEMEL_DONE},
        {"exit 75", "exit 75", SEMEL_TRANSIENT, SEMEL_TRANSIENT},
        {"exit 65", "exit 65", SEMEL_PERMANENT, SEMEL_PERMANENT},
        {"exit 77", "exit 77", SEMEL_REJECTED, SEMEL_REJECTED},
        {"exit 69", "exit 69", SEMEL_MAYBE, SEMEL_TRANSIENT},
        {"exit 1", "exit 1", SEMEL_MAYBE, SEMEL_TRANSIENT},
        {"exit 127", "exit 127", SEMEL_MAYBE, SEMEL_TRANSIENT},
        {"kill -9 $$", "killed by signal 9", SEMEL_MAYBE, SEMEL_TRANSIENT},
        {"kill -TERM $$", "killed by signal 15", SEMEL_MAYBE, SEMEL_TRANSIENT},
    };
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        size_t at = i / 2;
        rig.settings.idempotent = i % 2 == 1;
        struct semel_call_end *end = program_run(&rig, rows[at].script);
        assert_result(end, i % 2 == 1 ? rows[at].idempotent : rows[at].result);
        assert_ptr_equal(end->tag, &rig.msg);
        assert_false(end->ask);
        if (rows[at].reason != NULL)
            assert_str(end->reason, rows[at].reason);
        else
            assert_false(semel__str_given(end->reason));
    }
}

static void the_reason_is_the_last_line_of_stderr_made_safe(void **state)
{
    (void)state;
    assert_str(program_run(&rig, "echo first >&2; echo 'no such account' >&2; exit 65")->reason,
               "exit 65: no such account");
    assert_str(program_run(&rig, "printf 'one\\ntwo\\n\\n \\n' >&2; exit 75")->reason, "exit 75: two");
    assert_str(program_run(&rig, "printf 'a\\033[31mb\\377\\001' >&2; exit 75")->reason, "exit 75: a?[31mb??");
    struct semel_call_end *end = program_run(&rig, "printf 'x%.0s' $(seq 5000) >&2; exit 75");
    assert_true(end->reason.n <= 200 && end->reason.n > 100);
    end = program_run(&rig, "for i in $(seq 300); do printf '\\303\\251' >&2; done; exit 75");
    assert_true(end->reason.n <= 200 && semel__utf8_valid(end->reason));
}

static void what_is_printed_is_the_outcome_where_it_is_json(void **state)
{
    (void)state;
    assert_str(program_run(&rig, "cat")->outcome, "{\"cents\":1}");
    assert_false(semel__str_given(program_run(&rig, "echo done")->outcome));
    assert_false(semel__str_given(program_run(&rig, "true")->outcome));
    assert_false(semel__str_given(program_run(&rig, "echo 1; exit 75")->outcome));
    assert_int_equal(program_run(&rig, "printf '\"'; head -c 65534 /dev/zero | tr '\\0' x; printf '\"'")->outcome.n,
                     65536);
    struct semel_call_end *end = program_run(&rig, "printf '\"'; head -c 65536 /dev/zero | tr '\\0' x; printf '\"'");
    assert_result(end, SEMEL_DONE); /* too long to be kept */
    assert_false(semel__str_given(end->outcome));
}

/* E2 */
static void a_reconcile_is_another_program(void **state)
{
    static const struct {
        const char *script;
        enum semel_result result;
    } rows[] = {
        {"exit 0", SEMEL_DONE},   {"exit 75", SEMEL_TRANSIENT}, {"exit 77", SEMEL_REJECTED}, {"exit 69", SEMEL_MAYBE},
        {"exit 65", SEMEL_MAYBE}, {"exit 1", SEMEL_MAYBE},      {"kill -9 $$", SEMEL_MAYBE},
    };
    (void)state;
    rig.settings.idempotent = true; /* of the effect; what is asked is not changed by it */
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct semel_call_end *end = program_ask(&rig, rows[i].script);
        assert_true(end->ask);
        assert_result(end, rows[i].result);
    }
    assert_str(program_ask(&rig, "echo '{\"a\":1}'")->outcome, "{\"a\":1}\n");
}

/* ---- what a program is given --------------------------------------------------------------------- */

static void the_payload_arrives_whole(void **state)
{
    static char large[5 << 20];
    (void)state;
    memset(large, 'a', sizeof large);
    rig.msg.payload = (struct semel_str){large, sizeof large};
    assert_str(program_run(&rig, "wc -c")->outcome, "5242880\n");
    rig.msg.payload = (struct semel_str){NULL, 0};
    assert_str(program_run(&rig, "wc -c")->outcome, "0\n");
}

/* E1 */
static void the_environment_is_the_routes_and_what_the_message_is(void **state)
{
    char key[SEMEL_STEP_KEY_TEXT], expected[1024];
    (void)state;
    setenv("SECRET_OF_OURS", "1", 1);
    setenv("PATH", "/bin:/usr/bin", 1);
    rig.msg.id = SEMEL_STR("m 1=\n2");
    rig.msg.traceparent = SEMEL_STR("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_result(program_run(&rig, "tr '\\n\\0' '|\\n' < /proc/$$/environ > $DIR/env"), SEMEL_DONE);
    const char *env = program_text(&rig, "env");
    semel__step_key(SEMEL_STR("billing"), rig.msg.source, rig.msg.id, SEMEL_STR("effect"), key);
    int n = snprintf(expected, sizeof expected,
                     "DIR=%s\nPATH=/bin:/usr/bin\nSEMEL_CONSUMER=billing\nSEMEL_MESSAGE_ID=m 1=|2\n"
                     "SEMEL_SOURCE=orders\nSEMEL_TYPE=paid\nSEMEL_ATTEMPT=3\nSEMEL_KEY=%s\n"
                     "SEMEL_TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-",
                     rig.dir, key);
    assert_memory_equal(env, expected, (size_t)n);
    assert_null(strstr(env, "b7ad6b7169203331"));
    assert_string_equal(strrchr(strstr(env, "SEMEL_TIMEOUT_MS"), '='), "=20000\n");
}

static void a_path_of_the_route_stands_above_ours(void **state)
{
    (void)state;
    rig.env[0] = (struct semel_pair){SEMEL_STR("PATH"), SEMEL_STR("/bin")};
    assert_str(program_run(&rig, "printf '\"%s\"' $PATH")->outcome, "\"/bin\"");
}

static void a_value_with_a_nul_fails_its_message(void **state)
{
    (void)state;
    rig.msg.type = (struct semel_str){"a\0b", 3};
    struct semel_call_end *end = program_run(&rig, "touch $DIR/ran");
    assert_result(end, SEMEL_PERMANENT);
    assert_non_null(strstr(end->reason.p, "SEMEL_TYPE"));
    assert_int_equal(access(program_path(&rig, "ran"), F_OK), -1);
}

static void a_program_has_three_descriptors_and_a_group_of_its_own(void **state)
{
    int open_one = open("/dev/null", O_RDONLY); /* as a library might leave it: not close-on-exec */
    (void)state;
    assert_true(open_one > 2);
    assert_result(program_run(&rig, "n=0; for i in $(seq 3 99); do [ ! -e /proc/$$/fd/$i ] || n=$((n+1)); done; "
                                    "echo $n > $DIR/fds; "
                                    "read a b c d pgrp rest < /proc/$$/stat; [ $pgrp = $$ ] && echo same > $DIR/group"),
                  SEMEL_DONE);
    assert_string_equal(program_text(&rig, "fds"), "0\n");
    assert_string_equal(program_text(&rig, "group"), "same\n");
    close(open_one);
}

static void a_program_gets_the_default_of_every_signal(void **state)
{
    sigset_t usr, was;
    (void)state;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    sigaddset(&usr, SIGTERM);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &usr, &was);
    assert_result(program_run(&rig, "exec cat /proc/self/status > $DIR/status"), SEMEL_DONE);
    const char *status = program_text(&rig, "status");
    assert_non_null(strstr(status, "SigBlk:\t0000000000000000\n"));
    assert_non_null(strstr(status, "SigIgn:\t0000000000000000\n"));
    assert_result(program_run(&rig, "yes | head -n 1 > $DIR/one"), SEMEL_DONE); /* by SIGPIPE, or for ever */
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
}

/* ---- programs that cannot be started ------------------------------------------------------------- */

static void a_program_that_cannot_run_breaks_the_route(void **state)
{
    (void)state;
    FILE *file = fopen(program_path(&rig, "plain"), "we");
    assert_non_null(file);
    fputs("exit 0\n", file);
    fclose(file);
    char plain[512];
    snprintf(plain, sizeof plain, "%s", program_path(&rig, "plain"));
    const char *const programs[] = {"/nowhere/program", plain, rig.dir, "/etc/passwd/x"};
    for (size_t i = 0; i < COUNT(programs); i++) {
        rig.settings.program = programs[i];
        assert_not_run(program_run(&rig, ""), SEMEL_INVALID, SEMEL_CLASS_BROKEN);
        assert_non_null(strstr(rig.end.err.text, programs[i]));
    }
    chmod(plain, 0700); /* it may run now, but it is no program: no shell is asked to guess */
    rig.settings.program = plain;
    assert_not_run(program_run(&rig, ""), SEMEL_INVALID, SEMEL_CLASS_BROKEN);
}

static void no_more_descriptors_are_the_worlds_fault(void **state)
{
    struct rlimit was, few;
    (void)state;
    program_start(&rig, &rig.msg, false);
    assert_result(program_wait(&rig), SEMEL_MAYBE);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int next = dup(0);
    close(next);
    for (rlim_t more = 0; more < 7; more++) { /* a timer and three pipes */
        few = (struct rlimit){.rlim_cur = (rlim_t)next + more, .rlim_max = was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        program_start(&rig, &rig.msg, false);
        assert_not_run(program_wait(&rig), SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    program_start(&rig, &rig.msg, false);
    assert_result(program_wait(&rig), SEMEL_MAYBE);
}

static void bad_settings_are_refused(void **state)
{
    static const struct semel_pair bad[] = {
        {SEMEL_STR("SEMEL_KEY"), SEMEL_STR("s3cret")},
        {SEMEL_STR("A=B"), SEMEL_STR("s3cret")},
        {SEMEL_STR(""), SEMEL_STR("s3cret")},
        {SEMEL_STR("A"), SEMEL_STR("s3cret\0")},
    };
    struct semel_caller *caller = NULL;
    struct semel_error err;
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        rig.settings.env = &bad[i];
        assert_int_equal(semel__exec_caller_new(&caller, &rig.settings, &err), SEMEL_INVALID);
        assert_null(caller);
        assert_null(strstr(err.text, "s3cret"));
    }
    rig.argv[0] = NULL;
    assert_int_equal(semel__exec_caller_new(&caller, &rig.settings, &err), SEMEL_INVALID);
}

static void each_failed_allocation_is_an_end_and_no_crash(void **state)
{
    unsigned ran = 0;
    (void)state;
    rig.argv[2] = "cat";
    for (unsigned at = 1;; at++) {
        struct fail_nth fail;
        fail_nth_begin(&fail, at);
        semel_status status = semel__exec_caller_new(&rig.caller, &rig.settings, &rig.err);
        if (status == SEMEL_OK) {
            program_start(&rig, &rig.msg, false);
            struct semel_call_end *end = program_wait(&rig);
            ran += end->status == SEMEL_OK;
            if (end->status == SEMEL_OK)
                assert_result(end, SEMEL_DONE);
            else
                assert_not_run(end, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT);
        } else {
            assert_int_equal(status, SEMEL_RETRY);
            rig.caller = NULL;
        }
        bool reached = fail_nth_end(&fail);
        program_rig_drop(&rig);
        if (!reached)
            break;
    }
    assert_true(ran > 1);
}

#define ON_RIG(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(each_exit_has_its_result),
        ON_RIG(the_reason_is_the_last_line_of_stderr_made_safe),
        ON_RIG(what_is_printed_is_the_outcome_where_it_is_json),
        ON_RIG(a_reconcile_is_another_program),
        ON_RIG(the_payload_arrives_whole),
        ON_RIG(the_environment_is_the_routes_and_what_the_message_is),
        ON_RIG(a_path_of_the_route_stands_above_ours),
        ON_RIG(a_value_with_a_nul_fails_its_message),
        ON_RIG(a_program_has_three_descriptors_and_a_group_of_its_own),
        ON_RIG(a_program_gets_the_default_of_every_signal),
        ON_RIG(a_program_that_cannot_run_breaks_the_route),
        ON_RIG(no_more_descriptors_are_the_worlds_fault),
        ON_RIG(bad_settings_are_refused),
        ON_RIG(each_failed_allocation_is_an_end_and_no_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
