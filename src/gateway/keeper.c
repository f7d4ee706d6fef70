/* SPDX-License-Identifier: MIT
 *
 * keeper.c: claims and ends of keys in groups; see keeper.h.
 *
 * Invariants: the keeper's lock covers the queues, the desks and the texts about lanes, and is never held while a
 * store works; what a lane has taken from the queue is its own until it hands it back.
 */
#include "gateway/keeper.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/point.h"
#include "base/random.h"
#include "base/str.h"
#include "base/wait.h"

#define GROUP_BYTES ((size_t)8 << 20) /* of answers in one transaction, unless one alone is larger */
#define READ_BYTES ((size_t)1 << 28)  /* of rows that one transaction reads */
#define OPEN_AGAIN_US INT64_C(100000) /* after a failed attempt to connect; doubled up to */
#define OPEN_AGAIN_MAX_US INT64_C(2000000)
#define CHORES_US INT64_C(5000000)
#define CHORES_ROWS 1000
#define DOUBT_US INT64_C(3600000000) /* so long after it is in doubt a COMMIT may still happen */
#define FAILURES_MAX 3               /* one after the other; then those behind them fail, too */
#define PATIENCE_US INT64_C(3000)    /* so long a group may take before another lane begins one beside it */
#define ENDS 0u
#define CLAIMS 1u

struct queue {
    struct semel_keeper_job *first, **last;
};

struct lane {
    struct semel_keeper *keeper;
    struct semel_store *store;
    struct semel_tokens tokens;
    struct semel_random rng;
    struct semel_arena arena; /* of one transaction */
    int64_t open_at_us, open_again_us;
    int64_t renew_at_us, chores_at_us; /* of the first lane, by the steady clock */
    bool looks;                        /* keys of the last group had a row */
    pthread_cond_t work;
    bool up; /* under the lock, from here on */
    char why[SEMEL_KEEPER_WHY];
    int64_t busy_us;     /* since when it does a group; 0: it does none */
    int64_t looks_at_us; /* it waits, and looks at the queues then, unless it is called; 0: it does not wait */
};

/* A claim for which nothing was sent, and whose COMMIT the server may carry out although it was released since. */
struct doubt {
    int64_t token, until_us; /* by the steady clock */
};

struct semel_keeper {
    const struct semel_store_ops *const *drivers;
    semel_status (*open)(void *ctx, struct semel_store **ret, struct semel_error *err);
    void *open_ctx;
    struct semel_store_options options;
    char *url, *owner;
    int64_t lease_us;
    struct lane lanes[SEMEL_KEEPER_LANES_MAX];
    size_t n_lanes;
    struct semel_keeper_counts counts;
    pthread_mutex_t lock;
    struct queue waiting[2]; /* ENDS, CLAIMS; under the lock, from here on */
    struct doubt doubts[SEMEL_KEYS_MAX];
    size_t n_doubts;
    bool stopping;
    int64_t stop_at_us;
};

/* What one transaction does. */
struct group {
    struct lane *lane;
    struct semel_keeper_job *ends[SEMEL_KEYS_MAX], *claims[SEMEL_KEYS_MAX];
    size_t n_ends, n_claims;
    bool by_steps; /* begin, statements and commit one after the other */
    bool begun;    /* the last attempt got as far as to have a transaction */
};

/* ==== one transaction ============================================================================ */

static int by_token(const void *a, const void *b)
{
    const struct semel_keeper_job *const *x = a, *const *y = b;
    return ((*x)->ending.token > (*y)->ending.token) - ((*x)->ending.token < (*y)->ending.token);
}

static int by_key(const void *a, const void *b)
{
    const struct semel_keeper_job *const *x = a, *const *y = b;
    int order = semel__str_cmp((*x)->claim.want.scope, (*y)->claim.want.scope);
    return order != 0 ? order : semel__str_cmp((*x)->claim.want.key, (*y)->claim.want.key);
}

static bool in_one_trip(const struct group *g)
{
    for (size_t i = 0; i < g->n_ends; i++)
        if (g->ends[i]->ending.impatient)
            return false;
    return g->lane->keeper->n_lanes > 1 && !g->by_steps;
}

static semel_status write_group(struct group *g, int64_t now_us, struct semel_error *err)
{
    struct lane *lane = g->lane;
    const struct semel_keeper *keeper = lane->keeper;
    struct semel_key_ending ends[SEMEL_KEYS_MAX];
    struct semel_key_claim *claims = semel__arena_alloc(&lane->arena, g->n_claims, sizeof *claims);
    if (claims == NULL && g->n_claims > 0)
        return semel__fail_memory(err);
    for (size_t i = 0; i < g->n_ends; i++)
        ends[i] = g->ends[i]->ending;
    for (size_t i = 0; i < g->n_claims; i++) {
        claims[i] = g->claims[i]->claim;
        claims[i].want.lease_until_us = now_us + keeper->lease_us;
    }
    const struct semel_key_batch batch = {.ends = ends,
                                          .n_ends = g->n_ends,
                                          .claims = claims,
                                          .n_claims = g->n_claims,
                                          .look = lane->looks,
                                          .retried = in_one_trip(g),
                                          .owner = semel__str(keeper->owner),
                                          .tokens = &lane->tokens,
                                          .rng = &lane->rng,
                                          .arena = &lane->arena};
    semel_status status = lane->store->ops->keys->write(lane->store, &batch, now_us, err);
    for (size_t i = 0; status == SEMEL_OK && i < g->n_ends; i++)
        g->ends[i]->ending.applied = ends[i].applied;
    lane->looks = lane->looks && g->n_claims == 0;
    for (size_t i = 0; status == SEMEL_OK && i < g->n_claims; i++) {
        g->claims[i]->claim = claims[i];
        lane->looks = lane->looks || claims[i].act != SEMEL_KEY_RUN;
    }
    for (size_t i = 0; i < g->n_claims; i++)
        g->claims[i]->claim.seen = claims[i].seen;
    const bool in_doubt = status == SEMEL_UNKNOWN || (status != SEMEL_OK && lane->store->ended);
    for (size_t i = 0; in_doubt && i < g->n_claims; i++) {
        g->claims[i]->claim.token = claims[i].token; /* it may hold its key by that */
        g->claims[i]->claim.act = SEMEL_KEY_RUN;
    }
    return status;
}

/* One transaction, in one round trip where the store can; its statuses are those of a store. */
static semel_status attempt(struct group *g, struct semel_error *err)
{
    struct lane *lane = g->lane;
    const bool once = in_one_trip(g);
    int64_t now_us, leased_us = semel__boot_us() + lane->keeper->lease_us;
    semel__arena_reset(&lane->arena);
    for (size_t i = 0; i < g->n_claims; i++)
        g->claims[i]->claim.act = SEMEL_KEY_BUSY; /* until it is known */
    semel_status status = semel_store_begin(lane->store, once ? SEMEL_TX_ONCE : SEMEL_TX_BARE, &now_us, err);
    g->begun = status == SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    if (once)
        SEMEL_POINT(KEYS_WRITTEN); /* in one trip with the commit */
    status = write_group(g, now_us, err);
    if (status != SEMEL_OK) {
        semel_store_rollback(lane->store);
        return status;
    }
    if (!once)
        SEMEL_POINT(KEYS_WRITTEN);
    status = semel_store_commit(lane->store, err);
    if (status == SEMEL_OK)
        SEMEL_POINT(KEYS_COMMITTED);
    for (size_t i = 0; i < g->n_claims; i++) {
        g->claims[i]->leased_until_us = leased_us;
        g->claims[i]->now_us = now_us;
    }
    return status;
}

/* ==== what comes back ============================================================================ */

/* What its owner needs of a row, in the job's own memory. */
static bool keep_row(struct semel_keeper_job *job, const struct semel_idempotency *row)
{
    struct semel_str cause, headers, body, origin;
    bool kept = semel__arena_copy(&job->arena, row->cause, &cause) &&
                semel__arena_copy(&job->arena, row->headers, &headers) &&
                semel__arena_copy(&job->arena, row->body, &body) &&
                semel__arena_copy(&job->arena, row->origin, &origin);
    job->row = *row;
    job->row.scope = job->claim.want.scope;
    job->row.key = job->claim.want.key;
    job->row.lease_owner = job->row.rule = job->row.traceparent = (struct semel_str){NULL, 0};
    job->row.cause = kept ? cause : (struct semel_str){NULL, 0};
    job->row.headers = kept ? headers : (struct semel_str){NULL, 0};
    job->row.body = kept ? body : (struct semel_str){NULL, 0};
    job->row.origin = kept ? origin : (struct semel_str){NULL, 0};
    return kept;
}

static void set_failed(struct semel_keeper_job *job, const struct semel_error *err)
{
    job->failed = true;
    job->err = *err;
}

/* Its claim was decided, and the transaction has ended. */
static void claimed(struct semel_keeper_job *job)
{
    struct semel_error err;
    struct semel_str why = job->claim.why;
    if (job->claim.act == SEMEL_KEY_RUN) {
        job->row.status = SEMEL_ROW_ABSENT;
    } else if (!keep_row(job, &job->claim.row) || !semel__arena_copy(&job->arena, why, &job->claim.why)) {
        (void)semel__fail_memory(&err);
        set_failed(job, &err);
    }
    job->claim.row = (struct semel_idempotency){.status = SEMEL_ROW_ABSENT}; /* its strings are the transaction's */
}

/* Its end was not applied: what is the row now? If it is still its own, another transaction has locked it. */
static void look(struct lane *lane, struct semel_keeper_job *job)
{
    struct semel_error err;
    struct semel_idempotency row;
    semel__arena_reset(&lane->arena);
    semel_status status = lane->store->ops->keys->read(lane->store, job->claim.want.scope, job->claim.want.key,
                                                       &lane->arena, &row, &err);
    if (status == SEMEL_OK && row.token == job->ending.token && row.status != SEMEL_ROW_COMPLETED)
        status = semel__fail(&err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "another transaction has locked the key");
    if (status == SEMEL_OK && !keep_row(job, &row))
        status = semel__fail_memory(&err);
    if (status != SEMEL_OK)
        set_failed(job, &err);
}

static void committed(struct group *g)
{
    struct semel_keeper_counts *counts = &g->lane->keeper->counts;
    atomic_fetch_add_explicit(&counts->groups, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->jobs, g->n_ends + g->n_claims, memory_order_relaxed);
    for (size_t i = 0; i < g->n_claims; i++)
        if (!g->claims[i]->claim.again)
            claimed(g->claims[i]);
    for (size_t i = 0; i < g->n_ends; i++)
        if (!g->ends[i]->ending.applied)
            look(g->lane, g->ends[i]);
}

static void fail_all(struct group *g, const struct semel_error *err)
{
    for (size_t i = 0; i < g->n_ends; i++)
        set_failed(g->ends[i], err);
    for (size_t i = 0; i < g->n_claims; i++)
        set_failed(g->claims[i], err);
}

/* ==== the connection ============================================================================= */

static void set_up(struct lane *lane, bool up, const char *why)
{
    pthread_mutex_lock(&lane->keeper->lock);
    lane->up = up;
    snprintf(lane->why, sizeof lane->why, "%s", why);
    pthread_mutex_unlock(&lane->keeper->lock);
}

static semel_status connect_lane(struct lane *lane, struct semel_error *err)
{
    const struct semel_keeper *keeper = lane->keeper;
    semel_status status;
    if (lane->store != NULL) {
        status = semel_store_reopen(lane->store, err);
    } else {
        status = keeper->open != NULL
                     ? keeper->open(keeper->open_ctx, &lane->store, err)
                     : semel_store_open(&lane->store, keeper->drivers, keeper->url, &keeper->options, err);
        if (status == SEMEL_OK && lane->store->ops->keys == NULL)
            status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this store has no idempotency keys");
    }
    return status;
}

/* Connects, if it is time. On failure the next attempts fail at once until it is. */
static semel_status connect_again(struct lane *lane, struct semel_error *err)
{
    int64_t now_us = semel__steady_us();
    if (now_us < lane->open_at_us) {
        pthread_mutex_lock(&lane->keeper->lock);
        (void)semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "%s", lane->why);
        pthread_mutex_unlock(&lane->keeper->lock);
        return SEMEL_CLOSED;
    }
    semel_status status = connect_lane(lane, err);
    if (status == SEMEL_OK) {
        lane->open_at_us = lane->open_again_us = 0;
        set_up(lane, true, "");
        return SEMEL_OK;
    }
    lane->open_again_us = lane->open_again_us == 0 ? OPEN_AGAIN_US : 2 * lane->open_again_us;
    if (lane->open_again_us > OPEN_AGAIN_MAX_US)
        lane->open_again_us = OPEN_AGAIN_MAX_US;
    lane->open_at_us = semel__steady_us() + lane->open_again_us;
    set_up(lane, false, err->text);
    return SEMEL_CLOSED;
}

static bool is_up(struct lane *lane)
{
    pthread_mutex_lock(&lane->keeper->lock);
    bool up = lane->up;
    pthread_mutex_unlock(&lane->keeper->lock);
    return up;
}

/* ==== doubts ===================================================================================== */

/* The server may carry out a COMMIT after its connection was lost and the claim was released, which then found no row:
 * the key would be held for nobody. So such claims are released again with every renewal, until that found one. */
static void remember_doubts(const struct group *g)
{
    struct semel_keeper *keeper = g->lane->keeper;
    const int64_t until_us = semel__steady_us() + DOUBT_US;
    pthread_mutex_lock(&keeper->lock);
    for (size_t i = 0; i < g->n_claims; i++) {
        if (g->claims[i]->claim.act != SEMEL_KEY_RUN)
            continue;
        if (keeper->n_doubts == SEMEL_KEYS_MAX) /* the oldest makes room */
            memmove(keeper->doubts, keeper->doubts + 1, --keeper->n_doubts * sizeof(struct doubt));
        keeper->doubts[keeper->n_doubts++] = (struct doubt){g->claims[i]->claim.token, until_us};
    }
    pthread_mutex_unlock(&keeper->lock);
}

static struct semel_key_ending release_of(int64_t token)
{
    return (struct semel_key_ending){.token = token, .end = SEMEL_KEY_END_RELEASED, .code = SEMEL_NONE};
}

static size_t list_doubts(struct semel_keeper *keeper, struct semel_key_ending endings[SEMEL_KEYS_MAX])
{
    pthread_mutex_lock(&keeper->lock);
    size_t n = keeper->n_doubts;
    for (size_t i = 0; i < n; i++)
        endings[i] = release_of(keeper->doubts[i].token);
    pthread_mutex_unlock(&keeper->lock);
    return n;
}

/* Those that were released now, and old ones. */
static void forget_doubts(struct semel_keeper *keeper, const struct semel_key_ending *endings, size_t n)
{
    int64_t now_us = semel__steady_us();
    size_t kept = 0;
    pthread_mutex_lock(&keeper->lock);
    for (size_t i = 0; i < keeper->n_doubts; i++) {
        bool released = false;
        for (size_t k = 0; k < n; k++)
            released = released || (endings[k].applied && endings[k].token == keeper->doubts[i].token);
        if (!released && now_us < keeper->doubts[i].until_us)
            keeper->doubts[kept++] = keeper->doubts[i];
    }
    keeper->n_doubts = kept;
    pthread_mutex_unlock(&keeper->lock);
}

/* ==== groups ===================================================================================== */

/* Nothing was sent for its claims: releases those that it may have. */
static semel_status release_claims(struct group *g, struct semel_error *err)
{
    struct lane *lane = g->lane;
    struct semel_key_ending endings[SEMEL_KEYS_MAX];
    struct semel_key_batch batch = {.ends = endings};
    int64_t now_us;
    for (size_t i = 0; i < g->n_claims; i++)
        if (g->claims[i]->claim.act == SEMEL_KEY_RUN)
            endings[batch.n_ends++] = release_of(g->claims[i]->claim.token);
    if (batch.n_ends == 0)
        return SEMEL_OK;
    semel_status status = semel_store_begin(lane->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = lane->store->ops->keys->write(lane->store, &batch, now_us, err);
    if (status == SEMEL_OK)
        return semel_store_commit(lane->store, err);
    semel_store_rollback(lane->store);
    return status;
}

/* The commit may have happened: on a new connection. */
static semel_status resolve_doubt(struct group *g, struct semel_error *err)
{
    atomic_fetch_add_explicit(&g->lane->keeper->counts.in_doubt, 1, memory_order_relaxed);
    remember_doubts(g);
    semel_status status = connect_again(g->lane, err);
    return status == SEMEL_OK ? release_claims(g, err) : status;
}

/* The store has committed it, and then said something that is not to be understood: a damaged row. */
static void undo_claims(struct group *g)
{
    struct semel_error err;
    if (release_claims(g, &err) != SEMEL_OK)
        remember_doubts(g);
}

/* One attempt, and a second one on a new connection. OK: all of it is done. CLOSED: the store is away, and all of it
 * has failed. Otherwise this group has failed as one, and nothing of it was done. */
static semel_status try_group(struct group *g, struct semel_error *err)
{
    semel_status status = is_up(g->lane) ? SEMEL_OK : connect_again(g->lane, err);
    if (status == SEMEL_OK)
        status = attempt(g, err);
    if (status == SEMEL_UNKNOWN) {
        status = resolve_doubt(g, err);
        for (size_t i = 0; status != SEMEL_OK && i < g->n_claims; i++)
            g->claims[i]->in_doubt = g->claims[i]->claim.act == SEMEL_KEY_RUN;
        if (status != SEMEL_OK)
            status = SEMEL_CLOSED;
        else
            status = attempt(g, err);
    } else if (status == SEMEL_CLOSED && is_up(g->lane)) {
        status = connect_again(g->lane, err);
        if (status == SEMEL_OK)
            status = attempt(g, err);
    }
    if (status == SEMEL_UNKNOWN) { /* again */
        remember_doubts(g);
        for (size_t i = 0; i < g->n_claims; i++)
            g->claims[i]->in_doubt = g->claims[i]->claim.act == SEMEL_KEY_RUN;
    }
    if (status == SEMEL_UNKNOWN || status == SEMEL_CLOSED) {
        set_up(g->lane, false, err->text);
        fail_all(g, err);
        return SEMEL_CLOSED;
    }
    if (status == SEMEL_OK)
        committed(g);
    else if (g->lane->store->ended)
        undo_claims(g);
    return status;
}

/* Where it is not a single one that fails, the others are not tried: each could wait for a time-out. */
static void one_by_one(const struct group *g)
{
    struct semel_error err = {0};
    bool away = false;
    unsigned failures = 0;
    for (size_t i = 0; i < g->n_ends + g->n_claims; i++) {
        bool end = i < g->n_ends;
        struct semel_keeper_job *job = end ? g->ends[i] : g->claims[i - g->n_ends];
        struct group one = {.lane = g->lane, .n_ends = end ? 1 : 0, .n_claims = end ? 0 : 1, .by_steps = true};
        (end ? one.ends : one.claims)[0] = job;
        job->ending.impatient = true; /* this lane has waited already */
        semel_status status = away ? SEMEL_CLOSED : try_group(&one, &err);
        failures = status == SEMEL_OK ? 0 : failures + 1;
        away = away || status == SEMEL_CLOSED || (status != SEMEL_OK && !one.begun) || failures == FAILURES_MAX;
        if (status != SEMEL_OK)
            set_failed(job, &err);
    }
}

static void do_group(struct group *g);

/* Those that one trip could not decide, because they take a row over. */
static void do_again(const struct group *g)
{
    struct group more = {.lane = g->lane, .by_steps = true};
    for (size_t i = 0; i < g->n_claims; i++)
        if (g->claims[i]->claim.again)
            more.claims[more.n_claims++] = g->claims[i];
    if (more.n_claims > 0)
        do_group(&more);
}

static void do_group(struct group *g)
{
    struct semel_error err = {0};
    qsort(g->ends, g->n_ends, sizeof(struct semel_keeper_job *), by_token);
    qsort(g->claims, g->n_claims, sizeof(struct semel_keeper_job *), by_key);
    semel_status status = try_group(g, &err);
    if (status == SEMEL_INVALID && in_one_trip(g) && !g->lane->store->ended) {
        g->by_steps = true; /* somebody else may have got one of its keys in the same moment */
        status = try_group(g, &err);
    }
    if (status == SEMEL_OK)
        do_again(g);
    if (status == SEMEL_OK || status == SEMEL_CLOSED)
        return;
    if (g->n_ends + g->n_claims == 1 || !g->begun) {
        fail_all(g, &err);
        return;
    }
    atomic_fetch_add_explicit(&g->lane->keeper->counts.again, 1, memory_order_relaxed);
    one_by_one(g);
}

/* ==== chores ===================================================================================== */

/* A transaction of one statement, or a few. false: the store is away. */
static bool chore(struct lane *lane, bool renew, int64_t *ret_n)
{
    struct semel_keeper *keeper = lane->keeper;
    struct semel_key_ending doubts[SEMEL_KEYS_MAX];
    struct semel_error err = {0};
    const struct semel_key_batch released = {.ends = doubts, .n_ends = renew ? list_doubts(keeper, doubts) : 0};
    int64_t now_us;
    *ret_n = 0;
    semel_status status = is_up(lane) ? SEMEL_OK : connect_again(lane, &err);
    if (status == SEMEL_OK)
        status = semel_store_begin(lane->store, SEMEL_TX_OWN, &now_us, &err);
    if (status == SEMEL_OK) {
        const struct semel_key_ops *ops = lane->store->ops->keys;
        if (released.n_ends > 0)
            status = ops->write(lane->store, &released, now_us, &err);
        if (status == SEMEL_OK && renew)
            status = ops->renew_all(lane->store, semel__str(keeper->owner), now_us + keeper->lease_us, ret_n, &err);
        else if (status == SEMEL_OK)
            status = ops->keep(lane->store, now_us, CHORES_ROWS, ret_n, &err);
        if (status == SEMEL_OK)
            status = semel_store_commit(lane->store, &err);
        else
            semel_store_rollback(lane->store);
    }
    if (status == SEMEL_OK && released.n_ends > 0)
        forget_doubts(keeper, doubts, released.n_ends);
    if (status == SEMEL_CLOSED || status == SEMEL_UNKNOWN)
        set_up(lane, false, err.text);
    return status == SEMEL_OK;
}

/* Before the work. A lost connection is made anew also where there is no work: nobody else notices that the store is
 * there again. The renewal is the first lane's: others wait for what expires. When there is something to do again. */
static int64_t do_chores(struct lane *lane)
{
    struct semel_keeper_counts *counts = &lane->keeper->counts;
    struct semel_error err;
    int64_t n, now_us = semel__steady_us();
    int64_t next_us = is_up(lane) || connect_again(lane, &err) == SEMEL_OK ? INT64_MAX : lane->open_at_us;
    if (lane != lane->keeper->lanes)
        return next_us;
    if (now_us >= lane->renew_at_us) {
        bool renewed = chore(lane, true, &n);
        if (!renewed)
            atomic_fetch_add_explicit(&counts->renewals_failed, 1, memory_order_relaxed);
        lane->renew_at_us = now_us + (renewed ? lane->keeper->lease_us / 3 : OPEN_AGAIN_MAX_US / 4);
    }
    if (now_us >= lane->chores_at_us) {
        bool done = chore(lane, false, &n);
        atomic_fetch_add_explicit(&counts->expired, (uint64_t)n, memory_order_relaxed);
        int64_t often = lane->keeper->lease_us / 4 < CHORES_US ? lane->keeper->lease_us / 4 : CHORES_US;
        lane->chores_at_us = now_us + (done && n >= CHORES_ROWS ? 0 : often);
    }
    if (lane->renew_at_us < next_us)
        next_us = lane->renew_at_us;
    return lane->chores_at_us < next_us ? lane->chores_at_us : next_us;
}

/* ==== the queues ================================================================================= */

static void enqueue(struct queue *queue, struct semel_keeper_job *job)
{
    job->next = NULL;
    *queue->last = job;
    queue->last = &job->next;
}

static bool fits(const struct group *g, const struct semel_keeper_job *job, size_t *bytes)
{
    size_t n = job->is_end ? job->ending.body.n + job->ending.headers.n : 0;
    if ((job->is_end ? g->n_ends : g->n_claims) == SEMEL_KEYS_MAX)
        return false;
    if (*bytes > 0 && *bytes + n > GROUP_BYTES)
        return false;
    for (size_t i = 0; !job->is_end && i < g->n_claims; i++)
        if (semel__str_eq(g->claims[i]->claim.want.key, job->claim.want.key) &&
            semel__str_eq(g->claims[i]->claim.want.scope, job->claim.want.scope))
            return false; /* the same key again: in the next group */
    *bytes += n;
    return true;
}

/* Takes what fits from a queue; the rest keeps its order. */
static void take_some(struct queue *queue, struct group *g, size_t *bytes)
{
    struct semel_keeper_job *job = queue->first;
    queue->first = NULL;
    queue->last = &queue->first;
    while (job != NULL) {
        struct semel_keeper_job *next = job->next;
        if (!fits(g, job, bytes))
            enqueue(queue, job);
        else if (job->is_end)
            g->ends[g->n_ends++] = job;
        else
            g->claims[g->n_claims++] = job;
        job = next;
    }
}

static bool has_work(const struct semel_keeper *keeper)
{
    return keeper->waiting[ENDS].first != NULL || keeper->waiting[CLAIMS].first != NULL;
}

/* From when on a lane may begin a group: while another does one, larger groups are better than more of them, unless
 * that one takes long. Whoever has no connection leaves the work to whoever has one. */
static int64_t may_begin_us(const struct lane *lane)
{
    const struct semel_keeper *keeper = lane->keeper;
    int64_t at_us = 0;
    if (keeper->stopping)
        return 0;
    for (const struct lane *other = keeper->lanes; other < keeper->lanes + keeper->n_lanes; other++) {
        if (other == lane)
            continue;
        if (other->up && !lane->up)
            return INT64_MAX;
        if (other->busy_us != 0 && other->busy_us + PATIENCE_US > at_us)
            at_us = other->busy_us + PATIENCE_US;
    }
    return at_us;
}

/* There is work: calls a lane that would look too late. */
static void call_lane(struct semel_keeper *keeper)
{
    for (struct lane *lane = keeper->lanes; lane < keeper->lanes + keeper->n_lanes; lane++)
        if (lane->looks_at_us != 0 && may_begin_us(lane) < lane->looks_at_us) {
            pthread_cond_signal(&lane->work);
            return;
        }
}

/* Waits for work that this lane may begin, and takes it. */
static void wait_for_group(struct lane *lane, struct group *g, int64_t until_us)
{
    struct semel_keeper *keeper = lane->keeper;
    for (;;) {
        const int64_t now_us = semel__steady_us(), begin_us = has_work(keeper) ? may_begin_us(lane) : INT64_MAX;
        if (begin_us <= now_us)
            break;
        if (now_us >= until_us || keeper->stopping)
            return;
        lane->looks_at_us = begin_us < until_us ? begin_us : until_us;
        (void)semel__cond_wait(&lane->work, &keeper->lock, lane->looks_at_us);
        lane->looks_at_us = 0;
    }
    size_t bytes = 0;
    take_some(&keeper->waiting[ENDS], g, &bytes);
    take_some(&keeper->waiting[CLAIMS], g, &bytes);
    lane->busy_us = semel__steady_us();
}

static void give(struct semel_keeper_job *job, struct semel_keeper_desk **called, size_t *n)
{
    struct semel_keeper_desk *desk = job->desk;
    job->next = NULL;
    *desk->last = job;
    desk->last = &job->next;
    if (!desk->called && *n < 2 * SEMEL_KEYS_MAX) {
        desk->called = true;
        called[(*n)++] = desk;
    }
}

/* One wake-up per loop. */
static void hand_back(const struct group *g)
{
    struct semel_keeper *keeper = g->lane->keeper;
    struct semel_keeper_desk *called[2 * SEMEL_KEYS_MAX];
    size_t n = 0;
    pthread_mutex_lock(&keeper->lock);
    g->lane->busy_us = 0;
    for (size_t i = 0; i < g->n_ends; i++)
        give(g->ends[i], called, &n);
    for (size_t i = 0; i < g->n_claims; i++)
        give(g->claims[i], called, &n);
    for (size_t i = 0; i < n; i++)
        called[i]->wake(called[i]->ctx); /* under the lock: its loop may end as soon as it has its jobs */
    pthread_mutex_unlock(&keeper->lock);
}

bool semel__keeper_step(struct semel_keeper *keeper, size_t n, int64_t wait_ms)
{
    struct lane *lane = &keeper->lanes[n];
    struct group g = {.lane = lane};
    int64_t until_us = semel__steady_us() + wait_ms * 1000, chores_us = do_chores(lane);
    if (chores_us < until_us)
        until_us = chores_us;
    pthread_mutex_lock(&keeper->lock);
    wait_for_group(lane, &g, until_us);
    bool over = keeper->stopping && (!has_work(keeper) || semel__steady_us() >= keeper->stop_at_us);
    pthread_mutex_unlock(&keeper->lock);
    if (g.n_ends + g.n_claims > 0) {
        do_group(&g);
        hand_back(&g);
    }
    return !over;
}

/* ==== by others ================================================================================== */

void semel__keeper_desk_init(struct semel_keeper_desk *desk, struct semel_keeper *keeper, void (*wake)(void *ctx),
                             void *ctx)
{
    *desk = (struct semel_keeper_desk){.keeper = keeper, .wake = wake, .ctx = ctx};
    desk->last = &desk->first;
    desk->out_last = &desk->out;
}

void semel__keeper_submit(struct semel_keeper_desk *desk, struct semel_keeper_job *job)
{
    job->desk = desk;
    job->failed = job->in_doubt = false;
    job->row = (struct semel_idempotency){.status = SEMEL_ROW_ABSENT};
    semel__arena_reset(&job->arena);
    job->next = NULL;
    *desk->out_last = job;
    desk->out_last = &job->next;
}

void semel__keeper_flush(struct semel_keeper_desk *desk)
{
    struct semel_keeper *keeper = desk->keeper;
    if (desk->out == NULL)
        return;
    pthread_mutex_lock(&keeper->lock);
    for (struct semel_keeper_job *job = desk->out, *next; job != NULL; job = next) {
        next = job->next;
        enqueue(&keeper->waiting[job->is_end ? ENDS : CLAIMS], job);
    }
    call_lane(keeper);
    pthread_mutex_unlock(&keeper->lock);
    desk->out = NULL;
    desk->out_last = &desk->out;
}

struct semel_keeper_job *semel__keeper_collect(struct semel_keeper_desk *desk)
{
    pthread_mutex_lock(&desk->keeper->lock);
    struct semel_keeper_job *first = desk->first;
    desk->first = NULL;
    desk->last = &desk->first;
    desk->called = false;
    pthread_mutex_unlock(&desk->keeper->lock);
    return first;
}

int64_t semel__keeper_lease_us(const struct semel_keeper *keeper)
{
    return keeper->lease_us;
}

bool semel__keeper_up(struct semel_keeper *keeper, char ret_why[SEMEL_KEEPER_WHY])
{
    bool up = true;
    ret_why[0] = '\0';
    pthread_mutex_lock(&keeper->lock);
    for (size_t i = 0; i < keeper->n_lanes; i++) {
        if (up && !keeper->lanes[i].up)
            memcpy(ret_why, keeper->lanes[i].why, SEMEL_KEEPER_WHY);
        up = up && keeper->lanes[i].up;
    }
    pthread_mutex_unlock(&keeper->lock);
    return up;
}

const struct semel_keeper_counts *semel__keeper_counts(const struct semel_keeper *keeper)
{
    return &keeper->counts;
}

/* ==== opening ==================================================================================== */

void semel__keeper_settings_init(struct semel_keeper_settings *settings)
{
    *settings = (struct semel_keeper_settings){.lease_ms = SEMEL_KEEPER_LEASE_MS};
}

/* 0: there is no such driver, which the first attempt to connect reports. */
static unsigned capabilities(const struct semel_keeper_settings *settings)
{
    size_t n = strcspn(settings->url, ":");
    for (const struct semel_store_ops *const *driver = settings->drivers; *driver != NULL; driver++)
        if (semel__str_eqz((struct semel_str){settings->url, n}, (*driver)->name))
            return (*driver)->capabilities;
    return 0;
}

semel_status semel__keeper_new(struct semel_keeper **ret, const struct semel_keeper_settings *settings,
                               struct semel_error *err)
{
    if (settings->lease_ms < 100 || settings->lease_ms > INT64_C(86400000))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the lease must be from 100ms to 1d");
    struct semel_keeper *keeper = semel__calloc(1, sizeof *keeper);
    if (keeper == NULL)
        return semel__fail_memory(err);
    keeper->drivers = settings->drivers;
    keeper->options = settings->options;
    keeper->open = settings->open;
    keeper->open_ctx = settings->open_ctx;
    keeper->lease_us = settings->lease_ms * 1000;
    keeper->n_lanes = (capabilities(settings) & SEMEL_STORE_CONCURRENT) != 0 ? 2 : 1;
    keeper->waiting[ENDS].last = &keeper->waiting[ENDS].first;
    keeper->waiting[CLAIMS].last = &keeper->waiting[CLAIMS].first;
    pthread_mutex_init(&keeper->lock, NULL);
    bool sound = semel__text_copy(&keeper->url, settings->url) && semel__text_copy(&keeper->owner, settings->owner);
    for (size_t i = 0; i < keeper->n_lanes; i++) {
        struct lane *lane = &keeper->lanes[i];
        lane->keeper = keeper;
        semel__arena_init(&lane->arena, READ_BYTES);
        snprintf(lane->why, sizeof lane->why, "not connected yet");
        lane->renew_at_us = semel__steady_us() + keeper->lease_us / 3;
        sound = sound && semel__cond_init(&lane->work) && semel__random_seed_os(&lane->rng);
    }
    if (!sound) {
        semel__keeper_free(keeper);
        return semel__fail_memory(err);
    }
    *ret = keeper;
    return SEMEL_OK;
}

size_t semel__keeper_lanes(const struct semel_keeper *keeper)
{
    return keeper->n_lanes;
}

semel_status semel__keeper_open(struct semel_keeper *keeper, size_t n, struct semel_error *err)
{
    struct lane *lane = &keeper->lanes[n];
    struct semel_error why = {0};
    semel_status status = connect_lane(lane, &why);
    set_up(lane, status == SEMEL_OK, status == SEMEL_OK ? "" : why.text);
    if (err != NULL)
        *err = why;
    return status;
}

void semel__keeper_stop(struct semel_keeper *keeper, int64_t deadline_ms)
{
    pthread_mutex_lock(&keeper->lock);
    keeper->stopping = true;
    keeper->stop_at_us = semel__steady_us() + deadline_ms * 1000;
    for (size_t i = 0; i < keeper->n_lanes; i++)
        pthread_cond_broadcast(&keeper->lanes[i].work);
    pthread_mutex_unlock(&keeper->lock);
}

void semel__keeper_free(struct semel_keeper *keeper)
{
    if (keeper == NULL)
        return;
    for (size_t i = 0; i < keeper->n_lanes; i++) {
        semel_store_close(keeper->lanes[i].store);
        semel__arena_done(&keeper->lanes[i].arena);
        pthread_cond_destroy(&keeper->lanes[i].work);
    }
    pthread_mutex_destroy(&keeper->lock);
    semel__free(keeper->url);
    semel__free(keeper->owner);
    semel__free(keeper);
}
