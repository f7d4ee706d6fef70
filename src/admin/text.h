/* SPDX-License-Identifier: MIT
 *
 * text.h: small things about text that ingest and pull share: base64, and pieces of JSON as they were written.
 *
 * A payload inside of JSON is taken as its bytes stand, not written anew: what was signed stays what it was.
 */
#ifndef SEMEL_ADMIN_TEXT_H
#define SEMEL_ADMIN_TEXT_H

#include "base/mem.h"
#include "base/str.h"

/* RFC 4648, with padding. */
void semel__base64_put(struct semel_buf *buf, struct semel_str bytes);
enum semel_base64 { SEMEL_BASE64_OK, SEMEL_BASE64_WRONG, SEMEL_BASE64_MEMORY };
/* Strict: only the alphabet, whole groups of four, padding where it belongs and no stray bits. */
enum semel_base64 semel__base64_read(struct semel_str text, struct semel_arena *arena, struct semel_str *ret);

/* `object` was accepted by semel__json_parse and is an object. The text of the member's value; false: there is none
 * whose name is written so, without escapes. */
bool semel__json_member(struct semel_str object, const char *name, struct semel_str *ret);
/* The same for the elements of an array, one a call; *at starts as 0. false: there are no more. */
bool semel__json_element(struct semel_str array, size_t *at, struct semel_str *ret);

/* Appends the text if it is JSON, else not: false. */
bool semel__json_put_raw(struct semel_buf *buf, struct semel_str text, size_t max);
/* Appends ,"name":"value"; nothing when the value is not given or not UTF-8. */
void semel__json_put_pair(struct semel_buf *buf, const char *name, struct semel_str value);

/* ASCII letters alike. */
bool semel__same_word(struct semel_str a, const char *z);
bool semel__begins_with(struct semel_str s, const char *prefix); /* ASCII letters alike */

#endif
