/* SPDX-License-Identifier: MIT
 *
 * progress.c: what a row becomes, one function per event. See verdict.h.
 */
#include <assert.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/str.h"
#include "core/retry.h"
#include "core/state.h"
#include "core/token.h"
#include "core/verdict.h"

static struct semel_str cut(struct semel_str s, size_t max)
{
    if (s.n <= max)
        return s;
    while (max > 0 && ((unsigned char)s.p[max] & 0xc0) == 0x80)
        max--;
    return (struct semel_str){s.p, max};
}

/* A longer outcome is not stored at all: cut in the middle it would not be JSON. */
static struct semel_str fitting(struct semel_str outcome)
{
    return outcome.n <= SEMEL_OUTCOME_MAX ? outcome : (struct semel_str){0};
}

/* `before` in `state`, without lease, due time and error. */
static void move(struct semel_progress *progress, const struct semel_progress *before, enum semel_row_status state,
                 int64_t now_us)
{
    *progress = *before;
    progress->state = state;
    progress->due_us = SEMEL_NONE;
    progress->processed_us = semel__state_final(state) ? now_us : SEMEL_NONE;
    progress->lease_owner = (struct semel_str){0};
    progress->lease_until_us = progress->lease_token = SEMEL_NONE;
    progress->error_class = SEMEL_CLASS_NONE;
    progress->error_text = (struct semel_str){0};
}

static void blame(struct semel_progress *progress, enum semel_class cls, struct semel_str text)
{
    progress->error_class = cls;
    progress->error_text = cut(text, SEMEL_ERROR_TEXT_MAX);
}

void semel__progress_verdict(const struct semel__verdict *verdict, const struct semel_progress *before,
                             struct semel_str text, int64_t now_us, struct semel_progress *ret)
{
    assert(verdict->act != SEMEL_RUN && verdict->changes && verdict->becomes != SEMEL_ROW_ABSENT);
    move(ret, before, verdict->becomes, now_us);
    ret->due_us = verdict->due_us;
    blame(ret, verdict->cls, text);
}

void semel__progress_claim(const struct semel_policy *policy, const struct semel_progress *before,
                           struct semel_str owner, bool alone, int64_t token, int64_t now_us,
                           struct semel_progress *ret)
{
    enum semel_class cls = before->error_class;
    struct semel_str text = before->error_text;
    move(ret, before, SEMEL_ROW_PROCESSING, now_us);
    if (!semel__progress_waits_for_intent(before))
        blame(ret, cls, text); /* the last error stays visible while the next attempt runs */
    ret->attempts = before->attempts + 1;
    ret->alone = alone;
    ret->lease_owner = owner;
    ret->lease_until_us = semel__time_add(now_us, policy->lease_us);
    ret->lease_token = token;
}

void semel__progress_complete(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret)
{
    move(ret, before, SEMEL_ROW_COMPLETED, now_us);
    ret->attempts = before->attempts + 1;
}

static enum semel_row_status failed_or_dead(const struct semel_policy *policy, const struct semel_progress *before,
                                            enum semel_result result)
{
    int used = before->attempts - before->attempts_before;
    int max = result == SEMEL_PERMANENT ? policy->permanent_max : policy->retry_max;
    return used >= max ? SEMEL_ROW_DEAD : SEMEL_ROW_FAILED;
}

/* A message that may have had its effect is repeated only if it was called with its key, and will be again. */
static bool repeats_by_key(const struct semel_policy *policy, int64_t token)
{
    return semel__effect_of(policy, token) == SEMEL_EFFECT_KEYED && policy->effect == SEMEL_EFFECT_KEYED;
}

static enum semel_row_status ending_state(const struct semel_policy *policy, const struct semel_progress *before,
                                          enum semel_result result)
{
    switch (result) {
    case SEMEL_DONE:
        return SEMEL_ROW_COMPLETED;
    case SEMEL_REJECTED:
        return SEMEL_ROW_REJECTED;
    case SEMEL_MAYBE:
        if (!repeats_by_key(policy, before->lease_token))
            return SEMEL_ROW_UNKNOWN;
        return failed_or_dead(policy, before, SEMEL_TRANSIENT);
    case SEMEL_TRANSIENT:
    case SEMEL_PERMANENT:
        return failed_or_dead(policy, before, result);
    }
    return SEMEL_ROW_UNKNOWN;
}

static enum semel_class ending_class(const struct semel_ending *ending)
{
    static const enum semel_class classes[] = {
        [SEMEL_DONE] = SEMEL_CLASS_NONE,           [SEMEL_TRANSIENT] = SEMEL_CLASS_TRANSIENT,
        [SEMEL_PERMANENT] = SEMEL_CLASS_PERMANENT, [SEMEL_REJECTED] = SEMEL_CLASS_REJECTED,
        [SEMEL_MAYBE] = SEMEL_CLASS_UNKNOWN,
    };
    return ending->cls != SEMEL_CLASS_NONE ? ending->cls : classes[ending->result];
}

void semel__progress_finish(const struct semel_policy *policy, const struct semel_progress *before,
                            const struct semel_ending *ending, int64_t now_us, struct semel_random *rng,
                            struct semel_progress *ret)
{
    enum semel_row_status state = ending_state(policy, before, ending->result);
    move(ret, before, state, now_us);
    ret->outcome = fitting(ending->outcome);
    if (state != SEMEL_ROW_COMPLETED)
        blame(ret, ending_class(ending), ending->text);
    if (state == SEMEL_ROW_FAILED) {
        ret->alone = true;
        ret->due_us = semel__time_add(now_us, semel__backoff_us(policy->retry_first_us, policy->retry_ceiling_us,
                                                                before->attempts - before->attempts_before, rng));
    }
}

void semel__progress_recover(const struct semel_policy *policy, const struct semel_progress *before, int64_t now_us,
                             struct semel_random *rng, struct semel_progress *ret)
{
    const enum semel_effect effect = semel__effect_of(policy, before->lease_token);
    assert(before->state == SEMEL_ROW_PROCESSING);
    if (effect == SEMEL_EFFECT_ATOMIC && !before->alone) {
        /* It ran with others and the failure cannot be assigned: no attempt counts, each continues alone. */
        semel__progress_release(before, now_us, ret);
        ret->alone = true;
        blame(ret, SEMEL_CLASS_LEASE,
              SEMEL_STR("its worker died or stalled while it ran this one together with others; next it runs alone"));
        return;
    }
    struct semel_ending ending = {
        .result = effect == SEMEL_EFFECT_ATOMIC || repeats_by_key(policy, before->lease_token) ? SEMEL_TRANSIENT
                                                                                               : SEMEL_MAYBE,
        .cls = SEMEL_CLASS_LEASE,
        .text = SEMEL_STR("its worker died or stalled: the lease ran out before it reported an end"),
        .outcome = before->outcome,
    };
    semel__progress_finish(policy, before, &ending, now_us, rng, ret);
}

void semel__progress_release(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret)
{
    assert(before->state == SEMEL_ROW_PROCESSING && before->attempts > 0);
    int attempts = before->attempts - 1;
    move(ret, before, attempts > before->attempts_before ? SEMEL_ROW_FAILED : SEMEL_ROW_WAITING, now_us);
    ret->attempts = attempts;
    if (ret->attempts_before > attempts)
        ret->attempts_before = attempts;
    ret->due_us = now_us;
    blame(ret, SEMEL_CLASS_RELEASED, SEMEL_STR("given back before it ran"));
}

void semel__progress_retry(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret)
{
    enum semel_class cls = before->error_class;
    struct semel_str text = before->error_text;
    move(ret, before, SEMEL_ROW_FAILED, now_us);
    blame(ret, cls, text);
    ret->attempts_before = before->attempts;
    ret->retries = before->retries + 1;
    ret->alone = true;
    ret->due_us = now_us;
}

void semel__progress_rejudge(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret)
{
    move(ret, before, SEMEL_ROW_WAITING, now_us);
    blame(ret, SEMEL_CLASS_BLOCKED, SEMEL_STR("an operator has its place in the order judged again"));
    ret->attempts_before = before->attempts;
    ret->retries = before->retries + 1;
    ret->due_us = now_us;
}

void semel__progress_resolve(const struct semel_progress *before, struct semel_str outcome, int64_t now_us,
                             struct semel_progress *ret)
{
    move(ret, before, SEMEL_ROW_COMPLETED, now_us);
    if (semel__str_given(outcome))
        ret->outcome = fitting(outcome);
}

void semel__progress_discard(const struct semel_progress *before, struct semel_str reason, int64_t now_us,
                             struct semel_progress *ret)
{
    move(ret, before, SEMEL_ROW_REJECTED, now_us);
    blame(ret, SEMEL_CLASS_DISCARDED, reason);
}

bool semel__payload_stays(const struct semel_policy *policy, enum semel_row_status state)
{
    switch (policy->keep) {
    case SEMEL_KEEP_ALWAYS:
        return true;
    case SEMEL_KEEP_NEVER:
        return false;
    case SEMEL_KEEP_UNFINISHED:
        return !semel__state_final(state);
    }
    return true;
}
