/* SPDX-License-Identifier: MIT
 *
 * test_look.c: what operators ask of the inbox as a whole: counts, lists and groups, and by which index they are
 * answered. test_select.c has selections and the history of a message.
 */
#include "unit/look.h"

#include <sqlite3.h>

#include "store/records.h"
#include "store/sqlite_store.h"

#define HOSTILE "it's \"c\"\n'); DROP TABLE semel_inbox; --"

/* ---- counts ------------------------------------------------------------------------------------------- */

static size_t counts(struct engine *e, struct semel_str consumer, int64_t cap, struct semel_count **ret)
{
    size_t n = 0;
    semel__arena_reset(&e->arena);
    assert_ok(e, semel_query_counts(e->store, consumer, cap, cap, &e->arena, ret, &n, &e->err));
    return n;
}

/* The one of that consumer and state; NULL: there is none. */
static const struct semel_count *count_of(const struct semel_count *all, size_t n, const char *consumer,
                                          enum semel_row_status state)
{
    const struct semel_count *found = NULL;
    for (size_t i = 0; i < n; i++)
        if (semel__str_eqz(all[i].consumer, consumer) && all[i].state == state) {
            assert_null(found);
            found = &all[i];
        }
    return found;
}

static void assert_count(const struct semel_count *c, int64_t n, bool capped, int64_t oldest_us, int64_t next_us)
{
    assert_non_null(c);
    assert_int_equal(c->n, n);
    assert_int_equal(c->capped, capped);
    assert_int_equal(c->oldest_us, oldest_us);
    assert_int_equal(c->next_us, next_us);
}

/* P44: who looks every few seconds does not read what is final. */
static void counts_leave_out_what_is_final_when_they_are_told_to(void **state)
{
    struct engine *e = *state;
    struct semel_count *all = NULL;
    size_t n = 0;
    process_one(e, msg("c", "ok"));
    process_one(e, msg("d", "bad"));
    assert_ok(e, semel_query_counts(e->store, (struct semel_str){0}, 10, 0, &e->arena, &all, &n, &e->err));
    assert_int_equal(n, 1);
    assert_int_equal(all[0].state, SEMEL_ROW_DEAD);
}

static void counts_are_those_of_what_the_engine_left(void **state)
{
    struct engine *e = *state;
    struct semel_count *all = NULL;
    struct semel__msg claimed = msg("p", "ok");
    struct semel_lease lease;
    size_t n = 0;
    process_one(e, msg("c1", "ok"));
    process_one(e, msg("c2", "ok"));
    process_one(e, msg("r", "reject"));
    process_one(e, msg("d", "bad"));
    e->now_us += SECOND_US;
    process_one(e, msg("f", "fail"));
    assert_ok(e, semel__lease_claim(&e->inbox, &claimed, 1, true, &e->keep, &lease, &n, e->settled, &e->err));
    int64_t due_us = row_of(e, "f").progress.due_us, until_us = row_of(e, "p").progress.lease_until_us;

    n = counts(e, (struct semel_str){0}, 100, &all);
    assert_int_equal(n, 5);
    assert_count(count_of(all, n, "c", SEMEL_ROW_COMPLETED), 2, false, SEMEL_NONE, SEMEL_NONE);
    assert_count(count_of(all, n, "c", SEMEL_ROW_REJECTED), 1, false, SEMEL_NONE, SEMEL_NONE);
    assert_count(count_of(all, n, "c", SEMEL_ROW_DEAD), 1, false, START_US, SEMEL_NONE);
    assert_count(count_of(all, n, "c", SEMEL_ROW_FAILED), 1, false, START_US + SECOND_US, due_us);
    assert_count(count_of(all, n, "c", SEMEL_ROW_PROCESSING), 1, false, START_US + SECOND_US, until_us);
    assert_int_equal(counts(e, SEMEL_STR("nobody"), 100, &all), 0);
}

/* P44: each count stops at its cap and says so; what is oldest and what is due next are right all the same. */
static void counts_stop_at_the_cap_and_say_so(void **state)
{
    struct engine *e = *state;
    struct semel_count *all = NULL;
    for (int i = 0; i < 7; i++) {
        char id[16];
        snprintf(id, sizeof id, "m%d", i);
        put(e, FAKE("c", "s", id, SEMEL_ROW_FAILED, .received_us = 10 + i, .due_us = 90 - i));
        put(e, FAKE("c", "t", id, SEMEL_ROW_COMPLETED));
        put(e, FAKE("c", "u", id, SEMEL_ROW_PROCESSING, .received_us = 20));
    }
    put(e, FAKE("d", "s", "m", SEMEL_ROW_STALE));
    put(e, FAKE("d", "s", "w", SEMEL_ROW_WAITING, .received_us = 5));

    size_t n = counts(e, (struct semel_str){0}, 3, &all);
    assert_int_equal(n, 5);
    assert_count(count_of(all, n, "c", SEMEL_ROW_FAILED), 3, true, START_US + 10, START_US + 84);
    assert_count(count_of(all, n, "c", SEMEL_ROW_COMPLETED), 3, true, SEMEL_NONE, SEMEL_NONE);
    assert_count(count_of(all, n, "c", SEMEL_ROW_PROCESSING), 3, true, START_US + 20, START_US + 3);
    assert_count(count_of(all, n, "d", SEMEL_ROW_WAITING), 1, false, START_US + 5, SEMEL_NONE);
    assert_count(count_of(all, n, "d", SEMEL_ROW_STALE), 1, false, SEMEL_NONE, SEMEL_NONE);
    n = counts(e, SEMEL_STR("c"), 8, &all);
    assert_int_equal(n, 3);
    assert_count(count_of(all, n, "c", SEMEL_ROW_FAILED), 7, false, START_US + 10, START_US + 84);
    assert_count(count_of(all, n, "c", SEMEL_ROW_COMPLETED), 7, false, SEMEL_NONE, SEMEL_NONE);
}

static void outbox_is_counted_to_the_cap_with_its_oldest(void **state)
{
    struct engine *e = *state;
    int64_t n = -1, oldest_us = 0;
    assert_ok(e, semel_query_outbox(e->store, 2, &n, &oldest_us, &e->err));
    assert_int_equal(n, 0);
    assert_int_equal(oldest_us, SEMEL_NONE);
    begin(e);
    for (int i = 0; i < 3; i++) {
        struct semel__event event = {.aggregatetype = SEMEL_STR("order"),
                                     .aggregateid = SEMEL_STR("1"),
                                     .type = SEMEL_STR("paid")};
        assert_ok(e, semel_store_outbox_put(e->store, &event, START_US + i, NULL, &e->err));
    }
    commit(e);
    assert_ok(e, semel_query_outbox(e->store, 2, &n, &oldest_us, &e->err));
    assert_int_equal(n, 2);
    assert_int_equal(oldest_us, START_US);
    assert_ok(e, semel_query_outbox(e->store, 9, &n, &oldest_us, &e->err));
    assert_int_equal(n, 3);
}

/* ---- list --------------------------------------------------------------------------------------------- */

static void fill(struct engine *e)
{
    static const struct fake rows[] = {
        {"c", "s", "c1", SEMEL_ROW_COMPLETED, .type = "paid", .received_us = 1},
        {"c", "s", "f1", SEMEL_ROW_FAILED, "paid", "k1", "transient", "time-out", 2, 50},
        {"d", "s", "d1", SEMEL_ROW_DEAD, "paid", "k1", "permanent", "no column \"x\"", 3, 0},
        {"c", "t", "w1", SEMEL_ROW_WAITING, "sent", "k1", "blocked", .received_us = 4},
        {"c", "", "d2", SEMEL_ROW_DEAD, "sent", "k2", "permanent", "no column \"y\"", 5, 0},
        {"d", "s", "p1", SEMEL_ROW_PROCESSING, .key = "k2", .received_us = 6},
        {"d", "t", "q1", SEMEL_ROW_QUARANTINED, .key = "k2", .cls = "too_old", .text = "", .received_us = 7},
        {"c", "s", "u1", SEMEL_ROW_UNKNOWN, "paid", NULL, "unknown", "time-out \xc3\xa9", 8, 0},
        {"d", "s", "r1", SEMEL_ROW_REJECTED, .type = "paid", .received_us = 9},
        {"c", "s", "c2", SEMEL_ROW_COMPLETED, .type = "sent", .key = "k1", .received_us = 10},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        put(e, rows[i]);
}

/* I16: each filter alone, and some together, by every way that there is to the rows. */
static void each_filter_lists_what_matches_by_arrival(void **state)
{
    struct engine *e = *state;
    static const struct {
        struct semel_filter filter;
        const char *ids;
    } table[] = {
        {{.states = 0}, "c1 f1 d1 w1 d2 p1 q1 u1 r1 c2"},
        {{.consumer = SEMEL_STR("d")}, "d1 p1 q1 r1"},
        {{.consumer = SEMEL_STR("nobody")}, ""},
        {{.consumer = SEMEL_STR("\xff")}, ""},
        {{.source = SEMEL_STR("t")}, "w1 q1"},
        {{.source = SEMEL_STR("")}, "d2"},
        {{.type = SEMEL_STR("paid")}, "c1 f1 d1 u1 r1"},
        {{.type = SEMEL_STR("pa\0id")}, ""},
        {{.order_key = SEMEL_STR("k1")}, "f1 d1 w1 c2"},
        {{.order_key = SEMEL_STR("k1"), .states = BIT(FAILED) | BIT(DEAD) | BIT(WAITING)}, "f1 d1 w1"},
        {{.order_key = SEMEL_STR("k2"), .states = UNENDED}, "d2 p1 q1"},
        {{.order_key = SEMEL_STR("k2"), .states = BIT(QUARANTINED)}, "q1"},
        {{.states = BIT(COMPLETED) | BIT(REJECTED)}, "c1 r1 c2"},
        {{.states = BIT(DEAD)}, "d1 d2"},
        {{.states = BIT(DEAD), .consumer = SEMEL_STR("c")}, "d2"},
        {{.states = BIT(DEAD) | BIT(FAILED) | BIT(QUARANTINED)}, "f1 d1 d2 q1"},
        {{.states = BIT(DEAD) | BIT(COMPLETED)}, "c1 d1 d2 c2"},
        {{.states = UNENDED}, "f1 d1 w1 d2 p1 q1 u1"},
        {{.states = BIT(PROCESSING)}, "p1"},
        {{.states = BIT(ABSENT)}, ""},
        {{.states = UNENDED, .type = SEMEL_STR("sent")}, "w1 d2"},
        {{.error_class = SEMEL_STR("permanent")}, "d1 d2"},
        {{.error_text = SEMEL_STR("column \"y")}, "d2"},
        {{.error_text = SEMEL_STR("\xa9"), .states = UNENDED}, "u1"},
        {{.error_text = SEMEL_STR("TIME-OUT")}, ""},
        {{.error_text = SEMEL_STR("%")}, ""},
        {{.id = SEMEL_STR("d2")}, "d2"},
        {{.id = SEMEL_STR("d2"), .states = BIT(FAILED)}, ""},
        {{.id = SEMEL_STR("p1"), .consumer = SEMEL_STR("d"), .source = SEMEL_STR("s")}, "p1"},
        {{.id = SEMEL_STR("p1"), .source = SEMEL_STR("t")}, ""},
        {{.id = SEMEL_STR("p1"), .consumer = SEMEL_STR("c")}, ""},
    };
    fill(e);
    for (size_t i = 0; i < COUNT(table); i++) {
        struct semel_filter filter = table[i].filter;
        filter.received_before_us = filter.received_after_us = SEMEL_NONE;
        assert_lists(e, filter, table[i].ids);
    }
    struct semel_filter filter = ANY;
    filter.received_after_us = START_US + 2;
    filter.received_before_us = START_US + 5;
    assert_lists(e, filter, "d1 w1");
    filter.states = BIT(DEAD) | BIT(WAITING);
    filter.received_before_us = SEMEL_NONE;
    assert_lists(e, filter, "d1 w1 d2");
}

/* Rows of three consumers and every status; the further they are, the more numbers lie between them. */
static void fill_many(struct engine *e)
{
    for (int i = 0; i < 120; i++) {
        static const char *const consumers[] = {"a", "b", "c"};
        char id[16];
        snprintf(id, sizeof id, "m%d", i);
        put(e, FAKE(consumers[i * 7 % 3], i % 2 ? "s" : "t", id,
                    (enum semel_row_status)(1 + i * 13 % (SEMEL_ROW_COUNT - 1))));
        if (i % 20 == 19)
            sql_either(e, "UPDATE semel_counter SET value = 9 * value WHERE name = 'arrival'",
                       "SELECT setval('semel.arrival', 9 * nextval('semel.arrival'))");
    }
}

/* Whatever the way and the size of a page, the pages together are the list, in order and without repeats. */
static void pages_of_any_size_are_the_list(void **state)
{
    struct engine *e = *state;
    static const unsigned masks[] = {0, UNENDED, BIT(DEAD) | BIT(FAILED) | BIT(WAITING), BIT(COMPLETED) | BIT(DEAD)};
    fill_many(e);
    for (size_t m = 0; m < COUNT(masks); m++)
        for (size_t page = 1; page <= 41; page += 5) {
            struct semel_filter filter = ANY;
            struct semel_row *rows = NULL;
            int64_t after = SEMEL_NONE;
            size_t n = 0, all = 0;
            filter.states = masks[m];
            do {
                n = list(e, filter, after, page, &rows);
                for (size_t i = 0; i < n; i++) {
                    assert_true(rows[i].arrival > after);
                    assert_true(masks[m] == 0 || (masks[m] & 1u << rows[i].progress.state) != 0);
                    after = rows[i].arrival;
                }
                all += n;
            } while (n == page);
            int64_t expected = 0;
            for (int i = 0; i < 120; i++)
                expected += masks[m] == 0 || (masks[m] & 1u << (1 + i * 13 % (SEMEL_ROW_COUNT - 1))) != 0;
            assert_int_equal(all, expected);
        }
}

/* P25: more rows than one window has lie before the first that matches. */
static void list_without_an_index_goes_on_through_windows(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    put(e, FAKE("c", "s", "first", SEMEL_ROW_REJECTED));
    sql_either(
        e,
        "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 45000) INSERT INTO semel_inbox "
        "(arrival, consumer, source, message_id, status, received_at, updated_at, processed_at) "
        "SELECT i, 'c', 's', 'm' || i, 'completed', i, i, i FROM n; "
        "UPDATE semel_counter SET value = 9000000000000000000 WHERE name = 'arrival'",
        "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, received_at, updated_at, processed_at)"
        " SELECT i, 'c', 's', 'm' || i, 'completed', to_timestamp(i), to_timestamp(i), to_timestamp(i) "
        "FROM generate_series(2, 45000) AS i; SELECT setval('semel.arrival', 9000000000000000000)");
    put(e, FAKE("c", "s", "last", SEMEL_ROW_REJECTED));
    filter.states = BIT(REJECTED);
    assert_lists(e, filter, "first last");
    filter.states = BIT(STALE);
    assert_lists(e, filter, "");
}

static size_t next_of(struct engine *e, struct semel_walk *walk, size_t page, struct semel_row **ret,
                      size_t *ret_damaged)
{
    size_t n = 0;
    semel__arena_reset(&e->arena);
    assert_ok(e, semel_query_walk(e->store, walk, page, &e->arena, ret, &n, ret_damaged, &e->err));
    assert_true(n + *ret_damaged <= page);
    return n;
}

static void assert_walks(struct engine *e, const struct semel_filter *filter, size_t names_max, size_t page)
{
    struct semel_walk walk;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0, all = list(e, *filter, SEMEL_NONE, 1000, &rows);
    char ids[120][16];
    assert_true(all > 9 && all <= COUNT(ids));
    for (size_t i = 0; i < all; i++)
        snprintf(ids[i], sizeof ids[i], "%.*s", (int)rows[i].id.n, rows[i].id.p);
    semel_walk_init(&walk, filter, names_max);
    while (!semel_walk_ended(&walk)) {
        size_t found = next_of(e, &walk, page, &rows, &damaged);
        for (size_t i = 0; i < found; i++, n++) {
            assert_true(n < all);
            assert_str(rows[i].id, ids[n]);
            assert_str(rows[i].payload, "pa");
        }
    }
    assert_int_equal(n, all);
    semel_walk_done(&walk);
}

/* However many names are found at a time, and rows read: also where windows of arrivals turn out too narrow. */
static void walk_meets_what_matches_once_and_in_order(void **state)
{
    struct engine *e = *state;
    static const struct semel_filter filters[] = {{.states = 0},
                                                  {.consumer = SEMEL_STR("b")},
                                                  {.consumer = SEMEL_STR("b"), .source = SEMEL_STR("t")},
                                                  {.states = UNENDED},
                                                  {.states = BIT(DEAD) | BIT(FAILED)},
                                                  {.states = BIT(COMPLETED) | BIT(DEAD)}};
    static const size_t most[] = {1, 2, 7, 13, 200};
    fill_many(e);
    for (size_t f = 0; f < COUNT(filters); f++) {
        struct semel_filter filter = filters[f];
        filter.received_before_us = filter.received_after_us = SEMEL_NONE;
        for (size_t i = 0; i < COUNT(most) * COUNT(most); i++)
            assert_walks(e, &filter, most[i / COUNT(most)], most[i % COUNT(most)]);
    }
}

/* Rows that go, end or come anew between two pages; a damaged one; and a page for which there was no memory. */
static void walk_meets_rows_as_they_are_when_it_comes_to_them(void **state)
{
    struct engine *e = *state;
    static const char *const met[] = {"m0", "m1", "m7", "m3"};
    struct semel_filter filter = ANY;
    struct semel_walk walk;
    struct semel_arena small;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0, all_damaged = 0, found = 0;
    for (int i = 0; i < 8; i++)
        put(e, FAKE("c", "s", ((char[]){'m', (char)('0' + i), '\0'}), SEMEL_ROW_DEAD));
    sql_run(e, "UPDATE semel_inbox SET error_class = 'strange' WHERE message_id = 'm4'");
    filter.states = BIT(DEAD);
    semel_walk_init(&walk, &filter, 6);
    assert_int_equal(next_of(e, &walk, 1, &rows, &damaged), 1);
    sql_run(e, "DELETE FROM semel_inbox WHERE message_id IN ('m2', 'm3', 'm6')");
    put(e, FAKE("c", "s", "m3", SEMEL_ROW_DEAD)); /* purged and sent again: behind the others now */
    sql_run(e, "UPDATE semel_inbox SET status = 'quarantined' WHERE message_id = 'm5'");
    semel__arena_init(&small, 1);
    assert_int_not_equal(semel_query_walk(e->store, &walk, 3, &small, &rows, &n, &damaged, &e->err), SEMEL_OK);
    semel__arena_done(&small);
    for (n = 1; !semel_walk_ended(&walk); all_damaged += damaged) {
        found = next_of(e, &walk, 3, &rows, &damaged);
        for (size_t i = 0; i < found; i++, n++) {
            assert_true(n < COUNT(met));
            assert_str(rows[i].id, met[n]);
        }
    }
    assert_int_equal(n, COUNT(met));
    assert_int_equal(all_damaged, 1);
    semel_walk_done(&walk);
}

/* P25: the same where the rows of several consumers are merged: what one knows already, another has not come to. */
static void merged_list_waits_for_the_slowest_walk(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    sql_either(
        e,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 45000) INSERT INTO semel_inbox "
        "(arrival, consumer, source, message_id, status, received_at, updated_at) "
        "SELECT i, 'b', 's', 'm' || i, 'dead', i, i FROM n; "
        "UPDATE semel_counter SET value = 50000 WHERE name = 'arrival'",
        "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, received_at, updated_at) "
        "SELECT i, 'b', 's', 'm' || i, 'dead', to_timestamp(i), to_timestamp(i) FROM generate_series(1, 45000) AS i; "
        "SELECT setval('semel.arrival', 50000)");
    put(e, FAKE("b", "s", "b1", SEMEL_ROW_DEAD, .type = "x"));
    put(e, FAKE("a", "s", "a1", SEMEL_ROW_DEAD, .type = "x"));
    put(e, FAKE("c", "s", "c1", SEMEL_ROW_FAILED, .type = "x"));
    filter.states = BIT(DEAD) | BIT(FAILED);
    filter.type = SEMEL_STR("x");
    assert_lists(e, filter, "b1 a1 c1");
}

static void payload_is_read_only_when_it_is_asked_for(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    process_one(e, msg("f", "fail"));
    assert_int_equal(list(e, filter, SEMEL_NONE, 1, &rows), 1);
    assert_true(rows[0].kept);
    assert_null(rows[0].payload.p);
    assert_str(rows[0].consumer, "c");
    assert_ok(e, semel_query_list(e->store, &filter, SEMEL_NONE, 1, true, &e->arena, &rows, &n, &damaged, &e->err));
    assert_str(rows[0].payload, "fail");
}

static void damaged_rows_are_counted_and_take_no_place(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    fill(e);
    damage(e, "f1");
    sql_run(e, "UPDATE semel_inbox SET error_class = 'strange' WHERE message_id IN ('w1', 'd2')");
    assert_ok(e, semel_query_list(e->store, &filter, SEMEL_NONE, 3, false, &e->arena, &rows, &n, &damaged, &e->err));
    assert_int_equal(n, 3);
    assert_str(rows[0].id, "c1");
    assert_str(rows[1].id, "d1");
    assert_str(rows[2].id, "p1");
    assert_int_equal(damaged, 3);
    assert_int_equal(e->err.status, SEMEL_OK);
    filter.id = SEMEL_STR("f1");
    assert_ok(e, semel_query_list(e->store, &filter, SEMEL_NONE, 3, false, &e->arena, &rows, &n, &damaged, &e->err));
    assert_int_equal(n, 0);
    assert_int_equal(damaged, 1);
}

static void damaged_rows_of_several_consumers_leave_no_hole(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    for (int i = 1; i <= 6; i++) {
        const char id[2] = {(char)('0' + i), '\0'};
        put(e, FAKE(i % 2 ? "a" : "b", "s", id, SEMEL_ROW_DEAD, .cls = i <= 2 ? "strange" : NULL));
    }
    filter.states = BIT(DEAD);
    assert_ok(e, semel_query_list(e->store, &filter, SEMEL_NONE, 3, false, &e->arena, &rows, &n, &damaged, &e->err));
    assert_int_equal(n, 3);
    assert_int_equal(damaged, 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rows[i].id.p[0], '3' + i);
}

static void id_alone_finds_it_under_every_consumer_and_source(void **state)
{
    struct engine *e = *state;
    static const char *const consumers[] = {"b", "a", HOSTILE}, *const sources[] = {"t", "", HOSTILE};
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    for (int i = 0; i < 9; i++)
        for (int k = 0; k < 2; k++)
            put(e, FAKE(consumers[i % 3], sources[i / 3], k ? "it" : "other", SEMEL_ROW_COMPLETED));
    filter.id = SEMEL_STR("it");
    assert_int_equal(list(e, filter, SEMEL_NONE, 100, &rows), 9);
    for (int i = 0; i < 9; i++) {
        assert_str(rows[i].consumer, consumers[i % 3]);
        assert_str(rows[i].source, sources[i / 3]);
        assert_str(rows[i].id, "it");
    }
    assert_int_equal(list(e, filter, rows[4].arrival, 3, &rows), 3);
    assert_str(rows[0].source, sources[5 / 3]);
    filter.consumer = SEMEL_STR("a");
    assert_int_equal(list(e, filter, SEMEL_NONE, 100, &rows), 3);
}

static void names_that_look_like_sql_are_names(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_count *all = NULL;
    put(e, FAKE(HOSTILE, HOSTILE, HOSTILE, SEMEL_ROW_DEAD, .type = HOSTILE, .key = HOSTILE, .text = HOSTILE));
    put(e, FAKE("c", "s", "m", SEMEL_ROW_DEAD, .text = "it's"));
    filter.consumer = filter.source = filter.type = filter.order_key = filter.error_text = SEMEL_STR(HOSTILE);
    assert_lists(e, filter, HOSTILE);
    filter.states = BIT(DEAD);
    assert_lists(e, filter, HOSTILE);
    filter.states = UNENDED;
    filter.id = SEMEL_STR(HOSTILE);
    assert_lists(e, filter, HOSTILE);
    size_t n = counts(e, (struct semel_str){0}, 10, &all);
    assert_int_equal(n, 2);
    assert_count(count_of(all, n, HOSTILE, SEMEL_ROW_DEAD), 1, false, START_US, SEMEL_NONE);
}

static void look_inside_a_transaction_sees_what_it_wrote(void **state)
{
    struct engine *e = *state;
    begin(e);
    put(e, FAKE("c", "s", "m", SEMEL_ROW_DEAD));
    assert_lists(e, ANY, "m");
    semel_store_rollback(e->store);
    assert_lists(e, ANY, "");
}

/* ---- groups ------------------------------------------------------------------------------------------- */

static size_t groups(struct engine *e, struct semel_filter filter, int64_t cap, size_t max, struct semel_group **ret,
                     bool *ret_capped)
{
    size_t n = 0;
    semel__arena_reset(&e->arena);
    assert_ok(e, semel_query_groups(e->store, &filter, cap, max, &e->arena, ret, &n, ret_capped, &e->err));
    return n;
}

static void fill_groups(struct engine *e)
{
    put(e, FAKE("c", "s", "n1", SEMEL_ROW_DEAD, .received_us = 1));
    put(e, FAKE("c", "s", "e1", SEMEL_ROW_DEAD, .text = "", .received_us = 2));
    put(e, FAKE("c", "s", "x1", SEMEL_ROW_DEAD, .cls = "permanent", .text = "no", .received_us = 30));
    put(e, FAKE("d", "s", "x2", SEMEL_ROW_DEAD, .cls = "permanent", .text = "no", .received_us = 4));
    put(e, FAKE("c", "t", "x3", SEMEL_ROW_DEAD, .cls = "permanent", .text = "no", .received_us = 5));
    put(e, FAKE("c", "s", "x4", SEMEL_ROW_FAILED, .cls = "permanent", .text = "no", .received_us = 6));
    put(e, FAKE("c", "s", "x5", SEMEL_ROW_DEAD, .cls = "permanent", .text = "no", .received_us = 7));
    put(e, FAKE("c", "s", "e2", SEMEL_ROW_DEAD, .text = "", .received_us = 8));
    put(e, FAKE("c", "s", "ok", SEMEL_ROW_COMPLETED));
}

/* I16 */
static void groups_are_by_consumer_state_class_and_exact_text(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_group *g = NULL;
    bool capped = true;
    fill_groups(e);
    filter.states = BIT(DEAD) | BIT(FAILED);
    assert_int_equal(groups(e, filter, 100, 10, &g, &capped), 5);
    assert_false(capped);
    assert_int_equal(g[0].n, 3);
    assert_str(g[0].consumer, "c");
    assert_str(g[0].error_class, "permanent");
    assert_str(g[0].error_text, "no");
    assert_int_equal(g[0].state, SEMEL_ROW_DEAD);
    assert_int_equal(g[0].first_us, START_US + 5);
    assert_int_equal(g[0].last_us, START_US + 30);
    assert_str(g[0].source, "s");
    assert_str(g[0].id, "x1");
    assert_int_equal(g[1].n, 2);
    assert_str(g[1].error_text, "");
    assert_null(g[1].error_class.p);
    assert_str(g[1].id, "e1");
    static const char *const single[] = {"n1", "x2", "x4"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(g[2 + i].n, 1);
        assert_str(g[2 + i].id, single[i]);
    }
    assert_null(g[2].error_text.p);
    assert_str(g[3].consumer, "d");
    assert_int_equal(g[4].state, SEMEL_ROW_FAILED);

    assert_int_equal(groups(e, filter, 100, 2, &g, &capped), 2);
    assert_str(g[1].id, "e1");
    filter.error_text = SEMEL_STR("n");
    filter.consumer = SEMEL_STR("d");
    assert_int_equal(groups(e, filter, 100, 2, &g, &capped), 1);
    assert_str(g[0].id, "x2");
    assert_int_equal(groups(e, ANY, 100, 10, &g, &capped), 6);
}

/* P44: rows that do not match were looked at too. */
static void groups_look_at_no_more_rows_than_they_may(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_group *g = NULL;
    bool capped = false;
    fill_groups(e);
    filter.error_class = SEMEL_STR("permanent");
    filter.states = BIT(DEAD); /* six of c, then one of d */
    assert_int_equal(groups(e, filter, 3, 10, &g, &capped), 1);
    assert_int_equal(g[0].n, 1);
    assert_true(capped);
    assert_int_equal(groups(e, filter, 6, 10, &g, &capped), 1);
    assert_int_equal(g[0].n, 3);
    assert_true(capped);
    assert_int_equal(groups(e, filter, 7, 10, &g, &capped), 2);
    assert_false(capped);
    filter.error_class = SEMEL_STR("gap");
    assert_int_equal(groups(e, filter, 2, 10, &g, &capped), 0);
    assert_true(capped);
}

struct intruder {
    sqlite3 *db;
    bool done;
};

/* Called while a statement runs: as soon as rows are being read, somebody else changes them. */
static int intrude(void *ctx)
{
    struct intruder *intruder = ctx;
    if (intruder->done)
        return 0;
    intruder->done = true;
    return sqlite3_exec(intruder->db, "UPDATE semel_inbox SET status = 'failed', error_text = 'late'", NULL, NULL,
                        NULL) != SQLITE_OK;
}

static void groups_are_of_one_moment(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_group *g = NULL;
    struct intruder intruder = {0};
    bool capped = false;
    put(e, FAKE("c", "s", "m1", SEMEL_ROW_DEAD, .text = "no"));
    put(e, FAKE("c", "s", "m2", SEMEL_ROW_DEAD, .text = "no"));
    filter.states = BIT(DEAD);
    assert_int_equal(sqlite3_open(e->path, &intruder.db), SQLITE_OK);
    filter.consumer = SEMEL_STR("c");
    groups(e, filter, 10, 10, &g, &capped); /* prepares the statement, which reads the schema */
    sqlite3_progress_handler(semel_store_native(e->store), 60, intrude, &intruder);
    size_t n = groups(e, filter, 10, 10, &g, &capped);
    sqlite3_progress_handler(semel_store_native(e->store), 0, NULL, NULL);
    sqlite3_close(intruder.db);
    assert_int_equal(n, 1);
    assert_int_equal(g[0].n, 2);
    assert_str(g[0].error_text, "no");
    assert_int_equal(g[0].state, SEMEL_ROW_DEAD);
    assert_int_equal(sql_int(e, "SELECT count(*) FROM semel_inbox WHERE error_text = 'late'"), 2);
}

/* ---- plans -------------------------------------------------------------------------------------------- */

static void assert_plan(struct engine *e, const char *text, const char *what, bool sorts)
{
    char sql[4096], plan[2000] = "";
    sqlite3_stmt *stmt = NULL;
    snprintf(sql, sizeof sql, "EXPLAIN QUERY PLAN %s", text);
    assert_int_equal(sqlite3_prepare_v2(semel_store_native(e->store), sql, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW)
        snprintf(plan + strlen(plan), sizeof plan - strlen(plan), "%s\n", sqlite3_column_text(stmt, 3));
    sqlite3_finalize(stmt);
    /* A Bloom filter is made of all rows. */
    if (strstr(plan, what) == NULL || strstr(plan, "BLOOM") != NULL ||
        (!sorts && strstr(plan, "TEMP B-TREE FOR ORDER BY") != NULL))
        fail_msg("%s\n%s", sql, plan);
}

#define TEXT(name) semel__sqlite_statements[SQL_##name].sql.text

static void assert_plans(struct engine *e)
{
    const struct {
        const char *text, *what;
    } table[] = {
        {TEXT(list_id), "autoindex_semel_inbox_1 (consumer=? AND source=? AND message_id=?)"},
        {TEXT(list_key), "semel_inbox_order (consumer=? AND order_key=? AND rowid>? AND rowid<?)"},
        {TEXT(list_held), "semel_inbox_held (consumer=? AND status=? AND rowid>? AND rowid<?)"},
        {TEXT(list_open), "semel_inbox_open (consumer=? AND rowid>? AND rowid<?)"},
        {TEXT(list_all), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
        {TEXT(place_list), "autoindex_semel_inbox_1 ((consumer,source)>(?,?))"},
        {TEXT(window_key), "semel_inbox_order (consumer=? AND order_key=? AND rowid>?)"},
        {TEXT(window_held), "semel_inbox_held (consumer=? AND status=? AND rowid>?)"},
        {TEXT(window_open), "semel_inbox_open (consumer=? AND rowid>?)"},
        {TEXT(window_all), "INTEGER PRIMARY KEY (rowid>?)"},
        {TEXT(count_processing), "semel_inbox_lease (consumer=?)"},
        {TEXT(count_held), "semel_inbox_held (consumer=? AND status=?)"},
        {TEXT(count_final), "semel_inbox_final (consumer=?)"},
        {TEXT(count_held), "semel_inbox_due (consumer=? AND due_at>?)"},
        {TEXT(history_tries), "semel_attempt_message (consumer=? AND source=? AND message_id=?)"},
        {TEXT(history_acts), "semel_audit_message (consumer=? AND source=? AND message_id=?)"},
        {TEXT(history_business), "semel_business_key_holder (consumer=? AND source=? AND message_id=?)"},
        {TEXT(history_conflicts), "autoindex_semel_conflict_1 (consumer=? AND source=? AND message_id=?)"},
        {TEXT(history_place), "semel_inbox_order (consumer=? AND order_key=?)"},
        {TEXT(history_place_version), "semel_inbox_version (consumer=? AND order_key=?)"},
        {TEXT(selection_left), "semel_selected_left (number=?)"},
        {TEXT(selection_mark), "PRIMARY KEY (number=? AND place=?)"},
    };
    const struct {
        const char *text, *what;
    } sorted[] = {
        {TEXT(group_id), "autoindex_semel_inbox_1 (consumer=? AND source=? AND message_id=?)"},
        {TEXT(group_key), "semel_inbox_order (consumer=? AND order_key=?)"},
        {TEXT(group_held), "semel_inbox_held (consumer=? AND status=?)"},
        {TEXT(group_open), "semel_inbox_open (consumer=?)"},
        {TEXT(group_all), "INTEGER PRIMARY KEY (rowid>?)"},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        assert_plan(e, table[i].text, table[i].what, false);
    for (size_t i = 0; i < COUNT(sorted); i++)
        assert_plan(e, sorted[i].text, sorted[i].what, true);
}

/* P44: what is open is found without a step over what is completed, whatever the statistics say. */
static void what_is_not_final_is_found_by_an_index(void **state)
{
    struct engine *e = *state;
    assert_plans(e);
    sql_run(e, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
               "INSERT INTO semel_inbox (arrival, consumer, source, message_id, status, order_key, message_time, "
               "received_at, updated_at, due_at, lease_token) SELECT i, 'c', 's', i, CASE WHEN i % 100 < 90 THEN "
               "'completed' WHEN i % 100 < 93 THEN 'processing' WHEN i % 100 < 98 THEN 'failed' ELSE 'dead' END, "
               "'k' || (i % 10), CASE WHEN i % 2 THEN i END, i, i, CASE WHEN i % 100 BETWEEN 93 AND 97 THEN i END, "
               "CASE WHEN i % 100 BETWEEN 90 AND 92 THEN i END FROM n; "
               "INSERT INTO semel_selected SELECT i % 3, i, 'c', 's', i, i, CASE WHEN i % 9 THEN 'done' END FROM "
               "(SELECT arrival AS i FROM semel_inbox); ANALYZE");
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    assert_plans(e);
}

/* ---- the world ---------------------------------------------------------------------------------------- */

static void lack_of_memory_is_told_and_nothing_is_kept(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    fill(e);
    filter.states = UNENDED;
    for (int what = 0; what < 4; what++)
        for (unsigned at = 1;; at++) {
            struct fail_nth fail;
            struct semel_count *counted = NULL;
            struct semel_row *rows = NULL;
            struct semel_group *g = NULL;
            size_t n = 99, damaged = 0;
            bool capped = false;
            semel_status status = SEMEL_OK;
            semel__arena_done(&e->arena);
            fail_nth_begin(&fail, at);
            if (what == 0)
                status = semel_query_counts(e->store, filter.consumer, 10, 10, &e->arena, &counted, &n, &e->err);
            else if (what <= 2)
                status = semel_query_list(e->store, &filter, SEMEL_NONE, 9, what == 2, &e->arena, &rows, &n, &damaged,
                                          &e->err);
            else
                status = semel_query_groups(e->store, &filter, 10, 9, &e->arena, &g, &n, &capped, &e->err);
            if (!fail_nth_end(&fail)) {
                assert_int_equal(status, SEMEL_OK);
                assert_true(n > 0 && n < 99 && at > 1);
                break;
            }
            assert_int_equal(status, SEMEL_RETRY);
            assert_int_equal(n, 99);
        }
}

static void store_without_queries_says_so(void **state)
{
    struct engine *e = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0;
    semel_status status = semel_query_list(e->store, &filter, SEMEL_NONE, 9, false, &e->arena, &rows, &n, NULL,
                                           &e->err);
    assert_int_equal(status, SEMEL_INVALID);
    assert_says(e, "answers no queries of operators");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_TABLES(counts_leave_out_what_is_final_when_they_are_told_to),
        ON_TABLES(counts_are_those_of_what_the_engine_left),
        ON_TABLES(counts_stop_at_the_cap_and_say_so),
        ON_TABLES(outbox_is_counted_to_the_cap_with_its_oldest),
        ON_TABLES(each_filter_lists_what_matches_by_arrival),
        ON_TABLES(pages_of_any_size_are_the_list),
        ON_TABLES(list_without_an_index_goes_on_through_windows),
        ON_TABLES(walk_meets_what_matches_once_and_in_order),
        ON_TABLES(walk_meets_rows_as_they_are_when_it_comes_to_them),
        ON_TABLES(merged_list_waits_for_the_slowest_walk),
        ON_TABLES(payload_is_read_only_when_it_is_asked_for),
        ON_TABLES(damaged_rows_are_counted_and_take_no_place),
        ON_TABLES(damaged_rows_of_several_consumers_leave_no_hole),
        ON_TABLES(id_alone_finds_it_under_every_consumer_and_source),
        ON_TABLES(names_that_look_like_sql_are_names),
        ON_TABLES(look_inside_a_transaction_sees_what_it_wrote),
        ON_TABLES(groups_are_by_consumer_state_class_and_exact_text),
        ON_TABLES(groups_look_at_no_more_rows_than_they_may),
        ON_FILE(groups_are_of_one_moment),
        ON_FILE(what_is_not_final_is_found_by_an_index),
        ON_SQLITE(lack_of_memory_is_told_and_nothing_is_kept),
        ON_POSTGRES(lack_of_memory_is_told_and_nothing_is_kept),
        ON_MEM(store_without_queries_says_so),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
