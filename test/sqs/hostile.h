/* SPDX-License-Identifier: MIT
 *
 * hostile.h: an HTTP server in the test itself that takes requests of the SQS driver and answers whatever the test
 * wants: nonsense, half of it, too much of it, or nothing. A thread a connection; everything is counted.
 */
#ifndef SEMEL_TEST_SQS_HOSTILE_H
#define SEMEL_TEST_SQS_HOSTILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define HOSTILE_REQUEST 65536
#define HOSTILE_CONNECTIONS 1024

struct hostile;

struct hostile_request {
    char head[8192];  /* NUL-terminated, the blank line with it */
    char action[128]; /* "ReceiveMessage" */
    char *body;       /* NUL-terminated */
    size_t n_body;
    int nth; /* on its connection, from 1 */
};

struct hostile {
    /* Called for each whole request, by several threads at a time. false: the connection is closed. */
    bool (*answer)(struct hostile *hostile, const struct hostile_request *request, int fd);
    void *ctx;
    int port, fd;
    pthread_t thread, threads[HOSTILE_CONNECTIONS];
    int fds[HOSTILE_CONNECTIONS];
    size_t n_threads;
    atomic_bool stop;
    atomic_int requests, receives, deletes, changes, sends;
};

void hostile_start(struct hostile *hostile,
                   bool (*answer)(struct hostile *hostile, const struct hostile_request *request, int fd), void *ctx);
void hostile_stop(struct hostile *hostile);

/* Sends; false: the other side has gone. */
bool hostile_send(int fd, const char *text, size_t n);
/* A whole answer with this status and body. */
bool hostile_reply(int fd, int status, const char *body);
/* Nothing, until the other side goes or the server is stopped; false. */
bool hostile_hold(struct hostile *hostile, int fd);
/* The value of a header, or "". The text lies in `out`. */
const char *hostile_header(const struct hostile_request *request, const char *name, char *out, size_t size);

#endif
