/* SPDX-License-Identifier: MIT
 *
 * keys.h: the rules of idempotency keys, and what a store must be able to do for them.
 *
 * A key belongs to a caller: a row is named by (scope, key). Everything else that makes a request what it is lies in
 * its fingerprint (fingerprint.h). A row is processing, completed or unknown; a key that was released has no row.
 *
 * The verdict for a request, first match wins:
 *
 *   the row                                              act        why
 *   none; completed, and its key's lifetime is over      run        new
 *   another fingerprint, same kind                       mismatch   fingerprint
 *   completed                                            replay     completed, or no_body
 *   processing, its lease is alive or it has none        busy       running
 *   processing, lease ran out, claimed atomic or keyed   run        retry: it cannot commit, or is safe to repeat
 *   processing, lease ran out, claimed outside           unknown    lease_expired
 *   unknown, claimed keyed                               run        retry
 *   unknown                                              unknown    its cause
 *
 * The row's token has the effect that it was claimed under (token.h): atomic, whoever does the work finishes the key by
 * its token in the transaction of the effect; outside; keyed, the work is safe to repeat under its key. A row without a
 * lease ends in the transaction that began it.
 *
 * An end counts under the key's last token, also when its outcome has become unknown meanwhile: a late answer ends
 * that. An answer that is stored never changes.
 *
 * Lifetimes count from completion: the answer's body, then the key. Rows that are processing or unknown have none.
 *
 * Invariants: the same facts give the same verdict; nothing here reads or writes; the PL/pgSQL functions
 * (sql/postgres/020_idempotency.sql) have the same rules, and spec/keys.txt holds both to one table.
 */
#ifndef SEMEL_CORE_KEYS_H
#define SEMEL_CORE_KEYS_H

#include "core/msg.h"
#include "core/store.h"
#include "core/token.h"

#define SEMEL_KEY_MIN 8
#define SEMEL_KEYS_MAX 256 /* in one call of a store */
#define SEMEL_ANSWER_US INT64_C(86400000000)
#define SEMEL_KEEP_US (30 * SEMEL_ANSWER_US)
#define SEMEL_KEEP_MAX_US (3650 * SEMEL_ANSWER_US)
#define SEMEL_ANSWER_HEADERS_MAX 65536
#define SEMEL_ANSWER_BODY_MAX 67108864
#define SEMEL_CAUSE_MAX 255

/* ---- the rules ----------------------------------------------------------------------------------- */

/* A row. Times that it does not have are SEMEL_NONE. */
struct semel_idempotency {
    struct semel_str scope, key;
    enum semel_row_status status; /* ABSENT (no row), PROCESSING, COMPLETED or UNKNOWN */
    int64_t token;
    struct semel_fp fp;
    int64_t created_us, updated_us; /* updated: when the status was set */
    int64_t lease_until_us;         /* NONE: it ends in the transaction that began it */
    struct semel_str lease_owner;
    int64_t answer_us, keep_us; /* lifetimes after completion */
    struct semel_str cause;     /* of UNKNOWN */
    int64_t code;               /* the answer, from here on */
    struct semel_str headers;   /* the text of a JSON array of pairs */
    struct semel_str body;      /* not given: not kept */
    int64_t completed_us, answer_until_us, key_until_us;
    struct semel_str origin, rule, traceparent;
};

/* `row` may be ABSENT. *ret_why is borrowed from the row, or constant. */
enum semel_key_act semel__key_judge(const struct semel_idempotency *row, const struct semel_fp *fp, int64_t now_us,
                                    struct semel_str *ret_why);

/* 1 to SEMEL_ID_MAX bytes name a caller; a key has `min` to 255 characters of printable ASCII. INVALID says what would
 * be right. *ret_is_time: the key is a time and nothing else, which deserves a warning. */
semel_status semel__key_check(struct semel_str scope, struct semel_str key, size_t min, bool *ret_is_time,
                              struct semel_error *err);
/* The answer for a day at least, the key as long as the answer at least, and ten years at most. */
semel_status semel__key_check_lifetimes(int64_t answer_us, int64_t keep_us, struct semel_error *err);
/* The text of a JSON array of pairs of strings, of at most SEMEL_ANSWER_HEADERS_MAX bytes. */
semel_status semel__key_check_headers(struct semel_str headers, struct semel_error *err);
/* A caller's own bytes as a fingerprint, or those of fingerprint.h with their letter; not given: NONE. INVALID: more
 * than 63 bytes, or none. */
semel_status semel__key_fingerprint(struct semel_str given, struct semel_fp *ret, struct semel_error *err);

const char *semel__key_act_name(enum semel_key_act act);

/* What came of a call. */
struct semel_key_answer {
    bool sent;             /* at least one byte of the request may have been sent */
    bool whole;            /* an answer came, and was complete */
    int code;              /* of it */
    struct semel_str said; /* its header Semel-Outcome; not given: none */
};
/* What a rule says of the statuses from `low` to `high`. */
struct semel_key_rule {
    int low, high;
    enum semel_key_end end;
};
/* Nothing was sent: released. No complete answer: unknown (P47, P93). Otherwise the answer's header decides, a rule, or
 * its status: 2xx, 3xx, 402 and 410 completed; other 4xx released (P102); everything else unknown (P92). */
enum semel_key_end semel__key_outcome(const struct semel_key_answer *answer, const struct semel_key_rule *rules,
                                      size_t n_rules);

/* What to do about a key whose outcome is unknown when its request comes again. */
enum semel_on_unknown { SEMEL_ON_UNKNOWN_REFUSE, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_ON_UNKNOWN_RETRY };
/* `done`, `not_done` and `unknown` are what a reconcile can answer. */
enum semel_reconciled { SEMEL_RECONCILED_DONE, SEMEL_RECONCILED_NOT_DONE, SEMEL_RECONCILED_UNKNOWN };
/* May it run? `not_done` counts only when the first call can no longer be running: `settle_us` after the outcome became
 * unknown (P95). */
bool semel__key_may_run(const struct semel_idempotency *row, enum semel_on_unknown policy, enum semel_reconciled said,
                        int64_t settle_us, int64_t now_us);

/* ---- what a store does ---------------------------------------------------------------------------- */

/* A request that wants its key. In: `want`, of which scope, key, fp, answer_us, keep_us, origin, rule and traceparent
 * are used, and lease_until_us: NONE, it ends in this transaction; and its effect. */
struct semel_key_claim {
    struct semel_idempotency want;
    enum semel_effect effect;
    int64_t token;                /* out: the one that was drawn for it */
    enum semel_key_act act;       /* out */
    struct semel_str why;         /* out */
    bool again;                   /* out, in a transaction of one call: it was not decided; claim it in another one */
    bool seen;                    /* out, also when the call has failed: the key has a row */
    struct semel_idempotency row; /* out: RUN: as it is now, with its new token; else as it was found */
};

/* The end of one. In: its token and what becomes of it. */
struct semel_key_ending {
    int64_t token;
    enum semel_key_end end;
    struct semel_str cause;         /* UNKNOWN */
    int64_t code;                   /* COMPLETED */
    struct semel_str headers, body; /* COMPLETED; a body that is not given is not kept */
    bool impatient;                 /* waits for no lock; out: somebody else has its row, or there is none */
    bool applied;                   /* out: false: the token is not its key's any more, or it is impatient */
};

/* One call writes ends, then claims. There may be none of either. Claims ascend by (scope, key) without repeats. An
 * impatient end needs more than one trip. */
struct semel_key_batch {
    struct semel_key_ending *ends;
    size_t n_ends;
    struct semel_key_claim *claims;
    size_t n_claims;
    bool look;              /* some of the claims seem to have a row: reads it at once, not in a trip more */
    bool retried;           /* a transaction of this call alone, which is done again without this where it fails */
    struct semel_str owner; /* of the claims' leases; the rest, too, is for claims */
    struct semel_tokens *tokens;
    struct semel_random *rng;
    struct semel_arena *arena; /* of what is read */
};

/* All functions but `read` run inside a transaction; `write` may be the whole of one (SEMEL_TX_ONCE). A call has up to
 * SEMEL_KEYS_MAX items of a kind. It waits for another transaction only if that has locked the row of its own token. */
struct semel_key_ops {
    /* Inserts the claims whose keys have no row; reads and judges the others, and gives those that may run a new token.
     * A key that another transaction has locked is BUSY. A claim whose act is not RUN has changed nothing. */
    semel_status (*write)(struct semel_store *store, const struct semel_key_batch *batch, int64_t now_us,
                          struct semel_error *err);
    /* One lease. *ret_renewed false: the token is not its key's any more. */
    semel_status (*renew)(struct semel_store *store, int64_t token, int64_t until_us, bool *ret_renewed,
                          struct semel_error *err);
    /* All leases of an owner, in one statement; how many. */
    semel_status (*renew_all)(struct semel_store *store, struct semel_str owner, int64_t until_us, int64_t *ret_n,
                              struct semel_error *err);
    /* Ends leases that ran out: keys that were claimed atomic are released, others become unknown. Then deletes bodies
     * and keys whose lifetime is over. At most `max` rows each; *ret_n in all. */
    semel_status (*keep)(struct semel_store *store, int64_t now_us, int64_t max, int64_t *ret_n,
                         struct semel_error *err);
    /* The row of a key, or ABSENT. */
    semel_status (*read)(struct semel_store *store, struct semel_str scope, struct semel_str key,
                         struct semel_arena *arena, struct semel_idempotency *ret, struct semel_error *err);
    /* The row that is held under a token and has no answer, or ABSENT. */
    semel_status (*held)(struct semel_store *store, int64_t token, struct semel_arena *arena,
                         struct semel_idempotency *ret, struct semel_error *err);
};

#endif
