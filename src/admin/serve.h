/* SPDX-License-Identifier: MIT
 *
 * serve.h: everything of a process that answers HTTP: admin and metrics, ingest, pull; on one loop (net/http.h).
 *
 * Admin:  GET /metrics /healthz /readyz (open), GET /v1/routes (open: names, guarantees, states; no ids); the API of
 *         operators, under the admin's tokens (api.h).
 * Ingest: a source like any other: a semel_broker whose deliveries are requests, answered when the inbox has committed.
 * Pull:   workers in any language fetch leased messages and settle them with their token.
 *
 *   POST PATH            one message: the body is the payload, the headers are its headers (a CloudEvent in binary
 *                        mode, or application/cloudevents+json in structured mode), Idempotency-Key or the route's
 *                        rule the id
 *   POST PATH (+ batch)  application/cloudevents-batch+json, or application/x-ndjson with one CloudEvent a line
 *      202 accepted | 200 duplicate | 409 conflict | 422 kept, and cannot run | 503 + Retry-After not taken: send again
 *      A batch is 200 with an array of the same words, in order, each with its status.
 *   POST PATH/take?max=&lease=&wait=  leased messages: [{token, id, source, type, attempt, key, headers, payload, ...}]
 *   POST PATH/renew      {token, lease}      200 | 409 lost
 *   POST PATH/settle     {token, result: done|transient|permanent|rejected|unknown, outcome, reason}   200 | 409 lost
 *   POST PATH/release    {token}             200 | 409 lost
 */
#ifndef SEMEL_ADMIN_SERVE_H
#define SEMEL_ADMIN_SERVE_H

#include "admin/stats.h"
#include "base/log.h"
#include "conf/conf.h"
#include "core/broker.h"

struct semel_serve;  /* the loop and its listeners */
struct semel_ingest; /* of one `listen` route */
struct semel_pull;   /* of one `pull` route */
struct semel_api;    /* of operators */

/* What the daemon tells of itself. Called in the loop's thread; must not block. */
struct semel_serve_view {
    void *ctx;
    /* false, with the reason appended: not ready. Alive: the threads turn; ready: schema there, sources and stores
     * connected, not stopping. */
    bool (*alive)(void *ctx, struct semel_buf *why);
    bool (*ready)(void *ctx, struct semel_buf *why);
    /* Appends {"name": ..., "guarantee": ..., "breaker": ..., ...}, ... for each route. */
    void (*routes)(void *ctx, struct semel_buf *json);
    void (*turns)(void *ctx); /* or NULL: the loop turns; called several times per second */
};

/* Binds all listeners that the settings ask for; nothing is answered before _run. Everything is borrowed for the life
 * of the server. *ret is NULL when nothing listens. */
semel_status semel__serve_new(struct semel_serve **ret, const struct semel_conf *conf, struct semel_stats *stats,
                              const struct semel_serve_view *view, struct semel_log *log, struct semel_error *err);
semel_status semel__serve_run(struct semel_serve *serve, struct semel_error *err); /* until it is stopped */
void semel__serve_stop(struct semel_serve *serve, uint64_t deadline_ms);           /* any thread */
/* Certificates are read again. Any thread. */
semel_status semel__serve_reload(struct semel_serve *serve, struct semel_error *err);
/* Tokens as freshly read settings have them (from files or the environment), for the routes that there are; nothing
 * else of `fresh` is used, and nothing is kept. INVALID: routes that shared a token do not any more. Any thread. */
semel_status semel__serve_tokens(struct semel_serve *serve, const struct semel_conf *fresh, struct semel_error *err);
void semel__serve_free(struct semel_serve *serve); /* after its brokers and pulls were closed */
/* The port that was bound for an address of the settings (port 0); 0: none. */
unsigned semel__serve_port(const struct semel_serve *serve, struct semel_str where);

/* The source of a `listen` route, one handle per worker. It is the caller's, to be closed before the server is freed.
 * It serves nothing yet. NULL: no memory. */
struct semel_broker *semel__serve_ingest(struct semel_serve *serve, const struct semel_route *route);
/* By the worker: from now on it polls, or it does not, and what it has polled is answered 503. While no worker of the
 * route serves, so is every request. */
void semel__ingest_serve(struct semel_broker *broker, bool on);
/* By the worker: how long ago the oldest message of its last poll came; 0: it had none. */
int64_t semel__ingest_age_us(const struct semel_broker *broker);
/* The route takes nothing before until_us (at most SEMEL_INGEST_FULL_US ahead): whoever waits, or comes until then, is
 * answered 503. Any thread. */
void semel__ingest_full(struct semel_broker *broker, int64_t until_us);

/* The circuit breaker of a `listen` route has changed. While it is not closed requests are answered 503 at once, with
 * the time to come again, but for one at a time when a probe is due; what waits when it opens is answered then. Any
 * thread. */
void semel__serve_paused(struct semel_serve *serve, const struct semel_route *route, const struct semel_breaker *now);

/* The requests of a `pull` route, served by one thread that owns the inbox: takes, renewals and ends wait in a queue.
 * Waits at most wait_ms for the first; answers everything that it took, or holds it (long polls) until a later call.
 * *ret_n: calls that had an effect. A status other than OK is the store's, and whom it concerns has been told 503: on
 * CLOSED the store is to be opened anew before the next step. The pull is serve's: closed, and got again, not freed. */
struct semel_pull *semel__serve_pull(struct semel_serve *serve, const struct semel_route *route);
semel_status semel__pull_step(struct semel_pull *pull, struct semel_inbox *inbox, int wait_ms, size_t *ret_n,
                              struct semel_error *err);
/* As many outcomes are unknown as may be: takes are answered 503 with the reason, ends go on. By who steps. */
void semel__pull_full(struct semel_pull *pull, bool full);
/* Did an end of the last step leave an unknown outcome? That step has handed nothing out after it. By who steps. */
bool semel__pull_unknown(const struct semel_pull *pull);
void semel__pull_wake(struct semel_pull *pull); /* something is due: long polls look again. Any thread. */
/* Everything that waits is answered with 503. By the thread that steps, or after it. */
void semel__pull_close(struct semel_pull *pull);

/* Requests of operators, served by one thread with a store of its own. NULL: there is no admin. */
struct semel_api *semel__serve_api(struct semel_serve *serve);
/* Waits at most wait_ms for a request, and answers it; then each bulk command that is due does one message. Not OK: the
 * store is away, and nothing was taken out of the queue. The same store as long as it is open. */
semel_status semel__api_step(struct semel_api *api, struct semel_store *store, int wait_ms, struct semel_error *err);
/* Whatever waits is answered 503. */
void semel__api_refuse(struct semel_api *api, const char *why);
/* The same, and bulk commands end between two messages; before the store is closed. */
void semel__api_close(struct semel_api *api);

#endif
