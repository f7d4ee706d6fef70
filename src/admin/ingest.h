/* SPDX-License-Identifier: MIT
 *
 * ingest.h: the HTTP endpoint of a `listen` route, as the server and the tests see it. See ingest.c.
 */
#ifndef SEMEL_ADMIN_INGEST_H
#define SEMEL_ADMIN_INGEST_H

#include "admin/serve_private.h"
#include "base/signature.h"

#define SEMEL_INGEST_PARTS 16384                     /* messages of one route at a time: waiting and polled */
#define SEMEL_INGEST_BYTES ((size_t)256 << 20)       /* of waiting messages */
#define SEMEL_INGEST_BATCH 1000                      /* messages of one request */
#define SEMEL_INGEST_ATTRIBUTES 100                  /* of one event */
#define SEMEL_INGEST_FULL_US (INT64_C(60) * 1000000) /* the longest pause of a route that is full */

/* The lock protects everything that changes. */
struct semel_ingest {
    struct semel_serve *serve;
    const struct semel_route *route;
    struct semel_ingest *next;
    bool ordered;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int fd; /* an eventfd */
    bool readable;
    size_t n_serving;           /* workers; 0: nobody polls */
    struct semel_breaker pause; /* the route's circuit breaker, as it was reported last */
    int64_t full_until_us;      /* the route is full until then, by the real clock */
    struct ingest_request *first, *last;
    struct ingest_part *queue, **queue_end;
    struct ingest_part **slots; /* by tag; NULL: free */
    uint32_t *rounds;           /* how many times the slot was used */
    size_t *unused, n_unused;
    size_t bytes, waiting; /* of requests that have their exchange; messages without an end */
    struct semel_series *gauge, *polled;
    struct semel_seldom strangers; /* requests without a good signature, in the log */
    /* A lock of its own: pool threads check large bodies side by side. */
    pthread_rwlock_t key_lock;
    struct semel_signature *signature; /* NULL: requests are not signed */
};

#endif
