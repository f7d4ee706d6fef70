/* SPDX-License-Identifier: MIT
 *
 * object.h: writes JSON member by member.
 *
 * Invariants: the result is one JSON document in UTF-8, whatever the values are. JSON goes to terminals too, so
 * characters that a terminal might obey are written as \uXXXX, which means the same; U+FFFD replaces each byte that
 * is not UTF-8. A buffer that could not grow is marked as failed.
 */
#ifndef SEMEL_BASE_OBJECT_H
#define SEMEL_BASE_OBJECT_H

#include "base/str.h"

struct semel_object {
    struct semel_buf buf;
    bool any;
};
void semel__object_init(struct semel_object *object);
void semel__object_text(struct semel_object *object, const char *name, struct semel_str value); /* not given: null */
void semel__object_number(struct semel_object *object, const char *name, int64_t value);        /* SEMEL_NONE: null */
void semel__object_bool(struct semel_object *object, const char *name, bool value);
void semel__object_time(struct semel_object *object, const char *name, int64_t us);
void semel__object_raw(struct semel_object *object, const char *name, struct semel_str json); /* not JSON: a string */
/* Writes the i-th object of a list. */
typedef void (*semel_object_filler)(struct semel_object *one, const void *ctx, size_t i);
void semel__object_list(struct semel_object *object, const char *name, size_t n, semel_object_filler fill,
                        const void *ctx);
void semel__object_texts(struct semel_object *object, const char *name, const struct semel_str *texts, size_t n);
/* Closes the object and returns its text, which lives until _done. */
struct semel_str semel__object_end(struct semel_object *object);
void semel__object_done(struct semel_object *object);

/* Appends a string. Escapes characters that a terminal might obey; U+FFFD replaces bad UTF-8. */
void semel__json_put_shown(struct semel_buf *buf, struct semel_str value);
/* Appends an array of objects, one per line, and a newline. */
void semel__json_put_list(struct semel_buf *buf, size_t n, semel_object_filler fill, const void *ctx);

#endif
