/* SPDX-License-Identifier: MIT
 *
 * serve_table.c: from the settings to listeners: one per address, with the paths of all routes that share it.
 *
 * Every token of an address has a scope of its own, and a path needs the scope of its route's token: a client that
 * may send to one route cannot take from another. Routes with the same token share the scope.
 *
 * Invariants: no two paths of an address are the same; paths have no braces, which would be patterns.
 */
#include <assert.h>
#include <stdio.h>

#include "admin/api.h"
#include "base/error.h"

#define TOKENS_MAX 16
#define ADMIN_SCOPE (1u << TOKENS_MAX)    /* no token has it */
#define PULL_BODY_MAX ((size_t)256 << 10) /* an outcome of 64 KiB, escaped */
#define TAKE_BODY_MAX 4096                /* its body is ignored */
#define ASIDE_ABOVE ((size_t)32 << 10)    /* a pool thread parses larger bodies */

/* The maximum of paths that a route adds to a listener's table. */
#define PATHS_A_ROUTE 5

static semel_status refuse(struct semel_error *err, const struct semel_route *route, const char *why)
{
    char name[80];
    semel__str_show(name, sizeof(name), route->name);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "routes.%s: %s", name, why);
}

static struct semel_serve_listener *listener_at(struct semel_serve *serve, const struct semel_setting_server *server)
{
    for (size_t i = 0; i < serve->n_listeners; i++)
        if (semel__str_eq(serve->listeners[i].server.address.where, server->address.where))
            return &serve->listeners[i];
    struct semel_serve_listener *l = &serve->listeners[serve->n_listeners];
    l->routes = semel__calloc(serve->conf->n_routes * PATHS_A_ROUTE + semel__admin_routes_n +
                                  semel__api_routes(NULL, 0, 0, NULL),
                              sizeof(*l->routes));
    if (l->routes == NULL)
        return NULL;
    l->server = *server;
    for (size_t i = 0; i < server->hosts.n && i < sizeof(l->hosts) / sizeof(l->hosts[0]); i++)
        l->hosts[i] = server->hosts.at[i].p;
    serve->n_listeners++;
    return l;
}

/* The scope of this token; 0: there are too many. */
static unsigned scope_of(struct semel_serve_listener *l, struct semel_str token)
{
    size_t i = 0;
    while (i < l->n_tokens && !semel__str_eq(l->tokens[i].text, token))
        i++;
    if (i == TOKENS_MAX)
        return 0;
    l->tokens[i] = (struct semel_http_token){.text = token, .scopes = 1u << i};
    l->n_tokens = i < l->n_tokens ? l->n_tokens : i + 1;
    return 1u << i;
}

static semel_status add_path(struct semel_serve *serve, struct semel_serve_listener *l, const struct semel_route *route,
                             struct semel_str path, const char *end, struct semel_http_route spec,
                             struct semel_error *err)
{
    size_t size = path.n + strlen(end) + 1;
    char *text = semel__arena_alloc(&serve->arena, size, 1);
    if (text == NULL)
        return semel__fail_memory(err);
    snprintf(text, size, "%.*s%s", (int)path.n, path.p, end);
    if (strpbrk(text, "{}") != NULL)
        return refuse(err, route, "its path has braces, which have no meaning here; set one without");
    for (size_t i = 0; i < l->n_routes; i++)
        if (strcmp(l->routes[i].path, text) == 0)
            return refuse(err, route, "one of its paths is another route's on the same address; set another");
    spec.path = text;
    spec.methods = SEMEL_HTTP_BIT(POST);
    spec.aside_above = ASIDE_ABOVE;
    l->routes[l->n_routes++] = spec;
    if (l->body_max < spec.body_max)
        l->body_max = spec.body_max;
    return SEMEL_OK;
}

static semel_status too_many_tokens(struct semel_error *err, const struct semel_route *route)
{
    return refuse(err, route, "its address has more than 16 different tokens; share some, or use two addresses");
}

/* Without a token the route is open to every client; then its endpoint checks signatures. */
static semel_status plan_listen(struct semel_serve *serve, const struct semel_route *route, struct semel_error *err)
{
    const struct semel_listen_options *conf = semel__route_listens(route);
    struct semel_serve_listener *l = listener_at(serve, &conf->server);
    struct semel_ingest *ingest = l != NULL ? semel__ingest_new(serve, route) : NULL;
    if (ingest == NULL)
        return semel__fail_memory(err);
    bool token = semel__str_given(conf->server.token);
    unsigned scope = token ? scope_of(l, conf->server.token) : 0;
    if (token && scope == 0)
        return too_many_tokens(err, route);
    assert(token || conf->signature.on);
    struct semel_http_route spec = {.needs = scope,
                                    .body_max = (size_t)conf->body_max,
                                    .handle = semel__ingest_handle,
                                    .timeout_ms = SEMEL_ANSWER_MS,
                                    .overdue = semel__ingest_overdue,
                                    .ctx = ingest};
    return add_path(serve, l, route, conf->path, "", spec, err);
}

static semel_status plan_pull(struct semel_serve *serve, const struct semel_route *route, struct semel_error *err)
{
    static const struct {
        const char *end;
        size_t body_max;
        uint64_t timeout_ms;
        void (*handle)(void *ctx, struct semel_http_exchange *x);
    } calls[] = {
        {"/take", TAKE_BODY_MAX, SEMEL_TAKE_MS, semel__pull_take},
        {"/renew", PULL_BODY_MAX, SEMEL_ANSWER_MS, semel__pull_renew},
        {"/settle", PULL_BODY_MAX, SEMEL_ANSWER_MS, semel__pull_settle},
        {"/release", PULL_BODY_MAX, SEMEL_ANSWER_MS, semel__pull_release},
    };
    const struct semel_conf_pull *conf = &route->handler.u.pull;
    struct semel_serve_listener *l = listener_at(serve, &conf->server);
    struct semel_pull *pull = l != NULL ? semel__pull_new(serve, route) : NULL;
    if (pull == NULL)
        return semel__fail_memory(err);
    unsigned scope = scope_of(l, conf->server.token);
    if (scope == 0)
        return too_many_tokens(err, route);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct semel_http_route spec = {.needs = scope,
                                        .body_max = calls[i].body_max,
                                        .handle = calls[i].handle,
                                        .timeout_ms = calls[i].timeout_ms,
                                        .overdue = semel__pull_overdue,
                                        .ctx = pull};
        status = add_path(serve, l, route, conf->path, calls[i].end, spec, err);
    }
    return status;
}

static semel_status plan_admin(struct semel_serve *serve, struct semel_error *err)
{
    const struct semel_conf_admin *admin = &serve->conf->admin;
    struct semel_serve_listener *l = listener_at(serve, &admin->server);
    serve->api = semel__api_new(serve);
    if (l == NULL || serve->api == NULL)
        return semel__fail_memory(err);
    if (semel__str_given(admin->read_token) && semel__str_eq(admin->read_token, admin->server.token))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "admin.read_token is the same as admin.token; it must be another one, which only reads");
    l->admin = true;
    for (size_t i = 0; i < semel__admin_routes_n; i++) {
        l->routes[l->n_routes] = semel__admin_routes[i];
        l->routes[l->n_routes++].ctx = serve;
    }
    /* Without a token nobody has the scope: only clients of a unix socket. */
    unsigned write = ADMIN_SCOPE, read = ADMIN_SCOPE;
    if (semel__str_given(admin->server.token))
        write = scope_of(l, admin->server.token);
    if (semel__str_given(admin->read_token))
        read = scope_of(l, admin->read_token);
    l->n_routes += semel__api_routes(serve->api, read, write, l->routes + l->n_routes);
    l->body_max = SEMEL_API_BODY_MAX;
    return SEMEL_OK;
}

semel_status semel__serve_plan(struct semel_serve *serve, struct semel_error *err)
{
    const struct semel_conf *conf = serve->conf;
    semel_status status = SEMEL_OK;
    serve->listeners = semel__calloc(2 * conf->n_routes + 1, sizeof(*serve->listeners));
    if (serve->listeners == NULL)
        return semel__fail_memory(err);
    if (conf->admin.on)
        status = plan_admin(serve, err);
    for (size_t i = 0; status == SEMEL_OK && i < conf->n_routes; i++) {
        const struct semel_route *route = &conf->routes[i];
        if (semel__route_listens(route) != NULL)
            status = plan_listen(serve, route, err);
        if (status == SEMEL_OK && route->handler.kind == SEMEL_DO_PULL)
            status = plan_pull(serve, route, err);
    }
    return status;
}
