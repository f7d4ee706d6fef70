/* SPDX-License-Identifier: MIT
 *
 * kafka_ask.c: what the servers say of the topics of a source, asked before anything is read. See kafka.h.
 *
 * Not a handle: it joins no group, reads nothing, and makes no topic, whatever the servers allow.
 *
 * Invariants: every wait counts against one time-out; what a server does not tell stays "not told", never a guess.
 */
#include "broker/kafka_private.h"

#define STEP_MS 500

struct asking {
    struct kafka kafka; /* for its settings, and for what went wrong */
    rd_kafka_t *rk;
    int64_t from_us;
    int timeout_ms;
};

static int left_ms(const struct asking *asking)
{
    return semel__kafka_left_ms(asking->from_us, asking->timeout_ms);
}

/* The reason that the library gave, where it gave one. */
static semel_status no_answer(struct asking *asking, rd_kafka_resp_err_t code, struct semel_error *err)
{
    if (!asking->kafka.noted && !asking->kafka.dead)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "kafka: no answer within %d ms: %s",
                           asking->timeout_ms, rd_kafka_err2str(code));
    if (err != NULL)
        *err = asking->kafka.error;
    if (err != NULL)
        err->status = SEMEL_RETRY;
    return SEMEL_RETRY;
}

/* ---- topics and partitions ---------------------------------------------------------------------------- */

static semel_status read_metadata(const struct rd_kafka_metadata *metadata, struct semel_kafka_topic *ret,
                                  struct semel_error *err)
{
    const rd_kafka_resp_err_t code = metadata->topic_cnt == 1 ? metadata->topics[0].err
                                                              : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;

    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
    case RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE: /* it was made this moment */
        ret->exists = true;
        ret->partitions = metadata->topics[0].partition_cnt;
        return SEMEL_OK;
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        return SEMEL_OK;
    default:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_BROKEN, "kafka: %s: %s", ret->topic, rd_kafka_err2str(code));
    }
}

static semel_status ask_topic(struct asking *asking, struct semel_kafka_topic *ret, struct semel_error *err)
{
    rd_kafka_topic_t *topic = rd_kafka_topic_new(asking->rk, ret->topic, NULL);
    rd_kafka_resp_err_t code = topic != NULL ? RD_KAFKA_RESP_ERR__TIMED_OUT : rd_kafka_last_error();
    const struct rd_kafka_metadata *metadata = NULL;
    semel_status status;

    while (topic != NULL && metadata == NULL && left_ms(asking) > 0) {
        const int wait_ms = left_ms(asking) < STEP_MS ? left_ms(asking) : STEP_MS;
        code = rd_kafka_metadata(asking->rk, 0, topic, &metadata, wait_ms);
        rd_kafka_poll(asking->rk, 0); /* says what is wrong, if it is known */
        if (asking->kafka.dead || (asking->kafka.noted && asking->kafka.error.cls == SEMEL_CLASS_BROKEN))
            break;
    }
    status = metadata != NULL ? read_metadata(metadata, ret, err) : no_answer(asking, code, err);
    if (metadata != NULL)
        rd_kafka_metadata_destroy(metadata);
    if (topic != NULL)
        rd_kafka_topic_destroy(topic);
    return status;
}

/* ---- their settings ----------------------------------------------------------------------------------- */

static void read_entry(const rd_kafka_ConfigEntry_t *entry, struct semel_kafka_topic *ret)
{
    const char *name = rd_kafka_ConfigEntry_name(entry), *value = rd_kafka_ConfigEntry_value(entry);

    if (value == NULL)
        return;
    if (strcmp(name, "retention.ms") == 0) {
        (void)semel__str_int64(semel__str(value), &ret->retention_ms);
    } else if (strcmp(name, "retention.bytes") == 0) {
        (void)semel__str_int64(semel__str(value), &ret->retention_bytes);
    } else if (strcmp(name, "cleanup.policy") == 0) {
        ret->deletes = strstr(value, "delete") != NULL;
        ret->compacts = strstr(value, "compact") != NULL;
    }
}

/* A server that does not let us see the settings of a topic is no failure: they are not told. */
static void read_resource(const rd_kafka_ConfigResource_t *resource, struct semel_kafka_topic *topics, size_t n)
{
    const char *name = rd_kafka_ConfigResource_name(resource);
    const rd_kafka_ConfigEntry_t **entries;
    size_t n_entries = 0;

    if (rd_kafka_ConfigResource_error(resource) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    entries = rd_kafka_ConfigResource_configs(resource, &n_entries);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(topics[i].topic, name) != 0)
            continue;
        topics[i].told = true;
        for (size_t j = 0; j < n_entries; j++)
            read_entry(entries[j], &topics[i]);
    }
}

static semel_status read_answer(struct asking *asking, rd_kafka_event_t *event, struct semel_kafka_topic *topics,
                                size_t n, struct semel_error *err)
{
    const rd_kafka_resp_err_t code = event != NULL ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    const rd_kafka_ConfigResource_t **resources;
    size_t n_resources = 0;

    if (code == RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED)
        return SEMEL_OK;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return no_answer(asking, code, err);
    resources = rd_kafka_DescribeConfigs_result_resources(rd_kafka_event_DescribeConfigs_result(event), &n_resources);
    for (size_t i = 0; i < n_resources; i++)
        read_resource(resources[i], topics, n);
    return SEMEL_OK;
}

static semel_status send_question(struct asking *asking, rd_kafka_ConfigResource_t **resources, size_t n_resources,
                                  struct semel_kafka_topic *topics, size_t n, struct semel_error *err)
{
    const int wait_ms = left_ms(asking) > 0 ? left_ms(asking) : 1;
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(asking->rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(asking->rk);
    rd_kafka_event_t *event;
    semel_status status;

    (void)rd_kafka_AdminOptions_set_request_timeout(options, wait_ms, NULL, 0);
    rd_kafka_DescribeConfigs(asking->rk, resources, n_resources, options, answers);
    event = rd_kafka_queue_poll(answers, wait_ms + STEP_MS); /* the library answers for a server that does not */
    status = read_answer(asking, event, topics, n, err);
    if (event != NULL)
        rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers);
    rd_kafka_AdminOptions_destroy(options);
    return status;
}

static semel_status ask_settings(struct asking *asking, struct semel_kafka_topic *topics, size_t n,
                                 struct semel_error *err)
{
    rd_kafka_ConfigResource_t **resources = semel__calloc(n, sizeof(rd_kafka_ConfigResource_t *));
    semel_status status = SEMEL_OK;
    size_t n_resources = 0;

    if (resources == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        if (topics[i].exists)
            resources[n_resources++] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topics[i].topic);
    if (n_resources > 0)
        status = send_question(asking, resources, n_resources, topics, n, err);
    rd_kafka_ConfigResource_destroy_array(resources, n_resources);
    semel__free(resources);
    return status;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

static semel_status ask_all(struct asking *asking, struct semel_kafka_topic *topics, size_t n, struct semel_error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(asking->kafka.reader);
    semel_status status = SEMEL_OK;
    char text[sizeof err->text];

    asking->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof text);
    if (asking->rk == NULL) {
        rd_kafka_conf_destroy(conf);
        return semel__kafka_refused(text, err);
    }
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = ask_topic(asking, &topics[i], err);
    if (status == SEMEL_OK)
        status = ask_settings(asking, topics, n, err);
    rd_kafka_destroy_flags(asking->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    return status;
}

semel_status semel__kafka_ask(const struct semel_kafka_options *options, int timeout_ms, struct semel_kafka_topic *ret,
                              struct semel_error *err)
{
    struct semel_kafka_options quiet = *options;
    struct asking *asking = semel__calloc(1, sizeof *asking);
    semel_status status;

    if (asking == NULL)
        return semel__fail_memory(err);
    quiet.log = NULL;
    asking->timeout_ms = timeout_ms;
    asking->from_us = semel__kafka_now_us();
    for (size_t i = 0; i < options->n_topics; i++)
        ret[i] = (struct semel_kafka_topic){.topic = options->topics[i],
                                            .retention_ms = SEMEL_NONE,
                                            .retention_bytes = SEMEL_NONE};
    status = semel__kafka_configure(&asking->kafka, &quiet, err);
    if (status == SEMEL_OK && options->n_topics > 0)
        status = ask_all(asking, ret, options->n_topics, err);
    semel__kafka_unconfigure(&asking->kafka);
    semel__free(asking);
    return status;
}
