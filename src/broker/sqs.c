/* SPDX-License-Identifier: MIT
 *
 * sqs.c: the SQS driver: opening and closing, poll, answers, and from a message to a delivery. See sqs.h.
 *
 * Invariants: a message is delivered under the tag that its slot got when it came, and only while that slot still
 * waits; what poll returns lies in the arena.
 */
#include "broker/sqs_private.h"

#include "base/clock.h"

#define CLOSE_MS 3000
#define GRACE_MS 300 /* for a long poll to bring what was just given back */
#define POLL_MAX 1000
#define POLL_BYTES ((size_t)4 << 20) /* a batch ends early when it has become as large as this */
#define LOOK_MS 1000
#define PROPERTIES 5

static const struct semel_broker_ops fifo_ops;

static struct sqs *self(struct semel_broker *broker)
{
    return (struct sqs *)broker;
}

int64_t semel__sqs_now(struct sqs *sqs)
{
    int64_t now_us = semel__time_add(semel__now(&semel__clock_real), sqs->skew_us);

    if (now_us < sqs->last_us) {
        sqs->skew_us += sqs->last_us - now_us; /* somebody has set the clock back */
        now_us = sqs->last_us;
    }
    sqs->last_us = now_us;
    return now_us;
}

/* ---- opening and closing -------------------------------------------------------------------------------- */

static void forget_batches(struct sqs *sqs)
{
    while (sqs->first != NULL) {
        struct sqs_batch *batch = sqs->first;
        sqs->first = batch->next;
        semel__sqs_batch_free(batch);
    }
    sqs->last = NULL;
    sqs->n_waiting = 0;
}

static void release(struct sqs *sqs)
{
    forget_batches(sqs);
    if (sqs->multi != NULL) {
        semel__sqs_work_stop(sqs);
        semel__sqs_call_stop(&sqs->sender, sqs->multi);
    }
    for (size_t i = 0; i < SQS_CALLS; i++)
        semel__sqs_call_done(&sqs->calls[i]);
    semel__sqs_call_done(&sqs->sender);
    if (sqs->multi != NULL)
        curl_multi_cleanup(sqs->multi);
    if (sqs->curl)
        curl_global_cleanup();
    semel__sqs_held_done(&sqs->held);
    semel__sqs_conf_done(&sqs->conf);
}

static semel_status finish_open(struct sqs *sqs, semel_status status, struct semel_error *err)
{
    if (status == SEMEL_OK) {
        const size_t slots = sqs->conf.in_flight_max + (size_t)SQS_RECEIVES * SQS_BATCH;
        sqs->curl = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
        sqs->multi = sqs->curl ? curl_multi_init() : NULL;
        sqs->wide = 1;
        if (sqs->multi == NULL || !semel__sqs_held_init(&sqs->held, slots, sqs->conf.visibility_s, sqs->conf.fifo))
            status = semel__fail_memory(err);
    }
    if (status == SEMEL_OK)
        sqs->base.ops = sqs->conf.fifo ? &fifo_ops : &semel__broker_sqs;
    else
        release(sqs);
    return status;
}

static semel_status sqs_open(struct semel_broker *broker, struct semel_str location, struct semel_error *err)
{
    return finish_open(self(broker), semel__sqs_conf_read_url(&self(broker)->conf, location, err), err);
}

semel_status semel__broker_sqs_open(struct semel_broker **ret, const struct semel_sqs_options *options,
                                    struct semel_error *err)
{
    struct sqs *sqs = semel__calloc(1, sizeof *sqs);
    semel_status status;

    if (sqs == NULL)
        return semel__fail_memory(err);
    status = finish_open(sqs, semel__sqs_conf_read(&sqs->conf, options, err), err);
    if (status == SEMEL_OK)
        *ret = &sqs->base;
    else
        semel__free(sqs);
    return status;
}

static void wait_for_work(struct sqs *sqs, int64_t until_us)
{
    const int64_t next_us = semel__sqs_work_next(sqs), now_us = semel__sqs_now(sqs);
    int64_t left_us = (next_us < until_us ? next_us : until_us) - now_us;

    left_us = left_us < 1000 ? 1000 : left_us > LOOK_MS * 1000 ? LOOK_MS * 1000 : left_us;
    (void)curl_multi_poll(sqs->multi, NULL, 0, (int)((left_us + 999) / 1000), NULL);
}

/* Sends what is left to send, as far as there is time. false: some of it could not be sent. */
static bool flush(struct sqs *sqs, int64_t until_us)
{
    struct semel_sqs_view view;

    sqs->chore_failures = 0;
    for (;;) {
        semel__sqs_work(sqs, 0);
        semel__sqs_look(&sqs->base, &view);
        if (view.answers == 0)
            return true;
        if (semel__sqs_now(sqs) >= until_us || sqs->chore_failures > 1)
            return false;
        wait_for_work(sqs, until_us);
    }
}

/* A long poll that is under way gets what was given back at once. It has a moment to say so, and that is given back as
 * well; cut off, it would keep it from others for the whole visibility time. */
static void sqs_close(struct semel_broker *broker)
{
    struct sqs *sqs = self(broker);
    const int64_t until_us = semel__time_add(semel__sqs_now(sqs), CLOSE_MS * 1000);
    int64_t grace_us;

    semel__sqs_held_back_all(&sqs->held, semel__sqs_now(sqs));
    if (sqs->held.n > 0 && flush(sqs, until_us)) {
        grace_us = semel__time_add(semel__sqs_now(sqs), GRACE_MS * 1000);
        while (semel__sqs_is_receiving(sqs) && sqs->held.n == 0 && semel__sqs_now(sqs) < grace_us) {
            wait_for_work(sqs, grace_us);
            semel__sqs_work(sqs, 0);
        }
        semel__sqs_held_back_all(&sqs->held, semel__sqs_now(sqs));
        (void)flush(sqs, until_us);
    }
    release(sqs);
}

/* A long poll goes on: what it brings was not delivered yet. */
static semel_status sqs_reopen(struct semel_broker *broker, struct semel_error *err)
{
    struct sqs *sqs = self(broker);

    (void)err;
    forget_batches(sqs);
    semel__sqs_held_back_all(&sqs->held, semel__sqs_now(sqs));
    (void)flush(sqs, semel__time_add(semel__sqs_now(sqs), CLOSE_MS * 1000));
    semel__sqs_held_settle(&sqs->held);
    sqs->failing = sqs->fresh = sqs->small = false;
    sqs->failures = 0;
    sqs->receive_us = 0;
    return SEMEL_OK;
}

/* ---- a delivery ----------------------------------------------------------------------------------------- */

/* FNV-1a */
static uint64_t hash(struct semel_str s)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static bool copy_headers(const struct sqs_message *m, struct semel_arena *arena, struct semel_delivery *d)
{
    struct semel_pair *pairs = semel__arena_alloc(arena, m->n_headers, sizeof *pairs);

    for (size_t i = 0; pairs != NULL && i < m->n_headers; i++)
        if (!semel__arena_copy(arena, m->headers[i].name, &pairs[i].name) ||
            !semel__arena_copy(arena, m->headers[i].value, &pairs[i].value))
            return false;
    d->headers = pairs;
    d->n_headers = m->n_headers;
    return pairs != NULL;
}

static bool copy_properties(const struct sqs_message *m, struct semel_arena *arena, struct semel_delivery *d)
{
    const struct semel_pair all[PROPERTIES] = {{SEMEL_STR("message_id"), m->id},
                                               {SEMEL_STR("sent_timestamp"), m->sent},
                                               {SEMEL_STR("group"), m->group},
                                               {SEMEL_STR("deduplication_id"), m->deduplication},
                                               {SEMEL_STR("sequence_number"), m->sequence}};
    struct semel_pair *pairs = semel__arena_alloc(arena, PROPERTIES, sizeof *pairs);

    for (size_t i = 0; pairs != NULL && i < PROPERTIES; i++) {
        if (!semel__str_given(all[i].value))
            continue;
        pairs[d->n_properties].name = all[i].name;
        if (!semel__arena_copy(arena, all[i].value, &pairs[d->n_properties++].value))
            return false;
    }
    d->properties = pairs;
    return pairs != NULL;
}

static bool copy_message(const struct sqs *sqs, const struct sqs_message *m, struct semel_arena *arena,
                         struct semel_delivery *d)
{
    *d = (struct semel_delivery){.tag = m->tag, .delivery = m->delivery};
    d->lane = sqs->conf.fifo && semel__str_given(m->group) ? hash(m->group) : m->tag;
    return semel__arena_copy(arena, semel__str(sqs->conf.queue), &d->source) &&
           semel__arena_copy(arena, m->body, &d->payload) && copy_headers(m, arena, d) && copy_properties(m, arena, d);
}

/* ---- poll ----------------------------------------------------------------------------------------------- */

/* The next message that waits, if its slot has not been fenced or given back meanwhile. */
static struct sqs_message *next_message(struct sqs *sqs, struct sqs_slot **ret_slot)
{
    while (sqs->first != NULL) {
        struct sqs_batch *batch = sqs->first;
        for (; batch->at < batch->n; batch->at++, sqs->n_waiting--) {
            struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, batch->messages[batch->at].tag);
            if (slot == NULL || slot->state != SQS_WAITING)
                continue;
            *ret_slot = slot;
            return &batch->messages[batch->at];
        }
        sqs->first = batch->next;
        sqs->last = sqs->first != NULL ? sqs->last : NULL;
        semel__sqs_batch_free(batch);
    }
    return NULL;
}

/* Not OK: there is not even room for one. */
static semel_status take(struct sqs *sqs, size_t max, struct semel_arena *arena, struct semel_delivery *deliveries,
                         size_t *ret_n, struct semel_error *err)
{
    const size_t used = arena->used;
    const struct sqs_message *message;
    struct sqs_slot *slot = NULL;

    while (*ret_n < max && arena->used - used < POLL_BYTES && (message = next_message(sqs, &slot)) != NULL) {
        if (!copy_message(sqs, message, arena, &deliveries[*ret_n]))
            return *ret_n == 0 ? semel__fail_memory(err) : SEMEL_OK;
        slot->state = SQS_OUT;
        sqs->first->at++;
        sqs->n_waiting--;
        ++*ret_n;
    }
    return SEMEL_OK;
}

static semel_status tell(struct sqs *sqs, struct semel_error *err)
{
    sqs->fresh = false;
    if (err != NULL)
        *err = sqs->error;
    return sqs->error.status;
}

static semel_status sqs_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                             struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct sqs *sqs = self(broker);
    const int64_t until_us = semel__time_add(semel__sqs_now(sqs), (int64_t)wait_ms * 1000);
    struct semel_delivery *deliveries;
    semel_status status;
    size_t n = 0;

    max = max < POLL_MAX ? max : POLL_MAX;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    for (;;) {
        bool over;
        semel__sqs_work(sqs, max);
        status = take(sqs, max, arena, deliveries, &n, err);
        over = semel__sqs_now(sqs) >= until_us;
        if (status == SEMEL_OK && n == 0 && (sqs->fresh || (over && sqs->failing)))
            status = tell(sqs, err);
        if (status != SEMEL_OK || n > 0 || over)
            break;
        wait_for_work(sqs, until_us);
    }
    *ret_deliveries = deliveries;
    *ret_n = n;
    return status;
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static semel_status fenced(size_t n_fenced, size_t n, struct semel_error *err)
{
    if (n_fenced == 0)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_NONE, "sqs: %zu of %zu deliveries are no longer ours", n_fenced,
                       n);
}

static semel_status sqs_ack(struct semel_broker *broker, const uint64_t *tags, size_t n, struct semel_error *err)
{
    struct sqs *sqs = self(broker);
    const int64_t now_us = semel__sqs_now(sqs);
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++)
        n_fenced += !semel__sqs_held_ack(&sqs->held, tags[i], now_us);
    semel__sqs_work(sqs, 0);
    return fenced(n_fenced, n, err);
}

static semel_status sqs_later(struct semel_broker *broker, const uint64_t *tags, size_t n, int delay_ms,
                              struct semel_error *err)
{
    struct sqs *sqs = self(broker);
    const int delay_s = delay_ms / 1000 + (delay_ms % 1000 > 0);
    const int64_t now_us = semel__sqs_now(sqs);
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++) {
        const struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, tags[i]);
        n_fenced += slot == NULL || slot->state != SQS_OUT;
    }
    for (size_t i = 0; i < n; i++) /* one may give back another */
        (void)semel__sqs_held_back(&sqs->held, tags[i], delay_s, now_us);
    semel__sqs_work(sqs, 0);
    return fenced(n_fenced, n, err);
}

void semel__sqs_look(struct semel_broker *broker, struct semel_sqs_view *ret)
{
    const struct sqs_held *held = &self(broker)->held;

    *ret = (struct semel_sqs_view){.in_flight = semel__sqs_held_count(held, SQS_OUT),
                                   .waiting = semel__sqs_held_count(held, SQS_WAITING)};
    ret->answers = held->n - ret->in_flight - ret->waiting;
}

#define SQS_OPS(more)                                                                                                \
    {                                                                                                                \
        .name = "sqs", .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | (more), .size = sizeof(struct sqs), \
        .open = sqs_open, .close = sqs_close, .reopen = sqs_reopen, .poll = sqs_poll, .ack = sqs_ack,                \
        .later = sqs_later, .publish = semel__sqs_publish,                                                           \
    }

const struct semel_broker_ops semel__broker_sqs = SQS_OPS(0);
static const struct semel_broker_ops fifo_ops = SQS_OPS(SEMEL_BROKER_ORDERED);
