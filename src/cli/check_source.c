/* SPDX-License-Identifier: MIT
 *
 * check_source.c: are the topics and queues there, and what do their brokers say of them? Each kind of broker asks its
 * own questions (broker/kind.h); here its findings are told. See online.h.
 */
#include "cli/online.h"

struct asking {
    struct semel_inspector base;
    const struct online_asker *asker;
};

static const struct online_asker *asker_of(const struct semel_inspector *inspector)
{
    return ((const struct asking *)inspector)->asker;
}

static void asking(const struct semel_inspector *inspector, const char *question)
{
    online_ask(asker_of(inspector), question);
}

static void found(const struct semel_inspector *inspector, enum semel_finding finding, const char *question,
                  const char *text)
{
    static const enum online_result results[] = {[SEMEL_FINDING_OK] = ONLINE_OK,
                                                 [SEMEL_FINDING_WARNING] = ONLINE_WARNING,
                                                 [SEMEL_FINDING_FAILED] = ONLINE_FAILED};
    online_tell(asker_of(inspector), results[finding], question, "%s", text);
}

static void keeps(const struct semel_inspector *inspector, const char *question, int64_t kept_us, const char *because)
{
    if (kept_us == SEMEL_NONE)
        online_forever(asker_of(inspector), question, because);
    else
        online_retention(asker_of(inspector), question, kept_us);
}

static void unreached(const struct semel_inspector *inspector, const char *question, semel_status status,
                      const struct semel_error *err)
{
    online_unreached(asker_of(inspector), question, status, err);
}

void online_source(struct online_asker *asker)
{
    const struct semel_route *route = online_route(asker);
    const struct semel_broker_kind *kind = route->from.kind;
    const struct asking ask = {
        .base = {.timeout_ms = ONLINE_ASK_MS,
                 .lease_us = route->policy.lease_us,
                 .retry_max = route->policy.retry_max,
                 .asking = asking,
                 .found = found,
                 .keeps = keeps,
                 .unreached = unreached},
        .asker = asker,
    };
    if (kind->inspect != NULL)
        kind->inspect(route->from.options, &ask.base);
    else if (semel__route_listens(route) == NULL) /* else producers come to us */
        online_tell(asker, ONLINE_FAILED, kind->name, "this program was built without %s", kind->name);
}
