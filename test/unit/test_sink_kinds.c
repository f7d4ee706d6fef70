/* SPDX-License-Identifier: MIT
 *
 * test_sink_kinds.c: the settings of sinks, as a reader of settings files walks them: their tables, what one says
 * against another, and what is opened by them.
 */
#include "base/error.h"
#include "broker/kind.h"
#include "unit/unit.h"

#define OPTIONS_MAX 1024

struct wrong {
    struct semel_setting_check base;
    char setting[64], text[512];
    int n;
};

static void note_wrong(const struct semel_setting_check *check, const char *setting, const char *text)
{
    struct wrong *wrong = (struct wrong *)(uintptr_t)check;

    snprintf(wrong->setting, sizeof wrong->setting, "%s", setting);
    snprintf(wrong->text, sizeof wrong->text, "%s", text);
    wrong->n++;
}

static bool nothing_given(const struct semel_setting_check *check, const char *setting)
{
    (void)check, (void)setting;
    return false;
}

static void show_nothing(const struct semel_setting_check *check, const char *setting, char *out, size_t size)
{
    (void)check, (void)setting;
    if (size > 0)
        out[0] = '\0';
}

/* Writes a value where the table says, as the reader does: a text, or a list. */
static void put(const struct semel_broker_kind *kind, char *options, const char *name, const struct semel_str *values,
                size_t n)
{
    for (size_t i = 0; i < kind->to->n; i++) {
        const struct semel_setting_spec *s = &kind->to->settings[i];
        const struct semel_setting_list list = {values, n};
        if (strcmp(s->name, name) != 0)
            continue;
        assert_true(s->offset + s->size <= kind->to_options_size);
        if (s->kind == SEMEL_SETTING_TEXTS)
            memcpy(options + s->offset, &list, s->size);
        else if (s->size == sizeof values[0].p)
            memcpy(options + s->offset, &values[0].p, s->size);
        else
            memcpy(options + s->offset, &values[0], s->size);
        return;
    }
    fail_msg("%s has no %s", kind->name, name);
}

struct value {
    const char *name, *text, *more; /* of a list: two */
};

struct sink_case {
    const char *kind;
    struct value values[8];
    const char *setting; /* that is wrong; NULL: none */
    const char *says;    /* a part of the text */
};

#define KAFKA                            \
    {                                    \
        "kafka", "k1:9092,k2:9092", NULL \
    }
#define SECRET                                                   \
    {                                                            \
        "secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", NULL \
    }
#define SQS                                                                                             \
    {"sqs", "https://sqs.eu-central-1.amazonaws.com/1/orders", NULL}, {"region", "eu-central-1", NULL}, \
        {"access_key", "a", NULL},                                                                      \
    {                                                                                                   \
        "secret_key", "b", NULL                                                                         \
    }

static const struct sink_case cases[] = {
    {"kafka", {KAFKA, {"topic", "orders", NULL}}, NULL, NULL},
    {"kafka",
     {KAFKA, {"topic", "{aggregatetype}.events", NULL}, {"topics", "order.events", "refund.events"}},
     NULL,
     NULL},
    {"kafka", {KAFKA, {"topic", "{aggregatetype}.events", NULL}}, "topic", "topics"},
    {"kafka", {KAFKA, {"topic", "{aggregate}.events", NULL}, {"topics", "order.events", NULL}}, "topic", "{type}"},
    {"kafka", {KAFKA, {"topic", "{type}", NULL}, {"topics", "order events", NULL}}, "topics", "letters"},
    {"kafka", {{"kafka", "k1", NULL}, {"topic", "orders", NULL}}, "kafka", "HOST:PORT"},
    {"amqp", {{"amqp", "amqp://localhost/", NULL}, {"routing_key", "orders", NULL}}, NULL, NULL},
    {"amqp",
     {{"amqp", "amqp://localhost/", NULL},
      {"exchange", "events", NULL},
      {"routing_key", "{type}", NULL},
      {"routing_keys", "Placed", "Paid"}},
     NULL,
     NULL},
    {"amqp", {{"amqp", "amqp://localhost/", NULL}, {"routing_key", "{type}", NULL}}, "routing_key", "routing_keys"},
    {"sqs", {SQS}, NULL, NULL},
    {"sqs", {SQS, {"queue", "{type}", NULL}, {"queues", "Placed", "Paid"}}, NULL, NULL},
    {"sqs", {SQS, {"queue", "{type}", NULL}}, "queue", "queues"},
#ifdef SEMEL_WITH_WEBHOOK
    {"webhook", {SECRET, {"webhook", "https://hooks.example/a", NULL}}, NULL, NULL},
    {"webhook",
     {SECRET, {"webhook", "{destination}", NULL}, {"urls", "https://a.example/", "http://b.example/"}},
     NULL,
     NULL},
    {"webhook", {SECRET, {"webhook", "{destination}", NULL}}, "webhook", "urls"},
    {"webhook",
     {SECRET, {"webhook", "{destination}", NULL}, {"urls", "https://a.example/", "file:///b"}},
     "webhook",
     "https://"},
    {"webhook", {{"secret", "hunter2", NULL}, {"webhook", "https://hooks.example/a", NULL}}, "secret", "whsec_"},
    {"webhook",
     {SECRET, {"webhook", "https://hooks.example/a", NULL}, {"allow", "10.0.0.0/8", "10.0.0/8"}},
     "allow",
     "network"},
#endif
};

static void run_case(const struct sink_case *c)
{
    const struct semel_broker_kind *kind = semel__sink_kind(semel__str(c->kind));
    _Alignas(max_align_t) char options[OPTIONS_MAX] = {0};
    struct semel_str values[8][2];
    struct wrong wrong = {.base = {.path = "outboxes.orders.to",
                                   .route = SEMEL_STR("orders"),
                                   .given = nothing_given,
                                   .show = show_nothing,
                                   .wrong = note_wrong}};
    struct semel_broker *broker = NULL;
    struct semel_error err = {0};

    assert_non_null(kind);
    assert_true(kind->to_options_size <= sizeof options);
    for (size_t i = 0; i < 8 && c->values[i].name != NULL; i++) {
        const struct value *value = &c->values[i];
        values[i][0] = semel__str(value->text);
        if (value->more != NULL)
            values[i][1] = semel__str(value->more);
        put(kind, options, value->name, values[i], value->more != NULL ? 2 : 1);
    }
    kind->to_check(options, &wrong.base);
    if (c->setting == NULL && wrong.n > 0)
        fail_msg("%s: %s", c->kind, wrong.text);
    if (c->setting != NULL && (strcmp(wrong.setting, c->setting) != 0 || strstr(wrong.text, c->says) == NULL))
        fail_msg("%s: %s is expected to be wrong, but: %s: %s", c->kind, c->setting, wrong.setting, wrong.text);
    assert_null(strstr(wrong.text, "hunter2"));
    if (c->setting != NULL || kind->open_sink == NULL)
        return;
    assert_true(semel__str_given(((const struct semel_sink_options *)(const void *)options)->destination));
    if (kind->open_sink(&broker, options, NULL, &err) != SEMEL_OK)
        fail_msg("%s: %s", c->kind, err.text);
    assert_true((broker->ops->capabilities & SEMEL_BROKER_SINK) != 0);
    assert_int_equal((broker->ops->capabilities & SEMEL_BROKER_RUNS) != 0, (kind->flags & SEMEL_KIND_RUNS) != 0);
    semel_broker_close(broker);
}

static void settings_of_a_sink_are_checked_and_open_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        run_case(&cases[i]);
}

/* What two relays compare, besides the names of destinations. */
static void assert_places(const char *name, const struct value a[3], const struct value b[3], bool same)
{
    const struct semel_broker_kind *kind = semel__sink_kind(semel__str(name));
    _Alignas(max_align_t) char options[2][OPTIONS_MAX] = {{0}};
    struct semel_str place[2][SEMEL_SINK_PLACE_PARTS] = {{{0}}};
    bool equal = true;

    for (size_t i = 0; i < 3; i++) {
        const struct semel_str values[2] = {semel__str(a[i].text), semel__str(b[i].text)};
        if (a[i].name != NULL)
            put(kind, options[0], a[i].name, &values[0], 1);
        if (b[i].name != NULL)
            put(kind, options[1], b[i].name, &values[1], 1);
    }
    kind->to_place(options[0], place[0]);
    kind->to_place(options[1], place[1]);
    for (size_t i = 0; i < SEMEL_SINK_PLACE_PARTS; i++) {
        equal &= semel__str_eq(place[0][i], place[1][i]);
        assert_true(place[0][i].p == NULL || strstr(place[0][i].p, "hunter2") == NULL);
    }
    assert_int_equal(equal, same);
}

/* P115 */
static void place_of_a_sink_is_its_server_and_has_no_secret(void **state)
{
    static const struct value k1[3] = {{"kafka", "k1:9092", NULL}}, k2[3] = {{"kafka", "k2:9092", NULL}},
                              mq[3] = {{"amqp", "amqp://a:hunter2@mq/shop", NULL}, {"password", "hunter2", NULL}},
                              mq_user[3] = {{"amqp", "amqps://b:other@mq/shop", NULL}},
                              mq_odd[3] = {{"amqp", "amqp://a:hunter2@b@mq/shop", NULL}},
                              mq_vhost[3] = {{"amqp", "amqp://mq/shop@two", NULL}},
                              mq_host[3] = {{"amqp", "amqp://a:hunter2@mq2/shop", NULL}},
                              mq_to[3] = {{"amqp", "amqp://mq/shop", NULL}, {"exchange", "events", NULL}},
                              sqs[3] = {{"sqs", "https://sqs.example/1/orders", NULL},
                                        {"region", "eu-central-1", NULL},
                                        {"secret_key", "hunter2", NULL}},
                              sqs_url[3] = {{"sqs", "https://sqs.example/2/orders", NULL},
                                            {"region", "eu-central-1", NULL}},
                              sqs_region[3] = {{"sqs", "https://sqs.example/1/orders", NULL},
                                               {"region", "eu-west-1", NULL}};
    (void)state;
    assert_places("kafka", k1, k1, true);
    assert_places("kafka", k1, k2, false);
    assert_places("amqp", mq, mq_user, true);
    assert_places("amqp", mq_odd, mq, true);
    assert_places("amqp", mq, mq_vhost, false);
    assert_places("amqp", mq, mq_host, false);
    assert_places("amqp", mq, mq_to, false);
    assert_places("sqs", sqs, sqs, true);
    assert_places("sqs", sqs, sqs_url, false);
    assert_places("sqs", sqs, sqs_region, false);
}

static void every_sink_is_described(void **state)
{
    (void)state;
    for (size_t i = 0; semel__sink_kinds[i] != NULL; i++) {
        const struct semel_broker_kind *kind = semel__sink_kinds[i];
        assert_string_equal(kind->to->name, kind->name);
        assert_string_equal(kind->to->settings[0].name, kind->name);
        assert_true((kind->to->settings[0].flags & SEMEL_SETTING_REQUIRED) != 0);
        assert_non_null(kind->to_check);
        assert_non_null(kind->to_connection);
        for (size_t k = 0; k < kind->to->n; k++)
            assert_true(kind->to->settings[k].help != NULL && kind->to->settings[k].size > 0);
    }
    assert_null(semel__sink_kind(SEMEL_STR("listen")));
    assert_null(semel__broker_kind(SEMEL_STR("webhook")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sink_is_described),
        cmocka_unit_test(settings_of_a_sink_are_checked_and_open_it),
        cmocka_unit_test(place_of_a_sink_is_its_server_and_has_no_secret),
    };

    return cmocka_run_group_tests_name("sink_kinds", tests, NULL, NULL);
}
