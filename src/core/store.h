/* SPDX-License-Identifier: MIT
 *
 * store.h: what a database must be able to do, over batches. The contract of every driver.
 *
 * Core decides; a store fetches facts and writes. A driver contains no rule: it does not know what a
 * verdict is, which move is legal or when something is due. It knows its database: how to lock in
 * order, insert first, read what was refused, and commit durably.
 *
 * Rules for all functions
 *  - A handle belongs to one thread. Functions block on the database only, and never longer than the
 *    handle's time-outs.
 *  - Arguments are borrowed until return. What is read is copied into the caller's arena.
 *  - Statuses: OK. RETRY: nothing was changed by this call, the transaction (if any) must be rolled
 *    back; err->cls says why: TRANSIENT is contention (deadlock, serialization, busy row), ENVIRONMENT
 *    is the world (full disk, time-out, lost server). INVALID: our own input, a missing table (BROKEN) or,
 *    from a handler's statement or a deferred constraint, the message's fault (PERMANENT, TRANSIENT).
 *    UNKNOWN: only from commit. CLOSED: the connection is gone and so is the transaction; reopen.
 *  - err->text has the backend's primary message and never quotes data (P71).
 *
 * The order of locks is always: order keys ascending, business keys ascending, inbox rows ascending by
 * (source, id), then whatever the handler touches, positions ascending by (source, partition) last. Every array below
 * is passed already sorted and free of repeats; the wrappers assert it. Byte order decides, never a collation.
 *
 * Times come from the store's clock (`begin` returns it), so that machines with different clocks
 * agree on leases and due times (P45).
 */
#ifndef SEMEL_CORE_STORE_H
#define SEMEL_CORE_STORE_H

#include "base/clock.h"
#include "base/mem.h"
#include "core/policy.h"
#include "core/row.h"

struct semel_store;

/* ---- facts and changes ---------------------------------------------------------------------------- */

#define SEMEL_SKIPPED_MAX 1000 /* versions of a key that ended without effect ahead of a gap */

/* An order key of this batch. In: `key`, `by_version`. Out (admit, fetch), read under its lock and not counting rows
 * that this transaction inserted. The head is the first row in the key's order (semel__live_in_order): by (version,
 * arrival) when by_version, else by arrival. */
struct semel_key {
    struct semel_str key;
    bool by_version;
    int64_t last_version; /* out: highest version applied; SEMEL_NONE: none yet */
    /* Out: versions above the last one that ended without effect ahead of a gap, ascending (version.h). */
    const int64_t *skipped;
    size_t n_skipped;
    int64_t head_arrival; /* out: arrival of the head; SEMEL_NONE: no row is unfinished */
    int64_t head_version; /* out: version of the head; SEMEL_NONE: it has none, or there is no head */
    int64_t parked;       /* out: how many rows in its order are `waiting` (counting may stop at 100,000) */
    bool open;            /* out: a row of the key is `processing` or `unknown`: its effect may come, or have come */
    bool damaged;         /* out: what it says of versions is none of ours, and left out: no rule may go by it */
    bool busy;            /* out: somebody else has it, and it was not waited for; nothing else is known of it then */
    bool shut;            /* core's: an earlier message of the key, in this batch, stays with its source */
};

/* A business key of this batch, to be held by message (source, id). In: all but what is marked `out`. */
struct semel_business {
    struct semel_str key;
    struct semel_str source, id;
    int64_t expires_us;                    /* SEMEL_NONE: for ever */
    bool taken;                            /* out: another message holds it (an expired holder does not) */
    bool inserted;                         /* out: it was free and is now held by (source, id) */
    struct semel_str held_source, held_id; /* out, when taken */
    bool unfinished;                       /* out, when taken: the holder's row is there, and unfinished */
    int64_t wanted; /* out, when taken: how many messages wish for it (counting may stop at 100,000) */
};

/* One arrival. In: `row` whole but for arrival.
 * The payload and headers in `row` are stored only when row.kept. */
struct semel_admit {
    struct semel_row row;
    size_t place;  /* in: its place in the order of arrival within the batch */
    bool inserted; /* out: there was none; row.arrival is filled in */
    /* Out, when not inserted: the row that is there, locked. A final row never changes: it need not be locked, and only
     * its key, arrival, fingerprint, live, received, updated and kept need be given. */
    struct semel_row found;
    bool damaged; /* out: a row is there but cannot be read; `damage` says why, `found` is void */
    struct semel_error damage;
    int64_t watermark_us; /* out: of (consumer, source), read in a statement after the insert (P60); SEMEL_NONE */
};

struct semel_admit_batch {
    struct semel_str consumer;
    int64_t now_us;
    struct semel_key *keys;
    size_t n_keys;
    struct semel_business *business;
    size_t n_business;
    struct semel_admit *items;
    size_t n_items;
};

/* Rows to be read again under lock. In: source, id and `frees` of each. */
struct semel_fetched {
    struct semel_str source, id;
    bool frees;            /* its end may change its business keys: they are locked before the rows */
    bool present, damaged; /* out */
    struct semel_row row;  /* out; with payload and headers */
    struct semel_error damage;
};

struct semel_fetch_batch {
    struct semel_str consumer;
    int64_t now_us;
    bool impatient;         /* wait for no lock: a key that somebody else has is `busy`, a row is not `present` */
    struct semel_key *keys; /* locked first; facts out, as in admit */
    size_t n_keys;
    /* Taken next, as in admit, but without waiting for somebody who is taking one at the moment: RETRY, contention. */
    struct semel_business *business;
    size_t n_business;
    struct semel_fetched *items;
    size_t n_items;
};

/* A wish of message (source, id) for a business key, which it takes when it starts. */
struct semel_want {
    struct semel_str key, source, id;
};

/* The business keys that message (source, id) holds expire at until_us; SEMEL_NONE: never. */
struct semel_hold {
    struct semel_str source, id;
    int64_t until_us;
};

enum semel_payload { SEMEL_PAYLOAD_AS_IS, SEMEL_PAYLOAD_CLEAR, SEMEL_PAYLOAD_PUT };

/* What a row becomes. */
struct semel_change {
    struct semel_str source, id;
    enum semel_state from;  /* what it is now; the update applies only to a row that still is */
    bool fresh;             /* this transaction inserted it: judged as a move from ABSENT */
    int64_t token;          /* SEMEL_NONE, or the fencing token that the row must still carry */
    struct semel_live live; /* the new values, all of them */
    int64_t updated_us;     /* its updated_at, which never falls */
    bool remove;            /* take the fresh row away again (parking bound); live is ignored */
    enum semel_payload payload;
    const struct semel__msg *put; /* for PAYLOAD_PUT: whose payload and headers, and fingerprint if the row has none */
    bool log_attempt;             /* add an attempt row: number live.attempts, who `worker`, class and text of live */
    bool release_business;        /* free the business keys that this message holds, and make due who waits for one */
    bool wish_business;           /* ... and it wishes for them from now on */
    bool applied;                 /* out: false when the row was not `from` or not under `token` any more */
};

/* What a key becomes. */
struct semel_key_change {
    struct semel_str key;
    int64_t last_version; /* SEMEL_NONE: as it is; else raised to this, never lowered */
    bool wake; /* the row that comes first in its order (by version when by_version, else by arrival), if it is
                           * `waiting`, gets due_us = now and error_class BLOCKED */
    bool by_version;
    bool skips; /* the list of skipped versions becomes this one */
    const int64_t *skipped;
    size_t n_skipped;
};

/* Evidence for the record: an attempt row without a change, e.g. a late completion that was refused. */
struct semel_note {
    struct semel_str source, id;
    int attempt;
    enum semel_class cls;
    struct semel_str text;
};

struct semel_settle_batch {
    struct semel_str consumer, worker;
    int64_t now_us;
    bool impatient;               /* a business key that is to be freed is not waited for: RETRY, contention */
    struct semel_change *changes; /* ascending by (source, id) */
    size_t n_changes;
    struct semel_key_change *keys; /* ascending; each key of which a row entered or left the unfinished set */
    size_t n_keys;
    const struct semel_business *drop; /* business keys inserted by this transaction that are given up again */
    size_t n_drop;
    const struct semel_want *wants; /* wishes to be kept */
    size_t n_wants;
    const struct semel_want *granted; /* messages whose wishes, all of them, are over; `key` is not given */
    size_t n_granted;
    const struct semel_hold *holds;
    size_t n_holds;
    /* The same id with another payload (I11), kept under (consumer, source, id, fingerprint); a repeat raises its
     * count. */
    const struct semel__msg *const *conflicts;
    size_t n_conflicts;
    const struct semel_note *notes;
    size_t n_notes;
};

/* A bounded, unlocked look. */
enum semel_scan_kind {
    SEMEL_SCAN_DUE,     /* failed and waiting with due_us <= now, oldest due first; with their wishes */
    SEMEL_SCAN_EXPIRED, /* processing with lease_until_us < now, oldest first */
    SEMEL_SCAN_TOKEN,   /* the one with lease_token = token, of whatever consumer */
    SEMEL_SCAN_KEY,     /* those in the order of order_key, by version when by_version, else by arrival; with their
                         * wishes */
    SEMEL_SCAN_STILL,   /* order_key given: of the first `max` keys behind it of which a row waits without a due time,
                         * the first in its order; not given: what waits so with its payload and without a key, or
                         * with any_key whatever its key is */
    SEMEL_SCAN_ALL      /* by arrival, after `after_arrival`, filtered by the fields below */
};

struct semel_scan {
    enum semel_scan_kind kind;
    struct semel_str consumer;
    int64_t now_us, token, after_arrival;
    struct semel_str order_key, type; /* not given: any (ALL) */
    bool by_version;
    bool any_key;    /* STILL */
    bool kept;       /* DUE: only rows that have their payload */
    unsigned states; /* ALL: bit mask 1 << state; 0: any */
    bool with_payload;
    size_t max;
};

/* An event for the outbox (I21). In: all; id not given: the store makes a UUIDv7. */
struct semel__event {
    struct semel_str id, aggregatetype, aggregateid, type, payload, headers, destination, traceparent;
};

/* A line of the audit: who did what to which row, and why. */
struct semel_audit {
    struct semel_str consumer, source, id;
    struct semel_str who, what, reason;
    bool forced; /* past what spoke against the change */
};

/* A route's file, which set a consumer (consumer.h). Not given: none did. */
struct semel_set_by {
    struct semel_str host, file;
    int64_t at_us;
};

/* What is stored of a consumer. */
struct semel_consumer {
    struct semel_str settings; /* not given: none */
    struct semel_set_by by;
};

/* What a change of settings may reinterpret (consumer.h). */
enum semel_affected {
    SEMEL_AFFECTED_ORDERED,    /* rows with an order key that are waiting, failed or processing */
    SEMEL_AFFECTED_VERSIONED,  /* rows with an order key and a version that are unknown or dead */
    SEMEL_AFFECTED_BELOW,      /* waiting and failed rows below a version, of keys without a last version */
    SEMEL_AFFECTED_DOUBTED,    /* waiting and failed rows of which an attempt may have had its effect: all that were
                                * tried, but those whose only attempt reported that it failed */
    SEMEL_AFFECTED_SOURCED,    /* rows with a source */
    SEMEL_AFFECTED_SOURCELESS, /* rows without one */
    SEMEL_AFFECTED_ANY,        /* rows */
    SEMEL_AFFECTED_KEYS,       /* order keys */
    SEMEL_AFFECTED_WATERMARKS,
    SEMEL_AFFECTED_COUNT
};

/* How far a consumer has come in one partition of a source (I23). The epoch is raised by whoever gets the partition,
 * and by an operator who sets the position: a worker of an earlier epoch is fenced. */
struct semel_position {
    struct semel_str source;
    int32_t partition;
    int64_t offset; /* the next one to be read; SEMEL_NONE: none is stored */
    int64_t epoch;  /* from 1 */
    int64_t updated_us;
    bool fenced; /* out of move: the epoch is another one */
};

#define SEMEL_CONFLICTS_MAX 100    /* of a message: when one more comes, the one that came longest ago goes */
#define SEMEL_POSITIONS_MAX 100000 /* of a consumer */

/* ---- the driver ------------------------------------------------------------------------------------- */

enum semel_tx { SEMEL_TX_OWN, SEMEL_TX_JOIN }; /* JOIN: the caller has begun, and will commit */

struct semel_store_options {
    const struct semel_clock *clock; /* where the database has no clock of its own; NULL: the machine's */
    struct semel_random *rng;        /* for new ids; NULL: seeded by the system */
    int lock_timeout_ms;             /* 0: 5000 */
    bool create;                     /* make the database when it is missing */
    bool migrate;                    /* bring the schema up to date on opening */
};

/* The `code` of an error with which a store is not opened as it is. No database has a number below zero. */
enum semel_store_refusal {
    SEMEL_STORE_NO_DATABASE = -4, /* create, and migrate */
    SEMEL_STORE_NO_SCHEMA = -1,   /* there are no tables of ours: migrate */
    SEMEL_STORE_OLD_SCHEMA = -2,  /* migrate */
    SEMEL_STORE_NEW_SCHEMA = -3,  /* this program is too old for it */
};

#define SEMEL_STORE_ATOMIC 1u     /* handlers can write in the store's transaction */
#define SEMEL_STORE_CONCURRENT 2u /* several transactions can be open at once (else one writer at a time) */
#define SEMEL_STORE_DURABLE 4u    /* a committed row survives the process */
#define SEMEL_STORE_SQL 8u        /* operators can query it (store/query.h) */

/* What a purge finds. */
struct semel_aged {
    size_t n;          /* rows that may go */
    size_t looked;     /* rows that were looked at; where `max` was found, a number from `n` on */
    int64_t latest_us; /* the latest time of their messages; SEMEL_NONE: none has one */
};

struct semel_store_ops {
    const char *name;
    unsigned capabilities;
    size_t size; /* of the driver's struct, which starts with struct semel_store */

    /* Opens what `location` (the URL without its scheme) names. INVALID: not a database, a newer schema than this
     * binary knows, no schema and !migrate. */
    semel_status (*open)(struct semel_store *store, struct semel_str location, struct semel_error *err);
    void (*close)(struct semel_store *store); /* rolls back what is open */
    /* A new connection to the same place, after CLOSED or UNKNOWN. Any open transaction is gone. */
    semel_status (*reopen)(struct semel_store *store, struct semel_error *err);
    /* The caller's native handle (sqlite3 *, PGconn *), for handlers. May be NULL. */
    void *(*native)(struct semel_store *store);
    semel_status (*migrate)(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err);

    semel_status (*begin)(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err);
    /* OK only when the transaction is durable. UNKNOWN: it may be. Anything else: it certainly is not, and is rolled
     * back. */
    semel_status (*commit)(struct semel_store *store, struct semel_error *err);
    void (*rollback)(
        struct semel_store *store); /* cannot fail: a handle that could not roll back answers CLOSED from then on */
    /* One level. rollback_to undoes what came after the savepoint and keeps the transaction. A savepoint may also be
     * set between guard(true) and guard(false). Behind statements that handlers have only queued it is queued too: if
     * one of those has failed, the savepoint before it counts. */
    semel_status (*savepoint)(struct semel_store *store, struct semel_error *err);
    semel_status (*rollback_to)(struct semel_store *store, struct semel_error *err);
    void (*leave)(struct semel_store *store); /* the end of a JOIN: forgets the savepoint, keeps what was written */
    /* Handlers run between guard(true) and guard(false): statements that would end the transaction are denied.
     * guard(false) returns INVALID, PERMANENT when the transaction was ended all the same (P58); it must be rolled
     * back. */
    semel_status (*guard)(struct semel_store *store, bool on, struct semel_error *err);
    /* Ends what handlers have only queued, statements whose results nobody has waited for yet. A failure is that of the
     * first statement that failed; *ret_tag is the store's `tag` at the moment when it was queued. NULL: this driver
     * has no queue. */
    semel_status (*collect)(struct semel_store *store, size_t *ret_tag, struct semel_error *err);
    /* Forces deferred constraints now (P62), and leaves them deferred. INVALID: violated; err->cls as for a handler's
     * statement. Behind queued statements it is queued too, under the store's `tag`. */
    semel_status (*check)(struct semel_store *store, struct semel_error *err);
    /* Did the data of a handler's statement cause this failure, which the store has given: a data exception or a
     * violated constraint (SQLSTATE class 22 or 23)? NULL: none has such a code. */
    bool (*data_fault)(const struct semel_error *err);

    /* Lock keys; take business keys; insert rows; then read what was refused, and the watermarks. */
    semel_status (*admit)(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                          struct semel_error *err);
    /* Lock keys; read and lock rows. */
    semel_status (*fetch)(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                          struct semel_error *err);
    semel_status (*settle)(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err);
    /* How many rows of the consumer are `waiting`; counting stops at `max`. Asked only before one more is parked. */
    semel_status (*parked)(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                           struct semel_error *err);
    /* How many dead or quarantined rows of the consumer have a payload of more than `bytes`; counting stops at `max`.
     * Asked only before one more is kept. */
    semel_status (*large)(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                          int64_t *ret_n, struct semel_error *err);
    /* At most scan->max rows. Needs no transaction. A damaged row is left out and counted. */
    semel_status (*scan)(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                         struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged, struct semel_error *err);

    /* The distinct sources of a consumer. Needs no transaction. */
    semel_status (*sources)(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                            struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err);
    /* Raises the watermark, never lowers it. RETRY, TRANSIENT: somebody has it at this moment, and is not waited
     * for. */
    semel_status (*watermark)(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t watermark_us, struct semel_error *err);
    /* Final rows of (consumer, source) that ended before `before_us`, and whose message, if it has a time, was made
     * before it too, at most `max` of them. Looks at `looks` rows at the most, which ended first. */
    semel_status (*aged)(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                         int64_t before_us, size_t max, size_t looks, struct semel_aged *ret, struct semel_error *err);
    /* Deletes at most `max` of the same rows with their attempts; those with a time only below the stored
     * watermark. */
    semel_status (*purge)(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                          int64_t before_us, size_t max, size_t looks, size_t *ret_deleted, struct semel_error *err);
    /* Deletes at most `max` business keys that have expired. */
    semel_status (*purge_business)(struct semel_store *store, struct semel_str consumer, int64_t now_us, size_t max,
                                   size_t *ret_deleted, struct semel_error *err);

    /* Deletes at most `max` conflicts that came last before `before_us`; and of 10 * max order keys behind `place`, to
     * which it moves on ("": from the first), those that say nothing: no version was applied, nothing of theirs is
     * unfinished, and they have not changed since `before_us`. */
    semel_status (*purge_side)(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                               char place[SEMEL_ID_MAX + 1], struct semel_error *err);

    semel_status (*outbox_put)(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                               char ret_id[37], struct semel_error *err);
    /* A person's line goes before the change that it is about: on PostgreSQL an operator's role writes both by one
     * call, and the database knows who it is. */
    semel_status (*audit)(struct semel_store *store, const struct semel_audit *line, int64_t now_us,
                          struct semel_error *err);

    /* Is a transaction open on the native handle, whoever began it? */
    bool (*busy)(struct semel_store *store);
    /* NULL, or: a transaction of our own for this consumer will follow soon, and perhaps consumer_get before it. The
     * driver may begin it now and wait for the answer later. No consumer: it will not follow after all. */
    void (*ahead)(struct semel_store *store, struct semel_str consumer);
    /* The settings of a consumer (consumer.h); not given: none are stored. Needs no transaction. */
    semel_status (*consumer_get)(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                 struct semel_str *ret_settings, struct semel_error *err);
    /* What set them stays as it is. */
    semel_status (*consumer_put)(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                 int64_t now_us, struct semel_error *err);
    /* All that is stored of a consumer. With `lock`, inside a transaction: nobody else reads it so, or writes it, until
     * the end; the driver may store {} where nothing was. */
    semel_status (*consumer_read)(struct semel_store *store, struct semel_str consumer, bool lock,
                                  struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err);
    /* Says of a consumer that has settings which file set it; not given: none. */
    semel_status (*consumer_mark)(struct semel_store *store, struct semel_str consumer, const struct semel_set_by *by,
                                  struct semel_error *err);
    /* How many there are; counting stops at `max`. `version` is for BELOW. By an index, never by all rows. */
    semel_status (*affected)(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                             int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err);
    /* The names of consumers that have rows or settings, ascending, after `after` (not given: from the first), at most
     * max. Needs no transaction, and does not walk the rows. */
    semel_status (*consumers)(struct semel_store *store, struct semel_str after, size_t max, struct semel_arena *arena,
                              struct semel_str **ret, size_t *ret_n, struct semel_error *err);

    /* Raises the epochs of these partitions, in: source and partition of each. Out: the epoch, 1 where there was no
     * row, and the offset. */
    semel_status (*positions_take)(struct semel_store *store, struct semel_str consumer, struct semel_position *items,
                                   size_t n, int64_t now_us, struct semel_error *err);
    /* Moves each to its offset if its epoch is still the one given; says otherwise in `fenced`. Never back: a lower
     * offset leaves it where it is. SEMEL_NONE: only asks, and holds the epoch until the transaction ends. */
    semel_status (*positions_move)(struct semel_store *store, struct semel_str consumer, struct semel_position *items,
                                   size_t n, int64_t now_us, struct semel_error *err);
    /* An operator's word: sets each to its offset, also back, also to none, and raises the epoch. Out: the epoch. */
    semel_status (*positions_set)(struct semel_store *store, struct semel_str consumer, struct semel_position *items,
                                  size_t n, int64_t now_us, struct semel_error *err);
    /* At most `max` of a consumer, ascending by (source, partition). Needs no transaction. INVALID, BROKEN: a row is
     * damaged. */
    semel_status (*positions_list)(struct semel_store *store, struct semel_str consumer, size_t max,
                                   struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                   struct semel_error *err);
};

struct semel_store {
    const struct semel_store_ops *ops;
    struct semel_store_options options;
    bool in_tx, joined; /* kept by the wrappers */
    bool joining;       /* set by semel_store_join */
    size_t tag;         /* which message's handler runs: kept by core, remembered by the driver's queue */
};

/* ---- what core calls: asserts before and after ------------------------------------------------------- */

/* `url` is "SCHEME:location"; `drivers` is the list that this program was linked with, ended by NULL. */
semel_status semel_store_open(struct semel_store **ret, const struct semel_store_ops *const *drivers, const char *url,
                              const struct semel_store_options *options, struct semel_error *err);
void semel_store_close(struct semel_store *store);
semel_status semel_store_reopen(struct semel_store *store, struct semel_error *err);
void *semel_store_native(struct semel_store *store);
semel_status semel_store_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err);
semel_status semel_store_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us,
                               struct semel_error *err);
/* What time it is by the store's clock. Not within a transaction. */
semel_status semel_store_now(struct semel_store *store, int64_t *ret_now_us, struct semel_error *err);
semel_status semel_store_commit(struct semel_store *store, struct semel_error *err);
void semel_store_rollback(struct semel_store *store);
void semel_store_leave(struct semel_store *store); /* the end of a JOIN: the transaction stays the caller's */
/* While it is on, the transactions of core are a part of the caller's: begin(OWN) joins it behind a savepoint, commit
 * leaves it as it is, rollback undoes what came after the savepoint and leaves the rest. Nothing is durable before the
 * caller's commit. */
void semel_store_join(struct semel_store *store, bool on);
semel_status semel_store_savepoint(struct semel_store *store, struct semel_error *err);
semel_status semel_store_rollback_to(struct semel_store *store, struct semel_error *err);
semel_status semel_store_guard(struct semel_store *store, bool on, struct semel_error *err);
semel_status semel_store_collect(struct semel_store *store, size_t *ret_tag, struct semel_error *err);
semel_status semel_store_check(struct semel_store *store, struct semel_error *err);
bool semel_store_data_fault(const struct semel_store *store, const struct semel_error *err);
semel_status semel_store_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                               struct semel_error *err);
semel_status semel_store_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                               struct semel_error *err);
semel_status semel_store_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err);
semel_status semel_store_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                                struct semel_error *err);
semel_status semel_store_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                               int64_t *ret_n, struct semel_error *err);
semel_status semel_store_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                              struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged, struct semel_error *err);
semel_status semel_store_sources(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                 struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err);
semel_status semel_store_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                   int64_t watermark_us, struct semel_error *err);
semel_status semel_store_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t before_us, size_t max, size_t looks, struct semel_aged *ret,
                              struct semel_error *err);
semel_status semel_store_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                               int64_t before_us, size_t max, size_t looks, size_t *ret_deleted,
                               struct semel_error *err);
semel_status semel_store_purge_side(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                                    char place[SEMEL_ID_MAX + 1], struct semel_error *err);
semel_status semel_store_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us,
                                        size_t max, size_t *ret_deleted, struct semel_error *err);
semel_status semel_store_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                    char ret_id[37], struct semel_error *err);
semel_status semel_store_audit(struct semel_store *store, const struct semel_audit *line, int64_t now_us,
                               struct semel_error *err);
bool semel_store_busy(struct semel_store *store);
void semel_store_ahead(struct semel_store *store, struct semel_str consumer);
semel_status semel_store_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                      struct semel_str *ret_settings, struct semel_error *err);
semel_status semel_store_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                      int64_t now_us, struct semel_error *err);
semel_status semel_store_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                       struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err);
semel_status semel_store_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                       const struct semel_set_by *by, struct semel_error *err);
semel_status semel_store_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                  int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err);
semel_status semel_store_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                   struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                   struct semel_error *err);
semel_status semel_store_positions_take(struct semel_store *store, struct semel_str consumer,
                                        struct semel_position *items, size_t n, int64_t now_us,
                                        struct semel_error *err);
semel_status semel_store_positions_move(struct semel_store *store, struct semel_str consumer,
                                        struct semel_position *items, size_t n, int64_t now_us,
                                        struct semel_error *err);
semel_status semel_store_positions_set(struct semel_store *store, struct semel_str consumer,
                                       struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err);
semel_status semel_store_positions_list(struct semel_store *store, struct semel_str consumer, size_t max,
                                        struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                        struct semel_error *err);

#endif
