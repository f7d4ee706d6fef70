/* SPDX-License-Identifier: MIT
 *
 * kafka.c: the Kafka driver: opening and closing, poll, and the answers. See kafka.h.
 *
 * Invariants: a record leaves `pending` by being delivered, or by being stale.
 */
#include "broker/kafka_private.h"

#define POLL_MAX ((size_t)4096)
#define POLL_BYTES ((size_t)1 << 20) /* a batch ends early when it has become as large as this */
#define LOOK_AGAIN_MS 100
#define LOOK_IDLY_MS 1000
#define WAKE_FROM 64 /* records in the queue, or bytes taken from it, after which a fetcher may sleep */
#define WAKE_BYTES ((size_t)64 << 10)

static struct kafka *self(struct semel_broker *broker)
{
    return (struct kafka *)broker;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static semel_status refuse(const char *text, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "kafka: %s", text);
}

void semel__kafka_forget(struct kafka *kafka, const struct kafka_lane *lane)
{
    size_t kept = 0;

    for (size_t i = kafka->at_pending; i < kafka->n_pending; i++) {
        rd_kafka_message_t *message = kafka->pending[i];
        if (lane == NULL || (message->rkt != NULL && message->partition == lane->partition &&
                             strcmp(rd_kafka_topic_name(message->rkt), lane->topic) == 0))
            rd_kafka_message_destroy(message);
        else
            kafka->pending[kept++] = message;
    }
    kafka->at_pending = 0;
    kafka->n_pending = kept;
}

static void release(struct kafka *kafka)
{
    semel__kafka_disconnect(kafka);
    semel__kafka_sender_close(kafka);
    semel__kafka_unconfigure(kafka);
}

static semel_status finish_open(struct kafka *kafka, semel_status status, struct semel_error *err)
{
    if (status == SEMEL_OK && kafka->reader != NULL)
        status = semel__kafka_connect(kafka, err);
    if (status != SEMEL_OK)
        release(kafka);
    return status;
}

static semel_status kafka_open(struct semel_broker *broker, struct semel_str location, struct semel_error *err)
{
    return finish_open(self(broker), semel__kafka_configure_url(self(broker), location, err), err);
}

semel_status semel__broker_kafka_open(struct semel_broker **ret, const struct semel_kafka_options *options,
                                      struct semel_error *err)
{
    struct kafka *kafka = semel__calloc(1, sizeof *kafka);
    semel_status status;

    if (kafka == NULL)
        return semel__fail_memory(err);
    kafka->base.ops = &semel__broker_kafka;
    status = finish_open(kafka, semel__kafka_configure(kafka, options, err), err);
    if (status == SEMEL_OK)
        *ret = &kafka->base;
    else
        semel__free(kafka);
    return status;
}

static void kafka_close(struct semel_broker *broker)
{
    release(self(broker));
}

static semel_status kafka_reopen(struct semel_broker *broker, struct semel_error *err)
{
    semel__kafka_disconnect(self(broker));
    return self(broker)->reader != NULL ? semel__kafka_connect(self(broker), err) : SEMEL_OK;
}

static semel_status ready(const struct kafka *kafka, struct semel_error *err)
{
    if (kafka->reader == NULL)
        return refuse("there is no topic to read from; the URL must look like kafka://HOST:PORT/TOPIC?group=NAME", err);
    if (kafka->rk == NULL)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "kafka: not connected");
    if (!kafka->dead)
        return SEMEL_OK;
    if (err != NULL)
        *err = kafka->error;
    return SEMEL_CLOSED;
}

/* ---- poll --------------------------------------------------------------------------------------------- */

/* The one call that wakes the fetchers and changes nothing is to set the credentials to what they are. */
void semel__kafka_wake(struct kafka *kafka)
{
    char user[512] = "", password[512] = "";
    size_t n_user = sizeof user, n_password = sizeof password;
    rd_kafka_error_t *error;

    /* Not set: they stay empty, and nothing uses them. */
    (void)rd_kafka_conf_get(kafka->reader, "sasl.username", user, &n_user);
    (void)rd_kafka_conf_get(kafka->reader, "sasl.password", password, &n_password);
    error = n_user <= sizeof user && n_password <= sizeof password
                ? rd_kafka_sasl_set_credentials(kafka->rk, user, password)
                : NULL;
    explicit_bzero(password, sizeof password);
    if (error != NULL)
        rd_kafka_error_destroy(error);
}

/* Up to 2.1 a fetcher that met a full queue sleeps for a second, unless somebody wakes it. */
static void make_fetch(struct kafka *kafka)
{
    const size_t length = rd_kafka_queue_length(kafka->messages);

    kafka->high = length > kafka->high ? length : kafka->high;
    for (size_t i = 0; i < kafka->n_pending; i++)
        kafka->high_bytes += kafka->pending[i]->len;
    if (!kafka->must_wake || 2 * length > kafka->high || (kafka->high < WAKE_FROM && kafka->high_bytes < WAKE_BYTES))
        return;
    kafka->high = length;
    kafka->high_bytes = 0;
    semel__kafka_wake(kafka);
}

static bool refill(struct kafka *kafka, size_t max, int wait_ms)
{
    const size_t room = max < KAFKA_PENDING ? max : KAFKA_PENDING;
    ssize_t n;

    if (kafka->at_pending < kafka->n_pending)
        return true;
    n = rd_kafka_consume_batch_queue(kafka->messages, wait_ms, kafka->pending, wait_ms > 0 ? 1 : room);
    kafka->at_pending = 0;
    kafka->n_pending = n > 0 ? (size_t)n : 0;
    if (kafka->n_pending > 0)
        make_fetch(kafka);
    return kafka->n_pending > 0;
}

enum taken { TAKEN, PASSED_OVER, NO_ROOM };

static bool deliver(struct kafka *kafka, struct kafka_lane *lane, const rd_kafka_message_t *message,
                    struct semel_arena *arena, struct semel_delivery *ret)
{
    if (lane->batch != kafka->batch && !semel__arena_copy(arena, semel__str(lane->topic), &lane->source))
        return false;
    lane->batch = kafka->batch;
    const bool doubt = lane->next_seq < SEMEL_KAFKA_DOUBT || message->offset <= lane->highest;
    if (!semel__kafka_record(message, lane->source, arena, ret) ||
        !semel__kafka_lane_take(&kafka->lanes, lane, message->offset, &ret->tag))
        return false;
    ret->lane = lane->number;
    ret->delivery = doubt ? 2 : 0;
    lane->highest = message->offset > lane->highest ? message->offset : lane->highest;
    return true;
}

/* Looks at the first pending record. */
static enum taken take_one(struct kafka *kafka, struct semel_arena *arena, struct semel_delivery *ret)
{
    rd_kafka_message_t *message = kafka->pending[kafka->at_pending];
    enum taken taken = PASSED_OVER;
    struct kafka_lane *lane;

    if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        semel__kafka_note(kafka, message);
    } else if ((lane = semel__kafka_lane_find(&kafka->lanes, rd_kafka_topic_name(message->rkt), message->partition)) !=
               NULL) {
        const enum kafka_offer offer = semel__kafka_lane_offer(lane, message->offset);
        if (offer == KAFKA_MISSING) {
            semel__kafka_seek_again(kafka, lane);
            return PASSED_OVER; /* it was forgotten, or is looked at again */
        }
        if (offer == KAFKA_TAKE) {
            if (!deliver(kafka, lane, message, arena, ret))
                return NO_ROOM;
            taken = TAKEN;
        }
    }
    kafka->at_pending++;
    rd_kafka_message_destroy(message);
    return taken;
}

/* How many could be delivered now, of what is here. */
static size_t deliverable(const struct kafka *kafka, size_t max)
{
    const size_t room = kafka->in_flight_max > kafka->lanes.in_flight ? kafka->in_flight_max - kafka->lanes.in_flight
                                                                      : 0;
    const size_t here = kafka->n_pending - kafka->at_pending + rd_kafka_queue_length(kafka->messages);

    max = max < room ? max : room;
    return max < here ? max : here;
}

/* Not OK: there is not even room for one. */
static semel_status take(struct kafka *kafka, size_t max, struct semel_arena *arena, struct semel_delivery **ret,
                         size_t *ret_n, struct semel_error *err)
{
    const size_t used = arena->used;
    enum taken taken = PASSED_OVER;
    struct semel_delivery *deliveries;

    max = deliverable(kafka, max);
    if (max == 0)
        return SEMEL_OK;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    *ret = deliveries;
    /* An error ends the batch, so that the next one does not take its place before it is told. */
    while (*ret_n < max && arena->used - used < POLL_BYTES && !kafka->dead && !kafka->noted &&
           refill(kafka, max - *ret_n, 0)) {
        taken = take_one(kafka, arena, &deliveries[*ret_n]);
        if (taken == NO_ROOM)
            break;
        *ret_n += taken == TAKEN;
    }
    return taken == NO_ROOM && *ret_n == 0 ? semel__fail_memory(err) : SEMEL_OK;
}

/* Dead, or an error that has not been told. */
static semel_status tell(struct kafka *kafka, struct semel_error *err)
{
    if (kafka->dead || !kafka->noted)
        return ready(kafka, err);
    kafka->noted = false;
    if (err != NULL)
        *err = kafka->error;
    return SEMEL_RETRY;
}

/* Waits for a record where there is room for one; commits, pauses and the group are served in between. */
static void wait_a_while(struct kafka *kafka, int wait_ms)
{
    const int look_ms = semel__kafka_is_idle(kafka) ? LOOK_IDLY_MS : LOOK_AGAIN_MS;

    wait_ms = wait_ms < look_ms ? wait_ms : look_ms;
    if (kafka->lanes.in_flight < kafka->in_flight_max) {
        (void)refill(kafka, 1, wait_ms);
        wait_ms = 0;
    }
    semel__kafka_serve(kafka, wait_ms);
}

static semel_status kafka_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                               struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct kafka *kafka = self(broker);
    const int64_t from_us = semel__kafka_now_us();
    semel_status status = ready(kafka, err);
    struct semel_delivery *deliveries = NULL;
    size_t n = 0;

    if (status != SEMEL_OK)
        return status;
    kafka->batch++;
    semel__kafka_serve(kafka, 0);
    for (;;) {
        int left_ms;
        status = tell(kafka, err);
        if (status == SEMEL_OK)
            status = take(kafka, max < POLL_MAX ? max : POLL_MAX, arena, &deliveries, &n, err);
        left_ms = semel__kafka_left_ms(from_us, wait_ms);
        if (status != SEMEL_OK || n > 0 || left_ms == 0)
            break;
        wait_a_while(kafka, left_ms);
    }
    *ret_deliveries = deliveries;
    *ret_n = n;
    if (n > 0 && kafka->away)
        semel__kafka_is_there(kafka);
    return status == SEMEL_OK && n == 0 ? semel__kafka_away(kafka, err) : status;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static semel_status fenced(size_t n_fenced, size_t n, struct semel_error *err)
{
    if (n_fenced == 0)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_NONE, "kafka: %zu of %zu deliveries are no longer ours", n_fenced,
                       n);
}

static semel_status kafka_ack(struct semel_broker *broker, const uint64_t *tags, size_t n, struct semel_error *err)
{
    struct kafka *kafka = self(broker);
    semel_status status = ready(kafka, err);
    size_t n_fenced = 0;

    if (status != SEMEL_OK)
        return status;
    if (semel__kafka_is_lost(kafka)) /* the next poll will hear of it */
        return fenced(n, n, err);
    for (size_t i = 0; i < n; i++)
        n_fenced += !semel__kafka_lane_ack(&kafka->lanes, tags[i]);
    semel__kafka_commit(kafka, false);
    return fenced(n_fenced, n, err);
}

static semel_status kafka_later(struct semel_broker *broker, const uint64_t *tags, size_t n, int delay_ms,
                                struct semel_error *err)
{
    struct kafka *kafka = self(broker);
    semel_status status = ready(kafka, err);
    size_t n_fenced = 0;

    if (status != SEMEL_OK)
        return status;
    if (semel__kafka_is_lost(kafka))
        return fenced(n, n, err);
    for (size_t i = 0; i < n; i++)
        n_fenced += !semel__kafka_lane_back(&kafka->lanes, tags[i]);
    status = semel__kafka_go_back(kafka, delay_ms, err);
    return status != SEMEL_OK ? status : fenced(n_fenced, n, err);
}

static int64_t behind(struct kafka *kafka, const struct kafka_lane *lane)
{
    int64_t low = 0, high = 0;

    if (rd_kafka_get_watermark_offsets(kafka->rk, lane->topic, lane->partition, &low, &high) !=
            RD_KAFKA_RESP_ERR_NO_ERROR ||
        high < 0)
        return 0;
    low = lane->next > low ? lane->next : low;
    return (high > low ? high - low : 0) + (int64_t)lane->n;
}

void semel__kafka_look(struct semel_broker *broker, struct semel_kafka_view *ret)
{
    const struct kafka_lanes *lanes = &self(broker)->lanes;

    *ret = (struct semel_kafka_view){.in_flight = lanes->in_flight};
    for (size_t i = 0; i < lanes->n; i++) {
        const struct kafka_lane *lane = &lanes->at[i];
        if (lane->topic == NULL)
            continue;
        ret->assigned++;
        ret->stopped += lane->stopped;
        ret->delayed += lane->held_until_us != SEMEL_NONE;
        ret->behind += behind(self(broker), lane);
    }
}

const struct semel_broker_ops semel__broker_kafka = {
    .name = "kafka",
    .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | SEMEL_BROKER_ORDERED,
    .size = sizeof(struct kafka),
    .open = kafka_open,
    .close = kafka_close,
    .reopen = kafka_reopen,
    .poll = kafka_poll,
    .ack = kafka_ack,
    .later = kafka_later,
    .publish = semel__kafka_publish,
};
