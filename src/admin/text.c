/* SPDX-License-Identifier: MIT
 *
 * text.c: parts of JSON. See text.h.
 */
#include "admin/text.h"

#include "base/json.h"

bool semel__json_put_raw(struct semel_buf *buf, struct semel_str text, size_t max)
{
    struct semel_json *json;
    struct semel_error ignored;
    if (!semel__str_given(text) || semel__json_parse(&json, text, max, &ignored) != SEMEL_OK)
        return false;
    semel__json_free(json);
    semel__buf_add(buf, text.p, text.n);
    return true;
}

void semel__json_put_pair(struct semel_buf *buf, const char *name, struct semel_str value)
{
    if (!semel__str_given(value) || !semel__utf8_valid(value))
        return;
    semel__buf_addf(buf, ",\"%s\":", name);
    semel__json_put_string(buf, value);
}
