/* SPDX-License-Identifier: MIT
 *
 * slow_fsync.c: a library for LD_PRELOAD: fsync and fdatasync take at least SLOW_FSYNC_US microseconds, as on a disk
 * that is slower than this one. bench/run gives it to PostgreSQL's server.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int fsync(int fd);
__attribute__((visibility("default"))) int fdatasync(int fd);

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int slow(long call, int fd)
{
    const char *us = getenv("SLOW_FSYNC_US");
    char *end = NULL;
    const long long slow_us = us != NULL ? strtoll(us, &end, 10) : 0;
    const long long until_ns = now_ns() + (end != us && slow_us > 0 ? slow_us * 1000 : 0);
    const int result = (int)syscall(call, fd);
    const struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        ;
    return result;
}

int fsync(int fd)
{
    return slow(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return slow(SYS_fdatasync, fd);
}
