/* SPDX-License-Identifier: MIT
 *
 * pg.h: private to the files of the PostgreSQL driver.
 *
 *   pg.c      URLs, connecting, checks of the server and notes about it, opening and closing
 *   pg_tx.c   transactions, the guard, and statements of handlers
 *   pg_run.c  what a SQLSTATE means, values, round trips, and the SQL port over them
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

#define PG_TRIP_MAX 24      /* statements per trip */
#define PG_PARAMS_MAX 64    /* parameters per statement */
#define PG_PREPARED_MAX 128 /* statements of ours per connection */
#define PG_QUEUED_MAX 24    /* different statements of handlers, and savepoints, that are kept prepared */
#define PG_SHAPES_MAX 16    /* different inserts that are kept prepared */
#define PG_SHAPED_MAX 32    /* their columns */

struct pg_store;
struct pg_queue;
struct pg_early;
struct pg_shape;

/* Statements that are sent together and answered together. For each: its parameters in order ($1, $2 ...), then
 * semel__pg_add. The first failure sticks and semel__pg_run reports it. Outside a transaction the statements of one
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
    bool theirs; /* set after the start: what fails is a handler's fault (semel__pg_fail), not ours */
    /* inside */
    bool entered;                   /* something was sent */
    bool limited;                   /* with time-outs in front, as no transaction was open */
    bool synced;                    /* all of it is on its way: nothing may be added */
    size_t n_slots;                 /* answers to come: one per statement, one more where it is prepared */
    int slots[2 * PG_TRIP_MAX + 5]; /* which statement, or -1: a preparation, -2: none of the caller's, -3: a Sync */
    bool parted;                    /* there is one */
    size_t preparing;               /* the statement after the last one that was answered */
    const struct sql_text *fresh[PG_TRIP_MAX + 1]; /* prepared by this trip, in order */
    size_t n_fresh;
    int n_params;
    struct semel_buf bytes; /* of the parameters */
    struct pg_param {
        const char *p; /* borrowed; NULL: `at` in bytes, unless null */
        size_t at, n;
        bool null;
    } params[PG_PARAMS_MAX];
};

/* The results that run() has asked for and flush() will read (pg_run.c). */
struct pg_reading {
    const struct sql_statement *statement;
    sql_reader read;
    void *ctx;
    size_t at, n; /* its result in the trip; how many items it has */
    bool early;   /* it was asked before, with an early begin */
};

struct pg_exec {
    struct pg_trip trip;
    bool started; /* the trip is */
    struct pg_reading readings[PG_TRIP_MAX + 1];
    size_t n;
};

/* A transaction whose begin and commit are sent with its first flush: is there one, and how far is it? */
enum pg_once { PG_ONCE_NONE, PG_ONCE_DUE, PG_ONCE_SENT, PG_ONCE_COMMITTED };

struct pg_store {
    struct sql sql;
    struct pg_exec exec;
    PGconn *conn;
    char *conninfo; /* for libpq, without our parameters; NULL for a wrapped one. Holds a password: wiped */
    bool wrapped;   /* the caller's connection */
    bool pooler;    /* no named statements */
    bool broken;    /* could not be brought back to a known state: CLOSED until reopened */
    bool begun;     /* we began the open transaction, and we end it */
    bool joined;    /* the open transaction is the caller's */
    bool bare;      /* no handler runs in the transaction that we began */
    enum pg_once once;
    bool once_asks;              /* its begin is answered: */
    size_t once_begun;           /* by that result of the trip */
    bool settled;                /* the session has the limits of such transactions, and no handler was let in since */
    int64_t begun_at_us;         /* when the last begin was sent, by the steady clock */
    int64_t now_us, now_seen_us; /* the server's clock at such a begin, and its time; 0: it has to be asked */
    bool begun_early;            /* a BEGIN was sent that no call of begin has asked for yet */
    bool queued;                 /* statements of handlers are on their way */
    bool blocking;               /* the caller's connection was, before it was used */
    bool undone;                 /* nothing happened since the last rollback_to */
    bool cursor;                 /* the guard is set in a joined transaction */
    int saved;                   /* how many savepoints are set */
    bool lost_wait;              /* a notice said that the wait for a standby was cancelled */
    char lock_timeout[16];       /* in milliseconds */
    int64_t timeline;            /* of the server, as it was seen last; 0: not yet */
    pid_t pid;
    int64_t trips;
    uint64_t begins; /* own transactions so far */
    struct semel_random own_rng;
    const struct sql_text *prepared[PG_PREPARED_MAX];
    size_t n_prepared;
    struct pg_queue *queue;
    struct pg_early *early;
    struct pg_shape *shapes;
    size_t n_shapes;
};

static inline struct pg_store *semel__pg_of(struct semel_store *store)
{
    return (struct pg_store *)store; /* the first member */
}

/* ---- pg_run.c ----------------------------------------------------------------------------------- */

void semel__pg_start(struct pg_trip *trip, struct pg_store *d, const char *doing);
/* Returns the index of its result. */
size_t semel__pg_add(struct pg_trip *trip, const struct sql_text *sql);
/* Sends and waits for all. OK: every statement succeeded. After a failure inside a transaction it must be rolled back,
 * whole or to a savepoint. No statement added: OK, without a round trip. */
semel_status semel__pg_run(struct pg_trip *trip, struct semel_error *err);
void semel__pg_end(struct pg_trip *trip); /* frees results; may be called twice */
/* start, add, run and end of one statement without parameters and without rows. */
semel_status semel__pg_do(struct pg_store *d, const struct sql_text *sql, const char *doing, struct semel_error *err);

void semel__pg_text(struct pg_trip *trip, struct semel_str s); /* a parameter; not given: NULL; borrowed until add */

/* Pieces of a trip, for the statements of handlers. */
bool semel__pg_unblock(struct pg_store *d);
void semel__pg_reblock(struct pg_store *d);
semel_status semel__pg_answer(struct pg_store *d, const char *doing, PGresult **ret, struct semel_error *err);
semel_status semel__pg_synced(struct pg_store *d, const char *doing, struct semel_error *err);
bool semel__pg_succeeded(const PGresult *result);

/* CLOSED: the connection is gone, or belongs to the process that forked this one. INVALID: the caller's own connection
 * is in the middle of something. */
semel_status semel__pg_usable(struct pg_store *d, struct semel_error *err);
bool semel__pg_in_tx(const struct pg_store *d); /* on the server, as far as it has answered, whoever began it */
bool semel__pg_data_fault(const struct semel_error *err);
/* For tests: what the table says of a SQLSTATE. */
semel_status semel__pg_meaning(const char *code, enum semel_class *ret_cls);
int semel__pg_code(const char *code); /* as err->code has it; 0: not a SQLSTATE */
/* CLOSED: the connection is of no use from now on. */
semel_status semel__pg_lost(struct pg_store *d, const char *doing, struct semel_error *err);
/* A statement of ours failed: as semel__pg_fail, but a violated constraint is no message's fault. */
semel_status semel__pg_own_fail(struct pg_store *d, const PGresult *result, const char *doing, struct semel_error *err);

/* How a column of a shaped statement lies over the items, and the text for that; NULL: no memory. For tests. */
enum pg_spread_of { PG_NULL, PG_SAME, PG_EACH };
struct pg_spread {
    enum pg_spread_of of[PG_SHAPED_MAX];
};
char *semel__pg_shaped(const struct sql_statement *statement, const struct pg_spread *spread);
void semel__pg_shapes_free(struct pg_store *d);
extern const struct sql_driver semel__pg_driver;

/* ---- pg_tx.c ------------------------------------------------------------------------------------ */

semel_status semel__pg_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err);
semel_status semel__pg_commit(struct semel_store *store, struct semel_error *err);
void semel__pg_rollback(struct semel_store *store);
semel_status semel__pg_savepoint(struct semel_store *store, struct semel_error *err);
semel_status semel__pg_rollback_to(struct semel_store *store, struct semel_error *err);
void semel__pg_leave(struct semel_store *store);
bool semel__pg_busy(struct semel_store *store);
semel_status semel__pg_guard(struct semel_store *store, bool on, struct semel_error *err);
semel_status semel__pg_check(struct semel_store *store, struct semel_error *err);

/* Around the statements of a flush, when a transaction of one flush is due: its begin; its commit, sends and waits. */
void semel__pg_once_begin(struct pg_trip *trip);
semel_status semel__pg_once_commit(struct pg_trip *trip, struct semel_error *err);

void semel__pg_early(struct semel_store *store, struct semel_str consumer);
semel_status semel__pg_collect(struct semel_store *store, size_t *ret_tag, struct semel_error *err);
/* Their places in struct semel_store_ops. */
#define PG_TRANSACTIONS                                                                                       \
    .begin = semel__pg_begin, .commit = semel__pg_commit, .rollback = semel__pg_rollback,                     \
    .savepoint = semel__pg_savepoint, .rollback_to = semel__pg_rollback_to, .leave = semel__pg_leave,         \
    .guard = semel__pg_guard, .collect = semel__pg_collect, .check = semel__pg_check, .busy = semel__pg_busy, \
    .data_fault = semel__pg_data_fault, .begin_early = semel__pg_early

/* The early begin has asked for the consumer's settings; the answer, waited for, is valid until the transaction is
 * asked for or dropped. */
bool semel__pg_early_asked(const struct pg_store *d, struct semel_str consumer);
semel_status semel__pg_early_settings(struct pg_store *d, PGresult **ret, struct semel_error *err);
void semel__pg_early_drop(struct pg_store *d); /* it is not wanted */
/* Reads all answers to what is queued and leaves pipeline mode. The first failure is returned, and once more by
 * collect. */
semel_status semel__pg_queue_end(struct pg_store *d, struct semel_error *err);
void semel__pg_tx_abandon(struct pg_store *d, bool ours);
void semel__pg_tx_free(struct pg_store *d);

/* One snapshot for several trips of a reader. Inside a transaction that transaction is used (and nothing is begun). */
semel_status semel__pg_snapshot(struct sql *db, bool *ret_begun, struct semel_error *err);
void semel__pg_snapshot_end(struct sql *db, bool begun);

/* ---- pg.c --------------------------------------------------------------------------------------- */

semel_status semel__pg_url(struct pg_store *d, struct semel_str location, struct semel_error *err);
void semel__pg_forget_url(struct pg_store *d);
/* RETRY, ENVIRONMENT, once: the server was promoted since this handle last asked; err says what may be lost. Inside a
 * transaction it asks nothing and returns OK. */
semel_status semel__pg_timeline(struct pg_store *d, struct semel_error *err);

#endif
