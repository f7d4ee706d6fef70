/* SPDX-License-Identifier: MIT
 *
 * explain_would.c: what a command would do to a message now, for --dry-run. The rules are core's (core/command.c),
 * which decides again when the command is given; the unit test holds the two together.
 */
#include "base/error.h"
#include "cli/explain.h"
#include "core/version.h"

static bool allowed(const struct semel_live *live, enum semel_order_word word, bool force)
{
    switch (live->state) {
    case SEMEL_STATE_DEAD:
    case SEMEL_STATE_QUARANTINED:
    case SEMEL_STATE_UNKNOWN:
        return true;
    case SEMEL_STATE_FAILED:
        return word == SEMEL_WORD_DISCARD || (word == SEMEL_WORD_REPLAY && live->attempts > live->attempts_before);
    case SEMEL_STATE_WAITING:
        return word == SEMEL_WORD_DISCARD ||
               (word == SEMEL_WORD_REPLAY && force && live->error_class == SEMEL_CLASS_GAP);
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_PROCESSING:
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_PREVENTED:
    case SEMEL_STATE_COUNT:
        return false;
    }
    return false;
}

static bool refuse_retry(const struct cli_facts *f, bool force, struct semel_buf *text)
{
    if (!f->row->kept) {
        semel__buf_addz(text, "would be refused: its payload was not kept");
    } else if (!force && cli_facts_unfit(f)) {
        semel__buf_addz(text, "would be refused: it never was fit to run; --force if the handler can do without");
    } else if (!force && cli_facts_too_old(f)) {
        semel__buf_addz(text, "would be refused: ");
        cli_put_age(text, f->row, f->policy, f->now_us);
        semel__buf_addz(text, "; --force if you know that its effect has not happened");
    } else {
        return false;
    }
    return true;
}

static bool by_version(const struct cli_facts *f)
{
    return f->policy->order == SEMEL_ORDER_VERSION && semel__str_given(f->row->order_key);
}

/* Another one is at its effect, and an earlier one is unfinished: no later one may be called done meanwhile. */
static bool refuse_resolve(const struct cli_facts *f, struct semel_buf *text)
{
    if (!by_version(f) || f->row->version == SEMEL_NONE || f->head == NULL || f->open == NULL ||
        f->head->arrival == f->row->arrival || f->head->version >= f->row->version ||
        f->row->live.state == SEMEL_STATE_UNKNOWN)
        return false;
    if (f->head->version == SEMEL_NONE)
        semel__buf_addz(text, "would be refused: a message without a version of the same key is stored and unfinished");
    else
        semel__buf_addf(text, "would be refused: version %lld of the same key is stored and unfinished",
                        (long long)f->head->version);
    return true;
}

static bool refuse_discard(const struct cli_facts *f, struct semel_buf *text)
{
    const struct semel_key key = {.last_version = f->history->last_version,
                                  .skipped = f->history->skipped,
                                  .n_skipped = f->history->n_skipped};
    if (!by_version(f) || !semel__version_full(f->policy, &key, f->row->version))
        return false;
    semel__buf_addf(text, "would be refused: %d versions of the same key were discarded already ahead of the gap",
                    SEMEL_SKIPPED_MAX);
    return true;
}

static bool refuse(const struct cli_facts *f, enum semel_order_word word, bool force, struct semel_buf *text)
{
    switch (word) {
    case SEMEL_WORD_REPLAY:
        return refuse_retry(f, force, text);
    case SEMEL_WORD_DISCARD:
        return refuse_discard(f, text);
    case SEMEL_WORD_RESOLVE:
        return refuse_resolve(f, text);
    }
    return false;
}

static void tell_retry(const struct cli_facts *f, bool force, struct semel_buf *text)
{
    const struct semel_live *live = &f->row->live;
    bool gap = live->error_class == SEMEL_CLASS_GAP;
    semel__buf_addf(text, "is %s: it would ", semel__state_name(live->state));
    if (gap && !force) {
        semel__buf_addz(text, "be judged again at once");
        size_t at = text->n;
        semel__buf_addz(text, ", and wait anew for ");
        if (!cli_put_missing(f, text) && !text->failed)
            text->n = at;
        return;
    }
    semel__buf_addf(text, "be due at once, with up to %d attempts more", f->policy->retry_max);
    if (gap)
        cli_put_stale(f, text);
}

void cli_put_freed(const struct cli_facts *f, struct semel_buf *text)
{
    size_t at = text->n;
    semel__buf_addz(text, "; due then, because they wait for its business key: ");
    if (f->history->n_business == 0 || (cli_put_waiters(f, text) == 0 && !text->failed))
        text->n = at;
}

static void tell_discard(const struct cli_facts *f, struct semel_buf *text)
{
    semel__buf_addf(text, "is %s: it would be rejected, and never run", semel__state_name(f->row->live.state));
    cli_put_freed(f, text);
    size_t at = text->n;
    if (!by_version(f))
        return;
    semel__buf_addz(text, "; still waited for: ");
    if (!cli_put_missing(f, text) && !text->failed)
        text->n = at;
}

void cli_put_stale(const struct cli_facts *f, struct semel_buf *text)
{
    size_t at = text->n;
    semel__buf_addz(text, "; stale once it has run: ");
    if (!by_version(f) || (!cli_put_missing(f, text) && !text->failed))
        text->n = at;
}

enum cli_would cli_explain_would(const struct cli_facts *f, enum semel_order_word word, bool force,
                                 struct semel_buf *text)
{
    static const char *const names[] = {"retry", "discard", "resolve"};
    const struct semel_live *live = &f->row->live;
    if (!allowed(live, word, force)) {
        if (word == SEMEL_WORD_REPLAY && live->state == SEMEL_STATE_FAILED)
            semel__buf_addz(text, "is to be retried already: it has not run since");
        else
            semel__buf_addf(text, "is %s: there is nothing to %s", semel__state_name(live->state), names[word]);
        return CLI_WOULD_NOTHING;
    }
    if (refuse(f, word, force, text))
        return CLI_WOULD_REFUSE;
    switch (word) {
    case SEMEL_WORD_REPLAY:
        tell_retry(f, force, text);
        break;
    case SEMEL_WORD_DISCARD:
        tell_discard(f, text);
        break;
    case SEMEL_WORD_RESOLVE:
        semel__buf_addf(text, "is %s: it would be completed without being run", semel__state_name(live->state));
        break;
    }
    return CLI_WOULD;
}
