/* SPDX-License-Identifier: MIT
 *
 * promise.c: what a route promises, computed from its settings: the guarantee, what its order rests on, whether its
 * memory covers the horizon (I18), and the reviewer's checklist, answered.
 *
 * The label: ATOMIC where the effect is in the transaction of the record, GUARDED where it is outside. It is bounded
 * ("ATOMIC for 45 days") when a copy that comes after its record was purged would run again: nothing says how old a
 * message is, no business key is kept for ever, and there are no versions. core/policy.h has the words.
 *
 * Invariants: the label is never better than what the settings say; what only the producers know (ids that carry their
 * time) counts when it was said. A retention below the horizon is refused, never labelled.
 */
#include <stdio.h>

#include "conf/private.h"
#include "core/consumer.h"

struct asked {
    struct conf_reader *r;
    struct semel_route *route;
    const struct conf_node *node;
};

static const char *const rests_names[] = {"none", "source", "versions"};
#define X(name, text) text,
static const char *const checklist_names[] = {SEMEL_CHECKLIST_MAP(X)};
#undef X

const char *semel__order_rests_name(enum semel_order_rests rests)
{
    return rests_names[rests];
}

const char *semel__checklist_name(enum semel_checklist item)
{
    return checklist_names[item];
}

/* ---- words --------------------------------------------------------------------------------------- */

static void put_shown(struct semel_buf *buf, struct semel_str s)
{
    char text[161];
    semel__str_show(text, sizeof(text), s);
    semel__buf_addf(buf, "%s%s", text, s.n >= sizeof(text) ? "..." : "");
}

/* What the file says there; never what a variable or a secret file holds. */
void semel__conf_put_said(struct semel_buf *buf, const struct conf_node *node, const char *path)
{
    const struct conf_node *found = semel__conf_find(node, path);
    if (found->shape == CONF_SCALAR)
        put_shown(buf, found->said);
    for (const struct conf_node *each = found->shape == CONF_LIST ? found->first : NULL; each != NULL;
         each = each->next) {
        put_shown(buf, each->said);
        semel__buf_addz(buf, each->next != NULL ? " " : "");
    }
}

static void put_time(struct semel_buf *buf, int64_t us)
{
    char text[32];
    semel__duration_format(us, text, sizeof(text));
    semel__buf_addz(buf, us == SEMEL_NONE ? "for ever" : text);
}

static void keep(const struct asked *a, struct semel_buf *buf, struct semel_str *ret)
{
    a->r->failed |= buf->failed || !semel__arena_copy(&a->r->owned->arena, semel__buf_str(buf), ret);
    semel__buf_done(buf);
}

/* ---- the horizon --------------------------------------------------------------------------------- */

static bool age_known(const struct semel_route *route)
{
    return route->rules.timed || route->rules.time.kind != SEMEL_RULE_DEFAULT;
}

const char *semel__route_lasting(const struct semel_route *route)
{
    if (age_known(route)) /* the first and the second are what the stored settings tell, too */
        return "the age of every message is known, so that one from before the last purge is quarantined";
    if (route->policy.order == SEMEL_ORDER_VERSION)
        return "versions tell an old message from a new one";
    if (route->rules.n_business > 0 && route->policy.business_retention_us == SEMEL_NONE)
        return "business keys are kept for ever";
    return NULL;
}

static void put_horizon(struct semel_buf *buf, const struct semel_horizon *horizon)
{
    const struct {
        const char *name;
        int64_t us;
    } parts[] = {
        {"broker", horizon->broker_us}, {"outbox", horizon->outbox_lag_us},
        {"outage", horizon->outage_us}, {"dead letters", horizon->dead_letter_us},
        {"margin", horizon->margin_us},
    };
    bool any = false;
    for (size_t i = 0; i < CONF_COUNT(parts); i++) {
        if (parts[i].us == 0)
            continue;
        semel__buf_addf(buf, "%s%s ", any ? " + " : "", parts[i].name);
        put_time(buf, parts[i].us);
        any = true;
    }
    if (horizon->legal_us > 0) {
        semel__buf_addz(buf, any ? ", at least " : "at least ");
        put_time(buf, horizon->legal_us);
    }
    if (!any && horizon->legal_us == 0)
        semel__buf_addz(buf, "at least 1h");
}

/* The figure that would do, without odd microseconds. */
static void put_enough(struct semel_buf *buf, int64_t need_us)
{
    const int64_t hour = SEMEL_HORIZON_MIN_US;
    put_time(buf, need_us % hour == 0 ? need_us : (need_us / hour + 1) * hour);
}

static void refuse_retention(const struct asked *a)
{
    struct semel_buf buf;
    const struct conf_node *place = semel__conf_find(a->node, "keep.completed");
    semel__buf_init(&buf, 1024);
    semel__buf_addf(&buf, "%s.keep.completed is ", a->r->path);
    put_time(&buf, a->route->policy.retention_us);
    semel__buf_addz(&buf, ", shorter than the horizon (");
    put_horizon(&buf, &a->route->horizon);
    semel__buf_addz(&buf, "): a duplicate could come back after its record was purged; ");
    put_enough(&buf, semel__horizon_us(&a->route->horizon));
    semel__buf_addz(&buf, " would do");
    semel__buf_add(&buf, "", 1);
    if (!semel__str_eqz(place->key, "completed"))
        place = semel__conf_find(a->node, "horizon");
    a->r->failed |= buf.failed;
    if (!buf.failed)
        semel__conf_wrong_at(a->r, semel__conf_place(a->r, place), "keep.completed", "%s", buf.p);
    semel__buf_done(&buf);
}

/* I18. A source that keeps for ever has no figure that would do. */
static void check_horizon(const struct asked *a)
{
    struct semel_route *route = a->route;
    route->promise.horizon_us = SEMEL_NONE;
    if (route->horizon.broker_us == SEMEL_NONE) {
        if (semel__route_lasting(route) == NULL)
            semel__conf_wrong_at(
                a->r, semel__conf_place(a->r, semel__conf_find(a->node, "horizon.broker")), "horizon.broker",
                "%s.horizon.broker is forever, and no retention covers that; the route needs versions, "
                "a business key kept for ever, a `time` rule or timed_ids",
                a->r->path);
        return;
    }
    route->promise.horizon_us = semel__horizon_us(&route->horizon);
    if (semel__retention_check(route->policy.retention_us, &route->horizon, NULL) != SEMEL_OK)
        refuse_retention(a);
}

/* ---- the label and the order --------------------------------------------------------------------- */

const char *semel__gateway_guarantee(const struct semel_conf_gateway *gateway)
{
    return gateway->guarantee == SEMEL_GUARANTEE_ATOMIC ? "ATOMIC" : "GUARDED";
}

static void label(const struct asked *a)
{
    struct semel_promise *promise = &a->route->promise;
    bool atomic = a->route->policy.effect == SEMEL_EFFECT_ATOMIC;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    promise->guarantee = atomic ? SEMEL_GUARANTEE_ATOMIC : SEMEL_GUARANTEE_GUARDED;
    promise->label = semel__policy_guarantee(&a->route->policy, semel__route_lasting(a->route) != NULL);
    if (semel__route_lasting(a->route) == NULL) {
        promise->guarantee = SEMEL_GUARANTEE_BOUNDED;
        semel__buf_addz(&buf,
                        "its record is kept that long; a copy that comes later runs again, because nothing says how "
                        "old a message is: set timed_ids or `time` if something does");
    } else if (atomic)
        semel__buf_addz(&buf, "effect and record are committed in one transaction");
    else
        semel__buf_addf(&buf, "the effect is outside: a lease, a fencing token and a stable key; %s",
                        a->route->policy.effect == SEMEL_EFFECT_KEYED ? "an unknown outcome is repeated under its key"
                                                                      : "an unknown outcome is asked for, or waits");
    keep(a, &buf, &promise->why);
}

static void order(const struct asked *a)
{
    struct semel_promise *promise = &a->route->promise;
    const char *text = semel__route_stored(a->route)
                           ? "no order is asked for: order keys of stored messages count with `order: stored` only"
                           : "no order is asked for";
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    promise->order = SEMEL_ORDER_RESTS_NONE;
    if (a->route->policy.order == SEMEL_ORDER_ARRIVAL) {
        bool ordered = false;
        text = a->route->from.kind->order(a->route->from.options, &ordered);
        promise->order = ordered ? SEMEL_ORDER_RESTS_SOURCE : SEMEL_ORDER_RESTS_NONE;
    }
    if (a->route->policy.order == SEMEL_ORDER_VERSION) {
        promise->order = SEMEL_ORDER_RESTS_VERSIONS;
        text = "the versions in the messages, whatever order they come in";
    }
    if (a->route->policy.order == SEMEL_ORDER_NONE)
        semel__buf_addz(&buf, text);
    else {
        semel__buf_addz(&buf, "per ");
        if (semel__route_stored(a->route))
            semel__buf_addz(&buf, "the order key that is stored");
        else
            semel__conf_put_said(&buf, a->node, "order");
        semel__buf_addf(&buf, ": it rests on %s", text);
    }
    keep(a, &buf, &promise->answers[SEMEL_CHECKLIST_ORDER]);
}

/* ---- the other answers --------------------------------------------------------------------------- */

static void answer_key(const struct asked *a)
{
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addz(&buf, a->route->policy.one_source ? "consumer and id" : "consumer, source and id");
    semel__buf_addz(&buf, "; the id is ");
    if (semel__route_stored(a->route))
        semel__buf_addz(&buf, "the one that the message was stored with");
    else if (a->route->rules.id.kind == SEMEL_RULE_DEFAULT)
        semel__buf_addz(&buf, "ce_id, id, message_id or webhook-id, whichever comes first");
    else if (semel__str_eqz(semel__conf_find(a->node, "id")->key, "id"))
        semel__conf_put_said(&buf, a->node, "id");
    else { /* the source implies it */
        const char *id = NULL, *ignored = NULL;
        a->route->from.kind->rules(a->route->from.options, &id, &ignored);
        semel__buf_addz(&buf, id);
    }
    if (a->route->rules.id.kind == SEMEL_RULE_POSITION)
        semel__buf_addz(&buf, ", which is another one when a producer sends twice");
    if (a->route->rules.id.kind == SEMEL_RULE_DIGEST)
        semel__buf_addz(&buf, ", so two events with one payload are one");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_KEY]);
}

static void answer_business(const struct asked *a)
{
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    if (a->route->rules.n_business == 0)
        semel__buf_addz(&buf, "none: a new id with an old intent runs again");
    else {
        semel__conf_put_said(&buf, a->node, "business_key");
        semel__buf_addz(&buf, ", kept ");
        put_time(&buf, a->route->policy.business_retention_us);
    }
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_BUSINESS]);
}

static void answer_connection(const struct asked *a)
{
    struct conf_check check;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__conf_check_init(&check, a->r, a->route, a->node, "from");
    a->route->from.kind->connection(a->route->from.options, &check.base, &buf);
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_CONNECTION]);
}

static void answer_store(const struct asked *a)
{
    const struct semel_conf *conf = &a->r->owned->conf;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addf(&buf, "%s, ", conf->store_kind == SEMEL_CONF_STORE_SQLITE ? "SQLite" : "PostgreSQL");
    put_shown(&buf, conf->store_said);
    if (conf->store_plain)
        semel__buf_addz(&buf, ", whose certificate need not be checked: store_plain is true");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_STORE]);
}

static void answer_transaction(const struct asked *a)
{
    bool atomic = a->route->policy.effect == SEMEL_EFFECT_ATOMIC;
    bool offsets = semel__source_stores_positions(&a->route->from);
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addz(&buf, atomic ? "yes: the statement runs in the transaction that writes the record"
                                 : "no: a committed claim before the effect, a second transaction after it");
    semel__buf_addz(&buf, offsets ? ", and the offset is stored there too" : "");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_TRANSACTION]);
}

static void answer_retention(const struct asked *a)
{
    const char *last = semel__route_lasting(a->route);
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    put_time(&buf, a->route->policy.retention_us);
    semel__buf_addz(&buf, " against a horizon of ");
    if (a->route->promise.horizon_us == SEMEL_NONE)
        semel__buf_addz(&buf, "for ever");
    else {
        put_time(&buf, a->route->promise.horizon_us);
        semel__buf_addz(&buf, " (");
        put_horizon(&buf, &a->route->horizon);
        semel__buf_addz(&buf, ")");
    }
    semel__buf_addf(&buf, "; %s", last != NULL ? last : "after that a copy runs again");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_RETENTION]);
}

static void put_unknown(const struct asked *a, struct semel_buf *buf, bool reconcile)
{
    if (reconcile) {
        semel__buf_addz(buf, "; an unknown outcome is asked for at ");
        semel__conf_put_said(buf, a->node, "do.reconcile");
    } else if (a->route->policy.effect == SEMEL_EFFECT_KEYED)
        semel__buf_addz(buf, "; an unknown outcome is repeated under the same key");
    else
        semel__buf_addz(buf, "; an unknown outcome waits for a person");
}

/* What a 5xx is taken for, and why. */
static void put_5xx(const struct asked *a, struct semel_buf *buf)
{
    const struct semel_conf_http *http = &a->route->handler.u.http;
    if (http->idempotent) {
        semel__buf_addz(buf, "; a 5xx is repeated, because the other side honours the key");
        return;
    }
    semel__buf_addz(buf, "; a 5xx is an unknown outcome, because it may come after the effect");
    if (http->transient.n > 0) {
        semel__buf_addz(buf, ", but ");
        semel__conf_put_said(buf, a->node, "do.transient");
        semel__buf_addz(buf, ", after which nothing was done, as do.transient says");
    }
    semel__buf_addz(buf, http->transient.n > 0 ? ", and but where the answer has Semel-Outcome"
                                               : ", unless the answer has Semel-Outcome, or do.transient lists it");
}

static void answer_outside(const struct asked *a)
{
    const struct semel_do *handler = &a->route->handler;
    struct semel_buf buf;
    semel__buf_init(&buf, 2048);
    switch (handler->kind) {
    case SEMEL_DO_SQL:
        semel__buf_addz(&buf, "none");
        break;
    case SEMEL_DO_HTTP:
        semel__buf_addz(&buf, "POST ");
        semel__conf_put_said(&buf, a->node, "do.http");
        semel__buf_addz(&buf, " with Idempotency-Key, the same on every retry");
        if (handler->u.http.plain)
            semel__buf_addz(&buf, "; without TLS, as do.plain says: messages can be read on the network");
        put_5xx(a, &buf);
        put_unknown(a, &buf, semel__str_given(handler->u.http.reconcile));
        break;
    case SEMEL_DO_EXEC:
        semel__buf_addz(&buf, "runs ");
        semel__conf_put_said(&buf, a->node, "do.exec");
        semel__buf_addz(&buf, " with SEMEL_KEY, the same on every retry");
        put_unknown(a, &buf, handler->u.exec.reconcile.n > 0);
        break;
    case SEMEL_DO_PULL:
        semel__buf_addz(&buf, "whatever the workers do, with the step key that they are given");
        put_unknown(a, &buf, false);
        break;
    }
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_OUTSIDE]);
}

static void answer_failures(const struct asked *a)
{
    const struct semel_policy *policy = &a->route->policy;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addf(&buf, "%d attempt%s, with pauses up to ", policy->retry_max, policy->retry_max == 1 ? "" : "s");
    put_time(&buf, policy->retry_ceiling_us);
    semel__buf_addf(&buf, ", then a dead letter; a permanent failure after %d; %lld failures in a row stop the route",
                    policy->permanent_max, (long long)a->route->breaker.failures);
    if (policy->effect == SEMEL_EFFECT_OUTSIDE)
        semel__buf_addf(&buf, ", and %lld unknown outcomes keep it from taking new messages",
                        (long long)a->route->unknown_max);
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_FAILURES]);
}

void semel__conf_promise(struct conf_reader *r, struct semel_route *route, const struct conf_node *node)
{
    static void (*const answers[])(const struct asked *) = {
        label,
        order,
        answer_key,
        answer_business,
        answer_connection,
        answer_store,
        answer_transaction,
        answer_retention,
        answer_outside,
        answer_failures,
    };
    const struct asked a = {r, route, node};
    check_horizon(&a);
    for (size_t i = 0; i < CONF_COUNT(answers) && !r->failed; i++)
        answers[i](&a);
}
