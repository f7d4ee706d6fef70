/* SPDX-License-Identifier: MIT
 *
 * contract.c: what the tests of the store contract share. See contract.h.
 */
#include "conform/contract.h"

/* ---- rows --------------------------------------------------------------------------------------------- */

struct semel_str text(const char *z)
{
    return semel__str(z);
}

struct semel_progress progress_as(enum semel_row_status state)
{
    static int64_t last_token;
    struct semel_progress progress = {.state = state,
                                      .due_us = SEMEL_NONE,
                                      .processed_us = semel__state_final(state) ? T0 : SEMEL_NONE,
                                      .lease_until_us = SEMEL_NONE,
                                      .lease_token = SEMEL_NONE};

    if (state == SEMEL_ROW_PROCESSING) {
        progress.attempts = 1;
        progress.lease_owner = SEMEL_STR("worker-1");
        progress.lease_until_us = T0 + 60 * SECOND;
        progress.lease_token = ++last_token; /* no two alike, as core gives them */
    }
    if (state == SEMEL_ROW_FAILED) {
        progress.attempts = 1;
        progress.due_us = T0 + 10 * SECOND;
        progress.error_class = SEMEL_CLASS_TRANSIENT;
        progress.error_text = SEMEL_STR("no answer");
    }
    return progress;
}

struct semel_row row_of(const char *id, enum semel_row_status state, const char *order_key, int64_t version)
{
    return (struct semel_row){.source = SEMEL_STR("s"),
                              .id = text(id),
                              .type = SEMEL_STR("t"),
                              .order_key = text(order_key),
                              .version = version,
                              .message_time_us = SEMEL_NONE,
                              .received_us = T0,
                              .updated_us = T0,
                              .progress = progress_as(state)};
}

struct semel_admit item_of(const char *id, enum semel_row_status state, const char *order_key, int64_t version)
{
    return (struct semel_admit){.row = row_of(id, state, order_key, version)};
}

struct semel_change change_of(const char *id, enum semel_row_status from, enum semel_row_status to)
{
    return (struct semel_change){
        .source = SEMEL_STR("s"), .id = text(id), .from = from, .token = SEMEL_NONE, .progress = progress_as(to)};
}

void assert_str_is(struct semel_str s, struct semel_str expected)
{
    assert_int_equal(s.p != NULL, expected.p != NULL);
    assert_int_equal(s.n, expected.n);
    if (s.n > 0)
        assert_memory_equal(s.p, expected.p, s.n);
}

static void assert_progress_is(const struct semel_progress *progress, const struct semel_progress *expected)
{
    assert_int_equal(progress->state, expected->state);
    assert_int_equal(progress->attempts, expected->attempts);
    assert_int_equal(progress->attempts_before, expected->attempts_before);
    assert_int_equal(progress->retries, expected->retries);
    assert_int_equal(progress->alone, expected->alone);
    assert_int_equal(progress->due_us, expected->due_us);
    assert_int_equal(progress->processed_us, expected->processed_us);
    assert_str_is(progress->lease_owner, expected->lease_owner);
    assert_int_equal(progress->lease_until_us, expected->lease_until_us);
    assert_int_equal(progress->lease_token, expected->lease_token);
    assert_int_equal(progress->error_class, expected->error_class);
    assert_str_is(progress->error_text, expected->error_text);
    assert_str_is(progress->outcome, expected->outcome);
}

void assert_found_is(const struct semel_row *row, const struct semel_row *expected)
{
    assert_str_is(row->source, expected->source);
    assert_str_is(row->id, expected->id);
    assert_int_equal(row->arrival, expected->arrival);
    assert_int_equal(row->fp.kind, expected->fp.kind);
    assert_int_equal(row->fp.n, expected->fp.n);
    assert_memory_equal(row->fp.bytes, expected->fp.bytes, row->fp.n);
    assert_int_equal(row->received_us, expected->received_us);
    assert_int_equal(row->updated_us, expected->updated_us);
    assert_int_equal(row->kept, expected->kept);
    assert_progress_is(&row->progress, &expected->progress);
}

void assert_row_is(const struct semel_row *row, const struct semel_row *expected)
{
    assert_found_is(row, expected);
    assert_str_is(row->type, expected->type);
    assert_str_is(row->order_key, expected->order_key);
    assert_int_equal(row->version, expected->version);
    assert_int_equal(row->message_time_us, expected->message_time_us);
    assert_str_is(row->position, expected->position);
    assert_str_is(row->headers, expected->headers);
    assert_str_is(row->payload, expected->payload);
    assert_str_is(row->traceparent, expected->traceparent);
}

/* ---- transactions ------------------------------------------------------------------------------------- */

int64_t begin(struct world *world)
{
    int64_t now_us = 0;

    assert_ok(world, semel_store_begin(world->store, SEMEL_TX_OWN, &now_us, &world->err));
    return now_us;
}

void commit(struct world *world)
{
    assert_ok(world, semel_store_commit(world->store, &world->err));
}

void admit_keyed(struct world *world, struct semel_admit *items, size_t n, struct semel_key *keys, size_t n_keys)
{
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"),
                                      .now_us = world->now_us,
                                      .keys = keys,
                                      .n_keys = n_keys,
                                      .items = items,
                                      .n_items = n};

    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
}

/* No two of a batch have the same place. */
static void number(struct semel_admit *items, size_t n)
{
    if (n > 1 && items[0].place == items[1].place)
        for (size_t i = 0; i < n; i++)
            items[i].place = i;
}

void admit(struct world *world, struct semel_admit *items, size_t n)
{
    number(items, n);
    admit_keyed(world, items, n, NULL, 0);
}

void settle(struct world *world, struct semel_change *changes, size_t n)
{
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("worker-1"),
                                       .now_us = world->now_us,
                                       .changes = changes,
                                       .n_changes = n};

    for (size_t i = 0; i < n; i++)
        changes[i].updated_us = world->now_us;
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
}

void put(struct world *world, const char *id, enum semel_row_status state, const char *order_key, int64_t version)
{
    struct semel_admit item = item_of(id, state, order_key, version);
    struct semel_key key = {.key = text(order_key)};

    begin(world);
    admit_keyed(world, &item, 1, &key, order_key != NULL ? 1 : 0);
    assert_true(item.inserted);
    commit(world);
}

bool move(struct world *world, const char *id, enum semel_row_status from, enum semel_row_status to)
{
    struct semel_change change = change_of(id, from, to);

    begin(world);
    settle(world, &change, 1);
    commit(world);
    return change.applied;
}

struct semel_row *fetch(struct world *world, const char *id)
{
    struct semel_fetched item = {.source = SEMEL_STR("s"), .id = text(id)};
    struct semel_fetch_batch batch = {.consumer = SEMEL_STR("c"), .items = &item, .n_items = 1};
    struct semel_row *row;

    begin(world);
    assert_ok(world, semel_store_fetch(world->store, &batch, &world->arena, &world->err));
    semel_store_rollback(world->store);
    assert_true(item.present && !item.damaged);
    row = semel__arena_alloc(&world->arena, 1, sizeof *row);
    assert_non_null(row);
    *row = item.row;
    return row;
}

struct semel_key facts(struct world *world, const char *key, bool by_version)
{
    struct semel_key ret = {.key = text(key), .by_version = by_version, .damaged = true}; /* what is out is written */
    struct semel_fetch_batch batch = {.consumer = SEMEL_STR("c"), .keys = &ret, .n_keys = 1};

    begin(world);
    assert_ok(world, semel_store_fetch(world->store, &batch, &world->arena, &world->err));
    semel_store_rollback(world->store);
    return ret;
}

const char *scan_ids(struct world *world, const struct semel_scan *scan)
{
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0, size = 1;
    char *ids, *at;

    assert_ok(world, semel_store_scan(world->store, scan, &world->arena, &rows, &n, &damaged, &world->err));
    for (size_t i = 0; i < n; i++)
        size += rows[i].id.n + 1;
    ids = at = semel__arena_alloc(&world->arena, 1, size);
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++) {
        memcpy(at, rows[i].id.p, rows[i].id.n);
        at += rows[i].id.n;
        *at++ = ' ';
    }
    return ids;
}

const char *all_ids(struct world *world)
{
    const struct semel_scan scan = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .max = 1000};

    return scan_ids(world, &scan);
}
