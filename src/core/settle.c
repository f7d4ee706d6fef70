/* SPDX-License-Identifier: MIT
 *
 * settle.c: the second half of a transaction: what the items have become is written. After the commit tell.c tells it.
 *
 * Invariants: a key of which a row entered or left the unfinished set is always among the key changes; a key whose
 * first row may have changed is woken, in the same transaction, so that nothing parked is ever forgotten; nothing is
 * told before the commit.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/state.h"
#include "core/work.h"

/* ---- writing ------------------------------------------------------------------------------------- */

static bool fresh(const struct item *item)
{
    return item->admit != NULL && item->admit->inserted;
}

static enum semel_state state_before(const struct item *item)
{
    return fresh(item) || item->row == NULL ? SEMEL_STATE_ABSENT : item->row->live.state;
}

static enum semel_payload payload_action(const struct work *work, const struct item *item)
{
    bool stored = fresh(item) ? item->admit->row.kept : item->row->kept;
    bool stays = semel__payload_stays(work->inbox->policy, item->live.state);
    if (stored && !stays && semel__state_final(item->live.state))
        return SEMEL_PAYLOAD_CLEAR; /* not before, whatever the route has come to say of payloads */
    return !stored && stays && semel__str_given(item->msg->payload) ? SEMEL_PAYLOAD_PUT : SEMEL_PAYLOAD_AS_IS;
}

/* A clock that stepped back shows no two changes alike; what was claimed is not older than its token. */
static int64_t updated_us(const struct work *work, const struct item *item)
{
    int64_t before = fresh(item) ? item->admit->row.updated_us : item->row->updated_us;
    int64_t now = work->now_us >= before ? work->now_us : before + 1;
    int64_t given = item->live.lease_token != SEMEL_NONE ? semel__token_us(item->live.lease_token) : now;
    return given > now ? given : now;
}

static void fill_change(const struct work *work, const struct item *item, struct semel_change *change)
{
    *change = (struct semel_change){
        .source = item->msg->source,
        .id = item->msg->id,
        .from = fresh(item) ? item->admit->row.live.state : item->row->live.state,
        .fresh = fresh(item),
        .token = item->lease != NULL ? item->lease->live.lease_token : SEMEL_NONE,
        .live = item->live,
        .updated_us = updated_us(work, item),
        .remove = item->removed,
        .payload = item->removed ? SEMEL_PAYLOAD_AS_IS : payload_action(work, item),
        .put = item->msg,
        .log_attempt = item->ended,
        .release_business = item->live.state == SEMEL_STATE_REJECTED,
    };
}

static int cmp_change(const void *va, const void *vb)
{
    const struct semel_change *a = va, *b = vb;
    int c = semel__str_cmp(a->source, b->source);
    return c != 0 ? c : semel__str_cmp(a->id, b->id);
}

/* Does this end count as the version's turn? What was prevented was done under another id. */
static bool advances(const struct item *item)
{
    const struct semel_key *key = item->key;
    if (!key->by_version || item->msg->version == SEMEL_NONE || !(item->changed || fresh(item)))
        return false;
    /* A quarantined row had no place in the order: what is said of it moves the key only if it is the next. */
    if (item->row != NULL && item->row->live.state == SEMEL_STATE_QUARANTINED)
        return key->last_version != SEMEL_NONE && key->last_version + 1 == item->msg->version;
    switch (item->live.state) {
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
        return true;
    case SEMEL_STATE_PREVENTED:
        return item->turn;
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_PROCESSING:
    case SEMEL_STATE_FAILED:
    case SEMEL_STATE_WAITING:
    case SEMEL_STATE_UNKNOWN:
    case SEMEL_STATE_DEAD:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_QUARANTINED:
    case SEMEL_STATE_COUNT:
        return false;
    }
    return false;
}

static bool open_(enum semel_state state)
{
    return state == SEMEL_STATE_PROCESSING || state == SEMEL_STATE_UNKNOWN;
}

/* A later version had its turn before the first of the key, and had no effect: the first may have waited for that. */
static bool made_way(const struct item *item)
{
    return item->changed && item->row != NULL && open_(item->row->live.state) && !open_(item->live.state) &&
           item->key->head_arrival != item->row->arrival;
}

static void add_key_change(const struct item *item, struct semel_key_change *keys, size_t *n)
{
    if (item->key == NULL || item->removed || item->fenced)
        return;
    bool was = semel__state_unfinished(state_before(item));
    bool is = (item->changed || fresh(item)) ? semel__state_unfinished(item->live.state) : was;
    bool advance = advances(item);
    bool wake = (was && !is) || (advance && item->had_head) || made_way(item);
    if (was == is && !advance && !wake)
        return;
    if (*n == 0 || !semel__str_eq(keys[*n - 1].key, item->key->key))
        keys[(*n)++] = (struct semel_key_change){.key = item->key->key,
                                                 .last_version = SEMEL_NONE,
                                                 .by_version = item->key->by_version};
    struct semel_key_change *key = &keys[*n - 1];
    if (advance && (key->last_version == SEMEL_NONE || key->last_version < item->msg->version))
        key->last_version = item->msg->version;
    key->wake |= wake;
}

/* Business keys that this transaction took for a message which then was not accepted. */
static size_t list_drops(const struct work *work, struct semel_business *drop)
{
    size_t n = 0;
    for (size_t i = 0; i < work->batch.n_business; i++) {
        const struct item *holder = work->holders[i];
        bool parked = fresh(holder) && !holder->removed && holder->live.state == SEMEL_STATE_WAITING;
        if (work->batch.business[i].inserted && holder->verdict.act != SEMEL_RUN && !parked)
            drop[n++] = work->batch.business[i];
    }
    return n;
}

/* The message as it may be kept: without its payload where the route never keeps one. */
static const struct semel__msg *evidence(const struct work *work, const struct semel__msg *msg)
{
    struct semel__msg *bare;
    if (work->inbox->policy->keep != SEMEL_KEEP_NEVER)
        return msg;
    bare = semel__arena_alloc(&work->inbox->scratch, 1, sizeof *bare);
    if (bare == NULL)
        return NULL;
    *bare = *msg;
    bare->payload = bare->headers = (struct semel_str){0};
    return bare;
}

static size_t list_conflicts(const struct work *work, struct semel_conflict *conflicts)
{
    size_t n = 0;
    for (size_t i = 0; i < work->n; i++) {
        const struct item *item = work->items[i];
        bool conflict = item->verdict.why == SEMEL_WHY_CONFLICT;
        if (conflict && conflicts != NULL)
            conflicts[n].msg = evidence(work, item->msg);
        n += conflict;
        /* Copies are recorded where their item is admitted to stay: not again when its lease ends. */
        bool admitted = item->lease == NULL && !item->deferred;
        for (const struct copy *copy = item->copies; copy != NULL && admitted; copy = copy->next) {
            if (!copy->conflict)
                continue;
            if (conflicts != NULL)
                conflicts[n].msg = evidence(work, copy->msg);
            n++;
        }
    }
    return n;
}

static void list_notes(const struct work *work, struct semel_note *notes, size_t *n)
{
    for (size_t i = 0; i < work->n; i++) {
        const struct item *item = work->items[i];
        if (item->fenced && item->row != NULL && item->ending.text.p != NULL)
            notes[(*n)++] = (struct semel_note){item->msg->source, item->msg->id, item->lease->live.attempts,
                                                SEMEL_CLASS_LEASE, item->ending.text};
    }
}

static semel_status check_applied(const struct semel_settle_batch *batch, struct semel_error *err)
{
    for (size_t i = 0; i < batch->n_changes; i++)
        if (!batch->changes[i].applied)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "an inbox row changed while it was held");
    return SEMEL_OK;
}

semel_status semel__work_settle(struct work *work, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    struct semel_arena *arena = &inbox->scratch;
    struct semel_settle_batch batch = {.consumer = inbox->policy->consumer,
                                       .worker = inbox->owner,
                                       .now_us = work->now_us};
    size_t n_conflicts = list_conflicts(work, NULL);
    batch.changes = semel__arena_alloc(arena, work->n, sizeof *batch.changes);
    batch.keys = semel__arena_alloc(arena, work->n, sizeof *batch.keys);
    struct semel_business *drop = semel__arena_alloc(arena, work->batch.n_business + 1, sizeof *drop);
    struct semel_conflict *conflicts = semel__arena_alloc(arena, n_conflicts + 1, sizeof *conflicts);
    struct semel_note *notes = semel__arena_alloc(arena, work->n, sizeof *notes);
    if (batch.changes == NULL || batch.keys == NULL || drop == NULL || conflicts == NULL || notes == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < work->n; i++) {
        if (work->items[i]->changed || work->items[i]->removed)
            fill_change(work, work->items[i], &batch.changes[batch.n_changes++]);
        add_key_change(work->items[i], batch.keys, &batch.n_keys);
    }
    semel__sort(batch.changes, batch.n_changes, sizeof *batch.changes, cmp_change);
    batch.drop = drop;
    batch.n_drop = list_drops(work, drop);
    batch.conflicts = conflicts;
    batch.n_conflicts = list_conflicts(work, conflicts);
    for (size_t i = 0; i < batch.n_conflicts; i++)
        if (conflicts[i].msg == NULL)
            return semel__fail_memory(err);
    batch.notes = notes;
    list_notes(work, notes, &batch.n_notes);
    if (batch.n_changes + batch.n_keys + batch.n_drop + batch.n_conflicts + batch.n_notes == 0)
        return SEMEL_OK;
    semel_status status = semel_store_settle(inbox->store, &batch, err);
    return status == SEMEL_OK ? check_applied(&batch, err) : status;
}
