/* SPDX-License-Identifier: MIT
 *
 * test_webhook.c: the webhook sink against a server of the test's own: what it sends, what it makes of each answer, and
 * where it never goes.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "base/digest.h"
#include "base/wait.h"
#include "broker/webhook.h"
#include "handler/upstream.h"

/* Standard Webhooks' published example. */
#define SECRET "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#define MANY 40

static const struct semel_str loopback[] = {SEMEL_STR("127.0.0.1")};

struct post {
    struct upstream up;
    struct semel_broker *sink;
    char url[64];
    struct semel_error err;
};

static struct semel_broker *open_sink(const struct semel_webhook_options *options)
{
    struct semel_broker *sink = NULL;
    struct semel_error err = {0};

    if (semel__broker_webhook_open(&sink, options, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    return sink;
}

static void post_start(struct post *post)
{
    const struct semel_webhook_options options = {.secret = SECRET, .allow = {loopback, 1}};

    *post = (struct post){0};
    upstream_start(&post->up);
    snprintf(post->url, sizeof post->url, "http://127.0.0.1:%u/hook", post->up.port);
    post->sink = open_sink(&options);
}

static void post_stop(struct post *post)
{
    semel_broker_close(post->sink);
    upstream_stop(&post->up);
}

static struct semel_publish item_to(const char *url, const char *id, const char *payload)
{
    return (struct semel_publish){.destination = semel__str(url),
                                  .key = SEMEL_STR("k"),
                                  .id = semel__str(id),
                                  .payload = semel__str(payload)};
}

static void send_items(struct post *post, struct semel_publish *items, size_t n, int timeout_ms)
{
    assert_int_equal(semel_broker_publish(post->sink, items, n, timeout_ms, &post->err), SEMEL_OK);
}

static bool saw(const struct post *post, const char *line)
{
    char whole[256];

    snprintf(whole, sizeof whole, "\r\n%s\r\n", line);
    return strstr(post->up.head, whole) != NULL;
}

/* ---- signatures ----------------------------------------------------------------------------------------- */

static struct semel_str key_of(struct semel_arena *arena)
{
    struct semel_str key;

    semel__arena_init(arena, 4096);
    assert_int_equal(semel__base64_read(semel__str(&SECRET[6]), arena, &key), SEMEL_BASE64_OK);
    return key;
}

static void signature_is_that_of_the_published_example(void **state)
{
    char signature[SEMEL_WEBHOOK_SIGNATURE];
    struct semel_arena arena;

    (void)state;
    assert_true(semel__webhook_sign(key_of(&arena), SEMEL_STR("msg_p5jXN8AQM9LWM0D4loKWxJek"), 1614265330,
                                    SEMEL_STR("{\"test\": 2432232314}"), signature));
    assert_string_equal(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    semel__arena_done(&arena);
}

static void secret_that_is_none_is_refused_without_showing_it(void **state)
{
    static const char *const wrong[] = {"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_MfKQ", "whsec_M!KQ", NULL};
    struct semel_webhook_options options = {0};
    struct semel_broker *sink = NULL;
    struct semel_error err;

    (void)state;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        options.secret = wrong[i];
        assert_int_equal(semel__broker_webhook_open(&sink, &options, &err), SEMEL_INVALID);
        assert_null(strstr(err.text, "MfKQ"));
    }
    options.secret = SECRET;
    options.tls.no_verify = true;
    assert_int_equal(semel__broker_webhook_open(&sink, &options, &err), SEMEL_INVALID);
}

/* ---- addresses ------------------------------------------------------------------------------------------ */

static bool reaches(const char *address, const char *allow)
{
    const struct semel_str network = semel__str(allow != NULL ? allow : "");
    struct sockaddr_in six_or_four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};

    if (strchr(address, ':') == NULL) {
        assert_int_equal(inet_pton(AF_INET, address, &six_or_four.sin_addr), 1);
        return semel__webhook_reaches((const struct sockaddr *)&six_or_four, &network, allow != NULL);
    }
    assert_int_equal(inet_pton(AF_INET6, address, &six.sin6_addr), 1);
    return semel__webhook_reaches((const struct sockaddr *)&six, &network, allow != NULL);
}

static void special_addresses_are_refused_unless_a_network_has_them(void **state)
{
    static const char *const closed[] = {"127.0.0.1",
                                         "10.0.0.1",
                                         "172.16.0.1",
                                         "172.31.255.255",
                                         "192.168.1.1",
                                         "169.254.169.254",
                                         "100.64.0.1",
                                         "0.0.0.0",
                                         "224.0.0.1",
                                         "255.255.255.255",
                                         "::1",
                                         "::",
                                         "fe80::1",
                                         "fd00::1",
                                         "::ffff:127.0.0.1",
                                         "::ffff:10.1.2.3",
                                         "64:ff9b::a00:1",
                                         "2002:a00:1::1",
                                         "::127.0.0.1",
                                         "ff02::1"};
    static const char *const open[] = {"93.184.216.34", "172.32.0.1", "11.0.0.1", "2606:2800:220:1::1",
                                       "::ffff:93.184.216.34"};

    (void)state;
    for (size_t i = 0; i < COUNT(closed); i++)
        if (reaches(closed[i], NULL))
            fail_msg("%s", closed[i]);
    for (size_t i = 0; i < COUNT(open); i++)
        if (!reaches(open[i], NULL))
            fail_msg("%s", open[i]);
    assert_true(reaches("10.1.2.3", "10.1.0.0/16") && reaches("::ffff:10.1.2.3", "10.1.0.0/16"));
    assert_false(reaches("10.2.2.3", "10.1.0.0/16"));
    assert_true(reaches("10.1.255.1", "10.0.0.0/15") && !reaches("10.2.0.1", "10.0.0.0/15"));
    assert_true(reaches("fd00::1", "fd00::/8") && reaches("::1", "::1") && !reaches("::1", "127.0.0.1"));
    assert_non_null(semel__webhook_network_mistake(SEMEL_STR("10.0.0.0/33")));
    assert_non_null(semel__webhook_network_mistake(SEMEL_STR("10.0.0/8")));
    assert_non_null(semel__webhook_network_mistake(SEMEL_STR("")));
    assert_non_null(semel__webhook_network_mistake(SEMEL_STR("hooks.example")));
    assert_null(semel__webhook_network_mistake(SEMEL_STR("::/0")));
}

/* The name is resolved, and then looked at. */
static void receiver_on_loopback_is_not_called_unless_it_is_allowed(void **state)
{
    const struct semel_webhook_options options = {.secret = SECRET};
    struct semel_broker *strict = open_sink(&options);
    struct semel_publish items[2];
    struct post post;
    char url[64];

    (void)state;
    post_start(&post);
    snprintf(url, sizeof url, "http://localhost:%u/", post.up.port);
    items[0] = item_to(post.url, "e-1", "{}");
    items[1] = item_to(url, "e-2", "{}");
    assert_int_equal(semel_broker_publish(strict, items, 2, 60000, &post.err), SEMEL_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(items[i].status, SEMEL_RETRY);
        assert_true(items[i].down);
        assert_non_null(strstr(items[i].why, "allow"));
    }
    assert_int_equal(post.up.heads, 0);
    semel_broker_close(strict);
    post_stop(&post);
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static void request_is_signed_and_carries_the_id_of_the_event(void **state)
{
    static const struct semel_pair headers[] = {
        {SEMEL_STR("ce_type"), SEMEL_STR("Placed")},       {SEMEL_STR("ce_id"), SEMEL_STR("own")},
        {SEMEL_STR("Webhook-Id"), SEMEL_STR("own")},       {SEMEL_STR("idempotency-key"), SEMEL_STR("own")},
        {SEMEL_STR("Content-Length"), SEMEL_STR("999")},   {SEMEL_STR("X-Split"), SEMEL_STR("a\r\nX-Other: b")},
        {SEMEL_STR("X-Tenant"), SEMEL_STR("t 1")},         {SEMEL_STR("a b"), SEMEL_STR("v")},
        {SEMEL_STR("traceparent"), SEMEL_STR("00-1-2-01")}};
    char signature[SEMEL_WEBHOOK_SIGNATURE], line[96];
    struct semel_arena arena;
    struct semel_publish item;
    struct post post;
    const char *time;

    (void)state;
    post_start(&post);
    post.up.answer = OK_EMPTY;
    item = item_to(post.url, "e-1", "{\"a\":1}");
    item.headers = headers;
    item.n_headers = COUNT(headers);
    send_items(&post, &item, 1, 60000);
    assert_string_equal(item.why, "");
    assert_int_equal(item.status, SEMEL_OK);
    assert_int_equal(post.up.requests, 1);
    assert_int_equal(strncmp(post.up.head, "POST /hook HTTP/1.1\r\n", 21), 0);
    assert_string_equal(post.up.body, "{\"a\":1}");
    assert_true(saw(&post, "webhook-id: e-1") && saw(&post, "Idempotency-Key: e-1") && saw(&post, "ce-type: Placed"));
    assert_true(saw(&post, "Content-Type: application/json") && saw(&post, "X-Tenant: t 1") &&
                saw(&post, "traceparent: 00-1-2-01") && saw(&post, "Content-Length: 7"));
    assert_null(strstr(post.up.head, "own"));
    assert_null(strstr(post.up.head, "X-Other"));
    assert_null(strstr(post.up.head, "999"));
    assert_null(strstr(post.up.head, "Expect"));
    time = strstr(post.up.head, "webhook-timestamp: ");
    assert_non_null(time);
    assert_true(semel__webhook_sign(key_of(&arena), item.id, strtoll(time + 19, NULL, 10), item.payload, signature));
    snprintf(line, sizeof line, "webhook-signature: %s", signature);
    assert_true(saw(&post, line));
    semel__arena_done(&arena);
    post_stop(&post);
}

static void each_answer_has_its_meaning(void **state)
{
    static const struct {
        int http;
        semel_status status;
        bool down;
    } cases[] = {{200, SEMEL_OK, false},      {202, SEMEL_OK, false},      {204, SEMEL_OK, false},
                 {400, SEMEL_INVALID, false}, {413, SEMEL_INVALID, false}, {415, SEMEL_INVALID, false},
                 {422, SEMEL_INVALID, false}, {401, SEMEL_RETRY, true},    {403, SEMEL_RETRY, true},
                 {404, SEMEL_RETRY, true},    {410, SEMEL_RETRY, true},    {302, SEMEL_RETRY, true},
                 {429, SEMEL_RETRY, true},    {408, SEMEL_UNKNOWN, false}, {409, SEMEL_UNKNOWN, false},
                 {425, SEMEL_UNKNOWN, false}, {500, SEMEL_UNKNOWN, false}, {502, SEMEL_UNKNOWN, true},
                 {503, SEMEL_UNKNOWN, true},  {504, SEMEL_UNKNOWN, true}};
    char answer[160];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct semel_publish item;
        struct post post;
        post_start(&post);
        const char *body = cases[i].http == 204 ? "\r\n" : "Content-Length: 6\r\n\r\nsecret";
        snprintf(answer, sizeof answer, "HTTP/1.1 %d X\r\nLocation: http://127.0.0.1:%u/other\r\n%s", cases[i].http,
                 post.up.port, body);
        post.up.answer = answer;
        item = item_to(post.url, "e-1", "{}");
        send_items(&post, &item, 1, 60000);
        if (item.status != cases[i].status || item.down != cases[i].down)
            fail_msg("%d: %d %d %s", cases[i].http, item.status, item.down, item.why);
        assert_null(strstr(item.why, "secret"));
        assert_int_equal(post.up.requests, 1); /* no redirect was followed */
        post_stop(&post);
    }
}

static bool answer_first_only(struct link *link)
{
    return link->nth == 1 && link_sendz(link, OK_EMPTY);
}

/* P54: the second request of a connection is read, and then the connection ends without a byte. */
static void request_is_not_sent_again_when_a_reused_connection_dies(void **state)
{
    struct semel_publish item;
    struct post post;

    (void)state;
    post_start(&post);
    post.up.script = answer_first_only;
    item = item_to(post.url, "e-1", "{}");
    send_items(&post, &item, 1, 60000);
    assert_int_equal(item.status, SEMEL_OK);
    item = item_to(post.url, "e-2", "{}");
    send_items(&post, &item, 1, 60000);
    assert_int_equal(post.up.requests, 2);
    assert_true(item.status == SEMEL_UNKNOWN || post.up.most == 1); /* or it had a connection of its own */
    item = item_to(post.url, "e-3", "");
    send_items(&post, &item, 1, 60000);
    assert_int_equal(item.status, SEMEL_OK); /* an empty one always has */
    post_stop(&post);
}

static void half_an_answer_is_none(void **state)
{
    struct semel_publish item;
    struct post post;
    char gone[64];

    (void)state;
    post_start(&post);
    memcpy(gone, post.url, sizeof gone);
    post.up.script = script_close;
    item = item_to(post.url, "e-1", "{}");
    send_items(&post, &item, 1, 60000);
    assert_int_equal(item.status, SEMEL_UNKNOWN);
    post_stop(&post);
    item = item_to(gone, "e-2", "{}"); /* nobody listens there any more */
    post_start(&post);
    send_items(&post, &item, 1, 60000);
    assert_true(item.status == SEMEL_RETRY && item.down);
    post_stop(&post);
}

/* P112: a receiver that hangs costs its own items their turn, and the call keeps to its time. */
static void receiver_that_hangs_holds_up_nobody_else(void **state)
{
    static struct semel_publish items[MANY];
    static char ids[MANY][8];
    const int64_t from_us = semel__steady_us();
    size_t n_unknown = 0;
    struct post good, bad;

    (void)state;
    post_start(&good);
    post_start(&bad);
    good.up.answer = bad.up.answer = OK_EMPTY;
    bad.up.script = script_hold;
    for (size_t i = 0; i < MANY; i++) {
        snprintf(ids[i], sizeof ids[i], "e-%zu", i);
        items[i] = item_to(i < MANY / 2 ? bad.url : good.url, ids[i], "{}");
    }
    send_items(&good, items, MANY, 2000);
    assert_true(semel__steady_us() - from_us < 20000000);
    for (size_t i = 0; i < MANY; i++) {
        if (i >= MANY / 2)
            assert_int_equal(items[i].status, SEMEL_OK);
        else
            assert_true(items[i].status == SEMEL_UNKNOWN || items[i].status == SEMEL_RETRY);
        n_unknown += items[i].status == SEMEL_UNKNOWN;
    }
    assert_int_equal(n_unknown, 8); /* half of what may be on its way */
    assert_int_equal(good.up.requests, MANY / 2);
    upstream_release(&bad.up);
    post_stop(&bad);
    post_stop(&good);
}

static void receiver_that_is_down_is_not_called_for_each_item(void **state)
{
    static struct semel_publish items[MANY];
    struct post post;

    (void)state;
    post_start(&post);
    post.up.answer = "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n";
    for (size_t i = 0; i < MANY; i++)
        items[i] = item_to(post.url, "e", "{}");
    send_items(&post, items, MANY, 60000);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(items[i].status, SEMEL_RETRY);
        assert_true(items[i].down);
        assert_string_equal(items[i].why, "webhook: HTTP 410");
    }
    assert_true(post.up.requests < MANY);
    post_stop(&post);
}

static void what_http_cannot_carry_is_refused_before_it_is_sent(void **state)
{
    struct semel_publish items[6];
    struct post post;

    (void)state;
    post_start(&post);
    for (size_t i = 0; i < COUNT(items); i++)
        items[i] = item_to(post.url, "e", "{}");
    items[0].id = SEMEL_STR("e\r\nX: y");
    items[1].id = (struct semel_str){NULL, 0};
    items[2].destination = SEMEL_STR("file:///etc/passwd");
    items[3].destination = SEMEL_STR("");
    items[4].destination = SEMEL_STR("http://127.0.0.1/a b");
    items[5].destination = SEMEL_STR("127.0.0.1/hook");
    send_items(&post, items, COUNT(items), 60000);
    for (size_t i = 0; i < COUNT(items); i++)
        assert_int_equal(items[i].status, SEMEL_INVALID);
    assert_int_equal(post.up.heads, 0);
    post_stop(&post);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signature_is_that_of_the_published_example),
        cmocka_unit_test(secret_that_is_none_is_refused_without_showing_it),
        cmocka_unit_test(special_addresses_are_refused_unless_a_network_has_them),
        cmocka_unit_test(receiver_on_loopback_is_not_called_unless_it_is_allowed),
        cmocka_unit_test(request_is_signed_and_carries_the_id_of_the_event),
        cmocka_unit_test(each_answer_has_its_meaning),
        cmocka_unit_test(request_is_not_sent_again_when_a_reused_connection_dies),
        cmocka_unit_test(half_an_answer_is_none),
        cmocka_unit_test(receiver_that_hangs_holds_up_nobody_else),
        cmocka_unit_test(receiver_that_is_down_is_not_called_for_each_item),
        cmocka_unit_test(what_http_cannot_carry_is_refused_before_it_is_sent),
    };

    return cmocka_run_group_tests_name("webhook", tests, NULL, NULL);
}
