/* SPDX-License-Identifier: MIT
 *
 * test_policy.c: the defaults of a route, what is refused and how, and the replay horizon.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "core/policy.h"

#define SECOND INT64_C(1000000)
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)

static struct semel_policy policy_of(void)
{
    struct semel_policy policy;

    semel__policy_init(&policy, SEMEL_STR("billing"));
    return policy;
}

static void assert_refused(const struct semel_policy *policy, const char *word, const char *value)
{
    struct semel_error err = {0};

    assert_int_equal(semel__policy_check(policy, &err), SEMEL_INVALID);
    assert_int_equal(err.status, SEMEL_INVALID);
    if (strstr(err.text, word) == NULL || (value != NULL && strstr(err.text, value) == NULL))
        fail_msg("\"%s\" does not name %s and %s", err.text, word, value != NULL ? value : "nothing");
}

static void the_defaults_are_valid(void **state)
{
    struct semel_policy policy = policy_of();
    struct semel_error err;

    (void)state;
    assert_int_equal(semel__policy_check(&policy, &err), SEMEL_OK);
    assert_str(policy.consumer, "billing");
    assert_int_equal(policy.retry_max, 8);
    assert_int_equal(policy.permanent_max, 1);
    assert_int_equal(policy.retry_first_us, SECOND);
    assert_int_equal(policy.retry_ceiling_us, 600 * SECOND);
    assert_int_equal(policy.first_version, 1);
    assert_int_equal(policy.keep, SEMEL_KEEP_UNFINISHED);
    assert_int_equal(policy.effect, SEMEL_EFFECT_ATOMIC);
    assert_int_equal(policy.order, SEMEL_ORDER_NONE);
    assert_int_equal(policy.on_gap, SEMEL_GAP_DEAD);
    assert_int_equal(policy.business_retention_us, SEMEL_NONE); /* I10: for ever */
    assert_int_equal(policy.retention_us, 45 * DAY);
    assert_false(policy.one_source);
}

static void a_bad_consumer_is_named(void **state)
{
    struct semel_policy policy = policy_of();
    char long_name[256];

    (void)state;
    policy.consumer = (struct semel_str){0};
    assert_refused(&policy, "consumer", NULL);
    policy.consumer = SEMEL_STR("");
    assert_refused(&policy, "consumer", NULL);
    policy.consumer = SEMEL_STR("a\0b");
    assert_refused(&policy, "consumer", NULL);
    policy.consumer = SEMEL_STR("\xff");
    assert_refused(&policy, "consumer", NULL);
    memset(long_name, 'c', sizeof long_name);
    policy.consumer = (struct semel_str){long_name, 256};
    assert_refused(&policy, "consumer", "256");
    policy.consumer.n = 255;
    assert_int_equal(semel__policy_check(&policy, NULL), SEMEL_OK);
}

/* I6: nothing retries for ever, and nothing never. */
static void a_bad_number_of_attempts_is_named(void **state)
{
    struct semel_policy policy = policy_of();

    (void)state;
    policy.retry_max = 0;
    assert_refused(&policy, "retry max", "0");
    policy.retry_max = 1001;
    assert_refused(&policy, "retry max", "1001");
    policy = policy_of();
    policy.permanent_max = 0;
    assert_refused(&policy, "permanent max", "0");
    policy.permanent_max = -3;
    assert_refused(&policy, "permanent max", "-3");
}

static void a_bad_time_is_named(void **state)
{
    static const struct {
        size_t offset;
        const char *name;
        int64_t low, high;
    } times[] = {
        {offsetof(struct semel_policy, retry_first_us), "retry first", 999, DAY + 1},
        {offsetof(struct semel_policy, retry_ceiling_us), "retry ceiling", SECOND - 1, 30 * DAY + 1},
        {offsetof(struct semel_policy, lease_us), "lease", 999, DAY + 1},
        {offsetof(struct semel_policy, gap_timeout_us), "gap timeout", 999, 30 * DAY + 1},
        {offsetof(struct semel_policy, retention_us), "retention", HOUR - 1, INT64_MAX},
        {offsetof(struct semel_policy, parked_key_max), "parked per key", 0, 100001},
        {offsetof(struct semel_policy, parked_consumer_max), "parked per route", 0, 1000001},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(times); i++) {
        const int64_t bad[] = {times[i].low, times[i].high, -1, SEMEL_NONE};
        for (size_t k = 0; k < COUNT(bad); k++) {
            struct semel_policy policy = policy_of();
            char shown[32];
            memcpy((char *)&policy + times[i].offset, &bad[k], sizeof bad[k]);
            snprintf(shown, sizeof shown, "is %lld;", (long long)bad[k]);
            assert_refused(&policy, times[i].name, shown);
        }
    }
}

static void a_bad_payload_limit_is_named(void **state)
{
    struct semel_policy policy = policy_of();

    (void)state;
    policy.payload_max = 0;
    assert_refused(&policy, "payload limit", "0");
    policy.payload_max = ((size_t)64 << 20) + 1;
    assert_refused(&policy, "payload limit", "67108865");
    policy.payload_max = SIZE_MAX;
    assert_refused(&policy, "payload limit", NULL);
    policy.payload_max = (size_t)64 << 20;
    assert_int_equal(semel__policy_check(&policy, NULL), SEMEL_OK);
}

static void a_bad_first_version_is_named(void **state)
{
    struct semel_policy policy = policy_of();

    (void)state;
    policy.first_version = -1;
    assert_refused(&policy, "first version", "-1");
    policy.first_version = 0;
    assert_int_equal(semel__policy_check(&policy, NULL), SEMEL_OK);
    policy.first_version = SEMEL_FIRST_VERSION_ANY;
    assert_int_equal(semel__policy_check(&policy, NULL), SEMEL_OK);
}

/* I13: what is parked must be run from the store. */
static void an_ordered_route_must_keep_payloads(void **state)
{
    struct semel_policy policy = policy_of();

    (void)state;
    policy.keep = SEMEL_KEEP_NEVER;
    assert_int_equal(semel__policy_check(&policy, NULL), SEMEL_OK);
    policy.order = SEMEL_ORDER_ARRIVAL;
    assert_refused(&policy, "keep", "unfinished");
    policy.order = SEMEL_ORDER_VERSION;
    assert_refused(&policy, "keep", "always");
    policy.keep = SEMEL_KEEP_ALWAYS;
    assert_int_equal(semel__policy_check(&policy, NULL), SEMEL_OK);
}

/* I7: what is recovered must be run from the store. */
static void a_route_with_outside_effects_must_keep_payloads(void **state)
{
    struct semel_policy policy = policy_of();

    (void)state;
    policy.keep = SEMEL_KEEP_NEVER;
    policy.effect = SEMEL_EFFECT_OUTSIDE;
    assert_refused(&policy, "outside", "keep");
    policy.effect = SEMEL_EFFECT_KEYED;
    assert_refused(&policy, "outside", "keep");
}

/* ---- the horizon: I18 --------------------------------------------------------------------------------- */

static void every_part_of_the_horizon_counts(void **state)
{
    const struct semel_horizon horizon = {.broker_us = 7 * DAY,
                                          .outbox_lag_us = DAY,
                                          .outage_us = 2 * DAY,
                                          .dead_letter_us = 14 * DAY,
                                          .margin_us = HOUR};

    (void)state;
    assert_int_equal(semel__horizon_us(&horizon), 24 * DAY + HOUR);
}

static void the_horizon_is_never_below_one_hour(void **state)
{
    struct semel_horizon horizon = {0};

    (void)state;
    assert_int_equal(semel__horizon_us(&horizon), HOUR);
    horizon.broker_us = 5 * SECOND;
    assert_int_equal(semel__horizon_us(&horizon), HOUR);
    horizon.broker_us = -DAY;
    horizon.outage_us = 2 * HOUR;
    assert_int_equal(semel__horizon_us(&horizon), 2 * HOUR); /* a negative part takes nothing away */
}

static void the_legal_minimum_is_a_floor_and_not_a_part(void **state)
{
    struct semel_horizon horizon = {.broker_us = 7 * DAY, .legal_us = 30 * DAY};

    (void)state;
    assert_int_equal(semel__horizon_us(&horizon), 30 * DAY);
    horizon.broker_us = 40 * DAY;
    assert_int_equal(semel__horizon_us(&horizon), 40 * DAY);
}

static void a_topic_that_keeps_for_ever_does_not_overflow(void **state)
{
    const struct semel_horizon horizon = {.broker_us = INT64_MAX, .outage_us = INT64_MAX, .margin_us = 1};
    struct semel_error err;

    (void)state;
    assert_true(semel__horizon_us(&horizon) > 36500 * DAY);
    assert_int_equal(semel__retention_check(36500 * DAY, &horizon, &err), SEMEL_INVALID);
}

static void a_retention_below_the_horizon_is_refused_with_the_figure_that_would_do(void **state)
{
    const struct semel_horizon horizon = {.broker_us = 7 * DAY, .outage_us = DAY};
    struct semel_error err;

    (void)state;
    assert_int_equal(semel__retention_check(8 * DAY, &horizon, &err), SEMEL_OK);
    assert_int_equal(semel__retention_check(8 * DAY - 1, &horizon, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "691200s would do"));
    assert_int_equal(semel__retention_check(0, &horizon, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "691200s would do"));
}

/* The figure that is named must really do, also where the horizon is no whole number of seconds. */
static void the_figure_that_is_named_does(void **state)
{
    const struct semel_horizon horizon = {.broker_us = 2 * HOUR + 1};
    struct semel_error err;

    (void)state;
    assert_int_equal(semel__retention_check(2 * HOUR, &horizon, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "7201s would do"));
    assert_int_equal(semel__retention_check(7201 * SECOND, &horizon, &err), SEMEL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_are_valid),
        cmocka_unit_test(a_bad_consumer_is_named),
        cmocka_unit_test(a_bad_number_of_attempts_is_named),
        cmocka_unit_test(a_bad_time_is_named),
        cmocka_unit_test(a_bad_payload_limit_is_named),
        cmocka_unit_test(a_bad_first_version_is_named),
        cmocka_unit_test(an_ordered_route_must_keep_payloads),
        cmocka_unit_test(a_route_with_outside_effects_must_keep_payloads),
        cmocka_unit_test(every_part_of_the_horizon_counts),
        cmocka_unit_test(the_horizon_is_never_below_one_hour),
        cmocka_unit_test(the_legal_minimum_is_a_floor_and_not_a_part),
        cmocka_unit_test(a_topic_that_keeps_for_ever_does_not_overflow),
        cmocka_unit_test(a_retention_below_the_horizon_is_refused_with_the_figure_that_would_do),
        cmocka_unit_test(the_figure_that_is_named_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
