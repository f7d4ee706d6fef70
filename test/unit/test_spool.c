/* SPDX-License-Identifier: MIT
 *
 * test_spool.c: what is special to the spool: real processes that share it and die, the visibility time-out, its URL,
 * and damage. The contract of every broker is in test/conform.
 */
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "demo/spool.h"
#include "support/answer.h"
#include "unit.h"

static char dir[64];
static struct semel_arena arena;
static struct semel_error err;

static int64_t now_us(void)
{
    return semel__now(&semel__clock_real);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/semel-spool-XXXXXX");
    assert_non_null(mkdtemp(dir));
    semel__arena_init(&arena, 16 << 20);
    return 0;
}

static int teardown(void **state)
{
    static const char *const files[] = {"spool.db", "spool.db-wal", "spool.db-shm"};
    char path[128];

    (void)state;
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    semel__arena_done(&arena);
    return 0;
}

static semel_status try_open(struct semel_broker **ret, const char *settings)
{
    char location[160];

    snprintf(location, sizeof location, "%s/spool.db%s", dir, settings);
    return semel__spool_open(ret, location, &err);
}

static struct semel_broker *spool_open(const char *settings)
{
    struct semel_broker *broker = NULL;

    assert_int_equal(try_open(&broker, settings), SEMEL_OK);
    return broker;
}

/* Messages "0" to "n-1" of `source`; below 0 `partitions` they have no order. */
static int64_t push(struct semel_broker *broker, const char *source, int n, int partitions)
{
    int64_t first = 0, seq;

    for (int i = 0; i < n; i++) {
        char payload[16];
        const struct semel_spool_push message = {.source = semel__str(source),
                                                 .partition = partitions > 0 ? i % partitions : -1,
                                                 .payload = {payload,
                                                             (size_t)snprintf(payload, sizeof payload, "%d", i)}};
        assert_int_equal(semel__spool_push(broker, &message, 1, &seq, &err), SEMEL_OK);
        first = first == 0 ? seq : first;
    }
    return first;
}

static void assert_stats(struct semel_broker *broker, size_t ready, size_t taken, size_t acked)
{
    size_t n[3] = {0};

    assert_int_equal(semel__spool_stats(broker, &n[0], &n[1], &n[2], &err), SEMEL_OK);
    assert_int_equal(n[0], ready);
    assert_int_equal(n[1], taken);
    assert_int_equal(n[2], acked);
}

static size_t poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_delivery **ret)
{
    size_t n = 0;

    assert_int_equal(semel_broker_poll(broker, max, wait_ms, &arena, ret, &n, &err), SEMEL_OK);
    return n;
}

/* ---- one process -------------------------------------------------------------------------------------- */

static void url_with_a_mistake_is_refused_with_what_would_be_right(void **state)
{
    struct semel_broker *broker = NULL;

    (void)state;
    assert_int_equal(try_open(&broker, "?visibility_ms=0"), SEMEL_INVALID);
    assert_int_equal(try_open(&broker, "?visibility_ms=ten"), SEMEL_INVALID);
    assert_int_equal(try_open(&broker, "?nonsense=1"), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "visibility_ms"));
    assert_int_equal(semel__spool_open(&broker, "", &err), SEMEL_INVALID);
    assert_int_not_equal(semel__spool_open(&broker, "/nowhere/at/all", &err), SEMEL_OK);
}

static void messages_are_counted_by_their_state(void **state)
{
    struct semel_broker *broker = spool_open("");
    struct semel_delivery *d;

    (void)state;
    push(broker, "s", 3, 0);
    assert_stats(broker, 3, 0, 0);
    assert_int_equal(poll(broker, 2, 0, &d), 2);
    assert_stats(broker, 1, 2, 0);
    assert_int_equal(answer_ack(broker, &d[0].tag, 1, &err), SEMEL_OK);
    assert_stats(broker, 1, 1, 1);
    semel_broker_close(broker);
    broker = spool_open("");
    assert_stats(broker, 2, 0, 1); /* closing gave it back */
    semel_broker_close(broker);
}

static void visibility_runs_out_and_the_former_taker_is_fenced(void **state)
{
    struct semel_broker *slow = spool_open("?visibility_ms=50"), *quick = spool_open("");
    struct semel_delivery *old, *d;

    (void)state;
    push(slow, "s", 1, 1);
    assert_int_equal(poll(slow, 8, 0, &old), 1);
    assert_int_equal(poll(quick, 8, 0, &d), 0);
    assert_int_equal(poll(quick, 8, 10000, &d), 1);
    assert_int_equal(d[0].delivery, 2);
    assert_int_equal(answer_ack(slow, &old[0].tag, 1, &err), SEMEL_FENCED);
    assert_stats(quick, 0, 1, 0);
    assert_int_equal(answer_ack(quick, &d[0].tag, 1, &err), SEMEL_OK);
    semel_broker_close(slow);
    semel_broker_close(quick);
}

static void slow_taker_that_nobody_replaced_may_still_acknowledge(void **state)
{
    struct semel_broker *slow = spool_open("?visibility_ms=1");
    struct semel_delivery *d;

    (void)state;
    push(slow, "s", 1, 1);
    assert_int_equal(poll(slow, 8, 0, &d), 1);
    for (int64_t until_us = now_us() + 2000; now_us() < until_us;)
        ;
    assert_int_equal(answer_ack(slow, &d[0].tag, 1, &err), SEMEL_OK);
    semel_broker_close(slow);
}

static void partition_is_held_back_until_what_came_before_is_acknowledged(void **state)
{
    struct semel_broker *a = spool_open("?visibility_ms=60000"), *b = spool_open("");
    struct semel_delivery *first, *d;

    (void)state;
    push(a, "s", 6, 2); /* 0 2 4 and 1 3 5 */
    assert_int_equal(poll(a, 1, 0, &first), 1);
    assert_int_equal(poll(b, 8, 0, &d), 3);
    assert_str(d[0].payload, "1");
    assert_str(d[2].payload, "5");
    assert_int_equal(poll(a, 8, 0, &d), 0);
    assert_int_equal(answer_ack(a, &first[0].tag, 1, &err), SEMEL_OK);
    assert_int_equal(poll(b, 8, 0, &d), 2);
    assert_str(d[0].payload, "2");
    semel_broker_close(a);
    semel_broker_close(b);
}

static void message_without_a_partition_waits_for_nobody(void **state)
{
    struct semel_broker *a = spool_open("?visibility_ms=60000"), *b = spool_open("");
    struct semel_delivery *d;

    (void)state;
    push(a, "s", 3, 0);
    assert_int_equal(poll(a, 1, 0, &d), 1);
    assert_int_equal(poll(b, 8, 0, &d), 2);
    semel_broker_close(a);
    semel_broker_close(b);
}

static void handle_of_one_source_sees_no_other(void **state)
{
    struct semel_broker *all = spool_open(""), *one = spool_open("?source=orders&visibility_ms=1000");
    struct semel_delivery *d;

    (void)state;
    push(all, "orders", 2, 1);
    push(all, "order", 2, 1);
    assert_int_equal(poll(one, 8, 0, &d), 2);
    assert_str(d[0].source, "orders");
    assert_int_equal(poll(all, 8, 0, &d), 2);
    assert_str(d[0].source, "order");
    semel_broker_close(all);
    semel_broker_close(one);
}

static void acknowledged_message_can_be_made_to_come_again(void **state)
{
    struct semel_broker *broker = spool_open("");
    struct semel_delivery *d;
    int64_t seq = push(broker, "s", 2, 1);

    (void)state;
    assert_int_equal(semel__spool_requeue(broker, seq, &err), SEMEL_INVALID);
    assert_int_equal(poll(broker, 1, 0, &d), 1);
    assert_int_equal(answer_ack(broker, &d[0].tag, 1, &err), SEMEL_OK);
    assert_int_equal(semel__spool_requeue(broker, seq, &err), SEMEL_OK);
    assert_int_equal(poll(broker, 1, 0, &d), 1);
    assert_str(d[0].payload, "0");
    assert_int_equal(d[0].delivery, 2);
    semel_broker_close(broker);
}

static void poll_waits_for_a_message_that_comes_in_time(void **state)
{
    struct semel_broker *broker = NULL;
    struct semel_delivery *d;
    int fds[2];
    char byte = 0;
    pid_t child;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (read(fds[0], &byte, 1) != 1)
            _exit(1);
        broker = spool_open("");
        push(broker, "s", 1, 1);
        semel_broker_close(broker);
        _exit(0);
    }
    broker = spool_open("");
    assert_int_equal(write(fds[1], &byte, 1), 1); /* the child opens and pushes while we wait */
    assert_int_equal(poll(broker, 8, 20000, &d), 1);
    semel_broker_close(broker);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void damaged_headers_close_the_handle_instead_of_being_guessed_at(void **state)
{
    static const char *const bad[] = {"x",         "5:abc,", "1:a,", "3:abcx1:b,", "99999999999999999999:a,",
                                      "-1:a,1:b,", ":,"};
    struct semel_broker *broker = spool_open("");
    struct semel_delivery *d;
    size_t n;
    char path[128];

    (void)state;
    push(broker, "s", 1, 1);
    snprintf(path, sizeof path, "%s/spool.db", dir);
    for (size_t i = 0; i < COUNT(bad); i++) {
        sqlite3 *db = NULL;
        char *sql = sqlite3_mprintf("UPDATE message SET headers = CAST(%Q AS BLOB)", bad[i]);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_free(sql);
        sqlite3_close(db);
        assert_int_equal(semel_broker_poll(broker, 8, 0, &arena, &d, &n, &err), SEMEL_CLOSED);
    }
    semel_broker_close(broker);
}

static void failed_allocation_is_retry_and_loses_nothing(void **state)
{
    struct fail_nth fail;
    bool reached = true;

    (void)state;
    for (unsigned at = 1; reached; at++) {
        const struct semel_pair header = {SEMEL_STR("h"), SEMEL_STR("v")};
        const struct semel_spool_push message = {
            .source = SEMEL_STR("s"), .partition = -1, .payload = SEMEL_STR("p"), .headers = &header, .n_headers = 1};
        struct semel_publish item = {.destination = SEMEL_STR("s"), .id = SEMEL_STR("i")};
        struct semel_broker *broker = NULL;
        struct semel_delivery *d;
        size_t n = 0;
        semel_status status;
        semel__arena_done(&arena);
        fail_nth_begin(&fail, at);
        status = try_open(&broker, "");
        if (status == SEMEL_OK)
            status = semel__spool_push(broker, &message, 1, NULL, &err);
        if (status == SEMEL_OK)
            status = semel_broker_publish(broker, &item, 1, 60000, &err);
        if (status == SEMEL_OK)
            status = semel_broker_poll(broker, 8, 0, &arena, &d, &n, &err);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        semel_broker_close(broker);
    }
    assert_true(fail.seen > 4);
}

/* ---- several processes -------------------------------------------------------------------------------- */

/* Takes messages and acknowledges them one by one until there are none; tells `out` of each. Never returns. */
static void consume(int out, int die_after)
{
    struct semel_broker *broker = spool_open("?visibility_ms=300");
    struct semel_delivery *d;
    size_t n;

    while ((n = poll(broker, 4, 1500, &d)) > 0)
        for (size_t i = 0; i < n; i++) {
            const unsigned char number = (unsigned char)strtol(d[i].payload.p, NULL, 10);
            if (die_after-- == 0)
                kill(getpid(), SIGKILL); /* with messages taken and not acknowledged */
            if (answer_ack(broker, &d[i].tag, 1, &err) == SEMEL_OK && write(out, &number, 1) != 1)
                _exit(1);
        }
    semel_broker_close(broker);
    semel__arena_done(&arena);
    _exit(0);
}

static pid_t spawn(int out, int die_after)
{
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        consume(out, die_after);
    return child;
}

static void killed_process_loses_no_message_and_each_is_acknowledged_once(void **state)
{
    struct semel_broker *broker = spool_open("");
    unsigned acked[200] = {0};
    unsigned char number;
    int fds[2], status;
    pid_t killed, others[2];

    (void)state;
    push(broker, "s", 200, 3);
    semel_broker_close(broker); /* before fork */
    assert_int_equal(pipe(fds), 0);
    killed = spawn(fds[1], 10);
    assert_int_equal(waitpid(killed, &status, 0), killed);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (size_t i = 0; i < 2; i++)
        others[i] = spawn(fds[1], -1);
    close(fds[1]);
    while (read(fds[0], &number, 1) == 1)
        acked[number]++;
    close(fds[0]);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(waitpid(others[i], &status, 0), others[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(acked[i], 1);
    broker = spool_open("");
    assert_stats(broker, 0, 0, 200);
    semel_broker_close(broker);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(url_with_a_mistake_is_refused_with_what_would_be_right),
        TEST(messages_are_counted_by_their_state),
        TEST(visibility_runs_out_and_the_former_taker_is_fenced),
        TEST(slow_taker_that_nobody_replaced_may_still_acknowledge),
        TEST(partition_is_held_back_until_what_came_before_is_acknowledged),
        TEST(message_without_a_partition_waits_for_nobody),
        TEST(handle_of_one_source_sees_no_other),
        TEST(acknowledged_message_can_be_made_to_come_again),
        TEST(poll_waits_for_a_message_that_comes_in_time),
        TEST(damaged_headers_close_the_handle_instead_of_being_guessed_at),
        TEST(failed_allocation_is_retry_and_loses_nothing),
        TEST(killed_process_loses_no_message_and_each_is_acknowledged_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
