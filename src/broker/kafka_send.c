/* SPDX-License-Identifier: MIT
 *
 * kafka_send.c: publishing to Kafka, by an idempotent producer that waits for all replicas in sync.
 *
 * What a delivery report says becomes the item's status: confirmed, certainly not sent, refused, or unknown. The
 * producer's own memory of what it sent ends with it (P28): whoever sends again relies on the id that each message
 * carries. A producer that has turned fatal is closed, and the next publish opens a new one.
 *
 * Invariants: publish returns when each item has its report, so that no report can point to an item that is gone.
 */
#include "broker/kafka_private.h"

#include "base/clock.h"

#define STEP_MS 50
#define GRACE_MS 5000

/* Of one publish; the reports of its items count down. */
struct sending {
    struct semel_publish *items;
    size_t left;
};

/* One report: which item of which publish. */
struct ticket {
    struct sending *sending;
    size_t at;
};

static bool is_refusal(rd_kafka_resp_err_t code)
{
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_INVALID_MSG:
    case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
    case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
    case RD_KAFKA_RESP_ERR__INVALID_ARG:
        return true;
    default:
        return false;
    }
}

void semel__kafka_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct ticket *ticket = message->_private;
    struct semel_publish *item = &ticket->sending->items[ticket->at];

    (void)rk, (void)opaque;
    ticket->sending->left--;
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR)
        item->status = SEMEL_OK;
    else if (rd_kafka_message_status(message) != RD_KAFKA_MSG_STATUS_NOT_PERSISTED)
        item->status = SEMEL_UNKNOWN;
    else
        item->status = is_refusal(message->err) ? SEMEL_INVALID : SEMEL_RETRY;
}

void semel__kafka_sender_close(struct kafka *kafka)
{
    if (kafka->sender != NULL)
        rd_kafka_destroy(kafka->sender);
    kafka->sender = NULL;
}

static semel_status open_sender(struct kafka *kafka, struct semel_error *err)
{
    char text[sizeof err->text];
    rd_kafka_conf_t *conf;

    if (kafka->sender != NULL)
        return SEMEL_OK;
    conf = rd_kafka_conf_dup(kafka->writer);
    kafka->sender = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof text);
    if (kafka->sender != NULL) {
        if (kafka->hooks.log != NULL)
            rd_kafka_set_log_queue(kafka->sender, NULL);
        return SEMEL_OK;
    }
    rd_kafka_conf_destroy(conf);
    return semel__kafka_refused(text, err);
}

/* ---- one item ----------------------------------------------------------------------------------------- */

/* NULL: no memory. */
static rd_kafka_headers_t *headers_of(const struct semel_publish *item)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(item->n_headers + 1);
    bool has_id = !semel__str_given(item->id);
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;

    for (size_t i = 0; code == RD_KAFKA_RESP_ERR_NO_ERROR && i < item->n_headers; i++) {
        const struct semel_pair *pair = &item->headers[i];
        has_id |= semel__str_eqz(pair->name, "id");
        code = rd_kafka_header_add(headers, pair->name.p, (ssize_t)pair->name.n, pair->value.p, (ssize_t)pair->value.n);
    }
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR && !has_id)
        code = rd_kafka_header_add(headers, "id", 2, item->id.p, (ssize_t)item->id.n);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return headers;
    rd_kafka_headers_destroy(headers);
    return NULL;
}

static void *bytes_of(struct semel_str s)
{
    return (void *)(uintptr_t)s.p; /* they are copied */
}

/* OK: there will be a report. */
static rd_kafka_resp_err_t produce(struct kafka *kafka, const struct semel_publish *item, struct ticket *ticket)
{
    char topic[KAFKA_TOPIC_MAX + 1];
    rd_kafka_headers_t *headers = NULL;
    rd_kafka_resp_err_t code;
    rd_kafka_error_t *error;

    if (item->destination.n == 0 || item->destination.n > KAFKA_TOPIC_MAX ||
        memchr(item->destination.p, '\0', item->destination.n) != NULL)
        return RD_KAFKA_RESP_ERR__INVALID_ARG;
    memcpy(topic, item->destination.p, item->destination.n);
    topic[item->destination.n] = '\0';
    headers = headers_of(item);
    if (headers == NULL)
        return RD_KAFKA_RESP_ERR__QUEUE_FULL;
    const rd_kafka_vu_t vus[] = {
        {.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = topic},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {bytes_of(item->key), item->key.n}},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {bytes_of(item->payload), item->payload.n}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = ticket},
    };
    error = rd_kafka_produceva(kafka->sender, vus, sizeof vus / sizeof vus[0]);
    if (error == NULL)
        return RD_KAFKA_RESP_ERR_NO_ERROR; /* the headers are the library's now */
    code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    rd_kafka_headers_destroy(headers);
    return code;
}

/* ---- all of them -------------------------------------------------------------------------------------- */

static int timeout_ms(const struct kafka *kafka)
{
    char text[24] = "";
    size_t n = sizeof text;
    int64_t ms = 30000;

    if (rd_kafka_conf_get(kafka->writer, "message.timeout.ms", text, &n) == RD_KAFKA_CONF_OK)
        (void)semel__str_int64(semel__str(text), &ms);
    return ms > 0 && ms < INT32_MAX - GRACE_MS ? (int)ms : INT32_MAX - GRACE_MS;
}

/* Every report comes, at the latest when the message's time is over; a purge is for the library that has forgotten. */
static void wait_for_reports(struct kafka *kafka, const struct sending *sending)
{
    const int64_t until_us = semel__time_add(semel__kafka_now_us(), ((int64_t)timeout_ms(kafka) + GRACE_MS) * 1000);
    bool purged = false;

    while (sending->left > 0) {
        rd_kafka_poll(kafka->sender, STEP_MS);
        if (!purged && semel__kafka_now_us() > until_us) {
            rd_kafka_purge(kafka->sender, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
            purged = true;
        }
    }
}

static void send_all(struct kafka *kafka, struct sending *sending, struct ticket *tickets, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        rd_kafka_resp_err_t code;
        tickets[i] = (struct ticket){sending, i};
        /* A full queue empties by itself, as reports come. */
        while ((code = produce(kafka, &sending->items[i], &tickets[i])) == RD_KAFKA_RESP_ERR__QUEUE_FULL &&
               sending->left > 0)
            rd_kafka_poll(kafka->sender, STEP_MS);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
            sending->left++;
        else
            sending->items[i].status = is_refusal(code) ? SEMEL_INVALID : SEMEL_RETRY;
        rd_kafka_poll(kafka->sender, 0);
    }
}

semel_status semel__kafka_publish(struct semel_broker *broker, struct semel_publish *items, size_t n,
                                  struct semel_error *err)
{
    struct kafka *kafka = (struct kafka *)broker;
    struct sending sending = {.items = items};
    struct ticket *tickets = semel__calloc(n, sizeof *tickets);
    semel_status status = tickets != NULL ? open_sender(kafka, err) : semel__fail_memory(err);

    for (size_t i = 0; i < n; i++)
        items[i].status = SEMEL_RETRY; /* certainly not sent, until it is handed over */
    if (status == SEMEL_OK) {
        send_all(kafka, &sending, tickets, n);
        wait_for_reports(kafka, &sending);
        if (rd_kafka_fatal_error(kafka->sender, NULL, 0) != RD_KAFKA_RESP_ERR_NO_ERROR)
            semel__kafka_sender_close(kafka);
    }
    semel__free(tickets);
    return status;
}
