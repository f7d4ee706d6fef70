/* SPDX-License-Identifier: MIT
 *
 * test_retry.c: how long to wait, and when to stop trying.
 */
#include "unit/unit.h"

#include "core/retry.h"

#define MS INT64_C(1000)
#define SECOND INT64_C(1000000)
#define MINUTE (60 * SECOND)
#define NOW INT64_C(1700000000000000)

/* ---- backoff: I6 -------------------------------------------------------------------------------------- */

/* The n-th wait is uniform in [1 ms, min(ceiling, first * 2^(n-1))]. */
static void a_wait_has_full_jitter_within_its_bounds(void **state)
{
    struct semel_random rng;
    enum { DRAWS = 4000 };

    (void)state;
    semel__random_seed(&rng, 1);
    for (int attempt = 1; attempt <= 12; attempt++) {
        int64_t limit = SECOND << (attempt - 1), low = INT64_MAX, high = 0, sum = 0;
        if (limit > 10 * MINUTE)
            limit = 10 * MINUTE;
        for (int i = 0; i < DRAWS; i++) {
            int64_t us = semel__backoff_us(SECOND, 10 * MINUTE, attempt, &rng);
            assert_true(us >= MS && us <= limit);
            low = us < low ? us : low;
            high = us > high ? us : high;
            sum += us / DRAWS;
        }
        assert_true(low < limit / 50);          /* full jitter: short waits happen */
        assert_true(high > limit - limit / 50); /* and long ones */
        assert_true(sum > limit * 45 / 100 && sum < limit * 55 / 100);
    }
}

static void waits_fall_evenly_into_quarters(void **state)
{
    struct semel_random rng;
    int quarters[4] = {0};

    (void)state;
    semel__random_seed(&rng, 2);
    for (int i = 0; i < 40000; i++) {
        int64_t us = semel__backoff_us(SECOND, 10 * MINUTE, 4, &rng); /* up to 8 s */
        quarters[us >= 8 * SECOND ? 3 : us / (2 * SECOND)]++;
    }
    for (int i = 0; i < 4; i++)
        assert_in_range(quarters[i], 9500, 10500);
}

static void a_wait_never_exceeds_its_ceiling_nor_overflows(void **state)
{
    static const int attempts[] = {63, 64, 65, 1000, 1000000, INT32_MAX};
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 3);
    for (size_t i = 0; i < COUNT(attempts); i++)
        for (int k = 0; k < 100; k++) {
            int64_t us = semel__backoff_us(SECOND, 10 * MINUTE, attempts[i], &rng);
            assert_true(us >= MS && us <= 10 * MINUTE);
            us = semel__backoff_us(INT64_MAX / 2 + 1, INT64_MAX, attempts[i], &rng);
            assert_true(us >= MS);
        }
}

static void a_wait_is_at_least_a_millisecond(void **state)
{
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 4);
    assert_int_equal(semel__backoff_us(1, 1, 1, &rng), MS);
    assert_int_equal(semel__backoff_us(0, 0, 5, &rng), MS);
    assert_int_equal(semel__backoff_us(MS, MS, 9, &rng), MS);
    assert_int_equal(semel__backoff_us(-5, -5, 2, &rng), MS);
}

static void an_attempt_of_zero_waits_like_the_first(void **state)
{
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 5);
    for (int i = 0; i < 1000; i++) {
        assert_true(semel__backoff_us(SECOND, MINUTE, 0, &rng) <= SECOND);
        assert_true(semel__backoff_us(SECOND, MINUTE, -7, &rng) <= SECOND);
    }
}

static void a_ceiling_below_the_first_wait_holds(void **state)
{
    struct semel_random rng;

    (void)state;
    semel__random_seed(&rng, 6);
    for (int i = 0; i < 1000; i++)
        assert_true(semel__backoff_us(MINUTE, SECOND, 1, &rng) <= SECOND);
}

/* ---- breaker: P63 ------------------------------------------------------------------------------------- */

struct fixture {
    struct semel_breaker breaker;
    struct semel_random rng;
};

static struct fixture fixture_of(int threshold)
{
    struct fixture f;

    semel__random_seed(&f.rng, 7);
    semel__breaker_init(&f.breaker, threshold, SECOND, MINUTE);
    return f;
}

static void fail_times(struct fixture *f, int n, int64_t now_us)
{
    for (int i = 0; i < n; i++)
        semel__breaker_failure(&f->breaker, SEMEL_CLASS_ENVIRONMENT, now_us, &f->rng);
}

static void below_the_threshold_everything_goes(void **state)
{
    struct fixture f = fixture_of(5);

    (void)state;
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_GO);
    fail_times(&f, 4, NOW);
    assert_int_equal(f.breaker.failures, 4);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_GO);
}

static void at_the_threshold_it_opens(void **state)
{
    struct fixture f = fixture_of(5);

    (void)state;
    fail_times(&f, 5, NOW);
    assert_int_equal(f.breaker.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(f.breaker.cause, SEMEL_CLASS_ENVIRONMENT);
    assert_true(f.breaker.next_us > NOW && f.breaker.next_us <= NOW + SECOND);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_WAIT);
    assert_int_equal(semel__breaker_ask(&f.breaker, f.breaker.next_us - 1), SEMEL_GATE_WAIT);
}

static void a_success_between_starts_the_count_anew(void **state)
{
    struct fixture f = fixture_of(5);

    (void)state;
    fail_times(&f, 4, NOW);
    semel__breaker_success(&f.breaker);
    fail_times(&f, 4, NOW);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_GO);
    fail_times(&f, 1, NOW);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_WAIT);
}

static void broken_opens_it_at_once(void **state)
{
    struct fixture f = fixture_of(5);

    (void)state;
    semel__breaker_failure(&f.breaker, SEMEL_CLASS_BROKEN, NOW, &f.rng);
    assert_int_equal(f.breaker.state, SEMEL_BREAKER_OPEN);
    assert_int_equal(f.breaker.cause, SEMEL_CLASS_BROKEN);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_WAIT);
}

static void one_probe_is_out_at_a_time(void **state)
{
    struct fixture f = fixture_of(1);
    int64_t due;

    (void)state;
    fail_times(&f, 1, NOW);
    due = f.breaker.next_us;
    assert_int_equal(semel__breaker_ask(&f.breaker, due), SEMEL_GATE_PROBE);
    for (int64_t us = due; us < due + MINUTE; us += SECOND)
        assert_int_equal(semel__breaker_ask(&f.breaker, us), SEMEL_GATE_WAIT);
}

static void a_probe_that_is_never_answered_is_given_up(void **state)
{
    struct fixture f = fixture_of(1);
    int64_t due;

    (void)state;
    fail_times(&f, 1, NOW);
    due = f.breaker.next_us;
    assert_int_equal(semel__breaker_ask(&f.breaker, due), SEMEL_GATE_PROBE);
    assert_int_equal(semel__breaker_ask(&f.breaker, due + MINUTE - 1), SEMEL_GATE_WAIT);
    assert_int_equal(semel__breaker_ask(&f.breaker, due + MINUTE), SEMEL_GATE_PROBE);
}

static void a_probe_that_succeeds_closes_it(void **state)
{
    struct fixture f = fixture_of(2);

    (void)state;
    fail_times(&f, 2, NOW);
    assert_int_equal(semel__breaker_ask(&f.breaker, f.breaker.next_us), SEMEL_GATE_PROBE);
    semel__breaker_success(&f.breaker);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_GO);
    assert_int_equal(f.breaker.cause, SEMEL_CLASS_NONE);
    fail_times(&f, 1, NOW); /* the count starts anew */
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW), SEMEL_GATE_GO);
}

static void a_probe_that_fails_opens_it_again_for_longer(void **state)
{
    int64_t longest[8] = {0};

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct fixture f = fixture_of(1);
        int64_t now_us = NOW;
        semel__random_seed(&f.rng, seed);
        fail_times(&f, 1, now_us);
        for (size_t i = 0; i < COUNT(longest); i++) {
            int64_t wait = f.breaker.next_us - now_us;
            longest[i] = wait > longest[i] ? wait : longest[i];
            assert_true(wait >= MS && wait <= (SECOND << i) && wait <= MINUTE);
            now_us = f.breaker.next_us;
            assert_int_equal(semel__breaker_ask(&f.breaker, now_us), SEMEL_GATE_PROBE);
            fail_times(&f, 1, now_us);
            assert_int_equal(f.breaker.state, SEMEL_BREAKER_OPEN);
        }
    }
    for (size_t i = 1; i < 6; i++)
        assert_true(longest[i] > longest[i - 1]);
}

static void failures_while_it_is_open_do_not_move_its_time(void **state)
{
    struct fixture f = fixture_of(2);
    int64_t due;

    (void)state;
    fail_times(&f, 2, NOW);
    due = f.breaker.next_us;
    fail_times(&f, 1000, NOW + 10); /* workers that were still running */
    assert_int_equal(f.breaker.next_us, due);
    assert_int_equal(semel__breaker_ask(&f.breaker, due), SEMEL_GATE_PROBE);
}

/* P45 */
static void a_clock_that_jumps_back_does_not_keep_it_shut(void **state)
{
    struct fixture f = fixture_of(1);

    (void)state;
    fail_times(&f, 1, NOW);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW - 3600 * SECOND), SEMEL_GATE_PROBE);
    assert_int_equal(semel__breaker_ask(&f.breaker, NOW - 3600 * SECOND + 1), SEMEL_GATE_WAIT);
    semel__breaker_failure(&f.breaker, SEMEL_CLASS_ENVIRONMENT, NOW - 3600 * SECOND + 2, &f.rng);
    assert_true(f.breaker.next_us <= NOW - 3600 * SECOND + 2 + MINUTE);
}

static void a_small_jump_back_keeps_it_shut_no_longer_than_its_ceiling_and_a_second(void **state)
{
    struct fixture f = fixture_of(1);

    (void)state;
    fail_times(&f, 1, NOW);
    for (int64_t back = 0; back < 2 * MINUTE; back += SECOND) {
        struct semel_breaker copy = f.breaker;
        enum semel_gate gate = semel__breaker_ask(&copy, NOW - back);
        assert_int_equal(gate,
                         f.breaker.next_us - (NOW - back) <= MINUTE + SECOND ? SEMEL_GATE_WAIT : SEMEL_GATE_PROBE);
    }
}

static void openings_without_end_do_not_overflow(void **state)
{
    struct fixture f = fixture_of(1);
    int64_t now_us = NOW;

    (void)state;
    fail_times(&f, 1, now_us);
    for (int i = 0; i < 10000; i++) {
        now_us = f.breaker.next_us;
        assert_int_equal(semel__breaker_ask(&f.breaker, now_us), SEMEL_GATE_PROBE);
        fail_times(&f, 1, now_us);
        assert_true(f.breaker.next_us > now_us && f.breaker.next_us <= now_us + MINUTE);
    }
    assert_true(f.breaker.failures <= f.breaker.threshold);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_has_full_jitter_within_its_bounds),
        cmocka_unit_test(waits_fall_evenly_into_quarters),
        cmocka_unit_test(a_wait_never_exceeds_its_ceiling_nor_overflows),
        cmocka_unit_test(a_wait_is_at_least_a_millisecond),
        cmocka_unit_test(an_attempt_of_zero_waits_like_the_first),
        cmocka_unit_test(a_ceiling_below_the_first_wait_holds),
        cmocka_unit_test(below_the_threshold_everything_goes),
        cmocka_unit_test(at_the_threshold_it_opens),
        cmocka_unit_test(a_success_between_starts_the_count_anew),
        cmocka_unit_test(broken_opens_it_at_once),
        cmocka_unit_test(one_probe_is_out_at_a_time),
        cmocka_unit_test(a_probe_that_is_never_answered_is_given_up),
        cmocka_unit_test(a_probe_that_succeeds_closes_it),
        cmocka_unit_test(a_probe_that_fails_opens_it_again_for_longer),
        cmocka_unit_test(failures_while_it_is_open_do_not_move_its_time),
        cmocka_unit_test(a_clock_that_jumps_back_does_not_keep_it_shut),
        cmocka_unit_test(a_small_jump_back_keeps_it_shut_no_longer_than_its_ceiling_and_a_second),
        cmocka_unit_test(openings_without_end_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
