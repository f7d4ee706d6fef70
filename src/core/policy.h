/* SPDX-License-Identifier: MIT
 *
 * policy.h: the settings that the rules of the inbox use. A plain value, checked once, then only read.
 */
#ifndef SEMEL_CORE_POLICY_H
#define SEMEL_CORE_POLICY_H

#include "semel/types.h"

/* Where the effect is. ATOMIC: in the store's own transaction. OUTSIDE: elsewhere, so an expired
 * lease is `unknown`. KEYED: elsewhere, but idempotent by its step key, so it may be repeated. */
enum semel_effect { SEMEL_EFFECT_ATOMIC, SEMEL_EFFECT_OUTSIDE, SEMEL_EFFECT_KEYED };

/* What the order of a key rests on: nothing, the arrival, or the version in the message. */
enum semel_order { SEMEL_ORDER_NONE, SEMEL_ORDER_ARRIVAL, SEMEL_ORDER_VERSION };

/* What happens when a missing version does not come in time. */
enum semel_gap { SEMEL_GAP_DEAD, SEMEL_GAP_APPLY, SEMEL_GAP_ALERT };

enum semel_keep { SEMEL_KEEP_UNFINISHED, SEMEL_KEEP_ALWAYS, SEMEL_KEEP_NEVER };

/* Which ids have a time in them: those that show it by their form alone, none; UUIDv7 and ULID, all of them or some. */
enum semel_timed { SEMEL_TIMED_UUID7, SEMEL_TIMED_NONE, SEMEL_TIMED_ALL, SEMEL_TIMED_ULID };

#define SEMEL_FIRST_VERSION_ANY INT64_MIN

struct semel_policy {
    struct semel_str consumer;
    enum semel_effect effect;
    bool effect_said; /* it was set, and is not just the default: a caller that claims must have set it */
    enum semel_order order;
    int64_t first_version; /* the first version of a key, or SEMEL_FIRST_VERSION_ANY */
    enum semel_gap on_gap;
    int64_t gap_timeout_us;
    int retry_max;     /* attempts before a transient failure becomes a dead letter; >= 1 */
    int permanent_max; /* the same for a permanent failure */
    int64_t retry_first_us, retry_ceiling_us;
    int64_t lease_us;
    int64_t parked_key_max, parked_consumer_max;
    enum semel_keep keep;
    size_t payload_max;
    int64_t retention_us;          /* how long a final row is kept */
    int64_t business_retention_us; /* SEMEL_NONE: for ever */
    bool one_by_one; /* not a setting: take only one message per key at a time, because workers end in any order */
    enum semel_timed timed_ids;
    bool one_source; /* ids are unique across sources: `source` is not part of the key */
};

/* The defaults of a route named `consumer`. */
void semel__policy_init(struct semel_policy *policy, struct semel_str consumer);
/* INVALID, with the setting, its value and what would be right. */
semel_status semel__policy_check(const struct semel_policy *policy, struct semel_error *err);

/* The longest time after which an old message can still come back (I18). It is the sum of the broker's retention or
 * the replay window really used, the producers' outbox lag, the longest outage, the age of dead letters and the
 * margin, and at least the legal minimum. */
struct semel_horizon {
    int64_t broker_us, outbox_lag_us, outage_us, dead_letter_us, legal_us, margin_us;
};
#define SEMEL_HORIZON_MIN_US (INT64_C(3600) * 1000000)
int64_t semel__horizon_us(const struct semel_horizon *horizon); /* never below one hour */
/* INVALID when the retention is shorter than the horizon; err has the retention that is needed. */
semel_status semel__retention_check(int64_t retention_us, const struct semel_horizon *horizon, struct semel_error *err);

/* The label of what a consumer promises, in words: "ATOMIC", or "GUARDED for 45 days" where a copy that comes after its
 * record was purged would run again. Nothing else computes it. lasting: such a copy is recognised, because the settings
 * see to it (semel__policy_lasting) or the rules of a route do. */
struct semel_guarantee_text {
    char text[64];
};
struct semel_guarantee_text semel__policy_guarantee(const struct semel_policy *policy, bool lasting);
/* Has every message a time, or do versions distinguish an old message from a new one? */
bool semel__policy_lasting(const struct semel_policy *policy);

#endif
