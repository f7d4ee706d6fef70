/* SPDX-License-Identifier: MIT
 *
 * side.c: a worker's end of the hand: a broker for core's pump.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"
#include "base/wait.h"
#include "daemon/hand_private.h"

#define RETURN_MAX 500

static struct side *side_of(struct semel_broker *broker)
{
    return (struct side *)broker;
}

/* ---- lanes of which something was given back ------------------------------------------------------ */

static struct returned *returned_of(struct side *side, uint64_t lane)
{
    for (size_t i = 0; i < side->n_returned; i++)
        if (side->returned[i].lane == lane)
            return &side->returned[i];
    return NULL;
}

static bool lane_return(struct side *side, uint64_t lane)
{
    struct returned *returned = returned_of(side, lane);
    if (returned != NULL) {
        returned->marks++;
        return true;
    }
    if (side->n_returned == side->returned_max) {
        size_t more = side->returned_max == 0 ? 16 : 2 * side->returned_max;
        struct returned *grown = semel__realloc(side->returned, more, sizeof *grown);
        if (grown == NULL)
            return false;
        side->returned = grown;
        side->returned_max = more;
    }
    side->returned[side->n_returned++] = (struct returned){lane, 1};
    return true;
}

static void lane_marked(struct side *side, uint64_t lane)
{
    struct returned *returned = returned_of(side, lane);
    if (returned != NULL && --returned->marks == 0)
        *returned = side->returned[--side->n_returned];
}

/* ---- answers ------------------------------------------------------------------------------------- */

static struct semel_answer *answer_new(const struct side *side, size_t max)
{
    struct semel_answer *answer = semel__calloc(1, sizeof *answer);
    if (answer == NULL)
        return NULL;
    *answer = (struct semel_answer){.side = side->index, .epoch = side->epoch};
    answer->replies = semel__calloc(max, sizeof *answer->replies);
    if (side->hand->keep_answers)
        answer->settled = semel__calloc(max, sizeof *answer->settled);
    if (answer->replies != NULL && (answer->settled != NULL || !side->hand->keep_answers))
        return answer;
    semel__answer_free(answer);
    return NULL;
}

/* The lane of a delivery that goes back stays closed until the mark comes by. Once for each lane of an answer. */
static bool mark_lane(struct side *side, struct semel_answer *answer, uint64_t lane)
{
    for (const struct chunk *mark = answer->marks; mark != NULL; mark = mark->next)
        if (mark->lane == lane)
            return true;
    struct chunk *mark = semel__alloc(sizeof *mark);
    if (mark == NULL || !lane_return(side, lane)) {
        semel__free(mark);
        return false;
    }
    *mark = (struct chunk){.next = answer->marks, .epoch = answer->epoch, .lane = lane};
    answer->marks = mark;
    return true;
}

/* Under the lock. */
static void post(struct semel_hand *hand, struct semel_answer *answer)
{
    *hand->answers_end = answer;
    hand->answers_end = &answer->next;
    pthread_cond_signal(&hand->answered);
    if (hand->source != NULL)
        semel_broker_wake(hand->source);
}

/* One more reply, of which the answer keeps what its source wants to know. */
static bool add_reply(struct semel_answer *answer, const struct semel_reply *reply)
{
    static const struct semel_settled acked = {.act = SEMEL_ACK};
    const struct semel_settled *from = reply->settled;
    struct semel_reply *copy = &answer->replies[answer->n];
    *copy = (struct semel_reply){reply->tag, semel__reply_acks(reply) ? &acked : NULL, reply->delay_ms};
    if (answer->settled != NULL && from != NULL) {
        struct semel_settled *to = &answer->settled[answer->n];
        *to = (struct semel_settled){.act = from->act, .why = from->why, .state = from->state, .cls = from->cls};
        char *outcome = from->outcome.p != NULL ? semel__alloc(from->outcome.n + 1) : NULL;
        if (from->outcome.p != NULL && outcome == NULL)
            return false;
        if (outcome != NULL) {
            memcpy(outcome, from->outcome.p, from->outcome.n);
            to->outcome = (struct semel_str){outcome, from->outcome.n};
        }
        copy->settled = to;
    }
    answer->n++;
    return true;
}

static semel_status side_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                struct semel_error *err)
{
    struct side *side = side_of(broker);
    struct semel_hand *hand = side->hand;
    struct semel_answer *answer = answer_new(side, n);
    size_t held = 0, bytes = 0;
    if (answer == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        while (held < side->n_held && side->held[held].tag != replies[i].tag)
            held++;
        if (held == side->n_held)
            break; /* not ours: it was never delivered here */
        bytes += side->held[held].bytes;
        if (!add_reply(answer, &replies[i]) ||
            (!semel__reply_acks(&replies[i]) && hand->keep_lanes && !mark_lane(side, answer, side->held[held].lane))) {
            semel__answer_free(answer);
            return semel__fail_memory(err);
        }
    }
    pthread_mutex_lock(&hand->lock);
    if (side->epoch == hand->epoch)
        hand->bytes -= bytes < hand->bytes ? bytes : hand->bytes;
    post(hand, answer);
    pthread_mutex_unlock(&hand->lock);
    return SEMEL_OK;
}

/* ---- polling ------------------------------------------------------------------------------------- */

static void release_held(struct side *side)
{
    for (size_t i = 0; i < side->n_held; i++)
        semel__parcel_drop(side->held[i].parcel, 1);
    side->n_held = 0;
}

static void chunk_drop(struct side *side)
{
    struct chunk *chunk = side->chunks;
    side->chunks = chunk->next;
    if (side->chunks == NULL)
        side->end = &side->chunks;
    side->queued -= chunk->n - chunk->done;
    if (chunk->parcel == NULL)
        semel__free(chunk);
    else if (chunk->n > chunk->done)
        semel__parcel_drop(chunk->parcel, chunk->n - chunk->done);
}

void semel__side_forget(struct side *side)
{
    while (side->chunks != NULL)
        chunk_drop(side);
    release_held(side);
}

/* A new epoch: what was given before comes again, and so does all that was given back. */
static void catch_up(struct side *side)
{
    if (side->epoch == side->hand->epoch)
        return;
    while (side->chunks != NULL && side->chunks->epoch != side->hand->epoch)
        chunk_drop(side);
    side->epoch = side->hand->epoch;
    side->n_returned = 0;
    side->stuck = false;
}

static void clear_fd(struct side *side)
{
    uint64_t count;
    while (read(side->fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

/* Under the lock: waits until there is something to take. */
static bool wait_given(struct side *side, int wait_ms, bool nudged)
{
    struct semel_hand *hand = side->hand;
    uint64_t nudges = hand->nudges;
    int64_t until_us = semel__steady_us() + (int64_t)wait_ms * 1000;
    for (bool in_time = wait_ms > 0;;) {
        catch_up(side);
        if (hand->closed || (side->chunks != NULL && !side->stuck))
            return !hand->closed;
        if (!in_time || (nudged && hand->nudges != nudges))
            return false;
        in_time = semel__cond_wait(&side->given, &hand->lock, until_us);
    }
}

/* Under the lock: the next delivery, or none in this chunk. false: no memory to give one back. */
static bool take_one(struct side *side, struct semel_answer *back, struct semel_delivery *deliveries, size_t *n)
{
    struct chunk *chunk = side->chunks;
    const struct semel_delivery *delivery = &chunk->at[chunk->done];
    size_t bytes = chunk->weights[chunk->done];
    if (side->n_returned > 0 && returned_of(side, delivery->lane) != NULL) {
        if (!mark_lane(side, back, delivery->lane))
            return false;
        back->replies[back->n++] = (struct semel_reply){.tag = delivery->tag};
        side->hand->bytes -= bytes < side->hand->bytes ? bytes : side->hand->bytes;
        semel__parcel_drop(chunk->parcel, 1);
    } else {
        side->held[side->n_held++] = (struct held){delivery->tag, delivery->lane, chunk->parcel, bytes};
        deliveries[(*n)++] = *delivery;
    }
    chunk->done++;
    side->queued--;
    return true;
}

/* Under the lock. What follows a delivery that was given back goes back as well. */
static bool take(struct side *side, size_t max, struct semel_answer *back, struct semel_delivery *deliveries, size_t *n)
{
    while (side->chunks != NULL && *n < max && back->n < max) {
        struct chunk *chunk = side->chunks;
        if (chunk->parcel == NULL)
            lane_marked(side, chunk->lane);
        else if (chunk->done < chunk->n) {
            /* The parcel may go with its last delivery, and the chunk lies in it. */
            bool last = chunk->done + 1 == chunk->n;
            struct chunk *next = chunk->next;
            struct parcel *parcel = chunk->parcel;
            __atomic_add_fetch(&parcel->refs, 1, __ATOMIC_ACQ_REL);
            bool ok = take_one(side, back, deliveries, n);
            if (ok && last) {
                side->chunks = next;
                if (next == NULL)
                    side->end = &side->chunks;
            }
            semel__parcel_drop(parcel, 1);
            if (!ok)
                return false;
            continue;
        }
        chunk_drop(side);
    }
    return true;
}

static bool make_room(struct side *side, size_t max)
{
    if (side->held_max >= max)
        return true;
    struct held *held = semel__realloc(side->held, max, sizeof *held);
    if (held == NULL)
        return false;
    side->held = held;
    side->held_max = max;
    return true;
}

static semel_status side_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                              struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct side *side = side_of(broker);
    struct semel_hand *hand = side->hand;
    *ret_n = 0;
    release_held(side);
    struct semel_delivery *deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    struct semel_answer *back = answer_new(side, max);
    if (deliveries == NULL || back == NULL || !make_room(side, max)) {
        semel__answer_free(back);
        return semel__fail_memory(err);
    }
    pthread_mutex_lock(&hand->lock);
    bool ok = true;
    if (wait_given(side, wait_ms, false)) {
        back->epoch = side->epoch;
        ok = take(side, max, back, deliveries, ret_n);
    }
    if (side->chunks == NULL && !hand->closed)
        clear_fd(side);
    if (back->n > 0) {
        post(hand, back);
        back = NULL;
    }
    if (!ok) { /* what was taken before memory ended is told to nobody: all of it has to come again */
        *ret_n = 0;
        side->stuck = hand->wants_void = true;
        pthread_cond_signal(&hand->answered);
    }
    pthread_mutex_unlock(&hand->lock);
    semel__answer_free(back);
    *ret_deliveries = deliveries;
    return ok ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- the rest ------------------------------------------------------------------------------------ */

static void side_close(struct semel_broker *broker)
{
    release_held(side_of(broker));
}

static semel_status side_reopen(struct semel_broker *broker, struct semel_error *err)
{
    struct side *side = side_of(broker);
    (void)err;
    release_held(side);
    pthread_mutex_lock(&side->hand->lock);
    side->stuck = side->epoch == side->hand->epoch;
    side->hand->wants_void |= side->stuck;
    pthread_cond_signal(&side->hand->answered);
    pthread_mutex_unlock(&side->hand->lock);
    return SEMEL_OK;
}

const struct semel_broker_ops semel__hand_side_ops = {
    .name = "hand",
    .capabilities = SEMEL_BROKER_SOURCE,
    .close = side_close,
    .reopen = side_reopen,
    .poll = side_poll,
    .answer = side_answer,
};

struct semel_broker *semel__hand_side(struct semel_hand *hand, size_t i)
{
    return &hand->sides[i].base;
}

int semel__hand_fd(struct semel_broker *side)
{
    return side_of(side)->fd;
}

int64_t semel__hand_age_us(struct semel_broker *broker)
{
    const struct side *side = side_of(broker);
    return side->n_held > 0 ? semel__steady_us() - side->held[0].parcel->given_us : 0;
}

void semel__hand_nap(struct semel_broker *broker, int wait_ms)
{
    struct side *side = side_of(broker);
    struct semel_hand *hand = side->hand;
    int64_t until_us = semel__steady_us() + (int64_t)wait_ms * 1000;
    pthread_mutex_lock(&hand->lock);
    uint64_t nudges = hand->nudges;
    while (!hand->closed && hand->nudges == nudges && semel__cond_wait(&side->given, &hand->lock, until_us))
        ;
    pthread_mutex_unlock(&hand->lock);
}

bool semel__hand_wait(struct semel_broker *broker, int wait_ms)
{
    struct side *side = side_of(broker);
    pthread_mutex_lock(&side->hand->lock);
    bool given = wait_given(side, wait_ms, true);
    pthread_mutex_unlock(&side->hand->lock);
    return given;
}

semel_status semel__hand_return(struct semel_broker *broker, int delay_ms, struct semel_error *err)
{
    struct semel_arena arena;
    semel_status status = SEMEL_OK;
    semel__arena_init(&arena, RETURN_MAX * (sizeof(struct semel_delivery) + sizeof(struct semel_reply)) + 4096);
    for (size_t n = RETURN_MAX; status == SEMEL_OK && n > 0;) {
        struct semel_delivery *deliveries;
        semel__arena_reset(&arena);
        status = side_poll(broker, RETURN_MAX, 0, &arena, &deliveries, &n, err);
        struct semel_reply *replies = semel__arena_alloc(&arena, n, sizeof *replies);
        for (size_t i = 0; replies != NULL && i < n; i++)
            replies[i] = (struct semel_reply){.tag = deliveries[i].tag, .delay_ms = delay_ms};
        if (status == SEMEL_OK && replies == NULL)
            status = semel__fail_memory(err);
        if (status == SEMEL_OK && n > 0)
            status = side_answer(broker, replies, n, err);
        if (status != SEMEL_OK && n > 0)
            (void)side_reopen(broker, NULL); /* what was taken and not given back would never come again */
    }
    semel__arena_done(&arena);
    return status;
}
