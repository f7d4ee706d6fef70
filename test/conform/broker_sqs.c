/* SPDX-License-Identifier: MIT
 *
 * broker_sqs.c: the SQS driver for broker_contract.c: one ElasticMQ for the program, a queue for each test; standard
 * queues, which have no order, and FIFO queues, whose groups have.
 */
#include "conform/broker_bench.h"

#include "broker/sqs.h"
#include "sqs/server.h"
#include "sqs/side.h"

static struct sqs_server server;

static void begin(void)
{
    sqs_server_start(&server);
}

static void end(void)
{
    sqs_server_done(&server);
}

static void make_queue(struct broker_bench *bench, const char *suffix)
{
    static int count;

    snprintf(bench->source, sizeof bench->source, "queue-%d%s", ++count, suffix);
    sqs_server_queue(&server, bench->source);
}

static void setup_standard(struct broker_bench *bench)
{
    make_queue(bench, "");
}

static void setup_fifo(struct broker_bench *bench)
{
    make_queue(bench, ".fifo");
}

static void teardown(struct broker_bench *bench)
{
    (void)bench;
}

static struct semel_broker *open_handle(struct broker_bench *bench)
{
    char url[SQS_SERVER_TEXT];

    return sqs_side_broker(sqs_server_url(&server, bench->source, url), "?visibility_ms=30000&wait_ms=5000");
}

static const struct semel_pair headers[] = {{SEMEL_STR("ce_id"), SEMEL_STR("it's \xF0\x9F\x90\x98")},
                                            {SEMEL_STR("other"), SEMEL_STR("a\"b,3:c")}};

static void push(struct broker_bench *bench, char key, const char *payload, size_t n)
{
    const char group[] = {'g', key, '\0'};
    const struct sqs_send send = {.queue = bench->source,
                                  .group = strstr(bench->source, ".fifo") != NULL ? group : NULL,
                                  .body = {payload, n},
                                  .headers = headers,
                                  .n_headers = COUNT(headers)};

    sqs_server_send(&server, &send);
}

const struct broker_driver broker_driver_sqs = {
    .name = "sqs",
    .setup = setup_standard,
    .open = open_handle,
    .teardown = teardown,
    .push = push,
    .headers = headers,
    .n_headers = COUNT(headers),
    .text_only = true,
    .any_order = true,
    .nowhere = "not-there",
    .quiet_ms = 200,
    .begin = begin,
    .end = end,
};

const struct broker_driver broker_driver_sqs_fifo = {
    .name = "sqs-fifo",
    .setup = setup_fifo,
    .open = open_handle,
    .teardown = teardown,
    .push = push,
    .headers = headers,
    .n_headers = COUNT(headers),
    .text_only = true,
    .nowhere = "not-there.fifo",
    .quiet_ms = 200,
    .begin = begin,
    .end = end,
};
