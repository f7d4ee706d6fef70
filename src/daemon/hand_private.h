/* SPDX-License-Identifier: MIT
 *
 * hand_private.h: what hand.c and side.c share. Everything is under the hand's lock, but for what a side holds.
 */
#ifndef SEMEL_DAEMON_HAND_PRIVATE_H
#define SEMEL_DAEMON_HAND_PRIVATE_H

#include <pthread.h>

#include "daemon/hand.h"

/* One poll of the real broker. Freed with the last of its deliveries. */
struct parcel {
    struct semel_arena arena;
    int64_t given_us; /* monotonic */
    size_t refs;      /* deliveries that are not answered or forgotten; atomic */
};

/* What a side got of a parcel, in its arena; or a mark, of its own. */
struct chunk {
    struct chunk *next;
    struct parcel *parcel; /* NULL: a mark: what was given back of `lane` has been applied */
    struct semel_delivery *at;
    size_t *weights; /* bytes of each */
    size_t n, done;
    uint64_t epoch, lane;
};

/* A lane of which something was given back, and how many marks are still to come. */
struct returned {
    uint64_t lane;
    size_t marks;
};

/* A delivery that the side's user has, until the next poll. */
struct held {
    uint64_t tag, lane;
    struct parcel *parcel;
    size_t bytes;
};

struct side {
    struct semel_broker base;
    struct semel_hand *hand;
    size_t index;
    struct chunk *chunks, **end;
    size_t queued, sorting;
    pthread_cond_t given;
    int fd;
    /* Of the worker's thread alone. */
    struct held *held;
    size_t n_held, held_max;
    struct returned *returned;
    size_t n_returned, returned_max;
    uint64_t epoch; /* of what is held */
    bool stuck;     /* nothing is taken before the next epoch */
};

struct semel_hand {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    struct side *sides;
    size_t n_sides, max;
    bool keep_lanes, keep_answers, closed, wants_void;
    size_t out, bytes; /* given and not answered */
    uint64_t seen, seen_bytes;
    uint64_t epoch, nudges;
    struct semel_answer *answers, **answers_end;
    struct semel_broker *source; /* to be woken */
};

extern const struct semel_broker_ops semel__hand_side_ops;

void semel__parcel_drop(struct parcel *parcel, size_t n);
void semel__side_wake(struct side *side); /* under the lock */
void semel__answer_free(struct semel_answer *answer);
void semel__side_forget(struct side *side); /* what is queued and what is held */

#endif
