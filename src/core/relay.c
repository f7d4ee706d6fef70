/* SPDX-License-Identifier: MIT
 *
 * relay.c: a relay, step by step. See relay.h for what it promises, starts.h for where scans begin, relay_shards.c for
 * its lease.
 *
 * A step renews the lease when it is time, reads, plans, publishes and writes down what came of it. The plan puts each
 * event that was read into one of four lists: to be sent from the outbox, to be sent from aside, to be set aside, or
 * none (it has no turn in this step). Nothing is unconfirmed between two steps.
 */
#include "core/relay_state.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/sort.h"
#include "base/str.h"
#include "core/headers.h"
#include "core/retry.h"

#define NOTE_US SECOND_US
#define WORKS_US (10 * SECOND_US) /* a destination counts as working for so long after its last success */
#define WAITING_MAX 100           /* events of one aggregate that wait in the outbox behind the one that is sent */
#define ASIDE_MAX 500             /* events from aside per step */
#define REST_TIMES 9    /* a destination that hangs rests for so many lengths of its call: others get nine tenths */
#define LIMIT_MIN 16    /* rows per shard and step */
#define MOST_TIMES 2    /* a scan returns at most so many times the rows that are wanted */
#define LARGE_SCANS 100 /* so many scans after a large event expect large ones */
#define AHEAD_MAX 8     /* scans in a row that do not begin at the starting points */
#define SCANS_MAX 3     /* per step, when a holder ends */
#define PEEKS_MAX 8     /* windows per step in which nothing goes */
#define PEEK_ANEW_US (300 * SECOND_US)
#define BUSY_MS 4 /* between steps while events come in */
#define IDLE_MS 100
#define NOTHING_GOES_US (SECOND_US / 2)
#define PAUSE_FIRST_US (SECOND_US / 20)
#define PAUSE_MAX_US (5 * SECOND_US)
#define ARENA_MAX ((size_t)256 << 20)
#define MAPPING_MAX ((size_t)1 << 20)

/* ---- life ---------------------------------------------------------------------------------------- */

semel_status semel__relay_new(struct semel_relay **ret, struct semel_store *store, struct semel_broker *sink,
                              const struct semel_relay_options *options, struct semel_random *rng,
                              const struct semel_clock *steady, struct semel_error *err)
{
    if (store->ops->relay == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "this store (%s) has no outbox that a relay can read", store->ops->name);
    struct semel_relay *relay = semel__calloc(1, sizeof *relay);
    if (relay == NULL)
        return semel__fail_memory(err);
    relay->store = store;
    relay->sink = sink;
    relay->ops = store->ops->relay;
    relay->options = *options;
    relay->rng = rng;
    relay->steady = steady;
    relay->runs = (sink->ops->capabilities & SEMEL_BROKER_RUNS) != 0 && !options->one_by_one;
    relay->limit = 256;
    relay->idle_ms = 1;
    relay->mapped = options->table != NULL;
    semel__arena_init(&relay->mapping, MAPPING_MAX);
    for (size_t i = 0; i < 2; i++)
        semel__arena_init(&relay->arenas[i], ARENA_MAX);
    relay->arena = &relay->arenas[0];
    semel__starts_init(&relay->starts, semel__now(steady));
    const semel_status status = relay->mapped
                                    ? relay->ops->map(store, options->table, &relay->mapping, &relay->first_shard, err)
                                    : SEMEL_OK;
    if (status == SEMEL_OK)
        *ret = relay;
    else
        semel__relay_free(relay);
    return status;
}

void semel__relay_free(struct semel_relay *relay)
{
    if (relay == NULL)
        return;
    if (relay->mapped)
        (void)relay->ops->map(relay->store, NULL, NULL, NULL, NULL);
    semel__arena_done(&relay->mapping);
    for (size_t i = 0; i < 2; i++)
        semel__arena_done(&relay->arenas[i]);
    semel__free(relay);
}

void semel__relay_forget(struct semel_relay *relay)
{
    semel__starts_forget(&relay->starts, semel__now(relay->steady));
    relay->joined = false; /* its starts from aside are given up under the old token */
    relay->next_beat_us = 0;
    relay->proof_known = false;
    relay->ahead.ready = false;
}

const struct semel_relay_counts *semel__relay_counts(const struct semel_relay *relay)
{
    return &relay->counts;
}

size_t semel__relay_owns(const struct semel_relay *relay, char why[SEMEL_RELAY_WHY])
{
    memcpy(why, relay->why, SEMEL_RELAY_WHY);
    return relay->joined ? relay->n_owned : 0;
}

bool semel__relay_idle(const struct semel_relay *relay)
{
    return relay->idle;
}

size_t semel__relay_down(const struct semel_relay *relay, char which[SEMEL_RELAY_WHY])
{
    size_t n = 0;
    which[0] = '\0';
    for (const struct destination *d = relay->destinations; d < relay->destinations + RELAY_DESTINATIONS_MAX; d++)
        if (d->down && n++ == 0)
            snprintf(which, SEMEL_RELAY_WHY, "%.*s: %s", (int)d->n, d->name, d->why);
    if (n > 0 || relay->trouble[0] == '\0')
        return n;
    memcpy(which, relay->trouble, SEMEL_RELAY_WHY);
    return 1;
}

bool semel__relay_destination(const struct semel_relay *relay, size_t i, struct semel_str *ret, bool *ret_down)
{
    if (i >= relay->n_destinations)
        return false;
    *ret = (struct semel_str){relay->destinations[i].name, relay->destinations[i].n};
    *ret_down = relay->destinations[i].down;
    return true;
}

int64_t semel__relay_held_by(const struct semel_relay *relay)
{
    return relay->starts.n_apart > 0 ? relay->starts.apart[0].pid : SEMEL_NONE;
}

/* ---- a transaction ------------------------------------------------------------------------------- */

semel_status semel__relay_transact(struct semel_relay *relay, relay_body body, void *ctx, struct semel_error *err)
{
    int64_t now_us;
    semel_status status = semel_store_begin(relay->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    relay->now_us = now_us;
    relay->now_steady_us = semel__now(relay->steady);
    status = body(relay, now_us, ctx, err);
    if (status == SEMEL_OK)
        return semel_store_commit(relay->store, err);
    semel_store_rollback(relay->store);
    return status;
}

/* The store's time, estimated by the steady clock. */
static int64_t store_now(const struct semel_relay *relay, int64_t steady_us)
{
    return relay->now_us + (steady_us - relay->now_steady_us);
}

static semel_status gone_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    (void)ctx;
    return relay->ops->confirm(relay->store, relay->gone, relay->n_gone, false, relay->options.keep_us > 0, now_us,
                               err);
}

semel_status semel__relay_delete_gone(struct semel_relay *relay, struct semel_error *err)
{
    semel_status status = relay->n_gone > 0 ? semel__relay_transact(relay, gone_body, NULL, err) : SEMEL_OK;
    relay->n_gone = status == SEMEL_OK ? 0 : relay->n_gone;
    return status;
}

/* ---- starting points ----------------------------------------------------------------------------- */

static semel_status ask_visible(struct semel_relay *relay, struct semel_error *err)
{
    int64_t now_us;
    bool visible = false;
    semel_status status = semel_store_begin(relay->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = relay->ops->visible(relay->store, &visible, err);
    semel_store_rollback(relay->store);
    if (status != SEMEL_OK)
        return status;
    if (!visible)
        semel__relay_report(relay, SEMEL_LOG_WARN,
                            "pg_locks does not show transactions here: every scan starts at the bottom", NULL, "");
    relay->proof_known = true;
    relay->proves = visible;
    return SEMEL_OK;
}

static semel_status note(struct semel_relay *relay, int64_t steady_us, struct semel_error *err)
{
    struct semel_relay_holder *holders;
    int64_t seq, started_us;
    size_t n;
    if (relay->mapped || !relay->ops->proves || steady_us < relay->next_note_us)
        return SEMEL_OK;
    relay->next_note_us = steady_us + NOTE_US;
    semel_status status = relay->proof_known ? SEMEL_OK : ask_visible(relay, err);
    if (status != SEMEL_OK || !relay->proves)
        return status;
    status = relay->ops->note(relay->store, &seq, &started_us, SEMEL_RELAY_HOLDERS_MAX, relay->arena, &holders, &n,
                              err);
    if (status == SEMEL_OK && semel__starts_note(&relay->starts, steady_us, seq, started_us, holders, n))
        semel__relay_report(relay, SEMEL_LOG_WARN,
                            "the sequence of the outbox was set back: every shard is read from the bottom again", NULL,
                            "numbers are drawn again that were used before");
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* An aggregate of which this step has read events. */
struct aggregate {
    struct semel_str type, id;
    struct semel_str destination; /* to which this step sends its events */
    size_t sent, waiting;
    bool stop;   /* no more of its events go in this step */
    bool behind; /* the sink did not take an event of it in this call: those behind it had no turn */
};

struct events {
    struct semel_relay_event **at;
    size_t n;
    bool aside;
    bool *started;
};

struct send {
    struct semel_relay_event *event;
    struct destination *destination;
    bool aside;
    bool put_off; /* the destination has answered, and neither took nor refused it */
};

struct round {
    struct semel_relay *relay;
    int64_t steady_us, now_us;
    struct semel_relay_start starts[SEMEL_RELAY_SHARDS];
    size_t n_starts;
    struct semel_relay_event *events, *aside;
    size_t n_events, n_aside;
    size_t n_first;               /* this many events were read from the starting points on, the others behind a run */
    int64_t floor;                /* when the scan began, everything up to it was committed, or never will be */
    bool ahead;                   /* the events were read while the last call was on its way */
    struct aggregate *aggregates; /* open addressing */
    size_t room;
    struct send *sends;
    struct semel_publish *items;
    size_t n_sends;
    struct semel_relay_event **moves, **later; /* events to set aside, and to look at again later */
    size_t n_moves, n_later;
    bool alone; /* one event only, which may kill the relay */
    bool reads_ahead;
    bool again;      /* the scan led to nothing: repeat it */
    int64_t took_us; /* by the call of the sink */
};

static void list_starts(struct round *round)
{
    struct semel_relay *relay = round->relay;
    round->n_starts = 0;
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++) {
        size_t s = (i + relay->turn) % SEMEL_RELAY_SHARDS;
        if (relay->shards[s].owned)
            round->starts[round->n_starts++] = (struct semel_relay_start){relay->first_shard + (int64_t)s,
                                                                          relay->starts.shards[s].at};
    }
}

/* Rows to read per shard, so that all shards together return about as many events as are wanted. */
static void adapt_limit(struct semel_relay *relay, size_t n, size_t full)
{
    const size_t rows = relay->options.rows;
    if (n > rows)
        relay->limit = relay->limit * rows / n > LIMIT_MIN ? relay->limit * rows / n : LIMIT_MIN;
    else if (full > 0 && relay->limit < rows)
        relay->limit = 2 * n <= rows ? 2 * relay->limit : relay->limit * rows / n;
}

static void note_windows(struct round *round)
{
    struct semel_relay *relay = round->relay;
    size_t full = 0, first_cut = round->n_starts;
    int64_t bytes = 0;
    for (size_t i = 0, k = 0; i < round->n_starts; i++) {
        struct shard *shard = &relay->shards[semel__relay_index(round->starts[i].shard)];
        size_t rows = 0;
        int64_t first = SEMEL_NONE;
        for (; k < round->n_events && round->events[k].shard == round->starts[i].shard; k++, rows++) {
            first = rows == 0 ? round->events[k].seq : first;
            shard->last_seq = round->events[k].seq;
            bytes += round->events[k].size;
        }
        /* There was no room for the events that follow. */
        const bool cut = bytes >= (int64_t)relay->options.bytes || k >= MOST_TIMES * relay->options.rows;
        if (cut && first_cut == round->n_starts)
            first_cut = i;
        shard->exhausted = rows < relay->limit && !cut;
        shard->stuck = rows;
        full += rows == relay->limit;
        if (rows == 0)
            shard->last_seq = SEMEL_STARTS_BOTTOM;
        if (round->ahead || (rows == 0 && cut))
            continue; /* no scan of this shard began at its starting point */
        if (relay->proves && semel__starts_scanned(&relay->starts, semel__relay_index(round->starts[i].shard), first))
            semel__relay_report(relay, SEMEL_LOG_WARN,
                                "event below a proven starting point: its transaction did not draw its number",
                                &round->events[k - rows], "");
    }
    round->n_first = round->n_events;
    relay->turn = semel__relay_index(round->starts[first_cut < round->n_starts ? first_cut : 0].shard) + 1;
    adapt_limit(relay, round->n_events, full);
}

static struct semel_relay_scan scan_of(const struct semel_relay *relay, const struct semel_relay_start *starts,
                                       size_t n)
{
    return (struct semel_relay_scan){.starts = starts,
                                     .n = n,
                                     .limit = relay->limit,
                                     .most = MOST_TIMES * relay->options.rows,
                                     .bytes = relay->options.bytes,
                                     .holders_max = relay->starts.n_apart > 0 ? SEMEL_RELAY_HOLDERS_MAX : 0,
                                     .large = relay->large_for > 0};
}

static semel_status read_events(struct round *round, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    for (int i = 0; i < SCANS_MAX; i++) {
        list_starts(round);
        round->floor = relay->proves ? relay->starts.floor : SEMEL_STARTS_BOTTOM;
        relay->counts.scans++;
        struct semel_relay_scan scan = scan_of(relay, round->starts, round->n_starts);
        scan.aside_max = ASIDE_MAX;
        scan.now_us = round->now_us;
        scan.arena = relay->arena;
        semel_status status = relay->ops->read(relay->store, &scan, err);
        if (status != SEMEL_OK)
            return status;
        SEMEL_POINT(RELAY_READ);
        relay->large_for = scan.large && relay->large_for == 0 ? LARGE_SCANS : relay->large_for - (scan.large ? 1 : 0);
        round->events = scan.events;
        round->n_events = scan.n_events;
        round->aside = scan.aside;
        round->n_aside = scan.n_aside;
        if (scan.holders_max == 0 || !semel__starts_ended(&relay->starts, scan.holders, scan.n_holders)) {
            if (relay->options.scanned != NULL)
                relay->options.scanned(relay->options.ctx, &scan);
            note_windows(round);
            return SEMEL_OK;
        }
        relay->counts.rescans++;
    }
    /* The events were read before a holder ended: none of them may go, and the scan proves nothing. */
    round->n_events = round->n_aside = 0;
    round->again = true;
    return SEMEL_OK;
}

/* ---- reading behind a run ------------------------------------------------------------------------ */

static size_t list_behind(struct round *round, struct semel_relay_start starts[SEMEL_RELAY_SHARDS])
{
    struct semel_relay *relay = round->relay;
    size_t n = 0;
    for (size_t i = 0; i < round->n_starts; i++) {
        struct shard *shard = &relay->shards[semel__relay_index(round->starts[i].shard)];
        if (semel__relay_behind_usable(relay, shard, round->floor))
            starts[n++] = (struct semel_relay_start){round->starts[i].shard, shard->behind.passed};
    }
    return n;
}

static void note_behind(struct semel_relay *relay, const struct semel_relay_scan *scan)
{
    size_t bytes = 0;
    for (size_t i = 0, k = 0; i < scan->n; i++) {
        struct behind *behind = &relay->shards[semel__relay_index(scan->starts[i].shard)].behind;
        const size_t first = k;
        behind->last_seq = behind->passed;
        for (; k < scan->n_events && scan->events[k].shard == scan->starts[i].shard; k++) {
            behind->last_seq = scan->events[k].seq;
            bytes += (size_t)scan->events[k].size;
        }
        behind->exhausted = k - first < scan->limit && k < scan->most && bytes < scan->bytes;
        behind->read = true;
    }
}

/* The relay also reads behind a run of very many events of few aggregates; events of other aggregates may go. As when
 * it reads ahead, it needs a proof that no event can appear below them, and a look, after the scan, at the holders that
 * are set apart. */
static semel_status read_behind(struct round *round, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    struct semel_relay_start starts[SEMEL_RELAY_SHARDS];
    const size_t n = round->again || relay->mapped ? 0 : list_behind(round, starts);
    if (n == 0)
        return SEMEL_OK;
    struct semel_relay_scan scan = scan_of(relay, starts, n);
    scan.most = relay->options.rows;
    scan.bytes = relay->options.bytes / 2;
    scan.now_us = round->now_us;
    scan.arena = relay->arena;
    relay->counts.behind++;
    semel_status status = relay->ops->read(relay->store, &scan, err);
    if (status != SEMEL_OK)
        return status;
    if (scan.holders_max > 0 && semel__starts_ended(&relay->starts, scan.holders, scan.n_holders)) {
        relay->counts.rescans++;
        return SEMEL_OK; /* the proof is given up, and with it the runs that are known */
    }
    struct semel_relay_event *both = semel__arena_alloc(relay->arena, round->n_events + scan.n_events + 1,
                                                        sizeof *both);
    if (both == NULL)
        return semel__fail_memory(err);
    memcpy(both, round->events, round->n_events * sizeof *both);
    memcpy(both + round->n_events, scan.events, scan.n_events * sizeof *both);
    round->events = both;
    round->n_events += scan.n_events;
    note_behind(relay, &scan);
    return SEMEL_OK;
}

/* ---- reading ahead ------------------------------------------------------------------------------- */

/* Takes the events that were read during the last call; false: there are none, or not all their shards are ours now. */
static bool use_ahead(struct round *round)
{
    struct semel_relay *relay = round->relay;
    if (!relay->ahead.ready)
        return false;
    relay->ahead.ready = false;
    for (size_t i = 0; i < relay->ahead.n_starts; i++)
        if (!relay->shards[semel__relay_index(relay->ahead.starts[i].shard)].owned)
            return false;
    memcpy(round->starts, relay->ahead.starts, relay->ahead.n_starts * sizeof round->starts[0]);
    round->n_starts = relay->ahead.n_starts;
    round->events = relay->ahead.events;
    round->n_events = relay->ahead.n_events;
    round->floor = relay->ahead.floor;
    round->ahead = true;
    note_windows(round);
    return true;
}

/* Reads above the events that are about to be sent, except in shards where one could still appear below them. false:
 * there is nothing to read. */
static bool list_ahead(const struct round *round)
{
    struct semel_relay *relay = round->relay;
    bool more = false;
    relay->ahead.n_starts = 0;
    for (size_t i = 0; i < round->n_starts; i++) {
        const struct shard *shard = &relay->shards[semel__relay_index(round->starts[i].shard)];
        struct semel_relay_start start = round->starts[i];
        if (shard->last_seq != SEMEL_STARTS_BOTTOM)
            start.after_seq = shard->last_seq;
        if (shard->last_seq > round->floor)
            continue;
        relay->ahead.starts[relay->ahead.n_starts++] = start;
        more |= !shard->exhausted;
    }
    return more;
}

/* May the relay read ahead? If all events that it read are about to be sent, and its last call succeeded. */
static bool may_read_ahead(const struct round *round)
{
    const struct semel_relay *relay = round->relay;
    if (relay->ops->ahead == NULL || relay->mapped || !relay->runs || !relay->smooth || relay->large_for > 0 ||
        relay->ahead.in_a_row >= AHEAD_MAX || round->n_sends != round->n_events || round->n_first != round->n_events ||
        round->n_aside + round->n_moves > 0)
        return false;
    for (size_t i = 0; i < round->n_starts; i++)
        if (relay->shards[semel__relay_index(round->starts[i].shard)].losses > 0)
            return false;
    return list_ahead(round);
}

static bool start_ahead(struct round *round, struct semel_relay_scan *scan)
{
    struct semel_relay *relay = round->relay;
    struct semel_arena *other = &relay->arenas[relay->arena == &relay->arenas[0]];
    if (!round->reads_ahead)
        return false;
    relay->ahead.floor = relay->starts.floor;
    *scan = scan_of(relay, relay->ahead.starts, relay->ahead.n_starts);
    scan->now_us = round->now_us;
    scan->arena = other;
    if (!relay->ops->ahead(relay->store, relay->gone, relay->n_gone, relay->options.keep_us > 0, scan, relay->arena))
        return false;
    relay->counts.scans++;
    relay->n_gone = 0; /* if the deletion fails these events are read and sent once more */
    semel__arena_reset(other);
    relay->sink->tend = relay->ops->tend;
    relay->sink->tend_ctx = relay->store;
    return true;
}

static semel_status end_ahead(struct round *round, struct semel_relay_scan *scan, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    relay->sink->tend = NULL;
    semel_status status = relay->ops->ahead_end(relay->store, scan, err);
    if (status != SEMEL_OK)
        return status;
    bool ended = scan->holders_max > 0 && semel__starts_ended(&relay->starts, scan->holders, scan->n_holders);
    relay->counts.rescans += ended;
    relay->large_for = scan->large ? LARGE_SCANS : 0;
    relay->ahead.events = scan->events;
    relay->ahead.n_events = scan->n_events;
    relay->ahead.ready = !ended && !scan->large && scan->n_events > 0;
    return SEMEL_OK;
}

/* Every event was confirmed: the relay deletes them during the next call. false: not all of them were. */
static bool go_on(struct round *round, const struct events *confirmed)
{
    struct semel_relay *relay = round->relay;
    relay->ahead.ready = relay->ahead.ready && confirmed->n == round->n_sends;
    if (!relay->ahead.ready)
        return false;
    relay->gone = confirmed->at;
    relay->n_gone = confirmed->n;
    relay->arena = &relay->arenas[relay->arena == &relay->arenas[0]];
    relay->ahead.in_a_row++;
    relay->counts.ahead++;
    SEMEL_POINT(RELAY_AHEAD);
    return true;
}

/* ---- planning ------------------------------------------------------------------------------------ */

static struct aggregate *aggregate_of(struct round *round, struct semel_str type, struct semel_str id)
{
    size_t at = (size_t)semel__str_hash(semel__str_hash(0, type), id) & (round->room - 1);
    struct aggregate *a = &round->aggregates[at];
    while (semel__str_given(a->id) && (!semel__str_eq(a->id, id) || !semel__str_eq(a->type, type))) {
        at = (at + 1) & (round->room - 1);
        a = &round->aggregates[at];
    }
    a->type = type;
    a->id = id;
    return a;
}

/* The destination to forget: the one that has not worked for longest; one that is down only if all are, because its
 * events would try it too early. */
static bool is_rather_forgotten(const struct destination *a, const struct destination *b)
{
    return a->down != b->down ? !a->down : a->down ? a->until_us < b->until_us : a->worked_us < b->worked_us;
}

static struct destination *known(struct semel_relay *relay, struct semel_str name)
{
    for (size_t i = 0; i < relay->n_destinations; i++)
        if (semel__str_eq((struct semel_str){relay->destinations[i].name, relay->destinations[i].n}, name))
            return &relay->destinations[i];
    return NULL;
}

/* NULL: this step has too many destinations already; events of the others go in a later one. */
static struct destination *destination_of(struct semel_relay *relay, struct semel_str name)
{
    struct destination *d = known(relay, name), *oldest = NULL;
    if (d != NULL) {
        d->used = true;
        return d;
    }
    for (size_t i = 0; i < relay->n_destinations; i++) {
        d = &relay->destinations[i];
        if (!d->used && (oldest == NULL || is_rather_forgotten(d, oldest)))
            oldest = d;
    }
    if (relay->n_destinations < RELAY_DESTINATIONS_MAX)
        oldest = &relay->destinations[relay->n_destinations++];
    if (oldest == NULL)
        return NULL;
    memset(oldest, 0, sizeof *oldest);
    oldest->n = name.n;
    oldest->used = true;
    memcpy(oldest->name, name.p, name.n);
    return oldest;
}

/* Does a destination work? `ever`: it has worked at some time, and is not down. */
static bool some_work(const struct semel_relay *relay, int64_t steady_us, bool ever)
{
    for (size_t i = 0; i < relay->n_destinations; i++) {
        const struct destination *d = &relay->destinations[i];
        if (!d->down && d->worked_us != 0 && (ever || steady_us - d->worked_us < WORKS_US))
            return true;
    }
    return false;
}

/* Must events that cannot go make room? In a mapped table the relay cannot look behind the events that it read. */
static bool makes_room(const struct semel_relay *relay, int64_t number, int64_t steady_us)
{
    const struct shard *shard = &relay->shards[semel__relay_index(number)];
    return (!shard->exhausted && shard->other > shard->last_seq) ||
           some_work(relay, steady_us, relay->mapped && !shard->exhausted);
}

static void move_aside(struct round *round, struct semel_relay_event *event, enum semel_event_status status,
                       int64_t attempts, int64_t due_us, struct semel_str why)
{
    event->status = semel__str(semel__event_status_name(status));
    event->attempts = attempts;
    event->due_us = due_us;
    event->error = why;
    round->moves[round->n_moves++] = event;
}

static void look_later(struct round *round, struct semel_relay_event *event, int64_t due_us)
{
    event->due_us = due_us;
    round->later[round->n_later++] = event;
}

static void add_send(struct round *round, struct semel_relay_event *event, struct destination *destination,
                     struct semel_str name, bool aside)
{
    struct semel_publish *item = &round->items[round->n_sends];
    *item = (struct semel_publish){.destination = name,
                                   .key = event->aggregateid,
                                   .id = event->id,
                                   .payload = event->payload};
    round->sends[round->n_sends++] = (struct send){event, destination, aside, false};
}

/* What a down destination means for an event that would go there. true: it may go, as the probe. */
static bool may_probe(struct destination *d, int64_t steady_us)
{
    if (d->probed || steady_us < d->until_us)
        return false;
    d->probed = true;
    return true;
}

static semel_status find_destination(struct round *round, struct semel_relay_event *event, struct semel_str *ret_name,
                                     struct destination **ret, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    if (event->aggregateid.n == 0 || event->aggregatetype.n == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the event has no aggregate");
    if (event->aggregateid.n + event->aggregatetype.n > SEMEL_RELAY_AGGREGATE_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the aggregate's type and id have more than %d bytes", SEMEL_RELAY_AGGREGATE_MAX);
    if (event->id.n == 0 || event->id.n > SEMEL_ID_MAX || !semel__utf8_valid(event->id))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the event's id must be text of 1 to %d bytes",
                           SEMEL_ID_MAX);
    if (event->size > SEMEL_RELAY_EVENT_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the event has more than 64 MB");
    semel_status status = relay->options.destination(relay->options.ctx, event, relay->arena, ret_name, err);
    if (status == SEMEL_OK && ret_name->n > SEMEL_DESTINATION_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the destination has more than %d bytes",
                           SEMEL_DESTINATION_MAX);
    if (status == SEMEL_OK)
        *ret = destination_of(relay, *ret_name);
    return status;
}

static semel_status copy_text(struct round *round, const char *text, struct semel_str *ret, struct semel_error *err)
{
    return semel__arena_copy(round->relay->arena, semel__str(text), ret) ? SEMEL_OK : semel__fail_memory(err);
}

/* How many events of one aggregate may wait in the outbox, so that a scan still sees those behind them in the shard. */
static size_t waiting_max(const struct semel_relay *relay, int64_t shard)
{
    const bool all = relay->shards[semel__relay_index(shard)].exhausted || relay->limit / 2 > WAITING_MAX;
    return all ? WAITING_MAX : relay->limit / 2;
}

static semel_status plan_event(struct round *round, struct semel_relay_event *event, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    struct aggregate *a = aggregate_of(round, event->aggregatetype, event->aggregateid);
    struct destination *d = NULL;
    struct semel_str name = {0}, why = {0};
    struct semel_error bad = {0};
    const bool careful = relay->shards[semel__relay_index(event->shard)].careful;
    if (event->held || careful) { /* of a careful shard each aggregate's first one is due */
        const bool first = !event->held && !a->stop;
        move_aside(round, event, SEMEL_EVENT_WAITING, 0, first ? round->now_us : SEMEL_NONE, why);
        event->alone = careful;
        a->stop = true;
        return SEMEL_OK;
    }
    if (a->stop)
        return SEMEL_OK;
    semel_status status = find_destination(round, event, &name, &d, &bad);
    if (status == SEMEL_INVALID) {
        a->stop = true;
        relay->counts.dead++;
        status = copy_text(round, bad.text, &why, err);
        semel__relay_report(relay, SEMEL_LOG_ERROR, "event is dead", event, bad.text);
        move_aside(round, event, SEMEL_EVENT_DEAD, 0, SEMEL_NONE, why);
        return status;
    }
    if (status != SEMEL_OK) {
        *err = bad;
        return status;
    }
    if (a->sent > 0 &&
        (!relay->runs || a->waiting > 0 || !semel__str_eq(a->destination, name) || d == NULL || d->down)) {
        if (++a->waiting > waiting_max(relay, event->shard) && (d == NULL || !d->down)) {
            a->stop = true;
            move_aside(round, event, SEMEL_EVENT_WAITING, 0, round->now_us + SECOND_US, why);
        }
        return SEMEL_OK;
    }
    if (d == NULL || (d->down && !may_probe(d, round->steady_us))) {
        a->stop = true;
        if (d != NULL && makes_room(relay, event->shard, round->steady_us)) {
            status = copy_text(round, d->why, &why, err);
            move_aside(round, event, SEMEL_EVENT_WAITING, 0, store_now(relay, d->until_us), why);
        }
        return status;
    }
    a->destination = name;
    a->sent++;
    add_send(round, event, d, name, false);
    return SEMEL_OK;
}

/* Were all events of its aggregate read that stand in the outbox below this one? */
static bool was_read_up_to(const struct shard *shard, const struct semel_relay_event *event)
{
    const struct behind *behind = &shard->behind;
    return shard->exhausted || event->seq <= shard->last_seq ||
           (behind->read && (behind->exhausted || event->seq <= behind->last_seq) &&
            !semel__relay_behind_is_hot(behind, event->aggregatetype, event->aggregateid));
}

/* The event of an aggregate with the lowest number of both tables goes first: none below it may be in the outbox. */
static bool may_go_from_aside(struct round *round, const struct semel_relay_event *event)
{
    if (round->relay->mapped) /* the store has looked */
        return true;
    if (!was_read_up_to(&round->relay->shards[semel__relay_index(event->shard)], event))
        return false;
    for (size_t i = 0; i < round->n_events; i++) {
        const struct semel_relay_event *other = &round->events[i];
        if (other->shard == event->shard && other->seq < event->seq &&
            semel__str_eq(other->aggregateid, event->aggregateid) &&
            semel__str_eq(other->aggregatetype, event->aggregatetype))
            return false;
    }
    return true;
}

static semel_status plan_aside(struct round *round, struct semel_relay_event *event, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    struct semel_str name = {0};
    struct destination *d = NULL;
    struct semel_error bad = {0};
    if (!may_go_from_aside(round, event)) {
        look_later(round, event, round->now_us + SECOND_US);
        return SEMEL_OK;
    }
    semel_status status = find_destination(round, event, &name, &d, &bad);
    if (status == SEMEL_INVALID) { /* the event is started, and refused without being sent */
        add_send(round, event, NULL, name, true);
        return copy_text(round, bad.text, &event->error, err);
    }
    if (status != SEMEL_OK) {
        *err = bad;
        return status;
    }
    if (d == NULL || (d->down && !may_probe(d, round->steady_us))) {
        look_later(round, event, d != NULL ? store_now(relay, d->until_us) : round->now_us + SECOND_US);
        return SEMEL_OK;
    }
    add_send(round, event, d, name, true);
    return SEMEL_OK;
}

/* An event that was being published when its relay died is sent alone, so that only it is charged if it kills again. */
static size_t find_alone(const struct round *round)
{
    size_t i = 0;
    while (i < round->n_aside && !round->aside[i].alone)
        i++;
    return i;
}

static semel_status plan_rooms(struct round *round, struct semel_error *err)
{
    struct semel_arena *arena = round->relay->arena;
    const size_t n = round->n_events + round->n_aside;
    round->room = 16;
    while (round->room < 2 * (n + (size_t)RELAY_HOT_MAX * SEMEL_RELAY_SHARDS * (round->n_events > round->n_first)))
        round->room *= 2;
    round->aggregates = semel__arena_alloc(arena, round->room, sizeof *round->aggregates);
    round->sends = semel__arena_alloc(arena, n + 1, sizeof *round->sends);
    round->items = semel__arena_alloc(arena, n + 1, sizeof *round->items);
    round->moves = semel__arena_alloc(arena, n + 1, sizeof(struct semel_relay_event *));
    round->later = semel__arena_alloc(arena, n + 1, sizeof(struct semel_relay_event *));
    if (round->aggregates == NULL || round->sends == NULL || round->items == NULL || round->moves == NULL ||
        round->later == NULL)
        return semel__fail_memory(err);
    return SEMEL_OK;
}

static semel_status plan_events(struct round *round, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < round->n_first; i++)
        status = plan_event(round, &round->events[i], err);
    for (size_t i = 0; i < round->n_sends; i++)
        if (!round->sends[i].aside)
            relay->shards[semel__relay_index(round->sends[i].event->shard)].stuck--;
    /* Behind a run no event of its aggregates goes: earlier ones stand before it, read or not. */
    for (size_t s = 0; s < SEMEL_RELAY_SHARDS && round->n_events > round->n_first; s++) {
        const struct behind *behind = &relay->shards[s].behind;
        for (size_t i = 0; behind->read && i < behind->n_hot; i++) {
            const struct hot *hot = &behind->hot[i];
            aggregate_of(round, (struct semel_str){hot->name, hot->type_n},
                         (struct semel_str){hot->name + hot->type_n, hot->id_n})
                ->stop = true;
        }
    }
    for (size_t i = round->n_first; status == SEMEL_OK && i < round->n_events; i++)
        status = plan_event(round, &round->events[i], err);
    return status;
}

static semel_status plan(struct round *round, struct semel_error *err)
{
    const size_t alone = find_alone(round);
    semel_status status = plan_rooms(round, err);
    for (size_t i = 0; i < round->relay->n_destinations; i++) {
        round->relay->destinations[i].sent = round->relay->destinations[i].ok = round->relay->destinations[i].broke = 0;
        round->relay->destinations[i].probed = round->relay->destinations[i].used = false;
    }
    if (status == SEMEL_OK && alone < round->n_aside) {
        status = plan_aside(round, &round->aside[alone], err);
        if (status != SEMEL_OK || round->n_sends > 0) {
            round->alone = true;
            return status;
        }
    }
    for (size_t i = 0; status == SEMEL_OK && i < round->n_aside; i++)
        if (!round->aside[i].alone)
            status = plan_aside(round, &round->aside[i], err);
    return status == SEMEL_OK ? plan_events(round, err) : status;
}

/* ---- looking behind events that cannot go -------------------------------------------------------- */

/* All events that were read are for destinations that are down or have no turn yet: which shards have more? */
static size_t list_peeks(const struct round *round, struct semel_relay_start starts[SEMEL_RELAY_SHARDS])
{
    struct semel_relay *relay = round->relay;
    size_t n = 0;
    for (size_t i = 0; i < round->n_starts; i++) {
        struct shard *shard = &relay->shards[semel__relay_index(round->starts[i].shard)];
        if (shard->peeked < shard->last_seq)
            shard->peeked = shard->last_seq;
        if (!shard->exhausted && shard->last_seq != SEMEL_STARTS_BOTTOM && shard->other <= shard->last_seq)
            starts[n++] = (struct semel_relay_start){round->starts[i].shard, shard->peeked};
    }
    return n;
}

/* May the event go? Not if an earlier one of its aggregate stands aside; and a destination that is due is tried by
 * what was read, or stands aside, if there is something for it. */
static bool may_work(struct round *round, const struct semel_relay_event *event, struct semel_arena *arena)
{
    struct semel_relay *relay = round->relay;
    struct semel_str name = {0};
    struct semel_error ignored;
    if (event->held || relay->options.destination(relay->options.ctx, event, arena, &name, &ignored) != SEMEL_OK)
        return false;
    const struct destination *d = known(relay, name);
    return d == NULL || !d->down || (!d->used && round->steady_us >= d->until_us);
}

/* No event goes. Looks, from where it last stopped, whether an event for a destination that may work stands behind
 * those that were read (an earlier one of its aggregate may still hold it back). Five minutes after it came to the end
 * it begins anew, for lower numbers that were committed later. *ret: there is such an event. */
static semel_status peek(struct round *round, bool *ret, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    struct semel_arena *arena = &relay->arenas[relay->arena == &relay->arenas[0]];
    struct semel_relay_start starts[SEMEL_RELAY_SHARDS];
    semel_status status = SEMEL_OK;
    size_t n_events = 1;
    assert(relay->n_gone == 0);
    if (round->steady_us >= relay->peek_anew_us) {
        for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
            relay->shards[i].peeked = SEMEL_STARTS_BOTTOM;
        relay->peek_anew_us = INT64_MAX;
    }
    *ret = false;
    for (int i = 0; status == SEMEL_OK && !relay->mapped && n_events > 0 && i < PEEKS_MAX; i++) {
        const size_t n = list_peeks(round, starts);
        if (n == 0)
            break;
        struct semel_relay_scan scan = scan_of(relay, starts, n);
        semel__arena_reset(arena);
        scan.now_us = round->now_us;
        scan.arena = arena;
        scan.holders_max = 0;
        status = relay->ops->read(relay->store, &scan, err);
        n_events = status == SEMEL_OK ? scan.n_events : 0;
        for (size_t k = 0; k < n_events; k++) {
            struct shard *shard = &relay->shards[semel__relay_index(scan.events[k].shard)];
            shard->peeked = scan.events[k].seq;
            if (shard->other <= shard->last_seq && may_work(round, &scan.events[k], arena)) {
                shard->other = scan.events[k].seq;
                *ret = true;
            }
        }
    }
    if (n_events == 0 && relay->peek_anew_us == INT64_MAX)
        relay->peek_anew_us = round->steady_us + PEEK_ANEW_US;
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static int cmp_events(const void *va, const void *vb)
{
    const struct semel_relay_event *a = *(struct semel_relay_event *const *)va,
                                   *b = *(struct semel_relay_event *const *)vb;
    return a->shard != b->shard ? (a->shard > b->shard) - (a->shard < b->shard) : (a->seq > b->seq) - (a->seq < b->seq);
}

/* Locks the shards of the events, and those that are also wanted (NULL: none), in order. */
static semel_status lock_shards(struct semel_relay *relay, const struct events *events, const bool *besides,
                                bool *ret_owned, struct semel_error *err)
{
    struct semel_relay_shard shards[SEMEL_RELAY_SHARDS];
    bool wanted[SEMEL_RELAY_SHARDS] = {false};
    size_t n = 0;
    if (besides != NULL)
        memcpy(wanted, besides, sizeof wanted);
    for (size_t i = 0; i < events->n; i++)
        wanted[semel__relay_index(events->at[i]->shard)] = true;
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        if (wanted[i])
            shards[n++] = (struct semel_relay_shard){.shard = relay->first_shard + (int64_t)i, .token = relay->token};
    return relay->ops->lock(relay->store, relay->token, shards, n, ret_owned, err);
}

static semel_status move_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    struct events *events = ctx;
    struct semel_relay_shard calm[SEMEL_RELAY_SHARDS];
    size_t n_calm = 0;
    bool owned;
    semel_status status = lock_shards(relay, events, NULL, &owned, err);
    if (status == SEMEL_OK && !owned)
        return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_ENVIRONMENT, "another relay has taken over a shard");
    if (status == SEMEL_OK)
        status = relay->ops->set_aside(relay->store, events->at, events->n, now_us, err);
    for (size_t i = 0; i < events->n; i++) { /* only events of locked shards */
        struct shard *shard = &relay->shards[semel__relay_index(events->at[i]->shard)];
        if (!shard->careful)
            continue;
        calm[n_calm++] = (struct semel_relay_shard){events->at[i]->shard, relay->token, 0};
        shard->careful = false; /* the event that may have killed a relay stands aside now */
        shard->losses = 0;
    }
    if (status == SEMEL_OK && n_calm > 0)
        status = relay->ops->shards_write(relay->store, calm, n_calm, err);
    return status;
}

static semel_status write_moves(struct round *round, struct semel_error *err)
{
    struct events events = {.at = round->moves, .n = round->n_moves};
    if (events.n == 0)
        return SEMEL_OK;
    semel__sort(events.at, events.n, sizeof *events.at, cmp_events);
    semel_status status = semel__relay_transact(round->relay, move_body, &events, err);
    if (status == SEMEL_OK)
        round->relay->counts.aside += events.n;
    if (status == SEMEL_FENCED) { /* the shards are another relay's now */
        round->relay->next_beat_us = 0;
        status = SEMEL_OK;
    }
    return status;
}

static semel_status later_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    struct events *events = ctx;
    bool owned;
    (void)now_us;
    semel_status status = lock_shards(relay, events, NULL, &owned, err);
    if (status == SEMEL_OK && owned) /* else the events are another relay's */
        status = relay->ops->aside_postpone(relay->store, events->at, events->n, err);
    return status;
}

static semel_status start_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    struct events *events = ctx;
    bool owned;
    semel_status status = lock_shards(relay, events, NULL, &owned, err);
    if (status == SEMEL_OK && !owned)
        return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_ENVIRONMENT, "another relay has taken over a shard");
    return status == SEMEL_OK ? relay->ops->aside_start(relay->store, relay->token, events->at, events->n, now_us,
                                                        events->started, err)
                              : status;
}

/* Commits the starts of events that go from aside; one that was not ours to start does not go. */
static semel_status start_aside(struct round *round, struct semel_error *err)
{
    struct semel_arena *arena = round->relay->arena;
    struct events events = {.at = semel__arena_alloc(arena, round->n_sends + 1, sizeof *events.at),
                            .started = semel__arena_alloc(arena, round->n_sends + 1, sizeof *events.started)};
    if (events.at == NULL || events.started == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < round->n_sends; i++)
        if (round->sends[i].aside)
            events.at[events.n++] = round->sends[i].event;
    if (events.n == 0)
        return SEMEL_OK;
    semel__sort(events.at, events.n, sizeof *events.at, cmp_events);
    semel_status status = semel__relay_transact(round->relay, start_body, &events, err);
    if (status == SEMEL_FENCED) {
        round->relay->next_beat_us = 0;
        memset(events.started, 0, events.n * sizeof *events.started);
        status = SEMEL_OK;
    }
    if (status != SEMEL_OK)
        return status;
    size_t kept = 0;
    for (size_t i = 0; i < round->n_sends; i++) {
        bool goes = !round->sends[i].aside;
        for (size_t k = 0; !goes && k < events.n; k++)
            goes = events.at[k] == round->sends[i].event && events.started[k];
        if (goes) {
            round->sends[kept] = round->sends[i];
            round->items[kept++] = round->items[i];
        }
    }
    round->n_sends = kept;
    return SEMEL_OK;
}

/* Shards that make progress are not suspected any more of having killed a relay. */
static size_t list_calm(const struct semel_relay *relay, const struct events *events, bool wanted[SEMEL_RELAY_SHARDS],
                        struct semel_relay_shard calm[SEMEL_RELAY_SHARDS])
{
    size_t n = 0;
    for (size_t i = 0; i < events->n; i++) {
        const size_t at = semel__relay_index(events->at[i]->shard);
        if (relay->shards[at].losses == 0 || relay->shards[at].careful || wanted[at])
            continue;
        wanted[at] = true;
        calm[n++] = (struct semel_relay_shard){events->at[i]->shard, relay->token, 0};
    }
    return n;
}

static semel_status confirm_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    struct events *events = ctx; /* of the outbox, then from aside */
    struct semel_relay_shard calm[SEMEL_RELAY_SHARDS];
    bool wanted[SEMEL_RELAY_SHARDS] = {false}, owned = false;
    const size_t n_calm = list_calm(relay, &events[0], wanted, calm);
    semel_status status = SEMEL_OK;
    if (n_calm > 0 || events[1].n > 0) /* all at once: a relay that locks some and then others can block another */
        status = lock_shards(relay, &events[1], wanted, &owned, err);
    if (status == SEMEL_OK && n_calm > 0 && owned)
        status = relay->ops->shards_write(relay->store, calm, n_calm, err);
    for (size_t i = 0; status == SEMEL_OK && i < n_calm; i++)
        relay->shards[semel__relay_index(calm[i].shard)].losses = 0;
    for (size_t i = 0; status == SEMEL_OK && i < 2; i++)
        if (events[i].n > 0)
            status = relay->ops->confirm(relay->store, events[i].at, events[i].n, events[i].aside,
                                         relay->options.keep_us > 0, now_us, err);
    return status;
}

static semel_status fail_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    struct events *events = ctx;
    bool owned;
    semel_status status = lock_shards(relay, events, NULL, &owned, err);
    return status == SEMEL_OK ? relay->ops->aside_fail(relay->store, relay->token, events->at, events->n, now_us, err)
                              : status;
}

/* ---- publishing, and what came of it ------------------------------------------------------------- */

/* The relay's row has news for those who read it: write it soon. */
static void turned(struct round *round)
{
    struct semel_relay *relay = round->relay;
    const int64_t soon_us = round->steady_us + RELAY_BEAT_SOON_US;
    relay->counts.turns++;
    relay->next_beat_us = relay->next_beat_us < soon_us ? relay->next_beat_us : soon_us;
}

/* Destinations that took nothing are tried again later: the longer they held up events for others, the later; and all
 * that are down in one call. A destination that was due and had no turn stays due: it may work again. */
static void let_rest(struct semel_relay *relay, int64_t began_us, int64_t now_us, int64_t rest_us)
{
    for (size_t i = 0; i < relay->n_destinations; i++) {
        struct destination *d = &relay->destinations[i];
        if (d->down && d->sent > 0)
            d->until_us = now_us + semel__backoff_us(relay->options.first_us, relay->options.ceiling_us, ++d->failures,
                                                     relay->rng);
        if (d->down && (d->sent > 0 || d->until_us > began_us) && d->until_us < now_us + rest_us)
            d->until_us = now_us + rest_us;
    }
}

static void judge_destinations(struct round *round)
{
    struct semel_relay *relay = round->relay;
    const int64_t now_us = semel__now(relay->steady);
    bool failed = false;
    for (size_t i = 0; i < relay->n_destinations; i++) {
        struct destination *d = &relay->destinations[i];
        char name[80], text[sizeof name + sizeof d->why + 2];
        const bool down = d->ok == 0;
        if (d->sent == 0)
            continue;
        semel__str_show(name, sizeof name, (struct semel_str){d->name, d->n});
        snprintf(text, sizeof text, "%s: %s", name, d->why);
        if (down != d->down) {
            semel__relay_report(relay, down ? SEMEL_LOG_WARN : SEMEL_LOG_INFO,
                                down ? "destination is down" : "destination takes events again", NULL,
                                down ? text : name);
            turned(round);
        }
        d->down = down;
        d->failures = down ? d->failures : 0;
        d->worked_us = down ? d->worked_us : now_us;
        failed |= down;
    }
    let_rest(relay, round->steady_us, now_us,
             failed && some_work(relay, now_us, false) ? REST_TIMES * round->took_us : 0);
}

/* An event was refused: it is tried again, until it is dead. */
static void refuse(struct round *round, struct semel_relay_event *event, int64_t attempts, struct semel_str why)
{
    struct semel_relay *relay = round->relay;
    const bool dead = attempts >= relay->options.attempts_max;
    relay->counts.refused++;
    relay->counts.dead += dead;
    event->status = semel__str(semel__event_status_name(dead ? SEMEL_EVENT_DEAD : SEMEL_EVENT_FAILED));
    event->attempts = attempts;
    event->error = why;
    event->due_us = dead ? SEMEL_NONE
                         : round->now_us + semel__backoff_us(relay->options.first_us, relay->options.ceiling_us,
                                                             (int)attempts, relay->rng);
    semel__relay_report(relay, dead ? SEMEL_LOG_ERROR : SEMEL_LOG_WARN, dead ? "event is dead" : "event refused", event,
                        why.p);
}

struct outcome {
    struct events confirmed[2]; /* of the outbox, from aside */
    struct events failed;       /* from aside */
    struct events refused;      /* of the outbox: set aside */
};

/* Counts what became of the events of each destination. Of an aggregate the first one that was not taken counts: those
 * behind it had no turn. */
static void count_answers(struct round *round)
{
    uint64_t broke_at[RELAY_DESTINATIONS_MAX] = {0};
    struct semel_relay *relay = round->relay;
    for (size_t i = 0; i < round->n_sends; i++) {
        struct send *send = &round->sends[i];
        const struct semel_publish *item = &round->items[i];
        struct aggregate *a = aggregate_of(round, send->event->aggregatetype, send->event->aggregateid);
        struct destination *d = send->destination;
        const bool answers = item->status == SEMEL_OK || item->status == SEMEL_INVALID;
        send->put_off = d != NULL && !answers && !item->down && item->why[0] != '\0' && !a->behind;
        a->behind |= item->status != SEMEL_OK;
        if (d == NULL || (!answers && !item->down && !send->put_off))
            continue;
        d->ok += answers;
        d->sent += answers || item->down || d->down;
        if (send->put_off && item->status == SEMEL_UNKNOWN) {
            d->broke++;
            broke_at[d - relay->destinations] = semel__str_hash(0, send->event->id) | 1;
        }
        if (item->status != SEMEL_OK)
            memcpy(d->why, item->why, sizeof d->why);
    }
    /* Who is to blame when a destination breaks at an event? The event, if others were taken since it last broke at
     * one. The destination, if it broke at two without taking one in between. */
    for (size_t i = 0; i < relay->n_destinations; i++) {
        struct destination *d = &relay->destinations[i];
        d->takes_others = d->ok > 0 || (!d->down && d->broke == 1 && d->broke_at == 0 && d->worked_us != 0);
        if (d->ok == 0 && (d->broke > 1 || (d->broke == 1 && d->broke_at != 0 && d->broke_at != broke_at[i])))
            d->sent++; /* and it took nothing: it is down */
        d->breaks = d->ok > 0 ? 0 : d->breaks + (d->broke > 0);
        d->broke_at = d->ok > 0 ? 0 : d->broke > 0 ? broke_at[i] : d->broke_at;
    }
}

/* The event is charged if its destination works without it. If not, it still gives way: as the lowest one it would be
 * the only one to try the destination. The events at which a destination went down stay where they are. */
static bool put_off(struct round *round, const struct send *send, semel_status status, struct semel_str why)
{
    const struct semel_relay *relay = round->relay;
    const struct destination *d = send->destination;
    struct semel_relay_event *event = send->event;
    if (status == SEMEL_UNKNOWN && d->takes_others) {
        refuse(round, event, event->attempts + 1, why);
        return true;
    }
    if (!send->aside && !d->down && (status == SEMEL_RETRY || d->sent > 0))
        return false;
    const int tries = event->attempts > d->breaks ? (int)event->attempts : d->breaks;
    event->status = semel__str(semel__event_status_name(SEMEL_EVENT_WAITING));
    event->error = why;
    event->due_us = round->now_us + semel__backoff_us(relay->options.first_us, relay->options.ceiling_us,
                                                      tries > 0 ? tries : 1, relay->rng);
    return true;
}

static semel_status sort_out(struct round *round, struct outcome *out, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    const int64_t now_us = store_now(relay, semel__now(relay->steady));
    struct semel_relay_event **at = semel__arena_alloc(relay->arena, 4 * round->n_sends + 1, sizeof *at);
    if (at == NULL)
        return semel__fail_memory(err);
    out->confirmed[0] = (struct events){.at = at};
    out->confirmed[1] = (struct events){.at = at + round->n_sends, .aside = true};
    out->failed = (struct events){.at = at + 2 * round->n_sends, .aside = true};
    out->refused = (struct events){.at = at + 3 * round->n_sends};
    count_answers(round);
    for (size_t i = 0; i < round->n_sends; i++) {
        struct send *send = &round->sends[i];
        const struct semel_publish *item = &round->items[i];
        struct events *not_taken = send->aside ? &out->failed : &out->refused;
        struct semel_str why = {0};
        bool moves = true;
        relay->counts.unknown += item->status == SEMEL_UNKNOWN;
        relay->counts.retried += item->status == SEMEL_RETRY;
        if (item->status == SEMEL_OK) {
            struct events *c = &out->confirmed[send->aside];
            c->at[c->n++] = send->event;
            relay->counts.published++;
            if (relay->options.published != NULL && send->event->created_us > 0) /* it may have no time */
                relay->options.published(relay->options.ctx, now_us - send->event->created_us);
            continue;
        }
        if (!semel__arena_copy(relay->arena, semel__str(item->why), &why))
            return semel__fail_memory(err);
        if (item->status == SEMEL_INVALID) {
            refuse(round, send->event, send->event->attempts + 1, send->destination == NULL ? send->event->error : why);
        } else if (send->put_off) {
            moves = put_off(round, send, item->status, why);
        } else if ((moves = send->aside)) { /* the event is not to blame: its start is taken back */
            send->event->status = semel__str(semel__event_status_name(SEMEL_EVENT_WAITING));
            send->event->error = why;
            send->event->due_us = round->now_us + PAUSE_FIRST_US;
        }
        if (moves)
            not_taken->at[not_taken->n++] = send->event;
    }
    return SEMEL_OK;
}

static semel_status write_outcome(struct round *round, struct outcome *out, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < 2; i++)
        semel__sort(out->confirmed[i].at, out->confirmed[i].n, sizeof(struct semel_relay_event *), cmp_events);
    SEMEL_POINT(RELAY_PUBLISHED);
    if (go_on(round, &out->confirmed[0]))
        return SEMEL_OK;
    if (out->confirmed[0].n + out->confirmed[1].n > 0)
        status = semel__relay_transact(relay, confirm_body, out->confirmed, err);
    SEMEL_POINT(RELAY_CONFIRMED);
    if (status == SEMEL_OK && out->failed.n > 0) {
        semel__sort(out->failed.at, out->failed.n, sizeof(struct semel_relay_event *), cmp_events);
        status = semel__relay_transact(relay, fail_body, &out->failed, err);
    }
    if (status == SEMEL_OK && out->refused.n > 0) {
        round->moves = out->refused.at;
        round->n_moves = out->refused.n;
        status = write_moves(round, err);
    }
    return status;
}

static semel_status hand_over(struct round *round, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    struct semel_publish *items = round->items;
    size_t n = 0;
    int64_t left_us = relay->lease_until_us - semel__now(relay->steady);
    int64_t timeout_us = relay->options.timeout_us < left_us ? relay->options.timeout_us : left_us;
    if (timeout_us < 1000) { /* the database was slow: no event goes, and starts are taken back */
        for (size_t i = 0; i < round->n_sends; i++)
            items[i].status = SEMEL_RETRY;
        relay->next_beat_us = 0;
        return SEMEL_OK;
    }
    /* Events without a destination are refused here; they stand behind the others, so the sink sees none of them. */
    for (size_t i = 0; i < round->n_sends; i++) {
        if (round->sends[i].destination == NULL)
            continue;
        struct send send = round->sends[i];
        struct semel_publish item = items[i];
        round->sends[i] = round->sends[n];
        items[i] = items[n];
        round->sends[n] = send;
        items[n++] = item;
    }
    semel_status status = n > 0 ? semel_broker_publish(relay->sink, items, n, (int)(timeout_us / 1000), err) : SEMEL_OK;
    for (size_t i = n; i < round->n_sends; i++) {
        items[i].status = SEMEL_INVALID;
        items[i].down = false;
    }
    return status;
}

/* No destination works: the relay waits for a while. */
static void pause_all(struct semel_relay *relay, int64_t steady_us)
{
    relay->next_step_us = steady_us + semel__backoff_us(PAUSE_FIRST_US, PAUSE_MAX_US, ++relay->failures, relay->rng);
}

static semel_status publish(struct round *round, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    struct outcome outcome = {0};
    struct semel_error down = {0};
    semel_status status = start_aside(round, err);
    /* Only events of destinations that are down were read: the relay does not read them again and again. */
    bool others = false;
    const bool stuck = status == SEMEL_OK && round->n_sends + round->n_moves == 0 && round->n_events > 0;
    if (stuck)
        status = peek(round, &others, err);
    if (stuck && !others)
        relay->next_step_us = round->steady_us + NOTHING_GOES_US;
    for (size_t i = 0; status == SEMEL_OK && i < round->n_sends; i++)
        status = semel__event_headers(round->sends[i].event, relay->arena, &round->items[i], err);
    if (status != SEMEL_OK || round->n_sends == 0)
        return status;
    SEMEL_POINT(RELAY_STARTED);
    struct semel_relay_scan scan;
    const bool ahead = start_ahead(round, &scan);
    const int64_t began_us = semel__now(relay->steady);
    const semel_status sent = hand_over(round, &down);
    round->took_us = semel__now(relay->steady) - began_us;
    if (ahead)
        status = end_ahead(round, &scan, err);
    if (status == SEMEL_OK)
        status = sort_out(round, &outcome, err);
    if (status == SEMEL_OK)
        status = write_outcome(round, &outcome, err);
    judge_destinations(round);
    const size_t ok = outcome.confirmed[0].n + outcome.confirmed[1].n;
    relay->smooth = ok == round->n_sends;
    relay->failures = ok > 0 ? 0 : relay->failures;
    if (sent == SEMEL_OK && relay->trouble[0] != '\0')
        turned(round);
    semel__str_show(relay->trouble, sizeof relay->trouble, semel__str(sent != SEMEL_OK ? down.text : ""));
    if (sent != SEMEL_OK) {
        if (relay->failures == 0) {
            semel__relay_report(relay, SEMEL_LOG_WARN, "cannot publish", NULL, down.text);
            turned(round);
        }
        pause_all(relay, round->steady_us);
        if (sent == SEMEL_CLOSED) {
            struct semel_error ignored;
            (void)semel_broker_reopen(relay->sink, &ignored);
        }
    } else if (ok == 0 && outcome.refused.n == 0 && outcome.failed.n == 0) {
        pause_all(relay, round->steady_us);
    }
    return status;
}

/* ---- a step -------------------------------------------------------------------------------------- */

static int wait_of(struct semel_relay *relay, const struct round *round, int64_t steady_us)
{
    bool more = false;
    for (size_t i = 0; i < round->n_starts; i++)
        more |= !relay->shards[semel__relay_index(round->starts[i].shard)].exhausted;
    relay->idle = round->n_starts > 0 && !round->again && round->n_events == 0 && round->n_aside == 0;
    if (relay->ahead.ready)
        return 0;
    if (relay->next_step_us > steady_us)
        return (int)((relay->next_step_us - steady_us) / 1000) + 1;
    if (round->alone || round->again || (round->n_sends > 0 && more))
        return 0;
    if (round->n_events + round->n_sends > 0) {
        relay->idle_ms = 1;
        return BUSY_MS;
    }
    relay->idle_ms = relay->idle_ms < IDLE_MS / 2 ? 2 * relay->idle_ms : IDLE_MS;
    return relay->idle_ms;
}

static semel_status purge_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    return relay->ops->sent_purge(relay->store, now_us - relay->options.keep_us, 10000, ctx, err);
}

static semel_status purge(struct semel_relay *relay, int64_t steady_us, struct semel_error *err)
{
    size_t n = 0;
    if (relay->mapped || steady_us < relay->next_purge_us) /* outbox_sent is the own outbox's */
        return SEMEL_OK;
    semel_status status = semel__relay_transact(relay, purge_body, &n, err);
    relay->next_purge_us = steady_us + (n == 10000 ? SECOND_US : 60 * SECOND_US);
    return status;
}

static semel_status run_round(struct round *round, struct semel_error *err)
{
    struct semel_relay *relay = round->relay;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        relay->shards[i].behind.read = false;
    if (!use_ahead(round)) {
        status = semel__relay_delete_gone(relay, err);
        relay->ahead.in_a_row = 0;
        if (status == SEMEL_OK)
            status = read_events(round, err);
        if (status == SEMEL_OK)
            status = read_behind(round, err);
    }
    if (status == SEMEL_OK)
        status = plan(round, err);
    if (status == SEMEL_OK)
        status = write_moves(round, err);
    if (status == SEMEL_OK && round->n_later > 0) {
        struct events events = {.at = round->later, .n = round->n_later};
        semel__sort(events.at, events.n, sizeof *events.at, cmp_events);
        status = semel__relay_transact(relay, later_body, &events, err);
    }
    round->reads_ahead = may_read_ahead(round);
    if (status == SEMEL_OK && !round->reads_ahead)
        status = semel__relay_delete_gone(relay, err);
    if (status == SEMEL_OK)
        status = publish(round, err);
    /* Some events go or make room; those that do not may hide others behind them. */
    if (status == SEMEL_OK && !relay->mapped && !round->ahead && !round->again && !relay->ahead.ready &&
        relay->failures == 0 && round->n_sends + round->n_moves > 0)
        status = semel__relay_behind_search(relay, round->steady_us, err);
    return status;
}

semel_status semel__relay_step(struct semel_relay *relay, int *ret_wait_ms, struct semel_error *err)
{
    struct semel_error local = {0};
    const int64_t steady_us = semel__now(relay->steady);
    struct round round = {.relay = relay, .steady_us = steady_us};
    semel_status status = SEMEL_OK;
    err = err != NULL ? err : &local;
    *ret_wait_ms = 0;
    for (size_t i = 0; i < 2 && relay->n_gone == 0; i++)
        semel__arena_reset(&relay->arenas[i]);
    /* A call starts only if the lease outlasts it. */
    if (!relay->joined || steady_us >= relay->next_beat_us ||
        relay->lease_until_us - steady_us <= relay->options.timeout_us)
        status = semel__relay_beat(relay, steady_us, err);
    if (status == SEMEL_OK && relay->n_owned > 0 && steady_us >= relay->next_step_us) {
        status = note(relay, steady_us, err);
        round.now_us = store_now(relay, steady_us);
        if (status == SEMEL_OK)
            status = run_round(&round, err);
        if (status == SEMEL_OK)
            status = purge(relay, steady_us, err);
    }
    if (status == SEMEL_OK)
        *ret_wait_ms = wait_of(relay, &round, steady_us);
    return status;
}
