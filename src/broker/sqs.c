/* SPDX-License-Identifier: MIT
 *
 * sqs.c: SQS as a source: opening and closing, the requests that go on by themselves while a handle is polled, poll,
 * and the answers. See sqs.h.
 *
 * One receive is under way as long as there is room. While it brings messages there are more of them at a time, up to
 * SQS_RECEIVES; an empty answer makes it one again. Chores (deleting what is acknowledged, extending what is worked on,
 * making visible what is given back) have requests of their own, so that a long poll holds up none.
 *
 * Invariants: a message is delivered under the tag that its slot got when it came, and only while that slot still
 * waits; what poll returns lies in the arena. No more messages are asked for than there is room for; receives and
 * chores may be sent again, and nobody but this file does so; a receive that failed is tried again after a pause that
 * grows.
 */
#include "broker/sqs_private.h"

#include "base/clock.h"

#define CLOSE_MS 3000
#define GRACE_MS 300 /* for a long poll to bring what was just given back */
#define POLL_MAX 1000
#define POLL_BYTES ((size_t)4 << 20) /* a batch ends early when it has become as large as this */
#define LOOK_MS 1000
#define PROPERTIES 5
#define CHORE_MS 10000
#define SLACK_MS 10000 /* what a long poll may take beyond its wait */
#define REQUEST_MAX ((size_t)64 << 10)
#define PAUSE_US INT64_C(200000)
#define PAUSE_DOUBLES 5
#define EMPTY_US INT64_C(250000) /* between receives that find nothing, should the server not wait */
#define DAMAGED_S 5

static const struct semel_broker_ops standard_ops, fifo_ops;

static struct sqs *self(struct semel_broker *broker)
{
    return (struct sqs *)broker;
}

/* Never goes back (P45). */
static int64_t now(struct sqs *sqs)
{
    int64_t now_us = semel__time_add(semel__now(&semel__clock_real), sqs->skew_us);

    if (now_us < sqs->last_us) {
        sqs->skew_us += sqs->last_us - now_us; /* somebody has set the clock back */
        now_us = sqs->last_us;
    }
    sqs->last_us = now_us;
    return now_us;
}

static void note(struct sqs *sqs, const struct semel_error *err)
{
    sqs->error = *err;
    sqs->fresh = true;
}

static void begin_request(struct sqs *sqs, struct sqs_call *call)
{
    semel__buf_done(&call->request);
    semel__buf_init(&call->request, REQUEST_MAX);
    semel__buf_addz(&call->request, "{\"QueueUrl\":");
    semel__json_put_string(&call->request, semel__str(sqs->conf.url));
    call->begun_us = now(sqs);
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

static void pause_receiving(struct sqs *sqs)
{
    const int doubles = sqs->failures < PAUSE_DOUBLES ? sqs->failures : PAUSE_DOUBLES;

    sqs->failures++;
    sqs->wide = 1;
    sqs->receive_us = semel__time_add(now(sqs), PAUSE_US << doubles);
}

static bool begin_receive(struct sqs *sqs, struct sqs_call *call, size_t n)
{
    struct semel_error err;

    begin_request(sqs, call);
    semel__buf_addf(&call->request,
                    ",\"MaxNumberOfMessages\":%zu,\"VisibilityTimeout\":%d,\"WaitTimeSeconds\":%d,"
                    "\"AttributeNames\":[\"All\"],\"MessageAttributeNames\":[\"All\"]}",
                    n, sqs->conf.visibility_s, sqs->conf.wait_s);
    call->asked = n;
    if (semel__sqs_call_begin(call, sqs->multi, &sqs->conf, "ReceiveMessage", sqs->conf.wait_s * 1000 + SLACK_MS,
                              &err) == SEMEL_OK)
        return true;
    note(sqs, &err);
    pause_receiving(sqs);
    return false;
}

/* How many messages one more receive may bring. */
static size_t room_for(const struct sqs *sqs, size_t room, size_t asked)
{
    const size_t taken = sqs->n_waiting + asked, held = sqs->held.n + asked;
    const size_t most = sqs->small ? 1 : SQS_BATCH;
    size_t n = room > taken ? room - taken : 0;

    if (held >= sqs->conf.in_flight_max)
        return 0;
    n = n < sqs->conf.in_flight_max - held ? n : sqs->conf.in_flight_max - held;
    return n < most ? n : most;
}

static void begin_receives(struct sqs *sqs, size_t room)
{
    size_t asked = 0, active = 0, n;

    if (now(sqs) < sqs->receive_us)
        return;
    for (size_t i = 0; i < SQS_RECEIVES; i++) {
        active += sqs->calls[i].active;
        asked += sqs->calls[i].active ? sqs->calls[i].asked : 0;
    }
    for (size_t i = 0; i < SQS_RECEIVES && active < sqs->wide; i++) {
        if (sqs->calls[i].active)
            continue;
        n = room_for(sqs, room, asked);
        if (n == 0 || !begin_receive(sqs, &sqs->calls[i], n))
            return;
        active++;
        asked += n;
    }
}

/* A body that was damaged on the way is given back, and in a group what is behind it. */
static void give_back_damaged(struct sqs *sqs, const struct sqs_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, batch->messages[i].tag);
        if (!batch->messages[i].damaged || slot == NULL)
            continue;
        slot->state = SQS_OUT;
        (void)semel__sqs_held_back(&sqs->held, slot->tag, DAMAGED_S, now(sqs));
        (void)semel__fail(&sqs->error, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                          "sqs: a body arrived damaged: it does not have the MD5 that was sent with it");
        sqs->fresh = true;
    }
}

static void take_batch(struct sqs *sqs, struct sqs_batch *batch, int64_t begun_us)
{
    const int64_t now_us = now(sqs);

    for (size_t i = 0; i < batch->n; i++)
        batch->messages[i].tag = semel__sqs_held_take(&sqs->held, &batch->messages[i], now_us);
    give_back_damaged(sqs, batch);
    sqs->receive_us = batch->n == 0 ? semel__time_add(begun_us, EMPTY_US) : now_us;
    sqs->wide = batch->n == 0 ? 1 : 2 * batch->n < SQS_BATCH ? sqs->wide : 2 * sqs->wide;
    sqs->wide = sqs->wide < SQS_RECEIVES ? sqs->wide : SQS_RECEIVES;
    sqs->failing = sqs->small = false;
    sqs->failures = 0;
    if (batch->n == 0) {
        semel__sqs_batch_free(batch);
        return;
    }
    sqs->n_waiting += batch->n;
    if (sqs->last != NULL)
        sqs->last->next = batch;
    else
        sqs->first = batch;
    sqs->last = batch;
}

static void end_receive(struct sqs *sqs, struct sqs_call *call)
{
    struct sqs_batch *batch = NULL;
    struct semel_error err;
    semel_status status = semel__sqs_call_status(call, &sqs->conf, &err);

    if (status == SEMEL_OK) {
        status = semel__sqs_read_messages(semel__buf_str(&call->answer), &batch, &err);
        err.status = SEMEL_RETRY; /* an answer that cannot be read says nothing of the settings */
    }
    if (status == SEMEL_OK) {
        take_batch(sqs, batch, call->begun_us);
        return;
    }
    sqs->small |= call->answer.full;
    /* The connection had been idle for too long: nothing is wrong. */
    if (call->code == CURLE_SEND_FAIL_REWIND && sqs->failures++ == 0)
        return;
    sqs->failing = true;
    note(sqs, &err);
    pause_receiving(sqs);
}

/* ---- chores -------------------------------------------------------------------------------------------- */

static void put_entries(struct sqs *sqs, struct sqs_call *call)
{
    semel__buf_addz(&call->request, ",\"Entries\":[");
    for (size_t i = 0; i < call->n_entries; i++) {
        const struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, call->entries[i].tag);
        semel__buf_addf(&call->request, "%s{\"Id\":\"%zu\",\"ReceiptHandle\":", i > 0 ? "," : "", i);
        semel__json_put_string(&call->request, slot->handle);
        if (call->duty == SQS_CHANGE)
            semel__buf_addf(&call->request, ",\"VisibilityTimeout\":%d", call->entries[i].seconds);
        semel__buf_addz(&call->request, "}");
    }
    semel__buf_addz(&call->request, "]}");
}

static void end_entries(struct sqs *sqs, const struct sqs_call *call, const struct sqs_verdicts *verdicts)
{
    const int64_t now_us = now(sqs);

    for (size_t i = 0; i < call->n_entries; i++)
        semel__sqs_held_ended(&sqs->held, call->duty, &call->entries[i], verdicts->at[i], call->begun_us, now_us);
}

/* false: nothing is due. */
static bool begin_chore(struct sqs *sqs, struct sqs_call *call, enum sqs_duty duty)
{
    static const char *const actions[] = {"DeleteMessageBatch", "ChangeMessageVisibilityBatch"};
    const struct sqs_verdicts unsaid = {0};
    struct semel_error err;

    call->duty = duty;
    call->n_entries = semel__sqs_held_due(&sqs->held, duty, now(sqs), call->entries);
    if (call->n_entries == 0)
        return false;
    begin_request(sqs, call);
    put_entries(sqs, call);
    if (semel__sqs_call_begin(call, sqs->multi, &sqs->conf, actions[duty], CHORE_MS, &err) == SEMEL_OK)
        return true;
    end_entries(sqs, call, &unsaid);
    note(sqs, &err);
    return false;
}

static void begin_chores(struct sqs *sqs)
{
    size_t i = SQS_RECEIVES;

    for (int duty = SQS_DELETE; duty <= SQS_CHANGE; duty++)
        for (; i < SQS_CALLS; i++)
            if (!sqs->calls[i].active && !begin_chore(sqs, &sqs->calls[i], (enum sqs_duty)duty))
                break;
}

static void end_chore(struct sqs *sqs, struct sqs_call *call)
{
    struct sqs_verdicts verdicts = {0};
    struct semel_error err;
    semel_status status = semel__sqs_call_status(call, &sqs->conf, &err);

    if (status == SEMEL_OK)
        (void)semel__sqs_read_verdicts(semel__buf_str(&call->answer), call->n_entries, &verdicts, &err);
    else if (status == SEMEL_INVALID)
        note(sqs, &err); /* a policy that lets us receive and not delete would go unnoticed */
    sqs->chore_failures += status != SEMEL_OK;
    if (verdicts.code[0] != '\0') {
        (void)semel__fail(&err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "sqs: queue %s refuses to %s a message: %s",
                          sqs->conf.queue, call->duty == SQS_DELETE ? "delete" : "change", verdicts.code);
        note(sqs, &err);
    }
    end_entries(sqs, call, &verdicts);
}

/* ---- work ---------------------------------------------------------------------------------------------- */

static void forget_texts(struct sqs_call *call)
{
    call->ended = false;
    semel__buf_done(&call->request);
    semel__buf_done(&call->answer);
}

/* Begins what is due, reads what has come. At most `room` messages are asked for. */
static void work(struct sqs *sqs, size_t room)
{
    semel__sqs_calls_run(sqs->multi);
    for (size_t i = 0; i < SQS_CALLS; i++)
        if (sqs->calls[i].ended) {
            if (i < SQS_RECEIVES)
                end_receive(sqs, &sqs->calls[i]);
            else
                end_chore(sqs, &sqs->calls[i]);
            forget_texts(&sqs->calls[i]);
        }
    begin_chores(sqs);
    begin_receives(sqs, room);
    semel__sqs_calls_run(sqs->multi); /* what was begun is on its way, whoever calls next */
}

/* How long nothing needs to be begun. */
static int64_t next_work(struct sqs *sqs)
{
    int64_t next_us = INT64_MAX;
    bool idle = false;

    for (size_t i = 0; i < SQS_CALLS; i++) {
        if (sqs->calls[i].ended)
            return 0;
        idle |= i >= SQS_RECEIVES && !sqs->calls[i].active;
    }
    if (idle)
        next_us = semel__sqs_held_next(&sqs->held);
    if (sqs->receive_us > now(sqs) && sqs->receive_us < next_us)
        next_us = sqs->receive_us;
    return next_us;
}

static bool is_receiving(const struct sqs *sqs)
{
    for (size_t i = 0; i < SQS_RECEIVES; i++)
        if (sqs->calls[i].active || sqs->calls[i].ended)
            return true;
    return false;
}

static void stop_work(struct sqs *sqs)
{
    for (size_t i = 0; i < SQS_CALLS; i++) {
        semel__sqs_call_stop(&sqs->calls[i], sqs->multi);
        forget_texts(&sqs->calls[i]);
    }
}

void semel__sqs_look(struct semel_broker *broker, struct semel_sqs_view *ret)
{
    const struct sqs_held *held = &self(broker)->held;

    *ret = (struct semel_sqs_view){.in_flight = semel__sqs_held_count(held, SQS_OUT),
                                   .waiting = semel__sqs_held_count(held, SQS_WAITING)};
    ret->answers = held->n - ret->in_flight - ret->waiting;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

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
        stop_work(sqs);
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
        sqs->base.ops = sqs->conf.fifo ? &fifo_ops : &standard_ops;
    else
        release(sqs);
    return status;
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
    const int64_t next_us = next_work(sqs), now_us = now(sqs);
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
        work(sqs, 0);
        semel__sqs_look(&sqs->base, &view);
        if (view.answers == 0)
            return true;
        if (now(sqs) >= until_us || sqs->chore_failures > 1)
            return false;
        wait_for_work(sqs, until_us);
    }
}

/* A long poll that is under way gets what was given back at once. It has a moment to say so, and that is given back as
 * well; cut off, it would keep it from others for the whole visibility time. */
static void sqs_close(struct semel_broker *broker)
{
    struct sqs *sqs = self(broker);
    const int64_t until_us = semel__time_add(now(sqs), CLOSE_MS * 1000);
    int64_t grace_us;

    semel__sqs_held_back_all(&sqs->held, now(sqs));
    if (sqs->held.n > 0 && flush(sqs, until_us)) {
        grace_us = semel__time_add(now(sqs), GRACE_MS * 1000);
        while (is_receiving(sqs) && sqs->held.n == 0 && now(sqs) < grace_us) {
            wait_for_work(sqs, grace_us);
            work(sqs, 0);
        }
        semel__sqs_held_back_all(&sqs->held, now(sqs));
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
    semel__sqs_held_back_all(&sqs->held, now(sqs));
    (void)flush(sqs, semel__time_add(now(sqs), CLOSE_MS * 1000));
    semel__sqs_held_settle(&sqs->held);
    sqs->failing = sqs->fresh = sqs->small = false;
    sqs->failures = 0;
    sqs->receive_us = 0;
    return SEMEL_OK;
}

/* ---- a delivery ---------------------------------------------------------------------------------------- */

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

/* ---- poll ---------------------------------------------------------------------------------------------- */

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
    const int64_t until_us = semel__time_add(now(sqs), (int64_t)wait_ms * 1000);
    struct semel_delivery *deliveries;
    semel_status status;
    size_t n = 0;

    max = max < POLL_MAX ? max : POLL_MAX;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    for (;;) {
        bool over;
        work(sqs, max);
        status = take(sqs, max, arena, deliveries, &n, err);
        over = now(sqs) >= until_us;
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

/* ---- answers ------------------------------------------------------------------------------------------- */

static semel_status sqs_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                               struct semel_error *err)
{
    struct sqs *sqs = self(broker);
    const int64_t now_us = now(sqs);
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++) {
        const struct sqs_slot *slot = semel__sqs_held_find(&sqs->held, replies[i].tag);
        if (semel__reply_acks(&replies[i]))
            n_fenced += !semel__sqs_held_ack(&sqs->held, replies[i].tag, now_us);
        else
            n_fenced += slot == NULL || slot->state != SQS_OUT;
    }
    for (size_t i = 0; i < n; i++) /* one may give back another */
        if (!semel__reply_acks(&replies[i]))
            (void)semel__sqs_held_back(&sqs->held, replies[i].tag,
                                       replies[i].delay_ms / 1000 + (replies[i].delay_ms % 1000 > 0), now_us);
    work(sqs, 0);
    return semel__broker_fenced("sqs", n_fenced, n, err);
}

#define OPS(more)                                                                                            \
    {                                                                                                        \
        .name = "sqs", .capabilities = SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | (more), .close = sqs_close, \
        .reopen = sqs_reopen, .poll = sqs_poll, .answer = sqs_answer, .publish = semel__sqs_publish,         \
    }

static const struct semel_broker_ops standard_ops = OPS(0);
static const struct semel_broker_ops fifo_ops = OPS(SEMEL_BROKER_ORDERED);
