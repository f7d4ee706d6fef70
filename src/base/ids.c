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
#include "base/str.h"

#define UUID_CHARS (SEMEL_UUID_TEXT - 1)
#define UUID_VERSION_AT 14
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

bool semel__uuid_valid(struct semel_str s)
{
    if (s.p == NULL || s.n != UUID_CHARS)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (uuid_dash_at(i) ? s.p[i] != '-' : semel__hex_value(s.p[i]) < 0)
            return false;
    return true;
}

static bool uuid7_time_ms(struct semel_str id, int64_t *ret_ms)
{
    if (!semel__uuid_valid(id) || id.p[UUID_VERSION_AT] != '7' || semel__hex_value(id.p[UUID_VARIANT_AT]) >> 2 != 2)
        return false;
    uint64_t ms = 0;
    for (size_t i = 0; i < UUID_VERSION_AT; i++)
        if (!uuid_dash_at(i))
            ms = ms << 4 | (uint64_t)semel__hex_value(id.p[i]);
    *ret_ms = (int64_t)ms;
    return true;
}

static bool has_upper(struct semel_str id)
{
    for (size_t i = 0; i < id.n; i++)
        if (id.p[i] >= 'A' && id.p[i] <= 'F')
            return true;
    return false;
}

struct semel_str semel__id_key(struct semel_str id, unsigned char out[SEMEL_UUID_KEY])
{
    if (!semel__uuid_valid(id) || has_upper(id))
        return id;
    size_t n = 0;
    out[n++] = 0;
    for (size_t i = 0; i < id.n; i += 2) {
        i += uuid_dash_at(i);
        out[n++] = (unsigned char)(semel__hex_value(id.p[i]) << 4 | semel__hex_value(id.p[i + 1]));
    }
    return (struct semel_str){(const char *)out, n};
}

int64_t semel__id_key_time(struct semel_str id)
{
    int64_t ms;
    return uuid7_time_ms(id, &ms) && !has_upper(id) ? ms * 1000 : SEMEL_NONE;
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
    if (!uuid7_time_ms(id, &ms) && !(ulids && ulid_time_ms(id, &ms)))
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
