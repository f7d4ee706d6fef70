/* SPDX-License-Identifier: MIT
 *
 * server.h: a private ElasticMQ for a test: SQS's own protocol, one process, a free port of loopback, queues in memory.
 * Its folder, its leash, killing it and starting it again (on the same port, and empty): server/process.h.
 *
 * It runs from the archives of tools/sqs.list on Java, with a small heap. Queues are made by whoever needs them, and
 * are gone with the process.
 *
 * The functions below that ask the server do so without the driver, and fail the test when it refuses.
 */
#ifndef SEMEL_TEST_SQS_SERVER_H
#define SEMEL_TEST_SQS_SERVER_H

#include "core/broker.h"
#include "server/process.h"

struct sqs_server {
    struct server_process process;
    int port;
};

#define SQS_SERVER_TEXT 128

/* `server` is filled in anew. */
void sqs_server_start(struct sqs_server *server);
/* The end: killed, and its folder removed. */
void sqs_server_done(struct sqs_server *server);

/* "http://127.0.0.1:PORT/000000000000/QUEUE"; the text lies in `out`. */
const char *sqs_server_url(const struct sqs_server *server, const char *queue, char out[SQS_SERVER_TEXT]);

void sqs_server_queue(const struct sqs_server *server, const char *queue); /* made; FIFO by its name */

struct sqs_send {
    const char *queue, *group; /* group: for FIFO queues only */
    struct semel_str body;
    const struct semel_pair *headers; /* as attributes of the type String */
    size_t n_headers;
};
void sqs_server_send(const struct sqs_server *server, const struct sqs_send *send);
/* n messages PREFIX-0, PREFIX-1 ..., ten a request. */
void sqs_server_send_many(const struct sqs_server *server, const char *queue, const char *group, const char *prefix,
                          int n);
/* What the queue holds, visible or not. */
int sqs_server_count(const struct sqs_server *server, const char *queue);

#endif
