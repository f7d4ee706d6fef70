/* SPDX-License-Identifier: MIT
 *
 * headers.h: headers of a delivery: lookup, and the form in which they are stored.
 *
 * The stored form is a JSON object: a name that comes once has its value as a string, one that comes several times
 * has an array; a value that is not UTF-8 is {"hex": "..."}. A name that is not UTF-8 is stored as its hexadecimal
 * digits, and shares its entry with a name that consists of these digits.
 *
 * The name semel_tombstone is reserved: it marks a record that had no value at all, for which an empty payload is
 * stored. No source can set it from outside.
 */
#ifndef SEMEL_CORE_HEADERS_H
#define SEMEL_CORE_HEADERS_H

#include "core/broker.h"
#include "core/msg.h"

#define SEMEL_TOMBSTONE "semel_tombstone"

/* The first with this name, ASCII letters compared without case; not given: none. */
struct semel_str semel__pair_find(const struct semel_pair *pairs, size_t n, struct semel_str name);

/* Does Semel write a header of this name on events that leave (id, traceparent, ce_*, webhook-*)? In any case. */
bool semel__header_is_ours(struct semel_str name);

/* INVALID: too many, or too large. No headers at all: *ret is not given. */
semel_status semel__headers_json(const struct semel_pair *pairs, size_t n, struct semel_arena *arena,
                                 struct semel_str *ret, struct semel_error *err);

/* The headers of a delivery without the reserved name, which is added if the delivery has no value. */
semel_status semel__headers_of(const struct semel_delivery *delivery, struct semel_arena *arena, struct semel_str *ret,
                               struct semel_error *err);
/* Headers that somebody else has written, a JSON object: without the reserved name, unless the payload is given and
 * empty. A text that is longer than SEMEL_HEADERS_MAX is not parsed, and stays as it is: core refuses it. */
semel_status semel__headers_settle(struct semel_str payload, struct semel_arena *arena, struct semel_str *headers,
                                   struct semel_error *err);
/* Was the message a record without a value? */
bool semel__is_tombstone(const struct semel__msg *msg);

/* The headers that an event leaves with: its own, but for names that Semel writes, and those of CloudEvents. */
struct semel_relay_event;
semel_status semel__event_headers(const struct semel_relay_event *event, struct semel_arena *arena,
                                  struct semel_publish *item, struct semel_error *err);

#endif
