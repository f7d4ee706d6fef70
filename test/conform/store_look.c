/* SPDX-License-Identifier: MIT
 *
 * store_look.c: the store contract: transactions, scans, sources, purge, outbox and audit.
 */
#include "conform/contract.h"

#include "base/ids.h"

/* ---- transactions ------------------------------------------------------------------------------------- */

/* P45 */
static void begin_gives_the_time_of_the_store(void **state)
{
    struct world *world = *state;

    world->now_us = T0 + 77;
    assert_int_equal(begin(world), T0 + 77);
    semel_store_rollback(world->store);
}

/* The ids that the other handle sees. */
static const char *seen_by_other(struct world *world, const struct semel_scan *scan)
{
    struct semel_store *store = world->store;
    const char *ids;

    world->store = world->other;
    ids = scan_ids(world, scan);
    world->store = store;
    return ids;
}

static void what_is_not_committed_is_seen_by_nobody_else(void **state)
{
    struct world *world = *state;
    struct semel_change change = change_of("a", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED);
    struct semel_admit item = item_of("b", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    const struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .max = 9};
    const struct semel_scan due = {.kind = SEMEL_SCAN_DUE,
                                   .consumer = SEMEL_STR("c"),
                                   .now_us = T0 + 60 * SECOND,
                                   .max = 9};

    if (world->other == NULL)
        skip();
    put(world, "a", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    begin(world);
    settle(world, &change, 1);
    admit(world, &item, 1);
    assert_string_equal(all_ids(world), "a b ");
    assert_string_equal(seen_by_other(world, &all), "a ");
    assert_string_equal(seen_by_other(world, &due), "a ");
    commit(world);
    assert_string_equal(seen_by_other(world, &all), "a b ");
    assert_string_equal(seen_by_other(world, &due), "b ");
}

static void second_writer_is_told_to_try_again_and_nobody_is_blamed(void **state)
{
    struct world *world = *state;
    int64_t now_us;

    if (world->other == NULL || (world->store->ops->capabilities & SEMEL_STORE_CONCURRENT) != 0)
        skip();
    begin(world);
    assert_int_equal(semel_store_begin(world->other, SEMEL_TX_OWN, &now_us, &world->err), SEMEL_RETRY);
    assert_true(world->err.cls == SEMEL_CLASS_TRANSIENT ||
                world->err.cls == SEMEL_CLASS_ENVIRONMENT); /* or a time-out */
    commit(world);
    assert_ok(world, semel_store_begin(world->other, SEMEL_TX_OWN, &now_us, &world->err));
    semel_store_rollback(world->other);
}

static void outbox_put_one(struct world *world)
{
    const struct semel__event event = {.aggregatetype = SEMEL_STR("order"),
                                       .aggregateid = SEMEL_STR("1"),
                                       .type = SEMEL_STR("Placed")};
    char id[37];

    assert_ok(world, semel_store_outbox_put(world->store, &event, T0, id, &world->err));
}

static void audit_one(struct world *world)
{
    const struct semel_audit line = {.consumer = SEMEL_STR("c"),
                                     .source = SEMEL_STR("s"),
                                     .id = SEMEL_STR("m"),
                                     .who = SEMEL_STR("o'perator"),
                                     .what = SEMEL_STR("retry"),
                                     .reason = SEMEL_STR("fixed \xE2\x9C\x93")};

    assert_ok(world, semel_store_audit(world->store, &line, 1, T0, &world->err));
}

/* Writes to every table: row m, key k, an attempt, a conflict, an event, an audit line, a watermark. */
static void write_everything(struct world *world)
{
    struct semel_admit item = item_of("m", SEMEL_ROW_WAITING, "k", 1);
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_change change = change_of("old", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED);
    struct semel_key_change key_change = {.key = SEMEL_STR("k"), .last_version = 5, .wake = true};
    struct semel__msg msg;
    const struct semel__msg *conflict = &msg;
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("w"),
                                       .now_us = T0,
                                       .changes = &change,
                                       .n_changes = 1,
                                       .keys = &key_change,
                                       .n_keys = 1,
                                       .conflicts = &conflict,
                                       .n_conflicts = 1};

    semel__msg_init(&msg);
    msg.source = SEMEL_STR("s");
    msg.id = SEMEL_STR("old");
    msg.fp = (struct semel_fp){SEMEL_FP_RAW, 1, {1}};
    change.log_attempt = true;
    admit_keyed(world, &item, 1, &key, 1);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    assert_ok(world, semel_store_watermark(world->store, SEMEL_STR("c"), SEMEL_STR("s"), T0, &world->err));
    outbox_put_one(world);
    audit_one(world);
}

static void assert_nothing_written(struct world *world)
{
    struct semel_admit item = item_of("probe", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);

    assert_string_equal(all_ids(world), "old ");
    assert_int_equal(world->driver->attempts(world, "s", "old"), 0);
    assert_int_equal(world->driver->conflicts(world, "s", "old"), 0);
    assert_int_equal(world->driver->events(world), 0);
    assert_int_equal(world->driver->audits(world), 0);
    assert_int_equal(fetch(world, "old")->progress.state, SEMEL_ROW_FAILED);
    assert_int_equal(facts(world, "k", false).last_version, SEMEL_NONE);
    assert_int_equal(facts(world, "k", false).parked, 0);
    begin(world);
    admit(world, &item, 1);
    semel_store_rollback(world->store);
    assert_int_equal(item.watermark_us, SEMEL_NONE);
}

static void rollback_undoes_everything(void **state)
{
    struct world *world = *state;

    put(world, "old", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    begin(world);
    write_everything(world);
    semel_store_rollback(world->store);
    assert_nothing_written(world);
}

static void rollback_to_undoes_what_came_after_the_savepoint_and_keeps_the_transaction(void **state)
{
    struct world *world = *state;
    struct semel_admit before = item_of("before", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    struct semel_admit after = item_of("after", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);

    put(world, "old", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    begin(world);
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    write_everything(world);
    assert_ok(world, semel_store_rollback_to(world->store, &world->err));
    commit(world);
    assert_nothing_written(world);
    begin(world);
    admit(world, &before, 1);
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    write_everything(world);
    assert_ok(world, semel_store_rollback_to(world->store, &world->err));
    admit(world, &after, 1);
    commit(world);
    assert_string_equal(all_ids(world), "old before after ");
    assert_int_equal(world->driver->events(world), 0);
}

/* Handlers may not; core does, between two of them. */
static void savepoint_may_be_set_while_the_guard_is_on(void **state)
{
    struct world *world = *state;

    begin(world);
    assert_ok(world, semel_store_guard(world->store, true, &world->err));
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    assert_ok(world, semel_store_check(world->store, &world->err));
    assert_ok(world, semel_store_guard(world->store, false, &world->err));
    assert_ok(world, semel_store_rollback_to(world->store, &world->err));
    commit(world);
}

static void savepoint_replaces_the_one_before(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE)};

    begin(world);
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    admit(world, &items[0], 1);
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    admit(world, &items[1], 1);
    assert_ok(world, semel_store_rollback_to(world->store, &world->err));
    commit(world);
    assert_string_equal(all_ids(world), "a ");
}

static void guard_and_check_let_an_honest_handler_pass(void **state)
{
    struct world *world = *state;

    begin(world);
    assert_ok(world, semel_store_guard(world->store, true, &world->err));
    assert_ok(world, semel_store_guard(world->store, false, &world->err));
    assert_ok(world, semel_store_check(world->store, &world->err));
    commit(world);
}

static void joining_without_a_transaction_is_invalid(void **state)
{
    struct world *world = *state;
    int64_t now_us;

    assert_int_equal(semel_store_begin(world->store, SEMEL_TX_JOIN, &now_us, &world->err), SEMEL_INVALID);
    begin(world); /* the handle is as good as before */
    commit(world);
}

static void reopen_loses_the_open_transaction_and_nothing_else(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);

    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    begin(world);
    admit(world, &item, 1);
    assert_ok(world, semel_store_reopen(world->store, &world->err));
    assert_string_equal(all_ids(world), "a ");
    put(world, "b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
}

static void migrating_again_changes_nothing(void **state)
{
    struct world *world = *state;
    int from = 0, to = 0;

    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    assert_ok(world, semel_store_migrate(world->store, &from, &to, &world->err));
    assert_int_equal(from, to);
    assert_string_equal(all_ids(world), "a ");
}

/* ---- scans -------------------------------------------------------------------------------------------- */

static void put_progress(struct world *world, const char *id, struct semel_progress progress)
{
    struct semel_admit item = item_of(id, progress.state, "k", SEMEL_NONE);
    struct semel_key key = {.key = SEMEL_STR("k")};

    item.row.progress = progress;
    begin(world);
    admit_keyed(world, &item, 1, &key, 1);
    commit(world);
}

static void scan_of_the_due_gives_failed_and_waiting_rows_oldest_first(void **state)
{
    struct world *world = *state;
    struct semel_progress failed = progress_as(SEMEL_ROW_FAILED), waiting = progress_as(SEMEL_ROW_WAITING);
    struct semel_scan scan = {.kind = SEMEL_SCAN_DUE, .consumer = SEMEL_STR("c"), .now_us = T0, .max = 10};

    failed.due_us = T0;
    put_progress(world, "a", failed);
    failed.due_us = T0 + 1;
    put_progress(world, "b", failed);
    put_progress(world, "c", waiting); /* woken by its key only */
    waiting.due_us = T0 - 9;
    put_progress(world, "d", waiting);
    put_progress(world, "e", progress_as(SEMEL_ROW_PROCESSING));
    assert_string_equal(scan_ids(world, &scan), "d a ");
    scan.max = 1;
    assert_string_equal(scan_ids(world, &scan), "d ");
    scan.max = 10;
    scan.now_us = T0 + 1;
    assert_string_equal(scan_ids(world, &scan), "d a b ");
    scan.consumer = SEMEL_STR("d");
    assert_string_equal(scan_ids(world, &scan), "");
}

/* P40 */
static void scan_of_the_expired_gives_leases_that_have_run_out_oldest_first(void **state)
{
    struct world *world = *state;
    struct semel_progress progress = progress_as(SEMEL_ROW_PROCESSING);
    struct semel_scan scan = {.kind = SEMEL_SCAN_EXPIRED, .consumer = SEMEL_STR("c"), .now_us = T0 + 10, .max = 10};

    progress.lease_until_us = T0 + 9;
    put_progress(world, "a", progress);
    progress.lease_until_us = T0 + 10;
    progress.lease_token++;
    put_progress(world, "b", progress);
    progress.lease_until_us = T0;
    progress.lease_token++;
    put_progress(world, "c", progress);
    put_progress(world, "d", progress_as(SEMEL_ROW_FAILED));
    assert_string_equal(scan_ids(world, &scan), "c a ");
    scan.max = 1;
    assert_string_equal(scan_ids(world, &scan), "c ");
    scan.now_us = T0 + 11;
    scan.max = 10;
    assert_string_equal(scan_ids(world, &scan), "c a b ");
}

static const char *consumer_of(struct world *world, const struct semel_scan *scan)
{
    struct semel_row *rows;
    size_t n, damaged;
    assert_ok(world, semel_store_scan(world->store, scan, &world->arena, &rows, &n, &damaged, &world->err));
    assert_int_equal(n, 1);
    return rows[0].consumer.p;
}

static void scan_by_token_finds_the_one_that_carries_it(void **state)
{
    struct world *world = *state;
    struct semel_scan scan = {.kind = SEMEL_SCAN_TOKEN, .max = 2};

    put(world, "a", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);
    put(world, "b", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);
    scan.token = fetch(world, "b")->progress.lease_token;
    assert_string_equal(scan_ids(world, &scan), "b ");
    assert_string_equal(consumer_of(world, &scan), "c");
    assert_true(move(world, "b", SEMEL_ROW_PROCESSING, SEMEL_ROW_COMPLETED));
    assert_string_equal(scan_ids(world, &scan), "");
    scan.token += 1000;
    assert_string_equal(scan_ids(world, &scan), "");
}

static void scan_of_a_key_gives_its_unfinished_rows_by_arrival_or_by_version(void **state)
{
    struct world *world = *state;
    struct semel_scan scan = {.kind = SEMEL_SCAN_KEY,
                              .consumer = SEMEL_STR("c"),
                              .order_key = SEMEL_STR("k"),
                              .max = 10};

    put(world, "a", SEMEL_ROW_WAITING, "k", 3);
    put(world, "b", SEMEL_ROW_COMPLETED, "k", 0);
    put(world, "c", SEMEL_ROW_DEAD, "k", 1);
    put(world, "d", SEMEL_ROW_FAILED, "k", 2);
    put(world, "e", SEMEL_ROW_FAILED, "k2", 2);
    assert_string_equal(scan_ids(world, &scan), "a c d ");
    scan.by_version = true;
    assert_string_equal(scan_ids(world, &scan), "c d a ");
    scan.max = 2;
    assert_string_equal(scan_ids(world, &scan), "c d ");
}

static void put_still(struct world *world, const char *id, const char *order_key, enum semel_class cls)
{
    struct semel_admit item = item_of(id, SEMEL_ROW_WAITING, order_key, 1);
    struct semel_key key = {.key = text(order_key)};

    item.row.payload = SEMEL_STR("p");
    item.row.kept = true;
    item.row.progress.error_class = cls;
    begin(world);
    admit_keyed(world, &item, 1, &key, order_key != NULL ? 1 : 0);
    commit(world);
}

/* A5: the first of every key of which a row waits without a due time; and those without a key, or of whatever key. */
static void scan_of_what_is_still_gives_the_first_of_each_key_behind_a_place(void **state)
{
    struct world *world = *state;
    struct semel_scan scan = {.kind = SEMEL_SCAN_STILL, .consumer = SEMEL_STR("c"), .max = 10};

    put(world, "a", SEMEL_ROW_DEAD, "k1", 9);
    put(world, "b", SEMEL_ROW_WAITING, "k1", 8);
    put(world, "c", SEMEL_ROW_WAITING, "k2", 3);
    put(world, "d", SEMEL_ROW_COMPLETED, "k2", 1);
    put(world, "e", SEMEL_ROW_FAILED, "k3", 2);
    put(world, "f", SEMEL_ROW_WAITING, "k4", 2);
    put(world, "n", SEMEL_ROW_WAITING, NULL, SEMEL_NONE); /* without its payload */
    put_still(world, "g", NULL, SEMEL_CLASS_BLOCKED);
    put_still(world, "h", "k5", SEMEL_CLASS_BUSINESS); /* has no place in its order */
    put_still(world, "i", "k5", SEMEL_CLASS_BLOCKED);
    put_still(world, "j", "k0", SEMEL_CLASS_BLOCKED); /* the last to arrive has the first key */
    assert_string_equal(scan_ids(world, &scan), "g ");
    scan.any_key = true;
    assert_int_equal(strlen(scan_ids(world, &scan)), strlen("g h i j ")); /* in any order */
    scan.order_key = SEMEL_STR("");
    assert_string_equal(scan_ids(world, &scan), "j a c f i ");
    scan.by_version = true;
    assert_string_equal(scan_ids(world, &scan), "j b c f i ");
    scan.max = 2;
    assert_string_equal(scan_ids(world, &scan), "j b ");
    scan.order_key = SEMEL_STR("k4");
    assert_string_equal(scan_ids(world, &scan), "i ");
}

/* I8 */
static void scan_of_all_is_paged_by_arrival_and_filtered(void **state)
{
    struct world *world = *state;
    struct semel_scan scan = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .max = 2};
    struct semel_admit typed = item_of("e", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);

    put(world, "d", SEMEL_ROW_COMPLETED, "k", 1);
    put(world, "c", SEMEL_ROW_FAILED, "k", 2);
    put(world, "b", SEMEL_ROW_DEAD, "k2", 3);
    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    typed.row.type = SEMEL_STR("t2");
    begin(world);
    admit(world, &typed, 1);
    commit(world);
    assert_string_equal(scan_ids(world, &scan), "d c ");
    scan.after_arrival = fetch(world, "c")->arrival;
    assert_string_equal(scan_ids(world, &scan), "b a ");
    scan.after_arrival = fetch(world, "a")->arrival;
    assert_string_equal(scan_ids(world, &scan), "e ");
    scan.after_arrival = 0;
    scan.max = 10;
    scan.states = 1u << SEMEL_ROW_FAILED | 1u << SEMEL_ROW_DEAD;
    assert_string_equal(scan_ids(world, &scan), "c b ");
    scan.states = 0;
    scan.order_key = SEMEL_STR("k");
    assert_string_equal(scan_ids(world, &scan), "d c ");
    scan.states = 1u << SEMEL_ROW_COMPLETED;
    assert_string_equal(scan_ids(world, &scan), "d ");
    scan.order_key = text(NULL);
    scan.type = SEMEL_STR("t");
    assert_string_equal(scan_ids(world, &scan), "d a ");
}

static void scan_brings_the_payload_only_when_asked(void **state)
{
    struct world *world = *state;
    struct semel_admit item = item_of("a", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    struct semel_scan scan = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .max = 10, .with_payload = true};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;

    item.row.payload = SEMEL_STR("p\0p");
    item.row.headers = SEMEL_STR("{}");
    item.row.kept = true;
    begin(world);
    admit(world, &item, 1);
    commit(world);
    assert_ok(world, semel_store_scan(world->store, &scan, &world->arena, &rows, &n, &damaged, &world->err));
    assert_int_equal(n, 1);
    assert_row_is(&rows[0], &item.row);
    scan.with_payload = false;
    assert_ok(world, semel_store_scan(world->store, &scan, &world->arena, &rows, &n, &damaged, &world->err));
    assert_null(rows[0].payload.p);
    assert_true(rows[0].kept);
}

static void scan_leaves_out_a_damaged_row_and_counts_it(void **state)
{
    struct world *world = *state;
    const struct semel_scan scan = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .max = 10};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;

    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    put(world, "b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    assert_true(world->driver->damage(world, "s", "a"));
    assert_ok(world, semel_store_scan(world->store, &scan, &world->arena, &rows, &n, &damaged, &world->err));
    assert_int_equal(n, 1);
    assert_int_equal(damaged, 1);
    assert_str_is(rows[0].id, SEMEL_STR("b"));
}

static void sources_are_given_once_each(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("b", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE),
                                  item_of("a", SEMEL_ROW_FAILED, NULL, SEMEL_NONE)};
    struct semel_str *sources = NULL;
    size_t n = 9;

    assert_ok(world, semel_store_sources(world->store, SEMEL_STR("c"), &world->arena, &sources, &n, &world->err));
    assert_int_equal(n, 0);
    items[2].row.source = SEMEL_STR("s2");
    begin(world);
    admit(world, items, 3);
    commit(world);
    assert_ok(world, semel_store_sources(world->store, SEMEL_STR("c"), &world->arena, &sources, &n, &world->err));
    assert_int_equal(n, 2);
    assert_true(semel__str_eqz(sources[0], "s") != semel__str_eqz(sources[1], "s"));
    assert_true(semel__str_eqz(sources[0], "s2") != semel__str_eqz(sources[1], "s2"));
    assert_ok(world, semel_store_sources(world->store, SEMEL_STR("d"), &world->arena, &sources, &n, &world->err));
    assert_int_equal(n, 0);
}

/* ---- purge -------------------------------------------------------------------------------------------- */

static void put_timed(struct world *world, const char *id, enum semel_row_status state, int64_t message_time_us)
{
    struct semel_admit item = item_of(id, state, NULL, SEMEL_NONE);

    item.row.message_time_us = message_time_us;
    begin(world);
    admit(world, &item, 1);
    commit(world);
}

static size_t purge(struct world *world, const char *source, int64_t before_us, size_t max)
{
    size_t deleted = 99;

    begin(world);
    assert_ok(world, semel_store_purge(world->store, SEMEL_STR("c"), text(source), before_us, max, 10 * max, &deleted,
                                       &world->err));
    commit(world);
    return deleted;
}

static size_t aged(struct world *world, const char *source, int64_t before_us, size_t max, int64_t *ret_latest_us)
{
    struct semel_aged aged;

    begin(world);
    assert_ok(world, semel_store_aged(world->store, SEMEL_STR("c"), text(source), before_us, max, 10 * max, &aged,
                                      &world->err));
    commit(world);
    *ret_latest_us = aged.latest_us;
    return aged.n;
}

/* I18, A11: their end, which is at T0, and their time lie before the cut. */
static void purge_takes_only_final_rows_that_are_older_than_the_watermark(void **state)
{
    struct world *world = *state;
    int64_t latest_us;

    put_timed(world, "a", SEMEL_ROW_COMPLETED, T0 - 10);
    put_timed(world, "b", SEMEL_ROW_REJECTED, T0 - 9);
    put_timed(world, "c", SEMEL_ROW_STALE, T0 - 5);
    put_timed(world, "d", SEMEL_ROW_DEAD, T0 - 10);
    put_timed(world, "e", SEMEL_ROW_FAILED, T0 - 10);
    put_timed(world, "f", SEMEL_ROW_QUARANTINED, T0 - 10);
    put_timed(world, "g", SEMEL_ROW_PREVENTED, T0 - 10);
    put_timed(world, "h", SEMEL_ROW_COMPLETED, T0 + SECOND);
    assert_int_equal(aged(world, "s", T0, 10, &latest_us), 0); /* they ended at T0, however old they are */
    assert_int_equal(latest_us, SEMEL_NONE);
    assert_int_equal(aged(world, "s", T0 + 1, 10, &latest_us), 4);
    assert_int_equal(latest_us, T0 - 5);
    assert_int_equal(aged(world, "s", T0 + 1, 2, &latest_us), 2);
    assert_int_equal(aged(world, "other", T0 + 1, 10, &latest_us), 0);
    assert_int_equal(purge(world, "s", T0 + SECOND, 10), 0); /* no watermark yet */
    begin(world);
    assert_ok(world, semel_store_watermark(world->store, SEMEL_STR("c"), SEMEL_STR("s"), T0 - 5, &world->err));
    commit(world);
    assert_int_equal(purge(world, "other", T0 + SECOND, 10), 0);
    assert_int_equal(purge(world, "s", T0, 10), 0);
    assert_int_equal(purge(world, "s", T0 + SECOND, 10), 3);
    assert_string_equal(all_ids(world), "c d e f h ");
}

static void purge_takes_rows_without_a_time_by_when_they_became_final(void **state)
{
    struct world *world = *state;
    int64_t latest_us = 1;

    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE); /* processed at T0 */
    put(world, "b", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    assert_int_equal(purge(world, "s", T0, 10), 0);
    assert_int_equal(aged(world, "s", T0 + 1, 10, &latest_us), 1);
    assert_int_equal(latest_us, SEMEL_NONE);
    assert_int_equal(purge(world, "s", T0 + 1, 10), 1);
    assert_string_equal(all_ids(world), "b ");
}

static void purge_is_bounded(void **state)
{
    struct world *world = *state;

    for (const char *id = "abcde"; *id != '\0'; id++) {
        const char name[] = {*id, '\0'};
        if (*id < 'd')
            put(world, name, SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
        else
            put_timed(world, name, SEMEL_ROW_COMPLETED, 1);
    }
    begin(world);
    assert_ok(world, semel_store_watermark(world->store, SEMEL_STR("c"), SEMEL_STR("s"), 2, &world->err));
    commit(world);
    assert_int_equal(purge(world, "s", T0 + 1, 2), 2);
    assert_int_equal(purge(world, "s", T0 + 1, 2), 2);
    assert_int_equal(purge(world, "s", T0 + 1, 2), 1);
    assert_int_equal(purge(world, "s", T0 + 1, 2), 0);
}

static void purge_takes_the_attempts_with_the_row(void **state)
{
    struct world *world = *state;
    struct semel_change changes[] = {change_of("a", SEMEL_ROW_FAILED, SEMEL_ROW_REJECTED),
                                     change_of("b", SEMEL_ROW_FAILED, SEMEL_ROW_FAILED)};

    put(world, "a", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    put(world, "b", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    changes[0].log_attempt = changes[1].log_attempt = true;
    begin(world);
    settle(world, changes, 2);
    commit(world);
    assert_int_equal(purge(world, "s", T0 + 1, 10), 1);
    assert_int_equal(world->driver->attempts(world, "s", "a"), 0);
    assert_int_equal(world->driver->attempts(world, "s", "b"), 1);
}

static void purge_of_business_keys_takes_the_expired_only_and_is_bounded(void **state)
{
    struct world *world = *state;
    struct semel_business keys[] = {
        {.key = SEMEL_STR("a"), .source = SEMEL_STR("s"), .id = SEMEL_STR("m"), .expires_us = T0 + 1},
        {.key = SEMEL_STR("b"), .source = SEMEL_STR("s"), .id = SEMEL_STR("m"), .expires_us = T0 + 1},
        {.key = SEMEL_STR("c"), .source = SEMEL_STR("s"), .id = SEMEL_STR("m"), .expires_us = T0 + 100},
        {.key = SEMEL_STR("d"), .source = SEMEL_STR("s"), .id = SEMEL_STR("m"), .expires_us = SEMEL_NONE}};
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"), .now_us = T0, .business = keys, .n_business = 4};
    const size_t expected[] = {1, 1, 0};
    size_t deleted;

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    assert_ok(world, semel_store_purge_business(world->store, SEMEL_STR("c"), T0, 9, &deleted, &world->err));
    assert_int_equal(deleted, 0);
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_ok(world, semel_store_purge_business(world->store, SEMEL_STR("c"), T0 + 2, 1, &deleted, &world->err));
        assert_int_equal(deleted, expected[i]);
    }
    commit(world);
}

static void record_conflict(struct world *world, const char *id, int number, int64_t now_us)
{
    struct semel__msg msg = {.source = SEMEL_STR("s"), .id = text(id), .payload = SEMEL_STR("x")};
    const struct semel__msg *conflict = &msg;
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("w"),
                                       .now_us = now_us,
                                       .conflicts = &conflict,
                                       .n_conflicts = 1};

    msg.fp.kind = SEMEL_FP_RAW;
    msg.fp.n = 32;
    memcpy(msg.fp.bytes, &number, sizeof number);
    begin(world);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
}

/* A11: evidence goes by its age, and is bounded for one message. */
static void conflicts_go_by_age_and_at_most_a_hundred_of_a_message_are_kept(void **state)
{
    struct world *world = *state;
    char place[SEMEL_ID_MAX + 1] = "";

    for (int i = 0; i < SEMEL_CONFLICTS_MAX + 5; i++)
        record_conflict(world, "a", i, T0 + i);
    record_conflict(world, "b", 1, T0);
    assert_int_equal(world->driver->conflicts(world, "s", "a"), SEMEL_CONFLICTS_MAX);
    begin(world); /* the five that came longest ago are gone already */
    assert_ok(world, semel_store_purge_keys(world->store, SEMEL_STR("c"), T0 + 10, 100, place, &world->err));
    commit(world);
    assert_int_equal(world->driver->conflicts(world, "s", "a"), SEMEL_CONFLICTS_MAX - 5);
    assert_int_equal(world->driver->conflicts(world, "s", "b"), 0);
}

/* ---- outbox and audit --------------------------------------------------------------------------------- */

/* I21 */
/* P5, O4: each event has an id of its own. */
static void event_gets_an_id_that_carries_its_time_unless_it_brings_one(void **state)
{
    struct world *world = *state;
    struct semel__event event = {.aggregatetype = SEMEL_STR("order"),
                                 .aggregateid = SEMEL_STR("o'1"),
                                 .type = SEMEL_STR("Placed"),
                                 .payload = SEMEL_STR("a\0b"),
                                 .headers = SEMEL_STR("{\"k\":\"v\"}"),
                                 .destination = SEMEL_STR("orders")};
    char first[37], second[37];
    int64_t time_us = 0;

    begin(world);
    assert_ok(world, semel_store_outbox_put(world->store, &event, T0, first, &world->err));
    assert_true(semel__id_time(text(first), false, T0, &time_us));
    assert_int_equal(time_us, T0 / 1000 * 1000);
    event.id = SEMEL_STR("0189f7ea-ae2c-7809-8aeb-b819cf5e9e7f");
    assert_ok(world, semel_store_outbox_put(world->store, &event, T0, second, &world->err));
    assert_string_equal(second, "0189f7ea-ae2c-7809-8aeb-b819cf5e9e7f");
    commit(world);
    assert_int_equal(world->driver->events(world), 2);
    begin(world);
    assert_int_equal(semel_store_outbox_put(world->store, &event, T0, second, &world->err), SEMEL_INVALID);
    semel_store_rollback(world->store);
    assert_int_equal(world->driver->events(world), 2);
}

/* O4: nothing that the relay could not publish is put. */
static void event_with_an_unfit_field_is_refused(void **state)
{
    struct world *world = *state;
    const struct semel_str unfit = {"\xff", 1};
    const struct semel__event good = {.aggregatetype = SEMEL_STR("order"),
                                      .aggregateid = SEMEL_STR("1"),
                                      .type = SEMEL_STR("Placed"),
                                      .payload = SEMEL_STR("x")};
    struct semel__event bad[] = {good, good, good, good, good, good, good};
    char id[37];

    bad[0].aggregatetype = bad[1].aggregateid = bad[2].type = bad[3].destination = unfit;
    bad[4].traceparent = bad[5].headers = unfit;
    bad[6].id = SEMEL_STR("1");
    begin(world);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(semel_store_outbox_put(world->store, &bad[i], T0, id, &world->err), SEMEL_INVALID);
    assert_ok(world, semel_store_outbox_put(world->store, &good, T0, id, &world->err));
    commit(world);
    assert_int_equal(world->driver->events(world), 1);
}

static void audit_lines_are_kept(void **state)
{
    struct world *world = *state;

    begin(world);
    audit_one(world);
    audit_one(world);
    commit(world);
    assert_int_equal(world->driver->audits(world), 2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

const struct CMUnitTest look_tests[] = {
    TEST(begin_gives_the_time_of_the_store),
    TEST(what_is_not_committed_is_seen_by_nobody_else),
    TEST(second_writer_is_told_to_try_again_and_nobody_is_blamed),
    TEST(rollback_undoes_everything),
    TEST(rollback_to_undoes_what_came_after_the_savepoint_and_keeps_the_transaction),
    TEST(savepoint_replaces_the_one_before),
    TEST(savepoint_may_be_set_while_the_guard_is_on),
    TEST(guard_and_check_let_an_honest_handler_pass),
    TEST(joining_without_a_transaction_is_invalid),
    TEST(reopen_loses_the_open_transaction_and_nothing_else),
    TEST(migrating_again_changes_nothing),
    TEST(scan_of_the_due_gives_failed_and_waiting_rows_oldest_first),
    TEST(scan_of_the_expired_gives_leases_that_have_run_out_oldest_first),
    TEST(scan_by_token_finds_the_one_that_carries_it),
    TEST(scan_of_a_key_gives_its_unfinished_rows_by_arrival_or_by_version),
    TEST(scan_of_what_is_still_gives_the_first_of_each_key_behind_a_place),
    TEST(scan_of_all_is_paged_by_arrival_and_filtered),
    TEST(scan_brings_the_payload_only_when_asked),
    TEST(scan_leaves_out_a_damaged_row_and_counts_it),
    TEST(sources_are_given_once_each),
    TEST(purge_takes_only_final_rows_that_are_older_than_the_watermark),
    TEST(purge_takes_rows_without_a_time_by_when_they_became_final),
    TEST(purge_is_bounded),
    TEST(purge_takes_the_attempts_with_the_row),
    TEST(purge_of_business_keys_takes_the_expired_only_and_is_bounded),
    TEST(conflicts_go_by_age_and_at_most_a_hundred_of_a_message_are_kept),
    TEST(event_gets_an_id_that_carries_its_time_unless_it_brings_one),
    TEST(event_with_an_unfit_field_is_refused),
    TEST(audit_lines_are_kept),
    {.name = NULL},
};
