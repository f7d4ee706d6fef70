/* SPDX-License-Identifier: MIT
 *
 * test_pg_disk.c: a disk runs full, under the tables or under the log of the server. The route pauses, nobody is
 * charged, and it goes on when there is room (P63).
 *
 * The disks are small file systems in memory; where one cannot be mounted the test says so and is skipped.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include "fault/world.h"
#include "support/world_pg.h"
#include "pg/server.h"

#define MESSAGES 40

static struct world world;

static void plan(struct world *w)
{
    char id[32], account[16];
    size_t which[MESSAGES];

    for (int i = 0; i < MESSAGES; i++) {
        snprintf(id, sizeof id, "m-%02d", i);
        snprintf(account, sizeof account, "acc-%d", i % 5);
        which[i] = world_plan(w, id, booking(TASK_OK, 1, account, 100 + i), 1);
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

/* Every booking writes so many rows of 6.4 kB besides. */
static void make_bookings_wide(struct world *w, int rows)
{
    char sql[600];

    snprintf(sql, sizeof sql,
             "CREATE TABLE wide (t text); ALTER TABLE wide ALTER t SET STORAGE EXTERNAL;"
             "CREATE FUNCTION grow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO wide SELECT repeat(md5("
             "i::text), 200) FROM generate_series(1, %d) AS i; RETURN NEW; END $$;"
             "CREATE TRIGGER grow BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION grow()",
             rows);
    world_sql(w, sql);
}

static void small_disk(char *dir, size_t size, const char *options)
{
    snprintf(dir, size, "%s/small", world_server.process.dir);
    if (!pg_server_disk(&world_server, dir, options)) {
        print_message("skipped: a small file system cannot be mounted here\n");
        skip();
    }
}

/* Up to `most` bytes, or until there is no room. */
static void write_ballast(const char *path, size_t most)
{
    static const char zeros[65536];
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    for (size_t n = 0; n < most && fwrite(zeros, sizeof zeros, 1, f) == 1 && fflush(f) == 0; n += sizeof zeros)
        ;
    fclose(f);
}

/* ---- under the tables ---------------------------------------------------------------------------------- */

/* P63: the tables have no room to grow; the log of the server has. */
static void full_disk_pauses_the_route_and_charges_nobody(void **state)
{
    char dir[96], ballast[128], sql[256];
    struct child *worker;

    (void)state;
    small_disk(dir, sizeof dir, "size=40m");
    snprintf(sql, sizeof sql, "CREATE TABLESPACE small LOCATION '%s'", dir);
    pg_server_sql(&world_server, NULL, sql);
    world_open(&world, 1);
    pg_server_sql(&world_server, NULL, "ALTER DATABASE world SET TABLESPACE small");
    plan(&world);
    make_bookings_wide(&world, 20);
    snprintf(ballast, sizeof ballast, "%s/ballast", dir);
    write_ballast(ballast, SIZE_MAX);
    worker = world_start(&world, NULL, ARGS("effect=atomic", "until=stop", "deadline_ms=100000"));
    for (int tries = 0; world_spool(&world, "SELECT max(deliveries) FROM message") < 2; tries++) { /* it has tried */
        assert_true(tries < 3000);
        poll(NULL, 0, 10);
    }
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel_inbox WHERE status IN ('failed', 'dead')"), 0);
    assert_true(world_alerted(&world, "error ")); /* and tells why it does not go on */
    assert_int_equal(remove(ballast), 0);
    world_until(&world, "SELECT (count(*) = 40)::int FROM ledger");
    kill(worker->pid, SIGTERM);
    assert_int_equal(world_end(&world, worker), 0);
    assert_innocent(&world);
}

/* ---- under the log --------------------------------------------------------------------------------------- */

static bool log_says(const char *text)
{
    static char line[4096];
    FILE *f = fopen(world_server.process.log, "re");
    bool found = false;

    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL)
        found = strstr(line, "PANIC") != NULL && strstr(line, text) != NULL;
    if (f != NULL)
        fclose(f);
    return found;
}

/* The server's log goes to the small disk, and a slot that nobody reads from keeps all of it. */
static void move_log(const char *dir)
{
    char command[512];

    pg_server_sql(&world_server, NULL, "ALTER SYSTEM SET min_wal_size = '32MB'");
    pg_server_sql(&world_server, NULL, "ALTER SYSTEM SET max_wal_size = '32MB'");
    pg_server_sql(&world_server, NULL, "CHECKPOINT");
    pg_server_stop(&world_server, PG_STOP_FAST);
    snprintf(command, sizeof command, "cp -a %s/pg_wal %s/pg_wal && rm -r %s/pg_wal && ln -s %s/pg_wal %s/pg_wal",
             world_server.data, dir, world_server.data, dir, world_server.data);
    assert_true(
        server_run(&world_server.process, SERVER_AS_ITSELF, (const char *const[]){"/bin/sh", "-c", command, NULL}));
    pg_server_again(&world_server);
    pg_server_sql(&world_server, NULL, "SELECT pg_create_physical_replication_slot('keeper', true)");
}

/* P63, T7: without room for its log a server goes down. When somebody has made room and started it again, the work
 * goes on as if nothing had been. */
static void full_disk_under_the_log_takes_the_server_down_and_nothing_else(void **state)
{
    char dir[96], ballast[128];
    struct child *worker;

    (void)state;
    small_disk(dir, sizeof dir, "size=160m");
    world_open(&world, 1);
    move_log(dir);
    plan(&world);
    make_bookings_wide(&world, 640); /* 4 MB each: as much as the whole disk, all together */
    snprintf(ballast, sizeof ballast, "%s/ballast", dir);
    write_ballast(ballast, (size_t)48 << 20);
    worker = world_start(&world, NULL, ARGS("effect=atomic", "until=stop", "deadline_ms=300000"));
    for (int tries = 0; !log_says("No space left on device"); tries++) {
        assert_true(tries < 6000);
        poll(NULL, 0, 10);
    }
    pg_server_stop(&world_server, PG_STOP_IMMEDIATE);
    assert_int_equal(remove(ballast), 0);
    pg_server_again(&world_server);
    pg_server_sql(&world_server, NULL, "SELECT pg_drop_replication_slot('keeper')");
    world_sql(&world, "DROP TRIGGER grow ON ledger");
    world_until(&world, "SELECT (count(*) = 40)::int FROM ledger");
    kill(worker->pid, SIGTERM);
    assert_int_equal(world_end(&world, worker), 0);
    assert_innocent(&world);
}

static int close_world(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(name, close_world)
    const struct CMUnitTest tables[] = {TEST(full_disk_pauses_the_route_and_charges_nobody)};
    const struct CMUnitTest log[] = {TEST(full_disk_under_the_log_takes_the_server_down_and_nothing_else)};
    const int failed = world_main(argc, argv, tables, COUNT(tables)); /* each on a server of its own */

    return failed != 0 ? failed : world_main(argc, argv, log, COUNT(log));
}
