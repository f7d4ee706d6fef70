/* SPDX-License-Identifier: MIT
 *
 * keeper.h: keys of many requests at a time, kept in a store by a thread of its own.
 *
 * What it is: loops hand in jobs, claims of keys and their ends, those of one turn together; a lane takes all that
 * wait, does them in one transaction, sorted, and hands them back with one wake-up per loop and group. A group that
 * fails is done again one by one. On PostgreSQL a group is one round trip (SEMEL_TX_ONCE); claims that take a row over
 * follow in a transaction of their own. Not a thread: whoever owns one calls _step for its lane, again and again, until
 * it reports the end.
 *
 * Lanes: a store that can have several transactions open (PostgreSQL) has two, each with a connection. Others (SQLite)
 * have one. Claims and ends share a group: a group costs a commit, so that one lane does all that waits as long as it
 * is quick; the second one begins where a group takes long, because the disk is slow, or a row is locked. The first
 * lane also renews all leases of this process in one statement, every third of the lease, and does the housekeeping:
 * what expired becomes unknown (keys.h).
 *
 * An end may find its row locked by an application that finishes keys itself, and does not commit. The first time its
 * group waits for that, unless its owner expects it (`impatient`); then it fails, and nobody waits for it again.
 *
 * A job is tried once, and comes back: done, or `failed` because the store is away or refuses it. Whoever handed it in
 * decides whether to try it again. A lost connection is made anew once per group. A claim whose COMMIT is in doubt is
 * released under its token before anything else is done about its key (P98): nothing was sent for it. Where that is not
 * possible it comes back `in_doubt`: release it later.
 *
 * Invariants: a job is handed back exactly once, in the thread of its desk; a lane never holds a transaction while it
 * waits for work; jobs that wait are bounded by those who hand them in.
 */
#ifndef SEMEL_GATEWAY_KEEPER_H
#define SEMEL_GATEWAY_KEEPER_H

#include <stdatomic.h>

#include "core/keys.h"

#define SEMEL_KEEPER_LANES_MAX 2
#define SEMEL_KEEPER_LEASE_MS 60000
#define SEMEL_KEEPER_WHY 300 /* bytes of a reason */

struct semel_keeper;

/* ---- by whoever owns the threads ---- */

struct semel_keeper_settings {
    const struct semel_store_ops *const *drivers; /* borrowed as long as the keeper lives */
    const char *url;
    struct semel_store_options options;
    /* NULL, or: how a store is opened instead, for who has one already (SQLite has one connection per process). */
    semel_status (*open)(void *ctx, struct semel_store **ret, struct semel_error *err);
    void *open_ctx;
    int64_t lease_ms;  /* of a claim; renewed while its call runs */
    const char *owner; /* of the leases; must be this process's alone */
};
void semel__keeper_settings_init(struct semel_keeper_settings *settings);
/* Copies url and owner; opens nothing yet. */
semel_status semel__keeper_new(struct semel_keeper **ret, const struct semel_keeper_settings *settings,
                               struct semel_error *err);
size_t semel__keeper_lanes(const struct semel_keeper *keeper);
/* Connects now, in place of the first _step: so that a start can fail early. */
semel_status semel__keeper_open(struct semel_keeper *keeper, size_t lane, struct semel_error *err);
/* Waits at most wait_ms for work, and does one group of it. false: it was stopped, and nothing is left to be done or
 * the time for that is over. One thread per lane; while the store is away it does not wait for it. */
bool semel__keeper_step(struct semel_keeper *keeper, size_t lane, int64_t wait_ms);
/* Lets the lanes end when nothing is left, at most after deadline_ms. Any thread; after the loops have ended. */
void semel__keeper_stop(struct semel_keeper *keeper, int64_t deadline_ms);
/* After all lanes have ended. */
void semel__keeper_free(struct semel_keeper *keeper);

/* ---- by a loop ---- */

struct semel_keeper_desk;

/* A claim or an end. It and what it points to belong to the keeper from _submit until _collect returns it. */
struct semel_keeper_job {
    bool is_end;
    struct semel_key_claim claim;   /* in: want (its lease is set by the keeper) and effect; out: act, why, token */
    struct semel_key_ending ending; /* in: all but `applied`; scope and key are in claim.want */
    bool failed;                    /* out: err has the reason; nothing else is known */
    bool in_doubt;                  /* out, of a claim that failed: it may hold its key, under claim.token */
    int64_t now_us;                 /* out: the store's clock */
    int64_t leased_until_us;        /* out, of a claim that may run: by semel__boot_us; it is renewed from now on */
    /* Out: of a claim that may not run the row as it was found; of an end that was not applied the row as it is. */
    struct semel_idempotency row;
    struct semel_error err;
    struct semel_arena arena; /* of what came out; the owner calls _init and _done */
    void *owner;
    struct semel_keeper_desk *desk;
    struct semel_keeper_job *next;
};

/* Where the jobs of one loop come back. */
struct semel_keeper_desk {
    struct semel_keeper *keeper;
    void (*wake)(void *ctx); /* called by a lane, once per group: the loop calls _collect soon */
    void *ctx;
    struct semel_keeper_job *out, **out_last; /* of the loop: handed in, and not flushed yet */
    struct semel_keeper_job *first, **last;   /* under the keeper's lock, from here on */
    bool called;
};
void semel__keeper_desk_init(struct semel_keeper_desk *desk, struct semel_keeper *keeper, void (*wake)(void *ctx),
                             void *ctx);
void semel__keeper_submit(struct semel_keeper_desk *desk, struct semel_keeper_job *job); /* with the next _flush */
void semel__keeper_flush(struct semel_keeper_desk *desk); /* at the end of the loop's turn, and when it gives up */
/* All jobs that have come back, linked by `next`; NULL: none. */
struct semel_keeper_job *semel__keeper_collect(struct semel_keeper_desk *desk);
int64_t semel__keeper_lease_us(const struct semel_keeper *keeper);

/* ---- by any thread ---- */

/* Is the store there? ret_why: why not; "" if it is. */
bool semel__keeper_up(struct semel_keeper *keeper, char ret_why[SEMEL_KEEPER_WHY]);

struct semel_keeper_counts {
    _Atomic uint64_t groups, jobs; /* transactions that were committed, and what was in them */
    _Atomic uint64_t again;        /* groups that failed and were done one by one */
    _Atomic uint64_t in_doubt;     /* commits whose outcome was not known */
    _Atomic uint64_t expired;      /* rows that the housekeeping changed */
    _Atomic uint64_t renewals_failed;
};
const struct semel_keeper_counts *semel__keeper_counts(const struct semel_keeper *keeper);

#endif
