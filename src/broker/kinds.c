/* SPDX-License-Identifier: MIT
 *
 * kinds.c: the kinds of brokers, one descriptor each, and their table. See kind.h.
 *
 * Nothing here connects to a broker: the drivers do. This file has what is known about a kind without its client
 * library, and the questions of `semel check --online`.
 *
 * Invariants: no text contains a secret, or a value that came into the settings from outside the file.
 */
#include "broker/kind.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "broker/amqp.h"
#include "broker/kafka.h"
#include "broker/sqs.h"
#include "broker/webhook.h"
#include "core/destination.h"

#define SECOND_US INT64_C(1000000)
#define MINUTE_US (60 * SECOND_US)
#define HOUR_US (60 * MINUTE_US)
#define YEARS_MS (INT64_C(36500) * 86400 * 1000) /* no keep.completed is longer */

static const char several_consumers[] =
    "nothing: the queue has several consumers; messages of a key run one at a time, in the order of arrival";

/* What others can see on the network; `besides` is what is sent besides messages. */
static void put_encrypted(struct semel_buf *buf, bool tls, bool verify, const char *besides)
{
    if (!tls)
        semel__buf_addf(buf, "no TLS: messages%s can be read on the network", besides);
    else
        semel__buf_addz(buf, verify ? "TLS" : "TLS, but a man in the middle can impersonate the server: verify is off");
}

__attribute__((format(printf, 4, 5), unused)) static void found(const struct semel_inspector *inspector,
                                                                enum semel_finding finding, const char *question,
                                                                const char *fmt, ...)
{
    char text[900];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    inspector->found(inspector, finding, question, text);
}

/* `setting` is the template, `list` what may come of it. */
static void check_destination(const struct semel_sink_options *to, const char *setting, const char *list,
                              const struct semel_setting_check *check)
{
    const char *mistake = semel__destination_mistake(to->destination, to->allowed.at, to->allowed.n);

    if (mistake != NULL)
        semel__setting_wrong(check, setting, "%s.%s %s; the list is %s", check->path, setting, mistake, list);
}

static bool has_braces(struct semel_str pattern)
{
    return pattern.n > 0 && memchr(pattern.p, '{', pattern.n) != NULL;
}

/* Every destination that the settings name. */
__attribute__((unused)) static struct semel_setting_list list_destinations(const struct semel_sink_options *to)
{
    return to->allowed.n > 0 ? to->allowed : (struct semel_setting_list){&to->destination, 1};
}

/* ---- Kafka -------------------------------------------------------------------------------------------- */

static const char *const sasl_words[] = {"plain", "scram-sha-256", "scram-sha-512", NULL};
static const char *const first_words[] = {
    [SEMEL_KAFKA_FIRST_ERROR] = "error", [SEMEL_KAFKA_FIRST_EARLIEST] = "earliest", NULL};
static const char *const offsets_words[] = {"broker", "store", NULL};

#ifdef SEMEL_WITH_KAFKA
static const struct semel_setting_names property_names = {"librdkafka", semel__kafka_properties, semel__kafka_property};
#else
static size_t no_properties(const char *const **ret_names)
{
    *ret_names = NULL;
    return 0;
}

static const struct semel_setting_names property_names = {"librdkafka", no_properties, NULL};
#endif

static const struct semel_setting_spec sasl_settings[] = {
    {"mechanism", SEMEL_SETTING_WORD, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_kafka_sasl, mechanism),
     .words = sasl_words, .help = "the SASL mechanism"},
    {"user", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_kafka_sasl, user),
     SEMEL_SETTING_RANGE(1, 255), .help = "login name"},
    {"password", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET | SEMEL_SETTING_REQUIRED,
     SEMEL_SETTING_IN(semel_kafka_sasl, password), SEMEL_SETTING_RANGE(1, 4096), .help = "the password of user"},
};
static const struct semel_setting_group sasl_group = SEMEL_SETTING_GROUP_OF(NULL, sasl_settings);

static const struct semel_setting_spec kafka_settings[] = {
    {"kafka", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_kafka_options, brokers),
     .example = "\"localhost:9092\"", .help = "brokers to ask first, as HOST:PORT with commas between"},
    {"topic", SEMEL_SETTING_TEXTS, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_kafka_options, topics),
     SEMEL_SETTING_RANGE(1, 249), .example = "payments", .help = "the topic, or several"},
    {"group", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_kafka_options, group), SEMEL_SETTING_RANGE(1, 255),
     .default_note = "the name of the route", .help = "the consumer group; no other route may have it"},
    {"first", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_kafka_options, first), .words = first_words,
     .default_text = "earliest", .help = "where to start without a committed offset; error: do not start"},
    {"offsets", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_kafka_options, offsets), .words = offsets_words,
     .default_text = "broker", .help = "where offsets are committed; store: in the transaction of the effect"},
    {"in_flight", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_kafka_options, in_flight_max),
     SEMEL_SETTING_RANGE(1, 1000000), .default_text = "10000",
     .help = "how many messages may be unacknowledged before reading pauses"},
    {"properties", SEMEL_SETTING_PAIRS, 0, SEMEL_SETTING_IN(semel_kafka_options, properties),
     SEMEL_SETTING_RANGE(1, 512), .names = &property_names,
     .help = "librdkafka's own properties, such as session.timeout.ms; those that would break a promise are refused"},
    {"sasl", SEMEL_SETTING_GROUP, SEMEL_SETTING_SWITCH, SEMEL_SETTING_IN(semel_kafka_options, sasl),
     .group = &sasl_group, .help = "SASL login"},
    SEMEL_SETTING_TLS(semel_kafka_options),
};
static const struct semel_setting_group kafka_group = SEMEL_SETTING_GROUP_OF("kafka", kafka_settings);

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool host_char(char c, bool brackets)
{
    return is_letter(c) || is_digit(c) || c == '.' || c == '-' || c == '_' || (brackets && c == ':');
}

/* HOST:PORT or [IPV6]:PORT. */
static bool host_ok(struct semel_str text)
{
    int64_t port;
    size_t colon = text.n;
    if (text.n == 0)
        return false; /* and perhaps it is not even a pointer */
    while (colon > 0 && text.p[colon - 1] != ':')
        colon--;
    struct semel_str digits = {text.p + colon, text.n - colon};
    if (colon < 2 || digits.n == 0 || !is_digit(digits.p[0]) || !semel__str_int64(digits, &port) || port < 1 ||
        port > 65535)
        return false;
    struct semel_str host = {text.p, colon - 1};
    bool brackets = host.n > 2 && host.p[0] == '[' && host.p[host.n - 1] == ']';
    for (size_t i = brackets; i < host.n - brackets; i++)
        if (!host_char(host.p[i], brackets))
            return false;
    return host.n <= SEMEL_ID_MAX;
}

/* HOST:PORT,HOST:PORT */
static bool hosts_ok(struct semel_str list)
{
    for (;;) {
        const char *comma = list.n > 0 ? memchr(list.p, ',', list.n) : NULL;
        size_t n = comma != NULL ? (size_t)(comma - list.p) : list.n;
        if (!host_ok((struct semel_str){list.p, n}))
            return false;
        if (comma == NULL)
            return true;
        list = (struct semel_str){comma + 1, list.n - n - 1};
    }
}

static bool topic_ok(struct semel_str topic)
{
    for (size_t i = 0; i < topic.n; i++) {
        const char c = topic.p[i];
        if (!is_letter(c) && !is_digit(c) && c != '.' && c != '_' && c != '-')
            return false; /* a ^ would make it a pattern */
    }
    return topic.n > 0 && !semel__str_eqz(topic, ".") && !semel__str_eqz(topic, "..");
}

static bool lists_meet(const struct semel_setting_list *a, const struct semel_setting_list *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            if (semel__str_eq(a->at[i], b->at[k]))
                return true;
    return false;
}

static void kafka_check_servers(const struct semel_kafka_options *kafka, const struct semel_setting_check *check)
{
    if (!hosts_ok(semel__str(kafka->brokers)))
        semel__setting_wrong(check, "kafka", "%s.kafka must be HOST:PORT, or several with commas between and no blanks",
                             check->path);
    if (kafka->tls.on && kafka->tls.no_verify)
        semel__setting_wrong(check, "tls.verify",
                             "%s.tls.verify is false, but Kafka's certificates are always checked; name their "
                             "authority in ca_file",
                             check->path);
    semel__setting_check_tls(check, &kafka->tls);
}

static void kafka_check(void *options, const struct semel_setting_check *check)
{
    struct semel_kafka_options *kafka = options;
    const struct semel_setting_list *topics = &kafka->topics;
    bool ok = true;

    if (kafka->group == NULL)
        kafka->group = check->route.p;
    kafka_check_servers(kafka, check);
    for (size_t i = 1; i < topics->n; i++)
        if (lists_meet(&(struct semel_setting_list){&topics->at[i], 1}, &(struct semel_setting_list){topics->at, i}))
            semel__setting_wrong(check, "topic", "%s.topic has a topic twice; once is enough", check->path);
    for (size_t i = 0; i < topics->n; i++)
        ok = ok && topic_ok(topics->at[i]);
    if (!ok)
        semel__setting_wrong(check, "topic",
                             "%s.topic: a topic has letters, digits, dots, _ and - in its name and nothing else",
                             check->path);
    if (kafka->offsets == SEMEL_KAFKA_OFFSETS_STORE && !check->transactional)
        semel__setting_wrong(check, "offsets",
                             "%s.offsets is store, which goes with the effect's transaction; it needs `do: {sql: ...}`",
                             check->path);
}

static bool kafka_same_queue(const void *one, const void *other)
{
    const struct semel_kafka_options *a = one, *b = other;

    return strcmp(a->group, b->group) == 0 && strcmp(a->brokers, b->brokers) == 0 && lists_meet(&a->topics, &b->topics);
}

static const char *kafka_order(const void *options, bool *ret_ordered)
{
    (void)options;
    *ret_ordered = true;
    return "the order of a Kafka partition; producers must send one key to one partition";
}

const char *semel__kafka_mechanism_name(enum semel_kafka_mechanism mechanism)
{
    static const char *const names[] = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"};

    return names[mechanism];
}

static void kafka_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    const struct semel_kafka_options *kafka = options;
    const bool in_clear = kafka->sasl.on && kafka->sasl.mechanism == SEMEL_KAFKA_PLAIN;

    put_encrypted(buf, kafka->tls.on, !kafka->tls.no_verify, in_clear ? " and the password" : "");
    if (kafka->sasl.on) {
        semel__buf_addz(buf, "; login as ");
        check->put(check, "sasl.user", buf);
        semel__buf_addf(buf, ", by %s", semel__kafka_mechanism_name(kafka->sasl.mechanism));
        return;
    }
    semel__buf_addz(buf, kafka->tls.cert_file != NULL ? "; login by certificate" : "; no login");
}

static size_t kafka_in_flight(const void *options, size_t wanted)
{
    const size_t most = ((const struct semel_kafka_options *)options)->in_flight_max;

    return wanted < most ? wanted : most;
}

static bool kafka_stores_positions(const void *options)
{
    return ((const struct semel_kafka_options *)options)->offsets == SEMEL_KAFKA_OFFSETS_STORE;
}

#ifdef SEMEL_WITH_KAFKA
static bool inspect_topic(const struct semel_kafka_topic *topic, const struct semel_inspector *inspector)
{
    char there[96];

    snprintf(there, sizeof there, "topic %.80s", topic->topic);
    if (topic->exists)
        found(inspector, SEMEL_FINDING_OK, there, "%d partition%s", topic->partitions,
              topic->partitions == 1 ? "" : "s");
    else
        found(inspector, SEMEL_FINDING_FAILED, there, "there is no such topic, or we may not see it");
    return topic->exists;
}

static void inspect_retention(const struct semel_kafka_topic *topic, const struct semel_inspector *inspector)
{
    char keeps[96];

    snprintf(keeps, sizeof keeps, "retention of %.80s", topic->topic);
    if (!topic->visible || (topic->deletes && topic->retention_ms == SEMEL_NONE))
        found(inspector, SEMEL_FINDING_WARNING, keeps,
              "the servers do not tell it (DescribeConfigs on the topic must be allowed): horizon.broker is used");
    else if (!topic->deletes)
        inspector->keeps(inspector, keeps, SEMEL_NONE, "cleanup.policy has no delete");
    else if (topic->retention_ms < 0 || topic->retention_ms > YEARS_MS)
        inspector->keeps(inspector, keeps, SEMEL_NONE,
                         topic->retention_ms < 0 ? "retention.ms is -1" : "retention.ms is centuries");
    else
        inspector->keeps(inspector, keeps, topic->retention_ms * 1000, NULL);
}

static void inspect_topics(const struct semel_kafka_options *kafka, const struct semel_inspector *inspector,
                           void (*more)(const struct semel_kafka_topic *topic, const struct semel_inspector *inspector))
{
    struct semel_kafka_topic topics[SEMEL_SETTING_LIST_MAX];
    struct semel_error err = {0};
    semel_status status;

    inspector->asking(inspector, "kafka");
    status = semel__kafka_ask(kafka, inspector->timeout_ms, topics, &err);
    if (status != SEMEL_OK)
        inspector->unreached(inspector, "kafka", status, &err);
    for (size_t i = 0; status == SEMEL_OK && i < kafka->topics.n; i++)
        if (inspect_topic(&topics[i], inspector))
            more(&topics[i], inspector);
}

static void kafka_inspect(const void *options, const struct semel_inspector *inspector)
{
    inspect_topics(options, inspector, inspect_retention);
}

static void kafka_gauges(struct semel_broker *broker, struct semel_source_gauges *ret)
{
    struct semel_kafka_view view;

    semel__kafka_view(broker, &view);
    *ret = (struct semel_source_gauges){view.behind, (int64_t)view.assigned, (int64_t)view.stopped};
}
#endif

struct kafka_to {
    struct semel_sink_options to;
    struct semel_kafka_options kafka;
};

static const struct semel_setting_spec kafka_to_settings[] = {
    {"kafka", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(kafka_to, kafka.brokers),
     .example = "\"localhost:9092\"", .help = "brokers to ask first, as HOST:PORT with commas between"},
    {"topic", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(kafka_to, to.destination),
     SEMEL_SETTING_RANGE(1, 249), .example = "\"{aggregatetype}.events\"",
     .help = "the topic; {aggregatetype}, {aggregateid}, {type} and {destination} are the event's"},
    {"topics", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(kafka_to, to.allowed), SEMEL_SETTING_RANGE(1, 249),
     .example = "order.events", .help = "topics that may come of it; an event for another one is refused"},
    {"properties", SEMEL_SETTING_PAIRS, 0, SEMEL_SETTING_IN(kafka_to, kafka.properties), SEMEL_SETTING_RANGE(1, 512),
     .names = &property_names,
     .help = "librdkafka's own properties, such as compression.codec; those that would break a promise are refused"},
    {"sasl", SEMEL_SETTING_GROUP, SEMEL_SETTING_SWITCH, SEMEL_SETTING_IN(kafka_to, kafka.sasl), .group = &sasl_group,
     .help = "SASL login"},
    SEMEL_SETTING_TLS_AT(kafka_to, kafka.tls),
};
static const struct semel_setting_group kafka_to_group = SEMEL_SETTING_GROUP_OF("kafka", kafka_to_settings);

static void kafka_to_check(void *options, const struct semel_setting_check *check)
{
    const struct kafka_to *to = options;
    bool ok = has_braces(to->to.destination) || topic_ok(to->to.destination);

    kafka_check_servers(&to->kafka, check);
    check_destination(&to->to, "topic", "topics", check);
    for (size_t i = 0; i < to->to.allowed.n; i++)
        ok = ok && topic_ok(to->to.allowed.at[i]);
    if (!ok)
        semel__setting_wrong(check, to->to.allowed.n > 0 ? "topics" : "topic",
                             "%s: a topic has letters, digits, dots, _ and - in its name and nothing else",
                             check->path);
}

static void kafka_to_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    kafka_connection(&((const struct kafka_to *)options)->kafka, check, buf);
}

static void kafka_to_place(const void *options, struct semel_str ret[SEMEL_SINK_PLACE_PARTS])
{
    ret[0] = semel__str(((const struct kafka_to *)options)->kafka.brokers);
}

#ifdef SEMEL_WITH_KAFKA
static semel_status kafka_open_sink(struct semel_broker **ret, const void *options,
                                    const struct semel_source_hooks *hooks, struct semel_error *err)
{
    return semel__broker_kafka_open(ret, &((const struct kafka_to *)options)->kafka, hooks, err);
}

static void inspect_compaction(const struct semel_kafka_topic *topic, const struct semel_inspector *inspector)
{
    char question[96];

    snprintf(question, sizeof question, "compaction of %.80s", topic->topic);
    if (topic->compacts && !inspector->one_by_one)
        found(inspector, SEMEL_FINDING_WARNING, question,
              "it keeps the last record of each key, and a relay that dies repeats events: an older one may come "
              "behind a newer one and stay; set in_flight: 1");
}

static void kafka_to_inspect(const void *options, const struct semel_inspector *inspector)
{
    const struct kafka_to *to = options;
    struct semel_kafka_options kafka = to->kafka;

    kafka.topics = list_destinations(&to->to);
    kafka.group = "semel-check"; /* nobody joins it */
    inspect_topics(&kafka, inspector, inspect_compaction);
}
#endif

static const struct semel_broker_kind kafka_kind = {
    .name = "kafka",
    .client_reports = "librdkafka reports",
    .flags = SEMEL_KIND_POSITIONS | SEMEL_KIND_DOUBTS | SEMEL_KIND_RUNS,
    .from = &kafka_group,
    .options_size = sizeof(struct semel_kafka_options),
    .check = kafka_check,
    .same_queue = kafka_same_queue,
    .apart = "give it a group of its own",
    .order = kafka_order,
    .connection = kafka_connection,
    .in_flight = kafka_in_flight,
    .stores_positions = kafka_stores_positions,
    .to = &kafka_to_group,
    .to_options_size = sizeof(struct kafka_to),
    .to_check = kafka_to_check,
    .to_connection = kafka_to_connection,
    .to_place = kafka_to_place,
#ifdef SEMEL_WITH_KAFKA
    .open_sink = kafka_open_sink,
    .to_inspect = kafka_to_inspect,
    .open = semel__broker_kafka_open,
    .inspect = kafka_inspect,
    .gauges = kafka_gauges,
#endif
};

/* ---- RabbitMQ ----------------------------------------------------------------------------------------- */

/* A queue keeps no acknowledged messages, so there is no retention to compare. */

static const char *const amqp_schemes[] = {"amqp", "amqps", NULL};
static const char *const declare_words[] = {"never", "quorum", "classic", NULL};

static const struct semel_setting_spec amqp_settings[] = {
    {"amqp", SEMEL_SETTING_URL, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_SECRET | SEMEL_SETTING_LITERAL,
     SEMEL_SETTING_IN(semel_amqp_options, url), .words = amqp_schemes, .example = "amqp://localhost:5672/",
     .help = "the broker, as amqp://USER@HOST:PORT/VHOST"},
    {"queue", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_amqp_options, queue),
     SEMEL_SETTING_RANGE(1, 255), .example = "payments", .help = "the queue; no other route may have it"},
    {"user", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_amqp_options, user), SEMEL_SETTING_RANGE(1, 255),
     .default_note = "the URL's, else that of tls.cert_file, else guest", .help = "login name"},
    {"password", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET, SEMEL_SETTING_IN(semel_amqp_options, password),
     SEMEL_SETTING_RANGE(1, 4096), .default_note = "the URL's, else guest", .help = "the password of user"},
    {"prefetch", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_amqp_options, prefetch), SEMEL_SETTING_RANGE(1, 65535),
     .default_text = "1000", .help = "how many messages may be unacknowledged"},
    {"single_active", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_amqp_options, single_active),
     .default_text = "false", .help = "the queue has a single active consumer, so that its order is kept"},
    {"declare", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_amqp_options, declare), .words = declare_words,
     .default_text = "never", .help = "create the queue if it is missing, durable and of this type"},
    {"heartbeat", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_amqp_options, heartbeat_us),
     SEMEL_SETTING_RANGE(SECOND_US, 10 * MINUTE_US), .default_text = "30s",
     .help = "how often both sides show that they are alive"},
    SEMEL_SETTING_TLS(semel_amqp_options),
};
static const struct semel_setting_group amqp_group = SEMEL_SETTING_GROUP_OF("amqp", amqp_settings);

static void amqp_check(void *options, const struct semel_setting_check *check)
{
    struct semel_amqp_options *amqp = options;

    if (amqp->password != NULL && amqp->user == NULL)
        semel__setting_wrong(check, "password", "%s has a password without a user; set user as well", check->path);
    semel__setting_check_tls_url(check, "amqp", semel__str(amqp->url), &amqp->tls);
}

static bool amqp_same_queue(const void *one, const void *other)
{
    const struct semel_amqp_options *a = one, *b = other;

    return strcmp(a->url, b->url) == 0 && strcmp(a->queue, b->queue) == 0;
}

static const char *amqp_order(const void *options, bool *ret_ordered)
{
    *ret_ordered = ((const struct semel_amqp_options *)options)->single_active;
    return *ret_ordered ? "the queue's order, which a single active consumer keeps" : several_consumers;
}

static void amqp_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    const struct semel_amqp_options *amqp = options;

    (void)check;
    put_encrypted(buf, amqp->tls.on, !amqp->tls.no_verify, " and the password");
}

static size_t amqp_in_flight(const void *options, size_t wanted)
{
    (void)wanted;
    return (size_t)((const struct semel_amqp_options *)options)->prefetch;
}

#ifdef SEMEL_WITH_AMQP
static void amqp_inspect(const void *options, const struct semel_inspector *inspector)
{
    struct semel_amqp_options amqp = *(const struct semel_amqp_options *)options;
    struct semel_amqp_answer answer = {0};
    struct semel_error err = {0};
    semel_status status;
    char question[96];

    snprintf(question, sizeof question, "queue %.80s", amqp.queue);
    inspector->asking(inspector, question);
    amqp.timeout_ms = inspector->timeout_ms;
    status = semel__amqp_ask(&amqp, &answer, &err);
    if (status != SEMEL_OK)
        inspector->unreached(inspector, question, status, &err);
    else if (answer.exists)
        found(inspector, SEMEL_FINDING_OK, question, "%lu messages are ready, %lu consumers read it",
              (unsigned long)answer.messages, (unsigned long)answer.consumers);
    else if (amqp.declare != SEMEL_AMQP_DECLARE_NEVER)
        found(inspector, SEMEL_FINDING_OK, question, "it does not exist yet; `declare` creates it");
    else
        found(inspector, SEMEL_FINDING_FAILED, question, "there is no such queue; create it, or set declare: quorum");
}

static semel_status amqp_open(struct semel_broker **ret, const void *options, const struct semel_source_hooks *hooks,
                              struct semel_error *err)
{
    (void)hooks;
    return semel__broker_amqp_open(ret, options, err);
}
#endif

struct amqp_to {
    struct semel_sink_options to;
    struct semel_amqp_options amqp;
};

static const struct semel_setting_spec amqp_to_settings[] = {
    {"amqp", SEMEL_SETTING_URL, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_SECRET | SEMEL_SETTING_LITERAL,
     SEMEL_SETTING_IN(amqp_to, amqp.url), .words = amqp_schemes, .example = "amqp://localhost:5672/",
     .help = "the broker, as amqp://USER@HOST:PORT/VHOST"},
    {"routing_key", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(amqp_to, to.destination),
     SEMEL_SETTING_RANGE(1, 255), .example = "\"{aggregatetype}.events\"",
     .help = "the routing key, or the queue if there is no exchange; {aggregatetype}, {aggregateid}, {type} and "
             "{destination} are the event's"},
    {"routing_keys", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(amqp_to, to.allowed), SEMEL_SETTING_RANGE(1, 255),
     .example = "order.events", .help = "routing keys that may come of it; an event for another one is refused"},
    {"exchange", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(amqp_to, amqp.exchange), SEMEL_SETTING_RANGE(1, 255),
     .default_note = "none: events go to a queue", .help = "the exchange; a message that no queue takes is held back"},
    {"user", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(amqp_to, amqp.user), SEMEL_SETTING_RANGE(1, 255),
     .default_note = "the URL's, else whom tls.cert_file names, else guest", .help = "login name"},
    {"password", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET, SEMEL_SETTING_IN(amqp_to, amqp.password),
     SEMEL_SETTING_RANGE(1, 4096), .default_note = "the URL's, else guest", .help = "the password of user"},
    SEMEL_SETTING_TLS_AT(amqp_to, amqp.tls),
};
static const struct semel_setting_group amqp_to_group = SEMEL_SETTING_GROUP_OF("amqp", amqp_to_settings);

static void amqp_to_check(void *options, const struct semel_setting_check *check)
{
    struct amqp_to *to = options;

    amqp_check(&to->amqp, check);
    check_destination(&to->to, "routing_key", "routing_keys", check);
}

static void amqp_to_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    amqp_connection(&((const struct amqp_to *)options)->amqp, check, buf);
}

/* HOST:PORT/VHOST: whether the connection is encrypted, and for whom, changes no place. */
static void amqp_to_place(const void *options, struct semel_str ret[SEMEL_SINK_PLACE_PARTS])
{
    const struct amqp_to *to = options;
    const char *from = strstr(to->amqp.url, "://");

    from = from != NULL ? from + 3 : to->amqp.url;
    for (const char *p = from; *p != '\0' && *p != '/'; p++)
        from = *p == '@' ? p + 1 : from;
    ret[0] = semel__str(from);
    ret[1] = semel__str(to->amqp.exchange);
}

#ifdef SEMEL_WITH_AMQP
static semel_status amqp_open_sink(struct semel_broker **ret, const void *options,
                                   const struct semel_source_hooks *hooks, struct semel_error *err)
{
    return amqp_open(ret, &((const struct amqp_to *)options)->amqp, hooks, err);
}

static void inspect_place(struct semel_amqp_options amqp, const char *exchange, const char *queue,
                          const struct semel_inspector *inspector)
{
    struct semel_amqp_answer answer = {0};
    struct semel_error err = {0};
    semel_status status;
    char question[96];

    amqp.exchange = exchange;
    amqp.queue = queue;
    amqp.timeout_ms = inspector->timeout_ms;
    snprintf(question, sizeof question, "%s %.80s", exchange != NULL ? "exchange" : "queue",
             exchange != NULL ? exchange : queue);
    inspector->asking(inspector, question);
    status = semel__amqp_ask(&amqp, &answer, &err);
    if (status != SEMEL_OK)
        inspector->unreached(inspector, question, status, &err);
    else if (!answer.exists)
        found(inspector, SEMEL_FINDING_FAILED, question, "there is no such %s; create it",
              exchange != NULL ? "exchange" : "queue");
    else
        found(inspector, SEMEL_FINDING_OK, question, "%s",
              exchange != NULL ? "it is there; whether a queue is bound to it shows only when an event is sent"
                               : "it is there");
}

static void amqp_to_inspect(const void *options, const struct semel_inspector *inspector)
{
    static const char prefix[] = "exchange:";
    const struct amqp_to *to = options;
    const struct semel_setting_list list = list_destinations(&to->to);

    if (to->amqp.exchange != NULL) {
        inspect_place(to->amqp, to->amqp.exchange, NULL, inspector);
        return;
    }
    for (size_t i = 0; i < list.n; i++)
        if (strncmp(list.at[i].p, prefix, sizeof prefix - 1) == 0)
            inspect_place(to->amqp, list.at[i].p + sizeof prefix - 1, NULL, inspector);
        else
            inspect_place(to->amqp, NULL, list.at[i].p, inspector);
}

static void amqp_gauges(struct semel_broker *broker, struct semel_source_gauges *ret)
{
    *ret = (struct semel_source_gauges){semel__amqp_behind(broker), -1, -1};
}
#endif

static const struct semel_broker_kind amqp_kind = {
    .name = "amqp",
    .from = &amqp_group,
    .options_size = sizeof(struct semel_amqp_options),
    .check = amqp_check,
    .same_queue = amqp_same_queue,
    .apart = "give it a queue of its own",
    .order = amqp_order,
    .connection = amqp_connection,
    .in_flight = amqp_in_flight,
    .to = &amqp_to_group,
    .to_options_size = sizeof(struct amqp_to),
    .to_check = amqp_to_check,
    .to_connection = amqp_to_connection,
    .to_place = amqp_to_place,
#ifdef SEMEL_WITH_AMQP
    .open_sink = amqp_open_sink,
    .to_inspect = amqp_to_inspect,
    .open = amqp_open,
    .inspect = amqp_inspect,
    .gauges = amqp_gauges,
#endif
};

/* ---- SQS ---------------------------------------------------------------------------------------------- */

static const char *const http_schemes[] = {"http", "https", NULL};

static const struct semel_setting_spec sqs_settings[] = {
    {"sqs", SEMEL_SETTING_URL, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_sqs_options, url), .words = http_schemes,
     .example = "https://sqs.eu-central-1.amazonaws.com/123456789012/payments",
     .help = "the queue's URL; no other route may have it. One that ends with .fifo has an order"},
    {"region", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_sqs_options, region),
     SEMEL_SETTING_RANGE(1, 64), .example = "eu-central-1", .help = "the region that requests are signed for"},
    {"access_key", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_sqs_options, access_key),
     SEMEL_SETTING_RANGE(1, 255), .example = "${AWS_ACCESS_KEY_ID}", .help = "the name of the key that signs requests"},
    {"secret_key", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_SECRET,
     SEMEL_SETTING_IN(semel_sqs_options, secret_key), SEMEL_SETTING_RANGE(1, 1024),
     .example = "${AWS_SECRET_ACCESS_KEY}", .help = "the key that signs requests"},
    {"session_token", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET, SEMEL_SETTING_IN(semel_sqs_options, session_token),
     SEMEL_SETTING_RANGE(1, 8192), .help = "the session token of temporary credentials"},
    {"visibility", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_sqs_options, visibility_us),
     SEMEL_SETTING_RANGE(SECOND_US, 12 * HOUR_US), .default_text = "60s",
     .help = "how long a message stays hidden while we have it; it is extended with the lease"},
    {"wait", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_sqs_options, wait_us),
     SEMEL_SETTING_RANGE(0, 20 * SECOND_US), .default_text = "20s", .help = "how long one request waits for messages"},
    SEMEL_SETTING_TLS(semel_sqs_options),
};
static const struct semel_setting_group sqs_group = SEMEL_SETTING_GROUP_OF("sqs", sqs_settings);

static void sqs_check(void *options, const struct semel_setting_check *check)
{
    struct semel_sqs_options *sqs = options;

    semel__setting_check_tls_url(check, "http", semel__str(sqs->url), &sqs->tls);
}

static bool sqs_same_queue(const void *one, const void *other)
{
    const struct semel_sqs_options *a = one, *b = other;

    return strcmp(a->url, b->url) == 0;
}

static const char *sqs_order(const void *options, bool *ret_ordered)
{
    const struct semel_str url = semel__str(((const struct semel_sqs_options *)options)->url);

    *ret_ordered = url.n > 5 && memcmp(url.p + url.n - 5, ".fifo", 5) == 0;
    return *ret_ordered ? "the order of a FIFO message group; the group must be as fine as the key" : several_consumers;
}

static void sqs_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    const struct semel_sqs_options *sqs = options;

    (void)check;
    put_encrypted(buf, sqs->tls.on, !sqs->tls.no_verify, "");
    semel__buf_addz(buf, "; requests are signed");
}

#ifdef SEMEL_WITH_SQS
#define SPAN 32

/* P37. While we run we extend it; what counts is a pause of ours. */
static void inspect_visibility(int64_t visibility_us, const struct semel_inspector *inspector)
{
    char visible[SPAN], lease[SPAN];

    semel__duration_format(visibility_us, visible, sizeof visible);
    semel__duration_format(inspector->lease_us, lease, sizeof lease);
    if (visibility_us >= inspector->lease_us)
        found(inspector, SEMEL_FINDING_OK, "visibility", "%s, and the lease is %s", visible, lease);
    else
        found(inspector, SEMEL_FINDING_WARNING, "visibility",
              "%s is shorter than the lease of %s: after a pause of ours SQS gives the message to another consumer, "
              "which then waits for that lease; set visibility: %s",
              visible, lease, lease);
}

static void inspect_redrive(const struct semel_sqs_facts *facts, const struct semel_inspector *inspector)
{
    if (facts->max_receives == SEMEL_NONE)
        found(inspector, SEMEL_FINDING_OK, "redrive", "SQS moves no message away");
    else if (facts->max_receives > inspector->retry_max)
        found(inspector, SEMEL_FINDING_OK, "redrive", "SQS moves a message to %s after %lld receives",
              facts->dead_letters, (long long)facts->max_receives);
    else
        found(inspector, SEMEL_FINDING_WARNING, "redrive",
              "SQS moves a message to %s after %lld receives, and each redelivery counts: it may be gone before its %d "
              "attempts; raise maxReceiveCount",
              facts->dead_letters, (long long)facts->max_receives, inspector->retry_max);
}

static void sqs_inspect(const void *options, const struct semel_inspector *inspector)
{
    const struct semel_sqs_options *sqs = options;
    struct semel_sqs_facts facts;
    struct semel_error err = {0};
    semel_status status;

    inspector->asking(inspector, "queue");
    status = semel__sqs_ask(sqs, &facts, &err);
    if (status != SEMEL_OK) {
        inspector->unreached(inspector, "queue", status, &err);
        return;
    }
    found(inspector, SEMEL_FINDING_OK, "queue", "%s, about %lld message%s", facts.fifo ? "FIFO" : "standard",
          (long long)(facts.messages == SEMEL_NONE ? 0 : facts.messages), facts.messages == 1 ? "" : "s");
    if (facts.retention_us == SEMEL_NONE)
        found(inspector, SEMEL_FINDING_WARNING, "retention", "the queue does not tell it: horizon.broker is used");
    else
        inspector->keeps(inspector, "retention", facts.retention_us, NULL);
    inspect_visibility(sqs->visibility_us, inspector);
    inspect_redrive(&facts, inspector);
}

static semel_status sqs_open(struct semel_broker **ret, const void *options, const struct semel_source_hooks *hooks,
                             struct semel_error *err)
{
    (void)hooks;
    return semel__broker_sqs_open(ret, options, err);
}
#endif

struct sqs_to {
    struct semel_sink_options to;
    struct semel_sqs_options sqs;
};

static const struct semel_setting_spec sqs_to_settings[] = {
    {"sqs", SEMEL_SETTING_URL, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(sqs_to, sqs.url), .words = http_schemes,
     .example = "https://sqs.eu-central-1.amazonaws.com/123456789012/order-events",
     .help = "a queue's URL; those of `queue` stand beside it"},
    {"queue", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(sqs_to, to.destination), SEMEL_SETTING_RANGE(1, 80),
     .default_note = "that of the URL",
     .help = "the queue's name; {aggregatetype}, {aggregateid}, {type} and {destination} are the event's"},
    {"queues", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(sqs_to, to.allowed), SEMEL_SETTING_RANGE(1, 80),
     .help = "queues that may come of it; an event for another one is refused"},
    {"region", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(sqs_to, sqs.region),
     SEMEL_SETTING_RANGE(1, 64), .example = "eu-central-1", .help = "the region that requests are signed for"},
    {"access_key", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(sqs_to, sqs.access_key),
     SEMEL_SETTING_RANGE(1, 255), .example = "${AWS_ACCESS_KEY_ID}", .help = "the name of the key that signs requests"},
    {"secret_key", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_SECRET,
     SEMEL_SETTING_IN(sqs_to, sqs.secret_key), SEMEL_SETTING_RANGE(1, 1024), .example = "${AWS_SECRET_ACCESS_KEY}",
     .help = "the key that signs requests"},
    {"session_token", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET, SEMEL_SETTING_IN(sqs_to, sqs.session_token),
     SEMEL_SETTING_RANGE(1, 8192), .help = "what goes with a key that was lent for a time"},
    SEMEL_SETTING_TLS_AT(sqs_to, sqs.tls),
};
static const struct semel_setting_group sqs_to_group = SEMEL_SETTING_GROUP_OF("sqs", sqs_to_settings);

static void sqs_to_check(void *options, const struct semel_setting_check *check)
{
    struct sqs_to *to = options;
    const char *slash = to->sqs.url != NULL ? strrchr(to->sqs.url, '/') : NULL;

    sqs_check(&to->sqs, check);
    if (!semel__str_given(to->to.destination) && slash != NULL)
        to->to.destination = semel__str(slash + 1);
    check_destination(&to->to, "queue", "queues", check);
}

static void sqs_to_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    sqs_connection(&((const struct sqs_to *)options)->sqs, check, buf);
}

static void sqs_to_place(const void *options, struct semel_str ret[SEMEL_SINK_PLACE_PARTS])
{
    const struct sqs_to *to = options;

    ret[0] = semel__str(to->sqs.url);
    ret[1] = semel__str(to->sqs.region);
}

#ifdef SEMEL_WITH_SQS
static semel_status sqs_open_sink(struct semel_broker **ret, const void *options,
                                  const struct semel_source_hooks *hooks, struct semel_error *err)
{
    return sqs_open(ret, &((const struct sqs_to *)options)->sqs, hooks, err);
}

static void sqs_to_inspect(const void *options, const struct semel_inspector *inspector)
{
    const struct sqs_to *to = options;
    const struct semel_setting_list list = list_destinations(&to->to);
    const char *slash = strrchr(to->sqs.url, '/');

    for (size_t i = 0; i < list.n; i++) {
        struct semel_sqs_options sqs = to->sqs;
        struct semel_sqs_facts facts;
        struct semel_error err = {0};
        char question[96], url[1024 + 96]; /* an URL has at most 1,023 bytes, else asking refuses it */
        snprintf(question, sizeof question, "queue %.80s", list.at[i].p);
        snprintf(url, sizeof url, "%.*s%.80s", slash != NULL ? (int)(slash + 1 - to->sqs.url) : 0, to->sqs.url,
                 list.at[i].p);
        sqs.url = url;
        inspector->asking(inspector, question);
        semel_status status = semel__sqs_ask(&sqs, &facts, &err);
        if (status == SEMEL_OK)
            found(inspector, SEMEL_FINDING_OK, question, "%s", facts.fifo ? "FIFO" : "standard: it keeps no order");
        else
            inspector->unreached(inspector, question, status, &err);
    }
}

static void sqs_gauges(struct semel_broker *broker, struct semel_source_gauges *ret)
{
    *ret = (struct semel_source_gauges){semel__sqs_behind(broker), -1, -1};
}
#endif

static const struct semel_broker_kind sqs_kind = {
    .name = "sqs",
    .from = &sqs_group,
    .options_size = sizeof(struct semel_sqs_options),
    .check = sqs_check,
    .same_queue = sqs_same_queue,
    .apart = "give it a queue of its own",
    .order = sqs_order,
    .connection = sqs_connection,
    .to = &sqs_to_group,
    .to_options_size = sizeof(struct sqs_to),
    .to_check = sqs_to_check,
    .to_connection = sqs_to_connection,
    .to_place = sqs_to_place,
#ifdef SEMEL_WITH_SQS
    .open_sink = sqs_open_sink,
    .to_inspect = sqs_to_inspect,
    .open = sqs_open,
    .inspect = sqs_inspect,
    .gauges = sqs_gauges,
#endif
};

/* ---- HTTP --------------------------------------------------------------------------------------------- */

static const struct semel_setting_spec listen_settings[] = {
    {"listen", SEMEL_SETTING_ADDRESS, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_listen_options, server.address),
     .example = "127.0.0.1:8090", .help = "where producers POST their messages; routes may share an address"},
    {"path", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_listen_options, path), SEMEL_SETTING_RANGE(1, 255),
     .default_note = "/ and the name of the route", .help = "the path of this route on that address"},
    {"source", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_listen_options, source), SEMEL_SETTING_RANGE(1, 255),
     .default_note = "the name of the route",
     .help = "the stream that ids belong to, unless a message is a CloudEvent with a source of its own"},
    {"token", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET | SEMEL_SETTING_VISIBLE,
     SEMEL_SETTING_IN(semel_listen_options, server.token), SEMEL_SETTING_RANGE(16, 1024), .example = "${SEMEL_TOKEN}",
     .default_note = "none where `signature` is given, else it is required",
     .help = "the token that producers send: Authorization: Bearer TOKEN; with `signature` both are needed"},
    {"signature", SEMEL_SETTING_GROUP, SEMEL_SETTING_SWITCH, SEMEL_SETTING_IN(semel_listen_options, signature),
     .group = &semel__setting_signature, .help = "requests are webhooks, which their sender has signed"},
    {"body_max", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_listen_options, body_max),
     SEMEL_SETTING_RANGE(1, 1 << 28), .default_text = "8388608", .help = "the largest request in bytes"},
    SEMEL_SETTING_HOSTS(semel_listen_options),
    SEMEL_SETTING_PLAIN(semel_listen_options),
    SEMEL_SETTING_TLS_SERVER(semel_listen_options),
};
static const struct semel_setting_group listen_group = SEMEL_SETTING_GROUP_OF("listen", listen_settings);

/* conf compares paths of one address with those of `pull`. */
static void listen_check(void *options, const struct semel_setting_check *check)
{
    struct semel_listen_options *listen = options;

    semel__setting_check_path(check, &listen->path);
    if (!semel__str_given(listen->source))
        listen->source = check->route;
    semel__setting_check_reach(check, "listen", &listen->server);
    semel__signature_settings(check, &listen->signature);
    if (!listen->signature.on && !semel__str_given(listen->server.token) && !check->given(check, "token") &&
        !check->given(check, "token_file"))
        semel__setting_wrong(check, "listen",
                             "%s lacks token: the token that producers send; it must be text of 16 to 1024 bytes in "
                             "one line, unless `signature` is given",
                             check->path);
}

static void listen_rules(const void *options, const char **ret_id, const char **ret_type, const char **ret_count)
{
    const struct semel_listen_options *listen = options;
    semel__signature_rules(&listen->signature, ret_id, ret_type, ret_count);
}

static const char *listen_order(const void *options, bool *ret_ordered)
{
    (void)options;
    *ret_ordered = false;
    return "nothing: requests may overtake each other; messages of a key run one at a time, in the order of arrival";
}

static void listen_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    const struct semel_listen_options *listen = options;
    const struct semel_setting_server *server = &listen->server;
    const bool token = semel__str_given(server->token), open = !server->tls.on && !server->address.local;

    (void)check;
    if (server->tls.on)
        semel__buf_addz(buf, "TLS, and ");
    if (token)
        semel__buf_addz(buf, listen->signature.on ? "a token, and " : "a token");
    if (listen->signature.on)
        semel__signature_describe(&listen->signature, buf);
    if (open)
        semel__buf_addf(buf, "; no TLS: messages%s can be read on the network", token ? " and the token" : "");
    else if (!server->tls.on)
        semel__buf_addz(buf, "; only this machine can reach it");
    if (server->tls.on && server->tls.client_ca_file != NULL)
        semel__buf_addz(buf, ", and a certificate of the sender");
}

static const struct semel_broker_kind listen_kind = {
    .name = "listen",
    .flags = SEMEL_KIND_SERVED,
    .from = &listen_group,
    .options_size = sizeof(struct semel_listen_options),
    .check = listen_check,
    .rules = listen_rules,
    .order = listen_order,
    .connection = listen_connection,
};

/* ---- the inbox itself --------------------------------------------------------------------------------- */

struct inbox_options {
    int stored;
};

static const char *const stored_words[] = {"stored", NULL};

static const struct semel_setting_spec inbox_settings[] = {
    {"inbox", SEMEL_SETTING_WORD, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(inbox_options, stored),
     .words = stored_words, .example = "stored",
     .help =
         "no broker: messages that inbox_put or `semel send` stored, and those that failed in SQL; `from: inbox` is "
         "the same"},
};
static const struct semel_setting_group inbox_group = SEMEL_SETTING_GROUP_OF("inbox", inbox_settings);

static void inbox_check(void *options, const struct semel_setting_check *check)
{
    (void)options;
    (void)check;
}

static const char *inbox_order(const void *options, bool *ret_ordered)
{
    (void)options;
    *ret_ordered = true;
    return "the order in which messages of a key were stored: whoever stores them decides it";
}

static void inbox_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    (void)options;
    (void)check;
    semel__buf_addz(buf, "none besides the store's: there is no broker");
}

static const struct semel_broker_kind inbox_kind = {
    .name = "inbox",
    .flags = SEMEL_KIND_STORED,
    .from = &inbox_group,
    .options_size = sizeof(struct inbox_options),
    .check = inbox_check,
    .order = inbox_order,
    .connection = inbox_connection,
};

/* ---- webhooks ----------------------------------------------------------------------------------------- */

struct webhook_to {
    struct semel_sink_options to;
    struct semel_webhook_options webhook;
};

static const struct semel_setting_spec webhook_to_settings[] = {
    {"webhook", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(webhook_to, to.destination),
     SEMEL_SETTING_RANGE(1, 2048), .example = "\"https://hooks.example/orders\"",
     .help = "the receiver's URL; {aggregatetype}, {aggregateid}, {type} and {destination} are the event's"},
    {"urls", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(webhook_to, to.allowed), SEMEL_SETTING_RANGE(1, 2048),
     .help = "URLs that may come of it; an event for another one is refused"},
    {"secret", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_SECRET,
     SEMEL_SETTING_IN(webhook_to, webhook.secret), SEMEL_SETTING_RANGE(1, 255), .example = "${WEBHOOK_SECRET}",
     .help = "what requests are signed with, as whsec_ and base64 (Standard Webhooks)"},
    {"allow", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(webhook_to, webhook.allow), SEMEL_SETTING_RANGE(1, 64),
     .help = "networks such as 10.1.0.0/16 that receivers may be in; else private and special addresses are refused"},
    {"concurrency", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(webhook_to, webhook.concurrency),
     SEMEL_SETTING_RANGE(1, SEMEL_WEBHOOK_CONCURRENCY_MAX), .default_text = "16", .help = "requests at a time"},
    {"timeout", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(webhook_to, webhook.timeout_us),
     SEMEL_SETTING_RANGE(SECOND_US / 10, 10 * MINUTE_US), .default_text = "15s", .help = "of one request"},
    SEMEL_SETTING_TLS_AT(webhook_to, webhook.tls),
};
static const struct semel_setting_group webhook_to_group = SEMEL_SETTING_GROUP_OF("webhook", webhook_to_settings);

static bool is_http(struct semel_str url)
{
    return semel__setting_scheme(url, "http") || semel__setting_scheme(url, "https");
}

static void webhook_to_check(void *options, const struct semel_setting_check *check)
{
    struct webhook_to *to = options;
    bool ok = is_http(to->to.destination) || has_braces(to->to.destination);

    check_destination(&to->to, "webhook", "urls", check);
    for (size_t i = 0; i < to->to.allowed.n; i++)
        ok = ok && is_http(to->to.allowed.at[i]);
    if (!ok)
        semel__setting_wrong(check, "webhook", "%s: a receiver's URL begins with https:// or http://", check->path);
    if (to->webhook.tls.on && to->webhook.tls.no_verify)
        semel__setting_wrong(check, "tls.verify",
                             "%s.tls.verify is false, but certificates of receivers are always checked; name their "
                             "authority in ca_file",
                             check->path);
    semel__setting_check_tls(check, &to->webhook.tls);
#ifdef SEMEL_WITH_WEBHOOK
    unsigned char key[SEMEL_SIGNATURE_KEY_MAX];
    size_t n_key;
    const char *mistake = semel__signature_standard_key(to->webhook.secret, key, &n_key);
    explicit_bzero(key, sizeof key);
    if (mistake != NULL)
        semel__setting_wrong(check, "secret", "%s.secret %s", check->path, mistake);
    for (size_t i = 0; i < to->webhook.allow.n; i++)
        if ((mistake = semel__webhook_network_mistake(to->webhook.allow.at[i])) != NULL)
            semel__setting_wrong(check, "allow", "an entry of %s.allow %s", check->path, mistake);
#endif
}

static void webhook_to_connection(const void *options, const struct semel_setting_check *check, struct semel_buf *buf)
{
    const struct webhook_to *to = options;
    bool tls = to->to.allowed.n > 0 || semel__setting_scheme(to->to.destination, "https");

    (void)check;
    for (size_t i = 0; i < to->to.allowed.n; i++)
        tls = tls && semel__setting_scheme(to->to.allowed.at[i], "https");
    put_encrypted(buf, tls, true, "");
    semel__buf_addz(buf, "; requests are signed");
}

#ifdef SEMEL_WITH_WEBHOOK
static semel_status webhook_open_sink(struct semel_broker **ret, const void *options,
                                      const struct semel_source_hooks *hooks, struct semel_error *err)
{
    (void)hooks;
    return semel__broker_webhook_open(ret, &((const struct webhook_to *)options)->webhook, err);
}

static void webhook_to_inspect(const void *options, const struct semel_inspector *inspector)
{
    const struct webhook_to *to = options;
    const struct semel_setting_list list = list_destinations(&to->to);

    for (size_t i = 0; i < list.n; i++) {
        struct semel_error err = {0};
        char question[96];
        snprintf(question, sizeof question, "receiver %.80s", list.at[i].p);
        inspector->asking(inspector, question);
        semel_status status = semel__webhook_ask(&to->webhook, list.at[i], inspector->timeout_ms, &err);
        if (status == SEMEL_OK)
            found(inspector, SEMEL_FINDING_OK, question, "it accepts connections; nothing was sent");
        else
            inspector->unreached(inspector, question, status, &err);
    }
}
#endif

static const struct semel_broker_kind webhook_kind = {
    .name = "webhook",
    .to = &webhook_to_group,
    .to_options_size = sizeof(struct webhook_to),
    .to_check = webhook_to_check,
    .to_connection = webhook_to_connection,
#ifdef SEMEL_WITH_WEBHOOK
    .open_sink = webhook_open_sink,
    .to_inspect = webhook_to_inspect,
#endif
};

/* ---- the tables --------------------------------------------------------------------------------------- */

const struct semel_broker_kind *const semel__broker_kinds[] = {&kafka_kind,  &amqp_kind,  &sqs_kind,
                                                               &listen_kind, &inbox_kind, NULL};
const struct semel_broker_kind *const semel__sink_kinds[] = {&kafka_kind, &amqp_kind, &sqs_kind, &webhook_kind, NULL};

static const struct semel_broker_kind *find_kind(const struct semel_broker_kind *const *kinds, struct semel_str name)
{
    for (size_t i = 0; kinds[i] != NULL; i++)
        if (semel__str_eqz(name, kinds[i]->name))
            return kinds[i];
    return NULL;
}

const struct semel_broker_kind *semel__broker_kind(struct semel_str name)
{
    return find_kind(semel__broker_kinds, name);
}

const struct semel_broker_kind *semel__sink_kind(struct semel_str name)
{
    return find_kind(semel__sink_kinds, name);
}
