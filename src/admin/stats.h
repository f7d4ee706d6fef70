/* SPDX-License-Identifier: MIT
 *
 * stats.h: the metrics of a process and its routes (requirements, part M), as Prometheus families.
 *
 * Invariants: any thread may call everything, and it costs a worker little: it remembers the series that it used
 * last. Labels are consumer, source, type, why, state, kind ...: never an id. The number of series is bounded.
 */
#ifndef SEMEL_ADMIN_STATS_H
#define SEMEL_ADMIN_STATS_H

#include "base/metrics.h"
#include "core/inbox.h"
#include "store/query.h"

struct semel_stats;
struct semel_route_stats;   /* of one route */
struct semel_worker_stats;  /* of one worker of it, used by its thread alone */
struct semel_outbox_stats;  /* of one outbox */
struct semel_gateway_stats; /* of one gateway */

semel_status semel__stats_new(struct semel_stats **ret, struct semel_error *err);
void semel__stats_free(struct semel_stats *stats);
struct semel_metrics *semel__stats_metrics(struct semel_stats *stats);

/* Before the threads start. Lives as long as the stats. NULL: no memory. */
struct semel_route_stats *semel__stats_route(struct semel_stats *stats, struct semel_str consumer,
                                             const char *guarantee);
struct semel_worker_stats *semel__stats_worker(struct semel_route_stats *route);

/* A batch was decided: counts the result of each message, by why, type and source; took_us from its delivery to the
 * commit. */
void semel__stats_report(struct semel_worker_stats *worker, const struct semel__msg *msgs,
                         const struct semel_settled *settled, size_t n, int64_t took_us);
/* Adds what the inbox has counted since the last call: done, failed (by class too), recovered, purged, fenced, cuts,
 * transactions ... semel__stats_alert counts its alerts. */
void semel__stats_counts(struct semel_worker_stats *worker, const struct semel_counts *now);
void semel__stats_alert(struct semel_route_stats *route, enum semel_alert alert);
/* One outside call ended. */
void semel__stats_call(struct semel_route_stats *route, enum semel_result result, bool asked, bool refused_key,
                       int64_t took_us);
void semel__stats_full(struct semel_route_stats *route, bool full); /* unknown_max is reached */
void semel__stats_breaker(struct semel_route_stats *route, enum semel_breaker_state state);
/* Connections: whether store and source are up, and how often they were lost. */
/* 1: its settings differ from the stored ones, and it waits. */
void semel__stats_held(struct semel_route_stats *route, bool held);
void semel__stats_store_up(struct semel_route_stats *route, bool up);
void semel__stats_source_up(struct semel_route_stats *route, bool up);
/* behind, assigned, stopped: -1 where the source does not know. */
void semel__stats_source(struct semel_route_stats *route, size_t in_flight, int64_t behind, int64_t assigned,
                         int64_t stopped);
/* Gauges from the store: rows by state, the age of the oldest unfinished one. */
void semel__stats_rows(struct semel_route_stats *route, const struct semel_count *counts, size_t n, int64_t now_us);

/* Before the threads start. Lives as long as the stats. NULL: no memory. */
struct semel_outbox_stats *semel__stats_outbox(struct semel_stats *stats, struct semel_str name);
/* What the relay has counted since the last time, by its thread alone; how many shards are its own, and how many
 * destinations are down. */
void semel__stats_relay(struct semel_outbox_stats *outbox, const struct semel_relay_counts *now, size_t shards,
                        size_t down);
void semel__stats_relay_up(struct semel_outbox_stats *outbox, bool up);
/* An event was confirmed, so long after it was put. */
void semel__stats_published(struct semel_outbox_stats *outbox, int64_t after_us);
/* A notification has ended a wait. */
void semel__stats_notified(struct semel_outbox_stats *outbox);
/* Which destinations are down. */
void semel__stats_destinations(struct semel_outbox_stats *outbox, const struct semel_relay *relay);
/* Gauges from the store. */
void semel__stats_outbox_rows(struct semel_outbox_stats *outbox, const struct semel_outbox_state *state,
                              int64_t now_us);

/* Gauges of idempotency keys, from the store. By one thread. */
void semel__stats_keys_rows(struct semel_stats *stats, const struct semel_keys_state *state, int64_t now_us);

/* Before the threads start. Lives as long as the stats. NULL: no memory. */
struct semel_gateway_stats *semel__stats_gateway(struct semel_stats *stats, struct semel_str name,
                                                 const char *guarantee);
/* What has come of requests, and why keys became unknown, since the start: by one thread. */
void semel__stats_gateway_result(struct semel_gateway_stats *gateway, const char *result, uint64_t now);
void semel__stats_gateway_unknown(struct semel_gateway_stats *gateway, const char *cause, uint64_t now);
struct semel_gateway_now {
    bool up;
    int64_t running, unstored, held_bytes;
};
void semel__stats_gateway_now(struct semel_gateway_stats *gateway, const struct semel_gateway_now *now);

#endif
