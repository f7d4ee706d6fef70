/* SPDX-License-Identifier: MIT
 *
 * side.c: one handle in a test. See side.h.
 */
#define _GNU_SOURCE /* strsep */
#include "kafka/side.h"

#include <stdlib.h>

#include "support/answer.h"
#include "support/query.h"

#define ARENA_MAX ((size_t)64 << 20)

/* `topics` has commas between them; `more` is "&first=earliest&NAME=VALUE": properties, but for the first. */
struct semel_broker *kafka_side_broker(int port, const char *topics, const char *group, const char *more)
{
    struct semel_broker *broker = NULL;
    struct semel_error err = {0};
    struct semel_str list[8];
    struct semel_pair properties[8];
    char address[64], names[256], query[256], *at, *rest = query, *name, *value;
    struct semel_kafka_options options = {.brokers = address,
                                          .group = group,
                                          .topics.at = list,
                                          .properties.at = properties};

    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    at = memcpy(names, topics, strlen(topics) + 1);
    memcpy(query, more, strlen(more) + 1);
    for (char *one = strsep(&at, ","); one != NULL; one = strsep(&at, ","))
        list[options.topics.n++] = semel__str(one);
    while (query_next(&rest, &name, &value))
        if (strcmp(name, "first") == 0)
            options.first = SEMEL_KAFKA_FIRST_EARLIEST;
        else
            properties[options.properties.n++] = (struct semel_pair){semel__str(name), semel__str(value)};
    if (semel__broker_kafka_open(&broker, &options, NULL, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    return broker;
}

void kafka_side_open(struct kafka_side *side, const struct kafka_server *server, const char *topic, const char *more)
{
    *side = (struct kafka_side){0};
    semel__arena_init(&side->arena, ARENA_MAX);
    side->broker = kafka_side_broker(server->port, topic, topic, more);
}

void kafka_side_open_with(struct kafka_side *side, const struct semel_kafka_options *options,
                          const struct semel_source_hooks *hooks)
{
    *side = (struct kafka_side){0};
    semel__arena_init(&side->arena, ARENA_MAX);
    assert_int_equal(semel__broker_kafka_open(&side->broker, options, hooks, &side->err), SEMEL_OK);
}

void kafka_side_close(struct kafka_side *side)
{
    semel_broker_close(side->broker);
    semel__arena_done(&side->arena);
    semel__free(side->got);
    *side = (struct kafka_side){0};
}

static void remember(struct kafka_side *side, const struct semel_delivery *d)
{
    struct semel_source_start at;

    assert_true(semel__kafka_position(d->position, &at));
    if (side->n_got == side->cap_got) {
        side->cap_got = side->cap_got == 0 ? 1024 : 2 * side->cap_got;
        side->got = semel__realloc(side->got, side->cap_got, sizeof *side->got);
        assert_non_null(side->got);
    }
    side->got[side->n_got++] = (struct kafka_got){at.partition, at.offset, d->tag, false, false};
}

size_t kafka_side_poll(struct kafka_side *side, size_t max, int wait_ms)
{
    struct semel_error err = {0};
    semel_status status;

    semel__arena_reset(&side->arena);
    side->n = 0;
    status = semel_broker_poll(side->broker, max, wait_ms, &side->arena, &side->d, &side->n, &err);
    if (status != SEMEL_OK) {
        assert_int_equal(status, SEMEL_RETRY);
        assert_int_equal(side->n, 0);
        side->err = err;
        side->reported++;
    }
    for (size_t i = 0; i < side->n; i++)
        remember(side, &side->d[i]);
    return side->n;
}

void kafka_side_wait(struct kafka_side *side, size_t n)
{
    for (int i = 0; side->n_got < n; i++) {
        if (i == KAFKA_SIDE_TRIES) {
            struct semel_kafka_view view;
            semel__kafka_view(side->broker, &view);
            fail_msg(
                "%zu of %zu have come; %zu partitions, %zu stopped, %zu in flight, %lld behind; %d errors, last: %s",
                side->n_got, n, view.assigned, view.stopped, view.in_flight, (long long)view.behind, side->reported,
                side->err.text);
        }
        kafka_side_poll(side, n - side->n_got, KAFKA_SIDE_STEP_MS);
    }
}

void kafka_side_wait_assigned(struct kafka_side *side, size_t n)
{
    struct semel_kafka_view view = {0};

    for (int i = 0; view.assigned != n; i++) {
        assert_true(i < KAFKA_SIDE_TRIES);
        kafka_side_poll(side, 1, KAFKA_SIDE_STEP_MS);
        semel__kafka_view(side->broker, &view);
    }
}

semel_status kafka_side_ack(struct kafka_side *side, size_t i)
{
    const semel_status status = answer_ack(side->broker, &side->got[i].tag, 1, &side->err);

    side->got[i].acked |= status == SEMEL_OK;
    return status;
}

void kafka_side_ack_all(struct kafka_side *side)
{
    for (size_t i = 0; i < side->n_got; i++)
        if (!side->got[i].acked && !side->got[i].fenced) {
            const semel_status status = kafka_side_ack(side, i);
            assert_true(status == SEMEL_OK || status == SEMEL_FENCED);
            side->got[i].fenced = status == SEMEL_FENCED;
        }
}

bool kafka_side_has_acked(const struct kafka_side *side, int partition, int64_t offset)
{
    for (size_t i = 0; i < side->n_got; i++)
        if (side->got[i].partition == partition && side->got[i].offset == offset && side->got[i].acked)
            return true;
    return false;
}
