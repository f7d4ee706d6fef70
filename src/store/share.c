/* SPDX-License-Identifier: MIT
 *
 * share.c: handles of one connection, each of which has it for a transaction (share.h).
 *
 * A handle is a struct sql: the records run on it as on any other. Its driver passes on what the records ask to that of
 * the connection, and takes the lock around it.
 *
 * Invariants: nobody touches the connection without the lock. A handle takes it once, however often it enters, and the
 * last leave releases it.
 */
#include "store/share.h"

#include <assert.h>
#include <pthread.h>

#include "store/sql.h"

struct sql_share {
    pthread_mutex_t lock;
    struct sql *inner;
    unsigned long openings; /* of the connection */
};

struct handle {
    struct sql sql;
    struct semel_store_ops ops; /* those of the connection, but for what is below */
    struct sql_driver driver;
    struct sql_share *share;
    unsigned entered;
    unsigned long opening;
};

void semel__share_lock(struct sql_share *share)
{
    if (share != NULL)
        pthread_mutex_lock(&share->lock);
}

void semel__share_unlock(struct sql_share *share)
{
    if (share != NULL)
        pthread_mutex_unlock(&share->lock);
}

static struct semel_store *enter(struct semel_store *store)
{
    struct handle *h = (struct handle *)store;
    if (h->entered++ == 0)
        semel__share_lock(h->share);
    return &h->share->inner->store;
}

static void leave(struct semel_store *store)
{
    struct handle *h = (struct handle *)store;
    assert(h->entered > 0);
    if (--h->entered == 0)
        semel__share_unlock(h->share);
}

/* ---- what the records ask ------------------------------------------------------------------------ */

static void share_start(struct sql *db)
{
    struct sql *inner = semel__db_of(enter(&db->store));
    semel__db_start(inner, db->doing);
    db->status = inner->status;
}

static void share_run(struct sql *db, const struct sql_statement *statement, const struct sql_set *once,
                      const struct sql_set *each, sql_reader read, void *ctx)
{
    struct sql *inner = ((struct handle *)db)->share->inner;
    inner->driver->run(inner, statement, once, each, read, ctx);
    db->status = inner->status;
}

static semel_status share_flush(struct sql *db, struct semel_error *err)
{
    semel_status status = semel__db_flush(((struct handle *)db)->share->inner, err);
    leave(&db->store);
    return status;
}

static semel_status share_snapshot(struct sql *db, bool *ret_begun, struct semel_error *err)
{
    struct sql *inner = semel__db_of(enter(&db->store));
    *ret_begun = false;
    semel_status status = inner->driver->snapshot(inner, ret_begun, err);
    if (!*ret_begun)
        leave(&db->store);
    return status;
}

static void share_snapshot_end(struct sql *db, bool begun)
{
    struct sql *inner = ((struct handle *)db)->share->inner;
    if (!begun)
        return;
    inner->driver->snapshot_end(inner, begun);
    leave(&db->store);
}

/* ---- transactions -------------------------------------------------------------------------------- */

static semel_status share_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us,
                                struct semel_error *err)
{
    if (tx == SEMEL_TX_JOIN)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is nothing to join on a shared connection");
    struct semel_store *inner = enter(store);
    semel_status status = inner->ops->begin(inner, tx, ret_now_us, err);
    if (status != SEMEL_OK)
        leave(store);
    return status;
}

static semel_status share_commit(struct semel_store *store, struct semel_error *err)
{
    struct semel_store *inner = &((struct handle *)store)->share->inner->store;
    semel_status status = inner->ops->commit(inner, err);
    leave(store);
    return status;
}

static void share_rollback(struct semel_store *store)
{
    struct handle *h = (struct handle *)store;
    if (h->entered == 0)
        return;
    h->share->inner->store.ops->rollback(&h->share->inner->store);
    leave(store);
}

/* Whoever comes first opens the connection anew; the others find it open. */
static semel_status share_reopen(struct semel_store *store, struct semel_error *err)
{
    struct handle *h = (struct handle *)store;
    struct semel_store *inner = enter(store);
    semel_status status = SEMEL_OK;
    if (h->opening == h->share->openings) {
        status = inner->ops->reopen(inner, err);
        h->share->openings += status == SEMEL_OK;
    }
    if (status == SEMEL_OK)
        h->opening = h->share->openings;
    for (unsigned n = h->entered; n > 0; n--) /* and any transaction is gone */
        leave(store);
    return status;
}

static void *share_native(struct semel_store *store)
{
    struct semel_store *inner = &((struct handle *)store)->share->inner->store;
    return inner->ops->native(inner);
}

static bool share_busy(struct semel_store *store)
{
    struct semel_store *inner = &((struct handle *)store)->share->inner->store;
    return ((struct handle *)store)->entered > 0 && inner->ops->busy(inner);
}

/* Operations that only take the lock around the same operation of the connection. */
#define PASS(op, params, ...)                                     \
    static semel_status share_##op params                         \
    {                                                             \
        struct semel_store *inner = enter(store);                 \
        semel_status status = inner->ops->op(inner, __VA_ARGS__); \
        leave(store);                                             \
        return status;                                            \
    }

PASS(migrate, (struct semel_store * store, int *ret_from, int *ret_to, struct semel_error *err), ret_from, ret_to, err)
PASS(savepoint, (struct semel_store * store, struct semel_error *err), err)
PASS(rollback_to, (struct semel_store * store, struct semel_error *err), err)
PASS(guard, (struct semel_store * store, bool on, struct semel_error *err), on, err)
PASS(check, (struct semel_store * store, struct semel_error *err), err)
PASS(admit,
     (struct semel_store * store, struct semel_admit_batch *batch, struct semel_arena *arena, struct semel_error *err),
     batch, arena, err)
PASS(fetch,
     (struct semel_store * store, struct semel_fetch_batch *batch, struct semel_arena *arena, struct semel_error *err),
     batch, arena, err)

/* ---- life ---------------------------------------------------------------------------------------- */

static const struct sql_driver share_driver = {
    .start = share_start,
    .run = share_run,
    .flush = share_flush,
    .snapshot = share_snapshot,
    .snapshot_end = share_snapshot_end,
};

struct semel_store *semel__share_handle(struct sql_share *share)
{
    struct handle *h = semel__calloc(1, sizeof *h);
    if (h == NULL)
        return NULL;
    semel__share_lock(share);
    h->sql = *share->inner;
    h->ops = *share->inner->store.ops;
    h->opening = share->openings;
    semel__share_unlock(share);
    h->sql.store = (struct semel_store){.ops = &h->ops, .options = share->inner->store.options};
    h->driver = share_driver;
    h->driver.statements = share->inner->driver->statements;
    h->sql.driver = &h->driver;
    h->share = share;
    h->ops.close = share_rollback;
    h->ops.reopen = share_reopen;
    h->ops.native = share_native;
    h->ops.migrate = share_migrate;
    h->ops.begin = share_begin;
    h->ops.commit = share_commit;
    h->ops.rollback = share_rollback;
    h->ops.savepoint = share_savepoint;
    h->ops.rollback_to = share_rollback_to;
    h->ops.guard = share_guard;
    h->ops.check = share_check;
    h->ops.busy = share_busy;
    h->ops.admit = share_admit;
    h->ops.fetch = share_fetch;
    return &h->sql.store;
}

semel_status semel__share_open(struct sql_share **ret, const struct semel_store_ops *const *drivers, const char *url,
                               const struct semel_store_options *options, struct semel_error *err)
{
    struct sql_share *share = semel__calloc(1, sizeof *share);
    struct semel_store *store = NULL;
    if (share == NULL || pthread_mutex_init(&share->lock, NULL) != 0) {
        semel__free(share);
        return semel__fail_memory(err);
    }
    semel_status status = semel_store_open(&store, drivers, url, options, err);
    if (status != SEMEL_OK) {
        pthread_mutex_destroy(&share->lock);
        semel__free(share);
        return status;
    }
    share->inner = semel__db_of(store);
    *ret = share;
    return SEMEL_OK;
}

void semel__share_close(struct sql_share *share)
{
    if (share == NULL)
        return;
    semel_store_close(&share->inner->store);
    pthread_mutex_destroy(&share->lock);
    semel__free(share);
}
