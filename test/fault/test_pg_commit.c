/* SPDX-License-Identifier: MIT
 *
 * test_pg_commit.c: when is a commit a commit? The connection is cut around COMMIT, the server does not wait for its
 * disk or its standby.
 */
#include <poll.h>
#include <signal.h>

#include "fault/world.h"
#include "support/world_pg.h"
#include "pg/proxy.h"

#define MESSAGES 12

static struct world world;
static struct pg_proxy proxy;

static void plan(struct world *w)
{
    size_t which[MESSAGES];
    char id[32], account[16];

    for (int i = 0; i < MESSAGES; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        snprintf(account, sizeof account, "acc-%d", i % 3);
        which[i] = world_plan(w, id, booking(i % 5 == 1 ? TASK_FLAKY : TASK_OK, 1, account, 100 + i), 1);
    }
    world_push(w, which, MESSAGES);
}

static void be_at(struct world *w, int port)
{
    snprintf(w->store, sizeof w->store, "postgres://postgres@127.0.0.1:%d/world", port);
}

/* ---- the answer is lost ------------------------------------------------------------------------------- */

/* Cuts the commit number `skip` + 1 of a worker. False: it has not so many. */
static bool cut(enum pg_proxy_order order, int skip, const char *effect)
{
    bool hit;

    print_message("[ %s, order %d, commit %d ]\n", effect, (int)order, skip + 1);
    world_open(&world, 1);
    plan(&world);
    be_at(&world, proxy.port);
    const int before = pg_proxy_cuts(&proxy);
    pg_proxy_order(&proxy, order, skip);
    world_run(&world, ARGS(effect, "batch=4"));
    pg_proxy_order(&proxy, PG_PROXY_PASS, 0);
    hit = pg_proxy_cuts(&proxy) > before;
    if (strcmp(effect, "effect=atomic") == 0) {
        world_balances(&world);
    } else {
        int64_t calls = 0;
        world_balances_outside(&world, &calls);
    }
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel_inbox WHERE status <> 'completed'"), 0);
    world_close(&world);
    return hit;
}

/* P15: after an unknown commit the rows are read again, on a new connection, before anything is done. */
static void commit_whose_answer_is_lost_is_found_out_and_never_repeated(void **state)
{
    int cuts = 0;

    (void)state;
    for (int skip = 0; skip < 6 && cut(PG_PROXY_CUT_ANSWER, skip, "effect=atomic"); skip++)
        cuts++;
    for (int skip = 0; skip < 6 && cut(PG_PROXY_CUT_ANSWER, skip, "effect=keyed"); skip++)
        cuts++;
    assert_true(cuts >= 8);
}

/* P15: and one that never arrived is not taken for done. */
static void commit_that_never_arrived_is_done_again(void **state)
{
    int cuts = 0;

    (void)state;
    for (int skip = 0; skip < 6 && cut(PG_PROXY_CUT_REQUEST, skip, "effect=atomic"); skip++)
        cuts++;
    for (int skip = 0; skip < 6 && cut(PG_PROXY_CUT_REQUEST, skip, "effect=keyed"); skip++)
        cuts++;
    assert_true(cuts >= 8);
}

/* ---- the server does not wait ------------------------------------------------------------------------- */

/* P72 */
static void nothing_runs_while_synchronous_commit_is_off(void **state)
{
    struct child *worker;

    (void)state;
    world_open(&world, 1);
    plan(&world);
    pg_server_sql(&world_server, NULL, "ALTER DATABASE world SET synchronous_commit = off");
    worker = world_start(&world, NULL, ARGS("effect=atomic", "until=stop"));
    for (int tries = 0; world_spool(&world, "SELECT max(deliveries) FROM message") < 2; tries++) { /* it has tried */
        assert_true(tries < 3000);
        poll(NULL, 0, 10);
    }
    assert_int_equal(world_count(&world, "SELECT (SELECT count(*) FROM ledger) + (SELECT count(*) FROM semel_inbox)"),
                     0);
    assert_int_equal(world_unacked(&world), MESSAGES);
    kill(worker->pid, SIGTERM);
    assert_int_equal(world_end(&world, worker), 0);
    pg_server_sql(&world_server, NULL, "ALTER DATABASE world RESET synchronous_commit");
    world_run(&world, ARGS("effect=atomic"));
    world_balances(&world);
}

static void reload(void)
{
    pg_server_sql(&world_server, NULL, "SELECT pg_reload_conf()");
}

static void until(const struct pg_server *server, const char *sql)
{
    for (int tries = 0; pg_server_ask(server, NULL, sql) == 0; tries++) {
        if (tries > 3000)
            fail_msg("never came true: %s", sql);
        poll(NULL, 0, 10);
    }
}

/* P16: a COMMIT whose wait for its standby is cancelled says COMMIT all the same, with a warning. */
static void commit_that_did_not_wait_for_its_standby_is_not_acknowledged(void **state)
{
    struct child *worker;

    (void)state;
    world_open(&world, 1);
    plan(&world);
    pg_server_sql(&world_server, NULL, "ALTER SYSTEM SET synchronous_standby_names = 'standby'");
    reload();
    until(&world_server, "SELECT (current_setting('synchronous_standby_names') = 'standby')::int");
    worker = world_start(&world, NULL, ARGS("effect=atomic", "until=stop", "batch=100"));
    until(&world_server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = 'world'");
    assert_int_equal(world_unacked(&world), MESSAGES);
    pg_server_sql(
        &world_server, NULL,
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = 'world'");
    until(&world_server, "SELECT (count(*) = 0)::int FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
    for (int tries = 0; tries < 100; tries++) { /* the rows are there, and yet */
        assert_int_equal(world_unacked(&world), MESSAGES);
        poll(NULL, 0, 10);
    }
    kill(worker->pid, SIGKILL);
    assert_true(killed(world_end(&world, worker)));
    pg_server_sql(&world_server, NULL, "ALTER SYSTEM RESET synchronous_standby_names");
    reload();
    until(&world_server, "SELECT (current_setting('synchronous_standby_names') = '')::int");
    world_run(&world, ARGS("effect=atomic"));
    world_balances(&world);
}

/* ---- */

static int start_proxy(void **state)
{
    (void)state;
    pg_proxy_start(&proxy, world_server.port);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    world_close(&world);
    pg_proxy_done(&proxy);
    pg_server_sql(&world_server, NULL, "ALTER SYSTEM RESET synchronous_standby_names");
    reload();
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(name, close_all)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(commit_whose_answer_is_lost_is_found_out_and_never_repeated, start_proxy,
                                        close_all),
        cmocka_unit_test_setup_teardown(commit_that_never_arrived_is_done_again, start_proxy, close_all),
        TEST(nothing_runs_while_synchronous_commit_is_off),
        TEST(commit_that_did_not_wait_for_its_standby_is_not_acknowledged),
    };

    return world_main(argc, argv, tests, COUNT(tests));
}
