/* SPDX-License-Identifier: MIT
 *
 * hand.c: the source's end of the hand. The workers' ends are in side.c.
 */
#include <errno.h>
#include <unistd.h>
#include <sys/eventfd.h>

#include "base/error.h"
#include "base/wait.h"
#include "daemon/hand_private.h"

/* ---- life ---------------------------------------------------------------------------------------- */

semel_status semel__hand_new(struct semel_hand **ret, size_t sides, size_t max, bool keep_lanes, bool keep_answers,
                             struct semel_error *err)
{
    struct semel_hand *hand = semel__calloc(1, sizeof *hand);
    if (hand == NULL)
        return semel__fail_memory(err);
    *hand = (struct semel_hand){.max = max, .keep_lanes = keep_lanes, .keep_answers = keep_answers};
    hand->answers_end = &hand->answers;
    if (pthread_mutex_init(&hand->lock, NULL) != 0) {
        semel__free(hand);
        return semel__fail_memory(err);
    }
    bool ok = semel__cond_init(&hand->answered);
    hand->sides = semel__calloc(sides, sizeof *hand->sides);
    for (size_t i = 0; ok && hand->sides != NULL && i < sides; i++, hand->n_sides++) {
        struct side *side = &hand->sides[i];
        *side = (struct side){.base = {&semel__hand_side_ops}, .hand = hand, .index = i};
        side->end = &side->chunks;
        side->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        ok = side->fd >= 0 && semel__cond_init(&side->given);
    }
    if (!ok || hand->sides == NULL) {
        semel__hand_free(hand);
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no memory or descriptors for a route");
    }
    *ret = hand;
    return SEMEL_OK;
}

void semel__parcel_drop(struct parcel *parcel, size_t n)
{
    if (__atomic_sub_fetch(&parcel->refs, n, __ATOMIC_ACQ_REL) > 0)
        return;
    semel__arena_done(&parcel->arena);
    semel__free(parcel);
}

void semel__answer_free(struct semel_answer *answer)
{
    if (answer == NULL)
        return;
    for (size_t i = 0; answer->settled != NULL && i < answer->n; i++)
        semel__free((void *)(uintptr_t)answer->settled[i].outcome.p);
    semel__free(answer->settled);
    semel__free(answer->replies);
    while (answer->marks != NULL) {
        struct chunk *mark = answer->marks;
        answer->marks = mark->next;
        semel__free(mark);
    }
    semel__free(answer);
}

void semel__hand_free(struct semel_hand *hand)
{
    if (hand == NULL)
        return;
    for (size_t i = 0; hand->sides != NULL && i < hand->n_sides; i++) {
        struct side *side = &hand->sides[i];
        semel__side_forget(side);
        pthread_cond_destroy(&side->given);
        close(side->fd);
        semel__free(side->held);
        semel__free(side->returned);
    }
    while (hand->answers != NULL) {
        struct semel_answer *answer = hand->answers;
        hand->answers = answer->next;
        semel__answer_free(answer);
    }
    pthread_cond_destroy(&hand->answered);
    pthread_mutex_destroy(&hand->lock);
    semel__free(hand->sides);
    semel__free(hand);
}

void semel__hand_source(struct semel_hand *hand, struct semel_broker *broker)
{
    pthread_mutex_lock(&hand->lock);
    hand->source = broker;
    pthread_mutex_unlock(&hand->lock);
}

/* ---- giving -------------------------------------------------------------------------------------- */

size_t semel__hand_room(struct semel_hand *hand, size_t *ret_out)
{
    pthread_mutex_lock(&hand->lock);
    size_t out = hand->out, bytes = hand->bytes;
    size_t mean = hand->seen > 0 ? (size_t)(hand->seen_bytes / hand->seen) + 1 : 1024;
    pthread_mutex_unlock(&hand->lock);
    *ret_out = out;
    if (out >= hand->max || bytes >= SEMEL_HAND_BYTES)
        return 0;
    size_t fit = (SEMEL_HAND_BYTES - bytes) / mean + 1;
    return fit < hand->max - out ? fit : hand->max - out;
}

/* The side of a delivery: of its lane, or the one with the least to do. */
static size_t choose(const struct semel_hand *hand, const struct semel_delivery *delivery)
{
    if (hand->keep_lanes)
        return (size_t)((delivery->lane * UINT64_C(0x9E3779B97F4A7C15)) >> 33) % hand->n_sides;
    size_t best = 0;
    for (size_t i = 1; i < hand->n_sides; i++)
        if (hand->sides[i].queued + hand->sides[i].sorting < hand->sides[best].queued + hand->sides[best].sorting)
            best = i;
    return best;
}

static size_t weight_of(const struct semel_delivery *delivery)
{
    size_t bytes = delivery->payload.n + delivery->position.n;
    for (size_t i = 0; i < delivery->n_headers; i++)
        bytes += delivery->headers[i].name.n + delivery->headers[i].value.n;
    return bytes;
}

static void append(struct side *side, struct chunk *chunk)
{
    *side->end = chunk;
    side->end = &chunk->next;
    side->queued += chunk->n;
}

void semel__side_wake(struct side *side)
{
    uint64_t one = 1;
    pthread_cond_signal(&side->given);
    while (write(side->fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* Sorts the deliveries into one chunk a side; all of it in the parcel's arena. */
static bool sort_out(struct semel_hand *hand, struct parcel *parcel, const struct semel_delivery *deliveries,
                     const size_t *weights, size_t n, struct chunk **chunks)
{
    size_t *which = semel__arena_alloc(&parcel->arena, n, sizeof *which);
    if (which == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        which[i] = choose(hand, &deliveries[i]);
        hand->sides[which[i]].sorting++;
    }
    bool ok = true;
    for (size_t s = 0; s < hand->n_sides; s++) {
        size_t count = hand->sides[s].sorting;
        hand->sides[s].sorting = 0;
        chunks[s] = NULL;
        if (count == 0 || !ok)
            continue;
        struct chunk *chunk = semel__arena_alloc(&parcel->arena, 1, sizeof *chunk);
        struct semel_delivery *at = semel__arena_alloc(&parcel->arena, count, sizeof *at);
        size_t *heavy = semel__arena_alloc(&parcel->arena, count, sizeof *heavy);
        ok = chunk != NULL && at != NULL && heavy != NULL;
        if (!ok)
            continue;
        *chunk = (struct chunk){.parcel = parcel, .at = at, .weights = heavy, .epoch = hand->epoch};
        for (size_t i = 0; i < n; i++)
            if (which[i] == s) {
                heavy[chunk->n] = weights[i];
                at[chunk->n++] = deliveries[i];
            }
        chunks[s] = chunk;
    }
    return ok;
}

semel_status semel__hand_give_take(struct semel_hand *hand, struct semel_arena *arena,
                                   struct semel_delivery *deliveries, size_t n, struct semel_error *err)
{
    if (n == 0)
        return SEMEL_OK;
    struct parcel *parcel = semel__alloc(sizeof *parcel);
    if (parcel == NULL)
        return semel__fail_memory(err);
    *parcel = (struct parcel){.arena = *arena, .given_us = semel__steady_us(), .refs = n};
    parcel->arena.max += n * (3 * sizeof(size_t) + sizeof(struct semel_delivery) + 64) + 4096;
    struct chunk **chunks = semel__arena_alloc(&parcel->arena, hand->n_sides, sizeof(struct chunk *));
    size_t bytes = 0, *weights = semel__arena_alloc(&parcel->arena, n, sizeof *weights);
    for (size_t i = 0; weights != NULL && i < n; i++)
        bytes += weights[i] = weight_of(&deliveries[i]);
    pthread_mutex_lock(&hand->lock);
    bool ok = chunks != NULL && weights != NULL && sort_out(hand, parcel, deliveries, weights, n, chunks);
    for (size_t s = 0; ok && s < hand->n_sides; s++) {
        if (chunks[s] == NULL)
            continue;
        append(&hand->sides[s], chunks[s]);
        semel__side_wake(&hand->sides[s]);
    }
    if (ok) {
        hand->out += n;
        hand->bytes += bytes;
        hand->seen += n;
        hand->seen_bytes += bytes;
    }
    pthread_mutex_unlock(&hand->lock);
    if (!ok) {
        *arena = parcel->arena;
        semel__free(parcel);
        return semel__fail_memory(err);
    }
    semel__arena_init(arena, arena->max);
    return SEMEL_OK;
}

/* ---- answers ------------------------------------------------------------------------------------- */

struct semel_answer *semel__hand_answers(struct semel_hand *hand, int wait_ms)
{
    int64_t until_us = semel__steady_us() + (int64_t)wait_ms * 1000;
    pthread_mutex_lock(&hand->lock);
    while (wait_ms > 0 && hand->answers == NULL && semel__cond_wait(&hand->answered, &hand->lock, until_us))
        ;
    struct semel_answer *answers = hand->answers;
    hand->answers = NULL;
    hand->answers_end = &hand->answers;
    pthread_mutex_unlock(&hand->lock);
    return answers;
}

bool semel__hand_stale(struct semel_hand *hand, const struct semel_answer *answer)
{
    pthread_mutex_lock(&hand->lock);
    bool stale = answer->epoch != hand->epoch;
    pthread_mutex_unlock(&hand->lock);
    return stale;
}

void semel__hand_applied(struct semel_hand *hand, struct semel_answer *answer)
{
    pthread_mutex_lock(&hand->lock);
    struct side *side = &hand->sides[answer->side];
    bool current = answer->epoch == hand->epoch;
    if (current)
        hand->out -= answer->n;
    while (current && answer->marks != NULL) {
        struct chunk *mark = answer->marks;
        answer->marks = mark->next;
        mark->next = NULL;
        append(side, mark);
    }
    pthread_mutex_unlock(&hand->lock);
    semel__answer_free(answer);
}

void semel__hand_void(struct semel_hand *hand)
{
    pthread_mutex_lock(&hand->lock);
    hand->epoch++;
    hand->out = 0;
    hand->bytes = 0;
    hand->wants_void = false;
    pthread_mutex_unlock(&hand->lock);
}

bool semel__hand_wants_void(struct semel_hand *hand)
{
    pthread_mutex_lock(&hand->lock);
    bool wants = hand->wants_void;
    pthread_mutex_unlock(&hand->lock);
    return wants;
}

void semel__hand_nudge(struct semel_hand *hand)
{
    pthread_mutex_lock(&hand->lock);
    hand->nudges++;
    for (size_t i = 0; i < hand->n_sides; i++)
        pthread_cond_broadcast(&hand->sides[i].given);
    pthread_mutex_unlock(&hand->lock);
}

void semel__hand_close(struct semel_hand *hand)
{
    pthread_mutex_lock(&hand->lock);
    hand->closed = true;
    if (hand->source != NULL)
        semel_broker_wake(hand->source);
    for (size_t i = 0; i < hand->n_sides; i++) {
        pthread_cond_broadcast(&hand->sides[i].given);
        semel__side_wake(&hand->sides[i]);
    }
    pthread_mutex_unlock(&hand->lock);
}
