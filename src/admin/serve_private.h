/* SPDX-License-Identifier: MIT
 *
 * serve_private.h: what serve.c, ingest.c and pull.c share.
 *
 * An endpoint stands between the loop's thread and a thread of the daemon: requests of one route wait in it. The loop's
 * thread puts them in and answers those that have waited for too long (`overdue`); the route's thread takes them out.
 *
 * Invariants: an exchange belongs to the endpoint from the moment it is put in until it is answered. It is answered
 * under the endpoint's lock or after it was taken out, so once. Times are milliseconds of CLOCK_MONOTONIC.
 */
#ifndef SEMEL_ADMIN_SERVE_PRIVATE_H
#define SEMEL_ADMIN_SERVE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/wait.h"
#include "admin/serve.h"
#include "admin/stats_table.h"
#include "net/http.h"

#define SEMEL_ANSWER_MS 30000              /* the longest that a request waits for the daemon */
#define SEMEL_PULL_BYTES ((size_t)8 << 20) /* of an answer to a take; the first message is always sent */

struct semel_serve_listener {
    struct semel_setting_server server;
    bool admin;
    struct semel_http_listener *listener;
    struct semel_http_route *routes;
    size_t n_routes;
    struct semel_http_token tokens[16]; /* the texts belong to the settings */
    size_t n_tokens;
    const char *hosts[64];
    size_t body_max;
};

/* When a line may be logged again, and how often it was left out. One thread at a time uses it. */
struct semel_seldom {
    int64_t next_ms;
    uint64_t n;
};

struct semel_serve {
    const struct semel_conf *conf;
    struct semel_stats *stats;
    const struct semel_serve_view *view;
    struct semel_log *log;
    struct semel_http *http;
    struct semel_serve_listener *listeners;
    size_t n_listeners;
    struct semel_ingest *ingests; /* linked */
    struct semel_pull *pulls;
    struct semel_api *api;    /* NULL: there is no admin */
    struct semel_arena arena; /* paths */
    int64_t answer_ms;        /* for a take: SEMEL_ANSWER_MS; shorter in tests */
    struct semel_seldom strangers, crowd;
    atomic_bool stopping;
};

/* At most one line per second of a kind, with their number: clients without a token decide how often these happen. */
bool semel__endpoint_logs(struct semel_seldom *seldom, uint64_t *ret_n);
/* Answers 503 with Retry-After. */
void semel__endpoint_later(struct semel_http_exchange *x, int after_s, const char *why);
void semel__endpoint_count(struct semel_serve *serve, enum semel_family family, struct semel_str consumer,
                           const char *second, const char *third, uint64_t n);

/* ---- admin.c: the pages of admin ---- */
extern const struct semel_http_route semel__admin_routes[];
extern const size_t semel__admin_routes_n;

/* ---- endpoints; linked to serve, which frees them ---- */
struct semel_ingest *semel__ingest_new(struct semel_serve *serve, const struct semel_route *route);
void semel__ingest_free(struct semel_ingest *ingest);
extern const struct semel_http_route semel__ingest_route; /* without path, scope, body_max and ctx */
/* Takes the secrets of the fresh settings of its route, where they are to be applied and not only looked at. INVALID:
 * they have changed in a way that needs a restart. */
semel_status semel__ingest_rekey(struct semel_ingest *ingest, const struct semel_conf *fresh, bool apply,
                                 struct semel_error *err);

struct semel_pull *semel__pull_new(struct semel_serve *serve, const struct semel_route *route);
void semel__pull_free_all(struct semel_pull *pulls);
size_t semel__pull_waiting(struct semel_pull *pull); /* for tests: how many calls wait */
#define SEMEL_PULL_ROUTES 4
/* Without scope and ctx; each path stands behind that of the settings. */
extern const struct semel_http_route semel__pull_routes[SEMEL_PULL_ROUTES];

#endif
