/* SPDX-License-Identifier: MIT
 *
 * test_upstream.c: calls to an upstream that answers badly, late, too early, twice or not at all. Each end reports what
 * is known, and no request is sent twice.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "base/mem.h"
#include "base/wait.h"
#include "handler/upstream.h"
#include "net/upstream.h"

/* One loop in this thread. A test starts calls, and `run` returns when all of them have ended. */
struct scene {
    struct upstream up;
    struct semel_http *http;
    struct semel_upstream *client;
    struct semel_upstream_settings settings;
    int64_t until_us; /* of the next requests */
    char url[128];
    struct semel_upstream_call *call;
    int status;
    int64_t length;
    char headers[4096]; /* name=value; of the answer */
    struct semel_buf body;
    struct semel_upstream_end end;
    unsigned heads, ends, drains;
    unsigned wanted;            /* ends until the loop stops */
    void (*at_done)(void);      /* starts the next call */
    void (*at_body)(void);      /* after each piece */
    uint64_t after_ms, started; /* a call that starts later, by the tick */
    void (*at_tick)(void);
    struct semel_error err;
};
static struct scene scene;

static void on_head(void *ctx, const struct semel_upstream_answer *answer)
{
    assert_ptr_equal(ctx, &scene);
    scene.heads++;
    scene.status = answer->status;
    scene.length = answer->length;
    scene.headers[0] = '\0';
    for (size_t i = 0, n = 0; i < answer->n_headers; i++)
        n += (size_t)snprintf(scene.headers + n, sizeof scene.headers - n, "%.*s=%.*s;", (int)answer->headers[i].name.n,
                              answer->headers[i].name.p, (int)answer->headers[i].value.n, answer->headers[i].value.p);
}

static void on_body(void *ctx, struct semel_str piece)
{
    assert_ptr_equal(ctx, &scene);
    assert_true(semel__buf_add(&scene.body, piece.p, piece.n));
    if (scene.at_body != NULL)
        scene.at_body();
}

static void on_drained(void *ctx)
{
    assert_ptr_equal(ctx, &scene);
    scene.drains++;
    if (scene.at_body != NULL)
        scene.at_body();
}

static void on_done(void *ctx, const struct semel_upstream_end *end)
{
    assert_ptr_equal(ctx, &scene);
    scene.end = *end;
    scene.call = NULL;
    if (++scene.ends == scene.wanted)
        semel__http_stop(scene.http, 0);
    else if (scene.at_done != NULL)
        scene.at_done();
}

static const struct semel_upstream_events events = {on_head, on_body, on_drained, on_done};

static void on_tick(void *ctx)
{
    (void)ctx;
    if (scene.at_tick != NULL)
        scene.at_tick();
}

static void open_client(void)
{
    struct semel_error err;
    assert_int_equal(semel__http_new(&scene.http, NULL, &err), SEMEL_OK);
    scene.settings.url = scene.url;
    if (semel__upstream_new(&scene.client, scene.http, &scene.settings, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    semel__http_on_tick(scene.http, on_tick, NULL);
    scene.heads = scene.ends = scene.drains = 0;
    scene.status = 0;
    scene.wanted = 1;
    scene.body.n = 0;
}

static void close_client(void)
{
    semel__http_free(scene.http);
    semel__upstream_free(scene.client);
    scene.http = NULL;
    scene.client = NULL;
}

static int set_up(void **state)
{
    (void)state;
    scene = (struct scene){.status = 0};
    upstream_start(&scene.up);
    upstream_answer(&scene.up, OK_EMPTY);
    snprintf(scene.url, sizeof scene.url, "http://127.0.0.1:%u", scene.up.port);
    semel__upstream_settings_init(&scene.settings);
    semel__buf_init(&scene.body, (size_t)64 << 20);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close_client();
    if (scene.up.listener > 0)
        upstream_stop(&scene.up);
    semel__buf_done(&scene.body);
    return 0;
}

static void start(enum semel_http_method method, int64_t length, bool fresh)
{
    struct semel_upstream_request request = {.method = method,
                                             .target = SEMEL_STR("/pay?a=1"),
                                             .lines = SEMEL_STR("Host: shop.example\r\nX-A: b\r\n"),
                                             .length = length,
                                             .fresh = fresh,
                                             .until_us = scene.until_us};
    struct semel_error err;
    assert_int_equal(semel__upstream_start(scene.client, &request, &events, &scene, &scene.call, &err), SEMEL_OK);
}

static void start_pay(void)
{
    start(SEMEL_HTTP_POST, 5, true);
    semel__upstream_send(scene.call, SEMEL_STR("cents"));
    semel__upstream_finish(scene.call);
}

static void run(void)
{
    struct semel_error err;
    assert_int_equal(semel__http_run(scene.http, &err), SEMEL_OK);
    assert_int_equal(scene.ends, scene.wanted);
}

static void ask(const char *answer, upstream_script script)
{
    upstream_answer(&scene.up, answer);
    upstream_play(&scene.up, script);
    open_client();
    start_pay();
    run();
}

static void assert_end(enum semel_upstream_fate fate, enum semel_upstream_cause cause)
{
    if (scene.end.fate != fate || scene.end.cause != cause)
        fail_msg("fate %d, cause %s (%s)", scene.end.fate, semel__upstream_cause_name(scene.end.cause),
                 scene.end.detail != NULL ? scene.end.detail : "");
}

static void assert_body(const char *text)
{
    if (!semel__str_eqz(semel__buf_str(&scene.body), text))
        fail_msg("the body is \"%.*s\"", (int)scene.body.n, scene.body.p);
}

static bool send_and_close(struct link *link)
{
    link_sendz(link, link->up->answer);
    return false;
}

/* ---- answers -------------------------------------------------------------------------------------- */

static void an_answer_comes_with_its_headers_and_its_body(void **state)
{
    (void)state;
    ask("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 201 Created\r\nA: 1\r\nA:  2 \r\nContent-Length: "
        "4\r\n\r\nbody",
        NULL);
    assert_end(SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE);
    assert_int_equal(scene.status, 201);
    assert_int_equal(scene.length, 4);
    assert_int_equal(scene.heads, 1);
    assert_string_equal(scene.headers, "A=1;A=2;Content-Length=4;"); /* P101: pairs */
    assert_body("body");
    assert_false(scene.end.early);
    assert_string_equal(upstream_seen(&scene.up)->head, "POST /pay?a=1 HTTP/1.1\r\nHost: shop.example\r\nX-A: b\r\n"
                                                        "Content-Length: 5\r\n\r\n");
    assert_string_equal(upstream_seen(&scene.up)->body, "cents");
}

static const struct {
    const char *name, *answer;
    bool close;
    enum semel_upstream_fate fate;
    enum semel_upstream_cause cause;
    const char *body;
} answers[] = {
#define GOOD SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE
#define BAD SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_MALFORMED
    {"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n1\r\n!\r\n0\r\n\r\n", false, GOOD,
     "body!"},
    {"to the end", "HTTP/1.1 200 OK\r\n\r\nbody", true, GOOD, "body"},
    {"of HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nbody", true, GOOD, "body"},
    {"no reason", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false, GOOD, ""},
    {"an empty reason", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", false, GOOD, ""},
    {"204", "HTTP/1.1 204 No Content\r\n\r\n", false, GOOD, ""},
    {"204 with length 0", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", false, GOOD, ""},
    {"304", "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", false, GOOD, ""},
    {"closed", "", true, SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_CLOSED, ""},
    {"half a head", "HTTP/1.1 200 OK\r\nContent", true, SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_TRUNCATED, ""},
    {"only interim", "HTTP/1.1 100 Continue\r\n\r\n", true, SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_CLOSED, ""},
    {"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", true, SEMEL_UPSTREAM_UNKNOWN,
     SEMEL_UPSTREAM_TRUNCATED, "half"},
    {"half the chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", true,
     SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_TRUNCATED, "half"},
    {"101", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", false,
     SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_UPGRADE, ""},
    {"not HTTP", "SSH-2.0-OpenSSH\r\n", false, BAD, ""},
    {"HTTP/2", "HTTP/2 200 OK\r\n\r\n", false, BAD, ""},
    {"two digits", "HTTP/1.1 20 OK\r\n\r\n", false, BAD, ""},
    {"four digits", "HTTP/1.1 2000 OK\r\n\r\n", false, BAD, ""},
    {"status 099", "HTTP/1.1 099 OK\r\n\r\n", false, BAD, ""},
    {"bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", false, BAD, ""},
    {"bare LF in headers", "HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n", false, BAD, ""},
    {"bare CR", "HTTP/1.1 200 OK\r\nA: b\rc\r\nContent-Length: 0\r\n\r\n", false, BAD, ""},
    {"obs-fold", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n", false, BAD, ""},
    {"a blank before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n", false, BAD, ""},
    {"both lengths", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false, BAD,
     ""},
    {"the other way", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", false, BAD,
     ""},
    {"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", false, BAD, ""},
    {"a list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 0, 0\r\n\r\n", false, BAD, ""},
    {"a signed length", "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\nbody", false, BAD, ""},
    {"a huge length", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nbody", false, BAD, ""},
    {"gzip, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", false, BAD, ""},
    {"chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     false, BAD, ""},
    {"chunked in 1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false, BAD, ""},
    {"204 with a body", "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nbody", false, BAD, ""},
    {"100 with a length", "HTTP/1.1 100 Continue\r\nContent-Length: 4\r\n\r\nbody", false, BAD, ""},
    {"a bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false, BAD, ""},
    {"no CR LF behind a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbodyxx", false, BAD, "body"},
    {"a trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n", false, BAD, ""},
    {"a NUL", "HTTP/1.1 200 OK\r\nA: \x01\r\n\r\n", false, BAD, ""},
    {"too many interim answers",
     "HTTP/1.1 100 a\r\n\r\nHTTP/1.1 100 b\r\n\r\nHTTP/1.1 100 c\r\n\r\nHTTP/1.1 100 d\r\n\r\nHTTP/1.1 100 e\r\n\r\n"
     "HTTP/1.1 102 f\r\n\r\nHTTP/1.1 102 g\r\n\r\nHTTP/1.1 102 h\r\n\r\nHTTP/1.1 102 i\r\n\r\n",
     false, SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_INTERIM, ""},
};

/* P52, P54, P93: and each cost one request. */
static void every_answer_has_one_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(answers); i++) {
        unsigned before = upstream_seen(&scene.up)->requests;
        ask(answers[i].answer, answers[i].close ? send_and_close : NULL);
        close_client();
        if (scene.end.fate != answers[i].fate || scene.end.cause != answers[i].cause)
            fail_msg("%s: fate %d, cause %s", answers[i].name, scene.end.fate,
                     semel__upstream_cause_name(scene.end.cause));
        assert_body(answers[i].body);
        assert_int_equal(upstream_seen(&scene.up)->requests, before + 1);
    }
    open_client();
}

static bool send_slowly(struct link *link)
{
    for (const char *p = link->up->answer; *p != '\0'; p++)
        if (!link_send(link, p, 1))
            return false;
    return true;
}

static void the_bytes_of_an_answer_may_come_one_by_one(void **state)
{
    (void)state;
    ask(answers[0].answer, send_slowly);
    assert_end(SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE);
    assert_body("body!");
}

static void a_head_has_bounds(void **state)
{
    (void)state;
    static char head[8192];
    size_t n = (size_t)snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nA: ");
    memset(head + n, 'a', 5000);
    snprintf(head + n + 5000, sizeof head - n - 5000, "\r\nContent-Length: 0\r\n\r\n");
    scene.settings.head_bytes = 4096;
    ask(head, NULL);
    assert_end(SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_HEAD_TOO_LARGE);
    close_client();
    scene.settings.head_bytes = 8192;
    scene.settings.head_fields = 1;
    ask(head, NULL);
    assert_end(SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_HEAD_TOO_LARGE);
}

static void a_head_alone_answers_a_head_request(void **state)
{
    (void)state;
    upstream_answer(&scene.up, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    open_client();
    scene.wanted = 2;
    start(SEMEL_HTTP_HEAD, 0, false);
    scene.at_done = start_pay;
    upstream_play(&scene.up, NULL);
    scene.settings.answer_ms = 1;
    run();
    assert_int_equal(upstream_seen(&scene.up)->requests, 2);
}

/* ---- nothing was sent ------------------------------------------------------------------------------ */

static void a_dead_upstream_got_nothing(void **state)
{
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* a port that nobody listens on */
    struct sockaddr_in in = {.sin_family = AF_INET};
    socklen_t n = sizeof in;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &n), 0);
    snprintf(scene.url, sizeof scene.url, "http://localhost:%u", ntohs(in.sin_port));
    ask(OK_EMPTY, NULL);
    assert_end(SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_CONNECT);
    close_client();
    snprintf(scene.url, sizeof scene.url, "http://no-such-host.invalid");
    ask(OK_EMPTY, NULL);
    assert_end(SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_RESOLVE);
    close_client();
    snprintf(scene.url, sizeof scene.url, "unix:/tmp/semel-no-such-socket");
    ask(OK_EMPTY, NULL);
    assert_end(SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_CONNECT);
    assert_int_equal(upstream_seen(&scene.up)->heads, 0);
    close(fd);
}

static void a_connection_that_is_never_accepted_times_out(void **state)
{
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), full[8];
    struct sockaddr_in in = {.sin_family = AF_INET};
    socklen_t n = sizeof in;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &n), 0);
    for (size_t i = 0; i < COUNT(full); i++) { /* until its queue is full, the kernel itself accepts */
        full[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(full[i], (struct sockaddr *)&in, sizeof in);
    }
    snprintf(scene.url, sizeof scene.url, "http://127.0.0.1:%u", ntohs(in.sin_port));
    scene.settings.connect_ms = 100;
    ask(OK_EMPTY, NULL);
    assert_end(SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_CONNECT_TIMEOUT);
    for (size_t i = 0; i < COUNT(full); i++)
        close(full[i]);
    close(fd);
}

static const char *big(void)
{
    static char bytes[(size_t)16 << 20];
    if (bytes[0] == '\0')
        memset(bytes, 'x', sizeof bytes);
    return bytes;
}

static void start_too_late(void)
{
    scene.until_us = semel__boot_us();
    start(SEMEL_HTTP_POST, 65536, true);
    semel__upstream_send(scene.call, (struct semel_str){big(), 65536}); /* it would not wait for the turn's end */
    semel__upstream_finish(scene.call);
}

/* On a new connection, and on one that is open already. */
static void a_request_whose_time_is_over_is_not_sent(void **state)
{
    (void)state;
    scene.until_us = semel__boot_us();
    ask(OK_EMPTY, NULL);
    assert_end(SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_STOPPED);
    close_client();
    assert_int_equal(upstream_seen(&scene.up)->heads, 0);
    scene.until_us = semel__boot_us() + WAIT_MS * INT64_C(1000);
    open_client();
    scene.wanted = 2;
    scene.at_done = start_too_late;
    start_pay();
    run();
    assert_end(SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_STOPPED);
    assert_int_equal(upstream_seen(&scene.up)->heads, 1);
}

static void a_url_that_cannot_be_used_is_refused(void **state)
{
    (void)state;
    static const char *const urls[] = {"",          "ftp://a",    "http://",        "http://a/path", "http://u@a",
                                       "http://a:", "http://a:0", "http://a:65536", "http://[::1",   "http://a:8 ",
                                       "unix:path", "http://a b", "https://a?x",    "http://a#f"};
    struct semel_error err;
    open_client();
    struct semel_upstream *up = NULL;
    for (size_t i = 0; i < COUNT(urls); i++) {
        struct semel_upstream_settings settings = scene.settings;
        settings.url = urls[i];
        if (semel__upstream_new(&up, scene.http, &settings, &err) != SEMEL_INVALID)
            fail_msg("%s was accepted", urls[i]);
        assert_non_null(strstr(err.text, "upstream"));
    }
}

/* ---- time-outs ------------------------------------------------------------------------------------- */

static bool half_a_body(struct link *link)
{
    return link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf") && link_wait_release(link);
}

static void an_upstream_that_stops_times_out(void **state)
{
    (void)state;
    scene.settings.answer_ms = 100;
    ask(OK_EMPTY, script_hold);
    assert_end(SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_TIMEOUT);
    close_client();
    scene.settings.answer_ms = 20000;
    scene.settings.idle_ms = 100;
    ask(OK_EMPTY, half_a_body);
    assert_end(SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_IDLE_TIMEOUT);
    assert_body("half");
}

static bool wait_early(struct link *link)
{
    return link_wait_release(link);
}

static void an_upstream_that_does_not_read_times_out(void **state)
{
    (void)state;
    scene.settings.send_ms = 100;
    upstream_play_early(&scene.up, wait_early);
    open_client();
    start(SEMEL_HTTP_POST, 16 << 20, true);
    assert_false(semel__upstream_send(scene.call, (struct semel_str){big(), 16 << 20}));
    semel__upstream_finish(scene.call);
    run();
    assert_end(SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_SEND_TIMEOUT);
}

/* ---- bodies ---------------------------------------------------------------------------------------- */

static size_t left;

static void send_more(void)
{
    while (left > 0 && scene.call != NULL) {
        left -= 65536;
        bool room = semel__upstream_send(scene.call, (struct semel_str){big(), 65536});
        if (left == 0)
            semel__upstream_finish(scene.call);
        if (!room)
            return;
    }
}

static bool read_late(struct link *link)
{
    (void)link;
    poll(NULL, 0, 200); /* meanwhile the sockets fill up */
    return true;
}

static void a_large_body_waits_for_the_upstream(void **state)
{
    (void)state;
    upstream_play_early(&scene.up, read_late);
    open_client();
    left = (size_t)16 << 20;
    start(SEMEL_HTTP_POST, 16 << 20, true);
    scene.at_body = send_more;
    send_more();
    assert_true(left > (size_t)15 << 20); /* before there is a connection: at most two pieces wait */
    run();
    assert_end(SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE);
    assert_true(scene.drains > 1);
    assert_int_equal(upstream_seen(&scene.up)->n_body, (size_t)16 << 20);
}

static bool send_big(struct link *link)
{
    char head[128];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", 16 << 20);
    return link_sendz(link, head) && link_send(link, big(), 16 << 20);
}

static unsigned paused_ticks;

static void pause_once(void)
{
    if (paused_ticks == 0 && scene.body.n > 1000000) {
        paused_ticks = 1;
        semel__upstream_pull(scene.call, false);
    }
}

static void resume(void)
{
    if (scene.call != NULL && paused_ticks > 0 && ++paused_ticks == 12)
        semel__upstream_pull(scene.call, true);
}

static void an_answer_waits_until_it_is_pulled(void **state)
{
    (void)state;
    paused_ticks = 0;
    scene.at_body = pause_once;
    scene.at_tick = resume;
    scene.settings.idle_ms = 900; /* the pause is longer: it is no fault of the upstream */
    ask(OK_EMPTY, send_big);
    assert_end(SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE);
    assert_int_equal(scene.body.n, (size_t)16 << 20);
    assert_true(paused_ticks >= 12);
}

static bool answer_early(struct link *link)
{
    link_sendz(link, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
    return link_wait_release(link);
}

static void an_early_answer_counts_and_its_connection_does_not(void **state)
{
    (void)state;
    upstream_play_early(&scene.up, answer_early);
    open_client();
    start(SEMEL_HTTP_POST, 1000, true); /* the body is never sent */
    run();
    assert_end(SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE);
    assert_true(scene.end.early);
    assert_int_equal(scene.status, 413);
}

static bool begin_early(struct link *link)
{
    return link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo");
}

static bool send_the_rest(struct link *link)
{
    return link_sendz(link, "dy");
}

static void pause_at_once(void)
{
    if (scene.body.n == 2)
        semel__upstream_pull(scene.call, false);
}

static void resume_and_send(void)
{
    if (scene.body.n != 2 || left == 0)
        return;
    left = 0;
    semel__upstream_pull(scene.call, true);
    semel__upstream_send(scene.call, SEMEL_STR("cents"));
    semel__upstream_finish(scene.call);
}

static void an_answer_goes_on_while_its_request_does(void **state)
{
    (void)state;
    upstream_play_early(&scene.up, begin_early);
    upstream_play(&scene.up, send_the_rest);
    scene.settings.idle_ms = WAIT_MS;
    scene.at_body = pause_at_once;
    scene.at_tick = resume_and_send;
    left = 1;
    open_client();
    start(SEMEL_HTTP_POST, 5, true);
    const int64_t before_us = semel__steady_us();
    run();
    assert_true(semel__steady_us() - before_us < WAIT_MS * INT64_C(500)); /* it did not wait for a time-out */
    assert_end(SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE);
    assert_body("body");
    assert_false(scene.end.early);
}

/* ---- connections ----------------------------------------------------------------------------------- */

static void start_fresh(void)
{
    start(SEMEL_HTTP_POST, 0, true);
}

static void connections_are_used_again(void **state)
{
    (void)state;
    open_client();
    scene.wanted = 20;
    scene.at_done = start_fresh;
    start_fresh();
    run();
    assert_int_equal(upstream_seen(&scene.up)->n_links, 1);
    assert_int_equal(upstream_seen(&scene.up)->most, 20);
}

static unsigned ticks;
static bool fresh;

static void start_at_tick(void)
{
    if (++ticks == 4 || ticks == 16) /* 0.3 s and 1.2 s later */
        start(SEMEL_HTTP_POST, 0, fresh);
}

static void nothing(void)
{
}

/* P94: a guarded call takes a connection only if it was used within the last second; any call only within half of what
 * Keep-Alive allows. */
static void an_idle_connection_is_soon_too_old(void **state)
{
    (void)state;
    static const struct {
        bool fresh;
        const char *answer;
        size_t links;
    } rounds[] = {{true, OK_EMPTY, 2},
                  {false, OK_EMPTY, 1},
                  {false, "HTTP/1.1 200 OK\r\nKeep-Alive: max=9, timeout=1\r\nContent-Length: 0\r\n\r\n", 2},
                  {false, "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=0\r\nContent-Length: 0\r\n\r\n", 3}};
    for (size_t i = 0; i < COUNT(rounds); i++) {
        ticks = 0;
        fresh = rounds[i].fresh;
        upstream_answer(&scene.up, rounds[i].answer);
        open_client();
        scene.wanted = 3;
        scene.at_done = nothing;
        scene.at_tick = start_at_tick;
        size_t before = upstream_seen(&scene.up)->n_links;
        start(SEMEL_HTTP_POST, 0, fresh);
        run();
        close_client();
        assert_int_equal(upstream_seen(&scene.up)->n_links - before, rounds[i].links);
    }
    open_client();
}

static bool answer_twice(struct link *link)
{
    return link_sendz(link, OK_EMPTY OK_EMPTY);
}

/* P52: the second answer belongs to nobody. */
static void bytes_behind_an_answer_end_its_connection(void **state)
{
    (void)state;
    upstream_play(&scene.up, answer_twice);
    open_client();
    scene.wanted = 3;
    scene.at_done = start_fresh;
    start_fresh();
    run();
    assert_int_equal(upstream_seen(&scene.up)->n_links, 3);
    assert_int_equal(upstream_seen(&scene.up)->requests, 3);
}

static bool close_the_second(struct link *link)
{
    return link->nth == 1 && link_sendz(link, OK_EMPTY);
}

/* P54: the upstream reads the second request of a connection and closes it. It must count one. */
static void a_request_is_never_sent_again(void **state)
{
    (void)state;
    upstream_play(&scene.up, close_the_second);
    open_client();
    scene.wanted = 2;
    scene.at_done = start_fresh;
    start_fresh();
    run();
    assert_end(SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_CLOSED);
    assert_int_equal(upstream_seen(&scene.up)->requests, 2);
    assert_int_equal(upstream_seen(&scene.up)->n_links, 1);
}

static atomic_bool closing;

static bool close_when_released(struct link *link)
{
    if (link_sendz(link, OK_EMPTY))
        link_wait_release(link);
    shutdown(link->fd, SHUT_RDWR);
    atomic_store(&closing, true);
    return false;
}

static void start_and_let_it_close(void)
{
    start_fresh();
    upstream_release(&scene.up);
    while (!atomic_load(&closing))
        poll(NULL, 0, 1);
}

/* P94: the connection was still open when it was taken. */
static void a_connection_that_closes_before_the_first_byte_got_nothing(void **state)
{
    (void)state;
    atomic_store(&closing, false);
    upstream_play(&scene.up, close_when_released);
    open_client();
    scene.wanted = 2;
    scene.at_done = start_and_let_it_close;
    start_fresh();
    run();
    assert_end(SEMEL_UPSTREAM_NOTHING_SENT, SEMEL_UPSTREAM_CLOSED);
    assert_int_equal(upstream_seen(&scene.up)->n_links, 1);
}

/* The upstream closes after 30 ms; the next call comes at any moment around that. */
static void an_idle_close_never_costs_two_requests(void **state)
{
    (void)state;
    unsigned answered = 0, unknown = 0;
    scene.up.idle_ms = 30;
    for (int i = 0; i < 12; i++) {
        unsigned before = upstream_seen(&scene.up)->requests;
        open_client();
        scene.wanted = 2;
        ticks = 3; /* the next tick starts it */
        fresh = true;
        scene.at_done = nothing;
        scene.at_tick = start_at_tick;
        start_fresh();
        run();
        answered += scene.end.fate == SEMEL_UPSTREAM_ANSWERED;
        unknown += scene.end.fate == SEMEL_UPSTREAM_UNKNOWN;
        close_client();
        assert_true(upstream_seen(&scene.up)->requests <= before + 2);
    }
    assert_in_range(answered + unknown, 1, 12); /* the others got nothing */
    assert_true(answered > 0);
    open_client();
}

static bool refuse_memory(void *ctx)
{
    (void)ctx;
    return false;
}

static void lose_the_body(void)
{
    if (scene.call == NULL || scene.ends > 0)
        return;
    semel__alloc_set_hook(refuse_memory, NULL);
    semel__upstream_send(scene.call, (struct semel_str){big(), 65536});
    semel__alloc_set_hook(NULL, NULL);
    semel__upstream_finish(scene.call);
}

static bool answer_the_first_early(struct link *link)
{
    return link != &link->up->links[0] || link_sendz(link, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

/* Its server still waits for the rest, and would take the next request for it. */
static void a_connection_whose_request_lost_its_body_is_not_used_again(void **state)
{
    (void)state;
    upstream_play_early(&scene.up, answer_the_first_early);
    open_client();
    scene.wanted = 2;
    scene.at_body = lose_the_body;
    scene.at_done = start_fresh;
    start(SEMEL_HTTP_POST, 65536, true);
    run();
    assert_end(SEMEL_UPSTREAM_ANSWERED, SEMEL_UPSTREAM_NONE);
    assert_int_equal(upstream_seen(&scene.up)->n_links, 2);
}

static void a_cancelled_call_has_no_end(void **state)
{
    (void)state;
    upstream_play(&scene.up, script_hold);
    open_client();
    start_pay();
    semel__upstream_cancel(scene.call);
    start_pay();
    struct semel_upstream_call *first = scene.call;
    scene.settings.answer_ms = 100;
    start_pay();
    semel__upstream_cancel(first);
    semel__upstream_cancel(scene.call);
    semel__http_stop(scene.http, 0);
    struct semel_error err;
    assert_int_equal(semel__http_run(scene.http, &err), SEMEL_OK);
    assert_int_equal(scene.ends, 0);
}

static void stop_soon(void)
{
    semel__http_stop(scene.http, 200);
}

static void a_stop_waits_for_calls_until_its_deadline(void **state)
{
    (void)state;
    upstream_play(&scene.up, script_hold);
    open_client();
    scene.at_tick = stop_soon;
    start_pay();
    run();
    assert_end(SEMEL_UPSTREAM_UNKNOWN, SEMEL_UPSTREAM_STOPPED);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(an_answer_comes_with_its_headers_and_its_body),
        CASE(every_answer_has_one_end),
        CASE(the_bytes_of_an_answer_may_come_one_by_one),
        CASE(a_head_has_bounds),
        CASE(a_head_alone_answers_a_head_request),
        CASE(a_dead_upstream_got_nothing),
        CASE(a_connection_that_is_never_accepted_times_out),
        CASE(a_request_whose_time_is_over_is_not_sent),
        CASE(a_url_that_cannot_be_used_is_refused),
        CASE(an_upstream_that_stops_times_out),
        CASE(an_upstream_that_does_not_read_times_out),
        CASE(a_large_body_waits_for_the_upstream),
        CASE(an_answer_waits_until_it_is_pulled),
        CASE(an_early_answer_counts_and_its_connection_does_not),
        CASE(an_answer_goes_on_while_its_request_does),
        CASE(connections_are_used_again),
        CASE(an_idle_connection_is_soon_too_old),
        CASE(bytes_behind_an_answer_end_its_connection),
        CASE(a_request_is_never_sent_again),
        CASE(a_connection_that_closes_before_the_first_byte_got_nothing),
        CASE(an_idle_close_never_costs_two_requests),
        CASE(a_connection_whose_request_lost_its_body_is_not_used_again),
        CASE(a_cancelled_call_has_no_end),
        CASE(a_stop_waits_for_calls_until_its_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
