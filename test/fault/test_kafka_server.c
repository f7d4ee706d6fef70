/* SPDX-License-Identifier: MIT
 *
 * test_kafka_server.c: the Kafka driver while its server is stopped, killed or frozen and comes back: nothing is lost,
 * and publishing never claims what it does not know.
 */
#include <signal.h>
#include <stdlib.h>

#include "base/wait.h"
#include "fault/test_kafka.h"

/* The group forgets a member soon, and members hear of each other soon. */
#define BRISK "&first=earliest&session.timeout.ms=3000&heartbeat.interval.ms=300"

static size_t acked_of(const struct kafka_side *side, int partition, int64_t n)
{
    size_t acked = 0;

    for (int64_t offset = 0; offset < n; offset++)
        acked += kafka_side_has_acked(side, partition, offset);
    return acked;
}

static void finish(struct kafka_side *side, int64_t n)
{
    for (int i = 0; acked_of(side, 0, n) < (size_t)n || acked_of(side, 1, n) < (size_t)n; i++) {
        assert_true(i < 2 * KAFKA_SIDE_TRIES);
        kafka_side_poll(side, 500, KAFKA_SIDE_STEP_MS);
        kafka_side_ack_all(side);
    }
}

/* Some acknowledged, some in flight, some not fetched when the server goes; then more is sent. */
static void loses_nothing(int signal)
{
    struct kafka_side side;

    make_topic(2);
    kafka_client_send_many(&client, topic, 0, "m", 1000);
    kafka_client_send_many(&client, topic, 1, "m", 1000);
    kafka_side_open(&side, &server, topic, BRISK);
    kafka_side_wait(&side, 400);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(kafka_side_ack(&side, i), SEMEL_OK);
    kafka_side_poll(&side, 1, 0);
    server_stop(&server.process, signal);
    for (int i = 0; i < 10; i++) {
        kafka_side_poll(&side, 100, KAFKA_SIDE_STEP_MS);
        if (i == 5)
            kafka_side_ack_all(&side); /* some of it was acknowledged while nobody was there */
    }
    server_again(&server.process);
    kafka_client_send_many(&client, topic, 0, "n", 100);
    kafka_client_send_many(&client, topic, 1, "n", 100);
    finish(&side, 1100);
    for (int i = 0; kafka_client_committed(&client, topic, topic, 0) != 1100 ||
                    kafka_client_committed(&client, topic, topic, 1) != 1100;
         i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        kafka_side_poll(&side, 100, KAFKA_SIDE_STEP_MS);
        kafka_side_ack_all(&side); /* what came again because the group had forgotten this member */
    }
    kafka_side_close(&side);
}

/* A server that says goodbye makes it easier; so only with SEMEL_LONG. */
static void restart_of_the_server_loses_nothing(void **state)
{
    (void)state;
    if (getenv("SEMEL_LONG") == NULL)
        skip();
    loses_nothing(SIGTERM);
}

static void death_of_the_server_loses_nothing(void **state)
{
    (void)state;
    loses_nothing(SIGKILL);
}

/* Neither hangs nor loses: opening, reopening and closing are possible while nobody answers. */
static void handle_can_be_opened_and_closed_while_the_server_does_not_answer(void **state)
{
    struct kafka_side a, b;

    (void)state;
    make_topic(2);
    kafka_client_send_many(&client, topic, 0, "m", 100);
    kafka_client_send_many(&client, topic, 1, "m", 100);
    kafka_side_open(&a, &server, topic, BRISK);
    kafka_side_wait(&a, 200);
    server_freeze(&server.process);
    kafka_side_ack_all(&a); /* handed over, and perhaps never arrived */
    kafka_side_poll(&a, 1, 10);
    kafka_side_close(&a);
    kafka_side_open(&b, &server, topic, BRISK);
    kafka_side_poll(&b, 1, 10);
    assert_int_equal(semel_broker_reopen(b.broker, &b.err), SEMEL_OK);
    server_thaw(&server.process);
    kafka_client_send_many(&client, topic, 0, "n", 1);
    kafka_client_send_many(&client, topic, 1, "n", 1);
    for (int i = 0; !kafka_side_has_acked(&b, 0, 100) || !kafka_side_has_acked(&b, 1, 100); i++) {
        assert_true(i < 2 * KAFKA_SIDE_TRIES);
        kafka_side_poll(&b, 500, KAFKA_SIDE_STEP_MS);
        kafka_side_ack_all(&b);
    }
    kafka_side_close(&b);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 101);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 1), 101);
}

/* ---- publishing --------------------------------------------------------------------------------------- */

static struct semel_publish item_to(const char *destination, struct semel_str payload)
{
    return (struct semel_publish){.destination = semel__str(destination),
                                  .key = SEMEL_STR("k"),
                                  .id = SEMEL_STR("e"),
                                  .payload = payload};
}

static void each_published_item_has_its_own_status(void **state)
{
    const size_t large = (size_t)2 << 20;
    char *bytes = semel__calloc(1, large);
    struct kafka_side side;
    struct semel_publish items[6];

    (void)state;
    assert_non_null(bytes);
    make_topic(2);
    kafka_side_open(&side, &server, topic, "&first=earliest&topic.metadata.propagation.max.ms=500");
    items[0] = item_to(topic, SEMEL_STR("one"));
    items[1] = item_to(topic, (struct semel_str){bytes, large});
    items[2] = item_to("no-such-topic", SEMEL_STR("x"));
    items[3] = item_to("", SEMEL_STR("x"));
    items[4] = item_to(topic, SEMEL_STR("two")); /* behind one of its key that was refused */
    items[5] = item_to(topic, SEMEL_STR("three"));
    items[5].key = SEMEL_STR("other");
    assert_int_equal(semel_broker_publish(side.broker, items, COUNT(items), 60000, &side.err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_OK);
    assert_int_equal(items[1].status, SEMEL_INVALID);
    assert_int_equal(items[2].status, SEMEL_RETRY);
    assert_true(items[2].down && !items[1].down && !items[4].down);
    assert_int_equal(items[3].status, SEMEL_INVALID);
    assert_int_equal(items[4].status, SEMEL_RETRY);
    assert_int_equal(items[5].status, SEMEL_OK);
    assert_string_equal(items[2].why, "kafka: Broker: Unknown topic or partition");
    assert_int_equal(semel_broker_publish(side.broker, &items[4], 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(items[4].status, SEMEL_OK);
    kafka_side_wait(&side, 3);
    kafka_side_close(&side);
    semel__free(bytes);
}

/* P28: what was not confirmed may or may not have arrived, and it says which of the two it knows. */
static void publishing_to_a_server_that_does_not_answer_claims_nothing(void **state)
{
    struct kafka_side side, late;
    struct semel_publish items[3];
    int64_t claimed = 0;

    (void)state;
    make_topic(1);
    kafka_side_open(&side, &server, topic, "&first=earliest&message.timeout.ms=1500");
    kafka_side_open(&late, &server, topic, "&first=earliest&message.timeout.ms=1500");
    for (size_t i = 0; i < COUNT(items); i++)
        items[i] = item_to(topic, SEMEL_STR("m"));
    assert_int_equal(semel_broker_publish(side.broker, items, 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_OK);
    server_freeze(&server.process); /* what is sent now is taken by the kernel, and read when it wakes up */
    assert_int_equal(semel_broker_publish(side.broker, items, 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_UNKNOWN);
    /* Whoever has not been answered yet has sent nothing, and knows it. */
    assert_int_equal(semel_broker_publish(late.broker, items, COUNT(items), 60000, &late.err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(items); i++)
        assert_int_equal(items[i].status, SEMEL_RETRY);
    server_thaw(&server.process);
    kafka_side_close(&late);
    for (int i = 0; claimed < 3; i++) {
        assert_true(i < 60);
        assert_int_equal(semel_broker_publish(side.broker, items, 1, 60000, &side.err), SEMEL_OK);
        claimed += items[0].status == SEMEL_OK;
    }
    kafka_side_wait(&side, 4);
    kafka_side_close(&side);
}

static void publish_ends_when_its_time_is_over(void **state)
{
    const int64_t from_us = semel__steady_us();
    struct semel_publish items[3];
    struct kafka_side side;

    (void)state;
    make_topic(1);
    kafka_side_open(&side, &server, topic, "&first=earliest&message.timeout.ms=120000");
    for (size_t i = 0; i < COUNT(items); i++)
        items[i] = item_to(topic, SEMEL_STR("m"));
    assert_int_equal(semel_broker_publish(side.broker, items, 1, 60000, &side.err), SEMEL_OK);
    assert_int_equal(items[0].status, SEMEL_OK);
    server_freeze(&server.process);
    assert_int_equal(semel_broker_publish(side.broker, items, COUNT(items), 1000, &side.err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(items); i++)
        assert_true(items[i].status == SEMEL_RETRY || items[i].status == SEMEL_UNKNOWN);
    server_thaw(&server.process);
    assert_true(semel__steady_us() - from_us < 60000000);
    assert_int_equal(semel_broker_publish(side.broker, items, COUNT(items), 60000, &side.err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(items); i++)
        assert_int_equal(items[i].status, SEMEL_OK);
    kafka_side_close(&side);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restart_of_the_server_loses_nothing),
        cmocka_unit_test(death_of_the_server_loses_nothing),
        cmocka_unit_test(handle_can_be_opened_and_closed_while_the_server_does_not_answer),
        cmocka_unit_test(each_published_item_has_its_own_status),
        cmocka_unit_test(publishing_to_a_server_that_does_not_answer_claims_nothing),
        cmocka_unit_test(publish_ends_when_its_time_is_over),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
