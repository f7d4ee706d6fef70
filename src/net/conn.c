/* SPDX-License-Identifier: MIT
 *
 * conn.c: one connection, from its bytes to a handler and back: the exchange as handlers see it (http.h), the head of a
 * reply, the route and the access of a request, and the state machine of conn.h that joins them.
 *
 * Not here: sockets, TLS and threads (server.c), the syntax of a request (parse.c).
 */
#include "net/conn.h"

#include <assert.h>
#include <openssl/crypto.h>
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

void semel__http_set_header(struct semel_http_exchange *x, const char *name, struct semel_str value)
{
    for (const char *p = name; *p != '\0'; p++)
        assert(semel__http_tchar(*p));
    size_t n = 0;
    while (n < value.n && (unsigned char)value.p[n] >= ' ' && value.p[n] != 0x7F)
        n++;
    semel__buf_addf(&x->lines, "%s: ", name);
    semel__buf_add(&x->lines, value.p, n);
    semel__buf_add(&x->lines, "\r\n", 2);
}

void semel__http_answer(struct semel_http_exchange *x, int status)
{
    assert(x->status == 0 && status >= 200 && status < 600);
    x->status = status;
    x->back(x->back_ctx, x);
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
        {204, "No Content"},
        {207, "Multi-Status"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
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
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {425, "Too Early"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
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
#define DATE_TEXT 30 /* Sun, 06 Nov 1994 08:49:37 GMT */

struct reply_head {
    int status;
    const char *type;       /* of the body */
    size_t length;          /* of the body, even if it is not sent (HEAD) */
    struct semel_str lines; /* more headers, each with its CR LF */
    bool close;
};

/* The parts are cut from the text of base/clock.h: 2026-11-15T19:38:00.000000Z. */
static void http_date(int64_t now_us, char out[DATE_TEXT])
{
    static const char days[] = "ThuFriSatSunMonTueWed"; /* 1970-01-01 was a Thursday */
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char text[SEMEL_TIME_TEXT];
    if (now_us < 0)
        now_us = 0;
    semel__time_format(now_us, text);
    int64_t day = now_us / US_PER_DAY % 7;
    int month = (text[5] - '0') * 10 + (text[6] - '0') - 1;
    snprintf(out, DATE_TEXT, "%.3s, %.2s %.3s %.4s %.8s GMT", days + 3 * day, text + 8, months + 3 * month, text,
             text + 11);
}

/* a reply with this status has no body */
static bool bodiless(int status)
{
    return status < 200 || status == 204 || status == 304;
}

static void put_head(struct semel_buf *buf, const struct reply_head *head, int64_t now_us)
{
    char date[DATE_TEXT];
    http_date(now_us, date);
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
static int take_params(struct semel_http_exchange *x, const struct semel_str *raw, const struct semel_str *decoded,
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

static int take_query(struct semel_http_exchange *x, struct semel_str query, size_t max_pairs)
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
    int status = take_params(x, raw, decoded, path);
    return status != 0 ? status : take_query(x, query, max_pairs);
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

/* ==== access ===================================================================================== */

#define PORT_DIGITS 5

static const char *const loopback_names[] = {"localhost", "127.0.0.1", "[::1]"};

static bool token_valid(struct semel_str text)
{
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] <= ' ' || text.p[i] > '~')
            return false;
    return text.n > 0 && text.n <= SEMEL_ACCESS_TOKEN_MAX;
}

semel_status semel__access_set_tokens(struct semel_access *access, const struct semel_http_token *tokens, size_t n,
                                      struct semel_error *err)
{
    unsigned char digests[SEMEL_ACCESS_TOKENS][SEMEL_SHA256];
    if (n > SEMEL_ACCESS_TOKENS)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%zu tokens; at most %d", n, SEMEL_ACCESS_TOKENS);
    for (size_t i = 0; i < n; i++) {
        if (!token_valid(tokens[i].text))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                               "token %zu: must be 1 to %d visible ASCII characters", i + 1, SEMEL_ACCESS_TOKEN_MAX);
        if (!semel__sha256(&tokens[i].text, 1, digests[i]))
            return semel__fail_memory(err);
    }
    pthread_mutex_lock(&access->lock);
    for (size_t i = 0; i < n; i++) {
        memcpy(access->digests[i], digests[i], sizeof(digests[i]));
        access->scopes[i] = tokens[i].scopes;
    }
    access->n_tokens = n;
    pthread_mutex_unlock(&access->lock);
    return SEMEL_OK;
}

static bool host_valid(struct semel_str s)
{
    bool bracketed = s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']';
    size_t from = bracketed ? 1 : 0, to = bracketed ? s.n - 1 : s.n;
    for (size_t i = from; i < to; i++) {
        char c = s.p[i];
        bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!digit && c != '.' && (bracketed ? c != ':' : c != '-' && c != '_'))
            return false;
    }
    return to > from && s.n <= 255;
}

static semel_status add_host(struct semel_access *access, const char *name, struct semel_error *err)
{
    size_t n = strlen(name) + 1;
    if (!host_valid(semel__str(name)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "host %s: must be a name or an address, IPv6 in brackets, without a port", name);
    char *copy = semel__alloc(n);
    if (copy == NULL)
        return semel__fail_memory(err);
    memcpy(copy, name, n);
    access->hosts[access->n_hosts++] = copy;
    return SEMEL_OK;
}

static semel_status access_init(struct semel_access *access, const struct semel_http_settings *settings, bool trusted,
                                struct semel_error *err)
{
    *access = (struct semel_access){.trusted = trusted};
    pthread_mutex_init(&access->lock, NULL);
    access->hosts = semel__calloc(settings->n_hosts + 1, sizeof(*access->hosts));
    if (access->hosts == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < settings->n_hosts; i++) {
        semel_status status = add_host(access, settings->hosts[i], err);
        if (status != SEMEL_OK)
            return status;
    }
    return semel__access_set_tokens(access, settings->tokens, settings->n_tokens, err);
}

static void access_done(struct semel_access *access)
{
    for (size_t i = 0; i < access->n_hosts; i++)
        semel__free(access->hosts[i]);
    semel__free(access->hosts);
    pthread_mutex_destroy(&access->lock);
    OPENSSL_cleanse(access->digests, sizeof(access->digests));
}

/* Cuts the port off. false: not digits. */
static bool cut_port(struct semel_str *host)
{
    size_t digits = 0;
    while (digits < host->n && host->p[host->n - 1 - digits] >= '0' && host->p[host->n - 1 - digits] <= '9')
        digits++;
    if (digits == host->n || host->p[host->n - 1 - digits] != ':')
        return memchr(host->p, ':', host->n) == NULL || host->p[host->n - 1] == ']';
    host->n -= digits + 1;
    return digits > 0 && digits <= PORT_DIGITS;
}

static bool host_allowed(const struct semel_access *access, struct semel_str host, struct semel_str local)
{
    for (size_t i = 0; i < sizeof(loopback_names) / sizeof(loopback_names[0]); i++)
        if (semel__same_word(host, loopback_names[i]))
            return true;
    for (size_t i = 0; i < access->n_hosts; i++)
        if (semel__same_word(host, access->hosts[i]))
            return true;
    return local.n > 0 && semel__str_eq(host, local);
}

/* Checks the only Host header. `local` is our end of the connection, as text without its port, or {NULL, 0}. 0, 400 or
 * 421. */
static int access_host(const struct semel_access *access, const struct semel_http_request *req, struct semel_str local,
                       const char **ret_reason)
{
    struct semel_str host = {NULL, 0};
    size_t n = 0;
    for (size_t i = 0; i < req->n_headers; i++)
        if (semel__same_word(req->headers[i].name, "host")) {
            host = req->headers[i].value;
            n++;
        }
    *ret_reason = "there must be one Host header";
    if (n != 1)
        return 400;
    *ret_reason = "Host must be a name or an address and perhaps a port";
    if (host.n == 0 || !cut_port(&host) || !host_valid(host))
        return 400;
    *ret_reason = "Host is not a name of this server";
    return host_allowed(access, host, local) ? 0 : 421;
}

/* The token of "Bearer TOKEN". {NULL, 0}: malformed. */
static struct semel_str bearer(struct semel_str value)
{
    const struct semel_str none = {NULL, 0};
    static const char scheme[] = "Bearer ";
    const size_t n = sizeof(scheme) - 1;
    if (value.n <= n || !semel__same_word((struct semel_str){value.p, n}, scheme))
        return none;
    struct semel_str token = {value.p + n, value.n - n};
    return token_valid(token) ? token : none;
}

/* Compares every digest in full, so that the time reveals nothing about any of them. */
static unsigned scopes_of(struct semel_access *access, const unsigned char digest[SEMEL_SHA256], bool *ret_known)
{
    unsigned scopes = 0, known = 0;
    pthread_mutex_lock(&access->lock);
    for (size_t i = 0; i < access->n_tokens; i++) {
        unsigned equal = CRYPTO_memcmp(access->digests[i], digest, SEMEL_SHA256) == 0;
        scopes |= access->scopes[i] & (0u - equal);
        known |= equal;
    }
    pthread_mutex_unlock(&access->lock);
    *ret_known = known != 0;
    return scopes;
}

/* Removes the header from the request, so that no handler stores the token with a message. Returns their number. */
static size_t take_authorization(struct semel_http_request *req, struct semel_http_pair *fields, struct semel_str *ret)
{
    size_t kept = 0, n = req->n_headers;
    for (size_t i = 0; i < n; i++) {
        if (semel__same_word(fields[i].name, "authorization"))
            *ret = fields[i].value;
        else
            fields[kept++] = fields[i];
    }
    req->n_headers = kept;
    return n - kept;
}

/* Checks the token that the route needs; sets req->scopes, and removes Authorization from the headers (`fields` are
 * those of req) if the route needs a token. 0, 400, 401, 403, or 503 without memory. */
static int access_token(struct semel_access *access, struct semel_http_request *req, struct semel_http_pair *fields,
                        const char **ret_reason)
{
    unsigned char digest[SEMEL_SHA256];
    struct semel_str value = {NULL, 0};
    if (access->trusted)
        req->scopes = ~0u;
    if (req->route->needs == 0)
        return 0;
    *ret_reason = "there must be one Authorization header at most";
    if (take_authorization(req, fields, &value) > 1)
        return 400;
    if (access->trusted)
        return 0;
    struct semel_str token = bearer(value);
    *ret_reason = "this needs a token: Authorization: Bearer TOKEN";
    if (token.p == NULL)
        return 401;
    *ret_reason = "there is no memory for the request";
    if (!semel__sha256(&token, 1, digest))
        return 503;
    bool known;
    req->scopes = scopes_of(access, digest, &known);
    *ret_reason = known ? "the token is not for this" : "the token is not known";
    return !known ? 401 : req->scopes & req->route->needs ? 0 : 403;
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
    semel_status status = access_init(&env->access, settings, trusted, err);
    if (status == SEMEL_OK)
        status = routes_check(env->routes, env->n_routes, err);
    if (status == SEMEL_OK && !share_out(env))
        status = semel__fail_memory(err);
    return status;
}

void semel__conn_env_done(struct semel_conn_env *env)
{
    access_done(&env->access);
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

/* Gives up the exchange: if a handler has it, it continues without the connection. */
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
    put_head(&conn->out, &head, semel__now(conn->env->clock));
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

/* The head is valid: checks the host, the route and the token. */
static void judge(struct semel_conn *conn)
{
    struct semel_conn_env *env = conn->env;
    struct semel_http_request *req = &conn->x->req;
    const char *reason = "";
    unsigned allow = 0;
    int status = access_host(&env->access, req, conn->local, &reason);
    if (status == 0)
        status = route_find(env->routes, env->n_routes, conn->x, env->limits.head_fields, &allow, &reason);
    if (status == 0)
        status = access_token(&env->access, req, conn->parse.fields, &reason);
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
    struct semel_http_exchange *x = exchange_new(arena_max, env->limits.reply_max);
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
        else
            going = false;
    }
    bool waits = conn->phase == SEMEL_CONN_IDLE || conn->phase == SEMEL_CONN_HEAD || conn->phase == SEMEL_CONN_BODY;
    if (waits && conn->ended)
        close_now(conn); /* half a request, and the rest will not come */
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
    if (conn->sent < conn->out.n + conn->body.n)
        return;
    conn->out.n = conn->sent = 0;
    if (conn->phase == SEMEL_CONN_WRITING)
        reply_sent(conn);
}

void semel__conn_answered(struct semel_conn *conn, struct semel_http_exchange *x)
{
    assert(conn->x == x && conn->phase == SEMEL_CONN_HANDLING);
    enter(conn, SEMEL_CONN_WRITING); /* x belongs to the connection again */
    open_remove(conn->env, x);
    x->conn = NULL;
    if (x->reply.failed || x->lines.failed) {
        refuse(conn, 500, x->reply.full ? "the reply is too large" : "there is no memory for the reply", 0);
        return;
    }
    conn->last = conn->last || (conn->ended && conn->in.n == 0);
    struct reply_head head = {.status = x->status,
                              .type = x->type,
                              .length = x->reply.n,
                              .lines = semel__buf_str(&x->lines),
                              .close = conn->last};
    put_head(&conn->out, &head, semel__now(conn->env->clock));
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
