/* SPDX-License-Identifier: MIT
 *
 * keys.c: idempotency keys: begin, claim; renew, finish and fail by token. The rules are core's (core/keys.h).
 *
 * A key that was begun must have its end before the transaction commits. PostgreSQL refuses the COMMIT otherwise; on
 * SQLite the handle counts the tokens of keys that were begun, and its commit hook asks. There a begin has a lease,
 * too: on a loose handle, where no hook asks, it runs out.
 *
 * Invariants: a token is in the list once. What a savepoint of the caller's undoes is undone in the list, too, while
 * the watch is on; else every call looks first which of them it has undone.
 */
#include "core/keys.h"

#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "lib/handle.h"

#define LEASE_MS_MAX INT64_C(86400000)
#define BEGIN_LEASE_US INT64_C(60000000)

void semel_key_request_init(struct semel_key_request *request)
{
    memset(request, 0, sizeof *request);
    request->size = sizeof *request;
    request->answer_ms = SEMEL_ANSWER_US / 1000;
    request->keep_ms = SEMEL_KEEP_US / 1000;
}

void semel_key_verdict_init(struct semel_key_verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    verdict->size = sizeof *verdict;
    verdict->token = SEMEL_NONE;
}

const char *semel_key_act_name(enum semel_key_act act)
{
    return semel__key_act_name(act);
}

static semel_status ops_of(struct semel *s, const struct semel_key_ops **ret, struct semel_error *err)
{
    *ret = s->store->ops->keys;
    return *ret != NULL ? SEMEL_OK
                        : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this store has no idempotency keys");
}

/* ---- what was begun ------------------------------------------------------------------------------ */

static bool forget(struct semel *s, int64_t token)
{
    for (int i = 0; i < s->n_keys; i++) {
        if (s->keys[i] != token)
            continue;
        s->keys[i] = s->keys[--s->n_keys];
        return true;
    }
    return false;
}

/* A key of this token has begun, or (negative) ended. There is room for it. */
static void note(struct semel *s, int64_t deed)
{
    if (deed > 0)
        s->keys[s->n_keys++] = deed;
    else if (!forget(s, -deed))
        return; /* it was claimed */
    if (s->watch.on)
        s->deeds[s->n_deeds++] = deed;
}

void semel__undo_deeds(struct semel *s, size_t n_deeds)
{
    while (s->n_deeds > n_deeds) {
        int64_t deed = s->deeds[--s->n_deeds];
        if (deed < 0)
            s->keys[s->n_keys++] = -deed;
        else
            (void)forget(s, deed);
    }
}

static bool deed_room(struct semel *s)
{
    if (s->n_deeds < s->cap_deeds)
        return true;
    size_t cap = s->cap_deeds > 0 ? 2 * s->cap_deeds : 16;
    int64_t *deeds = semel__realloc(s->deeds, cap, sizeof(int64_t));
    if (deeds == NULL)
        return false;
    s->deeds = deeds;
    s->cap_deeds = cap;
    return true;
}

/* Drops begins that a savepoint of the caller's has undone, where nobody tells of that. Inside a transaction. */
static semel_status drop_undone(struct semel *s, const struct semel_key_ops *ops, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (s->watch.on)
        return deed_room(s) ? SEMEL_OK : semel__fail_memory(err);
    for (int i = s->n_keys; status == SEMEL_OK && i-- > 0;) {
        struct semel_idempotency row;
        status = ops->held(s->store, s->keys[i], &s->arena, &row, err);
        if (status == SEMEL_OK && row.status == SEMEL_ROW_ABSENT)
            (void)forget(s, s->keys[i]);
    }
    return status;
}

/* Begins a transaction, or a savepoint in the caller's. */
static semel_status start(struct semel *s, const struct semel_key_ops *ops, int64_t *ret_now_us,
                          struct semel_error *err)
{
    semel_status status = semel_store_begin(s->store, SEMEL_TX_OWN, ret_now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = drop_undone(s, ops, err);
    if (status != SEMEL_OK)
        semel_store_rollback(s->store);
    return status;
}

static semel_status end(struct semel *s, semel_status status, struct semel_error *err)
{
    if (status == SEMEL_OK)
        return semel__commit(s, err);
    semel_store_rollback(s->store);
    return status;
}

/* ---- begin and claim ----------------------------------------------------------------------------- */

static semel_status parse_request(const struct semel_key_request *request, struct semel_key_claim *ret,
                                  bool *ret_is_time, struct semel_error *err)
{
    if (request == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "request is NULL");
    semel_status status = semel__check_size("request", request->size, sizeof *request, err);
    if (status == SEMEL_OK)
        status = semel__key_check(request->scope, request->key, SEMEL_KEY_MIN, ret_is_time, err);
    if (status == SEMEL_OK && (request->keep_ms > INT64_MAX / 1000 || request->answer_ms > INT64_MAX / 1000 ||
                               request->answer_ms < 0 || request->keep_ms < 0))
        status = semel__key_check_lifetimes(0, 0, err);
    if (status == SEMEL_OK)
        status = semel__key_check_lifetimes(request->answer_ms * 1000, request->keep_ms * 1000, err);
    if (status == SEMEL_OK)
        status = semel__key_fingerprint(request->fingerprint, &ret->want.fp, err);
    if (status == SEMEL_OK)
        status = semel__check_str("traceparent", request->traceparent, err);
    if (status != SEMEL_OK)
        return status;
    ret->want.scope = request->scope;
    ret->want.key = request->key;
    ret->want.traceparent = request->traceparent;
    ret->want.answer_us = request->answer_ms * 1000;
    ret->want.keep_us = request->keep_ms * 1000;
    return SEMEL_OK;
}

static void show(const struct semel_key_claim *claim, bool is_time, struct semel_key_verdict *ret)
{
    semel_key_verdict_init(ret);
    ret->act = claim->act;
    ret->why = claim->why;
    ret->key_is_time = is_time;
    if (claim->act == SEMEL_KEY_RUN) {
        ret->token = claim->token;
    } else if (claim->act == SEMEL_KEY_REPLAY) {
        ret->status = (int)claim->row.code;
        ret->headers = claim->row.headers;
        if (semel__str_eqz(claim->why, "completed"))
            ret->body = claim->row.body;
    }
}

/* It is unknown whether the claim was committed, and nothing was done under it yet. If its lease can be renewed it is
 * ours, for certain after that commit (P98); else nobody has it. UNKNOWN: that cannot be found out now. */
static semel_status claim_again(struct semel *s, const struct semel_key_ops *ops, const struct semel_key_claim *claim,
                                int64_t lease_us, struct semel_error *err)
{
    struct semel_error ignored; /* `err` has the doubt */
    bool ours = false;
    int64_t now_us;
    semel_status status = SEMEL_OK;
    if (claim->act == SEMEL_KEY_RUN) {
        status = semel_store_begin(s->store, SEMEL_TX_OWN, &now_us, &ignored);
        if (status == SEMEL_OK)
            status = end(s, ops->renew(s->store, claim->token, now_us + lease_us, &ours, &ignored), &ignored);
    }
    if (status != SEMEL_OK)
        return SEMEL_UNKNOWN;
    if (!ours)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "the connection was lost, and nothing was claimed: repeat the call");
    semel__error_clear(err);
    return SEMEL_OK;
}

/* lease_us NONE: it ends in the caller's transaction. */
static semel_status enter(struct semel *s, const struct semel_key_request *request, enum semel_effect effect,
                          int64_t lease_us, struct semel_key_verdict *ret, struct semel_error *err)
{
    const struct semel_key_ops *ops;
    struct semel_key_claim claim = {.effect = effect};
    bool is_time = false, begin = lease_us == SEMEL_NONE;
    int64_t now_us;
    if (ret == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "ret is NULL");
    semel_status status = ops_of(s, &ops, err);
    if (status == SEMEL_OK)
        status = parse_request(request, &claim, &is_time, err);
    if (status == SEMEL_OK && begin)
        status = semel__watch_savepoints(s, err);
    if (status == SEMEL_OK)
        status = start(s, ops, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    if (begin && s->n_keys == SEMEL_BEGUN_KEYS_MAX)
        return end(s,
                   semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "%d keys were begun in this transaction and have no end: finish or fail first",
                               SEMEL_BEGUN_KEYS_MAX),
                   err);
    bool leased = !begin || !semel__holds_in_store(s);
    claim.want.lease_until_us = leased ? now_us + (begin ? BEGIN_LEASE_US : lease_us) : SEMEL_NONE;
    const struct semel_key_batch batch = {.look = true,
                                          .claims = &claim,
                                          .n_claims = 1,
                                          .owner = semel__str(s->owner),
                                          .tokens = &s->inbox.tokens,
                                          .rng = &s->rng,
                                          .arena = &s->arena};
    status = ops->write(s->store, &batch, now_us, err);
    status = end(s, status, err);
    if (status == SEMEL_UNKNOWN && !begin)
        status = claim_again(s, ops, &claim, lease_us, err);
    if (status != SEMEL_OK)
        return status;
    if (begin && claim.act == SEMEL_KEY_RUN && !s->loose)
        note(s, claim.token);
    show(&claim, is_time, ret);
    return SEMEL_OK;
}

semel_status semel_key_begin(struct semel *s, const struct semel_key_request *request, struct semel_key_verdict *ret,
                             struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_CALLER, err);
    if (status != SEMEL_OK)
        return status;
    return semel__leave(s, enter(s, request, SEMEL_EFFECT_ATOMIC, SEMEL_NONE, ret, err), err);
}

static semel_status check_lease(int64_t lease_ms, struct semel_error *err)
{
    return lease_ms >= 1 && lease_ms <= LEASE_MS_MAX
               ? SEMEL_OK
               : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "lease_ms must be from 1 to %lld (1 day)",
                             (long long)LEASE_MS_MAX);
}

static semel_status check_claim(enum semel_key_effect effect, int64_t lease_ms, struct semel_error *err)
{
    if (effect != SEMEL_KEY_ATOMIC && effect != SEMEL_KEY_OUTSIDE && effect != SEMEL_KEY_KEYED)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "effect must be outside, keyed or atomic");
    return check_lease(lease_ms, err);
}

semel_status semel_key_claim(struct semel *s, const struct semel_key_request *request, enum semel_key_effect effect,
                             int64_t lease_ms, struct semel_key_verdict *ret, struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    if (status != SEMEL_OK)
        return status;
    status = check_claim(effect, lease_ms, err);
    if (status == SEMEL_OK)
        status = enter(s, request, (enum semel_effect)effect, lease_ms * 1000, ret, err);
    return semel__leave(s, status, err);
}

/* ---- by token ------------------------------------------------------------------------------------ */

static semel_status fenced(int64_t token, const char *more, struct semel_error *err)
{
    return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_LEASE,
                       "no key is held under token %lld: another request has it, or it has its answer%s",
                       (long long)token, more);
}

static semel_status renew(struct semel *s, int64_t token, int64_t lease_ms, struct semel_error *err)
{
    const struct semel_key_ops *ops;
    int64_t now_us;
    bool renewed = false;
    semel_status status = ops_of(s, &ops, err);
    if (status == SEMEL_OK)
        status = semel__token_check(token, err);
    if (status == SEMEL_OK)
        status = check_lease(lease_ms, err);
    if (status == SEMEL_OK)
        status = start(s, ops, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = end(s, ops->renew(s->store, token, now_us + lease_ms * 1000, &renewed, err), err);
    return status == SEMEL_OK && !renewed ? fenced(token, "", err) : status;
}

semel_status semel_key_renew(struct semel *s, int64_t token, int64_t lease_ms, struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, renew(s, token, lease_ms, err), err) : status;
}

/* The effect is in the caller's transaction, and another one has had it: it must not be committed (P80). */
static semel_status refuse(struct semel *s, int64_t token, struct semel_error *err)
{
    enum semel_effect effect = SEMEL_EFFECT_ATOMIC;
    (void)semel__token_effect(token, &effect);
    if (effect != SEMEL_EFFECT_ATOMIC || !s->store->joining)
        return fenced(token, "", err);
    semel_status status = semel__hold_back(s, token, err);
    return status == SEMEL_OK ? fenced(token, "; the effect of this transaction must not be committed: ROLLBACK", err)
                              : status;
}

static semel_status finish(struct semel *s, struct semel_key_ending *ending, struct semel_error *err)
{
    const struct semel_key_ops *ops;
    int64_t now_us;
    semel_status status = ops_of(s, &ops, err);
    if (status == SEMEL_OK)
        status = semel__token_check(ending->token, err);
    if (status == SEMEL_OK)
        status = start(s, ops, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    const struct semel_key_batch batch = {.ends = ending, .n_ends = 1};
    status = end(s, ops->write(s->store, &batch, now_us, err), err);
    if (status != SEMEL_OK)
        return status;
    if (ending->applied)
        note(s, -ending->token);
    else if (ending->end == SEMEL_KEY_END_COMPLETED)
        return refuse(s, ending->token, err);
    return ending->applied ? SEMEL_OK : fenced(ending->token, "", err);
}

static semel_status check_answer(const struct semel_key_ending *ending, struct semel_error *err)
{
    if (ending->code < 200 || ending->code > 599)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "status is %d; it must be from 200 to 599",
                           (int)ending->code);
    if (ending->body.n > SEMEL_ANSWER_BODY_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "body has %zu bytes; at most %d are allowed",
                           ending->body.n, SEMEL_ANSWER_BODY_MAX);
    return semel__key_check_headers(ending->headers, err);
}

semel_status semel_key_finish(struct semel *s, int64_t token, int status_code, struct semel_str headers,
                              struct semel_str body, struct semel_error *err)
{
    struct semel_key_ending ending = {.token = token,
                                      .end = SEMEL_KEY_END_COMPLETED,
                                      .code = status_code,
                                      .headers = semel__str_given(headers) ? headers : SEMEL_STR("[]"),
                                      .body = body};
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    if (status != SEMEL_OK)
        return status;
    status = check_answer(&ending, err);
    return semel__leave(s, status == SEMEL_OK ? finish(s, &ending, err) : status, err);
}

static semel_status fail(struct semel *s, struct semel_key_ending *ending, struct semel_str cause,
                         struct semel_error *err)
{
    if (ending->end != SEMEL_KEY_END_RELEASED && ending->end != SEMEL_KEY_END_UNKNOWN)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "end must be released or unknown");
    semel_status status = semel__check_str("cause", cause, err);
    if (status == SEMEL_OK && semel__str_given(cause) && !semel__clean_text(&s->arena, cause, &ending->cause))
        status = semel__fail_memory(err);
    if (ending->cause.n > SEMEL_CAUSE_MAX)
        ending->cause.n = SEMEL_CAUSE_MAX;
    while (ending->cause.n > 0 && !semel__utf8_valid(ending->cause))
        ending->cause.n--; /* a character that was cut */
    return status == SEMEL_OK ? finish(s, ending, err) : status;
}

semel_status semel_key_fail(struct semel *s, int64_t token, enum semel_key_end how, struct semel_str cause,
                            struct semel_error *err)
{
    struct semel_key_ending ending = {.token = token, .end = how, .code = SEMEL_NONE};
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, fail(s, &ending, cause, err), err) : status;
}
