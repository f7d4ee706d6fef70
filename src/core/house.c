/* SPDX-License-Identifier: MIT
 *
 * house.c: housekeeping. The contract stands in house.h; the steps are the scheduler's.
 */
#include "core/house.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "core/consumer.h"
#include "core/keys.h"
#include "core/transaction.h"

#define PAGE 100
#define ARENA_MAX ((size_t)256 << 20)
#define KEYS_MAX 1000000

struct semel_house_place {
    char consumer[SEMEL_ID_MAX + 1];
    struct semel_places at;
};

typedef semel_status (*step)(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);
static const step steps[SEMEL_HOUSE_STEPS] = {
    [SEMEL_HOUSE_RECOVERED] = semel__inbox_recover,
    [SEMEL_HOUSE_DECIDED] = semel__inbox_gaps,
    [SEMEL_HOUSE_WOKEN] = semel__inbox_sweep,
    [SEMEL_HOUSE_PURGED] = semel__inbox_purge,
};

const char *semel__house_step_name(enum semel_house_step which)
{
#define X(name, text) text,
    static const char *const names[] = {SEMEL_HOUSE_MAP(X)};
#undef X
    return names[which];
}

semel_status semel__house_keep(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    *ret_n = 0;
    for (size_t i = 0; status == SEMEL_OK && i < SEMEL_HOUSE_STEPS; i++) {
        size_t n = 0;
        status = steps[i](inbox, max, &n, err);
        *ret_n += n;
    }
    return status;
}

/* ---- many consumers ------------------------------------------------------------------------------ */

static semel_status never(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                          struct semel__reply *reply, struct semel_error *err)
{
    (void)ctx;
    (void)store;
    (void)msg;
    (void)attempt;
    (void)reply;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "housekeeping runs no handler");
}

void semel__house_init(struct semel_house *house, struct semel_store *store, struct semel_random *rng,
                       struct semel_str owner)
{
    *house = (struct semel_house){.none = {.each = never}};
    semel__inbox_init(&house->inbox, store, &house->policy, &house->none, rng, owner);
    semel__arena_init(&house->arena, ARENA_MAX);
    semel__arena_init(&house->sheet, (size_t)4 * SEMEL_SETTINGS_MAX);
}

void semel__house_done(struct semel_house *house)
{
    semel__inbox_done(&house->inbox);
    semel__arena_done(&house->arena);
    semel__arena_done(&house->sheet);
    semel__free(house->places);
    house->places = NULL;
    house->n_places = house->room = 0;
}

/* Where the steps of this consumer continue; NULL: no memory. */
static struct semel_house_place *place_of(struct semel_house *house, struct semel_str consumer)
{
    for (size_t i = 0; i < house->n_places; i++)
        if (semel__str_eqz(consumer, house->places[i].consumer))
            return &house->places[i];
    if (house->n_places == house->room) {
        size_t room = 2 * house->room + 4;
        struct semel_house_place *more = semel__realloc(house->places, room, sizeof *more);
        if (more == NULL)
            return NULL;
        house->places = more;
        house->room = room;
    }
    struct semel_house_place *place = &house->places[house->n_places++];
    *place = (struct semel_house_place){0};
    snprintf(place->consumer, sizeof place->consumer, "%.*s", (int)consumer.n, consumer.p);
    return place;
}

struct names {
    struct semel_str *at;
    size_t n, room;
};

static semel_status add_name(struct semel_house *house, struct names *names, struct semel_str name,
                             struct semel_error *err)
{
    if (names->n == names->room) {
        names->room = 2 * names->room + PAGE;
        struct semel_str *more = semel__arena_alloc(&house->arena, names->room, sizeof *more);
        if (more == NULL)
            return semel__fail_memory(err);
        if (names->n > 0)
            memcpy(more, names->at, names->n * sizeof *more);
        names->at = more;
    }
    names->at[names->n++] = name;
    return SEMEL_OK;
}

static semel_status list(struct semel_house *house, const struct semel_house_round *round, struct names *names,
                         struct semel_error *err)
{
    struct semel_str after = {0}, *page = NULL;
    size_t n = PAGE;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && n == PAGE) {
        status = semel_store_consumers(house->inbox.store, after, PAGE, &house->arena, &page, &n, err);
        for (size_t i = 0; status == SEMEL_OK && i < n; i++)
            if (round->wants == NULL || round->wants(round->ctx, page[i]))
                status = add_name(house, names, page[i], err);
        if (status == SEMEL_OK && n > 0)
            after = page[n - 1];
    }
    return status;
}

static semel_status visit(struct semel_house *house, struct semel_house_round *round, struct semel_str consumer,
                          size_t which, struct semel_error *err)
{
    size_t touched = 0;
    semel__arena_reset(&house->sheet);
    semel_status status = semel__consumer_load(house->inbox.store, consumer, &house->sheet, &house->policy, NULL, err);
    struct semel_house_place *place = status == SEMEL_OK ? place_of(house, consumer) : NULL;
    if (status == SEMEL_OK && place == NULL)
        return semel__fail_memory(err);
    if (status == SEMEL_OK) {
        house->policy.consumer = consumer;
        house->inbox.places = place->at;
        status = steps[which](&house->inbox, round->max - round->n, &touched, err);
        place->at = house->inbox.places;
    }
    round->done[which] += touched;
    round->n += touched;
    if (status != SEMEL_INVALID)
        return status;
    if (round->damage.status == SEMEL_OK)
        round->damage = *err;
    return SEMEL_OK;
}

semel_status semel__house_round(struct semel_house *house, struct semel_house_round *round, struct semel_error *err)
{
    struct semel_error local = {0};
    struct names names = {0};
    err = err != NULL ? err : &local;
    memset(round->done, 0, sizeof round->done);
    round->n = round->consumers = 0;
    round->damage = (struct semel_error){0};
    if (round->max < 1)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "max is 0; it must be 1 or more");
    semel__arena_reset(&house->arena);
    semel_status status = list(house, round, &names, err);
    size_t first = names.n > 0 ? (size_t)(semel__random_next(house->inbox.rng) % names.n) : 0;
    round->consumers = names.n;
    for (size_t i = 0; i < SEMEL_HOUSE_STEPS; i++)
        for (size_t c = 0; status == SEMEL_OK && c < names.n && round->n < round->max; c++)
            status = visit(house, round, names.at[(first + c) % names.n], i, err);
    return status;
}

/* ---- idempotency keys ---------------------------------------------------------------------------- */

struct keep {
    struct semel_store *store;
    int64_t max, n;
};

static semel_status keep_keys(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct keep *keep = ctx;
    (void)undo;
    keep->n = 0;
    return keep->store->ops->keys->keep(keep->store, now_us, keep->max, &keep->n, err);
}

semel_status semel__house_keys(struct semel_house *house, size_t max, size_t *ret_n, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = keep_keys, .again = true};
    struct keep keep = {.store = house->inbox.store, .max = (int64_t)(max < KEYS_MAX ? max : KEYS_MAX)};
    *ret_n = 0;
    if (keep.store->ops->keys == NULL)
        return SEMEL_OK;
    semel_status status = semel__transaction_run(keep.store, &tx, &keep, err);
    if (status == SEMEL_OK)
        *ret_n = (size_t)keep.n;
    return status;
}
