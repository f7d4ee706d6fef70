/* SPDX-License-Identifier: MIT
 *
 * The engine inside the caller's transaction, on the caller's own SQLite connection: nothing is durable before the
 * caller commits, a call that fails takes back its own part only, and a witness can refuse the commit.
 */
#include <sqlite3.h>

#include "unit/unit.h"

#include "base/error.h"
#include "core/inbox.h"
#include "store/sqlite_store.h"

struct world {
    sqlite3 *db;
    struct semel_store *store;
    struct semel_policy policy;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_arena arena;
    struct semel_lease lease;
    struct semel_settled settled;
    struct semel_error err;
    bool refuse;
    int ended;
};

static void sql(struct world *w, const char *text)
{
    assert_int_equal(sqlite3_exec(w->db, text, NULL, NULL, NULL), SQLITE_OK);
}

static int64_t number(struct world *w, const char *text)
{
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(w->db, text, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static int make(void **state)
{
    static const struct semel_store_options options = {.migrate = true};
    static struct world world;
    struct world *w = &world;
    *w = (struct world){0};
    if (sqlite3_open(":memory:", &w->db) != SQLITE_OK ||
        semel__store_sqlite_wrap(&w->store, w->db, &options, &w->err) != SEMEL_OK)
        return -1;
    semel__policy_init(&w->policy, SEMEL_STR("billing"));
    semel__random_seed(&w->rng, 7);
    semel__inbox_init(&w->inbox, w->store, &w->policy, NULL, &w->rng, SEMEL_STR("test"));
    semel__arena_init(&w->arena, 1 << 20);
    sql(w, "CREATE TABLE effect (id TEXT) STRICT");
    *state = w;
    return 0;
}

static int unmake(void **state)
{
    struct world *w = *state;
    semel__inbox_done(&w->inbox);
    semel__arena_done(&w->arena);
    semel_store_close(w->store);
    return sqlite3_close(w->db) == SQLITE_OK ? 0 : -1;
}

/* Claims a message as a part of the open transaction. */
static semel_status claim(struct world *w, const char *id, size_t *ret_n)
{
    struct semel__msg msg;
    semel__msg_init(&msg);
    msg.id = semel__str(id);
    msg.payload = SEMEL_STR("{}");
    semel_store_join(w->store, true);
    semel_status status = semel__lease_claim(&w->inbox, &msg, 1, false, &w->arena, &w->lease, ret_n, &w->settled,
                                             &w->err);
    semel_store_join(w->store, false);
    return status;
}

static semel_status finish(struct world *w)
{
    const struct semel_ending ending = {.result = SEMEL_DONE};
    semel_store_join(w->store, true);
    semel_status status = semel__lease_finish(&w->inbox, &w->lease, &ending, 1, &w->err);
    semel_store_join(w->store, false);
    return status;
}

static void what_is_joined_is_durable_only_with_the_callers_commit(void **state)
{ /* I2 */
    struct world *w = *state;
    size_t n = 0;
    sql(w, "BEGIN IMMEDIATE");
    assert_int_equal(claim(w, "a", &n), SEMEL_OK);
    assert_int_equal(n, 1);
    sql(w, "INSERT INTO effect VALUES ('a')");
    assert_int_equal(finish(w), SEMEL_OK);
    assert_true(semel_store_busy(w->store));
    sql(w, "ROLLBACK");
    assert_int_equal(number(w, "SELECT count(*) FROM semel_inbox"), 0);
    sql(w, "BEGIN");
    assert_int_equal(claim(w, "a", &n), SEMEL_OK);
    assert_int_equal(finish(w), SEMEL_OK);
    sql(w, "COMMIT");
    assert_false(semel_store_busy(w->store));
    assert_int_equal(number(w, "SELECT count(*) FROM semel_inbox WHERE status = 'completed' AND attempts = 1"), 1);
    sql(w, "BEGIN");
    assert_int_equal(claim(w, "a", &n), SEMEL_OK);
    assert_int_equal(n, 0);
    assert_int_equal(w->settled.why, SEMEL_WHY_DUPLICATE);
    sql(w, "COMMIT");
}

static void without_a_transaction_there_is_nothing_to_join(void **state)
{
    struct world *w = *state;
    size_t n = 0;
    assert_int_equal(claim(w, "a", &n), SEMEL_INVALID);
    assert_int_equal(number(w, "SELECT count(*) FROM semel_inbox"), 0);
}

static void call_that_fails_takes_back_its_own_part_alone(void **state)
{
    struct world *w = *state;
    size_t n = 0;
    sql(w, "CREATE TRIGGER full BEFORE INSERT ON semel_inbox WHEN new.message_id = 'b' "
           "BEGIN SELECT raise(ABORT, 'no room'); END");
    sql(w, "BEGIN IMMEDIATE");
    sql(w, "INSERT INTO effect VALUES ('mine')");
    assert_int_equal(claim(w, "a", &n), SEMEL_OK);
    int64_t drawn = number(w, "SELECT value FROM semel_counter WHERE name = 'arrival'");
    assert_int_not_equal(claim(w, "b", &n), SEMEL_OK);
    assert_true(semel_store_busy(w->store));
    assert_int_equal(number(w, "SELECT value FROM semel_counter WHERE name = 'arrival'"), drawn);
    sql(w, "COMMIT");
    assert_int_equal(number(w, "SELECT count(*) FROM effect"), 1);
    assert_int_equal(number(w, "SELECT count(*) FROM semel_inbox"), 1);
}

static void joined_calls_leave_no_savepoint_behind(void **state)
{
    struct world *w = *state;
    size_t n = 0;
    sql(w, "BEGIN");
    sql(w, "SAVEPOINT mine");
    assert_int_equal(claim(w, "a", &n), SEMEL_OK);
    assert_int_equal(sqlite3_exec(w->db, "RELEASE semel_one", NULL, NULL, NULL), SQLITE_ERROR);
    sql(w, "ROLLBACK TO mine");
    sql(w, "RELEASE mine");
    assert_int_equal(claim(w, "a", &n), SEMEL_OK);
    assert_int_equal(n, 1); /* the first claim was undone by the caller */
    sql(w, "COMMIT");
}

static bool may_commit(void *ctx)
{
    return !((struct world *)ctx)->refuse;
}

static void ended(void *ctx)
{
    ((struct world *)ctx)->ended++;
}

static void witness_can_refuse_the_commit_and_learns_of_every_end(void **state)
{ /* P59 */
    struct world *w = *state;
    const struct semel_sqlite_witness witness = {w, may_commit, ended};
    assert_int_equal(semel__sqlite_witness(w->store, &witness, &w->err), SEMEL_OK);
    w->refuse = true;
    sql(w, "BEGIN");
    sql(w, "INSERT INTO effect VALUES ('x')");
    assert_int_equal(sqlite3_exec(w->db, "COMMIT", NULL, NULL, NULL) & 0xff, SQLITE_CONSTRAINT);
    assert_int_equal(number(w, "SELECT count(*) FROM effect"), 0);
    assert_int_equal(w->ended, 1);
    w->refuse = false;
    sql(w, "BEGIN");
    sql(w, "INSERT INTO effect VALUES ('x')");
    sql(w, "COMMIT");
    assert_int_equal(w->ended, 2);
    assert_int_equal(semel__sqlite_witness(w->store, NULL, &w->err), SEMEL_OK);
    w->refuse = true;
    sql(w, "INSERT INTO effect VALUES ('y')");
    assert_int_equal(number(w, "SELECT count(*) FROM effect"), 2);
}

static void callers_connection_is_not_replaced_in_the_middle_of_a_transaction(void **state)
{
    struct world *w = *state;
    sql(w, "BEGIN");
    sql(w, "INSERT INTO effect VALUES ('x')");
    semel_store_join(w->store, true);
    assert_int_equal(semel_store_reopen(w->store, &w->err), SEMEL_CLOSED);
    semel_store_join(w->store, false);
    assert_int_equal(sqlite3_get_autocommit(w->db), 0);
    sql(w, "COMMIT");
    assert_int_equal(number(w, "SELECT count(*) FROM effect"), 1);
}

int main(void)
{
#define ON(name) cmocka_unit_test_setup_teardown(name, make, unmake)
    const struct CMUnitTest tests[] = {
        ON(what_is_joined_is_durable_only_with_the_callers_commit),
        ON(without_a_transaction_there_is_nothing_to_join),
        ON(call_that_fails_takes_back_its_own_part_alone),
        ON(joined_calls_leave_no_savepoint_behind),
        ON(witness_can_refuse_the_commit_and_learns_of_every_end),
        ON(callers_connection_is_not_replaced_in_the_middle_of_a_transaction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
