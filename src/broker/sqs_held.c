/* SPDX-License-Identifier: MIT
 *
 * sqs_held.c: what was received and not answered, and what is to be done about it: extended at half of its time,
 * deleted, or made visible again. Only this file knows which tag is still good; it knows nothing of requests.
 *
 * A tag is a number that no other delivery of this process has had, and the place of its slot. Slots are looked up by
 * tag directly, by message and group one after the other: there are a thousand, and a request brings ten.
 *
 * Invariants: a message has at most one slot, that of its last receipt (the older receipt is worth nothing, P37); a
 * slot about which a request is under way is in no second request; what is acknowledged or given back leaves by
 * success, by being refused, or when SQS makes it visible by itself.
 */
#include "broker/sqs_private.h"

#include <stdatomic.h>

#include "base/clock.h"

#define PLACE_BITS 20
#define PAUSE_US INT64_C(200000)
#define PAUSE_DOUBLES 5

_Static_assert(SQS_IN_FLIGHT_MAX + (size_t)SQS_RECEIVES * SQS_BATCH < (size_t)1 << PLACE_BITS,
               "a place fits into a tag");

static atomic_uint_fast64_t last_number;

bool semel__sqs_held_init(struct sqs_held *held, size_t cap, int visibility_s, bool fifo)
{
    *held = (struct sqs_held){.visibility_s = visibility_s, .fifo = fifo};
    held->at = semel__calloc(cap, sizeof *held->at);
    held->cap = held->at != NULL ? cap : 0;
    return held->at != NULL;
}

void semel__sqs_held_settle(struct sqs_held *held)
{
    for (size_t i = 0; i < held->cap; i++)
        if (held->at[i].state != SQS_WAITING)
            semel__sqs_held_drop(held, &held->at[i]);
}

void semel__sqs_held_done(struct sqs_held *held)
{
    for (size_t i = 0; i < held->cap; i++)
        semel__sqs_held_drop(held, &held->at[i]);
    semel__free(held->at);
    *held = (struct sqs_held){0};
}

struct sqs_slot *semel__sqs_held_find(struct sqs_held *held, uint64_t tag)
{
    const size_t place = tag & (((uint64_t)1 << PLACE_BITS) - 1);

    return place < held->cap && held->at[place].state != SQS_FREE && held->at[place].tag == tag ? &held->at[place]
                                                                                                : NULL;
}

void semel__sqs_held_drop(struct sqs_held *held, struct sqs_slot *slot)
{
    if (slot->state == SQS_FREE)
        return;
    semel__free(slot->text);
    *slot = (struct sqs_slot){0};
    held->n--;
}

/* ---- what comes ---------------------------------------------------------------------------------------- */

static bool is_open(const struct sqs_slot *slot)
{
    return slot->state == SQS_OUT || slot->state == SQS_WAITING;
}

/* Is the slot's message `sequence` itself, or behind it? Sequence numbers have up to 39 digits. Where there are none
 * the order in which they came is that of the group; `tag` is of the one that is compared with, 0: it has only just
 * come. */
static bool is_behind(const struct sqs_slot *slot, struct semel_str group, struct semel_str sequence, uint64_t tag)
{
    if (!semel__str_given(group) || !semel__str_eq(slot->group, group))
        return false;
    if (sequence.n == 0 || slot->sequence.n == 0)
        return tag != 0 && slot->tag >> PLACE_BITS >= tag >> PLACE_BITS;
    if (slot->sequence.n != sequence.n)
        return slot->sequence.n > sequence.n;
    return semel__str_cmp(slot->sequence, sequence) >= 0;
}

/* A message that comes has left every older receipt without worth. That a group delivers it also says that nothing
 * behind it is invisible any more. */
static void fence_stale(struct sqs_held *held, const struct sqs_message *message)
{
    for (size_t i = 0; i < held->cap && held->n > 0; i++) {
        struct sqs_slot *slot = &held->at[i];
        if (slot->state != SQS_FREE &&
            (semel__str_eq(slot->id, message->id) ||
             (held->fifo && is_open(slot) && is_behind(slot, message->group, message->sequence, 0))))
            semel__sqs_held_drop(held, slot);
    }
}

static struct semel_str put(char **at, struct semel_str s)
{
    const struct semel_str copy = {semel__str_given(s) ? *at : NULL, s.n};

    if (s.n > 0)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return copy;
}

static struct sqs_slot *free_slot(struct sqs_held *held)
{
    for (size_t i = 0; i < held->cap && held->n < held->cap; i++) {
        held->hint = (held->hint + 1) % held->cap;
        if (held->at[held->hint].state == SQS_FREE)
            return &held->at[held->hint];
    }
    return NULL;
}

static int64_t half_of(int seconds)
{
    return seconds * SQS_SECOND_US / 2;
}

uint64_t semel__sqs_held_take(struct sqs_held *held, const struct sqs_message *message, int64_t now_us)
{
    const struct sqs_message *m = message;
    struct sqs_slot *slot;
    char *text, *end;

    fence_stale(held, m);
    slot = free_slot(held);
    text = slot != NULL ? semel__alloc(m->id.n + m->handle.n + m->group.n + m->sequence.n + 1) : NULL;
    if (text == NULL)
        return 0;
    end = text;
    *slot = (struct sqs_slot){.state = SQS_WAITING, .text = text};
    slot->id = put(&end, m->id);
    slot->handle = put(&end, m->handle);
    slot->group = put(&end, m->group);
    slot->sequence = put(&end, m->sequence);
    slot->tag = (uint64_t)(atomic_fetch_add(&last_number, 1) + 1) << PLACE_BITS | (uint64_t)(slot - held->at);
    slot->received_us = now_us;
    slot->until_us = semel__time_add(now_us, held->visibility_s * SQS_SECOND_US);
    slot->next_us = semel__time_add(now_us, half_of(held->visibility_s));
    held->n++;
    return slot->tag;
}

/* ---- what is said of it -------------------------------------------------------------------------------- */

static void set(struct sqs_slot *slot, enum sqs_state state, int delay_s, int64_t now_us)
{
    slot->state = state;
    slot->delay_s = delay_s;
    slot->tries = 0;
    slot->next_us = now_us;
}

bool semel__sqs_held_ack(struct sqs_held *held, uint64_t tag, int64_t now_us)
{
    struct sqs_slot *slot = semel__sqs_held_find(held, tag);

    if (slot == NULL || slot->state != SQS_OUT)
        return false;
    set(slot, SQS_ACKED, 0, now_us);
    return true;
}

bool semel__sqs_held_back(struct sqs_held *held, uint64_t tag, int delay_s, int64_t now_us)
{
    struct sqs_slot *slot = semel__sqs_held_find(held, tag);

    if (slot == NULL || slot->state != SQS_OUT)
        return false;
    for (size_t i = 0; held->fifo && i < held->cap; i++)
        if (is_open(&held->at[i]) && is_behind(&held->at[i], slot->group, slot->sequence, slot->tag))
            set(&held->at[i], SQS_BACK, delay_s, now_us);
    set(slot, SQS_BACK, delay_s, now_us);
    return true;
}

void semel__sqs_held_back_all(struct sqs_held *held, int64_t now_us)
{
    for (size_t i = 0; i < held->cap; i++)
        if (is_open(&held->at[i]))
            set(&held->at[i], SQS_BACK, 0, now_us);
}

/* ---- what is to be done -------------------------------------------------------------------------------- */

/* How long it may still be invisible, in whole seconds. */
static int64_t left_s(const struct sqs_slot *slot, int64_t now_us)
{
    return SQS_LONGEST_S - (now_us - slot->received_us + SQS_SECOND_US - 1) / SQS_SECOND_US;
}

/* Fills in the entry. false: not now, or not any more. */
static bool wants(struct sqs_held *held, struct sqs_slot *slot, enum sqs_duty duty, int64_t now_us,
                  struct sqs_entry *entry)
{
    int64_t most_s;

    if (slot->state == SQS_FREE || slot->busy || slot->next_us > now_us ||
        (slot->state == SQS_ACKED) != (duty == SQS_DELETE))
        return false;
    if (!is_open(slot) && slot->tries > 0 && now_us >= slot->until_us) {
        semel__sqs_held_drop(held, slot); /* it is visible by itself */
        return false;
    }
    *entry = (struct sqs_entry){.tag = slot->tag, .seconds = slot->delay_s, .back = slot->state == SQS_BACK};
    most_s = left_s(slot, now_us);
    if (!is_open(slot)) {
        entry->seconds = entry->seconds <= most_s ? entry->seconds : most_s > 0 ? (int)most_s : 0;
        return true;
    }
    entry->seconds = most_s < held->visibility_s ? (int)most_s : held->visibility_s;
    if (entry->seconds >= 1)
        return true;
    if (now_us >= slot->until_us)
        semel__sqs_held_drop(held, slot); /* SQS allows no more: somebody else will get it */
    else
        slot->next_us = slot->until_us;
    return false;
}

/* The last that came first: when the head of a group becomes visible, all that is behind it is so already, and one
 * receive may get all of them. */
static void sort_backwards(struct sqs_entry *entries, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && entries[j].tag > entries[j - 1].tag; j--) {
            const struct sqs_entry entry = entries[j];
            entries[j] = entries[j - 1];
            entries[j - 1] = entry;
        }
}

size_t semel__sqs_held_due(struct sqs_held *held, enum sqs_duty duty, int64_t now_us,
                           struct sqs_entry entries[SQS_BATCH])
{
    size_t n = 0;

    for (size_t i = 0; i < held->cap && n < SQS_BATCH && held->n > 0; i++)
        if (wants(held, &held->at[i], duty, now_us, &entries[n])) {
            held->at[i].busy = true;
            n++;
        }
    if (held->fifo)
        sort_backwards(entries, n);
    return n;
}

static void try_again(struct sqs_slot *slot, int64_t now_us)
{
    const int doubles = slot->tries < PAUSE_DOUBLES ? slot->tries : PAUSE_DOUBLES;

    slot->next_us = semel__time_add(now_us, PAUSE_US << doubles);
    slot->tries++;
}

void semel__sqs_held_ended(struct sqs_held *held, enum sqs_duty duty, const struct sqs_entry *entry,
                           enum sqs_outcome outcome, int64_t sent_us, int64_t now_us)
{
    struct sqs_slot *slot = semel__sqs_held_find(held, entry->tag);

    if (slot == NULL)
        return;
    slot->busy = false;
    if (outcome == SQS_AGAIN || outcome == SQS_UNSAID) {
        if (is_open(slot) || duty == SQS_DELETE || entry->back)
            try_again(slot, now_us);
    } else if (duty == SQS_DELETE || entry->back) {
        semel__sqs_held_drop(held, slot); /* done; or it is not ours any more and comes again */
    } else if (outcome == SQS_DONE) {
        slot->until_us = semel__time_add(sent_us, entry->seconds * SQS_SECOND_US);
        slot->tries = 0;
        if (is_open(slot))
            slot->next_us = semel__time_add(sent_us, half_of(entry->seconds));
    } else if (is_open(slot)) {
        semel__sqs_held_drop(held, slot);
    }
}

int64_t semel__sqs_held_next(const struct sqs_held *held)
{
    int64_t next_us = INT64_MAX;

    for (size_t i = 0; i < held->cap && held->n > 0; i++)
        if (held->at[i].state != SQS_FREE && !held->at[i].busy && held->at[i].next_us < next_us)
            next_us = held->at[i].next_us;
    return next_us;
}

size_t semel__sqs_held_count(const struct sqs_held *held, enum sqs_state state)
{
    size_t n = 0;

    for (size_t i = 0; i < held->cap; i++)
        n += held->at[i].state == state;
    return n;
}
