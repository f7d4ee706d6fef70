/* SPDX-License-Identifier: MIT
 *
 * table.c: the table of the settings. The name of a setting, the values that it may have, its default and its purpose
 * stand here and nowhere else: reading (read.c), docs/settings.md and `semel init` walk it and
 * know no setting by its name.
 *
 * To add one: a field in conf.h, a line here. To add a handler: a group here, and its name in the list of choices. The
 * settings of sources are with their kinds (broker/kinds.c). A setting that core stores for each consumer is a MEMBER:
 * only its place in the file stands here.
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

/* A program's file is written behind its arguments (value.c). */
_Static_assert(offsetof(struct semel_conf_exec, program) ==
                   offsetof(struct semel_conf_exec, argv) + sizeof(struct semel_setting_list),
               "program follows argv");
_Static_assert(offsetof(struct semel_conf_exec, reconcile_program) ==
                   offsetof(struct semel_conf_exec, reconcile) + sizeof(struct semel_setting_list),
               "reconcile_program follows reconcile");

/* ---- pieces -------------------------------------------------------------------------------------- */

static const char *const http_schemes[] = {"http", "https", NULL};
static const char *const store_schemes[] = {"sqlite", "postgres", "postgresql", NULL};

/* ---- handlers ------------------------------------------------------------------------------------ */

#define TIMEOUT(type)                                                                                             \
    {                                                                                                             \
        "timeout", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(type, timeout_us), SEMEL_SETTING_RANGE(1000, HOUR_US), \
            .default_text = "30s",                                                                                \
            .help = "how long one call may take; then its outcome is unknown, unless it never began"              \
    }
#define CONCURRENCY(type, often)                                                                                   \
    {                                                                                                              \
        "concurrency", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(type, concurrency), SEMEL_SETTING_RANGE(1, 1000), \
            .default_text = (often), .help = "how many calls a worker may have open at a time"                     \
    }
#define IDEMPOTENT(type)                                                                                            \
    {                                                                                                               \
        "idempotent", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(type, idempotent),                                    \
            .default_text = "false",                                                                                \
            .help = "the other side honours the key for as long as we retry: an unknown outcome is simply repeated" \
    }

static const struct semel_setting_spec sql[] = {
    {"sql", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_LINES,
     SEMEL_SETTING_IN(semel_conf_sql, statement), SEMEL_SETTING_RANGE(1, 65536),
     .example = "\"INSERT INTO ledger (order_id, cents) VALUES ($1, $2)\"",
     .help = "one statement, run inside the transaction; $1, $2 ... are the route's values"},
    {"set", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_sql, set), .default_text = "false",
     .help = "the statement handles many messages: each $n is an array, and it returns the id of every message "
             "(PostgreSQL)"},
};
static const struct semel_setting_group sql_group = SEMEL_SETTING_GROUP_OF("sql", sql);

static const struct semel_setting_spec http[] = {
    {"http", SEMEL_SETTING_URL, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_http, url), .words = http_schemes,
     .example = "http://localhost:8000/payments",
     .help = "where the payload is POSTed, with the header Idempotency-Key"},
    TIMEOUT(semel_conf_http),
    CONCURRENCY(semel_conf_http, "16"),
    IDEMPOTENT(semel_conf_http),
    {"transient", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(semel_conf_http, transient), SEMEL_SETTING_RANGE(3, 3),
     .help = "statuses of 500 to 599 after which certainly nothing was done, such as 503 of a load balancer: repeated. "
             "Any other 5xx is an unknown outcome, unless the answer has the header Semel-Outcome"},
    {"headers", SEMEL_SETTING_PAIRS, 0, SEMEL_SETTING_IN(semel_conf_http, headers), SEMEL_SETTING_RANGE(1, 8192),
     .help = "headers to send besides; secrets among them come from the environment"},
    {"reconcile", SEMEL_SETTING_URL, 0, SEMEL_SETTING_IN(semel_conf_http, reconcile), .words = http_schemes,
     .help = "where to ask, by GET with the same key, what became of an unknown outcome before it is repeated; {key} "
             "and {id} in it become the step key and the id of the message"},
    {"plain", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_http, plain), .default_text = "false",
     .help = "plain HTTP to another host; a proxy terminates TLS"},
    SEMEL_SETTING_TLS(semel_conf_http),
};
static const struct semel_setting_group http_group = SEMEL_SETTING_GROUP_OF("http", http);

static const struct semel_setting_spec exec[] = {
    {"exec", SEMEL_SETTING_PROGRAM, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_exec, argv),
     .example = "[/bin/cat]",
     .help = "the program, which gets the payload on stdin; 0 is done, 75 transient, 65 permanent, 77 rejected, "
             "69 unknown"},
    TIMEOUT(semel_conf_exec),
    CONCURRENCY(semel_conf_exec, "4"),
    IDEMPOTENT(semel_conf_exec),
    {"env", SEMEL_SETTING_PAIRS, SEMEL_SETTING_ENV, SEMEL_SETTING_IN(semel_conf_exec, env),
     SEMEL_SETTING_RANGE(1, 8192), .help = "its environment, besides PATH and what Semel tells of the message"},
    {"reconcile", SEMEL_SETTING_PROGRAM, 0, SEMEL_SETTING_IN(semel_conf_exec, reconcile),
     .help = "a program that finds out what became of an unknown outcome before it is repeated"},
};
static const struct semel_setting_group exec_group = SEMEL_SETTING_GROUP_OF("exec", exec);

static const struct semel_setting_spec pull[] = {
    {"pull", SEMEL_SETTING_ADDRESS, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_pull, server.address),
     .example = "127.0.0.1:8091", .help = "where workers fetch messages and settle them; routes may share an address"},
    {"path", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_conf_pull, path), SEMEL_SETTING_RANGE(1, 255),
     .default_note = "/ and the name of the route", .help = "the path of this route on that address"},
    SEMEL_SETTING_TOKEN(semel_conf_pull, SEMEL_SETTING_REQUIRED, "what workers must show: Authorization: Bearer TOKEN"),
    IDEMPOTENT(semel_conf_pull),
    {"lease_max", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_pull, lease_max_us),
     SEMEL_SETTING_RANGE(SECOND_US, DAY_US), .default_text = "1h",
     .help = "the longest lease that a worker may ask for; the route's lease is what it gets without asking"},
    SEMEL_SETTING_HOSTS(semel_conf_pull),
    SEMEL_SETTING_PLAIN(semel_conf_pull),
    SEMEL_SETTING_TLS_SERVER(semel_conf_pull),
};
static const struct semel_setting_group pull_group = SEMEL_SETTING_GROUP_OF("pull", pull);

const struct semel_setting_group *const semel__conf_handlers[] = {
    [SEMEL_DO_SQL] = &sql_group,
    [SEMEL_DO_HTTP] = &http_group,
    [SEMEL_DO_EXEC] = &exec_group,
    [SEMEL_DO_PULL] = &pull_group,
    NULL,
};

/* ---- routes -------------------------------------------------------------------------------------- */

const char *const semel__conf_derived[] = {"effect", "order", NULL};

#define MEMBER(in_file, in_core)                                \
    {                                                           \
        (in_file), SEMEL_SETTING_MEMBER, 0, .member = (in_core) \
    }

static const struct semel_setting_spec retry[] = {
    MEMBER("max", "retry_max"),
    MEMBER("permanent", "permanent_max"),
    MEMBER("first", "retry_first"),
    MEMBER("ceiling", "retry_ceiling"),
};
static const struct semel_setting_group retry_group = SEMEL_SETTING_GROUP_OF(NULL, retry);

static const struct semel_setting_spec keep[] = {
    MEMBER("completed", "retention"),
    MEMBER("payload", "keep_payload"),
    MEMBER("business", "business_retention"),
};
static const struct semel_setting_group keep_group = SEMEL_SETTING_GROUP_OF(NULL, keep);

static const struct semel_setting_spec gap[] = {
    MEMBER("first", "first_version"),
    MEMBER("timeout", "gap_timeout"),
    MEMBER("then", "on_gap"),
};
static const struct semel_setting_group gap_group = SEMEL_SETTING_GROUP_OF(NULL, gap);

static const struct semel_setting_spec parked[] = {
    MEMBER("key", "parked_key_max"),
    MEMBER("route", "parked_consumer_max"),
};
static const struct semel_setting_group parked_group = SEMEL_SETTING_GROUP_OF(NULL, parked);

static const struct semel_setting_spec horizon[] = {
    {"broker", SEMEL_SETTING_TIME, SEMEL_SETTING_FOREVER, SEMEL_SETTING_IN(semel_horizon, broker_us),
     SEMEL_SETTING_RANGE(0, YEARS_US), .default_text = "7d",
     .help = "how long the source keeps messages, or the longest replay that is really done"},
    {"outbox", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_horizon, outbox_lag_us), SEMEL_SETTING_RANGE(0, YEARS_US),
     .default_text = "1d", .help = "the longest backlog of the producers"},
    {"outage", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_horizon, outage_us), SEMEL_SETTING_RANGE(0, YEARS_US),
     .default_text = "3d", .help = "the longest outage of this consumer"},
    {"dead_letters", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_horizon, dead_letter_us),
     SEMEL_SETTING_RANGE(0, YEARS_US), .default_text = "14d",
     .help = "how long dead letters lie before they are retried"},
    {"margin", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_horizon, margin_us), SEMEL_SETTING_RANGE(0, YEARS_US),
     .default_text = "5d", .help = "what is added"},
    {"legal", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_horizon, legal_us), SEMEL_SETTING_RANGE(0, YEARS_US),
     .default_text = "0s", .help = "the least that is prescribed, however short the sum is"},
};
static const struct semel_setting_group horizon_group = SEMEL_SETTING_GROUP_OF(NULL, horizon);

static const struct semel_setting_spec breaker[] = {
    {"failures", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_breaker, failures), SEMEL_SETTING_RANGE(1, 10000),
     .default_text = "10", .help = "how many failures in a row stop the route"},
    {"first", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_breaker, first_us), SEMEL_SETTING_RANGE(1000, DAY_US),
     .default_text = "1s", .help = "the pause before one message is tried; it doubles each time"},
    {"ceiling", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_breaker, ceiling_us),
     SEMEL_SETTING_RANGE(1000, DAY_US), .default_text = "60s", .help = "the longest pause; not below first"},
};
static const struct semel_setting_group breaker_group = SEMEL_SETTING_GROUP_OF(NULL, breaker);

static const struct semel_setting_spec route[] = {
    {"from", SEMEL_SETTING_SOURCE, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_route, from),
     .help = "where messages come from"},
    {"id", SEMEL_SETTING_RULE, SEMEL_SETTING_HINT, SEMEL_SETTING_IN(semel_route, rules.id),
     .default_note = "the headers ce_id and id, the property message_id, the header webhook-id; with from.signature "
                     "the provider's",
     .help = "where the id of a message is; one without an id is quarantined"},
    MEMBER("timed_ids", "timed_ids"),
    {"type", SEMEL_SETTING_RULE, 0, SEMEL_SETTING_IN(semel_route, rules.type),
     .default_note = "the header ce_type, the property type; with from.signature the provider's",
     .help = "where the type of a message is"},
    {"order", SEMEL_SETTING_RULE, SEMEL_SETTING_HINT, SEMEL_SETTING_IN(semel_route, rules.order),
     .help = "what names the thing whose messages run one after the other"},
    {"version", SEMEL_SETTING_RULE, 0, SEMEL_SETTING_IN(semel_route, rules.version),
     .help = "the number that orders the messages of a key; without it they run as they arrive"},
    {"lock_key", SEMEL_SETTING_RULE, 0, SEMEL_SETTING_IN(semel_route, rules.lock),
     .help = "what the handler updates: batches are sorted by it, so that they do not deadlock"},
    {"business_key", SEMEL_SETTING_RULES, 0, SEMEL_SETTING_IN(semel_route, rules),
     .help = "what names the intent: a second message with it is prevented, whatever its id"},
    {"time", SEMEL_SETTING_RULE, 0, SEMEL_SETTING_IN(semel_route, rules.time),
     .default_note = "the time in the id (timed_ids), else the header ce_time",
     .help = "when the message was made; with this rule every message must have it"},
    {"values", SEMEL_SETTING_TEXTS, SEMEL_SETTING_FOR_SQL, SEMEL_SETTING_IN(semel_route, values),
     SEMEL_SETTING_RANGE(1, 512), .example = "[json:/order_id, json:/cents]",
     .help = "what $1, $2 ... of the statement are"},
    {"do", SEMEL_SETTING_ONE_OF, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_route, handler),
     .choices = semel__conf_handlers, .help = "what is done with a message"},
    {"retry", SEMEL_SETTING_GROUP, 0, .group = &retry_group,
     .help = "how often, and after which pauses, a failure is repeated"},
    {"keep", SEMEL_SETTING_GROUP, 0, .group = &keep_group, .help = "what is remembered, and for how long"},
    {"horizon", SEMEL_SETTING_GROUP, 0, SEMEL_SETTING_IN(semel_route, horizon), .group = &horizon_group,
     .help = "how long after its first delivery a message can come back: keep.completed must cover the sum"},
    {"gap", SEMEL_SETTING_GROUP, 0, .group = &gap_group, .help = "what happens when a version is missing"},
    {"parked", SEMEL_SETTING_GROUP, 0, .group = &parked_group,
     .help = "how much may wait in the store before reading pauses"},
    MEMBER("lease", "lease"),
    MEMBER("payload_max", "payload_max"),
    MEMBER("one_source", "one_source"),
    {"batch", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_route, batch), SEMEL_SETTING_RANGE(1, 10000),
     .default_text = "500", .help = "how many messages one transaction takes"},
    {"workers", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_route, workers), SEMEL_SETTING_RANGE(1, 64),
     .default_text = "1", .help = "how many threads, each with a connection of its own, handle messages"},
    {"unknown_max", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_route, unknown_max), SEMEL_SETTING_RANGE(1, 10000),
     .default_text = "100",
     .help =
         "how many unknown outcomes the consumer may have; then an http, exec or pull route takes nothing new until "
         "some are reconciled or resolved"},
    {"breaker", SEMEL_SETTING_GROUP, 0, SEMEL_SETTING_IN(semel_route, breaker), .group = &breaker_group,
     .help = "when a failing handler stops the route instead of filling the dead letters"},
};
static const struct semel_setting_group route_group = SEMEL_SETTING_GROUP_OF(NULL, route);

/* ---- the file ------------------------------------------------------------------------------------ */

static const char *const format_words[] = {"human", "json", NULL};
static const char *const level_words[] = {"debug", "info", "warn", "error", NULL};

static const struct semel_setting_spec admin[] = {
    {"listen", SEMEL_SETTING_ADDRESS, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_admin, server.address),
     .example = "127.0.0.1:9464", .help = "where /metrics, /healthz, /readyz and the admin API answer"},
    SEMEL_SETTING_TOKEN(
        semel_conf_admin, 0,
        "what operators must show for the admin API: Authorization: Bearer TOKEN; without a token it is closed, but "
        "open on a unix socket"),
    {"read_token", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET | SEMEL_SETTING_VISIBLE,
     SEMEL_SETTING_IN(semel_conf_admin, read_token), SEMEL_SETTING_RANGE(16, 1024),
     .help = "another token that opens only what reads"},
    SEMEL_SETTING_HOSTS(semel_conf_admin),
    SEMEL_SETTING_PLAIN(semel_conf_admin),
    SEMEL_SETTING_TLS_SERVER(semel_conf_admin),
};
static const struct semel_setting_group admin_group = SEMEL_SETTING_GROUP_OF(NULL, admin);

static const struct semel_setting_spec logging[] = {
    {"format", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_conf_log, format), .words = format_words,
     .default_text = "human", .help = "lines for people, or one JSON object per line"},
    {"level", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_conf_log, level), .words = level_words,
     .default_text = "info", .help = "the least important lines that are written"},
};
static const struct semel_setting_group log_group = SEMEL_SETTING_GROUP_OF(NULL, logging);

static const struct semel_setting_spec schedule[] = {
    {"every", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_schedule, every_us),
     SEMEL_SETTING_RANGE(10000, MINUTE_US), .default_text = "500ms",
     .help = "how often stored work that is due is looked for; up to eight times as rarely while nothing happens"},
    {"rows", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_schedule, rows), SEMEL_SETTING_RANGE(1, 10000),
     .default_text = "1000", .help = "how many rows are taken each time"},
    {"purge", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_schedule, purge_us),
     SEMEL_SETTING_RANGE(SECOND_US, DAY_US), .default_text = "1m", .help = "how often old records are deleted"},
    {"others", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_schedule, others), .default_text = "true",
     .help = "also end expired leases, decide gaps and purge for consumers that are no routes of this file, and for "
             "idempotency keys"},
};
static const struct semel_setting_group schedule_group = SEMEL_SETTING_GROUP_OF(NULL, schedule);

/* ---- outboxes ------------------------------------------------------------------------------------ */

static const struct semel_setting_spec outbox_retry[] = {
    {"max", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_outbox, retry_max), SEMEL_SETTING_RANGE(1, 1000),
     .default_text = "8", .help = "how often an event that the broker refuses is tried; then it is dead"},
    {"first", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_outbox, first_us), SEMEL_SETTING_RANGE(1000, HOUR_US),
     .default_text = "1s", .help = "the pause after the first refusal, and after a destination was found to be down"},
    {"ceiling", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_outbox, ceiling_us),
     SEMEL_SETTING_RANGE(1000, DAY_US), .default_text = "1m", .help = "the longest pause"},
};
static const struct semel_setting_group outbox_retry_group = SEMEL_SETTING_GROUP_OF(NULL, outbox_retry);

#define TABLE_COLUMN(setting, field, flags, ...)                                                                     \
    {                                                                                                                \
        setting, SEMEL_SETTING_TEXT, flags, SEMEL_SETTING_IN(semel_relay_table, field), SEMEL_SETTING_RANGE(1, 255), \
            .help = __VA_ARGS__                                                                                      \
    }
static const struct semel_setting_spec outbox_table[] = {
    TABLE_COLUMN(
        "name", name, SEMEL_SETTING_REQUIRED,
        "the table, as TABLE or SCHEMA.TABLE, in upper and lower case as the catalog has it; a part with a dot is "
        "written in quotes"),
    TABLE_COLUMN("order", order, SEMEL_SETTING_REQUIRED,
                 "the column that orders: a number, a time, a UUID or text; rows with the same value go by `id`"),
    TABLE_COLUMN("id", id, SEMEL_SETTING_REQUIRED,
                 "the column of the event's id, which never changes: a UUID, text or a number, unique"),
    TABLE_COLUMN("aggregatetype", aggregatetype, 0, "the column of the aggregate's type; not given: the table's name"),
    TABLE_COLUMN("aggregateid", aggregateid, 0,
                 "the column of the aggregate's id; not given: each event is an aggregate of its own, and nothing is "
                 "ordered"),
    TABLE_COLUMN("type", type, 0, "the column of the event's type; not given: the table's name"),
    TABLE_COLUMN("payload", payload, 0, "the column of the payload: jsonb, json, text or bytea"),
    TABLE_COLUMN("headers", headers, 0, "the column of the headers: a JSON object"),
    TABLE_COLUMN("destination", destination, 0, "the column that `{destination}` of `to` stands for"),
    TABLE_COLUMN("created_at", created_at, 0, "the column of the event's time, which `ce_time` carries"),
    TABLE_COLUMN("mark", mark, 0,
                 "the column that marks published events: a time (NULL: not published), a boolean, or one with "
                 "`unmarked` and `marked`; not given: published events are deleted"),
    TABLE_COLUMN("unmarked", unmarked, 0, "the value of `mark` in events that were not published, such as NEW"),
    TABLE_COLUMN("marked", marked, 0, "the value of `mark` that the relay sets, such as SENT"),
};
static const struct semel_setting_group outbox_table_group = SEMEL_SETTING_GROUP_OF(NULL, outbox_table);

static const struct semel_setting_spec outbox[] = {
    {"table", SEMEL_SETTING_GROUP, 0, SEMEL_SETTING_IN(semel_conf_outbox, table), .group = &outbox_table_group,
     .help = "a table of your own in place of the store's outbox, by the names of its columns"},
    {"to", SEMEL_SETTING_SINK, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_outbox, to),
     .help = "the broker, or the receivers, that the relay publishes events to"},
    {"keep", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_outbox, keep_us), SEMEL_SETTING_RANGE(0, YEARS_US),
     .default_text = "0s", .help = "how long published events are kept in outbox_sent; 0s: they are deleted"},
    {"retry", SEMEL_SETTING_GROUP, 0, .group = &outbox_retry_group, .help = "events that the broker refuses"},
    {"timeout", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_outbox, timeout_us),
     SEMEL_SETTING_RANGE(100000, 5 * MINUTE_US), .default_text = "5s",
     .help = "how long one call to the broker may take"},
    {"lease", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_outbox, lease_us),
     SEMEL_SETTING_RANGE(SECOND_US, 15 * MINUTE_US), .default_text = "15s",
     .help = "how long other relays wait for one that is gone; at least twice `timeout`"},
    {"in_flight", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_outbox, in_flight), SEMEL_SETTING_RANGE(0, 1),
     .default_text = "0",
     .help = "1: one event of an aggregate at a time, so that an aggregate never goes back; 0: as many as the broker "
             "takes whole or not at all"},
    {"batch", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_outbox, batch), SEMEL_SETTING_RANGE(10, 50000),
     .default_text = "4000", .help = "about how many events are read at a time"},
    {"notify", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_outbox, notify), .default_text = "false",
     .help = "the relay also listens for notifications, which sql/postgres/notify.sql turns on; PostgreSQL only, and "
             "not behind a transaction pooler"},
};
static const struct semel_setting_group outbox_group = SEMEL_SETTING_GROUP_OF(NULL, outbox);

/* ---- gateways ------------------------------------------------------------------------------------ */

static const char *const key_words[] = {"optional", "required", "off", NULL};
static const char *const scope_words[] = {"caller", "endpoint", NULL};
static const char *const down_words[] = {"refuse", "pass", NULL};
static const char *const unknown_words[] = {"refuse", "reconcile", "retry", NULL};

#define GUARD_BYTES(setting, field, least, text, ...)                                                \
    {                                                                                                \
        setting, SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_guard, field),                 \
            SEMEL_SETTING_RANGE(least, INT64_C(64) << 30), .default_text = text, .help = __VA_ARGS__ \
    }
static const struct semel_setting_spec guard[] = {
    {"match", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_guard, match),
     SEMEL_SETTING_RANGE(3, 1024), .example = "\"POST /v1/charges\"",
     .help = "methods and a path: POST /v1/charges, PUT|DELETE /v1/accounts/{id}, * /v1/{rest*}. The first rule that "
             "matches a request counts; without one, POST and PATCH are guarded if they have a key"},
    {"key", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_conf_guard, key), .words = key_words,
     .default_text = "optional",
     .help = "required: a request without a key is 400; optional: it passes unguarded; off: nothing is guarded"},
    {"key_header", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_conf_guard, key_header), SEMEL_SETTING_RANGE(1, 128),
     .default_text = "Idempotency-Key", .help = "the header that has the key, quoted or bare"},
    {"key_pointer", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_conf_guard, key_pointer), SEMEL_SETTING_RANGE(1, 512),
     .help = "where the key is in a JSON body, such as /idempotency_key, instead of the header"},
    {"key_scope", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_conf_guard, key_scope), .words = scope_words,
     .default_text = "caller",
     .help = "whose a key is: the caller's, so that the same key on another path is 422; or one per caller, method and "
             "path"},
    {"anonymous", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_guard, anonymous), .default_text = "false",
     .help = "requests whose caller is not known share one scope, and may get each other's answers; else they are 401"},
    {"when_down", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_conf_guard, when_down), .words = down_words,
     .default_text = "refuse",
     .help = "while the store is away requests are 503 (refuse), or pass unguarded (pass): then they may run twice"},
    {"store_body", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_guard, store_body), .default_text = "true",
     .help = "false: bodies of answers are not stored, and a replay has none"},
    {"ignore", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(semel_conf_guard, ignore), SEMEL_SETTING_RANGE(1, 512),
     .help = "JSON pointers to members that may differ between a request and its retry, such as /sent_at"},
    {"headers", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(semel_conf_guard, headers), SEMEL_SETTING_RANGE(1, 128),
     .help = "headers that may not differ between a request and its retry"},
    {"outcomes", SEMEL_SETTING_PAIRS, 0, SEMEL_SETTING_IN(semel_conf_guard, outcomes_said), SEMEL_SETTING_RANGE(1, 32),
     .help =
         "what becomes of the key, by status (404, 500-599): completed, released or unknown; before the common rule"},
    {"on_unknown", SEMEL_SETTING_WORD, 0, SEMEL_SETTING_IN(semel_conf_guard, on_unknown), .words = unknown_words,
     .default_text = "refuse",
     .help = "a retry of a request whose outcome is unknown: 409 (refuse); ask a URL first (reconcile); or run again, "
             "where the server behind honours the key itself (retry)"},
    {"reconcile", SEMEL_SETTING_URL, 0, SEMEL_SETTING_IN(semel_conf_guard, reconcile), .words = http_schemes,
     .help = "where to ask by GET what became of it; {key} and {caller} in it become those of the request"},
    {"settle", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_guard, settle_us),
     SEMEL_SETTING_RANGE(SECOND_US, 30 * DAY_US), .default_note = "twice the upstream's timeout",
     .help = "not_done of the reconcile counts only so long after the outcome became unknown: the first call may still "
             "be running"},
    {"wait", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_guard, wait_us), SEMEL_SETTING_RANGE(0, 5 * MINUTE_US),
     .default_text = "5s",
     .help = "how long a request whose key is running waits for that answer, before it is 409; at most the upstream's "
             "timeout"},
    {"waiters", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_guard, waiters), SEMEL_SETTING_RANGE(0, 1000),
     .default_text = "8", .help = "how many requests may wait for one key; more are 409 at once"},
    {"answer", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_guard, answer_us),
     SEMEL_SETTING_RANGE(SEMEL_ANSWER_US, SEMEL_KEEP_MAX_US), .default_text = "1d",
     .help = "how long the answer is kept after completion"},
    {"keep", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_guard, keep_us),
     SEMEL_SETTING_RANGE(SEMEL_ANSWER_US, SEMEL_KEEP_MAX_US), .default_text = "30d",
     .help = "how long the key is kept: a retry gets status and headers without the body; not below answer"},
    GUARD_BYTES("body_max", body_max, 1, "1048576", "bytes of a request's body; above it 413"),
    GUARD_BYTES("answer_max", answer_max, 0, "1048576",
                "bytes of an answer that is stored; above it, it is stored without its body"),
    GUARD_BYTES("held_max", held_max, 65536, "268435456",
                "bytes of all bodies and answers of this rule in memory; above it 503"),
};
static const struct semel_setting_group guard_group = SEMEL_SETTING_GROUP_OF(NULL, guard);

static const struct semel_setting_spec gateway_upstream[] = {
    {"url", SEMEL_SETTING_TEXT, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_upstream, url),
     SEMEL_SETTING_RANGE(6, 1024), .example = "http://127.0.0.1:8000",
     .help = "the server behind it: http://HOST:PORT, https://HOST:PORT or unix:/PATH"},
    {"timeout", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_upstream, timeout_us),
     SEMEL_SETTING_RANGE(100000, HOUR_US), .default_text = "30s",
     .help = "how long it may take to begin its answer; then the outcome is unknown"},
    {"connect", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_upstream, connect_us),
     SEMEL_SETTING_RANGE(10000, 5 * MINUTE_US), .default_text = "5s", .help = "how long it may take to connect"},
    {"finishes", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_upstream, finishes), .default_text = "false",
     .help =
         "it finishes each key by the header Semel-Token, in its own transaction on this store: then a late or doubled "
         "run cannot commit, and the gateway is ATOMIC"},
    {"plain", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_upstream, plain), .default_text = "false",
     .help = "plain HTTP to another host, on a network where nobody else is"},
    {"ca_file", SEMEL_SETTING_FILE, 0, SEMEL_SETTING_IN(semel_conf_upstream, ca_file),
     .help = "certificates of those who may sign for an https server; without it those of the system"},
};
static const struct semel_setting_group gateway_upstream_group = SEMEL_SETTING_GROUP_OF(NULL, gateway_upstream);

static const struct semel_setting_spec gateway_caller[] = {
    {"header", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_conf_caller, header), SEMEL_SETTING_RANGE(1, 128),
     .help = "a header that a proxy in front sets to the authenticated caller, such as X-User-Id; needs trusted_from"},
    {"trusted_from", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(semel_conf_caller, trusted_from),
     SEMEL_SETTING_RANGE(1, 64),
     .help = "networks whose header is believed, such as 127.0.0.1/32, or unix; that of all others is dropped"},
    {"api_key", SEMEL_SETTING_TEXT, 0, SEMEL_SETTING_IN(semel_conf_caller, api_key), SEMEL_SETTING_RANGE(1, 128),
     .help = "a header that has a static API key, whose digest is the caller; never a token that is renewed"},
    {"certificate", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf_caller, certificate), .default_text = "false",
     .help = "the subject of the client's certificate is the caller; needs tls.client_ca_file"},
    {"check", SEMEL_SETTING_URL, 0, SEMEL_SETTING_IN(semel_conf_caller, check), .words = http_schemes,
     .help =
         "asked by GET, with the client's Authorization, Cookie and API key, before an answer is replayed: 2xx lets it "
         "through, 401 and 403 are passed on"},
};
static const struct semel_setting_group gateway_caller_group = SEMEL_SETTING_GROUP_OF(NULL, gateway_caller);

_Static_assert(offsetof(struct semel_conf_gateway, n_guard) ==
                   offsetof(struct semel_conf_gateway, guard) + sizeof(struct semel_conf_guard *),
               "n_guard follows guard");
static const struct semel_setting_spec gateway[] = {
    {"listen", SEMEL_SETTING_ADDRESS, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_gateway, server.address),
     .example = "127.0.0.1:8081", .help = "where clients, or the proxy in front, connect"},
    {"upstream", SEMEL_SETTING_GROUP, SEMEL_SETTING_REQUIRED, SEMEL_SETTING_IN(semel_conf_gateway, upstream),
     .group = &gateway_upstream_group, .help = "the server behind it"},
    {"caller", SEMEL_SETTING_GROUP, 0, SEMEL_SETTING_IN(semel_conf_gateway, caller), .group = &gateway_caller_group,
     .help = "who sends a request: a key is a caller's. One of header, api_key and certificate"},
    {"guard", SEMEL_SETTING_GROUPS, 0, SEMEL_SETTING_IN(semel_conf_gateway, guard),
     SEMEL_SETTING_RANGE(1, SEMEL_CONF_GUARDS_MAX), .group = &guard_group, .item_size = sizeof(struct semel_conf_guard),
     .help = "what is guarded, and how"},
    {"trusted", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(semel_conf_gateway, trusted), SEMEL_SETTING_RANGE(1, 64),
     .help = "networks whose X-Forwarded-* headers are believed, such as 10.0.0.0/8, or unix"},
    {"cors", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(semel_conf_gateway, cors), SEMEL_SETTING_RANGE(8, 255),
     .help = "origins whose pages may read refusals, such as https://shop.example"},
    {"threads", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_gateway, threads), SEMEL_SETTING_RANGE(1, 64),
     .default_text = "1", .help = "how many loops share the address"},
    {"lease", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf_gateway, lease_us),
     SEMEL_SETTING_RANGE(SECOND_US, DAY_US), .default_text = "60s",
     .help =
         "how long a key is held for a process that is gone; renewed while its call runs. Longer than a call may take"},
    {"key_min", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_gateway, key_min), SEMEL_SETTING_RANGE(1, 255),
     .default_text = "8", .help = "the least characters of a key"},
    {"guarded_max", SEMEL_SETTING_NUMBER, 0, SEMEL_SETTING_IN(semel_conf_gateway, guarded_max),
     SEMEL_SETTING_RANGE(1, 1000000), .default_text = "10000", .help = "guarded requests at a time; above it 503"},
    SEMEL_SETTING_PLAIN(semel_conf_gateway),
    SEMEL_SETTING_TLS_SERVER(semel_conf_gateway),
};
static const struct semel_setting_group gateway_group = SEMEL_SETTING_GROUP_OF(NULL, gateway);

static const struct semel_setting_spec root[] = {
    {"store", SEMEL_SETTING_URL, SEMEL_SETTING_REQUIRED | SEMEL_SETTING_SECRET | SEMEL_SETTING_LITERAL,
     SEMEL_SETTING_IN(semel_conf, store), .words = store_schemes, .example = "sqlite:semel.db",
     .help = "the database that holds the inbox, and the effects of sql handlers"},
    {"store_plain", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(semel_conf, store_plain), .default_text = "false",
     .help = "allow a store on another host without sslmode=verify-full or verify-ca: anyone on the network path "
             "could take the password"},
    {"routes", SEMEL_SETTING_ROUTES, 0, SEMEL_SETTING_IN(semel_conf, routes), .example = "", .group = &route_group,
     .help = "by name; the name is the consumer's and part of every key"},
    {"outboxes", SEMEL_SETTING_OUTBOXES, 0, SEMEL_SETTING_IN(semel_conf, outboxes), .group = &outbox_group,
     .help = "by name; the relay publishes the events that applications put into the outbox of the store"},
    {"gateways", SEMEL_SETTING_GATEWAYS, 0, SEMEL_SETTING_IN(semel_conf, gateways), .group = &gateway_group,
     .help = "by name; a reverse proxy in front of one server, which guards idempotency keys"},
    {"admin", SEMEL_SETTING_GROUP, SEMEL_SETTING_SWITCH, SEMEL_SETTING_IN(semel_conf, admin), .group = &admin_group,
     .example = "", .help = "what can be seen and done over HTTP; without it: nothing"},
    {"log", SEMEL_SETTING_GROUP, 0, SEMEL_SETTING_IN(semel_conf, log), .group = &log_group,
     .help = "what is written to stderr"},
    {"schedule", SEMEL_SETTING_GROUP, 0, SEMEL_SETTING_IN(semel_conf, schedule), .group = &schedule_group,
     .help = "retries, recovery and purging, which every process does"},
    {"stop_within", SEMEL_SETTING_TIME, 0, SEMEL_SETTING_IN(semel_conf, stop_within_us),
     SEMEL_SETTING_RANGE(100000, HOUR_US), .default_text = "30s",
     .help = "how long a stop may take; what is not finished then is given back"},
};
const struct semel_setting_group semel__conf_root = SEMEL_SETTING_GROUP_OF(NULL, root);

/* ==== for people ====================================================================================
 *
 * The table of the settings, for people: a walk for docs/settings.md, and the file that `semel init` prints.
 *
 * Invariants: nothing is said here of any setting; both come from the table, and from core's where a setting is a
 * member of it. What `semel init` prints is a file that can be read (test_check reads every one).
 */

/* ---- names --------------------------------------------------------------------------------------- */

const char *semel__do_name(enum semel_do_kind kind)
{
    return semel__conf_handlers[kind]->name;
}

const struct semel_setting_group *semel__conf_choice(const struct semel_setting_spec *s, size_t i)
{
    if (s->kind == SEMEL_SETTING_SOURCE)
        return semel__broker_kinds[i] != NULL ? semel__broker_kinds[i]->from : NULL;
    if (s->kind == SEMEL_SETTING_SINK)
        return semel__sink_kinds[i] != NULL ? semel__sink_kinds[i]->to : NULL;
    return s->kind == SEMEL_SETTING_ONE_OF ? s->choices[i] : NULL;
}

bool semel__conf_bare(const struct semel_setting_group *choice)
{
    return choice->n == 1 && choice->settings[0].kind == SEMEL_SETTING_WORD && choice->settings[0].words[1] == NULL;
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

static void describe(const struct semel_setting_spec *s, struct described *d)
{
    *d = (struct described){.member = s->member};
    if (s->kind == SEMEL_SETTING_MEMBER) {
        semel__policy_members(on_member, d);
        return;
    }
    semel__conf_type(s, d->type, sizeof(d->type));
    if (s->default_text != NULL || s->default_note != NULL)
        snprintf(d->other, sizeof(d->other), "%s", s->default_text != NULL ? s->default_text : s->default_note);
    snprintf(d->help, sizeof(d->help), "%s", s->help);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

struct walk {
    void (*each)(void *ctx, const struct semel_conf_shown *shown);
    void *ctx;
};

static void walk_group(const struct walk *w, const struct semel_setting_group *group, const char *before,
                       const char *choice);

static void walk_setting(const struct walk *w, const struct semel_setting_spec *s, const char *before,
                         const char *choice)
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
        .computed = s->default_note != NULL,
        .help = d.help,
        .required = (s->flags & SEMEL_SETTING_REQUIRED) != 0,
        .secret = (s->flags & SEMEL_SETTING_SECRET) != 0,
        .group = s->kind >= SEMEL_SETTING_GROUP,
    };
    w->each(w->ctx, &shown);
    if (s->kind >= SEMEL_SETTING_ROUTES)
        snprintf(path + strlen(path), sizeof(path) - strlen(path), ".NAME");
    if (s->kind == SEMEL_SETTING_GROUPS)
        snprintf(path + strlen(path), sizeof(path) - strlen(path), "[]");
    if (s->group != NULL)
        walk_group(w, s->group, path, choice);
    for (size_t i = 0; semel__conf_choice(s, i) != NULL; i++)
        walk_group(w, semel__conf_choice(s, i), path, semel__conf_choice(s, i)->name);
}

/* As deep as the table. */
static void walk_group(const struct walk *w, const struct semel_setting_group *group, const char *before,
                       const char *choice)
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
    const struct semel_broker_kind *source;
    enum semel_do_kind handler;
    bool full; /* every setting with its meaning; else those that must be said, and hints */
};

static void write_group(const struct writer *w, const struct semel_setting_group *group, int indent, bool off);

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

static bool source_stored(const struct writer *w)
{
    return (w->source->flags & SEMEL_KIND_STORED) != 0;
}

static const char *sample(const struct writer *w, const struct semel_setting_spec *s)
{
    static const char *const samples[] = {
        [SEMEL_SETTING_RULE] = "json:/POINTER", [SEMEL_SETTING_RULES] = "json:/POINTER",
        [SEMEL_SETTING_TEXTS] = "[TEXT]",       [SEMEL_SETTING_PAIRS] = "{NAME: TEXT}",
        [SEMEL_SETTING_ADDRESS] = "HOST:PORT",  [SEMEL_SETTING_URL] = "URL",
        [SEMEL_SETTING_FILE] = "FILE",          [SEMEL_SETTING_PROGRAM] = "[PROGRAM]",
        [SEMEL_SETTING_TEXT] = "TEXT",
    };
    if (s->kind == SEMEL_SETTING_RULE && source_stored(w))
        return "stored";
    if ((s->flags & SEMEL_SETTING_SECRET) != 0)
        return "${VARIABLE}";
    if (s->kind == SEMEL_SETTING_WORD)
        return s->words[0];
    return s->kind < CONF_COUNT(samples) && samples[s->kind] != NULL ? samples[s->kind] : "VALUE";
}

static bool is_live(const struct writer *w, const struct semel_setting_spec *s)
{
    bool for_handler = (s->flags & SEMEL_SETTING_FOR_SQL) == 0 || w->handler == SEMEL_DO_SQL;
    return (s->flags & SEMEL_SETTING_REQUIRED) != 0 || (s->example != NULL && for_handler);
}

static void write_line(const struct writer *w, const struct semel_setting_spec *s, const struct described *d,
                       int indent, bool off)
{
    bool live = !off && s->example != NULL && is_live(w, s);
    const char *value = s->example;
    if (!live)
        value = d->other[0] != '\0' && s->default_note == NULL ? d->other : sample(w, s);
    semel__buf_addf(w->buf, "%*s%s%s: %s\n", indent, "", live ? "" : "#", s->name, value);
}

/* A message that is stored has its id: `order` alone is left to be hinted at. */
static bool is_hint(const struct writer *w, const struct semel_setting_spec *s)
{
    return (s->flags & SEMEL_SETTING_HINT) != 0 && !(source_stored(w) && s->default_note != NULL);
}

static void explain(const struct writer *w, const struct semel_setting_spec *s, const struct described *d, int indent)
{
    char text[512];
    snprintf(text, sizeof(text), "%s%s%s", d->help, s->default_note != NULL ? "; default: " : "",
             s->default_note != NULL ? s->default_note : "");
    if (indent == 0 && w->full)
        semel__buf_addz(w->buf, "\n");
    if (w->full || is_hint(w, s))
        comment(w, indent, text);
}

static void write_setting(const struct writer *w, const struct semel_setting_spec *s, int indent, bool off)
{
    struct described d;
    bool group = s->kind >= SEMEL_SETTING_GROUP;
    bool live = !off && is_live(w, s);
    if (!w->full && !live && !is_hint(w, s))
        return;
    describe(s, &d);
    explain(w, s, &d, indent);
    if (!group) {
        write_line(w, s, &d, indent, off);
        return;
    }
    if (s->kind == SEMEL_SETTING_SOURCE && semel__conf_bare(w->source->from)) {
        semel__buf_addf(w->buf, "%*s%s%s: %s\n", indent, "", live ? "" : "#", s->name, w->source->name);
        return;
    }
    semel__buf_addf(w->buf, "%*s%s%s:\n", indent, "", live ? "" : "#", s->name);
    if (s->kind >= SEMEL_SETTING_ROUTES) {
        indent += 2;
        semel__buf_addf(w->buf, "%*s%s" ROUTE ":\n", indent, "", live ? "" : "#");
    }
    const struct semel_setting_group *below = s->group;
    if (s->kind == SEMEL_SETTING_SOURCE)
        below = w->source->from;
    if (s->kind == SEMEL_SETTING_SINK)
        below = semel__sink_kinds[0]->to;
    if (s->kind == SEMEL_SETTING_ONE_OF)
        below = s->choices[w->handler];
    if (s->kind == SEMEL_SETTING_GROUPS) {
        indent += 2;
        semel__buf_addf(w->buf, "%*s%s-\n", indent, "", live ? "" : "#");
    }
    write_group(w, below, indent + 2, !live);
}

static void write_group(const struct writer *w, const struct semel_setting_group *group, int indent, bool off)
{
    for (size_t i = 0; i < group->n; i++)
        write_setting(w, &group->settings[i], indent, off);
}

void semel__conf_example(const struct semel_broker_kind *source, enum semel_do_kind handler, bool full,
                         struct semel_buf *buf)
{
    const struct writer w = {buf, source, handler, full};
    if (!full)
        semel__buf_addz(buf, "# Settings of `semel run`. `semel check FILE` finds mistakes and says what each route "
                             "promises.\n"
                             "# Everything else has a default: `semel init --full` and docs/settings.md explain it.\n");
    else
        semel__buf_addz(
            buf, "# Settings of `semel run`. `semel check FILE` finds mistakes and says what each route promises.\n"
                 "# ${VARIABLE} in a value is taken from the environment. A line with # and no blank behind it is\n"
                 "# a setting that is not said; what stands there is its default, or the form of its value.\n");
    write_group(&w, &semel__conf_root, 0, false);
}
