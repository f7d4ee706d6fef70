/* SPDX-License-Identifier: MIT
 *
 * json.h: strict JSON with bounds, JSON pointers (RFC 6901), the canonical form (RFC 8785), and parts of a text
 * without a tree. Semel reads all JSON by this parser.
 *
 * What it is: a parser of our own. (jansson 2.14 drops bytes from a string, or writes past its heap block, when an
 * allocation fails inside one; and it does not keep how a number was written.) Input is hostile: it must be one JSON
 * value in UTF-8, of at most `max_bytes`, nested at most SEMEL_JSON_DEPTH deep, without duplicate members, without
 * NUL in strings and without numbers beyond the range of a double. Every error has the reason and the byte, counted
 * from 0, and quotes nothing.
 *
 * Invariants: the canonical form of equal values is equal bytes (member order, white space and
 * number spelling do not matter); a number that is not exact as a double has no canonical form
 * (P56: 9007199254740993 would equal ...992), and the caller falls back to the raw bytes.
 * Depth is checked before the parser recurses.
 */
#ifndef SEMEL_BASE_JSON_H
#define SEMEL_BASE_JSON_H

#include "base/mem.h"
#include "base/str.h"

#define SEMEL_JSON_DEPTH 64

struct semel_json; /* a parsed document */

/* INVALID: not acceptable JSON; err has the reason and the place. RETRY: no memory. */
semel_status semel__json_parse(struct semel_json **ret, struct semel_str text, size_t max_bytes,
                               struct semel_error *err);
void semel__json_free(struct semel_json *json);

/* A pointer's syntax: "" or "/..." with ~0 and ~1, valid UTF-8, at most SEMEL_ID_MAX bytes. */
bool semel__json_pointer_valid(struct semel_str pointer);

enum semel_json_kind { SEMEL_JSON_MISSING, SEMEL_JSON_NULL, SEMEL_JSON_STRING, SEMEL_JSON_INTEGER, SEMEL_JSON_OTHER };
/* The value at the pointer. STRING and INTEGER return their text, copied to the arena; the others {NULL, 0}. An INTEGER
 * is a number without fraction and exponent, in decimal and of any length: it may exceed int64, which semel__str_int64
 * checks. INVALID: malformed pointer. RETRY: no memory. */
semel_status semel__json_get(const struct semel_json *json, struct semel_str pointer, struct semel_arena *arena,
                             enum semel_json_kind *ret_kind, struct semel_str *ret_text, struct semel_error *err);

/* Takes the value at a valid pointer away: a member goes, an element of an array and the whole document become null, so
 * that other pointers mean what they did before. Nothing is there: nothing is done. */
void semel__json_ignore(struct semel_json *json, struct semel_str pointer);

/* Appends the canonical form. *ret_exact = false (and buf is useless) when a number is not exact as a double. INVALID:
 * longer than buf may grow. RETRY: no memory. */
semel_status semel__json_canonical(const struct semel_json *json, struct semel_buf *buf, bool *ret_exact,
                                   struct semel_error *err);

/* The same of a text that was not parsed, in one pass and without memory, where that is as simple as it mostly is.
 * Returns the length of the form, which is exact. 0: it is not so simple, or no JSON: parse it. */
#define SEMEL_JSON_SHORT 4096
size_t semel__json_short(struct semel_str text, char out[SEMEL_JSON_SHORT]);

/* Appends a string with its quotes, escaped by the rules of RFC 8785. `s` is well-formed UTF-8. */
void semel__json_put_string(struct semel_buf *buf, struct semel_str s);

/* ---- pieces of a text, as they were written ----
 *
 * Without a tree, for who wants a few values of a text that has been parsed already. The text should be JSON: of
 * anything else some part is given, or none, and nothing outside of it is read. */

/* The text of the value at the pointer, without blanks around it; not given: there is none. */
struct semel_str semel__json_find(struct semel_str text, struct semel_str pointer);
/* The members of an object or the elements of an array, one per call; *from starts as 0. The name (may be NULL) is the
 * raw text without its quotes; an element has none. false: there are no more. */
bool semel__json_next(struct semel_str text, size_t *from, struct semel_str *ret_name, struct semel_str *ret_value);
/* The first member with exactly this raw name, without escapes. false: there is none. */
bool semel__json_member(struct semel_str object, const char *name, struct semel_str *ret);
/* Decodes the text of a string with its quotes. false: no memory, or, with *ret_sound false, not JSON. */
bool semel__json_decode(struct semel_str raw, struct semel_arena *arena, struct semel_str *ret, bool *ret_sound);

#endif
