/* SPDX-License-Identifier: MIT
 *
 * broker_contract.c: the conformance program of broker drivers: `broker_contract DRIVER [PATTERN]`.
 *
 * What it is: one test a sentence of core/broker.h, for mem (ordered), mem-unordered, spool, and for kafka, amqp and
 * sqs on real servers. What a driver does not promise (order) is skipped. What it is not: a test of anything special
 * to one driver.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "demo/spool.h"
#include "conform/broker_bench.h"
#include "support/answer.h"

const struct semel_pair broker_headers[BROKER_HEADERS] = {{SEMEL_STR("ce_id"), SEMEL_STR("it's \xF0\x9F\x90\x98")},
                                                          {SEMEL_STR("empty"), SEMEL_STR("")},
                                                          {SEMEL_STR("ce_id"), SEMEL_STR("a\0b,3:c")}};
static const struct semel_pair properties[] = {{SEMEL_STR("message_id"), SEMEL_STR("7")}};

/* ---- mem ---------------------------------------------------------------------------------------------- */

static int64_t bench_now(void *ctx)
{
    return ((struct broker_bench *)ctx)->now_us;
}

static struct semel_broker *mem_open(struct broker_bench *bench)
{
    struct semel_broker *broker = NULL;

    assert_int_equal(semel__broker_mem_open(&broker, bench->queue, &bench->err), SEMEL_OK);
    return broker;
}

static void mem_setup(struct broker_bench *bench, enum semel_queue_mode mode)
{
    assert_int_equal(semel__mem_queue_new(&bench->queue, mode, 3, &bench->clock), SEMEL_OK);
    assert_int_equal(semel__mem_queue_link(bench->queue, SEMEL_STR("topic"), bench->queue, &bench->err), SEMEL_OK);
}

static void mem_setup_ordered(struct broker_bench *bench)
{
    mem_setup(bench, SEMEL_QUEUE_ORDERED);
}

static void mem_setup_unordered(struct broker_bench *bench)
{
    mem_setup(bench, SEMEL_QUEUE_UNORDERED);
}

static void mem_teardown(struct broker_bench *bench)
{
    semel__mem_queue_free(bench->queue);
}

static void mem_push(struct broker_bench *bench, char key, const char *payload, size_t n)
{
    const struct semel_mem_push push = {.source = SEMEL_STR("topic"),
                                        .key = {&key, 1},
                                        .payload = {payload, n},
                                        .headers = broker_headers,
                                        .n_headers = BROKER_HEADERS,
                                        .properties = properties,
                                        .n_properties = COUNT(properties)};

    assert_int_equal(semel__mem_queue_push(bench->queue, &push, 1, &bench->err), SEMEL_OK);
}

static void mem_pass_ms(struct broker_bench *bench, int ms)
{
    bench->now_us += (int64_t)ms * 1000;
}

/* ---- spool -------------------------------------------------------------------------------------------- */

static struct semel_broker *spool_open(struct broker_bench *bench)
{
    struct semel_broker *broker = NULL;
    char location[128];

    snprintf(location, sizeof location, "%s/spool.db?visibility_ms=60000", bench->dir);
    assert_int_equal(semel__spool_open(&broker, location, &bench->err), SEMEL_OK);
    return broker;
}

static void spool_setup(struct broker_bench *bench)
{
    snprintf(bench->dir, sizeof bench->dir, "/tmp/semel-spool-XXXXXX");
    assert_non_null(mkdtemp(bench->dir));
}

static void spool_teardown(struct broker_bench *bench)
{
    static const char *const files[] = {"spool.db", "spool.db-wal", "spool.db-shm"};
    char path[128];

    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", bench->dir, files[i]);
        unlink(path);
    }
    rmdir(bench->dir);
}

static void spool_push(struct broker_bench *bench, char key, const char *payload, size_t n)
{
    const struct semel_spool_push push = {.source = SEMEL_STR("topic"),
                                          .partition = key - '0',
                                          .payload = {payload, n},
                                          .headers = broker_headers,
                                          .n_headers = BROKER_HEADERS,
                                          .properties = properties,
                                          .n_properties = COUNT(properties)};

    assert_int_equal(semel__spool_push(bench->a, &push, 1, NULL, &bench->err), SEMEL_OK);
}

static const struct broker_driver mem = {
    .name = "mem",
    .setup = mem_setup_ordered,
    .open = mem_open,
    .teardown = mem_teardown,
    .push = mem_push,
    .pass_ms = mem_pass_ms,
    .properties = properties,
    .n_properties = COUNT(properties),
};
static const struct broker_driver mem_unordered = {
    .name = "mem-unordered",
    .setup = mem_setup_unordered,
    .open = mem_open,
    .teardown = mem_teardown,
    .push = mem_push,
    .pass_ms = mem_pass_ms,
    .properties = properties,
    .n_properties = COUNT(properties),
};
static const struct broker_driver spool = {
    .name = "spool",
    .setup = spool_setup,
    .open = spool_open,
    .teardown = spool_teardown,
    .push = spool_push,
    .properties = properties,
    .n_properties = COUNT(properties),
};
static const struct broker_driver *const drivers[] = {
    &mem,
    &mem_unordered,
    &spool,
#ifdef SEMEL_WITH_KAFKA
    &broker_driver_kafka,
#endif
#ifdef SEMEL_WITH_AMQP
    &broker_driver_amqp,
    &broker_driver_amqp_unordered,
#endif
#ifdef SEMEL_WITH_SQS
    &broker_driver_sqs,
    &broker_driver_sqs_fifo,
#endif
};
static const struct broker_driver *driver_named;

/* ---- short ways --------------------------------------------------------------------------------------- */

static int bench_setup(void **state)
{
    struct broker_bench *bench = semel__calloc(1, sizeof *bench);

    assert_non_null(bench);
    bench->driver = driver_named;
    bench->now_us = 1000000;
    bench->clock = (struct semel_clock){bench_now, bench};
    semel__arena_init(&bench->arena, 16 << 20);
    snprintf(bench->source, sizeof bench->source, "topic");
    bench->driver->setup(bench);
    bench->a = bench->driver->open(bench);
    *state = bench;
    return 0;
}

static int bench_teardown(void **state)
{
    struct broker_bench *bench = *state;

    semel_broker_close(bench->a);
    semel_broker_close(bench->b);
    bench->driver->teardown(bench);
    semel__arena_done(&bench->arena);
    semel__free(bench);
    return 0;
}

static bool ordered(const struct broker_bench *bench)
{
    return (bench->a->ops->capabilities & SEMEL_BROKER_ORDERED) != 0;
}

/* Each letter of `letters` is a message. */
static void push(struct broker_bench *bench, char key, const char *letters)
{
    for (; *letters != '\0'; letters++)
        bench->driver->push(bench, key, letters, 1);
}

struct got {
    struct semel_delivery d[64];
    size_t n;
    uint64_t tags[64];
    char letters[65]; /* the payloads in the order of delivery */
};

static void poll_into(struct broker_bench *bench, struct semel_broker *broker, size_t max, int wait_ms, struct got *got)
{
    struct semel_delivery *d = NULL;
    size_t n = 0;

    assert_int_equal(semel_broker_poll(broker, max, wait_ms, &bench->arena, &d, &n, &bench->err), SEMEL_OK);
    assert_true(n <= max && got->n + n <= 64);
    for (size_t i = 0; i < n; i++, got->n++) {
        got->d[got->n] = d[i];
        got->tags[got->n] = d[i].tag;
        got->letters[got->n] = d[i].payload.p[0];
    }
}

/* In the order of their first bytes. */
static void sort_got(struct got *got)
{
    for (size_t i = 1; i < got->n; i++)
        for (size_t j = i; j > 0 && got->letters[j] < got->letters[j - 1]; j--) {
            const struct semel_delivery d = got->d[j];
            const uint64_t tag = got->tags[j];
            const char letter = got->letters[j];
            got->d[j] = got->d[j - 1], got->tags[j] = got->tags[j - 1], got->letters[j] = got->letters[j - 1];
            got->d[j - 1] = d, got->tags[j - 1] = tag, got->letters[j - 1] = letter;
        }
}

/* Polls until `n` have come; with none to come, once. What there is comes by itself, so a poll may give more. */
static struct got poll(struct broker_bench *bench, struct semel_broker *broker, size_t max, size_t n)
{
    const int quiet_ms = bench->driver->quiet_ms;
    struct got got = {0};

    poll_into(bench, broker, max, n == 0 ? quiet_ms : 0, &got);
    for (size_t i = 0; i < 300 && got.n < n && got.n < max && quiet_ms > 0; i++)
        poll_into(bench, broker, max - got.n, 100, &got);
    if (bench->driver->any_order)
        sort_got(&got);
    return got;
}

static void assert_delivery(const struct broker_bench *bench, const struct semel_delivery *d, int delivery)
{
    if (bench->driver->no_count)
        assert_true(d->delivery == 0 || d->delivery == 2); /* cannot tell, or may have been delivered to another */
    else
        assert_int_equal(d->delivery, delivery);
}

static semel_status ack(struct broker_bench *bench, struct semel_broker *broker, const uint64_t *tags, size_t n)
{
    return answer_ack(broker, tags, n, &bench->err);
}

static semel_status later(struct broker_bench *bench, const uint64_t *tags, size_t n, int delay_ms)
{
    return answer_later(bench->a, tags, n, delay_ms, &bench->err);
}

static void assert_pairs(const struct semel_pair *pairs, size_t n, const struct semel_pair *expected, size_t n_expected)
{
    assert_int_equal(n, n_expected);
    for (size_t i = 0; i < n; i++)
        assert_true(semel__str_eq(pairs[i].name, expected[i].name) && semel__str_eq(pairs[i].value, expected[i].value));
}

/* ---- poll --------------------------------------------------------------------------------------------- */

static void empty_broker_delivers_nothing_and_that_is_ok(void **state)
{
    struct broker_bench *bench = *state;

    assert_int_equal(poll(bench, bench->a, 8, 0).n, 0);
}

static void delivery_is_what_was_sent_byte_for_byte(void **state)
{
    struct broker_bench *bench = *state;
    const struct broker_driver *driver = bench->driver;
    const struct semel_str first = driver->text_only ? SEMEL_STR("a'\xC3\xA4") : SEMEL_STR("a\0\xFF'");
    const struct semel_str second = driver->text_only ? SEMEL_STR("b\n") : SEMEL_STR("");
    struct got got;

    driver->push(bench, '0', first.p, first.n);
    driver->push(bench, '0', second.p, second.n);
    got = poll(bench, bench->a, 8, 2);
    assert_int_equal(got.n, 2);
    assert_str(got.d[0].source, bench->source);
    assert_true(semel__str_eq(got.d[0].payload, first));
    assert_true(semel__str_eq(got.d[1].payload, second)); /* empty is given */
    assert_pairs(got.d[0].headers, got.d[0].n_headers, driver->headers != NULL ? driver->headers : broker_headers,
                 driver->headers != NULL ? driver->n_headers : BROKER_HEADERS);
    assert_true(got.d[0].n_properties >= driver->n_properties);
    assert_pairs(got.d[0].properties, driver->n_properties, driver->properties, driver->n_properties);
    assert_delivery(bench, &got.d[0], 1);
}

static void poll_gives_at_most_what_was_asked_for(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;

    push(bench, '0', "abcde");
    got = poll(bench, bench->a, 2, 2);
    assert_string_equal(got.letters, "ab");
    assert_int_equal(ack(bench, bench->a, got.tags, 2), SEMEL_OK);
    got = poll(bench, bench->a, 64, 3);
    assert_string_equal(got.letters, "cde");
}

static void full_arena_ends_the_batch_and_loses_nothing(void **state)
{
    struct broker_bench *bench = *state;
    struct semel_arena small;
    struct semel_delivery *d = NULL;
    char big[30000];
    size_t n = 0, total = 0;

    memset(big, 'x', sizeof big);
    for (size_t i = 0; i < 6; i++)
        bench->driver->push(bench, (char)('0' + i % 3), big, sizeof big);
    semel__arena_init(&small, 100000);
    for (size_t round = 0; round < 300 && total < 6; round++) {
        semel__arena_reset(&small);
        assert_int_equal(semel_broker_poll(bench->a, 8, bench->driver->quiet_ms, &small, &d, &n, &bench->err),
                         SEMEL_OK);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(d[i].payload.n, sizeof big);
            assert_int_equal(ack(bench, bench->a, &d[i].tag, 1), SEMEL_OK);
        }
        total += n;
    }
    assert_int_equal(total, 6);
    semel__arena_done(&small);
}

/* ---- ack ---------------------------------------------------------------------------------------------- */

static void acknowledged_message_does_not_come_again(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;

    push(bench, '0', "ab");
    got = poll(bench, bench->a, 8, 2);
    assert_int_equal(ack(bench, bench->a, got.tags, 2), SEMEL_OK);
    assert_int_equal(poll(bench, bench->a, 8, 0).n, 0);
    assert_int_equal(semel_broker_reopen(bench->a, &bench->err), SEMEL_OK);
    push(bench, '0', "c");
    assert_string_equal(poll(bench, bench->a, 8, 1).letters, "c");
}

static void what_is_being_worked_on_is_not_delivered_twice(void **state)
{
    struct broker_bench *bench = *state;

    push(bench, '0', "ab");
    assert_int_equal(poll(bench, bench->a, 8, 2).n, 2);
    assert_int_equal(poll(bench, bench->a, 8, 0).n, 0);
}

static void unacknowledged_comes_again_after_a_reconnect_and_is_counted(void **state)
{
    struct broker_bench *bench = *state;
    struct got first, second;

    push(bench, '0', "ab");
    first = poll(bench, bench->a, 8, 2);
    assert_int_equal(ack(bench, bench->a, first.tags, 1), SEMEL_OK);
    assert_int_equal(semel_broker_reopen(bench->a, &bench->err), SEMEL_OK);
    second = poll(bench, bench->a, 8, 1);
    assert_string_equal(second.letters, "b");
    assert_delivery(bench, &second.d[0], 2);
    assert_true(semel__str_eq(second.d[0].position, first.d[1].position));
}

static void positions_are_unique_where_there_are_any(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;

    push(bench, '0', "ab");
    push(bench, '1', "cd");
    got = poll(bench, bench->a, 8, 4);
    assert_int_equal(got.n, 4);
    for (size_t i = 0; i < got.n; i++)
        for (size_t j = 0; j < i && semel__str_given(got.d[i].position); j++)
            assert_false(semel__str_eq(got.d[i].position, got.d[j].position));
}

static void unacknowledged_goes_to_others_when_its_handle_is_closed(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;

    push(bench, '0', "ab");
    assert_int_equal(poll(bench, bench->a, 1, 1).n, 1);
    bench->b = bench->driver->open(bench);
    semel_broker_close(bench->a);
    bench->a = NULL;
    got = poll(bench, bench->b, 8, 2);
    assert_string_equal(got.letters, "ab");
    assert_int_equal(ack(bench, bench->b, got.tags, 2), SEMEL_OK);
}

/* P27 */
static void old_tags_are_fenced_and_do_nothing(void **state)
{
    struct broker_bench *bench = *state;
    struct got first, second;

    push(bench, '0', "ab");
    first = poll(bench, bench->a, 8, 2);
    assert_int_equal(semel_broker_reopen(bench->a, &bench->err), SEMEL_OK);
    assert_int_equal(ack(bench, bench->a, first.tags, 2), SEMEL_FENCED);
    assert_int_equal(later(bench, first.tags, 2, 0), SEMEL_FENCED);
    second = poll(bench, bench->a, 8, 2);
    assert_string_equal(second.letters, "ab");
    assert_int_equal(ack(bench, bench->a, first.tags, 2), SEMEL_FENCED);
    assert_int_equal(ack(bench, bench->a, second.tags, 2), SEMEL_OK);
}

static void fenced_tag_does_not_keep_the_others_from_being_acknowledged(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;
    uint64_t tags[3];

    push(bench, '0', "ab");
    got = poll(bench, bench->a, 8, 2);
    tags[0] = got.tags[0];
    tags[1] = UINT64_C(999) << 32;
    tags[2] = got.tags[1];
    assert_int_equal(ack(bench, bench->a, tags, 3), SEMEL_FENCED);
    assert_int_equal(semel_broker_reopen(bench->a, &bench->err), SEMEL_OK);
    push(bench, '0', "c");
    assert_string_equal(poll(bench, bench->a, 8, 1).letters, "c");
}

static void tags_of_one_handle_are_nothing_to_another(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;

    bench->b = bench->driver->open(bench);
    push(bench, '0', "a");
    push(bench, '1', "b");
    push(bench, '2', "c");
    got = poll(bench, bench->a, 8, 1);
    assert_true(got.n > 0);
    assert_int_equal(ack(bench, bench->b, got.tags, got.n), SEMEL_FENCED);
    assert_int_equal(ack(bench, bench->a, got.tags, got.n), SEMEL_OK);
}

/* ---- later -------------------------------------------------------------------------------------------- */

static void given_back_it_comes_again_but_not_before_the_delay(void **state)
{
    struct broker_bench *bench = *state;
    const int delay_ms = 300 + 10 * bench->driver->quiet_ms;
    struct got got;

    push(bench, '0', "a");
    got = poll(bench, bench->a, 8, 1);
    assert_int_equal(later(bench, got.tags, 1, delay_ms), SEMEL_OK);
    assert_int_equal(poll(bench, bench->a, 8, 0).n, 0);
    if (bench->driver->pass_ms != NULL)
        bench->driver->pass_ms(bench, delay_ms);
    got = (struct got){0};
    poll_into(bench, bench->a, 8, 30000, &got);
    assert_string_equal(got.letters, "a");
    assert_delivery(bench, &got.d[0], 2);
    assert_int_equal(later(bench, got.tags, 1, 0), SEMEL_OK);
    got = poll(bench, bench->a, 8, 1);
    assert_delivery(bench, &got.d[0], 3);
}

static void given_back_in_a_partition_everything_after_it_comes_again_in_order(void **state)
{
    struct broker_bench *bench = *state;
    struct got got, again;

    if (!ordered(bench))
        skip();
    push(bench, '0', "abcd");
    got = poll(bench, bench->a, 8, 4);
    assert_int_equal(ack(bench, bench->a, got.tags, 1), SEMEL_OK);
    assert_int_equal(later(bench, got.tags + 1, 1, 0), SEMEL_OK);
    assert_int_equal(ack(bench, bench->a, got.tags + 2, 2), SEMEL_FENCED); /* they were given back with it */
    again = poll(bench, bench->a, 8, 3);
    assert_string_equal(again.letters, "bcd");
    assert_int_equal(ack(bench, bench->a, again.tags, 3), SEMEL_OK);
    assert_int_equal(poll(bench, bench->a, 8, 0).n, 0);
}

static void several_of_a_partition_are_given_back_in_one_call(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;

    push(bench, '0', "abcd");
    got = poll(bench, bench->a, 8, 4);
    assert_int_equal(later(bench, got.tags + 1, 3, 0), SEMEL_OK);
    assert_int_equal(ack(bench, bench->a, got.tags, 1), SEMEL_OK);
    assert_string_equal(poll(bench, bench->a, 8, 3).letters, "bcd");
}

/* Acknowledged and given back at once, each with its own delay, and one tag that is nobody's. */
static void one_answer_acknowledges_and_gives_back(void **state)
{
    static const struct semel_settled acked = {.act = SEMEL_ACK}, back = {.act = SEMEL_LATER};
    struct broker_bench *bench = *state;
    struct semel_reply replies[4] = {{.settled = &back}, {.settled = &acked}, {.settled = &acked}, {.settled = NULL}};
    struct got got;

    push(bench, '0', "abc");
    got = poll(bench, bench->a, 8, 3);
    replies[0].tag = got.tags[2];
    replies[1].tag = got.tags[0];
    replies[2].tag = UINT64_C(999) << 32;
    replies[3].tag = got.tags[1];
    assert_int_equal(semel_broker_answer(bench->a, replies, 4, &bench->err), SEMEL_FENCED);
    got = poll(bench, bench->a, 8, 2);
    assert_string_equal(got.letters, "bc");
    assert_int_equal(ack(bench, bench->a, got.tags, 2), SEMEL_OK);
    assert_int_equal(semel_broker_reopen(bench->a, &bench->err), SEMEL_OK);
    push(bench, '0', "d");
    assert_string_equal(poll(bench, bench->a, 8, 1).letters, "d");
}

static void delayed_message_holds_back_its_partition_and_no_other(void **state)
{
    struct broker_bench *bench = *state;
    struct got got;

    if (!ordered(bench) || bench->driver->one_lane)
        skip();
    push(bench, '0', "ab");
    got = poll(bench, bench->a, 8, 2);
    assert_int_equal(later(bench, got.tags, 1, 60000), SEMEL_OK);
    push(bench, '0', "c");
    push(bench, '1', "x");
    assert_string_equal(poll(bench, bench->a, 8, 1).letters, "x");
}

/* ---- several handles ---------------------------------------------------------------------------------- */

#define KEYS 4

/* Nothing is skipped, and nothing comes again but what the driver may repeat. `seen` counts the letters of each key. */
static void count_in_order(const struct broker_bench *bench, const struct got *got, size_t seen[KEYS])
{
    for (size_t i = 0; i < got->n; i++) {
        size_t *count = &seen[got->d[i].payload.p[1] - '0'];
        const size_t at = (size_t)(got->letters[i] - 'a');
        assert_true(bench->driver->repeats ? at <= *count : at == *count);
        *count = at + 1;
    }
}

static void two_handles_share_the_work_and_keep_the_order_of_each_partition(void **state)
{
    struct broker_bench *bench = *state;
    const char *letters = "abcdefgh";
    const size_t n = strlen(letters);
    size_t seen[KEYS] = {0}, done = 0;

    if (bench->driver->any_order || (bench->driver->one_lane && !ordered(bench)))
        skip();
    bench->b = bench->driver->open(bench);
    for (const char *letter = letters; *letter != '\0'; letter++)
        for (char key = '0'; key < '0' + KEYS; key++) {
            const char payload[] = {*letter, key};
            bench->driver->push(bench, key, payload, 2);
        }
    for (size_t round = 0; round < 300 && done < KEYS; round++) {
        struct semel_broker *broker = round % 2 == 0 ? bench->a : bench->b;
        struct got got = poll(bench, broker, 5, 0);
        semel_status status = ack(bench, broker, got.tags, got.n);
        assert_true(status == SEMEL_OK || (bench->driver->repeats && status == SEMEL_FENCED));
        count_in_order(bench, &got, seen);
        done = 0;
        for (size_t i = 0; i < KEYS; i++)
            done += seen[i] == n;
    }
    assert_int_equal(done, KEYS);
}

/* ---- publish ------------------------------------------------------------------------------------------ */

static struct semel_publish item_of(const struct broker_bench *bench, const char *id, struct semel_str payload)
{
    return (struct semel_publish){.destination = semel__str(bench->source),
                                  .key = SEMEL_STR("k"),
                                  .id = semel__str(id),
                                  .payload = payload,
                                  .status = SEMEL_FENCED,
                                  .down = true,
                                  .why = "left over"};
}

static void assert_taken(const struct semel_publish *item)
{
    assert_string_equal(item->why, "");
    assert_int_equal(item->status, SEMEL_OK);
    assert_false(item->down);
}

static void what_is_published_arrives_with_its_id(void **state)
{
    struct broker_bench *bench = *state;
    const struct semel_pair header = {SEMEL_STR("ce_type"), SEMEL_STR("Placed")};
    struct semel_publish items[] = {item_of(bench, "e-1",
                                            bench->driver->text_only ? SEMEL_STR("a\n") : SEMEL_STR("a\0")),
                                    item_of(bench, "e-2", SEMEL_STR("b"))};
    struct got got;

    items[0].headers = &header;
    items[0].n_headers = 1;
    assert_int_equal(semel_broker_publish(bench->a, items, 2, 60000, &bench->err), SEMEL_OK);
    assert_taken(&items[0]);
    assert_taken(&items[1]);
    got = poll(bench, bench->a, 8, 2);
    assert_string_equal(got.letters, "ab");
    assert_str(got.d[0].source, bench->source);
    assert_int_equal(got.d[0].payload.n, 2);
    assert_int_equal(got.d[0].n_headers, 2);
    assert_str(got.d[0].headers[0].value, "Placed");
    assert_str(got.d[0].headers[1].name, "id");
    assert_str(got.d[0].headers[1].value, "e-1");
    assert_int_equal(got.d[1].n_headers, 1);
    assert_str(got.d[1].headers[0].value, "e-2");
}

static bool has_header(const struct semel_delivery *d, const char *name, const char *value)
{
    for (size_t i = 0; i < d->n_headers; i++)
        if (semel__str_eqz(d->headers[i].name, name) && semel__str_eqz(d->headers[i].value, value))
            return true;
    return false;
}

/* P114 */
static void headers_of_a_row_never_replace_its_id(void **state)
{
    struct broker_bench *bench = *state;
    static const struct semel_pair wrong[] = {
        {SEMEL_STR("ID"), SEMEL_STR("own")},         {SEMEL_STR("CE_id"), SEMEL_STR("own")},
        {SEMEL_STR("ce-id"), SEMEL_STR("own")},      {SEMEL_STR("webhook-id"), SEMEL_STR("own")},
        {SEMEL_STR("message_id"), SEMEL_STR("own")}, {SEMEL_STR("idempotency-key"), SEMEL_STR("own")},
        {SEMEL_STR("id"), SEMEL_STR("own")},         {SEMEL_STR("ce_type"), SEMEL_STR("Placed")}};
    static const struct semel_pair right[] = {{SEMEL_STR("id"), SEMEL_STR("e-2")},
                                              {SEMEL_STR("ce_id"), SEMEL_STR("e-2")}};
    struct semel_publish items[] = {item_of(bench, "e-1", SEMEL_STR("a")), item_of(bench, "e-2", SEMEL_STR("b"))};
    struct got got;

    items[0].headers = wrong, items[0].n_headers = COUNT(wrong);
    items[1].headers = right, items[1].n_headers = COUNT(right);
    assert_int_equal(semel_broker_publish(bench->a, items, 2, 60000, &bench->err), SEMEL_OK);
    assert_taken(&items[0]);
    assert_taken(&items[1]);
    got = poll(bench, bench->a, 8, 2);
    assert_int_equal(got.n, 2);
    assert_int_equal(got.d[0].n_headers, 2);
    assert_true(has_header(&got.d[0], "ce_type", "Placed") && has_header(&got.d[0], "id", "e-1"));
    assert_int_equal(got.d[1].n_headers, 2);
    assert_true(has_header(&got.d[1], "ce_id", "e-2") && has_header(&got.d[1], "id", "e-2"));
}

/* P111 */
static void destination_that_is_not_there_is_down_and_no_fault_of_its_items(void **state)
{
    struct broker_bench *bench = *state;
    struct semel_publish items[] = {item_of(bench, "e-1", SEMEL_STR("a")), item_of(bench, "e-2", SEMEL_STR("b")),
                                    item_of(bench, "e-3", SEMEL_STR("c"))};

    if (bench->driver->nowhere == NULL)
        skip();
    items[0].destination = items[2].destination = semel__str(bench->driver->nowhere);
    assert_int_equal(semel_broker_publish(bench->a, items, 3, 60000, &bench->err), SEMEL_OK);
    assert_taken(&items[1]);
    for (size_t i = 0; i < 3; i += 2) {
        assert_int_equal(items[i].status, SEMEL_RETRY);
        assert_true(items[i].down);
        assert_string_not_equal(items[i].why, "");
    }
    assert_string_equal(poll(bench, bench->a, 8, 1).letters, "b");
}

static void what_is_published_under_one_key_arrives_in_order(void **state)
{
    static const char *const ids[] = {"e-1", "e-2", "e-3", "e-4", "e-5", "e-6"};
    static const char letters[] = "abcdef";
    struct broker_bench *bench = *state;
    struct semel_publish items[COUNT(ids)];

    if (bench->driver->any_order)
        skip();
    for (size_t i = 0; i < COUNT(ids); i++)
        items[i] = item_of(bench, ids[i], (struct semel_str){&letters[i], 1});
    assert_int_equal(semel_broker_publish(bench->a, items, COUNT(ids), 60000, &bench->err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(ids); i++)
        assert_taken(&items[i]);
    if ((bench->a->ops->capabilities & SEMEL_BROKER_RUNS) == 0 && !bench->driver->one_lane)
        skip(); /* a caller that needs order sends one at a time */
    assert_string_equal(poll(bench, bench->a, 8, COUNT(ids)).letters, letters);
}

static void without_time_nothing_is_published_and_it_says_so(void **state)
{
    struct broker_bench *bench = *state;
    struct semel_publish items[] = {item_of(bench, "e-1", SEMEL_STR("a")), item_of(bench, "e-2", SEMEL_STR("b"))};
    struct got got;

    assert_int_equal(semel_broker_publish(bench->a, items, 2, 0, &bench->err), SEMEL_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(items[i].status, SEMEL_RETRY);
        assert_false(items[i].down);
        assert_string_equal(items[i].why, "");
    }
    assert_int_equal(semel_broker_publish(bench->a, &items[1], 1, 60000, &bench->err), SEMEL_OK);
    assert_taken(&items[1]);
    got = poll(bench, bench->a, 8, 1);
    assert_string_equal(got.letters, "b");
}

/* O5: the payload is the key. */
static void what_is_published_under_one_key_lies_in_one_partition(void **state)
{
    struct broker_bench *bench = *state;
    static const char keys[] = "abcdefghijklmnop";
    struct semel_publish items[32];
    char ids[32][8];
    struct got got;
    uint64_t lanes[COUNT(keys)] = {0};
    size_t seen[COUNT(keys)] = {0}, others = 0;

    if (!ordered(bench))
        skip(); /* there are no partitions */
    for (size_t i = 0; i < COUNT(items); i++) {
        snprintf(ids[i], sizeof ids[i], "e-%zu", i);
        items[i] = item_of(bench, ids[i], (struct semel_str){&keys[i % 16], 1});
        items[i].key = items[i].payload;
    }
    for (size_t i = 0; i < COUNT(items); i += 8) /* the two of a key are in two calls */
        assert_int_equal(semel_broker_publish(bench->a, &items[i], 8, 60000, &bench->err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(items); i++)
        assert_taken(&items[i]);
    got = poll(bench, bench->a, COUNT(items), COUNT(items));
    assert_int_equal(got.n, COUNT(items));
    for (size_t i = 0; i < got.n; i++) {
        const size_t key = (size_t)(got.letters[i] - 'a');
        assert_true(key < 16);
        assert_true(seen[key] == 0 || lanes[key] == got.d[i].lane);
        lanes[key] = got.d[i].lane;
        seen[key]++;
        others += got.d[i].lane != got.d[0].lane;
    }
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(seen[i], 2);
    assert_true(!bench->driver->spreads || others > 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bench_setup, bench_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(empty_broker_delivers_nothing_and_that_is_ok),
        TEST(delivery_is_what_was_sent_byte_for_byte),
        TEST(poll_gives_at_most_what_was_asked_for),
        TEST(full_arena_ends_the_batch_and_loses_nothing),
        TEST(acknowledged_message_does_not_come_again),
        TEST(what_is_being_worked_on_is_not_delivered_twice),
        TEST(unacknowledged_comes_again_after_a_reconnect_and_is_counted),
        TEST(positions_are_unique_where_there_are_any),
        TEST(unacknowledged_goes_to_others_when_its_handle_is_closed),
        TEST(old_tags_are_fenced_and_do_nothing),
        TEST(fenced_tag_does_not_keep_the_others_from_being_acknowledged),
        TEST(tags_of_one_handle_are_nothing_to_another),
        TEST(given_back_it_comes_again_but_not_before_the_delay),
        TEST(given_back_in_a_partition_everything_after_it_comes_again_in_order),
        TEST(several_of_a_partition_are_given_back_in_one_call),
        TEST(one_answer_acknowledges_and_gives_back),
        TEST(delayed_message_holds_back_its_partition_and_no_other),
        TEST(two_handles_share_the_work_and_keep_the_order_of_each_partition),
        TEST(what_is_published_arrives_with_its_id),
        TEST(headers_of_a_row_never_replace_its_id),
        TEST(destination_that_is_not_there_is_down_and_no_fault_of_its_items),
        TEST(what_is_published_under_one_key_arrives_in_order),
        TEST(what_is_published_under_one_key_lies_in_one_partition),
        TEST(without_time_nothing_is_published_and_it_says_so),
    };
    int failed;

    for (size_t i = 0; argc > 1 && i < COUNT(drivers); i++)
        if (strcmp(drivers[i]->name, argv[1]) == 0)
            driver_named = drivers[i];
    if (driver_named == NULL) {
        fprintf(stderr, "usage: %s mem|mem-unordered|spool|kafka|amqp|amqp-unordered|sqs|sqs-fifo [PATTERN]\n",
                argv[0]);
        return 2;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (driver_named->begin != NULL)
        driver_named->begin();
    failed = cmocka_run_group_tests_name(driver_named->name, tests, NULL, NULL);
    if (driver_named->end != NULL)
        driver_named->end();
    return failed;
}
