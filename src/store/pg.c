/* SPDX-License-Identifier: MIT
 *
 * pg.c: the PostgreSQL driver: opening, closing, wrapping, and the tables of functions.
 *
 * Invariants: open leaves nothing behind when it fails; a caller's connection is never closed, and its session has the
 * same settings and the same prepared statements when the store is closed as it had before.
 */
#include <unistd.h>

#include "store/pg.h"

#define TIMEOUT_MS 5000

static semel_status prepare(struct pg_store *d, struct semel_error *err)
{
    const struct semel_store_options *o = &d->sql.store.options;
    d->sql.driver = &semel__pg_driver;
    d->timeout_ms = o->lock_timeout_ms > 0 ? o->lock_timeout_ms : TIMEOUT_MS;
    d->sql.clock = o->clock;
    d->sql.rng = o->rng != NULL ? o->rng : &d->own_rng;
    d->pid = getpid();
    if (o->rng == NULL && !semel__random_seed_os(&d->own_rng))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the system gives no random bytes");
    return SEMEL_OK;
}

static void release(struct pg_store *d)
{
    semel__pg_disconnect(d);
    semel__pg_ahead_free(d);
    semel__pg_queue_free(d);
    semel__pg_shapes_free(d);
    semel__pg_forget_url(d);
}

static semel_status pg_open(struct semel_store *store, struct semel_str location, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel_status status = prepare(d, err);
    if (status == SEMEL_OK)
        status = semel__pg_url(d, location, err);
    if (status == SEMEL_OK)
        status = semel__pg_connect(d, err);
    if (status != SEMEL_OK)
        release(d);
    return status;
}

static void pg_close(struct semel_store *store)
{
    release(semel__pg_of(store));
}

/* A caller's connection is the connection itself: there only what we began is rolled back. */
static semel_status pg_reopen(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    if (!d->wrapped) {
        semel__pg_disconnect(d);
        return semel__pg_connect(d, err);
    }
    if (d->pid == getpid())
        semel__pg_rollback(store);
    d->joined = false;
    if (d->conn == NULL || d->pid != getpid() || d->broken || PQstatus(d->conn) != CONNECTION_OK)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "this connection is the caller's and cannot be opened again from here");
    return SEMEL_OK;
}

static semel_status wrap(struct pg_store *d, struct semel_error *err)
{
    semel_status status = prepare(d, err);
    if (status != SEMEL_OK)
        return status;
    if (d->conn == NULL || PQstatus(d->conn) != CONNECTION_OK)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the connection is not open");
    if (PQtransactionStatus(d->conn) == PQTRANS_INERROR)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the open transaction has failed already: roll it back first");
    return semel__pg_suitable(d, err);
}

semel_status semel__store_pg_wrap(struct semel_store **ret, struct pg_conn *conn,
                                  const struct semel_store_options *options, struct semel_error *err)
{
    struct pg_store *d = semel__calloc(1, sizeof(*d));
    if (d == NULL)
        return semel__fail_memory(err);
    d->sql.store.ops = &semel__store_postgres;
    if (options != NULL)
        d->sql.store.options = *options;
    d->conn = conn;
    d->wrapped = true;
    semel_status status = wrap(d, err);
    if (status != SEMEL_OK) {
        release(d);
        semel__free(d);
        return status;
    }
    *ret = &d->sql.store;
    return SEMEL_OK;
}

static void *pg_native(struct semel_store *store)
{
    return semel__pg_of(store)->conn;
}

int64_t semel__pg_trips(struct semel_store *store)
{
    return semel__pg_of(store)->trips;
}

/* The one table, under each of its names. */
#define OPS(scheme)                                                                                                    \
    {                                                                                                                  \
        .name = scheme,                                                                                                \
        .capabilities = SEMEL_STORE_ATOMIC | SEMEL_STORE_CONCURRENT | SEMEL_STORE_DURABLE | SEMEL_STORE_SQL,           \
        .size = sizeof(struct pg_store), .open = pg_open, .close = pg_close, .reopen = pg_reopen, .native = pg_native, \
        .migrate = semel__pg_migrate, .begin = semel__pg_begin, .commit = semel__pg_commit,                            \
        .rollback = semel__pg_rollback, .savepoint = semel__pg_savepoint, .rollback_to = semel__pg_rollback_to,        \
        .leave = semel__pg_leave, .guard = semel__pg_guard, .collect = semel__pg_collect, .check = semel__pg_check,    \
        .data_fault = semel__pg_data_fault, .busy = semel__pg_busy, .ahead = semel__pg_ahead, SEMEL_RECORDS,           \
    }

const struct semel_store_ops semel__store_postgres = OPS("postgres");
const struct semel_store_ops semel__store_postgresql = OPS("postgresql");
