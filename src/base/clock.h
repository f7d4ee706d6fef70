/* SPDX-License-Identifier: MIT
 *
 * clock.h: time as an argument. All times are microseconds since 1970-01-01 UTC (`_us`).
 *
 * Invariants: only semel__clock_real asks the machine for the time; parsing refuses what it does not understand and
 * never guesses a time zone.
 */
#ifndef SEMEL_BASE_CLOCK_H
#define SEMEL_BASE_CLOCK_H

#include "semel/types.h"

struct semel_clock {
    int64_t (*now_us)(void *ctx);
    void *ctx;
};
extern const struct semel_clock semel__clock_real;

static inline int64_t semel__now(const struct semel_clock *clock)
{
    return clock->now_us(clock->ctx);
}

/* RFC 3339 with a zone, as CloudEvents demands; fractions are cut to microseconds. Years 1970-9999. */
bool semel__time_parse(struct semel_str s, int64_t *ret_us);
#define SEMEL_TIME_TEXT 32
void semel__time_format(int64_t us, char out[SEMEL_TIME_TEXT]); /* 2026-11-15T19:38:00.000000Z */
/* a + b, saturating at the ends of the range; never SEMEL_NONE. */
int64_t semel__time_add(int64_t a_us, int64_t b_us);

/* A duration such as "90s" or "45d"; "0s" is valid. false: malformed, or out of range. */
bool semel__duration_parse(struct semel_str text, int64_t *ret_us);
/* The shortest exact form: "45d", "90s", "1500ms". */
void semel__duration_format(int64_t us, char *out, size_t size);

/* Whole seconds that are not over before `us` are: what a client is to wait. */
static inline int64_t semel__whole_seconds(int64_t us)
{
    return us / 1000000 + (us % 1000000 > 0);
}

#endif
