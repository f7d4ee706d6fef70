/* SPDX-License-Identifier: MIT
 *
 * server.h: a private Apache Kafka for a test: one process that is broker and controller (KRaft), a fresh folder, free
 * ports on loopback, nobody else in it.
 *
 * It runs from the archives of tools/kafka.list (fetched by tools/jars) on the machine's Java, with a small heap.
 * Topics are made by whoever needs them (client.h), never by themselves. Whatever happens to the test, the server is
 * ended and its folder removed: a child of the test (leash.sh) waits for the end of a pipe. What Java has made of the
 * classes is kept in the build folder by the first server that is stopped in peace, so that the later ones start in
 * half the time.
 *
 * A machine without Java or the archives: kafka_server_start says so and leaves with exit code 77, skipped. A server
 * that cannot be started or does not answer is a failure: it prints the end of its log and leaves with exit code 1.
 */
#ifndef SEMEL_TEST_KAFKA_SERVER_H
#define SEMEL_TEST_KAFKA_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

struct kafka_server {
    char dir[64], log[80];
    int port, controller_port;
    pid_t pid;     /* 0: it is stopped */
    bool archives; /* Java writes its archive when this one is stopped */
    int leash;
    pid_t leash_pid;
};

enum kafka_stop {
    KAFKA_STOP,     /* SIGTERM: logs are closed in order */
    KAFKA_STOP_KILL /* SIGKILL: recovered at the next start */
};

#define KAFKA_SERVER_TEXT 32

/* `server` is filled in anew. Call it from the main thread: the server dies with the thread that started it. */
void kafka_server_start(struct kafka_server *server);
/* The end: stopped, and its folder removed. */
void kafka_server_done(struct kafka_server *server);

void kafka_server_stop(struct kafka_server *server, enum kafka_stop how);
void kafka_server_again(struct kafka_server *server); /* starts a stopped one, on the same ports */
/* SIGSTOP and SIGCONT: it is there, and does not answer. */
void kafka_server_freeze(struct kafka_server *server);
void kafka_server_thaw(struct kafka_server *server);

/* "127.0.0.1:PORT"; the text lies in `out`. */
const char *kafka_server_address(const struct kafka_server *server, char out[KAFKA_SERVER_TEXT]);

#endif
