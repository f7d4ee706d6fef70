/* SPDX-License-Identifier: MIT
 *
 * broker.h: what a broker must be able to do, over batches. The contract of every source and sink.
 *
 * A broker delivers at least once and promises nothing else: deliveries repeat, come late, and come
 * again after an acknowledgement was sent and lost. Core never acknowledges before the work is durable.
 *
 * Rules for all functions
 *  - A handle belongs to one thread. poll blocks for at most wait_ms, the others for the handle's time-outs.
 *  - A tag names one delivery to this handle in its present epoch (connection, assignment). After a
 *    reconnect or a lost assignment old tags are fenced: ack and later answer FENCED for them and do nothing.
 *  - OK from ack means "handed to the broker", not "arrived": an acknowledgement may be lost, and the
 *    message then comes again.
 *  - later gives the delivery back: it will come again, not before delay_ms where the broker can wait, and in the
 *    source's order where it has one (then everything after it in its partition comes again as well).
 *  - Statuses: RETRY (the world; try again), FENCED, CLOSED (reopen; everything unacknowledged will come
 *    again), INVALID (settings).
 */
#ifndef SEMEL_CORE_BROKER_H
#define SEMEL_CORE_BROKER_H

#include "base/mem.h"
#include "semel/types.h"

struct semel_broker;
struct semel_settled; /* core/inbox.h */

struct semel_pair {
    struct semel_str name, value;
};

struct semel_delivery {
    uint64_t tag;
    struct semel_str source;   /* topic, queue: the stream that the id belongs to */
    struct semel_str position; /* unique and stable within the source where the broker has one; else not given */
    struct semel_str payload;  /* not given: a record without a value, which is content too; an empty one is given */
    const struct semel_pair *headers;
    size_t n_headers;
    const struct semel_pair *properties;
    size_t n_properties;
    int delivery; /* 1: the first, more: again, 0: cannot tell */
    /* What the order of the source rests on: deliveries of one lane (a partition, a message group) come in order, those
     * of two lanes do not. Equal numbers for equal lanes, for as long as the handle is open; any number will do. */
    uint64_t lane;
    /* Where the source numbers what it has: the partition and the place in it, ascending with gaps. */
    int32_t partition;
    int64_t offset;
    int64_t epoch; /* not 0: the position is kept in the store, and the partition was taken under this epoch (mark.h) */
};

/* What leaves: to a destination, under a partition key, with its id among the headers. */
struct semel_publish {
    struct semel_str destination, key, id, payload;
    const struct semel_pair *headers;
    size_t n_headers;
    semel_status status; /* out: OK confirmed, RETRY certainly not sent, UNKNOWN may have arrived, INVALID refused */
};

#define SEMEL_BROKER_SOURCE 1u
#define SEMEL_BROKER_SINK 2u
#define SEMEL_BROKER_ORDERED 4u /* deliveries of one partition come in order, also after `later` */

struct semel_broker_ops {
    const char *name;
    unsigned capabilities;
    size_t size;
    semel_status (*open)(struct semel_broker *broker, struct semel_str location, struct semel_error *err);
    void (*close)(struct semel_broker *broker); /* what was not acknowledged will come again */
    semel_status (*reopen)(struct semel_broker *broker, struct semel_error *err);
    /* At most `max` deliveries, their bytes in the arena; 0 of them is OK. max is 0: only what keeps the connection,
     * the membership and what was delivered alive. */
    semel_status (*poll)(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                         struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err);
    semel_status (*ack)(struct semel_broker *broker, const uint64_t *tags, size_t n, struct semel_error *err);
    semel_status (*later)(struct semel_broker *broker, const uint64_t *tags, size_t n, int delay_ms,
                          struct semel_error *err);
    /* NULL, or: what came of these deliveries, for a source that answers whoever sent them. Called after the commit and
     * before ack and later; those that are not told are known to nobody. */
    void (*told)(struct semel_broker *broker, const uint64_t *tags, const struct semel_settled *settled, size_t n);
    /* NULL, or: a poll that waits returns soon. From any thread. */
    void (*wake)(struct semel_broker *broker);
    /* Each item gets its own status; the call's status is OK when every item has one. */
    semel_status (*publish)(struct semel_broker *broker, struct semel_publish *items, size_t n,
                            struct semel_error *err);
};

struct semel_broker {
    const struct semel_broker_ops *ops;
};

semel_status semel_broker_open(struct semel_broker **ret, const struct semel_broker_ops *const *drivers,
                               const char *url, struct semel_error *err);
void semel_broker_close(struct semel_broker *broker);
semel_status semel_broker_reopen(struct semel_broker *broker, struct semel_error *err);
semel_status semel_broker_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                               struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err);
semel_status semel_broker_ack(struct semel_broker *broker, const uint64_t *tags, size_t n, struct semel_error *err);
semel_status semel_broker_later(struct semel_broker *broker, const uint64_t *tags, size_t n, int delay_ms,
                                struct semel_error *err);
void semel_broker_wake(struct semel_broker *broker);
void semel_broker_told(struct semel_broker *broker, const uint64_t *tags, const struct semel_settled *settled,
                       size_t n);
semel_status semel_broker_publish(struct semel_broker *broker, struct semel_publish *items, size_t n,
                                  struct semel_error *err);

#endif
