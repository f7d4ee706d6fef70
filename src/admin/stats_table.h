/* SPDX-License-Identifier: MIT
 *
 * stats_table.h: the families of a process, for stats.c and serve.c. docs/metrics.md is this table.
 *
 * Invariants: a family is named in SEMEL_FAMILY_MAP and described in stats_table.c, nowhere else; its labels are few
 * and none of them is an id.
 */
#ifndef SEMEL_ADMIN_STATS_TABLE_H
#define SEMEL_ADMIN_STATS_TABLE_H

#include "base/metrics.h"

#define SEMEL_FAMILY_MAP(X) \
    X(BUILD)                \
    X(START)                \
    X(ROUTE)                \
    X(MESSAGES)             \
    X(BATCH)                \
    X(HANDLING)             \
    X(AGE)                  \
    X(ATTEMPTS)             \
    X(FAILURES)             \
    X(DEAD)                 \
    X(CONFLICTS)            \
    X(PREVENTED)            \
    X(ALERTS)               \
    X(RECOVERED)            \
    X(FENCED)               \
    X(PURGED)               \
    X(TRANSACTIONS)         \
    X(CUTS)                 \
    X(CONTENTION)           \
    X(ROWS)                 \
    X(CAPPED)               \
    X(OLDEST)               \
    X(LOOKED)               \
    X(CALLS)                \
    X(ASKED)                \
    X(REFUSED)              \
    X(CALL)                 \
    X(BREAKER)              \
    X(OPENINGS)             \
    X(FULL)                 \
    X(HELD)                 \
    X(STORE_UP)             \
    X(STORE_LOST)           \
    X(SOURCE_UP)            \
    X(SOURCE_LOST)          \
    X(IN_FLIGHT)            \
    X(LAG)                  \
    X(ASSIGNED)             \
    X(STOPPED)              \
    X(INGEST)               \
    X(UNSIGNED)             \
    X(WAITING)              \
    X(PULL)                 \
    X(HTTP)                 \
    X(HTTP_TIME)            \
    X(CROWDED)              \
    X(EVENTS)               \
    X(EVENTS_OLDEST)        \
    X(EVENTS_LOOKED)        \
    X(EVENTS_ENDED)         \
    X(RELAY_UP)             \
    X(RELAY_SHARDS)         \
    X(RELAY_DOWN)           \
    X(HOLDER_PID)           \
    X(HOLDER_AGE)           \
    X(PUBLISH_TIME)         \
    X(DESTINATION_DOWN)     \
    X(LONGEST)              \
    X(NOTIFIED)             \
    X(KEYS)                 \
    X(KEYS_STUCK)           \
    X(KEYS_UNKNOWN)         \
    X(KEYS_OLDEST)          \
    X(KEYS_LOOKED)          \
    X(GATEWAY)              \
    X(GATEWAY_UP)           \
    X(GATEWAY_REQUESTS)     \
    X(GATEWAY_UNKNOWN)      \
    X(GATEWAY_RUNNING)      \
    X(GATEWAY_UNSTORED)     \
    X(GATEWAY_HELD)

enum semel_family {
#define X(name) SEMEL_FAMILY_##name,
    SEMEL_FAMILY_MAP(X)
#undef X
        SEMEL_FAMILY_COUNT
};

struct semel_stats;
struct semel_metric *semel__stats_family(struct semel_stats *stats, enum semel_family family);

extern const struct semel_metric_spec semel__families[SEMEL_FAMILY_COUNT];

#endif
