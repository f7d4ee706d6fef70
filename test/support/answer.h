/* SPDX-License-Identifier: MIT
 *
 * answer.h: answers of one kind to several deliveries, as tests like to give them.
 */
#ifndef SEMEL_TEST_SUPPORT_ANSWER_H
#define SEMEL_TEST_SUPPORT_ANSWER_H

#include <stdlib.h>

#include "core/broker.h"
#include "core/inbox.h"

static inline semel_status answer_tags(struct semel_broker *broker, const uint64_t *tags, size_t n,
                                       const struct semel_settled *settled, int delay_ms, struct semel_error *err)
{
    struct semel_reply *replies = calloc(n + 1, sizeof *replies);
    semel_status status;

    if (replies == NULL)
        abort();
    for (size_t i = 0; i < n; i++)
        replies[i] = (struct semel_reply){tags[i], settled, delay_ms};
    status = semel_broker_answer(broker, replies, n, err);
    free(replies);
    return status;
}

static inline semel_status answer_ack(struct semel_broker *broker, const uint64_t *tags, size_t n,
                                      struct semel_error *err)
{
    static const struct semel_settled acked = {.act = SEMEL_ACK, .why = SEMEL_WHY_NEW};

    return answer_tags(broker, tags, n, &acked, 0, err);
}

static inline semel_status answer_later(struct semel_broker *broker, const uint64_t *tags, size_t n, int delay_ms,
                                        struct semel_error *err)
{
    return answer_tags(broker, tags, n, NULL, delay_ms, err);
}

#endif
