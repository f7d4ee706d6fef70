/* SPDX-License-Identifier: MIT
 *
 * fingerprint.c: see fingerprint.h for the format.
 *
 * A form is tried on a mark in the buffer: where the body turns out not to have it, the buffer is cut back to the mark
 * and the body is taken as it is. Everything is bounded by the body.
 */
#define _GNU_SOURCE /* memmem */
#include "core/fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"

#define ROOM_PER_BYTE 64 /* a form of empty pairs grows by this at most */
#define ROOM_EXTRA 65536

static void put_count(struct semel_buf *buf, uint64_t n)
{
    unsigned char bytes[8];
    for (int i = 7; i >= 0; i--, n >>= 8)
        bytes[i] = (unsigned char)n;
    semel__buf_add(buf, bytes, sizeof bytes);
}

static void put_field(struct semel_buf *buf, struct semel_str s)
{
    put_count(buf, s.n);
    semel__buf_add(buf, s.p, s.n);
}

static void put_lower(struct semel_buf *buf, struct semel_str s)
{
    put_count(buf, s.n);
    for (size_t i = 0; i < s.n; i++) {
        char c = semel__lower(s.p[i]);
        semel__buf_add(buf, &c, 1);
    }
}

static struct semel_str trim(struct semel_str s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t'))
        s.p++, s.n--;
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

/* By bytes, ignoring the case of ASCII. */
static int word_cmp(struct semel_str a, struct semel_str b)
{
    for (size_t i = 0; i < a.n && i < b.n; i++) {
        int diff = (unsigned char)semel__lower(a.p[i]) - (unsigned char)semel__lower(b.p[i]);
        if (diff != 0)
            return diff;
    }
    return (a.n > b.n) - (a.n < b.n);
}

static struct semel_str cut(struct semel_str s, size_t from, size_t to)
{
    return (struct semel_str){s.p + from, to - from};
}

/* The place of the byte; s.n: there is none. */
static size_t place_of(struct semel_str s, char c)
{
    const char *at = s.n > 0 ? memchr(s.p, c, s.n) : NULL;
    return at != NULL ? (size_t)(at - s.p) : s.n;
}

static struct semel_str header(const struct semel_request *request, const char *name)
{
    for (size_t i = 0; i < request->n_headers; i++)
        if (semel__same_word(request->headers[i].name, name))
            return trim(request->headers[i].value);
    return SEMEL_STR("");
}

/* ---- listed headers ------------------------------------------------------------------------------ */

/* The lowest of the names above `last`; NULL: there is none. */
static const struct semel_str *next_name(const struct semel_request_rule *rule, const struct semel_str *last)
{
    const struct semel_str *best = NULL;
    for (size_t i = 0; i < rule->n_headers; i++) {
        const struct semel_str *name = &rule->headers[i];
        if ((last == NULL || word_cmp(*name, *last) > 0) && (best == NULL || word_cmp(*name, *best) < 0))
            best = name;
    }
    return best;
}

static void put_headers(struct semel_buf *buf, const struct semel_request *request,
                        const struct semel_request_rule *rule)
{
    const struct semel_str *name = NULL;
    uint64_t n = 0;
    while ((name = next_name(rule, name)) != NULL)
        n++;
    put_count(buf, n);
    while ((name = next_name(rule, name)) != NULL) {
        n = 0;
        for (size_t i = 0; i < request->n_headers; i++)
            n += word_cmp(request->headers[i].name, *name) == 0;
        put_lower(buf, *name);
        put_count(buf, n);
        for (size_t i = 0; i < request->n_headers; i++)
            if (word_cmp(request->headers[i].name, *name) == 0)
                put_field(buf, trim(request->headers[i].value));
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static semel_status put_json(struct semel_buf *buf, struct semel_str body, const struct semel_request_rule *rule,
                             bool *ret_fits, struct semel_error *err)
{
    struct semel_json *json;
    struct semel_buf form;
    bool exact = false;
    semel_status status = semel__json_parse(&json, body, body.n, err);
    if (status == SEMEL_INVALID)
        return SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    for (size_t i = 0; i < rule->n_ignore; i++)
        semel__json_ignore(json, rule->ignore[i]);
    semel__buf_init(&form, body.n * 6 + 64); /* an escape grows by six at most, a number by less */
    status = semel__json_canonical(json, &form, &exact, err);
    if (status == SEMEL_OK && exact) {
        put_field(buf, SEMEL_STR("json"));
        put_field(buf, semel__buf_str(&form));
        *ret_fits = true;
    }
    semel__buf_done(&form);
    semel__json_free(json);
    return status;
}

/* ---- pairs and parts ----------------------------------------------------------------------------- */

/* A pair of a form; a header of a part; a part, whose name is what it is sorted by and whose value is all of it. */
struct item {
    struct semel_pair pair;
    size_t place;
    bool any_case;
};

static int item_cmp(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int diff = x->any_case ? word_cmp(x->pair.name, y->pair.name) : semel__str_cmp(x->pair.name, y->pair.name);
    return diff != 0 ? diff : (x->place > y->place) - (x->place < y->place);
}

struct items {
    struct item *p;
    size_t n, cap;
    bool failed;
};

static void items_add(struct items *items, struct semel_str name, struct semel_str value, bool any_case)
{
    if (items->n == items->cap) {
        size_t cap = items->cap > 0 ? items->cap * 2 : 16;
        struct item *grown = semel__realloc(items->p, cap, sizeof *grown);
        if (grown == NULL) {
            items->failed = true;
            return;
        }
        items->p = grown;
        items->cap = cap;
    }
    items->p[items->n] = (struct item){{name, value}, items->n, any_case};
    items->n++;
}

static void items_sort(struct items *items)
{
    if (items->n > 1)
        qsort(items->p, items->n, sizeof *items->p, item_cmp);
}

/* %41 and + are decoded, in place. false: a percent sign without two digits. */
static bool decode(char *p, size_t *n)
{
    size_t w = 0;
    for (size_t i = 0; i < *n; i++) {
        if (p[i] != '%') {
            p[w++] = p[i] == '+' ? ' ' : p[i];
            continue;
        }
        int high = i + 2 < *n ? semel__hex_value(p[i + 1]) : -1, low = i + 2 < *n ? semel__hex_value(p[i + 2]) : -1;
        if (high < 0 || low < 0)
            return false;
        p[w++] = (char)(high * 16 + low);
        i += 2;
    }
    *n = w;
    return true;
}

static bool add_pair(struct items *items, char *text, size_t n)
{
    size_t equals = place_of((struct semel_str){text, n}, '=');
    struct semel_str name = {text, equals}, value = {text + equals, 0};
    if (equals < n) {
        value.p++;
        value.n = n - equals - 1;
    }
    if (!decode(text, &name.n) || !decode((char *)value.p, &value.n))
        return false;
    items_add(items, name, value, false);
    return true;
}

static semel_status put_form(struct semel_buf *buf, struct semel_str body, bool *ret_fits, struct semel_error *err)
{
    struct items items = {0};
    bool sound = true;
    char *text = semel__alloc(body.n + 1);
    if (text == NULL)
        return semel__fail_memory(err);
    if (body.n > 0)
        memcpy(text, body.p, body.n);
    for (size_t at = 0, n; sound && at < body.n; at += n + 1) {
        n = place_of((struct semel_str){text + at, body.n - at}, '&');
        sound = n == 0 || add_pair(&items, text + at, n);
    }
    if (sound && !items.failed) {
        items_sort(&items);
        put_field(buf, SEMEL_STR("form"));
        put_count(buf, items.n);
        for (size_t i = 0; i < items.n; i++) {
            put_field(buf, items.p[i].pair.name);
            put_field(buf, items.p[i].pair.value);
        }
        *ret_fits = true;
    }
    semel__free(items.p);
    semel__free(text);
    return items.failed ? semel__fail_memory(err) : SEMEL_OK;
}

/* The parameter of a media type. false: it is not there, or malformed. */
static bool parameter(struct semel_str type, const char *name, struct semel_str *ret)
{
    for (size_t at = place_of(type, ';'); at < type.n;) {
        struct semel_str rest = trim(cut(type, at + 1, type.n));
        size_t end = place_of(rest, ';'), equals = place_of(rest, '=');
        if (equals < end && semel__same_word(trim(cut(rest, 0, equals)), name)) {
            struct semel_str value = trim(cut(rest, equals + 1, end));
            if (value.n >= 2 && value.p[0] == '"' && value.p[value.n - 1] == '"')
                value = cut(value, 1, value.n - 1);
            *ret = value;
            return value.n > 0 && value.n <= 70 && place_of(value, '"') == value.n && place_of(value, '\\') == value.n;
        }
        at = (size_t)(rest.p - type.p) + end;
    }
    return false;
}

static size_t find(struct semel_str s, struct semel_str wanted)
{
    const char *at = s.n > 0 ? memmem(s.p, s.n, wanted.p, wanted.n) : NULL;
    return at != NULL ? (size_t)(at - s.p) : s.n;
}

/* The headers of a part, sorted, and its body; *ret_key is what it is sorted by among the others. false: malformed. */
static bool put_part(struct semel_buf *buf, struct semel_str part, struct semel_str *ret_key, bool *ret_memory)
{
    struct items headers = {0};
    bool sound = true;
    *ret_key = SEMEL_STR("");
    while (sound && part.n > 0 && part.p[0] != '\r') {
        size_t end = find(part, SEMEL_STR("\r\n")), colon = place_of(part, ':');
        sound = end < part.n && colon < end && colon > 0;
        if (!sound)
            break;
        struct semel_str value = trim(cut(part, colon + 1, end));
        if (semel__same_word(cut(part, 0, colon), "content-disposition"))
            *ret_key = value;
        items_add(&headers, cut(part, 0, colon), value, true);
        part = cut(part, end + 2, part.n);
    }
    sound = sound && part.n >= 2 && part.p[1] == '\n';
    if (sound && !headers.failed) {
        items_sort(&headers);
        put_count(buf, headers.n);
        for (size_t i = 0; i < headers.n; i++) {
            put_lower(buf, headers.p[i].pair.name);
            put_field(buf, headers.p[i].pair.value);
        }
        put_field(buf, cut(part, 2, part.n));
    }
    semel__free(headers.p);
    *ret_memory = *ret_memory && !headers.failed;
    return sound;
}

/* Cuts the next part from the body, behind its delimiter. false: there is none, or the body is malformed. */
static bool next_part(struct semel_str *body, struct semel_str delimiter, struct semel_str *ret)
{
    size_t end = find(*body, delimiter);
    if (end < 2 || end == body->n || memcmp(body->p, "\r\n", 2) != 0)
        return false;
    *ret = cut(*body, 2, end);
    *body = cut(*body, end + delimiter.n, body->n);
    return true;
}

/* The parts go into `parts` one behind the other, then into buf in their order. */
static bool read_parts(struct semel_buf *parts, struct items *items, struct semel_str body, struct semel_str delimiter,
                       bool sorted, bool *ret_memory)
{
    struct semel_str part, key;
    if (body.n < delimiter.n - 2 || memcmp(body.p, delimiter.p + 2, delimiter.n - 2) != 0)
        return false;
    body = cut(body, delimiter.n - 2, body.n);
    while (next_part(&body, delimiter, &part)) {
        size_t from = parts->n;
        if (!put_part(parts, part, &key, ret_memory))
            return false;
        items_add(items, sorted ? key : SEMEL_STR(""), (struct semel_str){NULL, parts->n - from}, false);
    }
    return items->n > 0 && body.n >= 2 && memcmp(body.p, "--", 2) == 0 &&
           (body.n == 2 || (body.n == 4 && memcmp(body.p + 2, "\r\n", 2) == 0));
}

static semel_status put_multipart(struct semel_buf *buf, struct semel_str type, bool sorted, struct semel_str body,
                                  bool *ret_fits, struct semel_error *err)
{
    struct semel_str boundary;
    struct semel_buf parts, delimiter;
    struct items items = {0};
    bool memory = true;
    if (!parameter(type, "boundary", &boundary))
        return SEMEL_OK;
    semel__buf_init(&delimiter, 128);
    semel__buf_init(&parts, buf->max);
    semel__buf_addz(&delimiter, "\r\n--");
    semel__buf_add(&delimiter, boundary.p, boundary.n);
    bool sound = !delimiter.failed && read_parts(&parts, &items, body, semel__buf_str(&delimiter), sorted, &memory);
    memory = memory && !delimiter.failed && !parts.failed && !items.failed;
    if (sound && memory) {
        const char *from = parts.p;
        for (size_t i = 0; i < items.n; i++) {
            items.p[i].pair.value.p = from;
            from += items.p[i].pair.value.n;
        }
        items_sort(&items);
        put_field(buf, SEMEL_STR("multipart"));
        put_count(buf, items.n);
        for (size_t i = 0; i < items.n; i++)
            semel__buf_add(buf, items.p[i].pair.value.p, items.p[i].pair.value.n);
        *ret_fits = true;
    }
    semel__free(items.p);
    semel__buf_done(&parts);
    semel__buf_done(&delimiter);
    return memory ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static bool is_json(struct semel_str media)
{
    return semel__same_word(media, "application/json") ||
           (media.n > 5 && semel__same_word(cut(media, media.n - 5, media.n), "+json"));
}

static struct semel_str media_of(struct semel_str type)
{
    return trim(cut(type, 0, place_of(type, ';')));
}

static bool is_encoded(const struct semel_request *request)
{
    struct semel_str encoding = header(request, "content-encoding");
    return encoding.n > 0 && !semel__same_word(encoding, "identity");
}

bool semel__request_may_be_json(const struct semel_request *request)
{
    bool typed = false;
    for (size_t i = 0; i < request->n_headers; i++) {
        struct semel_str media = media_of(request->headers[i].value);
        if (!semel__same_word(request->headers[i].name, "content-type"))
            continue;
        if (is_json(media) || semel__same_word(media, "text/json"))
            return true;
        typed = typed || media.n > 0;
    }
    return !typed;
}

bool semel__request_is_plain(const struct semel_request *request)
{
    struct semel_str charset = {NULL, 0};
    (void)parameter(header(request, "content-type"), "charset", &charset);
    bool utf8 = !semel__str_given(charset) || semel__same_word(charset, "utf-8") || semel__same_word(charset, "utf8") ||
                semel__same_word(charset, "us-ascii");
    return utf8 && !is_encoded(request);
}

/* The payload in the form of its media type; *ret_fits stays false: it has none. */
static semel_status put_payload(struct semel_buf *buf, const struct semel_request *request,
                                const struct semel_request_rule *rule, struct semel_str media, bool *ret_fits,
                                struct semel_error *err)
{
    if (is_encoded(request))
        return SEMEL_OK;
    if (is_json(media))
        return put_json(buf, request->body, rule, ret_fits, err);
    if (semel__same_word(media, "application/x-www-form-urlencoded"))
        return put_form(buf, request->body, ret_fits, err);
    if (semel__begins_with(media, "multipart/"))
        return put_multipart(buf, header(request, "content-type"), semel__same_word(media, "multipart/form-data"),
                             request->body, ret_fits, err);
    return SEMEL_OK;
}

semel_status semel__request_fingerprint(const struct semel_request *request, const struct semel_request_rule *rule,
                                        struct semel_fp *ret, struct semel_error *err)
{
    struct semel_buf buf;
    bool fits = false;
    struct semel_str media = media_of(header(request, "content-type"));
    size_t room = 0;
    for (size_t i = 0; i < request->n_headers; i++)
        room += request->headers[i].name.n + request->headers[i].value.n + 16;
    semel__buf_init(&buf, room + request->body.n * ROOM_PER_BYTE + request->path.n + request->query.n + ROOM_EXTRA);
    put_field(&buf, SEMEL_STR("semel-http-1"));
    put_field(&buf, request->method);
    put_field(&buf, request->path);
    put_field(&buf, request->query);
    put_lower(&buf, media);
    put_headers(&buf, request, rule);
    semel_status status = put_payload(&buf, request, rule, media, &fits, err);
    if (status == SEMEL_OK && !fits) {
        put_field(&buf, SEMEL_STR("raw"));
        put_count(&buf, request->body.n);
    }
    struct semel_str whole[] = {semel__buf_str(&buf), request->body};
    *ret = (struct semel_fp){.kind = SEMEL_FP_HTTP, .n = SEMEL_SHA256};
    if (status == SEMEL_OK && (buf.failed || !semel__sha256(whole, fits ? 1 : 2, ret->bytes)))
        status = semel__fail_memory(err);
    semel__buf_done(&buf);
    return status;
}
