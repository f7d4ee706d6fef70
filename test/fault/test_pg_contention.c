/* SPDX-License-Identifier: MIT
 *
 * test_pg_contention.c: others are in the way: deadlocks, serialization failures, a worker that stands still with its
 * locks in hand, a pooler between. Nobody is charged for what the world did, and nothing stands still for ever.
 */
#include <poll.h>
#include <signal.h>

#include <libpq-fe.h>

#include "fault/world.h"
#include "support/world_pg.h"
#include "pg/pooler.h"

#define MESSAGES 40
#define ACCOUNTS 5

static struct world world;
static struct pg_pooler pooler;

static void plan(struct world *w, enum task_kind kind)
{
    char id[32], account[16];
    size_t which[MESSAGES];

    for (int i = 0; i < MESSAGES; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        snprintf(account, sizeof account, "acc-%d", i % ACCOUNTS);
        struct task task = booking(i % 7 == 1 ? kind : TASK_OK, 1, account, 100 + i);
        task.version = i / ACCOUNTS + 1;
        which[i] = world_plan(w, id, task, 1);
    }
    world_push(w, which, MESSAGES);
}

/* The books balance, and no message was charged for what was not its fault. */
static void assert_innocent(struct world *w)
{
    world_balances(w);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_inbox WHERE status <> 'completed' OR attempts <> 1"),
                     0);
    assert_int_equal(world_count(w, "SELECT count(*) FROM semel_attempt"), 0);
}

static PGconn *outsider(void)
{
    char conninfo[PG_SERVER_TEXT];
    PGconn *conn = PQconnectdb(pg_server_conninfo(&world_server, "world", conninfo));

    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    return conn;
}

static void run(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);

    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    PQclear(result);
}

/* ---- deadlocks and serialization failures ----------------------------------------------------------- */

/* P61: an application that takes the accounts in another order makes a deadlock, and the worker is the victim. */
static void deadlock_with_an_application_is_retried_and_charges_nobody(void **state)
{
    struct child *worker;
    PGconn *conn;

    (void)state;
    world_open(&world, 1);
    plan(&world, TASK_OK);
    world_sql(&world, "INSERT INTO accounts SELECT 'acc-' || i, 0, 0 FROM generate_series(0, 4) AS i;"
                      "ALTER DATABASE world SET deadlock_timeout = '20ms'");
    conn = outsider();
    run(conn, "SET deadlock_timeout = '60s'; BEGIN; UPDATE accounts SET chain = chain WHERE account = 'acc-4'");
    worker = world_start(&world, NULL, ARGS("effect=atomic", "batch=40"));
    /* The worker holds acc-0 and waits for acc-4 now. */
    world_until(&world, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'semel' AND wait_event_type = "
                        "'Lock' AND datname = 'world'");
    run(conn,
        "UPDATE accounts SET chain = chain WHERE account = 'acc-0'"); /* the deadlock; returns when it is broken */
    run(conn, "COMMIT");
    PQfinish(conn);
    assert_int_equal(world_end(&world, worker), 0);
    assert_innocent(&world);
    assert_true(world_report(&world, "worker", "cuts") > 0);
}

/* P13, P61: whatever the database says of itself, it is not the message: not in a batch, and not when it runs alone. */
static void serialization_failures_and_deadlocks_inside_a_handler_charge_nobody(void **state)
{
    static const char *const codes[] = {"40001", "40P01", "55P03"};

    (void)state;
    for (size_t i = 0; i < COUNT(codes); i++) {
        char sql[600];
        print_message("[ %s ]\n", codes[i]);
        world_open(&world, 1);
        plan(&world, TASK_OK);
        snprintf(sql, sizeof sql,
                 "CREATE SEQUENCE strikes_03; CREATE SEQUENCE strikes_17;"
                 "CREATE FUNCTION strike() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                 "IF nextval(('strikes_' || right(NEW.message_id, 2))::regclass) <= 5 THEN RAISE SQLSTATE '%s'; END IF;"
                 " RETURN NEW; END $$;"
                 "CREATE TRIGGER strike BEFORE INSERT ON ledger FOR EACH ROW WHEN (NEW.message_id IN ('m-03', 'm-17')) "
                 "EXECUTE FUNCTION strike()",
                 codes[i]);
        world_sql(&world, sql);
        world_run(&world, ARGS("effect=atomic", "batch=8"));
        assert_innocent(&world);
        world_close(&world);
    }
}

/* Several workers on the same few accounts, in any order of arrival. */
static void workers_that_update_the_same_rows_finish_without_charging_anybody(void **state)
{
    struct child *workers[4];

    (void)state;
    world_open(&world, 5);
    plan(&world, TASK_OK);
    for (size_t i = 0; i < COUNT(workers); i++)
        workers[i] = world_start(&world, NULL, ARGS("effect=atomic", "batch=10", i % 2 == 0 ? "queue=1" : "queue=0"));
    for (size_t i = 0; i < COUNT(workers); i++)
        assert_int_equal(world_end(&world, workers[i]), 0);
    assert_innocent(&world);
}

/* ---- purge --------------------------------------------------------------------------------------------- */

/* Messages that were made two hours ago, completed, with a retention of one. */
static void plan_old(struct world *w, int n)
{
    char id[64];

    for (int i = 0; i < n; i++) {
        id_of_age(w, 7200, id);
        world_send(w, id, booking(TASK_OK, 0, "acc-0", 100 + i), 1);
    }
    world_run(w, ARGS("effect=atomic"));
    world_age(w, 7200);
}

/* It has waited for the row of its first run to go, and the watermark that came with that is seen. */
static void purge_while_its_copy_waits(const char *effect)
{
    struct child *worker;
    PGconn *conn;

    world_open(&world, 1);
    plan_old(&world, 1);
    conn = outsider();
    run(conn, "BEGIN; INSERT INTO semel.watermark VALUES ('books', 'orders', now() - interval '1 hour', now());"
              "DELETE FROM semel.inbox");
    world_again(&world, 0);
    worker = world_start(&world, NULL, ARGS(effect));
    world_until(&world, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'semel' AND wait_event_type = "
                        "'Lock' AND datname = 'world'");
    run(conn, "COMMIT");
    PQfinish(conn);
    assert_int_equal(world_end(&world, worker), 0);
    world_balances(&world);
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel_inbox WHERE status = 'quarantined'"), 1);
    world_close(&world);
}

/* P60: a row is inserted by semel._inbox_new if its effect is in the database, and by inbox_insert if it is claimed. */
static void message_that_is_purged_while_its_copy_waits_does_not_run_again(void **state)
{
    (void)state;
    purge_while_its_copy_waits("effect=atomic");
    purge_while_its_copy_waits("effect=keyed");
}

/* P10 */
static void purge_waits_for_nobody(void **state)
{
    PGconn *conn;

    (void)state;
    world_open(&world, 1);
    plan_old(&world, 5);
    conn = outsider();
    run(conn, "BEGIN; SELECT 1 FROM semel.inbox ORDER BY message_time LIMIT 1 FOR UPDATE");
    world_run(&world, ARGS("effect=atomic", "mode=purge", "retention_s=3600"));
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel_inbox"), 1);
    run(conn, "COMMIT");
    PQfinish(conn);
    world_run(&world, ARGS("effect=atomic", "mode=purge", "retention_s=3600"));
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel_inbox"), 0);
}

/* ---- a worker that stands still ----------------------------------------------------------------------- */

/* P64: the server ends the transaction of one that stands still, and its successor goes on. */
static void worker_stopped_in_mid_batch_does_not_block_its_successor_for_ever(void **state)
{
    struct child *stopped, *heir;

    (void)state;
    world_open(&world, 1);
    world_sql(&world, "ALTER DATABASE world SET idle_in_transaction_session_timeout = '1s'");
    plan(&world, TASK_OK);
    stopped = world_start(&world, "SEMEL_STOP_AT=batch.settled:1",
                          ARGS("effect=atomic", "batch=100", "name=stopped", "deadline_ms=200000"));
    world_stopped(&world, stopped);
    heir = world_start(&world, NULL, ARGS("effect=atomic", "name=heir", "until=stop", "deadline_ms=200000"));
    for (int tries = 0; world_count(&world, "SELECT count(*) FROM ledger") < MESSAGES; tries++) {
        assert_true(tries < 12000);
        poll(NULL, 0, 10);
    }
    kill(stopped->pid, SIGCONT);
    assert_int_equal(world_end(&world, stopped), 0);
    kill(heir->pid, SIGTERM);
    assert_int_equal(world_end(&world, heir), 0);
    world_balances(&world);
}

/* ---- a pooler between --------------------------------------------------------------------------------- */

/* P17 */
static void workers_behind_a_transaction_pooler_leave_the_books_balanced(void **state)
{
    static const char *const routes[] = {"order=none", "order=version"};
    struct child *workers[4];

    (void)state;
    pg_pooler_start(&pooler, &world_server, 3); /* fewer than workers */
    for (size_t route = 0; route < COUNT(routes); route++) {
        world_open(&world, 9 + route);
        plan(&world, TASK_FLAKY);
        for (size_t i = 0; i < MESSAGES; i++)
            world_again(&world, i);
        snprintf(world.store, sizeof world.store, "postgres://postgres@127.0.0.1:%d/world?semel_pooler=1", pooler.port);
        for (size_t i = 0; i < COUNT(workers); i++)
            workers[i] = world_start(&world, NULL, ARGS("effect=atomic", routes[route], "batch=10"));
        kill(workers[0]->pid, SIGKILL);
        assert_true(killed(world_end(&world, workers[0])));
        for (size_t i = 1; i < COUNT(workers); i++)
            assert_int_equal(world_end(&world, workers[i]), 0);
        snprintf(world.store, sizeof world.store, "postgres://postgres@127.0.0.1:%d/world", world_server.port);
        world_balances(&world);
        world_close(&world);
    }
}

static int close_all(void **state)
{
    (void)state;
    world_close(&world);
    pg_pooler_done(&pooler);
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(name, close_all)
    const struct CMUnitTest tests[] = {
        TEST(deadlock_with_an_application_is_retried_and_charges_nobody),
        TEST(serialization_failures_and_deadlocks_inside_a_handler_charge_nobody),
        TEST(workers_that_update_the_same_rows_finish_without_charging_anybody),
        TEST(message_that_is_purged_while_its_copy_waits_does_not_run_again),
        TEST(purge_waits_for_nobody),
        TEST(workers_behind_a_transaction_pooler_leave_the_books_balanced),
        TEST(worker_stopped_in_mid_batch_does_not_block_its_successor_for_ever),
    };

    return world_main(argc, argv, tests, COUNT(tests));
}
