/* SPDX-License-Identifier: MIT
 *
 * test_http_stream.c: routes that stream: bodies in pieces both ways, back-pressure, and every way in which a client
 * or a handler ends early.
 */
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit/httpd.h"

#define HOST "Host: shop.example\r\n"
#define SOURCE_BYTES ((size_t)24 << 20) /* more than sockets buffer */
#define KEPT_MAX ((size_t)4 << 20)      /* what the sockets of a connection may hold */

/* Polls the condition; fails after WAIT_S. */
#define WAIT_FOR(condition)                             \
    for (unsigned rounds = 0; !(condition); rounds++) { \
        assert_true(rounds < WAIT_S * 200);             \
        poll(NULL, 0, 5);                               \
    }

static struct httpd httpd;
static atomic_size_t taken, given; /* bytes of bodies that handlers got, and sent */
static atomic_uint gone, hung, wholes, begun, marked;
static atomic_bool at_gate, gate_open;

static bool asks(const struct semel_http_exchange *x, const char *target)
{
    return semel__str_eqz(semel__http_request(x)->target, target);
}

static void fill(struct semel_http_exchange *x)
{
    static char block[16384];
    while (atomic_load(&given) < SOURCE_BYTES) {
        memset(block, (int)('a' + atomic_load(&given) / sizeof(block) % 26), sizeof(block));
        atomic_fetch_add(&given, sizeof(block));
        if (!semel__http_send(x, (struct semel_str){block, sizeof(block)}))
            return;
    }
    semel__http_end(x);
}

static void send_whole(struct semel_http_exchange *x, int status, int64_t length, const char *text)
{
    semel__http_begin(x, status, length);
    semel__http_send(x, semel__str(text));
    semel__http_end(x);
}

static void handle(void *ctx, struct semel_http_exchange *x)
{
    (void)ctx;
    atomic_fetch_add(&begun, 1);
    if (asks(x, "/echo")) {
        semel__http_set_header(x, "Content-Type", SEMEL_STR("text/plain"));
        semel__http_begin(x, 200, -1);
        if (semel__http_request(x)->length == 0)
            semel__http_end(x);
        else
            semel__http_pull(x, true);
    } else if (asks(x, "/sized")) {
        semel__http_set_header(x, "Date", SEMEL_STR("Sun, 06 Nov 1994 08:49:37 GMT"));
        send_whole(x, 200, 10, "0123456789");
    } else if (asks(x, "/short")) {
        send_whole(x, 200, 10, "01234");
    } else if (asks(x, "/long")) {
        send_whole(x, 200, 5, "0123456789");
    } else if (asks(x, "/cut")) {
        semel__http_begin(x, 200, -1);
        semel__http_send(x, SEMEL_STR("half"));
        semel__http_cut(x);
    } else if (asks(x, "/none")) {
        send_whole(x, 204, -1, "dropped");
    } else if (asks(x, "/same")) {
        send_whole(x, 304, 10, "dropped");
    } else if (asks(x, "/source")) {
        semel__http_begin(x, 200, (int64_t)SOURCE_BYTES);
        fill(x);
    } else if (asks(x, "/gate")) { /* the loop stands still until it is open */
        atomic_store(&at_gate, true);
        while (!atomic_load(&gate_open))
            poll(NULL, 0, 1);
        send_whole(x, 200, 0, "");
    } else if (asks(x, "/mark")) {
        atomic_store(&marked, atomic_load(&begun));
        send_whole(x, 200, 0, "");
    } else if (asks(x, "/refuse")) {
        semel__http_refuse(x, 403, "not for you");
    } else if (asks(x, "/late")) {
        semel__http_pull(x, true); /* answered when the body is whole, or the client has hung up */
    }                              /* "/hold": nothing */
}

static void body(struct semel_http_exchange *x, struct semel_str piece)
{
    atomic_fetch_add(&taken, piece.n);
    if (asks(x, "/echo") && !semel__http_send(x, piece))
        semel__http_pull(x, false);
}

static void whole(struct semel_http_exchange *x)
{
    atomic_fetch_add(&wholes, 1);
    if (asks(x, "/echo"))
        semel__http_end(x);
    else if (asks(x, "/late"))
        semel__http_answer(x, 200);
}

static void drained(struct semel_http_exchange *x)
{
    if (asks(x, "/source"))
        fill(x);
    else
        semel__http_pull(x, true);
}

static void hung_up(struct semel_http_exchange *x)
{
    atomic_fetch_add(&hung, 1);
    if (asks(x, "/hold"))
        semel__http_refuse(x, 504, "you left");
}

static void is_gone(struct semel_http_exchange *x)
{
    assert_non_null(x);
    atomic_fetch_add(&gone, 1);
}

static const struct semel_http_stream stream = {body, whole, drained, hung_up, is_gone};
static const struct semel_http_route route = {.methods = SEMEL_HTTP_BIT(GET) | SEMEL_HTTP_BIT(POST),
                                              .path = "/{rest*}",
                                              .body_max = (size_t)64 << 20,
                                              .handle = handle,
                                              .stream = &stream};

static int up(void **state)
{
    (void)state;
    httpd_init(&httpd);
    httpd.settings.routes = &route;
    httpd.settings.n_routes = 1;
    httpd.settings.any_host = true;
    atomic_store(&taken, 0);
    atomic_store(&given, 0);
    atomic_store(&gone, 0);
    atomic_store(&hung, 0);
    atomic_store(&wholes, 0);
    atomic_store(&begun, 0);
    atomic_store(&marked, 0);
    atomic_store(&at_gate, false);
    atomic_store(&gate_open, false);
    return 0;
}

static int up_running(void **state)
{
    up(state);
    httpd_start(&httpd);
    return 0;
}

static int down(void **state)
{
    (void)state;
    httpd_done(&httpd);
    return 0;
}

/* One connection: what comes back until it ends. */
static char *talk(const char *text)
{
    int fd = client_open(&httpd);
    client_sendz(fd, text);
    char *all = client_rest(fd, NULL);
    close(fd);
    return all;
}

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void a_body_comes_back_in_chunks_as_it_arrives(void **state)
{
    (void)state;
    char block[1024] = {0};
    int fd = client_open(&httpd);
    client_sendz(fd, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    for (size_t n = 0; strstr(block, "5\r\nhello\r\n") == NULL;) { /* before the body is whole */
        ssize_t got = recv(fd, block + n, sizeof(block) - 1 - n, 0);
        assert_true(got > 0);
        n += (size_t)got;
    }
    assert_non_null(strstr(block, "HTTP/1.1 200 OK\r\nDate: "));
    assert_non_null(
        strstr(block, "\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"));
    assert_null(strstr(block, "no-store")); /* the handler's headers, and no others */
    client_sendz(fd, "1\r\n!\r\n0\r\n\r\n");
    char *rest = client_rest(fd, NULL);
    assert_string_equal(rest, "1\r\n!\r\n0\r\n\r\n");
    free(rest);
    close(fd);
}

static void replies_have_the_framing_that_their_client_understands(void **state)
{
    (void)state;
    char *text = talk("GET /sized HTTP/1.1\r\n" HOST "\r\nGET /none HTTP/1.1\r\n" HOST "\r\n"
                      "GET /same HTTP/1.1\r\n" HOST "\r\nHEAD /sized HTTP/1.1\r\n" HOST "\r\n"
                      "GET /echo HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    static const char sized[] = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 10\r\n\r\n";
    assert_int_equal(strncmp(text, sized, sizeof(sized) - 1), 0);
    const char *next = text + sizeof(sized) - 1;
    assert_int_equal(strncmp(next, "0123456789HTTP/1.1 204 No Content\r\nDate: ", 41), 0);
    next = strstr(next, "\r\n\r\n"); /* no length, no chunks: the next reply follows at once */
    assert_int_equal(strncmp(next, "\r\n\r\nHTTP/1.1 304 Not Modified\r\nDate: ", 37), 0);
    next = strstr(next + 4, "\r\n\r\n");
    assert_int_equal(strncmp(next + 4, sized, sizeof(sized) - 1), 0);
    next += 4 + sizeof(sized) - 1; /* the HEAD has no body */
    assert_int_equal(strncmp(next, "HTTP/1.1 200 OK\r\n", 17), 0);
    assert_true(ends_in(text, "\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n"));
    free(text);
    text = talk("POST /echo HTTP/1.0\r\n" HOST "Content-Length: 5\r\n\r\nhello");
    assert_null(strstr(text, "Transfer-Encoding"));
    assert_null(strstr(text, "Content-Length"));
    assert_true(ends_in(text, "Connection: close\r\n\r\nhello"));
    free(text);
}

/* A reply that is not whole must not look as if it were, nor may it run into the next one. */
static void a_reply_that_breaks_off_ends_the_connection(void **state)
{
    (void)state;
    char *text = talk("GET /short HTTP/1.1\r\n" HOST "\r\nGET /sized HTTP/1.1\r\n" HOST "\r\n");
    assert_null(strstr(text, "0123456789"));
    free(text);
    text = talk("GET /long HTTP/1.1\r\n" HOST "\r\nGET /sized HTTP/1.1\r\n" HOST "\r\n");
    assert_null(strstr(text, "56789"));
    free(text);
    text = talk("GET /cut HTTP/1.1\r\n" HOST "\r\nGET /sized HTTP/1.1\r\n" HOST "\r\n");
    assert_false(ends_in(text, "0\r\n\r\n"));
    assert_null(strstr(text, "0123456789"));
    free(text);
}

/* P51: neither side's speed fills our memory. */
static void a_client_that_does_not_read_stops_the_source(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    client_sendz(fd, "GET /source HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    WAIT_FOR(atomic_load(&given) > 65536);
    size_t before;
    do {
        before = atomic_load(&given);
        poll(NULL, 0, 200);
    } while (atomic_load(&given) != before);
    assert_true(before < SOURCE_BYTES - KEPT_MAX);
    size_t n;
    char *text = client_rest(fd, &n);
    const char *bytes = strstr(text, "\r\n\r\n") + 4;
    assert_int_equal(n - (size_t)(bytes - text), SOURCE_BYTES);
    for (size_t i = 0; i < SOURCE_BYTES; i++)
        if (bytes[i] != (char)('a' + i / 16384 % 26))
            fail_msg("byte %zu is wrong", i);
    free(text);
    close(fd);
}

static void a_body_that_nobody_pulls_stays_with_its_client(void **state)
{
    (void)state;
    static char block[65536];
    size_t sent = 0;
    int fd = client_open(&httpd);
    client_sendz(fd, "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 67108864\r\n\r\n");
    for (unsigned idle = 0; idle < 20;) {
        ssize_t n = send(fd, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL);
        idle = n > 0 ? 0 : idle + 1;
        sent += n > 0 ? (size_t)n : 0;
        if (n <= 0)
            poll(NULL, 0, 10);
        assert_true(sent < (size_t)60 << 20);
    }
    assert_int_equal(atomic_load(&taken), 0);
    close(fd);
    httpd_stop(&httpd, 0);
    assert_int_equal(atomic_load(&gone), 1);
}

static void a_large_body_passes_through_both_ways(void **state)
{
    (void)state;
    const size_t total = (size_t)8 << 20;
    static char block[65536];
    size_t sent = 0, got = 0;
    char in[65536];
    int fd = client_open(&httpd);
    client_sendz(fd, "POST /echo HTTP/1.0\r\n" HOST "Content-Length: 8388608\r\n\r\n");
    memset(block, 'x', sizeof(block));
    for (bool open = true; open;) { /* reads only when it cannot send: the pauses of both sides are used */
        size_t next = total - sent < sizeof(block) ? total - sent : sizeof(block);
        ssize_t n = next > 0 ? send(fd, block, next, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
        if (n > 0) {
            sent += (size_t)n;
            continue;
        }
        n = recv(fd, in, sizeof(in), 0);
        assert_true(n >= 0);
        open = n > 0;
        for (ssize_t i = 0; i < n; i++)
            got += in[i] == 'x';
    }
    assert_int_equal(sent, total);
    assert_int_equal(got, total + 1); /* one in "text/plain" */
    assert_int_equal(atomic_load(&wholes), 1);
    close(fd);
}

static void a_refusal_before_the_body_closes_behind_it(void **state)
{
    (void)state;
    char *text = talk("POST /refuse HTTP/1.1\r\n" HOST "Content-Length: 100\r\n\r\nGET /sized HTTP/1.1\r\n");
    assert_int_equal(strncmp(text, "HTTP/1.1 403 Forbidden\r\n", 24), 0);
    assert_non_null(strstr(text, "Connection: close\r\n"));
    assert_non_null(strstr(text, "\"detail\":\"not for you\""));
    assert_null(strstr(text, "0123456789"));
    free(text);
    text = talk("POST /hold HTTP/1.1\r\n" HOST "Content-Length: 67108865\r\n\r\n");
    assert_int_equal(strncmp(text, "HTTP/1.1 413 ", 13), 0);
    free(text);
    assert_int_equal(atomic_load(&begun), 1);
    assert_int_equal(atomic_load(&gone), 0);
}

/* P52 */
static void a_malformed_body_takes_the_exchange_from_its_handler(void **state)
{
    (void)state;
    char *text = talk("POST /late HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloGET /sized");
    assert_int_equal(strncmp(text, "HTTP/1.1 400 ", 13), 0);
    assert_non_null(strstr(text, "chunks must be"));
    free(text);
    assert_int_equal(atomic_load(&gone), 1);
    text = talk("POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n");
    assert_null(strstr(text, " 400 ")); /* the reply has begun: it cannot be taken back, only broken off */
    assert_false(ends_in(text, "0\r\n\r\n"));
    free(text);
    assert_int_equal(atomic_load(&gone), 2);
    int fd = client_open(&httpd);
    client_sendz(fd, "POST /late HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nhalf");
    shutdown(fd, SHUT_WR);
    assert_true(client_closed(fd));
    close(fd);
    assert_int_equal(atomic_load(&gone), 3);
    assert_int_equal(atomic_load(&wholes), 0);
}

static void a_handler_learns_that_its_client_has_hung_up(void **state)
{
    (void)state;
    struct reply reply;
    int fd = client_open(&httpd);
    client_sendz(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    WAIT_FOR(atomic_load(&begun) == 1);
    shutdown(fd, SHUT_WR);
    assert_true(client_reply(fd, &reply, false)); /* it may still read */
    assert_int_equal(reply.status, 504);
    assert_true(client_closed(fd));
    reply_done(&reply);
    close(fd);
    fd = client_open(&httpd);
    client_sendz(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    WAIT_FOR(atomic_load(&begun) == 2);
    struct linger hard = {.l_onoff = 1};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
    close(fd);
    WAIT_FOR(atomic_load(&gone) == 1);
}

static void a_client_that_waits_for_100_gets_it_when_the_handler_pulls(void **state)
{
    (void)state;
    struct reply reply;
    int fd = client_open(&httpd);
    client_sendz(fd, "POST /late HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_true(client_reply(fd, &reply, true));
    assert_int_equal(reply.status, 100);
    reply_done(&reply);
    client_sendz(fd, "ok");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    client_sendz(fd, "GET /sized HTTP/1.1\r\n" HOST "\r\n"); /* the connection is kept */
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "0123456789");
    reply_done(&reply);
    close(fd);
}

/* P53 */
static void slow_clients_lose_their_exchange(void **state)
{
    (void)state;
    struct reply reply;
    httpd.settings.limits.body_ms = 100;
    httpd.settings.limits.write_ms = 200;
    httpd_start(&httpd);
    int fd = client_open(&httpd);
    client_sendz(fd, "POST /late HTTP/1.1\r\n" HOST "Content-Length: 10000\r\n\r\nsome");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 408);
    assert_int_equal(atomic_load(&gone), 1);
    reply_done(&reply);
    close(fd);
    fd = client_open(&httpd); /* a steady one may take longer than the time-out */
    client_sendz(fd, "POST /late HTTP/1.1\r\n" HOST "Content-Length: 49152\r\n\r\n");
    static char block[8192];
    for (int i = 0; i < 6; i++) {
        client_send(fd, block, sizeof(block));
        poll(NULL, 0, 40);
    }
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    close(fd);
    fd = client_open(&httpd);
    client_sendz(fd, "GET /source HTTP/1.1\r\n" HOST "\r\n");
    WAIT_FOR(atomic_load(&gone) == 2);
    close(fd);
}

static void a_stop_waits_for_streams_until_its_deadline(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    client_sendz(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    WAIT_FOR(atomic_load(&begun) == 1);
    httpd_stop(&httpd, 100);
    assert_int_equal(atomic_load(&gone), 1);
    close(fd);
}

/* The requests of one read, and the one of another client that came a moment later. */
static void a_client_that_pipelines_does_not_have_the_loop_for_itself(void **state)
{
    (void)state;
    enum { MANY = 200 };
    static const char one[] = "GET /sized HTTP/1.1\r\n" HOST "\r\n";
    static char text[64 + MANY * sizeof(one)];
    struct reply reply;
    int many = client_open(&httpd), other = client_open(&httpd);
    client_sendz(other, one); /* its connection is accepted */
    assert_true(client_reply(other, &reply, false));
    reply_done(&reply);
    size_t n = (size_t)snprintf(text, sizeof(text), "GET /gate HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; i < MANY; i++, n += sizeof(one) - 1)
        memcpy(text + n, one, sizeof(one));
    client_sendz(many, text);
    WAIT_FOR(atomic_load(&at_gate));
    client_sendz(other, "GET /mark HTTP/1.1\r\n" HOST "\r\n");
    atomic_store(&gate_open, true);
    assert_true(client_reply(other, &reply, false));
    reply_done(&reply);
    assert_in_range(atomic_load(&marked), 3, 20);
    for (int i = 0; i <= MANY; i++) {
        assert_true(client_reply(many, &reply, false));
        assert_int_equal(reply.status, 200);
        reply_done(&reply);
    }
    close(many);
    close(other);
}

int main(void)
{
#define RUNNING(test) cmocka_unit_test_setup_teardown(test, up_running, down)
    const struct CMUnitTest tests[] = {
        RUNNING(a_body_comes_back_in_chunks_as_it_arrives),
        RUNNING(replies_have_the_framing_that_their_client_understands),
        RUNNING(a_reply_that_breaks_off_ends_the_connection),
        RUNNING(a_client_that_does_not_read_stops_the_source),
        RUNNING(a_body_that_nobody_pulls_stays_with_its_client),
        RUNNING(a_large_body_passes_through_both_ways),
        RUNNING(a_client_that_pipelines_does_not_have_the_loop_for_itself),
        RUNNING(a_refusal_before_the_body_closes_behind_it),
        RUNNING(a_malformed_body_takes_the_exchange_from_its_handler),
        RUNNING(a_handler_learns_that_its_client_has_hung_up),
        RUNNING(a_client_that_waits_for_100_gets_it_when_the_handler_pulls),
        RUNNING(a_stop_waits_for_streams_until_its_deadline),
        cmocka_unit_test_setup_teardown(slow_clients_lose_their_exchange, up, down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
