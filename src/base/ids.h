/* SPDX-License-Identifier: MIT
 *
 * ids.h: the time inside an id, and new ids.
 *
 * A UUIDv7 or a ULID carries the time of its making, which stays the same when the event is sent
 * again; that is what the watermark stands on. The version and variant bits are checked, so a
 * random UUIDv4 is never mistaken for one with a time. A ULID is 26 characters of Crockford's
 * base 32, first character at most '7', and has nothing else to be known by: a number of 26 digits
 * is one by its form, so ULIDs count only where they were said to be there. Both forms are accepted
 * in either case. A time before 2010 or after tomorrow is chance, not the time of an event.
 */
#ifndef SEMEL_BASE_IDS_H
#define SEMEL_BASE_IDS_H

#include "base/random.h"
#include "semel/types.h"

#define SEMEL_UUID_TEXT 37

/* true and *ret_us when the text is a UUIDv7 (8-4-4-4-12), or a ULID where those count, whose time lies from 2010 to a
 * day after now. */
bool semel__id_time(struct semel_str id, bool ulids, int64_t now_us, int64_t *ret_us);
/* A new UUIDv7 in lower case: 48 bits of milliseconds, the rest random. */
void semel__uuid7_new(int64_t now_us, struct semel_random *rng, char out[SEMEL_UUID_TEXT]);
/* 8-4-4-4-12 hexadecimal digits of any version. */
bool semel__uuid_valid(struct semel_str s);

#endif
