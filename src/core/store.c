/* SPDX-License-Identifier: MIT
 *
 * store.c: the only way from core to a store driver. Each wrapper asserts core's duties before the call and the
 * driver's after it; it adds no behaviour of its own.
 */
#include "core/store.h"

#include <assert.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/str.h"
#include "core/headers.h"
#include "core/state.h"
#include "core/version.h"

/* ---- opening ----------------------------------------------------------------------------------- */

static const struct semel_store_ops *find_driver(const struct semel_store_ops *const *drivers, struct semel_str scheme)
{
    for (; *drivers != NULL; drivers++)
        if (semel__str_eqz(scheme, (*drivers)->name))
            return *drivers;
    return NULL;
}

semel_status semel_store_open(struct semel_store **ret, const struct semel_store_ops *const *drivers, const char *url,
                              const struct semel_store_options *options, struct semel_error *err)
{
    const char *colon = url != NULL ? strchr(url, ':') : NULL;
    if (colon == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL has no scheme; it must look like sqlite:/path/to/file.db");
    const struct semel_store_ops *ops = find_driver(drivers, (struct semel_str){url, (size_t)(colon - url)});
    if (ops == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "no store driver is called \"%.*s\" in this build",
                           (int)(colon - url < 40 ? colon - url : 40), url);
    struct semel_store *store = semel__calloc(1, ops->size);
    if (store == NULL)
        return semel__fail_memory(err);
    store->ops = ops;
    if (options != NULL)
        store->options = *options;
    semel_status status = ops->open(store, semel__str(colon + 1), err);
    if (status != SEMEL_OK) {
        semel__free(store);
        return status;
    }
    *ret = store;
    return SEMEL_OK;
}

void semel_store_close(struct semel_store *store)
{
    if (store == NULL)
        return;
    store->ops->close(store);
    semel__free(store);
}

semel_status semel_store_reopen(struct semel_store *store, struct semel_error *err)
{
    store->in_tx = store->joined = false;
    if (store->joining) /* the connection belongs to the caller, who is using it */
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the database connection is lost, and the caller's transaction with it");
    return store->ops->reopen(store, err);
}

void *semel_store_native(struct semel_store *store)
{
    return store->ops->native(store);
}

semel_status semel_store_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err)
{
    assert(!store->in_tx);
    return store->ops->migrate(store, ret_from, ret_to, err);
}

/* ---- the transaction --------------------------------------------------------------------------- */

semel_status semel_store_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us,
                               struct semel_error *err)
{
    assert(!store->in_tx);
    store->ended = false;
    if (store->joining)
        tx = SEMEL_TX_JOIN;
    semel_status status = store->ops->begin(store, tx, ret_now_us, err);
    if (status == SEMEL_OK && store->joining) {
        status = store->ops->savepoint(store, err);
        if (status != SEMEL_OK)
            store->ops->leave(store);
    }
    store->in_tx = status == SEMEL_OK;
    store->joined = store->in_tx && tx == SEMEL_TX_JOIN;
    return status;
}

semel_status semel_store_now(struct semel_store *store, int64_t *ret_now_us, struct semel_error *err)
{
    int64_t now_us;
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    semel_store_rollback(store);
    *ret_now_us = now_us;
    return SEMEL_OK;
}

semel_status semel_store_commit(struct semel_store *store, struct semel_error *err)
{
    assert(store->in_tx && (!store->joined || store->joining));
    if (store->joined) {
        semel_store_leave(store);
        return SEMEL_OK;
    }
    store->in_tx = false;
    return store->ops->commit(store, err);
}

void semel_store_rollback(struct semel_store *store)
{
    if (!store->in_tx)
        return;
    assert(!store->joined || store->joining);
    if (store->joined) {
        /* it cannot be undone alone, so the whole transaction must be rolled back */
        (void)store->ops->rollback_to(store, NULL);
        semel_store_leave(store);
        return;
    }
    store->in_tx = false;
    store->ops->rollback(store);
}

void semel_store_leave(struct semel_store *store)
{
    assert(store->in_tx && store->joined);
    store->in_tx = store->joined = false;
    store->ops->leave(store);
}

void semel_store_join(struct semel_store *store, bool on)
{
    assert(!store->in_tx);
    store->joining = on;
}

bool semel_store_busy(struct semel_store *store)
{
    return store->ops->busy(store);
}

semel_status semel_store_savepoint(struct semel_store *store, struct semel_error *err)
{
    assert(store->in_tx);
    return store->ops->savepoint(store, err);
}

semel_status semel_store_rollback_to(struct semel_store *store, struct semel_error *err)
{
    assert(store->in_tx);
    return store->ops->rollback_to(store, err);
}

semel_status semel_store_guard(struct semel_store *store, bool on, struct semel_error *err)
{
    assert(store->in_tx);
    return store->ops->guard(store, on, err);
}

semel_status semel_store_collect(struct semel_store *store, size_t *ret_tag, struct semel_error *err)
{
    assert(store->in_tx);
    *ret_tag = store->tag;
    return store->ops->collect != NULL ? store->ops->collect(store, ret_tag, err) : SEMEL_OK;
}

semel_status semel_store_check(struct semel_store *store, struct semel_error *err)
{
    assert(store->in_tx);
    return store->ops->check(store, err);
}

bool semel_store_data_fault(const struct semel_store *store, const struct semel_error *err)
{
    return store->ops->data_fault != NULL && store->ops->data_fault(err);
}

/* ---- facts and changes ------------------------------------------------------------------------- */

static int cmp_row_key(struct semel_str source_a, struct semel_str id_a, struct semel_str source_b,
                       struct semel_str id_b)
{
    int c = semel__str_cmp(source_a, source_b);
    return c != 0 ? c : semel__str_cmp(id_a, id_b);
}

static void assert_business_ascends(const struct semel_business *business, size_t n)
{
    for (size_t i = 1; i < n; i++)
        assert(semel__str_cmp(business[i - 1].key, business[i].key) < 0);
}

static void assert_keys_ascend(const struct semel_key *keys, size_t n)
{
    for (size_t i = 1; i < n; i++)
        assert(semel__str_cmp(keys[i - 1].key, keys[i].key) < 0);
    (void)keys;
}

static void trust_keys(struct semel_key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        keys[i].damaged = false;
}

/* A damaged key stops its own messages and no others. */
static void check_keys(struct semel_key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        keys[i].damaged = keys[i].damaged || semel__version_check(&keys[i], NULL) != SEMEL_OK;
        if (!keys[i].damaged)
            continue;
        keys[i].last_version = SEMEL_NONE;
        keys[i].skipped = NULL;
        keys[i].n_skipped = 0;
    }
}

semel_status semel_store_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                               struct semel_error *err)
{
    assert(store->in_tx);
    assert_keys_ascend(batch->keys, batch->n_keys);
    assert_business_ascends(batch->business, batch->n_business);
    for (size_t i = 0; i < batch->n_items; i++) {
        const struct semel_row *row = &batch->items[i].row;
        const struct semel_row *prev = i > 0 ? &batch->items[i - 1].row : NULL;
        assert(prev == NULL || cmp_row_key(prev->source, prev->id, row->source, row->id) < 0); /* P14 */
        assert(row->id.n >= 1 && row->id.n <= SEMEL_ID_MAX);
        assert(semel__move_legal(SEMEL_ROW_ABSENT, row->progress.state));
        assert((row->progress.state == SEMEL_ROW_PROCESSING) == (row->progress.lease_token != SEMEL_NONE));
        (void)prev;
    }
    trust_keys(batch->keys, batch->n_keys);
    semel_status status = store->ops->admit(store, batch, arena, err);
    if (status == SEMEL_OK)
        check_keys(batch->keys, batch->n_keys);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++) {
        const struct semel_admit *item = &batch->items[i];
        assert(!item->inserted || item->row.arrival > 0);
        (void)item;
    }
    return status;
}

semel_status semel_store_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                               struct semel_error *err)
{
    assert(store->in_tx);
    assert_keys_ascend(batch->keys, batch->n_keys);
    assert_business_ascends(batch->business, batch->n_business);
    for (size_t i = 1; i < batch->n_items; i++)
        assert(cmp_row_key(batch->items[i - 1].source, batch->items[i - 1].id, batch->items[i].source,
                           batch->items[i].id) < 0);
    trust_keys(batch->keys, batch->n_keys);
    semel_status status = store->ops->fetch(store, batch, arena, err);
    if (status == SEMEL_OK)
        check_keys(batch->keys, batch->n_keys);
    return status;
}

semel_status semel_store_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    assert(store->in_tx);
    for (size_t i = 0; i < batch->n_changes; i++) {
        const struct semel_change *change = &batch->changes[i];
        const struct semel_change *prev = i > 0 ? &batch->changes[i - 1] : NULL;
        assert(prev == NULL || cmp_row_key(prev->source, prev->id, change->source, change->id) < 0);
        assert(!change->remove || change->fresh);
        assert(change->remove ||
               semel__move_legal(change->fresh ? SEMEL_ROW_ABSENT : change->from, change->progress.state));
        assert(change->payload != SEMEL_PAYLOAD_PUT || change->put != NULL);
        (void)prev;
        (void)change;
    }
    for (size_t i = 1; i < batch->n_keys; i++)
        assert(semel__str_cmp(batch->keys[i - 1].key, batch->keys[i].key) < 0);
    return store->ops->settle(store, batch, err);
}

semel_status semel_store_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                                struct semel_error *err)
{
    assert(store->in_tx && max > 0);
    return store->ops->parked(store, consumer, max, ret_n, err);
}

semel_status semel_store_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                               int64_t *ret_n, struct semel_error *err)
{
    assert(store->in_tx && max > 0);
    return store->ops->large(store, consumer, bytes, max, ret_n, err);
}

semel_status semel_store_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                              struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    assert(scan->max > 0);
    semel_status status = store->ops->scan(store, scan, arena, ret_rows, ret_n, ret_damaged, err);
    assert(status != SEMEL_OK || *ret_n <= scan->max);
    return status;
}

semel_status semel_store_sources(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                 struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err)
{
    return store->ops->sources(store, consumer, arena, ret_sources, ret_n, err);
}

semel_status semel_store_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                   int64_t watermark_us, struct semel_error *err)
{
    assert(store->in_tx && watermark_us != SEMEL_NONE);
    return store->ops->watermark(store, consumer, source, watermark_us, err);
}

semel_status semel_store_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t before_us, size_t max, size_t looks, struct semel_aged *ret,
                              struct semel_error *err)
{
    assert(store->in_tx && max > 0 && looks > 0);
    semel_status status = store->ops->aged(store, consumer, source, before_us, max, looks, ret, err);
    assert(status != SEMEL_OK || (ret->n <= max && ret->n <= ret->looked && ret->looked <= looks &&
                                  (ret->latest_us == SEMEL_NONE || ret->latest_us < before_us)));
    return status;
}

semel_status semel_store_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                               int64_t before_us, size_t max, size_t looks, size_t *ret_deleted,
                               struct semel_error *err)
{
    assert(store->in_tx && max > 0 && looks > 0);
    semel_status status = store->ops->purge(store, consumer, source, before_us, max, looks, ret_deleted, err);
    assert(status != SEMEL_OK || *ret_deleted <= max);
    return status;
}

semel_status semel_store_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us,
                                        size_t max, size_t *ret_deleted, struct semel_error *err)
{
    assert(store->in_tx && max > 0);
    return store->ops->purge_business(store, consumer, now_us, max, ret_deleted, err);
}

semel_status semel_store_purge_keys(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                                    char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    assert(store->in_tx && max > 0);
    return store->ops->purge_keys(store, consumer, before_us, max, place, err);
}

/* A text that is no JSON object has no names; its reader refuses it. */
static semel_status check_header_names(struct semel_str headers, struct semel_error *err)
{
    struct semel_str name, value;
    size_t from = 0;
    while (headers.n > 0 && headers.p[0] == '{' && semel__json_next(headers, &from, &name, &value))
        if (semel__header_is_ours(name))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                               "outbox: headers named id, traceparent, ce_*, ce-* and webhook-* are written by Semel; "
                               "leave them out");
    return SEMEL_OK;
}

static semel_status event_check(const struct semel__event *event, struct semel_error *err)
{
    if (semel__str_given(event->id) && !semel__uuid_valid(event->id))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "outbox: the event's id must be a UUID");
    if (event->payload.n > SEMEL_PAYLOAD_HARD_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "outbox: the payload has %zu bytes; at most %d are allowed", event->payload.n,
                           SEMEL_PAYLOAD_HARD_MAX);
    if (event->headers.n > SEMEL_HEADERS_MAX || !semel__utf8_valid(event->headers))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "outbox: headers must be UTF-8 text of at most %d bytes", SEMEL_HEADERS_MAX);
    semel_status status = check_header_names(event->headers, err);
    if (status == SEMEL_OK)
        status = semel__id_check("outbox: aggregatetype", event->aggregatetype, 1, err);
    if (status == SEMEL_OK)
        status = semel__id_check("outbox: aggregateid", event->aggregateid, 1, err);
    if (status == SEMEL_OK)
        status = semel__id_check("outbox: type", event->type, 1, err);
    if (status == SEMEL_OK)
        status = semel__id_check("outbox: destination", event->destination, 0, err);
    return status == SEMEL_OK ? semel__id_check("outbox: traceparent", event->traceparent, 0, err) : status;
}

semel_status semel_store_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                    char ret_id[37], struct semel_error *err)
{
    assert(store->in_tx);
    semel_status status = event_check(event, err);
    return status == SEMEL_OK ? store->ops->outbox_put(store, event, now_us, ret_id, err) : status;
}

semel_status semel_store_audit(struct semel_store *store, const struct semel_audit *lines, size_t n, int64_t now_us,
                               struct semel_error *err)
{
    assert(store->in_tx && n > 0);
    return store->ops->audit(store, lines, n, now_us, err);
}

semel_status semel_store_correct(struct semel_store *store, const struct semel_corrected *what, bool *ret_made,
                                 struct semel_error *err)
{
    assert(store->in_tx && what->reason.n > 0);
    *ret_made = false;
    return store->ops->correct != NULL ? store->ops->correct(store, what, ret_made, err) : SEMEL_OK;
}

/* ---- consumers ----------------------------------------------------------------------------------- */

void semel_store_begin_early(struct semel_store *store, struct semel_str consumer)
{
    if (store->ops->begin_early != NULL && !store->in_tx && !store->joining)
        store->ops->begin_early(store, consumer);
}

semel_status semel_store_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                      struct semel_str *ret_settings, struct semel_error *err)
{
    return store->ops->consumer_get(store, consumer, arena, ret_settings, err);
}

semel_status semel_store_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                      int64_t now_us, struct semel_error *err)
{
    assert(store->in_tx);
    return store->ops->consumer_put(store, consumer, settings, now_us, err);
}

semel_status semel_store_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                       struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
    assert(store->in_tx || !lock);
    return store->ops->consumer_read(store, consumer, lock, arena, ret, err);
}

semel_status semel_store_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                       const struct semel_set_by *by, struct semel_error *err)
{
    assert(store->in_tx);
    return store->ops->consumer_mark(store, consumer, by, err);
}

semel_status semel_store_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                  int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err)
{
    assert(store->in_tx && what < SEMEL_AFFECTED_COUNT && max > 0);
    return store->ops->affected(store, consumer, what, version, max, ret_n, err);
}

semel_status semel_store_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                   struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                   struct semel_error *err)
{
    assert(max > 0);
    semel_status status = store->ops->consumers(store, after, max, arena, ret, ret_n, err);
    assert(status != SEMEL_OK || *ret_n <= max);
    return status;
}

/* ---- positions ----------------------------------------------------------------------------------- */

static void assert_positions_ascend(const struct semel_position *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int c = i > 0 ? semel__str_cmp(items[i - 1].source, items[i].source) : -1;
        assert(c < 0 || (c == 0 && items[i - 1].partition < items[i].partition));
        assert(items[i].partition >= 0 && semel__str_given(items[i].source));
        (void)c;
    }
}

semel_status semel_store_positions_acquire(struct semel_store *store, struct semel_str consumer,
                                           struct semel_position *items, size_t n, int64_t now_us,
                                           struct semel_error *err)
{
    assert(store->in_tx && n <= SEMEL_POSITIONS_MAX);
    assert_positions_ascend(items, n);
    semel_status status = n > 0 ? store->ops->positions_acquire(store, consumer, items, n, now_us, err) : SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        assert(items[i].epoch > 0 && (items[i].offset == SEMEL_NONE || items[i].offset >= 0));
    return status;
}

semel_status semel_store_positions_move(struct semel_store *store, struct semel_str consumer,
                                        struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    assert(store->in_tx && n <= SEMEL_POSITIONS_MAX);
    assert_positions_ascend(items, n);
    for (size_t i = 0; i < n; i++)
        assert(items[i].epoch > 0 && (items[i].offset == SEMEL_NONE || items[i].offset >= 0));
    return n > 0 ? store->ops->positions_move(store, consumer, items, n, now_us, err) : SEMEL_OK;
}

semel_status semel_store_positions_set(struct semel_store *store, struct semel_str consumer,
                                       struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    assert(store->in_tx && n <= SEMEL_POSITIONS_MAX);
    assert_positions_ascend(items, n);
    for (size_t i = 0; i < n; i++)
        assert(items[i].offset == SEMEL_NONE || items[i].offset >= 0);
    return n > 0 ? store->ops->positions_set(store, consumer, items, n, now_us, err) : SEMEL_OK;
}

semel_status semel_store_positions_list(struct semel_store *store, struct semel_str consumer, size_t max,
                                        struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                        struct semel_error *err)
{
    assert(max > 0);
    semel_status status = store->ops->positions_list(store, consumer, max, arena, ret, ret_n, err);
    assert(status != SEMEL_OK || *ret_n <= max);
    return status;
}
