/* SPDX-License-Identifier: MIT
 *
 * batch.c: the messages of a batch. See batch.h.
 */
#include "ext/batch.h"

#include <limits.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

enum member_kind { MEMBER_TEXT, MEMBER_ID, MEMBER_NUMBER, MEMBER_VERSION, MEMBER_TIME, MEMBER_OBJECT, MEMBER_JSON };

static const struct member {
    const char *name;
    enum member_kind kind;
    size_t offset; /* of a struct semel_str, or of an int64_t */
    unsigned calls;
} members[] = {
    {"message_id", MEMBER_ID, offsetof(struct ext_one, msg.id), EXT_FOR_BEGIN | EXT_FOR_DONE | EXT_FOR_FAIL},
    {"source", MEMBER_TEXT, offsetof(struct ext_one, msg.source), EXT_FOR_BEGIN | EXT_FOR_DONE | EXT_FOR_FAIL},
    {"type", MEMBER_TEXT, offsetof(struct ext_one, msg.type), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"payload", MEMBER_JSON, offsetof(struct ext_one, msg.payload), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"raw", MEMBER_TEXT, offsetof(struct ext_one, raw), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"headers", MEMBER_OBJECT, offsetof(struct ext_one, msg.headers), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"business_key", MEMBER_TEXT, offsetof(struct ext_one, msg.business_key), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"order_key", MEMBER_TEXT, offsetof(struct ext_one, msg.order_key), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"version", MEMBER_VERSION, offsetof(struct ext_one, msg.version), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"fingerprint", MEMBER_TEXT, offsetof(struct ext_one, msg.fingerprint), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"message_time", MEMBER_TIME, offsetof(struct ext_one, msg.message_time_us), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"delivery", MEMBER_NUMBER, offsetof(struct ext_one, delivery), EXT_FOR_BEGIN | EXT_FOR_FAIL},
    {"outcome", MEMBER_JSON, offsetof(struct ext_one, outcome), EXT_FOR_DONE},
    {"class", MEMBER_TEXT, offsetof(struct ext_one, result), EXT_FOR_FAIL},
    {"reason", MEMBER_TEXT, offsetof(struct ext_one, reason), EXT_FOR_FAIL},
};

static semel_status refuse_one(const struct ext_batch *batch, const char *name, const char *right,
                               struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s: message %zu: %s %s", batch->who, batch->n + 1,
                       name, right);
}

static bool is_number(struct semel_str value, int64_t *ret)
{
    return value.n > 0 && value.p[0] != '"' && semel__str_int64(value, ret);
}

static semel_status read_value(const struct ext_batch *batch, const struct member *member, struct semel_str value,
                               struct ext_one *one, struct semel_error *err)
{
    struct semel_str *text = (struct semel_str *)(void *)((char *)one + member->offset);
    int64_t *number = (int64_t *)(void *)((char *)one + member->offset), ignored;
    struct semel_str said = {0};
    bool sound = true;
    bool string = value.p[0] == '"';
    if (string && member->kind != MEMBER_JSON && !semel__json_decode(value, batch->arena, &said, &sound))
        return semel__fail_memory(err);
    switch (member->kind) {
    case MEMBER_ID:
        *text = string ? said : value;
        return string || is_number(value, &ignored) ? SEMEL_OK : refuse_one(batch, member->name, "must be text", err);
    case MEMBER_TEXT:
        *text = said;
        return string ? SEMEL_OK : refuse_one(batch, member->name, "must be text", err);
    case MEMBER_NUMBER:
    case MEMBER_VERSION: /* as text it survives a program whose numbers are doubles */
        if (string && member->kind == MEMBER_VERSION)
            value = said;
        return is_number(value, number) && *number >= 0
                   ? SEMEL_OK
                   : refuse_one(batch, member->name, "must be a whole number from 0", err);
    case MEMBER_TIME:
        return (is_number(value, number) && *number >= 0) || (string && semel__time_parse(said, number))
                   ? SEMEL_OK
                   : refuse_one(batch, member->name, "must be a time with its zone such as 2026-11-15T19:38:00Z", err);
    case MEMBER_OBJECT:
        *text = value;
        return value.p[0] == '{' ? SEMEL_OK : refuse_one(batch, member->name, "must be a JSON object", err);
    case MEMBER_JSON:
        *text = value;
        return SEMEL_OK;
    }
    return SEMEL_OK;
}

static semel_status read_member(const struct ext_batch *batch, struct semel_str name, struct semel_str value,
                                struct ext_one *one, struct semel_error *err)
{
    char shown[64];
    for (int i = 0; i < (int)(sizeof(members) / sizeof(members[0])); i++)
        if ((members[i].calls & batch->call) != 0 && semel__str_eqz(name, members[i].name))
            return semel__str_eqz(value, "null") ? SEMEL_OK : read_value(batch, &members[i], value, one, err);
    semel__str_show(shown, sizeof(shown), name);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "%s: message %zu has a member \"%.40s\", which is none", batch->who, batch->n + 1, shown);
}

static semel_status read_one(struct ext_batch *batch, struct semel_str object, struct semel_error *err)
{
    struct ext_one *one = &batch->all[batch->n];
    struct semel_str name, value;
    size_t from = 0;
    semel_status status = SEMEL_OK;
    semel_msg_init(&one->msg);
    if (object.n == 0 || object.p[0] != '{')
        return refuse_one(batch, "it", "must be an object such as {\"message_id\": \"evt-1\"}", err);
    while (status == SEMEL_OK && semel__json_next(object, &from, &name, &value))
        status = read_member(batch, name, value, one, err);
    if (status == SEMEL_OK && semel__str_given(one->raw) && semel__str_given(one->msg.payload))
        status = refuse_one(batch, "payload", "and raw are both given; give one of them", err);
    if (status == SEMEL_OK && batch->call == EXT_FOR_DONE && !semel__str_given(one->msg.id))
        status = refuse_one(batch, "message_id", "is missing", err);
    if (status == SEMEL_OK && one->delivery > INT_MAX)
        status = refuse_one(batch, "delivery", "is too large", err);
    if (semel__str_given(one->raw))
        one->msg.payload = one->raw;
    one->msg.delivery = (int)one->delivery;
    return status;
}

semel_status semel__ext_batch_read(struct ext_batch *batch, struct semel_str consumer, struct semel_str list,
                                   struct semel_error *err)
{
    struct semel_str value;
    size_t from = 0, n = 0;
    semel_status status = SEMEL_OK;
    list = semel__json_find(list, SEMEL_STR("")); /* without blanks around it */
    if (list.n == 0 || list.p[0] != '[')
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s: messages must be a JSON array of objects",
                           batch->who);
    while (semel__json_next(list, &from, NULL, &value))
        n++;
    if (n > EXT_BATCH_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "%s: messages has %zu elements; at most %d are allowed", batch->who, n, EXT_BATCH_MAX);
    batch->all = semel__arena_alloc(batch->arena, n + 1, sizeof(*batch->all));
    if (batch->all == NULL)
        return semel__fail_memory(err);
    for (from = 0; status == SEMEL_OK && semel__json_next(list, &from, NULL, &value);) {
        status = read_one(batch, value, err);
        batch->all[batch->n].msg.consumer = consumer;
        batch->n += status == SEMEL_OK;
    }
    return status;
}

semel_status semel__ext_batch_result(const struct ext_batch *batch, size_t i, enum semel_result *ret,
                                     struct semel_error *err)
{
    struct semel_str text = batch->all[i].result;
    *ret = SEMEL_MAYBE;
    if (semel__str_eqz(text, "unknown") || (semel__result_parse(text, ret) && *ret != SEMEL_DONE))
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "%s: message %zu: class must be transient, permanent, rejected or unknown", batch->who, i + 1);
}
