/* SPDX-License-Identifier: MIT
 *
 * test_error.c: errors as values, and names there and back.
 */
#include "base/error.h"
#include "unit.h"

static void a_failure_carries_status_class_and_text(void **state)
{
    (void)state;
    struct semel_error err = {.code = 99};
    assert_int_equal(semel__fail(&err, SEMEL_FENCED, SEMEL_CLASS_LEASE, "token %d", 7), SEMEL_FENCED);
    assert_int_equal(err.status, SEMEL_FENCED);
    assert_int_equal(err.cls, SEMEL_CLASS_LEASE);
    assert_int_equal(err.code, 0);
    assert_string_equal(err.text, "token 7");
    semel__error_clear(&err);
    assert_int_equal(err.status, SEMEL_OK);
    assert_string_equal(err.text, "");
}

static void nobody_need_ask_for_the_error(void **state)
{
    (void)state;
    assert_int_equal(semel__fail(NULL, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s", "x"), SEMEL_INVALID);
    assert_int_equal(semel__fail_memory(NULL), SEMEL_RETRY);
    semel__error_clear(NULL);
}

/* P63: a lack of memory blames no message. */
static void a_lack_of_memory_may_be_retried_and_blames_the_environment(void **state)
{
    (void)state;
    struct semel_error err;
    assert_int_equal(semel__fail_memory(&err), SEMEL_RETRY);
    assert_int_equal(err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_string_equal(err.text, "out of memory");
}

static void an_error_text_holds_no_control_characters(void **state)
{
    (void)state;
    struct semel_error err;
    semel__fail(&err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "a%sb", "\n\x1B[2J\xC2\x85\xFF");
    assert_string_equal(err.text, "a??[2J??b");
}

static void a_long_text_is_cut_between_characters(void **state)
{
    (void)state;
    struct semel_error err;
    char text[1000] = "x";
    for (size_t i = 1; i + 3 < sizeof(text); i += 3)
        memcpy(text + i, "\xE2\x82\xAC", 4);
    semel__fail(&err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s", text);
    assert_true(semel__utf8_valid(semel__str(err.text)));
    assert_int_equal(strlen(err.text), 253);
}

static void an_error_may_be_wrapped_in_itself(void **state)
{
    (void)state;
    struct semel_error err;
    semel__fail(&err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "lock timeout");
    semel__fail(&err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "begin: %s", err.text);
    assert_string_equal(err.text, "begin: lock timeout");
}

static void a_status_says_what_to_do(void **state)
{
    (void)state;
    assert_string_equal(semel__status_name(SEMEL_RETRY), "RETRY");
    assert_string_equal(semel__status_text(SEMEL_UNKNOWN), "outcome unknown: reconcile before repeating");
    assert_string_equal(semel__status_name((semel_status)99), "?");
    assert_string_equal(semel__status_text((semel_status)99), "?");
}

/* Every value's name parses to that value, and to no other. */
#define ROUND_TRIP(noun, first, last)                                                                          \
    for (int value = (first); value <= (int)(last); value++) {                                                 \
        enum semel_##noun back;                                                                                \
        assert_true(semel__##noun##_parse(semel__str(semel__##noun##_name((enum semel_##noun)value)), &back)); \
        assert_int_equal((int)back, value);                                                                    \
    }

static void every_name_parses_to_its_own_value(void **state)
{
    (void)state;
    ROUND_TRIP(class, SEMEL_CLASS_NONE, SEMEL_CLASS_DISCARDED)
    ROUND_TRIP(act, SEMEL_RUN, SEMEL_LATER)
    ROUND_TRIP(why, SEMEL_WHY_NEW, SEMEL_WHY_DAMAGED)
    ROUND_TRIP(result, SEMEL_DONE, SEMEL_MAYBE)
    ROUND_TRIP(row_status, SEMEL_ROW_ABSENT, SEMEL_ROW_COUNT - 1)
    assert_string_equal(semel__row_status_name(SEMEL_ROW_COUNT), "?");
}

static void what_is_no_name_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    enum semel_class cls = SEMEL_CLASS_GAP;
    enum semel_act act = SEMEL_ACK;
    enum semel_why why = SEMEL_WHY_GAP;
    enum semel_result result = SEMEL_MAYBE;
    enum semel_row_status row = SEMEL_ROW_DEAD;
    static const struct semel_str bad[] = {{"", 0},     {"?", 1},   {"unset", 5},  {"Run", 3},
                                           {"run ", 4}, {"dea", 3}, {"dead\0", 5}, {NULL, 0}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_false(semel__class_parse(bad[i], &cls));
        assert_false(semel__act_parse(bad[i], &act));
        assert_false(semel__why_parse(bad[i], &why));
        assert_false(semel__result_parse(bad[i], &result));
        assert_false(semel__row_status_parse(bad[i], &row));
    }
    assert_int_equal(cls, SEMEL_CLASS_GAP);
    assert_int_equal(act, SEMEL_ACK);
    assert_int_equal(why, SEMEL_WHY_GAP);
    assert_int_equal(result, SEMEL_MAYBE);
    assert_int_equal(row, SEMEL_ROW_DEAD);
}

static void an_unset_verdict_is_recognisable(void **state)
{
    (void)state;
    assert_string_equal(semel__act_name(SEMEL_ACT_UNSET), "unset");
    assert_string_equal(semel__why_name(SEMEL_WHY_UNSET), "unset");
    assert_string_equal(semel__act_name(SEMEL_RUN), "run");
    assert_string_equal(semel__why_name(SEMEL_WHY_BUSINESS), "business_duplicate");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_carries_status_class_and_text),
        cmocka_unit_test(nobody_need_ask_for_the_error),
        cmocka_unit_test(a_lack_of_memory_may_be_retried_and_blames_the_environment),
        cmocka_unit_test(an_error_text_holds_no_control_characters),
        cmocka_unit_test(a_long_text_is_cut_between_characters),
        cmocka_unit_test(an_error_may_be_wrapped_in_itself),
        cmocka_unit_test(a_status_says_what_to_do),
        cmocka_unit_test(every_name_parses_to_its_own_value),
        cmocka_unit_test(what_is_no_name_is_refused_and_changes_nothing),
        cmocka_unit_test(an_unset_verdict_is_recognisable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
