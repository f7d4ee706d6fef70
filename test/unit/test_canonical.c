/* SPDX-License-Identifier: MIT
 *
 * test_canonical.c: the canonical form of RFC 8785, and when there is none.
 */
#include "base/json.h"
#include "unit.h"

/* The canonical form in buf, which the caller ends; false: a number is not exact. */
static bool canonical(struct semel_str text, struct semel_buf *buf)
{
    struct semel_json *json = NULL;
    bool exact = false;
    semel__buf_init(buf, 100000);
    assert_int_equal(semel__json_parse(&json, text, 100000, NULL), SEMEL_OK);
    assert_int_equal(semel__json_canonical(json, buf, &exact, NULL), SEMEL_OK);
    semel__json_free(json);
    return exact;
}

static void assert_canonical(const char *text, const char *expected)
{
    struct semel_buf buf;
    if (!canonical(semel__str(text), &buf))
        fail_msg("%s is exact", text);
    assert_str(semel__buf_str(&buf), expected);
    semel__buf_done(&buf);
}

static void assert_inexact(const char *text)
{
    struct semel_buf buf;
    if (canonical(semel__str(text), &buf))
        fail_msg("%s is not exact", text);
    semel__buf_done(&buf);
}

/* Section 3.2.2, but for its first number, which this parser does not take for the double it is near to. */
static void the_sample_of_rfc_8785_is_written_as_it_says(void **state)
{
    (void)state;
    assert_canonical("{\n  \"numbers\": [333333333.3333333, 1E30, 4.50,\n  2e-3, 0.000000000000000000000000001],\n"
                     "  \"string\": \"\\u20ac$\\u000F\\u000aA'\\u0042\\u0022\\u005c\\\\\\\"\\/\",\n"
                     "  \"literals\": [null, true, false]\n}",
                     "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],"
                     "\"string\":\"\xE2\x82\xAC$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}");
    assert_inexact("[333333333.33333329]");
}

/* Section 3.2.3: the emoji, a surrogate pair in UTF-16, comes before U+FB33, which it follows in UTF-8. */
static void members_are_sorted_by_utf_16_code_units(void **state)
{
    (void)state;
    assert_canonical("{\"\\u20ac\":\"Euro Sign\",\"\\r\":\"Carriage Return\",\"\\ufb33\":\"Hebrew Letter Dalet With "
                     "Dagesh\",\"1\":\"One\",\"\\ud83d\\ude00\":\"Emoji: Grinning Face\",\"\\u0080\":\"Control\","
                     "\"\\u00f6\":\"Latin Small Letter O With Diaeresis\"}",
                     "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\xC2\x80\":\"Control\","
                     "\"\xC3\xB6\":\"Latin Small Letter O With Diaeresis\",\"\xE2\x82\xAC\":\"Euro Sign\","
                     "\"\xF0\x9F\x98\x80\":\"Emoji: Grinning Face\",\"\xEF\xAC\xB3\":\"Hebrew Letter Dalet With "
                     "Dagesh\"}");
    assert_canonical("{\"\xEF\xBF\xBF\":1,\"\xF4\x8F\xBF\xBF\":2,\"\xEE\x80\x80\":3,\"\xF0\x90\x80\x80\":4,"
                     "\"\xED\x9F\xBF\":5}",
                     "{\"\xED\x9F\xBF\":5,\"\xF0\x90\x80\x80\":4,\"\xF4\x8F\xBF\xBF\":2,\"\xEE\x80\x80\":3,"
                     "\"\xEF\xBF\xBF\":1}");
    assert_canonical("{\"ab\":1,\"a\":2,\"\":3,\"b\":4,\"aa\":5}", "{\"\":3,\"a\":2,\"aa\":5,\"ab\":1,\"b\":4}");
}

/* A5 */
static void white_space_member_order_and_spelling_do_not_matter(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{\"a\":[1,1.5,\"\xC3\xA4\"],\"b\":{\"c\":1000,\"d\":0}}",
        " { \"b\" : { \"d\" : -0 , \"c\" : 1e3 } ,\r\n\t\"a\" : [ 1 , 15e-1 , \"\\u00e4\" ] } ",
        "{\"\\u0062\":{\"c\":1000.0,\"d\":-0.0e5},\"a\":[10e-1,1.50,\"\\u00E4\"]}",
    };
    for (size_t i = 0; i < COUNT(same); i++)
        assert_canonical(same[i], same[0]);
}

static void array_order_kind_and_value_do_matter(void **state)
{
    (void)state;
    static const char *const different[] = {"[1,2]", "[2,1]", "[\"1\",2]", "[1,2,null]", "[[1,2]]", "{\"1\":2}", "12"};
    for (size_t a = 0; a < COUNT(different); a++) {
        for (size_t b = 0; b < a; b++) {
            struct semel_buf x, y;
            assert_true(canonical(semel__str(different[a]), &x));
            assert_true(canonical(semel__str(different[b]), &y));
            assert_false(semel__str_eq(semel__buf_str(&x), semel__buf_str(&y)));
            semel__buf_done(&x);
            semel__buf_done(&y);
        }
    }
}

static void only_what_must_be_escaped_is(void **state)
{
    (void)state;
    assert_canonical("\"\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f \\/\\u007f\\u0080\\u2028\\\"\\\\\"",
                     "\"\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f /\x7F\xC2\x80\xE2\x80\xA8\\\"\\\\\"");
    assert_canonical("\"\"", "\"\"");
    assert_canonical("{\"\\n\":\"\\u0041\"}", "{\"\\n\":\"A\"}");
}

/* Eight plain bytes are looked at together: what is not plain may stand at any place among them. */
static void what_must_be_escaped_is_found_at_every_place(void **state)
{
    static const char *const pieces[][2] = {{"\\\"", "\\\""},        {"\\\\", "\\\\"}, {"\\u001f", "\\u001f"},
                                            {"\\u0041", "A"},        {"\\n", "\\n"},   {"\xC3\xA9", "\xC3\xA9"},
                                            {"\\u00e9", "\xC3\xA9"}, {"\x7F", "\x7F"}};
    (void)state;
    for (int place = 0; place < 20; place++)
        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
            char given[64], expected[64];
            snprintf(given, sizeof given, "[\"%.*s%s%s\"]", place, "0123456789abcdef !#~", pieces[i][0], "tail");
            snprintf(expected, sizeof expected, "[\"%.*s%s%s\"]", place, "0123456789abcdef !#~", pieces[i][1], "tail");
            assert_canonical(given, expected);
        }
}

static void numbers_are_written_as_ecmascript_does(void **state)
{
    (void)state;
    assert_canonical("[0,-0,-0.0,1E21,1e20,1e-6,1e-7,-1.50,100,9007199254740992,5e-324,1.7976931348623157e308]",
                     "[0,0,0,1e+21,100000000000000000000,0.000001,1e-7,-1.5,100,9007199254740992,5e-324,"
                     "1.7976931348623157e+308]");
}

/* P56 */
static void numbers_that_would_become_equal_have_no_canonical_form(void **state)
{
    (void)state;
    assert_inexact("9007199254740993");
    assert_inexact("{\"a\":[{\"b\":9007199254740993.0}]}");
    assert_inexact("0.10000000000000000001");
    assert_inexact("1e-400");
    assert_inexact("18446744073709551615");
    assert_canonical("9007199254740992", "9007199254740992");
    assert_canonical("9007199254740992.0", "9007199254740992");
    assert_canonical("0.1", "0.1");
}

static void the_canonical_form_of_a_canonical_form_is_itself(void **state)
{
    (void)state;
    static const char *const documents[] = {"{\"b\":[1e20,1e21,1.5e-9],\"a\":{\"\\ud83d\\ude00\":\"\\u0001\"}}",
                                            "[[[[{}]]],\"\\\\\",-0]", "295147905179352830000"};
    for (size_t i = 0; i < COUNT(documents); i++) {
        struct semel_buf once, twice;
        assert_true(canonical(semel__str(documents[i]), &once));
        assert_true(canonical(semel__buf_str(&once), &twice));
        assert_true(semel__str_eq(semel__buf_str(&once), semel__buf_str(&twice)));
        semel__buf_done(&once);
        semel__buf_done(&twice);
    }
}

static void many_members_are_sorted_too(void **state)
{
    (void)state;
    struct semel_buf text, sorted, got;
    semel__buf_init(&text, 100000);
    semel__buf_init(&sorted, 100000);
    for (int i = 0; i < 1000; i++) {
        semel__buf_addf(&text, "%s\"%03d\":%d", i == 0 ? "{" : ",", i * 637 % 1000, i * 637 % 1000);
        semel__buf_addf(&sorted, "%s\"%03d\":%d", i == 0 ? "{" : ",", i, i);
    }
    semel__buf_addz(&text, "}");
    semel__buf_addz(&sorted, "}");
    assert_true(canonical(semel__buf_str(&text), &got));
    assert_true(semel__str_eq(semel__buf_str(&got), semel__buf_str(&sorted)));
    semel__buf_done(&text);
    semel__buf_done(&sorted);
    semel__buf_done(&got);
}

static void a_form_too_long_for_the_buffer_is_invalid_and_a_lack_of_memory_is_not(void **state)
{
    (void)state;
    struct semel_json *json = NULL;
    struct semel_buf buf;
    struct semel_error err;
    bool exact = false;
    assert_int_equal(semel__json_parse(&json, SEMEL_STR("[1,2,3]"), 100, NULL), SEMEL_OK);
    semel__buf_init(&buf, 6);
    assert_int_equal(semel__json_canonical(json, &buf, &exact, &err), SEMEL_INVALID);
    semel__buf_done(&buf);
    semel__buf_init(&buf, 7);
    struct fail_nth fail;
    fail_nth_begin(&fail, 1);
    assert_int_equal(semel__json_canonical(json, &buf, &exact, &err), SEMEL_RETRY);
    assert_true(fail_nth_end(&fail));
    assert_false(exact);
    semel__buf_done(&buf);
    assert_int_equal(semel__json_canonical(json, &buf, &exact, &err), SEMEL_OK);
    assert_true(exact);
    assert_str(semel__buf_str(&buf), "[1,2,3]");
    semel__buf_done(&buf);
    semel__json_free(json);
}

static void the_form_is_appended_to_what_the_buffer_holds(void **state)
{
    (void)state;
    struct semel_json *json = NULL;
    struct semel_buf buf;
    bool exact = false;
    semel__buf_init(&buf, 100);
    semel__buf_addz(&buf, "kind:");
    assert_int_equal(semel__json_parse(&json, SEMEL_STR(" null "), 100, NULL), SEMEL_OK);
    assert_int_equal(semel__json_canonical(json, &buf, &exact, NULL), SEMEL_OK);
    assert_str(semel__buf_str(&buf), "kind:null");
    semel__buf_done(&buf);
    semel__json_free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sample_of_rfc_8785_is_written_as_it_says),
        cmocka_unit_test(members_are_sorted_by_utf_16_code_units),
        cmocka_unit_test(white_space_member_order_and_spelling_do_not_matter),
        cmocka_unit_test(array_order_kind_and_value_do_matter),
        cmocka_unit_test(only_what_must_be_escaped_is),
        cmocka_unit_test(what_must_be_escaped_is_found_at_every_place),
        cmocka_unit_test(numbers_are_written_as_ecmascript_does),
        cmocka_unit_test(numbers_that_would_become_equal_have_no_canonical_form),
        cmocka_unit_test(the_canonical_form_of_a_canonical_form_is_itself),
        cmocka_unit_test(many_members_are_sorted_too),
        cmocka_unit_test(a_form_too_long_for_the_buffer_is_invalid_and_a_lack_of_memory_is_not),
        cmocka_unit_test(the_form_is_appended_to_what_the_buffer_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
