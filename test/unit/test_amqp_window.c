/* SPDX-License-Identifier: MIT
 *
 * test_amqp_window.c: which answers are sent for the deliveries of a channel, and which tags still count; without a
 * server.
 */
#include "broker/amqp_private.h"
#include "unit/unit.h"

struct bench {
    struct amqp_window window;
    uint64_t tags[256]; /* of the numbers from 1 on */
};

static int setup(void **state)
{
    struct bench *bench = semel__calloc(1, sizeof *bench);

    semel__amqp_window_begin(&bench->window);
    *state = bench;
    return 0;
}

static int teardown(void **state)
{
    struct bench *bench = *state;

    semel__amqp_window_done(&bench->window);
    semel__free(bench);
    return 0;
}

static void deliver(struct bench *bench, uint64_t from, uint64_t to)
{
    for (uint64_t number = from; number <= to; number++)
        assert_true(semel__amqp_window_enter(&bench->window, number, &bench->tags[number]));
}

static bool ack(struct bench *bench, uint64_t number)
{
    return semel__amqp_window_ack(&bench->window, bench->tags[number]);
}

/* "3* 5 7": what is sent, with a star for "and all before it". */
static void assert_acks(struct bench *bench, const char *expected)
{
    char text[256] = "";
    uint64_t number;
    bool multiple;
    size_t n = 0;

    while (semel__amqp_window_next_ack(&bench->window, &number, &multiple))
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%llu%s", n > 0 ? " " : "", (unsigned long long)number,
                              multiple ? "*" : "");
    assert_string_equal(text, expected);
}

static void run_from_the_oldest_is_one_acknowledgement(void **state)
{
    struct bench *bench = *state;

    deliver(bench, 1, 5);
    for (uint64_t number = 1; number <= 5; number++)
        assert_true(ack(bench, number));
    assert_acks(bench, "5*");
    assert_int_equal(bench->window.live, 0);
}

/* P30 */
static void what_is_unanswered_is_never_acknowledged_along(void **state)
{
    struct bench *bench = *state;

    deliver(bench, 1, 8);
    assert_true(ack(bench, 8) && ack(bench, 2) && ack(bench, 3) && ack(bench, 5));
    assert_acks(bench, "2 3 5 8");
    assert_true(ack(bench, 1));
    assert_acks(bench, "1");
    assert_true(ack(bench, 6) && ack(bench, 4));
    assert_acks(bench, "6*"); /* 5 is gone, 7 is not */
    assert_true(ack(bench, 7));
    assert_acks(bench, "7");
    assert_acks(bench, "");
}

/* P30 */
static void delivery_is_answered_once(void **state)
{
    struct bench *bench = *state;
    uint64_t number;

    deliver(bench, 1, 3);
    assert_true(ack(bench, 2));
    assert_false(ack(bench, 2));
    assert_acks(bench, "2");
    assert_false(ack(bench, 2));
    assert_false(semel__amqp_window_hold(&bench->window, bench->tags[2], 0));
    assert_true(semel__amqp_window_hold(&bench->window, bench->tags[3], 5));
    assert_false(ack(bench, 3));
    assert_true(semel__amqp_window_next_due(&bench->window, 5, &number));
    assert_int_equal(number, 3);
    assert_false(ack(bench, 3));
    assert_int_equal(bench->window.live, 1);
}

/* P30 */
static void tags_of_another_channel_are_fenced(void **state)
{
    struct bench *bench = *state;
    const uint64_t old = (deliver(bench, 1, 2), bench->tags[1]);

    semel__amqp_window_end(&bench->window);
    assert_false(semel__amqp_window_ack(&bench->window, old));
    semel__amqp_window_begin(&bench->window);
    deliver(bench, 1, 2);
    assert_false(semel__amqp_window_ack(&bench->window, old));
    assert_false(semel__amqp_window_hold(&bench->window, old, 0));
    assert_false(semel__amqp_window_cut(&bench->window, old));
    assert_false(semel__amqp_window_ack(&bench->window, UINT64_C(999) << 32));
    assert_false(semel__amqp_window_ack(&bench->window, 0));
    assert_acks(bench, "");
    assert_true(ack(bench, 1));
}

static void held_ones_come_when_they_are_due(void **state)
{
    struct bench *bench = *state;
    uint64_t number;

    deliver(bench, 1, 4);
    assert_true(semel__amqp_window_hold(&bench->window, bench->tags[1], 300));
    assert_true(semel__amqp_window_hold(&bench->window, bench->tags[2], 100));
    assert_true(semel__amqp_window_hold(&bench->window, bench->tags[4], 100));
    assert_int_equal(bench->window.due_us, 100);
    assert_false(semel__amqp_window_next_due(&bench->window, 99, &number));
    assert_true(ack(bench, 3));
    assert_acks(bench, "3"); /* 1 and 2 are before it, and not acknowledged */
    assert_true(semel__amqp_window_next_due(&bench->window, 100, &number));
    assert_int_equal(number, 2);
    assert_true(semel__amqp_window_next_due(&bench->window, 100, &number));
    assert_int_equal(number, 4);
    assert_false(semel__amqp_window_next_due(&bench->window, 100, &number));
    assert_int_equal(bench->window.due_us, 300);
    assert_true(semel__amqp_window_next_due(&bench->window, 300, &number));
    assert_int_equal(number, 1);
    assert_int_equal(bench->window.held, 0);
    assert_int_equal(bench->window.live, 0);
}

static void cut_gives_back_all_behind_it_and_keeps_all_before_it(void **state)
{
    struct bench *bench = *state;

    deliver(bench, 1, 6);
    assert_true(ack(bench, 5));
    assert_acks(bench, "5");
    assert_true(semel__amqp_window_cut(&bench->window, bench->tags[4]));
    assert_int_equal(bench->window.live, 3);
    assert_false(ack(bench, 4));
    assert_false(ack(bench, 6));
    assert_true(semel__amqp_window_has(&bench->window, bench->tags[3]));
    assert_true(semel__amqp_window_cut(&bench->window, bench->tags[2])); /* further down */
    assert_int_equal(bench->window.live, 1);
    assert_true(ack(bench, 1));
    assert_acks(bench, "1");
    assert_int_equal(bench->window.live, 0);
}

/* One that is never answered does not make the rest take room. */
static void room_is_bounded_by_what_is_unanswered(void **state)
{
    struct bench *bench = *state;
    uint64_t old, tag;

    assert_true(semel__amqp_window_enter(&bench->window, 1, &old));
    for (uint64_t number = 2; number < 100000; number++) {
        assert_true(semel__amqp_window_enter(&bench->window, number, &tag));
        assert_true(semel__amqp_window_ack(&bench->window, tag));
        assert_true(semel__amqp_window_next_ack(&bench->window, &tag, &(bool){false}));
        assert_false(semel__amqp_window_next_ack(&bench->window, &tag, &(bool){false}));
    }
    assert_true(bench->window.cap <= 128);
    assert_true(semel__amqp_window_ack(&bench->window, old));
}

static void no_memory_changes_nothing(void **state)
{
    struct bench *bench = *state;
    struct fail_nth fail;
    uint64_t tag;

    deliver(bench, 1, 64);
    fail_nth_begin(&fail, 1);
    assert_false(semel__amqp_window_enter(&bench->window, 65, &tag));
    assert_true(fail_nth_end(&fail));
    assert_int_equal(bench->window.live, 64);
    assert_true(semel__amqp_window_enter(&bench->window, 65, &bench->tags[65]));
    for (uint64_t number = 1; number <= 65; number++)
        assert_true(ack(bench, number));
    assert_acks(bench, "65*");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(run_from_the_oldest_is_one_acknowledgement),
        TEST(what_is_unanswered_is_never_acknowledged_along),
        TEST(delivery_is_answered_once),
        TEST(tags_of_another_channel_are_fenced),
        TEST(held_ones_come_when_they_are_due),
        TEST(cut_gives_back_all_behind_it_and_keeps_all_before_it),
        TEST(room_is_bounded_by_what_is_unanswered),
        TEST(no_memory_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
