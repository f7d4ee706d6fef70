/* SPDX-License-Identifier: MIT
 *
 * positions.h: positions of a source that are kept with the effects (I23): which of them a batch of deliveries moves.
 *
 * A delivery with an epoch comes from a partition whose position is kept in the store. When one transaction takes a
 * whole batch to its end, and every delivery of it will be acknowledged, the positions are moved in that transaction.
 * Else (it was cut, something was given back or was claimed first) they are moved afterwards, by a small transaction,
 * to the end of the longest run of acknowledged deliveries of each partition.
 *
 * Invariants
 *  - A position never leads: no delivery before it is without a committed record. What was given back is a hole; until
 *    the source comes back to it, or to what lies before it, nothing behind it moves the position, also in later
 *    batches.
 *  - A partition's order is that of its deliveries. Offsets have gaps, and nothing is concluded from them but "before".
 *  - Every transaction of the batch path asks whether the epochs still hold, and is rolled back if one does not: what a
 *    worker does that has lost its partition does not happen (P27).
 *
 * One of these belongs to one worker, and all deliveries of a partition come to the same worker, in order.
 */
#ifndef SEMEL_CORE_POSITIONS_H
#define SEMEL_CORE_POSITIONS_H

#include "core/broker.h"
#include "core/inbox.h"

struct position_lane;

struct semel_position_updates {
    /* NULL, or told of every position whose epoch was another one: somebody else has the partition, or an operator has
     * set the position. Called by the worker's thread, after the rollback or the refused move. Without it the pump
     * opens its broker anew. */
    void (*fenced)(void *ctx, struct semel_str source, int32_t partition, int64_t epoch);
    void *fenced_ctx;
    /* inside */
    struct position_lane *lanes; /* ascending by (source, partition) */
    struct semel_position *items;
    size_t n, room, n_items;
    size_t whole; /* how many items the inbox made of the batch; 0: not known yet */
    bool moved;   /* by the transaction of the batch, which was committed */
    bool refused; /* an epoch was another one */
    bool blind;   /* there was no memory to remember a hole: nothing moves until the source was opened anew */
};

void semel__position_updates_init(struct semel_position_updates *position_updates);
void semel__position_updates_done(struct semel_position_updates *position_updates);
/* The source was opened anew: all that was not acknowledged comes again. */
void semel__position_updates_reopened(struct semel_position_updates *position_updates);

/* Before the inbox processes the deliveries: from here to the end the inbox knows of the positions. Anything but OK:
 * they must not be processed. */
semel_status semel__position_updates_begin(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                           const struct semel_delivery *deliveries, size_t n, struct semel_error *err);
/* After the commits, before the answers to the source: notes what is given back and, with `may_move`, moves what was
 * not moved yet. FENCED: an epoch was another one, here or in the batch. Other statuses: nothing was moved, and the
 * next batch will do it. */
semel_status semel__position_updates_end(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                         const struct semel_delivery *deliveries, const struct semel_settled *settled,
                                         size_t n, bool may_move, struct semel_error *err);

/* For inbox.c, inside a transaction: moves all (`all`: every delivery of the batch is in it and will be acknowledged),
 * or only asks for the epochs. FENCED: roll back. */
semel_status semel__position_updates_move(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                          bool all, int64_t now_us, struct semel_error *err);

#endif
