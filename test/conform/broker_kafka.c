/* SPDX-License-Identifier: MIT
 *
 * broker_kafka.c: the Kafka driver for broker_contract.c: one server for the program, a topic of four partitions and a
 * group for each test.
 */
#include "conform/broker_bench.h"

#include "broker/kafka.h"
#include "kafka/client.h"
#include "kafka/server.h"
#include "kafka/side.h"

#define PARTITIONS 4
#define TRIES 600

static struct kafka_server server;
static struct kafka_client client;

static void begin(void)
{
    char address[KAFKA_SERVER_TEXT];

    kafka_server_start(&server);
    kafka_client_open(&client, kafka_server_address(&server, address));
}

static void end(void)
{
    kafka_client_close(&client);
    kafka_server_done(&server);
}

static void setup(struct broker_bench *bench)
{
    static int count;

    snprintf(bench->source, sizeof bench->source, "topic-%d", ++count);
    kafka_client_topic(&client, bench->source, PARTITIONS, NULL);
}

static void teardown(struct broker_bench *bench)
{
    (void)bench;
}

/* The first handle of a test has all partitions when the test begins. */
static struct semel_broker *open_handle(struct broker_bench *bench)
{
    struct semel_kafka_view view = {0};
    struct semel_delivery *d;
    size_t n;
    struct semel_broker *broker = kafka_side_broker(server.port, bench->source, bench->source,
                                                    "&first=earliest&heartbeat.interval.ms=200&fetch.wait.max.ms=50");

    for (int i = 0; bench->a == NULL && view.assigned < PARTITIONS; i++) {
        assert_true(i < TRIES);
        assert_int_equal(semel_broker_poll(broker, 1, 100, &bench->arena, &d, &n, &bench->err), SEMEL_OK);
        assert_int_equal(n, 0);
        semel__kafka_view(broker, &view);
    }
    return broker;
}

static void push(struct broker_bench *bench, char key, const char *payload, size_t n)
{
    const struct kafka_record record = {.topic = bench->source,
                                        .partition = key - '0',
                                        .key = {&key, 1},
                                        .payload = {payload, n},
                                        .headers = broker_headers,
                                        .n_headers = BROKER_HEADERS};

    kafka_client_send(&client, &record);
}

static const struct semel_pair properties[] = {{SEMEL_STR("key"), SEMEL_STR("0")},
                                               {SEMEL_STR("partition"), SEMEL_STR("0")},
                                               {SEMEL_STR("offset"), SEMEL_STR("0")}};

const struct broker_driver broker_driver_kafka = {
    .name = "kafka",
    .setup = setup,
    .open = open_handle,
    .teardown = teardown,
    .push = push,
    .properties = properties,
    .n_properties = COUNT(properties),
    .no_count = true,
    .repeats = true,
    .spreads = true,
    .nowhere = "not-there",
    .quiet_ms = 200,
    .begin = begin,
    .end = end,
};
