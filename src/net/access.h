/* SPDX-License-Identifier: MIT
 *
 * access.h: who may ask: the names by which we are called, and tokens.
 *
 * Host is checked against a list, because a page of a stranger can make a browser connect to us under a name of
 * its own (DNS rebinding); an address that the client really connected to cannot be forged that way, and is allowed.
 *
 * Invariants: tokens are kept as SHA-256 digests, and every one is compared in full whatever was sent; the set of
 * tokens is replaced whole, under a lock; the port of a Host is checked for its form only.
 */
#ifndef SEMEL_NET_ACCESS_H
#define SEMEL_NET_ACCESS_H

#include <pthread.h>

#include "base/digest.h"
#include "net/exchange.h"

#define SEMEL_ACCESS_TOKENS 16
#define SEMEL_ACCESS_TOKEN_MAX 4096

struct semel_access {
    char **hosts; /* copies */
    size_t n_hosts;
    bool trusted; /* a unix socket: whoever could open it needs no token */
    pthread_mutex_t lock;
    unsigned char digests[SEMEL_ACCESS_TOKENS][SEMEL_SHA256];
    unsigned scopes[SEMEL_ACCESS_TOKENS];
    size_t n_tokens;
};

semel_status semel__access_init(struct semel_access *access, const struct semel_http_settings *settings, bool trusted,
                                struct semel_error *err);
void semel__access_done(struct semel_access *access);
semel_status semel__access_set_tokens(struct semel_access *access, const struct semel_http_token *tokens, size_t n,
                                      struct semel_error *err);

/* The one Host header. `local` is our end of the connection, as text without its port, or {NULL, 0}. 0, 400 or 421. */
int semel__access_host(const struct semel_access *access, const struct semel_http_request *req, struct semel_str local,
                       const char **ret_reason);
/* What the route needs; sets req->scopes, and takes Authorization out of the headers (`fields` are those of req) if
 * the route needs a token. 0, 400, 401, 403, or 503 without memory. */
int semel__access_token(struct semel_access *access, struct semel_http_request *req, struct semel_http_pair *fields,
                        const char **ret_reason);

#endif
