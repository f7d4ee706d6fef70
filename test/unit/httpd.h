/* SPDX-License-Identifier: MIT
 *
 * httpd.h: a server on loopback with routes for tests, and a client that sends whatever bytes it is told.
 *
 * The routes: GET /hello; POST|PUT /echo (1024 bytes); GET /v1/{a}/x/{b}; GET /files/{rest*}; GET /query;
 * DELETE /thing; GET /who (headers); GET|POST /secret (scope 1); GET /admin (scope 2); POST /later (answered by a
 * worker thread); GET /hold (answered when httpd_release says so); GET /big (BIG_BYTES); GET /endless (more than a
 * reply may have); GET /smuggled (counted: nobody is to reach it).
 */
#ifndef SEMEL_TEST_HTTPD_H
#define SEMEL_TEST_HTTPD_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/http.h"
#include "unit/unit.h"

#define BIG_BYTES ((size_t)5 << 20)
#define TOKEN "0123456789abcdef-producer"
#define NEXT_TOKEN "fedcba9876543210-producer"
#define ADMIN_TOKEN "0123456789abcdef-operator"
#define WAIT_S 20 /* for what must come; a test that waits longer fails */

struct httpd {
    struct semel_http_settings settings; /* may be changed between httpd_init and httpd_start */
    struct semel_http_settings second;   /* of another listener of the loop, if it has an address */
    size_t bound;                        /* of connections; 0: none */
    struct semel_http *http;
    struct semel_http_listener *listener;
    unsigned port, second_port;
    pthread_t thread, workers[2];
    atomic_uint handled, smuggled, observed, gave_way, refused;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct semel_http_exchange *held[64], *queue[256];
    size_t n_held, n_queue;
    bool workers_stop, running;
};

void httpd_init(struct httpd *httpd);
void httpd_start(struct httpd *httpd);
void httpd_stop(struct httpd *httpd, uint64_t deadline_ms); /* and waits until it has stopped */
void httpd_join(struct httpd *httpd);                       /* after somebody called semel__http_stop */
void httpd_done(struct httpd *httpd);                       /* frees; stops if it runs */
void httpd_wait_held(struct httpd *httpd, size_t n);        /* until so many exchanges are held */
void httpd_release(struct httpd *httpd);                    /* answers all of them */
bool httpd_hung_up(struct httpd *httpd);                    /* the first that is held */

struct reply {
    int status;
    char head[8192];
    char *body; /* NUL-terminated; freed by reply_done */
    size_t n;
};

int client_open(const struct httpd *httpd); /* a socket whose receives give up after WAIT_S */
void client_send(int fd, const void *bytes, size_t n);
void client_sendz(int fd, const char *text);
/* One reply by its Content-Length; false: the connection ended before the first byte. head_only: of a HEAD. */
bool client_reply(int fd, struct reply *reply, bool head_only);
/* Sends text on a connection of its own and reads the one reply. */
struct reply client_ask(const struct httpd *httpd, const char *text);
void reply_done(struct reply *reply);
/* Everything up to the end of the connection, NUL-terminated, to be freed. */
char *client_rest(int fd, size_t *ret_n);
bool client_closed(int fd);                                  /* waits: the end comes next, and no byte before it */
bool reply_has(const struct reply *reply, const char *line); /* a header line, whole */

#endif
