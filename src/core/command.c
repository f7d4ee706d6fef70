/* SPDX-License-Identifier: MIT
 *
 * command.c: commands of operators and reconciles for stored rows: retry, discard, resolve (I16, E2).
 *
 * semel__command_judge has the rules: pure, and the same for a command, its dry run and an explanation. The order key
 * comes from the row that the caller read, and must be locked before the row; so the row is read again, under lock.
 * Several rows may share a transaction: each is judged by itself, and one that is refused holds up no other.
 *
 * Invariants: the row keeps its id and its policy (P41); a command changes the status of a row, and never takes a
 * message out to put it back (P42); a payload never changes: a corrected one is another message, stored by the
 * transaction that ends the first; the change and its audit line are one transaction; of two equal commands at the
 * same time, the second is refused because it came too late.
 */
#include <assert.h>
#include <stdio.h>

#include "base/error.h"
#include "base/point.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/headers.h"
#include "core/state.h"
#include "core/version.h"
#include "core/work.h"

static const char *const names[] = {
#define X(name, text) text,
    SEMEL_JUDGEMENT_MAP(X)
#undef X
};

const char *semel__judgement_name(enum semel_judgement judged)
{
    return names[judged];
}

const char *semel__command_name(enum semel_command_kind kind)
{
    static const char *const words[] = {"retry", "discard", "resolve", "correct"};
    return words[kind];
}

/* ---- the rules, pure ----------------------------------------------------------------------------- */

static enum semel_judgement judge_status(const struct semel_progress *progress, enum semel_command_kind kind,
                                         bool force)
{
    bool retry = kind == SEMEL_COMMAND_RETRY, may = true;
    switch (progress->state) {
    case SEMEL_ROW_DEAD:
    case SEMEL_ROW_QUARANTINED:
        break;
    case SEMEL_ROW_UNKNOWN: /* it may have had its effect: a copy would not know */
        may = kind != SEMEL_COMMAND_CORRECT;
        break;
    case SEMEL_ROW_FAILED:
        if (retry && progress->attempts == progress->attempts_before)
            return SEMEL_JUDGED_ALREADY_DUE; /* it has not run since it was retried: another operator was faster */
        may = kind != SEMEL_COMMAND_RESOLVE; /* its attempts had no effect: there is nothing to resolve */
        break;
    case SEMEL_ROW_WAITING: /* a discard is the only way past a version that will never come */
        may = kind == SEMEL_COMMAND_DISCARD || (retry && force && progress->error_class == SEMEL_CLASS_GAP);
        break;
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_PROCESSING:
    case SEMEL_ROW_COMPLETED:
    case SEMEL_ROW_REJECTED:
    case SEMEL_ROW_STALE:
    case SEMEL_ROW_PREVENTED:
    case SEMEL_ROW_COUNT:
        may = false;
    }
    return may ? SEMEL_JUDGED_ALLOWED : SEMEL_JUDGED_WRONG_STATUS;
}

bool semel__row_too_old(const struct semel_policy *policy, const struct semel_row *row, int64_t now_us)
{
    int64_t age_from_us = row->message_time_us != SEMEL_NONE ? row->message_time_us : row->received_us;
    return age_from_us < semel__time_add(now_us, -policy->retention_us);
}

bool semel__row_never_fit(const struct semel_row *row)
{
    return row->progress.error_class == SEMEL_CLASS_NO_ID ||
           (row->progress.error_class == SEMEL_CLASS_PERMANENT && row->progress.attempts == 0);
}

/* What speaks against another run, whatever its payload is. */
static enum semel_judgement judge_run(const struct semel_policy *policy, const struct semel_row *row, int64_t now_us,
                                      bool force)
{
    if (!force && semel__row_never_fit(row))
        return SEMEL_JUDGED_NEVER_FIT;
    return !force && semel__row_too_old(policy, row, now_us) ? SEMEL_JUDGED_TOO_OLD : SEMEL_JUDGED_ALLOWED;
}

/* In a key by arrival a copy comes last: those that stood behind the message would run before it. */
static bool leaves_its_place(const struct semel_row *row, const struct semel_key *key)
{
    return key != NULL && !key->by_version && semel__state_unfinished(row->progress.state);
}

/* An outside call that is safe to repeat under its step key may have been done by any attempt, whatever its answer was;
 * a copy has another id, and so another step key. */
static enum semel_judgement judge_correct(const struct semel_policy *policy, const struct semel_row *row,
                                          const struct semel_key *key, int64_t now_us, bool force)
{
    if (!force && policy->effect == SEMEL_EFFECT_KEYED && row->progress.attempts > 0)
        return SEMEL_JUDGED_MAY_BE_DONE;
    return !force && leaves_its_place(row, key) && key->parked > 0 ? SEMEL_JUDGED_WAITERS_BEHIND
                                                                   : judge_run(policy, row, now_us, force);
}

static enum semel_judgement judge_retry(const struct semel_policy *policy, const struct semel_row *row, int64_t now_us,
                                        bool force)
{
    return row->kept ? judge_run(policy, row, now_us, force) : SEMEL_JUDGED_NOT_KEPT;
}

/* A resolved message has had its effect: the earlier versions are stale then, but not while one of them may have its
 * effect. An unknown one may have had it already. */
static enum semel_judgement judge_resolve(const struct semel_row *row, const struct semel_key *key)
{
    if (key == NULL || !key->by_version || !key->open || row->version == SEMEL_NONE ||
        key->head_arrival == SEMEL_NONE || row->progress.state == SEMEL_ROW_UNKNOWN ||
        key->head_arrival == row->arrival || key->head_version >= row->version)
        return SEMEL_JUDGED_ALLOWED;
    return SEMEL_JUDGED_EARLIER_VERSION;
}

/* The key must remember a version that is discarded ahead of a gap until the gap closes. */
static enum semel_judgement judge_discard(const struct semel_policy *policy, const struct semel_row *row,
                                          const struct semel_key *key)
{
    bool full = key != NULL && key->by_version && semel__version_full(policy, key, row->version);
    return full ? SEMEL_JUDGED_TOO_MANY_DISCARDED : SEMEL_JUDGED_ALLOWED;
}

enum semel_judgement semel__command_judge(const struct semel_policy *policy, const struct semel_row *row,
                                          const struct semel_key *key, int64_t now_us, enum semel_command_kind kind,
                                          bool force)
{
    enum semel_judgement judged = judge_status(&row->progress, kind, force);
    if (judged != SEMEL_JUDGED_ALLOWED)
        return judged;
    switch (kind) {
    case SEMEL_COMMAND_RETRY:
        return judge_retry(policy, row, now_us, force);
    case SEMEL_COMMAND_DISCARD:
        return judge_discard(policy, row, key);
    case SEMEL_COMMAND_RESOLVE:
        return judge_resolve(row, key);
    case SEMEL_COMMAND_CORRECT:
        return judge_correct(policy, row, key, now_us, force);
    }
    return SEMEL_JUDGED_ALLOWED;
}

bool semel__judgement_refuses(enum semel_judgement judged)
{
    return judged >= SEMEL_JUDGED_NOT_KEPT;
}

/* ---- the refusals as text ------------------------------------------------------------------------ */

static semel_status refuse_versions(enum semel_judgement judged, const struct semel_policy *policy,
                                    const struct semel_key *key, struct semel_error *err)
{
    if (judged == SEMEL_JUDGED_TOO_MANY_DISCARDED)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BLOCKED,
                           "%d versions of the same key were discarded already while version %lld is missing: that "
                           "one has to come, or a later one has to run past it (retry --force)",
                           SEMEL_SKIPPED_MAX, (long long)semel__version_last(policy, key) + 1);
    if (key->head_version == SEMEL_NONE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BLOCKED,
                           "a message without a version of the same key is stored and unfinished: end that one first");
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BLOCKED,
                       "version %lld of the same key is stored and unfinished: end that one first",
                       (long long)key->head_version);
}

semel_status semel__command_refuse(enum semel_judgement judged, enum semel_command_kind kind,
                                   enum semel_row_status state, const struct semel_policy *policy,
                                   const struct semel_key *key, struct semel_error *err)
{
    switch (judged) {
    case SEMEL_JUDGED_ALLOWED:
        return SEMEL_OK;
    case SEMEL_JUDGED_NO_SUCH_MESSAGE:
        return semel__fail(err, SEMEL_OK, SEMEL_CLASS_NONE, "there is no such message");
    case SEMEL_JUDGED_CHANGED:
        return semel__fail(err, SEMEL_OK, SEMEL_CLASS_NONE,
                           "the message has changed since it was looked at: look again");
    case SEMEL_JUDGED_WRONG_STATUS:
        return semel__fail(err, SEMEL_OK, SEMEL_CLASS_NONE, "the message is %s: there is nothing to %s",
                           semel__row_status_name(state), semel__command_name(kind));
    case SEMEL_JUDGED_ALREADY_DUE:
        return semel__fail(err, SEMEL_OK, SEMEL_CLASS_NONE,
                           "the message is to be retried already: it has not run since");
    case SEMEL_JUDGED_NOT_KEPT:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the payload was not kept: only its broker can bring this message again");
    case SEMEL_JUDGED_NEVER_FIT:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the message has no usable id or field: have it sent again corrected, or force it if the "
                           "handler can do without");
    case SEMEL_JUDGED_TOO_OLD:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_TOO_OLD,
                           "the message is older than the retention of its duplicates: retrying it may repeat an "
                           "effect; force it if you know better");
    case SEMEL_JUDGED_BUSINESS_KEY_TAKEN:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BUSINESS, "another message has its business key");
    case SEMEL_JUDGED_WAITERS_BEHIND:
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_BLOCKED,
            "messages of its order key wait behind it, and would run before the corrected copy; force it "
            "if their order does not matter");
    case SEMEL_JUDGED_MAY_BE_DONE:
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_UNKNOWN,
            "the message was tried, and its effect is outside: the effect may have happened, and the corrected copy "
            "would call under another key; ask the other side, then force it");
    case SEMEL_JUDGED_COPY_REFUSED:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the corrected copy cannot be stored");
    case SEMEL_JUDGED_EARLIER_VERSION:
    case SEMEL_JUDGED_TOO_MANY_DISCARDED:
        return refuse_versions(judged, policy, key, err);
    }
    return SEMEL_OK;
}

/* ---- commands ------------------------------------------------------------------------------------ */

static semel_status check_command(const struct semel_command *command, struct semel_error *err)
{
    if (command->reason.n == 0 || command->who.n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "who and reason are required: both go to the audit log");
    semel_status status = semel__id_check("who", command->who, 1, err);
    if (status == SEMEL_OK && (command->reason.n > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(command->reason)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the reason must be UTF-8 text of at most %d bytes", SEMEL_ERROR_TEXT_MAX);
    return status;
}

/* Commands of one transaction. */
struct commanding {
    struct work work;
    struct item *items;        /* in the order of the rows */
    struct semel_audit *lines; /* of those that are done */
    size_t n_lines;
    const struct semel_command *command; /* its row is not used */
    const struct semel_row *const *rows;
    struct semel_command_result *results;
    struct semel_str ended; /* CORRECT: what the message says of its end */
    semel_status (*also)(void *ctx, struct semel_error *err);
    void *ctx;
};

static bool wants(const struct item *item, struct semel_str key)
{
    for (size_t i = 0; i < item->msg->n_business; i++)
        if (semel__str_eq(item->msg->business[i], key))
            return true;
    return false;
}

/* A retry takes the business keys of the message when it starts: refused while another message holds one. */
static semel_status refuse_taken(const struct work *work, const struct item *item, enum semel_judgement *judged,
                                 struct semel_error *err)
{
    for (size_t i = 0; i < work->batch.n_business; i++) {
        const struct semel_business *business = &work->batch.business[i];
        if (!business->taken || !wants(item, business->key))
            continue;
        char holder[72], key[72]; /* both texts come from outside */
        *judged = SEMEL_JUDGED_BUSINESS_KEY_TAKEN;
        semel__str_show(holder, sizeof holder, business->held_id);
        semel__str_show(key, sizeof key, business->key);
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BUSINESS,
                           "message \"%s\" has its business key \"%s\": running this one would repeat what that one "
                           "stands for",
                           holder, key);
    }
    return SEMEL_OK;
}

/* A row that waits, and that nobody has retried, has only been woken: by the end of what it waited for, such as the
 * discard before this one. */
static bool touched(const struct semel_row *seen, const struct semel_row *row, enum semel_command_kind kind)
{
    const bool waits = row->progress.state == SEMEL_ROW_WAITING && row->progress.retries == 0;
    return seen->updated_us != 0 && seen->updated_us != row->updated_us && !(waits && kind == SEMEL_COMMAND_DISCARD);
}

/* The order key and the business keys were locked as the caller read them: a row with others has changed. */
static bool changed(const struct semel_row *seen, const struct item *item, enum semel_command_kind kind)
{
    const struct semel_row *row = item->row;
    return touched(seen, row, kind) || seen->version != row->version ||
           semel__str_given(seen->order_key) != semel__str_given(row->order_key) ||
           !semel__str_eq(seen->order_key, row->order_key) || seen->n_wants != row->n_wants ||
           semel__item_wishes_more(item);
}

static enum semel_judgement judge(const struct commanding *c, const struct item *item, const struct semel_row *seen)
{
    if (item->row == NULL)
        return SEMEL_JUDGED_NO_SUCH_MESSAGE;
    if (changed(seen, item, c->command->kind))
        return SEMEL_JUDGED_CHANGED;
    return semel__command_judge(c->work.inbox->policy, item->row, item->key, c->work.now_us, c->command->kind,
                                c->command->force);
}

static void change_progress(const struct commanding *c, const struct semel_progress *before,
                            struct semel_progress *progress)
{
    const struct semel_command *command = c->command;
    const int64_t now_us = c->work.now_us;
    switch (command->kind) {
    case SEMEL_COMMAND_RETRY:
        if (before->state == SEMEL_ROW_DEAD && before->error_class == SEMEL_CLASS_GAP && !command->force)
            semel__progress_rejudge(before, now_us, progress);
        else
            semel__progress_retry(before, now_us, progress);
        return;
    case SEMEL_COMMAND_DISCARD:
        semel__progress_discard(before, command->reason, now_us, progress);
        return;
    case SEMEL_COMMAND_RESOLVE:
        semel__progress_resolve(before, command->outcome, now_us, progress);
        return;
    case SEMEL_COMMAND_CORRECT:
        semel__progress_discard(before, c->ended, now_us, progress);
        return;
    }
}

/* Judges one row, and plans its change. The facts of its key move on: the next row of the key is judged by them. */
static semel_status plan(struct commanding *c, size_t i, struct semel_error *err)
{
    const struct semel_policy *policy = c->work.inbox->policy;
    struct item *item = &c->items[i];
    struct semel_command_result *ret = &c->results[i];
    *ret = (struct semel_command_result){.judged = SEMEL_JUDGED_ALLOWED, .state = SEMEL_ROW_ABSENT};
    if (item->damage != NULL) {
        ret->why = *item->damage;
        return SEMEL_OK;
    }
    ret->judged = judge(c, item, c->rows[i]);
    (void)semel__command_refuse(ret->judged, c->command->kind, item->progress.state, policy, item->key, &ret->why);
    if (ret->judged == SEMEL_JUDGED_ALLOWED && c->command->kind == SEMEL_COMMAND_RETRY)
        (void)refuse_taken(&c->work, item, &ret->judged, &ret->why);
    ret->state = item->row == NULL ? SEMEL_ROW_ABSENT : item->progress.state;
    if (ret->judged != SEMEL_JUDGED_ALLOWED)
        return SEMEL_OK;
    assert(item->row != NULL);
    change_progress(c, &item->row->progress, &item->progress);
    item->changed = true; /* no token: the status itself is the condition */
    item->superseded = c->command->kind == SEMEL_COMMAND_CORRECT;
    if (!item->superseded && item->key != NULL && item->key->by_version &&
        !semel__version_move(policy, item->key, item->msg->version, item->progress.state, false,
                             &c->work.inbox->scratch))
        return semel__fail_memory(err);
    ret->state = item->progress.state;
    ret->done = true;
    c->lines[c->n_lines++] = (struct semel_audit){.consumer = policy->consumer,
                                                  .source = item->msg->source,
                                                  .id = item->msg->id,
                                                  .who = c->command->who,
                                                  .what = semel__str(semel__command_name(c->command->kind)),
                                                  .reason = c->command->reason};
    return SEMEL_OK;
}

static semel_status obey(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct commanding *c = ctx;
    c->work.now_us = now_us;
    c->n_lines = 0;
    semel_status status = semel__work_fetch(&c->work, err);
    for (size_t i = 0; status == SEMEL_OK && i < c->work.n; i++)
        status = plan(c, i, err);
    /* before the change: a store may write both at once */
    if (status == SEMEL_OK && c->n_lines > 0)
        status = semel_store_audit(c->work.inbox->store, c->lines, c->n_lines, now_us, err);
    if (status == SEMEL_OK && c->n_lines > 0)
        status = semel__work_settle(&c->work, err);
    if (status == SEMEL_OK && c->also != NULL)
        status = c->also(c->ctx, err);
    *undo = c->n_lines == 0 && c->also == NULL;
    if (status == SEMEL_OK && c->n_lines > 0)
        SEMEL_POINT(RETRY_SETTLED);
    return status;
}

static int cmp_run(const void *va, const void *vb)
{
    const struct item *a = *(struct item *const *)va, *b = *(struct item *const *)vb;
    int c = semel__str_cmp(a->msg->order_key, b->msg->order_key);
    return c != 0 ? c : (a->place > b->place) - (a->place < b->place);
}

/* The items, and `order` with pointers to them in run order. */
static semel_status prepare(struct commanding *c, struct item **order, struct semel_error *err)
{
    struct semel_arena *arena = &c->work.inbox->arena;
    struct semel__msg *msgs = semel__arena_alloc(arena, c->work.n, sizeof *msgs);
    if (msgs == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < c->work.n; i++) {
        semel_status status = semel__id_check("message id", c->rows[i]->id, 1, err);
        if (status != SEMEL_OK)
            return status;
        semel__row_msg(c->rows[i], &msgs[i]);
        msgs[i].source = semel__str_given(msgs[i].source) ? msgs[i].source : (struct semel_str){"", 0};
        c->items[i] = (struct item){.msg = &msgs[i], .place = i, .frees = true, .adopt_until_us = SEMEL_NONE};
        order[i] = &c->items[i];
    }
    semel__sort(order, c->work.n, sizeof *order, cmp_run);
    c->work.items = order;
    return SEMEL_OK;
}

semel_status semel__inbox_commands(struct semel_inbox *inbox, const struct semel_command *command,
                                   const struct semel_row *const *rows, size_t n,
                                   semel_status (*also)(void *ctx, struct semel_error *err), void *ctx,
                                   struct semel_command_result *ret, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = obey};
    semel_status status = check_command(command, err);
    if (status != SEMEL_OK)
        return status;
    semel__arena_reset(&inbox->arena);
    semel__arena_reset(&inbox->scratch);
    struct item **order = semel__arena_alloc(&inbox->arena, n, sizeof(struct item *));
    struct commanding c = {.work = {.inbox = inbox, .mode = WORK_COMMAND, .n = n},
                           .items = semel__arena_alloc(&inbox->arena, n, sizeof *c.items),
                           .lines = semel__arena_alloc(&inbox->arena, n, sizeof *c.lines),
                           .command = command,
                           .rows = rows,
                           .results = ret,
                           .also = also,
                           .ctx = ctx};
    if (order == NULL || c.items == NULL || c.lines == NULL)
        return semel__fail_memory(err);
    status = prepare(&c, order, err);
    if (status == SEMEL_OK)
        status = semel__transaction_run(inbox->store, &tx, &c, err);
    if (status == SEMEL_OK && c.n_lines > 0)
        SEMEL_POINT(RETRY_COMMITTED);
    return status;
}

semel_status semel__inbox_command(struct semel_inbox *inbox, const struct semel_command *command,
                                  struct semel_command_result *ret, struct semel_error *err)
{
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    *ret = (struct semel_command_result){.judged = SEMEL_JUDGED_ALLOWED, .state = SEMEL_ROW_ABSENT};
    semel_status status = semel__inbox_commands(inbox, command, &command->row, 1, NULL, NULL, ret, err);
    ret->done = ret->done && status == SEMEL_OK;
    if (status != SEMEL_OK || ret->done)
        return status;
    *err = ret->why;
    return ret->why.status == SEMEL_OK ? SEMEL_OK : SEMEL_INVALID;
}

/* ---- a corrected copy ---------------------------------------------------------------------------- */

struct correcting {
    struct commanding c; /* the message itself */
    struct work copy;
    struct semel_audit line; /* of the copy */
    struct semel_str reason; /* as it was given */
    bool unknown;            /* a commit before this run may have been done */
};

/* "pay-17~1" of "pay-17", "pay-17~1~1" of that. A number that is there already is never counted up: it may be the
 * producer's own, and the next one another message's. */
static semel_status name_copy(struct semel_str id, char out[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    if (id.n > SEMEL_ID_MAX - 2)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "its id is too long to be followed by ~1: at most %d bytes", SEMEL_ID_MAX - 2);
    snprintf(out, SEMEL_ID_MAX + 1, "%.*s~1", (int)id.n, id.p);
    return SEMEL_OK;
}

/* "as pay-17~1: wrong currency", cut to what a text may have. */
static struct semel_str link_text(struct semel_arena *arena, const char *how, struct semel_str id,
                                  struct semel_str reason)
{
    char text[SEMEL_ERROR_TEXT_MAX + 1];
    struct semel_str ret = {0};
    struct semel_buf buf;
    semel__buf_init(&buf, 2 * SEMEL_ERROR_TEXT_MAX);
    semel__buf_addz(&buf, how);
    semel__buf_add(&buf, id.p, id.n);
    semel__buf_addz(&buf, ": ");
    semel__buf_add(&buf, reason.p, reason.n);
    semel__str_show(text, sizeof text, semel__buf_str(&buf));
    if (buf.failed || !semel__arena_copy(arena, semel__str(text), &ret))
        ret = (struct semel_str){0};
    semel__buf_done(&buf);
    return ret;
}

static semel_status check_payload(const struct semel_policy *policy, struct semel_str payload, struct semel_error *err)
{
    if (policy->keep == SEMEL_KEEP_NEVER)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the consumer keeps no payloads (keep_payload): what is stored could never be run");
    if (payload.n > policy->payload_max)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the payload has %zu bytes; the consumer takes at most %zu (payload_max)", payload.n,
                           policy->payload_max);
    return SEMEL_OK;
}

static semel_status prepare_copy(struct correcting *k, const struct semel_correction *given, struct semel_error *err)
{
    struct semel_inbox *inbox = k->c.work.inbox;
    const struct semel_row *row = given->command.row;
    struct semel__msg msg;
    struct semel_settled *settled = semel__arena_alloc(&inbox->arena, 1, sizeof *settled);
    size_t n = 1;
    if (settled == NULL)
        return semel__fail_memory(err);
    semel__row_msg(row, &msg);
    msg.id = semel__str(given->id);
    msg.payload = given->payload;
    msg.position = (struct semel_str){0};
    msg.message_time_us = SEMEL_NONE; /* no broker can bring it again */
    msg.fp = (struct semel_fp){0};
    for (size_t i = 0; i < given->n_business && msg.n_business < SEMEL_BUSINESS_MAX; i++)
        msg.business[msg.n_business++] = given->business[i];
    semel_status status = semel__headers_settle(msg.payload, &inbox->arena, &msg.headers, err);
    if (status == SEMEL_OK && row->fp.kind != SEMEL_FP_NONE)
        status = semel__fp_compute(msg.payload, &msg.fp, err);
    k->copy = (struct work){.inbox = inbox, .mode = WORK_STORE, .n = 1};
    return status == SEMEL_OK ? semel__items_prepare(inbox, &inbox->arena, &msg, &n, settled, &k->copy.items, err)
                              : status;
}

/* Both lines: what was done to the message, and where the copy comes from. */
static semel_status write_lines(struct correcting *k, int64_t now_us, struct semel_error *err)
{
    struct semel_store *store = k->c.work.inbox->store;
    semel_status status = semel_store_audit(store, k->c.lines, 1, now_us, err);
    return status == SEMEL_OK ? semel_store_audit(store, &k->line, 1, now_us, err) : status;
}

/* The copy must have been stored, and wait for its run, with nobody before it that stood behind the message: else
 * all of it is undone. */
static semel_status check_copy(const struct correcting *k, struct semel_error *err)
{
    const struct item *item = k->copy.items[0], *original = &k->c.items[0];
    if (!k->c.command->force && item->had_head && leaves_its_place(original->row, original->key)) {
        k->c.results[0].judged = SEMEL_JUDGED_WAITERS_BEHIND;
        return semel__command_refuse(SEMEL_JUDGED_WAITERS_BEHIND, SEMEL_COMMAND_CORRECT, SEMEL_ROW_ABSENT, NULL, NULL,
                                     err);
    }
    k->c.results[0].judged = SEMEL_JUDGED_COPY_REFUSED;
    if (item->admit == NULL || !item->admit->inserted)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "there is a message with the id of the corrected copy already");
    if (item->removed || item->progress.state != SEMEL_ROW_WAITING)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the corrected copy could not run: it would be %s",
                           item->removed ? "one too many that waits" : semel__row_status_name(item->progress.state));
    k->c.results[0].judged = SEMEL_JUDGED_ALLOWED;
    return SEMEL_OK;
}

/* The database makes the move for a role that writes no row. */
static semel_status correct_by_owner(struct correcting *k, const struct semel_row *row, bool *ret_made,
                                     struct semel_error *err)
{
    const struct item *item = &k->c.items[0];
    const struct semel__msg *copy = k->copy.items[0]->msg;
    const struct semel_corrected what = {.consumer = k->c.work.inbox->policy->consumer,
                                         .source = item->msg->source,
                                         .id = item->msg->id,
                                         .was = row->progress.state,
                                         .payload = copy->payload,
                                         .reason = k->reason,
                                         .force = k->c.command->force};
    semel_status status = semel_store_correct(k->c.work.inbox->store, &what, ret_made, err);
    if (status == SEMEL_INVALID && err->cls != SEMEL_CLASS_BROKEN)
        k->c.results[0].judged = SEMEL_JUDGED_COPY_REFUSED;
    return status;
}

static semel_status correct_by_rows(struct correcting *k, int64_t now_us, struct semel_error *err)
{
    semel_status status = write_lines(k, now_us, err);
    if (status == SEMEL_OK)
        status = semel__work_settle(&k->c.work, err);
    if (status == SEMEL_OK)
        status = semel__work_put(&k->copy, err);
    return status == SEMEL_OK ? check_copy(k, err) : status;
}

static semel_status correct(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct correcting *k = ctx;
    struct commanding *c = &k->c;
    *undo = true;
    semel__arena_reset(&c->work.inbox->scratch);
    c->work.now_us = k->copy.now_us = now_us;
    c->n_lines = 0;
    semel_status status = semel__work_fetch(&c->work, err);
    if (status != SEMEL_OK)
        return status;
    const struct semel_row *row = c->items[0].row;
    if (k->unknown && row != NULL && row->progress.state == SEMEL_ROW_REJECTED &&
        semel__str_eq(row->progress.error_text, c->ended)) {
        c->results[0] = (struct semel_command_result){.done = true, .state = SEMEL_ROW_REJECTED};
        return SEMEL_OK;
    }
    status = plan(c, 0, err);
    if (status != SEMEL_OK || c->n_lines == 0)
        return status;
    bool made = false;
    assert(row != NULL);
    status = correct_by_owner(k, row, &made, err);
    if (status == SEMEL_OK && !made)
        status = correct_by_rows(k, now_us, err);
    *undo = status != SEMEL_OK;
    return status;
}

static void correct_unknown(void *ctx)
{
    ((struct correcting *)ctx)->unknown = true;
}

semel_status semel__inbox_correct(struct semel_inbox *inbox, struct semel_correction *given,
                                  struct semel_command_result *ret, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = correct, .unknown = correct_unknown, .again = true};
    const struct semel_command *command = &given->command;
    struct semel_str reason;
    struct semel_audit line;
    struct item item, *order;
    struct correcting k = {.c = {.work = {.inbox = inbox, .mode = WORK_COMMAND, .n = 1},
                                 .items = &item,
                                 .lines = &line,
                                 .rows = &command->row,
                                 .results = ret},
                           .reason = command->reason};
    *ret = (struct semel_command_result){.judged = SEMEL_JUDGED_ALLOWED, .state = SEMEL_ROW_ABSENT};
    semel__arena_reset(&inbox->arena);
    semel__arena_reset(&inbox->scratch);
    semel_status status = check_command(command, err);
    if (status == SEMEL_OK)
        status = check_payload(inbox->policy, given->payload, err);
    if (status == SEMEL_OK)
        status = name_copy(command->row->id, given->id, err);
    if (status == SEMEL_OK)
        status = prepare(&k.c, &order, err);
    if (status == SEMEL_OK)
        status = prepare_copy(&k, given, err);
    if (status != SEMEL_OK)
        return status;
    reason = link_text(&inbox->arena, "as ", semel__str(given->id), command->reason);
    k.c.ended = link_text(&inbox->arena, "corrected as ", semel__str(given->id), command->reason);
    k.line = (struct semel_audit){.consumer = inbox->policy->consumer,
                                  .source = k.copy.items[0]->msg->source,
                                  .id = k.copy.items[0]->msg->id,
                                  .who = command->who,
                                  .what = SEMEL_STR("correction"),
                                  .reason = link_text(&inbox->arena, "of ", command->row->id, command->reason)};
    if (!semel__str_given(reason) || !semel__str_given(k.c.ended) || !semel__str_given(k.line.reason))
        return semel__fail_memory(err);
    struct semel_command linked = *command;
    linked.reason = reason;
    k.c.command = &linked;
    status = semel__transaction_run(inbox->store, &tx, &k, err);
    if (status != SEMEL_OK) { /* nothing has changed */
        ret->done = false;
        ret->state = command->row->progress.state;
    }
    if (status != SEMEL_OK || ret->done)
        return status;
    *err = ret->why;
    return ret->why.status == SEMEL_OK ? SEMEL_OK : SEMEL_INVALID;
}
