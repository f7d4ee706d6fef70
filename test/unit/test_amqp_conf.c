/* SPDX-License-Identifier: MIT
 *
 * test_amqp_conf.c: the URL and the options of the AMQP driver, good and bad; nothing is connected.
 */
#include "broker/amqp_private.h"
#include "unit/unit.h"

static void parts_of_the_url_are_found(void **state)
{
    static const struct {
        const char *url, *user, *password, *host, *vhost;
        int port;
        bool tls;
    } rows[] = {
        {"amqp://h", "guest", "guest", "h", "/", 5672, false},
        {"amqps://h/", "guest", "guest", "h", "/", 5671, true},
        {"amqp://", "guest", "guest", "localhost", "/", 5672, false},
        {"amqp://u:p@h:1/v", "u", "p", "h", "v", 1, false},
        {"amqp://u@h/%2f", "u", "guest", "h", "/", 5672, false},
        {"amqp://a%40b:p%3A%2f%C3%A4@h:65535/v%20w", "a@b", "p:/\xC3\xA4", "h", "v w", 65535, false},
        {"amqp://u:p@[::1]:7/v", "u", "p", "::1", "v", 7, false},
        {"amqp://[::1]", "guest", "guest", "::1", "/", 5672, false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct semel_amqp_options options = {.url = rows[i].url, .queue = "q"};
        struct amqp_conf conf;
        assert_int_equal(semel__amqp_configure(&conf, &options, NULL), SEMEL_OK);
        assert_string_equal(conf.user, rows[i].user);
        assert_string_equal(conf.password, rows[i].password);
        assert_string_equal(conf.host, rows[i].host);
        assert_string_equal(conf.vhost, rows[i].vhost);
        assert_int_equal(conf.port, rows[i].port);
        assert_int_equal(conf.tls, rows[i].tls);
        semel__amqp_conf_done(&conf);
    }
}

static void bad_url_is_refused_and_its_password_not_told(void **state)
{
    static const char *const urls[] = {
        "",
        "http://h",
        "amqp:h",
        "amqp:/h",
        "amqp://u:secret@h:0",
        "amqp://h:",
        "amqp://h:65536",
        "amqp://h:5x",
        "amqp://u:secret%@h",
        "amqp://u:secret%00@h",
        "amqp://[::1",
        "amqp://[::1]x",
        "amqp://h/a/b",
        "amqp://h/v?x=secret",
        "amqp://u:secret @h",
        "amqp://h/v#f",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(urls); i++) {
        const struct semel_amqp_options options = {.url = urls[i]};
        struct semel_broker *broker = NULL;
        struct semel_error err = {0};
        assert_int_equal(semel__broker_amqp_open(&broker, &options, &err), SEMEL_INVALID);
        assert_null(broker);
        assert_int_equal(err.cls, SEMEL_CLASS_BROKEN);
        assert_non_null(strstr(err.text, "amqp"));
        assert_null(strstr(err.text, "secret"));
    }
}

static void options_out_of_range_are_refused(void **state)
{
    static char long_name[257];
    const struct semel_amqp_options rows[] = {
        {.url = NULL},
        {.url = "amqp://h", .queue = ""},
        {.url = "amqp://h", .queue = long_name},
        {.url = "amqp://h", .prefetch = -1},
        {.url = "amqp://h", .prefetch = 65536},
        {.url = "amqp://h", .heartbeat_us = INT64_C(600000001)},
        {.url = "amqp://h", .timeout_ms = -1},
        {.url = "amqp://h", .password = "p"},
        {.url = "amqp://h", .user = long_name},
        {.url = "amqps://h", .tls.cert_file = "c"},
        {.url = "amqps://h", .tls.key_file = "k"},
    };

    (void)state;
    memset(long_name, 'n', 256);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct amqp_conf conf;
        assert_int_equal(semel__amqp_configure(&conf, &rows[i], NULL), SEMEL_INVALID);
        assert_null(conf.text);
    }
}

static void options_are_kept_and_a_heartbeat_is_whole_seconds(void **state)
{
    const struct semel_amqp_options options = {.url = "amqps://u:p@h/v",
                                               .queue = "a&b",
                                               .prefetch = 7,
                                               .single_active = true,
                                               .declare = SEMEL_AMQP_DECLARE_QUORUM,
                                               .heartbeat_us = 2100000,
                                               .timeout_ms = 400};
    struct amqp_conf conf;

    (void)state;
    assert_int_equal(semel__amqp_configure(&conf, &options, NULL), SEMEL_OK);
    assert_string_equal(conf.queue, "a&b");
    assert_int_equal(conf.prefetch, 7);
    assert_true(conf.single_active && conf.tls);
    assert_int_equal(conf.declare, SEMEL_AMQP_DECLARE_QUORUM);
    assert_int_equal(conf.heartbeat_s, 3);
    assert_int_equal(conf.timeout_ms, 400);
    semel__amqp_conf_done(&conf);
}

static void certificate_says_who_we_are_where_nobody_else_does(void **state)
{
    static const struct {
        struct semel_amqp_options options;
        bool external;
    } rows[] = {
        {{.url = "amqps://h", .tls.cert_file = "c", .tls.key_file = "k"}, true},
        {{.url = "amqps://h", .tls.cert_file = "c", .tls.key_file = "k", .user = "u", .password = "p"}, false},
        {{.url = "amqps://u:p@h", .tls.cert_file = "c", .tls.key_file = "k"}, false},
        {{.url = "amqps://h"}, false},
        {{.url = "amqp://h", .tls.cert_file = "c", .tls.key_file = "k"}, false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct amqp_conf conf;
        assert_int_equal(semel__amqp_configure(&conf, &rows[i].options, NULL), SEMEL_OK);
        assert_int_equal(conf.external, rows[i].external);
        semel__amqp_conf_done(&conf);
    }
}

static void order_is_a_capability_of_a_single_active_consumer(void **state)
{
    struct semel_amqp_options options = {.url = "amqp://h", .queue = "q"};
    struct semel_broker *broker = NULL;

    (void)state;
    assert_int_equal(semel__broker_amqp_open(&broker, &options, NULL), SEMEL_OK);
    assert_int_equal(broker->ops->capabilities & SEMEL_BROKER_ORDERED, 0);
    semel_broker_close(broker);
    options.single_active = true;
    assert_int_equal(semel__broker_amqp_open(&broker, &options, NULL), SEMEL_OK);
    assert_int_equal(broker->ops->capabilities, SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | SEMEL_BROKER_ORDERED);
    semel_broker_close(broker);
}

static void handle_without_a_queue_has_nothing_to_poll(void **state)
{
    const struct semel_amqp_options options = {.url = "amqp://h"};
    struct semel_broker *broker = NULL;
    struct semel_arena arena;
    struct semel_delivery *d;
    struct semel_amqp_answer answer;
    size_t n;

    (void)state;
    semel__arena_init(&arena, 1 << 20);
    assert_int_equal(semel__broker_amqp_open(&broker, &options, NULL), SEMEL_OK);
    assert_int_equal(semel_broker_poll(broker, 1, 0, &arena, &d, &n, NULL), SEMEL_INVALID);
    assert_int_equal(semel__amqp_ask(&options, &answer, NULL), SEMEL_INVALID);
    semel_broker_close(broker);
    semel__arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_the_url_are_found),
        cmocka_unit_test(bad_url_is_refused_and_its_password_not_told),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(options_are_kept_and_a_heartbeat_is_whole_seconds),
        cmocka_unit_test(certificate_says_who_we_are_where_nobody_else_does),
        cmocka_unit_test(order_is_a_capability_of_a_single_active_consumer),
        cmocka_unit_test(handle_without_a_queue_has_nothing_to_poll),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
