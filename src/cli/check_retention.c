/* SPDX-License-Identifier: MIT
 *
 * check_retention.c: what a broker keeps against what the settings say. See online.h.
 *
 * A broker that keeps longer than `horizon.broker` makes the horizon longer, and `keep.completed` must cover it (I18).
 * One that keeps for ever is covered by no retention: then something else must know a copy.
 */
#include "cli/online.h"
#include "core/consumer.h"

#define HOUR_US (INT64_C(3600) * 1000000)
#define SPAN 32

static void span(int64_t us, char out[SPAN])
{
    if (us == SEMEL_NONE)
        snprintf(out, SPAN, "for ever");
    else
        semel__duration_format(us, out, SPAN);
}

/* Without odd microseconds. */
static int64_t whole_hours(int64_t us)
{
    return us % HOUR_US == 0 || us > INT64_MAX - HOUR_US ? us : (us / HOUR_US + 1) * HOUR_US;
}

void online_unreached(const struct online_asker *asker, const char *question, semel_status status,
                      const struct semel_error *err)
{
    bool broken = status == SEMEL_INVALID || err->cls == SEMEL_CLASS_BROKEN;
    online_tell(asker, ONLINE_FAILED, question, "%s%s", broken ? "" : "cannot be reached: ", err->text);
}

void online_forever(const struct online_asker *asker, const char *question, const char *because)
{
    const struct semel_route *route = online_route(asker);
    const char *lasting = semel__route_lasting(route);
    if (route->horizon.broker_us == SEMEL_NONE)
        online_tell(asker, ONLINE_OK, question, "it keeps for ever (%s), as horizon.broker says", because);
    else if (lasting != NULL)
        online_tell(asker, ONLINE_WARNING, question, "it keeps for ever (%s); say horizon.broker: forever. %s%s",
                    because, "The route bears it: ", lasting);
    else
        online_tell(asker, ONLINE_FAILED, question,
                    "it keeps for ever (%s), and no keep.completed covers that; the route needs versions, a business "
                    "key kept for ever, a `time` rule or timed_ids, and horizon.broker: forever",
                    because);
}

/* I18 */
void online_retention(const struct online_asker *asker, const char *question, int64_t kept_us)
{
    const struct semel_route *route = online_route(asker);
    struct semel_horizon horizon = route->horizon;
    char kept[SPAN], said[SPAN], retention[SPAN], enough[SPAN];
    span(kept_us, kept);
    span(horizon.broker_us, said);
    span(route->policy.retention_us, retention);
    if (horizon.broker_us == SEMEL_NONE || kept_us <= horizon.broker_us) {
        online_tell(asker, ONLINE_OK, question, "it keeps %s, and horizon.broker is %s", kept, said);
        return;
    }
    horizon.broker_us = kept_us;
    span(whole_hours(semel__horizon_us(&horizon)), enough);
    if (semel__retention_check(route->policy.retention_us, &horizon, NULL) == SEMEL_OK)
        online_tell(asker, ONLINE_WARNING, question,
                    "it keeps %s, and horizon.broker is only %s; keep.completed of %s covers that too, but say "
                    "horizon.broker: %s",
                    kept, said, retention, kept);
    else
        online_tell(asker, ONLINE_FAILED, question,
                    "it keeps %s, and horizon.broker is only %s: keep.completed of %s is shorter than the horizon, so "
                    "that a duplicate could come back after its record was purged; %s would do",
                    kept, said, retention, enough);
}
