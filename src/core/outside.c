/* SPDX-License-Identifier: MIT
 *
 * outside.c: effects outside the database. No transaction is open while a handler runs.
 *
 * Invariants: a handler starts only under a lease that has at least half its time left; it is renewed before, and what
 * was lost is not started. An ending that says the world failed (ENVIRONMENT, BROKEN) gives the attempt back, for
 * that handler certainly did nothing; UNKNOWN never does.
 */
#include <string.h>

#include "base/error.h"
#include "base/point.h"
#include "core/work.h"

#define KEEP_MAX 3 /* renewals in a row that come too late */

static semel_status note_now(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    (void)err;
    *undo = true;
    *(int64_t *)ctx = now_us;
    return SEMEL_OK;
}

/* Renews the rest of the group when half the lease of the next one is gone. The renewal itself may take long, above all
 * when it goes one by one: so it is looked at again. */
static semel_status keep_leases(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    for (int tries = 0; tries < KEEP_MAX; tries++) {
        static const struct semel__transaction tx = {.body = note_now};
        int64_t now_us = 0;
        semel_status status = semel__transaction_run(inbox->store, &tx, &now_us, err);
        if (status != SEMEL_OK)
            return status;
        if (items[0]->lease->lost || items[0]->lease->live.lease_until_us - now_us > inbox->policy->lease_us / 2)
            return SEMEL_OK;
        status = semel__items_lease(inbox, items, n, LEASE_RENEW, err);
        if (status != SEMEL_OK)
            return status;
    }
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "renewing a lease takes longer than half of it");
}

/* false: the world failed and the message was not touched. */
static bool run_outside(struct semel_inbox *inbox, struct item *item, semel_status *ret_status, struct semel_error *err)
{
    struct semel__reply reply = {.arena = &inbox->arena, .result = SEMEL_DONE};
    const struct semel__handler *handler = inbox->handler;
    SEMEL_POINT(LEASE_RUN);
    semel_status status = handler->each(handler->ctx, inbox->store, item->msg, item->lease->live.attempts, &reply, err);
    item->ending = (struct semel_ending){.result = reply.result, .text = reply.reason, .outcome = reply.outcome};
    *ret_status = SEMEL_OK;
    if (status == SEMEL_OK)
        return true;
    *ret_status = status;
    bool unsure = status == SEMEL_UNKNOWN || err->cls == SEMEL_CLASS_UNKNOWN;
    if (semel__worldly(status, err) && !unsure)
        return false;
    item->ending.result = unsure ? SEMEL_MAYBE : err->cls == SEMEL_CLASS_PERMANENT ? SEMEL_PERMANENT : SEMEL_TRANSIENT;
    (void)semel__arena_copy(&inbox->arena, (struct semel_str){err->text, strlen(err->text)}, &item->ending.text);
    *ret_status = SEMEL_OK;
    return true;
}

semel_status semel__items_outside(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    semel_status status = SEMEL_OK, world = SEMEL_OK;
    struct semel_error ignored, kept = {0};
    size_t done = 0, i = 0;
    for (; i < n && world == SEMEL_OK; i++) {
        status = semel__items_may_run(inbox, &kept);
        if (status == SEMEL_OK)
            status = keep_leases(inbox, items + i, n - i, &kept);
        if (status != SEMEL_OK)
            break;
        if (items[i]->lease->lost)
            continue;
        if (!run_outside(inbox, items[i], &world, err))
            break;
        bool failed = items[i]->ending.result != SEMEL_DONE && items[i]->ending.result != SEMEL_REJECTED;
        inbox->failures = failed ? inbox->failures + 1 : 0;
        struct item *swap = items[done];
        items[done++] = items[i];
        items[i] = swap;
    }
    /* First what has ended, then what was not touched. */
    semel_status finish = semel__items_lease(inbox, items, done, LEASE_FINISH, world == SEMEL_OK ? err : &ignored);
    if (i < n)
        (void)semel__items_lease(inbox, items + i, n - i, LEASE_RELEASE, &ignored);
    if (world != SEMEL_OK)
        return world;
    if (status != SEMEL_OK) {
        *err = kept;
        return status;
    }
    return finish;
}
