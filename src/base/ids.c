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

/* The digits of hexadecimal numbers, plus 1; those in upper case also have UPPER. */
#define UPPER 0x40u
static const unsigned char hex_values[256] = {
    ['0'] = 1,          ['1'] = 2,          ['2'] = 3,          ['3'] = 4,          ['4'] = 5,
    ['5'] = 6,          ['6'] = 7,          ['7'] = 8,          ['8'] = 9,          ['9'] = 10,
    ['a'] = 11,         ['b'] = 12,         ['c'] = 13,         ['d'] = 14,         ['e'] = 15,
    ['f'] = 16,         ['A'] = 11 | UPPER, ['B'] = 12 | UPPER, ['C'] = 13 | UPPER, ['D'] = 14 | UPPER,
    ['E'] = 15 | UPPER, ['F'] = 16 | UPPER,
};

/* The bytes of a UUID of any version. false: it is none. Every id is read so, some more than once. */
static bool uuid_read(struct semel_str s, unsigned char out[16], bool *ret_lower)
{
    unsigned seen = 0;
    if (s.p == NULL || s.n != UUID_CHARS)
        return false;
    for (size_t i = 0, n = 0; i < UUID_CHARS; i += 2) {
        if (uuid_dash_at(i) && s.p[i++] != '-')
            return false;
        unsigned high = hex_values[(unsigned char)s.p[i]], low = hex_values[(unsigned char)s.p[i + 1]];
        if (high == 0 || low == 0)
            return false;
        seen |= high | low;
        out[n++] = (unsigned char)(((high & ~UPPER) - 1) << 4 | ((low & ~UPPER) - 1));
    }
    *ret_lower = (seen & UPPER) == 0;
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
