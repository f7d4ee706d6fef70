/* SPDX-License-Identifier: MIT
 *
 * semel/semel.h: libsemel, the inbox and the outbox from C, on your own database handle.
 *
 * What it is: a message is begun, its effect is written, and it is done, all in one transaction of yours; or a batch
 * is given to semel_inbox_process, which makes the transactions itself and calls your handler inside them. Semel
 * answers with what to do now: SEMEL_RUN, SEMEL_ACK or SEMEL_LATER. A duplicate is an answer, not an error.
 *
 * What it is not: it has no threads, logs nothing, reads no settings file, and never calls exit() or abort() for
 * what you pass in.
 *
 * Rules for all functions
 *  - They return a semel_status; SEMEL_OK is 0. `err` is the last parameter and may be NULL; its text says what went
 *    wrong and quotes no payload. ret_... parameters are valid only after SEMEL_OK.
 *  - A handle belongs to one thread at a time, and dies in the child of a fork().
 *  - Arguments are borrowed until the call returns. Returned strings live until the next call on the same handle.
 *  - The structs begin with their size, which their _init function sets, so that they can grow. A field that is left as
 *    _init made it is "not given".
 *  - Text is UTF-8; ids, keys, sources, types and names of consumers have at most SEMEL_ID_MAX bytes. Times are
 *    microseconds since 1970-01-01 UTC, taken from the clock of the store.
 *
 * Whose transaction
 *  - semel_inbox_begin, _done and _fail work inside a transaction that you have opened, and refuse without one.
 *  - semel_inbox_process and _work make their own transactions, and refuse inside one of yours.
 *  - All others join your transaction when one is open on the handle, and else make and commit one of their own.
 *  - A joined call that fails undoes what it wrote itself, and leaves your transaction open.
 *
 * A begin without its end cannot commit: while a message that was begun is neither done nor failed, COMMIT becomes a
 * rollback (SQLite answers SQLITE_CONSTRAINT_COMMITHOOK, PostgreSQL SQLSTATE 23000). Otherwise a record could be kept
 * without its effect. A begin or an end that a savepoint of yours has undone does not count. For this the handle uses
 * the commit and rollback hooks of an SQLite connection and a virtual table without rows, semel_watch, and must be the
 * only one; a program that needs the hooks for itself opens with SEMEL_LOOSE and asks semel_pending() in its own hook,
 * which then learns of what a savepoint has undone by the next begin, done or fail. On PostgreSQL the database itself
 * keeps track.
 */
#ifndef SEMEL_SEMEL_H
#define SEMEL_SEMEL_H

#include <semel/types.h>

#ifndef SEMEL_API
#if defined(__GNUC__)
#define SEMEL_API __attribute__((visibility("default")))
#else
#define SEMEL_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SEMEL_VERSION_MAJOR 0
#define SEMEL_VERSION_MINOR 1
#define SEMEL_VERSION_PATCH 0

struct semel;     /* a handle */
struct sqlite3;   /* no client header is needed */
struct pg_conn;   /* PGconn */
struct pg_result; /* PGresult */

/* ---- plain values -------------------------------------------------------------------------------- */

/* A message, as its consumer sees it. `consumer`, and `id` unless it is to be quarantined, must be given. */
struct semel_msg {
    size_t size;
    struct semel_str consumer; /* whose effects must happen once */
    struct semel_str source;   /* the stream that the id belongs to; "" when not given */
    struct semel_str id;       /* of the event, never of the entity */
    struct semel_str type;
    /* any bytes; an empty one is content, one that is not given is not stored: see semel_inbox_fail */
    struct semel_str payload;
    struct semel_str headers;      /* the text of a JSON object */
    struct semel_str business_key; /* the intent: another message with the same key is a business duplicate */
    struct semel_str order_key;    /* messages of one key run one at a time and in order */
    struct semel_str fingerprint;  /* not given: computed from the payload; at most 63 bytes */
    struct semel_str position;     /* its place in the broker */
    struct semel_str traceparent;  /* W3C trace context */
    int64_t version;               /* of the order key; SEMEL_NONE: none */
    int64_t message_time_us;       /* when the event was made; SEMEL_NONE: from the id, as timed_ids says */
    int delivery;                  /* 1: first delivery, more: redelivery, 0: the source does not know */
    int64_t not_before_us;         /* semel_inbox_put: it does not run before this time; SEMEL_NONE: at once */
};
SEMEL_API void semel_msg_init(struct semel_msg *msg);

/* What to do with a delivery, and why. */
struct semel_verdict {
    size_t size;
    enum semel_act act;
    enum semel_why why;
    enum semel_row_status status; /* of the row now; SEMEL_ROW_ABSENT: there is none */
    int attempt;                  /* the number of this attempt, or of the last one */
    int64_t token;                /* claim, take: the fencing token; SEMEL_NONE */
    int64_t lease_until_us;       /* claim, take: until when it is yours; SEMEL_NONE */
    int64_t due_us;               /* when it is tried again; SEMEL_NONE */
    enum semel_class cls;         /* of its last failure */
    struct semel_str outcome;     /* of the first run, for a duplicate that wants the same answer */
    struct semel_str hint;        /* as text, if there is something to report: why the broker has to deliver it again */
};
SEMEL_API void semel_verdict_init(struct semel_verdict *verdict);

/* An event for the outbox. `aggregatetype`, `aggregateid` and `type` must be given. */
struct semel_event {
    size_t size;
    struct semel_str id; /* a UUID; not given: a UUIDv7 is made */
    struct semel_str aggregatetype, aggregateid, type;
    struct semel_str payload;
    struct semel_str headers;     /* the text of a JSON object */
    struct semel_str destination; /* not given: the relay's rule decides */
    struct semel_str traceparent;
    bool lock; /* lock the aggregate before its number is drawn, until the transaction ends: semel_outbox_put */
};
SEMEL_API void semel_event_init(struct semel_event *event);

/* Text that ends with NUL, as a semel_str. NULL is "not given". */
SEMEL_API struct semel_str semel_str(const char *text);

SEMEL_API const char *semel_status_text(semel_status status);
SEMEL_API const char *semel_act_name(enum semel_act act);
SEMEL_API const char *semel_why_name(enum semel_why why);
SEMEL_API const char *semel_row_status_name(enum semel_row_status status);
SEMEL_API const char *semel_class_name(enum semel_class cls);
SEMEL_API const char *semel_result_name(enum semel_result result);
/* "0.1.0", of the library that runs. */
SEMEL_API const char *semel_version(void);

/* ---- handles ------------------------------------------------------------------------------------- */

#define SEMEL_CREATE 1u  /* open: create the database when there is none */
#define SEMEL_MIGRATE 2u /* bring the tables up to date */
#define SEMEL_LOOSE 4u   /* wrap: leave the connection's hooks alone; a begin without its end can then commit */

/* A connection of its own: "sqlite:/path/to/file.db", "postgres://user@host:5432/database" (all that libpq
 * understands). INVALID: no such database, not a database of Semel's, newer tables than this library knows, older ones
 * and no SEMEL_MIGRATE. RETRY: the server cannot be reached, does not let us in, or takes no writes. */
SEMEL_API semel_status semel_open(struct semel **ret, const char *url, unsigned flags, struct semel_error *err);
/* Your own connection, which stays yours: its settings are not touched, and semel_close does not close it. Your
 * settings determine how durable a commit is. INVALID: another handle has its hooks; and as for semel_open. */
SEMEL_API semel_status semel_wrap_sqlite(struct semel **ret, struct sqlite3 *db, unsigned flags,
                                         struct semel_error *err);
/* The same on PostgreSQL. The connection must be idle or in a transaction when a function is called, with no result
 * left to be read and not in pipeline mode. In your transaction your isolation level and your time-outs hold; above
 * READ COMMITTED a serialization failure is RETRY: roll back, and do all of it again. A begin without its end cannot
 * commit: the COMMIT itself fails, with SQLSTATE 23000. SEMEL_LOOSE lets it pass. */
SEMEL_API semel_status semel_wrap_pg(struct semel **ret, struct pg_conn *conn, unsigned flags, struct semel_error *err);
/* Call it before you close your connection. Rolls back nothing of yours; a transaction in which a message was begun and
 * has no end still cannot commit, but on SQLite an end that a savepoint undoes afterwards is not noticed: close it
 * after the transaction. NULL is allowed; does nothing inside a handler or `taken`. */
SEMEL_API void semel_close(struct semel *s);
/* The native handle (struct sqlite3 *, PGconn *), for handlers that write inside the transaction. Ask for it in every
 * call of a handler: a connection of Semel's changes after an unknown commit, and a statement prepared on the old one
 * would write outside the transaction. Your own connection never changes. */
SEMEL_API void *semel_native(struct semel *s);
/* How many messages were begun in the open transaction and have no end yet; on SQLite, ends that were refused and keep
 * it from committing (semel_inbox_finish) count too. May be called from a commit hook. On
 * PostgreSQL it may count messages of a transaction that is over, until the next call. */
SEMEL_API int semel_pending(const struct semel *s);
/* SEMEL_LOOSE: reports that the transaction has ended, by commit or rollback; for your own hooks, after semel_pending.
 * Otherwise it does nothing. */
SEMEL_API void semel_ended(struct semel *s);

/* The settings of a consumer, as a JSON object; docs/settings-consumer.md lists the members. They are stored in the
 * database, so every process, SQL client and operator uses the same. Changes the given members, the others stay; null
 * removes one, {} changes nothing. INVALID names the member and what would be right, or the obstacle: stored messages
 * that would mean something else, with their number, or a route's file that sets the consumer. A change is written to
 * the audit log. */
SEMEL_API semel_status semel_consumer_set(struct semel *s, const char *consumer, const char *settings,
                                          struct semel_error *err);
/* After a semel_consumer_set that succeeded: what its caller should consider, or NULL. The next call on the handle
 * clears it. The text is constant. */
SEMEL_API const char *semel_hint(const struct semel *s);
/* All settings of the consumer, defaults included. */
SEMEL_API semel_status semel_consumer_get(struct semel *s, const char *consumer, struct semel_str *ret_settings,
                                          struct semel_error *err);

/* ---- the inbox in your transaction --------------------------------------------------------------- */

/* SEMEL_RUN: write the effect now, in the same transaction, then call done or fail, then commit, then acknowledge.
 * SEMEL_ACK: commit, then acknowledge. SEMEL_LATER: commit, and let the broker deliver it again (a rollback works
 * too, but a message that waits for its turn then loses its place). */
SEMEL_API semel_status semel_inbox_begin(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                                         struct semel_error *err);
/* The effect is written. `outcome` (JSON text of at most 64 KiB, or not given) is returned to duplicates. Of msg only
 * consumer, source and id are used. INVALID: it was not begun in this transaction. A savepoint of yours that undoes a
 * done but not its begin leaves the message begun: call done or fail again, or the COMMIT is refused. */
SEMEL_API semel_status semel_inbox_done(struct semel *s, const struct semel_msg *msg, struct semel_str outcome,
                                        struct semel_error *err);
/* The effect is not written, and why: SEMEL_TRANSIENT, SEMEL_PERMANENT, SEMEL_REJECTED or SEMEL_MAYBE. Undo what you
 * wrote first: roll back to a savepoint, or all of it and open another transaction. Works whether the begin is still
 * there or was rolled back. ret (may be NULL) has the answer for the broker, and when it is tried again. Commit in
 * any case: a rollback would count no attempt. If neither the begin nor this call has a payload, none is stored, and
 * the answer is SEMEL_LATER: only the broker can deliver it, and that delivery is stored with the row. */
SEMEL_API semel_status semel_inbox_fail(struct semel *s, const struct semel_msg *msg, enum semel_result result,
                                        struct semel_str reason, struct semel_verdict *ret, struct semel_error *err);

/* ---- the inbox in our transactions --------------------------------------------------------------- */

struct semel_reply; /* a handler's result, other than "done" */
/* Strings are copied. Returns SEMEL_RETRY without memory. */
SEMEL_API semel_status semel_reply_set(struct semel_reply *reply, enum semel_result result, struct semel_str reason,
                                       struct semel_str outcome);

/* Your handler. SEMEL_OK: it ran, and `reply` has the result; unless set, done. Otherwise it could not do its work,
 * and err->cls is the cause: SEMEL_CLASS_TRANSIENT and _PERMANENT the message, _ENVIRONMENT and _BROKEN not the
 * message. semel_fail(), semel_fail_sqlite() and semel_fail_pg() fill it. Where the consumer's effect is `atomic`
 * (the default) the handler writes through semel_native(s), inside the open transaction, and does nothing outside it:
 * it may run more than once per delivery, with the earlier runs rolled back. Otherwise it runs with no transaction
 * open. */
typedef semel_status (*semel_handler)(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                                      struct semel_reply *reply, struct semel_error *err);
/* One statement for many messages: the handler must add every message that it handled to `named`, each exactly once. */
struct semel_named;
SEMEL_API void semel_named_add(struct semel_named *named, struct semel_str source, struct semel_str id);
typedef semel_status (*semel_set_handler)(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                                          struct semel_named *named, struct semel_error *err);

/* Fills err and returns the status that a handler should return. `text` is stored with the message: no secrets. */
SEMEL_API semel_status semel_fail(struct semel_error *err, enum semel_class cls, const char *text);
/* The same for a result code of SQLite; it knows which codes blame the message and which the environment. */
SEMEL_API semel_status semel_fail_sqlite(struct semel *s, int rc, struct semel_error *err);

/* The same for a failed result of libpq; NULL: there was none. It knows which SQLSTATEs blame the message and which the
 * environment. The text has no values of the row. */
SEMEL_API semel_status semel_fail_pg(struct semel *s, const struct pg_result *result, struct semel_error *err);

#define SEMEL_PROCESS_MAX 10000

/* Processes n deliveries of one consumer, in order of arrival: effects are written, failures are stored and retried
 * by semel_inbox_work. ret has room for n verdicts (initialised or not), whose act is ACK or LATER. OK: all are
 * decided. Otherwise the environment failed; undecided messages are LATER, earlier decisions stand. An unusable
 * message (no usable id, an empty key, a payload that is too long) is stored with the reason and does not run: it
 * must not block the others. The functions for one message refuse it instead. */
SEMEL_API semel_status semel_inbox_process(struct semel *s, const struct semel_msg *msgs, size_t n,
                                           semel_handler handler, void *ctx, struct semel_verdict *ret,
                                           struct semel_error *err);
SEMEL_API semel_status semel_inbox_process_set(struct semel *s, const struct semel_msg *msgs, size_t n,
                                               semel_set_handler handler, void *ctx, struct semel_verdict *ret,
                                               struct semel_error *err);
/* Takes stored work of the consumer that is due (retries, parked messages) and runs it; at most max messages. */
SEMEL_API semel_status semel_inbox_work(struct semel *s, const char *consumer, size_t max, semel_handler handler,
                                        void *ctx, size_t *ret_n, struct semel_error *err);

/* ---- effects outside the database ---------------------------------------------------------------- */

/* Claims the message under a lease and commits that. SEMEL_RUN: run the effect with semel_step_key() as its key, then
 * finish under ret->token. lease_ms 0: the consumer's. Joined: nothing may run before your commit. The consumer's
 * `effect` decides what an expired lease means, and must have been set by semel_consumer_set: `outside` (the outcome
 * is unknown), `keyed` (it is tried again under the same key) or `atomic` (it is tried again because nothing can have
 * happened: finish in the very transaction that writes the effect). INVALID if it was not. Acknowledge after the
 * commit of the claim; without a payload only after done: no other message could be tried again. */
SEMEL_API semel_status semel_inbox_claim(struct semel *s, const struct semel_msg *msg, int64_t lease_ms,
                                         struct semel_verdict *ret, struct semel_error *err);
/* Extends the lease from now. FENCED: somebody else has it now; stop. */
SEMEL_API semel_status semel_inbox_renew(struct semel *s, int64_t token, int64_t lease_ms, struct semel_error *err);
/* The end. FENCED: refused, because the lease expired and somebody else decides; if this handle made the claim, your
 * result is kept as evidence among the attempts. Joined, a SEMEL_DONE that is refused where the effect is `atomic`
 * (the token tells, even when its row is gone) prevents the commit of your transaction, whose effect would be a
 * second one: ROLLBACK. So call this first, then write the effect. INVALID: not a valid token; a program that keeps
 * it in a double has rounded it. */
SEMEL_API semel_status semel_inbox_finish(struct semel *s, int64_t token, enum semel_result result,
                                          struct semel_str outcome, struct semel_str reason, struct semel_error *err);
/* Releases the message without a run: the attempt does not count. FENCED as above. */
SEMEL_API semel_status semel_inbox_release(struct semel *s, int64_t token, struct semel_error *err);
/* Claims stored work that is due, at most max messages and one of each order key, and calls `taken` for each after the
 * claim is written; the strings live until semel_inbox_take returns, and `taken` may call finish, renew and release.
 * Joined: nothing may run before your commit. */
typedef void (*semel_taken)(void *ctx, const struct semel_msg *msg, const struct semel_verdict *verdict);
SEMEL_API semel_status semel_inbox_take(struct semel *s, const char *consumer, size_t max, int64_t lease_ms,
                                        semel_taken taken, void *ctx, size_t *ret_n, struct semel_error *err);
/* Stores a message for a later take, as if its broker had delivered it. SEMEL_ACK, new: it is stored, and due now, or
 * at msg->not_before_us (within ten years); no attempt is counted. Until then messages of its order key that come after
 * it wait behind it. INVALID: there is no payload (an empty one is allowed), or the consumer stores none. */
SEMEL_API semel_status semel_inbox_put(struct semel *s, const struct semel_msg *msg, struct semel_verdict *ret,
                                       struct semel_error *err);

/* Housekeeping for all consumers and idempotency keys, in bounded steps: ends expired leases, decides gaps that timed
 * out, raises watermarks and purges. ret_n (may be NULL): how many rows were touched. Call it about every second. */
SEMEL_API semel_status semel_tick(struct semel *s, size_t max, size_t *ret_n, struct semel_error *err);

#define SEMEL_STEP_KEY_SIZE 65
/* The key of an outside call: the same for the same consumer, source, message and step, for ever and on every
 * machine. If the consumer has `one_source`, leave the source out, as the messages from semel_inbox_take do. The key
 * that `semel inbox show` prints is that of the step "effect": use it, unless there are several calls. */
SEMEL_API semel_status semel_step_key(const struct semel_msg *msg, const char *step, char ret_key[SEMEL_STEP_KEY_SIZE],
                                      struct semel_error *err);

/* ---- effects that are harmless when repeated ----------------------------------------------------- */

/* Decisions that a handler makes before it writes, so that a repeat changes nothing even without an inbox row: apply
 * only the next version; move a state machine only forward; write the row of an effect under the key of
 * semel_step_key(). They need no handle. */
enum semel_version_order { SEMEL_VERSION_NEXT, SEMEL_VERSION_SAME, SEMEL_VERSION_OLDER, SEMEL_VERSION_AHEAD };
/* Compares `version` with `last`, the highest applied one. */
SEMEL_API enum semel_version_order semel_version_compare(int64_t last, int64_t version);

/* States are 0 to n - 1, at most 64; next[s] is the set of states, as bits, that follow s directly. */
struct semel_machine {
    unsigned n;
    const uint64_t *next;
};
enum semel_forward {
    SEMEL_FORWARD_APPLY,  /* the move is legal: make it */
    SEMEL_FORWARD_REPEAT, /* the machine is already there, or past it: do nothing, report success */
    SEMEL_FORWARD_REFUSE  /* there is no way from the current state to the target */
};
/* A state from which `target` cannot be reached, but which can be reached from it, is past it. */
SEMEL_API enum semel_forward semel_machine_move(const struct semel_machine *machine, unsigned current, unsigned target);

/* ---- the outbox ---------------------------------------------------------------------------------- */

#define SEMEL_EVENT_ID_SIZE 37
/* Puts an event into the outbox; it leaves only if the transaction commits. Works inside a handler too.
 * `lock`: the events of the aggregate leave in the order of their commits, although its writers hold no lock of their
 * own. On PostgreSQL it waits for another transaction that has the lock (RETRY: a deadlock, or your lock_timeout), and
 * INVALID is for more than 1,000 aggregates per transaction; nothing was put then. SQLite has one writer and needs no
 * lock. */
SEMEL_API semel_status semel_outbox_put(struct semel *s, const struct semel_event *event,
                                        char ret_id[SEMEL_EVENT_ID_SIZE], struct semel_error *err);

/* ---- idempotency keys ---------------------------------------------------------------------------- */

/* A request that has a key; docs/idempotency.md has the rules. `scope` and `key` must be given. */
struct semel_key_request {
    size_t size;
    struct semel_str scope;       /* the caller, as you have authenticated them */
    struct semel_str key;         /* 8 to 255 characters of printable ASCII */
    struct semel_str fingerprint; /* of the request, at most 63 bytes; not given: not compared */
    struct semel_str traceparent;
    int64_t answer_ms, keep_ms; /* how long answer and key are kept after completion: a day, and 30 days */
};
SEMEL_API void semel_key_request_init(struct semel_key_request *request);

struct semel_key_verdict {
    size_t size;
    enum semel_key_act act;
    struct semel_str why;     /* new, retry; completed, no_body; running; fingerprint; the cause of SEMEL_KEY_UNKNOWN */
    int64_t token;            /* SEMEL_KEY_RUN: end it by this; SEMEL_NONE */
    int status;               /* SEMEL_KEY_REPLAY: the answer, from here on */
    struct semel_str headers; /* the text of a JSON array of pairs */
    struct semel_str body;    /* not given: it is not kept (any more) */
    bool key_is_time;         /* the key is a time and nothing else: warn whoever makes such keys */
};
SEMEL_API void semel_key_verdict_init(struct semel_key_verdict *verdict);

SEMEL_API const char *semel_key_act_name(enum semel_key_act act);

/* In your transaction, with the effect: begin, write, finish, commit, then send the answer. A begin that is neither
 * finished nor failed cannot commit. Never waits for another transaction (SQLite: for its one writer). */
SEMEL_API semel_status semel_key_begin(struct semel *s, const struct semel_key_request *request,
                                       struct semel_key_verdict *ret, struct semel_error *err);
/* For effects outside: claims the key for lease_ms and commits that. Joined: nothing may run before your commit. */
SEMEL_API semel_status semel_key_claim(struct semel *s, const struct semel_key_request *request,
                                       enum semel_key_effect effect, int64_t lease_ms, struct semel_key_verdict *ret,
                                       struct semel_error *err);
/* FENCED: the token is not its key's any more; stop. */
SEMEL_API semel_status semel_key_renew(struct semel *s, int64_t token, int64_t lease_ms, struct semel_error *err);
/* Stores the answer: status 200 to 599, headers as the text of a JSON array of pairs, a body of at most 64 MiB (not
 * given: not kept). FENCED: refused, and where the effect is in your transaction (begun, or claimed SEMEL_KEY_ATOMIC)
 * that cannot commit any more: ROLLBACK. */
SEMEL_API semel_status semel_key_finish(struct semel *s, int64_t token, int status_code, struct semel_str headers,
                                        struct semel_str body, struct semel_error *err);
/* SEMEL_KEY_END_RELEASED: nothing was done, the key is free. SEMEL_KEY_END_UNKNOWN, and why. FENCED as for renew. */
SEMEL_API semel_status semel_key_fail(struct semel *s, int64_t token, enum semel_key_end how, struct semel_str cause,
                                      struct semel_error *err);

#ifdef __cplusplus
}
#endif
#endif
