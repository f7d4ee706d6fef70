/* SPDX-License-Identifier: MIT
 *
 * pg.h: private to the files of the PostgreSQL driver.
 *
 *   pg.c           opening, closing, wrapping; the tables of functions
 *   pg_url.c       what a URL says: our parameters, the rest for libpq
 *   pg_conn.c      connecting, and whether the server will do
 *   pg_trip.c      a round trip: statements sent in a pipeline, every wait bounded
 *   pg_value.c     values on the wire, in binary
 *   pg_fail.c      what a SQLSTATE means
 *   pg_schema.c    migrations, and which schema is there
 *   pg_timeline.c  whether the server was promoted
 *   pg_tx.c        transactions, savepoint, guard
 *   pg_ahead.c     a transaction that is begun before it is asked for
 *   pg_queue.c     statements of handlers, sent without waiting
 *   pg_run.c       the SQL port: statements of the records
 *
 * Invariants: every value is bound, none is ever part of a statement's text; tables are named with their schema; a trip
 * that was started is ended before the function that started it returns.
 */
#ifndef SEMEL_STORE_PG_H
#define SEMEL_STORE_PG_H

#include <libpq-fe.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/random.h"
#include "base/str.h"
#include "store/pg_store.h"
#include "store/records.h"

#define PG_TRIP_MAX 24      /* statements a trip */
#define PG_PARAMS_MAX 64    /* parameters a statement */
#define PG_PREPARED_MAX 128 /* statements of ours a connection */
#define PG_QUEUED_MAX 24    /* different statements of handlers, and savepoints, that are kept prepared */
#define PG_SHAPES_MAX 16    /* different inserts that are kept prepared */
#define PG_SHAPED_MAX 32    /* their columns */

struct pg_store;
struct pg_queue;
struct pg_ahead;
struct pg_shape;

/* Statements that are sent together and answered together. For each: its parameters in order ($1, $2 ...), then
 * semel__pg_add. The first failure sticks and is told by semel__pg_run. Outside a transaction the statements of one
 * trip are one transaction. A statement of the driver's own is a constant, and its name is unique; types are set by
 * casts in the text: $2::text[]. */
struct pg_trip {
    struct pg_store *d;
    const char *doing;
    semel_status status;
    struct semel_error err;
    size_t n;                       /* statements added */
    PGresult *results[PG_TRIP_MAX]; /* in that order, after the run */
    size_t failed;                  /* which one failed, after a run that did; n: none in particular */
    bool bare;                      /* set after the start: no time-outs are added where no transaction is open */
    /* inside */
    bool entered;                   /* something was sent */
    bool restore;                   /* the caller's connection was blocking */
    size_t n_slots;                 /* answers to come: one a statement, and one each that had to be prepared */
    int slots[2 * PG_TRIP_MAX + 2]; /* which statement, or -1: a preparation, or -2: none of the caller's */
    size_t preparing;               /* the statement after the last one that was answered */
    const struct sql_text *fresh[PG_TRIP_MAX + 1]; /* prepared by this trip, in order */
    size_t n_fresh;
    int n_params;
    struct semel_buf bytes; /* of the parameters */
    struct {
        const char *p; /* borrowed; NULL: `at` in bytes, unless null */
        size_t at, n;
        bool null;
    } params[PG_PARAMS_MAX];
    size_t array_at, array_n; /* of the array that is being filled */
};

/* What run() has sent and flush() will read (pg_run.c). */
struct pg_reading {
    const struct sql_statement *statement;
    sql_reader read;
    void *ctx;
    size_t at, n; /* its result in the trip; how many items it has */
    bool early;   /* it was asked before: pg_ahead.c */
};

struct pg_exec {
    struct pg_trip trip;
    bool started; /* the trip is */
    struct pg_reading readings[PG_TRIP_MAX + 1];
    size_t n;
};

struct pg_store {
    struct sql sql;
    struct pg_exec exec;
    PGconn *conn;
    char *conninfo;   /* for libpq, without our parameters; NULL for a wrapped one. Holds a password: wiped */
    bool wrapped;     /* the caller's connection */
    bool pooler;      /* no named statements */
    bool broken;      /* could not be brought back to a known state: CLOSED until reopened */
    bool begun;       /* we began the open transaction, and we end it */
    bool joined;      /* the open transaction is the caller's */
    bool undone;      /* nothing happened since the last rollback_to */
    bool cursor;      /* the guard is set in a joined transaction */
    int saved;        /* how many savepoints are set */
    bool lost_wait;   /* a notice said that the wait for a standby was cancelled */
    int timeout_ms;   /* for locks */
    int schema_found; /* when it was opened, before a migration */
    int64_t timeline; /* of the server, as it was seen last; 0: not yet */
    pid_t pid;
    int64_t trips;
    uint64_t begins; /* own transactions so far */
    struct semel_random own_rng;
    const struct sql_text *prepared[PG_PREPARED_MAX];
    size_t n_prepared;
    struct pg_queue *queue;
    struct pg_ahead *ahead;
    struct pg_shape *shapes;
    size_t n_shapes;
};

static inline struct pg_store *semel__pg_of(struct semel_store *store)
{
    return (struct pg_store *)store; /* the first member */
}

/* ---- a round trip ------------------------------------------------------------------------------- */

void semel__pg_start(struct pg_trip *trip, struct pg_store *d, const char *doing);
/* Returns the index of its result. */
size_t semel__pg_add(struct pg_trip *trip, const struct sql_text *sql);
/* Sends and waits for all. OK: every statement succeeded. After a failure inside a transaction it must be rolled back,
 * whole or to a savepoint. No statement added: OK, without a round trip. */
semel_status semel__pg_run(struct pg_trip *trip, struct semel_error *err);
/* The same; a statement that fails is told as a handler's fault (semel__pg_fail), not as one of ours. */
semel_status semel__pg_run_theirs(struct pg_trip *trip, struct semel_error *err);
void semel__pg_end(struct pg_trip *trip); /* frees results; may be called twice */
/* start, add, run and end of one statement without parameters and without rows. */
semel_status semel__pg_do(struct pg_store *d, const struct sql_text *sql, const char *doing, struct semel_error *err);

/* Pieces of a trip, for pg_queue.c. */
semel_status semel__pg_wait(struct pg_store *d, const char *doing, struct semel_error *err);
semel_status semel__pg_answer(struct pg_store *d, const char *doing, PGresult **ret, struct semel_error *err);
semel_status semel__pg_synced(struct pg_store *d, const char *doing, struct semel_error *err);
bool semel__pg_succeeded(const PGresult *result);

/* ---- parameters, in binary ---------------------------------------------------------------------- */

void semel__pg_text(struct pg_trip *trip, struct semel_str s); /* text or bytea; not given: NULL; borrowed until add */
void semel__pg_key(struct pg_trip *trip, struct semel_str s);  /* the same; not given: the empty text (a source) */
void semel__pg_int(struct pg_trip *trip, int64_t v);           /* bigint; SEMEL_NONE: NULL */
void semel__pg_time(struct pg_trip *trip, int64_t us);         /* timestamptz; SEMEL_NONE: NULL */
void semel__pg_bool(struct pg_trip *trip, bool v);
void semel__pg_null(struct pg_trip *trip);
void semel__pg_copied(struct pg_trip *trip, struct semel_str s); /* text or bytea, not borrowed */

enum pg_kind { PG_TEXTS, PG_BYTES, PG_INTS, PG_TIMES, PG_BOOLS };
/* text[], bytea[], bigint[], integer[], timestamptz[], boolean[]: start, n items, end. */
void semel__pg_array(struct pg_trip *trip, enum pg_kind kind, size_t n);
void semel__pg_item_text(struct pg_trip *trip, struct semel_str s); /* PG_TEXTS, PG_BYTES */
void semel__pg_item_int(struct pg_trip *trip, int64_t v);
void semel__pg_item_time(struct pg_trip *trip, int64_t us);
void semel__pg_item_bool(struct pg_trip *trip, bool v);
void semel__pg_array_end(struct pg_trip *trip);

/* ---- results, in binary ------------------------------------------------------------------------- */

/* bigint or integer; SEMEL_NONE: NULL, or no such number. */
int64_t semel__pg_get_int(const PGresult *res, int row, int col);
int64_t semel__pg_get_time(const PGresult *res, int row, int col); /* us since 1970; SEMEL_NONE: NULL */
bool semel__pg_get_bool(const PGresult *res, int row, int col);    /* NULL: false */
/* Text or bytes, borrowed until the trip ends; NULL: not given. */
struct semel_str semel__pg_get_text(const PGresult *res, int row, int col);
/* The same, copied; what is longer than max is cut there. */
semel_status semel__pg_copy(const PGresult *res, int row, int col, size_t max, struct semel_arena *arena,
                            struct semel_str *ret, struct semel_error *err);
size_t semel__pg_affected(const PGresult *res); /* rows inserted, updated, deleted or given */

/* ---- the parts ---------------------------------------------------------------------------------- */

/* CLOSED: the connection is gone, or belongs to the process that forked this one. INVALID: the caller's own connection
 * is in the middle of something. */
semel_status semel__pg_usable(struct pg_store *d, struct semel_error *err);
bool semel__pg_in_tx(const struct pg_store *d); /* on the server, as far as it has told, whoever began it */
/* For tests: what the table says of a SQLSTATE. */
bool semel__pg_data_fault(const struct semel_error *err);
semel_status semel__pg_meaning(const char *code, enum semel_class *ret_cls);
int semel__pg_code(const char *code); /* as err->code has it; 0: not a SQLSTATE */
semel_status semel__pg_lost(PGconn *conn, const char *doing, struct semel_error *err); /* CLOSED */
/* A statement of ours failed: as semel__pg_fail, but a violated constraint is no message's fault. */
semel_status semel__pg_own_fail(struct pg_store *d, const PGresult *result, const char *doing, struct semel_error *err);

/* One snapshot for several trips of a reader. Inside a transaction that transaction is used (and nothing is begun). */
semel_status semel__pg_snapshot(struct sql *db, bool *ret_begun, struct semel_error *err);
void semel__pg_snapshot_end(struct sql *db, bool begun);

semel_status semel__pg_url(struct pg_store *d, struct semel_str location, struct semel_error *err);
void semel__pg_forget_url(struct pg_store *d);
semel_status semel__pg_connect(struct pg_store *d, struct semel_error *err);
/* Version, encodings, whether it takes writes, schema. */
semel_status semel__pg_suitable(struct pg_store *d, struct semel_error *err);
void semel__pg_disconnect(struct pg_store *d);

/* INVALID: a newer schema than this binary knows, none or an old one and !will_migrate. */
semel_status semel__pg_schema_check(struct pg_store *d, bool will_migrate, struct semel_error *err);
semel_status semel__pg_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err);

/* RETRY, ENVIRONMENT, once: the server was promoted since this handle last looked, err says what may be lost. Inside a
 * transaction: OK, and nothing is looked at. */
semel_status semel__pg_timeline(struct pg_store *d, struct semel_error *err);
/* Moves sequences that began anew past what is stored. CLOSED: the connection is gone. */
semel_status semel__pg_sequences(struct pg_store *d, struct semel_error *err);
/* "; the server was promoted ..." when that was noticed lately; else empty. */
void semel__pg_timeline_about(struct pg_store *d, char *out, size_t size);

semel_status semel__pg_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err);
semel_status semel__pg_commit(struct semel_store *store, struct semel_error *err);
void semel__pg_rollback(struct semel_store *store);
semel_status semel__pg_savepoint(struct semel_store *store, struct semel_error *err);
semel_status semel__pg_rollback_to(struct semel_store *store, struct semel_error *err);
void semel__pg_leave(struct semel_store *store);
bool semel__pg_busy(struct semel_store *store);
semel_status semel__pg_guard(struct semel_store *store, bool on, struct semel_error *err);
semel_status semel__pg_check(struct semel_store *store, struct semel_error *err);

/* Adds what begins a transaction of our own; returns the index of the result that begin reads. */
size_t semel__pg_begin_add(struct pg_trip *trip);

void semel__pg_ahead(struct semel_store *store, struct semel_str consumer);
bool semel__pg_ahead_is(const struct pg_store *d); /* a transaction is on its way that nobody has asked for yet */
/* It has asked for the consumer's settings. */
bool semel__pg_ahead_asked(const struct pg_store *d, struct semel_str consumer);
/* The answers, waited for; valid until the end. */
semel_status semel__pg_ahead_begun(struct pg_store *d, const PGresult **ret, struct semel_error *err);
semel_status semel__pg_ahead_settings(struct pg_store *d, PGresult **ret, struct semel_error *err);
void semel__pg_ahead_end(struct pg_store *d);  /* the transaction is the caller's now */
void semel__pg_ahead_drop(struct pg_store *d); /* it is not wanted */
void semel__pg_ahead_free(struct pg_store *d);

/* Ends what is queued; OK when nothing is. */
semel_status semel__pg_collect(struct semel_store *store, size_t *ret_tag, struct semel_error *err);
bool semel__pg_queue_open(const struct pg_store *d);
/* Reads all answers and leaves pipeline mode. The first failure is returned, and once more by collect. */
semel_status semel__pg_queue_end(struct pg_store *d, struct semel_error *err);
/* Queues statements of ours behind those of handlers. */
semel_status semel__pg_queue_ours(struct pg_store *d, const struct sql_text *const *texts, size_t n,
                                  struct semel_error *err);
void semel__pg_queue_drop(struct pg_store *d);   /* ends it, and forgets what came of it */
void semel__pg_queue_forget(struct pg_store *d); /* the connection is gone */
void semel__pg_queue_free(struct pg_store *d);

/* How a column of a shaped statement lies over the items, and the text for that; NULL: no memory. For tests. */
enum pg_spread_of { PG_NULL, PG_SAME, PG_EACH };
struct pg_spread {
    enum pg_spread_of of[PG_SHAPED_MAX];
};
char *semel__pg_shaped(const struct sql_statement *statement, const struct pg_spread *spread);
void semel__pg_shapes_free(struct pg_store *d);
extern const struct sql_driver semel__pg_driver;

#endif
