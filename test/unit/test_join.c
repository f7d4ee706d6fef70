/* SPDX-License-Identifier: MIT
 *
 * The engine inside the caller's transaction, on the caller's own SQLite connection: nothing is durable before the
 * caller commits, a call that fails takes back its own part only, and a witness can refuse the commit.
 */
#include <sqlite3.h>

#include "base/error.h"
#include "core/inbox.h"
#include "store/sqlite_store.h"
#include "support/world.h"

struct caller {
    struct world *world;
    sqlite3 *db;               /* its own connection */
    struct semel_store *store; /* on it */
    struct semel_policy policy;
    struct semel_inbox inbox;
    struct semel_lease lease;
    struct semel_settled settled;
    struct semel_error err;
    bool refuse;
    int ended;
};

static void sql(struct caller *c, const char *text)
{
    assert_int_equal(sqlite3_exec(c->db, text, NULL, NULL, NULL), SQLITE_OK);
}

static int64_t number(struct caller *c, const char *text)
{
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(c->db, text, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static int make(void **state)
{
    static struct caller caller;
    struct caller *c = &caller;
    void *world;
    world_driver = world_driver_named("sqlite");
    world_setup(&world);
    *c = (struct caller){.world = world};
    c->db = c->world->place;
    c->store = c->world->other;
    semel__policy_init(&c->policy, SEMEL_STR("billing"));
    semel__inbox_init(&c->inbox, c->store, &c->policy, NULL, &c->world->rng, SEMEL_STR("test"));
    sql(c, "CREATE TABLE effect (id TEXT) STRICT");
    *state = c;
    return 0;
}

static int unmake(void **state)
{
    struct caller *c = *state;
    void *world = c->world;
    semel__inbox_done(&c->inbox);
    return world_teardown(&world);
}

/* Claims a message as a part of the open transaction. */
static semel_status claim(struct caller *c, const char *id, size_t *ret_n)
{
    struct semel__msg msg;
    semel__msg_init(&msg);
    msg.id = semel__str(id);
    msg.payload = SEMEL_STR("{}");
    semel_store_join(c->store, true);
    semel_status status = semel__lease_claim(&c->inbox, &msg, 1, false, &c->world->arena, &c->lease, ret_n, &c->settled,
                                             &c->err);
    semel_store_join(c->store, false);
    return status;
}

static semel_status finish(struct caller *c)
{
    const struct semel_ending ending = {.result = SEMEL_DONE};
    semel_store_join(c->store, true);
    semel_status status = semel__lease_finish(&c->inbox, &c->lease, &ending, 1, &c->err);
    semel_store_join(c->store, false);
    return status;
}

static void what_is_joined_is_durable_only_with_the_callers_commit(void **state)
{ /* I2 */
    struct caller *c = *state;
    size_t n = 0;
    sql(c, "BEGIN IMMEDIATE");
    assert_int_equal(claim(c, "a", &n), SEMEL_OK);
    assert_int_equal(n, 1);
    sql(c, "INSERT INTO effect VALUES ('a')");
    assert_int_equal(finish(c), SEMEL_OK);
    assert_true(semel_store_busy(c->store));
    sql(c, "ROLLBACK");
    assert_int_equal(number(c, "SELECT count(*) FROM semel_inbox"), 0);
    sql(c, "BEGIN");
    assert_int_equal(claim(c, "a", &n), SEMEL_OK);
    assert_int_equal(finish(c), SEMEL_OK);
    sql(c, "COMMIT");
    assert_false(semel_store_busy(c->store));
    assert_int_equal(number(c, "SELECT count(*) FROM semel_inbox WHERE status = 'completed' AND attempts = 1"), 1);
    sql(c, "BEGIN");
    assert_int_equal(claim(c, "a", &n), SEMEL_OK);
    assert_int_equal(n, 0);
    assert_int_equal(c->settled.why, SEMEL_WHY_DUPLICATE);
    sql(c, "COMMIT");
}

static void without_a_transaction_there_is_nothing_to_join(void **state)
{
    struct caller *c = *state;
    size_t n = 0;
    assert_int_equal(claim(c, "a", &n), SEMEL_INVALID);
    assert_int_equal(number(c, "SELECT count(*) FROM semel_inbox"), 0);
}

static void call_that_fails_takes_back_its_own_part_alone(void **state)
{
    struct caller *c = *state;
    size_t n = 0;
    sql(c, "CREATE TRIGGER full BEFORE INSERT ON semel_inbox WHEN new.message_id = 'b' "
           "BEGIN SELECT raise(ABORT, 'no room'); END");
    sql(c, "BEGIN IMMEDIATE");
    sql(c, "INSERT INTO effect VALUES ('mine')");
    assert_int_equal(claim(c, "a", &n), SEMEL_OK);
    int64_t drawn = number(c, "SELECT value FROM semel_counter WHERE name = 'arrival'");
    assert_int_not_equal(claim(c, "b", &n), SEMEL_OK);
    assert_true(semel_store_busy(c->store));
    assert_int_equal(number(c, "SELECT value FROM semel_counter WHERE name = 'arrival'"), drawn);
    sql(c, "COMMIT");
    assert_int_equal(number(c, "SELECT count(*) FROM effect"), 1);
    assert_int_equal(number(c, "SELECT count(*) FROM semel_inbox"), 1);
}

static void joined_calls_leave_no_savepoint_behind(void **state)
{
    struct caller *c = *state;
    size_t n = 0;
    sql(c, "BEGIN");
    sql(c, "SAVEPOINT mine");
    assert_int_equal(claim(c, "a", &n), SEMEL_OK);
    assert_int_equal(sqlite3_exec(c->db, "RELEASE semel_one", NULL, NULL, NULL), SQLITE_ERROR);
    sql(c, "ROLLBACK TO mine");
    sql(c, "RELEASE mine");
    assert_int_equal(claim(c, "a", &n), SEMEL_OK);
    assert_int_equal(n, 1); /* the first claim was undone by the caller */
    sql(c, "COMMIT");
}

static bool may_commit(void *ctx)
{
    return !((struct caller *)ctx)->refuse;
}

static void ended(void *ctx)
{
    ((struct caller *)ctx)->ended++;
}

static void witness_can_refuse_the_commit_and_learns_of_every_end(void **state)
{ /* P59 */
    struct caller *c = *state;
    const struct semel_sqlite_witness witness = {c, may_commit, ended};
    assert_int_equal(semel__sqlite_witness(c->store, &witness, &c->err), SEMEL_OK);
    c->refuse = true;
    sql(c, "BEGIN");
    sql(c, "INSERT INTO effect VALUES ('x')");
    assert_int_equal(sqlite3_exec(c->db, "COMMIT", NULL, NULL, NULL) & 0xff, SQLITE_CONSTRAINT);
    assert_int_equal(number(c, "SELECT count(*) FROM effect"), 0);
    assert_int_equal(c->ended, 1);
    c->refuse = false;
    sql(c, "BEGIN");
    sql(c, "INSERT INTO effect VALUES ('x')");
    sql(c, "COMMIT");
    assert_int_equal(c->ended, 2);
    assert_int_equal(semel__sqlite_witness(c->store, NULL, &c->err), SEMEL_OK);
    c->refuse = true;
    sql(c, "INSERT INTO effect VALUES ('y')");
    assert_int_equal(number(c, "SELECT count(*) FROM effect"), 2);
}

static void callers_connection_is_not_replaced_in_the_middle_of_a_transaction(void **state)
{
    struct caller *c = *state;
    sql(c, "BEGIN");
    sql(c, "INSERT INTO effect VALUES ('x')");
    semel_store_join(c->store, true);
    assert_int_equal(semel_store_reopen(c->store, &c->err), SEMEL_CLOSED);
    semel_store_join(c->store, false);
    assert_int_equal(sqlite3_get_autocommit(c->db), 0);
    sql(c, "COMMIT");
    assert_int_equal(number(c, "SELECT count(*) FROM effect"), 1);
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
