/* SPDX-License-Identifier: MIT
 *
 * test_number.c: doubles as ECMAScript writes them, and which decimals survive as one.
 */
#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "unit.h"

static double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void assert_written(double value, const char *expected)
{
    char text[SEMEL_NUMBER_TEXT];
    struct semel_decimal d = semel__decimal_of_double(value);
    assert_int_equal(semel__decimal_write(&d, text), strlen(expected));
    assert_string_equal(text, expected);
}

/* RFC 8785, appendix B. */
static void doubles_are_written_as_the_table_of_rfc_8785_says(void **state)
{
    (void)state;
    static const struct {
        uint64_t bits;
        const char *text;
    } table[] = {
        {0x0000000000000000, "0"},
        {0x8000000000000000, "0"},
        {0x0000000000000001, "5e-324"},
        {0x8000000000000001, "-5e-324"},
        {0x7fefffffffffffff, "1.7976931348623157e+308"},
        {0xffefffffffffffff, "-1.7976931348623157e+308"},
        {0x4340000000000000, "9007199254740992"},
        {0xc340000000000000, "-9007199254740992"},
        {0x4430000000000000, "295147905179352830000"},
        {0x44b52d02c7e14af5, "9.999999999999997e+22"},
        {0x44b52d02c7e14af6, "1e+23"},
        {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
        {0x444b1ae4d6e2ef4e, "999999999999999700000"},
        {0x444b1ae4d6e2ef4f, "999999999999999900000"},
        {0x444b1ae4d6e2ef50, "1e+21"},
        {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
        {0x3eb0c6f7a0b5ed8d, "0.000001"},
        {0x41b3de4355555553, "333333333.3333332"},
        {0x41b3de4355555554, "333333333.33333325"},
        {0x41b3de4355555555, "333333333.3333333"},
        {0x41b3de4355555556, "333333333.3333334"},
        {0x41b3de4355555557, "333333333.33333343"},
        {0xbecbf647612f3696, "-0.0000033333333333333333"},
        {0x43143ff3c1cb0959, "1424953923781206.2"},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        assert_written(from_bits(table[i].bits), table[i].text);
}

static void a_power_of_two_has_its_shortest_decimal_above_it(void **state)
{
    (void)state;
    assert_written(0x1p-44, "5.684341886080802e-14");
    assert_written(0x1p-1022, "2.2250738585072014e-308");
    assert_written(0x1p-1074, "5e-324");
    assert_written(0x1p1023, "8.98846567431158e+307");
}

static void every_branch_of_number_to_string_is_written(void **state)
{
    (void)state;
    assert_written(1e21, "1e+21");
    assert_written(1e20, "100000000000000000000");
    assert_written(123.0, "123");
    assert_written(-123.5, "-123.5");
    assert_written(0.1, "0.1");
    assert_written(0.000001, "0.000001");
    assert_written(1e-7, "1e-7");
    assert_written(-1.5e-7, "-1.5e-7");
    assert_written(1.5e300, "1.5e+300");
}

static void what_is_written_reads_back_as_the_same_double(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 8785);
    for (int i = 0; i < 20000; i++) {
        double value = from_bits(semel__random_next(&rng));
        if (!isfinite(value))
            continue;
        char text[SEMEL_NUMBER_TEXT];
        struct semel_decimal d = semel__decimal_of_double(value);
        size_t n = semel__decimal_write(&d, text);
        assert_true(strtod(text, NULL) == value);
        struct semel_decimal back = semel__decimal_read((struct semel_str){text, n});
        assert_true(semel__decimal_exact(&back));
        assert_true(semel__decimal_to_double(&back) == value);
    }
}

static void the_shortest_is_never_longer_than_any_other_that_reads_back(void **state)
{
    (void)state;
    struct semel_random rng;
    semel__random_seed(&rng, 17);
    for (int i = 0; i < 3000; i++) {
        uint64_t bits = semel__random_next(&rng);
        if (i % 3 == 0)
            bits &= UINT64_C(0x800FFFFFFFFFFFFF) >> semel__random_below(&rng, 52); /* subnormals */
        double value = fabs(from_bits(bits));
        if (!isfinite(value) || value <= 0)
            continue;
        struct semel_decimal d = semel__decimal_of_double(value);
        char text[64];
        if (d.k > 1) {
            snprintf(text, sizeof(text), "%.*e", d.k - 2, value);
            assert_true(strtod(text, NULL) != value);
        }
    }
}

static bool exact(const char *token)
{
    struct semel_decimal d = semel__decimal_read(semel__str(token));
    return semel__decimal_exact(&d);
}

/* P56 */
static void a_number_that_does_not_survive_as_a_double_is_not_exact(void **state)
{
    (void)state;
    static const char *const survive[] = {
        "0",
        "-0",
        "0.0",
        "0e99999999999999999999",
        "1",
        "0.1",
        "1.10",
        "100e-2",
        "9007199254740991",
        "9007199254740992",
        "9007199254740994",
        "9007199254740992.0",
        "123456789012345e280",
        "1e22",
        "1e308",
        "1.7976931348623157e308",
        "5e-324",
        "2.2250738585072014e-308",
        "0.30000000000000004",
        "9223372036854775000",
        "10000000000000000000000000000000000000000",
        "0.00000000000000000000000000000000000000000001",
    };
    static const char *const lost[] = {
        "9007199254740993",
        "9007199254740993.0",
        "90071992547409930e-1",
        "0.10000000000000000001",
        "0.1000000000000000055511151231257827",
        "333333333.33333329",
        "9223372036854775807",
        "9223372036854774784",
        "1e-400",
        "4e-324",
        "6e-324",
        "1.00000000000000001",
        "2.2250738585072011e-308",
        "1e-99999999999999999999",
        "123456789.1234567891",
        "18446744073709551615",
    };
    for (size_t i = 0; i < COUNT(survive); i++)
        if (!exact(survive[i]))
            fail_msg("%s is exact", survive[i]);
    for (size_t i = 0; i < COUNT(lost); i++)
        if (exact(lost[i]))
            fail_msg("%s is not exact", lost[i]);
}

static void spellings_of_one_number_are_one_decimal(void **state)
{
    (void)state;
    static const char *const spellings[] = {
        "1200", "1200.0", "12e2", "1.2E+3", "0.0012e6", "120000e-2", "1200.00000000000000000000000000000000"};
    for (size_t i = 0; i < COUNT(spellings); i++) {
        char text[SEMEL_NUMBER_TEXT];
        struct semel_decimal d = semel__decimal_read(semel__str(spellings[i]));
        assert_true(semel__decimal_exact(&d));
        semel__decimal_write(&d, text);
        assert_string_equal(text, "1200");
    }
}

static void a_number_beyond_every_double_is_an_infinity(void **state)
{
    (void)state;
    static const char *const beyond[] = {"1e309", "1.7976931348623159e308", "1e999999999999999999999", "18e307"};
    for (size_t i = 0; i < COUNT(beyond); i++) {
        struct semel_decimal d = semel__decimal_read(semel__str(beyond[i]));
        assert_true(isinf(semel__decimal_to_double(&d)));
        assert_false(semel__decimal_exact(&d));
    }
    struct semel_decimal negative = semel__decimal_read(SEMEL_STR("-1e309"));
    assert_true(semel__decimal_to_double(&negative) < 0);
}

static void a_comma_in_the_locale_changes_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    const char *set = NULL;
    for (size_t i = 0; i < COUNT(names) && set == NULL; i++)
        set = setlocale(LC_NUMERIC, names[i]);
    if (set == NULL)
        skip();
    assert_written(1234.5, "1234.5");
    assert_true(exact("0.30000000000000004"));
    assert_false(exact("0.30000000000000001"));
    setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_are_written_as_the_table_of_rfc_8785_says),
        cmocka_unit_test(a_power_of_two_has_its_shortest_decimal_above_it),
        cmocka_unit_test(every_branch_of_number_to_string_is_written),
        cmocka_unit_test(what_is_written_reads_back_as_the_same_double),
        cmocka_unit_test(the_shortest_is_never_longer_than_any_other_that_reads_back),
        cmocka_unit_test(a_number_that_does_not_survive_as_a_double_is_not_exact),
        cmocka_unit_test(spellings_of_one_number_are_one_decimal),
        cmocka_unit_test(a_number_beyond_every_double_is_an_infinity),
        cmocka_unit_test(a_comma_in_the_locale_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
