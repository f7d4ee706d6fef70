/* SPDX-License-Identifier: MIT
 *
 * json.c: the parser of RFC 8259, strictly. Pointers are in pointer.c, the canonical form in canonical.c.
 *
 * The text is copied once; strings are decoded in place, which never lengthens them, so that a
 * string's bytes begin where they stood in the text. The members of an object are sorted when
 * its brace closes: duplicates are then neighbours, and the canonical form needs no other order.
 *
 * Invariants: recursion happens only in parse_value, and depth is checked before; no loop is
 * worse than n log n; a failed allocation is RETRY, never INVALID, so that a lack of memory condemns
 * no message; a document takes at most ARENA_PER_BYTE times its text, and a little.
 */
#include "base/json.h"

#include <math.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/number.h"

#define ARENA_PER_BYTE 64
#define ARENA_EXTRA 8192

struct parser {
    char *base, *p, *end;
    struct semel_json *json;
    int depth;
    struct semel_error *err;
};

static semel_status parse_value(struct parser *ps, struct semel_json_node *node);

static semel_status refuse(struct parser *ps, const char *at, const char *what)
{
    return semel__fail(ps->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "JSON: %s at byte %zu", what,
                       (size_t)(at - ps->base));
}

static void skip_blanks(struct parser *ps)
{
    while (ps->p < ps->end && (*ps->p == ' ' || *ps->p == '\t' || *ps->p == '\n' || *ps->p == '\r'))
        ps->p++;
}

static bool next_is(const struct parser *ps, char c)
{
    return ps->p < ps->end && *ps->p == c;
}

static bool next_is_digit(const struct parser *ps)
{
    return ps->p < ps->end && *ps->p >= '0' && *ps->p <= '9';
}

/* Four hexadecimal digits; false leaves the parser where it was. */
static bool take_hex4(struct parser *ps, uint32_t *ret)
{
    if (ps->end - ps->p < 4)
        return false;
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = ps->p[i];
        if (c >= '0' && c <= '9')
            value = value << 4 | (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            value = value << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return false;
    }
    ps->p += 4;
    *ret = value;
    return true;
}

/* Behind "\u". A character past U+FFFF takes two escapes, and half of one is no character. */
static semel_status parse_unicode(struct parser *ps, char **w)
{
    const char *at = ps->p - 2;
    uint32_t c, low;
    if (!take_hex4(ps, &c))
        return refuse(ps, at, "a bad escape");
    if (c == 0)
        return refuse(ps, at, "a NUL in a string");
    if (c >= 0xDC00 && c <= 0xDFFF)
        return refuse(ps, at, "half of a surrogate pair");
    if (c >= 0xD800 && c <= 0xDBFF) {
        if (ps->end - ps->p < 2 || ps->p[0] != '\\' || ps->p[1] != 'u')
            return refuse(ps, at, "half of a surrogate pair");
        ps->p += 2;
        if (!take_hex4(ps, &low) || low < 0xDC00 || low > 0xDFFF)
            return refuse(ps, at, "half of a surrogate pair");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    *w += semel__utf8_put(c, *w);
    return SEMEL_OK;
}

static semel_status parse_escape(struct parser *ps, char **w)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *at = ps->p++;
    if (ps->p == ps->end)
        return refuse(ps, at, "a bad escape");
    char c = *ps->p++;
    if (c == 'u')
        return parse_unicode(ps, w);
    const char *name = c != '\0' ? strchr(names, c) : NULL;
    if (name == NULL)
        return refuse(ps, at, "a bad escape");
    *(*w)++ = values[name - names];
    return SEMEL_OK;
}

/* How many bytes from here on are ASCII and stand for themselves. */
static size_t plain_run(const struct parser *ps)
{
    const char *p = ps->p;
    while (p < ps->end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' && *p != '\\')
        p++;
    return (size_t)(p - ps->p);
}

static semel_status parse_string(struct parser *ps, struct semel_str *ret)
{
    char *start = ++ps->p, *w = start;
    while (ps->p < ps->end && *ps->p != '"') {
        uint32_t c;
        if (*ps->p == '\\') {
            semel_status status = parse_escape(ps, &w);
            if (status != SEMEL_OK)
                return status;
            continue;
        }
        size_t n = plain_run(ps);
        if (n == 0) {
            n = semel__utf8_next((struct semel_str){ps->p, (size_t)(ps->end - ps->p)}, &c);
            if (n == 0)
                return refuse(ps, ps->p, "not UTF-8");
            if (c < 0x20)
                return refuse(ps, ps->p, "a control character in a string");
        }
        if (w != ps->p)
            memmove(w, ps->p, n);
        w += n;
        ps->p += n;
    }
    if (ps->p == ps->end)
        return refuse(ps, ps->p, "a string without end");
    ps->p++;
    *ret = (struct semel_str){start, (size_t)(w - start)};
    return SEMEL_OK;
}

/* Skips digits; false when there is none. */
static bool take_digits(struct parser *ps)
{
    const char *first = ps->p;
    while (next_is_digit(ps))
        ps->p++;
    return ps->p > first;
}

/* The grammar alone. */
static bool take_number(struct parser *ps, bool *ret_integer)
{
    *ret_integer = true;
    if (next_is(ps, '-'))
        ps->p++;
    if (next_is(ps, '0'))
        ps->p++;
    else if (!take_digits(ps))
        return false;
    if (next_is(ps, '.')) {
        *ret_integer = false;
        ps->p++;
        if (!take_digits(ps))
            return false;
    }
    if (next_is(ps, 'e') || next_is(ps, 'E')) {
        *ret_integer = false;
        ps->p++;
        if (next_is(ps, '+') || next_is(ps, '-'))
            ps->p++;
        if (!take_digits(ps))
            return false;
    }
    return !next_is_digit(ps); /* a leading zero */
}

static semel_status parse_number(struct parser *ps, struct semel_json_node *node)
{
    const char *start = ps->p;
    bool integer;
    if (!take_number(ps, &integer))
        return refuse(ps, ps->p, "a bad number");
    struct semel_str token = {start, (size_t)(ps->p - start)};
    struct semel_decimal d = semel__decimal_read(token);
    if (!semel__decimal_exact(&d)) {
        if (!isfinite(semel__decimal_to_double(&d)))
            return refuse(ps, start, "a number out of range");
        ps->json->exact = false;
    }
    node->tag = integer ? SEMEL_JSON_TAG_INTEGER : SEMEL_JSON_TAG_REAL;
    node->u.text = integer && d.k == 0 ? SEMEL_STR("0") : token; /* -0 is 0 */
    return SEMEL_OK;
}

static semel_status parse_literal(struct parser *ps, struct semel_json_node *node)
{
    static const struct {
        struct semel_str word;
        enum semel_json_tag tag;
    } literals[] = {{{"null", 4}, SEMEL_JSON_TAG_NULL},
                    {{"true", 4}, SEMEL_JSON_TAG_TRUE},
                    {{"false", 5}, SEMEL_JSON_TAG_FALSE}};
    for (size_t i = 0; i < sizeof(literals) / sizeof(literals[0]); i++) {
        struct semel_str word = literals[i].word;
        if ((size_t)(ps->end - ps->p) >= word.n && memcmp(ps->p, word.p, word.n) == 0) {
            ps->p += word.n;
            node->tag = literals[i].tag;
            return SEMEL_OK;
        }
    }
    return refuse(ps, ps->p, ps->p == ps->end ? "a missing value" : "not a value");
}

/* By UTF-16 code units, as RFC 8785 wants. The bytes of UTF-8 sort by characters, which is the same but for one
 * case: characters past U+FFFF (first byte F0 or more) come before those from U+E000 to U+FFFF (EE and EF). */
static int key_cmp(struct semel_str a, struct semel_str b)
{
    size_t n = a.n < b.n ? a.n : b.n, i = 0;
    while (i < n && a.p[i] == b.p[i])
        i++;
    if (i == n)
        return (a.n > b.n) - (a.n < b.n);
    unsigned char x = (unsigned char)a.p[i], y = (unsigned char)b.p[i];
    if (x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0))
        return x >= 0xF0 ? -1 : 1;
    return x < y ? -1 : 1;
}

static struct semel_json_node *merge(struct semel_json_node *a, struct semel_json_node *b)
{
    struct semel_json_node *first = NULL, **tail = &first;
    while (a != NULL && b != NULL) {
        struct semel_json_node **lesser = key_cmp(a->key, b->key) <= 0 ? &a : &b;
        *tail = *lesser;
        tail = &(*tail)->next;
        *lesser = *tail;
    }
    *tail = a != NULL ? a : b;
    return first;
}

/* A stable merge sort from below: each of runs[0..n_runs) is empty or a sorted run of 2^i members. */
static struct semel_json_node *sort_members(struct semel_json_node *members)
{
    struct semel_json_node *runs[64];
    size_t n_runs = 0;
    while (members != NULL) {
        struct semel_json_node *run = members;
        members = members->next;
        run->next = NULL;
        size_t i = 0;
        for (; i < n_runs && runs[i] != NULL; i++) {
            run = merge(runs[i], run);
            runs[i] = NULL;
        }
        if (i == n_runs)
            n_runs++;
        runs[i] = run;
    }
    struct semel_json_node *sorted = NULL;
    for (size_t i = 0; i < n_runs; i++)
        sorted = merge(runs[i], sorted);
    return sorted;
}

static semel_status finish_object(struct parser *ps, struct semel_json_node *object)
{
    object->u.first = sort_members(object->u.first);
    for (const struct semel_json_node *m = object->u.first; m != NULL && m->next != NULL; m = m->next)
        if (semel__str_eq(m->key, m->next->key))
            return refuse(ps, m->next->key.p - 1, "a duplicate member");
    return SEMEL_OK;
}

static semel_status parse_key(struct parser *ps, struct semel_json_node *member)
{
    skip_blanks(ps);
    if (!next_is(ps, '"'))
        return refuse(ps, ps->p, "a missing member name");
    semel_status status = parse_string(ps, &member->key);
    if (status != SEMEL_OK)
        return status;
    skip_blanks(ps);
    if (!next_is(ps, ':'))
        return refuse(ps, ps->p, "a missing colon");
    ps->p++;
    return SEMEL_OK;
}

/* The elements of an array or the members of an object, to the closing bracket. */
static semel_status parse_children(struct parser *ps, struct semel_json_node *node, char close)
{
    struct semel_json_node **tail = &node->u.first;
    ps->p++;
    skip_blanks(ps);
    if (next_is(ps, close)) {
        ps->p++;
        return SEMEL_OK;
    }
    for (;;) {
        struct semel_json_node *child = semel__arena_alloc(&ps->json->arena, 1, sizeof(*child));
        if (child == NULL)
            return semel__fail_memory(ps->err);
        *tail = child;
        tail = &child->next;
        semel_status status = node->tag == SEMEL_JSON_TAG_OBJECT ? parse_key(ps, child) : SEMEL_OK;
        if (status == SEMEL_OK)
            status = parse_value(ps, child);
        if (status != SEMEL_OK)
            return status;
        skip_blanks(ps);
        if (!next_is(ps, ',') && !next_is(ps, close))
            return refuse(ps, ps->p, "a missing comma or bracket");
        if (*ps->p++ == close)
            return SEMEL_OK;
    }
}

static semel_status parse_nested(struct parser *ps, struct semel_json_node *node)
{
    if (ps->depth == SEMEL_JSON_DEPTH)
        return refuse(ps, ps->p, "too deeply nested");
    bool object = *ps->p == '{';
    node->tag = object ? SEMEL_JSON_TAG_OBJECT : SEMEL_JSON_TAG_ARRAY;
    ps->depth++;
    semel_status status = parse_children(ps, node, object ? '}' : ']');
    ps->depth--;
    return status == SEMEL_OK && object ? finish_object(ps, node) : status;
}

static semel_status parse_value(struct parser *ps, struct semel_json_node *node)
{
    skip_blanks(ps);
    if (next_is(ps, '{') || next_is(ps, '['))
        return parse_nested(ps, node);
    if (next_is(ps, '"')) {
        node->tag = SEMEL_JSON_TAG_STRING;
        return parse_string(ps, &node->u.text);
    }
    if (next_is(ps, '-') || next_is_digit(ps))
        return parse_number(ps, node);
    return parse_literal(ps, node);
}

static semel_status parse_document(struct semel_json *json, struct semel_str text, struct semel_error *err)
{
    char *copy = semel__arena_alloc(&json->arena, text.n, 1);
    json->root = semel__arena_alloc(&json->arena, 1, sizeof(*json->root));
    if (copy == NULL || json->root == NULL)
        return semel__fail_memory(err);
    if (text.n > 0)
        memcpy(copy, text.p, text.n);

    struct parser ps = {.base = copy, .p = copy, .end = copy + text.n, .json = json, .err = err};
    semel_status status = parse_value(&ps, json->root);
    if (status != SEMEL_OK)
        return status;
    skip_blanks(&ps);
    return ps.p == ps.end ? SEMEL_OK : refuse(&ps, ps.p, "something behind the value");
}

semel_status semel__json_parse(struct semel_json **ret, struct semel_str text, size_t max_bytes,
                               struct semel_error *err)
{
    if (text.n > max_bytes)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "JSON: longer than %zu bytes", max_bytes);
    size_t bound;
    if (__builtin_mul_overflow(text.n, (size_t)ARENA_PER_BYTE, &bound) ||
        __builtin_add_overflow(bound, (size_t)ARENA_EXTRA, &bound))
        return semel__fail_memory(err);
    struct semel_json *json = semel__calloc(1, sizeof(*json));
    if (json == NULL)
        return semel__fail_memory(err);
    semel__arena_init(&json->arena, bound);
    json->exact = true;

    semel_status status = parse_document(json, text, err);
    if (status != SEMEL_OK) {
        semel__json_free(json);
        return status;
    }
    *ret = json;
    return SEMEL_OK;
}

void semel__json_free(struct semel_json *json)
{
    if (json == NULL)
        return;
    semel__arena_done(&json->arena);
    semel__free(json);
}
