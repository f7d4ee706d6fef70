/* SPDX-License-Identifier: MIT
 *
 * sql_array.c: one value of many messages as one array of PostgreSQL.
 *
 * Texts, bytes and whole numbers are sent in binary. Everything else is sent as text, {"1.5",NULL,"2026-11-15"}, and
 * the server reads each element as it would read a parameter; a malformed number is sent as text too, and the server
 * reports what is wrong with it.
 *
 * Invariants: elements never run together: every text is quoted, with \ and " escaped.
 */
#include "handler/sql_private.h"

enum { OID_BYTEA = 17, OID_INT8 = 20, OID_INT2 = 21, OID_INT4 = 23, OID_TEXT = 25, OID_VARCHAR = 1043 };

static void put_wire(struct semel_buf *buf, uint64_t v, size_t n)
{
    unsigned char wire[8];
    for (size_t i = 0; i < n; i++)
        wire[i] = (unsigned char)(v >> 8 * (n - 1 - i));
    semel__buf_add(buf, wire, n);
}

static void put_head(struct sql_array *array, bool nulls, size_t n)
{
    put_wire(&array->bytes, 1, 4); /* dimensions */
    put_wire(&array->bytes, nulls, 4);
    put_wire(&array->bytes, array->type, 4);
    put_wire(&array->bytes, n, 4);
    put_wire(&array->bytes, 1, 4); /* the first index */
}

static void put_bytes(struct sql_array *array, const struct sql_value *value)
{
    put_wire(&array->bytes, value->text.n, 4);
    semel__buf_add(&array->bytes, value->text.p, value->text.n);
}

/* The number of bytes of a whole number of this type; 0: it is no such type. */
static size_t width_of(unsigned type)
{
    switch (type) {
    case OID_INT2:
        return 2;
    case OID_INT4:
        return 4;
    case OID_INT8:
        return 8;
    default:
        return 0;
    }
}

/* false: leave it to the server. */
static bool put_number(struct sql_array *array, size_t width, const struct sql_value *value)
{
    const int64_t most = width == 8 ? INT64_MAX : (INT64_C(1) << (8 * width - 1)) - 1;
    int64_t v;
    if (!semel__str_int64(value->text, &v) || v > most || v < -most - 1)
        return false;
    put_wire(&array->bytes, width, 4);
    put_wire(&array->bytes, (uint64_t)v, width);
    return true;
}

static bool put_binary(struct sql_array *array, const struct sql_value *values, size_t step, size_t n)
{
    bool nulls = false;
    size_t width = width_of(array->type);
    if (width == 0 && array->type != OID_TEXT && array->type != OID_VARCHAR && array->type != OID_BYTEA)
        return false;
    for (size_t i = 0; i < n; i++)
        nulls = nulls || values[i * step].kind == SQL_NULL;
    put_head(array, nulls, n);
    for (size_t i = 0; i < n; i++) {
        const struct sql_value *value = &values[i * step];
        if (value->kind == SQL_NULL)
            put_wire(&array->bytes, UINT32_MAX, 4); /* the length that means NULL */
        else if (width == 0)
            put_bytes(array, value);
        else if (!put_number(array, width, value))
            return false;
    }
    return true;
}

static void put_quoted(struct semel_buf *buf, struct semel_str text)
{
    semel__buf_addz(buf, "\"");
    while (text.n > 0) {
        size_t plain = 0;
        while (plain < text.n && text.p[plain] != '"' && text.p[plain] != '\\')
            plain++;
        semel__buf_add(buf, text.p, plain);
        if (plain < text.n) {
            semel__buf_addz(buf, "\\");
            semel__buf_add(buf, text.p + plain++, 1);
        }
        text = (struct semel_str){text.p + plain, text.n - plain};
    }
    semel__buf_addz(buf, "\"");
}

static void put_text(struct sql_array *array, const struct sql_value *values, size_t step, size_t n)
{
    struct semel_buf *buf = &array->bytes;
    semel__buf_addz(buf, "{");
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            semel__buf_add(buf, &array->delimiter, 1);
        if (values[i * step].kind == SQL_NULL)
            semel__buf_addz(buf, "NULL");
        else
            put_quoted(buf, values[i * step].text);
    }
    semel__buf_add(buf, "}", 2); /* and the NUL, for libpq */
}

bool semel__sql_array(struct sql_array *array, const struct sql_value *values, size_t step, size_t n)
{
    array->bytes.n = 0;
    array->bytes.failed = array->bytes.full = false;
    array->binary = put_binary(array, values, step, n);
    if (!array->binary) {
        array->bytes.n = 0;
        put_text(array, values, step, n);
    }
    return !array->bytes.failed;
}
