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

/* A single message that fails by itself is recorded and is OK. */
static semel_status process(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct work *work = ctx;
    bool single = work->n == 1;
    (void)undo;
    semel__arena_reset(&work->inbox->scratch);
    work->batch = (struct semel_admit_batch){0};
    work->culprit = work->n;
    work->now_us = now_us;
    work->begun = true;
    work->inbox->counts.transactions++;
    SEMEL_POINT(BATCH_BEGUN);
    semel_status status = work_leased(work) ? semel__work_fetch(work, err) : semel__work_admit(work, err);
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
    if (status != SEMEL_OK)
        return status;
    if (single && work->items[0]->ended)
        SEMEL_POINT(SINGLE_RECORDED);
    SEMEL_POINT(BATCH_SETTLED);
    return SEMEL_OK;
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

static void begin_anew(void *ctx)
{
    ((struct work *)ctx)->begun = false;
}

static semel_status run_piece(struct work *work, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = process, .unknown = begin_anew, .again = true};
    struct item **items = work->items;
    for (;;) {
        bool forced = items[0]->forced;
        work->begun = false;
        semel_status status = semel__transaction_run(work->inbox->store, &tx, work, err);
        /* Marked by the handler's run, or to be marked now because the commit itself refused. */
        if (work->n == 1 && !forced && status != SEMEL_OK &&
            (items[0]->forced || force_ending(work->inbox, items[0], status, err)))
            continue;
        if (status != SEMEL_OK)
            return status;
        SEMEL_POINT(BATCH_COMMITTED);
        if (work->marked)
            work->inbox->marks->moved = true;
        return semel__work_tell(work, err);
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
        struct work work = {.inbox = inbox,
                            .mode = items[0]->lease != NULL ? WORK_RUN_LEASED : WORK_PROCESS,
                            .items = items,
                            .n = n};
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
