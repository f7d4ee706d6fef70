/* SPDX-License-Identifier: MIT
 *
 * inbox.c: a batch of deliveries, from the door to the acts. The two paths are described in inbox.h.
 */
#include "core/inbox.h"

#include "base/error.h"
#include "base/point.h"
#include "base/str.h"
#include "core/mark.h"
#include "core/work.h"

#define ARENA_MAX ((size_t)1 << 30)
#define TOGETHER_MAX 100 /* suspects behind one claim: so many run alone when one of them kills the process */

void semel__inbox_init(struct semel_inbox *inbox, struct semel_store *store, const struct semel_policy *policy,
                       const struct semel__handler *handler, struct semel_random *rng, struct semel_str owner)
{
    *inbox = (struct semel_inbox){.store = store, .policy = policy, .handler = handler, .rng = rng, .owner = owner};
    semel__arena_init(&inbox->arena, ARENA_MAX);
    semel__arena_init(&inbox->scratch, ARENA_MAX);
}

void semel__inbox_done(struct semel_inbox *inbox)
{
    semel__arena_done(&inbox->arena);
    semel__arena_done(&inbox->scratch);
}

int64_t semel__work_token(struct work *work, const struct semel_row *row)
{
    struct semel_inbox *inbox = work->inbox;
    return semel__token_new(&inbox->tokens, inbox->rng, inbox->policy->effect, work->now_us,
                            row != NULL ? row->updated_us : SEMEL_NONE);
}

/* ---- messages that came again -------------------------------------------------------------------- */

/* Most of what comes again is finished already: that much one look tells, without a transaction each. */
static bool decided(enum semel_state state)
{
    switch (state) {
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_PREVENTED:
    case SEMEL_STATE_DEAD:
    case SEMEL_STATE_QUARANTINED:
    case SEMEL_STATE_UNKNOWN:
    case SEMEL_STATE_PROCESSING:
        return true;
    case SEMEL_STATE_FAILED:
    case SEMEL_STATE_WAITING:
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_COUNT:
        return false;
    }
    return false;
}

static bool has_conflict(const struct item *item)
{
    for (const struct copy *copy = item->copies; copy != NULL; copy = copy->next)
        if (copy->conflict)
            return true;
    return false;
}

static void sift_item(struct work *work, struct item *item, size_t *kept)
{
    const struct semel_row *row = item->row;
    if (row == NULL || !decided(row->live.state) || has_conflict(item) || semel__fp_differs(&row->fp, &item->msg->fp) ||
        semel__payload_adopts(work->inbox->policy, item->msg, row))
        return;
    struct semel_facts facts = {.now_us = work->now_us, .row = row, .watermark_us = SEMEL_NONE};
    semel__verdict_deliver(work->inbox->policy, item->msg, &facts, &item->verdict);
    work->items[(*kept)++] = item;
}

static semel_status read_rows(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct work *work = ctx;
    *undo = true;
    work->now_us = now_us;
    return semel__work_fetch(work, err);
}

static semel_status sift(struct semel_inbox *inbox, struct item **suspects, size_t n, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = read_rows};
    struct work work = {.inbox = inbox, .mode = WORK_READ, .n = n};
    size_t kept = 0;
    semel__arena_reset(&inbox->scratch);
    work.items = semel__arena_alloc(&inbox->scratch, n, sizeof *work.items);
    if (work.items == NULL)
        return semel__fail_memory(err);
    memcpy(work.items, suspects, n * sizeof *suspects);
    semel_status status = semel__transaction_run(inbox->store, &tx, &work, err);
    if (status != SEMEL_OK)
        return status;
    for (size_t i = 0; i < n; i++)
        sift_item(&work, suspects[i], &kept);
    work.n = kept;
    return semel__work_tell(&work, err);
}

/* Behind a committed claim, one at a time: if it kills the process its start has been counted. */
static semel_status run_alone(struct semel_inbox *inbox, struct item *item, struct semel_error *err)
{
    semel_status status = semel__items_claim(inbox, &item, 1, true, err);
    if (status != SEMEL_OK || item->lease == NULL)
        return status;
    SEMEL_POINT(LEASE_RUN);
    status = semel__items_run(inbox, &item, 1, err);
    if (status != SEMEL_OK)
        semel__items_give_back(inbox, &item, 1, status);
    return status;
}

static bool share_business(const struct semel__msg *a, const struct semel__msg *b)
{
    for (size_t i = 0; i < a->n_business; i++)
        for (size_t j = 0; j < b->n_business; j++)
            if (semel__str_eq(a->business[i], b->business[j]))
                return true;
    return false;
}

/* Must it see what becomes of one of these first? Items of one order key are neighbours. */
static bool has_to_wait(const struct item *item, const struct item *last, struct item **picked, size_t n)
{
    const struct semel_str key = item->msg->order_key;
    if (last != NULL && semel__str_given(key) && semel__str_eq(last->msg->order_key, key))
        return true;
    for (size_t i = 0; item->msg->n_business > 0 && i < n; i++)
        if (share_business(item->msg, picked[i]->msg))
            return true;
    return false;
}

/* Those that have no end yet, of each order key and each business key the first. Behind one that was not accepted the
 * rest of its order key stays with the source. */
static size_t pick_round(const struct semel_inbox *inbox, struct item **suspects, size_t n, struct item **ret)
{
    const struct item *last = NULL;
    size_t picked = 0;
    for (size_t i = 0; i < n && picked < TOGETHER_MAX; i++) {
        if (i > 0 && suspects[i - 1]->removed)
            i += semel__items_held(inbox, suspects, i, n);
        if (i >= n || suspects[i]->settled)
            continue;
        if (!has_to_wait(suspects[i], last, ret, picked))
            ret[picked++] = suspects[i];
        last = suspects[i]; /* also one that waits: what follows it waits, too */
    }
    return picked;
}

/* Behind one committed claim. If one of them kills the process nobody knows which: nobody is charged, and after the
 * lease each runs alone. */
static semel_status run_together(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    struct item **claimed = semel__arena_alloc(&inbox->arena, n, sizeof *claimed);
    struct semel_error local;
    size_t k = 0;
    if (claimed == NULL)
        return semel__fail_memory(err);
    semel_status status = semel__items_claim(inbox, items, n, false, err), ran = SEMEL_OK;
    for (size_t i = 0; i < n; i++)
        if (items[i]->lease != NULL)
            claimed[k++] = items[i];
    if (k > 0) { /* also what was claimed before the rest could not be */
        SEMEL_POINT(LEASE_RUN);
        ran = semel__items_run(inbox, claimed, k, status == SEMEL_OK ? err : &local);
    }
    if (ran != SEMEL_OK)
        semel__items_give_back(inbox, claimed, k, ran);
    status = status == SEMEL_OK ? ran : status;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        if (items[i]->deferred && !items[i]->settled)
            status = run_alone(inbox, items[i], err);
    return status;
}

static semel_status run_suspects(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    struct item **suspects = semel__arena_alloc(&inbox->arena, n, sizeof *suspects);
    struct item **round = semel__arena_alloc(&inbox->arena, n, sizeof *round);
    size_t k = 0;
    if (suspects == NULL || round == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        if (items[i]->suspect && !items[i]->settled)
            suspects[k++] = items[i];
    semel_status status = k > 0 ? sift(inbox, suspects, k, err) : SEMEL_OK;
    for (size_t rounds = 0; status == SEMEL_OK && rounds < k; rounds++) {
        const size_t picked = pick_round(inbox, suspects, k, round);
        if (picked == 0)
            break;
        status = semel__items_may_run(inbox, err);
        if (status == SEMEL_OK)
            status = picked == 1 ? run_alone(inbox, round[0], err) : run_together(inbox, round, picked, err);
    }
    return status;
}

/* ---- the door ------------------------------------------------------------------------------------ */

/* What follows it by arrival must not overtake it. */
static void hold_behind(const struct semel_inbox *inbox, struct item **items, size_t i, size_t n)
{
    const struct semel_str key = items[i]->msg->order_key;
    if (inbox->policy->order != SEMEL_ORDER_ARRIVAL || !semel__str_given(key))
        return;
    for (size_t j = i + 1; j < n; j++) {
        if (items[j]->settled || !semel__str_eq(items[j]->msg->order_key, key))
            continue;
        items[j]->settled = true;
        items[j]->out->why = SEMEL_WHY_BLOCKED;
    }
}

/* What no row can hold stays with its broker. */
static void refuse_giants(struct semel_inbox *inbox, struct item **items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i]->msg->payload.n <= SEMEL_PAYLOAD_HARD_MAX)
            continue;
        items[i]->settled = true;
        items[i]->out->why = SEMEL_WHY_DEAD;
        items[i]->out->cls = SEMEL_CLASS_PERMANENT;
        semel__alert(inbox, SEMEL_ALERT_DEAD, items[i]->msg,
                     SEMEL_STR("the payload is larger than 64 MiB and cannot be kept: it stays with the broker"));
        hold_behind(inbox, items, i, n);
    }
}

static semel_status process_items(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    if (inbox->policy->effect != SEMEL_EFFECT_ATOMIC) {
        struct semel_error ignored;
        semel_status status = semel__items_claim(inbox, items, n, true, err);
        size_t k = 0;
        for (size_t i = 0; i < n; i++)
            if (items[i]->lease != NULL)
                items[k++] = items[i];
        semel_status ran = semel__items_outside(inbox, items, k, status == SEMEL_OK ? err : &ignored);
        return status == SEMEL_OK ? ran : status; /* what was claimed before the world failed ran, or is given back */
    }
    semel_status status = run_suspects(inbox, items, n, err);
    if (status != SEMEL_OK)
        return status;
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (!items[i]->settled && !items[i]->suspect)
            items[k++] = items[i];
    status = semel__items_run(inbox, items, k, err);
    for (size_t i = 0; status == SEMEL_OK && i < k; i++)
        if (items[i]->deferred)
            status = run_alone(inbox, items[i], err);
    return status;
}

semel_status semel__inbox_process(struct semel_inbox *inbox, const struct semel__msg *msgs, size_t n,
                                  struct semel_settled *ret_settled, struct semel_error *err)
{
    struct item **items;
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    semel__error_clear(err);
    semel__arena_reset(&inbox->arena);
    if (n > SEMEL_BATCH_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a batch of %zu messages; at most %d are allowed", n,
                           SEMEL_BATCH_MAX);
    for (size_t i = 0; i < n; i++)
        ret_settled[i] = (struct semel_settled){.act = SEMEL_LATER, .due_us = SEMEL_NONE};
    if (n == 0)
        return SEMEL_OK;
    semel_status status = semel__items_prepare(inbox, &inbox->arena, msgs, n, ret_settled, &items, &n, err);
    if (status != SEMEL_OK)
        return status;
    if (inbox->marks != NULL)
        inbox->marks->whole = n;
    refuse_giants(inbox, items, n);
    n = semel__items_open(items, n);
    status = n > 0 ? process_items(inbox, items, n, err) : SEMEL_OK;
    if (status == SEMEL_OK)
        semel__error_clear(err); /* what was cut out on the way is told by its own end */
    return status;
}
