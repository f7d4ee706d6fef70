/* SPDX-License-Identifier: MIT
 *
 * pull.c: the endpoint of a `pull` route: calls of workers wait here for the thread that owns the inbox.
 *
 * A take that finds nothing is held until its wait is over: it is tried again when the daemon says that something is
 * due, and every LOOK_MS besides, because other processes store messages too.
 *
 * Invariants: the list is in order of arrival; takes are tried oldest first, and when one finds nothing none of the
 * others is tried.
 */
#include "admin/pull.h"

#include "base/error.h"

#define LOOK_MS 500
#define FULL_AFTER_S 1

struct semel_pull *semel__pull_new(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_pull *pull = semel__calloc(1, sizeof(*pull));
    if (pull == NULL || !semel__cond_init(&pull->changed)) {
        semel__free(pull);
        return NULL;
    }
    pthread_mutex_init(&pull->lock, NULL);
    semel__arena_init(&pull->arena, (size_t)1 << 30);
    pull->serve = serve;
    pull->route = route;
    pull->last = &pull->first;
    pull->next = serve->pulls;
    serve->pulls = pull;
    return pull;
}

/* Takes the call at *at out of the list. */
static struct pull_call *take_out(struct semel_pull *pull, struct pull_call **at)
{
    struct pull_call *call = *at;
    *at = call->next;
    if (*at == NULL)
        pull->last = at;
    call->next = NULL;
    pull->n--;
    semel__http_keep(call->x, NULL);
    return call;
}

static void answer_all(struct semel_pull *pull, const char *why)
{
    while (pull->first != NULL)
        semel__pull_tell_later(take_out(pull, &pull->first), why);
}

void semel__pull_close(struct semel_pull *pull)
{
    if (pull == NULL)
        return;
    pthread_mutex_lock(&pull->lock);
    pull->open = false;
    answer_all(pull, "the route is not running any more");
    pthread_mutex_unlock(&pull->lock);
    semel__held_done(&pull->claims);
    semel__arena_reset(&pull->arena);
}

void semel__pull_free(struct semel_pull *pull)
{
    semel__pull_close(pull);
    semel__arena_done(&pull->arena);
    pthread_cond_destroy(&pull->changed);
    pthread_mutex_destroy(&pull->lock);
    semel__free(pull);
}

struct semel_pull *semel__serve_pull(struct semel_serve *serve, const struct semel_route *route)
{
    struct semel_pull *pull = serve->pulls;
    while (pull != NULL && !semel__str_eq(pull->route->name, route->name))
        pull = pull->next;
    if (pull == NULL)
        return NULL;
    pthread_mutex_lock(&pull->lock);
    pull->open = true;
    pthread_mutex_unlock(&pull->lock);
    return pull;
}

void semel__pull_full(struct semel_pull *pull, bool full)
{
    pull->full = full;
}

bool semel__pull_unknown(const struct semel_pull *pull)
{
    return pull->unknown;
}

void semel__pull_wake(struct semel_pull *pull)
{
    pthread_mutex_lock(&pull->lock);
    pull->woken = true;
    pthread_cond_signal(&pull->changed);
    pthread_mutex_unlock(&pull->lock);
}

/* ---- calls in -------------------------------------------------------------------------------------- */

static void enter(struct semel_pull *pull, enum pull_op op, struct semel_http_exchange *x)
{
    struct pull_call *call = semel__pull_read(pull, op, x);
    const char *why = NULL;
    if (call == NULL)
        return;
    call->deadline_ms = op == PULL_TAKE ? semel__endpoint_now_ms() + pull->serve->answer_ms : 0;
    pthread_mutex_lock(&pull->lock);
    if (!pull->open)
        why = "the route is not running at the moment";
    else if (pull->n >= SEMEL_PULL_CALLS)
        why = "too many calls wait for this route";
    if (why == NULL) {
        *pull->last = call;
        pull->last = &call->next;
        pull->n++;
        semel__http_keep(x, call);
        pull->fresh = true;
        pthread_cond_signal(&pull->changed);
    }
    pthread_mutex_unlock(&pull->lock);
    if (why != NULL)
        semel__pull_tell_later(call, why);
}

void semel__pull_take(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_TAKE, x);
}

void semel__pull_renew(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_RENEW, x);
}

void semel__pull_settle(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_SETTLE, x);
}

void semel__pull_release(void *pull, struct semel_http_exchange *x)
{
    enter(pull, PULL_RELEASE, x);
}

/* A take that waits ends when its own time is over, the client is gone, or the process stops. */
void semel__pull_overdue(void *ctx, struct semel_http_exchange *x)
{
    struct semel_pull *pull = ctx;
    pthread_mutex_lock(&pull->lock);
    struct pull_call *call = semel__http_kept(x), **at = &pull->first;
    bool ends = call != NULL && (call->deadline_ms <= semel__endpoint_now_ms() ||
                                 (call->held && (semel__http_hung_up(x) || atomic_load(&pull->serve->stopping))));
    while (ends && *at != call)
        at = &(*at)->next;
    if (ends) {
        take_out(pull, at);
        if (call->held)
            semel__pull_tell_none(call);
        else
            semel__pull_tell_later(call, "the route is too busy");
    }
    pthread_mutex_unlock(&pull->lock);
}

/* ---- the step -------------------------------------------------------------------------------------- */

/* Waits for something to do; true: it is time to try takes that are held. Under the lock. */
static bool wait_for_work(struct semel_pull *pull, int64_t until_ms)
{
    for (;;) {
        int64_t now_ms = semel__endpoint_now_ms();
        bool held = pull->first != NULL && !pull->fresh;
        int64_t look_ms = pull->looked_ms + LOOK_MS;
        bool look = pull->first != NULL && (pull->woken || look_ms <= now_ms);
        if (pull->fresh || look || now_ms >= until_ms)
            return look;
        (void)semel__cond_wait(&pull->changed, &pull->lock, (held && look_ms < until_ms ? look_ms : until_ms) * 1000);
    }
}

/* Ends, in order of arrival, at most a group of them. */
static struct pull_call *take_ends(struct semel_pull *pull)
{
    struct pull_call *ends = NULL, **last = &ends;
    size_t n = 0;
    for (struct pull_call **at = &pull->first; *at != NULL && n < SEMEL_PULL_GROUP;) {
        if ((*at)->op == PULL_TAKE) {
            at = &(*at)->next;
            continue;
        }
        *last = take_out(pull, at);
        last = &(*last)->next;
        n++;
    }
    return ends;
}

static struct pull_call *next_take(struct semel_pull *pull)
{
    struct pull_call **at = &pull->first;
    pthread_mutex_lock(&pull->lock);
    while (*at != NULL && (*at)->op != PULL_TAKE)
        at = &(*at)->next;
    struct pull_call *call = *at != NULL ? take_out(pull, at) : NULL;
    pthread_mutex_unlock(&pull->lock);
    return call;
}

/* A take for which there is nothing. Under the lock; true: it is to be answered empty now. */
static bool hold(const struct semel_pull *pull, struct pull_call *call)
{
    int64_t now_ms = semel__endpoint_now_ms();
    if (!call->held)
        call->deadline_ms = now_ms + call->wait_ms;
    call->held = true;
    return !pull->open || call->deadline_ms <= now_ms || atomic_load(&pull->serve->stopping);
}

/* The oldest take found nothing, so the others would not either: it goes back to the front, and all of them wait. */
static void hold_all(struct semel_pull *pull, struct pull_call *oldest)
{
    pthread_mutex_lock(&pull->lock);
    semel__http_keep(oldest->x, oldest);
    oldest->next = pull->first;
    pull->first = oldest;
    if (oldest->next == NULL)
        pull->last = &oldest->next;
    pull->n++;
    for (struct pull_call **at = &pull->first; *at != NULL;) {
        if ((*at)->op == PULL_TAKE && hold(pull, *at))
            semel__pull_tell_none(take_out(pull, at));
        else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&pull->lock);
}

static semel_status serve_takes(struct semel_pull *pull, struct semel_inbox *inbox, size_t *ret_n,
                                struct semel_error *err)
{
    struct pull_call *call;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && (call = next_take(pull)) != NULL) {
        size_t n = 0;
        if (semel__http_hung_up(call->x)) {
            semel__pull_tell_none(call);
            continue;
        }
        if (pull->full) {
            semel__pull_tell_later(call, "unknown_max is reached: resolve unknown outcomes first");
            continue;
        }
        status = semel__pull_one(pull, inbox, call, &n, err);
        *ret_n += status == SEMEL_OK && n > 0;
        if (status == SEMEL_OK && n == 0) {
            hold_all(pull, call);
            break;
        }
    }
    return status;
}

semel_status semel__pull_step(struct semel_pull *pull, struct semel_inbox *inbox, int wait_ms, size_t *ret_n,
                              struct semel_error *err)
{
    *ret_n = 0;
    pull->unknown = false;
    pthread_mutex_lock(&pull->lock);
    bool look = wait_for_work(pull, semel__endpoint_now_ms() + wait_ms);
    struct pull_call *ends = take_ends(pull);
    pull->fresh = false;
    for (const struct pull_call *call = pull->first; call != NULL; call = call->next) {
        pull->fresh |= call->op != PULL_TAKE; /* the rest of the ends: the next step */
        look |= call->op == PULL_TAKE && !call->held;
    }
    if (look) {
        pull->woken = false;
        pull->looked_ms = semel__endpoint_now_ms();
    }
    pthread_mutex_unlock(&pull->lock);
    semel__arena_reset(&pull->arena);
    for (const struct pull_call *call = ends; call != NULL; call = call->next)
        ++*ret_n;
    semel_status status = semel__pull_ends(pull, inbox, ends, err);
    if (pull->unknown) { /* takes wait for the next step, which knows how many there are now */
        semel__pull_wake(pull);
        return status;
    }
    return status == SEMEL_OK && look ? serve_takes(pull, inbox, ret_n, err) : status;
}
