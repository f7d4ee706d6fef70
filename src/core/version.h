/* SPDX-License-Identifier: MIT
 *
 * version.h: how far an order key has come by versions.
 *
 *   V ends as                        V = last + 1   V > last + 1
 *   completed (resolved)             last = V       last = V; what is missing is stale
 *   rejected, discarded, prevented   last = V       last stays, V joins `skipped`
 *
 * Only a message with an effect moves the last version past a gap (P74). A version that ended without effect ahead of
 * the gap is skipped: the key remembers it and steps over it when the gap closes. A key without a last version counts
 * as one before the route's first version; a route that accepts any first version skips nothing until a version was
 * applied.
 *
 * Invariants: a version that is not above the last changes nothing; `skipped` is never written in place, so that copies
 * of a key may share it.
 */
#ifndef SEMEL_CORE_VERSION_H
#define SEMEL_CORE_VERSION_H

#include "base/str.h"
#include "core/policy.h"
#include "core/store.h"

/* The version that the next one must follow; SEMEL_NONE: the route accepts any first version, and none was applied. */
int64_t semel__version_last(const struct semel_policy *policy, const struct semel_key *key);
/* Is there no room to remember that this version ended without effect? */
bool semel__version_full(const struct semel_policy *policy, const struct semel_key *key, int64_t version);

/* The versions missing before this one: "version 5", "versions 5 to 8, 10". false: none, or unknown. */
bool semel__version_missing(const struct semel_policy *policy, const struct semel_key *key, int64_t version,
                            struct semel_buf *text);

/* It ended with an effect. A message without a version (SEMEL_NONE) moves nothing. */
void semel__version_applied(const struct semel_policy *policy, struct semel_key *key, int64_t version);
/* A message of this version has become `state`; `fresh`: it had no row before. If it takes a place in the order, a
 * skipped version is waited for again; so it is if there was no room for it (ABSENT), because it will come again. A
 * full list takes no more: later versions then wait for the gap. false: no memory. */
bool semel__version_move(const struct semel_policy *policy, struct semel_key *key, int64_t version,
                         enum semel_row_status state, bool fresh, struct semel_arena *arena);

/* ---- the stored form ------------- */

#define SEMEL_SKIPPED_TEXT_MAX (20 * SEMEL_SKIPPED_MAX)

/* Numbers separated by commas. */
void semel__version_write(const int64_t *skipped, size_t n, struct semel_buf *buf);
/* INVALID, BROKEN: malformed text. Not given: there are none. */
semel_status semel__version_read(struct semel_str text, struct semel_arena *arena, struct semel_key *key,
                                 struct semel_error *err);
/* INVALID, BROKEN: the database returned no valid last version or list of skipped versions. */
semel_status semel__version_check(const struct semel_key *key, struct semel_error *err);
semel_status semel__version_damaged(struct semel_error *err);

#endif
