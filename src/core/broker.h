/* SPDX-License-Identifier: MIT
 *
 * broker.h: what a broker must be able to do, over batches. The contract of every source and sink.
 *
 * A broker delivers at least once and promises nothing else: deliveries repeat, come late, and come
 * again after an acknowledgement was sent and lost. Core never acknowledges before the work is durable.
 *
 * Rules for all functions
 *  - A handle belongs to one thread. poll blocks for at most wait_ms, publish for timeout_ms, the others for the
 *    handle's time-outs.
 *  - A tag names one delivery to this handle in its present epoch (connection, assignment). After a reconnect or a
 *    lost assignment old tags are fenced: answer ignores them and returns FENCED.
 *  - OK from answer means "handed to the broker", not "arrived": an acknowledgement may be lost, and the
 *    message then comes again.
 *  - A delivery that is given back (LATER) will come again, not before delay_ms where the broker can wait, and in the
 *    source's order where it has one (then everything after it in its partition comes again as well).
 *  - Statuses: RETRY (a failure of the environment; try again), FENCED, CLOSED (reopen; everything unacknowledged
 *    will come again), INVALID (settings).
 */
#ifndef SEMEL_CORE_BROKER_H
#define SEMEL_CORE_BROKER_H

#include "base/mem.h"
#include "base/str.h"
#include "semel/types.h"

struct semel_broker;
struct semel_settled; /* core/inbox.h */

/* The answer to one delivery. */
struct semel_reply {
    uint64_t tag;
    const struct semel_settled *settled; /* the result: act, why, state, cls, outcome; NULL: given back unread */
    int delay_ms;                        /* when it is given back */
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
    /* Deliveries of one lane (a partition, a message group) come in order, those of two lanes do not. Equal lanes have
     * equal numbers as long as the handle is open; any number will do. */
    uint64_t lane;
    /* Where the source numbers its deliveries: the partition and the offset in it, ascending with gaps. */
    int32_t partition;
    int64_t offset;
    /* Not 0: the store keeps the position, and the partition was taken under this epoch (positions.h). */
    int64_t epoch;
};

#define SEMEL_PUBLISH_WHY 120

/* What leaves: to a destination, under a partition key, with its id among the headers. The id wins over headers (P114):
 * see semel__publish_header. */
struct semel_publish {
    struct semel_str destination, key, id, payload;
    const struct semel_pair *headers;
    size_t n_headers;
    /* Out. OK: confirmed. RETRY: certainly not taken. UNKNOWN: may have arrived. INVALID: this item was refused, and it
     * had travelled alone, so that no other item is the reason (P110). */
    semel_status status;
    /* Out, with RETRY or UNKNOWN: the destination could not be reached, is not there, is denied to us, or takes nothing
     * now. It is no fault of the item (P111). RETRY without it: this item alone was put off, or had no turn. UNKNOWN
     * without it: the destination answered this item with an error of its own, and what it does with others tells
     * whose fault that is. */
    bool down;
    char why[SEMEL_PUBLISH_WHY]; /* out: why it is not OK, for people; "": there was no turn for it */
};

#define SEMEL_BROKER_SOURCE 1u
#define SEMEL_BROKER_SINK 2u
#define SEMEL_BROKER_ORDERED 4u /* deliveries of one partition come in order, also of those that were given back */
/* A sink that takes several items of one key and destination in one call: an item is taken only if all items before it
 * in the call with the same key and destination are taken, too; consecutive ones share a request. To other sinks a
 * caller gives at most one item per key and call where order matters. */
#define SEMEL_BROKER_RUNS 8u

struct semel_broker_ops {
    const char *name;
    unsigned capabilities;
    void (*close)(struct semel_broker *broker); /* frees all but its own memory; unacknowledged deliveries come again */
    semel_status (*reopen)(struct semel_broker *broker, struct semel_error *err);
    /* At most `max` deliveries, their bytes in the arena; 0 of them is OK. max is 0: only keeps the connection, the
     * membership and unanswered deliveries alive. */
    semel_status (*poll)(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                         struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err);
    /* After the commit: acknowledges deliveries (semel__reply_acks), then gives back the others, in the order of the
     * array. FENCED: some tags name deliveries that are no longer ours; the rest was applied. Any other status but
     * OK: reopen, and everything unacknowledged comes again. */
    semel_status (*answer)(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                           struct semel_error *err);
    /* NULL, or: makes the poll that waits, or else the next one, return soon. Any thread. */
    void (*wake)(struct semel_broker *broker);
    /* NULL, or: a descriptor that is readable while poll would deliver; do not read from it. */
    int (*fd)(struct semel_broker *broker);
    /* Each item has its own status, RETRY when the driver is called; the call's status is OK when each of them is
     * right. Any other status: the broker as a whole could not be used, err says why, and nothing was handed over. When
     * timeout_ms, which is more than 0, is over, nothing more is handed to the network and the call returns: what was
     * not handed over stays RETRY, what has no answer is UNKNOWN. */
    semel_status (*publish)(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                            struct semel_error *err);
};

struct semel_broker {
    const struct semel_broker_ops *ops;
    /* NULL, or: what a publish that waits calls every few milliseconds, where its driver can. It returns at once. */
    void (*tend)(void *ctx);
    void *tend_ctx;
};

/* Every driver has its own open function. Frees the handle. */
void semel_broker_close(struct semel_broker *broker);
semel_status semel_broker_reopen(struct semel_broker *broker, struct semel_error *err);
semel_status semel_broker_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                               struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err);
semel_status semel_broker_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                 struct semel_error *err);
void semel_broker_wake(struct semel_broker *broker);
int semel_broker_fd(struct semel_broker *broker); /* -1: the driver has none */
semel_status semel_broker_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                  struct semel_error *err);

/* For drivers. Does the reply acknowledge its delivery? If not, it gives the delivery back. */
bool semel__reply_acks(const struct semel_reply *reply);
/* Copies the pairs and their texts into the arena; false: no room. */
bool semel__broker_copy_pairs(struct semel_arena *arena, const struct semel_pair *pairs, size_t n,
                              const struct semel_pair **ret);
/* The header that a sink sends at this place, 0 to n_headers; false: there is none. The last place is that of `id`, the
 * item's own. A header called `id` (in any case) is left out, and so is one by which consumers find an id (`ce_id`,
 * `webhook-id`, `Idempotency-Key` and the like) unless its value is the item's id. An item without an id has its
 * headers as they are. */
bool semel__publish_header(const struct semel_publish *item, size_t place, struct semel_pair *ret);
size_t semel__publish_header_count(const struct semel_publish *item);
#define SEMEL_HEADER_NAME_MAX 100 /* bytes of a name that is sent */
/* Can a header of HTTP have this name (RFC 9110: a token), or this value (visible ASCII, and blanks between), and has
 * it at most `max` bytes? */
bool semel__header_name_fits(struct semel_str name, size_t max);
bool semel__header_value_fits(struct semel_str value, size_t max);
/* Ends an item that is not OK. Text from outside is shown as plain text. */
__attribute__((format(printf, 4, 5))) void semel__publish_end(struct semel_publish *item, semel_status status,
                                                              bool down, const char *fmt, ...);
/* FENCED, with words, when some of n were; else OK. */
semel_status semel__broker_fenced(const char *driver, size_t n_fenced, size_t n, struct semel_error *err);

#endif
