/* SPDX-License-Identifier: MIT
 *
 * headers.h: names and values of a delivery, looked up and kept.
 *
 * The kept form is a JSON object: a name that comes once has its value as a string, one that comes several times has
 * an array; a value that is not UTF-8 is {"hex": "..."}. Names that are not UTF-8 are kept under their hexadecimal
 * digits, together with a name that is written so.
 */
#ifndef SEMEL_CORE_HEADERS_H
#define SEMEL_CORE_HEADERS_H

#include "core/broker.h"

/* The first with this name, ASCII letters compared without case; not given: none. */
struct semel_str semel__pair_find(const struct semel_pair *pairs, size_t n, struct semel_str name);

/* INVALID: too many, or too large. No headers at all: *ret is not given. */
semel_status semel__headers_json(const struct semel_pair *pairs, size_t n, struct semel_arena *arena,
                                 struct semel_str *ret, struct semel_error *err);

#endif
