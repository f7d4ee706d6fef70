/* SPDX-License-Identifier: MIT
 *
 * test_kafka_lane.c: what may be committed of a partition, and which tags still count; without a server.
 */
#include "broker/kafka_private.h"
#include "unit/unit.h"

struct bench {
    struct kafka_lanes lanes;
    uint64_t tags[256];
};

static int setup(void **state)
{
    *state = semel__calloc(1, sizeof(struct bench));
    return *state != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    struct bench *bench = *state;

    semel__kafka_lanes_done(&bench->lanes);
    semel__free(bench);
    return 0;
}

/* Delivers the offsets from `first` on, every `step`-th. */
static void deliver(struct bench *bench, struct kafka_lane *lane, int64_t first, int64_t step, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(semel__kafka_lane_offer(lane, first), KAFKA_TAKE);
        assert_true(semel__kafka_lane_enter(&bench->lanes, lane, first, &bench->tags[i]));
        first += step;
    }
}

static bool ack(struct bench *bench, size_t i)
{
    return semel__kafka_lane_ack(&bench->lanes, bench->tags[i]);
}

static void only_the_acknowledged_run_from_the_start_is_done(void **state)
{
    struct bench *bench = *state;
    struct kafka_lane *lane = semel__kafka_lane_add(&bench->lanes, "t", 0);

    deliver(bench, lane, 10, 1, 5);
    assert_true(ack(bench, 1));
    assert_true(ack(bench, 3));
    assert_int_equal(lane->done, -1);
    assert_true(ack(bench, 0));
    assert_int_equal(lane->done, 12);
    assert_true(ack(bench, 2));
    assert_int_equal(lane->done, 14);
    assert_int_equal(bench->lanes.in_flight, 1);
    assert_true(ack(bench, 4));
    assert_int_equal(lane->done, 15);
    assert_int_equal(bench->lanes.in_flight, 0);
}

static void gaps_between_offsets_are_nothing_to_wait_for(void **state)
{
    struct bench *bench = *state;
    struct kafka_lane *lane = semel__kafka_lane_add(&bench->lanes, "t", 0);

    deliver(bench, lane, 100, 7, 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(ack(bench, i));
    assert_int_equal(lane->done, 115);
}

static void tag_counts_once(void **state)
{
    struct bench *bench = *state;
    struct kafka_lane *lane = semel__kafka_lane_add(&bench->lanes, "t", 0);

    deliver(bench, lane, 0, 1, 3);
    assert_true(ack(bench, 1));
    assert_false(ack(bench, 1)); /* waits for 0 */
    assert_true(ack(bench, 0));
    assert_false(ack(bench, 0)); /* has left */
    assert_false(semel__kafka_lane_back(&bench->lanes, bench->tags[1], 0));
    assert_int_equal(bench->lanes.in_flight, 1);
}

/* P27 */
static void tags_of_a_partition_that_went_and_came_again_are_fenced(void **state)
{
    struct bench *bench = *state;
    struct kafka_lane *lane = semel__kafka_lane_add(&bench->lanes, "t", 0);
    uint64_t old;

    deliver(bench, lane, 0, 1, 1);
    old = bench->tags[0];
    semel__kafka_lane_drop(&bench->lanes, lane);
    assert_false(semel__kafka_lane_ack(&bench->lanes, old));
    lane = semel__kafka_lane_add(&bench->lanes, "t", 0);
    deliver(bench, lane, 0, 1, 1);
    assert_false(semel__kafka_lane_ack(&bench->lanes, old));
    assert_false(semel__kafka_lane_back(&bench->lanes, old, 0));
    assert_int_equal(lane->done, -1);
    assert_true(ack(bench, 0));
}

static void going_back_forgets_all_behind_it_and_keeps_all_before_it(void **state)
{
    struct bench *bench = *state;
    struct kafka_lane *lane = semel__kafka_lane_add(&bench->lanes, "t", 0);
    uint64_t old[6];

    deliver(bench, lane, 0, 1, 6);
    memcpy(old, bench->tags, sizeof old);
    assert_true(ack(bench, 4));
    assert_true(semel__kafka_lane_back(&bench->lanes, old[3], 0));
    assert_true(semel__kafka_lane_back(&bench->lanes, old[2], 0));
    assert_int_equal(semel__kafka_lane_rewind(&bench->lanes, lane), 2);
    assert_int_equal(bench->lanes.in_flight, 2);
    assert_int_equal(semel__kafka_lane_offer(lane, 1), KAFKA_STALE);
    assert_int_equal(semel__kafka_lane_offer(lane, 3), KAFKA_MISSING);
    deliver(bench, lane, 2, 1, 4);
    for (size_t i = 2; i < 6; i++)
        assert_false(semel__kafka_lane_ack(&bench->lanes, old[i])); /* of the delivery before */
    assert_true(semel__kafka_lane_ack(&bench->lanes, old[1]));
    assert_true(semel__kafka_lane_ack(&bench->lanes, old[0]));
    assert_int_equal(lane->done, 2);
    for (size_t i = 0; i < 4; i++)
        assert_true(ack(bench, i));
    assert_int_equal(lane->done, 6);
}

static void ring_goes_round_and_grows_without_losing_a_tag(void **state)
{
    struct bench *bench = *state;
    struct kafka_lane *lane = semel__kafka_lane_add(&bench->lanes, "t", 0);
    int64_t offset = 0;

    lane->next_seq = (UINT32_C(1) << 28) - 500; /* the numbers go round as well */
    for (size_t round = 0; round < 20; round++) {
        deliver(bench, lane, offset, 1, 50 + 10 * round);
        offset += (int64_t)(50 + 10 * round);
        for (size_t i = 50 + 10 * round; i-- > 0;) {
            assert_int_equal(lane->done, round == 0 ? -1 : offset - (int64_t)(50 + 10 * round));
            assert_true(ack(bench, i));
        }
        assert_int_equal(lane->done, offset);
    }
}

static void lack_of_memory_changes_nothing(void **state)
{
    struct bench *bench = *state;
    struct fail_nth fail;
    struct kafka_lane *lane;
    uint64_t tag = 7;

    for (unsigned at = 1; at < 3; at++) {
        fail_nth_begin(&fail, at);
        assert_null(semel__kafka_lane_add(&bench->lanes, "t", 0));
        assert_true(fail_nth_end(&fail));
    }
    lane = semel__kafka_lane_add(&bench->lanes, "t", 0);
    fail_nth_begin(&fail, 1);
    assert_false(semel__kafka_lane_enter(&bench->lanes, lane, 5, &tag));
    assert_true(fail_nth_end(&fail));
    assert_int_equal(tag, 7);
    assert_int_equal(lane->n, 0);
    assert_int_equal(bench->lanes.in_flight, 0);
    assert_int_equal(semel__kafka_lane_offer(lane, 5), KAFKA_TAKE);
}

/* ---- settings ----------------------------------------------------------------------------------------- */

static void assert_refused(const struct semel_kafka_options *options, const char *because)
{
    struct semel_broker *broker = NULL;
    struct semel_error err = {0};

    assert_int_equal(semel__broker_kafka_open(&broker, options, NULL, &err), SEMEL_INVALID);
    assert_int_equal(err.cls, SEMEL_CLASS_BROKEN);
    if (strstr(err.text, because) == NULL)
        fail_msg("%s: %s", because, err.text);
}

static void assert_topic_refused(const char *topic)
{
    const struct semel_str topics[] = {SEMEL_STR("good"), semel__str(topic)};
    const struct semel_kafka_options options = {.brokers = "host", .topics = {topics, 2}, .group = "g"};

    assert_refused(&options, "is not a topic name");
}

static void assert_property_refused(const char *name, const char *value, const char *because)
{
    const struct semel_str topic = SEMEL_STR("t");
    const struct semel_pair property = {semel__str(name), semel__str(value)};
    const struct semel_kafka_options options = {.brokers = "host",
                                                .topics = {&topic, 1},
                                                .group = "g",
                                                .properties = {&property, 1}};

    assert_refused(&options, because);
}

static void options_that_cannot_be_right_are_refused_and_say_why(void **state)
{
    const struct semel_str t = SEMEL_STR("t");

    (void)state;
    assert_refused(&(struct semel_kafka_options){.topics = {&t, 1}, .group = "g"}, "no brokers");
    assert_refused(&(struct semel_kafka_options){.brokers = "", .topics = {&t, 1}, .group = "g"}, "no brokers");
    assert_refused(&(struct semel_kafka_options){.brokers = "user@host", .topics = {&t, 1}, .group = "g"},
                   "no brokers");
    assert_refused(&(struct semel_kafka_options){.brokers = "host", .topics = {&t, 1}}, "set group");
    assert_refused(&(struct semel_kafka_options){.brokers = "host", .topics = {&t, 1}, .group = ""}, "set group");
    assert_refused(&(struct semel_kafka_options){.brokers = "host", .topics = {&t, 1}, .group = "\xff"}, "not UTF-8");
    assert_topic_refused("^t.*");
    assert_topic_refused("");
    assert_topic_refused("..");
    assert_property_refused("sesion.timeout.ms", "1", "did you mean session.timeout.ms?");
    assert_property_refused("enable.auto.commit", "true", "cannot be set here");
    assert_property_refused("session.timeout.ms", "soon", "session.timeout.ms");
    assert_property_refused("max.poll.interval.ms", "1", "max.poll.interval.ms");
}

static void secret_is_never_part_of_an_error(void **state)
{
    const struct semel_str topic = SEMEL_STR("t");
    struct semel_kafka_options options = {.brokers = "127.0.0.1:1", .topics = {&topic, 1}, .group = "g"};
    struct semel_broker *broker = NULL;
    struct semel_error err = {0};

    (void)state;
    options.sasl = (struct semel_kafka_sasl){.on = true, .user = "me"};
    assert_int_equal(semel__broker_kafka_open(&broker, &options, NULL, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "belong together"));
    options.sasl.password = "hunter2";
    options.tls.ca_file = "/nonexistent/ca.pem";
    assert_int_equal(semel__broker_kafka_open(&broker, &options, NULL, &err), SEMEL_INVALID);
    assert_null(strstr(err.text, "hunter2"));
    assert_non_null(strstr(err.text, "tls.ca_file"));
}

static void position_is_taken_apart_and_nothing_else_is_one(void **state)
{
    static const char *const bad[] = {"", "t", "t/1", "/1/2", "t/x/2", "t/1/", "t/-1/2", "t/1/-2", "t/99999999999/1"};
    struct semel_source_start at;

    (void)state;
    assert_true(semel__kafka_position(SEMEL_STR("a.b-c/12/9007199254740993"), &at));
    assert_int_equal(at.topic.n, 5);
    assert_int_equal(at.partition, 12);
    assert_true(at.offset == INT64_C(9007199254740993));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(semel__kafka_position(semel__str(bad[i]), &at));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(only_the_acknowledged_run_from_the_start_is_done),
        TEST(gaps_between_offsets_are_nothing_to_wait_for),
        TEST(tag_counts_once),
        TEST(tags_of_a_partition_that_went_and_came_again_are_fenced),
        TEST(going_back_forgets_all_behind_it_and_keeps_all_before_it),
        TEST(ring_goes_round_and_grows_without_losing_a_tag),
        TEST(lack_of_memory_changes_nothing),
        cmocka_unit_test(options_that_cannot_be_right_are_refused_and_say_why),
        cmocka_unit_test(secret_is_never_part_of_an_error),
        cmocka_unit_test(position_is_taken_apart_and_nothing_else_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
