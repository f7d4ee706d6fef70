/* SPDX-License-Identifier: MIT
 *
 * mem_broker.c: the in-memory broker: its queue (messages, lanes, which member has which lane) and the driver.
 *
 * A message is kept for the life of its queue. An entry is one promise to deliver it: a push makes one, redeliver
 * makes another. Entries stand in lanes: a lane per partition when ORDERED, a single lane when UNORDERED.
 *
 * What it is not: able to wait.
 *
 * Invariants: entries below lane->floor are acknowledged; ORDERED: lane->next >= lane->floor, and what is
 * outstanding lies in [floor, next) of lanes that the handle owns; UNORDERED: entry->taken_by is the handle in whose
 * list the entry is outstanding, or NULL. ORDERED: with m members, lane l belongs to member number l mod m, so a change
 * of membership moves some lanes at once, and a lane that moves starts again at its floor. Nothing depends on an
 * address. An operation allocates before it changes anything; the hook is called before an operation looks at anything;
 * tags are handed out in ascending order, so that a handle's outstanding deliveries are sorted by tag.
 */
#include "support/mem_broker.h"

#include <assert.h>
#include <stdio.h>

#include "base/error.h"
#include "base/str.h"

struct mem_broker;

struct mem_message { /* one allocation, strings and pairs behind it */
    struct semel_str source, key, position, payload;
    struct semel_pair *headers, *properties;
    size_t n_headers, n_properties;
    size_t lane;
    int deliveries;
    char position_text[48];
};

struct mem_entry {
    struct mem_message *msg;
    bool acked;                  /* ORDERED: in the view of the lane's owner */
    struct mem_broker *taken_by; /* UNORDERED */
    int64_t not_before_us;       /* UNORDERED */
};

struct mem_lane {
    struct mem_entry *entries;
    size_t n, cap;
    size_t floor; /* below it all is acknowledged, in the broker's view */
    size_t next;  /* ORDERED: what the owner is given next */
    struct mem_broker *owner;
    int64_t not_before_us; /* ORDERED */
};

struct mem_link {
    struct mem_link *older;
    struct semel_mem_queue *target;
    struct semel_str destination;
};

struct semel_mem_queue {
    enum semel_queue_mode mode;
    const struct semel_clock *clock;
    struct mem_lane *lanes;
    size_t n_lanes;
    struct mem_message **messages;
    size_t n_messages, cap_messages;
    struct mem_broker *members; /* those that share the lanes, in the order of joining */
    uint64_t last_tag;
    size_t handles;
    struct mem_link *links;
    struct semel_mem_published *published;
    size_t n_published, cap_published;
};

struct mem_out {  /* one outstanding delivery */
    uint64_t tag; /* ascending */
    size_t lane, at;
    bool chosen; /* by the call that is going on */
};

struct mem_broker {
    struct semel_broker base;
    struct semel_mem_queue *queue;
    bool dead, member;
    struct mem_broker *next_member;
    struct mem_out *outs;
    size_t n_outs, cap_outs;
    size_t turn; /* the lane that poll starts with, for fairness */
    semel_queue_hook hook;
    void *hook_ctx;
};

static const struct semel_broker_ops ordered_ops;

static struct mem_broker *self(struct semel_broker *broker)
{
    return (struct mem_broker *)broker;
}

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

static struct mem_message *message_new(const struct semel_mem_push *push)
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

static bool lane_reserve(struct mem_lane *lane)
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
    if (!lane_reserve(lane) || (msg = message_new(push)) == NULL)
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
    if (!lane_reserve(lane))
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

static void join(struct mem_broker *broker)
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

static void leave(struct mem_broker *broker)
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
    assert(self(broker)->queue == queue);
    (void)queue;
    leave(self(broker));
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

static struct semel_mem_queue *target_of(const struct semel_mem_queue *queue, struct semel_str destination)
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

void semel__broker_mem_set_hook(struct semel_broker *broker, semel_queue_hook hook, void *ctx)
{
    self(broker)->hook = hook;
    self(broker)->hook_ctx = ctx;
}

static void lose_connection(struct mem_broker *broker)
{
    leave(broker);
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
    join(broker);
}

semel_status semel__broker_mem_open(struct semel_broker **ret, struct semel_mem_queue *queue, struct semel_error *err)
{
    struct mem_broker *broker = semel__calloc(1, sizeof *broker);

    if (broker == NULL)
        return semel__fail_memory(err);
    broker->base.ops = queue->mode == SEMEL_QUEUE_ORDERED ? &ordered_ops : &semel__broker_mem_unordered;
    attach(broker, queue);
    *ret = &broker->base;
    return SEMEL_OK;
}

static void mem_close(struct semel_broker *broker)
{
    struct semel_mem_queue *queue = self(broker)->queue;

    leave(self(broker));
    semel__free(self(broker)->outs);
    queue->handles--;
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
    join(self(broker));
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
    join(self(broker)); /* again, if it was expelled */
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

/* ---- answers ------------------------------------------------------------------------------------ */

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

/* LOST: the handle knows it, the broker does not. UNORDERED: still taken, and it comes again when the connection
 * ends; ORDERED the next acknowledgement that arrives may tell the broker's floor. How many are fenced. */
static size_t acknowledge(struct mem_broker *broker, const struct semel_reply *replies, size_t n, bool lost)
{
    struct semel_mem_queue *queue = broker->queue;
    size_t fenced = 0;

    if (lost && queue->mode == SEMEL_QUEUE_UNORDERED)
        return 0;
    for (size_t i = 0; i < n; i++) {
        struct mem_out *out = semel__reply_acks(&replies[i]) ? find_out(broker, replies[i].tag) : NULL;
        fenced += semel__reply_acks(&replies[i]) && out == NULL;
        if (out == NULL)
            continue;
        queue->lanes[out->lane].entries[out->at].acked = true;
        queue->lanes[out->lane].entries[out->at].taken_by = NULL;
        out->chosen = true;
    }
    forget_chosen(broker);
    if (!lost)
        raise_floors(broker);
    return lost ? 0 : fenced;
}

static size_t give_back_all(struct mem_broker *broker, const struct semel_reply *replies, size_t n)
{
    struct semel_mem_queue *queue = broker->queue;
    const int64_t now_us = semel__now(queue->clock);
    size_t fenced = 0;

    for (size_t i = 0; i < n; i++) {
        struct mem_out *out = !semel__reply_acks(&replies[i]) ? find_out(broker, replies[i].tag) : NULL;
        fenced += !semel__reply_acks(&replies[i]) && out == NULL;
        if (out == NULL)
            continue;
        give_back(broker, out, semel__time_add(now_us, (int64_t)replies[i].delay_ms * 1000));
        out->chosen = true;
    }
    for (size_t i = 0; queue->mode == SEMEL_QUEUE_ORDERED && i < broker->n_outs; i++) {
        struct mem_out *out = &broker->outs[i];
        out->chosen = out->at >= queue->lanes[out->lane].next; /* all that comes again has a new tag */
    }
    forget_chosen(broker);
    return fenced;
}

static semel_status mem_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                               struct semel_error *err)
{
    enum semel_queue_fault fault = SEMEL_QUEUE_GO;
    semel_status status = SEMEL_OK;
    size_t fenced = 0, n_acks = 0;

    for (size_t i = 0; i < n; i++)
        n_acks += semel__reply_acks(&replies[i]);
    if (n_acks > 0)
        status = enter(self(broker), "ack", &fault, err);
    if (status == SEMEL_OK && n_acks > 0)
        fenced = acknowledge(self(broker), replies, n, fault == SEMEL_QUEUE_LOST);
    if (status == SEMEL_OK && n_acks < n)
        status = enter(self(broker), "later", &fault, err);
    if (status == SEMEL_OK && n_acks < n)
        fenced += give_back_all(self(broker), replies, n);
    return status == SEMEL_OK ? semel__broker_fenced("mem", fenced, n, err) : status;
}

/* ---- publish ------------------------------------------------------------------------------------------ */

static semel_status push_to(struct semel_mem_queue *target, const struct semel_publish *item, struct semel_error *err)
{
    struct semel_mem_push push = {.source = item->destination, .key = item->key, .payload = item->payload};
    struct semel_pair *headers = semel__calloc(item->n_headers + 1, sizeof *headers);
    semel_status status;

    if (headers == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i <= item->n_headers; i++)
        push.n_headers += semel__publish_header(item, i, &headers[push.n_headers]);
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
    msg = message_new(&push);
    if (msg == NULL)
        return semel__fail_memory(err);
    queue->published[queue->n_published++] = (struct semel_mem_published){msg,           msg->source,  msg->key,
                                                                          msg->position, msg->payload, msg->headers,
                                                                          msg->n_headers};
    return SEMEL_OK;
}

static semel_status mem_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                struct semel_error *err)
{
    struct semel_mem_queue *queue = self(broker)->queue;
    enum semel_queue_fault fault;
    semel_status status = enter(self(broker), "publish", &fault, err);

    (void)timeout_ms; /* nothing takes time here */
    for (size_t i = 0; i < n; i++) {
        struct semel_mem_queue *target = target_of(queue, items[i].destination);
        if (status != SEMEL_OK)
            items[i].status = SEMEL_RETRY;
        else
            items[i].status = target != NULL ? push_to(target, &items[i], NULL) : record(queue, &items[i], NULL);
        if (fault == SEMEL_QUEUE_LOST && items[i].status == SEMEL_OK)
            items[i].status = SEMEL_UNKNOWN;
    }
    return status;
}

#define MEM_BROKER_OPS(scheme, more)                                                                          \
    {                                                                                                         \
        .name = scheme, .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | (more), .close = mem_close, \
        .reopen = mem_reopen, .poll = mem_poll, .answer = mem_answer, .publish = mem_publish                  \
    }

static const struct semel_broker_ops ordered_ops = MEM_BROKER_OPS("mem", SEMEL_BROKER_ORDERED);
const struct semel_broker_ops semel__broker_mem_unordered = MEM_BROKER_OPS("mem-unordered", 0);
