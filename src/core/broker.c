/* SPDX-License-Identifier: MIT
 *
 * broker.c: the only way from core to a broker driver.
 */
#include "core/broker.h"

#include <assert.h>

#include "base/error.h"
#include "base/str.h"
#include "core/inbox.h"

void semel_broker_close(struct semel_broker *broker)
{
    if (broker == NULL)
        return;
    broker->ops->close(broker);
    semel__free(broker);
}

semel_status semel_broker_reopen(struct semel_broker *broker, struct semel_error *err)
{
    return broker->ops->reopen(broker, err);
}

semel_status semel_broker_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                               struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    assert(wait_ms >= 0);
    semel_status status = broker->ops->poll(broker, max, wait_ms, arena, ret_deliveries, ret_n, err);
    assert(status != SEMEL_OK || *ret_n <= max);
    return status;
}

semel_status semel_broker_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                 struct semel_error *err)
{
    for (size_t i = 0; i < n; i++)
        assert(replies[i].delay_ms >= 0);
    return n == 0 ? SEMEL_OK : broker->ops->answer(broker, replies, n, err);
}

bool semel__reply_acks(const struct semel_reply *reply)
{
    return reply->settled != NULL && reply->settled->act == SEMEL_ACK;
}

bool semel__broker_copy_pairs(struct semel_arena *arena, const struct semel_pair *pairs, size_t n,
                              const struct semel_pair **ret)
{
    struct semel_pair *copy = semel__arena_alloc(arena, n, sizeof *copy);

    for (size_t i = 0; copy != NULL && i < n; i++)
        if (!semel__arena_copy(arena, pairs[i].name, &copy[i].name) ||
            !semel__arena_copy(arena, pairs[i].value, &copy[i].value))
            return false;
    *ret = copy;
    return copy != NULL;
}

bool semel__publish_has_id(const struct semel_publish *item)
{
    for (size_t i = 0; i < item->n_headers; i++)
        if (semel__str_eqz(item->headers[i].name, "id"))
            return true;
    return !semel__str_given(item->id);
}

semel_status semel__broker_fenced(const char *driver, size_t n_fenced, size_t n, struct semel_error *err)
{
    if (n_fenced == 0)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_NONE, "%s: %zu of %zu deliveries are no longer ours", driver,
                       n_fenced, n);
}

void semel_broker_wake(struct semel_broker *broker)
{
    if (broker->ops->wake != NULL)
        broker->ops->wake(broker);
}

int semel_broker_fd(struct semel_broker *broker)
{
    return broker->ops->fd != NULL ? broker->ops->fd(broker) : -1;
}

semel_status semel_broker_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                  struct semel_error *err)
{
    assert((broker->ops->capabilities & SEMEL_BROKER_SINK) != 0);
    for (size_t i = 0; i < n; i++)
        items[i].status = SEMEL_RETRY; /* certainly not sent, until it is handed over */
    return n == 0 || timeout_ms <= 0 ? SEMEL_OK : broker->ops->publish(broker, items, n, timeout_ms, err);
}
