/* SPDX-License-Identifier: MIT
 *
 * test_idempotency.c: the rules of idempotency keys that spec/keys.txt does not reach: what is refused, outcomes,
 * policies.
 */
#include "core/keys.h"
#include "unit.h"

static semel_status check(const char *key, bool *ret_is_time, struct semel_error *err)
{
    return semel__key_check(SEMEL_STR("alice"), semel__str(key), SEMEL_KEY_MIN, ret_is_time, err);
}

/* A4: of 0, 1, 7, 8, 255 and 256 characters, and with others than printable ASCII */
static void keys_are_8_to_255_characters_of_printable_ascii(void **state)
{
    char text[257];
    bool time;
    struct semel_error err;
    (void)state;
    memset(text, 'k', sizeof text);
    for (size_t n = 0; n <= 256; n++) {
        struct semel_str key = {text, n};
        semel_status status = semel__key_check(SEMEL_STR("alice"), key, SEMEL_KEY_MIN, &time, &err);
        assert_int_equal(status, n >= 8 && n <= 255 ? SEMEL_OK : SEMEL_INVALID);
    }
    assert_string_equal(err.text, "key has 256 characters; it must have 8 to 255");
    const char *bad[] = {"line\nbreak", "delete\x7f it", "schl\xc3\xbcssel", "tab\tulator",
                         "\x1f\x1f\x1f\x1f\x1f\x1f\x1f\x1f"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(check(bad[i], &time, &err), SEMEL_INVALID);
        assert_string_equal(err.text, "key has a character that is not printable ASCII");
    }
    assert_int_equal(semel__key_check(SEMEL_STR("alice"), SEMEL_STR("NUL\0inside"), 8, &time, &err), SEMEL_INVALID);
    assert_int_equal(semel__key_check(SEMEL_STR("alice"), SEMEL_STR("four"), 4, &time, &err), SEMEL_OK);
    assert_int_equal(check("from ! to ~ and \" \\", &time, &err), SEMEL_OK); /* the first and the last of them, too */
}

/* A4 P46 */
static void a_caller_has_a_name(void **state)
{
    char text[256];
    bool time;
    (void)state;
    memset(text, 's', sizeof text);
    assert_int_equal(semel__key_check(SEMEL_STR(""), SEMEL_STR("12345678"), 8, &time, NULL), SEMEL_INVALID);
    assert_int_equal(semel__key_check((struct semel_str){text, 256}, SEMEL_STR("12345678"), 8, &time, NULL),
                     SEMEL_INVALID);
    assert_int_equal(semel__key_check((struct semel_str){text, 255}, SEMEL_STR("12345678"), 8, &time, NULL), SEMEL_OK);
    assert_int_equal(semel__key_check(SEMEL_STR("\xff"), SEMEL_STR("12345678"), 8, &time, NULL), SEMEL_INVALID);
}

/* A4 */
static void a_key_that_is_a_time_and_nothing_else_is_noticed(void **state)
{
    const char *times[] = {
        "1731850000",       "1731850000123", "1731850000123456",      "1731850000123456789",
        "2026-11-17",       "20261117",      "20261117T133733Z",      "2026-11-17T13:37:33.123+01:00",
        "2026-11-17 13:37", "202611171337",  "2026-11-17T13:37:33,5Z"};
    const char *others[] = {"17318500001",          "3731850000",        "order-17",        "2026-11-17-order-5",
                            "2026-11-17T13:37:",    "2026-11-17T13",     "1731850000-abcd", "12345678x",
                            "2026-11-17T13:37:33.", "2026-11-17T13:37+1"};
    bool time;
    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        assert_int_equal(check(times[i], &time, NULL), SEMEL_OK);
        if (!time)
            fail_msg("%s is a time", times[i]);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(check(others[i], &time, NULL), SEMEL_OK);
        if (time)
            fail_msg("%s is no time", others[i]);
    }
}

/* A6 */
static void lifetimes_have_bounds(void **state)
{
    (void)state;
    assert_int_equal(semel__key_check_lifetimes(SEMEL_ANSWER_US, SEMEL_KEEP_US, NULL), SEMEL_OK);
    assert_int_equal(semel__key_check_lifetimes(SEMEL_ANSWER_US, SEMEL_ANSWER_US, NULL), SEMEL_OK);
    assert_int_equal(semel__key_check_lifetimes(SEMEL_ANSWER_US - 1, SEMEL_KEEP_US, NULL), SEMEL_INVALID);
    assert_int_equal(semel__key_check_lifetimes(SEMEL_KEEP_US, SEMEL_ANSWER_US, NULL), SEMEL_INVALID);
    assert_int_equal(semel__key_check_lifetimes(SEMEL_ANSWER_US, SEMEL_KEEP_MAX_US + 1, NULL), SEMEL_INVALID);
}

/* P101 */
static void headers_are_pairs(void **state)
{
    const char *good[] = {"[]", " [ [\"a\", \"b\"] , [\"a\",\"c\"] ] "};
    const char *bad[] = {"",
                         "{}",
                         "[1]",
                         "[[\"a\"]]",
                         "[[\"a\",1]]",
                         "[[\"a\",\"b\",\"c\"]]",
                         "[[\"a\",\"b\"]",
                         "null",
                         "[{\"a\":\"b\"}]"};
    static char large[70000];
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(semel__key_check_headers(semel__str(good[i]), NULL), SEMEL_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(semel__key_check_headers(semel__str(bad[i]), NULL), SEMEL_INVALID);
    memset(large, ' ', sizeof large);
    large[0] = '[';
    large[sizeof large - 1] = ']';
    assert_int_equal(semel__key_check_headers((struct semel_str){large, sizeof large}, NULL), SEMEL_INVALID);
}

/* P47 P49 P92 P93 P102 */
static void the_outcome_goes_by_what_came(void **state)
{
    struct semel_key_answer answer = {.sent = true, .whole = true};
    (void)state;
    for (answer.code = 0; answer.code <= 1000; answer.code++) {
        int code = answer.code;
        enum semel_key_end expected = SEMEL_KEY_END_UNKNOWN;
        if (code >= 200 && code <= 499)
            expected = code < 400 || code == 402 || code == 410 ? SEMEL_KEY_END_COMPLETED : SEMEL_KEY_END_RELEASED;
        assert_int_equal(semel__key_outcome(&answer, NULL, 0), expected);
    }
    answer.code = 200;
    answer.whole = false;
    assert_int_equal(semel__key_outcome(&answer, NULL, 0), SEMEL_KEY_END_UNKNOWN);
    answer.sent = false;
    assert_int_equal(semel__key_outcome(&answer, NULL, 0), SEMEL_KEY_END_RELEASED);
}

static void a_rule_and_then_the_answer_itself_have_the_last_word(void **state)
{
    struct semel_key_rule rules[] = {{503, 503, SEMEL_KEY_END_RELEASED}, {400, 499, SEMEL_KEY_END_COMPLETED}};
    struct semel_key_answer answer = {.sent = true, .whole = true, .code = 503};
    (void)state;
    assert_int_equal(semel__key_outcome(&answer, rules, 2), SEMEL_KEY_END_RELEASED);
    answer.code = 422;
    assert_int_equal(semel__key_outcome(&answer, rules, 2), SEMEL_KEY_END_COMPLETED);
    answer.said = SEMEL_STR("Released");
    assert_int_equal(semel__key_outcome(&answer, rules, 2), SEMEL_KEY_END_RELEASED);
    answer.said = SEMEL_STR("nonsense");
    assert_int_equal(semel__key_outcome(&answer, rules, 2), SEMEL_KEY_END_COMPLETED);
    answer.said = SEMEL_STR("completed");
    answer.whole = false;
    assert_int_equal(semel__key_outcome(&answer, rules, 2), SEMEL_KEY_END_UNKNOWN);
}

/* A7 P95 */
static void not_done_counts_only_when_the_first_call_has_settled(void **state)
{
    struct semel_idempotency row = {.status = SEMEL_ROW_UNKNOWN, .updated_us = 1000};
    (void)state;
    assert_false(semel__key_may_run(&row, SEMEL_ON_UNKNOWN_REFUSE, SEMEL_RECONCILED_NOT_DONE, 60, 5000));
    assert_true(semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RETRY, SEMEL_RECONCILED_UNKNOWN, 60, 1001));
    assert_false(semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_NOT_DONE, 60, 1059));
    assert_true(semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_NOT_DONE, 60, 1060));
    assert_false(semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_DONE, 60, 9000));
    assert_false(semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_UNKNOWN, 60, 9000));
}

static void a_fingerprint_of_a_caller_has_its_kind(void **state)
{
    struct semel_fp fp;
    char text[64];
    (void)state;
    memset(text, 'h', sizeof text);
    assert_int_equal(semel__key_fingerprint((struct semel_str){NULL, 0}, &fp, NULL), SEMEL_OK);
    assert_int_equal(fp.kind, SEMEL_FP_NONE);
    assert_int_equal(semel__key_fingerprint((struct semel_str){text, 33}, &fp, NULL), SEMEL_OK);
    assert_int_equal(fp.kind, SEMEL_FP_HTTP);
    assert_int_equal(fp.n, 32);
    assert_int_equal(semel__key_fingerprint((struct semel_str){text, 32}, &fp, NULL), SEMEL_OK);
    assert_int_equal(fp.kind, SEMEL_FP_CALLER);
    assert_int_equal(fp.n, 32);
    assert_int_equal(semel__key_fingerprint((struct semel_str){text, 63}, &fp, NULL), SEMEL_OK);
    assert_int_equal(semel__key_fingerprint((struct semel_str){text, 64}, &fp, NULL), SEMEL_INVALID);
    assert_int_equal(semel__key_fingerprint((struct semel_str){text, 0}, &fp, NULL), SEMEL_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_8_to_255_characters_of_printable_ascii),
        cmocka_unit_test(a_caller_has_a_name),
        cmocka_unit_test(a_key_that_is_a_time_and_nothing_else_is_noticed),
        cmocka_unit_test(lifetimes_have_bounds),
        cmocka_unit_test(headers_are_pairs),
        cmocka_unit_test(the_outcome_goes_by_what_came),
        cmocka_unit_test(a_rule_and_then_the_answer_itself_have_the_last_word),
        cmocka_unit_test(not_done_counts_only_when_the_first_call_has_settled),
        cmocka_unit_test(a_fingerprint_of_a_caller_has_its_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
