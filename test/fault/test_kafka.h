/* SPDX-License-Identifier: MIT
 *
 * test_kafka.h: what the tests of the Kafka driver share: one private server a program, a topic and its group a test.
 */
#ifndef SEMEL_TEST_FAULT_KAFKA_H
#define SEMEL_TEST_FAULT_KAFKA_H

#include "kafka/side.h"

static struct kafka_server server;
static struct kafka_client client;
static char topic[32]; /* of the test that runs, and its group */

static inline int group_setup(void **state)
{
    char address[KAFKA_SERVER_TEXT];

    (void)state;
    kafka_server_start(&server);
    kafka_client_open(&client, kafka_server_address(&server, address));
    return 0;
}

static inline int group_teardown(void **state)
{
    (void)state;
    kafka_client_close(&client);
    kafka_server_done(&server);
    return 0;
}

static inline void make_topic(int partitions)
{
    static int count;

    snprintf(topic, sizeof topic, "topic-%d", ++count);
    kafka_client_topic(&client, topic, partitions, NULL);
}

#endif
