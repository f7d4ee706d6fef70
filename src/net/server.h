/* SPDX-License-Identifier: MIT
 *
 * server.h: the loop from the inside, for server.c, listen.c and peer.c alone.
 *
 * The mail is what other threads may touch: answered exchanges and the wish to stop, under its lock. It is counted: the
 * server and every exchange hold it, so an answer finds it even when the server is gone. `wake` is NULL then, and the
 * answer goes nowhere.
 *
 * Invariants: everything else belongs to the loop's thread while it runs, but for a listener's TLS context and tokens,
 * which have locks of their own.
 */
#ifndef SEMEL_NET_SERVER_H
#define SEMEL_NET_SERVER_H

#include <pthread.h>
#include <uv.h>

#include "net/address.h"
#include "net/conn.h"
#include "net/tls.h"

#define SEMEL_PEER_CIPHER 20480 /* a record of TLS and some more */

struct semel_mail {
    pthread_mutex_t lock;
    size_t refs;
    uv_async_t *wake;
    struct semel_http_exchange *first, **last;
    bool stop;
    uint64_t stop_ms;
};

union semel_stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct semel_http_listener {
    struct semel_http *http;
    struct semel_http_listener *next;
    union semel_stream u;
    uv_timer_t retry; /* to accept again, after there was no memory */
    struct semel_conn_env env;
    struct semel_address address; /* as it was bound */
    dev_t dev;                    /* of the unix socket's file */
    ino_t ino;
    size_t n_peers; /* without those that are told that there is no room */
    semel_http_crowded crowded;
    pthread_mutex_t tls_lock;
    struct semel_tls_context *tls; /* NULL: plain */
    char *cert_file, *key_file, *client_ca_file;
};

/* One client's socket. */
struct semel_peer {
    struct semel_http *http;
    struct semel_http_listener *listener;
    struct semel_peer *prev, *next;
    union semel_stream u;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct semel_conn *conn;
    struct semel_tls *tls;
    char *cipher;     /* what is being written, of a TLS session */
    size_t in_flight; /* bytes of the connection's output in the write */
    unsigned serial;  /* of the phase whose timer runs */
    int handles;      /* that are not closed yet */
    bool reading, writing, shut, closing;
    bool told; /* that there is no room for it */
};

struct semel_http {
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t deadline;
    struct semel_mail *mail;
    const struct semel_clock *clock;
    struct semel_http_listener *listeners;
    struct semel_peer *peers, *oldest; /* linked from the newest to the oldest */
    size_t n_peers, max_peers;         /* as a listener's */
    size_t n_told;
    bool ran, stopping, finished;
    uint64_t stop_at; /* in the loop's time */
    char read_space[SEMEL_CONN_READ], plain_space[SEMEL_CONN_READ];
};

/* server.c */
void semel__mail_back(void *mail, struct semel_http_exchange *x);
void semel__mail_take(void *mail);
void semel__mail_gone(void *mail);
bool semel__mail_aside(void *mail, struct semel_http_exchange *x);
void semel__server_peer_gone(struct semel_http *http); /* perhaps it was the last */

/* listen.c */
void semel__listener_close(
    struct semel_http_listener *listener); /* no new connections; the handle closes in the loop */
void semel__listener_free(struct semel_http_listener *listener);

/* peer.c */
void semel__peer_accept(uv_stream_t *stream, int status); /* libuv's connection callback */
void semel__peer_pump(struct semel_peer *peer);           /* does whatever can be done now */
void semel__peer_close(struct semel_peer *peer);

#endif
