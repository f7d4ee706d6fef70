/* SPDX-License-Identifier: MIT
 *
 * state.h: the statuses of an inbox row, and every legal move between them.
 *
 *   absent ------> processing completed failed waiting rejected unknown dead
 *                  stale prevented quarantined       an arrival
 *   waiting -----> processing completed failed dead rejected unknown stale waiting
 *   processing --> completed failed waiting dead rejected unknown processing (renewed)
 *   failed ------> processing completed failed dead rejected unknown stale waiting
 *   unknown -----> completed failed rejected         after a reconcile
 *   dead --------> failed completed rejected waiting retried, resolved, discarded; waiting: it died of a gap
 *   quarantined -> failed completed rejected         forced, resolved, discarded
 *   completed, rejected, stale, prevented: final; only purge deletes them (-> absent)
 *
 * Invariants: a final row never changes; `unfinished` rows hold their place in the order of their key; a move that is
 * not in the table is a bug, and the store wrappers assert that there is none.
 */
#ifndef SEMEL_CORE_STATE_H
#define SEMEL_CORE_STATE_H

#include "semel/types.h"

bool semel__state_final(enum semel_row_status state);      /* only purge changes it */
bool semel__state_unfinished(enum semel_row_status state); /* processing failed waiting unknown dead: blocks its key */
bool semel__move_legal(enum semel_row_status from, enum semel_row_status to);

#endif
