/* SPDX-License-Identifier: MIT
 *
 * test_verdict.c: what the table of cases cannot say of the rules: that they hold for whatever facts there are, where
 * texts are cut, and what happens at the ends of the ranges. What they decide, case by case, stands in spec/cases.txt.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "core/state.h"
#include "core/verdict.h"

#define NOW INT64_C(1700000000000000)
#define SECOND INT64_C(1000000)

static struct semel_policy policy_of(void)
{
    struct semel_policy policy;

    semel__policy_init(&policy, SEMEL_STR("c"));
    return policy;
}

static struct semel_progress progress_of(enum semel_row_status state)
{
    bool leased = state == SEMEL_ROW_PROCESSING;

    return (struct semel_progress){.state = state,
                                   .attempts = leased ? 2 : 1,
                                   .due_us = state == SEMEL_ROW_FAILED ? NOW : SEMEL_NONE,
                                   .processed_us = semel__state_final(state) ? NOW : SEMEL_NONE,
                                   .lease_owner = leased ? SEMEL_STR("w") : (struct semel_str){0},
                                   .lease_until_us = leased ? NOW : SEMEL_NONE,
                                   .lease_token = leased ? 7 : SEMEL_NONE};
}

/* ---- any facts at all --------------------------------------------------------------------------------- */

static int64_t pick(struct semel_random *rng, int64_t bound)
{
    return (int64_t)semel__random_below(rng, (uint64_t)bound);
}

struct scene {
    struct semel_policy policy;
    struct semel__msg msg;
    struct semel_row row;
    struct semel_key key;
    struct semel_facts facts;
};

static void draw_row(struct semel_random *rng, struct scene *s)
{
    enum semel_row_status state = (enum semel_row_status)(1 + pick(rng, SEMEL_ROW_COUNT - 1));

    s->row = (struct semel_row){.id = SEMEL_STR("m"),
                                .arrival = 1 + pick(rng, 3),
                                .version = pick(rng, 6),
                                .message_time_us = SEMEL_NONE,
                                .received_us = NOW,
                                .updated_us = NOW,
                                .kept = pick(rng, 2) == 0,
                                .progress = progress_of(state)};
    s->row.progress.attempts = (int)pick(rng, 12);
    s->row.progress.attempts_before = (int)pick(rng, s->row.progress.attempts + 1);
    s->row.progress.attempts += state == SEMEL_ROW_PROCESSING;
    s->row.progress.alone = pick(rng, 2) == 0;
    s->row.progress.error_class = pick(rng, 2) == 0 ? SEMEL_CLASS_GAP : SEMEL_CLASS_TRANSIENT;
    if (state == SEMEL_ROW_FAILED || state == SEMEL_ROW_WAITING)
        s->row.progress.due_us = pick(rng, 3) == 0 ? SEMEL_NONE : NOW - SECOND + pick(rng, 3) * SECOND;
}

static void draw(struct semel_random *rng, struct scene *s)
{
    s->policy = policy_of();
    s->policy.effect = (enum semel_effect)pick(rng, 3);
    s->policy.order = (enum semel_order)pick(rng, 3);
    s->policy.on_gap = (enum semel_gap)pick(rng, 3);
    s->policy.keep = (enum semel_keep)pick(rng, 3);
    s->policy.first_version = pick(rng, 4) == 0 ? SEMEL_FIRST_VERSION_ANY : pick(rng, 3);
    s->policy.parked_key_max = 1 + pick(rng, 3);
    s->policy.retry_max = 1 + (int)pick(rng, 5);
    draw_row(rng, s);
    semel__msg_init(&s->msg);
    s->msg.version = s->row.version;
    s->msg.fp = (struct semel_fp){.kind = SEMEL_FP_RAW, .n = 1, .bytes = {(unsigned char)pick(rng, 2)}};
    s->row.fp = (struct semel_fp){.kind = SEMEL_FP_RAW, .n = 1, .bytes = {(unsigned char)(pick(rng, 4) == 0)}};
    s->msg.defect = pick(rng, 5) == 0 ? (enum semel_defect)pick(rng, 4) : SEMEL_DEFECT_NONE;
    s->msg.message_time_us = pick(rng, 3) == 0 ? NOW - SECOND : SEMEL_NONE;
    bool headed = pick(rng, 2) == 0;
    s->key = (struct semel_key){.by_version = s->policy.order == SEMEL_ORDER_VERSION,
                                .last_version = pick(rng, 3) == 0 ? SEMEL_NONE : pick(rng, 6),
                                .head_arrival = headed ? 1 + pick(rng, 3) : SEMEL_NONE,
                                .head_version = headed ? pick(rng, 6) : SEMEL_NONE,
                                .parked = pick(rng, 4)};
    s->facts = (struct semel_facts){.now_us = NOW,
                                    .row = pick(rng, 3) == 0 ? NULL : &s->row,
                                    .damaged = pick(rng, 20) == 0,
                                    .watermark_us = pick(rng, 3) == 0 ? NOW : SEMEL_NONE,
                                    .intent = (enum semel_intent)(pick(rng, 4) == 0 ? 1 + pick(rng, 2) : 0),
                                    .key = s->policy.order != SEMEL_ORDER_NONE ? &s->key : NULL};
}

static struct semel_progress unborn(void)
{
    struct semel_progress progress = progress_of(SEMEL_ROW_ABSENT);

    progress.attempts = 0;
    return progress;
}

static void assert_fit(const struct scene *s, const struct semel_progress *before, const struct semel_progress *after)
{
    struct semel_row row = s->row;
    struct semel_error err;

    if (!semel__move_legal(before->state, after->state))
        fail_msg("%s -> %s", semel__row_status_name(before->state), semel__row_status_name(after->state));
    row.progress = *after;
    if (semel__row_check(&row, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    assert_true(after->attempts >= before->attempts);
    assert_true(after->retries >= before->retries);
}

static void assert_follows(const struct scene *s, const struct semel__verdict *v, struct semel_random *rng)
{
    struct semel_progress before = s->facts.row != NULL ? s->row.progress : unborn(), claimed, after;

    if (v->act == SEMEL_RUN) {
        assert_int_equal(v->attempt, before.attempts + 1);
        semel__progress_claim(&s->policy, &before, SEMEL_STR("w"), true, 9, NOW, &claimed);
        assert_fit(s, &before, &claimed);
        for (int result = SEMEL_DONE; result <= SEMEL_MAYBE; result++) {
            struct semel_ending ending = {.result = (enum semel_result)result};
            semel__progress_finish(&s->policy, &claimed, &ending, NOW, rng, &after);
            assert_fit(s, &claimed, &after);
        }
        semel__progress_complete(&before, NOW, &after);
        assert_fit(s, &before, &after);
    } else if (v->changes && v->becomes != SEMEL_ROW_ABSENT) {
        semel__progress_verdict(v, &before, (struct semel_str){0}, NOW, &after);
        assert_fit(s, &before, &after);
    } else if (v->changes) {
        assert_null(s->facts.row); /* only what has just been inserted can be taken back */
        assert_int_equal(v->act, SEMEL_LATER);
    }
}

/* Invariants of verdict.h: legal moves, fit rows, attempts that never fall. */
static void whatever_the_facts_are_the_row_stays_fit(void **state)
{
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 11);
    for (int i = 0; i < 200000; i++) {
        struct scene s;
        struct semel__verdict v;
        memset(&v, 0xff, sizeof v);
        draw(&rng, &s);
        semel__verdict_deliver(&s.policy, &s.msg, &s.facts, &v);
        assert_true(v.act >= SEMEL_RUN && v.act <= SEMEL_LATER);
        assert_true(v.why >= SEMEL_WHY_NEW && v.why <= SEMEL_WHY_DAMAGED);
        assert_follows(&s, &v, &rng);
        if (s.facts.row == NULL)
            continue;
        semel__verdict_take(&s.policy, &s.facts, &v);
        assert_true(v.act != SEMEL_RUN || s.row.kept);
        if (!s.facts.damaged)
            assert_follows(&s, &v, &rng);
    }
}

static void the_same_facts_give_the_same_verdict(void **state)
{
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 12);
    for (int i = 0; i < 10000; i++) {
        struct scene s;
        struct semel__verdict a, b;
        draw(&rng, &s);
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        semel__verdict_deliver(&s.policy, &s.msg, &s.facts, &a);
        semel__verdict_deliver(&s.policy, &s.msg, &s.facts, &b);
        assert_true(a.act == b.act && a.why == b.why && a.changes == b.changes && a.becomes == b.becomes &&
                    a.due_us == b.due_us && a.cls == b.cls && a.attempt == b.attempt);
    }
}

/* I11, I5: no facts make a row run that is final, running or unknown, or whose payload is another one. */
static void no_facts_make_a_finished_row_run(void **state)
{
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 13);
    for (int i = 0; i < 100000; i++) {
        struct scene s;
        struct semel__verdict v;
        draw(&rng, &s);
        semel__verdict_deliver(&s.policy, &s.msg, &s.facts, &v);
        if (v.act != SEMEL_RUN)
            continue;
        assert_false(s.facts.damaged);
        if (s.facts.row != NULL) {
            assert_true(s.row.progress.state == SEMEL_ROW_FAILED || s.row.progress.state == SEMEL_ROW_WAITING);
            assert_false(semel__fp_differs(&s.msg.fp, &s.row.fp));
        } else {
            assert_int_equal(s.msg.defect, SEMEL_DEFECT_NONE);
            assert_int_equal(s.facts.intent, SEMEL_INTENT_FREE);
        }
        if (s.facts.key != NULL && s.key.by_version && s.key.last_version != SEMEL_NONE)
            assert_true(s.msg.version > s.key.last_version); /* I12: a stale message never regresses state */
    }
}

/* ---- texts -------------------------------------------------------------------------------------------- */

static void a_reason_is_cut_between_characters(void **state)
{
    struct semel_policy policy = policy_of();
    struct semel_progress before = progress_of(SEMEL_ROW_PROCESSING), after;
    struct semel_random rng;
    char text[SEMEL_ERROR_TEXT_MAX + 4];

    (void)state;
    semel__random_seed(&rng, 1);
    for (size_t lead = 0; lead < 4; lead++) { /* the cut falls on every byte of a character of four */
        memset(text, 'x', sizeof text);
        for (size_t i = lead; i + 4 <= sizeof text; i += 4)
            memcpy(text + i, "\xf0\x9f\x95\x90", 4);
        struct semel_ending ending = {.result = SEMEL_TRANSIENT, .text = {text, sizeof text - 4 + lead}};
        semel__progress_finish(&policy, &before, &ending, NOW, &rng, &after);
        assert_true(after.error_text.n <= SEMEL_ERROR_TEXT_MAX && after.error_text.n > SEMEL_ERROR_TEXT_MAX - 4);
        assert_true(semel__utf8_valid(after.error_text));
    }
}

static void a_reason_within_its_limit_is_kept_whole(void **state)
{
    struct semel_policy policy = policy_of();
    struct semel_progress before = progress_of(SEMEL_ROW_PROCESSING), after;
    struct semel_random rng;
    char text[SEMEL_ERROR_TEXT_MAX];
    struct semel_ending ending = {.result = SEMEL_REJECTED, .text = {text, sizeof text}};

    (void)state;
    semel__random_seed(&rng, 1);
    memset(text, 'x', sizeof text);
    semel__progress_finish(&policy, &before, &ending, NOW, &rng, &after);
    assert_int_equal(after.error_text.n, sizeof text);
}

/* Cut in the middle it would not be JSON any more. */
static void an_outcome_beyond_its_limit_is_not_kept(void **state)
{
    struct semel_progress before = progress_of(SEMEL_ROW_UNKNOWN), after;
    char *text = semel__alloc(SEMEL_OUTCOME_MAX + 1);

    (void)state;
    assert_non_null(text);
    memset(text, 'x', SEMEL_OUTCOME_MAX + 1);
    semel__progress_resolve(&before, (struct semel_str){text, SEMEL_OUTCOME_MAX + 1}, NOW, &after);
    assert_null(after.outcome.p);
    semel__progress_resolve(&before, (struct semel_str){text, SEMEL_OUTCOME_MAX}, NOW, &after);
    assert_int_equal(after.outcome.n, SEMEL_OUTCOME_MAX);
    semel__free(text);
}

/* ---- single events ------------------------------------------------------------------------------------ */

static void a_resolve_without_an_outcome_keeps_the_one_that_is_there(void **state)
{
    struct semel_progress before = progress_of(SEMEL_ROW_UNKNOWN), after;

    (void)state;
    before.outcome = SEMEL_STR("first");
    semel__progress_resolve(&before, (struct semel_str){0}, NOW, &after);
    assert_str(after.outcome, "first");
    semel__progress_resolve(&before, SEMEL_STR(""), NOW, &after);
    assert_int_equal(after.outcome.n, 0);
}

static void a_claim_shows_the_last_error_while_it_runs(void **state)
{
    struct semel_policy policy = policy_of();
    struct semel_progress before = progress_of(SEMEL_ROW_FAILED), after;

    (void)state;
    before.error_class = SEMEL_CLASS_TRANSIENT;
    before.error_text = SEMEL_STR("no answer");
    semel__progress_claim(&policy, &before, SEMEL_STR("worker-1"), false, 9, NOW, &after);
    assert_int_equal(after.error_class, SEMEL_CLASS_TRANSIENT);
    assert_str(after.error_text, "no answer");
    assert_str(after.lease_owner, "worker-1");
    assert_int_equal(after.lease_until_us, NOW + policy.lease_us);
    assert_int_equal(after.lease_token, 9);
}

static void an_ending_may_name_its_own_class(void **state)
{
    struct semel_policy policy = policy_of();
    struct semel_progress before = progress_of(SEMEL_ROW_PROCESSING), after;
    struct semel_random rng;
    struct semel_ending ending = {.result = SEMEL_TRANSIENT, .cls = SEMEL_CLASS_LEASE};

    (void)state;
    semel__random_seed(&rng, 1);
    semel__progress_finish(&policy, &before, &ending, NOW, &rng, &after);
    assert_int_equal(after.error_class, SEMEL_CLASS_LEASE);
}

static void times_at_the_end_of_the_range_do_not_overflow(void **state)
{
    struct semel_policy policy = policy_of();
    struct semel_progress before = progress_of(SEMEL_ROW_FAILED), after;
    struct semel_ending ending = {.result = SEMEL_TRANSIENT};
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 1);
    semel__progress_claim(&policy, &before, SEMEL_STR("w"), true, 9, INT64_MAX - 1, &after);
    assert_true(after.lease_until_us >= INT64_MAX - 1);
    before = after;
    semel__progress_finish(&policy, &before, &ending, INT64_MAX - 1, &rng, &after);
    assert_true(after.due_us >= INT64_MAX - 1);
}

/* I6: a release gives the attempt back, also where it was the first of a retry. */
static void a_release_never_leaves_more_attempts_before_than_there_are(void **state)
{
    struct semel_progress before = progress_of(SEMEL_ROW_PROCESSING), after;

    (void)state;
    for (before.attempts = 1; before.attempts < 5; before.attempts++)
        for (before.attempts_before = 0; before.attempts_before <= before.attempts; before.attempts_before++) {
            semel__progress_release(&before, NOW, &after);
            assert_int_equal(after.attempts, before.attempts - 1);
            assert_true(after.attempts_before <= after.attempts);
        }
}

static void a_payload_stays_as_the_route_says(void **state)
{
    struct semel_policy policy = policy_of();

    (void)state;
    for (unsigned s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++) {
        policy.keep = SEMEL_KEEP_ALWAYS;
        assert_true(semel__payload_stays(&policy, (enum semel_row_status)s));
        policy.keep = SEMEL_KEEP_NEVER;
        assert_false(semel__payload_stays(&policy, (enum semel_row_status)s));
        policy.keep = SEMEL_KEEP_UNFINISHED;
        assert_int_equal(semel__payload_stays(&policy, (enum semel_row_status)s),
                         !semel__state_final((enum semel_row_status)s));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_the_facts_are_the_row_stays_fit),
        cmocka_unit_test(the_same_facts_give_the_same_verdict),
        cmocka_unit_test(no_facts_make_a_finished_row_run),
        cmocka_unit_test(a_reason_is_cut_between_characters),
        cmocka_unit_test(a_reason_within_its_limit_is_kept_whole),
        cmocka_unit_test(an_outcome_beyond_its_limit_is_not_kept),
        cmocka_unit_test(a_resolve_without_an_outcome_keeps_the_one_that_is_there),
        cmocka_unit_test(a_claim_shows_the_last_error_while_it_runs),
        cmocka_unit_test(an_ending_may_name_its_own_class),
        cmocka_unit_test(times_at_the_end_of_the_range_do_not_overflow),
        cmocka_unit_test(a_release_never_leaves_more_attempts_before_than_there_are),
        cmocka_unit_test(a_payload_stays_as_the_route_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
