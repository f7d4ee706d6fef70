/* SPDX-License-Identifier: MIT
 *
 * verdict.c: the verdict for a delivery, and for a stored row. See verdict.h for the table.
 */
#include "core/verdict.h"

#include <assert.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/str.h"
#include "core/state.h"
#include "core/version.h"
#include "semel/semel.h"

static void say(struct semel__verdict *v, enum semel_act act, enum semel_why why)
{
    *v = (struct semel__verdict){.act = act, .why = why, .due_us = SEMEL_NONE};
}

static void becomes(struct semel__verdict *v, enum semel_row_status state, enum semel_class cls, int64_t due_us)
{
    v->changes = true;
    v->becomes = state;
    v->cls = cls;
    v->due_us = due_us;
}

static void run(struct semel__verdict *v, const struct semel_row *row)
{
    int before = row != NULL ? row->progress.attempts : 0;
    say(v, SEMEL_RUN, before > 0 ? SEMEL_WHY_RETRIED : SEMEL_WHY_NEW);
    v->attempt = before + 1;
}

/* ACK when the store has the payload; otherwise LATER: the broker must deliver it again. */
static void hold(struct semel__verdict *v, const struct semel_facts *facts, enum semel_why why)
{
    bool kept = facts->row != NULL && facts->row->kept;
    say(v, kept || facts->payload ? SEMEL_ACK : SEMEL_LATER, why);
}

/* ---- place in the order of the key --------------------------------------------------------------- */

enum place { PLACE_FIRST, PLACE_BLOCKED, PLACE_GAP, PLACE_SAME, PLACE_OLDER, PLACE_BELOW };

/* The version that the next one must follow. A route with any first version starts with the lowest stored one. */
static int64_t last_version(const struct semel_policy *policy, const struct semel_key *key, int64_t version)
{
    int64_t last = semel__version_last(policy, key);
    if (last != SEMEL_NONE)
        return last;
    bool behind = key->head_version != SEMEL_NONE && key->head_version < version;
    return (behind ? key->head_version : version) - 1;
}

static enum place place_by_version(const struct semel_policy *policy, const struct semel_key *key, bool other_heads,
                                   int64_t version)
{
    if (version == SEMEL_NONE) /* stored before the route went by versions: as by arrival */
        return other_heads || key->open ? PLACE_BLOCKED : PLACE_FIRST;
    int64_t last = last_version(policy, key, version);
    if (key->last_version == SEMEL_NONE && policy->first_version != SEMEL_FIRST_VERSION_ANY &&
        version < policy->first_version)
        return PLACE_BELOW;
    switch (semel_version_compare(last, version)) {
    case SEMEL_VERSION_OLDER:
        return PLACE_OLDER;
    case SEMEL_VERSION_SAME:
        return PLACE_SAME;
    case SEMEL_VERSION_NEXT:
        /* A later version may be running, by policy or by force: one at a time, and none after a later one. */
        return key->open || (other_heads && key->head_version <= version) ? PLACE_BLOCKED : PLACE_FIRST;
    case SEMEL_VERSION_AHEAD:
        /* The timer of a gap does not run while the missing version, or one before it, is stored unfinished. */
        return other_heads && key->head_version <= last + 1 ? PLACE_BLOCKED : PLACE_GAP;
    }
    return PLACE_BLOCKED;
}

/* Does the head of the key come before this row, or before a new one? A row that waited for a business key may itself
 * come before the head. */
static bool comes_before(const struct semel_key *key, const struct semel_row *row)
{
    if (key->head_arrival == SEMEL_NONE)
        return false;
    if (row == NULL)
        return true;
    if (key->by_version && key->head_version != row->version)
        return key->head_version < row->version;
    return key->head_arrival < row->arrival;
}

static enum place find_place(const struct semel_policy *policy, const struct semel_facts *facts, int64_t version)
{
    const struct semel_key *key = facts->key;
    if (key == NULL || policy->order == SEMEL_ORDER_NONE)
        return PLACE_FIRST;
    bool other_heads = comes_before(key, facts->row);
    if (policy->order == SEMEL_ORDER_ARRIVAL)
        /* A retried quarantined row may come before one that is running: still one at a time. */
        return other_heads || key->open ? PLACE_BLOCKED : PLACE_FIRST;
    return place_by_version(policy, key, other_heads, version);
}

static bool parking_full(const struct semel_policy *policy, const struct semel_facts *facts)
{
    return facts->key->parked >= policy->parked_key_max || facts->route_parked >= policy->parked_consumer_max;
}

/* No row is written. */
static void stay_with_broker(struct semel__verdict *v, bool full)
{
    v->act = SEMEL_LATER;
    v->full = full;
    becomes(v, SEMEL_ROW_ABSENT, SEMEL_CLASS_NONE, SEMEL_NONE);
}

/* Blocked: its key wakes it, so it has no due time. A gap: due when the timer ends. */
static void park(struct semel__verdict *v, const struct semel_policy *policy, const struct semel_facts *facts,
                 enum semel_why why)
{
    const struct semel_row *row = facts->row;
    bool blocked = why == SEMEL_WHY_BLOCKED;
    hold(v, facts, why);
    if (row == NULL && parking_full(policy, facts)) {
        stay_with_broker(v, true);
        return;
    }
    if (blocked && row != NULL && row->progress.state == SEMEL_ROW_WAITING && row->progress.due_us == SEMEL_NONE)
        return; /* as it is */
    becomes(v, SEMEL_ROW_WAITING, blocked ? SEMEL_CLASS_BLOCKED : SEMEL_CLASS_GAP,
            blocked ? SEMEL_NONE : semel__time_add(facts->now_us, policy->gap_timeout_us));
}

/* A gap: the timer starts, runs, or has run out. */
static void judge_gap(struct semel__verdict *v, const struct semel_policy *policy, const struct semel_facts *facts)
{
    const struct semel_row *row = facts->row;
    bool turn = row != NULL &&
                row->progress.state == SEMEL_ROW_FAILED; /* its turn has come already, by policy or by force */
    bool timing = row != NULL && row->progress.error_class == SEMEL_CLASS_GAP && row->progress.due_us != SEMEL_NONE;
    bool over = turn || (timing && row->progress.due_us <= facts->now_us);
    if (over && (facts->key->open || comes_before(facts->key, row))) {
        park(v, policy, facts, SEMEL_WHY_BLOCKED); /* a later version does not skip a stored one */
        return;
    }
    if (turn) {
        run(v, row);
        return;
    }
    if (!timing) {
        park(v, policy, facts, SEMEL_WHY_GAP);
        return;
    }
    if (row->progress.due_us > facts->now_us) {
        hold(v, facts, SEMEL_WHY_GAP);
        return;
    }
    switch (policy->on_gap) {
    case SEMEL_GAP_APPLY:
        run(v, row);
        return;
    case SEMEL_GAP_DEAD:
        say(v, SEMEL_ACK, SEMEL_WHY_GAP);
        becomes(v, SEMEL_ROW_DEAD, SEMEL_CLASS_GAP, SEMEL_NONE);
        return;
    case SEMEL_GAP_ALERT:
        park(v, policy, facts, SEMEL_WHY_GAP);
        return;
    }
}

/* Below the first version of a key without a last version: the message may be old, or the route's setting wrong. It
 * runs only by force. */
static void judge_below(struct semel__verdict *v, const struct semel_policy *policy, const struct semel_facts *facts)
{
    bool forced = facts->row != NULL && facts->row->progress.state == SEMEL_ROW_FAILED;
    if (forced && (facts->key->open || comes_before(facts->key, facts->row))) {
        park(v, policy, facts, SEMEL_WHY_BLOCKED);
    } else if (forced) {
        run(v, facts->row);
    } else {
        say(v, SEMEL_ACK, SEMEL_WHY_DEAD);
        becomes(v, SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT, SEMEL_NONE);
    }
}

static void judge_place(struct semel__verdict *v, const struct semel_policy *policy, const struct semel_facts *facts,
                        int64_t version)
{
    switch (find_place(policy, facts, version)) {
    case PLACE_FIRST:
        run(v, facts->row);
        return;
    case PLACE_BLOCKED:
        park(v, policy, facts, SEMEL_WHY_BLOCKED);
        return;
    case PLACE_GAP:
        judge_gap(v, policy, facts);
        return;
    case PLACE_SAME:
        say(v, SEMEL_ACK, SEMEL_WHY_DUPLICATE);
        becomes(v, SEMEL_ROW_STALE, SEMEL_CLASS_STALE, SEMEL_NONE);
        return;
    case PLACE_OLDER:
        say(v, SEMEL_ACK, SEMEL_WHY_STALE);
        becomes(v, SEMEL_ROW_STALE, SEMEL_CLASS_STALE, SEMEL_NONE);
        return;
    case PLACE_BELOW:
        judge_below(v, policy, facts);
        return;
    }
}

/* ---- business keys ------------------------------------------------------------------------------- */

#define LOOK_FIRST_US INT64_C(1000000)
#define LOOK_CEILING_US INT64_C(600000000)

/* Looks again after as long as it has waited so far. */
static int64_t look_again(const struct semel_facts *facts)
{
    int64_t waited_us = facts->row != NULL ? facts->now_us - facts->row->received_us : 0;
    if (waited_us < LOOK_FIRST_US)
        waited_us = LOOK_FIRST_US;
    return semel__time_add(facts->now_us, waited_us < LOOK_CEILING_US ? waited_us : LOOK_CEILING_US);
}

static void wait_for_holder(struct semel__verdict *v, const struct semel_policy *policy,
                            const struct semel_facts *facts)
{
    const struct semel_row *row = facts->row;
    bool full = facts->intent_full || facts->route_parked >= policy->parked_consumer_max;
    hold(v, facts, SEMEL_WHY_BUSINESS);
    if (row == NULL && (full || v->act == SEMEL_LATER))
        stay_with_broker(v, full);
    else if (row == NULL || !semel__progress_waits_for_intent(&row->progress) || row->progress.due_us == SEMEL_NONE ||
             row->progress.due_us <= facts->now_us)
        becomes(v, SEMEL_ROW_WAITING, SEMEL_CLASS_BUSINESS, look_again(facts));
}

/* The key cannot remember one more version that ended without effect: it must wait for the gap. */
static bool must_wait(const struct semel_policy *policy, const struct semel_facts *facts, int64_t version)
{
    return facts->key != NULL && policy->order == SEMEL_ORDER_VERSION &&
           semel__version_full(policy, facts->key, version);
}

/* May it run, by its business keys and the order of its key? */
static void judge_turn(struct semel__verdict *v, const struct semel_policy *policy, const struct semel_facts *facts,
                       int64_t version)
{
    bool waiter = facts->row != NULL && semel__progress_waits_for_intent(&facts->row->progress);
    if (facts->intent == SEMEL_INTENT_DONE && !must_wait(policy, facts, version)) {
        say(v, SEMEL_ACK, SEMEL_WHY_BUSINESS);
        becomes(v, SEMEL_ROW_PREVENTED, SEMEL_CLASS_BUSINESS, SEMEL_NONE);
        return;
    }
    judge_place(v, policy, facts, version);
    if (facts->intent == SEMEL_INTENT_DONE && v->act == SEMEL_RUN)
        park(v, policy, facts, SEMEL_WHY_GAP); /* past the gap, but a finished effect must not be repeated */
    else if (facts->intent == SEMEL_INTENT_BUSY && (waiter || v->act == SEMEL_RUN))
        wait_for_holder(v, policy, facts);
}

/* ---- the row exists ------------------------------------------------------------------------------ */

static void judge_row(struct semel__verdict *v, const struct semel_policy *policy, const struct semel_facts *facts)
{
    const struct semel_row *row = facts->row;
    switch (row->progress.state) {
    case SEMEL_ROW_COMPLETED:
    case SEMEL_ROW_REJECTED:
        say(v, SEMEL_ACK, SEMEL_WHY_DUPLICATE);
        return;
    case SEMEL_ROW_STALE:
        say(v, SEMEL_ACK, SEMEL_WHY_STALE);
        return;
    case SEMEL_ROW_PREVENTED:
        say(v, SEMEL_ACK, SEMEL_WHY_BUSINESS);
        return;
    case SEMEL_ROW_DEAD:
        say(v, SEMEL_ACK, SEMEL_WHY_DEAD);
        return;
    case SEMEL_ROW_QUARANTINED:
        say(v, SEMEL_ACK, row->progress.error_class == SEMEL_CLASS_NO_ID ? SEMEL_WHY_NO_ID : SEMEL_WHY_TOO_OLD);
        return;
    case SEMEL_ROW_PROCESSING:
        say(v, SEMEL_LATER, SEMEL_WHY_BUSY);
        return;
    case SEMEL_ROW_UNKNOWN:
        hold(v, facts, SEMEL_WHY_UNKNOWN);
        return;
    case SEMEL_ROW_FAILED:
        if (row->progress.due_us != SEMEL_NONE && row->progress.due_us <= facts->now_us)
            judge_turn(v, policy, facts, row->version);
        else
            hold(v, facts, SEMEL_WHY_BACKOFF);
        return;
    case SEMEL_ROW_WAITING:
        if (semel__progress_postponed(&row->progress, facts->now_us))
            hold(v, facts, SEMEL_WHY_BACKOFF);
        else
            judge_turn(v, policy, facts, row->version);
        return;
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_COUNT:
        break;
    }
    assert(!"a stored row has a status");
}

/* ---- there is no row ----------------------------------------------------------------------------- */

static bool too_old(const struct semel__msg *msg, const struct semel_facts *facts)
{
    return facts->watermark_us != SEMEL_NONE && msg->message_time_us != SEMEL_NONE &&
           msg->message_time_us < facts->watermark_us;
}

int64_t semel__msg_time(const struct semel_policy *policy, const struct semel__msg *msg, int64_t now_us)
{
    const bool ulids = policy->timed_ids == SEMEL_TIMED_ALL || policy->timed_ids == SEMEL_TIMED_ULID;
    int64_t made_us;
    if (msg->message_time_us != SEMEL_NONE)
        return msg->message_time_us;
    if (policy->timed_ids != SEMEL_TIMED_NONE && semel__id_time(msg->id, ulids, now_us, &made_us))
        return made_us;
    return msg->envelope_time_us;
}

bool semel__msg_large(const struct semel_policy *policy, const struct semel__msg *msg)
{
    return msg->payload.n > policy->payload_max;
}

static void judge_new(struct semel__verdict *v, const struct semel_policy *policy, const struct semel__msg *msg,
                      const struct semel_facts *facts)
{
    if (semel__msg_large(policy, msg) && facts->large >= SEMEL_LARGE_MAX) {
        say(v, SEMEL_LATER, SEMEL_WHY_DEAD);
        becomes(v, SEMEL_ROW_ABSENT, SEMEL_CLASS_NONE, SEMEL_NONE);
        v->full = true;
    } else if (facts->key != NULL && facts->key->shut && !facts->key->by_version) {
        say(v, SEMEL_LATER, SEMEL_WHY_BLOCKED);
        becomes(v, SEMEL_ROW_ABSENT, SEMEL_CLASS_NONE, SEMEL_NONE);
    } else if (msg->defect == SEMEL_DEFECT_NO_ID) {
        say(v, SEMEL_ACK, SEMEL_WHY_NO_ID);
        becomes(v, SEMEL_ROW_QUARANTINED, SEMEL_CLASS_NO_ID, SEMEL_NONE);
    } else if (too_old(msg, facts)) {
        say(v, SEMEL_ACK, SEMEL_WHY_TOO_OLD);
        becomes(v, SEMEL_ROW_QUARANTINED, SEMEL_CLASS_TOO_OLD, SEMEL_NONE);
    } else if (msg->defect != SEMEL_DEFECT_NONE) {
        say(v, SEMEL_ACK, SEMEL_WHY_DEAD);
        becomes(v, SEMEL_ROW_DEAD, SEMEL_CLASS_PERMANENT, SEMEL_NONE);
    } else {
        judge_turn(v, policy, facts, msg->version);
    }
}

bool semel__payload_adopts(const struct semel_policy *policy, const struct semel__msg *msg, const struct semel_row *row)
{
    if (row == NULL || row->kept || !semel__str_given(msg->payload) || policy->keep == SEMEL_KEEP_NEVER)
        return false;
    return row->progress.state == SEMEL_ROW_QUARANTINED ||
           (semel__state_unfinished(row->progress.state) && row->progress.state != SEMEL_ROW_PROCESSING);
}

void semel__verdict_deliver(const struct semel_policy *policy, const struct semel__msg *msg,
                            const struct semel_facts *given, struct semel__verdict *ret)
{
    struct semel_facts copy = *given, *facts = &copy;
    facts->payload = semel__str_given(msg->payload) && policy->keep != SEMEL_KEEP_NEVER;
    if (facts->damaged)
        say(ret, SEMEL_LATER, SEMEL_WHY_DAMAGED);
    else if (facts->row != NULL && semel__fp_differs(&msg->fp, &facts->row->fp))
        say(ret, SEMEL_ACK, SEMEL_WHY_CONFLICT);
    else if (facts->row != NULL)
        judge_row(ret, policy, facts);
    else
        judge_new(ret, policy, msg, facts);
}

void semel__verdict_take(const struct semel_policy *policy, const struct semel_facts *facts, struct semel__verdict *ret)
{
    assert(facts->row != NULL);
    if (facts->damaged)
        say(ret, SEMEL_LATER, SEMEL_WHY_DAMAGED);
    else
        judge_row(ret, policy, facts);
    if (ret->act == SEMEL_RUN && !facts->row->kept)
        say(ret, SEMEL_LATER, ret->why); /* only its broker can deliver it */
}

struct semel_str semel__verdict_text(const struct semel__verdict *verdict)
{
    switch (verdict->cls) {
    case SEMEL_CLASS_TOO_OLD:
        return SEMEL_STR("older than the watermark: its record may have been purged, so it was not run");
    case SEMEL_CLASS_NO_ID:
        return SEMEL_STR("it has no id that can be used");
    case SEMEL_CLASS_BUSINESS:
        return verdict->becomes == SEMEL_ROW_WAITING
                   ? SEMEL_STR("another message holds its business key and is unfinished")
                   : SEMEL_STR("another message with the same business key came before it");
    case SEMEL_CLASS_STALE:
        return SEMEL_STR("its version is not above the last one applied");
    case SEMEL_CLASS_BLOCKED:
        return SEMEL_STR("an unfinished message of its key comes before it");
    case SEMEL_CLASS_GAP:
        return verdict->becomes == SEMEL_ROW_DEAD ? SEMEL_STR("versions before it did not come in time")
                                                  : SEMEL_STR("versions before it are missing");
    case SEMEL_CLASS_PERMANENT:
        return SEMEL_STR(
            "its version is below the route's first_version, and nothing of its key was applied yet: it was "
            "not run");
    case SEMEL_CLASS_NONE:
    case SEMEL_CLASS_TRANSIENT:
    case SEMEL_CLASS_REJECTED:
    case SEMEL_CLASS_UNKNOWN:
    case SEMEL_CLASS_ENVIRONMENT:
    case SEMEL_CLASS_BROKEN:
    case SEMEL_CLASS_LEASE:
    case SEMEL_CLASS_RELEASED:
    case SEMEL_CLASS_DISCARDED:
        break;
    }
    return (struct semel_str){0};
}
