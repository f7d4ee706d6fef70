/* SPDX-License-Identifier: MIT
 *
 * exchange.h: one request and its reply, from the inside.
 *
 * Life: a connection makes it when a head is sound, fills its body and hands it to the handler.
 * From then on it is the handler's, until the answer gives it back through `back`, which may be
 * called in any thread. `conn`, `env`, `held` and `started_us` are touched by the loop's thread alone.
 *
 * Invariants: it owns everything that its request shows, so it survives its connection (conn is
 * NULL then); nothing in `lines` contains a control character besides the CR LF that we put there.
 */
#ifndef SEMEL_NET_EXCHANGE_H
#define SEMEL_NET_EXCHANGE_H

#include <stdatomic.h>

#include "base/mem.h"
#include "net/http.h"

struct semel_conn;
struct semel_conn_env;

struct semel_http_exchange {
    struct semel_http_request req;
    struct semel_arena arena; /* of the head and what was decoded from it */
    struct semel_buf body;    /* of the request */
    struct semel_buf reply;   /* the reply's body */
    struct semel_buf lines;   /* the handler's headers of the reply */
    const char *type;         /* of the reply's body */
    int status;               /* 0: not answered yet */
    _Atomic bool hung_up;
    struct semel_conn *conn;
    struct semel_conn_env *env; /* of the listener; not to be followed once the server is gone */
    size_t held;                /* bytes of the body that the listener's budget counts */
    int64_t started_us;         /* the end of the head */
    void (*back)(void *ctx, struct semel_http_exchange *x);
    void *back_ctx;
    void (*gone)(void *ctx); /* the last word of an exchange to back_ctx; or NULL */
    struct semel_http_exchange *next;
};

/* NULL: no memory. Its arena holds up to arena_max bytes. */
struct semel_http_exchange *semel__exchange_new(size_t arena_max, size_t reply_max);
void semel__exchange_free(struct semel_http_exchange *x);

const char *semel__http_reason(int status); /* "Not Found"; "Status" for one that has no name here */
/* A problem as JSON: type, title, status, detail. The detail is made well-formed. */
void semel__problem_put(struct semel_buf *buf, int status, struct semel_str detail);
#define SEMEL_PROBLEM_TYPE "application/problem+json"

bool semel__http_name_eq(struct semel_str a, const char *z); /* ASCII letters in either case */

#endif
