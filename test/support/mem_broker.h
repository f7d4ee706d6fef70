/* SPDX-License-Identifier: MIT
 *
 * mem_broker.h: the in-memory broker, for teaching, tests and the simulator.
 *
 * What it is: a queue in the heap that several handles share, with the two characters that real brokers have:
 *   ORDERED    like a Kafka topic. A message goes to a partition; a partition belongs to one handle at a time and is
 *              delivered in order. The broker remembers one number a partition: the floor, below which all is
 *              acknowledged. An acknowledgement above the floor waits in the handle, and is forgotten when the
 *              partition moves: everything from the floor on then comes again. `later` rewinds the partition.
 *   UNORDERED  like a queue with competing consumers. Each message is taken by one handle until it is acknowledged,
 *              given back, or its taker goes away.
 * What it is not: safe between threads, or able to wait: poll returns at once, whatever wait_ms says.
 *
 * Invariants: a tag is never used twice in a queue; a tag that is not outstanding in its handle is FENCED; a
 * message leaves only by an acknowledgement that arrived.
 */
#ifndef SEMEL_TEST_SUPPORT_MEM_BROKER_H
#define SEMEL_TEST_SUPPORT_MEM_BROKER_H

#include "base/clock.h"
#include "core/broker.h"

struct semel_mem_queue;

enum semel_queue_mode { SEMEL_QUEUE_ORDERED, SEMEL_QUEUE_UNORDERED };

extern const struct semel_broker_ops semel__broker_mem_unordered; /* for brokers that are made of it */

/* `n_partitions` counts for ORDERED only, at least 1. `clock` NULL: the machine's; it must outlive the queue. */
semel_status semel__mem_queue_new(struct semel_mem_queue **ret, enum semel_queue_mode mode, size_t n_partitions,
                                  const struct semel_clock *clock);
/* Every handle on it must be closed. */
void semel__mem_queue_free(struct semel_mem_queue *queue);
/* A handle on a shared queue, to be closed by semel_broker_close. */
semel_status semel__broker_mem_open(struct semel_broker **ret, struct semel_mem_queue *queue, struct semel_error *err);

struct semel_mem_push {
    struct semel_str source, key; /* the key chooses the partition; not given: partition 0 */
    struct semel_str position;    /* not given: "PARTITION/OFFSET" when ORDERED, none when UNORDERED */
    struct semel_str payload;
    const struct semel_pair *headers;
    size_t n_headers;
    const struct semel_pair *properties;
    size_t n_properties;
};
/* All of them or, with RETRY, none. Messages are numbered from 0 in the order of their pushing. */
semel_status semel__mem_queue_push(struct semel_mem_queue *queue, const struct semel_mem_push *messages, size_t n,
                                   struct semel_error *err);

/* ---- faults ------------------------------------------------------------------------------------------- */

enum semel_queue_fault {
    SEMEL_QUEUE_GO,
    SEMEL_QUEUE_RETRY, /* RETRY, ENVIRONMENT; nothing is done */
    SEMEL_QUEUE_CLOSE, /* the connection is gone: tags are fenced, CLOSED until reopen */
    SEMEL_QUEUE_LOST   /* ack: OK, but it never arrives. publish: it arrives, the answer for each item is UNKNOWN */
};
/* Called with the name of the operation before it looks at anything: it may run other handles before it returns. */
typedef enum semel_queue_fault (*semel_queue_hook)(void *ctx, const char *op);
void semel__broker_mem_set_hook(struct semel_broker *broker, semel_queue_hook hook, void *ctx);

/* What a rebalance does to a member that stalled: its tags are fenced and what it had goes to the others. It joins
 * again with its next poll. */
void semel__mem_queue_expel(struct semel_mem_queue *queue, struct semel_broker *broker);
/* Delivers message number `index` once more, with the same position, even when it was acknowledged. */
semel_status semel__mem_queue_redeliver(struct semel_mem_queue *queue, size_t index, struct semel_error *err);

/* ---- looking at a queue ------------------------------------------------------------------------------- */

size_t semel__mem_queue_count(const struct semel_mem_queue *queue); /* messages pushed */
/* Deliveries that the broker still owes, in its own view: for ORDERED all from the floors on. */
size_t semel__mem_queue_unacked(const struct semel_mem_queue *queue);

/* ---- publishing --------------------------------------------------------------------------------------- */

/* What handles of `queue` publish to `destination` is pushed to `target` (with the header "id" when it has an id and
 * no such header yet). `target` must outlive `queue`, or be it. */
semel_status semel__mem_queue_link(struct semel_mem_queue *queue, struct semel_str destination,
                                   struct semel_mem_queue *target, struct semel_error *err);

struct semel_mem_published {
    void *owned; /* the memory of all below */
    struct semel_str destination, key, id, payload;
    struct semel_pair *headers;
    size_t n_headers;
};
/* What was published to other destinations, in order. Borrowed until the next publish. */
size_t semel__mem_queue_published(const struct semel_mem_queue *queue, const struct semel_mem_published **ret);

#endif
