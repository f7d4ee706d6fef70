/* SPDX-License-Identifier: MIT
 *
 * work.h: private to the inbox. One transaction's worth of messages, from admission to settlement.
 *
 * An item is one message id of the batch with its copies. A work is a run of items, in run order, that share one
 * transaction. The steps fill the item from top to bottom; after a rollback only the members above
 * "one try" are still valid, so that the next try starts from the message again.
 */
#ifndef SEMEL_CORE_WORK_H
#define SEMEL_CORE_WORK_H

#include "core/inbox.h"
#include "core/transaction.h"

struct copy {
    const struct semel__msg *msg;
    struct semel_settled *out;
    bool conflict; /* the same id with another payload, within the batch */
    struct copy *next;
};

struct item {
    struct semel__msg *msg;
    size_t place; /* in order of arrival */
    size_t rank;  /* of a delivery: in the order of (source, id) */
    struct copy *copies;
    struct semel_settled *out;
    struct semel_lease *lease; /* NULL: a delivery that is not claimed */
    bool settled;              /* has its end: left out of everything that follows */
    bool frees;                /* its end may free its business keys, or have them expire */
    bool may_have_crashed;
    bool deferred; /* a stored row that must run alone: left out of its batch, and run after it */
    bool forced;   /* its transaction could not even be kept open: record `ending`, do not run it again */
    struct semel_ending ending;
    int64_t adopt_until_us;         /* a claim whose commit was unknown: its row, if it is there, carries this lease */
    enum semel_row_status intended; /* an end whose commit was unknown: its row, if it is there, has this status */

    /* one try */
    struct semel_admit *admit;
    const struct semel_row *row; /* the row that was there; NULL: this transaction inserted it */
    struct semel_key *key;
    bool had_head; /* the key had an unfinished row before this transaction */
    struct semel__verdict verdict;
    struct semel_progress progress; /* what the row will be when the transaction commits */
    bool changed;                   /* `progress` has to be written */
    bool adopted;                   /* ... as it was: only the payload is stored, which the row was without */
    bool superseded;                /* a corrected copy takes its place: it keeps its payload, its version is open */
    bool removed;
    bool ended; /* ran and reported an end other than success */
    bool left;  /* depends on one that failed in this transaction: taken out of it, and run in the next one */
    bool fenced;
    const struct semel_error *damage; /* the row, or the versions of its key, cannot be read; NULL: they can */
};

/* What a piece of work does. */
enum work_mode {
    /* Deliveries, admitted. */
    WORK_PROCESS,     /* inserted as `completed`, the handlers run inside */
    WORK_CLAIM,       /* inserted as `processing` */
    WORK_CLAIM_ALONE, /* the same, each to run by itself */
    WORK_STORE,       /* stored to be run later: what may run keeps its place and is not at its effect */
    /* Stored rows, fetched under the token of their lease. */
    WORK_RUN_LEASED, /* each must still be the first of its key; the handlers run inside */
    WORK_END,        /* finished, released or renewed */
    WORK_RECOVER,    /* their lease has run out */
    /* Stored rows, fetched by whoever has no lease. */
    WORK_TAKE,       /* due rows, claimed together */
    WORK_TAKE_ALONE, /* due rows, each to run by itself */
    WORK_GAPS,       /* due rows: what needs no handler is decided, nothing is claimed */
    WORK_SWEEP,      /* heads without a due time are made due */
    WORK_COMMAND,    /* a person, or a reconcile, decides */
    WORK_READ,       /* nothing is written */
};

struct work {
    struct semel_inbox *inbox;
    enum work_mode mode;
    struct item **items;
    size_t n;
    bool begun;           /* a transaction was open: it was not the connection that failed */
    bool positions_moved; /* the positions of the whole batch were moved in this transaction */
    int64_t now_us;
    struct semel_admit_batch batch;
    const struct item **holders; /* of batch.business, one each: the first item that wants it */
    struct semel_key *keys;
    struct semel_key *found; /* the same keys as the store gave them; admit.c moves them on by what has ended */
    size_t n_keys;
    int64_t parked; /* rows of the route that wait, those that this work parks included; SEMEL_NONE: not counted yet */
    int64_t large;  /* likewise, those above payload_max that are kept */
    size_t culprit; /* index of the item whose handler failed; n: nobody knows */
};

/* What the mode means, for the steps that serve several. */
static inline bool work_claims(const struct work *work) /* rows are inserted as `processing`, not as `completed` */
{
    return work->mode == WORK_CLAIM || work->mode == WORK_CLAIM_ALONE || work->mode == WORK_STORE;
}

static inline bool work_alone(const struct work *work) /* claims must run alone */
{
    return work->mode == WORK_CLAIM_ALONE || work->mode == WORK_TAKE_ALONE || work->mode == WORK_GAPS;
}

static inline bool work_leased(const struct work *work) /* a row counts only under the token of its lease */
{
    return work->mode == WORK_RUN_LEASED || work->mode == WORK_END || work->mode == WORK_RECOVER;
}

static inline bool work_starts(
    const struct work *work) /* stored rows may start: they take the business keys they want */
{
    return work->mode == WORK_TAKE || work->mode == WORK_TAKE_ALONE || work->mode == WORK_GAPS ||
           work->mode == WORK_COMMAND;
}

static inline bool work_impatient(const struct work *work) /* waits for no lock: what somebody else has is left alone */
{
    return work->mode == WORK_TAKE || work->mode == WORK_TAKE_ALONE || work->mode == WORK_GAPS ||
           work->mode == WORK_SWEEP || work->mode == WORK_RECOVER;
}

/* admit.c, inside a transaction: admits the rows and decides on every item. */
semel_status semel__work_admit(struct work *work, struct semel_error *err);
/* Reads leased items again under lock; items with a stale token are fenced. */
semel_status semel__work_fetch(struct work *work, struct semel_error *err);
/* Writes what the items have become. */
semel_status semel__work_settle(struct work *work, struct semel_error *err);
/* Admits and writes the items of a WORK_STORE; items that may run are due at once. */
semel_status semel__work_put(struct work *work, struct semel_error *err);
/* Sets the facts about the business keys that the item wants, for the verdict on it. */
void semel__item_intent(const struct work *work, const struct item *item, struct semel_facts *facts);
/* Was the item judged by a business key that `failed`, or an item which is left out, holds in this transaction? */
bool semel__item_judged_by(const struct work *work, const struct item *item, const struct item *failed);
/* Does the row wish for a business key that the message does not name? This transaction has not locked that key. */
bool semel__item_wishes_more(const struct item *item);

/* A token for a claim of this row; NULL: it has none yet. */
int64_t semel__work_token(struct work *work, const struct semel_row *row);

/* inbox.c: makes one item per message id, in run order, and sets *n to their number. Memory from the arena. */
semel_status semel__items_prepare(struct semel_inbox *inbox, struct semel_arena *arena, const struct semel__msg *msgs,
                                  size_t *n, struct semel_settled *out, struct item ***ret_items,
                                  struct semel_error *err);
/* After the commit: acts for the deliveries, counts, alerts. */
semel_status semel__work_report(struct work *work, struct semel_error *err);
void semel__item_end(struct work *work, struct item *item); /* what the row becomes by item->ending */
/* Moves the items that have no end yet to the front, in their order, and returns their number. */
size_t semel__items_open(struct item **items, size_t n);
/* Not OK: so many messages have failed in a row that the route pauses. */
semel_status semel__items_may_run(const struct semel_inbox *inbox, struct semel_error *err);
/* If a message with the key of items[done - 1] was not accepted (the parking bound), the items of that key from `done`
 * on stay with the source, too, although their turn may have come meanwhile. Returns their number. */
size_t semel__items_held(const struct semel_inbox *inbox, struct item **items, size_t done, size_t n);
/* Runs transactions over the items, and cuts the batch as needed, until every item is settled. */
semel_status semel__items_run(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err);

/* leases.c: claims in one transaction; ends of leases in one transaction. */
semel_status semel__items_claim(struct semel_inbox *inbox, struct item **items, size_t n, bool alone,
                                struct semel_error *err);
/* APART: a release, and next it runs alone. */
enum lease_op { LEASE_FINISH, LEASE_RELEASE, LEASE_APART, LEASE_RENEW, LEASE_RECOVER };
semel_status semel__items_lease(struct semel_inbox *inbox, struct item **items, size_t n, enum lease_op op,
                                struct semel_error *err);
/* The environment failed in the middle of a run, with `status`: releases the leases of items without an end; no attempt
 * counts. Items that ran together run alone next, in case one of their messages caused the failure. An item that ran
 * alone and lost its connection keeps its lease, so that its start counts. */
void semel__items_give_back(struct semel_inbox *inbox, struct item **items, size_t n, semel_status status);
/* Items for leases, with their endings if there are any, sorted into run order; memory from the inbox's arena. */
semel_status semel__items_of_leases(struct semel_inbox *inbox, struct semel_lease *leases,
                                    const struct semel_ending *endings, size_t n, struct item ***ret_items,
                                    struct semel_error *err);
/* Runs the handlers of claimed items with no transaction open, and commits their ends. */
semel_status semel__items_outside(struct semel_inbox *inbox, struct item **items, size_t n, struct semel_error *err);
/* Is this a failure of the environment, which charges no message? */
bool semel__is_environment(semel_status status, const struct semel_error *err);

#endif
