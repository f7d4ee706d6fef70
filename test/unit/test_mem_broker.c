/* SPDX-License-Identifier: MIT
 *
 * test_mem_broker.c: what is special to the in-memory broker: faults, lost acknowledgements, rebalances, redelivery,
 * and no memory at any moment. The contract of every broker is in test/conform.
 */
#include "base/error.h"
#include "support/answer.h"
#include "support/mem_broker.h"
#include "unit.h"

struct fixture {
    struct semel_mem_queue *queue;
    struct semel_broker *a, *b;
    struct semel_arena arena;
    struct semel_error err;
    struct semel_delivery *d; /* of the last poll */
    size_t n;
    uint64_t tags[16];
    char letters[17];
};

static struct fixture f;

static void start(enum semel_queue_mode mode, size_t n_partitions, const char *letters)
{
    assert_int_equal(semel__mem_queue_new(&f.queue, mode, n_partitions, NULL), SEMEL_OK);
    assert_int_equal(semel__broker_mem_open(&f.a, f.queue, &f.err), SEMEL_OK);
    for (size_t i = 0; letters[i] != '\0'; i++) {
        const struct semel_mem_push push = {.source = SEMEL_STR("topic"),
                                            .key = {letters + i, 1},
                                            .payload = {letters + i, 1}};
        assert_int_equal(semel__mem_queue_push(f.queue, &push, 1, &f.err), SEMEL_OK);
    }
}

static int setup(void **state)
{
    (void)state;
    f = (struct fixture){0};
    semel__arena_init(&f.arena, 1 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    semel_broker_close(f.a);
    semel_broker_close(f.b);
    semel__mem_queue_free(f.queue);
    semel__arena_done(&f.arena);
    return 0;
}

static semel_status poll(struct semel_broker *broker)
{
    semel_status status = semel_broker_poll(broker, 16, 0, &f.arena, &f.d, &f.n, &f.err);

    memset(f.letters, 0, sizeof f.letters);
    for (size_t i = 0; status == SEMEL_OK && i < f.n; i++) {
        f.tags[i] = f.d[i].tag;
        f.letters[i] = f.d[i].payload.p[0];
    }
    return status;
}

static const char *polled(struct semel_broker *broker)
{
    assert_int_equal(poll(broker), SEMEL_OK);
    return f.letters;
}

static semel_status ack(struct semel_broker *broker, size_t from, size_t n)
{
    return answer_ack(broker, f.tags + from, n, &f.err);
}

struct plan {
    const char *op;
    enum semel_queue_fault fault;
};

static enum semel_queue_fault plan_hook(void *ctx, const char *op)
{
    const struct plan *plan = ctx;

    return strcmp(op, plan->op) == 0 ? plan->fault : SEMEL_QUEUE_GO;
}

/* ---- handles ------------------------------------------------------------------------------------------ */

static void ordered_acknowledgements_move_a_floor(void **state)
{
    (void)state;
    start(SEMEL_QUEUE_ORDERED, 1, "abcd");
    assert_string_equal(polled(f.a), "abcd");
    assert_int_equal(ack(f.a, 1, 2), SEMEL_OK); /* b and c, above the floor */
    assert_int_equal(semel__mem_queue_unacked(f.queue), 4);
    assert_int_equal(ack(f.a, 0, 1), SEMEL_OK);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 1);
}

static void acknowledgement_above_the_floor_is_forgotten_when_the_partition_moves(void **state)
{
    (void)state;
    start(SEMEL_QUEUE_ORDERED, 1, "abc");
    assert_string_equal(polled(f.a), "abc");
    assert_int_equal(ack(f.a, 1, 1), SEMEL_OK);
    assert_int_equal(semel__broker_mem_open(&f.b, f.queue, &f.err), SEMEL_OK); /* gets nothing: one partition */
    assert_string_equal(polled(f.b), "");
    semel_broker_close(f.a);
    f.a = NULL;
    assert_string_equal(polled(f.b), "abc");
    assert_int_equal(ack(f.b, 0, 3), SEMEL_OK);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 0);
}

static void unordered_acknowledgements_count_one_by_one(void **state)
{
    (void)state;
    start(SEMEL_QUEUE_UNORDERED, 0, "abc");
    assert_string_equal(polled(f.a), "abc");
    assert_int_equal(ack(f.a, 1, 1), SEMEL_OK);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 2);
    assert_int_equal(semel__broker_mem_open(&f.b, f.queue, &f.err), SEMEL_OK);
    assert_string_equal(polled(f.b), "");
    semel_broker_close(f.a);
    f.a = NULL;
    assert_string_equal(polled(f.b), "ac");
}

/* ---- faults ------------------------------------------------------------------------------------------- */

static void asked_for_retry_does_nothing(void **state)
{
    struct plan plan = {"poll", SEMEL_QUEUE_RETRY};

    (void)state;
    start(SEMEL_QUEUE_ORDERED, 1, "a");
    semel__broker_mem_set_hook(f.a, plan_hook, &plan);
    assert_int_equal(poll(f.a), SEMEL_RETRY);
    plan.op = "ack";
    assert_string_equal(polled(f.a), "a");
    assert_int_equal(f.d[0].delivery, 1);
    assert_int_equal(ack(f.a, 0, 1), SEMEL_RETRY);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 1);
    plan.op = "later";
    assert_int_equal(ack(f.a, 0, 1), SEMEL_OK);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 0);
}

static void lost_connection_fences_and_stays_closed_until_reopen(void **state)
{
    struct plan plan = {"ack", SEMEL_QUEUE_CLOSE};

    (void)state;
    start(SEMEL_QUEUE_ORDERED, 1, "ab");
    semel__broker_mem_set_hook(f.a, plan_hook, &plan);
    assert_string_equal(polled(f.a), "ab");
    assert_int_equal(ack(f.a, 0, 2), SEMEL_CLOSED);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 2);
    assert_int_equal(poll(f.a), SEMEL_CLOSED);
    plan.op = "reopen";
    assert_int_equal(semel_broker_reopen(f.a, &f.err), SEMEL_CLOSED);
    plan.op = "none";
    assert_int_equal(semel_broker_reopen(f.a, &f.err), SEMEL_OK);
    assert_int_equal(ack(f.a, 0, 2), SEMEL_FENCED);
    assert_string_equal(polled(f.a), "ab");
    assert_int_equal(f.d[0].delivery, 2);
}

static void lost_acknowledgement_is_answered_ok_and_the_message_comes_again(void **state)
{
    struct plan plan = {"ack", SEMEL_QUEUE_LOST};

    for (int mode = SEMEL_QUEUE_ORDERED; mode <= SEMEL_QUEUE_UNORDERED; mode++) {
        plan.op = "ack";
        start(mode, 1, "ab");
        semel__broker_mem_set_hook(f.a, plan_hook, &plan);
        assert_string_equal(polled(f.a), "ab");
        assert_int_equal(ack(f.a, 0, 2), SEMEL_OK);
        assert_int_equal(semel__mem_queue_unacked(f.queue), 2);
        assert_string_equal(polled(f.a), "");
        plan.op = "none";
        assert_int_equal(semel_broker_reopen(f.a, &f.err), SEMEL_OK);
        assert_string_equal(polled(f.a), "ab");
        assert_int_equal(ack(f.a, 0, 2), SEMEL_OK);
        assert_int_equal(semel__mem_queue_unacked(f.queue), 0);
        teardown(state);
        setup(state);
    }
}

static void later_acknowledgement_covers_a_lost_one_of_its_partition(void **state)
{
    struct plan plan = {"ack", SEMEL_QUEUE_LOST};

    (void)state;
    start(SEMEL_QUEUE_ORDERED, 1, "abc");
    semel__broker_mem_set_hook(f.a, plan_hook, &plan);
    assert_string_equal(polled(f.a), "abc");
    assert_int_equal(ack(f.a, 0, 1), SEMEL_OK);
    plan.op = "none";
    assert_int_equal(ack(f.a, 1, 1), SEMEL_OK);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 1);
}

/* ---- rebalances --------------------------------------------------------------------------------------- */

/* P27 */
static void expelled_handle_is_fenced_and_its_work_goes_to_the_others(void **state)
{
    for (int mode = SEMEL_QUEUE_ORDERED; mode <= SEMEL_QUEUE_UNORDERED; mode++) {
        uint64_t old[2];
        start(mode, 1, "ab");
        assert_string_equal(polled(f.a), "ab");
        memcpy(old, f.tags, sizeof old);
        assert_int_equal(semel__broker_mem_open(&f.b, f.queue, &f.err), SEMEL_OK);
        semel__mem_queue_expel(f.queue, f.a);
        assert_string_equal(polled(f.b), "ab");
        assert_int_equal(f.d[0].delivery, 2);
        assert_int_equal(answer_ack(f.a, old, 2, &f.err), SEMEL_FENCED);
        assert_int_equal(answer_later(f.a, old, 2, 0, &f.err), SEMEL_FENCED);
        assert_int_equal(semel__mem_queue_unacked(f.queue), 2);
        assert_int_equal(ack(f.b, 0, 2), SEMEL_OK);
        assert_int_equal(semel__mem_queue_unacked(f.queue), 0);
        assert_string_equal(polled(f.a), ""); /* it has joined again */
        teardown(state);
        setup(state);
    }
}

static void expelled_handle_joins_again_with_its_next_poll(void **state)
{
    (void)state;
    start(SEMEL_QUEUE_ORDERED, 4, "abcdefgh");
    assert_int_equal(poll(f.a), SEMEL_OK);
    assert_int_equal(f.n, 8);
    semel__mem_queue_expel(f.queue, f.a);
    semel__mem_queue_expel(f.queue, f.a);
    assert_int_equal(poll(f.a), SEMEL_OK);
    assert_int_equal(f.n, 8);
    assert_int_equal(ack(f.a, 0, 8), SEMEL_OK);
}

static void new_member_takes_over_some_partitions_from_their_floors(void **state)
{
    size_t n_a, n_b;

    (void)state;
    start(SEMEL_QUEUE_ORDERED, 4, "abcdefgh");
    assert_int_equal(poll(f.a), SEMEL_OK);
    assert_int_equal(semel__broker_mem_open(&f.b, f.queue, &f.err), SEMEL_OK);
    assert_int_equal(ack(f.a, 0, 8), SEMEL_FENCED); /* some of them */
    n_a = semel__mem_queue_unacked(f.queue);
    assert_true(n_a > 0 && n_a < 8);
    assert_int_equal(poll(f.b), SEMEL_OK);
    n_b = f.n;
    assert_int_equal(n_a, n_b);
    assert_int_equal(ack(f.b, 0, n_b), SEMEL_OK);
    assert_int_equal(semel__mem_queue_unacked(f.queue), 0);
}

/* ---- redelivery and publishing ------------------------------------------------------------------------ */

static void acknowledged_message_can_be_made_to_come_again(void **state)
{
    for (int mode = SEMEL_QUEUE_ORDERED; mode <= SEMEL_QUEUE_UNORDERED; mode++) {
        start(mode, 1, "ab");
        assert_string_equal(polled(f.a), "ab");
        assert_int_equal(ack(f.a, 0, 2), SEMEL_OK);
        assert_int_equal(semel__mem_queue_redeliver(f.queue, 0, &f.err), SEMEL_OK);
        assert_int_equal(semel__mem_queue_redeliver(f.queue, 2, &f.err), SEMEL_INVALID);
        assert_int_equal(semel__mem_queue_unacked(f.queue), 1);
        assert_string_equal(polled(f.a), "a");
        assert_int_equal(f.d[0].delivery, 2);
        if (mode == SEMEL_QUEUE_ORDERED)
            assert_str(f.d[0].position, "0/0");
        assert_int_equal(ack(f.a, 0, 1), SEMEL_OK);
        assert_int_equal(semel__mem_queue_count(f.queue), 2);
        teardown(state);
        setup(state);
    }
}

static void what_is_published_elsewhere_is_recorded(void **state)
{
    const struct semel_pair header = {SEMEL_STR("h"), SEMEL_STR("v")};
    struct semel_publish item = {.destination = SEMEL_STR("d"),
                                 .key = SEMEL_STR("k"),
                                 .id = SEMEL_STR("id"),
                                 .payload = SEMEL_STR("p\0"),
                                 .headers = &header,
                                 .n_headers = 1};
    const struct semel_mem_published *published = NULL;
    struct plan plan = {"publish", SEMEL_QUEUE_LOST};

    (void)state;
    start(SEMEL_QUEUE_ORDERED, 1, "");
    assert_int_equal(semel_broker_publish(f.a, &item, 1, 60000, &f.err), SEMEL_OK);
    assert_int_equal(item.status, SEMEL_OK);
    semel__broker_mem_set_hook(f.a, plan_hook, &plan);
    assert_int_equal(semel_broker_publish(f.a, &item, 1, 60000, &f.err), SEMEL_OK);
    assert_int_equal(item.status, SEMEL_UNKNOWN);
    plan.fault = SEMEL_QUEUE_RETRY;
    assert_int_equal(semel_broker_publish(f.a, &item, 1, 60000, &f.err), SEMEL_RETRY);
    assert_int_equal(item.status, SEMEL_RETRY);
    assert_int_equal(semel__mem_queue_published(f.queue, &published), 2);
    assert_str(published[1].destination, "d");
    assert_str(published[1].key, "k");
    assert_str(published[1].id, "id");
    assert_int_equal(published[1].payload.n, 2);
    assert_str(published[1].headers[0].value, "v");
}

/* ---- no memory ---------------------------------------------------------------------------------------- */

static semel_status do_everything(struct semel_mem_queue *queue, struct semel_broker *broker, struct semel_arena *arena)
{
    const struct semel_pair header = {SEMEL_STR("h"), SEMEL_STR("v")};
    const struct semel_mem_push pushes[] = {
        {.source = SEMEL_STR("s"), .payload = SEMEL_STR("1"), .headers = &header, .n_headers = 1},
        {.source = SEMEL_STR("s"), .payload = SEMEL_STR("2")}};
    struct semel_publish items[] = {{.destination = SEMEL_STR("self"), .id = SEMEL_STR("i")},
                                    {.destination = SEMEL_STR("away"), .id = SEMEL_STR("i")}};
    struct semel_delivery *d;
    size_t n;
    semel_status status = semel__mem_queue_push(queue, pushes, 2, NULL);

    if (status != SEMEL_OK) {
        assert_int_equal(semel__mem_queue_count(queue), 0);
        assert_int_equal(semel__mem_queue_unacked(queue), 0);
        return status;
    }
    status = semel__mem_queue_link(queue, SEMEL_STR("self"), queue, NULL);
    if (status == SEMEL_OK)
        status = semel__mem_queue_redeliver(queue, 0, NULL);
    if (status == SEMEL_OK)
        status = semel_broker_publish(broker, items, 2, 60000, NULL);
    for (size_t i = 0; status == SEMEL_OK && i < 2; i++)
        status = items[i].status;
    if (status != SEMEL_OK)
        return status;
    status = semel_broker_poll(broker, 10, 0, arena, &d, &n, NULL);
    if (status != SEMEL_OK) { /* nothing was handed out */
        semel__alloc_set_hook(NULL, NULL);
        assert_int_equal(semel_broker_poll(broker, 10, 0, arena, &d, &n, NULL), SEMEL_OK);
        assert_int_equal(n, 4);
        assert_int_equal(d[1].delivery, 1);
    }
    return status;
}

static void failed_allocation_is_retry_and_loses_nothing(void **state)
{
    struct fail_nth fail;
    bool reached = true;

    (void)state;
    for (unsigned at = 1; reached; at++) {
        struct semel_mem_queue *queue = NULL;
        struct semel_broker *broker = NULL;
        struct semel_arena arena;
        semel_status status;
        semel__arena_init(&arena, 1 << 20);
        fail_nth_begin(&fail, at);
        status = semel__mem_queue_new(&queue, SEMEL_QUEUE_ORDERED, 1, NULL);
        if (status == SEMEL_OK)
            status = semel__broker_mem_open(&broker, queue, NULL);
        if (status == SEMEL_OK)
            status = do_everything(queue, broker, &arena);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        semel_broker_close(broker);
        semel__mem_queue_free(queue);
        semel__arena_done(&arena);
    }
    assert_true(fail.seen > 12);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ordered_acknowledgements_move_a_floor),
        TEST(acknowledgement_above_the_floor_is_forgotten_when_the_partition_moves),
        TEST(unordered_acknowledgements_count_one_by_one),
        TEST(asked_for_retry_does_nothing),
        TEST(lost_connection_fences_and_stays_closed_until_reopen),
        TEST(lost_acknowledgement_is_answered_ok_and_the_message_comes_again),
        TEST(later_acknowledgement_covers_a_lost_one_of_its_partition),
        TEST(expelled_handle_is_fenced_and_its_work_goes_to_the_others),
        TEST(expelled_handle_joins_again_with_its_next_poll),
        TEST(new_member_takes_over_some_partitions_from_their_floors),
        TEST(acknowledged_message_can_be_made_to_come_again),
        TEST(what_is_published_elsewhere_is_recorded),
        TEST(failed_allocation_is_retry_and_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
