/* SPDX-License-Identifier: MIT
 *
 * test_conf.c: what is read from a file of settings, what comes from outside it, and what is refused of YAML.
 */
#include <unistd.h>

#include "broker/kafka.h"
#include "conf/private.h"
#include "core/consumer.h"
#include "unit/conf.h"

static const char whole[] =
    "store: ${DATABASE_URL}\n"
    "routes:\n"
    "  billing:                                  # the consumer's name\n"
    "    from: {kafka: \"k1:9092,k2:9092\", topic: [payments, refunds], group: g, offsets: store}\n"
    "    id: header:ce_id\n"
    "    type: header:ce_type\n"
    "    order: json:/order_id\n"
    "    version: json:/version\n"
    "    business_key: [json:/settlement_id, header:x]\n"
    "    values: [json:/order_id, json:/cents]\n"
    "    do:\n"
    "      sql: |\n"
    "        INSERT INTO ledger (order_id, cents)\n"
    "        VALUES ($1, $2::bigint)\n"
    "    retry: {max: 5, first: 2s, ceiling: 20m}\n"
    "    keep: {completed: 60d, payload: always, business: 90d}\n"
    "    gap: {first: any, timeout: 1m, then: alert}\n"
    "    lease: 90s\n"
    "    one_source: true\n"
    "    horizon: {broker: 14d, legal: 50d}\n"
    "    workers: 4\n"
    "  mailer:\n"
    "    from: {listen: 127.0.0.1:8090, token: \"${TOKEN}\"}\n"
    "    do: {http: \"https://mail.example/send\", idempotent: true, timeout: 5s, headers: {X-Team: shop,\n"
    "         Authorization: \"Bearer ${TOKEN}\"}}\n"
    "    timed_ids: true\n"
    "log: {format: json, level: warn}\n";

static const char *const whole_env[] = {"DATABASE_URL", "postgres://app:hunter2@db/shop?sslmode=verify-full", "TOKEN",
                                        "0123456789abcdefgh", NULL};

/* ---- what is read -------------------------------------------------------------------------------- */

static const struct semel_kafka_options *kafka_of(const struct semel_conf *conf)
{
    return conf->routes[0].from.options;
}

static void a_whole_file_becomes_typed_settings(void **state)
{
    struct reading reading = {.env = whole_env};
    struct semel_conf *conf = reading_ok(&reading, whole);
    const struct semel_route *a = &conf->routes[0], *b = &conf->routes[1];
    (void)state;
    assert_str(conf->store, "postgres://app:hunter2@db/shop?sslmode=verify-full");
    assert_str(conf->store_said, "${DATABASE_URL}");
    assert_int_equal(conf->store_kind, SEMEL_CONF_STORE_POSTGRES);
    assert_int_equal(conf->n_routes, 2);
    assert_str(a->name, "billing");
    assert_string_equal(a->from.kind->name, "kafka");
    const struct semel_kafka_options *kafka = a->from.options;
    assert_string_equal(kafka->brokers, "k1:9092,k2:9092");
    assert_int_equal(kafka->topics.n, 2);
    assert_str(kafka->topics.at[1], "refunds");
    assert_string_equal(kafka->group, "g");
    assert_int_equal(kafka->first, SEMEL_KAFKA_FIRST_EARLIEST);
    assert_int_equal(kafka->offsets, SEMEL_KAFKA_OFFSETS_STORE);
    assert_false(kafka->tls.on);
    assert_int_equal(a->rules.id.kind, SEMEL_RULE_HEADER);
    assert_str(a->rules.id.name, "ce_id");
    assert_int_equal(a->rules.n_business, 2);
    assert_str(a->rules.business[0].name, "/settlement_id");
    assert_int_equal(a->values.n, 2);
    assert_int_equal(a->handler.kind, SEMEL_DO_SQL);
    assert_str(a->handler.u.sql.statement, "INSERT INTO ledger (order_id, cents)\nVALUES ($1, $2::bigint)\n");
    assert_int_equal(a->workers, 4);
    assert_int_equal(a->batch, 500);
    const struct semel_listen_options *listen = semel__route_listens(b);
    assert_non_null(listen);
    assert_str(listen->server.address.text, "127.0.0.1:8090");
    assert_true(listen->server.address.local);
    assert_str(listen->server.token, "0123456789abcdefgh");
    assert_str(listen->path, "/mailer");
    assert_str(listen->source, "mailer");
    assert_int_equal(b->handler.kind, SEMEL_DO_HTTP);
    assert_true(b->handler.u.http.tls.on);
    assert_false(b->handler.u.http.tls.no_verify);
    assert_int_equal(b->handler.u.http.timeout_us, 5000000);
    assert_int_equal(b->handler.u.http.headers.n, 2);
    assert_str(b->handler.u.http.headers.at[1].value, "Bearer 0123456789abcdefgh");
    assert_int_equal(conf->log.format, SEMEL_LOG_JSON);
    assert_int_equal(conf->log.level, SEMEL_LOG_WARN);
    assert_int_equal(conf->stop_within_us, 30000000);
    assert_false(conf->admin.on);
    reading_done(&reading);
}

static void what_core_keeps_for_a_consumer_is_read_by_core(void **state)
{
    struct reading reading = {.env = whole_env};
    const struct semel_route *route = &reading_ok(&reading, whole)->routes[0];
    const struct semel_policy *policy = &route->policy;
    struct semel_policy stored;
    bool order_said = false;
    (void)state;
    assert_str(policy->consumer, "billing");
    assert_int_equal(policy->effect, SEMEL_EFFECT_ATOMIC);
    assert_true(policy->effect_said);
    assert_int_equal(policy->order, SEMEL_ORDER_VERSION);
    assert_int_equal(policy->first_version, SEMEL_FIRST_VERSION_ANY);
    assert_int_equal(policy->gap_timeout_us, 60000000);
    assert_int_equal(policy->on_gap, SEMEL_GAP_ALERT);
    assert_int_equal(policy->retry_max, 5);
    assert_int_equal(policy->permanent_max, 1);
    assert_int_equal(policy->retry_ceiling_us, INT64_C(1200000000));
    assert_int_equal(policy->lease_us, 90000000);
    assert_int_equal(policy->keep, SEMEL_KEEP_ALWAYS);
    assert_int_equal(policy->retention_us, INT64_C(60) * 86400 * 1000000);
    assert_int_equal(policy->business_retention_us, INT64_C(90) * 86400 * 1000000);
    assert_true(policy->one_source);
    /* What the route gives to the store is the same policy. */
    assert_int_equal(semel__policy_read(route->name, route->settings, &stored, &order_said, NULL), SEMEL_OK);
    assert_true(order_said);
    assert_int_equal(stored.retry_max, 5);
    assert_int_equal(stored.order, SEMEL_ORDER_VERSION);
    assert_int_equal(reading.conf->routes[1].policy.effect, SEMEL_EFFECT_KEYED);
    assert_int_equal(reading.conf->routes[1].policy.timed_ids, SEMEL_TIMED_ALL);
    assert_true(reading.conf->routes[1].rules.timed);
    reading_done(&reading);
}

/* A member of core that nobody can say in the file would silently stay what it is. */
static void find(const struct semel_setting_group *group, const char *member, bool *ret_found)
{
    for (size_t i = 0; i < group->n; i++) {
        const struct semel_setting_spec *s = &group->settings[i];
        *ret_found |= s->member != NULL && strcmp(s->member, member) == 0;
        if (s->group != NULL)
            find(s->group, member, ret_found);
    }
}

static void on_member(void *ctx, const char *name, const char *kind, const char *value, const char *help)
{
    bool found = false;
    (void)kind;
    (void)value;
    (void)help;
    ++*(int *)ctx;
    find(&semel__conf_root, name, &found);
    for (size_t i = 0; semel__conf_derived[i] != NULL; i++)
        found |= strcmp(semel__conf_derived[i], name) == 0;
    if (!found)
        fail_msg("core's member %s is neither in the table nor derived", name);
}

static void every_member_of_core_can_be_said_or_follows(void **state)
{
    int n = 0;
    (void)state;
    semel__policy_members(on_member, &n);
    assert_true(n > 10);
}

static void text_may_look_like_a_number_and_a_number_may_not_look_like_text(void **state)
{
    struct reading reading = {0};
    (void)state;
    struct semel_conf *conf = reading_ok(&reading, "store: sqlite:x.db\nroutes:\n  12:\n"
                                                   "    from: {kafka: \"k:1\", topic: 7, group: true}\n"
                                                   "    do: {sql: SELECT 1}\n");
    assert_str(conf->routes[0].name, "12");
    assert_str(kafka_of(conf)->topics.at[0], "7");
    assert_string_equal(kafka_of(conf)->group, "true");
    reading_done(&reading);
    reading_text(&reading, ROUTE_OF("    batch: \"5\"\n"));
    assert_non_null(strstr(reading.text.p, "routes.r.batch is \"5\"; it must be a whole number"));
    reading_done(&reading);
}

static void the_defaults_of_the_table_are_right_values(void **state)
{
    struct reading reading = {0};
    const struct semel_route *route = &reading_ok(&reading, ROUTE_OF(""))->routes[0];
    (void)state;
    assert_int_equal(kafka_of(reading.conf)->in_flight_max, 10000);
    assert_string_equal(kafka_of(reading.conf)->group, "r");
    assert_int_equal(route->breaker.failures, 10);
    assert_int_equal(route->horizon.broker_us, INT64_C(7) * 86400 * 1000000);
    assert_int_equal(reading.conf->schedule.rows, 1000);
    assert_int_equal(route->policy.retention_us, INT64_C(45) * 86400 * 1000000);
    assert_int_equal(route->policy.timed_ids, SEMEL_TIMED_UUID7);
    assert_false(route->rules.timed);
    reading_done(&reading);
}

/* ---- what comes from outside --------------------------------------------------------------------- */

static void a_variable_is_one_value_whatever_it_holds(void **state)
{
    const char *const env[] = {"T", "a\", group: b} # ${X}", "N", "7", NULL};
    struct reading reading = {.env = env};
    (void)state;
    struct semel_conf *conf = reading_ok(&reading, "store: sqlite:x.db\nroutes:\n  r:\n    workers: ${N}\n"
                                                   "    from: {kafka: \"k:9092\", topic: t, group: \"${T}\"}\n"
                                                   "    do: {exec: [cat, \"$${T} $5\"]}\n");
    assert_int_equal(conf->routes[0].workers, 7);
    assert_string_equal(kafka_of(conf)->group, "a\", group: b} # ${X}");
    assert_str(conf->routes[0].handler.u.exec.argv.at[1], "${T} $5");
    reading_done(&reading);
}

static void a_key_is_never_expanded(void **state)
{
    const char *const env[] = {"K", "batch", NULL};
    struct reading reading = {.env = env};
    (void)state;
    reading_text(&reading, ROUTE_OF("    ${K}: 5\n"));
    assert_int_equal(reading.status, SEMEL_INVALID);
    assert_non_null(strstr(reading.text.p, "has no setting \"${K}\""));
    reading_done(&reading);
}

static void what_is_wrong_with_a_variable_is_told_without_its_value(void **state)
{
    const char *const env[] = {"N", "hunter2", "U", "ftp://hunter2", "R", "hunter2:x", "BAD", "\xff", "E", "", NULL};
    struct reading reading = {.env = env};
    (void)state;
    reading_text(&reading, ROUTE_OF("    workers: ${N}\n    id: ${R}\n    type: ${BAD}\n    lease: ${N}\n"
                                    "    keep: {payload: \"${N}\"}\n    one_source: ${E}\n"
                                    "  s:\n    from: {sqs: \"${U}\", region: e, access_key: a, secret_key: \"${N}\"}\n"
                                    "    do: {exec: [\"${N}\"]}\n    lock_key: ${1}\n    version: ${UNSET}\n"));
    assert_int_equal(reading.status, SEMEL_INVALID);
    assert_int_equal(reading.mistakes.n, 10);
    assert_null(strstr(reading.text.p, "hunter2"));
    assert_non_null(strstr(reading.text.p, "the environment has no variable UNSET"));
    assert_non_null(strstr(reading.text.p, "${ must be followed by the name"));
    assert_non_null(strstr(reading.text.p, "workers is ${N}, with what that holds now; it must be a whole number"));
    reading_done(&reading);
}

static char *temporary(const char *content, size_t n)
{
    static char path[] = "/tmp/semel-conf-XXXXXX";
    snprintf(path, sizeof(path), "/tmp/semel-conf-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, n), n);
    close(fd);
    return path;
}

static void read_token(struct reading *reading, const char *file)
{
    char text[512];
    snprintf(text, sizeof(text), "%sadmin: {listen: \"localhost:1\", token_file: %s}\n", ROUTE_OF(""), file);
    reading_text(reading, text);
}

static void a_secret_comes_from_a_file_without_its_line_break(void **state)
{
    struct reading reading = {0};
    const char *path = temporary("0123456789 abcdef\r\n", 19);
    (void)state;
    read_token(&reading, path);
    assert_non_null(strstr(reading.text.p, "admin.token_file must have letters, digits and signs of ASCII only"));
    assert_null(strstr(reading.text.p, "012345"));
    reading_done(&reading);
    unlink(path);
    path = temporary("0123456789-abcdef\r\n", 19);
    read_token(&reading, path);
    assert_int_equal(reading.status, SEMEL_OK);
    assert_str(reading.conf->admin.server.token, "0123456789-abcdef");
    reading_done(&reading);
    reading.folder = "/tmp";
    read_token(&reading, strrchr(path, '/') + 1);
    assert_int_equal(reading.status, SEMEL_OK);
    reading_done(&reading);
    unlink(path);
}

static void a_secret_file_that_cannot_be_one_is_refused(void **state)
{
    static char large[70000];
    struct reading reading = {0};
    (void)state;
    memset(large, 'x', sizeof(large));
    const struct {
        const char *content;
        size_t n;
        const char *why;
    } cases[] = {
        {"", 0, "it is empty"},
        {"\n", 1, "it is empty"},
        {"a\0b", 3, "it is not UTF-8 text"},
        {large, sizeof(large), "it is too large for a secret"},
        {"short", 5, "has 5 bytes; it must have 16 to 1024"},
        {"0123456789abcdef\nmore", 21, "letters, digits and signs of ASCII only"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *path = temporary(cases[i].content, cases[i].n);
        read_token(&reading, path);
        assert_int_equal(reading.status, SEMEL_INVALID);
        assert_non_null(strstr(reading.text.p, cases[i].why));
        reading_done(&reading);
        unlink(path);
    }
    read_token(&reading, "/tmp");
    assert_non_null(strstr(reading.text.p, "it is not a regular file"));
    reading_done(&reading);
    read_token(&reading, "/dev/zero");
    assert_non_null(strstr(reading.text.p, "it is not a regular file"));
    reading_done(&reading);
}

/* ---- what YAML has and settings have not --------------------------------------------------------- */

static void refused(const char *text, const char *why)
{
    struct reading reading = {0};
    reading_text(&reading, text);
    assert_int_equal(reading.status, SEMEL_INVALID);
    if (strstr(reading.text.p, why) == NULL)
        fail_msg("%s\n%s", text, reading.text.p);
    reading_done(&reading);
}

static void anchors_aliases_tags_and_second_documents_are_refused_where_they_stand(void **state)
{
    (void)state;
    refused("a: &x [1, 1]\nb: &y [*x, *x]\nc: [*y, *y]\n", "semel.yaml:3:6: anchors and aliases have no meaning here");
    refused("store: !!str sqlite:x\n", "semel.yaml:1:8: tags have no meaning here");
    refused("&a store: x\n", "anchors and aliases have no meaning here");
    refused("store: x\n---\nstore: y\n", "semel.yaml:2:1: a second document begins here");
    refused("? [a, b]\n: c\n", "a key must be text");
    refused("<<: {store: x}\n", "has no setting \"<<\"");
}

static void what_is_no_file_of_settings_is_refused(void **state)
{
    (void)state;
    refused("", "the file says nothing; semel init prints one");
    refused("# nothing\n", "the file says nothing");
    refused("---\n", "the file says nothing");
    refused("just text\n", "the file must be a mapping");
    refused("[store, routes]\n", "the file must be a mapping");
    refused("store: [\n", "this is not YAML");
    refused("a: \"\\0\"\n", "has a NUL");
    refused("store: sqlite:x.db\nroutes: {}\n",
            "routes is an empty mapping; it must be a mapping of 1 to 256 names to routes");
    refused("store: sqlite:x.db\nroutes: {r: {from: {kafka: \"k:1\", topic: [a, b, a]}, do: {exec: [cat]}}}\n",
            "routes.r.from.topic has a topic twice; once is enough");
    refused("store: sqlite:x.db\nroutes: {r: {from: {kafka: \"k:1\", topic: a}, do: {exec: []}}}\n",
            "routes.r.do.exec is an empty list; it must be a program and its arguments");
    refused("store: sqlite:x.db\nroutes: {r: {from: {kafka: \"k:1\", topic: a}, do: {http: \"https://h/\", "
            "reconcile: \"https://h/{key}/{nope}\"}}}\n",
            "routes.r.do.reconcile: only {key} and {id} are replaced");
    refused("store: sqlite:x.db\nroutes: {r: }\n", "routes.r is empty; it must be a mapping");
    refused("store: sqlite:x.db\nroutes: {\"\": {}}\n", "the name of a route");
}

static void bytes_that_are_no_text_are_refused(void **state)
{
    struct reading reading = {0};
    (void)state;
    reading_bytes(&reading, SEMEL_STR("store: a\0b\n"));
    assert_non_null(strstr(reading.text.p, "semel.yaml:1:9: a byte that is no text stands here (0x00)"));
    reading_done(&reading);
    reading_bytes(&reading, SEMEL_STR("store: x\n#\xff\n"));
    assert_non_null(strstr(reading.text.p, "semel.yaml:2:2: a byte that is no text stands here (0xff)"));
    reading_done(&reading);
    reading_bytes(&reading, SEMEL_STR("store: \xe2\x80\xaex\n")); /* turns the text around */
    assert_non_null(strstr(reading.text.p, "semel.yaml:1:8: a byte that is no text"));
    reading_done(&reading);
}

static void depth_and_size_are_bounded(void **state)
{
    static char deep[2000], large[SEMEL_CONF_TEXT_MAX + 2];
    struct reading reading = {0};
    (void)state;
    memset(deep, '[', 900);
    refused(deep, "this is nested too deep; at most 16 levels");
    memset(large, '#', sizeof(large) - 1);
    refused(large, "the file has 1048577 bytes; at most 1048576 are allowed");
    struct semel_buf many;
    semel__buf_init(&many, SEMEL_CONF_TEXT_MAX);
    semel__buf_addz(&many, "store: [");
    for (int i = 0; i < CONF_NODES_MAX + 10; i++)
        semel__buf_addz(&many, "1,");
    semel__buf_addz(&many, "1]\n");
    reading_bytes(&reading, semel__buf_str(&many));
    assert_non_null(strstr(reading.text.p, "there is too much in this file"));
    reading_done(&reading);
    semel__buf_done(&many);
}

static void more_mistakes_than_are_kept_are_counted(void **state)
{
    static const struct {
        int n;
        const char *more, *all;
    } cases[] = {{70, "semel.yaml: 20 more mistakes are not shown", "there are 70 mistakes in the settings"},
                 {51, "semel.yaml: 1 more mistake is not shown", "there are 51 mistakes in the settings"},
                 {1, "zzzzz0", "there is 1 mistake in the settings"}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct reading reading = {0};
        struct semel_buf many;
        semel__buf_init(&many, SEMEL_CONF_TEXT_MAX);
        semel__buf_addz(&many, ROUTE_OF(""));
        for (int i = 0; i < cases[c].n; i++)
            semel__buf_addf(&many, "zzzzz%d: 1\n", i);
        reading_bytes(&reading, semel__buf_str(&many));
        assert_int_equal(reading.mistakes.n + reading.mistakes.more, cases[c].n);
        assert_true(reading.mistakes.n <= SEMEL_CONF_MISTAKES);
        assert_non_null(strstr(reading.text.p, cases[c].more));
        assert_non_null(strstr(reading.err.text, cases[c].all));
        reading_done(&reading);
        semel__buf_done(&many);
    }
}

static void each_failed_allocation_is_told_and_leaves_nothing_behind(void **state)
{
    struct fail_nth fail;
    bool reached = true;
    (void)state;
    for (unsigned at = 1; reached; at++) {
        struct reading reading = {.env = whole_env};
        fail_nth_begin(&fail, at);
        reading_text(&reading, whole);
        reached = fail_nth_end(&fail);
        if (reached && !reading.text.failed)
            assert_true(reading.status == SEMEL_RETRY || reading.status == SEMEL_OK);
        reading_done(&reading);
        assert_true(at < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_file_becomes_typed_settings),
        cmocka_unit_test(what_core_keeps_for_a_consumer_is_read_by_core),
        cmocka_unit_test(every_member_of_core_can_be_said_or_follows),
        cmocka_unit_test(text_may_look_like_a_number_and_a_number_may_not_look_like_text),
        cmocka_unit_test(the_defaults_of_the_table_are_right_values),
        cmocka_unit_test(a_variable_is_one_value_whatever_it_holds),
        cmocka_unit_test(a_key_is_never_expanded),
        cmocka_unit_test(what_is_wrong_with_a_variable_is_told_without_its_value),
        cmocka_unit_test(a_secret_comes_from_a_file_without_its_line_break),
        cmocka_unit_test(a_secret_file_that_cannot_be_one_is_refused),
        cmocka_unit_test(anchors_aliases_tags_and_second_documents_are_refused_where_they_stand),
        cmocka_unit_test(what_is_no_file_of_settings_is_refused),
        cmocka_unit_test(bytes_that_are_no_text_are_refused),
        cmocka_unit_test(depth_and_size_are_bounded),
        cmocka_unit_test(more_mistakes_than_are_kept_are_counted),
        cmocka_unit_test(each_failed_allocation_is_told_and_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
