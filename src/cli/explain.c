/* SPDX-License-Identifier: MIT
 *
 * explain.c: one function a status, each of them a few sentences. The contract stands in explain.h.
 */
#include "cli/explain.h"
#include "core/state.h"
#include "core/version.h"

#include <stdio.h>

#include "base/error.h"

#define LATE_US INT64_C(5000000) /* a worker looks more often than this */
#define REASON "--reason \"...\""

/* ---- pieces -------------------------------------------------------------------------------------- */

static bool same_row(const struct semel_row *a, const struct semel_row *b)
{
    return a->arrival == b->arrival;
}

/* A sentence that ends in a command, on a line of its own. */
static void suggest(const struct cli_facts *f, struct semel_buf *next, const struct semel_row *row, const char *text,
                    const char *word, const char *more)
{
    semel__buf_addf(next, "%s%s:\n    ", next->n > 0 ? "\n" : "", text);
    cli_put_command(next, f->store, word, row, more);
}

static void put_error(struct semel_buf *buf, const struct semel_live *live)
{
    if (live->error_class != SEMEL_CLASS_NONE)
        semel__buf_addz(buf, semel__class_name(live->error_class));
    if (live->error_text.n > 0) {
        semel__buf_addz(buf, live->error_class != SEMEL_CLASS_NONE ? ": " : "");
        cli_put_shown(buf, live->error_text);
    } else if (live->error_class == SEMEL_CLASS_NONE) {
        semel__buf_addz(buf, "no reason was kept");
    }
}

static void put_key(struct semel_buf *buf, const struct semel_row *row)
{
    semel__buf_addz(buf, "key ");
    cli_put_shown(buf, row->order_key);
}

static int used(const struct semel_live *live)
{
    return live->attempts - live->attempts_before;
}

static int budget(const struct cli_facts *f)
{
    return f->row->live.error_class == SEMEL_CLASS_PERMANENT ? f->policy->permanent_max : f->policy->retry_max;
}

static bool ordered(const struct cli_facts *f)
{
    return f->policy->order != SEMEL_ORDER_NONE && semel__str_given(f->row->order_key);
}

static const struct semel_act_line *last_act(const struct cli_facts *f, const char *what)
{
    for (size_t i = f->history->n_acts; i > 0; i--)
        if (semel__str_eqz(f->history->acts[i - 1].what, what))
            return &f->history->acts[i - 1];
    return NULL;
}

static void put_act(struct semel_buf *buf, const struct semel_act_line *act, int64_t now_us)
{
    semel__buf_addz(buf, " by ");
    cli_put_shown(buf, act->who);
    semel__buf_addz(buf, " at ");
    cli_put_when(buf, act->at_us, now_us);
    semel__buf_addz(buf, ", because: ");
    cli_put_shown(buf, act->reason);
}

/* ---- the order of its key ------------------------------------------------------------------------ */

static bool behind_another(const struct cli_facts *f)
{
    return ordered(f) && f->head != NULL && !same_row(f->head, f->row) && f->before > 0;
}

static void advise_head(const struct cli_facts *f, struct semel_buf *next)
{
    const struct semel_row *head = f->head;
    switch (head->live.state) {
    case SEMEL_STATE_DEAD:
        suggest(f, next, head, "Mend its cause and retry that one", "retry", REASON);
        suggest(f, next, head, "or discard it, and the next one goes on", "discard", REASON);
        return;
    case SEMEL_STATE_UNKNOWN:
        suggest(f, next, head, "Find out whether its effect happened. If it did", "resolve", REASON);
        suggest(f, next, head, "If it did not", "retry", REASON);
        return;
    case SEMEL_STATE_FAILED:
        semel__buf_addz(next,
                        "Nothing has to be done as long as a worker runs: that one is retried by itself, due at ");
        cli_put_when(next, head->live.due_us, f->now_us);
        semel__buf_addz(next, ".");
        return;
    case SEMEL_STATE_PROCESSING:
        semel__buf_addz(next, "Nothing has to be done: that one is running, held by ");
        cli_put_shown(next, head->live.lease_owner);
        semel__buf_addz(next, " until ");
        cli_put_when(next, head->live.lease_until_us, f->now_us);
        semel__buf_addz(next, ".");
        return;
    case SEMEL_STATE_WAITING:
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_PREVENTED:
    case SEMEL_STATE_QUARANTINED:
    case SEMEL_STATE_COUNT:
        suggest(f, next, head, "See what that one waits for", "show", "");
        return;
    }
}

static void tell_blocked(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    if (behind_another(f)) {
        semel__buf_addf(why, "It is not running because %s", f->more ? "at least " : "");
        cli_put_count(why, f->before, "earlier message of ", "earlier messages of ");
        put_key(why, f->row);
        semel__buf_addz(why, f->before == 1 ? " is unfinished: " : " are unfinished; the first is ");
        cli_put_shown(why, f->head->id);
        semel__buf_addf(why, ", which is %s.", semel__state_name(f->head->live.state));
        advise_head(f, next);
        return;
    }
    if (ordered(f) && f->open != NULL) {
        semel__buf_addz(why, "It is not running because another message of ");
        put_key(why, f->row);
        semel__buf_addz(why, " has its turn: ");
        cli_put_shown(why, f->open->id);
        semel__buf_addf(why, ", which is %s; of one key only one runs at a time.",
                        semel__state_name(f->open->live.state));
        suggest(f, next, f->open, "See what becomes of that one", "show", "");
        return;
    }
    semel__buf_addz(why, "It was parked behind earlier messages of its key, and none of them is unfinished any more.");
    semel__buf_addz(next,
                    "It goes on with the next look of a worker; if this stays so, let its broker bring it again.");
}

/* ---- one function a status ----------------------------------------------------------------------- */

static const char *after_lease(const struct cli_facts *f)
{
    const struct semel_live *live = &f->row->live;
    if (f->policy->effect == SEMEL_EFFECT_OUTSIDE)
        return "it becomes unknown, because its effect may have happened, and waits for you to find out";
    if (f->policy->effect == SEMEL_EFFECT_ATOMIC && !live->alone)
        return "it is given back without counting the attempt, and runs again, alone";
    return used(live) >= f->policy->retry_max ? "it is dead: that was the last of its attempts"
                                              : "the attempt counts as failed, and it is retried";
}

static void tell_processing(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_live *live = &f->row->live;
    bool over = live->lease_until_us < f->now_us;
    semel__buf_addz(why, over ? "It is not running any more, as it seems: the lease of " : "It is running: ");
    cli_put_shown(why, live->lease_owner);
    semel__buf_addz(why, over ? " ran out at " : " holds it until ");
    cli_put_when(why, live->lease_until_us, f->now_us);
    semel__buf_addf(why, ", for attempt %d of %d.", used(live), f->policy->retry_max);
    if (over)
        semel__buf_addf(next,
                        "Any worker of the consumer recovers it when it looks: then %s. If nothing happens, no worker "
                        "runs: start one.",
                        after_lease(f));
    else
        semel__buf_addf(next,
                        "Nothing has to be done. If that worker dies the lease runs out, and any other worker of the "
                        "consumer recovers it: then %s.",
                        after_lease(f));
}

static void tell_due(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_row *row = f->row;
    semel__buf_addz(why, "It is due since ");
    cli_put_when(why, row->live.due_us, f->now_us);
    if (!row->kept) {
        semel__buf_addz(why, ", but its payload was not kept, so that it cannot run from the store.");
        semel__buf_addz(next, "Only its broker can bring it again.");
    } else if (row->live.due_us > f->now_us - LATE_US) {
        semel__buf_addz(why, ", and a worker takes it with its next look.");
        semel__buf_addz(next, "Nothing has to be done.");
    } else {
        semel__buf_addz(why, ", and nobody has taken it: no worker of the consumer seems to run.");
        semel__buf_addz(next, "Start a worker for consumer ");
        cli_put_shown(next, row->consumer);
        semel__buf_addz(next, ", or see why the one that there is does not take it. A retry would change nothing.");
    }
}

static void tell_failed(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_live *live = &f->row->live;
    bool ran = used(live) > 0;
    if (ran) {
        semel__buf_addf(why, "Attempt %d of %d failed (", used(live), budget(f));
        put_error(why, live);
        semel__buf_addz(why, "). ");
    } else {
        semel__buf_addz(why, "An operator has had it retried, and it has not run since. ");
    }
    if (live->due_us != SEMEL_NONE && live->due_us > f->now_us) {
        semel__buf_addz(why, "It is not running because it waits for its next attempt until ");
        cli_put_when(why, live->due_us, f->now_us);
        semel__buf_addz(why, ".");
        semel__buf_addz(next, "Nothing has to be done.");
        suggest(f, next, f->row, "To have it run at once, with a new budget of attempts", "retry", REASON);
    } else if (behind_another(f) || (ordered(f) && f->open != NULL)) {
        tell_blocked(f, why, next);
    } else {
        tell_due(f, why, next);
    }
}

bool cli_put_missing(const struct cli_facts *f, struct semel_buf *buf)
{
    const struct semel_key key = {.last_version = f->history->last_version,
                                  .skipped = f->history->skipped,
                                  .n_skipped = f->history->n_skipped};
    return semel__version_missing(f->policy, &key, f->row->version, buf);
}

static void put_missing(const struct cli_facts *f, struct semel_buf *why)
{
    size_t skipped = 0;
    semel__buf_addf(why, "It is not running because it is version %lld of ", (long long)f->row->version);
    put_key(why, f->row);
    semel__buf_addz(why, ", and ");
    size_t at = why->n;
    if (!cli_put_missing(f, why))
        semel__buf_addz(why, "versions before it are missing. ");
    else
        semel__buf_addz(why,
                        why->failed || memcmp(why->p + at, "version ", 8) != 0 ? " are missing. " : " is missing. ");
    if (f->history->last_version != SEMEL_NONE)
        semel__buf_addf(why, "The last one applied is %lld. ", (long long)f->history->last_version);
    while (skipped < f->history->n_skipped && f->history->skipped[skipped] < f->row->version)
        skipped++;
    if (skipped > 0) {
        semel__buf_addz(why, "Without effect ended ");
        semel__version_write(f->history->skipped, skipped, why);
        semel__buf_addz(why, ". ");
    }
}

static const char *after_gap(const struct semel_policy *policy)
{
    switch (policy->on_gap) {
    case SEMEL_GAP_DEAD:
        return "it is dead-lettered";
    case SEMEL_GAP_APPLY:
        return "it runs without them";
    case SEMEL_GAP_ALERT:
        return "an alert is raised and it goes on waiting";
    }
    return "";
}

static void tell_gap(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    int64_t due_us = f->row->live.due_us;
    bool over = due_us == SEMEL_NONE || due_us <= f->now_us;
    put_missing(f, why);
    semel__buf_addz(why, over ? "The time for them ended at " : "It waits for them until ");
    cli_put_when(why, due_us, f->now_us);
    semel__buf_addf(why, over ? "; with the next look of a worker %s." : "; then %s.", after_gap(f->policy));
    if (over && due_us < f->now_us - LATE_US)
        semel__buf_addz(next, "Nobody has looked since: start a worker for the consumer. ");
    semel__buf_addz(next, "Have its producer send what is missing.");
    suggest(f, next, f->row, "To run it without; what is missing will be stale then", "retry", "--force " REASON);
    suggest(f, next, f->row, "To give it up; what is missing is still waited for", "discard", REASON);
}

/* It has no place in its order: it waits for the end of another message, which has its business key (A6). */
static void tell_waiter(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_rival *rival = cli_facts_waiters(f) > 0 ? &f->history->rivals[0] : NULL;
    bool open = rival != NULL && semel__state_unfinished(rival->state);
    semel__buf_addz(why, open ? "It is not running because " : "It was waiting because ");
    if (rival != NULL)
        cli_put_shown(why, rival->id);
    else
        semel__buf_addz(why, "another message");
    if (open)
        semel__buf_addf(why, ", which is %s,", semel__state_name(rival->state));
    semel__buf_addz(why, open ? " has its business key" : " had its business key");
    if (rival != NULL) {
        semel__buf_addz(why, " ");
        cli_put_shown(why, rival->key);
    }
    semel__buf_addz(why, open ? ". If that one has its effect, this one is prevented; if that one is rejected or "
                                "discarded, this one runs. It looks again at "
                              : ". What came of that one decides with the next look of a worker, at ");
    cli_put_when(why, f->row->live.due_us, f->now_us);
    semel__buf_addz(why, ".");
    if (open)
        suggest(f, next, &(struct semel_row){.consumer = f->row->consumer, .source = rival->source, .id = rival->id},
                "See what that one waits for", "show", "");
    else
        semel__buf_addz(next, "Nothing has to be done as long as a worker runs.");
    suggest(f, next, f->row, "To give this one up", "discard", REASON);
}

static void tell_waiting(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_live *live = &f->row->live;
    if (live->error_class == SEMEL_CLASS_GAP)
        tell_gap(f, why, next);
    else if (semel__live_waits_for_intent(live))
        tell_waiter(f, why, next);
    else if (live->due_us == SEMEL_NONE || behind_another(f))
        tell_blocked(f, why, next);
    else
        tell_due(f, why, next);
}

static void tell_unknown(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    semel__buf_addf(why, "It is not running because attempt %d may have had its effect (", f->row->live.attempts);
    put_error(why, &f->row->live);
    semel__buf_addz(why, "). To run it again could do it twice, so nothing does that by itself.");
    suggest(f, next, f->row, "Ask the other side whether it happened. If it did", "resolve", REASON);
    suggest(f, next, f->row, "If it certainly did not", "retry", cli_facts_too_old(f) ? "--force " REASON : REASON);
}

static void put_behind(const struct cli_facts *f, struct semel_buf *why)
{
    if (!ordered(f) || f->behind == 0)
        return;
    semel__buf_addf(why, " %s", f->more ? "At least " : "");
    cli_put_count(why, f->behind, "later message of ", "later messages of ");
    put_key(why, f->row);
    semel__buf_addz(why, f->behind == 1 ? " waits behind it." : " wait behind it.");
}

/* How an ended one may be brought back: `lead` begins the sentence. */
static void advise_retry(const struct cli_facts *f, struct semel_buf *next, const char *lead)
{
    char text[240];
    if (!f->row->kept) {
        semel__buf_addz(next, "Its payload was not kept: it cannot be retried, only its broker can bring it again.");
        return;
    }
    if (cli_facts_too_old(f)) {
        semel__buf_addz(next, "It is older than the records of what has run (");
        cli_put_age(next, f->row, f->policy, f->now_us);
        semel__buf_addz(next, "): make sure that its effect has not happened already.");
    }
    bool force = cli_facts_too_old(f) || cli_facts_unfit(f);
    snprintf(text, sizeof text, "%s retry it: it keeps its id and gets up to %d attempts more", lead,
             f->policy->retry_max);
    suggest(f, next, f->row, text, "retry", force ? "--force " REASON : REASON);
}

static void advise_end(const struct cli_facts *f, struct semel_buf *next)
{
    suggest(f, next, f->row, "To skip it for good", "discard", REASON);
    suggest(f, next, f->row, "If its effect was made by other means", "resolve", REASON);
}

/* It died of a gap: a retry has it judged again, only force runs it past what is missing. */
static void advise_gap(const struct cli_facts *f, struct semel_buf *next)
{
    char text[900];
    struct semel_buf missing;
    semel__buf_init(&missing, 600);
    bool known = cli_put_missing(f, &missing) && !missing.failed;
    semel__buf_addz(next, "Have its producer send what is missing.");
    if (!cli_facts_too_old(f))
        suggest(f, next, f->row, "Then, or to wait for it once more", "retry", REASON);
    snprintf(text, sizeof text, "To run it without: %.*s will be stale then", known ? (int)missing.n : 13,
             known ? missing.p : "what is older");
    suggest(f, next, f->row, text, "retry", "--force " REASON);
    semel__buf_done(&missing);
}

static void tell_dead(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_live *live = &f->row->live;
    semel__buf_addz(why, "It is dead: ");
    if (live->error_class == SEMEL_CLASS_GAP)
        semel__buf_addz(why, "versions before it did not come in time.");
    else if (cli_facts_unfit(f))
        semel__buf_addz(why, "it never was fit to run (");
    else if (used(live) > 0)
        semel__buf_addf(why, "attempt %d of %d failed (", used(live), budget(f));
    else
        semel__buf_addz(why, "it was given up (");
    if (live->error_class != SEMEL_CLASS_GAP) {
        put_error(why, live);
        semel__buf_addz(why, ").");
    }
    semel__buf_addz(why, " Nothing runs it again by itself.");
    put_behind(f, why);
    if (live->error_class == SEMEL_CLASS_GAP && f->row->kept)
        advise_gap(f, next);
    else
        advise_retry(f, next,
                     cli_facts_unfit(f) ? "Have it sent again with what it lacks; or, if the handler can do without,"
                                        : "Mend the cause, then");
    advise_end(f, next);
}

static void tell_quarantined(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_row *row = f->row;
    if (row->live.error_class == SEMEL_CLASS_NO_ID) {
        semel__buf_addz(why, "It is quarantined because it came without an id that can be used: whether it has run "
                             "before cannot be known. It was not run.");
    } else {
        semel__buf_addz(why, "It is quarantined because it came too late: ");
        cli_put_age(why, row, f->policy, f->now_us);
        if (f->history->watermark_us != SEMEL_NONE) {
            semel__buf_addz(why, "; nothing made before ");
            cli_put_when(why, f->history->watermark_us, f->now_us);
            semel__buf_addz(why, " may run");
        }
        semel__buf_addz(why, ". The record of an earlier run may have been purged, so it was not run.");
    }
    suggest(f, next, row, "Find out whether its effect has happened. If it has", "resolve", REASON);
    if (row->kept)
        suggest(f, next, row, "If it has not, and should", "retry", "--force " REASON);
    else
        semel__buf_addz(next, "\nIts payload was not kept: it cannot be retried.");
    suggest(f, next, row, "If it should not", "discard", REASON);
}

static void tell_rejected(const struct cli_facts *f, struct semel_buf *why)
{
    const struct semel_live *live = &f->row->live;
    const struct semel_act_line *act = last_act(f, "discard");
    if (live->error_class == SEMEL_CLASS_DISCARDED) {
        semel__buf_addz(why, "It will not run: it was discarded");
        if (act != NULL) {
            put_act(why, act, f->now_us);
        } else {
            semel__buf_addz(why, ", because: ");
            cli_put_shown(why, live->error_text);
        }
        semel__buf_addz(why, ".");
        return;
    }
    semel__buf_addz(why, "It will not run again: its handler rejected it at ");
    cli_put_when(why, live->processed_us, f->now_us);
    semel__buf_addz(why, " (");
    put_error(why, live);
    semel__buf_addz(why, "), and that is a final answer.");
}

static void tell_completed(const struct cli_facts *f, struct semel_buf *why)
{
    const struct semel_live *live = &f->row->live;
    const struct semel_act_line *act = last_act(f, "resolve");
    if (act != NULL) {
        semel__buf_addz(why, "It is completed: it was resolved");
        put_act(why, act, f->now_us);
    } else {
        semel__buf_addz(why, "It is completed, since ");
        cli_put_when(why, live->processed_us, f->now_us);
        semel__buf_addf(why, ", with attempt %d", live->attempts);
    }
    semel__buf_addz(why, semel__str_given(live->outcome) ? "; its outcome is kept." : ".");
}

static void tell_stale(const struct cli_facts *f, struct semel_buf *why)
{
    semel__buf_addf(why, "It will not run: it is version %lld of ", (long long)f->row->version);
    put_key(why, f->row);
    semel__buf_addz(why, ", and ");
    if (f->history->last_version != SEMEL_NONE)
        semel__buf_addf(why, "version %lld has been applied already.", (long long)f->history->last_version);
    else
        semel__buf_addz(why, "that one or a later one had been applied when it came.");
}

void cli_explain(const struct cli_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    switch (f->row->live.state) {
    case SEMEL_STATE_PROCESSING:
        tell_processing(f, why, next);
        return;
    case SEMEL_STATE_FAILED:
        tell_failed(f, why, next);
        return;
    case SEMEL_STATE_WAITING:
        tell_waiting(f, why, next);
        return;
    case SEMEL_STATE_UNKNOWN:
        tell_unknown(f, why, next);
        return;
    case SEMEL_STATE_DEAD:
        tell_dead(f, why, next);
        return;
    case SEMEL_STATE_QUARANTINED:
        tell_quarantined(f, why, next);
        return;
    case SEMEL_STATE_REJECTED:
        tell_rejected(f, why);
        break;
    case SEMEL_STATE_COMPLETED:
        tell_completed(f, why);
        break;
    case SEMEL_STATE_STALE:
        tell_stale(f, why);
        break;
    case SEMEL_STATE_PREVENTED:
        semel__buf_addz(why, "It will not run: another message with the same business key came before it, and the "
                             "same intent has its effect once.");
        break;
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_COUNT:
        return;
    }
    semel__buf_addz(next, "There is nothing to do.");
}

void cli_explain_damaged(struct semel_str damage, struct semel_buf *why, struct semel_buf *next)
{
    semel__buf_addz(why, "It is not running because its row cannot be read as one of Semel's (");
    cli_put_shown(why, damage);
    semel__buf_addz(why, "). The row is left as it is, and what comes again of it stays with its broker.");
    semel__buf_addz(next, "Something other than Semel has written to the row, or the file is damaged: check the "
                          "database, and bring the row back from a copy. Do not delete it: then it could run twice.");
}
