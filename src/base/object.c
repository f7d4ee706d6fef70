/* SPDX-License-Identifier: MIT
 *
 * object.c: JSON for programs that is safe on terminals; see object.h.
 */
#include "base/object.h"

#include <string.h>

#include "base/clock.h"
#include "base/json.h"

#define OBJECT_MAX ((size_t)512 << 20)

/* ---- strings and values -------------------------------------------------------------------------- */

static void put_escape(struct semel_buf *buf, uint32_t c)
{
    if (c > 0xFFFF) {
        c -= 0x10000;
        semel__buf_addf(buf, "\\u%04x\\u%04x", (unsigned)(0xD800 | c >> 10), (unsigned)(0xDC00 | (c & 0x3FF)));
    } else {
        semel__buf_addf(buf, "\\u%04x", (unsigned)c);
    }
}

/* One character of `s`, escaped for use inside a string; returns how many bytes of `s` it took. */
static size_t put_char(struct semel_buf *buf, struct semel_str s)
{
    uint32_t c = 0;
    size_t n = semel__utf8_next(s, &c);
    if (n == 0) {
        semel__buf_addz(buf, "\xEF\xBF\xBD");
        return 1;
    }
    if (c == '"' || c == '\\')
        semel__buf_addz(buf, "\\");
    if (semel__utf8_shown(c))
        semel__buf_add(buf, s.p, n);
    else
        put_escape(buf, c);
    return n;
}

void semel__json_put_shown(struct semel_buf *buf, struct semel_str value)
{
    semel__buf_addz(buf, "\"");
    while (value.n > 0) {
        size_t n = put_char(buf, value);
        value.p += n;
        value.n -= n;
    }
    semel__buf_addz(buf, "\"");
}

/* Outside of strings, JSON has no hidden characters except blanks. */
static void put_json(struct semel_buf *buf, struct semel_str json)
{
    while (json.n > 0) {
        uint32_t c = 0;
        size_t n = semel__utf8_next(json, &c);
        n = n > 0 ? n : 1;
        if (c < 0x20)
            semel__buf_addz(buf, " ");
        else if (semel__utf8_shown(c))
            semel__buf_add(buf, json.p, n);
        else
            put_escape(buf, c);
        json.p += n;
        json.n -= n;
    }
}

static void put_value(struct semel_buf *buf, struct semel_str json)
{
    struct semel_json *parsed = NULL;
    struct semel_error err;
    if (!semel__str_given(json)) {
        semel__buf_addz(buf, "null");
    } else if (semel__json_parse(&parsed, json, OBJECT_MAX, &err) == SEMEL_OK) {
        put_json(buf, json);
    } else {
        semel__json_put_shown(buf, json);
    }
    semel__json_free(parsed);
}

/* ---- an object ----------------------------------------------------------------------------------- */

void semel__object_init(struct semel_object *object)
{
    *object = (struct semel_object){0};
    semel__buf_init(&object->buf, OBJECT_MAX);
    semel__buf_addz(&object->buf, "{");
}

static struct semel_buf *member(struct semel_object *object, const char *name)
{
    if (object->any)
        semel__buf_addz(&object->buf, ",");
    object->any = true;
    semel__json_put_shown(&object->buf, semel__str(name));
    semel__buf_addz(&object->buf, ":");
    return &object->buf;
}

void semel__object_text(struct semel_object *object, const char *name, struct semel_str value)
{
    struct semel_buf *buf = member(object, name);
    if (semel__str_given(value))
        semel__json_put_shown(buf, value);
    else
        semel__buf_addz(buf, "null");
}

void semel__object_number(struct semel_object *object, const char *name, int64_t value)
{
    struct semel_buf *buf = member(object, name);
    if (value == SEMEL_NONE)
        semel__buf_addz(buf, "null");
    else
        semel__buf_addf(buf, "%lld", (long long)value);
}

void semel__object_bool(struct semel_object *object, const char *name, bool value)
{
    semel__buf_addz(member(object, name), value ? "true" : "false");
}

void semel__object_time(struct semel_object *object, const char *name, int64_t us)
{
    char text[SEMEL_TIME_TEXT];
    semel__time_format(us, text);
    semel__object_text(object, name, semel__str(us != SEMEL_NONE ? text : NULL));
}

void semel__object_raw(struct semel_object *object, const char *name, struct semel_str json)
{
    put_value(member(object, name), json);
}

struct semel_str semel__object_end(struct semel_object *object)
{
    semel__buf_addz(&object->buf, "}");
    return semel__buf_str(&object->buf);
}

void semel__object_done(struct semel_object *object)
{
    semel__buf_done(&object->buf);
}

static void put_list(struct semel_buf *buf, const char *between, size_t n, semel_object_filler fill, const void *ctx)
{
    semel__buf_addz(buf, "[");
    for (size_t i = 0; i < n; i++) {
        struct semel_object one;
        semel__object_init(&one);
        fill(&one, ctx, i);
        struct semel_str text = semel__object_end(&one);
        semel__buf_addz(buf, i > 0 ? between : "");
        semel__buf_add(buf, text.p, text.n);
        buf->failed |= one.buf.failed;
        semel__object_done(&one);
    }
    semel__buf_addz(buf, "]");
}

void semel__object_list(struct semel_object *object, const char *name, size_t n, semel_object_filler fill,
                        const void *ctx)
{
    put_list(member(object, name), ",", n, fill, ctx);
}

void semel__object_texts(struct semel_object *object, const char *name, const struct semel_str *texts, size_t n)
{
    struct semel_buf *buf = member(object, name);
    semel__buf_addz(buf, "[");
    for (size_t i = 0; i < n; i++) {
        semel__buf_addz(buf, i > 0 ? "," : "");
        semel__json_put_shown(buf, texts[i]);
    }
    semel__buf_addz(buf, "]");
}

void semel__json_put_list(struct semel_buf *buf, size_t n, semel_object_filler fill, const void *ctx)
{
    put_list(buf, ",\n", n, fill, ctx);
    semel__buf_addz(buf, "\n");
}
