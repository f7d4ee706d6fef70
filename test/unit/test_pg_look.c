/* SPDX-License-Identifier: MIT
 *
 * test_pg_look.c: by which way PostgreSQL comes to the rows that operators and the scheduler ask for. What the answers
 * are is tested on every store (test_look.c, test_select.c, conform).
 *
 * The server itself counts how often the transaction has read the inbox from end to end.
 */
#include "unit/look.h"

#define ROWS 20000

/* How often it was, within this transaction; what it counts from is not 0. */
static int64_t count_walks(struct engine *e)
{
    return sql_int(e, "SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_xact_user_tables WHERE schemaname = 'semel' "
                      "AND relname = 'record'");
}

static int64_t before;

static void begin_counting(struct engine *e)
{
    begin(e);
    before = count_walks(e);
}

static int64_t walks(struct engine *e)
{
    return count_walks(e) - before;
}

/* Nineteen of twenty are completed; of the others there is every kind. Half of them have a time. */
static void fill(struct engine *e)
{
    sql_run(
        e,
        "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, order_key, message_time, "
        "received_at, updated_at, processed_at, due_at, lease_token, lease_until, lease_owner, error_class, attempts) "
        "SELECT i, 'c' || i % 3, 's' || i % 4, i, s, 'k' || i % 50, CASE WHEN i % 2 = 0 THEN t END, t, t, "
        "CASE WHEN s = 'completed' THEN t END, CASE WHEN s = 'failed' THEN t END, "
        "CASE WHEN s = 'processing' THEN i END, CASE WHEN s = 'processing' THEN t END, "
        "CASE WHEN s = 'processing' THEN 'w' END, CASE WHEN s = 'dead' THEN 'permanent' END, 1 "
        "FROM generate_series(1, 20000) AS i CROSS JOIN LATERAL (SELECT to_timestamp(1600000000 + i) AS t, "
        "CASE WHEN i % 100 < 95 THEN 'completed' ELSE (ARRAY['processing', 'failed', 'waiting', 'dead', "
        "'quarantined'])[i % 100 - 94] END AS s) AS x");
    sql_run(e, "INSERT INTO semel.business_key SELECT consumer, 'b' || message_id, source, message_id, received_at, "
               "received_at FROM semel.inbox");
    sql_run(e, "INSERT INTO semel.attempt (consumer, source, message_id, attempt, at) "
               "SELECT consumer, source, message_id, 1, received_at FROM semel.inbox WHERE status = 'dead'");
    sql_run(e, "ANALYZE");
}

static void ask_filters(struct engine *e)
{
    static const struct semel_filter filters[] = {
        {.id = SEMEL_STR("7"), .source = SEMEL_STR("s3")},
        {.id = SEMEL_STR("7")},
        {.consumer = SEMEL_STR("c1"), .id = SEMEL_STR("7")},
        {.order_key = SEMEL_STR("k7"), .states = BIT(FAILED) | BIT(DEAD) | BIT(WAITING)},
        {.consumer = SEMEL_STR("c0"), .order_key = SEMEL_STR("k48"), .states = BIT(DEAD)},
        {.states = BIT(DEAD)},
        {.consumer = SEMEL_STR("c2"), .states = BIT(DEAD)},
        {.states = BIT(DEAD) | BIT(FAILED) | BIT(QUARANTINED), .error_class = SEMEL_STR("permanent")},
        {.states = UNENDED},
        {.consumer = SEMEL_STR("c2"), .states = UNENDED, .error_text = SEMEL_STR("x")},
        {.states = BIT(PROCESSING)},
    };
    for (size_t i = 0; i < COUNT(filters); i++) {
        struct semel_filter filter = filters[i];
        struct semel_row *rows = NULL;
        struct semel_group *groups = NULL;
        struct semel_selection s = {.command = SEMEL_STR("retry"), .who = SEMEL_STR("ops"), .reason = SEMEL_STR("x")};
        size_t n = 0;
        bool capped = false;
        filter.received_before_us = filter.received_after_us = SEMEL_NONE;
        list(e, filter, SEMEL_NONE, 20, &rows);
        assert_ok(e, semel_query_groups(e->store, &filter, 1000, 20, &e->arena, &groups, &n, &capped, &e->err));
        assert_ok(e, semel_query_select(e->store, &filter, ROWS, START_US, &s, &e->err));
        if (walks(e) > 0)
            fail_msg("filter %zu reads the whole table", i);
    }
}

static void ask_scans(struct engine *e)
{
    static const struct semel_scan scans[] = {
        {.kind = SEMEL_SCAN_DUE, .now_us = START_US, .max = 10},
        {.kind = SEMEL_SCAN_EXPIRED, .now_us = START_US, .max = 10},
        {.kind = SEMEL_SCAN_TOKEN, .token = 95, .max = 1},
        {.kind = SEMEL_SCAN_KEY, .order_key = SEMEL_STR("k48"), .max = 10},
        {.kind = SEMEL_SCAN_KEY, .order_key = SEMEL_STR("k48"), .by_version = true, .max = 10},
        {.kind = SEMEL_SCAN_ALL, .states = UNENDED, .max = 10},
    };
    for (size_t i = 0; i < COUNT(scans); i++) {
        struct semel_scan scan = scans[i];
        struct semel_row *rows = NULL;
        size_t n = 0;
        scan.consumer = SEMEL_STR("c2");
        assert_ok(e, semel_store_scan(e->store, &scan, &e->arena, &rows, &n, NULL, &e->err));
        assert_true(n > 0);
        if (walks(e) > 0)
            fail_msg("scan %zu reads the whole table", i);
    }
}

static void ask_the_rest(struct engine *e)
{
    struct semel_filter filter = ANY;
    struct semel_count *counts = NULL;
    struct semel_row *rows = NULL;
    struct semel_str *sources = NULL;
    struct semel_history h;
    size_t n = 0;
    int64_t parked = 0;
    assert_ok(e, semel_query_counts(e->store, (struct semel_str){0}, 100, 100, &e->arena, &counts, &n, &e->err));
    assert_int_equal(walks(e), 0);
    assert_ok(e, semel_store_parked(e->store, SEMEL_STR("c1"), 10, &parked, &e->err));
    assert_int_equal(parked, 10);
    assert_ok(e, semel_store_sources(e->store, SEMEL_STR("c1"), &e->arena, &sources, &n, &e->err));
    assert_int_equal(n, 4);
    filter.id = SEMEL_STR("98");
    assert_int_equal(list(e, filter, SEMEL_NONE, 2, &rows), 1);
    assert_ok(e, semel_query_history(e->store, &rows[0], false, 10, &e->arena, &h, &e->err));
    assert_int_equal(h.n_tries, 1);
    assert_int_equal(walks(e), 0);
    assert_ok(e, semel_store_watermark(e->store, SEMEL_STR("c1"), SEMEL_STR("s0"), START_US, &e->err));
    assert_ok(e, semel_store_purge(e->store, SEMEL_STR("c1"), SEMEL_STR("s0"), START_US, 100, 1000, &n, &e->err));
    assert_int_equal(n, 100);
    assert_ok(e, semel_store_purge_business(e->store, SEMEL_STR("c1"), START_US, 100, &n, &e->err));
    assert_int_equal(n, 100);
    assert_int_equal(walks(e), 0);
}

/* P44: whether a statement is planned for its values or for any. */
static void what_is_not_final_is_found_without_reading_the_table(void **state)
{
    struct engine *e = *state;
    fill(e);
    for (int generic = 0; generic < 2; generic++) {
        sql_run(e, generic ? "SET plan_cache_mode = force_generic_plan" : "SET plan_cache_mode = force_custom_plan");
        begin_counting(e);
        ask_filters(e);
        ask_scans(e);
        ask_the_rest(e);
        semel_store_rollback(e->store);
    }
}

/* B9: however many are dead, no more rows are read than are counted. */
static void what_is_too_large_is_counted_without_reading_what_is_not(void **state)
{
    static const char fetched[] = "SELECT coalesce(sum(idx_tup_fetch), 0) FROM pg_stat_xact_user_tables "
                                  "WHERE schemaname = 'semel' AND relname = 'record'";
    struct engine *e = *state;
    sql_run(e, "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, received_at, updated_at, "
               "error_class, attempts, payload) SELECT i, 'c', 's', i, 'dead', now(), now(), 'permanent', 1, "
               "convert_to(repeat('x', CASE WHEN i % 5000 = 0 THEN 60 ELSE 4 END), 'UTF8') "
               "FROM generate_series(1, 20000) AS i");
    sql_run(e, "ANALYZE");
    for (int generic = 0; generic < 2; generic++) {
        int64_t n = 0;
        sql_run(e, generic ? "SET plan_cache_mode = force_generic_plan" : "SET plan_cache_mode = force_custom_plan");
        begin_counting(e);
        int64_t read = sql_int(e, fetched);
        assert_ok(e, semel_store_large(e->store, SEMEL_STR("c"), 50, 100, &n, &e->err));
        assert_int_equal(n, 4);
        assert_int_equal(walks(e), 0);
        assert_in_range(sql_int(e, fetched) - read, 0, 10);
        semel_store_rollback(e->store);
    }
}

/* Without a status the list has no index: one walk is enough, and a heap of damaged rows takes a few more. */
static void list_of_everything_takes_few_walks(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    fill(e);
    begin_counting(e);
    assert_int_equal(list(e, filter, SEMEL_NONE, 50, &rows), 50);
    assert_int_equal(walks(e), 1);
    assert_int_equal(rows[49].arrival, 50);
    semel_store_rollback(e->store);
    sql_run(e, "UPDATE semel.inbox SET error_class = 'strange' WHERE arrival BETWEEN 10 AND 5000");
    begin_counting(e);
    assert_ok(e, semel_query_list(e->store, &filter, SEMEL_NONE, 50, false, &e->arena, &rows, &n, &damaged, &e->err));
    assert_int_equal(n, 50);
    assert_int_equal(damaged, 4991);
    assert_int_equal(rows[8].arrival, 9);
    assert_int_equal(rows[9].arrival, 5001);
    assert_true(walks(e) <= 8);
    semel_store_rollback(e->store);
}

/* No page costs a look at all rows. Names do, 10,000 of them at a time, while the server does not know how rows lie. */
static void walk_over_everything_reads_each_row_a_few_times(void **state)
{
    static const char read[] = "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables "
                               "WHERE schemaname = 'semel' AND relname = 'record'";
    struct engine *e = *state;
    const int64_t rows_n = INT64_C(200000);
    for (int analysed = 0; analysed < 2; analysed++) {
        struct semel_filter filter = ANY;
        struct semel_walk walk;
        struct semel_row *rows = NULL;
        size_t n = 0, all = 0, damaged = 0;
        int64_t last = 0;
        if (analysed == 0)
            sql_run(e, "ALTER TABLE semel.record SET (autovacuum_enabled = off); INSERT INTO semel.stream VALUES "
                       "(1, 'c0', 's'), (2, 'c1', 's'); INSERT INTO semel.record (arrival, received_at, stream, key) "
                       "SELECT i / 7 * 16384 + i % 7, now(), 1 + i % 2, convert_to('m' || i, 'UTF8') "
                       "FROM generate_series(1, 200000) AS i");
        else
            sql_run(e, "VACUUM ANALYZE semel.record");
        begin(e);
        const int64_t so_far = sql_int(e, read);
        filter.consumer = SEMEL_STR("c1");
        semel_walk_init(&walk, &filter, 10000);
        for (; !semel_walk_ended(&walk); all += n) {
            semel__arena_reset(&e->arena);
            assert_ok(e, semel_query_walk(e->store, &walk, 1000, &e->arena, &rows, &n, &damaged, &e->err));
            for (size_t i = 0; i < n; i++) {
                assert_true(rows[i].arrival > last);
                last = rows[i].arrival;
            }
        }
        semel_walk_done(&walk);
        assert_int_equal(all, rows_n / 2);
        assert_in_range((sql_int(e, read) - so_far) / rows_n, 1, analysed ? 5 : 14);
        semel_store_rollback(e->store);
    }
}

static void more_consumers_than_can_be_gone_through_are_told(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0;
    sql_run(e, "INSERT INTO semel.stream (consumer, source) SELECT 'c' || i, 's' FROM generate_series(1, 10001) AS i");
    sql_run(e, "INSERT INTO semel.record (arrival, received_at, stream, key, status, open_for) "
               "SELECT s.stream, to_timestamp(s.stream), s.stream, 'm', 'dead', s.consumer FROM semel.stream AS s");
    filter.states = BIT(DEAD);
    assert_int_equal(semel_query_list(e->store, &filter, SEMEL_NONE, 5, false, &e->arena, &rows, &n, NULL, &e->err),
                     SEMEL_INVALID);
    assert_says(e, "there are more than 10000 consumers: name the one that is meant");
    filter.consumer = SEMEL_STR("c77");
    assert_int_equal(list(e, filter, SEMEL_NONE, 5, &rows), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_POSTGRES(what_is_not_final_is_found_without_reading_the_table),
        ON_POSTGRES(what_is_too_large_is_counted_without_reading_what_is_not),
        ON_POSTGRES(list_of_everything_takes_few_walks),
        ON_POSTGRES(walk_over_everything_reads_each_row_a_few_times),
        ON_POSTGRES(more_consumers_than_can_be_gone_through_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
