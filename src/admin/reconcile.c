/* SPDX-License-Identifier: MIT
 *
 * reconcile.c: what became of a key or a message; see reconcile.h.
 */
#include "admin/reconcile.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/error.h"
#include "gateway/ask.h"
#include "gateway/rules.h"
#include "net/http.h"
#include "store/query.h"

#define PAGE 16
#define PAGES_MAX ((size_t)512 << 20)
#define COPY_MAX ((size_t)128 << 20) /* a message, whose payload may have 64 MiB, and an answer */

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
    struct semel_arena arena;
    uint64_t wait_ms;
    /* Of a message. */
    const struct semel_route *route; /* NULL: a key is asked about */
    struct semel_call call;
    struct semel__msg msg;
    int64_t updated_us;
    int cancel_fd; /* an eventfd */
    struct semel_call_end said;
    /* Of a key. */
    struct semel_key_row shown; /* as it was when it was asked about; what it points to is in the arena */
    struct rule rule;
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

static void ask_for_key(struct semel_reconciling *a)
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
static semel_status end_key(struct semel_ops *ops, const struct semel_reconciling *a, struct semel_str reason,
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
    if (row.status == SEMEL_ROW_PROCESSING && row.lease_until_us > row.updated_us)
        row.updated_us = row.lease_until_us; /* its call may have begun as late as that */
    if (semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_NOT_DONE, settle_us, now_us))
        return carry_out(ops, a, reason, ret, err);
    semel__duration_format((settle_us - (now_us - row.updated_us)) / 1000000 * 1000000 + 1000000, left, sizeof left);
    return ended(ret, SEMEL_RECONCILE_REFUSED,
                 "it stays unknown: it was not done, but its call may still be running; ask again in %s", left);
}

/* ---- whether there is something to ask ----------------------------------------------------------- */

static semel_status reconciling_new(struct semel_reconciling **ret, uint64_t wait_ms, size_t copy_max,
                                    struct semel_error *err)
{
    struct semel_reconciling *a = semel__calloc(1, sizeof *a);
    if (a == NULL)
        return semel__fail_memory(err);
    a->state = SEMEL_ASK_UNKNOWN;
    a->wait_ms = wait_ms;
    a->cancel_fd = -1;
    semel__arena_init(&a->arena, copy_max);
    semel__buf_init(&a->outcome, SEMEL_ASK_ANSWER_MAX);
    *ret = a;
    return SEMEL_OK;
}

static semel_status key_new(struct semel_reconciling **ret, const struct semel_key_row *shown, const struct rule *rule,
                            uint64_t wait_ms, struct semel_error *err)
{
    struct semel_reconciling *a;
    semel_status status = reconciling_new(&a, wait_ms, 4 * SEMEL_ID_MAX, err);
    if (status != SEMEL_OK)
        return status;
    a->rule = *rule;
    a->shown = *shown;
    status = semel__http_new(&a->http, NULL, err);
    if (status == SEMEL_OK && (!semel__arena_copy(&a->arena, shown->row.scope, &a->shown.row.scope) ||
                               !semel__arena_copy(&a->arena, shown->row.key, &a->shown.row.key)))
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        *ret = a;
    else
        semel__reconcile_free(a);
    return status;
}

static semel_status begin_key(struct semel_ops *ops, const struct semel_conf *conf,
                              const struct semel_reconcile_about *about, uint64_t wait_ms,
                              struct semel_reconciling **ret_asking, struct semel_reconcile *ret,
                              struct semel_error *err)
{
    struct semel_key_facts facts;
    struct rule rule = {0};
    semel_status status = semel__ops_key(ops, about->scope, about->key, false, &facts, err);
    if (status != SEMEL_OK)
        return status;
    if (facts.row == NULL)
        return ended(ret, SEMEL_RECONCILE_NO_SUCH,
                     "there is no such key: it was released, its lifetime is over, or it never was");
    const struct semel_idempotency *row = &facts.row->row;
    if (row->status == SEMEL_ROW_COMPLETED)
        return ended(ret, SEMEL_RECONCILE_REFUSED, "this key has its answer, which never changes");
    if (row->status == SEMEL_ROW_PROCESSING &&
        (row->lease_until_us == SEMEL_NONE || row->lease_until_us >= facts.now_us))
        return ended(ret, SEMEL_RECONCILE_REFUSED, "its request is running, and its lease is alive: wait for its end");
    const char *none = find_rule(conf, row->rule, &rule);
    if (none != NULL)
        return ended(ret, SEMEL_RECONCILE_REFUSED, "%s; resolve it by what you find out: semel keys resolve -h", none);
    return key_new(ret_asking, facts.row, &rule, wait_ms, err);
}

/* ==== messages ======================================================================================== */

static const char *text_of(struct semel_str s)
{
    return s.n > 0 ? s.p : NULL;
}

static semel_status open_http(const struct semel_conf_http *conf, int64_t most_us, struct semel_caller **ret,
                              struct semel_error *err)
{
    int transient[SEMEL_SETTING_LIST_MAX];
    struct semel_http_caller_settings settings = {
        .transient = transient,
        .n_transient = conf->transient.n,
        .url = conf->url.p,
        .reconcile_url = text_of(conf->reconcile),
        .timeout_us = conf->timeout_us < most_us ? conf->timeout_us : most_us,
        .concurrency = (size_t)conf->concurrency,
        .headers = conf->headers.at,
        .n_headers = conf->headers.n,
        .idempotent = conf->idempotent,
        .tls = conf->tls,
    };
    for (size_t i = 0; i < conf->transient.n; i++) {
        int64_t status = 0;
        (void)semel__str_int64(conf->transient.at[i], &status); /* checked when it was read */
        transient[i] = (int)status;
    }
    return semel__http_caller_new(ret, &settings, err);
}

static void words(const struct semel_setting_list *list, const char **argv)
{
    for (size_t i = 0; i < list->n; i++)
        argv[i] = list->at[i].p;
    argv[list->n] = NULL;
}

static semel_status open_exec(const struct semel_conf_exec *conf, int64_t most_us, struct semel_caller **ret,
                              struct semel_error *err)
{
    const char *argv[SEMEL_SETTING_LIST_MAX + 1], *reconcile[SEMEL_SETTING_LIST_MAX + 1];
    struct semel_exec_caller_settings settings = {
        .argv = argv,
        .reconcile_argv = conf->reconcile.n > 0 ? reconcile : NULL,
        .program = conf->program.p,
        .reconcile_program = text_of(conf->reconcile_program),
        .timeout_us = conf->timeout_us < most_us ? conf->timeout_us : most_us,
        .concurrency = (size_t)conf->concurrency,
        .env = conf->env.at,
        .n_env = conf->env.n,
        .idempotent = conf->idempotent,
    };
    words(&conf->argv, argv);
    words(&conf->reconcile, reconcile);
    return semel__exec_caller_new(ret, &settings, err);
}

semel_status semel__reconcile_caller(struct semel_caller **ret, const struct semel_do *handler, int64_t most_us,
                                     struct semel_error *err)
{
    return handler->kind == SEMEL_DO_HTTP ? open_http(&handler->u.http, most_us, ret, err)
                                          : open_exec(&handler->u.exec, most_us, ret, err);
}

static bool can_ask(const struct semel_route *route)
{
    const struct semel_do *handler = &route->handler;
    return (handler->kind == SEMEL_DO_HTTP && semel__str_given(handler->u.http.reconcile)) ||
           (handler->kind == SEMEL_DO_EXEC && handler->u.exec.reconcile.n > 0);
}

bool semel__reconcile_too_early(const struct semel_do *handler, const struct semel_row *row, int64_t store_us)
{
    int64_t timeout_us = handler->kind == SEMEL_DO_HTTP ? handler->u.http.timeout_us : handler->u.exec.timeout_us;
    return row->progress.error_class == SEMEL_CLASS_LEASE && store_us - row->updated_us < timeout_us;
}

static bool make_call(struct semel_call *call, const struct semel_route *route, const struct semel__msg *msg,
                      int attempt, void *tag)
{
    *call = (struct semel_call){.tag = tag, .consumer = route->name, .msg = msg, .attempt = attempt, .ask = true};
    return semel__step_key(route->name, msg->source, msg->id, SEMEL_STR("effect"), call->key);
}

/* ---- what an answer about a message means -------------------------------------------------------- */

semel_status semel__reconcile_record(struct semel_inbox *inbox, const struct semel__msg *msg, int64_t updated_us,
                                     struct semel_str who, const struct semel_call_end *end,
                                     struct semel_str *ret_reason, bool *ret_done, struct semel_error *err)
{
    struct semel_row row = {.source = msg->source,
                            .id = msg->id,
                            .order_key = msg->order_key,
                            .version = msg->version,
                            .n_wants = msg->n_business,
                            .updated_us = updated_us};
    struct semel_command command = {.row = &row, .who = who, .outcome = end->outcome};
    struct semel_command_result result = {0};
    *ret_reason = (struct semel_str){0};
    *ret_done = false;
    for (size_t i = 0; i < msg->n_business; i++) /* what was listed wishes for them */
        row.wants[i] = msg->business[i];
    if (end->status != SEMEL_OK || end->result == SEMEL_MAYBE || end->result == SEMEL_PERMANENT)
        return SEMEL_OK;
    command.kind = end->result == SEMEL_DONE       ? SEMEL_COMMAND_RESOLVE
                   : end->result == SEMEL_REJECTED ? SEMEL_COMMAND_DISCARD
                                                   : SEMEL_COMMAND_RETRY;
    command.reason = end->result == SEMEL_DONE       ? SEMEL_STR("the other side says that it was done")
                     : end->result == SEMEL_REJECTED ? SEMEL_STR("the other side says that it was refused")
                                                     : SEMEL_STR("the other side says that it was not done");
    *ret_reason = command.reason;
    semel_status status = semel__inbox_command(inbox, &command, &result, err);
    *ret_done = status == SEMEL_OK && result.done;
    return status;
}

static struct semel_asked early(struct semel_str consumer, struct semel_str id)
{
    return (struct semel_asked){.consumer = consumer,
                                .id = id,
                                .why = SEMEL_STR(
                                    "its call may still run, and could not be told from one that did nothing")};
}

/* Records the answer; *ret has what came of it. */
static semel_status record_one(struct semel_inbox *inbox, const struct semel_call *call, int64_t updated_us,
                               struct semel_str who, const struct semel_call_end *end, struct semel_asked *ret,
                               struct semel_error *err)
{
    struct semel_str reason = {0};
    bool done = false;
    semel_status status = semel__reconcile_record(inbox, call->msg, updated_us, who, end, &reason, &done, err);
    *ret = (struct semel_asked){.consumer = call->consumer, .id = call->msg->id, .known = done, .why = reason};
    if (!done && semel__str_given(reason))
        ret->why = SEMEL_STR("it has changed meanwhile: look again");
    else if (!done)
        ret->why = end->status != SEMEL_OK ? semel__str(end->err.text) : end->reason;
    return status;
}

/* ---- one message, in steps ----------------------------------------------------------------------- */

static semel_status begin_message(struct semel_ops *ops, const struct semel_conf *conf, const struct semel_row *row,
                                  uint64_t wait_ms, struct semel_reconciling **ret_asking, struct semel_reconcile *ret,
                                  struct semel_error *err)
{
    const struct semel_route *route = NULL;
    struct semel_reconciling *a;
    struct semel__msg msg;
    int64_t now_us;
    for (size_t i = 0; i < conf->n_routes; i++)
        if (semel__str_eq(conf->routes[i].name, row->consumer))
            route = &conf->routes[i];
    if (row->progress.state != SEMEL_ROW_UNKNOWN)
        return ended(ret, SEMEL_RECONCILE_REFUSED, "its outcome is not unknown: it is %s",
                     semel__row_status_name(row->progress.state));
    if (route == NULL || !can_ask(route))
        return ended(ret, SEMEL_RECONCILE_REFUSED, "%s: nobody can be asked; resolve, retry or discard it",
                     route == NULL ? "its consumer is no route of this process" : "its route has no `reconcile`");
    semel_status status = semel_store_now(ops->store, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    if (semel__reconcile_too_early(&route->handler, row, now_us)) {
        ret->end = SEMEL_RECONCILE_EARLY;
        ret->message = early(row->consumer, row->id);
        return SEMEL_OK;
    }
    status = reconciling_new(&a, wait_ms, COPY_MAX, err);
    if (status != SEMEL_OK)
        return status;
    semel__row_msg(row, &msg);
    a->route = route;
    a->updated_us = row->updated_us;
    a->cancel_fd = eventfd(0, EFD_CLOEXEC);
    if (a->cancel_fd >= 0 && semel__msg_copy(&a->arena, &msg, &a->msg) &&
        make_call(&a->call, route, &a->msg, row->progress.attempts, a)) {
        *ret_asking = a;
        return SEMEL_OK;
    }
    semel__reconcile_free(a);
    return semel__fail_memory(err);
}

static void ask_for_message(struct semel_reconciling *a)
{
    struct semel_caller *caller = NULL;
    a->said.status = semel__reconcile_caller(&caller, &a->route->handler, (int64_t)a->wait_ms * 1000, &a->said.err);
    if (a->said.status != SEMEL_OK)
        return;
    semel__caller_start(caller, &a->call);
    size_t n = semel__caller_wait(caller, -1, a->cancel_fd, &a->said, 1);
    while (n == 0) {
        semel__caller_cancel(caller);
        n = semel__caller_wait(caller, -1, -1, &a->said, 1);
    }
    if (!semel__arena_copy(&a->arena, a->said.reason, &a->said.reason) ||
        !semel__arena_copy(&a->arena, a->said.outcome, &a->said.outcome))
        a->said.status = semel__fail_memory(&a->said.err);
    semel__caller_free(caller);
}

static semel_status end_message(struct semel_ops *ops, const struct semel_reconciling *a, struct semel_reconcile *ret,
                                struct semel_error *err)
{
    struct semel__handler none = {0};
    struct semel_inbox inbox;
    semel__inbox_init(&inbox, ops->store, &a->route->policy, &none, &ops->rng, ops->who);
    semel_status status = record_one(&inbox, &a->call, a->updated_us, ops->who, &a->said, &ret->message, err);
    semel__inbox_done(&inbox);
    ret->end = SEMEL_RECONCILE_ASKED;
    return status;
}

/* ---- several messages ---------------------------------------------------------------------------- */

struct asking {
    const struct semel_route *route;
    const struct semel_reconcile_messages *what;
    struct semel_reconcile_sum *sum;
    struct semel_caller *caller;
    struct semel_store *store;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel__handler none;
    struct semel_arena arena;
    struct {
        struct semel_call call;
        struct semel__msg msg;
        int64_t updated_us;
        bool used;
    } slots[PAGE];
};

static bool is_wanted(const struct asking *a, struct semel_str id)
{
    bool wanted = a->what->n_ids == 0;
    for (size_t i = 0; !wanted && i < a->what->n_ids; i++)
        wanted = semel__str_eqz(id, a->what->ids[i]);
    return wanted;
}

static void report(const struct asking *a, const struct semel_asked *one)
{
    a->sum->known += one->known;
    a->sum->unknown += !one->known;
    a->what->report(a->what->ctx, one);
}

/* ---- one answer ---------------------------------------------------------------------------------- */

static semel_status record(struct asking *a, const struct semel_call_end *end, struct semel_error *err)
{
    size_t i = (size_t)((const char *)end->tag - (const char *)a->slots) / sizeof a->slots[0];
    struct semel_asked one;
    a->slots[i].used = false;
    semel_status status = record_one(&a->inbox, &a->slots[i].call, a->slots[i].updated_us, SEMEL_STR("reconcile"), end,
                                     &one, err);
    if (status == SEMEL_OK)
        report(a, &one);
    return status;
}

static size_t running(const struct asking *a)
{
    size_t n = 0;
    for (size_t i = 0; i < PAGE; i++)
        n += a->slots[i].used;
    return n;
}

static semel_status wait_all(struct asking *a, struct semel_error *err)
{
    struct semel_call_end ends[PAGE];
    semel_status status = SEMEL_OK;
    while (running(a) > 0) {
        size_t n = semel__caller_wait(a->caller, -1, -1, ends, PAGE);
        for (size_t i = 0; i < n; i++) {
            struct semel_error own = {0};
            semel_status one = record(a, &ends[i], &own);
            if (status == SEMEL_OK && one != SEMEL_OK) {
                status = one;
                *err = own;
            }
        }
    }
    return status;
}

/* ---- a route ------------------------------------------------------------------------------------- */

static semel_status ask_now(struct asking *a, const struct semel_row *row, int64_t store_us, struct semel_error *err)
{
    size_t i = 0;
    if (!is_wanted(a, row->id))
        return SEMEL_OK;
    a->sum->found++;
    if (semel__reconcile_too_early(&a->route->handler, row, store_us)) {
        const struct semel_asked one = early(a->route->name, row->id);
        report(a, &one);
        return SEMEL_OK;
    }
    while (a->slots[i].used)
        i++;
    semel__row_msg(row, &a->slots[i].msg);
    if (!make_call(&a->slots[i].call, a->route, &a->slots[i].msg, row->progress.attempts, &a->slots[i]))
        return semel__fail_memory(err);
    a->slots[i].updated_us = row->updated_us;
    a->slots[i].used = true;
    semel__caller_start(a->caller, &a->slots[i].call);
    return SEMEL_OK;
}

static semel_status ask_all(struct asking *a, struct semel_error *err)
{
    const struct semel_filter filter = {.consumer = a->route->name,
                                        .states = 1u << SEMEL_ROW_UNKNOWN,
                                        .received_before_us = SEMEL_NONE,
                                        .received_after_us = SEMEL_NONE};
    const size_t page = a->caller->concurrency < PAGE ? a->caller->concurrency : PAGE;
    int64_t after = SEMEL_NONE, store_us = 0;
    size_t n = page, damaged;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && n == page) {
        struct semel_row *rows = NULL;
        struct semel_error ignored = {0};
        semel__arena_reset(&a->arena);
        status = semel_query_list(a->store, &filter, after, page, true, &a->arena, &rows, &n, &damaged, err);
        if (status == SEMEL_OK && n > 0)
            status = semel_store_now(a->store, &store_us, err);
        for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
            after = rows[i].arrival;
            status = ask_now(a, &rows[i], store_us, err);
        }
        semel_status waited = wait_all(a, status == SEMEL_OK ? err : &ignored); /* whatever was asked is recorded */
        status = status == SEMEL_OK ? waited : status;
    }
    return status;
}

static semel_status ask_route(const struct semel_conf *conf, const struct semel_store_ops *const *stores,
                              struct asking *a, struct semel_error *err)
{
    struct semel_store_options how = {0};
    char owner[64];
    snprintf(owner, sizeof owner, "reconcile/%ld", (long)getpid());
    semel_status status = semel__reconcile_caller(&a->caller, &a->route->handler, INT64_MAX, err);
    if (status == SEMEL_OK)
        status = semel_store_open(&a->store, stores, conf->store.p, &how, err);
    if (status == SEMEL_OK) {
        semel__random_seed_os(&a->rng);
        semel__arena_init(&a->arena, PAGES_MAX);
        semel__inbox_init(&a->inbox, a->store, &a->route->policy, &a->none, &a->rng, semel__str(owner));
        status = ask_all(a, err);
        semel__inbox_done(&a->inbox);
        semel__arena_done(&a->arena);
    }
    semel_store_close(a->store);
    semel__caller_free(a->caller);
    return status;
}

semel_status semel__reconcile_messages(const struct semel_conf *conf, const struct semel_store_ops *const *stores,
                                       const struct semel_reconcile_messages *what, struct semel_reconcile_sum *ret,
                                       struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    *ret = (struct semel_reconcile_sum){0};
    for (size_t i = 0; status == SEMEL_OK && i < conf->n_routes; i++) {
        const struct semel_route *route = &conf->routes[i];
        struct asking *a;
        if ((what->consumer != NULL && !semel__str_eqz(route->name, what->consumer)) || !can_ask(route))
            continue;
        ret->routes++;
        a = semel__calloc(1, sizeof *a);
        if (a == NULL)
            return semel__fail_memory(err);
        a->route = route;
        a->what = what;
        a->sum = ret;
        status = ask_route(conf, stores, a, err);
        semel__free(a);
    }
    return status;
}

/* ==== either ========================================================================================== */

semel_status semel__reconcile_begin(struct semel_ops *ops, const struct semel_conf *conf,
                                    const struct semel_reconcile_about *about, uint64_t wait_ms,
                                    struct semel_reconciling **ret_asking, struct semel_reconcile *ret,
                                    struct semel_error *err)
{
    *ret_asking = NULL;
    *ret = (struct semel_reconcile){.end = SEMEL_RECONCILE_REFUSED};
    return about->row != NULL ? begin_message(ops, conf, about->row, wait_ms, ret_asking, ret, err)
                              : begin_key(ops, conf, about, wait_ms, ret_asking, ret, err);
}

void semel__reconcile_ask(struct semel_reconciling *a)
{
    if (a->route != NULL)
        ask_for_message(a);
    else
        ask_for_key(a);
}

void semel__reconcile_cancel(struct semel_reconciling *a)
{
    const uint64_t one = 1;
    if (a->route == NULL)
        semel__http_stop(a->http, 0);
    else if (write(a->cancel_fd, &one, sizeof one) < 0)
        return; /* it is full: cancelled before */
}

semel_status semel__reconcile_end(struct semel_ops *ops, const struct semel_reconciling *a, struct semel_str reason,
                                  struct semel_reconcile *ret, struct semel_error *err)
{
    return a->route != NULL ? end_message(ops, a, ret, err) : end_key(ops, a, reason, ret, err);
}

void semel__reconcile_free(struct semel_reconciling *a)
{
    if (a == NULL)
        return;
    semel__http_free(a->http);
    semel__asker_free(a->asker);
    if (a->cancel_fd >= 0)
        close(a->cancel_fd);
    semel__buf_done(&a->outcome);
    semel__arena_done(&a->arena);
    semel__free(a);
}

semel_status semel__reconcile_key(struct semel_ops *ops, const struct semel_conf *conf, struct semel_str scope,
                                  struct semel_str key, struct semel_str reason, uint64_t wait_ms,
                                  struct semel_reconcile *ret, struct semel_error *err)
{
    const struct semel_reconcile_about about = {.scope = scope, .key = key};
    struct semel_reconciling *a;
    semel_status status = semel__reconcile_begin(ops, conf, &about, wait_ms, &a, ret, err);
    if (status != SEMEL_OK || a == NULL)
        return status;
    semel__reconcile_ask(a);
    status = semel__reconcile_end(ops, a, reason, ret, err);
    ret->report.scope = scope; /* what was read goes with `a` */
    ret->report.key = key;
    semel__reconcile_free(a);
    return status;
}
