/* SPDX-License-Identifier: MIT
 *
 * fill.c: what run_kafka.py asks of a Kafka server:
 *   fill BROKERS                             exit code 0 when the server answers within a second
 *   fill BROKERS TOPIC PARTITIONS MESSAGES   makes the topic and sends the messages
 *
 * The messages are those of `semel bench inbox` with time-ordered ids: JSON of 200 bytes, and the id is also the header
 * `id`. The key is the account, and chooses the partition.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <librdkafka/rdkafka.h>

#include "bench/bench.h"
#include "kafka/client.h"
#define PROGRAM "fill"
#include "program.h"

#define SEED UINT64_C(20261116)
#define ASK_MS 10000
#define TRIES 10

static void send_one(struct kafka_client *client, const char *topic, const struct bench_msg *msg)
{
    const struct semel_pair id = {SEMEL_STR("id"), semel__str(msg->id)};
    const char *account = strstr(msg->payload, "\"account\":") + strlen("\"account\":");
    const struct kafka_record record = {
        .topic = topic,
        .partition = -1,
        .key = {account, 5},
        .payload = {msg->payload, BENCH_PAYLOAD},
        .headers = &id,
        .n_headers = 1,
    };

    kafka_client_send_soon(client, &record);
}

/* How many there are in the topic. */
static size_t stored(struct kafka_client *client, const char *topic, int partitions)
{
    size_t n = 0;

    for (int i = 0; i < partitions; i++) {
        int64_t low, high;
        rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR__TIMED_OUT;
        for (int tries = 0; code != RD_KAFKA_RESP_ERR_NO_ERROR && tries < TRIES; tries++) /* its leader may be new */
            code = rd_kafka_query_watermark_offsets(client->rk, topic, i, &low, &high, ASK_MS);
        if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
            fprintf(stderr, "fill: the end of %s/%d cannot be asked: %s\n", topic, i, rd_kafka_err2str(code));
            exit(1);
        }
        n += (size_t)(high - low);
    }
    return n;
}

/* Until as many are there as are wanted: only what the server says counts. */
static int fill(struct kafka_client *client, const char *topic, int partitions, size_t messages)
{
    struct bench_stream stream = {.ids = BENCH_ORDERED};
    struct bench_msg msg;
    struct semel_error err;
    size_t made = 0, there = 0;

    semel__random_seed(&stream.rng, SEED);
    bench_stream_from(&stream, messages);
    kafka_client_topic(client, topic, partitions, NULL);
    for (; there < messages; there = stored(client, topic, partitions)) {
        if (made > 0)
            fprintf(stderr, "fill: %zu of %zu were acknowledged and are not there; sending as many more\n",
                    messages - there, messages);
        for (size_t end = made + messages - there; made < end; made++) {
            if (bench_msg_make(&stream, made, made, &msg, &err) != SEMEL_OK) {
                fprintf(stderr, "fill: %s\n", err.text);
                return 1;
            }
            send_one(client, topic, &msg);
        }
        kafka_client_sent_all(client);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct kafka_client client;
    int code;

    if (argc != 2 && argc != 5) {
        fprintf(stderr, "usage: fill BROKERS [TOPIC PARTITIONS MESSAGES]\n");
        return 2;
    }
    kafka_client_open(&client, argv[1]);
    if (argc == 2)
        code = kafka_client_answers(&client, 1000) ? 0 : 1;
    else
        code = fill(&client, argv[2], (int)number(argv[3], 1000), (size_t)number(argv[4], 100000000));
    kafka_client_close(&client);
    return code;
}
