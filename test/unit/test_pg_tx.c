/* SPDX-License-Identifier: MIT
 *
 * test_pg_tx.c: transactions on PostgreSQL: the guard around handlers, what COMMIT says and does not say, time-outs,
 * lost connections, and transactions of the caller at every isolation level.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pg/proxy.h"
#include "unit/test_pg.h"

static int64_t rows(void)
{
    return ask("SELECT count(*) FROM semel.inbox");
}

static void assert_says(const struct world *w, enum semel_class cls, const char *what)
{
    if (w->err.cls != cls || strstr(w->err.text, what) == NULL)
        fail_msg("%s: %s", semel__class_name(w->err.cls), w->err.text);
}

/* ---- the guard (P58) ----------------------------------------------------------------------------- */

static void commit_by_a_handler_fails_and_commits_nothing(void **state)
{
    static const char *const words[] = {"COMMIT", "COMMIT AND CHAIN", "END", "PREPARE TRANSACTION 'x'"};
    struct world *w = *state; /* P58 */
    for (size_t i = 0; i < COUNT(words); i++) {
        begin(w);
        assert_true(admit(w, "a"));
        ok(w, semel_store_guard(w->store, true, &w->err));
        assert_false(handler(w, words[i]));
        assert_int_equal(semel_store_guard(w->store, false, &w->err), SEMEL_INVALID);
        assert_says(w, SEMEL_CLASS_PERMANENT, "the transaction was ended");
        semel_store_rollback(w->store);
        assert_int_equal(rows(), 0);
    }
}

static void transaction_begun_anew_by_a_handler_is_not_committed(void **state)
{
    static const char *const words[] = {"ROLLBACK; BEGIN", "ROLLBACK AND CHAIN", "CLOSE ALL"};
    struct world *w = *state; /* P58 */
    sql("CREATE TABLE effect (n integer)");
    for (size_t i = 0; i < COUNT(words); i++) {
        begin(w);
        assert_true(admit(w, "a"));
        ok(w, semel_store_guard(w->store, true, &w->err));
        assert_true(handler(w, words[i]));
        assert_true(handler(w, "INSERT INTO effect VALUES (1)"));
        ok(w, semel_store_guard(w->store, false, &w->err)); /* a batch: it is found at the end */
        assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
        assert_says(w, SEMEL_CLASS_PERMANENT, "the transaction was ended");
        assert_int_equal(rows() + ask("SELECT count(*) FROM effect"), 0);
    }
}

static void single_message_that_ends_the_transaction_is_blamed_at_once(void **state)
{
    struct world *w = *state; /* P58 */
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, semel_store_savepoint(w->store, &w->err));
    ok(w, semel_store_guard(w->store, true, &w->err));
    assert_true(handler(w, "ROLLBACK; BEGIN"));
    assert_int_equal(semel_store_guard(w->store, false, &w->err), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_PERMANENT, "the transaction was ended");
    semel_store_rollback(w->store);
    begin(w);
    ok(w, semel_store_commit(w->store, &w->err));
}

static void failure_that_a_handler_hides_is_its_own(void **state)
{
    struct world *w = *state;
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, semel_store_savepoint(w->store, &w->err));
    ok(w, semel_store_guard(w->store, true, &w->err));
    assert_false(handler(w, "SELECT 1 / 0"));
    ok(w, semel_store_guard(w->store, false, &w->err));
    assert_int_equal(semel_store_check(w->store, &w->err), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_PERMANENT);
    ok(w, semel_store_rollback_to(w->store, &w->err));
    ok(w, semel_store_commit(w->store, &w->err));
    assert_int_equal(rows(), 1);

    begin(w); /* and without a savepoint nothing of it is committed */
    assert_true(admit(w, "b"));
    assert_false(handler(w, "SELECT 1 / 0"));
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_PERMANENT);
    assert_int_equal(rows(), 1);
    begin(w);
    ok(w, semel_store_commit(w->store, &w->err));
}

static void unread_results_of_a_handler_cost_it_the_connection_and_nobody_else(void **state)
{
    struct world *w = *state;
    begin(w);
    assert_true(admit(w, "a"));
    assert_int_equal(PQsendQuery(semel_store_native(w->store), "SELECT 1"), 1);
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_PERMANENT, "read all results");
    ok(w, semel_store_reopen(w->store, &w->err));
    assert_int_equal(rows(), 0);
    begin(w);
    ok(w, semel_store_commit(w->store, &w->err));
}

/* ---- constraints (P62) --------------------------------------------------------------------------- */

static void deferred_constraint_is_forced_by_check_and_blamed_by_commit(void **state)
{
    struct world *w = *state; /* P62 */
    sql("CREATE TABLE parent (id integer PRIMARY KEY); "
        "CREATE TABLE child (id integer CONSTRAINT has_parent REFERENCES parent DEFERRABLE INITIALLY DEFERRED)");
    begin(w);
    assert_true(handler(w, "INSERT INTO child VALUES (1)"));
    assert_int_equal(semel_store_check(w->store, &w->err), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_TRANSIENT, "has_parent");
    semel_store_rollback(w->store);
    begin(w);
    assert_true(handler(w, "INSERT INTO child VALUES (1)"));
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_TRANSIENT, "has_parent");
    assert_int_equal(ask("SELECT count(*) FROM child"), 0);
}

static void check_leaves_the_constraints_of_the_callers_transaction_deferred(void **state)
{
    struct world *w = *state;
    struct semel_store *wrapped = NULL;
    PGconn *conn = connect_to(w);
    int64_t now_us = 0;
    sql("CREATE TABLE parent (id integer PRIMARY KEY); "
        "CREATE TABLE child (id integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED)");
    ok(w, semel__store_pg_wrap(&wrapped, conn, &usual, &w->err));
    exec(conn, "BEGIN");
    ok(w, semel_store_begin(wrapped, SEMEL_TX_JOIN, &now_us, &w->err));
    ok(w, semel_store_check(wrapped, &w->err));
    semel_store_leave(wrapped);
    exec(conn, "INSERT INTO child VALUES (1)");
    exec(conn, "INSERT INTO parent VALUES (1)");
    exec(conn, "COMMIT");
    semel_store_close(wrapped);
    PQfinish(conn);
}

/* ---- durability (P15, P16, P72) ------------------------------------------------------------------- */

static void transaction_that_would_not_be_durable_is_refused(void **state)
{
    struct world *w = *state; /* P72 */
    int64_t now_us = 0;
    sql("ALTER DATABASE t SET synchronous_commit = off");
    ok(w, semel_store_reopen(w->store, &w->err));
    assert_int_equal(semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "synchronous_commit is off");
    assert_false(semel_store_busy(w->store));
    sql("ALTER DATABASE t RESET synchronous_commit");
    ok(w, semel_store_reopen(w->store, &w->err));
    begin(w);
    assert_true(admit(w, "a"));
    assert_true(handler(w, "SET LOCAL synchronous_commit = off"));
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_PERMANENT, "synchronous_commit");
    assert_int_equal(rows(), 0);
}

static void commit_without_an_answer_is_unknown_whatever_came_of_it(void **state)
{
    static const enum pg_proxy_order orders[] = {PG_PROXY_CUT_REQUEST, PG_PROXY_CUT_ANSWER};
    struct world *w = *state; /* P15 */
    struct pg_proxy proxy;
    char url[PG_SERVER_TEXT];
    pg_proxy_start(&proxy, world_server.port);
    snprintf(url, sizeof(url), "postgres://postgres@127.0.0.1:%d/t", proxy.port);
    semel_store_close(w->store);
    w->store = NULL;
    ok(w, semel_store_open(&w->store, linked, url, &usual, &w->err));
    for (size_t i = 0; i < COUNT(orders); i++) {
        begin(w);
        assert_true(admit(w, "a"));
        pg_proxy_order(&proxy, orders[i], 0);
        assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_UNKNOWN);
        assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
        assert_int_equal(semel_store_begin(w->store, SEMEL_TX_OWN, &(int64_t){0}, &w->err), SEMEL_CLOSED);
        ok(w, semel_store_reopen(w->store, &w->err));
        begin(w);
        assert_int_equal(admit(w, "a"), orders[i] == PG_PROXY_CUT_REQUEST);
        semel_store_rollback(w->store);
    }
    pg_proxy_done(&proxy);
}

/* Cancels whoever waits for a standby; a process of its own. */
static pid_t cancel_waits(const struct world *w)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child != 0)
        return child;
    PGconn *conn = PQconnectdb(w->conninfo);
    for (bool cancelled = false; !cancelled && PQstatus(conn) == CONNECTION_OK;) {
        PGresult *res = PQexec(conn, "SELECT pg_cancel_backend(pid), pg_sleep(0.01) FROM pg_stat_activity "
                                     "WHERE wait_event = 'SyncRep'");
        cancelled = PQntuples(res) > 0;
        PQclear(res);
    }
    _exit(0);
}

static void cancelled_wait_for_a_standby_is_not_durable(void **state)
{
    struct world *w = *state; /* P16 */
    int status = -1;
    begin(w);
    assert_true(admit(w, "a"));
    pg_server_sql(&world_server, NULL, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    pg_server_sql(&world_server, NULL, "SELECT pg_reload_conf()");
    while (ask("SELECT (current_setting('synchronous_standby_names') = 'nobody')::integer") != 1)
        ;
    pid_t child = cancel_waits(w);
    semel_status committed = semel_store_commit(w->store, &w->err);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    assert_int_equal(committed, SEMEL_UNKNOWN);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "standby");

    /* Whoever finds it now is not told that it is done before the standby has it: a duplicate waits too. */
    ok(w, semel_store_reopen(w->store, &w->err));
    begin(w);
    assert_false(admit(w, "a"));
    child = cancel_waits(w);
    committed = semel_store_commit(w->store, &w->err);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    pg_server_sql(&world_server, NULL, "ALTER SYSTEM RESET synchronous_standby_names");
    pg_server_sql(&world_server, NULL, "SELECT pg_reload_conf()");
    assert_int_equal(committed, SEMEL_UNKNOWN);
    while (ask("SELECT (current_setting('synchronous_standby_names') = '')::integer") != 1)
        ;
}

static void warning_of_a_trigger_at_commit_is_no_lost_wait(void **state)
{
    struct world *w = *state; /* P16 */
    sql("CREATE TABLE effect (n integer); CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE WARNING 'look'; RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION warn()");
    begin(w);
    assert_true(handler(w, "INSERT INTO effect VALUES (1)"));
    ok(w, semel_store_commit(w->store, &w->err));
}

/* ---- time-outs and lost connections (P64) --------------------------------------------------------- */

static void every_own_transaction_has_its_time_outs(void **state)
{
    struct world *w = *state; /* P64 */
    begin(w);
    assert_true(handler(w, "DO $$ BEGIN ASSERT current_setting('lock_timeout') = '200ms'; "
                           "ASSERT current_setting('statement_timeout') = '1min'; "
                           "ASSERT current_setting('idle_in_transaction_session_timeout') = '1min'; "
                           "ASSERT current_setting('transaction_isolation') = 'read committed'; END $$"));
    ok(w, semel_store_commit(w->store, &w->err));
    assert_true(handler(w, "DO $$ BEGIN ASSERT current_setting('lock_timeout') = '0'; "
                           "ASSERT current_setting('statement_timeout') = '0'; END $$")); /* and the session has none */
}

static void key_that_somebody_holds_is_contention_after_the_time_out(void **state)
{
    struct world *w = *state; /* P64 */
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, "k");
    PGconn *conn = connect_to(w);
    exec(conn, "BEGIN");
    exec(conn, "INSERT INTO semel.order_key (consumer, order_key) VALUES ('c', 'k')");
    begin(w);
    assert_int_equal(try_admit(w, w->store, &item, &key), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_TRANSIENT, "55P03");
    semel_store_rollback(w->store);
    exec(conn, "ROLLBACK");
    PQfinish(conn);
    begin(w);
    ok(w, try_admit(w, w->store, &item, &key));
    ok(w, semel_store_commit(w->store, &w->err));
}

static void killed_backend_is_closed_until_reopened(void **state)
{
    struct world *w = *state;
    char text[96];
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, NULL);
    begin(w);
    snprintf(text, sizeof(text), "SELECT pg_terminate_backend(%d, 5000)::integer",
             PQbackendPID(semel_store_native(w->store)));
    assert_int_equal(ask(text), 1);
    assert_int_equal(try_admit(w, w->store, &item, NULL), SEMEL_CLOSED);
    assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
    semel_store_rollback(w->store);
    assert_int_equal(semel_store_begin(w->store, SEMEL_TX_OWN, &(int64_t){0}, &w->err), SEMEL_CLOSED);
    ok(w, semel_store_reopen(w->store, &w->err));
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, semel_store_commit(w->store, &w->err));
}

static void statements_that_somebody_dropped_cost_a_new_connection(void **state)
{
    struct world *w = *state;
    begin(w);
    assert_true(admit(w, "a"));
    ok(w, semel_store_commit(w->store, &w->err));
    assert_true(handler(w, "DEALLOCATE ALL"));
    assert_int_equal(semel_store_begin(w->store, SEMEL_TX_OWN, &(int64_t){0}, &w->err), SEMEL_CLOSED);
    ok(w, semel_store_reopen(w->store, &w->err));
    begin(w);
    assert_false(admit(w, "a"));
    ok(w, semel_store_commit(w->store, &w->err));
}

/* ---- the caller's transactions ------------------------------------------------------------------- */

struct joined {
    struct semel_store *store;
    PGconn *conn;
};

static void join(struct joined *j, struct world *w, const char *begin_text)
{
    j->conn = connect_to(w);
    ok(w, semel__store_pg_wrap(&j->store, j->conn, &usual, &w->err));
    exec(j->conn, begin_text);
    exec(j->conn, "SELECT 1"); /* the snapshot */
}

static void join_done(struct joined *j)
{
    semel_store_close(j->store);
    PQfinish(j->conn);
}

static const char *const strict_levels[] = {"BEGIN ISOLATION LEVEL REPEATABLE READ",
                                            "BEGIN ISOLATION LEVEL SERIALIZABLE"};

static void message_committed_after_the_callers_snapshot_is_contention(void **state)
{
    struct world *w = *state; /* P13 */
    for (size_t i = 0; i < COUNT(strict_levels); i++) {
        struct joined j;
        int64_t now_us = 0;
        char id[8];
        snprintf(id, sizeof(id), "m%zu", i);
        struct semel_admit item = item_of(id, SEMEL_ROW_COMPLETED, NULL);
        join(&j, w, strict_levels[i]);
        begin(w);
        assert_true(admit(w, id));
        ok(w, semel_store_commit(w->store, &w->err));
        ok(w, semel_store_begin(j.store, SEMEL_TX_JOIN, &now_us, &w->err));
        assert_int_equal(try_admit(w, j.store, &item, NULL), SEMEL_RETRY);
        assert_says(w, SEMEL_CLASS_TRANSIENT, "40001");
        semel_store_leave(j.store);
        join_done(&j);
    }
}

static void key_changed_after_the_callers_snapshot_is_contention(void **state)
{
    struct world *w = *state; /* P65 */
    for (size_t i = 0; i < COUNT(strict_levels); i++) {
        struct joined j;
        int64_t now_us = 0;
        struct semel_key key = {.key = SEMEL_STR("k")};
        struct semel_key_change change = {.key = SEMEL_STR("k"), .last_version = SEMEL_NONE};
        struct semel_settle_batch settle = {
            .consumer = CONSUMER, .now_us = NOW, .keys = &change, .n_keys = 1, .worker = SEMEL_STR("w")};
        struct semel_admit item = item_of("later", SEMEL_ROW_COMPLETED, "k");
        join(&j, w, strict_levels[i]);
        begin(w);
        ok(w, semel_store_settle(w->store, &settle, &w->err));
        ok(w, semel_store_commit(w->store, &w->err));
        ok(w, semel_store_begin(j.store, SEMEL_TX_JOIN, &now_us, &w->err));
        assert_int_equal(try_admit(w, j.store, &item, &key), SEMEL_RETRY);
        assert_says(w, SEMEL_CLASS_TRANSIENT, "40001");
        semel_store_leave(j.store);
        join_done(&j);
    }
}

static void watermark_raised_after_the_callers_snapshot_is_noticed(void **state)
{
    struct world *w = *state;                               /* P60 */
    for (size_t i = 0; i < COUNT(strict_levels) * 2; i++) { /* the first has no watermark yet */
        struct joined j;
        int64_t now_us = 0;
        struct semel_admit item = item_of("old", SEMEL_ROW_COMPLETED, NULL);
        join(&j, w, strict_levels[i % 2]);
        begin(w);
        ok(w, semel_store_watermark(w->store, CONSUMER, SEMEL_STR("s"), NOW + (int64_t)i, &w->err));
        ok(w, semel_store_commit(w->store, &w->err));
        ok(w, semel_store_begin(j.store, SEMEL_TX_JOIN, &now_us, &w->err));
        assert_int_equal(try_admit(w, j.store, &item, NULL), SEMEL_RETRY);
        assert_says(w, SEMEL_CLASS_TRANSIENT, "40001");
        semel_store_leave(j.store);
        join_done(&j);
    }
}

static void joined_transaction_commits_with_the_callers(void **state)
{
    static const char *const levels[] = {"BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ",
                                         "BEGIN ISOLATION LEVEL SERIALIZABLE"};
    struct world *w = *state; /* I2 */
    for (size_t i = 0; i < COUNT(levels); i++) {
        struct joined j;
        int64_t now_us = 0;
        struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, NULL);
        join(&j, w, levels[i]);
        assert_true(semel_store_busy(j.store));
        ok(w, semel_store_begin(j.store, SEMEL_TX_JOIN, &now_us, &w->err));
        ok(w, try_admit(w, j.store, &item, NULL));
        assert_true(item.inserted);
        assert_true(item.watermark_us == SEMEL_NONE);
        semel_store_leave(j.store);
        exec(j.conn, i == 0 ? "ROLLBACK" : "COMMIT");
        assert_int_equal(rows(), i == 0 ? 0 : 1);
        sql("DELETE FROM semel.inbox");
        join_done(&j);
    }
}

static void undoing_a_joined_transaction_undoes_all_of_it_and_nothing_else(void **state)
{
    struct world *w = *state; /* P59 */
    struct joined j;
    int64_t now_us = 0;
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, NULL);
    sql("CREATE TABLE effect (n integer)");
    join(&j, w, "BEGIN");
    exec(j.conn, "INSERT INTO effect VALUES (1)");
    semel_store_join(j.store, true);
    ok(w, semel_store_begin(j.store, SEMEL_TX_OWN, &now_us, &w->err));
    ok(w, try_admit(w, j.store, &item, NULL));
    ok(w, semel_store_savepoint(j.store, &w->err)); /* for a handler, after the admission */
    ok(w, semel_store_guard(j.store, true, &w->err));
    PQclear(PQexec(j.conn, "INSERT INTO effect VALUES (1 / 0)"));
    ok(w, semel_store_guard(j.store, false, &w->err));
    semel_store_rollback(j.store);
    exec(j.conn, "COMMIT");
    assert_int_equal(rows(), 0);
    assert_int_equal(ask("SELECT count(*) FROM effect"), 1);
    join_done(&j);
}

static void handler_cannot_end_the_callers_transaction(void **state)
{
    struct world *w = *state; /* P58 */
    struct joined j;
    int64_t now_us = 0;
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, NULL);
    join(&j, w, "BEGIN");
    ok(w, semel_store_begin(j.store, SEMEL_TX_JOIN, &now_us, &w->err));
    ok(w, try_admit(w, j.store, &item, NULL));
    ok(w, semel_store_guard(j.store, true, &w->err));
    PQclear(PQexec(j.conn, "COMMIT"));
    assert_int_equal(semel_store_guard(j.store, false, &w->err), SEMEL_INVALID);
    semel_store_leave(j.store);
    assert_int_equal(rows(), 0);
    join_done(&j);
}

/* ---- facts --------------------------------------------------------------------------------------- */

static void facts_of_a_key_leave_out_own_rows_but_not_later_ones_of_others(void **state)
{
    struct world *w = *state; /* P3 */
    struct semel_store *other = NULL;
    struct semel_key k1 = {.key = SEMEL_STR("k1")}, k2 = {.key = SEMEL_STR("k2")};
    struct semel_admit mine = item_of("a", SEMEL_ROW_WAITING, "k1"), theirs = item_of("b", SEMEL_ROW_WAITING, "k2");
    struct semel_fetch_batch fetch = {.consumer = CONSUMER, .keys = &k1, .n_keys = 1};
    int64_t now_us = 0;
    struct semel_admit first = item_of("first", SEMEL_ROW_COMPLETED, NULL);
    ok(w, semel_store_open(&other, linked, w->url, &usual, &w->err));
    begin(w);
    ok(w, try_admit(w, w->store, &first, NULL)); /* makes the stream, which the others would wait for */
    ok(w, semel_store_commit(w->store, &w->err));
    begin(w);
    ok(w, try_admit(w, w->store, &mine, &k1));
    ok(w, semel_store_begin(other, SEMEL_TX_OWN, &now_us, &w->err));
    ok(w, try_admit(w, other, &theirs, &k2)); /* drawn after ours, committed before */
    ok(w, semel_store_commit(other, &w->err));
    assert_true(theirs.row.arrival > mine.row.arrival);
    ok(w, semel_store_fetch(w->store, &fetch, &w->arena, &w->err));
    assert_true(k1.head_arrival == SEMEL_NONE);
    assert_int_equal(k1.parked, 0);
    fetch.keys = &k2;
    ok(w, semel_store_fetch(w->store, &fetch, &w->arena, &w->err));
    assert_true(k2.head_arrival == theirs.row.arrival);
    assert_int_equal(k2.parked, 1);
    ok(w, semel_store_commit(w->store, &w->err));
    semel_store_close(other);
}

int main(void)
{
#define OPEN(test) cmocka_unit_test_setup_teardown(test, opened, world_teardown)
    const struct CMUnitTest tests[] = {
        OPEN(commit_by_a_handler_fails_and_commits_nothing),
        OPEN(transaction_begun_anew_by_a_handler_is_not_committed),
        OPEN(single_message_that_ends_the_transaction_is_blamed_at_once),
        OPEN(failure_that_a_handler_hides_is_its_own),
        OPEN(unread_results_of_a_handler_cost_it_the_connection_and_nobody_else),
        OPEN(deferred_constraint_is_forced_by_check_and_blamed_by_commit),
        OPEN(check_leaves_the_constraints_of_the_callers_transaction_deferred),
        OPEN(transaction_that_would_not_be_durable_is_refused),
        OPEN(commit_without_an_answer_is_unknown_whatever_came_of_it),
        OPEN(cancelled_wait_for_a_standby_is_not_durable),
        OPEN(warning_of_a_trigger_at_commit_is_no_lost_wait),
        OPEN(every_own_transaction_has_its_time_outs),
        OPEN(key_that_somebody_holds_is_contention_after_the_time_out),
        OPEN(killed_backend_is_closed_until_reopened),
        OPEN(statements_that_somebody_dropped_cost_a_new_connection),
        OPEN(message_committed_after_the_callers_snapshot_is_contention),
        OPEN(key_changed_after_the_callers_snapshot_is_contention),
        OPEN(watermark_raised_after_the_callers_snapshot_is_noticed),
        OPEN(joined_transaction_commits_with_the_callers),
        OPEN(undoing_a_joined_transaction_undoes_all_of_it_and_nothing_else),
        OPEN(handler_cannot_end_the_callers_transaction),
        OPEN(facts_of_a_key_leave_out_own_rows_but_not_later_ones_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
