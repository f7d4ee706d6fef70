/* SPDX-License-Identifier: MIT
 *
 * gateway.c: the gateway of gateway.h: what may pass, what is passed on, and the two halves of a request.
 *
 * Invariants: a relay lives from the handler's call until both its halves, the client's exchange and the upstream's
 * call, have ended; each half stops reading while the other's buffer is full; a header line that goes to either side
 * was checked by the gate of the side that it came from, so it contains no line break.
 */
#include "gateway/gateway.h"

#include "base/error.h"
#include "base/mem.h"
#include "gateway/guard.h"
#include "gateway/refusal.h"

#define LINES_MAX ((size_t)128 << 10)

struct semel_gateway {
    struct semel_http_listener *listener;
    struct semel_upstream *upstream;
    struct semel_http_route route;
    struct semel_networks trusted;
    struct semel_guards *guards; /* NULL: nothing is guarded */
    struct semel_gateway_counts counts;
};

/* One request on its way. */
struct relay {
    struct semel_party party;
    struct semel_gateway *gateway;
    struct semel_http_exchange *x;    /* NULL: the client's half has ended */
    struct semel_upstream_call *call; /* NULL: the upstream's half has ended */
    bool begun;                       /* the head of the answer was sent */
};

/* ==== headers ==================================================================================== */

static bool is_forwarded(struct semel_str name)
{
    return semel__begins_with(name, "x-forwarded-") || semel__same_word(name, "forwarded") ||
           semel__same_word(name, "x-real-ip");
}

/* Never goes upstream. */
static bool is_dropped(struct semel_str name)
{
    static const char *const names[] = {"x-original-url", "x-rewrite-url", "expect", NULL};
    return semel__head_hop_by_hop(name) || semel__head_ours(name) || semel__head_is_one_of(name, names) ||
           memchr(name.p, '_', name.n) != NULL;
}

/* Is a header of the request against the rules? 0, 400 or 501. */
static int headers_fault(const struct semel_http_request *req, const char **ret_why)
{
    static const char *const overrides[] = {"x-http-method-override", "x-http-method", "x-method-override", NULL};
    for (size_t i = 0; i < req->n_headers; i++) {
        struct semel_str name = req->headers[i].name;
        *ret_why = "Upgrade is not supported";
        if (semel__same_word(name, "upgrade"))
            return 501;
        *ret_why = "a header must not change the method";
        if (semel__head_is_one_of(name, overrides))
            return 400;
        *ret_why = "Connection must not name a header that is for the server behind us";
        if (!semel__head_hop_by_hop(name) && semel__head_in_connection(req->headers, req->n_headers, name))
            return 400;
    }
    return 0;
}

/* ==== the request ================================================================================ */

/* The peer's own are there already if it is trusted, but for X-Forwarded-For: all its lines are one list, and the last
 * one may be the peer's own behind a client's (RFC 9110, 5.3; HAProxy adds a line). */
static void put_forwarded(struct semel_buf *lines, const struct semel_http_request *req, const char *peer, bool trusted)
{
    semel__buf_addz(lines, "X-Forwarded-For: ");
    for (size_t i = 0; trusted && i < req->n_headers; i++) {
        struct semel_str before = req->headers[i].value;
        if (before.n == 0 || !semel__same_word(req->headers[i].name, "x-forwarded-for"))
            continue;
        semel__buf_add(lines, before.p, before.n);
        semel__buf_addz(lines, ", ");
    }
    semel__buf_addz(lines, peer);
    semel__buf_addz(lines, "\r\n");
    if (!trusted || semel__http_header(req, "x-forwarded-proto").p == NULL)
        semel__head_put(lines, SEMEL_STR("X-Forwarded-Proto"), req->secure ? SEMEL_STR("https") : SEMEL_STR("http"));
    if (!trusted || semel__http_header(req, "x-forwarded-host").p == NULL)
        semel__head_put(lines, SEMEL_STR("X-Forwarded-Host"), semel__http_header(req, "host"));
}

/* rule: by which it is guarded; NULL: it is not. */
static void put_request_lines(const struct semel_gateway *gateway, struct semel_buf *lines,
                              const struct semel_http_request *req, const struct semel_guard_rule *rule)
{
    char address[SEMEL_PEER_TEXT];
    bool trusted = semel__networks_have(&gateway->trusted, req->remote, address);
    const struct semel_guard_rules *rules = gateway->guards != NULL ? semel__guards_rules(gateway->guards) : NULL;
    const struct semel_guard_peer peer = {req->remote, req->subject};
    for (size_t i = 0; i < req->n_headers; i++) {
        struct semel_str name = req->headers[i].name;
        bool replaced = is_forwarded(name) && (!trusted || semel__same_word(name, "x-forwarded-for"));
        if (rule != NULL)
            replaced = replaced || semel__same_word(name, "accept-encoding") ||
                       (rule->set.key_pointer != NULL && semel__same_word(name, "idempotency-key"));
        if (!is_dropped(name) && !replaced && (rules == NULL || semel__rules_believe(rules, &peer, name)))
            semel__head_put(lines, name, req->headers[i].value);
    }
    put_forwarded(lines, req, address, trusted);
    semel__buf_addz(lines, "Via: 1.1 semel\r\n");
}

/* ==== the two halves ============================================================================= */

static void relay_free(struct relay *relay)
{
    if (relay->x == NULL && relay->call == NULL)
        semel__free(relay);
}

/* The client's half has ended, by itself or by us. */
static void client_ended(struct relay *relay, bool left)
{
    relay->x = NULL;
    if (left)
        atomic_fetch_add_explicit(&relay->gateway->counts.left, 1, memory_order_relaxed);
    if (relay->call != NULL)
        semel__upstream_cancel(relay->call);
    relay->call = NULL;
    relay_free(relay);
}

static void on_request_body(struct semel_http_exchange *x, struct semel_str piece)
{
    struct relay *relay = semel__http_kept(x);
    if (relay->call != NULL && !semel__upstream_send(relay->call, piece))
        semel__http_pull(x, false);
}

static void on_request_whole(struct semel_http_exchange *x)
{
    struct relay *relay = semel__http_kept(x);
    if (relay->call != NULL)
        semel__upstream_finish(relay->call);
}

static void on_client_drained(struct semel_http_exchange *x)
{
    struct relay *relay = semel__http_kept(x);
    if (relay->call != NULL)
        semel__upstream_pull(relay->call, true);
}

static void on_hung_up(struct semel_http_exchange *x)
{
    struct relay *relay = semel__http_kept(x);
    semel__http_cut(x);
    client_ended(relay, true);
}

static void on_gone(struct semel_http_exchange *x)
{
    client_ended(semel__http_kept(x), true);
}

static void on_answer_head(void *ctx, const struct semel_upstream_answer *answer)
{
    struct relay *relay = ctx;
    for (size_t i = 0; i < answer->n_headers; i++) {
        const struct semel_http_pair *pair = &answer->headers[i];
        if (semel__head_answers(answer->headers, answer->n_headers, pair->name))
            semel__http_set_pair(relay->x, pair);
    }
    relay->begun = true;
    semel__http_begin(relay->x, answer->status, answer->length);
}

static void on_answer_body(void *ctx, struct semel_str piece)
{
    struct relay *relay = ctx;
    if (!semel__http_send(relay->x, piece))
        semel__upstream_pull(relay->call, false);
}

static void on_upstream_drained(void *ctx)
{
    struct relay *relay = ctx;
    semel__http_pull(relay->x, true);
}

static void put_cors(const struct semel_gateway *gateway, struct semel_http_exchange *x)
{
    if (gateway->guards != NULL)
        semel__refusal_put_cors(semel__guards_rules(gateway->guards), x,
                                semel__http_header(semel__http_request(x), "origin"));
}

static void refuse_failed(const struct semel_gateway *gateway, struct semel_http_exchange *x,
                          const struct semel_upstream_end *end)
{
    bool late = end->cause == SEMEL_UPSTREAM_CONNECT_TIMEOUT || end->cause == SEMEL_UPSTREAM_SEND_TIMEOUT ||
                end->cause == SEMEL_UPSTREAM_TIMEOUT;
    put_cors(gateway, x);
    semel__http_refuse(x, late ? 504 : 502, "no answer from the server behind the gateway: %s (%s)",
                       semel__upstream_cause_text(end->cause), semel__upstream_cause_name(end->cause));
}

static void on_done(void *ctx, const struct semel_upstream_end *end)
{
    struct relay *relay = ctx;
    struct semel_gateway_counts *counts = &relay->gateway->counts;
    struct semel_http_exchange *x = relay->x;
    relay->x = NULL;
    relay->call = NULL;
    if (end->fate == SEMEL_UPSTREAM_ANSWERED) {
        atomic_fetch_add_explicit(&counts->answered, 1, memory_order_relaxed);
        semel__http_end(x);
    } else {
        atomic_fetch_add_explicit(&counts->failed, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&counts->causes[end->cause], 1, memory_order_relaxed);
        if (relay->begun)
            semel__http_cut(x);
        else
            refuse_failed(relay->gateway, x, end);
    }
    relay_free(relay);
}

static const struct semel_http_stream relay_events = {on_request_body, on_request_whole, on_client_drained, on_hung_up,
                                                      on_gone};
static const struct semel_upstream_events upstream_events = {on_answer_head, on_answer_body, on_upstream_drained,
                                                             on_done};

/* Starts the call. false: no memory. */
static bool pass_on(struct semel_gateway *gateway, struct semel_http_exchange *x)
{
    const struct semel_http_request *req = semel__http_request(x);
    struct relay *relay = semel__calloc(1, sizeof(*relay));
    struct semel_buf lines;
    semel__buf_init(&lines, LINES_MAX);
    put_request_lines(gateway, &lines, req, NULL);
    struct semel_upstream_request request = {.method = req->method,
                                             .target = req->target,
                                             .lines = semel__buf_str(&lines),
                                             .length = req->length};
    bool started = relay != NULL && !lines.failed;
    if (started) {
        *relay = (struct relay){.party = {&relay_events}, .gateway = gateway, .x = x};
        started = semel__upstream_start(gateway->upstream, &request, &upstream_events, relay, &relay->call, NULL) ==
                  SEMEL_OK;
    }
    semel__buf_done(&lines);
    if (!started) {
        semel__free(relay);
        return false;
    }
    semel__http_keep(x, relay);
    if (req->length != 0)
        semel__http_pull(x, true);
    return true;
}

static void guard(struct semel_gateway *gateway, struct semel_guard_rule *rule, struct semel_http_exchange *x)
{
    struct semel_buf lines;
    semel__buf_init(&lines, LINES_MAX);
    put_request_lines(gateway, &lines, semel__http_request(x), rule);
    if (lines.failed)
        semel__guard_refuse(gateway->guards, x, "there is no memory for the request");
    else
        semel__guard_start(gateway->guards, rule, x, semel__buf_str(&lines));
    semel__buf_done(&lines);
}

static void handle(void *ctx, struct semel_http_exchange *x)
{
    struct semel_gateway *gateway = ctx;
    const struct semel_http_request *req = semel__http_request(x);
    const char *why = semel__target_fault(req->target);
    int status = why != NULL ? 400 : headers_fault(req, &why);
    if (status != 0) {
        atomic_fetch_add_explicit(&gateway->counts.refused, 1, memory_order_relaxed);
        put_cors(gateway, x);
        semel__http_refuse(x, status, "%s", why);
        return;
    }
    struct semel_guard_rule *rule = gateway->guards != NULL ? semel__guards_rule(gateway->guards, req) : NULL;
    if (rule != NULL) {
        guard(gateway, rule, x);
    } else if (!pass_on(gateway, x)) {
        put_cors(gateway, x);
        semel__http_refuse(x, 503, "there is no memory for the request");
    }
}

/* ---- the exchange is a relay's, or a guard's ---- */

static const struct semel_http_stream *events_of(const struct semel_http_exchange *x)
{
    return ((const struct semel_party *)semel__http_kept(x))->events;
}

static void to_body(struct semel_http_exchange *x, struct semel_str piece)
{
    events_of(x)->body(x, piece);
}

static void to_whole(struct semel_http_exchange *x)
{
    events_of(x)->whole(x);
}

static void to_drained(struct semel_http_exchange *x)
{
    events_of(x)->drained(x);
}

static void to_hung_up(struct semel_http_exchange *x)
{
    events_of(x)->hung_up(x);
}

static void to_gone(struct semel_http_exchange *x)
{
    events_of(x)->gone(x);
}

static const struct semel_http_stream client_events = {to_body, to_whole, to_drained, to_hung_up, to_gone};

/* ==== opening ==================================================================================== */

void semel__gateway_settings_init(struct semel_gateway_settings *settings)
{
    struct semel_http_settings http;
    semel__http_settings_init(&http);
    *settings = (struct semel_gateway_settings){.name = "gateway",
                                                .limits = http.limits,
                                                .key_min = SEMEL_KEY_MIN,
                                                .guarded_max = 10000};
    settings->limits.connections = 4096;
    semel__upstream_settings_init(&settings->upstream);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Each client may have a call, and guarded calls go on when their clients have left: three tenths each, and one for
 * idle links to the upstream. */
void semel__gateway_settings_bound(struct semel_gateway_settings *settings, size_t descriptors)
{
    size_t tenth = descriptors / 10 > 0 ? descriptors / 10 : 1;
    settings->limits.connections = least(settings->limits.connections, 3 * tenth);
    settings->guarded_max = least(settings->guarded_max, 3 * tenth);
    settings->upstream.idle_max = least(settings->upstream.idle_max, tenth);
}

static semel_status open_listener(struct semel_gateway *gateway, struct semel_http *http,
                                  const struct semel_gateway_settings *settings, struct semel_error *err)
{
    struct semel_http_settings listen;
    semel__http_settings_init(&listen);
    gateway->route = (struct semel_http_route){
        .methods = SEMEL_HTTP_BIT(GET) | SEMEL_HTTP_BIT(POST) | SEMEL_HTTP_BIT(PUT) | SEMEL_HTTP_BIT(PATCH) |
                   SEMEL_HTTP_BIT(DELETE) | SEMEL_HTTP_BIT(OPTIONS),
        .path = "/{rest*}",
        .body_max = SIZE_MAX,
        .handle = handle,
        .ctx = gateway,
        .stream = &client_events,
    };
    listen.address = settings->listen;
    listen.plain = settings->plain;
    listen.share_port = settings->share_port;
    listen.cert_file = settings->cert_file;
    listen.key_file = settings->key_file;
    listen.client_ca_file = settings->client_ca_file;
    listen.any_host = true;
    listen.routes = &gateway->route;
    listen.n_routes = 1;
    listen.limits = settings->limits;
    return semel__http_listen(http, &listen, &gateway->listener, err);
}

semel_status semel__gateway_open(struct semel_gateway **ret, struct semel_http *http,
                                 const struct semel_gateway_settings *settings, struct semel_error *err)
{
    struct semel_gateway *gateway = semel__calloc(1, sizeof(*gateway));
    if (gateway == NULL)
        return semel__fail_memory(err);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < settings->n_trusted && status == SEMEL_OK; i++)
        status = semel__networks_add(&gateway->trusted, settings->trusted[i], err);
    if (status == SEMEL_OK)
        status = semel__upstream_new(&gateway->upstream, http, &settings->upstream, err);
    if (status == SEMEL_OK && settings->keeper != NULL)
        status = semel__guards_new(&gateway->guards, http, gateway->upstream, settings, &gateway->counts, err);
    if (status == SEMEL_OK)
        status = open_listener(gateway, http, settings, err);
    *ret = gateway; /* also after a failure: the loop may know its upstream */
    return status;
}

unsigned semel__gateway_port(const struct semel_gateway *gateway)
{
    return semel__http_port(gateway->listener);
}

const struct semel_gateway_counts *semel__gateway_counts(const struct semel_gateway *gateway)
{
    return &gateway->counts;
}

void semel__gateway_close(struct semel_gateway *gateway)
{
    if (gateway == NULL)
        return;
    semel__guards_free(gateway->guards);
    semel__upstream_free(gateway->upstream);
    semel__free(gateway);
}
