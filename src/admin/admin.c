/* SPDX-License-Identifier: MIT
 *
 * admin.c: the pages of admin: metrics, health, readiness, routes. All of them only read, and are open to every
 * client: names and numbers, no ids.
 *
 * Invariant: nothing here waits: the daemon's view answers from memory.
 */
#include "admin/serve_private.h"

#define WHY_MAX 2048 /* about eight routes; the log has all of them */

static void handle_metrics(void *ctx, struct semel_http_exchange *x)
{
    struct semel_serve *serve = ctx;
    semel__http_set_type(x, SEMEL_METRICS_TYPE);
    (void)semel__metrics_render(semel__stats_metrics(serve->stats),
                                semel__http_body(x)); /* failed: the answer is 500 */
    semel__http_answer(x, 200);
}

/* 200 {"status":WORD}, or a problem with the reason. */
static void report(struct semel_serve *serve, struct semel_http_exchange *x, const char *word,
                   bool (*asked)(void *ctx, struct semel_buf *why))
{
    struct semel_buf why;
    char shown[WHY_MAX];
    semel__buf_init(&why, WHY_MAX);
    if (asked == NULL || asked(serve->view->ctx, &why)) {
        semel__buf_addf(semel__http_body(x), "{\"status\":\"%s\"}\n", word);
        semel__http_answer(x, 200);
    } else {
        semel__str_show(shown, sizeof(shown), semel__buf_str(&why));
        semel__http_refuse(x, 503, "%s", shown[0] != '\0' ? shown : "no reason was given");
    }
    semel__buf_done(&why);
}

static void handle_health(void *ctx, struct semel_http_exchange *x)
{
    struct semel_serve *serve = ctx;
    report(serve, x, "alive", serve->view != NULL ? serve->view->alive : NULL);
}

static void handle_ready(void *ctx, struct semel_http_exchange *x)
{
    struct semel_serve *serve = ctx;
    if (atomic_load(&serve->stopping))
        semel__http_refuse(x, 503, "the process is stopping");
    else
        report(serve, x, "ready", serve->view != NULL ? serve->view->ready : NULL);
}

static void handle_routes(void *ctx, struct semel_http_exchange *x)
{
    struct semel_serve *serve = ctx;
    struct semel_buf *body = semel__http_body(x);
    semel__buf_addz(body, "{\"routes\":[");
    if (serve->view != NULL && serve->view->routes != NULL)
        serve->view->routes(serve->view->ctx, body);
    if (serve->view != NULL && serve->view->outboxes != NULL) {
        semel__buf_addz(body, "],\"outboxes\":[");
        serve->view->outboxes(serve->view->ctx, body);
    }
    if (serve->view != NULL && serve->view->gateways != NULL) {
        semel__buf_addz(body, "],\"gateways\":[");
        serve->view->gateways(serve->view->ctx, body);
    }
    semel__buf_addz(body, "]}\n");
    semel__http_answer(x, 200);
}

const struct semel_http_route semel__admin_routes[] = {
    {.methods = SEMEL_HTTP_BIT(GET), .path = "/metrics", .handle = handle_metrics},
    {.methods = SEMEL_HTTP_BIT(GET), .path = "/healthz", .handle = handle_health},
    {.methods = SEMEL_HTTP_BIT(GET), .path = "/readyz", .handle = handle_ready},
    {.methods = SEMEL_HTTP_BIT(GET), .path = "/v1/routes", .handle = handle_routes},
};
const size_t semel__admin_routes_n = sizeof(semel__admin_routes) / sizeof(semel__admin_routes[0]);
