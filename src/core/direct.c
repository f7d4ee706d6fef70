/* SPDX-License-Identifier: MIT
 *
 * direct.c: two short ways into the inbox, each for one message and in one transaction. A message is stored to be run
 * later; or its caller has run it, undone what it wrote, and says how it ended.
 *
 * Invariants: both are judged as a delivery is, so that a duplicate, a conflict or a blocked key is answered alike; no
 * handler is called; what is stored to be run later counts no attempt, and what was run counts one.
 */
#include "base/error.h"
#include "base/str.h"
#include "core/work.h"

#define UNKNOWN_MAX 3

static semel_status prepare(struct semel_inbox *inbox, const struct semel__msg *msg, struct semel_settled *ret,
                            struct item **ret_item, struct semel_error *err)
{
    struct item **items;
    size_t n;
    semel__arena_reset(&inbox->arena);
    *ret = (struct semel_settled){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
    semel_status status = semel__items_prepare(inbox, &inbox->arena, msg, 1, ret, &items, &n, err);
    if (status == SEMEL_OK)
        *ret_item = items[0];
    return status;
}

/* ---- stored to be run later ---------------------------------------------------------------------- */

/* One that may run now is made to wait, due at once. */
static void hold(struct work *work, struct item *item)
{
    if (item->verdict.act != SEMEL_RUN)
        return;
    item->verdict = (struct semel__verdict){.act = SEMEL_ACK, .why = SEMEL_WHY_DUPLICATE, .due_us = SEMEL_NONE};
    if (item->row != NULL) {
        item->live = item->row->live;
        item->changed = !item->row->kept; /* its payload, which only a broker could have brought */
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

static semel_status put_once(struct work *work, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    semel__arena_reset(&inbox->scratch);
    inbox->counts.transactions++;
    semel_status status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &work->now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__work_admit(work, err);
    if (status == SEMEL_OK) {
        hold(work, work->items[0]);
        status = semel__work_settle(work, err);
    }
    if (status != SEMEL_OK) {
        semel_store_rollback(inbox->store);
        return status;
    }
    return semel_store_commit(inbox->store, err);
}

semel_status semel__inbox_put(struct semel_inbox *inbox, const struct semel__msg *msg,
                              struct semel_settled *ret_settled, struct semel_error *err)
{
    struct item *item = NULL;
    struct work work = {.inbox = inbox, .items = &item, .n = 1, .claiming = true};
    if (inbox->policy->keep == SEMEL_KEEP_NEVER)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the consumer keeps no payloads (keep_payload): what is stored could never be run");
    semel_status status = prepare(inbox, msg, ret_settled, &item, err);
    if (status != SEMEL_OK)
        return status;
    for (int tries = 0; (status = put_once(&work, err)) == SEMEL_UNKNOWN && tries < UNKNOWN_MAX; tries++) {
        status = semel__recover_unknown(inbox, err); /* then it is found, or stored again */
        if (status != SEMEL_OK)
            return status;
    }
    return status == SEMEL_OK ? semel__work_tell(&work, err) : status;
}

/* ---- run by its caller --------------------------------------------------------------------------- */

semel_status semel__inbox_record(struct semel_inbox *inbox, const struct semel__msg *msg,
                                 const struct semel_ending *ending, struct semel_settled *ret_settled,
                                 struct semel_error *err)
{
    struct item *item = NULL;
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    semel_status status = prepare(inbox, msg, ret_settled, &item, err);
    if (status != SEMEL_OK)
        return status;
    item->forced = true;
    item->ending = *ending;
    return semel__items_run(inbox, &item, 1, err);
}
