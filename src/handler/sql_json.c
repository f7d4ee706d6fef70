/* SPDX-License-Identifier: MIT
 *
 * sql_json.c: what stands at a pointer of a JSON text, found in the text itself.
 *
 * A message has been parsed once for its fingerprint; a handler that wants two fields of it does not need a tree. The
 * caller sees to it that the text is JSON (sql_value.c). Here nothing is checked but what keeps the reading inside.
 *
 * Invariants: no recursion; nothing outside the text is read, whatever it is; numbers keep the digits that were sent.
 */
#include "base/json.h"
#include "handler/sql_private.h"

struct cursor {
    const char *p, *end;
};

static void skip_blanks(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool at(const struct cursor *c, char what)
{
    return c->p < c->end && *c->p == what;
}

/* From the quotation mark past the one that ends it. */
static bool skip_string(struct cursor *c)
{
    for (c->p++; c->p < c->end; c->p++) {
        if (*c->p == '\\' && c->p + 1 < c->end)
            c->p++;
        else if (*c->p == '"') {
            c->p++;
            return true;
        }
    }
    c->p = c->end;
    return false;
}

static bool skip_nest(struct cursor *c)
{
    size_t depth = 0;
    while (c->p < c->end) {
        char ch = *c->p;
        if (ch == '"') {
            if (!skip_string(c))
                return false;
            continue;
        }
        c->p++;
        if (ch == '{' || ch == '[')
            depth++;
        else if ((ch == '}' || ch == ']') && --depth == 0)
            return true;
    }
    return false;
}

static bool skip_value(struct cursor *c)
{
    if (at(c, '"'))
        return skip_string(c);
    if (at(c, '{') || at(c, '['))
        return skip_nest(c);
    const char *start = c->p;
    while (c->p < c->end && strchr(",]} \t\r\n", *c->p) == NULL)
        c->p++;
    return c->p > start;
}

static struct semel_str value_here(struct cursor c)
{
    const char *start = c.p;
    return skip_value(&c) ? (struct semel_str){start, (size_t)(c.p - start)} : (struct semel_str){0};
}

/* ---- members ------------------------------------------------------------------------------------- */

/* The next member of an object: at its value, with its name between the quotation marks. The cursor stands behind the
 * brace or behind the value before. */
static bool next_member(struct cursor *c, bool first, struct semel_str *ret_name)
{
    skip_blanks(c);
    if (!first) {
        if (!at(c, ','))
            return false;
        c->p++;
        skip_blanks(c);
    }
    const char *start = c->p + 1;
    if (!at(c, '"') || !skip_string(c))
        return false;
    *ret_name = (struct semel_str){start, (size_t)(c->p - 1 - start)};
    skip_blanks(c);
    if (!at(c, ':'))
        return false;
    c->p++;
    skip_blanks(c);
    return true;
}

static bool take_hex4(struct cursor *c, uint32_t *ret)
{
    static const char hex[] = "0123456789abcdef";
    uint32_t code = 0;
    if (c->end - c->p < 4)
        return false;
    for (int i = 0; i < 4; i++, c->p++) {
        const char *digit = *c->p != '\0' ? strchr(hex, *c->p >= 'A' ? *c->p | 0x20 : *c->p) : NULL;
        if (digit == NULL)
            return false;
        code = code << 4 | (uint32_t)(digit - hex);
    }
    *ret = code;
    return true;
}

/* Behind a \u. What lies past U+FFFF is written as two halves. */
static size_t take_code(struct cursor *c, char out[4])
{
    uint32_t code, low;
    if (!take_hex4(c, &code) || code == 0 || (code >= 0xDC00 && code < 0xE000))
        return 0;
    if (code < 0xD800 || code >= 0xE000)
        return semel__utf8_put(code, out);
    if (c->end - c->p < 2 || c->p[0] != '\\' || c->p[1] != 'u')
        return 0;
    c->p += 2;
    if (!take_hex4(c, &low) || low < 0xDC00 || low >= 0xE000)
        return 0;
    return semel__utf8_put(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), out);
}

/* One byte of a string, or one character that was escaped: 1 to 4 bytes to `out`; 0: it is malformed. */
static size_t take_char(struct cursor *c, char out[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    out[0] = *c->p++;
    if (out[0] != '\\')
        return 1;
    char escape = c->p < c->end ? *c->p++ : '\0';
    if (escape == 'u')
        return take_code(c, out);
    const char *known = escape != '\0' ? strchr(from, escape) : NULL;
    if (known != NULL)
        out[0] = to[known - from];
    return known != NULL;
}

/* The first character of a token of a pointer, with ~0 and ~1. */
static char take_token_char(struct semel_str *token)
{
    char ch = *token->p;
    if (ch == '~' && token->n > 1) {
        token->p++;
        token->n--;
        ch = *token->p == '1' ? '/' : '~';
    }
    token->p++;
    token->n--;
    return ch;
}

static bool token_names(struct semel_str token, struct semel_str name)
{
    struct cursor c = {name.p, name.p + name.n};
    if (memchr(name.p, '\\', name.n) == NULL && memchr(token.p, '~', token.n) == NULL)
        return token.n == name.n && memcmp(token.p, name.p, name.n) == 0;
    while (c.p < c.end) {
        char bytes[4];
        size_t n = take_char(&c, bytes);
        for (size_t i = 0; i < n; i++)
            if (token.n == 0 || take_token_char(&token) != bytes[i])
                return false;
        if (n == 0)
            return false;
    }
    return token.n == 0;
}

static bool enter_object(struct cursor *c, struct semel_str token)
{
    struct semel_str name;
    c->p++;
    for (bool first = true; next_member(c, first, &name); first = false) {
        if (token_names(token, name))
            return true;
        if (!skip_value(c))
            return false;
    }
    return false;
}

static bool enter_array(struct cursor *c, struct semel_str token)
{
    int64_t index;
    if (!semel__str_int64(token, &index) || token.p[0] == '-' || (token.p[0] == '0' && token.n > 1))
        return false;
    c->p++;
    skip_blanks(c);
    for (; index > 0; index--) {
        if (!skip_value(c))
            return false;
        skip_blanks(c);
        if (!at(c, ','))
            return false;
        c->p++;
        skip_blanks(c);
    }
    return c->p < c->end && *c->p != ']';
}

struct semel_str semel__sql_json_find(struct semel_str json, struct semel_str pointer)
{
    struct cursor c = {json.p, json.p + json.n};
    skip_blanks(&c);
    while (pointer.n > 0) {
        const char *start = pointer.p + 1, *end = pointer.p + pointer.n;
        const char *slash = memchr(start, '/', (size_t)(end - start));
        struct semel_str token = {start, (size_t)((slash != NULL ? slash : end) - start)};
        bool found = at(&c, '{') ? enter_object(&c, token) : at(&c, '[') && enter_array(&c, token);
        if (!found)
            return (struct semel_str){0};
        pointer = (struct semel_str){token.p + token.n, (size_t)(end - (token.p + token.n))};
    }
    return value_here(c);
}

static bool same_name(struct semel_str a, struct semel_str b)
{
    bool same = a.n == b.n;
    for (size_t i = 0; same && i < a.n; i++) {
        char x = a.p[i], y = b.p[i];
        same = (x >= 'A' && x <= 'Z' ? x | 0x20 : x) == (y >= 'A' && y <= 'Z' ? y | 0x20 : y);
    }
    return same;
}

struct semel_str semel__sql_json_member(struct semel_str json, struct semel_str name)
{
    struct cursor c = {json.p, json.p + json.n};
    struct semel_str found;
    skip_blanks(&c);
    if (!at(&c, '{'))
        return (struct semel_str){0};
    c.p++;
    for (bool first = true; next_member(&c, first, &found); first = false) {
        if (same_name(found, name))
            return value_here(c);
        if (!skip_value(&c))
            break;
    }
    return (struct semel_str){0};
}

/* ---- values -------------------------------------------------------------------------------------- */

/* `raw` is what stands between the quotation marks. It never gets longer. */
static bool decode(struct semel_str raw, struct semel_arena *arena, struct semel_str *ret, bool *ret_sound)
{
    struct cursor c = {raw.p, raw.p + raw.n};
    *ret = raw;
    if (memchr(raw.p, '\\', raw.n) == NULL)
        return true;
    char *out = semel__arena_alloc(arena, raw.n, 1);
    size_t n = 0;
    if (out == NULL)
        return false;
    while (c.p < c.end) {
        char bytes[4];
        size_t some = take_char(&c, bytes);
        *ret_sound = *ret_sound && some > 0 && n + some <= raw.n;
        if (!*ret_sound)
            return false;
        memcpy(out + n, bytes, some);
        n += some;
    }
    *ret = (struct semel_str){out, n};
    return true;
}

bool semel__sql_json_value(struct semel_str raw, struct semel_arena *arena, struct sql_value *ret, bool *ret_sound)
{
    *ret_sound = raw.n > 0;
    *ret = (struct sql_value){SQL_TEXT, raw};
    if (raw.n == 0)
        return false;
    switch (raw.p[0]) {
    case '"':
        return decode((struct semel_str){raw.p + 1, raw.n > 1 ? raw.n - 2 : 0}, arena, &ret->text, ret_sound);
    case '{':
    case '[':
        return true;
    case 't':
    case 'f':
        ret->kind = SQL_BOOLEAN;
        return true;
    case 'n':
        *ret = (struct sql_value){SQL_NULL, {0}};
        return true;
    default:
        ret->kind = SQL_INTEGER;
        for (size_t i = 0; i < raw.n; i++)
            if (raw.p[i] == '.' || raw.p[i] == 'e' || raw.p[i] == 'E')
                ret->kind = SQL_REAL;
        return true;
    }
}
