/* SPDX-License-Identifier: MIT
 *
 * verdict.h: the rules of the inbox. Facts in, a verdict or a new row out; nothing is read or written here.
 *
 * The verdict for a delivery (I3, I5, I9-I13, I18), first match wins:
 *
 *   the row       is                               act     why                  the row becomes
 *   damaged                                        later   damaged              as it is
 *   any           another fingerprint, same kind   ack     conflict             as it is; kept as a conflict
 *   completed, rejected                            ack     duplicate            as it is
 *   stale / prevented / dead                       ack     stale / business_duplicate / dead
 *   quarantined                                    ack     no_id or too_old
 *   processing                                     later   busy                 as it is; only recovery ends a lease
 *   unknown                                        *       unknown              as it is; a reconcile decides
 *   failed        not due yet                      *       backoff              as it is
 *   none          the message has no id            ack     no_id                quarantined
 *   none          older than the watermark         ack     too_old              quarantined
 *   none          a field it needs cannot be had   ack     dead                 dead
 *   none or open  its intent is done (1)           ack     business_duplicate   prevented
 *   none or open  version below the first, no last ack     dead                 dead
 *   none or open  version below the last           ack     stale                stale
 *   none or open  version equal to the last        ack     duplicate            stale
 *   none or open  an unfinished one comes first    *       blocked              waiting, woken when that one ends
 *   none/waiting  versions are missing before it   *       gap                  waiting, due when the gap times out
 *   none or open  its intent is under way (2)      *       business_duplicate   waiting as a waiter, looks again later
 *   none or open  otherwise                        run     new, or retry        takes all its business keys
 *
 *   open: waiting, or failed and due.
 *   A row without a version on a route by version comes before all versions, by arrival; it is never stale.
 *   (1) A message that is final or has no row any more holds one of its business keys; that may be the message itself,
 *       when its own row was purged (P73). If the order key cannot remember one more version that ended without effect,
 *       the message waits for the gap instead, and never runs past it.
 *   (2) An unfinished message holds one of them, and may still end without effect (P78). The message waits, without a
 *       business key and without a place in its order, so that no message waits for a waiter; a row that is a waiter
 *       stays one whatever its order is. If its payload is not kept no row is written: its broker delivers it again.
 *   * ack when the payload is kept in the row, so that the store can run it, or comes with this delivery and is stored
 *     with the row from now on (semel__payload_adopts; of a dead or quarantined row as well); later when it is not.
 *   Past the bound of parked messages, blocked and gap are `later`, and no row is written: the source pauses. A payload
 *   above the route's payload_max is kept whole, whatever keep_payload is; when SEMEL_LARGE_MAX such messages are kept
 *   already it is `later`, and so is every message that follows it by arrival in its batch.
 *
 * The semel__progress_* functions compute what a row becomes afterwards, one function per event.
 *
 * Invariants: only legal moves lead to a new `progress`; only a release lowers attempts; a final row has no due time
 * and no lease; the same facts give the same verdict.
 */
#ifndef SEMEL_CORE_VERDICT_H
#define SEMEL_CORE_VERDICT_H

#include "base/random.h"
#include "core/policy.h"
#include "core/store.h"

/* Has another message with the same business key had its effect, or may it still have it? */
enum semel_intent { SEMEL_INTENT_FREE, SEMEL_INTENT_BUSY, SEMEL_INTENT_DONE };

#define SEMEL_LARGE_MAX 100 /* dead or quarantined rows per consumer whose payload exceeds payload_max */

struct semel_facts {
    int64_t now_us;
    const struct semel_row *row; /* NULL: there is none */
    bool damaged;
    int64_t watermark_us;
    enum semel_intent intent;
    bool intent_full;            /* too many messages wait for one of its business keys: no further one may wait */
    const struct semel_key *key; /* NULL: the message has no order key, or the route no order */
    int64_t route_parked;
    int64_t large; /* stored messages above payload_max; counted only when this is one */
    bool payload;  /* the delivery has a payload and the route keeps payloads; set by semel__verdict_deliver */
};

struct semel__verdict {
    enum semel_act act;
    enum semel_why why;
    int attempt;  /* RUN: the number of the attempt that starts */
    bool changes; /* not RUN: the row becomes `becomes` (ABSENT: no row stays) */
    enum semel_row_status becomes;
    int64_t due_us;
    enum semel_class cls;
    bool full; /* it would have to wait, and there is no room: the source pauses */
};

/* For a delivery. */
void semel__verdict_deliver(const struct semel_policy *policy, const struct semel__msg *msg,
                            const struct semel_facts *facts, struct semel__verdict *ret);
/* For a stored row that the scheduler took: RUN, or what it becomes instead. */
void semel__verdict_take(const struct semel_policy *policy, const struct semel_facts *facts,
                         struct semel__verdict *ret);

/* The time of the message: its own, or that of its id, or of its envelope; SEMEL_NONE: unknown. */
int64_t semel__msg_time(const struct semel_policy *policy, const struct semel__msg *msg, int64_t now_us);

/* Its payload exceeds the limit of the route: it is kept and does not run. */
bool semel__msg_large(const struct semel_policy *policy, const struct semel__msg *msg);

/* Why the message does not run, as text for the row; not given when it runs. */
struct semel_str semel__verdict_text(const struct semel__verdict *verdict);

/* ---- what the row becomes ---- */

/* A new row as the verdict decides (quarantined, prevented, stale, waiting, dead), without an attempt. `text` may be
 * not given. */
void semel__progress_verdict(const struct semel__verdict *verdict, const struct semel_progress *before,
                             struct semel_str text, int64_t now_us, struct semel_progress *ret);
/* A start: processing under a lease and a token, attempts + 1. */
void semel__progress_claim(const struct semel_policy *policy, const struct semel_progress *before,
                           struct semel_str owner, bool alone, int64_t token, int64_t now_us,
                           struct semel_progress *ret);
/* A start and its success in one transaction: completed, attempts + 1. */
void semel__progress_complete(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret);

struct semel_ending {
    enum semel_result result;
    enum semel_class cls; /* NONE: the result's own class */
    struct semel_str text, outcome;
};
/* The end of an attempt that before->attempts counts. Here and in a recovery, an unknown end goes by the effect under
 * which the message was claimed, whatever the consumer's effect is now. */
void semel__progress_finish(const struct semel_policy *policy, const struct semel_progress *before,
                            const struct semel_ending *ending, int64_t now_us, struct semel_random *rng,
                            struct semel_progress *ret);
/* A lease expired (I7). */
void semel__progress_recover(const struct semel_policy *policy, const struct semel_progress *before, int64_t now_us,
                             struct semel_random *rng, struct semel_progress *ret);
/* Released before it ran: the attempt does not count. */
void semel__progress_release(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret);
/* Dead, quarantined or unknown (not done) to failed, due now, with a new budget of attempts (P41). */
void semel__progress_retry(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret);
/* Dead of a gap to waiting, due now: its place is judged again. */
void semel__progress_rejudge(const struct semel_progress *before, int64_t now_us, struct semel_progress *ret);
/* An operator or a reconcile reports that it is done: completed. */
void semel__progress_resolve(const struct semel_progress *before, struct semel_str outcome, int64_t now_us,
                             struct semel_progress *ret);
/* Skipped: rejected, with the class `discarded`. */
void semel__progress_discard(const struct semel_progress *before, struct semel_str reason, int64_t now_us,
                             struct semel_progress *ret);

/* Does a new payload stay after a move to `state`? A payload that is stored already is deleted only when the row
 * becomes final, whatever the policy is by then. */
bool semel__payload_stays(const struct semel_policy *policy, enum semel_row_status state);
/* Does the delivery bring the payload that its row lacks? Not for a row that runs or is final. */
bool semel__payload_adopts(const struct semel_policy *policy, const struct semel__msg *msg,
                           const struct semel_row *row);

#endif
