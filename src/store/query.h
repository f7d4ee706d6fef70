/* SPDX-License-Identifier: MIT
 *
 * query.h: operators' queries to a store on a SQL database: counts, lists, groups, the history of a message, frozen
 * selections, the events of the outbox, and idempotency keys.
 *
 * Nothing here decides or runs anything. Reads take no locks that a consumer would wait for, and are bounded: a list
 * by `max`, a count by `cap` (it then says "at least"). Strings are copied into the arena.
 *
 * A selection (P43) is a list of rows written down once, with the reason and the command; what is done to it later is
 * done to these rows only, and to a row only if it has not changed since. Anybody can resume it by its number.
 */
#ifndef SEMEL_STORE_QUERY_H
#define SEMEL_STORE_QUERY_H

#include "base/ids.h"
#include "core/keys.h"
#include "core/relay.h"
#include "core/store.h"

/* A row must match all members that are given. Indexes serve an id (best with its consumer and source), and statuses
 * that are not final; any other query reads all rows in their order, until enough are found. */
struct semel_filter {
    struct semel_str consumer, source, id, type, order_key; /* not given: any */
    unsigned states;                                        /* bit mask 1 << state; 0: any */
    struct semel_str error_class, error_text;               /* text: contains it, byte for byte */
    int64_t received_before_us, received_after_us;          /* exclusive; SEMEL_NONE: any */
};

/* The rows of one consumer in one state. */
struct semel_count {
    struct semel_str consumer;
    enum semel_row_status state;
    int64_t n; /* at least this many when `capped` */
    bool capped;
    int64_t oldest_us; /* received_at of the oldest; SEMEL_NONE where it was not looked for (final states) */
    int64_t next_us;   /* the earliest due_at (failed, waiting) or lease_until (processing); SEMEL_NONE */
};

struct semel_group {
    struct semel_str consumer, error_class, error_text; /* text and class may be not given */
    enum semel_row_status state;
    int64_t n, first_us, last_us; /* by received_at */
    struct semel_str source, id;  /* an example: the oldest */
};

struct semel_try { /* a row of `attempt` */
    int attempt;
    int64_t at_us;
    struct semel_str worker, cls, text;
};

struct semel_act_line { /* a row of `audit` */
    int64_t at_us;
    struct semel_str who, what, reason;
};

struct semel_conflict_line {
    struct semel_str fingerprint; /* as stored: a letter and bytes */
    int64_t n, first_us, last_us;
};

/* Another message with a business key that this one holds or wants (A6). One that has the key may have no row any more:
 * ABSENT. Else it waits until the key's holder ends. */
struct semel_rival {
    struct semel_str key, source, id;
    enum semel_row_status state;
    bool holds;
};

/* What else is known of one message: the latest `max` attempts and acts, oldest first; conflicts, oldest first. */
struct semel_history {
    struct semel_try *tries;
    size_t n_tries;
    struct semel_act_line *acts;
    size_t n_acts;
    struct semel_conflict_line *conflicts;
    size_t n_conflicts;
    struct semel_str *business; /* keys that it holds */
    size_t n_business;
    struct semel_rival *rivals; /* each once: the holders first, then those who wait, by arrival */
    size_t n_rivals;
    bool more; /* one of the lists was cut at `max` */
    /* Where it has an order key and is unfinished: the first unfinished of the key, and the last version applied. */
    bool has_head;
    struct semel_str head_source, head_id;
    enum semel_row_status head_state;
    int64_t head_version, last_version; /* SEMEL_NONE */
    const int64_t *skipped;             /* versions above the last one that ended without effect, ascending */
    size_t n_skipped;
    int64_t watermark_us; /* SEMEL_NONE */
};

struct semel_selection {
    int64_t number;
    struct semel_str command, who, reason; /* command: retry, discard, resolve */
    bool force;
    int64_t made_us, n, left; /* how many it chose, how many are not handled yet */
    int64_t done, skipped, refused;
};

struct semel_selected {
    int64_t place; /* within the selection, from 1 */
    struct semel_str consumer, source, id;
    int64_t updated_us; /* when it was chosen */
};

/* The version of the schema that was there when the store was opened, before it was migrated; 0: there was none. On a
 * SQL database. */
int semel_query_schema_found(struct semel_store *store);
/* ---- events of the outbox: what is read ---- */

/* Everything that is given must match; a destination as the event itself names it. */
struct semel_event_filter {
    unsigned statuses; /* bit mask 1 << semel_event_status; 0: none */
    struct semel_str aggregatetype, aggregateid, type, destination;
};

struct semel_event_row {
    enum semel_event_status status;
    struct semel_str id, aggregatetype, aggregateid, type, headers, destination, traceparent;
    struct semel_str payload; /* not given: it was not asked for, or the event is a tombstone */
    struct semel_str error;
    int64_t seq, shard, created_us, attempts;
    int64_t bytes;                                    /* of the payload; SEMEL_NONE: a tombstone */
    int64_t due_us, updated_us, sent_us, relay_token; /* SEMEL_NONE */
    bool alone;                                       /* it may have killed its relay, and is sent by itself */
    bool held;                                        /* an earlier event of its aggregate stands aside */
};

/* What an event waits for, and what waits for it. */
struct semel_event_place {
    struct semel_str first_id; /* held: the first event of the aggregate that stands aside */
    enum semel_event_status first_status;
    int64_t behind;               /* events of the aggregate that stand aside behind it, at most `cap` */
    struct semel_str relay_owner; /* who publishes its shard; not given: nobody */
    int64_t lease_until_us;
};

/* The outbox as a whole, each figure up to `cap`. */
struct semel_outbox_state {
    int64_t n[SEMEL_EVENT_PUBLISHED + 1];         /* by status; published events are not counted */
    int64_t oldest_us[SEMEL_EVENT_PUBLISHED + 1]; /* created_at of the oldest; SEMEL_NONE */
    struct semel_str longest_type, longest_id;    /* the aggregate with the most events aside */
    int64_t longest;
    struct semel_str down_destination, down_why; /* what most events wait for; the destination if they name it */
    int64_t down;
    struct semel_str relay_owner, relay_down; /* a relay that cannot publish: to which destination, and why */
    /* The transaction that has drawn a number and is open for longest; SEMEL_NONE: there is none. A prepared one has a
     * gid and no pid, and is open since it was prepared. */
    int64_t holder_pid, holder_since_us;
    struct semel_str holder_user, holder_query, holder_gid;
    bool holder_shown; /* false: this role may see neither its age nor its query (P116) */
};

/* ---- idempotency keys: what is read ---- */

/* Everything that is given must match. */
struct semel_key_filter {
    unsigned statuses;      /* bit mask 1 << state: processing and unknown together, or completed alone */
    struct semel_str scope; /* not given: any; completed: required */
    int64_t before_us;      /* the status was set before; SEMEL_NONE: at any time. Not for completed */
    int64_t expired_us;     /* their lease ran out before; SEMEL_NONE: leases do not matter. Not for completed */
};

struct semel_key_row {
    struct semel_idempotency row; /* headers and body: not given unless they were asked for */
    int64_t bytes;                /* of the body; SEMEL_NONE: it is not kept */
};

/* All keys, each figure up to `cap`. */
#define SEMEL_CAUSES_MAX 16
struct semel_keys_state {
    int64_t processing, stuck, unknown; /* stuck: of those that are processing, whose lease ran out */
    int64_t stuck_us, unknown_us;       /* the lease that ran out first; unknown for longest; SEMEL_NONE */
    struct {
        struct semel_str cause; /* the last one may be of all others: not given */
        int64_t n;
    } causes[SEMEL_CAUSES_MAX]; /* of unknown, the most frequent first */
    size_t n_causes;
};

/* ---- reading ------------------------------------------------------------------------------------- */

/* INVALID of all of them: the store is on no SQL database. */

/* Of one consumer, or of all (consumer not given); statuses without rows are left out. Final ones are counted to at
 * most `final_cap` rows per consumer, which may be none, the others to `cap` each. By consumer, ascending. */
semel_status semel_query_counts(struct semel_store *store, struct semel_str consumer, int64_t cap, int64_t final_cap,
                                struct semel_arena *arena, struct semel_count **ret, size_t *ret_n,
                                struct semel_error *err);
/* By arrival, newest last, from `after_arrival` (exclusive; SEMEL_NONE: the first). Damaged rows are counted and left
 * out. */
semel_status semel_query_list(struct semel_store *store, const struct semel_filter *filter, int64_t after_arrival,
                              size_t max, bool with_payload, struct semel_arena *arena, struct semel_row **ret,
                              size_t *ret_n, size_t *ret_damaged, struct semel_error *err);
/* A walk over all rows that match, with their payloads, in the order of arrival: each that is there and matches all the
 * while is met once. The names of the next rows are found together, at most names_max (which are kept in memory), and
 * then the rows by their names, so that a page costs the same wherever it is. No snapshot is kept between pages. */
struct semel_walk {
    struct semel_filter filter;
    size_t names_max;
    struct semel_arena arena; /* of the names */
    void *names;
    size_t n, next, damaged;
    int64_t after, window; /* of arrivals; 0: to the end */
    int n_short;
    bool more;
};
void semel_walk_init(struct semel_walk *walk, const struct semel_filter *filter, size_t names_max);
void semel_walk_done(struct semel_walk *walk);
/* Is the walk at its end? */
static inline bool semel_walk_ended(const struct semel_walk *walk)
{
    return !walk->more && walk->next == walk->n;
}
/* The next page, of at most max rows; of none where all of them have gone, or are damaged. After a failure the walk is
 * where it was: a shorter page may fit into memory. */
semel_status semel_query_walk(struct semel_store *store, struct semel_walk *walk, size_t max, struct semel_arena *arena,
                              struct semel_row **ret, size_t *ret_n, size_t *ret_damaged, struct semel_error *err);
/* The rows of these messages of one consumer, as fetch gives them, but without a lock, payload or headers. */
semel_status semel_query_rows(struct semel_store *store, struct semel_str consumer, struct semel_fetched *items,
                              size_t n, struct semel_arena *arena, struct semel_error *err);
/* By consumer, status, class and text, largest first. At most `cap` rows are looked at; *ret_capped says so. */
semel_status semel_query_groups(struct semel_store *store, const struct semel_filter *filter, int64_t cap, size_t max,
                                struct semel_arena *arena, struct semel_group **ret, size_t *ret_n, bool *ret_capped,
                                struct semel_error *err);
/* `row` as `list` gave it. by_version: the order of its key is by version, else by arrival. */
semel_status semel_query_history(struct semel_store *store, const struct semel_row *row, bool by_version, size_t max,
                                 struct semel_arena *arena, struct semel_history *ret, struct semel_error *err);
/* How many events wait in the outbox (`cap`: at least so many), and since when the oldest (SEMEL_NONE). */
semel_status semel_query_outbox(struct semel_store *store, int64_t cap, int64_t *ret_n, int64_t *ret_oldest_us,
                                struct semel_error *err);

/* ---- selections ---------------------------------------------------------------------------------- */

/* Inside a transaction. Writes down what matches now, at most max rows, oldest first, and a line of the audit. In:
 * command, who, reason, force. Out: number, made_us, n, left. n == 0: nothing is written down. INVALID: more than max
 * match. Others cannot write meanwhile: give statuses that are not final, or an id. */
semel_status semel_query_select(struct semel_store *store, const struct semel_filter *filter, size_t max,
                                int64_t now_us, struct semel_selection *selection, struct semel_error *err);
/* INVALID: there is none with that number. */
semel_status semel_query_selection(struct semel_store *store, int64_t number, struct semel_arena *arena,
                                   struct semel_selection *ret, struct semel_error *err);
/* What is not handled yet, in order, at most max. */
semel_status semel_query_selected(struct semel_store *store, int64_t number, size_t max, struct semel_arena *arena,
                                  struct semel_selected **ret, size_t *ret_n, struct semel_error *err);
/* What was done, in places after `after` and before `end`, and is a dead letter again, in order, at most max;
 * updated_us is that of the row now. */
semel_status semel_query_again(struct semel_store *store, int64_t number, int64_t after, int64_t end, size_t max,
                               struct semel_arena *arena, struct semel_selected **ret, size_t *ret_n,
                               struct semel_error *err);
/* Inside a transaction. A place that is marked already stays as it is. */
struct semel_mark {
    int64_t place;
    struct semel_str result; /* done, skipped or refused */
};
semel_status semel_query_mark(struct semel_store *store, int64_t number, const struct semel_mark *marks, size_t n,
                              struct semel_error *err);

/* ---- events of the outbox ------------------------------------------------------------------------ */

/* An event's id, in the one spelling that is stored: a UUID, or what a mapped table has for one. false: it cannot be
 * one. */
#define SEMEL_EVENT_ID_TEXT (4 * (SEMEL_ID_MAX + 1) + 1) /* an id that was too long is cut */
bool semel_event_id(struct semel_str given, char ret_id[SEMEL_EVENT_ID_TEXT]);
/* By their numbers, above after_seq (SEMEL_NONE: the first), without payloads. */
semel_status semel_query_events(struct semel_store *store, const struct semel_event_filter *filter, int64_t after_seq,
                                size_t max, struct semel_arena *arena, struct semel_event_row **ret, size_t *ret_n,
                                struct semel_error *err);
/* *ret = NULL: there is none. Ids are as semel_event_id gives them. */
semel_status semel_query_event(struct semel_store *store, const char *id, bool with_payload, struct semel_arena *arena,
                               struct semel_event_row **ret, struct semel_error *err);
semel_status semel_query_event_place(struct semel_store *store, const struct semel_event_row *row, int64_t cap,
                                     struct semel_arena *arena, struct semel_event_place *ret, struct semel_error *err);
/* What operators did to it, newest first. */
semel_status semel_query_event_acts(struct semel_store *store, const char *id, size_t max, struct semel_arena *arena,
                                    struct semel_act_line **ret, size_t *ret_n, struct semel_error *err);
/* Of an outbox (NULL: the own one); events that stand aside are counted for it alone, or `all` of them. */
semel_status semel_query_outbox_state(struct semel_store *store, const struct semel_relay_table *table, bool all,
                                      int64_t cap, struct semel_arena *arena, struct semel_outbox_state *ret,
                                      struct semel_error *err);
/* Inside a transaction: locks the event's shard against relays. Then the event is read again: it may have moved. */
semel_status semel_query_event_lock(struct semel_store *store, const struct semel_event_row *row,
                                    struct semel_error *err);
/* Inside a transaction, after the lock and the line of the audit. Retry: due now if it is the first of its aggregate,
 * with a new budget of attempts. Discard: deleted. Either wakes the first event of the aggregate. *ret_done = false: it
 * has gone, or a relay is publishing it: roll back. */
semel_status semel_query_event_change(struct semel_store *store, const struct semel_event_row *row, bool discard,
                                      int64_t now_us, bool *ret_done, struct semel_error *err);

/* ---- idempotency keys ---------------------------------------------------------------------------- */

/* Without answers. Of processing and unknown by their tokens, above after_token (SEMEL_NONE: the first); of completed
 * by their keys, behind after_key (not given: the first). */
semel_status semel_query_keys(struct semel_store *store, const struct semel_key_filter *filter, int64_t after_token,
                              struct semel_str after_key, size_t max, struct semel_arena *arena,
                              struct semel_key_row **ret, size_t *ret_n, struct semel_error *err);
/* *ret = NULL: there is none. */
semel_status semel_query_key(struct semel_store *store, struct semel_str scope, struct semel_str key, bool with_answer,
                             struct semel_arena *arena, struct semel_key_row **ret, struct semel_error *err);
/* Inside a transaction: nobody else changes the row until its end. */
semel_status semel_query_key_lock(struct semel_store *store, struct semel_str scope, struct semel_str key,
                                  struct semel_error *err);
/* What operators did to it, newest first. */
semel_status semel_query_key_acts(struct semel_store *store, struct semel_str scope, struct semel_str key, size_t max,
                                  struct semel_arena *arena, struct semel_act_line **ret, size_t *ret_n,
                                  struct semel_error *err);
semel_status semel_query_keys_state(struct semel_store *store, int64_t cap, struct semel_arena *arena,
                                    struct semel_keys_state *ret, struct semel_error *err);

#endif
