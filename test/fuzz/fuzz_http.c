/* SPDX-License-Identifier: MIT
 *
 * fuzz_http.c: hostile bytes for the state machine of a connection, without a socket.
 *
 * The input: one byte, then what a client sends. The byte '0' runs undisturbed; any other makes that
 * allocation fail (its low five bits).
 *
 * What must hold: a handler sees only what the contract promises; what comes out is a row of
 * well-formed replies, none after the one that closes; every answer that was owed was given; and
 * undisturbed, the replies are the same however the bytes were cut into pieces.
 */
#define _GNU_SOURCE /* memmem */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/conn.h"

#define MAX_BYTES 65536
#define OUT_MAX ((size_t)64 << 20)
#define BODY_MAX 64
#define CONTINUE "HTTP/1.1 100 Continue\r\n\r\n"
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_http.c:%d: does not hold: %s\n", line, condition);
    abort();
}

static bool fail_countdown(void *ctx)
{
    unsigned *left = ctx;
    return *left == 0 || --*left != 0;
}

struct run {
    struct semel_conn_env env;
    struct semel_buf streamed; /* the body of a request that streams */
    bool streaming;
    struct semel_http_exchange *back; /* answered, not given back yet */
    unsigned handled, alive;
    bool disturbed, closed; /* closed: a reply said that it is the last */
};

static void took(void *ctx)
{
    ((struct run *)ctx)->alive++;
}

static void gone(void *ctx)
{
    ((struct run *)ctx)->alive--;
}

static void came_back(void *ctx, struct semel_http_exchange *x)
{
    struct run *run = ctx;
    MUST(run->back == NULL);
    run->back = x;
}

static int64_t standing(void *ctx)
{
    (void)ctx;
    return INT64_C(784111777000000);
}

static void check_text(struct semel_str s, bool token)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        MUST(token ? semel__http_tchar(s.p[i]) : (c >= ' ' || c == '\t') && c != 0x7F);
    }
}

static void handle(void *ctx, struct semel_http_exchange *x)
{
    struct run *run = ctx;
    const struct semel_http_request *req = semel__http_request(x);
    unsigned hosts = 0;
    run->handled++;
    MUST(req->body.n <= req->route->body_max);
    MUST(req->target.n > 0 && req->target.p[0] == '/');
    MUST(req->n_headers <= run->env.limits.head_fields && req->n_query <= run->env.limits.head_fields);
    for (size_t i = 0; i < req->n_headers; i++) {
        check_text(req->headers[i].name, true);
        check_text(req->headers[i].value, false);
        MUST(req->headers[i].name.n > 0);
        hosts += semel__same_word(req->headers[i].name, "host");
        MUST(req->route->needs == 0 || !semel__same_word(req->headers[i].name, "authorization"));
    }
    MUST(hosts == 1);
    MUST(req->route->needs == 0 || (req->scopes & req->route->needs) != 0);
    for (size_t i = 0; i < req->n_params; i++)
        semel__buf_add(semel__http_body(x), req->params[i].p, req->params[i].n);
    for (size_t i = 0; i < req->n_query; i++)
        semel__buf_add(semel__http_body(x), req->query[i].value.p, req->query[i].value.n);
    semel__buf_add(semel__http_body(x), req->body.p, req->body.n);
    semel__http_set_header(x, "X-Host", semel__http_header(req, "host"));
    semel__http_answer(x, req->n_query > 3 ? 204 : 200);
}

/* A route that streams: collects the body, then replies with it, one half after the other. */
static void stream_reply(struct run *run, struct semel_http_exchange *x)
{
    size_t half = run->streamed.n / 2;
    run->streaming = false;
    semel__http_begin(x, 200, (int64_t)run->streamed.n);
    if (run->streamed.n > 0) {
        semel__http_send(x, (struct semel_str){run->streamed.p, half});
        semel__http_send(x, (struct semel_str){run->streamed.p + half, run->streamed.n - half});
    }
    semel__http_end(x);
}

static void stream_handle(void *ctx, struct semel_http_exchange *x)
{
    struct run *run = ctx;
    run->handled++;
    MUST(!run->streaming);
    run->streaming = true;
    run->streamed.n = 0;
    if (semel__http_request(x)->length == 0)
        stream_reply(run, x);
    else
        semel__http_pull(x, true);
}

static void stream_body(struct semel_http_exchange *x, struct semel_str piece)
{
    struct run *run = semel__http_request(x)->route->ctx;
    MUST(run->streaming && piece.n > 0);
    if (!semel__buf_add(&run->streamed, piece.p, piece.n)) {
        run->streaming = false;
        semel__http_refuse(x, 503, "no memory");
    }
    MUST(run->streamed.n <= BODY_MAX);
}

static void stream_whole(struct semel_http_exchange *x)
{
    stream_reply(semel__http_request(x)->route->ctx, x);
}

static void stream_nothing(struct semel_http_exchange *x)
{
    MUST(x->owned);
}

static void stream_gone(struct semel_http_exchange *x)
{
    struct run *run = semel__http_request(x)->route->ctx;
    MUST(run->streaming);
    run->streaming = false;
}

/* The number behind the name of a header, within n bytes; SIZE_MAX: it is not there. */
static size_t number_of(const char *head, size_t n, const char *name)
{
    const char *at = memmem(head, n, name, strlen(name));
    return at != NULL ? strtoul(at + strlen(name), NULL, 10) : SIZE_MAX;
}

/* A reply as it begins to be sent: one head, and the body that it promises, or none (HEAD, 204). */
static void check_reply(struct run *run, const struct semel_str pieces[2])
{
    static const char close[] = "\r\nConnection: close\r\n";
    const char *end = memmem(pieces[0].p, pieces[0].n, "\r\n\r\n", 4);
    MUST(!run->closed && pieces[0].n > 12 && end != NULL);
    MUST(memcmp(pieces[0].p, "HTTP/1.1 ", 9) == 0 && memcmp(pieces[0].p + 9, "100", 3) != 0);
    size_t head = (size_t)(end - pieces[0].p) + 4, body = pieces[0].n - head + pieces[1].n;
    size_t length = number_of(pieces[0].p, head, "\r\nContent-Length: ");
    MUST(body == 0 || body == length);
    for (size_t i = 0; i < head; i++)
        MUST(pieces[0].p[i] != '\0' && (pieces[0].p[i] != '\n' || pieces[0].p[i - 1] == '\r'));
    run->closed = memmem(pieces[0].p, head, close, sizeof(close) - 1) != NULL;
}

/* Sends what there is and gives answers back until there is nothing. Interim replies depend on when bytes came, and
 * are not kept. */
static void drain_output(struct run *run, struct semel_conn *conn, struct semel_buf *out, size_t step)
{
    struct semel_str pieces[2];
    for (;;) {
        struct semel_http_exchange *x = run->back;
        run->back = NULL;
        if (x != NULL)
            semel__conn_answered(conn, x);
        semel__conn_turn(conn);
        size_t n = semel__conn_output(conn, pieces);
        if (n == 0)
            return;
        if (conn->phase != SEMEL_CONN_WRITING && !(conn->phase == SEMEL_CONN_STREAMING && conn->x->begun)) {
            MUST(n == sizeof(CONTINUE) - 1 && memcmp(pieces[0].p, CONTINUE, n) == 0);
            semel__conn_sent(conn, n);
            continue;
        }
        if (conn->sent == 0)
            check_reply(run, pieces[0].n > 0 ? pieces : (struct semel_str[2]){pieces[1], {"", 0}});
        struct semel_str piece = pieces[0].n > 0 ? pieces[0] : pieces[1];
        size_t slice = step < piece.n ? step : piece.n;
        semel__buf_add(out, piece.p, slice);
        semel__conn_sent(conn, slice);
    }
}

/* Feeds everything in pieces of `step` bytes and gathers the replies. */
static void converse(struct run *run, struct semel_str in, size_t step, struct semel_buf *out)
{
    struct semel_conn *conn = semel__conn_new(&run->env, "127.0.0.1:1", "127.0.0.1");
    MUST(conn != NULL || run->disturbed);
    if (conn == NULL)
        return;
    run->closed = false;
    while (in.n > 0 && semel__conn_wants(conn)) {
        size_t n = step < in.n ? step : in.n;
        semel__conn_input(conn, in.p, n);
        in = (struct semel_str){in.p + n, in.n - n};
        drain_output(run, conn, out, step);
    }
    if (conn->phase != SEMEL_CONN_CLOSED && conn->phase != SEMEL_CONN_LINGER)
        MUST(in.n == 0);
    if (conn->phase != SEMEL_CONN_CLOSED)
        semel__conn_ended(conn);
    drain_output(run, conn, out, step);
    MUST(conn->phase == SEMEL_CONN_CLOSED);
    semel__conn_free(conn);
    MUST(run->alive == 0 && run->env.held == 0 && !run->streaming);
}

static void init(struct run *run)
{
    static const struct semel_clock clock = {.now_us = standing};
    static const struct semel_http_token tokens[] = {{{"t", 1}, 1}};
    static const struct semel_http_stream stream = {stream_body, stream_whole, stream_nothing, stream_nothing,
                                                    stream_gone};
    static struct semel_http_route routes[] = {
        {.methods = SEMEL_HTTP_BIT(GET), .path = "/", .handle = handle},
        {.methods = SEMEL_HTTP_BIT(POST), .path = "/e", .body_max = BODY_MAX, .handle = handle},
        {.methods = SEMEL_HTTP_BIT(GET), .path = "/p/{a}/{b}", .handle = handle},
        {.methods = SEMEL_HTTP_BIT(PUT), .path = "/s", .needs = 1, .body_max = BODY_MAX, .handle = handle},
        {.methods = SEMEL_HTTP_BIT(DELETE), .path = "/r/{rest*}", .handle = handle},
        {.methods = SEMEL_HTTP_BIT(PATCH),
         .path = "/{rest*}",
         .body_max = BODY_MAX,
         .handle = stream_handle,
         .stream = &stream},
    };
    struct semel_http_settings settings;
    semel__http_settings_init(&settings);
    settings.tokens = tokens;
    settings.n_tokens = 1;
    settings.routes = routes;
    settings.n_routes = sizeof(routes) / sizeof(routes[0]);
    settings.limits.head_bytes = 512;
    settings.limits.head_fields = 8;
    settings.limits.requests = 20;
    settings.limits.held_bytes = BODY_MAX;
    *run = (struct run){.disturbed = false};
    semel__buf_init(&run->streamed, BODY_MAX);
    for (size_t i = 0; i < settings.n_routes; i++)
        routes[i].ctx = run;
    MUST(semel__conn_env_init(&run->env, &settings, false, NULL) == SEMEL_OK);
    run->env.clock = &clock;
    run->env.back = came_back;
    run->env.take = took;
    run->env.gone = gone;
    run->env.back_ctx = run;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct run run;
    struct semel_buf whole, bytes;
    if (size == 0 || size > MAX_BYTES)
        return 0;
    struct semel_str in = {(const char *)data + 1, size - 1};
    unsigned left = data[0] == '0' ? 0 : data[0] & 0x1Fu;
    init(&run);
    run.disturbed = left > 0;
    semel__buf_init(&whole, OUT_MAX);
    semel__buf_init(&bytes, OUT_MAX);
    semel__alloc_set_hook(run.disturbed ? fail_countdown : NULL, &left);
    converse(&run, in, SEMEL_CONN_READ, &whole);
    semel__alloc_set_hook(NULL, NULL);
    run.disturbed = false;
    unsigned handled = run.handled;
    if (data[0] == '0') {
        converse(&run, in, 1, &bytes);
        MUST(run.handled == 2 * handled);
        MUST(semel__str_eq(semel__buf_str(&whole), semel__buf_str(&bytes)));
    }
    semel__buf_done(&whole);
    semel__buf_done(&bytes);
    semel__buf_done(&run.streamed);
    semel__conn_env_done(&run.env);
    return 0;
}
