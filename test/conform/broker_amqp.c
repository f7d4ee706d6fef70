/* SPDX-License-Identifier: MIT
 *
 * broker_amqp.c: the AMQP driver for broker_contract.c: one server for the program, a quorum queue for each test, with
 * a single active consumer (amqp) or without (amqp-unordered).
 */
#include "conform/broker_bench.h"

#include "broker/amqp.h"
#include "rabbit/client.h"
#include "rabbit/server.h"
#include "rabbit/side.h"

static struct rabbit_server server;
static struct rabbit_client client;

static void begin(void)
{
    rabbit_server_start(&server);
    rabbit_client_open(&client, server.port);
}

static void end(void)
{
    rabbit_client_close(&client);
    rabbit_server_done(&server);
}

static void setup(struct broker_bench *bench, bool single_active)
{
    static int count;

    snprintf(bench->source, sizeof bench->source, "queue-%d", ++count);
    rabbit_client_queue(&client, bench->source, "quorum", single_active);
}

static void setup_ordered(struct broker_bench *bench)
{
    setup(bench, true);
}

static void setup_unordered(struct broker_bench *bench)
{
    setup(bench, false);
}

static void teardown(struct broker_bench *bench)
{
    rabbit_client_delete(&client, bench->source);
}

/* A handle that is opened first reads first, because it is connected when the test begins. */
static struct semel_broker *open_handle(struct broker_bench *bench, const char *more)
{
    struct semel_broker *broker;
    char url[256];

    snprintf(url, sizeof url, "amqp://guest:guest@127.0.0.1:%d/%%2f", server.port);
    broker = rabbit_side_broker(url, bench->source, more);
    assert_int_equal(semel_broker_reopen(broker, &bench->err), SEMEL_OK);
    return broker;
}

static struct semel_broker *open_ordered(struct broker_bench *bench)
{
    return open_handle(bench, "&single_active=true");
}

static struct semel_broker *open_unordered(struct broker_bench *bench)
{
    return open_handle(bench, "");
}

static void push(struct broker_bench *bench, char key, const char *payload, size_t n)
{
    const struct rabbit_message message = {.queue = bench->source,
                                           .id = "7",
                                           .payload = {payload, n},
                                           .headers = broker_headers,
                                           .n_headers = BROKER_HEADERS};

    (void)key;
    rabbit_client_send(&client, &message);
}

static const struct semel_pair properties[] = {{SEMEL_STR("message_id"), SEMEL_STR("7")}};

const struct broker_driver broker_driver_amqp = {
    .name = "amqp",
    .setup = setup_ordered,
    .open = open_ordered,
    .teardown = teardown,
    .push = push,
    .properties = properties,
    .n_properties = COUNT(properties),
    .one_lane = true,
    .nowhere = "not-there",
    .quiet_ms = 200,
    .begin = begin,
    .end = end,
};

const struct broker_driver broker_driver_amqp_unordered = {
    .name = "amqp-unordered",
    .setup = setup_unordered,
    .open = open_unordered,
    .teardown = teardown,
    .push = push,
    .properties = properties,
    .n_properties = COUNT(properties),
    .one_lane = true,
    .nowhere = "not-there",
    .quiet_ms = 200,
    .begin = begin,
    .end = end,
};
