/* SPDX-License-Identifier: MIT
 *
 * handoff.c: batches of deliveries on their way to the workers, and answers on their way back.
 */
#include "daemon/handoff.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include <sys/eventfd.h>

#include "base/error.h"
#include "base/wait.h"
#include "core/inbox.h"

/* One poll of the real broker. Freed with the last of its deliveries. */
struct batch {
    struct semel_arena arena;
    int64_t given_us; /* by the steady clock */
    size_t refs;      /* deliveries that are not answered or forgotten; atomic */
};

/* What a queue got of a batch, in its arena; or a marker, with memory of its own. */
struct slice {
    struct slice *next;
    struct batch *batch; /* NULL: a marker: what was given back of `lane` has been applied */
    struct semel_delivery *at;
    size_t *weights; /* bytes of each */
    size_t n, done;
    uint64_t epoch, lane;
};

/* A lane of which something was given back, and how many markers are still to come. */
struct returned {
    uint64_t lane;
    size_t markers;
};

/* A delivery that the worker has, until the next poll. */
struct held {
    uint64_t tag, lane;
    struct batch *batch;
    size_t bytes;
};

struct worker_queue {
    struct semel_broker base;
    struct semel_handoff *handoff;
    size_t index;
    struct slice *slices, **end;
    size_t queued, sorting;
    int fd; /* readable while a poll would return something, or at once */
    bool readable, woken;
    bool stuck;     /* nothing is delivered before the next epoch */
    uint64_t epoch; /* of what is held */
    /* Of the worker's thread alone; all else is under the lock. */
    struct held *held;
    size_t n_held, held_max;
    struct returned *returned;
    size_t n_returned, returned_max;
};

struct semel_handoff {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    struct worker_queue *queues;
    size_t n_queues, max;
    bool keep_lanes, wants_reopen;
    size_t out, bytes; /* given and not answered */
    uint64_t seen, seen_bytes;
    uint64_t epoch;
    struct semel_answered *answers, **answers_end;
    struct semel_broker *source; /* to be woken */
};

static const struct semel_broker_ops queue_ops;

static void batch_drop(struct batch *batch, size_t n)
{
    if (__atomic_sub_fetch(&batch->refs, n, __ATOMIC_ACQ_REL) > 0)
        return;
    semel__arena_done(&batch->arena);
    semel__free(batch);
}

static void answer_free(struct semel_answered *answer)
{
    if (answer == NULL)
        return;
    semel__free(answer->replies);
    while (answer->markers != NULL) {
        struct slice *marker = answer->markers;
        answer->markers = marker->next;
        semel__free(marker);
    }
    semel__free(answer);
}

/* ---- queues, under the lock ----------------------------------------------------------------------- */

static void set_fd(struct worker_queue *queue)
{
    uint64_t count = 1;
    bool given = queue->slices != NULL && !(queue->stuck && queue->epoch == queue->handoff->epoch);
    bool readable = queue->woken || given;
    if (readable == queue->readable)
        return;
    queue->readable = readable;
    while ((readable ? write(queue->fd, &count, sizeof count) : read(queue->fd, &count, sizeof count)) < 0 &&
           errno == EINTR)
        ;
}

static void append(struct worker_queue *queue, struct slice *slice)
{
    *queue->end = slice;
    queue->end = &slice->next;
    queue->queued += slice->n;
    set_fd(queue);
}

static void slice_drop(struct worker_queue *queue)
{
    struct slice *slice = queue->slices;
    queue->slices = slice->next;
    if (queue->slices == NULL)
        queue->end = &queue->slices;
    queue->queued -= slice->n - slice->done;
    if (slice->batch == NULL)
        semel__free(slice);
    else if (slice->n > slice->done)
        batch_drop(slice->batch, slice->n - slice->done);
}

static void release_held(struct worker_queue *queue)
{
    for (size_t i = 0; i < queue->n_held; i++)
        batch_drop(queue->held[i].batch, 1);
    queue->n_held = 0;
}

/* ==== the source thread ========================================================================== */

semel_status semel__handoff_new(struct semel_handoff **ret, size_t workers, size_t max, bool keep_lanes,
                                struct semel_error *err)
{
    struct semel_handoff *handoff = semel__calloc(1, sizeof *handoff);
    if (handoff == NULL)
        return semel__fail_memory(err);
    handoff->max = max;
    handoff->keep_lanes = keep_lanes;
    handoff->answers_end = &handoff->answers;
    if (pthread_mutex_init(&handoff->lock, NULL) != 0 || !semel__cond_init(&handoff->answered)) {
        semel__free(handoff);
        return semel__fail_memory(err);
    }
    handoff->queues = semel__calloc(workers, sizeof *handoff->queues);
    bool ok = handoff->queues != NULL;
    for (size_t i = 0; ok && i < workers; i++, handoff->n_queues++) {
        struct worker_queue *queue = &handoff->queues[i];
        *queue =
            (struct worker_queue){.base = {.ops = &queue_ops}, .handoff = handoff, .index = i, .end = &queue->slices};
        queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        ok = queue->fd >= 0;
    }
    if (!ok) {
        semel__handoff_free(handoff);
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no memory or descriptors for a route");
    }
    *ret = handoff;
    return SEMEL_OK;
}

void semel__handoff_free(struct semel_handoff *handoff)
{
    if (handoff == NULL)
        return;
    for (size_t i = 0; handoff->queues != NULL && i < handoff->n_queues; i++) {
        struct worker_queue *queue = &handoff->queues[i];
        while (queue->slices != NULL)
            slice_drop(queue);
        release_held(queue);
        if (queue->fd >= 0)
            close(queue->fd);
        semel__free(queue->held);
        semel__free(queue->returned);
    }
    while (handoff->answers != NULL) {
        struct semel_answered *answer = handoff->answers;
        handoff->answers = answer->next;
        answer_free(answer);
    }
    pthread_cond_destroy(&handoff->answered);
    pthread_mutex_destroy(&handoff->lock);
    semel__free(handoff->queues);
    semel__free(handoff);
}

void semel__handoff_set_source(struct semel_handoff *handoff, struct semel_broker *broker)
{
    pthread_mutex_lock(&handoff->lock);
    handoff->source = broker;
    pthread_mutex_unlock(&handoff->lock);
}

void semel__handoff_wake_source(struct semel_handoff *handoff)
{
    pthread_mutex_lock(&handoff->lock);
    if (handoff->source != NULL)
        semel_broker_wake(handoff->source);
    pthread_mutex_unlock(&handoff->lock);
}

/* ---- giving -------------------------------------------------------------------------------------- */

size_t semel__handoff_room(struct semel_handoff *handoff, size_t *ret_out)
{
    pthread_mutex_lock(&handoff->lock);
    size_t out = handoff->out, bytes = handoff->bytes;
    size_t mean = handoff->seen > 0 ? (size_t)(handoff->seen_bytes / handoff->seen) + 1 : 1024;
    pthread_mutex_unlock(&handoff->lock);
    *ret_out = out;
    if (out >= handoff->max || bytes >= SEMEL_HANDOFF_BYTES)
        return 0;
    size_t fit = (SEMEL_HANDOFF_BYTES - bytes) / mean + 1;
    return fit < handoff->max - out ? fit : handoff->max - out;
}

/* The queue of a delivery: that of its lane, or the one with the least to do. */
static size_t choose(const struct semel_handoff *handoff, const struct semel_delivery *delivery)
{
    const struct worker_queue *queues = handoff->queues;
    if (handoff->keep_lanes)
        return (size_t)((delivery->lane * UINT64_C(0x9E3779B97F4A7C15)) >> 33) % handoff->n_queues;
    size_t best = 0;
    for (size_t i = 1; i < handoff->n_queues; i++)
        if (queues[i].queued + queues[i].sorting < queues[best].queued + queues[best].sorting)
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

/* Sorts the deliveries into one slice per queue; all of it in the batch's arena. */
static bool sort_out(struct semel_handoff *handoff, struct batch *batch, const struct semel_delivery *deliveries,
                     const size_t *weights, size_t n, struct slice **slices)
{
    size_t *which = semel__arena_alloc(&batch->arena, n, sizeof *which);
    if (which == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        which[i] = choose(handoff, &deliveries[i]);
        handoff->queues[which[i]].sorting++;
    }
    bool ok = true;
    for (size_t q = 0; q < handoff->n_queues; q++) {
        size_t count = handoff->queues[q].sorting;
        handoff->queues[q].sorting = 0;
        slices[q] = NULL;
        if (count == 0 || !ok)
            continue;
        struct slice *slice = semel__arena_alloc(&batch->arena, 1, sizeof *slice);
        struct semel_delivery *at = semel__arena_alloc(&batch->arena, count, sizeof *at);
        size_t *heavy = semel__arena_alloc(&batch->arena, count, sizeof *heavy);
        ok = slice != NULL && at != NULL && heavy != NULL;
        if (!ok)
            continue;
        *slice = (struct slice){.batch = batch, .at = at, .weights = heavy, .epoch = handoff->epoch};
        for (size_t i = 0; i < n; i++)
            if (which[i] == q) {
                heavy[slice->n] = weights[i];
                at[slice->n++] = deliveries[i];
            }
        slices[q] = slice;
    }
    return ok;
}

semel_status semel__handoff_give_take(struct semel_handoff *handoff, struct semel_arena *arena,
                                      const struct semel_delivery *deliveries, size_t n, struct semel_error *err)
{
    if (n == 0)
        return SEMEL_OK;
    struct batch *batch = semel__alloc(sizeof *batch);
    if (batch == NULL)
        return semel__fail_memory(err);
    *batch = (struct batch){.arena = *arena, .given_us = semel__steady_us(), .refs = n};
    batch->arena.max += n * (3 * sizeof(size_t) + sizeof(struct semel_delivery) + 64) + 4096;
    struct slice **slices = semel__arena_alloc(&batch->arena, handoff->n_queues, sizeof(struct slice *));
    size_t bytes = 0, *weights = semel__arena_alloc(&batch->arena, n, sizeof *weights);
    for (size_t i = 0; weights != NULL && i < n; i++)
        bytes += weights[i] = weight_of(&deliveries[i]);
    pthread_mutex_lock(&handoff->lock);
    bool ok = slices != NULL && weights != NULL && sort_out(handoff, batch, deliveries, weights, n, slices);
    for (size_t q = 0; ok && q < handoff->n_queues; q++)
        if (slices[q] != NULL)
            append(&handoff->queues[q], slices[q]);
    if (ok) {
        handoff->out += n;
        handoff->bytes += bytes;
        handoff->seen += n;
        handoff->seen_bytes += bytes;
    }
    pthread_mutex_unlock(&handoff->lock);
    if (!ok) {
        *arena = batch->arena;
        semel__free(batch);
        return semel__fail_memory(err);
    }
    semel__arena_init(arena, arena->max);
    return SEMEL_OK;
}

/* ---- answers ------------------------------------------------------------------------------------- */

struct semel_answered *semel__handoff_answers(struct semel_handoff *handoff, int wait_ms)
{
    int64_t until_us = semel__steady_us() + (int64_t)wait_ms * 1000;
    pthread_mutex_lock(&handoff->lock);
    while (wait_ms > 0 && handoff->answers == NULL && semel__cond_wait(&handoff->answered, &handoff->lock, until_us))
        ;
    struct semel_answered *answers = handoff->answers;
    handoff->answers = NULL;
    handoff->answers_end = &handoff->answers;
    pthread_mutex_unlock(&handoff->lock);
    return answers;
}

bool semel__handoff_stale(struct semel_handoff *handoff, const struct semel_answered *answer)
{
    pthread_mutex_lock(&handoff->lock);
    bool stale = answer->epoch != handoff->epoch;
    pthread_mutex_unlock(&handoff->lock);
    return stale;
}

void semel__handoff_applied(struct semel_handoff *handoff, struct semel_answered *answer)
{
    pthread_mutex_lock(&handoff->lock);
    bool current = answer->epoch == handoff->epoch;
    if (current)
        handoff->out -= answer->n;
    while (current && answer->markers != NULL) {
        struct slice *marker = answer->markers;
        answer->markers = marker->next;
        marker->next = NULL;
        append(&handoff->queues[answer->queue], marker);
    }
    pthread_mutex_unlock(&handoff->lock);
    answer_free(answer);
}

void semel__handoff_invalidate(struct semel_handoff *handoff)
{
    pthread_mutex_lock(&handoff->lock);
    handoff->epoch++;
    handoff->out = 0;
    handoff->bytes = 0;
    handoff->wants_reopen = false;
    pthread_mutex_unlock(&handoff->lock);
}

bool semel__handoff_wants_reopen(struct semel_handoff *handoff)
{
    pthread_mutex_lock(&handoff->lock);
    bool wants = handoff->wants_reopen;
    pthread_mutex_unlock(&handoff->lock);
    return wants;
}

/* ==== a worker =================================================================================== */

/* ---- lanes of which something was given back ------------------------------------------------------ */

static struct returned *returned_of(const struct worker_queue *queue, uint64_t lane)
{
    for (size_t i = 0; i < queue->n_returned; i++)
        if (queue->returned[i].lane == lane)
            return &queue->returned[i];
    return NULL;
}

static bool lane_return(struct worker_queue *queue, uint64_t lane)
{
    struct returned *returned = returned_of(queue, lane);
    if (returned != NULL) {
        returned->markers++;
        return true;
    }
    if (queue->n_returned == queue->returned_max) {
        size_t more = queue->returned_max == 0 ? 16 : 2 * queue->returned_max;
        struct returned *grown = semel__realloc(queue->returned, more, sizeof *grown);
        if (grown == NULL)
            return false;
        queue->returned = grown;
        queue->returned_max = more;
    }
    queue->returned[queue->n_returned++] = (struct returned){lane, 1};
    return true;
}

static void lane_applied(struct worker_queue *queue, uint64_t lane)
{
    struct returned *returned = returned_of(queue, lane);
    if (returned != NULL && --returned->markers == 0)
        *returned = queue->returned[--queue->n_returned];
}

/* ---- answers ------------------------------------------------------------------------------------- */

static struct semel_answered *answer_new(const struct worker_queue *queue, size_t max)
{
    struct semel_answered *answer = semel__calloc(1, sizeof *answer);
    if (answer == NULL)
        return NULL;
    answer->queue = queue->index;
    answer->epoch = queue->epoch;
    answer->replies = semel__calloc(max, sizeof *answer->replies);
    if (answer->replies != NULL)
        return answer;
    semel__free(answer);
    return NULL;
}

/* The lane of a delivery that goes back stays closed until the marker comes by. Once for each lane of an answer. */
static bool close_lane(struct worker_queue *queue, struct semel_answered *answer, uint64_t lane)
{
    for (const struct slice *marker = answer->markers; marker != NULL; marker = marker->next)
        if (marker->lane == lane)
            return true;
    struct slice *marker = semel__alloc(sizeof *marker);
    if (marker == NULL || !lane_return(queue, lane)) {
        semel__free(marker);
        return false;
    }
    *marker = (struct slice){.next = answer->markers, .epoch = answer->epoch, .lane = lane};
    answer->markers = marker;
    return true;
}

/* Under the lock. */
static void post(struct semel_handoff *handoff, struct semel_answered *answer)
{
    *handoff->answers_end = answer;
    handoff->answers_end = &answer->next;
    pthread_cond_signal(&handoff->answered);
    if (handoff->source != NULL)
        semel_broker_wake(handoff->source);
}

static semel_status queue_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                 struct semel_error *err)
{
    static const struct semel_settled acked = {.act = SEMEL_ACK};
    struct worker_queue *queue = (struct worker_queue *)broker;
    struct semel_handoff *handoff = queue->handoff;
    struct semel_answered *answer = answer_new(queue, n);
    size_t held = 0, bytes = 0;
    if (answer == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        bool acks = semel__reply_acks(&replies[i]);
        while (held < queue->n_held && queue->held[held].tag != replies[i].tag)
            held++;
        if (held == queue->n_held)
            break; /* not ours: it was never delivered here */
        bytes += queue->held[held].bytes;
        answer->replies[answer->n++] = (struct semel_reply){replies[i].tag, acks ? &acked : NULL, replies[i].delay_ms};
        if (!acks && handoff->keep_lanes && !close_lane(queue, answer, queue->held[held].lane)) {
            answer_free(answer);
            return semel__fail_memory(err);
        }
    }
    pthread_mutex_lock(&handoff->lock);
    if (queue->epoch == handoff->epoch)
        handoff->bytes -= bytes < handoff->bytes ? bytes : handoff->bytes;
    post(handoff, answer);
    pthread_mutex_unlock(&handoff->lock);
    return SEMEL_OK;
}

/* ---- polling ------------------------------------------------------------------------------------- */

/* A new epoch: what was given before comes again, and so does all that was given back. */
static void catch_up(struct worker_queue *queue)
{
    if (queue->epoch == queue->handoff->epoch)
        return;
    while (queue->slices != NULL && queue->slices->epoch != queue->handoff->epoch)
        slice_drop(queue);
    queue->epoch = queue->handoff->epoch;
    queue->n_returned = 0;
    queue->stuck = false;
}

/* Takes the lock, and keeps it. true: there is something to deliver. */
static bool lock_and_wait(struct worker_queue *queue, int wait_ms)
{
    int64_t until_us = semel__steady_us() + (int64_t)wait_ms * 1000;
    for (;;) {
        pthread_mutex_lock(&queue->handoff->lock);
        catch_up(queue);
        set_fd(queue);
        int64_t left_us = until_us - semel__steady_us();
        if (queue->readable || wait_ms <= 0 || left_us <= 0)
            break;
        pthread_mutex_unlock(&queue->handoff->lock);
        struct pollfd fd = {.fd = queue->fd, .events = POLLIN};
        (void)poll(&fd, 1, (int)((left_us + 999) / 1000));
    }
    return !queue->woken && queue->readable;
}

/* Under the lock: the next delivery, or none in this slice. false: no memory to give one back. */
static bool pop_one(struct worker_queue *queue, struct semel_answered *back, struct semel_delivery *deliveries,
                    size_t *n)
{
    struct slice *slice = queue->slices;
    struct semel_handoff *handoff = queue->handoff;
    const struct semel_delivery *delivery = &slice->at[slice->done];
    size_t bytes = slice->weights[slice->done];
    if (queue->n_returned > 0 && returned_of(queue, delivery->lane) != NULL) {
        if (!close_lane(queue, back, delivery->lane))
            return false;
        back->replies[back->n++] = (struct semel_reply){.tag = delivery->tag};
        handoff->bytes -= bytes < handoff->bytes ? bytes : handoff->bytes;
        batch_drop(slice->batch, 1);
    } else {
        queue->held[queue->n_held++] = (struct held){delivery->tag, delivery->lane, slice->batch, bytes};
        deliveries[(*n)++] = *delivery;
    }
    slice->done++;
    queue->queued--;
    return true;
}

/* Under the lock. Deliveries behind one that was given back go back as well. */
static bool pop_all(struct worker_queue *queue, size_t max, struct semel_answered *back,
                    struct semel_delivery *deliveries, size_t *n)
{
    while (queue->slices != NULL && *n < max && back->n < max) {
        struct slice *slice = queue->slices, *next = slice->next;
        struct batch *batch = slice->batch;
        if (batch == NULL) {
            lane_applied(queue, slice->lane);
            slice_drop(queue);
            continue;
        }
        /* The batch may go with its last delivery, and the slice lies in it. */
        bool last = slice->done + 1 == slice->n;
        __atomic_add_fetch(&batch->refs, 1, __ATOMIC_ACQ_REL);
        bool ok = pop_one(queue, back, deliveries, n);
        if (ok && last) {
            queue->slices = next;
            if (next == NULL)
                queue->end = &queue->slices;
        }
        batch_drop(batch, 1);
        if (!ok)
            return false;
    }
    return true;
}

static bool make_room(struct worker_queue *queue, size_t max)
{
    if (queue->held_max >= max)
        return true;
    struct held *held = semel__realloc(queue->held, max, sizeof *held);
    if (held == NULL)
        return false;
    queue->held = held;
    queue->held_max = max;
    return true;
}

static semel_status queue_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                               struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct worker_queue *queue = (struct worker_queue *)broker;
    struct semel_handoff *handoff = queue->handoff;
    *ret_n = 0;
    release_held(queue);
    struct semel_delivery *deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    struct semel_answered *back = answer_new(queue, max);
    if (deliveries == NULL || back == NULL || !make_room(queue, max)) {
        answer_free(back);
        return semel__fail_memory(err);
    }
    bool given = lock_and_wait(queue, wait_ms);
    back->epoch = queue->epoch;
    bool ok = !given || pop_all(queue, max, back, deliveries, ret_n);
    if (back->n > 0) {
        post(handoff, back);
        back = NULL;
    }
    if (!ok) { /* nobody hears of what was popped before memory ended: all of it has to come again */
        *ret_n = 0;
        queue->stuck = handoff->wants_reopen = true;
        pthread_cond_signal(&handoff->answered);
    }
    queue->woken = false;
    set_fd(queue);
    pthread_mutex_unlock(&handoff->lock);
    answer_free(back);
    *ret_deliveries = deliveries;
    return ok ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- the rest ------------------------------------------------------------------------------------ */

static void queue_close(struct semel_broker *broker)
{
    release_held((struct worker_queue *)broker);
}

static semel_status queue_reopen(struct semel_broker *broker, struct semel_error *err)
{
    struct worker_queue *queue = (struct worker_queue *)broker;
    struct semel_handoff *handoff = queue->handoff;
    (void)err;
    release_held(queue);
    pthread_mutex_lock(&handoff->lock);
    queue->stuck = queue->epoch == handoff->epoch;
    handoff->wants_reopen |= queue->stuck;
    set_fd(queue);
    pthread_cond_signal(&handoff->answered);
    pthread_mutex_unlock(&handoff->lock);
    return SEMEL_OK;
}

static void queue_wake(struct semel_broker *broker)
{
    struct worker_queue *queue = (struct worker_queue *)broker;
    pthread_mutex_lock(&queue->handoff->lock);
    queue->woken = true;
    set_fd(queue);
    pthread_mutex_unlock(&queue->handoff->lock);
}

static int queue_fd(struct semel_broker *broker)
{
    return ((struct worker_queue *)broker)->fd;
}

static const struct semel_broker_ops queue_ops = {
    .name = "handoff",
    .capabilities = SEMEL_BROKER_SOURCE,
    .close = queue_close,
    .reopen = queue_reopen,
    .poll = queue_poll,
    .answer = queue_answer,
    .wake = queue_wake,
    .fd = queue_fd,
};

struct semel_broker *semel__handoff_queue(struct semel_handoff *handoff, size_t i)
{
    return &handoff->queues[i].base;
}

int64_t semel__handoff_age_us(const struct semel_broker *broker)
{
    const struct worker_queue *queue = (const struct worker_queue *)broker;
    return queue->n_held > 0 ? semel__steady_us() - queue->held[0].batch->given_us : 0;
}
