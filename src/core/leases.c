/* SPDX-License-Identifier: MIT
 *
 * leases.c: claims and their ends, each group in one short transaction; and effects outside the database, whose
 * handlers run with no transaction open.
 *
 * Invariants: a claim is used only after its commit was answered OK, or after the row was read again and has exactly
 * the lease that was written. An end changes a row only under the token of its claim; a stale end leaves a note.
 * After an unknown commit the row is read again before the end counts or is repeated. A handler starts only under a
 * lease that has at least half its time left; the lease is renewed before, and a lost one does not start. An ending
 * with ENVIRONMENT or BROKEN gives the attempt back, because that handler certainly did nothing; UNKNOWN never does.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/point.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/work.h"

#define KEEP_MAX 3 /* renewals in a row that come too late */

/* ---- claims -------------------------------------------------------------------------------------- */

static semel_status claim(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct work *work = ctx;
    (void)undo;
    semel__arena_reset(&work->inbox->scratch);
    work->inbox->counts.transactions++;
    work->now_us = now_us;
    semel_status status = semel__work_admit(work, err);
    if (status == SEMEL_OK)
        status = semel__work_settle(work, err);
    if (status == SEMEL_OK)
        SEMEL_POINT(CLAIM_ADMITTED);
    return status;
}

/* The row, if it exists, has the lease that was written. */
static void adopt_later(void *ctx)
{
    const struct work *work = ctx;
    for (size_t i = 0; i < work->n; i++)
        if (work->items[i]->verdict.act == SEMEL_RUN)
            work->items[i]->adopt_until_us = work->items[i]->progress.lease_until_us;
}

static void lease_of(const struct semel_inbox *inbox, struct item *item, struct semel_lease *lease)
{
    lease->msg = *item->msg;
    lease->progress = item->progress;
    lease->progress.lease_owner = inbox->owner;
    lease->progress.error_text = lease->progress.outcome = (struct semel_str){0};
    lease->arrival = item->row != NULL ? item->row->arrival : item->admit->row.arrival;
    lease->index = item->place;
    item->lease = lease;
}

/* Claims messages that get in each other's way (P61, a shared business key) in smaller pieces, in order. */
static semel_status claim_halves(struct semel_inbox *inbox, struct item **items, size_t n, bool alone,
                                 struct semel_error *err)
{
    inbox->counts.cuts++;
    inbox->counts.contention++;
    semel_status status = semel__items_claim(inbox, items, n / 2, alone, err);
    size_t done = n / 2 + semel__items_held(inbox, items, n / 2, n);
    return status == SEMEL_OK && done < n ? semel__items_claim(inbox, items + done, n - done, alone, err) : status;
}

semel_status semel__items_claim(struct semel_inbox *inbox, struct item **items, size_t n, bool alone,
                                struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = claim, .unknown = adopt_later, .again = true};
    struct work work = {.inbox = inbox, .mode = alone ? WORK_CLAIM_ALONE : WORK_CLAIM, .items = items, .n = n};
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    /* Before anything is written: a claim that could not be returned would have to expire. */
    struct semel_lease *leases = semel__arena_alloc(&inbox->arena, n, sizeof *leases);
    if (leases == NULL)
        return semel__fail_memory(err);
    semel_status status = semel__transaction_run(inbox->store, &tx, &work, err);
    if (status == SEMEL_OK)
        SEMEL_POINT(CLAIM_COMMITTED);
    if (status == SEMEL_RETRY && err->cls == SEMEL_CLASS_TRANSIENT && n > 1)
        return claim_halves(inbox, items, n, alone, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        if (items[i]->verdict.act == SEMEL_RUN)
            lease_of(inbox, items[i], &leases[i]);
    return status == SEMEL_OK ? semel__work_report(&work, err) : status;
}

/* ---- ends ---------------------------------------------------------------------------------------- */

static void apply(struct work *work, struct item *item, enum lease_op op)
{
    const struct semel_policy *policy = work->inbox->policy;
    struct semel_progress before = item->progress;
    switch (op) {
    case LEASE_FINISH:
        semel__item_end(work, item);
        break;
    case LEASE_RELEASE:
        semel__progress_release(&before, work->now_us, &item->progress);
        break;
    case LEASE_APART:
        semel__progress_release(&before, work->now_us, &item->progress);
        item->progress.alone = true;
        break;
    case LEASE_RENEW:
        item->progress.lease_until_us = semel__time_add(work->now_us, policy->lease_us);
        break;
    case LEASE_RECOVER:
        semel__progress_recover(policy, &before, work->now_us, work->inbox->rng, &item->progress);
        item->ended = item->progress.attempts == before.attempts;
        break;
    }
    item->changed = true;
}

/* An item that must not be touched: stale, or (recovery) renewed meanwhile. */
static bool spared(const struct work *work, const struct item *item, enum lease_op op)
{
    if (item->fenced)
        return true;
    return op == LEASE_RECOVER && item->progress.lease_until_us >= work->now_us;
}

static bool reached(const struct item *item)
{
    return item->intended != SEMEL_ROW_ABSENT && item->row != NULL && item->row->progress.state == item->intended;
}

/* Refuses a late end and keeps its result for the reconcile. */
static void keep_evidence(struct item *item)
{
    static const struct semel_str texts[] = {
        [SEMEL_DONE] = {"refused under a stale token: the late worker reported done", 58},
        [SEMEL_TRANSIENT] = {"refused under a stale token: the late worker reported transient", 63},
        [SEMEL_PERMANENT] = {"refused under a stale token: the late worker reported permanent", 63},
        [SEMEL_REJECTED] = {"refused under a stale token: the late worker reported rejected", 62},
        [SEMEL_MAYBE] = {"refused under a stale token: the late worker reported maybe", 59},
    };
    item->ending.text = texts[item->ending.result];
}

/* Does this end free the business keys, or let them expire? (A recovery may too: it does not wait for them.) */
static bool changes_business(const struct semel_policy *policy, enum lease_op op, enum semel_result result)
{
    if (op != LEASE_FINISH)
        return op == LEASE_RELEASE || op == LEASE_APART;
    return result == SEMEL_REJECTED || (result == SEMEL_DONE && policy->business_retention_us != SEMEL_NONE);
}

/* Ends of leases, all of one kind. */
struct ends {
    struct work work;
    enum lease_op op;
};

static semel_status end_leases(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct ends *ends = ctx;
    struct work *work = &ends->work;
    (void)undo;
    semel__arena_reset(&work->inbox->scratch);
    work->inbox->counts.transactions++;
    work->now_us = now_us;
    if (ends->op == LEASE_FINISH)
        SEMEL_POINT(FINISH_BEGUN);
    for (size_t i = 0; i < work->n; i++)
        work->items[i]->frees = changes_business(work->inbox->policy, ends->op, work->items[i]->ending.result);
    semel_status status = semel__work_fetch(work, err);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++) {
        struct item *item = work->items[i];
        if (item->fenced && reached(item)) {
            item->fenced = false; /* our own end, whose commit was unknown */
            item->verdict.act = SEMEL_RUN;
        } else if (!spared(work, item, ends->op)) {
            apply(work, item, ends->op);
        } else {
            item->verdict.act = SEMEL_LATER;
            if (ends->op == LEASE_FINISH)
                keep_evidence(item);
        }
    }
    if (status == SEMEL_OK)
        status = semel__work_settle(work, err);
    if (status == SEMEL_OK && ends->op == LEASE_FINISH)
        SEMEL_POINT(FINISH_SETTLED);
    else if (status == SEMEL_OK && ends->op == LEASE_RECOVER)
        SEMEL_POINT(RECOVER_SETTLED);
    return status;
}

/* One that was found at its end stays intended. */
static void intend(void *ctx)
{
    const struct ends *ends = ctx;
    for (size_t i = 0; i < ends->work.n; i++)
        if (ends->work.items[i]->changed && ends->op != LEASE_RENEW)
            ends->work.items[i]->intended = ends->work.items[i]->progress.state;
}

static void report(const struct semel_policy *policy, const struct item *item, enum lease_op op)
{
    struct semel_progress *progress = &item->lease->progress;
    item->lease->lost = item->fenced;
    item->lease->refused = item->fenced && op == LEASE_FINISH && item->ending.result == SEMEL_DONE &&
                           semel__effect_of(policy, progress->lease_token) == SEMEL_EFFECT_ATOMIC;
    if (item->fenced)
        return;
    if (op == LEASE_RENEW) {
        progress->lease_until_us = item->progress.lease_until_us;
    } else if (op == LEASE_FINISH) {
        progress->state = item->progress.state;
        progress->due_us = item->progress.due_us;
        progress->error_class = item->progress.error_class;
    }
}

/* One row that another transaction has locked must not cost the others their leases or their results. */
static semel_status one_by_one(struct semel_inbox *inbox, struct item **items, size_t n, enum lease_op op,
                               struct semel_error *err)
{
    semel_status first = SEMEL_OK;
    for (size_t i = 0; i < n && first != SEMEL_CLOSED; i++) {
        struct semel_error own = {0};
        semel_status status = semel__items_lease(inbox, &items[i], 1, op, &own);
        if (status != SEMEL_OK && first == SEMEL_OK)
            *err = own;
        first = first == SEMEL_OK || status == SEMEL_CLOSED ? status : first;
    }
    return first;
}

semel_status semel__items_lease(struct semel_inbox *inbox, struct item **items, size_t n, enum lease_op op,
                                struct semel_error *err)
{
    /* Persistent: neither a deadlock nor a connection that was lost while the handlers ran may cost their results. */
    static const struct semel__transaction tx = {.body = end_leases,
                                                 .unknown = intend,
                                                 .again = true,
                                                 .persistent = true};
    const enum work_mode mode = op == LEASE_RECOVER ? WORK_RECOVER : WORK_END;
    struct ends ends = {{.inbox = inbox, .mode = mode, .items = items, .n = n}, op};
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    if (n == 0)
        return SEMEL_OK;
    semel_status status = semel__transaction_run(inbox->store, &tx, &ends, err);
    if (status == SEMEL_OK && op == LEASE_FINISH)
        SEMEL_POINT(FINISH_COMMITTED);
    else if (status == SEMEL_OK && op == LEASE_RECOVER)
        SEMEL_POINT(RECOVER_COMMITTED);
    if (status == SEMEL_RETRY && err->cls == SEMEL_CLASS_TRANSIENT && n > 1)
        return one_by_one(inbox, items, n, op, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        report(inbox->policy, items[i], op);
    return status == SEMEL_OK ? semel__work_report(&ends.work, err) : status;
}

void semel__items_give_back(struct semel_inbox *inbox, struct item **items, size_t n, semel_status status)
{
    struct semel_error ignored;
    const size_t k = semel__items_open(items, n);
    const bool alone = k == 1 && items[0]->lease->progress.alone;
    if (k > 0 && !(alone && status == SEMEL_CLOSED))
        (void)semel__items_lease(inbox, items, k, alone ? LEASE_RELEASE : LEASE_APART, &ignored);
}

/* ---- effects outside ------------------------------------------------------------------------------- */

static semel_status note_now(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    (void)err;
    *undo = true;
    *(int64_t *)ctx = now_us;
    return SEMEL_OK;
}

/* Renews the rest of the group when half the lease of the next one is gone. A renewal may take long, above all one by
 * one: so it checks again. */
static semel_status keep_leases(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    for (int tries = 0; tries < KEEP_MAX; tries++) {
        static const struct semel__transaction tx = {.body = note_now};
        int64_t now_us = 0;
        semel_status status = semel__transaction_run(inbox->store, &tx, &now_us, err);
        if (status != SEMEL_OK)
            return status;
        if (items[0]->lease->lost || items[0]->lease->progress.lease_until_us - now_us > inbox->policy->lease_us / 2)
            return SEMEL_OK;
        status = semel__items_lease(inbox, items, n, LEASE_RENEW, err);
        if (status != SEMEL_OK)
            return status;
    }
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "renewing a lease takes longer than half of it");
}

/* false: the environment failed and the message was not touched. */
static bool run_outside(struct semel_inbox *inbox, struct item *item, semel_status *ret_status, struct semel_error *err)
{
    struct semel__reply reply = {.arena = &inbox->arena, .result = SEMEL_DONE};
    const struct semel__handler *handler = inbox->handler;
    SEMEL_POINT(LEASE_RUN);
    semel_status status = handler->each(handler->ctx, inbox->store, item->msg, item->lease->progress.attempts, &reply,
                                        err);
    item->ending = (struct semel_ending){.result = reply.result, .text = reply.reason, .outcome = reply.outcome};
    *ret_status = SEMEL_OK;
    if (status == SEMEL_OK)
        return true;
    *ret_status = status;
    bool unsure = status == SEMEL_UNKNOWN || err->cls == SEMEL_CLASS_UNKNOWN;
    if (semel__is_environment(status, err) && !unsure)
        return false;
    item->ending.result = unsure ? SEMEL_MAYBE : err->cls == SEMEL_CLASS_PERMANENT ? SEMEL_PERMANENT : SEMEL_TRANSIENT;
    (void)semel__arena_copy(&inbox->arena, (struct semel_str){err->text, strlen(err->text)}, &item->ending.text);
    *ret_status = SEMEL_OK;
    return true;
}

semel_status semel__items_outside(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    semel_status status = SEMEL_OK, environment = SEMEL_OK;
    struct semel_error ignored, kept = {0};
    size_t done = 0, i = 0;
    for (; i < n && environment == SEMEL_OK; i++) {
        status = semel__items_may_run(inbox, &kept);
        if (status == SEMEL_OK)
            status = keep_leases(inbox, items + i, n - i, &kept);
        if (status != SEMEL_OK)
            break;
        if (items[i]->lease->lost)
            continue;
        if (!run_outside(inbox, items[i], &environment, err))
            break;
        bool failed = items[i]->ending.result != SEMEL_DONE && items[i]->ending.result != SEMEL_REJECTED;
        inbox->failures = failed ? inbox->failures + 1 : 0;
        struct item *swap = items[done];
        items[done++] = items[i];
        items[i] = swap;
    }
    /* First those that have ended, then those that were not touched. */
    semel_status finish = semel__items_lease(inbox, items, done, LEASE_FINISH,
                                             environment == SEMEL_OK ? err : &ignored);
    if (i < n)
        (void)semel__items_lease(inbox, items + i, n - i, LEASE_RELEASE, &ignored);
    if (environment != SEMEL_OK)
        return environment;
    if (status != SEMEL_OK) {
        *err = kept;
        return status;
    }
    return finish;
}

/* ---- for callers that hold leases ---------------------------------------------------------------- */

static int cmp_arrival(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    int c = semel__str_cmp(a->msg->order_key, b->msg->order_key);
    return c != 0 ? c : (a->lease->arrival > b->lease->arrival) - (a->lease->arrival < b->lease->arrival);
}

static int cmp_version(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    int c = semel__str_cmp(a->msg->order_key, b->msg->order_key);
    if (c == 0 && semel__str_given(a->msg->order_key))
        c = (a->msg->version > b->msg->version) - (a->msg->version < b->msg->version);
    return c != 0 ? c : cmp_arrival(va, vb);
}

semel_status semel__items_of_leases(struct semel_inbox *inbox, struct semel_lease *leases,
                                    const struct semel_ending *endings, size_t n, struct item ***ret_items,
                                    struct semel_error *err)
{
    struct item *all = semel__arena_alloc(&inbox->arena, n, sizeof *all);
    struct item **items = semel__arena_alloc(&inbox->arena, n, sizeof *items);
    if (all == NULL || items == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        all[i] = (struct item){.msg = &leases[i].msg, .place = i, .lease = &leases[i], .adopt_until_us = SEMEL_NONE};
        if (endings != NULL)
            all[i].ending = endings[i];
        items[i] = &all[i];
    }
    semel__sort(items, n, sizeof *items, inbox->policy->order == SEMEL_ORDER_VERSION ? cmp_version : cmp_arrival);
    *ret_items = items;
    return SEMEL_OK;
}

static int cmp_id(const void *va, const void *vb)
{
    const struct semel_lease *a = *(struct semel_lease *const *)va, *b = *(struct semel_lease *const *)vb;
    int c = semel__str_cmp(a->msg.source, b->msg.source);
    return c != 0 ? c : semel__str_cmp(a->msg.id, b->msg.id);
}

/* One message may have two leases: one that was lost while its call ran, and one that was taken since. */
static semel_status any_twice(struct semel_inbox *inbox, struct semel_lease *leases, size_t n, bool *ret,
                              struct semel_error *err)
{
    struct semel_lease **sorted = semel__arena_alloc(&inbox->arena, n, sizeof *sorted);
    *ret = false;
    if (sorted == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &leases[i];
    semel__sort(sorted, n, sizeof *sorted, cmp_id);
    for (size_t i = 1; i < n; i++)
        *ret |= cmp_id(&sorted[i - 1], &sorted[i]) == 0;
    return SEMEL_OK;
}

static semel_status on_leases(struct semel_inbox *inbox, struct semel_lease *leases, const struct semel_ending *endings,
                              size_t n, enum lease_op op, struct semel_error *err)
{
    struct item **items = NULL;
    struct semel_error local = {0};
    bool twice = false;
    err = err != NULL ? err : &local;
    semel__arena_reset(&inbox->arena);
    if (n == 0)
        return SEMEL_OK;
    semel_status status = semel__items_of_leases(inbox, leases, endings, n, &items, err);
    if (status == SEMEL_OK)
        status = any_twice(inbox, leases, n, &twice, err);
    if (status != SEMEL_OK || items == NULL)
        return status;
    return twice ? one_by_one(inbox, items, n, op, err) : semel__items_lease(inbox, items, n, op, err);
}

semel_status semel__lease_renew(struct semel_inbox *inbox, struct semel_lease *leases, size_t n,
                                struct semel_error *err)
{
    return on_leases(inbox, leases, NULL, n, LEASE_RENEW, err);
}

semel_status semel__lease_release(struct semel_inbox *inbox, struct semel_lease *leases, size_t n,
                                  struct semel_error *err)
{
    return on_leases(inbox, leases, NULL, n, LEASE_RELEASE, err);
}

semel_status semel__lease_finish(struct semel_inbox *inbox, struct semel_lease *leases,
                                 const struct semel_ending *endings, size_t n, struct semel_error *err)
{
    return on_leases(inbox, leases, endings, n, LEASE_FINISH, err);
}
