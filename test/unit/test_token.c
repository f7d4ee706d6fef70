/* SPDX-License-Identifier: MIT
 *
 * test_token.c: fencing tokens: what is in them, and that no two are alike.
 */
#include "unit/unit.h"

#include <stdlib.h>

#include "core/token.h"

#define NOW INT64_C(1700000000000000)
#define LATER INT64_C(1725000000000000) /* 2024-08-30: from here on tokens exceed 2^59 */
#define EPOCH INT64_C(1577836800000000)
#define UNIT INT64_C(1024)

struct giver {
    struct semel_tokens tokens;
    struct semel_random rng;
};

static struct giver giver_of(uint64_t seed)
{
    struct giver g = {0};

    semel__random_seed(&g.rng, seed);
    return g;
}

static int64_t give(struct giver *g, enum semel_effect effect, int64_t now_us, int64_t updated_us)
{
    return semel__token_new(&g->tokens, &g->rng, effect, now_us, updated_us);
}

static int64_t clock_of(int64_t token)
{
    return token >> 22;
}

/* A7 P79 */
static void a_token_holds_clock_effect_and_chance(void **state)
{
    struct giver g = giver_of(1);
    enum semel_effect found;

    (void)state;
    for (int effect = SEMEL_EFFECT_ATOMIC; effect <= SEMEL_EFFECT_KEYED; effect++) {
        int64_t token = give(&g, (enum semel_effect)effect, NOW, SEMEL_NONE);
        assert_int_equal(clock_of(token), (NOW - EPOCH) / UNIT);
        assert_int_equal(token >> 10 & 3, effect + 1);
        assert_true((token & 127) != 0);
        assert_true(semel__token_effect(token, &found));
        assert_int_equal(found, effect);
        assert_true(semel__token_us(token) <= NOW && semel__token_us(token) > NOW - UNIT);
        assert_true(token > INT64_C(1) << 53);
    }
}

/* A7: two givers that begin in the same moment do not count from the same number. */
static void a_counter_begins_anywhere(void **state)
{
    bool seen[1024] = {false};
    size_t n = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 32; seed++) {
        struct giver g = giver_of(seed);
        const int64_t counter = give(&g, SEMEL_EFFECT_ATOMIC, NOW, SEMEL_NONE) >> 12 & 1023;
        n += !seen[counter];
        seen[counter] = true;
    }
    assert_in_range(n, 16, 32);
}

static int cmp(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* A7 P79: more than the counter holds, all in one moment */
static void no_two_tokens_of_one_moment_are_alike(void **state)
{
    enum { N = 10000 };
    static int64_t tokens[N];
    struct giver g = giver_of(2);

    (void)state;
    for (int i = 0; i < N; i++)
        tokens[i] = give(&g, SEMEL_EFFECT_ATOMIC, NOW, SEMEL_NONE);
    assert_true(clock_of(tokens[N - 1]) <= clock_of(tokens[0]) + N / 1024 + 1);
    qsort(tokens, N, sizeof tokens[0], cmp);
    for (int i = 1; i < N; i++)
        assert_true(tokens[i] > tokens[i - 1]);
}

/* A7 P79: one that is known says little of the next */
static void a_token_is_not_the_one_before_plus_something(void **state)
{
    struct giver g = giver_of(3);
    unsigned seen[1024] = {0}, most = 0;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        unsigned low = (unsigned)(give(&g, SEMEL_EFFECT_OUTSIDE, NOW + i * UNIT, SEMEL_NONE) & 1023);
        seen[low]++;
        most = seen[low] > most ? seen[low] : most;
    }
    for (unsigned i = 0; i < 1024; i++)
        assert_true((seen[i] == 0) == (i % 128 == 0));
    assert_true(most < 200);
}

/* A7 P79: a clock that steps back, also right after a restore */
static void a_token_is_above_whatever_its_row_has_seen(void **state)
{
    struct giver g = giver_of(4), restored = giver_of(5);
    int64_t updated = NOW, last = give(&g, SEMEL_EFFECT_KEYED, NOW, SEMEL_NONE);

    (void)state;
    for (int i = 0; i < 100; i++) {
        int64_t token = give(i % 2 ? &g : &restored, SEMEL_EFFECT_KEYED, NOW - i * INT64_C(3600000000), updated);
        assert_true(token > last);
        last = token;
        updated = semel__token_us(token);
    }
}

static void a_clock_far_off_makes_a_token_all_the_same(void **state)
{
    struct giver g = giver_of(6);
    static const int64_t times[] = {INT64_MIN + 1, 0, EPOCH, INT64_C(4000000000000000), INT64_MAX};
    enum semel_effect effect;

    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        int64_t token = give(&g, SEMEL_EFFECT_OUTSIDE, times[i], times[i] == INT64_MIN + 1 ? SEMEL_NONE : times[i]);
        assert_true(token >= INT64_C(1) << 40);
        assert_true(semel__token_effect(token, &effect) && effect == SEMEL_EFFECT_OUTSIDE);
    }
}

/* A7: the unit behind the last one is for a row that was touched in the last one. */
static void a_row_of_the_last_moment_gets_a_token_above_all(void **state)
{
    struct giver g = giver_of(8);
    int64_t highest = 0;

    (void)state;
    for (int i = 0; i < 2 * 1024; i++) {
        const int64_t token = give(&g, SEMEL_EFFECT_ATOMIC, INT64_MAX, SEMEL_NONE);
        highest = token > highest ? token : highest;
    }
    assert_true(give(&g, SEMEL_EFFECT_ATOMIC, INT64_MAX, semel__token_us(highest)) > highest);
}

static void an_old_token_goes_by_the_consumers_effect(void **state)
{
    struct semel_policy policy;
    enum semel_effect effect;
    struct giver g = giver_of(7);

    (void)state;
    semel__policy_init(&policy, SEMEL_STR("c"));
    policy.effect = SEMEL_EFFECT_KEYED;
    assert_false(semel__token_effect(4711, &effect));
    assert_false(semel__token_effect(SEMEL_NONE, &effect));
    assert_false(semel__token_effect(INT64_C(1) << 40, &effect));
    assert_int_equal(semel__effect_of(&policy, 4711), SEMEL_EFFECT_KEYED);
    assert_int_equal(semel__effect_of(&policy, give(&g, SEMEL_EFFECT_OUTSIDE, NOW, SEMEL_NONE)), SEMEL_EFFECT_OUTSIDE);
}

/* A7 P79 */
static void a_token_in_a_double_is_noticed(void **state)
{
    struct giver g = giver_of(8);
    struct semel_error err;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        int64_t token = give(&g, SEMEL_EFFECT_ATOMIC, LATER + i * INT64_C(86400000000), SEMEL_NONE);
        assert_int_equal(semel__token_check(token, &err), SEMEL_OK);
        assert_int_equal(semel__token_check((int64_t)(double)token, &err), SEMEL_INVALID);
        assert_non_null(strstr(err.text, "rounded"));
    }
    assert_int_equal(semel__token_check(128, &err), SEMEL_OK); /* an old one */
    assert_int_equal(semel__token_check(0, &err), SEMEL_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_holds_clock_effect_and_chance),
        cmocka_unit_test(a_counter_begins_anywhere),
        cmocka_unit_test(no_two_tokens_of_one_moment_are_alike),
        cmocka_unit_test(a_token_is_not_the_one_before_plus_something),
        cmocka_unit_test(a_token_is_above_whatever_its_row_has_seen),
        cmocka_unit_test(a_clock_far_off_makes_a_token_all_the_same),
        cmocka_unit_test(a_row_of_the_last_moment_gets_a_token_above_all),
        cmocka_unit_test(an_old_token_goes_by_the_consumers_effect),
        cmocka_unit_test(a_token_in_a_double_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
