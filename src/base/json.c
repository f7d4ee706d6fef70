/* SPDX-License-Identifier: MIT
 *
 * json.c: see json.h: a strict parser of RFC 8259; pointers; the canonical form, also of a short text without a tree;
 * and parts of a text without a tree.
 *
 * The parser copies the text once; strings are decoded in place, which never lengthens them, so that a string's bytes
 * begin where they were in the text. The members of an object are sorted when its brace closes: duplicates are then
 * neighbours, and the canonical form needs no other order.
 *
 * Invariants: recursion happens only in parse_value, write_node and short_value, and depth is checked before; no loop
 * is worse than n log n, but for the sorting of at most SHORT_MEMBERS members; a failed allocation is RETRY, never
 * INVALID, so that lack of memory fails no message; a document takes at most ARENA_PER_BYTE times its text, and a
 * little.
 */
#include "base/json.h"

#include <endian.h>
#include <math.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/number.h"

#define ARENA_PER_BYTE 64
#define ARENA_EXTRA 8192
#define SHORT_MEMBERS 64
#define EXACT_DIGITS 15 /* a whole number of so many digits is a double, and its canonical form is itself */

struct cursor {
    const char *p, *end;
};

static bool at(const struct cursor *c, char what)
{
    return c->p < c->end && *c->p == what;
}

static inline size_t blanks(const char *p, const char *end)
{
    const char *from = p;
    if (p == end || *p > ' ') /* mostly there are none */
        return 0;
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r'))
        p++;
    return (size_t)(p - from);
}

static void pass_blanks(struct cursor *c)
{
    c->p += blanks(c->p, c->end);
}

/* ---- plain characters ---------------------------------------------------------------------------- */

/* ASCII that is no control character, quotation mark or backslash: it stands in a string as it is. */
static inline bool is_plain(char c)
{
    return (unsigned char)c >= 0x20 && (unsigned char)c < 0x80 && c != '"' && c != '\\';
}

/* How many of the eight bytes at p are plain, up to the first that is not. A byte less than n borrows when n is taken
 * from each; only bytes behind it are taken for odd in vain. */
static inline size_t plain_of8(const char *p)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    uint64_t word;
    memcpy(&word, p, sizeof(word));
    word = le64toh(word);
    const uint64_t quote = word ^ (ones * '"'), escape = word ^ (ones * '\\');
    const uint64_t odd = (word | (word - ones * 0x20) | (quote - ones) | (escape - ones)) & high;
    return odd == 0 ? 8 : (size_t)__builtin_ctzll(odd) / 8;
}

/* How many bytes from p on are plain. */
static size_t plain_run(const char *p, const char *end)
{
    const char *from = p;
    while (end - p >= 8) {
        size_t n = plain_of8(p);
        p += n;
        if (n < 8)
            return (size_t)(p - from);
    }
    while (p < end && is_plain(*p))
        p++;
    return (size_t)(p - from);
}

/* ---- escapes ------------------------------------------------------------------------------------- */

/* Four hexadecimal digits; false leaves *p where it was. */
static bool scan_hex4(const char **p, const char *end, uint32_t *ret)
{
    uint32_t value = 0;
    if (end - *p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int digit = semel__hex_value((*p)[i]);
        if (digit < 0)
            return false;
        value = value << 4 | (uint32_t)digit;
    }
    *p += 4;
    *ret = value;
    return true;
}

/* After "\u". A character past U+FFFF takes two escapes, and half of one is no character. Returns NULL, or what is
 * wrong. */
static const char *scan_unicode(const char **p, const char *end, uint32_t *ret)
{
    static const char half[] = "half of a surrogate pair";
    uint32_t c, low;
    if (!scan_hex4(p, end, &c))
        return "a bad escape";
    if (c == 0)
        return "a NUL in a string";
    if (c >= 0xDC00 && c <= 0xDFFF)
        return half;
    if (c >= 0xD800 && c <= 0xDBFF) {
        if (end - *p < 2 || (*p)[0] != '\\' || (*p)[1] != 'u')
            return half;
        *p += 2;
        if (!scan_hex4(p, end, &low) || low < 0xDC00 || low > 0xDFFF)
            return half;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    *ret = c;
    return NULL;
}

/* Reads the escape whose backslash is at *p, which moves past it: 1 to 4 bytes to `out`, which may be the place of the
 * escape. 0: malformed, with the reason in *ret_why. */
static size_t scan_escape(const char **p, const char *end, char *out, const char **ret_why)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    uint32_t code;
    char c = end - *p > 1 ? (*p)[1] : '\0';
    *p += end - *p > 1 ? 2 : 1;
    if (c == 'u') {
        *ret_why = scan_unicode(p, end, &code);
        return *ret_why == NULL ? semel__utf8_put(code, out) : 0;
    }
    const char *name = c != '\0' ? strchr(names, c) : NULL;
    *ret_why = "a bad escape";
    if (name != NULL)
        out[0] = values[name - names];
    return name != NULL;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

static bool at_digit(const struct cursor *c)
{
    return c->p < c->end && semel__is_digit(*c->p);
}

/* Skips digits; false when there is none. */
static bool scan_digits(struct cursor *c)
{
    const char *first = c->p;
    while (at_digit(c))
        c->p++;
    return c->p > first;
}

/* Checks the grammar only. */
static bool scan_number(struct cursor *c, bool *ret_integer)
{
    *ret_integer = true;
    if (at(c, '-'))
        c->p++;
    if (at(c, '0'))
        c->p++;
    else if (!scan_digits(c))
        return false;
    if (at(c, '.')) {
        *ret_integer = false;
        c->p++;
        if (!scan_digits(c))
            return false;
    }
    if (at(c, 'e') || at(c, 'E')) {
        *ret_integer = false;
        c->p++;
        if (at(c, '+') || at(c, '-'))
            c->p++;
        if (!scan_digits(c))
            return false;
    }
    return !at_digit(c); /* a leading zero */
}

/* A whole number that is its own canonical form. */
static bool is_short(struct semel_str token, bool integer)
{
    return integer && token.n <= EXACT_DIGITS && token.p[0] != '-';
}

/* ==== the parser ================================================================================= */

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
    ps->p += blanks(ps->p, ps->end);
}

static bool next_is(const struct parser *ps, char c)
{
    return ps->p < ps->end && *ps->p == c;
}

static semel_status parse_escape(struct parser *ps, char **w)
{
    const char *p = ps->p, *why;
    size_t n = scan_escape(&p, ps->end, *w, &why);
    if (n == 0)
        return refuse(ps, ps->p, why);
    ps->p += p - ps->p;
    *w += n;
    return SEMEL_OK;
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
        size_t n = plain_run(ps->p, ps->end);
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

static semel_status parse_number(struct parser *ps, struct semel_json_node *node)
{
    const char *start = ps->p;
    struct cursor c = {ps->p, ps->end};
    bool integer, sound = scan_number(&c, &integer);
    ps->p += c.p - ps->p;
    if (!sound)
        return refuse(ps, ps->p, "a bad number");
    struct semel_str token = {start, (size_t)(ps->p - start)};
    if (is_short(token, integer)) {
        node->tag = SEMEL_JSON_TAG_INTEGER;
        node->u.text = token;
        return SEMEL_OK;
    }
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

/* By UTF-16 code units, as RFC 8785 demands. The bytes of UTF-8 sort by characters, which is the same except in one
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

/* A bottom-up stable merge sort: each of runs[0..n_runs) is empty or a sorted run of 2^i members. */
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
    if (next_is(ps, '-') || (ps->p < ps->end && semel__is_digit(*ps->p)))
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

/* ==== pointers ======================================================================================
 *
 *     pointer = *( "/" token )     in a token, ~1 is "/" and ~0 is "~"; no other ~ is allowed
 *
 * A token names a member of an object, or an element of an array: "0", or digits without a leading zero. "-", the
 * element behind the last, is never there.
 */

bool semel__json_pointer_valid(struct semel_str pointer)
{
    if (pointer.p == NULL || pointer.n > SEMEL_ID_MAX || !semel__utf8_valid(pointer))
        return false;
    if (pointer.n > 0 && pointer.p[0] != '/')
        return false;
    for (size_t i = 0; i < pointer.n; i++)
        if (pointer.p[i] == '~' && (i + 1 == pointer.n || (pointer.p[i + 1] != '0' && pointer.p[i + 1] != '1')))
            return false;
    return true;
}

/* Cuts the first token, without its slash, from a pointer that is not empty. */
static struct semel_str scan_token(struct semel_str *pointer)
{
    const char *p = pointer->p + 1, *end = pointer->p + pointer->n;
    const char *slash = memchr(p, '/', (size_t)(end - p));
    struct semel_str token = {p, (size_t)((slash != NULL ? slash : end) - p)};
    pointer->p = token.p + token.n;
    pointer->n = (size_t)(end - pointer->p);
    return token;
}

static bool token_names(struct semel_str token, struct semel_str key)
{
    size_t k = 0;
    for (size_t i = 0; i < token.n; i++, k++) {
        char c = token.p[i];
        if (c == '~')
            c = token.p[++i] == '1' ? '/' : '~';
        if (k == key.n || key.p[k] != c)
            return false;
    }
    return k == key.n;
}

static const struct semel_json_node *find_member(const struct semel_json_node *object, struct semel_str token)
{
    const struct semel_json_node *member = object->u.first;
    while (member != NULL && !token_names(token, member->key))
        member = member->next;
    return member;
}

/* false: the token is no index. */
static bool token_index(struct semel_str token, int64_t *ret)
{
    return semel__str_int64(token, ret) && token.p[0] != '-' && (token.p[0] != '0' || token.n == 1);
}

static const struct semel_json_node *find_element(const struct semel_json_node *array, struct semel_str token)
{
    int64_t index;
    if (!token_index(token, &index))
        return NULL;
    const struct semel_json_node *element = array->u.first;
    while (element != NULL && index-- > 0)
        element = element->next;
    return element;
}

static const struct semel_json_node *find(const struct semel_json_node *node, struct semel_str pointer)
{
    while (node != NULL && pointer.n > 0) {
        struct semel_str token = scan_token(&pointer);
        if (node->tag == SEMEL_JSON_TAG_OBJECT)
            node = find_member(node, token);
        else if (node->tag == SEMEL_JSON_TAG_ARRAY)
            node = find_element(node, token);
        else
            node = NULL;
    }
    return node;
}

/* The place that points to the node at the pointer, whose parent is `parent`. */
static struct semel_json_node **link_to(struct semel_json_node *parent, const struct semel_json_node *node)
{
    struct semel_json_node **link = &parent->u.first;
    while (*link != node)
        link = &(*link)->next;
    return link;
}

void semel__json_ignore(struct semel_json *json, struct semel_str pointer)
{
    struct semel_str above = pointer;
    while (above.n > 0 && above.p[above.n - 1] != '/')
        above.n--;
    if (above.n > 0)
        above.n--;
    struct semel_json_node *node = (struct semel_json_node *)find(json->root, pointer);
    struct semel_json_node *parent = (struct semel_json_node *)find(json->root, above);
    if (node == NULL || parent == NULL)
        return;
    if (node != parent && parent->tag == SEMEL_JSON_TAG_OBJECT)
        *link_to(parent, node) = node->next;
    else
        node->tag = SEMEL_JSON_TAG_NULL;
}

static enum semel_json_kind kind_of(const struct semel_json_node *node)
{
    if (node == NULL)
        return SEMEL_JSON_MISSING;
    switch (node->tag) {
    case SEMEL_JSON_TAG_NULL:
        return SEMEL_JSON_NULL;
    case SEMEL_JSON_TAG_STRING:
        return SEMEL_JSON_STRING;
    case SEMEL_JSON_TAG_INTEGER:
        return SEMEL_JSON_INTEGER;
    case SEMEL_JSON_TAG_FALSE:
    case SEMEL_JSON_TAG_TRUE:
    case SEMEL_JSON_TAG_REAL:
    case SEMEL_JSON_TAG_ARRAY:
    case SEMEL_JSON_TAG_OBJECT:
        break;
    }
    return SEMEL_JSON_OTHER;
}

semel_status semel__json_get(const struct semel_json *json, struct semel_str pointer, struct semel_arena *arena,
                             enum semel_json_kind *ret_kind, struct semel_str *ret_text, struct semel_error *err)
{
    if (!semel__json_pointer_valid(pointer))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "not a JSON pointer");
    const struct semel_json_node *node = find(json->root, pointer);
    enum semel_json_kind kind = kind_of(node);
    struct semel_str text = {NULL, 0};
    if (kind == SEMEL_JSON_STRING || kind == SEMEL_JSON_INTEGER)
        text = node->u.text;
    if (!semel__arena_copy(arena, text, &text))
        return semel__fail_memory(err);
    *ret_kind = kind;
    *ret_text = text;
    return SEMEL_OK;
}

/* ==== the canonical form ============================================================================
 *
 * The JSON Canonicalization Scheme (RFC 8785):
 *
 *     no blanks; members sorted by the UTF-16 code units of their names (the parser has done it);
 *     strings with \b \t \n \f \r \" \\ and, for the other control characters, \u00xx, and
 *     everything else as it is; numbers as ECMAScript writes the double.
 *
 * Invariants: equal values give equal bytes and different values different bytes, because a
 * document with a number that does not survive as a double is not written at all (P56); the
 * canonical form is itself JSON that parses, and its canonical form is the same.
 */

static void write_node(struct semel_buf *buf, const struct semel_json_node *node);

/* semel__buf_add for pieces of a few bytes: most of them fit into the reserved memory. */
static inline void put(struct semel_buf *buf, const char *bytes, size_t n)
{
    if (buf->failed || n >= buf->cap - buf->n) {
        semel__buf_add(buf, bytes, n);
        return;
    }
    memcpy(buf->p + buf->n, bytes, n);
    buf->n += n;
}

/* One byte that must be escaped. */
static void write_escape(struct semel_buf *buf, char c)
{
    static const char values[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *value = strchr(values, c);
    if (value != NULL)
        semel__buf_addf(buf, "\\%c", names[value - values]);
    else
        semel__buf_addf(buf, "\\u%04x", (unsigned)(unsigned char)c);
}

void semel__json_put_string(struct semel_buf *buf, struct semel_str s)
{
    size_t plain = 0; /* where the bytes not yet written begin */
    put(buf, "\"", 1);
    for (size_t i = 0; i < s.n; i++) {
        i += plain_run(s.p + i, s.p + s.n);
        if (i == s.n)
            break;
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x80)
            continue;
        put(buf, s.p + plain, i - plain);
        write_escape(buf, s.p[i]);
        plain = i + 1;
    }
    if (s.n > plain)
        put(buf, s.p + plain, s.n - plain); /* s may be {NULL, 0} */
    put(buf, "\"", 1);
}

static void write_number(struct semel_buf *buf, struct semel_str token)
{
    char text[SEMEL_NUMBER_TEXT];
    size_t digits = 0;
    while (digits < token.n && semel__is_digit(token.p[digits]))
        digits++;
    if (digits == token.n && digits <= EXACT_DIGITS) {
        put(buf, token.p, token.n);
        return;
    }
    struct semel_decimal d = semel__decimal_read(token);
    size_t n = semel__decimal_write(&d, text);
    put(buf, text, n);
}

static void write_array(struct semel_buf *buf, const struct semel_json_node *array)
{
    put(buf, "[", 1);
    for (const struct semel_json_node *element = array->u.first; element != NULL; element = element->next) {
        write_node(buf, element);
        if (element->next != NULL)
            put(buf, ",", 1);
    }
    put(buf, "]", 1);
}

static void write_object(struct semel_buf *buf, const struct semel_json_node *object)
{
    put(buf, "{", 1);
    for (const struct semel_json_node *member = object->u.first; member != NULL; member = member->next) {
        semel__json_put_string(buf, member->key);
        put(buf, ":", 1);
        write_node(buf, member);
        if (member->next != NULL)
            put(buf, ",", 1);
    }
    put(buf, "}", 1);
}

/* Recursion is as deep as the document, which the parser has bounded. */
static void write_node(struct semel_buf *buf, const struct semel_json_node *node)
{
    switch (node->tag) {
    case SEMEL_JSON_TAG_NULL:
        semel__buf_addz(buf, "null");
        return;
    case SEMEL_JSON_TAG_FALSE:
        semel__buf_addz(buf, "false");
        return;
    case SEMEL_JSON_TAG_TRUE:
        semel__buf_addz(buf, "true");
        return;
    case SEMEL_JSON_TAG_INTEGER:
    case SEMEL_JSON_TAG_REAL:
        write_number(buf, node->u.text);
        return;
    case SEMEL_JSON_TAG_STRING:
        semel__json_put_string(buf, node->u.text);
        return;
    case SEMEL_JSON_TAG_ARRAY:
        write_array(buf, node);
        return;
    case SEMEL_JSON_TAG_OBJECT:
        write_object(buf, node);
        return;
    }
}

semel_status semel__json_canonical(const struct semel_json *json, struct semel_buf *buf, bool *ret_exact,
                                   struct semel_error *err)
{
    if (json->exact)
        write_node(buf, json->root);
    if (buf->full)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "JSON: the canonical form is longer than %zu bytes", buf->max);
    if (buf->failed)
        return semel__fail_memory(err);
    *ret_exact = json->exact;
    return SEMEL_OK;
}

/* ==== the canonical form of a short text ============================================================
 *
 * One pass copies the text without its blanks, and sorts the members of an object when its brace closes. It takes what
 * most messages are: names without escapes, strings without \u and \/, exact numbers that do not become longer.
 * Whatever else there is, right or wrong, is left to the parser, which alone judges what is refused.
 *
 * Invariants: what is written is what write_node writes of the parsed text; the writing is never ahead of the reading,
 * so that the form is no longer than the text; recursion is bounded as the parser's.
 */

struct short_member {
    struct semel_str name; /* in the text */
    size_t at, n;          /* name and value, as they are written */
};

struct shortened {
    struct cursor c;
    char *out;
    size_t n; /* written */
    int depth;
    size_t n_members; /* of the objects that are open */
    struct short_member members[SHORT_MEMBERS];
};

static bool short_value(struct shortened *s);

static inline void short_copy(struct shortened *s, size_t n)
{
    memcpy(s->out + s->n, s->c.p, n);
    s->n += n;
    s->c.p += n;
}

/* Eight bytes are copied at a time, though fewer may count: as many are left of the text, and so of the room. */
static void short_plain(struct shortened *s)
{
    size_t n = 8;
    while (n == 8 && s->c.end - s->c.p >= 8) {
        n = plain_of8(s->c.p);
        memcpy(s->out + s->n, s->c.p, 8);
        s->n += n;
        s->c.p += n;
    }
    while (s->c.p < s->c.end && is_plain(*s->c.p))
        short_copy(s, 1);
}

/* The length of what stands in a string beside plain characters; 0: it is not as it would be written. */
static size_t short_odd(const struct cursor *c)
{
    uint32_t code;
    if (*c->p == '\\')
        return c->end - c->p > 1 && memchr("\"\\bfnrt", c->p[1], 7) != NULL ? 2 : 0;
    size_t n = semel__utf8_next((struct semel_str){c->p, (size_t)(c->end - c->p)}, &code);
    return n > 1 ? n : 0; /* a control character is the one that has a single byte */
}

/* From quotation mark to quotation mark. */
static bool short_string(struct shortened *s)
{
    short_copy(s, 1);
    for (;;) {
        short_plain(s);
        if (at(&s->c, '"')) {
            short_copy(s, 1);
            return true;
        }
        size_t n = s->c.p < s->c.end ? short_odd(&s->c) : 0;
        if (n == 0)
            return false;
        short_copy(s, n);
    }
}

static bool short_number(struct shortened *s)
{
    char text[SEMEL_NUMBER_TEXT];
    struct cursor c = s->c;
    bool integer;
    if (!scan_number(&c, &integer))
        return false;
    const struct semel_str token = {s->c.p, (size_t)(c.p - s->c.p)};
    if (is_short(token, integer)) {
        short_copy(s, token.n);
        return true;
    }
    const struct semel_decimal d = semel__decimal_read(token);
    if (!semel__decimal_exact(&d))
        return false;
    size_t n = semel__decimal_write(&d, text);
    if (n > token.n)
        return false;
    memcpy(s->out + s->n, text, n);
    s->n += n;
    s->c = c;
    return true;
}

static bool short_literal(struct shortened *s)
{
    static const struct semel_str words[] = {{"null", 4}, {"true", 4}, {"false", 5}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((size_t)(s->c.end - s->c.p) >= words[i].n && memcmp(s->c.p, words[i].p, words[i].n) == 0) {
            short_copy(s, words[i].n);
            return true;
        }
    return false;
}

/* Name and colon. The names of an object have to ascend, or it is sorted. */
static bool short_name(struct shortened *s, size_t first, bool *sorted)
{
    pass_blanks(&s->c);
    if (!at(&s->c, '"') || s->n_members == SHORT_MEMBERS)
        return false;
    struct short_member *member = &s->members[s->n_members];
    const char *start = s->c.p + 1;
    member->at = s->n;
    if (!short_string(s))
        return false;
    member->name = (struct semel_str){start, (size_t)(s->c.p - 1 - start)};
    if (memchr(start, '\\', member->name.n) != NULL)
        return false;
    if (s->n_members++ > first && key_cmp(member[-1].name, member->name) >= 0)
        *sorted = false;
    pass_blanks(&s->c);
    if (!at(&s->c, ':'))
        return false;
    short_copy(s, 1);
    return true;
}

/* false: a name comes twice. */
static bool short_order(struct short_member *members, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const struct short_member member = members[i];
        size_t k = i;
        int c = 1;
        while (k > 0 && (c = key_cmp(members[k - 1].name, member.name)) > 0) {
            members[k] = members[k - 1];
            k--;
        }
        if (k > 0 && c == 0)
            return false;
        members[k] = member;
    }
    return true;
}

/* Behind each member is one byte: a comma, or the brace. */
static bool short_sort(struct shortened *s, size_t first)
{
    struct short_member *members = &s->members[first];
    const size_t n = s->n_members - first, from = members[0].at, past = s->n;
    char copy[SEMEL_JSON_SHORT];
    for (size_t i = 0; i < n; i++)
        members[i].n = (i + 1 < n ? members[i + 1].at : past) - members[i].at - 1;
    if (!short_order(members, n))
        return false;
    memcpy(copy, s->out + from, past - from);
    s->n = from;
    for (size_t i = 0; i < n; i++) {
        memcpy(s->out + s->n, copy + (members[i].at - from), members[i].n);
        s->n += members[i].n;
        s->out[s->n++] = i + 1 < n ? ',' : '}';
    }
    return true;
}

static bool short_nest(struct shortened *s)
{
    const bool object = *s->c.p == '{';
    const char close = object ? '}' : ']';
    const size_t first = s->n_members;
    bool sorted = true, over;
    if (s->depth == SEMEL_JSON_DEPTH)
        return false;
    s->depth++;
    short_copy(s, 1);
    pass_blanks(&s->c);
    over = at(&s->c, close);
    if (over)
        short_copy(s, 1);
    while (!over) {
        if ((object && !short_name(s, first, &sorted)) || !short_value(s))
            return false;
        pass_blanks(&s->c);
        over = at(&s->c, close);
        if (!over && !at(&s->c, ','))
            return false;
        short_copy(s, 1);
    }
    s->depth--;
    sorted = sorted || short_sort(s, first);
    s->n_members = first;
    return sorted;
}

static bool short_value(struct shortened *s)
{
    pass_blanks(&s->c);
    if (at(&s->c, '"'))
        return short_string(s);
    if (at(&s->c, '{') || at(&s->c, '['))
        return short_nest(s);
    return at(&s->c, '-') || at_digit(&s->c) ? short_number(s) : short_literal(s);
}

size_t semel__json_short(struct semel_str text, char out[SEMEL_JSON_SHORT])
{
    struct shortened s;
    if (text.n > SEMEL_JSON_SHORT)
        return 0;
    s.c = (struct cursor){text.p, text.p + text.n};
    s.out = out;
    s.n = s.n_members = 0;
    s.depth = 0;
    if (!short_value(&s))
        return 0;
    pass_blanks(&s.c);
    return s.c.p == s.c.end ? s.n : 0;
}

/* ==== pieces of a text ==============================================================================
 *
 * Nothing is checked here but what keeps the reading inside.
 *
 * Invariants: no recursion; nothing outside the text is read, whatever it is; numbers keep the digits that were sent.
 */

/* From the opening quotation mark past the closing one. */
static bool skip_string(struct cursor *c)
{
    for (c->p++;; c->p++) {
        c->p += plain_run(c->p, c->end);
        if (c->p == c->end)
            return false;
        if (*c->p == '"') {
            c->p++;
            return true;
        }
        if (*c->p == '\\' && c->p + 1 < c->end)
            c->p++;
    }
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

static bool ends_scalar(char ch)
{
    return ch == ',' || ch == ']' || ch == '}' || ch == ' ' || ch == '\t' || ch == '\r' || ch == '\n' || ch == '\0';
}

static bool skip_value(struct cursor *c)
{
    if (at(c, '"'))
        return skip_string(c);
    if (at(c, '{') || at(c, '['))
        return skip_nest(c);
    const char *start = c->p;
    while (c->p < c->end && !ends_scalar(*c->p))
        c->p++;
    return c->p > start;
}

static struct semel_str value_here(struct cursor c)
{
    const char *start = c.p;
    return skip_value(&c) ? (struct semel_str){start, (size_t)(c.p - start)} : (struct semel_str){0};
}

/* ---- members ------------------------------------------------------------------------------------- */

/* Moves to the value of the next member of an object, whose name is between the quotation marks. The cursor is behind
 * the brace or behind the value before. */
static bool next_member(struct cursor *c, bool first, struct semel_str *ret_name)
{
    pass_blanks(c);
    if (!first) {
        if (!at(c, ','))
            return false;
        c->p++;
        pass_blanks(c);
    }
    const char *start = c->p + 1;
    if (!at(c, '"') || !skip_string(c))
        return false;
    *ret_name = (struct semel_str){start, (size_t)(c->p - 1 - start)};
    pass_blanks(c);
    if (!at(c, ':'))
        return false;
    c->p++;
    pass_blanks(c);
    return true;
}

/* One byte of a string, or one character that was escaped: 1 to 4 bytes to `out`; 0: it is malformed. */
static size_t scan_char(struct cursor *c, char out[4])
{
    const char *why;
    if (*c->p == '\\')
        return scan_escape(&c->p, c->end, out, &why);
    out[0] = *c->p++;
    return 1;
}

/* The first character of a token of a pointer, with ~0 and ~1. */
static char scan_token_char(struct semel_str *token)
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

/* `name` is the raw text, with its escapes. */
static bool token_spells(struct semel_str token, struct semel_str name)
{
    struct cursor c = {name.p, name.p + name.n};
    if (plain_run(name.p, name.p + name.n) == name.n && memchr(token.p, '~', token.n) == NULL)
        return token.n == name.n && memcmp(token.p, name.p, name.n) == 0;
    while (c.p < c.end) {
        char bytes[4];
        size_t n = scan_char(&c, bytes);
        for (size_t i = 0; i < n; i++)
            if (token.n == 0 || scan_token_char(&token) != bytes[i])
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
        if (token_spells(token, name))
            return true;
        if (!skip_value(c))
            return false;
    }
    return false;
}

/* Moves from behind one element to the next. */
static bool next_element(struct cursor *c)
{
    pass_blanks(c);
    if (!at(c, ','))
        return false;
    c->p++;
    pass_blanks(c);
    return true;
}

static bool enter_array(struct cursor *c, struct semel_str token)
{
    int64_t index;
    if (!token_index(token, &index))
        return false;
    c->p++;
    pass_blanks(c);
    for (; index > 0; index--)
        if (!skip_value(c) || !next_element(c))
            return false;
    return c->p < c->end && *c->p != ']';
}

struct semel_str semel__json_find(struct semel_str text, struct semel_str pointer)
{
    struct cursor c = {text.p, text.p + text.n};
    pass_blanks(&c);
    while (pointer.n > 0) {
        struct semel_str token = scan_token(&pointer);
        bool found = at(&c, '{') ? enter_object(&c, token) : at(&c, '[') && enter_array(&c, token);
        if (!found)
            return (struct semel_str){0};
    }
    return value_here(c);
}

bool semel__json_next(struct semel_str text, size_t *from, struct semel_str *ret_name, struct semel_str *ret_value)
{
    struct cursor c = {text.p, text.p + text.n};
    struct semel_str name = {0};
    pass_blanks(&c);
    bool object = at(&c, '{'), first = *from == 0;
    if (!object && !at(&c, '['))
        return false;
    c.p = first ? c.p + 1 : text.p + *from;
    if (object ? !next_member(&c, first, &name) : !first && !next_element(&c))
        return false;
    pass_blanks(&c);
    *ret_value = value_here(c);
    if (!semel__str_given(*ret_value))
        return false;
    if (ret_name != NULL)
        *ret_name = name;
    *from = (size_t)(ret_value->p - text.p) + ret_value->n;
    return true;
}

bool semel__json_member(struct semel_str object, const char *name, struct semel_str *ret)
{
    struct semel_str found, value;
    size_t from = 0;
    while (semel__json_next(object, &from, &found, &value))
        if (semel__str_eqz(found, name)) {
            *ret = value;
            return true;
        }
    return false;
}

/* Decoding never makes a text longer. */
bool semel__json_decode(struct semel_str raw, struct semel_arena *arena, struct semel_str *ret, bool *ret_sound)
{
    struct cursor c = {raw.p + 1, raw.p + (raw.n > 1 ? raw.n - 1 : 1)};
    size_t size = (size_t)(c.end - c.p), n = 0;
    *ret_sound = true;
    *ret = (struct semel_str){c.p, size};
    if (memchr(c.p, '\\', size) == NULL)
        return true;
    char *out = semel__arena_alloc(arena, size, 1);
    if (out == NULL)
        return false;
    while (c.p < c.end) {
        char bytes[4];
        size_t some = scan_char(&c, bytes);
        *ret_sound = some > 0 && n + some <= size;
        if (!*ret_sound)
            return false;
        memcpy(out + n, bytes, some);
        n += some;
    }
    *ret = (struct semel_str){out, n};
    return true;
}
