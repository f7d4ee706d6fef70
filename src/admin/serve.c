/* SPDX-License-Identifier: MIT
 *
 * serve.c: the loop and its listeners: made from the settings, opened, run, stopped.
 *
 * Invariants: nothing is answered before _run; exchanges that endpoints still have when everything is freed are
 * answered too, so that none leaks.
 */
#include <stdio.h>
#include <time.h>
#include <assert.h>

#include "admin/serve.h"
#include "admin/api.h"
#include "admin/ingest.h"
#include "admin/serve_private.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/wait.h"

#define TOKENS_MAX 16
#define ADMIN_SCOPE (1u << TOKENS_MAX) /* no token has it */
#define ASIDE_ABOVE ((size_t)32 << 10) /* a pool thread parses larger bodies */
#define CONNECTIONS_MAX 4096           /* of all listeners, if there are twice as many descriptors */
#define ADMIN_RESERVE 32
#define LOG_EVERY_MS 1000
#define REPLY_MAX ((size_t)96 << 20) /* the largest payload that a row may have, in base64, and the JSON around it */

/* ---- what endpoints share ------------------------------------------------------------------------------ */

void semel__endpoint_later(struct semel_http_exchange *x, int after_s, const char *why)
{
    char after[16];
    snprintf(after, sizeof(after), "%d", after_s);
    semel__http_set_header(x, "Retry-After", semel__str(after));
    semel__http_refuse(x, 503, "%s", why);
}

void semel__endpoint_count(struct semel_serve *serve, enum semel_family family, struct semel_str consumer,
                           const char *second, const char *third, uint64_t n)
{
    struct semel_str values[] = {consumer, semel__str(second), semel__str(third)};
    semel__count(semel__metric_at(semel__stats_family(serve->stats, family), values), n);
}

bool semel__endpoint_logs(struct semel_seldom *seldom, uint64_t *ret_n)
{
    int64_t now_ms = semel__steady_us() / 1000;
    seldom->n++;
    if (now_ms < seldom->next_ms)
        return false;
    *ret_n = seldom->n;
    *seldom = (struct semel_seldom){.next_ms = now_ms + LOG_EVERY_MS};
    return true;
}

/* ---- from the settings to listeners ------------------------------------------------------------------
 *
 * One per address, with the paths of all routes that share it. Every token of an address has a scope of its own, and a
 * path needs the scope of its route's token: a client that may send to one route cannot take from another. Routes with
 * the same token share the scope. No two paths of an address are the same; paths have no braces, which would be
 * patterns. */

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
    struct semel_http_route spec = semel__ingest_route;
    spec.needs = scope;
    spec.body_max = (size_t)conf->body_max;
    spec.ctx = ingest;
    return add_path(serve, l, route, conf->path, "", spec, err);
}

static semel_status plan_pull(struct semel_serve *serve, const struct semel_route *route, struct semel_error *err)
{
    const struct semel_conf_pull *conf = &route->handler.u.pull;
    struct semel_serve_listener *l = listener_at(serve, &conf->server);
    struct semel_pull *pull = l != NULL ? semel__pull_new(serve, route) : NULL;
    if (pull == NULL)
        return semel__fail_memory(err);
    unsigned scope = scope_of(l, conf->server.token);
    if (scope == 0)
        return too_many_tokens(err, route);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < SEMEL_PULL_ROUTES; i++) {
        struct semel_http_route spec = semel__pull_routes[i];
        spec.needs = scope;
        spec.ctx = pull;
        status = add_path(serve, l, route, conf->path, semel__pull_routes[i].path, spec, err);
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

static semel_status plan(struct semel_serve *serve, struct semel_error *err)
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

/* ---- opening --------------------------------------------------------------------------------------- */

/* No token, a wrong one, or one of another route. The token is not logged: it may be valid elsewhere. */
static void log_stranger(struct semel_serve *serve, const struct semel_http_request *req, int status)
{
    uint64_t n;
    if (semel__endpoint_logs(&serve->strangers, &n))
        SEMEL__LOG(serve->log, SEMEL_LOG_WARN, "a token is missing or wrong", SEMEL_F_STR("peer", req->remote),
                   SEMEL_F_Z("path", req->route->path), SEMEL_F_INT("status", status), SEMEL_F_INT("requests", n));
}

static void crowded(void *ctx, bool gave_way, struct semel_str remote)
{
    struct semel_serve *serve = ctx;
    uint64_t n;
    struct semel_str how = gave_way ? SEMEL_STR("gave_way") : SEMEL_STR("refused");
    semel__count(semel__metric_at(semel__stats_family(serve->stats, SEMEL_FAMILY_CROWDED), &how), 1);
    if (semel__endpoint_logs(&serve->crowd, &n))
        SEMEL__LOG(serve->log, SEMEL_LOG_WARN,
                   gave_way ? "too many connections: the oldest without a request is closed"
                            : "too many connections, all busy: refused a new one",
                   SEMEL_F_STR("peer", remote), SEMEL_F_INT("connections", n));
}

static void observe(void *ctx, const struct semel_http_request *req, int status, int64_t took_us)
{
    struct semel_serve *serve = ctx;
    char code[8];
    bool known = req != NULL && req->route != NULL;
    snprintf(code, sizeof(code), "%d", status);
    struct semel_str values[] = {known ? semel__str(req->route->path) : SEMEL_STR("none"), semel__str(code)};
    semel__count(semel__metric_at(semel__stats_family(serve->stats, SEMEL_FAMILY_HTTP), values), 1);
    /* Past the token, a 401 is about the signature, and the endpoint has logged it. */
    if (known && (status == 401 || status == 403) && req->route->needs != 0 && (req->scopes & req->route->needs) == 0)
        log_stranger(serve, req, status);
    if (known)
        semel__observe(semel__metric_at(semel__stats_family(serve->stats, SEMEL_FAMILY_HTTP_TIME), values),
                       (double)took_us / 1e6);
}

/* Half of the descriptors: stores, brokers and handlers need theirs. */
static size_t connections_max(void)
{
    size_t half = semel__descriptors_max() / 2;
    return half < CONNECTIONS_MAX ? half : CONNECTIONS_MAX;
}

static semel_status open_listener(struct semel_serve *serve, struct semel_serve_listener *l, struct semel_error *err)
{
    struct semel_http_settings settings;
    semel__http_settings_init(&settings);
    const struct semel_setting_server *server = &l->server;
    settings.address = server->address.text.p;
    settings.plain = server->plain;
    if (server->tls.on) {
        settings.cert_file = server->tls.cert_file;
        settings.key_file = server->tls.key_file;
        settings.client_ca_file = server->tls.client_ca_file;
    }
    settings.hosts = l->hosts;
    settings.n_hosts = server->hosts.n;
    settings.tokens = l->tokens;
    settings.n_tokens = l->n_tokens;
    settings.routes = l->routes;
    settings.n_routes = l->n_routes;
    settings.observe = observe;
    settings.crowded = crowded;
    settings.observe_ctx = serve;
    settings.limits.reply_max = REPLY_MAX;
    if (l->admin)
        settings.limits.reserve = connections_max() / 4 < ADMIN_RESERVE ? connections_max() / 4 : ADMIN_RESERVE;
    else
        settings.limits.connections = 1024;
    if (settings.limits.held_bytes < 4 * l->body_max)
        settings.limits.held_bytes = 4 * l->body_max;
    semel_status status = semel__http_listen(serve->http, &settings, &l->listener, err);
    if (status == SEMEL_OK)
        SEMEL__LOG(serve->log, SEMEL_LOG_INFO, "listening", SEMEL_F_STR("address", server->address.text),
                   SEMEL_F_INT("port", semel__http_port(l->listener)));
    return status;
}

semel_status semel__serve_new(struct semel_serve **ret, const struct semel_conf *conf, struct semel_stats *stats,
                              const struct semel_serve_view *view, struct semel_log *log, struct semel_error *err)
{
    struct semel_serve *serve = semel__calloc(1, sizeof(*serve));
    *ret = NULL;
    if (serve == NULL)
        return semel__fail_memory(err);
    serve->conf = conf;
    serve->stats = stats;
    serve->view = view;
    serve->log = log;
    serve->answer_ms = SEMEL_ANSWER_MS;
    semel__arena_init(&serve->arena, (size_t)1 << 20);
    semel_status status = plan(serve, err);
    if (status == SEMEL_OK && serve->n_listeners > 0)
        status = semel__http_new(&serve->http, NULL, err);
    if (status == SEMEL_OK && serve->n_listeners > 0)
        semel__http_bound(serve->http, connections_max());
    if (status == SEMEL_OK && serve->n_listeners > 0 && view != NULL && view->turns != NULL)
        semel__http_on_tick(serve->http, view->turns, view->ctx);
    for (size_t i = 0; status == SEMEL_OK && i < serve->n_listeners; i++)
        status = open_listener(serve, &serve->listeners[i], err);
    if (status != SEMEL_OK || serve->n_listeners == 0) {
        semel__serve_free(serve);
        return status;
    }
    *ret = serve;
    return SEMEL_OK;
}

/* ---- running --------------------------------------------------------------------------------------- */

semel_status semel__serve_run(struct semel_serve *serve, struct semel_error *err)
{
    return semel__http_run(serve->http, err);
}

void semel__serve_stop(struct semel_serve *serve, uint64_t deadline_ms)
{
    atomic_store(&serve->stopping, true); /* long polls end at the next tick */
    semel__http_stop(serve->http, deadline_ms);
}

semel_status semel__serve_reload(struct semel_serve *serve, struct semel_error *err)
{
    return semel__http_reload(serve->http, err);
}

void semel__serve_reloaded(struct semel_serve *serve, bool use)
{
    semel__http_reloaded(serve->http, use);
}

static const struct semel_setting_server *server_of(const struct semel_conf *conf, const struct semel_route *route,
                                                    bool pull)
{
    for (size_t i = 0; i < conf->n_routes; i++) {
        const struct semel_route *other = &conf->routes[i];
        if (!semel__str_eq(other->name, route->name))
            continue;
        if (pull && other->handler.kind == SEMEL_DO_PULL)
            return &other->handler.u.pull.server;
        if (!pull && semel__route_listens(other) != NULL)
            return &semel__route_listens(other)->server;
    }
    return NULL;
}

/* The token that replaces the old one in the new settings; not given: none does. false: there are two. */
static bool token_now(const struct semel_serve *serve, const struct semel_serve_listener *l,
                      const struct semel_conf *fresh, struct semel_str old, struct semel_str *ret)
{
    bool reads = l->admin && semel__str_eq(serve->conf->admin.read_token, old);
    *ret = (struct semel_str){NULL, 0};
    if (l->admin && fresh->admin.on)
        *ret = reads ? fresh->admin.read_token : fresh->admin.server.token;
    for (size_t i = 0; !l->admin && i < 2 * serve->conf->n_routes; i++) {
        const struct semel_route *route = &serve->conf->routes[i / 2];
        const struct semel_setting_server *before = server_of(serve->conf, route, i % 2 == 1);
        if (before == NULL || !semel__str_eq(before->token, old) ||
            !semel__str_eq(before->address.where, l->server.address.where))
            continue;
        const struct semel_setting_server *after = server_of(fresh, route, i % 2 == 1);
        if (after != NULL && semel__str_given(*ret) && !semel__str_eq(*ret, after->token))
            return false;
        if (after != NULL)
            *ret = after->token;
    }
    return true;
}

static semel_status change_tokens(struct semel_serve *serve, const struct semel_conf *fresh, bool apply,
                                  struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < serve->n_listeners; i++) {
        struct semel_serve_listener *l = &serve->listeners[i];
        struct semel_http_token tokens[sizeof(l->tokens) / sizeof(l->tokens[0])];
        size_t n = 0;
        for (size_t k = 0; k < l->n_tokens; k++) {
            struct semel_str text;
            if (!token_now(serve, l, fresh, l->tokens[k].text, &text))
                return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                                   "routes of %s that shared a token have two now; that needs a restart",
                                   l->server.address.text.p);
            if (semel__str_given(text))
                tokens[n++] = (struct semel_http_token){.text = text, .scopes = l->tokens[k].scopes};
        }
        status = apply ? semel__http_set_tokens(l->listener, tokens, n, err) : SEMEL_OK;
    }
    for (struct semel_ingest *ingest = serve->ingests; status == SEMEL_OK && ingest != NULL; ingest = ingest->next)
        status = semel__ingest_rekey(ingest, fresh, apply, err);
    return status;
}

/* All is looked at before anything is changed: a mistake of one route leaves every token and secret as it is. */
semel_status semel__serve_tokens(struct semel_serve *serve, const struct semel_conf *fresh, struct semel_error *err)
{
    semel_status status = change_tokens(serve, fresh, false, err);
    return status == SEMEL_OK ? change_tokens(serve, fresh, true, err) : status;
}

void semel__serve_free(struct semel_serve *serve)
{
    if (serve == NULL)
        return;
    semel__http_free(serve->http);
    semel__api_free(serve->api);
    while (serve->ingests != NULL) {
        struct semel_ingest *next = serve->ingests->next;
        semel__ingest_free(serve->ingests);
        serve->ingests = next;
    }
    semel__pull_free_all(serve->pulls);
    for (size_t i = 0; i < serve->n_listeners; i++)
        semel__free(serve->listeners[i].routes);
    semel__free(serve->listeners);
    semel__arena_done(&serve->arena);
    semel__free(serve);
}

unsigned semel__serve_port(const struct semel_serve *serve, struct semel_str where)
{
    for (size_t i = 0; i < serve->n_listeners; i++) {
        const struct semel_setting_address *address = &serve->listeners[i].server.address;
        if (semel__str_eq(address->where, where) || semel__str_eq(address->text, where))
            return semel__http_port(serve->listeners[i].listener);
    }
    return 0;
}
