/* SPDX-License-Identifier: MIT
 *
 * natural.h: effects that are harmless when repeated (I22), and the versions of a key (I12).
 *
 * What it is: pure decisions that a handler can take before it writes, and that the inbox itself takes
 * for routes with versions. With them a repeat changes nothing even where no inbox row stands guard:
 *  - a conditional update by version: apply only what is next;
 *  - a forward-only state machine: a repeated ReleaseStock after success is a repeat, not an error;
 *  - an upsert by a stable key: use semel__step_key() as the key of the row that the effect writes.
 */
#ifndef SEMEL_CORE_NATURAL_H
#define SEMEL_CORE_NATURAL_H

#include "semel/types.h"

enum semel_version_order { SEMEL_VERSION_NEXT, SEMEL_VERSION_SAME, SEMEL_VERSION_OLDER, SEMEL_VERSION_AHEAD };

/* Where `version` stands to `last`, the highest one applied. */
enum semel_version_order semel__version_compare(int64_t last, int64_t version);

enum semel_forward {
    SEMEL_FORWARD_APPLY,  /* the move is legal: make it */
    SEMEL_FORWARD_REPEAT, /* it is there already, or past it: do nothing, answer success */
    SEMEL_FORWARD_REFUSE  /* the machine has no way from here to there */
};

/* States are 0..n-1 (n at most 64); next[s] is the set of states, as bits, that follow s directly. A state from which
 * the target cannot be reached but which can be reached from the target is past it. */
struct semel_machine {
    unsigned n;
    const uint64_t *next;
};
enum semel_forward semel__machine_move(const struct semel_machine *machine, unsigned current, unsigned target);

#endif
