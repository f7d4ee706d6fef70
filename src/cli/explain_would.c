/* SPDX-License-Identifier: MIT
 *
 * explain_would.c: what a command would do to a message now, for --dry-run. The rules are core's (core/command.c),
 * which decides again when the command is given; the unit test holds the two together.
 */
#include "base/error.h"
#include "cli/explain.h"

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

/* An earlier version is stored and has had no turn: a later one must not be ended before it. */
static bool refuse_overtaking(const struct cli_facts *f, enum semel_order_word word, struct semel_buf *text)
{
    enum semel_state state = f->row->live.state;
    if (f->policy->order != SEMEL_ORDER_VERSION || !semel__str_given(f->row->order_key) || f->head == NULL ||
        f->head->arrival == f->row->arrival || f->head->version >= f->row->version)
        return false;
    if (state == SEMEL_STATE_QUARANTINED || state == SEMEL_STATE_UNKNOWN)
        return false;
    if (word == SEMEL_WORD_RESOLVE && f->open == NULL)
        return false;
    semel__buf_addf(text, "would be refused: version %lld of the same key is stored and unfinished",
                    (long long)f->head->version);
    return true;
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
    if (word == SEMEL_WORD_REPLAY ? refuse_retry(f, force, text) : refuse_overtaking(f, word, text))
        return CLI_WOULD_REFUSE;
    switch (word) {
    case SEMEL_WORD_REPLAY:
        semel__buf_addf(text, "is %s: it would be due at once, with up to %d attempts more",
                        semel__state_name(live->state), f->policy->retry_max);
        break;
    case SEMEL_WORD_DISCARD:
        semel__buf_addf(text, "is %s: it would be rejected, and never run", semel__state_name(live->state));
        break;
    case SEMEL_WORD_RESOLVE:
        semel__buf_addf(text, "is %s: it would be completed without being run", semel__state_name(live->state));
        break;
    }
    return CLI_WOULD;
}
