/* SPDX-License-Identifier: MIT
 *
 * test_pg_look.c: what operators ask of a PostgreSQL store: counts, lists, groups, selections, the history of a
 * message. The rows are put there by hand. What they mean is tested on SQLite (test_look.c, test_select.c); here it
 * is that PostgreSQL answers the same.
 */
#include <stdlib.h>

#include <libpq-fe.h>

#include "base/error.h"
#include "core/look.h"
#include "core/state.h"
#include "pg/server.h"
#include "store/pg_store.h"
#include "unit/unit.h"

#define START_US INT64_C(1700000000000000)
#define ANY ((struct semel_filter){.received_before_us = SEMEL_NONE, .received_after_us = SEMEL_NONE})
#define BIT(state) (1u << SEMEL_STATE_##state)
#define UNENDED (BIT(PROCESSING) | BIT(FAILED) | BIT(WAITING) | BIT(UNKNOWN) | BIT(DEAD) | BIT(QUARANTINED))
#define HOSTILE "it's \"c\"\n'); DROP TABLE semel.inbox; --\\"

struct fake {
    const char *consumer, *source, *id;
    enum semel_state state;
    const char *type, *key, *cls, *text;
    int received_us, due_us; /* from START_US; due 0: none */
};
#define FAKE(consumer_, source_, id_, state_, ...) \
    ((struct fake){.consumer = (consumer_), .source = (source_), .id = (id_), .state = (state_), __VA_ARGS__})

struct world {
    struct semel_store *store;
    struct semel_error err;
    struct semel_arena arena;
};

static struct pg_server server;
static const struct semel_store_ops *const drivers[] = {&semel__store_postgres, NULL};

#define assert_ok(w, call)                            \
    do {                                              \
        if ((call) != SEMEL_OK)                       \
            fail_msg("%s: %s", #call, (w)->err.text); \
    } while (0)

/* ---- the world ---------------------------------------------------------------------------------------- */

static semel_status open_on(struct semel_store **ret, const char *database, bool migrate, struct semel_error *err)
{
    const struct semel_store_options options = {.migrate = migrate};
    char url[PG_SERVER_TEXT];

    return semel_store_open(ret, drivers, pg_server_url(&server, database, url), &options, err);
}

static int start(void **state)
{
    struct semel_store *store = NULL;
    struct semel_error err;

    (void)state;
    pg_server_start(&server, PG_SERVER_NO_FSYNC);
    pg_server_database(&server, "model");
    if (open_on(&store, "model", true, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    semel_store_close(store);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    pg_server_done(&server);
    return 0;
}

static int up(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    pg_server_sql(&server, NULL, "DROP DATABASE IF EXISTS look WITH (FORCE)");
    pg_server_sql(&server, NULL, "CREATE DATABASE look TEMPLATE model");
    semel__arena_init(&w->arena, 1 << 26);
    assert_ok(w, open_on(&w->store, "look", false, &w->err));
    *state = w;
    return 0;
}

static int down(void **state)
{
    struct world *w = *state;

    semel_store_close(w->store);
    semel__arena_done(&w->arena);
    free(w);
    return 0;
}

static void sql(struct world *w, const char *text)
{
    PGconn *conn = semel_store_native(w->store);
    PGresult *result = PQexec(conn, text);

    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    PQclear(result);
}

static void put(struct world *w, struct fake f)
{
    static const char text[] =
        "INSERT INTO semel.inbox (arrival, consumer, source, message_id, status, type, order_key, error_class, "
        "error_text,"
        " received_at, updated_at, due_at, processed_at, lease_owner, lease_until, lease_token, attempts, payload)"
        " SELECT n, $1, $2, $3, $4, $5, $6, $7, $8, t.at, t.at, CASE WHEN $10 <> 0 THEN to_timestamp(1700000000) + $10 "
        "*"
        " interval '1 us' END, CASE WHEN $11 THEN t.at END, CASE WHEN $12 THEN 'worker-1' END, CASE WHEN $12 THEN t.at "
        "+"
        " interval '1 s' END, CASE WHEN $12 THEN n END, 1, 'pa' FROM nextval('semel.arrival') AS n,"
        " (SELECT to_timestamp(1700000000) + $9 * interval '1 us' AS at) AS t";
    static const Oid types[12] = {25, 25, 25, 25, 25, 25, 25, 25, 23, 23, 16, 16};
    PGconn *conn = semel_store_native(w->store);
    char received[16], due[16];
    const char *const values[12] = {f.consumer,
                                    f.source,
                                    f.id,
                                    semel__state_name(f.state),
                                    f.type,
                                    f.key,
                                    f.cls,
                                    f.text,
                                    received,
                                    due,
                                    semel__state_final(f.state) ? "t" : "f",
                                    f.state == SEMEL_STATE_PROCESSING ? "t" : "f"};
    PGresult *result;

    snprintf(received, sizeof received, "%d", f.received_us);
    snprintf(due, sizeof due, "%d", f.due_us);
    result = PQexecParams(conn, text, 12, types, values, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        fail_msg("%s", PQerrorMessage(conn));
    PQclear(result);
}

static size_t list(struct world *w, struct semel_filter filter, int64_t after, size_t max, struct semel_row **ret)
{
    size_t n = 0, damaged = 0;

    semel__arena_reset(&w->arena);
    assert_ok(w, semel_look_list(w->store, &filter, after, max, false, &w->arena, ret, &n, &damaged, &w->err));
    assert_int_equal(damaged, 0);
    return n;
}

static void assert_lists(struct world *w, struct semel_filter filter, const char *ids)
{
    struct semel_row *rows = NULL;
    char got[1000] = "";
    const size_t n = list(w, filter, SEMEL_NONE, 1000, &rows);

    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", i > 0 ? " " : "", (int)rows[i].id.n,
                 rows[i].id.p);
    assert_string_equal(got, ids);
}

static void begin(struct world *w)
{
    int64_t now_us;

    assert_ok(w, semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err));
}

static void commit(struct world *w)
{
    assert_ok(w, semel_store_commit(w->store, &w->err));
}

static void assert_says(struct world *w, const char *what)
{
    if (strstr(w->err.text, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", w->err.text, what);
}

/* ---- lists -------------------------------------------------------------------------------------------- */

static void fill(struct world *w)
{
    static const struct fake rows[] = {
        {"c", "s", "c1", SEMEL_STATE_COMPLETED, .type = "paid", .received_us = 1},
        {"c", "s", "f1", SEMEL_STATE_FAILED, "paid", "k1", "transient", "time-out", 2, 50},
        {"d", "s", "d1", SEMEL_STATE_DEAD, "paid", "k1", "permanent", "no column \"x\"", 3, 0},
        {"c", "t", "w1", SEMEL_STATE_WAITING, "sent", "k1", "blocked", .received_us = 4},
        {"c", "", "d2", SEMEL_STATE_DEAD, "sent", "k2", "permanent", "no column \"y\"", 5, 0},
        {"d", "s", "p1", SEMEL_STATE_PROCESSING, .key = "k2", .received_us = 6},
        {"d", "t", "q1", SEMEL_STATE_QUARANTINED, .key = "k2", .cls = "too_old", .text = "", .received_us = 7},
        {"c", "s", "u1", SEMEL_STATE_UNKNOWN, "paid", NULL, "unknown", "time-out \xc3\xa9", 8, 0},
        {"d", "s", "r1", SEMEL_STATE_REJECTED, .type = "paid", .received_us = 9},
        {"c", "s", "c2", SEMEL_STATE_COMPLETED, .type = "sent", .key = "k1", .received_us = 10},
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        put(w, rows[i]);
}

/* I16: each filter alone, and some together, by every way that there is to the rows. */
static void each_filter_lists_what_matches_by_arrival(void **state)
{
    struct world *w = *state;
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

    fill(w);
    for (size_t i = 0; i < COUNT(table); i++) {
        struct semel_filter filter = table[i].filter;
        filter.received_before_us = filter.received_after_us = SEMEL_NONE;
        assert_lists(w, filter, table[i].ids);
    }
    struct semel_filter filter = ANY;
    filter.received_after_us = START_US + 2;
    filter.received_before_us = START_US + 5;
    assert_lists(w, filter, "d1 w1");
    filter.states = BIT(DEAD) | BIT(WAITING);
    filter.received_before_us = SEMEL_NONE;
    assert_lists(w, filter, "d1 w1 d2");
}

/* Whatever the way and the size of a page, the pages together are the list, in order and without repeats. */
static void pages_of_any_size_are_the_list(void **state)
{
    struct world *w = *state;
    static const unsigned masks[] = {0, UNENDED, BIT(DEAD) | BIT(FAILED) | BIT(WAITING), BIT(COMPLETED) | BIT(DEAD)};

    for (int i = 0; i < 90; i++) {
        static const char *const consumers[] = {"a", "b", "c"};
        char id[16];
        snprintf(id, sizeof id, "m%d", i);
        put(w, FAKE(consumers[i * 7 % 3], i % 2 ? "s" : "t", id,
                    (enum semel_state)(1 + i * 13 % (SEMEL_STATE_COUNT - 1))));
    }
    for (size_t m = 0; m < COUNT(masks); m++)
        for (size_t page = 1; page <= 41; page += 10) {
            struct semel_filter filter = ANY;
            struct semel_row *rows = NULL;
            int64_t after = SEMEL_NONE, expected = 0;
            size_t n = 0, all = 0;
            filter.states = masks[m];
            do {
                n = list(w, filter, after, page, &rows);
                for (size_t i = 0; i < n; i++) {
                    assert_true(rows[i].arrival > after);
                    assert_true(masks[m] == 0 || (masks[m] & 1u << rows[i].live.state) != 0);
                    after = rows[i].arrival;
                }
                all += n;
            } while (n == page);
            for (int i = 0; i < 90; i++)
                expected += masks[m] == 0 || (masks[m] & 1u << (1 + i * 13 % (SEMEL_STATE_COUNT - 1))) != 0;
            assert_int_equal(all, expected);
        }
}

static void damaged_rows_are_counted_and_take_no_place(void **state)
{
    struct world *w = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;

    fill(w);
    sql(w, "UPDATE semel.inbox SET error_class = 'strange' WHERE message_id IN ('f1', 'w1', 'd2')");
    assert_ok(w, semel_look_list(w->store, &filter, SEMEL_NONE, 3, false, &w->arena, &rows, &n, &damaged, &w->err));
    assert_int_equal(n, 3);
    assert_str(rows[0].id, "c1");
    assert_str(rows[1].id, "d1");
    assert_str(rows[2].id, "p1");
    assert_int_equal(damaged, 3);
    assert_int_equal(w->err.status, SEMEL_OK);
}

static void payload_is_read_only_when_it_is_asked_for(void **state)
{
    struct world *w = *state;
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;

    put(w, FAKE("c", "s", "f", SEMEL_STATE_FAILED));
    assert_int_equal(list(w, filter, SEMEL_NONE, 1, &rows), 1);
    assert_true(rows[0].kept);
    assert_null(rows[0].payload.p);
    assert_ok(w, semel_look_list(w->store, &filter, SEMEL_NONE, 1, true, &w->arena, &rows, &n, &damaged, &w->err));
    assert_str(rows[0].payload, "pa");
}

static void id_alone_finds_it_under_every_consumer_and_source(void **state)
{
    struct world *w = *state;
    static const char *const consumers[] = {"b", "a", HOSTILE}, *const sources[] = {"t", "", HOSTILE};
    struct semel_filter filter = ANY;
    struct semel_row *rows = NULL;

    for (int i = 0; i < 9; i++)
        for (int k = 0; k < 2; k++)
            put(w, FAKE(consumers[i % 3], sources[i / 3], k ? "it" : "other", SEMEL_STATE_COMPLETED));
    filter.id = SEMEL_STR("it");
    assert_int_equal(list(w, filter, SEMEL_NONE, 100, &rows), 9);
    for (int i = 0; i < 9; i++) {
        assert_str(rows[i].consumer, consumers[i % 3]);
        assert_str(rows[i].source, sources[i / 3]);
    }
    assert_int_equal(list(w, filter, rows[4].arrival, 3, &rows), 3);
    assert_str(rows[0].source, sources[5 / 3]);
    filter.consumer = SEMEL_STR("a");
    assert_int_equal(list(w, filter, SEMEL_NONE, 100, &rows), 3);
}

static void look_inside_a_transaction_sees_what_it_wrote(void **state)
{
    struct world *w = *state;

    begin(w);
    put(w, FAKE("c", "s", "m", SEMEL_STATE_DEAD));
    assert_lists(w, ANY, "m");
    semel_store_rollback(w->store);
    assert_lists(w, ANY, "");
}

static void names_that_look_like_sql_are_names(void **state)
{
    struct world *w = *state;
    struct semel_filter filter = ANY;

    put(w, FAKE(HOSTILE, HOSTILE, HOSTILE, SEMEL_STATE_DEAD, .type = HOSTILE, .key = HOSTILE, .text = HOSTILE));
    put(w, FAKE("c", "s", "m", SEMEL_STATE_DEAD, .text = "it's"));
    filter.consumer = filter.source = filter.type = filter.order_key = filter.error_text = SEMEL_STR(HOSTILE);
    assert_lists(w, filter, HOSTILE);
    filter.states = BIT(DEAD);
    assert_lists(w, filter, HOSTILE);
    filter.id = SEMEL_STR(HOSTILE);
    assert_lists(w, filter, HOSTILE);
}

/* ---- counts and groups -------------------------------------------------------------------------------- */

static const struct semel_count *count_of(const struct semel_count *all, size_t n, const char *consumer,
                                          enum semel_state state)
{
    for (size_t i = 0; i < n; i++)
        if (semel__str_eqz(all[i].consumer, consumer) && all[i].state == state)
            return &all[i];
    fail_msg("no count of %s, %s", consumer, semel__state_name(state));
    return NULL;
}

static void assert_count(const struct semel_count *c, int64_t n, bool capped, int64_t oldest_us, int64_t next_us)
{
    assert_int_equal(c->n, n);
    assert_int_equal(c->capped, capped);
    assert_int_equal(c->oldest_us, oldest_us);
    assert_int_equal(c->next_us, next_us);
}

/* P44: each count stops at its cap and says so; what is oldest and what is due next are right all the same. */
static void counts_stop_at_the_cap_and_say_so(void **state)
{
    struct world *w = *state;
    struct semel_count *all = NULL;
    size_t n = 0;

    for (int i = 0; i < 7; i++) {
        char id[16];
        snprintf(id, sizeof id, "m%d", i);
        put(w, FAKE("c", "s", id, SEMEL_STATE_FAILED, .received_us = 10 + i, .due_us = 90 - i));
        put(w, FAKE("c", "t", id, SEMEL_STATE_COMPLETED));
        put(w, FAKE("c", "u", id, SEMEL_STATE_PROCESSING, .received_us = 20 + i));
    }
    put(w, FAKE("d", "s", "m", SEMEL_STATE_STALE));
    put(w, FAKE("d", "s", "w", SEMEL_STATE_WAITING, .received_us = 5));
    assert_ok(w, semel_look_counts(w->store, (struct semel_str){0}, 3, &w->arena, &all, &n, &w->err));
    assert_int_equal(n, 5);
    assert_count(count_of(all, n, "c", SEMEL_STATE_FAILED), 3, true, START_US + 10, START_US + 84);
    assert_count(count_of(all, n, "c", SEMEL_STATE_COMPLETED), 3, true, SEMEL_NONE, SEMEL_NONE);
    assert_count(count_of(all, n, "c", SEMEL_STATE_PROCESSING), 3, true, START_US + 20, START_US + 1000020);
    assert_count(count_of(all, n, "d", SEMEL_STATE_WAITING), 1, false, START_US + 5, SEMEL_NONE);
    assert_count(count_of(all, n, "d", SEMEL_STATE_STALE), 1, false, SEMEL_NONE, SEMEL_NONE);
    assert_ok(w, semel_look_counts(w->store, SEMEL_STR("c"), 8, &w->arena, &all, &n, &w->err));
    assert_int_equal(n, 3);
    assert_count(count_of(all, n, "c", SEMEL_STATE_FAILED), 7, false, START_US + 10, START_US + 84);
    assert_ok(w, semel_look_counts(w->store, SEMEL_STR("nobody"), 8, &w->arena, &all, &n, &w->err));
    assert_int_equal(n, 0);
}

/* I16 */
static void groups_are_by_consumer_state_class_and_exact_text(void **state)
{
    struct world *w = *state;
    struct semel_filter filter = ANY;
    struct semel_group *g = NULL;
    size_t n = 0;
    bool capped = true;

    put(w, FAKE("c", "s", "n1", SEMEL_STATE_DEAD, .received_us = 1));
    put(w, FAKE("c", "s", "e1", SEMEL_STATE_DEAD, .text = "", .received_us = 2));
    put(w, FAKE("c", "s", "x1", SEMEL_STATE_DEAD, .cls = "permanent", .text = "no", .received_us = 30));
    put(w, FAKE("d", "s", "x2", SEMEL_STATE_DEAD, .cls = "permanent", .text = "no", .received_us = 4));
    put(w, FAKE("c", "t", "x3", SEMEL_STATE_DEAD, .cls = "permanent", .text = "no", .received_us = 5));
    put(w, FAKE("c", "s", "x4", SEMEL_STATE_FAILED, .cls = "permanent", .text = "no", .received_us = 6));
    put(w, FAKE("c", "s", "e2", SEMEL_STATE_DEAD, .text = "", .received_us = 8));
    put(w, FAKE("c", "s", "x5", SEMEL_STATE_DEAD, .cls = "permanent", .text = "no", .received_us = 7));
    filter.states = BIT(DEAD) | BIT(FAILED);
    assert_ok(w, semel_look_groups(w->store, &filter, 8, 10, &w->arena, &g, &n, &capped, &w->err));
    assert_int_equal(n, 5);
    assert_false(capped);
    assert_int_equal(g[0].n, 3);
    assert_str(g[0].consumer, "c");
    assert_str(g[0].error_text, "no");
    assert_int_equal(g[0].first_us, START_US + 5);
    assert_int_equal(g[0].last_us, START_US + 30);
    assert_str(g[0].id, "x1");
    assert_int_equal(g[1].n, 2);
    assert_str(g[1].error_text, "");
    assert_null(g[1].error_class.p);
    assert_str(g[2].id, "n1");
    assert_null(g[2].error_text.p);
    assert_ok(w, semel_look_groups(w->store, &filter, 7, 10, &w->arena, &g, &n, &capped, &w->err));
    assert_true(capped);
    assert_ok(w, semel_look_groups(w->store, &filter, 8, 2, &w->arena, &g, &n, &capped, &w->err));
    assert_int_equal(n, 2);
    filter.type = SEMEL_STR("none");
    assert_ok(w, semel_look_groups(w->store, &filter, 7, 2, &w->arena, &g, &n, &capped, &w->err));
    assert_int_equal(n, 0);
    assert_true(capped); /* what was not looked at might match */
}

static void outbox_is_counted_to_the_cap_with_its_oldest(void **state)
{
    struct world *w = *state;
    int64_t n = -1, oldest_us = 0;

    assert_ok(w, semel_look_outbox(w->store, 2, &n, &oldest_us, &w->err));
    assert_int_equal(n, 0);
    assert_int_equal(oldest_us, SEMEL_NONE);
    sql(w, "INSERT INTO semel.outbox (id, aggregatetype, aggregateid, type, created_at) SELECT gen_random_uuid(), 'a', "
           "'b',"
           " 'c', to_timestamp(1700000000 + i) FROM generate_series(0, 2) AS i");
    assert_ok(w, semel_look_outbox(w->store, 2, &n, &oldest_us, &w->err));
    assert_int_equal(n, 2);
    assert_int_equal(oldest_us, START_US);
}

/* ---- selections --------------------------------------------------------------------------------------- */

static struct semel_selection wish(const char *word)
{
    return (struct semel_selection){.word = semel__str(word),
                                    .who = SEMEL_STR("ops@example.com"),
                                    .reason = SEMEL_STR("ticket 7: it's fixed\n"),
                                    .force = true};
}

static semel_status try_select(struct world *w, struct semel_filter filter, size_t max, struct semel_selection *s)
{
    semel_status status;

    begin(w);
    status = semel_look_select(w->store, &filter, max, START_US, s, &w->err);
    if (status == SEMEL_OK)
        commit(w);
    else
        semel_store_rollback(w->store);
    return status;
}

static void assert_left(struct world *w, int64_t number, const char *expected)
{
    struct semel_selected *items = NULL;
    char got[1000] = "";
    size_t n = 0;

    assert_ok(w, semel_look_selected(w->store, number, 10, &w->arena, &items, &n, &w->err));
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s/%.*s/%.*s", i > 0 ? " " : "",
                 (int)items[i].consumer.n, items[i].consumer.p, (int)items[i].source.n, items[i].source.p,
                 (int)items[i].id.n, items[i].id.p);
    assert_string_equal(got, expected);
}

/* I16, P43: frozen, in order, resumed where it stopped; the first mark of a place stays. */
static void selection_is_frozen_and_resumed_where_it_stopped(void **state)
{
    struct world *w = *state;
    struct semel_filter filter = ANY;
    struct semel_selection s = wish("retry"), read;

    put(w, FAKE("z", "s", "1", SEMEL_STATE_FAILED));
    put(w, FAKE("a", "t", "2", SEMEL_STATE_DEAD));
    put(w, FAKE("a", "s", "3", SEMEL_STATE_COMPLETED));
    put(w, FAKE("it's \"m\"\n", "", "4", SEMEL_STATE_FAILED));
    filter.states = BIT(FAILED) | BIT(DEAD);
    assert_ok(w, try_select(w, filter, 3, &s));
    assert_int_equal(s.n, 3);
    put(w, FAKE("a", "t", "5", SEMEL_STATE_DEAD));
    sql(w, "UPDATE semel.inbox SET status = 'completed' WHERE message_id = '2'");
    assert_left(w, s.number, "z/s/1 a/t/2 it's \"m\"\n//4");
    begin(w);
    assert_ok(w, semel_look_mark(w->store, s.number, 1, SEMEL_STR("done"), &w->err));
    assert_ok(w, semel_look_mark(w->store, s.number, 1, SEMEL_STR("refused"), &w->err));
    commit(w);
    begin(w);
    assert_ok(w, semel_look_mark(w->store, s.number, 2, SEMEL_STR("skipped"), &w->err));
    assert_ok(w, semel_store_reopen(w->store, &w->err)); /* the mark goes with the transaction that it belongs to */
    assert_left(w, s.number, "a/t/2 it's \"m\"\n//4");
    assert_ok(w, semel_look_selection(w->store, s.number, &w->arena, &read, &w->err));
    assert_str(read.word, "retry");
    assert_str(read.reason, "ticket 7: it's fixed\n");
    assert_true(read.force);
    assert_int_equal(read.made_us, START_US);
    assert_int_equal(read.n, 3);
    assert_int_equal(read.left, 2);
    assert_int_equal(read.done, 1);
}

/* I16, P43: too many are refused rather than cut, and nothing is written down, nor when nothing matches. */
static void selection_of_too_many_or_of_nothing_is_not_written_down(void **state)
{
    struct world *w = *state;
    struct semel_filter filter = ANY;
    struct semel_selection s = wish("retry");

    for (int i = 0; i < 3; i++) {
        const char id[2] = {(char)('0' + i), '\0'};
        put(w, FAKE("c", "s", id, SEMEL_STATE_DEAD));
    }
    filter.states = BIT(DEAD);
    begin(w);
    assert_int_equal(semel_look_select(w->store, &filter, 2, START_US, &s, &w->err), SEMEL_INVALID);
    assert_says(w, "more than 2 messages match; narrow the filter");
    commit(w); /* even then */
    filter.type = SEMEL_STR("none");
    assert_ok(w, try_select(w, filter, 2, &s));
    assert_int_equal(s.n, 0);
    assert_int_equal(pg_server_ask(&server, "look", "SELECT count(*) FROM semel.selection"), 0);
    assert_int_equal(pg_server_ask(&server, "look", "SELECT count(*) FROM semel.selected"), 0);
    s = wish("delete");
    assert_int_equal(try_select(w, ANY, 2, &s), SEMEL_INVALID);
    assert_says(w, "retry, discard, resolve");
    assert_int_equal(semel_look_selection(w->store, 7, &w->arena, &s, &w->err), SEMEL_INVALID);
    assert_says(w, "there is no selection with the number 7");
}

/* ---- history ------------------------------------------------------------------------------------------ */

static struct semel_history history(struct world *w, const char *id, size_t max)
{
    struct semel_filter filter = ANY;
    struct semel_history h;
    struct semel_row *rows = NULL;

    filter.id = semel__str(id);
    assert_int_equal(list(w, filter, SEMEL_NONE, 2, &rows), 1);
    assert_ok(w, semel_look_history(w->store, &rows[0], max, &w->arena, &h, &w->err));
    return h;
}

/* I11, I16 */
static void history_has_the_latest_attempts_acts_conflicts_and_keys(void **state)
{
    struct world *w = *state;

    put(w, FAKE("c", "s", "m", SEMEL_STATE_DEAD));
    put(w, FAKE("c", "s", "other", SEMEL_STATE_DEAD));
    sql(w, "INSERT INTO semel.attempt (consumer, source, message_id, attempt, at, worker, error_class, error_text)"
           " SELECT 'c', 's', 'm', i, to_timestamp(1700000000 + i), 'w', 'permanent', repeat('x', 5000)"
           " FROM generate_series(1, 9) AS i");
    sql(w, "INSERT INTO semel.audit (at, who, what, reason, consumer, source, message_id)"
           " VALUES (to_timestamp(1700000001), 'ops', 'replay', E'it''s\\nfixed', 'c', 's', 'm')");
    sql(w, "INSERT INTO semel.conflict (consumer, source, message_id, fingerprint, count, first_at, last_at)"
           " VALUES ('c', 's', 'm', 'jb', 2, to_timestamp(1700000001), to_timestamp(1700000002)),"
           " ('c', 's', 'm', 'ja', 1, to_timestamp(1700000002), to_timestamp(1700000002))");
    sql(w, "INSERT INTO semel.business_key VALUES ('c', 'pay/2', 's', 'm', now()), ('c', 'pay/1', 's', 'm', now())");
    sql(w, "INSERT INTO semel.watermark VALUES ('c', 's', to_timestamp(77), now())");
    struct semel_history h = history(w, "m", 3);
    assert_true(h.more);
    assert_int_equal(h.n_tries, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(h.tries[i].attempt, 7 + i);
    assert_int_equal(h.tries[0].text.n, SEMEL_ERROR_TEXT_MAX);
    assert_int_equal(h.tries[0].at_us, START_US + 7000000);
    assert_int_equal(h.n_acts, 1);
    assert_str(h.acts[0].reason, "it's\nfixed");
    assert_int_equal(h.n_conflicts, 2);
    assert_str(h.conflicts[0].fingerprint, "jb");
    assert_int_equal(h.conflicts[0].n, 2);
    assert_int_equal(h.n_business, 2);
    assert_str(h.business[0], "pay/1");
    assert_int_equal(h.watermark_us, 77000000);
    assert_false(h.has_head);
    h = history(w, "m", 9);
    assert_false(h.more);
    assert_int_equal(h.n_tries, 9);
    assert_int_equal(history(w, "other", 9).n_tries, 0);
}

/* I12, I13: whom it waits for, and which version is missing. */
static void history_names_the_first_of_the_key(void **state)
{
    struct world *w = *state;

    put(w, FAKE("c", "s", "first", SEMEL_STATE_FAILED, .key = "k"));
    put(w, FAKE("c", "s", "second", SEMEL_STATE_WAITING, .key = "k"));
    put(w, FAKE("c", "s", "v5", SEMEL_STATE_WAITING, .key = "v"));
    put(w, FAKE("c", "s", "v4", SEMEL_STATE_WAITING, .key = "v"));
    sql(w, "UPDATE semel.inbox SET version = right(message_id, 1)::int WHERE order_key = 'v'");
    sql(w, "INSERT INTO semel.order_key VALUES ('c', 'v', 1)");
    struct semel_history h = history(w, "second", 10);
    assert_true(h.has_head);
    assert_str(h.head_source, "s");
    assert_str(h.head_id, "first");
    assert_int_equal(h.head_state, SEMEL_STATE_FAILED);
    assert_int_equal(h.last_version, SEMEL_NONE);
    h = history(w, "v5", 10);
    assert_str(h.head_id, "v4");
    assert_int_equal(h.head_version, 4);
    assert_int_equal(h.last_version, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        TEST(each_filter_lists_what_matches_by_arrival),
        TEST(pages_of_any_size_are_the_list),
        TEST(damaged_rows_are_counted_and_take_no_place),
        TEST(payload_is_read_only_when_it_is_asked_for),
        TEST(id_alone_finds_it_under_every_consumer_and_source),
        TEST(look_inside_a_transaction_sees_what_it_wrote),
        TEST(names_that_look_like_sql_are_names),
        TEST(counts_stop_at_the_cap_and_say_so),
        TEST(groups_are_by_consumer_state_class_and_exact_text),
        TEST(outbox_is_counted_to_the_cap_with_its_oldest),
        TEST(selection_is_frozen_and_resumed_where_it_stopped),
        TEST(selection_of_too_many_or_of_nothing_is_not_written_down),
        TEST(history_has_the_latest_attempts_acts_conflicts_and_keys),
        TEST(history_names_the_first_of_the_key),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
