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
    assert_int_equal(row.progress.state, SEMEL_ROW_COMPLETED);
    assert_int_equal(row.progress.attempts, 1);
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
        assert_int_equal(state_of(e, id), SEMEL_ROW_FAILED);
        assert_int_equal(row_of(e, id).progress.attempts, 1);
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
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_once(e, 0, "a");
}

/* ---- what came again ---------------------------------------------------------------------------------- */

/* a and b came again: one claim and one run; c did not: one transaction. 2 + 1 = 3. */
static void redelivered_messages_run_behind_a_committed_claim(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a", "ok"), again("b", "ok"), msg("c", "ok")};

    process(e, msgs, 3);
    assert_once(e, 0, "a");
    assert_once(e, 1, "b");
    assert_once(e, 2, "c");
    assert_string_equal(e->trace, "begin rollback begin commit begin run:a run:b commit begin run:c commit ");
    assert_int_equal(e->inbox.counts.transactions, 3);
    assert_int_equal(e->inbox.counts.done, 3);
}

/* Of a key one after the other, so that each sees what became of the one before; of several keys together. */
static void redelivered_messages_of_one_key_run_in_turns(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a1", "ok"), again("a2", "fail"), again("a3", "ok"), again("b1", "ok")};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    for (size_t i = 0; i < COUNT(msgs); i++)
        msgs[i].order_key = i < 3 ? SEMEL_STR("a") : SEMEL_STR("b");
    process(e, msgs, COUNT(msgs));
    assert_string_equal(e->trace, "begin rollback begin commit begin run:a1 run:b1 commit begin commit begin run:a2 "
                                  "commit begin parked commit ");
    assert_int_equal(state_of(e, "a2"), SEMEL_ROW_FAILED);
    assert_settled(e, 2, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
}

/* When one of a key is not accepted, what follows it stays with the source, too, although the key is free again. */
static void redelivered_messages_behind_one_that_is_not_accepted_stay_with_the_source(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a2", "ok"), again("a3", "ok"), again("a4", "ok"), again("b1", "ok")};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->policy.parked_key_max = 1;
    for (size_t i = 0; i < COUNT(msgs); i++)
        msgs[i].order_key = i < 3 ? SEMEL_STR("a") : SEMEL_STR("b");
    process_one(e, keyed("a1", "bad", "a", SEMEL_NONE));
    process(e, msgs, COUNT(msgs));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_settled(e, 1, SEMEL_LATER, SEMEL_WHY_BLOCKED, SEMEL_ROW_ABSENT);
    assert_int_equal(e->settled[2].act, SEMEL_LATER);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_PARKED_FULL], 1); /* a4 was not even asked about */
    assert_settled(e, 3, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
}

/* One that has failed before has its own claim, also when it comes again together with others. */
static void redelivered_message_that_must_run_alone_does(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a", "ok"), again("b", "fail@1"), again("c", "ok")};

    process_one(e, msgs[1]);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_FAILED);
    e->now_us = row_of(e, "b").progress.due_us;
    forget(e);
    process(e, msgs, 3);
    assert_string_equal(e->trace, "begin rollback begin commit begin run:a run:c commit begin commit begin run:b "
                                  "commit ");
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_RETRIED, SEMEL_ROW_COMPLETED);
}

/* The world failed: what was claimed together is stored, for whoever comes next, and nobody is charged. If it was one
 * of them after all, it stands in nobody's way: each goes on alone. */
static void redelivered_messages_are_given_back_when_the_world_fails(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a", "ok"), again("b", "world"), again("c", "ok")};
    const char *ids[] = {"a", "b", "c"};
    size_t n;

    assert_int_equal(try_process(e, msgs, 3), SEMEL_RETRY);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(e->settled[i].act, SEMEL_ACK);
        assert_int_equal(state_of(e, ids[i]), SEMEL_ROW_WAITING);
        assert_int_equal(row_of(e, ids[i]).progress.attempts, 0);
        assert_true(row_of(e, ids[i]).progress.alone);
    }
    for (size_t i = 0; i < 3; i++, e->now_us++)
        (void)semel__inbox_work(&e->inbox, 10, &n, &e->err);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_WAITING);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_COMPLETED);
}

/* The next of a business key runs when the first was rejected, and is prevented when it was done. */
static void redelivered_messages_of_one_business_key_see_what_became_of_the_first(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a", "reject"), again("b", "ok"), again("c", "ok"), again("d", "ok")};

    for (size_t i = 0; i < 3; i++) {
        msgs[i].business[0] = SEMEL_STR("pay-1");
        msgs[i].n_business = 1;
    }
    process(e, msgs, COUNT(msgs));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_REJECTED);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "c"), SEMEL_ROW_PREVENTED);
    assert_int_equal(state_of(e, "d"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "b"), 1);
}

static void redelivered_message_that_fails_is_cut_out_of_its_claim(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a", "ok"), again("b", "fail"), again("c", "ok")};

    process(e, msgs, 3);
    assert_once(e, 0, "a");
    assert_once(e, 2, "c");
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_int_equal(row_of(e, "b").progress.attempts, 1);
    assert_int_equal(attempts_of(e, "b"), 1);
    assert_int_equal(e->inbox.counts.failed, 1);
}

static void unknown_commit_of_a_claim_or_run_together_has_its_effects_once(void **state)
{
    struct engine *e = *state;
    char ids[8][8];

    for (size_t i = 0; i < 4; i++) { /* the claim, then the run; done, then lost */
        snprintf(ids[2 * i], sizeof ids[0], "a%zu", i);
        snprintf(ids[2 * i + 1], sizeof ids[0], "b%zu", i);
        struct semel__msg msgs[] = {again(ids[2 * i], "ok"), again(ids[2 * i + 1], "ok")};
        fail_at(e, "commit", 1 + (int)(i / 2), unknowns[i % 2]);
        process(e, msgs, 2);
        assert_once(e, 0, ids[2 * i]);
        assert_once(e, 1, ids[2 * i + 1]);
    }
}

/* At most a hundred behind one claim: so many go on alone when one of them kills the process. */
static void many_redelivered_messages_are_claimed_by_hundreds(void **state)
{
    struct engine *e = *state;
    static char ids[250][8];
    struct semel__msg msgs[250];

    for (size_t i = 0; i < COUNT(msgs); i++) {
        snprintf(ids[i], sizeof ids[i], "m%03zu", i);
        msgs[i] = again(ids[i], "ok");
    }
    process(e, msgs, COUNT(msgs));
    assert_int_equal(effects_of(e, NULL), 250);
    assert_int_equal(e->inbox.counts.transactions, 6); /* three claims, three runs */
}

/* The route pauses: what is left is not even claimed. */
static void redelivered_messages_stay_with_the_source_when_too_many_have_failed(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a1", "fail"), again("a2", "ok"), again("b1", "fail"), again("b2", "ok")};

    e->policy.order = SEMEL_ORDER_ARRIVAL;
    e->inbox.failures_max = 2;
    for (size_t i = 0; i < COUNT(msgs); i++)
        msgs[i].order_key = i < 2 ? SEMEL_STR("a") : SEMEL_STR("b");
    assert_int_equal(try_process(e, msgs, COUNT(msgs)), SEMEL_RETRY);
    assert_int_equal(state_of(e, "a1"), SEMEL_ROW_FAILED);
    assert_int_equal(state_of(e, "b1"), SEMEL_ROW_FAILED);
    assert_int_equal(e->settled[1].act, SEMEL_LATER);
    assert_int_equal(state_of(e, "a2"), SEMEL_ROW_ABSENT);
}

/* A payload that is never kept comes from its broker again, and then runs alone. */
static void redelivered_message_that_is_not_kept_runs_alone_after_a_death(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {again("a", "ok"), again("b", "closed@1")};
    size_t n;

    e->policy.keep = SEMEL_KEEP_NEVER;
    e->then = (struct plan){.op = "reopen", .nth = 1, .fault = FAULT_CLOSED};
    assert_int_equal(try_process(e, msgs, 2), SEMEL_CLOSED);
    assert_ok(e, semel_store_reopen(e->store, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PROCESSING);
    e->now_us += e->policy.lease_us + 1;
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 2);
    e->mended = true;
    forget(e);
    process(e, msgs, 2);
    assert_string_equal(e->trace, "begin rollback begin commit begin commit begin run:a commit begin commit begin "
                                  "run:b commit ");
    assert_once(e, 0, "a");
    assert_once(e, 1, "b");
}

/* One of several kills the process. Nobody knows which: nobody is charged, each goes on alone, and then the
 * starts of the one are counted until it is dead. `dies`: nobody is left to give the leases back. */
static void find_poison(struct engine *e, bool dies)
{
    struct semel__msg msgs[] = {again("a", "ok"), again("b", "closed"), again("c", "ok")};
    size_t n;

    e->policy.retry_max = 2;
    if (dies)
        fail_at(e, "reopen", 1, FAULT_CLOSED);
    assert_int_equal(try_process(e, msgs, 3), SEMEL_CLOSED);
    for (int crash = 0; crash < 3; crash++) {
        assert_ok(e, semel_store_reopen(e->store, &e->err));
        e->now_us += e->policy.lease_us + 1;
        assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
        assert_int_equal(n, crash > 0 ? 1 : dies ? 3 : 0);
        assert_int_equal(row_of(e, "b").progress.attempts, crash);
        e->now_us += e->policy.retry_ceiling_us;
        for (int i = 0; i < 3; i++) /* what it leaves when it is lost is for the next */
            if (semel__inbox_work(&e->inbox, 10, &n, &e->err) != SEMEL_OK)
                assert_ok(e, semel_store_reopen(e->store, &e->err));
    }
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_DEAD);
    for (size_t i = 0; i < 3; i += 2) {
        assert_int_equal(state_of(e, i == 0 ? "a" : "c"), SEMEL_ROW_COMPLETED);
        assert_int_equal(row_of(e, i == 0 ? "a" : "c").progress.attempts, 1);
        assert_int_equal(effects_of(e, i == 0 ? "a" : "c"), 1);
    }
}

/* I6, I15 */
static void poison_among_redelivered_messages_that_kills_the_process_is_found(void **state)
{
    find_poison(*state, true);
}

/* I6, I15 */
static void poison_among_redelivered_messages_that_kills_the_connection_is_found(void **state)
{
    find_poison(*state, false);
}

static void copy_that_came_again_makes_the_first_run_behind_a_claim_too(void **state)
{
    struct engine *e = *state;
    struct semel__msg msgs[] = {msg("a", "ok"), again("a", "ok")};

    process(e, msgs, 2);
    assert_once(e, 0, "a");
    assert_settled(e, 1, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
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
    assert_settled(e, 49, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
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
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PROCESSING);
    assert_int_equal(row_of(e, "a").progress.attempts, 1);
    process_one(e, m); /* I5: under a live lease it is later */
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BUSY, SEMEL_ROW_PROCESSING);
    e->now_us += e->policy.lease_us + 1;
    assert_ok(e, semel__inbox_recover(&e->inbox, 10, &n, &e->err));
    assert_int_equal(n, 1);
    assert_int_equal(row_of(e, "a").progress.attempts, 1);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_FAILED);
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* The world failed after the claim: the start is given back, and the row waits for the scheduler. */
static void claim_is_given_back_when_the_world_fails(void **state)
{
    struct engine *e = *state;
    struct semel__msg m = again("a", "world");

    assert_int_equal(try_process(e, &m, 1), SEMEL_RETRY);
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.progress.state, SEMEL_ROW_WAITING);
    assert_int_equal(row.progress.attempts, 0);
    assert_true(row.kept);
    assert_int_equal(e->settled[0].act, SEMEL_ACK); /* it is stored with its payload, due now */
    assert_int_equal(row.progress.due_us, e->now_us);
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
            assert_int_equal(e->settled[0].state, SEMEL_ROW_COMPLETED);
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
    assert_settled(e, 0, SEMEL_LATER, SEMEL_WHY_BUSY, SEMEL_ROW_PROCESSING);
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
        ON_EACH(redelivered_messages_run_behind_a_committed_claim),
        ON_EACH(redelivered_messages_of_one_key_run_in_turns),
        ON_EACH(redelivered_messages_behind_one_that_is_not_accepted_stay_with_the_source),
        ON_EACH(redelivered_message_that_must_run_alone_does),
        ON_EACH(redelivered_messages_are_given_back_when_the_world_fails),
        ON_EACH(redelivered_messages_of_one_business_key_see_what_became_of_the_first),
        ON_EACH(redelivered_message_that_fails_is_cut_out_of_its_claim),
        ON_EACH(unknown_commit_of_a_claim_or_run_together_has_its_effects_once),
        ON_EACH(many_redelivered_messages_are_claimed_by_hundreds),
        ON_EACH(redelivered_messages_stay_with_the_source_when_too_many_have_failed),
        ON_EACH(redelivered_message_that_is_not_kept_runs_alone_after_a_death),
        ON_EACH(poison_among_redelivered_messages_that_kills_the_process_is_found),
        ON_EACH(poison_among_redelivered_messages_that_kills_the_connection_is_found),
        ON_EACH(copy_that_came_again_makes_the_first_run_behind_a_claim_too),
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
