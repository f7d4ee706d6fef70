/* SPDX-License-Identifier: MIT
 *
 * kafka_lane.c: what was delivered of each partition, what of it was acknowledged, and so what may be committed.
 *
 * A lane keeps the unanswered deliveries of one partition in a ring, in the order of their offsets. An acknowledged one
 * leaves when everything before it has left; `done` is behind the last that left. A tag is the place of the lane, its
 * serial and the delivery's sequence number, 14, 22 and 28 bits; the last two go round, which matters only to a tag as
 * old as four million assignments or 268 million deliveries.
 *
 * Invariants: slots are ascending in offset and in seq; the first slot, if any, is not acknowledged; done never
 * decreases, and every delivery below it was acknowledged; in_flight counts the slots that are not acknowledged.
 */
#include <assert.h>
#include <stdatomic.h>

#include "broker/kafka_private.h"

#define SEQ_BITS 28
#define SEQ_MASK ((UINT32_C(1) << SEQ_BITS) - 1)
#define SERIAL_BITS 22
#define SERIAL_MASK ((UINT32_C(1) << SERIAL_BITS) - 1)
#define SLOTS_FIRST 64

static_assert(KAFKA_IN_FLIGHT_MAX < SEQ_MASK / 2, "a ring is shorter than half the round of its numbers");

static uint32_t new_serial(void)
{
    static _Atomic uint32_t last;
    uint32_t serial;

    do
        serial = (atomic_fetch_add(&last, 1) + 1) & SERIAL_MASK;
    while (serial == 0);
    return serial;
}

/* ---- lanes -------------------------------------------------------------------------------------------- */

static struct kafka_lane *free_place(struct kafka_lanes *lanes)
{
    for (size_t i = 0; i < lanes->n; i++)
        if (lanes->at[i].topic == NULL)
            return &lanes->at[i];
    if (lanes->n == lanes->cap) {
        const size_t cap = lanes->cap == 0 ? 16 : 2 * lanes->cap;
        struct kafka_lane *at = lanes->n < KAFKA_LANES_MAX ? semel__realloc(lanes->at, cap, sizeof *at) : NULL;
        if (at == NULL)
            return NULL;
        lanes->at = at;
        lanes->cap = cap;
    }
    lanes->at[lanes->n] = (struct kafka_lane){0};
    return &lanes->at[lanes->n++];
}

struct kafka_lane *semel__kafka_lane_add(struct kafka_lanes *lanes, const char *topic, int32_t partition)
{
    struct kafka_lane *lane = free_place(lanes);
    const size_t n = strlen(topic) + 1;
    char *copy = lane != NULL ? semel__alloc(n) : NULL;

    if (copy == NULL)
        return NULL;
    memcpy(copy, topic, n);
    *lane = (struct kafka_lane){.topic = copy,
                                .partition = partition,
                                .serial = new_serial(),
                                .expect = -1,
                                .highest = -1,
                                .done = -1,
                                .sent = -1,
                                .held_until_us = SEMEL_NONE};
    return lane;
}

static bool is_lane(const struct kafka_lane *lane, const char *topic, int32_t partition)
{
    return lane->topic != NULL && lane->partition == partition && strcmp(lane->topic, topic) == 0;
}

struct kafka_lane *semel__kafka_lane_find(struct kafka_lanes *lanes, const char *topic, int32_t partition)
{
    if (lanes->last < lanes->n && is_lane(&lanes->at[lanes->last], topic, partition))
        return &lanes->at[lanes->last];
    for (size_t i = 0; i < lanes->n; i++)
        if (is_lane(&lanes->at[i], topic, partition)) {
            lanes->last = i;
            return &lanes->at[i];
        }
    return NULL;
}

static struct kafka_slot *slot_at(const struct kafka_lane *lane, size_t i)
{
    assert(lane->cap > 0);
    return &lane->slots[(lane->first + i) % lane->cap];
}

/* Forgets the slots from the i-th on. */
static void cut(struct kafka_lanes *lanes, struct kafka_lane *lane, size_t i)
{
    while (lane->n > i)
        if (!slot_at(lane, --lane->n)->acked)
            lanes->in_flight--;
}

void semel__kafka_lane_drop(struct kafka_lanes *lanes, struct kafka_lane *lane)
{
    cut(lanes, lane, 0);
    semel__free(lane->slots);
    semel__free(lane->topic);
    *lane = (struct kafka_lane){0};
}

void semel__kafka_lanes_done(struct kafka_lanes *lanes)
{
    for (size_t i = 0; i < lanes->n; i++)
        if (lanes->at[i].topic != NULL)
            semel__kafka_lane_drop(lanes, &lanes->at[i]);
    assert(lanes->in_flight == 0);
    semel__free(lanes->at);
    *lanes = (struct kafka_lanes){0};
}

/* ---- deliveries --------------------------------------------------------------------------------------- */

enum kafka_offer semel__kafka_lane_offer(const struct kafka_lane *lane, int64_t offset)
{
    if (lane->held_until_us != SEMEL_NONE || offset < lane->next)
        return KAFKA_STALE;
    return lane->expect >= 0 && offset > lane->expect ? KAFKA_MISSING : KAFKA_TAKE;
}

static bool make_room(struct kafka_lane *lane)
{
    const size_t cap = lane->cap == 0 ? SLOTS_FIRST : 2 * lane->cap;
    struct kafka_slot *slots;

    if (lane->n < lane->cap)
        return true;
    if (cap > 2 * KAFKA_IN_FLIGHT_MAX)
        return false;
    slots = semel__calloc(cap, sizeof *slots);
    if (slots == NULL)
        return false;
    for (size_t i = 0; i < lane->n; i++)
        slots[i] = *slot_at(lane, i);
    semel__free(lane->slots);
    lane->slots = slots;
    lane->first = 0;
    lane->cap = cap;
    return true;
}

bool semel__kafka_lane_take(struct kafka_lanes *lanes, struct kafka_lane *lane, int64_t offset, uint64_t *ret_tag)
{
    const uint64_t place = (uint64_t)(lane - lanes->at);

    assert(offset >= lane->next);
    if (!make_room(lane))
        return false;
    *slot_at(lane, lane->n++) = (struct kafka_slot){.offset = offset, .seq = lane->next_seq};
    *ret_tag = place << (SERIAL_BITS + SEQ_BITS) | (uint64_t)lane->serial << SEQ_BITS | lane->next_seq;
    lane->next_seq = (lane->next_seq + 1) & SEQ_MASK;
    lane->next = offset + 1;
    lane->expect = -1;
    lane->expect_tries = 0;
    lanes->in_flight++;
    return true;
}

/* The slot of a tag that is still unanswered, and its place in the ring; NULL: fenced. */
static struct kafka_slot *find_slot(struct kafka_lanes *lanes, uint64_t tag, struct kafka_lane **ret_lane,
                                    size_t *ret_i)
{
    const uint64_t place = tag >> (SERIAL_BITS + SEQ_BITS);
    const uint32_t serial = (uint32_t)(tag >> SEQ_BITS) & SERIAL_MASK, seq = (uint32_t)tag & SEQ_MASK;
    struct kafka_lane *lane = place < lanes->n ? &lanes->at[place] : NULL;
    size_t low = 0, high = lane != NULL && lane->topic != NULL && lane->serial == serial ? lane->n : 0;
    const uint32_t base = high > 0 ? slot_at(lane, 0)->seq : 0;

    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        struct kafka_slot *slot = slot_at(lane, mid);
        if (slot->seq == seq) {
            *ret_lane = lane;
            *ret_i = mid;
            return slot->acked ? NULL : slot;
        }
        if (((slot->seq - base) & SEQ_MASK) < ((seq - base) & SEQ_MASK))
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

bool semel__kafka_lane_ack(struct kafka_lanes *lanes, uint64_t tag)
{
    struct kafka_lane *lane;
    size_t i;
    struct kafka_slot *slot = find_slot(lanes, tag, &lane, &i);

    if (slot == NULL)
        return false;
    slot->acked = true;
    lanes->in_flight--;
    while (lane->n > 0 && slot_at(lane, 0)->acked) {
        lane->done = slot_at(lane, 0)->offset + 1;
        lane->first = (lane->first + 1) % lane->cap;
        lane->n--;
    }
    return true;
}

bool semel__kafka_lane_back(struct kafka_lanes *lanes, uint64_t tag, int delay_ms)
{
    struct kafka_lane *lane;
    size_t i;

    if (find_slot(lanes, tag, &lane, &i) == NULL)
        return false;
    lane->back_to = lane->back && lane->back_to < i ? lane->back_to : i;
    lane->back_ms = lane->back && lane->back_ms > delay_ms ? lane->back_ms : delay_ms;
    lane->back = true;
    return true;
}

int64_t semel__kafka_lane_rewind(struct kafka_lanes *lanes, struct kafka_lane *lane)
{
    assert(lane->back && lane->back_to < lane->n);
    lane->next = slot_at(lane, lane->back_to)->offset;
    lane->expect = lane->next;
    lane->expect_tries = 0;
    lane->back = false;
    cut(lanes, lane, lane->back_to);
    return lane->next;
}
