/* SPDX-License-Identifier: MIT
 *
 * route.c: what one setting says of another: within a route, and between routes.
 *
 * It also fills in the defaults that depend on other settings (a group is called like its route). It runs when each
 * setting for itself is right, so that every mistake told here is one of its own.
 *
 * Invariants: what would lose messages in silence is refused: two routes that share one queue would each see a part of
 * it. What others can reach is encrypted and asks for a token; a password, or a message for a handler, goes to another
 * host only when its certificate is checked, unless that is asked for.
 */
#include <stdio.h>
#include <strings.h>

#include "conf/private.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

struct look {
    struct conf_reader *r;
    struct semel_route *route;
    const struct conf_node *node;
};

/* At the setting if it is said, else as near as possible. */
#define WRONG(l, below, ...) \
    semel__conf_wrong_at((l)->r, semel__conf_place((l)->r, semel__conf_find((l)->node, (below))), (below), __VA_ARGS__)

static bool copy_joined(struct conf_reader *r, const char *before, struct semel_str s, struct semel_str *ret)
{
    struct semel_buf buf;
    semel__buf_init(&buf, CONF_TEXT_MAX);
    semel__buf_addz(&buf, before);
    semel__buf_add(&buf, s.p, s.n);
    bool ok = !buf.failed && semel__arena_copy(&r->owned->arena, semel__buf_str(&buf), ret);
    semel__buf_done(&buf);
    r->failed |= !ok;
    return ok;
}

/* ---- pieces -------------------------------------------------------------------------------------- */

static bool scheme_is(struct semel_str url, const char *scheme)
{
    size_t n = strlen(scheme);
    return url.n > n && memcmp(url.p, scheme, n) == 0 && url.p[n] == ':';
}

static void check_tls(const struct look *l, const char *below, const struct semel_conf_tls *tls)
{
    bool cert = semel__str_given(tls->cert_file), key = semel__str_given(tls->key_file);
    char path[64];
    snprintf(path, sizeof(path), "%s.%s", below, cert ? "cert_file" : "key_file");
    if (cert != key)
        WRONG(l, path, "%s.%s is said without %s; they go together", l->r->path, path, cert ? "key_file" : "cert_file");
}

/* TLS is said in the URL's scheme; `tls` says how. */
static void check_tls_url(const struct look *l, const char *below, const char *plain, struct semel_str url,
                          struct semel_conf_tls *tls)
{
    const struct conf_node *node = semel__conf_find(l->node, below);
    bool said = semel__str_given(node->key) && semel__str_eqz(node->key, "tls");
    bool clear = scheme_is(url, plain);
    if (said && clear && tls->on)
        WRONG(l, below, "%s.%s is on, but the URL begins with %s:; it must be %ss:", l->r->path, below, plain, plain);
    if (said && !clear && !tls->on)
        WRONG(l, below, "%s.%s is false, but the URL begins with %ss:; one of them is right", l->r->path, below, plain);
    tls->on = !clear;
    check_tls(l, below, tls);
}

static void check_reach(const struct look *l, const char *below, const struct semel_conf_server *server)
{
    char is[96];
    if (server->address.local || server->tls.on || server->plain)
        return;
    semel__conf_show(semel__conf_find(l->node, below), is, sizeof(is));
    WRONG(l, below, "%s%s%s is %s, which others can reach; it must have tls, or be loopback or a unix socket",
          l->r->path, l->r->path[0] != '\0' ? "." : "", below, is);
}

static void check_path(const struct look *l, const char *below, struct semel_str *path)
{
    if (!semel__str_given(*path) && !copy_joined(l->r, "/", l->route->name, path))
        return;
    for (size_t i = 0; i < path->n; i++)
        if (path->p[0] != '/' || strchr(" ?#%{}", path->p[i]) != NULL) {
            WRONG(l, below, "%s.%s must begin with / and have no blank, brace, ?, # or %% in it; say one that does",
                  l->r->path, below);
            return;
        }
}

/* ---- sources ------------------------------------------------------------------------------------- */

static bool topic_ok(struct semel_str topic)
{
    for (size_t i = 0; i < topic.n; i++) {
        char c = topic.p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
              c == '-'))
            return false; /* a ^ would make it a pattern */
    }
    return topic.n > 0 && !semel__str_eqz(topic, ".") && !semel__str_eqz(topic, "..");
}

static void check_kafka(const struct look *l, struct semel_conf_kafka *kafka)
{
    if (!semel__str_given(kafka->group))
        kafka->group = l->route->name;
    if (!semel__conf_hosts_ok(kafka->brokers))
        WRONG(l, "from.kafka", "%s.from.kafka must be HOST:PORT, or several with commas between and no blanks",
              l->r->path);
    for (size_t i = 1; i < kafka->topics.n; i++)
        for (size_t k = 0; k < i; k++)
            if (semel__str_eq(kafka->topics.at[i], kafka->topics.at[k]))
                WRONG(l, "from.topic", "%s.from.topic has a topic twice; once is enough", l->r->path);
    for (size_t i = 0; i < kafka->topics.n; i++)
        if (!topic_ok(kafka->topics.at[i])) {
            WRONG(l, "from.topic",
                  "%s.from.topic: a topic has letters, digits, dots, _ and - in its name and nothing "
                  "else",
                  l->r->path);
            break;
        }
    if (kafka->offsets == SEMEL_CONF_OFFSETS_STORE && l->route->handler.kind != SEMEL_DO_SQL)
        WRONG(l, "from.offsets",
              "%s.from.offsets is store, which goes with the effect's transaction; it needs `do: {sql: ...}`",
              l->r->path);
    if (kafka->tls.on && !kafka->tls.verify)
        WRONG(l, "from.tls.verify",
              "%s.from.tls.verify is false, but Kafka's certificates are always checked; "
              "name their authority in ca_file",
              l->r->path);
    check_tls(l, "from.tls", &kafka->tls);
}

static void check_amqp(const struct look *l, struct semel_conf_amqp *amqp)
{
    if (semel__str_given(amqp->password) && !semel__str_given(amqp->user))
        WRONG(l, "from.password", "%s.from has a password without a user; say user as well", l->r->path);
    check_tls_url(l, "from.tls", "amqp", amqp->url, &amqp->tls);
}

static void check_source(const struct look *l)
{
    struct semel_source *from = &l->route->from;
    switch (from->kind) {
    case SEMEL_SOURCE_KAFKA:
        check_kafka(l, &from->u.kafka);
        break;
    case SEMEL_SOURCE_AMQP:
        check_amqp(l, &from->u.amqp);
        break;
    case SEMEL_SOURCE_SQS:
        from->u.sqs.fifo = from->u.sqs.url.n > 5 && memcmp(from->u.sqs.url.p + from->u.sqs.url.n - 5, ".fifo", 5) == 0;
        check_tls_url(l, "from.tls", "http", from->u.sqs.url, &from->u.sqs.tls);
        break;
    case SEMEL_SOURCE_LISTEN:
        check_path(l, "from.path", &from->u.listen.path);
        if (!semel__str_given(from->u.listen.source))
            from->u.listen.source = l->route->name;
        check_reach(l, "from.listen", &from->u.listen.server);
        break;
    }
}

/* ---- handlers ------------------------------------------------------------------------------------ */

static void check_headers(const struct look *l)
{
    static const char *const secret[] = {"authorization", "proxy-authorization", "cookie", "x-api-key"};
    const struct conf_node *headers = semel__conf_find(l->node, "do.headers");
    if (headers->shape != CONF_MAPPING || !semel__str_eqz(headers->key, "headers"))
        return;
    for (const struct conf_node *each = headers->first; each != NULL; each = each->next)
        for (size_t i = 0; i < CONF_COUNT(secret) && !each->outside; i++)
            if (each->key.n == strlen(secret[i]) && strncasecmp(each->key.p, secret[i], each->key.n) == 0)
                semel__conf_wrong_at(l->r, semel__conf_place(l->r, each), "do.headers",
                                     "%s.do.headers: %s is a secret, which must not stand in the file; write ${NAME} "
                                     "for a variable of the environment",
                                     l->r->path, secret[i]);
}

/* What is not replaced would go to the other side with its braces, which no URL has. */
static void check_braces(const struct look *l, struct semel_str url)
{
    static const char *const names[] = {"{key}", "{id}"};
    for (size_t i = 0; i < url.n; i++) {
        size_t k = 0, n = 1;
        if (url.p[i] != '{' && url.p[i] != '}')
            continue;
        while (k < CONF_COUNT(names) && (n = strlen(names[k]), n > url.n - i || memcmp(url.p + i, names[k], n) != 0))
            k++;
        if (k == CONF_COUNT(names)) {
            WRONG(l, "do.reconcile",
                  "%s.do.reconcile: only {key} and {id} are replaced; write %%7B and %%7D for braces", l->r->path);
            return;
        }
        i += n - 1;
    }
}

/* Up to its path a URL says who is asked; no message says that. */
static void check_reconcile(const struct look *l, struct semel_str url)
{
    size_t host = 0, slashes = 0;
    while (host < url.n && (url.p[host] != '/' || ++slashes < 3) && strchr("?#", url.p[host]) == NULL)
        host++;
    if (host > 0 && memchr(url.p, '{', host) != NULL)
        WRONG(l, "do.reconcile",
              "%s.do.reconcile has {key} or {id} in its host; they can stand in the path and behind it", l->r->path);
    else if (url.n > 0 && memchr(url.p, '#', url.n) != NULL)
        WRONG(
            l, "do.reconcile",
            "%s.do.reconcile has a # in it, and what stands behind that is not sent: every message would be asked for "
            "at one URL; leave it out, or write %%23",
            l->r->path);
    else
        check_braces(l, url);
}

static void check_transient(const struct look *l, const struct semel_conf_http *http)
{
    for (size_t i = 0; i < http->transient.n; i++) {
        int64_t status;
        if (!semel__str_int64(http->transient.at[i], &status) || status < 500 || status > 599) {
            WRONG(l, "do.transient", "%s.do.transient: statuses of 500 to 599 are listed there, such as [503]",
                  l->r->path);
            return;
        }
    }
    if (http->transient.n > 0 && http->idempotent)
        WRONG(l, "do.transient",
              "%s.do.transient is said, but with `idempotent: true` every 5xx is repeated; leave one of them out",
              l->r->path);
}

/* A fake server would get the messages, and its answers would be believed. */
static void check_plain(const struct look *l, const char *below, struct semel_str url)
{
    if (!semel__str_given(url) || !scheme_is(url, "http") || semel__conf_url_local(url))
        return;
    WRONG(l, below,
          "%s.%s calls another host without TLS; it must begin with https:, or do.plain must be true if that is meant",
          l->r->path, below);
}

static void check_http(const struct look *l, struct semel_conf_http *http)
{
    check_headers(l);
    check_reconcile(l, http->reconcile);
    check_transient(l, http);
    check_tls_url(l, "do.tls", "http", http->url, &http->tls);
    if (!http->plain) {
        check_plain(l, "do.http", http->url);
        check_plain(l, "do.reconcile", http->reconcile);
    }
}

static void check_handler(const struct look *l)
{
    struct semel_do *handler = &l->route->handler;
    switch (handler->kind) {
    case SEMEL_DO_SQL:
        if (handler->u.sql.set && l->r->owned->conf.store_kind == SEMEL_CONF_STORE_SQLITE)
            WRONG(l, "do.set", "%s.do.set needs PostgreSQL, and the store is SQLite; leave it out", l->r->path);
#ifdef SEMEL_CONF_STATEMENT
        else
            semel__conf_statement(l->r, l->route, l->node);
#endif
        return;
    case SEMEL_DO_HTTP:
        check_http(l, &handler->u.http);
        break;
    case SEMEL_DO_EXEC:
        break;
    case SEMEL_DO_PULL:
        check_path(l, "do.path", &handler->u.pull.path);
        check_reach(l, "do.pull", &handler->u.pull.server);
        break;
    }
    if (l->route->values.n > 0)
        WRONG(l, "values", "%s.values are for a statement, and `do` has none; leave them out", l->r->path);
}

/* ---- the route ----------------------------------------------------------------------------------- */

static void check_rules(const struct look *l)
{
    const struct semel_rules *rules = &l->route->rules;
    bool positions = l->route->from.kind == SEMEL_SOURCE_KAFKA;
    if (rules->version.kind != SEMEL_RULE_DEFAULT && rules->order.kind == SEMEL_RULE_DEFAULT)
        WRONG(l, "version", "%s.version orders the messages of a key, and there is no `order` that says which key",
              l->r->path);
    if (rules->id.kind == SEMEL_RULE_POSITION && !positions)
        WRONG(l, "id", "%s.id is position, which only Kafka gives; say where the id is, or digest", l->r->path);
}

static void check_breaker(const struct look *l)
{
    const struct semel_conf_breaker *breaker = &l->route->breaker;
    if (breaker->ceiling_us < breaker->first_us)
        WRONG(l, "breaker.ceiling", "%s.breaker.ceiling is below breaker.first; it must be at least as long",
              l->r->path);
}

void semel__conf_route(struct conf_reader *r, struct semel_route *route, const struct conf_node *node)
{
    const struct look l = {r, route, node};
    route->rules.timed = route->policy.timed_ids == SEMEL_TIMED_ALL;
    check_source(&l);
    check_handler(&l);
    check_rules(&l);
    check_breaker(&l);
    if (!r->failed)
        semel__conf_promise(r, route, node);
}

/* ---- between routes ------------------------------------------------------------------------------ */

static bool lists_meet(const struct semel_conf_list *a, const struct semel_conf_list *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            if (semel__str_eq(a->at[i], b->at[k]))
                return true;
    return false;
}

/* Would both read from one queue, so that each gets a part of it? */
static bool sources_meet(const struct semel_source *a, const struct semel_source *b)
{
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case SEMEL_SOURCE_KAFKA:
        return semel__str_eq(a->u.kafka.group, b->u.kafka.group) &&
               semel__str_eq(a->u.kafka.brokers, b->u.kafka.brokers) &&
               lists_meet(&a->u.kafka.topics, &b->u.kafka.topics);
    case SEMEL_SOURCE_AMQP:
        return semel__str_eq(a->u.amqp.url, b->u.amqp.url) && semel__str_eq(a->u.amqp.queue, b->u.amqp.queue);
    case SEMEL_SOURCE_SQS:
        return semel__str_eq(a->u.sqs.url, b->u.sqs.url);
    case SEMEL_SOURCE_LISTEN:
        return false; /* the paths are compared below */
    }
    return false;
}

/* Where a route listens. One for `pull` has its four calls below the path, and nothing at the path itself. */
struct door {
    const char *below;
    const struct semel_conf_server *server;
    struct semel_str path;
    bool pull;
};

static size_t doors_of(const struct semel_route *route, struct door out[2])
{
    size_t n = 0;
    if (route->from.kind == SEMEL_SOURCE_LISTEN)
        out[n++] = (struct door){"from.listen", &route->from.u.listen.server, route->from.u.listen.path, false};
    if (route->handler.kind == SEMEL_DO_PULL)
        out[n++] = (struct door){"do.pull", &route->handler.u.pull.server, route->handler.u.pull.path, true};
    return n;
}

static bool same_address(const struct semel_conf_server *a, const struct semel_conf_server *b)
{
    return semel__str_eq(a->address.where, b->address.where);
}

static bool same_hosts(const struct semel_conf_list *a, const struct semel_conf_list *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = semel__str_eq(a->at[i], b->at[i]);
    return same;
}

static bool same_server(const struct semel_conf_server *a, const struct semel_conf_server *b)
{
    return a->plain == b->plain && a->tls.on == b->tls.on && same_hosts(&a->hosts, &b->hosts) &&
           semel__str_eq(a->tls.cert_file, b->tls.cert_file) && semel__str_eq(a->tls.key_file, b->tls.key_file) &&
           semel__str_eq(a->tls.client_ca_file, b->tls.client_ca_file);
}

/* Is `path` that of a call of this one? */
static bool is_call(const struct door *door, struct semel_str path)
{
    static const char *const calls[] = {"/take", "/renew", "/settle", "/release"};
    size_t n = door->path.n;
    if (!door->pull || path.n <= n || memcmp(path.p, door->path.p, n) != 0)
        return false;
    for (size_t i = 0; i < CONF_COUNT(calls); i++)
        if (semel__str_eqz((struct semel_str){path.p + n, path.n - n}, calls[i]))
            return true;
    return false;
}

static void compare_doors(const struct look *l, const struct door *a, const struct door *b, const char *other)
{
    if (!same_address(a->server, b->server))
        return;
    if ((!a->pull && is_call(b, a->path)) || (!b->pull && is_call(a, b->path)))
        WRONG(l, a->below,
              "%s.%s and %s.%s share an address, and the path of one is a call of the other, which pulls; "
              "give one of them another path",
              l->r->path, a->below, other, b->below);
    else if (a->pull == b->pull && semel__str_eq(a->path, b->path))
        WRONG(l, a->below, "%s.%s has the address and the path of %s.%s; give one of them another path", l->r->path,
              a->below, other, b->below);
    else if (!same_server(a->server, b->server))
        WRONG(l, a->below, "%s.%s has the address of %s.%s, but not its tls, plain and hosts; they must be the same",
              l->r->path, a->below, other, b->below);
}

/* What comes in and what is pulled, of one route. */
static void compare_own(const struct look *l)
{
    struct door ours[2];
    if (doors_of(l->route, ours) == 2)
        compare_doors(l, &ours[1], &ours[0], l->r->path);
}

static void compare(const struct look *l, const struct semel_route *before)
{
    struct door ours[2], theirs[2];
    char other[128];
    size_t n = doors_of(l->route, ours), m = doors_of(before, theirs);
    int length = snprintf(other, sizeof(other), "routes.");
    semel__str_show(other + length, sizeof(other) - (size_t)length, before->name);
    if (sources_meet(&l->route->from, &before->from))
        WRONG(l, "from", "%s reads from the same queue as %s: each would get only a part of the messages; %s",
              l->r->path, other,
              l->route->from.kind == SEMEL_SOURCE_KAFKA ? "give it a group of its own" : "give it a queue of its own");
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < m; k++)
            compare_doors(l, &ours[i], &theirs[k], other);
}

static void check_admin(struct conf_reader *r, const struct semel_route *route)
{
    const struct semel_conf_admin *admin = &r->owned->conf.admin;
    struct door doors[2];
    char name[101];
    size_t n = admin->on ? doors_of(route, doors) : 0;
    semel__str_show(name, sizeof(name), route->name);
    size_t i = 0;
    while (i < n && !same_address(doors[i].server, &admin->server))
        i++;
    if (i < n)
        semel__conf_wrong_at(r, semel__conf_place(r, semel__conf_find(r->tree, "admin.listen")), "admin.listen",
                             "admin.listen is the address of routes.%s.%s; give it one of its own", name,
                             doors[i].below);
}

static void check_store(const struct look *top)
{
#ifdef SEMEL_WITH_POSTGRES
    const struct semel_conf *conf = &top->r->owned->conf;
    if (conf->store_kind != SEMEL_CONF_STORE_POSTGRES || conf->store_plain || !semel__pg_exposed(conf->store.p))
        return;
    WRONG(top, "store",
          "store is on another host, and its certificate would not be checked: a fake server could take the password; "
          "add sslmode=verify-full to the URL, or say store_plain: true if that is meant");
#else
    (void)top;
#endif
}

void semel__conf_between(struct conf_reader *r)
{
    struct semel_conf *conf = &r->owned->conf;
    const struct look top = {r, NULL, r->tree};
    if (semel__str_given(conf->store))
        check_store(&top);
    if (conf->admin.on && semel__str_given(conf->admin.server.address.text))
        check_reach(&top, "admin.listen", &conf->admin.server);
    for (size_t i = 0; i < conf->n_routes && r->routes != NULL && !r->failed; i++) {
        const struct look l = {r, &conf->routes[i], r->routes[i]};
        char name[101];
        if (l.node == NULL)
            continue;
        semel__str_show(name, sizeof(name), l.route->name);
        snprintf(r->path, sizeof(r->path), "routes.%s", name);
        compare_own(&l);
        for (size_t k = 0; k < i; k++)
            if (r->routes[k] != NULL)
                compare(&l, &conf->routes[k]);
        r->path[0] = '\0';
        check_admin(r, l.route);
    }
}
