/* SPDX-License-Identifier: MIT
 *
 * outbox.c: an outbox as a unit of the daemon: one task with a store connection and a sink of its own, on which the
 * relay of core/relay.h takes its steps; and the same once, for cron. Where the settings want it, a second task listens
 * for notifications, on a connection of its own, and ends the wait of a relay that had nothing to do.
 *
 * Invariants: whatever fails, the task waits and tries again, and no route waits for it. A stop gives the shards back,
 * so that another relay has them at once. Nothing rests on a notification: the relay polls whether one comes or not.
 */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"
#include "core/destination.h"
#include "core/relay.h"
#include "core/starts.h"
#include "daemon/internal.h"
#include "store/query.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

#define STEP_BYTES ((size_t)16 << 20)
#define ONCE_BYTES ((size_t)64 << 20)
#define HEAR_MS 200
#define STUCK_STEPS 20      /* without progress: `once` gives up */
#define LINGER_US 1500000   /* `once` waits so long for events that the relay looks at again after a second */
#define PATIENCE_US 2000000 /* besides the lease of a dead relay, and the time until this one looks again */
#define PEERS_MAX 1000
#define LEFT_MAX 1000000
#define COUNT_CAP 10000

/* When `once` is done. It publishes what was committed when it began, and notes the end of the outbox for that. An
 * outbox that is written to all the time is never empty, so it ends when nothing up to the noted end is left that can
 * go; what commits later may go as well, and nobody waits for it. */
struct once {
    struct semel_relay_end end;
    struct semel_arena arena;
    bool gone[SEMEL_RELAY_SHARDS]; /* a shard has nothing up to the end any more; what stands aside apart */
    bool over;                     /* nothing up to the end can go now, of the shards that were scanned */
    int64_t over_us;
    size_t n_scanned;         /* shards */
    bool others;              /* events up to the end are in shards of other relays, */
    char owner[64];           /* one of which this is; "": nobody's yet */
    int64_t patient_until_us; /* then the lease of a relay that died before the start is over, and seen to be */
};

struct daemon_outbox {
    struct semel_unit unit;
    const struct semel_conf_outbox *conf;
    struct semel_log *log;
    struct semel_task task, listener;
    struct semel_outbox_stats *stats;
    char owner[128], destinations[2 * SEMEL_SHA256 + 1];
    /* For other threads. */
    _Atomic uint64_t published, refused, dead, aside, unknown, retried;
    _Atomic size_t shards, down;
    _Atomic int64_t held_by;
    atomic_bool heard; /* a notification that the relay has not looked after yet */
    /* Of its thread alone. */
    struct semel_store *store;
    struct semel_broker *sink;
    struct semel_relay *relay;
    struct semel_random rng;
    uint64_t turns;    /* of the relay's counts, as its destinations were reported */
    struct once *once; /* NULL: the daemon's */
};

static struct daemon_outbox *outbox_of(struct semel_unit *unit)
{
    return (struct daemon_outbox *)unit; /* the first member */
}

/* A lease is measured by a clock that goes on while the machine sleeps. */
static int64_t boot_us(void *ctx)
{
    (void)ctx;
    return semel__boot_us();
}

static const struct semel_clock boot_clock = {boot_us, NULL};

/* ---- what the relay asks ------------------------------------------------------------------------- */

static semel_status destination(void *ctx, const struct semel_relay_event *event, struct semel_arena *arena,
                                struct semel_str *ret, struct semel_error *err)
{
    const struct semel_sink_options *to = ((const struct daemon_outbox *)ctx)->conf->to.options;
    const struct semel_destination_of of = {event->aggregatetype, event->aggregateid, event->type, event->destination};
    char text[SEMEL_DESTINATION_MAX + 1];
    struct semel_str made;
    semel_status status = semel__destination_make(to->destination, to->allowed.at, to->allowed.n, &of, text, &made,
                                                  err);
    if (status == SEMEL_OK && !semel__arena_copy(arena, made, ret))
        status = semel__fail_memory(err);
    return status;
}

static void published(void *ctx, int64_t after_us)
{
    const struct daemon_outbox *outbox = ctx;
    if (outbox->stats != NULL) /* `once` has none */
        semel__stats_published(outbox->stats, after_us);
}

static void report(void *ctx, int level, const char *text, const struct semel_relay_event *event, const char *why)
{
    const struct daemon_outbox *outbox = ctx;
    SEMEL__LOG(outbox->log, (enum semel_log_level)level, text, SEMEL_F_STR("outbox", outbox->conf->name),
               SEMEL_F_STR("event", event != NULL ? event->id : semel__str(NULL)),
               SEMEL_F_STR("aggregatetype", event != NULL ? event->aggregatetype : semel__str(NULL)),
               SEMEL_F_Z("why", why != NULL && why[0] != '\0' ? why : NULL));
}

/* What a scan shows of the events that `once` waits for. A shard that it did not reach, because there was no room, is
 * read first by a later one. */
static void scanned(void *ctx, const struct semel_relay_scan *scan)
{
    struct once *once = ((struct daemon_outbox *)ctx)->once;
    const bool mapped = semel__str_given(((struct daemon_outbox *)ctx)->conf->table.name);
    bool over = true;
    int64_t bytes = 0;
    for (size_t i = 0, k = 0; i < scan->n; i++) {
        const size_t first = k;
        bool *gone = &once->gone[scan->starts[i].shard % SEMEL_RELAY_SHARDS];
        for (; k < scan->n_events && scan->events[k].shard == scan->starts[i].shard; k++)
            bytes += scan->events[k].size;
        const bool cut = bytes >= (int64_t)scan->bytes || k >= scan->most;
        if (!mapped && (k > first ? scan->events[first].seq > once->end.seq : !cut))
            *gone = true;
        over = over && *gone;
    }
    for (size_t i = 0; i < scan->n_aside; i++)
        over = over && scan->aside[i].seq > once->end.seq;
    once->over_us = over && !once->over ? semel__boot_us() : once->over_us;
    once->over = over;
    once->n_scanned = scan->n;
}

/* NULL: the own outbox. */
static const struct semel_relay_table *table_of(const struct semel_conf_outbox *conf)
{
    return semel__str_given(conf->table.name) ? &conf->table : NULL;
}

/* The parts of a digest. Each part ends with a NUL, which no setting contains. */
struct parts {
    struct semel_str at[2 * (1 + SEMEL_SINK_PLACE_PARTS + 1 + SEMEL_SETTING_LIST_MAX + 12)];
    size_t n;
};

static void add_parts(struct parts *parts, const struct semel_str *more, size_t n)
{
    for (size_t i = 0; i < n && parts->n + 2 <= sizeof parts->at / sizeof parts->at[0]; i++) {
        parts->at[parts->n++] = more[i];
        parts->at[parts->n++] = (struct semel_str){"", 1};
    }
}

/* Relays that would send an event to another place, or mark another column, never share an outbox (P115). The digest is
 * of values, not of their names in the file, and of no secret: anybody who reads the store may see it. */
static bool digest_destinations(struct daemon_outbox *outbox)
{
    const struct semel_broker_kind *kind = outbox->conf->to.kind;
    const struct semel_sink_options *to = outbox->conf->to.options;
    const struct semel_relay_table *t = table_of(outbox->conf);
    const struct semel_str name = semel__str(kind->name);
    struct semel_str place[SEMEL_SINK_PLACE_PARTS] = {{0}};
    struct parts parts = {.n = 0};
    unsigned char digest[SEMEL_SHA256];
    if (kind->to_place != NULL)
        kind->to_place(outbox->conf->to.options, place);
    add_parts(&parts, &name, 1);
    add_parts(&parts, place, SEMEL_SINK_PLACE_PARTS);
    add_parts(&parts, &to->destination, 1);
    if (t != NULL) { /* the name is not among them: there is more than one way to write it */
        const struct semel_str columns[] = {t->order,      t->id,      t->aggregatetype, t->aggregateid,
                                            t->type,       t->payload, t->headers,       t->destination,
                                            t->created_at, t->mark,    t->unmarked,      t->marked};
        add_parts(&parts, columns, sizeof columns / sizeof columns[0]);
    }
    add_parts(&parts, to->allowed.at, to->allowed.n);
    if (!semel__sha256(parts.at, parts.n, digest))
        return false;
    semel__hex(digest, sizeof digest, outbox->destinations);
    return true;
}

/* ---- opening ------------------------------------------------------------------------------------- */

static void close_all(struct daemon_outbox *outbox)
{
    semel__relay_free(outbox->relay);
    outbox->relay = NULL;
    if (outbox->sink != NULL)
        semel_broker_close(outbox->sink);
    outbox->sink = NULL;
    semel_store_close(outbox->store);
    outbox->store = NULL;
}

/* The store is open. */
static semel_status open_relay(struct daemon_outbox *outbox, struct semel_error *err)
{
    const struct semel_conf_outbox *conf = outbox->conf;
    const struct semel_relay_options options = {.owner = semel__str(outbox->owner),
                                                .destinations = semel__str(outbox->destinations),
                                                .table = table_of(conf),
                                                .lease_us = conf->lease_us,
                                                .timeout_us = conf->timeout_us,
                                                .keep_us = conf->keep_us,
                                                .first_us = conf->first_us,
                                                .ceiling_us = conf->ceiling_us,
                                                .attempts_max = (int)conf->retry_max,
                                                .one_by_one = conf->in_flight == 1,
                                                .rows = (size_t)conf->batch,
                                                .bytes = STEP_BYTES,
                                                .destination = destination,
                                                .ctx = outbox,
                                                .published = published,
                                                .scanned = outbox->once != NULL ? scanned : NULL,
                                                .report = report};
    if (conf->to.kind->open_sink == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "this program was built without %s",
                           conf->to.kind->name);
    semel_status status = SEMEL_OK;
    if (outbox->sink == NULL)
        status = conf->to.kind->open_sink(&outbox->sink, conf->to.options, NULL, err);
    if (status == SEMEL_OK && outbox->relay == NULL)
        status = semel__relay_new(&outbox->relay, outbox->store, outbox->sink, &options, &outbox->rng, &boot_clock,
                                  err);
    return status;
}

static bool prepare(struct daemon_outbox *outbox, const char *host)
{
    snprintf(outbox->owner, sizeof outbox->owner, "%s:%ld", host, (long)getpid());
    return semel__random_seed_os(&outbox->rng) && digest_destinations(outbox);
}

/* ---- the task ------------------------------------------------------------------------------------ */

static void note_counts(struct daemon_outbox *outbox)
{
    const struct semel_relay_counts *counts = semel__relay_counts(outbox->relay);
    char why[SEMEL_RELAY_WHY], which[SEMEL_RELAY_WHY];
    size_t shards = semel__relay_owns(outbox->relay, why), down = semel__relay_down(outbox->relay, which);
    atomic_store(&outbox->published, counts->published);
    atomic_store(&outbox->refused, counts->refused);
    atomic_store(&outbox->dead, counts->dead);
    atomic_store(&outbox->aside, counts->aside);
    atomic_store(&outbox->unknown, counts->unknown);
    atomic_store(&outbox->retried, counts->retried);
    atomic_store(&outbox->shards, shards);
    atomic_store(&outbox->down, down);
    if (counts->turns != outbox->turns)
        semel__stats_destinations(outbox->stats, outbox->relay);
    outbox->turns = counts->turns;
    semel__stats_relay(outbox->stats, counts, shards, down);
    semel__stats_relay_up(outbox->stats, why[0] == '\0');
    atomic_store(&outbox->held_by, semel__relay_held_by(outbox->relay));
    (void)semel__task_set_up(&outbox->task, why[0] == '\0', why);
}

/* One step; how long to wait before the next, in milliseconds. */
static int turn(struct daemon_outbox *outbox, int *failures)
{
    struct semel_daemon *daemon = outbox->unit.daemon;
    struct semel_error err = {0};
    int wait_ms = 0;
    semel_status status = SEMEL_OK;
    if (outbox->store == NULL)
        status = semel__daemon_open_store(daemon, &outbox->store, &err);
    if (status == SEMEL_OK)
        status = open_relay(outbox, &err);
    if (status == SEMEL_OK)
        status = semel__relay_step(outbox->relay, &wait_ms, &err);
    if (status == SEMEL_OK) {
        *failures = 0;
        note_counts(outbox);
        return wait_ms;
    }
    int pause_ms = semel__daemon_backoff_ms(++*failures, &outbox->rng);
    (void)semel__task_set_up(&outbox->task, false, err.text);
    semel__stats_relay_up(outbox->stats, false);
    if (*failures == 1)
        SEMEL__LOG(outbox->log, SEMEL_LOG_WARN, "the relay failed; retrying", SEMEL_F_STR("outbox", outbox->conf->name),
                   SEMEL_F_Z("error", err.text), SEMEL_F_INT("retry_ms", pause_ms));
    if (status != SEMEL_RETRY && outbox->store != NULL) {
        if (semel_store_reopen(outbox->store, &err) != SEMEL_OK)
            close_all(outbox);
        else if (outbox->relay != NULL)
            semel__relay_forget(outbox->relay);
    }
    return pause_ms;
}

/* A notification is about events that are committed, so that a step that begins after it sees them. One that finds the
 * relay at work, or waiting for a reason, changes nothing. */
static void run_relay(void *arg)
{
    struct daemon_outbox *outbox = arg;
    struct semel_error err = {0};
    int failures = 0;
    while (!semel__daemon_stopping(outbox->unit.daemon)) {
        semel__task_beat(&outbox->task);
        atomic_store(&outbox->heard, false);
        int wait_ms = turn(outbox, &failures);
        bool idle = failures == 0 && outbox->relay != NULL && semel__relay_idle(outbox->relay);
        if (wait_ms > 0 && semel__daemon_doze(outbox->unit.daemon, wait_ms, idle ? &outbox->heard : NULL))
            semel__stats_notified(outbox->stats);
    }
    if (outbox->relay != NULL && semel__relay_leave(outbox->relay, &err) != SEMEL_OK)
        SEMEL__LOG(outbox->log, SEMEL_LOG_WARN, "cannot give the shards back; others wait for the lease",
                   SEMEL_F_STR("outbox", outbox->conf->name), SEMEL_F_Z("error", err.text));
    close_all(outbox);
}

/* ---- notifications ------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_POSTGRES
static semel_status listen_once(struct daemon_outbox *outbox, struct semel_store **store, struct semel_error *err)
{
    bool heard = false;
    semel_status status = SEMEL_OK;
    if (*store == NULL) {
        status = semel__daemon_open_store(outbox->unit.daemon, store, err);
        if (status == SEMEL_OK)
            status = semel__pg_listen(*store, err);
        heard = status == SEMEL_OK; /* what was missed until now */
    }
    if (status == SEMEL_OK && !heard)
        status = semel__pg_hear(*store, HEAR_MS, &heard, err);
    if (heard && !atomic_exchange(&outbox->heard, true))
        semel__daemon_rouse(outbox->unit.daemon);
    return status;
}

static void run_listener(void *arg)
{
    struct daemon_outbox *outbox = arg;
    struct semel_store *store = NULL;
    struct semel_random rng;
    int failures = 0;
    (void)semel__random_seed_os(&rng);
    while (!semel__daemon_stopping(outbox->unit.daemon)) {
        struct semel_error err = {0};
        semel__task_beat(&outbox->listener);
        semel_status status = listen_once(outbox, &store, &err);
        const bool was_up = semel__task_set_up(&outbox->listener, status == SEMEL_OK, err.text);
        if (status == SEMEL_OK) {
            failures = 0;
            continue;
        }
        semel_store_close(store);
        store = NULL;
        int pause_ms = semel__daemon_backoff_ms(++failures, &rng);
        if (was_up || failures == 1)
            SEMEL__LOG(outbox->log, SEMEL_LOG_WARN, "cannot listen for notifications; the relay polls",
                       SEMEL_F_STR("outbox", outbox->conf->name), SEMEL_F_Z("error", err.text),
                       SEMEL_F_INT("retry_ms", pause_ms));
        semel__daemon_sleep(outbox->unit.daemon, pause_ms);
    }
    semel_store_close(store);
}
#else
static void run_listener(void *arg)
{
    (void)arg; /* there is no such store */
}
#endif

/* ---- the unit ------------------------------------------------------------------------------------ */

static semel_status build(struct semel_daemon *daemon, struct semel_error *err)
{
    for (size_t i = 0; i < daemon->conf->n_outboxes; i++) {
        struct daemon_outbox *outbox = semel__calloc(1, sizeof *outbox);
        if (outbox == NULL)
            return semel__fail_memory(err);
        outbox->unit = (struct semel_unit){.kind = &semel__daemon_outboxes, .daemon = daemon};
        outbox->conf = &daemon->conf->outboxes[i];
        outbox->log = daemon->log;
        atomic_init(&outbox->held_by, SEMEL_NONE);
        outbox->stats = semel__stats_outbox(daemon->stats, outbox->conf->name);
        semel__task_add(&daemon->tasks, &outbox->task, "relay of outbox %.*s", (int)outbox->conf->name.n,
                        outbox->conf->name.p);
        if (outbox->conf->notify)
            semel__task_add(&daemon->tasks, &outbox->listener, "listener of outbox %.*s", (int)outbox->conf->name.n,
                            outbox->conf->name.p);
        semel__daemon_add(daemon, &outbox->unit);
        if (outbox->stats == NULL || !prepare(outbox, daemon->host))
            return semel__fail_memory(err);
    }
    return SEMEL_OK;
}

static semel_status start(struct semel_unit *unit, struct semel_error *err)
{
    struct daemon_outbox *outbox = outbox_of(unit);
    SEMEL__LOG(outbox->log, SEMEL_LOG_INFO, "relay starts", SEMEL_F_STR("outbox", outbox->conf->name),
               SEMEL_F_Z("to", outbox->conf->to.kind->name));
    semel_status status = semel__task_start(&outbox->task, "relay", run_relay, outbox, err);
    if (status == SEMEL_OK && outbox->conf->notify)
        status = semel__task_start(&outbox->listener, "listener", run_listener, outbox, err);
    return status;
}

static void stop(struct semel_unit *unit)
{
    (void)unit; /* it waits for the daemon's stop only */
}

static enum semel_unit_ready ready(struct semel_unit *unit, struct semel_buf *why)
{
    struct daemon_outbox *outbox = outbox_of(unit);
    char down[SEMEL_TASK_WHY];
    if (atomic_load(&outbox->task.up))
        return SEMEL_UNIT_READY;
    semel__task_why(&outbox->task, down);
    semel__buf_addf(why, "%soutbox %.*s: the relay cannot publish%s%s", why->n > 0 ? "; " : "",
                    (int)outbox->conf->name.n, outbox->conf->name.p, down[0] != '\0' ? ": " : "", down);
    return SEMEL_UNIT_STARTING;
}

static void json(struct semel_unit *unit, struct semel_buf *buf)
{
    struct daemon_outbox *outbox = outbox_of(unit);
    const int64_t held_by = atomic_load(&outbox->held_by);
    const char *listening = atomic_load(&outbox->listener.up) ? "true" : "false";
    semel__buf_addf(buf,
                    "{\"name\":\"%.*s\",\"sink\":\"%s\",\"up\":%s,\"shards\":%zu,\"published\":%" PRIu64
                    ",\"refused\":%" PRIu64 ",\"dead\":%" PRIu64 ",\"set_aside\":%" PRIu64 ",\"unknown\":%" PRIu64
                    ",\"retried\":%" PRIu64 ",\"listening\":%s,\"destinations_down\":%zu,\"held_by_pid\":",
                    (int)outbox->conf->name.n, outbox->conf->name.p, outbox->conf->to.kind->name,
                    atomic_load(&outbox->task.up) ? "true" : "false", atomic_load(&outbox->shards),
                    atomic_load(&outbox->published), atomic_load(&outbox->refused), atomic_load(&outbox->dead),
                    atomic_load(&outbox->aside), atomic_load(&outbox->unknown), atomic_load(&outbox->retried),
                    outbox->conf->notify ? listening : "null", atomic_load(&outbox->down));
    if (held_by == SEMEL_NONE)
        semel__buf_addz(buf, "null}");
    else
        semel__buf_addf(buf, "%" PRId64 "}", held_by);
}

static semel_status count(struct semel_unit *unit, struct semel_store *store, struct semel_arena *arena,
                          struct semel_error *err)
{
    struct semel_outbox_state state;
    semel_status status = semel_query_outbox_state(store, table_of(outbox_of(unit)->conf), false, COUNT_CAP, arena,
                                                   &state, err);
    if (status == SEMEL_OK)
        semel__stats_outbox_rows(outbox_of(unit)->stats, &state, semel__now(&semel__clock_real));
    return status;
}

static void free_outbox(struct semel_unit *unit)
{
    semel__free(outbox_of(unit));
}

const struct semel_unit_kind semel__daemon_outboxes = {
    .section = "outboxes",
    .build = build,
    .start = start,
    .stop = stop,
    .ready = ready,
    .json = json,
    .count = count,
    .free = free_outbox,
};

/* ---- once ---------------------------------------------------------------------------------------- */

/* The rows of a mapped table up to its noted end: are they gone? What was set aside of them has the numbers up to the
 * highest one at that time. */
static semel_status look_for_rows(struct daemon_outbox *outbox, struct semel_error *err)
{
    const struct semel_relay_ops *ops = outbox->store->ops->relay;
    struct once *once = outbox->once;
    struct semel_relay_end now;
    bool left = false;
    if (table_of(outbox->conf) == NULL || once->gone[0])
        return SEMEL_OK;
    semel_status status = semel__str_given(once->end.id) ? ops->left(outbox->store, &once->end, &left, err) : SEMEL_OK;
    if (status != SEMEL_OK || left)
        return status;
    status = ops->end(outbox->store, &once->arena, &now, err);
    once->end.seq = status == SEMEL_OK ? now.seq : once->end.seq;
    once->gone[0] = status == SEMEL_OK;
    return status;
}

static semel_status count_all(struct daemon_outbox *outbox, struct semel_outbox_state *ret, struct semel_error *err)
{
    struct semel_arena arena;
    semel__arena_init(&arena, STEP_BYTES);
    semel_status status = semel_query_outbox_state(outbox->store, table_of(outbox->conf), false, LEFT_MAX, &arena, ret,
                                                   err);
    semel__arena_done(&arena);
    return status;
}

/* Is an event up to the end in one of these shards? *ret_shard: which is the first; SEMEL_NONE: none. */
static semel_status find_left(struct daemon_outbox *outbox, const struct semel_relay_start *starts, size_t n,
                              struct semel_arena *arena, int64_t *ret_shard, struct semel_error *err)
{
    const struct once *once = outbox->once;
    struct semel_relay_group *groups = NULL;
    size_t n_groups = 0;
    *ret_shard = SEMEL_NONE;
    if (n > 0 && table_of(outbox->conf) != NULL) {
        *ret_shard = once->gone[0] ? SEMEL_NONE : starts[0].shard;
        return SEMEL_OK;
    }
    semel_status status = n == 0 ? SEMEL_OK
                                 : outbox->store->ops->relay->groups(outbox->store, starts, n, 1, 1, arena, &groups,
                                                                     &n_groups, err);
    for (size_t i = 0; status == SEMEL_OK && i < n_groups && *ret_shard == SEMEL_NONE; i++)
        *ret_shard = groups[i].first_seq <= once->end.seq ? groups[i].shard : SEMEL_NONE;
    return status;
}

/* Events up to the end that are left to other relays. Some of these may be dead: their shards come when their lease is
 * over. */
static semel_status look_for_others(struct daemon_outbox *outbox, struct semel_arena *arena, struct semel_error *err)
{
    const struct semel_relay_ops *ops = outbox->store->ops->relay;
    struct once *once = outbox->once;
    struct semel_relay_shard shards[SEMEL_RELAY_SHARDS];
    struct semel_relay_start starts[SEMEL_RELAY_SHARDS];
    struct semel_relay_peer *peers = NULL;
    size_t n_shards = 0, n_peers = 0, n = 0;
    int64_t self = SEMEL_NONE, shard, token = SEMEL_NONE;
    char why[SEMEL_RELAY_WHY];
    once->others = false;
    if (semel__relay_owns(outbox->relay, why) == (table_of(outbox->conf) != NULL ? 1 : ops->shards))
        return SEMEL_OK;
    semel_status status = ops->peers(outbox->store, PEERS_MAX, arena, &peers, &n_peers, err);
    if (status == SEMEL_OK)
        status = ops->shards_read(outbox->store, shards, &n_shards, err);
    for (size_t i = 0; status == SEMEL_OK && i < n_peers; i++)
        self = semel__str_eqz(peers[i].owner, outbox->owner) ? peers[i].token : self;
    for (size_t i = 0; status == SEMEL_OK && i < n_shards; i++)
        if (shards[i].token == SEMEL_NONE || shards[i].token != self)
            starts[n++] = (struct semel_relay_start){shards[i].shard, SEMEL_STARTS_BOTTOM};
    if (status == SEMEL_OK)
        status = find_left(outbox, starts, n, arena, &shard, err);
    if (status != SEMEL_OK)
        return status;
    once->others = shard != SEMEL_NONE;
    once->owner[0] = '\0';
    for (size_t i = 0; i < n_shards; i++)
        token = shards[i].shard == shard ? shards[i].token : token;
    for (size_t i = 0; i < n_peers; i++)
        if (once->others && peers[i].token == token)
            semel__str_show(once->owner, sizeof once->owner, peers[i].owner);
    return SEMEL_OK;
}

/* Events behind others of their aggregate may wait aside for a moment, where a sink takes one at a time. */
static semel_status is_done(struct daemon_outbox *outbox, bool *ret, struct semel_error *err)
{
    struct semel_outbox_state state = {0};
    struct semel_arena arena;
    char why[SEMEL_RELAY_WHY];
    const size_t owns = semel__relay_owns(outbox->relay, why);
    semel__arena_init(&arena, STEP_BYTES);
    semel_status status = look_for_others(outbox, &arena, err);
    semel__arena_done(&arena);
    *ret = !outbox->once->others && (owns == 0 || (outbox->once->over && outbox->once->n_scanned == owns));
    if (status == SEMEL_OK && *ret && semel__boot_us() - outbox->once->over_us < LINGER_US) {
        status = count_all(outbox, &state, err);
        *ret = state.n[SEMEL_EVENT_WAITING] == 0;
    }
    return status;
}

static semel_status step_until_done(struct daemon_outbox *outbox, bool *ret_done, struct semel_error *err)
{
    struct once *once = outbox->once;
    uint64_t published = 0;
    semel_status status = outbox->store->ops->relay->end(outbox->store, &once->arena, &once->end, err);
    *ret_done = false;
    once->patient_until_us = semel__boot_us() + outbox->conf->lease_us + outbox->conf->lease_us / 3 + PATIENCE_US;
    for (int stuck = 0; status == SEMEL_OK && !*ret_done && stuck < STUCK_STEPS;) {
        int wait_ms = 0;
        status = semel__relay_step(outbox->relay, &wait_ms, err);
        if (status == SEMEL_OK)
            status = look_for_rows(outbox, err);
        if (status == SEMEL_OK)
            status = is_done(outbox, ret_done, err);
        const bool waits = once->others ? semel__boot_us() < once->patient_until_us : once->over;
        stuck = waits || semel__relay_counts(outbox->relay)->published > published ? 0 : stuck + 1;
        published = semel__relay_counts(outbox->relay)->published;
        if (wait_ms > 0 && !*ret_done)
            semel__rest(wait_ms < 500 ? wait_ms : 500);
    }
    return status;
}

/* Why events are left, if that is known. */
static void say_why(const struct daemon_outbox *outbox, bool done, struct semel_relay_once *ret)
{
    char why[SEMEL_RELAY_WHY], down[SEMEL_RELAY_WHY];
    (void)semel__relay_owns(outbox->relay, why);
    if (why[0] != '\0')
        memcpy(ret->why, why, sizeof why);
    else if (outbox->once->others && outbox->once->owner[0] != '\0')
        snprintf(ret->why, sizeof ret->why, "relay %s has their shards, and has not published them",
                 outbox->once->owner);
    else if (semel__relay_down(outbox->relay, down) > 0)
        snprintf(ret->why, sizeof ret->why, "cannot publish to %.*s", SEMEL_RELAY_WHY - 20, down);
    else if (!done)
        snprintf(ret->why, sizeof ret->why, "the relay made no progress; its log says why");
}

/* Of this outbox. */
static semel_status count_left(struct daemon_outbox *outbox, struct semel_relay_once *ret, struct semel_error *err)
{
    struct semel_outbox_state state;
    semel_status status = count_all(outbox, &state, err);
    if (status == SEMEL_OK) {
        ret->left += state.n[SEMEL_EVENT_CREATED];
        ret->aside += state.n[SEMEL_EVENT_WAITING] + state.n[SEMEL_EVENT_PUBLISHING] + state.n[SEMEL_EVENT_FAILED] +
                      state.n[SEMEL_EVENT_DEAD];
    }
    return status;
}

static semel_status relay_one(struct daemon_outbox *outbox, const struct semel_conf *conf,
                              const struct semel_daemon_options *options, struct semel_relay_once *ret,
                              struct semel_error *err)
{
    const struct semel_store_options store_options = {0};
    struct semel_error ignored;
    bool done = false;
    semel_status status = semel_store_open(&outbox->store, options->stores, conf->store.p, &store_options, err);
    if (status == SEMEL_OK)
        status = open_relay(outbox, err);
    if (status == SEMEL_OK)
        status = step_until_done(outbox, &done, err);
    if (status == SEMEL_OK)
        status = count_left(outbox, ret, err);
    if (outbox->relay != NULL) {
        ret->published += semel__relay_counts(outbox->relay)->published;
        say_why(outbox, done, ret);
        (void)semel__relay_leave(outbox->relay, status == SEMEL_OK ? err : &ignored);
    }
    close_all(outbox);
    return status;
}

semel_status semel__daemon_relay_once(const struct semel_conf *conf, const struct semel_daemon_options *options,
                                      struct semel_relay_once *ret, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    for (size_t i = 0; status == SEMEL_OK && i < conf->n_outboxes; i++) {
        struct once once = {.over = false};
        struct daemon_outbox outbox = {.conf = &conf->outboxes[i], .log = options->log, .once = &once};
        semel__arena_init(&once.arena, ONCE_BYTES);
        status = prepare(&outbox, host) ? relay_one(&outbox, conf, options, ret, err) : semel__fail_memory(err);
        semel__arena_done(&once.arena);
    }
    return status;
}
