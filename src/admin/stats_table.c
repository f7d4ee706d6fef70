/* SPDX-License-Identifier: MIT
 *
 * stats_table.c: each family's name, kind, labels and help. Only descriptions; stats.c counts.
 */
#include "admin/stats_table.h"

/* Bounds: a consumer is a route (at most 256); source and type come with messages and may be anything. */
#define PER_ROUTE 256
#define MESSAGES_EACH 200
#define WHYS 32 /* and more */

static const char *const version_label[] = {"version"};
static const char *const consumer_label[] = {"consumer"};
static const char *const route_labels[] = {"consumer", "guarantee"};
static const char *const message_labels[] = {"consumer", "source", "type", "why"};
static const char *const result_labels[] = {"consumer", "result"};
static const char *const why_labels[] = {"consumer", "why"};
static const char *const class_labels[] = {"consumer", "class"};
static const char *const kind_labels[] = {"consumer", "kind"};
static const char *const breaker_labels[] = {"consumer", "state"};
static const char *const status_labels[] = {"consumer", "status"};
static const char *const pull_labels[] = {"consumer", "call", "result"};
static const char *const http_labels[] = {"path", "code"};
static const char *const path_label[] = {"path"};
static const char *const how_label[] = {"how"};
static const char *const outbox_label[] = {"outbox"};
static const char *const event_labels[] = {"outbox", "status"};
static const char *const ended_labels[] = {"outbox", "result"};
static const char *const destination_labels[] = {"outbox", "destination"};
static const char *const key_label[] = {"status"};
static const char *const cause_label[] = {"cause"};
static const char *const gateway_label[] = {"gateway"};
static const char *const gateway_labels[] = {"gateway", "guarantee"};
static const char *const gateway_result_labels[] = {"gateway", "result"};
static const char *const gateway_cause_labels[] = {"gateway", "cause"};

/* A batch or a call: from a millisecond to the longest time-out. */
static const double work_seconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                      0.5,   1,      2.5,   5,    10,    30,   60,  300};
/* From a put to its confirmation: from a millisecond to a backlog of a day. */
static const double publish_seconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                         0.5,   1,      5,     30,   300,   3600, 86400};
/* From the event to its effect: from milliseconds to a backlog of a week. */
static const double age_seconds[] = {0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400, 604800};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define LABELS(array) .labels = (array), .n_labels = COUNT(array)
#define BUCKETS(array) .buckets = (array), .n_buckets = COUNT(array)
#define COUNTER(title, what, names, most)                                                           \
    {                                                                                               \
        .kind = SEMEL_COUNTER, .name = (title), .help = (what), LABELS(names), .max_series = (most) \
    }
#define GAUGE(title, what, names, most)                                                           \
    {                                                                                             \
        .kind = SEMEL_GAUGE, .name = (title), .help = (what), LABELS(names), .max_series = (most) \
    }
#define HISTOGRAM(title, what, names, bounds, most)                                                                    \
    {                                                                                                                  \
        .kind = SEMEL_HISTOGRAM, .name = (title), .help = (what), LABELS(names), .max_series = (most), BUCKETS(bounds) \
    }

const struct semel_metric_spec semel__families[SEMEL_FAMILY_COUNT] = {
    [SEMEL_FAMILY_BUILD] = GAUGE("semel_build_info", "1, with the version of the program.", version_label, 1),
    [SEMEL_FAMILY_START] = {.kind = SEMEL_GAUGE,
                            .name = "process_start_time_seconds",
                            .help = "When the process started, in seconds since 1970."},
    [SEMEL_FAMILY_ROUTE] = GAUGE("semel_route_info", "1, with what the route promises, such as ATOMIC for 45 days.",
                                 route_labels, PER_ROUTE),

    [SEMEL_FAMILY_MESSAGES] = {.kind = SEMEL_COUNTER,
                               .name = "semel_messages_total",
                               .help = "Deliveries that were decided, by the reason. Duplicates are why=\"duplicate\", "
                                       "\"business_duplicate\" and \"stale\"; their part of all is the hit ratio. Past "
                                       "200 series of a consumer source and type are \"_other\".",
                               LABELS(message_labels),
                               .max_series = PER_ROUTE * (MESSAGES_EACH + WHYS),
                               .max_each = MESSAGES_EACH,
                               .outside = 1u << 1 | 1u << 2},
    [SEMEL_FAMILY_BATCH] = HISTOGRAM("semel_batch_seconds", "Time from delivery to commit, once per batch.",
                                     consumer_label, work_seconds, PER_ROUTE),
    [SEMEL_FAMILY_HANDLING] = HISTOGRAM("semel_handling_seconds",
                                        "Time from delivery to commit, once per message: each counts its batch's time.",
                                        consumer_label, work_seconds, PER_ROUTE),
    [SEMEL_FAMILY_AGE] = HISTOGRAM("semel_message_age_seconds",
                                   "From the time in the message to the commit, of messages that ran and have a time; "
                                   "by two machines' clocks.",
                                   consumer_label, age_seconds, PER_ROUTE),

    [SEMEL_FAMILY_ATTEMPTS] = COUNTER("semel_attempts_total",
                                      "Runs of the handler that were committed: done, failed or rejected.",
                                      result_labels, PER_ROUTE * 3),
    [SEMEL_FAMILY_FAILURES] =
        COUNTER("semel_failures_total",
                "Runs that did not succeed, by class: those of semel_attempts_total that failed or were rejected.",
                class_labels, PER_ROUTE * 16),
    [SEMEL_FAMILY_DEAD] = COUNTER("semel_dead_letters_total", "Messages that became dead letters.", consumer_label,
                                  PER_ROUTE),
    [SEMEL_FAMILY_CONFLICTS] = COUNTER("semel_conflicts_total", "Deliveries of a known id with another payload.",
                                       consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_PREVENTED] = COUNTER("semel_business_duplicates_prevented_total",
                                       "Deliveries of a new id whose business key was taken: not run.", consumer_label,
                                       PER_ROUTE),
    [SEMEL_FAMILY_ALERTS] = COUNTER("semel_alerts_total", "Alerts that were raised, by kind.", kind_labels,
                                    PER_ROUTE * 8),
    [SEMEL_FAMILY_RECOVERED] = COUNTER("semel_recovered_total", "Leases that ran out and were resolved.",
                                       consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_FENCED] = COUNTER("semel_fenced_total", "Ends that came too late and were refused.", consumer_label,
                                    PER_ROUTE),
    [SEMEL_FAMILY_PURGED] = COUNTER("semel_purged_total", "Old rows and business keys that were deleted.",
                                    consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_TRANSACTIONS] = COUNTER("semel_transactions_total", "Transactions of the inbox that were begun.",
                                          consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_CUTS] = COUNTER("semel_batch_cuts_total", "Batches that were rolled back and cut into pieces.",
                                  consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_CONTENTION] = COUNTER("semel_contention_total",
                                        "Of these, those that met others: deadlocks, lock time-outs, serialization.",
                                        consumer_label, PER_ROUTE),

    [SEMEL_FAMILY_ROWS] =
        GAUGE("semel_rows",
              "Rows of the inbox that are not final, by status: failed is waiting for a retry, dead for an operator, "
              "unknown for a reconcile. At least so many where semel_rows_capped is 1.",
              status_labels, PER_ROUTE * 10),
    [SEMEL_FAMILY_CAPPED] = GAUGE("semel_rows_capped", "1: the count of semel_rows stopped at its bound.",
                                  status_labels, PER_ROUTE * 10),
    [SEMEL_FAMILY_OLDEST] = GAUGE("semel_oldest_row_age_seconds",
                                  "How long ago the oldest row that is not final arrived, by status; 0: there is none.",
                                  status_labels, PER_ROUTE * 10),
    [SEMEL_FAMILY_LOOKED] = GAUGE("semel_rows_read_timestamp_seconds", "When the rows were counted last.",
                                  consumer_label, PER_ROUTE),

    [SEMEL_FAMILY_CALLS] = COUNTER("semel_outside_calls_total", "Calls of outside effects that ended, by result.",
                                   result_labels, PER_ROUTE * 5),
    [SEMEL_FAMILY_ASKED] =
        COUNTER("semel_reconcile_calls_total",
                "Calls that asked whether an effect has happened: done it has, transient it has not, "
                "maybe still unknown.",
                result_labels, PER_ROUTE * 5),
    [SEMEL_FAMILY_REFUSED] = COUNTER("semel_outside_keys_refused_total",
                                     "Calls whose key the other side had seen with something else.", consumer_label,
                                     PER_ROUTE),
    [SEMEL_FAMILY_CALL] = HISTOGRAM("semel_outside_call_seconds", "How long calls took, reconciles included.",
                                    consumer_label, work_seconds, PER_ROUTE),

    [SEMEL_FAMILY_BREAKER] = GAUGE("semel_breaker_state", "1 for the state that the route's breaker is in.",
                                   breaker_labels, PER_ROUTE * 3),
    [SEMEL_FAMILY_OPENINGS] =
        COUNTER("semel_breaker_openings_total",
                "How many times the route's breaker opened; a probe that fails does not open it again.", consumer_label,
                PER_ROUTE),
    [SEMEL_FAMILY_FULL] = GAUGE("semel_unknown_full",
                                "1: the consumer has unknown_max unknown outcomes, and the route takes nothing new.",
                                consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_HELD] = GAUGE("semel_route_held", "1: the route's settings are not those that are stored: it waits.",
                                consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_STORE_UP] = GAUGE("semel_store_up", "1: the route is connected to its store.", consumer_label,
                                    PER_ROUTE),
    [SEMEL_FAMILY_STORE_LOST] = COUNTER("semel_store_lost_total", "How many times the connection was lost.",
                                        consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_SOURCE_UP] = GAUGE("semel_source_up", "1: the route is connected to its source.", consumer_label,
                                     PER_ROUTE),
    [SEMEL_FAMILY_SOURCE_LOST] = COUNTER("semel_source_lost_total", "How many times the connection was lost.",
                                         consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_IN_FLIGHT] = GAUGE("semel_in_flight", "Deliveries that were taken and have no end yet.",
                                     consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_LAG] = GAUGE("semel_source_lag_messages",
                               "Messages that the source still has, as of its last answer; NaN: it cannot tell.",
                               consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_ASSIGNED] = GAUGE("semel_source_partitions", "Partitions that are ours; NaN: the source has none.",
                                    consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_STOPPED] = GAUGE("semel_source_partitions_stopped",
                                   "Of these, those that are not read because it is not known where to go on; the log "
                                   "names them. NaN: the source has none.",
                                   consumer_label, PER_ROUTE),

    [SEMEL_FAMILY_INGEST] = COUNTER("semel_ingest_messages_total",
                                    "Messages that came by HTTP, by what was answered; 503 when they were not taken.",
                                    result_labels, PER_ROUTE * 8),
    [SEMEL_FAMILY_UNSIGNED] = COUNTER(
        "semel_ingest_signatures_refused_total",
        "Requests to a route with `signature` that were refused for it: no_signature, wrong_signature, too_old, "
        "too_new.",
        why_labels, PER_ROUTE * 5),
    [SEMEL_FAMILY_WAITING] = GAUGE("semel_ingest_waiting", "Messages that came by HTTP and wait for their answer.",
                                   consumer_label, PER_ROUTE),
    [SEMEL_FAMILY_PULL] = COUNTER("semel_pull_calls_total",
                                  "What pull workers did: messages taken, renewed, settled, released; ok or lost.",
                                  pull_labels, PER_ROUTE * 8),
    [SEMEL_FAMILY_HTTP] = COUNTER("semel_http_requests_total", "Requests that were answered, by path and status.",
                                  http_labels, 2000),
    [SEMEL_FAMILY_HTTP_TIME] = HISTOGRAM("semel_http_request_seconds",
                                         "From the end of a request's head to its answer.", path_label, work_seconds,
                                         1100),
    [SEMEL_FAMILY_CROWDED] = COUNTER("semel_http_connections_dropped_total",
                                     "Connections that were closed for want of room: gave_way, because it had not sent "
                                     "a request, or refused, because all others were at work.",
                                     how_label, 2),

    [SEMEL_FAMILY_EVENTS] =
        GAUGE("semel_outbox_events",
              "Events that are not published yet, by status: created is the backlog, dead waits for "
              "an operator. Counting stops at 10000.",
              event_labels, PER_ROUTE * 5),
    [SEMEL_FAMILY_EVENTS_OLDEST] = GAUGE("semel_outbox_oldest_age_seconds",
                                         "How long ago the oldest of these events was created; 0: there is none.",
                                         event_labels, PER_ROUTE * 5),
    [SEMEL_FAMILY_EVENTS_LOOKED] = GAUGE("semel_outbox_read_timestamp_seconds", "When the events were counted last.",
                                         outbox_label, PER_ROUTE),
    [SEMEL_FAMILY_EVENTS_ENDED] = COUNTER(
        "semel_outbox_results_total",
        "What came of events in this process: published, refused (tried again later), dead, aside (moved because "
        "they could not go), unknown (no answer: sent again under the same id), retried (not taken, because the "
        "broker or the destination is down: sent again, and not charged).",
        ended_labels, PER_ROUTE * 6),
    [SEMEL_FAMILY_RELAY_UP] = GAUGE("semel_outbox_relay_up", "1: the relay of this process works.", outbox_label,
                                    PER_ROUTE),
    [SEMEL_FAMILY_RELAY_SHARDS] = GAUGE("semel_outbox_relay_shards",
                                        "Shards of the outbox that the relay of this process publishes.", outbox_label,
                                        PER_ROUTE),
    [SEMEL_FAMILY_RELAY_DOWN] = GAUGE("semel_outbox_destinations_down",
                                      "Destinations that did not take what this process sent; the log names them.",
                                      outbox_label, PER_ROUTE),
    [SEMEL_FAMILY_HOLDER_PID] = GAUGE("semel_outbox_holder_pid",
                                      "Process id of the open transaction that has put an event and is open for "
                                      "longest; 0: there is none, or it is prepared. PostgreSQL only.",
                                      outbox_label, PER_ROUTE),
    [SEMEL_FAMILY_HOLDER_AGE] =
        GAUGE("semel_outbox_holder_age_seconds",
              "How long that transaction has been open, or prepared; 0: there is none. NaN: this "
              "role may not see it without pg_read_all_stats.",
              outbox_label, PER_ROUTE),
    [SEMEL_FAMILY_PUBLISH_TIME] = HISTOGRAM("semel_outbox_publish_seconds",
                                            "From created_at of an event, which is set when it is put, to the broker's "
                                            "confirmation; by the database's clock.",
                                            outbox_label, publish_seconds, PER_ROUTE),
    [SEMEL_FAMILY_DESTINATION_DOWN] = GAUGE("semel_outbox_destination_down",
                                            "1: the destination did not take what this process sent last; 0: it did. "
                                            "Of a URL the label is the part before its path: how many there are down.",
                                            destination_labels, 1100),
    [SEMEL_FAMILY_LONGEST] = GAUGE("semel_outbox_longest_aggregate_events",
                                   "Events aside of the aggregate that has most of them; `semel status` names it.",
                                   outbox_label, PER_ROUTE),
    [SEMEL_FAMILY_NOTIFIED] = COUNTER("semel_outbox_notified_total",
                                      "Waits of the relay that a notification has ended (notify: true).", outbox_label,
                                      PER_ROUTE),

    [SEMEL_FAMILY_KEYS] = GAUGE("semel_idempotency_keys",
                                "Idempotency keys without an answer, by status: processing is running, unknown waits "
                                "for a reconcile or a person. Counting stops at 10000.",
                                key_label, 2),
    [SEMEL_FAMILY_KEYS_STUCK] = {.kind = SEMEL_GAUGE,
                                 .name = "semel_idempotency_stuck_keys",
                                 .help = "Of those that are processing, whose lease ran out: nobody holds them."},
    [SEMEL_FAMILY_KEYS_UNKNOWN] = GAUGE("semel_idempotency_unknown_keys",
                                        "Those that are unknown, by cause; rare causes are \"_other\".", cause_label,
                                        33),
    [SEMEL_FAMILY_KEYS_OLDEST] = {.kind = SEMEL_GAUGE,
                                  .name = "semel_idempotency_oldest_unknown_age_seconds",
                                  .help = "How long ago the oldest of these became unknown; 0: there is none."},
    [SEMEL_FAMILY_KEYS_LOOKED] = {.kind = SEMEL_GAUGE,
                                  .name = "semel_idempotency_read_timestamp_seconds",
                                  .help = "When the keys were counted last."},
    [SEMEL_FAMILY_GATEWAY] = GAUGE("semel_gateway_info", "1, with what the gateway promises: ATOMIC or GUARDED.",
                                   gateway_labels, PER_ROUTE),
    [SEMEL_FAMILY_GATEWAY_UP] = GAUGE("semel_gateway_up", "1: the gateway listens, and its store is there.",
                                      gateway_label, PER_ROUTE),
    [SEMEL_FAMILY_GATEWAY_REQUESTS] =
        COUNTER("semel_gateway_requests_total",
                "Requests by what came of them. Guarded: completed (the answer is stored), released, unknown, replayed "
                "(answered from the store), passed (unguarded, because the store was away); refused: mismatch (the key "
                "came with another request), running (409 after the wait), unknown_outcome (409), missing, malformed, "
                "anonymous, forbidden, too_large, overloaded, not_stored. Unguarded: answered, refused, left, failed.",
                gateway_result_labels, PER_ROUTE * 24),
    [SEMEL_FAMILY_GATEWAY_UNKNOWN] = COUNTER("semel_gateway_unknown_total",
                                             "Calls whose key became unknown, by the cause.", gateway_cause_labels,
                                             PER_ROUTE * 32),
    [SEMEL_FAMILY_GATEWAY_RUNNING] = GAUGE("semel_gateway_running", "Guarded requests that have no end yet.",
                                           gateway_label, PER_ROUTE),
    [SEMEL_FAMILY_GATEWAY_UNSTORED] = GAUGE("semel_gateway_unstored_answers",
                                            "Of these, those whose answer could not be stored yet.", gateway_label,
                                            PER_ROUTE),
    [SEMEL_FAMILY_GATEWAY_HELD] = GAUGE("semel_gateway_held_bytes", "Bytes of bodies and answers in memory.",
                                        gateway_label, PER_ROUTE),
};
