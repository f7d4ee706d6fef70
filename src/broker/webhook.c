/* SPDX-License-Identifier: MIT
 *
 * webhook.c: HTTP receivers as a sink: options, addresses, signatures, one request per item, what its answer means. See
 * webhook.h.
 *
 * All requests of a call are one curl multi. curl would send a POST again by itself when a connection that it reuses
 * dies before the first byte of the answer (P54). So the body comes from a callback that cannot be rewound, an empty
 * one gets a connection of its own, and the callback before a request refuses to let a second one go.
 *
 * Invariants: an item is in at most one request. No byte of an item gets into a header line unless it is visible ASCII
 * or a blank between. No error text holds the secret, the payload, or what the receiver said. A socket is opened only
 * to an address that was checked.
 */
#include "broker/webhook.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <strings.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/signature.h"
#include "base/wait.h"
#include "net/curl.h"

#define CONCURRENCY 16
#define TIMEOUT_US INT64_C(15000000)
#define CONNECT_MS 10000L
#define IDLE_S 1L /* a connection that was idle for longer is not used again: its server may close it (P94) */
#define ID_MAX 255
#define LINE_MAX_BYTES ((size_t)8192)
#define VALUE_MAX 4096
#define ANSWER_MAX ((size_t)64 << 10) /* of which nothing is kept */
#define URL_MAX_BYTES 2048
#define STEP_MS 100
#define LEAST_US 20000 /* a request that has less time left is not begun: it would be given up as soon as it is sent */

/* ---- addresses ------------------------------------------------------------------------------------------ */

struct network {
    int family;
    unsigned char bytes[16];
    int bits;
};

/* "10.0.0.0/8"; without a length all bits count. */
static bool parse_network(struct semel_str text, struct network *ret)
{
    char address[INET6_ADDRSTRLEN];
    const char *slash = text.n > 0 ? memchr(text.p, '/', text.n) : NULL;
    const size_t n = slash != NULL ? (size_t)(slash - text.p) : text.n;
    int64_t bits = 0;
    int most;

    if (n == 0 || n >= sizeof address)
        return false;
    memcpy(address, text.p, n);
    address[n] = '\0';
    ret->family = strchr(address, ':') != NULL ? AF_INET6 : AF_INET;
    most = ret->family == AF_INET6 ? 128 : 32;
    if (inet_pton(ret->family, address, ret->bytes) != 1)
        return false;
    if (slash != NULL &&
        (!semel__str_int64((struct semel_str){slash + 1, text.n - n - 1}, &bits) || bits < 0 || bits > most))
        return false;
    ret->bits = slash != NULL ? (int)bits : most;
    return true;
}

static bool is_within(const struct network *network, int family, const unsigned char *bytes)
{
    const int whole = network->bits / 8, rest = network->bits % 8;

    return network->family == family && memcmp(network->bytes, bytes, (size_t)whole) == 0 &&
           (rest == 0 || ((network->bytes[whole] ^ bytes[whole]) >> (8 - rest)) == 0);
}

static bool is_within_any(const struct semel_str *networks, size_t n, int family, const unsigned char *bytes)
{
    struct network network;

    for (size_t i = 0; i < n; i++)
        if (parse_network(networks[i], &network) && is_within(&network, family, bytes))
            return true;
    return false;
}

/* Networks that are not public (IANA's registries of special addresses), or that lead to such an address. */
static const struct semel_str special[] = {
    SEMEL_STR("0.0.0.0/8"),      SEMEL_STR("10.0.0.0/8"),     SEMEL_STR("100.64.0.0/10"), SEMEL_STR("127.0.0.0/8"),
    SEMEL_STR("169.254.0.0/16"), SEMEL_STR("172.16.0.0/12"),  SEMEL_STR("192.0.0.0/24"),  SEMEL_STR("192.0.2.0/24"),
    SEMEL_STR("192.88.99.0/24"), SEMEL_STR("192.168.0.0/16"), SEMEL_STR("198.18.0.0/15"), SEMEL_STR("198.51.100.0/24"),
    SEMEL_STR("203.0.113.0/24"), SEMEL_STR("224.0.0.0/3"),    SEMEL_STR("::/96"),         SEMEL_STR("64:ff9b::/96"),
    SEMEL_STR("64:ff9b:1::/48"), SEMEL_STR("100::/64"),       SEMEL_STR("2001::/23"),     SEMEL_STR("2001:db8::/32"),
    SEMEL_STR("2002::/16"),      SEMEL_STR("fc00::/7"),       SEMEL_STR("fe80::/10"),     SEMEL_STR("fec0::/10"),
    SEMEL_STR("ff00::/8"),
};

bool semel__webhook_reaches(const struct sockaddr *address, const struct semel_str *allow, size_t n)
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const unsigned char *bytes;
    int family = address->sa_family;

    if (family == AF_INET) {
        bytes = (const unsigned char *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    } else if (family == AF_INET6) {
        bytes = (const unsigned char *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        if (memcmp(bytes, mapped, sizeof mapped) == 0) { /* it is IPv4's */
            bytes += sizeof mapped;
            family = AF_INET;
        }
    } else {
        return false;
    }
    return is_within_any(allow, n, family, bytes) ||
           !is_within_any(special, sizeof special / sizeof special[0], family, bytes);
}

const char *semel__webhook_network_mistake(struct semel_str network)
{
    struct network parsed;

    return parse_network(network, &parsed) ? NULL : "is no network; one looks like 10.1.0.0/16 or fd00::/8";
}

/* ---- signatures ----------------------------------------------------------------------------------------- */

bool semel__webhook_sign(struct semel_str key, struct semel_str id, int64_t timestamp_s, struct semel_str payload,
                         char out[SEMEL_WEBHOOK_SIGNATURE])
{
    unsigned char digest[SEMEL_HASH_MAX];
    struct semel_buf buf;
    char time[32];
    bool ok;

    snprintf(time, sizeof time, ".%lld.", (long long)timestamp_s);
    const struct semel_str parts[] = {id, semel__str(time), payload};
    if (!semel__hmac(SEMEL_HASH_SHA256, key, parts, sizeof parts / sizeof parts[0], digest))
        return false;
    semel__buf_init(&buf, SEMEL_WEBHOOK_SIGNATURE);
    semel__buf_addz(&buf, "v1,");
    semel__base64_put(&buf, (struct semel_str){(const char *)digest, SEMEL_SHA256});
    ok = semel__buf_add(&buf, "", 1);
    if (ok)
        memcpy(out, buf.p, buf.n);
    semel__buf_done(&buf);
    return ok;
}

/* ---- the handle ----------------------------------------------------------------------------------------- */

struct webhook;

struct call {
    struct webhook *webhook;
    CURL *easy; /* NULL: there is no request */
    struct curl_slist *lines;
    struct semel_publish *item;
    size_t at;
    struct semel_curl_body payload;
    bool begun;                     /* the first byte may have been sent */
    bool headed;                    /* all headers came; curl is content with some when the connection ends */
    bool cut;                       /* by us, for the answer's length */
    size_t answered;                /* bytes of the answer's body */
    char refused[INET6_ADDRSTRLEN]; /* an address that is not allowed */
};

struct webhook {
    struct semel_broker base;
    struct semel_arena arena; /* the options */
    unsigned char key[SEMEL_SIGNATURE_KEY_MAX];
    size_t key_n;
    struct semel_str *allow;
    size_t n_allow, concurrency;
    int64_t timeout_us;
    struct semel_curl_tls tls;
    CURLM *multi;
    struct call calls[SEMEL_WEBHOOK_CONCURRENCY_MAX];
};

static const struct semel_broker_ops webhook_ops;

static struct webhook *self(struct semel_broker *broker)
{
    return (struct webhook *)broker;
}

static semel_status wrong(struct semel_error *err, const char *what, const char *mistake)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "webhook: %s %s", what, mistake);
}

static semel_status configure(struct webhook *webhook, const struct semel_webhook_options *o, struct semel_error *err)
{
    const char *mistake = semel__signature_standard_key(o->secret, webhook->key, &webhook->key_n);

    if (mistake != NULL)
        return wrong(err, "the secret", mistake);
    if (o->tls.no_verify)
        return wrong(err, "tls", "is always verified; name the authority in ca_file");
    for (size_t i = 0; i < o->allow.n; i++)
        if ((mistake = semel__webhook_network_mistake(o->allow.at[i])) != NULL)
            return wrong(err, "an entry of allow", mistake);
    if (o->concurrency < 0 || o->concurrency > SEMEL_WEBHOOK_CONCURRENCY_MAX)
        return wrong(err, "the concurrency", "is not 1 to 64");
    webhook->concurrency = o->concurrency > 0 ? (size_t)o->concurrency : CONCURRENCY;
    webhook->timeout_us = o->timeout_us > 0 ? o->timeout_us : TIMEOUT_US;
    webhook->n_allow = o->allow.n;
    webhook->allow = semel__arena_alloc(&webhook->arena, o->allow.n, sizeof *webhook->allow);
    if (webhook->allow == NULL || !semel__curl_tls_copy(&webhook->tls, &o->tls))
        return semel__fail_memory(err);
    for (size_t i = 0; i < o->allow.n; i++)
        if (!semel__arena_copy(&webhook->arena, o->allow.at[i], &webhook->allow[i]))
            return semel__fail_memory(err);
    return SEMEL_OK;
}

static void webhook_close(struct semel_broker *broker)
{
    struct webhook *webhook = self(broker);

    semel__curl_close(webhook->multi);
    explicit_bzero(webhook->key, sizeof webhook->key);
    semel__curl_tls_done(&webhook->tls);
    semel__arena_done(&webhook->arena);
}

semel_status semel__broker_webhook_open(struct semel_broker **ret, const struct semel_webhook_options *options,
                                        struct semel_error *err)
{
    struct webhook *webhook = semel__calloc(1, sizeof *webhook);
    semel_status status;

    if (webhook == NULL)
        return semel__fail_memory(err);
    webhook->base.ops = &webhook_ops;
    semel__arena_init(&webhook->arena, (size_t)1 << 18);
    status = configure(webhook, options, err);
    if (status == SEMEL_OK) {
        webhook->multi = semel__curl_open(webhook->concurrency);
        if (webhook->multi == NULL)
            status = semel__fail_memory(err);
    }
    if (status == SEMEL_OK) {
        *ret = &webhook->base;
        return SEMEL_OK;
    }
    webhook_close(&webhook->base);
    semel__free(webhook);
    return status;
}

/* Connections are opened by the requests. */
static semel_status webhook_reopen(struct semel_broker *broker, struct semel_error *err)
{
    (void)broker, (void)err;
    return SEMEL_OK;
}

static semel_status no_source(struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "webhook: nothing can be read from it");
}

static semel_status webhook_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                                 struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    (void)broker, (void)max, (void)wait_ms, (void)arena, (void)ret_deliveries, (void)ret_n;
    return no_source(err);
}

static semel_status webhook_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                   struct semel_error *err)
{
    (void)broker, (void)replies, (void)n;
    return no_source(err);
}

/* ---- header lines --------------------------------------------------------------------------------------- */

/* Headers that we write ourselves, and those that belong to the connection. */
static bool is_ours(struct semel_str name)
{
    static const char *const ours[] = {"id",
                                       "message_id",
                                       "Idempotency-Key",
                                       "Content-Type",
                                       "content_type",
                                       "Host",
                                       "Content-Length",
                                       "Transfer-Encoding",
                                       "Connection",
                                       "Keep-Alive",
                                       "TE",
                                       "Trailer",
                                       "Upgrade",
                                       "Expect",
                                       "User-Agent",
                                       "ce_datacontenttype",
                                       "ce-datacontenttype"};

    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (semel__same_word(name, ours[i]))
            return true;
    return semel__begins_with(name, "webhook-") || semel__begins_with(name, "Proxy-");
}

static bool add_line(struct call *call, struct semel_str name, struct semel_str value)
{
    struct curl_slist *lines = NULL;
    struct semel_buf line;

    semel__buf_init(&line, LINE_MAX_BYTES);
    semel__buf_add(&line, name.p, name.n);
    semel__buf_addz(&line, ": ");
    semel__buf_add(&line, value.p, value.n);
    if (semel__buf_add(&line, "", 1))
        lines = curl_slist_append(call->lines, line.p);
    semel__buf_done(&line);
    if (lines == NULL)
        return false;
    call->lines = lines;
    return true;
}

static bool add_content_type(struct call *call)
{
    static const char *const names[] = {"ce_datacontenttype", "ce-datacontenttype", "Content-Type", "content_type"};
    const struct semel_publish *item = call->item;
    struct semel_json *json = NULL;
    semel_status status;

    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        for (size_t i = 0; i < item->n_headers; i++)
            if (semel__same_word(item->headers[i].name, names[k]) &&
                semel__header_value_fits(item->headers[i].value, VALUE_MAX))
                return add_line(call, SEMEL_STR("Content-Type"), item->headers[i].value);
    status = semel__json_parse(&json, item->payload, item->payload.n, NULL);
    semel__json_free(json);
    return status != SEMEL_RETRY &&
           add_line(call, SEMEL_STR("Content-Type"),
                    status == SEMEL_OK ? SEMEL_STR("application/json") : SEMEL_STR("application/octet-stream"));
}

/* The item's own headers. */
static bool add_headers(struct call *call)
{
    const struct semel_publish *item = call->item;
    struct semel_pair pair;

    for (size_t i = 0; i < item->n_headers; i++) {
        char name[101];
        if (!semel__publish_header(item, i, &pair) || !semel__header_name_fits(pair.name, SEMEL_HEADER_NAME_MAX) ||
            is_ours(pair.name) || !semel__header_value_fits(pair.value, VALUE_MAX))
            continue;
        memcpy(name, pair.name.p, pair.name.n);
        if (semel__begins_with(pair.name, "ce_"))
            name[2] = '-';
        if (!add_line(call, (struct semel_str){name, pair.name.n}, pair.value))
            return false;
    }
    return true;
}

static bool add_lines(struct call *call)
{
    const struct semel_publish *item = call->item;
    const int64_t now_s = semel__now(&semel__clock_real) / 1000000;
    const struct semel_str key = {(const char *)call->webhook->key, call->webhook->key_n};
    char signature[SEMEL_WEBHOOK_SIGNATURE], time[32];

    snprintf(time, sizeof time, "%lld", (long long)now_s);
    return semel__webhook_sign(key, item->id, now_s, item->payload, signature) &&
           add_line(call, SEMEL_STR("webhook-id"), item->id) &&
           add_line(call, SEMEL_STR("webhook-timestamp"), semel__str(time)) &&
           add_line(call, SEMEL_STR("webhook-signature"), semel__str(signature)) &&
           add_line(call, SEMEL_STR("Idempotency-Key"), item->id) &&
           add_line(call, SEMEL_STR("Expect"), SEMEL_STR("")) && add_content_type(call) && add_headers(call);
}

/* ---- curl's callbacks ----------------------------------------------------------------------------------- */

/* NOLINTNEXTLINE(readability-non-const-parameter): the type is curl's */
static size_t on_head(char *p, size_t size, size_t n, void *ctx)
{
    struct call *call = ctx;

    if (size * n >= 5 && memcmp(p, "HTTP/", 5) == 0)
        call->headed = false; /* whatever came before was 1xx */
    else if (size * n <= 2)
        call->headed = true;
    return size * n;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the type is curl's */
static size_t on_body(char *p, size_t size, size_t n, void *ctx)
{
    struct call *call = ctx;

    (void)p;
    call->answered += size * n;
    call->cut = call->answered > ANSWER_MAX;
    return call->cut ? 0 : size * n;
}

static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *to)
{
    struct call *call = ctx;
    const struct webhook *webhook = call->webhook;
    const void *bytes = to->family == AF_INET6
                            ? (const void *)&((const struct sockaddr_in6 *)(const void *)&to->addr)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)(const void *)&to->addr)->sin_addr;

    (void)purpose;
    if (!semel__webhook_reaches(&to->addr, webhook->allow, webhook->n_allow)) {
        if (inet_ntop(to->family, bytes, call->refused, sizeof call->refused) == NULL)
            snprintf(call->refused, sizeof call->refused, "of another family");
        return CURL_SOCKET_BAD;
    }
    return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

/* Called when a connection stands and nothing was sent: once. A second time is curl sending it again. */
/* NOLINTNEXTLINE(readability-non-const-parameter): the type is curl's */
static int before_request(void *ctx, char *their_address, char *our_address, int their_port, int our_port)
{
    struct call *call = ctx;

    (void)their_address, (void)our_address, (void)their_port, (void)our_port;
    if (call->begun)
        return CURL_PREREQFUNC_ABORT;
    call->begun = true;
    return CURL_PREREQFUNC_OK;
}

/* ---- one request ---------------------------------------------------------------------------------------- */

#define SET(option, value) (code = code == CURLE_OK ? curl_easy_setopt(call->easy, option, value) : code)

static CURLcode set_rules(struct call *call, long timeout_ms)
{
    CURLcode code = semel__curl_rules(call->easy, &call->webhook->tls, timeout_ms, CONNECT_MS);

    SET(CURLOPT_MAXAGE_CONN, IDLE_S);
    SET(CURLOPT_PRIVATE, call);
    SET(CURLOPT_HTTPHEADER, call->lines);
    SET(CURLOPT_HEADERFUNCTION, on_head);
    SET(CURLOPT_HEADERDATA, call);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, call);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, call);
    SET(CURLOPT_PREREQFUNCTION, before_request);
    SET(CURLOPT_PREREQDATA, call);
    return code;
}

static void forget(struct call *call)
{
    if (call->easy != NULL) {
        (void)curl_multi_remove_handle(call->webhook->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->lines);
    *call = (struct call){.webhook = call->webhook};
}

/* false: no memory, and nothing was begun. */
static bool begin_call(struct call *call, struct semel_publish *item, size_t at, int64_t left_us)
{
    const int64_t wait_us = call->webhook->timeout_us < left_us ? call->webhook->timeout_us : left_us;
    char url[URL_MAX_BYTES + 1];
    bool ok;

    call->item = item;
    call->payload = (struct semel_curl_body){.all = item->payload};
    call->at = at;
    call->easy = curl_easy_init();
    memcpy(url, item->destination.p, item->destination.n);
    url[item->destination.n] = '\0';
    ok = call->easy != NULL && add_lines(call) && set_rules(call, (long)((wait_us + 999) / 1000)) == CURLE_OK &&
         semel__curl_post(call->easy, &call->payload) == CURLE_OK &&
         curl_easy_setopt(call->easy, CURLOPT_URL, url) == CURLE_OK &&
         curl_multi_add_handle(call->webhook->multi, call->easy) == CURLM_OK;
    if (!ok)
        forget(call);
    return ok;
}

/* ---- what an answer means ------------------------------------------------------------------------------- */

static void judge_status(struct semel_publish *item, long http)
{
    static const long refused[] = {400, 413, 415, 422, 431}, later[] = {408, 409, 425};
    semel_status status = SEMEL_RETRY;
    bool down = true;

    if (http >= 200 && http < 300) {
        item->status = SEMEL_OK;
        return;
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (http == refused[i])
            status = SEMEL_INVALID;
    if (http >= 500 || http < 200) {
        status = SEMEL_UNKNOWN;
        down = http >= 502 && http <= 504;
    }
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (http == later[i]) { /* it may be at work on the event */
            status = SEMEL_UNKNOWN;
            down = false;
        }
    semel__publish_end(item, status, down && status != SEMEL_INVALID, "webhook: HTTP %ld%s", http,
                       http >= 300 && http < 400 ? ": redirects are not followed" : "");
}

static void judge(struct call *call, CURLcode code)
{
    struct semel_publish *item = call->item;
    long http = 0;

    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http);
    if (call->begun && call->headed && (code == CURLE_OK || call->cut))
        judge_status(item, http);
    else if (call->begun)
        semel__publish_end(item, SEMEL_UNKNOWN, true, "webhook: %s",
                           code == CURLE_OPERATION_TIMEDOUT ? "no whole answer in time"
                                                            : "the connection broke before the whole answer came");
    else if (call->refused[0] != '\0')
        semel__publish_end(item, SEMEL_RETRY, true,
                           "webhook: its address %s is special and no network of `allow` has it", call->refused);
    else
        semel__publish_end(item, SEMEL_RETRY, code != CURLE_OUT_OF_MEMORY, "webhook: nothing was sent: %s",
                           curl_easy_strerror(code));
}

/* ---- publishing ----------------------------------------------------------------------------------------- */

enum stage { TO_SEND, ON_THE_WAY, ENDED };

struct ticket {
    enum stage stage;
    size_t to; /* the first item of the call with this destination */
    /* Of such an item: */
    size_t n;             /* requests on their way to it */
    const char *down_why; /* of an item that found it down */
};

struct sending {
    struct webhook *webhook;
    struct semel_publish *items;
    struct ticket *tickets;
    size_t n, first;   /* everything before `first` has ended */
    size_t busy, most; /* requests: of all, and at most to one destination */
};

static bool url_is_valid(struct semel_str url)
{
    for (size_t i = 0; i < url.n; i++)
        if ((unsigned char)url.p[i] <= 0x20 || (unsigned char)url.p[i] > 0x7e)
            return false;
    return url.n <= URL_MAX_BYTES && (semel__setting_scheme(url, "http") || semel__setting_scheme(url, "https"));
}

/* What can never be sent, and which items go to the same place. */
static void look_at_items(struct sending *s)
{
    size_t n_destinations = 0;

    for (size_t i = 0; i < s->n; i++) {
        const struct semel_publish *item = &s->items[i];
        size_t to = 0;
        if (!semel__header_value_fits(item->id, ID_MAX) || !url_is_valid(item->destination)) {
            semel__publish_end(&s->items[i], SEMEL_INVALID, false, "webhook: its %s",
                               url_is_valid(item->destination) ? "id is none that a header can hold"
                                                               : "destination is no URL");
            s->tickets[i].stage = ENDED;
            continue;
        }
        while (to < i && (s->tickets[to].to != to || s->items[to].status == SEMEL_INVALID ||
                          !semel__str_eq(s->items[to].destination, item->destination)))
            to++;
        s->tickets[i].to = to;
        n_destinations += to == i;
    }
    s->most = n_destinations > 1 && s->webhook->concurrency > 1 ? s->webhook->concurrency / 2 : s->webhook->concurrency;
}

/* The next item that may go; s->n: there is none now. */
static size_t next_item(struct sending *s)
{
    while (s->first < s->n && s->tickets[s->first].stage == ENDED)
        s->first++;
    for (size_t i = s->first; i < s->n; i++) {
        struct ticket *ticket = &s->tickets[i], *to = &s->tickets[ticket->to];
        if (ticket->stage != TO_SEND)
            continue;
        if (to->down_why != NULL) {
            semel__publish_end(&s->items[i], SEMEL_RETRY, true, "%s", to->down_why);
            ticket->stage = ENDED;
        } else if (to->n < s->most) {
            return i;
        }
    }
    return s->n;
}

static void begin_calls(struct sending *s, int64_t until_us)
{
    struct webhook *webhook = s->webhook;

    for (size_t k = 0; k < webhook->concurrency; k++) {
        struct call *call = &webhook->calls[k];
        const int64_t left_us = until_us - semel__steady_us();
        const size_t i = call->easy == NULL ? next_item(s) : s->n;
        if (i == s->n || left_us <= LEAST_US)
            continue;
        if (!begin_call(call, &s->items[i], i, left_us)) {
            semel__publish_end(&s->items[i], SEMEL_RETRY, false, "webhook: no memory");
            s->tickets[i].stage = ENDED;
            continue;
        }
        s->tickets[i].stage = ON_THE_WAY;
        s->tickets[s->tickets[i].to].n++;
        s->busy++;
    }
}

static void end_calls(struct sending *s)
{
    const CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(s->webhook->multi, &left)) != NULL) {
        const CURLcode code = message->data.result;
        char *private = NULL;
        struct call *call;
        if (message->msg != CURLMSG_DONE ||
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private) != CURLE_OK)
            continue;
        call = (struct call *)(void *)private;
        judge(call, code);
        struct ticket *to = &s->tickets[s->tickets[call->at].to];
        if (call->item->down)
            to->down_why = call->item->why;
        to->n--;
        s->tickets[call->at].stage = ENDED;
        s->busy--;
        forget(call);
    }
}

static semel_status webhook_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                    struct semel_error *err)
{
    struct webhook *webhook = self(broker);
    const int64_t until_us = semel__steady_us() + (int64_t)timeout_ms * 1000;
    struct sending s = {.webhook = webhook, .items = items, .n = n, .tickets = semel__calloc(n, sizeof *s.tickets)};
    int running;

    if (s.tickets == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < webhook->concurrency; i++)
        webhook->calls[i].webhook = webhook;
    look_at_items(&s);
    for (begin_calls(&s, until_us); s.busy > 0;) {
        (void)curl_multi_perform(webhook->multi, &running);
        end_calls(&s);
        begin_calls(&s, until_us);
        if (s.busy > 0) /* each request ends by itself, in time */
            (void)curl_multi_poll(webhook->multi, NULL, 0, STEP_MS, NULL);
    }
    semel__free(s.tickets);
    return SEMEL_OK;
}

/* ---- questions ------------------------------------------------------------------------------------------ */

static semel_status connect_only(struct call *call, const char *url, int timeout_ms, struct semel_error *err)
{
    CURLcode code;

    if ((call->easy = curl_easy_init()) == NULL)
        return semel__fail_memory(err);
    code = set_rules(call, timeout_ms);
    SET(CURLOPT_CONNECT_ONLY, 1L);
    SET(CURLOPT_URL, url);
    if (code == CURLE_OK)
        code = curl_easy_perform(call->easy);
    curl_easy_cleanup(call->easy);
    call->easy = NULL;
    if (code == CURLE_OK)
        return SEMEL_OK;
    if (call->refused[0] != '\0')
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_BROKEN,
                           "its address %s is special and no network of `allow` has it", call->refused);
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s", curl_easy_strerror(code));
}

semel_status semel__webhook_ask(const struct semel_webhook_options *options, struct semel_str url, int timeout_ms,
                                struct semel_error *err)
{
    struct semel_broker *broker;
    char text[URL_MAX_BYTES + 1];
    semel_status status = semel__broker_webhook_open(&broker, options, err);

    if (status != SEMEL_OK)
        return status;
    if (url_is_valid(url)) {
        memcpy(text, url.p, url.n);
        text[url.n] = '\0';
        status = connect_only(&(struct call){.webhook = self(broker)}, text, timeout_ms, err);
    } else {
        status = wrong(err, "the receiver", "is no URL");
    }
    semel_broker_close(broker);
    return status;
}

static const struct semel_broker_ops webhook_ops = {
    .name = "webhook",
    .capabilities = SEMEL_BROKER_SINK,
    .close = webhook_close,
    .reopen = webhook_reopen,
    .poll = webhook_poll,
    .answer = webhook_answer,
    .publish = webhook_publish,
};
