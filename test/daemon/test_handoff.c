/* SPDX-License-Identifier: MIT
 *
 * test_handoff.c: the handoff between a source thread and its workers: order, bounds, what is given back, and threads.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "core/inbox.h"
#include "daemon/handoff.h"
#include "support/answer.h"
#include "unit/unit.h"

#define POLL_MAX 100

static struct semel_handoff *handoff_of(size_t queues, size_t max, bool lanes)
{
    struct semel_handoff *handoff = NULL;
    struct semel_error err;
    assert_int_equal(semel__handoff_new(&handoff, queues, max, lanes, &err), SEMEL_OK);
    return handoff;
}

/* Gives tags first .. first + n - 1 of one lane, with payloads of `bytes`. */
static void give(struct semel_handoff *handoff, uint64_t lane, uint64_t first, size_t n, size_t bytes)
{
    struct semel_arena arena;
    struct semel_error err;
    semel__arena_init(&arena, (size_t)64 << 20);
    struct semel_delivery *deliveries = semel__arena_alloc(&arena, n, sizeof *deliveries);
    assert_non_null(deliveries);
    for (size_t i = 0; i < n; i++) {
        char *payload = semel__arena_alloc(&arena, bytes + 1, 1);
        deliveries[i] = (struct semel_delivery){.tag = first + i, .lane = lane, .payload = {payload, bytes}};
    }
    assert_int_equal(semel__handoff_give_take(handoff, &arena, deliveries, n, &err), SEMEL_OK);
    semel__arena_done(&arena);
}

static size_t poll_tags(struct semel_broker *queue, size_t max, int wait_ms, uint64_t *tags)
{
    struct semel_arena arena;
    struct semel_delivery *deliveries;
    struct semel_error err;
    size_t n;
    semel__arena_init(&arena, 1 << 20);
    assert_int_equal(semel_broker_poll(queue, max, wait_ms, &arena, &deliveries, &n, &err), SEMEL_OK);
    for (size_t i = 0; i < n; i++)
        tags[i] = deliveries[i].tag;
    semel__arena_done(&arena);
    return n;
}

static void expect(struct semel_broker *queue, size_t n, ...)
{
    uint64_t tags[POLL_MAX];
    va_list args;
    assert_int_equal(poll_tags(queue, POLL_MAX, 0, tags), n);
    va_start(args, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tags[i], va_arg(args, int));
    va_end(args);
}

static void apply_all(struct semel_handoff *handoff)
{
    struct semel_answered *answers = semel__handoff_answers(handoff, 0);
    while (answers != NULL) {
        struct semel_answered *answer = answers;
        answers = answer->next;
        semel__handoff_applied(handoff, answer);
    }
}

static void later(struct semel_broker *queue, uint64_t tag)
{
    struct semel_error err;
    assert_int_equal(answer_later(queue, &tag, 1, 7, &err), SEMEL_OK);
}

/* ---- one thread ---------------------------------------------------------------------------------- */

static void what_is_given_is_taken_in_order(void **state)
{
    (void)state;
    struct semel_handoff *handoff = handoff_of(1, 100, true);
    give(handoff, 1, 1, 2, 0);
    give(handoff, 2, 3, 2, 0);
    expect(semel__handoff_queue(handoff, 0), 4, 1, 2, 3, 4);
    expect(semel__handoff_queue(handoff, 0), 0);
    semel__handoff_free(handoff);
}

static void a_lane_stays_with_one_queue(void **state)
{
    /* I13 */
    (void)state;
    struct semel_handoff *handoff = handoff_of(4, 1000, true);
    uint64_t tags[POLL_MAX];
    bool used[4] = {false};
    for (uint64_t lane = 0; lane < 20; lane++) {
        give(handoff, lane, 10 * lane, 3, 0);
        give(handoff, lane, 10 * lane + 3, 3, 0);
    }
    for (size_t s = 0; s < 4; s++) {
        size_t n = poll_tags(semel__handoff_queue(handoff, s), POLL_MAX, 0, tags);
        used[s] = n > 0;
        assert_int_equal(n % 6, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(tags[i] % 10, i % 6);
    }
    assert_true(used[0] && used[1] && used[2] && used[3]);
    semel__handoff_free(handoff);
}

static void without_lanes_the_idlest_queue_is_given_more(void **state)
{
    (void)state;
    struct semel_handoff *handoff = handoff_of(2, 100, false);
    give(handoff, 1, 1, 10, 0);
    uint64_t tags[POLL_MAX];
    assert_int_equal(poll_tags(semel__handoff_queue(handoff, 0), POLL_MAX, 0, tags), 5);
    assert_int_equal(poll_tags(semel__handoff_queue(handoff, 1), POLL_MAX, 0, tags), 5);
    semel__handoff_free(handoff);
}

static void what_follows_a_delivery_that_went_back_goes_back_too(void **state)
{
    /* I13 */
    (void)state;
    struct semel_handoff *handoff = handoff_of(1, 100, true);
    struct semel_broker *queue = semel__handoff_queue(handoff, 0);
    uint64_t tags[POLL_MAX];
    give(handoff, 1, 1, 3, 0); /* 1 2 3 */
    give(handoff, 2, 4, 1, 0);
    assert_int_equal(poll_tags(queue, 1, 0, tags), 1);
    later(queue, 1);
    expect(queue, 1, 4); /* not 2 and 3: they would overtake 1 */
    struct semel_answered *answers = semel__handoff_answers(handoff, 0);
    assert_non_null(answers);
    assert_int_equal(answers->replies[0].tag, 1);
    assert_int_equal(answers->replies[0].delay_ms, 7);
    assert_int_equal(answers->next->n, 2);
    assert_int_equal(answers->next->replies[1].tag, 3);
    give(handoff, 1, 5, 2, 0); /* given before the source had gone back: neither may these */
    expect(queue, 0);
    struct semel_answered *second = answers->next;
    semel__handoff_applied(handoff, answers);
    give(handoff, 1, 7, 1, 0); /* 2 and 3 have not been applied yet */
    expect(queue, 0);
    semel__handoff_applied(handoff, second);
    apply_all(handoff);
    expect(queue, 0);
    apply_all(handoff);
    give(handoff, 1, 11, 3, 0);
    expect(queue, 3, 11, 12, 13);
    semel__handoff_free(handoff);
}

static void what_was_given_before_the_broker_was_opened_anew_is_forgotten(void **state)
{
    (void)state;
    struct semel_handoff *handoff = handoff_of(1, 10, true);
    struct semel_broker *queue = semel__handoff_queue(handoff, 0);
    uint64_t tags[POLL_MAX];
    size_t out;
    give(handoff, 1, 1, 3, 0);
    assert_int_equal(poll_tags(queue, 1, 0, tags), 1);
    later(queue, 1); /* nobody will ever apply it */
    semel__handoff_invalidate(handoff);
    assert_int_equal(semel__handoff_room(handoff, &out), 10);
    give(handoff, 1, 21, 2, 0);
    expect(queue, 2, 21, 22);
    apply_all(handoff); /* an answer of the past frees no room */
    assert_int_equal(semel__handoff_room(handoff, &out), 8);
    semel__handoff_free(handoff);
}

static void a_queue_that_reopens_gets_nothing_until_the_source_has_done_so(void **state)
{
    (void)state;
    struct semel_handoff *handoff = handoff_of(1, 10, true);
    struct semel_broker *queue = semel__handoff_queue(handoff, 0);
    struct semel_error err;
    give(handoff, 1, 1, 3, 0);
    assert_false(semel__handoff_wants_reopen(handoff));
    assert_int_equal(semel_broker_reopen(queue, &err), SEMEL_OK);
    assert_true(semel__handoff_wants_reopen(handoff));
    expect(queue, 0);
    semel__handoff_invalidate(handoff);
    assert_false(semel__handoff_wants_reopen(handoff));
    give(handoff, 1, 11, 1, 0);
    expect(queue, 1, 11);
    semel__handoff_free(handoff);
}

static void room_is_bounded_by_number_and_by_bytes(void **state)
{
    (void)state;
    struct semel_handoff *handoff = handoff_of(1, 10, false);
    struct semel_broker *queue = semel__handoff_queue(handoff, 0);
    struct semel_error err;
    uint64_t tags[POLL_MAX];
    size_t out;
    give(handoff, 1, 1, 10, 0);
    assert_int_equal(semel__handoff_room(handoff, &out), 0);
    assert_int_equal(out, 10);
    assert_int_equal(poll_tags(queue, 4, 0, tags), 4);
    assert_int_equal(answer_ack(queue, tags, 4, &err), SEMEL_OK);
    assert_int_equal(semel__handoff_room(handoff, &out), 0); /* not before the source has applied it */
    apply_all(handoff);
    assert_int_equal(semel__handoff_room(handoff, &out), 4);
    give(handoff, 1, 20, 3, SEMEL_HANDOFF_BYTES / 2);
    assert_int_equal(semel__handoff_room(handoff, &out), 0);
    semel__handoff_free(handoff);

    handoff = handoff_of(1, 1000, false);
    give(handoff, 1, 1, 3, SEMEL_HANDOFF_BYTES / 4);
    assert_int_equal(semel__handoff_room(handoff, &out), 1); /* as many as are likely to fit, and one */
    semel__handoff_free(handoff);
}

static bool readable(struct semel_broker *queue)
{
    struct pollfd fd = {.fd = semel_broker_fd(queue), .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static void the_descriptor_is_readable_while_a_poll_would_deliver(void **state)
{
    (void)state;
    struct semel_handoff *handoff = handoff_of(2, 10, false);
    struct semel_broker *queue = semel__handoff_queue(handoff, 0), *other = semel__handoff_queue(handoff, 1);
    struct semel_error err;
    uint64_t tags[POLL_MAX];
    assert_false(readable(queue));
    give(handoff, 1, 1, 3, 0);
    assert_true(readable(queue) && readable(other));
    assert_int_equal(poll_tags(queue, 1, 0, tags), 1);
    assert_true(readable(queue));
    assert_int_equal(poll_tags(queue, 1, 0, tags), 1);
    assert_false(readable(queue));
    assert_int_equal(semel_broker_reopen(other, &err), SEMEL_OK); /* nothing is delivered before the source was, too */
    assert_false(readable(other));
    semel__handoff_invalidate(handoff);
    give(handoff, 1, 11, 4, 0); /* the idle one is given more of it */
    assert_true(readable(other));
    semel__handoff_free(handoff);
}

static void *wake(void *queue)
{
    semel_broker_wake(queue);
    return NULL;
}

/* The waits are far longer than the test may take. */
static void who_is_woken_polls_nothing_whenever_it_was(void **state)
{
    (void)state;
    struct semel_handoff *handoff = handoff_of(1, 10, false);
    struct semel_broker *queue = semel__handoff_queue(handoff, 0);
    uint64_t tags[POLL_MAX];
    pthread_t thread;
    semel_broker_wake(queue);
    assert_int_equal(poll_tags(queue, 10, 3600 * 1000, tags), 0);
    assert_int_equal(pthread_create(&thread, NULL, wake, queue), 0);
    assert_int_equal(poll_tags(queue, 10, 3600 * 1000, tags), 0);
    pthread_join(thread, NULL);
    give(handoff, 1, 1, 3, 0);
    semel_broker_wake(queue);
    assert_int_equal(poll_tags(queue, 10, 3600 * 1000, tags), 0);
    assert_int_equal(poll_tags(queue, 10, 3600 * 1000, tags), 3);
    semel__handoff_free(handoff);
}

static void without_memory_nothing_is_lost(void **state)
{
    (void)state;
    for (unsigned at = 1, reached = true; reached; at++) {
        struct semel_handoff *handoff = handoff_of(2, 10, true);
        struct semel_arena arena;
        struct semel_error err;
        struct fail_nth fail;
        semel__arena_init(&arena, 1 << 20);
        struct semel_delivery *deliveries = semel__arena_alloc(&arena, 2, sizeof *deliveries);
        deliveries[0] = (struct semel_delivery){.tag = 1, .lane = 1};
        deliveries[1] = (struct semel_delivery){.tag = 2, .lane = 1};
        fail_nth_begin(&fail, at);
        semel_status status = semel__handoff_give_take(handoff, &arena, deliveries, 2, &err);
        reached = fail_nth_end(&fail);
        size_t out;
        (void)semel__handoff_room(handoff, &out);
        assert_int_equal(out, status == SEMEL_OK ? 2 : 0);
        semel__arena_done(&arena);
        semel__handoff_free(handoff);
    }
}

/* ---- threads ------------------------------------------------------------------------------------- */

/* A source with lanes that goes back, loses a lane now and then, and is opened anew; workers that do or give back. The
 * first time that a message is done must be after its predecessor's, and all of them are done in the end (P27, I13). */
#define LANES 12
#define LENGTH 400
#define WORKERS 3

struct toy_tag {
    uint32_t lane, offset, generation;
};

struct toy {
    struct semel_handoff *handoff;
    struct semel_random rng;
    uint32_t next[LANES], acked[LANES], generation[LANES];
    bool seen[LANES][LENGTH];
    struct toy_tag *tags;
    size_t n_tags, max_tags;
    _Atomic uint32_t done[LANES];
    _Atomic bool broken, stop;
};

static void toy_back(struct toy *toy, uint32_t lane, uint32_t offset)
{
    toy->generation[lane]++;
    toy->next[lane] = offset;
    for (uint32_t i = offset; i < LENGTH; i++)
        toy->seen[lane][i] = false;
}

static void toy_answer(struct toy *toy, const struct semel_answered *answer)
{
    for (size_t i = 0; i < answer->n; i++) {
        const struct toy_tag *tag = &toy->tags[answer->replies[i].tag];
        if (tag->generation != toy->generation[tag->lane])
            continue; /* fenced */
        if (!semel__reply_acks(&answer->replies[i])) {
            toy_back(toy, tag->lane, tag->offset);
            continue;
        }
        toy->seen[tag->lane][tag->offset] = true;
        while (toy->acked[tag->lane] < LENGTH && toy->seen[tag->lane][toy->acked[tag->lane]])
            toy->acked[tag->lane]++;
    }
}

static bool toy_over(const struct toy *toy)
{
    for (int lane = 0; lane < LANES; lane++)
        if (toy->acked[lane] < LENGTH)
            return false;
    return true;
}

static void toy_poll(struct toy *toy, size_t max)
{
    struct semel_arena arena;
    struct semel_error err;
    semel__arena_init(&arena, 1 << 20);
    struct semel_delivery *deliveries = semel__arena_alloc(&arena, max, sizeof *deliveries);
    size_t n = 0;
    for (size_t tries = 0; n < max && tries < 4 * (size_t)LANES; tries++) {
        uint32_t lane = (uint32_t)semel__random_below(&toy->rng, LANES);
        for (uint64_t run = semel__random_below(&toy->rng, 5); run > 0 && n < max && toy->next[lane] < LENGTH; run--) {
            assert_true(toy->n_tags < toy->max_tags);
            toy->tags[toy->n_tags] = (struct toy_tag){lane, toy->next[lane]++, toy->generation[lane]};
            deliveries[n++] = (struct semel_delivery){.tag = toy->n_tags++, .lane = lane};
        }
    }
    assert_int_equal(semel__handoff_give_take(toy->handoff, &arena, deliveries, n, &err), SEMEL_OK);
    semel__arena_done(&arena);
}

struct toy_worker {
    struct toy *toy;
    struct semel_broker *queue;
    struct semel_random rng;
};

static void toy_do(struct toy_worker *worker, const struct semel_delivery *deliveries, size_t n)
{
    struct toy *toy = worker->toy;
    struct semel_error err;
    static const struct semel_settled acked = {.act = SEMEL_ACK};
    struct semel_reply replies[64];
    bool closed[LANES] = {false};
    for (size_t i = 0; i < n; i++) {
        uint32_t lane = (uint32_t)deliveries[i].lane, offset = toy->tags[deliveries[i].tag].offset;
        closed[lane] |= semel__random_chance(&worker->rng, 20);
        replies[i] = (struct semel_reply){.tag = deliveries[i].tag, .settled = closed[lane] ? NULL : &acked};
        if (closed[lane])
            continue;
        uint32_t done = atomic_load(&toy->done[lane]);
        if (offset > done)
            atomic_store(&toy->broken, true); /* it overtook its predecessor */
        if (offset == done)
            atomic_store(&toy->done[lane], done + 1);
    }
    (void)semel_broker_answer(worker->queue, replies, n, &err);
}

static void *toy_work(void *arg)
{
    struct toy_worker *worker = arg;
    struct semel_arena arena;
    semel__arena_init(&arena, 1 << 20);
    while (!atomic_load(&worker->toy->stop)) {
        struct semel_delivery *deliveries;
        struct semel_error err;
        size_t n;
        semel__arena_reset(&arena);
        if (semel_broker_poll(worker->queue, 1 + semel__random_below(&worker->rng, 60), 5, &arena, &deliveries, &n,
                              &err) == SEMEL_OK)
            toy_do(worker, deliveries, n);
    }
    semel__arena_done(&arena);
    return NULL;
}

static void toy_source(struct toy *toy)
{
    while (!toy_over(toy) && !atomic_load(&toy->broken)) {
        size_t out, room = semel__handoff_room(toy->handoff, &out);
        struct semel_answered *answers = semel__handoff_answers(toy->handoff, room == 0 ? 5 : 0);
        while (answers != NULL) {
            struct semel_answered *answer = answers;
            answers = answer->next;
            toy_answer(toy, answer);
            semel__handoff_applied(toy->handoff, answer);
        }
        if (semel__random_chance(&toy->rng, 10)) { /* a lane is taken away, and comes back */
            uint32_t lane = (uint32_t)semel__random_below(&toy->rng, LANES);
            toy_back(toy, lane, toy->acked[lane]);
        }
        if (semel__random_chance(&toy->rng, 3)) {
            for (uint32_t lane = 0; lane < LANES; lane++)
                toy_back(toy, lane, toy->acked[lane]);
            semel__handoff_invalidate(toy->handoff);
        }
        if (room > 0)
            toy_poll(toy, room < 40 ? room : 40);
    }
}

static void no_thread_overtakes_and_nothing_is_lost(void **state)
{
    (void)state;
    static struct toy toy;
    struct toy_worker workers[WORKERS];
    pthread_t threads[WORKERS];
    toy = (struct toy){.handoff = handoff_of(WORKERS, 200, true), .max_tags = 4000000};
    toy.tags = calloc(toy.max_tags, sizeof *toy.tags);
    assert_non_null(toy.tags);
    semel__random_seed(&toy.rng, 5);
    for (size_t i = 0; i < WORKERS; i++) {
        workers[i] = (struct toy_worker){&toy, semel__handoff_queue(toy.handoff, i), {{0}}};
        semel__random_seed(&workers[i].rng, 100 + i);
        assert_int_equal(pthread_create(&threads[i], NULL, toy_work, &workers[i]), 0);
    }
    toy_source(&toy);
    atomic_store(&toy.stop, true);
    for (size_t i = 0; i < WORKERS; i++)
        semel_broker_wake(workers[i].queue);
    for (size_t i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    assert_false(toy.broken);
    for (size_t lane = 0; lane < LANES; lane++)
        assert_int_equal(toy.done[lane], LENGTH);
    semel__handoff_free(toy.handoff);
    free(toy.tags);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_given_is_taken_in_order),
        cmocka_unit_test(a_lane_stays_with_one_queue),
        cmocka_unit_test(without_lanes_the_idlest_queue_is_given_more),
        cmocka_unit_test(what_follows_a_delivery_that_went_back_goes_back_too),
        cmocka_unit_test(what_was_given_before_the_broker_was_opened_anew_is_forgotten),
        cmocka_unit_test(a_queue_that_reopens_gets_nothing_until_the_source_has_done_so),
        cmocka_unit_test(room_is_bounded_by_number_and_by_bytes),
        cmocka_unit_test(the_descriptor_is_readable_while_a_poll_would_deliver),
        cmocka_unit_test(who_is_woken_polls_nothing_whenever_it_was),
        cmocka_unit_test(without_memory_nothing_is_lost),
        cmocka_unit_test(no_thread_overtakes_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
