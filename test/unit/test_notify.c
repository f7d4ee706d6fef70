/* SPDX-License-Identifier: MIT
 *
 * test_notify.c: what a service manager receives, on a real datagram socket.
 */
#include "unit.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/notify.h"

#define WAIT_MS 10000

/* The manager's end. */
struct manager {
    int fd;
    char folder[64], name[108];
};
static struct manager manager;

static void bind_to(const char *path, size_t n)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path, path, n);
    manager.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(manager.fd >= 0);
    assert_int_equal(bind(manager.fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
                     0);
}

static void clear_environment(void)
{
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

static int manager_start(void **state)
{
    (void)state;
    clear_environment();
    snprintf(manager.folder, sizeof(manager.folder), "/tmp/semel-notify-XXXXXX");
    assert_non_null(mkdtemp(manager.folder));
    snprintf(manager.name, sizeof(manager.name), "%s/socket", manager.folder);
    bind_to(manager.name, strlen(manager.name) + 1);
    setenv("NOTIFY_SOCKET", manager.name, 1);
    return 0;
}

static int manager_stop(void **state)
{
    (void)state;
    clear_environment();
    close(manager.fd);
    unlink(manager.name);
    rmdir(manager.folder);
    return 0;
}

static void assert_received(const char *expected)
{
    char text[1024];
    struct pollfd ready = {.fd = manager.fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
    ssize_t n = recv(manager.fd, text, sizeof(text) - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    assert_string_equal(text, expected);
}

/* A datagram of a Unix socket is there when its sender returns. */
static void assert_silence(void)
{
    char byte;
    assert_int_equal(recv(manager.fd, &byte, 1, 0), -1);
    assert_int_equal(errno, EAGAIN);
}

static void without_a_manager_nothing_happens(void **state)
{
    (void)state;
    clear_environment();
    setenv("WATCHDOG_USEC", "1000000", 1);
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    assert_int_equal(notify.fd, -1);
    errno = EDOM;
    semel__notify_ready(&notify);
    semel__notify_reloading(&notify, 1);
    semel__notify_status(&notify, SEMEL_STR("fine"));
    semel__notify_beat(&notify, 1);
    semel__notify_stopping(&notify);
    assert_int_equal(errno, EDOM);
    semel__notify_done(&notify);
    assert_silence();
}

static void each_word_is_one_datagram(void **state)
{
    (void)state;
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    semel__notify_status(&notify, SEMEL_STR("10 routes"));
    semel__notify_ready(&notify);
    assert_received("STATUS=10 routes");
    assert_received("READY=1");
    semel__notify_reloading(&notify, INT64_C(123456789012));
    assert_received("RELOADING=1\nMONOTONIC_USEC=123456789012");
    semel__notify_stopping(&notify);
    semel__notify_extend(&notify, 30000000);
    assert_received("STOPPING=1");
    assert_received("EXTEND_TIMEOUT_USEC=30000000");
    assert_silence();
    semel__notify_done(&notify);
}

static void the_abstract_space_is_reached_too(void **state)
{
    (void)state;
    close(manager.fd);
    char name[64];
    int n = snprintf(name, sizeof(name), "@semel-notify-%ld", (long)getpid());
    setenv("NOTIFY_SOCKET", name, 1);
    name[0] = '\0';
    bind_to(name, (size_t)n);
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    semel__notify_ready(&notify);
    assert_received("READY=1");
    semel__notify_done(&notify);
}

static void a_status_cannot_forge_another_word(void **state)
{
    (void)state;
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    semel__notify_status(&notify, SEMEL_STR("away\nREADY=1\x1b[2J\xff"));
    assert_received("STATUS=away?READY=1?[2J?");
    char longer[2 * SEMEL_NOTIFY_STATUS_MAX], expected[SEMEL_NOTIFY_STATUS_MAX + 8] = "STATUS=";
    memset(longer, 'x', sizeof(longer));
    memset(expected + 7, 'x', SEMEL_NOTIFY_STATUS_MAX);
    expected[7 + SEMEL_NOTIFY_STATUS_MAX] = '\0';
    semel__notify_status(&notify, (struct semel_str){longer, sizeof(longer)});
    assert_received(expected);
    semel__notify_done(&notify);
}

static void the_watchdog_gets_a_sign_at_half_of_its_interval(void **state)
{
    (void)state;
    char pid[24];
    snprintf(pid, sizeof(pid), "%ld", (long)getpid());
    setenv("WATCHDOG_USEC", "10000000", 1);
    setenv("WATCHDOG_PID", pid, 1);
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    semel__notify_ready(&notify);
    assert_received("READY=1");
    semel__notify_beat(&notify, 7000000);
    assert_received("WATCHDOG=1");
    semel__notify_beat(&notify, 7000001);
    semel__notify_beat(&notify, 11999999);
    assert_silence();
    semel__notify_beat(&notify, 12000000);
    assert_received("WATCHDOG=1");
    assert_silence();
    semel__notify_done(&notify);
}

static void a_start_that_waits_is_prolonged_as_long_as_the_process_is_alive(void **state)
{
    (void)state;
    setenv("WATCHDOG_USEC", "30000001", 1);
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    semel__notify_beat(&notify, 0);
    assert_received("EXTEND_TIMEOUT_USEC=30000000");
    semel__notify_beat(&notify, 14999999);
    assert_silence();
    semel__notify_beat(&notify, 15000000);
    assert_received("EXTEND_TIMEOUT_USEC=30000000");
    semel__notify_ready(&notify);
    assert_received("READY=1");
    semel__notify_beat(&notify, 30000000);
    assert_received("WATCHDOG=1");
    semel__notify_done(&notify);
}

static void the_watchdog_of_another_process_gets_nothing(void **state)
{
    (void)state;
    setenv("WATCHDOG_USEC", "10000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    semel__notify_beat(&notify, 7000000);
    assert_silence();
    semel__notify_done(&notify);
}

static void a_watchdog_that_is_no_number_is_refused_and_the_rest_works(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", NULL}, {"-5", NULL}, {"0", NULL}, {"10s", NULL}, {"99999999999999999999", NULL}, {"10", "me"}, {"10", ""}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        setenv("NOTIFY_SOCKET", manager.name, 1);
        setenv("WATCHDOG_USEC", bad[i][0], 1);
        if (bad[i][1] != NULL)
            setenv("WATCHDOG_PID", bad[i][1], 1);
        struct semel_notify notify;
        struct semel_error err;
        assert_int_equal(semel__notify_init(&notify, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "WATCHDOG_USEC"));
        semel__notify_beat(&notify, 1);
        semel__notify_ready(&notify);
        assert_received("READY=1");
        assert_silence();
        semel__notify_done(&notify);
    }
}

static void a_socket_that_is_no_path_is_refused(void **state)
{
    (void)state;
    char longer[200];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[0] = '/';
    longer[sizeof(longer) - 1] = '\0';
    const char *const bad[] = {"relative", "vsock:2:1234", "/", "@", longer};
    for (size_t i = 0; i < COUNT(bad); i++) {
        setenv("NOTIFY_SOCKET", bad[i], 1);
        struct semel_notify notify;
        struct semel_error err;
        assert_int_equal(semel__notify_init(&notify, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "NOTIFY_SOCKET"));
        semel__notify_ready(&notify);
        semel__notify_done(&notify);
    }
    setenv("NOTIFY_SOCKET", "", 1); /* as good as not set */
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    assert_int_equal(notify.fd, -1);
}

static void no_child_inherits_the_variables(void **state)
{
    (void)state;
    setenv("WATCHDOG_USEC", "10000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    assert_null(getenv("NOTIFY_SOCKET"));
    assert_null(getenv("WATCHDOG_USEC"));
    assert_null(getenv("WATCHDOG_PID"));
    semel__notify_done(&notify);
}

/* The manager does not read: nothing blocks, and the sign is sent when there is room again. */
static void a_manager_that_does_not_read_holds_nobody_up(void **state)
{
    (void)state;
    setenv("WATCHDOG_USEC", "10000000", 1);
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    for (int i = 0; i < 10000; i++)
        semel__notify_ready(&notify);
    semel__notify_beat(&notify, 7000000);
    char text[64];
    while (recv(manager.fd, text, sizeof(text), 0) > 0)
        assert_memory_equal(text, "READY=1", 7);
    semel__notify_beat(&notify, 7000001);
    assert_received("WATCHDOG=1");
    semel__notify_done(&notify);
}

static void a_manager_that_is_gone_is_no_error(void **state)
{
    (void)state;
    struct semel_notify notify;
    assert_int_equal(semel__notify_init(&notify, NULL), SEMEL_OK);
    close(manager.fd);
    unlink(manager.name);
    errno = EDOM;
    semel__notify_ready(&notify);
    assert_int_equal(errno, EDOM);
    bind_to(manager.name, strlen(manager.name) + 1); /* it was started anew */
    semel__notify_stopping(&notify);
    assert_received("STOPPING=1");
    semel__notify_done(&notify);
}

#define WITH_MANAGER(test) cmocka_unit_test_setup_teardown(test, manager_start, manager_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_MANAGER(without_a_manager_nothing_happens),
        WITH_MANAGER(each_word_is_one_datagram),
        WITH_MANAGER(the_abstract_space_is_reached_too),
        WITH_MANAGER(a_status_cannot_forge_another_word),
        WITH_MANAGER(the_watchdog_gets_a_sign_at_half_of_its_interval),
        WITH_MANAGER(a_start_that_waits_is_prolonged_as_long_as_the_process_is_alive),
        WITH_MANAGER(the_watchdog_of_another_process_gets_nothing),
        WITH_MANAGER(a_watchdog_that_is_no_number_is_refused_and_the_rest_works),
        WITH_MANAGER(a_socket_that_is_no_path_is_refused),
        WITH_MANAGER(no_child_inherits_the_variables),
        WITH_MANAGER(a_manager_that_does_not_read_holds_nobody_up),
        WITH_MANAGER(a_manager_that_is_gone_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
