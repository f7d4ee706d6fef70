/* SPDX-License-Identifier: MIT
 *
 * wait.c: the steady clock, and waiting by it.
 */
#include "base/wait.h"

#include <poll.h>
#include <time.h>

int64_t semel__steady_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t semel__boot_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void semel__rest(int ms)
{
    (void)poll(NULL, 0, ms);
}

bool semel__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return false;
    bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_cond_init(cond, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return ok;
}

bool semel__cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us)
{
    struct timespec until = {until_us / 1000000, (long)(until_us % 1000000) * 1000};
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}
