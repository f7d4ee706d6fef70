/* SPDX-License-Identifier: MIT
 *
 * api.h: the operators' API over HTTP: what `semel inbox`, `semel outbox` and `semel consumer` do, with the
 * same JSON (ops/ops.h).
 *
 * The loop's thread only queues: one task of the daemon, with a store connection of its own, serves the queue. Bulk
 * commands run in the task too, one message per step, so that requests are answered between two messages. A reconcile
 * waits for the other side in a thread of its own, which touches no store, and comes back to the queue.
 * docs/http.md lists the paths.
 *
 * Invariants: a call belongs to the queue, or to the step that took it out, and is answered once. The queue, bodies,
 * answers, and the bulk commands that run at a time are bounded. An unknown member of a body or parameter of a query
 * is refused: a misspelt dry_run must not become a command.
 */
#ifndef SEMEL_ADMIN_API_H
#define SEMEL_ADMIN_API_H

#include "admin/serve_private.h"
#include "ops/ops.h"

#define SEMEL_API_CALLS 64                     /* waiting calls */
#define SEMEL_API_RUNS 8                       /* bulk commands at a time */
#define SEMEL_API_ASKING 8                     /* reconciles at a time */
#define SEMEL_API_BODY_MAX ((size_t)256 << 10) /* an outcome of 64 KiB, escaped */

struct semel_api *semel__api_new(struct semel_serve *serve);
void semel__api_free(struct semel_api *api);
/* Fills in the routes of the API; `read` and `write` are scopes. Returns their number, also with routes == NULL. */
size_t semel__api_routes(struct semel_api *api, unsigned read, unsigned write, struct semel_http_route *routes);

#endif
