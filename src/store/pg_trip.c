/* SPDX-License-Identifier: MIT
 *
 * pg_trip.c: a round trip.
 *
 * Statements are handed to libpq in pipeline mode and go out as they are added; then one Sync, and the answers are read
 * in order. The socket is non-blocking and one loop both writes and reads, so that two full buffers cannot wait for
 * each other. A statement is prepared under its name the first time that a connection meets it, in the same trip;
 * behind a pooler and on a caller's connection it has no name (P17).
 *
 * The end of waiting is counted, not clocked: IDLE_MS without a byte from the server, which is longer than any time-out
 * that the server was given. After that the connection is of no use any more.
 *
 * Invariants: after a run the connection is out of pipeline mode with nothing left to be read, or it is broken; of the
 * statements after one that failed none has run.
 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "store/pg.h"

#define IDLE_MS 75000
#define SLICE_MS 1000
#define TLS_SLICE_MS 100 /* TLS may hold bytes back that poll() does not see */
#define PARAMETER_BYTES (512u << 20)

enum { SLOT_PREPARE = -1, SLOT_OURS = -2 };

/* For what runs outside a transaction of ours. Compiling what operators ask would take longer than answering it. */
static const struct sql_text sql_limits = {"semel_limits",
                                           "SELECT pg_catalog.set_config('statement_timeout', '60000', "
                                           "true), pg_catalog.set_config('lock_timeout', '5000', true), "
                                           "pg_catalog.set_config('jit', 'off', true)"};

/* ---- what state it is in ------------------------------------------------------------------------- */

bool semel__pg_in_tx(const struct pg_store *d)
{
    if (d->begun || d->joined)
        return true;
    PGTransactionStatusType status = PQtransactionStatus(d->conn);
    return status == PQTRANS_INTRANS || status == PQTRANS_INERROR;
}

semel_status semel__pg_usable(struct pg_store *d, struct semel_error *err)
{
    if (d->pid != getpid())
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the connection was opened before fork(): the child must open its own");
    if (d->conn == NULL || d->broken || PQstatus(d->conn) != CONNECTION_OK)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the connection to the server is gone: reopen it");
    if (semel__pg_queue_open(d))
        return SEMEL_OK;
    if (PQpipelineStatus(d->conn) != PQ_PIPELINE_OFF || PQtransactionStatus(d->conn) == PQTRANS_ACTIVE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the connection is in the middle of something: read all results, and leave pipeline mode");
    return SEMEL_OK;
}

/* ---- waiting ------------------------------------------------------------------------------------- */

static semel_status lost(struct pg_store *d, const char *doing, struct semel_error *err)
{
    d->broken = true;
    return semel__pg_lost(d->conn, doing, err);
}

semel_status semel__pg_wait(struct pg_store *d, const char *doing, struct semel_error *err)
{
    const int slice_ms = PQsslInUse(d->conn) ? TLS_SLICE_MS : SLICE_MS;
    int idle_ms = 0;
    for (;;) {
        int unsent = PQflush(d->conn);
        if (unsent < 0)
            return lost(d, doing, err);
        if (PQisBusy(d->conn) == 0)
            return SEMEL_OK;
        struct pollfd fd = {.fd = PQsocket(d->conn), .events = (short)(POLLIN | (unsent > 0 ? POLLOUT : 0))};
        int n = poll(&fd, 1, slice_ms);
        if (n < 0 && errno != EINTR)
            return lost(d, doing, err);
        idle_ms += n == 0 ? slice_ms : 0;
        if (n > 0)
            idle_ms = 0;
        if (idle_ms >= IDLE_MS) {
            d->broken = true;
            return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "%s: the server did not answer for %d s",
                               doing, IDLE_MS / 1000);
        }
        if (PQconsumeInput(d->conn) == 0)
            return lost(d, doing, err);
    }
}

/* The next answer of a pipeline. Each statement has one, and a NULL behind it; a Sync has only the one. */
semel_status semel__pg_answer(struct pg_store *d, const char *doing, PGresult **ret, struct semel_error *err)
{
    semel_status status = semel__pg_wait(d, doing, err);
    if (status != SEMEL_OK)
        return status;
    PGresult *result = PQgetResult(d->conn);
    if (result == NULL)
        return lost(d, doing, err);
    if (PQresultStatus(result) != PGRES_PIPELINE_SYNC) {
        status = semel__pg_wait(d, doing, err);
        PGresult *more = status == SEMEL_OK ? PQgetResult(d->conn) : NULL;
        if (more != NULL) { /* a statement that copies, or the like: none of ours */
            PQclear(more);
            status = lost(d, doing, err);
        }
    }
    if (status == SEMEL_OK)
        *ret = result;
    else
        PQclear(result);
    return status;
}

bool semel__pg_succeeded(const PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

/* Reads the answer to the Sync and leaves pipeline mode. */
semel_status semel__pg_synced(struct pg_store *d, const char *doing, struct semel_error *err)
{
    PGresult *result = NULL;
    semel_status status = semel__pg_answer(d, doing, &result, err);
    if (status != SEMEL_OK)
        return status;
    if (PQresultStatus(result) != PGRES_PIPELINE_SYNC || PQexitPipelineMode(d->conn) == 0)
        status = lost(d, doing, err);
    PQclear(result);
    return status;
}

/* ---- sending ------------------------------------------------------------------------------------- */

void semel__pg_start(struct pg_trip *trip, struct pg_store *d, const char *doing)
{
    memset(trip, 0, sizeof(*trip));
    semel__pg_ahead_drop(d);
    trip->d = d;
    trip->doing = doing;
    semel__buf_init(&trip->bytes, PARAMETER_BYTES);
    trip->status = semel__pg_usable(d, &trip->err);
    if (trip->status == SEMEL_OK && semel__pg_queue_open(d))
        trip->status = semel__pg_queue_end(d, &trip->err);
}

static void fail_send(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    if (PQstatus(d->conn) != CONNECTION_OK)
        trip->status = lost(d, trip->doing, &trip->err);
    else
        trip->status = semel__fail_memory(&trip->err); /* nothing else is left: the statements are ours */
}

static bool is_prepared(const struct pg_trip *trip, const struct sql_text *sql)
{
    const struct pg_store *d = trip->d;
    for (size_t i = 0; i < d->n_prepared; i++)
        if (d->prepared[i] == sql)
            return true;
    for (size_t i = 0; i < trip->n_fresh; i++)
        if (trip->fresh[i] == sql)
            return true;
    return false;
}

static bool named(const struct pg_trip *trip)
{
    const struct pg_store *d = trip->d;
    return !d->wrapped && !d->pooler && d->n_prepared + trip->n_fresh < PG_PREPARED_MAX;
}

static int send(struct pg_trip *trip, const struct sql_text *sql, int slot)
{
    const char *values[PG_PARAMS_MAX];
    int lengths[PG_PARAMS_MAX], formats[PG_PARAMS_MAX];
    PGconn *conn = trip->d->conn;
    for (int i = 0; i < trip->n_params; i++) {
        const char *p = trip->params[i].p != NULL ? trip->params[i].p : semel__buf_str(&trip->bytes).p;
        values[i] = trip->params[i].null ? NULL : p + trip->params[i].at;
        lengths[i] = (int)trip->params[i].n;
        formats[i] = 1;
    }
    bool prepared = is_prepared(trip, sql);
    if (!prepared && sql->name != NULL && named(trip)) {
        if (PQsendPrepare(conn, sql->name, sql->text, 0, NULL) == 0)
            return 0;
        trip->slots[trip->n_slots++] = SLOT_PREPARE;
        trip->fresh[trip->n_fresh++] = sql;
        prepared = true;
    }
    int sent = prepared ? PQsendQueryPrepared(conn, sql->name, trip->n_params, values, lengths, formats, 1)
                        : PQsendQueryParams(conn, sql->text, trip->n_params, NULL, values, lengths, formats, 1);
    if (sent != 0)
        trip->slots[trip->n_slots++] = slot;
    return sent;
}

/* The first statement of a trip. */
static bool enter(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    int n_params = trip->n_params;
    bool limits = !trip->bare && !semel__pg_in_tx(d);
    trip->restore = PQisnonblocking(d->conn) == 0;
    if ((trip->restore && PQsetnonblocking(d->conn, 1) != 0) || PQenterPipelineMode(d->conn) == 0)
        return false;
    trip->entered = true;
    d->undone = false;
    trip->n_params = 0;
    bool ok = !limits || send(trip, &sql_limits, SLOT_OURS) != 0;
    trip->n_params = n_params;
    return ok;
}

static bool parameters_fit(struct pg_trip *trip)
{
    bool fit = trip->bytes.n <= INT32_MAX;
    for (int i = 0; i < trip->n_params; i++)
        fit = fit && trip->params[i].n <= INT32_MAX;
    if (trip->bytes.failed && !trip->bytes.full)
        trip->status = semel__fail_memory(&trip->err);
    else if (trip->bytes.failed || !fit) /* a smaller batch will do */
        trip->status = semel__fail(&trip->err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT,
                                   "%s: the batch is too large for one statement", trip->doing);
    return trip->status == SEMEL_OK;
}

size_t semel__pg_add(struct pg_trip *trip, const struct sql_text *sql)
{
    size_t index = trip->n;
    if (trip->status == SEMEL_OK && index >= PG_TRIP_MAX)
        trip->status = semel__fail(&trip->err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: too many statements",
                                   trip->doing);
    if (trip->status == SEMEL_OK && parameters_fit(trip)) {
        if ((!trip->entered && !enter(trip)) || send(trip, sql, (int)index) == 0)
            fail_send(trip);
        else
            trip->n++;
    }
    trip->n_params = 0;
    trip->bytes.n = 0;
    return index < PG_TRIP_MAX ? index : PG_TRIP_MAX - 1;
}

/* ---- receiving ----------------------------------------------------------------------------------- */

static void failed(struct pg_trip *trip, int slot, const PGresult *result, bool theirs)
{
    struct pg_store *d = trip->d;
    if (trip->status != SEMEL_OK || PQresultStatus(result) == PGRES_PIPELINE_ABORTED)
        return;
    trip->failed = slot >= 0 ? (size_t)slot : slot == SLOT_PREPARE ? trip->preparing : 0;
    trip->status = theirs ? semel__pg_fail(d->conn, result, trip->doing, &trip->err)
                          : semel__pg_own_fail(d, result, trip->doing, &trip->err);
    if (trip->status == SEMEL_CLOSED)
        d->broken = true;
}

static void take(struct pg_trip *trip, int slot, PGresult *result, size_t *fresh, bool theirs)
{
    struct pg_store *d = trip->d;
    bool ok = semel__pg_succeeded(result);
    if (!ok)
        failed(trip, slot, result, theirs);
    if (slot == SLOT_PREPARE && ok)
        d->prepared[d->n_prepared++] = trip->fresh[*fresh];
    *fresh += slot == SLOT_PREPARE;
    if (slot >= 0) {
        trip->results[slot] = result;
        trip->preparing = (size_t)slot + 1;
    } else {
        PQclear(result);
    }
}

static semel_status receive(struct pg_trip *trip, bool theirs)
{
    struct pg_store *d = trip->d;
    size_t fresh = 0;
    semel_status status = SEMEL_OK;
    struct semel_error err;
    if (PQpipelineSync(d->conn) == 0)
        status = lost(d, trip->doing, &err);
    for (size_t i = 0; status == SEMEL_OK && i < trip->n_slots; i++) {
        PGresult *result = NULL;
        status = semel__pg_answer(d, trip->doing, &result, &err);
        if (status == SEMEL_OK)
            take(trip, trip->slots[i], result, &fresh, theirs);
    }
    if (status == SEMEL_OK)
        status = semel__pg_synced(d, trip->doing, &err);
    if (status != SEMEL_OK && trip->status == SEMEL_OK) {
        trip->status = status;
        trip->err = err;
    }
    return trip->status;
}

static semel_status run(struct pg_trip *trip, bool theirs, struct semel_error *err)
{
    struct pg_store *d = trip->d;
    trip->failed = trip->n;
    if (trip->entered) {
        trip->entered = false;
        d->trips++;
        if (d->broken)
            trip->status = semel__pg_usable(d, &trip->err);
        else
            receive(trip, theirs);
        if (trip->restore && PQstatus(d->conn) == CONNECTION_OK)
            PQsetnonblocking(d->conn, 0);
    }
    if (trip->status != SEMEL_OK && err != NULL)
        *err = trip->err;
    return trip->status;
}

semel_status semel__pg_run(struct pg_trip *trip, struct semel_error *err)
{
    return run(trip, false, err);
}

semel_status semel__pg_run_theirs(struct pg_trip *trip, struct semel_error *err)
{
    return run(trip, true, err);
}

void semel__pg_end(struct pg_trip *trip)
{
    if (trip->entered) /* given up half way: what was sent is still answered */
        (void)run(trip, false, NULL);
    for (size_t i = 0; i < trip->n; i++) {
        PQclear(trip->results[i]);
        trip->results[i] = NULL;
    }
    trip->n = 0;
    semel__buf_done(&trip->bytes);
}

semel_status semel__pg_do(struct pg_store *d, const struct sql_text *sql, const char *doing, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, doing);
    semel__pg_add(&trip, sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}
