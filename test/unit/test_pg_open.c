/* SPDX-License-Identifier: MIT
 *
 * test_pg_open.c: opening a store on PostgreSQL: what is refused and how that is said; migrations; wrapping; fork().
 */
#include <sys/wait.h>
#include <unistd.h>

#include "store/migrations.h"
#include "store/pg_store.h"
#include "unit/test_pg.h"

static semel_status open_as(struct world *w, const char *url, bool migrate)
{
    const struct semel_store_options options = {.migrate = migrate};
    semel_store_close(w->store);
    w->store = NULL;
    semel__error_clear(&w->err);
    return semel_store_open(&w->store, linked, url, &options, &w->err);
}

static void assert_says(const struct world *w, enum semel_class cls, const char *what)
{
    if (w->err.cls != cls || strstr(w->err.text, what) == NULL)
        fail_msg("%s: %s", semel__class_name(w->err.cls), w->err.text);
}

static void url_of(char out[PG_SERVER_TEXT], const char *user, int port, const char *rest)
{
    snprintf(out, PG_SERVER_TEXT, "postgres://%s@127.0.0.1:%d/%s", user, port, rest);
}

/* ---- what is refused ------------------------------------------------------------------------------ */

static void missing_role_database_and_server_are_named(void **state)
{
    struct world *w = *state;
    char url[PG_SERVER_TEXT];
    url_of(url, "nobody_here", world_server.port, "t");
    assert_int_equal(open_as(w, url, true), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "role \"nobody_here\" does not exist");
    assert_int_equal(w->err.code, SEMEL_SQLSTATE('2', '8', '0', '0', '0'));
    url_of(url, "postgres", world_server.port, "no_such_database");
    assert_int_equal(open_as(w, url, true), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "database \"no_such_database\" does not exist");
    assert_int_equal(w->err.code, SEMEL_SQLSTATE('3', 'D', '0', '0', '0'));
    url_of(url, "postgres", 1, "t");
    assert_int_equal(open_as(w, url, true), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "Connection refused");
}

static void database_without_schema_says_to_migrate(void **state)
{
    struct world *w = *state;
    assert_int_equal(open_as(w, w->url, false), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_BROKEN, "has no schema semel: migrate it first");
    assert_int_equal(w->err.code, SEMEL_STORE_NO_SCHEMA);
    ok(w, open_as(w, w->url, true));
    ok(w, open_as(w, w->url, false));
}

static void newer_and_older_schemas_are_told_apart(void **state)
{
    struct world *w = *state;
    ok(w, open_as(w, w->url, true));
    sql("INSERT INTO semel.schema (version, name) VALUES (999, 'future')");
    assert_int_equal(open_as(w, w->url, true), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_BROKEN, "use a newer program");
    assert_int_equal(w->err.code, SEMEL_STORE_NEW_SCHEMA);
    sql("DELETE FROM semel.schema WHERE version > 1");
    assert_int_equal(open_as(w, w->url, false), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_BROKEN, "has schema version 1, this program needs");
    assert_int_equal(w->err.code, SEMEL_STORE_OLD_SCHEMA);
}

static void other_encodings_are_refused(void **state)
{
    struct world *w = *state;
    char url[PG_SERVER_TEXT];
    pg_server_sql(&world_server, NULL, "DROP DATABASE IF EXISTS latin");
    pg_server_sql(&world_server, NULL, "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'");
    assert_int_equal(open_as(w, pg_server_url(&world_server, "latin", url), true), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_BROKEN, "server_encoding is LATIN1");
}

static void read_only_database_is_refused_until_it_takes_writes(void **state)
{
    struct world *w = *state;
    sql("ALTER DATABASE t SET default_transaction_read_only = on");
    assert_int_equal(open_as(w, w->url, true), SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "read-only");
    sql("SET transaction_read_only = off; ALTER DATABASE t RESET default_transaction_read_only");
    ok(w, open_as(w, w->url, true));
}

/* B3 P85 */
static void search_path_that_has_pg_catalog_behind_another_schema_is_refused(void **state)
{
    struct world *w = *state;
    sql("ALTER DATABASE t SET search_path = public, pg_catalog");
    assert_int_equal(open_as(w, w->url, true), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_BROKEN, "search_path has pg_catalog behind another schema (public,pg_catalog)");
    sql("ALTER DATABASE t SET search_path = pg_catalog, public");
    ok(w, open_as(w, w->url, true));
    sql("ALTER DATABASE t SET search_path = ''");
    ok(w, open_as(w, w->url, true));
    sql("ALTER DATABASE t RESET search_path");
    ok(w, open_as(w, w->url, true));
}

static void standby_is_refused_by_name(void **state)
{
    struct world *w = *state;
    struct pg_server standby;
    char url[PG_SERVER_TEXT];
    pg_server_standby(&standby, &world_server, PG_SERVER_NO_FSYNC);
    semel_status status = open_as(w, pg_server_url(&standby, "postgres", url), true);
    pg_server_done(&standby);
    assert_int_equal(status, SEMEL_RETRY);
    assert_says(w, SEMEL_CLASS_ENVIRONMENT, "standby in recovery");
}

static void role_without_rights_is_told(void **state)
{
    struct world *w = *state;
    char url[PG_SERVER_TEXT];
    ok(w, open_as(w, w->url, true));
    sql("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN");
    url_of(url, "guest", world_server.port, "t");
    assert_int_equal(open_as(w, url, false), SEMEL_INVALID);
    assert_says(w, SEMEL_CLASS_BROKEN, "42501: permission denied");
}

/* ---- migrations ---------------------------------------------------------------------------------- */

static void migrations_run_by_hand_are_recognised(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < semel__pg_migrations_n; i++)
        sql(semel__pg_migrations[i].sql);
    assert_int_equal(ask("SELECT count(*) FROM semel.schema"), semel__pg_migrations_n);
    ok(w, open_as(w, w->url, false));
}

static void migrating_says_from_where_to_where(void **state)
{
    struct world *w = *state;
    int from = -1, to = -1;
    sql(semel__pg_migrations[0].sql);
    assert_int_equal(open_as(w, w->url, false), SEMEL_INVALID);
    ok(w, open_as(w, w->url, true));
    ok(w, semel_store_migrate(w->store, &from, &to, &w->err));
    assert_int_equal(from, semel__pg_migrations_n);
    assert_int_equal(to, semel__pg_migrations_n);
    for (size_t i = 0; i < semel__pg_migrations_n; i++)
        assert_int_equal(semel__pg_migrations[i].number, i + 1);
}

static void two_that_migrate_at_once_do_it_once(void **state)
{
    struct world *w = *state;
    pid_t children[4];
    for (size_t i = 0; i < COUNT(children); i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0)
            _exit(semel_store_open(&w->store, linked, w->url, &(struct semel_store_options){.migrate = true}, NULL) ==
                          SEMEL_OK
                      ? 0
                      : 1);
    }
    for (size_t i = 0; i < COUNT(children); i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(ask("SELECT count(*) FROM semel.schema"), semel__pg_migrations_n);
}

/* ---- handles ------------------------------------------------------------------------------------- */

static void handle_from_before_fork_is_dead_in_the_child_and_alive_in_the_parent(void **state)
{
    struct world *w = *state;
    int64_t now_us = 0;
    int status = -1;
    begin(w);
    admit(w, "a");
    ok(w, semel_store_commit(w->store, &w->err));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool closed = semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err) == SEMEL_CLOSED;
        semel_store_close(w->store);
        _exit(closed ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    begin(w); /* the child's close did not end the session */
    ok(w, semel_store_commit(w->store, &w->err));
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 1);
}

static void wrapped_connection_is_left_as_it_was(void **state)
{
    struct world *w = *state;
    struct semel_store *wrapped = NULL;
    PGconn *conn = connect_to(w);
    int64_t now_us = 0;
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED, NULL);
    exec(conn, "SET lock_timeout = '7s'");
    ok(w, semel__store_pg_wrap(&wrapped, conn, &usual, &w->err));
    ok(w, semel_store_begin(wrapped, SEMEL_TX_OWN, &now_us, &w->err));
    ok(w, try_admit(w, wrapped, &item, NULL));
    ok(w, semel_store_commit(wrapped, &w->err));
    assert_ptr_equal(semel_store_native(wrapped), conn);
    semel_store_close(wrapped);
    assert_int_equal(PQisnonblocking(conn), 0);
    assert_int_equal(PQpipelineStatus(conn), PQ_PIPELINE_OFF);
    exec(conn, "DO $$ BEGIN ASSERT current_setting('lock_timeout') = '7s'; "
               "ASSERT (SELECT count(*) FROM pg_prepared_statements) = 0; END $$");
    PQfinish(conn);
    assert_int_equal(ask("SELECT count(*) FROM semel.inbox"), 1);
}

static void connection_in_the_middle_of_something_is_refused(void **state)
{
    struct world *w = *state;
    struct semel_store *wrapped = NULL;
    PGconn *conn = connect_to(w);
    assert_int_equal(PQsendQuery(conn, "SELECT 1"), 1);
    assert_int_equal(semel__store_pg_wrap(&wrapped, conn, &usual, &w->err), SEMEL_INVALID);
    PQclear(PQgetResult(conn));
    assert_null(PQgetResult(conn));
    exec(conn, "BEGIN");
    PQclear(PQexec(conn, "SELECT 1 / 0"));
    assert_int_equal(semel__store_pg_wrap(&wrapped, conn, &usual, &w->err), SEMEL_INVALID);
    assert_non_null(strstr(w->err.text, "roll it back"));
    exec(conn, "ROLLBACK");
    exec(conn, "SET client_encoding = 'LATIN1'");
    assert_int_equal(semel__store_pg_wrap(&wrapped, conn, &usual, &w->err), SEMEL_INVALID);
    assert_non_null(strstr(w->err.text, "client_encoding is LATIN1"));
    PQfinish(conn);
    assert_int_equal(semel__store_pg_wrap(&wrapped, NULL, &usual, &w->err), SEMEL_CLOSED);
}

/* A7 P79: a dump of the data, a logical switchover and a blue/green deployment bring the rows and not the sequences. */
static void sequences_that_began_anew_are_moved_past_what_is_stored(void **state)
{
    struct world *w = *state;
    char about[600];
    ok(w, open_as(w, w->url, true));
    sql("INSERT INTO semel.inbox (arrival, received_at, updated_at, processed_at, consumer, source, message_id, "
        "status) "
        "SELECT i * 16384, now(), now(), now(), 'c', 's', i::text, 'completed' FROM generate_series(1, 5000) AS i; "
        "INSERT INTO semel.attempt (consumer, source, message_id, attempt, at) SELECT 'c', 's', 'm', 1, now() "
        "FROM generate_series(1, 30); SELECT setval('semel.arrival', 1, false); "
        "ALTER SEQUENCE semel.attempt_id_seq RESTART");
    ok(w, open_as(w, w->url, false));
    assert_int_equal(ask("SELECT count(*) FROM semel.restart WHERE note LIKE '%(arrival, attempt)%'"), 1);
    assert_true(ask("SELECT nextval('semel.arrival')") > 5000);
    assert_true(ask("SELECT nextval('semel.arrival')") < 5200); /* and not far beyond: there are not that many */
    assert_int_equal(ask("SELECT nextval('semel.attempt_id_seq')"), 31);
    semel__pg_about(w->store, about, sizeof(about));
    assert_non_null(strstr(about, "without its sequences (arrival, attempt): they were moved past what is stored"));
    sql("SELECT setval('semel.arrival', 9999999)");
    ok(w, open_as(w, w->url, false)); /* never back */
    assert_int_equal(ask("SELECT last_value FROM semel.arrival"), 9999999);
    assert_int_equal(ask("SELECT count(*) FROM semel.restart"), 1);
    sql("SELECT setval('semel.arrival', 1)");
    ok(w, semel_store_reopen(w->store, &w->err)); /* and at a reconnect */
    assert_true(ask("SELECT nextval('semel.arrival')") > 5000);
}

static void both_schemes_and_keywords_open_the_same_store(void **state)
{
    struct world *w = *state;
    char url[2 * PG_SERVER_TEXT];
    snprintf(url, sizeof(url), "postgresql:%s", strchr(w->url, ':') + 1);
    ok(w, open_as(w, url, false));
    assert_string_equal(w->store->ops->name, "postgresql");
    snprintf(url, sizeof(url), "postgres:%s semel_pooler=1", w->conninfo);
    ok(w, open_as(w, url, false));
}

int main(void)
{
#define BARE(test) cmocka_unit_test_setup_teardown(test, bare, world_teardown)
#define OPEN(test) cmocka_unit_test_setup_teardown(test, opened, world_teardown)
    const struct CMUnitTest tests[] = {
        BARE(missing_role_database_and_server_are_named),
        BARE(database_without_schema_says_to_migrate),
        BARE(newer_and_older_schemas_are_told_apart),
        BARE(other_encodings_are_refused),
        BARE(read_only_database_is_refused_until_it_takes_writes),
        BARE(search_path_that_has_pg_catalog_behind_another_schema_is_refused),
        BARE(standby_is_refused_by_name),
        BARE(role_without_rights_is_told),
        BARE(migrations_run_by_hand_are_recognised),
        BARE(migrating_says_from_where_to_where),
        BARE(two_that_migrate_at_once_do_it_once),
        OPEN(handle_from_before_fork_is_dead_in_the_child_and_alive_in_the_parent),
        OPEN(wrapped_connection_is_left_as_it_was),
        OPEN(connection_in_the_middle_of_something_is_refused),
        BARE(sequences_that_began_anew_are_moved_past_what_is_stored),
        OPEN(both_schemes_and_keywords_open_the_same_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
