/* SPDX-License-Identifier: MIT
 *
 * serve.h: the HTTP servers of a process: admin and metrics, ingest, pull; on one loop (net/http.h).
 *
 * Admin:  GET /metrics /healthz /readyz (open), GET /v1/routes (open: names, guarantees, states; no ids); the API of
 *         operators, under the admin's tokens (api.h).
 * Ingest: a source like any other: a semel_broker whose deliveries are requests, answered when the inbox has committed.
 * Pull:   workers in any language fetch leased messages and settle them with their token.
 *
 *   POST PATH            one message: the body is the payload, the headers are its headers (a CloudEvent in binary
 *                        mode, or application/cloudevents+json in structured mode), Idempotency-Key or the route's
 *                        rule the id
 *   POST PATH (+ batch)  application/cloudevents-batch+json, or application/x-ndjson with one CloudEvent per line
 *      202 accepted | 200 duplicate | 409 conflict | 422 kept, and cannot run | 503 + Retry-After not taken: send again
 *      A batch is 200 with an array of the same words, in order, each with its status.
 *   POST PATH/take?max=&lease=&wait=  leased messages: [{token, id, source, type, attempt, headers, payload, ...}]
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

/* What the daemon reports about itself. Called in the loop's thread; must not block. */
struct semel_serve_view {
    void *ctx;
    /* false, with the reason appended: not alive, not ready. Alive: the threads run; ready: the schema exists, sources
     * and stores are connected, not stopping. */
    bool (*alive)(void *ctx, struct semel_buf *why);
    bool (*ready)(void *ctx, struct semel_buf *why);
    /* Appends {"name": ..., "guarantee": ..., "breaker": ..., ...}, ... for each route. */
    void (*routes)(void *ctx, struct semel_buf *json);
    void (*outboxes)(void *ctx, struct semel_buf *json); /* or NULL: the same of each outbox */
    void (*gateways)(void *ctx, struct semel_buf *json); /* or NULL: the same of each gateway */
    void (*turns)(void *ctx); /* or NULL: called several times per second while the loop runs */
};

/* Binds all listeners of the settings; answers nothing before _run. Everything is borrowed for the life of the server.
 * *ret is NULL when nothing listens. */
semel_status semel__serve_new(struct semel_serve **ret, const struct semel_conf *conf, struct semel_stats *stats,
                              const struct semel_serve_view *view, struct semel_log *log, struct semel_error *err);
semel_status semel__serve_run(struct semel_serve *serve, struct semel_error *err); /* until it is stopped */
void semel__serve_stop(struct semel_serve *serve, uint64_t deadline_ms);           /* any thread */
/* Reads certificates again, which are used from _reloaded on, or dropped there: as those of net/http.h. */
semel_status semel__serve_reload(struct semel_serve *serve, struct semel_error *err);
void semel__serve_reloaded(struct semel_serve *serve, bool use);
/* Takes the tokens of freshly read settings (from files or the environment), for the existing routes; nothing else of
 * `fresh` is used or kept. INVALID: routes that shared a token no longer do. Any thread. */
semel_status semel__serve_tokens(struct semel_serve *serve, const struct semel_conf *fresh, struct semel_error *err);
void semel__serve_free(struct semel_serve *serve); /* after its brokers and pulls were closed */
/* The port that was bound for an address of the settings (port 0); 0: none. */
unsigned semel__serve_port(const struct semel_serve *serve, struct semel_str where);

/* The source of a `listen` route, one handle per worker. It belongs to the caller, who closes it before the server is
 * freed. It serves nothing yet. NULL: no memory. */
struct semel_broker *semel__serve_ingest(struct semel_serve *serve, const struct semel_route *route);
/* By the worker: it starts to poll, or stops, and its polled messages are answered 503. While no worker of the route
 * serves, every request is answered 503. */
void semel__ingest_serve(struct semel_broker *broker, bool on);
/* By the worker: how long ago the oldest message of its last poll came; 0: it had none. */
int64_t semel__ingest_age_us(const struct semel_broker *broker);
/* The route accepts nothing before until_us (at most SEMEL_INGEST_FULL_US ahead): waiting and new requests are answered
 * 503. Any thread. */
void semel__ingest_full(struct semel_broker *broker, int64_t until_us);

/* The circuit breaker of a `listen` route has changed. While it is not closed, requests are answered 503 at once, with
 * the time to retry, except one at a time when a probe is due; requests that wait when it opens are answered then. Any
 * thread. */
void semel__serve_paused(struct semel_serve *serve, const struct semel_route *route, const struct semel_breaker *now);

/* The requests of a `pull` route, served by one thread that owns the inbox: takes, renewals and ends wait in a queue.
 * Waits at most wait_ms for the first; answers everything that it took, or holds it (long polls) until a later call.
 * *ret_n: calls that had an effect. A status other than OK comes from the store, and the calls concerned were answered
 * 503: after CLOSED reopen the store before the next step. The pull belongs to serve: close it and get it again, do not
 * free it. */
struct semel_pull *semel__serve_pull(struct semel_serve *serve, const struct semel_route *route);
semel_status semel__pull_step(struct semel_pull *pull, struct semel_inbox *inbox, int wait_ms, size_t *ret_n,
                              struct semel_error *err);
/* unknown_max is reached: takes are answered 503 with the reason, ends continue. Only the stepping thread. */
void semel__pull_full(struct semel_pull *pull, bool full);
/* Did an end of the last step leave an unknown outcome? That step has given out nothing after it. Only the stepping
 * thread. */
bool semel__pull_unknown(const struct semel_pull *pull);
void semel__pull_wake(struct semel_pull *pull); /* something is due: long polls try again. Any thread. */
/* Answers everything that waits with 503. Only the stepping thread, or after it has ended. */
void semel__pull_close(struct semel_pull *pull);

/* Requests of operators, served by one thread with a store of its own. NULL: there is no admin. */
struct semel_api *semel__serve_api(struct semel_serve *serve);
/* Waits at most wait_ms for a request and answers it; then each bulk command that is due does one message. Not OK: the
 * store is unavailable, and the queue is unchanged. Always pass the same store while it is open. */
semel_status semel__api_step(struct semel_api *api, struct semel_store *store, int wait_ms, struct semel_error *err);
/* Answers all waiting calls with 503. */
void semel__api_refuse(struct semel_api *api, const char *why);
/* The same, and bulk commands end between two messages; call it before the store is closed. */
void semel__api_close(struct semel_api *api);

#endif
