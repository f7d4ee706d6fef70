/* SPDX-License-Identifier: MIT
 *
 * explain.h: why a message is not running, and what would make it run, in words for people.
 *
 * Facts and the consumer's policy in, text out: nothing is read or written here, and the same facts give the same
 * words. The rules themselves are core's (verdict.h, inbox.h); here they are only put into words.
 *
 * Invariants: what comes from a message is shown without control characters, and within a suggested command it is
 * quoted for a shell, so that pasting one runs nothing else. A buffer that could not grow is marked as failed.
 */
#ifndef SEMEL_OPS_EXPLAIN_H
#define SEMEL_OPS_EXPLAIN_H

#include "base/str.h"
#include "core/inbox.h"
#include "store/query.h"

#define SEMEL_EXPLAIN_MAX 16384
#define SEMEL_EXPLAIN_KEY_MAX 1000 /* rows of an order key that are looked at */
#define SEMEL_WAITERS_MAX 10       /* named of those who wait for a business key; the others are counted */

/* Where no file says which program runs the effect: how to compute the key of another step. */
#define SEMEL_OTHER_STEPS "semel.step_key(consumer, message_id, step, source) has theirs"

struct semel_ops_facts {
    const struct semel_row *row;
    const struct semel_policy *policy;
    const struct semel_history *history;
    int64_t now_us;
    /* Of the unfinished of its order key; all zero where it has none. */
    const struct semel_row *head; /* the first of them; may be the row itself */
    size_t before, behind;        /* how many come before it and behind it in the key's order */
    bool more;                    /* there are more than were counted */
    const struct semel_row *open; /* another one that is processing or unknown */
    bool by_file;                 /* a route's file sets its consumer: the daemon chose the step of its key */
    const char *store;            /* the value of --store, for suggested commands; NULL: it was not given */
};

/* Counts `rows`, the unfinished of the key in the key's order, into head, before, behind and open. */
void semel__facts_key(struct semel_ops_facts *facts, const struct semel_row *rows, size_t n, bool more);

/* The key of the step `effect`: the Idempotency-Key or SEMEL_KEY of a route, the key of a worker that pulls, and what
 * clients send unless they name a step. false: its effect is in the database, and there is none. */
bool semel__facts_idempotency_key(const struct semel_ops_facts *facts, char ret[SEMEL_STEP_KEY_TEXT]);

/* Why it is not running (or what came of it); then what would make it run, or that there is nothing to do. */
void semel__explain(const struct semel_ops_facts *facts, struct semel_buf *why, struct semel_buf *next);
/* The same for a row that cannot be read; `damage` says why. */
void semel__explain_damaged(struct semel_str damage, struct semel_buf *why, struct semel_buf *next);

/* What a command would do to it now, or why it would not be obeyed. Nobody looks whether another message has its
 * business key: the command does. */
enum semel_judgement semel__explain_would(const struct semel_ops_facts *facts, enum semel_command_kind kind, bool force,
                                          struct semel_buf *text);
/* Why a command was not obeyed: `err` is what core says of it. The sentence begins behind the message's id where
 * there is nothing to do, and stands alone where the command is refused. */
void semel__put_refusal(struct semel_buf *buf, enum semel_judgement judged, enum semel_command_kind kind,
                        enum semel_row_status state, const struct semel_error *err);

/* Pieces, for those who suggest commands themselves. */
void semel__put_shown(struct semel_buf *buf, struct semel_str s); /* without control characters */
void semel__put_word(struct semel_buf *buf, struct semel_str s);  /* one word of a shell command, every byte of it */
void semel__put_span(struct semel_buf *buf, int64_t us);          /* 40 s, 3 min, 2 h, 5 d */
void semel__put_when(struct semel_buf *buf, int64_t us, int64_t now_us);
/* "pay-2, pay-3 (source eu) and 4 more": those who wait for a business key that it has, or that it wants too. Returns
 * how many there are. */
size_t semel__put_waiters(const struct semel_ops_facts *facts, struct semel_buf *buf);
/* Of the history's rivals: where those who wait begin; before it are those that have a key. */
size_t semel__facts_waiters(const struct semel_ops_facts *facts);
/* "; due then, because they wait for its business key: pay-2", or nothing: what a discard sets free. */
void semel__put_freed(const struct semel_ops_facts *facts, struct semel_buf *buf);
/* "; stale once it has run: versions 5 to 8", or nothing. */
void semel__put_stale(const struct semel_ops_facts *facts, struct semel_buf *buf);
/* "it was made at ..., and the consumer keeps its records for ...": the figures behind "too old". */
void semel__put_age(struct semel_buf *buf, const struct semel_row *row, const struct semel_policy *policy,
                    int64_t now_us);

#endif
