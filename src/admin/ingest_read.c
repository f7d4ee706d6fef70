/* SPDX-License-Identifier: MIT
 *
 * ingest_read.c: from a request to messages.
 *
 *   application/cloudevents+json         one event: its attributes become headers ce_NAME, its data the payload
 *   application/cloudevents-batch+json   an array of them
 *   application/x-ndjson                 one of them a line
 *   anything else                        the body is the payload; headers ce-NAME become ce_NAME (binary mode)
 *
 * The other headers of the request come along, in lower case, without those that belong to the connection or to who
 * sends. What an event says of itself stands before them and wins. Its attributes have one spelling: names in JSON are
 * lower case letters and digits, ce_NAME is no header of HTTP, ce-NAME comes once.
 *
 * Invariants: a refusal says what is wrong, where, and what would be right, and quotes no payload; one bad event of a
 * batch refuses the batch, for its sender must know which ones were taken.
 */
#include <stdio.h>
#include <strings.h>

#include "admin/ingest.h"
#include "admin/text.h"
#include "base/error.h"
#include "base/digest.h"
#include "base/json.h"
#include "base/json_tree.h"

struct reading {
    struct ingest_request *request;
    const struct semel_http_request *req;
    struct semel_arena *arena;
    size_t body_max;
    struct semel_pair *common; /* headers that every message of the request has */
    size_t n_common;
    size_t cap; /* of parts */
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

/* Is it named in Connection, and so for the next hop only? */
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

/* In binary mode what is not ASCII is escaped with percent signs; what is no escape stays. */
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

/* Two attributes of one name, or two spellings of it, would leave it open which of them is the event's. 0 or 400. */
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
static bool take_header(struct reading *r, const struct semel_http_pair *header, bool plain)
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

static int take_headers(struct reading *r, bool plain)
{
    const struct semel_http_request *req = r->req;
    struct semel_str connection = semel__http_header(req, "Connection");
    r->common = semel__arena_alloc(r->arena, req->n_headers + 1, sizeof(*r->common));
    if (r->common == NULL)
        return no_memory(r);
    for (size_t i = 0; i < req->n_headers; i++) {
        if (stays_behind(req->headers[i].name) || hops(connection, req->headers[i].name))
            continue;
        int status = check_header(r, i);
        if (status != 0)
            return status;
        if (!take_header(r, &req->headers[i], plain))
            return no_memory(r);
    }
    return 0;
}

/* A key in quotes, as the draft has it, or bare. */
static void take_key(const struct reading *r, struct ingest_part *part)
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

static int take_attributes(struct reading *r, size_t index, const struct semel_json_node *event,
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

static int take_data(struct reading *r, size_t index, const struct semel_json_node *event, struct semel_str raw,
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

static int take_event(struct reading *r, const struct semel_json_node *event, struct semel_str raw)
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
    int status = take_attributes(r, index, event, part);
    if (status == 0)
        status = take_data(r, index, event, raw, part);
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
    status = take_event(r, json->root, text);
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
        status = semel__json_next(text, &at, NULL, &raw) ? take_event(r, node, raw) : no_memory(r);
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

int semel__ingest_read(struct ingest_request *request, size_t body_max, struct semel_error *err)
{
    const struct semel_http_request *req = semel__http_request(request->x);
    struct reading r = {request, req, &request->arena, body_max, NULL, 0, 0, err};
    struct semel_str type = media_type(req);
    bool structured = semel__same_word(type, "application/cloudevents+json");
    bool batch = semel__same_word(type, "application/cloudevents-batch+json");
    bool lines = semel__same_word(type, "application/x-ndjson");
    int status = take_headers(&r, !structured && !batch && !lines);
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
        take_key(&r, &request->parts[0]);
    for (size_t i = 0; i < request->n; i++)
        request->parts[i].request = request;
    request->bytes += request->arena.used;
    return status;
}
