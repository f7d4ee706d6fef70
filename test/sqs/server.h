/* SPDX-License-Identifier: MIT
 *
 * server.h: a private ElasticMQ for a test: SQS's own protocol, one process, a free port on loopback, queues in memory.
 *
 * It runs from the archives of tools/sqs.list (fetched by tools/jars) on the machine's Java, with a small heap. Queues
 * are made by whoever needs them, and are gone with the process. Whatever happens to the test, the server is ended and
 * its folder removed by kafka/leash.sh.
 *
 * A machine without Java or the archives: sqs_server_start says so and leaves with exit code 77, skipped. A server that
 * cannot be started or does not answer is a failure: it prints the end of its log and leaves with exit code 1.
 *
 * The functions below that ask the server do so without the driver, and fail the test when it refuses.
 */
#ifndef SEMEL_TEST_SQS_SERVER_H
#define SEMEL_TEST_SQS_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/broker.h"

struct sqs_server {
    char dir[64], log[80];
    int port;
    pid_t pid; /* 0: it is stopped */
    int leash;
    pid_t leash_pid;
};

#define SQS_SERVER_TEXT 128

/* `server` is filled in anew. Call it from the main thread: the server dies with the thread that started it. */
void sqs_server_start(struct sqs_server *server);
/* The end: killed, and its folder removed. */
void sqs_server_done(struct sqs_server *server);
void sqs_server_kill(struct sqs_server *server);
void sqs_server_again(struct sqs_server *server); /* starts a killed one, on the same port and empty */
/* SIGSTOP and SIGCONT: it is there, and does not answer. */
void sqs_server_freeze(struct sqs_server *server);
void sqs_server_thaw(struct sqs_server *server);

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
