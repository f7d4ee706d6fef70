/* SPDX-License-Identifier: MIT
 *
 * keep.c: the settings of consumers, events for the outbox, and the tick.
 *
 * A tick visits all consumers, starting with a random one, so that a busy one does not starve the others. It reports
 * a consumer whose settings cannot be read at the end.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "core/consumer.h"
#include "lib/handle.h"

#define PAGE 100

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
    if (status == SEMEL_OK)
        return semel__commit(s, err);
    semel_store_rollback(s->store);
    return status;
}

semel_status semel_consumer_set(struct semel *s, const char *consumer, const char *settings, struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, set(s, consumer, settings, err), err) : status;
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

typedef semel_status (*step)(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);

/* All consumers, starting with a random one. */
struct round {
    struct semel_str *names;
    size_t n_names, first;
    size_t max, n;             /* rows that may be touched, and that were */
    struct semel_error damage; /* the first consumer whose settings could not be read */
};

static semel_status add_names(struct semel *s, struct round *round, size_t *room, const struct semel_str *names,
                              size_t n, struct semel_error *err)
{
    if (round->n_names + n > *room) {
        *room = 2 * *room + n;
        struct semel_str *more = semel__arena_alloc(&s->arena, *room, sizeof *more);
        if (more == NULL)
            return semel__fail_memory(err);
        if (round->n_names > 0)
            memcpy(more, round->names, round->n_names * sizeof *more);
        round->names = more;
    }
    for (size_t i = 0; i < n; i++)
        round->names[round->n_names++] = names[i];
    return SEMEL_OK;
}

static semel_status list_consumers(struct semel *s, struct round *round, struct semel_error *err)
{
    struct semel_str after = {0}, *page = NULL;
    size_t n = PAGE, room = 0;
    semel_status status = SEMEL_OK;
    semel__arena_reset(&s->arena);
    while (status == SEMEL_OK && n == PAGE) {
        status = semel_store_consumers(s->store, after, PAGE, &s->arena, &page, &n, err);
        if (status == SEMEL_OK && n > 0) {
            status = add_names(s, round, &room, page, n, err);
            after = page[n - 1];
        }
    }
    if (status == SEMEL_OK && round->n_names > 0)
        round->first = (size_t)(semel__random_next(&s->rng) % round->n_names);
    return status;
}

/* Where the steps of this consumer continue; NULL: no memory. */
static struct place *place_of(struct semel *s, struct semel_str consumer)
{
    for (size_t i = 0; i < s->n_places; i++)
        if (semel__str_eqz(consumer, s->places[i].consumer))
            return &s->places[i];
    struct place *more = semel__realloc(s->places, s->n_places + 1, sizeof *more);
    if (more == NULL)
        return NULL;
    s->places = more;
    more[s->n_places] = (struct place){0};
    snprintf(more[s->n_places].consumer, sizeof more->consumer, "%.*s", (int)consumer.n, consumer.p);
    return &more[s->n_places++];
}

static semel_status tick_consumer(struct semel *s, struct semel_str consumer, step run, struct round *round,
                                  struct semel_error *err)
{
    size_t touched = 0;
    semel_status status = semel__use_consumer(s, consumer, err);
    struct place *place = status == SEMEL_OK ? place_of(s, consumer) : NULL;
    if (status == SEMEL_OK && place == NULL)
        return semel__fail_memory(err);
    if (status == SEMEL_OK) {
        s->inbox.places = place->at;
        status = run(&s->inbox, round->max - round->n, &touched, err);
        place->at = s->inbox.places;
    }
    round->n += touched;
    if (status != SEMEL_INVALID)
        return status;
    if (round->damage.status == SEMEL_OK)
        round->damage = *err;
    return SEMEL_OK;
}

/* Recovery and gaps come first, for all consumers: a purge of one must not delay the recovery of another. */
static semel_status tick(struct semel *s, struct round *round, struct semel_error *err)
{
    static const step steps[] = {semel__inbox_recover, semel__inbox_gaps, semel__inbox_sweep, semel__inbox_purge};
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    if (round->max < 1)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "max is 0; it must be 1 or more");
    semel_status status = list_consumers(s, round, err);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        for (size_t c = 0; status == SEMEL_OK && c < round->n_names && round->n < round->max; c++)
            status = tick_consumer(s, round->names[(round->first + c) % round->n_names], steps[i], round, err);
    size_t keys = 0;
    if (status == SEMEL_OK)
        status = semel__key_tick(s, round->max, &keys, err);
    round->n += keys;
    if (status != SEMEL_OK || round->damage.status == SEMEL_OK)
        return status;
    *err = round->damage;
    return round->damage.status;
}

semel_status semel_tick(struct semel *s, size_t max, size_t *ret_n, struct semel_error *err)
{
    struct round round = {.max = max};
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__leave(s, tick(s, &round, err), err);
    if (ret_n != NULL)
        *ret_n = round.n; /* includes the rows touched before a failure */
    return status;
}

/* ---- the outbox ---------------------------------------------------------------------------------- */

static semel_status take_event(const struct semel_event *event, struct semel__event *ret, struct semel_error *err)
{
    if (event == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "event is NULL");
    semel_status status = semel__check_size("event", event->size, sizeof *event, err);
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
    semel_status status = take_event(event, &e, err);
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
    semel_status status = take_event(event, &e, err);
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
