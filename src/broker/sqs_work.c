/* SPDX-License-Identifier: MIT
 *
 * sqs_work.c: the requests that go on by themselves while a handle is polled: receiving, and the chores (deleting what
 * is acknowledged, extending what is worked on, making visible what is given back).
 *
 * One receive is under way as long as there is room. While it brings messages there are more of them at a time, up to
 * SQS_RECEIVES; an empty answer makes it one again. Chores have requests of their own, so that a long poll holds up
 * none.
 *
 * Invariants: no more messages are asked for than there is room for; all of these requests may be sent again, and
 * nobody but this file does so; a receive that failed is tried again after a pause that grows.
 */
#include "broker/sqs_private.h"

#include "base/clock.h"

#define CHORE_MS 10000
#define SLACK_MS 10000 /* what a long poll may take beyond its wait */
#define REQUEST_MAX ((size_t)64 << 10)
#define PAUSE_US INT64_C(200000)
#define PAUSE_DOUBLES 5
#define EMPTY_US INT64_C(250000) /* between receives that find nothing, should the server not wait */
#define DAMAGED_S 5

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
    call->begun_us = semel__sqs_now(sqs);
}

/* ---- receiving ------------------------------------------------------------------------------------------ */

static void pause_receiving(struct sqs *sqs)
{
    const int doubles = sqs->failures < PAUSE_DOUBLES ? sqs->failures : PAUSE_DOUBLES;

    sqs->failures++;
    sqs->wide = 1;
    sqs->receive_us = semel__time_add(semel__sqs_now(sqs), PAUSE_US << doubles);
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

    if (semel__sqs_now(sqs) < sqs->receive_us)
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
        (void)semel__sqs_held_back(&sqs->held, slot->tag, DAMAGED_S, semel__sqs_now(sqs));
        (void)semel__fail(&sqs->error, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                          "sqs: a body arrived damaged: it does not have the MD5 that was sent with it");
        sqs->fresh = true;
    }
}

static void take_batch(struct sqs *sqs, struct sqs_batch *batch, int64_t begun_us)
{
    const int64_t now_us = semel__sqs_now(sqs);

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

/* ---- chores --------------------------------------------------------------------------------------------- */

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
    const int64_t now_us = semel__sqs_now(sqs);

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
    call->n_entries = semel__sqs_held_due(&sqs->held, duty, semel__sqs_now(sqs), call->entries);
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

/* ---- all of it ------------------------------------------------------------------------------------------ */

static void forget_texts(struct sqs_call *call)
{
    call->ended = false;
    semel__buf_done(&call->request);
    semel__buf_done(&call->answer);
}

void semel__sqs_work(struct sqs *sqs, size_t room)
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

int64_t semel__sqs_work_next(struct sqs *sqs)
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
    if (sqs->receive_us > semel__sqs_now(sqs) && sqs->receive_us < next_us)
        next_us = sqs->receive_us;
    return next_us;
}

bool semel__sqs_is_receiving(const struct sqs *sqs)
{
    for (size_t i = 0; i < SQS_RECEIVES; i++)
        if (sqs->calls[i].active || sqs->calls[i].ended)
            return true;
    return false;
}

void semel__sqs_work_stop(struct sqs *sqs)
{
    for (size_t i = 0; i < SQS_CALLS; i++) {
        semel__sqs_call_stop(&sqs->calls[i], sqs->multi);
        forget_texts(&sqs->calls[i]);
    }
}
