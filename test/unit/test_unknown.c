/* SPDX-License-Identifier: MIT
 *
 * test_unknown.c: commits whose answer was lost, and messages that came again (P15, T1, T7).
 *
 * After an unknown commit the connection is opened anew and the rows are read again before anything is done.
 */
#include "unit/engine.h"

static const enum fault unknowns[] = {FAULT_UNKNOWN_DONE, FAULT_UNKNOWN_LOST};

static struct semel__msg again(const char *id, const char *payload)
{
    struct semel__msg m = msg(id, payload);
    m.delivery = 2;
    return m;
}

static void assert_once(struct engine *e, size_t i, const char *id)
{
    struct semel_row row = row_of(e, id);
    assert_int_equal(e->settled[i].act, SEMEL_ACK);
    assert_int_equal(row.live.state, SEMEL_STATE_COMPLETED);
    assert_int_equal(row.live.attempts, 1);
    assert_int_equal(effects_of(e, id), 1);
    assert_int_equal(attempts_of(e, id), 0);
}

/* ---- the batch ---------------------------------------------------------------------------------------- */

static void unknown_commit_of_a_batch_has_its_effect_once(void **state)
{
    struct engine *e = *state;

    for (size_t i = 0; i < COUNT(unknowns); i++) {
        struct semel__msg msgs[] = {msg(i == 0 ? "a" : "c", "ok"), msg(i == 0 ? "b" : "d", "out")};
        fail_at(e, "commit", 1, unknowns[i]);
        process(e, msgs, 2);
        assert_once(e, 0, i == 0 ? "a" : "c");
        assert_once(e, 1, i == 0 ? "b" : "d");
        assert_str(e->settled[1].outcome, "{\"made\":1}");
    }
    assert_non_null(strstr(e->trace, "commit reopen begin"));
}

/* A failure whose record may or may not be there is counted once. */
static void unknown_commit_of_a_failure_charges_it_once(void **state)
{
    struct engine *e = *state;

    for (size_t i = 0; i < COUNT(unknowns); i++) {
        const char *id = i == 0 ? "a" : "b";
        fail_at(e, "commit", 1, unknowns[i]);
        process_one(e, msg(id, "fail"));
        assert_int_equal(e->settled[0].act, SEMEL_ACK);
        assert_int_equal(state_of(e, id), SEMEL_STATE_FAILED);
        assert_int_equal(row_of(e, id).live.attempts, 1);
        assert_int_equal(attempts_of(e, id), 1);
        assert_int_equal(effects_of(e, id), 0);
    }
}

static void commit_that_stays_unknown_is_given_up_and_nothing_is_acknowledged(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "ok");

    e->plan = (struct plan){.op = "commit", .nth = 1, .on = true, .fault = FAULT_UNKNOWN_LOST};
    assert_int_equal(try_process(e, &m, 1), SEMEL_UNKNOWN);
    assert_int_equal(e->settled[0].act, SEMEL_LATER);
    assert_int_equal(e->seen.commits, 4); /* the first and three more */
    forget(e);
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    process_one(e, m);
    assert_once(e, 0, "a");
}

static void no_new_connection_after_an_unknown_commit_is_closed(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = msg("a", "ok");

    fail_at(e, "commit", 1, FAULT_UNKNOWN_DONE);
    e->then = (struct plan){.op = "reopen", .nth = 1, .fault = FAULT_CLOSED};
    assert_int_equal(try_process(e, &m, 1), SEMEL_CLOSED);
    assert_int_equal(e->settled[0].act, SEMEL_LATER);
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    process_one(e, m); /* it was applied, and nobody knew */
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_STATE_COMPLETED);
    assert_once(e, 0, "a");
}

/* ---- what came again ---------------------------------------------------------------------------------- */

/* a and b came again: a claim and a run each; c did not: one transaction. 2 + 2 + 1 = 5. */
static void redelivered_messages_run_alone_behind_a_committed_claim(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a", "ok"), again("b", "ok"), msg("c", "ok")};

    process(e, msgs, 3);
    assert_once(e, 0, "a");
    assert_once(e, 1, "b");
    assert_once(e, 2, "c");
    assert_string_equal(e->trace, "begin rollback begin commit begin run:a commit begin commit begin run:b commit "
                                  "begin run:c commit ");
    assert_int_equal(e->inbox.counts.transactions, 5);
    assert_int_equal(e->inbox.counts.done, 3);
}

static void copy_that_came_again_makes_the_first_run_alone_too(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), again("a", "ok")};

    process(e, msgs, 2);
    assert_once(e, 0, "a");
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_STATE_COMPLETED);
    assert_non_null(strstr(e->trace, "begin commit begin run:a commit"));
}

static void finished_ones_that_came_again_are_sifted_in_one_look(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[50];
    static char ids[50][8];

    for (size_t i = 0; i < 50; i++) {
        snprintf(ids[i], sizeof ids[i], "m%02zu", i);
        msgs[i] = msg(ids[i], "ok");
    }
    process(e, msgs, 50);
    forget(e);
    for (size_t i = 0; i < 50; i++)
        msgs[i].delivery = 2;
    process(e, msgs, 50);
    assert_settled(e, 49, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_STATE_COMPLETED);
    assert_string_equal(e->trace, "begin rollback ");
    assert_int_equal(e->seen.fetches, 1);
    assert_int_equal(e->seen.admits, 0);
    assert_int_equal(effects_of(e, NULL), 50);
}

/* I6: a message that kills its process is counted. The claim was committed, the handler never came back. */
static void message_that_loses_its_connection_leaves_a_counted_start(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = again("a", "closed@1");
    size_t n;

    assert_int_equal(try_process(e, &m, 1), SEMEL_CLOSED);
    assert_int_equal(e->settled[0].act, SEMEL_LATER);
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_STATE_PROCESSING);
    assert_int_equal(row_of(e, "a").live.attempts, 1);
    process_one(e, m); /* I5: under a live lease it is later */
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BUSY, SEMEL_STATE_PROCESSING);
    e->now_us += e->policy.lease_us + 1;
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 1);
    assert_int_equal(row_of(e, "a").live.attempts, 1);
    assert_int_equal(state_of(e, "a"), SEMEL_STATE_FAILED);
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_STATE_COMPLETED);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* The world failed after the claim: the start is given back, and the row waits for the scheduler. */
static void claim_is_given_back_when_the_world_fails(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = again("a", "world");

    assert_int_equal(try_process(e, &m, 1), SEMEL_RETRY);
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.live.state, SEMEL_STATE_WAITING);
    assert_int_equal(row.live.attempts, 0);
    assert_true(row.kept);
    assert_int_equal(e->settled[0].act, SEMEL_ACK); /* it is stored with its payload, due now */
    assert_int_equal(row.live.due_us, e->now_us);
    assert_int_equal(attempts_of(e, "a"), 0);
}

/* ---- claim and finish --------------------------------------------------------------------------------- */

/* The first commit is the claim's. If it was applied, the row carries our own lease: it is adopted. */
static void unknown_commit_of_a_claim_is_adopted_or_made_again(void **state)
{
    struct engine *e = *state;

    for (size_t i = 0; i < COUNT(unknowns); i++) {
        const char *id = i == 0 ? "a" : "b";
        struct semel__msg m = again(id, "ok");
        fail_at(e, "commit", 1, unknowns[i]);
        process(e, &m, 1);
        assert_once(e, 0, id);
    }
}

/* The second is that of the run. */
static void unknown_commit_of_a_claimed_run_has_its_effect_once(void **state)
{
    struct engine *e = *state;

    for (size_t i = 0; i < COUNT(unknowns); i++) {
        const char *id = i == 0 ? "a" : "b";
        struct semel__msg m = again(id, "ok");
        fail_at(e, "commit", 2, unknowns[i]);
        process(e, &m, 1);
        assert_once(e, 0, id);
    }
}

/* Outside: commit 1 claims, commit 2 finishes. The handler has run once, whatever became of the commits. */
static void unknown_commit_outside_runs_the_handler_once(void **state)
{
    struct engine *e = *state;
    char id[8];

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    for (unsigned commit = 1; commit <= 2; commit++)
        for (size_t i = 0; i < COUNT(unknowns); i++) {
            snprintf(id, sizeof id, "m%u%zu", commit, i);
            forget(e);
            fail_at(e, "commit", commit, unknowns[i]);
            process_one(e, msg(id, "ok"));
            assert_once(e, 0, id);
            assert_int_equal(e->settled[0].state, SEMEL_STATE_COMPLETED);
        }
}

/* A foreign claim with another lease is never adopted. */
static void foreign_claim_is_not_adopted(void **state)
{
    struct engine *e = *state;
    struct semel_lease lease;
    struct semel_inbox other;
    struct semel__msg m = msg("a", "ok");
    size_t n;

    semel__inbox_init(&other, e->store, &e->policy, &e->handler, &e->rng, SEMEL_STR("worker-2"));
    assert_ok(e, semel__lease_claim(&other, &m, 1, true, &e->keep, &lease, &n, e->settled, &e->err));
    assert_int_equal(n, 1);
    m.delivery = 2;
    fail_at(e, "commit", 1, FAULT_UNKNOWN_LOST);
    process_one(e, m);
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BUSY, SEMEL_STATE_PROCESSING);
    assert_int_equal(effects_of(e, "a"), 0);
    semel__inbox_done(&other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(unknown_commit_of_a_batch_has_its_effect_once),
        ON_FILE(unknown_commit_of_a_batch_has_its_effect_once),
        ON_EACH(unknown_commit_of_a_failure_charges_it_once),
        ON_EACH(commit_that_stays_unknown_is_given_up_and_nothing_is_acknowledged),
        ON_EACH(no_new_connection_after_an_unknown_commit_is_closed),
        ON_EACH(redelivered_messages_run_alone_behind_a_committed_claim),
        ON_EACH(copy_that_came_again_makes_the_first_run_alone_too),
        ON_EACH(finished_ones_that_came_again_are_sifted_in_one_look),
        ON_EACH(message_that_loses_its_connection_leaves_a_counted_start),
        ON_EACH(claim_is_given_back_when_the_world_fails),
        ON_EACH(unknown_commit_of_a_claim_is_adopted_or_made_again),
        ON_FILE(unknown_commit_of_a_claim_is_adopted_or_made_again),
        ON_EACH(unknown_commit_of_a_claimed_run_has_its_effect_once),
        ON_EACH(unknown_commit_outside_runs_the_handler_once),
        ON_EACH(foreign_claim_is_not_adopted),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
