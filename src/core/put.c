/* SPDX-License-Identifier: MIT
 *
 * put.c: deliveries that are stored to be run later, by whoever takes them: one transaction a batch, cut as others are.
 *
 * Invariants: each is judged as a delivery is, and as if those before it in the batch had been stored one by one, so
 * that a duplicate, a conflict or a blocked key is answered alike; no handler is called and no attempt counted; a row
 * that is there already stays as it is. What is left undecided when the world fails is LATER.
 */
#include "base/error.h"
#include "base/str.h"
#include "core/work.h"

/* One that may run now is made to wait, due at once. */
static void hold(struct work *work, struct item *item)
{
    if (item->verdict.act != SEMEL_RUN)
        return;
    item->verdict = (struct semel__verdict){.act = SEMEL_ACK, .why = SEMEL_WHY_DUPLICATE, .due_us = SEMEL_NONE};
    if (item->row != NULL) {
        item->live = item->row->live;
        item->changed = item->adopted = semel__payload_adopts(work->inbox->policy, item->msg, item->row);
        return;
    }
    struct semel_live unborn = item->live;
    unborn.attempts = 0;
    unborn.alone = false;
    item->verdict.why = SEMEL_WHY_NEW;
    item->verdict.changes = true;
    item->verdict.becomes = SEMEL_STATE_WAITING;
    item->verdict.due_us = work->now_us;
    semel__live_verdict(&item->verdict, &unborn, (struct semel_str){0}, work->now_us, &item->live);
    item->changed = true;
}

static semel_status put(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct work *work = ctx;
    (void)undo;
    semel__arena_reset(&work->inbox->scratch);
    work->now_us = now_us;
    work->begun = true;
    work->inbox->counts.transactions++;
    semel_status status = semel__work_admit(work, err);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++)
        hold(work, work->items[i]);
    return status == SEMEL_OK ? semel__work_settle(work, err) : status;
}

/* In halves, in order, and of a key that was not accepted nothing more. */
static semel_status put_items(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    while (n > 0) {
        static const struct semel__transaction tx = {.body = put, .again = true}; /* what is found stays as it is */
        struct work work = {.inbox = inbox, .mode = WORK_STORE, .items = items, .n = n};
        semel_status status = semel__transaction_run(inbox->store, &tx, &work, err);
        if (status == SEMEL_OK)
            return semel__work_tell(&work, err);
        if (n == 1 || semel__worldly(status, err) || !work.begun)
            return status;
        inbox->counts.cuts++;
        inbox->counts.contention += status == SEMEL_RETRY;
        size_t done = n / 2;
        status = put_items(inbox, items, done, err);
        if (status != SEMEL_OK)
            return status;
        done += semel__items_held(inbox, items, done, n);
        items += done;
        n -= done;
    }
    return SEMEL_OK;
}

semel_status semel__inbox_put_all(struct semel_inbox *inbox, const struct semel__msg *msgs, size_t n,
                                  struct semel_settled *ret_settled, struct semel_error *err)
{
    struct item **items;
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    if (inbox->policy->keep == SEMEL_KEEP_NEVER)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the consumer keeps no payloads (keep_payload): what is stored could never be run");
    for (size_t i = 0; i < n; i++)
        if (!semel__str_given(msgs[i].payload))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                               "a payload is needed, which may be empty: nobody would bring it later");
    semel__arena_reset(&inbox->arena);
    for (size_t i = 0; i < n; i++)
        ret_settled[i] = (struct semel_settled){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
    if (n == 0)
        return SEMEL_OK;
    semel_status status = semel__items_prepare(inbox, &inbox->arena, msgs, n, ret_settled, &items, &n, err);
    return status == SEMEL_OK ? put_items(inbox, items, n, err) : status;
}

semel_status semel__inbox_put(struct semel_inbox *inbox, const struct semel__msg *msg,
                              struct semel_settled *ret_settled, struct semel_error *err)
{
    return semel__inbox_put_all(inbox, msg, 1, ret_settled, err);
}
