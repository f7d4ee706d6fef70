/* SPDX-License-Identifier: MIT
 *
 * test_http.c: what the server answers, to those who behave and to those who do not, over real sockets.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit/httpd_each.h"

#define HOST "Host: localhost\r\n"
#define SMUGGLED "GET /smuggled HTTP/1.1\r\n" HOST "\r\n"
#define CHUNKED "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"

static void assert_asked(const char *text, int status, const char *body)
{
    struct reply reply = client_ask(&httpd, text);
    assert_int_equal(reply.status, status);
    if (body != NULL)
        assert_string_equal(reply.body, body);
    reply_done(&reply);
}

static void a_request_is_answered_with_what_its_handler_said(void **state)
{
    (void)state;
    struct reply reply = client_ask(&httpd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.body, "{\"hello\":true}\n");
    assert_true(reply_has(&reply, "Content-Type: application/json"));
    assert_true(reply_has(&reply, "Cache-Control: no-store"));
    assert_non_null(strstr(reply.head, " GMT\r\n"));
    assert_null(strstr(reply.head, "Access-Control"));
    assert_null(strstr(reply.head, "Connection: close"));
    reply_done(&reply);
    assert_int_equal(atomic_load(&httpd.observed), 1);
}

static void a_body_comes_whole_however_it_was_framed(void **state)
{
    (void)state;
    assert_asked("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", 200, "hello");
    assert_asked("PUT /echo HTTP/1.1\r\n" HOST "content-length:0\r\n\r\n", 200, "");
    assert_asked("POST /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    assert_asked(CHUNKED "3\r\nhel\r\nA\r\nlo, worlds\r\n0\r\n\r\n", 200, "hello, worlds");
    assert_asked("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", 200, "");
    assert_asked(CHUNKED "0003\r\nabc\r\n0\r\n\r\n", 200, "abc");
}

/* Each byte on its own: no state of ours depends on where the pieces end. */
static void bytes_may_come_one_at_a_time(void **state)
{
    (void)state;
    static const char text[] = "\r\n" CHUNKED "3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
                               "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nok";
    int fd = client_open(&httpd);
    struct reply reply;
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        client_send(fd, text + i, 1);
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "abc0123456789abcdef");
    reply_done(&reply);
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "ok");
    reply_done(&reply);
    close(fd);
}

static void pipelined_requests_are_answered_in_their_order(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    struct semel_buf all;
    semel__buf_init(&all, 1 << 20);
    for (int i = 0; i < 300; i++)
        semel__buf_addf(&all, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\n%03d", i);
    assert_false(all.failed);
    client_send(fd, all.p, all.n);
    for (int i = 0; i < 300; i++) {
        struct reply reply;
        char expected[4];
        snprintf(expected, sizeof(expected), "%03d", i);
        assert_true(client_reply(fd, &reply, false));
        assert_string_equal(reply.body, expected);
        reply_done(&reply);
    }
    semel__buf_done(&all);
    close(fd);
}

static void a_client_that_closes_its_side_still_gets_every_answer(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    client_sendz(fd, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\n1GET /hello HTTP/1.1\r\n" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    struct reply one, two;
    assert_true(client_reply(fd, &one, false));
    assert_true(client_reply(fd, &two, false));
    assert_string_equal(two.body, "{\"hello\":true}\n");
    assert_true(client_closed(fd));
    reply_done(&one);
    reply_done(&two);
    close(fd);
}

static void head_is_get_without_the_body(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    struct reply reply;
    client_sendz(fd, "HEAD /hello HTTP/1.1\r\n" HOST "\r\nHEAD /nothing HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_reply(fd, &reply, true));
    assert_int_equal(reply.status, 200);
    assert_true(reply_has(&reply, "Content-Length: 15"));
    reply_done(&reply);
    assert_true(client_reply(fd, &reply, true));
    assert_int_equal(reply.status, 404);
    reply_done(&reply);
    client_sendz(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "{\"hello\":true}\n");
    reply_done(&reply);
    close(fd);
}

static void http_1_0_gets_its_answer_and_the_end(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    struct reply reply;
    client_sendz(fd, "GET /hello HTTP/1.0\r\n" HOST "Connection: keep-alive\r\n\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 200);
    assert_true(reply_has(&reply, "Connection: close"));
    assert_true(client_closed(fd));
    reply_done(&reply);
    close(fd);
}

static void close_is_obeyed(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    struct reply reply;
    client_sendz(fd, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n" SMUGGLED);
    assert_true(client_reply(fd, &reply, false));
    assert_true(reply_has(&reply, "Connection: close"));
    assert_true(client_closed(fd));
    assert_int_equal(atomic_load(&httpd.smuggled), 0);
    reply_done(&reply);
    close(fd);
}

static void a_connection_ends_after_its_last_request(void **state)
{
    (void)state;
    httpd.settings.limits.requests = 3;
    httpd_start(&httpd);
    int fd = client_open(&httpd);
    for (int i = 1; i <= 3; i++) {
        struct reply reply;
        client_sendz(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
        assert_true(client_reply(fd, &reply, false));
        assert_int_equal(reply_has(&reply, "Connection: close"), i == 3);
        reply_done(&reply);
    }
    assert_true(client_closed(fd));
    close(fd);
}

static void whoever_expects_100_is_told_to_continue(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    struct reply reply;
    client_sendz(fd, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_true(client_reply(fd, &reply, true));
    assert_int_equal(reply.status, 100);
    reply_done(&reply);
    client_sendz(fd, "ok");
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "ok");
    reply_done(&reply);
    close(fd);
    /* What would be refused with the body is refused without it. */
    assert_asked("POST /secret HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", 401, NULL);
    assert_asked("POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2000\r\n\r\n", 413, NULL);
    assert_asked("POST /echo HTTP/1.1\r\n" HOST "Expect: miracles\r\nContent-Length: 2\r\n\r\nok", 417, NULL);
}

static void paths_are_cut_before_they_are_decoded(void **state)
{
    (void)state;
    assert_asked("GET /v1/one/x/two HTTP/1.1\r\n" HOST "\r\n", 200, "one|two||");
    assert_asked("GET /v1/a%2Fb%20c/x/%E2%82%AC+%25 HTTP/1.1\r\n" HOST "\r\n", 200, "a/b c|\xE2\x82\xAC+%||");
    assert_asked("GET /v%31/a/x/b HTTP/1.1\r\n" HOST "\r\n", 200, "a|b||");
    assert_asked("GET /files/a/b%2Fc/../d HTTP/1.1\r\n" HOST "\r\n", 200, "||a/b/c/../d|");
    assert_asked("GET /files/ HTTP/1.1\r\n" HOST "\r\n", 200, "|||");
    assert_asked("GET /v1/a/x/ HTTP/1.1\r\n" HOST "\r\n", 404, NULL);
    assert_asked("GET /v1/a%2Fx%2Fb HTTP/1.1\r\n" HOST "\r\n", 404, NULL);
    assert_asked("GET /hello/ HTTP/1.1\r\n" HOST "\r\n", 404, NULL);
    assert_asked("GET //hello HTTP/1.1\r\n" HOST "\r\n", 404, NULL);
    assert_asked("GET /a/../hello HTTP/1.1\r\n" HOST "\r\n", 404, NULL);
    assert_asked("GET /v1/%/x/b HTTP/1.1\r\n" HOST "\r\n", 400, NULL);
    assert_asked("GET /v1/%4/x/b HTTP/1.1\r\n" HOST "\r\n", 400, NULL);
    assert_asked("GET /v1/%zz/x/b HTTP/1.1\r\n" HOST "\r\n", 400, NULL);
    assert_asked("GET /1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1/2/3/4 HTTP/1.1\r\n" HOST "\r\n",
                 404, NULL);
}

static void a_query_is_cut_before_it_is_decoded(void **state)
{
    (void)state;
    assert_asked("GET /query?a=1&b=x%26y+z&a=2&c&=e&&d== HTTP/1.1\r\n" HOST "\r\n", 200,
                 "a|1|b|x&y z|a|2|c|||e|d|=|1|");
    assert_asked("GET /query? HTTP/1.1\r\n" HOST "\r\n", 200, "|");
    assert_asked("GET /query?a=%x1 HTTP/1.1\r\n" HOST "\r\n", 400, NULL);
    char text[1024] = "GET /query?";
    for (int i = 0; i < 101; i++)
        memcpy(text + 11 + 2 * i, "a&", 3);
    memcpy(text + 11 + 202, " HTTP/1.1\r\n" HOST "\r\n", sizeof(" HTTP/1.1\r\n" HOST "\r\n"));
    assert_asked(text, 431, NULL);
}

static void a_method_that_a_path_does_not_have_is_told_which_ones_it_has(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        int status;
        const char *line;
    } cases[] = {
        {"POST /hello HTTP/1.1\r\n" HOST "\r\n", 405, "Allow: GET, HEAD"},
        {"GET /echo HTTP/1.1\r\n" HOST "\r\n", 405, "Allow: POST, PUT"},
        {"OPTIONS /hello HTTP/1.1\r\n" HOST "Origin: http://evil.example\r\n\r\n", 405, "Allow: GET, HEAD"},
        {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 405, "Allow:"},
        {"OPTIONS /nothing HTTP/1.1\r\n" HOST "\r\n", 405, "Allow:"},
        {"TRACE /hello HTTP/1.1\r\n" HOST "\r\n", 405, "Allow: GET, HEAD"},
        {"GET * HTTP/1.1\r\n" HOST "\r\n", 404, "Content-Type: application/problem+json"},
        {"PROPFIND /hello HTTP/1.1\r\n" HOST "\r\n", 501, "Content-Type: application/problem+json"},
        {"BREW /hello HTTP/1.1\r\n" HOST "\r\n", 501, "Connection: close"},
        {"get /hello HTTP/1.1\r\n" HOST "\r\n", 501, "Connection: close"},
        {"GETGETGETGETGETGETGETGETGET /hello HTTP/1.1\r\n" HOST "\r\n", 501, "Connection: close"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct reply reply = client_ask(&httpd, cases[i].request);
        assert_int_equal(reply.status, cases[i].status);
        assert_true(reply_has(&reply, cases[i].line));
        reply_done(&reply);
    }
}

static void a_problem_says_what_is_wrong(void **state)
{
    (void)state;
    struct reply reply = client_ask(&httpd, "GET /nothing HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(reply.body, "{\"type\":\"about:blank\",\"title\":\"Not Found\",\"status\":404,"
                                    "\"detail\":\"there is nothing at this path\"}\n");
    assert_true(reply_has(&reply, "Content-Type: application/problem+json"));
    reply_done(&reply);
}

static void a_handler_cannot_forge_a_header(void **state)
{
    (void)state;
    struct reply reply = client_ask(&httpd, "DELETE /thing HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 204);
    assert_true(reply_has(&reply, "X-Thing: one"));
    assert_null(strstr(reply.head, "X-Forged"));
    assert_null(strstr(reply.head, "Content-Length"));
    reply_done(&reply);
}

static void a_reply_past_its_bound_becomes_an_error(void **state)
{
    (void)state;
    assert_asked("GET /endless HTTP/1.1\r\n" HOST "\r\n", 500, NULL);
    struct reply reply = client_ask(&httpd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.n, BIG_BYTES);
    for (size_t i = 0; i < reply.n; i++)
        if (reply.body[i] != (char)('a' + i / 4096 % 26))
            fail_msg("byte %zu is %d", i, reply.body[i]);
    reply_done(&reply);
}

/* Whoever asks is known by a token: any of those in force, and only for what it is for. */
static void tokens_open_what_they_are_for(void **state)
{
    (void)state;
    static const struct {
        const char *path, *header;
        int status;
    } cases[] = {
        {"/secret", "", 401},
        {"/secret", "Authorization: Bearer " TOKEN "\r\n", 200},
        {"/secret", "authorization:bearer " NEXT_TOKEN "\r\n", 200},
        {"/secret", "Authorization: Bearer " ADMIN_TOKEN "\r\n", 200},
        {"/secret", "Authorization: Bearer " TOKEN "x\r\n", 401},
        {"/secret", "Authorization: Bearer 0123456789abcdef\r\n", 401},
        {"/secret", "Authorization: Bearer\r\n", 401},
        {"/secret", "Authorization: Bearer  " TOKEN "\r\n", 401},
        {"/secret", "Authorization: Basic " TOKEN "\r\n", 401},
        {"/secret", "Authorization: " TOKEN "\r\n", 401},
        {"/secret", "Authorization: Bearer " TOKEN " " TOKEN "\r\n", 401},
        {"/secret", "Authorization: Bearer " TOKEN "\r\nAuthorization: Bearer wrong\r\n", 400},
        {"/admin", "Authorization: Bearer " ADMIN_TOKEN "\r\n", 200},
        {"/admin", "Authorization: Bearer " TOKEN "\r\n", 403},
        {"/admin", "", 401},
        {"/hello", "Authorization: Bearer wrong\r\n", 200},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[512];
        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\n" HOST "%s\r\n", cases[i].path, cases[i].header);
        struct reply reply = client_ask(&httpd, text);
        if (reply.status != cases[i].status)
            fail_msg("%s %s: %d", cases[i].path, cases[i].header, reply.status);
        assert_int_equal(reply_has(&reply, "WWW-Authenticate: Bearer"), cases[i].status == 401);
        reply_done(&reply);
    }
}

static void no_handler_sees_the_token_that_opened_its_route(void **state)
{
    (void)state;
    struct reply reply = client_ask(&httpd, "GET /secret HTTP/1.1\r\n" HOST "Authorization: Bearer " TOKEN
                                            "\r\nX-Seen: \t yes  \r\nX-Empty:\r\n\r\n");
    assert_non_null(strstr(reply.body, "Host|localhost|X-Seen|yes|X-Empty||scopes=1|127.0.0.1:"));
    assert_null(strstr(reply.body, TOKEN));
    reply_done(&reply);
}

static void tokens_can_be_replaced_while_the_server_runs(void **state)
{
    (void)state;
    struct semel_error err;
    const struct semel_http_token fresh[] = {{SEMEL_STR("fresh"), 1}}, bad[] = {{SEMEL_STR("two words"), 1}};
    assert_int_equal(semel__http_set_tokens(httpd.listener, bad, 1, &err), SEMEL_INVALID);
    assert_asked("GET /secret HTTP/1.1\r\n" HOST "Authorization: Bearer " TOKEN "\r\n\r\n", 200, NULL);
    assert_int_equal(semel__http_set_tokens(httpd.listener, fresh, 1, &err), SEMEL_OK);
    assert_asked("GET /secret HTTP/1.1\r\n" HOST "Authorization: Bearer " TOKEN "\r\n\r\n", 401, NULL);
    assert_asked("GET /secret HTTP/1.1\r\n" HOST "Authorization: Bearer fresh\r\n\r\n", 200, NULL);
    assert_int_equal(semel__http_set_tokens(httpd.listener, NULL, 0, &err), SEMEL_OK);
    assert_asked("GET /secret HTTP/1.1\r\n" HOST "Authorization: Bearer fresh\r\n\r\n", 401, NULL);
    assert_asked("GET /secret HTTP/1.1\r\n" HOST "Authorization: Bearer \r\n\r\n", 401, NULL);
}

/* A page of a stranger cannot reach us under its own name (DNS rebinding). */
static void a_host_that_is_not_ours_is_sent_away(void **state)
{
    (void)state;
    static const char *const names[] = {"semel.internal", "[fd00::1]"};
    static const struct {
        const char *host;
        int status;
    } cases[] = {{"localhost", 200},
                 {"LocalHost:8080", 200},
                 {"127.0.0.1:1", 200},
                 {"[::1]:65535", 200},
                 {"[::1]", 200},
                 {"semel.internal", 200},
                 {"[fd00::1]:80", 200},
                 {"evil.example", 421},
                 {"localhost.evil.example", 421},
                 {"127.0.0.2", 421},
                 {"localhost:80:80", 400},
                 {"localhost:", 400},
                 {"localhost:abc", 400},
                 {"localhost:123456", 400},
                 {"user@localhost", 400},
                 {"localhost/x", 400},
                 {"local host", 400},
                 {"localhost, evil.example", 400},
                 {"[::1", 400},
                 {"::1", 400},
                 {"", 400}};
    httpd.settings.hosts = names;
    httpd.settings.n_hosts = COUNT(names);
    httpd_start(&httpd);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[256];
        snprintf(text, sizeof(text), "GET /hello HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].host);
        struct reply reply = client_ask(&httpd, text);
        if (reply.status != cases[i].status)
            fail_msg("Host: %s: %d", cases[i].host, reply.status);
        reply_done(&reply);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, httpd_up_running, httpd_down)
#define OWN(name) cmocka_unit_test_setup_teardown(name, httpd_up, httpd_down)
    const struct CMUnitTest tests[] = {
        CASE(a_request_is_answered_with_what_its_handler_said),
        CASE(a_body_comes_whole_however_it_was_framed),
        CASE(bytes_may_come_one_at_a_time),
        CASE(pipelined_requests_are_answered_in_their_order),
        CASE(a_client_that_closes_its_side_still_gets_every_answer),
        CASE(head_is_get_without_the_body),
        CASE(http_1_0_gets_its_answer_and_the_end),
        CASE(close_is_obeyed),
        OWN(a_connection_ends_after_its_last_request),
        CASE(whoever_expects_100_is_told_to_continue),
        CASE(paths_are_cut_before_they_are_decoded),
        CASE(a_query_is_cut_before_it_is_decoded),
        CASE(a_method_that_a_path_does_not_have_is_told_which_ones_it_has),
        CASE(a_problem_says_what_is_wrong),
        CASE(a_handler_cannot_forge_a_header),
        CASE(a_reply_past_its_bound_becomes_an_error),
        CASE(tokens_open_what_they_are_for),
        CASE(no_handler_sees_the_token_that_opened_its_route),
        CASE(tokens_can_be_replaced_while_the_server_runs),
        OWN(a_host_that_is_not_ours_is_sent_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
