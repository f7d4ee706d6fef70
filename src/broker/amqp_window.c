/* SPDX-License-Identifier: MIT
 *
 * amqp_window.c: which deliveries of a channel have no answer yet, and which answers are to be sent.
 *
 * The server numbers the deliveries of a channel from 1 on. A tag is the channel's epoch, 24 bits that no other channel
 * of this process has had for sixteen million channels, and the number, 40 bits. The slots are ascending; one that was
 * answered is GONE and leaves when it comes first, or when room is needed. So there are never many more slots than the
 * server may leave unanswered, however long the oldest of them takes.
 *
 * Invariants: a slot is answered once (P30): ack, hold and cut find only OPEN ones. `live` counts those that are not
 * GONE, `held` the HELD. What the server is told to acknowledge up to a number is only what was acknowledged here.
 */
#include <assert.h>
#include <stdatomic.h>

#include "broker/amqp_private.h"

#define NUMBER_BITS 40
#define NUMBER_MASK AMQP_NUMBER_MAX
#define EPOCH_MASK ((UINT32_C(1) << 24) - 1)
#define SLOTS_FIRST 64
#define SLOTS_MAX (4 * (size_t)AMQP_PREFETCH_MAX)

static uint32_t new_epoch(void)
{
    static _Atomic uint32_t last;
    uint32_t epoch;

    do
        epoch = (atomic_fetch_add(&last, 1) + 1) & EPOCH_MASK;
    while (epoch == 0);
    return epoch;
}

static void forget(struct amqp_window *window)
{
    window->first = window->n = 0;
    window->live = window->held = 0;
    window->due_us = SEMEL_NONE;
    window->low = window->high = 0;
    window->cut = 0;
}

void semel__amqp_window_begin(struct amqp_window *window)
{
    forget(window);
    window->epoch = new_epoch();
}

void semel__amqp_window_end(struct amqp_window *window)
{
    forget(window);
    window->epoch = 0;
}

void semel__amqp_window_done(struct amqp_window *window)
{
    semel__free(window->at);
    *window = (struct amqp_window){.due_us = SEMEL_NONE};
}

/* ---- coming ------------------------------------------------------------------------------------------- */

/* Not between ack and next_ack: the places of slots change. */
static void compact(struct amqp_window *window)
{
    size_t kept = 0;

    for (size_t i = window->first; i < window->n; i++)
        if (window->at[i].state != AMQP_SLOT_GONE)
            window->at[kept++] = window->at[i];
    assert(kept == window->live);
    window->first = 0;
    window->n = kept;
}

static bool make_room(struct amqp_window *window)
{
    const size_t cap = window->cap == 0 ? SLOTS_FIRST : 2 * window->cap;
    struct amqp_slot *at;

    if (window->n < window->cap)
        return true;
    compact(window);
    if (2 * window->n < window->cap)
        return true;
    at = cap <= SLOTS_MAX ? semel__realloc(window->at, cap, sizeof *at) : NULL;
    if (at == NULL)
        return window->n < window->cap;
    window->at = at;
    window->cap = cap;
    return true;
}

bool semel__amqp_window_take(struct amqp_window *window, uint64_t number, uint64_t *ret_tag)
{
    assert(window->epoch != 0 && number <= NUMBER_MASK && window->low == window->high);
    assert(window->n == window->first || window->at[window->n - 1].number < number);
    if (!make_room(window))
        return false;
    window->at[window->n++] = (struct amqp_slot){.number = number, .state = AMQP_SLOT_OPEN};
    window->live++;
    *ret_tag = (uint64_t)window->epoch << NUMBER_BITS | number;
    return true;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

/* The place of a tag that is still unanswered. false: fenced. */
static bool find(const struct amqp_window *window, uint64_t tag, size_t *ret)
{
    const uint64_t number = tag & NUMBER_MASK;
    size_t low = window->first, high = window->n;

    if (window->epoch == 0 || tag >> NUMBER_BITS != window->epoch || (window->cut != 0 && number >= window->cut))
        return false;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (window->at[mid].number == number) {
            *ret = mid;
            return window->at[mid].state == AMQP_SLOT_OPEN;
        }
        if (window->at[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

bool semel__amqp_window_has(const struct amqp_window *window, uint64_t tag)
{
    size_t i;

    return find(window, tag, &i);
}

static void drop(struct amqp_window *window, struct amqp_slot *slot)
{
    window->held -= slot->state == AMQP_SLOT_HELD;
    slot->state = AMQP_SLOT_GONE;
    window->live--;
    while (window->first < window->n && window->at[window->first].state == AMQP_SLOT_GONE)
        window->first++;
}

bool semel__amqp_window_ack(struct amqp_window *window, uint64_t tag)
{
    size_t i;

    if (!find(window, tag, &i))
        return false;
    window->at[i].state = AMQP_SLOT_ACKED;
    window->low = window->low < window->high && window->low < i ? window->low : i;
    window->high = window->high > i ? window->high : i + 1;
    return true;
}

bool semel__amqp_window_next_ack(struct amqp_window *window, uint64_t *ret_number, bool *ret_multiple)
{
    size_t i = window->low > window->first ? window->low : window->first;
    const bool from_first = i == window->first;
    size_t n = 0;

    while (i < window->high && window->at[i].state != AMQP_SLOT_ACKED)
        i++;
    if (i >= window->high) {
        window->low = window->high = 0;
        return false;
    }
    /* Nothing before it is unanswered: a run of any length is one acknowledgement. */
    if (from_first && i == window->first) {
        for (; i < window->high && window->at[i].state != AMQP_SLOT_OPEN && window->at[i].state != AMQP_SLOT_HELD; i++)
            if (window->at[i].state == AMQP_SLOT_ACKED) {
                *ret_number = window->at[i].number;
                drop(window, &window->at[i]);
                n++;
            }
    } else {
        *ret_number = window->at[i].number;
        drop(window, &window->at[i++]);
    }
    *ret_multiple = n > 1;
    window->low = i;
    return true;
}

bool semel__amqp_window_hold(struct amqp_window *window, uint64_t tag, int64_t due_us)
{
    size_t i;

    if (!find(window, tag, &i))
        return false;
    window->at[i].state = AMQP_SLOT_HELD;
    window->at[i].due_us = due_us;
    window->held++;
    if (window->due_us == SEMEL_NONE || due_us < window->due_us)
        window->due_us = due_us;
    return true;
}

bool semel__amqp_window_next_due(struct amqp_window *window, int64_t now_us, uint64_t *ret_number)
{
    int64_t due_us = SEMEL_NONE;

    if (window->due_us == SEMEL_NONE || window->due_us > now_us)
        return false;
    for (size_t i = window->first; i < window->n; i++) {
        struct amqp_slot *slot = &window->at[i];
        if (slot->state != AMQP_SLOT_HELD)
            continue;
        if (slot->due_us <= now_us) {
            *ret_number = slot->number;
            drop(window, slot);
            return true;
        }
        due_us = due_us == SEMEL_NONE || slot->due_us < due_us ? slot->due_us : due_us;
    }
    window->due_us = due_us;
    return false;
}

bool semel__amqp_window_cut(struct amqp_window *window, uint64_t tag)
{
    size_t i;

    if (!find(window, tag, &i))
        return false;
    window->cut = window->at[i].number;
    while (window->n > i)
        if (window->at[--window->n].state != AMQP_SLOT_GONE)
            drop(window, &window->at[window->n]);
    if (window->first > window->n)
        window->first = window->n;
    return true;
}
