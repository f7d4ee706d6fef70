/* SPDX-License-Identifier: MIT
 *
 * settle.c: the second half of a transaction: it writes what the items have become. inbox.c reports it afterwards.
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
#include "core/version.h"
#include "core/work.h"

/* ---- writing ------------------------------------------------------------------------------------- */

static bool fresh(const struct item *item)
{
    return item->admit != NULL && item->admit->inserted;
}

static enum semel_payload payload_action(const struct work *work, const struct item *item)
{
    bool stored = fresh(item) ? item->admit->row.kept : item->row->kept;
    bool held = item->live.state == SEMEL_STATE_DEAD || item->live.state == SEMEL_STATE_QUARANTINED;
    bool stays = semel__payload_stays(work->inbox->policy, item->live.state) ||
                 (held &&
                  semel__msg_large(work->inbox->policy, item->msg)); /* else nobody has it: it is acknowledged */
    if (stored && !stays && semel__state_final(item->live.state))
        return SEMEL_PAYLOAD_CLEAR; /* not before, whatever the route has come to say of payloads */
    return !stored && stays && semel__str_given(item->msg->payload) ? SEMEL_PAYLOAD_PUT : SEMEL_PAYLOAD_AS_IS;
}

/* A clock that stepped back shows no two changes alike; what was claimed is not older than its token. */
static int64_t updated_us(const struct work *work, const struct item *item)
{
    int64_t before = fresh(item) ? item->admit->row.updated_us : item->row->updated_us;
    int64_t now = work->now_us >= before ? work->now_us : semel__time_add(before, 1);
    int64_t given = item->live.lease_token != SEMEL_NONE ? semel__token_us(item->live.lease_token) : now;
    return given > now ? given : now;
}

/* What ends without an effect gives its business keys back (P78). One that began and is stale or prevented since may
 * have had one where a call may be repeated by its key, and is then not asked about: they stay. */
static bool frees_business(const struct work *work, const struct item *item)
{
    const enum semel_state state = item->live.state;
    if ((state != SEMEL_STATE_STALE && state != SEMEL_STATE_PREVENTED) || item->row == NULL)
        return state == SEMEL_STATE_REJECTED;
    return work->inbox->policy->effect != SEMEL_EFFECT_KEYED;
}

/* What goes back to waiting has had no effect, and a parked message holds no business key: it wishes for its keys. But
 * an earlier attempt may have had one where a call may be repeated by its key: they stay. */
static bool returns_business(const struct work *work, const struct item *item)
{
    return item->changed && item->row != NULL && item->live.state == SEMEL_STATE_WAITING &&
           item->row->live.state != SEMEL_STATE_WAITING &&
           (work->inbox->policy->effect != SEMEL_EFFECT_KEYED || item->live.attempts == 0);
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
        .release_business = frees_business(work, item) || returns_business(work, item),
        .wish_business = returns_business(work, item),
    };
}

static int cmp_change(const void *va, const void *vb)
{
    const struct semel_change *a = va, *b = vb;
    int c = semel__str_cmp(a->source, b->source);
    return c != 0 ? c : semel__str_cmp(a->id, b->id);
}

/* How far the key has come by this item. false: no memory. */
static bool move_key(const struct work *work, const struct item *item, struct semel_key *key)
{
    if (!key->by_version || !(item->changed || fresh(item)))
        return true;
    return semel__version_move(work->inbox->policy, key, item->msg->version,
                               item->removed ? SEMEL_STATE_ABSENT : item->live.state, fresh(item),
                               &work->inbox->scratch);
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

/* By versions, an earlier one may come while a later one is at its effect: who has an older snapshot has to notice. */
static bool opens(const struct item *item)
{
    return item->changed && item->row != NULL && item->key->by_version &&
           open_(item->row->live.state) != open_(item->live.state);
}

static semel_status add_key_change(const struct work *work, const struct item *item, struct semel_key_change *keys,
                                   size_t *n, struct semel_error *err)
{
    if (item->key == NULL || item->fenced)
        return SEMEL_OK;
    struct semel_key *key = &work->found[item->key - work->keys], before = *key;
    if (!move_key(work, item, key))
        return semel__fail_memory(err);
    bool was = item->row != NULL && !fresh(item) && semel__live_in_order(&item->row->live);
    bool is = (item->changed || fresh(item)) ? !item->removed && semel__live_in_order(&item->live) : was;
    bool advance = key->last_version != before.last_version;
    bool skips = key->skipped != before.skipped || key->n_skipped != before.n_skipped;
    bool wake = (was && !is) || (advance && item->had_head) || made_way(item);
    if (was == is && !advance && !skips && !wake && !opens(item))
        return SEMEL_OK;
    if (*n == 0 || !semel__str_eq(keys[*n - 1].key, key->key))
        keys[(*n)++] = (struct semel_key_change){.key = key->key,
                                                 .last_version = SEMEL_NONE,
                                                 .by_version = key->by_version};
    struct semel_key_change *change = &keys[*n - 1];
    if (advance)
        change->last_version = key->last_version;
    change->skips |= skips;
    change->skipped = key->skipped;
    change->n_skipped = key->n_skipped;
    change->wake |= wake;
    return SEMEL_OK;
}

/* ---- business keys ------------------------------------------------------------------------------- */

/* Business keys that this transaction took for a message which then did not start, and was not called done. */
static size_t list_drops(const struct work *work, struct semel_business *drop)
{
    size_t n = 0;
    for (size_t i = 0; i < work->batch.n_business; i++) {
        const struct item *holder = work->holders[i];
        bool resolved = holder->changed && holder->live.state == SEMEL_STATE_COMPLETED;
        if (work->batch.business[i].inserted && holder->verdict.act != SEMEL_RUN && !resolved)
            drop[n++] = work->batch.business[i];
    }
    return n;
}

/* A delivery that is stored, or finds its row stored, and does not start here: what it names is remembered until its
 * start. Not from one that names other keys than its row wishes for already: a message has few. */
static bool keeps_wishes(const struct item *item)
{
    if (item->admit == NULL || item->verdict.act == SEMEL_RUN || semel__state_final(item->live.state))
        return false;
    if (item->row == NULL)
        return fresh(item) && item->changed;
    return item->live.state != SEMEL_STATE_PROCESSING && item->verdict.why != SEMEL_WHY_CONFLICT && !item->deferred &&
           !semel__item_wishes_more(item);
}

/* Its own and those that it wishes for already are not repeated. What is not fit to run was not asked for here. */
static bool is_new_wish(const struct work *work, const struct item *item, struct semel_str key)
{
    if (!semel__str_given(key) || item->row == NULL)
        return semel__str_given(key);
    for (size_t i = 0; i < item->row->n_wants; i++)
        if (semel__str_eq(item->row->wants[i], key))
            return false;
    return item->msg->defect == SEMEL_DEFECT_NONE && !semel__item_holds(work, item, key);
}

/* It starts, or has reached its end. */
static bool loses_wishes(const struct item *item)
{
    return !fresh(item) && item->row != NULL && item->row->n_wants > 0 && item->changed &&
           (item->verdict.act == SEMEL_RUN || semel__state_final(item->live.state));
}

static semel_status list_wishes(struct work *work, struct semel_settle_batch *batch, struct semel_error *err)
{
    size_t room = 0;
    for (size_t i = 0; i < work->n; i++)
        room += keeps_wishes(work->items[i]) ? work->items[i]->msg->n_business : 0;
    struct semel_want *wants = semel__arena_alloc(&work->inbox->scratch, room + 1, sizeof *wants);
    struct semel_want *granted = semel__arena_alloc(&work->inbox->scratch, work->n, sizeof *granted);
    if (wants == NULL || granted == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < work->n; i++) {
        const struct semel__msg *msg = work->items[i]->msg;
        for (size_t k = 0; keeps_wishes(work->items[i]) && k < msg->n_business; k++)
            if (is_new_wish(work, work->items[i], msg->business[k]))
                wants[batch->n_wants++] = (struct semel_want){msg->business[k], msg->source, msg->id};
        if (loses_wishes(work->items[i]))
            granted[batch->n_granted++] = (struct semel_want){.source = msg->source, .id = msg->id};
    }
    batch->wants = wants;
    batch->granted = granted;
    return SEMEL_OK;
}

/* A key does not expire while its holder is unfinished: its time counts from the holder's end. */
static semel_status list_holds(struct work *work, struct semel_settle_batch *batch, struct semel_error *err)
{
    int64_t keep_us = work->inbox->policy->business_retention_us;
    if (keep_us == SEMEL_NONE)
        return SEMEL_OK;
    struct semel_hold *holds = semel__arena_alloc(&work->inbox->scratch, work->n, sizeof *holds);
    if (holds == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < work->n; i++) {
        const struct item *item = work->items[i];
        if (!item->changed || item->removed || frees_business(work, item) || returns_business(work, item))
            continue;
        holds[batch->n_holds++] = (struct semel_hold){item->msg->source, item->msg->id,
                                                      semel__state_final(item->live.state)
                                                          ? semel__time_add(work->now_us, keep_us)
                                                          : SEMEL_NONE};
    }
    batch->holds = holds;
    return SEMEL_OK;
}

/* ---- evidence ------------------------------------------------------------------------------------ */

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

static size_t list_conflicts(const struct work *work, const struct semel__msg **conflicts)
{
    size_t n = 0;
    for (size_t i = 0; i < work->n; i++) {
        const struct item *item = work->items[i];
        bool conflict = item->verdict.why == SEMEL_WHY_CONFLICT;
        if (conflict && conflicts != NULL)
            conflicts[n] = evidence(work, item->msg);
        n += conflict;
        /* Copies are recorded where their item is admitted to stay: not again when its lease ends. */
        bool admitted = item->lease == NULL && !item->deferred;
        for (const struct copy *copy = item->copies; copy != NULL && admitted; copy = copy->next) {
            if (!copy->conflict)
                continue;
            if (conflicts != NULL)
                conflicts[n] = evidence(work, copy->msg);
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
                                       .now_us = work->now_us,
                                       .impatient = work_impatient(work)};
    size_t n_conflicts = list_conflicts(work, NULL);
    batch.changes = semel__arena_alloc(arena, work->n, sizeof *batch.changes);
    batch.keys = semel__arena_alloc(arena, work->n, sizeof *batch.keys);
    struct semel_business *drop = semel__arena_alloc(arena, work->batch.n_business + 1, sizeof *drop);
    const struct semel__msg **conflicts = semel__arena_alloc(arena, n_conflicts + 1, sizeof *conflicts);
    struct semel_note *notes = semel__arena_alloc(arena, work->n, sizeof *notes);
    if (batch.changes == NULL || batch.keys == NULL || drop == NULL || conflicts == NULL || notes == NULL)
        return semel__fail_memory(err);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++) {
        if (work->items[i]->changed || work->items[i]->removed)
            fill_change(work, work->items[i], &batch.changes[batch.n_changes++]);
        status = add_key_change(work, work->items[i], batch.keys, &batch.n_keys, err);
    }
    if (status != SEMEL_OK)
        return status;
    semel__sort(batch.changes, batch.n_changes, sizeof *batch.changes, cmp_change);
    batch.drop = drop;
    batch.n_drop = list_drops(work, drop);
    batch.conflicts = conflicts;
    batch.n_conflicts = list_conflicts(work, conflicts);
    for (size_t i = 0; i < batch.n_conflicts; i++)
        if (conflicts[i] == NULL)
            return semel__fail_memory(err);
    batch.notes = notes;
    list_notes(work, notes, &batch.n_notes);
    status = list_wishes(work, &batch, err);
    if (status == SEMEL_OK)
        status = list_holds(work, &batch, err);
    if (status != SEMEL_OK)
        return status;
    if (batch.n_changes + batch.n_keys + batch.n_drop + batch.n_wants + batch.n_conflicts + batch.n_notes == 0)
        return SEMEL_OK;
    status = semel_store_settle(inbox->store, &batch, err);
    return status == SEMEL_OK ? check_applied(&batch, err) : status;
}
