/* SPDX-License-Identifier: MIT
 *
 * test_clock.c: RFC 3339 times, to the microsecond.
 */
#include "base/clock.h"
#include "unit.h"

static void rfc_3339_times_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t us;
    } cases[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"1985-04-12T23:20:50.52Z", INT64_C(482196050520000)}, /* the RFC's own examples, section 5.8 */
        {"1996-12-19T16:39:57-08:00", INT64_C(851042397000000)},
        {"1990-12-31T23:59:60Z", INT64_C(662687999999999)},
        {"1990-12-31T15:59:60-08:00", INT64_C(662687999999999)},
        {"2000-02-29T00:00:00Z", INT64_C(951782400000000)},
        {"2024-12-31t23:59:59.9999999z", INT64_C(1735689599999999)}, /* cut, not rounded */
        {"2026-11-15T19:38:00-00:00", INT64_C(1794771480000000)},
        {"1970-01-01T05:45:00+05:45", 0},
        {"1969-12-31T16:00:00-08:00", 0},
        {"2026-11-15T19:38:00.1234560000000000000000000000000000000001Z", INT64_C(1794771480123456)},
        {"9999-12-31T23:59:59.999999Z", INT64_C(253402300799999999)},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t us = -1;
        if (!semel__time_parse(semel__str(cases[i].text), &us) || us != cases[i].us)
            fail_msg("%s: %lld", cases[i].text, (long long)us);
    }
}

static void whatever_is_not_rfc_3339_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "2026-11-15",
        "2026-11-15T19:38:00", /* no zone is no time */
        "2026-11-15 19:38:00Z",
        "2026-11-15T19:38Z",
        "2026-11-15T19:38:00.Z",
        "2026-11-15T19:38:00,5Z",
        "2026-11-15T19:38:00+0100",
        "2026-11-15T19:38:00+01",
        "2026-11-15T19:38:00+24:00",
        "2026-11-15T19:38:00+01:60",
        "2026-11-15T19:38:00 Z",
        "2026-11-15T19:38:00Zx",
        " 2026-11-15T19:38:00Z",
        "2026-11-15T24:00:00Z",
        "2026-11-15T19:60:00Z",
        "2026-11-15T19:38:61Z",
        "2026-11-15T19:38:60Z", /* no leap second is possible here */
        "2026-13-15T19:38:00Z",
        "2026-00-15T19:38:00Z",
        "2026-11-00T19:38:00Z",
        "2026-11-31T19:38:00Z",
        "2025-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "26-11-15T19:38:00Z",
        "+2026-11-15T19:38:00Z",
        "12026-11-15T19:38:00Z",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "0000-01-01T00:00:00Z",
        "1794771480",
        "Sun, 15 Nov 2026 19:38:00 GMT",
    };
    int64_t us = 7;
    for (size_t i = 0; i < COUNT(bad); i++)
        if (semel__time_parse(semel__str(bad[i]), &us))
            fail_msg("%s", bad[i]);
    assert_false(semel__time_parse(SEMEL_STR("1970-01-01T00:00:00Z\0"), &us));
    assert_false(semel__time_parse((struct semel_str){NULL, 0}, &us));
    assert_int_equal(us, 7);
}

static void every_cut_of_a_time_is_refused(void **state)
{
    (void)state;
    static const char whole[] = "2026-11-15T19:38:00.5+01:00";
    for (size_t n = 0; n < sizeof(whole) - 1; n++) {
        int64_t us;
        assert_false(semel__time_parse((struct semel_str){whole, n}, &us));
    }
}

static void a_time_that_was_written_is_read_again(void **state)
{
    (void)state;
    for (int64_t us = 0; us < INT64_C(253402300800000000); us += INT64_C(86399123456789)) {
        char text[SEMEL_TIME_TEXT];
        int64_t back;
        semel__time_format(us, text);
        assert_true(semel__time_parse(semel__str(text), &back));
        assert_true(back == us);
    }
}

static void every_int64_has_a_text(void **state)
{
    (void)state;
    static const struct {
        int64_t us;
        const char *text;
    } cases[] = {
        {INT64_C(1794771480000000), "2026-11-15T19:38:00.000000Z"},
        {0, "1970-01-01T00:00:00.000000Z"},
        {-1, "1969-12-31T23:59:59.999999Z"},
        {INT64_MAX, "294247-01-10T04:00:54.775807Z"},
        {SEMEL_NONE + 1, "-290308-12-21T19:59:05.224193Z"},
        {SEMEL_NONE, "none"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[SEMEL_TIME_TEXT];
        semel__time_format(cases[i].us, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void adding_times_stops_at_the_ends(void **state)
{
    (void)state;
    assert_int_equal(semel__time_add(1, 2), 3);
    assert_true(semel__time_add(INT64_MAX, 1) == INT64_MAX);
    assert_true(semel__time_add(INT64_MAX - 1, 1) == INT64_MAX);
    assert_true(semel__time_add(INT64_MIN + 1, -1) == INT64_MIN + 1);
    assert_true(semel__time_add(INT64_MIN + 1, -2) == INT64_MIN + 1);
    assert_true(semel__time_add(INT64_MIN, INT64_MIN) == INT64_MIN + 1);
    assert_true(semel__time_add(INT64_MIN, 0) != SEMEL_NONE);
    assert_true(semel__time_add(INT64_MAX, INT64_MIN + 1) == 0);
}

static int64_t stopped_at_42(void *ctx)
{
    return *(int64_t *)ctx;
}

/* P45 */
static void a_clock_is_an_argument(void **state)
{
    (void)state;
    int64_t now_us = 42;
    struct semel_clock stopped = {stopped_at_42, &now_us};
    assert_int_equal(semel__now(&stopped), 42);
    now_us = 43;
    assert_int_equal(semel__now(&stopped), 43);
    assert_true(semel__now(&semel__clock_real) > INT64_C(1700000000000000));
}

static void a_wait_is_rounded_up_to_whole_seconds(void **state)
{
    (void)state;
    assert_int_equal(semel__whole_seconds(0), 0);
    assert_int_equal(semel__whole_seconds(1), 1);
    assert_int_equal(semel__whole_seconds(1000000), 1);
    assert_int_equal(semel__whole_seconds(1000001), 2);
    assert_int_equal(semel__whole_seconds(INT64_C(1800) * 1000000), 1800);
    assert_true(semel__whole_seconds(INT64_MAX) == INT64_MAX / 1000000 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rfc_3339_times_are_read),        cmocka_unit_test(whatever_is_not_rfc_3339_is_refused),
        cmocka_unit_test(every_cut_of_a_time_is_refused), cmocka_unit_test(a_time_that_was_written_is_read_again),
        cmocka_unit_test(every_int64_has_a_text),         cmocka_unit_test(adding_times_stops_at_the_ends),
        cmocka_unit_test(a_clock_is_an_argument),         cmocka_unit_test(a_wait_is_rounded_up_to_whole_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
