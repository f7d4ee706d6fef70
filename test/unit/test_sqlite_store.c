/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_store.c: what is special about the SQLite driver: its files, settings, guard, plans and texts.
 * What every store must do is held by the conformance program; what the world does to it by test/fault.
 */
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/ids.h"
#include "store/migrations.h"
#include "store/query.h"
#include "store/records.h"
#include "store/sqlite_store.h"
#include "support/world.h"

#define NOW T0
#define CONSUMER SEMEL_STR("billing")

/* ---- small helpers ------------------------------------------------------------------------------- */

static sqlite3 *native(struct world *w)
{
    return semel_store_native(w->store);
}

static void sql_on(sqlite3 *db, const char *text)
{
    char *message = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", text, message);
}

static void sql(struct world *w, const char *text)
{
    sql_on(native(w), text);
}

static int64_t ask(struct world *w, const char *text)
{
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(native(w), text, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return v;
}

#define ok(w, call) assert_ok(w, call)

static void begin(struct world *w)
{
    int64_t now_us = 0;
    ok(w, semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err));
    assert_int_equal(now_us, w->now_us);
}

static void commit(struct world *w)
{
    ok(w, semel_store_commit(w->store, &w->err));
}

static struct semel_progress progress_of(enum semel_row_status state)
{
    bool final = state == SEMEL_ROW_COMPLETED || state == SEMEL_ROW_REJECTED || state == SEMEL_ROW_STALE;
    return (struct semel_progress){.state = state,
                                   .attempts = 1,
                                   .due_us = SEMEL_NONE,
                                   .processed_us = final ? NOW : SEMEL_NONE,
                                   .lease_until_us = SEMEL_NONE,
                                   .lease_token = SEMEL_NONE};
}

static struct semel_progress claimed(void)
{
    struct semel_progress progress = progress_of(SEMEL_ROW_PROCESSING);
    progress.lease_owner = SEMEL_STR("worker-1");
    progress.lease_until_us = NOW + 1000;
    return progress;
}

static struct semel_admit item_of(const char *id, enum semel_row_status state)
{
    struct semel_admit item = {.row = {.source = SEMEL_STR("orders"),
                                       .id = semel__str(id),
                                       .version = SEMEL_NONE,
                                       .message_time_us = SEMEL_NONE,
                                       .received_us = NOW,
                                       .updated_us = NOW}};
    item.row.progress = state == SEMEL_ROW_PROCESSING ? claimed() : progress_of(state);
    return item;
}

static void admit(struct world *w, struct semel_admit *items, size_t n)
{
    struct semel_admit_batch batch = {.consumer = CONSUMER, .now_us = w->now_us, .items = items, .n_items = n};
    ok(w, semel_store_admit(w->store, &batch, &w->arena, &w->err));
}

/* One committed row. */
static struct semel_admit put(struct world *w, const char *id, enum semel_row_status state, const char *key,
                              int64_t version)
{
    struct semel_admit item = item_of(id, state);
    item.row.order_key = semel__str(key);
    item.row.version = version;
    begin(w);
    admit(w, &item, 1);
    commit(w);
    assert_true(item.inserted);
    return item;
}

static void assert_says(struct world *w, const char *what)
{
    if (strstr(w->err.text, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", w->err.text, what);
}

/* ---- opening ------------------------------------------------------------------------------------- */

static void own_connection_has_wal_full_sync_foreign_keys_and_no_temporary_files(void **state) /* P24 */
{
    struct world *w = *state;
    assert_int_equal(ask(w, "SELECT journal_mode = 'wal' FROM pragma_journal_mode"), 1);
    assert_int_equal(ask(w, "PRAGMA synchronous"), 2);
    assert_int_equal(ask(w, "PRAGMA foreign_keys"), 1);
    assert_int_equal(ask(w, "PRAGMA temp_store"), 2); /* MEMORY */
    assert_int_equal(ask(w, "PRAGMA busy_timeout"), w->options.lock_timeout_ms);
}

static void second_open_of_the_same_file_is_refused_under_any_name(void **state) /* P26 */
{
    struct world *w = *state;
    struct semel_store *first = w->store;
    char link_path[160];
    snprintf(link_path, sizeof(link_path), "%s/link.db", w->dir);
    assert_int_equal(world_open(w), SEMEL_INVALID);
    assert_says(w, "share that handle");
    assert_int_equal(symlink(w->path, link_path), 0);
    snprintf(w->url, sizeof(w->url), "sqlite:%s", link_path);
    assert_int_equal(world_open(w), SEMEL_INVALID);

    /* The refused open has not dropped the locks of the first. */
    w->store = first;
    begin(w);
    sqlite3 *other = NULL;
    assert_int_equal(sqlite3_open(w->path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_BUSY);
    sqlite3_close(other);
    semel_store_rollback(w->store);

    semel_store_close(w->store);
    assert_int_equal(world_open(w), SEMEL_OK);
}

static void missing_file_directory_and_empty_name_are_refused(void **state)
{
    struct world *w = *state;
    w->options.create = false;
    assert_int_equal(world_open(w), SEMEL_INVALID);
    w->options.create = true;
    assert_says(w, "there is no database");
    assert_int_not_equal(access(w->path, F_OK), 0);
    snprintf(w->url, sizeof(w->url), "sqlite:%s", w->dir);
    assert_int_equal(world_open(w), SEMEL_INVALID);
    assert_says(w, "not a regular file");
    snprintf(w->url, sizeof(w->url), "sqlite:");
    assert_int_equal(world_open(w), SEMEL_INVALID);
}

static void a_path_is_never_taken_for_a_uri(void **state)
{
    struct world *w = *state;
    char cwd[512], path[160];
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    assert_int_equal(chdir(w->dir), 0);
    snprintf(w->url, sizeof(w->url), "sqlite:file:x.db");
    semel_status status = world_open(w);
    assert_int_equal(chdir(cwd), 0);
    ok(w, status);
    snprintf(path, sizeof(path), "%s/file:x.db", w->dir);
    assert_int_equal(access(path, F_OK), 0);
    ok(w, semel_store_reopen(w->store, &w->err)); /* the directory has changed since */
}

static void database_in_memory_needs_no_file(void **state)
{
    struct world *w = *state;
    snprintf(w->url, sizeof(w->url), "sqlite::memory:");
    ok(w, world_open(w));
    put(w, "m1", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    begin(w);
    ok(w, semel_store_reopen(w->store, &w->err));
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_inbox"), 1);
}

static void empty_file_is_an_empty_database(void **state)
{
    struct world *w = *state;
    fclose(fopen(w->path, "w"));
    w->options.migrate = false;
    assert_int_equal(world_open(w), SEMEL_INVALID);
    w->options.migrate = true;
    assert_says(w, "has no schema semel: migrate it first, or run sql/sqlite/*.sql");
    ok(w, world_open(w));
    assert_int_equal(ask(w, "SELECT max(version) FROM semel_schema"), (int64_t)semel__sqlite_migrations_n);
}

static void newer_schema_is_refused_with_both_numbers(void **state)
{
    struct world *w = *state;
    char known[64];
    sql(w, "INSERT INTO semel_schema VALUES (4711, 'future', 1)");
    semel_store_close(w->store);
    assert_int_equal(world_open(w), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_says(w, "version 4711");
    snprintf(known, sizeof(known), "up to %zu", semel__sqlite_migrations_n);
    assert_says(w, known);
}

static void database_in_utf16_is_refused(void **state)
{
    struct world *w = *state;
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
    sql_on(db, "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (x)");
    sqlite3_close(db);
    assert_int_equal(world_open(w), SEMEL_INVALID);
    assert_says(w, "UTF-16le");
}

/* ---- the transaction ----------------------------------------------------------------------------- */

static void guard_denies_what_would_end_the_transaction(void **state) /* P58 */
{
    struct world *w = *state;
    static const char *const denied[] = {"COMMIT",
                                         "END",
                                         "ROLLBACK",
                                         "BEGIN",
                                         "SAVEPOINT a",
                                         "RELEASE semel_one",
                                         "ROLLBACK TO semel_one",
                                         "ATTACH ':memory:' AS x",
                                         "DETACH main",
                                         "PRAGMA journal_mode = DELETE",
                                         "PRAGMA synchronous = OFF",
                                         "PRAGMA writable_schema = ON",
                                         "VACUUM"};
    sql(w, "CREATE TABLE ledger (x)");
    begin(w);
    ok(w, semel_store_savepoint(w->store, &w->err));
    ok(w, semel_store_guard(w->store, true, &w->err));
    for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++) {
        int rc = sqlite3_exec(native(w), denied[i], NULL, NULL, NULL);
        if (rc != SQLITE_AUTH && i + 1 < sizeof(denied) / sizeof(denied[0]))
            fail_msg("%s answered %d", denied[i], rc);
        assert_int_not_equal(rc, SQLITE_OK);
    }
    assert_int_equal(semel__sqlite_fail(native(w), SQLITE_AUTH, "handler", &w->err), SEMEL_INVALID);
    sql(w, "INSERT INTO ledger VALUES (1); SELECT * FROM pragma_table_info('ledger')");
    ok(w, semel_store_guard(w->store, false, &w->err));
    commit(w);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 1);
}

static void transaction_ended_by_insert_or_rollback_is_detected(void **state) /* P58 */
{
    struct world *w = *state;
    sql(w, "CREATE TABLE ledger (x UNIQUE)");
    begin(w);
    ok(w, semel_store_guard(w->store, true, &w->err));
    sql(w, "INSERT INTO ledger VALUES (1)");
    assert_int_not_equal(sqlite3_exec(native(w), "INSERT OR ROLLBACK INTO ledger VALUES (1)", NULL, NULL, NULL),
                         SQLITE_OK);
    /* In autocommit now: even this must not stay. */
    assert_int_not_equal(sqlite3_exec(native(w), "INSERT INTO ledger VALUES (2)", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(semel_store_guard(w->store, false, &w->err), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_PERMANENT);
    semel_store_rollback(w->store);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 0);
    begin(w);
    commit(w);
}

static void commit_prepared_before_the_guard_becomes_a_rollback(void **state) /* P58 */
{
    struct world *w = *state;
    sqlite3_stmt *stmt = NULL;
    sql(w, "CREATE TABLE ledger (x)");
    assert_int_equal(sqlite3_prepare_v2(native(w), "COMMIT", -1, &stmt, NULL), SQLITE_OK);
    begin(w);
    sql(w, "INSERT INTO ledger VALUES (1)");
    ok(w, semel_store_guard(w->store, true, &w->err));
    assert_int_not_equal(sqlite3_step(stmt), SQLITE_DONE);
    sqlite3_finalize(stmt);
    assert_int_equal(semel_store_guard(w->store, false, &w->err), SEMEL_INVALID);
    semel_store_rollback(w->store);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 0);
}

static void commit_of_a_transaction_that_was_ended_and_begun_anew_is_refused(void **state) /* P58 */
{
    struct world *w = *state;
    sql(w, "CREATE TABLE ledger (x)");
    begin(w);
    sql(w, "ROLLBACK; BEGIN; INSERT INTO ledger VALUES (1)");
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 0);
}

static void commit_with_an_unfinished_write_names_the_handler(void **state)
{
    struct world *w = *state;
    sqlite3_stmt *stmt = NULL;
    sql(w, "CREATE TABLE ledger (x)");
    begin(w);
    assert_int_equal(sqlite3_prepare_v2(native(w), "INSERT INTO ledger VALUES (1), (2) RETURNING x", -1, &stmt, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID);
    assert_says(w, "unfinished");
    sqlite3_finalize(stmt);
    assert_int_equal(ask(w, "SELECT count(*) FROM ledger"), 0);
}

static void deferred_foreign_key_is_found_before_the_commit(void **state) /* P62 */
{
    struct world *w = *state;
    sql(w, "CREATE TABLE account (id INTEGER PRIMARY KEY); "
           "CREATE TABLE entry (a INTEGER REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)");
    begin(w);
    ok(w, semel_store_savepoint(w->store, &w->err));
    sql(w, "INSERT INTO entry VALUES (1)");
    assert_int_equal(semel_store_check(w->store, &w->err), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_TRANSIENT);
    ok(w, semel_store_rollback_to(w->store, &w->err));
    ok(w, semel_store_check(w->store, &w->err));
    sql(w, "INSERT INTO entry VALUES (1)");
    assert_int_equal(semel_store_commit(w->store, &w->err), SEMEL_INVALID); /* not checked: the commit says it */
    assert_int_equal(w->err.cls, SEMEL_CLASS_TRANSIENT);
    assert_int_equal(ask(w, "SELECT count(*) FROM entry"), 0);
    begin(w);
    commit(w);
}

static void wrapped_handle_joins_the_callers_transaction(void **state)
{
    struct world *w = *state;
    sqlite3 *db = NULL;
    int64_t now_us = 0;
    struct semel_store *own = w->store, *wrapped = NULL;
    assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
    ok(w, semel__store_sqlite_wrap(&wrapped, db, &(struct semel_store_options){.clock = &w->clock}, &w->err));
    assert_int_equal(semel_store_begin(wrapped, SEMEL_TX_JOIN, &now_us, &w->err), SEMEL_INVALID);
    assert_says(w, "no open transaction");
    sql_on(db, "BEGIN"); /* deferred: joining takes the write lock (P23) */
    assert_int_equal(semel_store_begin(wrapped, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_INVALID);
    assert_says(w, "already open");
    ok(w, semel_store_begin(wrapped, SEMEL_TX_JOIN, &now_us, &w->err));
    assert_int_equal(sqlite3_txn_state(db, "main"), SQLITE_TXN_WRITE);
    struct semel_admit item = item_of("a", SEMEL_ROW_COMPLETED);
    w->store = wrapped;
    admit(w, &item, 1);
    semel_store_close(wrapped); /* closes nothing of the caller's, and rolls nothing back */
    assert_int_equal(sqlite3_get_autocommit(db), 0);
    sql_on(db, "COMMIT");
    w->store = own;
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_inbox"), 1);
    assert_int_equal(sqlite3_close(db), SQLITE_OK); /* no statement of ours is left */
}

static void join_of_a_transaction_with_an_old_snapshot_must_be_repeated(void **state) /* P23 */
{
    struct world *w = *state;
    sqlite3 *db = NULL;
    int64_t now_us = 0;
    struct semel_store *wrapped = NULL;
    assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
    ok(w, semel__store_sqlite_wrap(&wrapped, db, NULL, &w->err));
    sql_on(db, "BEGIN; SELECT * FROM semel_inbox");
    put(w, "a", SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
    assert_int_equal(semel_store_begin(wrapped, SEMEL_TX_JOIN, &now_us, &w->err), SEMEL_RETRY);
    assert_int_equal(w->err.cls, SEMEL_CLASS_TRANSIENT);
    sql_on(db, "ROLLBACK; BEGIN IMMEDIATE");
    ok(w, semel_store_begin(wrapped, SEMEL_TX_JOIN, &now_us, &w->err));
    semel_store_close(wrapped);
    sqlite3_close(db);
}

static void statement_that_a_handler_forgot_outlives_the_store(void **state)
{
    struct world *w = *state;
    sqlite3_stmt *stmt = NULL;
    sql(w, "CREATE TABLE ledger (x)");
    assert_int_equal(sqlite3_prepare_v2(native(w), "INSERT INTO ledger VALUES (1) RETURNING x", -1, &stmt, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    semel_store_close(w->store);
    sqlite3_finalize(stmt); /* commits: nobody may be told who is gone */
    ok(w, world_open(w));
}

static void wrapped_handle_that_cannot_be_used_is_left_as_it_was(void **state)
{
    struct world *w = *state;
    sqlite3 *db = NULL;
    struct semel_store *wrapped = NULL;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    sql_on(db, "BEGIN; CREATE TABLE mine (x)");
    assert_int_equal(semel__store_sqlite_wrap(&wrapped, db, NULL, &w->err), SEMEL_INVALID);
    assert_int_equal(semel__store_sqlite_wrap(&wrapped, db, &w->options, &w->err), SEMEL_INVALID);
    sql_on(db, "COMMIT; SELECT * FROM mine");
    ok(w, semel__store_sqlite_wrap(&wrapped, db, &w->options, &w->err));
    semel_store_close(wrapped);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* ---- what a person is told -------------------------------------------------------------------------- */

static void an_old_library_is_named_with_what_follows(void **state) /* P26 */
{
    char text[300];
    (void)state;
    semel__sqlite_about(3040001, text, sizeof(text));
    assert_non_null(strstr(text, "SQLite 3.40.1: before 3.51.3"));
    semel__sqlite_about(3051003, text, sizeof(text));
    assert_string_equal(text, "SQLite 3.51.3");
    semel__sqlite_about(3040001, text, 8);
    assert_string_equal(text, "SQLite ");
    assert_int_equal(semel__sqlite_version(), sqlite3_libversion_number());
}

static void the_write_ahead_log_is_measured(void **state) /* P25 */
{
    struct world *w = *state;
    int64_t before = semel__sqlite_wal_bytes(w->store);
    sqlite3 *reader = NULL;
    assert_int_equal(sqlite3_open(w->path, &reader), SQLITE_OK);
    sql_on(reader, "BEGIN; SELECT count(*) FROM semel_inbox"); /* a long reader: nothing can be checkpointed past it */
    for (int i = 0; i < 50; i++)
        sql(w, "INSERT INTO semel_audit (at, consumer, source, message_id, who, what, reason) "
               "VALUES (1, 'c', 's', 'm', 'w', 'x', hex(zeroblob(20000)))");
    assert_true(semel__sqlite_wal_bytes(w->store) > before + 1000000);
    assert_int_equal(sqlite3_close(reader), SQLITE_OK);
}

/* ---- duplicates ---------------------------------------------------------------------------------- */

/* Once most of a batch was there already, the next one reads before it draws a number and inserts. */
static void batch_of_duplicates_writes_nothing_and_what_is_new_behind_it_is_found(void **state)
{
    struct world *w = *state;
    struct semel_admit old[3], mixed[3];
    int64_t changes = 0, bytes = 0;
    for (int round = 0; round < 3; round++) { /* new; refused; read first */
        changes = sqlite3_total_changes64(native(w));
        bytes = semel__sqlite_wal_bytes(w->store);
        for (size_t i = 0; i < 3; i++) {
            old[i] = item_of((const char *const[]){"a", "b", "c"}[i], SEMEL_ROW_COMPLETED);
            old[i].place = i;
        }
        begin(w);
        admit(w, old, 3);
        commit(w);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(old[i].inserted, round == 0);
            assert_true(round == 0 || old[i].found.progress.state == SEMEL_ROW_COMPLETED);
        }
    }
    assert_int_equal(sqlite3_total_changes64(native(w)), changes);
    assert_int_equal(semel__sqlite_wal_bytes(w->store), bytes);

    put(w, "d", SEMEL_ROW_FAILED, NULL, SEMEL_NONE);
    begin(w); /* put() was a new one: mostly_old is learnt again */
    admit(w, old, 3);
    commit(w);
    for (size_t i = 0; i < 3; i++) {
        mixed[i] = item_of((const char *const[]){"b", "d", "e"}[i], SEMEL_ROW_COMPLETED);
        mixed[i].place = i;
    }
    begin(w);
    admit(w, mixed, 3);
    commit(w);
    assert_false(mixed[0].inserted);
    assert_int_equal(mixed[0].found.progress.state, SEMEL_ROW_COMPLETED);
    assert_false(mixed[1].inserted);
    assert_int_equal(mixed[1].found.progress.state, SEMEL_ROW_FAILED);
    assert_true(mixed[2].inserted);
    assert_int_equal(ask(w, "SELECT max(arrival) = (SELECT arrival FROM semel_inbox WHERE message_id = 'e') "
                            "AND count(*) = 5 FROM semel_inbox"),
                     1);
}

/* Rows are inserted several at a time: of each it must be known whether it was refused, in full groups and behind them,
 * and also where the connection allows no such statement. */
static void what_was_there_is_told_apart_in_a_large_batch(void **state)
{
    struct world *w = *state;
    for (int round = 0; round < 2; round++) {
        struct semel_admit items[30];
        char ids[30][8];
        if (round == 1) /* the statements are prepared again */
            ok(w, semel_store_reopen(w->store, &w->err));
        if (round == 1)
            sqlite3_limit(native(w), SQLITE_LIMIT_VARIABLE_NUMBER, 100);
        for (size_t i = 0; i < 30; i++) {
            snprintf(ids[i], sizeof(ids[i]), "%d-%02zu", round, i);
            bool old = i == 3 || (i >= 8 && i < 16) || i == 20 || i == 25; /* one of a group, a whole one, the rest */
            if (old)
                put(w, ids[i], i == 20 ? SEMEL_ROW_FAILED : SEMEL_ROW_COMPLETED, NULL, SEMEL_NONE);
            items[i] = item_of(ids[i], SEMEL_ROW_COMPLETED);
            items[i].row.type = i % 2 == 0 ? SEMEL_STR("even") : (struct semel_str){0};
            items[i].row.fp = (struct semel_fp){SEMEL_FP_RAW, 1, {(unsigned char)i}};
            items[i].place = 29 - i;
        }
        begin(w);
        admit(w, items, 30);
        commit(w);
        for (size_t i = 0; i < 30; i++) {
            char text[200];
            bool old = i == 3 || (i >= 8 && i < 16) || i == 20 || i == 25;
            assert_int_equal(items[i].inserted, !old);
            snprintf(text, sizeof(text),
                     "SELECT count(*) FROM semel_inbox WHERE message_id = '%s' AND (type IS 'even') = %d "
                     "AND fingerprint IS x'72%02zx' AND arrival = %lld",
                     ids[i], i % 2 == 0, i, (long long)items[i].row.arrival);
            assert_int_equal(ask(w, text), !old);
        }
    }
}

/* ---- plans and codes ----------------------------------------------------------------------------- */

static void check_plan(struct world *w, const char *sql, bool sorts)
{
    char text[4096];
    sqlite3_stmt *stmt = NULL;
    snprintf(text, sizeof(text), "EXPLAIN QUERY PLAN %s", sql);
    assert_int_equal(sqlite3_prepare_v2(native(w), text, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        const char *line = (const char *)sqlite3_column_text(stmt, 3);
        /* To search by the consumer alone is to scan its rows, under another name. */
        bool scans = (strncmp(line, "SCAN semel_", 11) == 0 && strncmp(line, "SCAN semel_outbox", 17) != 0) ||
                     strncmp(line, "SCAN i", 6) == 0 ||
                     strstr(line, "USING INDEX sqlite_autoindex_semel_inbox_1 (consumer=?)") != NULL;
        if (scans || strstr(line, "AUTOMATIC") != NULL ||
            (!sorts && strstr(line, "USE TEMP B-TREE FOR ORDER BY") != NULL))
            fail_msg("%s\n%s", sql, line);
    }
    sqlite3_finalize(stmt);
}

static void check_plans(struct world *w)
{
    for (int id = 0; id < SQL_COUNT; id++) {
        const struct sql_text *sql = &semel__sqlite_statements[id].sql;
        /* Groups and causes are sorted by their size, the heads of a hundred keys by their key. Of the outbox, which
         * has only what has not gone yet, bounded windows are read by number, counted and sorted. */
        if (sql->text != NULL && !semel__sqlite_statements[id].maps)
            check_plan(w, sql->text,
                       strncmp(sql->name, "semel_group_", 12) == 0 || id == SQL_outbox_read ||
                           id == SQL_outbox_groups || id == SQL_mapped_renumber || id == SQL_shard_list ||
                           id == SQL_idempotency_causes || id == SQL_scan_still_keys ||
                           id == SQL_scan_still_keys_version || strncmp(sql->name, "semel_event_", 12) == 0);
    }
}

static void no_query_scans_the_inbox(void **state)
{
    struct world *w = *state;
    check_plans(w);
    /* Nor after ANALYZE of a table that is full of completed rows of one consumer. */
    sql(w,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
        "INSERT INTO semel_inbox (arrival, consumer, source, message_id, status, order_key, version, message_time, "
        "received_at, updated_at, due_at, lease_token, lease_until, processed_at) SELECT i, 'billing', 'orders', i, "
        "CASE WHEN i % 100 < 95 THEN 'completed' WHEN i % 100 = 95 THEN 'processing' WHEN i % 100 < 98 THEN 'failed' "
        "ELSE 'waiting' END, 'k' || (i % 10), i, CASE WHEN i % 2 THEN i END, i, i, "
        "CASE WHEN i % 100 > 95 THEN i END, CASE WHEN i % 100 = 95 THEN i END, i, i FROM n; ANALYZE");
    ok(w, semel_store_reopen(w->store, &w->err));
    check_plans(w);
}

static int count_row(unsigned event, void *n, void *stmt, void *unused)
{
    (void)event, (void)stmt, (void)unused;
    ++*(size_t *)n;
    return 0;
}

/* What the first consumers have given narrows what is asked of the others. */
static void list_over_many_consumers_reads_little_more_than_it_gives(void **state)
{
    struct world *w = *state;
    struct semel_filter filter = {.states = 1u << SEMEL_ROW_DEAD,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    struct semel_row *rows;
    size_t n = 0, damaged = 0, seen = 0;
    sql(w, "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 799) "
           "INSERT INTO semel_inbox (arrival, consumer, source, message_id, status, attempts, received_at, updated_at) "
           "SELECT i + 1, printf('c%03d', i / 8), 's', i, 'dead', 1, 1, 1 FROM n");
    sqlite3_trace_v2(native(w), SQLITE_TRACE_ROW, count_row, &seen);
    ok(w, semel_query_list(w->store, &filter, SEMEL_NONE, 10, false, &w->arena, &rows, &n, &damaged, &w->err));
    sqlite3_trace_v2(native(w), 0, NULL, NULL);
    assert_int_equal(n, 10);
    assert_int_equal(damaged, 0);
    assert_in_range(seen, 10, 200); /* 100 names of consumers are among them */
}

static void codes_mean_what_the_caller_must_do(void **state)
{
    struct world *w = *state;
    static const struct {
        int code;
        semel_status status;
        enum semel_class cls;
    } table[] = {
        {SQLITE_BUSY, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
        {SQLITE_BUSY_SNAPSHOT, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT},
        {SQLITE_IOERR_FSYNC, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
        {SQLITE_FULL, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
        {SQLITE_NOMEM, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
        {SQLITE_READONLY_DIRECTORY, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
        {SQLITE_READONLY_DBMOVED, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT},
        {SQLITE_CONSTRAINT_CHECK, SEMEL_INVALID, SEMEL_CLASS_PERMANENT},
        {SQLITE_CONSTRAINT_FOREIGNKEY, SEMEL_INVALID, SEMEL_CLASS_TRANSIENT},
        {SQLITE_MISMATCH, SEMEL_INVALID, SEMEL_CLASS_PERMANENT},
        {SQLITE_ERROR, SEMEL_INVALID, SEMEL_CLASS_BROKEN},
        {SQLITE_CORRUPT_INDEX, SEMEL_INVALID, SEMEL_CLASS_BROKEN},
        {SQLITE_NOTADB, SEMEL_INVALID, SEMEL_CLASS_BROKEN},
        {SQLITE_MISUSE, SEMEL_INVALID, SEMEL_CLASS_BROKEN},
        {99, SEMEL_INVALID, SEMEL_CLASS_BROKEN},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(semel__sqlite_fail(NULL, table[i].code, "handler", &w->err), table[i].status);
        assert_int_equal(w->err.cls, table[i].cls);
        assert_int_equal(w->err.code, table[i].code);
        assert_says(w, "handler: ");
    }
}

static void a_message_that_quotes_data_is_not_shown(void **state) /* P71 */
{
    struct world *w = *state;
    static const char *const statements[] = {"SELECT json_extract('{\"pan\":4111', '$.pan')",
                                             "SELECT json_extract('{}', '4111')", "SELECT abs(-9223372036854775808)"};
    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++) {
        int rc = sqlite3_exec(native(w), statements[i], NULL, NULL, NULL);
        assert_int_equal(rc & 0xff, SQLITE_ERROR);
        assert_int_equal(semel__sqlite_fail(native(w), rc, "handler", &w->err), SEMEL_INVALID);
        assert_int_equal(w->err.cls, SEMEL_CLASS_PERMANENT);
        assert_null(strstr(w->err.text, "4111"));
    }
    int rc = sqlite3_exec(native(w), "INSERT INTO nowhere VALUES (1)", NULL, NULL, NULL);
    semel__sqlite_fail(native(w), rc, "handler", &w->err);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_says(w, "no such table: nowhere");
}

#define ON(name) cmocka_unit_test_setup_teardown(name, world_alone, world_teardown)
#define BARE(name) cmocka_unit_test_setup_teardown(name, world_bare, world_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(own_connection_has_wal_full_sync_foreign_keys_and_no_temporary_files),
        ON(second_open_of_the_same_file_is_refused_under_any_name),
        BARE(missing_file_directory_and_empty_name_are_refused),
        BARE(a_path_is_never_taken_for_a_uri),
        BARE(database_in_memory_needs_no_file),
        BARE(empty_file_is_an_empty_database),
        ON(newer_schema_is_refused_with_both_numbers),
        BARE(database_in_utf16_is_refused),
        ON(guard_denies_what_would_end_the_transaction),
        ON(transaction_ended_by_insert_or_rollback_is_detected),
        ON(commit_prepared_before_the_guard_becomes_a_rollback),
        ON(commit_of_a_transaction_that_was_ended_and_begun_anew_is_refused),
        ON(commit_with_an_unfinished_write_names_the_handler),
        ON(deferred_foreign_key_is_found_before_the_commit),
        ON(wrapped_handle_joins_the_callers_transaction),
        ON(join_of_a_transaction_with_an_old_snapshot_must_be_repeated),
        ON(statement_that_a_handler_forgot_outlives_the_store),
        ON(wrapped_handle_that_cannot_be_used_is_left_as_it_was),
        BARE(an_old_library_is_named_with_what_follows),
        ON(the_write_ahead_log_is_measured),
        ON(batch_of_duplicates_writes_nothing_and_what_is_new_behind_it_is_found),
        ON(what_was_there_is_told_apart_in_a_large_batch),
        ON(no_query_scans_the_inbox),
        ON(list_over_many_consumers_reads_little_more_than_it_gives),
        BARE(codes_mean_what_the_caller_must_do),
        ON(a_message_that_quotes_data_is_not_shown),
    };
    world_driver = world_driver_named("sqlite");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
