/* SPDX-License-Identifier: MIT
 *
 * test_sqs.c: the SQS driver on a real server (ElasticMQ, which keeps nothing when it is killed): slow and late
 * readers, competitors, groups that must stay in order, and a server that goes away.
 */
#include <signal.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sqs/side.h"

static struct sqs_server server;
static struct sqs_side a, b;
static char queue[32], url[SQS_SERVER_TEXT]; /* of the test that runs */

static int group_setup(void **state)
{
    (void)state;
    sqs_server_start(&server);
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    sqs_server_done(&server);
    return 0;
}

static void name_queue(const char *suffix)
{
    static int count;

    snprintf(queue, sizeof queue, "fault-%d%s", ++count, suffix);
    sqs_server_url(&server, queue, url);
}

static void make_queue(const char *suffix)
{
    name_queue(suffix);
    sqs_server_queue(&server, queue);
}

static void ack_from(struct sqs_side *side, size_t first)
{
    for (size_t i = first; i < side->n_got; i++)
        assert_int_equal(sqs_side_ack(side, i), SEMEL_OK);
    sqs_side_settle(side);
}

/* ---- visibility ---------------------------------------------------------------------------------------- */

/* P37 */
static void slow_batch_is_not_delivered_to_anybody_else(void **state)
{
    const int64_t until_us = semel__time_add(semel__now(&semel__clock_real), 3000000);

    (void)state;
    make_queue("");
    sqs_server_send_many(&server, queue, NULL, "m", 12);
    sqs_side_open(&a, url, "?visibility_ms=1000&wait_ms=1000");
    sqs_side_open(&b, url, "?visibility_ms=1000&wait_ms=1000");
    sqs_side_wait(&a, 12);
    while (semel__now(&semel__clock_real) < until_us) {
        assert_int_equal(sqs_side_poll(&a, 10, 50), SEMEL_OK);
        assert_int_equal(sqs_side_poll(&b, 10, 50), SEMEL_OK);
    }
    assert_int_equal(a.n_got, 12);
    assert_int_equal(b.n_got, 0);
    ack_from(&a, 0);
    sqs_side_close(&a);
    sqs_side_close(&b);
    assert_int_equal(sqs_server_count(&server, queue), 0);
}

/* P37 */
static void receipt_that_went_stale_is_fenced(void **state)
{
    struct semel_sqs_view view = {.in_flight = 1};

    (void)state;
    make_queue("");
    sqs_server_send_many(&server, queue, NULL, "m", 1);
    sqs_side_open(&a, url, "?visibility_ms=1000&wait_ms=0");
    sqs_side_open(&b, url, "?visibility_ms=60000&wait_ms=1000");
    sqs_side_wait(&a, 1);
    sqs_side_wait(&b, 1); /* nobody polls a meanwhile */
    assert_string_equal(b.got[0].body, a.got[0].body);
    assert_int_equal(b.got[0].delivery, 2);
    for (int i = 0; view.in_flight > 0; i++) {
        assert_true(i < SQS_SIDE_TRIES);
        assert_int_equal(sqs_side_poll(&a, 1, SQS_SIDE_STEP_MS), SEMEL_OK);
        semel__sqs_view(a.broker, &view);
    }
    assert_int_equal(sqs_side_ack(&a, 0), SEMEL_FENCED);
    assert_int_equal(sqs_side_later(&a, 0, 0), SEMEL_FENCED);
    sqs_side_close(&a);
    assert_int_equal(sqs_server_count(&server, queue), 1);
    ack_from(&b, 0);
    sqs_side_close(&b);
    assert_int_equal(sqs_server_count(&server, queue), 0);
}

/* What a would keep for twelve hours can only come to b because it was given back. */
static void closing_gives_back_what_is_held_although_a_long_poll_goes_on(void **state)
{
    (void)state;
    make_queue("");
    sqs_server_send_many(&server, queue, NULL, "m", 5);
    sqs_side_open(&a, url, "?visibility_ms=43200000&wait_ms=20000");
    sqs_side_wait(&a, 5);
    sqs_side_poll(&a, 10, 200);
    sqs_side_close(&a);
    sqs_side_open(&b, url, "?visibility_ms=60000&wait_ms=1000");
    sqs_side_wait(&b, 5);
    ack_from(&b, 0);
    sqs_side_close(&b);
}

/* ---- groups -------------------------------------------------------------------------------------------- */

static void group_comes_again_in_order_after_later_and_the_others_go_on(void **state)
{
    size_t first = 0, n_g = 0, n_h = 0;
    char expected[32];

    (void)state;
    make_queue(".fifo");
    sqs_server_send_many(&server, queue, "g", "g", 5);
    sqs_server_send_many(&server, queue, "h", "h", 5);
    sqs_side_open(&a, url, "?visibility_ms=60000&wait_ms=1000");
    sqs_side_wait(&a, 10);
    for (size_t i = 0; i < 10; i++)
        first = strcmp(a.got[i].body, "g-1") == 0 ? i : first;
    assert_int_equal(sqs_side_later(&a, first, 1000), SEMEL_OK);
    for (size_t i = 0; i < 10; i++) {
        const bool behind = a.got[i].body[0] == 'g' && a.got[i].body[2] >= '1';
        assert_int_equal(a.got[i].lane == a.got[first].lane, a.got[i].body[0] == 'g');
        assert_int_equal(sqs_side_ack(&a, i), behind ? SEMEL_FENCED : SEMEL_OK);
    }
    sqs_server_send_many(&server, queue, "h", "x", 1);
    sqs_server_send_many(&server, queue, "g", "g", 6); /* g-0 to g-5 once more, behind */
    while (n_g < 10) {
        sqs_side_wait(&a, a.n_got + 1);
        for (size_t i = 10 + n_g + n_h; i < a.n_got; i++) {
            if (a.got[i].body[0] == 'g') {
                snprintf(expected, sizeof expected, "g-%zu", n_g < 4 ? n_g + 1 : n_g - 4);
                assert_string_equal(a.got[i].body, expected);
                n_g++;
            } else {
                assert_string_equal(a.got[i].body, "x-0");
                n_h++;
            }
            assert_int_equal(sqs_side_ack(&a, i), SEMEL_OK);
        }
    }
    assert_int_equal(n_h, 1);
    sqs_side_settle(&a);
    sqs_side_close(&a);
    assert_int_equal(sqs_server_count(&server, queue), 0);
}

/* P69 */
static void published_to_a_fifo_queue_a_key_keeps_its_order_and_an_id_arrives_once(void **state)
{
    static const char *const ids[] = {"1", "2", "3", "2", "with blank"};
    struct semel_publish items[COUNT(ids)];
    char expected[2] = "1";

    (void)state;
    make_queue(".fifo");
    sqs_side_open(&a, url, "?visibility_ms=60000&wait_ms=1000");
    for (size_t i = 0; i < COUNT(ids); i++)
        items[i] = (struct semel_publish){.destination = semel__str(queue),
                                          .key = SEMEL_STR("a key"),
                                          .id = semel__str(ids[i]),
                                          .payload = i < 3 ? semel__str(ids[i]) : SEMEL_STR("4")};
    assert_int_equal(semel_broker_publish(a.broker, items, COUNT(items), 60000, &a.err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(items); i++)
        assert_int_equal(items[i].status, SEMEL_OK);
    for (size_t i = 0; i < 4; i++, expected[0]++) {
        sqs_side_wait(&a, i + 1);
        assert_string_equal(a.got[i].body, expected);
        assert_int_equal(sqs_side_ack(&a, i), SEMEL_OK);
    }
    sqs_side_settle(&a);
    sqs_side_close(&a);
    assert_int_equal(sqs_server_count(&server, queue), 0);
}

/* ---- many ---------------------------------------------------------------------------------------------- */

static void all_of_many_are_delivered_and_deleted(void **state)
{
    static bool seen[500];
    size_t done = 0;

    (void)state;
    make_queue("");
    sqs_server_send_many(&server, queue, NULL, "m", COUNT(seen));
    sqs_side_open(&a, url, "?wait_ms=1000");
    for (int tries = 0; a.n_got < COUNT(seen); tries++) {
        assert_true(tries < SQS_SIDE_TRIES);
        sqs_side_poll(&a, 100, SQS_SIDE_STEP_MS);
        for (; done < a.n_got; done++) {
            const long at = strtol(a.got[done].body + 2, NULL, 10);
            assert_true(at >= 0 && at < (long)COUNT(seen) && !seen[at]);
            seen[at] = true;
            assert_int_equal(sqs_side_ack(&a, done), SEMEL_OK);
        }
    }
    sqs_side_settle(&a);
    sqs_side_close(&a);
    assert_int_equal(sqs_server_count(&server, queue), 0);
}

static void no_more_is_taken_than_may_be_in_flight(void **state)
{
    struct semel_sqs_view view;

    (void)state;
    make_queue("");
    sqs_server_send_many(&server, queue, NULL, "m", 60);
    sqs_side_open(&a, url, "?wait_ms=0&in_flight=25");
    sqs_side_wait(&a, 25);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(sqs_side_poll(&a, 100, 100), SEMEL_OK);
        semel__sqs_view(a.broker, &view);
        assert_int_equal(view.in_flight + view.waiting, 25);
    }
    ack_from(&a, 0);
    sqs_side_wait(&a, 50);
    sqs_side_close(&a);
}

/* ---- the server goes away ------------------------------------------------------------------------------ */

static void queue_that_is_not_there_is_told_and_found_when_it_is(void **state)
{
    (void)state;
    name_queue("");
    sqs_side_open(&a, url, "?wait_ms=1000");
    assert_int_equal(sqs_side_wait_error(&a), SEMEL_INVALID);
    assert_int_equal(a.err.cls, SEMEL_CLASS_BROKEN);
    assert_non_null(strstr(a.err.text, "QueueDoesNotExist"));
    sqs_server_queue(&server, queue);
    sqs_server_send_many(&server, queue, NULL, "m", 1);
    sqs_side_wait(&a, 1);
    ack_from(&a, 0);
    sqs_side_close(&a);
}

static void server_that_was_killed_is_found_again(void **state)
{
    (void)state;
    make_queue("");
    sqs_server_send_many(&server, queue, NULL, "m", 3);
    sqs_side_open(&a, url, "?wait_ms=1000");
    sqs_side_wait(&a, 3);
    assert_int_equal(sqs_side_ack(&a, 0), SEMEL_OK);
    server_stop(&server.process, SIGKILL);
    assert_int_equal(sqs_side_ack(&a, 1), SEMEL_OK); /* handed over; it would come again */
    assert_int_equal(sqs_side_wait_error(&a), SEMEL_RETRY);
    assert_int_equal(a.err.cls, SEMEL_CLASS_ENVIRONMENT);
    server_again(&server.process);
    sqs_server_queue(&server, queue);
    sqs_server_send_many(&server, queue, NULL, "n", 2);
    sqs_side_wait(&a, 5);
    assert_int_equal(sqs_side_ack(&a, 3), SEMEL_OK);
    assert_int_equal(sqs_side_ack(&a, 4), SEMEL_OK);
    sqs_side_settle(&a);
    assert_int_equal(sqs_server_count(&server, queue), 0);
    server_stop(&server.process, SIGKILL); /* closing does not need it */
    sqs_side_close(&a);
}

static void frozen_server_holds_up_nobody_and_loses_nothing(void **state)
{
    (void)state;
    make_queue("");
    sqs_server_send_many(&server, queue, NULL, "m", 5);
    sqs_side_open(&a, url, "?wait_ms=1000");
    sqs_side_wait(&a, 5);
    server_freeze(&server.process);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(sqs_side_ack(&a, i), SEMEL_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(sqs_side_poll(&a, 10, 20), SEMEL_OK);
    server_thaw(&server.process);
    sqs_side_settle(&a);
    sqs_side_close(&a);
    assert_int_equal(sqs_server_count(&server, queue), 0);
}

/* ---- what a queue says of itself ------------------------------------------------------------------------ */

static void queue_is_asked_for_what_it_is(void **state)
{
    struct semel_sqs_options options = {.url = url, .region = "e", .access_key = "a", .secret_key = "none"};
    struct semel_sqs_facts facts;
    struct semel_error err;

    (void)state;
    make_queue(".fifo");
    sqs_server_send_many(&server, queue, "g", "m", 3);
    assert_int_equal(semel__sqs_ask(&options, &facts, &err), SEMEL_OK);
    assert_true(facts.fifo);
    assert_int_equal(facts.visibility_us, 30000000);
    assert_int_equal(facts.messages, 3);
    assert_int_equal(facts.max_receives, SEMEL_NONE);
    name_queue("");
    assert_int_equal(semel__sqs_ask(&options, &facts, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "QueueDoesNotExist"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_batch_is_not_delivered_to_anybody_else),
        cmocka_unit_test(receipt_that_went_stale_is_fenced),
        cmocka_unit_test(closing_gives_back_what_is_held_although_a_long_poll_goes_on),
        cmocka_unit_test(group_comes_again_in_order_after_later_and_the_others_go_on),
        cmocka_unit_test(published_to_a_fifo_queue_a_key_keeps_its_order_and_an_id_arrives_once),
        cmocka_unit_test(all_of_many_are_delivered_and_deleted),
        cmocka_unit_test(no_more_is_taken_than_may_be_in_flight),
        cmocka_unit_test(queue_that_is_not_there_is_told_and_found_when_it_is),
        cmocka_unit_test(frozen_server_holds_up_nobody_and_loses_nothing),
        cmocka_unit_test(queue_is_asked_for_what_it_is),
        cmocka_unit_test(server_that_was_killed_is_found_again), /* the last: it stays so */
    };

    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
