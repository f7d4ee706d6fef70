/* SPDX-License-Identifier: MIT
 *
 * test_conf_promise.c: what a route promises by its settings: the guarantee, what its order rests on, the horizon and
 * the checklist.
 */
#include "unit/conf.h"

static const char *const env[] = {"TOKEN", "0123456789abcdefgh",
                                  "U",     "https://secret-host/",
                                  "DB",    "postgres://app:hunter2@db/shop?sslmode=verify-full",
                                  NULL};

#define FILE_OF(from, handler, more) "store: ${DB}\nroutes:\n  r:\n    from: {" from "}\n    do: {" handler "}\n" more
#define KAFKA "kafka: \"k:9092\", topic: t"
#define AMQP "amqp: \"amqp://h\", queue: q"
#define SQS "region: e, access_key: a, secret_key: \"${TOKEN}\", sqs: \"http://h/q"
#define LISTEN "listen: \"localhost:1\", token: \"${TOKEN}\""

static const struct {
    const char *file;
    enum semel_guarantee guarantee;
} labels[] = {
    {FILE_OF(KAFKA, "sql: SELECT 1", "    timed_ids: true\n"), SEMEL_GUARANTEE_ATOMIC},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    time: json:/at\n"), SEMEL_GUARANTEE_ATOMIC},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    business_key: json:/b\n"), SEMEL_GUARANTEE_ATOMIC},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    order: json:/o\n    version: json:/v\n"), SEMEL_GUARANTEE_ATOMIC},
    {FILE_OF(KAFKA, "exec: [cat]", "    timed_ids: true\n"), SEMEL_GUARANTEE_GUARDED},
    {FILE_OF(KAFKA, "exec: [cat], idempotent: true", "    timed_ids: true\n"), SEMEL_GUARANTEE_GUARDED},
    {FILE_OF(KAFKA, "http: \"https://h/\"", "    timed_ids: true\n"), SEMEL_GUARANTEE_GUARDED},
    {FILE_OF(KAFKA, "pull: \"localhost:2\", token: \"${TOKEN}\"", "    timed_ids: true\n"), SEMEL_GUARANTEE_GUARDED},
    /* The record may be forgotten while a copy can still come. */
    {FILE_OF(KAFKA, "sql: SELECT 1", ""), SEMEL_GUARANTEE_BOUNDED},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    timed_ids: false\n"), SEMEL_GUARANTEE_BOUNDED},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    timed_ids: uuidv7\n"), SEMEL_GUARANTEE_BOUNDED},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    timed_ids: ulid\n"), SEMEL_GUARANTEE_BOUNDED}, /* of some */
    {FILE_OF(KAFKA, "exec: [cat], idempotent: true", ""), SEMEL_GUARANTEE_BOUNDED},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    business_key: json:/b\n    keep: {business: 90d}\n"),
     SEMEL_GUARANTEE_BOUNDED},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    order: json:/o\n"), SEMEL_GUARANTEE_BOUNDED},
};

/* I18 */
static void the_guarantee_follows_from_the_handler_and_from_what_outlives_the_record(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(labels); i++) {
        struct reading reading = {.env = env};
        const struct semel_promise *promise = &reading_ok(&reading, labels[i].file)->routes[0].promise;
        if (promise->guarantee != labels[i].guarantee)
            fail_msg("%s\nis %s", labels[i].file, promise->label.text);
        for (int k = 0; k < SEMEL_CHECKLIST_COUNT; k++)
            assert_true(promise->answers[k].n > 0);
        assert_true(promise->why.n > 0);
        reading_done(&reading);
    }
}

static const struct {
    const char *file;
    enum semel_order_rests rests;
    const char *answer;
} orders[] = {
    {FILE_OF(KAFKA, "sql: SELECT 1", ""), SEMEL_ORDER_RESTS_NONE, "no order is asked for"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    order: json:/o\n"), SEMEL_ORDER_RESTS_SOURCE,
     "per json:/o: it rests on the order of a Kafka partition"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    order: json:/o\n    version: json:/v\n"), SEMEL_ORDER_RESTS_VERSIONS,
     "it rests on the versions in the messages"},
    {FILE_OF(AMQP, "sql: SELECT 1", "    order: json:/o\n"), SEMEL_ORDER_RESTS_NONE,
     "it rests on nothing: the queue has several consumers"},
    {FILE_OF(AMQP ", single_active: true", "sql: SELECT 1", "    order: json:/o\n"), SEMEL_ORDER_RESTS_SOURCE,
     "a single active consumer"},
    {FILE_OF(SQS "\"", "sql: SELECT 1", "    order: json:/o\n"), SEMEL_ORDER_RESTS_NONE, "rests on nothing"},
    {FILE_OF(SQS ".fifo\"", "sql: SELECT 1", "    order: json:/o\n"), SEMEL_ORDER_RESTS_SOURCE, "a FIFO message group"},
    {FILE_OF(LISTEN, "sql: SELECT 1", "    order: json:/o\n"), SEMEL_ORDER_RESTS_NONE, "requests may overtake"},
};

static void what_the_order_rests_on_follows_from_the_source_and_the_rules(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(orders); i++) {
        struct reading reading = {.env = env};
        const struct semel_promise *promise = &reading_ok(&reading, orders[i].file)->routes[0].promise;
        assert_int_equal(promise->order, orders[i].rests);
        if (strstr(promise->answers[SEMEL_CHECKLIST_ORDER].p, orders[i].answer) == NULL)
            fail_msg("%s\n%s", orders[i].file, promise->answers[SEMEL_CHECKLIST_ORDER].p);
        reading_done(&reading);
    }
}

static const struct {
    const char *file;
    enum semel_checklist item;
    const char *answer;
} answers[] = {
    {FILE_OF(KAFKA, "sql: SELECT 1", "    id: header:ce_id\n"), SEMEL_CHECKLIST_KEY,
     "consumer, source and id; the id is header:ce_id"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    one_source: true\n"), SEMEL_CHECKLIST_KEY,
     "consumer and id; the id is ce_id, id, message_id or webhook-id, whichever comes first"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    id: position\n"), SEMEL_CHECKLIST_KEY, "when a producer sends twice"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    id: digest\n"), SEMEL_CHECKLIST_KEY, "two events with one payload are one"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    business_key: [json:/a, json:/b]\n"), SEMEL_CHECKLIST_BUSINESS,
     "json:/a json:/b, kept for ever"},
    {FILE_OF(KAFKA, "sql: SELECT 1", ""), SEMEL_CHECKLIST_CONNECTION,
     "no TLS: messages can be read on the network; no login"},
    {FILE_OF(KAFKA ", sasl: {mechanism: plain, user: \"${U}\", password: \"${TOKEN}\"}", "sql: SELECT 1", ""),
     SEMEL_CHECKLIST_CONNECTION,
     "no TLS: messages and the password can be read on the network; login as ${U}, by PLAIN"},
    {FILE_OF(KAFKA ", tls: {}, sasl: {mechanism: scram-sha-512, user: u, password: \"${TOKEN}\"}", "sql: SELECT 1", ""),
     SEMEL_CHECKLIST_CONNECTION, "TLS; login as u, by SCRAM-SHA-512"},
    {FILE_OF("amqp: \"amqps://h\", queue: q, tls: {verify: false}", "sql: SELECT 1", ""), SEMEL_CHECKLIST_CONNECTION,
     "TLS, but a man in the middle can impersonate the server: verify is off"},
    {FILE_OF(AMQP, "sql: SELECT 1", ""), SEMEL_CHECKLIST_CONNECTION, "no TLS: messages and the password"},
    {FILE_OF("amqp: \"amqps://h\", queue: q", "sql: SELECT 1", ""), SEMEL_CHECKLIST_CONNECTION, "TLS"},
    {FILE_OF(SQS "\"", "sql: SELECT 1", ""), SEMEL_CHECKLIST_CONNECTION,
     "no TLS: messages can be read on the network; requests are signed"},
    {FILE_OF(LISTEN, "sql: SELECT 1", ""), SEMEL_CHECKLIST_CONNECTION, "a token; only this machine can reach it"},
    {FILE_OF(KAFKA, "sql: SELECT 1", ""), SEMEL_CHECKLIST_STORE, "PostgreSQL, ${DB}"},
    {FILE_OF(KAFKA ", offsets: store", "sql: SELECT 1", ""), SEMEL_CHECKLIST_TRANSACTION,
     "and the offset is stored there too"},
    {FILE_OF(KAFKA, "exec: [cat]", ""), SEMEL_CHECKLIST_TRANSACTION, "no: a committed claim before the effect"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    timed_ids: true\n    horizon: {broker: 10d}\n"), SEMEL_CHECKLIST_RETENTION,
     "45d against a horizon of 33d (broker 10d + outbox 1d + outage 3d + dead letters 14d + margin 5d); the age of"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    timed_ids: true\n    horizon: {broker: forever}\n"),
     SEMEL_CHECKLIST_RETENTION, "45d against a horizon of for ever; the age of every message is known"},
    {FILE_OF(KAFKA, "sql: SELECT 1", ""), SEMEL_CHECKLIST_OUTSIDE, "none"},
    {FILE_OF(KAFKA, "http: \"${U}\"", ""), SEMEL_CHECKLIST_OUTSIDE,
     "POST ${U} with Idempotency-Key, the same on every retry; a 5xx is an unknown outcome, because it may come after "
     "the effect, unless the answer has Semel-Outcome, or do.transient lists it; an unknown outcome waits for a "
     "person"},
    /* A10 */
    {FILE_OF(KAFKA, "http: \"${U}\", transient: [503, 529]", ""), SEMEL_CHECKLIST_OUTSIDE,
     "after the effect, but 503 529, after which nothing was done, as do.transient says, and but where the answer has "
     "Semel-Outcome; an unknown outcome waits for a person"},
    {FILE_OF(KAFKA, "http: \"${U}\", idempotent: true", ""), SEMEL_CHECKLIST_OUTSIDE,
     "a 5xx is repeated, because the other side honours the key; an unknown outcome is repeated under the same key"},
    {FILE_OF(KAFKA, "http: \"${U}\"", "    unknown_max: 7\n"), SEMEL_CHECKLIST_FAILURES,
     "10 failures in a row stop the route, and 7 unknown outcomes keep it from taking new messages"},
    /* B8 */
    {FILE_OF(KAFKA, "http: \"http://h/\", plain: true", ""), SEMEL_CHECKLIST_OUTSIDE,
     "; without TLS, as do.plain says: messages can be read on the network; a 5xx"},
    {"store: postgres://app@db/shop\nstore_plain: true\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     SEMEL_CHECKLIST_STORE,
     "PostgreSQL, postgres://app@db/shop, whose certificate need not be checked: store_plain is"},
    {FILE_OF(KAFKA, "http: \"https://h/\", reconcile: \"https://h/ask\"", ""), SEMEL_CHECKLIST_OUTSIDE,
     "an unknown outcome is asked for at https://h/ask"},
    {FILE_OF(KAFKA, "exec: [cat, -u], idempotent: true", ""), SEMEL_CHECKLIST_OUTSIDE,
     "runs cat -u with SEMEL_KEY, the same on every retry; an unknown outcome is repeated under the same key"},
    {FILE_OF(KAFKA, "sql: SELECT 1", "    retry: {max: 3, permanent: 2}\n"), SEMEL_CHECKLIST_FAILURES,
     "3 attempts, with pauses up to 10m, then a dead letter; a permanent failure after 2"},
};

static void the_checklist_is_answered_without_what_came_from_outside(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(answers); i++) {
        struct reading reading = {.env = env};
        const struct semel_promise *promise = &reading_ok(&reading, answers[i].file)->routes[0].promise;
        const char *answer = promise->answers[answers[i].item].p;
        if (strstr(answer, answers[i].answer) == NULL)
            fail_msg("%s\n%s", answers[i].file, answer);
        for (int k = 0; k < SEMEL_CHECKLIST_COUNT; k++) {
            assert_null(strstr(promise->answers[k].p, "hunter2"));
            assert_null(strstr(promise->answers[k].p, "secret-host"));
        }
        reading_done(&reading);
    }
}

/* I18: the sum of the parts, or the legal minimum; the figure that is told is taken when it is said. */
static void the_figure_that_would_do_does(void **state)
{
    static const char *const horizons[] = {"{broker: 60d}", "{legal: 400d}", "{broker: 60d, margin: 1us}",
                                           "{outage: 36500m, dead_letters: 100d}"};
    (void)state;
    for (size_t i = 0; i < COUNT(horizons); i++) {
        struct reading reading = {.env = env};
        char file[512], figure[32];
        snprintf(file, sizeof(file), FILE_OF(KAFKA, "sql: SELECT 1", "    horizon: %s\n"), horizons[i]);
        reading_text(&reading, file);
        assert_int_equal(reading.status, SEMEL_INVALID);
        assert_int_equal(reading.mistakes.n, 1);
        const char *text = reading.mistakes.at[0].text.p, *end = strstr(text, " would do");
        assert_non_null(end);
        const char *start = end;
        while (start[-1] != ' ')
            start--;
        snprintf(figure, sizeof(figure), "%.*s", (int)(end - start), start);
        reading_done(&reading);
        snprintf(file, sizeof(file), FILE_OF(KAFKA, "sql: SELECT 1", "    horizon: %s\n    keep: {completed: %s}\n"),
                 horizons[i], figure);
        reading_ok(&reading, file);
        reading_done(&reading);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_guarantee_follows_from_the_handler_and_from_what_outlives_the_record),
        cmocka_unit_test(what_the_order_rests_on_follows_from_the_source_and_the_rules),
        cmocka_unit_test(the_checklist_is_answered_without_what_came_from_outside),
        cmocka_unit_test(the_figure_that_would_do_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
