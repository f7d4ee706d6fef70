/* SPDX-License-Identifier: MIT
 *
 * canonical.c: the JSON Canonicalization Scheme (RFC 8785).
 *
 *     no blanks; members sorted by the UTF-16 code units of their names (json.c has done it);
 *     strings with \b \t \n \f \r \" \\ and, for the other control characters, \u00xx, and
 *     everything else as it is; numbers as ECMAScript writes the double.
 *
 * Invariants: equal values give equal bytes and different values different bytes, because a
 * document with a number that does not survive as a double is not written at all (P56); the
 * canonical form is itself JSON that parses, and its canonical form is the same.
 */
#include "base/error.h"
#include "base/json_tree.h"
#include "base/number.h"

static void write_node(struct semel_buf *buf, const struct semel_json_node *node);

/* semel__buf_add for pieces of a few bytes: most of them fit into what is reserved. */
static inline void put(struct semel_buf *buf, const char *bytes, size_t n)
{
    if (buf->failed || n >= buf->cap - buf->n) {
        semel__buf_add(buf, bytes, n);
        return;
    }
    memcpy(buf->p + buf->n, bytes, n);
    buf->n += n;
}

/* One byte that cannot stand for itself. */
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
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 && c != '"' && c != '\\')
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
