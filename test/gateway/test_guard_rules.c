/* SPDX-License-Identifier: MIT
 *
 * test_guard_rules.c: which requests are guarded, and as what: keys, callers, bodies, settings. The argument is the
 * store; the rules are the same on each.
 */
#include "gateway/guard_rig.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

/* ==== keys ======================================================================================= */

/* A4, and the lines about keys of the bad input. */
static void keys_that_are_none_are_refused(void **state)
{
    (void)state;
    char long_key[300];
    rules[1] = rules[0];
    rules[0].match = "POST /required";
    rules[0].key = SEMEL_GATEWAY_KEY_REQUIRED;
    settings.n_rules = 2;
    open_gateway();
    assert_refused(request("POST", "/", "", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "\"\"", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "1", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "1234567", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "\"1234567\"", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "\"12345678", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "\"1234\"5678\"", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "\"1234567\\a\"", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "12345678\xC3\xA9", "", "x"), 400, "malformed");
    assert_refused(request("POST", "/", "key-00000001", "Idempotency-Key: key-00000001\r\n", "x"), 400, "malformed");
    memset(long_key, 'k', sizeof long_key);
    long_key[256] = '\0';
    assert_refused(request("POST", "/", long_key, "", "x"), 400, "malformed");
    assert_refused(request("POST", "/required", NULL, "", "x"), 400, "missing");
    assert_refused(request("POST", "/Required/", NULL, "", "x"), 400, "missing"); /* P91 */
    assert_refused(request("POST", "/re%71uired", NULL, "", "x"), 400, "missing");
    assert_refused(request("POST", "/required;a=1", NULL, "", "x"), 400, "missing");
    static const char *const controls[] = {"1234\t5678",
                                           "1234\x01"
                                           "5678",
                                           "12345678\x7F",
                                           "\x1B"
                                           "12345678"};
    for (size_t i = 0; i < COUNT(controls); i++)
        assert_int_equal(status_of(request("POST", "/", controls[i], "", "x")), 400);
    assert_int_equal(upstream_seen(&up)->heads, 0);
    long_key[255] = '\0';
    assert_int_equal(status_of(request("POST", "/", long_key, "", "x")), 201);
    assert_int_equal(status_of(request("POST", "/", "abcdefgh", "", "x")), 201);
    assert_int_equal(status_of(request("POST", "/", "\"a\\\"b\\\\c 12\"", "", "x")), 201);
    assert_int_equal(keys("key = 'a\"b\\c 12'"), 1);
    struct reply reply = post("/", "2026-11-17T17:00:00Z", "x");
    assert_int_equal(reply.status, 201);
    assert_non_null(strstr(reply.head, "Semel-Warning: the key is a time"));
    reply_done(&reply);
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->times), 1);
}

/* P91, P50: every part of the request counts. */
static void the_same_key_with_another_request_is_422(void **state)
{
    (void)state;
    static const char *const rule_headers[] = {"X-Tenant", "Host"};
    static const char *const ignore[] = {"/sent_at"};
    rules[0].headers = rule_headers;
    rules[0].n_headers = 2;
    rules[0].ignore = ignore;
    rules[0].n_ignore = 1;
    open_gateway();
    const char *json = "Content-Type: application/json\r\nX-Tenant: a\r\n";
    assert_int_equal(status_of(request("POST", "/v1/c", "key-00000001", json, "{\"a\":1,\"sent_at\":1}")), 201);
    static const char *const paths[] = {"/v1/c/", "/V1/c", "/v1/c?x", "/v1/%63"};
    for (size_t i = 0; i < COUNT(paths); i++)
        assert_refused(request("POST", paths[i], "key-00000001", json, "{\"a\":1}"), 422, "mismatch");
    assert_refused(request("PATCH", "/v1/c", "key-00000001", json, "{\"a\":1}"), 422, "mismatch");
    assert_refused(request("POST", "/v1/c", "key-00000001", json, "{\"a\":2}"), 422, "mismatch");
    assert_refused(request("POST", "/v1/c", "key-00000001", "Content-Type: application/json\r\nX-Tenant: b\r\n",
                           "{\"a\":1}"),
                   422, "mismatch");
    assert_refused("POST /v1/c HTTP/1.1\r\nHost: other.example\r\nIdempotency-Key: key-00000001\r\nX-Tenant: a\r\n"
                   "Content-Type: application/json\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
                   422, "mismatch"); /* P56 */
    struct reply reply = client_ask(&server,
                                    request("POST", "/v1/c", "key-00000001", json, "{ \"sent_at\":9, \"a\":1}"));
    assert_true(reply.status == 201 && replayed(&reply));
    reply_done(&reply);
    assert_int_equal(calls(), 1);
}

static void methods_are_guarded_by_rule(void **state)
{
    (void)state;
    settings.n_rules = 1;
    rules[0].match = "PUT|DELETE /v1/{id}";
    settings.caller = (struct semel_gateway_caller){.kind = SEMEL_GATEWAY_CALLER_API_KEY, .header = "X-Api-Key"};
    rules[1] = rules[0];
    rules[1].match = "POST /off";
    rules[1].key = SEMEL_GATEWAY_KEY_OFF;
    settings.n_rules = 2;
    open_gateway();
    const char *api = "X-Api-Key: secret\r\n";
    static const struct {
        const char *method, *path;
        bool guarded;
    } asks[] = {{"PUT", "/v1/7", true}, {"DELETE", "/v1/8", true}, {"PUT", "/v1/7/8", false}, {"GET", "/v1/7", false},
                {"POST", "/any", true}, {"PATCH", "/any", true},   {"POST", "/off", false}};
    for (size_t i = 0; i < COUNT(asks); i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%08zu", i);
        unsigned before = calls();
        for (int round = 0; round < 2; round++)
            assert_int_equal(status_of(request(asks[i].method, asks[i].path, key, api, "")), 201);
        if (calls() - before != (asks[i].guarded ? 1 : 2))
            fail_msg("%s %s: %u", asks[i].method, asks[i].path, calls() - before);
    }
}

static void a_key_may_be_in_the_body(void **state)
{
    (void)state;
    rules[0].key_pointer = "/idempotency_key";
    open_gateway();
    const char *type = "Content-Type: application/json\r\nIdempotency-Key: another\r\n";
    for (int round = 0; round < 2; round++)
        assert_int_equal(status_of(request("POST", "/", NULL, type, "{\"idempotency_key\":\"key-00000001\"}")), 201);
    assert_int_equal(calls(), 1);
    assert_non_null(strstr(upstream_seen(&up)->head, "\r\nIdempotency-Key: key-00000001\r\n"));
    assert_null(strstr(upstream_seen(&up)->head, "another"));
    assert_refused(request("POST", "/", NULL, type, "{\"idempotency_key\":17}"), 400, "malformed");
    assert_refused(request("POST", "/", NULL, type, "{\"idempotency_key\":\"short\"}"), 400, "malformed");
    assert_int_equal(status_of(request("POST", "/", NULL, type, "{}")), 201); /* optional: it passes */
    assert_int_equal(status_of(request("POST", "/", NULL, type, "")), 201);
    assert_int_equal(status_of(request("POST", "/", NULL, "Content-Type: text/plain\r\n", "no JSON")), 201);
    assert_int_equal(calls(), 4);
    assert_int_equal(keys("true"), 1);
}

/* A4: what the parser of the server may read and ours does not is not passed on without its key, nor is a key missing
 * that could not be seen. */
static void a_body_that_cannot_be_read_hides_no_key(void **state)
{
    (void)state;
    static const struct {
        const char *type, *body;
    } asks[] = {
        {"application/json", "{\"id\":\"key-00000001\""},
        {"application/json", "{\"id\":\"key-00000001\"} trailing"},
        {"application/json", "{\"id\":\"key-00000001\",\"id\":\"key-00000002\"}"},
        {"application/json", "{\"id\":\"key-00000001\",\"name\":\"\xFF\"}"},
        {"application/json", "{\"id\":\"key-00000001\",\"name\":\"\\u0000\"}"},
        {"application/json", "\xEF\xBB\xBF{\"id\":\"key-00000001\"}"},
        {"Application/JSON ; x=y", "{'id':'key-00000001'}"},
        {"application/vnd.shop+json", "{\"id\":\"key-00000001\",}"},
        {"text/json", "{id:\"key-00000001\"}"},
        {NULL, "{\"id\":\"key-00000001\""},
        {"application/json; charset=utf-7", "{\"+AGk-d\":\"key-00000001\"}"},
        {"application/json; charset=\"ut\\f-7\"", "{\"+AGk-d\":\"key-00000001\"}"},
        {"application/json\r\nContent-Encoding: gzip", "\x1F\x8B\x08"},
        {"text/plain\r\nContent-Type: application/json", "{\"id\":\"key-00000001\""},
    };
    static char deep[512], head[128];
    rules[1] = rules[0];
    rules[0].match = "POST /required";
    rules[0].key = SEMEL_GATEWAY_KEY_REQUIRED;
    rules[0].key_pointer = rules[1].key_pointer = "/id";
    settings.n_rules = 2;
    open_gateway();
    for (size_t i = 0; i < COUNT(asks); i++) {
        snprintf(head, sizeof head, "%s%s%s", asks[i].type != NULL ? "Content-Type: " : "",
                 asks[i].type != NULL ? asks[i].type : "", asks[i].type != NULL ? "\r\n" : "");
        assert_refused(request("POST", "/", NULL, head, asks[i].body), 400, "malformed");
        assert_refused(request("POST", "/required", NULL, head, asks[i].body), 400, "malformed");
    }
    int n = snprintf(deep, sizeof deep, "{\"id\":\"key-00000001\",\"a\":");
    memset(deep + n, '[', 100);
    memset(deep + n + 100, ']', 100);
    deep[n + 200] = '}';
    const char *json = "Content-Type: application/json; charset=UTF-8\r\nContent-Encoding: identity\r\n";
    assert_refused(request("POST", "/", NULL, json, deep), 400, "malformed");
    assert_refused(request("POST", "/required", NULL, "Content-Type: text/plain\r\n", "no JSON"), 400, "missing");
    assert_int_equal(upstream_seen(&up)->heads, 0);
    assert_int_equal(status_of(request("POST", "/", NULL, json, "{\"id\":\"key-00000001\"}")), 201);
    assert_int_equal(keys("key = 'key-00000001'"), 1);
}

/* A4, bad input: what is longer than any key is none, and no want of memory. */
static void a_key_as_long_as_a_body_is_malformed(void **state)
{
    (void)state;
    enum { LONG = 600000 };
    static char text[LONG + 256];
    rules[0].key_pointer = "/id";
    open_gateway();
    int n = snprintf(text, sizeof text,
                     "POST / HTTP/1.1\r\n" HOST
                     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"id\":\"",
                     LONG + 9);
    memset(text + n, 'k', LONG);
    snprintf(text + n + LONG, sizeof text - (size_t)n - LONG, "\"}");
    assert_refused(text, 400, "malformed");
}

/* A4, bad input: what a header cannot have, JSON can. The server gets the key as a header. */
static void a_key_in_the_body_brings_no_header_of_its_own(void **state)
{
    (void)state;
    static const char *const odd[] = {"",
                                      "1",
                                      "1234567",
                                      "key-00000001\\r\\nX-User-Id: bob",
                                      "key-00000001\\u007f",
                                      "key-0000000\\u00e9",
                                      "key\\n00000001"};
    static char long_key[300], body[512];
    rules[0].key_pointer = "/id";
    open_gateway();
    const char *type = "Content-Type: application/json\r\n";
    for (size_t i = 0; i < COUNT(odd); i++) {
        snprintf(body, sizeof body, "{\"id\":\"%s\"}", odd[i]);
        assert_refused(request("POST", "/", NULL, type, body), 400, "malformed");
    }
    memset(long_key, 'k', 256);
    snprintf(body, sizeof body, "{\"id\":\"%s\"}", long_key);
    assert_refused(request("POST", "/", NULL, type, body), 400, "malformed");
    assert_int_equal(upstream_seen(&up)->heads, 0);
    long_key[255] = '\0';
    snprintf(body, sizeof body, "{\"id\":\"%s\"}", long_key);
    assert_int_equal(status_of(request("POST", "/", NULL, type, body)), 201);
    assert_int_equal(calls(), 1);
}

/* ==== callers ==================================================================================== */

/* A4, P46, P55: nobody reads another one's answer, and a caller who cannot be known is refused. */
static void a_key_belongs_to_its_caller(void **state)
{
    (void)state;
    static const char *const here[] = {"127.0.0.0/8"};
    rules[0].anonymous = false;
    settings.caller = (struct semel_gateway_caller){.kind = SEMEL_GATEWAY_CALLER_HEADER,
                                                    .header = "X-User-Id",
                                                    .trusted_from = here,
                                                    .n_trusted_from = 1};
    open_gateway();
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "X-User-Id: alice\r\n", "x")), 201);
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "X-User-Id: bob\r\n", "x")), 201);
    assert_int_equal(calls(), 2);
    assert_non_null(strstr(upstream_seen(&up)->head, "\r\nX-User-Id: bob\r\n"));
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 401, "anonymous");
    assert_refused(request("POST", "/", "key-00000001", "X-User-Id: alice\r\nX-User-Id: bob\r\n", "x"), 401,
                   "anonymous");
    assert_refused(request("POST", "/", "key-00000001", "X-User-Id:\r\n", "x"), 401, "anonymous");
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "X-User-Id: semel:anonymous\r\n", "x")), 201);
    assert_int_equal(keys("scope = 'semel:anonymous'"), 0);
    assert_int_equal(keys("scope = 'alice'"), 1);
}

/* Bad input: a spoofed caller. Its header goes no further, guarded or not. */
static void a_peer_that_is_not_trusted_names_no_caller(void **state)
{
    (void)state;
    static const char *const elsewhere[] = {"10.0.0.0/8"};
    rules[0].anonymous = false;
    settings.caller = (struct semel_gateway_caller){.kind = SEMEL_GATEWAY_CALLER_HEADER,
                                                    .header = "X-User-Id",
                                                    .trusted_from = elsewhere,
                                                    .n_trusted_from = 1};
    open_gateway();
    assert_refused(request("POST", "/", "key-00000001", "X-User-Id: alice\r\n", "x"), 401, "anonymous");
    assert_int_equal(upstream_seen(&up)->heads, 0);
    assert_int_equal(status_of(request("POST", "/", NULL, "x-user-id: alice\r\nX-Other: 1\r\n", "x")), 201);
    assert_null(strstr(upstream_seen(&up)->head, "alice"));
    assert_non_null(strstr(upstream_seen(&up)->head, "X-Other: 1"));
}

static void an_api_key_is_kept_as_its_digest(void **state)
{
    (void)state;
    rules[0].anonymous = false;
    settings.caller = (struct semel_gateway_caller){.kind = SEMEL_GATEWAY_CALLER_API_KEY, .header = "Authorization"};
    open_gateway();
    for (int round = 0; round < 2; round++)
        assert_int_equal(status_of(request("POST", "/", "key-00000001", "Authorization: Bearer sk_live_1\r\n", "x")),
                         201);
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "Authorization: Bearer sk_live_2\r\n", "x")), 201);
    assert_int_equal(calls(), 2);
    assert_int_equal(keys("scope LIKE 'semel:key:%' AND length(scope) = 74"), 2);
}

static void a_key_may_belong_to_its_endpoint(void **state)
{
    (void)state;
    static const char *const spellings[] = {"/a/", "/A", "/a;b=1", "/%61", "/%41;b/", "/a/;b"}; /* P91 */
    rules[0].by_endpoint = true;
    open_gateway();
    assert_int_equal(status_of(request("POST", "/a", "key-00000001", "", "x")), 201);
    assert_int_equal(status_of(request("POST", "/b", "key-00000001", "", "x")), 201);
    assert_refused(request("POST", "/b", "key-00000001", "", "y"), 422, "mismatch");
    for (size_t i = 0; i < COUNT(spellings); i++)
        assert_refused(request("POST", spellings[i], "key-00000001", "", "x"), 422, "mismatch");
    assert_int_equal(calls(), 2);
    for (int round = 0; round < 2; round++)
        assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "x")), 201);
    assert_int_equal(calls(), 3);
}

#define SHOP "Origin: https://shop.example\r\n"

static void list_shop(void)
{
    static const char *const cors[] = {"https://shop.example"};
    settings.cors = cors;
    settings.n_cors = 1;
}

static bool shop_reads(const struct reply *reply)
{
    return reply_has(reply, "Access-Control-Allow-Origin: https://shop.example") && reply_has(reply, "Vary: Origin");
}

/* A2: also what is refused before anybody looks for its key, and what has no answer. */
static void browsers_can_read_what_the_gateway_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *path, *more;
        int status;
    } refused[] = {{"/a//b", SHOP, 400},
                   {"/", SHOP "X-HTTP-Method-Override: DELETE\r\n", 400},
                   {"/", SHOP "Upgrade: h2c\r\n", 501},
                   {"/", SHOP, 502}};
    list_shop();
    settings.upstream.url = "http://127.0.0.1:1";
    open_gateway();
    for (size_t i = 0; i < COUNT(refused); i++)
        for (int keyed = 0; keyed < 2; keyed++) {
            struct reply reply = client_ask(&server, request("POST", refused[i].path, keyed ? "key-00000001" : NULL,
                                                             refused[i].more, "x"));
            if (reply.status != refused[i].status || !shop_reads(&reply))
                fail_msg("%zu: %d %s", i, reply.status, reply.head);
            reply_done(&reply);
        }
    struct reply reply = client_ask(&server, request("POST", "/a//b", NULL, "Origin: https://evil.example\r\n", "x"));
    assert_null(strstr(reply.head, "Access-Control"));
    reply_done(&reply);
}

/* A2: what is over the bound of guarded requests is refused as everything else. */
static void guarded_requests_are_bounded(void **state)
{
    (void)state;
    list_shop();
    settings.guarded_max = 1;
    open_gateway();
    upstream_play(&up, script_hold);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    struct reply reply = client_ask(&server, request("POST", "/", "key-00000002", SHOP, "x"));
    assert_true(reply.status == 503 && is_type(&reply, "overloaded"));
    assert_true(reply_has(&reply, "Retry-After: 1") && shop_reads(&reply));
    reply_done(&reply);
    upstream_release(&up);
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 201);
    reply_done(&reply);
    close(fd);
    assert_int_equal(calls(), 1);
}

/* A2: a page of a listed origin can read what it is told. */
static void browsers_can_read_refusals(void **state)
{
    (void)state;
    list_shop();
    open_gateway();
    struct reply reply = client_ask(&server, request("POST", "/", "short", SHOP, "x"));
    assert_true(shop_reads(&reply));
    reply_done(&reply);
    reply = client_ask(&server, request("POST", "/", "short", "Origin: https://evil.example\r\n", "x"));
    assert_null(strstr(reply.head, "Access-Control"));
    reply_done(&reply);
    upstream_answer(
        &up, "HTTP/1.1 201 Created\r\nAccess-Control-Allow-Origin: https://a.example\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "Origin: https://a.example\r\n", "x")), 201);
    reply = client_ask(&server, request("POST", "/", "key-00000001", "Origin: https://a.example\r\n", "x"));
    assert_true(replayed(&reply) && reply_has(&reply, "Access-Control-Allow-Origin: https://a.example"));
    reply_done(&reply);
    reply = client_ask(&server, request("POST", "/", "key-00000001", SHOP, "x"));
    assert_true(replayed(&reply) && reply_has(&reply, "Access-Control-Allow-Origin: https://shop.example"));
    assert_null(strstr(reply.head, "a.example"));
    reply_done(&reply);
}

static bool check_first(struct link *link)
{
    pthread_mutex_lock(&link->up->lock);
    bool check = strncmp(link->up->head, "GET /check", 10) == 0;
    bool fine = strstr(link->up->head, "Bearer good") != NULL || strstr(link->up->head, "X-Api-Key: good") != NULL;
    pthread_mutex_unlock(&link->up->lock);
    return link_sendz(link, !check ? MADE : fine ? OK_EMPTY : "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n");
}

/* P46: authorised again before a replay. */
static void a_caller_is_checked_before_a_replay(void **state)
{
    (void)state;
    static char check[96];
    snprintf(check, sizeof check, "%s/check", url);
    settings.caller.check = check;
    open_gateway();
    upstream_play(&up, check_first);
    const char *good = "Authorization: Bearer good\r\n";
    assert_int_equal(status_of(request("POST", "/", "key-00000001", good, "x")), 201);
    struct reply reply = client_ask(&server, request("POST", "/", "key-00000001", good, "x"));
    assert_true(reply.status == 201 && replayed(&reply));
    reply_done(&reply);
    assert_refused(request("POST", "/", "key-00000001", "Authorization: Bearer bad\r\n", "x"), 403, "forbidden");
    assert_int_equal(calls(), 3);
}

/* The API key is what the check URL knows its caller by. */
static void the_check_gets_the_api_key(void **state)
{
    (void)state;
    static char check[96];
    snprintf(check, sizeof check, "%s/check", url);
    settings.caller = (struct semel_gateway_caller){.kind = SEMEL_GATEWAY_CALLER_API_KEY,
                                                    .header = "X-Api-Key",
                                                    .check = check};
    open_gateway();
    upstream_play(&up, check_first);
    const char *good = "X-Api-Key: good\r\nX-Other: 1\r\n", *bad = "X-Api-Key: bad\r\n";
    for (int round = 0; round < 2; round++) {
        struct reply reply = client_ask(&server, request("POST", "/", "key-00000001", good, "x"));
        assert_true(reply.status == 201 && replayed(&reply) == (round == 1));
        reply_done(&reply);
    }
    assert_null(strstr(upstream_seen(&up)->head, "X-Other"));
    assert_int_equal(status_of(request("POST", "/", "key-00000001", bad, "x")), 201);
    assert_refused(request("POST", "/", "key-00000001", bad, "x"), 403, "forbidden");
}

/* ==== bodies ===================================================================================== */

static void bodies_are_bounded_as_they_arrive(void **state)
{
    (void)state;
    rules[0].body_max = 100000;
    rules[0].answer_max = 100000;
    rules[0].held_max = 150000;
    open_gateway();
    assert_refused("POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: 100001\r\n\r\n", 413,
                   "too-large");
    char *big = malloc(100001);
    memset(big, 'x', 100000);
    big[100000] = '\0';
    int fd = client_open(&server);
    struct reply reply;
    client_sendz(fd, "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000002\r\nTransfer-Encoding: chunked\r\n\r\n");
    client_sendz(fd, "186a0\r\n");
    client_send(fd, big, 100000);
    client_sendz(fd, "\r\n1\r\nx\r\n0\r\n\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_true(reply.status == 413 && is_type(&reply, "too-large"));
    reply_done(&reply);
    close(fd);
    /* P87: announced bytes count for nothing, and those that came for all of the rule's */
    int held = client_open(&server), announced = client_open(&server);
    client_sendz(held, "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000003\r\nContent-Length: 100000\r\n\r\n");
    client_send(held, big, 99999);
    client_sendz(announced,
                 "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000004\r\nContent-Length: 100000\r\n\r\n");
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->held_bytes) == 99999);
    assert_int_equal(status_of(request("POST", "/", "key-00000005", "", "x")), 201);
    client_send(announced, big, 60000);
    assert_true(client_reply(announced, &reply, false));
    assert_true(reply.status == 503 && is_type(&reply, "overloaded"));
    reply_done(&reply);
    close(announced);
    client_send(held, "x", 1);
    assert_true(client_reply(held, &reply, false));
    assert_int_equal(reply.status, 201);
    reply_done(&reply);
    close(held);
    free(big);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->held_bytes) == 0);
}

static bool answer_sixty(struct link *link)
{
    static char bytes[60000];
    memset(bytes, 'a', sizeof bytes);
    return link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n") && link_send(link, bytes, sizeof bytes);
}

/* P87, P51: it is under its cap, and others have the rule's memory: stored without its body, then passed on. */
static void an_answer_over_the_budget_is_stored_without_its_body(void **state)
{
    (void)state;
    rules[0].body_max = rules[0].answer_max = 100000;
    rules[0].held_max = 150000;
    open_gateway();
    char *big = calloc(1, 100000);
    int held = client_open(&server);
    client_sendz(held, "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: 100000\r\n\r\n");
    client_send(held, big, 99999);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->held_bytes) == 99999);
    upstream_play(&up, answer_sixty);
    struct reply reply = post("/", "key-00000002", "x");
    assert_true(reply.status == 200 && reply.n == 60000 && !replayed(&reply));
    reply_done(&reply);
    reply = post("/", "key-00000002", "x");
    assert_true(reply.status == 200 && reply.n == 0 && replayed(&reply));
    reply_done(&reply);
    close(held);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->held_bytes) == 0);
    reply = post("/", "key-00000003", "x");
    reply_done(&reply);
    reply = post("/", "key-00000003", "x");
    assert_true(reply.n == 60000 && replayed(&reply));
    reply_done(&reply);
    assert_int_equal(calls(), 2);
    free(big);
}

static void *run_other(void *arg)
{
    struct semel_error err;
    return semel__http_run(arg, &err) == SEMEL_OK ? NULL : arg;
}

/* P87: what one loop holds counts for all loops of its gateway. */
static void loops_share_the_bound_of_a_rule(void **state)
{
    (void)state;
    static _Atomic size_t held[2];
    static char big[90000];
    struct semel_http *other_http;
    struct semel_gateway *other;
    struct semel_error err;
    struct reply reply;
    pthread_t other_thread;
    rules[0].body_max = rules[0].answer_max = 100000;
    rules[0].held_max = 150000;
    settings.held = held;
    open_gateway();
    assert_int_equal(semel__http_new(&other_http, NULL, &err), SEMEL_OK);
    assert_int_equal(semel__gateway_open(&other, other_http, &settings, &err), SEMEL_OK);
    assert_int_equal(pthread_create(&other_thread, NULL, run_other, other_http), 0);
    const struct httpd there = {.port = semel__gateway_port(other)};
    int fds[2] = {client_open(&server), client_open(&there)};
    for (int i = 0; i < 2; i++) {
        char head[256];
        snprintf(head, sizeof head,
                 "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-0000000%d\r\nContent-Length: 90000\r\n\r\n", i);
        client_sendz(fds[i], head);
        client_send(fds[i], big, i == 0 ? sizeof big - 1 : 70000);
        if (i == 0)
            WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->held_bytes) == sizeof big - 1);
    }
    assert_true(client_reply(fds[1], &reply, false));
    assert_true(reply.status == 503 && is_type(&reply, "overloaded"));
    reply_done(&reply);
    client_send(fds[0], big, 1);
    assert_true(client_reply(fds[0], &reply, false));
    assert_int_equal(reply.status, 201);
    reply_done(&reply);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->held_bytes) == 0);
    assert_int_equal(atomic_load(&held[0]), 0);
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    semel__http_stop(other_http, 10000);
    pthread_join(other_thread, NULL);
    semel__http_free(other_http);
    close_gateway(10000);
    semel__gateway_close(other);
}

static bool send_large(struct link *link)
{
    return answer_large(link, "200 OK");
}

static void read_large(int fd, bool again)
{
    struct reply reply;
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 200);
    assert_int_equal(reply.n, LARGE);
    assert_int_equal(strspn(reply.body, "a"), LARGE);
    assert_int_equal(replayed(&reply), again);
    reply_done(&reply);
    close(fd);
}

/* P87: what clients have not read yet counts, whether it is their own answer, that of the one they waited for, or a
 * stored one. */
static void answers_that_nobody_reads_are_bounded(void **state)
{
    (void)state;
    const struct semel_gateway_counts *counts;
    int fds[3];
    rules[0].held_max = 3 * LARGE + LARGE / 2;
    open_gateway();
    counts = semel__gateway_counts(gateway);
    upstream_play(&up, send_large);
    for (size_t i = 0; i < COUNT(fds); i++) {
        fds[i] = client_open(&server);
        client_sendz(fds[i], request("POST", "/", "key-00000001", "", "x"));
        if (i == 0)
            upstream_wait_requests(&up, 1);
    }
    WAIT_FOR(atomic_load(&counts->waited) == COUNT(fds) - 1);
    upstream_release(&up);
    WAIT_FOR(atomic_load(&counts->replayed) == COUNT(fds) - 1);
    assert_true(atomic_load(&counts->held_bytes) >= 3 * LARGE);
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 503, "overloaded");
    for (size_t i = 0; i < COUNT(fds); i++)
        read_large(fds[i], i > 0);
    WAIT_FOR(atomic_load(&counts->held_bytes) == 0);
    for (size_t i = 0; i < COUNT(fds); i++) {
        fds[i] = client_open(&server);
        client_sendz(fds[i], request("POST", "/", "key-00000001", "", "x"));
    }
    WAIT_FOR(atomic_load(&counts->held_bytes) >= 3 * LARGE);
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 503, "overloaded");
    read_large(fds[0], true);
    close(fds[1]); /* it leaves */
    close(fds[2]);
    WAIT_FOR(atomic_load(&counts->held_bytes) == 0);
    assert_int_equal(calls(), 1);
}

/* P87 */
static void a_request_that_was_answered_is_not_held(void **state)
{
    (void)state;
    static char body[100001];
    char head[256];
    const struct semel_gateway_counts *counts = semel__gateway_counts(gateway);
    upstream_play(&up, send_large);
    int fd = client_open(&server);
    snprintf(head, sizeof head,
             "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: %zu\r\n\r\n", sizeof body);
    client_sendz(fd, head);
    client_send(fd, body, sizeof body);
    upstream_wait_requests(&up, 1);
    assert_int_equal(atomic_load(&counts->held_bytes), sizeof body);
    upstream_release(&up);
    WAIT_FOR(atomic_load(&counts->held_bytes) == LARGE); /* until the client reads */
    read_large(fd, false);
    WAIT_FOR(atomic_load(&counts->held_bytes) == 0);
}

/* P104, P97: over 32 KiB it is digested in another thread; a boundary may differ; malformed multipart is its bytes. */
static void bodies_of_all_kinds_are_told_apart(void **state)
{
    (void)state;
    size_t n = 300000;
    char *body = malloc(n + 1), head[256];
    for (int round = 0; round < 3; round++) {
        struct reply reply;
        memset(body, ' ', n);
        memcpy(body, "{\"a\":1,", 7);
        memcpy(body + n - 8, round < 2 ? "\"b\":2  }" : "\"b\":3  }", 8);
        snprintf(head, sizeof head,
                 "POST / HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
                 "Idempotency-Key: key-00000001\r\nContent-Length: %zu\r\n\r\n",
                 n);
        int fd = client_open(&server);
        client_sendz(fd, head);
        client_send(fd, body, n);
        assert_true(client_reply(fd, &reply, false));
        assert_int_equal(reply.status, round < 2 ? 201 : 422);
        reply_done(&reply);
        close(fd);
        n--; /* less white space */
    }
    free(body);
    assert_int_equal(calls(), 1);
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->aside), 3);
#define PART(b) "--" b "\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--" b "--\r\n"
    const char *one = "Content-Type: multipart/form-data; boundary=aaa\r\n";
    const char *two = "Content-Type: multipart/form-data; boundary=bbbb\r\n";
    assert_int_equal(status_of(request("POST", "/", "key-00000002", one, PART("aaa"))), 201);
    assert_int_equal(status_of(request("POST", "/", "key-00000002", two, PART("bbbb"))), 201);
    assert_int_equal(calls(), 2);
    assert_int_equal(status_of(request("POST", "/", "key-00000003", one, "--aaa\r\nno end")), 201);
    assert_refused(request("POST", "/", "key-00000003", two, "--bbb\r\nno end"), 422, "mismatch");
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->aside), 3); /* small ones are not worth a thread */
}

/* ==== settings =================================================================================== */

static void settings_that_cannot_be_meant_are_refused(void **state)
{
    (void)state;
    static const char *const matches[] = {"/v1",        "POST",         "POST v1",  "FETCH /v1",
                                          "POST /a//b", "POST /{a*}/b", "POST /a?b"};
    struct semel_error err;
    assert_int_equal(semel__keeper_new(&keeper, &keeping, &err), SEMEL_OK);
    settings.keeper = keeper;
    for (size_t i = 0; i < COUNT(matches) + 6; i++) {
        semel__gateway_rule_init(&rules[0]);
        settings.caller = (struct semel_gateway_caller){.kind = SEMEL_GATEWAY_CALLER_NONE};
        rules[0].match = i < COUNT(matches) ? matches[i] : "POST /";
        if (i == COUNT(matches))
            rules[0].key_pointer = "a";
        if (i == COUNT(matches) + 1)
            rules[0].reconcile = "http://127.0.0.1/";
        if (i == COUNT(matches) + 2)
            rules[0].answer_ms = 1000;
        if (i == COUNT(matches) + 3)
            settings.caller.kind = SEMEL_GATEWAY_CALLER_HEADER;
        if (i == COUNT(matches) + 4)
            settings.caller.kind = SEMEL_GATEWAY_CALLER_CERTIFICATE;
        if (i == COUNT(matches) + 5) {
            rules[0].on_unknown = SEMEL_ON_UNKNOWN_RECONCILE;
            rules[0].reconcile = "nowhere";
        }
        assert_int_equal(semel__http_new(&http, NULL, &err), SEMEL_OK);
        if (semel__gateway_open(&gateway, http, &settings, &err) != SEMEL_INVALID)
            fail_msg("%zu was taken", i);
        assert_true(err.text[0] != '\0');
        semel__http_free(http);
        semel__gateway_close(gateway);
        http = NULL;
    }
    semel__keeper_free(keeper);
}

static const struct CMUnitTest tests[] = {
    ALONE(keys_that_are_none_are_refused),
    ALONE(the_same_key_with_another_request_is_422),
    ALONE(methods_are_guarded_by_rule),
    ALONE(a_key_may_be_in_the_body),
    ALONE(a_body_that_cannot_be_read_hides_no_key),
    ALONE(a_key_as_long_as_a_body_is_malformed),
    ALONE(a_key_in_the_body_brings_no_header_of_its_own),
    ALONE(a_key_belongs_to_its_caller),
    ALONE(a_peer_that_is_not_trusted_names_no_caller),
    ALONE(an_api_key_is_kept_as_its_digest),
    ALONE(a_key_may_belong_to_its_endpoint),
    ALONE(browsers_can_read_refusals),
    ALONE(browsers_can_read_what_the_gateway_refuses),
    ALONE(guarded_requests_are_bounded),
    ALONE(a_caller_is_checked_before_a_replay),
    ALONE(the_check_gets_the_api_key),
    ALONE(bodies_are_bounded_as_they_arrive),
    ALONE(an_answer_over_the_budget_is_stored_without_its_body),
    ALONE(loops_share_the_bound_of_a_rule),
    ALONE(answers_that_nobody_reads_are_bounded),
    OPEN(a_request_that_was_answered_is_not_held),
    OPEN(bodies_of_all_kinds_are_told_apart),
    ALONE(settings_that_cannot_be_meant_are_refused),
};

int main(int argc, char **argv)
{
    bool sqlite;
    if (!choose_store(argc, argv, &sqlite))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
