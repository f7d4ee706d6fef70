/* SPDX-License-Identifier: MIT
 *
 * conn.h: one connection as a state machine, without a socket, a clock of its own, or a thread.
 *
 * What it is: bytes go in, bytes come out, and the phase says what is waited for and so which
 * time-out runs. server.c drives it with libuv, fuzz_http.c with whatever it likes.
 *
 *     IDLE -> HEAD -> BODY -> HANDLING -> WRITING -> IDLE ...
 *                                  any refusal, or the last reply: WRITING -> LINGER -> CLOSED
 *
 * A refusal may overtake a body that is still coming, so the connection lingers: it reads and drops
 * until the client closes, else the kernel would answer the unread bytes with a reset and the
 * client might never see why.
 *
 * Invariants: one exchange at a time; while it is in work at most one read's worth of bytes is taken in; what waits in
 * `in` is at most limits.head_bytes and one such read; a connection that goes away while its exchange is with a
 * handler leaves it behind, marked; after CLOSED nothing is read or written.
 */
#ifndef SEMEL_NET_CONN_H
#define SEMEL_NET_CONN_H

#include "net/access.h"
#include "net/gate.h"
#include "net/parse.h"

#define SEMEL_CONN_READ 32768 /* the most bytes of one semel__conn_input */

enum semel_conn_phase {
    SEMEL_CONN_IDLE, /* between two requests */
    SEMEL_CONN_HEAD, /* of the first request from the beginning, of others from the first byte */
    SEMEL_CONN_BODY,
    SEMEL_CONN_HANDLING, /* no time-out: the handler owes an answer */
    SEMEL_CONN_WRITING,
    SEMEL_CONN_LINGER, /* nothing more will be sent */
    SEMEL_CONN_CLOSED
};

/* What the connections of a listener share. `held` and `shares` are touched by the loop's thread alone. */
struct semel_conn_env {
    const struct semel_http_route *routes;
    size_t n_routes;
    struct semel_http_limits limits;
    struct semel_access access;
    const struct semel_clock *clock;
    semel_http_observer observe;
    void *observe_ctx;
    size_t held; /* bytes of bodies that are in memory */
    /* One for each route: what it holds of `held`, and how much it may. Routes share limits.held_bytes out by their
     * body_max; a share always holds one body. */
    struct semel_conn_share {
        size_t held, max;
    } * shares;
    /* Wired into each exchange: see exchange.h. */
    void (*back)(void *ctx, struct semel_http_exchange *x);
    void (*take)(void *ctx); /* an exchange was made that will say `gone`; or NULL */
    void (*gone)(void *ctx);
    bool (*aside)(void *ctx, struct semel_http_exchange *x); /* handled elsewhere; false: it cannot be. Or NULL */
    void *back_ctx;
};

struct semel_conn {
    struct semel_conn_env *env;
    void *owner; /* whoever drives it; not used here */
    enum semel_conn_phase phase;
    unsigned serial; /* changes whenever a phase begins */
    bool last;       /* the reply in work is the last */
    bool ended;      /* the client has closed its side */
    size_t requests; /* heads read so far */
    struct semel_gate gate;
    struct semel_parse parse;
    struct semel_http_exchange *x;
    struct semel_buf in;
    size_t in_seen;        /* bytes of `in` that the gate has seen */
    struct semel_buf out;  /* heads, and whole refusals */
    struct semel_str body; /* of the reply, behind `out`; x owns it */
    size_t sent;           /* of out and body together */
    struct semel_str remote, local;
    char remote_text[72], local_text[64];
};

/* Shares out limits.held_bytes among the routes. false: no memory. */
bool semel__conn_share_out(struct semel_conn_env *env);
void semel__conn_env_done(struct semel_conn_env *env);

/* NULL: no memory. The texts are copied; local is without a port, or NULL. */
struct semel_conn *semel__conn_new(struct semel_conn_env *env, const char *remote, const char *local);
void semel__conn_free(struct semel_conn *conn);

bool semel__conn_wants(const struct semel_conn *conn); /* input */
/* At most SEMEL_CONN_READ bytes, and only when it wants some (or lingers, which drops them). Handlers are called from
 * here. */
void semel__conn_input(struct semel_conn *conn, const char *p, size_t n);
void semel__conn_ended(struct semel_conn *conn); /* the client has closed its side */
/* What is to be sent, in up to two pieces; how many bytes. Stays the same until it was sent. */
size_t semel__conn_output(const struct semel_conn *conn, struct semel_str pieces[2]);
void semel__conn_sent(struct semel_conn *conn, size_t n);
/* The exchange that the connection gave out has come back. */
void semel__conn_answered(struct semel_conn *conn, struct semel_http_exchange *x);
/* The time-out of the phase, in ms; 0: none. */
uint64_t semel__conn_timeout_ms(const struct semel_conn *conn);
void semel__conn_expired(struct semel_conn *conn);
/* The server stops: an idle connection closes, another after its reply. */
void semel__conn_drain(struct semel_conn *conn);
/* Before any request: refuse whoever it is. */
void semel__conn_refuse(struct semel_conn *conn, int status, const char *reason);
/* Nothing more to say: linger without a reply. */
void semel__conn_abandon(struct semel_conn *conn);
void semel__conn_lost(struct semel_conn *conn); /* the socket is dead */
/* An exchange that came back after its connection was gone, or that never will be sent. */
void semel__conn_retire(struct semel_conn_env *env, struct semel_http_exchange *x);

#endif
