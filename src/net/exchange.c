/* SPDX-License-Identifier: MIT
 *
 * exchange.c: what handlers ask of a request and say in a reply.
 *
 * Invariants: a handler's header can never end a line: its value ends at the first control
 * character, its name must be a token; an answer is given once, which is asserted.
 */
#include "net/exchange.h"

#include <assert.h>
#include <stdio.h>

#include "base/json.h"
#include "net/gate.h"

#define LINES_MAX 8192
#define DETAIL_MAX 2048

const char *semel__http_method_name(enum semel_http_method method)
{
    static const char *const names[] = {
#define X(name) #name,
        SEMEL_HTTP_METHOD_MAP(X)
#undef X
    };
    return method < SEMEL_HTTP_METHODS ? names[method] : "?";
}

struct semel_http_exchange *semel__exchange_new(size_t arena_max, size_t reply_max)
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

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

bool semel__http_name_eq(struct semel_str a, const char *z)
{
    size_t i = 0;
    while (i < a.n && z[i] != '\0' && lower(a.p[i]) == lower(z[i]))
        i++;
    return i == a.n && z[i] == '\0';
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
        if (semel__http_name_eq(req->headers[i].name, name))
            return req->headers[i].value;
    return (struct semel_str){NULL, 0};
}

bool semel__http_hung_up(const struct semel_http_exchange *x)
{
    return atomic_load_explicit(&x->hung_up, memory_order_relaxed);
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
    x->type = SEMEL_PROBLEM_TYPE;
    semel__problem_put(&x->reply, status, semel__str(detail));
    semel__http_answer(x, status);
}

const char *semel__http_reason(int status)
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

void semel__problem_put(struct semel_buf *buf, int status, struct semel_str detail)
{
    char shown[DETAIL_MAX];
    semel__str_show(shown, sizeof(shown), detail);
    semel__buf_addf(buf,
                    "{\"type\":\"about:blank\",\"title\":\"%s\",\"status\":%d,\"detail\":", semel__http_reason(status),
                    status);
    semel__json_put_string(buf, semel__str(shown));
    semel__buf_addz(buf, "}\n");
}
