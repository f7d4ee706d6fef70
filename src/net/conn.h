/* SPDX-License-Identifier: MIT
 *
 * conn.h: one connection as a state machine, without a socket, a clock of its own, or a thread.
 *
 * What it is: bytes go in, bytes come out, and the phase determines which time-out runs. server.c drives it with
 * libuv, fuzz_http.c with arbitrary bytes.
 *
 *     IDLE -> HEAD -> BODY -> HANDLING -> WRITING -> IDLE ...
 *             HEAD -> STREAMING ----------> IDLE ...     (a route that streams; WRITING if it is answered whole)
 *                                  any refusal, or the last reply: WRITING -> LINGER -> CLOSED
 *
 * A refusal may be sent while the body is still arriving, so the connection lingers: it reads and drops until the
 * client closes, else the kernel would answer the unread bytes with a reset and the client might never see the
 * reason.
 *
 * Invariants: one exchange at a time; while it is handled, the connection takes at most one read of further bytes;
 * `in` has at most limits.head_bytes and one such read; when a connection closes while a handler has its exchange,
 * the exchange stays, marked; after CLOSED nothing is read or written. A handler that streams only sets marks: the
 * connection changes in semel__conn_turn and in the functions that report an event, never while a callback runs.
 */
#ifndef SEMEL_NET_CONN_H
#define SEMEL_NET_CONN_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/digest.h"
#include "base/mem.h"
#include "net/parse.h"

/* ---- one request and its reply ----
 *
 * A connection makes an exchange when a head is sound, fills its body and hands it to the handler. From then on it is
 * the handler's, until the answer gives it back through `back`, which may be called in any thread. `kept` is the
 * handler's, too. `conn`, `env`, `held`, `started_us`, `waited_ms` and the list of those that have a time-out are
 * touched by the loop's thread alone.
 *
 * Invariants: an exchange owns everything that its request shows, so it survives its connection (conn is NULL then);
 * nothing in `lines` contains a control character besides the CR LF that we put there. */

struct semel_conn;
struct semel_conn_env;

struct semel_http_exchange {
    struct semel_http_request req;
    struct semel_arena arena; /* for the head and the values decoded from it */
    struct semel_buf body;    /* of the request */
    struct semel_buf reply;   /* the reply's body; of a streamed one what is being sent */
    struct semel_buf lines;   /* the handler's headers of the reply */
    const char *type;         /* of the reply's body */
    int status;               /* 0: not answered yet */
    _Atomic bool hung_up;
    struct semel_conn *conn;
    struct semel_conn_env *env; /* of the listener; do not dereference after the server is freed */
    size_t held;                /* bytes of the body that the listener's budget counts */
    int64_t started_us;         /* the end of the head */
    uint64_t waited_ms;         /* for the handler's answer */
    struct semel_http_exchange *prev_open, *next_open; /* in env->open */
    bool open;
    struct semel_buf queue;                      /* of a streamed reply: follows after `reply` */
    uint64_t left;                               /* bytes that its length still promises */
    bool owned;                                  /* a handler that streams has it */
    bool pulls, waits;                           /* the handler wants the body; it waits for `drained` */
    bool begun, chunked, sized, bodiless, dated; /* of a streamed reply: its head is queued, its framing */
    bool ended, cut;
    void *kept;
    void (*back)(void *ctx, struct semel_http_exchange *x);
    void *back_ctx;
    void (*gone)(void *ctx); /* the exchange's last call to back_ctx; or NULL */
    struct semel_http_exchange *next;
};

void semel__exchange_free(struct semel_http_exchange *x);

const char *semel__http_method_name(enum semel_http_method method);

/* ---- who may ask ----
 *
 * Host is checked against a list, because a page of a stranger can make a browser connect to us under a name of its own
 * (DNS rebinding); an address that the client really connected to cannot be forged that way, and is allowed.
 *
 * Invariants: tokens are kept as SHA-256 digests, and every one is compared in full whatever was sent; the set of
 * tokens is replaced whole, under a lock; the port of a Host is checked for its form only. */

#define SEMEL_ACCESS_TOKENS 16
#define SEMEL_ACCESS_TOKEN_MAX 4096

struct semel_access {
    bool any_host;
    char **hosts; /* copies */
    size_t n_hosts;
    bool trusted; /* a unix socket: its file permissions replace the token */
    pthread_mutex_t lock;
    unsigned char digests[SEMEL_ACCESS_TOKENS][SEMEL_SHA256];
    unsigned scopes[SEMEL_ACCESS_TOKENS];
    size_t n_tokens;
};

/* Takes hosts and tokens from the settings; _done also after a failure. */
semel_status semel__access_init(struct semel_access *access, const struct semel_http_settings *settings, bool trusted,
                                struct semel_error *err);
void semel__access_done(struct semel_access *access);
/* Checks the only Host header. `local` is our end of the connection, as text without its port, or {NULL, 0}. 0, 400 or
 * 421. */
int semel__access_host(const struct semel_access *access, const struct semel_http_request *req, struct semel_str local,
                       const char **ret_reason);
/* Checks the token that the route needs; sets req->scopes, and removes Authorization from the headers (`fields` are
 * those of req) if the route needs a token. 0, 400, 401, 403, or 503 without memory. */
int semel__access_token(struct semel_access *access, struct semel_http_request *req, struct semel_http_pair *fields,
                        const char **ret_reason);
semel_status semel__access_set_tokens(struct semel_access *access, const struct semel_http_token *tokens, size_t n,
                                      struct semel_error *err);

/* ---- the connection ---- */

#define SEMEL_HTTP_DATE 30    /* Sun, 06 Nov 1994 08:49:37 GMT */
#define SEMEL_CONN_READ 32768 /* the most bytes of one semel__conn_input */

enum semel_conn_phase {
    SEMEL_CONN_IDLE, /* waiting for the next request */
    SEMEL_CONN_HEAD, /* from the connection for the first request, from the first byte for the others */
    SEMEL_CONN_BODY,
    SEMEL_CONN_HANDLING,  /* the route's time-out, which outlives the connection: semel__conn_tick */
    SEMEL_CONN_STREAMING, /* body and reply, side by side */
    SEMEL_CONN_WRITING,
    SEMEL_CONN_LINGER, /* nothing more will be sent */
    SEMEL_CONN_CLOSED
};

/* Shared by the connections of a listener. Only the loop's thread touches `held`, `shares` and `open`. */
struct semel_conn_env {
    const struct semel_http_route *routes;
    size_t n_routes;
    struct semel_http_limits limits;
    struct semel_access access;
    const struct semel_clock *clock;
    semel_http_observer observe;
    void *observe_ctx;
    size_t held; /* bytes of bodies in memory */
    /* One per route: its part of `held`, and its limit. Routes share limits.held_bytes in proportion to their body_max;
     * a share always has room for one body. */
    struct semel_conn_share {
        size_t held, max;
    } * shares;
    struct semel_http_exchange *open; /* exchanges with handlers that have a time-out */
    int64_t date_s;                   /* the second of `date`, which most replies share */
    char date[SEMEL_HTTP_DATE];
    /* Copied into each exchange. */
    void (*back)(void *ctx, struct semel_http_exchange *x);
    void (*take)(void *ctx); /* called when an exchange that will call `gone` was made; or NULL */
    void (*gone)(void *ctx);
    /* handles it in another thread; false: not possible. Or NULL */
    bool (*aside)(void *ctx, struct semel_http_exchange *x);
    void (*kick)(void *owner); /* a handler that streams has done something: semel__conn_turn is due; or NULL */
    void *back_ctx;
};

struct semel_conn {
    struct semel_conn_env *env;
    void *owner; /* for the code that drives it; not used here */
    enum semel_conn_phase phase;
    unsigned serial; /* changes whenever a phase begins */
    bool last;       /* the current reply is the last */
    bool ended;      /* the client has closed its side */
    bool reset;      /* closes by a reset: a reply was broken off */
    bool secure;     /* set by the owner */
    char *subject;   /* of the client's certificate; NULL: none. Set by the owner, freed with the connection */
    size_t pace;     /* bytes of a streamed body in the time-out that runs */
    size_t requests; /* heads read so far */
    struct semel_gate gate;
    struct semel_parse parse;
    struct semel_http_exchange *x;
    struct semel_buf in;
    size_t in_seen;        /* bytes of `in` that the gate has seen */
    struct semel_buf out;  /* heads, and whole refusals */
    struct semel_str body; /* of the reply, after `out`; x owns it */
    size_t sent;           /* of out and body together */
    struct semel_str remote, local;
    char remote_text[72], local_text[64];
};

/* Takes routes, limits, observer, hosts and tokens from the settings; the caller sets the clock and the callbacks for
 * exchanges. `trusted`: a unix socket. INVALID: a route or a token that cannot work; err names it. env_done frees
 * everything, also after a failure. */
semel_status semel__conn_env_init(struct semel_conn_env *env, const struct semel_http_settings *settings, bool trusted,
                                  struct semel_error *err);
void semel__conn_env_done(struct semel_conn_env *env);

/* NULL: no memory. The texts are copied; local is without a port, or NULL. */
struct semel_conn *semel__conn_new(struct semel_conn_env *env, const char *remote, const char *local);
void semel__conn_free(struct semel_conn *conn);

bool semel__conn_wants(const struct semel_conn *conn); /* does it want input? */
/* At most SEMEL_CONN_READ bytes, and only when it wants input (or lingers, and drops them). Calls handlers. */
void semel__conn_input(struct semel_conn *conn, const char *p, size_t n);
void semel__conn_ended(struct semel_conn *conn); /* the client has closed its side */
/* The bytes to send, in up to two pieces, and their number. Stays the same until they were sent. */
size_t semel__conn_output(const struct semel_conn *conn, struct semel_str pieces[2]);
void semel__conn_sent(struct semel_conn *conn, size_t n);
/* Does what handlers that stream have asked for. */
void semel__conn_turn(struct semel_conn *conn);
/* The exchange came back from its handler. */
void semel__conn_answered(struct semel_conn *conn, struct semel_http_exchange *x);
/* The time-out of the phase, in ms; 0: none. */
uint64_t semel__conn_timeout_ms(const struct semel_conn *conn);
void semel__conn_expired(struct semel_conn *conn);
/* Time has passed: reports overdue exchanges to their handlers. */
void semel__conn_tick(struct semel_conn_env *env, uint64_t elapsed_ms);
/* The server stops: an idle connection closes, another after its reply. */
void semel__conn_drain(struct semel_conn *conn);
/* Refuses the client before any request. */
void semel__conn_refuse(struct semel_conn *conn, int status, const char *reason);
/* Lingers without a reply. */
void semel__conn_abandon(struct semel_conn *conn);
void semel__conn_lost(struct semel_conn *conn); /* the socket is dead */
/* For an exchange that came back after its connection closed, or that will never be sent. */
void semel__conn_retire(struct semel_conn_env *env, struct semel_http_exchange *x);

#endif
