/* SPDX-License-Identifier: MIT
 *
 * direct.c: a short way into the inbox, for one message and in one transaction: its caller has run it, undone what it
 * wrote, and says how it ended.
 *
 * Invariants: it is judged as a delivery is, so that a duplicate, a conflict or a blocked key is answered alike; no
 * handler is called; what was run counts one attempt.
 */
#include "base/error.h"
#include "base/str.h"
#include "core/work.h"

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
