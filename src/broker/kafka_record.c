/* SPDX-License-Identifier: MIT
 *
 * kafka_record.c: from a record of Kafka to a delivery, and a delivery's position taken apart. See kafka.h.
 *
 * Invariants: what a delivery points to lies in the arena: no memory of the library's is handed out. The properties
 * `partition` and `offset` are parts of the position's text; deliveries of one lane and one poll share their source.
 */
#define _GNU_SOURCE /* memrchr */
#include "broker/kafka_private.h"

#define TOPIC_MAX 249
#define NUMBER_MAX 20 /* -9223372036854775808 */

/* Writes the digits and returns their end; printf would be most of the cost of a small record. */
static char *put_number(char *out, int64_t number)
{
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    char digits[NUMBER_MAX];
    size_t n = 0;

    do
        digits[n++] = (char)('0' + left % 10);
    while ((left /= 10) != 0);
    if (number < 0)
        *out++ = '-';
    while (n > 0)
        *out++ = digits[--n];
    return out;
}

static bool copy_headers(const rd_kafka_message_t *message, struct semel_arena *arena, struct semel_delivery *d)
{
    rd_kafka_headers_t *headers = NULL;
    struct semel_pair *pairs;
    size_t n;

    /* Headers that cannot be read are none: the message is then kept as one without an id. */
    if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return true;
    n = rd_kafka_header_cnt(headers);
    pairs = semel__arena_alloc(arena, n, sizeof *pairs);
    for (size_t i = 0; pairs != NULL && i < n; i++) {
        const char *name;
        const void *value;
        size_t size;
        if (rd_kafka_header_get_all(headers, i, &name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
            break;
        if (!semel__arena_copy(arena, semel__str(name), &pairs[i].name) ||
            !semel__arena_copy(arena, (struct semel_str){value, size}, &pairs[i].value))
            return false;
        d->n_headers = i + 1;
    }
    d->headers = pairs;
    return pairs != NULL;
}

/* The position, and the properties that are numbers. `pairs` has room for three. */
static bool copy_numbers(const rd_kafka_message_t *message, struct semel_arena *arena, struct semel_delivery *d,
                         struct semel_pair *pairs, size_t *ret_n)
{
    char text[TOPIC_MAX + 2 * NUMBER_MAX + 3], *partition, *offset, *end;
    rd_kafka_timestamp_type_t type;
    const int64_t time_ms = rd_kafka_message_timestamp(message, &type);

    memcpy(text, d->source.p, d->source.n);
    text[d->source.n] = '/';
    partition = text + d->source.n + 1;
    offset = put_number(partition, message->partition);
    *offset++ = '/';
    end = put_number(offset, message->offset);
    if (!semel__arena_copy(arena, (struct semel_str){text, (size_t)(end - text)}, &d->position))
        return false;
    pairs[0] = (struct semel_pair){SEMEL_STR("partition"),
                                   {d->position.p + (partition - text), (size_t)(offset - partition - 1)}};
    pairs[1] = (struct semel_pair){SEMEL_STR("offset"), {d->position.p + (offset - text), (size_t)(end - offset)}};
    *ret_n = 2;
    if (type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE)
        return true;
    pairs[(*ret_n)++].name = SEMEL_STR("timestamp");
    end = put_number(text, time_ms);
    return semel__arena_copy(arena, (struct semel_str){text, (size_t)(end - text)}, &pairs[2].value);
}

bool semel__kafka_record(const rd_kafka_message_t *message, struct semel_str source, struct semel_arena *arena,
                         struct semel_delivery *d)
{
    const bool keyed = message->key != NULL;
    struct semel_pair *pairs = semel__arena_alloc(arena, 4, sizeof *pairs);
    size_t n = 0;

    *d = (struct semel_delivery){.source = source,
                                 .properties = pairs,
                                 .partition = message->partition,
                                 .offset = message->offset};
    if (pairs == NULL || source.n > TOPIC_MAX || !copy_numbers(message, arena, d, pairs + keyed, &n))
        return false;
    d->n_properties = n + keyed;
    pairs[0].name = keyed ? SEMEL_STR("key") : pairs[0].name;
    return (!keyed || semel__arena_copy(arena, (struct semel_str){message->key, message->key_len}, &pairs[0].value)) &&
           semel__arena_copy(arena, (struct semel_str){message->payload, message->len}, &d->payload) &&
           copy_headers(message, arena, d);
}

bool semel__kafka_position(struct semel_str position, struct semel_kafka_start *ret)
{
    const char *second = position.n > 0 ? memrchr(position.p, '/', position.n) : NULL;
    const char *first = second != NULL ? memrchr(position.p, '/', (size_t)(second - position.p)) : NULL;
    int64_t partition, offset;

    if (first == NULL || first == position.p ||
        !semel__str_int64((struct semel_str){first + 1, (size_t)(second - first) - 1}, &partition) ||
        !semel__str_int64((struct semel_str){second + 1, position.n - (size_t)(second - position.p) - 1}, &offset) ||
        partition < 0 || partition > INT32_MAX || offset < 0)
        return false;
    *ret = (struct semel_kafka_start){{position.p, (size_t)(first - position.p)}, (int32_t)partition, offset};
    return true;
}
