/* SPDX-License-Identifier: MIT
 *
 * store.h: what a database must be able to do, over batches. The contract of every driver.
 *
 * Core decides; a store fetches facts and writes. A driver contains no rule: it does not know what a verdict is,
 * which move is legal or when something is due. It knows its database: how to lock in order, insert first, read the
 * rows that already exist, and commit durably.
 *
 * Rules for all functions
 *  - A handle belongs to one thread. Functions block on the database only, and never longer than the
 *    handle's time-outs.
 *  - Arguments are borrowed until return. What is read is copied into the caller's arena.
 *  - Statuses: OK. RETRY: nothing was changed by this call, the transaction (if any) must be rolled back; err->cls
 *    says why: TRANSIENT is contention (deadlock, serialization, busy row), ENVIRONMENT is everything around us (full
 *    disk, time-out, lost server). INVALID: our own input, a missing table (BROKEN) or, from a handler's statement or
 *    a deferred constraint, the message's fault (PERMANENT, TRANSIENT). UNKNOWN: only from commit. CLOSED: the
 *    connection is gone and so is the transaction; reopen.
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
struct semel_relay_ops;
struct semel_key_ops;

/* ---- facts and changes ---------------------------------------------------------------------------- */

#define SEMEL_SKIPPED_MAX 1000 /* versions of a key that ended without effect ahead of a gap */

/* An order key of this batch. In: `key`, `by_version`. Out (admit, fetch), read under its lock and not counting rows
 * that this transaction inserted. The head is the first row in the key's order (semel__progress_in_order): by (version,
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
    bool damaged;         /* out: its stored versions are damaged and left out: no rule may use them */
    bool busy;            /* out: another transaction has locked it and we did not wait; nothing else is known of it */
    bool shut;            /* set by core: an earlier message of the key in this batch stays with its source */
};

/* A business key of this batch, to be held by message (source, id). Members not marked `out` are input. */
struct semel_business {
    struct semel_str key;
    struct semel_str source, id;
    int64_t expires_us;                    /* SEMEL_NONE: for ever */
    bool taken;                            /* out: another message holds it (an expired hold does not count) */
    bool inserted;                         /* out: it was free and is now held by (source, id) */
    struct semel_str held_source, held_id; /* out, when taken: the holder */
    bool unfinished;                       /* out, when taken: the holder has an unfinished row */
    int64_t wanted; /* out, when taken: how many messages wait for it (counting may stop at 100,000) */
};

/* One arrival. In: all of `row` but its arrival. The store keeps payload and headers of `row` only when row.kept. */
struct semel_admit {
    struct semel_row row;
    size_t place;  /* in: its place in the order of arrival within the batch */
    bool inserted; /* out: no row was there, and it was inserted; row.arrival is filled in */
    bool damaged;  /* out: the existing row cannot be read */
    union {
        /* Out, when not inserted: the existing row, locked. A final row never changes: the driver need not lock it, and
         * need give only its key, arrival, fingerprint, progress, received, updated and kept. */
        struct semel_row found;
        struct semel_error damage; /* out, when damaged: the reason */
    };
    int64_t watermark_us; /* out: of (consumer, source), read by a statement after the insert (P60); SEMEL_NONE: none */
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
    bool frees;            /* the end of this message may change its business keys: lock them before the rows */
    bool present, damaged; /* out */
    union {
        struct semel_row row;      /* out; with payload and headers */
        struct semel_error damage; /* out, when damaged: the reason */
    };
};

struct semel_fetch_batch {
    struct semel_str consumer;
    int64_t now_us;
    /* wait for no lock: a key that another transaction has locked is `busy`, such a row is not `present` */
    bool impatient;
    bool bare;              /* the caller needs no payloads and headers: there may be many */
    struct semel_key *keys; /* locked first; facts out, as in admit */
    size_t n_keys;
    /* Locked next, as in admit, but without waiting for another transaction that has one: then RETRY, contention. */
    struct semel_business *business;
    size_t n_business;
    struct semel_fetched *items;
    size_t n_items;
};

/* Message (source, id) waits for a business key and takes it when it starts. */
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
    enum semel_row_status from;     /* what it is now; the update applies only to a row that still is */
    bool fresh;                     /* this transaction inserted it: judged as a move from ABSENT */
    int64_t token;                  /* SEMEL_NONE, or the fencing token that the row must still carry */
    struct semel_progress progress; /* the new values, all of them */
    int64_t updated_us;             /* its updated_at, which never falls */
    bool remove;                    /* delete the fresh row again (parking bound); progress is ignored */
    enum semel_payload payload;
    const struct semel__msg *put; /* for PAYLOAD_PUT: whose payload and headers, and fingerprint if the row has none */
    bool log_attempt;      /* add an attempt row: number progress.attempts, who `worker`, class and text of progress */
    bool release_business; /* free the business keys of this message, and make the messages that wait for them due */
    bool wish_business;    /* ... and let this message wait for them from now on */
    bool applied;          /* out: false when the row no longer was `from`, or not under `token` */
};

/* What a key becomes. */
struct semel_key_change {
    struct semel_str key;
    int64_t last_version; /* SEMEL_NONE: as it is; else raised to this, never lowered */
    /* if the first row in its order (by version when by_version, else by arrival) is `waiting`, it gets due_us = now
     * and error_class BLOCKED */
    bool wake;
    bool by_version;
    bool skips; /* replace the list of skipped versions by this one */
    const int64_t *skipped;
    size_t n_skipped;
};

/* Evidence: an attempt row without a change, for example a late completion that was refused. */
struct semel_note {
    struct semel_str source, id;
    int attempt;
    enum semel_class cls;
    struct semel_str text;
};

struct semel_settle_batch {
    struct semel_str consumer, worker;
    int64_t now_us;
    bool impatient;               /* do not wait for a business key that is to be freed: RETRY, contention */
    bool wakes_none;              /* those that wait for such a key look again when their own time comes */
    struct semel_change *changes; /* ascending by (source, id) */
    size_t n_changes;
    struct semel_key_change *keys; /* ascending; each key whose set of unfinished rows changed */
    size_t n_keys;
    const struct semel_business *drop; /* business keys that this transaction inserted and gives up again */
    size_t n_drop;
    const struct semel_want *wants; /* waits to be stored */
    size_t n_wants;
    const struct semel_want *granted; /* messages that wait for nothing any more; `key` is not given */
    size_t n_granted;
    const struct semel_hold *holds;
    size_t n_holds;
    /* The same id with another payload (I11), stored under (consumer, source, id, fingerprint); a repeat raises its
     * count. */
    const struct semel__msg *const *conflicts;
    size_t n_conflicts;
    const struct semel_note *notes;
    size_t n_notes;
};

/* A bounded query without locks. */
enum semel_scan_kind {
    SEMEL_SCAN_DUE,     /* failed and waiting with due_us <= now, oldest due first; with their `wants` */
    SEMEL_SCAN_EXPIRED, /* processing with lease_until_us < now, oldest first */
    SEMEL_SCAN_TOKEN,   /* the row with lease_token = token, of any consumer */
    /* the rows in the order of order_key, by version when by_version, else by arrival; with their `wants` */
    SEMEL_SCAN_KEY,
    /* Rows that wait without a due time. order_key given: the first row in its order of each of the first `max` keys
     * behind it, in the order of the keys; not given: those with a payload and without a key, or with any_key whatever
     * their key, in no order */
    SEMEL_SCAN_STILL,
    SEMEL_SCAN_ALL /* by arrival, after `after_arrival`, filtered by the fields below */
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

/* An event for the outbox (I21). All members are input; without an id the store makes a UUIDv7. */
struct semel__event {
    struct semel_str id, aggregatetype, aggregateid, type, payload, headers, destination, traceparent;
    bool lock; /* the aggregate, before the number is drawn; INVALID: too many are locked */
};

/* A line of the audit log: who did what to which row, and why. */
struct semel_audit {
    struct semel_str consumer, source, id;
    struct semel_str who, what, reason;
    bool forced; /* done although a check spoke against it */
};

/* A message that its corrected copy supersedes (command.c): the row as it was judged, and what is the copy's own. */
struct semel_corrected {
    struct semel_str consumer, source, id;
    enum semel_row_status was;
    struct semel_str payload, reason;
    bool force;
};

/* The configuration file that set a consumer (consumer.h). Not given: none did. */
struct semel_set_by {
    struct semel_str host, file;
    int64_t at_us;
};

/* What the store has about a consumer. */
struct semel_consumer {
    struct semel_str settings; /* not given: none */
    struct semel_set_by by;
};

/* What a change of settings may reinterpret (consumer.h). */
enum semel_affected {
    SEMEL_AFFECTED_ORDERED,   /* rows with an order key that are waiting, failed or processing */
    SEMEL_AFFECTED_VERSIONED, /* rows with an order key and a version that are unknown or dead */
    SEMEL_AFFECTED_BELOW,     /* waiting and failed rows below a version, of keys without a last version */
    /* waiting and failed rows of which an attempt may have had its effect: all that ran, except those whose only
     * attempt reported that it failed */
    SEMEL_AFFECTED_DOUBTED,
    SEMEL_AFFECTED_SOURCED,    /* rows with a source */
    SEMEL_AFFECTED_SOURCELESS, /* rows without a source */
    SEMEL_AFFECTED_ANY,        /* rows */
    SEMEL_AFFECTED_KEYS,       /* order keys */
    SEMEL_AFFECTED_WATERMARKS,
    SEMEL_AFFECTED_COUNT
};

/* How far a consumer has read in one partition of a source (I23). Whoever gets the partition raises the epoch, and so
 * does an operator who sets the position: workers of an earlier epoch are fenced. */
struct semel_position {
    struct semel_str source;
    int32_t partition;
    int64_t offset; /* the next offset to read; SEMEL_NONE: none is stored */
    int64_t epoch;  /* from 1 */
    int64_t updated_us;
    bool fenced; /* out of move: the stored epoch differs */
};

#define SEMEL_CONFLICTS_MAX 100    /* per message: one more replaces the oldest */
#define SEMEL_POSITIONS_MAX 100000 /* per consumer */

/* ---- the driver ------------------------------------------------------------------------------------- */

/* OWN: handlers may run in it. BARE: no handler does, so the store need not keep one from ending it. JOIN: the caller
 * has begun and will commit. ONCE: as BARE, and the caller commits after a single call, of a function whose contract
 * allows that (semel_key_ops). A store may send begin, call and commit together: the call then reports what the commit
 * would have reported, UNKNOWN included, and *ret_now_us is computed from the store's last answer. */
enum semel_tx { SEMEL_TX_OWN, SEMEL_TX_BARE, SEMEL_TX_JOIN, SEMEL_TX_ONCE };

struct semel_store_options {
    const struct semel_clock *clock; /* where the database has no clock of its own; NULL: the machine's */
    struct semel_random *rng;        /* for new ids; NULL: seeded by the system */
    int lock_timeout_ms;             /* 0: 5000 */
    bool create;                     /* create the database when it is missing */
    bool migrate;                    /* bring the schema up to date on opening */
    bool inspect;                    /* opening changes nothing: sequences that began anew stay as they are */
};

/* The `code` of the error when a store cannot be opened as it is. Databases use no numbers below zero. */
enum semel_store_refusal {
    SEMEL_STORE_NO_DATABASE = -4, /* needs create and migrate */
    SEMEL_STORE_NO_SCHEMA = -1,   /* our tables are missing: needs migrate */
    SEMEL_STORE_OLD_SCHEMA = -2,  /* needs migrate */
    SEMEL_STORE_NEW_SCHEMA = -3,  /* this program is too old for it */
};

#define SEMEL_STORE_ATOMIC 1u     /* handlers can write in the store's transaction */
#define SEMEL_STORE_CONCURRENT 2u /* several transactions can be open at once (else one writer at a time) */
#define SEMEL_STORE_DURABLE 4u    /* a committed row survives the process */
#define SEMEL_STORE_SQL 8u        /* operators can query it (store/query.h) */

/* What a purge would find. */
struct semel_aged {
    size_t n;          /* rows that may be deleted */
    size_t looked;     /* rows that were read; at least `n` where `max` was reached */
    int64_t latest_us; /* the latest time of their messages; SEMEL_NONE: no message has a time */
};

struct semel_store_ops {
    const char *name;
    unsigned capabilities;
    size_t size; /* of the driver's struct, whose first member is struct semel_store */

    /* Opens the database at `location` (the URL without its scheme). INVALID: not a database, a newer schema than
     * this binary knows, no schema and !migrate. */
    semel_status (*open)(struct semel_store *store, struct semel_str location, struct semel_error *err);
    void (*close)(struct semel_store *store); /* rolls back an open transaction */
    /* Connects anew to the same place, after CLOSED or UNKNOWN. An open transaction is gone. */
    semel_status (*reopen)(struct semel_store *store, struct semel_error *err);
    /* The caller's native handle (sqlite3 *, PGconn *), for handlers. May be NULL. */
    void *(*native)(struct semel_store *store);
    semel_status (*migrate)(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err);

    semel_status (*begin)(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err);
    /* OK: the transaction is durable. UNKNOWN: it may be. Otherwise it certainly is not, and is rolled back. */
    semel_status (*commit)(struct semel_store *store, struct semel_error *err);
    void (*rollback)(
        struct semel_store *store); /* cannot fail: a handle that could not roll back answers CLOSED from then on */
    /* One level. rollback_to undoes what came after the savepoint and keeps the transaction. A savepoint may also be
     * set between guard(true) and guard(false). Behind statements that handlers have only queued it is queued too: if
     * one of those has failed, the savepoint before it counts. */
    semel_status (*savepoint)(struct semel_store *store, struct semel_error *err);
    semel_status (*rollback_to)(struct semel_store *store, struct semel_error *err);
    void (*leave)(struct semel_store *store); /* the end of a JOIN: forgets the savepoint, keeps all changes */
    /* Handlers run between guard(true) and guard(false): statements that would end the transaction are denied.
     * guard(false) returns INVALID, PERMANENT when the transaction ended anyway (P58); it must be rolled back. */
    semel_status (*guard)(struct semel_store *store, bool on, struct semel_error *err);
    /* Waits for the statements that handlers have queued. Reports the first statement that failed; *ret_tag is the
     * store's `tag` from when it was queued. NULL: this driver has no queue. */
    semel_status (*collect)(struct semel_store *store, size_t *ret_tag, struct semel_error *err);
    /* Forces deferred constraints now (P62), and leaves them deferred. INVALID: violated; err->cls as for a handler's
     * statement. Behind queued statements it is queued too, under the store's `tag`. */
    semel_status (*check)(struct semel_store *store, struct semel_error *err);
    /* Did the data of a handler's statement cause this failure, which the store has reported: a data exception or a
     * violated constraint (SQLSTATE class 22 or 23)? NULL: the driver cannot say. */
    bool (*data_fault)(const struct semel_error *err);

    /* Locks keys, takes business keys, inserts rows, then reads the rows that already existed, and the watermarks. */
    semel_status (*admit)(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                          struct semel_error *err);
    /* Locks keys, then reads and locks rows. */
    semel_status (*fetch)(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                          struct semel_error *err);
    semel_status (*settle)(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err);
    /* Counts the `waiting` rows of the consumer, up to `max`. Called only before one more is parked. */
    semel_status (*parked)(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                           struct semel_error *err);
    /* Counts the dead or quarantined rows of the consumer with a payload of more than `bytes`, up to `max`. Called only
     * before one more is stored. */
    semel_status (*large)(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                          int64_t *ret_n, struct semel_error *err);
    /* At most scan->max rows. Needs no transaction. Damaged rows are counted and left out. */
    semel_status (*scan)(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                         struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged, struct semel_error *err);

    /* The distinct sources of a consumer. Needs no transaction. */
    semel_status (*sources)(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                            struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err);
    /* Raises the watermark, never lowers it. RETRY, TRANSIENT: another transaction has locked it; this call does not
     * wait. */
    semel_status (*watermark)(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t watermark_us, struct semel_error *err);
    /* Counts, up to `max`, the final rows of (consumer, source) that ended before `before_us` and whose message, if it
     * has a time, was made before it too. Reads at most `looks` rows, those that ended first. */
    semel_status (*aged)(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                         int64_t before_us, size_t max, size_t looks, struct semel_aged *ret, struct semel_error *err);
    /* Deletes at most `max` of the same rows with their attempts; rows whose message has a time only below the stored
     * watermark. */
    semel_status (*purge)(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                          int64_t before_us, size_t max, size_t looks, size_t *ret_deleted, struct semel_error *err);
    /* Deletes at most `max` business keys that have expired. */
    semel_status (*purge_business)(struct semel_store *store, struct semel_str consumer, int64_t now_us, size_t max,
                                   size_t *ret_deleted, struct semel_error *err);

    /* Deletes at most `max` conflicts whose last repeat came before `before_us`. Then reads 10 * max order keys behind
     * `place` ("": from the first), moves `place` on, and deletes the keys without information: no version was applied,
     * no row is unfinished, unchanged since `before_us`. */
    semel_status (*purge_keys)(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                               char place[SEMEL_ID_MAX + 1], struct semel_error *err);

    semel_status (*outbox_put)(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                               char ret_id[37], struct semel_error *err);
    /* NULL, or the operations that the relay needs (relay.h). */
    const struct semel_relay_ops *relay;
    /* NULL, or the operations on idempotency keys (keys.h). */
    const struct semel_key_ops *keys;
    /* Write a person's audit lines before the change that they are about: on PostgreSQL an operator's role writes both
     * by one call, and the database knows who it is. Lines of one call have the same `what` and `reason`. */
    semel_status (*audit)(struct semel_store *store, const struct semel_audit *lines, size_t n, int64_t now_us,
                          struct semel_error *err);
    /* NULL, or: stores a corrected copy, ends its message and writes both audit lines, for a role that writes no row
     * itself. *ret_made false: this role writes, and nothing was done. RETRY: the row is not as it was. */
    semel_status (*correct)(struct semel_store *store, const struct semel_corrected *what, bool *ret_made,
                            struct semel_error *err);

    /* Is a transaction open on the native handle, whoever began it? */
    bool (*busy)(struct semel_store *store);
    /* NULL, or: a transaction of our own for this consumer follows soon, perhaps after consumer_get. The driver may
     * begin it now and wait for the answer later. No consumer: it does not follow after all. */
    void (*begin_early)(struct semel_store *store, struct semel_str consumer);
    /* The settings of a consumer (consumer.h); not given: none are stored. Needs no transaction. */
    semel_status (*consumer_get)(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                 struct semel_str *ret_settings, struct semel_error *err);
    /* The file that set the consumer stays recorded. */
    semel_status (*consumer_put)(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                 int64_t now_us, struct semel_error *err);
    /* Everything stored about a consumer. With `lock`, inside a transaction: nobody else locks or writes it until the
     * transaction ends; the driver may store {} where nothing was stored. */
    semel_status (*consumer_read)(struct semel_store *store, struct semel_str consumer, bool lock,
                                  struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err);
    /* Records which file set a consumer that has settings; not given: none. */
    semel_status (*consumer_mark)(struct semel_store *store, struct semel_str consumer, const struct semel_set_by *by,
                                  struct semel_error *err);
    /* Counts rows up to `max`; `version` is for BELOW. Uses an index, never reads all rows. */
    semel_status (*affected)(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                             int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err);
    /* The names of consumers that have rows or settings, ascending, after `after` (not given: from the first), at most
     * max. Needs no transaction and does not read all rows. */
    semel_status (*consumers)(struct semel_store *store, struct semel_str after, size_t max, struct semel_arena *arena,
                              struct semel_str **ret, size_t *ret_n, struct semel_error *err);

    /* Raises the epochs of these partitions. In: source and partition of each. Out: the epoch, 1 where there was no
     * row, and the offset. */
    semel_status (*positions_acquire)(struct semel_store *store, struct semel_str consumer,
                                      struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err);
    /* Moves each position to its offset if its epoch is still the given one; otherwise sets `fenced`. Never moves back:
     * a lower offset changes nothing. SEMEL_NONE: only checks, and locks the epoch until the transaction ends. */
    semel_status (*positions_move)(struct semel_store *store, struct semel_str consumer, struct semel_position *items,
                                   size_t n, int64_t now_us, struct semel_error *err);
    /* For operators: sets each position to its offset, also back or to none, and raises the epoch. Out: the epoch. */
    semel_status (*positions_set)(struct semel_store *store, struct semel_str consumer, struct semel_position *items,
                                  size_t n, int64_t now_us, struct semel_error *err);
    /* At most `max` positions of a consumer, ascending by (source, partition). Needs no transaction. INVALID, BROKEN: a
     * row is damaged. */
    semel_status (*positions_list)(struct semel_store *store, struct semel_str consumer, size_t max,
                                   struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                   struct semel_error *err);
};

struct semel_store {
    const struct semel_store_ops *ops;
    struct semel_store_options options;
    bool in_tx, joined; /* maintained by the wrappers */
    bool joining;       /* set by semel_store_join */
    bool ended;         /* SEMEL_TX_ONCE: it was committed with its call, whatever that has returned */
    size_t tag;         /* number of the message whose handler runs: set by core, recorded by the driver's queue */
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
/* The time of the store's clock. Not within a transaction. */
semel_status semel_store_now(struct semel_store *store, int64_t *ret_now_us, struct semel_error *err);
semel_status semel_store_commit(struct semel_store *store, struct semel_error *err);
void semel_store_rollback(struct semel_store *store);
void semel_store_leave(struct semel_store *store); /* the end of a JOIN: the transaction stays the caller's */
/* While it is on, core's transactions are part of the caller's: begin(OWN) sets a savepoint, commit changes nothing,
 * rollback undoes everything after the savepoint. Nothing is durable before the caller's commit. */
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
semel_status semel_store_purge_keys(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                                    char place[SEMEL_ID_MAX + 1], struct semel_error *err);
semel_status semel_store_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us,
                                        size_t max, size_t *ret_deleted, struct semel_error *err);
semel_status semel_store_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                    char ret_id[37], struct semel_error *err);
semel_status semel_store_audit(struct semel_store *store, const struct semel_audit *lines, size_t n, int64_t now_us,
                               struct semel_error *err);
semel_status semel_store_correct(struct semel_store *store, const struct semel_corrected *what, bool *ret_made,
                                 struct semel_error *err);
bool semel_store_busy(struct semel_store *store);
void semel_store_begin_early(struct semel_store *store, struct semel_str consumer);
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
semel_status semel_store_positions_acquire(struct semel_store *store, struct semel_str consumer,
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
