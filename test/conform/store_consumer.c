/* SPDX-License-Identifier: MIT
 *
 * store_consumer.c: the store contract: the settings of consumers, and which consumers there are.
 */
#include "conform/contract.h"

#define SETTINGS_MAX 4096

static void put_settings(struct world *world, const char *consumer, struct semel_str settings)
{
    assert_ok(world, semel_store_consumer_put(world->store, text(consumer), settings, T0, &world->err));
}

/* In a transaction of its own. */
static void set_consumer(struct world *world, const char *consumer, const char *settings)
{
    begin(world);
    put_settings(world, consumer, text(settings));
    commit(world);
}

/* As the handle sees them; not given: there are none. */
static struct semel_str get_settings(struct world *world, struct semel_store *store, const char *consumer)
{
    struct semel_str settings = SEMEL_STR("?");

    assert_ok(world, semel_store_consumer_get(store, text(consumer), &world->arena, &settings, &world->err));
    return settings;
}

static void assert_none(struct semel_str settings)
{
    assert_false(semel__str_given(settings));
    assert_int_equal(settings.n, 0);
}

/* In the open transaction. */
static void admit_for(struct world *world, const char *consumer, const char *id, enum semel_row_status state)
{
    struct semel_admit item = item_of(id, state, NULL, SEMEL_NONE);
    struct semel_admit_batch batch = {.consumer = text(consumer), .now_us = T0, .items = &item, .n_items = 1};

    assert_ok(world, semel_store_admit(world->store, &batch, &world->arena, &world->err));
    assert_true(item.inserted);
}

static void put_row(struct world *world, const char *consumer, const char *id)
{
    begin(world);
    admit_for(world, consumer, id, SEMEL_ROW_COMPLETED);
    commit(world);
}

/* The names that the handle sees, each followed by a blank. */
static const char *names_of(struct world *world, struct semel_store *store, const char *after, size_t max)
{
    struct semel_str *names = NULL;
    char *line = semel__arena_alloc(&world->arena, 4096, 1);
    size_t n = 4711, used = 0;

    assert_non_null(line);
    assert_ok(world, semel_store_consumers(store, text(after), max, &world->arena, &names, &n, &world->err));
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++) {
        assert_true(used + names[i].n + 2 < 4096);
        memcpy(line + used, names[i].p, names[i].n);
        used += names[i].n;
        line[used++] = ' ';
    }
    line[used] = '\0';
    return line;
}

static const char *names(struct world *world)
{
    return names_of(world, world->store, NULL, 100);
}

/* A store may keep them as JSON: the texts are spelled as PostgreSQL's jsonb spells them, and come back so. */

/* ---- settings ----------------------------------------------------------------------------------------- */

static void consumer_without_settings_has_none(void **state)
{
    struct world *world = *state;

    assert_none(get_settings(world, world->store, "c"));
    set_consumer(world, "c", "{}");
    assert_none(get_settings(world, world->store, "C"));
    assert_none(get_settings(world, world->store, "c "));
    assert_none(get_settings(world, world->store, ""));
    put_row(world, "rows only", "a");
    assert_none(get_settings(world, world->store, "rows only"));
}

static void settings_are_kept_as_they_are_and_replaced(void **state)
{
    struct world *world = *state;

    set_consumer(world, "c", "{\"retry_max\": 5}");
    set_consumer(world, "it's \"c\"; --", "{}");
    assert_str(get_settings(world, world->store, "c"), "{\"retry_max\": 5}");
    set_consumer(world, "c", "{\"x\": \"\xc3\xa9\", \"lease\": \"1m\"}");
    assert_str(get_settings(world, world->store, "c"), "{\"x\": \"\xc3\xa9\", \"lease\": \"1m\"}");
    assert_str(get_settings(world, world->store, "it's \"c\"; --"), "{}");
    set_consumer(world, "c", "{}");
    assert_str(get_settings(world, world->store, "c"), "{}");
}

static void settings_of_the_full_length_are_kept(void **state)
{
    static char settings[SETTINGS_MAX];
    struct world *world = *state;
    struct semel_str got;

    memset(settings, ' ', sizeof settings);
    memcpy(settings, "{\"x\": \"", 7);
    memcpy(settings + sizeof settings - 2, "\"}", 2);
    begin(world);
    put_settings(world, "c", (struct semel_str){settings, sizeof settings});
    commit(world);
    got = get_settings(world, world->store, "c");
    assert_int_equal(got.n, sizeof settings);
    assert_memory_equal(got.p, settings, sizeof settings);
}

static void settings_are_a_part_of_the_transaction(void **state)
{
    struct world *world = *state;

    begin(world);
    put_settings(world, "c", text("{\"a\": 1}"));
    put_settings(world, "c", text("{\"a\": 2}"));
    assert_str(get_settings(world, world->store, "c"), "{\"a\": 2}");
    assert_string_equal(names(world), "c ");
    semel_store_rollback(world->store);
    assert_none(get_settings(world, world->store, "c"));
    assert_string_equal(names(world), "");

    set_consumer(world, "c", "{\"a\": 3}");
    begin(world);
    put_settings(world, "c", text("{\"a\": 4}"));
    semel_store_rollback(world->store);
    assert_str(get_settings(world, world->store, "c"), "{\"a\": 3}");
}

static void settings_after_a_savepoint_are_undone_alone(void **state)
{
    struct world *world = *state;

    begin(world);
    put_settings(world, "c", text("{\"a\": 1}"));
    assert_ok(world, semel_store_savepoint(world->store, &world->err));
    put_settings(world, "c", text("{\"a\": 2}"));
    put_settings(world, "d", text("{}"));
    admit_for(world, "e", "a", SEMEL_ROW_FAILED);
    assert_string_equal(names(world), "c d e ");
    assert_ok(world, semel_store_rollback_to(world->store, &world->err));
    assert_str(get_settings(world, world->store, "c"), "{\"a\": 1}");
    assert_string_equal(names(world), "c ");
    commit(world);
    assert_str(get_settings(world, world->store, "c"), "{\"a\": 1}");
    assert_none(get_settings(world, world->store, "d"));
    assert_string_equal(names(world), "c ");
}

static void settings_that_are_not_committed_are_seen_by_nobody_else(void **state)
{
    struct world *world = *state;

    if (world->other == NULL)
        skip();
    set_consumer(world, "old", "{\"a\": 1}");
    begin(world);
    put_settings(world, "old", text("{\"a\": 2}"));
    put_settings(world, "old", text("{\"a\": 3}"));
    put_settings(world, "new", text("{}"));
    assert_str(get_settings(world, world->other, "old"), "{\"a\": 1}");
    assert_none(get_settings(world, world->other, "new"));
    assert_string_equal(names_of(world, world->other, NULL, 9), "old ");
    assert_string_equal(names(world), "new old ");
    commit(world);
    assert_str(get_settings(world, world->other, "old"), "{\"a\": 3}");
    assert_str(get_settings(world, world->other, "new"), "{}");
    assert_string_equal(names_of(world, world->other, NULL, 9), "new old ");
}

/* ---- names -------------------------------------------------------------------------------------------- */

static void consumers_with_rows_or_settings_are_listed_once_in_byte_order(void **state)
{
    struct world *world = *state;

    assert_string_equal(names(world), "");
    put_row(world, "rows", "a");
    put_row(world, "rows", "b");
    set_consumer(world, "settings", "{}");
    put_row(world, "both", "a");
    set_consumer(world, "both", "{}");
    put_row(world, "\xc3\xa9", "a"); /* by bytes: after every letter */
    set_consumer(world, "Z", "{}");
    put_row(world, "bothx", "a");
    assert_string_equal(names(world), "Z both bothx rows settings \xc3\xa9 ");
}

static void consumers_are_listed_in_pages(void **state)
{
    struct world *world = *state;

    put_row(world, "a", "1");
    set_consumer(world, "b", "{}");
    put_row(world, "c", "1");
    set_consumer(world, "d", "{}");
    assert_string_equal(names_of(world, world->store, NULL, 1), "a ");
    assert_string_equal(names_of(world, world->store, NULL, 3), "a b c ");
    assert_string_equal(names_of(world, world->store, "", 3), "a b c ");
    assert_string_equal(names_of(world, world->store, "c", 3), "d ");
    assert_string_equal(names_of(world, world->store, "bb", 1), "c "); /* no matter whether there is such a one */
    assert_string_equal(names_of(world, world->store, "d", 3), "");
    assert_string_equal(names_of(world, world->store, "zzz", 3), "");
}

static void purged_consumer_without_settings_is_listed_no_more(void **state)
{
    struct world *world = *state;
    size_t deleted = 0;

    put_row(world, "c", "a");
    put_row(world, "d", "a");
    set_consumer(world, "d", "{}");
    begin(world);
    for (int i = 0; i < 2; i++) {
        assert_ok(world, semel_store_purge(world->store, text(i == 0 ? "c" : "d"), text("s"), T0 + 99 * SECOND, 9, 90,
                                           &deleted, &world->err));
        assert_int_equal(deleted, 1);
    }
    assert_string_equal(names(world), "d ");
    if (world->other != NULL)
        assert_string_equal(names_of(world, world->other, NULL, 9), "c d ");
    commit(world);
    assert_string_equal(names(world), "d ");
}

static void rows_that_are_not_committed_list_nobody(void **state)
{
    struct world *world = *state;

    if (world->other == NULL)
        skip();
    put(world, "a", SEMEL_ROW_FAILED, NULL, SEMEL_NONE); /* of consumer "c" */
    begin(world);
    struct semel_change change = change_of("a", SEMEL_ROW_FAILED, SEMEL_ROW_COMPLETED);
    settle(world, &change, 1);
    admit_for(world, "new", "a", SEMEL_ROW_COMPLETED);
    assert_string_equal(names(world), "c new ");
    assert_string_equal(names_of(world, world->other, NULL, 9), "c ");
    semel_store_rollback(world->store);
    assert_string_equal(names(world), "c ");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

const struct CMUnitTest consumer_tests[] = {
    TEST(consumer_without_settings_has_none),
    TEST(settings_are_kept_as_they_are_and_replaced),
    TEST(settings_of_the_full_length_are_kept),
    TEST(settings_are_a_part_of_the_transaction),
    TEST(settings_after_a_savepoint_are_undone_alone),
    TEST(settings_that_are_not_committed_are_seen_by_nobody_else),
    TEST(consumers_with_rows_or_settings_are_listed_once_in_byte_order),
    TEST(consumers_are_listed_in_pages),
    TEST(purged_consumer_without_settings_is_listed_no_more),
    TEST(rows_that_are_not_committed_list_nobody),
    {.name = NULL},
};
