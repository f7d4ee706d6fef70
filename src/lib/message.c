/* SPDX-License-Identifier: MIT
 *
 * message.c: converts public values into core's, and back. Input is hostile until it was checked here.
 *
 * There are two kinds of errors. A wrong call (a NULL pointer, an unknown enumerator, headers that are no JSON
 * object) is the program's fault and is refused. A wrong field (an id that is too long, a key that is no UTF-8) came
 * with the message: for a single message the caller gets an error, in a batch the message is stored with the reason,
 * so that it does not block the others (I15).
 */
#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "core/headers.h"
#include "lib/handle.h"

#define FINGERPRINT_MAX 63
#define SIZE_BOUND 4096

/* ---- checks of calls ----------------------------------------------------------------------------- */

semel_status semel__check_str(const char *what, struct semel_str s, struct semel_error *err)
{
    if (s.p == NULL && s.n > 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s has %zu bytes at NULL", what, s.n);
    return SEMEL_OK;
}

semel_status semel__check_size(const char *what, size_t size, size_t least, struct semel_error *err)
{
    if (size < least || size > SIZE_BOUND || size % sizeof(void *) != 0) /* longer: a later version */
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "%s.size is %zu; initialise it with its _init function, which sets %zu", what, size, least);
    return SEMEL_OK;
}

static bool starts_object(struct semel_str text)
{
    size_t i = 0;
    while (i < text.n && (text.p[i] == ' ' || text.p[i] == '\t' || text.p[i] == '\r' || text.p[i] == '\n'))
        i++;
    return i < text.n && text.p[i] == '{';
}

semel_status semel__check_json(const char *what, struct semel_str text, size_t max, bool object,
                               struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_error why;
    semel_status status = semel__check_str(what, text, err);
    if (status != SEMEL_OK || !semel__str_given(text))
        return status;
    if (text.n > max)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s has %zu bytes; at most %zu are allowed", what,
                           text.n, max);
    if (object && !starts_object(text))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s must be the text of a JSON object", what);
    status = semel__json_parse(&json, text, max, &why);
    semel__json_free(json);
    if (status != SEMEL_OK)
        return semel__fail(err, status, status == SEMEL_INVALID ? SEMEL_CLASS_BROKEN : why.cls, "%s: %s", what,
                           why.text);
    return SEMEL_OK;
}

semel_status semel__check_result(enum semel_result result, bool may_be_done, struct semel_error *err)
{
    switch (result) {
    case SEMEL_DONE:
        if (may_be_done)
            return SEMEL_OK;
        break;
    case SEMEL_TRANSIENT:
    case SEMEL_PERMANENT:
    case SEMEL_REJECTED:
    case SEMEL_MAYBE:
        return SEMEL_OK;
    }
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "result is %d; it must be %sSEMEL_TRANSIENT, SEMEL_PERMANENT, SEMEL_REJECTED or SEMEL_MAYBE",
                       (int)result, may_be_done ? "SEMEL_DONE, " : "");
}

semel_status semel__check_consumer(const struct semel_msg *msg, struct semel_error *err)
{
    if (msg == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "msg is NULL");
    /* what was added later may be missing */
    semel_status status = semel__check_size("msg", msg->size, offsetof(struct semel_msg, not_before_us), err);
    if (status == SEMEL_OK)
        status = semel__check_str("consumer", msg->consumer, err);
    return status == SEMEL_OK ? semel__id_check("consumer", msg->consumer, 1, err) : status;
}

semel_status semel__parse_consumer(struct semel *s, const struct semel_msg *msg, struct semel_error *err)
{
    semel_status status = semel__check_consumer(msg, err);
    return status == SEMEL_OK ? semel__use_consumer(s, msg->consumer, err) : status;
}

static semel_status check_call(const struct semel_msg *msg, struct semel_error *err)
{
    const struct {
        const char *name;
        struct semel_str value;
    } strs[] = {
        {"source", msg->source},       {"id", msg->id},
        {"type", msg->type},           {"payload", msg->payload},
        {"headers", msg->headers},     {"business_key", msg->business_key},
        {"order_key", msg->order_key}, {"fingerprint", msg->fingerprint},
        {"position", msg->position},   {"traceparent", msg->traceparent},
    };
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < sizeof strs / sizeof strs[0]; i++)
        status = semel__check_str(strs[i].name, strs[i].value, err);
    if (status == SEMEL_OK && msg->headers.n <= SEMEL_HEADERS_MAX)
        status = semel__check_json("headers", msg->headers, SEMEL_HEADERS_MAX, true, err);
    if (status != SEMEL_OK)
        return status;
    if (semel__str_given(msg->fingerprint) && (msg->fingerprint.n < 1 || msg->fingerprint.n > FINGERPRINT_MAX))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "fingerprint has %zu bytes; it must have 1 to %d",
                           msg->fingerprint.n, FINGERPRINT_MAX);
    if (msg->delivery < 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "delivery is %d; it must be 1 for the first, more for the next ones, 0 for not known",
                           msg->delivery);
    return SEMEL_OK;
}

/* ---- fields -------------------------------------------------------------------------------------- */

/* The first wrong text; OK when there is none. In a batch only checks for empty keys: core judges the others. */
static semel_status check_texts(const struct semel__msg *msg, bool strict, struct semel_error *err)
{
    const struct {
        const char *name;
        struct semel_str value;
        size_t min;
        bool key;
    } texts[] = {
        {"id", msg->id, 1, false},
        {"source", msg->source, 0, false},
        {"type", msg->type, 0, false},
        {"business_key", msg->business[0], 1, true},
        {"order_key", msg->order_key, 1, true},
        {"traceparent", msg->traceparent, 0, false},
    };
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < sizeof texts / sizeof texts[0]; i++) {
        bool empty_key = texts[i].key && texts[i].value.n == 0;
        if (semel__str_given(texts[i].value) && (strict || empty_key))
            status = semel__id_check(texts[i].name, texts[i].value, texts[i].min, err);
    }
    return status;
}

static bool version_valid(int64_t version)
{
    return version == SEMEL_NONE || (version >= 0 && version < INT64_MAX);
}

static semel_status check_fields(const struct semel__msg *msg, bool strict, struct semel_error *err)
{
    semel_status status = check_texts(msg, strict, err);
    if (status != SEMEL_OK)
        return status;
    if (!version_valid(msg->version))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "version is %lld; it must be a whole number from 0 to 2^63-2, or SEMEL_NONE",
                           (long long)msg->version);
    if (strict && (msg->position.n > SEMEL_POSITION_MAX || !semel__utf8_valid(msg->position)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "position must be UTF-8 text of at most %d bytes",
                           SEMEL_POSITION_MAX);
    if (strict && (msg->payload.n > SEMEL_PAYLOAD_HARD_MAX || msg->headers.n > SEMEL_HEADERS_MAX))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "payload and headers have %zu and %zu bytes; at most %d and %d are allowed", msg->payload.n,
                           msg->headers.n, SEMEL_PAYLOAD_HARD_MAX, SEMEL_HEADERS_MAX);
    return SEMEL_OK;
}

/* Removes the field and keeps the reason: core stores the message with it and never runs it. */
static semel_status keep_defect(struct semel *s, struct semel__msg *msg, const struct semel_error *why,
                                struct semel_error *err)
{
    msg->defect = SEMEL_DEFECT_FIELD;
    if (!version_valid(msg->version))
        msg->version = SEMEL_NONE;
    if (msg->order_key.n == 0)
        msg->order_key = (struct semel_str){0};
    if (msg->business[0].n == 0)
        msg->n_business = 0;
    return semel__arena_copy(&s->arena, semel__str(why->text), &msg->defect_text) ? SEMEL_OK : semel__fail_memory(err);
}

/* The source is not part of the key if ids are unique across sources. */
static struct semel_str source_of(const struct semel *s, struct semel_str source)
{
    return s->policy.one_source || !semel__str_given(source) ? SEMEL_STR("") : source;
}

/* Without a payload there is no fingerprint: it is not compared. */
static semel_status parse_fingerprint(const struct semel *s, const struct semel_msg *msg, struct semel_fp *ret,
                                      struct semel_error *err)
{
    if (semel__str_given(msg->fingerprint)) {
        *ret = (struct semel_fp){.kind = SEMEL_FP_CALLER, .n = (unsigned char)msg->fingerprint.n};
        memcpy(ret->bytes, msg->fingerprint.p, msg->fingerprint.n);
        return SEMEL_OK;
    }
    if (!semel__str_given(msg->payload) || msg->payload.n > s->policy.payload_max)
        return SEMEL_OK;
    return semel__fp_compute(msg->payload, ret, err);
}

semel_status semel__parse_msg(struct semel *s, const struct semel_msg *msg, bool strict, struct semel__msg *ret,
                              struct semel_error *err)
{
    struct semel_error why;
    semel_status status = check_call(msg, err);
    if (status != SEMEL_OK)
        return status;
    semel__msg_init(ret);
    ret->source = source_of(s, msg->source);
    ret->id = msg->id;
    ret->type = msg->type;
    ret->payload = msg->payload;
    ret->headers = msg->headers;
    ret->position = msg->position;
    ret->traceparent = msg->traceparent;
    ret->order_key = msg->order_key;
    ret->version = msg->version;
    ret->message_time_us = msg->message_time_us;
    if (msg->size >= offsetof(struct semel_msg, not_before_us) + sizeof msg->not_before_us)
        ret->not_before_us = msg->not_before_us;
    ret->delivery = msg->delivery;
    ret->n_business = semel__str_given(msg->business_key) ? 1 : 0;
    ret->business[0] = msg->business_key;
    if (check_fields(ret, strict, &why) != SEMEL_OK) {
        if (strict) {
            if (err != NULL)
                *err = why;
            return SEMEL_INVALID;
        }
        status = keep_defect(s, ret, &why, err);
    }
    if (status == SEMEL_OK)
        status = semel__headers_settle(ret->payload, &s->arena, &ret->headers, err);
    return status == SEMEL_OK ? parse_fingerprint(s, msg, &ret->fp, err) : status;
}

semel_status semel__parse_name(struct semel *s, const struct semel_msg *msg, struct semel__msg *ret,
                               struct semel_error *err)
{
    semel__msg_init(ret);
    semel_status status = semel__check_str("source", msg->source, err);
    if (status == SEMEL_OK)
        status = semel__check_str("id", msg->id, err);
    if (status == SEMEL_OK)
        status = semel__id_check("source", msg->source, 0, err);
    if (status == SEMEL_OK)
        status = semel__id_check("id", msg->id, 1, err);
    ret->source = source_of(s, msg->source);
    ret->id = msg->id;
    return status;
}

/* ---- and back ------------------------------------------------------------------------------------ */

void semel__show_msg(const struct semel *s, const struct semel__msg *msg, struct semel_msg *ret)
{
    semel_msg_init(ret);
    ret->consumer = s->policy.consumer;
    ret->source = msg->source;
    ret->id = msg->id;
    ret->type = msg->type;
    ret->payload = msg->payload;
    ret->headers = msg->headers;
    ret->position = msg->position;
    ret->traceparent = msg->traceparent;
    ret->order_key = semel__str_given(msg->order_key) ? msg->order_key : msg->lock_key;
    ret->version = msg->version;
    ret->message_time_us = msg->message_time_us;
    ret->delivery = msg->delivery;
    if (msg->n_business > 0)
        ret->business_key = msg->business[0];
    if (msg->fp.kind == SEMEL_FP_CALLER)
        ret->fingerprint = (struct semel_str){(const char *)msg->fp.bytes, msg->fp.n};
}

void semel__show_settled(const struct semel_settled *settled, struct semel_verdict *ret)
{
    semel_verdict_init(ret);
    ret->act = settled->act;
    /* the environment failed before its turn */
    ret->why = settled->why != SEMEL_WHY_UNSET ? settled->why : SEMEL_WHY_BUSY;
    ret->status = settled->state;
    ret->attempt = settled->attempt;
    ret->due_us = settled->due_us;
    ret->cls = settled->cls;
    ret->outcome = settled->outcome;
    if (settled->act == SEMEL_LATER && (settled->state == SEMEL_ROW_FAILED || settled->state == SEMEL_ROW_WAITING ||
                                        settled->state == SEMEL_ROW_UNKNOWN))
        ret->hint = SEMEL_STR("its payload is not stored, because none was given or keep_payload is never: the broker "
                              "has to bring the message again");
}

void semel__show_lease(const struct semel_lease *lease, struct semel_verdict *ret)
{
    semel_verdict_init(ret);
    ret->act = SEMEL_RUN;
    ret->why = lease->progress.attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW;
    ret->status = SEMEL_ROW_PROCESSING;
    ret->attempt = lease->progress.attempts;
    ret->token = lease->progress.lease_token;
    ret->lease_until_us = lease->progress.lease_until_us;
    ret->cls = lease->progress.error_class;
}

bool semel__clean_text(struct semel_arena *arena, struct semel_str text, struct semel_str *ret)
{
    char shown[SEMEL_ERROR_TEXT_MAX + 1];
    if (!semel__str_given(text)) {
        *ret = text;
        return true;
    }
    semel__str_show(shown, sizeof shown, text);
    return semel__arena_copy(arena, semel__str(shown), ret);
}
