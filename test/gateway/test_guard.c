/* SPDX-License-Identifier: MIT
 *
 * test_guard.c: guarded requests: their answers, those who come at the same time, what is unknown; on SQLite and
 * PostgreSQL. The argument is the store.
 */
#include "gateway/guard_rig.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <uv.h>

#include "base/error.h"
#include "base/wait.h"

/* ==== answers ==================================================================================== */

/* A1, P52, P101 */
static void the_first_answer_is_replayed_and_the_work_is_done_once(void **state)
{
    (void)state;
    upstream_answer(&up, "HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nX-A: 1\r\nX-A: 2\r\nSet-Cookie: s=1\r\n"
                         "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nAge: 3\r\nX-RateLimit-Remaining: 4\r\n"
                         "traceparent: 00-a\r\nConnection: X-Hop\r\nX-Hop: 1\r\nSemel-Outcome: completed\r\n"
                         "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    const char *json = "Content-Type: application/json\r\n";
    struct reply first = client_ask(&server,
                                    request("POST", "/v1/charges", "\"key-00000001\"", json, "{\"a\": 1, \"b\": 2}"));
    assert_int_equal(first.status, 201);
    assert_string_equal(first.body, "hello");
    assert_true(reply_has(&first, "Set-Cookie: s=1"));
    assert_false(replayed(&first));
    assert_null(strstr(first.head, "Semel-"));
    const char *head = upstream_seen(&up)->head;
    assert_non_null(strstr(head, "\r\nIdempotency-Key: \"key-00000001\"\r\n"));
    assert_non_null(strstr(head, "\r\nSemel-Token: "));
    assert_non_null(strstr(head, "\r\nAccept-Encoding: identity\r\n"));
    struct reply again = client_ask(&server, request("POST", "/v1/charges", "key-00000001", json, "{\"b\":2,\"a\":1}"));
    assert_int_equal(again.status, 201);
    assert_string_equal(again.body, "hello");
    assert_true(replayed(&again));
    assert_true(reply_has(&again, "X-A: 1") && reply_has(&again, "X-A: 2"));
    assert_true(reply_has(&again, "Content-Type: text/plain"));
    static const char *const gone[] = {"Set-Cookie", "1994", "Age:", "RateLimit", "traceparent", "X-Hop", "Semel-"};
    for (size_t i = 0; i < COUNT(gone); i++)
        assert_null(strstr(again.head, gone[i]));
    reply_done(&first);
    reply_done(&again);
    assert_int_equal(calls(), 1);
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->replayed), 1);
    assert_int_equal(keys("status = 'completed'"), 1);
}

static const struct {
    const char *status; /* with its reason */
    const char *more;
    int again;         /* the status of the same request again */
    unsigned requests; /* upstream, then */
} outcomes[] = {
    {"200 OK", "", 200, 1},
    {"302 Found", "Location: /x\r\n", 302, 1},
    {"402 Payment Required", "", 402, 1},
    {"410 Gone", "", 410, 1},
    {"400 Bad Request", "", 400, 2},
    {"401 Unauthorized", "", 401, 2},
    {"409 Conflict", "", 409, 2},
    {"422 Unprocessable", "", 422, 2},
    {"429 Too Many", "", 429, 2},
    {"500 Internal", "", 409, 1},
    {"503 Unavailable", "Retry-After: 1\r\n", 409, 1},
    {"503 Unavailable", "Semel-Outcome: released\r\n", 503, 2},
    {"200 OK", "Semel-Outcome: unknown\r\n", 409, 1},
    {"404 Not Found", "Semel-Outcome: completed\r\n", 404, 1},
};

/* A3, A7, P49, P92, P102 */
static void the_status_decides_what_becomes_of_the_key(void **state)
{
    (void)state;
    static char answers[COUNT(outcomes)][256]; /* the upstream may still have the last one */
    unsigned before = 0;
    for (size_t i = 0; i < COUNT(outcomes); i++) {
        char *answer = answers[i], key[32];
        snprintf(answer, sizeof answers[i], "HTTP/1.1 %s\r\n%sContent-Length: 0\r\n\r\n", outcomes[i].status,
                 outcomes[i].more);
        snprintf(key, sizeof key, "key-%08zu", i);
        upstream_answer(&up, answer);
        struct reply first = post("/", key, "x"), again = post("/", key, "x");
        if (strtol(outcomes[i].status, NULL, 10) != first.status || again.status != outcomes[i].again)
            fail_msg("%s: %d, then %d", outcomes[i].status, first.status, again.status);
        if (calls() - before != outcomes[i].requests)
            fail_msg("%s: %u requests", outcomes[i].status, calls() - before);
        assert_int_equal(is_type(&again, "unknown"), outcomes[i].again == 409 && outcomes[i].requests == 1);
        before = calls();
        reply_done(&first);
        reply_done(&again);
    }
}

/* P102: a corrected form may use its key. */
static void a_refusal_frees_the_key_for_another_body(void **state)
{
    (void)state;
    upstream_answer(&up, "HTTP/1.1 422 No\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "wrong")), 422);
    upstream_answer(&up, MADE);
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "right")), 201);
    assert_refused(request("POST", "/", "key-00000001", "", "wrong"), 422, "mismatch");
}

static const struct {
    const char *name, *answer;
} broken[] = {
    {"truncated", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"},
    {"not HTTP", "SSH-2.0-OpenSSH\r\n"},
    {"101", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"},
    {"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n"},
    {"endless 1xx", "HTTP/1.1 103 A\r\n\r\nHTTP/1.1 103 A\r\n\r\nHTTP/1.1 103 A\r\n\r\nHTTP/1.1 103 A\r\n\r\n"
                    "HTTP/1.1 103 A\r\n\r\nHTTP/1.1 103 A\r\n\r\nHTTP/1.1 103 A\r\n\r\nHTTP/1.1 103 A\r\n\r\n"
                    "HTTP/1.1 103 A\r\n\r\nHTTP/1.1 103 A\r\n\r\n"},
    {"nothing", ""},
};
static const char *broken_answer;
static pthread_mutex_t broken_lock = PTHREAD_MUTEX_INITIALIZER;

static bool send_broken(struct link *link)
{
    pthread_mutex_lock(&broken_lock);
    const char *answer = broken_answer;
    pthread_mutex_unlock(&broken_lock);
    link_sendz(link, answer);
    return false;
}

/* P47, P93, P94: once something was sent, everything but a whole answer is unknown, and is not sent again. */
static void an_answer_that_is_none_leaves_the_key_unknown(void **state)
{
    (void)state;
    upstream_play(&up, send_broken);
    for (size_t i = 0; i < COUNT(broken); i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%08zu", i);
        pthread_mutex_lock(&broken_lock);
        broken_answer = broken[i].answer;
        pthread_mutex_unlock(&broken_lock);
        struct reply first = post("/", key, "x");
        if (first.status != 502 || !is_type(&first, "unknown"))
            fail_msg("%s: %d %s", broken[i].name, first.status, first.body);
        reply_done(&first);
        assert_refused(request("POST", "/", key, "", "x"), 409, "unknown");
        assert_int_equal(calls(), i + 1);
    }
    assert_int_equal(keys("status = 'unknown'"), COUNT(broken));
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->unknown[SEMEL_UPSTREAM_TRUNCATED]), 1);
}

static void a_late_answer_leaves_the_key_unknown(void **state)
{
    (void)state;
    settings.upstream.answer_ms = 100;
    open_gateway();
    upstream_play(&up, script_hold);
    struct reply reply = post("/", "key-00000001", "x");
    assert_int_equal(reply.status, 504);
    assert_true(is_type(&reply, "unknown"));
    reply_done(&reply);
    upstream_release(&up);
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 409, "unknown");
    assert_int_equal(calls(), 1);
}

static void a_dead_upstream_frees_the_key(void **state)
{
    (void)state;
    settings.upstream.url = "http://127.0.0.1:1";
    open_gateway();
    struct reply reply = post("/", "key-00000001", "x");
    assert_int_equal(reply.status, 502);
    assert_non_null(strstr(reply.body, "(connect)"));
    assert_false(is_type(&reply, "unknown"));
    reply_done(&reply);
    assert_int_equal(keys("true"), 0);
}

/* A server whose connections come about late. */
struct slow_server {
    int fd, full[8];
    char url[64];
};

static void slow_server_open(struct slow_server *slow)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    socklen_t n = sizeof in;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    slow->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(slow->fd, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(listen(slow->fd, 0), 0);
    assert_int_equal(getsockname(slow->fd, (struct sockaddr *)&in, &n), 0);
    for (size_t i = 0; i < COUNT(slow->full); i++) { /* its queue is full: the kernel tries again after a second */
        slow->full[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(slow->full[i], (struct sockaddr *)&in, sizeof in);
    }
    snprintf(slow->url, sizeof slow->url, "http://127.0.0.1:%u", ntohs(in.sin_port));
}

/* Accepts all connections until the client's answer comes; the number of bytes that they bring. */
static size_t slow_server_accept(const struct slow_server *slow, int client)
{
    struct pollfd fds[] = {{.fd = client, .events = POLLIN}, {.fd = slow->fd, .events = POLLIN}};
    size_t got = 0;
    for (size_t i = 0; i < COUNT(slow->full); i++)
        close(slow->full[i]);
    for (;;) {
        char bytes[4096];
        assert_true(poll(fds, COUNT(fds), WAIT_MS) > 0);
        if (fds[0].revents != 0 || got > 0)
            return got;
        int fd = accept(slow->fd, NULL, NULL);
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        got += n > 0 ? (size_t)n : 0;
        close(fd);
    }
}

/* The connection comes about after the lease has ended. */
static void nothing_is_sent_when_the_lease_has_ended(void **state)
{
    (void)state;
    struct slow_server slow;
    struct reply reply;
    slow_server_open(&slow);
    settings.upstream.url = slow.url;
    keeping.lease_ms = 300;
    open_gateway();
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    WAIT_FOR(keys("status = 'processing'") == 1);
    poll(NULL, 0, 400); /* more than the lease */
    assert_int_equal(slow_server_accept(&slow, fd), 0);
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 503);
    assert_true(is_type(&reply, "not-stored"));
    reply_done(&reply);
    close(fd);
    close(slow.fd);
    assert_int_equal(keys("true"), 0); /* released */
}

/* Whoever writes rows by SQL may write anything into them. */
static void stored_headers_that_are_none_are_left_out(void **state)
{
    (void)state;
    char sql[256];
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "x")), 201);
    snprintf(sql, sizeof sql,
             "UPDATE %s SET headers = '[[\"x/y\",\"1\"],[\"a b\",\"1\"],[\"\",\"1\"],[\"x-good\",\"1\"]]'", table);
    world.driver->sql(&world, sql);
    struct reply reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 201 && replayed(&reply) && reply_has(&reply, "x-good: 1"));
    assert_null(strstr(reply.head, "x/y"));
    assert_null(strstr(reply.head, "a b"));
    reply_done(&reply);
}

/* P94: its server may be about to close it. */
static void a_guarded_call_takes_no_connection_that_was_idle_for_a_second(void **state)
{
    (void)state;
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "x")), 201);
    assert_int_equal(upstream_seen(&up)->n_links, 1);
    poll(NULL, 0, SEMEL_UPSTREAM_FRESH_MS + 200);
    assert_int_equal(status_of(request("POST", "/", "key-00000002", "", "x")), 201);
    assert_int_equal(upstream_seen(&up)->n_links, 2);
}

/* P93: a handler that acts at half a body. Its answer counts. */
static bool act_early(struct link *link)
{
    return link_sendz(link, MADE);
}

static void an_early_answer_counts(void **state)
{
    (void)state;
    static char body[200000];
    memset(body, 'x', sizeof body - 1);
    upstream_play_early(&up, act_early);
    upstream_play(&up, script_close);
    char head[256];
    for (int round = 0; round < 2; round++) {
        struct reply reply;
        int fd = client_open(&server);
        snprintf(head, sizeof head,
                 "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: %zu\r\n\r\n",
                 sizeof body - 1);
        client_sendz(fd, head);
        client_send(fd, body, sizeof body - 1);
        assert_true(client_reply(fd, &reply, false));
        assert_int_equal(reply.status, 201);
        assert_int_equal(replayed(&reply), round == 1);
        reply_done(&reply);
        close(fd);
    }
    assert_int_equal(upstream_seen(&up)->heads, 1);
}

/* ==== large answers, and those that stay unstored ================================================ */

static bool send_big(struct link *link)
{
    static char bytes[65536];
    if (!link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 4194304\r\n\r\n"))
        return false;
    for (int i = 0; i < 64; i++)
        if (!link_send(link, bytes, sizeof bytes))
            return false;
    return true;
}

static bool send_big_chunked(struct link *link)
{
    static char bytes[65536];
    if (!link_sendz(link, "HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n"))
        return false;
    for (int i = 0; i < 64; i++)
        if (!link_sendz(link, "10000\r\n") || !link_send(link, bytes, sizeof bytes) || !link_sendz(link, "\r\n"))
            return false;
    return link_sendz(link, "0\r\n\r\n");
}

/* How many bytes a chunked answer brings, by the end of its connection. */
static size_t all_bytes(const char *text)
{
    int fd = client_open(&server);
    size_t n;
    client_sendz(fd, text);
    shutdown(fd, SHUT_WR);
    free(client_rest(fd, &n));
    close(fd);
    return n;
}

/* P51 */
static void an_answer_over_the_cap_is_stored_without_its_body(void **state)
{
    (void)state;
    upstream_play(&up, send_big);
    struct reply reply = post("/", "key-00000001", "x");
    assert_int_equal(reply.n, 4194304);
    reply_done(&reply);
    upstream_play(&up, send_big_chunked);
    assert_true(all_bytes(request("POST", "/", "key-00000002", "", "x")) > 4194304);
    for (int i = 1; i <= 2; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%08d", i);
        reply = post("/", key, "x");
        assert_int_equal(reply.status, 200);
        assert_true(replayed(&reply));
        assert_int_equal(reply.n, 0);
        reply_done(&reply);
    }
    assert_int_equal(calls(), 2);
    assert_int_equal(keys("status = 'completed' AND body IS NULL"), 2);
}

static void a_body_that_is_not_to_be_stored_is_not(void **state)
{
    (void)state;
    rules[0].store_body = false;
    open_gateway();
    struct reply reply = post("/", "key-00000001", "x");
    assert_string_equal(reply.body, "ok");
    reply_done(&reply);
    reply = post("/", "key-00000001", "x");
    assert_true(replayed(&reply) && reply.n == 0 && reply_has(&reply, "X-Made: 1"));
    reply_done(&reply);
}

/* A server may compress although it was asked not to. A client that decodes nothing as gzip fails. */
static void a_replay_without_its_body_has_no_encoding(void **state)
{
    (void)state;
    rules[1] = rules[0];
    rules[0].match = "POST /bare";
    rules[0].store_body = false;
    settings.n_rules = 2;
    open_gateway();
    upstream_answer(&up, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nX-Made: 1\r\nContent-Length: 2\r\n\r\nok");
    for (int bare = 0; bare < 2; bare++)
        for (int round = 0; round < 2; round++) {
            struct reply reply = post(bare ? "/bare" : "/", bare ? "key-00000001" : "key-00000002", "x");
            assert_true(reply.status == 200 && replayed(&reply) == (round == 1) && reply_has(&reply, "X-Made: 1"));
            assert_int_equal(reply.n, bare && round == 1 ? 0 : 2);
            assert_int_equal(reply_has(&reply, "Content-Encoding: gzip"), !bare || round == 0);
            reply_done(&reply);
        }
}

static void a_stream_of_events_is_stored_when_it_begins(void **state)
{
    (void)state;
    upstream_answer(&up, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: a\n\n");
    struct reply reply = post("/", "key-00000001", "x");
    assert_string_equal(reply.body, "data: a\n\n");
    reply_done(&reply);
    reply = post("/", "key-00000001", "x");
    assert_true(replayed(&reply) && reply.n == 0);
    reply_done(&reply);
}

/* A time in SQL. */
static const char *later(void)
{
    return strcmp(world.driver->name, "sqlite") == 0 ? "9000000000000000" : "now() + interval '1 day'";
}

static void rename_table(bool back)
{
    static const char *const sqlite[] = {"ALTER TABLE semel_idempotency RENAME TO gone",
                                         "ALTER TABLE gone RENAME TO semel_idempotency"};
    static const char *const postgres[] = {"ALTER TABLE semel.idempotency RENAME TO gone",
                                           "ALTER TABLE semel.gone RENAME TO idempotency"};
    world.driver->sql(&world, (strcmp(world.driver->name, "sqlite") == 0 ? sqlite : postgres)[back ? 1 : 0]);
}

/* P48, A2: the answer is kept, and stored as soon as that is possible. */
static void an_answer_that_cannot_be_stored_is_a_503_and_is_kept(void **state)
{
    (void)state;
    struct reply reply;
    upstream_play(&up, script_hold);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    rename_table(false);
    upstream_release(&up);
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 503);
    assert_true(is_type(&reply, "not-stored"));
    assert_non_null(strstr(reply.head, "Retry-After: "));
    reply_done(&reply);
    close(fd);
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->unstored), 1);
    rename_table(true);
    reply = post("/", "key-00000001", "x"); /* it waits behind the one that is being stored */
    assert_int_equal(reply.status, 201);
    assert_true(replayed(&reply));
    reply_done(&reply);
    assert_int_equal(calls(), 1);
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->unstored), 0);
}

static void an_answer_that_is_not_stored_before_its_lease_ends_is_unknown(void **state)
{
    (void)state;
    struct reply reply;
    keeping.lease_ms = 300;
    open_gateway();
    upstream_play(&up, script_hold);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    rename_table(false);
    upstream_release(&up);
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 503);
    reply_done(&reply);
    close(fd);
    poll(NULL, 0, 600); /* more than a lease */
    rename_table(true);
    WAIT_FOR(keys("status = 'unknown'") == 1);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->running) == 0);
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 409, "unknown");
    assert_int_equal(calls(), 1);
}

static atomic_size_t poured;

static bool pour(struct link *link)
{
    static char bytes[4096];
    int room = sizeof bytes;
    setsockopt(link->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (!link_wait_release(link) || !link_sendz(link, "HTTP/1.1 404 No\r\nContent-Length: 1073741824\r\n\r\n"))
        return false;
    while (link_send(link, bytes, sizeof bytes))
        atomic_fetch_add(&poured, sizeof bytes);
    return false;
}

/* How much of that the gateway has read: the rest is in the sockets of the upstream's port. */
static size_t drunk(void)
{
    char line[512];
    unsigned from, to;
    unsigned long out, in, unread = 0;
    FILE *file = fopen("/proc/net/tcp", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, " %*u: %*x:%x %*x:%x %*x %lx:%lx", &from, &to, &out, &in) == 4 &&
            (from == up.port || to == up.port))
            unread += out + in;
    fclose(file);
    return atomic_load(&poured) > unread ? atomic_load(&poured) - unread : 0;
}

/* P51: storing is tried again and again, and nothing more is read of an answer that its client does not take. */
static void an_answer_that_is_not_stored_yet_waits_for_its_client(void **state)
{
    (void)state;
    const struct semel_gateway_counts *counts = semel__gateway_counts(gateway);
    atomic_store(&poured, 0);
    upstream_play(&up, pour);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    rename_table(false);
    upstream_release(&up);
    WAIT_FOR(atomic_load(&counts->unstored) == 1 && atomic_load(&poured) > 0);
    bool quiet = false;
    for (int i = 0; i < 8 && !quiet; i++) { /* looks are 10 ms apart, attempts at most a second */
        size_t before = drunk();
        uint64_t looks = atomic_load(&counts->looked_at);
        WAIT_FOR(atomic_load(&counts->looked_at) >= looks + 110);
        quiet = drunk() <= before + 4096; /* one piece may be half in a socket */
    }
    assert_true(quiet);
    rename_table(true);
    close(fd);
    upstream_play(&up, NULL);
}

/* Bad input: a store without its table. Never unguarded, unless the rule wants it. */
static void without_its_store_nothing_is_sent_on(void **state)
{
    (void)state;
    rules[1] = rules[0];
    rules[0].match = "POST /open";
    rules[0].pass_when_down = true;
    settings.n_rules = 2;
    open_gateway();
    rename_table(false);
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 503, "not-stored");
    assert_int_equal(upstream_seen(&up)->heads, 0);
    assert_int_equal(status_of(request("POST", "/open", "key-00000001", "", "x")), 201);
    assert_null(strstr(upstream_seen(&up)->head, "Semel-Token"));
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->passed), 1);
    assert_int_equal(status_of("GET / HTTP/1.1\r\n" HOST "\r\n"), 201);
    rename_table(true);
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "x")), 201);
}

/* A1: a store that has the key and cannot read it is not away. */
static void a_key_whose_row_is_damaged_is_not_passed_on(void **state)
{
    (void)state;
    char sql[160];
    rules[0].pass_when_down = true;
    settings.n_rules = 1;
    open_gateway();
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "x")), 201);
    if (strcmp(world.driver->name, "sqlite") == 0)
        world.driver->sql(&world, "PRAGMA ignore_check_constraints = 1");
    snprintf(sql, sizeof sql, "UPDATE %s SET token = -5", table);
    world.driver->sql(&world, sql);
    for (unsigned i = 0; i < 2; i++) /* not looked for, and expected */
        assert_refused(request("POST", "/", "key-00000001", "", "x"), 503, "not-stored");
    assert_int_equal(calls(), 1);
    assert_int_equal(status_of(request("POST", "/", "key-00000002", "", "x")), 201);
}

/* ---- no other thread ---- */

#define POOL 4 /* threads that libuv has */

static atomic_uint pool_held;
static atomic_bool pool_free;

static void hold_pool(uv_work_t *work)
{
    (void)work;
    atomic_fetch_add(&pool_held, 1);
    while (!atomic_load(&pool_free))
        poll(NULL, 0, 1);
}

static int free_pool(void **state)
{
    atomic_store(&pool_free, true);
    return tear_down(state);
}

/* A10: while all other threads of the gateway stand still, the store's and libuv's, unguarded requests are answered,
 * on connections of the upstream that are new or used again; guarded ones wait. */
static void unguarded_requests_never_leave_their_loop(void **state)
{
    (void)state;
    static char large[70000];
    static uv_loop_t pool;
    static uv_work_t works[POOL];
    rules[1] = rules[0];
    rules[0].match = "POST /off";
    rules[0].key = SEMEL_GATEWAY_KEY_OFF;
    settings.n_rules = 2;
    atomic_store(&lanes_stand, true);
    open_gateway();
    atomic_store(&pool_held, 0);
    atomic_store(&pool_free, false);
    assert_int_equal(uv_loop_init(&pool), 0);
    for (size_t i = 0; i < POOL; i++)
        assert_int_equal(uv_queue_work(&pool, &works[i], hold_pool, NULL), 0);
    WAIT_FOR(atomic_load(&pool_held) == POOL);
    int small = client_open(&server), digested = client_open(&server);
    client_sendz(small, request("POST", "/", "key-00000001", "", "x"));
    int n = snprintf(large, sizeof large,
                     "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000002\r\nContent-Length: 65536\r\n\r\n");
    memset(large + n, 'x', 65536);
    client_send(digested, large, (size_t)n + 65536);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->aside) == 1);
    for (unsigned i = 0; i < 20; i++) {
        upstream_answer(&up,
                        i % 2 == 0 ? MADE : "HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert_int_equal(status_of("GET / HTTP/1.1\r\n" HOST "\r\n"), 201);
        assert_int_equal(status_of(request("POST", "/", NULL, "", "without a key")), 201);
        assert_int_equal(status_of(request("POST", "/off", "key-00000003", "", "x")), 201);
        assert_int_equal(status_of(request("PUT", "/off", NULL, "", "x")), 201);
    }
    assert_int_equal(calls(), 80);
    assert_int_equal(atomic_load(&semel__gateway_counts(gateway)->running), 2);
    assert_int_equal(keys("true"), 0);
    atomic_store(&pool_free, true);
    atomic_store(&lanes_stand, false);
    const int guarded[] = {small, digested};
    for (size_t i = 0; i < COUNT(guarded); i++) {
        struct reply reply;
        assert_true(client_reply(guarded[i], &reply, false));
        assert_int_equal(reply.status, 201);
        reply_done(&reply);
        close(guarded[i]);
    }
    assert_int_equal(keys("true"), 2);
    uv_run(&pool, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&pool), 0);
}

/* ==== those who come at the same time ============================================================ */

struct client {
    pthread_t thread;
    const char *text;
    int status;
    bool replayed;
    char type[64];
};

static void *ask_once(void *arg)
{
    struct client *client = arg;
    struct reply reply = client_ask(&server, client->text);
    client->status = reply.status;
    client->replayed = replayed(&reply);
    const char *type = strstr(reply.body, "idempotency:");
    snprintf(client->type, sizeof client->type, "%.20s", type != NULL ? type + 12 : "");
    reply_done(&reply);
    return NULL;
}

static void start_clients(struct client *clients, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        clients[i] = (struct client){.text = text};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, ask_once, &clients[i]), 0);
    }
}

static void join_clients(struct client *clients, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pthread_join(clients[i].thread, NULL);
}

/* A1: and 8 wait per key, no more. */
static void requests_wait_for_the_one_that_runs(void **state)
{
    (void)state;
    const struct semel_gateway_counts *counts = semel__gateway_counts(gateway);
    const _Atomic uint64_t *running = &counts->guarded_refused[SEMEL_GATEWAY_REFUSED_RUNNING];
    int first = client_open(&server), others[12];
    struct reply reply;
    size_t waited = 0, refused = 0;
    upstream_play(&up, script_hold);
    client_sendz(first, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    assert_refused(request("POST", "/", "key-00000001", "", "other"), 422, "mismatch"); /* A2: before 409 */
    for (size_t i = 0; i < COUNT(others); i++) {
        others[i] = client_open(&server);
        client_sendz(others[i], request("POST", "/", "key-00000001", "", "x"));
    }
    WAIT_FOR(atomic_load(&counts->waited) + atomic_load(running) == COUNT(others));
    assert_int_equal(atomic_load(running), 4);
    upstream_release(&up);
    assert_true(client_reply(first, &reply, false) && reply.status == 201 && !replayed(&reply));
    reply_done(&reply);
    close(first);
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_true(client_reply(others[i], &reply, false));
        waited += reply.status == 201 && replayed(&reply);
        refused += reply.status == 409 && is_type(&reply, "running");
        reply_done(&reply);
        close(others[i]);
    }
    assert_int_equal(waited, 8);
    assert_int_equal(refused, 4);
    assert_int_equal(calls(), 1);
}

static void who_has_waited_long_enough_gets_409(void **state)
{
    (void)state;
    struct client first;
    rules[0].wait_ms = 100;
    open_gateway();
    upstream_play(&up, script_hold);
    start_clients(&first, 1, "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: 0\r\n\r\n");
    upstream_wait_requests(&up, 1);
    struct reply reply = post("/", "key-00000001", "");
    assert_int_equal(reply.status, 409);
    assert_true(is_type(&reply, "running"));
    assert_true(reply_has(&reply, "Retry-After: 1"));
    reply_done(&reply);
    upstream_release(&up);
    join_clients(&first, 1);
}

/* P88: the work of a tick grows with those who wait, not with their square. */
static void many_that_wait_are_looked_at_once_per_tick(void **state)
{
    (void)state;
    enum { WAITING = 300 };
    static int fds[WAITING];
    const struct semel_gateway_counts *counts;
    const char *text = "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: 0\r\n\r\n";
    struct client first;
    rules[0].wait_ms = 200;
    rules[0].waiters = WAITING;
    open_gateway();
    counts = semel__gateway_counts(gateway);
    upstream_play(&up, script_hold);
    start_clients(&first, 1, text);
    upstream_wait_requests(&up, 1);
    for (size_t i = 0; i < WAITING; i++) {
        fds[i] = client_open(&server);
        client_sendz(fds[i], text);
    }
    WAIT_FOR(atomic_load(&counts->guarded_refused[SEMEL_GATEWAY_REFUSED_RUNNING]) == WAITING);
    assert_in_range(atomic_load(&counts->looked_at), WAITING, 25 * WAITING); /* a tick takes 10 ms */
    for (size_t i = 0; i < WAITING; i++)
        close(fds[i]);
    upstream_release(&up);
    join_clients(&first, 1);
}

/* The key's row, as another process would write it. */
static void run_elsewhere(void)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "UPDATE %s SET status = 'processing', lease_until = %s, lease_owner = 'else', "
             "code = NULL, completed_at = NULL, answer_until = NULL, key_until = NULL",
             table, later());
    world.driver->sql(&world, sql);
}

static void complete_elsewhere(void)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "UPDATE %s SET status = 'completed', lease_until = NULL, lease_owner = NULL, code = 201, "
             "completed_at = created_at, answer_until = %s, key_until = %s",
             table, later(), later());
    world.driver->sql(&world, sql);
}

/* A row that somebody else holds: found out by asking again. */
static void a_key_that_runs_elsewhere_is_waited_for(void **state)
{
    (void)state;
    struct client client;
    struct reply reply = post("/", "key-00000001", "x");
    reply_done(&reply);
    run_elsewhere();
    start_clients(&client, 1, "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: 1\r\n\r\nx");
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->waited) == 1);
    assert_refused(request("POST", "/", "key-00000001", "", "y"), 422, "mismatch");
    complete_elsewhere();
    join_clients(&client, 1);
    assert_true(client.status == 201 && client.replayed);
    assert_int_equal(calls(), 1);
}

/* P88: as many as for a key that runs here. */
static void no_more_than_eight_wait_for_a_key_that_runs_elsewhere(void **state)
{
    (void)state;
    struct client clients[12];
    const char *text = "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: 1\r\n\r\nx";
    size_t waited = 0, refused = 0;
    rules[0].wait_ms = 60000;
    open_gateway();
    const struct semel_gateway_counts *counts = semel__gateway_counts(gateway);
    struct reply reply = post("/", "key-00000001", "x");
    reply_done(&reply);
    run_elsewhere();
    start_clients(clients, COUNT(clients), text);
    WAIT_FOR(atomic_load(&counts->guarded_refused[SEMEL_GATEWAY_REFUSED_RUNNING]) == 4);
    reply = client_ask(&server, text);
    assert_true(reply.status == 409 && is_type(&reply, "running") && reply_has(&reply, "Retry-After: 1"));
    reply_done(&reply);
    complete_elsewhere();
    join_clients(clients, COUNT(clients));
    for (size_t i = 0; i < COUNT(clients); i++) {
        waited += clients[i].status == 201 && clients[i].replayed;
        refused += clients[i].status == 409 && strncmp(clients[i].type, "running", 7) == 0;
    }
    assert_int_equal(waited, 8);
    assert_int_equal(refused, 4);
    assert_int_equal(calls(), 1);
}

/* One key in one group, and over many. */
static void of_many_requests_with_one_key_one_runs(void **state)
{
    (void)state;
    struct client clients[64];
    rules[0].waiters = 1000;
    open_gateway();
    for (int round = 0; round < 3; round++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-0000000%d\r\nContent-Length: 1\r\n\r\nx", round);
        size_t firsts = 0;
        start_clients(clients, COUNT(clients), text);
        join_clients(clients, COUNT(clients));
        for (size_t i = 0; i < COUNT(clients); i++) {
            assert_int_equal(clients[i].status, 201);
            firsts += !clients[i].replayed;
        }
        assert_int_equal(firsts, 1);
        assert_int_equal(calls(), round + 1);
    }
}

/* P99, P48 */
static void a_client_that_hangs_up_ends_nothing(void **state)
{
    (void)state;
    upstream_play(&up, script_hold);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    const struct linger reset = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); /* without it, it might still read */
    close(fd);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->left) == 1);
    upstream_release(&up);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->running) == 0);
    assert_int_equal(keys("status = 'completed'"), 1);
    struct reply reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 201 && replayed(&reply));
    reply_done(&reply);
    assert_int_equal(calls(), 1);
}

static void a_stop_waits_for_what_runs(void **state)
{
    (void)state;
    struct client client;
    upstream_play(&up, script_hold);
    start_clients(&client, 1, "POST / HTTP/1.1\r\n" HOST "Idempotency-Key: key-00000001\r\nContent-Length: 0\r\n\r\n");
    upstream_wait_requests(&up, 1);
    semel__http_stop(http, 10000);
    poll(NULL, 0, 50);
    upstream_release(&up);
    join_clients(&client, 1);
    assert_int_equal(client.status, 201);
    close_gateway(10000);
    assert_int_equal(keys("status = 'completed'"), 1);
}

/* What a stop cannot wait for is unknown, and written down as such. */
static void what_a_stop_breaks_off_is_unknown(void **state)
{
    (void)state;
    upstream_play(&up, script_hold);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    close_gateway(0);
    assert_int_equal(keys("status = 'unknown' AND cause = 'stopped'"), 1);
    close(fd);
}

/* A7: a call that takes longer than the lease keeps its key. */
static void a_lease_is_renewed_while_its_call_runs(void **state)
{
    (void)state;
    struct reply reply;
    keeping.lease_ms = 300;
    rules[0].wait_ms = 0;
    open_gateway();
    upstream_play(&up, script_hold);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", ""));
    upstream_wait_requests(&up, 1);
    poll(NULL, 0, 1000); /* more than three leases */
    assert_int_equal(keys("status = 'processing'"), 1);
    upstream_release(&up);
    assert_true(client_reply(fd, &reply, false) && reply.status == 201);
    reply_done(&reply);
    close(fd);
}

/* ==== unknown ==================================================================================== */

static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *told; /* the reconcile's answer */
static unsigned asked;

static void tell(const char *answer)
{
    pthread_mutex_lock(&told_lock);
    told = answer;
    pthread_mutex_unlock(&told_lock);
}

static unsigned asks(void)
{
    pthread_mutex_lock(&told_lock);
    unsigned n = asked;
    pthread_mutex_unlock(&told_lock);
    return n;
}

/* 500 for work, until it is told otherwise. */
static bool answer_ask(struct link *link)
{
    char head[64];
    pthread_mutex_lock(&link->up->lock);
    snprintf(head, sizeof head, "%.60s", link->up->head);
    const char *work = link->up->answer;
    pthread_mutex_unlock(&link->up->lock);
    if (strncmp(head, "GET /by-key/", 12) != 0)
        return link_sendz(link, work);
    pthread_mutex_lock(&told_lock);
    const char *answer = told;
    asked++;
    pthread_mutex_unlock(&told_lock);
    return link_sendz(link, answer);
}

#define FAILED_WORK "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"
#define TOLD(n, text) "HTTP/1.1 200 OK\r\nContent-Length: " n "\r\n\r\n" text

static void make_unknown(const char *key)
{
    upstream_answer(&up, FAILED_WORK);
    assert_int_equal(status_of(request("POST", "/", key, "", "x")), 500);
    upstream_answer(&up, MADE);
    poll(NULL, 0, 5); /* a settle of 1 ms is over */
}

static void open_with_reconcile(int64_t settle_ms)
{
    asked = 0;
    rules[0].on_unknown = SEMEL_ON_UNKNOWN_RECONCILE;
    rules[0].reconcile = reconcile;
    rules[0].settle_ms = settle_ms;
    open_gateway();
    upstream_play(&up, answer_ask);
}

/* A7 */
static void a_reconcile_tells_what_has_become(void **state)
{
    (void)state;
    open_with_reconcile(1);
    tell(TOLD("19", "{\"state\":\"unknown\"}"));
    make_unknown("key-00000001");
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 409, "unknown");
    tell(FAILED_WORK);
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 409, "unknown");
    tell(TOLD("7", "no JSON"));
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 409, "unknown");
    tell(TOLD("53", "{\"outcome\":{\"charge\": 7},\"state\":\"done\",\"status\":201}"));
    struct reply reply = post("/", "key-00000001", "x");
    assert_int_equal(reply.status, 201);
    assert_string_equal(reply.body, "{\"charge\":7}");
    assert_true(replayed(&reply) && reply_has(&reply, "content-type: application/json"));
    reply_done(&reply);
    unsigned n = asks();
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "x")), 201);
    assert_int_equal(asks(), n);
    make_unknown("key-00000002");
    tell("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
    reply = post("/", "key-00000002", "x");
    assert_true(reply.status == 201 && !replayed(&reply));
    reply_done(&reply);
}

/* P95: while the first call may still run, `not_done` counts for nothing. */
static void not_done_counts_only_after_settle(void **state)
{
    (void)state;
    open_with_reconcile(800);
    tell(TOLD("20", "{\"state\":\"not_done\"}"));
    make_unknown("key-00000001");
    struct reply reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 409 && is_type(&reply, "unknown") && reply_has(&reply, "Retry-After: 1"));
    reply_done(&reply);
    poll(NULL, 0, 900);
    reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 201 && !replayed(&reply));
    reply_done(&reply);
}

/* P84: a key that would make another path of the URL is not asked about. */
static void odd_keys_are_not_asked_about(void **state)
{
    (void)state;
    static const char *const odd[] = {"../../admin", "a/b/c/d/e", "..........", "a%2fbcdefg", "a\\bcdefgh"};
    open_with_reconcile(1);
    tell("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
    for (size_t i = 0; i < COUNT(odd); i++) {
        make_unknown(odd[i]);
        assert_refused(request("POST", "/", odd[i], "", "x"), 409, "unknown");
    }
    assert_int_equal(asks(), 0);
    make_unknown("a b?c#d&e=f");
    assert_int_equal(status_of(request("POST", "/", "a b?c#d&e=f", "", "x")), 201);
    assert_int_equal(asks(), 1);
}

/* A7, P95: the server knows no digest and no anonymous caller, and would answer 404, `not_done`. */
static void a_caller_without_a_name_is_not_asked_about(void **state)
{
    (void)state;
    static const char *const here[] = {"127.0.0.0/8"};
    struct semel_error err;
    snprintf(reconcile, sizeof reconcile, "http://127.0.0.1:%u/by-key/{caller}/{key}", up.port);
    settings.caller = (struct semel_gateway_caller){.kind = SEMEL_GATEWAY_CALLER_HEADER,
                                                    .header = "X-User-Id",
                                                    .trusted_from = here,
                                                    .n_trusted_from = 1};
    settings.upstream.answer_ms = 1000;
    open_with_reconcile(2000);
    assert_int_equal(semel__gateway_settings_check(&settings, 60000, &err), SEMEL_OK);
    rules[0].by_endpoint = true;
    assert_int_equal(semel__gateway_settings_check(&settings, 60000, &err), SEMEL_INVALID);
    rules[0].by_endpoint = false;
    settings.caller.kind = SEMEL_GATEWAY_CALLER_API_KEY;
    assert_int_equal(semel__gateway_settings_check(&settings, 60000, &err), SEMEL_INVALID);
    settings.caller.kind = SEMEL_GATEWAY_CALLER_NONE;
    assert_int_equal(semel__gateway_settings_check(&settings, 60000, &err), SEMEL_INVALID);
    tell(TOLD("16", "{\"state\":\"done\"}"));
    make_unknown("key-00000001"); /* whoever it is */
    assert_refused(request("POST", "/", "key-00000001", "", "x"), 409, "unknown");
    assert_int_equal(asks(), 0);
    upstream_answer(&up, FAILED_WORK);
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "X-User-Id: bob\r\n", "x")), 500);
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "X-User-Id: bob\r\n", "x")), 200);
    assert_int_equal(asks(), 1);
    assert_non_null(strstr(upstream_seen(&up)->head, "GET /by-key/bob/key-00000001 "));
}

static void where_the_upstream_honours_the_key_it_is_tried_again(void **state)
{
    (void)state;
    rules[1] = rules[0];
    rules[0].match = "POST /keyed";
    rules[0].on_unknown = SEMEL_ON_UNKNOWN_RETRY;
    settings.n_rules = 2;
    open_gateway();
    upstream_answer(&up, FAILED_WORK);
    assert_int_equal(status_of(request("POST", "/keyed", "key-00000001", "", "x")), 500);
    upstream_answer(&up, MADE);
    assert_int_equal(status_of(request("POST", "/keyed", "key-00000001", "", "x")), 201);
    assert_int_equal(calls(), 2);
}

/* The upstream finishes keys itself; here by SQL, in place of its transaction. */
static void finish_rows(const char *in, const char *where)
{
    char sql[640];
    bool sqlite = strcmp(world.driver->name, "sqlite") == 0;
    snprintf(sql, sizeof sql,
             "UPDATE %s SET status = 'completed', lease_until = NULL, lease_owner = NULL, code = 202, headers = '[]', "
             "body = %s, completed_at = created_at, answer_until = %s, key_until = %s WHERE %s",
             in, sqlite ? "x'6869'" : "'\\x6869'", later(), later(), where);
    world.driver->sql(&world, sql);
}

static bool finish_by_token(struct link *link)
{
    char head[16384], where[40];
    pthread_mutex_lock(&link->up->lock);
    memcpy(head, link->up->head, sizeof head);
    pthread_mutex_unlock(&link->up->lock);
    snprintf(where, sizeof where, "token = %.20s", strstr(head, "Semel-Token: ") + 13);
    finish_rows(table, where);
    return strstr(head, "POST /lost") == head ? false : link_sendz(link, MADE);
}

/* A9 */
static void an_upstream_may_finish_its_key_itself(void **state)
{
    (void)state;
    settings.finishes = true;
    open_gateway();
    upstream_play(&up, finish_by_token);
    struct reply reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 201 && !replayed(&reply));
    reply_done(&reply);
    reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 202 && replayed(&reply));
    assert_string_equal(reply.body, "hi");
    reply_done(&reply);
    reply = post("/lost", "key-00000002", "x"); /* it has committed, and its answer was lost */
    assert_true(reply.status == 202 && replayed(&reply));
    reply_done(&reply);
    upstream_play(&up, script_close);
    assert_int_equal(status_of(request("POST", "/", "key-00000003", "", "x")), 502);
    assert_int_equal(keys("key = 'key-00000003'"), 0); /* who comes late cannot commit: it may run again */
}

static struct semel_store *application; /* its transaction has finished a key, and is open */

static bool finish_and_hang(struct link *link)
{
    struct semel_error err;
    struct semel_key_ending ending = {.end = SEMEL_KEY_END_COMPLETED, .code = 202, .headers = SEMEL_STR("[]")};
    const struct semel_key_batch batch = {.ends = &ending, .n_ends = 1};
    int64_t now_us;
    pthread_mutex_lock(&link->up->lock);
    ending.token = strtoll(strstr(link->up->head, "Semel-Token: ") + 13, NULL, 10);
    pthread_mutex_unlock(&link->up->lock);
    assert_int_equal(semel_store_open(&application, keeping.drivers, world.url, &keeping.options, &err), SEMEL_OK);
    assert_int_equal(semel_store_begin(application, SEMEL_TX_OWN, &now_us, &err), SEMEL_OK);
    assert_int_equal(application->ops->keys->write(application, &batch, now_us, &err), SEMEL_OK);
    return false;
}

/* A9: whoever has finished its key and does not commit holds up nobody else. */
static void an_upstream_that_hangs_in_its_transaction_holds_up_nobody(void **state)
{
    (void)state;
    struct semel_error err;
    if (strcmp(world.driver->name, "sqlite") == 0)
        skip(); /* a transaction locks all of it */
    settings.finishes = true;
    keeping.options.lock_timeout_ms = 2 * WAIT_S * 1000; /* longer than a client waits */
    open_gateway();
    upstream_play(&up, finish_and_hang);
    assert_int_equal(status_of(request("POST", "/", "key-00000001", "", "x")), 502);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->unstored) == 1);
    upstream_play(&up, NULL);
    upstream_answer(&up, MADE);
    for (unsigned i = 2; i < 30; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%08u", i);
        assert_int_equal(status_of(request("POST", "/", key, "", "x")), 201);
    }
    assert_int_equal(semel_store_commit(application, &err), SEMEL_OK);
    semel_store_close(application);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->unstored) == 0);
    struct reply reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 202 && replayed(&reply));
    reply_done(&reply);
}

static bool refuse_at_length(struct link *link)
{
    return answer_large(link, "422 No");
}

/* The client has the beginning of its answer when the row turns out to be finished: it gets the rest, and no other. */
static void a_key_that_was_finished_meanwhile_changes_no_answer_that_has_begun(void **state)
{
    (void)state;
    struct reply reply;
    settings.finishes = true;
    open_gateway();
    upstream_play(&up, refuse_at_length);
    int fd = client_open(&server);
    client_sendz(fd, request("POST", "/", "key-00000001", "", "x"));
    upstream_wait_requests(&up, 1);
    rename_table(false);
    upstream_release(&up);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->unstored) == 1);
    finish_rows(strcmp(world.driver->name, "sqlite") == 0 ? "gone" : "semel.gone", "true");
    rename_table(true);
    WAIT_FOR(atomic_load(&semel__gateway_counts(gateway)->unstored) == 0);
    assert_true(client_reply(fd, &reply, false));
    assert_true(reply.status == 422 && reply.n == LARGE && !replayed(&reply));
    reply_done(&reply);
    close(fd);
    reply = post("/", "key-00000001", "x");
    assert_true(reply.status == 202 && replayed(&reply));
    reply_done(&reply);
}

/* ==== the store ==================================================================================== */

static const char *absent; /* NULL: it is there */

static semel_status open_or_not(void *ctx, struct semel_store **ret, struct semel_error *err)
{
    (void)ctx;
    if (absent != NULL)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s", absent);
    return semel_store_open(ret, keeping.drivers, world.url, &keeping.options, err);
}

static void the_reason_why_a_store_is_away_is_the_present_one(void **state)
{
    (void)state;
    static const char *const reasons[] = {"the first", "the second", NULL};
    struct semel_error err;
    char why[SEMEL_KEEPER_WHY];
    keeping.open = open_or_not;
    assert_int_equal(semel__keeper_new(&keeper, &keeping, &err), SEMEL_OK);
    for (size_t i = 0; i < COUNT(reasons); i++) {
        absent = reasons[i];
        for (size_t lane = 0; lane < semel__keeper_lanes(keeper); lane++)
            assert_int_equal(semel__keeper_open(keeper, lane, &err), absent != NULL ? SEMEL_RETRY : SEMEL_OK);
        assert_int_equal(semel__keeper_up(keeper, why), absent == NULL);
        assert_string_equal(why, absent != NULL ? absent : "");
    }
    semel__keeper_free(keeper);
}

static const struct CMUnitTest tests[] = {
    OPEN(the_first_answer_is_replayed_and_the_work_is_done_once),
    OPEN(the_status_decides_what_becomes_of_the_key),
    OPEN(a_refusal_frees_the_key_for_another_body),
    OPEN(an_answer_that_is_none_leaves_the_key_unknown),
    ALONE(a_late_answer_leaves_the_key_unknown),
    ALONE(a_dead_upstream_frees_the_key),
    ALONE(nothing_is_sent_when_the_lease_has_ended),
    OPEN(stored_headers_that_are_none_are_left_out),
    OPEN(a_guarded_call_takes_no_connection_that_was_idle_for_a_second),
    OPEN(an_early_answer_counts),
    OPEN(an_answer_over_the_cap_is_stored_without_its_body),
    ALONE(a_body_that_is_not_to_be_stored_is_not),
    ALONE(a_replay_without_its_body_has_no_encoding),
    OPEN(a_stream_of_events_is_stored_when_it_begins),
    OPEN(an_answer_that_cannot_be_stored_is_a_503_and_is_kept),
    ALONE(an_answer_that_is_not_stored_before_its_lease_ends_is_unknown),
    OPEN(an_answer_that_is_not_stored_yet_waits_for_its_client),
    ALONE(without_its_store_nothing_is_sent_on),
    ALONE(a_key_whose_row_is_damaged_is_not_passed_on),
    cmocka_unit_test_setup_teardown(unguarded_requests_never_leave_their_loop, set_up, free_pool),
    OPEN(requests_wait_for_the_one_that_runs),
    ALONE(who_has_waited_long_enough_gets_409),
    ALONE(many_that_wait_are_looked_at_once_per_tick),
    OPEN(a_key_that_runs_elsewhere_is_waited_for),
    ALONE(no_more_than_eight_wait_for_a_key_that_runs_elsewhere),
    ALONE(of_many_requests_with_one_key_one_runs),
    OPEN(a_client_that_hangs_up_ends_nothing),
    OPEN(a_stop_waits_for_what_runs),
    OPEN(what_a_stop_breaks_off_is_unknown),
    ALONE(a_lease_is_renewed_while_its_call_runs),
    ALONE(a_reconcile_tells_what_has_become),
    ALONE(not_done_counts_only_after_settle),
    ALONE(odd_keys_are_not_asked_about),
    ALONE(a_caller_without_a_name_is_not_asked_about),
    ALONE(where_the_upstream_honours_the_key_it_is_tried_again),
    ALONE(an_upstream_may_finish_its_key_itself),
    ALONE(an_upstream_that_hangs_in_its_transaction_holds_up_nobody),
    ALONE(a_key_that_was_finished_meanwhile_changes_no_answer_that_has_begun),
    ALONE(the_reason_why_a_store_is_away_is_the_present_one),
};

static const struct CMUnitTest kept[] = {
    /* those in which the store has a say: a database per test takes its time */
    OPEN(the_first_answer_is_replayed_and_the_work_is_done_once),
    OPEN(the_status_decides_what_becomes_of_the_key),
    OPEN(an_answer_over_the_cap_is_stored_without_its_body),
    OPEN(an_answer_that_cannot_be_stored_is_a_503_and_is_kept),
    ALONE(an_answer_that_is_not_stored_before_its_lease_ends_is_unknown),
    ALONE(without_its_store_nothing_is_sent_on),
    ALONE(a_key_whose_row_is_damaged_is_not_passed_on),
    cmocka_unit_test_setup_teardown(unguarded_requests_never_leave_their_loop, set_up, free_pool),
    OPEN(a_key_that_runs_elsewhere_is_waited_for),
    ALONE(of_many_requests_with_one_key_one_runs),
    OPEN(what_a_stop_breaks_off_is_unknown),
    ALONE(a_lease_is_renewed_while_its_call_runs),
    ALONE(a_reconcile_tells_what_has_become),
    ALONE(where_the_upstream_honours_the_key_it_is_tried_again),
    ALONE(an_upstream_may_finish_its_key_itself),
    ALONE(an_upstream_that_hangs_in_its_transaction_holds_up_nobody),
    ALONE(a_key_that_was_finished_meanwhile_changes_no_answer_that_has_begun),
};

int main(int argc, char **argv)
{
    bool sqlite;
    if (!choose_store(argc, argv, &sqlite))
        return 77;
    return sqlite || getenv("SEMEL_LONG") != NULL ? cmocka_run_group_tests(tests, NULL, NULL)
                                                  : cmocka_run_group_tests(kept, NULL, NULL);
}
