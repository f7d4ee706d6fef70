/* SPDX-License-Identifier: MIT
 *
 * fetch.c: stored rows, read again under lock: at the end of their lease, before their handler runs in the transaction,
 * or by who has no lease and judges them anew.
 *
 * Invariant: a leased item whose row is not `processing` under the very token of its lease is fenced: it neither runs
 * nor changes the row. A row that reached its end all the same (an unknown commit that was done, another worker) tells
 * that end.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/version.h"
#include "core/work.h"

static int cmp_id(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    int c = semel__str_cmp(a->msg->source, b->msg->source);
    return c != 0 ? c : semel__str_cmp(a->msg->id, b->msg->id);
}

static bool still_ours(const struct item *item, const struct semel_fetched *found)
{
    if (!found->present || found->damaged || found->row.live.state != SEMEL_STATE_PROCESSING)
        return false;
#ifdef SEMEL_MUTANT_NO_TOKEN
    (void)item;
    return true;
#else
    return found->row.live.lease_token == item->lease->live.lease_token;
#endif
}

static void judge(const struct work *work, struct item *item, struct semel_fetched *found)
{
    found->present = found->present && (item->key == NULL || !item->key->busy);
    if (found->present && !found->damaged && item->key != NULL && item->key->damaged) {
        found->damaged = true;
        semel__version_damaged(&found->damage);
    }
    bool ours = work_leased(work) && still_ours(item, found);
    item->row = found->present && !found->damaged ? &found->row : NULL;
    item->damage = found->damaged ? found->damage : (struct semel_error){0};
    item->admit = NULL;
    item->had_head = item->key != NULL && item->key->head_arrival != SEMEL_NONE;
    item->changed = item->removed = item->ended = false;
    item->fenced = work_leased(work) && !ours;
    item->verdict = (struct semel__verdict){.act = ours ? SEMEL_RUN : SEMEL_LATER,
                                            .why = SEMEL_WHY_BUSY,
                                            .due_us = SEMEL_NONE};
    if (item->row != NULL)
        item->live = item->row->live;
    if (!ours)
        return;
    item->verdict.why = item->live.attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW;
    item->verdict.attempt = item->live.attempts;
}

/* A leased item runs only as the first of its key, or right behind the ones of its key that run in the same
 * transaction. If one before it has failed meanwhile, it is given back and parks. */
static void keep_order(struct work *work)
{
    const struct semel_key *key = NULL;
    bool first = false;
    for (size_t i = 0; i < work->n; i++) {
        struct item *item = work->items[i];
        if (item->key == NULL)
            continue;
        if (item->key != key)
            first = item->row != NULL && item->key->head_arrival == item->row->arrival;
        key = item->key;
        first = first && !item->fenced;
        if (first || item->fenced)
            continue;
        item->verdict = (struct semel__verdict){.act = SEMEL_ACK, .why = SEMEL_WHY_BLOCKED, .due_us = SEMEL_NONE};
        semel__live_release(&item->row->live, work->now_us, &item->live);
        item->changed = true;
    }
}

semel_status semel__work_fetch(struct work *work, struct semel_error *err)
{
    struct semel_arena *arena = &work->inbox->scratch;
    struct item **sorted = semel__arena_alloc(arena, work->n, sizeof *sorted);
    struct semel_fetched *found = semel__arena_alloc(arena, work->n, sizeof *found);
    if (sorted == NULL || found == NULL)
        return semel__fail_memory(err);
    work->batch = (struct semel_admit_batch){.consumer = work->inbox->policy->consumer, .now_us = work->now_us};
    semel_status status = semel__work_keys(work, err);
    if (status == SEMEL_OK && work_starts(work))
        status = semel__work_business(work, err);
    if (status != SEMEL_OK)
        return status;
    memcpy(sorted, work->items, work->n * sizeof *sorted);
    semel__sort(sorted, work->n, sizeof *sorted, cmp_id);
    for (size_t i = 0; i < work->n; i++) {
        found[i].source = sorted[i]->msg->source;
        found[i].id = sorted[i]->msg->id;
        found[i].frees = sorted[i]->frees || work->mode == WORK_RUN_LEASED;
    }
    struct semel_fetch_batch batch = {.consumer = work->inbox->policy->consumer,
                                      .now_us = work->now_us,
                                      .impatient = work_impatient(work),
                                      .keys = work->keys,
                                      .n_keys = work->n_keys,
                                      .business = work->batch.business,
                                      .n_business = work->batch.n_business,
                                      .items = found,
                                      .n_items = work->n};
    status = semel_store_fetch(work->inbox->store, &batch, arena, err);
    semel__work_keys_read(work);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++)
        judge(work, sorted[i], &found[i]);
    if (status == SEMEL_OK && work->mode == WORK_RUN_LEASED)
        keep_order(work);
    return status;
}
