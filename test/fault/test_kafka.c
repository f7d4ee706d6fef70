/* SPDX-License-Identifier: MIT
 *
 * test_kafka.c: the Kafka driver on a real server, among several members of a group and with slow and odd readers:
 * nothing is lost, and nothing is acknowledged early.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <stdlib.h>

#include "broker/kafka_private.h"
#include "fault/test_kafka.h"
#include "support/answer.h"

#define EARLIEST "&first=earliest"
#define BRISK EARLIEST "&heartbeat.interval.ms=200" /* a member hears of the others by its heartbeat */

/* ---- the library on a busy machine -------------------------------------------------------------------- */

static int late_seeks, commits, far_ms;

/* Does it, and says that it was not done in time, as librdkafka 2.0 does when its thread is five milliseconds late. */
rd_kafka_error_t *rd_kafka_seek_partitions(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list, int timeout_ms)
{
    rd_kafka_error_t *(*real)(rd_kafka_t *, rd_kafka_topic_partition_list_t *, int);
    rd_kafka_error_t *error;

    *(void **)&real = dlsym(RTLD_NEXT, "rd_kafka_seek_partitions");
    error = real(rk, list, timeout_ms);
    if (late_seeks == 0)
        return error;
    late_seeks--;
    rd_kafka_error_destroy(error);
    return rd_kafka_error_new(RD_KAFKA_RESP_ERR__TIMED_OUT, "late");
}

rd_kafka_resp_err_t rd_kafka_commit_queue(
    rd_kafka_t *rk, const rd_kafka_topic_partition_list_t *list, rd_kafka_queue_t *queue,
    void (*done)(rd_kafka_t *, rd_kafka_resp_err_t, rd_kafka_topic_partition_list_t *, void *), void *opaque)
{
    rd_kafka_resp_err_t (*real)(rd_kafka_t *, const rd_kafka_topic_partition_list_t *, rd_kafka_queue_t *,
                                void (*)(rd_kafka_t *, rd_kafka_resp_err_t, rd_kafka_topic_partition_list_t *, void *),
                                void *);

    *(void **)&real = dlsym(RTLD_NEXT, "rd_kafka_commit_queue");
    commits++;
    return real(rk, list, queue, done, opaque);
}

/* An answer takes far_ms. */
rd_kafka_resp_err_t rd_kafka_metadata(rd_kafka_t *rk, int all, rd_kafka_topic_t *only,
                                      const struct rd_kafka_metadata **found, int timeout_ms)
{
    rd_kafka_resp_err_t (*real)(rd_kafka_t *, int, rd_kafka_topic_t *, const struct rd_kafka_metadata **, int);

    *(void **)&real = dlsym(RTLD_NEXT, "rd_kafka_metadata");
    return timeout_ms < far_ms ? RD_KAFKA_RESP_ERR__TIMED_OUT : real(rk, all, only, found, timeout_ms);
}

/* The lowest offset of the partition that the side has not acknowledged. */
static int64_t prefix_of(const struct kafka_side *side, int partition)
{
    int64_t offset = 0;

    while (kafka_side_has_acked(side, partition, offset))
        offset++;
    return offset;
}

/* ---- what is committed -------------------------------------------------------------------------------- */

static void only_the_acknowledged_prefix_is_committed(void **state)
{
    struct kafka_side side;

    (void)state;
    make_topic(1);
    kafka_client_send_many(&client, topic, 0, "m", 8);
    kafka_side_open(&side, &server, topic, EARLIEST);
    kafka_side_wait(&side, 8);
    for (size_t i = 0; i < 8; i++)
        if (i != 3 && i != 4)
            assert_int_equal(kafka_side_ack(&side, i), SEMEL_OK);
    assert_int_equal(semel_broker_reopen(side.broker, &side.err), SEMEL_OK);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 3);
    kafka_side_wait(&side, 13);
    for (size_t i = 8; i < 13; i++)
        assert_int_equal(side.got[i].offset, (int64_t)i - 5);
    kafka_side_close(&side);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 3);
}

static void nothing_is_committed_before_it_is_acknowledged(void **state)
{
    struct kafka_side side;

    (void)state;
    make_topic(2);
    kafka_client_send_many(&client, topic, 0, "m", 50);
    kafka_client_send_many(&client, topic, 1, "m", 50);
    kafka_side_open(&side, &server, topic, EARLIEST);
    kafka_side_wait(&side, 100);
    kafka_side_close(&side);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), -1);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 1), -1);
}

static void acknowledgement_reaches_the_server_while_there_is_polling(void **state)
{
    struct semel_kafka_view view;
    struct kafka_side side;

    (void)state;
    make_topic(1);
    kafka_client_send_many(&client, topic, 0, "m", 100);
    kafka_side_open(&side, &server, topic, EARLIEST);
    kafka_side_wait(&side, 60);
    semel__kafka_view(side.broker, &view);
    assert_int_equal(view.in_flight, 60);
    assert_int_equal(view.behind, 100);
    kafka_side_wait(&side, 100);
    kafka_side_ack_all(&side);
    semel__kafka_view(side.broker, &view);
    assert_int_equal(view.behind, 0);
    for (int i = 0; kafka_client_committed(&client, topic, topic, 0) != 100; i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        kafka_side_poll(&side, 10, KAFKA_SIDE_STEP_MS);
    }
    kafka_side_close(&side);
}

/* ---- several members ---------------------------------------------------------------------------------- */

/* P27: partitions move while their deliveries are in flight. */
static void rebalance_fences_what_moves_and_the_other_goes_on_behind_the_prefix(void **state)
{
    struct kafka_side a, b;
    struct semel_kafka_view view = {0};
    size_t fenced = 0, kept = 0;

    (void)state;
    make_topic(4);
    for (int p = 0; p < 4; p++)
        kafka_client_send_many(&client, topic, p, "m", 40);
    kafka_side_open(&a, &server, topic, BRISK);
    kafka_side_wait(&a, 160);
    for (size_t i = 0; i < a.n_got; i++)
        if (a.got[i].offset < 10 || a.got[i].offset > 30)
            assert_int_equal(kafka_side_ack(&a, i), SEMEL_OK);
    kafka_side_open(&b, &server, topic, BRISK);
    for (int i = 0; view.assigned != 2; i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        kafka_side_poll(&a, 1, 50);
        kafka_side_poll(&b, 100, 50);
        semel__kafka_view(b.broker, &view);
    }
    kafka_side_wait(&b, 60);
    for (size_t i = 0; i < a.n_got; i++)
        if (!a.got[i].acked) {
            const semel_status status = kafka_side_ack(&a, i);
            assert_true(status == SEMEL_OK || status == SEMEL_FENCED);
            fenced += status == SEMEL_FENCED;
            kept += status == SEMEL_OK;
        }
    assert_int_equal(fenced, 42);
    assert_int_equal(kept, 42);
    assert_int_equal(a.n_got, 160); /* what it kept was not disturbed */
    for (size_t i = 0; i < b.n_got; i++) {
        assert_true(b.got[i].offset >= 10);
        assert_int_equal(kafka_side_ack(&b, i), SEMEL_OK);
    }
    kafka_side_close(&b);
    kafka_side_close(&a);
    for (int p = 0; p < 4; p++)
        assert_int_equal(kafka_client_committed(&client, topic, topic, p), 40);
}

/* P27: what a member that does not poll holds goes to others, and it must not answer for it. */
static void member_that_did_not_poll_in_time_is_fenced_and_comes_back(void **state)
{
    struct kafka_side a, b;

    (void)state;
    make_topic(1);
    kafka_client_send_many(&client, topic, 0, "m", 20);
    kafka_side_open(&a, &server, topic, BRISK "&session.timeout.ms=2500&max.poll.interval.ms=2500");
    kafka_side_wait(&a, 20);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(kafka_side_ack(&a, i), SEMEL_OK);
    kafka_side_open(&b, &server, topic, BRISK);
    do /* nobody polls a meanwhile */
        kafka_side_wait(&b, b.n_got + 1);
    while (b.got[b.n_got - 1].offset < 19);
    assert_true(b.got[0].offset <= 5);
    assert_int_equal(kafka_side_ack(&a, 5), SEMEL_FENCED);
    assert_int_equal(answer_later(a.broker, &a.got[6].tag, 1, 0, &a.err), SEMEL_FENCED);
    assert_true(kafka_client_committed(&client, topic, topic, 0) <= 5);
    kafka_side_ack_all(&b);
    kafka_side_close(&b);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 20);
    assert_int_equal(semel_broker_poll(a.broker, 10, 0, &a.arena, &a.d, &a.n, &a.err), SEMEL_CLOSED);
    assert_int_equal(kafka_side_ack(&a, 7), SEMEL_CLOSED);
    assert_int_equal(semel_broker_reopen(a.broker, &a.err), SEMEL_OK);
    assert_int_equal(kafka_side_ack(&a, 7), SEMEL_FENCED);
    /* It has not committed for what it no longer owns, though there is nobody now who would be in its way. */
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 20);
    kafka_side_wait_assigned(&a, 1);
    kafka_client_send_many(&client, topic, 0, "n", 1);
    kafka_side_wait(&a, 21);
    assert_int_equal(a.got[20].offset, 20);
    assert_int_equal(kafka_side_ack(&a, 20), SEMEL_OK);
    kafka_side_close(&a);
}

static void more_members_than_partitions_share_what_there_is(void **state)
{
    struct kafka_side sides[4];
    static bool acked[2][300];
    size_t n_acked = 0;

    (void)state;
    make_topic(2);
    for (size_t i = 0; i < COUNT(sides); i++)
        kafka_side_open(&sides[i], &server, topic, BRISK);
    kafka_client_send_many(&client, topic, 0, "m", 300);
    kafka_client_send_many(&client, topic, 1, "m", 300);
    for (int round = 0; n_acked < 600; round++) {
        struct kafka_side *side = &sides[(size_t)round % COUNT(sides)];
        size_t first = side->n_got;
        assert_true(round < 4 * KAFKA_SIDE_TRIES);
        kafka_side_poll(side, 20, 20);
        for (; first < side->n_got; first++) {
            bool *one = &acked[side->got[first].partition][side->got[first].offset];
            assert_int_equal(kafka_side_ack(side, first), SEMEL_OK);
            n_acked += !*one;
            *one = true;
        }
        if (round == 40)
            assert_int_equal(semel_broker_reopen(sides[0].broker, &sides[0].err), SEMEL_OK);
    }
    /* What was acknowledged while the group was sharing out anew may have come again. */
    for (int round = 0; kafka_client_committed(&client, topic, topic, 0) != 300 ||
                        kafka_client_committed(&client, topic, topic, 1) != 300;
         round++) {
        assert_true(round < 4 * KAFKA_SIDE_TRIES);
        kafka_side_poll(&sides[(size_t)round % COUNT(sides)], 500, 20);
        kafka_side_ack_all(&sides[(size_t)round % COUNT(sides)]);
    }
    for (size_t i = 0; i < COUNT(sides); i++)
        kafka_side_close(&sides[i]);
}

#define SOON "&session.timeout.ms=3000&max.poll.interval.ms=30000"

/* A member that is closed while its group is in a rebalance leaves the group all the same. */
static void handle_that_never_polled_can_be_closed(void **state)
{
    struct kafka_side a, b;

    (void)state;
    make_topic(2);
    kafka_client_send_many(&client, topic, 0, "m", 5);
    kafka_side_open(&a, &server, topic, BRISK SOON);
    kafka_side_close(&a);
    kafka_side_open(&a, &server, topic, BRISK SOON);
    kafka_side_wait_assigned(&a, 2);
    for (int i = 0; i < 6; i++) {
        kafka_side_open(&b, &server, topic, BRISK SOON);
        kafka_side_poll(&a, 5, 50 * i);
        kafka_side_close(&b);
    }
    for (int i = 0; prefix_of(&a, 0) < 5; i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        kafka_side_poll(&a, 5, KAFKA_SIDE_STEP_MS);
        kafka_side_ack_all(&a);
    }
    kafka_side_close(&a);
}

/* ---- a slow reader ------------------------------------------------------------------------------------ */

/* P27: full, but alive. */
static void full_handle_takes_nothing_and_stays_a_member(void **state)
{
    const struct semel_str name = semel__str(topic);
    const struct semel_pair properties[] = {{SEMEL_STR("session.timeout.ms"), SEMEL_STR("2000")},
                                            {SEMEL_STR("max.poll.interval.ms"), SEMEL_STR("2000")}};
    char address[KAFKA_SERVER_TEXT];
    struct semel_kafka_options options = {.brokers = kafka_server_address(&server, address),
                                          .topics = {&name, 1},
                                          .group = topic,
                                          .first = SEMEL_KAFKA_FIRST_EARLIEST,
                                          .in_flight_max = 50,
                                          .properties = {properties, COUNT(properties)}};
    struct kafka_side side;

    (void)state;
    make_topic(2);
    kafka_client_send_many(&client, topic, 0, "m", 2000);
    kafka_client_send_many(&client, topic, 1, "m", 2000);
    kafka_side_open_with(&side, &options, NULL);
    kafka_side_wait(&side, 50);
    for (int i = 0; i < 12; i++) /* longer than max.poll.interval.ms */
        assert_int_equal(kafka_side_poll(&side, 100, 250), 0);
    assert_int_equal(kafka_side_ack(&side, 0), SEMEL_OK);
    kafka_side_wait(&side, 51);
    assert_int_equal(kafka_side_poll(&side, 100, 0), 0);
    kafka_side_ack_all(&side);
    while (side.n_got < 4000) {
        kafka_side_wait(&side, side.n_got + 1);
        kafka_side_ack_all(&side);
    }
    assert_int_equal(prefix_of(&side, 0), 2000);
    assert_int_equal(prefix_of(&side, 1), 2000);
    kafka_side_close(&side);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 2000);
}

/* Going back again and again, with and without a delay, among thousands that are fetched ahead. */
static void what_is_given_back_comes_again_in_order_and_nothing_is_skipped(void **state)
{
    struct kafka_side side;
    int64_t next[2] = {0, 0}; /* of each partition, what must come now */
    int given_back = 0;

    (void)state;
    make_topic(2);
    kafka_client_send_many(&client, topic, 0, "m", 600);
    kafka_client_send_many(&client, topic, 1, "m", 600);
    kafka_side_open(&side, &server, topic, EARLIEST "&fetch.wait.max.ms=20");
    for (int round = 0; next[0] < 600 || next[1] < 600; round++) {
        bool back[2] = {false, false};
        const size_t first = side.n_got;
        assert_true(round < 20 * KAFKA_SIDE_TRIES);
        kafka_side_poll(&side, 200, KAFKA_SIDE_STEP_MS);
        for (size_t i = first; i < side.n_got; i++) {
            struct kafka_got *got = &side.got[i];
            if (back[got->partition]) {
                assert_int_equal(kafka_side_ack(&side, i), SEMEL_FENCED);
                continue;
            }
            assert_int_equal(got->offset, next[got->partition]);
            if ((i - first) % 70 == 50) {
                back[got->partition] = true;
                assert_int_equal(answer_later(side.broker, &got->tag, 1, given_back++ % 4 * 30, &side.err), SEMEL_OK);
            } else {
                assert_int_equal(kafka_side_ack(&side, i), SEMEL_OK);
                next[got->partition]++;
            }
        }
    }
    assert_true(given_back > 10);
    kafka_side_close(&side);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 600);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 1), 600);
}

static void going_back_outlives_a_library_that_is_late(void **state)
{
    struct kafka_side side;

    (void)state;
    make_topic(1);
    kafka_client_send_many(&client, topic, 0, "m", 20);
    kafka_side_open(&side, &server, topic, EARLIEST);
    kafka_side_wait(&side, 20);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(kafka_side_ack(&side, i), SEMEL_OK);
    late_seeks = 3;
    assert_int_equal(answer_later(side.broker, &side.got[5].tag, 1, 0, &side.err), SEMEL_OK);
    assert_int_equal(late_seeks, 0);
    kafka_side_wait(&side, 35);
    for (size_t i = 20; i < 35; i++)
        assert_int_equal(side.got[i].offset, (int64_t)i - 15);
    kafka_side_ack_all(&side);
    kafka_side_close(&side);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), 20);
}

static void count_refusals(void *ctx, int level, const char *facility, const char *text)
{
    (void)level;
    if (strcmp(facility, "COMMIT") == 0 && strstr(text, "the group's offsets cannot be committed") != NULL)
        ++*(int *)ctx;
}

/* As of a member whose instance another one has taken. */
static void commit_that_is_refused_is_told_once_and_not_sent_again_and_again(void **state)
{
    struct kafka_side side;
    int told = 0;

    (void)state;
    make_topic(1);
    kafka_client_send_many(&client, topic, 0, "m", 1);
    kafka_side_open(&side, &server, topic, EARLIEST "&group.instance.id=one");
    kafka_side_wait(&side, 1);
    rd_kafka_test_fatal_error(((struct kafka *)side.broker)->rk, RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID, "a test's");
    assert_int_equal(kafka_side_ack(&side, 0), SEMEL_OK);
    commits = 0;
    ((struct kafka *)side.broker)->hooks.log = count_refusals;
    ((struct kafka *)side.broker)->hooks.log_ctx = &told;
    kafka_side_close(&side);
    assert_true(commits > 1);
    assert_true(commits < 100);
    assert_int_equal(told, 1);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), -1);
}

static void server_that_is_far_away_is_found_again(void **state)
{
    struct semel_arena arena;
    struct semel_delivery *deliveries;
    struct kafka_side side;
    size_t n;

    (void)state;
    make_topic(1);
    kafka_side_open(&side, &server, topic, EARLIEST);
    kafka_side_wait_assigned(&side, 1);
    semel__arena_init(&arena, (size_t)1 << 20);
    far_ms = 700;
    ((struct kafka *)side.broker)->away = true; /* as after all of them were down */
    assert_int_equal(semel_broker_poll(side.broker, 8, 10, &arena, &deliveries, &n, &side.err), SEMEL_RETRY);
    for (int i = 0; semel_broker_poll(side.broker, 8, 200, &arena, &deliveries, &n, &side.err) != SEMEL_OK; i++)
        assert_true(i < 300);
    far_ms = 0;
    semel__arena_done(&arena);
    kafka_side_close(&side);
}

/* ---- odd records -------------------------------------------------------------------------------------- */

static void send_record(struct semel_str payload, const struct semel_pair *headers, size_t n_headers)
{
    const struct kafka_record record = {.topic = topic, .payload = payload, .headers = headers, .n_headers = n_headers};

    kafka_client_send(&client, &record);
}

static void empty_payload_null_payload_and_large_ones_come_as_they_are(void **state)
{
    const size_t large = (size_t)5 << 20; /* more than the queue and an answer hold */
    char *bytes = semel__alloc(large);
    struct kafka_side side;

    (void)state;
    assert_non_null(bytes);
    memset(bytes, 'x', large);
    make_topic(1);
    send_record((struct semel_str){"", 0}, NULL, 0);
    send_record((struct semel_str){NULL, 0}, NULL, 0);
    send_record((struct semel_str){bytes, large}, NULL, 0);
    send_record((struct semel_str){bytes, large - 1}, NULL, 0);
    send_record((struct semel_str){"end", 3}, NULL, 0);
    kafka_side_open(&side, &server, topic, EARLIEST);
    for (size_t i = 0; i < 5; i++) {
        const size_t sizes[] = {0, 0, large, large - 1, 3};
        kafka_side_wait(&side, i + 1);
        assert_int_equal(side.n, 1);
        assert_int_equal(side.d[0].payload.n, sizes[i]);
        assert_true((side.d[0].payload.p == NULL) == (i == 1));
        assert_true(sizes[i] == 0 || memcmp(side.d[0].payload.p, i == 4 ? "end" : bytes, sizes[i]) == 0);
        assert_int_equal(kafka_side_ack(&side, i), SEMEL_OK);
    }
    kafka_side_close(&side);
    semel__free(bytes);
}

static void ten_thousand_headers_come_in_their_order(void **state)
{
    static struct semel_pair headers[10000];
    static char names[10000][8];
    struct kafka_side side;

    (void)state;
    for (size_t i = 0; i < COUNT(headers); i++) {
        snprintf(names[i], sizeof names[i], "h%zu", i % 5000);
        headers[i] = (struct semel_pair){semel__str(names[i]), i % 3 == 0 ? (struct semel_str){NULL, 0}
                                                                          : (struct semel_str){names[i], i % 3 - 1}};
    }
    make_topic(1);
    send_record(SEMEL_STR("x"), headers, COUNT(headers));
    kafka_side_open(&side, &server, topic, EARLIEST);
    kafka_side_wait(&side, 1);
    assert_int_equal(side.d[0].n_headers, COUNT(headers));
    for (size_t i = 0; i < COUNT(headers); i++) {
        assert_true(semel__str_eq(side.d[0].headers[i].name, headers[i].name));
        assert_true(semel__str_eq(side.d[0].headers[i].value, headers[i].value));
    }
    kafka_side_close(&side);
}

/* P29: what was aborted never happened; the marks that transactions leave in the log are no gaps either. */
static void aborted_transactions_are_not_delivered(void **state)
{
    struct kafka_record record = {.payload = SEMEL_STR("?")};
    struct kafka_side side;
    int64_t last;

    (void)state;
    make_topic(1);
    record.topic = topic;
    for (int i = 0; i < 6; i++) {
        record.payload = i % 2 == 0 ? SEMEL_STR("aborted") : SEMEL_STR("done");
        kafka_client_send_transaction(&client, &record, i % 2 != 0);
    }
    kafka_client_send_many(&client, topic, 0, "done", 1);
    kafka_side_open(&side, &server, topic, EARLIEST);
    while (side.n_got < 4) {
        kafka_side_poll(&side, 1, KAFKA_SIDE_STEP_MS);
        if (side.n > 0)
            assert_memory_equal(side.d[0].payload.p, "done", 4);
    }
    /* Back over the marks. */
    assert_int_equal(answer_later(side.broker, &side.got[1].tag, 1, 0, &side.err), SEMEL_OK);
    kafka_side_wait(&side, 7);
    for (size_t i = 4; i < 7; i++)
        assert_int_equal(side.got[i].offset, side.got[i - 3].offset);
    kafka_side_ack_all(&side);
    last = side.got[6].offset;
    kafka_side_close(&side);
    assert_int_equal(kafka_client_committed(&client, topic, topic, 0), last + 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_acknowledged_prefix_is_committed),
        cmocka_unit_test(nothing_is_committed_before_it_is_acknowledged),
        cmocka_unit_test(acknowledgement_reaches_the_server_while_there_is_polling),
        cmocka_unit_test(rebalance_fences_what_moves_and_the_other_goes_on_behind_the_prefix),
        cmocka_unit_test(member_that_did_not_poll_in_time_is_fenced_and_comes_back),
        cmocka_unit_test(more_members_than_partitions_share_what_there_is),
        cmocka_unit_test(handle_that_never_polled_can_be_closed),
        cmocka_unit_test(full_handle_takes_nothing_and_stays_a_member),
        cmocka_unit_test(what_is_given_back_comes_again_in_order_and_nothing_is_skipped),
        cmocka_unit_test(going_back_outlives_a_library_that_is_late),
        cmocka_unit_test(commit_that_is_refused_is_told_once_and_not_sent_again_and_again),
        cmocka_unit_test(server_that_is_far_away_is_found_again),
        cmocka_unit_test(empty_payload_null_payload_and_large_ones_come_as_they_are),
        cmocka_unit_test(ten_thousand_headers_come_in_their_order),
        cmocka_unit_test(aborted_transactions_are_not_delivered),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
