/* SPDX-License-Identifier: MIT
 *
 * conn.c: the state machine of conn.h.
 *
 * Invariants: enter() is the only place where a phase changes; a request is judged (Host, route, token, length)
 * as soon as its head is there and before a byte of its body is kept; whatever is refused ends the
 * connection when bytes of the request may still come; a body is charged to its route's share as its bytes come, never
 * before, so that what is only announced takes no room from others (P87); `out` has all its room from the beginning and
 * never moves, for somebody may be writing from it.
 */
#include "net/conn.h"

#include <assert.h>
#include <stdio.h>

#include "net/head.h"
#include "net/route.h"

#define OUT_MAX 12288
#define IN_KEPT 4096 /* bytes of room that an idle connection keeps */
#define CONTINUE "HTTP/1.1 100 Continue\r\n\r\n"

static const char no_room[] = "too many bodies are in memory for this path; send it again later";

static void advance(struct semel_conn *conn);

static void enter(struct semel_conn *conn, enum semel_conn_phase phase)
{
    conn->phase = phase;
    conn->serial++;
}

bool semel__conn_share_out(struct semel_conn_env *env)
{
    double all = 0;
    env->shares = semel__calloc(env->n_routes + 1, sizeof(*env->shares));
    if (env->shares == NULL)
        return false;
    for (size_t i = 0; i < env->n_routes; i++)
        all += (double)env->routes[i].body_max;
    for (size_t i = 0; i < env->n_routes; i++) {
        size_t body_max = env->routes[i].body_max;
        double part = body_max > 0 ? (double)env->limits.held_bytes * ((double)body_max / all) : 0;
        env->shares[i].max = part > (double)body_max ? (size_t)part : body_max;
    }
    return true;
}

void semel__conn_env_done(struct semel_conn_env *env)
{
    semel__free(env->shares);
    env->shares = NULL;
}

static void copy_text(char *out, size_t size, const char *text, struct semel_str *ret)
{
    int n = text != NULL ? snprintf(out, size, "%s", text) : -1;
    if (n >= 0)
        *ret = semel__str(out);
}

struct semel_conn *semel__conn_new(struct semel_conn_env *env, const char *remote, const char *local)
{
    struct semel_conn *conn = semel__calloc(1, sizeof(*conn));
    if (conn == NULL)
        return NULL;
    conn->env = env;
    semel__buf_init(&conn->in, env->limits.head_bytes + 2 * SEMEL_CONN_READ);
    conn->out = (struct semel_buf){.p = semel__alloc(OUT_MAX + 1), .cap = OUT_MAX + 1, .max = OUT_MAX};
    if (conn->out.p == NULL) {
        semel__free(conn);
        return NULL;
    }
    semel__gate_init(&conn->gate, env->limits.head_bytes, env->limits.head_fields);
    copy_text(conn->remote_text, sizeof(conn->remote_text), remote, &conn->remote);
    copy_text(conn->local_text, sizeof(conn->local_text), local, &conn->local);
    enter(conn, SEMEL_CONN_HEAD); /* the first request is awaited under the time-out of a head */
    return conn;
}

void semel__conn_retire(struct semel_conn_env *env, struct semel_http_exchange *x)
{
    if (x == NULL)
        return;
    if (x->held > 0) {
        struct semel_conn_share *share = &env->shares[x->req.route - env->routes];
        assert(env->held >= x->held && share->held >= x->held);
        env->held -= x->held;
        share->held -= x->held;
    }
    semel__exchange_free(x);
}

/* Lets go of the exchange: one that a handler has goes on without us. */
static void drop_exchange(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    conn->x = NULL;
    conn->body = (struct semel_str){NULL, 0};
    if (x != NULL && conn->phase == SEMEL_CONN_HANDLING) {
        atomic_store_explicit(&x->hung_up, true, memory_order_relaxed);
        x->conn = NULL;
    } else {
        semel__conn_retire(conn->env, x);
    }
}

void semel__conn_free(struct semel_conn *conn)
{
    if (conn == NULL)
        return;
    drop_exchange(conn);
    semel__buf_done(&conn->in);
    semel__buf_done(&conn->out);
    semel__free(conn);
}

static void close_now(struct semel_conn *conn)
{
    drop_exchange(conn);
    enter(conn, SEMEL_CONN_CLOSED);
}

void semel__conn_lost(struct semel_conn *conn)
{
    close_now(conn);
}

/* Begins to send what is in `out` and `body`. */
static void send_reply(struct semel_conn *conn)
{
    if (conn->out.failed)
        close_now(conn);
    else
        enter(conn, SEMEL_CONN_WRITING);
}

static void observe(const struct semel_conn *conn, int status)
{
    const struct semel_conn_env *env = conn->env;
    if (env->observe == NULL)
        return;
    const struct semel_http_exchange *x = conn->x;
    bool sound = x != NULL && x->req.route != NULL;
    env->observe(env->observe_ctx, sound ? &x->req : NULL, status, sound ? semel__now(env->clock) - x->started_us : 0);
}

static void put_allow(struct semel_buf *lines, unsigned methods)
{
    const char *before = "Allow: ";
    for (unsigned i = 0; i < SEMEL_HTTP_METHODS; i++) {
        if (!(methods >> i & 1u))
            continue;
        semel__buf_addf(lines, "%s%s", before, semel__http_method_name((enum semel_http_method)i));
        before = ", ";
    }
    semel__buf_addz(lines, methods != 0 ? "\r\n" : "Allow:\r\n");
}

/* A refusal of our own. What was still to come of the request cannot be told from the next one: unless the message
 * is complete, it is the last. */
static void refuse(struct semel_conn *conn, int status, const char *reason, unsigned allow)
{
    struct semel_buf body, lines;
    bool head_only = conn->x != NULL && conn->x->req.method == SEMEL_HTTP_HEAD && conn->parse.headed;
    semel__buf_init(&body, OUT_MAX);
    semel__buf_init(&lines, OUT_MAX);
    semel__problem_put(&body, status, semel__str(reason));
    if (status == 405)
        put_allow(&lines, allow);
    if (status == 401)
        semel__buf_addz(&lines, "WWW-Authenticate: Bearer\r\n");
    if (status == 503)
        semel__buf_addz(&lines, "Retry-After: 1\r\n");
    if (conn->x == NULL || !conn->parse.complete)
        conn->last = true;
    struct semel_reply_head head = {.status = status,
                                    .type = SEMEL_PROBLEM_TYPE,
                                    .length = body.n,
                                    .lines = semel__buf_str(&lines),
                                    .close = conn->last};
    semel__reply_head_put(&conn->out, &head, semel__now(conn->env->clock));
    if (!head_only)
        semel__buf_add(&conn->out, body.p, body.n);
    if (body.failed || lines.failed)
        conn->out.failed = true;
    semel__buf_done(&body);
    semel__buf_done(&lines);
    observe(conn, status);
    drop_exchange(conn);
    send_reply(conn);
}

void semel__conn_refuse(struct semel_conn *conn, int status, const char *reason)
{
    if (conn->phase == SEMEL_CONN_HEAD || conn->phase == SEMEL_CONN_IDLE)
        refuse(conn, status, reason, 0);
}

void semel__conn_abandon(struct semel_conn *conn)
{
    drop_exchange(conn);
    conn->out.n = conn->sent = 0;
    enter(conn, conn->ended ? SEMEL_CONN_CLOSED : SEMEL_CONN_LINGER);
}

static void consume(struct semel_conn *conn, size_t n)
{
    conn->in.n -= n;
    if (conn->in.n > 0)
        memmove(conn->in.p, conn->in.p + n, conn->in.n);
}

static void dispatch(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    x->req.body = semel__buf_str(&x->body);
    if (!semel__arena_copy(&x->arena, conn->remote, &x->req.remote)) {
        refuse(conn, 503, "there is no memory for the request", 0);
        return;
    }
    x->conn = conn;
    enter(conn, SEMEL_CONN_HANDLING);
    const struct semel_http_route *route = x->req.route;
    bool large = route->aside_above > 0 && x->body.n > route->aside_above;
    if (!large || conn->env->aside == NULL || !conn->env->aside(conn->env->back_ctx, x))
        route->handle(route->ctx, x);
}

/* Is there room for n bytes more in the route's share? */
static bool fits(const struct semel_conn *conn, size_t n)
{
    const struct semel_conn_share *share = &conn->env->shares[conn->x->req.route - conn->env->routes];
    return n <= share->max && share->held <= share->max - n;
}

/* Counts the bytes of the body that have come since the last time. */
static bool charge(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    size_t n = x->body.n - x->held;
    if (!fits(conn, n))
        return false;
    conn->env->shares[x->req.route - conn->env->routes].held += n;
    conn->env->held += n;
    x->held += n;
    return true;
}

static void begin_body(struct semel_conn *conn)
{
    const struct semel_parse *parse = &conn->parse;
    size_t max = conn->x->req.route->body_max;
    if (parse->length > max || (parse->chunked && max == 0)) {
        refuse(conn, 413, max == 0 ? "this takes no body" : "the body is too large", 0);
        return;
    }
    if (!fits(conn, parse->length)) {
        refuse(conn, 503, no_room, 0);
        return;
    }
    semel__buf_init(&conn->x->body, max);
    semel__parse_bound(&conn->parse, max);
    enter(conn, SEMEL_CONN_BODY);
    if (parse->expects && conn->in.n == 0)
        semel__buf_addz(&conn->out, CONTINUE);
}

/* The head is sound: who asks, for what, and may he? */
static void judge(struct semel_conn *conn)
{
    struct semel_conn_env *env = conn->env;
    struct semel_http_request *req = &conn->x->req;
    const char *reason = "";
    unsigned allow = 0;
    int status = semel__access_host(&env->access, req, conn->local, &reason);
    if (status == 0)
        status = semel__route_find(env->routes, env->n_routes, conn->x, env->limits.head_fields, &allow, &reason);
    if (status == 0)
        status = semel__access_token(&env->access, req, conn->parse.fields, &reason);
    if (status == 0 && conn->parse.complete)
        dispatch(conn);
    else if (status == 0)
        begin_body(conn);
    else
        refuse(conn, status, reason, allow);
}

/* n bytes of `in` are a head. */
static void take_head(struct semel_conn *conn, size_t n)
{
    struct semel_conn_env *env = conn->env;
    size_t arena_max = 5 * n + 16 * env->limits.head_fields * sizeof(struct semel_http_pair) + 65536;
    struct semel_str head = {conn->in.p + conn->gate.skipped, n - conn->gate.skipped};
    struct semel_http_exchange *x = semel__exchange_new(arena_max, env->limits.reply_max);
    conn->parse.complete = conn->parse.headed = false;
    if (x == NULL || !semel__arena_copy(&x->arena, head, &head)) {
        semel__exchange_free(x);
        refuse(conn, 503, "there is no memory for the request", 0);
        return;
    }
    x->env = env;
    x->req.remote = conn->remote;
    x->back = env->back;
    x->back_ctx = env->back_ctx;
    x->gone = env->gone;
    if (env->take != NULL)
        env->take(env->back_ctx);
    x->started_us = semel__now(env->clock);
    conn->x = x;
    consume(conn, n);
    int status = semel__parse_head(&conn->parse, x, head, env->limits.head_fields);
    if (++conn->requests >= env->limits.requests || !conn->parse.keep_alive || conn->parse.http_1_0 ||
        x->req.method == SEMEL_HTTP_CONNECT)
        conn->last = true; /* behind a CONNECT somebody may take the connection for a tunnel */
    if (status != 0) {
        conn->last = true;
        refuse(conn, status, conn->parse.reason, 0);
        return;
    }
    judge(conn);
}

static void read_head(struct semel_conn *conn)
{
    size_t used;
    if (conn->phase == SEMEL_CONN_IDLE)
        enter(conn, SEMEL_CONN_HEAD);
    enum semel_gate_verdict verdict = semel__gate_feed(&conn->gate, conn->in.p + conn->in_seen,
                                                       conn->in.n - conn->in_seen, &used);
    conn->in_seen += used;
    if (verdict == SEMEL_GATE_MORE)
        return;
    size_t n = conn->in_seen;
    conn->in_seen = 0;
    if (verdict == SEMEL_GATE_REFUSED)
        refuse(conn, conn->gate.status, conn->gate.reason, 0);
    else
        take_head(conn, n);
    semel__gate_init(&conn->gate, conn->env->limits.head_bytes, conn->env->limits.head_fields);
}

static void read_body(struct semel_conn *conn)
{
    size_t used;
    int status = semel__parse_body(&conn->parse, conn->in.p, conn->in.n, &used);
    if (status != 0) {
        conn->parse.complete = false;
        refuse(conn, status, conn->parse.reason, 0);
        return;
    }
    consume(conn, used);
    if (!charge(conn))
        refuse(conn, 503, no_room, 0);
    else if (conn->parse.complete)
        dispatch(conn);
}

/* As far as the bytes reach that are there. */
static void advance(struct semel_conn *conn)
{
    bool going = true;
    while (going) {
        size_t before = conn->in.n - conn->in_seen;
        if (before > 0 && (conn->phase == SEMEL_CONN_IDLE || conn->phase == SEMEL_CONN_HEAD))
            read_head(conn);
        else if (before > 0 && conn->phase == SEMEL_CONN_BODY)
            read_body(conn);
        else
            going = false;
    }
    bool waits = conn->phase == SEMEL_CONN_IDLE || conn->phase == SEMEL_CONN_HEAD || conn->phase == SEMEL_CONN_BODY;
    if (waits && conn->ended)
        close_now(conn); /* half a request, and no more will come */
}

bool semel__conn_wants(const struct semel_conn *conn)
{
    switch (conn->phase) {
    case SEMEL_CONN_IDLE:
    case SEMEL_CONN_HEAD:
    case SEMEL_CONN_BODY:
    case SEMEL_CONN_LINGER:
        return !conn->ended;
    case SEMEL_CONN_HANDLING: /* so that we learn when the client goes */
    case SEMEL_CONN_WRITING:
        return !conn->ended && conn->in.n == 0;
    case SEMEL_CONN_CLOSED:
        return false;
    }
    return false;
}

void semel__conn_input(struct semel_conn *conn, const char *p, size_t n)
{
    assert(n <= SEMEL_CONN_READ);
    bool refused = conn->last && conn->phase == SEMEL_CONN_WRITING;
    if (conn->phase == SEMEL_CONN_LINGER || conn->phase == SEMEL_CONN_CLOSED || refused)
        return; /* nothing more is answered */
    if (!semel__buf_add(&conn->in, p, n)) {
        close_now(conn);
        return;
    }
    advance(conn);
}

void semel__conn_ended(struct semel_conn *conn)
{
    conn->ended = true;
    if (conn->phase == SEMEL_CONN_HANDLING)
        atomic_store_explicit(&conn->x->hung_up, true, memory_order_relaxed);
    else if (conn->phase == SEMEL_CONN_LINGER)
        close_now(conn);
    else
        advance(conn);
}

size_t semel__conn_output(const struct semel_conn *conn, struct semel_str pieces[2])
{
    size_t head = conn->sent < conn->out.n ? conn->sent : conn->out.n;
    size_t body = conn->sent - head;
    pieces[0] = (struct semel_str){conn->out.p != NULL ? conn->out.p + head : "", conn->out.n - head};
    pieces[1] = (struct semel_str){conn->body.p != NULL ? conn->body.p + body : "", conn->body.n - body};
    return conn->phase == SEMEL_CONN_LINGER || conn->phase == SEMEL_CONN_CLOSED ? 0 : pieces[0].n + pieces[1].n;
}

/* The reply is out: on to the next request, or no further. */
static void reply_sent(struct semel_conn *conn)
{
    drop_exchange(conn);
    if (conn->last) {
        conn->in.n = conn->in_seen = 0;
        enter(conn, conn->ended ? SEMEL_CONN_CLOSED : SEMEL_CONN_LINGER);
        return;
    }
    if (conn->in.n == 0 && conn->in.cap > IN_KEPT)
        semel__buf_done(&conn->in);
    enter(conn, SEMEL_CONN_IDLE);
    advance(conn);
}

void semel__conn_sent(struct semel_conn *conn, size_t n)
{
    if (n == 0 || conn->phase == SEMEL_CONN_LINGER || conn->phase == SEMEL_CONN_CLOSED)
        return; /* it was on its way when the connection was given up */
    conn->sent += n;
    assert(conn->sent <= conn->out.n + conn->body.n);
    if (conn->sent < conn->out.n + conn->body.n)
        return;
    conn->out.n = conn->sent = 0;
    if (conn->phase == SEMEL_CONN_WRITING)
        reply_sent(conn);
}

void semel__conn_answered(struct semel_conn *conn, struct semel_http_exchange *x)
{
    assert(conn->x == x && conn->phase == SEMEL_CONN_HANDLING);
    enter(conn, SEMEL_CONN_WRITING); /* x is ours again */
    x->conn = NULL;
    if (x->reply.failed || x->lines.failed) {
        refuse(conn, 500, x->reply.full ? "the reply is too large" : "there is no memory for the reply", 0);
        return;
    }
    conn->last = conn->last || (conn->ended && conn->in.n == 0);
    struct semel_reply_head head = {.status = x->status,
                                    .type = x->type,
                                    .length = x->reply.n,
                                    .lines = semel__buf_str(&x->lines),
                                    .close = conn->last};
    semel__reply_head_put(&conn->out, &head, semel__now(conn->env->clock));
    if (x->req.method != SEMEL_HTTP_HEAD && !semel__reply_bodiless(x->status))
        conn->body = semel__buf_str(&x->reply);
    observe(conn, x->status);
    send_reply(conn);
}

uint64_t semel__conn_timeout_ms(const struct semel_conn *conn)
{
    const struct semel_http_limits *limits = &conn->env->limits;
    switch (conn->phase) {
    case SEMEL_CONN_IDLE:
        return limits->idle_ms;
    case SEMEL_CONN_HEAD:
        return limits->head_ms;
    case SEMEL_CONN_BODY:
        return limits->body_ms;
    case SEMEL_CONN_WRITING:
        return limits->write_ms;
    case SEMEL_CONN_LINGER:
        return limits->linger_ms;
    case SEMEL_CONN_HANDLING:
    case SEMEL_CONN_CLOSED:
        return 0;
    }
    return 0;
}

void semel__conn_expired(struct semel_conn *conn)
{
    if (conn->phase == SEMEL_CONN_BODY)
        refuse(conn, 408, "the body did not come in time", 0);
    else if (conn->phase == SEMEL_CONN_HEAD && conn->in.n > 0)
        refuse(conn, 408, "the head of the request did not come in time", 0);
    else
        close_now(conn);
}

void semel__conn_drain(struct semel_conn *conn)
{
    conn->last = true;
    bool empty = conn->in.n == 0 && (conn->phase == SEMEL_CONN_IDLE || conn->phase == SEMEL_CONN_HEAD);
    if (empty)
        close_now(conn);
}
