/* SPDX-License-Identifier: MIT
 *
 * client.h: what a test does to a Kafka server besides consuming: topics, sending, transactions, and what the server
 * has kept for a group. On librdkafka alone, so that the driver under test is not its own witness.
 *
 * Every function waits for the server's answer. One that is not had, or is not the expected one, is printed and ends
 * the test program with exit code 1.
 */
#ifndef SEMEL_TEST_KAFKA_CLIENT_H
#define SEMEL_TEST_KAFKA_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/broker.h"

struct rd_kafka_s;

struct kafka_client {
    struct rd_kafka_s *rk, *transactional; /* the second is opened when it is needed */
    char brokers[128];
};

void kafka_client_open(struct kafka_client *client, const char *brokers);
void kafka_client_close(struct kafka_client *client);
bool kafka_client_answers(struct kafka_client *client, int timeout_ms); /* false is no failure */

/* Returns when the topic has a leader for each partition. `settings` is NULL, or name and value in turn, ended by
 * NULL. */
void kafka_client_topic(struct kafka_client *client, const char *topic, int partitions, const char *const *settings);
void kafka_client_grow(struct kafka_client *client, const char *topic, int partitions);

struct kafka_record {
    const char *topic;
    int partition;
    struct semel_str key, payload; /* not given: null */
    const struct semel_pair *headers;
    size_t n_headers;
};
int64_t kafka_client_send(struct kafka_client *client, const struct kafka_record *record); /* its offset */
/* The same without waiting, and the wait for all of these; a record may be of partition -1: its key chooses one. */
void kafka_client_send_soon(struct kafka_client *client, const struct kafka_record *record);
void kafka_client_sent_all(struct kafka_client *client);
/* `n` records "PREFIX0", "PREFIX1" ... of one partition. */
void kafka_client_send_many(struct kafka_client *client, const char *topic, int partition, const char *prefix, int n);
/* One record in a transaction of its own, which is committed or aborted. */
void kafka_client_send_transaction(struct kafka_client *client, const struct kafka_record *record, bool commit);

/* Each record of the topic up to its present end, partition by partition; headers are those that a relay writes. */
typedef void (*kafka_reader)(void *ctx, const struct kafka_record *record, int64_t offset);
void kafka_client_read(struct kafka_client *client, const char *topic, int partitions, kafka_reader read, void *ctx);

/* What the server keeps for the group; -1: nothing. */
int64_t kafka_client_committed(struct kafka_client *client, const char *group, const char *topic, int partition);
/* Sets it; the group must have no members. */
void kafka_client_set_committed(struct kafka_client *client, const char *group, const char *topic, int partition,
                                int64_t offset);
/* Records below `offset` are no more. */
void kafka_client_delete_before(struct kafka_client *client, const char *topic, int partition, int64_t offset);

#endif
