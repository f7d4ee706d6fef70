/* SPDX-License-Identifier: MIT
 *
 * test_ids.c: the time inside an id is found where it is, and nowhere else.
 */
#include "base/digest.h"
#include "base/ids.h"
#include "unit.h"

#define DAY INT64_C(86400000000)
#define NOW INT64_C(1800000000000000) /* 2027 */

/* With ULIDs, as seen from a time. */
static bool told(struct semel_str id, int64_t now_us, int64_t *ret_us)
{
    return semel__id_time(id, true, now_us, ret_us);
}

static void a_uuid7_tells_its_time(void **state)
{
    (void)state;
    int64_t us;
    /* RFC 9562, appendix A.6: 2022-02-22T14:22:22-05:00. */
    assert_true(told(SEMEL_STR("017F22E2-79B0-7CC3-98C4-DC0C0C07398F"), NOW, &us));
    assert_true(us == INT64_C(1645557742000000));
    assert_true(told(SEMEL_STR("017f22e2-79b0-7cc3-b8c4-dc0c0c07398f"), NOW, &us));
    assert_true(us == INT64_C(1645557742000000));
    assert_true(semel__id_time(SEMEL_STR("017f22e2-79b0-7cc3-b8c4-dc0c0c07398f"), false, NOW, &us));
    assert_true(told(SEMEL_STR("ffffffff-ffff-7fff-bfff-ffffffffffff"), INT64_MAX, &us));
    assert_true(us == INT64_C(281474976710655000));
}

static void a_ulid_tells_its_time(void **state)
{
    (void)state;
    int64_t us;
    /* The example of the ULID specification. */
    assert_true(told(SEMEL_STR("01ARZ3NDEKTSV4RRFFQ69G5FAV"), NOW, &us));
    assert_true(us == INT64_C(1469922850259000));
    assert_true(told(SEMEL_STR("01arz3ndektsv4rrffq69g5fav"), NOW, &us));
    assert_true(us == INT64_C(1469922850259000));
    assert_true(told(SEMEL_STR("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), INT64_MAX, &us));
    assert_true(us == INT64_C(281474976710655000));
}

/* I18 A11 P82: nothing but its form tells a ULID, and a number may have it. */
static void a_ulid_counts_only_where_it_is_asked_for(void **state)
{
    (void)state;
    int64_t us = 7;
    assert_false(semel__id_time(SEMEL_STR("01ARZ3NDEKTSV4RRFFQ69G5FAV"), false, NOW, &us));
    assert_int_equal(us, 7);
}

/* I18 A11 P82: a number of 26 digits was taken for a ULID of 1970. */
static void a_time_counts_from_2010_to_tomorrow(void **state)
{
    (void)state;
    const int64_t made = INT64_C(0x01890a5dac96) * 1000;
    const struct semel_str id = SEMEL_STR("01890a5d-ac96-774b-bcce-b302099a8057");
    int64_t us = 7;
    assert_false(told(SEMEL_STR("00000000000000000000012345"), NOW, &us));
    assert_false(told(SEMEL_STR("00000000-0000-7000-8000-000000000000"), NOW, &us));
    assert_false(told(SEMEL_STR("0125e72e-77ff-7000-8000-000000000000"), NOW, &us)); /* the last of 2009 */
    assert_int_equal(us, 7);
    assert_true(told(SEMEL_STR("0125e72e-7800-7000-8000-000000000000"), NOW, &us));
    assert_true(us == INT64_C(1262304000000000));
    assert_true(told(SEMEL_STR("014QKJWY000000000000000000"), NOW, &us));
    assert_true(us == INT64_C(1262304000000000));
    assert_true(told(id, made - DAY, &us));
    assert_true(us == made);
    us = 7;
    assert_false(told(id, made - DAY - 1000, &us));
    assert_int_equal(us, 7);
}

/* I18: the watermark would stand on a random number. */
static void a_random_uuid_is_not_mistaken_for_one_with_a_time(void **state)
{
    (void)state;
    static const char *const others[] = {
        "919108f7-52d1-4320-9bac-f847db4148a8", /* v4, RFC 9562 A.3 */
        "c232ab00-9414-11ec-b3c8-9f6bdeced846", /* v1 */
        "1ec9414c-232a-6b00-b3c8-9f6bdeced846", /* v6 */
        "2489e9ad-2ee2-8e00-8ec9-32d5f69181c0", /* v8 */
        "017f22e2-79b0-7cc3-18c4-dc0c0c07398f", /* v7 digits in another variant */
        "017f22e2-79b0-7cc3-c8c4-dc0c0c07398f", "00000000-0000-0000-0000-000000000000",
    };
    int64_t us = 7;
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_true(semel__uuid_valid(semel__str(others[i])));
        assert_false(told(semel__str(others[i]), NOW, &us));
    }
    assert_int_equal(us, 7);
}

static void what_only_looks_like_an_id_with_a_time_has_none(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "017f22e279b07cc398c4dc0c0c07398f",
        "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398ff",
        "017f22e2 79b0-7cc3-98c4-dc0c0c07398f",
        "01ARZ3NDEKTSV4RRFFQ69G5FA",
        "01ARZ3NDEKTSV4RRFFQ69G5FAVV",
        "81ARZ3NDEKTSV4RRFFQ69G5FAV", /* more than 128 bits */
        "01ARZ3NDEKTSV4RRFFQ69G5FAU", /* not in the alphabet */
        "01ARZ3NDEKTSV4RRFFQ69G5FAI",
        "01ARZ3NDEKTSV4RRFFQ69G5FAL",
        "O1ARZ3NDEKTSV4RRFFQ69G5FAV",
        "01ARZ3NDEK-SV4RRFFQ69G5FAV",
    };
    int64_t us = 7;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(told(semel__str(bad[i]), NOW, &us));
    assert_false(told((struct semel_str){NULL, 0}, NOW, &us));
    assert_int_equal(us, 7);
    char nul[26];
    memcpy(nul, "01ARZ3NDEKTSV4RRFFQ69G5FAV", sizeof(nul));
    nul[20] = '\0';
    assert_false(told((struct semel_str){nul, sizeof(nul)}, NOW, &us));
}

static void a_new_uuid7_is_valid_and_carries_the_time_it_was_given(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 1);
    char last[SEMEL_UUID_TEXT] = "";
    const int64_t first_us = INT64_C(1262304000000000), last_us = INT64_C(281474976710655000);
    for (int64_t now_us = first_us; now_us < last_us; now_us += last_us / 1000) {
        char id[SEMEL_UUID_TEXT];
        int64_t us;
        semel__uuid7_new(now_us, &rng, id);
        assert_int_equal(strlen(id), 36);
        assert_true(semel__uuid_valid(semel__str(id)));
        assert_true(told(semel__str(id), now_us, &us));
        assert_true(us == now_us / 1000 * 1000);
        assert_true(strcmp(last, id) < 0); /* in the order of time */
        memcpy(last, id, sizeof(last));
    }
}

static void new_uuids_of_one_instant_differ(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 1);
    char a[SEMEL_UUID_TEXT], b[SEMEL_UUID_TEXT];
    semel__uuid7_new(1, &rng, a);
    semel__uuid7_new(1, &rng, b);
    assert_string_not_equal(a, b);
}

static void the_random_bits_of_a_uuid7_are_used_to_the_last(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 1);
    bool seen[SEMEL_UUID_TEXT][256] = {{false}};
    for (int i = 0; i < 1000; i++) {
        char id[SEMEL_UUID_TEXT];
        semel__uuid7_new(1, &rng, id);
        for (size_t at = 0; at < 36; at++)
            seen[at][(unsigned char)id[at]] = true;
    }
    for (size_t at = 15; at < 36; at++) {
        int kinds = 0;
        for (size_t c = 0; c < 256; c++)
            kinds += seen[at][c];
        assert_int_equal(kinds, at == 18 || at == 23 ? 1 : at == 19 ? 4 : 16);
    }
}

static void a_time_before_1970_becomes_the_first_instant(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 1);
    char id[SEMEL_UUID_TEXT];
    semel__uuid7_new(SEMEL_NONE, &rng, id);
    assert_memory_equal(id, "00000000-0000-7", 15);
}

static void assert_key(const char *id, const char *hex)
{
    unsigned char room[SEMEL_UUID_KEY];
    char text[2 * SEMEL_UUID_KEY + 1];
    struct semel_str key = semel__id_key(semel__str(id), room);
    if (hex == NULL) {
        assert_ptr_equal(key.p, id);
        assert_int_equal(key.n, strlen(id));
        return;
    }
    assert_int_equal(key.n, SEMEL_UUID_KEY);
    semel__hex((const unsigned char *)key.p, key.n, text);
    assert_string_equal(text, hex);
}

/* I1: two ids are one key only if they are the same bytes, so a UUID in capitals is another id. */
static void a_uuid_in_lower_case_is_a_key_of_17_bytes_and_any_other_id_is_itself(void **state)
{
    (void)state;
    assert_key("018f2d2e-9abc-7def-8123-456789abcdef", "00018f2d2e9abc7def8123456789abcdef");
    assert_key("00000000-0000-0000-0000-000000000000", "0000000000000000000000000000000000");
    assert_key("018F2D2E-9abc-7def-8123-456789abcdef", NULL);
    assert_key("018f2d2e-9abc-7def-8123-456789abcdeg", NULL);
    assert_key("018f2d2e9abc7def8123456789abcdef", NULL);
    assert_key("018f2d2e-9abc-7def-8123-456789abcdef0", NULL);
    assert_key("-18f2d2e-9abc-7def-8123-456789abcdef", NULL);
    assert_key("evt-1", NULL);
    assert_key("", NULL);
    assert_int_equal(semel__id_key_time(SEMEL_STR("00000000-000f-7000-8000-000000000000")), 15000);
    assert_int_equal(semel__id_key_time(SEMEL_STR("00000000-000F-7000-8000-000000000000")), SEMEL_NONE);
    assert_int_equal(semel__id_key_time(SEMEL_STR("00000000-000f-4000-8000-000000000000")), SEMEL_NONE);
    assert_int_equal(semel__id_key_time(SEMEL_STR("00000000-000f-7000-c000-000000000000")), SEMEL_NONE);
}

static bool is_upper_digit(char c)
{
    return c >= 'A' && c <= 'F';
}

/* Every byte at every place. */
static void a_uuid_is_hexadecimal_digits_and_dashes_at_their_places(void **state)
{
    static const char uuid[] = "018f2d2e-9abc-7def-8123-456789abcdef";
    (void)state;
    for (size_t at = 0; at < sizeof uuid - 1; at++)
        for (int byte = 0; byte < 256; byte++) {
            char text[sizeof uuid];
            unsigned char out[SEMEL_UUID_KEY], wanted[SEMEL_UUID_KEY] = {0};
            size_t n = 2;
            memcpy(text, uuid, sizeof uuid);
            text[at] = (char)byte;
            const struct semel_str id = {text, sizeof uuid - 1};
            const bool valid = uuid[at] == '-' ? byte == '-' : semel__hex_value((char)byte) >= 0;
            assert_int_equal(semel__uuid_valid(id), valid);
            const struct semel_str key = semel__id_key(id, out);
            if (!valid || is_upper_digit((char)byte)) {
                assert_ptr_equal(key.p, text);
                continue;
            }
            for (size_t i = 0; i < id.n; i++)
                if (text[i] != '-') {
                    wanted[n / 2] = (unsigned char)(wanted[n / 2] << 4 | semel__hex_value(text[i]));
                    n++;
                }
            assert_int_equal(key.n, SEMEL_UUID_KEY);
            assert_memory_equal(key.p, wanted, SEMEL_UUID_KEY);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uuid7_tells_its_time),
        cmocka_unit_test(a_ulid_tells_its_time),
        cmocka_unit_test(a_ulid_counts_only_where_it_is_asked_for),
        cmocka_unit_test(a_time_counts_from_2010_to_tomorrow),
        cmocka_unit_test(a_random_uuid_is_not_mistaken_for_one_with_a_time),
        cmocka_unit_test(what_only_looks_like_an_id_with_a_time_has_none),
        cmocka_unit_test(a_new_uuid7_is_valid_and_carries_the_time_it_was_given),
        cmocka_unit_test(new_uuids_of_one_instant_differ),
        cmocka_unit_test(the_random_bits_of_a_uuid7_are_used_to_the_last),
        cmocka_unit_test(a_time_before_1970_becomes_the_first_instant),
        cmocka_unit_test(a_uuid_in_lower_case_is_a_key_of_17_bytes_and_any_other_id_is_itself),
        cmocka_unit_test(a_uuid_is_hexadecimal_digits_and_dashes_at_their_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
