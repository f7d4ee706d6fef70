/* SPDX-License-Identifier: MIT
 *
 * stats.c: counts into the families of stats_table.c. It decides nothing and keeps only numbers.
 *
 * A route's series are looked up once, when it is made; each worker remembers those whose labels come with messages,
 * by source, type and why. A run of messages with the same labels in a batch is one addition. New labels cost a
 * lookup under a lock; a batch may do MISSES_MAX of them, its other new labels are counted as "_other": a sender that
 * uses a new type with every message does not slow us down.
 *
 * Invariants: sums stay true whatever the labels are; the counters of a worker's inbox are added once, by difference;
 * a loss is counted when a connection that was up goes down.
 */
#include "admin/stats.h"

#include <math.h>
#include <stdatomic.h>

#include "admin/stats_table.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/state.h"
#include "semel/semel.h"

#define SLOTS 256 /* a power of two */
#define MISSES_MAX 64
#define BREAKERS (SEMEL_BREAKER_PROBING + 1)

static const char *const alert_names[SEMEL_ALERT_COUNT] = {
    [SEMEL_ALERT_DEAD] = "dead",
    [SEMEL_ALERT_CONFLICT] = "conflict",
    [SEMEL_ALERT_QUARANTINED] = "quarantined",
    [SEMEL_ALERT_UNKNOWN] = "unknown",
    [SEMEL_ALERT_GAP] = "gap",
    [SEMEL_ALERT_DAMAGED] = "damaged",
    [SEMEL_ALERT_PARKED_FULL] = "parked_full",
};
static const char *const breaker_names[BREAKERS] = {"closed", "open", "probing"};

struct semel_worker_stats {
    struct semel_route_stats *route;
    struct semel_worker_stats *next;
    struct semel_counts last;
    struct slot {
        struct semel_series *series; /* NULL: empty */
        enum semel_why why;
        size_t n_source, n_type;
        char bytes[2 * SEMEL_LABEL_MAX];
    } slots[SLOTS];
};

struct semel_route_stats {
    struct semel_stats *stats;
    struct semel_route_stats *next;
    struct semel_worker_stats *workers;
    struct semel_str consumer; /* its bytes stand behind the struct */
    struct semel_series *batch, *handling, *age;
    struct semel_series *done, *failed, *rejected;
    struct semel_series *dead, *conflicts, *prevented;
    struct semel_series *recovered, *fenced, *purged, *transactions, *cuts, *contention;
    struct semel_series *alerts[SEMEL_ALERT_COUNT];
    struct semel_series *rows[SEMEL_ROW_COUNT], *capped[SEMEL_ROW_COUNT], *oldest[SEMEL_ROW_COUNT], *looked;
    struct semel_series *breaker[BREAKERS], *openings, *full, *held;
    struct semel_series *store_up, *store_lost, *source_up, *source_lost, *in_flight;
    _Atomic int breaker_now;
    _Atomic bool store_was_up, source_was_up;
};

struct semel_outbox_stats {
    struct semel_stats *stats;
    struct semel_outbox_stats *next;
    struct semel_str name; /* its bytes stand behind the struct */
    struct semel_relay_counts last;
    struct semel_series *time;
};

#define SERIES_MAX 64 /* of one gateway, that are counted by difference */
struct semel_gateway_stats {
    struct semel_stats *stats;
    struct semel_gateway_stats *next;
    struct semel_str name; /* its bytes stand behind the struct */
    struct {
        struct semel_series *series;
        uint64_t last;
    } counted[SERIES_MAX];
    size_t n_counted;
};

#define CAUSES_KEPT 32
struct semel_stats {
    struct semel_metrics *metrics;
    struct semel_metric *families[SEMEL_FAMILY_COUNT];
    struct semel_route_stats *routes;
    struct semel_outbox_stats *outboxes;
    struct semel_gateway_stats *gateways;
    /* Causes of unknown keys that were seen, so that a gauge falls back to 0; their texts are copies. */
    struct semel_str causes[CAUSES_KEPT];
    size_t n_causes;
};

struct semel_metric *semel__stats_family(struct semel_stats *stats, enum semel_family family)
{
    return stats->families[family];
}

struct semel_metrics *semel__stats_metrics(struct semel_stats *stats)
{
    return stats->metrics;
}

static void introduce(struct semel_stats *stats)
{
    struct semel_str version = semel__str(semel_version());
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_BUILD], &version), 1);
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_START], NULL),
                     (double)semel__now(&semel__clock_real) / 1e6);
}

semel_status semel__stats_new(struct semel_stats **ret, struct semel_error *err)
{
    struct semel_stats *stats = semel__calloc(1, sizeof(*stats));
    if (stats == NULL)
        return semel__fail_memory(err);
    semel_status status = semel__metrics_new(&stats->metrics, err);
    for (size_t i = 0; status == SEMEL_OK && i < SEMEL_FAMILY_COUNT; i++)
        status = semel__metric_add(stats->metrics, &semel__families[i], &stats->families[i], err);
    if (status != SEMEL_OK) {
        semel__stats_free(stats);
        return status;
    }
    introduce(stats);
    *ret = stats;
    return SEMEL_OK;
}

static void route_free(struct semel_route_stats *route)
{
    struct semel_worker_stats *worker = route->workers;
    while (worker != NULL) {
        struct semel_worker_stats *next = worker->next;
        semel__free(worker);
        worker = next;
    }
    semel__free(route);
}

void semel__stats_free(struct semel_stats *stats)
{
    if (stats == NULL)
        return;
    struct semel_route_stats *route = stats->routes;
    while (route != NULL) {
        struct semel_route_stats *next = route->next;
        route_free(route);
        route = next;
    }
    while (stats->outboxes != NULL) {
        struct semel_outbox_stats *next = stats->outboxes->next;
        semel__free(stats->outboxes);
        stats->outboxes = next;
    }
    while (stats->gateways != NULL) {
        struct semel_gateway_stats *next = stats->gateways->next;
        semel__free(stats->gateways);
        stats->gateways = next;
    }
    for (size_t i = 0; i < stats->n_causes; i++)
        semel__free((char *)(uintptr_t)stats->causes[i].p);
    semel__metrics_free(stats->metrics);
    semel__free(stats);
}

/* ---- the series of a route ------------------------------------------------------------------------- */

static struct semel_series *one(const struct semel_route_stats *route, enum semel_family family)
{
    return semel__metric_at(route->stats->families[family], &route->consumer);
}

static struct semel_series *two(const struct semel_route_stats *route, enum semel_family family, const char *second)
{
    struct semel_str values[] = {route->consumer, semel__str(second)};
    return semel__metric_at(route->stats->families[family], values);
}

static void bind_counters(struct semel_route_stats *r)
{
    r->batch = one(r, SEMEL_FAMILY_BATCH);
    r->handling = one(r, SEMEL_FAMILY_HANDLING);
    r->age = one(r, SEMEL_FAMILY_AGE);
    r->done = two(r, SEMEL_FAMILY_ATTEMPTS, "done");
    r->failed = two(r, SEMEL_FAMILY_ATTEMPTS, "failed");
    r->rejected = two(r, SEMEL_FAMILY_ATTEMPTS, "rejected");
    r->dead = one(r, SEMEL_FAMILY_DEAD);
    r->conflicts = one(r, SEMEL_FAMILY_CONFLICTS);
    r->prevented = one(r, SEMEL_FAMILY_PREVENTED);
    r->recovered = one(r, SEMEL_FAMILY_RECOVERED);
    r->fenced = one(r, SEMEL_FAMILY_FENCED);
    r->purged = one(r, SEMEL_FAMILY_PURGED);
    r->transactions = one(r, SEMEL_FAMILY_TRANSACTIONS);
    r->cuts = one(r, SEMEL_FAMILY_CUTS);
    r->contention = one(r, SEMEL_FAMILY_CONTENTION);
    for (size_t i = 0; i < SEMEL_ALERT_COUNT; i++)
        r->alerts[i] = two(r, SEMEL_FAMILY_ALERTS, alert_names[i]);
}

/* Final rows have counters; a gauge of them would have to read far too many rows. */
static void bind_gauges(struct semel_route_stats *r)
{
    for (enum semel_row_status s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++) {
        if (semel__state_final(s))
            continue;
        r->rows[s] = two(r, SEMEL_FAMILY_ROWS, semel__row_status_name(s));
        r->capped[s] = two(r, SEMEL_FAMILY_CAPPED, semel__row_status_name(s));
        r->oldest[s] = two(r, SEMEL_FAMILY_OLDEST, semel__row_status_name(s));
    }
    r->looked = one(r, SEMEL_FAMILY_LOOKED);
    for (size_t i = 0; i < BREAKERS; i++)
        r->breaker[i] = two(r, SEMEL_FAMILY_BREAKER, breaker_names[i]);
    semel__gauge_set(r->breaker[SEMEL_BREAKER_CLOSED], 1);
    r->openings = one(r, SEMEL_FAMILY_OPENINGS);
    r->full = one(r, SEMEL_FAMILY_FULL);
    r->held = one(r, SEMEL_FAMILY_HELD);
    r->store_up = one(r, SEMEL_FAMILY_STORE_UP);
    r->store_lost = one(r, SEMEL_FAMILY_STORE_LOST);
    r->source_up = one(r, SEMEL_FAMILY_SOURCE_UP);
    r->source_lost = one(r, SEMEL_FAMILY_SOURCE_LOST);
    r->in_flight = one(r, SEMEL_FAMILY_IN_FLIGHT);
}

struct semel_route_stats *semel__stats_route(struct semel_stats *stats, struct semel_str consumer,
                                             const char *guarantee)
{
    struct semel_route_stats *route = semel__calloc(1, sizeof(*route) + consumer.n);
    if (route == NULL)
        return NULL;
    if (consumer.n > 0)
        memcpy(route + 1, consumer.p, consumer.n);
    route->consumer = (struct semel_str){(const char *)(route + 1), consumer.n};
    route->stats = stats;
    route->next = stats->routes;
    stats->routes = route;
    semel__gauge_set(two(route, SEMEL_FAMILY_ROUTE, guarantee), 1);
    bind_counters(route);
    bind_gauges(route);
    return route;
}

struct semel_worker_stats *semel__stats_worker(struct semel_route_stats *route)
{
    struct semel_worker_stats *worker = semel__calloc(1, sizeof(*worker));
    if (worker == NULL)
        return NULL;
    worker->route = route;
    worker->next = route->workers;
    route->workers = worker;
    return worker;
}

/* ---- deliveries ------------------------------------------------------------------------------------ */

static struct semel_series *series_at(const struct semel_route_stats *route, struct semel_str source,
                                      struct semel_str type, enum semel_why why)
{
    struct semel_str values[] = {route->consumer, source, type, semel__str(semel__why_name(why))};
    return semel__metric_at(route->stats->families[SEMEL_FAMILY_MESSAGES], values);
}

static uint32_t mix(uint32_t h, struct semel_str s)
{
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * UINT32_C(16777619);
    return (h ^ (uint32_t)s.n) * UINT32_C(16777619);
}

static bool slot_is(const struct slot *slot, struct semel_str source, struct semel_str type, enum semel_why why)
{
    return slot->series != NULL && slot->why == why && slot->n_source == source.n && slot->n_type == type.n &&
           (source.n == 0 || memcmp(slot->bytes, source.p, source.n) == 0) &&
           (type.n == 0 || memcmp(slot->bytes + source.n, type.p, type.n) == 0);
}

static void slot_fill(struct slot *slot, struct semel_str source, struct semel_str type, enum semel_why why,
                      struct semel_series *series)
{
    *slot = (struct slot){.series = series, .why = why, .n_source = source.n, .n_type = type.n};
    if (source.n > 0)
        memcpy(slot->bytes, source.p, source.n);
    if (type.n > 0)
        memcpy(slot->bytes + source.n, type.p, type.n);
}

static struct slot *slot_at(struct semel_worker_stats *worker, struct semel_str source, struct semel_str type,
                            enum semel_why why)
{
    uint32_t hash = mix(mix(UINT32_C(2166136261) ^ (uint32_t)why, source), type);
    return &worker->slots[(hash ^ hash >> 16) % SLOTS];
}

static struct semel_series *series_of(struct semel_worker_stats *worker, struct semel_str source, struct semel_str type,
                                      enum semel_why why, unsigned *misses)
{
    bool fits = source.n <= SEMEL_LABEL_MAX && type.n <= SEMEL_LABEL_MAX;
    struct slot *slot = fits ? slot_at(worker, source, type, why) : NULL;
    if (fits && slot_is(slot, source, type, why))
        return slot->series;
    if (*misses == MISSES_MAX) {
        source = type = SEMEL_STR("_other");
        slot = slot_at(worker, source, type, why);
        if (slot_is(slot, source, type, why))
            return slot->series;
    } else {
        ++*misses;
    }
    struct semel_series *series = series_at(worker->route, source, type, why);
    if (slot != NULL)
        slot_fill(slot, source, type, why, series);
    return series;
}

static bool alike(const struct semel__msg *a, const struct semel__msg *b)
{
    return semel__str_eq(a->type, b->type) && semel__str_eq(a->source, b->source);
}

static void count_runs(struct semel_worker_stats *worker, const struct semel__msg *msgs,
                       const struct semel_settled *settled, size_t n)
{
    unsigned misses = 0;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && settled[end].why == settled[i].why && alike(&msgs[end], &msgs[i]);)
            end++;
        semel__count(series_of(worker, msgs[i].source, msgs[i].type, settled[i].why, &misses), end - i);
    }
}

static bool ran(const struct semel_settled *settled)
{
    return settled->why == SEMEL_WHY_NEW || settled->why == SEMEL_WHY_RETRIED;
}

void semel__stats_report(struct semel_worker_stats *worker, const struct semel__msg *msgs,
                         const struct semel_settled *settled, size_t n, int64_t took_us)
{
    struct semel_route_stats *route = worker->route;
    int64_t now_us = semel__now(&semel__clock_real);
    double took_s = (double)took_us / 1e6;
    if (n == 0)
        return;
    count_runs(worker, msgs, settled, n);
    semel__observe(route->batch, took_s);
    for (size_t i = 0; i < n; i++) {
        semel__observe(route->handling, took_s);
        if (ran(&settled[i]) && settled[i].state == SEMEL_ROW_COMPLETED && msgs[i].message_time_us != SEMEL_NONE)
            semel__observe(route->age, (double)(now_us - msgs[i].message_time_us) / 1e6);
    }
}

/* ---- what an inbox has counted --------------------------------------------------------------------- */

static void add(struct semel_series *series, uint64_t now, uint64_t last)
{
    semel__count(series, now >= last ? now - last : now); /* less than before: another inbox, which began at 0 */
}

void semel__stats_counts(struct semel_worker_stats *worker, const struct semel_counts *now)
{
    struct semel_route_stats *route = worker->route;
    const struct semel_counts *last = &worker->last;
    add(route->done, now->done, last->done);
    add(route->failed, now->failed, last->failed);
    add(route->rejected, now->rejected, last->rejected);
    add(route->dead, now->alerts[SEMEL_ALERT_DEAD], last->alerts[SEMEL_ALERT_DEAD]);
    add(route->conflicts, now->why[SEMEL_WHY_CONFLICT], last->why[SEMEL_WHY_CONFLICT]);
    add(route->prevented, now->why[SEMEL_WHY_BUSINESS], last->why[SEMEL_WHY_BUSINESS]);
    add(route->recovered, now->recovered, last->recovered);
    add(route->fenced, now->fenced, last->fenced);
    add(route->purged, now->purged, last->purged);
    add(route->transactions, now->transactions, last->transactions);
    add(route->cuts, now->cuts, last->cuts);
    add(route->contention, now->contention, last->contention);
    for (size_t i = 0; i <= SEMEL_CLASS_DISCARDED; i++)
        if (now->classes[i] != last->classes[i])
            add(two(route, SEMEL_FAMILY_FAILURES, semel__class_name((enum semel_class)i)), now->classes[i],
                last->classes[i]);
    worker->last = *now;
}

void semel__stats_alert(struct semel_route_stats *route, enum semel_alert alert)
{
    semel__count(route->alerts[alert], 1);
}

/* ---- connections ----------------------------------------------------------------------------------- */

void semel__stats_call(struct semel_route_stats *route, enum semel_result result, bool asked, bool refused_key,
                       int64_t took_us)
{
    enum semel_family family = asked ? SEMEL_FAMILY_ASKED : SEMEL_FAMILY_CALLS;
    semel__count(two(route, family, semel__result_name(result)), 1);
    semel__count(one(route, SEMEL_FAMILY_REFUSED), refused_key ? 1 : 0);
    semel__observe(one(route, SEMEL_FAMILY_CALL), (double)took_us / 1e6);
}

void semel__stats_breaker(struct semel_route_stats *route, enum semel_breaker_state state)
{
    int before = atomic_exchange(&route->breaker_now, (int)state);
    for (int i = 0; i < BREAKERS; i++)
        semel__gauge_set(route->breaker[i], i == (int)state ? 1 : 0);
    if (before == SEMEL_BREAKER_CLOSED && state == SEMEL_BREAKER_OPEN)
        semel__count(route->openings, 1);
}

void semel__stats_full(struct semel_route_stats *route, bool full)
{
    semel__gauge_set(route->full, full ? 1 : 0);
}

void semel__stats_held(struct semel_route_stats *route, bool held)
{
    semel__gauge_set(route->held, held ? 1 : 0);
}

void semel__stats_store_up(struct semel_route_stats *route, bool up)
{
    bool before = atomic_exchange(&route->store_was_up, up);
    semel__gauge_set(route->store_up, up ? 1 : 0);
    semel__count(route->store_lost, before && !up ? 1 : 0);
}

void semel__stats_source_up(struct semel_route_stats *route, bool up)
{
    bool before = atomic_exchange(&route->source_was_up, up);
    semel__gauge_set(route->source_up, up ? 1 : 0);
    semel__count(route->source_lost, before && !up ? 1 : 0);
}

static double known(int64_t value)
{
    return value < 0 ? (double)NAN : (double)value;
}

void semel__stats_source(struct semel_route_stats *route, size_t in_flight, int64_t behind, int64_t assigned,
                         int64_t stopped)
{
    semel__gauge_set(route->in_flight, (double)in_flight);
    semel__gauge_set(one(route, SEMEL_FAMILY_LAG), known(behind));
    semel__gauge_set(one(route, SEMEL_FAMILY_ASSIGNED), known(assigned));
    semel__gauge_set(one(route, SEMEL_FAMILY_STOPPED), known(stopped));
}

void semel__stats_rows(struct semel_route_stats *route, const struct semel_count *counts, size_t n, int64_t now_us)
{
    for (enum semel_row_status s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++) {
        const struct semel_count *found = NULL;
        if (semel__state_final(s))
            continue;
        for (size_t i = 0; i < n; i++)
            if (counts[i].state == s && semel__str_eq(counts[i].consumer, route->consumer))
                found = &counts[i];
        semel__gauge_set(route->rows[s], found != NULL ? (double)found->n : 0);
        semel__gauge_set(route->capped[s], found != NULL && found->capped ? 1 : 0);
        bool aged = found != NULL && found->oldest_us != SEMEL_NONE && found->oldest_us < now_us;
        semel__gauge_set(route->oldest[s], aged ? (double)(now_us - found->oldest_us) / 1e6 : 0);
    }
    semel__gauge_set(route->looked, (double)now_us / 1e6);
}

/* ---- outboxes -------------------------------------------------------------------------------------- */

static struct semel_series *of_outbox(const struct semel_outbox_stats *outbox, enum semel_family family,
                                      const char *second)
{
    const struct semel_str values[] = {outbox->name, semel__str(second)};
    return semel__metric_at(outbox->stats->families[family], values);
}

struct semel_outbox_stats *semel__stats_outbox(struct semel_stats *stats, struct semel_str name)
{
    static const struct semel_relay_counts none = {0};
    struct semel_outbox_stats *outbox = semel__calloc(1, sizeof(*outbox) + name.n);
    if (outbox == NULL)
        return NULL;
    if (name.n > 0)
        memcpy(outbox + 1, name.p, name.n);
    outbox->name = (struct semel_str){(const char *)(outbox + 1), name.n};
    outbox->stats = stats;
    outbox->next = stats->outboxes;
    stats->outboxes = outbox;
    outbox->time = of_outbox(outbox, SEMEL_FAMILY_PUBLISH_TIME, NULL);
    semel__stats_relay(outbox, &none, 0, 0); /* the series are there from the start */
    semel__count(of_outbox(outbox, SEMEL_FAMILY_NOTIFIED, NULL), 0);
    semel__stats_relay_up(outbox, false);
    return outbox;
}

void semel__stats_relay(struct semel_outbox_stats *outbox, const struct semel_relay_counts *now, size_t shards,
                        size_t down)
{
    const struct semel_relay_counts *last = &outbox->last;
    const struct {
        const char *result;
        uint64_t now, last;
    } all[] = {{"published", now->published, last->published},
               {"refused", now->refused, last->refused},
               {"dead", now->dead, last->dead},
               {"aside", now->aside, last->aside},
               {"unknown", now->unknown, last->unknown},
               {"retried", now->retried, last->retried}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        add(of_outbox(outbox, SEMEL_FAMILY_EVENTS_ENDED, all[i].result), all[i].now, all[i].last);
    semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_RELAY_SHARDS, NULL), (double)shards);
    semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_RELAY_DOWN, NULL), (double)down);
    outbox->last = *now;
}

void semel__stats_published(struct semel_outbox_stats *outbox, int64_t after_us)
{
    semel__observe(outbox->time, after_us > 0 ? (double)after_us / 1e6 : 0);
}

void semel__stats_notified(struct semel_outbox_stats *outbox)
{
    semel__count(of_outbox(outbox, SEMEL_FAMILY_NOTIFIED, NULL), 1);
}

/* The path of a URL may be as good as a password. */
static struct semel_str label_of(struct semel_str destination)
{
    size_t slashes = 0;
    const bool url = semel__begins_with(destination, "http://") || semel__begins_with(destination, "https://");
    for (size_t i = 0; url && i < destination.n; i++)
        if (destination.p[i] == '/' && ++slashes == 3)
            return (struct semel_str){destination.p, i};
    return destination;
}

void semel__stats_destinations(struct semel_outbox_stats *outbox, const struct semel_relay *relay)
{
    struct semel_str one, other;
    bool down, other_down;
    for (size_t i = 0; semel__relay_destination(relay, i, &one, &down); i++) {
        size_t n = 0, before = 0;
        const struct semel_str values[] = {outbox->name, label_of(one)};
        for (size_t k = 0; semel__relay_destination(relay, k, &other, &other_down); k++) {
            const bool same = semel__str_eq(label_of(other), values[1]);
            before += same && k < i;
            n += same && other_down;
        }
        if (before == 0)
            semel__gauge_set(semel__metric_at(outbox->stats->families[SEMEL_FAMILY_DESTINATION_DOWN], values),
                             (double)n);
    }
}

void semel__stats_relay_up(struct semel_outbox_stats *outbox, bool up)
{
    semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_RELAY_UP, NULL), up ? 1 : 0);
}

void semel__stats_outbox_rows(struct semel_outbox_stats *outbox, const struct semel_outbox_state *state, int64_t now_us)
{
    for (unsigned s = SEMEL_EVENT_CREATED; s < SEMEL_EVENT_PUBLISHED; s++) {
        const char *name = semel__event_status_name((enum semel_event_status)s);
        const int64_t oldest_us = state->oldest_us[s];
        const bool aged = state->n[s] > 0 && oldest_us != SEMEL_NONE && oldest_us < now_us;
        semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_EVENTS, name), (double)state->n[s]);
        semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_EVENTS_OLDEST, name),
                         aged ? (double)(now_us - oldest_us) / 1e6 : 0);
    }
    const bool held = state->holder_pid != SEMEL_NONE, seen = state->holder_since_us != SEMEL_NONE;
    double age = 0;
    if (held || semel__str_given(state->holder_gid))
        age = seen ? (double)(now_us - state->holder_since_us) / 1e6 : (double)NAN;
    semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_HOLDER_PID, NULL), held ? (double)state->holder_pid : 0);
    semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_HOLDER_AGE, NULL), age < 0 ? 0 : age);
    semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_LONGEST, NULL), (double)state->longest);
    semel__gauge_set(of_outbox(outbox, SEMEL_FAMILY_EVENTS_LOOKED, NULL), (double)now_us / 1e6);
}

/* ---- idempotency keys ------------------------------------------------------------------------------ */

/* The place of a cause; CAUSES_KEPT: it is one of the others. */
static size_t cause_place(struct semel_stats *stats, struct semel_str cause)
{
    size_t i = 0;
    while (i < stats->n_causes && !semel__str_eq(stats->causes[i], cause))
        i++;
    if (i < stats->n_causes || i == CAUSES_KEPT || cause.n == 0 || cause.n > SEMEL_LABEL_MAX)
        return i < stats->n_causes ? i : CAUSES_KEPT;
    char *copy = semel__calloc(1, cause.n);
    if (copy == NULL)
        return CAUSES_KEPT;
    memcpy(copy, cause.p, cause.n);
    stats->causes[stats->n_causes++] = (struct semel_str){copy, cause.n};
    return i;
}

void semel__stats_keys_rows(struct semel_stats *stats, const struct semel_keys_state *state, int64_t now_us)
{
    const struct semel_str processing = SEMEL_STR("processing"), unknown = SEMEL_STR("unknown");
    const struct semel_str other = SEMEL_STR("_other");
    const bool aged = state->unknown > 0 && state->unknown_us != SEMEL_NONE && state->unknown_us < now_us;
    int64_t causes[CAUSES_KEPT + 1] = {0};
    for (size_t i = 0; i < state->n_causes; i++)
        causes[cause_place(stats, state->causes[i].cause)] += state->causes[i].n;
    for (size_t i = 0; i < stats->n_causes; i++)
        semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_KEYS_UNKNOWN], &stats->causes[i]),
                         (double)causes[i]);
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_KEYS_UNKNOWN], &other), (double)causes[CAUSES_KEPT]);
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_KEYS], &processing), (double)state->processing);
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_KEYS], &unknown), (double)state->unknown);
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_KEYS_STUCK], NULL), (double)state->stuck);
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_KEYS_OLDEST], NULL),
                     aged ? (double)(now_us - state->unknown_us) / 1e6 : 0);
    semel__gauge_set(semel__metric_at(stats->families[SEMEL_FAMILY_KEYS_LOOKED], NULL), (double)now_us / 1e6);
}

/* ---- gateways -------------------------------------------------------------------------------------- */

static struct semel_series *of_gateway(const struct semel_gateway_stats *gateway, enum semel_family family,
                                       const char *second)
{
    const struct semel_str values[] = {gateway->name, semel__str(second)};
    return semel__metric_at(gateway->stats->families[family], values);
}

struct semel_gateway_stats *semel__stats_gateway(struct semel_stats *stats, struct semel_str name,
                                                 const char *guarantee)
{
    static const struct semel_gateway_now none = {0};
    struct semel_gateway_stats *gateway = semel__calloc(1, sizeof(*gateway) + name.n);
    if (gateway == NULL)
        return NULL;
    if (name.n > 0)
        memcpy(gateway + 1, name.p, name.n);
    gateway->name = (struct semel_str){(const char *)(gateway + 1), name.n};
    gateway->stats = stats;
    gateway->next = stats->gateways;
    stats->gateways = gateway;
    semel__gauge_set(of_gateway(gateway, SEMEL_FAMILY_GATEWAY, guarantee), 1);
    semel__stats_gateway_now(gateway, &none);
    return gateway;
}

static void count_to(struct semel_gateway_stats *gateway, struct semel_series *series, uint64_t now)
{
    size_t i = 0;
    while (i < gateway->n_counted && gateway->counted[i].series != series)
        i++;
    if (i == SERIES_MAX)
        return;
    if (i == gateway->n_counted)
        gateway->counted[gateway->n_counted++].series = series;
    add(series, now, gateway->counted[i].last);
    gateway->counted[i].last = now;
}

void semel__stats_gateway_result(struct semel_gateway_stats *gateway, const char *result, uint64_t now)
{
    count_to(gateway, of_gateway(gateway, SEMEL_FAMILY_GATEWAY_REQUESTS, result), now);
}

void semel__stats_gateway_unknown(struct semel_gateway_stats *gateway, const char *cause, uint64_t now)
{
    count_to(gateway, of_gateway(gateway, SEMEL_FAMILY_GATEWAY_UNKNOWN, cause), now);
}

void semel__stats_gateway_now(struct semel_gateway_stats *gateway, const struct semel_gateway_now *now)
{
    semel__gauge_set(of_gateway(gateway, SEMEL_FAMILY_GATEWAY_UP, NULL), now->up ? 1 : 0);
    semel__gauge_set(of_gateway(gateway, SEMEL_FAMILY_GATEWAY_RUNNING, NULL), (double)now->running);
    semel__gauge_set(of_gateway(gateway, SEMEL_FAMILY_GATEWAY_UNSTORED, NULL), (double)now->unstored);
    semel__gauge_set(of_gateway(gateway, SEMEL_FAMILY_GATEWAY_HELD, NULL), (double)now->held_bytes);
}
