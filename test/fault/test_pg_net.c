/* SPDX-License-Identifier: MIT
 *
 * test_pg_net.c: the connection itself: what the other end may do to it, what the roles and databases of the other end
 * may have set, and how long anybody waits (P64, P72). In this process, on one handle; what becomes of whole workers is
 * in test_pg_backends.c and test_pg_contention.c.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "pg/proxy.h"
#include "unit/test_pg.h"

static void assert_says(const struct world *w, enum semel_class cls, const char *what)
{
    assert_int_equal(w->err.cls, cls);
    if (strstr(w->err.text, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", w->err.text, what);
}

static void open_at(struct world *w, const char *url)
{
    semel_store_close(w->store);
    w->store = NULL;
    ok(w, semel_store_open(&w->store, linked, url, &usual, &w->err));
}

static long long rows(void)
{
    return ask("SELECT count(*) FROM semel.inbox");
}

static semel_status begin_own(struct world *w)
{
    int64_t now_us = 0;

    return semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err);
}

/* ---- how long a dead peer goes unnoticed ----------------------------------------------------------- */

static int option_of(const struct world *w, int level, int name)
{
    int value = -1;
    socklen_t n = sizeof value;

    assert_int_equal(getsockopt(PQsocket(semel_store_native(w->store)), level, name, &value, &n), 0);
    return value;
}

static void dead_peer_is_noticed_by_the_kernel(void **state)
{
    struct world *w = *state; /* P64 */
    char url[2 * PG_SERVER_TEXT + 64];

    assert_int_equal(option_of(w, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option_of(w, IPPROTO_TCP, TCP_KEEPIDLE), 10);
    assert_int_equal(option_of(w, IPPROTO_TCP, TCP_KEEPINTVL), 5);
    assert_int_equal(option_of(w, IPPROTO_TCP, TCP_KEEPCNT), 3);
    assert_int_equal(option_of(w, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
    snprintf(url, sizeof url, "%s?tcp_user_timeout=7000&keepalives_idle=3", w->url);
    open_at(w, url);
    assert_int_equal(option_of(w, IPPROTO_TCP, TCP_USER_TIMEOUT), 7000); /* what the URL says counts */
    assert_int_equal(option_of(w, IPPROTO_TCP, TCP_KEEPIDLE), 3);
}

static void server_that_accepts_and_never_answers_is_given_up(void **state)
{
    struct world *w = *state; /* P64 */
    struct semel_store *store = NULL;
    struct pg_proxy proxy;
    char url[PG_SERVER_TEXT];

    pg_proxy_start(&proxy, world_server.port);
    snprintf(url, sizeof url, "postgres://postgres@127.0.0.1:%d/t?connect_timeout=1", proxy.port);
    open_at(w, url);
    pg_proxy_order(&proxy, PG_PROXY_STALL, 0);
    assert_int_equal(semel_store_open(&store, linked, url, &usual, &w->err), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "connect_timeout");
    assert_int_equal(semel_store_reopen(w->store, &w->err), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "connect_timeout");
    assert_int_equal(begin_own(w), SEMEL_CLOSED);
    pg_proxy_order(&proxy, PG_PROXY_PASS, 0);
    ok(w, semel_store_reopen(w->store, &w->err));
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, semel_store_commit(w->store, &w->err));
    pg_proxy_done(&proxy);
}

/* Nothing is closed, nothing answers: only the patience of the driver ends that. It is longer than every time-out of
 * the server, so this is for the long run. */
static void server_that_falls_silent_is_given_up_and_its_commit_is_unknown(void **state)
{
    struct world *w = *state; /* P15, P64 */
    struct pg_proxy proxy;
    char url[PG_SERVER_TEXT];

    if (getenv("SEMEL_LONG") == NULL) {
        print_message("skipped: it waits for longer than a minute; SEMEL_LONG=1\n");
        skip();
    }
    pg_proxy_start(&proxy, world_server.port);
    snprintf(url, sizeof url, "postgres://postgres@127.0.0.1:%d/t?connect_timeout=1", proxy.port);
    open_at(w, url);
    begin(w);
    assert_true(admit(w, "a"));
    pg_proxy_order(&proxy, PG_PROXY_STALL, 0);
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_UNKNOWN);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "did not answer");
    assert_int_equal(begin_own(w), SEMEL_CLOSED);
    pg_proxy_order(&proxy, PG_PROXY_PASS, 0);
    ok(w, semel_store_reopen(w->store, &w->err));
    pg_proxy_done(&proxy);
}

/* ---- what the other end has set ------------------------------------------------------------------------ */

static void shorter_time_outs_of_a_role_or_database_are_kept_and_longer_ones_are_not(void **state)
{
    struct world *w = *state; /* P64 */

    sql("ALTER DATABASE t SET statement_timeout = '1500ms'; ALTER DATABASE t SET idle_in_transaction_session_timeout = "
        "'30s'");
    ok(w, semel_store_reopen(w->store, &w->err));
    begin(w);
    assert_true(handler(w, "DO $$ BEGIN ASSERT current_setting('statement_timeout') = '1500ms'; "
                           "ASSERT current_setting('idle_in_transaction_session_timeout') = '30s'; END $$"));
    ok(w, semel_store_commit(w->store, &w->err));
    sql("ALTER DATABASE t SET statement_timeout = '2h'; ALTER DATABASE t SET idle_in_transaction_session_timeout = "
        "'1d'");
    ok(w, semel_store_reopen(w->store, &w->err));
    begin(w);
    assert_true(handler(w, "DO $$ BEGIN ASSERT current_setting('statement_timeout') = '1min'; "
                           "ASSERT current_setting('idle_in_transaction_session_timeout') = '1min'; END $$"));
    ok(w, semel_store_commit(w->store, &w->err));
}

/* Each on its own; the last one is what a handler leaves behind for the next transaction. */
static void nothing_begins_where_synchronous_commit_is_off_whoever_has_set_it(void **state)
{
    static const char *const set[][2] = {
        {"ALTER DATABASE t SET synchronous_commit = off", "ALTER DATABASE t RESET synchronous_commit"},
        {"ALTER ROLE postgres SET synchronous_commit = off", "ALTER ROLE postgres RESET synchronous_commit"},
        {"ALTER ROLE postgres IN DATABASE t SET synchronous_commit = off",
         "ALTER ROLE postgres IN DATABASE t RESET synchronous_commit"},
    };
    struct world *w = *state; /* P72 */
    char url[2 * PG_SERVER_TEXT + 64];

    for (size_t i = 0; i < COUNT(set); i++) {
        sql(set[i][0]);
        ok(w, semel_store_reopen(w->store, &w->err));
        assert_int_equal(begin_own(w), SEMEL_INVALID);
        assert_says(w, SEMEL_CLASS_ENVIRONMENT, "synchronous_commit is off");
        sql(set[i][1]);
        ok(w, semel_store_reopen(w->store, &w->err));
        begin(w);
        semel_store_rollback(w->store);
    }
    snprintf(url, sizeof url, "%s?options=-c%%20synchronous_commit%%3Doff", w->url);
    open_at(w, url);
    assert_int_equal(begin_own(w), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "synchronous_commit is off");
    open_at(w, w->url);
    PQclear(PQexec(semel_store_native(w->store), "SET synchronous_commit = off"));
    assert_int_equal(begin_own(w), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "synchronous_commit is off");
}

/* A handler that turns it off for the session is found out before its own commit. */
static void handler_that_turns_synchronous_commit_off_commits_nothing(void **state)
{
    struct world *w = *state; /* P72 */

    begin(w);
    assert_true(admit(w, "a"));
    assert_true(handler(w, "SET synchronous_commit = off"));
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_PERMANENT, "synchronous_commit");
    assert_int_equal(rows(), 0);
    begin(w); /* the rollback has taken the setting back */
    assert_true(admit(w, "a"));
    ok(w, semel_store_commit(w->store, &w->err));
}

/* ---- who else is there ---------------------------------------------------------------------------------- */

/* P65: what is unfinished of a key may be decided only by one at a time, also where the key has long been there. */
static void key_that_another_has_locked_is_waited_for(void **state)
{
    struct world *w = *state;
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, "k");
    PGconn *conn = connect_to(w);

    exec(conn, "INSERT INTO semel.order_key (consumer, order_key) VALUES ('c', 'k')");
    exec(conn, "BEGIN");
    exec(conn, "SELECT 1 FROM semel.order_key FOR UPDATE");
    begin(w);
    assert_int_equal(try_admit(w, w->store, &item, &key), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_TRANSIENT, "55P03");
    semel_store_rollback(w->store);
    PQfinish(conn);
    begin(w);
    ok(w, try_admit(w, w->store, &item, &key));
    ok(w, semel_store_commit(w->store, &w->err));
}

/* ---- the caller's own connection ------------------------------------------------------------------------- */

static void callers_connection_that_is_lost_is_closed_and_nothing_was_recorded(void **state)
{
    struct world *w = *state;
    struct semel_store *store = NULL;
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, NULL);
    PGconn *conn = connect_to(w);
    int64_t now_us = 0;
    char text[96];

    ok(w, semel__store_pg_wrap(&store, conn, &usual, &w->err));
    exec(conn, "BEGIN");
    ok(w, semel_store_begin(store, SEMEL_TX_JOIN, &now_us, &w->err));
    ok(w, try_admit(w, store, &item, NULL));
    snprintf(text, sizeof text, "SELECT pg_terminate_backend(%d, 5000)::integer", PQbackendPID(conn));
    assert_int_equal(ask(text), 1);
    item = item_of("b", SEMEL_ROW_COMPLETED, NULL);
    assert_int_equal(try_admit(w, store, &item, NULL), SEMEL_CLOSED);
    assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
    semel_store_leave(store);
    assert_int_equal(semel_store_reopen(store, &w->err), SEMEL_CLOSED); /* it is not ours to open */
    semel_store_close(store);
    PQfinish(conn);
    assert_int_equal(rows(), 0);
}

int main(void)
{
#define OPEN(test) cmocka_unit_test_setup_teardown(test, opened, world_teardown)
    const struct CMUnitTest tests[] = {
        OPEN(dead_peer_is_noticed_by_the_kernel),
        OPEN(server_that_accepts_and_never_answers_is_given_up),
        OPEN(server_that_falls_silent_is_given_up_and_its_commit_is_unknown),
        OPEN(shorter_time_outs_of_a_role_or_database_are_kept_and_longer_ones_are_not),
        OPEN(nothing_begins_where_synchronous_commit_is_off_whoever_has_set_it),
        OPEN(handler_that_turns_synchronous_commit_off_commits_nothing),
        OPEN(key_that_another_has_locked_is_waited_for),
        OPEN(callers_connection_that_is_lost_is_closed_and_nothing_was_recorded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
