/* SPDX-License-Identifier: MIT
 *
 * reconcile.c: what became of a key; see reconcile.h.
 */
#include "admin/reconcile.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "gateway/ask.h"
#include "gateway/rules.h"
#include "net/http.h"

struct rule {
    const struct semel_conf_gateway *gateway;
    const struct semel_conf_guard *guard;
};

__attribute__((format(printf, 3, 4))) static semel_status ended(struct semel_reconcile *ret,
                                                                enum semel_reconcile_end end, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(ret->text, sizeof ret->text, fmt, args);
    va_end(args);
    ret->end = end;
    return SEMEL_OK;
}

/* That under which the key was claimed; a long name is stored in part. Asked at the URL of another rule, the other side
 * does not know the key, and its "not done" would free it for a second run: so it is that rule or none. */
static bool is_rule(struct semel_str match, struct semel_str name)
{
    return semel__str_eq(match, name) ||
           (name.n == SEMEL_GUARD_RULE_MAX && match.n > name.n && memcmp(match.p, name.p, name.n) == 0);
}

static const char *find_rule(const struct semel_conf *conf, struct semel_str name, struct rule *ret)
{
    size_t n = 0;
    for (size_t i = 0; name.n > 0 && i < conf->n_gateways; i++)
        for (size_t k = 0; k < conf->gateways[i].n_guard; k++) {
            const struct semel_conf_guard *guard = &conf->gateways[i].guard[k];
            if (!is_rule(guard->match, name))
                continue;
            *ret = (struct rule){&conf->gateways[i], guard};
            n++;
        }
    return n == 1 && semel__str_given(ret->guard->reconcile) ? NULL
           : n > 1 ? "several rules of the settings have the name of this key's rule"
                   : "no gateway of the settings has the rule of this key with a URL to reconcile";
}

/* ---- asking -------------------------------------------------------------------------------------- */

struct semel_reconciling {
    struct semel_key_row shown; /* as it was when it was asked about; what it points to is in the arena */
    struct semel_arena arena;
    struct rule rule;
    uint64_t wait_ms;
    struct semel_http *http; /* a loop of its own */
    struct semel_asker *asker;
    semel_status status; /* of the asking; not OK: err has the reason */
    struct semel_error err;
    enum semel_ask_state state;
    int code; /* of the answer over HTTP; 0: there was none */
    int64_t outcome_code;
    struct semel_buf outcome;
};

static void asked(void *ctx, int status, struct semel_str body)
{
    struct semel_reconciling *a = ctx;
    a->code = status;
    a->state = semel__ask_state(status, body, &a->outcome_code, &a->outcome);
    semel__http_stop(a->http, 0);
}

static uint64_t at_most(int64_t us, uint64_t ms)
{
    return (uint64_t)us / 1000 < ms ? (uint64_t)us / 1000 : ms;
}

void semel__reconcile_ask(struct semel_reconciling *a)
{
    const struct semel_conf_upstream *up = &a->rule.gateway->upstream;
    struct semel_upstream_settings settings;
    struct semel_asker *asker = NULL;
    const char *why = NULL;
    semel__upstream_settings_init(&settings);
    settings.ca_file = up->ca_file;
    settings.answer_ms = at_most(up->timeout_us, a->wait_ms);
    settings.connect_ms = at_most(up->connect_us, a->wait_ms);
    a->status = semel__asker_new(&asker, a->http, "reconcile", a->rule.guard->reconcile.p, &settings, &a->err);
    if (a->status == SEMEL_OK &&
        !semel__ask(asker, a->shown.row.key, a->shown.row.scope, SEMEL_STR(""), asked, a, &why))
        a->status = semel__fail(&a->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s", why);
    if (a->status == SEMEL_OK)
        a->status = semel__http_run(a->http, &a->err);
    a->asker = asker;
}

void semel__reconcile_cancel(struct semel_reconciling *a)
{
    semel__http_stop(a->http, 0);
}

void semel__reconcile_free(struct semel_reconciling *a)
{
    if (a == NULL)
        return;
    semel__http_free(a->http);
    semel__asker_free(a->asker);
    semel__buf_done(&a->outcome);
    semel__arena_done(&a->arena);
    semel__free(a);
}

/* ---- what the answer means ----------------------------------------------------------------------- */

static semel_status carry_out(struct semel_ops *ops, const struct semel_reconciling *a, struct semel_str reason,
                              struct semel_reconcile *ret, struct semel_error *err)
{
    const bool done = a->state == SEMEL_ASK_DONE;
    struct semel_key_instruction given = {.kind = SEMEL_COMMAND_RESOLVE,
                                          .not_done = !done,
                                          .code = done ? a->outcome_code : SEMEL_NONE,
                                          .token = a->shown.row.token,
                                          .reason = reason};
    if (done && a->outcome.n > 0) {
        given.headers = SEMEL_STR("[[\"content-type\",\"application/json\"]]");
        given.body = semel__buf_str(&a->outcome);
    }
    ret->end = SEMEL_RECONCILE_REPORTED;
    semel_status status = semel__ops_key_check(&given, false, err);
    return status == SEMEL_OK
               ? semel__ops_key_command(ops, &given, a->shown.row.scope, a->shown.row.key, false, &ret->report, err)
               : status;
}

/* Ends the key, if it may be ended by this answer. */
semel_status semel__reconcile_end(struct semel_ops *ops, const struct semel_reconciling *a, struct semel_str reason,
                                  struct semel_reconcile *ret, struct semel_error *err)
{
    const struct rule *rule = &a->rule;
    const int64_t settle_us = rule->guard->settle_us > 0 ? rule->guard->settle_us
                                                         : 2 * rule->gateway->upstream.timeout_us;
    struct semel_idempotency row = a->shown.row;
    char left[32];
    int64_t now_us;
    if (a->status != SEMEL_OK)
        return ended(ret, SEMEL_RECONCILE_NO_ANSWER, "asking %s: %s", rule->guard->reconcile.p, a->err.text);
    if (a->state == SEMEL_ASK_UNKNOWN)
        return ended(ret, SEMEL_RECONCILE_NO_ANSWER, "it stays unknown: %s says neither done nor not_done (status %d)",
                     rule->guard->reconcile.p, a->code);
    if (a->state == SEMEL_ASK_DONE)
        return carry_out(ops, a, reason, ret, err);
    semel_status status = semel_store_now(ops->store, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    if (row.status == SEMEL_STATE_PROCESSING && row.lease_until_us > row.updated_us)
        row.updated_us = row.lease_until_us; /* its call may have begun as late as that */
    if (semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_NOT_DONE, settle_us, now_us))
        return carry_out(ops, a, reason, ret, err);
    semel__duration_format((settle_us - (now_us - row.updated_us)) / 1000000 * 1000000 + 1000000, left, sizeof left);
    return ended(ret, SEMEL_RECONCILE_REFUSED,
                 "it stays unknown: it was not done, but its call may still be running; ask again in %s", left);
}

/* ---- whether there is something to ask ----------------------------------------------------------- */

static semel_status reconciling_new(struct semel_reconciling **ret, const struct semel_key_row *shown,
                                    const struct rule *rule, uint64_t wait_ms, struct semel_error *err)
{
    struct semel_reconciling *a = semel__calloc(1, sizeof *a);
    if (a == NULL)
        return semel__fail_memory(err);
    a->state = SEMEL_ASK_UNKNOWN;
    a->rule = *rule;
    a->wait_ms = wait_ms;
    a->shown = *shown;
    semel__arena_init(&a->arena, 4 * SEMEL_ID_MAX);
    semel__buf_init(&a->outcome, SEMEL_ASK_ANSWER_MAX);
    semel_status status = semel__http_new(&a->http, NULL, err);
    if (status == SEMEL_OK && (!semel__arena_copy(&a->arena, shown->row.scope, &a->shown.row.scope) ||
                               !semel__arena_copy(&a->arena, shown->row.key, &a->shown.row.key)))
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        *ret = a;
    else
        semel__reconcile_free(a);
    return status;
}

semel_status semel__reconcile_begin(struct semel_ops *ops, const struct semel_conf *conf, struct semel_str scope,
                                    struct semel_str key, uint64_t wait_ms, struct semel_reconciling **ret_asking,
                                    struct semel_reconcile *ret, struct semel_error *err)
{
    struct semel_key_facts facts;
    struct rule rule = {0};
    *ret_asking = NULL;
    *ret = (struct semel_reconcile){.end = SEMEL_RECONCILE_REFUSED};
    semel_status status = semel__ops_key(ops, scope, key, false, &facts, err);
    if (status != SEMEL_OK)
        return status;
    if (facts.row == NULL)
        return ended(ret, SEMEL_RECONCILE_NO_SUCH,
                     "there is no such key: it was released, its lifetime is over, or it never was");
    const struct semel_idempotency *row = &facts.row->row;
    if (row->status == SEMEL_STATE_COMPLETED)
        return ended(ret, SEMEL_RECONCILE_REFUSED, "this key has its answer, which never changes");
    if (row->status == SEMEL_STATE_PROCESSING &&
        (row->lease_until_us == SEMEL_NONE || row->lease_until_us >= facts.now_us))
        return ended(ret, SEMEL_RECONCILE_REFUSED, "its request is running, and its lease is alive: wait for its end");
    const char *none = find_rule(conf, row->rule, &rule);
    if (none != NULL)
        return ended(ret, SEMEL_RECONCILE_REFUSED, "%s; resolve it by what you find out: semel keys resolve -h", none);
    return reconciling_new(ret_asking, facts.row, &rule, wait_ms, err);
}

semel_status semel__reconcile_key(struct semel_ops *ops, const struct semel_conf *conf, struct semel_str scope,
                                  struct semel_str key, struct semel_str reason, uint64_t wait_ms,
                                  struct semel_reconcile *ret, struct semel_error *err)
{
    struct semel_reconciling *a;
    semel_status status = semel__reconcile_begin(ops, conf, scope, key, wait_ms, &a, ret, err);
    if (status != SEMEL_OK || a == NULL)
        return status;
    semel__reconcile_ask(a);
    status = semel__reconcile_end(ops, a, reason, ret, err);
    ret->report.scope = scope; /* what was read goes with `a` */
    ret->report.key = key;
    semel__reconcile_free(a);
    return status;
}
