/* SPDX-License-Identifier: MIT
 *
 * test_msg.c: fingerprints with their kind, and the keys of outside calls.
 */
#include "unit/unit.h"

#include <stdlib.h>

#include <openssl/crypto.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "core/msg.h"

static struct semel_fp fp_of(struct semel_str payload)
{
    struct semel_fp fp;
    struct semel_error err;

    assert_int_equal(semel__fp_compute(payload, &fp, &err), SEMEL_OK);
    assert_int_equal(fp.n, SEMEL_FP_DIGEST);
    return fp;
}

static bool differ(const char *a, const char *b)
{
    struct semel_fp x = fp_of(semel__str(a)), y = fp_of(semel__str(b));

    assert_int_equal(semel__fp_differs(&x, &y), semel__fp_differs(&y, &x));
    return semel__fp_differs(&x, &y);
}

static void assert_digest(const struct semel_fp *fp, const char *hex)
{
    char text[2 * SEMEL_SHA256 + 1];

    semel__hex(fp->bytes, fp->n, text);
    assert_string_equal(text, hex);
}

/* ---- fingerprints: I11, A5 ---------------------------------------------------------------------------- */

static void json_is_fingerprinted_in_its_canonical_form(void **state)
{
    struct semel_fp fp = fp_of(SEMEL_STR(" { \"b\" : [ true , null ],\n \"a\":1.0 } "));

    (void)state;
    assert_int_equal(fp.kind, SEMEL_FP_JSON);
    assert_digest(&fp, "1cc69c7fa23616ca2ec3ee70d24390a6");
}

static void other_bytes_are_fingerprinted_as_they_are(void **state)
{
    struct semel_fp fp = fp_of(SEMEL_STR("hello"));

    (void)state;
    assert_int_equal(fp.kind, SEMEL_FP_RAW);
    assert_digest(&fp, "2cf24dba5fb0a30e26e83b2ac5b9e29e");
}

static void white_space_member_order_and_spelling_make_no_conflict(void **state)
{
    (void)state;
    assert_false(differ("{\"a\":1,\"b\":2}", "{ \"b\": 2,\t\"a\": 1 }"));
    assert_false(differ("{\"a\":1}", "{\"a\":1.0}"));
    assert_false(differ("{\"a\":1e2}", "{\"a\":100}"));
    assert_false(differ("[\"\\u0041\"]", "[\"A\"]"));
    assert_false(differ(" \"x\" ", "\"x\"")); /* A11: as it is through jsonb */
    assert_false(differ("1e2", "100\n"));
    assert_false(differ("0", " 0.0"));
    assert_false(differ("9", "9.0 "));
    assert_false(differ("-1", " -1.0"));
    assert_false(differ("[1]", " [1.0]"));
    assert_false(differ("true", "true "));
    assert_true(differ("\"x\"", "\"y\""));
    assert_true(differ("null", "false"));
}

static void another_value_is_another_payload(void **state)
{
    (void)state;
    assert_true(differ("{\"a\":1}", "{\"a\":2}"));
    assert_true(differ("{\"a\":1}", "{\"a\":\"1\"}"));
    assert_true(differ("[1,2]", "[2,1]"));
    assert_true(differ("{\"a\":null}", "{}"));
    assert_true(differ("hello", "hello "));
    assert_true(differ("", " "));
}

/* P56: RFC 8785 would make these equal. */
static void numbers_that_are_not_exact_are_compared_by_their_bytes(void **state)
{
    struct semel_fp fp = fp_of(SEMEL_STR("{\"n\":9007199254740993}"));

    (void)state;
    assert_int_equal(fp.kind, SEMEL_FP_RAW);
    assert_false(differ("{\"n\":9007199254740993}", "{\"n\":9007199254740992}")); /* two kinds: not comparable */
    assert_true(differ("{\"n\":9007199254740993}", "{\"n\":9007199254740995}"));
    assert_true(differ("{\"n\":9007199254740993}", "{ \"n\":9007199254740993}"));
}

static void what_only_looks_like_json_is_compared_by_its_bytes(void **state)
{
    static const char *const texts[] = {"{",   "[1,]", "{\"a\":1,\"a\":2}", "{\"a\":1} x", "[\"\xff\"]", "42,",
                                        "\"s", "nul",  "true story",        "-",           "2026-11-16"};

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_int_equal(fp_of(semel__str(texts[i])).kind, SEMEL_FP_RAW);
}

static void nothing_at_all_has_a_fingerprint(void **state)
{
    struct semel_fp a = fp_of((struct semel_str){0}), b = fp_of(SEMEL_STR(""));

    (void)state;
    assert_int_equal(a.kind, SEMEL_FP_RAW);
    assert_false(semel__fp_differs(&a, &b));
}

static void bytes_behind_a_nul_count(void **state)
{
    struct semel_fp a = fp_of(SEMEL_STR("x\0a")), b = fp_of(SEMEL_STR("x\0b"));

    (void)state;
    assert_true(semel__fp_differs(&a, &b));
}

static void a_parsed_payload_has_the_same_fingerprint(void **state)
{
    static const char *const texts[] = {"{\"b\":1,\"a\":[2]}", "[9007199254740993]", "17", "{", ""};

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct semel_str payload = semel__str(texts[i]);
        struct semel_fp expected = fp_of(payload), fp;
        struct semel_json *json = NULL;
        bool is = semel__json_parse(&json, payload, 1000, NULL) == SEMEL_OK;
        assert_int_equal(semel__fp_compute_json(payload, is ? json : NULL, true, false, &fp, NULL), SEMEL_OK);
        assert_memory_equal(&fp, &expected, sizeof fp);
        assert_int_equal(semel__fp_compute_json(payload, NULL, false, false, &fp, NULL), SEMEL_OK);
        assert_memory_equal(&fp, &expected, sizeof fp);
        semel__json_free(json);
    }
}

/* ---- comparing ---------------------------------------------------------------------------------------- */

static void only_equal_kinds_are_compared(void **state)
{
    static const unsigned char kinds[] = {SEMEL_FP_NONE, SEMEL_FP_RAW, SEMEL_FP_JSON, SEMEL_FP_CALLER};
    struct semel_fp a = {.n = 4, .bytes = "aaaa"}, b = {.n = 4, .bytes = "bbbb"};

    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            a.kind = kinds[i];
            b.kind = kinds[k];
            assert_int_equal(semel__fp_differs(&a, &b), i == k && kinds[i] != SEMEL_FP_NONE);
        }
}

static void a_prefix_of_a_fingerprint_is_another_one(void **state)
{
    struct semel_fp a = {.kind = SEMEL_FP_CALLER, .n = 4, .bytes = "abcd"}, b = a;

    (void)state;
    assert_false(semel__fp_differs(&a, &b));
    b.n = 3;
    assert_true(semel__fp_differs(&a, &b));
    assert_true(semel__fp_differs(&b, &a));
}

/* ---- the stored form ---------------------------------------------------------------------------------- */

static void a_fingerprint_comes_back_as_it_was_stored(void **state)
{
    static const unsigned char kinds[] = {SEMEL_FP_RAW, SEMEL_FP_JSON, SEMEL_FP_CALLER};
    static const unsigned char lengths[] = {1, 32, SEMEL_FP_MAX};

    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (size_t k = 0; k < COUNT(lengths); k++) {
            struct semel_fp fp = {.kind = kinds[i], .n = lengths[k]}, back;
            unsigned char stored[1 + SEMEL_FP_MAX];
            for (unsigned char b = 0; b < fp.n; b++)
                fp.bytes[b] = (unsigned char)(b * 7);
            assert_int_equal(semel__fp_encode(&fp, stored), 1u + fp.n);
            assert_int_equal(stored[0], kinds[i]);
            assert_true(semel__fp_decode((struct semel_str){(char *)stored, 1u + fp.n}, &back));
            assert_memory_equal(&back, &fp, sizeof fp);
        }
}

static void no_fingerprint_is_stored_as_nothing(void **state)
{
    struct semel_fp fp = {0};
    unsigned char stored[1 + SEMEL_FP_MAX];

    (void)state;
    assert_int_equal(semel__fp_encode(&fp, stored), 0);
    fp.kind = SEMEL_FP_RAW;
    assert_true(semel__fp_decode((struct semel_str){0}, &fp));
    assert_int_equal(fp.kind, SEMEL_FP_NONE);
}

static void what_is_not_one_of_ours_is_not_read(void **state)
{
    char long_one[1 + SEMEL_FP_MAX + 1];
    struct semel_fp fp;

    (void)state;
    memset(long_one, 'r', sizeof long_one);
    assert_false(semel__fp_decode((struct semel_str){long_one, sizeof long_one}, &fp));
    assert_true(semel__fp_decode((struct semel_str){long_one, sizeof long_one - 1}, &fp));
    assert_false(semel__fp_decode(SEMEL_STR(""), &fp));
    assert_false(semel__fp_decode(SEMEL_STR("r"), &fp));
    assert_false(semel__fp_decode(SEMEL_STR("xabc"), &fp));
    assert_false(semel__fp_decode(SEMEL_STR("\0abc"), &fp));
    assert_int_equal(fp.kind, SEMEL_FP_NONE);
}

/* ---- step keys: E1 ------------------------------------------------------------------------------------ */

static const char *step_key(struct semel_str consumer, struct semel_str source, struct semel_str id,
                            struct semel_str step, char out[SEMEL_STEP_KEY_TEXT])
{
    assert_true(semel__step_key(consumer, source, id, step, out));
    assert_int_equal(strlen(out), 64);
    assert_int_equal(strspn(out, "0123456789abcdef"), 64);
    return out;
}

static void a_step_key_is_the_same_for_ever(void **state)
{
    char out[SEMEL_STEP_KEY_TEXT];

    (void)state;
    assert_string_equal(step_key(SEMEL_STR("billing"), SEMEL_STR("payments"), SEMEL_STR("evt-1"), SEMEL_STR("charge"),
                                 out),
                        "7a866466538850bbb1e59ab90e6a659804e6b03269f83c9e45a630262fa1bdfa");
    assert_string_equal(step_key(SEMEL_STR(""), SEMEL_STR(""), SEMEL_STR(""), SEMEL_STR(""), out),
                        "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925");
    assert_string_equal(step_key((struct semel_str){0}, SEMEL_STR(""), (struct semel_str){0}, SEMEL_STR(""), out),
                        "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925");
}

static void parts_that_run_together_have_different_keys(void **state)
{
    static const char *const parts[][4] = {
        {"ab", "c", "d", "e"},  {"a", "bc", "d", "e"}, {"a", "b", "cd", "e"},   {"a", "b", "c", "de"},
        {"abcde", "", "", ""},  {"", "abcde", "", ""}, {"", "", "abcde", ""},   {"", "", "", "abcde"},
        {"a", "b", "c", "d e"}, {"A", "b", "c", "de"}, {"a", "b", "c", "de\1"},
    };
    char keys[COUNT(parts)][SEMEL_STEP_KEY_TEXT];

    (void)state;
    for (size_t i = 0; i < COUNT(parts); i++) {
        step_key(semel__str(parts[i][0]), semel__str(parts[i][1]), semel__str(parts[i][2]), semel__str(parts[i][3]),
                 keys[i]);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(keys[i], keys[k]);
    }
}

static void a_nul_inside_a_part_counts(void **state)
{
    char a[SEMEL_STEP_KEY_TEXT], b[SEMEL_STEP_KEY_TEXT];

    (void)state;
    step_key(SEMEL_STR("c"), SEMEL_STR("s"), SEMEL_STR("i\0d"), SEMEL_STR("x"), a);
    step_key(SEMEL_STR("c"), SEMEL_STR("s"), SEMEL_STR("i"), SEMEL_STR("x"), b);
    assert_string_not_equal(a, b);
}

static void a_fresh_message_has_neither_version_nor_time(void **state)
{
    struct semel__msg msg;

    (void)state;
    memset(&msg, 0xff, sizeof msg);
    semel__msg_init(&msg);
    assert_int_equal(msg.version, SEMEL_NONE);
    assert_int_equal(msg.message_time_us, SEMEL_NONE);
    assert_int_equal(msg.fp.kind, SEMEL_FP_NONE);
    assert_int_equal(msg.defect, SEMEL_DEFECT_NONE);
    assert_false(semel__str_given(msg.id));
    assert_int_equal(msg.n_business, 0);
}

static void no_memory_is_told_and_nothing_is_given(void **state)
{
    struct fail_nth fail;
    struct semel_error err;
    unsigned at = 1;

    (void)state;
    for (bool reached = true; reached; at++) {
        struct semel_fp fp = {.kind = 'x'};
        fail_nth_begin(&fail, at);
        semel_status status = semel__fp_compute(SEMEL_STR("{\"b\":[1,2,3],\"a\":\"\\u0041\"}"), &fp, &err);
        reached = fail_nth_end(&fail);
        assert_int_equal(status, reached ? SEMEL_RETRY : SEMEL_OK);
        assert_int_equal(fp.kind, reached ? 'x' : SEMEL_FP_JSON);
    }
    assert_true(at > 2);
}

static bool crypto_has_none;

static void *crypto_malloc(size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return crypto_has_none ? NULL : malloc(n);
}

static void *crypto_realloc(void *p, size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return crypto_has_none ? NULL : realloc(p, n);
}

static void crypto_free(void *p, const char *file, int line)
{
    (void)file, (void)line;
    free(p);
}

/* A digest needs memory of its own: without it there is no fingerprint, and not a wrong one. */
static void no_memory_for_a_digest_is_told(void **state)
{
    static const char *const payloads[] = {"{\"a\":1}", "no json"};

    (void)state;
    for (size_t i = 0; i < COUNT(payloads); i++) {
        struct semel_fp fp = {.kind = 'x'};
        struct semel_error err = {0};
        crypto_has_none = true;
        const semel_status status = semel__fp_compute(semel__str(payloads[i]), &fp, &err);
        crypto_has_none = false;
        assert_int_equal(status, SEMEL_RETRY);
        assert_string_equal(err.text, "out of memory");
    }
}

int main(void)
{
    if (CRYPTO_set_mem_functions(crypto_malloc, crypto_realloc, crypto_free) != 1)
        return 1; /* before anything else asks libcrypto for memory */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_fingerprinted_in_its_canonical_form),
        cmocka_unit_test(other_bytes_are_fingerprinted_as_they_are),
        cmocka_unit_test(white_space_member_order_and_spelling_make_no_conflict),
        cmocka_unit_test(another_value_is_another_payload),
        cmocka_unit_test(numbers_that_are_not_exact_are_compared_by_their_bytes),
        cmocka_unit_test(what_only_looks_like_json_is_compared_by_its_bytes),
        cmocka_unit_test(nothing_at_all_has_a_fingerprint),
        cmocka_unit_test(bytes_behind_a_nul_count),
        cmocka_unit_test(a_parsed_payload_has_the_same_fingerprint),
        cmocka_unit_test(only_equal_kinds_are_compared),
        cmocka_unit_test(a_prefix_of_a_fingerprint_is_another_one),
        cmocka_unit_test(a_fingerprint_comes_back_as_it_was_stored),
        cmocka_unit_test(no_fingerprint_is_stored_as_nothing),
        cmocka_unit_test(what_is_not_one_of_ours_is_not_read),
        cmocka_unit_test(a_step_key_is_the_same_for_ever),
        cmocka_unit_test(parts_that_run_together_have_different_keys),
        cmocka_unit_test(a_nul_inside_a_part_counts),
        cmocka_unit_test(a_fresh_message_has_neither_version_nor_time),
        cmocka_unit_test(no_memory_is_told_and_nothing_is_given),
        cmocka_unit_test(no_memory_for_a_digest_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
