/* SPDX-License-Identifier: MIT
 *
 * pg_ask.c: statements of handlers whose answers are wanted, one at a time and outside pipeline mode.
 *
 * A statement is prepared under a name the first time that a connection meets it, unless there is a pooler or the
 * connection is the caller's (P17). Whether a connection is the same as before is told by its address and its backend;
 * should both be deceived, the server does not know the name, and the statement is prepared anew.
 *
 * Invariants: the connection is left idle in its transaction, or it is broken; a name is used for one text only.
 */
#include "store/pg_ask.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/pg.h"

#define DOING "handler"

static semel_status enter(struct pg_store *d, bool *ret_restore, struct semel_error *err)
{
    if (!d->begun && !d->joined)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, DOING ": there is no open transaction");
    semel_status status = semel__pg_usable(d, err);
    if (status == SEMEL_OK && semel__pg_queue_open(d))
        status = semel__pg_queue_end(d, err);
    if (status != SEMEL_OK)
        return status;
    *ret_restore = PQisnonblocking(d->conn) == 0;
    if (*ret_restore && PQsetnonblocking(d->conn, 1) != 0)
        return semel__pg_own_fail(d, NULL, DOING, err);
    d->undone = false;
    return SEMEL_OK;
}

static void leave(struct pg_store *d, bool restore)
{
    if (restore && PQstatus(d->conn) == CONNECTION_OK)
        PQsetnonblocking(d->conn, 0);
}

/* The answer to what was sent. A statement that failed is told as a handler's. */
static semel_status receive(struct pg_store *d, int sent, PGresult **ret, struct semel_error *err)
{
    PGresult *result = NULL;
    if (sent == 0 && PQstatus(d->conn) == CONNECTION_OK)
        return semel__fail_memory(err); /* nothing else is left: our parameters are sound */
    if (sent == 0) {
        d->broken = true;
        return semel__pg_lost(d->conn, DOING, err);
    }
    d->trips++;
    semel_status status = semel__pg_answer(d, DOING, &result, err);
    if (status != SEMEL_OK)
        return status;
    if (!semel__pg_succeeded(result)) {
        status = semel__pg_fail(d->conn, result, DOING, err);
        d->broken = d->broken || status == SEMEL_CLOSED;
    }
    *ret = result;
    return status;
}

/* ---- running ------------------------------------------------------------------------------------- */

static bool is_kept(const struct pg_store *d, const struct semel_pg_kept *kept)
{
    return kept->ready && kept->conn == d->conn && kept->backend == PQbackendPID(d->conn);
}

static semel_status prepare(struct pg_store *d, const struct semel_pg_statement *s, struct semel_pg_kept *kept,
                            struct semel_error *err)
{
    static atomic_uint names;
    PGresult *result = NULL;
    *kept = (struct semel_pg_kept){.conn = d->conn, .backend = PQbackendPID(d->conn)};
    snprintf(kept->name, sizeof(kept->name), "semel_ask_%u", atomic_fetch_add(&names, 1));
    semel_status status = receive(d, PQsendPrepare(d->conn, kept->name, s->sql, s->n, s->types), &result, err);
    PQclear(result);
    kept->ready = status == SEMEL_OK;
    return status;
}

/* Somebody dropped it, or the tables have changed under it. */
static bool is_stale(int code)
{
    return code == SEMEL_SQLSTATE('2', '6', '0', '0', '0') || code == SEMEL_SQLSTATE('0', 'A', '0', '0', '0');
}

static semel_status run_kept(struct pg_store *d, const struct semel_pg_statement *s, struct semel_pg_kept *kept,
                             PGresult **ret, struct semel_error *err)
{
    struct semel_error why;
    bool fresh = !is_kept(d, kept);
    semel_status status = fresh ? prepare(d, s, kept, err) : SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    status = receive(d, PQsendQueryPrepared(d->conn, kept->name, s->n, s->values, s->lengths, s->formats, 0), ret,
                     &why);
    if (status == SEMEL_INVALID && !fresh && is_stale(why.code)) {
        kept->ready = false;
        why.status = status = SEMEL_RETRY;
        why.cls = SEMEL_CLASS_TRANSIENT;
    }
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

semel_status semel__pg_ask(struct semel_store *store, const struct semel_pg_statement *statement,
                           struct semel_pg_kept *kept, struct pg_result **ret, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    const struct semel_pg_statement *s = statement;
    PGresult *result = NULL;
    bool restore = false;
    semel_status status = enter(d, &restore, err);
    if (status != SEMEL_OK)
        return status;
    if (kept != NULL && !d->wrapped && !d->pooler)
        status = run_kept(d, s, kept, &result, err);
    else
        status = receive(d, PQsendQueryParams(d->conn, s->sql, s->n, s->types, s->values, s->lengths, s->formats, 0),
                         &result, err);
    leave(d, restore);
    if (status == SEMEL_OK)
        *ret = result;
    else
        PQclear(result);
    return status;
}

/* ---- describing ---------------------------------------------------------------------------------- */

/* The server counts characters from 1. */
static void add_position(const PGresult *result, struct semel_error *err)
{
    const char *position = PQresultErrorField(result, PG_DIAG_STATEMENT_POSITION);
    int64_t at;
    size_t n = err != NULL ? strlen(err->text) : 0;
    if (err != NULL && position != NULL && semel__str_int64(semel__str(position), &at))
        snprintf(err->text + n, sizeof(err->text) - n, ", at character %lld of the statement", (long long)at);
}

semel_status semel__pg_describe(struct semel_store *store, const char *sql, struct semel_pg_shape *ret,
                                struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    PGresult *result = NULL;
    bool restore = false;
    semel_status status = enter(d, &restore, err);
    if (status != SEMEL_OK)
        return status;
    status = receive(d, PQsendPrepare(d->conn, "", sql, 0, NULL), &result, err);
    if (status == SEMEL_INVALID)
        add_position(result, err);
    PQclear(result);
    result = NULL;
    if (status == SEMEL_OK)
        status = receive(d, PQsendDescribePrepared(d->conn, ""), &result, err);
    if (status == SEMEL_OK) {
        *ret = (struct semel_pg_shape){.n_params = PQnparams(result), .n_columns = PQnfields(result)};
        for (int i = 0; i < ret->n_params && i < SEMEL_PG_SHAPE_MAX; i++)
            ret->params[i] = PQparamtype(result, i);
        ret->first_column = ret->n_columns > 0 ? PQftype(result, 0) : 0;
    } else if (status == SEMEL_INVALID && err != NULL) {
        err->cls = SEMEL_CLASS_BROKEN;
    }
    PQclear(result);
    leave(d, restore);
    return status;
}
