/* SPDX-License-Identifier: MIT
 *
 * sched.c: what happens by itself: leases that ran out, stored work that is due, old rows.
 *
 * Every function is one bounded step. Any number of processes may take them at once.
 */
#include "base/error.h"
#include "base/point.h"
#include "base/str.h"
#include "core/work.h"

/* ---- recovery ------------------------------------------------------------------------------------ */

/* Rows whose lease has run out. */
struct expired {
    struct semel_inbox *inbox;
    struct semel_row *rows;
    size_t n, max;
};

static semel_status find_expired(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct expired *expired = ctx;
    struct semel_inbox *inbox = expired->inbox;
    size_t damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_EXPIRED,
                              .consumer = inbox->policy->consumer,
                              .now_us = now_us,
                              .max = expired->max};
    *undo = true;
    return semel_store_scan(inbox->store, &scan, &inbox->arena, &expired->rows, &expired->n, &damaged, err);
}

static semel_status recover(struct semel_inbox *inbox, struct semel_row *rows, size_t n, size_t *ret_n,
                            struct semel_error *err)
{
    struct item **items;
    struct semel_lease *leases = semel__arena_alloc(&inbox->arena, n, sizeof *leases);
    if (leases == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        semel__row_msg(&rows[i], &leases[i].msg);
        leases[i].live = rows[i].live;
        leases[i].arrival = rows[i].arrival;
    }
    semel_status status = semel__items_of_leases(inbox, leases, NULL, n, &items, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__items_lease(inbox, items, n, LEASE_RECOVER, err);
    for (size_t i = 0; i < n; i++)
        *ret_n += items[i]->settled && items[i]->changed;
    if (status != SEMEL_RETRY || err == NULL || err->cls != SEMEL_CLASS_TRANSIENT)
        return status;
    semel__error_clear(err); /* somebody has a business key that one of them gives back */
    return SEMEL_OK;
}

/* Those that somebody else has are passed over, so more are read than are wanted: a transaction that stays open must
 * not keep the others from theirs. */
semel_status semel__inbox_recover(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    static const struct semel__transaction look = {.body = find_expired};
    struct expired expired = {.inbox = inbox, .max = max < SEMEL_BATCH_MAX / 10 ? 10 * max : SEMEL_BATCH_MAX};
    *ret_n = 0;
    semel__arena_reset(&inbox->arena);
    semel_status status = semel__transaction_run(inbox->store, &look, &expired, err);
    for (size_t at = 0, part; status == SEMEL_OK && at < expired.n && *ret_n < max; at += part) {
        part = max - *ret_n < expired.n - at ? max - *ret_n : expired.n - at;
        status = recover(inbox, expired.rows + at, part, ret_n, err);
    }
    inbox->counts.recovered += *ret_n;
    return status;
}

/* ---- work ---------------------------------------------------------------------------------------- */

static semel_status run_leases(struct semel_inbox *inbox, struct semel_lease *leases, size_t n, struct semel_error *err)
{
    struct item **items;
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    semel_status status = semel__items_of_leases(inbox, leases, NULL, n, &items, err);
    if (status != SEMEL_OK)
        return status;
    if (inbox->policy->effect != SEMEL_EFFECT_ATOMIC)
        return semel__items_outside(inbox, items, n, err);
    SEMEL_POINT(LEASE_RUN);
    status = semel__items_run(inbox, items, n, err);
    if (status != SEMEL_OK)
        semel__items_give_back(inbox, items, n, status);
    return status;
}

semel_status semel__lease_run(struct semel_inbox *inbox, struct semel_lease *leases, size_t n, struct semel_error *err)
{
    semel__arena_reset(&inbox->arena);
    return n > 0 ? run_leases(inbox, leases, n, err) : SEMEL_OK;
}

semel_status semel__inbox_work(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    *ret_n = 0;
    if (max > SEMEL_BATCH_MAX)
        max = SEMEL_BATCH_MAX;
    while (*ret_n < max) {
        size_t n = 0;
        semel__arena_reset(&inbox->arena);
        struct semel_lease *leases = semel__arena_alloc(&inbox->arena, max - *ret_n, sizeof *leases);
        if (leases == NULL)
            return semel__fail_memory(err);
        semel_status status = semel__lease_take(inbox, max - *ret_n, &inbox->arena, leases, &n, err);
        if (status == SEMEL_OK && n > 0)
            status = run_leases(inbox, leases, n, err);
        if (status != SEMEL_OK || n == 0)
            return status;
        *ret_n += n;
    }
    return SEMEL_OK;
}

/* ---- purge --------------------------------------------------------------------------------------- */

/* Rows that one transaction deletes: a copy of such an old message waits for it, and nobody else. */
#define PURGE_CHUNK 1000
#define LOOKS ((size_t)10)
#define MINUTE_US INT64_C(60000000)

/* What is purged: of one source, or beside the rows. */
struct purge {
    struct semel_inbox *inbox;
    struct semel_str source;
    int64_t before_us; /* what ended earlier goes */
    size_t max, n;
    size_t looks, in_vain; /* how many rows may be looked at; how many were, of which not enough could go */
};

/* The watermark is committed before anything is deleted (P60), and rises to the youngest that will go. purge->n: how
 * many will. */
static semel_status raise_watermark(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    struct semel_store *store = purge->inbox->store;
    struct semel_str consumer = purge->inbox->policy->consumer;
    struct semel_aged aged = {.latest_us = SEMEL_NONE};
    (void)now_us;
    semel_status status = semel_store_aged(store, consumer, purge->source, purge->before_us, purge->max, purge->looks,
                                           &aged, err);
    purge->n = aged.n;
    purge->in_vain = aged.n < purge->max ? aged.looked : 0;
    *undo = aged.latest_us == SEMEL_NONE;
    return status != SEMEL_OK || *undo
               ? status
               : semel_store_watermark(store, consumer, purge->source, semel__time_add(aged.latest_us, 1), err);
}

/* It looks as far as the one that has counted them. */
static semel_status delete_rows(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    (void)now_us;
    (void)undo;
    return semel_store_purge(purge->inbox->store, purge->inbox->policy->consumer, purge->source, purge->before_us,
                             purge->max, purge->looks, &purge->n, err);
}

static semel_status delete_rest(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    struct semel_inbox *inbox = purge->inbox;
    struct semel_str consumer = inbox->policy->consumer;
    (void)undo;
    semel_status status = semel_store_purge_business(inbox->store, consumer, now_us, purge->max, &purge->n, err);
    if (status == SEMEL_OK)
        status = semel_store_purge_side(inbox->store, consumer, purge->before_us, purge->max, inbox->places.keys, err);
    return status;
}

/* purge->n: how many were deleted; 0 where there is none, or where somebody has the watermark at this moment. */
static semel_status purge_chunk(struct purge *purge, struct semel_error *err)
{
    static const struct semel__transaction mark = {.body = raise_watermark}, delete = {.body = delete_rows};
    struct semel_store *store = purge->inbox->store;
    purge->n = 0;
    semel_status status = semel__transaction_run(store, &mark, purge, err);
    if (status == SEMEL_RETRY && err->cls == SEMEL_CLASS_TRANSIENT) {
        purge->n = 0;
        semel__error_clear(err);
        return SEMEL_OK;
    }
    if (status != SEMEL_OK || purge->n == 0)
        return status;
    SEMEL_POINT(PURGE_WATERMARKED);
    purge->n = 0;
    status = semel__transaction_run(store, &delete, purge, err);
    if (status == SEMEL_OK)
        SEMEL_POINT(PURGE_DELETED);
    return status;
}

/* Adds to *n what was deleted, and to *in_vain what was looked at and could not go. At most LOOKS times `max` rows are
 * looked at, for all sources of the consumer together: each that goes counts for so many. */
static semel_status purge_source(struct semel_inbox *inbox, struct semel_str source, int64_t before_us, size_t max,
                                 size_t *n, size_t *in_vain, struct semel_error *err)
{
    struct purge purge = {.inbox = inbox, .source = source, .before_us = before_us, .n = PURGE_CHUNK};
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && purge.n == PURGE_CHUNK && *n < max && *in_vain < LOOKS * (max - *n)) {
        const size_t left = LOOKS * (max - *n) - *in_vain;
        purge.max = max - *n < PURGE_CHUNK ? max - *n : PURGE_CHUNK;
        purge.looks = left < LOOKS * purge.max ? left : LOOKS * purge.max;
        status = purge_chunk(&purge, err);
        if (status != SEMEL_OK)
            break;
        *n += purge.n;
        *in_vain += purge.in_vain;
    }
    return status;
}

/* The moment before which a finished message is forgotten, down to the minute. */
static semel_status cut(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    (void)err;
    *undo = true;
    purge->before_us = semel__time_add(now_us, -purge->inbox->policy->retention_us);
    purge->before_us -= (purge->before_us % MINUTE_US + MINUTE_US) % MINUTE_US;
    return SEMEL_OK;
}

semel_status semel__inbox_purge(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    static const struct semel__transaction look = {.body = cut}, rest_of = {.body = delete_rest};
    struct purge rest = {.inbox = inbox, .max = max < PURGE_CHUNK ? max : PURGE_CHUNK};
    struct semel_str *sources;
    struct semel_error local = {0};
    size_t n_sources, in_vain = 0;
    err = err != NULL ? err : &local;
    *ret_n = 0;
    semel__arena_reset(&inbox->arena);
    semel_status status = semel_store_sources(inbox->store, inbox->policy->consumer, &inbox->arena, &sources,
                                              &n_sources, err);
    if (status == SEMEL_OK)
        status = semel__transaction_run(inbox->store, &look, &rest, err);
    size_t first = status == SEMEL_OK && n_sources > 1 ? (size_t)(semel__random_next(inbox->rng) % n_sources) : 0;
    for (size_t i = 0; status == SEMEL_OK && i < n_sources && *ret_n < max; i++)
        status = purge_source(inbox, sources[(first + i) % n_sources], rest.before_us, max, ret_n, &in_vain, err);
    inbox->counts.purged += *ret_n;
    return status == SEMEL_OK ? semel__transaction_run(inbox->store, &rest_of, &rest, err) : status;
}
