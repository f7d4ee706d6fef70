/* SPDX-License-Identifier: MIT
 *
 * positions.h: positions of a source that the store keeps together with the effects (I23), and how far a batch moves
 * them.
 *
 * A delivery with an epoch comes from a partition whose position the store keeps. When one transaction commits a
 * whole batch and every delivery of it will be acknowledged, that transaction moves the positions. Otherwise (the
 * batch was cut, a delivery was given back or claimed first) a small transaction afterwards moves each partition to
 * the end of its longest run of acknowledged deliveries.
 *
 * Invariants
 *  - A position never leads: every delivery before it has a committed record. A delivery that was given back is a
 *    hole; until the source delivers it, or an earlier one, again, no delivery behind it moves the position, not in
 *    later batches either.
 *  - A partition's order is that of its deliveries. Offsets have gaps; they are only compared.
 *  - Every transaction of the batch path checks the epochs, and is rolled back if one has changed: a worker that has
 *    lost its partition changes nothing (P27).
 *
 * One of these belongs to one worker, and all deliveries of a partition come to the same worker, in order.
 */
#ifndef SEMEL_CORE_POSITIONS_H
#define SEMEL_CORE_POSITIONS_H

#include "core/broker.h"
#include "core/inbox.h"

struct position_lane;

struct semel_position_updates {
    /* NULL, or called with every position whose epoch has changed: another worker has the partition, or an operator has
     * set the position. The worker's thread calls it after the rollback or the refused move. Without it the pump
     * reopens its broker. */
    void (*fenced)(void *ctx, struct semel_str source, int32_t partition, int64_t epoch);
    void *fenced_ctx;
    /* private */
    struct position_lane *lanes; /* ascending by (source, partition) */
    struct semel_position *items;
    size_t n, room, n_items;
    size_t whole; /* how many items the inbox made of the batch; 0: not known yet */
    bool moved;   /* the committed transaction of the batch has moved them */
    bool refused; /* an epoch has changed */
    bool blind;   /* no memory was left to note a hole: no position moves until the source is reopened */
};

/* For inbox.c, inside a transaction: moves all positions (`all`: it has every delivery of the batch, and all will be
 * acknowledged), or only checks the epochs. FENCED: roll back. */
semel_status semel__position_updates_move(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                          bool all, int64_t now_us, struct semel_error *err);

#endif
