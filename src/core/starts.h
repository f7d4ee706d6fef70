/* SPDX-License-Identifier: MIT
 *
 * starts.h: above which number each shard of an outbox is scanned. Pure: relay.c asks the store, and reports here what
 * it saw.
 *
 * A number that was drawn earlier may commit later (P1), and dead rows below slow a scan from the bottom (P70). So:
 *
 *   note     about once per second: the number that was drawn last, and then, read in a later statement (P105), the
 *            transactions that hold the sequence. Each transaction that has drawn a number up to the noted one is among
 *            them, or has ended.
 *   proven   when none of them is left, the noted number becomes the floor: every event up to it is committed, or never
 *            will be.
 *   apart    a holder that is left after a second is set apart: the floor rises without it, and after every scan,
 *            before anything is published, the relay looks whether it has ended. If so, all shards go back to where
 *            they were when the first one was set apart, and the relay scans again.
 *   scanned  a scan that began after the proof gives the first event of a shard: the shard starts right below it, and
 *            not above the floor.
 *
 * Invariants: an event that commits is at or above the start of its shard, until it was seen by a scan; but for events
 * whose number their transaction did not draw. Those are seen after `forget`, which happens every minute.
 */
#ifndef SEMEL_CORE_STARTS_H
#define SEMEL_CORE_STARTS_H

#include "core/relay.h"

#define SEMEL_STARTS_BOTTOM (INT64_MIN + 1) /* below every number */

struct semel_holder_name {
    char bytes[48];
    size_t n;
    int64_t pid;
};

struct semel_starts {
    struct {
        int64_t at, base;
        int64_t before; /* what it was before it was forgotten */
    } shards[SEMEL_RELAY_SHARDS];
    int64_t floor, base_floor;
    int64_t started_us; /* of the server */
    int64_t forgotten_us;
    uint64_t given_up; /* how often a proof was given up */
    bool noted;
    int64_t noted_seq, noted_us;
    struct semel_holder_name holders[SEMEL_RELAY_HOLDERS_MAX]; /* of the note */
    size_t n_holders;
    struct semel_holder_name apart[SEMEL_RELAY_HOLDERS_MAX];
    size_t n_apart;
};

void semel__starts_init(struct semel_starts *starts, int64_t now_us);
/* Forgets all starting points: every scan begins at the bottom again. */
void semel__starts_forget(struct semel_starts *starts, int64_t now_us);
/* The same for one shard, which another relay owned before. */
void semel__starts_reset(struct semel_starts *starts, size_t shard);
/* n > SEMEL_RELAY_HOLDERS_MAX: there are too many to be remembered, and nothing is proven. true: the number is below
 * one that was noted before: the sequence was set back, and all is forgotten. */
bool semel__starts_note(struct semel_starts *starts, int64_t now_us, int64_t seq, int64_t started_us,
                        const struct semel_relay_holder *holders, size_t n);
/* Reports the holders that were read after a scan. true: one that was set apart has ended, so scan again. */
bool semel__starts_ended(struct semel_starts *starts, const struct semel_relay_holder *holders, size_t n);
/* first_seq: SEMEL_NONE: the shard has no event above its start. true: an event is there that should have been seen
 * before: its transaction did not draw its number. */
bool semel__starts_scanned(struct semel_starts *starts, size_t shard, int64_t first_seq);

#endif
