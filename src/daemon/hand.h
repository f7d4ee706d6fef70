/* SPDX-License-Identifier: MIT
 *
 * hand.h: between the source thread of a route and its workers.
 *
 * The source thread gives deliveries and takes answers. Each worker has a side, which looks like a broker: core's pump
 * runs on it as on any other, and knows nothing of threads. Not a queue of the world: what is in it is in memory only,
 * and belongs to the real broker until its answer was applied there.
 *
 * Invariants
 *  - An answer is applied by the source thread, in the order in which its side gave it.
 *  - `keep_lanes`: the deliveries of a lane go to one side, in order. After one of them was given back, what follows it
 *    in its lane is given back too, until the source has applied that: it comes again behind it, never before.
 *  - At most about `max` deliveries or SEMEL_HAND_BYTES are given and not answered; the source asks for the room.
 *  - After `void` (the real broker was opened anew) everything given before is forgotten: it comes again.
 *  - The bytes of a delivery live until the side's next poll.
 */
#ifndef SEMEL_DAEMON_HAND_H
#define SEMEL_DAEMON_HAND_H

#include "core/broker.h"
#include "core/inbox.h"

#define SEMEL_HAND_BYTES ((size_t)16 << 20)

struct semel_hand;

/* `keep_answers`: the source wants to know what came of each delivery. */
semel_status semel__hand_new(struct semel_hand **ret, size_t sides, size_t max, bool keep_lanes, bool keep_answers,
                             struct semel_error *err);
void semel__hand_free(struct semel_hand *hand); /* no thread uses it any more */

/* ---- the source thread ---- */

/* Who is woken when there is an answer, if he can be; NULL: nobody. */
void semel__hand_source(struct semel_hand *hand, struct semel_broker *broker);
/* How many more deliveries there is room for; how many are out. */
size_t semel__hand_room(struct semel_hand *hand, size_t *ret_out);
/* Takes over the arena, in which the deliveries and their bytes are, and leaves an empty one. */
semel_status semel__hand_give_take(struct semel_hand *hand, struct semel_arena *arena,
                                   struct semel_delivery *deliveries, size_t n, struct semel_error *err);

/* What a side answered at once. Freed by semel__hand_applied. */
struct semel_answer {
    struct semel_answer *next;
    /* keep_answers: what came of each has act, why, state, cls and outcome; else the act alone. */
    struct semel_reply *replies;
    size_t n;
    size_t side;                   /* private from here on */
    struct semel_settled *settled; /* keep_answers; else NULL */
    struct chunk *marks;           /* for the side's queue, once it was applied */
    uint64_t epoch;
};
/* What was answered since, in order; waits at most wait_ms for the first. NULL: nothing. */
struct semel_answer *semel__hand_answers(struct semel_hand *hand, int wait_ms);
/* It is about deliveries from before the last void: the broker knows nothing of them. */
bool semel__hand_stale(struct semel_hand *hand, const struct semel_answer *answer);
/* The first of them was applied by the broker, or its tags were fenced: what was given back comes again from now on. */
void semel__hand_applied(struct semel_hand *hand, struct semel_answer *answer);
/* The real broker was opened anew. */
void semel__hand_void(struct semel_hand *hand);
/* A side could not give something back and asks for that. */
bool semel__hand_wants_void(struct semel_hand *hand);
/* Nothing more is given: polls answer at once, with nothing. */
void semel__hand_close(struct semel_hand *hand);

/* ---- a worker ---- */

/* The i-th side. It is the hand's: semel_broker_close must not be called. poll and answer as in broker.h; reopen
 * asks the source to open the real broker anew, and until then nothing is delivered. */
struct semel_broker *semel__hand_side(struct semel_hand *hand, size_t i);
/* Readable while the side has deliveries, was closed or woken. For who waits for other things as well. */
int semel__hand_fd(struct semel_broker *side);
/* How long ago the oldest of the deliveries that the last poll took was given. */
int64_t semel__hand_age_us(struct semel_broker *side);
/* Waits like a poll, and takes nothing, whatever is given. Returns at once when the hand is closed, or is nudged. */
void semel__hand_nap(struct semel_broker *side, int wait_ms);
/* Waits until a poll would find something, and takes nothing. false: there was nothing in time, or it was closed or
 * nudged. */
bool semel__hand_wait(struct semel_broker *side, int wait_ms);
/* Gives back, to come again after delay_ms, all that the side was given and nobody has polled. */
semel_status semel__hand_return(struct semel_broker *side, int delay_ms, struct semel_error *err);
/* Who naps or waits looks around. From any thread. */
void semel__hand_nudge(struct semel_hand *hand);

#endif
