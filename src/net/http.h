/* SPDX-License-Identifier: MIT
 *
 * http.h: an HTTP/1.1 server for the admin API, metrics, health, ingest, pull and the gateway.
 *
 * What it is: one event loop (libuv) with any number of listeners; each has an address, a table of routes, tokens,
 * host names and bounds. A strict gate and then llhttp parse the heads; OpenSSL does TLS. Not a client (upstream.h,
 * curl), not a file server. A request is whole, with its body, before its handler sees it, and so is a reply before it
 * is sent; except on routes that stream.
 *
 * Threads: the caller owns the thread that runs semel__http_run; handlers run in it and must not block, except for
 * requests that a pool of threads handles (route.aside_above), several at a time. A handler answers at once, or keeps
 * the exchange and gives it to another thread, which answers later. Between the handler's call and the answer an
 * exchange belongs to one thread at a time; it may outlive its connection and even the server. Every exchange must be
 * answered exactly once, or it leaks and its connection waits until the server stops.
 *
 * What a client may rely on: HTTP/1.1 and 1.0, keep-alive, pipelining (one request at a time, the others wait
 * unread), HEAD wherever GET is, chunked bodies, Expect: 100-continue, refusals as application/problem+json (RFC
 * 9457). The server sets Date, Content-Length, Cache-Control: no-store and X-Content-Type-Options. There are no CORS
 * headers, and OPTIONS is 405 unless a route names it.
 *
 * What a client may not do (P52, P53). 400: a bare CR or LF, obs-fold, blanks around a field's name, NUL and other
 * control characters, both Content-Length and Transfer-Encoding, either of them twice, a transfer coding other than
 * `chunked`, chunk extensions, trailers, no Host or two, a target that is not a path (absolute-form and
 * authority-form too), a bad percent-escape. 408: a head or body that is too slow. 413, 431: too large. 417: another
 * expectation. 421: an unknown Host. 501: a method that is not HTTP's. 505: another version. 503: too many
 * connections, or too many bytes of the path's bodies in memory. Without or with a wrong token 401, with one of
 * another scope 403; both before the body is read. A refusal closes the connection, unless the request was whole and
 * its end beyond doubt.
 *
 * Invariants: nothing that a client sends allocates more than the listener's limits; every wait has a
 * time-out, counted from its beginning and not from the last byte; tokens are kept as digests and
 * compared in constant time; descriptors are close-on-exec; SIGPIPE is blocked in the loop's thread.
 */
#ifndef SEMEL_NET_HTTP_H
#define SEMEL_NET_HTTP_H

#include "base/clock.h"
#include "base/str.h"

#define SEMEL_HTTP_METHOD_MAP(X) X(GET) X(HEAD) X(POST) X(PUT) X(PATCH) X(DELETE) X(OPTIONS) X(TRACE) X(CONNECT)

enum semel_http_method {
#define X(name) SEMEL_HTTP_##name,
    SEMEL_HTTP_METHOD_MAP(X)
#undef X
        SEMEL_HTTP_METHODS
};
#define SEMEL_HTTP_TICK_MS 100
#define SEMEL_HTTP_BIT(name) (1u << SEMEL_HTTP_##name)

struct semel_http;          /* the loop */
struct semel_http_listener; /* one address */
struct semel_http_exchange; /* one request and its reply */

struct semel_http_pair {
    struct semel_str name, value;
};

/* ---- routes that stream ----
 *
 * The handler is called as soon as the head is sound, in the loop's thread, and keeps the exchange. The body arrives in
 * pieces while the handler pulls. The reply is either one of those below (_answer, _refuse), or a head (_begin) and a
 * body in pieces (_send) up to its _end. Everything happens in the loop's thread; callbacks are never made from within
 * one of these functions, only from the loop.
 *
 * The exchange belongs to the handler until it calls _end, _cut, _answer or _refuse, or until `gone` is called: the
 * client has left, was too slow or sent a malformed body. Then the handler does not touch it any more, and no callback
 * comes. A handler that does not pull holds at most one read of the body; a reply that a client does not read holds
 * what the handler sends in spite of a `false` of _send.
 *
 * A body must bring SEMEL_HTTP_PACE bytes, or its end, per limits.body_ms in which the handler pulls; a client must
 * take 64 KiB of a reply per limits.write_ms. If a reply begins before the body is whole, the connection closes after
 * it. */
#define SEMEL_HTTP_PACE 4096

struct semel_http_stream {
    void (*body)(struct semel_http_exchange *x, struct semel_str piece); /* up to one read may follow a pull of false */
    void (*whole)(struct semel_http_exchange *x);   /* the body is complete; not called for a request without one */
    void (*drained)(struct semel_http_exchange *x); /* after _send returned false: there is room again */
    /* The client has closed its side, behind a complete request. It may still read, or be gone. */
    void (*hung_up)(struct semel_http_exchange *x);
    void (*gone)(struct semel_http_exchange *x);
};

/* Lets the body come, or not. At first it does not. */
void semel__http_pull(struct semel_http_exchange *x, bool on);
/* The head of the reply: status, the headers set so far, Date if there is none, and the framing. length is that of the
 * body; -1: not known, the body is chunked, or ends with the connection for a client of HTTP/1.0. After a HEAD, and
 * with a status that has no body, pieces are dropped. */
void semel__http_begin(struct semel_http_exchange *x, int status, int64_t length);
/* Copies the piece. false: more than 64 KiB wait to be sent; send the next piece after `drained`. */
bool semel__http_send(struct semel_http_exchange *x, struct semel_str piece);
/* The body is complete. If it is shorter than its length, the same as _cut. */
void semel__http_end(struct semel_http_exchange *x);
/* Breaks the connection off, so that the client cannot take what it has for the whole. */
void semel__http_cut(struct semel_http_exchange *x);

struct semel_http_route {
    unsigned methods; /* SEMEL_HTTP_BIT(GET) | ...; GET includes HEAD; not TRACE, not CONNECT */
    /* "/v1/inbox/{route}/{id}": a parameter is a whole, non-empty segment. A last "{rest*}" matches the remaining path.
     * The first route of the table that matches wins. */
    const char *path;
    unsigned needs;  /* a token with one of these scopes; 0: open to every client */
    size_t body_max; /* bytes; 0: a request with a body is refused */
    /* A request with a larger body is handled by a thread of a pool, because parsing it would block the loop (P104). 0:
     * never. */
    size_t aside_above;
    void (*handle)(void *ctx, struct semel_http_exchange *x);
    /* A request without an answer after timeout_ms is overdue (0: never): the loop's thread calls `overdue`, and again
     * every SEMEL_HTTP_TICK_MS until it is answered. Another thread may be answering at that moment: the handler
     * answers only exchanges that it still has, which semel__http_kept finds, under a lock of its own. */
    uint64_t timeout_ms;
    void (*overdue)(void *ctx, struct semel_http_exchange *x);
    void *ctx;
    /* The route streams. It gets every target, whatever its path says, undecoded: no params, no query. body_max bounds
     * the body, but no memory is counted for it; aside_above and timeout_ms have no meaning. */
    const struct semel_http_stream *stream;
};

/* What a handler sees. Any byte may occur in decoded values. */
struct semel_http_request {
    enum semel_http_method method; /* as it was sent: HEAD is HEAD */
    const struct semel_http_route *route;
    struct semel_str target;        /* path and query as they were sent */
    const struct semel_str *params; /* decoded, in the order of the route's path */
    size_t n_params;
    const struct semel_http_pair *query; /* decoded, in the order in which they were sent, repeated ones too */
    size_t n_query;
    /* Values without the blanks around them; names as sent. Where the route needs a token, Authorization is left out,
     * so that it is not stored with a message. */
    const struct semel_http_pair *headers;
    size_t n_headers;
    struct semel_str body;
    int64_t length;           /* of the body of a route that streams; 0: there is none, -1: not known */
    bool secure;              /* the client came by TLS */
    struct semel_str subject; /* of the client's certificate (RFC 2253), which our CAs have signed; {NULL, 0}: none */
    struct semel_str remote;  /* "127.0.0.1:40112", "[::1]:40112" or "unix"; also for observers */
    unsigned scopes;          /* of the token, on a route that needs one; on a unix socket all */
};

const struct semel_http_request *semel__http_request(const struct semel_http_exchange *x);
/* The value of the parameter, of the first query pair, of the first header with that name; {NULL, 0}: there is none. */
struct semel_str semel__http_param(const struct semel_http_request *req, const char *name);
struct semel_str semel__http_query(const struct semel_http_request *req, const char *name);
struct semel_str semel__http_header(const struct semel_http_request *req, const char *name);
/* The client has closed its side. It may still read the answer, or be gone: do not start anything long. Any thread that
 * has the exchange may ask. */
bool semel__http_hung_up(const struct semel_http_exchange *x);
/* A pointer that the handler keeps with an exchange that it has not answered; NULL until it is set. */
void semel__http_keep(struct semel_http_exchange *x, void *kept);
void *semel__http_kept(const struct semel_http_exchange *x);

/* The reply. The body may grow until the answer; if that failed (limits.reply_max, memory) the answer is a 500 instead.
 * A header's value is cut at the first control character. The type is borrowed until the answer was sent: a literal.
 * Without a type the body is application/json. */
struct semel_buf *semel__http_body(struct semel_http_exchange *x);
void semel__http_set_type(struct semel_http_exchange *x, const char *type);
void semel__http_set_header(struct semel_http_exchange *x, const char *name, struct semel_str value);
void semel__http_set_pair(struct semel_http_exchange *x, const struct semel_http_pair *pair);
bool semel__http_tchar(char c); /* of a token, RFC 9110: names of headers consist of them */
/* Ends the exchange: it belongs to the server again, do not touch it. Any thread. 200 <= status < 600. */
void semel__http_answer(struct semel_http_exchange *x, int status);
/* The same with a problem document as the body; the detail is for people and contains no secrets. */
__attribute__((format(printf, 3, 4))) void semel__http_refuse(struct semel_http_exchange *x, int status,
                                                              const char *fmt, ...);

struct semel_http_token {
    struct semel_str text; /* 1 to 4096 visible ASCII characters */
    unsigned scopes;
};

struct semel_http_limits {
    size_t connections; /* of the listener; see semel__http_bound */
    size_t reserve;     /* connections that other listeners of the loop cannot use up */
    size_t requests;    /* per connection; it closes after the last reply */
    size_t head_bytes;  /* request line and headers */
    size_t head_fields; /* headers, and pairs of the query */
    size_t held_bytes;  /* of all bodies in memory; each route has a share, beyond it: 503 */
    size_t reply_max;   /* bytes of a reply's body */
    uint64_t idle_ms;   /* between two requests */
    uint64_t head_ms;   /* from its first byte, or from the connection, to the end of a head; TLS included */
    uint64_t body_ms;   /* of a whole body */
    uint64_t write_ms;  /* of a whole reply */
    uint64_t linger_ms; /* after the last reply, for the client to read it and close */
};

/* Every answer: for counting and for the log. `req` is NULL when there was no valid head; took_us runs from the end of
 * the head. Called in the loop's thread. */
typedef void (*semel_http_observer)(void *ctx, const struct semel_http_request *req, int status, int64_t took_us);

/* There was no room for a new connection: an older one was closed, or the new one was refused. `remote` is the one that
 * was closed or refused. Called in the loop's thread. */
typedef void (*semel_http_crowded)(void *ctx, bool gave_way, struct semel_str remote);

/* Everything is borrowed: files and strings until _listen returns (a reload reads the files again by the names it
 * copied), routes as long as there are exchanges. */
struct semel_http_settings {
    const char *address;              /* "127.0.0.1:8080", "[::1]:8080", "localhost:8080", "8080" or "unix:/path" */
    bool plain;                       /* allow an address that is not loopback without TLS */
    bool share_port;                  /* SO_REUSEPORT: listeners of other loops of this user may have the same port */
    const char *cert_file, *key_file; /* PEM, the certificate with its chain; both or neither */
    const char *client_ca_file;       /* every client needs a certificate of one of these CAs */
    const char *const *hosts;         /* our host names, besides loopback and our own address */
    size_t n_hosts;
    bool any_host; /* any well-formed Host will do: what is behind us decides */
    /* any of them grants access; without tokens, routes that need one are closed */
    const struct semel_http_token *tokens;
    size_t n_tokens;
    const struct semel_http_route *routes;
    size_t n_routes;
    struct semel_http_limits limits;
    semel_http_observer observe; /* or NULL */
    semel_http_crowded crowded;  /* or NULL */
    void *observe_ctx;
};
void semel__http_settings_init(struct semel_http_settings *settings); /* the default limits, all else empty */

/* The clock is borrowed, and used for the Date header and the observer; NULL is the real one. */
semel_status semel__http_new(struct semel_http **ret, const struct semel_clock *clock, struct semel_error *err);
/* Binds and listens; connections wait until _run. Not while it runs. INVALID: wrong settings; err names the setting and
 * what would be right. RETRY: the address is in use, or no memory. *ret_listener (may be NULL) lives as long as the
 * loop. */
semel_status semel__http_listen(struct semel_http *http, const struct semel_http_settings *settings,
                                struct semel_http_listener **ret_listener, struct semel_error *err);
/* The maximum of connections of all listeners together; by default the sum of theirs. At this limit, or that of its
 * listener, a new connection replaces the oldest that has not sent a whole request, then the oldest that is idle, has
 * had its last answer, or does not read a reply that needs no token. Where all are busy the new one gets 503. Before
 * _run. */
void semel__http_bound(struct semel_http *http, size_t connections);
/* Called in the loop's thread every SEMEL_HTTP_TICK_MS, to show that the loop runs. Before _run. */
void semel__http_on_tick(struct semel_http *http, void (*tick)(void *ctx), void *ctx);
unsigned semel__http_port(const struct semel_http_listener *listener); /* 0: a unix socket */
/* Serves until it is stopped. Call it once. */
semel_status semel__http_run(struct semel_http *http, struct semel_error *err);
/* Accepts no new connections, closes idle ones, lets running requests be answered; after deadline_ms closes the rest.
 * The earliest deadline of several calls counts. Any thread; only wakes the loop. */
void semel__http_stop(struct semel_http *http, uint64_t deadline_ms);
/* Reads certificates, keys and CAs again; whatever it returns, _reloaded comes next. With `use` new connections use
 * them, open ones do not change; without it the old ones stay. Any thread; _reload blocks on files, not on the loop. */
semel_status semel__http_reload(struct semel_http *http, struct semel_error *err);
void semel__http_reloaded(struct semel_http *http, bool use);
/* Replaces the listener's tokens. Any thread. */
semel_status semel__http_set_tokens(struct semel_http_listener *listener, const struct semel_http_token *tokens,
                                    size_t n_tokens, struct semel_error *err);
/* Not while it runs. Exchanges that others still have may be answered afterwards; the answer is dropped. */
void semel__http_free(struct semel_http *http);

#endif
