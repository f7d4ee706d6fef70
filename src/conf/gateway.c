/* SPDX-License-Identifier: MIT
 *
 * gateway.c: what the settings of a gateway say of each other, and what it promises.
 *
 * Invariants: what would give one caller another's answer (P46), run a request twice on a guess (P47, P95) or end a
 * lease while its call may still run is refused here, before anything listens. Settings that follow from others are
 * filled in where they are not given: a wait is never longer than a call. A check judges only settings that have no
 * mistake of their own, so that one pass shows all that is certain.
 */
#include <arpa/inet.h>
#include <stdio.h>

#include "base/error.h"
#include "base/json.h"
#include "conf/private.h"
#include "core/broker.h"

struct subject {
    struct conf_reader *r;
    struct semel_conf_gateway *gateway;
    const struct conf_node *node;
    const struct conf_node *whole; /* of the gateway, where `node` is that of a rule */
};

/* At the setting if it is given, else as near as possible. */
#define WRONG(l, below, ...) \
    semel__conf_wrong_at((l)->r, semel__conf_place((l)->r, semel__conf_find((l)->node, (below))), (below), __VA_ARGS__)

static bool given(const struct subject *l, const char *name)
{
    const struct conf_node *found = semel__conf_find(l->node, name);
    return found != l->node && semel__str_eqz(found->key, strrchr(name, '.') != NULL ? strrchr(name, '.') + 1 : name);
}

static bool sound(const struct conf_node *node, const char *const *names)
{
    while (*names != NULL && semel__conf_sound(node, *names))
        names++;
    return *names == NULL;
}

#define SOUND(l, ...) sound((l)->node, (const char *const[]){__VA_ARGS__, NULL})
#define SOUND_WHOLE(l, ...) sound((l)->whole, (const char *const[]){__VA_ARGS__, NULL})

/* ---- texts --------------------------------------------------------------------------------------- */

static bool is_token(struct semel_str name)
{
    return semel__header_name_fits(name, SIZE_MAX) && memchr(name.p, '_', name.n) == NULL;
}

static void check_token(const struct subject *l, const char *below, struct semel_str name)
{
    if (semel__str_given(name) && SOUND(l, below) && !is_token(name))
        WRONG(l, below, "%s.%s must be the name of a header, such as X-User-Id; no `_`", l->r->path, below);
}

static void check_pointer(const struct subject *l, const char *below, struct semel_str pointer)
{
    if (semel__str_given(pointer) && SOUND(l, below) && !semel__json_pointer_valid(pointer))
        WRONG(l, below, "%s.%s must be a JSON pointer, such as /sent_at", l->r->path, below);
}

/* "10.0.0.0/8", "::1" or "unix" */
static bool is_network(struct semel_str text)
{
    unsigned char address[16];
    char ip[INET6_ADDRSTRLEN];
    int64_t bits = 0;
    const char *slash = text.n > 0 ? memchr(text.p, '/', text.n) : NULL;
    const size_t n = slash != NULL ? (size_t)(slash - text.p) : text.n;
    if (semel__str_eqz(text, "unix"))
        return true;
    if (n == 0 || n >= sizeof(ip))
        return false;
    memcpy(ip, text.p, n);
    ip[n] = '\0';
    const bool four = inet_pton(AF_INET, ip, address) == 1;
    if (!four && inet_pton(AF_INET6, ip, address) != 1)
        return false;
    return slash == NULL || (semel__str_int64((struct semel_str){slash + 1, text.n - n - 1}, &bits) && bits >= 0 &&
                             bits <= (four ? 32 : 128));
}

static void check_networks(const struct subject *l, const char *below, const struct semel_setting_list *list)
{
    for (size_t i = 0; i < list->n && SOUND(l, below); i++)
        if (!is_network(list->at[i])) {
            WRONG(l, below, "%s.%s must be networks such as 10.0.0.0/8 or ::1/128, or unix", l->r->path, below);
            return;
        }
}

/* http://HOST:PORT, https://HOST:PORT, unix:/PATH */
static bool is_origin(struct semel_str url)
{
    if (semel__begins_with(url, "unix:/"))
        return url.n > 6;
    const size_t n = semel__begins_with(url, "http://") ? 7 : semel__begins_with(url, "https://") ? 8 : 0;
    if (n == 0 || url.n == n)
        return false;
    for (size_t i = n; i < url.n; i++)
        if (strchr("/?#@ ", url.p[i]) != NULL && !(url.p[i] == '/' && i + 1 == url.n && i > n))
            return false;
    return true;
}

/* ---- a rule -------------------------------------------------------------------------------------- */

/* Methods, a blank, a path. */
static bool is_match(struct semel_str match)
{
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", NULL};
    const char *blank = memchr(match.p, ' ', match.n);
    const size_t n = blank != NULL ? (size_t)(blank - match.p) : 0;
    size_t from = 0;
    if (n == 0 || n + 1 >= match.n || match.p[n + 1] != '/')
        return false;
    for (size_t i = n + 1; i < match.n; i++)
        if (strchr(" ?#%\\", match.p[i]) != NULL || (match.p[i] == '/' && match.p[i - 1] == '/'))
            return false;
    if (n == 1 && match.p[0] == '*')
        return true;
    while (from < n) {
        const char *bar = memchr(match.p + from, '|', n - from);
        const size_t end = bar != NULL ? (size_t)(bar - match.p) : n;
        size_t i = 0;
        while (methods[i] != NULL && !semel__str_eqz((struct semel_str){match.p + from, end - from}, methods[i]))
            i++;
        if (methods[i] == NULL)
            return false;
        from = end + 1;
    }
    return match.p[n - 1] != '|';
}

/* "404" or "500-599", and completed, released or unknown. */
static bool read_outcome(const struct semel_pair *pair, struct semel_key_rule *ret)
{
    static const char *const ends[] = {[SEMEL_KEY_END_COMPLETED] = "completed",
                                       [SEMEL_KEY_END_RELEASED] = "released",
                                       [SEMEL_KEY_END_UNKNOWN] = "unknown"};
    int64_t low = 0, high = 0;
    const char *dash = pair->name.n > 0 ? memchr(pair->name.p, '-', pair->name.n) : NULL;
    const size_t n = dash != NULL ? (size_t)(dash - pair->name.p) : pair->name.n;
    if (!semel__str_int64((struct semel_str){pair->name.p, n}, &low))
        return false;
    high = low;
    if (dash != NULL && !semel__str_int64((struct semel_str){dash + 1, pair->name.n - n - 1}, &high))
        return false;
    for (unsigned end = SEMEL_KEY_END_COMPLETED; end <= SEMEL_KEY_END_UNKNOWN; end++)
        if (semel__str_eqz(pair->value, ends[end])) {
            *ret = (struct semel_key_rule){(int)low, (int)high, (enum semel_key_end)end};
            return low >= 200 && high <= 599 && low <= high;
        }
    return false;
}

static void read_outcomes(const struct subject *l, struct semel_conf_guard *guard)
{
    const struct semel_setting_pairs *said = &guard->outcomes_said;
    struct semel_key_rule *rules = semel__arena_alloc(&l->r->owned->arena, said->n + 1, sizeof(*rules));
    l->r->failed |= rules == NULL;
    for (size_t i = 0; i < said->n && rules != NULL; i++)
        if (!read_outcome(&said->at[i], &rules[i])) {
            WRONG(l, "outcomes",
                  "%s.outcomes must be statuses of 200 to 599, such as 404 or \"500-599\", each completed, released or "
                  "unknown",
                  l->r->path);
            return;
        }
    guard->outcomes = rules;
    guard->n_outcomes = said->n;
}

static void check_unknown(const struct subject *l, struct semel_conf_guard *guard)
{
    const int64_t timeout_us = l->gateway->upstream.timeout_us;
    const bool asks = guard->on_unknown == SEMEL_ON_UNKNOWN_RECONCILE, url = semel__str_given(guard->reconcile);
    const bool sure = SOUND(l, "on_unknown", "reconcile");
    if (sure && asks && !url)
        WRONG(l, "on_unknown", "%s.on_unknown is reconcile, and there is no URL to ask; give `reconcile` too",
              l->r->path);
    if (sure && !asks && url)
        WRONG(l, "reconcile", "%s.reconcile is asked with `on_unknown: reconcile` only; set that, or leave it out",
              l->r->path);
    if (url && SOUND(l, "reconcile") && SOUND_WHOLE(l, "upstream.plain") && semel__conf_exposed(guard->reconcile) &&
        !l->gateway->upstream.plain)
        WRONG(l, "reconcile", "%s.reconcile calls another host without TLS; use https:, or set upstream.plain: true",
              l->r->path);
    const struct semel_conf_caller *caller = &l->gateway->caller;
    const bool named = semel__str_given(caller->header) || caller->certificate;
    if (url && SOUND(l, "reconcile", "key_scope") && SOUND_WHOLE(l, "caller") &&
        strstr(guard->reconcile.p, "{caller}") != NULL && (!named || guard->key_scope == SEMEL_CONF_SCOPE_ENDPOINT))
        WRONG(l, "reconcile",
              "%s.reconcile has {caller}, and the server cannot know it: only a caller by header or certificate has a "
              "name, and only with `key_scope: caller`",
              l->r->path);
    if (!SOUND(l, "settle", "on_unknown"))
        return;
    if (!asks && guard->settle_us > 0)
        WRONG(l, "settle", "%s.settle is for `on_unknown: reconcile`; leave it out", l->r->path);
    else if (guard->settle_us > 0 && guard->settle_us < 2 * timeout_us && SOUND_WHOLE(l, "upstream.timeout"))
        WRONG(l, "settle",
              "%s.settle is below twice upstream.timeout: the first call may still be running when `not_done` is "
              "believed, and then both are done",
              l->r->path);
}

static void check_guard(const struct subject *l, struct semel_conf_guard *guard)
{
    const char *path = l->r->path;
    const int64_t timeout_us = l->gateway->upstream.timeout_us;
    if (semel__str_given(guard->match) && SOUND(l, "match") && !is_match(guard->match))
        WRONG(l, "match",
              "%s.match must be methods and a path: POST /v1/charges, PUT|DELETE /v1/{id}, * /v1/{rest*}; no escapes",
              path);
    check_token(l, "key_header", guard->key_header);
    check_pointer(l, "key_pointer", guard->key_pointer);
    if (given(l, "key_header") && given(l, "key_pointer"))
        WRONG(l, "key_pointer", "%s has both key_header and key_pointer; the key is at one place", path);
    for (size_t i = 0; i < guard->ignore.n; i++)
        check_pointer(l, "ignore", guard->ignore.at[i]);
    for (size_t i = 0; i < guard->headers.n; i++)
        check_token(l, "headers", guard->headers.at[i]);
    if (!SOUND(l, "wait") || !SOUND_WHOLE(l, "upstream.timeout"))
        guard->wait_us = 0;
    else if (guard->wait_us > timeout_us && given(l, "wait"))
        WRONG(l, "wait", "%s.wait is longer than upstream.timeout; nothing comes after that", path);
    else if (guard->wait_us > timeout_us)
        guard->wait_us = timeout_us;
    if (guard->keep_us < guard->answer_us && SOUND(l, "keep", "answer"))
        WRONG(l, "keep", "%s.keep is below answer; a key outlives its answer", path);
    if ((guard->held_max < guard->body_max || guard->held_max < guard->answer_max) &&
        SOUND(l, "held_max", "body_max", "answer_max"))
        WRONG(l, "held_max", "%s.held_max has no room for one body and one answer", path);
    check_unknown(l, guard);
    if (SOUND(l, "outcomes"))
        read_outcomes(l, guard);
}

/* ---- a gateway ----------------------------------------------------------------------------------- */

static void check_caller(const struct subject *l)
{
    const struct semel_conf_caller *c = &l->gateway->caller;
    const char *path = l->r->path;
    const bool header = semel__str_given(c->header);
    const int ways = (header ? 1 : 0) + (semel__str_given(c->api_key) ? 1 : 0) + (c->certificate ? 1 : 0);
    check_token(l, "caller.header", c->header);
    check_token(l, "caller.api_key", c->api_key);
    check_networks(l, "caller.trusted_from", &c->trusted_from);
    if (ways > 1 && SOUND(l, "caller"))
        WRONG(l, "caller", "%s.caller must have one of header, api_key and certificate", path);
    if (header && c->trusted_from.n == 0 && SOUND(l, "caller.header", "caller.trusted_from"))
        WRONG(
            l, "caller.header",
            "%s.caller.header is believed from everybody: whoever sends it gets the answers of others; name the proxy "
            "that sets it in caller.trusted_from",
            path);
    if (!header && c->trusted_from.n > 0 && SOUND(l, "caller.header", "caller.trusted_from"))
        WRONG(l, "caller.trusted_from", "%s.caller.trusted_from is for caller.header; leave it out", path);
    if (c->certificate && l->gateway->server.tls.client_ca_file == NULL && SOUND(l, "caller.certificate", "tls"))
        WRONG(l, "caller.certificate", "%s.caller.certificate needs tls.client_ca_file: who may sign for clients",
              path);
    if (semel__str_given(c->check) && SOUND(l, "caller.check", "upstream.plain") && semel__conf_exposed(c->check) &&
        !l->gateway->upstream.plain)
        WRONG(l, "caller.check",
              "%s.caller.check calls another host without TLS; use https:, or set upstream.plain: true", path);
}

/* Without a caller the keys of all clients are one heap (P46): each rule has to say that this is meant. */
static void check_anonymous(const struct subject *l)
{
    const struct semel_conf_gateway *g = l->gateway;
    const struct semel_conf_caller *c = &g->caller;
    if (semel__str_given(c->header) || semel__str_given(c->api_key) || c->certificate || !SOUND(l, "caller"))
        return;
    const struct conf_node *list = semel__conf_find(l->node, "guard");
    if (list == l->node ? !SOUND(l, "guard") : list->shape != CONF_LIST || list->first == NULL)
        return;
    for (const struct conf_node *rule = list != l->node ? list->first : NULL; rule != NULL; rule = rule->next)
        if (rule->bad || !semel__conf_sound(rule, "key") || !semel__conf_sound(rule, "anonymous"))
            return;
    size_t said = 0, guarded = 0;
    for (size_t i = 0; i < g->n_guard; i++) {
        guarded += g->guard[i].key != SEMEL_CONF_KEY_OFF;
        said += g->guard[i].key != SEMEL_CONF_KEY_OFF && g->guard[i].anonymous;
    }
    if (said < guarded || guarded == 0)
        WRONG(l, "caller",
              "%s has no caller: a client could get another's answer by its key; set caller (header, api_key or "
              "certificate), or `anonymous: true` in each rule of guard where that is meant",
              l->r->path);
}

static void check_address(const struct subject *l, size_t i)
{
    struct conf_reader *r = l->r;
    const struct semel_conf *conf = &r->owned->conf;
    const struct semel_setting_server *server = &l->gateway->server;
    char other[128];
    if (!SOUND(l, "listen") || !given(l, "listen"))
        return;
    if (!server->address.local && !server->tls.on && !server->plain && SOUND(l, "tls", "plain"))
        WRONG(l, "listen",
              "%s.listen is an address that others can reach; it must have tls, or be loopback or a unix socket; "
              "`plain: true` where a proxy terminates TLS",
              r->path);
    if (l->gateway->threads > 1 && SOUND(l, "threads") &&
        (semel__begins_with(server->address.text, "unix:") ||
         (server->address.where.n > 2 && memcmp(server->address.where.p + server->address.where.n - 2, ":0", 2) == 0)))
        WRONG(l, "threads", "%s.threads is above 1: its loops share a port, so listen must name one", r->path);
    const char *where = semel__conf_listens(r, server, other, sizeof(other));
    if (where == NULL && conf->admin.on && semel__str_eq(conf->admin.server.address.where, server->address.where))
        where = "admin.listen";
    for (size_t k = 0; k < i && where == NULL; k++)
        if (r->gateways[k] != NULL && semel__conf_sound(r->gateways[k], "listen") &&
            semel__str_eq(conf->gateways[k].server.address.where, server->address.where)) {
            snprintf(other, sizeof(other), "gateways.%.*s.listen", (int)conf->gateways[k].name.n,
                     conf->gateways[k].name.p);
            where = other;
        }
    if (where != NULL)
        WRONG(l, "listen", "%s.listen is the address of %s; give it one of its own", r->path, where);
}

static void check_gateway(const struct subject *l)
{
    struct semel_conf_gateway *g = l->gateway;
    const struct semel_conf_upstream *up = &g->upstream;
    const char *path = l->r->path;
    const bool url = semel__str_given(up->url) && SOUND(l, "upstream.url");
    if (url && !is_origin(up->url))
        WRONG(l, "upstream.url",
              "%s.upstream.url must be http://HOST:PORT, https://HOST:PORT or unix:/PATH, without a path", path);
    else if (url && semel__conf_exposed(up->url) && !up->plain && SOUND(l, "upstream.plain"))
        WRONG(l, "upstream.url", "%s.upstream.url is another host without TLS; use https:, or set upstream.plain: true",
              path);
    if (g->lease_us <= up->timeout_us + up->connect_us && SOUND(l, "lease", "upstream.timeout", "upstream.connect"))
        WRONG(l, "lease",
              "%s.lease must be longer than upstream.timeout and upstream.connect together: it must outlast a call",
              path);
    check_caller(l);
    check_anonymous(l);
    check_networks(l, "trusted", &g->trusted);
    g->guarantee = up->finishes ? SEMEL_GUARANTEE_ATOMIC : SEMEL_GUARANTEE_GUARDED;
}

void semel__conf_gateways(struct conf_reader *r)
{
    struct semel_conf *conf = &r->owned->conf;
    for (size_t i = 0; i < conf->n_gateways && r->gateways != NULL && !r->failed; i++) {
        struct subject l = {r, &conf->gateways[i], r->gateways[i], r->gateways[i]};
        char name[101];
        if (l.node == NULL)
            continue;
        semel__str_show(name, sizeof(name), l.gateway->name);
        const int n = snprintf(r->path, sizeof(r->path), "gateways.%s", name);
        check_gateway(&l);
        check_address(&l, i);
        const struct conf_node *list = semel__conf_find(l.node, "guard");
        l.node = list->first;
        for (size_t k = 0; k < l.gateway->n_guard && l.node != NULL; k++, l.node = l.node->next) {
            snprintf(r->path + n, sizeof(r->path) - (size_t)n, ".guard[%zu]", k);
            if (!l.node->bad)
                check_guard(&l, &l.gateway->guard[k]);
        }
        r->path[0] = '\0';
    }
}
