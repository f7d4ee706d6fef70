/* SPDX-License-Identifier: MIT
 *
 * check_source.c: are the topics and queues there, and what do their brokers say of them? See online.h.
 *
 * A RabbitMQ queue keeps nothing that was acknowledged, so that there is no retention to compare.
 */
#include "cli/online.h"
#include "core/consumer.h"
#include "daemon/options.h"

#define SPAN 32
#define YEARS_MS (INT64_C(36500) * 86400 * 1000) /* no keep.completed is longer */

/* ---- Kafka --------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_KAFKA
static void tell_topic(const struct online_asker *asker, const struct semel_kafka_topic *topic)
{
    char there[96], keeps[96];
    snprintf(there, sizeof(there), "topic %.80s", topic->topic);
    snprintf(keeps, sizeof(keeps), "retention of %.80s", topic->topic);
    if (!topic->exists) {
        online_tell(asker, ONLINE_FAILED, there, "there is no such topic, or we may not see it");
        return;
    }
    online_tell(asker, ONLINE_OK, there, "%d partition%s", topic->partitions, topic->partitions == 1 ? "" : "s");
    if (!topic->told || (topic->deletes && topic->retention_ms == SEMEL_NONE))
        online_tell(asker, ONLINE_WARNING, keeps,
                    "the servers do not tell it (DescribeConfigs on the topic must be allowed): horizon.broker is "
                    "believed");
    else if (!topic->deletes)
        online_forever(asker, keeps, "cleanup.policy has no delete");
    else if (topic->retention_ms < 0 || topic->retention_ms > YEARS_MS)
        online_forever(asker, keeps, topic->retention_ms < 0 ? "retention.ms is -1" : "retention.ms is centuries");
    else
        online_retention(asker, keeps, topic->retention_ms * 1000);
}

static void ask_kafka(const struct online_asker *asker)
{
    struct semel_kafka_topic topics[SEMEL_CONF_LIST_MAX];
    struct run_kafka_options kafka;
    struct semel_error err = {0};
    online_ask(asker, "kafka");
    run_kafka_options(&online_route(asker)->from.u.kafka, &kafka);
    semel_status status = semel__kafka_ask(&kafka.options, ONLINE_ASK_MS, topics, &err);
    if (status != SEMEL_OK) {
        online_unreached(asker, "kafka", status, &err);
        return;
    }
    for (size_t i = 0; i < kafka.options.n_topics; i++)
        tell_topic(asker, &topics[i]);
}
#endif

/* ---- RabbitMQ ------------------------------------------------------------------------------------ */

#ifdef SEMEL_WITH_AMQP
static void ask_amqp(const struct online_asker *asker)
{
    const struct semel_conf_amqp *conf = &online_route(asker)->from.u.amqp;
    struct semel_amqp_options options;
    struct semel_amqp_answer answer = {0};
    struct semel_error err = {0};
    char question[96];
    snprintf(question, sizeof(question), "queue %.80s", conf->queue.p);
    online_ask(asker, question);
    run_amqp_options(conf, &options);
    options.timeout_ms = ONLINE_ASK_MS;
    semel_status status = semel__amqp_ask(&options, &answer, &err);
    if (status != SEMEL_OK)
        online_unreached(asker, question, status, &err);
    else if (answer.exists)
        online_tell(asker, ONLINE_OK, question, "%lu messages are ready, %lu consumers read it",
                    (unsigned long)answer.messages, (unsigned long)answer.consumers);
    else if (conf->declare != SEMEL_CONF_DECLARE_NEVER)
        online_tell(asker, ONLINE_OK, question, "it is not there yet; `declare` makes it");
    else
        online_tell(asker, ONLINE_FAILED, question, "there is no such queue; make it, or say declare: quorum");
}
#endif

/* ---- SQS ----------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_SQS
/* P37. While we live it is prolonged; what counts is a pause of ours. */
static void tell_visibility(const struct online_asker *asker)
{
    const struct semel_route *route = online_route(asker);
    int64_t visibility_us = route->from.u.sqs.visibility_us;
    char visible[SPAN], lease[SPAN];
    semel__duration_format(visibility_us, visible, sizeof(visible));
    semel__duration_format(route->policy.lease_us, lease, sizeof(lease));
    if (visibility_us >= route->policy.lease_us)
        online_tell(asker, ONLINE_OK, "visibility", "%s, and the lease is %s", visible, lease);
    else
        online_tell(asker, ONLINE_WARNING, "visibility",
                    "%s is shorter than the lease of %s: after a pause of ours SQS gives the message to somebody who "
                    "then waits for that lease; say visibility: %s",
                    visible, lease, lease);
}

static void tell_redrive(const struct online_asker *asker, const struct semel_sqs_facts *facts)
{
    int tries = online_route(asker)->policy.retry_max;
    if (facts->max_receives == SEMEL_NONE)
        online_tell(asker, ONLINE_OK, "redrive", "SQS moves no message away");
    else if (facts->max_receives > tries)
        online_tell(asker, ONLINE_OK, "redrive", "SQS moves a message to %s after %lld receives", facts->dead_letters,
                    (long long)facts->max_receives);
    else
        online_tell(asker, ONLINE_WARNING, "redrive",
                    "SQS moves a message to %s after %lld receives, and each redelivery counts: it may be gone before "
                    "its %d attempts; raise maxReceiveCount",
                    facts->dead_letters, (long long)facts->max_receives, tries);
}

static void ask_sqs(const struct online_asker *asker)
{
    struct semel_sqs_options options;
    struct semel_sqs_facts facts;
    struct semel_error err = {0};
    online_ask(asker, "queue");
    run_sqs_options(&online_route(asker)->from.u.sqs, &options);
    semel_status status = semel__sqs_ask(&options, &facts, &err);
    if (status != SEMEL_OK) {
        online_unreached(asker, "queue", status, &err);
        return;
    }
    online_tell(asker, ONLINE_OK, "queue", "%s, about %lld messages", facts.fifo ? "FIFO" : "standard",
                (long long)(facts.messages == SEMEL_NONE ? 0 : facts.messages));
    if (facts.retention_us == SEMEL_NONE)
        online_tell(asker, ONLINE_WARNING, "retention", "the queue does not tell it: horizon.broker is believed");
    else
        online_retention(asker, "retention", facts.retention_us);
    tell_visibility(asker);
    tell_redrive(asker, &facts);
}
#endif

void online_source(struct online_asker *asker)
{
    const enum semel_source_kind kind = online_route(asker)->from.kind;
    switch (kind) {
    case SEMEL_SOURCE_KAFKA:
#ifdef SEMEL_WITH_KAFKA
        ask_kafka(asker);
        return;
#else
        break;
#endif
    case SEMEL_SOURCE_AMQP:
#ifdef SEMEL_WITH_AMQP
        ask_amqp(asker);
        return;
#else
        break;
#endif
    case SEMEL_SOURCE_SQS:
#ifdef SEMEL_WITH_SQS
        ask_sqs(asker);
        return;
#else
        break;
#endif
    case SEMEL_SOURCE_LISTEN:
        return; /* producers come to us */
    }
    online_tell(asker, ONLINE_FAILED, semel__source_name(kind), "this program was built without %s",
                semel__source_name(kind));
}
