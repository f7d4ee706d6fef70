/* SPDX-License-Identifier: MIT
 *
 * relay.h: the relay publishes the events of an outbox. One relay is one thread with one store connection and one sink.
 *
 * It takes committed events in the order of their numbers, hands them to the sink, and deletes them once the sink has
 * confirmed them. A relay that dies in between publishes again, under the same event ids, and nothing worse happens.
 *
 * Shards. The events of an aggregate (aggregatetype, aggregateid) are in one of 64 shards (SQLite: in the only one). A
 * relay holds one lease and owns shards; live relays share them out evenly. A lease makes repeats rare. It is not what
 * the order rests on: every relay sends the events of an aggregate in order from the oldest unconfirmed one, so that
 * first occurrences are in order whatever leases and clocks do.
 *
 * Starting points. Scanning from the first number walks dead rows, so a shard is scanned above a starting point. A
 * lower number may commit later (P1), so a starting point is proven: note the number that was drawn last; in a later
 * statement note who holds the sequence (P105); when those transactions have ended, a new scan sees every event up to
 * the noted number. A holder that stays is set apart: the relay scans above it, and after each scan looks whether it
 * has ended; if so, it scans from the old starting point again before it publishes. Starting points are kept in memory
 * only. The relay forgets them every minute, after a reconnect, and when server or sequence are others (P108, P109).
 *
 * Aside. An event that cannot go now moves to outbox_aside: one that was refused, all that stand behind it in its
 * aggregate, those of a destination that is down while others work, those that a sink which takes one event per
 * aggregate and call leaves waiting. So the outbox holds only what can go. Each attempt from there is a committed
 * start, so that an event that kills its relay is counted; after two relays died with a shard, it is published from
 * there altogether. A destination that is down charges no event (P63, P111). Its next event goes in a call of others',
 * which it may hold up: so it rests nine times what that call took, while others work (P112). If nothing works, the
 * events stay, and the relay looks behind those that it has read: only an event there whose destination may work makes
 * them move aside.
 *
 * Blame. A destination that answers an event with an error of its own says neither that the event is bad nor that it is
 * down itself. If it has taken another event since it last did so, this event is charged like a refused one. If it
 * fails at two different events and takes none in between, it is down. If only one event shows the error, and nothing
 * else goes there, nobody is charged. Whatever it is, the event gives way: it never is the only one to be tried.
 *
 * Mapped tables. A table of the user's may stand in place of the outbox (struct semel_relay_table). It has one shard:
 * one relay works and the others wait. It is scanned from the bottom, because applications draw numbers ahead and
 * nothing proves a starting point. Confirmed rows are deleted or marked. The store compares places of rows itself:
 * `held` is right, and `aside_read` gives no event that stands behind a row of the table.
 *
 * Reading ahead. Where the sink takes runs (below) and the store can, the next events are read, and those that were
 * confirmed before are deleted, while a call is on its way. Such a scan starts above the events of that call, so that
 * it needs a proof that nothing can appear below them: of a shard whose last event that was read lies above the
 * starting points' floor nothing is read ahead. What was read is used only if every event of the call was sent and
 * confirmed; otherwise it is forgotten, and read again, as after a lease that was lost. So between two steps events may
 * be confirmed that are not yet deleted; they are before the next scan from the starting points, before a shard is
 * given away, and when the relay leaves.
 *
 * Behind a run. Where events of few aggregates fill what is read of a shard, and do not go now, the relay looks how far
 * they reach, and reads the shard behind them, too, so that others need not wait until they have moved aside. It sends
 * nothing from there of the aggregates of the run, whether something of theirs was read or not. As in reading ahead
 * nothing may appear below: the run ends at the floor, a holder that ends after the scan makes it useless, and what is
 * known of a run is forgotten with the proof.
 *
 * Invariants: an event is deleted only after the sink confirmed it, or is moved aside whole, in one transaction. Of an
 * aggregate at most one request is unconfirmed: several events go in one call only where the sink takes them whole or
 * not at all (SEMEL_BROKER_RUNS) and the destination is the same. An event with an earlier one aside is not sent from
 * the outbox. Only the owner of a shard moves events of it aside. No transaction waits for the sink: what is on its way
 * to the store while the sink publishes ends by itself.
 */
#ifndef SEMEL_CORE_RELAY_H
#define SEMEL_CORE_RELAY_H

#include "base/random.h"
#include "core/broker.h"
#include "core/store.h"

#define SEMEL_RELAY_SHARDS 64
#define SEMEL_RELAY_HOLDERS_MAX 256
#define SEMEL_RELAY_WHY 200            /* bytes of a reason */
#define SEMEL_RELAY_AGGREGATE_MAX 2000 /* bytes of its type and id; the statements name it, too */
#define SEMEL_RELAY_EVENT_MAX 67108864 /* bytes of payload and headers; the statements name it, too */

enum semel_event_status {
    SEMEL_EVENT_CREATED,
    SEMEL_EVENT_WAITING,
    SEMEL_EVENT_PUBLISHING,
    SEMEL_EVENT_FAILED,
    SEMEL_EVENT_DEAD,
    SEMEL_EVENT_PUBLISHED
};
const char *semel__event_status_name(enum semel_event_status status);

/* An event as it is stored, and what becomes of it. */
struct semel_relay_event {
    int64_t shard, seq;
    struct semel_str id, aggregatetype, aggregateid, type, payload, headers, destination, traceparent;
    int64_t created_us;     /* SEMEL_NONE: a mapped table without such a column */
    struct semel_str place; /* in a mapped table: the value of the column that orders */
    int64_t size;     /* what counts as its bytes; above SEMEL_RELAY_EVENT_MAX its payload and headers are not read */
    bool held;        /* an earlier event of its aggregate stands aside */
    int64_t attempts; /* of one that stands aside */
    bool alone;       /* aside: it may have killed its relay, and is sent by itself */
    /* What it becomes, for set_aside and aside_fail. */
    struct semel_str status, error;
    int64_t due_us; /* SEMEL_NONE: none */
};

struct semel_relay_shard {
    int64_t shard;
    int64_t token;  /* of the relay that owns it; SEMEL_NONE: nobody */
    int64_t losses; /* relays that died with it since it made progress */
};

struct semel_relay_peer {
    int64_t token;
    struct semel_str owner, destinations;
};

/* A transaction that has drawn a number and has not ended. */
struct semel_relay_holder {
    struct semel_str name; /* unique while the server runs */
    int64_t pid;
    struct semel_str user;
    int64_t since_us; /* SEMEL_NONE: not shown to this role */
};

struct semel_relay_start {
    int64_t shard, after_seq;
};

/* A table of the user's, and its columns: names as the catalog has them, with no quotes around them. */
struct semel_relay_table {
    struct semel_str name;      /* TABLE or SCHEMA.TABLE; a part may be quoted as in SQL. Not given: the own outbox */
    struct semel_str order, id; /* rows go in the order of both */
    /* Not given: there is no such column. Without aggregatetype and type the table's name stands for them; without
     * aggregateid each event is an aggregate of its own. */
    struct semel_str aggregatetype, aggregateid, type, payload, headers, destination, created_at;
    struct semel_str mark;             /* the column that marks what was published; not given: such rows are deleted */
    struct semel_str unmarked, marked; /* its values; not given: a time or a boolean */
};

/* What the catalog says of it. */
struct semel_relay_inspection {
    char relation[300];
    char order_type[80];
    bool indexed;    /* a scan reads what is not published, and little else */
    char index[600]; /* not indexed: the statement that would help */
};

/* A scan: what is asked, and what came. */
struct semel_relay_scanning;
struct semel_relay_scan {
    /* Of each shard the first `limit` events above its start, in order; of all of them, shard by shard, at most `most`,
     * while those before have fewer than `bytes`. */
    const struct semel_relay_start *starts;
    size_t n, limit, most, bytes;
    size_t holders_max; /* 0, or: who holds the sequence after that, at most so many */
    size_t aside_max;   /* 0, or: events that stand aside, the first of their aggregates, that are due at now_us */
    int64_t now_us;
    struct semel_arena *arena;
    bool large; /* in: some events are; out: some were. A store may read small ones at less cost */
    struct semel_relay_event *events, *aside;
    struct semel_relay_holder *holders;
    size_t n_events, n_aside, n_holders;
    struct semel_relay_scanning *scanning; /* the store's */
};

/* The events of one aggregate, among some of a shard. */
struct semel_relay_group {
    int64_t shard;
    struct semel_str aggregatetype, aggregateid;
    int64_t first_seq, last_seq;
    int64_t count;
};

/* The end of an outbox, at some time. */
struct semel_relay_end {
    int64_t seq;                /* the highest number, in the outbox or aside; of a mapped table: aside */
    struct semel_str id, place; /* of a mapped table: its last row; not given: it has none to be published */
};

/* What the relay needs of a store. Each is inside a transaction of its own unless it says otherwise. */
struct semel_relay_ops {
    /* Needs no transaction, and changes nothing. INVALID: the table cannot be relayed, and why, by name. */
    semel_status (*inspect)(struct semel_store *store, const struct semel_relay_table *table,
                            struct semel_relay_inspection *ret, struct semel_error *err);
    /* From now on this handle of the store works on that table, until it is called with NULL. The arena is the
     * caller's, and lives as long. *ret_shard: its only one. INVALID: as by `inspect`. */
    semel_status (*map)(struct semel_store *store, const struct semel_relay_table *table, struct semel_arena *arena,
                        int64_t *ret_shard, struct semel_error *err);
    size_t shards;
    bool proves; /* a lower number may commit later: starting points must be proven. false: scan from the bottom */
    /* Locks out other relays until the transaction ends, deletes relays whose lease is over, and ends the attempts that
     * they had started: an event with `attempts_max` starts is dead. Where the relay was publishing a single event, the
     * attempt counts; several events are not charged, and will be sent alone. */
    semel_status (*expire)(struct semel_store *store, int64_t now_us, int64_t due_us, int attempts_max,
                           struct semel_error *err);
    semel_status (*join)(struct semel_store *store, const struct semel_relay_peer *self, int64_t now_us,
                         int64_t lease_until_us, struct semel_error *err);
    /* down: a destination that takes nothing, and why, for people; not given: none. FENCED: somebody has deleted it. */
    semel_status (*renew)(struct semel_store *store, int64_t token, int64_t lease_until_us, struct semel_str down,
                          struct semel_error *err);
    /* Deletes the relay. Attempts that it has started for events aside do not count. */
    semel_status (*leave)(struct semel_store *store, int64_t token, int64_t now_us, struct semel_error *err);
    semel_status (*peers)(struct semel_store *store, size_t max, struct semel_arena *arena,
                          struct semel_relay_peer **ret, size_t *ret_n, struct semel_error *err);
    /* All of them, ascending: ret has room for SEMEL_RELAY_SHARDS. */
    semel_status (*shards_read)(struct semel_store *store, struct semel_relay_shard *ret, size_t *ret_n,
                                struct semel_error *err);
    /* Sets token and losses. Under the lock of `expire`, or of `lock`. */
    semel_status (*shards_write)(struct semel_store *store, const struct semel_relay_shard *shards, size_t n,
                                 struct semel_error *err);
    /* Locks these shards, ascending, before outbox_aside is changed. *ret_owned: this relay owns all of them. */
    semel_status (*lock)(struct semel_store *store, int64_t token, const struct semel_relay_shard *shards, size_t n,
                         bool *ret_owned, struct semel_error *err);

    /* Needs no transaction. The last number that was drawn and when the server started; then, in a later statement, who
     * holds the sequence. More than `max` holders: *ret_n is max + 1. */
    semel_status (*note)(struct semel_store *store, int64_t *ret_seq, int64_t *ret_started_us, size_t max,
                         struct semel_arena *arena, struct semel_relay_holder **ret, size_t *ret_n,
                         struct semel_error *err);
    /* Needs no transaction. The last event that is committed now. */
    semel_status (*end)(struct semel_store *store, struct semel_arena *arena, struct semel_relay_end *ret,
                        struct semel_error *err);
    /* Needs no transaction. Of a mapped table: is that row, or one before it, still to be published? */
    semel_status (*left)(struct semel_store *store, const struct semel_relay_end *end, bool *ret,
                         struct semel_error *err);
    /* In a transaction that is then rolled back: can a transaction that has drawn a number be seen here? */
    semel_status (*visible)(struct semel_store *store, bool *ret, struct semel_error *err);

    /* Needs no transaction. */
    semel_status (*read)(struct semel_store *store, struct semel_relay_scan *scan, struct semel_error *err);
    /* Needs no transaction; not for a mapped table. The aggregates of the next `limit` events above each start: of each
     * shard the first `most` of them, by the first event of each, in the order of the starts. */
    semel_status (*groups)(struct semel_store *store, const struct semel_relay_start *starts, size_t n, size_t limit,
                           size_t most, struct semel_arena *arena, struct semel_relay_group **ret, size_t *ret_n,
                           struct semel_error *err);
    /* All NULL: the store cannot read ahead. Outside a transaction: `ahead` sends the statements that delete `gone`, in
     * a transaction of their own, then the scan, and returns without waiting. Until ahead_end, which reads the answers,
     * only `tend` may be called: it receives what the server has sent, and never waits. `gone` is borrowed until ahead
     * returns. If scan->large becomes true, discard the events. false: no memory, and nothing was sent. */
    bool (*ahead)(struct semel_store *store, struct semel_relay_event *const *gone, size_t n_gone, bool keep,
                  struct semel_relay_scan *scan, struct semel_arena *arena);
    void (*tend)(void *store);
    semel_status (*ahead_end)(struct semel_store *store, struct semel_relay_scan *scan, struct semel_error *err);

    /* Deletes confirmed events, or keeps them in outbox_sent. aside: the next event of each aggregate becomes due. */
    semel_status (*confirm)(struct semel_store *store, struct semel_relay_event *const *events, size_t n, bool aside,
                            bool keep, int64_t now_us, struct semel_error *err);
    semel_status (*set_aside)(struct semel_store *store, struct semel_relay_event *const *events, size_t n,
                              int64_t now_us, struct semel_error *err);
    /* ret_started[i]: this relay may publish the event. */
    semel_status (*aside_start)(struct semel_store *store, int64_t token, struct semel_relay_event *const *events,
                                size_t n, int64_t now_us, bool *ret_started, struct semel_error *err);
    semel_status (*aside_fail)(struct semel_store *store, int64_t token, struct semel_relay_event *const *events,
                               size_t n, int64_t now_us, struct semel_error *err);
    semel_status (*aside_postpone)(struct semel_store *store, struct semel_relay_event *const *events, size_t n,
                                   struct semel_error *err);
    semel_status (*sent_purge)(struct semel_store *store, int64_t before_us, size_t max, size_t *ret_n,
                               struct semel_error *err);
};

struct semel_relay_options {
    struct semel_str owner;                /* host and process, for people */
    struct semel_str destinations;         /* digest of the settings that say where events go */
    const struct semel_relay_table *table; /* NULL: the own outbox */
    int64_t lease_us;                      /* 15 s */
    int64_t timeout_us;                    /* of one publish; the lease must outlast it */
    int64_t keep_us;                       /* confirmed events; 0: they are deleted */
    int64_t first_us, ceiling_us;          /* backoff of refused events and of destinations */
    int attempts_max;
    bool one_by_one;    /* in_flight: 1, one event of an aggregate at a time whatever the sink can do */
    size_t rows, bytes; /* about so much per round */
    /* Where an event goes. INVALID: it has no destination; err says why. The text is put into the arena. */
    semel_status (*destination)(void *ctx, const struct semel_relay_event *event, struct semel_arena *arena,
                                struct semel_str *ret, struct semel_error *err);
    void *ctx;
    /* The sink has confirmed an event, so long after it was put; may be NULL. */
    void (*published)(void *ctx, int64_t after_us);
    /* A scan from the starting points was read, and is about to be used; may be NULL. */
    void (*scanned)(void *ctx, const struct semel_relay_scan *scan);
    /* Called for every line that the log should have; may be NULL. */
    void (*report)(void *ctx, int level, const char *text, const struct semel_relay_event *event, const char *why);
};

struct semel_relay_counts {
    uint64_t published, refused, dead, aside, unknown, scans, rescans, ahead, behind;
    uint64_t retried; /* the sink did not take it, and it is not to blame: it is sent again */
    uint64_t turns;   /* destinations that went down or came back */
};

struct semel_relay;

/* Everything is borrowed. steady_us: a clock that goes on while the machine sleeps (CLOCK_BOOTTIME). */
semel_status semel__relay_new(struct semel_relay **ret, struct semel_store *store, struct semel_broker *sink,
                              const struct semel_relay_options *options, struct semel_random *rng,
                              const struct semel_clock *steady, struct semel_error *err);
void semel__relay_free(struct semel_relay *relay);

/* One bounded step: renews the lease, scans, publishes once, and writes the outcome. Call it again after *ret_wait_ms.
 * Any status but OK: the environment failed and no event was charged; after CLOSED reopen the store, then go on. */
semel_status semel__relay_step(struct semel_relay *relay, int *ret_wait_ms, struct semel_error *err);
/* Call it after a reopen: the relay forgets its starting points. */
void semel__relay_forget(struct semel_relay *relay);
/* Gives the shards back and ends the lease. */
semel_status semel__relay_leave(struct semel_relay *relay, struct semel_error *err);

const struct semel_relay_counts *semel__relay_counts(const struct semel_relay *relay);
/* The shards that it owns; 0 with a reason in `why`, or while others own them all. */
size_t semel__relay_owns(const struct semel_relay *relay, char why[SEMEL_RELAY_WHY]);
/* Did the last step read no event, find none aside that could go, and none that is held up? */
bool semel__relay_idle(const struct semel_relay *relay);
/* How many destinations are down, and the first of them with the reason, in `which`. A sink that takes nothing at all
 * counts as one. */
size_t semel__relay_down(const struct semel_relay *relay, char which[SEMEL_RELAY_WHY]);
/* The i-th destination that was used; false: there are not as many. */
bool semel__relay_destination(const struct semel_relay *relay, size_t i, struct semel_str *ret, bool *ret_down);
/* Who holds the starting points back: the process of a transaction that was set apart; SEMEL_NONE: nobody. */
int64_t semel__relay_held_by(const struct semel_relay *relay);

#endif
