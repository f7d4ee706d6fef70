/* SPDX-License-Identifier: MIT
 *
 * keep.c: the settings of consumers, events for the outbox, and the tick.
 *
 * A tick is a round of housekeeping (core/house.h) for all consumers, and for idempotency keys.
 */
#include "base/error.h"
#include "base/str.h"
#include "core/consumer.h"
#include "lib/handle.h"

/* ---- consumers ----------------------------------------------------------------------------------- */

static semel_status set(struct semel *s, const char *consumer, const char *settings, struct semel_error *err)
{
    const struct semel_setter by = {.who = semel__str(s->owner)};
    struct semel_setting now;
    int64_t now_us;
    struct semel_str name = semel__str(consumer);
    if (settings == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "settings is NULL; {} changes nothing");
    semel_status status = semel__id_check("consumer", name, 1, err);
    if (status == SEMEL_OK)
        status = semel_store_begin(s->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__consumer_set(s->store, name, semel__str(settings), &by, now_us, &s->arena, &now, err);
    if (status != SEMEL_OK) {
        semel_store_rollback(s->store);
        return status;
    }
    status = semel__commit(s, err);
    s->hint = status == SEMEL_OK ? now.hint : NULL;
    return status;
}

semel_status semel_consumer_set(struct semel *s, const char *consumer, const char *settings, struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, set(s, consumer, settings, err), err) : status;
}

const char *semel_hint(const struct semel *s)
{
    return s != NULL ? s->hint : NULL;
}

static semel_status get(struct semel *s, const char *consumer, struct semel_str *ret, struct semel_error *err)
{
    struct semel_buf buf;
    if (ret == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "ret_settings is NULL");
    semel_status status = semel__use_consumer(s, semel__str(consumer), err);
    if (status != SEMEL_OK)
        return status;
    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    semel__policy_write(&s->policy, &buf);
    bool copied = !buf.failed && semel__arena_copy(&s->arena, semel__buf_str(&buf), ret);
    semel__buf_done(&buf);
    return copied ? SEMEL_OK : semel__fail_memory(err);
}

semel_status semel_consumer_get(struct semel *s, const char *consumer, struct semel_str *ret_settings,
                                struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, get(s, consumer, ret_settings, err), err) : status;
}

/* ---- tick ---------------------------------------------------------------------------------------- */

static semel_status tick(struct semel *s, struct semel_house_round *round, struct semel_error *err)
{
    struct semel_error local = {0};
    size_t keys = 0;
    err = err != NULL ? err : &local;
    semel_status status = semel__house_round(&s->house, round, err);
    if (status == SEMEL_OK)
        status = semel__house_keys(&s->house, round->max, &keys, err);
    round->n += keys;
    if (status != SEMEL_OK || round->damage.status == SEMEL_OK)
        return status;
    *err = round->damage;
    return round->damage.status;
}

semel_status semel_tick(struct semel *s, size_t max, size_t *ret_n, struct semel_error *err)
{
    struct semel_house_round round = {.max = max};
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__leave(s, tick(s, &round, err), err);
    if (ret_n != NULL)
        *ret_n = round.n; /* includes the rows touched before a failure */
    return status;
}

/* ---- the outbox ---------------------------------------------------------------------------------- */

static semel_status parse_event(const struct semel_event *event, struct semel__event *ret, struct semel_error *err)
{
    if (event == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "event is NULL");
    /* what was added later may be missing */
    semel_status status = semel__check_size("event", event->size, offsetof(struct semel_event, lock), err);
    if (status != SEMEL_OK)
        return status;
    *ret = (struct semel__event){.id = event->id,
                                 .aggregatetype = event->aggregatetype,
                                 .aggregateid = event->aggregateid,
                                 .type = event->type,
                                 .payload = event->payload,
                                 .headers = event->headers,
                                 .destination = event->destination,
                                 .traceparent = event->traceparent};
    ret->lock = event->size > offsetof(struct semel_event, lock) && event->lock;
    const struct semel_str strs[] = {ret->id,      ret->aggregatetype, ret->aggregateid, ret->type,
                                     ret->payload, ret->destination,   ret->traceparent};
    for (size_t i = 0; status == SEMEL_OK && i < sizeof strs / sizeof strs[0]; i++)
        status = semel__check_str("a string of the event", strs[i], err);
    return status == SEMEL_OK ? semel__check_json("headers", event->headers, SEMEL_HEADERS_MAX, true, err) : status;
}

static semel_status put(struct semel *s, const struct semel_event *event, char *ret_id, struct semel_error *err)
{
    struct semel__event e;
    int64_t now_us;
    semel_status status = parse_event(event, &e, err);
    if (status == SEMEL_OK)
        status = semel_store_begin(s->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_outbox_put(s->store, &e, now_us, ret_id, err);
    if (status == SEMEL_OK)
        return semel__commit(s, err);
    semel_store_rollback(s->store);
    return status;
}

/* Inside a handler: the transaction is open already, with the store's time. */
static semel_status put_inside(struct semel *s, const struct semel_event *event, char *ret_id, struct semel_error *err)
{
    struct semel__event e;
    const struct semel_clock *clock = s->store->options.clock;
    if (!semel_store_busy(s->store))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the handler has ended the transaction: nothing can be put into it");
    semel_status status = parse_event(event, &e, err);
    if (status != SEMEL_OK)
        return status;
    return semel_store_outbox_put(s->store, &e, semel__now(clock != NULL ? clock : &semel__clock_real), ret_id, err);
}

semel_status semel_outbox_put(struct semel *s, const struct semel_event *event, char ret_id[SEMEL_EVENT_ID_SIZE],
                              struct semel_error *err)
{
    char unwanted[SEMEL_EVENT_ID_SIZE];
    ret_id = ret_id != NULL ? ret_id : unwanted;
    if (s == NULL)
        return semel__enter(s, SEMEL_WHOSE_EITHER, err);
    if (s->inside && s->store->in_tx) {
        semel__error_clear(err);
        return put_inside(s, event, ret_id, err);
    }
    if (s->inside) { /* an effect outside: no transaction is open, so this makes one */
        semel__error_clear(err);
        semel_store_join(s->store, semel_store_busy(s->store));
        semel_status status = put(s, event, ret_id, err);
        semel_store_join(s->store, false);
        return status;
    }
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, put(s, event, ret_id, err), err) : status;
}
