/* SPDX-License-Identifier: MIT
 *
 * clock.c: the machine's clock, and times as text.
 *
 * RFC 3339, section 5.6, strictly: four-digit year, 'T' or 't', 'Z', 'z' or an offset +hh:mm; no blank instead of the
 * T, no missing zone, no comma. "-00:00" (the local offset is not known) is UTC. A leap second is accepted where one
 * can be, at 23:59:60 UTC, and counts as the last microsecond of that day, so that it sorts before the next day;
 * elsewhere :60 is refused.
 *
 * Invariants: a parsed time lies in the years 1970-9999 UTC; formatting it and parsing it again
 * gives the same microsecond.
 */
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/str.h"

#define US_PER_SECOND INT64_C(1000000)
#define SECONDS_PER_DAY INT64_C(86400)
#define YEAR_10000_SECONDS INT64_C(253402300800) /* 10000-01-01T00:00:00Z */

static int64_t real_now_us(void *ctx)
{
    (void)ctx;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * US_PER_SECOND + now.tv_nsec / 1000;
}

const struct semel_clock semel__clock_real = {.now_us = real_now_us};

/* The unread text. Every take_ function advances and returns true, or returns false. */
struct reader {
    const char *p, *end;
};

static bool parse_char(struct reader *r, char upper)
{
    if (r->p == r->end || (*r->p != upper && *r->p != upper + ('a' - 'A')))
        return false;
    r->p++;
    return true;
}

static bool parse_mark(struct reader *r, char mark)
{
    if (r->p == r->end || *r->p != mark)
        return false;
    r->p++;
    return true;
}

static bool parse_digits(struct reader *r, int count, int min, int max, int *ret)
{
    int value = 0;
    for (int i = 0; i < count; i++, r->p++) {
        if (r->p == r->end || !semel__is_digit(*r->p))
            return false;
        value = value * 10 + (*r->p - '0');
    }
    *ret = value;
    return value >= min && value <= max;
}

/* Optional; digits past the sixth are cut. */
static bool parse_fraction(struct reader *r, int *ret_us)
{
    *ret_us = 0;
    if (!parse_mark(r, '.'))
        return true;
    const char *first = r->p;
    for (int scale = 100000; r->p < r->end && semel__is_digit(*r->p); r->p++, scale /= 10)
        *ret_us += (*r->p - '0') * scale;
    return r->p > first;
}

static bool parse_zone(struct reader *r, int *ret_seconds)
{
    *ret_seconds = 0;
    if (parse_char(r, 'Z'))
        return true;
    bool west = parse_mark(r, '-');
    if (!west && !parse_mark(r, '+'))
        return false;
    int hours, minutes;
    if (!parse_digits(r, 2, 0, 23, &hours) || !parse_mark(r, ':') || !parse_digits(r, 2, 0, 59, &minutes))
        return false;
    *ret_seconds = (hours * 60 + minutes) * (west ? -60 : 60);
    return true;
}

static bool is_leap(int year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static int leap_years_before(int year)
{
    return (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
}

/* Days since 1970-01-01; false when the month has no such day. */
static bool parse_date(struct reader *r, int64_t *ret_days)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int year, month, day;
    if (!parse_digits(r, 4, 1969, 9999, &year) || !parse_mark(r, '-') || !parse_digits(r, 2, 1, 12, &month) ||
        !parse_mark(r, '-') || !parse_digits(r, 2, 1, 31, &day))
        return false;
    bool leap = is_leap(year);
    if (day > lengths[month - 1] + (leap && month == 2))
        return false;
    *ret_days = (int64_t)(year - 1970) * 365 + leap_years_before(year) - leap_years_before(1970) + before[month - 1] +
                (leap && month > 2) + day - 1;
    return true;
}

/* Accepts 1969 too: its last hours, west of Greenwich, are in 1970 UTC. */
bool semel__time_parse(struct semel_str s, int64_t *ret_us)
{
    struct reader r = {s.p, s.p != NULL ? s.p + s.n : NULL};
    int64_t days;
    int hour, minute, second, fraction_us, zone_seconds;
    if (!parse_date(&r, &days) || !parse_char(&r, 'T') || !parse_digits(&r, 2, 0, 23, &hour) || !parse_mark(&r, ':') ||
        !parse_digits(&r, 2, 0, 59, &minute) || !parse_mark(&r, ':') || !parse_digits(&r, 2, 0, 60, &second) ||
        !parse_fraction(&r, &fraction_us) || !parse_zone(&r, &zone_seconds) || r.p != r.end)
        return false;

    int64_t seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - zone_seconds;
    if (second == 60) {
        if (seconds % SECONDS_PER_DAY != 0)
            return false;
        seconds--;
        fraction_us = (int)US_PER_SECOND - 1;
    }
    if (seconds < 0 || seconds >= YEAR_10000_SECONDS)
        return false;
    *ret_us = seconds * US_PER_SECOND + fraction_us;
    return true;
}

/* Any int64 has a text, also one that cannot be parsed; SEMEL_NONE is "none". */
void semel__time_format(int64_t us, char out[SEMEL_TIME_TEXT])
{
    if (us == SEMEL_NONE) {
        memcpy(out, "none", sizeof("none"));
        return;
    }
    int64_t fraction_us = us % US_PER_SECOND;
    int64_t seconds = us / US_PER_SECOND;
    if (fraction_us < 0) {
        fraction_us += US_PER_SECOND;
        seconds--;
    }
    time_t t = (time_t)seconds;
    struct tm tm;
    gmtime_r(&t, &tm); /* cannot fail: int64 microseconds reach no further than the year 294247 */
    char text[96];
    snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday,
             tm.tm_hour, tm.tm_min, tm.tm_sec, (int)fraction_us);
    memcpy(out, text, SEMEL_TIME_TEXT);
    out[SEMEL_TIME_TEXT - 1] = '\0';
}

int64_t semel__time_add(int64_t a_us, int64_t b_us)
{
    int64_t sum;
    if (__builtin_add_overflow(a_us, b_us, &sum))
        sum = b_us > 0 ? INT64_MAX : SEMEL_NONE + 1;
    return sum != SEMEL_NONE ? sum : SEMEL_NONE + 1;
}
