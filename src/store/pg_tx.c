/* SPDX-License-Identifier: MIT
 *
 * pg_tx.c: transactions, savepoints, and the guard around handlers.
 *
 * An own transaction is READ COMMITTED, with time-outs for locks, statements and idleness of its own (P64). It is
 * refused where synchronous_commit is off, and checked again before COMMIT (P72).
 *
 * The guard (P58). A handler has the connection, and nothing keeps it from sending COMMIT. So a cursor WITH HOLD is
 * declared at the beginning: a COMMIT has to fill it, and its query fails, whereby the whole transaction is rolled back
 * before anything is written. Our own COMMIT closes it first; and if it is not there any more, the transaction is
 * another one than we began. A joined transaction has the cursor only while handlers run.
 *
 * Invariants: OK from commit means that COMMIT was answered by COMMIT, and that no warning said otherwise (P16). A
 * COMMIT that was sent and not answered is UNKNOWN (P15). A savepoint of a joined transaction is released, or rolled
 * back to, before the caller has its transaction back.
 */
#include <stdio.h>

#include "store/pg.h"

#define GUARD_NAME "semel_guard"
#define REPLAN_EVERY 256 /* transactions */

static const struct sql_text sql_begin = {"semel_begin", "BEGIN ISOLATION LEVEL READ COMMITTED"};
static const struct sql_text sql_replan = {"semel_replan", "DISCARD PLANS"};
static const struct sql_text sql_commit = {"semel_commit", "COMMIT"};
static const struct sql_text sql_rollback = {"semel_rollback", "ROLLBACK"};
/* What the role or the database has set to less than a minute stays. */
#define LIMIT(name)                                                                 \
    "pg_catalog.set_config('" name "', CASE WHEN pg_catalog.current_setting('" name \
    "')::interval BETWEEN '1 ms' AND '1 min' THEN "                                 \
    "pg_catalog.current_setting('" name "') ELSE '1min' END, true)"
#define LIMITS LIMIT("statement_timeout") ", " LIMIT("idle_in_transaction_session_timeout")
static const struct sql_text sql_settings = {
    "semel_settings", "SELECT pg_catalog.clock_timestamp(), pg_catalog.current_setting('synchronous_commit'), "
                      "pg_catalog.current_setting('synchronous_standby_names') <> '', "
                      "pg_catalog.set_config('lock_timeout', $1, true), " LIMITS};
static const struct sql_text sql_joined = {
    "semel_joined", "SELECT pg_catalog.clock_timestamp(), pg_catalog.current_setting('transaction_isolation'), "
                    "pg_catalog.current_setting('synchronous_standby_names') <> ''"};
/* pg_backend_pid() keeps the planner from trying it. */
static const struct sql_text sql_guard = {
    "semel_guard",
    "DECLARE " GUARD_NAME " NO SCROLL CURSOR WITH HOLD FOR "
    "SELECT ('a handler must not end the transaction: '::text || pg_catalog.pg_backend_pid()::text)::integer"};
static const struct sql_text sql_guarded = {
    "semel_guarded", "SELECT pg_catalog.count(*) FROM pg_catalog.pg_cursors WHERE name = '" GUARD_NAME "'"};
static const struct sql_text sql_unguard = {"semel_unguard", "CLOSE " GUARD_NAME};
/* Fails when the COMMIT behind it would not be durable. */
static const struct sql_text sql_durable = {
    "semel_durable", "SELECT 1 / (pg_catalog.current_setting('synchronous_commit') <> 'off')::integer"};

static const struct sql_text sql_save_join = {"semel_save_join", "SAVEPOINT semel_join"};
static const struct sql_text sql_back_join = {"semel_back_join", "ROLLBACK TO SAVEPOINT semel_join"};
static const struct sql_text sql_release_join = {"semel_release_join", "RELEASE SAVEPOINT semel_join"};
static const struct sql_text sql_save = {"semel_save", "SAVEPOINT semel_one"};
static const struct sql_text sql_back = {"semel_back", "ROLLBACK TO SAVEPOINT semel_one"};
static const struct sql_text sql_release = {"semel_release", "RELEASE SAVEPOINT semel_one"};

static semel_status ended(struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "the transaction was ended by a statement inside it (COMMIT, ROLLBACK or CLOSE ALL)");
}

static bool is_over(const struct pg_store *d)
{
    return semel__pg_ahead_is(d) || (!semel__pg_queue_open(d) && PQtransactionStatus(d->conn) == PQTRANS_IDLE);
}

static bool has_failed(const struct pg_store *d)
{
    return !semel__pg_queue_open(d) && PQtransactionStatus(d->conn) == PQTRANS_INERROR;
}

/* ---- begin --------------------------------------------------------------------------------------- */

/* A plan that was made for an empty table reads all of it, and is kept until the table is analysed: that is long for a
 * table that fills in seconds. So plans are made anew now and then, often in the beginning. */
static bool replan_due(struct pg_store *d)
{
    uint64_t n = ++d->begins;
    return d->n_prepared > 0 && ((n & (n - 1)) == 0 || n % REPLAN_EVERY == 0);
}

size_t semel__pg_begin_add(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    char lock_timeout[16];
    snprintf(lock_timeout, sizeof(lock_timeout), "%d", d->timeout_ms);
    trip->bare = true;
    semel__pg_add(trip, &sql_begin);
    if (replan_due(d))
        semel__pg_add(trip, &sql_replan);
    semel__pg_text(trip, semel__str(lock_timeout));
    size_t at = semel__pg_add(trip, &sql_settings);
    semel__pg_add(trip, &sql_guard);
    return at;
}

static semel_status read_begin(struct pg_store *d, const PGresult *res, int64_t *ret_now_us, struct semel_error *err)
{
    *ret_now_us = semel__pg_get_time(res, 0, 0);
    d->sql.standby = semel__pg_get_bool(res, 0, 2);
    if (semel__str_eqz(semel__pg_get_text(res, 0, 1), "off"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_ENVIRONMENT,
                           "synchronous_commit is off: what was answered as committed could be lost; set it to on for "
                           "this role and database");
    return SEMEL_OK;
}

static semel_status begin_own(struct pg_store *d, int64_t *ret_now_us, struct semel_error *err)
{
    struct pg_trip trip;
    const PGresult *res = NULL;
    bool ahead = semel__pg_ahead_is(d);
    semel_status status;
    d->begun = true;
    d->sql.strict = false;
    if (ahead) {
        status = semel__pg_ahead_begun(d, &res, err);
    } else {
        semel__pg_start(&trip, d, "begin");
        size_t at = semel__pg_begin_add(&trip);
        status = semel__pg_run(&trip, err);
        res = trip.results[at];
    }
    if (status == SEMEL_OK)
        status = read_begin(d, res, ret_now_us, err);
    if (ahead)
        semel__pg_ahead_end(d);
    else
        semel__pg_end(&trip);
    if (status != SEMEL_OK)
        semel__pg_rollback(&d->sql.store);
    return status;
}

static semel_status begin_joined(struct pg_store *d, int64_t *ret_now_us, struct semel_error *err)
{
    struct pg_trip trip;
    d->joined = true;
    semel__pg_start(&trip, d, "joining the transaction");
    size_t at = semel__pg_add(&trip, &sql_joined);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK) {
        *ret_now_us = semel__pg_get_time(trip.results[at], 0, 0);
        struct semel_str level = semel__pg_get_text(trip.results[at], 0, 1);
        d->sql.strict = semel__str_eqz(level, "repeatable read") || semel__str_eqz(level, "serializable");
        d->sql.standby = semel__pg_get_bool(trip.results[at], 0, 2);
    }
    semel__pg_end(&trip);
    d->joined = status == SEMEL_OK;
    return status;
}

semel_status semel__pg_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (tx == SEMEL_TX_OWN && !is_over(d))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a transaction is already open on this connection: join it, or end it first");
    if (tx == SEMEL_TX_JOIN && is_over(d))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is no open transaction to join: BEGIN first");
    if (tx == SEMEL_TX_JOIN && has_failed(d))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the open transaction has failed already: roll it back");
    d->saved = 0;
    d->cursor = d->undone = false;
    d->sql.admitted.n_draws = 0;
    status = tx == SEMEL_TX_OWN ? begin_own(d, ret_now_us, err) : begin_joined(d, ret_now_us, err);
    if (status == SEMEL_OK && d->sql.clock != NULL)
        *ret_now_us = semel__now(d->sql.clock);
    return status;
}

/* ---- the end ------------------------------------------------------------------------------------- */

void semel__pg_rollback(struct semel_store *store)
{
    struct pg_store *d = semel__pg_of(store);
    bool begun = d->begun;
    semel__pg_queue_drop(d);
    d->begun = false;
    d->saved = 0;
    if (!begun || d->conn == NULL || d->broken)
        return;
    if (PQtransactionStatus(d->conn) == PQTRANS_IDLE)
        return;
    d->begun = true; /* for the trip */
    if (semel__pg_do(d, &sql_rollback, "rollback", NULL) != SEMEL_OK)
        d->broken = true;
    d->begun = false;
}

static semel_status unknown(const struct semel_error *why, struct semel_error *err)
{
    struct semel_error text = *why;
    return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_ENVIRONMENT, "%s", text.text);
}

/* Which of the three statements failed, and what that says. */
static semel_status commit_failed(struct pg_store *d, const struct pg_trip *trip, struct semel_error *err)
{
    enum { DURABLE, UNGUARD, COMMIT };
    semel_status status = trip->status;
    struct semel_error why = trip->err;
    if (status == SEMEL_CLOSED && trip->failed >= COMMIT)
        status = unknown(&why, &why);
    else if (trip->failed == DURABLE && why.code == SEMEL_SQLSTATE('2', '2', '0', '1', '2'))
        status = semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "the handler has set synchronous_commit to off: what it did could be lost");
    else if (trip->failed == UNGUARD && status != SEMEL_CLOSED)
        status = ended(&why);
    semel__pg_rollback(&d->sql.store);
    if (err != NULL)
        *err = why;
    return status;
}

static semel_status commit_own(struct pg_store *d, struct semel_error *err)
{
    struct pg_trip trip;
    d->lost_wait = false;
    semel__pg_start(&trip, d, "commit");
    semel__pg_add(&trip, &sql_durable);
    semel__pg_add(&trip, &sql_unguard);
    size_t at = semel__pg_add(&trip, &sql_commit);
    semel_status status = semel__pg_run_theirs(&trip, err);
    if (status != SEMEL_OK)
        status = commit_failed(d, &trip, err);
    else if (strcmp(PQcmdStatus(trip.results[at]), "COMMIT") != 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "commit: the server rolled back: a statement had failed before");
    else if (d->lost_wait)
        status = semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_ENVIRONMENT,
                             "commit: the wait for the synchronous standby was cancelled: it may not have the commit");
    semel__pg_end(&trip);
    return status;
}

semel_status semel__pg_commit(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    if (!d->begun) /* joined: the caller commits */
        return SEMEL_OK;
    semel_status status = semel__pg_usable(d, err);
    if (status == SEMEL_OK)
        status = commit_own(d, err);
    else
        semel__pg_rollback(store);
    d->begun = false;
    d->saved = 0;
    return status;
}

/* ---- savepoints ---------------------------------------------------------------------------------- */

semel_status semel__pg_savepoint(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (is_over(d))
        return ended(err);
    bool outer = d->joined && d->saved == 0;
    bool inner = d->saved == (d->joined ? 2 : 1);
    if (inner && semel__pg_queue_open(d)) {
        static const struct sql_text *const again[] = {&sql_release, &sql_save};
        return semel__pg_queue_ours(d, again, 2, err);
    }
    semel__pg_start(&trip, d, "savepoint");
    if (inner)
        semel__pg_add(&trip, &sql_release);
    semel__pg_add(&trip, outer ? &sql_save_join : &sql_save);
    status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    if (status == SEMEL_OK && !inner)
        d->saved++;
    return status;
}

semel_status semel__pg_rollback_to(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel__pg_queue_drop(d);
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (is_over(d))
        return ended(err);
    status = semel__pg_do(d, d->joined && d->saved < 2 ? &sql_back_join : &sql_back, "rollback to savepoint", err);
    d->undone = status == SEMEL_OK;
    d->cursor = false;
    return status;
}

/* Core undoes a joined transaction by rollback_to and then leave. If it had set a second savepoint in between, the
 * first is the one that was meant. */
void semel__pg_leave(struct semel_store *store)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    bool saved = d->saved > 0, undo = d->undone && d->saved > 1;
    semel__pg_queue_drop(d);
    if (saved && !d->broken && d->conn != NULL && PQtransactionStatus(d->conn) == PQTRANS_INTRANS) {
        semel__pg_start(&trip, d, "leaving the transaction");
        if (undo)
            semel__pg_add(&trip, &sql_back_join);
        semel__pg_add(&trip, &sql_release_join);
        (void)semel__pg_run(&trip, NULL);
        semel__pg_end(&trip);
    }
    d->joined = d->cursor = d->undone = false;
    d->saved = 0;
}

bool semel__pg_busy(struct semel_store *store)
{
    const struct pg_store *d = semel__pg_of(store);
    if (d->conn == NULL || PQstatus(d->conn) != CONNECTION_OK)
        return false;
    return PQtransactionStatus(d->conn) != PQTRANS_IDLE;
}

/* ---- handlers ------------------------------------------------------------------------------------ */

/* In a batch the cursor is asked for at COMMIT, at no extra cost. A single message is to be blamed now. */
static semel_status unguard_own(struct pg_store *d, struct semel_error *err)
{
    struct pg_trip trip;
    if (d->saved == 0)
        return SEMEL_OK;
    semel__pg_start(&trip, d, "guard");
    size_t at = semel__pg_add(&trip, &sql_guarded);
    semel_status status = semel__pg_run(&trip, err);
    if (status == SEMEL_OK && semel__pg_get_int(trip.results[at], 0, 0) != 1)
        status = ended(err);
    semel__pg_end(&trip);
    return status;
}

static semel_status unguard_joined(struct pg_store *d, struct semel_error *err)
{
    struct semel_error why;
    if (!d->cursor)
        return SEMEL_OK;
    d->cursor = false;
    semel_status status = semel__pg_do(d, &sql_unguard, "guard", &why);
    if (status == SEMEL_INVALID)
        return ended(err);
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

semel_status semel__pg_guard(struct semel_store *store, bool on, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel_status status = semel__pg_usable(d, err);
    if (status == SEMEL_OK && !on && semel__pg_queue_open(d))
        status = semel__pg_queue_end(d, err);
    if (status != SEMEL_OK)
        return status;
    if (is_over(d))
        return ended(err);
    if (has_failed(d)) /* its statement failed, and it will be rolled back */
        return SEMEL_OK;
    if (!on)
        return d->joined ? unguard_joined(d, err) : unguard_own(d, err);
    if (!d->joined || d->cursor)
        return SEMEL_OK;
    status = semel__pg_do(d, &sql_guard, "guard", err);
    d->cursor = status == SEMEL_OK;
    return status;
}

/* Constraints are put back as they were: what is rolled back to counts as not checked. */
semel_status semel__pg_check(struct semel_store *store, struct semel_error *err)
{
    static const struct sql_text sql_check = {"semel_check", "SET CONSTRAINTS ALL IMMEDIATE"};
    static const struct sql_text sql_save_check = {"semel_save_check", "SAVEPOINT semel_check"};
    static const struct sql_text sql_back_check = {"semel_back_check", "ROLLBACK TO SAVEPOINT semel_check"};
    static const struct sql_text sql_release_check = {"semel_release_check", "RELEASE SAVEPOINT semel_check"};
    static const struct sql_text *const texts[] = {&sql_save_check, &sql_check, &sql_back_check, &sql_release_check};
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    if (semel__pg_queue_open(d))
        return semel__pg_queue_ours(d, texts, 4, err);
    semel__pg_start(&trip, d, "check of deferred constraints");
    for (size_t i = 0; i < 4; i++)
        semel__pg_add(&trip, texts[i]);
    semel_status status = semel__pg_run_theirs(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- readers ------------------------------------------------------------------------------------- */

semel_status semel__pg_snapshot(struct sql *db, bool *ret_begun, struct semel_error *err)
{
    struct pg_store *d = (struct pg_store *)db;
    static const struct sql_text sql = {"semel_snapshot", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"};
    struct pg_trip trip;
    char lock_timeout[16];
    *ret_begun = false;
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK || semel__pg_in_tx(d))
        return status;
    snprintf(lock_timeout, sizeof(lock_timeout), "%d", d->timeout_ms);
    semel__pg_start(&trip, d, "begin");
    trip.bare = true;
    semel__pg_add(&trip, &sql);
    semel__pg_text(&trip, semel__str(lock_timeout));
    semel__pg_add(&trip, &sql_settings);
    status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    *ret_begun = status == SEMEL_OK;
    if (status != SEMEL_OK)
        semel__pg_snapshot_end(db, true);
    return status;
}

void semel__pg_snapshot_end(struct sql *db, bool begun)
{
    struct pg_store *d = (struct pg_store *)db;
    if (begun && !d->broken && PQtransactionStatus(d->conn) != PQTRANS_IDLE &&
        semel__pg_do(d, &sql_rollback, "rollback", NULL) != SEMEL_OK)
        d->broken = true;
}
