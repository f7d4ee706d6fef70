/* SPDX-License-Identifier: MIT
 *
 * mem_handle.c: the driver of the in-memory broker: open, poll, ack, later, publish.
 *
 * What it is: one handle's side of a queue (mem.c). What it is not: able to wait.
 *
 * Invariants: an operation allocates before it changes anything; the hook is called before an operation looks at
 * anything; tags are handed out in ascending order, so that a handle's outstanding deliveries are sorted by tag.
 */
#include "broker/mem_private.h"

#include <assert.h>

static struct mem_broker *self(struct semel_broker *broker)
{
    return (struct mem_broker *)broker;
}

void semel__broker_mem_set_hook(struct semel_broker *broker, semel_queue_hook hook, void *ctx)
{
    self(broker)->hook = hook;
    self(broker)->hook_ctx = ctx;
}

struct semel_mem_queue *semel__mem_queue_of(struct semel_broker *broker)
{
    return self(broker)->queue;
}

static void lose_connection(struct mem_broker *broker)
{
    semel__mem_queue_leave(broker);
    broker->dead = true;
}

static semel_status enter(struct mem_broker *broker, const char *op, enum semel_queue_fault *ret_fault,
                          struct semel_error *err)
{
    *ret_fault = broker->hook != NULL ? broker->hook(broker->hook_ctx, op) : SEMEL_QUEUE_GO;
    if (*ret_fault == SEMEL_QUEUE_CLOSE)
        lose_connection(broker);
    if (broker->dead)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "mem: the connection is closed");
    if (*ret_fault == SEMEL_QUEUE_RETRY)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "mem: a fault was asked for");
    return SEMEL_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static void attach(struct mem_broker *broker, struct semel_mem_queue *queue)
{
    broker->queue = queue;
    queue->handles++;
    semel__mem_queue_join(broker);
}

semel_status semel__broker_mem_open(struct semel_broker **ret, struct semel_mem_queue *queue, struct semel_error *err)
{
    struct mem_broker *broker = semel__calloc(1, sizeof *broker);

    if (broker == NULL)
        return semel__fail_memory(err);
    broker->base.ops = queue->mode == SEMEL_QUEUE_ORDERED ? &semel__broker_mem : &semel__broker_mem_unordered;
    attach(broker, queue);
    *ret = &broker->base;
    return SEMEL_OK;
}

static semel_status mem_open(struct semel_broker *broker, struct semel_str location, struct semel_error *err)
{
    const enum semel_queue_mode mode = (broker->ops->capabilities & SEMEL_BROKER_ORDERED) != 0 ? SEMEL_QUEUE_ORDERED
                                                                                               : SEMEL_QUEUE_UNORDERED;
    struct semel_mem_queue *queue;

    if (location.n > 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "mem: has no location; the URL must be \"%s:\"",
                           broker->ops->name);
    if (semel__mem_queue_new(&queue, mode, 1, NULL) != SEMEL_OK)
        return semel__fail_memory(err);
    self(broker)->owns_queue = true;
    attach(self(broker), queue);
    return SEMEL_OK;
}

static void mem_close(struct semel_broker *broker)
{
    struct semel_mem_queue *queue = self(broker)->queue;

    semel__mem_queue_leave(self(broker));
    semel__free(self(broker)->outs);
    queue->handles--;
    if (self(broker)->owns_queue)
        semel__mem_queue_free(queue);
}

static semel_status mem_reopen(struct semel_broker *broker, struct semel_error *err)
{
    enum semel_queue_fault fault;
    semel_status status;

    self(broker)->dead = false;
    status = enter(self(broker), "reopen", &fault, err);
    lose_connection(self(broker));
    if (status != SEMEL_OK)
        return status;
    self(broker)->dead = false;
    semel__mem_queue_join(self(broker));
    return SEMEL_OK;
}

/* ---- poll --------------------------------------------------------------------------------------------- */

struct picked {
    struct semel_arena *arena;
    struct semel_delivery *deliveries;
    struct mem_out *outs; /* in the arena until all of them are sure */
    size_t n, max;
    bool full; /* the arena has no room for another */
};

static bool copy_pairs(struct semel_arena *arena, const struct semel_pair *pairs, size_t n,
                       const struct semel_pair **ret)
{
    struct semel_pair *copies = semel__arena_alloc(arena, n, sizeof *copies);

    if (copies == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!semel__arena_copy(arena, pairs[i].name, &copies[i].name) ||
            !semel__arena_copy(arena, pairs[i].value, &copies[i].value))
            return false;
    *ret = copies;
    return true;
}

static void pick(struct picked *picked, const struct mem_lane *lane, size_t number, size_t at)
{
    const struct mem_message *msg = lane->entries[at].msg;
    struct semel_delivery *delivery = &picked->deliveries[picked->n];

    *delivery = (struct semel_delivery){.n_headers = msg->n_headers, .n_properties = msg->n_properties};
    picked->full = !semel__arena_copy(picked->arena, msg->source, &delivery->source) ||
                   !semel__arena_copy(picked->arena, msg->position, &delivery->position) ||
                   !semel__arena_copy(picked->arena, msg->payload, &delivery->payload) ||
                   !copy_pairs(picked->arena, msg->headers, msg->n_headers, &delivery->headers) ||
                   !copy_pairs(picked->arena, msg->properties, msg->n_properties, &delivery->properties);
    if (!picked->full)
        picked->outs[picked->n++] = (struct mem_out){.lane = number, .at = at};
}

static size_t pick_ordered(struct mem_broker *broker, struct picked *picked, int64_t now_us, bool count_only)
{
    const struct semel_mem_queue *queue = broker->queue;
    size_t available = 0;

    for (size_t i = 0; i < queue->n_lanes; i++) {
        const size_t number = (broker->turn + i) % queue->n_lanes;
        const struct mem_lane *lane = &queue->lanes[number];
        if (lane->owner != broker || lane->not_before_us > now_us)
            continue;
        available += lane->n - lane->next;
        for (size_t at = lane->next; !count_only && at < lane->n && picked->n < picked->max && !picked->full; at++)
            pick(picked, lane, number, at);
    }
    return available;
}

static size_t pick_unordered(struct mem_broker *broker, struct picked *picked, int64_t now_us, bool count_only)
{
    const struct mem_lane *lane = &broker->queue->lanes[0];
    size_t available = 0;

    for (size_t at = lane->floor; at < lane->n && available < picked->max && !picked->full; at++) {
        const struct mem_entry *entry = &lane->entries[at];
        if (entry->acked || entry->taken_by != NULL || entry->not_before_us > now_us)
            continue;
        available++;
        if (!count_only)
            pick(picked, lane, 0, at);
    }
    return available;
}

/* From here on the deliveries are made: nothing can fail any more. */
static void hand_out(struct mem_broker *broker, struct picked *picked)
{
    struct semel_mem_queue *queue = broker->queue;

    for (size_t i = 0; i < picked->n; i++) {
        struct mem_out *out = &picked->outs[i];
        struct mem_lane *lane = &queue->lanes[out->lane];
        out->tag = picked->deliveries[i].tag = ++queue->last_tag;
        picked->deliveries[i].delivery = ++lane->entries[out->at].msg->deliveries;
        if (queue->mode == SEMEL_QUEUE_ORDERED)
            lane->next = out->at + 1;
        else
            lane->entries[out->at].taken_by = broker;
        broker->outs[broker->n_outs++] = *out;
    }
    broker->turn = (broker->turn + 1) % queue->n_lanes;
}

static bool reserve_outs(struct mem_broker *broker, size_t more)
{
    size_t cap = broker->cap_outs > 0 ? broker->cap_outs : 16;
    struct mem_out *outs;

    while (cap - broker->n_outs < more)
        cap *= 2;
    if (cap == broker->cap_outs)
        return true;
    outs = semel__realloc(broker->outs, cap, sizeof *outs);
    if (outs == NULL)
        return false;
    broker->outs = outs;
    broker->cap_outs = cap;
    return true;
}

static semel_status mem_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                             struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct picked picked = {.arena = arena, .max = max};
    enum semel_queue_fault fault;
    semel_status status = enter(self(broker), "poll", &fault, err);
    size_t (*pick_all)(struct mem_broker *, struct picked *, int64_t,
                       bool) = self(broker)->queue->mode == SEMEL_QUEUE_ORDERED ? pick_ordered : pick_unordered;
    int64_t now_us;
    size_t available;

    (void)wait_ms;
    if (status != SEMEL_OK)
        return status;
    semel__mem_queue_join(self(broker)); /* again, if it was expelled */
    now_us = semel__now(self(broker)->queue->clock);
    available = pick_all(self(broker), &picked, now_us, true);
    picked.max = available < max ? available : max;
    picked.deliveries = semel__arena_alloc(arena, picked.max, sizeof *picked.deliveries);
    picked.outs = semel__arena_alloc(arena, picked.max, sizeof *picked.outs);
    if (picked.deliveries == NULL || picked.outs == NULL || !reserve_outs(self(broker), picked.max))
        return semel__fail_memory(err);
    pick_all(self(broker), &picked, now_us, false);
    if (picked.full && picked.n == 0)
        return semel__fail_memory(err);
    hand_out(self(broker), &picked);
    *ret_deliveries = picked.deliveries;
    *ret_n = picked.n;
    return SEMEL_OK;
}

/* ---- ack and later ------------------------------------------------------------------------------------ */

static struct mem_out *find_out(struct mem_broker *broker, uint64_t tag)
{
    size_t low = 0, high = broker->n_outs;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (broker->outs[mid].tag < tag)
            low = mid + 1;
        else
            high = mid;
    }
    return low < broker->n_outs && broker->outs[low].tag == tag ? &broker->outs[low] : NULL;
}

/* Marks the outstanding deliveries that the tags name. FENCED when one of them is no longer there. */
static semel_status choose(struct mem_broker *broker, const uint64_t *tags, size_t n, struct semel_error *err)
{
    size_t fenced = 0;

    for (size_t i = 0; i < n; i++) {
        struct mem_out *out = find_out(broker, tags[i]);
        if (out != NULL)
            out->chosen = true;
        else
            fenced++;
    }
    if (fenced > 0)
        return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_NONE, "mem: %zu of %zu deliveries are no longer ours", fenced,
                           n);
    return SEMEL_OK;
}

static void forget_chosen(struct mem_broker *broker)
{
    size_t n = 0;

    for (size_t i = 0; i < broker->n_outs; i++)
        if (!broker->outs[i].chosen)
            broker->outs[n++] = broker->outs[i];
    broker->n_outs = n;
}

static void raise_floors(struct mem_broker *broker)
{
    struct semel_mem_queue *queue = broker->queue;

    for (size_t i = 0; i < queue->n_lanes; i++) {
        struct mem_lane *lane = &queue->lanes[i];
        if (queue->mode == SEMEL_QUEUE_ORDERED && lane->owner != broker)
            continue;
        while (lane->floor < lane->n && lane->entries[lane->floor].acked)
            lane->floor++;
    }
}

static semel_status mem_ack(struct semel_broker *broker, const uint64_t *tags, size_t n, struct semel_error *err)
{
    struct semel_mem_queue *queue = self(broker)->queue;
    enum semel_queue_fault fault;
    semel_status status = enter(self(broker), "ack", &fault, err);

    if (status != SEMEL_OK)
        return status;
    if (fault == SEMEL_QUEUE_LOST && queue->mode == SEMEL_QUEUE_UNORDERED)
        return SEMEL_OK; /* still taken: it comes again when the connection ends */
    status = choose(self(broker), tags, n, err);
    for (size_t i = 0; i < self(broker)->n_outs; i++) {
        const struct mem_out *out = &self(broker)->outs[i];
        if (out->chosen) {
            queue->lanes[out->lane].entries[out->at].acked = true;
            queue->lanes[out->lane].entries[out->at].taken_by = NULL;
        }
    }
    forget_chosen(self(broker));
    if (fault == SEMEL_QUEUE_LOST)
        return SEMEL_OK; /* the handle knows it, the broker's floor does not: the next one that arrives may tell it */
    raise_floors(self(broker));
    return status;
}

static void give_back(struct mem_broker *broker, const struct mem_out *out, int64_t not_before_us)
{
    struct mem_lane *lane = &broker->queue->lanes[out->lane];

    if (broker->queue->mode == SEMEL_QUEUE_UNORDERED) {
        lane->entries[out->at].taken_by = NULL;
        lane->entries[out->at].not_before_us = not_before_us;
        return;
    }
    for (size_t at = out->at; at < lane->next; at++)
        lane->entries[at].acked = false;
    if (out->at < lane->next)
        lane->next = out->at;
    if (not_before_us > lane->not_before_us)
        lane->not_before_us = not_before_us;
}

static semel_status mem_later(struct semel_broker *broker, const uint64_t *tags, size_t n, int delay_ms,
                              struct semel_error *err)
{
    struct semel_mem_queue *queue = self(broker)->queue;
    enum semel_queue_fault fault;
    semel_status status = enter(self(broker), "later", &fault, err);
    int64_t not_before_us;

    if (status != SEMEL_OK)
        return status;
    not_before_us = semel__time_add(semel__now(queue->clock), (int64_t)delay_ms * 1000);
    status = choose(self(broker), tags, n, err);
    for (size_t i = 0; i < self(broker)->n_outs; i++)
        if (self(broker)->outs[i].chosen)
            give_back(self(broker), &self(broker)->outs[i], not_before_us);
    for (size_t i = 0; queue->mode == SEMEL_QUEUE_ORDERED && i < self(broker)->n_outs; i++) {
        struct mem_out *out = &self(broker)->outs[i];
        out->chosen = out->at >= queue->lanes[out->lane].next; /* all that comes again has a new tag */
    }
    forget_chosen(self(broker));
    return status;
}

/* ---- publish ------------------------------------------------------------------------------------------ */

static bool has_id(const struct semel_publish *item)
{
    for (size_t i = 0; i < item->n_headers; i++)
        if (semel__str_eqz(item->headers[i].name, "id"))
            return true;
    return !semel__str_given(item->id);
}

static semel_status push_to(struct semel_mem_queue *target, const struct semel_publish *item, struct semel_error *err)
{
    struct semel_mem_push push = {.source = item->destination, .key = item->key, .payload = item->payload};
    struct semel_pair *headers = semel__calloc(item->n_headers + 1, sizeof *headers);
    semel_status status;

    if (headers == NULL)
        return semel__fail_memory(err);
    for (; push.n_headers < item->n_headers; push.n_headers++)
        headers[push.n_headers] = item->headers[push.n_headers];
    if (!has_id(item))
        headers[push.n_headers++] = (struct semel_pair){SEMEL_STR("id"), item->id};
    push.headers = headers;
    status = semel__mem_queue_push(target, &push, 1, err);
    semel__free(headers);
    return status;
}

static semel_status record(struct semel_mem_queue *queue, const struct semel_publish *item, struct semel_error *err)
{
    const struct semel_mem_push push = {.source = item->destination,
                                        .key = item->key,
                                        .position = item->id,
                                        .payload = item->payload,
                                        .headers = item->headers,
                                        .n_headers = item->n_headers};
    struct mem_message *msg;

    if (queue->n_published == queue->cap_published) {
        size_t cap = queue->cap_published > 0 ? queue->cap_published * 2 : 16;
        struct semel_mem_published *published = semel__realloc(queue->published, cap, sizeof *published);
        if (published == NULL)
            return semel__fail_memory(err);
        queue->published = published;
        queue->cap_published = cap;
    }
    msg = semel__mem_message_new(&push);
    if (msg == NULL)
        return semel__fail_memory(err);
    queue->published[queue->n_published++] = (struct semel_mem_published){msg,           msg->source,  msg->key,
                                                                          msg->position, msg->payload, msg->headers,
                                                                          msg->n_headers};
    return SEMEL_OK;
}

static semel_status mem_publish(struct semel_broker *broker, struct semel_publish *items, size_t n,
                                struct semel_error *err)
{
    struct semel_mem_queue *queue = self(broker)->queue;
    enum semel_queue_fault fault;
    semel_status status = enter(self(broker), "publish", &fault, err);

    for (size_t i = 0; i < n; i++) {
        struct semel_mem_queue *target = semel__mem_queue_target(queue, items[i].destination);
        if (status != SEMEL_OK)
            items[i].status = SEMEL_RETRY;
        else
            items[i].status = target != NULL ? push_to(target, &items[i], NULL) : record(queue, &items[i], NULL);
        if (fault == SEMEL_QUEUE_LOST && items[i].status == SEMEL_OK)
            items[i].status = SEMEL_UNKNOWN;
    }
    return status;
}

#define MEM_BROKER_OPS(scheme, more)                                                                   \
    {                                                                                                  \
        .name = scheme, .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | (more),              \
        .size = sizeof(struct mem_broker), .open = mem_open, .close = mem_close, .reopen = mem_reopen, \
        .poll = mem_poll, .ack = mem_ack, .later = mem_later, .publish = mem_publish                   \
    }

const struct semel_broker_ops semel__broker_mem = MEM_BROKER_OPS("mem", SEMEL_BROKER_ORDERED);
const struct semel_broker_ops semel__broker_mem_unordered = MEM_BROKER_OPS("mem-unordered", 0);
