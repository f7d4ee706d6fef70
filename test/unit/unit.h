/* SPDX-License-Identifier: MIT
 *
 * unit.h: cmocka with the headers it wants before it, and a way to fail one allocation.
 */
#ifndef SEMEL_TEST_UNIT_H
#define SEMEL_TEST_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Fails the at-th allocation, counted from 1, and no other; `seen` says how many were asked for. */
struct fail_nth {
    unsigned at, seen;
};

static inline bool fail_nth_hook(void *ctx)
{
    struct fail_nth *fail = ctx;
    return ++fail->seen != fail->at;
}

static inline void fail_nth_begin(struct fail_nth *fail, unsigned at)
{
    *fail = (struct fail_nth){.at = at};
    semel__alloc_set_hook(fail_nth_hook, fail);
}

/* Whether the allocation that was to fail was reached. */
static inline bool fail_nth_end(const struct fail_nth *fail)
{
    semel__alloc_set_hook(NULL, NULL);
    return fail->seen >= fail->at;
}

static inline void assert_str(struct semel_str s, const char *expected)
{
    assert_non_null(s.p);
    assert_int_equal(s.n, strlen(expected));
    assert_memory_equal(s.p, expected, s.n);
}

#endif
