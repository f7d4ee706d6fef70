/* SPDX-License-Identifier: MIT
 *
 * c11_threads.c: C11's threads by those of POSIX, for programs under the thread sanitizer.
 *
 * The sanitizer sees pthread_create and pthread_mutex_lock, but not thrd_create and mtx_lock, which librdkafka calls: a
 * thread that it has not seen begin crashes it. So these stand in front of libc's. Not a part of any product.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>

#pragma GCC visibility push(default) /* librdkafka must find them */

_Static_assert(sizeof(mtx_t) >= sizeof(pthread_mutex_t), "one is kept in the other");
_Static_assert(sizeof(cnd_t) >= sizeof(pthread_cond_t), "one is kept in the other");
_Static_assert(sizeof(once_flag) >= sizeof(pthread_once_t), "one is kept in the other");
_Static_assert(sizeof(thrd_t) == sizeof(pthread_t), "they are the same");

static int result(int error)
{
    switch (error) {
    case 0:
        return thrd_success;
    case EBUSY:
        return thrd_busy;
    case ENOMEM:
        return thrd_nomem;
    case ETIMEDOUT:
        return thrd_timedout;
    default:
        return thrd_error;
    }
}

/* ---- threads ---- */

struct begin {
    thrd_start_t func;
    void *arg;
};

static void *run(void *arg)
{
    const struct begin begin = *(struct begin *)arg;
    free(arg);
    return (void *)(intptr_t)begin.func(begin.arg);
}

int thrd_create(thrd_t *thread, thrd_start_t func, void *arg)
{
    struct begin *begin = malloc(sizeof *begin);
    int error;
    if (begin == NULL)
        return thrd_nomem;
    *begin = (struct begin){func, arg};
    error = pthread_create(thread, NULL, run, begin);
    if (error != 0)
        free(begin);
    return result(error);
}

int thrd_join(thrd_t thread, int *ret)
{
    void *value;
    int error = pthread_join(thread, &value);
    if (error == 0 && ret != NULL)
        *ret = (int)(intptr_t)value;
    return result(error);
}

/* ---- locks ---- */

static pthread_mutex_t *lock_of(mtx_t *mutex)
{
    return (pthread_mutex_t *)(void *)mutex;
}

int mtx_init(mtx_t *mutex, int type)
{
    pthread_mutexattr_t attr;
    int error = pthread_mutexattr_init(&attr);
    if (error == 0 && (type & mtx_recursive) != 0)
        error = pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    return result(error != 0 ? error : pthread_mutex_init(lock_of(mutex), &attr));
}

int mtx_lock(mtx_t *mutex)
{
    return result(pthread_mutex_lock(lock_of(mutex)));
}

int mtx_unlock(mtx_t *mutex)
{
    return result(pthread_mutex_unlock(lock_of(mutex)));
}

void mtx_destroy(mtx_t *mutex)
{
    (void)pthread_mutex_destroy(lock_of(mutex));
}

/* ---- conditions ---- */

static pthread_cond_t *cond_of(cnd_t *cond)
{
    return (pthread_cond_t *)(void *)cond;
}

int cnd_init(cnd_t *cond)
{
    return result(pthread_cond_init(cond_of(cond), NULL));
}

int cnd_signal(cnd_t *cond)
{
    return result(pthread_cond_signal(cond_of(cond)));
}

int cnd_broadcast(cnd_t *cond)
{
    return result(pthread_cond_broadcast(cond_of(cond)));
}

int cnd_wait(cnd_t *restrict cond, mtx_t *restrict mutex)
{
    return result(pthread_cond_wait(cond_of(cond), lock_of(mutex)));
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict until)
{
    return result(pthread_cond_timedwait(cond_of(cond), lock_of(mutex), until));
}

void cnd_destroy(cnd_t *cond)
{
    (void)pthread_cond_destroy(cond_of(cond));
}

void call_once(once_flag *once, void (*func)(void))
{
    (void)pthread_once((pthread_once_t *)(void *)once, func);
}
