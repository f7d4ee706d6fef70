/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_consumer.c: what is special about consumers on SQLite: damage in their table, and the cost of a listing.
 */
#include "unit/unit.h"

#include <sqlite3.h>

#include "base/error.h"
#include "core/consumer.h"
#include "store/records.h"
#include "store/sqlite_store.h"

struct place {
    struct semel_store *store;
    struct semel_arena arena;
    struct semel_error err;
};

static int open_place(void **state)
{
    static const struct semel_store_ops *const linked[] = {&semel__store_sqlite, NULL};
    static const struct semel_store_options options = {.create = true, .migrate = true};
    static struct place place;

    place = (struct place){0};
    semel__arena_init(&place.arena, 1 << 20);
    *state = &place;
    return semel_store_open(&place.store, linked, "sqlite::memory:", &options, &place.err) == SEMEL_OK ? 0 : -1;
}

static int close_place(void **state)
{
    struct place *place = *state;

    semel_store_close(place->store);
    semel__arena_done(&place->arena);
    return 0;
}

/* With other hands: nothing is checked. */
static void sql(struct place *place, const char *text)
{
    sqlite3 *db = semel_store_native(place->store);

    assert_int_equal(sqlite3_exec(db, "PRAGMA ignore_check_constraints = ON", NULL, NULL, NULL), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
}

static void assert_damaged(struct place *place, const char *consumer, const char *word)
{
    struct semel_policy policy;

    assert_int_equal(semel__consumer_load(place->store, semel__str(consumer), &place->arena, &policy, NULL,
                                          &place->err),
                     SEMEL_INVALID);
    assert_int_equal(place->err.cls, SEMEL_CLASS_BROKEN);
    if (strstr(place->err.text, word) == NULL || strstr(place->err.text, consumer) == NULL)
        fail_msg("\"%s\" does not say %s and %s", place->err.text, consumer, word);
}

static void damaged_settings_are_refused_and_say_whose_they_are(void **state)
{
    struct place *place = *state;

    sql(place, "INSERT INTO semel_consumer (consumer, settings, updated_at) VALUES ('long', printf('{%5000s}', ''), "
               "1), ('broken', '{\"lease\":', 1), "
               "('wrong', '{\"retry_max\":-1}', 1), ('binary', CAST(x'7b22ff223a317d' AS TEXT), 1), "
               "('nul', CAST(x'7b7d00' AS TEXT), 1)");
    assert_damaged(place, "long", "at most 4096 bytes");
    assert_damaged(place, "broken", "JSON");
    assert_damaged(place, "wrong", "retry_max is -1");
    assert_damaged(place, "binary", "not UTF-8");
    assert_damaged(place, "nul", "byte 2");
}

static const char *names(struct place *place)
{
    static char line[1000];
    struct semel_str *list = NULL;
    size_t n = 0, used = 0;

    assert_int_equal(semel_store_consumers(place->store, (struct semel_str){0}, 100, &place->arena, &list, &n,
                                           &place->err),
                     SEMEL_OK);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%.*s ", (int)list[i].n, list[i].p);
    line[used] = '\0';
    return line;
}

static void names_that_are_none_are_left_out_and_hide_nobody(void **state)
{
    struct place *place = *state;

    sql(place, "INSERT INTO semel_consumer (consumer, settings, updated_at) VALUES ('', '{}', 1), ('a', '{}', 1), "
               "(printf('b%300s', ''), '{}', 1), "
               "(CAST(x'62ff' AS TEXT), '{}', 1), (CAST(x'620063' AS TEXT), '{}', 1), ('c', '{}', 1)");
    assert_string_equal(names(place), "a c ");
}

/* P71 */
static void too_much_for_the_table_is_refused_by_it_and_not_quoted(void **state)
{
    static char settings[SEMEL_SETTINGS_MAX + 1];
    struct place *place = *state;
    int64_t now_us;

    memset(settings, 'x', sizeof settings);
    assert_int_equal(semel_store_begin(place->store, SEMEL_TX_OWN, &now_us, &place->err), SEMEL_OK);
    assert_int_equal(semel_store_consumer_put(place->store, SEMEL_STR("c"),
                                              (struct semel_str){settings, sizeof settings}, 1, &place->err),
                     SEMEL_INVALID);
    assert_int_equal(place->err.cls, SEMEL_CLASS_BROKEN);
    assert_null(strstr(place->err.text, "xxx"));
    semel_store_rollback(place->store);
}

static int listing_steps(struct place *place)
{
    sqlite3 *db = semel_store_native(place->store);
    sqlite3_stmt *stmt = NULL;
    int rows = 0, steps;

    assert_int_equal(sqlite3_prepare_v2(db, semel__sqlite_statements[SQL_consumer_list].sql.text, -1, &stmt, NULL),
                     SQLITE_OK);
    sqlite3_bind_text(stmt, 1, "", 0, SQLITE_STATIC);
    sqlite3_bind_int(stmt, 2, 100);
    while (sqlite3_step(stmt) == SQLITE_ROW)
        rows++;
    assert_int_equal(rows, 3);
    steps = sqlite3_stmt_status(stmt, SQLITE_STMTSTATUS_VM_STEP, 0);
    sqlite3_finalize(stmt);
    return steps;
}

#define ROWS(from, to)                                                                                                \
    "WITH RECURSIVE n (i) AS (SELECT " #from " UNION ALL SELECT i + 1 FROM n WHERE i < " #to ") "                     \
    "INSERT INTO semel_inbox (arrival, consumer, source, message_id, status, received_at, updated_at, processed_at) " \
    "SELECT i, CASE i % 2 WHEN 0 THEN 'a' ELSE 'b' END, 's', i, 'completed', i, i, i FROM n"

static void listing_consumers_costs_the_same_however_many_rows_they_have(void **state)
{
    struct place *place = *state;

    sql(place, "INSERT INTO semel_consumer (consumer, settings, updated_at) VALUES ('c', '{}', 1)");
    sql(place, ROWS(1, 10));
    const int few = listing_steps(place);
    sql(place, ROWS(11, 3000));
    assert_int_equal(listing_steps(place), few);
    sql(place, "ANALYZE");
    assert_in_range(listing_steps(place), 1, 2 * few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(damaged_settings_are_refused_and_say_whose_they_are, open_place, close_place),
        cmocka_unit_test_setup_teardown(names_that_are_none_are_left_out_and_hide_nobody, open_place, close_place),
        cmocka_unit_test_setup_teardown(too_much_for_the_table_is_refused_by_it_and_not_quoted, open_place,
                                        close_place),
        cmocka_unit_test_setup_teardown(listing_consumers_costs_the_same_however_many_rows_they_have, open_place,
                                        close_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
