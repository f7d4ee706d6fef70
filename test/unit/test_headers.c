/* SPDX-License-Identifier: MIT
 *
 * test_headers.c: headers, looked up and kept as JSON.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "base/json.h"
#include "core/extract.h"
#include "core/headers.h"
#include "core/row.h"

#define PAIR(name, value)                 \
    {                                     \
        SEMEL_STR(name), SEMEL_STR(value) \
    }

static void assert_kept(const struct semel_pair *pairs, size_t n, const char *expected)
{
    struct semel_arena arena;
    struct semel_str kept;
    struct semel_json *json = NULL;
    struct semel_error err;

    semel__arena_init(&arena, 8 << 20);
    assert_int_equal(semel__headers_json(pairs, n, &arena, &kept, &err), SEMEL_OK);
    assert_str(kept, expected);
    assert_int_equal(semel__json_parse(&json, kept, kept.n, &err), SEMEL_OK);
    semel__json_free(json);
    semel__arena_done(&arena);
}

static void a_name_is_found_without_regard_to_case(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("Content-Type", "a"), PAIR("CE_ID", "b"), PAIR("ce_id", "c")};

    (void)state;
    assert_str(semel__pair_find(pairs, 3, SEMEL_STR("content-type")), "a");
    assert_str(semel__pair_find(pairs, 3, SEMEL_STR("CONTENT-TYPE")), "a");
    assert_str(semel__pair_find(pairs, 3, SEMEL_STR("ce_id")), "b"); /* the first */
    assert_false(semel__str_given(semel__pair_find(pairs, 3, SEMEL_STR("ce_i"))));
    assert_false(semel__str_given(semel__pair_find(pairs, 3, SEMEL_STR("ce_id "))));
    assert_false(semel__str_given(semel__pair_find(NULL, 0, SEMEL_STR("ce_id"))));
}

static void only_ascii_letters_are_compared_without_case(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("\xc3\x84", "a"), PAIR("[", "b"), PAIR("x\0Y", "c")};

    (void)state;
    assert_false(semel__str_given(semel__pair_find(pairs, 3, SEMEL_STR("\xc3\xa4"))));
    assert_false(semel__str_given(semel__pair_find(pairs, 3, SEMEL_STR("{"))));
    assert_str(semel__pair_find(pairs, 3, SEMEL_STR("X\0y")), "c");
}

static void an_empty_value_is_there(void **state)
{
    const struct semel_pair pairs[] = {{SEMEL_STR("a"), {NULL, 0}}, PAIR("b", "")};

    (void)state;
    assert_true(semel__str_given(semel__pair_find(pairs, 2, SEMEL_STR("a"))));
    assert_true(semel__str_given(semel__pair_find(pairs, 2, SEMEL_STR("b"))));
    assert_kept(pairs, 2, "{\"a\":\"\",\"b\":\"\"}");
}

static void a_header_is_kept_as_a_member(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("b", "1"), PAIR("a", "x \"y\"\n"), PAIR("", "")};

    (void)state;
    assert_kept(pairs, 1, "{\"b\":\"1\"}");
    assert_kept(pairs, 3, "{\"b\":\"1\",\"a\":\"x \\\"y\\\"\\n\",\"\":\"\"}");
}

static void a_name_that_comes_several_times_has_an_array(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("a", "1"), PAIR("b", "2"), PAIR("a", "3"), PAIR("A", "4"),
                                              PAIR("a", "5")};

    (void)state;
    assert_kept(pairs, 5, "{\"a\":[\"1\",\"3\",\"5\"],\"b\":\"2\",\"A\":\"4\"}");
}

static void a_value_that_is_not_utf8_is_kept_in_hexadecimal(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("a", "\xff\x00z"), PAIR("b", "\0"), PAIR("a", "t")};

    (void)state;
    assert_kept(pairs, 3, "{\"a\":[{\"hex\":\"ff007a\"},\"t\"],\"b\":{\"hex\":\"00\"}}");
}

static void a_name_that_is_not_utf8_is_kept_in_hexadecimal(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("\xff", "1"), PAIR("a\0b", "2")};

    (void)state;
    assert_kept(pairs, 2, "{\"ff\":\"1\",\"610062\":\"2\"}");
}

/* Two names must not become the same member: the kept form would not be JSON that anybody can read. */
static void names_and_values_that_http_can_carry_fit(void **state)
{
    (void)state;
    assert_true(semel__header_name_fits(SEMEL_STR("X-Trace_1!#$%&'*+.^`|~"), 100));
    assert_true(semel__header_name_fits(SEMEL_STR("abc"), 3));
    assert_false(semel__header_name_fits(SEMEL_STR("abcd"), 3));
    assert_false(semel__header_name_fits(SEMEL_STR(""), 3));
    assert_false(semel__header_name_fits(SEMEL_STR("a b"), 9));
    assert_false(semel__header_name_fits(SEMEL_STR("a:b"), 9));
    assert_false(semel__header_name_fits((struct semel_str){"a\0b", 3}, 9));
    assert_true(semel__header_value_fits(SEMEL_STR("a b~"), 4));
    assert_false(semel__header_value_fits(SEMEL_STR("a b~"), 3));
    assert_false(semel__header_value_fits(SEMEL_STR(""), 3));
    assert_false(semel__header_value_fits(SEMEL_STR(" a"), 9));
    assert_false(semel__header_value_fits(SEMEL_STR("a "), 9));
    assert_false(semel__header_value_fits(SEMEL_STR("a\r\nb"), 9));
    assert_false(semel__header_value_fits(SEMEL_STR("a\x7f"), 9));
}

static void two_names_never_become_one_member(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("\xff", "1"), PAIR("ff", "2"), PAIR("\xff", "3")};
    static const struct semel_pair nameless[] = {{{NULL, 0}, SEMEL_STR("1")}, PAIR("", "2")};

    (void)state;
    assert_kept(pairs, 3, "{\"ff\":[\"1\",\"2\",\"3\"]}");
    assert_kept(pairs + 1, 2, "{\"ff\":[\"2\",\"3\"]}");
    assert_kept(nameless, 2, "{\"\":[\"1\",\"2\"]}");
}

static void no_headers_are_kept_as_nothing(void **state)
{
    struct semel_arena arena;
    struct semel_str kept = SEMEL_STR("x");

    (void)state;
    semel__arena_init(&arena, 1000);
    assert_int_equal(semel__headers_json(NULL, 0, &arena, &kept, NULL), SEMEL_OK);
    assert_false(semel__str_given(kept));
    semel__arena_done(&arena);
}

/* Only a delivery without a payload has the mark of a tombstone, whatever its headers claim. */
static void mark_of_a_tombstone_goes_by_the_payload(void **state)
{
    static const struct semel_pair forged[] = {PAIR("a", "1"), PAIR(SEMEL_TOMBSTONE, "true"), PAIR("b", "2")};
    static const struct {
        size_t n;
        bool payload;
        const char *expected;
    } cases[] = {
        {1, true, "{\"a\":\"1\"}"},
        {3, true, "{\"a\":\"1\",\"b\":\"2\"}"},
        {1, false, "{\"a\":\"1\",\"" SEMEL_TOMBSTONE "\":\"true\"}"},
        {3, false, "{\"a\":\"1\",\"b\":\"2\",\"" SEMEL_TOMBSTONE "\":\"true\"}"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct semel_delivery delivery = {.headers = forged, .n_headers = cases[i].n};
        struct semel_arena arena;
        struct semel_str kept;
        if (cases[i].payload)
            delivery.payload = SEMEL_STR("");
        semel__arena_init(&arena, 1 << 20);
        assert_int_equal(semel__headers_of(&delivery, &arena, &kept, NULL), SEMEL_OK);
        assert_str(kept, cases[i].expected);
        struct semel__msg m = {.payload = SEMEL_STR(""), .headers = kept};
        assert_int_equal(semel__is_tombstone(&m), !cases[i].payload);
        semel__arena_done(&arena);
    }
}

/* P76: what a caller gives as JSON has the mark only with a payload that is given and empty. */
static void mark_that_a_caller_gives_goes_by_the_payload(void **state)
{
    static const struct {
        struct semel_str payload;
        const char *headers, *expected;
    } cases[] = {
        {{"", 0}, "{\"a\":\"1\", \"semel_tombstone\":\"true\"}", "{\"a\":\"1\", \"semel_tombstone\":\"true\"}"},
        {{"x", 1}, "{\"a\":\"1\", \"semel_tombstone\":\"true\"}", "{\"a\":\"1\"}"},
        {{"x", 1},
         "{\"semel_tombstone\" : \"true\", \"a\" : [1, {\"b\":2}], \"c\":\"\\\"\"}",
         "{\"a\":[1, {\"b\":2}],\"c\":\"\\\"\"}"},
        {{"x", 1}, "{\"semel_tombstone\":\"true\"}", "{}"},
        {{"x", 1}, "{ \"a\" : \"semel_tombstone\"}", "{\"a\":\"semel_tombstone\"}"},
        {{"x", 1}, "{ \"a\" : \"1\" }", "{ \"a\" : \"1\" }"},
        {{NULL, 0}, "{\"semel_tombstone\":\"true\",\"a\":null}", "{\"a\":null}"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct semel_arena arena;
        struct semel_str headers = semel__str(cases[i].headers);
        semel__arena_init(&arena, 1 << 20);
        assert_int_equal(semel__headers_settle(cases[i].payload, &arena, &headers, NULL), SEMEL_OK);
        assert_str(headers, cases[i].expected);
        semel__arena_done(&arena);
    }
}

/* They were not parsed: what is left of them would be what could be read, and would fit. */
static void headers_that_are_too_large_stay_as_they_are(void **state)
{
    static const char mark[] = "{\"semel_tombstone\":\"true\" no JSON ";
    static char text[SEMEL_HEADERS_MAX + 1];
    struct semel_str headers = {text, sizeof text};
    struct semel_arena arena;

    (void)state;
    memset(text, 'x', sizeof text);
    memcpy(text, mark, sizeof mark - 1);
    semel__arena_init(&arena, 1 << 22);
    assert_int_equal(semel__headers_settle(SEMEL_STR("x"), &arena, &headers, NULL), SEMEL_OK);
    assert_ptr_equal(headers.p, text);
    assert_int_equal(headers.n, sizeof text);
    semel__arena_done(&arena);
}

static void too_many_headers_are_refused(void **state)
{
    static struct semel_pair pairs[SEMEL_HEADER_COUNT_MAX + 1];
    char names[SEMEL_HEADER_COUNT_MAX + 1][8];
    struct semel_arena arena;
    struct semel_str kept;
    struct semel_error err;

    (void)state;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        snprintf(names[i], sizeof names[i], "h%zu", i);
        pairs[i] = (struct semel_pair){semel__str(names[i]), SEMEL_STR("v")};
    }
    semel__arena_init(&arena, 1 << 20);
    assert_int_equal(semel__headers_json(pairs, SEMEL_HEADER_COUNT_MAX, &arena, &kept, &err), SEMEL_OK);
    assert_int_equal(semel__headers_json(pairs, SEMEL_HEADER_COUNT_MAX + 1, &arena, &kept, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "257"));
    assert_false(semel__str_given(kept));
    semel__arena_done(&arena);
}

static void headers_that_are_too_large_together_are_refused(void **state)
{
    char *value = semel__alloc(SEMEL_HEADERS_MAX);
    struct semel_pair pairs[] = {{SEMEL_STR("a"), {value, SEMEL_HEADERS_MAX - 8}}, {SEMEL_STR("b"), {value, 1}}};
    struct semel_arena arena;
    struct semel_str kept;
    struct semel_error err;

    (void)state;
    assert_non_null(value);
    memset(value, 'x', SEMEL_HEADERS_MAX);
    semel__arena_init(&arena, 8 << 20);
    assert_int_equal(semel__headers_json(pairs, 1, &arena, &kept, &err), SEMEL_OK); /* {"a":""} has eight bytes */
    assert_int_equal(kept.n, SEMEL_HEADERS_MAX);
    assert_int_equal(semel__headers_json(pairs, 2, &arena, &kept, &err), SEMEL_INVALID);
    assert_int_equal(err.cls, SEMEL_CLASS_PERMANENT);
    memset(value, '\1', SEMEL_HEADERS_MAX); /* each byte becomes six */
    assert_int_equal(semel__headers_json(pairs, 1, &arena, &kept, &err), SEMEL_INVALID);
    assert_false(semel__str_given(kept));
    semel__arena_done(&arena);
    semel__free(value);
}

static void no_memory_is_told(void **state)
{
    static const struct semel_pair pairs[] = {PAIR("a", "1"), PAIR("a", "2")};
    struct fail_nth fail;
    struct semel_error err;
    unsigned at = 1;

    (void)state;
    for (bool reached = true; reached; at++) {
        struct semel_arena arena;
        struct semel_str kept;
        semel__arena_init(&arena, 1 << 20);
        fail_nth_begin(&fail, at);
        semel_status status = semel__headers_json(pairs, 2, &arena, &kept, &err);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        semel__arena_done(&arena);
    }
    assert_true(at > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_found_without_regard_to_case),
        cmocka_unit_test(only_ascii_letters_are_compared_without_case),
        cmocka_unit_test(an_empty_value_is_there),
        cmocka_unit_test(a_header_is_kept_as_a_member),
        cmocka_unit_test(a_name_that_comes_several_times_has_an_array),
        cmocka_unit_test(a_value_that_is_not_utf8_is_kept_in_hexadecimal),
        cmocka_unit_test(a_name_that_is_not_utf8_is_kept_in_hexadecimal),
        cmocka_unit_test(two_names_never_become_one_member),
        cmocka_unit_test(names_and_values_that_http_can_carry_fit),
        cmocka_unit_test(no_headers_are_kept_as_nothing),
        cmocka_unit_test(mark_of_a_tombstone_goes_by_the_payload),
        cmocka_unit_test(mark_that_a_caller_gives_goes_by_the_payload),
        cmocka_unit_test(headers_that_are_too_large_stay_as_they_are),
        cmocka_unit_test(too_many_headers_are_refused),
        cmocka_unit_test(headers_that_are_too_large_together_are_refused),
        cmocka_unit_test(no_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
