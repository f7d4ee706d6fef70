/* SPDX-License-Identifier: MIT
 *
 * run.c: the handlers of one transaction.
 *
 * Invariants: handlers run between guard(true) and guard(false). In a transaction of several messages a failure blames
 * nobody: it names the culprit, and the caller cuts. In a transaction of one the handler runs behind a savepoint,
 * deferred constraints are forced (P62), and the failure is recorded in the same transaction, under the same locks. A
 * set-based handler has to name each of its messages exactly once (P57).
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/sort.h"
#include "base/point.h"
#include "base/str.h"
#include "core/work.h"

bool semel__reply_set(struct semel__reply *reply, enum semel_result result, struct semel_str reason,
                      struct semel_str outcome)
{
    reply->result = result;
    return semel__arena_copy(reply->arena, reason, &reply->reason) &&
           semel__arena_copy(reply->arena, outcome, &reply->outcome);
}

bool semel__worldly(semel_status status, const struct semel_error *err)
{
    switch (status) {
    case SEMEL_CLOSED:
    case SEMEL_UNKNOWN:
    case SEMEL_FENCED:
        return true;
    case SEMEL_RETRY:
        return err->cls != SEMEL_CLASS_TRANSIENT;
    case SEMEL_INVALID:
        return err->cls == SEMEL_CLASS_ENVIRONMENT || err->cls == SEMEL_CLASS_BROKEN;
    case SEMEL_OK:
        return false;
    }
    return true;
}

/* ---- one message after the other ----------------------------------------------------------------- */

static semel_status failed(struct item *item, const struct semel__reply *reply, struct semel_error *err)
{
    item->ending = (struct semel_ending){.result = reply->result, .text = reply->reason, .outcome = reply->outcome};
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_TRANSIENT, "the handler said %s",
                       semel__result_name(reply->result));
}

static enum semel_result result_of(enum semel_class cls)
{
    if (cls == SEMEL_CLASS_PERMANENT)
        return SEMEL_PERMANENT;
    if (cls == SEMEL_CLASS_REJECTED)
        return SEMEL_REJECTED;
    return cls == SEMEL_CLASS_UNKNOWN ? SEMEL_MAYBE : SEMEL_TRANSIENT;
}

/* A failure of a statement, in the words of the store. */
static semel_status blame(struct semel_inbox *inbox, struct item *item, semel_status status, struct semel_error *err)
{
    if (status != SEMEL_INVALID || semel__worldly(status, err))
        return status;
    item->ending = (struct semel_ending){.result = result_of(err->cls)};
    if (!semel__arena_copy(&inbox->arena, semel__str(err->text), &item->ending.text))
        return semel__fail_memory(err);
    return status;
}

static semel_status run_one(struct semel_inbox *inbox, struct item *item, struct semel_error *err)
{
    struct semel__reply reply = {.arena = &inbox->arena, .result = SEMEL_DONE};
    const struct semel__handler *handler = inbox->handler;
    semel_status status = handler->each(handler->ctx, inbox->store, item->msg, item->verdict.attempt, &reply, err);
    if (status != SEMEL_OK)
        return blame(inbox, item, status, err);
    if (reply.result != SEMEL_DONE)
        return failed(item, &reply, err);
    item->ending = (struct semel_ending){.result = SEMEL_DONE, .outcome = reply.outcome};
    return SEMEL_OK;
}

/* Handlers may only queue their statements: then a failure is learnt at the end, with the place of the one that queued
 * it. One that fails by itself is the culprit only if none before it is. */
static semel_status run_each(struct work *work, struct semel_error *err)
{
    struct semel_store *store = work->inbox->store;
    struct semel_error late;
    semel_status status = SEMEL_OK;
    size_t tag;
    store->tag = work->n;
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++) {
        if (work->items[i]->verdict.act != SEMEL_RUN)
            continue;
        store->tag = i;
        status = run_one(work->inbox, work->items[i], err);
        if (status != SEMEL_OK)
            work->culprit = i;
    }
    semel_status queued = semel_store_collect(store, &tag, &late);
    if (queued == SEMEL_OK)
        return status;
    *err = late;
    work->culprit = tag;
    return tag < work->n ? blame(work->inbox, work->items[tag], queued, err) : queued;
}

/* ---- sets ---------------------------------------------------------------------------------------- */

struct semel_set {
    const struct semel__msg **msgs; /* ascending by (id, source) */
    unsigned char *seen;
    size_t n, named;
    bool wrong; /* a stranger, or a repeat */
};

static int cmp_set(const void *va, const void *vb)
{
    const struct semel__msg *a = *(const struct semel__msg *const *)va, *b = *(const struct semel__msg *const *)vb;
    int c = semel__str_cmp(a->id, b->id);
    return c != 0 ? c : semel__str_cmp(a->source, b->source);
}

void semel__set_add(struct semel_set *set, struct semel_str source, struct semel_str id)
{
    const struct semel__msg key = {.source = source, .id = id}, *p = &key;
    const struct semel__msg **hit = bsearch(&p, set->msgs, set->n, sizeof *set->msgs, cmp_set);
    if (hit == NULL || set->seen[hit - set->msgs] != 0) {
        set->wrong = true;
        return;
    }
    set->seen[hit - set->msgs] = 1;
    set->named++;
}

/* The next round: the first message of each key that has not run yet. Items of one key are neighbours. */
static size_t pick_round(struct work *work, unsigned char *taken, const struct semel__msg **msgs)
{
    size_t n = 0;
    const struct semel_key *last = NULL;
    for (size_t i = 0; i < work->n; i++) {
        struct item *item = work->items[i];
        if (taken[i] != 0 || item->verdict.act != SEMEL_RUN || (item->key != NULL && item->key == last))
            continue;
        last = item->key;
        taken[i] = 1;
        msgs[n++] = item->msg;
    }
    return n;
}

static semel_status run_round(struct work *work, const struct semel__msg **msgs, size_t n, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    struct semel_set set = {.n = n};
    set.msgs = semel__arena_alloc(&inbox->scratch, n, sizeof *set.msgs);
    set.seen = semel__arena_alloc(&inbox->scratch, n, 1);
    if (set.msgs == NULL || set.seen == NULL)
        return semel__fail_memory(err);
    memcpy(set.msgs, msgs, n * sizeof *msgs);
    semel__sort(set.msgs, n, sizeof *set.msgs, cmp_set);
    semel_status status = inbox->handler->set(inbox->handler->ctx, inbox->store, msgs, n, &set, err);
    if (status == SEMEL_OK && (set.wrong || set.named != n))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the set-based statement named %zu of %zu messages%s; it must return each id exactly once",
                           set.named, n, set.wrong ? ", and others" : "");
    return status;
}

static semel_status run_sets(struct work *work, struct semel_error *err)
{
    unsigned char *taken = semel__arena_alloc(&work->inbox->scratch, work->n, 1);
    const struct semel__msg **msgs = semel__arena_alloc(&work->inbox->scratch, work->n, sizeof *msgs);
    if (taken == NULL || msgs == NULL)
        return semel__fail_memory(err);
    for (size_t n; (n = pick_round(work, taken, msgs)) > 0;) {
        semel_status status = run_round(work, msgs, n, err);
        if (status != SEMEL_OK)
            return work->n == 1 ? blame(work->inbox, work->items[0], status, err) : status;
    }
    for (size_t i = 0; i < work->n; i++)
        work->items[i]->ending = (struct semel_ending){.result = SEMEL_DONE};
    return SEMEL_OK;
}

/* ---- the ends ------------------------------------------------------------------------------------ */

/* `live` so far is that of a success, with the start counted. */
void semel__item_end(struct work *work, struct item *item)
{
    struct semel_live before = item->live;
    semel__live_finish(work->inbox->policy, &before, &item->ending, work->now_us, work->inbox->rng, &item->live);
    item->ended = item->ending.result != SEMEL_DONE;
    if (item->ended || item->lease != NULL || item->ending.outcome.n > 0)
        item->changed = true;
}

static semel_status run_all(struct work *work, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    struct semel_error ended;
    semel_status status = semel_store_guard(inbox->store, true, err);
    if (status != SEMEL_OK)
        return status;
    status = inbox->handler->set != NULL ? run_sets(work, err) : run_each(work, err);
    semel_status guard = semel_store_guard(inbox->store, false, &ended);
    if (guard == SEMEL_OK || semel__worldly(status, err))
        return status;
    /* The handler ended the transaction (P58): whatever it said, nothing can be recorded in it any more. */
    *err = ended;
    if (work->n != 1)
        return guard;
    guard = blame(inbox, work->items[0], guard, err);
    work->items[0]->forced = guard == SEMEL_INVALID && !semel__worldly(guard, err);
    return guard;
}

static semel_status run_single(struct work *work, struct semel_error *err)
{
    struct semel_store *store = work->inbox->store;
    struct item *item = work->items[0];
    semel_status status = semel_store_savepoint(store, err);
    if (status == SEMEL_OK)
        status = run_all(work, err);
    if (status == SEMEL_OK) {
        status = blame(work->inbox, item, semel_store_check(store, err), err);
        if (status == SEMEL_OK)
            return SEMEL_OK;
    }
    if (status != SEMEL_INVALID || semel__worldly(status, err) || item->forced)
        return status;
    SEMEL_POINT(SINGLE_FAILED);
    return semel_store_rollback_to(store, err);
}

semel_status semel__work_run(struct work *work, bool single, struct semel_error *err)
{
    size_t n = 0;
    semel_status status = SEMEL_OK;
    work->culprit = work->n;
    for (size_t i = 0; i < work->n; i++)
        n += work->items[i]->verdict.act == SEMEL_RUN;
    if (n == 0)
        return SEMEL_OK;
    if (single && !work->items[0]->forced)
        status = run_single(work, err);
    else if (!single)
        status = run_all(work, err);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++)
        if (work->items[i]->verdict.act == SEMEL_RUN)
            semel__item_end(work, work->items[i]);
    return status;
}
