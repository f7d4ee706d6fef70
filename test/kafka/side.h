/* SPDX-License-Identifier: MIT
 *
 * side.h: one handle of the Kafka driver in a test, and everything that it was ever given.
 */
#ifndef SEMEL_TEST_KAFKA_SIDE_H
#define SEMEL_TEST_KAFKA_SIDE_H

#include "broker/kafka.h"
#include "kafka/client.h"
#include "kafka/server.h"
#include "unit/unit.h"

struct kafka_got {
    int partition;
    int64_t offset;
    uint64_t tag;
    bool acked, fenced;
};

struct kafka_side {
    struct semel_broker *broker;
    struct semel_arena arena;
    struct semel_error err;
    struct semel_delivery *d; /* of the last poll */
    size_t n;
    struct kafka_got *got; /* of all polls */
    size_t n_got, cap_got;
    int reported; /* polls that told of an error, the last of which is in `err` */
};

/* `more` is added to the URL: "&max.poll.interval.ms=3000". */
void kafka_side_open(struct kafka_side *side, const struct kafka_server *server, const char *topic, const char *more);
void kafka_side_open_with(struct kafka_side *side, const struct semel_kafka_options *options,
                          const struct semel_source_hooks *hooks);
/* The handle alone. */
struct semel_broker *kafka_side_broker(int port, const char *topics, const char *group, const char *more);
void kafka_side_close(struct kafka_side *side);

/* One poll, which may tell of trouble (RETRY) but not fail; how many came. */
size_t kafka_side_poll(struct kafka_side *side, size_t max, int wait_ms);
/* Polls until so many have come in all, or so many partitions are ours; fails the test when it takes a minute. */
void kafka_side_wait(struct kafka_side *side, size_t n);
void kafka_side_wait_assigned(struct kafka_side *side, size_t n);

semel_status kafka_side_ack(struct kafka_side *side, size_t i); /* of `got` */
/* Everything that has come and was not acknowledged; what is fenced stays so. */
void kafka_side_ack_all(struct kafka_side *side);
/* Did this one come, and was its acknowledgement taken? */
bool kafka_side_has_acked(const struct kafka_side *side, int partition, int64_t offset);

#define KAFKA_SIDE_TRIES 600
#define KAFKA_SIDE_STEP_MS 100

#endif
