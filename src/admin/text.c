/* SPDX-License-Identifier: MIT
 *
 * text.c: pieces of JSON and words, as text.h says.
 */
#include "admin/text.h"

#include "base/json.h"

/* ---- JSON ---------------------------------------------------------------------------------------- */

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

/* ---- words ----------------------------------------------------------------------------------------- */

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

bool semel__begins_with(struct semel_str s, const char *prefix)
{
    size_t i = 0;
    while (i < s.n && prefix[i] != '\0' && lower(s.p[i]) == lower(prefix[i]))
        i++;
    return prefix[i] == '\0';
}

bool semel__same_word(struct semel_str a, const char *z)
{
    return a.n == strlen(z) && semel__begins_with(a, z);
}
