/* SPDX-License-Identifier: MIT
 *
 * house.h: housekeeping: changes that stored rows need as time passes, with or without a worker of their consumer.
 *
 * A round visits consumers, each under its stored settings: it ends expired leases, decides gaps that timed out, wakes
 * rows that are first in their key and wait without a due time, and purges. No handler runs: a row that may run is left
 * for a worker to take.
 *
 * Invariants: a round touches at most `max` rows, waits for no lock, and is safe in any number of processes. It begins
 * with a random consumer, so that a busy one does not starve the others; a step is done for all consumers before the
 * next one begins: a purge of one must not delay the recovery of another. A consumer whose settings cannot be read is
 * passed over and reported at the end.
 */
#ifndef SEMEL_CORE_HOUSE_H
#define SEMEL_CORE_HOUSE_H

#include "core/inbox.h"

#define SEMEL_HOUSE_MAP(X)    \
    X(RECOVERED, "recovered") \
    X(DECIDED, "decided")     \
    X(WOKEN, "woken")         \
    X(PURGED, "purged")

enum semel_house_step {
#define X(name, text) SEMEL_HOUSE_##name,
    SEMEL_HOUSE_MAP(X)
#undef X
        SEMEL_HOUSE_STEPS
};
const char *semel__house_step_name(enum semel_house_step step); /* recovered, decided, woken, purged */

/* Every step for the one consumer of the inbox, by its policy, at most max rows each; *ret_n in all. */
semel_status semel__house_keep(struct semel_inbox *inbox, size_t max, size_t *ret_n, struct semel_error *err);

struct semel_house_place;
struct semel_house {
    struct semel_inbox inbox;
    struct semel_policy policy;       /* of the consumer that is visited */
    struct semel__handler none;       /* no handler runs */
    struct semel_arena arena, sheet;  /* live as long as one round; as one visit */
    struct semel_house_place *places; /* where the steps of each consumer continue */
    size_t n_places, room;
};
/* The pointers are borrowed for the life of the house; `owner` names who acts. */
void semel__house_init(struct semel_house *house, struct semel_store *store, struct semel_random *rng,
                       struct semel_str owner);
void semel__house_done(struct semel_house *house);

struct semel_house_round {
    /* In. */
    bool (*wants)(void *ctx, struct semel_str consumer); /* NULL: every consumer */
    void *ctx;
    size_t max; /* 1 or more */
    /* Out, after a failure too. */
    size_t done[SEMEL_HOUSE_STEPS], n; /* rows that were touched: by step, and in all */
    size_t consumers;                  /* that were wanted */
    struct semel_error damage;         /* the first consumer whose settings could not be read; status OK: none */
};
/* OK: each wanted consumer had its turn, or is `damage`. */
semel_status semel__house_round(struct semel_house *house, struct semel_house_round *round, struct semel_error *err);
/* Housekeeping of idempotency keys: ends leases that ran out, and deletes bodies and keys whose lifetime is over. */
semel_status semel__house_keys(struct semel_house *house, size_t max, size_t *ret_n, struct semel_error *err);

#endif
