/* SPDX-License-Identifier: MIT
 *
 * test_lease.c: the leased path: claim, renew, finish, release, recovery, and stored work that is taken.
 */
#include "unit/engine.h"

#include "base/point.h"

struct held {
    struct semel_lease leases[16];
    size_t n;
};

static void claim(struct engine *e, struct held *h, const struct semel__msg *msgs, size_t n, bool alone)
{
    h->n = 0;
    assert_ok(e, semel__lease_claim(&e->inbox, msgs, n, alone, &e->keep, h->leases, &h->n, e->settled, &e->err));
}

static void take(struct engine *e, struct held *h, size_t max)
{
    h->n = 0;
    assert_ok(e, semel__lease_take(&e->inbox, max, &e->keep, h->leases, &h->n, &e->err));
}

static size_t recover(struct engine *e)
{
    size_t n;
    assert_ok(e, semel__inbox_recover(&e->inbox, 100, &n, &e->err));
    return n;
}

static void expire(struct engine *e)
{
    e->now_us += e->policy.lease_us + 1;
}

/* ---- claim, renew, finish, release -------------------------------------------------------------------- */

/* Ten claims are one transaction, ten ends are one. */
static void claims_and_ends_are_group_commits(void **state)
{
    struct engine *e = *state;
    struct held h;
    static const char *const ids[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    struct semel__msg msgs[10];
    struct semel_ending endings[10];

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    for (size_t i = 0; i < 10; i++)
        msgs[i] = msg(ids[i], "ok");
    claim(e, &h, msgs, 10, true);
    assert_int_equal(h.n, 10);
    assert_int_equal(e->seen.commits, 1);
    assert_int_equal(e->seen.inserted, 10);
    assert_int_equal(e->seen.settles, 0);
    assert_int_equal(state_of(e, "j"), SEMEL_ROW_PROCESSING);
    assert_str(row_of(e, "j").progress.lease_owner, "worker-1");
    assert_int_equal(row_of(e, "j").progress.lease_until_us, e->now_us + e->policy.lease_us);
    for (size_t i = 0; i < 10; i++)
        endings[i] = (struct semel_ending){.result = i == 3 ? SEMEL_REJECTED : SEMEL_DONE, .outcome = SEMEL_STR("{}")};
    forget(e);
    assert_ok(e, semel__lease_finish(&e->inbox, h.leases, endings, 10, &e->err));
    assert_int_equal(e->seen.commits, 1);
    assert_int_equal(e->seen.changes, 10);
    for (size_t i = 0; i < 10; i++) {
        assert_false(h.leases[i].lost);
        const struct semel__msg *m = &h.leases[i].msg;
        assert_int_equal(state_of(e, m->id.p), i == 3 ? SEMEL_ROW_REJECTED : SEMEL_ROW_COMPLETED);
    }
}

static void claim_settles_what_may_not_run(void **state)
{
    struct engine *e = *state;
    struct held h, again;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok"), msg("b", "ok")};

    process_one(e, msgs[0]);
    claim(e, &h, msgs, 3, true);
    assert_int_equal(h.n, 1);
    assert_str(h.leases[0].msg.id, "b");
    assert_int_equal(h.leases[0].index, 1);
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_int_equal(e->settled[1].act, SEMEL_LATER); /* its end is to be told */
    claim(e, &again, msgs, 3, true);
    assert_int_equal(again.n, 0); /* I3: the other learns "busy" */
    assert_settled(e, 1, SEMEL_LATER, SEMEL_WHY_BUSY, SEMEL_ROW_PROCESSING);
}

/* I7: long handlers renew their lease. */
static void renewed_lease_is_not_recovered(void **state)
{
    struct engine *e = *state;
    struct held h;
    struct semel__msg m = msg("a", "ok");
    struct semel_ending done = {.result = SEMEL_DONE};

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    claim(e, &h, &m, 1, true);
    e->now_us += e->policy.lease_us - 1;
    assert_ok(e, semel__lease_renew(&e->inbox, h.leases, 1, &e->err));
    assert_false(h.leases[0].lost);
    assert_int_equal(h.leases[0].progress.lease_until_us, e->now_us + e->policy.lease_us);
    e->now_us += e->policy.lease_us - 1;
    assert_int_equal(recover(e), 0);
    assert_ok(e, semel__lease_finish(&e->inbox, h.leases, &done, 1, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
}

/* A lease that was lost while its call ran on, and the one that was taken since, come to their ends together. */
static void two_leases_of_one_message_end_each_for_itself(void **state)
{
    struct engine *e = *state;
    struct held first, second;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};
    const struct semel_ending endings[] = {{.result = SEMEL_PERMANENT}, {.result = SEMEL_DONE}, {.result = SEMEL_DONE}};

    e->policy.effect = SEMEL_EFFECT_KEYED;
    claim(e, &first, msgs, 2, true);
    assert_int_equal(first.n, 2);
    expire(e);
    assert_int_equal(recover(e), 2);
    e->now_us += e->policy.retry_ceiling_us;
    take(e, &second, 1);
    assert_int_equal(second.n, 1);
    const bool is_a = semel__str_eqz(second.leases[0].msg.id, "a");
    struct semel_lease both[] = {first.leases[0], second.leases[0], first.leases[1]};
    assert_ok(e, semel__lease_renew(&e->inbox, both, 3, &e->err));
    assert_true(both[0].lost && !both[1].lost && both[2].lost);
    assert_ok(e, semel__lease_finish(&e->inbox, both, endings, 3, &e->err));
    assert_true(both[0].lost && !both[1].lost && both[2].lost);
    assert_int_equal(state_of(e, is_a ? "a" : "b"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, is_a ? "b" : "a"), SEMEL_ROW_FAILED);
}

/* I6: a graceful release gives the attempt back. */
static void released_message_is_not_charged_and_is_due_at_once(void **state)
{
    struct engine *e = *state;
    struct held h, next;
    struct semel__msg m = msg("a", "ok");

    claim(e, &h, &m, 1, true);
    assert_int_equal(row_of(e, "a").progress.attempts, 1);
    assert_ok(e, semel__lease_release(&e->inbox, h.leases, 1, &e->err));
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.progress.state, SEMEL_ROW_WAITING);
    assert_int_equal(row.progress.attempts, 0);
    assert_int_equal(row.progress.due_us, e->now_us);
    assert_int_equal(attempts_of(e, "a"), 0);
    take(e, &next, 10);
    assert_int_equal(next.n, 1);
    assert_ok(e, semel__lease_run(&e->inbox, next.leases, 1, &e->err));
    assert_int_equal(effects_of(e, "a"), 1);
}

/* ---- stale tokens ------------------------------------------------------------------------------------- */

/* P39, I7: the slow worker comes back; its word is refused, and kept. */
static void end_under_a_stale_token_is_refused_and_kept_as_evidence(void **state)
{
    struct engine *e = *state;
    struct held slow, fast;
    struct semel__msg m = msg("a", "ok");
    struct semel_ending done = {.result = SEMEL_DONE, .outcome = SEMEL_STR("{\"slow\":1}")};

    e->policy.effect = SEMEL_EFFECT_KEYED;
    claim(e, &slow, &m, 1, true);
    expire(e);
    assert_int_equal(recover(e), 1);
    assert_int_equal(attempts_of(e, "a"), 1);
    e->now_us += 10 * SECOND_US;
    take(e, &fast, 10);
    assert_int_equal(fast.n, 1);
    assert_true(fast.leases[0].progress.lease_token > slow.leases[0].progress.lease_token);

    assert_ok(e, semel__lease_renew(&e->inbox, slow.leases, 1, &e->err));
    assert_true(slow.leases[0].lost);
    slow.leases[0].lost = false;
    assert_ok(e, semel__lease_finish(&e->inbox, slow.leases, &done, 1, &e->err));
    assert_true(slow.leases[0].lost);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PROCESSING);
    assert_int_equal(row_of(e, "a").progress.lease_token, fast.leases[0].progress.lease_token);
    assert_int_equal(attempts_of(e, "a"), 2);
    assert_true(e->inbox.counts.fenced >= 1);
    assert_ok(e, semel__lease_release(&e->inbox, slow.leases, 1, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PROCESSING);

    done.outcome = SEMEL_STR("{\"fast\":1}");
    assert_ok(e, semel__lease_finish(&e->inbox, fast.leases, &done, 1, &e->err));
    assert_false(fast.leases[0].lost);
    assert_str(row_of(e, "a").progress.outcome, "{\"fast\":1}");
    assert_int_equal(row_of(e, "a").progress.attempts, 2);
}

static void last_attempt(void *ctx, const struct semel_mem_attempt *attempt)
{
    struct semel_mem_attempt *last = ctx;
    if (last->id.p == NULL || last->seq < attempt->seq)
        *last = *attempt;
}

/* P39: also over an end that another one has written, and it never overwrites it. */
static void late_word_over_an_ended_row_changes_nothing(void **state)
{
    struct engine *e = *state;
    struct held slow;
    struct semel__msg m = msg("a", "ok");
    struct semel_mem_attempt last = {0};
    const struct semel_ending late[] = {{.result = SEMEL_DONE}, {.result = SEMEL_PERMANENT}};
    const char *const texts[] = {"refused under a stale token: the late worker reported done",
                                 "refused under a stale token: the late worker reported permanent"};

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    claim(e, &slow, &m, 1, true);
    expire(e);
    recover(e);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_UNKNOWN);
    for (size_t i = 0; i < 2; i++) {
        assert_ok(e, semel__lease_finish(&e->inbox, slow.leases, &late[i], 1, &e->err));
        assert_true(slow.leases[0].lost);
        assert_int_equal(state_of(e, "a"), SEMEL_ROW_UNKNOWN);
        semel__mem_attempts(e->db, last_attempt, &last);
        assert_int_equal(last.cls, SEMEL_CLASS_LEASE);
        assert_str(last.text, texts[i]);
    }
    assert_int_equal(attempts_of(e, "a"), 3); /* the recovery's and two words that came too late */
}

/* ---- recovery ----------------------------------------------------------------------------------------- */

/* I6, I7: nobody knows whose fault it was: nobody is charged, each goes on alone. */
static void atomic_group_is_given_back_uncharged_and_runs_alone_next(void **state)
{
    struct engine *e = *state;
    struct held h, next;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};

    claim(e, &h, msgs, 2, false);
    expire(e);
    assert_int_equal(recover(e), 2);
    assert_int_equal(e->inbox.counts.recovered, 2);
    for (size_t i = 0; i < 2; i++) {
        struct semel_row row = row_of(e, i == 0 ? "a" : "b");
        assert_int_equal(row.progress.state, SEMEL_ROW_WAITING);
        assert_int_equal(row.progress.attempts, 0);
        assert_true(row.progress.alone);
        assert_int_equal(row.progress.error_class, SEMEL_CLASS_LEASE);
    }
    assert_int_equal(attempts_of(e, NULL), 0);
    take(e, &next, 10);
    assert_int_equal(next.n, 1);
    assert_true(next.leases[0].progress.alone);
}

/* T4, I7 */
static void lone_run_that_stalls_is_charged_and_then_completed(void **state)
{
    struct engine *e = *state;
    struct held h;
    struct semel__msg m = msg("a", "ok");
    size_t n;

    claim(e, &h, &m, 1, true);
    expire(e);
    assert_int_equal(recover(e), 1);
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.progress.state, SEMEL_ROW_FAILED);
    assert_int_equal(row.progress.attempts, 1);
    assert_int_equal(row.progress.error_class, SEMEL_CLASS_LEASE);
    assert_int_equal(attempts_of(e, "a"), 1);
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(row_of(e, "a").progress.attempts, 2);
}

/* E2, A7: outside it may have happened; by its key it may be repeated. */
static void stalled_run_outside_is_unknown_and_a_keyed_one_is_failed(void **state)
{
    struct engine *e = *state;
    struct held h;
    struct semel__msg a = msg("a", "ok"), b = msg("b", "ok");

    e->policy.effect = SEMEL_EFFECT_OUTSIDE;
    claim(e, &h, &a, 1, true);
    expire(e);
    recover(e);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_UNKNOWN);
    assert_int_equal(e->inbox.counts.alerts[SEMEL_ALERT_UNKNOWN], 1);
    e->policy.effect = SEMEL_EFFECT_KEYED;
    claim(e, &h, &b, 1, true);
    expire(e);
    recover(e);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_FAILED);
}

/* The labels at which a process is killed (test/fault) lie where they say. */
static void labels_of_an_end_and_of_a_recovery_are_passed_by_these_alone(void **state)
{
    struct engine *e = *state;
    struct held h;
    struct semel__msg m = msg("a", "ok");
    const enum semel_point labels[] = {SEMEL_AT_FINISH_SETTLED, SEMEL_AT_FINISH_COMMITTED, SEMEL_AT_RECOVER_SETTLED,
                                       SEMEL_AT_RECOVER_COMMITTED};
    unsigned long before[4];

#ifndef SEMEL_POINTS
    skip();
#endif
    e->policy.effect = SEMEL_EFFECT_KEYED;
    claim(e, &h, &m, 1, true);
    for (size_t i = 0; i < 4; i++)
        before[i] = semel__point_visits(labels[i]);
    assert_ok(e, semel__lease_renew(&e->inbox, h.leases, 1, &e->err));
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(semel__point_visits(labels[i]), before[i]);
    expire(e);
    assert_int_equal(recover(e), 1);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(semel__point_visits(labels[i]) - before[i], i >= 2);
    e->now_us += 10 * SECOND_US;
    take(e, &h, 1);
    const struct semel_ending done = {.result = SEMEL_DONE};
    assert_ok(e, semel__lease_finish(&e->inbox, h.leases, &done, 1, &e->err));
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(semel__point_visits(labels[i]) - before[i], 1);
}

/* A6: business keys are locked before rows where the end frees them, or has them expire; else nobody waits for one. */
static void end_that_changes_its_business_keys_locks_them_first(void **state)
{
    struct engine *e = *state;
    static const struct {
        int64_t retention_us;
        enum semel_result result;
        unsigned frees;
    } ends[] = {{SEMEL_NONE, SEMEL_DONE, 0},
                {SEMEL_NONE, SEMEL_REJECTED, 1},
                {INT64_C(1000000), SEMEL_DONE, 1},
                {INT64_C(1000000), SEMEL_TRANSIENT, 0}};
    e->policy.effect = SEMEL_EFFECT_KEYED;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct held h;
        char id[2] = {(char)('a' + i), '\0'};
        struct semel__msg m = msg(id, "ok");
        struct semel_ending ending = {.result = ends[i].result};
        e->policy.business_retention_us = ends[i].retention_us;
        m.business[0] = m.id;
        m.n_business = 1;
        claim(e, &h, &m, 1, true);
        forget(e);
        assert_ok(e, semel__lease_renew(&e->inbox, h.leases, 1, &e->err));
        assert_int_equal(e->seen.frees, 0);
        assert_ok(e, semel__lease_finish(&e->inbox, h.leases, &ending, 1, &e->err));
        assert_int_equal(e->seen.frees, ends[i].frees);
    }
}

/* P40: by expiry only. */
static void live_lease_is_not_recovered(void **state)
{
    struct engine *e = *state;
    struct held h;
    struct semel__msg m = msg("a", "ok");

    claim(e, &h, &m, 1, true);
    assert_int_equal(recover(e), 0);
    e->now_us += e->policy.lease_us;
    assert_int_equal(recover(e), 0);
    e->now_us += 1;
    assert_int_equal(recover(e), 1);
    assert_int_equal(recover(e), 0);
}

/* P10, P40: a result waits for its row, which somebody may have locked for a moment; a recovery passes it over. */
static void end_waits_for_its_row_and_a_recovery_does_not(void **state)
{
    struct engine *e = *state;
    struct held h;
    struct semel__msg msgs[] = {msg("a", "ok"), msg("b", "ok")};
    struct semel_ending done = {.result = SEMEL_DONE};

    claim(e, &h, msgs, 2, true);
    forget(e);
    assert_ok(e, semel__lease_renew(&e->inbox, h.leases, 1, &e->err));
    assert_ok(e, semel__lease_finish(&e->inbox, h.leases, &done, 1, &e->err));
    assert_int_equal(e->seen.fetches, 2);
    assert_int_equal(e->seen.impatient, 0);
    expire(e);
    assert_int_equal(recover(e), 1);
    assert_int_equal(e->seen.impatient, 1);
}

/* ---- take --------------------------------------------------------------------------------------------- */

static void discard(struct engine *e, const char *id)
{
    struct semel_command_result result;
    struct semel_command command = {.kind = SEMEL_COMMAND_DISCARD,
                                    .who = SEMEL_STR("ops"),
                                    .reason = SEMEL_STR("wrong")};
    assert_ok(e, command_row(e, id, command, &result));
    assert_true(result.done);
}

/* a1 is dead, a2 to a4 are parked behind it; it is skipped. */
static void park_three(struct engine *e, const char *second)
{
    struct semel__msg msgs[] = {keyed("a1", "bad", "a", SEMEL_NONE), keyed("a2", second, "a", SEMEL_NONE),
                                keyed("a3", "ok", "a", SEMEL_NONE), keyed("a4", "ok", "a", SEMEL_NONE)};
    e->policy.order = SEMEL_ORDER_ARRIVAL;
    process(e, msgs, 4);
    discard(e, "a1");
    forget(e);
}

/* A look, a claim of three, a run of three, and a look that finds nothing. */
static void consecutive_heads_of_a_key_run_in_one_transaction(void **state)
{
    struct engine *e = *state;
    size_t n;

    park_three(e, "ok");
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    assert_int_equal(n, 3);
    assert_string_equal(e->trace, "begin rollback begin commit begin run:a2 run:a3 run:a4 commit begin rollback ");
    assert_int_equal(effects_of(e, NULL), 3);
}

/* I13: a3 and a4 were claimed behind a2; it fails, so they must not run now. */
static void failed_head_gives_its_followers_back(void **state)
{
    struct engine *e = *state;
    struct held h;

    park_three(e, "fail@1");
    take(e, &h, 10);
    assert_int_equal(h.n, 3);
    assert_ok(e, semel__lease_run(&e->inbox, h.leases, h.n, &e->err));
    assert_int_equal(state_of(e, "a2"), SEMEL_ROW_FAILED);
    assert_int_equal(row_of(e, "a2").progress.attempts, 1);
    assert_int_equal(state_of(e, "a3"), SEMEL_ROW_WAITING);
    assert_int_equal(row_of(e, "a3").progress.attempts, 0);
    assert_int_equal(state_of(e, "a4"), SEMEL_ROW_WAITING);
    assert_int_equal(attempts_of(e, "a3"), 0);
    assert_int_equal(effects_of(e, NULL), 0);
    e->now_us += 10 * SECOND_US;
    for (size_t i = 0, n; i < 5; i++) /* one of the takes only parks what was given back */
        assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    assert_int_equal(effects_of(e, NULL), 3);
    const char *a2 = strstr(e->trace, "run:a3"), *a3 = strstr(e->trace, "run:a4");
    assert_true(a2 != NULL && a3 != NULL && a2 < a3);
}

static void retry_is_taken_alone_and_only_when_due(void **state)
{
    struct engine *e = *state;
    struct held h;
    struct semel__msg msgs[] = {msg("a", "fail@1"), msg("b", "fail@1")};

    process(e, msgs, 2);
    take(e, &h, 10);
    assert_int_equal(h.n, 0);
    e->now_us += 10 * SECOND_US;
    take(e, &h, 10);
    assert_int_equal(h.n, 1);
    assert_ok(e, semel__lease_run(&e->inbox, h.leases, h.n, &e->err));
    take(e, &h, 10);
    assert_int_equal(h.n, 1);
    assert_ok(e, semel__lease_run(&e->inbox, h.leases, h.n, &e->err));
    assert_int_equal(effects_of(e, NULL), 2);
}

/* I15: the route kept no payloads when a failed; it does now. Only the broker can bring a, and b must not wait for
 * it. */
static void row_without_its_payload_does_not_hold_up_the_others(void **state)
{
    struct engine *e = *state;
    size_t n;

    e->policy.keep = SEMEL_KEEP_NEVER;
    process_one(e, msg("a", "fail@1"));
    e->policy.keep = SEMEL_KEEP_UNFINISHED;
    e->now_us += 5 * SECOND_US;
    process_one(e, msg("b", "fail@1"));
    e->now_us += 10 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 100, &n, &e->err));
    assert_int_equal(n, 1);
    assert_int_equal(state_of(e, "b"), SEMEL_ROW_COMPLETED);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_FAILED);
    process_one(e, msg("a", "fail@1"));
    assert_settled(e, 0, SEMEL_ACK, SEMEL_WHY_RETRIED, SEMEL_ROW_COMPLETED);
}

/* I6: the world failed under a leased run: the attempt is given back. */
static void leased_run_is_not_charged_when_the_world_fails(void **state)
{
    struct engine *e = *state;
    struct held h;

    process_one(e, msg("a", "fail@1"));
    e->now_us += 10 * SECOND_US;
    take(e, &h, 10);
    fail_at(e, "fetch", 1, FAULT_WORLD);
    assert_int_equal(semel__lease_run(&e->inbox, h.leases, h.n, &e->err), SEMEL_RETRY);
    struct semel_row row = row_of(e, "a");
    assert_int_equal(row.progress.state, SEMEL_ROW_FAILED);
    assert_int_equal(row.progress.attempts, 1);
}

/* It is claimed by then, so its lease must run out. */
static void take_that_has_no_memory_for_its_message_fails_and_is_recovered(void **state)
{
    struct engine *e = *state;
    struct semel_arena small;
    struct held h = {0};

    process_one(e, msg("a", "fail@1"));
    e->now_us += 10 * SECOND_US;
    semel__arena_init(&small, 1);
    assert_int_equal(semel__lease_take(&e->inbox, 10, &small, h.leases, &h.n, &e->err), SEMEL_RETRY);
    semel__arena_done(&small);
    assert_int_equal(h.n, 0);
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_PROCESSING);
    expire(e);
    assert_int_equal(recover(e), 1);
    e->now_us += 100 * SECOND_US;
    assert_ok(e, semel__inbox_work(&e->inbox, 10, &h.n, &e->err));
    assert_int_equal(state_of(e, "a"), SEMEL_ROW_COMPLETED);
    assert_int_equal(effects_of(e, "a"), 1);
}

/* A claim by `take` whose commit is unknown is left to recovery. */
static void unknown_commit_of_a_take_is_recovered_and_runs_once(void **state)
{
    struct engine *e = *state;
    static const enum fault unknowns[] = {FAULT_UNKNOWN_DONE, FAULT_UNKNOWN_LOST};
    size_t n;

    for (size_t i = 0; i < 2; i++) {
        const char *id = i == 0 ? "a" : "b";
        process_one(e, msg(id, "fail@1"));
        e->now_us += 10 * SECOND_US;
        fail_at(e, "commit", 1, unknowns[i]);
        assert_int_equal(semel__inbox_work(&e->inbox, 10, &n, &e->err), SEMEL_UNKNOWN);
        forget(e);
        assert_ok(e, semel_store_reopen(e->store, &e->err));
        expire(e);
        assert_int_equal(recover(e), unknowns[i] == FAULT_UNKNOWN_DONE ? 1 : 0);
        e->now_us += 100 * SECOND_US;
        assert_ok(e, semel__inbox_work(&e->inbox, 10, &n, &e->err));
        assert_int_equal(state_of(e, id), SEMEL_ROW_COMPLETED);
        assert_int_equal(effects_of(e, id), 1);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(claims_and_ends_are_group_commits),
        ON_EACH(claim_settles_what_may_not_run),
        ON_EACH(renewed_lease_is_not_recovered),
        ON_EACH(two_leases_of_one_message_end_each_for_itself),
        ON_EACH(released_message_is_not_charged_and_is_due_at_once),
        ON_EACH(end_under_a_stale_token_is_refused_and_kept_as_evidence),
        ON_MEM(late_word_over_an_ended_row_changes_nothing),
        ON_EACH(atomic_group_is_given_back_uncharged_and_runs_alone_next),
        ON_EACH(lone_run_that_stalls_is_charged_and_then_completed),
        ON_EACH(stalled_run_outside_is_unknown_and_a_keyed_one_is_failed),
        ON_EACH(end_that_changes_its_business_keys_locks_them_first),
        ON_EACH(live_lease_is_not_recovered),
        ON_EACH(end_waits_for_its_row_and_a_recovery_does_not),
        ON_EACH(labels_of_an_end_and_of_a_recovery_are_passed_by_these_alone),
        ON_EACH(consecutive_heads_of_a_key_run_in_one_transaction),
        ON_EACH(failed_head_gives_its_followers_back),
        ON_EACH(retry_is_taken_alone_and_only_when_due),
        ON_EACH(row_without_its_payload_does_not_hold_up_the_others),
        ON_EACH(leased_run_is_not_charged_when_the_world_fails),
        ON_EACH(take_that_has_no_memory_for_its_message_fails_and_is_recovered),
        ON_EACH(unknown_commit_of_a_take_is_recovered_and_runs_once),
    };
    engine_stores(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
