/* SPDX-License-Identifier: MIT
 *
 * mem_private.h: the inside of the in-memory broker, shared by its two files:
 *   mem.c  the queue: messages, partitions, members       mem_handle.c  the driver: poll, ack, later, publish
 *
 * A message is kept for the life of its queue. An entry is one promise to deliver it: a push makes one, redeliver
 * makes another. Entries stand in lanes: a lane a partition when ORDERED, a single lane when UNORDERED.
 *
 * Invariants: entries below lane->floor are acknowledged; ORDERED: lane->next >= lane->floor, and what is
 * outstanding lies in [floor, next) of lanes that the handle owns; UNORDERED: entry->taken_by is the handle in whose
 * list the entry is outstanding, or NULL.
 */
#ifndef SEMEL_BROKER_MEM_PRIVATE_H
#define SEMEL_BROKER_MEM_PRIVATE_H

#include "base/error.h"
#include "base/str.h"
#include "broker/mem.h"

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
    bool owns_queue, dead, member;
    struct mem_broker *next_member;
    struct mem_out *outs;
    size_t n_outs, cap_outs;
    size_t turn; /* the lane that poll starts with, for fairness */
    semel_queue_hook hook;
    void *hook_ctx;
};

void semel__mem_queue_join(struct mem_broker *broker);  /* becomes a member and shares the lanes */
void semel__mem_queue_leave(struct mem_broker *broker); /* all its tags are fenced, what it had comes again */
/* Room for one more entry in the lane; false: no memory. */
bool semel__mem_lane_reserve(struct mem_lane *lane);
/* A message of its own memory; NULL: none. */
struct mem_message *semel__mem_message_new(const struct semel_mem_push *push);
struct semel_mem_queue *semel__mem_queue_target(const struct semel_mem_queue *queue, struct semel_str destination);

#endif
