/* SPDX-License-Identifier: MIT
 *
 * test_http_hostile.c: what a client must not do: smuggle, flood, or be slow.
 *
 * Every refusal here must end its connection: whatever follows the bytes that were refused cannot be trusted to be a
 * request. So each case carries a request behind it that nobody may ever answer.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit/httpd_each.h"

#define HOST "Host: localhost\r\n"
#define SMUGGLED "GET /smuggled HTTP/1.1\r\n" HOST "\r\n"
#define POST "POST /echo HTTP/1.1\r\n" HOST
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

struct hostile {
    struct semel_str bytes;
    int status;
};
#define BYTES(literal)                 \
    {                                  \
        (literal), sizeof(literal) - 1 \
    }

/* One refusal, then the end; and nothing behind it was run. */
static void assert_refused(const struct hostile *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int fd = client_open(&httpd);
        struct reply reply;
        client_send(fd, cases[i].bytes.p, cases[i].bytes.n);
        if (!client_reply(fd, &reply, false) || reply.status != cases[i].status)
            fail_msg("case %zu: %d instead of %d: %s", i, reply.status, cases[i].status, cases[i].bytes.p);
        assert_true(reply_has(&reply, "Connection: close"));
        assert_true(reply_has(&reply, "Content-Type: application/problem+json"));
        assert_true(client_closed(fd));
        assert_int_equal(atomic_load(&httpd.smuggled), 0);
        assert_int_equal(atomic_load(&httpd.handled), 0);
        reply_done(&reply);
        close(fd);
    }
}

/* P52 */
static void a_body_whose_length_is_in_doubt_is_refused(void **state)
{
    (void)state;
    static const struct hostile cases[] = {
        /* CL.TE, TE.CL */
        {BYTES(POST "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        /* TE.TE */
        {BYTES(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: chunked\r\nTransfer-encoding: x\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: identity\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: \x0b"
                    "chunked\r\n\r\n0\r\n\r\n" SMUGGLED),
         400},
        {BYTES(POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Transfer-Encoding:\r\n\r\n" SMUGGLED), 400},
        {BYTES("POST /echo HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        /* Content-Length */
        {BYTES(POST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 3, 3\r\n\r\nabc" SMUGGLED), 400},
        {BYTES(POST "Content-Length: +3\r\n\r\nabc" SMUGGLED), 400},
        {BYTES(POST "Content-Length: -1\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 0x3\r\n\r\nabc" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 3 4\r\n\r\nabc" SMUGGLED), 400},
        {BYTES(POST "Content-Length:\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 99999999999999999999\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 18446744073709551616\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Content-Length: 9223372036854775807\r\n\r\n" SMUGGLED), 413},
    };
    assert_refused(cases, COUNT(cases));
}

/* P52 */
static void chunks_that_are_not_framed_to_the_letter_are_refused(void **state)
{
    (void)state;
    static const struct hostile cases[] = {
        {BYTES(CHUNKED "3\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabcXX0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r\n0\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r\n0\r\n\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r\n0\r\n\r" SMUGGLED), 400},
        {BYTES(CHUNKED " 3\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3 \r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "0x3\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "+3\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "-1\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "10000000000000003\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "ffffffffffffffff\r\nabc\r\n0\r\n\r\n" SMUGGLED), 413},
        {BYTES(CHUNKED "401\r\nabc\r\n0\r\n\r\n" SMUGGLED), 413},
        {BYTES(CHUNKED "3;a=b\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3;a\nb\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3;\r\nabc\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r\n0;last\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n" SMUGGLED), 400},
        {BYTES(CHUNKED "3\r\nabc\r\n0\r\n folded\r\n\r\n" SMUGGLED), 400},
    };
    assert_refused(cases, COUNT(cases));
}

/* P52 */
static void a_head_that_is_not_one_to_the_letter_is_refused(void **state)
{
    (void)state;
    static const struct hostile cases[] = {
        {BYTES("GET /hello HTTP/1.1\n" HOST "\r\n" SMUGGLED), 400},                    /* bare LF */
        {BYTES("GET /hello HTTP/1.1\r\nHost: localhost\n\r\n" SMUGGLED), 400},         /* bare LF */
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "\n" SMUGGLED), 400},                    /* bare LF */
        {BYTES("GET /hello HTTP/1.1\r" HOST "\r\n" SMUGGLED), 400},                    /* bare CR */
        {BYTES("GET /hello HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n" SMUGGLED), 400}, /* bare CR */
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "\r" SMUGGLED), 400},
        {BYTES("\n\nGET /hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("\r\n\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n" SMUGGLED), 400},  /* obs-fold */
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "X: a\r\n\tb\r\n\r\n" SMUGGLED), 400}, /* obs-fold */
        {BYTES("GET /hello HTTP/1.1\r\n X: a\r\n" HOST "\r\n" SMUGGLED), 400},       /* a fold of nothing */
        {BYTES(POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Content-Length : 3\r\n\r\nabc" SMUGGLED), 400}, /* blank before the colon */
        {BYTES(POST "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
        {BYTES(POST "Content Length: 3\r\n\r\nabc" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "no colon\r\n\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "nocolon\r\n\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST ": value\r\n\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "X\x80: y\r\n\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "X: a\0b\r\n\r\n" SMUGGLED), 400}, /* NUL */
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "X\0: b\r\n\r\n" SMUGGLED), 400},
        {BYTES("GET /hel\0lo HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET\0 /hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "X: a\x01\r\n\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1\r\n" HOST "X: a\x7f\r\n\r\n" SMUGGLED), 400},
        {BYTES("G@T /hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400}, /* not a method */
        {BYTES(" GET /hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET  /hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET\t/hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello  HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.1 \r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello\r\n" HOST "\r\n" SMUGGLED), 400}, /* HTTP/0.9 */
        {BYTES("GET /hello HTTP/1.1x\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello http/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello ICE/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello HTTP/1.2\r\n" HOST "\r\n" SMUGGLED), 505},
        {BYTES("GET /hello HTTP/0.9\r\n" HOST "\r\n" SMUGGLED), 505},
        {BYTES("GET /hello HTTP/2.0\r\n" HOST "\r\n" SMUGGLED), 505},
        {BYTES("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" SMUGGLED), 505},                    /* the preface of HTTP/2 */
        {BYTES("GET http://localhost/hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400}, /* absolute-form */
        {BYTES("CONNECT localhost:80 HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},       /* authority-form */
        {BYTES("GET hello HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /hello#x HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("GET /h\xC3\xA9llo HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("OPTIONS *x HTTP/1.1\r\n" HOST "\r\n" SMUGGLED), 400},
        {BYTES("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), 400}, /* TLS on a plain port */
        {BYTES("\0"), 400},
    };
    assert_refused(cases, COUNT(cases));
}

/* A request that is whole may be refused and the connection live on: its end is known. */
static void a_request_without_its_one_host_is_refused_and_the_next_is_served(void **state)
{
    (void)state;
    static const char *const heads[] = {"GET /smuggled HTTP/1.1\r\n\r\n", "GET /smuggled HTTP/1.1\r\n" HOST HOST "\r\n",
                                        "GET /smuggled HTTP/1.1\r\n" HOST "host: evil.example\r\n\r\n",
                                        "GET /smuggled HTTP/1.1\r\nHost: evil.example\r\n\r\n"};
    static const int statuses[] = {400, 400, 400, 421};
    int fd = client_open(&httpd);
    for (size_t i = 0; i < COUNT(heads); i++) {
        struct reply reply;
        client_sendz(fd, heads[i]);
        assert_true(client_reply(fd, &reply, false));
        assert_int_equal(reply.status, statuses[i]);
        reply_done(&reply);
    }
    struct reply reply;
    client_sendz(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    close(fd);
    struct reply old = client_ask(&httpd, "GET /smuggled HTTP/1.0\r\n\r\n");
    assert_int_equal(old.status, 400);
    reply_done(&old);
    assert_int_equal(atomic_load(&httpd.smuggled), 0);
}

static void an_upgrade_is_ignored(void **state)
{
    (void)state;
    int fd = client_open(&httpd);
    struct reply reply;
    client_sendz(fd, POST "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok"
                          "GET /hello HTTP/1.1\r\n" HOST "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "ok");
    reply_done(&reply);
    assert_true(client_reply(fd, &reply, false));
    assert_string_equal(reply.body, "{\"hello\":true}\n");
    reply_done(&reply);
    close(fd);
}

static void ask_padded(const char *before, char pad, size_t n, const char *after, int status)
{
    struct semel_buf text;
    semel__buf_init(&text, 1 << 20);
    semel__buf_addz(&text, before);
    for (size_t i = 0; i < n; i++)
        semel__buf_add(&text, &pad, 1);
    semel__buf_addz(&text, after);
    semel__buf_add(&text, "", 1);
    struct reply reply = client_ask(&httpd, text.p);
    if (reply.status != status)
        fail_msg("%s...: %d instead of %d", before, reply.status, status);
    reply_done(&reply);
    semel__buf_done(&text);
}

/* P53 */
static void what_is_too_large_is_refused_before_it_is_kept(void **state)
{
    (void)state;
    httpd.settings.limits.head_bytes = 2048;
    httpd.settings.limits.head_fields = 10;
    httpd_start(&httpd);
    static const char line[] = "GET /hello HTTP/1.1\r\n" HOST "X: ";
    size_t fits = 2048 - (sizeof(line) - 1) - 4;
    ask_padded(line, 'x', fits, "\r\n\r\n", 200);
    ask_padded(line, 'x', fits + 1, "\r\n\r\n", 431);
    ask_padded("GET /", 'x', 100000, " HTTP/1.1\r\n" HOST "\r\n", 431);
    ask_padded("GET /hello HTTP/1.1\r\n" HOST "X", 'x', 3000, ": y\r\n\r\n", 431);
    ask_padded(POST "Content-Length: 1024\r\n\r\n", 'x', 1024, "", 200);
    ask_padded(POST "Content-Length: 1025\r\n\r\n", 'x', 1025, "", 413);
    ask_padded(CHUNKED "400\r\n", 'x', 1024, "\r\n0\r\n\r\n", 200);
    ask_padded(CHUNKED "400\r\n", 'x', 1024, "\r\n1\r\nx\r\n0\r\n\r\n", 413);
    ask_padded(CHUNKED, '0', 100000, "3\r\nabc\r\n0\r\n\r\n", 400);
    struct reply reply = client_ask(&httpd, "GET /hello HTTP/1.1\r\nContent-Length: 1\r\n" HOST "\r\nx");
    assert_int_equal(reply.status, 413);
    reply_done(&reply);
    static const char nine[] = "a:\r\nb:\r\nc:\r\nd:\r\ne:\r\nf:\r\ng:\r\nh:\r\ni:\r\n";
    char text[256];
    snprintf(text, sizeof(text), "GET /hello HTTP/1.1\r\n" HOST "%s\r\n", nine);
    reply = client_ask(&httpd, text);
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    snprintf(text, sizeof(text), "GET /hello HTTP/1.1\r\n" HOST "%sj:\r\n\r\n", nine);
    reply = client_ask(&httpd, text);
    assert_int_equal(reply.status, 431);
    reply_done(&reply);
}

/* Sends a byte whenever nothing has come back yet, and so never stops sending. */
static struct reply drip(int fd, const char *byte)
{
    struct reply reply;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    unsigned rounds = 0;
    while (poll(&poll_fd, 1, 10) == 0) {
        assert_true(rounds++ < WAIT_S * 100);
        client_sendz(fd, byte);
    }
    assert_true(client_reply(fd, &reply, false));
    return reply;
}

/* P53 */
static void a_slow_head_and_a_slow_body_are_cut_off_though_bytes_keep_coming(void **state)
{
    (void)state;
    httpd.settings.limits.head_ms = httpd.settings.limits.body_ms = 150;
    httpd_start(&httpd);
    static const char *const starts[] = {"GET /hello HTTP/1.1\r\n" HOST "X: ", POST "Content-Length: 1000\r\n\r\n",
                                         CHUNKED "300\r\n", "\r\nGET /"};
    for (size_t i = 0; i < COUNT(starts); i++) {
        int fd = client_open(&httpd);
        client_sendz(fd, starts[i]);
        struct reply reply = drip(fd, "x");
        assert_int_equal(reply.status, 408);
        assert_true(client_closed(fd));
        reply_done(&reply);
        close(fd);
    }
}

static void a_silent_client_is_hung_up_on(void **state)
{
    (void)state;
    httpd.settings.limits.head_ms = httpd.settings.limits.idle_ms = 100;
    httpd_start(&httpd);
    int silent = client_open(&httpd), idle = client_open(&httpd);
    struct reply reply;
    client_sendz(idle, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_reply(idle, &reply, false));
    assert_int_equal(reply.status, 200);
    assert_true(client_closed(silent));
    assert_true(client_closed(idle));
    reply_done(&reply);
    close(silent);
    close(idle);
}

/* Until a slot is free: the condition is the answer itself. */
static void ask_until_served(void)
{
    for (unsigned rounds = 0;; rounds++) {
        struct reply reply = client_ask(&httpd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
        int status = reply.status;
        reply_done(&reply);
        if (status == 200)
            return;
        assert_int_equal(status, 503);
        assert_true(rounds < 10000);
        poll(NULL, 0, 5);
    }
}

/* P53 */
static void whoever_does_not_read_his_answer_is_cut_off(void **state)
{
    (void)state;
    httpd.settings.limits.connections = 1;
    httpd.settings.limits.write_ms = 150;
    httpd_start(&httpd);
    int fd = client_open(&httpd), small = 4096;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    client_sendz(fd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    ask_until_served();
    close(fd);
}

/* P53 */
static void one_connection_too_many_is_told_so(void **state)
{
    (void)state;
    httpd.settings.limits.connections = 2;
    httpd_start(&httpd);
    int one = client_open(&httpd), two = client_open(&httpd);
    client_sendz(one, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    client_sendz(two, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    httpd_wait_held(&httpd, 2);
    struct reply reply = client_ask(&httpd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(reply.status, 503);
    assert_true(reply_has(&reply, "Retry-After: 1"));
    assert_true(reply_has(&reply, "Connection: close"));
    reply_done(&reply);
    close(one);
    httpd_release(&httpd);
    ask_until_served();
    close(two);
}

#define HOLD "GET /hold HTTP/1.1\r\n" HOST "\r\n"
#define HELLO "GET /hello HTTP/1.1\r\n" HOST "\r\n"

static int status_on(int fd, const char *text)
{
    struct reply reply;
    client_sendz(fd, text);
    assert_true(client_reply(fd, &reply, false));
    reply_done(&reply);
    return reply.status;
}

/* B5 P88 */
static void the_oldest_connection_without_a_request_gives_way(void **state)
{
    (void)state;
    httpd.settings.limits.connections = 6;
    httpd_start(&httpd);
    int busy = client_open(&httpd), idle = client_open(&httpd), silent[20];
    client_sendz(busy, HOLD);
    httpd_wait_held(&httpd, 1);
    assert_int_equal(status_on(idle, HELLO), 200);
    for (size_t i = 0; i < COUNT(silent); i++) {
        silent[i] = client_open(&httpd);
        if (i % 2 == 1)
            client_sendz(silent[i], "GET /hel"); /* half a head is none */
    }
    assert_int_equal(status_on(idle, HELLO), 200); /* it was silent for longer, but not from the start */
    struct reply reply = client_ask(&httpd, HELLO);
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    assert_int_equal(atomic_load(&httpd.gave_way), COUNT(silent) - 4 + 1);
    assert_int_equal(atomic_load(&httpd.refused), 0);
    for (size_t i = 0; i <= COUNT(silent) - 4; i++)
        assert_true(client_closed(silent[i]));
    assert_int_equal(status_on(silent[COUNT(silent) - 2], HELLO), 200);
    for (size_t i = 0; i < COUNT(silent); i++)
        close(silent[i]);
    httpd_release(&httpd);
    assert_true(client_reply(busy, &reply, false));
    reply_done(&reply);
    close(busy);
    close(idle);
}

/* B5 P88: nobody without a token can keep others out by requests that are refused, either. */
static void an_idle_connection_gives_way_when_all_have_sent_a_request(void **state)
{
    (void)state;
    httpd.settings.limits.connections = 3;
    httpd_start(&httpd);
    int fds[3];
    for (size_t i = 0; i < COUNT(fds); i++) {
        fds[i] = client_open(&httpd);
        assert_int_equal(status_on(fds[i], "GET /none HTTP/1.1\r\n" HOST "\r\n"), 404);
    }
    struct reply reply = client_ask(&httpd, HELLO);
    assert_int_equal(reply.status, 200);
    reply_done(&reply);
    assert_true(client_closed(fds[0]));
    assert_int_equal(status_on(fds[1], HELLO), 200);
    for (size_t i = 0; i < COUNT(fds); i++)
        close(fds[i]);
}

/* B5 P88: nor by not reading what they are told: refusals, or a large reply that needs no token. */
static void who_does_not_read_its_replies_gives_way(void **state)
{
    static const char none[] = "GET /none HTTP/1.1\r\n" HOST "\r\n";
    static char many[500 * (sizeof(none) - 1)];
    (void)state;
    for (size_t i = 0; i < sizeof(many); i++)
        many[i] = none[i % (sizeof(none) - 1)];
    httpd.settings.limits.connections = 2;
    httpd.settings.limits.requests = SIZE_MAX;
    httpd_start(&httpd);
    int fds[2], small = 4096;
    for (size_t i = 0; i < COUNT(fds); i++) {
        fds[i] = client_open(&httpd);
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    }
    client_sendz(fds[0], "GET /big HTTP/1.1\r\n" HOST "\r\n");
    struct pollfd pfd = {.fd = fds[1], .events = POLLOUT};
    while (poll(&pfd, 1, 500) > 0) /* until nobody reads it, because a refusal cannot leave */
        assert_true(send(fds[1], many, sizeof(many), MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
    for (int i = 1; i <= 2; i++) {
        int fd = client_open(&httpd);
        assert_int_equal(status_on(fd, HELLO), 200);
        client_sendz(fd, HOLD);
        httpd_wait_held(&httpd, (size_t)i);
        assert_int_equal(atomic_load(&httpd.gave_way), i);
        close(fd);
    }
    assert_int_equal(atomic_load(&httpd.refused), 0);
    httpd_release(&httpd);
    for (size_t i = 0; i < COUNT(fds); i++)
        close(fds[i]);
}

/* The server's end of the one connection to its port, in this process. */
static int server_end(unsigned port)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in local, remote;
        socklen_t n = sizeof(local), m = sizeof(remote);
        if (getsockname(fd, (struct sockaddr *)&local, &n) == 0 && local.sin_family == AF_INET &&
            ntohs(local.sin_port) == port && getpeername(fd, (struct sockaddr *)&remote, &m) == 0)
            return fd;
    }
    return -1;
}

/* B5 P88: the kernel would let the send buffer of a fast connection grow to megabytes. */
static void replies_that_nobody_reads_hold_little_memory_of_the_kernel(void **state)
{
    (void)state;
    httpd_start(&httpd);
    int fd = client_open(&httpd), small = 4096, held = 0;
    socklen_t size = sizeof(held);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    client_sendz(fd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    char first;
    assert_int_equal(recv(fd, &first, 1, 0), 1);
    int end = server_end(httpd.port);
    assert_true(end > 0);
    assert_int_equal(getsockopt(end, SOL_SOCKET, SO_SNDBUF, &held, &size), 0);
    assert_true(held <= 2 * 65536); /* Linux doubles it for its own use */
    close(fd);
}

/* B5 P88 */
static void listeners_share_a_bound_and_a_reserve_is_kept(void **state)
{
    (void)state;
    httpd.bound = 10;
    httpd.second = httpd.settings;
    httpd.second.limits.reserve = 4;
    httpd_start(&httpd);
    struct httpd second = {.port = httpd.second_port};
    int fds[20];
    size_t n = 0;
    for (; n < 6; n++)
        client_sendz(fds[n] = client_open(&httpd), HOLD);
    httpd_wait_held(&httpd, 6);
    struct reply reply = client_ask(&httpd, HELLO); /* the rest is reserved */
    assert_int_equal(reply.status, 503);
    reply_done(&reply);
    for (; n < 10; n++)
        client_sendz(fds[n] = client_open(&second), HOLD);
    httpd_wait_held(&httpd, 10);
    reply = client_ask(&second, HELLO);
    assert_int_equal(reply.status, 503);
    reply_done(&reply);
    assert_int_equal(atomic_load(&httpd.refused), 2);
    httpd_release(&httpd);
    for (size_t i = 0; i < n; i++) {
        assert_true(client_reply(fds[i], &reply, false));
        reply_done(&reply);
    }
    int silent[20]; /* all of the first are idle now: its silent ones take nothing of what the second has */
    for (size_t i = 0; i < COUNT(silent); i++)
        silent[i] = client_open(&httpd);
    for (size_t i = 6; i < n; i++)
        assert_int_equal(status_on(fds[i], HELLO), 200);
    for (size_t i = 0; i < COUNT(silent); i++)
        close(silent[i]);
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
}

#define LATER "POST /later HTTP/1.1\r\n" HOST

/* B6 P87. /echo has a share of 1024 bytes: its body_max. */
static void bodies_past_a_share_are_refused_at_once_and_other_routes_go_on(void **state)
{
    (void)state;
    httpd.settings.limits.held_bytes = 1500;
    httpd_start(&httpd);
    int slow = client_open(&httpd);
    struct reply reply;
    char bytes[1000];
    memset(bytes, 'y', sizeof(bytes));
    client_sendz(slow, POST "Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n");
    assert_true(client_reply(slow, &reply, true));
    assert_int_equal(reply.status, 100);
    reply_done(&reply);
    ask_padded(POST "Content-Length: 1024\r\n\r\n", 'x', 1024, "", 200); /* nothing of the slow one is there yet */
    client_send(slow, bytes, 600);
    int status = 200; /* until the 600 bytes were read */
    for (unsigned rounds = 0; status == 200; rounds++) {
        reply = client_ask(&httpd, POST "Content-Length: 425\r\nExpect: 100-continue\r\n\r\n");
        status = reply.status == 100 ? 200 : reply.status;
        reply_done(&reply);
        assert_true(rounds < 10000);
    }
    assert_int_equal(status, 503); /* before a byte of it was sent */
    ask_padded(POST "Content-Length: 424\r\n\r\n", 'x', 424, "", 200);
    ask_padded(CHUNKED "1a9\r\n", 'x', 425, "\r\n0\r\n\r\n", 503);
    ask_padded(LATER "Content-Length: 1200\r\n\r\n", 'x', 1200, "", 200);
    client_send(slow, bytes, 400);
    assert_true(client_reply(slow, &reply, false));
    assert_int_equal(reply.n, 1000);
    reply_done(&reply);
    ask_padded(CHUNKED "1a9\r\n", 'x', 425, "\r\n0\r\n\r\n", 200);
    close(slow);
}

/* B6 P87 */
static void requests_that_only_announce_a_body_take_no_room(void **state)
{
    (void)state;
    static const char *const heads[] = {CHUNKED, POST "Content-Length: 1024\r\n\r\n"};
    httpd.settings.limits.held_bytes = 4096;
    httpd_start(&httpd);
    int idle[20];
    for (size_t i = 0; i < COUNT(idle); i++) {
        idle[i] = client_open(&httpd);
        client_sendz(idle[i], heads[i % 2]);
    }
    ask_padded(POST "Content-Length: 1024\r\n\r\n", 'x', 1024, "", 200);
    for (size_t i = 0; i < COUNT(idle); i++)
        close(idle[i]);
}

/* B9: whoever believes to have a tunnel now must not find the next request's answer in it. */
static void connect_closes(void **state)
{
    (void)state;
    static const char *const texts[] = {"CONNECT /hello HTTP/1.1\r\n" HOST "\r\n",
                                        "CONNECT localhost:80 HTTP/1.1\r\n" HOST "\r\n"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct reply reply;
        int fd = client_open(&httpd);
        client_sendz(fd, texts[i]);
        client_sendz(fd, "GET /smuggled HTTP/1.1\r\n" HOST "\r\n");
        assert_true(client_reply(fd, &reply, false));
        assert_int_equal(reply.status, i == 0 ? 405 : 400);
        assert_true(reply_has(&reply, "Connection: close"));
        assert_true(client_closed(fd));
        reply_done(&reply);
        close(fd);
    }
    assert_int_equal(atomic_load(&httpd.smuggled), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, httpd_up_running, httpd_down)
#define OWN(name) cmocka_unit_test_setup_teardown(name, httpd_up, httpd_down)
    const struct CMUnitTest tests[] = {
        CASE(a_body_whose_length_is_in_doubt_is_refused),
        CASE(chunks_that_are_not_framed_to_the_letter_are_refused),
        CASE(a_head_that_is_not_one_to_the_letter_is_refused),
        CASE(a_request_without_its_one_host_is_refused_and_the_next_is_served),
        CASE(an_upgrade_is_ignored),
        OWN(what_is_too_large_is_refused_before_it_is_kept),
        OWN(a_slow_head_and_a_slow_body_are_cut_off_though_bytes_keep_coming),
        OWN(a_silent_client_is_hung_up_on),
        OWN(whoever_does_not_read_his_answer_is_cut_off),
        OWN(one_connection_too_many_is_told_so),
        OWN(the_oldest_connection_without_a_request_gives_way),
        OWN(an_idle_connection_gives_way_when_all_have_sent_a_request),
        OWN(who_does_not_read_its_replies_gives_way),
        OWN(replies_that_nobody_reads_hold_little_memory_of_the_kernel),
        OWN(listeners_share_a_bound_and_a_reserve_is_kept),
        OWN(bodies_past_a_share_are_refused_at_once_and_other_routes_go_on),
        OWN(requests_that_only_announce_a_body_take_no_room),
        CASE(connect_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
