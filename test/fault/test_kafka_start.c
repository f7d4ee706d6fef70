/* SPDX-License-Identifier: MIT
 *
 * test_kafka_start.c: where the Kafka driver begins to read a partition, and where it refuses to: never at the latest,
 * never behind a hole; and what can be asked before.
 */
#include "fault/test_kafka.h"

static void wait_reported(struct kafka_side *side)
{
    for (int i = 0; side->reported == 0; i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        kafka_side_poll(side, 1, KAFKA_SIDE_STEP_MS);
    }
}

static void assert_stopped(struct kafka_side *side, size_t n)
{
    struct semel_kafka_view view;

    semel__kafka_view(side->broker, &view);
    assert_int_equal(view.stopped, n);
}

/* ---- the group's offsets ------------------------------------------------------------------------------ */

static void group_without_an_offset_is_refused_unless_it_may_start_at_the_beginning(void **state)
{
    struct kafka_side side;

    (void)state;
    make_topic(1);
    kafka_client_send_many(&client, topic, 0, "m", 5);
    kafka_side_open(&side, &server, topic, "");
    wait_reported(&side);
    assert_int_equal(side.err.cls, SEMEL_CLASS_BROKEN);
    assert_non_null(strstr(side.err.text, topic));
    assert_stopped(&side, 1);
    assert_int_equal(kafka_side_poll(&side, 10, 300), 0);
    kafka_side_close(&side);
    kafka_side_open(&side, &server, topic, "&first=earliest");
    kafka_side_wait(&side, 5);
    assert_int_equal(side.got[0].offset, 0);
    kafka_side_close(&side);
}

static void offset_out_of_range_stops_its_partition_and_no_other(void **state)
{
    struct kafka_side side;

    (void)state;
    make_topic(3);
    for (int p = 0; p < 3; p++) {
        kafka_client_send_many(&client, topic, p, "m", 20);
        kafka_client_set_committed(&client, topic, topic, p, 5);
    }
    kafka_client_delete_before(&client, topic, 1, 10);          /* 5 to 9 are gone */
    kafka_client_set_committed(&client, topic, topic, 2, 1000); /* never was */
    kafka_side_open(&side, &server, topic, "&first=earliest");
    for (int i = 0; side.n_got < 15 || side.reported < 2; i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        kafka_side_poll(&side, 100, KAFKA_SIDE_STEP_MS);
    }
    assert_int_equal(side.err.cls, SEMEL_CLASS_BROKEN);
    assert_stopped(&side, 2);
    kafka_client_send_many(&client, topic, 0, "n", 1);
    kafka_client_send_many(&client, topic, 1, "n", 1);
    kafka_client_send_many(&client, topic, 2, "n", 1);
    kafka_side_wait(&side, 16);
    assert_int_equal(kafka_side_poll(&side, 10, 300), 0);
    for (size_t i = 0; i < side.n_got; i++) {
        assert_int_equal(side.got[i].partition, 0);
        assert_int_equal(side.got[i].offset, (int64_t)i + 5);
    }
    kafka_side_ack_all(&side);
    kafka_side_close(&side);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 21);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 1), 5);
}

static void partition_that_is_added_later_is_read_from_its_beginning(void **state)
{
    struct kafka_side side;

    (void)state;
    make_topic(1);
    kafka_client_send_many(&client, topic, 0, "m", 5);
    kafka_side_open(&side, &server, topic, "&first=earliest&topic.metadata.refresh.interval.ms=500");
    kafka_side_wait(&side, 5);
    kafka_client_grow(&client, topic, 2);
    kafka_client_send_many(&client, topic, 1, "m", 5);
    kafka_side_wait(&side, 10);
    assert_int_equal(side.got[5].partition, 1);
    assert_int_equal(side.got[5].offset, 0);
    kafka_side_close(&side);
}

static void topic_that_is_missing_is_told_and_read_when_it_is_there(void **state)
{
    struct kafka_side side;

    (void)state;
    snprintf(topic, sizeof topic, "start-later");
    kafka_side_open(&side, &server, topic, "&first=earliest&topic.metadata.refresh.interval.ms=500");
    wait_reported(&side);
    assert_int_equal(side.err.cls, SEMEL_CLASS_BROKEN);
    kafka_client_topic(&client, topic, 1, NULL);
    kafka_client_send_many(&client, topic, 0, "m", 1);
    kafka_side_wait(&side, 1);
    kafka_side_close(&side);
}

/* ---- lanes -------------------------------------------------------------------------------------------- */

/* Notes the lane of each delivery of the last poll; it must be the one that was noted before. */
static void note_lanes(const struct kafka_side *side, const char *first_topic, uint64_t lanes[2][2], bool known[2][2])
{
    for (size_t i = 0; i < side->n; i++) {
        struct semel_source_start at;
        size_t t;
        assert_true(semel__kafka_position(side->d[i].position, &at));
        t = semel__str_eqz(at.topic, first_topic) ? 0 : 1;
        assert_true(!known[t][at.partition] || lanes[t][at.partition] == side->d[i].lane);
        known[t][at.partition] = true;
        lanes[t][at.partition] = side->d[i].lane;
    }
}

static void lane_belongs_to_a_topic_and_partition_whatever_was_assigned_before(void **state)
{
    char both[80], first[32];
    struct kafka_side side;
    uint64_t lanes[2][2];
    bool known[2][2] = {{false, false}, {false, false}};

    (void)state;
    make_topic(2);
    memcpy(first, topic, sizeof first);
    make_topic(2);
    for (int p = 0; p < 2; p++) {
        kafka_client_send_many(&client, first, p, "m", 10);
        kafka_client_send_many(&client, topic, p, "m", 10);
    }
    snprintf(both, sizeof both, "%s,%s", first, topic);
    kafka_side_open(&side, &server, both, "&first=earliest");
    for (size_t wanted = 40; wanted <= 80; wanted += 40) { /* nothing is acknowledged: all comes again */
        for (int i = 0; side.n_got < wanted; i++) {
            assert_true(i < KAFKA_SIDE_TRIES);
            kafka_side_poll(&side, 100, KAFKA_SIDE_STEP_MS);
            note_lanes(&side, first, lanes, known);
        }
        assert_int_equal(semel_broker_reopen(side.broker, &side.err), SEMEL_OK);
    }
    kafka_side_close(&side);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_true(lanes[i / 2][i % 2] != lanes[j / 2][j % 2]);
}

/* ---- asked before anything is read -------------------------------------------------------------------- */

static void topics_are_known_with_their_partitions_and_retention_before_anything_is_read(void **state)
{
    static const char *const settings[] = {"retention.ms", "3600000", "retention.bytes", "1073741824", NULL};
    static const char *const compacted[] = {"cleanup.policy", "compact", "retention.ms", "-1", NULL};
    static const struct semel_str topics[] = {SEMEL_STR("ask-kept"), SEMEL_STR("ask-missing"),
                                              SEMEL_STR("ask-compacted"), SEMEL_STR("ask-plain")};
    struct semel_kafka_topic told[4];
    struct semel_error err = {0};
    char address[KAFKA_SERVER_TEXT];
    const struct semel_kafka_options options = {.brokers = kafka_server_address(&server, address),
                                                .topics = {topics, 4},
                                                .group = "ask"};

    (void)state;
    kafka_client_topic(&client, topics[0].p, 3, settings);
    kafka_client_topic(&client, topics[2].p, 1, compacted);
    kafka_client_topic(&client, topics[3].p, 2, NULL);
    assert_int_equal(semel__kafka_ask(&options, 20000, told, &err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(told); i++) {
        assert_string_equal(told[i].topic, topics[i].p);
        assert_int_equal(told[i].exists, i != 1);
        assert_int_equal(told[i].visible, i != 1);
    }
    assert_int_equal(told[0].partitions, 3);
    assert_int_equal(told[0].retention_ms, 3600000);
    assert_int_equal(told[0].retention_bytes, 1073741824);
    assert_true(told[0].deletes && !told[0].compacts);
    assert_int_equal(told[1].partitions, 0);
    assert_true(told[1].retention_ms == SEMEL_NONE);
    assert_int_equal(told[2].partitions, 1);
    assert_int_equal(told[2].retention_ms, -1);
    assert_true(told[2].compacts && !told[2].deletes);
    assert_int_equal(told[3].retention_ms, INT64_C(7) * 24 * 3600 * 1000); /* the server's own */
    assert_int_equal(told[3].retention_bytes, -1);
    /* Asking makes nothing. */
    assert_int_equal(semel__kafka_ask(&options, 20000, told, &err), SEMEL_OK);
    assert_false(told[1].exists);
}

static void nobody_to_ask_is_an_answer_too(void **state)
{
    const struct semel_str t = SEMEL_STR("t");
    struct semel_kafka_topic told;
    struct semel_error err = {0};
    struct semel_kafka_options options = {.brokers = "127.0.0.1:1", .topics = {&t, 1}, .group = "ask"};

    (void)state;
    assert_int_equal(semel__kafka_ask(&options, 700, &told, &err), SEMEL_RETRY);
    assert_int_equal(err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_non_null(strstr(err.text, "kafka: "));
    assert_false(told.exists);
    options.group = NULL;
    assert_int_equal(semel__kafka_ask(&options, 700, &told, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "set group"));
}

/* ---- positions that the caller keeps ------------------------------------------------------------------ */

struct book {
    int64_t offsets[2]; /* in the place of a database */
    int64_t kept[2];    /* what Kafka had, as the hook was told */
    int asked, revoked;
    bool down;
};

static semel_status assigned(void *ctx, struct semel_source_start *starts, size_t n, struct semel_error *err)
{
    struct book *book = ctx;

    book->asked++;
    if (book->down) {
        *err = (struct semel_error){.status = SEMEL_RETRY, .cls = SEMEL_CLASS_ENVIRONMENT, .text = "no database"};
        return SEMEL_RETRY;
    }
    for (size_t i = 0; i < n; i++) {
        book->kept[starts[i].partition] = starts[i].offset;
        starts[i].offset = book->offsets[starts[i].partition];
    }
    return SEMEL_OK;
}

static void revoked(void *ctx, const struct semel_source_start *starts, size_t n, bool lost)
{
    struct book *book = ctx;

    (void)starts, (void)lost;
    book->revoked += (int)n;
}

/* I23: the driver's part of it. */
static void caller_says_where_to_start_whatever_the_group_has_committed(void **state)
{
    const struct semel_str name = semel__str(topic);
    struct book book = {.offsets = {7, SEMEL_NONE}, .down = true};
    char address[KAFKA_SERVER_TEXT];
    const struct semel_kafka_options options = {.brokers = kafka_server_address(&server, address),
                                                .topics = {&name, 1},
                                                .group = topic,
                                                .first = SEMEL_KAFKA_FIRST_EARLIEST};
    const struct semel_source_hooks hooks = {.assigned = assigned, .revoked = revoked, .ctx = &book};
    struct kafka_side side;
    semel_status status = SEMEL_OK;

    (void)state;
    make_topic(2);
    kafka_client_send_many(&client, topic, 0, "m", 10);
    kafka_client_send_many(&client, topic, 1, "m", 10);
    kafka_client_set_committed(&client, topic, topic, 0, 2);
    kafka_side_open_with(&side, &options, &hooks);
    for (int i = 0; status == SEMEL_OK; i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        status = semel_broker_poll(side.broker, 10, KAFKA_SIDE_STEP_MS, &side.arena, &side.d, &side.n, &side.err);
    }
    assert_int_equal(status, SEMEL_CLOSED);
    assert_string_equal(side.err.text, "no database");
    assert_int_equal(book.asked, 1);
    book.down = false;
    assert_int_equal(semel_broker_reopen(side.broker, &side.err), SEMEL_OK);
    kafka_side_wait(&side, 13);
    assert_int_equal(book.asked, 2);
    assert_int_equal(book.kept[0], 2);
    assert_true(book.kept[1] == SEMEL_NONE);
    for (size_t i = 0; i < side.n_got; i++)
        assert_true(side.got[i].partition == 1 || side.got[i].offset >= 7);
    book.revoked = 0;
    kafka_side_close(&side);
    assert_int_equal(book.revoked, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_without_an_offset_is_refused_unless_it_may_start_at_the_beginning),
        cmocka_unit_test(offset_out_of_range_stops_its_partition_and_no_other),
        cmocka_unit_test(partition_that_is_added_later_is_read_from_its_beginning),
        cmocka_unit_test(topic_that_is_missing_is_told_and_read_when_it_is_there),
        cmocka_unit_test(lane_belongs_to_a_topic_and_partition_whatever_was_assigned_before),
        cmocka_unit_test(topics_are_known_with_their_partitions_and_retention_before_anything_is_read),
        cmocka_unit_test(nobody_to_ask_is_an_answer_too),
        cmocka_unit_test(caller_says_where_to_start_whatever_the_group_has_committed),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
