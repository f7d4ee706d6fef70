/* SPDX-License-Identifier: MIT
 *
 * store_settle.c: the store contract: settle.
 */
#include "conform/contract.h"

/* ---- the row ------------------------------------------------------------------------------------------ */

static void settle_writes_every_value_as_it_stands(void **state)
{
    struct world *world = *state;
    struct semel_change change = change_of("m", SEMEL_ROW_WAITING, SEMEL_ROW_FAILED);
    struct semel_row expected;

    put(world, "m", SEMEL_ROW_WAITING, "k", 3);
    expected = *fetch(world, "m");
    change.progress = (struct semel_progress){.state = SEMEL_ROW_FAILED,
                                              .attempts = 7,
                                              .attempts_before = 3,
                                              .retries = 2,
                                              .alone = true,
                                              .due_us = T0 + 99,
                                              .processed_us = SEMEL_NONE,
                                              .lease_until_us = SEMEL_NONE,
                                              .lease_token = SEMEL_NONE,
                                              .error_class = SEMEL_CLASS_LEASE,
                                              .error_text = SEMEL_STR("it's late \xF0\x9F\x95\x90"),
                                              .outcome = SEMEL_STR("{}")};
    world->now_us = T0 + 5;
    begin(world);
    settle(world, &change, 1);
    commit(world);
    assert_true(change.applied);
    expected.progress = change.progress;
    expected.updated_us = T0 + 5;
    assert_row_is(fetch(world, "m"), &expected);
}

/* P39 */
static void change_applies_only_to_a_row_that_still_is_what_it_was(void **state)
{
    struct world *world = *state;

    put(world, "m", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    assert_false(move(world, "m", SEMEL_ROW_WAITING, SEMEL_ROW_COMPLETED));
    assert_int_equal(fetch(world, "m")->progress.state, SEMEL_ROW_FAILED);
    assert_true(move(world, "m", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED));
    assert_false(move(world, "m", SEMEL_ROW_FAILED, SEMEL_ROW_DEAD));
    assert_int_equal(fetch(world, "m")->progress.state, SEMEL_ROW_COMPLETED);
    assert_false(move(world, "none", SEMEL_ROW_FAILED, SEMEL_ROW_DEAD));
    assert_string_equal(all_ids(world), "m ");
}

/* P39, I7 */
static void change_applies_only_under_the_token_that_the_row_carries(void **state)
{
    struct world *world = *state;
    struct semel_change late = change_of("m", SEMEL_ROW_PROCESSING, SEMEL_ROW_COMPLETED), timely = late;
    int64_t old_token;

    put(world, "m", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);
    old_token = fetch(world, "m")->progress.lease_token;
    assert_true(move(world, "m", SEMEL_ROW_PROCESSING, SEMEL_ROW_FAILED));
    assert_true(move(world, "m", SEMEL_ROW_FAILED, SEMEL_ROW_PROCESSING));
    late.token = old_token;
    begin(world);
    settle(world, &late, 1);
    commit(world);
    assert_false(late.applied);
    assert_int_equal(fetch(world, "m")->progress.state, SEMEL_ROW_PROCESSING);
    timely.token = fetch(world, "m")->progress.lease_token;
    assert_true(timely.token > old_token);
    begin(world);
    settle(world, &timely, 1);
    commit(world);
    assert_true(timely.applied);
    assert_int_equal(fetch(world, "m")->progress.state, SEMEL_ROW_COMPLETED);
}

/* A7: what a clock that stepped back must not do to a row, core sees to. */
static void a_change_writes_its_token_and_its_time_as_they_stand(void **state)
{
    struct world *world = *state;
    struct semel_change change = change_of("b", SEMEL_ROW_FAILED, SEMEL_ROW_PROCESSING);
    struct semel_settle_batch batch = {
        .consumer = SEMEL_STR("c"), .worker = SEMEL_STR("worker-1"), .now_us = T0, .changes = &change, .n_changes = 1};

    put(world, "b", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    change.progress.lease_token = INT64_MAX - 1;
    change.updated_us = T0 + 9 * SECOND;
    begin(world);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
    assert_int_equal(fetch(world, "b")->progress.lease_token, INT64_MAX - 1);
    assert_int_equal(fetch(world, "b")->updated_us, T0 + 9 * SECOND);
}

static void renewed_lease_keeps_its_token(void **state)
{
    struct world *world = *state;
    struct semel_change change = change_of("a", SEMEL_ROW_PROCESSING, SEMEL_ROW_PROCESSING);

    put(world, "a", SEMEL_ROW_PROCESSING, NULL, SEMEL_NONE);
    change.token = change.progress.lease_token = fetch(world, "a")->progress.lease_token;
    change.progress.lease_until_us = T0 + 500 * SECOND;
    begin(world);
    settle(world, &change, 1);
    commit(world);
    assert_true(change.applied);
    assert_int_equal(fetch(world, "a")->progress.lease_token, change.token);
    assert_int_equal(fetch(world, "a")->progress.lease_until_us, T0 + 500 * SECOND);
}

static void one_change_that_does_not_fit_spares_the_others(void **state)
{
    struct world *world = *state;
    struct semel_change changes[] = {change_of("a", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED),
                                     change_of("b", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED),
                                     change_of("c", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED)};

    put(world, "a", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    put(world, "c", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    begin(world);
    settle(world, changes, 3);
    commit(world);
    assert_true(changes[0].applied && !changes[1].applied && changes[2].applied);
}

static void payload_is_left_cleared_or_put(void **state)
{
    struct world *world = *state;
    struct semel_change change = change_of("m", SEMEL_ROW_FAILED, SEMEL_ROW_FAILED);
    struct semel__msg msg;

    semel__msg_init(&msg);
    msg.payload = SEMEL_STR("new\0bytes");
    msg.headers = SEMEL_STR("{\"h\":1}");
    put(world, "m", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    assert_false(fetch(world, "m")->kept);
    change.payload = SEMEL_PAYLOAD_PUT;
    change.put = &msg;
    begin(world);
    settle(world, &change, 1);
    change.payload = SEMEL_PAYLOAD_AS_IS;
    settle(world, &change, 1);
    commit(world);
    assert_true(fetch(world, "m")->kept);
    assert_str_is(fetch(world, "m")->payload, msg.payload);
    assert_str_is(fetch(world, "m")->headers, msg.headers);
    change.payload = SEMEL_PAYLOAD_CLEAR;
    begin(world);
    settle(world, &change, 1);
    commit(world);
    assert_false(fetch(world, "m")->kept);
    assert_null(fetch(world, "m")->payload.p);
    assert_null(fetch(world, "m")->headers.p);
}

static void fresh_row_can_be_changed_or_taken_away_again(void **state)
{
    struct world *world = *state;
    struct semel_admit items[] = {item_of("a", SEMEL_ROW_COMPLETED, "k", SEMEL_NONE),
                                  item_of("b", SEMEL_ROW_COMPLETED, "k", SEMEL_NONE)};
    struct semel_change changes[] = {change_of("a", SEMEL_ROW_COMPLETED, SEMEL_ROW_WAITING),
                                     change_of("b", SEMEL_ROW_COMPLETED, SEMEL_ROW_WAITING)};
    struct semel_key key = {.key = SEMEL_STR("k")};

    items[1].place = 1;
    changes[0].fresh = changes[1].fresh = changes[1].remove = true;
    begin(world);
    admit_keyed(world, items, 2, &key, 1);
    settle(world, changes, 2);
    commit(world);
    assert_true(changes[0].applied && changes[1].applied);
    assert_string_equal(all_ids(world), "a ");
    assert_int_equal(facts(world, "k", false).parked, 1);
    put(world, "b", SEMEL_ROW_COMPLETED, "k", SEMEL_NONE);
}

/* ---- attempts, conflicts ------------------------------------------------------------------------------ */

/* I8 */
static void attempts_are_logged_with_a_change_that_applies_and_by_notes(void **state)
{
    struct world *world = *state;
    struct semel_change changes[] = {change_of("a", SEMEL_ROW_FAILED, SEMEL_ROW_FAILED),
                                     change_of("b", SEMEL_ROW_FAILED, SEMEL_ROW_FAILED),
                                     change_of("c", SEMEL_ROW_WAITING, SEMEL_ROW_FAILED)};
    const struct semel_note notes[] = {
        {SEMEL_STR("s"), SEMEL_STR("c"), 3, SEMEL_CLASS_LEASE, SEMEL_STR("it's late")},
        {SEMEL_STR("s"), SEMEL_STR("gone"), 1, SEMEL_CLASS_NONE, {NULL, 0}},
    };
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("w"),
                                       .now_us = T0,
                                       .changes = changes,
                                       .n_changes = 3,
                                       .notes = notes,
                                       .n_notes = 2};

    put(world, "a", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    put(world, "b", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    put(world, "c", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    changes[0].log_attempt = changes[2].log_attempt = true;
    begin(world);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
    assert_int_equal(world->driver->attempts(world, "s", "a"), 1);
    assert_int_equal(world->driver->attempts(world, "s", "b"), 0);
    assert_int_equal(world->driver->attempts(world, "s", "c"), 1); /* the note only */
    assert_int_equal(world->driver->attempts(world, "s", "gone"), 1);
}

static void record_conflict(struct world *world, const char *id, unsigned char fp)
{
    struct semel__msg msg;
    const struct semel__msg *conflict = &msg;
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("w"),
                                       .now_us = world->now_us,
                                       .conflicts = &conflict,
                                       .n_conflicts = 1};

    semel__msg_init(&msg);
    msg.source = SEMEL_STR("s");
    msg.id = text(id);
    msg.payload = SEMEL_STR("p\0q");
    msg.fp = (struct semel_fp){SEMEL_FP_RAW, 1, {fp}};
    begin(world);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
}

/* I11 */
static void conflicts_are_kept_and_counted(void **state)
{
    struct world *world = *state;

    record_conflict(world, "m", 0);
    assert_int_equal(world->driver->conflicts(world, "s", "m"), 1);
    record_conflict(world, "m", 0);
    record_conflict(world, "m", 1);
    record_conflict(world, "n", 1);
    assert_int_equal(world->driver->conflicts(world, "s", "m"), 3);
    assert_int_equal(world->driver->conflicts(world, "s", "n"), 1);
}

/* ---- business keys ------------------------------------------------------------------------------------ */

/* How many of the keys "b1" and "b2" message "other" would find taken. */
static size_t taken(struct world *world)
{
    struct semel_business keys[] = {
        {.key = SEMEL_STR("b1"), .source = SEMEL_STR("s"), .id = SEMEL_STR("other"), .expires_us = SEMEL_NONE},
        {.key = SEMEL_STR("b2"), .source = SEMEL_STR("s"), .id = SEMEL_STR("other"), .expires_us = SEMEL_NONE}};
    struct semel_admit_batch batch = {.consumer = SEMEL_STR("c"), .now_us = T0, .business = keys, .n_business = 2};

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    semel_store_rollback(world->store);
    return (size_t)keys[0].taken + keys[1].taken;
}

/* Message "m" as FAILED, holding b1 and b2, of which the last n_drop are dropped again at once. */
static void put_with_keys(struct world *world, size_t n_drop)
{
    struct semel_business keys[] = {
        {.key = SEMEL_STR("b1"), .source = SEMEL_STR("s"), .id = SEMEL_STR("m"), .expires_us = SEMEL_NONE},
        {.key = SEMEL_STR("b2"), .source = SEMEL_STR("s"), .id = SEMEL_STR("m"), .expires_us = SEMEL_NONE}};
    struct semel_admit item = item_of("m", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    struct semel_admit_batch batch = {
        .consumer = SEMEL_STR("c"), .now_us = T0, .business = keys, .n_business = 2, .items = &item, .n_items = 1};
    struct semel_settle_batch drop = {.consumer = SEMEL_STR("c"),
                                      .now_us = T0,
                                      .drop = keys + 2 - n_drop,
                                      .n_drop = n_drop};

    begin(world);
    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    assert_true(keys[0].inserted && keys[1].inserted);
    assert_ok(world, semel_store_settle(world->store, &drop, &world->err));
    commit(world);
}

/* I10 */
static void business_keys_are_released_with_a_change_that_applies(void **state)
{
    struct world *world = *state;
    struct semel_change change = change_of("m", SEMEL_ROW_WAITING, SEMEL_ROW_REJECTED);

    put_with_keys(world, 0);
    assert_int_equal(taken(world), 2);
    change.release_business = true;
    begin(world);
    settle(world, &change, 1);
    commit(world);
    assert_false(change.applied);
    assert_int_equal(taken(world), 2);
    change.from = SEMEL_ROW_FAILED;
    begin(world);
    settle(world, &change, 1);
    commit(world);
    assert_true(change.applied);
    assert_int_equal(taken(world), 0);
}

static void business_keys_stay_with_a_change_that_does_not_release_them(void **state)
{
    struct world *world = *state;

    put_with_keys(world, 0);
    assert_true(move(world, "m", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED));
    assert_int_equal(taken(world), 2);
}

static void business_key_that_this_transaction_took_can_be_dropped_again(void **state)
{
    put_with_keys(*state, 1);
    assert_int_equal(taken(*state), 1);
}

/* ---- keys --------------------------------------------------------------------------------------------- */

static void settle_key(struct world *world, struct semel_key_change key)
{
    struct semel_settle_batch batch = {
        .consumer = SEMEL_STR("c"), .worker = SEMEL_STR("w"), .now_us = world->now_us, .keys = &key, .n_keys = 1};

    begin(world);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
}

/* I12 */
static void last_version_is_raised_and_never_lowered(void **state)
{
    struct world *world = *state;

    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = SEMEL_NONE});
    assert_int_equal(facts(world, "k", false).last_version, SEMEL_NONE);
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = 0});
    assert_int_equal(facts(world, "k", false).last_version, 0);
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = 7});
    assert_int_equal(facts(world, "k", false).last_version, 7);
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = 6});
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = SEMEL_NONE});
    assert_int_equal(facts(world, "k", false).last_version, 7);
    assert_int_equal(facts(world, "k2", false).last_version, SEMEL_NONE);
}

static void assert_woken(struct world *world, const char *id, bool woken)
{
    const struct semel_row *row = fetch(world, id);

    assert_int_equal(row->progress.due_us, woken ? world->now_us : SEMEL_NONE);
    assert_int_equal(row->progress.error_class, woken ? SEMEL_CLASS_BLOCKED : SEMEL_CLASS_NONE);
}

/* I13 */
static void wake_makes_the_first_waiting_row_of_its_key_due_and_no_other(void **state)
{
    struct world *world = *state;

    put(world, "a", SEMEL_ROW_WAITING, "k", 9);
    put(world, "b", SEMEL_ROW_WAITING, "k", 2);
    put(world, "c", SEMEL_ROW_WAITING, "k2", 1);
    world->now_us += SECOND;
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = SEMEL_NONE, .wake = true});
    assert_woken(world, "a", true);
    assert_woken(world, "b", false);
    assert_woken(world, "c", false);
    assert_int_equal(fetch(world, "a")->progress.state, SEMEL_ROW_WAITING);
}

/* I12 */
static void wake_by_version_takes_the_lowest_version(void **state)
{
    struct world *world = *state;

    put(world, "a", SEMEL_ROW_WAITING, "k", 9);
    put(world, "b", SEMEL_ROW_WAITING, "k", 2);
    settle_key(world, (struct semel_key_change){
                          .key = SEMEL_STR("k"), .last_version = SEMEL_NONE, .wake = true, .by_version = true});
    assert_woken(world, "a", false);
    assert_woken(world, "b", true);
}

/* I12 P74 */
static void skipped_versions_are_kept_with_the_key(void **state)
{
    static const int64_t some[] = {7, 9, 20261116, INT64_MAX - 1};
    struct world *world = *state;
    struct semel_key key;

    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"),
                                                .last_version = SEMEL_NONE,
                                                .skips = true,
                                                .skipped = some,
                                                .n_skipped = COUNT(some)});
    key = facts(world, "k", false);
    assert_int_equal(key.last_version, SEMEL_NONE);
    assert_int_equal(key.n_skipped, COUNT(some));
    assert_memory_equal(key.skipped, some, sizeof some);
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = 5}); /* stays as it is */
    assert_int_equal(facts(world, "k", false).n_skipped, COUNT(some));
    settle_key(world,
               (struct semel_key_change){
                   .key = SEMEL_STR("k"), .last_version = 8, .skips = true, .skipped = some + 1, .n_skipped = 1});
    key = facts(world, "k", false);
    assert_int_equal(key.last_version, 8);
    assert_int_equal(key.n_skipped, 1);
    assert_int_equal(key.skipped[0], 9);
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = SEMEL_NONE, .skips = true});
    assert_int_equal(facts(world, "k", false).n_skipped, 0);
    assert_int_equal(facts(world, "k", false).last_version, 8);
}

/* I12 P74 */
static void as_many_versions_are_skipped_as_there_may_be(void **state)
{
    struct world *world = *state;
    int64_t many[SEMEL_SKIPPED_MAX];
    struct semel_key key;

    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = INT64_MAX - 2 * (int64_t)(COUNT(many) - i);
    settle_key(world,
               (struct semel_key_change){
                   .key = SEMEL_STR("k"), .last_version = 1, .skips = true, .skipped = many, .n_skipped = COUNT(many)});
    key = facts(world, "k", false);
    assert_int_equal(key.n_skipped, COUNT(many));
    assert_memory_equal(key.skipped, many, sizeof many);
}

/* I13 */
static void wake_wakes_nobody_behind_an_unfinished_row(void **state)
{
    struct world *world = *state;

    put(world, "a", SEMEL_ROW_DEAD, "k", SEMEL_NONE);
    put(world, "b", SEMEL_ROW_WAITING, "k", SEMEL_NONE);
    settle_key(world, (struct semel_key_change){.key = SEMEL_STR("k"), .last_version = SEMEL_NONE, .wake = true});
    assert_woken(world, "b", false);
}

static void wake_sees_what_the_same_settle_has_finished(void **state)
{
    struct world *world = *state;
    struct semel_change change = change_of("a", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED);
    struct semel_key_change key = {.key = SEMEL_STR("k"), .last_version = SEMEL_NONE, .wake = true};
    struct semel_settle_batch batch = {.consumer = SEMEL_STR("c"),
                                       .worker = SEMEL_STR("w"),
                                       .now_us = T0,
                                       .changes = &change,
                                       .n_changes = 1,
                                       .keys = &key,
                                       .n_keys = 1};

    put(world, "a", SEMEL_ROW_FAILED, "k", SEMEL_NONE);
    put(world, "b", SEMEL_ROW_WAITING, "k", SEMEL_NONE);
    begin(world);
    assert_ok(world, semel_store_settle(world->store, &batch, &world->err));
    commit(world);
    assert_woken(world, "b", true);
}

static void wake_of_a_key_without_rows_does_nothing(void **state)
{
    settle_key(*state, (struct semel_key_change){.key = SEMEL_STR("nobody"), .last_version = SEMEL_NONE, .wake = true});
    assert_string_equal(all_ids(*state), "");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

const struct CMUnitTest settle_tests[] = {
    TEST(settle_writes_every_value_as_it_stands),
    TEST(change_applies_only_to_a_row_that_still_is_what_it_was),
    TEST(change_applies_only_under_the_token_that_the_row_carries),
    TEST(a_change_writes_its_token_and_its_time_as_they_stand),
    TEST(renewed_lease_keeps_its_token),
    TEST(one_change_that_does_not_fit_spares_the_others),
    TEST(payload_is_left_cleared_or_put),
    TEST(fresh_row_can_be_changed_or_taken_away_again),
    TEST(attempts_are_logged_with_a_change_that_applies_and_by_notes),
    TEST(conflicts_are_kept_and_counted),
    TEST(business_keys_are_released_with_a_change_that_applies),
    TEST(business_keys_stay_with_a_change_that_does_not_release_them),
    TEST(business_key_that_this_transaction_took_can_be_dropped_again),
    TEST(last_version_is_raised_and_never_lowered),
    TEST(skipped_versions_are_kept_with_the_key),
    TEST(as_many_versions_are_skipped_as_there_may_be),
    TEST(wake_makes_the_first_waiting_row_of_its_key_due_and_no_other),
    TEST(wake_by_version_takes_the_lowest_version),
    TEST(wake_wakes_nobody_behind_an_unfinished_row),
    TEST(wake_sees_what_the_same_settle_has_finished),
    TEST(wake_of_a_key_without_rows_does_nothing),
    {.name = NULL},
};
