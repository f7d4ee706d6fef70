/* SPDX-License-Identifier: MIT
 *
 * ids.c: UUIDs and ULIDs as text.
 *
 *     UUIDv7 (RFC 9562)   tttttttt-tttt-7rrr-Vrrr-rrrrrrrrrrrr   t: 48 bits of milliseconds, V: 8, 9, a or b
 *     ULID                TTTTTTTTTTRRRRRRRRRRRRRRRR             T: the same 48 bits in Crockford's base 32
 *
 * Invariants: an id has a time only if every character of it is right; Crockford's letters for
 * people (I, L and O for 1, 1 and 0) are not part of a ULID.
 */
#include "base/ids.h"

#include <endian.h>
#include <string.h>

#include "base/clock.h"

#define UUID_CHARS (SEMEL_UUID_TEXT - 1)
#define UUID_VARIANT_AT 19
#define ULID_CHARS 26
#define ULID_TIME_CHARS 10
#define FIRST_MS INT64_C(1262304000000) /* 2010 */
#define DAY_US (INT64_C(86400) * 1000000)

static const char hex_digits[] = "0123456789abcdef";
static const char crockford_digits[] = "0123456789abcdefghjkmnpqrstvwxyz";

static int crockford_value(char c)
{
    char lower = c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
    for (int value = 0; crockford_digits[value] != '\0'; value++)
        if (crockford_digits[value] == lower)
            return value;
    return -1;
}

static bool uuid_dash_at(size_t i)
{
    return i == 8 || i == 13 || i == 18 || i == 23;
}

/* Eight hexadecimal digits as four bytes. In a word without high bits, adding 0x80 - c to a byte sets its high bit
 * where it is c or more. *upper gets a bit for a letter in upper case. false: one of them is no digit. */
static inline bool hex8_read(const char *p, unsigned char out[4], uint64_t *upper)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    uint64_t word;
    memcpy(&word, p, sizeof(word));
    word = le64toh(word);
    const uint64_t lower = word | ones * 0x20;
    const uint64_t digit = (word + ones * (0x80 - '0')) & ~(word + ones * (0x80 - '9' - 1)) & high;
    const uint64_t letter = (lower + ones * (0x80 - 'a')) & ~(lower + ones * (0x80 - 'f' - 1)) & high;
    if ((word & high) != 0 || (digit | letter) != high)
        return false;
    *upper |= letter & ~(word << 2); /* 0x20 is missing */
    uint64_t value = (word & ones * 0x0F) + (letter >> 7) * 9;
    value = (value << 4 | value >> 8) & UINT64_C(0x00FF00FF00FF00FF);
    value = (value | value >> 8) & UINT64_C(0x0000FFFF0000FFFF);
    const uint32_t bytes = htole32((uint32_t)(value | value >> 16));
    memcpy(out, &bytes, sizeof(bytes));
    return true;
}

/* The bytes of a UUID of any version. false: it is none. Every id is read so, some more than once. */
static bool uuid_read(struct semel_str s, unsigned char out[16], bool *ret_lower)
{
    const char *p = s.p;
    char middle[16];
    uint64_t upper = 0;
    if (p == NULL || s.n != UUID_CHARS || p[8] != '-' || p[13] != '-' || p[18] != '-' || p[23] != '-')
        return false;
    memcpy(middle, p + 9, 4);
    memcpy(middle + 4, p + 14, 4);
    memcpy(middle + 8, p + 19, 4);
    memcpy(middle + 12, p + 24, 4);
    if (!hex8_read(p, out, &upper) || !hex8_read(middle, out + 4, &upper) || !hex8_read(middle + 8, out + 8, &upper) ||
        !hex8_read(p + 28, out + 12, &upper))
        return false;
    *ret_lower = upper == 0;
    return true;
}

bool semel__uuid_valid(struct semel_str s)
{
    unsigned char bytes[16];
    bool lower;
    return uuid_read(s, bytes, &lower);
}

static bool uuid7_time_ms(struct semel_str id, int64_t *ret_ms, bool *ret_lower)
{
    unsigned char bytes[16];
    if (!uuid_read(id, bytes, ret_lower) || bytes[6] >> 4 != 7 || bytes[8] >> 6 != 2)
        return false;
    *ret_ms = 0;
    for (size_t i = 0; i < 6; i++)
        *ret_ms = *ret_ms << 8 | bytes[i];
    return true;
}

struct semel_str semel__id_key(struct semel_str id, unsigned char out[SEMEL_UUID_KEY])
{
    bool lower;
    if (!uuid_read(id, out + 1, &lower) || !lower)
        return id;
    out[0] = 0;
    return (struct semel_str){(const char *)out, SEMEL_UUID_KEY};
}

int64_t semel__id_key_time(struct semel_str id)
{
    int64_t ms;
    bool lower;
    return uuid7_time_ms(id, &ms, &lower) && lower ? ms * 1000 : SEMEL_NONE;
}

static bool ulid_time_ms(struct semel_str id, int64_t *ret_ms)
{
    if (id.p == NULL || id.n != ULID_CHARS || crockford_value(id.p[0]) > 7)
        return false;
    int64_t ms = 0;
    for (size_t i = 0; i < id.n; i++) {
        int digit = crockford_value(id.p[i]);
        if (digit < 0)
            return false;
        if (i < ULID_TIME_CHARS)
            ms = ms << 5 | digit;
    }
    *ret_ms = ms;
    return true;
}

bool semel__id_time(struct semel_str id, bool ulids, int64_t now_us, int64_t *ret_us)
{
    int64_t ms;
    bool lower;
    if (!uuid7_time_ms(id, &ms, &lower) && !(ulids && ulid_time_ms(id, &ms)))
        return false;
    if (ms < FIRST_MS || ms > semel__time_add(now_us, DAY_US) / 1000)
        return false;
    *ret_us = ms * 1000; /* 2^48 ms is far below the end of int64 */
    return true;
}

void semel__uuid7_new(int64_t now_us, struct semel_random *rng, char out[SEMEL_UUID_TEXT])
{
    uint64_t ms = now_us > 0 ? (uint64_t)now_us / 1000 : 0;
    uint64_t a = semel__random_next(rng), b = semel__random_next(rng);
    uint64_t high = ms << 16 | 0x7000 | (a & 0xFFF);
    uint64_t low = UINT64_C(1) << 63 | (b & UINT64_C(0x3FFFFFFFFFFFFFFF));

    int shift = 60;
    for (size_t i = 0; i < UUID_CHARS; i++) {
        if (uuid_dash_at(i)) {
            out[i] = '-';
            continue;
        }
        out[i] = hex_digits[(i < UUID_VARIANT_AT ? high : low) >> shift & 0xF];
        shift = shift > 0 ? shift - 4 : 60;
    }
    out[UUID_CHARS] = '\0';
}
