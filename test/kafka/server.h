/* SPDX-License-Identifier: MIT
 *
 * server.h: a private Apache Kafka for a test: one process that is broker and controller (KRaft), on free ports of
 * loopback, nobody else in it. Its folder, its leash, stopping it and starting it again: server/process.h.
 *
 * It runs from the archives of tools/kafka.list on Java, with a small heap. Topics are made by whoever needs them
 * (client.h), never by themselves. What Java has made of the classes is kept in the build folder by the first server
 * that is done, so that the later ones start in half the time.
 */
#ifndef SEMEL_TEST_KAFKA_SERVER_H
#define SEMEL_TEST_KAFKA_SERVER_H

#include "server/process.h"

struct kafka_server {
    struct server_process process; /* SIGTERM: logs are closed in order; SIGKILL: recovered at the next start */
    int port;
    bool archives; /* Java writes its archive when this one is stopped by SIGTERM */
};

#define KAFKA_SERVER_TEXT 32

/* `server` is filled in anew. */
void kafka_server_start(struct kafka_server *server);
/* The end: stopped, and its folder removed. */
void kafka_server_done(struct kafka_server *server);

/* "127.0.0.1:PORT"; the text lies in `out`. */
const char *kafka_server_address(const struct kafka_server *server, char out[KAFKA_SERVER_TEXT]);

#endif
