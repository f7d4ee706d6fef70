/* SPDX-License-Identifier: MIT
 *
 * serve.c: the loop and its listeners: opened, run, stopped.
 *
 * Invariants: nothing is answered before _run; exchanges that endpoints still have when everything is freed are
 * answered too, so that none leaks.
 */
#include "admin/serve.h"

#include <stdio.h>
#include <time.h>

#include "admin/api.h"
#include "admin/ingest.h"
#include "admin/serve_private.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/wait.h"

#define CONNECTIONS_MAX 4096 /* of all listeners, if there are twice as many descriptors */
#define ADMIN_RESERVE 32
#define LOG_EVERY_MS 1000
#define REPLY_MAX ((size_t)96 << 20) /* the largest payload that a row may have, in base64, and the JSON around it */

/* ---- what endpoints share ------------------------------------------------------------------------------ */

int64_t semel__endpoint_now_ms(void)
{
    return semel__steady_us() / 1000;
}

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
    int64_t now_ms = semel__endpoint_now_ms();
    seldom->n++;
    if (now_ms < seldom->next_ms)
        return false;
    *ret_n = seldom->n;
    *seldom = (struct semel_seldom){.next_ms = now_ms + LOG_EVERY_MS};
    return true;
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
    semel_status status = semel__serve_plan(serve, err);
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

semel_status semel__serve_tokens(struct semel_serve *serve, const struct semel_conf *fresh, struct semel_error *err)
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
        status = semel__http_set_tokens(l->listener, tokens, n, err);
    }
    for (struct semel_ingest *ingest = serve->ingests; status == SEMEL_OK && ingest != NULL; ingest = ingest->next)
        status = semel__ingest_rekey(ingest, fresh, err);
    return status;
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
