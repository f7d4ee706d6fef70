/* SPDX-License-Identifier: MIT
 *
 * conn.c: one connection, from its bytes to a handler and back: the exchange as handlers see it (http.h), the head of a
 * reply, the route and the access of a request, and the state machine of conn.h that joins them.
 *
 * Not here: sockets, TLS and threads (server.c), the syntax of a request (parse.c).
 */
#include "net/conn.h"

#include <assert.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json.h"

/* ==== the exchange ==================================================================================
 *
 * How handlers read a request and write a reply.
 *
 * Invariants: a handler's header can never end a line: its value ends at the first control
 * character, its name must be a token; an answer is given once, which is asserted.
 */

#define LINES_MAX 8192
#define STREAM_LINES_MAX 65536
#define STREAM_BOUND 65536
#define QUEUE_EXTRA ((size_t)STREAM_LINES_MAX + 4096) /* the head, and the framing of chunks */
#define DETAIL_MAX 2048
#define PROBLEM_TYPE "application/problem+json"

const char *semel__http_method_name(enum semel_http_method method)
{
    static const char *const names[] = {
#define X(name) #name,
        SEMEL_HTTP_METHOD_MAP(X)
#undef X
    };
    return method < SEMEL_HTTP_METHODS ? names[method] : "?";
}

/* NULL: no memory. Its arena holds up to arena_max bytes. */
static struct semel_http_exchange *exchange_new(size_t arena_max, size_t reply_max)
{
    struct semel_http_exchange *x = semel__calloc(1, sizeof(*x));
    if (x == NULL)
        return NULL;
    semel__arena_init(&x->arena, arena_max);
    semel__buf_init(&x->reply, reply_max);
    semel__buf_init(&x->lines, LINES_MAX);
    semel__buf_init(&x->queue, reply_max < SIZE_MAX - QUEUE_EXTRA ? reply_max + QUEUE_EXTRA : SIZE_MAX);
    x->type = "application/json";
    return x;
}

void semel__exchange_free(struct semel_http_exchange *x)
{
    if (x == NULL)
        return;
    if (x->gone != NULL)
        x->gone(x->back_ctx);
    semel__arena_done(&x->arena);
    semel__buf_done(&x->body);
    semel__buf_done(&x->reply);
    semel__buf_done(&x->lines);
    semel__buf_done(&x->queue);
    semel__free(x);
}

const struct semel_http_request *semel__http_request(const struct semel_http_exchange *x)
{
    return &x->req;
}

/* The parameters of a path are counted from the left: the n-th brace is the n-th value. */
struct semel_str semel__http_param(const struct semel_http_request *req, const char *name)
{
    size_t length = strlen(name), at = 0;
    for (const char *p = strchr(req->route->path, '{'); p != NULL && at < req->n_params; p = strchr(p + 1, '{'), at++)
        if (strncmp(p + 1, name, length) == 0 && (p[1 + length] == '}' || p[1 + length] == '*'))
            return req->params[at];
    return (struct semel_str){NULL, 0};
}

struct semel_str semel__http_query(const struct semel_http_request *req, const char *name)
{
    for (size_t i = 0; i < req->n_query; i++)
        if (semel__str_eqz(req->query[i].name, name))
            return req->query[i].value;
    return (struct semel_str){NULL, 0};
}

struct semel_str semel__http_header(const struct semel_http_request *req, const char *name)
{
    for (size_t i = 0; i < req->n_headers; i++)
        if (semel__same_word(req->headers[i].name, name))
            return req->headers[i].value;
    return (struct semel_str){NULL, 0};
}

bool semel__http_hung_up(const struct semel_http_exchange *x)
{
    return atomic_load_explicit(&x->hung_up, memory_order_relaxed);
}

void semel__http_keep(struct semel_http_exchange *x, void *kept)
{
    x->kept = kept;
}

void *semel__http_kept(const struct semel_http_exchange *x)
{
    return x->kept;
}

struct semel_buf *semel__http_body(struct semel_http_exchange *x)
{
    return &x->reply;
}

void semel__http_set_type(struct semel_http_exchange *x, const char *type)
{
    x->type = type;
}

void semel__http_set_pair(struct semel_http_exchange *x, const struct semel_http_pair *pair)
{
    struct semel_str value = pair->value;
    for (size_t i = 0; i < pair->name.n; i++)
        assert(semel__http_tchar(pair->name.p[i]));
    size_t n = 0;
    while (n < value.n && ((unsigned char)value.p[n] >= ' ' || value.p[n] == '\t') && value.p[n] != 0x7F)
        n++;
    x->dated = x->dated || semel__same_word(pair->name, "date");
    semel__buf_add(&x->lines, pair->name.p, pair->name.n);
    semel__buf_add(&x->lines, ": ", 2);
    semel__buf_add(&x->lines, value.p, n);
    semel__buf_add(&x->lines, "\r\n", 2);
}

void semel__http_set_header(struct semel_http_exchange *x, const char *name, struct semel_str value)
{
    semel__http_set_pair(x, &(struct semel_http_pair){semel__str(name), value});
}

static void kick(struct semel_http_exchange *x)
{
    if (x->conn->env->kick != NULL)
        x->conn->env->kick(x->conn->owner);
}

void semel__http_answer(struct semel_http_exchange *x, int status)
{
    assert(x->status == 0 && status >= 200 && status < 600);
    x->status = status;
    if (x->owned) { /* it streams: this is the loop's thread */
        assert(!x->begun);
        x->owned = false;
        kick(x);
    } else {
        x->back(x->back_ctx, x);
    }
}

/* "Not Found"; "Status" for one that has no name here */
static const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {203, "Non-Authoritative Information"},
        {204, "No Content"},
        {205, "Reset Content"},
        {206, "Partial Content"},
        {207, "Multi-Status"},
        {300, "Multiple Choices"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {423, "Locked"},
        {424, "Failed Dependency"},
        {425, "Too Early"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Status";
}

/* A problem as JSON: type, title, status, detail. The detail is made well-formed. */
static void put_problem(struct semel_buf *buf, int status, struct semel_str detail)
{
    char shown[DETAIL_MAX];
    semel__str_show(shown, sizeof(shown), detail);
    semel__buf_addf(buf, "{\"type\":\"about:blank\",\"title\":\"%s\",\"status\":%d,\"detail\":", http_reason(status),
                    status);
    semel__json_put_string(buf, semel__str(shown));
    semel__buf_addz(buf, "}\n");
}

void semel__http_refuse(struct semel_http_exchange *x, int status, const char *fmt, ...)
{
    char detail[DETAIL_MAX];
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(detail, sizeof(detail), fmt, args) < 0)
        detail[0] = '\0';
    va_end(args);
    x->reply.n = 0;
    x->reply.failed = x->reply.full = false;
    x->type = PROBLEM_TYPE;
    put_problem(&x->reply, status, semel__str(detail));
    semel__http_answer(x, status);
}

/* ==== the head of a reply ===========================================================================
 *
 * Invariants: the head always has the length of the body, unless there can be none; a date is UTC in the one form
 * that RFC 9110 wants; a status without a body (204, 304) has neither length nor type.
 */

#define US_PER_DAY (INT64_C(86400) * 1000000)

struct reply_head {
    int status;
    const char *type;       /* of the body */
    size_t length;          /* of the body, even if it is not sent (HEAD) */
    struct semel_str lines; /* more headers, each with its CR LF */
    bool close;
};

/* The parts are cut from the text of base/clock.h: 2026-11-15T19:38:00.000000Z. */
static const char *http_date(struct semel_conn_env *env)
{
    static const char days[] = "ThuFriSatSunMonTueWed"; /* 1970-01-01 was a Thursday */
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char text[SEMEL_TIME_TEXT];
    int64_t now_us = semel__now(env->clock);
    if (now_us < 0)
        now_us = 0;
    if (env->date[0] != '\0' && env->date_s == now_us / 1000000)
        return env->date;
    semel__time_format(now_us, text);
    int64_t day = now_us / US_PER_DAY % 7;
    int month = (text[5] - '0') * 10 + (text[6] - '0') - 1;
    snprintf(env->date, sizeof env->date, "%.3s, %.2s %.3s %.4s %.8s GMT", days + 3 * day, text + 8, months + 3 * month,
             text, text + 11);
    env->date_s = now_us / 1000000;
    return env->date;
}

/* a reply with this status has no body */
static bool bodiless(int status)
{
    return status < 200 || status == 204 || status == 304;
}

static void put_head(struct semel_buf *buf, const struct reply_head *head, const char *date)
{
    semel__buf_addf(buf, "HTTP/1.1 %d %s\r\nDate: %s\r\n", head->status, http_reason(head->status), date);
    if (!bodiless(head->status)) {
        semel__buf_addf(buf, "Content-Length: %zu\r\n", head->length);
        if (head->length > 0)
            semel__buf_addf(buf, "Content-Type: %s\r\n", head->type);
    }
    semel__buf_addz(buf, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n");
    semel__buf_add(buf, head->lines.p, head->lines.n);
    semel__buf_addz(buf, head->close ? "Connection: close\r\n\r\n" : "\r\n");
}

/* The head of a streamed reply: its handler's headers, and what it leaves to us. */
static void put_stream_head(struct semel_http_exchange *x, int64_t length, bool close)
{
    struct semel_buf *buf = &x->queue;
    semel__buf_addf(buf, "HTTP/1.1 %d %s\r\n", x->status, http_reason(x->status));
    if (!x->dated)
        semel__buf_addf(buf, "Date: %s\r\n", http_date(x->env));
    semel__buf_add(buf, x->lines.p, x->lines.n);
    if (!bodiless(x->status) && length >= 0)
        semel__buf_addf(buf, "Content-Length: %lld\r\n", (long long)length);
    if (x->chunked)
        semel__buf_addz(buf, "Transfer-Encoding: chunked\r\n");
    semel__buf_addz(buf, close ? "Connection: close\r\n\r\n" : "\r\n");
    if (x->lines.failed)
        buf->failed = true;
}

/* ==== the route =====================================================================================
 *
 * From a target to a route: the table, percent-escapes, the query.
 *
 * The target is cut before it is decoded: at the first '?', then at each '/' of the path, and at '&' and '=' of the
 * query. So an escaped separator is data ("%2F" in an id), and no decoded byte can change the route. Nothing is
 * normalised: "//" and "/./" are segments like others.
 *
 * Invariants: decoded values live in the exchange's arena; params has as many values as the route has braces.
 */

#define SEGMENTS_MAX 32 /* of a target, and of a pattern */

/* The next part of *rest up to `end` or its end; *rest is what follows, {NULL, 0} when nothing does. */
static struct semel_str cut(struct semel_str *rest, char end)
{
    const char *at = rest->n > 0 ? memchr(rest->p, end, rest->n) : NULL;
    struct semel_str part = {rest->p, at != NULL ? (size_t)(at - rest->p) : rest->n};
    if (at == NULL)
        *rest = (struct semel_str){NULL, 0};
    else
        *rest = (struct semel_str){at + 1, rest->n - part.n - 1};
    return part;
}

/* The decoded text in the arena. 0, 400 or 503. */
static int decode(struct semel_arena *arena, struct semel_str raw, bool plus, struct semel_str *ret)
{
    char *out = semel__arena_alloc(arena, raw.n + 1, 1);
    size_t n = 0;
    if (out == NULL)
        return 503;
    for (size_t i = 0; i < raw.n; i++) {
        char c = raw.p[i];
        if (c == '+' && plus)
            c = ' ';
        if (c == '%') {
            int high = i + 2 < raw.n ? semel__hex_value(raw.p[i + 1]) : -1;
            int low = high >= 0 ? semel__hex_value(raw.p[i + 2]) : -1;
            if (low < 0)
                return 400;
            c = (char)(high << 4 | low);
            i += 2;
        }
        out[n++] = c;
    }
    *ret = (struct semel_str){out, n};
    return 0;
}

static size_t split(struct semel_str path, struct semel_str *segments)
{
    struct semel_str rest = {path.p + 1, path.n - 1}; /* behind the first slash */
    size_t n = 0;
    do {
        if (n == SEGMENTS_MAX)
            return SEGMENTS_MAX + 1;
        segments[n++] = cut(&rest, '/');
    } while (rest.p != NULL);
    return n;
}

static bool is_param(struct semel_str segment)
{
    return segment.n > 2 && segment.p[0] == '{' && segment.p[segment.n - 1] == '}';
}

static bool is_rest(struct semel_str segment)
{
    return is_param(segment) && segment.p[segment.n - 2] == '*';
}

static bool path_fits(struct semel_str pattern, const struct semel_str *raw, const struct semel_str *decoded, size_t n)
{
    struct semel_str parts[SEGMENTS_MAX];
    size_t n_parts = split(pattern, parts);
    for (size_t i = 0; i < n_parts; i++) {
        if (is_rest(parts[i]))
            return i < n;
        if (i >= n || (is_param(parts[i]) ? raw[i].n == 0 : !semel__str_eq(parts[i], decoded[i])))
            return false;
    }
    return n_parts == n;
}

/* The values of the pattern's braces; the last {rest*} is decoded as one value, slashes included. */
static int parse_params(struct semel_http_exchange *x, const struct semel_str *raw, const struct semel_str *decoded,
                        struct semel_str path)
{
    struct semel_str parts[SEGMENTS_MAX];
    size_t n_parts = split(semel__str(x->req.route->path), parts);
    struct semel_str *params = semel__arena_alloc(&x->arena, n_parts, sizeof(*params));
    if (params == NULL)
        return 503;
    x->req.params = params;
    for (size_t i = 0; i < n_parts; i++) {
        if (!is_param(parts[i]))
            continue;
        struct semel_str *at = &params[x->req.n_params++];
        *at = decoded[i];
        if (is_rest(parts[i]))
            return decode(&x->arena, (struct semel_str){raw[i].p, (size_t)(path.p + path.n - raw[i].p)}, false, at);
    }
    return 0;
}

static int parse_query(struct semel_http_exchange *x, struct semel_str query, size_t max_pairs)
{
    if (query.n == 0)
        return 0;
    size_t n = 1;
    for (size_t i = 0; i < query.n; i++)
        n += query.p[i] == '&';
    if (n > max_pairs)
        return 431;
    struct semel_http_pair *pairs = semel__arena_alloc(&x->arena, n, sizeof(*pairs));
    if (pairs == NULL)
        return 503;
    x->req.query = pairs;
    while (query.p != NULL) {
        struct semel_str value = cut(&query, '&'), name = cut(&value, '=');
        if (name.n == 0 && value.p == NULL)
            continue; /* "a=1&&b=2" */
        struct semel_http_pair *pair = &pairs[x->req.n_query++];
        int status = decode(&x->arena, name, true, &pair->name);
        if (status == 0)
            status = decode(&x->arena, value, true, &pair->value);
        if (status != 0)
            return status;
    }
    return 0;
}

static unsigned methods_of(const struct semel_http_route *route)
{
    return route->methods & SEMEL_HTTP_BIT(GET) ? route->methods | SEMEL_HTTP_BIT(HEAD) : route->methods;
}

/* The first route that fits; the methods of routes that fit except for the method are collected in *ret_allow. */
static const struct semel_http_route *match(const struct semel_http_route *routes, size_t n, unsigned bit,
                                            const struct semel_str *raw, const struct semel_str *decoded,
                                            size_t n_segments, unsigned *ret_allow)
{
    for (size_t i = 0; i < n; i++) {
        if (!path_fits(semel__str(routes[i].path), raw, decoded, n_segments))
            continue;
        if (methods_of(&routes[i]) & bit)
            return &routes[i];
        *ret_allow |= methods_of(&routes[i]);
    }
    return NULL;
}

static const char *reason_of(int status)
{
    switch (status) {
    case 400:
        return "the target has a malformed percent-escape";
    case 404:
        return "there is nothing at this path";
    case 405:
        return "the method is not one of those that the header Allow lists";
    case 431:
        return "the query has too many parts";
    default:
        return "there is no memory for the request";
    }
}

static int find_route(const struct semel_http_route *routes, size_t n, struct semel_http_exchange *x, size_t max_pairs,
                      unsigned *ret_allow)
{
    unsigned bit = 1u << x->req.method;
    struct semel_str query = x->req.target, path = cut(&query, '?');
    for (size_t i = 0; i < n; i++)
        if (routes[i].stream != NULL && methods_of(&routes[i]) & bit) {
            x->req.route = &routes[i];
            return 0;
        }
    struct semel_str raw[SEGMENTS_MAX] = {{0}}, decoded[SEGMENTS_MAX];
    if (path.n == 0 || path.p[0] != '/') /* "*" */
        return bit & SEMEL_HTTP_BIT(OPTIONS) ? 405 : 404;
    size_t n_segments = split(path, raw);
    if (n_segments > SEGMENTS_MAX)
        return 404;
    for (size_t i = 0; i < n_segments; i++) {
        int status = decode(&x->arena, raw[i], false, &decoded[i]);
        if (status != 0)
            return status;
    }
    x->req.route = match(routes, n, bit, raw, decoded, n_segments, ret_allow);
    if (x->req.route == NULL)
        return *ret_allow != 0 || bit & SEMEL_HTTP_BIT(OPTIONS) ? 405 : 404;
    int status = parse_params(x, raw, decoded, path);
    return status != 0 ? status : parse_query(x, query, max_pairs);
}

/* Fills route, params and query of x->req. 0, or a status: 400 a bad escape, 404, 405 with the allowed methods in
 * *ret_allow, 431 too many pairs, 503 no memory. */
static int route_find(const struct semel_http_route *routes, size_t n, struct semel_http_exchange *x, size_t max_pairs,
                      unsigned *ret_allow, const char **ret_reason)
{
    *ret_allow = 0;
    int status = find_route(routes, n, x, max_pairs, ret_allow);
    if (status != 0)
        *ret_reason = reason_of(status);
    return status;
}

static const char *fault_of(const struct semel_http_route *route)
{
    struct semel_str parts[SEGMENTS_MAX];
    if (route->path == NULL || route->path[0] != '/')
        return "a path begins with /";
    size_t n = split(semel__str(route->path), parts);
    if (n > SEGMENTS_MAX)
        return "its path has too many segments";
    for (size_t i = 0; i < n; i++) {
        bool brace = parts[i].n > 0 && (memchr(parts[i].p, '{', parts[i].n) || memchr(parts[i].p, '}', parts[i].n));
        if (brace && !is_param(parts[i]))
            return "a parameter is a whole segment, {name}";
        if (is_rest(parts[i]) && i + 1 < n)
            return "{name*} is the last segment";
    }
    if (route->handle == NULL || route->methods == 0)
        return "it has no handler, or no method";
    if (route->methods >> SEMEL_HTTP_TRACE != 0)
        return "TRACE and CONNECT are never served";
    return NULL;
}

/* INVALID: a route that cannot work; err names it. */
static semel_status routes_check(const struct semel_http_route *routes, size_t n, struct semel_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *fault = fault_of(&routes[i]);
        if (fault != NULL)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "route %s: %s",
                               routes[i].path != NULL ? routes[i].path : "?", fault);
    }
    return SEMEL_OK;
}

/* ==== the state machine =============================================================================
 *
 * The state machine of conn.h.
 *
 * Invariants: enter() is the only place where a phase changes; a request is checked (Host, route, token, length) as
 * soon as its head is complete and before a byte of its body is stored; a refusal ends the connection when bytes of
 * the request may still come; a body counts for its route's share as its bytes arrive, never before, so that an
 * announced body takes no room from others (P87); `out` is allocated in full from the beginning and never moves,
 * because a write may be using it.
 */

#define OUT_MAX 12288
#define IN_KEPT 4096 /* bytes of room that an idle connection keeps */
#define CONTINUE "HTTP/1.1 100 Continue\r\n\r\n"

static const char no_room[] = "too many bodies are in memory for this path; send it again later";

static void advance(struct semel_conn *conn);
static void reply_sent(struct semel_conn *conn);

static void enter(struct semel_conn *conn, enum semel_conn_phase phase)
{
    conn->phase = phase;
    conn->serial++;
}

/* Divides limits.held_bytes among the routes. */
static bool share_out(struct semel_conn_env *env)
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

semel_status semel__conn_env_init(struct semel_conn_env *env, const struct semel_http_settings *settings, bool trusted,
                                  struct semel_error *err)
{
    env->routes = settings->routes;
    env->n_routes = settings->n_routes;
    env->limits = settings->limits;
    env->observe = settings->observe;
    env->observe_ctx = settings->observe_ctx;
    semel_status status = semel__access_init(&env->access, settings, trusted, err);
    if (status == SEMEL_OK)
        status = routes_check(env->routes, env->n_routes, err);
    if (status == SEMEL_OK && !share_out(env))
        status = semel__fail_memory(err);
    return status;
}

void semel__conn_env_done(struct semel_conn_env *env)
{
    semel__access_done(&env->access);
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
    enter(conn, SEMEL_CONN_HEAD); /* the time-out of a head also covers the wait for the first request */
    return conn;
}

static void open_add(struct semel_conn_env *env, struct semel_http_exchange *x)
{
    x->open = true;
    x->next_open = env->open;
    if (env->open != NULL)
        env->open->prev_open = x;
    env->open = x;
}

static void open_remove(struct semel_conn_env *env, struct semel_http_exchange *x)
{
    if (!x->open)
        return;
    x->open = false;
    *(x->prev_open != NULL ? &x->prev_open->next_open : &env->open) = x->next_open;
    if (x->next_open != NULL)
        x->next_open->prev_open = x->prev_open;
}

void semel__conn_tick(struct semel_conn_env *env, uint64_t elapsed_ms)
{
    for (struct semel_http_exchange *x = env->open; x != NULL; x = x->next_open) {
        const struct semel_http_route *route = x->req.route;
        x->waited_ms += elapsed_ms;
        if (x->waited_ms >= route->timeout_ms)
            route->overdue(route->ctx, x); /* the answer comes back by the mail: x stays until then */
    }
}

void semel__conn_retire(struct semel_conn_env *env, struct semel_http_exchange *x)
{
    if (x == NULL)
        return;
    open_remove(env, x);
    if (x->held > 0) {
        struct semel_conn_share *share = &env->shares[x->req.route - env->routes];
        assert(env->held >= x->held && share->held >= x->held);
        env->held -= x->held;
        share->held -= x->held;
    }
    semel__exchange_free(x);
}

/* The handler that streams it loses it. */
static void take_back(struct semel_http_exchange *x)
{
    if (!x->owned)
        return;
    x->owned = false;
    x->req.route->stream->gone(x);
}

/* Gives up the exchange: if a handler has it, it continues without the connection, unless it streams. */
static void drop_exchange(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    if (x != NULL)
        take_back(x);
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
    semel__free(conn->subject);
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

/* Starts to send `out` and `body`. */
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

/* Refuses by itself. The rest of the request cannot be distinguished from the next one: unless the message is complete,
 * this reply is the last. */
static void refuse(struct semel_conn *conn, int status, const char *reason, unsigned allow)
{
    struct semel_buf body, lines;
    bool head_only = conn->x != NULL && conn->x->req.method == SEMEL_HTTP_HEAD && conn->parse.headed;
    semel__buf_init(&body, OUT_MAX);
    semel__buf_init(&lines, OUT_MAX);
    put_problem(&body, status, semel__str(reason));
    if (status == 405)
        put_allow(&lines, allow);
    if (status == 401)
        semel__buf_addz(&lines, "WWW-Authenticate: Bearer\r\n");
    if (status == 503)
        semel__buf_addz(&lines, "Retry-After: 1\r\n");
    if (conn->x == NULL || !conn->parse.complete)
        conn->last = true;
    struct reply_head head = {
        .status = status, .type = PROBLEM_TYPE, .length = body.n, .lines = semel__buf_str(&lines), .close = conn->last};
    put_head(&conn->out, &head, http_date(conn->env));
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
    if (route->timeout_ms > 0)
        open_add(conn->env, x);
    bool large = route->aside_above > 0 && x->body.n > route->aside_above;
    if (!large || conn->env->aside == NULL || !conn->env->aside(conn->env->back_ctx, x))
        route->handle(route->ctx, x);
}

static bool sink_stream(void *ctx, struct semel_str piece)
{
    struct semel_http_exchange *x = ctx;
    if (x->owned)
        x->req.route->stream->body(x, piece);
    return true;
}

/* Hands over an exchange that streams. */
static void begin_stream(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    const struct semel_http_route *route = x->req.route;
    const struct semel_parse *parse = &conn->parse;
    if (parse->length > route->body_max) {
        refuse(conn, 413, "the body is too large", 0);
        return;
    }
    if (!semel__arena_copy(&x->arena, conn->remote, &x->req.remote)) {
        refuse(conn, 503, "there is no memory for the request", 0);
        return;
    }
    if (!parse->complete)
        semel__parse_bound(&conn->parse, route->body_max, sink_stream, x);
    x->req.length = parse->chunked ? -1 : (int64_t)parse->length;
    x->lines.max = STREAM_LINES_MAX;
    x->conn = conn;
    x->owned = true;
    conn->pace = 0;
    enter(conn, SEMEL_CONN_STREAMING);
    route->handle(route->ctx, x);
}

/* Does the route's share have room for n more bytes? */
static bool fits(const struct semel_conn *conn, size_t n)
{
    const struct semel_conn_share *share = &conn->env->shares[conn->x->req.route - conn->env->routes];
    return n <= share->max && share->held <= share->max - n;
}

/* Counts the bytes of the body that have arrived since the last call. */
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

static bool sink_body(void *ctx, struct semel_str piece)
{
    struct semel_http_exchange *x = ctx;
    return semel__buf_add(&x->body, piece.p, piece.n);
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
    semel__parse_bound(&conn->parse, max, sink_body, conn->x);
    enter(conn, SEMEL_CONN_BODY);
    if (parse->expects && conn->in.n == 0)
        semel__buf_addz(&conn->out, CONTINUE);
}

/* The head is valid: checks the host, the route and the token. */
static void judge(struct semel_conn *conn)
{
    struct semel_conn_env *env = conn->env;
    struct semel_http_request *req = &conn->x->req;
    const char *reason = "";
    unsigned allow = 0;
    int status = semel__access_host(&env->access, req, conn->local, &reason);
    if (status == 0)
        status = route_find(env->routes, env->n_routes, conn->x, env->limits.head_fields, &allow, &reason);
    if (status == 0)
        status = semel__access_token(&env->access, req, conn->parse.fields, &reason);
    if (status == 0 && req->route->stream != NULL)
        begin_stream(conn);
    else if (status == 0 && conn->parse.complete)
        dispatch(conn);
    else if (status == 0)
        begin_body(conn);
    else
        refuse(conn, status, reason, allow);
}

/* n bytes of `in` are a head. */
static void parse_head(struct semel_conn *conn, size_t n)
{
    struct semel_conn_env *env = conn->env;
    size_t arena_max = 5 * n + 16 * env->limits.head_fields * sizeof(struct semel_http_pair) + 65536;
    struct semel_str head = {conn->in.p + conn->gate.skipped, n - conn->gate.skipped};
    struct semel_http_exchange *x = exchange_new(arena_max, env->limits.reply_max);
    conn->parse.complete = conn->parse.headed = false;
    if (x == NULL || !semel__arena_copy(&x->arena, head, &head) ||
        !semel__arena_copy(&x->arena, semel__str(conn->subject), &x->req.subject)) {
        semel__exchange_free(x);
        refuse(conn, 503, "there is no memory for the request", 0);
        return;
    }
    x->env = env;
    x->req.remote = conn->remote;
    x->req.secure = conn->secure;
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
        conn->last = true; /* after a CONNECT a proxy may treat the connection as a tunnel */
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
        parse_head(conn, n);
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

/* A streamed exchange failed. It is refused if its reply has not begun, otherwise broken off. */
static void fail_stream(struct semel_conn *conn, int status, const char *reason)
{
    struct semel_http_exchange *x = conn->x;
    bool answered = x->begun || x->status != 0;
    take_back(x);
    conn->parse.complete = false;
    if (!answered) {
        refuse(conn, status, reason, 0);
        return;
    }
    conn->reset = true;
    close_now(conn);
}

static void read_stream(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    size_t used;
    int status = semel__parse_body(&conn->parse, conn->in.p, conn->in.n, &used);
    if (status != 0) {
        fail_stream(conn, status, conn->parse.reason);
        return;
    }
    consume(conn, used);
    conn->pace += used;
    if (conn->parse.complete) {
        conn->serial++;
        if (x->owned)
            x->req.route->stream->whole(x);
    }
}

/* Does the connection read a streamed body now? */
static bool pulls(const struct semel_conn *conn)
{
    return conn->phase == SEMEL_CONN_STREAMING && conn->x->owned && conn->x->pulls && !conn->parse.complete;
}

/* Advances as far as the bytes allow. */
static void advance(struct semel_conn *conn)
{
    bool going = true;
    while (going) {
        size_t before = conn->in.n - conn->in_seen;
        if (before > 0 && (conn->phase == SEMEL_CONN_IDLE || conn->phase == SEMEL_CONN_HEAD))
            read_head(conn);
        else if (before > 0 && conn->phase == SEMEL_CONN_BODY)
            read_body(conn);
        else if (before > 0 && pulls(conn))
            read_stream(conn);
        else
            going = false;
    }
    bool waits = conn->phase == SEMEL_CONN_IDLE || conn->phase == SEMEL_CONN_HEAD || conn->phase == SEMEL_CONN_BODY ||
                 (pulls(conn) && conn->in.n == 0);
    if (waits && conn->ended)
        close_now(conn); /* half a request, and the rest will not come */
}

/* Nothing is on its way: the next part of a streamed reply follows, or its end. */
static void send_next(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    if (conn->body.n > 0 || x->cut)
        return;
    if (x->queue.n > 0) {
        struct semel_buf sent = x->reply;
        x->reply = x->queue;
        x->queue = sent;
        conn->body = semel__buf_str(&x->reply);
        conn->serial++;
    } else if (x->ended && conn->out.n == 0) {
        reply_sent(conn);
    }
}

/* All queued bytes were sent. */
static void stream_sent(struct semel_conn *conn)
{
    struct semel_http_exchange *x = conn->x;
    conn->body = (struct semel_str){NULL, 0};
    x->reply.n = 0;
    conn->serial++;
    send_next(conn);
    if (conn->x == x && x->owned && x->waits && x->queue.n <= STREAM_BOUND / 2) {
        x->waits = false;
        x->req.route->stream->drained(x);
    }
}

void semel__conn_turn(struct semel_conn *conn)
{
    if (conn->phase != SEMEL_CONN_STREAMING)
        return;
    struct semel_http_exchange *x = conn->x;
    if (x->cut) {
        take_back(x);
        conn->reset = true;
        close_now(conn);
    } else if (x->status != 0 && !x->begun) {
        semel__conn_answered(conn, x);
    } else {
        send_next(conn);
        advance(conn);
    }
}

/* ---- what a handler that streams calls: marks only ---- */

void semel__http_pull(struct semel_http_exchange *x, bool on)
{
    struct semel_conn *conn = x->conn;
    assert(x->owned);
    if (x->pulls == on)
        return;
    x->pulls = on;
    conn->pace = 0;
    conn->serial++;
    if (on && conn->parse.expects && !conn->parse.complete && !x->begun && conn->in.n == 0) {
        conn->parse.expects = false;
        semel__buf_addz(&conn->out, CONTINUE);
    }
    kick(x);
}

/* A piece for which there was no memory is missing: the reply must not look whole, and nothing may follow it. */
static void cut_if_lost(struct semel_http_exchange *x)
{
    x->cut = x->cut || x->queue.failed;
}

void semel__http_begin(struct semel_http_exchange *x, int status, int64_t length)
{
    struct semel_conn *conn = x->conn;
    assert(x->owned && x->status == 0 && status >= 200 && status < 600);
    x->status = status;
    x->begun = true;
    x->bodiless = bodiless(status) || x->req.method == SEMEL_HTTP_HEAD;
    x->sized = length >= 0;
    x->left = length >= 0 ? (uint64_t)length : 0;
    x->chunked = length < 0 && !x->bodiless && !conn->parse.http_1_0;
    if (!conn->parse.complete || (conn->ended && conn->in.n == 0))
        conn->last = true;
    put_stream_head(x, length, conn->last);
    cut_if_lost(x);
    observe(conn, status);
    kick(x);
}

bool semel__http_send(struct semel_http_exchange *x, struct semel_str piece)
{
    assert(x->owned && x->begun);
    if (!x->bodiless && piece.n > 0) {
        if (x->sized && piece.n > x->left)
            x->cut = true; /* the next message would begin within this one */
        x->left -= x->sized && !x->cut ? piece.n : 0;
        if (x->chunked)
            semel__buf_addf(&x->queue, "%zx\r\n", piece.n);
        semel__buf_add(&x->queue, piece.p, piece.n);
        if (x->chunked)
            semel__buf_add(&x->queue, "\r\n", 2);
        cut_if_lost(x);
        kick(x);
    }
    x->waits = x->queue.n > STREAM_BOUND;
    return !x->waits;
}

void semel__http_end(struct semel_http_exchange *x)
{
    assert(x->owned && x->begun);
    if (x->chunked)
        semel__buf_addz(&x->queue, "0\r\n\r\n");
    cut_if_lost(x);
    x->cut = x->cut || (x->sized && !x->bodiless && x->left > 0);
    x->ended = true;
    x->owned = false;
    kick(x);
}

void semel__http_cut(struct semel_http_exchange *x)
{
    assert(x->owned);
    x->cut = true;
    x->owned = false;
    kick(x);
}

bool semel__conn_wants(const struct semel_conn *conn)
{
    switch (conn->phase) {
    case SEMEL_CONN_IDLE:
    case SEMEL_CONN_HEAD:
    case SEMEL_CONN_BODY:
    case SEMEL_CONN_LINGER:
        return !conn->ended;
    case SEMEL_CONN_HANDLING: /* so that we notice when the client closes */
    case SEMEL_CONN_STREAMING:
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
    else if (conn->phase == SEMEL_CONN_STREAMING && conn->parse.complete && conn->x->owned)
        conn->x->req.route->stream->hung_up(conn->x);
    else
        advance(conn);
}

size_t semel__conn_output(const struct semel_conn *conn, struct semel_str pieces[2])
{
    size_t head = conn->sent < conn->out.n ? conn->sent : conn->out.n;
    size_t body = conn->sent - head;
    pieces[0] = (struct semel_str){conn->out.p != NULL ? conn->out.p + head : "", conn->out.n - head};
    pieces[1] = (struct semel_str){conn->body.p != NULL ? conn->body.p + body : "", conn->body.n - body};
    if (conn->phase == SEMEL_CONN_STREAMING && pieces[1].n > STREAM_BOUND)
        pieces[1].n = STREAM_BOUND; /* a time-out covers one such part */
    return conn->phase == SEMEL_CONN_LINGER || conn->phase == SEMEL_CONN_CLOSED ? 0 : pieces[0].n + pieces[1].n;
}

/* The reply was sent: continues with the next request, or lingers. */
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
        return; /* it was on its way when the connection closed */
    conn->sent += n;
    assert(conn->sent <= conn->out.n + conn->body.n);
    if (conn->phase == SEMEL_CONN_STREAMING)
        conn->serial++;
    if (conn->sent < conn->out.n + conn->body.n)
        return;
    conn->out.n = conn->sent = 0;
    if (conn->phase == SEMEL_CONN_STREAMING)
        stream_sent(conn);
    else if (conn->phase == SEMEL_CONN_WRITING)
        reply_sent(conn);
}

void semel__conn_answered(struct semel_conn *conn, struct semel_http_exchange *x)
{
    assert(conn->x == x && (conn->phase == SEMEL_CONN_HANDLING || conn->phase == SEMEL_CONN_STREAMING));
    enter(conn, SEMEL_CONN_WRITING); /* x belongs to the connection again */
    open_remove(conn->env, x);
    x->conn = NULL;
    if (x->reply.failed || x->lines.failed) {
        refuse(conn, 500, x->reply.full ? "the reply is too large" : "there is no memory for the reply", 0);
        return;
    }
    conn->last = conn->last || !conn->parse.complete || (conn->ended && conn->in.n == 0);
    struct reply_head head = {.status = x->status,
                              .type = x->type,
                              .length = x->reply.n,
                              .lines = semel__buf_str(&x->lines),
                              .close = conn->last};
    put_head(&conn->out, &head, http_date(conn->env));
    if (x->req.method != SEMEL_HTTP_HEAD && !bodiless(x->status))
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
    case SEMEL_CONN_STREAMING:
        return conn->body.n > 0 ? limits->write_ms : pulls(conn) ? limits->body_ms : 0;
    case SEMEL_CONN_HANDLING:
    case SEMEL_CONN_CLOSED:
        return 0;
    }
    return 0;
}

/* A streamed body that comes fast enough gets another time-out. */
static void stream_expired(struct semel_conn *conn)
{
    if (conn->body.n == 0 && conn->pace >= SEMEL_HTTP_PACE) {
        conn->pace = 0;
        conn->serial++;
    } else {
        fail_stream(conn, 408, "the body did not come in time");
    }
}

void semel__conn_expired(struct semel_conn *conn)
{
    if (conn->phase == SEMEL_CONN_STREAMING)
        stream_expired(conn);
    else if (conn->phase == SEMEL_CONN_BODY)
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
