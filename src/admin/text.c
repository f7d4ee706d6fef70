/* SPDX-License-Identifier: MIT
 *
 * text.c: base64 and pieces of JSON, as text.h says.
 *
 * Invariants: what walks JSON here walks a text that the parser has accepted, and still reads no byte past its end.
 */
#include "admin/text.h"

#include "base/json.h"

/* ---- base64 ---------------------------------------------------------------------------------------- */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void semel__base64_put(struct semel_buf *buf, struct semel_str bytes)
{
    char out[1024];
    size_t n = 0;
    for (size_t i = 0; i < bytes.n; i += 3) {
        size_t left = bytes.n - i;
        uint32_t group = (uint32_t)(unsigned char)bytes.p[i] << 16;
        group |= left > 1 ? (uint32_t)(unsigned char)bytes.p[i + 1] << 8 : 0;
        group |= left > 2 ? (uint32_t)(unsigned char)bytes.p[i + 2] : 0;
        out[n++] = alphabet[group >> 18 & 63];
        out[n++] = alphabet[group >> 12 & 63];
        out[n++] = left > 1 ? alphabet[group >> 6 & 63] : '=';
        out[n++] = left > 2 ? alphabet[group & 63] : '=';
        if (n == sizeof(out)) {
            semel__buf_add(buf, out, n);
            n = 0;
        }
    }
    semel__buf_add(buf, out, n);
}

static int value_of(char c)
{
    const char *at = c != '\0' ? strchr(alphabet, c) : NULL;
    return at != NULL ? (int)(at - alphabet) : -1;
}

/* Three bytes of four characters, of which the last `pad` are padding; false: a stray character or bit. */
static bool read_group(const char *p, size_t pad, unsigned char out[3])
{
    uint32_t group = 0;
    for (size_t i = 0; i < 4; i++) {
        int value = i < 4 - pad ? value_of(p[i]) : 0;
        if (value < 0)
            return false;
        group = group << 6 | (uint32_t)value;
    }
    out[0] = (unsigned char)(group >> 16);
    out[1] = (unsigned char)(group >> 8);
    out[2] = (unsigned char)group;
    return (pad < 1 || out[2] == 0) && (pad < 2 || out[1] == 0);
}

enum semel_base64 semel__base64_read(struct semel_str text, struct semel_arena *arena, struct semel_str *ret)
{
    size_t pad = 0, n = 0;
    if (text.n % 4 != 0)
        return SEMEL_BASE64_WRONG;
    while (pad < 2 && pad < text.n && text.p[text.n - 1 - pad] == '=')
        pad++;
    char *out = semel__arena_alloc(arena, text.n / 4 * 3 + 1, 1);
    if (out == NULL)
        return SEMEL_BASE64_MEMORY;
    for (size_t i = 0; i < text.n; i += 4) {
        size_t missing = i + 4 == text.n ? pad : 0;
        unsigned char group[3];
        if (!read_group(text.p + i, missing, group))
            return SEMEL_BASE64_WRONG;
        memcpy(out + n, group, 3 - missing);
        n += 3 - missing;
    }
    *ret = (struct semel_str){out, n};
    return SEMEL_BASE64_OK;
}

/* ---- JSON as it was written ------------------------------------------------------------------------ */

static size_t skip_blanks(struct semel_str s, size_t at)
{
    while (at < s.n && (s.p[at] == ' ' || s.p[at] == '\t' || s.p[at] == '\n' || s.p[at] == '\r'))
        at++;
    return at;
}

static size_t skip_string(struct semel_str s, size_t at)
{
    for (at++; at < s.n && s.p[at] != '"'; at++)
        at += s.p[at] == '\\';
    return at < s.n ? at + 1 : s.n;
}

static size_t skip_value(struct semel_str s, size_t at)
{
    size_t depth = 0;
    while (at < s.n) {
        char c = s.p[at];
        if (c == '"') {
            at = skip_string(s, at);
        } else if (c == '{' || c == '[') {
            depth++;
            at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0)
                return at; /* of what surrounds a number or a word */
            depth--;
            at++;
        } else if (depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
            return at;
        } else {
            at++;
            continue;
        }
        if (depth == 0)
            return at;
    }
    return s.n;
}

bool semel__json_member(struct semel_str object, const char *name, struct semel_str *ret)
{
    size_t at = skip_blanks(object, 0) + 1; /* behind the brace */
    while ((at = skip_blanks(object, at)) < object.n && object.p[at] == '"') {
        size_t key = at + 1;
        at = skip_string(object, at);
        struct semel_str found = {object.p + key, at - key - 1};
        at = skip_blanks(object, at) + 1; /* behind the colon */
        at = skip_blanks(object, at);
        size_t end = skip_value(object, at);
        if (at < object.n && semel__str_eqz(found, name)) {
            *ret = (struct semel_str){object.p + at, end - at};
            return true;
        }
        at = skip_blanks(object, end) + 1; /* behind the comma */
    }
    return false;
}

bool semel__json_element(struct semel_str array, size_t *at, struct semel_str *ret)
{
    size_t i = skip_blanks(array, *at == 0 ? skip_blanks(array, 0) + 1 : *at);
    if (i >= array.n || array.p[i] == ']')
        return false;
    size_t end = skip_value(array, i);
    *ret = (struct semel_str){array.p + i, end - i};
    *at = skip_blanks(array, end);
    if (*at < array.n && array.p[*at] == ',')
        ++*at;
    return true;
}

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
