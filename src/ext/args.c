/* SPDX-License-Identifier: MIT
 *
 * args.c: SQL values as arguments. See args.h.
 */
#include "ext/args.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

SQLITE_EXTENSION_INIT3

#define MS_PER_SECOND 1000
#define LEASE_MAX_MS (INT64_C(86400) * MS_PER_SECOND)

static sqlite3_value *value_of(const struct ext_args *args, int i)
{
    return i < args->n ? args->values[i] : NULL;
}

static int type_of(const struct ext_args *args, int i)
{
    sqlite3_value *value = value_of(args, i);
    return value != NULL ? sqlite3_value_type(value) : SQLITE_NULL;
}

static semel_status refuse(const struct ext_args *args, int i, const char *right, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s: %s %s", args->who, args->names[i], right);
}

semel_status ext_arg_missing(const struct ext_args *args, int i, struct semel_error *err)
{
    return refuse(args, i, "is missing", err);
}

/* ---- bytes and text ------------------------------------------------------------------------------ */

static semel_status text_of(sqlite3_value *value, struct semel_str *ret, struct semel_error *err)
{
    const char *p = (const char *)sqlite3_value_text(value);
    if (p == NULL)
        return semel__fail_memory(err);
    *ret = (struct semel_str){p, (size_t)sqlite3_value_bytes(value)};
    return SEMEL_OK;
}

/* Text; a whole number counts as its digits. The bytes live as long as the value. */
semel_status ext_arg_text(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err)
{
    *ret = (struct semel_str){0};
    switch (type_of(args, i)) {
    case SQLITE_NULL:
        return SEMEL_OK;
    case SQLITE_TEXT:
    case SQLITE_INTEGER:
        return text_of(value_of(args, i), ret, err);
    case SQLITE_BLOB:
        return refuse(args, i, "must be text, and is a BLOB", err);
    default:
        return refuse(args, i, "must be text", err);
    }
}

/* The same, required, and without NUL in it. */
semel_status ext_arg_name(const struct ext_args *args, int i, const char **ret, struct semel_error *err)
{
    struct semel_str text = {0};
    semel_status status = ext_arg_text(args, i, &text, err);
    if (status != SEMEL_OK)
        return status;
    if (!semel__str_given(text))
        return ext_arg_missing(args, i, err);
    if (memchr(text.p, '\0', text.n) != NULL)
        return refuse(args, i, "must not have NUL in it", err);
    *ret = text.p;
    return SEMEL_OK;
}

/* RETRY: no memory */
semel_status ext_is_json(struct semel_str text, bool *ret)
{
    struct semel_json *json = NULL;
    semel_status status = semel__json_parse(&json, text, JSON_MAX, NULL);
    semel__json_free(json);
    *ret = status == SEMEL_OK;
    return status == SEMEL_INVALID ? SEMEL_OK : status;
}

/* Text that is one JSON value. */
semel_status ext_arg_json(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_error why = {0};
    semel_status status;
    if (type_of(args, i) == SQLITE_BLOB)
        return refuse(args, i, "must be JSON text, and is a BLOB", err);
    status = ext_arg_text(args, i, ret, err);
    if (status != SEMEL_OK || !semel__str_given(*ret))
        return status;
    status = semel__json_parse(&json, *ret, JSON_MAX, &why);
    semel__json_free(json);
    if (status == SEMEL_INVALID)
        return semel__fail(err, status, SEMEL_CLASS_PERMANENT, "%s: %s must be JSON: %s", args->who, args->names[i],
                           why.text);
    if (status != SEMEL_OK)
        *err = why;
    return status;
}

/* Any bytes: a BLOB, or the bytes of a text. */
semel_status ext_arg_bytes(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err)
{
    sqlite3_value *value = value_of(args, i);
    const char *p;
    if (type_of(args, i) != SQLITE_BLOB) /* of zero bytes, SQLite gives no pointer */
        return ext_arg_text(args, i, ret, err);
    p = sqlite3_value_blob(value);
    *ret = (struct semel_str){p != NULL ? p : "", (size_t)sqlite3_value_bytes(value)};
    return p == NULL && ret->n > 0 ? semel__fail_memory(err) : SEMEL_OK;
}

/* At most one of the two: JSON text at i, any bytes at i + 1. */
semel_status ext_arg_payload(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err)
{
    struct semel_str raw = {0};
    semel_status status = ext_arg_json(args, i, ret, err);
    if (status == SEMEL_INVALID && type_of(args, i) == SQLITE_BLOB)
        return refuse(args, i, "must be JSON text; bytes are passed as raw", err);
    if (status == SEMEL_OK)
        status = ext_arg_bytes(args, i + 1, &raw, err);
    if (status != SEMEL_OK || !semel__str_given(raw))
        return status;
    if (semel__str_given(*ret))
        return refuse(args, i, "and raw are both given; give one of them", err);
    *ret = raw;
    return SEMEL_OK;
}

/* ---- numbers and times --------------------------------------------------------------------------- */

/* A whole number within bounds; `otherwise` where it is not given. */
semel_status ext_arg_int(const struct ext_args *args, int i, int64_t min, int64_t max, int64_t otherwise, int64_t *ret,
                         struct semel_error *err)
{
    sqlite3_value *value = value_of(args, i);
    *ret = otherwise;
    if (type_of(args, i) == SQLITE_NULL)
        return SEMEL_OK;
    if (type_of(args, i) == SQLITE_BLOB || sqlite3_value_numeric_type(value) != SQLITE_INTEGER)
        return refuse(args, i, "must be a whole number", err);
    *ret = sqlite3_value_int64(value);
    if (*ret >= min && *ret <= max)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s: %s must be from %lld to %lld", args->who,
                       args->names[i], (long long)min, (long long)max);
}

semel_status ext_arg_token(const struct ext_args *args, int i, int64_t *ret, struct semel_error *err)
{
    if (type_of(args, i) == SQLITE_NULL)
        return ext_arg_missing(args, i, err);
    return ext_arg_int(args, i, 1, INT64_MAX, 0, ret, err);
}

/* A whole number and ms, s, m, h or d; false: it is none, or too long. */
static bool duration_ms(struct semel_str text, int64_t *ret_ms)
{
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    size_t digits = 0;
    int64_t n;
    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9')
        digits++;
    if (!semel__str_int64((struct semel_str){text.p, digits}, &n))
        return false;
    for (int i = 0; i < (int)(sizeof(units) / sizeof(units[0])); i++)
        if (semel__str_eqz((struct semel_str){text.p + digits, text.n - digits}, units[i].unit))
            return !__builtin_mul_overflow(n, units[i].ms, ret_ms);
    return false;
}

/* '90s' or a number of seconds; 0 where it is not given: the consumer's own. */
semel_status ext_arg_lease_ms(const struct ext_args *args, int i, int64_t *ret_ms, struct semel_error *err)
{
    sqlite3_value *value = value_of(args, i);
    struct semel_str text = {0};
    double seconds;
    *ret_ms = 0;
    switch (type_of(args, i)) {
    case SQLITE_NULL:
        return SEMEL_OK;
    case SQLITE_INTEGER:
    case SQLITE_FLOAT:
        seconds = sqlite3_value_double(value);
        if (seconds > 0 && seconds * MS_PER_SECOND <= (double)LEASE_MAX_MS)
            *ret_ms = (int64_t)(seconds * MS_PER_SECOND);
        break;
    case SQLITE_TEXT:
        if (text_of(value, &text, err) != SEMEL_OK)
            return SEMEL_RETRY;
        if (!duration_ms(text, ret_ms))
            *ret_ms = 0;
        break;
    default:
        break;
    }
    if (*ret_ms > 0 && *ret_ms <= LEASE_MAX_MS)
        return SEMEL_OK;
    return refuse(args, i, "must be a duration such as '60s' or '5m', or a number of seconds, from 1ms to 1d", err);
}

/* Microseconds, or RFC 3339 text. */
semel_status ext_arg_time(const struct ext_args *args, int i, int64_t *ret_us, struct semel_error *err)
{
    struct semel_str text = {0};
    *ret_us = SEMEL_NONE;
    switch (type_of(args, i)) {
    case SQLITE_NULL:
        return SEMEL_OK;
    case SQLITE_INTEGER:
        *ret_us = sqlite3_value_int64(value_of(args, i));
        if (*ret_us >= 0)
            return SEMEL_OK;
        break;
    case SQLITE_TEXT:
        if (text_of(value_of(args, i), &text, err) != SEMEL_OK)
            return SEMEL_RETRY;
        if (semel__time_parse(text, ret_us))
            return SEMEL_OK;
        break;
    default:
        break;
    }
    return refuse(args, i, "must be microseconds since 1970, or a time with its zone such as '2026-11-15T19:38:00Z'",
                  err);
}

/* done, transient, permanent, rejected, unknown (or maybe). `otherwise` where it is not given. */
semel_status ext_arg_class(const struct ext_args *args, int i, enum semel_result otherwise, enum semel_result *ret,
                           struct semel_error *err)
{
    struct semel_str text = {0};
    semel_status status = ext_arg_text(args, i, &text, err);
    *ret = otherwise;
    if (status != SEMEL_OK || !semel__str_given(text) || semel__result_parse(text, ret))
        return status;
    *ret = SEMEL_MAYBE;
    if (semel__str_eqz(text, "unknown"))
        return SEMEL_OK;
    return refuse(args, i, "must be done, transient, permanent, rejected or unknown", err);
}

#define KEEP_S_MAX (INT64_C(3650) * 86400)

semel_status ext_arg_request(const struct ext_args *args, struct semel_key_request *ret, struct semel_error *err)
{
    int64_t answer_s = 86400, keep_s = 30 * 86400;
    semel_key_request_init(ret);
    semel_status status = ext_arg_text(args, 0, &ret->scope, err);
    if (status == SEMEL_OK)
        status = ext_arg_text(args, 1, &ret->key, err);
    if (status == SEMEL_OK)
        status = ext_arg_bytes(args, 2, &ret->fingerprint, err);
    if (status == SEMEL_OK)
        status = ext_arg_int(args, 3, 86400, KEEP_S_MAX, answer_s, &answer_s, err);
    if (status == SEMEL_OK)
        status = ext_arg_int(args, 4, 86400, KEEP_S_MAX, keep_s, &keep_s, err);
    ret->answer_ms = answer_s * 1000;
    ret->keep_ms = keep_s * 1000;
    return status;
}

semel_status ext_arg_effect(const struct ext_args *args, int i, enum semel_key_effect *ret, struct semel_error *err)
{
    static const char *const names[] = {"atomic", "outside", "keyed"};
    struct semel_str word = {0};
    semel_status status = ext_arg_text(args, i, &word, err);
    *ret = SEMEL_KEY_OUTSIDE;
    if (status != SEMEL_OK || !semel__str_given(word))
        return status;
    for (int e = 0; e < 3; e++)
        if (semel__str_eqz(word, names[e])) {
            *ret = (enum semel_key_effect)e;
            return SEMEL_OK;
        }
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: effect must be outside, keyed or atomic",
                       args->who);
}
