/* SPDX-License-Identifier: MIT
 *
 * number.c: decimals to doubles and back, by way of the C library's correctly rounding strtod and
 * printf.
 *
 * The locale does not matter: the text for strtod has an exponent instead of a decimal point, and we read only the
 * digits and the exponent of printf's text.
 *
 * The shortest decimal: any decimal of at most 15 digits survives as a normal double, so if the
 * double's 15-digit decimal reads back, it is (without its trailing zeros) the shortest; else 16
 * digits are tried, and 17 always do. Among the subnormals even one digit may do, and all lengths
 * are tried. At a power of two the doubles below lie closer than those above, so that the nearest
 * decimal may fail to read back while the next one up succeeds: 2^-44 is 5.684341886080802e-14.
 */
#include "base/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* Beyond these a number of k <= 17 digits is an infinity or zero, whatever its digits. */
#define POINT_MAX 310
#define POINT_MIN (-330)
#define EXPONENT_BOUND INT64_C(1000000000000000) /* more than any text is long */

/* The exponent at p, limited to the bound. */
static int64_t read_exponent(const char *p, const char *end)
{
    bool negative = p < end && *p == '-';
    int64_t value = 0;
    if (p < end && !semel__is_digit(*p))
        p++;
    for (; p < end && semel__is_digit(*p); p++)
        if (value < EXPONENT_BOUND)
            value = value * 10 + (*p - '0');
    return negative ? -value : value;
}

static void strip_zeros(struct semel_decimal *d)
{
    while (d->k > 0 && d->digits[d->k - 1] == '0')
        d->k--;
    d->digits[d->k] = '\0';
}

static void add_digit(struct semel_decimal *d, char digit)
{
    if (d->k < SEMEL_DECIMAL_DIGITS)
        d->digits[d->k++] = digit;
    else if (digit != '0')
        d->cut = true;
}

struct semel_decimal semel__decimal_read(struct semel_str token)
{
    struct semel_decimal d = {.k = 0};
    const char *p = token.p, *end = token.p + token.n;
    if (p < end && *p == '-') {
        d.negative = true;
        p++;
    }
    bool fraction = false;
    for (; p < end && (semel__is_digit(*p) || *p == '.'); p++) {
        if (*p == '.') {
            fraction = true;
        } else if (*p == '0' && d.k == 0) {
            d.n -= fraction; /* a leading zero only moves the point */
        } else {
            add_digit(&d, *p);
            d.n += !fraction;
        }
    }
    if (p < end)
        d.n += read_exponent(p + 1, end);
    strip_zeros(&d);
    if (d.k == 0)
        d.n = 0;
    return d;
}

double semel__decimal_to_double(const struct semel_decimal *d)
{
    double value = 0;
    if (d->k > 0 && d->n > POINT_MAX) {
        value = HUGE_VAL;
    } else if (d->k > 0 && d->n >= POINT_MIN) {
        char text[64];
        snprintf(text, sizeof(text), "%.*se%d", d->k, d->digits, (int)d->n - d->k);
        value = strtod(text, NULL);
    }
    return d->negative ? -value : value;
}

/* Adds one in the last place. 999 becomes 1 with the point moved. */
static void step_up(struct semel_decimal *d)
{
    while (d->k > 0 && d->digits[d->k - 1] == '9')
        d->k--;
    if (d->k > 0) {
        d->digits[d->k - 1]++;
    } else {
        d->digits[d->k++] = '1';
        d->n++;
    }
    d->digits[d->k] = '\0';
}

/* The decimal of k digits that is nearest to a positive double. */
static struct semel_decimal round_to(double value, int k)
{
    char text[64];
    snprintf(text, sizeof(text), "%.*e", k - 1, value);
    struct semel_decimal d = {.k = 0};
    const char *p = text;
    for (; *p != 'e'; p++)
        if (semel__is_digit(*p))
            add_digit(&d, *p);
    d.n = read_exponent(p + 1, p + strlen(p)) + 1;
    strip_zeros(&d);
    return d;
}

struct semel_decimal semel__decimal_of_double(double value)
{
    struct semel_decimal d = {.k = 0};
    double size = fabs(value);
    if (!(size > 0))
        return d;
    for (int k = size < DBL_MIN ? 1 : 15; k <= SEMEL_DECIMAL_DIGITS; k++) {
        d = round_to(size, k);
        if (semel__decimal_to_double(&d) == size)
            break;
        struct semel_decimal above = d;
        while (above.k < k)
            above.digits[above.k++] = '0';
        step_up(&above);
        if (semel__decimal_to_double(&above) == size) {
            d = above;
            break;
        }
    }
    d.negative = value < 0;
    return d;
}

bool semel__decimal_exact(const struct semel_decimal *d)
{
    if (d->cut)
        return false;
    if (d->k == 0 || (d->k <= 15 && d->n > -300 && d->n < 300))
        return true;
    double value = semel__decimal_to_double(d);
    if (!isfinite(value))
        return false;
    struct semel_decimal shortest = semel__decimal_of_double(value);
    return shortest.k == d->k && shortest.n == d->n && memcmp(shortest.digits, d->digits, (size_t)d->k) == 0;
}

/* The digits and the zeros behind them. Most numbers take this path. */
static size_t write_whole(const struct semel_decimal *d, char out[SEMEL_NUMBER_TEXT])
{
    size_t length = 0, k = (size_t)d->k, n = (size_t)d->n;
    if (d->negative)
        out[length++] = '-';
    memcpy(out + length, d->digits, k);
    memset(out + length + k, '0', n - k);
    out[length + n] = '\0';
    return length + n;
}

/* The branches are those of ECMAScript's Number::toString, in its order. */
size_t semel__decimal_write(const struct semel_decimal *d, char out[SEMEL_NUMBER_TEXT])
{
    const char *sign = d->negative ? "-" : "";
    const char *digits = d->digits;
    static const char zeros[] = "000000000000000000000";
    int k = d->k, n = (int)d->n, length;
    if (k > 0 && k <= n && n <= 21)
        return write_whole(d, out);
    if (k == 0)
        length = snprintf(out, SEMEL_NUMBER_TEXT, "0");
    else if (n > 0 && n <= 21)
        length = snprintf(out, SEMEL_NUMBER_TEXT, "%s%.*s.%.*s", sign, n, digits, k - n, digits + n);
    else if (n > -6 && n <= 0)
        length = snprintf(out, SEMEL_NUMBER_TEXT, "%s0.%.*s%.*s", sign, -n, zeros, k, digits);
    else if (k == 1)
        length = snprintf(out, SEMEL_NUMBER_TEXT, "%s%.1se%+d", sign, digits, n - 1);
    else
        length = snprintf(out, SEMEL_NUMBER_TEXT, "%s%.1s.%.*se%+d", sign, digits, k - 1, digits + 1, n - 1);
    return (size_t)length;
}
