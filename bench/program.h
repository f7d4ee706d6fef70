/* SPDX-License-Identifier: MIT
 *
 * program.h: what the small programs of this folder share. Anything unexpected ends a program with code 1 and one line
 * on stderr that begins with its name, PROGRAM: there is no result then.
 */
#ifndef SEMEL_BENCH_PROGRAM_H
#define SEMEL_BENCH_PROGRAM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline _Noreturn void fail(const char *doing, const char *why)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", doing, why);
    exit(1);
}

static inline int64_t now_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* A word of the command line: from 1 to max. */
static inline long number(const char *text, long max)
{
    char *end;
    const long n = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || n < 1 || n > max)
        fail(text, "a number is expected");
    return n;
}

#endif
