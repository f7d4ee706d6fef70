/* SPDX-License-Identifier: MIT
 *
 * test_natural.c: versions, and forward-only state machines.
 */
#include "unit/unit.h"

#include "semel/semel.h"

/* ---- versions: I12 ------------------------------------------------------------------------------------ */

static void equal_is_the_same_next_is_next_and_the_rest_is_older_or_ahead(void **state)
{
    (void)state;
    assert_int_equal(semel_version_compare(4, 5), SEMEL_VERSION_NEXT);
    assert_int_equal(semel_version_compare(4, 4), SEMEL_VERSION_SAME);
    assert_int_equal(semel_version_compare(4, 3), SEMEL_VERSION_OLDER);
    assert_int_equal(semel_version_compare(4, 0), SEMEL_VERSION_OLDER);
    assert_int_equal(semel_version_compare(4, 6), SEMEL_VERSION_AHEAD);
    assert_int_equal(semel_version_compare(-1, 0), SEMEL_VERSION_NEXT);
    assert_int_equal(semel_version_compare(0, 0), SEMEL_VERSION_SAME);
}

static void versions_at_the_ends_of_the_range_do_not_overflow(void **state)
{
    (void)state;
    assert_int_equal(semel_version_compare(INT64_MAX, INT64_MAX), SEMEL_VERSION_SAME);
    assert_int_equal(semel_version_compare(INT64_MAX - 1, INT64_MAX), SEMEL_VERSION_NEXT);
    assert_int_equal(semel_version_compare(INT64_MAX, 0), SEMEL_VERSION_OLDER);
    assert_int_equal(semel_version_compare(INT64_MIN, INT64_MAX), SEMEL_VERSION_AHEAD);
    assert_int_equal(semel_version_compare(INT64_MIN, INT64_MIN + 1), SEMEL_VERSION_NEXT);
    assert_int_equal(semel_version_compare(INT64_MIN, INT64_MIN), SEMEL_VERSION_SAME);
}

/* ---- machines: I22 ------------------------------------------------------------------------------------ */

#define BIT(state) (UINT64_C(1) << (state))

/* Stock is reserved, then released, or shipped and perhaps returned. */
enum { FREE, RESERVED, RELEASED, SHIPPED, RETURNED, STOCK_STATES };
static const uint64_t stock_moves[STOCK_STATES] = {
    [FREE] = BIT(RESERVED),
    [RESERVED] = BIT(RELEASED) | BIT(SHIPPED),
    [SHIPPED] = BIT(RETURNED),
};
static const struct semel_machine stock = {STOCK_STATES, stock_moves};

/* I22 */
static void a_legal_move_is_made(void **state)
{
    (void)state;
    assert_int_equal(semel_machine_move(&stock, FREE, RESERVED), SEMEL_FORWARD_APPLY);
    assert_int_equal(semel_machine_move(&stock, RESERVED, RELEASED), SEMEL_FORWARD_APPLY);
    assert_int_equal(semel_machine_move(&stock, SHIPPED, RETURNED), SEMEL_FORWARD_APPLY);
}

/* I22 */
static void a_repeated_release_of_stock_is_harmless(void **state)
{
    unsigned now = RESERVED;
    int applied = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        enum semel_forward forward = semel_machine_move(&stock, now, RELEASED);
        assert_int_not_equal(forward, SEMEL_FORWARD_REFUSE);
        if (forward != SEMEL_FORWARD_APPLY)
            continue;
        now = RELEASED;
        applied++;
    }
    assert_int_equal(applied, 1);
    assert_int_equal(now, RELEASED);
}

/* I22 */
static void a_move_to_where_it_has_been_is_a_repeat(void **state)
{
    (void)state;
    assert_int_equal(semel_machine_move(&stock, SHIPPED, RESERVED), SEMEL_FORWARD_REPEAT);
    assert_int_equal(semel_machine_move(&stock, RETURNED, SHIPPED), SEMEL_FORWARD_REPEAT);
    assert_int_equal(semel_machine_move(&stock, RETURNED, FREE), SEMEL_FORWARD_REPEAT);
}

/* I22 */
static void a_move_for_which_there_is_no_way_is_refused(void **state)
{
    (void)state;
    assert_int_equal(semel_machine_move(&stock, RELEASED, SHIPPED), SEMEL_FORWARD_REFUSE); /* the other branch */
    assert_int_equal(semel_machine_move(&stock, SHIPPED, RELEASED), SEMEL_FORWARD_REFUSE);
    assert_int_equal(semel_machine_move(&stock, FREE, SHIPPED), SEMEL_FORWARD_REFUSE); /* a step is missing */
    assert_int_equal(semel_machine_move(&stock, FREE, RETURNED), SEMEL_FORWARD_REFUSE);
}

static void a_state_that_the_machine_does_not_have_is_refused(void **state)
{
    const struct semel_machine too_large = {65, stock_moves};

    (void)state;
    assert_int_equal(semel_machine_move(&stock, STOCK_STATES, FREE), SEMEL_FORWARD_REFUSE);
    assert_int_equal(semel_machine_move(&stock, FREE, STOCK_STATES), SEMEL_FORWARD_REFUSE);
    assert_int_equal(semel_machine_move(&stock, FREE, 64), SEMEL_FORWARD_REFUSE);
    assert_int_equal(semel_machine_move(&stock, UINT32_MAX, UINT32_MAX), SEMEL_FORWARD_REFUSE);
    assert_int_equal(semel_machine_move(&too_large, FREE, RESERVED), SEMEL_FORWARD_REFUSE);
}

/* With a way back nothing is ever past: each direct move is made, a longer way is not guessed. */
static void a_machine_with_a_circle_makes_only_direct_moves(void **state)
{
    static const uint64_t moves[] = {BIT(1), BIT(2), BIT(0)};
    const struct semel_machine circle = {3, moves};

    (void)state;
    assert_int_equal(semel_machine_move(&circle, 0, 1), SEMEL_FORWARD_APPLY);
    assert_int_equal(semel_machine_move(&circle, 2, 0), SEMEL_FORWARD_APPLY);
    assert_int_equal(semel_machine_move(&circle, 1, 0), SEMEL_FORWARD_REFUSE);
    assert_int_equal(semel_machine_move(&circle, 1, 1), SEMEL_FORWARD_REPEAT);
}

static void a_machine_of_64_states_is_walked_to_its_end(void **state)
{
    uint64_t moves[64];
    const struct semel_machine chain = {64, moves};

    (void)state;
    for (unsigned i = 0; i < 64; i++)
        moves[i] = i < 63 ? BIT(i + 1) : 0;
    assert_int_equal(semel_machine_move(&chain, 62, 63), SEMEL_FORWARD_APPLY);
    assert_int_equal(semel_machine_move(&chain, 63, 0), SEMEL_FORWARD_REPEAT);
    assert_int_equal(semel_machine_move(&chain, 0, 63), SEMEL_FORWARD_REFUSE);
}

static void moves_to_states_beyond_the_machine_are_ignored(void **state)
{
    static const uint64_t moves[] = {~UINT64_C(0), 0};
    const struct semel_machine sloppy = {2, moves};

    (void)state;
    assert_int_equal(semel_machine_move(&sloppy, 0, 1), SEMEL_FORWARD_APPLY);
    assert_int_equal(semel_machine_move(&sloppy, 1, 0), SEMEL_FORWARD_REPEAT);
    assert_int_equal(semel_machine_move(&sloppy, 0, 5), SEMEL_FORWARD_REFUSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_is_the_same_next_is_next_and_the_rest_is_older_or_ahead),
        cmocka_unit_test(versions_at_the_ends_of_the_range_do_not_overflow),
        cmocka_unit_test(a_legal_move_is_made),
        cmocka_unit_test(a_repeated_release_of_stock_is_harmless),
        cmocka_unit_test(a_move_to_where_it_has_been_is_a_repeat),
        cmocka_unit_test(a_move_for_which_there_is_no_way_is_refused),
        cmocka_unit_test(a_state_that_the_machine_does_not_have_is_refused),
        cmocka_unit_test(a_machine_with_a_circle_makes_only_direct_moves),
        cmocka_unit_test(a_machine_of_64_states_is_walked_to_its_end),
        cmocka_unit_test(moves_to_states_beyond_the_machine_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
