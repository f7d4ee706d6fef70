/* SPDX-License-Identifier: MIT
 *
 * inbox.h: the consumer's side. Deliveries in, effects once, acts out.
 *
 * Two paths lead from a delivery to its effect.
 *
 * The batch path (semel__inbox_process on an ATOMIC route): one transaction per batch, one inbox write per message.
 *   1. copies of one id are merged and get the same answer;
 *   2. the batch is sorted by order key, else by lock key, in arrival order within a key;
 *   3. one transaction: lock keys, take business keys, insert the rows as `completed`, read what the insert
 *      refused, decide, run the handlers, settle what is not `completed`, commit;
 *   4. when something fails the transaction is rolled back and the batch is cut: around the message whose handler
 *      failed, or in half if that is unknown; each piece is a transaction of its own. In a transaction of a single
 *      message the handler runs behind a savepoint, deferred constraints are forced, and a failure is recorded under
 *      the same locks. So a handler may run more than once per delivery, with the earlier runs rolled back;
 *   5. for a while after a failure the handlers of a batch run in groups of a few messages behind savepoints. A message
 *      that fails by itself is then recorded as failed within the transaction of the batch; messages that depend on it
 *      run in the next transaction.
 *
 * The leased path (effects outside, redelivered messages, everything the scheduler runs): a claim is committed first,
 * with a lease and a fencing token; the handler runs with no transaction open; the end is committed under the token.
 * On an ATOMIC route the handler runs inside the transaction of the end. A message that is delivered again after its
 * process or connection was lost may have killed it: such messages are claimed before they run, several together, but
 * only one per order key. If this process dies too, no attempt is counted, and each is then claimed alone, so that
 * its start is counted.
 *
 * Invariants
 *  - An act of ACK is given only after a commit that was answered OK.
 *  - After an unknown commit the connection is opened anew and the rows are read again before anything is done (P15).
 *  - Failures of the environment (ENVIRONMENT, BROKEN, contention) count for no message.
 *  - A completion under a stale token changes nothing; the attempts keep it as evidence.
 *  - Alerts are raised and counters move after the commit, never before.
 */
#ifndef SEMEL_CORE_INBOX_H
#define SEMEL_CORE_INBOX_H

#include "core/retry.h"
#include "core/store.h"
#include "core/token.h"
#include "core/verdict.h"

struct semel_position_updates; /* positions.h */

/* ---- handlers ---- */

struct semel__reply {
    struct semel_arena *arena; /* for `reason` and `outcome` */
    enum semel_result result;  /* starts as DONE */
    struct semel_str reason, outcome;
};
/* Copies the handler's answer. false: no memory. */
bool semel__reply_set(struct semel__reply *reply, enum semel_result result, struct semel_str reason,
                      struct semel_str outcome);

/* The messages that a set-based handler has handled: it must name each exactly once (P57). */
struct semel_set;
void semel__set_add(struct semel_set *set, struct semel_str source, struct semel_str id);

/* OK: the handler ran and `reply` has its result. Otherwise err->cls is the cause: PERMANENT and TRANSIENT the
 * message, ENVIRONMENT and BROKEN not the message; CLOSED: the connection is gone. An ATOMIC handler writes through
 * the store's native handle, inside the open transaction, and does nothing outside it. */
typedef semel_status (*semel__each_handler)(void *ctx, struct semel_store *store, const struct semel__msg *msg,
                                            int attempt, struct semel__reply *reply, struct semel_error *err);
/* One statement for many messages. On an ordered route a key occurs at most once per call. */
typedef semel_status (*semel__set_handler)(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs,
                                           size_t n, struct semel_set *set, struct semel_error *err);
struct semel__handler {
    void *ctx;
    semel__each_handler each;
    semel__set_handler set; /* NULL: `each` for every message */
};

/* ---- counters and alerts ---- */

enum semel_alert {
    SEMEL_ALERT_DEAD,
    SEMEL_ALERT_CONFLICT,
    SEMEL_ALERT_QUARANTINED,
    SEMEL_ALERT_UNKNOWN,
    SEMEL_ALERT_GAP,
    SEMEL_ALERT_DAMAGED,
    SEMEL_ALERT_PARKED_FULL,
    SEMEL_ALERT_COUNT
};

struct semel_counts {
    uint64_t why[SEMEL_WHY_DAMAGED + 1];
    uint64_t transactions, cuts, contention;
    uint64_t blamed; /* in a transaction of several messages */
    uint64_t done, failed, rejected, recovered, fenced, purged;
    uint64_t alerts[SEMEL_ALERT_COUNT];
    uint64_t classes[SEMEL_CLASS_DISCARDED + 1]; /* of failed and rejected: their sum, by class */
};

struct semel_observer {
    void *ctx;
    void (*alert)(void *ctx, enum semel_alert alert, const struct semel__msg *msg, struct semel_str text);
};

/* ---- the engine ---- */

/* The order keys from which purge and sweep continue; "": from the first. */
struct semel_places {
    char keys[SEMEL_ID_MAX + 1], sweep[SEMEL_ID_MAX + 1];
};

struct semel_inbox {
    struct semel_store *store;
    const struct semel_policy *policy;
    const struct semel__handler *handler;
    struct semel_random *rng;
    struct semel_tokens tokens;
    struct semel_str owner; /* of leases: unique to this worker's incarnation */
    struct semel_observer observer;
    /* Failures in a row, and the number that stops the call with ENVIRONMENT: the remaining messages are LATER, except
     * those already claimed, which are stored. So a broken handler does not drain a batch into dead letters (P63). 0:
     * no limit. The pump sets both from its breaker. */
    int failures, failures_max;
    /* So many messages have to succeed before failures, and those that deferred constraints cause, count as over: until
     * then the handlers of a batch run behind savepoints (inbox.c). */
    size_t wary, wary_deferred;
    size_t run; /* messages between two savepoints; 0: as inbox.c sets it */
    struct semel_counts counts;
    char why[SEMEL_BREAKER_WHY]; /* the error of the last message that failed; "": none has */
    struct semel_places places;
    struct semel_position_updates
        *position_updates;      /* NULL, or the positions that move with this batch; only pump.c sets it */
    struct semel_arena arena;   /* lives as long as one call */
    struct semel_arena scratch; /* lives as long as one transaction */
};

#define SEMEL_BATCH_MAX 10000

/* All pointers are borrowed for the life of the inbox. */
void semel__inbox_init(struct semel_inbox *inbox, struct semel_store *store, const struct semel_policy *policy,
                       const struct semel__handler *handler, struct semel_random *rng, struct semel_str owner);
void semel__inbox_done(struct semel_inbox *inbox);

/* The result of one delivery. Strings live until the next call on the inbox. */
struct semel_settled {
    enum semel_act act; /* ACK or LATER, never RUN */
    enum semel_why why;
    enum semel_row_status state; /* of the row now; ABSENT: none, or not known */
    int attempt;
    int64_t due_us;
    enum semel_class cls;
    struct semel_str outcome;
    bool kept; /* the row existed before, with its payload: it can run without its broker */
};

/* The act that a row in this state allows once it is committed; `kept`: its payload is. */
enum semel_act semel__act_for(enum semel_row_status state, bool kept);

/* Takes n deliveries (at most SEMEL_BATCH_MAX) of the consumer, in order of arrival, to their end. OK: every one has
 * been decided. RETRY, CLOSED, INVALID: the environment failed; undecided messages are LATER, earlier decisions
 * stand. FENCED: the same, and another worker has taken one of their partitions (positions.h). */
semel_status semel__inbox_process(struct semel_inbox *inbox, const struct semel__msg *msgs, size_t n,
                                  struct semel_settled *ret_settled, struct semel_error *err);

/* Stores a delivery for a later take: a `waiting` row that is due now, with no attempt counted. ACK, new: it is stored;
 * otherwise the verdict that a delivery gets. An existing row does not change. One whose not_before_us is to come is
 * due then, and judged then: it keeps its place in its key until that time, whatever else it would have to wait for. */
semel_status semel__inbox_put(struct semel_inbox *inbox, const struct semel__msg *msg,
                              struct semel_settled *ret_settled, struct semel_error *err);
/* The same for n deliveries in order of arrival (at most SEMEL_BATCH_MAX), one transaction per batch. Statuses as of
 * semel__inbox_process; INVALID before anything is done: the consumer keeps no payloads. */
semel_status semel__inbox_put_all(struct semel_inbox *inbox, const struct semel__msg *msgs, size_t n,
                                  struct semel_settled *ret_settled, struct semel_error *err);
/* A delivery that its caller ran and rolled back: records the attempt and its end in one transaction. When the message
 * may not run, only the verdict is recorded. `ending` must not be DONE. */
semel_status semel__inbox_record(struct semel_inbox *inbox, const struct semel__msg *msg,
                                 const struct semel_ending *ending, struct semel_settled *ret_settled,
                                 struct semel_error *err);

/* ---- the leased path ---- */

struct semel_lease {
    struct semel__msg msg; /* claim: strings belong to the caller's messages or the arena; take: to the arena */
    struct semel_progress progress;
    int64_t arrival;
    size_t index; /* claim: which of the messages; take: 0 */
    bool lost;    /* renew, finish: the lease belongs to somebody else now */
    /* finish: it is lost and reported `done` for an effect in the store's own transaction, which must then not be
     * committed (P80) */
    bool refused;
};

/* Claims the messages that may run, in one transaction, and settles the others. ret_leases has room for n; *ret_n are
 * filled. Not `alone`: several together; a row that must run alone is left for later. */
semel_status semel__lease_claim(struct semel_inbox *inbox, const struct semel__msg *msgs, size_t n, bool alone,
                                struct semel_arena *arena, struct semel_lease *ret_leases, size_t *ret_n,
                                struct semel_settled *ret_settled, struct semel_error *err);
/* Claims stored rows that are due, at most max: either one that must run alone, or several that need not. */
semel_status semel__lease_take(struct semel_inbox *inbox, size_t max, struct semel_arena *arena,
                               struct semel_lease *ret_leases, size_t *ret_n, struct semel_error *err);
/* Extends each lease by the policy's lease from now; sets `lost` on leases that are no longer ours. */
semel_status semel__lease_renew(struct semel_inbox *inbox, struct semel_lease *leases, size_t n,
                                struct semel_error *err);
/* Commits all ends in one transaction. A stale end changes nothing, is kept as evidence and gets `lost`; for the others
 * `progress` has the new state, due_us and error_class of the row. */
semel_status semel__lease_finish(struct semel_inbox *inbox, struct semel_lease *leases,
                                 const struct semel_ending *endings, size_t n, struct semel_error *err);
/* Releases messages that did not run: the attempt does not count. */
semel_status semel__lease_release(struct semel_inbox *inbox, struct semel_lease *leases, size_t n,
                                  struct semel_error *err);
/* Runs the handler on leased messages and commits their ends: inside the transaction on an ATOMIC route, else
 * outside. */
semel_status semel__lease_run(struct semel_inbox *inbox, struct semel_lease *leases, size_t n, struct semel_error *err);

/* ---- the scheduler's parts; each is safe in any number of processes ---- */

/* Ends expired leases, at most max. */
semel_status semel__inbox_recover(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);
/* Decides gaps that timed out, and messages whose business key is used up, at most max, if no message has to run for
 * it: dead-letters, alerts, prevents. Messages that may run are left for a take. */
semel_status semel__inbox_gaps(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);
/* Takes and runs stored work that is due, at most max. */
semel_status semel__inbox_work(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);
/* Wakes rows that wait without a due time although they are first in their key or have none: a hundred keys per call,
 * from where the last call stopped. */
semel_status semel__inbox_sweep(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);
/* Raises the watermarks, then deletes old final rows and expired business keys, at most max of each. */
semel_status semel__inbox_purge(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);

/* ---- operators and reconciles ---- */

/* CORRECT is a retry with another payload (semel__inbox_correct). */
enum semel_command_kind { SEMEL_COMMAND_RETRY, SEMEL_COMMAND_DISCARD, SEMEL_COMMAND_RESOLVE, SEMEL_COMMAND_CORRECT };
const char *semel__command_name(enum semel_command_kind kind); /* retry, discard, resolve, correct */

/* Whether a command is allowed for a row, and if not, why. The names are for programs. Judgements before NOT_KEPT mean
 * that there is nothing to do and nothing is wrong; the others refuse. */
#define SEMEL_JUDGEMENT_MAP(X)                  \
    X(ALLOWED, "allowed")                       \
    X(NO_SUCH_MESSAGE, "no_such_message")       \
    X(CHANGED, "changed")                       \
    X(WRONG_STATUS, "wrong_status")             \
    X(ALREADY_DUE, "already_due")               \
    X(NOT_KEPT, "payload_not_kept")             \
    X(NEVER_FIT, "never_fit")                   \
    X(TOO_OLD, "too_old")                       \
    X(BUSINESS_KEY_TAKEN, "business_key_taken") \
    X(EARLIER_VERSION, "earlier_version")       \
    X(TOO_MANY_DISCARDED, "too_many_discarded") \
    X(WAITERS_BEHIND, "waiters_behind")         \
    X(MAY_BE_DONE, "may_be_done")               \
    X(COPY_REFUSED, "copy_refused")

enum semel_judgement {
#define X(name, text) SEMEL_JUDGED_##name,
    SEMEL_JUDGEMENT_MAP(X)
#undef X
};
const char *semel__judgement_name(enum semel_judgement judged);
bool semel__judgement_refuses(enum semel_judgement judged);

/* The rules, pure: what the row's status, payload, age and order key allow. `key` is NULL where the row has none. Not
 * decided here: whether the row exists and is unchanged, and whether another message has its business key. */
enum semel_judgement semel__command_judge(const struct semel_policy *policy, const struct semel_row *row,
                                          const struct semel_key *key, int64_t now_us, enum semel_command_kind kind,
                                          bool force);
/* The same as text, in err. OK: nothing to do, or (ALLOWED) err stays empty. INVALID: refused. */
semel_status semel__command_refuse(enum semel_judgement judged, enum semel_command_kind kind,
                                   enum semel_row_status state, const struct semel_policy *policy,
                                   const struct semel_key *key, struct semel_error *err);
bool semel__row_too_old(const struct semel_policy *policy, const struct semel_row *row, int64_t now_us);
bool semel__row_never_fit(const struct semel_row *row); /* it could never run */

struct semel_command {
    enum semel_command_kind kind; /* RETRY: run it again; DISCARD: skip it; RESOLVE: it is done */
    /* As a list or a scan returned it: its names, order key, version and `wants` are used. updated_us is 0, or the
     * command applies only if the row has not changed since it was read (P43). */
    const struct semel_row *row;
    struct semel_str who, reason;
    struct semel_str outcome; /* RESOLVE */
    bool force; /* RETRY, CORRECT: also if it is too old, has no usable id or field, waits for missing versions, would
                 * come behind others of its key, or may have had its effect under its own step key */
};
struct semel_command_result {
    enum semel_judgement judged;
    enum semel_row_status state; /* of the row now */
    bool done;
    struct semel_error why; /* why it was not done: its status is OK (there is nothing to do) or INVALID */
};
/* One row, one transaction, one audit line. OK and not done: there is nothing to do; ret->judged and err have the
 * reason. INVALID: the row is damaged, the command has no reason, or (ret->judged) it is refused. */
semel_status semel__inbox_command(struct semel_inbox *inbox, const struct semel_command *command,
                                  struct semel_command_result *ret, struct semel_error *err);
/* The same command for n different rows (at most SEMEL_BATCH_MAX) in one transaction; command->row is not used. Each
 * row is judged by itself, and ret[i] has what came of it. Not for several rows of which one wants a business key, and
 * a resolve not for several of one order key by version: those are judged by each other. `also` (may be NULL) runs at
 * the end of the transaction, when the results are known: what it writes is committed with them. Not OK: nothing was
 * done, but for UNKNOWN. */
semel_status semel__inbox_commands(struct semel_inbox *inbox, const struct semel_command *command,
                                   const struct semel_row *const *rows, size_t n,
                                   semel_status (*also)(void *ctx, struct semel_error *err), void *ctx,
                                   struct semel_command_result *ret, struct semel_error *err);

/* A retry with another payload. One transaction stores a copy of the message, with an id of its own, which is due at
 * once, and rejects the message itself, which keeps its payload; each has an audit line that names the other. The copy
 * has the type, order key, version, headers and business keys of the message, and its place by its version; in a key by
 * arrival it comes last. Only for messages that are dead, quarantined or failed. */
struct semel_correction {
    struct semel_command command; /* CORRECT; its row with headers */
    struct semel_str payload;
    const struct semel_str *business; /* the keys that the message holds */
    size_t n_business;
    char id[SEMEL_ID_MAX + 1]; /* out: of the copy */
};
/* As semel__inbox_command. INVALID also: the payload is too large, or the copy could not run. */
semel_status semel__inbox_correct(struct semel_inbox *inbox, struct semel_correction *correction,
                                  struct semel_command_result *ret, struct semel_error *err);

#endif
