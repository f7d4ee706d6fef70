/* SPDX-License-Identifier: MIT
 *
 * keeper.h: keys of many requests at a time, kept in a store by a thread of its own.
 *
 * What it is: loops hand in jobs, claims of keys and their ends; a lane takes all that wait, does them in one
 * transaction, sorted, and hands them back with one wake-up per loop and group. A group that fails is done again one by
 * one. Not a thread: whoever owns one calls _step for its lane, again and again, until it reports the end.
 *
 * Lanes: a store that can have several transactions open (PostgreSQL) has two, each with a connection: claims, and ends.
 * Others (SQLite) have one. The lane of the ends also renews all leases of this process in one statement, every third of
 * the lease, and does the housekeeping: what expired becomes unknown (keys.h).
 *
 * A claim is answered as soon as it is known: it is decided, or the store is away (`failed`). A claim whose COMMIT is
 * in doubt is released under its token before anything else is done about its key (P98): nothing was sent for it.
 *
 * An end is tried until it is stored, or until `give_up_us`; the first failure is reported (`late`), so that its
 * client can be answered, and its job comes back when it is over.
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
/* Waits at most wait_ms for work, and does one group of it. false: it was stopped and nothing is left to be done, or the
 * time for that is over. One thread per lane; while the store is away it does not wait for it. */
bool semel__keeper_step(struct semel_keeper *keeper, size_t lane, int64_t wait_ms);
/* Lets the lanes end when nothing is left, at most after deadline_ms. Any thread; after the loops have ended. */
void semel__keeper_stop(struct semel_keeper *keeper, int64_t deadline_ms);
/* After all lanes have ended. */
void semel__keeper_free(struct semel_keeper *keeper);

/* ---- by any thread ---- */

/* Is the store there? The last reason why it was not; "": none is known. */
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
