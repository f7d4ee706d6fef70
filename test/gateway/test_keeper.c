/* SPDX-License-Identifier: MIT
 *
 * test_keeper.c: claims and ends of keys in groups, by a keeper whose lanes the test steps itself: what was handed in
 * before a step is one group. On SQLite and PostgreSQL; the argument is the store.
 */
#include "gateway/guard_rig.h"

#include <pthread.h>

#include "base/error.h"

#define JOBS 7
#define POISON 3 /* the one that the database refuses */

static struct semel_keeper_desk desk;
static struct semel_keeper_job jobs[JOBS];
static char names[JOBS][16];
static unsigned wakes;

static void count_wake(void *ctx)
{
    (void)ctx;
    wakes++;
}

static void open_keeper(void)
{
    struct semel_error err;
    assert_int_equal(semel__keeper_new(&keeper, &keeping, &err), SEMEL_OK);
    for (size_t i = 0; i < semel__keeper_lanes(keeper); i++)
        assert_int_equal(semel__keeper_open(keeper, i, &err), SEMEL_OK);
    (void)semel__keeper_step(keeper, 0, 0); /* the housekeeping, which is not due again for a while */
    semel__keeper_desk_init(&desk, keeper, count_wake, NULL);
    for (size_t i = 0; i < JOBS; i++) {
        snprintf(names[i], sizeof names[i], "key-%08zu", i);
        semel__arena_init(&jobs[i].arena, 65536);
    }
}

static void close_keeper(void)
{
    for (size_t i = 0; i < JOBS; i++)
        semel__arena_done(&jobs[i].arena);
    semel__keeper_free(keeper);
}

static void hand_in_claim(size_t i)
{
    struct semel_error err;
    jobs[i].is_end = false;
    jobs[i].claim = (struct semel_key_claim){.effect = SEMEL_EFFECT_OUTSIDE};
    jobs[i].claim.want.scope = SEMEL_STR("alice");
    jobs[i].claim.want.key = semel__str(names[i]);
    jobs[i].claim.want.answer_us = SEMEL_ANSWER_US;
    jobs[i].claim.want.keep_us = SEMEL_KEEP_US;
    assert_int_equal(semel__key_fingerprint(SEMEL_STR("f"), &jobs[i].claim.want.fp, &err), SEMEL_OK);
    semel__keeper_submit(&desk, &jobs[i]);
}

static void hand_in_end(size_t i)
{
    jobs[i].is_end = true;
    jobs[i].ending = (struct semel_key_ending){.token = jobs[i].claim.token,
                                               .end = SEMEL_KEY_END_COMPLETED,
                                               .code = 201,
                                               .headers = SEMEL_STR("[]"),
                                               .body = semel__str(names[i])};
    semel__keeper_submit(&desk, &jobs[i]);
}

/* What was handed in is one group; how many of it came back, by one wake-up. */
static size_t do_group_by(size_t lane)
{
    size_t n = 0;
    wakes = 0;
    semel__keeper_flush(&desk);
    (void)semel__keeper_step(keeper, lane, 0);
    for (struct semel_keeper_job *job = semel__keeper_collect(&desk); job != NULL; job = job->next)
        n++;
    assert_int_equal(wakes, 1);
    return n;
}

static size_t do_group(void)
{
    return do_group_by(0);
}

static bool on_sqlite(void)
{
    return strcmp(world.driver->name, "sqlite") == 0;
}

/* Before each row that is inserted (or updated), the database does this. */
static void add_trigger(const char *event, const char *sqlite, const char *postgres)
{
    char sql[1024];
    if (on_sqlite())
        snprintf(sql, sizeof sql, "CREATE TRIGGER trap BEFORE %s ON %s BEGIN %s; END", event, table, sqlite);
    else
        snprintf(sql, sizeof sql,
                 "CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s; RETURN NEW; END $$; "
                 "CREATE TRIGGER trap BEFORE %s ON %s FOR EACH ROW EXECUTE FUNCTION public.trap()",
                 postgres, event, table);
    world.driver->sql(&world, sql);
}

static void poison(const char *event)
{
    add_trigger(event, "SELECT raise(ABORT, 'poison') WHERE NEW.key = 'key-00000003'",
                "IF NEW.key = 'key-00000003' THEN RAISE EXCEPTION 'poison'; END IF");
}

static void drop_trigger(void)
{
    world.driver->sql(&world, on_sqlite() ? "DROP TRIGGER trap" : "DROP FUNCTION trap CASCADE");
}

/* A2: a group that the database refuses is done again one by one: who is refused alone has failed, and nobody else. */
static void a_claim_that_the_database_refuses_fails_alone(void **state)
{
    (void)state;
    open_keeper();
    poison("INSERT");
    for (size_t i = 0; i < JOBS; i++)
        hand_in_claim(i);
    assert_int_equal(do_group(), JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i].failed, i == POISON);
        assert_false(jobs[i].in_doubt);
        assert_true(i == POISON || jobs[i].claim.act == SEMEL_KEY_RUN);
    }
    assert_non_null(strstr(jobs[POISON].err.text, "poison"));
    assert_int_equal(keys("status = 'processing'"), JOBS - 1);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->again), 1);
    drop_trigger();
    hand_in_claim(POISON);
    assert_int_equal(do_group(), 1);
    assert_true(!jobs[POISON].failed && jobs[POISON].claim.act == SEMEL_KEY_RUN);
    close_keeper();
}

/* A3, P48: the neighbours' answers are stored, and may be sent. */
static void an_answer_that_the_database_refuses_fails_alone(void **state)
{
    (void)state;
    open_keeper();
    for (size_t i = 0; i < JOBS; i++)
        hand_in_claim(i);
    assert_int_equal(do_group(), JOBS);
    poison("UPDATE");
    for (size_t i = 0; i < JOBS; i++)
        hand_in_end(i);
    assert_int_equal(do_group(), JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i].failed, i == POISON);
        assert_true(i == POISON || jobs[i].ending.applied);
    }
    assert_int_equal(keys("status = 'completed'"), JOBS - 1);
    assert_int_equal(keys("status = 'processing' AND key = 'key-00000003'"), 1);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->again), 1);
    drop_trigger();
    hand_in_end(POISON);
    assert_int_equal(do_group(), 1);
    assert_int_equal(keys("status = 'completed'"), JOBS);
    close_keeper();
}

/* A10: rows are written in the order of their keys, so that two keepers never wait for each other. */
static void a_group_is_one_transaction_in_the_order_of_its_keys(void **state)
{
    (void)state;
    open_keeper();
    world.driver->sql(&world, on_sqlite() ? "CREATE TABLE seen (n INTEGER PRIMARY KEY, key TEXT)"
                                          : "CREATE TABLE public.seen (n serial PRIMARY KEY, key text)");
    add_trigger("INSERT", "INSERT INTO seen (key) VALUES (NEW.key)", "INSERT INTO public.seen (key) VALUES (NEW.key)");
    for (size_t i = 0; i < JOBS; i++)
        hand_in_claim((i * 3 + 2) % JOBS);
    assert_int_equal(do_group(), JOBS);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->groups), 1);
    assert_int_equal(world.driver->ask(&world, "SELECT count(*) FROM seen"), JOBS);
    assert_int_equal(world.driver->ask(&world, "SELECT count(*) FROM seen AS a JOIN seen AS b"
                                               " ON b.n = a.n + 1 AND b.key > a.key"),
                     JOBS - 1);
    drop_trigger();
    close_keeper();
}

/* A10: a group costs a commit. */
static void claims_and_ends_share_a_transaction(void **state)
{
    (void)state;
    open_keeper();
    for (size_t i = 0; i < 3; i++)
        hand_in_claim(i);
    assert_int_equal(do_group(), 3);
    hand_in_end(2);
    hand_in_claim(3);
    hand_in_end(0);
    jobs[0].ending.end = SEMEL_KEY_END_RELEASED;
    hand_in_end(1);
    jobs[1].ending.end = SEMEL_KEY_END_UNKNOWN;
    assert_int_equal(do_group(), 4);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->groups), 2);
    for (size_t i = 0; i < 3; i++)
        assert_true(!jobs[i].failed && jobs[i].ending.applied);
    assert_true(!jobs[3].failed && jobs[3].claim.act == SEMEL_KEY_RUN);
    assert_int_equal(keys("key = 'key-00000000'"), 0);
    assert_int_equal(keys("key = 'key-00000001' AND status = 'unknown'"), 1);
    assert_int_equal(keys("key = 'key-00000002' AND status = 'completed'"), 1);
    assert_int_equal(keys("key = 'key-00000003' AND status = 'processing'"), 1);
    close_keeper();
}

/* A1: the same key twice: the second claim finds the first one's row. */
static void two_claims_of_one_key_are_in_two_groups(void **state)
{
    (void)state;
    open_keeper();
    hand_in_claim(0);
    hand_in_claim(1);
    snprintf(names[1], sizeof names[1], "%s", names[0]);
    jobs[1].claim.want.key = semel__str(names[1]);
    assert_int_equal(do_group(), 1);
    assert_int_equal(jobs[0].claim.act, SEMEL_KEY_RUN);
    assert_int_equal(do_group(), 1);
    assert_true(!jobs[1].failed && jobs[1].claim.act == SEMEL_KEY_BUSY);
    close_keeper();
}

/* A7: whoever has the last token may end the key, also when it has become unknown; nobody else, and only once. */
static void a_late_answer_under_the_last_token_counts(void **state)
{
    (void)state;
    open_keeper();
    hand_in_claim(0);
    assert_int_equal(do_group(), 1);
    hand_in_end(0);
    jobs[0].ending.end = SEMEL_KEY_END_UNKNOWN;
    jobs[0].ending.cause = SEMEL_STR("timeout");
    assert_int_equal(do_group(), 1);
    assert_int_equal(keys("status = 'unknown' AND cause = 'timeout'"), 1);
    hand_in_end(0);
    jobs[0].ending.token += 4096;
    assert_int_equal(do_group(), 1);
    assert_true(!jobs[0].failed && !jobs[0].ending.applied);
    hand_in_end(0);
    assert_int_equal(do_group(), 1);
    assert_true(jobs[0].ending.applied);
    assert_int_equal(keys("status = 'completed' AND code = 201 AND cause IS NULL"), 1);
    hand_in_end(0);
    jobs[0].ending.code = 202;
    assert_int_equal(do_group(), 1);
    assert_true(!jobs[0].ending.applied && jobs[0].row.code == 201); /* a stored answer stays */
    close_keeper();
}

/* ==== two lanes ================================================================================== */

/* An application's transaction: it has ended the key of that job, and is open. */
static struct semel_store *end_elsewhere(size_t i)
{
    struct semel_store *store;
    struct semel_error err;
    struct semel_key_ending ending = {.token = jobs[i].claim.token,
                                      .end = SEMEL_KEY_END_COMPLETED,
                                      .code = 201,
                                      .headers = SEMEL_STR("[]")};
    const struct semel_key_batch batch = {.ends = &ending, .n_ends = 1};
    int64_t now_us;
    assert_int_equal(semel_store_open(&store, keeping.drivers, world.url, &keeping.options, &err), SEMEL_OK);
    assert_int_equal(semel_store_begin(store, SEMEL_TX_OWN, &now_us, &err), SEMEL_OK);
    assert_int_equal(store->ops->keys->write(store, &batch, now_us, &err), SEMEL_OK);
    assert_true(ending.applied);
    return store;
}

static void *step_first_lane(void *arg)
{
    (void)semel__keeper_step(keeper, 0, 0);
    return arg;
}

/* A9: a row that somebody has locked holds up the group that wants it, and no other one. */
static void a_group_that_is_held_up_holds_up_no_other(void **state)
{
    pthread_t first;
    (void)state;
    if (on_sqlite())
        skip(); /* one lane */
    open_keeper();
    hand_in_claim(0);
    assert_int_equal(do_group(), 1);
    struct semel_store *application = end_elsewhere(0);
    hand_in_end(0);
    semel__keeper_flush(&desk);
    assert_int_equal(pthread_create(&first, NULL, step_first_lane, NULL), 0);
    WAIT_FOR(world.driver->ask(&world, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0);
    hand_in_claim(1);
    semel__keeper_flush(&desk);
    (void)semel__keeper_step(keeper, 1, 10000);
    assert_ptr_equal(semel__keeper_collect(&desk), &jobs[1]);
    assert_true(jobs[1].next == NULL && jobs[1].claim.act == SEMEL_KEY_RUN);
    semel_store_rollback(application);
    pthread_join(first, NULL);
    assert_ptr_equal(semel__keeper_collect(&desk), &jobs[0]);
    assert_true(!jobs[0].failed && jobs[0].ending.applied);
    semel_store_close(application);
    close_keeper();
}

/* A claim of that key by somebody else, whose transaction is open. */
static struct semel_store *claim_elsewhere(size_t i)
{
    struct semel_store *store;
    struct semel_error err;
    struct semel_tokens tokens = {0};
    struct semel_random rng;
    struct semel_arena arena;
    struct semel_key_claim claim = jobs[i].claim;
    int64_t now_us;
    semel__arena_init(&arena, 65536);
    semel__random_seed(&rng, 7);
    assert_int_equal(semel_store_open(&store, keeping.drivers, world.url, &keeping.options, &err), SEMEL_OK);
    assert_int_equal(semel_store_begin(store, SEMEL_TX_OWN, &now_us, &err), SEMEL_OK);
    claim.want.lease_until_us = now_us + INT64_C(60000000);
    const struct semel_key_batch batch = {.claims = &claim,
                                          .n_claims = 1,
                                          .owner = SEMEL_STR("somebody else"),
                                          .tokens = &tokens,
                                          .rng = &rng,
                                          .arena = &arena};
    assert_int_equal(store->ops->keys->write(store, &batch, now_us, &err), SEMEL_OK);
    assert_int_equal(claim.act, SEMEL_KEY_RUN);
    semel__arena_done(&arena);
    return store;
}

/* A2: somebody else gets one of its keys while a group is on its way: that one is busy, and the others run. The first
 * row of the group waits until that has happened, and the statement does not see it any more. */
static void a_key_that_somebody_else_gets_meanwhile_is_busy(void **state)
{
    struct semel_error err;
    pthread_t first;
    (void)state;
    if (on_sqlite())
        skip(); /* nobody else writes meanwhile */
    open_keeper();
    hand_in_claim(2);
    assert_int_equal(do_group(), 1); /* from now on it knows the clock, and a group is one trip */
    add_trigger("INSERT", "", "PERFORM pg_advisory_xact_lock(7)");
    hand_in_claim(0);
    hand_in_claim(1);
    struct semel_store *other = claim_elsewhere(1);
    semel__keeper_flush(&desk);
    assert_int_equal(pthread_create(&first, NULL, step_first_lane, NULL), 0);
    WAIT_FOR(world.driver->ask(&world, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0);
    assert_int_equal(semel_store_commit(other, &err), SEMEL_OK);
    semel_store_close(other);
    pthread_join(first, NULL);
    assert_non_null(semel__keeper_collect(&desk));
    drop_trigger();
    assert_true(!jobs[0].failed && jobs[0].claim.act == SEMEL_KEY_RUN);
    assert_true(!jobs[1].failed && jobs[1].claim.act == SEMEL_KEY_BUSY);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->again), 0);
    close_keeper();
}

/* A9: rows that applications have locked fail nobody else; once their group has waited, they are tried without. */
static void rows_that_are_locked_fail_only_their_ends(void **state)
{
    enum { LOCKED = 4 };
    struct semel_store *applications[LOCKED];
    (void)state;
    if (on_sqlite())
        skip(); /* a transaction locks all of it */
    keeping.options.lock_timeout_ms = 300;
    open_keeper();
    for (size_t i = 0; i < LOCKED; i++)
        hand_in_claim(i);
    assert_int_equal(do_group(), LOCKED);
    for (size_t i = 0; i < LOCKED; i++) {
        applications[i] = end_elsewhere(i);
        hand_in_end(i);
    }
    hand_in_claim(LOCKED);
    assert_int_equal(do_group(), LOCKED + 1);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->again), 1);
    assert_true(!jobs[LOCKED].failed && jobs[LOCKED].claim.act == SEMEL_KEY_RUN);
    for (size_t i = 0; i < LOCKED; i++) {
        assert_true(jobs[i].failed);
        assert_string_equal(jobs[i].err.text, "another transaction has locked the key");
        hand_in_end(i);
        jobs[i].ending.impatient = true;
    }
    hand_in_end(LOCKED);
    assert_int_equal(do_group(), LOCKED + 1);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->again), 1); /* nobody has waited for them */
    assert_true(jobs[0].failed && !jobs[LOCKED].failed && jobs[LOCKED].ending.applied);
    for (size_t i = 0; i < LOCKED; i++) {
        semel_store_rollback(applications[i]);
        semel_store_close(applications[i]);
        hand_in_end(i);
        jobs[i].ending.impatient = true;
    }
    assert_int_equal(do_group(), LOCKED);
    for (size_t i = 0; i < LOCKED; i++)
        assert_true(!jobs[i].failed && jobs[i].ending.applied);
    close_keeper();
}

/* A7: nobody's lease runs out because another key's row is locked. */
static void a_lease_is_renewed_beside_a_row_that_is_locked(void **state)
{
    (void)state;
    if (on_sqlite())
        skip(); /* a transaction locks all of it */
    keeping.lease_ms = 3000;
    keeping.options.lock_timeout_ms = 1000;
    open_keeper();
    hand_in_claim(0);
    hand_in_claim(1);
    assert_int_equal(do_group(), 2);
    struct semel_store *application = end_elsewhere(0);
    for (unsigned i = 0; i < 100 && keys("lease_until > created_at + interval '3 seconds'") == 0 &&
                         atomic_load(&semel__keeper_counts(keeper)->renewals_failed) == 0;
         i++)
        (void)semel__keeper_step(keeper, 0, 100);
    assert_int_equal(keys("lease_until > created_at + interval '3 seconds' AND key = 'key-00000001'"), 1);
    assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->renewals_failed), 0);
    semel_store_rollback(application);
    semel_store_close(application);
    close_keeper();
}

/* ==== commits ==================================================================================== */

/* The stores of a keeper, whose next commits come out like that. */
static struct {
    const struct semel_store_ops *real;
    struct semel_store_ops ops;
    semel_status answer;
    bool done; /* they are done nevertheless */
    int left;
    bool away; /* a connection cannot be made anew */
} commits;

static semel_status commit(struct semel_store *store, struct semel_error *err)
{
    if (commits.left == 0)
        return commits.real->commit(store, err);
    commits.left--;
    if (commits.done)
        assert_int_equal(commits.real->commit(store, err), SEMEL_OK);
    else
        commits.real->rollback(store);
    return semel__fail(err, commits.answer, SEMEL_CLASS_ENVIRONMENT, "a test has the commit fail");
}

static semel_status reopen(struct semel_store *store, struct semel_error *err)
{
    return commits.away ? semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "a test has the store away")
                        : commits.real->reopen(store, err);
}

static semel_status open_altered(void *ctx, struct semel_store **ret, struct semel_error *err)
{
    (void)ctx;
    semel_status status = semel_store_open(ret, keeping.drivers, world.url, &keeping.options, err);
    if (status != SEMEL_OK)
        return status;
    commits.real = (*ret)->ops;
    commits.ops = *commits.real;
    commits.ops.commit = commit;
    commits.ops.reopen = reopen;
    (*ret)->ops = &commits.ops;
    return SEMEL_OK;
}

static void claim_two(semel_status answer, bool done, int times)
{
    keeping.open = open_altered;
    open_keeper();
    commits.answer = answer;
    commits.done = done;
    commits.left = times;
    hand_in_claim(0);
    hand_in_claim(1); /* of the last lane it is the first group, which PostgreSQL does in several trips */
    assert_int_equal(do_group_by(semel__keeper_lanes(keeper) - 1), 2);
    commits.left = 0;
}

/* A3: what is not committed is nobody's, and nothing is sent for it. */
static void a_claim_whose_commit_fails_may_not_run(void **state)
{
    (void)state;
    claim_two(SEMEL_RETRY, false, JOBS * 2);
    assert_true(jobs[0].failed && jobs[1].failed);
    assert_false(jobs[0].in_doubt || jobs[1].in_doubt);
    assert_int_equal(keys("true"), 0);
    close_keeper();
}

/* A7, P98: it is released, and claimed again under the token that its owner gets. */
static void a_claim_whose_commit_is_in_doubt_is_made_anew(void **state)
{
    (void)state;
    char where[64];
    for (int done = 0; done < 2; done++) {
        claim_two(SEMEL_UNKNOWN, done == 1, 1);
        for (size_t i = 0; i < 2; i++) {
            assert_true(!jobs[i].failed && jobs[i].claim.act == SEMEL_KEY_RUN);
            snprintf(where, sizeof where, "status = 'processing' AND token = %lld", (long long)jobs[i].claim.token);
            assert_int_equal(keys(where), 1);
            hand_in_end(i);
            jobs[i].ending.end = SEMEL_KEY_END_RELEASED;
        }
        assert_int_equal(atomic_load(&semel__keeper_counts(keeper)->in_doubt), 1);
        assert_int_equal(do_group(), 2);
        assert_int_equal(keys("true"), 0);
        close_keeper();
    }
}

/* P98: whoever handed it in releases it later. */
static void a_claim_that_stays_in_doubt_comes_back_as_such(void **state)
{
    (void)state;
    claim_two(SEMEL_UNKNOWN, true, 2); /* of the claims, and of their release */
    for (size_t i = 0; i < 2; i++)
        assert_true(jobs[i].failed && jobs[i].in_doubt && jobs[i].claim.token > 0);
    close_keeper();
}

/* A9: whoever has lost the connection finds the store again also where nobody asks for anything. */
static void a_lost_connection_is_made_anew_without_work(void **state)
{
    char why[SEMEL_KEEPER_WHY];
    (void)state;
    commits.away = true;
    keeping.open = open_altered;
    open_keeper();
    const size_t last = semel__keeper_lanes(keeper) - 1;
    commits.answer = SEMEL_CLOSED;
    commits.done = false;
    commits.left = 1;
    hand_in_claim(0);
    semel__keeper_flush(&desk);
    (void)semel__keeper_step(keeper, last, 0);
    assert_ptr_equal(semel__keeper_collect(&desk), &jobs[0]);
    assert_true(jobs[0].failed);
    assert_false(semel__keeper_up(keeper, why));
    assert_non_null(strstr(why, "a test has the store away"));
    commits.away = false;
    for (unsigned i = 0; i < 1000 && !semel__keeper_up(keeper, why); i++)
        (void)semel__keeper_step(keeper, last, 10);
    assert_true(semel__keeper_up(keeper, why));
    close_keeper();
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        ALONE(a_claim_that_the_database_refuses_fails_alone),
        ALONE(an_answer_that_the_database_refuses_fails_alone),
        ALONE(a_group_is_one_transaction_in_the_order_of_its_keys),
        ALONE(claims_and_ends_share_a_transaction),
        ALONE(two_claims_of_one_key_are_in_two_groups),
        ALONE(a_late_answer_under_the_last_token_counts),
        ALONE(a_group_that_is_held_up_holds_up_no_other),
        ALONE(a_key_that_somebody_else_gets_meanwhile_is_busy),
        ALONE(rows_that_are_locked_fail_only_their_ends),
        ALONE(a_lease_is_renewed_beside_a_row_that_is_locked),
        ALONE(a_claim_whose_commit_fails_may_not_run),
        ALONE(a_claim_whose_commit_is_in_doubt_is_made_anew),
        ALONE(a_claim_that_stays_in_doubt_comes_back_as_such),
        ALONE(a_lost_connection_is_made_anew_without_work),
    };
    bool sqlite;

    return choose_store(argc, argv, &sqlite) ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
