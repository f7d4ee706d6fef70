/* SPDX-License-Identifier: MIT
 *
 * test_json.c: what the parser accepts, what it refuses and how it says so.
 */
#include "base/json.h"
#include "unit.h"

#define MAX_BYTES 100000

static semel_status parse(struct semel_str text, struct semel_error *err)
{
    struct semel_json *json = NULL;
    semel_status status = semel__json_parse(&json, text, MAX_BYTES, err);
    assert_int_equal(status == SEMEL_OK, json != NULL);
    semel__json_free(json);
    return status;
}

static void json_of_every_kind_is_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-1",
        "10",
        "1.5",
        "1e5",
        "1E-5",
        "0.5e+10",
        "\"\"",
        "[]",
        "{}",
        " [ ] ",
        "{\"a\":{\"b\":[1,2,{}]}}",
        "\t\r\n 1 \t\r\n",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\"",
        "\"\x7F\"",
        "\"\\ud83d\\ude00\"",
        "\"\xF0\x9F\x98\x80\xEF\xBF\xBF\"",
        "{\"\":0,\" \":1}",
        "{\"a\":1,\"A\":2,\"\\u00e4\":3}",
        "12345678901234567890",
        "[[],[[]],{\"a\":[]}]",
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        struct semel_error err = {.text = ""};
        if (parse(semel__str(good[i]), &err) != SEMEL_OK)
            fail_msg("%s: %s", good[i], err.text);
    }
}

static const struct {
    const char *text, *error;
} refusals[] = {
    {"", "JSON: a missing value at byte 0"},
    {"  ", "JSON: a missing value at byte 2"},
    {"nul", "JSON: not a value at byte 0"},
    {"True", "JSON: not a value at byte 0"},
    {"NaN", "JSON: not a value at byte 0"},
    {"Infinity", "JSON: not a value at byte 0"},
    {"'a'", "JSON: not a value at byte 0"},
    {"\xEF\xBB\xBF{}", "JSON: not a value at byte 0"}, /* a byte order mark */
    {"/**/1", "JSON: not a value at byte 0"},
    {"nullnull", "JSON: something behind the value at byte 4"},
    {"{} {}", "JSON: something behind the value at byte 3"},
    {"1 \f", "JSON: something behind the value at byte 2"},
    {"01", "JSON: a bad number at byte 1"},
    {"-01", "JSON: a bad number at byte 2"},
    {"-", "JSON: a bad number at byte 1"},
    {"+1", "JSON: not a value at byte 0"},
    {".5", "JSON: not a value at byte 0"},
    {"1.", "JSON: a bad number at byte 2"},
    {"1.e5", "JSON: a bad number at byte 2"},
    {"1e", "JSON: a bad number at byte 2"},
    {"1e+", "JSON: a bad number at byte 3"},
    {"0x10", "JSON: something behind the value at byte 1"},
    {"[1e400]", "JSON: a number out of range at byte 1"},
    {"[0,-1e400]", "JSON: a number out of range at byte 3"},
    {"[", "JSON: a missing value at byte 1"},
    {"[1", "JSON: a missing comma or bracket at byte 2"},
    {"[1,]", "JSON: not a value at byte 3"},
    {"[,1]", "JSON: not a value at byte 1"},
    {"[1 2]", "JSON: a missing comma or bracket at byte 3"},
    {"[1}", "JSON: a missing comma or bracket at byte 2"},
    {"]", "JSON: not a value at byte 0"},
    {"{", "JSON: a missing member name at byte 1"},
    {"{a:1}", "JSON: a missing member name at byte 1"},
    {"{\"a\"}", "JSON: a missing colon at byte 4"},
    {"{\"a\":}", "JSON: not a value at byte 5"},
    {"{\"a\":1,}", "JSON: a missing member name at byte 7"},
    {"{\"a\":1]", "JSON: a missing comma or bracket at byte 6"},
    {"\"", "JSON: a string without end at byte 1"},
    {"\"abc", "JSON: a string without end at byte 4"},
    {"\"\\", "JSON: a bad escape at byte 1"},
    {"\"\\x41\"", "JSON: a bad escape at byte 1"},
    {"\"\\u12G4\"", "JSON: a bad escape at byte 1"},
    {"\"\\u12", "JSON: a bad escape at byte 1"},
    {"\"a\nb\"", "JSON: a control character in a string at byte 2"},
    {"\"\\u0000\"", "JSON: a NUL in a string at byte 1"},
    {"{\"\\u0000\":1}", "JSON: a NUL in a string at byte 2"},
    {"\"\\ud800\"", "JSON: half of a surrogate pair at byte 1"},
    {"\"\\udc00\"", "JSON: half of a surrogate pair at byte 1"},
    {"\"\\ud800\\u0041\"", "JSON: half of a surrogate pair at byte 1"},
    {"\"\\ud800\\ud800\"", "JSON: half of a surrogate pair at byte 1"},
    {"\"\\ud800\\n\"", "JSON: half of a surrogate pair at byte 1"},
    {"\"a\xFF\"", "JSON: not UTF-8 at byte 2"},
    {"\"\xC0\x80\"", "JSON: not UTF-8 at byte 1"},
    {"\"\xED\xA0\x80\"", "JSON: not UTF-8 at byte 1"},
    {"\"\xE2\x82\"", "JSON: not UTF-8 at byte 1"},
    {"\xC3\xA4", "JSON: not a value at byte 0"},
};

static void what_is_not_json_is_refused_with_the_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        struct semel_error err;
        assert_int_equal(parse(semel__str(refusals[i].text), &err), SEMEL_INVALID);
        assert_int_equal(err.status, SEMEL_INVALID);
        assert_int_equal(err.cls, SEMEL_CLASS_PERMANENT);
        assert_string_equal(err.text, refusals[i].error);
    }
    assert_int_equal(parse((struct semel_str){NULL, 0}, NULL), SEMEL_INVALID);
    assert_int_equal(parse(SEMEL_STR("\"a\0b\""), NULL), SEMEL_INVALID);
    assert_int_equal(parse(SEMEL_STR("1\0"), NULL), SEMEL_INVALID);
}

static void every_cut_of_a_document_is_refused(void **state)
{
    (void)state;
    static const char whole[] = "{\"a\":[1.5e3,\"\\ud83d\\ude00\xE2\x82\xAC\",true,null],\"b\":{\"c\":false}}";
    assert_int_equal(parse(SEMEL_STR(whole), NULL), SEMEL_OK);
    for (size_t n = 0; n < sizeof(whole) - 1; n++) {
        char *cut = semel__alloc(n); /* its own block, so that a sanitizer sees a read past the end */
        memcpy(cut, whole, n);
        assert_int_equal(parse((struct semel_str){cut, n}, NULL), SEMEL_INVALID);
        semel__free(cut);
    }
}

static void a_duplicate_member_is_refused_however_it_is_spelled(void **state)
{
    (void)state;
    struct semel_error err;
    assert_int_equal(parse(SEMEL_STR("{\"id\":1,\"id\":2}"), &err), SEMEL_INVALID);
    assert_string_equal(err.text, "JSON: a duplicate member at byte 8");
    assert_int_equal(parse(SEMEL_STR("[{\"z\":0,\"id\":1,\"a\":0,\"\\u0069\\u0064\":2}]"), &err), SEMEL_INVALID);
    assert_string_equal(err.text, "JSON: a duplicate member at byte 21");
    assert_int_equal(parse(SEMEL_STR("{\"\":1,\"\":2}"), &err), SEMEL_INVALID);
    assert_int_equal(parse(SEMEL_STR("{\"id\":1,\"a\":{\"id\":1}}"), &err), SEMEL_OK);
}

/* P71: an error text is shown and logged, so it holds nothing of the payload. */
static void no_error_quotes_the_payload(void **state)
{
    (void)state;
    static const char *const secret[] = {"{\"4111111111111111\":1,\"4111111111111111\":2}", "[4111111111111111 ]]",
                                         "\"4111111111111111", "4111111111111111e4111", "{\"pan\" 4111111111111111}"};
    for (size_t i = 0; i < COUNT(secret); i++) {
        struct semel_error err;
        assert_int_equal(parse(semel__str(secret[i]), &err), SEMEL_INVALID);
        assert_null(strstr(err.text, "4111"));
    }
}

/* depth brackets, then their closing. */
static struct semel_str nested(struct semel_buf *buf, size_t depth, const char *open, const char *close)
{
    semel__buf_init(buf, 10 * MAX_BYTES);
    for (size_t i = 0; i < depth; i++)
        semel__buf_addz(buf, open);
    semel__buf_addz(buf, "0");
    for (size_t i = 0; i < depth; i++)
        semel__buf_addz(buf, close);
    assert_false(buf->failed);
    return semel__buf_str(buf);
}

static void nesting_is_accepted_to_its_bound_and_no_further(void **state)
{
    (void)state;
    static const char *const brackets[][2] = {{"[", "]"}, {"{\"a\":", "}"}};
    for (size_t i = 0; i < COUNT(brackets); i++) {
        struct semel_buf buf;
        struct semel_error err;
        assert_int_equal(parse(nested(&buf, SEMEL_JSON_DEPTH, brackets[i][0], brackets[i][1]), &err), SEMEL_OK);
        semel__buf_done(&buf);
        assert_int_equal(parse(nested(&buf, SEMEL_JSON_DEPTH + 1, brackets[i][0], brackets[i][1]), &err),
                         SEMEL_INVALID);
        assert_non_null(strstr(err.text, "too deeply nested"));
        semel__buf_done(&buf);
    }
    struct semel_buf buf;
    assert_int_equal(parse(nested(&buf, 45000, "[", "]"), NULL), SEMEL_INVALID);
    semel__buf_done(&buf);
}

static void brackets_inside_a_string_are_not_nesting(void **state)
{
    (void)state;
    char text[1000];
    memset(text, '[', sizeof(text));
    text[0] = text[sizeof(text) - 1] = '"';
    assert_int_equal(parse((struct semel_str){text, sizeof(text)}, NULL), SEMEL_OK);
}

static void a_text_longer_than_the_bound_is_refused_unread(void **state)
{
    (void)state;
    struct semel_json *json = NULL;
    struct semel_error err;
    assert_int_equal(semel__json_parse(&json, SEMEL_STR("[12]"), 3, &err), SEMEL_INVALID);
    assert_string_equal(err.text, "JSON: longer than 3 bytes");
    assert_null(json);
    assert_int_equal(semel__json_parse(&json, SEMEL_STR("[12]"), 4, &err), SEMEL_OK);
    semel__json_free(json);
    semel__json_free(NULL);
}

/* P63: were it INVALID, a lack of memory would send the message to the dead letters. */
static void a_lack_of_memory_is_never_taken_for_bad_json(void **state)
{
    (void)state;
    struct semel_buf buf;
    semel__buf_init(&buf, MAX_BYTES);
    semel__buf_addz(&buf, "[\"a string that is longer than one small buffer would be\"");
    for (int i = 0; i < 2000; i++)
        semel__buf_addf(&buf, ",{\"a\":%d,\"b\":\"x\"}", i);
    semel__buf_addz(&buf, "]");
    unsigned failed = 0;
    for (unsigned at = 1;; at++) {
        struct semel_json *json = NULL;
        struct semel_error err;
        struct fail_nth fail;
        fail_nth_begin(&fail, at);
        semel_status status = semel__json_parse(&json, semel__buf_str(&buf), MAX_BYTES, &err);
        bool reached = fail_nth_end(&fail);
        semel__json_free(json);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        if (!reached)
            break;
        assert_int_equal(err.cls, SEMEL_CLASS_ENVIRONMENT);
        failed++;
    }
    assert_true(failed >= 5);
    semel__buf_done(&buf);
}

/* The arena's bound must follow the text, or the densest documents would fail as if memory were short. */
static void the_densest_documents_fit_their_arena(void **state)
{
    (void)state;
    static const char *const items[] = {"0,", "\"\",", "[],", "{},", "{\"\":0},", "[[[0]]],", "-1,"};
    for (size_t i = 0; i < COUNT(items); i++) {
        struct semel_buf buf;
        struct semel_error err;
        semel__buf_init(&buf, MAX_BYTES);
        semel__buf_addz(&buf, "[");
        while (buf.n < MAX_BYTES - 20)
            semel__buf_addz(&buf, items[i]);
        semel__buf_addz(&buf, "0]");
        assert_int_equal(parse(semel__buf_str(&buf), &err), SEMEL_OK);
        semel__buf_done(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_of_every_kind_is_accepted),
        cmocka_unit_test(what_is_not_json_is_refused_with_the_byte),
        cmocka_unit_test(every_cut_of_a_document_is_refused),
        cmocka_unit_test(a_duplicate_member_is_refused_however_it_is_spelled),
        cmocka_unit_test(no_error_quotes_the_payload),
        cmocka_unit_test(nesting_is_accepted_to_its_bound_and_no_further),
        cmocka_unit_test(brackets_inside_a_string_are_not_nesting),
        cmocka_unit_test(a_text_longer_than_the_bound_is_refused_unread),
        cmocka_unit_test(a_lack_of_memory_is_never_taken_for_bad_json),
        cmocka_unit_test(the_densest_documents_fit_their_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
