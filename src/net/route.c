/* SPDX-License-Identifier: MIT
 *
 * route.c: matching and decoding, as route.h says.
 */
#include "net/route.h"

#include "base/error.h"

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
        if (n == SEMEL_ROUTE_SEGMENTS)
            return SEMEL_ROUTE_SEGMENTS + 1;
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

static bool fits(struct semel_str pattern, const struct semel_str *raw, const struct semel_str *decoded, size_t n)
{
    struct semel_str parts[SEMEL_ROUTE_SEGMENTS];
    size_t n_parts = split(pattern, parts);
    for (size_t i = 0; i < n_parts; i++) {
        if (is_rest(parts[i]))
            return i < n;
        if (i >= n || (is_param(parts[i]) ? raw[i].n == 0 : !semel__str_eq(parts[i], decoded[i])))
            return false;
    }
    return n_parts == n;
}

/* The values of the pattern's braces; the rest is decoded as one, slashes and all. */
static int take_params(struct semel_http_exchange *x, const struct semel_str *raw, const struct semel_str *decoded,
                       struct semel_str path)
{
    struct semel_str parts[SEMEL_ROUTE_SEGMENTS];
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

static unsigned allowed(const struct semel_http_route *route)
{
    return route->methods & SEMEL_HTTP_BIT(GET) ? route->methods | SEMEL_HTTP_BIT(HEAD) : route->methods;
}

/* The first route that fits; those that fit but for the method are gathered in *ret_allow. */
static const struct semel_http_route *match(const struct semel_http_route *routes, size_t n, unsigned bit,
                                            const struct semel_str *raw, const struct semel_str *decoded,
                                            size_t n_segments, unsigned *ret_allow)
{
    for (size_t i = 0; i < n; i++) {
        if (!fits(semel__str(routes[i].path), raw, decoded, n_segments))
            continue;
        if (allowed(&routes[i]) & bit)
            return &routes[i];
        *ret_allow |= allowed(&routes[i]);
    }
    return NULL;
}

static const char *reason_of(int status)
{
    switch (status) {
    case 400:
        return "the target has a percent-escape that is not one";
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

static int find(const struct semel_http_route *routes, size_t n, struct semel_http_exchange *x, size_t max_pairs,
                unsigned *ret_allow)
{
    unsigned bit = 1u << x->req.method;
    struct semel_str query = x->req.target, path = cut(&query, '?');
    struct semel_str raw[SEMEL_ROUTE_SEGMENTS], decoded[SEMEL_ROUTE_SEGMENTS];
    if (path.n == 0 || path.p[0] != '/') /* "*" */
        return bit & SEMEL_HTTP_BIT(OPTIONS) ? 405 : 404;
    size_t n_segments = split(path, raw);
    if (n_segments > SEMEL_ROUTE_SEGMENTS)
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

int semel__route_find(const struct semel_http_route *routes, size_t n, struct semel_http_exchange *x, size_t max_pairs,
                      unsigned *ret_allow, const char **ret_reason)
{
    *ret_allow = 0;
    int status = find(routes, n, x, max_pairs, ret_allow);
    if (status != 0)
        *ret_reason = reason_of(status);
    return status;
}

static const char *fault_of(const struct semel_http_route *route)
{
    struct semel_str parts[SEMEL_ROUTE_SEGMENTS];
    if (route->path == NULL || route->path[0] != '/')
        return "a path begins with /";
    size_t n = split(semel__str(route->path), parts);
    if (n > SEMEL_ROUTE_SEGMENTS)
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

semel_status semel__routes_check(const struct semel_http_route *routes, size_t n, struct semel_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *fault = fault_of(&routes[i]);
        if (fault != NULL)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "route %s: %s",
                               routes[i].path != NULL ? routes[i].path : "?", fault);
    }
    return SEMEL_OK;
}
