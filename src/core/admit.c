/* SPDX-License-Identifier: MIT
 *
 * admit.c: what one transaction reads and writes. Its first half gets facts from the store and a verdict for every
 * item: deliveries are admitted, stored rows are fetched. Its second half writes what the items have become. After the
 * commit inbox.c reports it.
 *
 * The store gets three sorted lists (order keys, business keys, rows) and answers with facts as they were before this
 * batch. Within the batch the facts run on: a message that is parked blocks those of its key behind it, one that runs
 * raises the version of its key. So items are judged one after the other, in run order. Stored rows are read again
 * under lock: at the end of their lease, before their handler runs in the transaction, or by who has no lease and
 * judges them anew.
 *
 * Invariants: a business key is taken by a start, in its transaction: it is inserted for the first item that wants it,
 * and given up again when that one does not start. An item is `prevented` by another one of the same batch only if that
 * one completes in this transaction; otherwise the work is cut, and each is judged without the other. A leased item
 * whose row is not `processing` under the very token of its lease is fenced: it neither runs nor changes the row. A row
 * that reached its end all the same (an unknown commit that was done, another worker) reports that end. A key of which
 * a row entered or left the unfinished set is always among the key changes; a key whose first row may have changed is
 * woken, in the same transaction, so that nothing parked is ever forgotten; nothing is reported before the commit. If
 * an item is left out of its transaction (inbox.c), nothing is written for it: the row that was inserted goes again.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/state.h"
#include "core/version.h"
#include "core/work.h"

/* ---- the three lists ----------------------------------------------------------------------------- */

static bool ordered(const struct work *work, const struct item *item)
{
    return work->inbox->policy->order != SEMEL_ORDER_NONE && semel__str_given(item->msg->order_key);
}

/* Items come in run order, so equal keys are neighbours and keys ascend. */
static semel_status work_keys(struct work *work, struct semel_error *err)
{
    size_t n = 0, room = 0;
    for (size_t i = 0; i < work->n; i++)
        room += ordered(work, work->items[i]);
    struct semel_key *keys = semel__arena_alloc(&work->inbox->scratch, 2 * room, sizeof *keys);
    if (keys == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < work->n; i++) {
        struct item *item = work->items[i];
        item->key = NULL;
        if (!ordered(work, item))
            continue;
        if (n == 0 || !semel__str_eq(keys[n - 1].key, item->msg->order_key))
            keys[n++] = (struct semel_key){.key = item->msg->order_key,
                                           .by_version = work->inbox->policy->order == SEMEL_ORDER_VERSION,
                                           .last_version = SEMEL_NONE,
                                           .head_arrival = SEMEL_NONE,
                                           .head_version = SEMEL_NONE};
        item->key = &keys[n - 1];
    }
    work->keys = keys;
    work->found = keys + room;
    work->n_keys = n;
    return SEMEL_OK;
}

static void work_keys_read(struct work *work)
{
    for (size_t i = 0; i < work->n_keys; i++)
        work->found[i] = work->keys[i];
}

struct want {
    struct semel_str key;
    const struct item *item;
};

static int cmp_want(const void *va, const void *vb)
{
    const struct want *a = va, *b = vb;
    int c = semel__str_cmp(a->key, b->key);
    return c != 0 ? c : (a->item->place > b->item->place) - (a->item->place < b->item->place);
}

static semel_status work_business(struct work *work, struct semel_error *err)
{
    struct semel_arena *arena = &work->inbox->scratch;
    size_t n = 0, kept = 0;
    for (size_t i = 0; i < work->n; i++)
        n += work->items[i]->msg->n_business;
    if (n == 0)
        return SEMEL_OK;
    struct want *wants = semel__arena_alloc(arena, n, sizeof *wants);
    struct semel_business *business = semel__arena_alloc(arena, n, sizeof *business);
    work->holders = semel__arena_alloc(arena, n, sizeof *work->holders);
    if (wants == NULL || business == NULL || work->holders == NULL)
        return semel__fail_memory(err);
    n = 0;
    for (size_t i = 0; i < work->n; i++)
        for (size_t k = 0; k < work->items[i]->msg->n_business; k++)
            if (semel__str_given(work->items[i]->msg->business[k]) && work->items[i]->msg->defect == SEMEL_DEFECT_NONE)
                wants[n++] = (struct want){work->items[i]->msg->business[k], work->items[i]};
    semel__sort(wants, n, sizeof *wants, cmp_want);
    /* A message that does not end in this transaction holds its keys without a limit. */
    int64_t keep_us = work_claims(work) ? SEMEL_NONE : work->inbox->policy->business_retention_us;
    for (size_t i = 0; i < n; i++) {
        if (kept > 0 && semel__str_eq(business[kept - 1].key, wants[i].key))
            continue;
        work->holders[kept] = wants[i].item;
        business[kept++] = (struct semel_business){
            .key = wants[i].key,
            .source = wants[i].item->msg->source,
            .id = wants[i].item->msg->id,
            .expires_us = keep_us == SEMEL_NONE ? SEMEL_NONE : semel__time_add(work->now_us, keep_us),
        };
    }
    work->batch.business = business;
    work->batch.n_business = kept;
    return SEMEL_OK;
}

struct seat {
    struct item *item;
    size_t place;
};

/* A message that is stored to be run later, before anybody has tried it. */
static void progress_stored(int64_t due_us, int64_t now_us, struct semel_progress *ret)
{
    static const struct semel_progress unborn = {.due_us = SEMEL_NONE,
                                                 .processed_us = SEMEL_NONE,
                                                 .lease_until_us = SEMEL_NONE,
                                                 .lease_token = SEMEL_NONE};
    const struct semel__verdict waits = {.act = SEMEL_ACK,
                                         .changes = true,
                                         .becomes = SEMEL_ROW_WAITING,
                                         .due_us = due_us > now_us ? due_us : now_us};
    semel__progress_verdict(&waits, &unborn, (struct semel_str){0}, now_us, ret);
}

/* The row as it is inserted: completed when the handler runs in this transaction, processing when it is claimed,
 * waiting when it is stored. A different end is written over it. */
static void fill_row(struct work *work, const struct item *item, struct semel_row *row)
{
    const struct semel__msg *msg = item->msg;
    const struct semel_policy *policy = work->inbox->policy;
    struct semel_progress before = {.due_us = SEMEL_NONE,
                                    .processed_us = SEMEL_NONE,
                                    .lease_until_us = SEMEL_NONE,
                                    .lease_token = SEMEL_NONE};
    *row = (struct semel_row){
        .source = msg->source,
        .id = msg->id,
        .type = msg->type,
        .fp = msg->fp,
        .order_key = msg->order_key,
        .version = msg->version,
        .message_time_us = msg->message_time_us,
        .received_us = work->now_us,
        .updated_us = work->now_us,
        .position = msg->position,
        .headers = msg->headers,
        .payload = msg->payload,
        .traceparent = msg->traceparent,
    };
    if (work->mode == WORK_STORE) {
        progress_stored(msg->not_before_us, work->now_us, &row->progress);
    } else if (!work_claims(work)) {
        semel__progress_complete(&before, work->now_us, &row->progress);
    } else {
        int64_t token = semel__work_token(work, NULL), given_us = semel__token_us(token);
        semel__progress_claim(policy, &before, work->inbox->owner, work_alone(work), token, work->now_us,
                              &row->progress);
        row->updated_us = given_us > work->now_us ? given_us : work->now_us;
    }
    row->kept = semel__payload_stays(policy, row->progress.state) && semel__str_given(msg->payload);
}

/* Ages count from the time that the message gives, by the clock of the store. */
static void take_time(const struct work *work, struct semel__msg *msg)
{
    msg->message_time_us = semel__msg_time(work->inbox->policy, msg, work->now_us);
    if (!msg->timed || msg->message_time_us != SEMEL_NONE || msg->defect != SEMEL_DEFECT_NONE)
        return;
    msg->defect = SEMEL_DEFECT_FIELD;
    msg->defect_text = SEMEL_STR("time: there is none: the id is no UUIDv7 or ULID from 2010 to tomorrow, and there is "
                                 "no header ce_time (timed_ids)");
}

static int cmp_place(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    return (a->place > b->place) - (a->place < b->place);
}

/* Rows ascend by (source, id), as the ranks of the items do. Their places are those among the items of this work. */
static semel_status list_rows(struct work *work, struct semel_error *err)
{
    struct semel_arena *arena = &work->inbox->scratch;
    size_t n = 0, ranks = 0;
    for (size_t i = 0; i < work->n; i++)
        ranks = work->items[i]->rank >= ranks ? work->items[i]->rank + 1 : ranks;
    struct semel_admit *rows = semel__arena_room(arena, work->n, sizeof *rows);
    struct item **items = semel__arena_room(arena, work->n, sizeof *items);
    struct seat *seats = semel__arena_alloc(arena, ranks, sizeof *seats);
    if (rows == NULL || items == NULL || seats == NULL)
        return semel__fail_memory(err);
    memcpy(items, work->items, work->n * sizeof *items);
    semel__sort(items, work->n, sizeof *items, cmp_place);
    for (size_t i = 0; i < work->n; i++)
        seats[items[i]->rank] = (struct seat){items[i], i};
    for (size_t i = 0; i < ranks; i++) {
        struct item *item = seats[i].item;
        if (item == NULL)
            continue;
        take_time(work, item->msg);
        fill_row(work, item, &rows[n].row);
        rows[n].place = seats[i].place;
        rows[n].inserted = rows[n].damaged = false;
        rows[n].found.progress.state = SEMEL_ROW_ABSENT;
        rows[n].watermark_us = SEMEL_NONE;
        item->admit = &rows[n++];
    }
    work->batch.items = rows;
    work->batch.n_items = work->n;
    return SEMEL_OK;
}

/* ---- verdicts ------------------------------------------------------------------------------------ */

static struct semel_business *find_business(const struct work *work, struct semel_str key)
{
    size_t low = 0, high = work->batch.n_business;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = semel__str_cmp(work->batch.business[mid].key, key);
        if (c == 0)
            return &work->batch.business[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static bool names(struct semel_str source, struct semel_str id, const struct semel__msg *msg)
{
    return semel__str_eq(source, msg->source) && semel__str_eq(id, msg->id);
}

/* A business key that is the message's own, without a row, was left by a purge: its work is done (P73). */
static enum semel_intent intent_of(const struct work *work, const struct item *item,
                                   const struct semel_business *business)
{
    if (business->taken && !names(business->held_source, business->held_id, item->msg))
        return business->unfinished ? SEMEL_INTENT_BUSY : SEMEL_INTENT_DONE;
    if (business->taken || names(business->source, business->id, item->msg))
        return business->inserted || item->row != NULL ? SEMEL_INTENT_FREE : SEMEL_INTENT_DONE;
    if (work->mode == WORK_STORE)
        return SEMEL_INTENT_FREE; /* no message starts here */
    return work_claims(work) || work_starts(work) ? SEMEL_INTENT_BUSY : SEMEL_INTENT_DONE;
}

void semel__item_intent(const struct work *work, const struct item *item, struct semel_facts *facts)
{
    facts->intent = SEMEL_INTENT_FREE;
    facts->intent_full = false;
    for (size_t i = 0; i < item->msg->n_business; i++) {
        const struct semel_business *business = find_business(work, item->msg->business[i]);
        enum semel_intent intent = business != NULL ? intent_of(work, item, business) : SEMEL_INTENT_FREE;
        if (intent > facts->intent)
            facts->intent = intent;
        facts->intent_full |= intent == SEMEL_INTENT_BUSY && business->wanted >= work->inbox->policy->parked_key_max;
    }
}

bool semel__item_judged_by(const struct work *work, const struct item *item, const struct item *failed)
{
    for (size_t i = 0; work->batch.n_business > 0 && i < item->msg->n_business; i++) {
        const struct semel_business *business = find_business(work, item->msg->business[i]);
        const struct item *holder = business != NULL ? work->holders[business - work->batch.business] : NULL;
        if (holder != NULL && holder != item && (holder == failed || holder->left))
            return true;
    }
    return false;
}

bool semel__item_wishes_more(const struct item *item)
{
    for (size_t i = 0; i < item->row->n_wants; i++) {
        bool named = false;
        for (size_t k = 0; !named && k < item->msg->n_business; k++)
            named = semel__str_eq(item->row->wants[i], item->msg->business[k]);
        if (!named)
            return true;
    }
    return false;
}

static bool item_holds(const struct work *work, const struct item *item, struct semel_str key)
{
    const struct semel_business *business = find_business(work, key);
    if (business == NULL || business->inserted)
        return false;
    return business->taken ? names(business->held_source, business->held_id, item->msg)
                           : names(business->source, business->id, item->msg);
}

/* The versions of the key, as the next item of this batch must see them. false: no memory. */
static bool move_key(struct work *work, const struct item *item)
{
    const struct semel__verdict *v = &item->verdict;
    bool runs = v->act == SEMEL_RUN;
    if (item->key == NULL || !item->key->by_version || !(runs || v->changes))
        return true;
    return semel__version_move(work->inbox->policy, item->key, item->msg->version,
                               !runs               ? v->becomes
                               : work_claims(work) ? SEMEL_ROW_PROCESSING
                                                   : SEMEL_ROW_COMPLETED,
                               item->row == NULL, &work->inbox->scratch);
}

/* The facts of the key, as the next item of this batch must see them. */
static void update_key_facts(struct work *work, struct item *item)
{
    struct semel_key *key = item->key;
    bool waiter = item->verdict.changes && item->verdict.becomes == SEMEL_ROW_WAITING &&
                  item->verdict.cls == SEMEL_CLASS_BUSINESS;
    bool parked = item->row == NULL && item->verdict.changes && semel__state_unfinished(item->verdict.becomes) &&
                  item->verdict.act != SEMEL_RUN && !waiter;
    int64_t arrival = item->row != NULL ? item->row->arrival : item->admit->row.arrival;
    int64_t version = item->msg->version;
    if (waiter && item->row == NULL && work->parked != SEMEL_NONE)
        work->parked++;
    if (key == NULL)
        return;
    if (item->verdict.act == SEMEL_RUN && !work_claims(work))
        return;
    bool left = work->mode == WORK_STORE && item->row != NULL; /* a row of before: it has a place in the key, or none */
    bool holds_place = parked || (item->verdict.act == SEMEL_RUN && !left);
    if (!holds_place)
        return;
    if (key->head_arrival == SEMEL_NONE || (key->by_version && version < key->head_version)) {
        key->head_arrival = arrival;
        key->head_version = version;
    }
    key->open |= item->verdict.act == SEMEL_RUN && work->mode != WORK_STORE;
    bool waits = parked ? item->verdict.becomes == SEMEL_ROW_WAITING : work->mode == WORK_STORE && item->row == NULL;
    key->parked += waits;
    if (waits && work->parked != SEMEL_NONE)
        work->parked++;
}

/* Messages of this batch that will wait count towards the bound of how many may want one business key. */
static void count_wishes(const struct work *work, const struct item *item)
{
    const struct semel__verdict *v = &item->verdict;
    bool stored = item->row == NULL && v->changes && v->act != SEMEL_RUN && v->becomes != SEMEL_ROW_ABSENT &&
                  !semel__state_final(v->becomes);
    for (size_t i = 0; stored && i < item->msg->n_business; i++) {
        struct semel_business *business = find_business(work, item->msg->business[i]);
        if (business != NULL)
            business->wanted++;
    }
}

/* After an unknown commit: is the row that is there the claim of our own first try? Then it runs under that lease. */
static void adopt(const struct work *work, struct item *item)
{
    if (item->adopt_until_us == SEMEL_NONE || item->row == NULL || item->row->progress.state != SEMEL_ROW_PROCESSING)
        return;
    if (item->row->progress.lease_until_us != item->adopt_until_us ||
        !semel__str_eq(item->row->progress.lease_owner, work->inbox->owner))
        return;
    int attempts = item->row->progress.attempts;
    item->verdict = (struct semel__verdict){.act = SEMEL_RUN,
                                            .why = attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW,
                                            .attempt = attempts,
                                            .due_us = SEMEL_NONE};
}

/* A message that failed before, or was caught in a crash, starts behind a committed claim of its own, never together
 * with others; one whose end is known already does not start at all. */
static void defer(const struct work *work, struct item *item)
{
    const bool together = !work_alone(work) && work->mode != WORK_STORE;
    if (!together || item->forced || item->row == NULL || item->verdict.act != SEMEL_RUN || !item->row->progress.alone)
        return;
    item->deferred = true;
    item->verdict = (struct semel__verdict){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
}

/* Does the delivery bring the payload of its row? */
static bool adopts(const struct work *work, const struct item *item)
{
    return item->verdict.why != SEMEL_WHY_CONFLICT && !item->deferred &&
           semel__payload_adopts(work->inbox->policy, item->msg, item->row);
}

/* The same message under another order key or version than its row has, or without the business keys that it wants: the
 * row keeps its place, the store runs it. */
static bool key_changed(const struct work *work, const struct item *item)
{
    const struct semel_policy *policy = work->inbox->policy;
    const struct semel_row *row = item->row;
    if (row == NULL || (row->progress.state != SEMEL_ROW_FAILED && row->progress.state != SEMEL_ROW_WAITING))
        return false;
    if (semel__item_wishes_more(item))
        return true;
    if (policy->order == SEMEL_ORDER_NONE)
        return false;
    if (!semel__str_eq(row->order_key, item->msg->order_key))
        return true;
    return policy->order == SEMEL_ORDER_VERSION && row->version != item->msg->version;
}

/* Messages above payload_max are counted only when one more comes. */
static semel_status count_large(struct work *work, const struct item *item, struct semel_error *err)
{
    const struct semel_policy *policy = work->inbox->policy;
    if (work->large != SEMEL_NONE || item->row != NULL || !semel__msg_large(policy, item->msg))
        return SEMEL_OK;
    return semel_store_large(work->inbox->store, policy->consumer, policy->payload_max, SEMEL_LARGE_MAX, &work->large,
                             err);
}

/* Parked messages are counted only when one more is about to be parked: a route may have many. Rows that a put has
 * inserted wait already, but whether they stay is just being judged: they are left out. */
static semel_status count_parked(struct work *work, struct semel_error *err)
{
    const struct semel_policy *policy = work->inbox->policy;
    int64_t own = 0, n = 0;
    for (size_t i = 0; work->mode == WORK_STORE && i < work->batch.n_items; i++)
        own += work->batch.items[i].inserted;
    semel_status status = semel_store_parked(work->inbox->store, policy->consumer, policy->parked_consumer_max + own,
                                             &n, err);
    work->parked = n - own;
    return status;
}

static semel_status judge_delivery(struct work *work, struct item *item, struct semel_facts *facts,
                                   struct semel_error *err)
{
    const struct semel_policy *policy = work->inbox->policy;
    semel_status status = count_large(work, item, err);
    if (status != SEMEL_OK)
        return status;
    facts->large = work->large;
    facts->route_parked = work->parked == SEMEL_NONE ? 0 : work->parked;
    semel__verdict_deliver(policy, item->msg, facts, &item->verdict);
    bool parks = item->row == NULL && item->verdict.changes && item->verdict.becomes == SEMEL_ROW_WAITING;
    if (work->large != SEMEL_NONE && item->row == NULL && semel__msg_large(policy, item->msg))
        work->large++;
    if (item->key != NULL && item->row == NULL && item->verdict.full && semel__msg_large(policy, item->msg))
        item->key->shut = true;
    if (!parks || work->parked != SEMEL_NONE)
        return SEMEL_OK;
    status = count_parked(work, err);
    facts->route_parked = work->parked;
    if (status == SEMEL_OK)
        semel__verdict_deliver(policy, item->msg, facts, &item->verdict);
    return status;
}

static semel_status judge(struct work *work, struct item *item, struct semel_error *err)
{
    struct semel_admit *admit = item->admit;
    const bool bad_key = item->key != NULL && item->key->damaged, damaged = admit->damaged || bad_key;
    item->deferred = item->left = false;
    item->row = admit->inserted || damaged ? NULL : &admit->found;
    item->had_head = item->key != NULL && item->key->head_arrival != SEMEL_NONE;
    if (bad_key)
        semel__version_damaged(&admit->damage);
    item->damage = damaged ? &admit->damage : NULL;
    struct semel_facts facts = {
        .now_us = work->now_us,
        .row = item->row,
        .damaged = damaged,
        .watermark_us = admit->watermark_us,
        .key = item->key,
    };
    semel__item_intent(work, item, &facts);
    semel_status status = judge_delivery(work, item, &facts, err);
    if (status != SEMEL_OK)
        return status;
    if (key_changed(work, item) && item->verdict.why != SEMEL_WHY_CONFLICT)
        item->verdict = (struct semel__verdict){.act = item->row->kept || adopts(work, item) ? SEMEL_ACK : SEMEL_LATER,
                                                .why = item->row->progress.state == SEMEL_ROW_WAITING
                                                           ? SEMEL_WHY_BLOCKED
                                                           : SEMEL_WHY_BACKOFF,
                                                .due_us = SEMEL_NONE};
    if (damaged) {
        item->verdict.changes = admit->inserted; /* the row goes, and the message stays with its source */
        item->verdict.becomes = SEMEL_ROW_ABSENT;
        return SEMEL_OK;
    }
    adopt(work, item);
    defer(work, item);
    update_key_facts(work, item);
    count_wishes(work, item);
    return move_key(work, item) ? SEMEL_OK : semel__fail_memory(err);
}

/* Others were judged as if this item, for which the key was taken, keeps it: is that so? It starts here; or the key was
 * its own already, and a purge has left it. */
static bool keeps_key(const struct semel_business *business, const struct item *holder)
{
    return holder->verdict.act == SEMEL_RUN || (!business->inserted && holder->row == NULL);
}

/* RETRY, contention: an item was judged by a business key that its holder in this batch does not get. */
static semel_status check_business(struct work *work, struct semel_error *err)
{
    for (size_t i = 0; i < work->n; i++) {
        const struct item *item = work->items[i];
        for (size_t k = 0;
             item->verdict.why == SEMEL_WHY_BUSINESS && item->verdict.changes && k < item->msg->n_business; k++) {
            const struct semel_business *business = find_business(work, item->msg->business[k]);
            if (business == NULL || business->taken || names(business->source, business->id, item->msg))
                continue;
            if (!keeps_key(business, work->holders[business - work->batch.business]))
                return semel__fail(
                    err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT,
                    "two messages of a batch share a business key, and the first of them does not start");
        }
    }
    return SEMEL_OK;
}

static struct semel_str reason(const struct item *item)
{
    if (item->row == NULL && semel__str_given(item->msg->defect_text))
        return item->msg->defect_text;
    return semel__verdict_text(&item->verdict);
}

/* Computes the rows of items that do not run, and of stored rows that run now. */
static void plan(struct work *work, struct item *item)
{
    const struct semel__verdict *v = &item->verdict;
    const struct semel_progress *before = item->row != NULL ? &item->row->progress : &item->admit->row.progress;
    struct semel_progress unborn = item->admit->row.progress;
    item->changed = item->removed = item->ended = item->fenced = item->adopted = false;
    item->progress = *before;
    if (v->act == SEMEL_RUN) {
        if (item->row == NULL || item->row->progress.state == SEMEL_ROW_PROCESSING)
            return; /* inserted so, or adopted */
        if (work_claims(work))
            semel__progress_claim(work->inbox->policy, before, work->inbox->owner, work_alone(work),
                                  semel__work_token(work, item->row), work->now_us, &item->progress);
        else
            semel__progress_complete(before, work->now_us, &item->progress);
        item->changed = true;
    } else if (v->changes && v->becomes == SEMEL_ROW_ABSENT) {
        item->removed = true;
    } else if (v->changes) {
        unborn.attempts = 0; /* it was inserted as if it would run */
        unborn.alone = false;
        semel__progress_verdict(v, item->row != NULL ? before : &unborn, reason(item), work->now_us, &item->progress);
        item->changed = true;
    } else {
        item->changed = item->adopted = adopts(work, item);
    }
}

semel_status semel__work_admit(struct work *work, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    work->batch = (struct semel_admit_batch){.consumer = inbox->policy->consumer, .now_us = work->now_us};
    work->parked = work->large = SEMEL_NONE;
    semel_status status = work_keys(work, err);
    if (status == SEMEL_OK)
        status = work_business(work, err);
    if (status == SEMEL_OK)
        status = list_rows(work, err);
    if (status != SEMEL_OK)
        return status;
    work->batch.keys = work->keys;
    work->batch.n_keys = work->n_keys;
    status = semel_store_admit(inbox->store, &work->batch, &inbox->scratch, err);
    if (status != SEMEL_OK)
        return status;
    work_keys_read(work);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++)
        status = judge(work, work->items[i], err);
    if (status == SEMEL_OK)
        status = check_business(work, err);
    if (status != SEMEL_OK)
        return status;
    for (size_t i = 0; i < work->n; i++)
        plan(work, work->items[i]);
    return SEMEL_OK;
}

/* ---- stored rows, read again under lock ------------------------------------------------------------ */

static int cmp_id(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    int c = semel__str_cmp(a->msg->source, b->msg->source);
    return c != 0 ? c : semel__str_cmp(a->msg->id, b->msg->id);
}

static bool still_ours(const struct item *item, const struct semel_fetched *found)
{
    if (!found->present || found->damaged || found->row.progress.state != SEMEL_ROW_PROCESSING)
        return false;
#ifdef SEMEL_MUTANT_NO_TOKEN
    (void)item;
    return true;
#else
    return found->row.progress.lease_token == item->lease->progress.lease_token;
#endif
}

static void judge_found(const struct work *work, struct item *item, struct semel_fetched *found)
{
    found->present = found->present && (item->key == NULL || !item->key->busy);
    if (found->present && !found->damaged && item->key != NULL && item->key->damaged) {
        found->damaged = true;
        semel__version_damaged(&found->damage);
    }
    bool ours = work_leased(work) && still_ours(item, found);
    item->row = found->present && !found->damaged ? &found->row : NULL;
    item->damage = found->damaged ? &found->damage : NULL;
    item->admit = NULL;
    item->had_head = item->key != NULL && item->key->head_arrival != SEMEL_NONE;
    item->changed = item->removed = item->ended = item->left = item->superseded = false;
    item->fenced = work_leased(work) && !ours;
    item->verdict = (struct semel__verdict){.act = ours ? SEMEL_RUN : SEMEL_LATER,
                                            .why = SEMEL_WHY_BUSY,
                                            .due_us = SEMEL_NONE};
    if (item->row != NULL)
        item->progress = item->row->progress;
    if (!ours)
        return;
    item->verdict.why = item->progress.attempts > 1 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW;
    item->verdict.attempt = item->progress.attempts;
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
        semel__progress_release(&item->row->progress, work->now_us, &item->progress);
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
    semel_status status = work_keys(work, err);
    if (status == SEMEL_OK && work_starts(work))
        status = work_business(work, err);
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
                                      .bare = work->mode == WORK_COMMAND && work->n > 1,
                                      .keys = work->keys,
                                      .n_keys = work->n_keys,
                                      .business = work->batch.business,
                                      .n_business = work->batch.n_business,
                                      .items = found,
                                      .n_items = work->n};
    status = semel_store_fetch(work->inbox->store, &batch, arena, err);
    work_keys_read(work);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++)
        judge_found(work, sorted[i], &found[i]);
    if (status == SEMEL_OK && work->mode == WORK_RUN_LEASED)
        keep_order(work);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static bool fresh(const struct item *item)
{
    return item->admit != NULL && item->admit->inserted;
}

static enum semel_payload payload_action(const struct work *work, const struct item *item)
{
    bool stored = fresh(item) ? item->admit->row.kept : item->row->kept;
    bool held = item->progress.state == SEMEL_ROW_DEAD || item->progress.state == SEMEL_ROW_QUARANTINED;
    bool stays = semel__payload_stays(work->inbox->policy, item->progress.state) ||
                 (held &&
                  semel__msg_large(work->inbox->policy, item->msg)); /* the message is acknowledged: keep its payload */
    if (stored && !stays && !item->superseded && semel__state_final(item->progress.state))
        return SEMEL_PAYLOAD_CLEAR; /* not before, whatever the route's settings are now */
    return !stored && stays && semel__str_given(item->msg->payload) ? SEMEL_PAYLOAD_PUT : SEMEL_PAYLOAD_AS_IS;
}

/* A clock that stepped back gives no two changes the same time; a claimed row is not older than its token. */
static int64_t updated_us(const struct work *work, const struct item *item)
{
    int64_t before = fresh(item) ? item->admit->row.updated_us : item->row->updated_us;
    int64_t now = work->now_us >= before ? work->now_us : semel__time_add(before, 1);
    int64_t given = item->progress.lease_token != SEMEL_NONE ? semel__token_us(item->progress.lease_token) : now;
    return given > now ? given : now;
}

/* A message that ends without an effect gives its business keys back (P78). One that began and has become stale or
 * prevented may have had its effect where a call may be repeated by its key, and nobody asks then: its keys stay. */
static bool frees_business(const struct work *work, const struct item *item)
{
    const enum semel_row_status state = item->progress.state;
    if ((state != SEMEL_ROW_STALE && state != SEMEL_ROW_PREVENTED) || item->row == NULL)
        return state == SEMEL_ROW_REJECTED;
    return work->inbox->policy->effect != SEMEL_EFFECT_KEYED;
}

/* A message that goes back to waiting has had no effect, and a parked one holds no business key: it wishes for its
 * keys. But where a call may be repeated by its key, an earlier attempt may have had an effect: then the keys stay. */
static bool returns_business(const struct work *work, const struct item *item)
{
    return item->changed && item->row != NULL && item->progress.state == SEMEL_ROW_WAITING &&
           item->row->progress.state != SEMEL_ROW_WAITING &&
           (work->inbox->policy->effect != SEMEL_EFFECT_KEYED || item->progress.attempts == 0);
}

/* Has the row of a put become just what was inserted? Then there is nothing to write. */
static bool as_inserted(const struct work *work, const struct item *item)
{
    const struct semel_progress *is = &item->progress;
    if (work->mode != WORK_STORE || !fresh(item) || item->removed || is->state != SEMEL_ROW_WAITING)
        return false;
    return is->due_us == item->admit->row.progress.due_us && is->error_class == SEMEL_CLASS_NONE &&
           !semel__str_given(is->error_text) && payload_action(work, item) == SEMEL_PAYLOAD_AS_IS;
}

static bool writes(const struct work *work, const struct item *item)
{
    return item->removed || (item->changed && !as_inserted(work, item));
}

static void fill_change(const struct work *work, const struct item *item, struct semel_change *change)
{
    *change = (struct semel_change){
        .source = item->msg->source,
        .id = item->msg->id,
        .from = fresh(item) ? item->admit->row.progress.state : item->row->progress.state,
        .fresh = fresh(item),
        .token = item->lease != NULL ? item->lease->progress.lease_token : SEMEL_NONE,
        .progress = item->progress,
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

/* How far this item moves its key. false: no memory. */
static bool settle_key(const struct work *work, const struct item *item, struct semel_key *key)
{
    if (!key->by_version || item->superseded || !(item->changed || fresh(item)))
        return true;
    return semel__version_move(work->inbox->policy, key, item->msg->version,
                               item->removed ? SEMEL_ROW_ABSENT : item->progress.state, fresh(item),
                               &work->inbox->scratch);
}

static bool open_(enum semel_row_status state)
{
    return state == SEMEL_ROW_PROCESSING || state == SEMEL_ROW_UNKNOWN;
}

/* A later version had its turn before the first of the key, without an effect: the first may have waited for it. */
static bool made_way(const struct item *item)
{
    return item->changed && item->row != NULL && open_(item->row->progress.state) && !open_(item->progress.state) &&
           item->key->head_arrival != item->row->arrival;
}

/* By versions, an earlier message may come while a later one is at its effect: a transaction with an older snapshot
 * must notice. */
static bool opens(const struct item *item)
{
    return item->changed && item->row != NULL && item->key->by_version &&
           open_(item->row->progress.state) != open_(item->progress.state);
}

static semel_status add_key_change(const struct work *work, const struct item *item, struct semel_key_change *keys,
                                   size_t *n, struct semel_error *err)
{
    if (item->key == NULL || item->fenced || item->left)
        return SEMEL_OK;
    struct semel_key *key = &work->found[item->key - work->keys], before = *key;
    if (!settle_key(work, item, key))
        return semel__fail_memory(err);
    bool was = item->row != NULL && !fresh(item) && semel__progress_in_order(&item->row->progress);
    bool is = (item->changed || fresh(item)) ? !item->removed && semel__progress_in_order(&item->progress) : was;
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

/* Business keys that this transaction took for a message that then neither started nor was resolved as done. */
static size_t list_drops(const struct work *work, struct semel_business *drop)
{
    size_t n = 0;
    for (size_t i = 0; i < work->batch.n_business; i++) {
        const struct item *holder = work->holders[i];
        bool resolved = holder->changed && holder->progress.state == SEMEL_ROW_COMPLETED;
        if (work->batch.business[i].inserted && holder->verdict.act != SEMEL_RUN && !resolved)
            drop[n++] = work->batch.business[i];
    }
    return n;
}

/* A delivery that is stored, or finds its row stored, and does not start here: the row remembers the keys that it names
 * until the start. A delivery that names other keys than its row adds none: a message has few. */
static bool keeps_wishes(const struct item *item)
{
    if (item->admit == NULL || item->verdict.act == SEMEL_RUN || item->left || semel__state_final(item->progress.state))
        return false;
    if (item->row == NULL)
        return fresh(item) && item->changed;
    return item->progress.state != SEMEL_ROW_PROCESSING && item->verdict.why != SEMEL_WHY_CONFLICT && !item->deferred &&
           !semel__item_wishes_more(item);
}

/* Keys that it holds or wishes for already are not repeated. For a message that is not fit to run no key was taken. */
static bool is_new_wish(const struct work *work, const struct item *item, struct semel_str key)
{
    if (!semel__str_given(key) || item->row == NULL)
        return semel__str_given(key);
    for (size_t i = 0; i < item->row->n_wants; i++)
        if (semel__str_eq(item->row->wants[i], key))
            return false;
    return item->msg->defect == SEMEL_DEFECT_NONE && !item_holds(work, item, key);
}

/* The message starts, or has reached its end. */
static bool loses_wishes(const struct item *item)
{
    return !fresh(item) && item->row != NULL && item->row->n_wants > 0 && item->changed &&
           (item->verdict.act == SEMEL_RUN || semel__state_final(item->progress.state));
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
                                                      semel__state_final(item->progress.state)
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
        bool admitted = item->lease == NULL && !item->deferred && !item->left;
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
            notes[(*n)++] = (struct semel_note){item->msg->source, item->msg->id, item->lease->progress.attempts,
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
                                       .impatient = work_impatient(work),
                                       .wakes_none = work->n == 1 && work->items[0]->superseded};
    size_t n_conflicts = list_conflicts(work, NULL), n_changes = 0, n_fenced = 0;
    for (size_t i = 0; i < work->n; i++) {
        n_changes += writes(work, work->items[i]);
        n_fenced += work->items[i]->fenced;
    }
    batch.changes = semel__arena_alloc(arena, n_changes, sizeof *batch.changes);
    batch.keys = semel__arena_alloc(arena, work->n_keys, sizeof *batch.keys);
    struct semel_business *drop = semel__arena_alloc(arena, work->batch.n_business + 1, sizeof *drop);
    const struct semel__msg **conflicts = semel__arena_alloc(arena, n_conflicts + 1, sizeof *conflicts);
    struct semel_note *notes = semel__arena_alloc(arena, n_fenced, sizeof *notes);
    if (batch.changes == NULL || batch.keys == NULL || drop == NULL || conflicts == NULL || notes == NULL)
        return semel__fail_memory(err);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++) {
        if (writes(work, work->items[i]))
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

/* Of a put: a new one that is not to run yet waits for its time alone, without a class; the verdict comes then. false:
 * it has no such time. */
static bool postpone(struct work *work, struct item *item)
{
    struct semel__verdict *v = &item->verdict;
    struct semel_progress unborn = item->progress;
    const bool stored = v->act == SEMEL_RUN || (v->changes && v->becomes == SEMEL_ROW_WAITING);
    if (item->row != NULL || !stored || item->msg->not_before_us <= work->now_us)
        return false;
    v->why = v->act == SEMEL_RUN ? SEMEL_WHY_NEW : v->why;
    v->act = SEMEL_ACK;
    v->changes = true;
    v->becomes = SEMEL_ROW_WAITING;
    v->cls = SEMEL_CLASS_NONE;
    v->due_us = item->msg->not_before_us;
    unborn.attempts = 0;
    unborn.alone = false;
    semel__progress_verdict(v, &unborn, (struct semel_str){0}, work->now_us, &item->progress);
    item->changed = true;
    return true;
}

/* One that may run now is made to wait, due at once. */
static void hold(struct work *work, struct item *item)
{
    if (postpone(work, item) || item->verdict.act != SEMEL_RUN)
        return;
    item->verdict = (struct semel__verdict){.act = SEMEL_ACK, .why = SEMEL_WHY_DUPLICATE, .due_us = SEMEL_NONE};
    if (item->row != NULL) {
        item->progress = item->row->progress;
        item->changed = item->adopted = semel__payload_adopts(work->inbox->policy, item->msg, item->row);
        return;
    }
    struct semel_progress unborn = item->progress;
    unborn.attempts = 0;
    unborn.alone = false;
    item->verdict.why = SEMEL_WHY_NEW;
    item->verdict.changes = true;
    item->verdict.becomes = SEMEL_ROW_WAITING;
    item->verdict.due_us = work->now_us;
    semel__progress_verdict(&item->verdict, &unborn, (struct semel_str){0}, work->now_us, &item->progress);
    item->changed = true;
}

semel_status semel__work_put(struct work *work, struct semel_error *err)
{
    semel_status status = semel__work_admit(work, err);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++)
        hold(work, work->items[i]);
    return status == SEMEL_OK ? semel__work_settle(work, err) : status;
}
