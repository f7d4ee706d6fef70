/* SPDX-License-Identifier: MIT
 *
 * handoff.h: between the source thread of a route and its workers.
 *
 * The source thread gives deliveries and applies answers. Each worker has a queue, which looks like a broker: core's
 * pump runs on it as on any other, and knows nothing of threads. What is in it is in memory only, and belongs to the
 * real broker until the answer was applied there.
 *
 * Invariants
 *  - The source thread applies answers, in the order in which a queue gave them.
 *  - `keep_lanes`: the deliveries of a lane go to one queue, in order. After one of them was given back, what follows
 *    it in its lane is given back too, until the source has applied that: it comes again behind it, never before.
 *  - At most about `max` deliveries or SEMEL_HANDOFF_BYTES are given and not answered; the source asks for the room.
 *  - After `invalidate` (the real broker was opened anew) everything given before is forgotten: it comes again.
 *  - The bytes of a delivery live until the queue's next poll.
 */
#ifndef SEMEL_DAEMON_HANDOFF_H
#define SEMEL_DAEMON_HANDOFF_H

#include "core/broker.h"

#define SEMEL_HANDOFF_BYTES ((size_t)16 << 20)

struct semel_handoff;

semel_status semel__handoff_new(struct semel_handoff **ret, size_t workers, size_t max, bool keep_lanes,
                                struct semel_error *err);
void semel__handoff_free(struct semel_handoff *handoff); /* no thread uses it any more */

/* ---- the source thread ---- */

/* The broker that is woken when there is an answer, if it can be; NULL: none. */
void semel__handoff_set_source(struct semel_handoff *handoff, struct semel_broker *broker);
/* How many more deliveries there is room for; how many are out. */
size_t semel__handoff_room(struct semel_handoff *handoff, size_t *ret_out);
/* Takes over the arena, in which the deliveries and their bytes are, and leaves an empty one. */
semel_status semel__handoff_give_take(struct semel_handoff *handoff, struct semel_arena *arena,
                                      const struct semel_delivery *deliveries, size_t n, struct semel_error *err);

/* What a queue answered at once. Freed by semel__handoff_applied. */
struct semel_answered {
    struct semel_answered *next;
    struct semel_reply *replies; /* acknowledged or given back: nothing else is known of them */
    size_t n;
    size_t queue;          /* private from here on */
    struct slice *markers; /* for the queue, once the answer was applied */
    uint64_t epoch;
};
/* What was answered since, in order; waits at most wait_ms for the first. NULL: nothing. */
struct semel_answered *semel__handoff_answers(struct semel_handoff *handoff, int wait_ms);
/* It is about deliveries from before the last invalidate: the broker knows nothing of them. */
bool semel__handoff_stale(struct semel_handoff *handoff, const struct semel_answered *answer);
/* The broker has applied it, or its tags were fenced: what was given back comes again from now on. */
void semel__handoff_applied(struct semel_handoff *handoff, struct semel_answered *answer);
/* The real broker was opened anew. */
void semel__handoff_invalidate(struct semel_handoff *handoff);
/* A queue could not give something back: the real broker has to be opened anew. */
bool semel__handoff_wants_reopen(struct semel_handoff *handoff);

/* ---- any thread ---- */

void semel__handoff_wake_source(struct semel_handoff *handoff);

/* ---- a worker ---- */

/* The i-th queue. It is the handoff's: semel_broker_close must not be called. poll, answer, wake and fd as in broker.h;
 * reopen asks the source to open the real broker anew, and until then nothing is delivered. */
struct semel_broker *semel__handoff_queue(struct semel_handoff *handoff, size_t i);
/* How long ago the oldest of the deliveries of the last poll was given. */
int64_t semel__handoff_age_us(const struct semel_broker *queue);

#endif
