/* SPDX-License-Identifier: MIT
 *
 * object.c: JSON on stdout, and times for people.
 *
 * Invariants: what is printed is one JSON document in UTF-8, whatever the values are. JSON goes to terminals too, so
 * what a terminal might obey is written as \uXXXX, which means the same; text that is not UTF-8 has U+FFFD in place
 * of each bad byte.
 */
#include "base/json.h"
#include "cli/cli.h"

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

/* One character of `s`, as it may stand inside a string; returns how many bytes of `s` it took. */
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

void cli_json_string(struct semel_buf *buf, struct semel_str value)
{
    semel__buf_addz(buf, "\"");
    while (value.n > 0) {
        size_t n = put_char(buf, value);
        value.p += n;
        value.n -= n;
    }
    semel__buf_addz(buf, "\"");
}

/* Outside of strings JSON has no character that is not shown but blanks. */
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

void cli_json_raw(struct semel_buf *buf, struct semel_str json)
{
    struct semel_json *parsed = NULL;
    struct semel_error err;
    if (!semel__str_given(json)) {
        semel__buf_addz(buf, "null");
    } else if (semel__json_parse(&parsed, json, OBJECT_MAX, &err) == SEMEL_OK) {
        put_json(buf, json);
    } else {
        cli_json_string(buf, json);
    }
    semel__json_free(parsed);
}

/* ---- an object ----------------------------------------------------------------------------------- */

void cli_object_init(struct cli_object *object)
{
    *object = (struct cli_object){0};
    semel__buf_init(&object->buf, OBJECT_MAX);
    semel__buf_addz(&object->buf, "{");
}

static struct semel_buf *member(struct cli_object *object, const char *name)
{
    if (object->any)
        semel__buf_addz(&object->buf, ",");
    object->any = true;
    cli_json_string(&object->buf, semel__str(name));
    semel__buf_addz(&object->buf, ":");
    return &object->buf;
}

void cli_object_text(struct cli_object *object, const char *name, struct semel_str value)
{
    struct semel_buf *buf = member(object, name);
    if (semel__str_given(value))
        cli_json_string(buf, value);
    else
        semel__buf_addz(buf, "null");
}

void cli_object_number(struct cli_object *object, const char *name, int64_t value)
{
    struct semel_buf *buf = member(object, name);
    if (value == SEMEL_NONE)
        semel__buf_addz(buf, "null");
    else
        semel__buf_addf(buf, "%lld", (long long)value);
}

void cli_object_bool(struct cli_object *object, const char *name, bool value)
{
    semel__buf_addz(member(object, name), value ? "true" : "false");
}

void cli_object_time(struct cli_object *object, const char *name, int64_t us)
{
    char text[SEMEL_TIME_TEXT];
    semel__time_format(us, text);
    cli_object_text(object, name, semel__str(us != SEMEL_NONE ? text : NULL));
}

void cli_object_raw(struct cli_object *object, const char *name, struct semel_str json)
{
    cli_json_raw(member(object, name), json);
}

struct semel_str cli_object_end(struct cli_object *object)
{
    semel__buf_addz(&object->buf, "}");
    return semel__buf_str(&object->buf);
}

void cli_object_done(struct cli_object *object)
{
    semel__buf_done(&object->buf);
}

int cli_object_print(struct cli_object *object)
{
    struct semel_str text = cli_object_end(object);
    int code = CLI_OK;
    if (object->buf.failed) {
        code = cli_fail(CLI_FAILED, object->buf.full ? "there is too much to print" : "out of memory");
    } else {
        fwrite(text.p, 1, text.n, stdout);
        fputs("\n", stdout);
    }
    cli_object_done(object);
    return code;
}

/* ---- times for people ---------------------------------------------------------------------------- */

void cli_time(int64_t us, char *out, size_t size)
{
    char text[SEMEL_TIME_TEXT];
    if (us == SEMEL_NONE) {
        snprintf(out, size, "%s", "");
        return;
    }
    semel__time_format(us, text);
    text[strcspn(text, ".")] = '\0';
    snprintf(out, size, "%sZ", text);
}

void cli_ago(int64_t us, int64_t now_us, char *out, size_t size)
{
    static const struct {
        const char *name;
        int64_t seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    int64_t away_us = 0;
    if (us == SEMEL_NONE || size == 0) {
        snprintf(out, size, "%s", "");
        return;
    }
    if (__builtin_sub_overflow(us, now_us, &away_us) || away_us == INT64_MIN)
        away_us = us > now_us ? INT64_MAX : -INT64_MAX;
    int64_t seconds = (away_us < 0 ? -away_us : away_us) / 1000000;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (seconds >= 2 * units[i].seconds || (seconds > 0 && units[i].seconds == 1)) {
            long long n = (long long)(seconds / units[i].seconds);
            snprintf(out, size, away_us < 0 ? "%lld %s ago" : "in %lld %s", n, units[i].name);
            return;
        }
    snprintf(out, size, "now");
}
