/* SPDX-License-Identifier: MIT
 *
 * pull_work.c: what workers ask for, done on the inbox by the thread that owns it.
 *
 * A token is all that a worker has, and it may have got it from another process: the row is found by it in the store. A
 * token of another consumer opens nothing here.
 *
 * Invariants: a lease is answered for only after its commit; what could not be told is given back at once; ends of one
 * kind are committed together, each token once a transaction.
 */
#include "admin/pull.h"

#include "base/error.h"
#include "store/query.h"

/* ---- what was taken here --------------------------------------------------------------------------- */

static void forget(struct semel_pull *pull, int64_t token)
{
    struct held *held = semel__held_by_token(&pull->claims, token);
    if (held != NULL)
        semel__held_drop(&pull->claims, held);
}

/* Best effort: without memory a late end leaves no evidence, and nothing else is lost. */
static void remember(struct semel_pull *pull, const struct semel_lease *lease)
{
    forget(pull, lease->progress.lease_token);
    if (pull->claims.n == SEMEL_CLAIMS_MAX)
        semel__held_drop(&pull->claims, pull->claims.items[0]);
    struct held *held = semel__held_room(&pull->claims) ? semel__held_new(pull->route->name, &lease->msg) : NULL;
    if (held == NULL)
        return;
    held->token = lease->progress.lease_token;
    held->attempt = lease->progress.attempts;
    semel__held_add(&pull->claims, held);
}

/* The inbox under another lease, and one message per key. */
struct bent {
    struct semel_policy policy;
    const struct semel_policy *real;
};

static void bend(struct bent *bent, struct semel_inbox *inbox, int64_t lease_us, int64_t lease_max_us)
{
    bent->real = inbox->policy;
    bent->policy = *inbox->policy;
    bent->policy.one_by_one = true;
    if (lease_us > 0)
        bent->policy.lease_us = lease_us;
    if (bent->policy.lease_us > lease_max_us)
        bent->policy.lease_us = lease_max_us;
    inbox->policy = &bent->policy;
}

static void unbend(const struct bent *bent, struct semel_inbox *inbox)
{
    inbox->policy = bent->real;
}

/* ---- takes ----------------------------------------------------------------------------------------- */

static void give_back(struct semel_inbox *inbox, struct semel_lease *leases, size_t n)
{
    struct semel_error ignored;
    (void)semel__lease_release(inbox, leases, n, &ignored); /* else they run out */
}

semel_status semel__pull_one(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *call, size_t *ret_n,
                             struct semel_error *err)
{
    struct bent bent;
    size_t n = 0;
    *ret_n = 0;
    semel__arena_reset(&pull->arena);
    struct semel_lease *leases = semel__arena_alloc(&pull->arena, call->max, sizeof(*leases));
    if (leases == NULL) {
        semel__pull_tell_later(call, "out of memory");
        return semel__fail_memory(err);
    }
    bend(&bent, inbox, call->lease_us, pull->route->handler.u.pull.lease_max_us);
    semel_status status = semel__lease_take(inbox, call->max, &pull->arena, leases, &n, err);
    size_t fit = status == SEMEL_OK && !semel__http_hung_up(call->x) ? semel__pull_tell_fits(leases, n) : 0;
    if (fit < n)
        give_back(inbox, leases + fit, n - fit); /* nobody will hear of them */
    unbend(&bent, inbox);
    if (status != SEMEL_OK) {
        semel__pull_tell_later(call, "the store did not answer");
        return status;
    }
    if (n > 0 && fit == 0)
        semel__pull_tell_later(call, "the messages could not be told");
    for (size_t i = 0; i < fit; i++)
        remember(pull, &leases[i]);
    if (fit > 0)
        semel__pull_tell_taken(pull, call, leases, fit);
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- ends ------------------------------------------------------------------------------------------ */

/* What became of the message, for who comes too late. */
static void look_up(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *call, struct semel_str source,
                    struct semel_str id)
{
    struct semel_filter filter = {.consumer = inbox->policy->consumer,
                                  .source = source,
                                  .id = id,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    struct semel_row *rows;
    size_t n = 0, damaged;
    struct semel_error ignored;
    if (semel_query_list(inbox->store, &filter, SEMEL_NONE, 1, false, &pull->arena, &rows, &n, &damaged, &ignored) ==
            SEMEL_OK &&
        n == 1)
        call->state = rows[0].progress.state;
}

/* The end of a lease that is nobody's any more: refused, with its word kept where the message is known. */
static void refuse(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *call)
{
    const struct held *held = semel__held_by_token(&pull->claims, call->token);
    struct semel_error ignored;
    call->lost = true;
    if (held == NULL)
        return;
    look_up(pull, inbox, call, held->source, held->id);
    if (call->op != PULL_SETTLE || (call->state == SEMEL_STATE_COMPLETED && call->ending.result == SEMEL_DONE))
        return; /* said twice: nothing that anybody would have to look into */
    semel__msg_init(&call->lease.msg);
    call->lease.msg.source = held->source;
    call->lease.msg.id = held->id;
    call->lease.progress = (struct semel_progress){.state = SEMEL_STATE_PROCESSING,
                                                   .attempts = held->attempt,
                                                   .lease_token = call->token};
    (void)semel__lease_finish(inbox, &call->lease, &call->ending, 1, &ignored);
}

/* The lease of the call's token. Not found: *ret_found is false. */
static semel_status find(struct semel_inbox *inbox, struct pull_call *call, bool *ret_found, struct semel_error *err)
{
    struct semel_row *rows;
    size_t n, damaged;
    struct semel_scan scan = {.kind = SEMEL_SCAN_TOKEN, .token = call->token, .max = 1};
    semel_status status = semel_store_scan(inbox->store, &scan, &call->arena, &rows, &n, &damaged, err);
    *ret_found = status == SEMEL_OK && n == 1 && semel__str_eq(rows[0].consumer, inbox->policy->consumer);
    if (!*ret_found)
        return status;
    semel__row_msg(&rows[0], &call->lease.msg);
    call->lease.progress = rows[0].progress;
    call->lease.arrival = rows[0].arrival;
    return SEMEL_OK;
}

static semel_status commit(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *const *group, size_t n,
                           struct semel_error *err)
{
    struct semel_lease leases[SEMEL_PULL_GROUP];
    struct semel_ending endings[SEMEL_PULL_GROUP];
    struct bent bent;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < n; i++) {
        leases[i] = group[i]->lease;
        endings[i] = group[i]->ending;
    }
    bend(&bent, inbox, group[0]->lease_us, pull->route->handler.u.pull.lease_max_us);
    if (group[0]->op == PULL_RENEW)
        status = semel__lease_renew(inbox, leases, n, err);
    else if (group[0]->op == PULL_RELEASE)
        status = semel__lease_release(inbox, leases, n, err);
    else
        status = semel__lease_finish(inbox, leases, endings, n, err);
    unbend(&bent, inbox);
    for (size_t i = 0; i < n; i++) {
        group[i]->lease.progress = leases[i].progress;
        group[i]->lost = leases[i].lost;
        group[i]->state = leases[i].lost ? SEMEL_STATE_ABSENT : leases[i].progress.state;
        if (status == SEMEL_OK && leases[i].lost)
            look_up(pull, inbox, group[i], group[i]->lease.msg.source, group[i]->lease.msg.id);
    }
    return status;
}

/* What stands in the way of one more in this group: another kind, another lease, the same token. */
static bool parts(struct pull_call *const *group, size_t n, const struct pull_call *call)
{
    bool other = n == SEMEL_PULL_GROUP;
    if (n > 0)
        other |= group[0]->op != call->op || group[0]->lease_us != call->lease_us;
    for (size_t i = 0; i < n && !other; i++)
        other = group[i]->token == call->token;
    return other;
}

static void tell(struct semel_pull *pull, struct pull_call **group, size_t n, semel_status status)
{
    for (size_t i = 0; i < n; i++) {
        if (status != SEMEL_OK) {
            semel__pull_tell_later(group[i], "the store did not answer; ask again with the same token");
            continue;
        }
        pull->unknown |= !group[i]->lost && group[i]->state == SEMEL_STATE_UNKNOWN;
        if (!group[i]->lost && group[i]->op == PULL_RELEASE)
            forget(pull, group[i]->token);
        semel__pull_tell_end(pull, group[i]);
    }
}

semel_status semel__pull_ends(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *calls,
                              struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    while (calls != NULL) {
        struct pull_call *group[SEMEL_PULL_GROUP];
        size_t n = 0;
        while (calls != NULL && !parts(group, n, calls)) {
            struct pull_call *call = calls;
            bool found = false;
            calls = call->next;
            call->next = NULL;
            if (status == SEMEL_OK)
                status = find(inbox, call, &found, err);
            if (status == SEMEL_OK && found) {
                group[n++] = call;
                continue;
            }
            if (status == SEMEL_OK)
                refuse(pull, inbox, call);
            tell(pull, &call, 1, status);
        }
        if (n > 0 && status == SEMEL_OK)
            status = commit(pull, inbox, group, n, err);
        tell(pull, group, n, status);
    }
    return status;
}
