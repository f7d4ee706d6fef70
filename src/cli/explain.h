/* SPDX-License-Identifier: MIT
 *
 * explain.h: why a message is not running, and what would make it run, in words for people.
 *
 * Facts and the consumer's policy in, text out: nothing is read or written here, and the same facts give the same
 * words. The rules themselves are core's (verdict.h, inbox.h); here they are only told.
 *
 * Invariants: what comes from a message is shown without control characters, and within a suggested command it is
 * quoted for a shell, so that pasting one runs nothing else. A buffer that could not grow is marked as failed.
 */
#ifndef SEMEL_CLI_EXPLAIN_H
#define SEMEL_CLI_EXPLAIN_H

#include "base/str.h"
#include "core/inbox.h"
#include "core/look.h"

#define CLI_EXPLAIN_MAX 16384
#define CLI_KEY_MAX 1000   /* rows of an order key that are looked at */
#define CLI_WAITERS_MAX 10 /* named of those who wait for a business key; the others are counted */

struct cli_facts {
    const struct semel_row *row;
    const struct semel_policy *policy;
    const struct semel_history *history;
    int64_t now_us;
    /* Of the unfinished of its order key; all zero where it has none. */
    const struct semel_row *head; /* the first of them; may be the row itself */
    size_t before, behind;        /* how many come before it and behind it in the key's order */
    bool more;                    /* there are more than were counted */
    const struct semel_row *open; /* another one that is processing or unknown */
    const char *store;            /* the value of --store, for suggested commands; NULL: it was not given */
};

/* Counts `rows`, the unfinished of the key in the key's order, into head, before, behind and open. */
void cli_facts_key(struct cli_facts *facts, const struct semel_row *rows, size_t n, bool more);

bool cli_facts_too_old(const struct cli_facts *facts); /* older than the retention: a retry must be forced */
bool cli_facts_unfit(const struct cli_facts *facts);   /* it never could run: a retry must be forced */

/* Why it is not running (or what came of it); then what would make it run, or that there is nothing to do. */
void cli_explain(const struct cli_facts *facts, struct semel_buf *why, struct semel_buf *next);
/* The same for a row that cannot be read; `damage` says why. */
void cli_explain_damaged(struct semel_str damage, struct semel_buf *why, struct semel_buf *next);

/* What a command would do to it now. */
enum cli_would { CLI_WOULD, CLI_WOULD_NOTHING, CLI_WOULD_REFUSE };
enum cli_would cli_explain_would(const struct cli_facts *facts, enum semel_order_word word, bool force,
                                 struct semel_buf *text);

/* Pieces, for those who suggest commands themselves. */
void cli_put_shown(struct semel_buf *buf, struct semel_str s); /* without control characters */
void cli_put_word(struct semel_buf *buf, struct semel_str s);  /* one word of a shell command, every byte of it */
void cli_put_when(struct semel_buf *buf, int64_t us, int64_t now_us);
void cli_put_count(struct semel_buf *buf, size_t n, const char *one, const char *many); /* "1 message" */
/* "semel inbox WORD ID --consumer C [--source S] MORE [--store URL]". */
void cli_put_command(struct semel_buf *buf, const char *store, const char *word, const struct semel_row *row,
                     const char *more);
/* "version 5" or "versions 5 to 8": those that are missing before it. false: none is, or nobody knows. */
bool cli_put_missing(const struct cli_facts *facts, struct semel_buf *buf);
/* "pay-2, pay-3 (source eu) and 4 more": those who wait for a business key that it has, or that it wants too. Returns
 * how many there are. */
size_t cli_put_waiters(const struct cli_facts *facts, struct semel_buf *buf);
/* Of the history's rivals: where those who wait begin; before it are those that have a key. */
size_t cli_facts_waiters(const struct cli_facts *facts);
/* "; due then, because they wait for its business key: pay-2", or nothing: what a discard sets free. */
void cli_put_freed(const struct cli_facts *facts, struct semel_buf *buf);
/* "; stale once it has run: versions 5 to 8", or nothing. */
void cli_put_stale(const struct cli_facts *facts, struct semel_buf *buf);
/* "it was made at ..., and the consumer keeps its records for ...": the figures behind "too old". */
void cli_put_age(struct semel_buf *buf, const struct semel_row *row, const struct semel_policy *policy, int64_t now_us);

#endif
