/* SPDX-License-Identifier: MIT
 *
 * mem_store.c: the driver of the in-memory store: handles, transactions, and every operation of core/store.h.
 *
 * What it is: the driver a newcomer should read first. A transaction is a stretch of the undo log (mem_table.c);
 * there is one at a time, so the isolation is serialisable and a lock is never waited for: begin answers RETRY,
 * "busy", while another handle has its transaction open. Facts out, changes in: no rule is decided here.
 *
 * Invariants: db->writer is the one handle whose transaction is open, and the log is empty when there is none. A
 * handle that lost its connection is `dead`, is never the writer, and answers CLOSED until reopen. The hook is
 * called before an operation looks at anything, because it may run other handles in between. An operation that fails
 * undoes its own part of the log, so that RETRY means "nothing was changed by this call". Facts of a key do not count
 * rows that this transaction inserted (rec.born). The order within admit is that of a real database: keys, business
 * keys, insert, then found rows and watermarks. A position is never taken away, so that its epoch is never used again.
 */
#include <stdlib.h>

#include "base/ids.h"
#include "support/mem_table.h"

static struct mem_store *self(struct semel_store *store)
{
    return (struct mem_store *)store;
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

static semel_status enter(struct mem_store *store, const char *op, bool needs_tx, struct semel_error *err)
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
    semel_status status = enter(self(store), "migrate", false, err);

    if (status == SEMEL_OK)
        *ret_from = *ret_to = 1;
    return status;
}

/* ---- the transaction ---------------------------------------------------------------------------------- */

static semel_status mem_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "begin", false, err);

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
    semel_status status = enter(self(store), "savepoint", true, err);

    if (status == SEMEL_OK) {
        self(store)->savepoint = self(store)->db->n_undo;
        self(store)->has_savepoint = true;
    }
    return status;
}

static semel_status mem_rollback_to(struct semel_store *store, struct semel_error *err)
{
    semel_status status = enter(self(store), "rollback_to", true, err);

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
    return enter(self(store), "guard", true, err);
}

static semel_status mem_check(struct semel_store *store, struct semel_error *err)
{
    return enter(self(store), "check", true, err);
}

semel_status semel__mem_effect_add(struct semel_store *store, struct semel_str key, struct semel_str value,
                                   struct semel_error *err)
{
    const struct semel_mem_effect effect = {.key = key, .value = value};
    semel_status status = enter(self(store), "effect", true, err);

    if (status == SEMEL_OK && !semel__mem_append(self(store)->db, MEM_EFFECT, &effect))
        return semel__fail_memory(err);
    return status;
}

/* ---- rows ---- */

/* Into the arena. false: no memory. */
static bool row_copy(struct semel_arena *arena, const struct semel_row *row, bool with_payload, struct semel_row *ret)
{
    struct semel_row copy = *row;

    if (!with_payload)
        copy.payload = copy.headers = MEM_NO_STR;
    struct semel_progress *p = &copy.progress;
    struct semel_str *const strs[] = {&copy.source,    &copy.id,       &copy.type,    &copy.order_key,
                                      &copy.position,  &copy.headers,  &copy.payload, &copy.traceparent,
                                      &p->lease_owner, &p->error_text, &p->outcome};
    for (size_t i = 0; i < sizeof strs / sizeof strs[0]; i++)
        if (!semel__arena_copy(arena, *strs[i], strs[i]))
            return false;
    for (size_t i = 0; i < copy.n_wants; i++)
        if (!semel__arena_copy(arena, copy.wants[i], &copy.wants[i]))
            return false;
    *ret = copy;
    return true;
}

/* ---- facts -------------------------------------------------------------------------------------------- */

static bool before(const struct semel_row *a, const struct semel_row *b, bool by_version)
{
    if (by_version && a->version != b->version)
        return a->version < b->version;
    return a->arrival < b->arrival;
}

/* false: no memory. */
static bool read_versions(const struct mem_order_key *stored, struct semel_arena *arena, struct semel_key *key)
{
    key->last_version = stored != NULL ? stored->last_version : SEMEL_NONE;
    key->skipped = NULL;
    key->n_skipped = stored != NULL ? stored->skipped.n / sizeof *key->skipped : 0;
    if (key->n_skipped == 0)
        return true;
    int64_t *skipped = semel__arena_alloc(arena, key->n_skipped, sizeof *skipped);
    if (skipped != NULL)
        memcpy(skipped, stored->skipped.p, stored->skipped.n);
    key->skipped = skipped;
    return skipped != NULL;
}

/* false: no memory. */
static bool read_keys(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_key *keys, size_t n_keys,
                      struct semel_arena *arena)
{
    for (size_t i = 0; i < n_keys; i++) {
        struct semel_key *key = &keys[i];
        const struct mem_order_key *stored = semel__mem_find(db, MEM_KEY, consumer, key->key, MEM_NO_STR, MEM_NO_STR);

        if (!read_versions(stored, arena, key))
            return false;
        const struct semel_row *head = NULL;
        key->parked = 0;
        key->open = false;
        for (struct mem_rec *rec = semel__mem_side_first(db, MEM_ROW, consumer, key->key, MEM_NO_STR); rec != NULL;
             rec = semel__mem_side_next(rec)) {
            const struct semel_row *row = &((struct mem_row *)rec)->row;
            if (rec->born == db->tx)
                continue;
            if (head == NULL || before(row, head, key->by_version))
                head = row;
            key->parked += row->progress.state == SEMEL_ROW_WAITING;
            key->open |= row->progress.state == SEMEL_ROW_PROCESSING || row->progress.state == SEMEL_ROW_UNKNOWN;
        }
        key->head_arrival = head != NULL ? head->arrival : SEMEL_NONE;
        key->head_version = head != NULL ? head->version : SEMEL_NONE;
    }
    return true;
}

/* false: no memory. */
static bool read_row(const struct mem_row *row, struct semel_arena *arena, struct semel_row *ret, bool *ret_damaged,
                     struct semel_error *damage)
{
    *ret_damaged = semel__row_check(&row->row, damage) != SEMEL_OK;
    return *ret_damaged || row_copy(arena, &row->row, true, ret);
}

/* ---- admit -------------------------------------------------------------------------------------------- */

static bool expired(const struct mem_business *held, int64_t now_us)
{
    return held->expires_us != SEMEL_NONE && held->expires_us <= now_us;
}

static bool wishes_for(const struct semel_row *row, struct semel_str key)
{
    for (size_t i = 0; i < row->n_wants; i++)
        if (semel__str_eq(row->wants[i], key))
            return true;
    return false;
}

static void read_holder(struct semel_mem_db *db, struct mem_consumer *consumer, const struct mem_business *held,
                        struct semel_business *business)
{
    const struct mem_row *row = semel__mem_find(db, MEM_ROW, consumer, held->source, held->id, MEM_NO_STR);
    business->unfinished = row != NULL && semel__state_unfinished(row->row.progress.state);
    for (const struct mem_row *other = consumer->unfinished; other != NULL; other = other->next)
        business->wanted += wishes_for(&other->row, held->key);
}

static bool take_business(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_business *business,
                          int64_t now_us, struct semel_arena *arena)
{
    struct mem_business *held = semel__mem_find(db, MEM_BUSINESS, consumer, business->key, MEM_NO_STR, MEM_NO_STR);
    const struct mem_business proto = {.rec.key.consumer = consumer,
                                       .key = business->key,
                                       .source = business->source,
                                       .id = business->id,
                                       .expires_us = business->expires_us};

    business->taken = business->inserted = business->unfinished = false;
    business->wanted = 0;
    business->held_source = business->held_id = MEM_NO_STR;
    if (held != NULL && !expired(held, now_us)) {
        business->taken = !semel__str_eq(held->source, business->source) || !semel__str_eq(held->id, business->id);
        if (business->taken)
            read_holder(db, consumer, held, business);
        return !business->taken || (semel__arena_copy(arena, held->source, &business->held_source) &&
                                    semel__arena_copy(arena, held->id, &business->held_id));
    }
    if (!semel__mem_write(db, MEM_BUSINESS, held, &proto))
        return false;
    business->inserted = true;
    return true;
}

static bool insert_row(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_row *row)
{
#ifdef SEMEL_MUTANT_NO_INSERT
    (void)db;
    (void)consumer;
    (void)row;
    return true;
#else
    struct mem_row proto = {.rec.key.consumer = consumer, .row = *row};

    if (!row->kept)
        proto.row.payload = proto.row.headers = MEM_NO_STR;
    return semel__mem_write(db, MEM_ROW, NULL, &proto);
#endif
}

/* `first_arrival` is the number of place 0. */
static bool admit_item(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_admit *item,
                       int64_t first_arrival, struct semel_arena *arena)
{
    const struct mem_row *there = semel__mem_find(db, MEM_ROW, consumer, item->row.source, item->row.id, MEM_NO_STR);

    item->inserted = item->damaged = false;
    if (there != NULL)
        return read_row(there, arena, &item->found, &item->damaged, &item->damage);
    item->row.arrival = first_arrival + (int64_t)item->place;
    item->inserted = insert_row(db, consumer, &item->row);
    return item->inserted;
}

static void read_watermarks(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_admit_batch *batch)
{
    for (size_t i = 0; i < batch->n_items; i++) {
        struct semel_admit *item = &batch->items[i];
        item->watermark_us = SEMEL_NONE;
#ifndef SEMEL_MUTANT_NO_WATERMARK
        const struct mem_watermark *stored = semel__mem_find(db, MEM_WATERMARK, consumer, item->row.source, MEM_NO_STR,
                                                             MEM_NO_STR);
        if (stored != NULL)
            item->watermark_us = stored->watermark_us;
#else
        (void)db;
        (void)consumer;
#endif
    }
}

static bool admit(struct semel_mem_db *db, struct semel_admit_batch *batch, struct semel_arena *arena)
{
    struct mem_consumer *consumer = semel__mem_consumer_make(db, batch->consumer);
    const int64_t first_arrival = db->last_arrival + 1;

    if (consumer == NULL || !read_keys(db, consumer, batch->keys, batch->n_keys, arena))
        return false;
    for (size_t i = 0; i < batch->n_items; i++)
        if (first_arrival + (int64_t)batch->items[i].place > db->last_arrival)
            db->last_arrival = first_arrival + (int64_t)batch->items[i].place;
    for (size_t i = 0; i < batch->n_business; i++)
        if (!take_business(db, consumer, &batch->business[i], batch->now_us, arena))
            return false;
    for (size_t i = 0; i < batch->n_items; i++)
        if (!admit_item(db, consumer, &batch->items[i], first_arrival, arena))
            return false;
    read_watermarks(db, consumer, batch);
    return true;
}

static semel_status mem_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                              struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "admit", true, err);
    const size_t mark = db->n_undo;

    if (status != SEMEL_OK)
        return status;
    if (!admit(db, batch, arena)) {
        semel__mem_undo_to(db, mark);
        return semel__fail_memory(err);
    }
    return SEMEL_OK;
}

/* ---- fetch -------------------------------------------------------------------------------------------- */

static semel_status mem_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                              struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "fetch", true, err);
    struct mem_consumer *consumer = semel__mem_consumer(db, batch->consumer);
    const size_t mark = db->n_undo;

    if (status != SEMEL_OK)
        return status;
    if (!read_keys(db, consumer, batch->keys, batch->n_keys, arena))
        return semel__fail_memory(err);
    for (size_t i = 0; i < batch->n_business; i++)
        if (!take_business(db, consumer, &batch->business[i], batch->now_us, arena)) {
            semel__mem_undo_to(db, mark);
            return semel__fail_memory(err);
        }
    for (size_t i = 0; i < batch->n_items; i++) {
        struct semel_fetched *item = &batch->items[i];
        const struct mem_row *there = semel__mem_find(db, MEM_ROW, consumer, item->source, item->id, MEM_NO_STR);
        item->present = there != NULL;
        item->damaged = false;
        if (there != NULL && !read_row(there, arena, &item->row, &item->damaged, &item->damage))
            return semel__fail_memory(err);
    }
    return SEMEL_OK;
}

/* ---- settle ------------------------------------------------------------------------------------------- */

static bool put_attempt(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_settle_batch *batch,
                        const struct semel_note *note)
{
    const struct mem_attempt proto = {.rec.key.consumer = consumer,
                                      .attempt = {.consumer = consumer->name,
                                                  .source = note->source,
                                                  .id = note->id,
                                                  .who = batch->worker,
                                                  .attempt = note->attempt,
                                                  .cls = note->cls,
                                                  .text = note->text,
                                                  .at_us = batch->now_us,
                                                  .seq = ++db->last_seq}};
    return semel__mem_write(db, MEM_ATTEMPT, NULL, &proto);
}

/* Those that wait for the key look at once. */
static bool make_due(struct semel_mem_db *db, const struct mem_consumer *consumer, struct semel_str key, int64_t now_us)
{
    for (struct mem_row *row = consumer->unfinished, *next; row != NULL; row = next) {
        struct mem_row proto = *row;
        next = row->next;
        if (!semel__progress_waits_for_intent(&row->row.progress) || !wishes_for(&row->row, key))
            continue;
        proto.row.progress.due_us = now_us;
        proto.row.updated_us = now_us >= row->row.updated_us ? now_us : row->row.updated_us + 1;
        if (!semel__mem_write(db, MEM_ROW, row, &proto))
            return false;
    }
    return true;
}

static bool hold_until(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_hold *hold)
{
    /* An image goes to the front of its bucket: no key is met twice. */
    for (struct mem_rec *rec = semel__mem_side_first(db, MEM_BUSINESS, consumer, hold->source, hold->id), *next;
         rec != NULL; rec = next) {
        struct mem_business proto = *(struct mem_business *)rec;
        next = semel__mem_side_next(rec);
        proto.expires_us = hold->until_us;
        if (!semel__mem_write(db, MEM_BUSINESS, rec, &proto))
            return false;
    }
    return true;
}

/* key not given: none of its wishes is left. */
static bool put_want(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_want *want)
{
    struct mem_row *row = semel__mem_find(db, MEM_ROW, consumer, want->source, want->id, MEM_NO_STR);
    struct mem_row proto;

    if (row == NULL || (semel__str_given(want->key) && wishes_for(&row->row, want->key)))
        return true;
    proto = *row;
    if (!semel__str_given(want->key)) {
        proto.row.n_wants = 0;
        memset(proto.row.wants, 0, sizeof proto.row.wants);
    } else if (row->row.n_wants < SEMEL_BUSINESS_MAX) {
        proto.row.wants[proto.row.n_wants++] = want->key;
    }
    return semel__mem_write(db, MEM_ROW, row, &proto);
}

static bool release_business(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_change *change,
                             const struct semel_settle_batch *batch)
{
    struct mem_rec *rec;

    while ((rec = semel__mem_side_first(db, MEM_BUSINESS, consumer, change->source, change->id)) != NULL) {
        const struct semel_want want = {((struct mem_business *)rec)->key, change->source, change->id};
        if ((!batch->wakes_none && !make_due(db, consumer, want.key, batch->now_us)) ||
            (change->wish_business && !put_want(db, consumer, &want)) || !semel__mem_put(db, MEM_BUSINESS, rec, NULL))
            return false;
    }
    return true;
}

static bool fits(const struct mem_row *row, const struct semel_change *change)
{
    if (row == NULL || row->row.progress.state != change->from)
        return false;
#ifndef SEMEL_MUTANT_NO_TOKEN
    if (change->token != SEMEL_NONE && row->row.progress.lease_token != change->token)
        return false; /* P39 */
#endif
    return true;
}

static bool write_row(struct semel_mem_db *db, struct mem_row *row, const struct semel_change *change)
{
    struct mem_row proto = *row;

    proto.row.progress = change->progress;
    proto.row.updated_us = change->updated_us;
    switch (change->payload) {
    case SEMEL_PAYLOAD_AS_IS:
        break;
    case SEMEL_PAYLOAD_CLEAR:
        proto.row.payload = proto.row.headers = MEM_NO_STR;
        proto.row.kept = false;
        break;
    case SEMEL_PAYLOAD_PUT:
        proto.row.payload = change->put->payload;
        proto.row.headers = change->put->headers;
        proto.row.kept = true;
        if (proto.row.fp.kind == SEMEL_FP_NONE)
            proto.row.fp = change->put->fp;
        break;
    }
    return semel__mem_write(db, MEM_ROW, row, &proto);
}

static bool settle_row(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_settle_batch *batch,
                       struct semel_change *change)
{
    struct mem_row *row = semel__mem_find(db, MEM_ROW, consumer, change->source, change->id, MEM_NO_STR);
    const struct semel_note note = {change->source, change->id, change->progress.attempts, change->progress.error_class,
                                    change->progress.error_text};

    change->applied = fits(row, change);
    if (!change->applied)
        return true;
    if (change->remove) {
        if (!semel__mem_put(db, MEM_ROW, row, NULL))
            return false;
    } else if (!write_row(db, row, change)) {
        return false;
    }
    if (change->log_attempt && !put_attempt(db, consumer, batch, &note))
        return false;
    return !change->release_business || release_business(db, consumer, change, batch);
}

static bool wake_first(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_key_change *key,
                       int64_t now_us)
{
    struct mem_row *first = NULL, proto;

    for (struct mem_rec *rec = semel__mem_side_first(db, MEM_ROW, consumer, key->key, MEM_NO_STR); rec != NULL;
         rec = semel__mem_side_next(rec)) {
        struct mem_row *row = (struct mem_row *)rec;
        if (first == NULL || before(&row->row, &first->row, key->by_version))
            first = row;
    }
    if (first == NULL || first->row.progress.state != SEMEL_ROW_WAITING ||
        semel__progress_postponed(&first->row.progress, now_us))
        return true;
    proto = *first;
    proto.row.progress.due_us = now_us;
    proto.row.progress.error_class = SEMEL_CLASS_BLOCKED;
    proto.row.updated_us = now_us >= first->row.updated_us ? now_us : first->row.updated_us + 1;
    return semel__mem_write(db, MEM_ROW, first, &proto);
}

static bool settle_key(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_key_change *key,
                       int64_t now_us)
{
    struct mem_order_key *stored = semel__mem_find(db, MEM_KEY, consumer, key->key, MEM_NO_STR, MEM_NO_STR);
    struct mem_order_key proto = {.rec.key.consumer = consumer,
                                  .key = key->key,
                                  .last_version = stored != NULL ? stored->last_version : SEMEL_NONE,
                                  .skipped = stored != NULL ? stored->skipped : MEM_NO_STR};
    bool raise = key->last_version != SEMEL_NONE && proto.last_version < key->last_version;

    if (raise)
        proto.last_version = key->last_version;
    if (key->skips)
        proto.skipped = (struct semel_str){(const char *)key->skipped, key->n_skipped * sizeof *key->skipped};
    if (raise || key->skips) {
        if (!semel__mem_write(db, MEM_KEY, stored, &proto))
            return false;
    }
    return !key->wake || wake_first(db, consumer, key, now_us);
}

static bool drop_business(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel_business *drop)
{
    struct mem_business *held = semel__mem_find(db, MEM_BUSINESS, consumer, drop->key, MEM_NO_STR, MEM_NO_STR);

    if (held == NULL || !semel__str_eq(held->source, drop->source) || !semel__str_eq(held->id, drop->id))
        return true;
    return semel__mem_put(db, MEM_BUSINESS, held, NULL);
}

/* Room for one more conflict of the message: the one that came longest ago goes. */
static bool bound_conflicts(struct semel_mem_db *db, const struct mem_consumer *consumer, const struct semel__msg *msg)
{
    struct mem_conflict *oldest = NULL;
    size_t n = 0;
    for (struct mem_rec *rec = NULL; (rec = semel__mem_next(db, MEM_CONFLICT, rec)) != NULL;) {
        struct mem_conflict *one = (struct mem_conflict *)rec;
        if (rec->key.consumer != consumer || !semel__str_eq(one->conflict.id, msg->id) ||
            !semel__str_eq(one->conflict.source, msg->source))
            continue;
        n++;
        if (oldest == NULL || one->conflict.last_us < oldest->conflict.last_us)
            oldest = one;
    }
    return n < SEMEL_CONFLICTS_MAX || semel__mem_put(db, MEM_CONFLICT, oldest, NULL);
}

static bool count_conflict(struct semel_mem_db *db, struct mem_consumer *consumer, const struct semel__msg *msg,
                           int64_t now_us)
{
    const struct semel_str fp = {(const char *)&msg->fp, 2 + (size_t)msg->fp.n};
    struct mem_conflict *stored = semel__mem_find(db, MEM_CONFLICT, consumer, msg->source, msg->id, fp);
    struct mem_conflict proto = {.rec.key.consumer = consumer,
                                 .conflict = {.consumer = consumer->name,
                                              .source = msg->source,
                                              .id = msg->id,
                                              .fp = msg->fp,
                                              .first_us = now_us,
                                              .payload = msg->payload,
                                              .headers = msg->headers}};

    if (stored != NULL)
        proto.conflict = stored->conflict;
    else if (!bound_conflicts(db, consumer, msg))
        return false;
    proto.conflict.count++;
    proto.conflict.last_us = now_us;
    return semel__mem_write(db, MEM_CONFLICT, stored, &proto);
}

static bool settle(struct semel_mem_db *db, struct semel_settle_batch *batch)
{
    struct mem_consumer *consumer = semel__mem_consumer_make(db, batch->consumer);

    if (consumer == NULL)
        return false;
    for (size_t i = 0; i < batch->n_changes; i++)
        if (!settle_row(db, consumer, batch, &batch->changes[i]))
            return false;
    for (size_t i = 0; i < batch->n_granted; i++)
        if (!put_want(db, consumer, &batch->granted[i]))
            return false;
    for (size_t i = 0; i < batch->n_wants; i++)
        if (!put_want(db, consumer, &batch->wants[i]))
            return false;
    for (size_t i = 0; i < batch->n_holds; i++)
        if (!hold_until(db, consumer, &batch->holds[i]))
            return false;
    for (size_t i = 0; i < batch->n_keys; i++)
        if (!settle_key(db, consumer, &batch->keys[i], batch->now_us))
            return false;
    for (size_t i = 0; i < batch->n_drop; i++)
        if (!drop_business(db, consumer, &batch->drop[i]))
            return false;
    for (size_t i = 0; i < batch->n_conflicts; i++)
        if (!count_conflict(db, consumer, batch->conflicts[i], batch->now_us))
            return false;
    for (size_t i = 0; i < batch->n_notes; i++)
        if (!put_attempt(db, consumer, batch, &batch->notes[i]))
            return false;
    return true;
}

static semel_status mem_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "settle", true, err);
    const size_t mark = db->n_undo;

    if (status != SEMEL_OK)
        return status;
    if (!settle(db, batch)) {
        semel__mem_undo_to(db, mark);
        return semel__fail_memory(err);
    }
    return SEMEL_OK;
}

/* ---- scan --------------------------------------------------------------------------------------------- */

static semel_status copy_rows(const struct mem_row **found, size_t n_found, const struct semel_scan *scan,
                              struct semel_arena *arena, struct semel_row **ret_rows, size_t *ret_n,
                              size_t *ret_damaged, struct semel_error *err)
{
    const size_t max = n_found < scan->max ? n_found : scan->max;
    struct semel_row *rows = semel__arena_alloc(arena, max, sizeof *rows);
    size_t n = 0, damaged = 0;

    if (rows == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n_found && n < max; i++) {
        if (semel__row_check(&found[i]->row, NULL) != SEMEL_OK)
            damaged++;
        else if (!row_copy(arena, &found[i]->row, scan->with_payload, &rows[n]) ||
                 !semel__arena_copy(arena, found[i]->rec.key.consumer->name, &rows[n++].consumer))
            return semel__fail_memory(err);
    }
    *ret_rows = rows;
    *ret_n = n;
    *ret_damaged = damaged;
    return SEMEL_OK;
}

static semel_status mem_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                             struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    const struct mem_row **found = NULL;
    size_t n = 0;
    semel_status status = enter(self(store), "scan", false, err);

    if (status != SEMEL_OK)
        return status;
    if (semel__mem_select(self(store), scan, &found, &n))
        status = copy_rows(found, n, scan, arena, ret_rows, ret_n, ret_damaged, err);
    else
        status = semel__fail_memory(err);
    semel__free(found);
    return status;
}

static int cmp_source(const void *a, const void *b)
{
    return semel__str_cmp((*(const struct mem_row *const *)a)->row.source,
                          (*(const struct mem_row *const *)b)->row.source);
}

static semel_status mem_sources(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err)
{
    const struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .consumer = consumer, .after_arrival = INT64_MIN};
    const struct mem_row **found = NULL;
    struct semel_str *sources = NULL;
    size_t n_found = 0, n = 0;
    semel_status status = enter(self(store), "sources", false, err);

    if (status != SEMEL_OK)
        return status;
    if (semel__mem_select(self(store), &all, &found, &n_found)) {
        if (n_found > 1)
            qsort(found, n_found, sizeof(const struct mem_row *), cmp_source);
        for (size_t i = 0; i < n_found; i++)
            if (n == 0 || cmp_source(&found[n - 1], &found[i]) != 0)
                found[n++] = found[i];
        sources = semel__arena_alloc(arena, n, sizeof *sources);
    }
    for (size_t i = 0; sources != NULL && i < n; i++)
        if (!semel__arena_copy(arena, found[i]->row.source, &sources[i]))
            sources = NULL;
    semel__free(found);
    if (sources == NULL)
        return semel__fail_memory(err);
    *ret_sources = sources;
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- watermark and purge ------------------------------------------------------------------------------ */

static semel_status mem_raise(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t watermark_us, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    struct mem_watermark proto = {.source = source, .watermark_us = watermark_us};
    struct mem_watermark *stored;
    semel_status status = enter(self(store), "watermark", true, err);

    if (status != SEMEL_OK)
        return status;
    proto.rec.key.consumer = semel__mem_consumer_make(db, consumer);
    if (proto.rec.key.consumer == NULL)
        return semel__fail_memory(err);
    stored = semel__mem_find(db, MEM_WATERMARK, proto.rec.key.consumer, source, MEM_NO_STR, MEM_NO_STR);
    if (stored != NULL && stored->watermark_us >= watermark_us)
        return SEMEL_OK;
    if (!semel__mem_write(db, MEM_WATERMARK, stored, &proto))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* Its end and its message lie before `before_us`, and the message before `watermark_us` too. */
static bool purgeable(const struct semel_row *row, int64_t watermark_us, int64_t before_us)
{
    if (!semel__state_final(row->progress.state) || row->progress.processed_us >= before_us)
        return false;
    return row->message_time_us == SEMEL_NONE ||
           (row->message_time_us < before_us && row->message_time_us < watermark_us);
}

static semel_status mem_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                             int64_t before_us, size_t max, size_t looks, struct semel_aged *ret,
                             struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "aged", true, err);
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);

    if (status != SEMEL_OK)
        return status;
    *ret = (struct semel_aged){.latest_us = SEMEL_NONE};
    if (looks < max) /* in no order by their end: a row that cannot go costs no look, it might be the same for ever */
        max = looks;
    for (struct mem_rec *rec = NULL; ret->n < max && (rec = semel__mem_next(db, MEM_ROW, rec)) != NULL;) {
        const struct semel_row *row = &((struct mem_row *)rec)->row;
        if (rec->key.consumer != known || !semel__str_eq(rec->key.part[0], source) ||
            !purgeable(row, INT64_MAX, before_us))
            continue;
        ret->looked = ++ret->n;
        if (ret->latest_us == SEMEL_NONE || row->message_time_us > ret->latest_us)
            ret->latest_us = row->message_time_us;
    }
    return SEMEL_OK;
}

static bool delete_attempts(struct semel_mem_db *db, const struct mem_rec *row)
{
    struct mem_rec *attempt;

    while ((attempt = semel__mem_side_first(db, MEM_ATTEMPT, row->key.consumer, row->key.part[0], row->key.part[1])) !=
           NULL)
        if (!semel__mem_put(db, MEM_ATTEMPT, attempt, NULL))
            return false;
    return true;
}

/* What a purge looks for. */
struct aged {
    const struct mem_consumer *consumer;
    struct semel_str source;
    int64_t watermark_us, before_us;
};

/* Deletes at most `max` records that `gone` names, and of a row its attempts. */
static semel_status delete_some(struct semel_mem_db *db, enum mem_kind kind, const struct aged *aged,
                                bool (*gone)(const struct mem_rec *rec, const struct aged *aged), size_t max,
                                size_t *ret_deleted, struct semel_error *err)
{
    const size_t mark = db->n_undo;
    size_t deleted = 0;

    for (struct mem_rec *rec = semel__mem_next(db, kind, NULL), *next; rec != NULL && deleted < max; rec = next) {
        next = semel__mem_next(db, kind, rec);
        if (rec->key.consumer != aged->consumer || !gone(rec, aged))
            continue;
        if ((kind == MEM_ROW && !delete_attempts(db, rec)) || !semel__mem_put(db, kind, rec, NULL)) {
            semel__mem_undo_to(db, mark);
            return semel__fail_memory(err);
        }
        deleted++;
    }
    *ret_deleted = deleted;
    return SEMEL_OK;
}

static bool row_gone(const struct mem_rec *rec, const struct aged *aged)
{
    return semel__str_eq(rec->key.part[0], aged->source) &&
           purgeable(&((const struct mem_row *)rec)->row, aged->watermark_us, aged->before_us);
}

static semel_status mem_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t before_us, size_t max, size_t looks, size_t *ret_deleted, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "purge", true, err);
    const struct aged aged = {semel__mem_consumer(db, consumer), source, semel__mem_watermark(db, consumer, source),
                              before_us};

    return status == SEMEL_OK ? delete_some(db, MEM_ROW, &aged, row_gone, looks < max ? looks : max, ret_deleted, err)
                              : status;
}

static bool conflict_gone(const struct mem_rec *rec, const struct aged *aged)
{
    return ((const struct mem_conflict *)rec)->conflict.last_us < aged->before_us;
}

/* A key is stored here only with a version, or with skipped ones, which are kept for ever. */
static semel_status mem_purge_keys(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                                   char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "purge_keys", true, err);
    const struct aged aged = {.consumer = semel__mem_consumer(db, consumer), .before_us = before_us};
    size_t deleted;

    (void)place;
    return status == SEMEL_OK ? delete_some(db, MEM_CONFLICT, &aged, conflict_gone, max, &deleted, err) : status;
}

static bool business_gone(const struct mem_rec *rec, const struct aged *aged)
{
    return expired((const struct mem_business *)rec, aged->before_us);
}

static semel_status mem_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us, size_t max,
                                       size_t *ret_deleted, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "purge_business", true, err);
    const struct aged aged = {.consumer = semel__mem_consumer(db, consumer), .before_us = now_us};

    return status == SEMEL_OK ? delete_some(db, MEM_BUSINESS, &aged, business_gone, max, ret_deleted, err) : status;
}

static semel_status mem_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                               struct semel_error *err)
{
    semel_status status = enter(self(store), "parked", true, err);
    if (status != SEMEL_OK)
        return status;
    const struct mem_consumer *known = semel__mem_consumer(self(store)->db, consumer);
    int64_t n = known != NULL ? known->waiting : 0;
    *ret_n = n < max ? n : max;
    return SEMEL_OK;
}

static semel_status mem_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                              int64_t *ret_n, struct semel_error *err)
{
    semel_status status = enter(self(store), "large", true, err);
    if (status != SEMEL_OK)
        return status;
    struct semel_mem_db *db = self(store)->db;
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);
    int64_t n = 0;
    for (struct mem_rec *rec = NULL; n < max && (rec = semel__mem_next(db, MEM_ROW, rec)) != NULL;) {
        const struct semel_row *row = &((struct mem_row *)rec)->row;
        bool held = row->progress.state == SEMEL_ROW_DEAD || row->progress.state == SEMEL_ROW_QUARANTINED;
        n += held && rec->key.consumer == known && row->kept && row->payload.n > bytes;
    }
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- outbox and audit --------------------------------------------------------------------------------- */

static struct semel_random *rng_of(struct mem_store *store)
{
    if (store->base.options.rng != NULL)
        return store->base.options.rng;
    if (!store->rng_ready)
        store->rng_ready = semel__random_seed_os(&store->rng);
    return store->rng_ready ? &store->rng : NULL;
}

static semel_status mem_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                   char ret_id[37], struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    struct mem_event proto = {.event = {.event = *event, .created_us = now_us}};
    char id[SEMEL_UUID_TEXT];
    semel_status status = enter(self(store), "outbox_put", true, err);

    if (status != SEMEL_OK)
        return status;
    if (!semel__str_given(event->id)) {
        struct semel_random *rng = rng_of(self(store));
        if (rng == NULL)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "mem: no randomness for a new id");
        semel__uuid7_new(now_us, rng, id);
        proto.event.event.id = semel__str(id);
    } else if (!semel__uuid_valid(event->id)) {
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the event's id is not a UUID");
    }
    if (semel__mem_find(db, MEM_EVENT, NULL, proto.event.event.id, MEM_NO_STR, MEM_NO_STR) != NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "an event with this id is in the outbox already");
    proto.event.seq = ++db->last_seq;
    if (!semel__mem_write(db, MEM_EVENT, NULL, &proto))
        return semel__fail_memory(err);
    memcpy(ret_id, proto.event.event.id.p, SEMEL_UUID_TEXT - 1);
    ret_id[SEMEL_UUID_TEXT - 1] = '\0';
    return SEMEL_OK;
}

static semel_status mem_audit(struct semel_store *store, const struct semel_audit *lines, size_t n, int64_t now_us,
                              struct semel_error *err)
{
    semel_status status = enter(self(store), "audit", true, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        if (!semel__mem_append(self(store)->db, MEM_AUDIT,
                               &(struct semel_mem_audit){.line = lines[i], .at_us = now_us}))
            return semel__fail_memory(err);
    return status;
}

/* ---- settings of consumers ---- */

/* What the handle may see of the consumer's settings, or NULL. */
static const struct mem_settings *visible_settings(const struct mem_store *store, struct mem_consumer *consumer)
{
    const struct mem_rec *found = semel__mem_find(store->db, MEM_SETTINGS, consumer, MEM_NO_STR, MEM_NO_STR,
                                                  MEM_NO_STR);
    return found != NULL ? (const struct mem_settings *)semel__mem_visible(store, MEM_SETTINGS, found) : NULL;
}

static semel_status mem_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                     struct semel_str *ret_settings, struct semel_error *err)
{
    const struct mem_settings *found;
    semel_status status = enter(self(store), "consumer_get", false, err);

    if (status != SEMEL_OK)
        return status;
    found = visible_settings(self(store), semel__mem_consumer(self(store)->db, consumer));
    if (!semel__arena_copy(arena, found != NULL ? found->stored.settings : MEM_NO_STR, ret_settings))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* There is one writer: whoever is in a transaction has locked everything. */
static semel_status mem_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                      struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
    const struct mem_settings *found;
    struct semel_consumer copy = {.by.at_us = SEMEL_NONE};
    semel_status status = enter(self(store), "consumer_read", lock, err);

    if (status != SEMEL_OK)
        return status;
    found = visible_settings(self(store), semel__mem_consumer(self(store)->db, consumer));
    if (found != NULL) {
        copy.by.at_us = found->stored.by.at_us;
        if (!semel__arena_copy(arena, found->stored.settings, &copy.settings) ||
            !semel__arena_copy(arena, found->stored.by.host, &copy.by.host) ||
            !semel__arena_copy(arena, found->stored.by.file, &copy.by.file))
            return semel__fail_memory(err);
    }
    *ret = copy;
    return SEMEL_OK;
}

/* One of the two that are given; what is not stays as it is. */
static semel_status put_settings(struct mem_store *store, struct semel_str consumer, const struct semel_str *settings,
                                 const struct semel_set_by *by, int64_t now_us, struct semel_error *err)
{
    struct semel_mem_db *db = store->db;
    struct mem_settings proto = {.stored.by.at_us = SEMEL_NONE}, *stored;

    proto.rec.key.consumer = semel__mem_consumer_make(db, consumer);
    if (proto.rec.key.consumer == NULL)
        return semel__fail_memory(err);
    stored = semel__mem_find(db, MEM_SETTINGS, proto.rec.key.consumer, MEM_NO_STR, MEM_NO_STR, MEM_NO_STR);
    if (stored == NULL && settings == NULL) /* there is nothing to mark */
        return SEMEL_OK;
    if (stored != NULL) {
        proto.stored = stored->stored;
        proto.updated_us = stored->updated_us;
    }
    if (settings != NULL) {
        proto.stored.settings = *settings;
        proto.updated_us = now_us;
    }
    if (by != NULL)
        proto.stored.by = *by;
    if (!semel__mem_write(db, MEM_SETTINGS, stored, &proto))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

static semel_status mem_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                     int64_t now_us, struct semel_error *err)
{
    semel_status status = enter(self(store), "consumer_put", true, err);
    return status == SEMEL_OK ? put_settings(self(store), consumer, &settings, NULL, now_us, err) : status;
}

static semel_status mem_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                      const struct semel_set_by *by, struct semel_error *err)
{
    semel_status status = enter(self(store), "consumer_mark", true, err);
    return status == SEMEL_OK ? put_settings(self(store), consumer, NULL, by, 0, err) : status;
}

/* ---- what a change would reinterpret ------------------------------------------------------------------- */

static bool without_last(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_str key)
{
    const struct mem_order_key *found = semel__mem_find(db, MEM_KEY, consumer, key, MEM_NO_STR, MEM_NO_STR);
    return found == NULL || found->last_version == SEMEL_NONE;
}

static bool is_affected(struct semel_mem_db *db, const struct mem_row *row, enum semel_affected what, int64_t version)
{
    const struct semel_progress *progress = &row->row.progress;
    const bool keyed = semel__str_given(row->row.order_key);
    const bool waits = progress->state == SEMEL_ROW_WAITING || progress->state == SEMEL_ROW_FAILED;

    switch (what) {
    case SEMEL_AFFECTED_ORDERED:
        return keyed && (waits || progress->state == SEMEL_ROW_PROCESSING);
    case SEMEL_AFFECTED_VERSIONED:
        return keyed && row->row.version != SEMEL_NONE &&
               (progress->state == SEMEL_ROW_UNKNOWN || progress->state == SEMEL_ROW_DEAD);
    case SEMEL_AFFECTED_BELOW:
        return keyed && waits && row->row.version != SEMEL_NONE && row->row.version < version &&
               without_last(db, row->rec.key.consumer, row->row.order_key);
    case SEMEL_AFFECTED_DOUBTED:
        if (progress->attempts == 0 || progress->state == SEMEL_ROW_WAITING)
            return progress->attempts > 0;
        return progress->state == SEMEL_ROW_FAILED &&
               (progress->attempts > 1 || progress->error_class == SEMEL_CLASS_UNKNOWN ||
                progress->error_class == SEMEL_CLASS_LEASE || progress->error_class == SEMEL_CLASS_RELEASED);
    case SEMEL_AFFECTED_SOURCED:
        return row->row.source.n > 0;
    case SEMEL_AFFECTED_SOURCELESS:
        return row->row.source.n == 0;
    case SEMEL_AFFECTED_ANY:
    case SEMEL_AFFECTED_KEYS:
    case SEMEL_AFFECTED_WATERMARKS:
    case SEMEL_AFFECTED_COUNT:
        break;
    }
    return true;
}

static semel_status mem_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                 int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err)
{
    const enum mem_kind kind = what == SEMEL_AFFECTED_KEYS         ? MEM_KEY
                               : what == SEMEL_AFFECTED_WATERMARKS ? MEM_WATERMARK
                                                                   : MEM_ROW;
    struct semel_mem_db *db = self(store)->db;
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);
    semel_status status = enter(self(store), "affected", true, err);
    int64_t n = 0;

    if (status != SEMEL_OK)
        return status;
    for (struct mem_rec *rec = NULL; n < max && (rec = semel__mem_next(db, kind, rec)) != NULL;)
        if (rec->key.consumer == known)
            n += kind != MEM_ROW || is_affected(db, (struct mem_row *)rec, what, version);
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- which consumers there are ------------------------------------------------------------------------- */

/* How many rows of the consumer the handle may see: those that are there, less what another's transaction added. */
static int64_t visible_rows(const struct mem_store *store, const struct mem_consumer *consumer)
{
    const struct semel_mem_db *db = store->db;
    int64_t n = consumer->rows;

    for (size_t i = 0; semel__mem_foreign(store) && i < db->n_undo; i++) {
        const struct mem_undo *undo = &db->undo[i];
        if (undo->kind == MEM_ROW && undo->is != NULL && undo->is->key.consumer == consumer)
            n--;
        if (undo->kind == MEM_ROW && undo->was != NULL && undo->was->key.consumer == consumer)
            n++;
    }
    return n;
}

static int cmp_name(const void *a, const void *b)
{
    const struct mem_consumer *const *x = a, *const *y = b;
    return semel__str_cmp((*x)->name, (*y)->name);
}

/* Those that are wanted, ascending; NULL: no memory. */
static const struct mem_consumer **gather(const struct mem_store *store, struct semel_str after, size_t *ret_n)
{
    const struct mem_consumer **list;
    size_t n = 0;

    for (const struct mem_consumer *consumer = store->db->consumers; consumer != NULL; consumer = consumer->next)
        n++;
    list = semel__calloc(n + 1, sizeof *list);
    if (list == NULL)
        return NULL;
    n = 0;
    for (struct mem_consumer *consumer = store->db->consumers; consumer != NULL; consumer = consumer->next)
        if (semel__str_cmp(consumer->name, after) > 0 &&
            (visible_settings(store, consumer) != NULL || visible_rows(store, consumer) > 0))
            list[n++] = consumer;
    qsort(list, n, sizeof *list, cmp_name);
    *ret_n = n;
    return list;
}

static semel_status mem_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                  struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                  struct semel_error *err)
{
    const struct mem_consumer **list;
    struct semel_str *names = NULL;
    size_t n = 0;
    semel_status status = enter(self(store), "consumers", false, err);

    if (status != SEMEL_OK)
        return status;
    list = gather(self(store), after, &n);
    if (n > max)
        n = max;
    if (list != NULL)
        names = semel__arena_alloc(arena, n, sizeof *names);
    for (size_t i = 0; names != NULL && i < n; i++)
        if (!semel__arena_copy(arena, list[i]->name, &names[i]))
            names = NULL;
    semel__free(list);
    if (names == NULL)
        return semel__fail_memory(err);
    *ret = names;
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- positions of sources ---- */

static struct mem_position *find_position(struct semel_mem_db *db, struct mem_consumer *consumer,
                                          const struct semel_position *item)
{
    struct semel_str partition = {(const char *)&item->partition, sizeof item->partition};
    return semel__mem_find(db, MEM_POSITION, consumer, item->source, partition, MEM_NO_STR);
}

/* The item as it is to be stored, in the place of `was`. */
static semel_status put_position(struct semel_mem_db *db, struct mem_consumer *consumer, struct mem_position *was,
                                 const struct semel_position *item, int64_t now_us, struct semel_error *err)
{
    struct mem_position proto = {.position = *item};

    proto.rec.key.consumer = consumer;
    proto.position.updated_us = now_us;
    proto.position.fenced = false;
    return semel__mem_write(db, MEM_POSITION, was, &proto) ? SEMEL_OK : semel__fail_memory(err);
}

/* take, and with `set` an operator's word. */
static semel_status raise_epochs(struct mem_store *store, struct semel_str name, struct semel_position *items, size_t n,
                                 bool set, int64_t now_us, struct semel_error *err)
{
    struct mem_consumer *consumer = semel__mem_consumer_make(store->db, name);
    semel_status status = consumer != NULL ? SEMEL_OK : semel__fail_memory(err);

    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct mem_position *was = find_position(store->db, consumer, &items[i]);
        if (!set)
            items[i].offset = was != NULL ? was->position.offset : SEMEL_NONE;
        items[i].epoch = was != NULL ? was->position.epoch + 1 : 1;
        status = put_position(store->db, consumer, was, &items[i], now_us, err);
    }
    return status;
}

static semel_status mem_positions_own(struct semel_store *store, struct semel_str consumer,
                                      struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    semel_status status = enter(self(store), "positions_acquire", true, err);
    return status == SEMEL_OK ? raise_epochs(self(store), consumer, items, n, false, now_us, err) : status;
}

static semel_status mem_positions_set(struct semel_store *store, struct semel_str consumer,
                                      struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    semel_status status = enter(self(store), "positions_set", true, err);
    return status == SEMEL_OK ? raise_epochs(self(store), consumer, items, n, true, now_us, err) : status;
}

static semel_status mem_positions_move(struct semel_store *store, struct semel_str name, struct semel_position *items,
                                       size_t n, int64_t now_us, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = enter(self(store), "positions_move", true, err);
    struct mem_consumer *consumer = semel__mem_consumer(db, name);

    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct mem_position *was = find_position(db, consumer, &items[i]);
        struct semel_position now = items[i];
        items[i].fenced = was == NULL || was->position.epoch != items[i].epoch;
        if (items[i].fenced || items[i].offset == SEMEL_NONE)
            continue;
        if (was->position.offset != SEMEL_NONE && was->position.offset > now.offset)
            now.offset = was->position.offset;
        status = put_position(db, consumer, was, &now, now_us, err);
    }
    return status;
}

static int cmp_position(const void *va, const void *vb)
{
    const struct semel_position *a = va, *b = vb;
    int c = semel__str_cmp(a->source, b->source);
    return c != 0 ? c : (a->partition > b->partition) - (a->partition < b->partition);
}

static semel_status mem_positions_list(struct semel_store *store, struct semel_str name, size_t max,
                                       struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                       struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    struct mem_consumer *consumer = semel__mem_consumer(db, name);
    struct semel_position *items;
    size_t n = 0;
    semel_status status = enter(self(store), "positions_list", false, err);

    if (status != SEMEL_OK)
        return status;
    items = semel__arena_alloc(arena, db->tables[MEM_POSITION].n + 1, sizeof *items);
    if (items == NULL)
        return semel__fail_memory(err);
    for (struct mem_rec *rec = semel__mem_next(db, MEM_POSITION, NULL); rec != NULL && consumer != NULL;
         rec = semel__mem_next(db, MEM_POSITION, rec)) {
        const struct mem_position *seen = rec->key.consumer == consumer
                                              ? (const struct mem_position *)semel__mem_visible(self(store),
                                                                                                MEM_POSITION, rec)
                                              : NULL;
        if (seen != NULL)
            items[n++] = seen->position;
    }
    qsort(items, n, sizeof *items, cmp_position);
    n = n < max ? n : max;
    for (size_t i = 0; i < n; i++)
        if (!semel__arena_copy(arena, items[i].source, &items[i].source))
            return semel__fail_memory(err);
    *ret = items;
    *ret_n = n;
    return SEMEL_OK;
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
    .admit = mem_admit,
    .fetch = mem_fetch,
    .settle = mem_settle,
    .scan = mem_scan,
    .sources = mem_sources,
    .watermark = mem_raise,
    .aged = mem_aged,
    .purge = mem_purge,
    .purge_keys = mem_purge_keys,
    .parked = mem_parked,
    .large = mem_large,
    .purge_business = mem_purge_business,
    .outbox_put = mem_outbox_put,
    .audit = mem_audit,
    .consumer_get = mem_consumer_get,
    .consumer_put = mem_consumer_put,
    .consumer_read = mem_consumer_read,
    .consumer_mark = mem_consumer_mark,
    .affected = mem_affected,
    .consumers = mem_consumers,
    .positions_acquire = mem_positions_own,
    .positions_move = mem_positions_move,
    .positions_set = mem_positions_set,
    .positions_list = mem_positions_list,
    .busy = mem_busy,
};
