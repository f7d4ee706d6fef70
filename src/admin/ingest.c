/* SPDX-License-Identifier: MIT
 *
 * ingest.c: the HTTP endpoint of a `listen` route, and the broker that the route's workers poll.
 *
 * A request has one part per message. A part waits in the queue, is polled by a worker, and is done. The request is
 * answered when its last part is done, or when it is overdue; parts that are done after that are not reported.
 *
 *   202 accepted   it is ours now: done, or stored to be done
 *   200 duplicate  it was ours before
 *   409 conflict   the id was used for another payload
 *   422 kept       stored, and cannot run: `why` says it
 *   503 later      it is not ours: send it again
 *
 * How a request becomes messages, by its Content-Type:
 *
 *   application/cloudevents+json         one event: its attributes become headers ce_NAME, its data the payload
 *   application/cloudevents-batch+json   an array of them
 *   application/x-ndjson                 one of them per line
 *   anything else                        the body is the payload; headers ce-NAME become ce_NAME (binary mode)
 *
 * The message gets the other headers of the request, in lower case, without those that belong to the connection or to
 * the sender. Attributes of the event come before them and win. Its attributes have one spelling: names in JSON are
 * lower case letters and digits, ce_NAME is no header of HTTP, ce-NAME comes once.
 *
 * On a route with `signature` the body is the payload, whatever its Content-Type, and the source is the route's: an
 * attacker who has a signed request must not be able to give it another meaning, or another identity, by headers that
 * are not signed; so Connection, which nobody has signed, takes no header away. 401 if the signature is missing,
 * wrong, or of another time.
 *
 * Invariants
 *  - A request that does not fit whole is refused whole, and one bad event of a batch refuses the batch: the sender
 *    must know which messages were accepted. A refusal has what is wrong and what would be right, and quotes no
 *    payload.
 *  - Every `why` has its result word. A word other than `later` means that the message was acknowledged, that is
 *    after the commit; a duplicate gets the outcome of the earlier run (I9).
 *  - While the circuit breaker is open no request waits, except one when a probe is due.
 *  - On a route with an order one worker polls all parts of a request, and after one that it gives back it gets no more
 *    of them.
 *  - A tag names one polled part and is never used again; the part keeps its slot until it was answered, also when
 *    its request was answered before. Strings of parts are borrowed from the exchange or live in the request's arena,
 *    and are read only while the request has its exchange.
 */
#include "admin/ingest.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>
#include <sys/eventfd.h>

#include "admin/text.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "core/inbox.h"
#include "core/row.h"

#define FULL_AFTER_S 1
#define SLOW_AFTER_S 5

enum ingest_state { INGEST_WAITS, INGEST_POLLED, INGEST_DONE };

struct ingest_part {
    struct ingest_request *request;
    struct ingest_part *next; /* in the queue */
    enum ingest_state state;
    uint64_t tag;
    const struct ingest_broker *worker; /* that polled it */
    struct semel_pair *headers;
    size_t n_headers;
    struct semel_pair property; /* message_id, where an Idempotency-Key came */
    bool keyed;
    struct semel_str payload;
    bool later;                   /* it was given back */
    struct semel_settled settled; /* when done and not later; the outcome is in the request's arena */
    int delay_ms;                 /* when later */
};

struct ingest_request {
    struct ingest_request *prev, *next; /* of those that have their exchange, oldest first */
    struct semel_http_exchange *x;      /* NULL: answered */
    struct semel_arena arena;
    struct ingest_part *parts;
    size_t n, open; /* open: parts that are not done */
    bool batch;
    bool is_signed;                     /* by who sent it, and that was checked */
    const struct ingest_broker *worker; /* of a route with an order: the worker that polls its parts; NULL: none yet */
    int64_t came_us;                    /* by the steady clock */
    size_t bytes;
};

/* One worker's handle. The endpoint's lock protects everything after the broker, except oldest_us. */
struct ingest_broker {
    struct semel_broker base;
    struct semel_ingest *ingest;
    bool serves, woken; /* woken: the next poll returns at once */
    int64_t oldest_us;  /* when the oldest part of the last poll came; 0: it had none. Only the worker uses it */
};

/* ==== from a request to messages ================================================================= */

struct reading {
    struct ingest_request *request;
    const struct semel_http_request *req;
    struct semel_arena *arena;
    size_t body_max;
    struct semel_pair *common; /* headers that every message of the request has */
    size_t n_common;
    size_t cap;                 /* of parts */
    struct semel_str signature; /* of a route with signatures: its header's value, which is not stored */
    struct semel_error *err;
};

static int no_memory(const struct reading *r)
{
    semel__fail_memory(r->err);
    return 503;
}

__attribute__((format(printf, 3, 4))) static int wrong(const struct reading *r, size_t index, const char *fmt, ...)
{
    char text[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (r->request->batch)
        semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "event %zu: %s", index + 1, text);
    else
        semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s", text);
    return 400;
}

/* ---- headers --------------------------------------------------------------------------------------- */

static bool stays_behind(struct semel_str name)
{
    static const char *const names[] = {
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (semel__same_word(name, names[i]))
            return true;
    return false;
}

/* Does Connection name it, so that it is for the next hop only? */
static bool hops(struct semel_str connection, struct semel_str name)
{
    size_t at = 0;
    while (at < connection.n) {
        size_t end = at;
        while (end < connection.n && connection.p[end] != ',')
            end++;
        size_t from = at, to = end;
        while (from < to && (connection.p[from] == ' ' || connection.p[from] == '\t'))
            from++;
        while (to > from && (connection.p[to - 1] == ' ' || connection.p[to - 1] == '\t'))
            to--;
        if (to - from == name.n && strncasecmp(connection.p + from, name.p, name.n) == 0)
            return true;
        at = end + 1;
    }
    return false;
}

/* In binary mode, characters outside ASCII are percent-encoded; malformed escapes stay. */
static bool unescape(struct semel_arena *arena, struct semel_str value, struct semel_str *ret)
{
    size_t n = 0;
    char *out = semel__arena_alloc(arena, value.n + 1, 1);
    if (out == NULL)
        return false;
    for (size_t i = 0; i < value.n; i++) {
        int high = value.p[i] == '%' && value.n - i > 2 ? semel__hex_value(value.p[i + 1]) : -1;
        int low = high >= 0 ? semel__hex_value(value.p[i + 2]) : -1;
        char c = value.p[i];
        if (low >= 0) {
            c = (char)(high << 4 | low);
            i += 2;
        }
        out[n++] = c;
    }
    *ret = (struct semel_str){out, n};
    return true;
}

static bool lowered(struct semel_arena *arena, const char *prefix, struct semel_str name, struct semel_str *ret)
{
    size_t before = strlen(prefix);
    char *out = semel__arena_alloc(arena, before + name.n + 1, 1);
    if (out == NULL)
        return false;
    memcpy(out, prefix, before);
    for (size_t i = 0; i < name.n; i++)
        out[before + i] = name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char)(name.p[i] + ('a' - 'A')) : name.p[i];
    *ret = (struct semel_str){out, before + name.n};
    return true;
}

/* An attribute's name is letters and digits; header names have no case, names in JSON are lower case. */
static bool attribute_named(struct semel_str name, bool header)
{
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (header && c >= 'A' && c <= 'Z')))
            return false;
    }
    return name.n > 0;
}

static bool came_before(const struct semel_http_request *req, size_t at)
{
    struct semel_str name = req->headers[at].name;
    for (size_t i = 0; i < at; i++)
        if (req->headers[i].name.n == name.n && strncasecmp(req->headers[i].name.p, name.p, name.n) == 0)
            return true;
    return false;
}

/* Two attributes of one name, or two spellings of it, would be ambiguous. 0 or 400. */
static int check_header(const struct reading *r, size_t at)
{
    struct semel_str name = r->req->headers[at].name;
    char shown[64];
    semel__str_show(shown, sizeof(shown), name);
    if (semel__begins_with(name, "ce_"))
        return wrong(r, 0, "the header %s: over HTTP an attribute's header begins with ce-", shown);
    if (!semel__begins_with(name, "ce-"))
        return 0;
    if (!attribute_named((struct semel_str){name.p + 3, name.n - 3}, true))
        return wrong(r, 0, "the header %s: an attribute's name is letters and digits", shown);
    return came_before(r->req, at) ? wrong(r, 0, "the header %s is repeated; an event has each attribute once", shown)
                                   : 0;
}

/* One header of the request. false: no memory. `plain`: the event is in the headers and the body is its data. */
static bool parse_header(struct reading *r, const struct semel_http_pair *header, bool plain)
{
    struct semel_pair *at = &r->common[r->n_common];
    struct semel_str name = header->name;
    bool event = semel__begins_with(name, "ce-");
    if (!plain && (event || semel__same_word(name, "content-type")))
        return true; /* the event has its own */
    r->n_common++;
    if (!event) {
        at->value = header->value;
        return lowered(r->arena, "", name, &at->name);
    }
    return lowered(r->arena, "ce_", (struct semel_str){name.p + 3, name.n - 3}, &at->name) &&
           unescape(r->arena, header->value, &at->value);
}

static int parse_headers(struct reading *r, bool plain)
{
    const struct semel_http_request *req = r->req;
    struct semel_str connection = semel__http_header(req, "Connection");
    r->common = semel__arena_alloc(r->arena, req->n_headers + 1, sizeof(*r->common));
    if (r->common == NULL)
        return no_memory(r);
    for (size_t i = 0; i < req->n_headers; i++) {
        if (stays_behind(req->headers[i].name) || (!r->request->is_signed && hops(connection, req->headers[i].name)) ||
            (semel__str_given(r->signature) && req->headers[i].value.p == r->signature.p))
            continue;
        int status = check_header(r, i);
        if (status != 0)
            return status;
        if (!parse_header(r, &req->headers[i], plain))
            return no_memory(r);
    }
    return 0;
}

/* A key in quotes, as in the draft, or bare. */
static void parse_key(const struct reading *r, struct ingest_part *part)
{
    struct semel_str key = semel__http_header(r->req, "Idempotency-Key");
    if (key.n >= 2 && key.p[0] == '"' && key.p[key.n - 1] == '"' && memchr(key.p + 1, '"', key.n - 2) == NULL &&
        memchr(key.p, '\\', key.n) == NULL)
        key = (struct semel_str){key.p + 1, key.n - 2};
    part->keyed = key.n > 0;
    part->property = (struct semel_pair){SEMEL_STR("message_id"), key};
}

/* ---- events ---------------------------------------------------------------------------------------- */

static struct ingest_part *add_part(struct reading *r)
{
    struct ingest_request *request = r->request;
    if (request->n == r->cap) {
        size_t cap = r->cap > 0 ? 2 * r->cap : 1;
        struct ingest_part *parts = semel__arena_alloc(r->arena, cap, sizeof(*parts));
        if (parts == NULL)
            return NULL;
        if (request->n > 0)
            memcpy(parts, request->parts, request->n * sizeof(*parts));
        request->parts = parts;
        r->cap = cap;
    }
    return &request->parts[request->n++];
}

static const struct semel_json_node *member(const struct semel_json_node *event, const char *name)
{
    for (const struct semel_json_node *node = event->u.first; node != NULL; node = node->next)
        if (semel__str_eqz(node->key, name))
            return node->tag == SEMEL_JSON_TAG_NULL && strcmp(name, "data") != 0 ? NULL : node;
    return NULL;
}

static bool attribute_text(const struct semel_json_node *node, struct semel_str *ret)
{
    switch (node->tag) {
    case SEMEL_JSON_TAG_STRING:
    case SEMEL_JSON_TAG_INTEGER:
    case SEMEL_JSON_TAG_REAL:
        *ret = node->u.text;
        return true;
    case SEMEL_JSON_TAG_TRUE:
        *ret = SEMEL_STR("true");
        return true;
    case SEMEL_JSON_TAG_FALSE:
        *ret = SEMEL_STR("false");
        return true;
    case SEMEL_JSON_TAG_NULL:
    case SEMEL_JSON_TAG_ARRAY:
    case SEMEL_JSON_TAG_OBJECT:
        return false;
    }
    return false;
}

static bool add_header(struct reading *r, struct ingest_part *part, const char *prefix, struct semel_str name,
                       struct semel_str value)
{
    struct semel_pair *at = &part->headers[part->n_headers++];
    return lowered(r->arena, prefix, name, &at->name) && semel__arena_copy(r->arena, value, &at->value);
}

static int parse_attributes(struct reading *r, size_t index, const struct semel_json_node *event,
                            struct ingest_part *part)
{
    size_t n = 0;
    for (const struct semel_json_node *node = event->u.first; node != NULL; node = node->next)
        n++;
    if (n > SEMEL_INGEST_ATTRIBUTES)
        return wrong(r, index, "it has %zu members; at most %d are allowed", n, SEMEL_INGEST_ATTRIBUTES);
    part->headers = semel__arena_alloc(r->arena, n + 2 + r->n_common, sizeof(*part->headers));
    if (part->headers == NULL)
        return no_memory(r);
    for (const struct semel_json_node *node = event->u.first; node != NULL; node = node->next) {
        struct semel_str value;
        char shown[64];
        if (semel__str_eqz(node->key, "data") || semel__str_eqz(node->key, "data_base64"))
            continue;
        semel__str_show(shown, sizeof(shown), node->key);
        if (!attribute_named(node->key, false))
            return wrong(r, index, "its attribute \"%s\": a name is lower case letters and digits", shown);
        if (node->tag == SEMEL_JSON_TAG_NULL)
            continue;
        if (!attribute_text(node, &value))
            return wrong(r, index, "its attribute \"%s\" must be a string, a number or true or false", shown);
        bool trace = semel__str_eqz(node->key, "traceparent");
        if (!add_header(r, part, "ce_", node->key, value) || (trace && !add_header(r, part, "", node->key, value)))
            return no_memory(r);
    }
    return 0;
}

static bool is_json_type(struct semel_str type)
{
    size_t n = 0;
    while (n < type.n && type.p[n] != ';' && type.p[n] != ' ')
        n++;
    struct semel_str bare = {type.p, n};
    struct semel_str end = n >= 5 ? (struct semel_str){type.p + n - 5, 5} : bare;
    return !semel__str_given(type) || semel__same_word(end, "/json") || semel__same_word(end, "+json");
}

static int parse_data(struct reading *r, size_t index, const struct semel_json_node *event, struct semel_str raw,
                      struct ingest_part *part)
{
    const struct semel_json_node *data = member(event, "data"), *coded = member(event, "data_base64");
    const struct semel_json_node *type = member(event, "datacontenttype");
    struct semel_str said = type != NULL && type->tag == SEMEL_JSON_TAG_STRING ? type->u.text : (struct semel_str){0};
    part->payload = (struct semel_str){"", 0};
    if (data != NULL && coded != NULL)
        return wrong(r, index, "it has both data and data_base64; one of them is right");
    if (type != NULL && !add_header(r, part, "", SEMEL_STR("content-type"), said))
        return no_memory(r);
    if (coded != NULL) {
        struct semel_str text = coded->tag == SEMEL_JSON_TAG_STRING ? coded->u.text : SEMEL_STR("?");
        enum semel_base64 how = semel__base64_read(text, r->arena, &part->payload);
        if (how == SEMEL_BASE64_MEMORY)
            return no_memory(r);
        return how == SEMEL_BASE64_OK ? 0 : wrong(r, index, "data_base64 must be base64 with its padding (RFC 4648)");
    }
    if (data == NULL)
        return 0;
    if (data->tag == SEMEL_JSON_TAG_STRING && !is_json_type(said))
        return semel__arena_copy(r->arena, data->u.text, &part->payload) ? 0 : no_memory(r);
    if (!semel__json_member(raw, "data", &part->payload))
        return wrong(r, index, "the name \"data\" must be written without escapes");
    return 0;
}

static int parse_event(struct reading *r, const struct semel_json_node *event, struct semel_str raw)
{
    size_t index = r->request->n;
    if (index >= SEMEL_INGEST_BATCH) {
        semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "a batch has at most %d events; send several",
                    SEMEL_INGEST_BATCH);
        return 413;
    }
    if (event->tag != SEMEL_JSON_TAG_OBJECT)
        return wrong(r, index, "a CloudEvent is a JSON object");
    const struct semel_json_node *spec = member(event, "specversion");
    if (spec == NULL || spec->tag != SEMEL_JSON_TAG_STRING || !semel__str_eqz(spec->u.text, "1.0"))
        return wrong(r, index, "its specversion must be \"1.0\"");
    struct ingest_part *part = add_part(r);
    if (part == NULL)
        return no_memory(r);
    int status = parse_attributes(r, index, event, part);
    if (status == 0)
        status = parse_data(r, index, event, raw, part);
    if (status != 0)
        return status;
    if (r->n_common > 0)
        memcpy(part->headers + part->n_headers, r->common, r->n_common * sizeof(*r->common));
    part->n_headers += r->n_common;
    return 0;
}

/* ---- bodies ---------------------------------------------------------------------------------------- */

static int parse(struct reading *r, struct semel_str text, struct semel_json **ret)
{
    struct semel_error why;
    semel_status status = semel__json_parse(ret, text, r->body_max, &why);
    if (status == SEMEL_OK)
        return 0;
    return status == SEMEL_INVALID ? wrong(r, r->request->n, "it is not JSON: %s", why.text) : no_memory(r);
}

static int read_structured(struct reading *r, struct semel_str text)
{
    struct semel_json *json;
    int status = parse(r, text, &json);
    if (status != 0)
        return status;
    status = parse_event(r, json->root, text);
    semel__json_free(json);
    return status;
}

static int read_batch(struct reading *r, struct semel_str text)
{
    struct semel_json *json;
    struct semel_str raw;
    size_t at = 0;
    int status = parse(r, text, &json);
    if (status != 0)
        return status;
    if (json->root->tag != SEMEL_JSON_TAG_ARRAY) {
        semel__json_free(json);
        semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "a batch is a JSON array of CloudEvents");
        return 400;
    }
    for (const struct semel_json_node *node = json->root->u.first; node != NULL && status == 0; node = node->next)
        status = semel__json_next(text, &at, NULL, &raw) ? parse_event(r, node, raw) : no_memory(r);
    semel__json_free(json);
    return status;
}

static int read_lines(struct reading *r, struct semel_str text)
{
    int status = 0;
    for (size_t at = 0; at < text.n && status == 0;) {
        const char *feed = memchr(text.p + at, '\n', text.n - at);
        size_t end = feed != NULL ? (size_t)(feed - text.p) : text.n;
        size_t n = end - at;
        if (n > 0 && text.p[at + n - 1] == '\r')
            n--;
        if (n > 0)
            status = read_structured(r, (struct semel_str){text.p + at, n});
        at = end + 1;
    }
    return status;
}

static int read_plain(struct reading *r)
{
    struct ingest_part *part = add_part(r);
    if (part == NULL)
        return no_memory(r);
    part->headers = r->common;
    part->n_headers = r->n_common;
    part->payload = r->req->body.n > 0 ? r->req->body : (struct semel_str){"", 0};
    return 0;
}

static struct semel_str media_type(const struct semel_http_request *req)
{
    struct semel_str type = semel__http_header(req, "Content-Type");
    size_t n = 0;
    while (n < type.n && type.p[n] != ';' && type.p[n] != ' ' && type.p[n] != '\t')
        n++;
    return (struct semel_str){type.p, n};
}

/* 0, or the status of a refusal, with the text in err. */
static int read_request(struct ingest_request *request, size_t body_max, struct semel_str signature,
                        struct semel_error *err)
{
    const struct semel_http_request *req = semel__http_request(request->x);
    struct reading r = {request, req, &request->arena, body_max, NULL, 0, 0, signature, err};
    struct semel_str type = request->is_signed ? SEMEL_STR("") : media_type(req);
    bool structured = semel__same_word(type, "application/cloudevents+json");
    bool batch = semel__same_word(type, "application/cloudevents-batch+json");
    bool lines = semel__same_word(type, "application/x-ndjson");
    int status = parse_headers(&r, !structured && !batch && !lines);
    if (status != 0)
        return status;
    request->batch = batch || lines;
    if (batch)
        status = read_batch(&r, req->body);
    else if (lines)
        status = read_lines(&r, req->body);
    else
        status = structured ? read_structured(&r, req->body) : read_plain(&r);
    if (status == 0 && !request->batch)
        parse_key(&r, &request->parts[0]);
    for (size_t i = 0; i < request->n; i++)
        request->parts[i].request = request;
    request->bytes += request->arena.used;
    return status;
}

/* ==== from what came of messages to the reply ==================================================== */

struct word {
    int code;
    const char *text;
};

static const struct word accepted = {202, "accepted"}, duplicate = {200, "duplicate"}, conflict = {409, "conflict"},
                         kept = {422, "kept"}, later = {503, "later"};

static struct word word_of(const struct ingest_part *part)
{
    if (part->state != INGEST_DONE || part->later)
        return later;
    switch (part->settled.why) {
    case SEMEL_WHY_NEW:
    case SEMEL_WHY_RETRIED:
    case SEMEL_WHY_GAP:
    case SEMEL_WHY_BLOCKED:
        return accepted;
    case SEMEL_WHY_DUPLICATE:
    case SEMEL_WHY_STALE:
    case SEMEL_WHY_BUSINESS:
    case SEMEL_WHY_BUSY:
    case SEMEL_WHY_BACKOFF:
    case SEMEL_WHY_UNKNOWN:
        return duplicate;
    case SEMEL_WHY_CONFLICT:
        return conflict;
    case SEMEL_WHY_DEAD:
    case SEMEL_WHY_TOO_OLD:
    case SEMEL_WHY_NO_ID:
        return kept;
    case SEMEL_WHY_DAMAGED:
    case SEMEL_WHY_UNSET:
        return later;
    }
    return later;
}

static void put_part(struct semel_buf *buf, const struct ingest_part *part, const struct word *word, bool with_code)
{
    semel__buf_addf(buf, "{\"result\":\"%s\"", word->text);
    if (with_code)
        semel__buf_addf(buf, ",\"code\":%d", word->code);
    if (word->code != 503) {
        semel__json_put_pair(buf, "why", semel__str(semel__why_name(part->settled.why)));
        if (part->settled.state != SEMEL_ROW_ABSENT)
            semel__json_put_pair(buf, "status", semel__str(semel__row_status_name(part->settled.state)));
        size_t before = buf->n;
        if (semel__str_given(part->settled.outcome)) {
            semel__buf_addz(buf, ",\"outcome\":");
            if (!semel__json_put_raw(buf, part->settled.outcome, SEMEL_OUTCOME_MAX))
                buf->n = before;
        }
    }
    semel__buf_addz(buf, "}");
}

static int wait_s(const struct ingest_request *request)
{
    int most_ms = 1000;
    for (size_t i = 0; i < request->n; i++)
        if (request->parts[i].later && request->parts[i].delay_ms > most_ms)
            most_ms = request->parts[i].delay_ms;
    return most_ms / 1000 + (most_ms % 1000 > 0 ? 1 : 0);
}

/* Answers, and forgets the exchange. Parts that are not done are `later`. */
static void report(struct semel_ingest *ingest, struct ingest_request *request)
{
    struct semel_http_exchange *x = request->x;
    struct semel_buf *body = semel__http_body(x);
    struct word word = {200, ""};
    bool again = false;
    request->x = NULL;
    semel__http_keep(x, NULL);
    if (request->batch)
        semel__buf_addz(body, "[");
    for (size_t i = 0; i < request->n; i++) {
        word = word_of(&request->parts[i]);
        again |= word.code == 503;
        if (i > 0)
            semel__buf_addz(body, ",\n");
        put_part(body, &request->parts[i], &word, request->batch);
        semel__endpoint_count(ingest->serve, SEMEL_FAMILY_INGEST, ingest->route->name, word.text, NULL, 1);
    }
    semel__buf_addz(body, request->batch ? "]\n" : "\n");
    if (again) {
        char after[16];
        snprintf(after, sizeof(after), "%d", wait_s(request));
        semel__http_set_header(x, "Retry-After", semel__str(after));
    }
    semel__http_answer(x, request->batch ? 200 : word.code);
}

/* ==== the queue ================================================================================== */

static void request_free(struct ingest_request *request)
{
    semel__arena_done(&request->arena);
    semel__free(request);
}

/* Makes the descriptor readable while parts wait. */
static void set_fd(struct semel_ingest *ingest)
{
    uint64_t count = 1;
    bool waits = ingest->queue != NULL;
    if (waits == ingest->readable)
        return;
    ingest->readable = waits;
    while ((waits ? write(ingest->fd, &count, sizeof(count)) : read(ingest->fd, &count, sizeof(count))) < 0 &&
           errno == EINTR)
        ;
}

static void part_done(struct semel_ingest *ingest, struct ingest_part *part)
{
    part->state = INGEST_DONE;
    part->request->open--;
    ingest->waiting--;
    semel__gauge_set(ingest->gauge, (double)ingest->waiting);
}

/* Answers the request if it has its exchange, and frees it when none of its parts is polled. */
static void close_request(struct semel_ingest *ingest, struct ingest_request *request)
{
    if (request->x != NULL) {
        *(request->prev != NULL ? &request->prev->next : &ingest->first) = request->next;
        *(request->next != NULL ? &request->next->prev : &ingest->last) = request->prev;
        ingest->bytes -= request->bytes;
        report(ingest, request);
    }
    if (request->open == 0)
        request_free(request);
}

/* Removes the parts of the request that were not polled from the queue, where they are neighbours. */
static void drop_waiting(struct semel_ingest *ingest, const struct ingest_request *request, int delay_ms)
{
    struct ingest_part **at = &ingest->queue;
    size_t left = 0;
    for (size_t i = 0; i < request->n; i++)
        left += request->parts[i].state == INGEST_WAITS;
    while (left > 0 && (*at)->request != request)
        at = &(*at)->next;
    for (; left > 0; left--) {
        struct ingest_part *part = *at;
        *at = part->next;
        part->later = true;
        part->delay_ms = delay_ms;
        part_done(ingest, part);
    }
    if (*at == NULL)
        ingest->queue_end = at;
    set_fd(ingest);
}

static void give_up(struct semel_ingest *ingest, struct ingest_request *request)
{
    drop_waiting(ingest, request, SLOW_AFTER_S * 1000);
    close_request(ingest, request);
}

/* The route pauses: parts that were not polled are `later` now. */
static void refuse_waiting(struct semel_ingest *ingest, int after_s)
{
    while (ingest->queue != NULL) {
        struct ingest_request *request = ingest->queue->request;
        drop_waiting(ingest, request, after_s * 1000);
        if (request->open == 0)
            close_request(ingest, request);
    }
}

/* Gives the result of a polled part to its request. */
static void end_part(struct semel_ingest *ingest, struct ingest_part *part, const struct semel_reply *reply)
{
    struct ingest_request *request = part->request;
    size_t slot = (size_t)(part->tag & UINT32_MAX);
    ingest->slots[slot] = NULL;
    ingest->unused[ingest->n_unused++] = slot;
    semel__gauge_set(ingest->polled, (double)(SEMEL_INGEST_PARTS - ingest->n_unused));
    part->later = !semel__reply_acks(reply);
    part->delay_ms = reply->delay_ms;
    if (request->x != NULL && reply->settled != NULL) {
        part->settled = *reply->settled;
        if (!semel__arena_copy(&request->arena, reply->settled->outcome, &part->settled.outcome))
            part->settled.outcome = (struct semel_str){NULL, 0};
    }
    part_done(ingest, part);
    if (part->later && ingest->ordered)
        drop_waiting(ingest, request, reply->delay_ms);
    if (request->open == 0)
        close_request(ingest, request);
}

/* The worker will not answer the parts that it polled. */
static void end_polled(struct semel_ingest *ingest, const struct ingest_broker *worker)
{
    const struct semel_reply again = {0};
    for (size_t i = 0; i < SEMEL_INGEST_PARTS; i++)
        if (ingest->slots[i] != NULL && ingest->slots[i]->worker == worker)
            end_part(ingest, ingest->slots[i], &again);
}

/* ==== requests in ================================================================================ */

/* 0: accept. Otherwise the seconds after which the client may retry. */
static int paused_s(const struct semel_ingest *ingest)
{
    int64_t now_us = semel__now(&semel__clock_real), full_us = ingest->full_until_us - now_us;
    if (full_us > 0 && full_us <= SEMEL_INGEST_FULL_US)
        return (int)semel__whole_seconds(full_us);
    if (ingest->pause.state == SEMEL_BREAKER_CLOSED)
        return 0;
    int64_t until_us = semel__breaker_until(&ingest->pause, now_us);
    if (until_us == SEMEL_NONE)
        return ingest->waiting > 0 ? FULL_AFTER_S : 0;
    return ingest->pause.state == SEMEL_BREAKER_PROBING ? FULL_AFTER_S : (int)semel__whole_seconds(until_us - now_us);
}

/* NULL: it waits now. Otherwise why not. *ret_paused_s: as from paused_s. */
static const char *enter(struct semel_ingest *ingest, struct ingest_request *request, int *ret_paused_s)
{
    *ret_paused_s = ingest->n_serving > 0 ? paused_s(ingest) : 0;
    if (*ret_paused_s > 0)
        return "the route pauses because its handler fails or too much waits; send it again later";
    if (ingest->n_serving == 0)
        return "the route is not running at the moment; send it again later";
    if (ingest->waiting + request->n > SEMEL_INGEST_PARTS || ingest->bytes + request->bytes > SEMEL_INGEST_BYTES)
        return "too many messages wait for this route; send it again later";
    request->prev = ingest->last;
    *(ingest->last != NULL ? &ingest->last->next : &ingest->first) = request;
    ingest->last = request;
    for (size_t i = 0; i < request->n; i++) {
        *ingest->queue_end = &request->parts[i];
        ingest->queue_end = &request->parts[i].next;
    }
    request->open = request->n;
    ingest->bytes += request->bytes;
    ingest->waiting += request->n;
    semel__http_keep(request->x, request);
    semel__gauge_set(ingest->gauge, (double)ingest->waiting);
    set_fd(ingest);
    pthread_cond_signal(&ingest->changed);
    return NULL;
}

static void refuse(struct semel_ingest *ingest, struct ingest_request *request, int after_s, const char *why)
{
    semel__endpoint_count(ingest->serve, SEMEL_FAMILY_INGEST, ingest->route->name, "later", NULL,
                          request->n > 0 ? request->n : 1);
    semel__endpoint_later(request->x, after_s, why);
    request_free(request);
}

/* Answers a batch with `later` for every message. */
static void put_off(struct semel_ingest *ingest, struct ingest_request *request, int after_s)
{
    for (size_t i = 0; i < request->n; i++) {
        request->parts[i].later = true;
        request->parts[i].delay_ms = after_s * 1000;
    }
    report(ingest, request);
    request_free(request);
}

/* ---- signatures ---- */

/* At most one line per second, with their number. Nothing that the sender wrote is logged. */
static void log_unsigned(struct semel_ingest *ingest, const struct semel_http_request *req, const char *word)
{
    uint64_t n;
    pthread_mutex_lock(&ingest->lock);
    bool logs = semel__endpoint_logs(&ingest->strangers, &n);
    pthread_mutex_unlock(&ingest->lock);
    if (logs)
        SEMEL__LOG(ingest->serve->log, SEMEL_LOG_WARN, "refused a webhook for its signature",
                   SEMEL_F_STR("route", ingest->route->name), SEMEL_F_STR("peer", req->remote), SEMEL_F_Z("why", word),
                   SEMEL_F_INT("requests", n));
}

/* false: it was refused. *ret_signature: the value of the signature's header, where the route has signatures. */
static bool check_signature(struct semel_ingest *ingest, struct ingest_request *request,
                            struct semel_str *ret_signature)
{
    const struct semel_http_request *req = semel__http_request(request->x);
    enum semel_signature_result result = SEMEL_SIGNATURE_GOOD;
    struct semel_signed taken = {0};
    char why[SEMEL_SIGNATURE_WHY];
    pthread_rwlock_rdlock(&ingest->key_lock);
    request->is_signed = ingest->signature != NULL;
    for (size_t i = 0; request->is_signed && i < req->n_headers; i++)
        semel__signature_take(ingest->signature, &taken, req->headers[i].name, req->headers[i].value);
    if (request->is_signed)
        result = semel__signature_check(ingest->signature, &taken, req->body, semel__now(&semel__clock_real), why);
    pthread_rwlock_unlock(&ingest->key_lock);
    *ret_signature = taken.signature;
    if (result == SEMEL_SIGNATURE_GOOD)
        return true;
    if (result == SEMEL_SIGNATURE_FAILED) {
        semel__endpoint_later(request->x, FULL_AFTER_S, "the signature could not be checked");
        return false;
    }
    const char *word = semel__signature_word(result);
    semel__endpoint_count(ingest->serve, SEMEL_FAMILY_UNSIGNED, ingest->route->name, word, NULL, 1);
    log_unsigned(ingest, req, word);
    semel__http_refuse(request->x, 401, "%s", why);
    return false;
}

static bool signature_new(const struct semel_signature_options *options, struct semel_signature **ret)
{
    *ret = options->on ? semel__calloc(1, sizeof(**ret)) : NULL;
    return !options->on || (*ret != NULL && semel__signature_init(*ret, options));
}

static void signature_free(struct semel_signature *signature)
{
    if (signature != NULL)
        semel__signature_done(signature);
    semel__free(signature);
}

semel_status semel__ingest_rekey(struct semel_ingest *ingest, const struct semel_conf *fresh, bool apply,
                                 struct semel_error *err)
{
    const struct semel_listen_options *before = semel__route_listens(ingest->route), *after = NULL;
    struct semel_signature *made, *old;
    for (size_t i = 0; i < fresh->n_routes && after == NULL; i++)
        if (semel__str_eq(fresh->routes[i].name, ingest->route->name))
            after = semel__route_listens(&fresh->routes[i]);
    if (after == NULL)
        return SEMEL_OK; /* the running route keeps what it has */
    if (before->signature.on != after->signature.on || before->signature.scheme != after->signature.scheme ||
        semel__str_given(before->server.token) < semel__str_given(after->server.token))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "routes.%s: `signature` or `token` was added or removed, or the scheme is another: restart",
                           ingest->route->name.p);
    if (!apply)
        return SEMEL_OK;
    if (!signature_new(&after->signature, &made)) {
        signature_free(made);
        return semel__fail_memory(err);
    }
    pthread_rwlock_wrlock(&ingest->key_lock);
    old = ingest->signature;
    ingest->signature = made;
    pthread_rwlock_unlock(&ingest->key_lock);
    signature_free(old);
    return SEMEL_OK;
}

/* ---- the handler ---- */

static void ingest_handle(void *ctx, struct semel_http_exchange *x)
{
    struct semel_ingest *ingest = ctx;
    struct semel_error err;
    struct ingest_request *request = semel__calloc(1, sizeof(*request));
    if (request == NULL) {
        semel__endpoint_later(x, FULL_AFTER_S, "out of memory");
        return;
    }
    request->x = x;
    request->bytes = sizeof(*request) + semel__http_request(x)->body.n;
    request->came_us = semel__steady_us();
    semel__arena_init(&request->arena, (size_t)1 << 30);
    struct semel_str signature;
    if (!check_signature(ingest, request, &signature)) {
        request_free(request);
        return;
    }
    int refused = read_request(request, (size_t)semel__route_listens(ingest->route)->body_max, signature, &err);
    if (refused == 503) {
        refuse(ingest, request, FULL_AFTER_S, err.text);
        return;
    }
    if (refused != 0) {
        semel__endpoint_count(ingest->serve, SEMEL_FAMILY_INGEST, ingest->route->name, "refused", NULL, 1);
        semel__http_refuse(x, refused, "%s", err.text);
        request_free(request);
        return;
    }
    if (request->n == 0) { /* an empty batch */
        report(ingest, request);
        request_free(request);
        return;
    }
    pthread_mutex_lock(&ingest->lock);
    int after_s;
    const char *why = enter(ingest, request, &after_s);
    pthread_mutex_unlock(&ingest->lock);
    if (after_s > 0 && request->batch)
        put_off(ingest, request, after_s);
    else if (why != NULL)
        refuse(ingest, request, after_s > 0 ? after_s : FULL_AFTER_S, why);
}

static void ingest_overdue(void *ctx, struct semel_http_exchange *x)
{
    struct semel_ingest *ingest = ctx;
    pthread_mutex_lock(&ingest->lock);
    struct ingest_request *request = semel__http_kept(x);
    if (request != NULL)
        give_up(ingest, request);
    pthread_mutex_unlock(&ingest->lock);
}

const struct semel_http_route semel__ingest_route = {.handle = ingest_handle,
                                                     .timeout_ms = SEMEL_ANSWER_MS,
                                                     .overdue = ingest_overdue};

/* ==== deliveries out ============================================================================= */

/* A CloudEvent has its source, and its id is unique only there. Nobody has signed a header that names one. */
static struct semel_str source_of(const struct semel_ingest *ingest, const struct ingest_part *part)
{
    for (size_t i = 0; i < part->n_headers && !part->request->is_signed; i++)
        if (semel__str_eqz(part->headers[i].name, "ce_source") && part->headers[i].value.n > 0)
            return part->headers[i].value;
    return semel__route_listens(ingest->route)->source;
}

static bool deliver(struct semel_ingest *ingest, const struct ingest_part *part, struct semel_arena *arena,
                    struct semel_delivery *ret)
{
    *ret = (struct semel_delivery){.n_headers = part->n_headers, .n_properties = part->keyed ? 1 : 0};
    return semel__arena_copy(arena, source_of(ingest, part), &ret->source) &&
           semel__arena_copy(arena, part->payload, &ret->payload) &&
           semel__broker_copy_pairs(arena, part->headers, part->n_headers, &ret->headers) &&
           semel__broker_copy_pairs(arena, &part->property, part->keyed ? 1 : 0, &ret->properties);
}

/* The first part that this worker may have, as the pointer to it; that points to NULL if there is none. */
static struct ingest_part **next_part(struct semel_ingest *ingest, const struct ingest_broker *worker)
{
    struct ingest_part **at = &ingest->queue;
    while (ingest->ordered && *at != NULL && (*at)->request->worker != NULL && (*at)->request->worker != worker)
        at = &(*at)->next;
    return at;
}

static void pop(struct semel_ingest *ingest, struct ingest_part **at, struct ingest_broker *worker)
{
    struct ingest_part *part = *at;
    size_t slot = ingest->unused[--ingest->n_unused];
    *at = part->next;
    if (part->next == NULL)
        ingest->queue_end = at;
    part->state = INGEST_POLLED;
    part->tag = (uint64_t)++ingest->rounds[slot] << 32 | slot;
    part->worker = part->request->worker = worker;
    ingest->slots[slot] = part;
    if (worker->oldest_us == 0)
        worker->oldest_us = part->request->came_us;
}

/* The caller holds the lock. false: no memory for the next one. */
static bool pop_all(struct semel_ingest *ingest, struct ingest_broker *worker, size_t max, struct semel_arena *arena,
                    struct semel_delivery *deliveries, size_t *ret_n)
{
    for (size_t n = 0; n < max; *ret_n = ++n) {
        struct ingest_part **at = next_part(ingest, worker), *part = *at;
        if (part == NULL)
            return true;
        if (!deliver(ingest, part, arena, &deliveries[n])) {
            if (n == 0)
                give_up(ingest, part->request); /* it would fail the next time as well */
            return false;
        }
        pop(ingest, at, worker);
        deliveries[n].tag = part->tag;
    }
    return true;
}

static semel_status ingest_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                                struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct ingest_broker *worker = (struct ingest_broker *)broker;
    struct semel_ingest *ingest = worker->ingest;
    int64_t until_us = semel__steady_us() + (int64_t)wait_ms * 1000;
    max = max < SEMEL_BATCH_MAX ? max : SEMEL_BATCH_MAX;
    *ret_n = 0;
    worker->oldest_us = 0;
    struct semel_delivery *deliveries = semel__arena_alloc(arena, max, sizeof(*deliveries));
    if (deliveries == NULL)
        return semel__fail_memory(err);
    pthread_mutex_lock(&ingest->lock);
    for (bool in_time = wait_ms > 0; in_time && !worker->woken && *next_part(ingest, worker) == NULL;)
        in_time = semel__cond_wait(&ingest->changed, &ingest->lock, until_us);
    bool memory = worker->woken || pop_all(ingest, worker, max, arena, deliveries, ret_n);
    if (ingest->queue != NULL)
        pthread_cond_signal(&ingest->changed); /* there is more than this worker takes now */
    worker->woken = false;
    semel__gauge_set(ingest->polled, (double)(SEMEL_INGEST_PARTS - ingest->n_unused));
    set_fd(ingest);
    pthread_mutex_unlock(&ingest->lock);
    *ret_deliveries = deliveries;
    return memory || *ret_n > 0 ? SEMEL_OK : semel__fail_memory(err);
}

/* ==== replies ==================================================================================== */

static semel_status ingest_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                  struct semel_error *err)
{
    struct semel_ingest *ingest = ((struct ingest_broker *)broker)->ingest;
    size_t n_fenced = 0;
    pthread_mutex_lock(&ingest->lock);
    for (size_t i = 0; i < n; i++) {
        size_t slot = (size_t)(replies[i].tag & UINT32_MAX);
        struct ingest_part *part = slot < SEMEL_INGEST_PARTS ? ingest->slots[slot] : NULL;
        bool ours = part != NULL && part->tag == replies[i].tag;
        n_fenced += !ours;
        if (ours)
            end_part(ingest, part, &replies[i]);
    }
    pthread_mutex_unlock(&ingest->lock);
    return semel__broker_fenced("listen", n_fenced, n, err);
}

/* ==== the handles of workers ===================================================================== */

static void ingest_wake(struct semel_broker *broker)
{
    struct ingest_broker *worker = (struct ingest_broker *)broker;
    pthread_mutex_lock(&worker->ingest->lock);
    worker->woken = true;
    pthread_cond_broadcast(&worker->ingest->changed);
    pthread_mutex_unlock(&worker->ingest->lock);
}

static int ingest_fd(struct semel_broker *broker)
{
    return ((struct ingest_broker *)broker)->ingest->fd;
}

/* There is no connection. Requests that nobody will answer any more must be sent again. */
static semel_status ingest_reopen(struct semel_broker *broker, struct semel_error *err)
{
    struct ingest_broker *worker = (struct ingest_broker *)broker;
    (void)err;
    pthread_mutex_lock(&worker->ingest->lock);
    end_polled(worker->ingest, worker);
    pthread_mutex_unlock(&worker->ingest->lock);
    return SEMEL_OK;
}

void semel__ingest_serve(struct semel_broker *broker, bool on)
{
    struct ingest_broker *worker = (struct ingest_broker *)broker;
    struct semel_ingest *ingest = worker->ingest;
    pthread_mutex_lock(&ingest->lock);
    if (!on)
        end_polled(ingest, worker);
    ingest->n_serving = ingest->n_serving + on - worker->serves;
    worker->serves = on;
    while (ingest->n_serving == 0 && ingest->first != NULL)
        give_up(ingest, ingest->first);
    pthread_mutex_unlock(&ingest->lock);
}

static void ingest_close(struct semel_broker *broker)
{
    semel__ingest_serve(broker, false);
}

static const struct semel_broker_ops ingest_ops = {
    .name = "listen",
    .capabilities = SEMEL_BROKER_SOURCE,
    .close = ingest_close,
    .reopen = ingest_reopen,
    .poll = ingest_poll,
    .answer = ingest_answer,
    .wake = ingest_wake,
    .fd = ingest_fd,
};

int64_t semel__ingest_age_us(const struct semel_broker *broker)
{
    int64_t oldest_us = ((const struct ingest_broker *)broker)->oldest_us;
    return oldest_us > 0 ? semel__steady_us() - oldest_us : 0;
}

void semel__ingest_full(struct semel_broker *broker, int64_t until_us)
{
    struct semel_ingest *ingest = ((struct ingest_broker *)broker)->ingest;
    pthread_mutex_lock(&ingest->lock);
    ingest->full_until_us = until_us;
    int after_s = paused_s(ingest);
    if (after_s > 0)
        refuse_waiting(ingest, after_s);
    pthread_mutex_unlock(&ingest->lock);
}

static struct semel_ingest *ingest_of(const struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_ingest *ingest = serve->ingests;
    while (ingest != NULL && !semel__str_eq(ingest->route->name, route->name))
        ingest = ingest->next;
    return ingest;
}

void semel__serve_paused(struct semel_serve *serve, const struct semel_route *route, const struct semel_breaker *now)
{
    struct semel_ingest *ingest = ingest_of(serve, route);
    if (ingest == NULL)
        return;
    pthread_mutex_lock(&ingest->lock);
    ingest->pause = *now;
    /* If a probe is due at once, the waiting requests are the probe. */
    if (now->state == SEMEL_BREAKER_OPEN && semel__breaker_until(now, semel__now(&semel__clock_real)) != SEMEL_NONE)
        refuse_waiting(ingest, paused_s(ingest));
    pthread_mutex_unlock(&ingest->lock);
}

struct semel_broker *semel__serve_ingest(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_ingest *ingest = ingest_of(serve, route);
    struct ingest_broker *worker = ingest != NULL ? semel__calloc(1, sizeof(*worker)) : NULL;
    if (worker == NULL)
        return NULL;
    worker->base.ops = &ingest_ops;
    worker->ingest = ingest;
    return &worker->base;
}

/* ==== the endpoint =============================================================================== */

struct semel_ingest *semel__ingest_new(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_ingest *ingest = semel__calloc(1, sizeof(*ingest));
    if (ingest == NULL)
        return NULL;
    pthread_mutex_init(&ingest->lock, NULL);
    pthread_rwlock_init(&ingest->key_lock, NULL);
    bool waits = semel__cond_init(&ingest->changed);
    bool keyed = signature_new(&semel__route_listens(route)->signature, &ingest->signature);
    ingest->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ingest->slots = semel__calloc(SEMEL_INGEST_PARTS, sizeof(struct ingest_part *));
    ingest->rounds = semel__calloc(SEMEL_INGEST_PARTS, sizeof(*ingest->rounds));
    ingest->unused = semel__calloc(SEMEL_INGEST_PARTS, sizeof(*ingest->unused));
    if (!waits || !keyed || ingest->fd < 0 || ingest->slots == NULL || ingest->rounds == NULL ||
        ingest->unused == NULL) {
        semel__ingest_free(ingest);
        return NULL;
    }
    for (size_t i = 0; i < SEMEL_INGEST_PARTS; i++)
        ingest->unused[i] = SEMEL_INGEST_PARTS - 1 - i;
    ingest->n_unused = SEMEL_INGEST_PARTS;
    ingest->serve = serve;
    ingest->route = route;
    ingest->ordered = route->policy.order != SEMEL_ORDER_NONE;
    ingest->queue_end = &ingest->queue;
    ingest->gauge = semel__metric_at(semel__stats_family(serve->stats, SEMEL_FAMILY_WAITING), &route->name);
    ingest->polled = semel__metric_at(semel__stats_family(serve->stats, SEMEL_FAMILY_IN_FLIGHT), &route->name);
    ingest->next = serve->ingests;
    serve->ingests = ingest;
    return ingest;
}

void semel__ingest_free(struct semel_ingest *ingest)
{
    assert(ingest->n_serving == 0);
    if (ingest->fd >= 0)
        close(ingest->fd);
    pthread_cond_destroy(&ingest->changed);
    pthread_mutex_destroy(&ingest->lock);
    pthread_rwlock_destroy(&ingest->key_lock);
    signature_free(ingest->signature);
    semel__free(ingest->slots);
    semel__free(ingest->rounds);
    semel__free(ingest->unused);
    semel__free(ingest);
}
