/* SPDX-License-Identifier: MIT
 *
 * ids.h: the time inside an id, and new ids.
 *
 * A UUIDv7 or a ULID contains the time when it was made, which stays the same when the event is sent again; the
 * watermark relies on that. The version and variant bits are checked, so a random UUIDv4 is never mistaken for one
 * with a time. A ULID is 26 characters of Crockford's base 32, first character at most '7', and has no other mark: a
 * number of 26 digits looks like one, so ULIDs count only where the settings say so. Both forms are accepted in
 * either case. A time before 2010 or after tomorrow is a coincidence, not the time of an event.
 */
#ifndef SEMEL_BASE_IDS_H
#define SEMEL_BASE_IDS_H

#include "base/random.h"
#include "semel/types.h"

#define SEMEL_UUID_TEXT 37

/* true and *ret_us when the text is a UUIDv7 (8-4-4-4-12), or with `ulids` a ULID, with a time from 2010 to a day after
 * now. */
bool semel__id_time(struct semel_str id, bool ulids, int64_t now_us, int64_t *ret_us);
/* A new UUIDv7 in lower case: 48 bits of milliseconds, the rest random. */
void semel__uuid7_new(int64_t now_us, struct semel_random *rng, char out[SEMEL_UUID_TEXT]);
/* 8-4-4-4-12 hexadecimal digits of any version. */
bool semel__uuid_valid(struct semel_str s);

#define SEMEL_UUID_KEY 17
/* The id as a key of few bytes: a UUID in lower case is a zero byte and its 16 bytes, which are written to `out`; any
 * other id is itself, and has no zero byte. */
struct semel_str semel__id_key(struct semel_str id, unsigned char out[SEMEL_UUID_KEY]);
/* The time in a UUIDv7 in lower case, whatever it is; SEMEL_NONE: the id is none. */
int64_t semel__id_key_time(struct semel_str id);

#endif
