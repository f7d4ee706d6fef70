/* SPDX-License-Identifier: MIT
 *
 * cases.h: a line of spec/cases.txt as numbers, and how it is run.
 *
 * What it is: the parsed form of the table of cases, the rows and messages that a case speaks of, and the comparison of
 * what was expected with what was found. The format itself is specified at the head of spec/cases.txt.
 *
 * Invariants: every field is an int64_t, and UNSAID where the line says nothing; times are microseconds from the now of
 * the case, so that a case means the same on every clock.
 */
#ifndef SEMEL_TEST_CASES_H
#define SEMEL_TEST_CASES_H

#include "conform/contract.h"
#include "core/inbox.h"

#define UNSAID (INT64_MIN + 1)
#define NEVER SEMEL_NONE       /* the time `none` */
#define SOON (INT64_MAX - 1)   /* the time `+`: within the backoff of the route */
#define ANY_VERSION SEMEL_NONE /* first=any */
#define NO_VERSION SEMEL_NONE  /* version=none, skipped=none */

enum case_op {
    OP_DELIVER,
    OP_CLAIM,
    OP_FINISH,
    OP_RENEW,
    OP_RELEASE,
    OP_RECOVER,
    OP_TAKE,
    OP_WORK,
    OP_RETRY,
    OP_DISCARD,
    OP_RESOLVE,
    OP_PURGE,
    OP_TICK,
    OP_SET
};

/* A handler's words beyond enum semel_result. */
enum { HANDLER_ENVIRONMENT = 100, HANDLER_BROKEN };

enum { SAYS_RUN, SAYS_ACK, SAYS_LATER, SAYS_DONE, SAYS_NOTHING, SAYS_REFUSED, SAYS_FENCED };
enum { TOKEN_OWN, TOKEN_STALE, TOKEN_NEW, TOKEN_SAME };
enum { HELD_FREE, HELD_OWN, HELD_OTHER, HELD_BUSY, HELD_GONE };
enum { BODY_NONE, BODY_A, BODY_B, BODY_RAW };
enum { ID_UUID7, ID_ULID, ID_NUMBER };

/* Another row of the same key: its status and version in one number. */
#define OTHER_WAITER 15 /* waiting for a business key */
#define OTHER_STATE(other) ((other) % 16 == OTHER_WAITER ? SEMEL_ROW_WAITING : (enum semel_row_status)((other) % 16))
#define OTHER_VERSION(other) ((other) / 16 - 1 < 0 ? SEMEL_NONE : (other) / 16 - 1)

/* Versions from one to another, in one number. */
#define SKIPPED_FROM(skipped) ((skipped) % (INT64_C(1) << 40))
#define SKIPPED_N(skipped) ((skipped) >> 40)

/* The id of the message: the one that a message without an id is kept under, so that both are one in the table. */
#define CASE_ID "position:m"

struct case_policy {
    int64_t order, first, gap, effect, keep, retry, permanent, parked_key, parked_route, ceiling, retention;
    int64_t timed_ids, one_source;
};

/* The row before (given) and after (becomes). */
struct case_row {
    int64_t state, attempts, before, retries, alone, due, lease, token, cls, kept, outcome;
    int64_t claimed;                                     /* given only: the effect that it was claimed under */
    int64_t time;                                        /* that the message tells */
    int64_t version, received, processed, body, damaged; /* given only */
};

struct case_given {
    struct case_row row;
    int64_t none, last, skipped, ahead, behind, behind_due, behind_wants, business, wants, watermark, parked,
        parked_elsewhere, large;
};

struct case_when {
    int64_t op, body, version, time, handler, delivery, no_id, no_field, too_large, business, outcome, alone, with;
    int64_t token, result, force, no_reason, no_payload, tombstone, id;
    struct case_policy set;
};

struct case_verdict {
    int64_t says, why, then;
};

struct case_becomes {
    struct case_row row;
    int64_t unchanged, absent;
    int64_t last, skipped, ahead, behind, behind_due, behind_cls, with, with_cls, business, wants, watermark;
    int64_t conflicts, attempt_rows, audits, alert, answer;
};

struct kase {
    int line;
    char name[128];
    char id[40]; /* of the message */
    struct case_policy policy;
    struct case_given given;
    struct case_when when;
    struct case_verdict verdict;
    struct case_becomes becomes;
};

/* ---- case_parse.c ---- */

/* false: `complaint` says what is wrong with the line. A comment or a blank line gives *ret_is = false. */
bool case_parse(char *line, struct kase *ret, bool *ret_is, char *complaint, size_t size);

/* ---- case_facts.c: what the words mean ---- */

/* Every difference is one line; a case that has none has passed. */
struct finding {
    char text[2000];
    size_t n;
    int differences;
};
__attribute__((format(printf, 2, 3))) void differ(struct finding *finding, const char *fmt, ...);

#define CASE_NOW T0
#define CLAIMED_OLD 3 /* beyond enum semel_effect: under a token that was counted */
/* Of a row that is held under this effect; and one under which the message was claimed before. */
int64_t case_token(const char *id, int64_t claimed);
int64_t case_stale_token(const struct kase *kase, const struct semel_policy *policy);
int64_t case_at(int64_t relative); /* NEVER stays SEMEL_NONE */
void case_policy_of(const struct kase *kase, struct semel_policy *ret);
/* Settings: those of the policy, and those that `set` makes of them; in the arena, NUL-terminated. */
struct semel_str case_settings(const struct semel_policy *policy, struct semel_arena *arena);
struct semel_str case_change(const struct kase *kase, const struct semel_policy *policy, struct semel_arena *arena);
struct semel_str case_payload(int64_t body);
/* The fingerprint that goes with it. */
struct semel_fp case_fp(int64_t body);
/* The row of the message, and another row; ids: m, and "a" (ahead) or "b" (behind). */
void case_row_of(const struct kase *kase, const struct semel_policy *policy, struct semel_row *ret);
void case_other_row(const char *id, int64_t other, const struct semel_policy *policy, struct semel_row *ret);
/* The versions that the word `skipped` names; UNSAID and none: there are none. */
void case_skipped(int64_t said, int64_t ret[SEMEL_SKIPPED_MAX], size_t *ret_n);
void case_msg_of(const struct kase *kase, const struct semel_policy *policy, struct semel__msg *ret);
bool case_has_row(const struct kase *kase);

/* The changing part, and nothing else. `before` may be NULL. */
void compare_progress(const struct kase *kase, const struct semel_policy *policy, const struct semel_progress *before,
                      const struct semel_progress *after, struct finding *finding);

/* ---- how a case is run: true when it could be, the differences in `finding`, what the row was and is now ---- */

struct move {
    enum semel_row_status from, to;
    bool made;
};

/* A case on a real store: facts are planted, `event` makes the column `when` happen, and everything is read back. */
struct engine {
    const struct kase *kase;
    struct world *world;
    struct semel_policy policy;
    struct semel_inbox inbox;
    struct semel__handler handler;
    int64_t says; /* the handler */
    int runs;
    struct semel_row before;
    bool there;
    struct finding *finding;
    struct semel_settled settled;
    struct semel_str answer;
    bool state_reported; /* settled.state is what the caller was told */
    bool no_alerts;      /* the client raises none */
};
typedef void (*case_event)(struct engine *engine);
void case_run_event(const struct kase *kase, const struct driver *driver, case_event event, struct finding *finding,
                    struct move *ret_move);
void expect_verdict(struct engine *engine, int64_t says, enum semel_why why);
void expect_ok(struct engine *engine, semel_status status, const struct semel_error *err);

bool case_run_rules(const struct kase *kase, struct finding *finding, struct move *ret_move);
bool case_run_engine(const struct kase *kase, const struct driver *driver, struct finding *finding,
                     struct move *ret_move);
/* Through SQL alone, on a connection into which the extension `so` was loaded. false: it was left out, and counted. */
bool case_run_ext(const struct kase *kase, const char *so, struct finding *finding, struct move *ret_move);
/* Says which cases were left out, and why. false: others than those that must be. */
bool case_ext_account(void);
/* The same through the SQL functions of PostgreSQL. */
bool case_run_pgsql(const struct kase *kase, struct finding *finding, struct move *ret_move);
bool case_pgsql_account(void);
void case_pgsql_by_many(void); /* every begin, done and fail is a batch of one */

#endif
