/* SPDX-License-Identifier: MIT
 *
 * args.h: private to the extension: SQL values as arguments.
 *
 * Invariants: an error names the function, the argument and what would be right, and quotes no value. A text with NUL
 * in it never becomes a C string. Nothing is guessed: bytes are not text, a fraction is not a whole number.
 */
#ifndef SEMEL_EXT_ARGS_H
#define SEMEL_EXT_ARGS_H

#include <sqlite3ext.h>

#include "base/str.h"
#include "semel/semel.h"

#define JSON_MAX (64 << 20)

/* Arguments by position. A value that is NULL, or a pointer that is NULL, is "not given". */
struct ext_args {
    const char *who; /* the function, for errors */
    const char *const *names;
    sqlite3_value *const *values;
    int n; /* what lies beyond is not given */
};

semel_status ext_arg_missing(const struct ext_args *args, int i, struct semel_error *err);
/* Text; a whole number counts as its digits. The bytes live as long as the value. */
semel_status ext_arg_text(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* The same, required, and without NUL in it. */
semel_status ext_arg_name(const struct ext_args *args, int i, const char **ret, struct semel_error *err);
/* Text that is one JSON value. */
semel_status ext_arg_json(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* Any bytes: a BLOB, or the bytes of a text. */
semel_status ext_arg_bytes(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* At most one of the two: JSON text at i, any bytes at i + 1. */
semel_status ext_arg_payload(const struct ext_args *args, int i, struct semel_str *ret, struct semel_error *err);
/* A whole number within bounds; `otherwise` where it is not given. */
semel_status ext_arg_int(const struct ext_args *args, int i, int64_t min, int64_t max, int64_t otherwise, int64_t *ret,
                         struct semel_error *err);
semel_status ext_arg_token(const struct ext_args *args, int i, int64_t *ret, struct semel_error *err);
/* '90s' or a number of seconds; 0 where it is not given: the consumer's own. */
semel_status ext_arg_lease_ms(const struct ext_args *args, int i, int64_t *ret_ms, struct semel_error *err);
/* Microseconds, or RFC 3339 text. */
semel_status ext_arg_time(const struct ext_args *args, int i, int64_t *ret_us, struct semel_error *err);
/* done, transient, permanent, rejected, unknown (or maybe). `otherwise` where it is not given. */
semel_status ext_arg_class(const struct ext_args *args, int i, enum semel_result otherwise, enum semel_result *ret,
                           struct semel_error *err);
#define EXT_REQUEST_ARGS 5
/* A request with an idempotency key, from the first arguments: scope, key, fingerprint; answer and keep in seconds. */
semel_status ext_arg_request(const struct ext_args *args, struct semel_key_request *ret, struct semel_error *err);
/* outside, keyed or atomic; outside where it is not given. */
semel_status ext_arg_effect(const struct ext_args *args, int i, enum semel_key_effect *ret, struct semel_error *err);
/* RETRY: no memory */
semel_status ext_is_json(struct semel_str text, bool *ret);

#endif
