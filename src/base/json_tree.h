/* SPDX-License-Identifier: MIT
 *
 * json_tree.h: a parsed document, as json.c builds it. For code that walks the tree; all other code uses pointers.
 *
 * Invariants: nodes and their bytes live in the document's arena; strings are decoded, well-formed
 * UTF-8 without NUL; numbers are as they were written; the members of an object are in the order
 * of RFC 8785, each key once; nesting is at most SEMEL_JSON_DEPTH.
 */
#ifndef SEMEL_BASE_JSON_TREE_H
#define SEMEL_BASE_JSON_TREE_H

#include "base/json.h"

enum semel_json_tag {
    SEMEL_JSON_TAG_NULL,
    SEMEL_JSON_TAG_FALSE,
    SEMEL_JSON_TAG_TRUE,
    SEMEL_JSON_TAG_INTEGER, /* neither fraction nor exponent */
    SEMEL_JSON_TAG_REAL,
    SEMEL_JSON_TAG_STRING,
    SEMEL_JSON_TAG_ARRAY,
    SEMEL_JSON_TAG_OBJECT
};

struct semel_json_node {
    struct semel_json_node *next; /* the next element or member */
    struct semel_str key;         /* of a member */
    union {
        struct semel_str text;         /* of a string or number */
        struct semel_json_node *first; /* of an array or object */
    } u;
    enum semel_json_tag tag;
};

struct semel_json {
    struct semel_arena arena;
    struct semel_json_node *root;
    bool exact; /* every number survives as a double */
};

#endif
