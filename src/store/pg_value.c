/* SPDX-License-Identifier: MIT
 *
 * pg_value.c: values on the wire, in binary.
 *
 * Integers are big-endian. A time is a signed 64-bit number of microseconds since 2000-01-01 UTC; the two ends of the
 * range are -infinity and infinity. An array of one dimension is: dimensions (1), has nulls, type of the items, how
 * many, the first index (1); then each item as its length, or -1 for NULL, and its bytes.
 *
 * Invariants: what does not fit its bound fails the trip, and nothing of it is sent; a time that PostgreSQL cannot hold
 * becomes the nearest that it can; what is read is never longer than the server said, and of the wrong size is no
 * number.
 */
#include <endian.h>

#include "store/pg.h"

#define EPOCH_US INT64_C(946684800000000)       /* 2000-01-01 as we count */
#define TIME_MIN (INT64_C(-211813488000000000)) /* 4714 BC */
#define TIME_END INT64_C(9223371331200000000)   /* the year 294277: the first that is too late */
#define ARRAY_HEAD 20

static const uint32_t item_types[] = {
    [PG_TEXTS] = 25, [PG_BYTES] = 17, [PG_INTS] = 20, [PG_TIMES] = 1184, [PG_BOOLS] = 16};

/* ---- times --------------------------------------------------------------------------------------- */

static int64_t time_out(int64_t us)
{
    int64_t v;
    if (__builtin_sub_overflow(us, EPOCH_US, &v) || v < TIME_MIN)
        return TIME_MIN;
    return v >= TIME_END ? INT64_MAX : v;
}

static int64_t time_in(int64_t v)
{
    int64_t us;
    if (v == INT64_MIN) /* -infinity: before everything, the same as none */
        return SEMEL_NONE;
    return __builtin_add_overflow(v, EPOCH_US, &us) ? INT64_MAX : us;
}

/* ---- parameters ---------------------------------------------------------------------------------- */

static void too_many(struct pg_trip *trip)
{
    if (trip->status == SEMEL_OK)
        trip->status = semel__fail(&trip->err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: too many parameters",
                                   trip->doing);
}

static void param(struct pg_trip *trip, const char *p, size_t at, size_t n, bool null)
{
    if (trip->n_params >= PG_PARAMS_MAX) {
        too_many(trip);
        return;
    }
    trip->params[trip->n_params].p = p;
    trip->params[trip->n_params].at = at;
    trip->params[trip->n_params].n = n;
    trip->params[trip->n_params].null = null;
    trip->n_params++;
}

static void fixed(struct pg_trip *trip, const void *bytes, size_t n)
{
    size_t at = trip->bytes.n;
    semel__buf_add(&trip->bytes, bytes, n);
    param(trip, NULL, at, n, false);
}

void semel__pg_null(struct pg_trip *trip)
{
    param(trip, NULL, 0, 0, true);
}

void semel__pg_copied(struct pg_trip *trip, struct semel_str s)
{
    fixed(trip, s.p, s.n);
}

void semel__pg_text(struct pg_trip *trip, struct semel_str s)
{
    param(trip, s.p, 0, s.n, !semel__str_given(s));
}

void semel__pg_key(struct pg_trip *trip, struct semel_str s)
{
    semel__pg_text(trip, semel__str_given(s) ? s : SEMEL_STR(""));
}

void semel__pg_int(struct pg_trip *trip, int64_t v)
{
    uint64_t wire = htobe64((uint64_t)v);
    if (v == SEMEL_NONE)
        semel__pg_null(trip);
    else
        fixed(trip, &wire, sizeof(wire));
}

void semel__pg_time(struct pg_trip *trip, int64_t us)
{
    uint64_t wire = htobe64((uint64_t)time_out(us));
    if (us == SEMEL_NONE)
        semel__pg_null(trip);
    else
        fixed(trip, &wire, sizeof(wire));
}

void semel__pg_bool(struct pg_trip *trip, bool v)
{
    char wire = v ? 1 : 0;
    fixed(trip, &wire, sizeof(wire));
}

/* ---- arrays -------------------------------------------------------------------------------------- */

static void put32(struct pg_trip *trip, uint32_t v)
{
    v = htobe32(v);
    semel__buf_add(&trip->bytes, &v, sizeof(v));
}

void semel__pg_array(struct pg_trip *trip, enum pg_kind kind, size_t n)
{
    trip->array_at = trip->bytes.n;
    trip->array_n = n;
    put32(trip, n > 0 ? 1 : 0); /* an empty array has no dimension */
    put32(trip, 1);             /* it may have nulls */
    put32(trip, item_types[kind]);
    if (n == 0)
        return;
    put32(trip, n <= INT32_MAX ? (uint32_t)n : 0);
    put32(trip, 1);
}

static void item(struct pg_trip *trip, const void *bytes, size_t n)
{
    if (n > INT32_MAX) {
        trip->bytes.failed = trip->bytes.full = true;
        return;
    }
    put32(trip, (uint32_t)n);
    semel__buf_add(&trip->bytes, bytes, n);
}

static void item_null(struct pg_trip *trip)
{
    put32(trip, UINT32_MAX);
}

void semel__pg_item_text(struct pg_trip *trip, struct semel_str s)
{
    if (semel__str_given(s))
        item(trip, s.p, s.n);
    else
        item_null(trip);
}

void semel__pg_item_int(struct pg_trip *trip, int64_t v)
{
    uint64_t wire = htobe64((uint64_t)v);
    if (v == SEMEL_NONE)
        item_null(trip);
    else
        item(trip, &wire, sizeof(wire));
}

void semel__pg_item_time(struct pg_trip *trip, int64_t us)
{
    uint64_t wire = htobe64((uint64_t)time_out(us));
    if (us == SEMEL_NONE)
        item_null(trip);
    else
        item(trip, &wire, sizeof(wire));
}

void semel__pg_item_bool(struct pg_trip *trip, bool v)
{
    char wire = v ? 1 : 0;
    item(trip, &wire, sizeof(wire));
}

void semel__pg_array_end(struct pg_trip *trip)
{
    param(trip, NULL, trip->array_at, trip->bytes.n - trip->array_at, false);
}

/* ---- results ------------------------------------------------------------------------------------- */

/* The bytes of a cell; NULL: there is no such cell, or it is null. */
static const char *cell(const PGresult *res, int row, int col, size_t *ret_n)
{
    if (row >= PQntuples(res) || col >= PQnfields(res) || PQgetisnull(res, row, col) || PQfformat(res, col) != 1)
        return NULL;
    *ret_n = (size_t)PQgetlength(res, row, col);
    return PQgetvalue(res, row, col);
}

static int64_t number(const PGresult *res, int row, int col)
{
    size_t n = 0;
    const char *p = cell(res, row, col, &n);
    uint64_t wide;
    uint32_t narrow;
    uint16_t small;
    if (p != NULL && n == sizeof(wide)) {
        memcpy(&wide, p, n);
        return (int64_t)be64toh(wide);
    }
    if (p != NULL && n == sizeof(narrow)) {
        memcpy(&narrow, p, n);
        return (int32_t)be32toh(narrow);
    }
    if (p != NULL && n == sizeof(small)) {
        memcpy(&small, p, n);
        return (int16_t)be16toh(small);
    }
    return SEMEL_NONE;
}

int64_t semel__pg_get_int(const PGresult *res, int row, int col)
{
    return number(res, row, col);
}

int64_t semel__pg_get_time(const PGresult *res, int row, int col)
{
    return time_in(number(res, row, col));
}

bool semel__pg_get_bool(const PGresult *res, int row, int col)
{
    size_t n = 0;
    const char *p = cell(res, row, col, &n);
    return p != NULL && n == 1 && p[0] != 0;
}

struct semel_str semel__pg_get_text(const PGresult *res, int row, int col)
{
    size_t n = 0;
    const char *p = cell(res, row, col, &n);
    return (struct semel_str){p, p != NULL ? n : 0};
}

semel_status semel__pg_copy(const PGresult *res, int row, int col, size_t max, struct semel_arena *arena,
                            struct semel_str *ret, struct semel_error *err)
{
    struct semel_str s = semel__pg_get_text(res, row, col);
    if (s.n > max)
        s.n = max;
    return semel__arena_copy(arena, s, ret) ? SEMEL_OK : semel__fail_memory(err);
}

size_t semel__pg_affected(const PGresult *res)
{
    int64_t n = 0;
    const char *text = PQcmdTuples((PGresult *)res); /* reads only */
    return semel__str_int64(semel__str(text), &n) && n > 0 ? (size_t)n : 0;
}
