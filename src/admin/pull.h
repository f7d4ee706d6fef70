/* SPDX-License-Identifier: MIT
 *
 * pull.h: the inside of a `pull` route's endpoint, for pull*.c.
 *
 *   pull.c       the endpoint: calls in, taken out by the thread that steps, long polls held
 *   pull_read.c  from a request to a call
 *   pull_work.c  calls on the inbox: take, renew, settle, release
 *   pull_tell.c  leased messages and ends as JSON
 *
 * Invariants: a call belongs to the endpoint's list, or to the step that took it out, and is answered by whom it
 * belongs to. Ends go before takes: what is finished frees the order keys that takes wait for.
 */
#ifndef SEMEL_ADMIN_PULL_H
#define SEMEL_ADMIN_PULL_H

#include "admin/serve_private.h"
#include "core/inbox.h"
#include "lib/handle.h"

#define SEMEL_PULL_CALLS 4096 /* that wait at a time */
#define SEMEL_PULL_GROUP 256  /* ends in one transaction */
#define SEMEL_PULL_MAX 1000   /* messages a take */
#define SEMEL_PULL_WAIT_US (INT64_C(60) * 1000000)
#define SEMEL_PULL_BYTES ((size_t)8 << 20) /* of an answer; the first message always goes */

enum pull_op { PULL_TAKE, PULL_RENEW, PULL_SETTLE, PULL_RELEASE };

struct pull_call {
    struct pull_call *next;
    struct semel_http_exchange *x;
    struct semel_arena arena;
    enum pull_op op;
    bool held;               /* a take that found nothing, and waits */
    int64_t deadline_ms;     /* of a take. Held: then it is answered empty; else: then with 503 */
    int64_t wait_ms;         /* of a take */
    int64_t token, lease_us; /* lease: 0, the consumer's */
    size_t max;
    struct semel_ending ending;
    struct semel_lease lease;
    bool lost;
    enum semel_state state; /* lost: of the row, where it is known; settled: what it became */
};

struct semel_pull {
    struct semel_serve *serve;
    const struct semel_route *route;
    struct semel_pull *next;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pull_call *first, **last;
    size_t n;
    bool open, fresh, woken; /* fresh: calls came that nobody has looked at */
    int64_t looked_ms;       /* when held takes were tried last */
    /* of the thread that steps */
    bool full, unknown; /* unknown_max is reached; an end of the last step left an unknown outcome */
    struct semel_arena arena;
    struct held_list claims; /* the last ones that were taken here, so that a late end is kept as evidence */
};

/* ---- pull_read.c: NULL: the exchange was answered ---- */
struct pull_call *semel__pull_read(struct semel_pull *pull, enum pull_op op, struct semel_http_exchange *x);
void semel__pull_call_free(struct pull_call *call);

/* ---- pull_work.c: calls that were taken out of the list; each is answered and freed but where it says so ---- */
semel_status semel__pull_ends(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *calls,
                              struct semel_error *err);
/* *ret_n: how many messages were taken. 0, and OK: the call is as it was, not answered. */
semel_status semel__pull_one(struct semel_pull *pull, struct semel_inbox *inbox, struct pull_call *call, size_t *ret_n,
                             struct semel_error *err);

/* ---- pull_tell.c ---- */
/* How many of the leases the answer has room for, the first always; 0: no memory. The call is answered and freed. */
size_t semel__pull_tell_fits(const struct semel_lease *leases, size_t n);
void semel__pull_tell_taken(struct semel_pull *pull, struct pull_call *call, const struct semel_lease *leases,
                            size_t n);
void semel__pull_tell_none(struct pull_call *call);
void semel__pull_tell_end(struct semel_pull *pull, struct pull_call *call);
void semel__pull_tell_later(struct pull_call *call, const char *why);

#endif
