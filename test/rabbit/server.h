/* SPDX-License-Identifier: MIT
 *
 * server.h: a private RabbitMQ for a test: one node, a fresh folder, free ports on loopback, its own epmd, nobody else
 * in it. The user is guest, the vhost "/". Queues are made by whoever needs them (client.h).
 *
 * It runs as user rabbitmq when we are root. Whatever happens to the test, the server and its epmd are ended by their
 * pids and the folder is removed: a child of the test (leash.sh) waits for the end of a pipe.
 *
 * A machine without RabbitMQ: rabbit_server_start says so and leaves with exit code 77, skipped. A server that cannot
 * be started or does not answer is a failure: it prints the end of its log and leaves with exit code 1.
 */
#ifndef SEMEL_TEST_RABBIT_SERVER_H
#define SEMEL_TEST_RABBIT_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

struct rabbit_server {
    char dir[64], log[80];
    int port, tls_port, dist_port, epmd_port; /* tls_port 0: none */
    pid_t pid, epmd_pid;                      /* 0: it is stopped */
    int leash;
    pid_t leash_pid;
};

enum rabbit_stop {
    RABBIT_STOP,     /* SIGTERM: in order */
    RABBIT_STOP_KILL /* SIGKILL: recovered at the next start */
};

/* `server` is filled in anew. Call it from the main thread: the server dies with the thread that started it. */
void rabbit_server_start(struct rabbit_server *server);
/* The same, listening by TLS too. `folder` holds ca.pem, server.pem and server.key, which are copied. */
void rabbit_server_start_tls(struct rabbit_server *server, const char *folder);
/* The end: stopped, and its folder removed. */
void rabbit_server_done(struct rabbit_server *server);

void rabbit_server_stop(struct rabbit_server *server, enum rabbit_stop how);
void rabbit_server_again(struct rabbit_server *server); /* starts a stopped one, on the same ports */
/* SIGSTOP and SIGCONT: it is there, and does not answer. */
void rabbit_server_freeze(struct rabbit_server *server);
void rabbit_server_thaw(struct rabbit_server *server);
/* rabbitmqctl with these words, ended by NULL; takes seconds. false: it failed. */
bool rabbit_server_ctl(struct rabbit_server *server, const char *const *words);

#endif
