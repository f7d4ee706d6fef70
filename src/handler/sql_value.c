/* SPDX-License-Identifier: MIT
 *
 * sql_value.c: rules, and the values of a message by them.
 *
 * The rules are those of core/extract.h as far as they can be asked of a message that was stored and taken up again:
 * its properties are not kept. To them come the fields that the message itself has.
 *
 * Invariants: a text is UTF-8 without NUL, which no database keeps in text, or the message fails for good and says so;
 * nothing of a message is quoted (P71).
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/json.h"
#include "core/extract.h"
#include "handler/sql_private.h"

#define OPTIONAL "optional:"
#define SHOWN 64

/* ---- rules --------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    enum sql_field field;
} fields[] = {
    {"id", SQL_FIELD_ID},
    {"source", SQL_FIELD_SOURCE},
    {"type", SQL_FIELD_TYPE},
    {"order_key", SQL_FIELD_ORDER_KEY},
    {"version", SQL_FIELD_VERSION},
    {"time", SQL_FIELD_TIME},
    {"position", SQL_FIELD_POSITION},
    {"traceparent", SQL_FIELD_TRACEPARENT},
    {"digest", SQL_FIELD_DIGEST},
    {"headers", SQL_FIELD_HEADERS},
    {"body", SQL_FIELD_BODY},
    {"bytes", SQL_FIELD_BYTES},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

static bool parse_field(struct semel_str text, enum sql_field *ret)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (semel__str_eqz(text, fields[i].word)) {
            *ret = fields[i].field;
            return true;
        }
    return false;
}

static bool begins(struct semel_str text, struct semel_str with)
{
    return text.n >= with.n && memcmp(text.p, with.p, with.n) == 0;
}

static semel_status parse_named(struct semel_str text, struct sql_rule *ret, struct semel_error *err)
{
    struct semel_rule parsed;
    semel_status status = semel__rule_parse(text, &parsed, err);
    if (status != SEMEL_OK)
        return status;
    ret->field = parsed.kind == SEMEL_RULE_JSON ? SQL_FIELD_JSON : SQL_FIELD_HEADER;
    ret->name = parsed.name;
    return SEMEL_OK;
}

semel_status semel__sql_rule_parse(struct semel_str text, struct sql_rule *ret, struct semel_error *err)
{
    const struct semel_str optional = SEMEL_STR(OPTIONAL);
    struct semel_str rest = text;
    char shown[SHOWN];
    semel__str_show(shown, sizeof shown, text);
    *ret = (struct sql_rule){.text = text, .optional = begins(text, optional)};
    if (ret->optional)
        rest = (struct semel_str){text.p + optional.n, text.n - optional.n};
    if (parse_field(rest, &ret->field))
        return SEMEL_OK;
    if (begins(rest, SEMEL_STR("json:")) || begins(rest, SEMEL_STR("header:")))
        return parse_named(rest, ret, err);
    if (begins(rest, SEMEL_STR("property:")))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "\"%s\": properties are not kept with a message; use header:NAME", shown);
    return semel__fail(
        err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
        "\"%s\" is no rule; there are id, source, type, order_key, version, time, position, traceparent, "
        "digest, headers, header:NAME, body, bytes and json:/POINTER",
        shown);
}

/* ---- values -------------------------------------------------------------------------------------- */

struct taking {
    const struct semel__msg *msg;
    struct semel_arena *arena;
    const struct sql_rule *rule;
    size_t place; /* of the value, from 1 */
    bool parsed;  /* the payload is JSON */
};

static semel_status refuse(const struct taking *t, const char *what, struct semel_error *err)
{
    char shown[SHOWN];
    semel__str_show(shown, sizeof shown, t->rule->text);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "value $%zu, %s: %s", t->place, shown, what);
}

/* A fingerprint of this kind was made from the parsed payload. */
static semel_status want_json(struct taking *t, struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_error why;
    if (t->parsed || t->msg->fp.kind == SEMEL_FP_JSON)
        return SEMEL_OK;
    semel_status status = semel__json_parse(&json, t->msg->payload, t->msg->payload.n, &why);
    semel__json_free(json);
    t->parsed = status == SEMEL_OK;
    if (status == SEMEL_INVALID) {
        char what[160];
        snprintf(what, sizeof what, "the payload is not JSON: %.120s", why.text);
        return refuse(t, what, err);
    }
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

static semel_status from_raw(struct taking *t, struct semel_str raw, struct sql_value *ret, struct semel_error *err)
{
    bool sound = true;
    if (!semel__str_given(raw))
        return SEMEL_OK;
    if (semel__sql_json_value(raw, t->arena, ret, &sound))
        return SEMEL_OK;
    return sound ? semel__fail_memory(err) : refuse(t, "a string in it is malformed", err);
}

static semel_status take_json(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    semel_status status = want_json(t, err);
    if (status != SEMEL_OK)
        return status;
    return from_raw(t, semel__sql_json_find(t->msg->payload, t->rule->name), ret, err);
}

/* Several with one name are an array, the first of them counts; what is not text is {"hex": ...} (core/headers.h). */
static semel_status take_header(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    struct semel_str raw = {0};
    if (semel__str_given(t->msg->headers))
        raw = semel__sql_json_member(t->msg->headers, t->rule->name);
    if (raw.n > 0 && raw.p[0] == '[')
        raw = semel__sql_json_find(raw, SEMEL_STR("/0"));
    if (raw.n > 0 && raw.p[0] == '{')
        return refuse(t, "the header is not UTF-8 text", err);
    return from_raw(t, raw, ret, err);
}

static semel_status take_made(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    char text[2 * SEMEL_SHA256 + 1];
    unsigned char digest[SEMEL_SHA256];
    const struct semel__msg *msg = t->msg;
    enum sql_kind kind = SQL_TEXT;
    if (t->rule->field == SQL_FIELD_DIGEST) {
        if (!semel__sha256(&msg->payload, 1, digest))
            return semel__fail_memory(err);
        semel__hex(digest, sizeof digest, text);
    } else if (t->rule->field == SQL_FIELD_TIME) {
        if (msg->message_time_us == SEMEL_NONE)
            return SEMEL_OK;
        semel__time_format(msg->message_time_us, text);
    } else {
        if (msg->version == SEMEL_NONE)
            return SEMEL_OK;
        snprintf(text, sizeof text, "%lld", (long long)msg->version);
        kind = SQL_INTEGER;
    }
    ret->kind = kind;
    return semel__arena_copy(t->arena, semel__str(text), &ret->text) ? SEMEL_OK : semel__fail_memory(err);
}

static struct semel_str plain_field(const struct semel__msg *msg, enum sql_field field)
{
    switch (field) {
    case SQL_FIELD_ID:
        return msg->id;
    case SQL_FIELD_SOURCE:
        return semel__str_given(msg->source) ? msg->source : SEMEL_STR("");
    case SQL_FIELD_TYPE:
        return msg->type;
    case SQL_FIELD_ORDER_KEY:
        return msg->order_key;
    case SQL_FIELD_POSITION:
        return msg->position;
    case SQL_FIELD_TRACEPARENT:
        return msg->traceparent;
    case SQL_FIELD_HEADERS:
        return msg->headers;
    case SQL_FIELD_BODY:
    case SQL_FIELD_BYTES:
        return semel__str_given(msg->payload) ? msg->payload : SEMEL_STR("");
    case SQL_FIELD_VERSION:
    case SQL_FIELD_TIME:
    case SQL_FIELD_DIGEST:
    case SQL_FIELD_HEADER:
    case SQL_FIELD_JSON:
        break;
    }
    return (struct semel_str){0};
}

/* A value that is not there stays NULL. */
static semel_status take(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    switch (t->rule->field) {
    case SQL_FIELD_JSON:
        return take_json(t, ret, err);
    case SQL_FIELD_HEADER:
        return take_header(t, ret, err);
    case SQL_FIELD_VERSION:
    case SQL_FIELD_TIME:
    case SQL_FIELD_DIGEST:
        return take_made(t, ret, err);
    case SQL_FIELD_ID:
    case SQL_FIELD_SOURCE:
    case SQL_FIELD_TYPE:
    case SQL_FIELD_ORDER_KEY:
    case SQL_FIELD_POSITION:
    case SQL_FIELD_TRACEPARENT:
    case SQL_FIELD_HEADERS:
    case SQL_FIELD_BODY:
    case SQL_FIELD_BYTES:
        break;
    }
    ret->text = plain_field(t->msg, t->rule->field);
    if (semel__str_given(ret->text))
        ret->kind = t->rule->field == SQL_FIELD_BYTES ? SQL_BYTES : SQL_TEXT;
    return SEMEL_OK;
}

semel_status semel__sql_values(const struct sql_rule *rules, size_t n, const struct semel__msg *msg,
                               struct semel_arena *arena, struct sql_value *ret, struct semel_error *err)
{
    struct taking t = {.msg = msg, .arena = arena};
    for (size_t i = 0; i < n; i++) {
        t.rule = &rules[i];
        t.place = i + 1;
        ret[i] = (struct sql_value){SQL_NULL, {0}};
        semel_status status = take(&t, &ret[i], err);
        if (status != SEMEL_OK)
            return status;
        if (ret[i].kind == SQL_NULL && !t.rule->optional)
            return refuse(&t, "the message has none; write " OPTIONAL " before the rule if that may be", err);
        if (ret[i].kind != SQL_NULL && ret[i].kind != SQL_BYTES && !semel__utf8_valid(ret[i].text))
            return refuse(&t, "it is not UTF-8 text without NUL", err);
    }
    return SEMEL_OK;
}
