/* SPDX-License-Identifier: MIT
 *
 * headers.c: the stored form of headers, and those that an event leaves with.
 */
#define _GNU_SOURCE /* memmem */
#include "core/headers.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "core/extract.h"
#include "core/relay.h"
#include "core/row.h"

#define EVENT_HEADERS_MAX 256

static unsigned char lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
}

static bool same_name(struct semel_str a, struct semel_str b)
{
    if (a.n != b.n)
        return false;
    for (size_t i = 0; i < a.n; i++)
        if (lower(a.p[i]) != lower(b.p[i]))
            return false;
    return true;
}

bool semel__header_is_ours(struct semel_str name)
{
    return semel__same_word(name, "id") || semel__same_word(name, "traceparent") || semel__begins_with(name, "ce_") ||
           semel__begins_with(name, "ce-") || semel__begins_with(name, "webhook-");
}

struct semel_str semel__pair_find(const struct semel_pair *pairs, size_t n, struct semel_str name)
{
    for (size_t i = 0; i < n; i++)
        if (same_name(pairs[i].name, name))
            return pairs[i].value.p != NULL ? pairs[i].value : (struct semel_str){"", 0};
    return (struct semel_str){0};
}

static void put_hex(struct semel_buf *buf, struct semel_str s)
{
    semel__buf_addz(buf, "\"");
    for (size_t i = 0; i < s.n; i++)
        semel__buf_addf(buf, "%02x", (unsigned)(unsigned char)s.p[i]);
    semel__buf_addz(buf, "\"");
}

static void put_value(struct semel_buf *buf, struct semel_str s)
{
    if (semel__utf8_valid(s)) {
        semel__json_put_string(buf, s);
        return;
    }
    semel__buf_addz(buf, "{\"hex\":");
    put_hex(buf, s);
    semel__buf_addz(buf, "}");
}

static bool is_hex_of(struct semel_str digits, struct semel_str bytes)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes.n; i++) {
        unsigned char c = (unsigned char)bytes.p[i];
        if (digits.p[2 * i] != hex[c >> 4] || digits.p[2 * i + 1] != hex[c & 15])
            return false;
    }
    return !semel__utf8_valid(bytes);
}

/* Do both get the same name? No member may come twice: the stored form would not be JSON. */
static bool same_member(struct semel_str a, struct semel_str b)
{
    if (a.n == b.n)
        return a.n == 0 || semel__str_eq(a, b);
    if (a.n == 2 * b.n)
        return is_hex_of(a, b);
    return b.n == 2 * a.n && is_hex_of(b, a);
}

static void put_pair(struct semel_buf *buf, const struct semel_pair *pairs, size_t n, size_t i)
{
    bool several = false;
    for (size_t k = 0; k < i; k++)
        if (same_member(pairs[k].name, pairs[i].name))
            return; /* written with the first */
    semel__buf_addz(buf, buf->n > 1 ? "," : "");
    if (semel__utf8_valid(pairs[i].name))
        semel__json_put_string(buf, pairs[i].name);
    else
        put_hex(buf, pairs[i].name);
    for (size_t k = i + 1; k < n; k++)
        several |= same_member(pairs[k].name, pairs[i].name);
    semel__buf_addz(buf, several ? ":[" : ":");
    put_value(buf, pairs[i].value);
    for (size_t k = i + 1; several && k < n; k++) {
        if (!same_member(pairs[k].name, pairs[i].name))
            continue;
        semel__buf_addz(buf, ",");
        put_value(buf, pairs[k].value);
    }
    semel__buf_addz(buf, several ? "]" : "");
}

semel_status semel__headers_json(const struct semel_pair *pairs, size_t n, struct semel_arena *arena,
                                 struct semel_str *ret, struct semel_error *err)
{
    struct semel_buf buf;
    *ret = (struct semel_str){0};
    if (n > SEMEL_HEADER_COUNT_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there are %zu; at most %d are allowed", n,
                           SEMEL_HEADER_COUNT_MAX);
    if (n == 0)
        return SEMEL_OK;
    semel__buf_init(&buf, SEMEL_HEADERS_MAX);
    semel__buf_addz(&buf, "{");
    for (size_t i = 0; i < n; i++)
        put_pair(&buf, pairs, n, i);
    semel__buf_addz(&buf, "}");
    semel_status status = SEMEL_OK;
    if (buf.failed && buf.full)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "together they have more than %d bytes",
                             SEMEL_HEADERS_MAX);
    else if (buf.failed || !semel__arena_copy(arena, semel__buf_str(&buf), ret))
        status = semel__fail_memory(err);
    semel__buf_done(&buf);
    return status;
}

semel_status semel__headers_of(const struct semel_delivery *delivery, struct semel_arena *arena, struct semel_str *ret,
                               struct semel_error *err)
{
    const bool tombstone = !semel__str_given(delivery->payload);
    const struct semel_str reserved = SEMEL_STR(SEMEL_TOMBSTONE);
    size_t n = delivery->n_headers, kept = 0;
    if (!tombstone && !semel__str_given(semel__pair_find(delivery->headers, n, reserved)))
        return semel__headers_json(delivery->headers, n, arena, ret, err);
    struct semel_pair *pairs = semel__arena_alloc(arena, n + 1, sizeof *pairs);
    if (pairs == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        if (!semel__str_given(semel__pair_find(&delivery->headers[i], 1, reserved)))
            pairs[kept++] = delivery->headers[i];
    if (tombstone)
        pairs[kept++] = (struct semel_pair){reserved, SEMEL_STR("true")};
    return semel__headers_json(pairs, kept, arena, ret, err);
}

semel_status semel__headers_settle(struct semel_str payload, struct semel_arena *arena, struct semel_str *headers,
                                   struct semel_error *err)
{
    struct semel_str name, value;
    struct semel_buf buf;
    size_t from = 0;
    if ((semel__str_given(payload) && payload.n == 0) || headers->n == 0 || headers->n > SEMEL_HEADERS_MAX ||
        memmem(headers->p, headers->n, SEMEL_TOMBSTONE, sizeof SEMEL_TOMBSTONE - 1) == NULL)
        return SEMEL_OK;
    semel__buf_init(&buf, headers->n + 2);
    semel__buf_addz(&buf, "{");
    while (semel__json_next(*headers, &from, &name, &value)) {
        if (semel__str_eqz(name, SEMEL_TOMBSTONE))
            continue;
        semel__buf_addz(&buf, buf.n > 1 ? ",\"" : "\"");
        semel__buf_add(&buf, name.p, name.n);
        semel__buf_addz(&buf, "\":");
        semel__buf_add(&buf, value.p, value.n);
    }
    semel__buf_addz(&buf, "}");
    bool ok = !buf.failed && semel__arena_copy(arena, semel__buf_str(&buf), headers);
    semel__buf_done(&buf);
    return ok ? SEMEL_OK : semel__fail_memory(err);
}

/* As a name it is followed by a colon; in a value its quotes would be escaped. */
bool semel__is_tombstone(const struct semel__msg *msg)
{
    static const char name[] = "\"" SEMEL_TOMBSTONE "\":";
    return msg->payload.n == 0 && msg->headers.n > 0 &&
           memmem(msg->headers.p, msg->headers.n, name, sizeof name - 1) != NULL;
}

/* A string gives its text, any other value its JSON as it was written. A text that is no JSON object has no headers. */
static size_t own_headers(struct semel_str json, struct semel_arena *arena, struct semel_pair *pairs)
{
    struct semel_str name, value;
    size_t from = 0, n = 0;
    bool sound;
    while (n < EVENT_HEADERS_MAX && json.n > 0 && json.p[0] == '{' && semel__json_next(json, &from, &name, &value)) {
        if (name.n == 0 || semel__header_is_ours(name))
            continue;
        if (value.n > 0 && value.p[0] == '"' && (!semel__json_decode(value, arena, &value, &sound) || !sound))
            continue;
        pairs[n++] = (struct semel_pair){name, value};
    }
    return n;
}

semel_status semel__event_headers(const struct semel_relay_event *event, struct semel_arena *arena,
                                  struct semel_publish *item, struct semel_error *err)
{
    struct semel_pair pairs[EVENT_HEADERS_MAX + 7];
    char time[SEMEL_TIME_TEXT];
    struct semel_str made = {0};
    size_t n = own_headers(event->headers, arena, pairs);
    const bool timed = event->created_us != SEMEL_NONE;
    if (timed)
        semel__time_format(event->created_us, time);
    if (timed && !semel__arena_copy(arena, semel__str(time), &made))
        return semel__fail_memory(err);
    pairs[n++] = (struct semel_pair){SEMEL_STR("ce_specversion"), SEMEL_STR("1.0")};
    pairs[n++] = (struct semel_pair){SEMEL_STR("ce_id"), event->id};
    pairs[n++] = (struct semel_pair){SEMEL_STR("ce_source"), event->aggregatetype};
    pairs[n++] = (struct semel_pair){SEMEL_STR("ce_type"), event->type};
    pairs[n++] = (struct semel_pair){SEMEL_STR("ce_subject"), event->aggregateid};
    if (timed)
        pairs[n++] = (struct semel_pair){SEMEL_STR("ce_time"), made};
    if (semel__str_given(event->traceparent))
        pairs[n++] = (struct semel_pair){SEMEL_STR("traceparent"), event->traceparent};
    struct semel_pair *kept = semel__arena_alloc(arena, n, sizeof *kept);
    if (kept == NULL)
        return semel__fail_memory(err);
    memcpy(kept, pairs, n * sizeof *kept);
    item->headers = kept;
    item->n_headers = n;
    return SEMEL_OK;
}

const char *semel__event_status_name(enum semel_event_status status)
{
    static const char *const names[] = {"created", "waiting", "publishing", "failed", "dead", "published"};
    return names[status];
}
