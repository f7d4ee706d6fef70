/* SPDX-License-Identifier: MIT
 *
 * gateway.h: a reverse proxy in front of one upstream, behind the nginx, Envoy or load balancer that is already there.
 *
 * What it is: a listener of http.h whose requests go to an upstream of net/upstream.h, and whose answers come back,
 * both in pieces. A message is parsed and written anew, never copied as bytes (P52). A request is sent upstream at most
 * once, whatever happens (P54). With a keeper it guards idempotency keys (guard.h): the work is done once per key, and
 * later requests get the first answer. Not a cache, not a load balancer, no retries, no HTTP/2, no WebSockets.
 *
 * A request passes these rules, in this order:
 *
 *     400   a target that servers read in different ways: an empty segment (but for a last one), `.` or `..`, also
 *           escaped, each also with parameters (`..;a`), an escaped slash, backslash or NUL, a backslash, a malformed
 *           escape; `*`
 *     400   a header that changes the method: X-HTTP-Method-Override, X-HTTP-Method, X-Method-Override (P100)
 *     400   a Connection header that names a header of this request which is for the upstream: it would vanish behind
 *           our check
 *     501   Upgrade
 *
 * What goes upstream: the method, the target as it was sent, Host, the client's headers as pairs in their order, Via.
 * Left out: hop-by-hop headers, Expect (we answer 100 ourselves), X-Original-URL, X-Rewrite-URL, Semel-*, and every
 * name with `_`, which some servers read as `-` (P100). Forwarded, X-Real-IP and X-Forwarded-* are replaced by our own
 * X-Forwarded-For, -Proto and -Host, unless the peer is trusted: then its own stay, and its address is appended to
 * X-Forwarded-For.
 *
 * What comes back: the status and the headers as pairs, without hop-by-hop headers and Semel-*. If there is no answer:
 * 502, or 504 after a time-out, as problem+json; if the answer breaks off, the client's connection breaks off, too. A
 * client that hangs up ends the call, unless it is guarded.
 *
 * Threads: as in http.h; the counts may be read by any.
 */
#ifndef SEMEL_GATEWAY_GATEWAY_H
#define SEMEL_GATEWAY_GATEWAY_H

#include <stdatomic.h>

#include "core/keys.h"
#include "net/http.h"
#include "net/upstream.h"

struct semel_gateway;
struct semel_keeper; /* keeper.h: the thread's side that keeps keys in a store */

/* ---- what is guarded ----
 *
 * The first rule that matches a request counts; where none does, POST and PATCH are guarded if they have a key, by a
 * rule as semel__gateway_rule_init makes it. Everything else passes in pieces, without the store. Pointers are borrowed
 * until _open returns, which copies everything. */

enum semel_gateway_key {
    SEMEL_GATEWAY_KEY_OPTIONAL, /* guarded if there is a key */
    SEMEL_GATEWAY_KEY_REQUIRED, /* 400 without one */
    SEMEL_GATEWAY_KEY_OFF       /* never guarded */
};

struct semel_gateway_rule {
    /* "POST /v1/charges", "PUT|DELETE /v1/accounts/{id}", "* /v1/{rest*}": methods (* is POST, PUT, PATCH and DELETE),
     * and a path as in http.h's routes. It matches every spelling that servers take for that path: escapes, any case,
     * a last slash, parameters (`;a=b`). */
    const char *match;
    enum semel_gateway_key key;
    const char *key_header;    /* "Idempotency-Key" */
    const char *key_pointer;   /* a JSON pointer to the key in the body, instead of the header; NULL: the header */
    bool by_endpoint;          /* key_scope: endpoint: a key belongs to caller, method and path; else to the caller */
    bool anonymous;            /* requests without a caller share one scope; else 401 */
    bool pass_when_down;       /* while the store is away requests pass unguarded; else 503, as for damaged rows */
    bool store_body;           /* else a replay has no body */
    const char *const *ignore; /* JSON pointers that the fingerprint leaves out */
    size_t n_ignore;
    const char *const *headers; /* names of headers that count in the fingerprint */
    size_t n_headers;
    const struct semel_key_rule
        *outcomes; /* what becomes of a key, by status; before the default table of core/keys.h */
    size_t n_outcomes;
    enum semel_on_unknown on_unknown;
    /* Where to ask by GET, for RECONCILE: "http://127.0.0.1:8000/by-key/{key}"; {key} and {caller} are replaced. An
     * answer: 404 or {"state": "not_done"}; {"state": "done", "status": 201, "outcome": ...}; all else is unknown. */
    const char *reconcile;
    int64_t settle_ms;          /* `not_done` is believed so long after; 0: twice upstream.answer_ms */
    int64_t wait_ms;            /* how long a request waits for the answer of a running one; 0: not at all */
    size_t waiters;             /* per key and loop; more get 409 at once */
    size_t body_max;            /* of a request: above it 413 */
    size_t answer_max;          /* of an answer that is stored: above it, it is stored without its body */
    size_t held_max;            /* bytes of all bodies and answers of this rule in memory (P87): above it 503 */
    int64_t answer_ms, keep_ms; /* lifetimes of answer and key after completion */
};
void semel__gateway_rule_init(struct semel_gateway_rule *rule); /* the defaults; match is NULL */

/* Who the caller is: a key is a caller's (A4, P46). */
enum semel_gateway_caller_kind {
    SEMEL_GATEWAY_CALLER_NONE,        /* nobody is known */
    SEMEL_GATEWAY_CALLER_HEADER,      /* a header, believed from trusted peers and dropped from all others */
    SEMEL_GATEWAY_CALLER_CERTIFICATE, /* the subject of the client's certificate; needs client_ca_file */
    SEMEL_GATEWAY_CALLER_API_KEY /* SHA-256 of a header that has a static API key, never one that is renewed (P55) */
};
struct semel_gateway_caller {
    enum semel_gateway_caller_kind kind;
    const char *header;              /* HEADER: "X-User-Id"; API_KEY: "X-Api-Key" or "Authorization" */
    const char *const *trusted_from; /* HEADER: as settings.trusted */
    size_t n_trusted_from;
    /* Asked by GET with the client's Authorization, Cookie and API key before a replay: 2xx lets it through, 401 and
     * 403 are passed on, everything else is 503. NULL: not asked. */
    const char *check;
};

struct semel_gateway_settings {
    const char *name; /* for logs and leases; "gateway" */
    const char *listen;
    bool plain;      /* an address that is not loopback, without TLS */
    bool share_port; /* SO_REUSEPORT: several loops listen on one address */
    const char *cert_file, *key_file, *client_ca_file;
    struct semel_upstream_settings upstream;
    bool upstream_plain;        /* a reconcile or check may ask another host without TLS */
    const char *const *trusted; /* networks whose X-Forwarded-* are believed: "10.0.0.0/8", "::1/128"; or "unix" */
    size_t n_trusted;
    struct semel_http_limits limits;

    struct semel_keeper *keeper; /* borrowed; NULL: nothing is guarded, and what follows has no meaning */
    const struct semel_gateway_rule *rules;
    size_t n_rules;
    /* n_rules + 1 zeros, borrowed until _close, where all loops of a gateway count what held_max bounds; the last one
     * is for what no rule matches. NULL: a loop counts by itself. */
    _Atomic size_t *held;
    struct semel_gateway_caller caller;
    const char *const *cors; /* origins that may read refusals: "https://shop.example" */
    size_t n_cors;
    bool finishes;      /* A9: the upstream finishes the key by its token in its own transaction */
    size_t key_min;     /* characters of a key; SEMEL_KEY_MIN */
    size_t guarded_max; /* guarded requests at a time; above it 503 */
};
void semel__gateway_settings_init(struct semel_gateway_settings *settings);
/* Lowers the bounds of connections and guarded requests so that one loop has at most so many descriptors (P88). */
void semel__gateway_settings_bound(struct semel_gateway_settings *settings, size_t descriptors);
/* INVALID: they would run a request twice on a guess (P95), end a lease while its call may still run, or show keys to a
 * network. Every way to start a gateway with a keeper asks it; _open does not. `lease_ms` is the keeper's. */
semel_status semel__gateway_settings_check(const struct semel_gateway_settings *settings, int64_t lease_ms,
                                           struct semel_error *err);

/* The refusals of the guard: problem+json of type "urn:semel:idempotency:" and the word. */
#define SEMEL_GATEWAY_REFUSAL_MAP(X) \
    X(MISSING, 400, "missing")       \
    X(MALFORMED, 400, "malformed")   \
    X(ANONYMOUS, 401, "anonymous")   \
    X(FORBIDDEN, 403, "forbidden")   \
    X(RUNNING, 409, "running")       \
    X(UNKNOWN, 409, "unknown")       \
    X(TOO_LARGE, 413, "too-large")   \
    X(MISMATCH, 422, "mismatch")     \
    X(OVERLOADED, 503, "overloaded") \
    X(NOT_STORED, 503, "not-stored") \
    X(UNCHECKED, 503, "unchecked")

enum semel_gateway_refusal {
#define X(id, status, word) SEMEL_GATEWAY_REFUSED_##id,
    SEMEL_GATEWAY_REFUSAL_MAP(X)
#undef X
        SEMEL_GATEWAY_REFUSALS
};
const char *semel__gateway_refusal_word(enum semel_gateway_refusal refusal);

/* Why a key is unknown: by a cause of upstream.h, or because of these. */
enum semel_gateway_unknown {
    SEMEL_GATEWAY_UNKNOWN_STATUS = SEMEL_UPSTREAM_CAUSES, /* the answer has a status that says nothing (5xx) */
    SEMEL_GATEWAY_UNKNOWN_SAID,                           /* the answer itself says so */
    SEMEL_GATEWAY_UNKNOWN_NOT_STORED,                     /* the answer could not be stored before its lease ended */
    SEMEL_GATEWAY_UNKNOWNS
};
const char *semel__gateway_unknown_name(enum semel_gateway_unknown cause); /* "timeout", "status" */

/* What has happened since the start. */
struct semel_gateway_counts {
    _Atomic uint64_t answered;                      /* by the upstream, with any status */
    _Atomic uint64_t refused;                       /* by the rules above */
    _Atomic uint64_t left;                          /* by their clients, before the answer was complete */
    _Atomic uint64_t failed;                        /* the upstream gave no answer, or half of one */
    _Atomic uint64_t causes[SEMEL_UPSTREAM_CAUSES]; /* of these */

    /* Guarded requests, by what came of them. */
    _Atomic uint64_t completed, released;                     /* calls whose key ended so */
    _Atomic uint64_t unknown[SEMEL_GATEWAY_UNKNOWNS];         /* by cause */
    _Atomic uint64_t replayed;                                /* answered from the store */
    _Atomic uint64_t guarded_refused[SEMEL_GATEWAY_REFUSALS]; /* by the word of their type */
    _Atomic uint64_t waited;                                  /* requests that waited for a running one */
    _Atomic uint64_t looked_at;                               /* those that wait, by each tick of the clock */
    _Atomic uint64_t aside;                                   /* bodies whose fingerprint another thread made (P104) */
    _Atomic uint64_t times;                                   /* keys that are a time and nothing else */
    _Atomic uint64_t passed;                                  /* unguarded, because the store was away */
    _Atomic int64_t running;                                  /* guarded requests now */
    _Atomic int64_t unstored;                                 /* of these: answers that could not be stored yet */
    _Atomic int64_t held_bytes;                               /* of bodies and answers in memory */
};

/* Opens the listener and the upstream on a loop that does not run yet. Everything is copied. INVALID: err names the
 * setting. *ret is set unless there is no memory: close it after semel__http_free. */
semel_status semel__gateway_open(struct semel_gateway **ret, struct semel_http *http,
                                 const struct semel_gateway_settings *settings, struct semel_error *err);
unsigned semel__gateway_port(const struct semel_gateway *gateway);
const struct semel_gateway_counts *semel__gateway_counts(const struct semel_gateway *gateway);
void semel__gateway_close(struct semel_gateway *gateway); /* after semel__http_free */

#endif
