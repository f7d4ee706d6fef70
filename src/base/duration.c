/* SPDX-License-Identifier: MIT
 *
 * duration.c: durations as people write them: "45d", "90s", "1500ms".
 *
 * Invariants: the units are whole multiples of each other, largest first, so that the first one that divides a
 * duration gives its shortest form; parsing a formatted duration gives the same number.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/str.h"

static const struct {
    const char *name;
    int64_t us;
} units[] = {
    {"d", INT64_C(86400000000)}, {"h", INT64_C(3600000000)}, {"m", INT64_C(60000000)},
    {"s", INT64_C(1000000)},     {"ms", INT64_C(1000)},      {"us", INT64_C(1)},
};

#define UNITS (sizeof units / sizeof units[0])

bool semel__duration_parse(struct semel_str text, int64_t *ret_us)
{
    size_t digits = 0;
    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9')
        digits++;
    int64_t number, us;
    if (digits == 0 || !semel__str_int64((struct semel_str){text.p, digits}, &number))
        return false;
    const struct semel_str unit = {text.p + digits, text.n - digits};
    for (size_t i = 0; i < UNITS; i++) {
        if (!semel__str_eqz(unit, units[i].name))
            continue;
        if (__builtin_mul_overflow(number, units[i].us, &us))
            return false;
        *ret_us = us;
        return true;
    }
    return false;
}

void semel__duration_format(int64_t us, char *out, size_t size)
{
    size_t i = 0;
    while (us % units[i].us != 0)
        i++;
    if (us == 0)
        snprintf(out, size, "0s");
    else
        snprintf(out, size, "%lld%s", (long long)(us / units[i].us), units[i].name);
}
