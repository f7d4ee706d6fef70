/* SPDX-License-Identifier: MIT
 *
 * amqp.c: the AMQP driver: opening and closing, poll, and the answers to deliveries. See amqp.h.
 *
 * Invariants: the reader has a channel that consumes exactly when window.epoch is not 0. A reader that fails is closed
 * at once, which fences all tags, and stays so until it is reopened; `error` says why. What poll returns lies in the
 * arena: no memory of the library's is handed out.
 */
#include "broker/amqp_private.h"

#include <poll.h>

#include "base/clock.h"

#define POLL_MAX 1000
#define POLL_BYTES ((size_t)4 << 20) /* a batch ends early when it has become as large as this */
#define LATER_MS 600000

static const struct semel_broker_ops unordered, ordered;

static struct amqp *self(struct semel_broker *broker)
{
    return (struct amqp *)broker;
}

/* ---- the end of a connection -------------------------------------------------------------------------- */

static void disconnect(struct amqp *amqp, bool in_peace)
{
    semel__amqp_link_close(&amqp->reader, in_peace);
    semel__amqp_window_end(&amqp->window);
    semel__amqp_build_drop(&amqp->build);
    amqp->again_us = SEMEL_NONE;
}

/* What poll answers from now on. */
static semel_status remember(struct amqp *amqp, semel_status status, enum semel_class cls, struct semel_error *err)
{
    if (amqp->error.text[0] == '\0')
        (void)semel__fail_memory(&amqp->error);
    amqp->error.status = status;
    amqp->error.cls = cls;
    if (err != NULL)
        *err = amqp->error;
    return status;
}

/* The reader has failed with `why`, in the middle of something. */
static semel_status die(struct amqp *amqp, const struct semel_error *why, struct semel_error *err)
{
    amqp->error = *why;
    disconnect(amqp, false);
    return remember(amqp, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, err);
}

/* ---- connecting --------------------------------------------------------------------------------------- */

static semel_status declare(struct amqp *amqp, struct semel_error *err)
{
    const char *type = amqp->conf.declare == SEMEL_AMQP_DECLARE_QUORUM ? "quorum" : "classic";
    amqp_table_entry_t entries[] = {
        {.key = amqp_cstring_bytes("x-queue-type"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(type)}},
        {.key = amqp_cstring_bytes("x-single-active-consumer"),
         .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}},
    };
    const amqp_table_t arguments = {.num_entries = amqp->conf.single_active ? 2 : 1, .entries = entries};

    if (amqp->conf.declare == SEMEL_AMQP_DECLARE_NEVER)
        return SEMEL_OK;
    if (amqp_queue_declare(amqp->reader.conn, AMQP_CHANNEL, amqp_cstring_bytes(amqp->conf.queue), 0, 1, 0, 0,
                           arguments) == NULL)
        return semel__amqp_fail_reply(amqp_get_rpc_reply(amqp->reader.conn), "declaring the queue", err);
    return SEMEL_OK;
}

/* The channel is open; from now on there are tags. */
static semel_status consume(struct amqp *amqp, struct semel_error *err)
{
    amqp_connection_state_t conn = amqp->reader.conn;
    semel_status status = declare(amqp, err);

    if (status != SEMEL_OK)
        return status;
    if (amqp_basic_qos(conn, AMQP_CHANNEL, 0, (uint16_t)amqp->conf.prefetch, 0) == NULL ||
        amqp_basic_consume(conn, AMQP_CHANNEL, amqp_cstring_bytes(amqp->conf.queue), amqp_empty_bytes, 0, 0, 0,
                           amqp_empty_table) == NULL)
        return semel__amqp_fail_reply(amqp_get_rpc_reply(conn), "reading the queue", err);
    semel__amqp_window_begin(&amqp->window);
    semel__amqp_build_drop(&amqp->build);
    amqp->build.number = 0;
    amqp->again_us = SEMEL_NONE;
    return SEMEL_OK;
}

/* RETRY or INVALID: it is not connected, and poll says why. */
static semel_status connect_reader(struct amqp *amqp, struct semel_error *err)
{
    semel_status status = semel__amqp_link_open(&amqp->reader, &amqp->conf, amqp->conf.heartbeat_s, &amqp->error);

    amqp->tried = true;
    if (status == SEMEL_OK)
        status = consume(amqp, &amqp->error);
    if (status == SEMEL_OK)
        return status;
    disconnect(amqp, false);
    if (status == SEMEL_INVALID)
        return remember(amqp, status, SEMEL_CLASS_BROKEN, err);
    (void)remember(amqp, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, err);
    if (err != NULL)
        err->status = SEMEL_RETRY;
    return SEMEL_RETRY;
}

static void prepare(struct amqp *amqp)
{
    amqp->window.due_us = SEMEL_NONE;
    amqp->again_us = SEMEL_NONE;
    semel__amqp_build_init(&amqp->build);
    if (amqp->conf.single_active)
        amqp->base.ops = &ordered;
}

semel_status semel__broker_amqp_open(struct semel_broker **ret, const struct semel_amqp_options *options,
                                     struct semel_error *err)
{
    struct amqp *amqp = semel__calloc(1, sizeof *amqp);
    semel_status status;

    if (amqp == NULL)
        return semel__fail_memory(err);
    amqp->base.ops = &unordered;
    status = semel__amqp_configure(&amqp->conf, options, err);
    if (status != SEMEL_OK) {
        semel__free(amqp);
        return status;
    }
    prepare(amqp);
    *ret = &amqp->base;
    return SEMEL_OK;
}

static void amqp_close(struct semel_broker *broker)
{
    struct amqp *amqp = self(broker);

    disconnect(amqp, true);
    semel__amqp_link_close(&amqp->sender, !amqp->sender.blocked);
    semel__amqp_build_done(&amqp->build);
    semel__amqp_window_done(&amqp->window);
    semel__amqp_conf_done(&amqp->conf);
}

static semel_status amqp_reopen(struct semel_broker *broker, struct semel_error *err)
{
    disconnect(self(broker), true);
    return self(broker)->conf.queue != NULL ? connect_reader(self(broker), err) : SEMEL_OK;
}

static semel_status ready(struct amqp *amqp, struct semel_error *err)
{
    if (amqp->conf.queue == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: there is no queue to read from; set queue");
    if (!amqp->tried)
        (void)connect_reader(amqp, NULL);
    if (amqp->reader.conn != NULL)
        return SEMEL_OK;
    if (err != NULL)
        *err = amqp->error;
    return amqp->error.status;
}

/* ---- giving back -------------------------------------------------------------------------------------- */

/* What the library has queued of the channel that was closed is of no interest; the rest is. */
static semel_status forget_frames(struct amqp *amqp, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    while (status == SEMEL_OK && amqp_frames_enqueued(amqp->reader.conn)) {
        amqp_frame_t frame;
        bool got;
        status = semel__amqp_receive(&amqp->reader, 0, &frame, &got, err);
        if (status == SEMEL_OK && got && frame.channel == 0 && frame.frame_type == AMQP_FRAME_METHOD)
            status = semel__amqp_link_method(&amqp->reader, &frame.payload.method, err);
    }
    return status;
}

/* single_active: the channel is closed when everything before the cut has its answer. The server then has all of the
 * rest again, in order. */
static semel_status close_channel(struct amqp *amqp, struct semel_error *err)
{
    semel_status status;

    if (amqp->window.epoch == 0 || amqp->window.cut == 0 || amqp->window.live > 0)
        return SEMEL_OK;
    semel__amqp_window_end(&amqp->window);
    semel__amqp_build_drop(&amqp->build);
    status = semel__amqp_close_channel(&amqp->reader, err);
    return status == SEMEL_OK ? forget_frames(amqp, err) : status;
}

static semel_status open_channel(struct amqp *amqp, struct semel_error *err)
{
    semel_status status;

    if (amqp->window.epoch != 0 || amqp->again_us > semel__amqp_now_us())
        return SEMEL_OK;
    status = semel__amqp_open_channel(&amqp->reader, err);
    return status == SEMEL_OK ? consume(amqp, err) : status;
}

static semel_status requeue_due(struct amqp *amqp, struct semel_error *err)
{
    const int64_t now_us = semel__amqp_now_us();
    amqp_basic_nack_t nack = {.requeue = 1};
    semel_status status = SEMEL_OK;

    while (status == SEMEL_OK && semel__amqp_window_next_due(&amqp->window, now_us, &nack.delivery_tag))
        status = semel__amqp_send(&amqp->reader, AMQP_CHANNEL, AMQP_BASIC_NACK_METHOD, &nack, err);
    return status;
}

/* Everything that is due, apart from messages. */
static semel_status serve(struct amqp *amqp, struct semel_error *err)
{
    semel_status status = requeue_due(amqp, err);

    if (status == SEMEL_OK)
        status = close_channel(amqp, err);
    return status == SEMEL_OK ? open_channel(amqp, err) : status;
}

/* ---- poll --------------------------------------------------------------------------------------------- */

static semel_status take_method(struct amqp *amqp, const amqp_method_t *method, struct semel_error *err)
{
    amqp_channel_close_ok_t ok = {0};
    semel_status status;

    switch (method->id) {
    case AMQP_BASIC_DELIVER_METHOD:
        return semel__amqp_build_deliver(&amqp->build, method->decoded, err);
    case AMQP_BASIC_CANCEL_METHOD:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "amqp: the server has cancelled our reading: the queue was deleted or is not available");
    case AMQP_CHANNEL_CLOSE_METHOD:
        status = semel__amqp_fail_close(method, "the server closes the channel", err);
        (void)semel__amqp_send(&amqp->reader, AMQP_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok, NULL);
        return status;
    default:
        return SEMEL_OK;
    }
}

/* Takes one frame, if one comes in time. */
static semel_status take_frame(struct amqp *amqp, int64_t wait_us, bool *ret_got, struct semel_error *err)
{
    amqp_frame_t frame;
    semel_status status = semel__amqp_receive(&amqp->reader, wait_us, &frame, ret_got, err);

    if (status != SEMEL_OK || !*ret_got)
        return status;
    if (frame.channel == 0)
        return frame.frame_type == AMQP_FRAME_METHOD
                   ? semel__amqp_link_method(&amqp->reader, &frame.payload.method, err)
                   : SEMEL_OK;
    if (frame.channel != AMQP_CHANNEL || amqp->window.epoch == 0)
        return SEMEL_OK;
    if (frame.frame_type == AMQP_FRAME_METHOD)
        return take_method(amqp, &frame.payload.method, err);
    return semel__amqp_build_content(&amqp->build, &frame, err);
}

/* false: there is no room for it. */
static bool hand_over(struct amqp *amqp, struct semel_arena *arena, struct semel_delivery *d, size_t *n)
{
    if (amqp->window.cut == 0) { /* else it is given back already */
        if (!semel__amqp_build_copy(&amqp->build, arena, d) ||
            !semel__arena_copy(arena, semel__str(amqp->conf.queue), &d->source) ||
            !semel__amqp_window_take(&amqp->window, amqp->build.number, &d->tag))
            return false;
        ++*n;
    }
    semel__amqp_build_drop(&amqp->build);
    return true;
}

/* What has come. Not OK with a connection: there is not even room for one. */
static semel_status take(struct amqp *amqp, size_t max, struct semel_arena *arena, struct semel_delivery *deliveries,
                         size_t *ret_n, struct semel_error *err)
{
    const size_t used = arena->used;
    semel_status status = SEMEL_OK;
    bool got = true;

    while (status == SEMEL_OK && got && *ret_n < max && arena->used - used < POLL_BYTES) {
        if (amqp->build.stage != AMQP_STAGE_WHOLE)
            status = take_frame(amqp, 0, &got, &amqp->error);
        else if (!hand_over(amqp, arena, &deliveries[*ret_n], ret_n))
            return *ret_n == 0 ? semel__fail_memory(err) : SEMEL_OK;
    }
    return status == SEMEL_OK ? status : die(amqp, &amqp->error, err);
}

/* How long nothing needs to be looked at but the connection. */
static int64_t quiet_us(const struct amqp *amqp, int64_t until_us)
{
    if (amqp->window.due_us != SEMEL_NONE && amqp->window.due_us < until_us)
        until_us = amqp->window.due_us;
    if (amqp->window.epoch == 0 && amqp->again_us < until_us)
        until_us = amqp->again_us;
    return until_us - semel__amqp_now_us();
}

/* A message is here and not wanted, and what comes behind it stays where it is. So librabbitmq is not asked, and it is
 * librabbitmq that sends our heartbeats. */
static semel_status rest(struct amqp *amqp, int64_t wait_us, struct semel_error *err)
{
    const int64_t every_us = (int64_t)amqp_get_heartbeat(amqp->reader.conn) * 1000000 / 2;
    const int64_t now_us = semel__amqp_now_us(), left_us = amqp->beat_us - now_us;
    const amqp_frame_t beat = {.frame_type = AMQP_FRAME_HEARTBEAT};
    int code = AMQP_STATUS_OK;

    if (every_us > 0 && left_us <= 0) {
        amqp->beat_us = now_us + every_us;
        code = semel__amqp_has_room(&amqp->reader) ? amqp_send_frame(amqp->reader.conn, &beat) : AMQP_STATUS_TIMEOUT;
    } else if (wait_us > 0) {
        wait_us = every_us > 0 && left_us < wait_us ? left_us : wait_us;
        (void)poll(NULL, 0, (int)((wait_us + 999) / 1000));
    }
    return code == AMQP_STATUS_OK ? SEMEL_OK : semel__amqp_fail_library(code, "sending", err);
}

static semel_status amqp_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                              struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct amqp *amqp = self(broker);
    semel_status status = ready(amqp, err);
    const int64_t until_us = semel__time_add(semel__amqp_now_us(), (int64_t)wait_ms * 1000);
    struct semel_delivery *deliveries;
    size_t n = 0;
    bool got, read = max > 0; /* also when nothing is wanted what came is looked at: heartbeats are among it */

    if (status != SEMEL_OK)
        return status;
    max = max < POLL_MAX ? max : POLL_MAX;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    for (;;) {
        status = serve(amqp, &amqp->error);
        if (status != SEMEL_OK)
            return die(amqp, &amqp->error, err);
        status = take(amqp, max, arena, deliveries, &n, err);
        if (status != SEMEL_OK)
            return status;
        if (n > 0 || (read && semel__amqp_now_us() >= until_us))
            break;
        read = true;
        status = amqp->build.stage == AMQP_STAGE_WHOLE ? rest(amqp, quiet_us(amqp, until_us), &amqp->error)
                                                       : take_frame(amqp, quiet_us(amqp, until_us), &got, &amqp->error);
        if (status != SEMEL_OK)
            return die(amqp, &amqp->error, err);
    }
    *ret_deliveries = deliveries;
    *ret_n = n;
    return status;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static semel_status send_acks(struct amqp *amqp, struct semel_error *err)
{
    amqp_basic_ack_t ack = {0};
    semel_status status = SEMEL_OK;
    bool multiple;

    while (status == SEMEL_OK && semel__amqp_window_next_ack(&amqp->window, &ack.delivery_tag, &multiple)) {
        ack.multiple = multiple;
        status = semel__amqp_send(&amqp->reader, AMQP_CHANNEL, AMQP_BASIC_ACK_METHOD, &ack, err);
    }
    return status;
}

/* Several of one call count, wherever the lowest of them makes the cut. */
static size_t cut_all(struct amqp *amqp, const struct semel_reply *replies, size_t n)
{
    const int64_t now_us = semel__amqp_now_us();
    uint64_t lowest = UINT64_MAX;
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++) {
        const int64_t again_us = now_us + (int64_t)replies[i].delay_ms * 1000;
        if (semel__reply_acks(&replies[i]))
            continue;
        if (!semel__amqp_window_has(&amqp->window, replies[i].tag)) {
            n_fenced++;
            continue;
        }
        lowest = replies[i].tag < lowest ? replies[i].tag : lowest;
        amqp->again_us = amqp->again_us > again_us ? amqp->again_us : again_us; /* SEMEL_NONE is below all times */
    }
    if (lowest < UINT64_MAX)
        (void)semel__amqp_window_cut(&amqp->window, lowest);
    return n_fenced;
}

static size_t hold_all(struct amqp *amqp, const struct semel_reply *replies, size_t n)
{
    const int64_t now_us = semel__amqp_now_us();
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++) {
        const int64_t hold_ms = replies[i].delay_ms < LATER_MS ? replies[i].delay_ms : LATER_MS;
        if (!semel__reply_acks(&replies[i]))
            n_fenced += !semel__amqp_window_hold(&amqp->window, replies[i].tag, now_us + hold_ms * 1000);
    }
    return n_fenced;
}

static semel_status amqp_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                struct semel_error *err)
{
    struct amqp *amqp = self(broker);
    semel_status status;
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++)
        if (semel__reply_acks(&replies[i]))
            n_fenced += !semel__amqp_window_ack(&amqp->window, replies[i].tag);
    status = send_acks(amqp, &amqp->error);
    if (status == SEMEL_OK) {
        n_fenced += amqp->conf.single_active ? cut_all(amqp, replies, n) : hold_all(amqp, replies, n);
        if (n_fenced == n)
            return semel__broker_fenced("amqp", n_fenced, n, err);
        status = requeue_due(amqp, &amqp->error);
    }
    if (status == SEMEL_OK)
        status = close_channel(amqp, &amqp->error);
    return status == SEMEL_OK ? semel__broker_fenced("amqp", n_fenced, n, err) : die(amqp, &amqp->error, err);
}

/* ---- looking ------------------------------------------------------------------------------------------ */

void semel__amqp_look(struct semel_broker *broker, struct semel_amqp_view *ret)
{
    const struct amqp *amqp = self(broker);

    *ret = (struct semel_amqp_view){.connected = amqp->reader.conn != NULL,
                                    .in_flight = amqp->window.live,
                                    .held = amqp->window.held};
}

#define OPS(the_capabilities)                                                                           \
    {                                                                                                   \
        .name = "amqp", .capabilities = (the_capabilities), .close = amqp_close, .reopen = amqp_reopen, \
        .poll = amqp_poll, .answer = amqp_answer, .publish = semel__amqp_publish,                       \
    }

static const struct semel_broker_ops unordered = OPS(SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK);
/* What a handle becomes whose queue has a single active consumer. */
static const struct semel_broker_ops ordered = OPS(SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | SEMEL_BROKER_ORDERED);
