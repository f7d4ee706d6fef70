/* SPDX-License-Identifier: MIT
 *
 * number.h: decimal numbers as text, and the doubles they stand for.
 *
 * A semel_decimal is the number 0.DIGITS * 10^n, with k digits of which neither the first nor the last is '0'; k = 0
 * is zero. These are the n and k of ECMAScript's Number::toString, which RFC 8785 uses. Nothing here depends on the
 * locale.
 */
#ifndef SEMEL_BASE_NUMBER_H
#define SEMEL_BASE_NUMBER_H

#include "semel/types.h"

#define SEMEL_DECIMAL_DIGITS 17 /* no double needs more */

struct semel_decimal {
    char digits[SEMEL_DECIMAL_DIGITS + 1];
    int k;
    int64_t n;
    bool negative;
    bool cut; /* the number had more digits than are kept */
};

/* Reads a number in JSON's grammar, which the caller has checked. */
struct semel_decimal semel__decimal_read(struct semel_str token);
/* The shortest decimal that reads back as this double, and of those the nearest. The double is finite. */
struct semel_decimal semel__decimal_of_double(double value);
/* The nearest double: infinity when the number is too large, 0 when it is too small. */
double semel__decimal_to_double(const struct semel_decimal *d);
/* Is the shortest decimal of its double the number itself? Two different numbers that pass are two different doubles
 * (P56). */
bool semel__decimal_exact(const struct semel_decimal *d);

#define SEMEL_NUMBER_TEXT 32
/* As ECMAScript writes it: 1e+21, 1e-7, 0.000001; zero has no sign. At most 17 digits, not cut. Returns the length. */
size_t semel__decimal_write(const struct semel_decimal *d, char out[SEMEL_NUMBER_TEXT]);

#endif
