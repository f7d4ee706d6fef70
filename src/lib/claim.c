/* SPDX-License-Identifier: MIT
 *
 * claim.c: the leased path: claim, take and put; renew, finish and release by token.
 *
 * A token names one row while it is held, and none afterwards. The handle remembers its claims for a while, so that a
 * worker that comes back after its lease expired is refused and its result is kept as evidence; a stale token from
 * elsewhere can only be refused.
 *
 * Messages of one order key are taken one at a time, whatever the consumer's effect: two different programs may end
 * the first and the second.
 */
#include "base/error.h"
#include "base/str.h"
#include "lib/handle.h"

#define LEASE_MS_MAX INT64_C(86400000)
#define AHEAD_MAX_US (INT64_C(3653) * 86400 * 1000000)

/* A lease for this call only; 0: the consumer's. */
static semel_status use_lease(struct semel *s, int64_t lease_ms, struct semel_error *err)
{
    if (lease_ms == 0)
        return SEMEL_OK;
    if (lease_ms < 0 || lease_ms > LEASE_MS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "lease_ms is %lld; it must be 1 to %lld, or 0 for the consumer's", (long long)lease_ms,
                           (long long)LEASE_MS_MAX);
    s->policy.lease_us = lease_ms * 1000;
    return SEMEL_OK;
}

/* ---- claim --------------------------------------------------------------------------------------- */

static void forget(struct semel *s, int64_t token)
{
    struct held *held = semel__held_by_token(&s->claims, token);
    if (held != NULL)
        semel__held_drop(&s->claims, held);
}

/* Best effort: without memory the token works too, only its late end leaves no evidence. */
static void remember(struct semel *s, const struct semel_lease *lease)
{
    if (s->claims.n == SEMEL_CLAIMS_MAX)
        semel__held_drop(&s->claims, s->claims.items[0]);
    struct held *held = semel__held_room(&s->claims) ? semel__held_new(s->policy.consumer, &lease->msg) : NULL;
    if (held == NULL)
        return;
    held->token = lease->progress.lease_token;
    held->attempt = lease->progress.attempts;
    semel__held_add(&s->claims, held);
}

/* The meaning of an expired lease must be set before the effect runs: a default would repeat a payment one day. */
static semel_status effect_said(const struct semel *s, struct semel_error *err)
{
    char name[64];
    if (s->policy.effect_said)
        return SEMEL_OK;
    semel__str_show(name, sizeof name, s->policy.consumer);
    return semel__fail(
        err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
        "consumer \"%s\" has not said where its effect is: set effect to outside, to keyed (outside, safe "
        "to repeat under its step key) or to atomic (in this database) before claiming",
        name);
}

static semel_status claim(struct semel *s, const struct semel_msg *msg, int64_t lease_ms, struct semel_verdict *ret,
                          struct semel_error *err)
{
    struct semel__msg m;
    struct semel_lease lease;
    struct semel_settled settled;
    size_t n = 0;
    if (ret == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "ret is NULL");
    semel_status status = semel__parse_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__parse_msg(s, msg, true, &m, err);
    if (status == SEMEL_OK)
        status = use_lease(s, lease_ms, err);
    if (status == SEMEL_OK)
        status = effect_said(s, err);
    if (status == SEMEL_OK)
        status = semel__use_order(s, &m, err);
    if (status == SEMEL_OK)
        status = semel__lease_claim(&s->inbox, &m, 1, true, &s->arena, &lease, &n, &settled, err);
    if (status != SEMEL_OK)
        return status;
    if (n == 0) {
        semel__show_settled(&settled, ret);
        return SEMEL_OK;
    }
    remember(s, &lease);
    semel__show_lease(&lease, ret);
    return SEMEL_OK;
}

semel_status semel_inbox_claim(struct semel *s, const struct semel_msg *msg, int64_t lease_ms,
                               struct semel_verdict *ret, struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, claim(s, msg, lease_ms, ret, err), err) : status;
}

/* ---- by token ------------------------------------------------------------------------------------ */

static semel_status stale(int64_t token, struct semel_error *err)
{
    return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_LEASE,
                       "no message is held under token %lld: its lease ran out, or it has its end", (long long)token);
}

/* The lease of this token, with its consumer loaded. FENCED: nobody has a lease under it; if this handle remembers the
 * message, *ret_known is set and the lease is good enough to leave evidence. */
static semel_status lease_of(struct semel *s, int64_t token, struct semel_lease *ret, bool *ret_known,
                             struct semel_error *err)
{
    struct semel_row *rows;
    size_t n, damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_TOKEN, .token = token, .max = 1};
    *ret_known = false;
    semel_status status = semel__token_check(token, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_scan(s->store, &scan, &s->arena, &rows, &n, &damaged, err);
    if (status != SEMEL_OK)
        return status;
    *ret = (struct semel_lease){0};
    const struct held *held = semel__held_by_token(&s->claims, token);
    if (n == 1 && held != NULL &&
        (!semel__held_is(held, rows[0].consumer, rows[0].source, rows[0].id) ||
         !semel__str_eq(rows[0].progress.lease_owner, semel__str(s->owner))))
        return stale(token, err); /* our claim was rolled back, and the row belongs to somebody else */
    if (n == 1) {
        semel__row_msg(&rows[0], &ret->msg);
        ret->progress = rows[0].progress;
        ret->arrival = rows[0].arrival;
        return semel__use_consumer(s, rows[0].consumer, err);
    }
    if (held == NULL)
        return stale(token, err);
    semel__msg_init(&ret->msg);
    ret->msg.source = held->source;
    ret->msg.id = held->id;
    ret->progress = (struct semel_progress){.state = SEMEL_ROW_PROCESSING,
                                            .attempts = held->attempt,
                                            .lease_token = token};
    status = semel__use_consumer(s, held->consumer, err);
    *ret_known = status == SEMEL_OK;
    return status == SEMEL_OK ? stale(token, err) : status;
}

static semel_status renew(struct semel *s, int64_t token, int64_t lease_ms, struct semel_error *err)
{
    struct semel_lease lease;
    bool known;
    semel_status status = lease_of(s, token, &lease, &known, err);
    if (status == SEMEL_OK)
        status = use_lease(s, lease_ms, err);
    if (status == SEMEL_OK)
        status = semel__lease_renew(&s->inbox, &lease, 1, err);
    return status == SEMEL_OK && lease.lost ? stale(token, err) : status;
}

semel_status semel_inbox_renew(struct semel *s, int64_t token, int64_t lease_ms, struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, renew(s, token, lease_ms, err), err) : status;
}

static semel_status release(struct semel *s, int64_t token, struct semel_error *err)
{
    struct semel_lease lease;
    bool known;
    semel_status status = lease_of(s, token, &lease, &known, err);
    if (status == SEMEL_OK)
        status = semel__lease_release(&s->inbox, &lease, 1, err);
    if (status != SEMEL_OK)
        return status;
    if (lease.lost)
        return stale(token, err);
    forget(s, token);
    return SEMEL_OK;
}

semel_status semel_inbox_release(struct semel *s, int64_t token, struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, release(s, token, err), err) : status;
}

/* Was the effect claimed under this token to be in the caller's own transaction? The token tells, even when its row is
 * gone; an old token that this handle does not know may be. */
static bool is_atomic(const struct semel *s, int64_t token, bool known)
{
    enum semel_effect effect = known ? s->policy.effect : SEMEL_EFFECT_ATOMIC;
    (void)semel__token_effect(token, &effect);
    return effect == SEMEL_EFFECT_ATOMIC;
}

/* The effect is in the caller's transaction, and somebody else has had it, or will have it: it must not be committed
 * (P80). */
static semel_status refuse(struct semel *s, int64_t token, struct semel_error *err)
{
    semel_status status = semel__hold_back(s, token, err);
    if (status != SEMEL_OK)
        return status;
    return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_LEASE,
                       "no message is held under token %lld: its lease ran out, or it has its end; the effect of this "
                       "transaction must not be committed: ROLLBACK",
                       (long long)token);
}

static semel_status finish(struct semel *s, int64_t token, const struct semel_ending *ending, struct semel_error *err)
{
    struct semel_lease lease;
    bool known;
    semel_status status = lease_of(s, token, &lease, &known, err);
    if (status == SEMEL_FENCED && ending->result == SEMEL_DONE && s->store->joining && is_atomic(s, token, known))
        return refuse(s, token, err);
    if (status == SEMEL_FENCED && known) {
        struct semel_error ignored;
        if (semel__lease_finish(&s->inbox, &lease, ending, 1, &ignored) == SEMEL_OK)
            forget(s, token); /* one report is enough */
        return status;
    }
    if (status == SEMEL_OK)
        status = semel__lease_finish(&s->inbox, &lease, ending, 1, err);
    if (status != SEMEL_OK)
        return status;
    forget(s, token);
    if (lease.refused && s->store->joining)
        return refuse(s, token, err);
    return lease.lost ? stale(token, err) : SEMEL_OK;
}

semel_status semel_inbox_finish(struct semel *s, int64_t token, enum semel_result result, struct semel_str outcome,
                                struct semel_str reason, struct semel_error *err)
{
    struct semel_ending ending = {.result = result, .outcome = outcome};
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__check_result(result, true, err);
    if (status == SEMEL_OK)
        status = semel__check_json("outcome", outcome, SEMEL_OUTCOME_MAX, false, err);
    if (status == SEMEL_OK)
        status = semel__check_str("reason", reason, err);
    if (status == SEMEL_OK && !semel__clean_text(&s->arena, reason, &ending.text))
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = finish(s, token, &ending, err);
    return semel__leave(s, status, err);
}

/* ---- stored work --------------------------------------------------------------------------------- */

struct taking {
    struct semel_arena arena; /* its own arena, so that `taken` may call finish, renew and release */
    struct semel_lease *leases;
    size_t n;
};

static semel_status take(struct semel *s, const char *consumer, size_t max, int64_t lease_ms, struct taking *taking,
                         struct semel_error *err)
{
    semel_status status = semel__use_consumer(s, semel__str(consumer), err);
    if (status == SEMEL_OK)
        status = use_lease(s, lease_ms, err);
    if (status != SEMEL_OK)
        return status;
    if (max < 1 || max > SEMEL_PROCESS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "max is %zu; it must be 1 to %d", max,
                           SEMEL_PROCESS_MAX);
    s->policy.one_by_one = true;
    taking->leases = semel__arena_alloc(&taking->arena, max, sizeof *taking->leases);
    if (taking->leases == NULL)
        return semel__fail_memory(err);
    status = semel__lease_take(&s->inbox, max, &taking->arena, taking->leases, &taking->n, err);
    if (status != SEMEL_OK && taking->n > 0) {
        struct semel_error ignored;
        /* the caller never learns of them */
        (void)semel__lease_release(&s->inbox, taking->leases, taking->n, &ignored);
    }
    for (size_t i = 0; status == SEMEL_OK && i < taking->n; i++)
        remember(s, &taking->leases[i]);
    return status;
}

semel_status semel_inbox_take(struct semel *s, const char *consumer, size_t max, int64_t lease_ms, semel_taken taken,
                              void *ctx, size_t *ret_n, struct semel_error *err)
{
    struct taking taking = {0};
    char name[SEMEL_ID_MAX + 1];
    if (taken == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "taken is NULL");
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    if (status != SEMEL_OK)
        return status;
    semel__arena_init(&taking.arena, (size_t)1 << 30);
    status = semel__leave(s, take(s, consumer, max, lease_ms, &taking, err), err);
    memcpy(name, s->consumer, sizeof name);
    bool within = s->taking; /* of another `taken` */
    s->taking = true;
    for (size_t i = 0; status == SEMEL_OK && i < taking.n; i++) {
        struct semel_msg msg;
        struct semel_verdict verdict;
        semel__show_msg(s, &taking.leases[i].msg, &msg);
        msg.consumer = semel__str(name);
        semel__show_lease(&taking.leases[i], &verdict);
        taken(ctx, &msg, &verdict);
    }
    s->taking = within;
    if (status == SEMEL_OK && ret_n != NULL)
        *ret_n = taking.n;
    semel__arena_done(&taking.arena);
    return status;
}

/* A time that is far away is a mistake in its unit, and the message would wait for it without a word. */
static semel_status check_not_before(const struct semel *s, int64_t not_before_us, struct semel_error *err)
{
    const struct semel_clock *clock = s->store->options.clock;
    int64_t now_us = semel__now(clock != NULL ? clock : &semel__clock_real);
    if (not_before_us == SEMEL_NONE || (not_before_us >= 0 && not_before_us <= semel__time_add(now_us, AHEAD_MAX_US)))
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "not_before is %lld; it must be microseconds since 1970, at most ten years ahead",
                       (long long)not_before_us);
}

static semel_status put(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                        struct semel_error *err)
{
    struct semel__msg m;
    struct semel_settled settled;
    if (ret == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "ret is NULL");
    semel_status status = semel__parse_consumer(s, msg, err);
    if (status == SEMEL_OK)
        status = semel__parse_msg(s, msg, true, &m, err);
    if (status == SEMEL_OK)
        status = check_not_before(s, m.not_before_us, err);
    if (status == SEMEL_OK)
        status = semel__use_order(s, &m, err);
    if (status == SEMEL_OK)
        status = semel__inbox_put(&s->inbox, &m, &settled, err);
    if (status == SEMEL_OK)
        semel__show_settled(&settled, ret);
    return status;
}

semel_status semel_inbox_put(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                             struct semel_error *err)
{
    semel_status status = semel__enter(s, SEMEL_WHOSE_EITHER, err);
    return status == SEMEL_OK ? semel__leave(s, put(s, msg, ret, err), err) : status;
}

/* Reads the messages that can be stored; `places` has the place of each in `msgs`. */
static semel_status parse_many(struct semel *s, const struct semel_msg *msgs, size_t n, struct semel_put *ret,
                               struct semel__msg *all, size_t *places, size_t *ret_n, struct semel_error *err)
{
    *ret_n = 0;
    for (size_t i = 0; i < n; i++) {
        ret[i].undecided = true;
        semel__error_clear(&ret[i].err);
        semel_status status = semel__parse_msg(s, &msgs[i], true, &all[*ret_n], &ret[i].err);
        if (status == SEMEL_OK)
            status = semel__use_order(s, &all[*ret_n], &ret[i].err);
        ret[i].wrong = status == SEMEL_INVALID && ret[i].err.code == 0; /* the store's own failures have a number */
        ret[i].undecided = !ret[i].wrong;
        if (status != SEMEL_OK && !ret[i].wrong) {
            *err = ret[i].err;
            return status;
        }
        places[*ret_n] = i;
        *ret_n += !ret[i].wrong;
    }
    return SEMEL_OK;
}

static semel_status put_many(struct semel *s, const struct semel_msg *msgs, size_t n, struct semel_put *ret,
                             struct semel_error *err)
{
    size_t n_all = 0;
    semel_status status = semel__parse_consumer(s, &msgs[0], err);
    struct semel__msg *all = semel__arena_alloc(&s->arena, n, sizeof *all);
    struct semel_settled *settled = semel__arena_alloc(&s->arena, n, sizeof *settled);
    size_t *places = semel__arena_alloc(&s->arena, n, sizeof *places);
    if (all == NULL || settled == NULL || places == NULL)
        return semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = parse_many(s, msgs, n, ret, all, places, &n_all, err);
    if (status != SEMEL_OK)
        return status;
    status = semel__inbox_put_all(&s->inbox, all, n_all, settled, err);
    for (size_t i = 0; i < n_all; i++) {
        struct semel_put *put = &ret[places[i]];
        const struct semel_settled *one = &settled[i];
        put->undecided = status != SEMEL_OK && one->act == SEMEL_LATER && one->why == SEMEL_WHY_BUSY &&
                         one->state == SEMEL_ROW_ABSENT;
        semel__show_settled(one, &put->verdict);
    }
    return status;
}

semel_status semel__put_many(struct semel *s, const struct semel_msg *msgs, size_t n, struct semel_put *ret,
                             struct semel_error *err)
{
    for (size_t i = 0; i < n; i++) {
        ret[i] = (struct semel_put){.undecided = true};
        semel_verdict_init(&ret[i].verdict);
    }
    semel_status status = n > 0 ? semel__enter(s, SEMEL_WHOSE_OURS, err) : SEMEL_OK;
    return status == SEMEL_OK && n > 0 ? semel__leave(s, put_many(s, msgs, n, ret, err), err) : status;
}
