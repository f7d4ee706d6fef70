/* SPDX-License-Identifier: MIT
 *
 * explain.c: why a message is not running: one function per status, each of them a few sentences; what a command would
 * do; and the pieces of both: times, counts, commands to paste, figures. The contract stands in explain.h.
 */
#include "ops/explain.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/consumer.h"
#include "core/state.h"
#include "core/version.h"

#define LATE_US INT64_C(5000000) /* a worker looks more often than this */
#define REASON "--reason \"...\""

/* ---- pieces, for those who suggest commands themselves ------------------------------------------------ */

void semel__put_shown(struct semel_buf *buf, struct semel_str s)
{
    char text[4 * SEMEL_ERROR_TEXT_MAX];
    semel__str_show(text, sizeof text, s);
    semel__buf_addz(buf, text);
}

static bool plain(char c)
{
    return semel__is_letter(c) || semel__is_digit(c) || (c != '\0' && strchr("_-./:@%+=,", c) != NULL);
}

/* What a terminal would not show as it is (A11): each byte that is no plain character by its number. */
static void put_escaped(struct semel_buf *buf, struct semel_str s)
{
    semel__buf_addz(buf, "$'");
    for (size_t i = 0; i < s.n; i++)
        if (plain(s.p[i]) || s.p[i] == ' ')
            semel__buf_add(buf, &s.p[i], 1);
        else
            semel__buf_addf(buf, "\\%03o", (unsigned)(unsigned char)s.p[i]);
    semel__buf_addz(buf, "'");
}

void semel__put_word(struct semel_buf *buf, struct semel_str s)
{
    char text[4 * SEMEL_ERROR_TEXT_MAX];
    bool bare = s.n > 0;
    for (size_t i = 0; i < s.n; i++)
        bare = bare && plain(s.p[i]);
    semel__str_show(text, sizeof text, s);
    if (bare) {
        semel__buf_add(buf, s.p, s.n);
        return;
    }
    if (!semel__str_eqz(s, text)) {
        put_escaped(buf, s);
        return;
    }
    semel__buf_addz(buf, "'");
    for (const char *p = text; *p != '\0'; p++)
        if (*p == '\'')
            semel__buf_addz(buf, "'\\''");
        else
            semel__buf_add(buf, p, 1);
    semel__buf_addz(buf, "'");
}

static void put_count(struct semel_buf *buf, size_t n, const char *one, const char *many)
{
    semel__buf_addf(buf, "%zu %s", n, n == 1 ? one : many);
}

void semel__put_span(struct semel_buf *buf, int64_t us)
{
    static const struct {
        int64_t seconds;
        const char *name;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    int64_t seconds = us / 1000000;
    size_t i = 0;
    while (units[i].seconds > 1 && seconds < 2 * units[i].seconds)
        i++;
    semel__buf_addf(buf, "%lld %s", (long long)(seconds / units[i].seconds), units[i].name);
}

/* 2026-11-15T22:48:07Z (in 40 s) */
void semel__put_when(struct semel_buf *buf, int64_t us, int64_t now_us)
{
    char text[SEMEL_TIME_TEXT];
    bool ahead = us > now_us;
    int64_t away_us;
    if (us == SEMEL_NONE) {
        semel__buf_addz(buf, "a time that is not known");
        return;
    }
    semel__time_format(us, text);
    text[strcspn(text, ".")] = '\0';
    semel__buf_addf(buf, "%sZ", text);
    if (__builtin_sub_overflow(ahead ? us : now_us, ahead ? now_us : us, &away_us))
        return;
    semel__buf_addz(buf, ahead ? " (in " : " (");
    semel__put_span(buf, away_us);
    semel__buf_addz(buf, ahead ? ")" : " ago)");
}

/* "semel inbox COMMAND ID --consumer C [--source S] MORE [--store URL]" */
static void put_command(struct semel_buf *buf, const char *store, const char *command, const struct semel_row *row,
                        const char *more)
{
    bool dash = row->id.n > 0 && row->id.p[0] == '-';
    semel__buf_addf(buf, "semel inbox %s ", command);
    if (!dash)
        semel__put_word(buf, row->id);
    semel__buf_addz(buf, dash ? "--consumer " : " --consumer ");
    semel__put_word(buf, row->consumer);
    if (row->source.n > 0) {
        semel__buf_addz(buf, " --source ");
        semel__put_word(buf, row->source);
    }
    if (more[0] != '\0')
        semel__buf_addf(buf, " %s", more);
    if (store != NULL) {
        semel__buf_addz(buf, " --store ");
        semel__put_word(buf, semel__str(store));
    }
    if (dash) {
        semel__buf_addz(buf, " -- ");
        semel__put_word(buf, row->id);
    }
}

static int64_t age_from(const struct semel_row *row)
{
    return row->message_time_us != SEMEL_NONE ? row->message_time_us : row->received_us;
}

void semel__put_age(struct semel_buf *buf, const struct semel_row *row, const struct semel_policy *policy,
                    int64_t now_us)
{
    char kept[32];
    semel__duration_format(policy->retention_us, kept, sizeof kept);
    semel__buf_addz(buf, row->message_time_us != SEMEL_NONE ? "it was made at " : "it was received at ");
    semel__put_when(buf, age_from(row), now_us);
    semel__buf_addf(buf, ", and the retention is %s", kept);
}

static void put_rival(struct semel_buf *buf, const struct semel_rival *rival)
{
    semel__put_shown(buf, rival->id);
    if (rival->source.n == 0)
        return;
    semel__buf_addz(buf, " (source ");
    semel__put_shown(buf, rival->source);
    semel__buf_addz(buf, ")");
}

size_t semel__put_waiters(const struct semel_ops_facts *f, struct semel_buf *buf)
{
    const struct semel_history *h = f->history;
    size_t first = semel__facts_waiters(f), n = h->n_rivals - first;
    for (size_t i = 0; i < n && i < SEMEL_WAITERS_MAX; i++) {
        semel__buf_addz(buf, i > 0 ? ", " : "");
        put_rival(buf, &h->rivals[first + i]);
    }
    if (n > SEMEL_WAITERS_MAX)
        semel__buf_addf(buf, " and %s%zu more", h->more ? "at least " : "", n - SEMEL_WAITERS_MAX);
    return n;
}

/* "version 5" or "versions 5 to 8": those that are missing before it. false: none is, or nobody knows. */
static bool name_missing(const struct semel_ops_facts *f, struct semel_buf *buf)
{
    const struct semel_key key = {.last_version = f->history->last_version,
                                  .skipped = f->history->skipped,
                                  .n_skipped = f->history->n_skipped};
    return semel__version_missing(f->policy, &key, f->row->version, buf);
}

/* ---- facts ---------------------------------------------------------------------------------------- */

size_t semel__facts_waiters(const struct semel_ops_facts *facts)
{
    size_t i = 0;
    while (i < facts->history->n_rivals && facts->history->rivals[i].holds)
        i++;
    return i;
}

void semel__facts_key(struct semel_ops_facts *facts, const struct semel_row *rows, size_t n, bool more)
{
    bool met = false;
    facts->head = n > 0 ? &rows[0] : NULL;
    facts->open = NULL;
    facts->before = facts->behind = 0;
    facts->more = more;
    for (size_t i = 0; i < n; i++) {
        enum semel_row_status state = rows[i].progress.state;
        if (rows[i].arrival == facts->row->arrival) {
            met = true;
            continue;
        }
        facts->before += !met;
        facts->behind += met;
        if (facts->open == NULL && (state == SEMEL_ROW_PROCESSING || state == SEMEL_ROW_UNKNOWN))
            facts->open = &rows[i];
    }
}

/* ---- sentences that several statuses share ------------------------------------------------------- */

static bool same_row(const struct semel_row *a, const struct semel_row *b)
{
    return a->arrival == b->arrival;
}

/* A sentence that ends in a command, on a line of its own. */
static void suggest(const struct semel_ops_facts *f, struct semel_buf *next, const struct semel_row *row,
                    const char *text, const char *command, const char *more)
{
    semel__buf_addf(next, "%s%s:\n    ", next->n > 0 ? "\n" : "", text);
    put_command(next, f->store, command, row, more);
}

static void put_error(struct semel_buf *buf, const struct semel_progress *progress)
{
    if (progress->error_class != SEMEL_CLASS_NONE)
        semel__buf_addz(buf, semel__class_name(progress->error_class));
    if (progress->error_text.n > 0) {
        semel__buf_addz(buf, progress->error_class != SEMEL_CLASS_NONE ? ": " : "");
        semel__put_shown(buf, progress->error_text);
    } else if (progress->error_class == SEMEL_CLASS_NONE) {
        semel__buf_addz(buf, "no reason was kept");
    }
}

static void put_key(struct semel_buf *buf, const struct semel_row *row)
{
    semel__buf_addz(buf, "key ");
    semel__put_shown(buf, row->order_key);
}

static int used(const struct semel_progress *progress)
{
    return progress->attempts - progress->attempts_before;
}

static int budget(const struct semel_ops_facts *f)
{
    return f->row->progress.error_class == SEMEL_CLASS_PERMANENT ? f->policy->permanent_max : f->policy->retry_max;
}

static bool ordered(const struct semel_ops_facts *f)
{
    return f->policy->order != SEMEL_ORDER_NONE && semel__str_given(f->row->order_key);
}

static const struct semel_act_line *last_act(const struct semel_ops_facts *f, const char *what)
{
    for (size_t i = f->history->n_acts; i > 0; i--)
        if (semel__str_eqz(f->history->acts[i - 1].what, what))
            return &f->history->acts[i - 1];
    return NULL;
}

static void put_act(struct semel_buf *buf, const struct semel_act_line *act, int64_t now_us)
{
    semel__buf_addz(buf, " by ");
    semel__put_shown(buf, act->who);
    semel__buf_addz(buf, " at ");
    semel__put_when(buf, act->at_us, now_us);
    semel__buf_addz(buf, ", because: ");
    semel__put_shown(buf, act->reason);
}

/* ---- the order of its key ------------------------------------------------------------------------ */

static bool behind_another(const struct semel_ops_facts *f)
{
    return ordered(f) && f->head != NULL && !same_row(f->head, f->row) && f->before > 0;
}

static void advise_head(const struct semel_ops_facts *f, struct semel_buf *next)
{
    const struct semel_row *head = f->head;
    switch (head->progress.state) {
    case SEMEL_ROW_DEAD:
        suggest(f, next, head, "Fix its cause and retry that one", "retry", REASON);
        suggest(f, next, head, "or discard it, and the next one goes on", "discard", REASON);
        return;
    case SEMEL_ROW_UNKNOWN:
        suggest(f, next, head, "Find out whether its effect happened. If it did", "resolve", REASON);
        suggest(f, next, head, "If it did not", "retry", REASON);
        return;
    case SEMEL_ROW_FAILED:
        semel__buf_addz(next,
                        "Nothing has to be done as long as a worker runs: that one is retried by itself, due at ");
        semel__put_when(next, head->progress.due_us, f->now_us);
        semel__buf_addz(next, ".");
        return;
    case SEMEL_ROW_PROCESSING:
        semel__buf_addz(next, "Nothing has to be done: that one is running, held by ");
        semel__put_shown(next, head->progress.lease_owner);
        semel__buf_addz(next, " until ");
        semel__put_when(next, head->progress.lease_until_us, f->now_us);
        semel__buf_addz(next, ".");
        return;
    case SEMEL_ROW_WAITING:
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_COMPLETED:
    case SEMEL_ROW_REJECTED:
    case SEMEL_ROW_STALE:
    case SEMEL_ROW_PREVENTED:
    case SEMEL_ROW_QUARANTINED:
    case SEMEL_ROW_COUNT:
        suggest(f, next, head, "See what that one waits for", "show", "");
        return;
    }
}

static void explain_blocked(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    if (behind_another(f)) {
        semel__buf_addf(why, "It is not running because %s", f->more ? "at least " : "");
        put_count(why, f->before, "earlier message of ", "earlier messages of ");
        put_key(why, f->row);
        semel__buf_addz(why, f->before == 1 ? " is unfinished: " : " are unfinished; the first is ");
        semel__put_shown(why, f->head->id);
        semel__buf_addf(why, ", which is %s.", semel__row_status_name(f->head->progress.state));
        advise_head(f, next);
        return;
    }
    if (ordered(f) && f->open != NULL) {
        semel__buf_addz(why, "It is not running because another message of ");
        put_key(why, f->row);
        semel__buf_addz(why, " has its turn: ");
        semel__put_shown(why, f->open->id);
        semel__buf_addf(why, ", which is %s; of one key only one runs at a time.",
                        semel__row_status_name(f->open->progress.state));
        suggest(f, next, f->open, "See what becomes of that one", "show", "");
        return;
    }
    semel__buf_addz(why, "It was parked behind earlier messages of its key, and none of them is unfinished any more.");
    semel__buf_addz(next,
                    "It goes on with the next look of a worker; if this stays so, let its broker bring it again.");
}

/* ---- one function a status ----------------------------------------------------------------------- */

static const char *after_lease(const struct semel_ops_facts *f)
{
    const struct semel_progress *progress = &f->row->progress;
    if (f->policy->effect == SEMEL_EFFECT_OUTSIDE)
        return "it becomes unknown, because its effect may have happened, and waits for you to find out";
    if (f->policy->effect == SEMEL_EFFECT_ATOMIC && !progress->alone)
        return "it is given back without counting the attempt, and runs again, alone";
    return used(progress) >= f->policy->retry_max ? "it is dead: that was the last of its attempts"
                                                  : "the attempt counts as failed, and it is retried";
}

static void explain_processing(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_progress *progress = &f->row->progress;
    bool over = progress->lease_until_us < f->now_us;
    semel__buf_addz(why, over ? "It is not running any more, as it seems: the lease of " : "It is running: ");
    semel__put_shown(why, progress->lease_owner);
    semel__buf_addz(why, over ? " ran out at " : " holds it until ");
    semel__put_when(why, progress->lease_until_us, f->now_us);
    semel__buf_addf(why, ", for attempt %d of %d.", used(progress), f->policy->retry_max);
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

static void explain_due(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_row *row = f->row;
    semel__buf_addz(why, "It is due since ");
    semel__put_when(why, row->progress.due_us, f->now_us);
    if (!row->kept) {
        semel__buf_addz(why, ", but its payload was not kept, so that it cannot run from the store.");
        semel__buf_addz(next, "Only its broker can bring it again.");
    } else if (row->progress.due_us > f->now_us - LATE_US) {
        semel__buf_addz(why, ", and a worker takes it with its next look.");
        semel__buf_addz(next, "Nothing has to be done.");
    } else {
        semel__buf_addz(why, ", and nobody has taken it: no worker of the consumer seems to run.");
        semel__buf_addz(next, "Start a worker for consumer ");
        semel__put_shown(next, row->consumer);
        semel__buf_addz(next, ", or see why the one that there is does not take it. A retry would change nothing.");
    }
}

static void explain_failed(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_progress *progress = &f->row->progress;
    bool ran = used(progress) > 0;
    if (ran) {
        semel__buf_addf(why, "Attempt %d of %d failed (", used(progress), budget(f));
        put_error(why, progress);
        semel__buf_addz(why, "). ");
    } else {
        semel__buf_addz(why, "An operator has had it retried, and it has not run since. ");
    }
    if (progress->due_us != SEMEL_NONE && progress->due_us > f->now_us) {
        semel__buf_addz(why, "It is not running because it waits for its next attempt until ");
        semel__put_when(why, progress->due_us, f->now_us);
        semel__buf_addz(why, ".");
        semel__buf_addz(next, "Nothing has to be done.");
        suggest(f, next, f->row, "To have it run at once, with a new budget of attempts", "retry", REASON);
    } else if (behind_another(f) || (ordered(f) && f->open != NULL)) {
        explain_blocked(f, why, next);
    } else {
        explain_due(f, why, next);
    }
}

static void put_missing(const struct semel_ops_facts *f, struct semel_buf *why)
{
    size_t skipped = 0;
    semel__buf_addf(why, "It is not running because it is version %lld of ", (long long)f->row->version);
    put_key(why, f->row);
    semel__buf_addz(why, ", and ");
    size_t at = why->n;
    if (!name_missing(f, why))
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

static void explain_gap(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    int64_t due_us = f->row->progress.due_us;
    bool over = due_us == SEMEL_NONE || due_us <= f->now_us;
    put_missing(f, why);
    semel__buf_addz(why, over ? "The time for them ended at " : "It waits for them until ");
    semel__put_when(why, due_us, f->now_us);
    semel__buf_addf(why, over ? "; with the next look of a worker %s." : "; then %s.", after_gap(f->policy));
    if (over && due_us < f->now_us - LATE_US)
        semel__buf_addz(next, "Nobody has looked since: start a worker for the consumer. ");
    semel__buf_addz(next, "Have its producer send what is missing.");
    suggest(f, next, f->row, "To run it without; what is missing will be stale then", "retry", "--force " REASON);
    suggest(f, next, f->row, "To give it up; what is missing is still waited for", "discard", REASON);
}

/* It has no place in its order: it waits for the end of another message, which has its business key (A6). */
static void explain_waiter(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_rival *rival = semel__facts_waiters(f) > 0 ? &f->history->rivals[0] : NULL;
    bool open = rival != NULL && semel__state_unfinished(rival->state);
    semel__buf_addz(why, open ? "It is not running because " : "It was waiting because ");
    if (rival != NULL)
        semel__put_shown(why, rival->id);
    else
        semel__buf_addz(why, "another message");
    if (open)
        semel__buf_addf(why, ", which is %s,", semel__row_status_name(rival->state));
    semel__buf_addz(why, open ? " has its business key" : " had its business key");
    if (rival != NULL) {
        semel__buf_addz(why, " ");
        semel__put_shown(why, rival->key);
    }
    semel__buf_addz(why, open ? ". If that one has its effect, this one is prevented; if that one is rejected or "
                                "discarded, this one runs. It looks again at "
                              : ". What came of that one decides with the next look of a worker, at ");
    semel__put_when(why, f->row->progress.due_us, f->now_us);
    semel__buf_addz(why, ".");
    if (open)
        suggest(f, next, &(struct semel_row){.consumer = f->row->consumer, .source = rival->source, .id = rival->id},
                "See what that one waits for", "show", "");
    else
        semel__buf_addz(next, "Nothing has to be done as long as a worker runs.");
    suggest(f, next, f->row, "To give this one up", "discard", REASON);
}

static void put_behind(const struct semel_ops_facts *f, struct semel_buf *why)
{
    if (!ordered(f) || f->behind == 0)
        return;
    semel__buf_addf(why, " %s", f->more ? "At least " : "");
    put_count(why, f->behind, "later message of ", "later messages of ");
    put_key(why, f->row);
    semel__buf_addz(why, f->behind == 1 ? " waits behind it." : " wait behind it.");
}

static void explain_later(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    semel__buf_addz(why, "It was stored for later and does not run before ");
    semel__put_when(why, f->row->progress.due_us, f->now_us);
    semel__buf_addz(why, ".");
    put_behind(f, why);
    semel__buf_addz(next, "Nothing has to be done.");
    suggest(f, next, f->row, "To give it up", "discard", REASON);
}

static void explain_waiting(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_progress *progress = &f->row->progress;
    if (semel__progress_postponed(progress, f->now_us))
        explain_later(f, why, next);
    else if (progress->error_class == SEMEL_CLASS_GAP)
        explain_gap(f, why, next);
    else if (semel__progress_waits_for_intent(progress))
        explain_waiter(f, why, next);
    else if (progress->due_us == SEMEL_NONE || behind_another(f))
        explain_blocked(f, why, next);
    else
        explain_due(f, why, next);
}

bool semel__facts_idempotency_key(const struct semel_ops_facts *f, char ret[SEMEL_STEP_KEY_TEXT])
{
    return f->policy->effect != SEMEL_EFFECT_ATOMIC && semel__id_check("id", f->row->id, 1, NULL) == SEMEL_OK &&
           semel__step_key(f->row->consumer, f->row->source, f->row->id, SEMEL_STR("effect"), ret);
}

static void explain_unknown(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    semel__buf_addf(why, "It is not running because attempt %d may have had its effect (", f->row->progress.attempts);
    put_error(why, &f->row->progress);
    semel__buf_addz(why, "). To run it again could do it twice, so nothing does that by itself.");
    char key[SEMEL_STEP_KEY_TEXT], ask[320];
    bool known = semel__facts_idempotency_key(f, key);
    snprintf(ask, sizeof ask, "Ask the other side whether it happened%s%s%s. If it did",
             known ? ": its Idempotency-Key is " : "", known ? key : "",
             known && !f->by_file ? ", if its program names no steps of its own (else " SEMEL_OTHER_STEPS ")" : "");
    suggest(f, next, f->row, ask, "resolve", REASON);
    suggest(f, next, f->row, "If it certainly did not", "retry",
            semel__row_too_old(f->policy, f->row, f->now_us) ? "--force " REASON : REASON);
}

/* How an ended one may be brought back: `lead` begins the sentence. */
static void advise_retry(const struct semel_ops_facts *f, struct semel_buf *next, const char *lead)
{
    char text[240];
    if (!f->row->kept) {
        semel__buf_addz(next, "Its payload was not kept: it cannot be retried, only its broker can bring it again.");
        return;
    }
    if (semel__row_too_old(f->policy, f->row, f->now_us)) {
        semel__buf_addz(next, "It is older than the records of what has run (");
        semel__put_age(next, f->row, f->policy, f->now_us);
        semel__buf_addz(next, "): make sure that its effect has not happened already.");
    }
    bool force = semel__row_too_old(f->policy, f->row, f->now_us) || semel__row_never_fit(f->row);
    snprintf(text, sizeof text, "%s retry it: it keeps its id and gets up to %d attempt%s more", lead,
             f->policy->retry_max, f->policy->retry_max == 1 ? "" : "s");
    suggest(f, next, f->row, text, "retry", force ? "--force " REASON : REASON);
}

static void advise_end(const struct semel_ops_facts *f, struct semel_buf *next)
{
    suggest(f, next, f->row, "To skip it for good", "discard", REASON);
    suggest(f, next, f->row, "If its effect was made by other means", "resolve", REASON);
}

static bool by_version(const struct semel_ops_facts *f)
{
    return f->policy->order == SEMEL_ORDER_VERSION && semel__str_given(f->row->order_key);
}

/* The key of the row, as a command would find it. */
static struct semel_key key_of(const struct semel_ops_facts *f)
{
    return (struct semel_key){.by_version = by_version(f),
                              .last_version = f->history->last_version,
                              .skipped = f->history->skipped,
                              .n_skipped = f->history->n_skipped,
                              .open = f->open != NULL,
                              .parked = (int64_t)f->behind,
                              .head_arrival = f->head != NULL ? f->head->arrival : SEMEL_NONE,
                              .head_version = f->head != NULL ? f->head->version : SEMEL_NONE};
}

/* Where the message itself is at fault no retry helps, and nothing speaks against a copy. */
static void advise_correction(const struct semel_ops_facts *f, struct semel_buf *next)
{
    const struct semel_key key = key_of(f);
    if (f->row->progress.error_class == SEMEL_CLASS_PERMANENT && f->row->kept &&
        semel__command_judge(f->policy, f->row, semel__str_given(f->row->order_key) ? &key : NULL, f->now_us,
                             SEMEL_COMMAND_CORRECT, false) == SEMEL_JUDGED_ALLOWED)
        suggest(f, next, f->row, "If its payload is wrong, to run a corrected copy instead", "retry",
                "--payload @FILE " REASON);
}

/* It died of a gap: a retry has it judged again, only force runs it past what is missing. */
static void advise_gap(const struct semel_ops_facts *f, struct semel_buf *next)
{
    char text[900];
    struct semel_buf missing;
    semel__buf_init(&missing, 600);
    bool known = name_missing(f, &missing) && !missing.failed;
    semel__buf_addz(next, "Have its producer send what is missing.");
    if (!semel__row_too_old(f->policy, f->row, f->now_us))
        suggest(f, next, f->row, "Then, or to wait for it once more", "retry", REASON);
    snprintf(text, sizeof text, "To run it without: %.*s will be stale then", known ? (int)missing.n : 13,
             known ? missing.p : "what is older");
    suggest(f, next, f->row, text, "retry", "--force " REASON);
    semel__buf_done(&missing);
}

static void explain_dead(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_progress *progress = &f->row->progress;
    semel__buf_addz(why, "It is dead: ");
    if (progress->error_class == SEMEL_CLASS_GAP)
        semel__buf_addz(why, "versions before it did not come in time.");
    else if (semel__row_never_fit(f->row))
        semel__buf_addz(why, "it has no usable id or field (");
    else if (used(progress) > 0)
        semel__buf_addf(why, "attempt %d of %d failed (", used(progress), budget(f));
    else
        semel__buf_addz(why, "it was given up (");
    if (progress->error_class != SEMEL_CLASS_GAP) {
        put_error(why, progress);
        semel__buf_addz(why, ").");
    }
    semel__buf_addz(why, " Nothing runs it again by itself.");
    put_behind(f, why);
    if (progress->error_class == SEMEL_CLASS_GAP && f->row->kept)
        advise_gap(f, next);
    else
        advise_retry(f, next,
                     semel__row_never_fit(f->row)
                         ? "Have it sent again with what it lacks; or, if the handler can do without,"
                         : "Fix the cause, then");
    advise_correction(f, next);
    advise_end(f, next);
}

static void explain_quarantined(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    const struct semel_row *row = f->row;
    if (row->progress.error_class == SEMEL_CLASS_NO_ID) {
        semel__buf_addz(why, "It is quarantined because it came without an id that can be used: whether it has run "
                             "before cannot be known. It was not run.");
    } else {
        semel__buf_addz(why, "It is quarantined because it came too late: ");
        semel__put_age(why, row, f->policy, f->now_us);
        if (f->history->watermark_us != SEMEL_NONE) {
            semel__buf_addz(why, "; nothing made before ");
            semel__put_when(why, f->history->watermark_us, f->now_us);
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

static void explain_rejected(const struct semel_ops_facts *f, struct semel_buf *why)
{
    const struct semel_progress *progress = &f->row->progress;
    const struct semel_act_line *act = last_act(f, "discard");
    if (progress->error_class == SEMEL_CLASS_DISCARDED) {
        semel__buf_addz(why, "It will not run: it was discarded");
        if (act != NULL) {
            put_act(why, act, f->now_us);
        } else {
            semel__buf_addz(why, ", because: ");
            semel__put_shown(why, progress->error_text);
        }
        semel__buf_addz(why, ".");
        return;
    }
    semel__buf_addz(why, "It will not run again: its handler rejected it at ");
    semel__put_when(why, progress->processed_us, f->now_us);
    semel__buf_addz(why, " (");
    put_error(why, progress);
    semel__buf_addz(why, "), and that is a final answer.");
}

static void explain_completed(const struct semel_ops_facts *f, struct semel_buf *why)
{
    const struct semel_progress *progress = &f->row->progress;
    const struct semel_act_line *act = last_act(f, "resolve");
    if (act != NULL) {
        semel__buf_addz(why, "It is completed: it was resolved");
        put_act(why, act, f->now_us);
    } else {
        semel__buf_addz(why, "It is completed, since ");
        semel__put_when(why, progress->processed_us, f->now_us);
        semel__buf_addf(why, ", with attempt %d", progress->attempts);
    }
    semel__buf_addz(why, semel__str_given(progress->outcome) ? "; its outcome is kept." : ".");
}

static void explain_stale(const struct semel_ops_facts *f, struct semel_buf *why)
{
    semel__buf_addf(why, "It will not run: it is version %lld of ", (long long)f->row->version);
    put_key(why, f->row);
    semel__buf_addz(why, ", and ");
    if (f->history->last_version != SEMEL_NONE)
        semel__buf_addf(why, "version %lld has been applied already.", (long long)f->history->last_version);
    else
        semel__buf_addz(why, "that one or a later one had been applied when it came.");
}

void semel__explain(const struct semel_ops_facts *f, struct semel_buf *why, struct semel_buf *next)
{
    switch (f->row->progress.state) {
    case SEMEL_ROW_PROCESSING:
        explain_processing(f, why, next);
        return;
    case SEMEL_ROW_FAILED:
        explain_failed(f, why, next);
        return;
    case SEMEL_ROW_WAITING:
        explain_waiting(f, why, next);
        return;
    case SEMEL_ROW_UNKNOWN:
        explain_unknown(f, why, next);
        return;
    case SEMEL_ROW_DEAD:
        explain_dead(f, why, next);
        return;
    case SEMEL_ROW_QUARANTINED:
        explain_quarantined(f, why, next);
        return;
    case SEMEL_ROW_REJECTED:
        explain_rejected(f, why);
        break;
    case SEMEL_ROW_COMPLETED:
        explain_completed(f, why);
        break;
    case SEMEL_ROW_STALE:
        explain_stale(f, why);
        break;
    case SEMEL_ROW_PREVENTED:
        semel__buf_addz(why, "It will not run: another message with the same business key came before it, and the "
                             "same intent has its effect once.");
        break;
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_COUNT:
        return;
    }
    semel__buf_addz(next, "There is nothing to do.");
}

void semel__explain_damaged(struct semel_str damage, struct semel_buf *why, struct semel_buf *next)
{
    semel__buf_addz(why, "It is not running because its row cannot be read as one of Semel's (");
    semel__put_shown(why, damage);
    semel__buf_addz(why, "). The row is left as it is, and what comes again of it stays with its broker.");
    semel__buf_addz(next, "Something other than Semel has written to the row, or the file is damaged: check the "
                          "database, and bring the row back from a copy. Do not delete it: then it could run twice.");
}

/* ---- what a command would do ----------------------------------------------------------------------- */

static void explain_retry(const struct semel_ops_facts *f, bool force, struct semel_buf *text)
{
    const struct semel_progress *progress = &f->row->progress;
    bool gap = progress->error_class == SEMEL_CLASS_GAP;
    semel__buf_addf(text, "is %s: it would ", semel__row_status_name(progress->state));
    if (gap && !force) {
        semel__buf_addz(text, "be judged again at once");
        size_t at = text->n;
        semel__buf_addz(text, ", and wait anew for ");
        if (!name_missing(f, text) && !text->failed)
            text->n = at;
        return;
    }
    semel__buf_addf(text, "be due at once, with up to %d attempt%s more", f->policy->retry_max,
                    f->policy->retry_max == 1 ? "" : "s");
    if (gap)
        semel__put_stale(f, text);
}

void semel__put_freed(const struct semel_ops_facts *f, struct semel_buf *text)
{
    size_t at = text->n;
    semel__buf_addz(text, "; due then, because they wait for its business key: ");
    if (f->history->n_business == 0 || (semel__put_waiters(f, text) == 0 && !text->failed))
        text->n = at;
}

static void explain_discard(const struct semel_ops_facts *f, struct semel_buf *text)
{
    semel__buf_addf(text, "is %s: it would be rejected, and never run", semel__row_status_name(f->row->progress.state));
    semel__put_freed(f, text);
    size_t at = text->n;
    if (!by_version(f))
        return;
    semel__buf_addz(text, "; still waited for: ");
    if (!name_missing(f, text) && !text->failed)
        text->n = at;
}

void semel__put_stale(const struct semel_ops_facts *f, struct semel_buf *text)
{
    size_t at = text->n;
    semel__buf_addz(text, "; stale once it has run: ");
    if (!by_version(f) || (!name_missing(f, text) && !text->failed))
        text->n = at;
}

void semel__put_refusal(struct semel_buf *buf, enum semel_judgement judged, enum semel_command_kind kind,
                        enum semel_row_status state, const struct semel_error *err)
{
    if (judged == SEMEL_JUDGED_WRONG_STATUS)
        semel__buf_addf(buf, "is %s: there is nothing to %s", semel__row_status_name(state), semel__command_name(kind));
    else if (judged == SEMEL_JUDGED_ALREADY_DUE)
        semel__buf_addz(buf, "is to be retried already: it has not run since");
    else
        semel__put_shown(buf, semel__str(err->text));
}

enum semel_judgement semel__explain_would(const struct semel_ops_facts *f, enum semel_command_kind kind, bool force,
                                          struct semel_buf *text)
{
    const struct semel_row *row = f->row;
    const struct semel_key key = key_of(f);
    struct semel_error err = {0};
    enum semel_judgement judged = semel__command_judge(f->policy, row, semel__str_given(row->order_key) ? &key : NULL,
                                                       f->now_us, kind, force);
    (void)semel__command_refuse(judged, kind, row->progress.state, f->policy, &key, &err);
    if (semel__judgement_refuses(judged))
        semel__buf_addz(text, "would be refused: ");
    if (judged != SEMEL_JUDGED_ALLOWED)
        semel__put_refusal(text, judged, kind, row->progress.state, &err);
    if (judged == SEMEL_JUDGED_TOO_OLD) {
        semel__buf_addz(text, "; ");
        semel__put_age(text, row, f->policy, f->now_us);
    }
    if (judged != SEMEL_JUDGED_ALLOWED)
        return judged;
    switch (kind) {
    case SEMEL_COMMAND_RETRY:
        explain_retry(f, force, text);
        break;
    case SEMEL_COMMAND_DISCARD:
        explain_discard(f, text);
        break;
    case SEMEL_COMMAND_RESOLVE:
        semel__buf_addf(text, "is %s: it would be completed without being run",
                        semel__row_status_name(row->progress.state));
        break;
    case SEMEL_COMMAND_CORRECT:
        semel__buf_addf(text, "is %s: a copy with the new payload would be due at once, and the message be rejected",
                        semel__row_status_name(row->progress.state));
        break;
    }
    return judged;
}
