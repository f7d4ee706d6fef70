/* SPDX-License-Identifier: MIT
 *
 * extract.c: fields of a message by rules. See extract.h.
 */
#include "core/extract.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "core/headers.h"
#include "core/row.h"

struct extraction {
    const struct semel_rules *rules;
    const struct semel_delivery *delivery;
    struct semel_arena *arena;
    struct semel__msg *msg;
    size_t payload_max;
    bool parsed;
    struct semel_json *json; /* NULL after parsing: it is not JSON, json_why has the reason */
    struct semel_error json_why;
};

/* ---- rules --------------------------------------------------------------------------------------- */

static bool prefixed(struct semel_str text, struct semel_str prefix, struct semel_str *ret_rest)
{
    if (text.n < prefix.n || memcmp(text.p, prefix.p, prefix.n) != 0)
        return false;
    *ret_rest = (struct semel_str){text.p + prefix.n, text.n - prefix.n};
    return true;
}

semel_status semel__rule_parse(struct semel_str text, struct semel_rule *ret, struct semel_error *err)
{
    struct semel_rule rule = {SEMEL_RULE_DEFAULT, {0}};
    char shown[64];
    if (semel__str_eqz(text, "position"))
        rule.kind = SEMEL_RULE_POSITION;
    else if (semel__str_eqz(text, "digest"))
        rule.kind = SEMEL_RULE_DIGEST;
    else if (semel__str_eqz(text, "stored"))
        rule.kind = SEMEL_RULE_STORED;
    else if (prefixed(text, SEMEL_STR("header:"), &rule.name))
        rule.kind = SEMEL_RULE_HEADER;
    else if (prefixed(text, SEMEL_STR("property:"), &rule.name))
        rule.kind = SEMEL_RULE_PROPERTY;
    else if (prefixed(text, SEMEL_STR("json:"), &rule.name))
        rule.kind = SEMEL_RULE_JSON;
    semel__str_show(shown, sizeof shown, text);
    if (rule.kind == SEMEL_RULE_DEFAULT)
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
            "\"%s\" is no rule; there are header:NAME, property:NAME, json:/POINTER, position, digest and stored",
            shown);
    if (rule.kind == SEMEL_RULE_JSON && !semel__json_pointer_valid(rule.name))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "\"%s\": not a JSON pointer; it must start with / and write ~ as ~0 and / as ~1", shown);
    bool named = rule.kind == SEMEL_RULE_HEADER || rule.kind == SEMEL_RULE_PROPERTY;
    if (named && semel__id_check("name", rule.name, 1, NULL) != SEMEL_OK)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "\"%s\": the name must be UTF-8 text of 1 to %d bytes", shown, SEMEL_ID_MAX);
    *ret = rule;
    return SEMEL_OK;
}

/* ---- lookup -------------------------------------------------------------------------------------- */

static semel_status parse_once(struct extraction *x, struct semel_error *err)
{
    if (x->parsed)
        return SEMEL_OK;
    semel_status status = semel__json_parse(&x->json, x->delivery->payload, x->payload_max, &x->json_why);
    if (status != SEMEL_OK && status != SEMEL_INVALID) {
        if (err != NULL)
            *err = x->json_why;
        return status;
    }
    x->parsed = true;
    return SEMEL_OK;
}

static semel_status from_json(struct extraction *x, struct semel_str pointer, struct semel_str *ret,
                              struct semel_error *why, struct semel_error *err)
{
    static const char *const kinds[] = {"missing", "null", "", "", "neither a string nor a whole number"};
    enum semel_json_kind kind = SEMEL_JSON_MISSING;
    char shown[80];
    semel_status status = parse_once(x, err);
    if (status != SEMEL_OK)
        return status;
    if (x->json == NULL) {
        semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the payload is not JSON: %s", x->json_why.text);
        return SEMEL_OK;
    }
    status = semel__json_get(x->json, pointer, x->arena, &kind, ret, err);
    if (status != SEMEL_OK || kind == SEMEL_JSON_STRING || kind == SEMEL_JSON_INTEGER)
        return status;
    semel__str_show(shown, sizeof shown, pointer);
    semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "json:%s is %s; it must be a string or a whole number",
                shown, kinds[kind]);
    *ret = (struct semel_str){0};
    return SEMEL_OK;
}

static semel_status digest_of(struct extraction *x, struct semel_str *ret, struct semel_error *err)
{
    unsigned char digest[SEMEL_SHA256];
    char text[2 * SEMEL_SHA256 + 1];
    if (!semel__sha256(&x->delivery->payload, 1, digest))
        return semel__fail_memory(err);
    semel__hex(digest, sizeof digest, text);
    return semel__arena_copy(x->arena, semel__str(text), ret) ? SEMEL_OK : semel__fail_memory(err);
}

/* *ret is not given when the field is missing; `why` then has the reason. */
static semel_status look_up(struct extraction *x, const struct semel_rule *rule, struct semel_str *ret,
                            struct semel_error *why, struct semel_error *err)
{
    const struct semel_delivery *d = x->delivery;
    char shown[80];
    *ret = (struct semel_str){0};
    semel__error_clear(why);
    semel__str_show(shown, sizeof shown, rule->name);
    switch (rule->kind) {
    case SEMEL_RULE_DEFAULT:
        return SEMEL_OK;
    case SEMEL_RULE_HEADER:
        *ret = semel__pair_find(d->headers, d->n_headers, rule->name);
        if (!semel__str_given(*ret))
            semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there is no header \"%s\"", shown);
        return SEMEL_OK;
    case SEMEL_RULE_PROPERTY:
        *ret = semel__pair_find(d->properties, d->n_properties, rule->name);
        if (!semel__str_given(*ret))
            semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "there is no property \"%s\"", shown);
        return SEMEL_OK;
    case SEMEL_RULE_JSON:
        return from_json(x, rule->name, ret, why, err);
    case SEMEL_RULE_POSITION:
        *ret = d->position;
        if (!semel__str_given(*ret))
            semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the source gives no position");
        return SEMEL_OK;
    case SEMEL_RULE_DIGEST:
        return digest_of(x, ret, err);
    case SEMEL_RULE_STORED: /* the settings of a route with deliveries have none */
        semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "a delivery has no stored fields");
        return SEMEL_OK;
    }
    return SEMEL_OK;
}

static semel_status note_defect(struct extraction *x, enum semel_defect defect, const char *field,
                                const struct semel_error *why, struct semel_error *err)
{
    char text[320];
    if (x->msg->defect != SEMEL_DEFECT_NONE)
        return SEMEL_OK; /* only the first defect is reported */
    snprintf(text, sizeof text, "%s: %s", field, why->text);
    x->msg->defect = defect;
    return semel__arena_copy(x->arena, semel__str(text), &x->msg->defect_text) ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- the fields ---------------------------------------------------------------------------------- */

static struct semel_str first_of(const struct semel_delivery *d, const char *const *headers, const char *property)
{
    struct semel_str found = {0};
    for (; *headers != NULL && !semel__str_given(found); headers++)
        found = semel__pair_find(d->headers, d->n_headers, semel__str(*headers));
    if (!semel__str_given(found))
        found = semel__pair_find(d->properties, d->n_properties, semel__str(property));
    return found;
}

static semel_status extract_id(struct extraction *x, struct semel_error *err)
{
    static const char *const names[] = {"ce_id", "id", NULL}, *const webhook[] = {"webhook-id", NULL};
    struct semel_error why;
    semel_status status = look_up(x, &x->rules->id, &x->msg->id, &why, err);
    if (status != SEMEL_OK)
        return status;
    if (x->rules->id.kind == SEMEL_RULE_DEFAULT) {
        x->msg->id = first_of(x->delivery, names, "message_id");
        if (!semel__str_given(x->msg->id))
            x->msg->id = first_of(x->delivery, webhook, "message_id");
        if (!semel__str_given(x->msg->id))
            semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                        "none of the headers ce_id, id, webhook-id or the property message_id is there");
    }
    if (semel__str_given(x->msg->id) && semel__id_check("the id", x->msg->id, 1, &why) == SEMEL_OK)
        return SEMEL_OK;
    return note_defect(x, SEMEL_DEFECT_NO_ID, "message id", &why, err);
}

static semel_status extract_key(struct extraction *x, const struct semel_rule *rule, const char *field,
                                struct semel_str *ret, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = look_up(x, rule, ret, &why, err);
    if (status != SEMEL_OK || rule->kind == SEMEL_RULE_DEFAULT)
        return status;
    if (semel__str_given(*ret) && semel__id_check("it", *ret, 1, &why) == SEMEL_OK)
        return SEMEL_OK;
    *ret = (struct semel_str){0};
    return note_defect(x, SEMEL_DEFECT_FIELD, field, &why, err);
}

/* RULE=VALUE, with the whole rule: a header and a property may have the same name. */
static semel_status distinguish(struct extraction *x, const struct semel_rule *rule, struct semel_str *value,
                                struct semel_error *err)
{
    static const char *const kinds[] = {"", "header:", "property:", "json:", "position", "digest"};
    struct semel_buf buf;
    semel__buf_init(&buf, 2 * SEMEL_ID_MAX + 16);
    semel__buf_addz(&buf, kinds[rule->kind]);
    semel__buf_add(&buf, rule->name.p, rule->name.n);
    semel__buf_addz(&buf, "=");
    semel__buf_add(&buf, value->p, value->n);
    bool copied = !buf.failed && semel__arena_copy(x->arena, semel__buf_str(&buf), value);
    semel__buf_done(&buf);
    return copied ? SEMEL_OK : semel__fail_memory(err);
}

/* Several business keys are distinguished by their rules; a single one is taken as it is. */
static semel_status extract_business(struct extraction *x, struct semel_error *err)
{
    for (size_t i = 0; i < x->rules->n_business; i++) {
        const struct semel_rule *rule = &x->rules->business[i];
        struct semel_str value;
        semel_status status = extract_key(x, rule, "business key", &value, err);
        if (status == SEMEL_OK && semel__str_given(value) && x->rules->n_business > 1)
            status = distinguish(x, rule, &value, err);
        if (status != SEMEL_OK)
            return status;
        x->msg->business[x->msg->n_business++] = value;
    }
    return SEMEL_OK;
}

static semel_status extract_version(struct extraction *x, struct semel_error *err)
{
    struct semel_str text;
    struct semel_error why;
    semel_status status = look_up(x, &x->rules->version, &text, &why, err);
    if (status != SEMEL_OK || x->rules->version.kind == SEMEL_RULE_DEFAULT)
        return status;
    if (semel__str_given(text)) {
        if (semel__str_int64(text, &x->msg->version) && x->msg->version >= 0 && x->msg->version < INT64_MAX)
            return SEMEL_OK;
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "it must be a whole number from 0 to 2^63-2");
    }
    x->msg->version = SEMEL_NONE;
    return note_defect(x, SEMEL_DEFECT_FIELD, "version", &why, err);
}

static semel_status extract_time(struct extraction *x, struct semel_error *err)
{
    struct semel_str text;
    struct semel_error why;
    int64_t *to = &x->msg->message_time_us;
    semel_status status = look_up(x, &x->rules->time, &text, &why, err);
    if (status != SEMEL_OK)
        return status;
    if (x->rules->time.kind == SEMEL_RULE_DEFAULT) {
        text = semel__pair_find(x->delivery->headers, x->delivery->n_headers, SEMEL_STR("ce_time"));
        x->msg->timed = x->rules->timed;
        to = &x->msg->envelope_time_us;
        if (!semel__str_given(text))
            return SEMEL_OK;
    }
    if (semel__str_given(text)) {
        if (semel__time_parse(text, to))
            return SEMEL_OK;
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                    "it must be an RFC 3339 time such as 2026-11-15T19:38:00Z");
    }
    *to = SEMEL_NONE;
    return note_defect(x, SEMEL_DEFECT_FIELD, "time", &why, err);
}

static semel_status extract_type(struct extraction *x, struct semel_error *err)
{
    static const char *const names[] = {"ce_type", NULL};
    struct semel_error why;
    semel_status status = look_up(x, &x->rules->type, &x->msg->type, &why, err);
    if (status == SEMEL_OK && x->rules->type.kind == SEMEL_RULE_DEFAULT)
        x->msg->type = first_of(x->delivery, names, "type");
    return status;
}

static semel_status extract_fields(struct extraction *x, struct semel_error *err)
{
    const struct semel_rules *rules = x->rules;
    semel_status status = extract_id(x, err);
    if (status == SEMEL_OK)
        status = extract_type(x, err);
    if (status == SEMEL_OK)
        status = extract_key(x, &rules->order, "order key", &x->msg->order_key, err);
    if (status == SEMEL_OK)
        status = extract_key(x, &rules->lock, "lock key", &x->msg->lock_key, err);
    if (status == SEMEL_OK)
        status = extract_business(x, err);
    if (status == SEMEL_OK)
        status = extract_version(x, err);
    return status == SEMEL_OK ? extract_time(x, err) : status;
}

static semel_status extract_headers(struct extraction *x, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = semel__headers_of(x->delivery, x->arena, &x->msg->headers, &why);
    if (status == SEMEL_INVALID)
        return note_defect(x, SEMEL_DEFECT_SIZE, "headers", &why, err);
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

static semel_status extract_fingerprint(struct extraction *x, struct semel_error *err)
{
    const bool cut = semel__str_given(x->rules->count);
    semel_status status = cut ? parse_once(x, err) : SEMEL_OK;

    if (cut && x->json != NULL)
        semel__json_ignore(x->json, x->rules->count);
    if (status == SEMEL_OK)
        status = semel__fp_compute_json(x->msg->payload, x->json, x->parsed, cut, &x->msg->fp, err);
    return status;
}

semel_status semel__extract(const struct semel_rules *rules, const struct semel_delivery *delivery, size_t payload_max,
                            struct semel_arena *arena, struct semel__msg *ret_msg, struct semel_error *err)
{
    struct extraction x = {
        .rules = rules, .delivery = delivery, .arena = arena, .msg = ret_msg, .payload_max = payload_max};
    semel__msg_init(ret_msg);
    ret_msg->source = delivery->source;
    ret_msg->payload = semel__str_given(delivery->payload) ? delivery->payload : SEMEL_STR("");
    ret_msg->position = delivery->position;
    ret_msg->delivery = delivery->delivery;
    ret_msg->traceparent = semel__pair_find(delivery->headers, delivery->n_headers, SEMEL_STR("traceparent"));
    semel_status status = extract_headers(&x, err);
    if (status == SEMEL_OK)
        status = extract_fields(&x, err);
    if (status == SEMEL_OK && delivery->payload.n <= payload_max)
        status = extract_fingerprint(&x, err);
    semel__json_free(x.json);
    return status;
}
