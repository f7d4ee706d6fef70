/* SPDX-License-Identifier: MIT
 *
 * batch.c: transactions over a run of items, cut until every one has its end.
 *
 * A failed transaction is rolled back and cut: around the culprit where a handler failed, in half where nobody
 * knows. The pieces run in order, so the order of a key survives: if the first piece parks or fails a message, the
 * later ones see it. An unknown commit is answered by a new connection and the same piece again: admission then reads
 * what was committed (P15).
 */
#include "base/error.h"
#include "base/point.h"
#include "base/str.h"
#include <string.h>

#include "core/mark.h"
#include "core/work.h"

#define UNKNOWN_MAX 3

/* The positions of the batch move with it when this transaction is all of it, and all of it will be acknowledged. */
static semel_status mark(struct work *work, struct semel_error *err)
{
    struct semel_marks *marks = work->inbox->marks;
    work->marked = false;
    if (marks == NULL)
        return SEMEL_OK;
    bool all = work->n == marks->whole;
    for (size_t i = 0; all && i < work->n; i++)
        all = semel__item_act(work, work->items[i]) == SEMEL_ACK;
    semel_status status = semel__marks_move(marks, work->inbox, all, work->now_us, err);
    work->marked = status == SEMEL_OK && all;
    return status;
}

static semel_status in_transaction(struct work *work, bool single, struct semel_error *err)
{
    bool leased = work->items[0]->lease != NULL;
    semel_status status = leased ? semel__work_fetch(work, err) : semel__work_admit(work, err);
    if (status != SEMEL_OK)
        return status;
    SEMEL_POINT(BATCH_ADMITTED);
    status = semel__work_run(work, single, err);
    if (status != SEMEL_OK)
        return status;
    SEMEL_POINT(BATCH_HANDLED);
    status = semel__work_settle(work, err);
    if (status == SEMEL_OK)
        status = mark(work, err);
    if (status == SEMEL_OK && single && work->items[0]->ended)
        SEMEL_POINT(SINGLE_RECORDED);
    return status;
}

/* One transaction. A single message that fails by itself is recorded and is OK. */
static semel_status transaction(struct work *work, bool single, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    semel__arena_reset(&inbox->scratch);
    work->batch = (struct semel_admit_batch){0};
    work->culprit = work->n;
    inbox->counts.transactions++;
    semel_status status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &work->now_us, err);
    work->begun = status == SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    SEMEL_POINT(BATCH_BEGUN);
    status = in_transaction(work, single, err);
    if (status != SEMEL_OK) {
        semel_store_rollback(inbox->store);
        return status;
    }
    SEMEL_POINT(BATCH_SETTLED);
    status = semel_store_commit(inbox->store, err);
    if (status != SEMEL_OK)
        return status;
    SEMEL_POINT(BATCH_COMMITTED);
    if (work->marked)
        inbox->marks->moved = true;
    return semel__work_tell(work, err);
}

/* A commit that was refused by a deferred constraint leaves no transaction in which to say so. */
static bool force_ending(struct semel_inbox *inbox, struct item *item, semel_status status,
                         const struct semel_error *err)
{
    if (item->forced || status != SEMEL_INVALID || semel__worldly(status, err))
        return false;
    item->ending = (struct semel_ending){.result = err->cls == SEMEL_CLASS_PERMANENT ? SEMEL_PERMANENT
                                                                                     : SEMEL_TRANSIENT};
    item->forced = semel__arena_copy(&inbox->arena, (struct semel_str){err->text, strlen(err->text)},
                                     &item->ending.text);
    return item->forced;
}

static semel_status run_piece(struct work *work, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    struct item **items = work->items;
    bool single = work->n == 1;
    for (int tries = 0;; tries++) {
        bool forced = items[0]->forced;
        semel_status status = transaction(work, single, err);
        if (status == SEMEL_UNKNOWN && tries < UNKNOWN_MAX) {
            status = semel__recover_unknown(inbox, err);
            if (status == SEMEL_OK)
                continue;
            return status;
        }
        /* Marked by the handler's run, or to be marked now because the commit itself refused. */
        if (single && !forced && (items[0]->forced || force_ending(inbox, items[0], status, err)))
            continue;
        return status;
    }
}

static void count_failures(struct semel_inbox *inbox, struct item **items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i]->verdict.act != SEMEL_RUN)
            continue;
        bool failed = items[i]->live.state == SEMEL_STATE_FAILED || items[i]->live.state == SEMEL_STATE_DEAD ||
                      items[i]->live.state == SEMEL_STATE_UNKNOWN;
        inbox->failures = failed ? inbox->failures + 1 : 0;
    }
}

size_t semel__items_held(const struct semel_inbox *inbox, struct item **items, size_t done, size_t n)
{
    size_t held = 0;
    bool refused = false;
    if (inbox->policy->order != SEMEL_ORDER_ARRIVAL || done == 0)
        return 0;
    struct semel_str key = items[done - 1]->msg->order_key;
    if (!semel__str_given(key))
        return 0;
    for (size_t i = done; i > 0 && !refused && semel__str_eq(items[i - 1]->msg->order_key, key); i--)
        refused = items[i - 1]->removed;
    for (; refused && done + held < n && semel__str_eq(items[done + held]->msg->order_key, key); held++)
        items[done + held]->settled = true;
    return held;
}

size_t semel__items_open(struct item **items, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (!items[i]->settled)
            items[k++] = items[i];
    return k;
}

semel_status semel__items_may_run(const struct semel_inbox *inbox, struct semel_error *err)
{
    if (inbox->failures_max <= 0 || inbox->failures < inbox->failures_max)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%d messages failed in a row: the route pauses",
                       inbox->failures);
}

semel_status semel__items_run(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    while (n > 0) {
        struct work work = {.inbox = inbox, .items = items, .n = n, .running = true};
        semel_status status = semel__items_may_run(inbox, err);
        if (status != SEMEL_OK)
            return status;
        status = run_piece(&work, err);
        size_t culprit = work.culprit;
        if (status == SEMEL_OK)
            count_failures(inbox, items, n);
        if (status == SEMEL_OK || n == 1 || semel__worldly(status, err) || !work.begun)
            return status; /* what could not even begin would not in a smaller piece either */
        inbox->counts.cuts++;
        inbox->counts.contention += status == SEMEL_RETRY;
        SEMEL_POINT(BATCH_HALVED);
        size_t done = culprit < n ? culprit : n / 2;
        status = semel__items_run(inbox, items, done, err);
        done += semel__items_held(inbox, items, done, n);
        if (status == SEMEL_OK && done == culprit && culprit < n) {
            status = semel__items_run(inbox, items + done, 1, err);
            done++;
            done += semel__items_held(inbox, items, done, n);
        }
        if (status != SEMEL_OK)
            return status;
        items += done;
        n -= done;
    }
    return SEMEL_OK;
}
