/* SPDX-License-Identifier: MIT
 *
 * upstream.h: the gateway's way to the server behind it: an HTTP/1.1 client in the event loop of http.h.
 *
 * What it is: one upstream is one origin (http, https or a unix socket) with its time-outs, its bounds and a pool of
 * idle connections. A call is one request and its answer; both bodies come in pieces, with back-pressure. Not a client
 * for everything: no redirects, no cookies, no proxies, no decoding, no HTTP/2.
 *
 * A call is sent once. There is no code here that sends a request again (P54): when a connection fails, the call ends,
 * and its end reports what is known:
 *
 *     NOTHING_SENT   not a byte of the request was handed to the kernel
 *     ANSWERED       the answer is complete (its head may have come before the request was sent; `early`)
 *     UNKNOWN        everything else (P47, P93)
 *
 * Answers pass a strict gate (parse.h): bare LF, obs-fold, both lengths, repeated ones, a bad chunk, 101, more than
 * SEMEL_UPSTREAM_INTERIM_MAX interim answers and bytes before the request end the call. A connection is kept only
 * after an answer whose end is beyond doubt, to a request that was sent whole, with no byte behind it; an idle one that
 * gets a byte is closed, so that no answer can belong to another request.
 *
 * An idle connection that its server closes while we send costs an unknown outcome (P94). So a connection is used
 * again only if it was idle for at most SEMEL_UPSTREAM_FRESH_MS (calls that must not fail so), otherwise
 * SEMEL_UPSTREAM_IDLE_MS, and for at most half of what the server's Keep-Alive header allows; the socket is asked for
 * an end when a connection is taken, and again just before the first byte: then the call ends as CLOSED, with nothing
 * sent.
 *
 * Threads: the loop's alone. No callback is made from within a function of this header. `done` is called exactly once
 * per call, unless it is cancelled; afterwards the call does not exist.
 */
#ifndef SEMEL_NET_UPSTREAM_H
#define SEMEL_NET_UPSTREAM_H

#include "net/http.h"

#define SEMEL_UPSTREAM_INTERIM_MAX 8
#define SEMEL_UPSTREAM_FRESH_MS 1000
#define SEMEL_UPSTREAM_IDLE_MS 4000

#define SEMEL_UPSTREAM_CAUSE_MAP(X)                                                   \
    X(NONE, "none", "answered")                                                       \
    X(RESOLVE, "resolve", "its host name was not found")                              \
    X(CONNECT, "connect", "the connection was refused, or there is no way")           \
    X(CONNECT_TIMEOUT, "connect_timeout", "it did not accept the connection in time") \
    X(TLS, "tls", "TLS failed")                                                       \
    X(EARLY, "early", "it sent bytes before the request")                             \
    X(SEND_TIMEOUT, "send_timeout", "it did not take the request in time")            \
    X(TIMEOUT, "timeout", "it did not answer in time")                                \
    X(IDLE_TIMEOUT, "idle_timeout", "its answer stopped")                             \
    X(CLOSED, "closed", "it closed the connection without an answer")                 \
    X(RESET, "reset", "the connection broke")                                         \
    X(TRUNCATED, "truncated", "it closed the connection within its answer")           \
    X(MALFORMED, "malformed", "its answer is not well-formed HTTP")                   \
    X(HEAD_TOO_LARGE, "head_too_large", "the head of its answer is too large")        \
    X(INTERIM, "interim", "it sent too many interim answers")                         \
    X(UPGRADE, "upgrade", "it switched protocols, which nobody asked for")            \
    X(MEMORY, "memory", "there is no memory for the call")                            \
    X(STOPPED, "stopped", "Semel stopped before the answer came")

enum semel_upstream_cause {
#define X(id, name, text) SEMEL_UPSTREAM_##id,
    SEMEL_UPSTREAM_CAUSE_MAP(X)
#undef X
        SEMEL_UPSTREAM_CAUSES
};
const char *semel__upstream_cause_name(enum semel_upstream_cause cause);
const char *semel__upstream_cause_text(enum semel_upstream_cause cause); /* "its answer stopped" */

enum semel_upstream_fate { SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_UNKNOWN };

struct semel_upstream;
struct semel_upstream_call;

struct semel_upstream_settings {
    const char *url;     /* "http://127.0.0.1:8000", "https://api.internal", "unix:/run/app.sock"; no path */
    const char *ca_file; /* for https; NULL: the CAs of the system */
    uint64_t connect_ms; /* name, connection and TLS together */
    uint64_t send_ms;    /* without progress while sending */
    uint64_t answer_ms;  /* from the end of the request to the head of the answer */
    uint64_t idle_ms;    /* without progress within the answer's body */
    size_t head_bytes, head_fields;
    size_t idle_max; /* connections that are kept */
};
void semel__upstream_settings_init(struct semel_upstream_settings *settings);

struct semel_upstream_answer {
    int status;
    const struct semel_http_pair *headers; /* valid until `done` returns; framing and hop-by-hop headers too */
    size_t n_headers;
    int64_t length; /* by its Content-Length; without a body, too, if it has one; -1: not known */
    bool no_body;   /* to a HEAD, or by its status: none follows, whatever the length says */
};

struct semel_upstream_end {
    enum semel_upstream_fate fate;
    enum semel_upstream_cause cause;
    bool early;         /* answered before the request was sent whole */
    const char *detail; /* more about the cause, or NULL */
};

struct semel_upstream_events {
    void (*head)(void *ctx, const struct semel_upstream_answer *answer); /* the final one; at most once */
    void (*body)(void *ctx, struct semel_str piece);
    void (*drained)(void *ctx); /* after _send returned false */
    void (*done)(void *ctx, const struct semel_upstream_end *end);
};

struct semel_upstream_request {
    enum semel_http_method method;
    struct semel_str target;
    struct semel_str lines; /* Host and the other headers, each with its CR LF; not the framing, not Connection */
    int64_t length;         /* of the body; -1: not known, it is sent in chunks */
    bool fresh;             /* use a connection only if it was used just now */
    int64_t until_us;       /* by semel__boot_us: from then on its first byte is not sent (STOPPED); 0: at any time */
};

/* Copies the settings. Before the loop runs. INVALID: a URL or a file that cannot be used. */
semel_status semel__upstream_new(struct semel_upstream **ret, struct semel_http *http,
                                 const struct semel_upstream_settings *settings, struct semel_error *err);
/* After semel__http_free of its loop. */
void semel__upstream_free(struct semel_upstream *up);

/* Starts a call; the request is copied. RETRY: no memory, and there will be no callback. */
semel_status semel__upstream_start(struct semel_upstream *up, const struct semel_upstream_request *request,
                                   const struct semel_upstream_events *events, void *ctx,
                                   struct semel_upstream_call **ret, struct semel_error *err);
/* A piece of the body, copied. false: 64 KiB wait to be sent; send the next one after `drained`. */
bool semel__upstream_send(struct semel_upstream_call *call, struct semel_str piece);
void semel__upstream_finish(struct semel_upstream_call *call); /* the body is complete */
void semel__upstream_pull(struct semel_upstream_call *call,
                          bool on);                            /* lets the answer come, or not; at first it does */
void semel__upstream_cancel(struct semel_upstream_call *call); /* it ends without `done` */

#endif
