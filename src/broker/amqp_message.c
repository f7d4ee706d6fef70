/* SPDX-License-Identifier: MIT
 *
 * amqp_message.c: from frames to a message, and what the message says about itself as names and text.
 *
 * A message is its delivery, its header, and as many pieces of its body as it takes. librabbitmq's own way to put it
 * together waits for the next piece for ever. This one takes what has come and can be left in the middle of a message.
 *
 * A header of a plain type becomes its text: numbers in decimal, booleans as true and false, times as seconds since
 * 1970, bytes as they are. What lies in a table or an array is called by its path, `x-death.0.queue`, and comes behind
 * all plain ones; of it only NESTED_MAX are kept, and nothing deeper than DEPTH_MAX. What cannot be text (nothing, a
 * number that is none) is left out. Headers of CloudEvents, `cloudEvents:NAME` or `cloudEvents_NAME`, are called
 * `ce_NAME`, and their times are RFC 3339.
 *
 * Invariants: what is kept of a frame is copied, so that librabbitmq can have its memory back after each. The server
 * may lie about everything: a piece that does not belong here, or is too long, ends the connection. The table is
 * hostile, but librabbitmq has made it of one frame. HEADERS_MAX is more than core accepts (SEMEL_HEADER_COUNT_MAX), so
 * that a message with too many is seen to have too many.
 */
#include "broker/amqp_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/number.h"

#define ARENA_MAX ((size_t)8 << 20) /* a header is one frame, and a frame has a bound; texts may be longer */
#define KEEP_BODY ((size_t)1 << 20) /* a larger buffer is not kept for the next message */
#define KEEP_ARENA ((size_t)64 << 10)
#define HEADERS_MAX 1024
#define NESTED_MAX 128
#define DEPTH_MAX 4
#define NAME_MAX_BYTES 1024
#define DELIVERIES_MAX 1000000
#define SECONDS_MAX UINT64_C(253402300799) /* the end of the year 9999 */

/* ---- a value ------------------------------------------------------------------------------------------- */

/* false: it has no text. A text of `room` bytes is enough for all but strings, which are borrowed. */
static bool number_text(const amqp_field_value_t *value, char *out, size_t room)
{
    switch (value->kind) {
    case AMQP_FIELD_KIND_I8:
        return snprintf(out, room, "%d", value->value.i8) > 0;
    case AMQP_FIELD_KIND_U8:
        return snprintf(out, room, "%u", value->value.u8) > 0;
    case AMQP_FIELD_KIND_I16:
        return snprintf(out, room, "%d", value->value.i16) > 0;
    case AMQP_FIELD_KIND_U16:
        return snprintf(out, room, "%u", value->value.u16) > 0;
    case AMQP_FIELD_KIND_I32:
        return snprintf(out, room, "%ld", (long)value->value.i32) > 0;
    case AMQP_FIELD_KIND_U32:
        return snprintf(out, room, "%lu", (unsigned long)value->value.u32) > 0;
    case AMQP_FIELD_KIND_I64:
        return snprintf(out, room, "%lld", (long long)value->value.i64) > 0;
    case AMQP_FIELD_KIND_U64:
    case AMQP_FIELD_KIND_TIMESTAMP:
        return snprintf(out, room, "%llu", (unsigned long long)value->value.u64) > 0;
    default:
        return false;
    }
}

static bool double_text(double value, char out[SEMEL_NUMBER_TEXT])
{
    struct semel_decimal decimal;

    if (!isfinite(value))
        return false;
    decimal = semel__decimal_of_double(value);
    out[semel__decimal_write(&decimal, out)] = '\0';
    return true;
}

/* A signed number with a point before its last digits. More of them than it has are zeros: "0.007". */
static bool decimal_text(amqp_decimal_t decimal, char *out, size_t room)
{
    const long value = (int32_t)decimal.value;
    const int places = decimal.decimals;
    char digits[16];
    int n = snprintf(digits, sizeof digits, "%ld", labs(value)), lead = places >= n ? places - n + 1 : 0;

    if (places > 40)
        return false;
    snprintf(out, room, "%s%.*s%s", value < 0 ? "-" : "", lead, "00000000000000000000000000000000000000000000", digits);
    n = (int)strlen(out);
    if (places > 0) {
        memmove(out + n - places + 1, out + n - places, (size_t)places + 1);
        out[n - places] = '.';
    }
    return true;
}

static bool time_text(uint64_t seconds, char out[SEMEL_TIME_TEXT])
{
    if (seconds > SECONDS_MAX)
        return false;
    semel__time_format((int64_t)seconds * 1000000, out);
    return true;
}

#define TEXT 64

/* The text lies in `out` or is the value's own. false: there is none. */
static bool value_text(const amqp_field_value_t *value, bool event, char out[TEXT], struct semel_str *ret)
{
    bool known;

    switch (value->kind) {
    case AMQP_FIELD_KIND_UTF8:
    case AMQP_FIELD_KIND_BYTES:
        *ret = semel__amqp_str(value->value.bytes);
        return true;
    case AMQP_FIELD_KIND_BOOLEAN:
        *ret = value->value.boolean ? SEMEL_STR("true") : SEMEL_STR("false");
        return true;
    case AMQP_FIELD_KIND_F32:
        known = double_text((double)value->value.f32, out);
        break;
    case AMQP_FIELD_KIND_F64:
        known = double_text(value->value.f64, out);
        break;
    case AMQP_FIELD_KIND_DECIMAL:
        known = decimal_text(value->value.decimal, out, TEXT);
        break;
    default:
        known = event && value->kind == AMQP_FIELD_KIND_TIMESTAMP ? time_text(value->value.u64, out)
                                                                  : number_text(value, out, TEXT);
    }
    if (known)
        *ret = semel__str(out);
    return known;
}

/* ---- headers ------------------------------------------------------------------------------------------- */

struct flat {
    struct semel_arena *arena;
    struct semel_pair *pairs;
    size_t n, max;
    char name[NAME_MAX_BYTES]; /* of what is being looked at */
    bool no_memory;
};

/* "cloudEvents:id" is called "ce_id". */
static bool event_name(struct semel_str name, struct semel_str *ret_rest)
{
    const struct semel_str prefix = SEMEL_STR("cloudEvents");

    if (name.n <= prefix.n + 1 || memcmp(name.p, prefix.p, prefix.n) != 0 ||
        (name.p[prefix.n] != ':' && name.p[prefix.n] != '_'))
        return false;
    *ret_rest = (struct semel_str){name.p + prefix.n + 1, name.n - prefix.n - 1};
    return true;
}

static void add(struct flat *flat, size_t n_name, const amqp_field_value_t *value)
{
    struct semel_str name = {flat->name, n_name}, rest = {0}, text;
    char out[TEXT], event[NAME_MAX_BYTES];
    const bool is_event = event_name(name, &rest);

    if (flat->no_memory || flat->n == flat->max || !value_text(value, is_event, out, &text))
        return;
    if (is_event) {
        memcpy(event, "ce_", 3);
        memcpy(event + 3, rest.p, rest.n);
        name = (struct semel_str){event, rest.n + 3};
    }
    flat->no_memory = !semel__arena_copy(flat->arena, name, &flat->pairs[flat->n].name) ||
                      !semel__arena_copy(flat->arena, text, &flat->pairs[flat->n].value);
    flat->n += !flat->no_memory;
}

/* Appends ".part", or "part" when the name is empty; the new length. 0: too long. */
static size_t extend(struct flat *flat, size_t n, struct semel_str part)
{
    const size_t dot = n > 0 ? 1 : 0;

    if (part.n == 0 || n + dot + part.n > sizeof flat->name)
        return 0;
    if (dot > 0)
        flat->name[n] = '.';
    memcpy(flat->name + n + dot, part.p, part.n);
    return n + dot + part.n;
}

static bool is_plain(const amqp_field_value_t *value)
{
    return value->kind != AMQP_FIELD_KIND_TABLE && value->kind != AMQP_FIELD_KIND_ARRAY;
}

static void walk(struct flat *flat, size_t n, const amqp_field_value_t *value, int depth)
{
    const bool table = value->kind == AMQP_FIELD_KIND_TABLE;
    const int n_entries = table ? value->value.table.num_entries : value->value.array.num_entries;

    if (is_plain(value)) {
        add(flat, n, value);
        return;
    }
    for (int i = 0; i < n_entries && depth < DEPTH_MAX && flat->n < flat->max && !flat->no_memory; i++) {
        char index[16];
        struct semel_str part = {index, 0};
        size_t longer;
        if (table) {
            part = semel__amqp_str(value->value.table.entries[i].key);
        } else {
            snprintf(index, sizeof index, "%d", i);
            part.n = strlen(index);
        }
        longer = extend(flat, n, part);
        if (longer > 0)
            walk(flat, longer, table ? &value->value.table.entries[i].value : &value->value.array.entries[i],
                 depth + 1);
    }
}

bool semel__amqp_headers(const amqp_table_t *table, struct semel_arena *arena, struct semel_delivery *d)
{
    const size_t plain = table->num_entries < HEADERS_MAX ? (size_t)table->num_entries : HEADERS_MAX;
    struct flat flat = {.arena = arena, .max = plain};

    flat.pairs = semel__arena_alloc(arena, plain + NESTED_MAX, sizeof *flat.pairs);
    if (flat.pairs == NULL)
        return false;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < table->num_entries && flat.n < flat.max && !flat.no_memory; i++) {
            const amqp_table_entry_t *entry = &table->entries[i];
            const size_t n = extend(&flat, 0, semel__amqp_str(entry->key));
            if (n > 0 && is_plain(&entry->value) == (pass == 0))
                walk(&flat, n, &entry->value, 1);
        }
        flat.max = flat.n + NESTED_MAX;
    }
    d->headers = flat.pairs;
    d->n_headers = flat.n;
    return !flat.no_memory;
}

/* ---- properties ---------------------------------------------------------------------------------------- */

bool semel__amqp_properties(const amqp_basic_properties_t *properties, struct semel_str routing_key,
                            struct semel_str exchange, struct semel_arena *arena, struct semel_delivery *d)
{
    char time[SEMEL_TIME_TEXT];
    const struct {
        amqp_flags_t flag;
        struct semel_str name, value;
    } rows[] = {
        {AMQP_BASIC_MESSAGE_ID_FLAG, SEMEL_STR("message_id"), semel__amqp_str(properties->message_id)},
        {AMQP_BASIC_TYPE_FLAG, SEMEL_STR("type"), semel__amqp_str(properties->type)},
        {AMQP_BASIC_CORRELATION_ID_FLAG, SEMEL_STR("correlation_id"), semel__amqp_str(properties->correlation_id)},
        {AMQP_BASIC_TIMESTAMP_FLAG, SEMEL_STR("timestamp"), {time, 0}},
        {AMQP_BASIC_CONTENT_TYPE_FLAG, SEMEL_STR("content_type"), semel__amqp_str(properties->content_type)},
        {AMQP_BASIC_APP_ID_FLAG, SEMEL_STR("app_id"), semel__amqp_str(properties->app_id)},
        {0, SEMEL_STR("routing_key"), routing_key},
        {0, SEMEL_STR("exchange"), exchange},
    };
    const size_t n = sizeof rows / sizeof rows[0];
    struct semel_pair *pairs = semel__arena_alloc(arena, n, sizeof *pairs);

    d->properties = pairs;
    d->n_properties = 0;
    for (size_t i = 0; pairs != NULL && i < n; i++) {
        struct semel_str value = rows[i].value;
        if (rows[i].flag != 0 && (properties->_flags & rows[i].flag) == 0)
            continue;
        if (rows[i].flag == AMQP_BASIC_TIMESTAMP_FLAG) {
            if (!time_text(properties->timestamp, time))
                continue;
            value = semel__str(time);
        }
        pairs[d->n_properties].name = rows[i].name;
        if (!semel__arena_copy(arena, value, &pairs[d->n_properties++].value))
            return false;
    }
    return pairs != NULL;
}

int semel__amqp_delivery_count(const amqp_basic_properties_t *properties)
{
    const bool has_headers = (properties->_flags & AMQP_BASIC_HEADERS_FLAG) != 0;

    for (int i = 0; has_headers && i < properties->headers.num_entries; i++) {
        const amqp_table_entry_t *entry = &properties->headers.entries[i];
        char text[TEXT];
        int64_t count;
        if (semel__str_eqz(semel__amqp_str(entry->key), "x-delivery-count") &&
            number_text(&entry->value, text, sizeof text) && semel__str_int64(semel__str(text), &count) && count > 1)
            return count < DELIVERIES_MAX ? (int)count + 1 : DELIVERIES_MAX;
    }
    return 2;
}

/* ---- putting it together ------------------------------------------------------------------------------- */

void semel__amqp_build_init(struct amqp_build *build)
{
    *build = (struct amqp_build){0};
    semel__arena_init(&build->arena, ARENA_MAX);
}

void semel__amqp_build_drop(struct amqp_build *build)
{
    build->stage = AMQP_STAGE_NONE;
    if (build->arena.used > KEEP_ARENA)
        semel__arena_done(&build->arena);
    else
        semel__arena_reset(&build->arena);
    if (build->cap_body > KEEP_BODY) {
        semel__free(build->body);
        build->body = NULL;
        build->cap_body = 0;
    }
}

void semel__amqp_build_done(struct amqp_build *build)
{
    semel__arena_done(&build->arena);
    semel__free(build->body);
    build->body = NULL;
    build->cap_body = 0;
}

static semel_status misplaced(struct semel_error *err)
{
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "amqp: the server sent a frame that does not fit");
}

semel_status semel__amqp_build_deliver(struct amqp_build *build, const amqp_basic_deliver_t *deliver,
                                       struct semel_error *err)
{
    if (build->stage != AMQP_STAGE_NONE || deliver->delivery_tag <= build->number ||
        deliver->delivery_tag > AMQP_NUMBER_MAX)
        return misplaced(err);
    build->number = deliver->delivery_tag;
    build->redelivered = deliver->redelivered != 0;
    if (!semel__arena_copy(&build->arena, semel__amqp_str(deliver->exchange), &build->exchange) ||
        !semel__arena_copy(&build->arena, semel__amqp_str(deliver->routing_key), &build->routing_key))
        return semel__fail_memory(err);
    build->stage = AMQP_STAGE_HEADER;
    return SEMEL_OK;
}

static bool make_body(struct amqp_build *build, size_t n)
{
    build->have = 0;
    build->n_body = n;
    if (build->body != NULL && n <= build->cap_body)
        return true;
    semel__free(build->body);
    build->cap_body = n > 4096 ? n : 4096;
    build->body = semel__alloc(build->cap_body);
    if (build->body == NULL)
        build->cap_body = 0;
    return build->body != NULL;
}

static void check_whole(struct amqp_build *build)
{
    if (build->have < build->n_body)
        return;
    build->d.payload = build->n_body > 0 ? (struct semel_str){build->body, build->n_body} : SEMEL_STR("");
    build->stage = AMQP_STAGE_WHOLE;
}

static semel_status take_header(struct amqp_build *build, const amqp_frame_t *frame, struct semel_error *err)
{
    const amqp_basic_properties_t *properties = frame->payload.properties.decoded;
    const uint64_t size = frame->payload.properties.body_size;

    if (frame->payload.properties.class_id != AMQP_BASIC_CLASS || size > AMQP_BODY_MAX)
        return misplaced(err);
    build->d = (struct semel_delivery){.delivery = build->redelivered ? semel__amqp_delivery_count(properties) : 1};
    if (((properties->_flags & AMQP_BASIC_HEADERS_FLAG) != 0 &&
         !semel__amqp_headers(&properties->headers, &build->arena, &build->d)) ||
        !semel__amqp_properties(properties, build->routing_key, build->exchange, &build->arena, &build->d) ||
        !make_body(build, (size_t)size))
        return semel__fail_memory(err);
    build->stage = AMQP_STAGE_BODY;
    check_whole(build);
    return SEMEL_OK;
}

semel_status semel__amqp_build_content(struct amqp_build *build, const amqp_frame_t *frame, struct semel_error *err)
{
    const struct semel_str piece = frame->frame_type == AMQP_FRAME_BODY ? semel__amqp_str(frame->payload.body_fragment)
                                                                        : (struct semel_str){NULL, 0};

    if (frame->frame_type == AMQP_FRAME_HEADER)
        return build->stage == AMQP_STAGE_HEADER ? take_header(build, frame, err) : misplaced(err);
    if (build->stage != AMQP_STAGE_BODY || piece.n > build->n_body - build->have)
        return misplaced(err);
    if (piece.n > 0)
        memcpy(build->body + build->have, piece.p, piece.n);
    build->have += piece.n;
    check_whole(build);
    return SEMEL_OK;
}

/* ---- handing it over ----------------------------------------------------------------------------------- */

static bool copy_pairs(struct semel_arena *arena, const struct semel_pair *pairs, size_t n,
                       const struct semel_pair **ret)
{
    struct semel_pair *copy = semel__arena_alloc(arena, n, sizeof *copy);

    for (size_t i = 0; copy != NULL && i < n; i++)
        if (!semel__arena_copy(arena, pairs[i].name, &copy[i].name) ||
            !semel__arena_copy(arena, pairs[i].value, &copy[i].value))
            return false;
    *ret = copy;
    return copy != NULL;
}

bool semel__amqp_build_copy(const struct amqp_build *build, struct semel_arena *arena, struct semel_delivery *ret)
{
    *ret = build->d;
    return semel__arena_copy(arena, build->d.payload, &ret->payload) &&
           copy_pairs(arena, build->d.headers, build->d.n_headers, &ret->headers) &&
           copy_pairs(arena, build->d.properties, build->d.n_properties, &ret->properties);
}
