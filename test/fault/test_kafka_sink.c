/* SPDX-License-Identifier: MIT
 *
 * test_kafka_sink.c: the Kafka sink on a real server: no event overtakes one of its key that was not taken, nobody is
 * blamed for a neighbour, and a topic that is not there holds up nobody.
 */
#include "base/wait.h"
#include "fault/test_kafka.h"

#define MANY 300
#define KEYS 10
#define ROUNDS 5
#define SMALL ((size_t)200)
#define LARGE ((size_t)20000)

static char filler[LARGE];

static void make_topic_with(int partitions, const char *max_message_bytes)
{
    const char *const settings[] = {"max.message.bytes", max_message_bytes, NULL};
    static int count;

    snprintf(topic, sizeof topic, "narrow-%d", ++count);
    kafka_client_topic(&client, topic, partitions, settings);
}

struct event {
    char id[16], key[8];
};

static void make_item(struct semel_publish *item, struct event *event, const char *destination, size_t key, size_t i,
                      size_t bytes)
{
    snprintf(event->id, sizeof event->id, "%zu-%zu", key, i);
    snprintf(event->key, sizeof event->key, "k%zu", key);
    *item = (struct semel_publish){.destination = semel__str(destination),
                                   .key = semel__str(event->key),
                                   .id = semel__str(event->id),
                                   .payload = {filler, bytes}};
}

/* A sink alone; what it published is read by a handle of its own. */
static struct semel_broker *open_sink(const char *more)
{
    struct semel_pair property = {{NULL, 0}, {NULL, 0}};
    struct semel_broker *broker = NULL;
    struct semel_error err = {0};
    char address[KAFKA_SERVER_TEXT];
    struct semel_kafka_options options = {.brokers = kafka_server_address(&server, address),
                                          .properties = {&property, more != NULL}};

    property = (struct semel_pair){SEMEL_STR("message.max.bytes"), semel__str(more != NULL ? more : "")};
    if (semel__broker_kafka_open(&broker, &options, NULL, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    return broker;
}

static size_t count_of(const struct semel_publish *items, size_t n, semel_status status)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += items[i].status == status;
    return count;
}

/* So many are in the topic, and no more. */
static void assert_there(size_t n)
{
    struct kafka_side side;

    kafka_side_open(&side, &server, topic, "&first=earliest");
    kafka_side_wait(&side, n);
    for (int quiet = 0; quiet < 10; quiet++)
        assert_int_equal(kafka_side_poll(&side, 1, KAFKA_SIDE_STEP_MS), 0);
    kafka_side_close(&side);
}

/* P110 */
static void batch_that_is_too_large_for_its_topic_arrives_in_parts(void **state)
{
    static struct semel_publish items[MANY];
    static struct event events[MANY];
    struct semel_broker *sink = open_sink(NULL);
    struct semel_error err = {0};

    (void)state;
    make_topic_with(2, "4000");
    for (size_t i = 0; i < MANY; i++)
        make_item(&items[i], &events[i], topic, i % KEYS, i, SMALL);
    assert_int_equal(semel_broker_publish(sink, items, MANY, 60000, &err), SEMEL_OK);
    for (size_t i = 0; i < MANY; i++)
        if (items[i].status != SEMEL_OK)
            fail_msg("%zu: %d %s", i, items[i].status, items[i].why);
    assert_there(MANY);
    semel_broker_close(sink);
}

/* P69, P110: the first thing that a new producer sends is one that the server refuses, with events of its key behind it
 * and others around it. */
static void refused_event_keeps_back_its_key_and_nobody_else(void **state)
{
    static struct semel_publish items[2 * MANY];
    static struct event events[2 * MANY];
    struct semel_broker *sink = NULL;
    struct semel_error err = {0};

    (void)state;
    make_topic_with(2, "10000");
    for (int round = 1; round <= ROUNDS; round++) {
        semel_broker_close(sink);
        sink = open_sink(NULL);
        for (size_t i = 0; i < 2 * MANY; i++)
            make_item(&items[i], &events[i], topic, i % 2 == 0 ? 0 : 1 + i % KEYS, i, i == 0 ? LARGE : SMALL);
        assert_int_equal(semel_broker_publish(sink, items, 2 * MANY, 60000, &err), SEMEL_OK);
        assert_int_equal(items[0].status, SEMEL_INVALID);
        assert_string_equal(items[0].why, "kafka: Broker: Message size too large");
        for (size_t i = 1; i < 2 * MANY; i++) {
            assert_int_equal(items[i].status, i % 2 == 0 ? SEMEL_RETRY : SEMEL_OK);
            assert_false(items[i].down);
        }
    }
    assert_there((size_t)ROUNDS * MANY);
    /* The key goes on without the one that was refused. */
    for (size_t i = 2; i < 2 * MANY; i += 2)
        items[i / 2 - 1] = items[i];
    assert_int_equal(semel_broker_publish(sink, items, MANY - 1, 60000, &err), SEMEL_OK);
    assert_int_equal(count_of(items, MANY - 1, SEMEL_OK), MANY - 1);
    semel_broker_close(sink);
}

static void one_that_the_client_cannot_send_keeps_back_its_key(void **state)
{
    struct semel_publish items[3];
    struct event events[3];
    struct semel_broker *sink = open_sink("10000");
    struct semel_error err = {0};

    (void)state;
    make_topic(1);
    for (size_t i = 0; i < 3; i++)
        make_item(&items[i], &events[i], topic, i == 2, i, i == 0 ? LARGE : SMALL);
    assert_int_equal(semel_broker_publish(sink, items, 3, 60000, &err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_INVALID);
    assert_int_equal(items[1].status, SEMEL_RETRY);
    assert_int_equal(items[2].status, SEMEL_OK);
    semel_broker_close(sink);
}

/* More than fits into one batch: rounds, in order, and all of them in one call. */
static void call_that_is_longer_than_a_batch_goes_in_rounds(void **state)
{
    static struct semel_publish items[4 * MANY];
    static struct event events[4 * MANY];
    struct semel_broker *sink = open_sink("100000");
    struct semel_error err = {0};

    (void)state;
    make_topic(4);
    for (size_t i = 0; i < 4 * MANY; i++)
        make_item(&items[i], &events[i], topic, i % KEYS, i, 5 * SMALL);
    assert_int_equal(semel_broker_publish(sink, items, 4 * MANY, 60000, &err), SEMEL_OK);
    assert_int_equal(count_of(items, 4 * MANY, SEMEL_OK), 4 * MANY);
    assert_there(4 * MANY);
    semel_broker_close(sink);
}

/* P111, P112 */
static void unknown_topic_is_down_and_holds_up_nobody(void **state)
{
    struct semel_publish items[4];
    struct event events[4];
    struct semel_broker *sink = open_sink(NULL);
    struct semel_error err = {0};
    int64_t from_us;

    (void)state;
    make_topic(1);
    for (size_t i = 0; i < 4; i++)
        make_item(&items[i], &events[i], i % 2 == 0 ? "not-there" : topic, 0, i, SMALL);
    for (int round = 0; round < 2; round++) { /* the second time the connection stands */
        from_us = semel__steady_us();
        assert_int_equal(semel_broker_publish(sink, items, 4, 60000, &err), SEMEL_OK);
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(items[i].status, i % 2 == 0 ? SEMEL_RETRY : SEMEL_OK);
            assert_int_equal(items[i].down, i % 2 == 0);
        }
        assert_string_equal(items[0].why, "kafka: Broker: Unknown topic or partition");
    }
    assert_true(semel__steady_us() - from_us < 4000000);
    kafka_client_topic(&client, "not-there", 1, NULL);
    for (int i = 0; items[0].status != SEMEL_OK || items[2].status != SEMEL_OK; i++) {
        assert_true(i < 100);
        assert_int_equal(semel_broker_publish(sink, items, 4, 60000, &err), SEMEL_OK);
    }
    semel_broker_close(sink);
}

/* The server is away: nobody is blamed, the call keeps to its time, and a later one succeeds. */
static void server_that_is_away_blames_nobody(void **state)
{
    struct semel_publish items[3];
    struct event events[3];
    struct semel_broker *sink = open_sink(NULL);
    struct semel_error err = {0};
    int64_t from_us;

    (void)state;
    make_topic(1);
    for (size_t i = 0; i < 3; i++)
        make_item(&items[i], &events[i], topic, 0, i, SMALL);
    assert_int_equal(semel_broker_publish(sink, items, 3, 60000, &err), SEMEL_OK);
    assert_int_equal(count_of(items, 3, SEMEL_OK), 3);
    server_freeze(&server.process);
    from_us = semel__steady_us();
    for (int round = 0; round < 2; round++) { /* a producer that knows the topic, and a new one */
        assert_int_equal(semel_broker_publish(sink, items, 3, 1500, &err), SEMEL_OK);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(items[i].status, round == 0 ? SEMEL_UNKNOWN : SEMEL_RETRY);
            assert_true(items[i].down);
            assert_string_not_equal(items[i].why, "");
        }
    }
    server_thaw(&server.process);
    assert_true(semel__steady_us() - from_us < 30000000);
    for (int i = 0; count_of(items, 3, SEMEL_OK) < 3; i++) {
        assert_true(i < 60);
        assert_int_equal(semel_broker_publish(sink, items, 3, 60000, &err), SEMEL_OK);
    }
    semel_broker_close(sink);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_that_is_too_large_for_its_topic_arrives_in_parts),
        cmocka_unit_test(refused_event_keeps_back_its_key_and_nobody_else),
        cmocka_unit_test(one_that_the_client_cannot_send_keeps_back_its_key),
        cmocka_unit_test(call_that_is_longer_than_a_batch_goes_in_rounds),
        cmocka_unit_test(unknown_topic_is_down_and_holds_up_nobody),
        cmocka_unit_test(server_that_is_away_blames_nobody),
    };

    memset(filler, 'x', sizeof filler);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
