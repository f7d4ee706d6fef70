/* SPDX-License-Identifier: MIT
 *
 * task.h: a thread of the daemon, and what others may know of it.
 *
 * Every thread of the daemon is a task. A task beats whenever it comes round; one that has not beaten for three minutes
 * is stuck: no statement, no poll and no wait takes as long. While a task is stuck the service manager gets no sign of
 * life, so that its watchdog ends the process, and the log names the task.
 *
 * Invariants: tasks are added before any thread starts, and stay. Whatever starts, ends: a task that was started is
 * joined.
 */
#ifndef SEMEL_DAEMON_TASK_H
#define SEMEL_DAEMON_TASK_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "daemon/notify.h"
#include "semel/types.h"

#define SEMEL_TASK_PATIENCE_US (INT64_C(180) * 1000000)
#define SEMEL_TASK_WHY 300 /* bytes of a reason */

struct semel_task {
    struct semel_task *next;
    char name[96]; /* "worker 0 of route billing" */
    pthread_t id;
    void (*body)(void *arg);
    void *arg;
    atomic_bool started, ended;
    atomic_bool up;          /* connected, and able to do its work */
    _Atomic int64_t beat_us; /* by the steady clock */
    bool reported;           /* as stuck; of the thread that watches */
    pthread_mutex_t lock;
    char why_down[SEMEL_TASK_WHY]; /* under the lock */
};

struct semel_tasks {
    struct semel_task *first;
    struct semel_log *log;
    int64_t patience_us;
};

void semel__tasks_init(struct semel_tasks *tasks, struct semel_log *log);
/* Adds the task, which must be zeroed, and lives as long as the tasks. */
__attribute__((format(printf, 3, 4))) void semel__task_add(struct semel_tasks *tasks, struct semel_task *task,
                                                           const char *name, ...);
/* `thread` is what ps shows, of at most 15 bytes. */
semel_status semel__task_start(struct semel_task *task, const char *thread, void (*body)(void *arg), void *arg,
                               struct semel_error *err);
/* It was never started, or its body has returned. */
bool semel__task_over(const struct semel_task *task);
void semel__task_join(struct semel_task *task);

/* ---- by the task itself ---- */

void semel__task_beat(struct semel_task *task);
/* why: NULL or "" where it is not known: then that of before stays. Returns whether it was up. */
bool semel__task_set_up(struct semel_task *task, bool up, const char *why);

/* ---- by any thread ---- */

/* The last reason why it was down; "": none is known. */
void semel__task_why(struct semel_task *task, char ret[SEMEL_TASK_WHY]);
/* A task that is stuck; NULL: none is. */
const struct semel_task *semel__tasks_stuck(const struct semel_tasks *tasks, int64_t steady_us);

/* By the thread that watches, often: a sign of life to the service manager, unless a task is stuck. Logs once which. */
void semel__tasks_watch(struct semel_tasks *tasks, struct semel_notify *notify, int64_t steady_us);

#endif
