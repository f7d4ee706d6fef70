/* SPDX-License-Identifier: MIT
 *
 * test_task.c: the watchdog over the daemon's threads: real threads, a real socket of a service manager, a real log.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/wait.h"
#include "daemon/task.h"
#include "unit/unit.h"

#define PATIENCE_US INT64_C(1000000000) /* time is an argument: no test waits for it */

struct world {
    int manager;
    char folder[64], path[108];
    FILE *lines;
    struct semel_log *log;
    struct semel_notify notify;
    struct semel_tasks tasks;
    int64_t now_us;
};

static int up(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct semel_error err;
    assert_non_null(w);
    snprintf(w->folder, sizeof w->folder, "/tmp/semel-task-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->path, sizeof w->path, "%s/socket", w->folder);
    memcpy(to.sun_path, w->path, strlen(w->path) + 1);
    w->manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(w->manager, (struct sockaddr *)&to, sizeof to), 0);
    setenv("NOTIFY_SOCKET", w->path, 1);
    setenv("WATCHDOG_USEC", "2000", 1);
    unsetenv("WATCHDOG_PID");
    assert_int_equal(semel__notify_init(&w->notify, &err), SEMEL_OK);
    semel__notify_ready(&w->notify);
    w->lines = tmpfile();
    assert_non_null(w->lines);
    assert_int_equal(semel__log_new(&w->log, fileno(w->lines), SEMEL_LOG_JSON, SEMEL_LOG_INFO, NULL, &err), SEMEL_OK);
    semel__tasks_init(&w->tasks, w->log);
    w->tasks.patience_us = PATIENCE_US;
    *state = w;
    return 0;
}

static int down(void **state)
{
    struct world *w = *state;
    semel__log_free(w->log);
    fclose(w->lines);
    semel__notify_done(&w->notify);
    close(w->manager);
    unlink(w->path);
    rmdir(w->folder);
    free(w);
    return 0;
}

/* How many signs of life have come since the last time. */
static int signs(struct world *w)
{
    char text[256];
    ssize_t n;
    int count = 0;
    while ((n = recv(w->manager, text, sizeof text - 1, 0)) >= 0) {
        text[n] = '\0';
        count += strcmp(text, "WATCHDOG=1") == 0;
    }
    assert_int_equal(errno, EAGAIN);
    return count;
}

static int lines_with(struct world *w, const char *text, const char *name)
{
    char line[2048];
    int count = 0;
    rewind(w->lines);
    while (fgets(line, sizeof line, w->lines) != NULL)
        count += strstr(line, text) != NULL && strstr(line, name) != NULL;
    return count;
}

/* A thread that beats when it is told to, and ends when it is told to. */
struct thread {
    struct semel_task task;
    int orders[2], done[2];
};

static void obey(void *arg)
{
    struct thread *thread = arg;
    for (char order = 'b'; order == 'b' && read(thread->orders[0], &order, 1) == 1;) {
        if (order == 'b')
            semel__task_beat(&thread->task);
        assert_int_equal(write(thread->done[1], &order, 1), 1);
    }
}

static void start(struct world *w, struct thread *thread, const char *name)
{
    struct semel_error err;
    *thread = (struct thread){0};
    assert_int_equal(pipe(thread->orders) | pipe(thread->done), 0);
    semel__task_add(&w->tasks, &thread->task, "%s", name);
    assert_int_equal(semel__task_start(&thread->task, "test", obey, thread, &err), SEMEL_OK);
}

static void order(struct thread *thread, char what)
{
    char done;
    assert_int_equal(write(thread->orders[1], &what, 1), 1);
    assert_int_equal(read(thread->done[0], &done, 1), 1);
}

static void end(struct thread *thread)
{
    order(thread, 'e');
    semel__task_join(&thread->task);
    for (int i = 0; i < 2; i++) {
        close(thread->orders[i]);
        close(thread->done[i]);
    }
}

static void a_thread_that_is_stuck_stops_the_signs_of_life_and_is_named(void **state)
{
    struct world *w = *state;
    struct thread good, bad;
    start(w, &good, "worker 0 of route good");
    start(w, &bad, "source of route bad");
    int64_t now_us = semel__steady_us();
    semel__tasks_watch(&w->tasks, &w->notify, now_us);
    assert_int_equal(signs(w), 1);
    assert_null(semel__tasks_stuck(&w->tasks, now_us));

    atomic_store(&good.task.beat_us, now_us + PATIENCE_US); /* it came round meanwhile; the other one did not */
    int64_t late_us = now_us + PATIENCE_US;
    for (int i = 0; i < 3; i++)
        semel__tasks_watch(&w->tasks, &w->notify, late_us + i * INT64_C(1000000));
    assert_int_equal(signs(w), 0);
    assert_ptr_equal(semel__tasks_stuck(&w->tasks, late_us), &bad.task);
    assert_int_equal(lines_with(w, "a thread is stuck", "source of route bad"), 1); /* once */
    assert_int_equal(lines_with(w, "a thread is stuck", "route good"), 0);

    order(&bad, 'b');
    semel__tasks_watch(&w->tasks, &w->notify, semel__steady_us() + PATIENCE_US / 2);
    assert_int_equal(signs(w), 1);
    assert_int_equal(lines_with(w, "moves again", "source of route bad"), 1);
    end(&good);
    end(&bad);
}

static void a_thread_that_was_not_started_or_has_ended_is_not_stuck(void **state)
{
    struct world *w = *state;
    struct semel_task never = {0};
    struct thread ended;
    semel__task_add(&w->tasks, &never, "never started");
    start(w, &ended, "ended");
    assert_true(semel__task_over(&never));
    assert_false(semel__task_over(&ended.task));
    end(&ended);
    assert_true(semel__task_over(&ended.task));
    semel__tasks_watch(&w->tasks, &w->notify, semel__steady_us() + 2 * PATIENCE_US);
    assert_int_equal(signs(w), 1);
}

static void why_a_task_is_down_is_known_until_it_is_up(void **state)
{
    struct world *w = *state;
    struct semel_task task = {0};
    char why[SEMEL_TASK_WHY];
    semel__task_add(&w->tasks, &task, "one");
    assert_false(semel__task_set_up(&task, false, "connection refused"));
    semel__task_why(&task, why);
    assert_string_equal(why, "connection refused");
    assert_false(semel__task_set_up(&task, true, NULL));
    assert_true(semel__task_set_up(&task, true, NULL));
    semel__task_why(&task, why);
    assert_string_equal(why, "");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        CASE(a_thread_that_is_stuck_stops_the_signs_of_life_and_is_named),
        CASE(a_thread_that_was_not_started_or_has_ended_is_not_stuck),
        CASE(why_a_task_is_down_is_known_until_it_is_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
