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

static semel_status find_expired(struct semel_inbox *inbox, size_t max, struct semel_row **ret_rows, size_t *ret_n,
                                 struct semel_error *err)
{
    int64_t now_us;
    size_t damaged;
    semel_status status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    struct semel_scan scan = {.kind = SEMEL_SCAN_EXPIRED,
                              .consumer = inbox->policy->consumer,
                              .now_us = now_us,
                              .max = max};
    status = semel_store_scan(inbox->store, &scan, &inbox->arena, ret_rows, ret_n, &damaged, err);
    semel_store_rollback(inbox->store);
    return status;
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
    if (status == SEMEL_OK)
        status = semel__items_lease(inbox, items, n, LEASE_RECOVER, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        *ret_n += items[i]->changed;
    return status;
}

/* Those that somebody else has are passed over, so more are read than are wanted: a transaction that stays open must
 * not keep the others from theirs. */
semel_status semel__inbox_recover(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    struct semel_row *rows;
    size_t n;
    *ret_n = 0;
    semel__arena_reset(&inbox->arena);
    semel_status status = find_expired(inbox, max < SEMEL_BATCH_MAX / 10 ? 10 * max : SEMEL_BATCH_MAX, &rows, &n, err);
    for (size_t at = 0, part; status == SEMEL_OK && at < n && *ret_n < max; at += part) {
        part = max - *ret_n < n - at ? max - *ret_n : n - at;
        status = recover(inbox, rows + at, part, ret_n, err);
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
#define MINUTE_US INT64_C(60000000)

static semel_status end(struct semel_inbox *inbox, semel_status status, struct semel_error *err)
{
    if (status == SEMEL_OK)
        return semel_store_commit(inbox->store, err);
    semel_store_rollback(inbox->store);
    return status;
}

/* The watermark is committed before anything is deleted (P60), and rises to the youngest that will go. *ret_n: how many
 * will; 0 where there is none, or where somebody has the watermark at this moment. */
static semel_status purge_mark(struct semel_inbox *inbox, struct semel_str source, int64_t before_us, size_t max,
                               size_t *ret_n, struct semel_error *err)
{
    struct semel_str consumer = inbox->policy->consumer;
    int64_t now_us, latest_us = SEMEL_NONE;
    semel_status status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_aged(inbox->store, consumer, source, before_us, max, ret_n, &latest_us, err);
    if (status != SEMEL_OK || latest_us == SEMEL_NONE) {
        semel_store_rollback(inbox->store);
        return status;
    }
    status = end(inbox, semel_store_watermark(inbox->store, consumer, source, semel__time_add(latest_us, 1), err), err);
    if (status == SEMEL_RETRY && err->cls == SEMEL_CLASS_TRANSIENT) {
        *ret_n = 0;
        semel__error_clear(err);
        return SEMEL_OK;
    }
    if (status == SEMEL_OK)
        SEMEL_POINT(PURGE_WATERMARKED);
    return status;
}

static semel_status purge_chunk(struct semel_inbox *inbox, struct semel_str source, int64_t before_us, size_t max,
                                size_t *ret_deleted, struct semel_error *err)
{
    int64_t now_us;
    size_t n = 0;
    *ret_deleted = 0;
    semel_status status = purge_mark(inbox, source, before_us, max, &n, err);
    if (status != SEMEL_OK || n == 0)
        return status;
    status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    /* Not n: it has to look as far as the one that has counted them. */
    status = end(inbox,
                 semel_store_purge(inbox->store, inbox->policy->consumer, source, before_us, max, ret_deleted, err),
                 err);
    if (status == SEMEL_OK)
        SEMEL_POINT(PURGE_DELETED);
    return status;
}

/* Adds to *n what was deleted. */
static semel_status purge_source(struct semel_inbox *inbox, struct semel_str source, int64_t before_us, size_t max,
                                 size_t *n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t deleted = PURGE_CHUNK; status == SEMEL_OK && deleted == PURGE_CHUNK && *n < max;) {
        status = purge_chunk(inbox, source, before_us, max - *n < PURGE_CHUNK ? max - *n : PURGE_CHUNK, &deleted, err);
        if (status == SEMEL_OK)
            *n += deleted;
    }
    return status;
}

static semel_status purge_rest(struct semel_inbox *inbox, int64_t before_us, size_t max, struct semel_error *err)
{
    struct semel_str consumer = inbox->policy->consumer;
    int64_t now_us;
    size_t deleted;
    max = max < PURGE_CHUNK ? max : PURGE_CHUNK;
    semel_status status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_purge_business(inbox->store, consumer, now_us, max, &deleted, err);
    if (status == SEMEL_OK)
        status = semel_store_purge_side(inbox->store, consumer, before_us, max, inbox->places.keys, err);
    return end(inbox, status, err);
}

/* The moment before which a finished message is forgotten, down to the minute. */
static semel_status cut(struct semel_inbox *inbox, int64_t *ret_us, struct semel_error *err)
{
    int64_t now_us;
    semel_status status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    semel_store_rollback(inbox->store);
    *ret_us = semel__time_add(now_us, -inbox->policy->retention_us);
    *ret_us -= (*ret_us % MINUTE_US + MINUTE_US) % MINUTE_US;
    return SEMEL_OK;
}

semel_status semel__inbox_purge(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    struct semel_str *sources;
    struct semel_error local = {0};
    size_t n_sources;
    int64_t before_us = SEMEL_NONE;
    err = err != NULL ? err : &local;
    *ret_n = 0;
    semel__arena_reset(&inbox->arena);
    semel_status status = semel_store_sources(inbox->store, inbox->policy->consumer, &inbox->arena, &sources,
                                              &n_sources, err);
    if (status == SEMEL_OK)
        status = cut(inbox, &before_us, err);
    size_t first = status == SEMEL_OK && n_sources > 1 ? (size_t)(semel__random_next(inbox->rng) % n_sources) : 0;
    for (size_t i = 0; status == SEMEL_OK && i < n_sources && *ret_n < max; i++)
        status = purge_source(inbox, sources[(first + i) % n_sources], before_us, max, ret_n, err);
    inbox->counts.purged += *ret_n;
    return status == SEMEL_OK ? purge_rest(inbox, before_us, max, err) : status;
}
