/* SPDX-License-Identifier: MIT
 *
 * mem.c: handles and transactions of the in-memory store.
 *
 * What it is: the driver a newcomer should read first. A transaction is a stretch of the undo log (mem_table.c);
 * there is one at a time, so the isolation is serialisable and a lock is never waited for: begin answers RETRY,
 * "busy", while another handle has its transaction open.
 *
 * Invariants: db->writer is the one handle whose transaction is open, and the log is empty when there is none. A
 * handle that lost its connection is `dead`, is never the writer, and answers CLOSED until reopen. The hook is
 * called before an operation looks at anything, because it may run other handles in between.
 */
#include "store/mem_private.h"

#include <assert.h>

static struct mem_store *self(struct semel_store *store)
{
    return (struct mem_store *)store;
}

/* ---- the database ------------------------------------------------------------------------------------- */

semel_status semel__mem_db_new(struct semel_mem_db **ret, const struct semel_clock *clock)
{
    struct semel_mem_db *db = semel__calloc(1, sizeof *db);

    if (db == NULL)
        return SEMEL_RETRY;
    db->clock = clock != NULL ? clock : &semel__clock_real;
    *ret = db;
    return SEMEL_OK;
}

void semel__mem_db_free(struct semel_mem_db *db)
{
    if (db == NULL)
        return;
    assert(db->handles == 0);
    semel__mem_clear(db);
    semel__free(db);
}

/* ---- losing a transaction ----------------------------------------------------------------------------- */

static void end_tx(struct mem_store *store)
{
    if (store->db->writer != store)
        return;
    semel__mem_undo_to(store->db, 0);
    store->db->writer = NULL;
    store->has_savepoint = false;
}

static void lose_connection(struct mem_store *store)
{
    end_tx(store);
    store->dead = true;
}

semel_status semel__mem_db_copy(struct semel_mem_db *db, struct semel_mem_db **ret)
{
    if (db->writer != NULL || semel__mem_db_new(ret, db->clock) != SEMEL_OK)
        return SEMEL_RETRY;
    (*ret)->last_arrival = db->last_arrival;
    (*ret)->last_seq = db->last_seq;
    (*ret)->tx = db->tx;
    if (semel__mem_add_all(*ret, db))
        return SEMEL_OK;
    semel__mem_db_free(*ret);
    return SEMEL_RETRY;
}

semel_status semel__mem_db_restore(struct semel_mem_db *db, struct semel_mem_db *backup)
{
    if (db->writer != NULL)
        lose_connection(db->writer);
    semel__mem_clear(db);
    *db = (struct semel_mem_db){.clock = db->clock,
                                .tx = db->tx,
                                .last_arrival = backup->last_arrival,
                                .last_seq = backup->last_seq,
                                .handles = db->handles};
    return semel__mem_add_all(db, backup) ? SEMEL_OK : SEMEL_RETRY;
}

void semel__mem_break(struct semel_store *store)
{
    if (self(store)->db->writer == self(store))
        lose_connection(self(store));
}

void semel__mem_set_hook(struct semel_store *store, semel_mem_hook hook, void *ctx)
{
    self(store)->hook = hook;
    self(store)->hook_ctx = ctx;
}

static enum semel_mem_fault ask_hook(struct mem_store *store, const char *op)
{
    return store->hook != NULL ? store->hook(store->hook_ctx, op) : SEMEL_MEM_GO;
}

static semel_status fail_closed(struct semel_error *err)
{
    return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "mem: the connection is closed");
}

static semel_status fail_hook(struct semel_error *err)
{
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "mem: a fault was asked for");
}

semel_status semel__mem_enter(struct mem_store *store, const char *op, bool needs_tx, struct semel_error *err)
{
    enum semel_mem_fault fault = ask_hook(store, op);

    if (fault == SEMEL_MEM_CLOSE)
        lose_connection(store);
    if (store->dead)
        return fail_closed(err);
    if (needs_tx && store->db->writer != store)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "mem: %s needs a transaction", op);
    if (fault == SEMEL_MEM_RETRY)
        return fail_hook(err);
    return SEMEL_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

semel_status semel__store_mem_open(struct semel_store **ret, struct semel_mem_db *db,
                                   const struct semel_store_options *options, struct semel_error *err)
{
    struct mem_store *store = semel__calloc(1, sizeof *store);

    if (store == NULL)
        return semel__fail_memory(err);
    store->base.ops = &semel__store_mem;
    if (options != NULL)
        store->base.options = *options;
    store->db = db;
    db->handles++;
    *ret = &store->base;
    return SEMEL_OK;
}

static semel_status mem_open(struct semel_store *store, struct semel_str location, struct semel_error *err)
{
    struct semel_mem_db *db;

    if (location.n > 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "mem: has no location; the URL must be \"mem:\"");
    if (semel__mem_db_new(&db, store->options.clock) != SEMEL_OK)
        return semel__fail_memory(err);
    self(store)->db = db;
    self(store)->owns_db = true;
    db->handles = 1;
    return SEMEL_OK;
}

static void mem_close(struct semel_store *store)
{
    struct semel_mem_db *db = self(store)->db;

    end_tx(self(store));
    db->handles--;
    if (self(store)->owns_db)
        semel__mem_db_free(db);
}

static semel_status mem_reopen(struct semel_store *store, struct semel_error *err)
{
    enum semel_mem_fault fault = ask_hook(self(store), "reopen");

    lose_connection(self(store));
    if (fault == SEMEL_MEM_CLOSE)
        return fail_closed(err);
    if (fault == SEMEL_MEM_RETRY)
        return fail_hook(err);
    self(store)->dead = false;
    return SEMEL_OK;
}

static void *mem_native(struct semel_store *store)
{
    (void)store;
    return NULL;
}

struct semel_mem_db *semel__mem_db_of(struct semel_store *store)
{
    return self(store)->db;
}

static semel_status mem_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "migrate", false, err);

    if (status == SEMEL_OK)
        *ret_from = *ret_to = 1;
    return status;
}

/* ---- the transaction ---------------------------------------------------------------------------------- */

static semel_status mem_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "begin", false, err);

    if (status != SEMEL_OK)
        return status;
    if (tx == SEMEL_TX_JOIN)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "mem: there is no transaction to join");
    if (db->writer == self(store))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "mem: begin within a transaction");
    if (db->writer != NULL)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "mem: busy");
    db->writer = self(store);
    db->tx++;
    self(store)->has_savepoint = false;
    *ret_now_us = semel__now(db->clock);
    return SEMEL_OK;
}

static void apply_tx(struct mem_store *store)
{
    semel__mem_keep(store->db);
    store->db->writer = NULL;
    store->has_savepoint = false;
}

static semel_status mem_commit(struct semel_store *store, struct semel_error *err)
{
    enum semel_mem_fault fault = ask_hook(self(store), "commit");

    if (fault == SEMEL_MEM_CLOSE)
        lose_connection(self(store));
    if (self(store)->dead)
        return fail_closed(err);
    if (self(store)->db->writer != self(store))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "mem: commit needs a transaction");
    switch (fault) {
    case SEMEL_MEM_GO:
        apply_tx(self(store));
        return SEMEL_OK;
    case SEMEL_MEM_UNKNOWN_DONE:
        apply_tx(self(store));
        break;
    case SEMEL_MEM_RETRY:
        end_tx(self(store));
        return fail_hook(err);
    case SEMEL_MEM_UNKNOWN_LOST:
    case SEMEL_MEM_CLOSE:
        break;
    }
    lose_connection(self(store));
    return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_ENVIRONMENT, "mem: the connection was lost during commit");
}

static void mem_rollback(struct semel_store *store)
{
    if (ask_hook(self(store), "rollback") == SEMEL_MEM_CLOSE)
        lose_connection(self(store));
    end_tx(self(store));
}

static semel_status mem_savepoint(struct semel_store *store, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "savepoint", true, err);

    if (status == SEMEL_OK) {
        self(store)->savepoint = self(store)->db->n_undo;
        self(store)->has_savepoint = true;
    }
    return status;
}

static semel_status mem_rollback_to(struct semel_store *store, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "rollback_to", true, err);

    if (status != SEMEL_OK)
        return status;
    if (!self(store)->has_savepoint)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "mem: there is no savepoint");
    semel__mem_undo_to(self(store)->db, self(store)->savepoint);
    return SEMEL_OK;
}

/* Nobody but the store begins transactions: there is none to join, and none to leave. */
static void mem_leave(struct semel_store *store)
{
    self(store)->has_savepoint = false;
}

static bool mem_busy(struct semel_store *store)
{
    return self(store)->db->writer == self(store);
}

/* A handler has semel__mem_effect_add only, which cannot end a transaction; there is nothing to deny. */
static semel_status mem_guard(struct semel_store *store, bool on, struct semel_error *err)
{
    (void)on;
    return semel__mem_enter(self(store), "guard", true, err);
}

static semel_status mem_check(struct semel_store *store, struct semel_error *err)
{
    return semel__mem_enter(self(store), "check", true, err);
}

semel_status semel__mem_effect_add(struct semel_store *store, struct semel_str key, struct semel_str value,
                                   struct semel_error *err)
{
    const struct semel_mem_effect effect = {.key = key, .value = value};
    semel_status status = semel__mem_enter(self(store), "effect", true, err);

    if (status == SEMEL_OK && !semel__mem_append(self(store)->db, MEM_EFFECT, &effect))
        return semel__fail_memory(err);
    return status;
}

const struct semel_store_ops semel__store_mem = {
    .name = "mem",
    .capabilities = SEMEL_STORE_ATOMIC,
    .size = sizeof(struct mem_store),
    .open = mem_open,
    .close = mem_close,
    .reopen = mem_reopen,
    .native = mem_native,
    .migrate = mem_migrate,
    .begin = mem_begin,
    .commit = mem_commit,
    .rollback = mem_rollback,
    .savepoint = mem_savepoint,
    .rollback_to = mem_rollback_to,
    .leave = mem_leave,
    .guard = mem_guard,
    .check = mem_check,
    .admit = semel__mem_admit,
    .fetch = semel__mem_fetch,
    .settle = semel__mem_settle,
    .scan = semel__mem_scan,
    .sources = semel__mem_sources,
    .watermark = semel__mem_raise,
    .aged = semel__mem_aged,
    .purge = semel__mem_purge,
    .purge_side = semel__mem_purge_side,
    .parked = semel__mem_parked,
    .large = semel__mem_large,
    .purge_business = semel__mem_purge_business,
    .outbox_put = semel__mem_outbox_put,
    .audit = semel__mem_audit,
    .consumer_get = semel__mem_consumer_get,
    .consumer_put = semel__mem_consumer_put,
    .consumer_read = semel__mem_consumer_read,
    .consumer_mark = semel__mem_consumer_mark,
    .affected = semel__mem_affected,
    .consumers = semel__mem_consumers,
    .positions_take = semel__mem_positions_take,
    .positions_move = semel__mem_positions_move,
    .positions_set = semel__mem_positions_set,
    .positions_list = semel__mem_positions_list,
    .busy = mem_busy,
};
