/* SPDX-License-Identifier: MIT
 *
 * side.c: one handle in a test. See side.h.
 */
#include "sqs/side.h"

#include "support/answer.h"

#define ARENA_MAX ((size_t)64 << 20)

static void reset(struct sqs_side *side)
{
    memset(side, 0, sizeof *side);
    semel__arena_init(&side->arena, ARENA_MAX);
}

void sqs_side_open(struct sqs_side *side, const char *queue_url, const char *more)
{
    static const struct semel_broker_ops *const linked[] = {&semel__broker_sqs, NULL};
    char url[512];

    reset(side);
    snprintf(url, sizeof url, "sqs:%s%s", queue_url, more);
    assert_int_equal(semel_broker_open(&side->broker, linked, url, &side->err), SEMEL_OK);
}

void sqs_side_open_with(struct sqs_side *side, const struct semel_sqs_options *options)
{
    reset(side);
    assert_int_equal(semel__broker_sqs_open(&side->broker, options, &side->err), SEMEL_OK);
}

void sqs_side_close(struct sqs_side *side)
{
    semel_broker_close(side->broker);
    semel__arena_done(&side->arena);
    side->broker = NULL;
}

semel_status sqs_side_poll(struct sqs_side *side, size_t max, int wait_ms)
{
    struct semel_error err = {0};
    semel_status status;

    semel__arena_reset(&side->arena);
    side->n = 0;
    status = semel_broker_poll(side->broker, max, wait_ms, &side->arena, &side->d, &side->n, &err);
    if (status != SEMEL_OK) {
        assert_int_equal(side->n, 0);
        assert_int_equal(err.status, status);
        side->err = err;
        side->told++;
    }
    for (size_t i = 0; i < side->n; i++) {
        struct sqs_got *got = &side->got[side->n_got++];
        assert_true(side->n_got < SQS_SIDE_GOT);
        snprintf(got->body, sizeof got->body, "%.*s", (int)side->d[i].payload.n, side->d[i].payload.p);
        got->tag = side->d[i].tag;
        got->lane = side->d[i].lane;
        got->delivery = side->d[i].delivery;
    }
    return status;
}

void sqs_side_wait(struct sqs_side *side, size_t n)
{
    for (int i = 0; side->n_got < n; i++) {
        assert_true(i < SQS_SIDE_TRIES);
        sqs_side_poll(side, n - side->n_got, SQS_SIDE_STEP_MS);
    }
}

semel_status sqs_side_wait_error(struct sqs_side *side)
{
    semel_status status = SEMEL_OK;

    for (int i = 0; status == SEMEL_OK; i++) {
        assert_true(i < SQS_SIDE_TRIES);
        status = sqs_side_poll(side, 10, SQS_SIDE_STEP_MS);
        assert_int_equal(side->n, 0);
    }
    return status;
}

void sqs_side_settle(struct sqs_side *side)
{
    struct semel_sqs_view view;

    semel__sqs_look(side->broker, &view);
    for (int i = 0; view.answers > 0; i++) {
        assert_true(i < SQS_SIDE_TRIES);
        sqs_side_poll(side, 1, 10);
        semel__sqs_look(side->broker, &view);
    }
}

semel_status sqs_side_ack(struct sqs_side *side, size_t i)
{
    return answer_ack(side->broker, &side->got[i].tag, 1, &side->err);
}

semel_status sqs_side_later(struct sqs_side *side, size_t i, int delay_ms)
{
    return answer_later(side->broker, &side->got[i].tag, 1, delay_ms, &side->err);
}
