/* SPDX-License-Identifier: MIT
 *
 * command.c: what an operator or a reconcile says of one row: run it again, skip it, it is done (I16, E2).
 *
 * Invariants: the row keeps its id and its policy (P41); it is one row and a status, never a take and a put (P42); the
 * change and its audit line are one transaction; of two who say the same at the same time one is told that he was late.
 */
#include "base/error.h"
#include "base/point.h"
#include "base/str.h"
#include "core/state.h"
#include "core/version.h"
#include "core/work.h"

static semel_status check_command(const struct semel_command *command, struct semel_error *err)
{
    if (command->reason.n == 0 || command->who.n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "say who you are and why: both go into the audit");
    semel_status status = semel__id_check("message id", command->id, 1, err);
    if (status == SEMEL_OK)
        status = semel__id_check("who", command->who, 1, err);
    if (status == SEMEL_OK && (command->reason.n > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(command->reason)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the reason must be UTF-8 text of at most %d bytes", SEMEL_ERROR_TEXT_MAX);
    return status;
}

static bool allowed(const struct semel_command *command, const struct semel_live *live)
{
    enum semel_order_word word = command->word;
    enum semel_state state = live->state;
    if (word == SEMEL_WORD_REPLAY && state == SEMEL_STATE_WAITING)
        return command->force && live->error_class == SEMEL_CLASS_GAP; /* run it although versions are missing */
    if (word == SEMEL_WORD_RESOLVE && state == SEMEL_STATE_FAILED)
        return false; /* its attempts had no effect: there is nothing to call done */
    if (word == SEMEL_WORD_REPLAY && state == SEMEL_STATE_FAILED && live->attempts == live->attempts_before)
        return false; /* it was replayed and has not run since: another operator was faster */
    if (word == SEMEL_WORD_DISCARD && state == SEMEL_STATE_WAITING)
        return true; /* the only way past a version that will never come */
    return state == SEMEL_STATE_DEAD || state == SEMEL_STATE_QUARANTINED || state == SEMEL_STATE_UNKNOWN ||
           state == SEMEL_STATE_FAILED;
}

static semel_status refuse_replay(const struct semel_inbox *inbox, const struct semel_row *row, int64_t now_us,
                                  bool force, struct semel_error *err)
{
    int64_t age_from_us = row->message_time_us != SEMEL_NONE ? row->message_time_us : row->received_us;
    if (!row->kept)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the payload was not kept: only its broker can bring this message again");
    bool unfit = row->live.error_class == SEMEL_CLASS_NO_ID ||
                 (row->live.error_class == SEMEL_CLASS_PERMANENT && row->live.attempts == 0);
    if (!force && unfit)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the message never was fit to run: what it lacks it will still lack; have it sent again, or "
                           "force it if the handler can do without");
    if (!force && age_from_us < semel__time_add(now_us, -inbox->policy->retention_us))
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_TOO_OLD,
            "the message is older than the retention of its duplicates: replaying it may repeat an effect; "
            "force it if you know better");
    return SEMEL_OK;
}

/* It takes its business keys when it starts: not while another message has one. */
static semel_status refuse_taken(const struct work *work, struct semel_error *err)
{
    for (size_t i = 0; i < work->batch.n_business; i++) {
        const struct semel_business *business = &work->batch.business[i];
        if (!business->taken)
            continue;
        char holder[72], key[72]; /* strangers chose both */
        semel__str_show(holder, sizeof holder, business->held_id);
        semel__str_show(key, sizeof key, business->key);
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BUSINESS,
                           "message \"%s\" has its business key \"%s\": running this one would repeat what that one "
                           "stands for",
                           holder, key);
    }
    return SEMEL_OK;
}

/* What is resolved has had its effect: the earlier versions are stale then, but not while one of them is at its
 * effect. An unknown one may have had it already. */
static semel_status refuse_resolve(const struct item *item, struct semel_error *err)
{
    const struct semel_key *key = item->key;
    const struct semel_row *row = item->row;
    if (key == NULL || !key->by_version || !key->open || row->version == SEMEL_NONE)
        return SEMEL_OK;
    if (row->live.state == SEMEL_STATE_UNKNOWN || key->head_arrival == row->arrival ||
        key->head_version >= row->version)
        return SEMEL_OK;
    if (key->head_version == SEMEL_NONE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BLOCKED,
                           "a message without a version of the same key is stored and unfinished: end that one first");
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BLOCKED,
                       "version %lld of the same key is stored and unfinished: end that one first",
                       (long long)key->head_version);
}

/* A version that is discarded ahead of a gap has to be remembered until the gap closes. */
static semel_status refuse_discard(const struct semel_policy *policy, const struct item *item, struct semel_error *err)
{
    if (item->key == NULL || !item->key->by_version || !semel__version_full(policy, item->key, item->row->version))
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BLOCKED,
                       "%d versions of the same key were discarded already while version %lld is missing: that one has "
                       "to come, or a later one has to run past it (retry --force)",
                       SEMEL_SKIPPED_MAX, (long long)semel__version_last(policy, item->key) + 1);
}

static semel_status refuse(const struct work *work, const struct item *item, const struct semel_command *command,
                           struct semel_error *err)
{
    const struct semel_policy *policy = work->inbox->policy;
    switch (command->word) {
    case SEMEL_WORD_REPLAY: {
        semel_status status = refuse_replay(work->inbox, item->row, work->now_us, command->force, err);
        return status == SEMEL_OK ? refuse_taken(work, err) : status;
    }
    case SEMEL_WORD_DISCARD:
        return refuse_discard(policy, item, err);
    case SEMEL_WORD_RESOLVE:
        return refuse_resolve(item, err);
    }
    return SEMEL_OK;
}

static void change_live(const struct semel_command *command, const struct semel_live *before, int64_t now_us,
                        struct semel_live *live)
{
    switch (command->word) {
    case SEMEL_WORD_REPLAY:
        if (before->state == SEMEL_STATE_DEAD && before->error_class == SEMEL_CLASS_GAP && !command->force)
            semel__live_rejudge(before, now_us, live);
        else
            semel__live_replay(before, now_us, live);
        return;
    case SEMEL_WORD_DISCARD:
        semel__live_discard(before, command->reason, now_us, live);
        return;
    case SEMEL_WORD_RESOLVE:
        semel__live_resolve(before, command->outcome, now_us, live);
        return;
    }
}

static const char *word_name(enum semel_order_word word)
{
    static const char *const names[] = {"replay", "discard", "resolve"};
    return names[word];
}

/* Inside the transaction, the row locked. */
static semel_status apply(struct work *work, struct item *item, const struct semel_command *command, bool *ret_done,
                          struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    *ret_done = false;
    if (item->damage.status != SEMEL_OK) {
        *err = item->damage;
        return SEMEL_INVALID;
    }
    if (item->row == NULL)
        return semel__fail(err, SEMEL_OK, SEMEL_CLASS_NONE, "there is no such message");
    if (command->if_updated_us != 0 && command->if_updated_us != item->row->updated_us)
        return semel__fail(err, SEMEL_OK, SEMEL_CLASS_NONE,
                           "the message has changed since it was looked at: look again");
    if (!allowed(command, &item->row->live))
        return semel__fail(err, SEMEL_OK, SEMEL_CLASS_NONE, "the message is %s: there is nothing to %s",
                           semel__state_name(item->row->live.state), word_name(command->word));
    semel_status status = refuse(work, item, command, err);
    if (status != SEMEL_OK)
        return status;
    change_live(command, &item->row->live, work->now_us, &item->live);
    item->changed = true;
    item->lease = NULL; /* no token: the status itself is the condition */
    item->fenced = false;
    struct semel_audit line = {.consumer = inbox->policy->consumer,
                               .source = command->source,
                               .id = command->id,
                               .who = command->who,
                               .what = semel__str(word_name(command->word)),
                               .reason = command->reason};
    *ret_done = true;
    status = semel_store_audit(inbox->store, &line, work->now_us, err); /* first: a store may write both at once */
    return status == SEMEL_OK ? semel__work_settle(work, err) : status;
}

/* ---- one command --------------------------------------------------------------------------------- */

#define LOOKS_MAX 4

/* What has to be locked or taken before the row, and only the row knows. */
static semel_status learn(struct semel_inbox *inbox, const struct semel_row *row, struct semel__msg *msg,
                          struct semel_error *err)
{
    msg->version = row->version;
    if (!semel__arena_copy(&inbox->arena, row->order_key, &msg->order_key))
        return semel__fail_memory(err);
    msg->n_business = row->n_wants;
    for (size_t i = 0; i < row->n_wants; i++)
        if (!semel__arena_copy(&inbox->arena, row->wants[i], &msg->business[i]))
            return semel__fail_memory(err);
    return SEMEL_OK;
}

/* Was the row read behind its order key, and behind the business keys that it wants? One that is not there is. */
static bool agrees(const struct item *item)
{
    const struct semel_row *row = item->row;
    return row == NULL || (semel__str_eq(row->order_key, item->msg->order_key) && row->version == item->msg->version &&
                           row->n_wants == item->msg->n_business && !semel__item_wishes_more(item));
}

/* Begins a transaction that has the row, locked in the order of locks. The first look learns what comes before it; the
 * row may come, or change, between two looks. Not OK: no transaction is open. */
static semel_status look(struct work *work, struct item *item, struct semel_error *err)
{
    struct semel_inbox *inbox = work->inbox;
    for (int looks = 0; looks < LOOKS_MAX; looks++) {
        semel_status status = semel_store_begin(inbox->store, SEMEL_TX_OWN, &work->now_us, err);
        if (status != SEMEL_OK)
            return status;
        status = semel__work_fetch(work, err);
        if (status == SEMEL_OK && agrees(item))
            return SEMEL_OK;
        semel_store_rollback(inbox->store);
        if (status == SEMEL_OK)
            status = learn(inbox, item->row, item->msg, err);
        if (status != SEMEL_OK)
            return status;
    }
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "the message changes faster than it is looked at");
}

semel_status semel__inbox_command(struct semel_inbox *inbox, const struct semel_command *command, bool *ret_done,
                                  enum semel_state *ret_state, struct semel_error *err)
{
    struct semel_lease nobody = {.live.lease_token = SEMEL_NONE};
    struct semel__msg msg;
    struct item item = {.msg = &msg, .lease = &nobody, .frees = true, .adopt_until_us = SEMEL_NONE}, *items = &item;
    struct work work = {.inbox = inbox, .items = &items, .n = 1, .starting = true};
    struct semel_error local = {0};
    err = err != NULL ? err : &local;
    *ret_done = false;
    *ret_state = SEMEL_STATE_ABSENT;
    semel_status status = check_command(command, err);
    if (status != SEMEL_OK)
        return status;
    semel__msg_init(&msg);
    msg.source = semel__str_given(command->source) ? command->source : (struct semel_str){"", 0};
    msg.id = command->id;
    semel__arena_reset(&inbox->arena);
    semel__arena_reset(&inbox->scratch);
    status = look(&work, &item, err);
    if (status != SEMEL_OK)
        return status;
    status = apply(&work, &item, command, ret_done, err);
    if (status != SEMEL_OK || !*ret_done) {
        semel_store_rollback(inbox->store);
        *ret_done = false;
    } else {
        SEMEL_POINT(REPLAY_SETTLED);
        status = semel_store_commit(inbox->store, err);
        if (status == SEMEL_OK)
            SEMEL_POINT(REPLAY_COMMITTED);
    }
    *ret_done = *ret_done && status == SEMEL_OK;
    *ret_state = item.row == NULL ? SEMEL_STATE_ABSENT : item.live.state;
    return status;
}
