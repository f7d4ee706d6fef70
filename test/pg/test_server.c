/* SPDX-License-Identifier: MIT
 *
 * test_server.c: what other tests stand on: private servers, the proxy that cuts around COMMIT, the pooler.
 */
#include "pg/server.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "pg/pooler.h"
#include "pg/proxy.h"
#include "unit/unit.h"

static struct pg_server server;

static int start(void **state)
{
    (void)state;
    pg_server_start(&server, 0);
    return 0;
}

static int done(void **state)
{
    (void)state;
    pg_server_done(&server);
    return 0;
}

static void committed_rows_survive_every_way_to_stop(void **state)
{
    (void)state;
    pg_server_database(&server, "t");
    pg_server_sql(&server, "t", "CREATE TABLE kept (n int)");
    for (int how = PG_STOP_FAST; how <= PG_STOP_KILL; how++) {
        pg_server_sql(&server, "t", "INSERT INTO kept VALUES (1)");
        pg_server_restart(&server, (enum pg_stop)how);
        assert_int_equal(pg_server_ask(&server, "t", "SELECT count(*) FROM kept"), how + 1);
    }
}

static void database_is_empty_when_it_is_made_again(void **state)
{
    (void)state;
    pg_server_database(&server, "again");
    pg_server_sql(&server, "again", "CREATE TABLE t (n int)");
    pg_server_database(&server, "again");
    assert_int_equal(pg_server_ask(&server, "again", "SELECT count(*) FROM pg_tables WHERE tablename = 't'"), 0);
}

static void standby_follows_and_can_be_promoted(void **state)
{
    struct pg_server standby;

    (void)state;
    pg_server_sql(&server, NULL, "CREATE TABLE followed (n int)");
    pg_server_standby(&standby, &server, PG_SERVER_NO_FSYNC);
    pg_server_sql(&server, NULL, "INSERT INTO followed VALUES (1)");
    for (int tries = 0; pg_server_ask(&standby, NULL, "SELECT count(*) FROM followed") == 0; tries++) {
        assert_true(tries < 3000);
        poll(NULL, 0, 10);
    }
    pg_server_promote(&standby);
    pg_server_sql(&standby, NULL, "INSERT INTO followed VALUES (2)");
    assert_int_equal(pg_server_ask(&standby, NULL, "SELECT count(*) FROM followed"), 2);
    pg_server_done(&standby);
}

static void wait_gone(const char *path, pid_t pid)
{
    for (int tries = 0; access(path, F_OK) == 0 || kill(pid, 0) == 0; tries++) {
        assert_true(tries < 3000);
        poll(NULL, 0, 10);
    }
}

static void server_and_folder_go_when_the_test_is_killed(void **state)
{
    struct pg_server theirs;
    int ends[2], status;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        pg_server_start(&theirs, PG_SERVER_NO_FSYNC);
        if (write(ends[1], &theirs, sizeof theirs) == (ssize_t)sizeof theirs)
            raise(SIGKILL);
        _exit(1);
    }
    assert_int_equal(read(ends[0], &theirs, sizeof theirs), sizeof theirs);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    wait_gone(theirs.process.dir, theirs.process.pid);
    close(ends[0]);
    close(ends[1]);
}

/* ---- what stands between -------------------------------------------------------------------------- */

static PGconn *connect_by(int port)
{
    char conninfo[128];
    PGconn *conn;

    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%d user=postgres dbname=cut", port);
    conn = PQconnectdb(conninfo);
    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    return conn;
}

static ExecStatusType run(PGconn *conn, const char *sql, bool prepared)
{
    PGresult *result;
    ExecStatusType status;

    if (prepared)
        PQclear(PQprepare(conn, "it", sql, 0, NULL));
    result = prepared ? PQexecPrepared(conn, "it", 0, NULL, NULL, NULL, 0) : PQexec(conn, sql);
    status = PQresultStatus(result);
    PQclear(result);
    if (prepared)
        PQclear(PQexec(conn, "DEALLOCATE it"));
    return status;
}

/* P15: the connection is lost in both, and only the server knows whether it committed. */
static void proxy_cuts_before_and_after_the_commit(void **state)
{
    struct pg_proxy proxy;
    int rows = 0;

    (void)state;
    pg_server_database(&server, "cut");
    pg_server_sql(&server, "cut", "CREATE TABLE t (n int)");
    pg_proxy_start(&proxy, server.port);
    for (int round = 0; round < 4; round++) {
        const bool answer = round % 2 == 1, prepared = round >= 2;
        PGconn *conn = connect_by(proxy.port);
        pg_proxy_order(&proxy, answer ? PG_PROXY_CUT_ANSWER : PG_PROXY_CUT_REQUEST, 1);
        for (int i = 0; i < 2; i++) { /* the first commit is let through */
            assert_int_equal(run(conn, "BEGIN", prepared), PGRES_COMMAND_OK);
            assert_int_equal(run(conn, "INSERT INTO t VALUES (1)", prepared), PGRES_COMMAND_OK);
            assert_int_equal(run(conn, "COMMIT", prepared), i == 0 ? PGRES_COMMAND_OK : PGRES_FATAL_ERROR);
        }
        assert_int_equal(PQstatus(conn), CONNECTION_BAD);
        PQfinish(conn);
        rows += answer ? 2 : 1;
        assert_int_equal(pg_server_ask(&server, "cut", "SELECT count(*) FROM t"), rows);
        assert_int_equal(pg_proxy_cuts(&proxy), round + 1);
    }
    pg_proxy_done(&proxy);
}

static void pooler_gives_the_next_transaction_another_backend(void **state)
{
    struct pg_pooler pooler;
    PGconn *conn, *other;
    PGresult *first, *second;

    (void)state;
    pg_server_database(&server, "cut");
    pg_pooler_start(&pooler, &server, 2);
    conn = connect_by(pooler.port);
    other = connect_by(pooler.port);
    first = PQexec(conn, "SELECT pg_backend_pid()");
    assert_int_equal(run(other, "BEGIN", false), PGRES_COMMAND_OK); /* takes the one that was used */
    second = PQexec(conn, "SELECT pg_backend_pid()");
    assert_int_equal(PQresultStatus(first), PGRES_TUPLES_OK);
    assert_int_equal(PQresultStatus(second), PGRES_TUPLES_OK);
    assert_string_not_equal(PQgetvalue(first, 0, 0), PQgetvalue(second, 0, 0));
    PQclear(first);
    PQclear(second);
    PQfinish(conn);
    PQfinish(other);
    pg_pooler_done(&pooler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_rows_survive_every_way_to_stop),
        cmocka_unit_test(database_is_empty_when_it_is_made_again),
        cmocka_unit_test(standby_follows_and_can_be_promoted),
        cmocka_unit_test(proxy_cuts_before_and_after_the_commit),
        cmocka_unit_test(pooler_gives_the_next_transaction_another_backend),
        cmocka_unit_test(server_and_folder_go_when_the_test_is_killed),
    };
    return cmocka_run_group_tests(tests, start, done);
}
