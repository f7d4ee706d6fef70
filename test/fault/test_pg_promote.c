/* SPDX-License-Identifier: MIT
 *
 * test_pg_promote.c: the primary is lost and its standby is promoted (P16). What an asynchronous standby did not have
 * is gone, effect and record alike, and Semel says so; a synchronous one lacks nothing that was acknowledged.
 *
 * Who notices: a worker that finds its way to the new primary, a handle behind a pooler, which never reconnects, and
 * tick in SQL.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include "fault/world.h"
#include "support/world_pg.h"
#include "pg/pooler.h"
#include "store/pg_store.h"

#define HALF 6
#define MESSAGES (2 * HALF)
#define TOLD "error the server was promoted or restored (timeline 1 to 2): anything committed after "

static struct world world;
static struct pg_server standby;
static struct pg_pooler pooler;

static const struct semel_store_ops *const stores[] = {&semel__store_postgres, NULL};

static void plan(struct world *w, int from, int to)
{
    size_t which[MESSAGES], n = 0;
    char id[32], account[16];

    for (int i = from; i < to; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        snprintf(account, sizeof account, "acc-%d", i % 3);
        which[n++] = world_plan(w, id, booking(TASK_OK, 1, account, 100 + i), 1);
    }
    world_push(w, which, n);
}

static void until(const struct pg_server *server, const char *database, const char *sql)
{
    for (int tries = 0; pg_server_ask(server, database, sql) == 0; tries++) {
        if (tries > 3000)
            fail_msg("never came true: %s", sql);
        poll(NULL, 0, 10);
    }
}

static void until_acked(struct world *w)
{
    for (int tries = 0; world_unacked(w) > 0; tries++) {
        assert_true(tries < 3000);
        poll(NULL, 0, 10);
    }
}

static void be_at(struct world *w, int port)
{
    snprintf(w->store, sizeof w->store, "postgres://postgres@127.0.0.1:%d/world", port);
}

/* Both servers; whoever takes writes is meant. */
static void be_at_either(struct world *w)
{
    snprintf(w->store, sizeof w->store,
             "postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/world?target_session_attrs=read-write", world_server.port,
             standby.port);
}

static void follow(const char *names)
{
    char sql[128];

    pg_server_standby(&standby, &world_server, PG_SERVER_NO_FSYNC);
    until(&world_server, NULL, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'");
    snprintf(sql, sizeof sql, "ALTER SYSTEM SET synchronous_standby_names = '%s'", names);
    pg_server_sql(&world_server, NULL, sql);
    pg_server_sql(&world_server, NULL, "SELECT pg_reload_conf()");
    snprintf(sql, sizeof sql, "SELECT (current_setting('synchronous_standby_names') = '%s')::int", names);
    until(&world_server, NULL, sql);
}

static void lose_the_primary(void)
{
    pg_server_stop(&world_server, PG_STOP_KILL);
    if (standby.process.pid == 0)
        pg_server_again(&standby);
    pg_server_promote(&standby);
}

/* How many were acknowledged and are not in the books of this server. */
static int64_t lost_of(struct world *w)
{
    return MESSAGES - world_count(w, "SELECT count(DISTINCT message_id) FROM ledger") - world_unacked(w);
}

static void assert_noted(const char *database)
{
    assert_int_equal(pg_server_ask(&standby, database,
                                   "SELECT count(*) FROM semel.timeline WHERE former = 1 AND timeline = 2 AND note IS "
                                   "NOT NULL AND kept_until IS NOT NULL"),
                     1);
    assert_int_equal(pg_server_ask(&standby, database, "SELECT count(*) FROM semel.timeline"), 2);
    assert_int_equal(pg_server_ask(&standby, database,
                                   "SELECT count(*) FROM semel.audit AS a JOIN semel.timeline AS t ON t.note = "
                                   "a.reason WHERE a.what = 'timeline'"),
                     1);
}

static void assert_status_tells(const char *url)
{
    struct semel_store *store = NULL;
    struct semel_error err;
    char about[256];

    assert_int_equal(semel_store_open(&store, stores, url, NULL, &err), SEMEL_OK);
    semel__pg_about(store, about, sizeof about);
    semel_store_close(store);
    assert_non_null(strstr(about, "the server was promoted or restored (timeline 1 to 2)"));
}

/* ---- a worker ------------------------------------------------------------------------------------------ */

/* P16: what an asynchronous standby did not have is gone, and every running worker is told which commits it has; what
 * the source still has makes it good. */
static void loss_of_an_asynchronous_standby_is_noticed_told_and_made_good_by_the_source(void **state)
{
    struct child *worker;

    (void)state;
    world_open(&world, 1);
    follow("");
    plan(&world, 0, HALF);
    be_at_either(&world);
    worker = world_start(&world, NULL, ARGS("effect=atomic", "until=stop", "deadline_ms=600000"));
    until_acked(&world);
    until(&standby, "world", "SELECT (count(*) = 6)::int FROM ledger");
    pg_server_stop(&standby, PG_STOP_FAST); /* it falls behind */
    plan(&world, HALF, MESSAGES);
    until_acked(&world);
    assert_false(world_alerted(&world, "error the server was promoted"));
    lose_the_primary();
    for (int tries = 0; !world_alerted(&world, TOLD); tries++) {
        assert_true(tries < 3000);
        poll(NULL, 0, 10);
    }
    be_at(&world, standby.port);
    assert_int_equal(lost_of(&world), HALF);
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel_inbox WHERE status = 'completed'"), HALF);
    assert_noted("world");
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel.timeline AS t WHERE t.kept_until < (SELECT "
                                         "max(processed_at) FROM semel.inbox)"),
                     0); /* what is here was committed before that moment */
    assert_status_tells(world.store);
    world_requeue(&world); /* the source still has them */
    until_acked(&world);
    kill(worker->pid, SIGTERM);
    assert_int_equal(world_end(&world, worker), 0);
    world_balances(&world);
    assert_noted("world"); /* still once */
}

/* P16 */
static void synchronous_standby_lacks_nothing_that_was_acknowledged_and_tick_notes_its_promotion(void **state)
{
    struct child *worker;

    (void)state;
    world_open(&world, 1);
    follow("standby");
    plan(&world, 0, MESSAGES);
    worker = world_start(&world, NULL, ARGS("effect=atomic", "until=stop", "batch=2", "deadline_ms=600000"));
    for (int tries = 0; world_unacked(&world) > HALF; tries++) {
        assert_true(tries < 3000);
        poll(NULL, 0, 5);
    }
    lose_the_primary();
    kill(worker->pid, SIGKILL);
    assert_true(killed(world_end(&world, worker)));
    be_at(&world, standby.port);
    assert_true(lost_of(&world) <= 0);
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel.timeline"), 1);
    pg_server_sql(&standby, "world", "SELECT semel.tick()");
    pg_server_sql(&standby, "world", "SELECT semel.tick()");
    assert_noted("world");
    world_run(&world, ARGS("effect=atomic"));
    world_balances(&world);
    assert_noted("world");
}

/* ---- behind a pooler ------------------------------------------------------------------------------------- */

static semel_status list_sources(struct semel_store *store, struct semel_error *err)
{
    struct semel_arena arena;
    struct semel_str *names;
    size_t n;
    semel_status status;

    semel__arena_init(&arena, 1 << 20);
    status = semel_store_sources(store, SEMEL_STR("books"), &arena, &names, &n, err);
    semel__arena_done(&arena);
    return status;
}

/* P16, P17: its connection is the pooler's, and stays. */
static void handle_behind_a_pooler_notices_without_a_new_connection(void **state)
{
    struct semel_store *store = NULL;
    struct semel_error err;
    char url[PG_SERVER_TEXT];

    (void)state;
    world_open(&world, 1);
    follow("");
    pg_pooler_start(&pooler, &world_server, 1);
    snprintf(url, sizeof url, "postgres://postgres@127.0.0.1:%d/world?semel_pooler=1", pooler.port);
    assert_int_equal(semel_store_open(&store, stores, url, NULL, &err), SEMEL_OK);
    assert_int_equal(list_sources(store, &err), SEMEL_OK);
    world_sql(&world, "CREATE TABLE later ()");
    until(&world_server, NULL,
          "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"); /* NULL: not yet */
    lose_the_primary();
    pg_pooler_point(&pooler, &standby);
    assert_int_equal(list_sources(store, &err), SEMEL_RETRY);
    assert_int_equal(err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_non_null(strstr(err.text, "timeline 1 to 2"));
    assert_int_equal(list_sources(store, &err), SEMEL_OK); /* told once */
    semel_store_close(store);
    assert_noted("world");
}

/* A role that may only read looks, and cannot note; it is not in anybody's way. */
static void restart_is_no_promotion_and_an_operator_may_look(void **state)
{
    struct semel_store *store = NULL;
    struct semel_error err;
    char url[PG_SERVER_TEXT];

    (void)state;
    world_open(&world, 1);
    world_sql(&world, "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA semel TO reader; GRANT SELECT ON ALL TABLES IN "
                      "SCHEMA semel TO reader");
    snprintf(url, sizeof url, "postgres://reader@127.0.0.1:%d/world", world_server.port);
    assert_int_equal(semel_store_open(&store, stores, url, NULL, &err), SEMEL_OK);
    pg_server_restart(&world_server, PG_STOP_KILL);
    assert_int_equal(semel_store_reopen(store, &err), SEMEL_OK);
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel.timeline"), 1);
    world_sql(&world, "INSERT INTO semel.timeline (timeline) VALUES (7)"); /* as if it had been another before */
    assert_int_equal(semel_store_reopen(store, &err), SEMEL_OK);
    assert_int_equal(world_count(&world, "SELECT max(timeline) FROM semel.timeline WHERE number = (SELECT max(number) "
                                         "FROM semel.timeline)"),
                     7);
    semel_store_close(store);
    world_sql(&world, "DROP OWNED BY reader; DROP ROLE reader");
}

/* ---- */

static int close_all(void **state)
{
    (void)state;
    world_close(&world);
    pg_pooler_done(&pooler);
    pg_server_done(&standby);
    if (world_server.process.pid == 0)
        pg_server_again(&world_server);
    pg_server_sql(&world_server, NULL, "ALTER SYSTEM RESET synchronous_standby_names");
    pg_server_sql(&world_server, NULL, "SELECT pg_reload_conf()");
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(name, close_all)
    const struct CMUnitTest tests[] = {
        TEST(loss_of_an_asynchronous_standby_is_noticed_told_and_made_good_by_the_source),
        TEST(synchronous_standby_lacks_nothing_that_was_acknowledged_and_tick_notes_its_promotion),
        TEST(handle_behind_a_pooler_notices_without_a_new_connection),
        TEST(restart_is_no_promotion_and_an_operator_may_look),
    };

    return world_main(argc, argv, tests, COUNT(tests));
}
