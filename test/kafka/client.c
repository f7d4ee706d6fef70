/* SPDX-License-Identifier: MIT
 *
 * client.c: topics, sending and looking, for tests. See client.h.
 */
#include "kafka/client.h"

#include "base/str.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <librdkafka/rdkafka.h>

#define WAIT_MS 60000
#define STEP_MS 20
#define TEXT 512

static _Noreturn void fail_client(const char *doing, const char *why)
{
    fprintf(stderr, "Kafka client of this test: %s: %s\n", doing, why);
    exit(1);
}

static void must(const char *doing, rd_kafka_resp_err_t code)
{
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        fail_client(doing, rd_kafka_err2str(code));
}

static void must_not(const char *doing, rd_kafka_error_t *error)
{
    if (error != NULL)
        fail_client(doing, rd_kafka_error_string(error));
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static void be_silent(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk, (void)level, (void)facility, (void)text;
}

/* What has become of a record, on the stack of whoever waits for it; NULL: it must not fail. */
struct sent {
    bool done;
    rd_kafka_resp_err_t code;
    int64_t offset;
};

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct sent *sent = message->_private;

    (void)rk, (void)opaque;
    if (sent != NULL)
        *sent = (struct sent){true, message->err, message->offset};
    else
        must("send", message->err);
}

static rd_kafka_t *open_producer(const char *brokers, const char *transactional_id)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char text[TEXT];
    rd_kafka_t *rk;

    rd_kafka_conf_set_log_cb(conf, be_silent);
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    if (rd_kafka_conf_set(conf, "bootstrap.servers", brokers, text, sizeof text) != RD_KAFKA_CONF_OK ||
        rd_kafka_conf_set(conf, "enable.idempotence", "true", text, sizeof text) != RD_KAFKA_CONF_OK ||
        /* One at a time, or the first record of a new topic may be lost and confirmed: see kafka_conf.c. */
        rd_kafka_conf_set(conf, "max.in.flight", "1", text, sizeof text) != RD_KAFKA_CONF_OK ||
        rd_kafka_conf_set(conf, "linger.ms", "0", text, sizeof text) != RD_KAFKA_CONF_OK ||
        rd_kafka_conf_set(conf, "message.max.bytes", "10000000", text, sizeof text) != RD_KAFKA_CONF_OK ||
        rd_kafka_conf_set(conf, "reconnect.backoff.max.ms", "500", text, sizeof text) != RD_KAFKA_CONF_OK ||
        (transactional_id != NULL &&
         rd_kafka_conf_set(conf, "transactional.id", transactional_id, text, sizeof text) != RD_KAFKA_CONF_OK))
        fail_client("settings", text);
    rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof text);
    if (rk == NULL)
        fail_client("open", text);
    return rk;
}

void kafka_client_open(struct kafka_client *client, const char *brokers)
{
    snprintf(client->brokers, sizeof client->brokers, "%s", brokers);
    client->rk = open_producer(brokers, NULL);
    client->transactional = NULL;
}

void kafka_client_close(struct kafka_client *client)
{
    if (client->rk != NULL)
        rd_kafka_destroy(client->rk);
    if (client->transactional != NULL)
        rd_kafka_destroy(client->transactional);
    *client = (struct kafka_client){0};
}

bool kafka_client_answers(struct kafka_client *client, int timeout_ms)
{
    const struct rd_kafka_metadata *metadata = NULL;
    const bool answers = rd_kafka_metadata(client->rk, 0, NULL, &metadata, timeout_ms) == RD_KAFKA_RESP_ERR_NO_ERROR &&
                         metadata->broker_cnt > 0;

    if (metadata != NULL)
        rd_kafka_metadata_destroy(metadata);
    return answers;
}

/* ---- topics ------------------------------------------------------------------------------------------- */

static bool has_leaders(struct kafka_client *client, const char *topic, int partitions)
{
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(client->rk, topic, NULL);
    const struct rd_kafka_metadata *metadata = NULL;
    bool all = rkt != NULL && rd_kafka_metadata(client->rk, 0, rkt, &metadata, WAIT_MS) == RD_KAFKA_RESP_ERR_NO_ERROR &&
               metadata->topic_cnt == 1 && metadata->topics[0].partition_cnt == partitions;

    for (int i = 0; all && i < partitions; i++)
        all = metadata->topics[0].partitions[i].leader >= 0;
    if (metadata != NULL)
        rd_kafka_metadata_destroy(metadata);
    if (rkt != NULL)
        rd_kafka_topic_destroy(rkt);
    return all;
}

static void wait_for_leaders(struct kafka_client *client, const char *topic, int partitions)
{
    for (int waited_ms = 0; !has_leaders(client, topic, partitions); waited_ms += STEP_MS) {
        if (waited_ms > WAIT_MS)
            fail_client("topic", "its partitions have no leader");
        poll(NULL, 0, STEP_MS);
    }
}

/* The one event that an admin call answers with. Destroys the queue. */
static rd_kafka_event_t *answer_of(rd_kafka_queue_t *queue, const char *doing)
{
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, WAIT_MS);

    if (event == NULL)
        fail_client(doing, "no answer");
    must(doing, rd_kafka_event_error(event));
    rd_kafka_queue_destroy(queue);
    return event;
}

void kafka_client_topic(struct kafka_client *client, const char *topic, int partitions, const char *const *settings)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client->rk);
    rd_kafka_NewTopic_t *made = rd_kafka_NewTopic_new(topic, partitions, 1, NULL, 0);
    const rd_kafka_topic_result_t **made_topics;
    rd_kafka_event_t *event;
    size_t n = 0;

    for (; settings != NULL && *settings != NULL; settings += 2)
        must("topic", rd_kafka_NewTopic_set_config(made, settings[0], settings[1]));
    rd_kafka_CreateTopics(client->rk, &made, 1, NULL, queue);
    event = answer_of(queue, "topic");
    made_topics = rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &n);
    for (size_t i = 0; i < n; i++)
        must("topic", rd_kafka_topic_result_error(made_topics[i]));
    rd_kafka_event_destroy(event);
    rd_kafka_NewTopic_destroy(made);
    wait_for_leaders(client, topic, partitions);
}

void kafka_client_grow(struct kafka_client *client, const char *topic, int partitions)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client->rk);
    char text[TEXT];
    rd_kafka_NewPartitions_t *more = rd_kafka_NewPartitions_new(topic, (size_t)partitions, text, sizeof text);
    rd_kafka_event_t *event;

    rd_kafka_CreatePartitions(client->rk, &more, 1, NULL, queue);
    event = answer_of(queue, "more partitions");
    rd_kafka_event_destroy(event);
    rd_kafka_NewPartitions_destroy(more);
    wait_for_leaders(client, topic, partitions);
}

/* ---- sending ------------------------------------------------------------------------------------------ */

static void produce(rd_kafka_t *rk, const struct kafka_record *record, struct sent *sent)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(record->n_headers);
    const rd_kafka_vu_t vus[] = {
        {.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = record->topic},
        {.vtype = RD_KAFKA_VTYPE_PARTITION, .u.i32 = record->partition},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {(void *)(uintptr_t)record->key.p, record->key.n}},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {(void *)(uintptr_t)record->payload.p, record->payload.n}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = sent},
    };

    for (size_t i = 0; i < record->n_headers; i++)
        must("header", rd_kafka_header_add(headers, record->headers[i].name.p, (ssize_t)record->headers[i].name.n,
                                           record->headers[i].value.p, (ssize_t)record->headers[i].value.n));
    for (;;) {
        rd_kafka_error_t *error = rd_kafka_produceva(rk, vus, sizeof vus / sizeof vus[0]);
        if (error == NULL)
            return;
        if (rd_kafka_error_code(error) != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            must_not("send", error);
        rd_kafka_error_destroy(error);
        rd_kafka_poll(rk, STEP_MS);
    }
}

static void wait_sent(rd_kafka_t *rk, const struct sent *sent)
{
    for (int waited_ms = 0; !sent->done; waited_ms += STEP_MS) {
        if (waited_ms > WAIT_MS)
            fail_client("send", "no answer");
        rd_kafka_poll(rk, STEP_MS);
    }
}

int64_t kafka_client_send(struct kafka_client *client, const struct kafka_record *record)
{
    struct sent sent = {0};

    produce(client->rk, record, &sent);
    wait_sent(client->rk, &sent);
    must("send", sent.code);
    return sent.offset;
}

void kafka_client_send_soon(struct kafka_client *client, const struct kafka_record *record)
{
    produce(client->rk, record, NULL);
    rd_kafka_poll(client->rk, 0);
}

void kafka_client_sent_all(struct kafka_client *client)
{
    must("send", rd_kafka_flush(client->rk, WAIT_MS));
}

void kafka_client_send_many(struct kafka_client *client, const char *topic, int partition, const char *prefix, int n)
{
    struct sent *sent = calloc((size_t)n, sizeof *sent);
    char text[64];

    if (sent == NULL)
        fail_client("send", "no memory");
    for (int i = 0; i < n; i++) {
        const int length = snprintf(text, sizeof text, "%s%d", prefix, i);
        const struct kafka_record record = {.topic = topic, .partition = partition, .payload = {text, (size_t)length}};
        produce(client->rk, &record, &sent[i]);
    }
    for (int i = 0; i < n; i++) {
        wait_sent(client->rk, &sent[i]);
        must("send", sent[i].code);
    }
    free(sent);
}

void kafka_client_send_transaction(struct kafka_client *client, const struct kafka_record *record, bool commit)
{
    struct sent sent = {0};
    rd_kafka_t *rk;

    if (client->transactional == NULL) {
        client->transactional = open_producer(client->brokers, "semel-test");
        must_not("transaction", rd_kafka_init_transactions(client->transactional, WAIT_MS));
    }
    rk = client->transactional;
    must_not("transaction", rd_kafka_begin_transaction(rk));
    produce(rk, record, &sent);
    wait_sent(rk, &sent);
    must("send", sent.code);
    must_not("transaction",
             commit ? rd_kafka_commit_transaction(rk, WAIT_MS) : rd_kafka_abort_transaction(rk, WAIT_MS));
}

/* ---- what the server has kept ------------------------------------------------------------------------- */

/* The group's coordinator is about to be there. */
static bool is_passing(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR_NOT_COORDINATOR || code == RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE ||
           code == RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS;
}

/* What went wrong with one partition of one group, and its offset. Destroys the event. */
static rd_kafka_resp_err_t read_group(rd_kafka_event_t *event, const rd_kafka_group_result_t *group,
                                      int64_t *ret_offset)
{
    const rd_kafka_error_t *error = rd_kafka_group_result_error(group);
    rd_kafka_resp_err_t code = error != NULL ? rd_kafka_error_code(error) : RD_KAFKA_RESP_ERR_NO_ERROR;

    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        code = rd_kafka_group_result_partitions(group)->elems[0].err;
        *ret_offset = rd_kafka_group_result_partitions(group)->elems[0].offset;
    }
    rd_kafka_event_destroy(event);
    return code;
}

static rd_kafka_resp_err_t ask_committed(struct kafka_client *client, const char *group,
                                         const rd_kafka_topic_partition_list_t *list, int64_t *ret_offset)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client->rk);
    rd_kafka_ListConsumerGroupOffsets_t *asked = rd_kafka_ListConsumerGroupOffsets_new(group, list);
    rd_kafka_event_t *event;
    size_t n = 0;

    rd_kafka_ListConsumerGroupOffsets(client->rk, &asked, 1, NULL, queue);
    event = answer_of(queue, "offsets of a group");
    rd_kafka_ListConsumerGroupOffsets_destroy(asked);
    return read_group(
        event,
        rd_kafka_ListConsumerGroupOffsets_result_groups(rd_kafka_event_ListConsumerGroupOffsets_result(event), &n)[0],
        ret_offset);
}

static rd_kafka_resp_err_t put_committed(struct kafka_client *client, const char *group,
                                         const rd_kafka_topic_partition_list_t *list, int64_t *ret_offset)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client->rk);
    rd_kafka_AlterConsumerGroupOffsets_t *wanted = rd_kafka_AlterConsumerGroupOffsets_new(group, list);
    rd_kafka_event_t *event;
    size_t n = 0;

    rd_kafka_AlterConsumerGroupOffsets(client->rk, &wanted, 1, NULL, queue);
    event = answer_of(queue, "offsets of a group");
    rd_kafka_AlterConsumerGroupOffsets_destroy(wanted);
    return read_group(
        event,
        rd_kafka_AlterConsumerGroupOffsets_result_groups(rd_kafka_event_AlterConsumerGroupOffsets_result(event), &n)[0],
        ret_offset);
}

int64_t kafka_client_committed(struct kafka_client *client, const char *group, const char *topic, int partition)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_resp_err_t code;
    int64_t offset = -1;

    rd_kafka_topic_partition_list_add(list, topic, partition);
    for (int waited_ms = 0; is_passing(code = ask_committed(client, group, list, &offset)) && waited_ms < WAIT_MS;
         waited_ms += STEP_MS)
        poll(NULL, 0, STEP_MS);
    must("offsets of a group", code);
    rd_kafka_topic_partition_list_destroy(list);
    return offset < 0 ? -1 : offset;
}

void kafka_client_set_committed(struct kafka_client *client, const char *group, const char *topic, int partition,
                                int64_t offset)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_resp_err_t code;

    rd_kafka_topic_partition_list_add(list, topic, partition)->offset = offset;
    for (int waited_ms = 0; is_passing(code = put_committed(client, group, list, &offset)) && waited_ms < WAIT_MS;
         waited_ms += STEP_MS)
        poll(NULL, 0, STEP_MS);
    must("offsets of a group", code);
    rd_kafka_topic_partition_list_destroy(list);
}

void kafka_client_delete_before(struct kafka_client *client, const char *topic, int partition, int64_t offset)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client->rk);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_DeleteRecords_t *wanted;
    rd_kafka_event_t *event;

    rd_kafka_topic_partition_list_add(list, topic, partition)->offset = offset;
    wanted = rd_kafka_DeleteRecords_new(list);
    rd_kafka_DeleteRecords(client->rk, &wanted, 1, NULL, queue);
    event = answer_of(queue, "delete records");
    must("delete records",
         rd_kafka_DeleteRecords_result_offsets(rd_kafka_event_DeleteRecords_result(event))->elems[0].err);
    rd_kafka_event_destroy(event);
    rd_kafka_DeleteRecords_destroy(wanted);
    rd_kafka_topic_partition_list_destroy(list);
}

/* ---- reading ------------------------------------------------------------------------------------- */

static size_t read_headers(const rd_kafka_message_t *message, struct semel_pair *pairs, size_t max)
{
    rd_kafka_headers_t *headers;
    size_t n = 0;

    if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    for (; n < max; n++) {
        const char *name;
        const void *value;
        size_t size;
        if (rd_kafka_header_get_all(headers, n, &name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
            break;
        pairs[n] = (struct semel_pair){semel__str(name), {value, size}};
    }
    return n;
}

static void read_partition(rd_kafka_t *rk, const char *topic, int partition, kafka_reader read, void *ctx)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    int64_t low, high, next;

    if (rd_kafka_query_watermark_offsets(rk, topic, partition, &low, &high, 10000) != RD_KAFKA_RESP_ERR_NO_ERROR) {
        fprintf(stderr, "kafka: %s has no partition %d\n", topic, partition);
        exit(1);
    }
    rd_kafka_topic_partition_list_add(list, topic, partition)->offset = low;
    rd_kafka_assign(rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    for (next = low; next < high;) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(rk, 10000);
        struct semel_pair pairs[64];
        if (message == NULL) {
            fprintf(stderr, "kafka: nothing of %s/%d comes\n", topic, partition);
            exit(1);
        }
        if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR && message->partition == partition) {
            const struct kafka_record record = {.topic = topic,
                                                .partition = partition,
                                                .key = {message->key, message->key_len},
                                                .payload = {message->payload, message->len},
                                                .headers = pairs,
                                                .n_headers = read_headers(message, pairs, 64)};
            next = message->offset + 1;
            read(ctx, &record, message->offset);
        }
        rd_kafka_message_destroy(message);
    }
}

void kafka_client_read(struct kafka_client *client, const char *topic, int partitions, kafka_reader read, void *ctx)
{
    char text[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_t *rk;

    if (rd_kafka_conf_set(conf, "bootstrap.servers", client->brokers, text, sizeof text) != RD_KAFKA_CONF_OK ||
        rd_kafka_conf_set(conf, "group.id", "reader", text, sizeof text) != RD_KAFKA_CONF_OK ||
        (rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof text)) == NULL) {
        fprintf(stderr, "kafka: %s\n", text);
        exit(1);
    }
    rd_kafka_poll_set_consumer(rk);
    for (int i = 0; i < partitions; i++)
        read_partition(rk, topic, i, read, ctx);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
}
