/* SPDX-License-Identifier: MIT
 *
 * store_setting.c: a change of settings under stored rows, by core's rules on each store: what is refused, with which
 * number, and what is not. A3, I24, P75.
 */
#include "conform/contract.h"
#include "core/consumer.h"

#define FILE_A "/etc/semel/a.yaml"
#define FILE_B "/etc/semel/b.yaml"

static struct semel_setting now;

static semel_status set_as(struct world *world, const char *settings, const struct semel_setter *by)
{
    return semel__consumer_change(world->store, text("c"), text(settings), by, &world->arena, &now, &world->err);
}

static semel_status set_by_person(struct world *world, const char *settings)
{
    return set_as(world, settings, &(struct semel_setter){.who = text("ann")});
}

static semel_status set_by_file(struct world *world, const char *settings, const char *file)
{
    return set_as(world, settings, &(struct semel_setter){.who = text("w1"), .host = text("h1"), .file = text(file)});
}

static void person(struct world *world, const char *settings)
{
    assert_ok(world, set_by_person(world, settings));
}

/* Refused by what is stored: the text has both, the store and the audit stay as they are. */
static void refused(struct world *world, semel_status status, const char *word, const char *other)
{
    assert_int_equal(status, SEMEL_INVALID);
    assert_true(now.refused);
    if (strstr(world->err.text, word) == NULL || strstr(world->err.text, other) == NULL)
        fail_msg("\"%s\" does not say %s and %s", world->err.text, word, other);
}

static struct semel_policy stored(struct world *world)
{
    struct semel_policy policy;
    assert_ok(world, semel__consumer_load(world->store, text("c"), &world->arena, &policy, NULL, &world->err));
    return policy;
}

static void put_class(struct world *world, const char *id, enum semel_class cls)
{
    struct semel_admit item = item_of(id, SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    item.row.progress.error_class = cls;
    begin(world);
    admit(world, &item, 1);
    commit(world);
}

/* It was tried, and then had to wait for its place in the order. */
static void put_tried(struct world *world, const char *id, int attempts, int before)
{
    struct semel_admit item = item_of(id, SEMEL_ROW_WAITING, NULL, SEMEL_NONE);
    item.row.progress.error_class = SEMEL_CLASS_BLOCKED;
    item.row.progress.attempts = attempts;
    item.row.progress.attempts_before = before;
    begin(world);
    admit(world, &item, 1);
    commit(world);
}

static void put_source(struct world *world, const char *source, const char *id)
{
    struct semel_admit item = item_of(id, SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    item.row.source = text(source);
    begin(world);
    admit(world, &item, 1);
    commit(world);
}

static void set_last(struct world *world, const char *key, int64_t version)
{
    struct semel_key k = {.key = text(key), .by_version = true};
    struct semel_fetch_batch batch = {.consumer = text("c"), .keys = &k, .n_keys = 1};
    struct semel_key_change change = {.key = text(key), .last_version = version, .by_version = true};
    struct semel_settle_batch settle = {.consumer = text("c"), .worker = text("w"), .keys = &change, .n_keys = 1};

    settle.now_us = begin(world);
    assert_ok(world, semel_store_fetch(world->store, &batch, &world->arena, &world->err));
    assert_ok(world, semel_store_settle(world->store, &settle, &world->err));
    commit(world);
}

/* ---- order ---------------------------------------------------------------------------------------------- */

/* A3 I24 P75 */
static void order_is_kept_while_messages_of_keys_have_no_end(void **state)
{
    struct world *world = *state;

    person(world, "{\"order\": \"version\", \"first_version\": \"any\"}");
    put(world, "done", SEMEL_ROW_COMPLETED, "k", 1);
    put(world, "dead", SEMEL_ROW_DEAD, "k", SEMEL_NONE);
    put(world, "free", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    person(world, "{\"order\": \"arrival\"}"); /* nobody would be forgotten */
    person(world, "{\"order\": \"none\"}");
    person(world, "{\"order\": \"version\"}");
    put(world, "waits", SEMEL_ROW_WAITING, "k", 3);
    put(world, "failed", SEMEL_ROW_FAILED, "l", 3);
    put(world, "runs", SEMEL_ROW_PROCESSING, "m", 3);
    refused(world, set_by_person(world, "{\"order\": \"none\"}"), "order cannot go from version to none", ": 3;");
    refused(world, set_by_person(world, "{\"order\": \"arrival\"}"), "from version to arrival", ": 3;");
    refused(world, set_by_person(world, "{\"order\": null}"), "from version to none", "let them end first");
    refused(world, set_by_file(world, "{\"order\": \"none\"}", FILE_A), "order cannot", ": 3;");
    assert_int_equal(stored(world).order, SEMEL_ORDER_VERSION);
    assert_true(move(world, "waits", SEMEL_ROW_WAITING, SEMEL_ROW_REJECTED));
    refused(world, set_by_person(world, "{\"order\": \"arrival\"}"), "from version to arrival", ": 2;");
}

/* A version that is resolved under another order would not count as the last one of its key. */
static void versions_are_kept_while_one_may_still_be_resolved(void **state)
{
    struct world *world = *state;

    person(world, "{\"order\": \"version\", \"first_version\": \"any\"}");
    put(world, "dead", SEMEL_ROW_DEAD, "k", 2);
    put(world, "doubt", SEMEL_ROW_UNKNOWN, "l", 5);
    put(world, "keyless", SEMEL_ROW_DEAD, NULL, 3);
    refused(world, set_by_person(world, "{\"order\": \"arrival\"}"), "from version to arrival", "outcome: 2; resolve");
    refused(world, set_by_file(world, "{\"order\": \"none\"}", FILE_A), "from version to none", "outcome: 2;");
    assert_true(move(world, "doubt", SEMEL_ROW_UNKNOWN, SEMEL_ROW_COMPLETED));
    assert_true(move(world, "dead", SEMEL_ROW_DEAD, SEMEL_ROW_REJECTED));
    person(world, "{\"order\": \"arrival\"}");
}

static void order_of_arrival_may_become_that_of_versions(void **state)
{
    struct world *world = *state;

    person(world, "{\"order\": \"version\"}");
    assert_null(now.hint); /* there is no key yet */
    person(world, "{\"order\": \"arrival\"}");
    put(world, "waits", SEMEL_ROW_WAITING, "k", SEMEL_NONE);
    set_last(world, "k", 3);
    person(world, "{\"order\": \"version\"}");
    assert_non_null(now.hint);
    assert_non_null(strstr(now.hint, "first_version"));
    person(world, "{\"retry_max\": 4}");
    assert_null(now.hint);
    refused(world, set_by_person(world, "{\"order\": \"arrival\"}"), "version to arrival", ": 1;");
}

static void first_version_any_needs_no_hint(void **state)
{
    struct world *world = *state;

    person(world, "{\"order\": \"arrival\"}");
    put(world, "waits", SEMEL_ROW_WAITING, "k", SEMEL_NONE);
    set_last(world, "k", 3);
    person(world, "{\"order\": \"version\", \"first_version\": \"any\"}");
    assert_null(now.hint);
}

/* A3 I24 P75 */
static void what_is_said_of_another_setting_forgets_nothing(void **state)
{
    struct world *world = *state;

    person(world, "{\"order\": \"arrival\", \"effect\": \"outside\"}");
    put(world, "waits", SEMEL_ROW_WAITING, "k", SEMEL_NONE);
    person(world, "{\"retry_max\": 20}");
    assert_int_equal(stored(world).order, SEMEL_ORDER_ARRIVAL);
    assert_int_equal(stored(world).effect, SEMEL_EFFECT_OUTSIDE);
    assert_int_equal(stored(world).retry_max, 20);
}

/* A3 I24 P75 */
static void first_version_is_not_raised_over_messages_that_wait(void **state)
{
    struct world *world = *state;

    person(world, "{\"order\": \"version\", \"first_version\": 3}");
    put(world, "a", SEMEL_ROW_WAITING, "k", 4);
    put(world, "b", SEMEL_ROW_FAILED, "l", 4);
    put(world, "dead", SEMEL_ROW_DEAD, "m", 4);
    person(world, "{\"first_version\": 4}"); /* none is below */
    refused(world, set_by_person(world, "{\"first_version\": 5}"), "first_version cannot go from 4 to 5", ": 2;");
    set_last(world, "k", 3); /* it has begun already */
    refused(world, set_by_person(world, "{\"first_version\": 5}"), "first_version", ": 1;");
    person(world, "{\"first_version\": \"any\"}");
    refused(world, set_by_person(world, "{\"first_version\": 5}"), "from any to 5", ": 1;");
    person(world, "{\"first_version\": 2}");
    set_last(world, "l", 3);
    person(world, "{\"first_version\": 5}");
    person(world, "{\"first_version\": null}");
    assert_int_equal(stored(world).first_version, 1);
}

/* ---- effect, source ------------------------------------------------------------------------------------- */

/* A3 I24 P75 */
static void keyed_effect_is_kept_while_something_is_to_be_repeated(void **state)
{
    struct world *world = *state;

    person(world, "{\"effect\": \"keyed\"}");
    put_class(world, "a", SEMEL_CLASS_TRANSIENT);
    put_tried(world, "new", 0, 0);
    person(world, "{\"effect\": \"outside\"}");
    person(world, "{\"effect\": \"keyed\"}");
    put_class(world, "b", SEMEL_CLASS_LEASE);
    put_class(world, "c", SEMEL_CLASS_UNKNOWN);
    refused(world, set_by_person(world, "{\"effect\": \"outside\"}"), "effect cannot go from keyed to outside", ": 2;");
    refused(world, set_by_person(world, "{\"effect\": \"atomic\"}"), "keyed to atomic", ": 2;");
    refused(world, set_by_person(world, "{\"effect\": null}"), "keyed to atomic", ": 2;");
    put_tried(world, "d", 1, 0);
    put_tried(world, "judged again", 2, 2);
    refused(world, set_by_person(world, "{\"effect\": \"outside\"}"), "effect cannot go from keyed to outside", ": 4;");
    person(world, "{\"effect\": \"keyed\"}");
    assert_false(now.changed);
}

static void other_effects_and_payloads_may_change(void **state)
{
    struct world *world = *state;

    put(world, "runs", SEMEL_ROW_PROCESSING, "k", 3);
    put_class(world, "b", SEMEL_CLASS_LEASE);
    person(world, "{\"effect\": \"outside\"}");
    person(world, "{\"effect\": \"atomic\", \"keep_payload\": \"never\"}");
    person(world, "{\"keep_payload\": \"always\"}");
    person(world, "{\"effect\": \"keyed\"}");
}

/* A3 I24 P75 */
static void sources_count_or_do_not_while_there_are_records(void **state)
{
    struct world *world = *state;

    person(world, "{\"one_source\": true}");
    put_source(world, "", "a");
    refused(world, set_by_person(world, "{\"one_source\": null}"), "one_source cannot go from true to false", ": 1;");
    put_source(world, "s", "b");
    put_source(world, "t", "b");
    refused(world, set_by_person(world, "{\"one_source\": false}"), "without a source", ": 1;");
    assert_ok(world, set_as(world, "{\"one_source\": false}",
                            &(struct semel_setter){.who = text("ann"), .force = true, .reason = text("empty")}));
    refused(world, set_by_person(world, "{\"one_source\": true}"), "from false to true", ": 2;");
}

/* ---- files ---------------------------------------------------------------------------------------------- */

static void mark(struct world *world, const char *source)
{
    begin(world);
    assert_ok(world, semel_store_watermark(world->store, text("c"), text(source), T0, &world->err));
    commit(world);
}

/* A11 I24 P82: what was purged is known by its age alone. */
static void ids_keep_their_time_where_records_were_purged(void **state)
{
    struct world *world = *state;

    person(world, "{\"timed_ids\": true}");
    person(world, "{\"timed_ids\": false}"); /* nothing was purged */
    person(world, "{\"timed_ids\": null}");
    mark(world, "s");
    mark(world, "t");
    refused(world, set_by_person(world, "{\"timed_ids\": false}"), "timed_ids cannot go from uuidv7 to false", ": 2;");
    person(world, "{\"timed_ids\": \"ulid\"}"); /* more of them */
    person(world, "{\"timed_ids\": true}");
    person(world, "{\"timed_ids\": \"ulid\"}"); /* as many */
    person(world, "{\"timed_ids\": true}");
    refused(world, set_by_person(world, "{\"timed_ids\": null}"), "from true to uuidv7", ": 2;");
    refused(world, set_by_person(world, "{\"timed_ids\": \"uuidv7\"}"), "from true to uuidv7", "leave it as it is");
    refused(world, set_by_person(world, "{\"timed_ids\": false}"), "from true to false", ": 2;");
    refused(world, set_by_file(world, "{\"retry_max\": 4}", FILE_A), "from true to uuidv7", ": 2;");
    assert_int_equal(stored(world).timed_ids, SEMEL_TIMED_ALL);
    assert_ok(world, set_by_file(world, "{\"timed_ids\": \"ulid\"}", FILE_A));
    assert_ok(world, set_as(world, "{\"timed_ids\": false}",
                            &(struct semel_setter){.who = text("ann"), .force = true, .reason = text("811")}));
    assert_int_equal(stored(world).timed_ids, SEMEL_TIMED_NONE);
    person(world, "{\"timed_ids\": null}");
}

/* A3 I24 P75 */
static void what_a_file_sets_is_changed_there(void **state)
{
    struct world *world = *state;
    struct semel_consumer got;

    person(world, "{\"retry_max\": 3}");
    assert_ok(world, set_by_file(world, "{\"effect\": \"outside\", \"order\": \"none\"}", FILE_A));
    assert_int_equal(stored(world).retry_max, 8); /* a file is whole */
    assert_ok(world, semel_store_consumer_read(world->store, text("c"), false, &world->arena, &got, &world->err));
    assert_str(got.by.file, FILE_A);
    assert_str(got.by.host, "h1");
    assert_true(got.by.at_us >= T0);
    refused(world, set_by_person(world, "{\"retry_max\": 3}"), FILE_A, "on h1");
    refused(world, set_by_person(world, "{\"effect\": \"keyed\"}"), FILE_A, "on h1");
    person(world, "{\"effect\": \"outside\"}"); /* as it is */
    person(world, "{}");
    assert_ok(world, set_by_file(world, "{\"effect\": \"keyed\", \"order\": \"none\"}", FILE_B));
    assert_str(now.by.file, FILE_A);
    refused(world, set_by_person(world, "{\"retry_max\": 3}"), FILE_B, "on h1");
    assert_ok(world, set_as(world, "{\"retry_max\": 3}",
                            &(struct semel_setter){.who = text("ann"), .force = true, .reason = text("now")}));
    assert_ok(world, semel_store_consumer_read(world->store, text("c"), false, &world->arena, &got, &world->err));
    assert_false(semel__str_given(got.by.file));
    assert_int_equal(got.by.at_us, SEMEL_NONE);
    person(world, "{\"retry_max\": 4}");
}

/* A3 I24 P75 */
static void route_that_takes_over_a_consumer_keeps_its_guarantee(void **state)
{
    struct world *world = *state;

    person(world, "{\"effect\": \"outside\", \"order\": \"none\"}");
    put(world, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    refused(world, set_by_file(world, "{\"effect\": \"atomic\", \"order\": \"none\"}", FILE_A),
            "effect cannot go from outside to atomic", "another name");
    refused(world, set_by_file(world, "{\"effect\": \"outside\", \"order\": \"arrival\"}", FILE_A), "order cannot",
            "no route's file had set: 1;");
    refused(world, set_by_file(world, "{\"effect\": \"outside\", \"one_source\": true}", FILE_A), "one_source cannot",
            ": 1;");
    assert_ok(world, set_by_file(world, "{\"effect\": \"outside\", \"order\": \"none\", \"retry_max\": 2}", FILE_A));
    assert_ok(world, set_by_file(world, "{\"effect\": \"atomic\", \"order\": \"arrival\"}", FILE_B));
    assert_int_equal(stored(world).order, SEMEL_ORDER_ARRIVAL);
}

static void route_may_take_over_what_has_no_messages(void **state)
{
    struct world *world = *state;

    person(world, "{\"effect\": \"outside\", \"order\": \"version\"}");
    assert_ok(world, set_by_file(world, "{\"effect\": \"atomic\", \"order\": \"none\"}", FILE_A));
}

/* ---- force and the audit -------------------------------------------------------------------------------- */

/* A3 I24 P75 */
static void every_change_has_its_audit_line(void **state)
{
    struct world *world = *state;

    person(world, "{\"order\": \"arrival\"}");
    assert_string_equal(now.change.p, "{\"order\": \"arrival\"}");
    assert_int_equal(world->driver->audits(world), 1);
    person(world, "{}");
    person(world, "{\"order\": \"arrival\"}");
    assert_int_equal(world->driver->audits(world), 1); /* nothing changed */
    put(world, "waits", SEMEL_ROW_WAITING, "k", SEMEL_NONE);
    refused(world, set_by_person(world, "{\"order\": null, \"retry_max\": 3}"), "order", ": 1;");
    assert_string_equal(now.change.p, "{\"order\": null, \"retry_max\": 3}");
    assert_int_equal(world->driver->audits(world), 1);
    assert_ok(world, set_as(world, "{\"order\": null}",
                            &(struct semel_setter){.who = text("ann"), .force = true, .reason = text("811")}));
    assert_int_equal(world->driver->audits(world), 2);
    assert_int_equal(stored(world).order, SEMEL_ORDER_NONE);
    assert_ok(world, set_by_file(world, "{\"order\": \"none\"}", FILE_A));
    assert_int_equal(world->driver->audits(world), 3);
    assert_ok(world, set_by_file(world, "{\"order\": \"none\"}", FILE_A));
    assert_int_equal(world->driver->audits(world), 3);
}

static void no_more_is_counted_than_is_told(void **state)
{
    struct world *world = *state;
    int64_t n = 0;

    for (int i = 0; i < 5; i++) {
        char id[8];
        snprintf(id, sizeof id, "m%d", i);
        put(world, id, SEMEL_ROW_WAITING, "k", SEMEL_NONE);
    }
    begin(world);
    for (int what = 0; what < SEMEL_AFFECTED_COUNT; what++) {
        assert_ok(world,
                  semel_store_affected(world->store, text("c"), (enum semel_affected)what, 9, 3, &n, &world->err));
        const bool some = what == SEMEL_AFFECTED_ORDERED || what == SEMEL_AFFECTED_SOURCED ||
                          what == SEMEL_AFFECTED_ANY;
        if (what != SEMEL_AFFECTED_KEYS) /* a driver may keep a key without a last version, or not */
            assert_int_equal(n, some ? 3 : 0);
        assert_ok(world,
                  semel_store_affected(world->store, text("other"), (enum semel_affected)what, 9, 3, &n, &world->err));
        assert_int_equal(n, 0);
    }
    commit(world);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

const struct CMUnitTest setting_tests[] = {
    TEST(order_is_kept_while_messages_of_keys_have_no_end),
    TEST(versions_are_kept_while_one_may_still_be_resolved),
    TEST(order_of_arrival_may_become_that_of_versions),
    TEST(first_version_any_needs_no_hint),
    TEST(what_is_said_of_another_setting_forgets_nothing),
    TEST(first_version_is_not_raised_over_messages_that_wait),
    TEST(keyed_effect_is_kept_while_something_is_to_be_repeated),
    TEST(other_effects_and_payloads_may_change),
    TEST(sources_count_or_do_not_while_there_are_records),
    TEST(ids_keep_their_time_where_records_were_purged),
    TEST(what_a_file_sets_is_changed_there),
    TEST(route_that_takes_over_a_consumer_keeps_its_guarantee),
    TEST(route_may_take_over_what_has_no_messages),
    TEST(every_change_has_its_audit_line),
    TEST(no_more_is_counted_than_is_told),
    {.name = NULL},
};
