/* SPDX-License-Identifier: MIT
 *
 * open.c: from settings to stores, brokers and callers. Settings were checked when they were read; what a driver still
 * refuses is told as it says it.
 */
#include <stdio.h>

#include "base/error.h"
#include "base/str.h"
#include "daemon/positions.h"
#include "daemon/run.h"

static const char *text_of(struct semel_str s)
{
    return s.n > 0 ? s.p : NULL;
}

semel_status run_open_store(struct semel_daemon *daemon, struct semel_store **ret, struct semel_error *err)
{
    struct semel_store_options options = {0};
    semel_status status = SEMEL_OK;
    if (daemon->conf->store_kind != SEMEL_CONF_STORE_SQLITE)
        return semel_store_open(ret, daemon->options.stores, daemon->conf->store.p, &options, err);
    if (daemon->shared == NULL) /* the first, before there are threads */
        status = semel__share_open(&daemon->shared, daemon->options.stores, daemon->conf->store.p, &options, err);
    if (status != SEMEL_OK)
        return status;
    *ret = semel__share_handle(daemon->shared);
    return *ret != NULL ? SEMEL_OK : semel__fail_memory(err);
}

/* ---- sources ------------------------------------------------------------------------------------- */

static void client_logs(void *ctx, int level, const char *facility, const char *text)
{
    struct run_route *route = ctx;
    SEMEL__LOG(route->daemon->log,
               level <= 3   ? SEMEL_LOG_WARN
               : level <= 5 ? SEMEL_LOG_INFO
                            : SEMEL_LOG_DEBUG,
               route->conf->from.kind->client_reports, SEMEL_F_STR("consumer", route->conf->name),
               SEMEL_F_Z("facility", facility), SEMEL_F_Z("said", text));
}

semel_status run_open_broker(struct run_route *route, struct semel_broker **ret, struct semel_error *err)
{
    const struct semel_source *from = &route->conf->from;
    struct semel_positions *positions = atomic_load(&route->positions);
    struct semel_source_hooks hooks = {.log = client_logs, .log_ctx = route};
    if (semel__route_listens(route->conf) != NULL) {
        *ret = semel__serve_ingest(route->daemon->serve, route->conf);
        return *ret != NULL ? SEMEL_OK : semel__fail_memory(err);
    }
    if (from->kind->open == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this program was built without %s",
                           from->kind->name);
    if (positions != NULL) {
        hooks.assigned = semel__positions_assigned;
        hooks.revoked = semel__positions_revoked;
        hooks.ctx = positions;
    }
    return from->kind->open(ret, from->options, &hooks, err);
}

/* ---- callers ------------------------------------------------------------------------------------- */

static semel_status open_http(const struct semel_conf_http *conf, struct semel_caller **ret, struct semel_error *err)
{
    int transient[SEMEL_SETTING_LIST_MAX];
    struct semel_http_caller_settings settings = {
        .transient = transient,
        .n_transient = conf->transient.n,
        .url = conf->url.p,
        .reconcile_url = text_of(conf->reconcile),
        .timeout_us = conf->timeout_us,
        .concurrency = (size_t)conf->concurrency,
        .headers = conf->headers.at,
        .n_headers = conf->headers.n,
        .idempotent = conf->idempotent,
        .ca_file = conf->tls.ca_file,
        .cert_file = conf->tls.cert_file,
        .key_file = conf->tls.key_file,
        .key_password = conf->tls.key_password,
        .verify = !conf->tls.on || !conf->tls.no_verify,
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

static semel_status open_exec(const struct semel_conf_exec *conf, struct semel_caller **ret, struct semel_error *err)
{
    const char *argv[SEMEL_SETTING_LIST_MAX + 1], *reconcile[SEMEL_SETTING_LIST_MAX + 1];
    struct semel_exec_caller_settings settings = {
        .argv = argv,
        .reconcile_argv = conf->reconcile.n > 0 ? reconcile : NULL,
        .program = conf->program.p,
        .reconcile_program = text_of(conf->reconcile_program),
        .timeout_us = conf->timeout_us,
        .concurrency = (size_t)conf->concurrency,
        .env = conf->env.at,
        .n_env = conf->env.n,
        .idempotent = conf->idempotent,
    };
    words(&conf->argv, argv);
    words(&conf->reconcile, reconcile);
    return semel__exec_caller_new(ret, &settings, err);
}

semel_status run_open_caller(struct run_route *route, struct semel_caller **ret, struct semel_error *err)
{
    const struct semel_do *handler = &route->conf->handler;
    if (handler->kind == SEMEL_DO_HTTP)
        return open_http(&handler->u.http, ret, err);
    return open_exec(&handler->u.exec, ret, err);
}
