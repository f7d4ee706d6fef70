/* SPDX-License-Identifier: MIT
 *
 * test_pointer.c: JSON pointers, by the examples of RFC 6901 and beyond; and pieces of a text as they were written.
 */
#include "base/json.h"
#include "unit.h"

static struct semel_json *document(const char *text)
{
    struct semel_json *json = NULL;
    assert_int_equal(semel__json_parse(&json, semel__str(text), 10000, NULL), SEMEL_OK);
    return json;
}

static void assert_at(const struct semel_json *json, const char *pointer, enum semel_json_kind kind, const char *text)
{
    struct semel_arena arena;
    enum semel_json_kind got = SEMEL_JSON_MISSING;
    struct semel_str got_text = SEMEL_STR("unset");
    semel__arena_init(&arena, 10000);
    assert_int_equal(semel__json_get(json, semel__str(pointer), &arena, &got, &got_text, NULL), SEMEL_OK);
    if (got != kind)
        fail_msg("%s: kind %d", pointer, (int)got);
    if (text != NULL)
        assert_str(got_text, text);
    else
        assert_false(semel__str_given(got_text));
    semel__arena_done(&arena);
}

/* Section 5; its members are in the order of the RFC. */
static void the_examples_of_rfc_6901_are_found(void **state)
{
    (void)state;
    struct semel_json *json = document("{\"foo\":[\"bar\",\"baz\"],\"\":0,\"a/b\":1,\"c%d\":2,\"e^f\":3,\"g|h\":4,"
                                       "\"i\\\\j\":5,\"k\\\"l\":6,\" \":7,\"m~n\":8}");
    assert_at(json, "", SEMEL_JSON_OTHER, NULL);
    assert_at(json, "/foo", SEMEL_JSON_OTHER, NULL);
    assert_at(json, "/foo/0", SEMEL_JSON_STRING, "bar");
    assert_at(json, "/foo/1", SEMEL_JSON_STRING, "baz");
    assert_at(json, "/", SEMEL_JSON_INTEGER, "0");
    assert_at(json, "/a~1b", SEMEL_JSON_INTEGER, "1");
    assert_at(json, "/c%d", SEMEL_JSON_INTEGER, "2");
    assert_at(json, "/e^f", SEMEL_JSON_INTEGER, "3");
    assert_at(json, "/g|h", SEMEL_JSON_INTEGER, "4");
    assert_at(json, "/i\\j", SEMEL_JSON_INTEGER, "5");
    assert_at(json, "/k\"l", SEMEL_JSON_INTEGER, "6");
    assert_at(json, "/ ", SEMEL_JSON_INTEGER, "7");
    assert_at(json, "/m~0n", SEMEL_JSON_INTEGER, "8");
    semel__json_free(json);
}

static void what_is_not_there_is_missing(void **state)
{
    (void)state;
    struct semel_json *json = document("{\"a\":[10,20,30],\"b\":\"text\",\"c\":{\"0\":\"member\",\"-\":1},\"d\":{}}");
    static const char *const missing[] = {"/x",
                                          "/a/3",
                                          "/a/-",
                                          "/a/00",
                                          "/a/01",
                                          "/a/+1",
                                          "/a/-1",
                                          "/a/ 1",
                                          "/a/1 ",
                                          "/a/",
                                          "/a/1x",
                                          "/a/18446744073709551616",
                                          "/a/9223372036854775807",
                                          "/a/0/0",
                                          "/b/0",
                                          "/b/",
                                          "/d/",
                                          "/A",
                                          "//a",
                                          "/a//0",
                                          "/c/00",
                                          "/aa"};
    for (size_t i = 0; i < COUNT(missing); i++)
        assert_at(json, missing[i], SEMEL_JSON_MISSING, NULL);
    assert_at(json, "/a/2", SEMEL_JSON_INTEGER, "30");
    assert_at(json, "/c/0", SEMEL_JSON_STRING, "member");
    assert_at(json, "/c/-", SEMEL_JSON_INTEGER, "1");
    semel__json_free(json);
}

static void tilde_escapes_are_decoded_once(void **state)
{
    (void)state;
    struct semel_json *json = document("{\"~1\":\"a\",\"/\":\"b\",\"~\":\"c\",\"~01\":\"d\",\"//~~\":\"e\"}");
    assert_at(json, "/~01", SEMEL_JSON_STRING, "a");
    assert_at(json, "/~1", SEMEL_JSON_STRING, "b");
    assert_at(json, "/~0", SEMEL_JSON_STRING, "c");
    assert_at(json, "/~001", SEMEL_JSON_STRING, "d");
    assert_at(json, "/~1~1~0~0", SEMEL_JSON_STRING, "e");
    semel__json_free(json);
}

static void strings_and_integers_give_their_text_and_nothing_else_does(void **state)
{
    (void)state;
    struct semel_json *json = document("[null,true,false,1.0,1e3,[],{},\"\",-0,-7,9223372036854775807,"
                                       "18446744073709551615,\"\\u20ac\\n\\ud83d\\ude00\"]");
    assert_at(json, "/0", SEMEL_JSON_NULL, NULL);
    for (int i = 1; i <= 6; i++) {
        char pointer[16];
        snprintf(pointer, sizeof(pointer), "/%d", i);
        assert_at(json, pointer, SEMEL_JSON_OTHER, NULL);
    }
    assert_at(json, "/7", SEMEL_JSON_STRING, "");
    assert_at(json, "/8", SEMEL_JSON_INTEGER, "0");
    assert_at(json, "/9", SEMEL_JSON_INTEGER, "-7");
    assert_at(json, "/10", SEMEL_JSON_INTEGER, "9223372036854775807");
    assert_at(json, "/11", SEMEL_JSON_INTEGER, "18446744073709551615");
    assert_at(json, "/12", SEMEL_JSON_STRING, "\xE2\x82\xAC\n\xF0\x9F\x98\x80");
    semel__json_free(json);
}

/* P56: two ids that a double would make one. */
static void integers_past_2_to_the_53_keep_their_last_digit(void **state)
{
    (void)state;
    struct semel_json *json = document("[9007199254740993,9007199254740992]");
    assert_at(json, "/0", SEMEL_JSON_INTEGER, "9007199254740993");
    assert_at(json, "/1", SEMEL_JSON_INTEGER, "9007199254740992");
    semel__json_free(json);
}

static void the_text_outlives_the_document(void **state)
{
    (void)state;
    struct semel_arena arena;
    struct semel_str text;
    enum semel_json_kind kind;
    semel__arena_init(&arena, 1000);
    struct semel_json *json = document("{\"id\":\"order-1\"}");
    assert_int_equal(semel__json_get(json, SEMEL_STR("/id"), &arena, &kind, &text, NULL), SEMEL_OK);
    semel__json_free(json);
    assert_str(text, "order-1");
    semel__arena_done(&arena);
}

static void a_pointer_is_empty_or_begins_with_a_slash(void **state)
{
    (void)state;
    static const char *const good[] = {"", "/", "//", "/a/b/0/-", "/~0~1", "/\xE2\x82\xAC", "/a b"};
    static const char *const bad[] = {"a", "a/b", " /a", "#/a", "/~", "/~2", "/a~/b", "/~~0", "/\xFF", "/\xC0\x80"};
    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(semel__json_pointer_valid(semel__str(good[i])));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(semel__json_pointer_valid(semel__str(bad[i])));
    assert_false(semel__json_pointer_valid(SEMEL_STR("/a\0b")));
    assert_false(semel__json_pointer_valid((struct semel_str){NULL, 0}));
    char longest[SEMEL_ID_MAX + 1];
    memset(longest, '/', sizeof(longest));
    assert_true(semel__json_pointer_valid((struct semel_str){longest, SEMEL_ID_MAX}));
    assert_false(semel__json_pointer_valid((struct semel_str){longest, SEMEL_ID_MAX + 1}));
}

static void asking_with_a_bad_pointer_or_without_memory_changes_nothing(void **state)
{
    (void)state;
    struct semel_arena arena;
    struct semel_str text = SEMEL_STR("untouched");
    enum semel_json_kind kind = SEMEL_JSON_OTHER;
    struct semel_error err;
    semel__arena_init(&arena, 1000);
    struct semel_json *json = document("{\"id\":\"order-1\"}");
    assert_int_equal(semel__json_get(json, SEMEL_STR("id"), &arena, &kind, &text, &err), SEMEL_INVALID);
    struct fail_nth fail;
    fail_nth_begin(&fail, 1);
    assert_int_equal(semel__json_get(json, SEMEL_STR("/id"), &arena, &kind, &text, &err), SEMEL_RETRY);
    assert_true(fail_nth_end(&fail));
    assert_int_equal(kind, SEMEL_JSON_OTHER);
    assert_str(text, "untouched");
    semel__json_free(json);
    semel__arena_done(&arena);
}

/* ---- in the text itself ---------------------------------------------------------------------------------------- */

static void assert_finds(const char *json, const char *pointer, const char *expected)
{
    struct semel_str found = semel__json_find(semel__str(json), semel__str(pointer));
    if (expected == NULL)
        assert_null(found.p);
    else
        assert_str(found, expected);
}

static void pointer_finds_what_a_parser_would(void **state)
{
    static const char json[] =
        " {\"a\":1,\"b\" : [ 10, {\"c\":\"]}\\\"\"} , [] ],\"\":{\"x\":null},\"a/b\":2,\"m~n\":-3.5e2,"
        "\"\\u0061\\n\":4,\"a\\\\b\":5,\"last\":true}\n";
    (void)state;
    assert_finds(json, "/a", "1");
    assert_finds(json, "/b/0", "10");
    assert_finds(json, "/b/1", "{\"c\":\"]}\\\"\"}");
    assert_finds(json, "/b/1/c", "\"]}\\\"\"");
    assert_finds(json, "/b/2", "[]");
    assert_finds(json, "/b/3", NULL);
    assert_finds(json, "/b/00", NULL);
    assert_finds(json, "/b/-", NULL);
    assert_finds(json, "/b/-1", NULL);
    assert_finds(json, "/b/2/0", NULL);
    assert_finds(json, "/", "{\"x\":null}");
    assert_finds(json, "//x", "null");
    assert_finds(json, "/a~1b", "2");
    assert_finds(json, "/m~0n", "-3.5e2");
    assert_finds(json, "/a\n", "4");
    assert_finds(json, "/a\\b", "5");
    assert_finds(json, "/last", "true");
    assert_finds(json, "/las", NULL);
    assert_finds(json, "/lastly", NULL);
    assert_finds(json, "/a/b", NULL);
    assert_finds("7", "", "7");
    assert_finds("\"x\"", "/0", NULL);
    assert_finds("{}", "/a", NULL);
}

static void what_is_no_json_is_never_read_past_its_end(void **state)
{
    static const char json[] = "{\"a\":[{\"b\\u00e9\\\\\":\"\\ud83d\\udc18x\"},12.5,[true,null]],\"c\":{\"d\":\"e\"}}";
    static const char *const pointers[] = {"/a/0/b\xc3\xa9\\", "/a/2/1", "/c/d", "/zz", "/a/9"};
    struct semel_arena arena;
    (void)state;
    semel__arena_init(&arena, 1 << 20);
    for (size_t from = 0; from < sizeof json - 1; from++)
        for (size_t n = 0; n <= sizeof json - 1 - from; n++) {
            char *copy = semel__alloc(n);
            memcpy(copy, json + from, n);
            for (size_t i = 0; i < COUNT(pointers); i++) {
                struct semel_str raw = semel__json_find((struct semel_str){copy, n}, semel__str(pointers[i]));
                struct semel_str value;
                bool sound;
                if (raw.p != NULL && raw.p[0] == '"')
                    (void)semel__json_decode(raw, &arena, &value, &sound);
            }
            struct semel_str value;
            (void)semel__json_member((struct semel_str){copy, n}, "x", &value);
            semel__arena_reset(&arena);
            semel__free(copy);
        }
    semel__arena_done(&arena);
}

static void strings_are_decoded_and_bad_ones_are_not_guessed(void **state)
{
    static const struct {
        const char *raw, *text; /* NULL: malformed */
    } strings[] = {
        {"\"\"", ""},
        {"\"abc\"", "abc"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\u00E9\\u20ac\\uD83D\\uDC18\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x98"},
        {"\"\\u0000\"", NULL},
        {"\"\\ud83d\"", NULL},
        {"\"\\ud83dx\"", NULL},
        {"\"\\ud83d\\u0041\"", NULL},
        {"\"\\udc18\"", NULL},
        {"\"\\x\"", NULL},
        {"\"\\u12\"", NULL},
        {"\"\\u00g0\"", NULL},
    };
    struct semel_arena arena;
    (void)state;
    semel__arena_init(&arena, 1 << 20);
    for (size_t i = 0; i < COUNT(strings); i++) {
        struct semel_str value;
        bool sound;
        bool ok = semel__json_decode(semel__str(strings[i].raw), &arena, &value, &sound);
        assert_int_equal(ok, strings[i].text != NULL);
        assert_int_equal(sound, ok);
        if (ok)
            assert_str(value, strings[i].text);
    }
    semel__arena_done(&arena);
}

static void members_and_elements_come_one_after_the_other(void **state)
{
    static const char object[] = " {\"a\" : 1 ,\"b\\n\":[\"x\", {}], \"c\":\"}\"} ";
    static const char *const names[] = {"a", "b\\n", "c"}, *const values[] = {"1", "[\"x\", {}]", "\"}\""};
    struct semel_str name, value;
    size_t from = 0, n = 0;
    (void)state;
    for (; semel__json_next(semel__str(object), &from, &name, &value); n++) {
        assert_true(n < COUNT(names));
        assert_str(name, names[n]);
        assert_str(value, values[n]);
    }
    assert_int_equal(n, COUNT(names));
    from = n = 0;
    while (semel__json_next(SEMEL_STR("[ 1,\"a:b\" , [2,3],{}]"), &from, NULL, &value))
        n++;
    assert_int_equal(n, 4);
    assert_str(value, "{}");
    static const char *const none[] = {"{}", " [ ] ", "7", "", "\"[1]\""};
    for (size_t i = 0; i < COUNT(none); i++) {
        from = 0;
        assert_false(semel__json_next(semel__str(none[i]), &from, &name, &value));
    }
    assert_true(semel__json_member(semel__str(object), "c", &value));
    assert_str(value, "\"}\"");
    assert_false(semel__json_member(semel__str(object), "x", &value));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_examples_of_rfc_6901_are_found),
        cmocka_unit_test(what_is_not_there_is_missing),
        cmocka_unit_test(tilde_escapes_are_decoded_once),
        cmocka_unit_test(strings_and_integers_give_their_text_and_nothing_else_does),
        cmocka_unit_test(integers_past_2_to_the_53_keep_their_last_digit),
        cmocka_unit_test(the_text_outlives_the_document),
        cmocka_unit_test(a_pointer_is_empty_or_begins_with_a_slash),
        cmocka_unit_test(asking_with_a_bad_pointer_or_without_memory_changes_nothing),
        cmocka_unit_test(pointer_finds_what_a_parser_would),
        cmocka_unit_test(what_is_no_json_is_never_read_past_its_end),
        cmocka_unit_test(strings_are_decoded_and_bad_ones_are_not_guessed),
        cmocka_unit_test(members_and_elements_come_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
