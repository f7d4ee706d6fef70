/* SPDX-License-Identifier: MIT
 *
 * ingest.c: the door of a `listen` route, and the broker that the daemon polls.
 *
 * Invariants: a request that does not fit whole is refused whole; whatever was polled keeps its slot until its end is
 * told, also when nobody waits for it any more; no answer says "accepted" before ack, which comes after the commit;
 * while the route pauses nobody waits, but for one request when something is needed to probe with.
 */
#include "admin/ingest.h"

#include "base/error.h"

#define FULL_AFTER_S 1
#define SLOW_AFTER_S 5

struct ingest_broker {
    struct semel_broker base;
    struct semel_ingest *ingest;
};

/* ---- the door -------------------------------------------------------------------------------------- */

struct semel_ingest *semel__ingest_new(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_ingest *ingest = semel__calloc(1, sizeof(*ingest));
    if (ingest == NULL)
        return NULL;
    ingest->slots = semel__calloc(SEMEL_INGEST_PARTS, sizeof(struct ingest_part *));
    ingest->rounds = semel__calloc(SEMEL_INGEST_PARTS, sizeof(*ingest->rounds));
    ingest->unused = semel__calloc(SEMEL_INGEST_PARTS, sizeof(*ingest->unused));
    if (ingest->slots == NULL || ingest->rounds == NULL || ingest->unused == NULL ||
        !semel__cond_init(&ingest->changed)) {
        semel__free(ingest->slots);
        semel__free(ingest->rounds);
        semel__free(ingest->unused);
        semel__free(ingest);
        return NULL;
    }
    pthread_mutex_init(&ingest->lock, NULL);
    for (size_t i = 0; i < SEMEL_INGEST_PARTS; i++)
        ingest->unused[i] = SEMEL_INGEST_PARTS - 1 - i;
    ingest->n_unused = SEMEL_INGEST_PARTS;
    ingest->serve = serve;
    ingest->route = route;
    ingest->queue_end = &ingest->queue;
    ingest->gauge = semel__metric_at(semel__stats_family(serve->stats, SEMEL_FAMILY_WAITING), &route->name);
    ingest->next = serve->ingests;
    serve->ingests = ingest;
    return ingest;
}

struct semel_ingest *semel__ingest_next(const struct semel_ingest *ingest)
{
    return ingest->next;
}

static void request_free(struct ingest_request *request)
{
    semel__arena_done(&request->arena);
    semel__free(request);
}

static void unlink_request(struct semel_ingest *ingest, struct ingest_request *request)
{
    *(request->prev != NULL ? &request->prev->next : &ingest->first) = request->next;
    *(request->next != NULL ? &request->next->prev : &ingest->last) = request->prev;
    ingest->bytes -= request->bytes;
}

static void part_done(struct semel_ingest *ingest, struct ingest_part *part)
{
    part->state = INGEST_DONE;
    part->request->open--;
    ingest->waiting--;
    semel__gauge_set(ingest->gauge, (double)ingest->waiting);
}

/* Answers what has its exchange, and frees the request when nothing of it flies. */
static void close_request(struct semel_ingest *ingest, struct ingest_request *request)
{
    if (request->x != NULL) {
        unlink_request(ingest, request);
        semel__ingest_answer(ingest, request);
    }
    if (request->open == 0)
        request_free(request);
}

/* Takes parts of the request that were not polled out of the queue, where they stand together: they will not happen. */
static void drop_waiting(struct semel_ingest *ingest, struct ingest_request *request)
{
    struct ingest_part **at = &ingest->queue;
    size_t left = 0;
    for (size_t i = 0; i < request->n; i++)
        left += request->parts[i].state == INGEST_WAITS;
    while (left > 0 && (*at)->request != request)
        at = &(*at)->next;
    for (; left > 0; left--) {
        struct ingest_part *part = *at;
        *at = part->next;
        part->later = true;
        part->delay_ms = SLOW_AFTER_S * 1000;
        part_done(ingest, part);
    }
    if (*at == NULL)
        ingest->queue_end = at;
}

static void give_up(struct semel_ingest *ingest, struct ingest_request *request)
{
    drop_waiting(ingest, request);
    close_request(ingest, request);
}

void semel__ingest_expire(struct semel_ingest *ingest, int64_t now_ms)
{
    pthread_mutex_lock(&ingest->lock);
    while (ingest->first != NULL && ingest->first->deadline_ms <= now_ms)
        give_up(ingest, ingest->first);
    pthread_mutex_unlock(&ingest->lock);
}

/* Without its broker: everything is answered, and what flew is known to nobody. */
static void empty(struct semel_ingest *ingest)
{
    while (ingest->first != NULL)
        give_up(ingest, ingest->first);
    for (size_t i = 0; i < SEMEL_INGEST_PARTS; i++) {
        struct ingest_part *part = ingest->slots[i];
        if (part == NULL)
            continue;
        ingest->slots[i] = NULL;
        ingest->unused[ingest->n_unused++] = i;
        part_done(ingest, part);
        if (part->request->open == 0)
            request_free(part->request);
    }
}

void semel__ingest_free(struct semel_ingest *ingest)
{
    pthread_mutex_lock(&ingest->lock);
    empty(ingest);
    pthread_mutex_unlock(&ingest->lock);
    pthread_cond_destroy(&ingest->changed);
    pthread_mutex_destroy(&ingest->lock);
    semel__free(ingest->slots);
    semel__free(ingest->rounds);
    semel__free(ingest->unused);
    semel__free(ingest);
}

/* ---- requests in ----------------------------------------------------------------------------------- */

/* 0: come in. Otherwise in how many seconds to come again. */
static int paused_s(const struct semel_ingest *ingest)
{
    if (ingest->pause.state == SEMEL_BREAKER_CLOSED)
        return 0;
    int64_t now_us = semel__now(&semel__clock_real), until_us = semel__breaker_until(&ingest->pause, now_us);
    if (until_us == SEMEL_NONE)
        return ingest->waiting > 0 ? FULL_AFTER_S : 0;
    return ingest->pause.state == SEMEL_BREAKER_PROBING ? FULL_AFTER_S : (int)((until_us - now_us) / 1000000) + 1;
}

/* NULL: it waits now. Otherwise why not. *ret_paused_s: as of paused_s. */
static const char *enter(struct semel_ingest *ingest, struct ingest_request *request, int *ret_paused_s)
{
    *ret_paused_s = ingest->broker != NULL ? paused_s(ingest) : 0;
    if (*ret_paused_s > 0)
        return "the route pauses because its handler fails; send it again later";
    if (ingest->broker == NULL)
        return "the route is not running at the moment; send it again later";
    if (ingest->waiting + request->n > SEMEL_INGEST_PARTS || ingest->bytes + request->bytes > SEMEL_INGEST_BYTES)
        return "too many messages wait for this route; send it again later";
    request->prev = ingest->last;
    *(ingest->last != NULL ? &ingest->last->next : &ingest->first) = request;
    ingest->last = request;
    for (size_t i = 0; i < request->n; i++) {
        *ingest->queue_end = &request->parts[i];
        ingest->queue_end = &request->parts[i].next;
    }
    request->open = request->n;
    ingest->bytes += request->bytes;
    ingest->waiting += request->n;
    semel__gauge_set(ingest->gauge, (double)ingest->waiting);
    pthread_cond_signal(&ingest->changed);
    return NULL;
}

static void refuse(struct semel_ingest *ingest, struct ingest_request *request, int after_s, const char *why)
{
    semel__door_count(ingest->serve, SEMEL_FAMILY_INGEST, ingest->route->name, "later", NULL,
                      request->n > 0 ? request->n : 1);
    semel__door_later(request->x, after_s, why);
    request_free(request);
}

/* A batch whose every message is told to come again. */
static void put_off(struct semel_ingest *ingest, struct ingest_request *request, int after_s)
{
    for (size_t i = 0; i < request->n; i++) {
        request->parts[i].later = true;
        request->parts[i].delay_ms = after_s * 1000;
    }
    semel__ingest_answer(ingest, request);
    request_free(request);
}

void semel__ingest_handle(void *ctx, struct semel_http_exchange *x)
{
    struct semel_ingest *ingest = ctx;
    struct semel_error err;
    struct ingest_request *request = semel__calloc(1, sizeof(*request));
    if (request == NULL) {
        semel__door_later(x, FULL_AFTER_S, "out of memory");
        return;
    }
    request->x = x;
    request->bytes = sizeof(*request) + semel__http_request(x)->body.n;
    request->deadline_ms = semel__door_now_ms() + ingest->serve->answer_ms;
    semel__arena_init(&request->arena, (size_t)1 << 30);
    int refused = semel__ingest_read(request, (size_t)semel__route_listens(ingest->route)->body_max, &err);
    if (refused == 503) {
        refuse(ingest, request, FULL_AFTER_S, err.text);
        return;
    }
    if (refused != 0) {
        semel__door_count(ingest->serve, SEMEL_FAMILY_INGEST, ingest->route->name, "refused", NULL, 1);
        semel__http_refuse(x, refused, "%s", err.text);
        request_free(request);
        return;
    }
    if (request->n == 0) { /* an empty batch */
        request->open = 0;
        semel__ingest_answer(ingest, request);
        request_free(request);
        return;
    }
    pthread_mutex_lock(&ingest->lock);
    int after_s;
    const char *why = enter(ingest, request, &after_s);
    pthread_mutex_unlock(&ingest->lock);
    if (after_s > 0 && request->batch)
        put_off(ingest, request, after_s);
    else if (why != NULL)
        refuse(ingest, request, after_s > 0 ? after_s : FULL_AFTER_S, why);
}

/* ---- deliveries out -------------------------------------------------------------------------------- */

/* A CloudEvent says where it comes from, and its id is unique there only. */
static struct semel_str source_of(const struct semel_ingest *ingest, const struct ingest_part *part)
{
    for (size_t i = 0; i < part->n_headers; i++)
        if (semel__str_eqz(part->headers[i].name, "ce_source") && part->headers[i].value.n > 0)
            return part->headers[i].value;
    return semel__route_listens(ingest->route)->source;
}

static bool deliver(struct semel_ingest *ingest, const struct ingest_part *part, struct semel_arena *arena,
                    struct semel_delivery *ret)
{
    *ret = (struct semel_delivery){.n_headers = part->n_headers, .n_properties = part->keyed ? 1 : 0};
    return semel__arena_copy(arena, source_of(ingest, part), &ret->source) &&
           semel__arena_copy(arena, part->payload, &ret->payload) &&
           semel__broker_copy_pairs(arena, part->headers, part->n_headers, &ret->headers) &&
           semel__broker_copy_pairs(arena, &part->property, part->keyed ? 1 : 0, &ret->properties);
}

static void take_off(struct semel_ingest *ingest, struct ingest_part *part)
{
    size_t slot = ingest->unused[--ingest->n_unused];
    part->state = INGEST_FLIES;
    part->tag = (uint64_t)++ingest->rounds[slot] << 32 | slot;
    ingest->slots[slot] = part;
}

static void pop(struct semel_ingest *ingest)
{
    ingest->queue = ingest->queue->next;
    if (ingest->queue == NULL)
        ingest->queue_end = &ingest->queue;
}

static semel_status ingest_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                                struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct semel_ingest *ingest = ((struct ingest_broker *)broker)->ingest;
    int64_t until_ms = semel__door_now_ms() + wait_ms;
    size_t n = 0;
    max = max < SEMEL_BATCH_MAX ? max : SEMEL_BATCH_MAX;
    *ret_n = 0;
    struct semel_delivery *deliveries = semel__arena_alloc(arena, max, sizeof(*deliveries));
    if (deliveries == NULL)
        return semel__fail_memory(err);
    pthread_mutex_lock(&ingest->lock);
    while (ingest->queue == NULL && !ingest->woken && semel__door_now_ms() < until_ms)
        (void)semel__cond_wait(&ingest->changed, &ingest->lock, until_ms * 1000);
    ingest->woken = false;
    bool memory = true;
    while (n < max && ingest->queue != NULL && memory) {
        struct ingest_part *part = ingest->queue;
        memory = deliver(ingest, part, arena, &deliveries[n]);
        if (!memory && n == 0)
            give_up(ingest, part->request); /* it would fail the next time as well */
        if (!memory)
            break;
        pop(ingest);
        take_off(ingest, part);
        deliveries[n++].tag = part->tag;
    }
    pthread_mutex_unlock(&ingest->lock);
    *ret_deliveries = deliveries;
    *ret_n = n;
    return memory || n > 0 ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- ends back ------------------------------------------------------------------------------------- */

static struct ingest_part *part_of(struct semel_ingest *ingest, uint64_t tag)
{
    size_t slot = (size_t)(tag & UINT32_MAX);
    struct ingest_part *part = slot < SEMEL_INGEST_PARTS ? ingest->slots[slot] : NULL;
    return part != NULL && part->tag == tag ? part : NULL;
}

/* What came of it goes with it to who sent it. */
static void end_part(struct semel_ingest *ingest, struct ingest_part *part, const struct semel_reply *reply)
{
    size_t slot = (size_t)(part->tag & UINT32_MAX);
    ingest->slots[slot] = NULL;
    ingest->unused[ingest->n_unused++] = slot;
    part->later = !semel__reply_acks(reply);
    part->delay_ms = reply->delay_ms;
    if (part->request->x != NULL && reply->settled != NULL) {
        part->settled = *reply->settled;
        if (!semel__arena_copy(&part->request->arena, reply->settled->outcome, &part->settled.outcome))
            part->settled.outcome = (struct semel_str){NULL, 0};
    }
    part_done(ingest, part);
    if (part->request->open == 0)
        close_request(ingest, part->request);
}

static semel_status ingest_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                  struct semel_error *err)
{
    struct semel_ingest *ingest = ((struct ingest_broker *)broker)->ingest;
    size_t n_fenced = 0;
    pthread_mutex_lock(&ingest->lock);
    for (size_t i = 0; i < n; i++) {
        struct ingest_part *part = part_of(ingest, replies[i].tag);
        n_fenced += part == NULL;
        if (part != NULL)
            end_part(ingest, part, &replies[i]);
    }
    pthread_mutex_unlock(&ingest->lock);
    return semel__broker_fenced("listen", n_fenced, n, err);
}

/* ---- the broker ------------------------------------------------------------------------------------ */

static void ingest_wake(struct semel_broker *broker)
{
    struct semel_ingest *ingest = ((struct ingest_broker *)broker)->ingest;
    pthread_mutex_lock(&ingest->lock);
    ingest->woken = true;
    pthread_cond_signal(&ingest->changed);
    pthread_mutex_unlock(&ingest->lock);
}

static semel_status ingest_reopen(struct semel_broker *broker, struct semel_error *err)
{
    struct semel_ingest *ingest = ((struct ingest_broker *)broker)->ingest;
    const struct semel_reply again = {0};
    (void)err;
    /* Nothing is connected. Who waits for what nobody will answer any more is told to send it again. */
    pthread_mutex_lock(&ingest->lock);
    for (size_t slot = 0; slot < SEMEL_INGEST_PARTS; slot++)
        if (ingest->slots[slot] != NULL)
            end_part(ingest, ingest->slots[slot], &again);
    pthread_mutex_unlock(&ingest->lock);
    return SEMEL_OK;
}

static void ingest_close(struct semel_broker *broker)
{
    struct semel_ingest *ingest = ((struct ingest_broker *)broker)->ingest;
    pthread_mutex_lock(&ingest->lock);
    ingest->broker = NULL;
    empty(ingest);
    pthread_mutex_unlock(&ingest->lock);
}

static const struct semel_broker_ops ingest_ops = {
    .name = "listen",
    .capabilities = SEMEL_BROKER_SOURCE,
    .close = ingest_close,
    .reopen = ingest_reopen,
    .poll = ingest_poll,
    .answer = ingest_answer,
    .wake = ingest_wake,
};

static struct semel_ingest *ingest_of(const struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_ingest *ingest = serve->ingests;
    while (ingest != NULL && !semel__str_eq(ingest->route->name, route->name))
        ingest = ingest->next;
    return ingest;
}

void semel__serve_paused(struct semel_serve *serve, const struct semel_route *route, const struct semel_breaker *now)
{
    struct semel_ingest *ingest = ingest_of(serve, route);
    if (ingest == NULL)
        return;
    pthread_mutex_lock(&ingest->lock);
    ingest->pause = *now;
    pthread_mutex_unlock(&ingest->lock);
}

struct semel_broker *semel__serve_ingest(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_ingest *ingest = ingest_of(serve, route);
    struct ingest_broker *broker = ingest != NULL ? semel__calloc(1, sizeof(*broker)) : NULL;
    if (broker == NULL)
        return NULL;
    broker->base.ops = &ingest_ops;
    broker->ingest = ingest;
    pthread_mutex_lock(&ingest->lock);
    ingest->broker = &broker->base;
    pthread_mutex_unlock(&ingest->lock);
    return &broker->base;
}
