/* SPDX-License-Identifier: MIT
 *
 * test_str.c: strings of any bytes, UTF-8 and bounded buffers.
 */
#include <stdlib.h>

#include "unit.h"

static const struct semel_str not_given;

static void strings_compare_by_unsigned_bytes(void **state)
{
    (void)state;
    assert_true(semel__str_cmp(SEMEL_STR("a"), SEMEL_STR("\xC3")) < 0);
    assert_true(semel__str_cmp(SEMEL_STR("a"), SEMEL_STR("ab")) < 0);
    assert_true(semel__str_cmp(SEMEL_STR("b"), SEMEL_STR("ab")) > 0);
    assert_true(semel__str_cmp(SEMEL_STR("a\0a"), SEMEL_STR("a\0b")) < 0);
    assert_int_equal(semel__str_cmp(SEMEL_STR("a\0a"), SEMEL_STR("a\0a")), 0);
}

static void hash_tells_parts_and_their_lengths_apart(void **state)
{
    (void)state;
    const uint64_t ab = semel__str_hash(0, SEMEL_STR("ab")), a = semel__str_hash(0, SEMEL_STR("a"));
    assert_true(semel__str_hash(ab, SEMEL_STR("c")) == semel__str_hash(ab, SEMEL_STR("c")));
    assert_true(semel__str_hash(ab, SEMEL_STR("c")) != semel__str_hash(a, SEMEL_STR("bc")));
    assert_true(semel__str_hash(0, SEMEL_STR("")) != semel__str_hash(0, SEMEL_STR("\0")));
    assert_true(ab != a);
}

/* P21: neither case nor a trailing blank nor a NUL makes two ids one. */
static void ids_that_differ_in_one_byte_are_not_equal(void **state)
{
    (void)state;
    assert_false(semel__str_eq(SEMEL_STR("order-1"), SEMEL_STR("Order-1")));
    assert_false(semel__str_eq(SEMEL_STR("order-1"), SEMEL_STR("order-1 ")));
    assert_false(semel__str_eq(SEMEL_STR("order-1\0x"), SEMEL_STR("order-1\0y")));
    assert_false(semel__str_eqz(SEMEL_STR("order-1\0x"), "order-1"));
    assert_true(semel__str_eqz(SEMEL_STR("order-1"), "order-1"));
}

static void not_given_equals_only_not_given(void **state)
{
    (void)state;
    assert_true(semel__str_eq(not_given, not_given));
    assert_false(semel__str_eq(not_given, SEMEL_STR("")));
    assert_true(semel__str_cmp(not_given, SEMEL_STR("")) < 0);
    assert_true(semel__str_cmp(SEMEL_STR(""), not_given) > 0);
    assert_true(semel__str_eqz(not_given, NULL));
    assert_false(semel__str_eqz(not_given, ""));
}

static void only_a_whole_decimal_int64_is_a_number(void **state)
{
    (void)state;
    int64_t value = 7;
    assert_true(semel__str_int64(SEMEL_STR("9223372036854775807"), &value));
    assert_true(value == INT64_MAX);
    assert_true(semel__str_int64(SEMEL_STR("-9223372036854775808"), &value));
    assert_true(value == INT64_MIN);
    assert_true(semel__str_int64(SEMEL_STR("-0"), &value));
    assert_int_equal(value, 0);
    value = 7;
    static const char *const bad[] = {"",
                                      "-",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1x",
                                      "0x1",
                                      "1.0",
                                      "--1",
                                      "1e3",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "99999999999999999999"};
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(semel__str_int64(semel__str(bad[i]), &value));
    assert_false(semel__str_int64(SEMEL_STR("1\0"), &value));
    assert_false(semel__str_int64(not_given, &value));
    assert_int_equal(value, 7);
}

static void utf8_is_well_formed_or_refused(void **state)
{
    (void)state;
    static const struct {
        struct semel_str s;
        bool valid;
    } cases[] = {
        {{"", 0}, true},
        {{"abc", 3}, true},
        {{"\xC2\x80", 2}, true},
        {{"\xDF\xBF", 2}, true},
        {{"\xE0\xA0\x80", 3}, true},
        {{"\xED\x9F\xBF", 3}, true},
        {{"\xEE\x80\x80", 3}, true},
        {{"\xEF\xBF\xBF", 3}, true},
        {{"\xF0\x90\x80\x80", 4}, true},
        {{"\xF4\x8F\xBF\xBF", 4}, true},
        {{"a\0b", 3}, false},     /* NUL */
        {{"\x80", 1}, false},     /* a continuation alone */
        {{"\xC0\xAF", 2}, false}, /* overlong */
        {{"\xC1\xBF", 2}, false},
        {{"\xE0\x9F\xBF", 3}, false},
        {{"\xF0\x8F\xBF\xBF", 4}, false},
        {{"\xED\xA0\x80", 3}, false}, /* surrogates */
        {{"\xED\xBF\xBF", 3}, false},
        {{"\xF4\x90\x80\x80", 4}, false}, /* past U+10FFFF */
        {{"\xF5\x80\x80\x80", 4}, false},
        {{"\xFF", 1}, false},
        {{"\xC2", 1}, false}, /* cut */
        {{"\xE2\x82", 2}, false},
        {{"\xF0\x9F\x98", 3}, false},
        {{"\xC2\x41", 2}, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(semel__utf8_valid(cases[i].s), cases[i].valid);

    char text[] = "0123456789abcdef\x7F ~!"; /* eight bytes are looked at together, where they are plain */
    for (size_t i = 0; i < sizeof text - 1; i++) {
        const char was = text[i];
        assert_true(semel__utf8_valid((struct semel_str){text, i}));
        text[i] = '\0';
        assert_false(semel__utf8_valid((struct semel_str){text, sizeof text - 1}));
        text[i] = '\x80';
        assert_false(semel__utf8_valid((struct semel_str){text, sizeof text - 1}));
        text[i] = was;
    }
}

static void every_character_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c == 0xD800)
            c = 0xE000;
        char bytes[4];
        uint32_t read = 0;
        size_t n = semel__utf8_put(c, bytes);
        if (semel__utf8_next((struct semel_str){bytes, n}, &read) != n || read != c)
            fail_msg("U+%04X", (unsigned)c);
    }
}

static void what_a_person_reads_holds_no_control_characters(void **state)
{
    (void)state;
    char out[64];
    semel__str_show(out, sizeof(out), SEMEL_STR("a\0b\n\x1B[31m\x7F\xC2\x9B\xC2\xA0z"));
    assert_string_equal(out, "a?b??[31m??\xC2\xA0z");
    semel__str_show(out, sizeof(out), SEMEL_STR("\xE2\x82\xAC \xE2\x82 \xFF\xC0\x80 \xED\xA0\x80."));
    assert_string_equal(out, "\xE2\x82\xAC ?? ??? ???.");
    semel__str_show(out, sizeof(out), not_given);
    assert_string_equal(out, "");
}

/* Text that runs backwards, and names that only look alike. */
static void what_a_person_reads_holds_no_format_characters(void **state)
{
    (void)state;
    static const uint32_t hidden[] = {0x85,   0x9B,   0xAD,   0x61C,   0x180E,  0x200B,  0x200E,  0x200F,
                                      0x2028, 0x2029, 0x202A, 0x202E,  0x2060,  0x2066,  0x2069,  0x206F,
                                      0xFEFF, 0xFFF9, 0xFFFB, 0x1BCA0, 0x1D173, 0xE0001, 0xE0041, 0xE01EF};
    static const uint32_t shown[] = {' ',    '~',    0xA0,   0xAC,   0xAE,   0x61B,
                                     0x200A, 0x2010, 0x2027, 0x202F, 0xFFFD, 0x1F600};
    for (size_t i = 0; i < COUNT(hidden); i++) {
        char bytes[4], out[8];
        size_t n = semel__utf8_put(hidden[i], bytes);
        semel__str_show(out, sizeof(out), (struct semel_str){bytes, n});
        assert_string_equal(out, "?");
    }
    for (size_t i = 0; i < COUNT(shown); i++) {
        char bytes[4], out[8];
        size_t n = semel__utf8_put(shown[i], bytes);
        semel__str_show(out, sizeof(out), (struct semel_str){bytes, n});
        assert_int_equal(strlen(out), n);
        assert_memory_equal(out, bytes, n);
    }
}

static void what_a_person_reads_is_never_cut_inside_a_character(void **state)
{
    (void)state;
    struct semel_str euro = SEMEL_STR("\xE2\x82\xAC\xE2\x82\xAC\xF0\x9F\x98\x80");
    for (size_t size = 1; size <= 12; size++) {
        char out[16];
        memset(out, 'x', sizeof(out));
        semel__str_show(out, size, euro);
        assert_true(strlen(out) < size);
        assert_true(semel__utf8_valid(semel__str(out)));
        assert_int_equal(strlen(out), size <= 3 ? 0 : size <= 6 ? 3 : size <= 10 ? 6 : 10);
        assert_int_equal(out[size], 'x');
    }
    char untouched = 'x';
    semel__str_show(&untouched, 0, euro);
    assert_int_equal(untouched, 'x');
}

static void the_nearest_name_has_at_most_two_edits_and_one_if_it_is_short(void **state)
{
    (void)state;
    static const char *const names[] = {"status", "send", "migrate", "demo", "ls", "inbox", "index"};
    static const struct {
        const char *word, *nearest;
    } cases[] = {
        {"status", "status"},   {"statsu", "status"}, {"stats", "status"}, {"statuses", "status"},
        {"sttus", "status"},    {"sned", "send"},     {"Demo", "demo"},    {"deom", "demo"},
        {"migarte", "migrate"}, {"inbx", "inbox"},    {"indox", "inbox"},  {"indx", "index"},
        {"lss", "ls"},          {"l", NULL},          {"xy", NULL},        {"statuseses", NULL},
        {"stat", "status"},     {"sta", NULL},        {"", NULL},          {"completion", NULL},
        {"dead", NULL},         {"edmo", "demo"},     {"seen", NULL},      {"dmoe", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *nearest = semel__nearest(cases[i].word, names, COUNT(names));
        if (cases[i].nearest == NULL ? nearest != NULL : nearest == NULL || strcmp(nearest, cases[i].nearest) != 0)
            fail_msg("%s: %s", cases[i].word, nearest != NULL ? nearest : "none");
    }
    assert_true(semel__resembles("dead", names, COUNT(names))); /* `demo`, by two edits */
    assert_false(semel__resembles("completion", names, COUNT(names)));
    assert_null(semel__nearest("status", names, 0));
    assert_null(semel__nearest(NULL, names, COUNT(names)));
}

static void words_without_bounds_have_no_nearest_name(void **state)
{
    (void)state;
    char word[66], name[66];
    const char *names[] = {name};
    memset(word, 'a', 65);
    memset(name, 'a', 65);
    word[64] = name[64] = word[65] = name[65] = '\0';
    assert_string_equal(semel__nearest(word, names, 1), name);
    name[64] = 'a';
    assert_null(semel__nearest(word, names, 1));
    name[64] = '\0';
    word[64] = 'a';
    assert_null(semel__nearest(word, names, 1));
}

static void a_buffer_grows_to_its_bound_and_no_further(void **state)
{
    (void)state;
    struct semel_buf buf;
    semel__buf_init(&buf, 1000);
    for (int i = 0; i < 1000; i++)
        assert_true(semel__buf_add(&buf, "x", 1));
    assert_true(semel__buf_addz(&buf, ""));
    assert_true(semel__buf_addf(&buf, "%s", ""));
    assert_false(semel__buf_addf(&buf, "%d", 1));
    assert_true(buf.failed);
    assert_true(buf.full);
    assert_int_equal(buf.n, 1000);
    assert_true(buf.cap <= 1001);
    semel__buf_done(&buf);
}

static void once_an_append_failed_every_later_one_fails(void **state)
{
    (void)state;
    struct semel_buf buf;
    semel__buf_init(&buf, 3);
    assert_false(semel__buf_addz(&buf, "abcd"));
    assert_false(semel__buf_addz(&buf, "a"));
    assert_false(semel__buf_add(&buf, "", 0));
    assert_int_equal(buf.n, 0);
    semel__buf_done(&buf);
    assert_true(semel__buf_addz(&buf, "abc"));
    assert_str(semel__buf_str(&buf), "abc");
    semel__buf_done(&buf);
}

static void a_buffer_without_memory_is_not_called_full(void **state)
{
    (void)state;
    struct semel_buf buf;
    struct fail_nth fail;
    semel__buf_init(&buf, SIZE_MAX);
    fail_nth_begin(&fail, 2);
    assert_true(semel__buf_addz(&buf, "abc"));
    assert_false(semel__buf_addf(&buf, "%1000d", 1));
    assert_true(fail_nth_end(&fail));
    assert_true(buf.failed);
    assert_false(buf.full);
    assert_str(semel__buf_str(&buf), "abc");
    semel__buf_done(&buf);
}

static void a_buffer_takes_bytes_text_and_formats(void **state)
{
    (void)state;
    struct semel_buf buf;
    semel__buf_init(&buf, 1 << 20);
    assert_int_equal(semel__buf_str(&buf).n, 0);
    assert_non_null(semel__buf_str(&buf).p);
    semel__buf_add(&buf, "a\0b", 3);
    semel__buf_addz(&buf, "-");
    semel__buf_addf(&buf, "%d/%s", 42, "x");
    struct semel_str s = semel__buf_str(&buf);
    assert_int_equal(s.n, 8);
    assert_memory_equal(s.p, "a\0b-42/x", 8);
    for (int i = 0; i < 500; i++)
        assert_true(semel__buf_addf(&buf, "%03d", i));
    assert_int_equal(buf.n, 8 + 1500);
    assert_memory_equal(buf.p + buf.n - 6, "498499", 6);
    semel__buf_done(&buf);
}

static void escapes_become_their_bytes_and_what_is_none_is_refused(void **state)
{
    static const char *const wrong[] = {"%", "%4", "%4g", "%g4", "a%00", "%%41"};
    char text[32] = "a%41%2f%2Fz%fF";
    (void)state;
    assert_true(semel__unescape(text));
    assert_string_equal(text, "aA//z\xff");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        snprintf(text, sizeof text, "%s", wrong[i]);
        assert_false(semel__unescape(text));
    }
}

static void a_secret_of_a_url_reaches_to_the_last_at(void **state)
{
    static const struct {
        const char *url, *secret;
    } urls[] = {
        {"postgres://me:secret@host/db", "secret"},
        {"postgres://me:pa/secret@host/db", "pa/secret"},
        {"postgres://me:12/secret@host/db", "12/secret"},
        {"postgres://me:pa?se#cret@host/db", "pa?se#cret"},
        {"//me:pa@secret@host", "pa@secret"},
        {"//me:@host", ""},
        {"postgres://me@host:5432/db", NULL},
        {"postgres://host:5432/db", NULL},
        {"me:secret@host", NULL},
        {"//", NULL},
        {"", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        struct semel_str found = {0};
        assert_int_equal(semel__url_secret(semel__str(urls[i].url), &found), urls[i].secret != NULL);
        assert_true(urls[i].secret == NULL || semel__str_eqz(found, urls[i].secret));
    }
}

/* Character by character. */
static bool every_character_is_valid(struct semel_str s)
{
    while (s.n > 0) {
        uint32_t c;
        size_t n = semel__utf8_next(s, &c);
        if (n == 0 || c == 0)
            return false;
        s = (struct semel_str){s.p + n, s.n - n};
    }
    return true;
}

static void utf8_is_checked_alike_at_every_place(void **state)
{
    static const struct semel_str pieces[] = {{"\0", 1},           {"\x01", 1},         {"\x7F", 1},
                                              {"\x80", 1},         {"\xC3\xA4", 2},     {"\xC3", 1},
                                              {"\xC0\xAF", 2},     {"\xE2\x82\xAC", 3}, {"\xE2\x82", 2},
                                              {"\xED\xA0\x80", 3}, {"\xFF", 1},         {"\xF0\x9F\x98\x80", 4},
                                              {"\xF0\x9F\x98", 3}};
    (void)state;
    for (size_t p = 0; p < COUNT(pieces); p++)
        for (size_t before = 0; before < 20; before++)
            for (size_t behind = 0; behind < 20; behind++) {
                const size_t n = before + pieces[p].n + behind;
                char *text = malloc(n); /* with nothing behind it */
                assert_non_null(text);
                memset(text, 'a', n);
                memcpy(text + before, pieces[p].p, pieces[p].n);
                const struct semel_str s = {text, n};
                assert_int_equal(semel__utf8_valid(s), every_character_is_valid(s));
                free(text);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_secret_of_a_url_reaches_to_the_last_at),
        cmocka_unit_test(escapes_become_their_bytes_and_what_is_none_is_refused),
        cmocka_unit_test(strings_compare_by_unsigned_bytes),
        cmocka_unit_test(hash_tells_parts_and_their_lengths_apart),
        cmocka_unit_test(ids_that_differ_in_one_byte_are_not_equal),
        cmocka_unit_test(not_given_equals_only_not_given),
        cmocka_unit_test(only_a_whole_decimal_int64_is_a_number),
        cmocka_unit_test(utf8_is_well_formed_or_refused),
        cmocka_unit_test(every_character_is_read_as_it_was_written),
        cmocka_unit_test(what_a_person_reads_holds_no_control_characters),
        cmocka_unit_test(what_a_person_reads_holds_no_format_characters),
        cmocka_unit_test(what_a_person_reads_is_never_cut_inside_a_character),
        cmocka_unit_test(the_nearest_name_has_at_most_two_edits_and_one_if_it_is_short),
        cmocka_unit_test(words_without_bounds_have_no_nearest_name),
        cmocka_unit_test(a_buffer_grows_to_its_bound_and_no_further),
        cmocka_unit_test(once_an_append_failed_every_later_one_fails),
        cmocka_unit_test(a_buffer_without_memory_is_not_called_full),
        cmocka_unit_test(a_buffer_takes_bytes_text_and_formats),
        cmocka_unit_test(utf8_is_checked_alike_at_every_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
