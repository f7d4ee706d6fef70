/* SPDX-License-Identifier: MIT
 *
 * scheduler.c: claims and runs stored rows that are due (retries, parked messages whose turn has come, gaps that
 * timed out), recovers expired leases, and purges old rows. Every function is one bounded step.
 *
 * The scheduler reads candidates without locks; then it locks their keys, reads the rows again and judges them again,
 * so any number of processes may do this at once (P67: the order of locks is the same as for a delivery). On an
 * ATOMIC route it claims a message that must run alone by itself; others together, and with the first row of a key
 * those that follow it, because they will run in one transaction in that order.
 *
 * A row that wants business keys takes them here, in the transaction of its claim. If another transaction is taking
 * the same key, the scheduler does not wait: it leaves the rows that want that key, and only those, for the next
 * time.
 *
 * The scheduler also decides gaps that timed out without a run, and messages whose business key is used up;
 * semel__inbox_gaps does only that, for consumers whose messages nobody takes at the moment. The sweep makes heads
 * due that wait without a due time, whatever the cause: a wake that was skipped, other settings.
 *
 * Nothing here waits for a lock: rows that another transaction has locked are left for the next time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/point.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/version.h"
#include "core/work.h"

/* Retries while others have locked all rows that are due; after that the caller comes back later. */
#define BUSY_MAX 100
/* Business keys that others are taking: each costs the time that a driver waits for one. */
#define PASSED_MAX 16

struct take {
    struct semel_inbox *inbox;
    struct semel_row *rows; /* candidates */
    size_t n, room;
    /* How many of the oldest to pass over: they were read under lock, and can neither run nor move. */
    size_t skip;
    bool alone, moved;
    bool wishes; /* among the candidates are rows that want business keys */
    bool single; /* of such rows only the first is a candidate: if a key is being taken, it is one of that row */
    bool plain;  /* pass over all such rows */
    struct {
        char bytes[SEMEL_ID_MAX];
        size_t n;
    } passed[PASSED_MAX]; /* business keys that others are taking: rows that want one are passed over */
    size_t n_passed;
    size_t busy; /* how often others had locked all candidates */
};

static bool together(const struct semel_inbox *inbox)
{
    return inbox->policy->effect == SEMEL_EFFECT_ATOMIC && !inbox->policy->one_by_one;
}

static bool must_be_alone(const struct semel_row *row)
{
    return row->progress.alone || row->progress.attempts > 0;
}

/* ---- business keys that others are taking -------------------------------------------------------- */

static bool may_be_taken(const struct take *take, const struct semel_row *row)
{
    if (row->n_wants == 0)
        return true;
    for (size_t i = 0; i < row->n_wants && !take->plain; i++)
        for (size_t k = 0; k < take->n_passed; k++)
            if (semel__str_eq(row->wants[i], (struct semel_str){take->passed[k].bytes, take->passed[k].n}))
                return false;
    return !take->plain;
}

static size_t drop_others(const struct take *take, struct semel_row *due, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (may_be_taken(take, &due[i]))
            due[kept++] = due[i];
    return kept;
}

/* Keeps only the first of the rows that want business keys. */
static size_t drop_all_but_one(struct semel_row *due, size_t n)
{
    size_t kept = 0;
    bool wishes = false;
    for (size_t i = 0; i < n; i++) {
        if (wishes && due[i].n_wants > 0)
            continue;
        wishes |= due[i].n_wants > 0;
        due[kept++] = due[i];
    }
    return kept;
}

static bool contention(semel_status status, const struct semel_error *err)
{
    return status == SEMEL_RETRY && err->cls == SEMEL_CLASS_TRANSIENT;
}

static void pass_over(struct take *take)
{
    for (size_t i = 0; i < take->n; i++)
        for (size_t k = 0; k < take->rows[i].n_wants; k++) {
            const struct semel_str key = take->rows[i].wants[k];
            take->plain |= take->n_passed == PASSED_MAX || key.n > SEMEL_ID_MAX;
            if (take->plain)
                return;
            memcpy(take->passed[take->n_passed].bytes, key.p, key.n);
            take->passed[take->n_passed++].n = key.n;
        }
}

/* The store does not report which key another transaction is taking. So of the candidates that want one, only one is
 * tried, and if that fails too, its keys are passed over. false: no candidate wants a key. */
static bool narrow(struct take *take)
{
    if (!take->wishes)
        return false;
    if (take->single)
        pass_over(take);
    take->single = !take->single;
    return true;
}

/* ---- candidates ---------------------------------------------------------------------------------- */

/* Adds the rows behind the first of a key that may run right after it. */
static semel_status add_followers(struct take *take, const struct semel_row *head, struct semel_error *err)
{
    struct semel_row *rows;
    size_t n, damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_KEY,
                              .consumer = take->inbox->policy->consumer,
                              .order_key = head->order_key,
                              .by_version = take->inbox->policy->order == SEMEL_ORDER_VERSION,
                              .max = take->room - take->n + 1};
    semel_status status = semel_store_scan(take->inbox->store, &scan, &take->inbox->scratch, &rows, &n, &damaged, err);
    if (status != SEMEL_OK || n == 0 || rows[0].arrival != head->arrival)
        return status; /* it is not the first: judged by itself, so that it goes back to waiting */
    for (size_t i = 1; i < n && take->n < take->room; i++) {
        if (rows[i].progress.state != SEMEL_ROW_WAITING || must_be_alone(&rows[i]) || !may_be_taken(take, &rows[i]) ||
            (take->single && rows[i].n_wants > 0))
            break;
        take->rows[take->n++] = rows[i];
    }
    return status;
}

static int cmp_arrival(const void *va, const void *vb)
{
    const struct semel_row *a = va, *b = vb;
    int c = semel__str_cmp(a->order_key, b->order_key);
    return c != 0 ? c : (a->arrival > b->arrival) - (a->arrival < b->arrival);
}

static int cmp_version(const void *va, const void *vb)
{
    const struct semel_row *a = va, *b = vb;
    int c = semel__str_cmp(a->order_key, b->order_key);
    if (c == 0 && semel__str_given(a->order_key))
        c = (a->version > b->version) - (a->version < b->version);
    return c != 0 ? c : cmp_arrival(va, vb);
}

/* Chooses one row per key, the first that is due, and those that follow it if it is the first of all: rows claimed
 * together run in one transaction, and no row of a key may be left out in between. The rest of the key comes later. */
static semel_status choose_group(struct take *take, struct semel_row *due, size_t n, struct semel_error *err)
{
    bool by_version = take->inbox->policy->order == SEMEL_ORDER_VERSION;
    semel_status status = SEMEL_OK;
    const struct semel_row *last = NULL;
    semel__sort(due, n, sizeof *due, by_version ? cmp_version : cmp_arrival);
    for (size_t i = 0; status == SEMEL_OK && i < n && take->n < take->room; i++) {
        bool keyed = semel__str_given(due[i].order_key) && take->inbox->policy->order != SEMEL_ORDER_NONE;
        if (keyed && last != NULL && semel__str_eq(last->order_key, due[i].order_key))
            continue;
        last = &due[i];
        take->rows[take->n++] = due[i];
        if (keyed && !take->alone && take->n < take->room)
            status = add_followers(take, &due[i], err);
    }
    return status;
}

/* On an ATOMIC route the oldest decides: it runs alone, or together with all that need not be alone. */
static semel_status choose(struct take *take, struct semel_row *due, size_t n, struct semel_error *err)
{
    size_t kept = 0;
    take->alone = !together(take->inbox) || must_be_alone(&due[0]);
    if (!together(take->inbox))
        return choose_group(take, due, n, err);
    if (take->alone) {
        take->rows[take->n++] = due[0];
        return SEMEL_OK;
    }
    for (size_t i = 0; i < n; i++)
        if (!must_be_alone(&due[i]))
            due[kept++] = due[i];
    return choose_group(take, due, kept, err);
}

/* ---- under lock ---------------------------------------------------------------------------------- */

/* Judges in the order of the key. A row that is not claimed stops those behind it. */
static void judge(struct work *work, struct item *item, bool stopped)
{
    const struct semel_inbox *inbox = work->inbox;
    struct semel_facts facts = {.now_us = work->now_us, .row = item->row, .watermark_us = SEMEL_NONE, .key = item->key};
    bool due = item->row != NULL && item->row->progress.due_us != SEMEL_NONE &&
               item->row->progress.due_us <= work->now_us;
    bool follower = item->row != NULL && item->key != NULL && item->key->head_arrival == SEMEL_NONE &&
                    semel__progress_in_order(&item->row->progress);
    if (item->row == NULL || stopped || (!due && !follower) || semel__item_wishes_more(item))
        return; /* it now wants a key that was not taken here */
    if (work->mode == WORK_TAKE && must_be_alone(item->row))
        return; /* since it was found it was in a group that its worker did not survive */
    semel__item_intent(work, item, &facts);
    semel__verdict_take(inbox->policy, &facts, &item->verdict);
    if (item->verdict.act == SEMEL_RUN) {
        semel__progress_claim(inbox->policy, &item->row->progress, inbox->owner, work_alone(work),
                              semel__work_token(work, item->row), work->now_us, &item->progress);
        item->changed = true;
    } else if (item->verdict.changes && !follower) { /* its predecessor has not run yet: it may end without effect */
        semel__progress_verdict(&item->verdict, &item->row->progress, semel__verdict_text(&item->verdict), work->now_us,
                                &item->progress);
        item->changed = true;
    }
}

static void judge_all(struct work *work)
{
    const struct semel_key *key = NULL;
    bool stopped = false;
    for (size_t i = 0; i < work->n; i++) {
        struct item *item = work->items[i];
        if (item->key == NULL || item->key != key)
            stopped = false;
        key = item->key;
        judge(work, item, stopped);
        if (item->key == NULL)
            continue;
        if (item->verdict.act != SEMEL_RUN || !together(work->inbox) || work_alone(work)) {
            stopped = true;
            continue;
        }
        /* It will have run before the next one. */
        item->key->head_arrival = item->key->head_version = SEMEL_NONE;
        if (item->key->by_version)
            semel__version_applied(work->inbox->policy, item->key, item->msg->version);
    }
}

/* Decides only rows that change without running. */
static void judge_gaps(struct work *work)
{
    judge_all(work);
    for (size_t i = 0; i < work->n; i++) {
        struct item *item = work->items[i];
        if (item->verdict.act != SEMEL_RUN)
            continue;
        item->verdict = (struct semel__verdict){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
        item->progress = item->row->progress;
        item->changed = false;
    }
}

static bool still(const struct semel_row *row)
{
    return row->progress.state == SEMEL_ROW_WAITING && row->progress.due_us == SEMEL_NONE && row->kept &&
           row->progress.error_class != SEMEL_CLASS_BUSINESS;
}

/* Under lock: is it still the first of its key, and without a due time? */
static void wake(struct work *work)
{
    for (size_t i = 0; i < work->n; i++) {
        struct item *item = work->items[i];
        const struct semel_row *row = item->row;
        if (row == NULL || !still(row) || (item->key != NULL && item->key->head_arrival != row->arrival))
            continue;
        item->progress = row->progress;
        item->progress.due_us = work->now_us;
        item->progress.error_class = SEMEL_CLASS_BLOCKED;
        item->changed = true;
    }
}

static semel_status items_of_rows(struct take *take, struct item ***ret, struct semel_error *err)
{
    struct semel_arena *arena = &take->inbox->scratch;
    struct item *all = semel__arena_alloc(arena, take->n, sizeof *all);
    struct item **items = semel__arena_alloc(arena, take->n, sizeof *items);
    struct semel__msg *msgs = semel__arena_alloc(arena, take->n, sizeof *msgs);
    if (all == NULL || items == NULL || msgs == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < take->n; i++) {
        semel__row_msg(&take->rows[i], &msgs[i]);
        take->wishes |= take->rows[i].n_wants > 0;
        all[i] = (struct item){.msg = &msgs[i], .place = i, .adopt_until_us = SEMEL_NONE};
        items[i] = &all[i];
    }
    *ret = items;
    return SEMEL_OK;
}

/* Reads the rows under lock, judges them and writes the changes. */
static semel_status settle(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct work *work = ctx;
    (void)undo;
    work->now_us = now_us;
    semel_status status = semel__work_fetch(work, err);
    if (status != SEMEL_OK)
        return status;
    if (work->mode == WORK_SWEEP)
        wake(work);
    else if (work->mode == WORK_GAPS)
        judge_gaps(work);
    else
        judge_all(work);
    status = semel__work_settle(work, err);
    if (status == SEMEL_OK && work->mode != WORK_SWEEP)
        SEMEL_POINT(TAKE_SETTLED);
    return status;
}

/* After an unknown commit nothing is repeated: leases expire and recovery decides, other rows are read again. */
static semel_status settle_rows(struct take *take, struct work *work, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = settle};
    semel_status status = items_of_rows(take, &work->items, err);
    work->n = take->n;
    if (status == SEMEL_OK)
        status = semel__transaction_run(work->inbox->store, &tx, work, err);
    if (status == SEMEL_OK && work->mode != WORK_SWEEP)
        SEMEL_POINT(TAKE_COMMITTED);
    return status;
}

static bool copy_lease(const struct semel_inbox *inbox, const struct item *item, struct semel_arena *arena,
                       struct semel_lease *lease)
{
    struct semel__msg *msg = &lease->msg;
    semel__row_msg(item->row, msg);
    struct semel_str *texts[] = {&msg->source,  &msg->id,       &msg->type,        &msg->payload,
                                 &msg->headers, &msg->position, &msg->traceparent, &msg->order_key};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!semel__arena_copy(arena, *texts[i], texts[i]))
            return false;
    msg->n_business = 0; /* it took them when it started */
    lease->progress = item->progress;
    lease->progress.lease_owner = inbox->owner;
    lease->progress.error_text = lease->progress.outcome = (struct semel_str){0};
    lease->arrival = item->row->arrival;
    lease->index = 0;
    lease->lost = false;
    return true;
}

static semel_status find(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct take *take = ctx;
    struct semel_inbox *inbox = take->inbox;
    struct semel_row *due;
    size_t n, damaged;
    *undo = true;
    struct semel_scan scan = {.kind = SEMEL_SCAN_DUE,
                              .consumer = inbox->policy->consumer,
                              .now_us = now_us,
                              .kept = true};
    semel_status status;
    bool more;
    /* The oldest first: if it must run alone, the others need not be read. Reads more than needed when all of them are
     * passed over. */
    for (scan.max = 1 + take->skip;; scan.max = more ? 2 * scan.max : take->room + take->skip) {
        status = semel_store_scan(inbox->store, &scan, &inbox->scratch, &due, &n, &damaged, err);
        if (status != SEMEL_OK)
            return status;
        more = scan.max >= take->room + take->skip;
        const bool all = n + damaged < scan.max || (more && scan.max >= SEMEL_BATCH_MAX);
        n = drop_others(take, due, n);
        n = take->single ? drop_all_but_one(due, n) : n;
        const bool alone = together(inbox) && damaged == 0 && n > take->skip && must_be_alone(&due[take->skip]);
        if (all || alone || (more && n > take->skip))
            break;
    }
    return n > take->skip ? choose(take, due + take->skip, n - take->skip, err) : SEMEL_OK;
}

/* Chooses rows by `query`, into take->rows. */
static semel_status choose_by(const struct semel__transaction *query, struct take *take, struct semel_error *err)
{
    struct semel_inbox *inbox = take->inbox;
    semel__arena_reset(&inbox->scratch);
    take->n = 0;
    take->wishes = false;
    take->rows = semel__arena_alloc(&inbox->scratch, take->room, sizeof *take->rows);
    return take->rows != NULL ? semel__transaction_run(inbox->store, query, take, err) : semel__fail_memory(err);
}

static semel_status take_some(struct take *take, struct semel_arena *arena, struct semel_lease *ret_leases,
                              size_t *ret_n, struct semel_error *err)
{
    struct semel_inbox *inbox = take->inbox;
    static const struct semel__transaction query = {.body = find};
    struct work work = {.inbox = inbox};
    semel_status status = choose_by(&query, take, err);
    if (status != SEMEL_OK || take->n == 0)
        return status;
    work.mode = take->alone ? WORK_TAKE_ALONE : WORK_TAKE;
    status = settle_rows(take, &work, err);
    bool busy = true;
    for (size_t i = 0; status == SEMEL_OK && i < work.n; i++) {
        take->moved |= work.items[i]->changed;
        busy = busy && work.items[i]->row == NULL && work.items[i]->damage == NULL;
        if (work.items[i]->verdict.act != SEMEL_RUN)
            continue;
        if (!copy_lease(inbox, work.items[i], arena, &ret_leases[*ret_n]))
            return semel__fail_memory(err);
        ++*ret_n;
        work.items[i]->verdict.act = SEMEL_LATER; /* reported when it ends */
    }
    take->busy += busy;
    return status == SEMEL_OK ? semel__work_report(&work, err) : status;
}

semel_status semel__lease_take(struct semel_inbox *inbox, size_t max, struct semel_arena *arena,
                               struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err)
{
    struct take take = {.inbox = inbox, .room = max < SEMEL_BATCH_MAX ? max : SEMEL_BATCH_MAX};
    *ret_n = 0;
    for (;; take.skip++) { /* a row whose damage shows only under lock must not block the others */
        semel_status status = take_some(&take, arena, ret_leases, ret_n, err);
        while (contention(status, err) && narrow(&take))
            status = take_some(&take, arena, ret_leases, ret_n, err);
        if (contention(status, err) && take.n > 0 && ++take.busy < BUSY_MAX)
            continue; /* another transaction has a business key that the oldest gives back: pass it over */
        if (status != SEMEL_OK || take.n == 0 || take.moved || take.busy == BUSY_MAX)
            return status;
    }
}

/* ---- without a handler --------------------------------------------------------------------------- */

static size_t only_decidable(const struct take *take, struct semel_row *due, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool gap = due[i].progress.state == SEMEL_ROW_WAITING && due[i].progress.error_class == SEMEL_CLASS_GAP;
        if (gap || semel__progress_waits_for_intent(&due[i].progress))
            due[kept++] = due[i];
    }
    return drop_others(take, due, kept);
}

/* Retries may come before them in the order of due times: so this reads more rows than it needs. */
static semel_status find_gaps(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct take *take = ctx;
    struct semel_inbox *inbox = take->inbox;
    struct semel_row *due;
    size_t n, damaged;
    *undo = true;
    struct semel_scan scan = {.kind = SEMEL_SCAN_DUE,
                              .consumer = inbox->policy->consumer,
                              .now_us = now_us,
                              .max = SEMEL_BATCH_MAX};
    semel_status status = semel_store_scan(inbox->store, &scan, &inbox->scratch, &due, &n, &damaged, err);
    n = status == SEMEL_OK ? only_decidable(take, due, n) : 0;
    if (n > take->skip)
        status = choose_group(take, due + take->skip, take->single ? 1 : n - take->skip, err);
    return status;
}

static semel_status decide(struct take *take, size_t *ret_n, struct semel_error *err)
{
    static const struct semel__transaction query = {.body = find_gaps};
    struct work work = {.inbox = take->inbox, .mode = WORK_GAPS};
    semel_status status = choose_by(&query, take, err);
    if (status != SEMEL_OK || take->n == 0)
        return status;
    status = settle_rows(take, &work, err);
    for (size_t i = 0; status == SEMEL_OK && i < work.n; i++)
        *ret_n += work.items[i]->changed;
    return status == SEMEL_OK ? semel__work_report(&work, err) : status;
}

/* Another transaction takes a business key: goes one by one, so that only rows that want or have that key are
 * skipped. */
static semel_status decide_each(struct take *take, size_t max, size_t *ret_n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    take->single = true;
    for (size_t i = 0; i < max && status == SEMEL_OK; i++) {
        const size_t before = *ret_n;
        status = decide(take, ret_n, err);
        if (contention(status, err)) {
            if (take->wishes)
                pass_over(take);
            else
                take->skip++; /* it is a key that the row has */
            semel__error_clear(err);
            status = SEMEL_OK;
        } else if (take->n == 0) {
            break;
        } else {
            take->skip += *ret_n == before;
        }
    }
    return status;
}

semel_status semel__inbox_gaps(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    struct take take = {.inbox = inbox, .room = max < SEMEL_BATCH_MAX ? max : SEMEL_BATCH_MAX, .alone = true};
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    *ret_n = 0;
    semel_status status = decide(&take, ret_n, err);
    return contention(status, err) ? decide_each(&take, max, ret_n, err) : status;
}

/* ---- the sweep ----------------------------------------------------------------------------------- */

#define SWEEP_KEYS 100

/* Rows that nothing seems to wake; *place moves on. */
static semel_status find_still(struct take *take, char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    struct semel_inbox *inbox = take->inbox;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_STILL,
                              .consumer = inbox->policy->consumer,
                              /* without order every row is first */
                              .any_key = inbox->policy->order == SEMEL_ORDER_NONE,
                              .by_version = inbox->policy->order == SEMEL_ORDER_VERSION,
                              .max = SWEEP_KEYS};
    place[0] = '\0'; /* start again after the last key */
    semel_status status = semel_store_scan(inbox->store, &scan, &inbox->scratch, &rows, &n, &damaged, err);
    for (size_t i = 0; status == SEMEL_OK && i < n && take->n < take->room; i++)
        if (still(&rows[i]))
            take->rows[take->n++] = rows[i];
    if (status != SEMEL_OK || scan.any_key)
        return status;
    scan.order_key = semel__str(inbox->places.sweep);
    status = semel_store_scan(inbox->store, &scan, &inbox->scratch, &rows, &n, &damaged, err);
    for (size_t i = 0; status == SEMEL_OK && i < n && take->n < take->room; i++) {
        if (still(&rows[i]))
            take->rows[take->n++] = rows[i];
        if (n == SWEEP_KEYS || i + 1 < n)
            snprintf(place, SEMEL_ID_MAX + 1, "%.*s", (int)rows[i].order_key.n, rows[i].order_key.p);
        else
            place[0] = '\0';
    }
    return status;
}

semel_status semel__inbox_sweep(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    struct take take = {.inbox = inbox, .room = max < 2 * SWEEP_KEYS ? max : 2 * SWEEP_KEYS};
    struct work work = {.inbox = inbox, .mode = WORK_SWEEP};
    char place[SEMEL_ID_MAX + 1];
    *ret_n = 0;
    semel__arena_reset(&inbox->scratch);
    take.rows = semel__arena_alloc(&inbox->scratch, take.room, sizeof *take.rows);
    if (take.rows == NULL)
        return semel__fail_memory(err);
    semel_status status = find_still(&take, place, err);
    if (status == SEMEL_OK && take.n > 0) {
        status = settle_rows(&take, &work, err);
        for (size_t i = 0; status == SEMEL_OK && i < work.n; i++)
            *ret_n += work.items[i]->changed;
    }
    if (status == SEMEL_OK)
        memcpy(inbox->places.sweep, place, sizeof place);
    return status;
}

/* ---- recovery ------------------------------------------------------------------------------------ */

/* Rows whose lease has expired. */
struct expired {
    struct semel_inbox *inbox;
    struct semel_row *rows;
    size_t n, max;
};

static semel_status find_expired(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct expired *expired = ctx;
    struct semel_inbox *inbox = expired->inbox;
    size_t damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_EXPIRED,
                              .consumer = inbox->policy->consumer,
                              .now_us = now_us,
                              .max = expired->max};
    *undo = true;
    return semel_store_scan(inbox->store, &scan, &inbox->arena, &expired->rows, &expired->n, &damaged, err);
}

static semel_status recover(struct semel_inbox *inbox, struct semel_row *rows, size_t n, size_t *ret_n,
                            struct semel_error *err)
{
    struct item **items;
    struct semel_lease *leases = semel__arena_alloc(&inbox->arena, n, sizeof *leases);
    if (leases == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++) {
        semel__row_msg(&rows[i], &leases[i].msg);
        leases[i].progress = rows[i].progress;
        leases[i].arrival = rows[i].arrival;
    }
    semel_status status = semel__items_of_leases(inbox, leases, NULL, n, &items, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__items_lease(inbox, items, n, LEASE_RECOVER, err);
    for (size_t i = 0; i < n; i++)
        *ret_n += items[i]->settled && items[i]->changed;
    if (status != SEMEL_RETRY || err == NULL || err->cls != SEMEL_CLASS_TRANSIENT)
        return status;
    semel__error_clear(err); /* another transaction has a business key that one of them gives back */
    return SEMEL_OK;
}

/* Rows that other transactions have locked are passed over, so this reads more than it needs: a transaction that stays
 * open must not block recovery of the others. */
semel_status semel__inbox_recover(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    static const struct semel__transaction query = {.body = find_expired};
    struct expired expired = {.inbox = inbox, .max = max < SEMEL_BATCH_MAX / 10 ? 10 * max : SEMEL_BATCH_MAX};
    *ret_n = 0;
    semel__arena_reset(&inbox->arena);
    semel_status status = semel__transaction_run(inbox->store, &query, &expired, err);
    for (size_t at = 0, part; status == SEMEL_OK && at < expired.n && *ret_n < max; at += part) {
        part = max - *ret_n < expired.n - at ? max - *ret_n : expired.n - at;
        status = recover(inbox, expired.rows + at, part, ret_n, err);
    }
    inbox->counts.recovered += *ret_n;
    return status;
}

/* ---- work ---------------------------------------------------------------------------------------- */

static semel_status run_leases(struct semel_inbox *inbox, struct semel_lease *leases, size_t n, struct semel_error *err)
{
    struct item **items;
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    semel_status status = semel__items_of_leases(inbox, leases, NULL, n, &items, err);
    if (status != SEMEL_OK)
        return status;
    if (inbox->policy->effect != SEMEL_EFFECT_ATOMIC)
        return semel__items_outside(inbox, items, n, err);
    SEMEL_POINT(LEASE_RUN);
    status = semel__items_run(inbox, items, n, err);
    if (status != SEMEL_OK)
        semel__items_give_back(inbox, items, n, status);
    return status;
}

semel_status semel__lease_run(struct semel_inbox *inbox, struct semel_lease *leases, size_t n, struct semel_error *err)
{
    semel__arena_reset(&inbox->arena);
    return n > 0 ? run_leases(inbox, leases, n, err) : SEMEL_OK;
}

semel_status semel__inbox_work(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    *ret_n = 0;
    if (max > SEMEL_BATCH_MAX)
        max = SEMEL_BATCH_MAX;
    while (*ret_n < max) {
        size_t n = 0;
        semel__arena_reset(&inbox->arena);
        struct semel_lease *leases = semel__arena_alloc(&inbox->arena, max - *ret_n, sizeof *leases);
        if (leases == NULL)
            return semel__fail_memory(err);
        semel_status status = semel__lease_take(inbox, max - *ret_n, &inbox->arena, leases, &n, err);
        if (status == SEMEL_OK && n > 0)
            status = run_leases(inbox, leases, n, err);
        if (status != SEMEL_OK || n == 0)
            return status;
        *ret_n += n;
    }
    return SEMEL_OK;
}

/* ---- purge --------------------------------------------------------------------------------------- */

/* Rows that one transaction deletes. Only a redelivery of such an old message waits for it. */
#define PURGE_CHUNK 1000
#define LOOKS ((size_t)10)
#define MINUTE_US INT64_C(60000000)

/* One purge: of the rows of a source, or of the other tables. */
struct purge {
    struct semel_inbox *inbox;
    struct semel_str source;
    int64_t before_us; /* rows that ended earlier are deleted */
    size_t max, n;
    size_t looks, in_vain; /* how many rows may be read; how many were read without finding enough */
};

/* Commits the watermark before anything is deleted (P60), at the time of the youngest row to delete. purge->n: how many
 * rows will go. */
static semel_status raise_watermark(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    struct semel_store *store = purge->inbox->store;
    struct semel_str consumer = purge->inbox->policy->consumer;
    struct semel_aged aged = {.latest_us = SEMEL_NONE};
    (void)now_us;
    semel_status status = semel_store_aged(store, consumer, purge->source, purge->before_us, purge->max, purge->looks,
                                           &aged, err);
    purge->n = aged.n;
    purge->in_vain = aged.n < purge->max ? aged.looked : 0;
    *undo = aged.latest_us == SEMEL_NONE;
    return status != SEMEL_OK || *undo
               ? status
               : semel_store_watermark(store, consumer, purge->source, semel__time_add(aged.latest_us, 1), err);
}

/* Reads as many rows as the count did. */
static semel_status delete_rows(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    (void)now_us;
    (void)undo;
    return semel_store_purge(purge->inbox->store, purge->inbox->policy->consumer, purge->source, purge->before_us,
                             purge->max, purge->looks, &purge->n, err);
}

static semel_status delete_rest(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    struct semel_inbox *inbox = purge->inbox;
    struct semel_str consumer = inbox->policy->consumer;
    (void)undo;
    semel_status status = semel_store_purge_business(inbox->store, consumer, now_us, purge->max, &purge->n, err);
    if (status == SEMEL_OK)
        status = semel_store_purge_keys(inbox->store, consumer, purge->before_us, purge->max, inbox->places.keys, err);
    return status;
}

/* purge->n: how many rows were deleted; 0: none, or another transaction has locked the watermark. */
static semel_status purge_chunk(struct purge *purge, struct semel_error *err)
{
    static const struct semel__transaction mark = {.body = raise_watermark}, delete = {.body = delete_rows};
    struct semel_store *store = purge->inbox->store;
    purge->n = 0;
    semel_status status = semel__transaction_run(store, &mark, purge, err);
    if (status == SEMEL_RETRY && err->cls == SEMEL_CLASS_TRANSIENT) {
        purge->n = 0;
        semel__error_clear(err);
        return SEMEL_OK;
    }
    if (status != SEMEL_OK || purge->n == 0)
        return status;
    SEMEL_POINT(PURGE_WATERMARKED);
    purge->n = 0;
    status = semel__transaction_run(store, &delete, purge, err);
    if (status == SEMEL_OK)
        SEMEL_POINT(PURGE_DELETED);
    return status;
}

/* Adds to *n the rows that were deleted, and to *in_vain those that were read and could not go. Reads at most LOOKS
 * times `max` rows, for all sources of the consumer together: each deleted row counts as LOOKS rows. */
static semel_status purge_source(struct semel_inbox *inbox, struct semel_str source, int64_t before_us, size_t max,
                                 size_t *n, size_t *in_vain, struct semel_error *err)
{
    struct purge purge = {.inbox = inbox, .source = source, .before_us = before_us, .n = PURGE_CHUNK};
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && purge.n == PURGE_CHUNK && *n < max && *in_vain < LOOKS * (max - *n)) {
        const size_t left = LOOKS * (max - *n) - *in_vain;
        purge.max = max - *n < PURGE_CHUNK ? max - *n : PURGE_CHUNK;
        purge.looks = left < LOOKS * purge.max ? left : LOOKS * purge.max;
        status = purge_chunk(&purge, err);
        if (status != SEMEL_OK)
            break;
        *n += purge.n;
        *in_vain += purge.in_vain;
    }
    return status;
}

/* The time before which a finished message is forgotten, rounded down to the minute. */
static semel_status cut(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct purge *purge = ctx;
    (void)err;
    *undo = true;
    purge->before_us = semel__time_add(now_us, -purge->inbox->policy->retention_us);
    purge->before_us -= (purge->before_us % MINUTE_US + MINUTE_US) % MINUTE_US;
    return SEMEL_OK;
}

semel_status semel__inbox_purge(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err)
{
    static const struct semel__transaction query = {.body = cut}, rest_of = {.body = delete_rest};
    struct purge rest = {.inbox = inbox, .max = max < PURGE_CHUNK ? max : PURGE_CHUNK};
    struct semel_str *sources;
    struct semel_error local = {0};
    size_t n_sources, in_vain = 0;
    err = err != NULL ? err : &local;
    *ret_n = 0;
    semel__arena_reset(&inbox->arena);
    semel_status status = semel_store_sources(inbox->store, inbox->policy->consumer, &inbox->arena, &sources,
                                              &n_sources, err);
    if (status == SEMEL_OK)
        status = semel__transaction_run(inbox->store, &query, &rest, err);
    size_t first = status == SEMEL_OK && n_sources > 1 ? (size_t)(semel__random_next(inbox->rng) % n_sources) : 0;
    for (size_t i = 0; status == SEMEL_OK && i < n_sources && *ret_n < max; i++)
        status = purge_source(inbox, sources[(first + i) % n_sources], rest.before_us, max, ret_n, &in_vain, err);
    inbox->counts.purged += *ret_n;
    return status == SEMEL_OK ? semel__transaction_run(inbox->store, &rest_of, &rest, err) : status;
}
