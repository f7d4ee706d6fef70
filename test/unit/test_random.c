/* SPDX-License-Identifier: MIT
 *
 * test_random.c: known answers of xoshiro256** and splitmix64, and fair draws.
 */
#include "base/random.h"
#include "unit.h"

static void xoshiro256ss_gives_its_known_numbers(void **state)
{
    (void)state;
    static const uint64_t expected[] = {UINT64_C(11520),
                                        UINT64_C(0),
                                        UINT64_C(1509978240),
                                        UINT64_C(1215971899390074240),
                                        UINT64_C(1216172134540287360),
                                        UINT64_C(607988272756665600),
                                        UINT64_C(16172922978634559625),
                                        UINT64_C(8476171486693032832),
                                        UINT64_C(10595114339597558777),
                                        UINT64_C(2904607092377533576)};
    struct semel_random rng = {{1, 2, 3, 4}};
    for (size_t i = 0; i < COUNT(expected); i++)
        assert_true(semel__random_next(&rng) == expected[i]);
}

static void a_seed_is_spread_by_splitmix64(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 0);
    assert_true(rng.s[0] == UINT64_C(0xE220A8397B1DCDAF));
    assert_true(rng.s[1] == UINT64_C(0x6E789E6AA1B965F4));
    assert_true(rng.s[2] == UINT64_C(0x06C45D188009454F));
    assert_true(rng.s[3] == UINT64_C(0xF88BB8A8724C81EC));
    semel__random_seed(&rng, 1234567);
    assert_true(rng.s[0] == UINT64_C(6457827717110365317));
    assert_true(rng.s[1] == UINT64_C(3203168211198807973));
}

static void one_seed_replays_the_whole_run(void **state)
{
    (void)state;
    struct semel_random a, b;
    semel__random_seed(&a, 99);
    semel__random_seed(&b, 99);
    for (int i = 0; i < 1000; i++)
        assert_true(semel__random_next(&a) == semel__random_next(&b));
    semel__random_seed(&b, 98);
    assert_true(semel__random_next(&a) != semel__random_next(&b));
}

static void a_draw_stays_below_its_bound(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 1);
    assert_int_equal(semel__random_below(&rng, 0), 0);
    assert_int_equal(semel__random_below(&rng, 1), 0);
    static const uint64_t bounds[] = {2, 3, 7, 1000, UINT64_C(1) << 63, (UINT64_C(1) << 63) + 1, UINT64_MAX};
    for (size_t b = 0; b < COUNT(bounds); b++)
        for (int i = 0; i < 1000; i++)
            assert_true(semel__random_below(&rng, bounds[b]) < bounds[b]);
}

/* With a bound of 3/4 of 2^64, plain modulo would draw the lowest third twice as often: one half of all. */
static void a_draw_has_no_modulo_bias(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 2);
    const uint64_t third = UINT64_C(1) << 62;
    int low = 0;
    for (int i = 0; i < 30000; i++)
        low += semel__random_below(&rng, 3 * third) < third;
    assert_in_range(low, 9500, 10500);
}

static void a_chance_of_0_never_and_of_1000_always_happens(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 3);
    int happened = 0;
    for (int i = 0; i < 10000; i++) {
        assert_false(semel__random_chance(&rng, 0));
        assert_true(semel__random_chance(&rng, 1000));
        happened += semel__random_chance(&rng, 250);
    }
    assert_in_range(happened, 2300, 2700);
}

static void the_system_seeds_differently_each_time(void **state)
{
    (void)state;
    struct semel_random a, b;
    assert_true(semel__random_seed_os(&a));
    assert_true(semel__random_seed_os(&b));
    assert_memory_not_equal(&a, &b, sizeof(a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xoshiro256ss_gives_its_known_numbers),
        cmocka_unit_test(a_seed_is_spread_by_splitmix64),
        cmocka_unit_test(one_seed_replays_the_whole_run),
        cmocka_unit_test(a_draw_stays_below_its_bound),
        cmocka_unit_test(a_draw_has_no_modulo_bias),
        cmocka_unit_test(a_chance_of_0_never_and_of_1000_always_happens),
        cmocka_unit_test(the_system_seeds_differently_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
