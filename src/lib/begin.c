/* SPDX-License-Identifier: MIT
 *
 * begin.c: the inbox inside the caller's transaction: begin, done, fail.
 *
 * A begin claims the message under a token, in the caller's transaction, and notes it as pending. Its end is written
 * under that token. A savepoint of the caller's may have undone the begin or the end meanwhile, and nobody reports
 * that. But a savepoint always undoes the latest writes: stale entries are at the end of the lists `pending` and
 * `ended`, and checking the last one of each is enough to find out.
 *
 * Invariants: every pending message is `processing` in this transaction, as far as the last call knew; a message is in
 * one of the two lists, once; a call that fails leaves both lists and rows as they were.
 */
#include "base/error.h"
#include "base/str.h"
#include "lib/handle.h"

/* The row of a begun message, as long as it has no end; *ret_row is NULL when there is none. */
static semel_status row_of(struct semel *s, const struct held *held, struct semel_row **ret_row,
                           struct semel_error *err)
{
    struct semel_row *rows;
    size_t n, damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_TOKEN, .token = held->token, .max = 1};
    *ret_row = NULL;
    semel_status status = semel_store_scan(s->store, &scan, &s->arena, &rows, &n, &damaged, err);
    if (status == SEMEL_OK && n == 1 && semel__held_is(held, &rows[0]))
        *ret_row = &rows[0];
    return status;
}

/* Its end was undone: it is pending again, at its place in the order of begins. */
static void put_back(struct semel *s, struct held *held)
{
    struct held **items = s->pending.items;
    semel__held_move(&s->ended, &s->pending, held);
    for (size_t i = s->pending.n - 1; i > 0 && items[i] == held && items[i - 1]->number > held->number; i--) {
        items[i] = items[i - 1];
        items[i - 1] = held;
    }
}

static semel_status restore_begun(struct semel *s, struct semel_error *err)
{
    while (s->ended.n > 0) {
        struct held *last = s->ended.items[s->ended.n - 1];
        struct semel_row *row;
        semel_status status = row_of(s, last, &row, err);
        if (status != SEMEL_OK || row == NULL)
            return status;
        if (!semel__held_room(&s->pending))
            return semel__fail_memory(err);
        put_back(s, last);
    }
    return SEMEL_OK;
}

/* Handles what a savepoint of the caller's has undone since the last call: drops undone begins; messages whose end was
 * undone are pending again. */
static semel_status look_again(struct semel *s, struct semel_error *err)
{
    while (s->pending.n > 0) {
        struct held *last = s->pending.items[s->pending.n - 1];
        struct semel_row *row;
        semel_status status = row_of(s, last, &row, err);
        if (status != SEMEL_OK)
            return status;
        if (row != NULL)
            break;
        semel__held_drop(&s->pending, last);
    }
    return restore_begun(s, err);
}

/* ---- begin --------------------------------------------------------------------------------------- */

static semel_status make_room(struct semel *s, struct semel_error *err)
{
    if (s->loose && s->pending.n == SEMEL_PENDING_MAX) /* committed without their ends; their leases will expire */
        semel__held_drop(&s->pending, s->pending.items[0]);
    if (s->pending.n == SEMEL_PENDING_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "%d messages were begun in this transaction and have no end: done or fail first",
                           SEMEL_PENDING_MAX);
    return semel__held_room(&s->pending) ? SEMEL_OK : semel__fail_memory(err);
}

/* Claims the message; if it may run, it is pending from now on. */
static semel_status claim(struct semel *s, const struct semel__msg *msg, struct semel_verdict *ret,
                          struct semel_error *err)
{
    struct semel_lease lease;
    struct semel_settled settled;
    size_t n = 0;
    struct held *held = semel__held_new(s->policy.consumer, msg);
    if (held == NULL)
        return semel__fail_memory(err);
    semel_status status = semel__lease_claim(&s->inbox, msg, 1, true, &s->arena, &lease, &n, &settled, err);
    if (status != SEMEL_OK || n == 0) {
        semel__free(held);
        semel__show_settled(&settled, ret);
        return status;
    }
    held->token = lease.progress.lease_token;
    held->number = ++s->begins;
    held->attempt = lease.progress.attempts;
    status = semel__hold(s, held, err);
    if (status != SEMEL_OK) { /* the transaction has failed, and the claim with it */
        semel__free(held);
        return status;
    }
    struct held *before = semel__held_find(&s->ended, held->consumer, held->source, held->id);
    if (before != NULL) /* that begin was undone as well */
        semel__held_drop(&s->ended, before);
    semel__held_add(&s->pending, held);
    semel__show_lease(&lease, ret);
    ret->token = ret->lease_until_us = SEMEL_NONE; /* they are internal to the transaction */
    return SEMEL_OK;
}

static semel_status begin(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                          struct semel_error *err)
{
    struct semel__msg m;
    if (ret == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "ret is NULL");
    semel_status status = semel__take_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__take_msg(s, msg, true, &m, err);
    if (status == SEMEL_OK)
        status = look_again(s, err);
    if (status == SEMEL_OK)
        status = make_room(s, err);
    if (status == SEMEL_OK)
        status = semel__use_order(s, &m, err);
    return status == SEMEL_OK ? claim(s, &m, ret, err) : status;
}

semel_status semel_inbox_begin(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                               struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_CALLER, err);
    return status == SEMEL_OK ? semel__leave(s, begin(s, msg, ret, err), err) : status;
}

/* ---- the end of a begun message ------------------------------------------------------------------ */

/* The pending message of this name, and its row. *ret_held is NULL when it is not pending, or no longer. */
static semel_status find(struct semel *s, const struct semel__msg *name, struct held **ret_held,
                         struct semel_row **ret_row, struct semel_error *err)
{
    *ret_held = NULL;
    semel_status status = look_again(s, err);
    if (status == SEMEL_OK && (!semel__held_room(&s->ended) || !semel__held_room(&s->pending)))
        status = semel__fail_memory(err); /* now, because a written end must fit into the list */
    if (status != SEMEL_OK)
        return status;
    struct held *pending = semel__held_find(&s->pending, s->policy.consumer, name->source, name->id);
    struct held *held = pending != NULL ? pending
                                        : semel__held_find(&s->ended, s->policy.consumer, name->source, name->id);
    if (held == NULL)
        return SEMEL_OK;
    status = row_of(s, held, ret_row, err);
    if (status != SEMEL_OK)
        return status;
    if (*ret_row == NULL && pending != NULL)
        semel__held_drop(&s->pending, pending);
    else if (*ret_row != NULL && pending == NULL)
        put_back(s, held);
    *ret_held = *ret_row != NULL ? held : NULL;
    return SEMEL_OK;
}

/* Remembers a message whose end was written, for a while. */
static void note_end(struct semel *s, struct held *held)
{
    if (s->ended.n == SEMEL_ENDED_MAX)
        semel__held_drop(&s->ended, s->ended.items[0]);
    semel__held_move(&s->pending, &s->ended, held);
}

/* Adds the payload that the begin did not have, if there is one. */
static void add_payload(const struct semel_row *row, const struct semel__msg *brought, struct semel__msg *msg)
{
    if (row->kept || brought == NULL || semel__fp_differs(&row->fp, &brought->fp))
        return;
    msg->payload = brought->payload;
    msg->headers = brought->headers;
    msg->fp = brought->fp;
}

/* *ret has the answer for the broker. brought: NULL, or the message as passed with its end. */
static semel_status end(struct semel *s, struct held *held, const struct semel_row *row,
                        const struct semel__msg *brought, const struct semel_ending *ending, struct semel_verdict *ret,
                        struct semel_error *err)
{
    struct semel_lease lease = {.progress = row->progress, .arrival = row->arrival};
    semel__row_msg(row, &lease.msg);
    add_payload(row, brought, &lease.msg);
    semel_status status = semel__lease_finish(&s->inbox, &lease, ending, 1, err);
    if (status == SEMEL_OK && lease.lost)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the message was changed by somebody else");
    if (status == SEMEL_OK)
        status = semel__unhold(s, held, err);
    if (status != SEMEL_OK)
        return status;
    note_end(s, held);
    bool kept = row->kept ||
                (semel__str_given(lease.msg.payload) && semel__payload_stays(&s->policy, lease.progress.state));
    struct semel_settled settled = {.act = semel__act_for(lease.progress.state, kept),
                                    .why = lease.progress.attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW,
                                    .state = lease.progress.state,
                                    .attempt = lease.progress.attempts,
                                    .due_us = lease.progress.due_us,
                                    .cls = lease.progress.error_class};
    semel__show_settled(&settled, ret);
    return SEMEL_OK;
}

static semel_status done(struct semel *s, const struct semel_msg *msg, struct semel_str outcome,
                         struct semel_error *err)
{
    struct semel__msg name;
    struct held *held = NULL;
    struct semel_row *row = NULL;
    struct semel_ending ending = {.result = SEMEL_DONE, .outcome = outcome};
    struct semel_verdict verdict;
    semel_status status = semel__take_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__take_name(s, msg, &name, err);
    if (status == SEMEL_OK)
        status = semel__check_json("outcome", outcome, SEMEL_OUTCOME_MAX, false, err);
    if (status == SEMEL_OK)
        status = find(s, &name, &held, &row, err);
    if (status != SEMEL_OK)
        return status;
    if (held == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the message was not begun in this transaction, or its begin was rolled back");
    return end(s, held, row, NULL, &ending, &verdict, err);
}

semel_status semel_inbox_done(struct semel *s, const struct semel_msg *msg, struct semel_str outcome,
                              struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_CALLER, err);
    return status == SEMEL_OK ? semel__leave(s, done(s, msg, outcome, err), err) : status;
}

/* ---- fail ---------------------------------------------------------------------------------------- */

/* The begin is gone: records the attempt and its end at once. */
static semel_status record(struct semel *s, const struct semel__msg *msg, const struct semel_ending *ending,
                           struct semel_verdict *ret, struct semel_error *err)
{
    struct semel_settled settled;
    semel_status status = semel__use_order(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__inbox_record(&s->inbox, msg, ending, &settled, err);
    if (status == SEMEL_OK)
        semel__show_settled(&settled, ret);
    return status;
}

static semel_status fail(struct semel *s, const struct semel_msg *msg, enum semel_result result,
                         struct semel_str reason, struct semel_verdict *ret, struct semel_error *err)
{
    struct semel__msg m;
    struct held *held = NULL;
    struct semel_row *row = NULL;
    struct semel_ending ending = {.result = result};
    semel_status status = semel__take_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__take_name(s, msg, &m, err);
    if (status == SEMEL_OK)
        status = semel__take_msg(s, msg, true, &m, err);
    if (status == SEMEL_OK)
        status = semel__check_result(result, false, err);
    if (status == SEMEL_OK)
        status = semel__check_str("reason", reason, err);
    if (status == SEMEL_OK && !semel__clean_text(&s->arena, reason, &ending.text))
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = find(s, &m, &held, &row, err);
    if (status != SEMEL_OK)
        return status;
    return held != NULL ? end(s, held, row, &m, &ending, ret, err) : record(s, &m, &ending, ret, err);
}

semel_status semel_inbox_fail(struct semel *s, const struct semel_msg *msg, enum semel_result result,
                              struct semel_str reason, struct semel_verdict *ret, struct semel_error *err)
{
    struct semel_verdict unwanted;
    semel_status status = semel__enter(s, SEMEL_WHOSE_CALLER, err);
    if (status != SEMEL_OK)
        return status;
    return semel__leave(s, fail(s, msg, result, reason, ret != NULL ? ret : &unwanted, err), err);
}
