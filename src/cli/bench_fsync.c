/* SPDX-License-Identifier: MIT
 *
 * bench_fsync.c: what the machine gives: the cost of an fsync where the store lies, and the memory of this process.
 *
 * Without the first, no rate of a durable store can be compared with one of another machine.
 */
#define _GNU_SOURCE /* mkostemp */

#include "cli/bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

#define TRIES 101
#define BLOCK 512

static int cmp_double(const void *va, const void *vb)
{
    double a = *(const double *)va, b = *(const double *)vb;
    return (a > b) - (a < b);
}

double bench_percentile(double *values, size_t n, double share)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, cmp_double);
    size_t at = (size_t)(share * (double)(n - 1) + 0.5);
    return values[at < n ? at : n - 1];
}

static double measure(int fd)
{
    char block[BLOCK] = {0};
    double took_us[TRIES];
    for (size_t i = 0; i < TRIES; i++) {
        block[0] = (char)i;
        if (pwrite(fd, block, sizeof block, (off_t)(i * sizeof block)) != (ssize_t)sizeof block)
            return -1;
        int64_t start_us = semel__now(&semel__clock_real);
        if (fsync(fd) != 0)
            return -1;
        took_us[i] = (double)(semel__now(&semel__clock_real) - start_us);
    }
    return bench_percentile(took_us, TRIES, 0.5);
}

double bench_fsync_us(const char *folder)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/semel-fsync-XXXXXX", folder);
    if (n < 0 || (size_t)n >= sizeof path)
        return -1;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -1;
    double us = measure(fd);
    close(fd);
    unlink(path);
    return us;
}

double bench_rss_mb(void)
{
    char line[256] = "";
    int64_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    const char *first = fgets(line, sizeof line, file); /* size, resident, ... in pages */
    fclose(file);
    const char *blank = first != NULL ? strchr(first, ' ') : NULL;
    if (blank == NULL || !semel__str_int64((struct semel_str){blank + 1, strcspn(blank + 1, " ")}, &pages))
        return 0;
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}
