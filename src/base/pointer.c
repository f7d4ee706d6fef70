/* SPDX-License-Identifier: MIT
 *
 * pointer.c: JSON pointers (RFC 6901): their syntax, and what stands at one.
 *
 *     pointer = *( "/" token )     in a token, ~1 is "/" and ~0 is "~"; no other ~ is allowed
 *
 * A token names a member of an object, or an element of an array: "0", or digits without a
 * leading zero. "-", the element behind the last, is never there.
 */
#include "base/error.h"
#include "base/json_tree.h"

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
static struct semel_str take_token(struct semel_str *pointer)
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

static const struct semel_json_node *find_element(const struct semel_json_node *array, struct semel_str token)
{
    int64_t index;
    if (!semel__str_int64(token, &index) || token.p[0] == '-' || (token.p[0] == '0' && token.n > 1))
        return NULL;
    const struct semel_json_node *element = array->u.first;
    while (element != NULL && index-- > 0)
        element = element->next;
    return element;
}

static const struct semel_json_node *find(const struct semel_json_node *node, struct semel_str pointer)
{
    while (node != NULL && pointer.n > 0) {
        struct semel_str token = take_token(&pointer);
        if (node->tag == SEMEL_JSON_TAG_OBJECT)
            node = find_member(node, token);
        else if (node->tag == SEMEL_JSON_TAG_ARRAY)
            node = find_element(node, token);
        else
            node = NULL;
    }
    return node;
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
