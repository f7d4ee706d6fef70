/* SPDX-License-Identifier: MIT
 *
 * table.c: the table of the settings. What a setting is called, which values it takes, what it is without being said,
 * and what it is for, stands here and nowhere else: reading (read.c), docs/settings.md and `semel init` walk it and
 * know no setting by its name.
 *
 * To add one: a field in conf.h, a line here. To add a source or a handler: a group here, and its name in the list of
 * choices. What core keeps for each consumer is a MEMBER: only its place in the file is said here.
 *
 * Invariants: the order is that of the documentation. The first setting of a choice has the choice's own name and is
 * required. A default is written as a user would write it, and is read by the same functions (test_conf reads each).
 */
#include <stdio.h>

#include "conf/private.h"
#include "core/consumer.h"

#define SECOND_US INT64_C(1000000)
#define MINUTE_US (60 * SECOND_US)
#define HOUR_US (60 * MINUTE_US)
#define DAY_US (24 * HOUR_US)
#define YEARS_US (36500 * DAY_US)

#define IN(type, field) .offset = offsetof(struct type, field), .size = sizeof(((struct type *)0)->field)
#define RANGE(min, max) .low = (min), .high = (max)
#define GROUP_OF(array)                                              \
    {                                                                \
        .settings = (array), .n = sizeof(array) / sizeof((array)[0]) \
    }
#define CHOICE_OF(key, array)                                                       \
    {                                                                               \
        .name = (key), .settings = (array), .n = sizeof(array) / sizeof((array)[0]) \
    }

/* A program's file is written behind its arguments (value.c). */
_Static_assert(offsetof(struct semel_conf_exec, program) ==
                   offsetof(struct semel_conf_exec, argv) + sizeof(struct semel_conf_list),
               "program follows argv");
_Static_assert(offsetof(struct semel_conf_exec, reconcile_program) ==
                   offsetof(struct semel_conf_exec, reconcile) + sizeof(struct semel_conf_list),
               "reconcile_program follows reconcile");

/* ---- pieces -------------------------------------------------------------------------------------- */

static const char *const http_schemes[] = {"http", "https", NULL};
static const char *const amqp_schemes[] = {"amqp", "amqps", NULL};
static const char *const store_schemes[] = {"sqlite", "postgres", "postgresql", NULL};

static const struct conf_setting tls[] = {
    {"ca_file", CONF_FILE, 0, IN(semel_conf_tls, ca_file), .other_says = "what the system trusts",
     .help = "the authorities whose certificates are trusted"},
    {"cert_file", CONF_FILE, 0, IN(semel_conf_tls, cert_file), .help = "our own certificate, with key_file"},
    {"key_file", CONF_FILE, 0, IN(semel_conf_tls, key_file), .help = "the key of cert_file"},
    {"key_password", CONF_TEXT, CONF_SECRET, IN(semel_conf_tls, key_password), RANGE(1, 1024),
     .help = "what opens key_file"},
    {"verify", CONF_FLAG, 0, IN(semel_conf_tls, verify), .other = "true",
     .help = "check the other side's certificate and name"},
};
static const struct conf_group tls_group = GROUP_OF(tls);
#define TLS(type)                                                                                            \
    {                                                                                                        \
        "tls", CONF_GROUP, CONF_SWITCH, IN(type, tls), .group = &tls_group, .help = "encrypt the connection" \
    }

static const struct conf_setting tls_server[] = {
    {"cert_file", CONF_FILE, CONF_REQUIRED, IN(semel_conf_tls_server, cert_file),
     .help = "the server's certificate with its chain"},
    {"key_file", CONF_FILE, CONF_REQUIRED, IN(semel_conf_tls_server, key_file), .help = "the key of cert_file"},
    {"client_ca_file", CONF_FILE, 0, IN(semel_conf_tls_server, client_ca_file),
     .help = "then every client needs a certificate of one of these authorities"},
};
static const struct conf_group tls_server_group = GROUP_OF(tls_server);

/* What every listener has besides its address and its paths. */
#define TOKEN(type, required, what)                                                                           \
    {                                                                                                         \
        "token", CONF_TEXT, CONF_SECRET | CONF_VISIBLE | (required), IN(type, server.token), RANGE(16, 1024), \
            .help = (what), .example = (required) != 0 ? "${SEMEL_TOKEN}" : NULL                              \
    }
#define HOSTS(type)                                                                               \
    {                                                                                             \
        "hosts", CONF_TEXTS, 0, IN(type, server.hosts), RANGE(1, 255),                            \
            .help = "names by which we are called, besides loopback names and the address itself" \
    }
#define PLAIN(type)                                                                                         \
    {                                                                                                       \
        "plain", CONF_FLAG, 0, IN(type, server.plain),                                                      \
            .other = "false",                                                                               \
            .help = "others reach the address without TLS, and that is meant: something before it encrypts" \
    }
#define TLS_SERVER(type)                                                                                        \
    {                                                                                                           \
        "tls", CONF_GROUP, CONF_SWITCH, IN(type, server.tls),                                                   \
            .group = &tls_server_group,                                                                         \
            .help = "answer with TLS; needed unless the address is loopback or a unix socket, or plain is said" \
    }

/* ---- sources ------------------------------------------------------------------------------------- */

static const char *const sasl_words[] = {"plain", "scram-sha-256", "scram-sha-512", NULL};
static const char *const first_words[] = {
    [SEMEL_KAFKA_FIRST_ERROR] = "error", [SEMEL_KAFKA_FIRST_EARLIEST] = "earliest", NULL};
static const char *const offsets_words[] = {"broker", "store", NULL};
static const char *const declare_words[] = {"never", "quorum", "classic", NULL};

static const struct conf_setting sasl[] = {
    {"mechanism", CONF_WORD, CONF_REQUIRED, IN(semel_conf_sasl, mechanism), .words = sasl_words,
     .help = "how to prove who we are"},
    {"user", CONF_TEXT, CONF_REQUIRED, IN(semel_conf_sasl, user), RANGE(1, 255), .help = "who we are"},
    {"password", CONF_TEXT, CONF_SECRET | CONF_REQUIRED, IN(semel_conf_sasl, password), RANGE(1, 4096),
     .help = "the password of user"},
};
static const struct conf_group sasl_group = GROUP_OF(sasl);

static const struct conf_setting kafka[] = {
    {"kafka", CONF_TEXT, CONF_REQUIRED, IN(semel_conf_kafka, brokers), .example = "\"localhost:9092\"",
     .help = "brokers to ask first, as HOST:PORT with commas between"},
    {"topic", CONF_TEXTS, CONF_REQUIRED, IN(semel_conf_kafka, topics), RANGE(1, 249), .example = "payments",
     .help = "the topic, or several"},
    {"group", CONF_TEXT, 0, IN(semel_conf_kafka, group), RANGE(1, 255), .other_says = "the name of the route",
     .help = "the consumer group; no other route may have it"},
    {"first", CONF_WORD, 0, IN(semel_conf_kafka, first), .words = first_words, .other = "earliest",
     .help = "where a partition begins of which the group has read nothing yet; error: it does not begin by itself"},
    {"offsets", CONF_WORD, 0, IN(semel_conf_kafka, offsets), .words = offsets_words, .other = "broker",
     .help = "where it is kept how far we have read; store: in the transaction of the effect"},
    {"in_flight", CONF_NUMBER, 0, IN(semel_conf_kafka, in_flight), RANGE(1, 1000000), .other = "10000",
     .help = "how many messages may be with us unacknowledged before reading pauses"},
    {"properties", CONF_PAIRS, CONF_KAFKA, IN(semel_conf_kafka, properties), RANGE(1, 512),
     .help = "librdkafka's own properties, such as session.timeout.ms; those that would break a promise are refused"},
    {"sasl", CONF_GROUP, CONF_SWITCH, IN(semel_conf_kafka, sasl), .group = &sasl_group, .help = "prove who we are"},
    TLS(semel_conf_kafka),
};
static const struct conf_group kafka_group = CHOICE_OF("kafka", kafka);

static const struct conf_setting amqp[] = {
    {"amqp", CONF_URL, CONF_REQUIRED | CONF_SECRET | CONF_LITERAL, IN(semel_conf_amqp, url), .words = amqp_schemes,
     .example = "amqp://localhost:5672/", .help = "the broker, as amqp://USER@HOST:PORT/VHOST"},
    {"queue", CONF_TEXT, CONF_REQUIRED, IN(semel_conf_amqp, queue), RANGE(1, 255), .example = "payments",
     .help = "the queue; no other route may have it"},
    {"user", CONF_TEXT, 0, IN(semel_conf_amqp, user), RANGE(1, 255),
     .other_says = "the URL's, else whom tls.cert_file names, else guest", .help = "who we are"},
    {"password", CONF_TEXT, CONF_SECRET, IN(semel_conf_amqp, password), RANGE(1, 4096),
     .other_says = "the URL's, else guest", .help = "the password of user"},
    {"prefetch", CONF_NUMBER, 0, IN(semel_conf_amqp, prefetch), RANGE(1, 65535), .other = "1000",
     .help = "how many messages may be with us unacknowledged"},
    {"single_active", CONF_FLAG, 0, IN(semel_conf_amqp, single_active), .other = "false",
     .help = "the queue has a single active consumer, so that its order is kept"},
    {"declare", CONF_WORD, 0, IN(semel_conf_amqp, declare), .words = declare_words, .other = "never",
     .help = "make the queue if it is not there, durable and of this type"},
    {"heartbeat", CONF_TIME, 0, IN(semel_conf_amqp, heartbeat_us), RANGE(SECOND_US, 10 * MINUTE_US), .other = "30s",
     .help = "how often both sides show that they are alive"},
    TLS(semel_conf_amqp),
};
static const struct conf_group amqp_group = CHOICE_OF("amqp", amqp);

static const struct conf_setting sqs[] = {
    {"sqs", CONF_URL, CONF_REQUIRED, IN(semel_conf_sqs, url), .words = http_schemes,
     .example = "https://sqs.eu-central-1.amazonaws.com/123456789012/payments",
     .help = "the queue's URL; no other route may have it. One that ends with .fifo has an order"},
    {"region", CONF_TEXT, CONF_REQUIRED, IN(semel_conf_sqs, region), RANGE(1, 64), .example = "eu-central-1",
     .help = "the region that requests are signed for"},
    {"access_key", CONF_TEXT, CONF_REQUIRED, IN(semel_conf_sqs, access_key), RANGE(1, 255),
     .example = "${AWS_ACCESS_KEY_ID}", .help = "the name of the key that signs requests"},
    {"secret_key", CONF_TEXT, CONF_REQUIRED | CONF_SECRET, IN(semel_conf_sqs, secret_key), RANGE(1, 1024),
     .example = "${AWS_SECRET_ACCESS_KEY}", .help = "the key that signs requests"},
    {"session_token", CONF_TEXT, CONF_SECRET, IN(semel_conf_sqs, session_token), RANGE(1, 8192),
     .help = "what goes with a key that was lent for a time"},
    {"visibility", CONF_TIME, 0, IN(semel_conf_sqs, visibility_us), RANGE(SECOND_US, 12 * HOUR_US), .other = "60s",
     .help = "how long a message stays hidden while we have it; it is prolonged with the lease"},
    {"wait", CONF_TIME, 0, IN(semel_conf_sqs, wait_us), RANGE(0, 20 * SECOND_US), .other = "20s",
     .help = "how long one request waits for messages"},
    TLS(semel_conf_sqs),
};
static const struct conf_group sqs_group = CHOICE_OF("sqs", sqs);

static const struct conf_setting listen[] = {
    {"listen", CONF_ADDRESS, CONF_REQUIRED, IN(semel_conf_listen, server.address), .example = "127.0.0.1:8090",
     .help = "where producers POST their messages; routes may share an address"},
    {"path", CONF_TEXT, 0, IN(semel_conf_listen, path), RANGE(1, 255), .other_says = "/ and the name of the route",
     .help = "the path of this route on that address"},
    {"source", CONF_TEXT, 0, IN(semel_conf_listen, source), RANGE(1, 255), .other_says = "the name of the route",
     .help = "the stream that ids belong to, unless a message is a CloudEvent with a source of its own"},
    TOKEN(semel_conf_listen, CONF_REQUIRED, "what producers must show: Authorization: Bearer TOKEN"),
    {"body_max", CONF_NUMBER, 0, IN(semel_conf_listen, body_max), RANGE(1, 1 << 28), .other = "8388608",
     .help = "the largest request in bytes"},
    HOSTS(semel_conf_listen),
    PLAIN(semel_conf_listen),
    TLS_SERVER(semel_conf_listen),
};
static const struct conf_group listen_group = CHOICE_OF("listen", listen);

const struct conf_group *const semel__conf_sources[] = {
    [SEMEL_SOURCE_KAFKA] = &kafka_group,
    [SEMEL_SOURCE_AMQP] = &amqp_group,
    [SEMEL_SOURCE_SQS] = &sqs_group,
    [SEMEL_SOURCE_LISTEN] = &listen_group,
    NULL,
};

/* ---- handlers ------------------------------------------------------------------------------------ */

#define TIMEOUT(type)                                                                                                \
    {                                                                                                                \
        "timeout", CONF_TIME, 0, IN(type, timeout_us), RANGE(1000, HOUR_US),                                         \
            .other = "30s", .help = "how long one call may take; then its outcome is unknown, unless it never began" \
    }
#define CONCURRENCY(type, often)                                                        \
    {                                                                                   \
        "concurrency", CONF_NUMBER, 0, IN(type, concurrency), RANGE(1, 1000),           \
            .other = (often), .help = "how many calls a worker may have open at a time" \
    }
#define IDEMPOTENT(type)                                                                                            \
    {                                                                                                               \
        "idempotent", CONF_FLAG, 0, IN(type, idempotent),                                                           \
            .other = "false",                                                                                       \
            .help = "the other side honours the key for as long as we retry: an unknown outcome is simply repeated" \
    }

static const struct conf_setting sql[] = {
    {"sql", CONF_TEXT, CONF_REQUIRED | CONF_LINES, IN(semel_conf_sql, statement), RANGE(1, 65536),
     .example = "\"INSERT INTO ledger (order_id, cents) VALUES ($1, $2)\"",
     .help = "one statement, run inside the transaction; $1, $2 ... are the route's values"},
    {"set", CONF_FLAG, 0, IN(semel_conf_sql, set), .other = "false",
     .help = "the statement handles many messages: each $n is an array, and it returns the id of every message "
             "(PostgreSQL)"},
};
static const struct conf_group sql_group = CHOICE_OF("sql", sql);

static const struct conf_setting http[] = {
    {"http", CONF_URL, CONF_REQUIRED, IN(semel_conf_http, url), .words = http_schemes,
     .example = "http://localhost:8000/payments",
     .help = "where the payload is POSTed, with the header Idempotency-Key"},
    TIMEOUT(semel_conf_http),
    CONCURRENCY(semel_conf_http, "16"),
    IDEMPOTENT(semel_conf_http),
    {"transient", CONF_TEXTS, 0, IN(semel_conf_http, transient), RANGE(3, 3),
     .help = "statuses of 500 to 599 after which certainly nothing was done, such as 503 of a load balancer: repeated. "
             "Any other 5xx is an unknown outcome, unless the answer has the header Semel-Outcome"},
    {"headers", CONF_PAIRS, 0, IN(semel_conf_http, headers), RANGE(1, 8192),
     .help = "headers to send besides; secrets among them come from the environment"},
    {"reconcile", CONF_URL, 0, IN(semel_conf_http, reconcile), .words = http_schemes,
     .help = "where to ask, by GET with the same key, what became of an unknown outcome before it is repeated; {key} "
             "and {id} in it become the step key and the id of the message"},
    {"plain", CONF_FLAG, 0, IN(semel_conf_http, plain), .other = "false",
     .help = "another host is called by http:, without TLS, and that is meant: something on the way encrypts"},
    TLS(semel_conf_http),
};
static const struct conf_group http_group = CHOICE_OF("http", http);

static const struct conf_setting exec[] = {
    {"exec", CONF_PROGRAM, CONF_REQUIRED, IN(semel_conf_exec, argv), .example = "[/bin/cat]",
     .help = "the program, which gets the payload on stdin; 0 is done, 75 transient, 65 permanent, 77 rejected, "
             "69 unknown"},
    TIMEOUT(semel_conf_exec),
    CONCURRENCY(semel_conf_exec, "4"),
    IDEMPOTENT(semel_conf_exec),
    {"env", CONF_PAIRS, CONF_ENV, IN(semel_conf_exec, env), RANGE(1, 8192),
     .help = "its environment, besides PATH and what Semel tells of the message"},
    {"reconcile", CONF_PROGRAM, 0, IN(semel_conf_exec, reconcile),
     .help = "a program that finds out what became of an unknown outcome before it is repeated"},
};
static const struct conf_group exec_group = CHOICE_OF("exec", exec);

static const struct conf_setting pull[] = {
    {"pull", CONF_ADDRESS, CONF_REQUIRED, IN(semel_conf_pull, server.address), .example = "127.0.0.1:8091",
     .help = "where workers fetch messages and settle them; routes may share an address"},
    {"path", CONF_TEXT, 0, IN(semel_conf_pull, path), RANGE(1, 255), .other_says = "/ and the name of the route",
     .help = "the path of this route on that address"},
    TOKEN(semel_conf_pull, CONF_REQUIRED, "what workers must show: Authorization: Bearer TOKEN"),
    IDEMPOTENT(semel_conf_pull),
    {"lease_max", CONF_TIME, 0, IN(semel_conf_pull, lease_max_us), RANGE(SECOND_US, DAY_US), .other = "1h",
     .help = "the longest lease that a worker may ask for; the route's lease is what it gets without asking"},
    HOSTS(semel_conf_pull),
    PLAIN(semel_conf_pull),
    TLS_SERVER(semel_conf_pull),
};
static const struct conf_group pull_group = CHOICE_OF("pull", pull);

const struct conf_group *const semel__conf_handlers[] = {
    [SEMEL_DO_SQL] = &sql_group,
    [SEMEL_DO_HTTP] = &http_group,
    [SEMEL_DO_EXEC] = &exec_group,
    [SEMEL_DO_PULL] = &pull_group,
    NULL,
};

/* ---- routes -------------------------------------------------------------------------------------- */

const char *const semel__conf_derived[] = {"effect", "order", NULL};

#define MEMBER(in_file, in_core)                       \
    {                                                  \
        (in_file), CONF_MEMBER, 0, .member = (in_core) \
    }

static const struct conf_setting retry[] = {
    MEMBER("max", "retry_max"),
    MEMBER("permanent", "permanent_max"),
    MEMBER("first", "retry_first"),
    MEMBER("ceiling", "retry_ceiling"),
};
static const struct conf_group retry_group = GROUP_OF(retry);

static const struct conf_setting keep[] = {
    MEMBER("completed", "retention"),
    MEMBER("payload", "keep_payload"),
    MEMBER("business", "business_retention"),
};
static const struct conf_group keep_group = GROUP_OF(keep);

static const struct conf_setting gap[] = {
    MEMBER("first", "first_version"),
    MEMBER("timeout", "gap_timeout"),
    MEMBER("then", "on_gap"),
};
static const struct conf_group gap_group = GROUP_OF(gap);

static const struct conf_setting parked[] = {
    MEMBER("key", "parked_key_max"),
    MEMBER("route", "parked_consumer_max"),
};
static const struct conf_group parked_group = GROUP_OF(parked);

static const struct conf_setting horizon[] = {
    {"broker", CONF_TIME, CONF_FOREVER, IN(semel_horizon, broker_us), RANGE(0, YEARS_US), .other = "7d",
     .help = "how long the source keeps messages, or the longest replay that is really done"},
    {"outbox", CONF_TIME, 0, IN(semel_horizon, outbox_lag_us), RANGE(0, YEARS_US), .other = "1d",
     .help = "the longest backlog of the producers"},
    {"outage", CONF_TIME, 0, IN(semel_horizon, outage_us), RANGE(0, YEARS_US), .other = "3d",
     .help = "the longest outage of this consumer"},
    {"dead_letters", CONF_TIME, 0, IN(semel_horizon, dead_letter_us), RANGE(0, YEARS_US), .other = "14d",
     .help = "how long dead letters lie before they are replayed"},
    {"margin", CONF_TIME, 0, IN(semel_horizon, margin_us), RANGE(0, YEARS_US), .other = "5d", .help = "what is added"},
    {"legal", CONF_TIME, 0, IN(semel_horizon, legal_us), RANGE(0, YEARS_US), .other = "0s",
     .help = "the least that is prescribed, however short the sum is"},
};
static const struct conf_group horizon_group = GROUP_OF(horizon);

static const struct conf_setting breaker[] = {
    {"failures", CONF_NUMBER, 0, IN(semel_conf_breaker, failures), RANGE(1, 10000), .other = "10",
     .help = "how many failures in a row stop the route"},
    {"first", CONF_TIME, 0, IN(semel_conf_breaker, first_us), RANGE(1000, DAY_US), .other = "1s",
     .help = "the pause before one message is tried; it doubles each time"},
    {"ceiling", CONF_TIME, 0, IN(semel_conf_breaker, ceiling_us), RANGE(1000, DAY_US), .other = "60s",
     .help = "the longest pause; not below first"},
};
static const struct conf_group breaker_group = GROUP_OF(breaker);

static const struct conf_setting route[] = {
    {"from", CONF_ONE_OF, CONF_REQUIRED, IN(semel_route, from), .choices = semel__conf_sources,
     .help = "where messages come from"},
    {"id", CONF_RULE, 0, IN(semel_route, rules.id), .example = "header:ce_id",
     .other_says = "the headers ce_id and id, the property message_id, the header webhook-id",
     .help = "where the id of a message is"},
    MEMBER("timed_ids", "timed_ids"),
    {"type", CONF_RULE, 0, IN(semel_route, rules.type), .other_says = "the header ce_type, the property type",
     .help = "where the type of a message is"},
    {"order", CONF_RULE, 0, IN(semel_route, rules.order),
     .help = "what names the thing whose messages run one after the other"},
    {"version", CONF_RULE, 0, IN(semel_route, rules.version),
     .help = "the number that orders the messages of a key; without it they run as they arrive"},
    {"lock_key", CONF_RULE, 0, IN(semel_route, rules.lock),
     .help = "what the handler updates: batches are sorted by it, so that they do not deadlock"},
    {"business_key", CONF_RULES, 0, IN(semel_route, rules),
     .help = "what names the intent: a second message with it is prevented, whatever its id"},
    {"time", CONF_RULE, 0, IN(semel_route, rules.time),
     .other_says = "the time in the id (timed_ids), else the header ce_time",
     .help = "when the message was made; with this rule every message must have it"},
    {"values", CONF_TEXTS, CONF_FOR_SQL, IN(semel_route, values), RANGE(1, 512),
     .example = "[json:/order_id, json:/cents]", .help = "what $1, $2 ... of the statement are"},
    {"do", CONF_ONE_OF, CONF_REQUIRED, IN(semel_route, handler), .choices = semel__conf_handlers,
     .help = "what is done with a message"},
    {"retry", CONF_GROUP, 0, .group = &retry_group, .help = "how often, and after which pauses, a failure is repeated"},
    {"keep", CONF_GROUP, 0, .group = &keep_group, .help = "what is remembered, and for how long"},
    {"horizon", CONF_GROUP, 0, IN(semel_route, horizon), .group = &horizon_group,
     .help = "how long after its first delivery a message can come back: keep.completed must cover the sum"},
    {"gap", CONF_GROUP, 0, .group = &gap_group, .help = "what happens when a version is missing"},
    {"parked", CONF_GROUP, 0, .group = &parked_group, .help = "how much may wait in the store before reading pauses"},
    MEMBER("lease", "lease"),
    MEMBER("payload_max", "payload_max"),
    MEMBER("one_source", "one_source"),
    {"batch", CONF_NUMBER, 0, IN(semel_route, batch), RANGE(1, 10000), .other = "500",
     .help = "how many messages one transaction takes"},
    {"workers", CONF_NUMBER, 0, IN(semel_route, workers), RANGE(1, 64), .other = "1",
     .help = "how many threads, each with a connection of its own, handle messages"},
    {"unknown_max", CONF_NUMBER, 0, IN(semel_route, unknown_max), RANGE(1, 10000), .other = "100",
     .help =
         "how many unknown outcomes the consumer may have; then an http, exec or pull route takes nothing new until "
         "some are reconciled or resolved"},
    {"breaker", CONF_GROUP, 0, IN(semel_route, breaker), .group = &breaker_group,
     .help = "when a failing handler stops the route instead of filling the dead letters"},
};
static const struct conf_group route_group = GROUP_OF(route);

/* ---- the file ------------------------------------------------------------------------------------ */

static const char *const format_words[] = {"human", "json", NULL};
static const char *const level_words[] = {"debug", "info", "warn", "error", NULL};

static const struct conf_setting admin[] = {
    {"listen", CONF_ADDRESS, CONF_REQUIRED, IN(semel_conf_admin, server.address), .example = "127.0.0.1:9464",
     .help = "where /metrics, /healthz, /readyz and the admin API answer"},
    TOKEN(
        semel_conf_admin, 0,
        "what operators must show for the admin API: Authorization: Bearer TOKEN; without it the API changes nothing"),
    {"read_token", CONF_TEXT, CONF_SECRET | CONF_VISIBLE, IN(semel_conf_admin, read_token), RANGE(16, 1024),
     .help = "another token that opens only what reads"},
    HOSTS(semel_conf_admin),
    PLAIN(semel_conf_admin),
    TLS_SERVER(semel_conf_admin),
};
static const struct conf_group admin_group = GROUP_OF(admin);

static const struct conf_setting logging[] = {
    {"format", CONF_WORD, 0, IN(semel_conf_log, format), .words = format_words, .other = "human",
     .help = "lines for people, or a JSON object a line"},
    {"level", CONF_WORD, 0, IN(semel_conf_log, level), .words = level_words, .other = "info",
     .help = "the least important lines that are written"},
};
static const struct conf_group log_group = GROUP_OF(logging);

static const struct conf_setting schedule[] = {
    {"every", CONF_TIME, 0, IN(semel_conf_schedule, every_us), RANGE(10000, MINUTE_US), .other = "500ms",
     .help = "how often stored work that is due is looked for; up to eight times as rarely while nothing happens"},
    {"rows", CONF_NUMBER, 0, IN(semel_conf_schedule, rows), RANGE(1, 10000), .other = "1000",
     .help = "how many rows are taken each time"},
    {"purge", CONF_TIME, 0, IN(semel_conf_schedule, purge_us), RANGE(SECOND_US, DAY_US), .other = "1m",
     .help = "how often old records are deleted"},
};
static const struct conf_group schedule_group = GROUP_OF(schedule);

static const struct conf_setting root[] = {
    {"store", CONF_URL, CONF_REQUIRED | CONF_SECRET | CONF_LITERAL, IN(semel_conf, store), .words = store_schemes,
     .example = "sqlite:semel.db", .help = "the database that holds the inbox, and the effects of sql handlers"},
    {"store_plain", CONF_FLAG, 0, IN(semel_conf, store_plain), .other = "false",
     .help = "the store is on another host without sslmode=verify-full or verify-ca, and that is meant: whoever is on "
             "the way could take the password"},
    {"routes", CONF_ROUTES, CONF_REQUIRED, IN(semel_conf, routes), .group = &route_group,
     .help = "by name; the name is the consumer's and part of every key"},
    {"admin", CONF_GROUP, CONF_SWITCH, IN(semel_conf, admin), .group = &admin_group, .example = "",
     .help = "what can be seen and done over HTTP; not said: nothing"},
    {"log", CONF_GROUP, 0, IN(semel_conf, log), .group = &log_group, .help = "what is written to stderr"},
    {"schedule", CONF_GROUP, 0, IN(semel_conf, schedule), .group = &schedule_group,
     .help = "retries, recovery and purging, which every process does"},
    {"stop_within", CONF_TIME, 0, IN(semel_conf, stop_within_us), RANGE(100000, HOUR_US), .other = "30s",
     .help = "how long a stop may take; what is not finished then is given back"},
};
const struct conf_group semel__conf_root = GROUP_OF(root);

/* ==== for people ====================================================================================
 *
 * The table of the settings, for people: a walk for docs/settings.md, and the file that `semel init` prints.
 *
 * Invariants: nothing is said here of any setting; both come from the table, and from core's where a setting is a
 * member of it. What `semel init` prints is a file that can be read (test_check reads every one).
 */

/* ---- names --------------------------------------------------------------------------------------- */

const char *semel__conf_mechanism_name(enum semel_conf_mechanism mechanism)
{
    static const char *const names[] = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"};
    return names[mechanism];
}

const char *semel__source_name(enum semel_source_kind kind)
{
    return semel__conf_sources[kind]->name;
}

const char *semel__do_name(enum semel_do_kind kind)
{
    return semel__conf_handlers[kind]->name;
}

bool semel__source_parse(struct semel_str name, enum semel_source_kind *ret)
{
    for (size_t i = 0; semel__conf_sources[i] != NULL; i++)
        if (semel__str_eqz(name, semel__conf_sources[i]->name)) {
            *ret = (enum semel_source_kind)i;
            return true;
        }
    return false;
}

bool semel__do_parse(struct semel_str name, enum semel_do_kind *ret)
{
    for (size_t i = 0; semel__conf_handlers[i] != NULL; i++)
        if (semel__str_eqz(name, semel__conf_handlers[i]->name)) {
            *ret = (enum semel_do_kind)i;
            return true;
        }
    return false;
}

#define WIDTH 100
#define ROUTE "example"

/* ---- what core knows ----------------------------------------------------------------------------- */

struct described {
    const char *member;
    char type[160], other[128], help[256];
};

static void on_member(void *ctx, const char *name, const char *kind, const char *value, const char *help)
{
    struct described *d = ctx;
    char range[128];
    if (strcmp(name, d->member) != 0)
        return;
    bool flag = strcmp(kind, "true|false") == 0, words = !flag && strchr(kind, '|') != NULL;
    const char *before = flag ? "" : strncmp(kind, "duration", 8) == 0 ? "a " : words ? "one of " : "a whole number, ";
    semel__conf_translate(kind, range, sizeof(range));
    snprintf(d->type, sizeof(d->type), "%s%s", before, flag ? "true or false" : range);
    snprintf(d->other, sizeof(d->other), "%s", value);
    semel__conf_translate(help, d->help, sizeof(d->help));
}

static void describe(const struct conf_setting *s, struct described *d)
{
    *d = (struct described){.member = s->member};
    if (s->kind == CONF_MEMBER) {
        semel__policy_members(on_member, d);
        return;
    }
    semel__conf_type(s, d->type, sizeof(d->type));
    if (s->other != NULL || s->other_says != NULL)
        snprintf(d->other, sizeof(d->other), "%s", s->other != NULL ? s->other : s->other_says);
    snprintf(d->help, sizeof(d->help), "%s", s->help);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

struct walk {
    void (*each)(void *ctx, const struct semel_conf_shown *shown);
    void *ctx;
};

static void walk_group(const struct walk *w, const struct conf_group *group, const char *before, const char *choice);

static void walk_setting(const struct walk *w, const struct conf_setting *s, const char *before, const char *choice)
{
    char path[CONF_PATH_MAX];
    struct described d;
    describe(s, &d);
    snprintf(path, sizeof(path), "%s%s%s", before, before[0] != '\0' ? "." : "", s->name);
    const struct semel_conf_shown shown = {
        .path = path,
        .choice = choice,
        .type = d.type,
        .other = d.other[0] != '\0' ? d.other : NULL,
        .computed = s->other_says != NULL,
        .help = d.help,
        .required = (s->flags & CONF_REQUIRED) != 0,
        .secret = (s->flags & CONF_SECRET) != 0,
        .group = s->kind == CONF_GROUP || s->kind == CONF_ONE_OF || s->kind == CONF_ROUTES,
    };
    w->each(w->ctx, &shown);
    if (s->kind == CONF_ROUTES)
        snprintf(path + strlen(path), sizeof(path) - strlen(path), ".NAME");
    if (s->group != NULL)
        walk_group(w, s->group, path, choice);
    for (size_t i = 0; s->choices != NULL && s->choices[i] != NULL; i++)
        walk_group(w, s->choices[i], path, s->choices[i]->name);
}

/* As deep as the table. */
static void walk_group(const struct walk *w, const struct conf_group *group, const char *before, const char *choice)
{
    for (size_t i = 0; i < group->n; i++)
        walk_setting(w, &group->settings[i], before, choice);
}

void semel__conf_settings(void (*each)(void *ctx, const struct semel_conf_shown *shown), void *ctx)
{
    const struct walk w = {each, ctx};
    walk_group(&w, &semel__conf_root, "", NULL);
}

/* ---- a file to start with ------------------------------------------------------------------------ */

struct writer {
    struct semel_buf *buf;
    enum semel_source_kind source;
    enum semel_do_kind handler;
};

static void write_group(const struct writer *w, const struct conf_group *group, int indent, bool off);

/* Words in lines of comment. */
static void comment(const struct writer *w, int indent, const char *text)
{
    int column = 0;
    while (*text != '\0') {
        int n = (int)strcspn(text, " ");
        if (column == 0 || column + 1 + n > WIDTH) {
            semel__buf_addf(w->buf, "%s%*s#", column > 0 ? "\n" : "", indent, "");
            column = indent + 1;
        }
        semel__buf_addf(w->buf, " %.*s", n, text);
        column += 1 + n;
        text += n;
        text += strspn(text, " ");
    }
    semel__buf_addz(w->buf, "\n");
}

static const char *sample(const struct conf_setting *s)
{
    static const char *const samples[] = {
        [CONF_RULE] = "json:/POINTER", [CONF_RULES] = "json:/POINTER", [CONF_TEXTS] = "[TEXT]",
        [CONF_PAIRS] = "{NAME: TEXT}", [CONF_ADDRESS] = "HOST:PORT",   [CONF_URL] = "URL",
        [CONF_FILE] = "FILE",          [CONF_PROGRAM] = "[PROGRAM]",   [CONF_TEXT] = "TEXT",
    };
    if ((s->flags & CONF_SECRET) != 0)
        return "${VARIABLE}";
    if (s->kind == CONF_WORD)
        return s->words[0];
    return s->kind < CONF_COUNT(samples) && samples[s->kind] != NULL ? samples[s->kind] : "VALUE";
}

static void write_line(const struct writer *w, const struct conf_setting *s, const struct described *d, int indent,
                       bool off)
{
    bool live = !off && s->example != NULL && ((s->flags & CONF_FOR_SQL) == 0 || w->handler == SEMEL_DO_SQL);
    const char *value = s->example;
    if (!live)
        value = d->other[0] != '\0' && s->other_says == NULL ? d->other : sample(s);
    semel__buf_addf(w->buf, "%*s%s%s: %s\n", indent, "", live ? "" : "#", s->name, value);
}

static void write_setting(const struct writer *w, const struct conf_setting *s, int indent, bool off)
{
    struct described d;
    char text[512];
    bool required = (s->flags & CONF_REQUIRED) != 0;
    bool group = s->kind == CONF_GROUP || s->kind == CONF_ONE_OF || s->kind == CONF_ROUTES;
    bool live = !off && (required || s->example != NULL);
    describe(s, &d);
    snprintf(text, sizeof(text), "%s%s%s", d.help, s->other_says != NULL ? "; default: " : "",
             s->other_says != NULL ? s->other_says : "");
    if (indent == 0)
        semel__buf_addz(w->buf, "\n");
    comment(w, indent, text);
    if (!group) {
        write_line(w, s, &d, indent, off);
        return;
    }
    semel__buf_addf(w->buf, "%*s%s%s:\n", indent, "", live ? "" : "#", s->name);
    if (s->kind == CONF_ROUTES) {
        indent += 2;
        semel__buf_addf(w->buf, "%*s" ROUTE ":\n", indent, "");
    }
    const struct conf_group *below = s->group;
    if (s->choices != NULL)
        below = s->choices[s->choices == semel__conf_sources ? (int)w->source : (int)w->handler];
    write_group(w, below, indent + 2, !live);
}

static void write_group(const struct writer *w, const struct conf_group *group, int indent, bool off)
{
    for (size_t i = 0; i < group->n; i++)
        write_setting(w, &group->settings[i], indent, off);
}

void semel__conf_example(enum semel_source_kind source, enum semel_do_kind handler, struct semel_buf *buf)
{
    const struct writer w = {buf, source, handler};
    semel__buf_addz(buf,
                    "# Settings of `semel run`. `semel check FILE` finds mistakes and says what each route promises.\n"
                    "# ${VARIABLE} in a value is taken from the environment. A line with # and no blank behind it is\n"
                    "# a setting that is not said; what stands there is its default, or the form of its value.\n");
    write_group(&w, &semel__conf_root, 0, false);
}
