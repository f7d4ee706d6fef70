/* SPDX-License-Identifier: MIT
 *
 * gateway.h: a reverse proxy in front of one upstream, behind the nginx, Envoy or load balancer that is already there.
 *
 * What it is: a listener of http.h whose requests go to an upstream of net/upstream.h, and whose answers come back,
 * both in pieces. A message is parsed and written anew, never copied as bytes (P52). A request is sent upstream at most
 * once, whatever happens (P54). Not a cache, not a load balancer, no retries, no HTTP/2, no WebSockets.
 *
 * A request passes these rules, in this order:
 *
 *     400   a target that servers read in different ways: an empty segment (but for a last one), `.` or `..`, also
 *           escaped, an escaped slash, backslash or NUL, a backslash, a malformed escape; `*`
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
 * client that hangs up ends the call.
 *
 * Threads: as in http.h; the counts may be read by any.
 */
#ifndef SEMEL_GATEWAY_GATEWAY_H
#define SEMEL_GATEWAY_GATEWAY_H

#include <stdatomic.h>

#include "net/http.h"
#include "net/upstream.h"

struct semel_gateway;

struct semel_gateway_settings {
    const char *listen;
    bool plain; /* an address that is not loopback, without TLS */
    const char *cert_file, *key_file, *client_ca_file;
    struct semel_upstream_settings upstream;
    const char *const *trusted; /* networks whose X-Forwarded-* are believed: "10.0.0.0/8", "::1/128"; or "unix" */
    size_t n_trusted;
    struct semel_http_limits limits;
};
void semel__gateway_settings_init(struct semel_gateway_settings *settings);

/* What has happened since the start. */
struct semel_gateway_counts {
    _Atomic uint64_t answered;                      /* by the upstream, with any status */
    _Atomic uint64_t refused;                       /* by the rules above */
    _Atomic uint64_t left;                          /* by their clients, before the answer was complete */
    _Atomic uint64_t failed;                        /* the upstream gave no answer, or half of one */
    _Atomic uint64_t causes[SEMEL_UPSTREAM_CAUSES]; /* of these */
};

/* Opens the listener and the upstream on a loop that does not run yet. Everything is copied. INVALID: err names the
 * setting. *ret is set unless there is no memory: close it after semel__http_free. */
semel_status semel__gateway_open(struct semel_gateway **ret, struct semel_http *http,
                                 const struct semel_gateway_settings *settings, struct semel_error *err);
unsigned semel__gateway_port(const struct semel_gateway *gateway);
const struct semel_gateway_counts *semel__gateway_counts(const struct semel_gateway *gateway);
void semel__gateway_close(struct semel_gateway *gateway); /* after semel__http_free */

#endif
