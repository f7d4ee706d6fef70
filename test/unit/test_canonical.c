/* SPDX-License-Identifier: MIT
 *
 * test_canonical.c: the canonical form of RFC 8785, and when there is none.
 */
#include <stdlib.h>

#include "base/json.h"
#include "base/random.h"
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

/* ---- a short text without a tree ----------------------------------------------------------------- */

/* The length of the short form, which the parser and the tree must agree with; 0: there is none. Text and form have not
 * a byte of room around them. */
static size_t short_form(struct semel_str text, struct semel_buf *form)
{
    struct semel_json *json = NULL;
    char *copy = malloc(text.n + (text.n == 0)), *out = malloc(text.n + (text.n == 0));
    bool exact = false;
    assert_true(copy != NULL && out != NULL);
    memcpy(copy, text.p, text.n);
    semel__buf_init(form, 100000);
    size_t n = semel__json_short((struct semel_str){copy, text.n}, out);
    if (n > 0) {
        if (semel__json_parse(&json, text, 100000, NULL) != SEMEL_OK)
            fail_msg("the parser refuses: %.*s", (int)text.n, text.p);
        assert_int_equal(semel__json_canonical(json, form, &exact, NULL), SEMEL_OK);
        if (!exact || form->n != n || memcmp(form->p, out, n) != 0)
            fail_msg("%.*s: the tree gives %.*s, the short form is %.*s", (int)text.n, text.p, (int)form->n, form->p,
                     (int)n, out);
        semel__json_free(json);
    }
    free(copy);
    free(out);
    return n;
}

static void assert_short(const char *text, const char *expected)
{
    struct semel_buf form;
    if (short_form(semel__str(text), &form) == 0)
        fail_msg("%s has a short form", text);
    assert_str(semel__buf_str(&form), expected);
    semel__buf_done(&form);
}

static void assert_not_short(struct semel_str text)
{
    struct semel_buf form;
    if (short_form(text, &form) != 0)
        fail_msg("%.*s has no short form", (int)text.n, text.p);
    semel__buf_done(&form);
}

static void a_message_as_most_are_needs_no_tree(void **state)
{
    (void)state;
    assert_short("{\"id\":\"0190\",\"account\":10001,\"amount\":-12.50,\"note\":\"paid\\n\\\"now\\\"\"}",
                 "{\"account\":10001,\"amount\":-12.5,\"id\":\"0190\",\"note\":\"paid\\n\\\"now\\\"\"}");
    assert_short(" { \"b\" : { \"d\" : -0 , \"c\" : 1000.0 } ,\r\n\t\"a\" : [ 1 , true , null, false, [] , {} ] } ",
                 "{\"a\":[1,true,null,false,[],{}],\"b\":{\"c\":1000,\"d\":0}}");
    assert_short("{\"\xEF\xBF\xBF\":1,\"\xF4\x8F\xBF\xBF\":2,\"\":3,\"b\":{\"z\":1,\"y\":{\"x\":2,\"w\":3}},\"aa\":5}",
                 "{\"\":3,\"aa\":5,\"b\":{\"y\":{\"w\":3,\"x\":2},\"z\":1},\"\xF4\x8F\xBF\xBF\":2,\"\xEF\xBF\xBF\":1}");
    assert_short("\"\xC3\xA4 \\\\ \\b\\f\\r\\t \x7F\"", "\"\xC3\xA4 \\\\ \\b\\f\\r\\t \x7F\"");
    assert_short("999999999999999", "999999999999999");
    assert_short("1234567890123456.0", "1234567890123456");
}

static void whatever_else_there_is_is_left_to_the_parser(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", " ", "nul", "truefalse", "{} {}", "01", "-", "1.", "+1", "[1,]", "[,1]", "{\"a\":1,}", "{\"a\" 1}", "{a:1}",
        "{1:1}", "[1 2]", "[}", "{\"a\":1]", "[", "{", "\"", "\"a", "\"\\", "\"\\\"", "\"\\x\"", "{\"a", "{\"a\"",
        "{\"a\":", "{\"a\":1",
        /* repeated members, as neighbours and apart */
        "{\"a\":1,\"a\":1}", "{\"a\":1,\"b\":2,\"a\":3}", "{\"b\":1,\"a\":2,\"b\":3}", "[{\"\":1,\"\":2}]",
        /* escapes that are written otherwise, or in a name */
        "\"\\u0041\"", "\"\\ud83d\\ude00\"", "\"\\ud83d\"", "\"\\/\"", "{\"\\n\":1}", "{\"a\\\"b\":1}",
        /* numbers that become longer, or are not exact */
        "1e5", "1e20", "9007199254740993", "0.10000000000000001", "1e400", "12345678901234567890",
        /* bytes that no string may have */
        "\"\x01\"", "\"\n\"", "\"\x80\"", "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF5\x80\x80\x80\"", "\"\xE2\x82\"",
        "\"\xC3", "\xEF\xBB\xBF{}"};
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_not_short(semel__str(texts[i]));
    assert_not_short(SEMEL_STR("\"a\0b\""));
    assert_not_short(SEMEL_STR("\"\\\0\""));
    assert_not_short((struct semel_str){"", 0});
}

static struct semel_str nested(struct semel_buf *buf, int depth)
{
    semel__buf_init(buf, 100000);
    for (int i = 0; i < depth; i++)
        semel__buf_addz(buf, i % 2 == 0 ? "[" : "{\"b\":0,\"a\":");
    semel__buf_addz(buf, "1");
    for (int i = depth - 1; i >= 0; i--)
        semel__buf_addz(buf, i % 2 == 0 ? "]" : "}");
    return semel__buf_str(buf);
}

static void a_short_form_is_as_deep_as_the_parser_allows_and_has_its_bounds(void **state)
{
    (void)state;
    struct semel_buf text, form;
    assert_true(short_form(nested(&text, SEMEL_JSON_DEPTH), &form) > 0);
    semel__buf_done(&form);
    semel__buf_done(&text);
    assert_not_short(nested(&text, SEMEL_JSON_DEPTH + 1));
    semel__buf_done(&text);
    for (size_t n = SEMEL_JSON_SHORT; n <= SEMEL_JSON_SHORT + 1; n++) {
        semel__buf_init(&text, 100000);
        while (text.n < n - 1)
            semel__buf_addz(&text, "[");
        memset(text.p, ' ', text.n);
        semel__buf_addz(&text, "1");
        assert_int_equal(short_form(semel__buf_str(&text), &form), n == SEMEL_JSON_SHORT);
        semel__buf_done(&form);
        semel__buf_done(&text);
    }
    for (int n = 62; n <= 63; n++) { /* members, with two more that are open inside */
        semel__buf_init(&text, 100000);
        for (int i = 0; i < n; i++)
            semel__buf_addf(&text, "%s\"%02d\":{\"b\":[],\"a\":{}}", i == 0 ? "{" : ",", i * 37 % n);
        semel__buf_addz(&text, "}");
        assert_int_equal(short_form(semel__buf_str(&text), &form) > 0, n == 62);
        semel__buf_done(&form);
        semel__buf_done(&text);
    }
}

/* ---- documents by chance ---- */

#define PICK(rng, table) (table)[semel__random_below(rng, COUNT(table))]

static void put_blanks(struct semel_random *rng, struct semel_buf *buf)
{
    static const char *const blanks[] = {"", "", "", "", " ", "\n", "\t \r\n"};
    semel__buf_addz(buf, PICK(rng, blanks));
}

static void put_string(struct semel_random *rng, struct semel_buf *buf, bool name)
{
    static const char *const names[] = {
        "a", "b", "id", "amount", "account", "\xC3\xA4", "\xF0\x90\x80\x80", "\xEE\x80\x80", ""};
    static const char *const bits[] = {"plain",
                                       "a longer text than a word; ",
                                       "\\n",
                                       "\\\"",
                                       "\\\\",
                                       "\\t",
                                       "\xC3\xA4",
                                       "\xF0\x9F\x98\x80",
                                       "\xE2\x82\xAC",
                                       "{}[],:",
                                       "'"};
    static const char *const odd[] = {"\\u0041", "\\ud83d\\ude00", "\\ud800",      "\\/",
                                      "\x01",    "\x80",           "\xED\xA0\x80", "\\x"};
    semel__buf_addz(buf, "\"");
    if (name)
        semel__buf_addz(buf, PICK(rng, names));
    for (uint64_t n = semel__random_below(rng, name ? 2 : 5); n > 0; n--)
        semel__buf_addz(buf, semel__random_below(rng, 60) == 0 ? PICK(rng, odd) : PICK(rng, bits));
    semel__buf_addz(buf, "\"");
}

static void put_number(struct semel_random *rng, struct semel_buf *buf)
{
    static const char *const numbers[] = {"0",
                                          "-0",
                                          "-1",
                                          "10",
                                          "12.50",
                                          "0.05",
                                          "-0.0",
                                          "1.0e2",
                                          "999999999999999",
                                          "1000000000000000",
                                          "100.00",
                                          "0.000001",
                                          "0.0000001",
                                          "1e5",
                                          "1e21",
                                          "9007199254740993",
                                          "1.7976931348623157e308",
                                          "5e-324",
                                          "01",
                                          "1.",
                                          "1e400"};
    if (semel__random_below(rng, 2) == 0)
        semel__buf_addf(buf, "%d", (int)semel__random_below(rng, 1000000));
    else
        semel__buf_addz(buf,
                        numbers[semel__random_below(rng, COUNT(numbers) - (semel__random_below(rng, 9) > 0 ? 7 : 0))]);
}

static void put_value(struct semel_random *rng, struct semel_buf *buf, int depth)
{
    static const char *const words[] = {"null", "true", "false"};
    const uint64_t kind = semel__random_below(rng, depth > 0 ? 10 : 6);
    put_blanks(rng, buf);
    if (kind < 3) {
        put_string(rng, buf, false);
    } else if (kind < 5) {
        put_number(rng, buf);
    } else if (kind < 6) {
        semel__buf_addz(buf, PICK(rng, words));
    } else {
        const bool object = kind < 9;
        semel__buf_addz(buf, object ? "{" : "[");
        for (uint64_t n = semel__random_below(rng, 6), i = 0; i < n; i++) {
            semel__buf_addz(buf, i > 0 ? "," : "");
            put_blanks(rng, buf);
            if (object)
                put_string(rng, buf, true);
            put_blanks(rng, buf);
            semel__buf_addz(buf, object ? ":" : "");
            put_value(rng, buf, depth - 1);
        }
        put_blanks(rng, buf);
        semel__buf_addz(buf, object ? "}" : "]");
    }
    put_blanks(rng, buf);
}

static void damage(struct semel_random *rng, struct semel_buf *buf)
{
    static const char bytes[] = "\"\\{}[],: 0.e-\x01\x80\xC3\xF0u";
    const size_t at = (size_t)semel__random_below(rng, buf->n);
    switch (semel__random_below(rng, 3)) {
    case 0:
        buf->n = at;
        break;
    case 1:
        buf->p[at] = bytes[semel__random_below(rng, sizeof bytes)];
        break;
    default:
        buf->p[at] = (char)(buf->p[at] ^ 1 << semel__random_below(rng, 8));
        break;
    }
}

/* A5 */
static void the_short_form_of_any_document_is_that_of_its_tree(void **state)
{
    enum { DOCUMENTS = 30000 };
    struct semel_random rng;
    size_t sound = 0, sound_short = 0, broken_short = 0;
    (void)state;
    semel__random_seed(&rng, 20261119);
    for (int i = 0; i < DOCUMENTS; i++) {
        struct semel_buf text, form;
        const bool broken = semel__random_below(&rng, 3) == 0;
        semel__buf_init(&text, 100000);
        put_value(&rng, &text, 4);
        if (broken)
            damage(&rng, &text);
        const bool is_short = short_form(semel__buf_str(&text), &form) > 0;
        sound += !broken;
        sound_short += !broken && is_short;
        broken_short += broken && is_short;
        semel__buf_done(&form);
        semel__buf_done(&text);
    }
    assert_in_range(sound_short, sound / 2, sound - sound / 20); /* both ways are taken */
    assert_true(broken_short > 100);
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
        cmocka_unit_test(a_message_as_most_are_needs_no_tree),
        cmocka_unit_test(whatever_else_there_is_is_left_to_the_parser),
        cmocka_unit_test(a_short_form_is_as_deep_as_the_parser_allows_and_has_its_bounds),
        cmocka_unit_test(the_short_form_of_any_document_is_that_of_its_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
