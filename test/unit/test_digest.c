/* SPDX-License-Identifier: MIT
 *
 * test_digest.c: SHA-256 known answers (FIPS 180-2, appendix B; NIST's examples), those of MD5 (RFC 1321); base64,
 * strictly.
 */
#include "base/digest.h"
#include "unit.h"

static void assert_sha256(const struct semel_str *parts, size_t n, const char *expected)
{
    unsigned char digest[SEMEL_SHA256];
    char hex[2 * SEMEL_SHA256 + 1];
    assert_true(semel__sha256(parts, n, digest));
    semel__hex(digest, sizeof(digest), hex);
    assert_string_equal(hex, expected);
}

static void sha256_gives_the_known_answers(void **state)
{
    (void)state;
    struct semel_str abc = SEMEL_STR("abc");
    struct semel_str two_blocks = SEMEL_STR("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq");
    assert_sha256(&abc, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_sha256(&two_blocks, 1, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void sha256_of_a_million_a_is_the_known_answer(void **state)
{
    (void)state;
    static char a[1000];
    static struct semel_str parts[1000];
    memset(a, 'a', sizeof(a));
    for (size_t i = 0; i < COUNT(parts); i++)
        parts[i] = (struct semel_str){a, sizeof(a)};
    assert_sha256(parts, COUNT(parts), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void sha256_of_nothing_is_that_of_the_empty_string(void **state)
{
    (void)state;
    static const char expected[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    struct semel_str parts[] = {{NULL, 0}, {"", 0}};
    assert_sha256(NULL, 0, expected);
    assert_sha256(parts, 2, expected);
}

static void parts_are_hashed_one_after_the_other(void **state)
{
    (void)state;
    struct semel_str parts[] = {SEMEL_STR("a"), SEMEL_STR(""), SEMEL_STR("bc")};
    assert_sha256(parts, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* RFC 4231, cases 2, 6 and the empty ones; RFC 2202, case 2 of SHA-1. */
static void hmac_is_that_of_the_rfc(void **state)
{
    static const struct semel_str what[] = {SEMEL_STR("what do ya want "), SEMEL_STR(""), SEMEL_STR("for nothing?")};
    static const struct semel_str large = SEMEL_STR("Test Using Larger Than Block-Size Key - Hash Key First");
    unsigned char digest[SEMEL_HASH_MAX];
    char hex[2 * SEMEL_HASH_MAX + 1], key[131];

    (void)state;
    memset(key, 0xaa, sizeof key);
    assert_true(semel__hmac(SEMEL_HASH_SHA256, SEMEL_STR("Jefe"), what, COUNT(what), digest));
    semel__hex(digest, SEMEL_SHA256, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    assert_true(semel__hmac(SEMEL_HASH_SHA256, (struct semel_str){key, sizeof key}, &large, 1, digest));
    semel__hex(digest, SEMEL_SHA256, hex);
    assert_string_equal(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    assert_true(semel__hmac(SEMEL_HASH_SHA256, (struct semel_str){NULL, 0}, NULL, 0, digest));
    semel__hex(digest, SEMEL_SHA256, hex);
    assert_string_equal(hex, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
    assert_true(semel__hmac(SEMEL_HASH_SHA512, SEMEL_STR("Jefe"), what, COUNT(what), digest));
    semel__hex(digest, semel__hash_size(SEMEL_HASH_SHA512), hex);
    assert_string_equal(hex, "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"
                             "9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737");
    assert_true(semel__hmac(SEMEL_HASH_SHA512, (struct semel_str){key, sizeof key}, &large, 1, digest));
    semel__hex(digest, semel__hash_size(SEMEL_HASH_SHA512), hex);
    assert_string_equal(hex, "80b24263c7c1a3ebb71493c1dd7be8b49b46d1f41b4aeec1121b013783f8f352"
                             "6b56d037e05f2598bd0fd2215d6a1e5295e64f73f63f0aec8b915a985d786598");
    assert_true(semel__hmac(SEMEL_HASH_SHA1, SEMEL_STR("Jefe"), what, COUNT(what), digest));
    semel__hex(digest, semel__hash_size(SEMEL_HASH_SHA1), hex);
    assert_string_equal(hex, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
}

/* The test suite of RFC 1321, and lengths around the end of a block. */
static void md5_is_that_of_the_rfc(void **state)
{
    static const char *const known[][2] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"a", "0cc175b9c0f1b6a831c399e269772661"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "d174ab98d277d9f5a5611c2c9f419d9f"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    char sum[33], many[130];

    (void)state;
    for (size_t i = 0; i < COUNT(known); i++) {
        assert_true(semel__md5_hex(semel__str(known[i][0]), sum));
        assert_string_equal(sum, known[i][1]);
    }
    memset(many, 'a', sizeof many);
    assert_true(semel__md5_hex((struct semel_str){many, 55}, sum));
    assert_string_equal(sum, "ef1772b6dff9a122358552954ad0df65");
    assert_true(semel__md5_hex((struct semel_str){many, 56}, sum));
    assert_string_equal(sum, "3b0c8ac703f828b04c6c197006d17218");
    assert_true(semel__md5_hex((struct semel_str){many, 64}, sum));
    assert_string_equal(sum, "014842d480b571495a4a0363793f7367");
}

static void hexadecimal_is_in_lower_case_and_ends_with_nul(void **state)
{
    (void)state;
    char out[] = "xxxxxxxxx";
    semel__hex((const unsigned char *)"\x00\x0F\xA9\xFF", 4, out);
    assert_string_equal(out, "000fa9ff");
    semel__hex(NULL, 0, out);
    assert_string_equal(out, "");
}

static void base64_comes_back_as_it_was(void **state)
{
    static const size_t sizes[] = {0, 1, 2, 3, 4, 5, 3071, 3072, 3073, 9999};
    char bytes[9999];
    struct semel_arena arena;
    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)(i * 7);
    semel__arena_init(&arena, 1 << 20);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct semel_buf text;
        struct semel_str back;
        semel__buf_init(&text, 1 << 20);
        semel__base64_put(&text, (struct semel_str){bytes, sizes[i]});
        assert_int_equal(text.n, (sizes[i] + 2) / 3 * 4);
        assert_int_equal(semel__base64_read(semel__buf_str(&text), &arena, &back), SEMEL_BASE64_OK);
        assert_int_equal(back.n, sizes[i]);
        assert_memory_equal(back.p, bytes, sizes[i]);
        semel__buf_done(&text);
    }
    semel__arena_done(&arena);
}

static void base64_is_read_strictly(void **state)
{
    static const char *const wrong[] = {"Q",     "QQ",   "QQ=",  "QR==",     "QUJ=", " QQ=",     "QQ= ",
                                        "Q\nQ=", "====", "A===", "QQ==QQ==", "QQ=A", "-_-_QQ==", "Q\xc3\xa9="};
    struct semel_arena arena;
    struct semel_str back;
    (void)state;
    semel__arena_init(&arena, 1 << 16);
    for (size_t i = 0; i < COUNT(wrong); i++)
        if (semel__base64_read(semel__str(wrong[i]), &arena, &back) != SEMEL_BASE64_WRONG)
            fail_msg("taken: %s", wrong[i]);
    assert_int_equal(semel__base64_read(SEMEL_STR("QUI="), &arena, &back), SEMEL_BASE64_OK);
    assert_str(back, "AB");
    semel__arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_gives_the_known_answers),
        cmocka_unit_test(sha256_of_a_million_a_is_the_known_answer),
        cmocka_unit_test(sha256_of_nothing_is_that_of_the_empty_string),
        cmocka_unit_test(parts_are_hashed_one_after_the_other),
        cmocka_unit_test(hmac_is_that_of_the_rfc),
        cmocka_unit_test(md5_is_that_of_the_rfc),
        cmocka_unit_test(hexadecimal_is_in_lower_case_and_ends_with_nul),
        cmocka_unit_test(base64_comes_back_as_it_was),
        cmocka_unit_test(base64_is_read_strictly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
