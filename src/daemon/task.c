/* SPDX-License-Identifier: MIT
 *
 * task.c: starts and joins threads, and watches over them.
 */
#define _GNU_SOURCE /* pthread_setname_np */
#include "daemon/task.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/wait.h"

void semel__tasks_init(struct semel_tasks *tasks, struct semel_log *log)
{
    *tasks = (struct semel_tasks){.log = log, .patience_us = SEMEL_TASK_PATIENCE_US};
}

void semel__task_add(struct semel_tasks *tasks, struct semel_task *task, const char *name, ...)
{
    va_list args;
    va_start(args, name);
    (void)vsnprintf(task->name, sizeof(task->name), name, args);
    va_end(args);
    pthread_mutex_init(&task->lock, NULL);
    task->next = tasks->first;
    tasks->first = task;
}

static void *run(void *arg)
{
    struct semel_task *task = arg;
    task->body(task->arg);
    atomic_store(&task->up, false);
    atomic_store(&task->ended, true);
    return NULL;
}

semel_status semel__task_start(struct semel_task *task, const char *thread, void (*body)(void *arg), void *arg,
                               struct semel_error *err)
{
    task->body = body;
    task->arg = arg;
    semel__task_beat(task);
    int rc = pthread_create(&task->id, NULL, run, task);
    if (rc != 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no thread can be started for %s (error %d)",
                           task->name, rc);
    atomic_store(&task->started, true);
    (void)pthread_setname_np(task->id, thread);
    return SEMEL_OK;
}

bool semel__task_over(const struct semel_task *task)
{
    return !atomic_load(&task->started) || atomic_load(&task->ended);
}

void semel__task_join(struct semel_task *task)
{
    if (atomic_exchange(&task->started, false))
        pthread_join(task->id, NULL);
}

void semel__task_beat(struct semel_task *task)
{
    atomic_store_explicit(&task->beat_us, semel__steady_us(), memory_order_relaxed);
}

bool semel__task_set_up(struct semel_task *task, bool up, const char *why)
{
    const bool was_up = atomic_load(&task->up), known = why != NULL && why[0] != '\0';
    if (up && was_up)
        return true;
    pthread_mutex_lock(&task->lock);
    if (up || was_up || known)
        (void)snprintf(task->why_down, sizeof(task->why_down), "%s", up || !known ? "" : why);
    pthread_mutex_unlock(&task->lock);
    return atomic_exchange(&task->up, up);
}

void semel__task_why(struct semel_task *task, char ret[SEMEL_TASK_WHY])
{
    pthread_mutex_lock(&task->lock);
    memcpy(ret, task->why_down, SEMEL_TASK_WHY);
    pthread_mutex_unlock(&task->lock);
}

static bool stuck(const struct semel_tasks *tasks, const struct semel_task *task, int64_t steady_us)
{
    return !semel__task_over(task) && steady_us - atomic_load(&task->beat_us) >= tasks->patience_us;
}

const struct semel_task *semel__tasks_stuck(const struct semel_tasks *tasks, int64_t steady_us)
{
    const struct semel_task *task = tasks->first;
    while (task != NULL && !stuck(tasks, task, steady_us))
        task = task->next;
    return task;
}

void semel__tasks_watch(struct semel_tasks *tasks, struct semel_notify *notify, int64_t steady_us)
{
    bool all = true;
    for (struct semel_task *task = tasks->first; task != NULL; task = task->next) {
        bool now = stuck(tasks, task, steady_us);
        all = all && !now;
        if (now == task->reported)
            continue;
        task->reported = now;
        if (now)
            SEMEL__LOG(tasks->log, SEMEL_LOG_ERROR,
                       "a thread is stuck; the watchdog of systemd gets no sign of life until it moves",
                       SEMEL_F_Z("thread", task->name), SEMEL_F_INT("patience_s", tasks->patience_us / 1000000));
        else
            SEMEL__LOG(tasks->log, SEMEL_LOG_INFO, "a thread that was stuck moves again",
                       SEMEL_F_Z("thread", task->name));
    }
    if (all)
        semel__notify_beat(notify, steady_us);
}
