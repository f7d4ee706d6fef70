/* SPDX-License-Identifier: MIT
 *
 * mem.c: the queue of the in-memory broker: its messages, its lanes, and which member has which lane.
 *
 * What it is: the broker's own side, which the handles (mem_handle.c) talk to. What it is not: a driver by itself.
 *
 * Invariants: ORDERED: with m members, lane l belongs to member number l mod m, so a change of membership moves some
 * lanes at once, and a lane that moves starts again at its floor. Nothing here depends on an address.
 */
#include "broker/mem_private.h"

#include <assert.h>
#include <stdio.h>

/* ---- messages ----------------------------------------------------------------------------------------- */

static bool add_size(size_t *total, struct semel_str s)
{
    return !__builtin_add_overflow(*total, s.n, total) && !__builtin_add_overflow(*total, 1, total);
}

static bool add_pairs_size(size_t *total, const struct semel_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!add_size(total, pairs[i].name) || !add_size(total, pairs[i].value) ||
            __builtin_add_overflow(*total, sizeof *pairs, total))
            return false;
    return true;
}

static struct semel_str keep_str(char **at, struct semel_str s)
{
    char *copy = *at;

    if (!semel__str_given(s))
        return s;
    if (s.n > 0)
        memcpy(copy, s.p, s.n);
    copy[s.n] = '\0';
    *at += s.n + 1;
    return (struct semel_str){copy, s.n};
}

static void keep_pairs(char **at, struct semel_pair *copies, const struct semel_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        copies[i].name = keep_str(at, pairs[i].name);
        copies[i].value = keep_str(at, pairs[i].value);
    }
}

struct mem_message *semel__mem_message_new(const struct semel_mem_push *push)
{
    size_t total = sizeof(struct mem_message);
    struct mem_message *msg;
    char *at;

    if (!add_size(&total, push->source) || !add_size(&total, push->key) || !add_size(&total, push->position) ||
        !add_size(&total, push->payload) || !add_pairs_size(&total, push->headers, push->n_headers) ||
        !add_pairs_size(&total, push->properties, push->n_properties))
        return NULL;
    msg = semel__alloc(total);
    if (msg == NULL)
        return NULL;
    *msg = (struct mem_message){.n_headers = push->n_headers, .n_properties = push->n_properties};
    msg->headers = (struct semel_pair *)(msg + 1);
    msg->properties = msg->headers + push->n_headers;
    at = (char *)(msg->properties + push->n_properties);
    msg->source = keep_str(&at, push->source);
    msg->key = keep_str(&at, push->key);
    msg->position = keep_str(&at, push->position);
    msg->payload = keep_str(&at, push->payload);
    keep_pairs(&at, msg->headers, push->headers, push->n_headers);
    keep_pairs(&at, msg->properties, push->properties, push->n_properties);
    return msg;
}

bool semel__mem_lane_reserve(struct mem_lane *lane)
{
    size_t cap = lane->cap > 0 ? lane->cap * 2 : 16;
    struct mem_entry *entries;

    if (lane->n < lane->cap)
        return true;
    entries = semel__realloc(lane->entries, cap, sizeof *entries);
    if (entries == NULL)
        return false;
    lane->entries = entries;
    lane->cap = cap;
    return true;
}

static size_t lane_of(const struct semel_mem_queue *queue, struct semel_str key)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < key.n; i++)
        hash = (hash ^ (unsigned char)key.p[i]) * UINT64_C(0x100000001b3);
    return semel__str_given(key) ? (size_t)((hash ^ (hash >> 32)) % queue->n_lanes) : 0;
}

static bool push_one(struct semel_mem_queue *queue, const struct semel_mem_push *push)
{
    const size_t number = lane_of(queue, push->key);
    struct mem_lane *lane = &queue->lanes[number];
    struct mem_message *msg;

    if (queue->n_messages == queue->cap_messages) {
        size_t cap = queue->cap_messages > 0 ? queue->cap_messages * 2 : 16;
        struct mem_message **messages = semel__realloc(queue->messages, cap, sizeof(struct mem_message *));
        if (messages == NULL)
            return false;
        queue->messages = messages;
        queue->cap_messages = cap;
    }
    if (!semel__mem_lane_reserve(lane) || (msg = semel__mem_message_new(push)) == NULL)
        return false;
    msg->lane = number;
    if (!semel__str_given(msg->position) && queue->mode == SEMEL_QUEUE_ORDERED) {
        int n = snprintf(msg->position_text, sizeof msg->position_text, "%zu/%zu", number, lane->n);
        msg->position = (struct semel_str){msg->position_text, (size_t)n};
    }
    lane->entries[lane->n++] = (struct mem_entry){.msg = msg, .not_before_us = INT64_MIN};
    queue->messages[queue->n_messages++] = msg;
    return true;
}

semel_status semel__mem_queue_push(struct semel_mem_queue *queue, const struct semel_mem_push *messages, size_t n,
                                   struct semel_error *err)
{
    const size_t before = queue->n_messages;

    for (size_t i = 0; i < n; i++) {
        if (push_one(queue, &messages[i]))
            continue;
        while (queue->n_messages > before) { /* nobody has seen them: each is the last of its lane */
            struct mem_message *msg = queue->messages[--queue->n_messages];
            queue->lanes[msg->lane].n--;
            semel__free(msg);
        }
        return semel__fail_memory(err);
    }
    return SEMEL_OK;
}

semel_status semel__mem_queue_redeliver(struct semel_mem_queue *queue, size_t index, struct semel_error *err)
{
    struct mem_lane *lane;

    if (index >= queue->n_messages)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "mem: there is no message number %zu", index);
    lane = &queue->lanes[queue->messages[index]->lane];
    if (!semel__mem_lane_reserve(lane))
        return semel__fail_memory(err);
    lane->entries[lane->n++] = (struct mem_entry){.msg = queue->messages[index], .not_before_us = INT64_MIN};
    return SEMEL_OK;
}

size_t semel__mem_queue_count(const struct semel_mem_queue *queue)
{
    return queue->n_messages;
}

size_t semel__mem_queue_unacked(const struct semel_mem_queue *queue)
{
    size_t n = 0;

    for (size_t i = 0; i < queue->n_lanes; i++)
        for (size_t at = queue->lanes[i].floor; at < queue->lanes[i].n; at++)
            n += queue->mode == SEMEL_QUEUE_ORDERED || !queue->lanes[i].entries[at].acked;
    return n;
}

/* ---- members ------------------------------------------------------------------------------------------ */

/* Takes the lane from its owner: its tags are gone, and so are acknowledgements that the broker never saw. */
static void rewind_to_floor(struct mem_lane *lane, size_t number)
{
    struct mem_broker *owner = lane->owner;
    size_t n = 0;

    for (size_t i = 0; owner != NULL && i < owner->n_outs; i++)
        if (owner->outs[i].lane != number)
            owner->outs[n++] = owner->outs[i];
    if (owner != NULL)
        owner->n_outs = n;
    for (size_t at = lane->floor; at < lane->next; at++)
        lane->entries[at].acked = false;
    lane->next = lane->floor;
    lane->not_before_us = INT64_MIN;
    lane->owner = NULL;
}

static void share_lanes(struct semel_mem_queue *queue)
{
    struct mem_broker *member = queue->members;

    for (size_t i = 0; queue->mode == SEMEL_QUEUE_ORDERED && i < queue->n_lanes; i++) {
        if (queue->lanes[i].owner != member) {
            rewind_to_floor(&queue->lanes[i], i);
            queue->lanes[i].owner = member;
        }
        if (member != NULL)
            member = member->next_member != NULL ? member->next_member : queue->members;
    }
}

void semel__mem_queue_join(struct mem_broker *broker)
{
    struct mem_broker **last = &broker->queue->members;

    if (broker->member)
        return;
    while (*last != NULL)
        last = &(*last)->next_member;
    *last = broker;
    broker->next_member = NULL;
    broker->member = true;
    share_lanes(broker->queue);
}

void semel__mem_queue_leave(struct mem_broker *broker)
{
    struct semel_mem_queue *queue = broker->queue;
    struct mem_broker **at = &queue->members;

    if (!broker->member)
        return;
    for (size_t i = 0; queue->mode == SEMEL_QUEUE_UNORDERED && i < broker->n_outs; i++)
        queue->lanes[0].entries[broker->outs[i].at].taken_by = NULL;
    while (*at != broker)
        at = &(*at)->next_member;
    *at = broker->next_member;
    broker->member = false;
    share_lanes(queue);
    broker->n_outs = 0;
}

void semel__mem_queue_expel(struct semel_mem_queue *queue, struct semel_broker *broker)
{
    assert(((struct mem_broker *)broker)->queue == queue);
    (void)queue;
    semel__mem_queue_leave((struct mem_broker *)broker);
}

/* ---- the queue ---------------------------------------------------------------------------------------- */

semel_status semel__mem_queue_new(struct semel_mem_queue **ret, enum semel_queue_mode mode, size_t n_partitions,
                                  const struct semel_clock *clock)
{
    struct semel_mem_queue *queue = semel__calloc(1, sizeof *queue);

    if (queue == NULL)
        return SEMEL_RETRY;
    queue->mode = mode;
    queue->clock = clock != NULL ? clock : &semel__clock_real;
    queue->n_lanes = mode == SEMEL_QUEUE_ORDERED && n_partitions > 1 ? n_partitions : 1;
    queue->lanes = semel__calloc(queue->n_lanes, sizeof *queue->lanes);
    if (queue->lanes == NULL) {
        semel__free(queue);
        return SEMEL_RETRY;
    }
    for (size_t i = 0; i < queue->n_lanes; i++)
        queue->lanes[i].not_before_us = INT64_MIN;
    *ret = queue;
    return SEMEL_OK;
}

void semel__mem_queue_free(struct semel_mem_queue *queue)
{
    if (queue == NULL)
        return;
    assert(queue->handles == 0);
    for (size_t i = 0; i < queue->n_lanes; i++)
        semel__free(queue->lanes[i].entries);
    semel__free(queue->lanes);
    for (size_t i = 0; i < queue->n_messages; i++)
        semel__free(queue->messages[i]);
    semel__free(queue->messages);
    for (struct mem_link *link = queue->links, *older; link != NULL; link = older) {
        older = link->older;
        semel__free(link);
    }
    for (size_t i = 0; i < queue->n_published; i++)
        semel__free(queue->published[i].owned);
    semel__free(queue->published);
    semel__free(queue);
}

semel_status semel__mem_queue_link(struct semel_mem_queue *queue, struct semel_str destination,
                                   struct semel_mem_queue *target, struct semel_error *err)
{
    struct mem_link *link;
    size_t size;
    char *at;

    if (__builtin_add_overflow(sizeof *link + 1, destination.n, &size) || (link = semel__alloc(size)) == NULL)
        return semel__fail_memory(err);
    at = (char *)(link + 1);
    *link = (struct mem_link){queue->links, target, keep_str(&at, destination)};
    queue->links = link;
    return SEMEL_OK;
}

struct semel_mem_queue *semel__mem_queue_target(const struct semel_mem_queue *queue, struct semel_str destination)
{
    const struct mem_link *link = queue->links;

    while (link != NULL && !semel__str_eq(link->destination, destination))
        link = link->older;
    return link != NULL ? link->target : NULL;
}

size_t semel__mem_queue_published(const struct semel_mem_queue *queue, const struct semel_mem_published **ret)
{
    if (ret != NULL)
        *ret = queue->published;
    return queue->n_published;
}
