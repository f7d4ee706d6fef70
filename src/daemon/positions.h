/* SPDX-License-Identifier: MIT
 *
 * positions.h: the source thread's side of positions that are kept with the effects (I23). The workers' side is
 * core/positions.h.
 *
 * When the group gives us partitions their epochs are raised in the store, which fences off whoever had them before,
 * and reading starts where the store says. Each delivery is stamped with the epoch under which it was read: a worker
 * moves the position under that epoch and no other, so that what was read before the partition went away, or before an
 * operator set the position, can neither move it nor have an effect any more.
 *
 * Invariants: nothing of a partition is delivered before its epoch is raised and committed. The epoch of a partition is
 * forgotten when it is revoked.
 *
 * assigned, revoked and stamp are called by the thread that polls, to which the store handle belongs; fenced and stale
 * by any.
 */
#ifndef SEMEL_DAEMON_POSITIONS_H
#define SEMEL_DAEMON_POSITIONS_H

#include "broker/kind.h"
#include "core/store.h"

struct semel_positions;

/* `store` and `consumer` are borrowed for its life. NULL: no memory. */
struct semel_positions *semel__positions_new(struct semel_store *store, struct semel_str consumer);
void semel__positions_free(struct semel_positions *positions);

/* The hooks of Kafka; ctx is the struct semel_positions. Where the store has never heard of a partition, what Kafka
 * keeps for the group is adopted, and stored. Where the position was taken away, `first` decides. A connection that was
 * lost is opened anew. */
semel_status semel__positions_assigned(void *ctx, struct semel_source_start *starts, size_t n, struct semel_error *err);
void semel__positions_revoked(void *ctx, const struct semel_source_start *starts, size_t n, bool lost);

/* After every poll, before anything is handed out: sets the epoch of each delivery. */
void semel__positions_stamp(struct semel_positions *positions, struct semel_delivery *deliveries, size_t n);

/* For struct semel_position_updates (fenced, fenced_ctx). What was read under an older epoch than ours is no news. */
void semel__positions_fenced(void *ctx, struct semel_str source, int32_t partition, int64_t epoch);
/* Looks whether an epoch of ours was raised: while nothing comes no worker would notice. By the thread that polls. */
semel_status semel__positions_check(struct semel_positions *positions, struct semel_error *err);
/* An epoch of ours was raised by somebody else: the broker must be opened anew, which takes the partitions again, or
 * finds that they are not ours. True once. */
bool semel__positions_stale(struct semel_positions *positions);

#endif
