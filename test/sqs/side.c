/* SPDX-License-Identifier: MIT
 *
 * side.c: one handle in a test. See side.h.
 */
#define _GNU_SOURCE /* strsep */
#include "sqs/side.h"

#include <stdlib.h>

#include "support/answer.h"
#include "support/query.h"

#define ARENA_MAX ((size_t)64 << 20)

static void reset(struct sqs_side *side)
{
    memset(side, 0, sizeof *side);
    semel__arena_init(&side->arena, ARENA_MAX);
}

/* `more` is "?visibility_ms=N&wait_ms=N&in_flight=N"; the key is good for servers that do not ask. */
struct semel_broker *sqs_side_broker(const char *url, const char *more)
{
    struct semel_sqs_options options = {
        .url = url, .region = "none", .access_key = "none", .secret_key = "none", .wait_us = INT64_C(20000000)};
    struct semel_broker *broker = NULL;
    struct semel_error err = {0};
    char query[128], *rest = memcpy(query, more, strlen(more) + 1), *name, *value;

    while (query_next(&rest, &name, &value)) {
        const int64_t number = strtol(value, NULL, 10);
        if (strcmp(name, "visibility_ms") == 0)
            options.visibility_us = number * 1000;
        else if (strcmp(name, "wait_ms") == 0)
            options.wait_us = number * 1000;
        else
            options.in_flight_max = (size_t)number;
    }
    if (semel__broker_sqs_open(&broker, &options, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    return broker;
}

void sqs_side_open(struct sqs_side *side, const char *queue_url, const char *more)
{
    reset(side);
    side->broker = sqs_side_broker(queue_url, more);
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
        side->reported++;
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

    semel__sqs_view(side->broker, &view);
    for (int i = 0; view.answers > 0; i++) {
        assert_true(i < SQS_SIDE_TRIES);
        sqs_side_poll(side, 1, 10);
        semel__sqs_view(side->broker, &view);
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
