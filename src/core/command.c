/* SPDX-License-Identifier: MIT
 *
 * command.c: commands of operators and reconciles for one row: retry, discard, resolve (I16, E2).
 *
 * semel__command_judge has the rules: pure, and the same for a command, its dry run and an explanation. The order key
 * comes from the row that the caller read, and must be locked before the row; so the row is read again, under lock.
 *
 * Invariants: the row keeps its id and its policy (P41); a command changes the status of one row, and never takes a
 * message out to put it back (P42); the change and its audit line are one transaction; of two equal commands at the
 * same time, the second is refused because it came too late.
 */
#include "base/error.h"
#include "base/point.h"
#include "base/str.h"
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
    static const char *const words[] = {"retry", "discard", "resolve"};
    return words[kind];
}

/* ---- the rules, pure ----------------------------------------------------------------------------- */

static enum semel_judgement judge_status(const struct semel_progress *progress, enum semel_command_kind kind,
                                         bool force)
{
    bool retry = kind == SEMEL_COMMAND_RETRY, may = true;
    switch (progress->state) {
    case SEMEL_STATE_DEAD:
    case SEMEL_STATE_QUARANTINED:
    case SEMEL_STATE_UNKNOWN:
        break;
    case SEMEL_STATE_FAILED:
        if (retry && progress->attempts == progress->attempts_before)
            return SEMEL_JUDGED_ALREADY_DUE; /* it has not run since it was retried: another operator was faster */
        may = kind != SEMEL_COMMAND_RESOLVE; /* its attempts had no effect: there is nothing to resolve */
        break;
    case SEMEL_STATE_WAITING: /* a discard is the only way past a version that will never come */
        may = kind == SEMEL_COMMAND_DISCARD || (retry && force && progress->error_class == SEMEL_CLASS_GAP);
        break;
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_PROCESSING:
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_PREVENTED:
    case SEMEL_STATE_COUNT:
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

static enum semel_judgement judge_retry(const struct semel_policy *policy, const struct semel_row *row, int64_t now_us,
                                        bool force)
{
    if (!row->kept)
        return SEMEL_JUDGED_NOT_KEPT;
    if (!force && semel__row_never_fit(row))
        return SEMEL_JUDGED_NEVER_FIT;
    return !force && semel__row_too_old(policy, row, now_us) ? SEMEL_JUDGED_TOO_OLD : SEMEL_JUDGED_ALLOWED;
}

/* A resolved message has had its effect: the earlier versions are stale then, but not while one of them may have its
 * effect. An unknown one may have had it already. */
static enum semel_judgement judge_resolve(const struct semel_row *row, const struct semel_key *key)
{
    if (key == NULL || !key->by_version || !key->open || row->version == SEMEL_NONE ||
        key->head_arrival == SEMEL_NONE || row->progress.state == SEMEL_STATE_UNKNOWN ||
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
    case SEMEL_JUDGED_EARLIER_VERSION:
    case SEMEL_JUDGED_TOO_MANY_DISCARDED:
        return refuse_versions(judged, policy, key, err);
    }
    return SEMEL_OK;
}

/* ---- one command --------------------------------------------------------------------------------- */

static semel_status check_command(const struct semel_command *command, struct semel_error *err)
{
    if (command->reason.n == 0 || command->who.n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "who and reason are required: both go to the audit log");
    semel_status status = semel__id_check("message id", command->row->id, 1, err);
    if (status == SEMEL_OK)
        status = semel__id_check("who", command->who, 1, err);
    if (status == SEMEL_OK && (command->reason.n > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(command->reason)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the reason must be UTF-8 text of at most %d bytes", SEMEL_ERROR_TEXT_MAX);
    return status;
}

/* A retry takes the business keys of the message when it starts: refused while another message holds one. */
static semel_status refuse_taken(const struct work *work, enum semel_judgement *judged, struct semel_error *err)
{
    for (size_t i = 0; i < work->batch.n_business; i++) {
        const struct semel_business *business = &work->batch.business[i];
        if (!business->taken)
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

/* The order key and the business keys were locked as the caller read them: a row with others has changed. */
static bool changed(const struct semel_command *command, const struct item *item)
{
    const struct semel_row *seen = command->row, *row = item->row;
    return (seen->updated_us != 0 && seen->updated_us != row->updated_us) || seen->version != row->version ||
           semel__str_given(seen->order_key) != semel__str_given(row->order_key) ||
           !semel__str_eq(seen->order_key, row->order_key) || seen->n_wants != row->n_wants ||
           semel__item_wishes_more(item);
}

static enum semel_judgement judge(const struct work *work, const struct item *item, const struct semel_command *command)
{
    if (item->row == NULL)
        return SEMEL_JUDGED_NO_SUCH_MESSAGE;
    if (changed(command, item))
        return SEMEL_JUDGED_CHANGED;
    return semel__command_judge(work->inbox->policy, item->row, item->key, work->now_us, command->kind, command->force);
}

static void change_progress(const struct semel_command *command, const struct semel_progress *before, int64_t now_us,
                            struct semel_progress *progress)
{
    switch (command->kind) {
    case SEMEL_COMMAND_RETRY:
        if (before->state == SEMEL_STATE_DEAD && before->error_class == SEMEL_CLASS_GAP && !command->force)
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
    }
}

/* Inside the transaction, with the row locked. */
static semel_status apply(struct work *work, struct item *item, const struct semel_command *command,
                          struct semel_command_result *ret, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    if (item->damage.status != SEMEL_OK) {
        *err = item->damage;
        return SEMEL_INVALID;
    }
    ret->judged = judge(work, item, command);
    semel_status status = semel__command_refuse(ret->judged, command->kind, item->progress.state, inbox->policy,
                                                item->key, err);
    if (ret->judged == SEMEL_JUDGED_ALLOWED && command->kind == SEMEL_COMMAND_RETRY)
        status = refuse_taken(work, &ret->judged, err);
    if (ret->judged != SEMEL_JUDGED_ALLOWED)
        return status;
    change_progress(command, &item->row->progress, work->now_us, &item->progress);
    item->changed = true; /* no token: the status itself is the condition */
    struct semel_audit line = {.consumer = inbox->policy->consumer,
                               .source = item->msg->source,
                               .id = item->msg->id,
                               .who = command->who,
                               .what = semel__str(semel__command_name(command->kind)),
                               .reason = command->reason};
    ret->done = true;
    /* before the change: a store may write both at once */
    status = semel_store_audit(inbox->store, &line, work->now_us, err);
    return status == SEMEL_OK ? semel__work_settle(work, err) : status;
}

/* A command while its transaction runs. */
struct commanding {
    struct work work;
    struct item *item;
    const struct semel_command *command;
    struct semel_command_result *ret;
};

static semel_status obey(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    struct commanding *c = ctx;
    c->work.now_us = now_us;
    semel_status status = semel__work_fetch(&c->work, err);
    if (status == SEMEL_OK)
        status = apply(&c->work, c->item, c->command, c->ret, err);
    *undo = !c->ret->done;
    if (status == SEMEL_OK && c->ret->done)
        SEMEL_POINT(RETRY_SETTLED);
    return status;
}

semel_status semel__inbox_command(struct semel_inbox *inbox, const struct semel_command *command,
                                  struct semel_command_result *ret, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = obey};
    struct semel__msg msg;
    struct item item = {.msg = &msg, .frees = true, .adopt_until_us = SEMEL_NONE}, *items = &item;
    struct commanding c = {{.inbox = inbox, .mode = WORK_COMMAND, .items = &items, .n = 1}, &item, command, ret};
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    *ret = (struct semel_command_result){.judged = SEMEL_JUDGED_ALLOWED, .state = SEMEL_STATE_ABSENT};
    semel_status status = check_command(command, err);
    if (status != SEMEL_OK)
        return status;
    semel__row_msg(command->row, &msg);
    msg.source = semel__str_given(msg.source) ? msg.source : (struct semel_str){"", 0};
    semel__arena_reset(&inbox->arena);
    semel__arena_reset(&inbox->scratch);
    status = semel__transaction_run(inbox->store, &tx, &c, err);
    ret->done = ret->done && status == SEMEL_OK;
    if (ret->done)
        SEMEL_POINT(RETRY_COMMITTED);
    ret->state = item.row == NULL ? SEMEL_STATE_ABSENT : item.progress.state;
    return status;
}
