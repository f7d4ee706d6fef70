/* SPDX-License-Identifier: MIT
 *
 * test_proxy.c: what passes the gateway, and what does not, between a client and an upstream that send whatever bytes
 * they are told to.
 */
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/gateway.h"
#include "handler/upstream.h"
#include "unit/httpd.h"

#define HOST "Host: shop.example\r\n"

/* Polls the condition; fails after WAIT_S. */
#define WAIT_FOR(condition)                             \
    for (unsigned rounds = 0; !(condition); rounds++) { \
        assert_true(rounds < WAIT_S * 200);             \
        poll(NULL, 0, 5);                               \
    }

static struct upstream up;
static struct semel_gateway_settings settings;
static struct semel_http *http;
static struct semel_gateway *gateway;
static struct httpd server; /* only its port is used, by the client of httpd.h */
static char url[64];
static pthread_t thread;

static void *run(void *arg)
{
    struct semel_error err;
    return semel__http_run(http, &err) == SEMEL_OK ? NULL : arg;
}

static void open_gateway(void)
{
    struct semel_error err;
    assert_int_equal(semel__http_new(&http, NULL, &err), SEMEL_OK);
    if (semel__gateway_open(&gateway, http, &settings, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    server.port = semel__gateway_port(gateway);
    assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
}

static void close_gateway(uint64_t deadline_ms)
{
    semel__http_stop(http, deadline_ms);
    pthread_join(thread, NULL);
    semel__http_free(http);
    semel__gateway_close(gateway);
    http = NULL;
    gateway = NULL;
}

static int set_up(void **state)
{
    (void)state;
    up = (struct upstream){.answer = OK_EMPTY};
    upstream_start(&up);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", up.port);
    semel__gateway_settings_init(&settings);
    settings.listen = "127.0.0.1:0";
    settings.upstream.url = url;
    return 0;
}

static int set_up_open(void **state)
{
    set_up(state);
    open_gateway();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (http != NULL)
        close_gateway(0);
    upstream_stop(&up);
    return 0;
}

/* One connection: what comes back until it ends. */
static char *talk(const char *text)
{
    int fd = client_open(&server);
    client_sendz(fd, text);
    char *all = client_rest(fd, NULL);
    close(fd);
    return all;
}

static void a_request_is_written_anew(void **state)
{
    (void)state;
    char expected[1024];
    struct reply reply =
        client_ask(&server, "POST /v1/Charges/%41?b=2&a=%zz HTTP/1.1\r\n" HOST
                            "Content-Length: 5\r\nIdempotency-Key: \"k-1\"\r\nA: 1\r\na: 2\r\n"
                            "Accept:   text/plain  \r\nConnection: keep-alive, close\r\n"
                            "Keep-Alive: timeout=5\r\nProxy-Connection: x\r\nTE: trailers\r\n"
                            "Proxy-Authorization: secret\r\nX_Forwarded_For: 1.2.3.4\r\n"
                            "Semel-Token: 1\r\nSEMEL-Outcome: done\r\nX-Original-URL: /admin\r\n"
                            "X-Rewrite-Url: /admin\r\nX-Forwarded-For: 1.2.3.4\r\n"
                            "X-Forwarded-Proto: https\r\nX-Forwarded-User: root\r\n"
                            "Forwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\nExpect: 100-continue\r\n\r\nhello");
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    snprintf(expected, sizeof expected,
             "POST /v1/Charges/%%41?b=2&a=%%zz HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: \"k-1\"\r\nA: 1\r\n"
             "a: 2\r\nAccept: text/plain\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n"
             "X-Forwarded-Host: shop.example\r\nVia: 1.1 semel\r\nContent-Length: 5\r\n\r\n");
    assert_string_equal(upstream_seen(&up)->head, expected);
    assert_string_equal(upstream_seen(&up)->body, "hello");
}

static void a_trusted_peer_tells_who_its_client_is(void **state)
{
    (void)state;
    static const char *const trusted[] = {"10.0.0.0/8", "::1/128", "127.0.0.0/25"};
    settings.trusted = trusted;
    settings.n_trusted = COUNT(trusted);
    open_gateway();
    struct reply reply = client_ask(&server, "GET / HTTP/1.1\r\n" HOST "X-Forwarded-For: 1.2.3.4\r\n"
                                             "X-Forwarded-Proto: https\r\nX-Real-IP: 1.2.3.4\r\n\r\n");
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    assert_string_equal(upstream_seen(&up)->head, "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-Proto: https\r\n"
                                                  "X-Real-IP: 1.2.3.4\r\nX-Forwarded-For: 1.2.3.4, 127.0.0.1\r\n"
                                                  "X-Forwarded-Host: shop.example\r\nVia: 1.1 semel\r\n\r\n");
    /* What a client pretends stands before what the peer has added, be it in one line or in two (HAProxy). */
    reply = client_ask(&server, "GET / HTTP/1.1\r\n" HOST "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For:\r\n"
                                "x-forwarded-for: 5.6.7.8, 9.9.9.9\r\n\r\n");
    reply_done(&reply);
    assert_string_equal(upstream_seen(&up)->head,
                        "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 1.2.3.4, 5.6.7.8, 9.9.9.9, "
                        "127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: shop.example\r\n"
                        "Via: 1.1 semel\r\n\r\n");
    close_gateway(0);
    static const char *const others[] = {"127.0.0.128/25", "10.0.0.0/8", "::/1"};
    settings.trusted = others;
    open_gateway();
    reply = client_ask(&server, "GET / HTTP/1.1\r\n" HOST "X-Forwarded-For: 1.2.3.4\r\n\r\n");
    reply_done(&reply);
    assert_null(strstr(upstream_seen(&up)->head, "1.2.3.4"));
}

static void a_network_that_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "10.0.0.0/33", "10.0.0.0/-1", "::/129", "ten", "10.0.0.0/", "10.0.0.0/8x"};
    struct semel_error err;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        settings.trusted = &wrong[i];
        settings.n_trusted = 1;
        assert_int_equal(semel__http_new(&http, NULL, &err), SEMEL_OK);
        assert_int_equal(semel__gateway_open(&gateway, http, &settings, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "10.0.0.0/8"));
        semel__http_free(http);
        semel__gateway_close(gateway);
        http = NULL;
    }
}

static const struct {
    const char *text;
    int status;
} cases[] = {
    {"GET //v1 HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1//charges HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/./charges HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/../admin HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /.. HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/%2e%2E/admin HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/.%2e HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/..;/admin HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/%2e%2e;a=1/admin HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/.;a HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1/;a/admin HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1%2fcharges HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1%5Ccharges HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1\\charges HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1%00 HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1%4 HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1%zz HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /v1% HTTP/1.1\r\n" HOST "\r\n", 400},
    {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET http://a/ HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "X-HTTP-Method-Override: DELETE\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "x-http-method: DELETE\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "X-Method-Override: DELETE\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "X-User: 1\r\nConnection: close, x-user\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "Connection: Host\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", 501},
    {"GET / HTTP/1.1\r\n" HOST "Upgrade: h2c\r\n\r\n", 501},
    {"TRACE / HTTP/1.1\r\n" HOST "\r\n", 405},
    {"CONNECT / HTTP/1.1\r\n" HOST "\r\n", 405},
    {"GET / HTTP/1.1\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST HOST "\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" HOST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400},
    {"POST / HTTP/1.1\r\n" HOST "Content-Length: +1\r\n\r\na", 400},
    {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
    {"POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", 400},
    {"GET / HTTP/1.1\n" HOST "\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A: b\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A: b\rX: c\r\n\r\n", 400},
};

/* P91, P100, P52: what servers read in different ways does not pass. Nothing of it reaches the upstream. */
static void what_servers_read_in_different_ways_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct reply reply = client_ask(&server, cases[i].text);
        if (reply.status != cases[i].status)
            fail_msg("%s: %d", cases[i].text, reply.status);
        assert_true(reply_has(&reply, "Content-Type: application/problem+json"));
        reply_done(&reply);
    }
    assert_int_equal(upstream_seen(&up)->heads, 0);
    assert_int_equal(upstream_seen(&up)->n_links, 0);
}

static void targets_that_all_read_alike_pass(void **state)
{
    (void)state;
    static const char *const fine[] = {"/",       "/v1/",   "/v1/charges/", "/a.b/..c/...", "/v1/%20?/../%2f//",
                                       "/%F0%9F", "/a?b=%", "/a;b=../c;..", "/a/;b"};
    for (size_t i = 0; i < COUNT(fine); i++) {
        char text[256];
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" HOST "\r\n", fine[i]);
        struct reply reply = client_ask(&server, text);
        if (reply.status != 200)
            fail_msg("%s: %d", fine[i], reply.status);
        reply_done(&reply);
    }
}

/* P52: a malformed body is noticed behind a head that has gone upstream. There is no second request there. */
static void a_malformed_body_ends_both_connections(void **state)
{
    (void)state;
    char *text = talk("POST / HTTP/1.1\r\n" HOST
                      "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloGET /smuggled HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(strncmp(text, "HTTP/1.1 400 ", 13), 0);
    assert_non_null(strstr(text, "Connection: close"));
    free(text);
    assert_true(upstream_seen(&up)->heads <= 1);
    struct reply reply = client_ask(&server, "GET /next HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 200);
    assert_int_equal(strncmp(upstream_seen(&up)->head, "GET /next ", 10), 0);
    reply_done(&reply);
}

static void an_answer_is_written_anew(void **state)
{
    (void)state;
    upstream_answer(&up,
                    "HTTP/1.1 201 Made it\r\nContent-Type: text/plain\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
                    "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nSemel-Outcome: done\r\n"
                    "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    int fd = client_open(&server);
    client_sendz(fd, "GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    char *text = client_rest(fd, NULL);
    assert_string_equal(text,
                        "HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
                        "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nTransfer-Encoding: chunked\r\n"
                        "Connection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    free(text);
    close(fd);
    upstream_answer(&up, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: x\r\n\r\n");
    struct reply reply = client_ask(&server, "HEAD / HTTP/1.1\r\n" HOST "\r\n");
    assert_true(reply_has(&reply, "Content-Length: 1000"));
    reply_done(&reply);
    upstream_answer(&up, "HTTP/1.1 200 OK\r\nETag: x\r\n\r\n");
    reply = client_ask(&server, "HEAD / HTTP/1.1\r\n" HOST "\r\n");
    assert_null(strstr(reply.head, "Content-Length"));
    reply_done(&reply);
}

/* P52: the upstream's half of the smuggling table. Each costs one request, and its connection is not used again. */
static void an_answer_in_doubt_is_a_502(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0, 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\rc\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n",
    };
    for (size_t i = 0; i < COUNT(answers); i++) {
        upstream_answer(&up, answers[i]);
        struct reply reply = client_ask(&server, "POST / HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi");
        if (reply.status != 502)
            fail_msg("%s: %d", answers[i], reply.status);
        assert_true(reply_has(&reply, "Content-Type: application/problem+json"));
        reply_done(&reply);
        assert_int_equal(upstream_seen(&up)->requests, i + 1);
        assert_int_equal(upstream_seen(&up)->n_links, i + 1);
    }
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->failed), COUNT(answers));
    upstream_answer(&up,
                    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
    struct reply reply = client_ask(&server, "GET / HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.n, 0);
    reply_done(&reply);
    upstream_answer(&up, OK_EMPTY);
    reply = client_ask(&server, "GET / HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.n, 0);
    reply_done(&reply);
}

static bool half(struct link *link)
{
    link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    return false;
}

static void an_answer_that_breaks_off_breaks_off(void **state)
{
    (void)state;
    upstream_play(&up, half);
    char *text = talk("GET / HTTP/1.1\r\n" HOST "\r\nGET /second HTTP/1.1\r\n" HOST "\r\n");
    assert_null(strstr(text, "502"));
    assert_int_equal(upstream_seen(&up)->requests, 1);
    free(text);
    upstream_play(&up, script_close);
    struct reply reply = client_ask(&server, "POST / HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 502);
    assert_non_null(strstr(reply.body, "(closed)"));
    assert_int_equal(upstream_seen(&up)->requests, 2);
    reply_done(&reply);
}

static void an_upstream_that_is_late_is_a_504(void **state)
{
    (void)state;
    settings.upstream.answer_ms = 100;
    upstream_play(&up, script_hold);
    open_gateway();
    struct reply reply = client_ask(&server, "POST / HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 504);
    assert_non_null(strstr(reply.body, "(timeout)"));
    reply_done(&reply);
}

static void a_dead_upstream_is_a_502(void **state)
{
    (void)state;
    settings.upstream.url = "http://127.0.0.1:1";
    open_gateway();
    struct reply reply = client_ask(&server, "POST / HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi");
    assert_int_equal(reply.status, 502);
    assert_non_null(strstr(reply.body, "(connect)"));
    reply_done(&reply);
}

static void a_client_that_hangs_up_ends_the_call(void **state)
{
    (void)state;
    upstream_play(&up, script_hold);
    int fd = client_open(&server);
    client_sendz(fd, "GET / HTTP/1.1\r\n" HOST "\r\n");
    upstream_wait_requests(&up, 1);
    close(fd);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->left) == 1);
    upstream_release(&up);
}

static bool send_big(struct link *link)
{
    static char bytes[65536];
    if (!link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 16777216\r\n\r\n"))
        return false;
    for (int i = 0; i < 256; i++)
        if (!link_send(link, bytes, sizeof bytes))
            return false;
    return true;
}

/* P51: and a slow reader among them does not fill our memory; test_http_stream.c measures it. */
static void large_bodies_pass_both_ways(void **state)
{
    (void)state;
    static char bytes[65536];
    struct reply reply;
    upstream_play(&up, send_big);
    int fd = client_open(&server);
    client_sendz(fd, "POST / HTTP/1.1\r\n" HOST "Content-Length: 16777216\r\n\r\n");
    for (int i = 0; i < 256; i++)
        client_send(fd, bytes, sizeof bytes);
    poll(NULL, 0, 100);
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.n, 16777216);
    assert_int_equal(upstream_seen(&up)->n_body, 16777216);
    reply_done(&reply);
    close(fd);
}

static bool refuse_early(struct link *link)
{
    link_sendz(link, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
    return link_wait_release(link);
}

static void an_early_answer_reaches_the_client(void **state)
{
    (void)state;
    struct reply reply;
    upstream_play_early(&up, refuse_early);
    int fd = client_open(&server);
    client_sendz(fd, "POST / HTTP/1.1\r\n" HOST "Content-Length: 1000\r\n\r\nsome");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 413);
    assert_true(reply_has(&reply, "Connection: close"));
    reply_done(&reply);
    close(fd);
}

static void connections_are_kept_on_both_sides(void **state)
{
    (void)state;
    struct reply reply;
    upstream_answer(&up, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    int fd = client_open(&server);
    for (int i = 0; i < 50; i++) {
        client_sendz(fd, "GET / HTTP/1.1\r\n" HOST "\r\n");
        assert_true(client_reply(fd, &reply, false));
        assert_string_equal(reply.body, "ok");
        reply_done(&reply);
    }
    assert_int_equal(upstream_seen(&up)->n_links, 1);
    close(fd);
}

static void a_stop_lets_requests_end(void **state)
{
    (void)state;
    struct reply reply;
    upstream_play(&up, script_hold);
    upstream_answer(&up, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    int fd = client_open(&server);
    client_sendz(fd, "GET / HTTP/1.1\r\n" HOST "\r\n");
    upstream_wait_requests(&up, 1);
    semel__http_stop(http, 10000);
    poll(NULL, 0, 50);
    upstream_release(&up);
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "ok");
    reply_done(&reply);
    close(fd);
}

int main(void)
{
#define OPEN(test) cmocka_unit_test_setup_teardown(test, set_up_open, tear_down)
#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        OPEN(a_request_is_written_anew),
        CASE(a_trusted_peer_tells_who_its_client_is),
        CASE(a_network_that_is_none_is_refused),
        OPEN(what_servers_read_in_different_ways_is_refused),
        OPEN(targets_that_all_read_alike_pass),
        OPEN(a_malformed_body_ends_both_connections),
        OPEN(an_answer_is_written_anew),
        OPEN(an_answer_in_doubt_is_a_502),
        OPEN(an_answer_that_breaks_off_breaks_off),
        CASE(an_upstream_that_is_late_is_a_504),
        CASE(a_dead_upstream_is_a_502),
        OPEN(a_client_that_hangs_up_ends_the_call),
        OPEN(large_bodies_pass_both_ways),
        OPEN(an_early_answer_reaches_the_client),
        OPEN(connections_are_kept_on_both_sides),
        OPEN(a_stop_lets_requests_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
