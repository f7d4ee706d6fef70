/* SPDX-License-Identifier: MIT
 *
 * test_sqs_held.c: which receipts are still good, what is to be done about them and when; without a server or a clock.
 */
#include "broker/sqs_private.h"
#include "unit/unit.h"

#define SECOND SQS_SECOND_US
#define VISIBILITY_S 60

struct bench {
    struct sqs_held held;
    struct sqs_entry entries[SQS_BATCH];
};

static int setup_as(void **state, bool fifo)
{
    struct bench *bench = semel__calloc(1, sizeof *bench);

    *state = bench;
    return bench != NULL && semel__sqs_held_init(&bench->held, 32, VISIBILITY_S, fifo) ? 0 : -1;
}

static int setup(void **state)
{
    return setup_as(state, false);
}

static int setup_fifo(void **state)
{
    return setup_as(state, true);
}

static int teardown(void **state)
{
    struct bench *bench = *state;

    semel__sqs_held_done(&bench->held);
    semel__free(bench);
    return 0;
}

static uint64_t receive(struct bench *bench, const char *id, const char *group, const char *sequence, int64_t now_us)
{
    const struct sqs_message message = {.id = semel__str(id),
                                        .handle = SEMEL_STR("receipt"),
                                        .group = semel__str(group),
                                        .sequence = semel__str(sequence)};
    const uint64_t tag = semel__sqs_held_enter(&bench->held, &message, now_us);

    assert_int_not_equal(tag, 0);
    return tag;
}

/* Received and delivered. */
static uint64_t deliver(struct bench *bench, const char *id, const char *group, const char *sequence, int64_t now_us)
{
    const uint64_t tag = receive(bench, id, group, sequence, now_us);

    semel__sqs_held_find(&bench->held, tag)->state = SQS_OUT;
    return tag;
}

static size_t due(struct bench *bench, enum sqs_duty duty, int64_t now_us)
{
    return semel__sqs_held_due(&bench->held, duty, now_us, bench->entries);
}

static void end(struct bench *bench, enum sqs_duty duty, size_t i, enum sqs_outcome outcome, int64_t now_us)
{
    semel__sqs_held_ended(&bench->held, duty, &bench->entries[i], outcome, now_us, now_us);
}

static bool is_held(struct bench *bench, uint64_t tag)
{
    return semel__sqs_held_find(&bench->held, tag) != NULL;
}

/* ---- visibility ---------------------------------------------------------------------------------------- */

/* P37 */
static void visibility_is_extended_at_half_of_its_time_and_again(void **state)
{
    struct bench *bench = *state;
    const uint64_t out = deliver(bench, "m-1", NULL, NULL, 0), waiting = receive(bench, "m-2", NULL, NULL, 0);

    assert_int_equal(due(bench, SQS_CHANGE, 30 * SECOND - 1), 0);
    assert_int_equal(semel__sqs_held_next(&bench->held), 30 * SECOND);
    assert_int_equal(due(bench, SQS_CHANGE, 30 * SECOND), 2); /* what waits to be delivered too */
    assert_int_equal(bench->entries[0].seconds, VISIBILITY_S);
    assert_false(bench->entries[0].back);
    assert_int_equal(due(bench, SQS_CHANGE, 31 * SECOND), 0); /* it is under way */
    end(bench, SQS_CHANGE, 0, SQS_DONE, 31 * SECOND);
    end(bench, SQS_CHANGE, 1, SQS_DONE, 31 * SECOND);
    assert_int_equal(semel__sqs_held_next(&bench->held), 61 * SECOND);
    assert_true(is_held(bench, out) && is_held(bench, waiting));
}

/* P37 */
static void extension_that_is_refused_fences_the_tag(void **state)
{
    struct bench *bench = *state;
    const uint64_t tag = deliver(bench, "m-1", NULL, NULL, 0);

    assert_int_equal(due(bench, SQS_CHANGE, 40 * SECOND), 1);
    end(bench, SQS_CHANGE, 0, SQS_GONE, 40 * SECOND);
    assert_false(is_held(bench, tag));
    assert_false(semel__sqs_held_ack(&bench->held, tag, 41 * SECOND));
    assert_false(semel__sqs_held_back(&bench->held, tag, 0, 41 * SECOND));
    assert_int_equal(bench->held.n, 0);
}

static void extension_that_fails_is_tried_again_and_the_tag_stays(void **state)
{
    struct bench *bench = *state;
    const uint64_t tag = deliver(bench, "m-1", NULL, NULL, 0);
    int64_t now_us = 30 * SECOND, before_us = 0;

    for (int i = 0; i < 12; i++) {
        assert_int_equal(due(bench, SQS_CHANGE, now_us), 1);
        end(bench, SQS_CHANGE, 0, i % 2 == 0 ? SQS_AGAIN : SQS_UNSAID, now_us);
        before_us = now_us;
        now_us = semel__sqs_held_next(&bench->held);
        assert_true(now_us > before_us && now_us <= before_us + 10 * SECOND);
    }
    assert_true(is_held(bench, tag));
}

static void twelve_hours_are_the_end(void **state)
{
    struct bench *bench = *state;
    const uint64_t tag = deliver(bench, "m-1", NULL, NULL, 0);
    int64_t now_us = 0, until_us = 0;

    while (is_held(bench, tag)) {
        const int64_t before_us = now_us;
        now_us = semel__sqs_held_next(&bench->held);
        assert_true(now_us > before_us);
        if (due(bench, SQS_CHANGE, now_us) == 0)
            continue;
        until_us = now_us + bench->entries[0].seconds * SECOND;
        assert_true(until_us <= SQS_LONGEST_S * SECOND);
        end(bench, SQS_CHANGE, 0, SQS_DONE, now_us);
    }
    assert_int_equal(until_us, SQS_LONGEST_S * SECOND);
    assert_true(now_us >= until_us);
}

/* ---- answers ------------------------------------------------------------------------------------------- */

static void acknowledged_is_deleted_and_its_tag_counts_once(void **state)
{
    struct bench *bench = *state;
    const uint64_t tag = deliver(bench, "m-1", NULL, NULL, 0);

    assert_true(semel__sqs_held_ack(&bench->held, tag, SECOND));
    assert_false(semel__sqs_held_ack(&bench->held, tag, SECOND));
    assert_false(semel__sqs_held_back(&bench->held, tag, 0, SECOND));
    assert_int_equal(due(bench, SQS_CHANGE, 40 * SECOND), 0);
    assert_int_equal(due(bench, SQS_DELETE, SECOND), 1);
    assert_int_equal(bench->entries[0].tag, tag);
    end(bench, SQS_DELETE, 0, SQS_DONE, SECOND);
    assert_int_equal(bench->held.n, 0);
}

static void deletion_is_tried_until_the_visibility_is_over_and_then_dropped(void **state)
{
    struct bench *bench = *state;
    const uint64_t tag = deliver(bench, "m-1", NULL, NULL, 0);
    int64_t now_us = 0;
    int tries = 0;

    assert_true(semel__sqs_held_ack(&bench->held, tag, 0));
    for (; is_held(bench, tag); now_us = semel__sqs_held_next(&bench->held))
        if (due(bench, SQS_DELETE, now_us) == 1) {
            end(bench, SQS_DELETE, 0, SQS_AGAIN, now_us);
            tries++;
        }
    assert_true(tries >= 5);
    assert_int_equal(bench->held.n, 0);
}

static void answer_that_comes_during_an_extension_is_carried_out_after_it(void **state)
{
    struct bench *bench = *state;
    const uint64_t a = deliver(bench, "m-1", NULL, NULL, 0), b = deliver(bench, "m-2", NULL, NULL, 0);

    assert_int_equal(due(bench, SQS_CHANGE, 30 * SECOND), 2);
    assert_true(semel__sqs_held_ack(&bench->held, a, 30 * SECOND));
    assert_true(semel__sqs_held_back(&bench->held, b, 5, 30 * SECOND));
    assert_int_equal(due(bench, SQS_DELETE, 30 * SECOND), 0);
    end(bench, SQS_CHANGE, 0, SQS_GONE, 31 * SECOND);
    end(bench, SQS_CHANGE, 1, SQS_DONE, 31 * SECOND);
    assert_int_equal(due(bench, SQS_DELETE, 31 * SECOND), 1);
    end(bench, SQS_DELETE, 0, SQS_GONE, 31 * SECOND);
    assert_int_equal(due(bench, SQS_CHANGE, 31 * SECOND), 1);
    assert_true(bench->entries[0].back && bench->entries[0].seconds == 5);
    end(bench, SQS_CHANGE, 0, SQS_DONE, 31 * SECOND);
    assert_int_equal(bench->held.n, 0);
}

static void ten_are_asked_about_at_a_time(void **state)
{
    struct bench *bench = *state;
    char id[16];

    for (int i = 0; i < 23; i++) {
        snprintf(id, sizeof id, "m-%d", i);
        assert_true(semel__sqs_held_ack(&bench->held, deliver(bench, id, NULL, NULL, 0), 0));
    }
    assert_int_equal(due(bench, SQS_DELETE, 0), 10);
    assert_int_equal(due(bench, SQS_DELETE, 0), 10);
    assert_int_equal(due(bench, SQS_DELETE, 0), 3);
    assert_int_equal(due(bench, SQS_DELETE, 0), 0);
}

/* ---- the same again ------------------------------------------------------------------------------------ */

/* P37 */
static void message_that_comes_again_fences_its_older_receipt(void **state)
{
    struct bench *bench = *state;
    const uint64_t old = deliver(bench, "m-1", NULL, NULL, 0), other = deliver(bench, "m-2", NULL, NULL, 0);
    const uint64_t new = deliver(bench, "m-1", NULL, NULL, 70 * SECOND);

    assert_int_not_equal(old, new);
    assert_false(semel__sqs_held_ack(&bench->held, old, 71 * SECOND));
    assert_true(semel__sqs_held_ack(&bench->held, other, 71 * SECOND)); /* a standard queue has no order */
    assert_true(semel__sqs_held_ack(&bench->held, new, 71 * SECOND));
}

static void late_answer_to_an_older_receipt_does_not_touch_the_newer_one(void **state)
{
    struct bench *bench = *state;
    uint64_t new;

    assert_true(semel__sqs_held_ack(&bench->held, deliver(bench, "m-1", NULL, NULL, 0), 0));
    assert_int_equal(due(bench, SQS_DELETE, 0), 1);
    new = deliver(bench, "m-1", NULL, NULL, SECOND);
    end(bench, SQS_DELETE, 0, SQS_DONE, SECOND);
    assert_true(is_held(bench, new));
}

static void group_that_delivers_fences_what_is_held_behind_it_and_nothing_else(void **state)
{
    struct bench *bench = *state;
    const uint64_t first = deliver(bench, "m-1", "g", "98", 0), second = deliver(bench, "m-2", "g", "99", 0);
    const uint64_t third = deliver(bench, "m-3", "g", "100", 0), other = deliver(bench, "m-4", "h", "101", 0);

    deliver(bench, "m-2", "g", "99", SECOND);
    assert_true(is_held(bench, first));
    assert_false(is_held(bench, second));
    assert_false(is_held(bench, third)); /* 100 is behind 99, though not by bytes */
    assert_true(is_held(bench, other));
}

static void given_back_in_a_group_what_is_behind_it_goes_with_it_the_last_first(void **state)
{
    struct bench *bench = *state;
    const uint64_t first = deliver(bench, "m-1", "g", "8", 0), second = deliver(bench, "m-2", "g", "9", 0);
    const uint64_t third = deliver(bench, "m-3", "g", "10", 0), fourth = receive(bench, "m-4", "g", "11", 0);
    const uint64_t other = deliver(bench, "m-5", "h", "12", 0);

    assert_true(semel__sqs_held_back(&bench->held, second, 7, SECOND));
    assert_false(semel__sqs_held_ack(&bench->held, third, SECOND));
    assert_int_equal(due(bench, SQS_CHANGE, SECOND), 3);
    assert_int_equal(bench->entries[0].tag, fourth);
    assert_int_equal(bench->entries[1].tag, third);
    assert_int_equal(bench->entries[2].tag, second);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(bench->entries[i].seconds, 7);
    assert_true(semel__sqs_held_ack(&bench->held, first, SECOND));
    assert_true(semel__sqs_held_ack(&bench->held, other, SECOND));
}

static void without_sequence_numbers_a_group_has_the_order_of_its_coming(void **state)
{
    struct bench *bench = *state;
    const uint64_t first = deliver(bench, "m-1", "g", NULL, 0), second = deliver(bench, "m-2", "g", NULL, 0);
    const uint64_t third = deliver(bench, "m-3", "g", NULL, 0);

    assert_true(is_held(bench, first) && is_held(bench, second) && is_held(bench, third));
    assert_true(semel__sqs_held_back(&bench->held, second, 0, SECOND));
    assert_false(semel__sqs_held_ack(&bench->held, third, SECOND));
    assert_true(semel__sqs_held_ack(&bench->held, first, SECOND));
}

static void no_tag_is_ever_used_twice_and_a_full_table_takes_nothing(void **state)
{
    const struct sqs_message message = {.id = SEMEL_STR("more"), .handle = SEMEL_STR("receipt")};
    struct bench *bench = *state;
    uint64_t tags[32];
    char id[16];

    for (size_t i = 0; i < COUNT(tags); i++) {
        snprintf(id, sizeof id, "m-%zu", i);
        tags[i] = deliver(bench, id, NULL, NULL, 0);
    }
    assert_int_equal(semel__sqs_held_enter(&bench->held, &message, 0), 0);
    semel__sqs_held_settle(&bench->held);
    assert_int_equal(bench->held.n, 0);
    for (size_t i = 0; i < 64; i++) {
        const uint64_t tag = deliver(bench, "again", NULL, NULL, 0);
        for (size_t j = 0; j < COUNT(tags); j++)
            assert_int_not_equal(tag, tags[j]);
    }
    assert_false(is_held(bench, 0));
    assert_false(is_held(bench, UINT64_MAX));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define TEST_FIFO(f) cmocka_unit_test_setup_teardown(f, setup_fifo, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(visibility_is_extended_at_half_of_its_time_and_again),
        TEST(extension_that_is_refused_fences_the_tag),
        TEST(extension_that_fails_is_tried_again_and_the_tag_stays),
        TEST(twelve_hours_are_the_end),
        TEST(acknowledged_is_deleted_and_its_tag_counts_once),
        TEST(deletion_is_tried_until_the_visibility_is_over_and_then_dropped),
        TEST(answer_that_comes_during_an_extension_is_carried_out_after_it),
        TEST(ten_are_asked_about_at_a_time),
        TEST(message_that_comes_again_fences_its_older_receipt),
        TEST(late_answer_to_an_older_receipt_does_not_touch_the_newer_one),
        TEST_FIFO(group_that_delivers_fences_what_is_held_behind_it_and_nothing_else),
        TEST_FIFO(given_back_in_a_group_what_is_behind_it_goes_with_it_the_last_first),
        TEST_FIFO(without_sequence_numbers_a_group_has_the_order_of_its_coming),
        TEST(no_tag_is_ever_used_twice_and_a_full_table_takes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
