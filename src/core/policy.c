/* SPDX-License-Identifier: MIT
 *
 * policy.c: defaults, the check of a route's policy, and the replay horizon (I18).
 */
#include "core/policy.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/row.h"

#define SECOND_US INT64_C(1000000)
#define DAY_US (INT64_C(86400) * SECOND_US)

void semel__policy_init(struct semel_policy *policy, struct semel_str consumer)
{
    *policy = (struct semel_policy){
        .consumer = consumer,
        .effect = SEMEL_EFFECT_ATOMIC,
        .order = SEMEL_ORDER_NONE,
        .first_version = 1,
        .on_gap = SEMEL_GAP_DEAD,
        .gap_timeout_us = 300 * SECOND_US,
        .retry_max = 8,
        .permanent_max = 1,
        .retry_first_us = SECOND_US,
        .retry_ceiling_us = 600 * SECOND_US,
        .lease_us = 60 * SECOND_US,
        .parked_key_max = 1000,
        .parked_consumer_max = 100000,
        .keep = SEMEL_KEEP_UNFINISHED,
        .payload_max = 1 << 20,
        .retention_us = 45 * DAY_US,
        .business_retention_us = SEMEL_NONE,
    };
}

static semel_status out_of_range(const char *name, int64_t value, int64_t low, int64_t high, struct semel_error *err)
{
    if (value >= low && value <= high)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is %lld; it must be %lld to %lld", name,
                       (long long)value, (long long)low, (long long)high);
}

semel_status semel__policy_check(const struct semel_policy *policy, struct semel_error *err)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"retry max", policy->retry_max, 1, 1000},
        {"permanent max", policy->permanent_max, 1, 1000},
        {"retry first (us)", policy->retry_first_us, 1000, DAY_US},
        {"retry ceiling (us)", policy->retry_ceiling_us, policy->retry_first_us, 30 * DAY_US},
        {"lease (us)", policy->lease_us, 1000, DAY_US},
        {"gap timeout (us)", policy->gap_timeout_us, 1000, 30 * DAY_US},
        {"parked per key", policy->parked_key_max, 1, 100000},
        {"parked per route", policy->parked_consumer_max, 1, 1000000},
        {"payload limit (bytes)", (int64_t)policy->payload_max, 1, SEMEL_PAYLOAD_HARD_MAX},
        {"retention (us)", policy->retention_us, SEMEL_HORIZON_MIN_US, INT64_C(36500) * DAY_US},
    };
    semel_status status = semel__id_check("consumer", policy->consumer, 1, err);
    for (size_t i = 0; status == SEMEL_OK && i < sizeof ranges / sizeof ranges[0]; i++)
        status = out_of_range(ranges[i].name, ranges[i].value, ranges[i].low, ranges[i].high, err);
    if (status != SEMEL_OK)
        return status;
    if (policy->first_version != SEMEL_FIRST_VERSION_ANY && policy->first_version < 0)
        return out_of_range("first version", policy->first_version, 0, INT64_MAX, err);
    if (policy->order != SEMEL_ORDER_NONE && policy->keep == SEMEL_KEEP_NEVER)
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
            "an ordered route parks messages and must keep their payload: keep `unfinished` or `always`");
    if (policy->effect != SEMEL_EFFECT_ATOMIC && policy->keep == SEMEL_KEEP_NEVER)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a route with effects outside retries from the store and must keep the payload: keep "
                           "`unfinished` or `always`");
    return SEMEL_OK;
}

int64_t semel__horizon_us(const struct semel_horizon *horizon)
{
    const int64_t parts[] = {horizon->broker_us, horizon->outbox_lag_us, horizon->outage_us, horizon->dead_letter_us,
                             horizon->margin_us};
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        sum = semel__time_add(sum, parts[i] > 0 ? parts[i] : 0);
    if (sum < horizon->legal_us)
        sum = horizon->legal_us;
    return sum < SEMEL_HORIZON_MIN_US ? SEMEL_HORIZON_MIN_US : sum;
}

semel_status semel__retention_check(int64_t retention_us, const struct semel_horizon *horizon, struct semel_error *err)
{
    int64_t need_us = semel__horizon_us(horizon);
    if (retention_us >= need_us)
        return SEMEL_OK;
    int64_t need_s = need_us / SECOND_US + (need_us % SECOND_US != 0);
    return semel__fail(
        err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
        "retention of %llds is shorter than the replay horizon: a duplicate could come back after its record "
        "was purged; %llds would do",
        (long long)(retention_us / SECOND_US), (long long)need_s);
}

bool semel__policy_lasting(const struct semel_policy *policy)
{
    return policy->timed_ids == SEMEL_TIMED_ALL || policy->order == SEMEL_ORDER_VERSION;
}

struct semel_guarantee_text semel__policy_guarantee(const struct semel_policy *policy, bool lasting)
{
    const char *label = policy->effect == SEMEL_EFFECT_ATOMIC ? "ATOMIC" : "GUARDED";
    const int64_t hour_us = DAY_US / 24, hours = policy->retention_us / hour_us;
    struct semel_guarantee_text out;
    char exact[32];
    semel__duration_format(policy->retention_us, exact, sizeof exact);
    if (lasting)
        snprintf(out.text, sizeof out.text, "%s", label);
    else if (policy->retention_us % DAY_US == 0)
        snprintf(out.text, sizeof out.text, "%s for %lld day%s", label, (long long)hours / 24, hours == 24 ? "" : "s");
    else if (policy->retention_us % hour_us == 0)
        snprintf(out.text, sizeof out.text, "%s for %lld hour%s", label, (long long)hours, hours == 1 ? "" : "s");
    else
        snprintf(out.text, sizeof out.text, "%s for %s", label, exact);
    return out;
}
