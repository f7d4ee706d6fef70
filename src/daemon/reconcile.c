/* SPDX-License-Identifier: MIT
 *
 * reconcile.c: `semel inbox reconcile`: asks the other side now what became of messages whose outcome is unknown. The
 * daemon asks by itself, less and less often; this is for the person who cannot wait, and needs no daemon.
 *
 * Invariants: it only asks, and never repeats a call. An answer is recorded under the row's time of change: where a
 * daemon was faster, nothing is recorded twice. A call that may still run is not asked for (P45).
 */
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"
#include "store/query.h"
#include "daemon/internal.h"

#define PAGE 16
#define ENDS_MAX PAGE
#define ARENA_MAX ((size_t)512 << 20)

struct asking {
    const struct semel_route *route;
    const struct semel_reconcile *what;
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

static bool can_ask(const struct semel_route *route)
{
    const struct semel_do *handler = &route->handler;
    return (handler->kind == SEMEL_DO_HTTP && semel__str_given(handler->u.http.reconcile)) ||
           (handler->kind == SEMEL_DO_EXEC && handler->u.exec.reconcile.n > 0);
}

static bool is_wanted(const struct asking *a, struct semel_str id)
{
    bool wanted = a->what->n_ids == 0;
    for (size_t i = 0; !wanted && i < a->what->n_ids; i++)
        wanted = semel__str_eqz(id, a->what->ids[i]);
    return wanted;
}

static void report(const struct asking *a, struct semel_str id, const char *result, struct semel_str why)
{
    a->what->report(a->what->ctx, a->route->name, id, result, why);
}

/* ---- one answer ---------------------------------------------------------------------------------- */

static semel_status record(struct asking *a, const struct semel_call_end *end, struct semel_error *err)
{
    size_t i = (size_t)((const char *)end->tag - (const char *)a->slots) / sizeof a->slots[0];
    const struct semel__msg *msg = &a->slots[i].msg;
    struct semel_str reason = {0};
    bool done = false;
    a->slots[i].used = false;
    semel_status status = semel__daemon_reconciled(&a->inbox, msg, a->slots[i].updated_us, end, &reason, &done, err);
    if (status != SEMEL_OK)
        return status;
    a->sum->known += done;
    a->sum->unknown += !done;
    if (done)
        report(a, msg->id, semel__str_given(reason) ? "known" : "unknown", reason);
    else if (semel__str_given(reason))
        report(a, msg->id, "unknown", SEMEL_STR("it has changed meanwhile: look again"));
    else
        report(a, msg->id, "unknown", end->status != SEMEL_OK ? semel__str(end->err.text) : end->reason);
    return SEMEL_OK;
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
    struct semel_call_end ends[ENDS_MAX];
    semel_status status = SEMEL_OK;
    while (running(a) > 0) {
        size_t n = semel__caller_wait(a->caller, -1, -1, ends, ENDS_MAX);
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

static semel_status ask(struct asking *a, const struct semel_row *row, int64_t store_us, struct semel_error *err)
{
    size_t i = 0;
    if (!is_wanted(a, row->id))
        return SEMEL_OK;
    a->sum->found++;
    if (semel__daemon_may_run_still(&a->route->handler, row, store_us)) {
        a->sum->unknown++;
        report(a, row->id, "unknown",
               SEMEL_STR("its call may still run, and could not be told from one that did nothing"));
        return SEMEL_OK;
    }
    while (a->slots[i].used)
        i++;
    struct semel_call *call = &a->slots[i].call;
    semel__row_msg(row, &a->slots[i].msg);
    *call = (struct semel_call){.tag = &a->slots[i],
                                .consumer = a->route->name,
                                .msg = &a->slots[i].msg,
                                .attempt = row->progress.attempts,
                                .ask = true};
    if (!semel__step_key(a->route->name, row->source, row->id, SEMEL_STR("effect"), call->key))
        return semel__fail_memory(err);
    a->slots[i].updated_us = row->updated_us;
    a->slots[i].used = true;
    semel__caller_start(a->caller, call);
    return SEMEL_OK;
}

static semel_status ask_all(struct asking *a, struct semel_error *err)
{
    const struct semel_filter filter = {.consumer = a->route->name,
                                        .states = 1u << SEMEL_STATE_UNKNOWN,
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
            status = ask(a, &rows[i], store_us, err);
        }
        semel_status waited = wait_all(a, status == SEMEL_OK ? err : &ignored); /* whatever was asked is recorded */
        status = status == SEMEL_OK ? waited : status;
    }
    return status;
}

static semel_status ask_route(const struct semel_conf *conf, const struct semel_daemon_options *options,
                              struct asking *a, struct semel_error *err)
{
    struct semel_store_options how = {0};
    char owner[64];
    snprintf(owner, sizeof owner, "reconcile/%ld", (long)getpid());
    semel_status status = semel__daemon_open_caller(&a->route->handler, &a->caller, err);
    if (status == SEMEL_OK)
        status = semel_store_open(&a->store, options->stores, conf->store.p, &how, err);
    if (status == SEMEL_OK) {
        semel__random_seed_os(&a->rng);
        semel__arena_init(&a->arena, ARENA_MAX);
        semel__inbox_init(&a->inbox, a->store, &a->route->policy, &a->none, &a->rng, semel__str(owner));
        status = ask_all(a, err);
        semel__inbox_done(&a->inbox);
        semel__arena_done(&a->arena);
    }
    semel_store_close(a->store);
    semel__caller_free(a->caller);
    return status;
}

semel_status semel__daemon_reconcile(const struct semel_conf *conf, const struct semel_daemon_options *options,
                                     const struct semel_reconcile *what, struct semel_reconcile_sum *ret,
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
        status = ask_route(conf, options, a, err);
        semel__free(a);
    }
    return status;
}
