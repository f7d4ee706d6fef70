/* SPDX-License-Identifier: MIT
 *
 * inbox.c: a batch of deliveries, until each has its act. The two paths are described in inbox.h; admit.c reads and
 * writes what a transaction needs, leases.c has claims and their ends.
 *
 * Deliveries become items. A message whose id cannot be used is kept under its position, or under the digest of its
 * payload and of that id where it has none, so that nothing is lost (the verdict is `no_id`). An id whose source cannot
 * be used is such an id. Copies of one id hang on the first of them and share its fate; a copy with another payload is
 * a conflict. Items are sorted by order key, else by lock key, in arrival order within a key (P61).
 *
 * One transaction runs over all of them. If it fails it is rolled back and cut: around the culprit where a handler
 * failed, in half where nobody knows. The pieces run in order, so the order of a key survives: if the first piece parks
 * or fails a message, the later ones see it. An unknown commit is answered by a new connection and the same piece
 * again: admission then reads what was committed (P15). After the commit the deliveries get their acts; nothing is
 * written then.
 *
 * After a failure the inbox is wary for the next WARY messages: savepoints part the handlers of a transaction into runs
 * of a few messages. When a handler fails, its run is rolled back to the savepoint, those before it run again, deferred
 * constraints are forced, and the suspect runs alone behind a savepoint of its own. If it fails again, the failure is
 * recorded in this transaction. Messages that were judged as if the failed one had succeeded are left out: their rows
 * are removed again, and they run in the next transaction, which sees the failure. These are the messages behind it in
 * its order key, those that were judged by a business key which it holds, and in turn those that depend on these. Where
 * that is not possible (one of them has run already), or the failure is of another kind, the batch is cut as above.
 *
 * Invariants: handlers run between guard(true) and guard(false). In a transaction of several messages a failure blames
 * somebody only where the inbox is wary, `each` is used, and the same message failed twice: in its run, and alone
 * behind a savepoint with the constraints of all before it forced. The failure has to be the handler's own word, or
 * one of its data (class 22 or 23). Otherwise a failure blames nobody: it names the culprit, and the caller cuts. In a
 * transaction of one the handler runs behind a savepoint, deferred constraints are forced (P62), and the failure is
 * recorded in the same transaction, under the same locks. A message that is left out changes nothing in this
 * transaction and is not reported by it. A set-based handler has to name each of its messages exactly once (P57), and
 * is never run in parts. A message that is only stored (semel__inbox_put) or recorded (semel__inbox_record) is judged
 * as a delivery is, so that a duplicate, a conflict or a blocked key gets the same answer; no handler is called. A put
 * counts no attempt, and does not change a row that is there already; a record counts one attempt. Messages that are
 * undecided when the environment fails are LATER.
 */
#include "core/inbox.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/positions.h"
#include "core/work.h"

#define ARENA_MAX ((size_t)1 << 30)
#define TOGETHER_MAX 100 /* suspects behind one claim: so many run alone when one of them kills the process */
#define WARY 5000        /* messages after a failure during which savepoints are set */
#define RUN 16           /* messages between two savepoints ... */
#define RUNS_MAX 48      /* ... unless the batch has more: a backend of PostgreSQL remembers 64 subtransactions */
#define WINDOW 128       /* messages that a wary batch queues at first before it waits; doubled by each success */
#define WINDOW_MIN 64    /* the same after a failure: what is queued behind the next one is queued in vain */

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

/* ---- items from deliveries ------------------------------------------------------------------------- */

/* Reports the gravest mistake, of equal ones the first. A message that is too large was not read, so its fields are
 * missing as well. */
static semel_status flaw(struct semel_arena *arena, struct semel__msg *msg, enum semel_defect defect,
                         const struct semel_error *why, struct semel_error *err)
{
    static const int weight[] = {
        [SEMEL_DEFECT_NONE] = 0, [SEMEL_DEFECT_FIELD] = 1, [SEMEL_DEFECT_SIZE] = 2, [SEMEL_DEFECT_NO_ID] = 3};
    if (weight[defect] <= weight[msg->defect])
        return SEMEL_OK;
    msg->defect = defect;
    if (!semel__arena_copy(arena, semel__str(why->text), &msg->defect_text))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* An id for a message without one: its position, else the digest of its payload; both are marked, so that they equal no
 * real id. The digest includes an id or a source that cannot be used, which still tells messages apart. */
static semel_status substitute_id(struct semel_arena *arena, struct semel__msg *msg, struct semel_error *err)
{
    char text[SEMEL_ID_MAX + 1];
    unsigned char digest[SEMEL_SHA256];
    int n = snprintf(text, sizeof text, "position:%.*s", (int)(msg->position.n < 1000 ? msg->position.n : 1000),
                     msg->position.n > 0 ? msg->position.p : "");
    bool fits = n > 0 && (size_t)n < sizeof text && semel__id_check("position", msg->position, 1, NULL) == SEMEL_OK;
    if (!fits) {
        const bool foreign = semel__id_check("source", msg->source, 0, NULL) != SEMEL_OK;
        const struct semel_str parts[] = {msg->payload, msg->id, msg->source};
        if (!semel__sha256(parts, foreign ? 3 : 2, digest))
            return semel__fail_memory(err);
        snprintf(text, sizeof text, "sha256:");
        semel__hex(digest, sizeof digest, text + strlen(text));
    }
    return semel__arena_copy(arena, semel__str(text), &msg->id) ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status check_key(struct semel_arena *arena, struct semel__msg *msg, const char *what,
                              struct semel_str *key, struct semel_error *err)
{
    struct semel_error why;
    if (!semel__str_given(*key) || semel__id_check(what, *key, 0, &why) == SEMEL_OK)
        return SEMEL_OK;
    *key = (struct semel_str){0};
    return flaw(arena, msg, SEMEL_DEFECT_FIELD, &why, err);
}

static semel_status check_order(const struct semel_policy *policy, struct semel_arena *arena, struct semel__msg *msg,
                                struct semel_error *err)
{
    struct semel_error why;
    if (policy->order == SEMEL_ORDER_NONE) {
        return SEMEL_OK;
    } else if (policy->order == SEMEL_ORDER_VERSION && !semel__str_given(msg->order_key)) {
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                    "the route goes by versions, and the message has no order key");
    } else if (policy->order == SEMEL_ORDER_VERSION && (msg->version < 0 || msg->version == INT64_MAX)) {
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                    "the route goes by versions, and the message has none; it must be a whole number from 0");
        msg->version = SEMEL_NONE;
    } else {
        return SEMEL_OK;
    }
    return flaw(arena, msg, SEMEL_DEFECT_FIELD, &why, err);
}

static semel_status check_size(const struct semel_policy *policy, struct semel_arena *arena, struct semel__msg *msg,
                               struct semel_error *err)
{
    struct semel_error why;
    size_t max = policy->payload_max;
    if (msg->payload.n > max)
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the payload has %zu bytes; the route allows %zu",
                    msg->payload.n, max);
    else if (msg->headers.n > SEMEL_HEADERS_MAX)
        semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the headers have %zu bytes; at most %d are allowed",
                    msg->headers.n, SEMEL_HEADERS_MAX);
    else
        return SEMEL_OK;
    if (msg->headers.n > SEMEL_HEADERS_MAX)
        msg->headers = (struct semel_str){0};
    return flaw(arena, msg, SEMEL_DEFECT_SIZE, &why, err);
}

/* Drops texts that only people read and that no row can hold: they are not worth a dead letter. */
static void drop_unfit(struct semel__msg *msg)
{
    if (semel__id_check("type", msg->type, 0, NULL) != SEMEL_OK)
        msg->type = (struct semel_str){0};
    if (semel__id_check("traceparent", msg->traceparent, 0, NULL) != SEMEL_OK)
        msg->traceparent = (struct semel_str){0};
    if (msg->position.n > SEMEL_POSITION_MAX || !semel__utf8_valid(msg->position))
        msg->position = (struct semel_str){0};
    if (!semel__utf8_valid(msg->headers))
        msg->headers = (struct semel_str){0};
    if (msg->n_business > SEMEL_BUSINESS_MAX)
        msg->n_business = SEMEL_BUSINESS_MAX;
}

static semel_status fit(const struct semel_policy *policy, struct semel_arena *arena, const struct semel__msg *given,
                        struct semel__msg *msg, struct semel_error *err)
{
    struct semel_error why;
    *msg = *given;
    drop_unfit(msg);
    if (policy->one_source || !semel__str_given(msg->source))
        msg->source = (struct semel_str){"", 0};
    semel_status status = SEMEL_OK;
    if (semel__id_check("message id", msg->id, 1, &why) != SEMEL_OK ||
        semel__id_check("source", msg->source, 0, &why) != SEMEL_OK) /* an id is one of its source */
        status = flaw(arena, msg, SEMEL_DEFECT_NO_ID, &why, err);
    if (status == SEMEL_OK && msg->defect == SEMEL_DEFECT_NO_ID)
        status = substitute_id(arena, msg, err);
    if (semel__id_check("source", msg->source, 0, NULL) != SEMEL_OK)
        msg->source = (struct semel_str){"", 0};
    if (status == SEMEL_OK)
        status = check_key(arena, msg, "order key", &msg->order_key, err);
    for (size_t i = 0; status == SEMEL_OK && i < msg->n_business; i++)
        status = check_key(arena, msg, "business key", &msg->business[i], err);
    if (status == SEMEL_OK)
        status = check_order(policy, arena, msg, err);
    if (status == SEMEL_OK)
        status = check_size(policy, arena, msg, err);
    return status;
}

static int cmp_size(size_t a, size_t b)
{
    return (a > b) - (a < b);
}

static int cmp_id(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    int c = semel__str_cmp(a->msg->source, b->msg->source);
    if (c == 0)
        c = semel__str_cmp(a->msg->id, b->msg->id);
    return c != 0 ? c : cmp_size(a->place, b->place);
}

/* Messages without an order key come first: a lock key that equals an order key must not part the messages of that
 * key. */
static int cmp_items(const struct item *a, const struct item *b)
{
    assert(a != NULL && b != NULL);
    int c = semel__str_cmp(a->msg->order_key, b->msg->order_key);
    if (c == 0 && !semel__str_given(a->msg->order_key))
        c = semel__str_cmp(a->msg->lock_key, b->msg->lock_key);
    return c != 0 ? c : cmp_size(a->place, b->place);
}

static int cmp_run(const void *va, const void *vb)
{
    return cmp_items(*(struct item *const *)va, *(struct item *const *)vb);
}

/* Copies hang on the first item of their id; an item that was merged has no message any more. */
static semel_status merge(struct semel_arena *arena, struct item **by_id, size_t n, struct semel_error *err)
{
    struct item *first = NULL;
    for (size_t i = 0, rank = 0; i < n; i++) {
        struct item *item = by_id[i];
        if (first == NULL || !semel__str_eq(first->msg->id, item->msg->id) ||
            !semel__str_eq(first->msg->source, item->msg->source)) {
            first = item;
            first->rank = rank++;
            continue;
        }
        struct copy *copy = semel__arena_alloc(arena, 1, sizeof *copy);
        if (copy == NULL)
            return semel__fail_memory(err);
        *copy = (struct copy){item->msg, item->out, semel__fp_differs(&first->msg->fp, &item->msg->fp), first->copies};
        if (!semel__str_given(first->msg->payload) && semel__str_given(copy->msg->payload)) {
            copy->msg = first->msg; /* the copy that brings the payload stands for all */
            first->msg = item->msg;
        }
        first->copies = copy;
        first->may_have_crashed |= item->may_have_crashed;
        item->msg = NULL;
    }
    return SEMEL_OK;
}

/* On an ordered route all messages of a key that has a suspect are suspects: they must keep their order. */
static void spread_doubt(const struct semel_policy *policy, struct item **items, size_t n)
{
    for (size_t i = 0, j; policy->order != SEMEL_ORDER_NONE && i < n; i = j) {
        bool may_have_crashed = false;
        for (j = i; j < n && semel__str_eq(items[j]->msg->order_key, items[i]->msg->order_key); j++)
            may_have_crashed |= items[j]->may_have_crashed;
        for (size_t k = i; may_have_crashed && semel__str_given(items[i]->msg->order_key) && k < j; k++)
            items[k]->may_have_crashed = true;
    }
}

/* Items from messages: ids made fit, copies merged, sorted into run order. *n: messages, and then items. */
semel_status semel__items_prepare(struct semel_inbox *inbox, struct semel_arena *arena, const struct semel__msg *msgs,
                                  size_t *n, struct semel_settled *out, struct item ***ret_items,
                                  struct semel_error *err)
{
    const struct semel_policy *policy = inbox->policy;
    struct item *all = semel__arena_room(arena, *n, sizeof *all);
    struct semel__msg *fitted = semel__arena_room(arena, *n, sizeof *fitted);
    struct item **items = semel__arena_alloc(arena, *n, sizeof *items);
    semel_status status = all == NULL || fitted == NULL || items == NULL ? semel__fail_memory(err) : SEMEL_OK;
    size_t kept = 0;
    for (size_t i = 0; status == SEMEL_OK && i < *n; i++) {
        status = fit(policy, arena, &msgs[i], &fitted[i], err);
        if (policy->order == SEMEL_ORDER_NONE) {
            if (!semel__str_given(fitted[i].lock_key))
                fitted[i].lock_key = fitted[i].order_key;
            fitted[i].order_key = (struct semel_str){0};
        }
        all[i] = (struct item){.msg = &fitted[i],
                               .place = i,
                               .out = &out[i],
                               .may_have_crashed = msgs[i].delivery > 1,
                               .adopt_until_us = SEMEL_NONE};
        items[i] = &all[i];
    }
    if (status != SEMEL_OK)
        return status;
    semel__sort(items, *n, sizeof *items, cmp_id);
    status = merge(arena, items, *n, err);
    for (size_t i = 0; status == SEMEL_OK && i < *n; i++) /* in order of arrival, which often is that of the run */
        if (all[i].msg != NULL)
            items[kept++] = &all[i];
    if (status != SEMEL_OK)
        return status;
    *n = kept;
#ifndef SEMEL_MUTANT_NO_SORT
    semel__sort(items, *n, sizeof *items, cmp_run);
#endif
    spread_doubt(policy, items, *n);
    *ret_items = items;
    return SEMEL_OK;
}

/* ---- after the commit ------------------------------------------------------------------------------ */

enum semel_act semel__act_for(enum semel_row_status state, bool kept)
{
    switch (state) {
    case SEMEL_ROW_COMPLETED:
    case SEMEL_ROW_REJECTED:
    case SEMEL_ROW_STALE:
    case SEMEL_ROW_PREVENTED:
    case SEMEL_ROW_DEAD:
    case SEMEL_ROW_QUARANTINED:
        return SEMEL_ACK;
    case SEMEL_ROW_FAILED:
    case SEMEL_ROW_WAITING:
    case SEMEL_ROW_UNKNOWN:
        return kept ? SEMEL_ACK : SEMEL_LATER;
    case SEMEL_ROW_PROCESSING:
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_COUNT:
        return SEMEL_LATER;
    }
    return SEMEL_LATER;
}

static void alert(struct semel_inbox *inbox, enum semel_alert alert, const struct semel__msg *msg,
                  struct semel_str text)
{
    inbox->counts.alerts[alert]++;
    if (inbox->observer.alert != NULL)
        inbox->observer.alert(inbox->observer.ctx, alert, msg, text);
}

static bool kept(const struct work *work, const struct item *item)
{
    bool brought = semel__str_given(item->msg->payload);
    return (brought && semel__payload_stays(work->inbox->policy, item->progress.state)) ||
           (item->row != NULL && item->row->kept);
}

static void count_end(struct semel_inbox *inbox, const struct item *item)
{
    const struct semel_progress *progress = &item->progress;
    inbox->counts.done += progress->state == SEMEL_ROW_COMPLETED;
    inbox->counts.failed += item->ended && progress->state != SEMEL_ROW_REJECTED;
    if (item->ended && progress->state != SEMEL_ROW_REJECTED)
        semel__str_show(inbox->why, sizeof inbox->why, progress->error_text);
    inbox->counts.rejected += progress->state == SEMEL_ROW_REJECTED;
    inbox->counts.classes[progress->error_class] += item->ended || progress->state == SEMEL_ROW_REJECTED;
}

static void raise_alerts(struct semel_inbox *inbox, const struct item *item)
{
    const struct semel_progress *progress = &item->progress;
    if (item->verdict.why == SEMEL_WHY_DAMAGED)
        alert(inbox, SEMEL_ALERT_DAMAGED, item->msg, semel__str(item->damage->text));
    if (item->verdict.why == SEMEL_WHY_CONFLICT)
        alert(inbox, SEMEL_ALERT_CONFLICT, item->msg, SEMEL_STR("the same id came with another payload"));
    if (item->removed && item->verdict.full)
        alert(inbox, SEMEL_ALERT_PARKED_FULL, item->msg,
              semel__msg_large(inbox->policy, item->msg)
                  ? SEMEL_STR("100 messages above payload_max are kept already: the source pauses")
                  : SEMEL_STR("too many messages are parked: the source pauses"));
    if (!item->changed || item->adopted)
        return;
    if (progress->state == SEMEL_ROW_DEAD)
        alert(inbox, SEMEL_ALERT_DEAD, item->msg, progress->error_text);
    if (progress->state == SEMEL_ROW_QUARANTINED)
        alert(inbox, SEMEL_ALERT_QUARANTINED, item->msg, progress->error_text);
    if (progress->state == SEMEL_ROW_UNKNOWN)
        alert(inbox, SEMEL_ALERT_UNKNOWN, item->msg, progress->error_text);
    if (progress->state == SEMEL_ROW_WAITING && item->row != NULL &&
        item->row->progress.error_class == SEMEL_CLASS_GAP && progress->error_class == SEMEL_CLASS_GAP)
        alert(inbox, SEMEL_ALERT_GAP, item->msg, SEMEL_STR("versions are still missing after the time-out"));
}

static semel_status report_copies(struct semel_inbox *inbox, const struct item *item)
{
    for (const struct copy *copy = item->copies; copy != NULL; copy = copy->next) {
        if (copy->out == NULL)
            continue;
        *copy->out = *item->out;
        copy->out->why = copy->conflict ? SEMEL_WHY_CONFLICT : SEMEL_WHY_DUPLICATE;
        if (copy->conflict) {
            copy->out->act = SEMEL_ACK;
            alert(inbox, SEMEL_ALERT_CONFLICT, copy->msg, SEMEL_STR("the same id came with another payload"));
        }
        inbox->counts.why[copy->out->why]++;
    }
    return SEMEL_OK;
}

/* The message's end is still to come, and will be reported. */
static bool unended(const struct item *item)
{
    bool claimed = item->verdict.act == SEMEL_RUN && item->progress.state == SEMEL_ROW_PROCESSING;
    return claimed || item->deferred || item->left;
}

/* The act that the item's delivery gets if the transaction commits; LATER where its end is still to come. */
static enum semel_act item_act(const struct work *work, const struct item *item)
{
    if (unended(item) || (item->fenced && item->row == NULL))
        return SEMEL_LATER;
    bool ran = item->verdict.act == SEMEL_RUN;
    return ran || item->fenced ? semel__act_for(item->progress.state, kept(work, item)) : item->verdict.act;
}

static semel_status report_item(struct work *work, struct item *item, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    bool ran = item->verdict.act == SEMEL_RUN;
    struct semel_str outcome = {0};
    if (unended(item))
        return SEMEL_OK;
    item->settled = true;
    if (ran)
        count_end(inbox, item);
    inbox->counts.fenced += item->fenced;
    raise_alerts(inbox, item);
    if (item->out == NULL)
        return SEMEL_OK;
    inbox->counts.why[item->verdict.why]++;
    if ((ran || item->row != NULL) && !semel__arena_copy(&inbox->arena, item->progress.outcome, &outcome))
        return semel__fail_memory(err);
    bool known = item->admit == NULL ? item->row != NULL : item->damage == NULL;
    *item->out = (struct semel_settled){
        .act = item_act(work, item),
        .why = item->verdict.why,
        .state = item->removed || !known ? SEMEL_ROW_ABSENT : item->progress.state,
        .attempt = item->verdict.attempt,
        .due_us = item->progress.due_us,
        .cls = item->progress.error_class,
        .kept = item->row != NULL && item->row->kept,
        .outcome = outcome,
    };
    return report_copies(inbox, item);
}

semel_status semel__work_report(struct work *work, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < work->n && status == SEMEL_OK; i++)
        status = report_item(work, work->items[i], err);
    return status;
}

/* ---- the handlers of one transaction --------------------------------------------------------------- */

bool semel__reply_set(struct semel__reply *reply, enum semel_result result, struct semel_str reason,
                      struct semel_str outcome)
{
    reply->result = result;
    return semel__arena_copy(reply->arena, reason, &reply->reason) &&
           semel__arena_copy(reply->arena, outcome, &reply->outcome);
}

bool semel__is_environment(semel_status status, const struct semel_error *err)
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

static semel_status failed(struct item *item, const struct semel__reply *reply, struct semel_error *err)
{
    item->ending = (struct semel_ending){.result = reply->result, .text = reply->reason, .outcome = reply->outcome};
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_TRANSIENT, "the handler reported %s",
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
    if (status != SEMEL_INVALID || semel__is_environment(status, err))
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

/* The messages of a set-based handler. It names each at its end, mostly in the order in which it was given them. */
struct semel_set {
    const struct semel__msg **msgs;
    const struct semel__msg ***sorted; /* places in msgs, ascending by (id, source) once one is named out of order */
    unsigned char *seen;
    size_t n, named, next;
    bool is_sorted;
    bool wrong; /* a name of no message of the set, or a repeat */
};

static int cmp_set(const void *va, const void *vb)
{
    const struct semel__msg *a = **(const struct semel__msg **const *)va;
    const struct semel__msg *b = **(const struct semel__msg **const *)vb;
    int c = semel__str_cmp(a->id, b->id);
    return c != 0 ? c : semel__str_cmp(a->source, b->source);
}

/* The place of the message in the set; set->n: none has this name. */
static size_t find_named(struct semel_set *set, struct semel_str source, struct semel_str id)
{
    const struct semel__msg key = {.source = source, .id = id}, *p = &key, **place = &p;
    if (!set->is_sorted) {
        for (size_t i = 0; i < set->n; i++)
            set->sorted[i] = &set->msgs[i];
        semel__sort(set->sorted, set->n, sizeof *set->sorted, cmp_set);
        set->is_sorted = true;
    }
    const struct semel__msg ***hit = bsearch(&place, set->sorted, set->n, sizeof *set->sorted, cmp_set);
    return hit != NULL ? (size_t)(*hit - set->msgs) : set->n;
}

void semel__set_add(struct semel_set *set, struct semel_str source, struct semel_str id)
{
    size_t at = set->next;
    if (at == set->n || !semel__str_eq(set->msgs[at]->id, id) || !semel__str_eq(set->msgs[at]->source, source))
        at = find_named(set, source, id);
    if (at == set->n || set->seen[at] != 0) {
        set->wrong = true;
        return;
    }
    set->seen[at] = 1;
    set->named++;
    set->next = at + 1;
}

/* The next round: the first message of each key that has not run yet. Items of one key are neighbours. */
static size_t pick_set(struct work *work, unsigned char *taken, const struct semel__msg **msgs)
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
    struct semel_set set = {.msgs = msgs, .n = n};
    set.sorted = semel__arena_alloc(&inbox->scratch, n, sizeof *set.sorted);
    set.seen = semel__arena_alloc(&inbox->scratch, n, 1);
    if (set.sorted == NULL || set.seen == NULL)
        return semel__fail_memory(err);
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
    for (size_t n; (n = pick_set(work, taken, msgs)) > 0;) {
        semel_status status = run_round(work, msgs, n, err);
        if (status != SEMEL_OK)
            return work->n == 1 ? blame(work->inbox, work->items[0], status, err) : status;
    }
    for (size_t i = 0; i < work->n; i++)
        work->items[i]->ending = (struct semel_ending){.result = SEMEL_DONE};
    return SEMEL_OK;
}

/* `progress` is that of a success until now, with the start counted. */
void semel__item_end(struct work *work, struct item *item)
{
    struct semel_progress before = item->progress;
    semel__progress_finish(work->inbox->policy, &before, &item->ending, work->now_us, work->inbox->rng,
                           &item->progress);
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
    if (guard == SEMEL_OK || semel__is_environment(status, err))
        return status;
    /* The handler ended the transaction (P58): whatever it said, nothing can be recorded in it any more. */
    *err = ended;
    if (work->n != 1)
        return guard;
    guard = blame(inbox, work->items[0], guard, err);
    work->items[0]->forced = guard == SEMEL_INVALID && !semel__is_environment(guard, err);
    return guard;
}

/* May this failure be blamed on one message within a transaction of several? */
static bool is_own(const struct work *work, semel_status status, const struct semel_error *err)
{
    return status == SEMEL_INVALID && !semel__is_environment(status, err) &&
           (err->code == 0 || semel_store_data_fault(work->inbox->store, err));
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
        if (is_own(work, status, err))
            work->inbox->wary_deferred = WARY;
    }
    if (status != SEMEL_INVALID || semel__is_environment(status, err) || item->forced)
        return status;
    SEMEL_POINT(SINGLE_FAILED);
    return semel_store_rollback_to(store, err);
}

/* ---- small runs behind savepoints, after a failure ------------------------------------------------- */

/* The items of `work` from `from` up to `to`, of which those before the last savepoint stand when a later one fails. */
struct span {
    size_t from, to;
    size_t run;   /* messages between two savepoints */
    bool suspect; /* the last of them runs alone behind a savepoint: it may be blamed */
    size_t base;  /* out: the first item behind the savepoint that counts */
    bool ended;   /* out: the transaction is not ours any more (P58) */
};

/* Ends a run: the next one begins at item `next`. A suspect is checked under its own tag; what is no handler's has a
 * tag above n, which names the run. */
static semel_status end_run(struct work *work, struct span *span, size_t next, struct semel_error *err)
{
    struct semel_store *store = work->inbox->store;
    semel_status status = SEMEL_OK;
    store->tag = work->n + 1 + span->base;
    if (span->suspect ? next < span->to : work->inbox->wary_deferred > 0)
        status = semel_store_check(store, err);
    if (status == SEMEL_OK && next < work->n)
        status = semel_store_savepoint(store, err);
    if (status == SEMEL_OK)
        span->base = next;
    return status;
}

static bool begins_run(const struct span *span, size_t i)
{
    return span->suspect ? i + 1 == span->to : i > span->from && (i - span->from) % span->run == 0;
}

static semel_status run_items(struct work *work, struct span *span, struct semel_error *err)
{
    struct semel_store *store = work->inbox->store;
    semel_status status = SEMEL_OK;
    span->base = span->from;
    for (size_t i = span->from; status == SEMEL_OK && i < span->to; i++) {
        if (begins_run(span, i))
            status = end_run(work, span, i, err);
        if (status != SEMEL_OK || work->items[i]->verdict.act != SEMEL_RUN)
            continue;
        store->tag = i;
        status = run_one(work->inbox, work->items[i], err);
    }
    if (status == SEMEL_OK && span->suspect) /* P62: a constraint that it left to the COMMIT is its own failure */
        status = blame(work->inbox, work->items[span->to - 1], semel_store_check(store, err), err);
    return status == SEMEL_OK ? end_run(work, span, span->to, err) : status;
}

/* From the tag of the failed statement: who failed (n: one of its run), and from which item on nothing stands. */
static void find_culprit(struct work *work, struct span *span, size_t tag)
{
    work->culprit = tag < work->n ? tag : work->n;
    if (tag > work->n)
        span->base = tag - work->n - 1;
    else if (span->suspect)
        span->base = tag + 1 == span->to ? tag : span->from;
    else if (tag < work->n)
        span->base = tag - (tag - span->from) % span->run;
}

/* OK: the guard is still on. Not OK: it is off; work->culprit and span->base name the place. */
static semel_status run_span(struct work *work, struct span *span, struct semel_error *err)
{
    struct semel_store *store = work->inbox->store;
    struct semel_error late;
    size_t tag = work->n;
    semel_status status = semel_store_guard(store, true, err);
    if (status != SEMEL_OK)
        return status;
    status = run_items(work, span, err);
    semel_status queued = semel_store_collect(store, &tag, &late);
    if (queued != SEMEL_OK)
        *err = late;
    find_culprit(work, span, queued != SEMEL_OK ? tag : store->tag);
    if (queued != SEMEL_OK)
        status = work->culprit < work->n ? blame(work->inbox, work->items[work->culprit], queued, err) : queued;
    if (status == SEMEL_OK)
        return status;
    semel_status guard = semel_store_guard(store, false, &late);
    if (guard == SEMEL_OK || semel__is_environment(status, err))
        return status;
    span->ended = true;
    *err = late;
    return guard;
}

static void leave_out(struct item *item)
{
    item->left = true;
    item->removed = item->admit != NULL && item->admit->inserted;
    item->deferred = item->changed = item->adopted = false;
    item->verdict = (struct semel__verdict){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
}

/* One pass over the items. *ret_more: one more of them is left out. false: one that should be has run already. */
static bool leave_pass(struct work *work, size_t failed, bool rest, bool *ret_more)
{
    const struct semel_key *key = NULL;
    bool behind = false;
    *ret_more = false;
    for (size_t i = 0; i < work->n; i++) {
        struct item *item = work->items[i];
        behind = behind && item->key != NULL && item->key == key;
        key = item->key;
        bool depends = behind || (rest && i > failed) || semel__item_judged_by(work, item, work->items[failed]);
        if (i != failed && depends && !item->left && !item->fenced) {
            if (i < failed && item->verdict.act == SEMEL_RUN)
                return false;
            leave_out(item);
            *ret_more = true;
        }
        behind = behind || i == failed || item->left;
    }
    return true;
}

/* Is one more failure the last one that the route allows in a row? Then no message behind it runs (P63). */
static bool too_many(const struct work *work, size_t failed)
{
    const struct semel_inbox *inbox = work->inbox;
    int failures = inbox->failures;
    for (size_t i = 0; inbox->failures_max > 0 && i <= failed; i++) {
        const enum semel_result result = work->items[i]->ending.result;
        if (work->items[i]->verdict.act == SEMEL_RUN)
            failures = result == SEMEL_DONE || result == SEMEL_REJECTED ? 0 : failures + 1;
    }
    return inbox->failures_max > 0 && failures >= inbox->failures_max;
}

/* Items that were judged as if items[failed] would succeed do not run here. false: one of them has run already. */
static bool leave_dependents(struct work *work, size_t failed)
{
    bool rest = too_many(work, failed), more = true, sound = true;
    while (sound && more)
        sound = leave_pass(work, failed, rest, &more);
    return sound;
}

/* How far a wary batch has come. */
struct stand {
    size_t next;     /* the items before it have their end; the savepoint is set here */
    size_t suspect;  /* runs alone when the items before it have run; n: no item */
    size_t alone_to; /* each item before this one is a suspect */
    size_t window;
};

/* After a failure in `span`: finds which items stand, and which is the suspect. Not OK: the batch must be cut (INVALID,
 * err stays as it is), or the environment failed. */
static semel_status step_back(struct work *work, const struct span *span, struct stand *at, struct semel_error *err)
{
    const struct semel_error why = *err;
    const size_t culprit = work->culprit;
    const bool again = culprit < work->n && culprit == at->suspect;
    semel_status status = semel_store_rollback_to(work->inbox->store, err);
    if (status == SEMEL_OK && culprit == work->n) /* a deferred constraint: was it broken before this run? */
        status = semel_store_check(work->inbox->store, err);
    if (status != SEMEL_OK && semel__is_environment(status, err))
        return status;
    if (status == SEMEL_OK && again)
        SEMEL_POINT(BATCH_BLAMED);
    if (status != SEMEL_OK || (again && !leave_dependents(work, culprit))) {
        *err = why;
        return SEMEL_INVALID;
    }
    at->next = again ? culprit + 1 : span->base;
    at->suspect = again ? work->n : culprit;
    if (culprit == work->n) {
        at->alone_to = span->base + span->run < span->to ? span->base + span->run : span->to - span->suspect;
        work->inbox->wary_deferred = WARY;
    }
    at->window = WINDOW_MIN;
    return SEMEL_OK;
}

/* Runs the handlers of a wary batch. */
static semel_status run_wary(struct work *work, struct semel_error *err)
{
    const size_t n = work->n, least = work->inbox->run > 0 ? work->inbox->run : RUN;
    const size_t run = n / RUNS_MAX > least ? n / RUNS_MAX : least;
    struct stand at = {.suspect = n, .window = WINDOW};
    semel_status status = semel_store_savepoint(work->inbox->store, err);
    for (size_t tries = 0; status == SEMEL_OK && at.next < n; tries++) {
        if (at.suspect == n && work->items[at.next]->verdict.act != SEMEL_RUN) {
            at.next++;
            continue;
        }
        if (at.next < at.alone_to)
            at.suspect = at.next;
        const size_t window = at.window < n - at.next ? at.window : n - at.next;
        struct span span = {.from = at.next, .run = run, .suspect = at.suspect < n};
        span.to = span.suspect ? at.suspect + 1 : at.next + window;
        status = run_span(work, &span, err);
        if (status == SEMEL_OK) {
            at.next = span.to;
            at.suspect = n;
            at.window = at.window <= n ? 2 * at.window : at.window;
        } else if (!span.ended && tries < 8 * n && is_own(work, status, err)) {
            status = step_back(work, &span, &at, err);
        } else {
            return status;
        }
    }
    if (status != SEMEL_OK)
        return status;
    work->culprit = n;
    return semel_store_guard(work->inbox->store, false, err);
}

/* Runs the handlers of all items that run. work->culprit is the one that failed. */
static semel_status work_run(struct work *work, bool single, struct semel_error *err)
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
        status = work->inbox->wary > 0 && work->inbox->handler->set == NULL ? run_wary(work, err) : run_all(work, err);
    for (size_t i = 0; status == SEMEL_OK && i < work->n; i++)
        if (work->items[i]->verdict.act == SEMEL_RUN)
            semel__item_end(work, work->items[i]);
    return status;
}

/* ---- transactions, cut until every item has its end ------------------------------------------------ */

/* The positions of the batch move with it when this transaction is all of it, and all of it will be acknowledged. */
static semel_status mark(struct work *work, struct semel_error *err)
{
    struct semel_position_updates *position_updates = work->inbox->position_updates;
    work->positions_moved = false;
    if (position_updates == NULL)
        return SEMEL_OK;
    bool all = work->n == position_updates->whole;
    for (size_t i = 0; all && i < work->n; i++)
        all = item_act(work, work->items[i]) == SEMEL_ACK;
    semel_status status = semel__position_updates_move(position_updates, work->inbox, all, work->now_us, err);
    work->positions_moved = status == SEMEL_OK && all;
    return status;
}

/* A single message that fails by itself is recorded and is OK. */
static semel_status process(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct work *work = ctx;
    bool single = work->n == 1;
    (void)undo;
    semel__arena_reset(&work->inbox->scratch);
    work->batch = (struct semel_admit_batch){0};
    work->culprit = work->n;
    work->now_us = now_us;
    work->begun = true;
    work->inbox->counts.transactions++;
    for (size_t i = 0; i < work->n; i++)
        work->items[i]->left = false;
    SEMEL_POINT(BATCH_BEGUN);
    semel_status status = work_leased(work) ? semel__work_fetch(work, err) : semel__work_admit(work, err);
    if (status != SEMEL_OK)
        return status;
    SEMEL_POINT(BATCH_ADMITTED);
    status = work_run(work, single, err);
    if (status != SEMEL_OK)
        return status;
    SEMEL_POINT(BATCH_HANDLED);
    status = semel__work_settle(work, err);
    if (status == SEMEL_OK)
        status = mark(work, err);
    if (status != SEMEL_OK)
        return status;
    if (single && work->items[0]->ended)
        SEMEL_POINT(SINGLE_RECORDED);
    SEMEL_POINT(BATCH_SETTLED);
    return SEMEL_OK;
}

/* A deferred constraint that refuses the commit leaves no transaction in which its failure could be recorded. */
static bool force_ending(struct semel_inbox *inbox, struct item *item, semel_status status,
                         const struct semel_error *err)
{
    if (item->forced || status != SEMEL_INVALID || semel__is_environment(status, err))
        return false;
    item->ending = (struct semel_ending){.result = err->cls == SEMEL_CLASS_PERMANENT ? SEMEL_PERMANENT
                                                                                     : SEMEL_TRANSIENT};
    item->forced = semel__arena_copy(&inbox->arena, (struct semel_str){err->text, strlen(err->text)},
                                     &item->ending.text);
    return item->forced;
}

static void begin_anew(void *ctx)
{
    ((struct work *)ctx)->begun = false;
}

static semel_status run_piece(struct work *work, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = process, .unknown = begin_anew, .again = true};
    struct item **items = work->items;
    for (;;) {
        bool forced = items[0]->forced;
        work->begun = false;
        semel_status status = semel__transaction_run(work->inbox->store, &tx, work, err);
        /* Marked by the handler's run, or to be marked now because the commit itself refused. */
        if (work->n == 1 && !forced && status != SEMEL_OK &&
            (items[0]->forced || force_ending(work->inbox, items[0], status, err)))
            continue;
        if (status != SEMEL_OK)
            return status;
        SEMEL_POINT(BATCH_COMMITTED);
        if (work->positions_moved)
            work->inbox->position_updates->moved = true;
        return semel__work_report(work, err);
    }
}

static void count_failures(struct semel_inbox *inbox, struct item **items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i]->verdict.act != SEMEL_RUN)
            continue;
        inbox->wary = items[i]->ended ? WARY : inbox->wary - (inbox->wary > 0);
        inbox->wary_deferred -= inbox->wary_deferred > 0;
        inbox->counts.blamed += n > 1 && items[i]->ended;
        bool failed = items[i]->progress.state == SEMEL_ROW_FAILED || items[i]->progress.state == SEMEL_ROW_DEAD ||
                      items[i]->progress.state == SEMEL_ROW_UNKNOWN;
        inbox->failures = failed ? inbox->failures + 1 : 0;
    }
}

size_t semel__items_held(const struct semel_inbox *inbox, struct item **items, size_t done, size_t n)
{
    size_t held = 0;
    bool refused = false;
    if (inbox->policy->order != SEMEL_ORDER_ARRIVAL || done == 0)
        return 0;
    struct semel_str key = items[done - 1]->msg->order_key;
    if (!semel__str_given(key))
        return 0;
    for (size_t i = done; i > 0 && !refused && semel__str_eq(items[i - 1]->msg->order_key, key); i--)
        refused = items[i - 1]->removed;
    for (; refused && done + held < n && semel__str_eq(items[done + held]->msg->order_key, key); held++)
        items[done + held]->settled = true;
    return held;
}

size_t semel__items_open(struct item **items, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (!items[i]->settled)
            items[k++] = items[i];
    return k;
}

semel_status semel__items_may_run(const struct semel_inbox *inbox, struct semel_error *err)
{
    if (inbox->failures_max <= 0 || inbox->failures < inbox->failures_max)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%d messages failed in a row: the route pauses",
                       inbox->failures);
}

/* The items that a transaction has left out, in their order: they run next, before the rest of the batch. *own: memory
 * for them, which the caller keeps; NULL at first. */
static semel_status take_left(struct semel_inbox *inbox, struct item ***items, size_t *n, struct item ***own,
                              struct semel_error *err)
{
    size_t k = 0;
    for (size_t i = 0; i < *n; i++)
        k += (*items)[i]->left;
    if (k > 0 && *own == NULL && (*own = semel__arena_alloc(&inbox->arena, k, sizeof **own)) == NULL)
        return semel__fail_memory(err);
    k = 0;
    for (size_t i = 0; i < *n; i++)
        if ((*items)[i]->left)
            (*own)[k++] = (*items)[i];
    *items = *own;
    *n = k;
    return SEMEL_OK;
}

semel_status semel__items_run(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    struct item **own = NULL;
    while (n > 0) {
        struct work work = {.inbox = inbox,
                            .mode = items[0]->lease != NULL ? WORK_RUN_LEASED : WORK_PROCESS,
                            .items = items,
                            .n = n};
        semel_status status = semel__items_may_run(inbox, err);
        if (status != SEMEL_OK)
            return status;
        status = run_piece(&work, err);
        size_t culprit = work.culprit;
        if (status == SEMEL_OK) {
            count_failures(inbox, items, n);
            status = take_left(inbox, &items, &n, &own, err);
            if (status != SEMEL_OK)
                return status;
            continue;
        }
        if (n == 1 || semel__is_environment(status, err) || !work.begun)
            return status; /* a transaction that could not begin cannot in a smaller piece either */
        inbox->counts.cuts++;
        inbox->counts.contention += status == SEMEL_RETRY;
        SEMEL_POINT(BATCH_HALVED);
        size_t done = culprit < n ? culprit : n / 2;
        status = semel__items_run(inbox, items, done, err);
        done += semel__items_held(inbox, items, done, n);
        if (status == SEMEL_OK && done == culprit && culprit < n) {
            status = semel__items_run(inbox, items + done, 1, err);
            done++;
            done += semel__items_held(inbox, items, done, n);
        }
        if (status != SEMEL_OK)
            return status;
        items += done;
        n -= done;
    }
    return SEMEL_OK;
}

/* ---- stored to be run later, and recorded ---------------------------------------------------------- */

static semel_status put(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct work *work = ctx;
    (void)undo;
    semel__arena_reset(&work->inbox->scratch);
    work->now_us = now_us;
    work->begun = true;
    work->inbox->counts.transactions++;
    return semel__work_put(work, err);
}

/* Stores the items in halves, in order; of a key of which one was not accepted, no more. */
static semel_status put_items(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    while (n > 0) {
        static const struct semel__transaction tx = {.body = put, .again = true}; /* a stored row stays as it is */
        struct work work = {.inbox = inbox, .mode = WORK_STORE, .items = items, .n = n};
        semel_status status = semel__transaction_run(inbox->store, &tx, &work, err);
        if (status == SEMEL_OK)
            return semel__work_report(&work, err);
        if (n == 1 || semel__is_environment(status, err) || !work.begun)
            return status;
        inbox->counts.cuts++;
        inbox->counts.contention += status == SEMEL_RETRY;
        size_t done = n / 2;
        status = put_items(inbox, items, done, err);
        if (status != SEMEL_OK)
            return status;
        done += semel__items_held(inbox, items, done, n);
        items += done;
        n -= done;
    }
    return SEMEL_OK;
}

semel_status semel__inbox_put_all(struct semel_inbox *inbox, const struct semel__msg *msgs, size_t n,
                                  struct semel_settled *ret_settled, struct semel_error *err)
{
    struct item **items;
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    if (inbox->policy->keep == SEMEL_KEEP_NEVER)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the consumer keeps no payloads (keep_payload): what is stored could never be run");
    for (size_t i = 0; i < n; i++)
        if (!semel__str_given(msgs[i].payload))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                               "a payload is needed, which may be empty: nobody would bring it later");
    semel__arena_reset(&inbox->arena);
    for (size_t i = 0; i < n; i++)
        ret_settled[i] = (struct semel_settled){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
    if (n == 0)
        return SEMEL_OK;
    semel_status status = semel__items_prepare(inbox, &inbox->arena, msgs, &n, ret_settled, &items, err);
    return status == SEMEL_OK ? put_items(inbox, items, n, err) : status;
}

semel_status semel__inbox_put(struct semel_inbox *inbox, const struct semel__msg *msg,
                              struct semel_settled *ret_settled, struct semel_error *err)
{
    return semel__inbox_put_all(inbox, msg, 1, ret_settled, err);
}

semel_status semel__inbox_record(struct semel_inbox *inbox, const struct semel__msg *msg,
                                 const struct semel_ending *ending, struct semel_settled *ret_settled,
                                 struct semel_error *err)
{
    struct item **items;
    struct semel_error local = {0};
    size_t n = 1;
    err = err != NULL ? err : &local;
    semel__arena_reset(&inbox->arena);
    *ret_settled = (struct semel_settled){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
    semel_status status = semel__items_prepare(inbox, &inbox->arena, msg, &n, ret_settled, &items, err);
    if (status != SEMEL_OK)
        return status;
    items[0]->forced = true;
    items[0]->ending = *ending;
    return semel__items_run(inbox, items, 1, err);
}

/* ---- messages that came again -------------------------------------------------------------------- */

/* Most messages that come again are finished already: one look at the rows finds these, without a transaction each. */
static bool decided(enum semel_row_status state)
{
    switch (state) {
    case SEMEL_ROW_COMPLETED:
    case SEMEL_ROW_REJECTED:
    case SEMEL_ROW_STALE:
    case SEMEL_ROW_PREVENTED:
    case SEMEL_ROW_DEAD:
    case SEMEL_ROW_QUARANTINED:
    case SEMEL_ROW_UNKNOWN:
    case SEMEL_ROW_PROCESSING:
        return true;
    case SEMEL_ROW_FAILED:
    case SEMEL_ROW_WAITING:
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_COUNT:
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
    if (row == NULL || !decided(row->progress.state) || has_conflict(item) ||
        semel__fp_differs(&row->fp, &item->msg->fp) || semel__payload_adopts(work->inbox->policy, item->msg, row))
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

static semel_status sift(struct semel_inbox *inbox, struct item **doubted, size_t n, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = read_rows};
    struct work work = {.inbox = inbox, .mode = WORK_READ, .n = n};
    size_t kept = 0;
    semel__arena_reset(&inbox->scratch);
    work.items = semel__arena_alloc(&inbox->scratch, n, sizeof *work.items);
    if (work.items == NULL)
        return semel__fail_memory(err);
    memcpy(work.items, doubted, n * sizeof *doubted);
    semel_status status = semel__transaction_run(inbox->store, &tx, &work, err);
    if (status != SEMEL_OK)
        return status;
    for (size_t i = 0; i < n; i++)
        sift_item(&work, doubted[i], &kept);
    work.n = kept;
    return semel__work_report(&work, err);
}

/* Runs one message behind a committed claim: if it kills the process its start has been counted. */
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

/* Must the item wait for the end of one of these? Items of one order key are neighbours. */
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

/* Picks, of the items without an end, the first of each order key and of each business key. Behind an item that was not
 * accepted the rest of its order key stays with the source. */
static size_t pick_round(const struct semel_inbox *inbox, struct item **doubted, size_t n, struct item **ret)
{
    const struct item *last = NULL;
    size_t picked = 0;
    for (size_t i = 0; i < n && picked < TOGETHER_MAX; i++) {
        if (i > 0 && doubted[i - 1]->removed)
            i += semel__items_held(inbox, doubted, i, n);
        if (i >= n || doubted[i]->settled)
            continue;
        if (!has_to_wait(doubted[i], last, ret, picked))
            ret[picked++] = doubted[i];
        last = doubted[i]; /* also an item that waits: those behind it wait, too */
    }
    return picked;
}

/* Runs several messages behind one committed claim. If one of them kills the process nobody knows which: none is
 * charged an attempt, and after the lease each runs alone. */
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
    if (k > 0) { /* also those that were claimed before a claim failed */
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

static semel_status run_doubted(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err)
{
    struct item **doubted = semel__arena_alloc(&inbox->arena, n, sizeof *doubted);
    struct item **round = semel__arena_alloc(&inbox->arena, n, sizeof *round);
    size_t k = 0;
    if (doubted == NULL || round == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        if (items[i]->may_have_crashed && !items[i]->settled)
            doubted[k++] = items[i];
    semel_status status = k > 0 ? sift(inbox, doubted, k, err) : SEMEL_OK;
    for (size_t rounds = 0; status == SEMEL_OK && rounds < k; rounds++) {
        const size_t picked = pick_round(inbox, doubted, k, round);
        if (picked == 0)
            break;
        status = semel__items_may_run(inbox, err);
        if (status == SEMEL_OK)
            status = picked == 1 ? run_alone(inbox, round[0], err) : run_together(inbox, round, picked, err);
    }
    return status;
}

/* ---- entry points -------------------------------------------------------------------------------- */

/* Messages behind it by arrival must not overtake it. */
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

/* A message that no row can hold stays with its broker. */
static void refuse_giants(struct semel_inbox *inbox, struct item **items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i]->msg->payload.n <= SEMEL_PAYLOAD_HARD_MAX)
            continue;
        items[i]->settled = true;
        items[i]->out->why = SEMEL_WHY_DEAD;
        items[i]->out->cls = SEMEL_CLASS_PERMANENT;
        alert(inbox, SEMEL_ALERT_DEAD, items[i]->msg,
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
        return status == SEMEL_OK ? ran : status; /* messages that were claimed ran, or are given back */
    }
    semel_status status = run_doubted(inbox, items, n, err);
    if (status != SEMEL_OK)
        return status;
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (!items[i]->settled && !items[i]->may_have_crashed)
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
    semel_status status = semel__items_prepare(inbox, &inbox->arena, msgs, &n, ret_settled, &items, err);
    if (status != SEMEL_OK)
        return status;
    if (inbox->position_updates != NULL)
        inbox->position_updates->whole = n;
    refuse_giants(inbox, items, n);
    n = semel__items_open(items, n);
    status = n > 0 ? process_items(inbox, items, n, err) : SEMEL_OK;
    if (status == SEMEL_OK)
        semel__error_clear(err); /* a message that was cut out has reported its own end */
    return status;
}

semel_status semel__lease_claim(struct semel_inbox *inbox, const struct semel__msg *msgs, size_t n, bool alone,
                                struct semel_arena *arena, struct semel_lease *ret_leases, size_t *ret_n,
                                struct semel_settled *ret_settled, struct semel_error *err)
{
    struct item **items;
    *ret_n = 0;
    semel__arena_reset(&inbox->arena);
    for (size_t i = 0; i < n; i++)
        ret_settled[i] = (struct semel_settled){.act = SEMEL_LATER, .why = SEMEL_WHY_BUSY, .due_us = SEMEL_NONE};
    if (n == 0)
        return SEMEL_OK;
    semel_status status = semel__items_prepare(inbox, arena, msgs, &n, ret_settled, &items, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__items_claim(inbox, items, n, alone, err);
    for (size_t i = 0; i < n; i++) /* also of pieces that were committed before the environment failed */
        if (items[i]->lease != NULL)
            ret_leases[(*ret_n)++] = *items[i]->lease;
    return status;
}
