/* SPDX-License-Identifier: MIT
 *
 * broker.c: the only way from core to a broker driver.
 */
#include "core/broker.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

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

/* By which consumers find a message's id; core/extract.c has the rules. */
static bool carries_id(struct semel_str name)
{
    static const char *const names[] = {"ce_id",      "ce-id",           "cloudEvents_id", "cloudEvents:id",
                                        "message_id", "Idempotency-Key", "webhook-id"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (semel__same_word(name, names[i]))
            return true;
    return false;
}

bool semel__header_name_fits(struct semel_str name, size_t max)
{
    for (size_t i = 0; i < name.n; i++)
        if (!semel__is_letter(name.p[i]) && !semel__is_digit(name.p[i]) &&
            (name.p[i] == '\0' || strchr("!#$%&'*+-.^_`|~", name.p[i]) == NULL))
            return false;
    return name.n > 0 && name.n <= max;
}

bool semel__header_value_fits(struct semel_str value, size_t max)
{
    for (size_t i = 0; i < value.n; i++)
        if ((unsigned char)value.p[i] < 0x20 || (unsigned char)value.p[i] > 0x7e)
            return false;
    return value.n > 0 && value.n <= max && value.p[0] != ' ' && value.p[value.n - 1] != ' ';
}

bool semel__publish_header(const struct semel_publish *item, size_t place, struct semel_pair *ret)
{
    const bool has_id = semel__str_given(item->id);

    assert(place <= item->n_headers);
    if (place == item->n_headers) {
        *ret = (struct semel_pair){SEMEL_STR("id"), item->id};
        return has_id;
    }
    *ret = item->headers[place];
    return !has_id ||
           (!semel__same_word(ret->name, "id") && (!carries_id(ret->name) || semel__str_eq(ret->value, item->id)));
}

size_t semel__publish_header_count(const struct semel_publish *item)
{
    struct semel_pair pair;
    size_t n = 0;

    for (size_t i = 0; i <= item->n_headers; i++)
        n += semel__publish_header(item, i, &pair);
    return n;
}

void semel__publish_end(struct semel_publish *item, semel_status status, bool down, const char *fmt, ...)
{
    char text[2 * SEMEL_PUBLISH_WHY];
    va_list args;

    assert(status != SEMEL_OK && !(status == SEMEL_INVALID && down));
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    item->status = status;
    item->down = down;
    semel__str_show(item->why, sizeof item->why, semel__str(text));
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
    for (size_t i = 0; i < n; i++) {
        items[i].status = SEMEL_RETRY; /* certainly not sent, until it is handed over */
        items[i].down = false;
        items[i].why[0] = '\0';
    }
    return n == 0 || timeout_ms <= 0 ? SEMEL_OK : broker->ops->publish(broker, items, n, timeout_ms, err);
}
