/* SPDX-License-Identifier: MIT
 *
 * server.h: a private RabbitMQ for a test: one node on free ports of loopback, its own epmd, nobody else in it. The
 * user is guest, the vhost "/". Queues are made by whoever needs them (client.h). Its folder, its leash, stopping it
 * and starting it again: server/process.h. It runs as user rabbitmq when we are root.
 */
#ifndef SEMEL_TEST_RABBIT_SERVER_H
#define SEMEL_TEST_RABBIT_SERVER_H

#include "server/process.h"

struct rabbit_server {
    struct server_process process; /* SIGTERM: in order; SIGKILL: recovered at the next start */
    int port, tls_port, dist_port, epmd_port;
    pid_t epmd_pid; /* runs on while the server is stopped */
    bool tls;       /* else tls_port is 0 */
};

/* `server` is filled in anew. */
void rabbit_server_start(struct rabbit_server *server);
/* The same, listening by TLS too. `folder` holds ca.pem, server.pem and server.key, which are copied. */
void rabbit_server_start_tls(struct rabbit_server *server, const char *folder);
/* The end: stopped, and its folder removed. */
void rabbit_server_done(struct rabbit_server *server);

/* rabbitmqctl with these words, ended by NULL; takes seconds. false: it failed. */
bool rabbit_server_ctl(struct rabbit_server *server, const char *const *words);

#endif
