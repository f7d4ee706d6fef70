/* SPDX-License-Identifier: MIT
 *
 * shared.c: handles of one connection, each of which has it for a transaction.
 */
#include "daemon/shared.h"

#include <assert.h>
#include <pthread.h>

#include "base/error.h"
#include "core/look.h"

struct semel_shared {
    pthread_mutex_t lock;
    struct semel_store *inner;
    unsigned long openings; /* of the connection */
};

struct handle {
    struct semel_store base;
    struct semel_shared *shared;
    bool holds; /* the connection, until its transaction ends */
    unsigned long opening;
};

static const struct semel_store_ops shared_ops;

static struct handle *handle_of(struct semel_store *store)
{
    return (struct handle *)store;
}

/* ---- life ---------------------------------------------------------------------------------------- */

semel_status semel__shared_open(struct semel_shared **ret, const struct semel_store_ops *const *drivers,
                                const char *url, const struct semel_store_options *options, struct semel_error *err)
{
    struct semel_shared *shared = semel__calloc(1, sizeof *shared);
    if (shared == NULL || pthread_mutex_init(&shared->lock, NULL) != 0) {
        semel__free(shared);
        return semel__fail_memory(err);
    }
    semel_status status = semel_store_open(&shared->inner, drivers, url, options, err);
    if (status != SEMEL_OK) {
        pthread_mutex_destroy(&shared->lock);
        semel__free(shared);
        return status;
    }
    *ret = shared;
    return SEMEL_OK;
}

void semel__shared_close(struct semel_shared *shared)
{
    if (shared == NULL)
        return;
    semel_store_close(shared->inner);
    pthread_mutex_destroy(&shared->lock);
    semel__free(shared);
}

struct semel_store *semel__shared_handle(struct semel_shared *shared)
{
    struct handle *handle = semel__calloc(1, sizeof *handle);
    if (handle == NULL)
        return NULL;
    *handle = (struct handle){.base = {.ops = &shared_ops, .options = shared->inner->options}, .shared = shared};
    semel__shared_lock(shared);
    handle->opening = shared->openings;
    semel__shared_unlock(shared);
    return &handle->base;
}

void semel__shared_lock(struct semel_shared *shared)
{
    pthread_mutex_lock(&shared->lock);
}

void semel__shared_unlock(struct semel_shared *shared)
{
    pthread_mutex_unlock(&shared->lock);
}

static void hold(struct handle *handle)
{
    assert(!handle->holds);
    semel__shared_lock(handle->shared);
    handle->holds = true;
}

static void let_go(struct handle *handle)
{
    if (!handle->holds)
        return;
    handle->holds = false;
    semel__shared_unlock(handle->shared);
}

static semel_status shared_open(struct semel_store *store, struct semel_str location, struct semel_error *err)
{
    (void)store;
    (void)location;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a handle of a shared store cannot be opened by a URL");
}

static void shared_close(struct semel_store *store)
{
    struct handle *handle = handle_of(store);
    if (handle->holds)
        handle->shared->inner->ops->rollback(handle->shared->inner);
    let_go(handle);
}

/* Whoever comes first opens the connection anew; the others find it open. */
static semel_status shared_reopen(struct semel_store *store, struct semel_error *err)
{
    struct handle *handle = handle_of(store);
    struct semel_shared *shared = handle->shared;
    semel_status status = SEMEL_OK;
    if (!handle->holds)
        hold(handle);
    if (handle->opening == shared->openings) {
        status = shared->inner->ops->reopen(shared->inner, err);
        shared->openings += status == SEMEL_OK;
    }
    if (status == SEMEL_OK)
        handle->opening = shared->openings;
    let_go(handle);
    return status;
}

static void *shared_native(struct semel_store *store)
{
    struct semel_store *inner = handle_of(store)->shared->inner;
    return inner->ops->native(inner);
}

/* ---- transactions -------------------------------------------------------------------------------- */

static semel_status shared_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us,
                                 struct semel_error *err)
{
    struct handle *handle = handle_of(store);
    struct semel_store *inner = handle->shared->inner;
    if (tx != SEMEL_TX_OWN)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is nothing to join on a shared connection");
    hold(handle);
    semel_status status = inner->ops->begin(inner, tx, ret_now_us, err);
    if (status != SEMEL_OK)
        let_go(handle);
    return status;
}

static semel_status shared_commit(struct semel_store *store, struct semel_error *err)
{
    struct handle *handle = handle_of(store);
    semel_status status = handle->shared->inner->ops->commit(handle->shared->inner, err);
    let_go(handle);
    return status;
}

static void shared_rollback(struct semel_store *store)
{
    struct handle *handle = handle_of(store);
    if (handle->holds)
        handle->shared->inner->ops->rollback(handle->shared->inner);
    let_go(handle);
}

/* ---- everything else, as the connection does it ---------------------------------------------------- */

static bool enter(struct semel_store *store)
{
    struct handle *handle = handle_of(store);
    bool alone = !handle->holds;
    if (alone)
        hold(handle);
    handle->shared->inner->tag = store->tag;
    return alone;
}

#define FORWARD(call)                                            \
    bool alone = enter(store);                                   \
    struct semel_store *inner = handle_of(store)->shared->inner; \
    semel_status status = inner->call;                           \
    if (alone)                                                   \
        let_go(handle_of(store));                                \
    return status

static semel_status shared_migrate(struct semel_store *store, int *ret_from, int *ret_to, struct semel_error *err)
{
    FORWARD(ops->migrate(inner, ret_from, ret_to, err));
}

static semel_status shared_savepoint(struct semel_store *store, struct semel_error *err)
{
    FORWARD(ops->savepoint(inner, err));
}

static semel_status shared_rollback_to(struct semel_store *store, struct semel_error *err)
{
    FORWARD(ops->rollback_to(inner, err));
}

static semel_status shared_guard(struct semel_store *store, bool on, struct semel_error *err)
{
    FORWARD(ops->guard(inner, on, err));
}

static semel_status shared_check(struct semel_store *store, struct semel_error *err)
{
    FORWARD(ops->check(inner, err));
}

static semel_status shared_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err)
{
    FORWARD(ops->admit(inner, batch, arena, err));
}

static semel_status shared_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err)
{
    FORWARD(ops->fetch(inner, batch, arena, err));
}

static semel_status shared_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    FORWARD(ops->settle(inner, batch, err));
}

static semel_status shared_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                                  struct semel_error *err)
{
    FORWARD(ops->parked(inner, consumer, max, ret_n, err));
}

static semel_status shared_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                                 int64_t *ret_n, struct semel_error *err)
{
    FORWARD(ops->large(inner, consumer, bytes, max, ret_n, err));
}

static semel_status shared_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                                struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged,
                                struct semel_error *err)
{
    FORWARD(ops->scan(inner, scan, arena, ret_rows, ret_n, ret_damaged, err));
}

static semel_status shared_sources(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                   struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err)
{
    FORWARD(ops->sources(inner, consumer, arena, ret_sources, ret_n, err));
}

static semel_status shared_watermark(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                     int64_t watermark_us, struct semel_error *err)
{
    FORWARD(ops->watermark(inner, consumer, source, watermark_us, err));
}

static semel_status shared_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                int64_t before_us, size_t max, size_t *ret_n, int64_t *ret_latest_us,
                                struct semel_error *err)
{
    FORWARD(ops->aged(inner, consumer, source, before_us, max, ret_n, ret_latest_us, err));
}

static semel_status shared_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                                 int64_t before_us, size_t max, size_t *ret_deleted, struct semel_error *err)
{
    FORWARD(ops->purge(inner, consumer, source, before_us, max, ret_deleted, err));
}

static semel_status shared_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us,
                                          size_t max, size_t *ret_deleted, struct semel_error *err)
{
    FORWARD(ops->purge_business(inner, consumer, now_us, max, ret_deleted, err));
}

static semel_status shared_purge_side(struct semel_store *store, struct semel_str consumer, int64_t before_us,
                                      size_t max, char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    FORWARD(ops->purge_side(inner, consumer, before_us, max, place, err));
}

static semel_status shared_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                      char ret_id[37], struct semel_error *err)
{
    FORWARD(ops->outbox_put(inner, event, now_us, ret_id, err));
}

static semel_status shared_audit(struct semel_store *store, const struct semel_audit *line, int64_t now_us,
                                 struct semel_error *err)
{
    FORWARD(ops->audit(inner, line, now_us, err));
}

static semel_status shared_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                        struct semel_str *ret_settings, struct semel_error *err)
{
    FORWARD(ops->consumer_get(inner, consumer, arena, ret_settings, err));
}

static semel_status shared_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                        int64_t now_us, struct semel_error *err)
{
    FORWARD(ops->consumer_put(inner, consumer, settings, now_us, err));
}

static semel_status shared_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                         struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
    FORWARD(ops->consumer_read(inner, consumer, lock, arena, ret, err));
}

static semel_status shared_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                         const struct semel_set_by *by, struct semel_error *err)
{
    FORWARD(ops->consumer_mark(inner, consumer, by, err));
}

static semel_status shared_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                    int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err)
{
    FORWARD(ops->affected(inner, consumer, what, version, max, ret_n, err));
}

static semel_status shared_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                     struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                     struct semel_error *err)
{
    FORWARD(ops->consumers(inner, after, max, arena, ret, ret_n, err));
}

static semel_status shared_positions_take(struct semel_store *store, struct semel_str consumer,
                                          struct semel_position *items, size_t n, int64_t now_us,
                                          struct semel_error *err)
{
    FORWARD(ops->positions_take(inner, consumer, items, n, now_us, err));
}

static semel_status shared_positions_move(struct semel_store *store, struct semel_str consumer,
                                          struct semel_position *items, size_t n, int64_t now_us,
                                          struct semel_error *err)
{
    FORWARD(ops->positions_move(inner, consumer, items, n, now_us, err));
}

static semel_status shared_positions_set(struct semel_store *store, struct semel_str consumer,
                                         struct semel_position *items, size_t n, int64_t now_us,
                                         struct semel_error *err)
{
    FORWARD(ops->positions_set(inner, consumer, items, n, now_us, err));
}

static semel_status shared_positions_list(struct semel_store *store, struct semel_str consumer, size_t max,
                                          struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                          struct semel_error *err)
{
    FORWARD(ops->positions_list(inner, consumer, max, arena, ret, ret_n, err));
}

static semel_status shared_look_counts(struct semel_store *store, struct semel_str consumer, int64_t cap,
                                       int64_t final_cap, struct semel_arena *arena, struct semel_count **ret,
                                       size_t *ret_n, struct semel_error *err)
{
    FORWARD(ops->look->counts(inner, consumer, cap, final_cap, arena, ret, ret_n, err));
}

static semel_status shared_look_list(struct semel_store *store, const struct semel_filter *filter,
                                     int64_t after_arrival, size_t max, bool with_payload, struct semel_arena *arena,
                                     struct semel_row **ret, size_t *ret_n, size_t *ret_damaged,
                                     struct semel_error *err)
{
    FORWARD(ops->look->list(inner, filter, after_arrival, max, with_payload, arena, ret, ret_n, ret_damaged, err));
}

static semel_status shared_look_outbox(struct semel_store *store, int64_t cap, int64_t *ret_n, int64_t *ret_oldest_us,
                                       struct semel_error *err)
{
    FORWARD(ops->look->outbox(inner, cap, ret_n, ret_oldest_us, err));
}

static semel_status shared_look_groups(struct semel_store *store, const struct semel_filter *filter, int64_t cap,
                                       size_t max, struct semel_arena *arena, struct semel_group **ret, size_t *ret_n,
                                       bool *ret_capped, struct semel_error *err)
{
    FORWARD(ops->look->groups(inner, filter, cap, max, arena, ret, ret_n, ret_capped, err));
}

static semel_status shared_look_history(struct semel_store *store, const struct semel_row *row, size_t max,
                                        struct semel_arena *arena, struct semel_history *ret, struct semel_error *err)
{
    FORWARD(ops->look->history(inner, row, max, arena, ret, err));
}

static semel_status shared_look_select(struct semel_store *store, const struct semel_filter *filter, size_t max,
                                       int64_t now_us, struct semel_selection *selection, struct semel_error *err)
{
    FORWARD(ops->look->select(inner, filter, max, now_us, selection, err));
}

static semel_status shared_look_selection(struct semel_store *store, int64_t number, struct semel_arena *arena,
                                          struct semel_selection *ret, struct semel_error *err)
{
    FORWARD(ops->look->selection(inner, number, arena, ret, err));
}

static semel_status shared_look_selected(struct semel_store *store, int64_t number, size_t max,
                                         struct semel_arena *arena, struct semel_selected **ret, size_t *ret_n,
                                         struct semel_error *err)
{
    FORWARD(ops->look->selected(inner, number, max, arena, ret, ret_n, err));
}

static semel_status shared_look_mark(struct semel_store *store, int64_t number, int64_t place, struct semel_str result,
                                     struct semel_error *err)
{
    FORWARD(ops->look->mark(inner, number, place, result, err));
}

static bool shared_busy(struct semel_store *store)
{
    struct handle *handle = handle_of(store);
    return handle->holds && handle->shared->inner->ops->busy(handle->shared->inner);
}

/* A new operation of the contract must be forwarded, too. */
_Static_assert(sizeof(struct semel_store_ops) == 44 * sizeof(void *), "an operation is not forwarded");

static const struct semel_look_ops look_ops = {
    .counts = shared_look_counts,
    .list = shared_look_list,
    .groups = shared_look_groups,
    .history = shared_look_history,
    .outbox = shared_look_outbox,
    .select = shared_look_select,
    .selection = shared_look_selection,
    .selected = shared_look_selected,
    .mark = shared_look_mark,
};

static const struct semel_store_ops shared_ops = {
    .name = "sqlite",
    .capabilities = SEMEL_STORE_ATOMIC | SEMEL_STORE_DURABLE,
    .size = sizeof(struct handle),
    .open = shared_open,
    .close = shared_close,
    .reopen = shared_reopen,
    .native = shared_native,
    .begin = shared_begin,
    .commit = shared_commit,
    .rollback = shared_rollback,
    .busy = shared_busy,
    .migrate = shared_migrate,
    .savepoint = shared_savepoint,
    .rollback_to = shared_rollback_to,
    .guard = shared_guard,
    .check = shared_check,
    .admit = shared_admit,
    .fetch = shared_fetch,
    .settle = shared_settle,
    .parked = shared_parked,
    .large = shared_large,
    .scan = shared_scan,
    .sources = shared_sources,
    .watermark = shared_watermark,
    .aged = shared_aged,
    .purge = shared_purge,
    .purge_business = shared_purge_business,
    .purge_side = shared_purge_side,
    .outbox_put = shared_outbox_put,
    .audit = shared_audit,
    .consumer_get = shared_consumer_get,
    .consumer_put = shared_consumer_put,
    .consumer_read = shared_consumer_read,
    .consumer_mark = shared_consumer_mark,
    .affected = shared_affected,
    .consumers = shared_consumers,
    .positions_take = shared_positions_take,
    .positions_move = shared_positions_move,
    .positions_set = shared_positions_set,
    .positions_list = shared_positions_list,
    .look = &look_ops,
};
