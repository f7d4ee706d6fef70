/* SPDX-License-Identifier: MIT
 *
 * side.c: one handle in a test. See side.h.
 */
#define _GNU_SOURCE /* strsep */
#include "rabbit/side.h"

#include <poll.h>
#include <stdlib.h>

#include "support/answer.h"
#include "support/query.h"

#define ARENA_MAX ((size_t)64 << 20)
#define BATCH 256

static void begin(struct rabbit_side *side)
{
    *side = (struct rabbit_side){0};
    semel__arena_init(&side->arena, ARENA_MAX);
}

/* `more` is "&prefetch=N&heartbeat_s=N&timeout_ms=N&single_active=true". */
struct semel_broker *rabbit_side_broker(const char *url, const char *queue, const char *more)
{
    struct semel_amqp_options options = {.url = url, .queue = queue};
    struct semel_broker *broker = NULL;
    struct semel_error err = {0};
    char query[128], *rest = memcpy(query, more, strlen(more) + 1), *name, *value;

    while (query_next(&rest, &name, &value)) {
        const int number = (int)strtol(value, NULL, 10);
        if (strcmp(name, "prefetch") == 0)
            options.prefetch = number;
        else if (strcmp(name, "heartbeat_s") == 0)
            options.heartbeat_us = number * INT64_C(1000000);
        else if (strcmp(name, "timeout_ms") == 0)
            options.timeout_ms = number;
        else
            options.single_active = true;
    }
    if (semel__broker_amqp_open(&broker, &options, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    return broker;
}

void rabbit_side_open(struct rabbit_side *side, int port, const char *queue, const char *more)
{
    char url[64];

    begin(side);
    snprintf(url, sizeof url, "amqp://127.0.0.1:%d", port);
    side->broker = rabbit_side_broker(url, queue, more);
}

void rabbit_side_open_with(struct rabbit_side *side, const struct semel_amqp_options *options)
{
    begin(side);
    assert_int_equal(semel__broker_amqp_open(&side->broker, options, &side->err), SEMEL_OK);
}

void rabbit_side_close(struct rabbit_side *side)
{
    semel_broker_close(side->broker);
    semel__arena_done(&side->arena);
    semel__free(side->got);
    *side = (struct rabbit_side){0};
}

static void remember(struct rabbit_side *side, const struct semel_delivery *d)
{
    struct rabbit_got *got;

    if (side->n_got == side->cap_got) {
        side->cap_got = side->cap_got == 0 ? 1024 : 2 * side->cap_got;
        side->got = semel__realloc(side->got, side->cap_got, sizeof *side->got);
        assert_non_null(side->got);
    }
    got = &side->got[side->n_got++];
    *got = (struct rabbit_got){.tag = d->tag, .delivery = d->delivery};
    snprintf(got->text, sizeof got->text, "%.*s", (int)(d->payload.n < 31 ? d->payload.n : 31), d->payload.p);
}

semel_status rabbit_side_poll(struct rabbit_side *side, size_t max, int wait_ms)
{
    semel_status status;

    semel__arena_reset(&side->arena);
    side->n = 0;
    status = semel_broker_poll(side->broker, max, wait_ms, &side->arena, &side->d, &side->n, &side->err);
    if (status != SEMEL_OK)
        side->n = 0;
    for (size_t i = 0; i < side->n; i++)
        remember(side, &side->d[i]);
    return status;
}

void rabbit_side_wait(struct rabbit_side *side, size_t n)
{
    for (int i = 0; side->n_got < n; i++) {
        const size_t left = n - side->n_got;
        const semel_status status = rabbit_side_poll(side, left < BATCH ? left : BATCH, RABBIT_SIDE_STEP_MS);
        if (status != SEMEL_OK)
            fail_msg("%s", side->err.text);
        assert_true(i < RABBIT_SIDE_TRIES);
    }
}

void rabbit_side_wait_status(struct rabbit_side *side, semel_status status)
{
    for (int i = 0; rabbit_side_poll(side, BATCH, RABBIT_SIDE_STEP_MS) != status; i++)
        assert_true(i < RABBIT_SIDE_TRIES);
}

void rabbit_side_reopen(struct rabbit_side *side)
{
    for (int i = 0; semel_broker_reopen(side->broker, &side->err) != SEMEL_OK; i++) {
        assert_true(i < RABBIT_SIDE_TRIES);
        poll(NULL, 0, RABBIT_SIDE_STEP_MS);
    }
}

static void tags_of(const struct rabbit_side *side, size_t i, size_t n, uint64_t *tags)
{
    assert_true(i + n <= side->n_got && n <= 4096);
    for (size_t k = 0; k < n; k++)
        tags[k] = side->got[i + k].tag;
}

semel_status rabbit_side_ack(struct rabbit_side *side, size_t i, size_t n)
{
    uint64_t tags[4096];

    tags_of(side, i, n, tags);
    return answer_ack(side->broker, tags, n, &side->err);
}

semel_status rabbit_side_later(struct rabbit_side *side, size_t i, size_t n, int delay_ms)
{
    uint64_t tags[4096];

    tags_of(side, i, n, tags);
    return answer_later(side->broker, tags, n, delay_ms, &side->err);
}

const char *rabbit_side_texts(const struct rabbit_side *side, size_t i)
{
    static char text[4096];
    size_t n = 0;

    text[0] = '\0';
    for (; i < side->n_got && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n > 0 ? " " : "", side->got[i].text);
    return text;
}
