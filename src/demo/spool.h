/* SPDX-License-Identifier: MIT
 *
 * spool.h: a broker in one SQLite file that several processes of one machine share. For crash tests and the demo.
 *
 * What it is: "/path/to/file?visibility_ms=2000&source=orders". A message is taken under a visibility time-out; if it
 * is neither acknowledged nor given back in time, any process may get it again, so no message is lost when a process
 * dies. `source` limits a handle to one stream. What it is not: fast, or meant for production.
 *
 * Order: a message with a partition is delivered only when every earlier one of its source and partition is
 * acknowledged, or delivered before it in the same batch. A message without a partition is delivered at once.
 *
 * Invariants: a tag is a sequence number and a count of deliveries, valid only for the handle that got it, until it
 * is reopened. A handle belongs to the process that opened it: a child opens its own.
 */
#ifndef SEMEL_DEMO_SPOOL_H
#define SEMEL_DEMO_SPOOL_H

#include "core/broker.h"

/* "/path/to/file?visibility_ms=2000&source=orders" */
semel_status semel__spool_open(struct semel_broker **ret, const char *location, struct semel_error *err);

struct semel_spool_push {
    struct semel_str source;
    int64_t partition; /* below 0: none, the message has no order */
    struct semel_str payload;
    const struct semel_pair *headers;
    size_t n_headers;
    const struct semel_pair *properties;
    size_t n_properties;
};
/* All of them or none; after OK they survive the death of processes. *ret_first_seq (may be NULL) is the number of the
 * first; the others follow it. */
semel_status semel__spool_push(struct semel_broker *broker, const struct semel_spool_push *messages, size_t n,
                               int64_t *ret_first_seq, struct semel_error *err);

/* Of all sources. Messages whose visibility has expired count as taken until they are taken again. */
semel_status semel__spool_stats(struct semel_broker *broker, size_t *ret_ready, size_t *ret_taken, size_t *ret_acked,
                                struct semel_error *err);
/* Delivers an acknowledged message once more. INVALID: there is none with that number. */
semel_status semel__spool_requeue(struct semel_broker *broker, int64_t seq, struct semel_error *err);

#endif
