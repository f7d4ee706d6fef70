/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_damage.c: files and rows that were damaged by other hands. Each is told with what and where; none
 * crashes the driver.
 */
#include <stdio.h>
#include <stdlib.h>

#include "fault/sqlite_world.h"

/* ---- files and rows that are not ours ------------------------------------------------------------ */

static void file_that_is_no_database_is_refused_and_left_alone(void **state)
{
    struct world *w = *state;
    static const char text[] =
        "Dear diary, this is a text that is long enough to be taken for a header of a hundred bytes, "
        "but it is none, and it must stay as it is.\n";
    char again[sizeof(text)] = "";
    FILE *file = fopen(w->path, "w");
    fputs(text, file);
    fclose(file);
    assert_int_equal(world_open(w), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_says(w, "not a SQLite database");
    file = fopen(w->path, "r");
    assert_non_null(fgets(again, sizeof(again), file));
    fclose(file);
    assert_string_equal(again, text);
}

static void table_that_was_dropped_stops_the_route(void **state)
{
    struct world *w = *state;
    world_sql(w, "DROP TABLE semel_inbox");
    assert_int_equal(process_one(w, "a"), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_says(w, "no such table");
}

/* No STRICT, no NOT NULL and no CHECK any more, as after an edit by hand. */
#define SOFTEN                                                                                                        \
    "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(replace(replace(replace(replace(sql, "       \
    "') STRICT, WITHOUT', ') WITHOUT'), ') STRICT', ')'), 'TEXT NOT NULL', 'TEXT'), 'INTEGER NOT NULL', 'INTEGER'), " \
    "'BLOB NOT NULL', 'BLOB') WHERE type = 'table' AND name LIKE 'semel_%'; PRAGMA writable_schema = RESET; "
#define UNCHECKED "PRAGMA ignore_check_constraints = ON; UPDATE semel_inbox SET "

static void look_at_damage(struct world *w, const char *column)
{
    struct semel_admit again = item_of("a");
    struct semel_fetched fetched = {.source = SEMEL_STR("orders"), .id = SEMEL_STR("a")};
    struct semel_fetch_batch fetch = {.consumer = CONSUMER, .items = &fetched, .n_items = 1};
    struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .consumer = CONSUMER, .with_payload = true, .max = 1};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    int64_t now_us = 0;
    assert_int_equal(semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_OK);
    struct semel_admit_batch batch = {.consumer = CONSUMER, .now_us = NOW, .items = &again, .n_items = 1};
    assert_int_equal(semel_store_admit(w->store, &batch, &w->arena, &w->err), SEMEL_OK);
    assert_true(!again.inserted && again.damaged);
    if (strstr(again.damage.text, "semel_inbox") == NULL || strstr(again.damage.text, column) == NULL ||
        strstr(again.damage.text, "\"a\"") == NULL)
        fail_msg("%s: \"%s\"", column, again.damage.text);
    assert_int_equal(semel_store_fetch(w->store, &fetch, &w->arena, &w->err), SEMEL_OK);
    assert_true(fetched.present && fetched.damaged);
    semel_store_rollback(w->store);
    assert_int_equal(semel_store_scan(w->store, &all, &w->arena, &rows, &n, &damaged, &w->err), SEMEL_OK);
    assert_true(n == 1 && damaged == 1); /* the good row behind the damaged one is still found */
    assert_true(semel__str_eqz(rows[0].id, "b"));
}

/* The column that must be named, and what was done to it. */
static const char *const row_damage[][2] = {
    {"status", "status = 'nonsense'"},
    {"status", "status = NULL"},
    {"status", "status = x'00'"},
    {"status", "status = 'absent'"},
    {"attempts", "attempts = -1"},
    {"attempts", "attempts = 'many'"},
    {"attempts", "attempts = NULL"},
    {"attempts_before", "attempts_before = 7"},
    {"retries", "retries = 3000000000"},
    {"alone", "alone = 2"},
    {"fingerprint", "fingerprint = x'00'"},
    {"fingerprint", "fingerprint = 'rtext'"},
    {"fingerprint", "fingerprint = zeroblob(100)"},
    {"order_key", "order_key = x'6b'"},
    {"order_key", "order_key = CAST(zeroblob(256) AS TEXT)"},
    {"type", "type = CAST(x'ff' AS TEXT)"},
    {"version", "version = -7"},
    {"version", "version = 1.5"},
    {"version", "version = -9223372036854775808"},
    {"message_time", "message_time = 'now'"},
    {"received_at", "received_at = NULL"},
    {"updated_at", "updated_at = x'01'"},
    {"processed_at", "processed_at = 1"},
    {"due_at", "due_at = 'soon'"},
    {"lease_owner", "lease_owner = 'w'"},
    {"lease_until", "lease_until = 5"},
    {"lease_token", "lease_token = 5"},
    {"lease_token", "status = 'processing', due_at = NULL"},
    {"error_class", "error_class = 'bad luck'"},
    {"error_text", "error_text = CAST(zeroblob(1001) AS TEXT)"},
    {"outcome", "outcome = CAST(zeroblob(65537) AS TEXT)"},
    {"position", "position = x'01'"},
    {"headers", "headers = x'7b7d'"},
    {"payload", "payload = 'text'"},
    {"payload", "payload = 5.5"},
    {"payload", "payload = zeroblob(67108865)"},
    {"traceparent", "traceparent = CAST(zeroblob(256) AS TEXT)"},
};

static void damaged_row_is_told_with_its_key_and_column(void **state)
{
    struct world *w = *state;
    char text[512];
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
    assert_int_equal(process_one(w, "b"), SEMEL_OK);
    world_sql(w, SOFTEN);
    world_sql(w, "CREATE TABLE good AS SELECT * FROM semel_inbox WHERE message_id = 'a'");
    for (size_t i = 0; i < COUNT(row_damage); i++) {
        snprintf(text, sizeof(text), UNCHECKED "%s WHERE message_id = 'a'", row_damage[i][1]);
        world_sql(w, text);
        look_at_damage(w, row_damage[i][0]);
        semel__arena_reset(&w->arena);
        world_sql(w, "PRAGMA ignore_check_constraints = ON; DELETE FROM semel_inbox WHERE message_id = 'a'; "
                     "INSERT INTO semel_inbox SELECT * FROM good");
    }
    world_sql(w, UNCHECKED "source = x'01' WHERE message_id = 'a'"); /* then the key finds nothing, but a scan does */
    struct semel_scan due = {.kind = SEMEL_SCAN_DUE, .consumer = CONSUMER, .now_us = NOW, .max = 1};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    assert_int_equal(semel_store_scan(w->store, &due, &w->arena, &rows, &n, &damaged, &w->err), SEMEL_OK);
    assert_true(n == 1 && damaged == 1);
}

static void damaged_counter_watermark_and_key_stop_the_route(void **state)
{
    struct world *w = *state;
    static const char *const damage[] = {
        "UPDATE semel_counter SET value = 9223372036854775807 WHERE name = 'arrival'",
        "UPDATE semel_counter SET value = 1 WHERE name = 'arrival'", /* behind: arrivals would be given out twice */
        "UPDATE semel_counter SET value = 'one' WHERE name = 'arrival'",
        "DELETE FROM semel_counter",
        "INSERT INTO semel_watermark VALUES ('billing', 'orders', 'always', 1)",
        "UPDATE semel_business_key SET message_id = x'01'",
        "UPDATE semel_schema SET version = 'x' WHERE version = 1",
    };
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
    world_sql(w, SOFTEN
              "CREATE TABLE c AS SELECT * FROM semel_counter; CREATE TABLE b AS SELECT * FROM semel_business_key;");
    for (size_t i = 0; i + 1 < COUNT(damage); i++) {
        char text[256];
        snprintf(text, sizeof(text), "PRAGMA ignore_check_constraints = ON; %s", damage[i]);
        world_sql(w, text);
        assert_int_equal(process_one(w, "new"), SEMEL_INVALID);
        assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
        world_sql(w,
                  "DELETE FROM semel_counter; INSERT INTO semel_counter SELECT * FROM c; DELETE FROM semel_watermark; "
                  "DELETE FROM semel_business_key; INSERT INTO semel_business_key SELECT * FROM b");
    }
    assert_int_equal(process_one(w, "new"), SEMEL_OK);
}

/* Random bytes anywhere in the file: every call must come back with a status. */
static void file_with_random_damage_never_crashes_the_driver(void **state)
{
    struct world *w = *state;
    char id[32];
    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof(id), "row-%d", i);
        assert_int_equal(process_one(w, id), SEMEL_OK);
    }
    semel_store_close(w->store);
    w->store = NULL;
    static unsigned char good[1 << 20], bad[1 << 20];
    FILE *file = fopen(w->path, "r");
    size_t size = fread(good, 1, sizeof(good), file);
    fclose(file);
    struct semel_random rng;
    semel__random_seed(&rng, 20231115);
    for (unsigned round = 0; round < 150; round++) {
        memcpy(bad, good, size);
        for (unsigned i = 0; i < 1 + round % 40; i++)
            bad[semel__random_below(&rng, size)] = (unsigned char)semel__random_next(&rng);
        file = fopen(w->path, "w");
        assert_int_equal(fwrite(bad, 1, size, file), size);
        fclose(file);
        if (world_open(w) == SEMEL_OK) {
            struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .consumer = CONSUMER, .with_payload = true, .max = 100};
            struct semel_row *rows = NULL;
            size_t n = 0, damaged = 0;
            (void)semel_store_scan(w->store, &all, &w->arena, &rows, &n, &damaged, &w->err);
            (void)process_one(w, "row-3");
            (void)process_one(w, "new");
            semel__arena_reset(&w->arena);
        }
        semel_store_close(w->store);
        w->store = NULL;
    }
}

int main(void)
{
    install();
    const struct CMUnitTest tests[] = {
        BARE(file_that_is_no_database_is_refused_and_left_alone), ON(table_that_was_dropped_stops_the_route),
        ON(damaged_row_is_told_with_its_key_and_column),          ON(damaged_counter_watermark_and_key_stop_the_route),
        ON(file_with_random_damage_never_crashes_the_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
