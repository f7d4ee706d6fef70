/* SPDX-License-Identifier: MIT
 *
 * handle.h: the inside of a handle, private to libsemel and to the rooms built on it.
 *
 *   handle.c   opening, closing, the frame of every call;      message.c  converts public values and core's
 *              begin, done, fail                               values.c   names and small things
 *   process.c  process, process_set, work                      claim.c    claim, renew, finish, release, take, put
 *   keys.c     idempotency keys                                keep.c     consumers, tick, outbox
 *
 * Every public function is framed: semel__enter checks the handle and whose transaction it uses, and semel__leave
 * restores the store. Between them core's transactions are either real transactions or part of the caller's
 * (semel_store_join).
 *
 * Invariants: outside a frame the store has no transaction of ours open and does not join; if one is found open
 * anyway the handle is broken, and everything but closing returns CLOSED from then on. Nothing survives a call except
 * `struct semel`.
 */
#ifndef SEMEL_LIB_HANDLE_H
#define SEMEL_LIB_HANDLE_H

#include <sys/types.h>

#include "core/consumer.h"
#include "core/house.h"
#include "semel/semel.h"
#include "store/sqlite_store.h"

#define SEMEL_PENDING_MAX 10000
#define SEMEL_CLAIMS_MAX 1000
#define SEMEL_ENDED_MAX 1000
#define SEMEL_BEGUN_KEYS_MAX 100

/* A message that this handle has begun or claimed, and its token. */
struct held {
    struct semel_str consumer, source, id;
    int64_t token;
    uint64_t number; /* of its begin: their order */
    int attempt;
    char bytes[];
};

/* In the order in which they were begun or claimed. */
struct held_list {
    struct held **items;
    size_t n, cap;
};

/* What a savepoint of the caller's brings back. */
struct mark {
    int open;
    size_t n_deeds;
};

struct semel {
    struct semel_store *store;
    struct semel_random rng;
    char owner[128]; /* host-pid-random */
    pid_t pid;
    bool loose;  /* a begin without its end may commit, and nobody reports the end of a transaction */
    bool inside; /* a handler runs */
    bool taking; /* a `taken` of semel_inbox_take runs */
    bool broken;
    char consumer[SEMEL_ID_MAX + 1];
    struct semel_policy policy; /* for the current call */
    bool order_said;
    const char *hint; /* or NULL: of the last call */
    struct semel__handler handler;
    struct semel_inbox inbox;
    struct semel_arena arena;           /* lives until the next call */
    struct semel_arena sheet;           /* lives as long as one call of a set-based handler */
    struct held_list pending;           /* begun in the open transaction, no end yet */
    struct held_list ended;             /* the last ones that ended in it, which a savepoint may undo */
    uint64_t begins;                    /* so far */
    int refused;                        /* ends in the open transaction that prevent its commit */
    int64_t keys[SEMEL_BEGUN_KEYS_MAX]; /* tokens of idempotency keys begun in the open transaction, no end yet */
    int n_keys;
    struct semel_sqlite_watch watch; /* while it is on, what follows is kept, and savepoints keep the keys right */
    int open;                        /* messages that were begun in the open transaction and have no end */
    struct mark *marks;              /* of its savepoints, by number */
    int64_t *deeds;                  /* the tokens of its keys, as they were begun and (negative) ended */
    size_t n_marks, cap_marks, n_deeds, cap_deeds;
    struct held_list claims;               /* the last claims, so that a late end can be kept as evidence */
    struct semel_buf known;                /* the settings that were read last, of known_consumer */
    char known_consumer[SEMEL_ID_MAX + 1]; /* "": none are known */
    struct semel_house house;              /* of ticks */
};

/* ---- handle.c ---- */

/* semel_open and semel_wrap_sqlite with store options; NULL: those of the flags. */
semel_status semel__handle_open(struct semel **ret, const char *url, unsigned flags,
                                const struct semel_store_options *options, struct semel_error *err);
semel_status semel__handle_wrap(struct semel **ret, struct sqlite3 *db, unsigned flags,
                                const struct semel_store_options *options, struct semel_error *err);

enum semel_whose { SEMEL_WHOSE_CALLER, SEMEL_WHOSE_OURS, SEMEL_WHOSE_EITHER };
/* INVALID: no handle, inside a handler, the wrong kind of transaction. CLOSED: after fork(), or a broken handle. */
semel_status semel__enter(struct semel *s, enum semel_whose whose, struct semel_error *err);
/* Returns the given status, or CLOSED when the handle is broken now. */
semel_status semel__leave(struct semel *s, semel_status status, struct semel_error *err);
/* Commits a small transaction in which core has no part. After UNKNOWN the connection is a new one. */
semel_status semel__commit(struct semel *s, struct semel_error *err);
/* Loads the settings of the consumer into s->policy. */
semel_status semel__use_consumer(struct semel *s, struct semel_str consumer, struct semel_error *err);
/* The same for a batch of our own, which may begin with the settings that the batch before it used: the settings are
 * read meanwhile, and semel__consumer_same checks them; if they differ, s->policy has the new ones. */
semel_status semel__use_consumer_early(struct semel *s, struct semel_str consumer, bool *ret_assumed,
                                       struct semel_error *err);
semel_status semel__consumer_same(struct semel *s, bool *ret_same, struct semel_error *err);
/* If the consumer has not set its order, the message decides it. */
semel_status semel__use_order(struct semel *s, const struct semel__msg *msg, struct semel_error *err);

/* ---- claim.c ---- */

/* What came of one message of many. */
struct semel_put {
    struct semel_verdict verdict;
    bool wrong;             /* it is no message that can be stored: err says why, and it was left out */
    bool undecided;         /* the store failed before it: it is not stored */
    struct semel_error err; /* where it is wrong */
};
/* semel_inbox_put for n messages of one consumer (at most SEMEL_BATCH_MAX), in one transaction where nothing fails. Not
 * OK: the store failed; what is decided stands. Copies of one id in a batch all get the answer of the first. */
semel_status semel__put_many(struct semel *s, const struct semel_msg *msgs, size_t n, struct semel_put *ret,
                             struct semel_error *err);

/* ---- handle.c: messages that were begun or claimed ---- */

/* NULL: no memory. It is in no list yet. */
struct held *semel__held_new(struct semel_str consumer, const struct semel__msg *msg);
bool semel__held_room(struct held_list *list); /* for one more; false: no memory */
void semel__held_add(struct held_list *list, struct held *held);
static inline bool semel__held_is(const struct held *held, struct semel_str consumer, struct semel_str source,
                                  struct semel_str id)
{
    return semel__str_eq(held->id, id) && semel__str_eq(held->source, source) &&
           semel__str_eq(held->consumer, consumer);
}
struct held *semel__held_by_token(const struct held_list *list, int64_t token);
void semel__held_drop(struct held_list *list, struct held *held);
void semel__held_done(struct held_list *list);

/* Before a begin: from now on a savepoint that undoes it, or its end, is noticed. */
semel_status semel__watch_savepoints(struct semel *s, struct semel_error *err);
/* Undoes what was done with keys since there were `n_deeds` of it. */
void semel__undo_deeds(struct semel *s, size_t n_deeds);

/* Does the database itself refuse to commit a message or a key without an end? */
bool semel__holds_in_store(const struct semel *s);
/* An end under this token was refused: the caller's transaction cannot commit from now on. */
semel_status semel__hold_back(struct semel *s, int64_t token, struct semel_error *err);

/* ---- message.c ---- */

/* INVALID names the argument and what would be right. */
semel_status semel__check_str(const char *what, struct semel_str s, struct semel_error *err);
semel_status semel__check_size(const char *what, size_t size, size_t least, struct semel_error *err);
semel_status semel__check_json(const char *what, struct semel_str text, size_t max, bool object,
                               struct semel_error *err);
semel_status semel__check_result(enum semel_result result, bool may_be_done, struct semel_error *err);
semel_status semel__check_consumer(const struct semel_msg *msg, struct semel_error *err);
/* Checks that there is a message with a consumer, and loads the consumer. */
semel_status semel__parse_consumer(struct semel *s, const struct semel_msg *msg, struct semel_error *err);
/* Reads the fields of the public message for core, under s->policy. A wrong field is INVALID when strict, else a defect
 * of the message, which core stores with the reason; a wrong call is always INVALID. A missing id is a defect in both
 * cases. */
semel_status semel__parse_msg(struct semel *s, const struct semel_msg *msg, bool strict, struct semel__msg *ret,
                              struct semel_error *err);
/* Reads only source and id. */
semel_status semel__parse_name(struct semel *s, const struct semel_msg *msg, struct semel__msg *ret,
                               struct semel_error *err);
/* The message as a handler sees it; strings are borrowed from `msg` and the policy. */
void semel__show_msg(const struct semel *s, const struct semel__msg *msg, struct semel_msg *ret);
void semel__show_settled(const struct semel_settled *settled, struct semel_verdict *ret);
void semel__show_lease(const struct semel_lease *lease, struct semel_verdict *ret);
/* A text for people that will be stored: well-formed, without control characters, in the arena. */
bool semel__clean_text(struct semel_arena *arena, struct semel_str text, struct semel_str *ret);

#endif
