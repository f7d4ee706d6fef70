/* SPDX-License-Identifier: MIT
 *
 * test_mapped.c: a table of the user's in place of the outbox, on a real store. Usage: test_mapped [postgres].
 */
#include <stdlib.h>

#include "ops/ops.h"
#include "relay_rig.h"
#include "store/sql.h"

/* A name that would do harm if it were ever read as anything but a name. */
#define EVIL "we\"ird'; DROP TABLE bystander; -- @id $1 ?2 :rows"
#define EVIL_QUOTED "\"we\"\"ird'; DROP TABLE bystander; -- @id $1 ?2 :rows\""

static struct semel_relay_table table;

/* ---- the table ----------------------------------------------------------------------------------- */

/* Runs one of two texts. */
static void sql_on(const char *postgres, const char *sqlite)
{
    world_sql(rig.world, on_postgres ? postgres : sqlite);
}

static const struct semel_relay_table plain = {.name = SEMEL_STR("events"),
                                               .order = SEMEL_STR("pos"),
                                               .id = SEMEL_STR("id"),
                                               .aggregatetype = SEMEL_STR("kind"),
                                               .aggregateid = SEMEL_STR("who"),
                                               .type = SEMEL_STR("what"),
                                               .payload = SEMEL_STR("body"),
                                               .headers = SEMEL_STR("heads"),
                                               .destination = SEMEL_STR("dest")};

static void make_events(void)
{
    sql_on("CREATE TABLE public.events (pos bigint NOT NULL, id text PRIMARY KEY, kind text, who text, what text, "
           "body jsonb, heads jsonb, dest text, at timestamptz, done boolean NOT NULL DEFAULT false, "
           "state text NOT NULL DEFAULT 'NEW', other int)",
           "CREATE TABLE events (pos INTEGER NOT NULL, id TEXT PRIMARY KEY, kind TEXT, who TEXT, what TEXT, body TEXT, "
           "heads TEXT, dest TEXT, at TEXT, done BOOLEAN NOT NULL DEFAULT 0, state TEXT NOT NULL DEFAULT 'NEW', other "
           "INT)");
}

/* Replaces the relay of the rig. */
static void map(const struct semel_relay_table *as)
{
    table = *as;
    semel__relay_free(rig.relay);
    rig.options.table = &table;
    rig.relay = relay_on(rig.world->store, &rig.sink, "first");
}

static void add(int pos, const char *who, const char *what, const char *dest)
{
    char text[400];
    snprintf(
        text, sizeof text,
        "INSERT INTO %sevents (pos, id, kind, who, what, body, heads, dest) VALUES (%d, 'id-%d-%s', 'order', '%s', "
        "'%s', '{\"n\": %d}', '{\"shop\": \"x\"}', %s%s%s)",
        on_postgres ? "public." : "", pos, pos, who, who, what, pos, dest != NULL ? "'" : "",
        dest != NULL ? dest : "NULL", dest != NULL ? "'" : "");
    world_sql(rig.world, text);
}

static int64_t rows(const char *where)
{
    char text[300];
    snprintf(text, sizeof text, "SELECT count(*) FROM %sevents WHERE %s", on_postgres ? "public." : "", where);
    return world_ask(rig.world, text);
}

static int mapped_up(void **state)
{
    up(state);
    make_events();
    map(&plain);
    return 0;
}

static void later(int times)
{
    for (int i = 0; i < times; i++) {
        steps(3);
        pass(30 * SECOND);
    }
}

/* ---- publishing ---------------------------------------------------------------------------------- */

/* O2, O5 */
static void rows_leave_in_the_order_of_the_column_and_are_deleted(void **state)
{
    (void)state;
    add(30, "a", "a3", NULL);
    add(10, "a", "a1", NULL);
    add(20, "a", "a2", NULL);
    add(5, "b", "b1", "elsewhere");
    steps(2);
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2 a3");
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
    assert_int_equal(rows("true"), 0);
    assert_string_equal(rig.sink.got[0].destination, "elsewhere");
    assert_string_equal(rig.sink.got[0].id, "id-5-b");
    assert_string_equal(rig.sink.got[0].payload, "{\"n\": 5}");
    assert_true(rig.sink.got[0].has_user_header);
    add(1, "a", "late", NULL); /* a lower number, later */
    steps(2);
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2 a3 late");
    steps(1);
    assert_true(semel__relay_idle(rig.relay));
}

/* The own outbox goes on beside it, and neither holds the other back. */
static void own_outbox_and_mapped_table_are_apart(void **state)
{
    struct semel_relay *mapped = rig.relay;
    (void)state;
    rig.options.table = NULL;
    rig.options.keep_us = 3600 * SECOND;
    rig.relay = NULL;
    rig.other = relay_on(rig.world->other, &rig.other_sink, "own");
    rig.relay = mapped;
    rig.other_sink.refuse = "own1"; /* the same aggregate in both: (order, a) */
    put("a", "own1", NULL);
    put("a", "own2", NULL);
    add(1, "a", "a1", NULL);
    for (int i = 0; i < 3; i++) {
        step_of(rig.other);
        steps(1);
    }
    assert_string_equal(got_of(&rig.sink, "a"), "a1");
    assert_int_equal(rig.other_sink.n, 0);
    assert_int_equal(count_in("_aside", "true"), 2);
    rig.sink.refuse = "a2";
    add(2, "a", "a2", NULL);
    steps(2);
    rig.other_sink.refuse = NULL;
    for (int i = 0; i < 6; i++) {
        step_of(rig.other);
        pass(2 * SECOND);
    }
    assert_string_equal(got_of(&rig.other_sink, "a"), "own1 own2");
    assert_int_equal(count_in("_sent", "true"), 2);
    later(3); /* keeps nothing, and purges nothing that is not its own */
    assert_int_equal(count_in("_sent", "true"), 2);
    assert_int_equal(count_in("_aside", "shard = 64"), 1);
}

static void marked(const char *column, const char *unmarked, const char *as, const char *pending)
{
    struct semel_relay_table t = plain;
    t.mark = semel__str(column);
    if (unmarked != NULL) {
        t.unmarked = semel__str(unmarked);
        t.marked = semel__str(as);
    }
    map(&t);
    rig.sink.refuse = "bad";
    add(1, "a", "a1", NULL);
    add(2, "a", "bad", NULL);
    add(3, "a", "a3", NULL);
    steps(3);
    assert_string_equal(got_of(&rig.sink, "a"), "a1");
    assert_int_equal(rows("true"), 3);
    assert_int_equal(rows(pending), 0); /* what stands aside is marked, too */
    assert_int_equal(count_in("_aside", "status = 'failed'"), 1);
    rig.sink.refuse = NULL;
    later(4);
    assert_string_equal(got_of(&rig.sink, "a"), "a1 bad a3");
    assert_int_equal(count_in("_aside", "true"), 0);
    assert_int_equal(rig.sink.n, 3);
}

static void confirmed_rows_are_marked_by_a_time(void **state)
{
    (void)state;
    marked("at", NULL, NULL, "at IS NULL");
}

static void confirmed_rows_are_marked_by_a_boolean(void **state)
{
    (void)state;
    marked("done", NULL, NULL, "NOT done");
}

static void confirmed_rows_are_marked_by_a_state(void **state)
{
    (void)state;
    marked("state", "NEW", "SENT: ok", "state <> 'SENT: ok'");
}

/* ---- aside --------------------------------------------------------------------------------------- */

/* O3, O5, P8 */
static void refused_row_holds_back_its_aggregate_only(void **state)
{
    (void)state;
    rig.sink.refuse = "bad";
    add(1, "a", "bad", NULL);
    for (int i = 2; i < 12; i++)
        add(i, "a", "more", NULL);
    add(50, "b", "b1", NULL);
    later(10);
    assert_string_equal(got_of(&rig.sink, "a"), "");
    assert_string_equal(got_of(&rig.sink, "b"), "b1");
    assert_int_equal(rows("true"), 0);
    assert_int_equal(count_in("_aside", "status = 'dead' AND id = 'id-1-a' AND attempts = 3"), 1);
    assert_int_equal(count_in("_aside", "status = 'waiting' AND attempts = 0"), 10);
}

/* The lowest place of both tables goes first, also where it came last. */
static void row_that_is_inserted_late_goes_before_those_aside(void **state)
{
    (void)state;
    rig.sink.refuse = "bad";
    add(10, "a", "bad", NULL);
    add(20, "a", "a20", NULL);
    add(30, "a", "a30", NULL);
    steps(2);
    assert_int_equal(count_in("_aside", "true"), 3);
    add(25, "a", "a25", NULL); /* between those aside: it joins them */
    add(5, "a", "a5", NULL);   /* before all of them: it goes */
    steps(3);
    assert_string_equal(got_of(&rig.sink, "a"), "a5");
    assert_int_equal(count_in("_aside", "true"), 4);
    rig.sink.refuse = "a7";
    add(7, "a", "a7", NULL); /* before all, and refused */
    steps(2);
    assert_int_equal(count_in("_aside", "true"), 5);
    later(1);
    assert_string_equal(got_of(&rig.sink, "a"), "a5");
    rig.sink.refuse = NULL;
    later(8);
    assert_string_equal(got_of(&rig.sink, "a"), "a5 a7 bad a20 a25 a30");
    assert_int_equal(count_in("_aside", "true"), 0);
    assert_int_equal(rows("true"), 0);
}

/* One that is due waits for a row below it that came in between. */
static void late_row_goes_before_one_that_is_due(void **state)
{
    (void)state;
    rig.sink.refuse = "a10";
    add(10, "a", "a10", NULL);
    steps(2);
    assert_int_equal(count_in("_aside", "true"), 1);
    rig.sink.refuse = NULL;
    pass(30 * SECOND);
    add(5, "a", "a5", NULL);
    later(4);
    assert_string_equal(got_of(&rig.sink, "a"), "a5 a10");
    assert_int_equal(rig.sink.n, 2);
}

/* P63, P111 */
static void destination_that_is_down_holds_back_its_own_rows(void **state)
{
    (void)state;
    add(1, "b", "b1", NULL);
    steps(1);
    rig.sink.down = "lost";
    add(2, "a", "a1", "lost");
    add(3, "a", "a2", "lost");
    for (int i = 10; i < 20; i++) {
        add(i, "b", "more", NULL);
        steps(3);
        pass(SECOND);
    }
    assert_int_equal(rows("true"), 0);
    assert_int_equal(count_in("_aside", "status = 'waiting' AND attempts = 0"), 2);
    rig.sink.down = NULL;
    later(6);
    assert_string_equal(got_of(&rig.sink, "a"), "a1 a2");
}

/* Bad input: dead with the reason, while the rest goes on. */
static void rows_that_cannot_be_events_are_dead(void **state)
{
    (void)state;
    sql_on("INSERT INTO public.events (pos, id, kind, who, what) VALUES (1, 'no-aggregate', NULL, NULL, 'x'), "
           "(2, repeat('i', 3000), 'order', 'a', 'x'), (3, 'long', repeat('k', 4000), repeat('w', 4000), 'x'), "
           "(4, 'nowhere', 'order', 'b', 'x')",
           "INSERT INTO events (pos, id, kind, who, what) VALUES (1, 'no-aggregate', NULL, NULL, 'x'), "
           "(2, hex(zeroblob(1500)), 'order', 'a', 'x'), (3, 'long', hex(zeroblob(2000)), hex(zeroblob(2000)), 'x'), "
           "(4, 'nowhere', 'order', 'b', 'x')");
    sql_on("UPDATE public.events SET dest = 'nowhere' WHERE pos = 4",
           "UPDATE events SET dest = 'nowhere' WHERE pos = 4");
    add(9, "c", "c1", NULL);
    steps(3);
    assert_int_equal(rows("true"), 0);
    assert_int_equal(count_in("_aside", "status = 'dead'"), 4);
    assert_int_equal(count_in("_aside", "status = 'dead' AND error_text LIKE '%id must be text of 1 to 255 bytes%'"),
                     1);
    assert_string_equal(got_of(&rig.sink, "c"), "c1");
    sql_on("UPDATE semel.outbox_aside SET status = 'waiting', due_at = created_at, attempts = 0 WHERE id <> 'nowhere'",
           "UPDATE semel_outbox_aside SET status = 'waiting', due_at = 1, attempts = 0 WHERE id <> 'nowhere'");
    later(8);
    assert_int_equal(rig.sink.n, 1); /* what was cut never goes */
}

/* O6: one relay works, the other waits, says so, and takes over. */
static void second_relay_waits_and_takes_over(void **state)
{
    char why[SEMEL_RELAY_WHY];
    (void)state;
    steps(1);
    rig.other = relay_on(rig.world->other, &rig.other_sink, "second");
    step_of(rig.other);
    assert_int_equal(semel__relay_owns(rig.other, why), 0);
    assert_non_null(strstr(why, "first works, and this one waits"));
    assert_non_null(strstr(rig.reported, "relay waits"));
    add(1, "a", "a1", NULL);
    step_of(rig.other);
    assert_int_equal(rig.other_sink.n, 0);
    steps(1);
    assert_int_equal(rig.sink.n, 1);
    pass(20 * SECOND); /* the first is gone */
    add(2, "a", "a2", NULL);
    step_of(rig.other);
    step_of(rig.other);
    assert_int_equal(semel__relay_owns(rig.other, why), 1);
    assert_string_equal(got_of(&rig.other_sink, "a"), "a2");
}

/* What a former owner does late never touches a row twice: places are checked against what is still pending. */
static void former_owner_cannot_set_rows_aside(void **state)
{
    (void)state;
    add(1, "a", "a1", NULL);
    steps(1);
    add(2, "a", "a2", "nowhere");
    sql_on("UPDATE semel.outbox_shard SET relay = 99 WHERE shard = 64",
           "UPDATE semel_outbox_shard SET relay = 99 WHERE shard = 64");
    steps(1);
    assert_int_equal(count_in("_aside", "true"), 0);
    assert_int_equal(rows("true"), 1);
}

/* ---- operators ----------------------------------------------------------------------------------- */

static void operators_see_and_change_what_stands_aside(void **state)
{
    struct semel_arena arena;
    struct semel_event_row *row = NULL;
    struct semel_outbox_state counts;
    bool done = false;
    int64_t now_us;
    (void)state;
    semel__arena_init(&arena, 1 << 20);
    rig.sink.refuse = "bad";
    add(1, "a", "bad", NULL);
    add(2, "a", "a2", NULL);
    later(6);
    add(3, "z", "z1", NULL);
    assert_ok(rig.world,
              semel_query_outbox_state(rig.world->store, &table, false, 100, &arena, &counts, &rig.world->err));
    assert_int_equal(counts.n[SEMEL_EVENT_CREATED], 1);
    assert_int_equal(counts.n[SEMEL_EVENT_DEAD], 1);
    assert_int_equal(counts.n[SEMEL_EVENT_WAITING], 1);
    assert_ok(rig.world,
              semel_query_outbox_state(rig.world->store, NULL, false, 100, &arena, &counts, &rig.world->err));
    assert_int_equal(counts.n[SEMEL_EVENT_DEAD], 0);
    assert_ok(rig.world, semel_query_event(rig.world->store, "id-2-a", true, &arena, &row, &rig.world->err));
    assert_non_null(row);
    assert_true(row->held);
    assert_ok(rig.world, semel_query_event(rig.world->store, "id-1-a", true, &arena, &row, &rig.world->err));
    assert_int_equal(row->status, SEMEL_EVENT_DEAD);
    assert_ok(rig.world, semel_store_begin(rig.world->store, SEMEL_TX_OWN, &now_us, &rig.world->err));
    assert_ok(rig.world, semel_query_event_lock(rig.world->store, row, &rig.world->err));
    assert_ok(rig.world, semel_query_event_change(rig.world->store, row, true, now_us, &done, &rig.world->err));
    assert_true(done);
    assert_ok(rig.world, semel_store_commit(rig.world->store, &rig.world->err));
    later(2);
    assert_string_equal(got_of(&rig.sink, "a"), "a2"); /* the one behind is awake */
    assert_int_equal(count_in("_aside", "true"), 0);
    semel__arena_done(&arena);
}

/* ---- names --------------------------------------------------------------------------------------- */

static void publishes_all(const struct semel_relay_table *t, int n)
{
    const size_t before = rig.sink.n;
    map(t);
    steps(3);
    assert_int_equal(rig.sink.n - before, n);
}

/* Names reach SQL quoted: whatever is in them, they are names. */
static void names_with_quotes_cases_and_reserved_words_work(void **state)
{
    (void)state;
    world_sql(rig.world, "CREATE TABLE bystander (x int)");
    if (on_postgres)
        world_sql(rig.world, "CREATE SCHEMA \"My \"\"Shop.One\"");
    sql_on("CREATE TABLE \"My \"\"Shop.One\"." EVIL_QUOTED
           " (\"select\" uuid PRIMARY KEY, \"Order By\" timestamptz NOT "
           "NULL, " EVIL_QUOTED " text, \"from\" bytea, \"@pending\" text, \"Done\" boolean)",
           "CREATE TABLE " EVIL_QUOTED " (\"select\" TEXT PRIMARY KEY, \"Order By\" TEXT NOT NULL, " EVIL_QUOTED
           " TEXT, "
           "\"from\" BLOB, \"@pending\" TEXT, \"Done\" BOOLEAN)");
    sql_on("INSERT INTO \"My \"\"Shop.One\"." EVIL_QUOTED
           " VALUES ('01890a5d-ac96-774b-bcce-b302099a8057', now(), 'a', "
           "'x', 't1'), ('01890a5d-ac96-774b-bcce-b302099a8058', now(), 'a', 'x', 't2')",
           "INSERT INTO " EVIL_QUOTED
           " VALUES ('01890a5d-ac96-774b-bcce-b302099a8057', '2026-01-01', 'a', 'x', 't1', 0), "
           "('01890a5d-ac96-774b-bcce-b302099a8058', '2026-01-01', 'a', 'x', 't2', NULL)");
    struct semel_relay_table t = {.name = semel__str(on_postgres ? "\"My \"\"Shop.One\"." EVIL_QUOTED : EVIL_QUOTED),
                                  .order = SEMEL_STR("Order By"),
                                  .id = SEMEL_STR("select"),
                                  .aggregateid = SEMEL_STR(EVIL),
                                  .type = SEMEL_STR("@pending"),
                                  .payload = SEMEL_STR("from"),
                                  .mark = SEMEL_STR("Done")};
    rig.sink.refuse = "t2";
    publishes_all(&t, 1);
    assert_int_equal(count_in("_aside", "type = 't2'"), 1);
    rig.sink.refuse = NULL;
    later(3);
    assert_string_equal(got_of(&rig.sink, "a"), "t1 t2");
    assert_int_equal(world_ask(rig.world, "SELECT count(*) FROM bystander"), 0);
}

static void hostile_names_are_not_found(void **state)
{
    static const char *const names[] = {"events; DROP TABLE events",
                                        "events AS x; DELETE FROM events --",
                                        "(SELECT 1)",
                                        "events\"",
                                        "\"events",
                                        ".",
                                        "pg_catalog.pg_class.x.y",
                                        "events.",
                                        ".events",
                                        "\"\"",
                                        "EVENTS",
                                        "events WHERE true OR true --",
                                        "nowhere.events",
                                        "'events'"};
    struct semel_relay_inspection look;
    struct semel_error err;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct semel_relay_table t = plain;
        t.name = semel__str(names[i]);
        assert_int_equal(rig.world->store->ops->relay->inspect(rig.world->store, &t, &look, &err), SEMEL_INVALID);
        t = plain;
        t.id = semel__str(names[i]);
        assert_int_equal(rig.world->store->ops->relay->inspect(rig.world->store, &t, &look, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "`id`"));
    }
    assert_int_equal(rows("true"), 0);
}

/* Without columns that may be missing. */
static void least_table_is_published(void **state)
{
    (void)state;
    sql_on("CREATE TABLE public.least (n bigserial PRIMARY KEY, body bytea)",
           "CREATE TABLE least (n INTEGER PRIMARY KEY, body BLOB)");
    sql_on("INSERT INTO public.least (body) VALUES ('x'), (NULL)", "INSERT INTO least (body) VALUES ('x'), (NULL)");
    const struct semel_relay_table t = {.name = SEMEL_STR("least"),
                                        .order = SEMEL_STR("n"),
                                        .id = SEMEL_STR("n"),
                                        .payload = SEMEL_STR("body")};
    publishes_all(&t, 2);
    assert_string_equal(rig.sink.got[0].id, "1");
    assert_string_equal(rig.sink.got[0].key, "1");
    assert_string_equal(rig.sink.got[0].type, "least");
    assert_string_equal(rig.sink.got[0].ce_time, "");
    assert_int_equal(rig.sink.got[0].headers, 5); /* without one: an empty ce_time would be no time either */
    assert_true(rig.sink.got[1].tombstone);
}

#define REFUSED(column, value, words)                                                                              \
    do {                                                                                                           \
        struct semel_relay_table t = plain;                                                                        \
        struct semel_relay_inspection look;                                                                        \
        struct semel_error err = {0};                                                                              \
        t.column = semel__str(value);                                                                              \
        assert_int_equal(rig.world->store->ops->relay->inspect(rig.world->store, &t, &look, &err), SEMEL_INVALID); \
        if (strstr(err.text, words) == NULL)                                                                       \
            fail_msg("%s", err.text);                                                                              \
    } while (0)

static void tables_that_cannot_be_relayed_are_refused_by_name(void **state)
{
    (void)state;
    sql_on("CREATE VIEW public.seen AS SELECT * FROM public.events; ALTER TABLE public.events ADD COLUMN twice text, "
           "ADD COLUMN dup text NOT NULL DEFAULT 'x'",
           "CREATE VIEW seen AS SELECT * FROM events; ALTER TABLE events ADD COLUMN twice TEXT; "
           "ALTER TABLE events ADD COLUMN dup TEXT NOT NULL DEFAULT 'x'");
    REFUSED(name, "missing", "no table missing");
    REFUSED(name, "seen", "seen is no table");
    REFUSED(order, "nope", "no column nope, which `order` names");
    REFUSED(payload, "Body", "no column Body, which `payload` names");
    REFUSED(id, "done", "column done");
    REFUSED(id, "twice", "column twice");
    REFUSED(id, "dup", "no unique index on column dup");
    REFUSED(headers, "done", "column done");
    if (!on_postgres)
        return;
    REFUSED(payload, "done", "`payload` must be one of: jsonb json text varchar bytea");
    REFUSED(created_at, "pos", "is of type int8");
    REFUSED(mark, "state", "`unmarked` and `marked` must give its values");
}

static bool indexed(const char *mark, const char *unmarked, char index[600])
{
    struct semel_relay_table t = plain;
    struct semel_relay_inspection look;
    if (mark != NULL)
        t.mark = semel__str(mark);
    if (unmarked != NULL) {
        t.unmarked = semel__str(unmarked);
        t.marked = SEMEL_STR("SENT");
    }
    assert_ok(rig.world, rig.world->store->ops->relay->inspect(rig.world->store, &t, &look, &rig.world->err));
    memcpy(index, look.index, sizeof look.index);
    return look.indexed;
}

/* The statement that is shown is the one that helps. */
static void index_that_is_missing_is_named(void **state)
{
    static const char *const marks[][2] = {{NULL, NULL}, {"at", NULL}, {"done", NULL}, {"state", "NEW"}};
    char index[600], text[700];
    (void)state;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        assert_false(indexed(marks[i][0], marks[i][1], index));
        if (i > 0) { /* an index that has published rows, too, does not fit */
            sql_on("CREATE INDEX whole ON public.events (pos, id)", "CREATE INDEX whole ON events (pos, id)");
            assert_false(indexed(marks[i][0], marks[i][1], index));
            sql_on("DROP INDEX public.whole", "DROP INDEX whole");
        }
        const char *name = strstr(index, " NAME "); /* SQLite's indexes have one */
        snprintf(text, sizeof text, "CREATE INDEX fits %s", name != NULL ? name + 6 : strstr(index, "ON "));
        world_sql(rig.world, text);
        assert_true(indexed(marks[i][0], marks[i][1], index));
        sql_on("DROP INDEX public.fits", "DROP INDEX fits");
    }
}

/* 100,000 rows that were published cost a scan nothing: an index has those that were not. */
static void published_rows_are_not_scanned(void **state)
{
    struct semel_relay_table t = plain;
    char index[600];
    (void)state;
    t.mark = SEMEL_STR("at");
    sql_on(
        "CREATE INDEX pending ON public.events (pos, id) WHERE at IS NULL; INSERT INTO public.events (pos, id, kind, "
        "who, what, at) SELECT i, 'old-' || i, 'order', 'o', 'x', now() FROM generate_series(1, 100000) AS i; "
        "ANALYZE public.events",
        "CREATE INDEX pending ON events (pos, id) WHERE at IS NULL; WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT "
        "i + 1 FROM n WHERE i < 100000) INSERT INTO events (pos, id, kind, who, what, at) SELECT i, 'old-' || i, "
        "'order', 'o', 'x', 'then' FROM n; ANALYZE");
    assert_true(indexed("at", NULL, index));
    map(&t);
    steps(1);
    const int64_t before_us = semel__now(&semel__clock_real);
    for (int i = 0; i < 100; i++)
        step_of(rig.relay);
    const int64_t took_us = semel__now(&semel__clock_real) - before_us;
    print_message("100 polls beside 100,000 published rows: %lld us\n", (long long)took_us);
    add(200000, "a", "new", NULL);
    add(0, "a", "low", NULL);
    steps(2);
    assert_string_equal(got_of(&rig.sink, "a"), "low new");
}

/* Other types of the column that orders. */
static void every_type_that_sorts_orders(void **state)
{
    static const struct {
        const char *type, *values[3];
    } cases[] = {{"uuid",
                  {"'01890a5d-ac96-774b-bcce-b302099a8057'", "'01890a5d-ac96-774b-bcce-b302099a8058'",
                   "'11890a5d-ac96-774b-bcce-b302099a8057'"}},
                 {"text COLLATE \"C\"", {"'B'", "'a'", "'b'"}},
                 {"numeric", {"-1.5", "2", "10"}},
                 {"date", {"'2025-12-31'", "'2026-01-01'", "'2026-11-02'"}},
                 {"timestamp", {"'2026-01-01 00:00'", "'2026-01-01 00:00:00.000001'", "'infinity'"}}};
    (void)state;
    for (size_t i = 0; on_postgres && i < sizeof cases / sizeof cases[0]; i++) {
        char text[500];
        const struct semel_relay_table t = {.name = SEMEL_STR("sorts"),
                                            .order = SEMEL_STR("pos"),
                                            .id = SEMEL_STR("id"),
                                            .aggregateid = SEMEL_STR("who"),
                                            .type = SEMEL_STR("what")};
        snprintf(text, sizeof text,
                 "DROP TABLE IF EXISTS public.sorts; CREATE TABLE public.sorts (pos %s NOT NULL, id uuid PRIMARY KEY "
                 "DEFAULT gen_random_uuid(), who text, what text)",
                 cases[i].type);
        world_sql(rig.world, text);
        rig.sink.n = 0;
        map(&t);
        rig.sink.refuse = "second"; /* so that places are compared as they are stored */
        static const char *const whats[] = {"first", "second", "third"};
        for (int k = 2; k >= 0; k--) {
            snprintf(text, sizeof text, "INSERT INTO public.sorts (pos, who, what) VALUES (%s, 'a', '%s')",
                     cases[i].values[k], whats[k]);
            world_sql(rig.world, text);
        }
        steps(3);
        assert_int_equal(count_in("_aside", "true"), 2);
        rig.sink.refuse = NULL;
        later(5);
        assert_string_equal(got_of(&rig.sink, "a"), "first second third");
        assert_int_equal(count_in("_aside", "true"), 0);
    }
}

/* Places aside are of the old column. */
static void order_cannot_change_while_events_stand_aside(void **state)
{
    struct semel_relay_table t = plain;
    struct semel_relay *relay = NULL;
    struct semel_error err = {0};
    (void)state;
    rig.sink.refuse = "bad";
    add(1, "a", "bad", NULL);
    steps(2);
    t.order = SEMEL_STR("id");
    rig.options.table = &t;
    assert_int_equal(semel__relay_new(&relay, rig.world->store, &rig.sink.base, &rig.options, &rig.rng, &rig.steady,
                                      &err),
                     SEMEL_INVALID);
    assert_non_null(strstr(err.text, "publish or discard them first"));
    rig.options.table = &plain;
    map(&plain);
    rig.sink.refuse = NULL;
    later(3);
    assert_int_equal(count_in("_aside", "true"), 0);
    map(&t);
}

int main(int argc, char **argv)
{
#define ON(name) cmocka_unit_test_setup_teardown(name, mapped_up, down)
    const struct CMUnitTest tests[] = {
        ON(rows_leave_in_the_order_of_the_column_and_are_deleted),
        ON(own_outbox_and_mapped_table_are_apart),
        ON(confirmed_rows_are_marked_by_a_time),
        ON(confirmed_rows_are_marked_by_a_boolean),
        ON(confirmed_rows_are_marked_by_a_state),
        ON(refused_row_holds_back_its_aggregate_only),
        ON(row_that_is_inserted_late_goes_before_those_aside),
        ON(late_row_goes_before_one_that_is_due),
        ON(destination_that_is_down_holds_back_its_own_rows),
        ON(rows_that_cannot_be_events_are_dead),
        ON(second_relay_waits_and_takes_over),
        ON(former_owner_cannot_set_rows_aside),
        ON(operators_see_and_change_what_stands_aside),
        ON(names_with_quotes_cases_and_reserved_words_work),
        ON(hostile_names_are_not_found),
        ON(least_table_is_published),
        ON(tables_that_cannot_be_relayed_are_refused_by_name),
        ON(index_that_is_missing_is_named),
        ON(published_rows_are_not_scanned),
        ON(every_type_that_sorts_orders),
        ON(order_cannot_change_while_events_stand_aside),
    };
    on_postgres = argc > 1 && strcmp(argv[1], "postgres") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
