/* SPDX-License-Identifier: MIT
 *
 * amqp_send.c: publishing to RabbitMQ: persistent, mandatory, confirmed (P32).
 *
 * The server counts what is published on a channel from 1 on and confirms by number. What no queue takes comes back
 * before its confirmation, in the order in which it was sent, without its number: it is the next one to the same place
 * with the same id. A message that makes the server close the channel (an exchange that is not there, a body larger
 * than it takes) takes along everything that is on its way; so the first to an exchange, and large ones, travel alone.
 *
 * The connection is opened by the first publish, is nobody's business in between (no heartbeats), and is closed when an
 * answer is missing: a late one must not be taken for another's.
 *
 * Invariants: an item is RETRY until its first byte is sent, and UNKNOWN from then on until the server says something.
 */
#include "broker/amqp_private.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define ALONE_BYTES ((size_t)1 << 20)
#define FRAME_REST 2048 /* of a frame: all that is not the table of headers */
#define FRAME_ENDS 8    /* of a frame: what is before and behind its payload */
#define LOOK_EVERY 16

static amqp_bytes_t bytes_of(struct semel_str s)
{
    return (amqp_bytes_t){.len = s.n, .bytes = (void *)(uintptr_t)s.p}; /* they are only read */
}

struct ticket {
    size_t item;
    bool answered;
};

struct sending {
    struct amqp *amqp;
    struct semel_publish *items;
    size_t n;
    struct ticket *tickets; /* what is on its way or was, in the order of the numbers */
    uint64_t base;          /* the number before the first ticket's */
    size_t sent, first;     /* tickets; the first that is not answered */
    /* What comes back. */
    char exchange[AMQP_SHORT_MAX], routing_key[AMQP_SHORT_MAX];
    size_t n_exchange, n_routing_key;
    size_t next_return;
};

/* ---- where to, and what --------------------------------------------------------------------------------- */

struct place {
    struct semel_str exchange, routing_key;
};

static bool find_place(const struct semel_publish *item, struct place *ret)
{
    const struct semel_str prefix = SEMEL_STR("exchange:");
    const struct semel_str to = item->destination;

    if (to.n > prefix.n && memcmp(to.p, prefix.p, prefix.n) == 0)
        *ret = (struct place){{to.p + prefix.n, to.n - prefix.n}, {item->key.n > 0 ? item->key.p : "", item->key.n}};
    else
        *ret = (struct place){SEMEL_STR(""), to};
    return to.n > 0 && ret->exchange.n <= AMQP_SHORT_MAX && ret->routing_key.n <= AMQP_SHORT_MAX;
}

static amqp_table_entry_t entry_of(struct semel_str name, struct semel_str value)
{
    return (amqp_table_entry_t){.key = bytes_of(name),
                                .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = bytes_of(value)}};
}

/* false: it can never be sent. */
static bool fits(const struct semel_publish *item, size_t frame_max)
{
    size_t bytes = item->id.n + 16;

    for (size_t i = 0; i < item->n_headers; i++) {
        if (item->headers[i].name.n > AMQP_SHORT_MAX || item->headers[i].value.n > frame_max)
            return false;
        bytes += item->headers[i].name.n + item->headers[i].value.n + 8;
    }
    return item->id.n <= frame_max && bytes + FRAME_REST <= frame_max && item->payload.n <= AMQP_BODY_MAX;
}

/* Entries for all headers, and the id if it is not among them. NULL: no memory. */
static amqp_table_entry_t *entries_of(const struct semel_publish *item, int *ret_n)
{
    amqp_table_entry_t *entries = semel__calloc(item->n_headers + 1, sizeof *entries);
    bool has_id = !semel__str_given(item->id);
    size_t n = 0;

    for (; entries != NULL && n < item->n_headers; n++) {
        has_id |= semel__str_eqz(item->headers[n].name, "id");
        entries[n] = entry_of(item->headers[n].name, item->headers[n].value);
    }
    if (entries != NULL && !has_id)
        entries[n++] = entry_of(SEMEL_STR("id"), item->id);
    *ret_n = (int)n;
    return entries;
}

/* ---- one item ----------------------------------------------------------------------------------------- */

static semel_status send_frame(struct amqp_link *link, const amqp_frame_t *frame, struct semel_error *err)
{
    int code = AMQP_STATUS_TIMEOUT;

    if (semel__amqp_has_room(link))
        code = amqp_send_frame(link->conn, frame);
    return code == AMQP_STATUS_OK ? SEMEL_OK : semel__amqp_fail_library(code, "publishing", err);
}

static semel_status send_header(struct amqp_link *link, const struct semel_publish *item, struct semel_error *err)
{
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG,
                                          .delivery_mode = AMQP_DELIVERY_PERSISTENT};
    amqp_frame_t frame = {.frame_type = AMQP_FRAME_HEADER, .channel = AMQP_CHANNEL};
    semel_status status;

    properties.headers.entries = entries_of(item, &properties.headers.num_entries);
    if (properties.headers.entries == NULL)
        return semel__fail_memory(err);
    if (semel__str_given(item->id) && item->id.n <= AMQP_SHORT_MAX) {
        properties._flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
        properties.message_id = bytes_of(item->id);
    }
    frame.payload.properties.class_id = AMQP_BASIC_CLASS;
    frame.payload.properties.body_size = item->payload.n;
    frame.payload.properties.decoded = &properties;
    status = send_frame(link, &frame, err);
    semel__free(properties.headers.entries);
    return status;
}

/* As much of a body as goes into a frame. The server says how long a frame may be, and librabbitmq's buffer is no
 * longer than that. What is sent fits(), so there is room for more than the frame's ends. */
static size_t part_of(const struct amqp_link *link)
{
    const size_t room = (size_t)amqp_get_frame_max(link->conn) - FRAME_ENDS;

    return room < AMQP_FRAME_PART ? room : AMQP_FRAME_PART;
}

/* Not OK: part of it may have been sent, and the connection is of no use any more. */
static semel_status send_item(struct sending *s, size_t at, const struct place *place, struct semel_error *err)
{
    struct amqp_link *link = &s->amqp->sender;
    struct semel_publish *item = &s->items[at];
    const size_t part = part_of(link);
    amqp_basic_publish_t publish = {.exchange = bytes_of(place->exchange),
                                    .routing_key = bytes_of(place->routing_key),
                                    .mandatory = 1};
    semel_status status = semel__amqp_send(link, AMQP_CHANNEL, AMQP_BASIC_PUBLISH_METHOD, &publish, err);

    if (status == SEMEL_OK)
        status = send_header(link, item, err);
    item->status = SEMEL_UNKNOWN;
    s->tickets[s->sent++] = (struct ticket){.item = at};
    s->amqp->published++;
    for (size_t i = 0; status == SEMEL_OK && i < item->payload.n;) {
        const size_t n = item->payload.n - i < part ? item->payload.n - i : part;
        amqp_frame_t frame = {.frame_type = AMQP_FRAME_BODY, .channel = AMQP_CHANNEL};
        frame.payload.body_fragment = bytes_of((struct semel_str){item->payload.p + i, n});
        status = send_frame(link, &frame, err);
        i += n;
    }
    return status;
}

/* ---- what comes back ---------------------------------------------------------------------------------- */

static void answer(struct sending *s, uint64_t number, bool multiple, bool confirmed)
{
    const size_t end = number == 0 && multiple ? s->sent : number > s->base ? (size_t)(number - s->base) : 0;

    if (end > s->sent || end == 0)
        return;
    for (size_t i = multiple ? s->first : end - 1; i < end; i++) {
        struct semel_publish *item = &s->items[s->tickets[i].item];
        if (!s->tickets[i].answered && confirmed && item->status == SEMEL_UNKNOWN)
            item->status = SEMEL_OK; /* one that came back is INVALID, and stays so */
        s->tickets[i].answered = true;
    }
    while (s->first < s->sent && s->tickets[s->first].answered)
        s->first++;
}

static void note_return(struct sending *s, const amqp_basic_return_t *back)
{
    s->n_exchange = back->exchange.len <= AMQP_SHORT_MAX ? back->exchange.len : 0;
    s->n_routing_key = back->routing_key.len <= AMQP_SHORT_MAX ? back->routing_key.len : 0;
    memcpy(s->exchange, semel__amqp_str(back->exchange).p, s->n_exchange);
    memcpy(s->routing_key, semel__amqp_str(back->routing_key).p, s->n_routing_key);
}

static void take_return(struct sending *s, const amqp_basic_properties_t *properties)
{
    const bool has_id = (properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG) != 0;
    const struct semel_str id = has_id ? semel__amqp_str(properties->message_id) : (struct semel_str){NULL, 0};

    for (size_t i = s->next_return; i < s->sent; i++) {
        struct semel_publish *item = &s->items[s->tickets[i].item];
        struct place place;
        if (!find_place(item, &place) ||
            !semel__str_eq(place.exchange, (struct semel_str){s->exchange, s->n_exchange}) ||
            !semel__str_eq(place.routing_key, (struct semel_str){s->routing_key, s->n_routing_key}) ||
            (item->id.n <= AMQP_SHORT_MAX && !semel__str_eq(item->id, id)))
            continue;
        item->status = SEMEL_INVALID;
        s->next_return = i + 1;
        return;
    }
}

static semel_status take_method(struct sending *s, const amqp_method_t *method, struct semel_error *err)
{
    amqp_channel_close_ok_t ok = {0};
    semel_status status = SEMEL_OK;

    if (method->id == AMQP_BASIC_ACK_METHOD) {
        const amqp_basic_ack_t *ack = method->decoded;
        answer(s, ack->delivery_tag, ack->multiple != 0, true);
    } else if (method->id == AMQP_BASIC_NACK_METHOD) {
        const amqp_basic_nack_t *nack = method->decoded;
        answer(s, nack->delivery_tag, nack->multiple != 0, false);
    } else if (method->id == AMQP_BASIC_RETURN_METHOD) {
        note_return(s, method->decoded);
    } else if (method->id == AMQP_CHANNEL_CLOSE_METHOD) {
        status = semel__amqp_fail_close(method, "the server refuses a message", err);
        (void)semel__amqp_send(&s->amqp->sender, AMQP_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok, NULL);
    }
    return status;
}

/* One frame, if one comes in time. */
static semel_status look(struct sending *s, int64_t wait_us, bool *ret_got, struct semel_error *err)
{
    struct amqp_link *link = &s->amqp->sender;
    amqp_frame_t frame;
    semel_status status = semel__amqp_receive(link, wait_us, &frame, ret_got, err);

    if (status != SEMEL_OK || !*ret_got)
        return status;
    if (frame.frame_type == AMQP_FRAME_METHOD)
        return frame.channel == 0 ? semel__amqp_link_method(link, &frame.payload.method, err)
                                  : take_method(s, &frame.payload.method, err);
    if (frame.frame_type == AMQP_FRAME_HEADER && frame.payload.properties.class_id == AMQP_BASIC_CLASS)
        take_return(s, frame.payload.properties.decoded);
    return SEMEL_OK;
}

static semel_status look_at_all(struct sending *s, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    bool got = true;

    while (status == SEMEL_OK && got)
        status = look(s, 0, &got, err);
    return status;
}

/* Waits until everything on its way is answered. */
static semel_status settle(struct sending *s, struct semel_error *err)
{
    const int64_t until_us = semel__amqp_now_us() + (int64_t)s->amqp->sender.timeout_ms * 1000;
    semel_status status = SEMEL_OK;
    bool got;

    while (status == SEMEL_OK && s->first < s->sent) {
        const int64_t left_us = until_us - semel__amqp_now_us();
        if (left_us <= 0)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "amqp: the server does not confirm%s",
                               s->amqp->sender.blocked ? ": it takes no messages at the moment" : "");
        status = look(s, left_us, &got, err);
    }
    return status;
}

/* ---- all of them -------------------------------------------------------------------------------------- */

/* Connects if need be, and starts counting. */
static semel_status open_sender(struct sending *s, struct semel_error *err)
{
    struct amqp *amqp = s->amqp;
    semel_status status = SEMEL_OK;

    s->sent = s->first = s->next_return = 0;
    if (amqp->sender.conn != NULL && look_at_all(s, NULL) != SEMEL_OK)
        semel__amqp_link_close(&amqp->sender, false); /* it went while nobody looked */
    if (amqp->sender.conn == NULL) {
        amqp->published = 0;
        amqp->n_known = 0;
        status = semel__amqp_link_open(&amqp->sender, &amqp->conf, 0, err);
        if (status == SEMEL_OK && amqp_confirm_select(amqp->sender.conn, AMQP_CHANNEL) == NULL) {
            status = semel__amqp_fail_reply(amqp_get_rpc_reply(amqp->sender.conn), "asking for confirmations", err);
            semel__amqp_link_close(&amqp->sender, false);
        }
    }
    s->base = amqp->published;
    return status;
}

static void cork(const struct amqp_link *link, int on)
{
    (void)setsockopt(amqp_get_sockfd(link->conn), IPPROTO_TCP, TCP_CORK, &on, sizeof on);
}

static bool is_known(const struct amqp *amqp, struct semel_str exchange)
{
    return exchange.n == 0 || semel__str_eq(exchange, (struct semel_str){amqp->known, amqp->n_known});
}

/* The server's refusal is about this one, because nothing else is on its way. */
static semel_status send_alone(struct sending *s, size_t at, const struct place *place, struct semel_error *err)
{
    struct amqp *amqp = s->amqp;
    semel_status status = settle(s, err);

    if (status != SEMEL_OK)
        return status;
    status = send_item(s, at, place, err);
    if (status == SEMEL_OK)
        status = settle(s, err);
    if (status == SEMEL_OK && place->exchange.n > 0) {
        memcpy(amqp->known, place->exchange.p, place->exchange.n);
        amqp->n_known = place->exchange.n;
    }
    if (status != SEMEL_INVALID)
        return status;
    s->items[at].status = SEMEL_INVALID;
    semel__amqp_link_close(&amqp->sender, false);
    return open_sender(s, err);
}

static semel_status send_all(struct sending *s, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    for (size_t i = 0; status == SEMEL_OK && i < s->n && !s->amqp->sender.blocked; i++) {
        const struct semel_publish *item = &s->items[i];
        struct place place;
        if (!find_place(item, &place) || !fits(item, (size_t)amqp_get_frame_max(s->amqp->sender.conn)))
            s->items[i].status = SEMEL_INVALID;
        else if (!is_known(s->amqp, place.exchange) || item->payload.n > ALONE_BYTES)
            status = send_alone(s, i, &place, err);
        else
            status = send_item(s, i, &place, err);
        if (status == SEMEL_OK && i % LOOK_EVERY == 0)
            status = look_at_all(s, err);
    }
    return status;
}

semel_status semel__amqp_publish(struct semel_broker *broker, struct semel_publish *items, size_t n,
                                 struct semel_error *err)
{
    struct amqp *amqp = (struct amqp *)broker;
    struct sending s = {.amqp = amqp, .items = items, .n = n, .tickets = semel__calloc(n, sizeof *s.tickets)};
    semel_status status = s.tickets != NULL ? SEMEL_OK : semel__fail_memory(err);

    for (size_t i = 0; i < n; i++)
        items[i].status = SEMEL_RETRY; /* certainly not sent, until it is */
    if (status == SEMEL_OK)
        status = open_sender(&s, err);
    if (status == SEMEL_OK) {
        if (n > 1)
            cork(&amqp->sender, 1);
        status = send_all(&s, err);
        if (status == SEMEL_OK) {
            cork(&amqp->sender, 0);
            status = settle(&s, err);
        }
        if (status != SEMEL_OK)
            semel__amqp_link_close(&amqp->sender, false);
        status = SEMEL_OK; /* each item has its own */
    }
    semel__free(s.tickets);
    return status;
}
