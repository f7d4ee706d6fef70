/* SPDX-License-Identifier: MIT
 *
 * ingest.h: the inside of a `listen` route's door, for ingest*.c.
 *
 *   ingest.c       the door and the broker: requests in, deliveries out, ends back
 *   ingest_read.c  from a request to messages: plain, CloudEvents in binary, structured and batched form
 *   ingest_tell.c  from what came of them to the answer
 *
 * A request has one part a message. A part waits in the queue, flies (it was polled) and is done. The request is
 * answered when its last part is done, or after the time that a request may wait; parts that fly then come back to
 * nobody.
 *
 * Invariants: strings of parts are borrowed from the exchange or live in the request's arena, and are read only as long
 * as the request has its exchange; a tag names one part in flight and is never used again.
 */
#ifndef SEMEL_ADMIN_INGEST_H
#define SEMEL_ADMIN_INGEST_H

#include "admin/serve_private.h"
#include "core/inbox.h"

#define SEMEL_INGEST_PARTS 16384               /* messages of one route at a time: waiting and in flight */
#define SEMEL_INGEST_BYTES ((size_t)256 << 20) /* of those that wait */
#define SEMEL_INGEST_BATCH 1000                /* messages of one request */
#define SEMEL_INGEST_ATTRIBUTES 100            /* of one event */

enum ingest_state { INGEST_WAITS, INGEST_FLIES, INGEST_DONE };

struct ingest_part {
    struct ingest_request *request;
    struct ingest_part *next; /* in the queue */
    enum ingest_state state;
    uint64_t tag;
    struct semel_pair *headers;
    size_t n_headers;
    struct semel_pair property; /* message_id, where an Idempotency-Key came */
    bool keyed;
    struct semel_str payload;
    bool later;                   /* it was given back */
    struct semel_settled settled; /* when done and not later; the outcome lives in the request's arena */
    int delay_ms;                 /* when later */
};

struct ingest_request {
    struct ingest_request *prev, *next; /* of those that have their exchange, oldest first */
    struct semel_http_exchange *x;      /* NULL: answered */
    struct semel_arena arena;
    struct ingest_part *parts;
    size_t n, open; /* open: parts that are not done */
    bool batch;
    int64_t deadline_ms;
    size_t bytes;
};

struct semel_ingest {
    struct semel_serve *serve;
    const struct semel_route *route;
    struct semel_ingest *next;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct semel_broker *broker; /* NULL: nobody takes anything */
    struct semel_breaker pause;  /* the route's, as it was told last */
    struct ingest_request *first, *last;
    struct ingest_part *queue, **queue_end;
    bool woken;                 /* a poll that waits returns */
    struct ingest_part **slots; /* by tag; NULL: free */
    uint32_t *rounds;           /* how many times the slot was used */
    size_t *unused, n_unused;
    size_t bytes, waiting; /* of requests that have their exchange; messages without an end */
    struct semel_series *gauge;
};

struct semel_ingest *semel__ingest_next(const struct semel_ingest *ingest);

/* 0, or the status of a refusal, which err explains. */
int semel__ingest_read(struct ingest_request *request, size_t body_max, struct semel_error *err);
/* Answers, and forgets the exchange. What is not done is told as `later`. */
void semel__ingest_answer(struct semel_ingest *ingest, struct ingest_request *request);

#endif
