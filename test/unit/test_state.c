/* SPDX-License-Identifier: MIT
 *
 * test_state.c: the statuses of a row, and the moves between them, as a second table that was written by itself.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "core/state.h"

/* Row: what it is; column: what it becomes; in the order of SEMEL_ROW_MAP. x: legal. */
static const char *const matrix[SEMEL_ROW_COUNT] = {
    /*                a p c f w r u d s v q */
    /* absent      */ "-xxxxxxxxxx",
    /* processing  */ "-xxxxxxx---",
    /* completed   */ "x----------",
    /* failed      */ "-xxxxxxxxx-",
    /* waiting     */ "-xxxxxxxxx-",
    /* rejected    */ "x----------",
    /* unknown     */ "--xx-xx----",
    /* dead        */ "--xxxx-x---",
    /* stale       */ "x----------",
    /* prevented   */ "x----------",
    /* quarantined */ "--xx-x----x",
};

static void every_move_is_legal_or_not_as_the_table_says(void **state)
{
    (void)state;
    for (unsigned from = 0; from < SEMEL_ROW_COUNT; from++) {
        assert_int_equal(strlen(matrix[from]), SEMEL_ROW_COUNT);
        for (unsigned to = 0; to < SEMEL_ROW_COUNT; to++) {
            bool legal = semel__move_legal((enum semel_row_status)from, (enum semel_row_status)to);
            if (legal != (matrix[from][to] == 'x'))
                fail_msg("%s -> %s is %s", semel__row_status_name((enum semel_row_status)from),
                         semel__row_status_name((enum semel_row_status)to), legal ? "legal" : "not legal");
        }
    }
}

/* The table above is in this order. */
static void the_statuses_have_the_order_of_the_table(void **state)
{
    static const char *const names[] = {"absent",  "processing", "completed", "failed",    "waiting",    "rejected",
                                        "unknown", "dead",       "stale",     "prevented", "quarantined"};

    (void)state;
    assert_int_equal(COUNT(names), SEMEL_ROW_COUNT);
    for (unsigned i = 0; i < SEMEL_ROW_COUNT; i++)
        assert_string_equal(semel__row_status_name((enum semel_row_status)i), names[i]);
}

/* I18: purge alone takes a final row away. */
static void a_final_row_can_only_be_taken_away(void **state)
{
    static const enum semel_row_status finals[] = {SEMEL_ROW_COMPLETED, SEMEL_ROW_REJECTED, SEMEL_ROW_STALE,
                                                   SEMEL_ROW_PREVENTED};
    unsigned n = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(finals); i++) {
        assert_true(semel__state_final(finals[i]));
        for (unsigned to = 0; to < SEMEL_ROW_COUNT; to++)
            assert_int_equal(semel__move_legal(finals[i], (enum semel_row_status)to), to == SEMEL_ROW_ABSENT);
    }
    for (unsigned i = 0; i < SEMEL_ROW_COUNT; i++)
        n += semel__state_final((enum semel_row_status)i);
    assert_int_equal(n, COUNT(finals));
}

/* I15: what is not final is never taken away. */
static void nothing_but_a_final_row_is_ever_taken_away(void **state)
{
    (void)state;
    for (unsigned from = 0; from < SEMEL_ROW_COUNT; from++)
        assert_int_equal(semel__move_legal((enum semel_row_status)from, SEMEL_ROW_ABSENT),
                         semel__state_final((enum semel_row_status)from));
}

/* I13 */
static void unfinished_rows_hold_back_their_key(void **state)
{
    static const enum semel_row_status unfinished[] = {SEMEL_ROW_PROCESSING, SEMEL_ROW_FAILED, SEMEL_ROW_WAITING,
                                                       SEMEL_ROW_UNKNOWN, SEMEL_ROW_DEAD};
    unsigned n = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(unfinished); i++)
        assert_true(semel__state_unfinished(unfinished[i]));
    for (unsigned i = 0; i < SEMEL_ROW_COUNT; i++)
        n += semel__state_unfinished((enum semel_row_status)i);
    assert_int_equal(n, COUNT(unfinished));
}

static void no_row_is_final_and_unfinished(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SEMEL_ROW_COUNT; i++)
        assert_false(semel__state_final((enum semel_row_status)i) && semel__state_unfinished((enum semel_row_status)i));
    assert_false(semel__state_final(SEMEL_ROW_QUARANTINED));
    assert_false(semel__state_unfinished(SEMEL_ROW_QUARANTINED));
    assert_false(semel__state_final(SEMEL_ROW_ABSENT));
    assert_false(semel__state_unfinished(SEMEL_ROW_ABSENT));
}

static void what_is_no_status_has_no_move(void **state)
{
    (void)state;
    assert_false(semel__move_legal(SEMEL_ROW_COUNT, SEMEL_ROW_ABSENT));
    assert_false(semel__move_legal(SEMEL_ROW_ABSENT, SEMEL_ROW_COUNT));
    assert_false(semel__move_legal((enum semel_row_status) - 1, SEMEL_ROW_COMPLETED));
    assert_false(semel__move_legal(SEMEL_ROW_WAITING, (enum semel_row_status)40));
    assert_false(semel__state_final(SEMEL_ROW_COUNT));
    assert_false(semel__state_unfinished((enum semel_row_status)40));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_move_is_legal_or_not_as_the_table_says),
        cmocka_unit_test(the_statuses_have_the_order_of_the_table),
        cmocka_unit_test(a_final_row_can_only_be_taken_away),
        cmocka_unit_test(nothing_but_a_final_row_is_ever_taken_away),
        cmocka_unit_test(unfinished_rows_hold_back_their_key),
        cmocka_unit_test(no_row_is_final_and_unfinished),
        cmocka_unit_test(what_is_no_status_has_no_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
