/* SPDX-License-Identifier: MIT
 *
 * client.h: a client of RabbitMQ that is not the driver's: queues, sending, counting. Whatever fails prints itself and
 * leaves with exit code 1.
 */
#ifndef SEMEL_TEST_RABBIT_CLIENT_H
#define SEMEL_TEST_RABBIT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef SEMEL_AMQP_NEW_HEADERS
#include <rabbitmq-c/amqp.h>
#else
#include <amqp.h>
#endif

#include "core/broker.h"

struct rabbit_client {
    amqp_connection_state_t conn;
    uint64_t sent, confirmed;
};

struct rabbit_message {
    const char *queue, *id; /* id NULL: none */
    struct semel_str payload;
    const struct semel_pair *headers;
    size_t n_headers;
};

bool rabbit_client_answers(int port); /* the server lets guest in */
void rabbit_client_open(struct rabbit_client *client, int port);
void rabbit_client_close(struct rabbit_client *client);

/* Durable. `type`: quorum or classic. */
void rabbit_client_queue(struct rabbit_client *client, const char *name, const char *type, bool single_active);
void rabbit_client_delete(struct rabbit_client *client, const char *name);
void rabbit_client_bind(struct rabbit_client *client, const char *name, const char *exchange, const char *routing_key);
int64_t rabbit_client_length(struct rabbit_client *client, const char *name); /* ready; -1: no such queue */

/* Persistent. The first returns when the server has it; after `soon` the server has it when sent_all returns. */
void rabbit_client_send(struct rabbit_client *client, const struct rabbit_message *message);
void rabbit_client_send_soon(struct rabbit_client *client, const struct rabbit_message *message);
void rabbit_client_sent_all(struct rabbit_client *client);
/* With any properties. */
void rabbit_client_send_with(struct rabbit_client *client, const char *queue, const amqp_basic_properties_t *properties,
                             struct semel_str payload);
/* With properties that are AMQP's bytes already, flags first: of those that no client would send. */
void rabbit_client_send_raw(struct rabbit_client *client, const char *queue, struct semel_str properties,
                            struct semel_str payload);
/* `n` messages "PREFIX0", "PREFIX1" ..., which are their ids too. */
void rabbit_client_send_many(struct rabbit_client *client, const char *queue, const char *prefix, int n);

#endif
