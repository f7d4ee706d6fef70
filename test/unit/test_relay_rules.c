/* SPDX-License-Identifier: MIT
 *
 * test_relay_rules.c: what the relay asks of its store, when, and what it does when the store or the sink fails: on an
 * outbox in memory with 64 shards whose starting points must be proven. No server is needed.
 */
#include <stdlib.h>

#include "base/error.h"
#include "core/relay.h"
#include "core/starts.h"
#include "unit/unit.h"

#define SECOND INT64_C(1000000)
#define T0 INT64_C(1700000000000000)
#define ROWS_MAX 700
#define PEERS_MAX 4
#define SET(array, text) snprintf(array, sizeof array, "%s", text)

struct row {
    bool there, aside, alone;
    int64_t shard, seq, attempts, due_us, relay, size, created_us;
    char id[24], key[16], type[16], to[16], status[16], error[64];
};

/* What is stored. A transaction that is rolled back restores it. */
struct db {
    struct row rows[ROWS_MAX];
    size_t n;
    struct semel_relay_shard shards[SEMEL_RELAY_SHARDS];
    struct {
        int64_t token, until_us;
        struct semel_str owner, destinations;
        char down[SEMEL_RELAY_WHY];
    } peers[PEERS_MAX];
    size_t n_peers;
};

static struct db db, before;

/* What the rest of the world does, and what it saw of the relay. */
static struct {
    int64_t now_us, steady_us, started_us, seq;
    struct semel_relay_holder holders[2];
    size_t n_holders;
    bool hidden;   /* transactions are not visible */
    bool large;    /* scans had large events */
    bool no_ahead; /* there is no memory for reading ahead */
    size_t purges; /* what a purge deletes */
    int fail_at;   /* the call of the store that fails; 0: none */
    semel_status fail;
    int calls;
    const char *failed; /* the name of that call */
    char trace[4096];
    struct semel_relay_scan scan; /* the last one */
    int64_t scan_starts[SEMEL_RELAY_SHARDS];
    int64_t purge_before_us;
    bool keep;
    struct semel_relay_scan *ahead;
    int tends;
    size_t kept, scanned;
    char reported[2048];
    int64_t published_us;
} world;

static struct {
    struct semel_broker base;
    struct semel_broker_ops ops;
    semel_status status; /* of a call */
    const char *refuse, *down, *unknown, *later;
    size_t calls, n; /* n: of the last call */
    int timeout_ms, reopened;
    char got[8192];
    void (*during)(void);
} sink;

struct handle {
    struct semel_store base;
    struct semel_store_ops ops;
};

static struct handle handles[PEERS_MAX];
static struct semel_relay_ops relay_ops;
static struct semel_relay *relays[PEERS_MAX];
static struct semel_relay_options options;
static struct semel_random rng;
static struct semel_clock steady;
static struct semel_error err;

/* ---- the store ----------------------------------------------------------------------------------- */

static semel_status call(const char *name, struct semel_error *e)
{
    const size_t n = strlen(world.trace);
    snprintf(world.trace + n, sizeof world.trace - n, "%s%s", n > 0 ? " " : "", name);
    if (++world.calls != world.fail_at)
        return SEMEL_OK;
    world.failed = name;
    return semel__fail(e, world.fail, SEMEL_CLASS_ENVIRONMENT, "%s failed as was planned", name);
}

static void copy_db(struct db *to, const struct db *from)
{
    memcpy(&to->n, &from->n, sizeof *to - offsetof(struct db, n));
    memcpy(to->rows, from->rows, from->n * sizeof from->rows[0]);
}

static semel_status fake_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *e)
{
    (void)store;
    assert_int_equal(tx, SEMEL_TX_OWN);
    copy_db(&before, &db);
    *ret_now_us = world.now_us;
    return call("begin", e);
}

static void fake_rollback(struct semel_store *store)
{
    (void)store;
    copy_db(&db, &before);
    (void)call("rollback", NULL);
}

static semel_status fake_commit(struct semel_store *store, struct semel_error *e)
{
    const semel_status status = call("commit", e);
    (void)store;
    if (status != SEMEL_OK)
        copy_db(&db, &before);
    return status;
}

static int peer_of(int64_t token)
{
    for (size_t i = 0; i < db.n_peers; i++)
        if (db.peers[i].token == token)
            return (int)i;
    return -1;
}

static void delete_peer(size_t i)
{
    memmove(&db.peers[i], &db.peers[i + 1], (--db.n_peers - i) * sizeof db.peers[0]);
}

static semel_status fake_expire(struct semel_store *store, int64_t now_us, int64_t due_us, int attempts_max,
                                struct semel_error *e)
{
    assert_true(store->in_tx && now_us == world.now_us && due_us == now_us);
    for (size_t i = db.n_peers; i-- > 0;)
        if (db.peers[i].until_us <= now_us)
            delete_peer(i);
    for (struct row *row = db.rows; row < db.rows + db.n; row++)
        if (row->there && strcmp(row->status, "publishing") == 0 && peer_of(row->relay) < 0) {
            SET(row->status, row->attempts >= attempts_max ? "dead" : "failed");
            row->alone = true;
            row->due_us = row->attempts >= attempts_max ? SEMEL_NONE : due_us;
        }
    return call("expire", e);
}

static semel_status fake_join(struct semel_store *store, const struct semel_relay_peer *self, int64_t now_us,
                              int64_t until_us, struct semel_error *e)
{
    assert_true(store->in_tx && db.n_peers < PEERS_MAX && self->token > 0);
    assert_int_equal(until_us - now_us, options.lease_us);
    db.peers[db.n_peers].token = self->token;
    db.peers[db.n_peers].until_us = until_us;
    db.peers[db.n_peers].owner = self->owner;
    db.peers[db.n_peers].down[0] = '\0';
    db.peers[db.n_peers++].destinations = self->destinations;
    return call("join", e);
}

static semel_status fake_renew(struct semel_store *store, int64_t token, int64_t until_us, struct semel_str down,
                               struct semel_error *e)
{
    const int i = peer_of(token);
    assert_true(store->in_tx);
    const semel_status status = call("renew", e);
    if (i < 0)
        return semel__fail(e, SEMEL_FENCED, SEMEL_CLASS_ENVIRONMENT, "no such relay");
    db.peers[i].until_us = until_us;
    snprintf(db.peers[i].down, sizeof db.peers[i].down, "%.*s", (int)down.n, down.n > 0 ? down.p : "");
    return status;
}

static semel_status fake_leave(struct semel_store *store, int64_t token, int64_t now_us, struct semel_error *e)
{
    const int i = peer_of(token);
    assert_true(store->in_tx && now_us == world.now_us);
    for (struct row *row = db.rows; row < db.rows + db.n; row++)
        if (row->there && strcmp(row->status, "publishing") == 0 && row->relay == token) {
            SET(row->status, "waiting");
            row->attempts--;
            row->due_us = now_us;
        }
    if (i >= 0)
        delete_peer((size_t)i);
    return call("leave", e);
}

static semel_status fake_peers(struct semel_store *store, size_t max, struct semel_arena *arena,
                               struct semel_relay_peer **ret, size_t *ret_n, struct semel_error *e)
{
    assert_true(store->in_tx && max >= db.n_peers);
    *ret = semel__arena_alloc(arena, db.n_peers, sizeof **ret);
    assert_non_null(*ret);
    for (size_t i = 0; i < db.n_peers; i++)
        (*ret)[i] = (struct semel_relay_peer){db.peers[i].token, db.peers[i].owner, db.peers[i].destinations};
    *ret_n = db.n_peers;
    return call("peers", e);
}

static semel_status fake_shards_read(struct semel_store *store, struct semel_relay_shard *ret, size_t *ret_n,
                                     struct semel_error *e)
{
    assert_true(store->in_tx);
    memcpy(ret, db.shards, sizeof db.shards);
    *ret_n = SEMEL_RELAY_SHARDS;
    return call("shards_read", e);
}

static semel_status fake_shards_write(struct semel_store *store, const struct semel_relay_shard *shards, size_t n,
                                      struct semel_error *e)
{
    assert_true(store->in_tx && n > 0 && n <= SEMEL_RELAY_SHARDS);
    for (size_t i = 0; i < n; i++)
        db.shards[shards[i].shard] = shards[i];
    return call("shards_write", e);
}

static semel_status fake_lock(struct semel_store *store, int64_t token, const struct semel_relay_shard *shards,
                              size_t n, bool *ret_owned, struct semel_error *e)
{
    assert_true(store->in_tx && n > 0);
    *ret_owned = true;
    for (size_t i = 0; i < n; i++) {
        assert_true(i == 0 || shards[i].shard > shards[i - 1].shard);
        *ret_owned &= db.shards[shards[i].shard].token == token;
    }
    return call("lock", e);
}

static semel_status fake_note(struct semel_store *store, int64_t *ret_seq, int64_t *ret_started_us, size_t max,
                              struct semel_arena *arena, struct semel_relay_holder **ret, size_t *ret_n,
                              struct semel_error *e)
{
    assert_false(store->in_tx);
    assert_int_equal(max, SEMEL_RELAY_HOLDERS_MAX);
    *ret = semel__arena_alloc(arena, world.n_holders + 1, sizeof **ret);
    assert_non_null(*ret);
    memcpy(*ret, world.holders, world.n_holders * sizeof **ret);
    *ret_n = world.n_holders;
    *ret_seq = world.seq;
    *ret_started_us = world.started_us;
    return call("note", e);
}

static semel_status fake_visible(struct semel_store *store, bool *ret, struct semel_error *e)
{
    assert_true(store->in_tx);
    *ret = !world.hidden;
    return call("visible", e);
}

static struct semel_relay_event event_of(struct row *row)
{
    return (struct semel_relay_event){.shard = row->shard,
                                      .seq = row->seq,
                                      .id = semel__str(row->id),
                                      .aggregatetype = SEMEL_STR("order"),
                                      .aggregateid = semel__str(row->key),
                                      .type = semel__str(row->type),
                                      .payload = semel__str(row->type),
                                      .headers = SEMEL_STR("{}"),
                                      .destination = semel__str(row->to),
                                      .created_us = row->created_us,
                                      .size = row->size,
                                      .attempts = row->attempts,
                                      .alone = row->alone};
}

static bool has_earlier_aside(const struct row *row)
{
    for (const struct row *r = db.rows; r < row; r++)
        if (r->there && r->aside && strcmp(r->key, row->key) == 0)
            return true;
    return false;
}

static void read_into(struct semel_relay_scan *scan)
{
    size_t bytes = 0;
    scan->events = semel__arena_alloc(scan->arena, db.n + 1, sizeof *scan->events);
    scan->aside = semel__arena_alloc(scan->arena, db.n + 1, sizeof *scan->aside);
    scan->holders = semel__arena_alloc(scan->arena, COUNT(world.holders), sizeof *scan->holders);
    assert_true(scan->events != NULL && scan->aside != NULL && scan->holders != NULL);
    scan->n_events = scan->n_aside = scan->n_holders = 0;
    for (size_t i = 0; i < scan->n; i++) {
        size_t rows = 0;
        for (struct row *row = db.rows; row < db.rows + db.n; row++) {
            if (!row->there || row->aside || row->shard != scan->starts[i].shard ||
                row->seq <= scan->starts[i].after_seq || rows == scan->limit || scan->n_events == scan->most ||
                bytes >= scan->bytes)
                continue;
            scan->events[scan->n_events] = event_of(row);
            scan->events[scan->n_events++].held = has_earlier_aside(row);
            rows++;
            bytes += (size_t)row->size;
        }
        world.scan_starts[scan->starts[i].shard] = scan->starts[i].after_seq;
    }
    for (struct row *row = db.rows; scan->aside_max > 0 && row < db.rows + db.n; row++)
        if (row->there && row->aside && row->due_us != SEMEL_NONE && row->due_us <= scan->now_us &&
            strcmp(row->status, "publishing") != 0 && !has_earlier_aside(row))
            scan->aside[scan->n_aside++] = event_of(row);
    for (size_t i = 0; i < world.n_holders && scan->holders_max > 0; i++)
        scan->holders[scan->n_holders++] = world.holders[i];
    scan->large = world.large;
    world.scan = *scan;
}

static semel_status fake_read(struct semel_store *store, struct semel_relay_scan *scan, struct semel_error *e)
{
    assert_false(store->in_tx);
    assert_true(scan->n > 0 && scan->limit > 0);
    read_into(scan);
    return call("read", e);
}

static struct row *row_of(const struct semel_relay_event *event, bool aside)
{
    for (struct row *row = db.rows; row < db.rows + db.n; row++)
        if (row->there && row->seq == event->seq && row->aside == aside)
            return row;
    return NULL;
}

static void delete_rows(struct semel_relay_event *const *events, size_t n, bool aside, bool keep)
{
    for (size_t i = 0; i < n; i++) {
        struct row *row = row_of(events[i], aside);
        assert_true(i == 0 || events[i]->shard > events[i - 1]->shard ||
                    (events[i]->shard == events[i - 1]->shard && events[i]->seq > events[i - 1]->seq));
        if (row == NULL)
            continue;
        row->there = false;
        world.kept += keep;
        for (struct row *next = row; aside && next < db.rows + db.n; next++)
            if (next->there && next->aside && strcmp(next->key, row->key) == 0) {
                next->due_us = world.now_us;
                break;
            }
    }
}

static bool fake_ahead(struct semel_store *store, struct semel_relay_event *const *gone, size_t n_gone, bool keep,
                       struct semel_relay_scan *scan, struct semel_arena *arena)
{
    assert_false(store->in_tx);
    assert_true(scan->arena != arena);
    (void)call("ahead", NULL);
    if (world.no_ahead)
        return false;
    delete_rows(gone, n_gone, false, keep);
    world.ahead = scan;
    return true;
}

static void fake_tend(void *store)
{
    assert_ptr_equal(store, &handles[0]);
    world.tends++;
}

static semel_status fake_ahead_end(struct semel_store *store, struct semel_relay_scan *scan, struct semel_error *e)
{
    (void)store;
    assert_ptr_equal(scan, world.ahead);
    read_into(scan);
    return call("ahead_end", e);
}

static semel_status fake_confirm(struct semel_store *store, struct semel_relay_event *const *events, size_t n,
                                 bool aside, bool keep, int64_t now_us, struct semel_error *e)
{
    assert_true(store->in_tx && n > 0 && now_us == world.now_us);
    delete_rows(events, n, aside, keep);
    return call(aside ? "confirm_aside" : "confirm", e);
}

static void write_row(struct row *row, const struct semel_relay_event *event)
{
    row->aside = true;
    row->attempts = event->attempts;
    row->due_us = event->due_us;
    row->alone = event->alone;
    snprintf(row->status, sizeof row->status, "%.*s", (int)event->status.n, event->status.p);
    snprintf(row->error, sizeof row->error, "%.*s", (int)event->error.n, event->error.n > 0 ? event->error.p : "");
}

static semel_status fake_set_aside(struct semel_store *store, struct semel_relay_event *const *events, size_t n,
                                   int64_t now_us, struct semel_error *e)
{
    assert_true(store->in_tx && n > 0 && now_us == world.now_us);
    for (size_t i = 0; i < n; i++) {
        struct row *row = row_of(events[i], false);
        assert_true(i == 0 || events[i]->shard > events[i - 1]->shard || events[i]->seq > events[i - 1]->seq);
        if (row != NULL)
            write_row(row, events[i]);
    }
    return call("set_aside", e);
}

static semel_status fake_aside_start(struct semel_store *store, int64_t token, struct semel_relay_event *const *events,
                                     size_t n, int64_t now_us, bool *ret_started, struct semel_error *e)
{
    assert_true(store->in_tx && n > 0 && now_us == world.now_us && peer_of(token) >= 0);
    for (size_t i = 0; i < n; i++) {
        struct row *row = row_of(events[i], true);
        ret_started[i] = row != NULL && strcmp(row->status, "publishing") != 0;
        if (!ret_started[i])
            continue;
        SET(row->status, "publishing");
        row->attempts++;
        row->relay = token;
    }
    return call("aside_start", e);
}

static semel_status fake_aside_fail(struct semel_store *store, int64_t token, struct semel_relay_event *const *events,
                                    size_t n, int64_t now_us, struct semel_error *e)
{
    assert_true(store->in_tx && n > 0 && now_us == world.now_us && token > 0);
    for (size_t i = 0; i < n; i++) {
        struct row *row = row_of(events[i], true);
        if (row != NULL && row->relay == token)
            write_row(row, events[i]);
    }
    return call("aside_fail", e);
}

static semel_status fake_aside_postpone(struct semel_store *store, struct semel_relay_event *const *events, size_t n,
                                        struct semel_error *e)
{
    assert_true(store->in_tx && n > 0);
    for (size_t i = 0; i < n; i++)
        row_of(events[i], true)->due_us = events[i]->due_us;
    return call("aside_postpone", e);
}

static semel_status fake_sent_purge(struct semel_store *store, int64_t before_us, size_t max, size_t *ret_n,
                                    struct semel_error *e)
{
    assert_true(store->in_tx && max == 10000);
    world.purge_before_us = before_us;
    *ret_n = world.purges;
    return call("sent_purge", e);
}

/* ---- the sink and the rig ------------------------------------------------------------------------ */

static bool is(const char *wanted, struct semel_str s)
{
    return wanted != NULL && semel__str_eqz(s, wanted);
}

static semel_status fake_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                 struct semel_error *e)
{
    (void)broker;
    sink.calls++;
    sink.n = n;
    sink.timeout_ms = timeout_ms;
    (void)call("publish", NULL);
    if (sink.during != NULL)
        sink.during();
    if (broker->tend != NULL)
        broker->tend(broker->tend_ctx);
    if (sink.status != SEMEL_OK)
        return semel__fail(e, sink.status, SEMEL_CLASS_ENVIRONMENT, "no broker");
    for (size_t i = 0; i < n; i++) {
        const size_t at = strlen(sink.got);
        bool behind = false;
        for (size_t k = 0; k < i; k++)
            behind |= semel__str_eq(items[k].key, items[i].key) && items[k].status != SEMEL_OK;
        if (behind)
            continue;
        if (is(sink.refuse, items[i].payload))
            semel__publish_end(&items[i], SEMEL_INVALID, false, "too large");
        else if (is(sink.down, items[i].destination))
            semel__publish_end(&items[i], SEMEL_RETRY, true, "no such topic");
        else if (is(sink.unknown, items[i].payload))
            semel__publish_end(&items[i], SEMEL_UNKNOWN, false, "no answer");
        else if (is(sink.later, items[i].payload))
            semel__publish_end(&items[i], SEMEL_RETRY, false, "put off");
        else
            items[i].status = SEMEL_OK;
        if (items[i].status == SEMEL_OK)
            snprintf(sink.got + at, sizeof sink.got - at, "%s%.*s", at > 0 ? " " : "", (int)items[i].payload.n,
                     items[i].payload.p);
    }
    return SEMEL_OK;
}

static semel_status fake_reopen(struct semel_broker *broker, struct semel_error *e)
{
    (void)broker, (void)e;
    sink.reopened++;
    return SEMEL_OK;
}

static int64_t steady_now(void *ctx)
{
    (void)ctx;
    return world.steady_us;
}

static semel_status destination(void *ctx, const struct semel_relay_event *event, struct semel_arena *arena,
                                struct semel_str *ret, struct semel_error *e)
{
    (void)ctx, (void)arena;
    if (semel__str_eqz(event->destination, "nowhere"))
        return semel__fail(e, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "no such destination");
    if (semel__str_eqz(event->destination, "broken"))
        return semel__fail(e, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "cannot tell");
    *ret = event->destination;
    return SEMEL_OK;
}

static void report(void *ctx, int level, const char *text, const struct semel_relay_event *event, const char *why)
{
    const size_t n = strlen(world.reported);
    (void)ctx, (void)level;
    snprintf(world.reported + n, sizeof world.reported - n, "%s%s%s: %s\n", text, event != NULL ? " " : "",
             event != NULL ? event->type.p : "", why != NULL ? why : "");
}

static void published(void *ctx, int64_t after_us)
{
    (void)ctx;
    world.published_us = after_us;
}

static void scanned(void *ctx, const struct semel_relay_scan *scan)
{
    (void)ctx;
    world.scanned += scan->n_events;
}

static void make_relay(size_t i)
{
    handles[i].ops = (struct semel_store_ops){
        .name = "fake", .begin = fake_begin, .commit = fake_commit, .rollback = fake_rollback, .relay = &relay_ops};
    handles[i].base = (struct semel_store){.ops = &handles[i].ops};
    options.owner = semel__str(i == 0 ? "first" : i == 1 ? "second" : "third");
    assert_int_equal(semel__relay_new(&relays[i], &handles[i].base, &sink.base, &options, &rng, &steady, &err),
                     SEMEL_OK);
}

static void begin_again(void)
{
    for (size_t i = 0; i < PEERS_MAX; i++) {
        semel__relay_free(relays[i]);
        relays[i] = NULL;
    }
    memset(&db, 0, sizeof db);
    memset(&world, 0, sizeof world);
    memset(&sink, 0, sizeof sink);
    world.now_us = T0;
    world.steady_us = 100 * SECOND;
    steady = (struct semel_clock){steady_now, NULL};
    semel__random_seed(&rng, 42);
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        db.shards[i] = (struct semel_relay_shard){(int64_t)i, SEMEL_NONE, 0};
    sink.ops = (struct semel_broker_ops){.name = "fake",
                                         .capabilities = SEMEL_BROKER_SINK | SEMEL_BROKER_RUNS,
                                         .reopen = fake_reopen,
                                         .publish = fake_publish};
    sink.base.ops = &sink.ops;
    relay_ops = (struct semel_relay_ops){.shards = SEMEL_RELAY_SHARDS,
                                         .proves = true,
                                         .expire = fake_expire,
                                         .join = fake_join,
                                         .renew = fake_renew,
                                         .leave = fake_leave,
                                         .peers = fake_peers,
                                         .shards_read = fake_shards_read,
                                         .shards_write = fake_shards_write,
                                         .lock = fake_lock,
                                         .note = fake_note,
                                         .visible = fake_visible,
                                         .read = fake_read,
                                         .confirm = fake_confirm,
                                         .set_aside = fake_set_aside,
                                         .aside_start = fake_aside_start,
                                         .aside_fail = fake_aside_fail,
                                         .aside_postpone = fake_aside_postpone,
                                         .sent_purge = fake_sent_purge};
    options = (struct semel_relay_options){.destinations = SEMEL_STR("d1"),
                                           .lease_us = 15 * SECOND,
                                           .timeout_us = 5 * SECOND,
                                           .first_us = SECOND,
                                           .ceiling_us = 60 * SECOND,
                                           .attempts_max = 3,
                                           .rows = 300,
                                           .bytes = 1 << 20,
                                           .destination = destination,
                                           .published = published,
                                           .scanned = scanned,
                                           .report = report};
}

static int up(void **state)
{
    (void)state;
    begin_again();
    make_relay(0);
    return 0;
}

static int down(void **state)
{
    (void)state;
    for (size_t i = 0; i < PEERS_MAX; i++) {
        semel__relay_free(relays[i]);
        relays[i] = NULL;
    }
    return 0;
}

static void pass(int64_t us)
{
    world.now_us += us;
    world.steady_us += us;
}

static struct row *put(const char *key, const char *type, const char *to)
{
    struct row *row = &db.rows[db.n++];
    assert_true(db.n <= ROWS_MAX);
    *row = (struct row){.there = true, .seq = ++world.seq, .size = 10, .created_us = world.now_us};
    row->shard = (key[0] * 7 + key[1]) % SEMEL_RELAY_SHARDS;
    snprintf(row->id, sizeof row->id, "id%lld", (long long)row->seq);
    snprintf(row->key, sizeof row->key, "%s", key);
    snprintf(row->type, sizeof row->type, "%s", type);
    snprintf(row->to, sizeof row->to, "%s", to);
    return row;
}

static int step_of(size_t i)
{
    int wait_ms;
    world.trace[0] = '\0';
    assert_int_equal(semel__relay_step(relays[i], &wait_ms, &err), SEMEL_OK);
    assert_false(handles[i].base.in_tx);
    return wait_ms;
}

static size_t left(void)
{
    size_t n = 0;
    for (size_t i = 0; i < db.n; i++)
        n += db.rows[i].there;
    return n;
}

static const struct semel_relay_counts *counts(void)
{
    return semel__relay_counts(relays[0]);
}

static size_t owned_by(size_t i)
{
    char why[SEMEL_RELAY_WHY];
    return semel__relay_owns(relays[i], why);
}

/* ---- the order of calls -------------------------------------------------------------------------- */

#define BEAT "begin expire renew peers shards_read commit"

static void step_asks_the_store_for_what_it_needs_and_for_nothing_else(void **state)
{
    (void)state;
    assert_int_equal(step_of(0), 2);
    assert_string_equal(world.trace, "begin expire join peers shards_read shards_write commit begin visible rollback "
                                     "note read begin sent_purge commit");
    assert_true(semel__relay_idle(relays[0]));
    assert_int_equal(step_of(0), 4);
    assert_string_equal(world.trace, "read");
    put("a0", "a1", "x");
    put("a0", "a2", "x");
    pass(SECOND / 2);
    assert_int_equal(step_of(0), 4); /* there may be more */
    assert_string_equal(world.trace, "read publish begin confirm commit");
    assert_int_equal(sink.timeout_ms, 5000);
    assert_int_equal(world.published_us, SECOND / 2);
    assert_int_equal(world.scanned, 2);
    assert_false(semel__relay_idle(relays[0]));
    assert_string_equal(sink.got, "a1 a2");
    assert_int_equal(left(), 0);
    const int waits[] = {2, 4, 8, 16, 32, 64, 100, 100}; /* twice as long, as long as nothing comes */
    for (size_t i = 0; i < COUNT(waits); i++)
        assert_int_equal(step_of(0), waits[i]);
    assert_true(semel__relay_idle(relays[0]));
    assert_int_equal(world.kept, 0);
    assert_int_equal(counts()->published, 2);
}

static void event_aside_is_started_and_confirmed_under_the_lock_of_its_shard(void **state)
{
    (void)state;
    step_of(0);
    sink.refuse = "a1";
    put("a0", "a1", "x");
    put("a0", "a2", "x");
    put("b0", "b1", "x");
    step_of(0);
    assert_string_equal(world.trace, "read publish begin confirm commit begin lock set_aside commit");
    assert_string_equal(sink.got, "b1");
    assert_string_equal(db.rows[0].status, "failed");
    assert_string_equal(db.rows[0].error, "too large");
    assert_int_equal(db.rows[0].attempts, 1);
    assert_in_range(db.rows[0].due_us, world.now_us + 1000, world.now_us + SECOND);
    assert_int_equal(counts()->refused, 1);
    assert_int_equal(counts()->aside, 1);
    assert_non_null(strstr(world.reported, "event refused a1: too large"));
    assert_int_equal(counts()->retried, 1);
    step_of(0); /* what is behind it follows it */
    assert_string_equal(world.trace, "read begin lock set_aside commit");
    assert_string_equal(db.rows[1].status, "waiting");
    assert_int_equal(db.rows[1].due_us, SEMEL_NONE);
    pass(SECOND);
    step_of(0); /* it is refused from aside */
    assert_string_equal(world.trace, "note read begin lock aside_start commit publish begin lock aside_fail commit");
    assert_int_equal(db.rows[0].attempts, 2);
    assert_in_range(db.rows[0].due_us, world.now_us + 1000, world.now_us + 2 * SECOND);
    pass(2 * SECOND);
    sink.refuse = NULL;
    step_of(0);
    assert_string_equal(world.trace, "note read begin lock aside_start commit publish begin lock confirm_aside commit");
    step_of(0);
    assert_string_equal(sink.got, "b1 a1 a2");
    assert_int_equal(left(), 0);
    assert_int_equal(counts()->dead, 0);
}

static void event_is_dead_after_its_last_attempt(void **state)
{
    (void)state;
    sink.refuse = "a1";
    put("a0", "a1", "x");
    for (int i = 0; i < 3; i++) {
        assert_string_not_equal(db.rows[0].status, "dead");
        step_of(0);
        pass(10 * SECOND);
    }
    assert_string_equal(db.rows[0].status, "dead");
    assert_int_equal(db.rows[0].due_us, SEMEL_NONE);
    assert_int_equal(db.rows[0].attempts, 3);
    assert_int_equal(counts()->dead, 1);
    assert_int_equal(counts()->refused, 3);
    assert_non_null(strstr(world.reported, "event is dead a1: too large"));
}

/* O5: of an aggregate the lowest number of both tables goes first, and where the outbox was not read far enough nobody
 * knows which one that is. */
static void event_aside_waits_for_a_lower_number_in_the_outbox(void **state)
{
    (void)state;
    step_of(0);
    put("a0", "a1", "x");
    struct row *aside = put("a0", "a2", "x"), *free = put("b0", "b1", "x");
    aside->aside = free->aside = true;
    aside->due_us = free->due_us = world.now_us;
    SET(aside->status, "waiting");
    SET(free->status, "waiting");
    step_of(0);
    assert_string_equal(world.trace, "read begin lock aside_postpone commit begin lock aside_start commit publish "
                                     "begin lock confirm confirm_aside commit");
    assert_string_equal(sink.got, "b1 a1");
    assert_int_equal(aside->due_us, world.now_us + SECOND);
    pass(SECOND);
    step_of(0);
    assert_string_equal(sink.got, "b1 a1 a2");
    for (int i = 0; i < 300; i++)
        put("a0", "e", "x");
    free = put("a0", "z1", "x");
    free->aside = true;
    free->due_us = world.now_us;
    SET(free->status, "waiting");
    SET(free->key, "other"); /* of the same shard */
    step_of(0);
    assert_int_equal(free->due_us, world.now_us + SECOND);
    pass(SECOND);
    step_of(0);
    step_of(0);
    assert_int_equal(left(), 0);
}

static void begin_failing(int at, semel_status status)
{
    begin_again();
    relay_ops.ahead = fake_ahead;
    relay_ops.tend = fake_tend;
    relay_ops.ahead_end = fake_ahead_end;
    options.rows = 20;
    options.attempts_max = 50;
    make_relay(0);
    world.fail_at = at;
    world.fail = status;
    put("a0", "bad", "x");
    put("a0", "a2", "x");
    put("b0", "b1", "lost");
    put("c0", "c1", "nowhere");
    for (int i = 0; i < 40; i++) {
        char type[8];
        snprintf(type, sizeof type, "e%02d", i);
        put("k0", type, "x");
    }
}

/* One step, in which the planned call may fail. true: the step had its status. */
static bool step_failing(void)
{
    int wait_ms;
    const int calls = world.calls;
    world.trace[0] = '\0';
    const semel_status status = semel__relay_step(relays[0], &wait_ms, &err);
    const bool was_it = calls < world.fail_at && world.calls >= world.fail_at;
    assert_false(handles[0].base.in_tx);
    assert_null(sink.base.tend);
    if (status != SEMEL_OK)
        assert_true(was_it && status == world.fail);
    if (status == SEMEL_CLOSED)
        semel__relay_forget(relays[0]);
    return status != SEMEL_OK;
}

/* Whichever call of the store fails: the step gives its status, no transaction stays open, and in the end every event
 * has arrived in order, or is dead. */
static void every_call_of_the_store_may_fail(void **state)
{
    static const semel_status statuses[] = {SEMEL_RETRY, SEMEL_CLOSED};
    (void)state;
    for (size_t s = 0; s < COUNT(statuses); s++)
        for (int at = 1, seen = at; at <= seen; at++) {
            bool failed = false;
            begin_failing(at, statuses[s]);
            for (int i = 0; i < 60; i++) {
                sink.down = i > 0 && i <= 20 ? "lost" : NULL;
                sink.refuse = i <= 6 ? "bad" : NULL;
                failed |= step_failing();
                pass(i < 20 ? SECOND : 30 * SECOND);
            }
            seen = world.calls < 120 ? world.calls : 120;
            assert_true(failed || strcmp(world.failed, "rollback") == 0 || strcmp(world.failed, "ahead") == 0 ||
                        strcmp(world.failed, "publish") == 0); /* those cannot fail */
            assert_int_equal(left(), 1);
            assert_string_equal(db.rows[3].status, "dead");
            const char *last = sink.got;
            for (int i = 0; i < 40; i++) {
                last = strstr(last, db.rows[4 + i].type);
                assert_non_null(last);
            }
            assert_non_null(strstr(sink.got, "bad"));
            assert_true(strstr(sink.got, "a2") > strstr(sink.got, "bad"));
            assert_non_null(strstr(sink.got, "b1"));
        }
}

/* ---- leases and shards --------------------------------------------------------------------------- */

static void shares_differ_by_one_shard_at_most(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 3; n++) {
        const size_t shares[3][3] = {{64, 0, 0}, {32, 32, 0}, {22, 21, 21}};
        if (n > 1)
            make_relay(n - 1);
        for (int i = 0; i < 12; i++) {
            for (size_t k = 0; k < n; k++)
                step_of(k);
            pass(SECOND);
        }
        for (size_t k = 0; k < n; k++)
            assert_int_equal(owned_by(k), shares[n - 1][k]);
    }
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        assert_int_equal(db.shards[i].losses, 0);
    assert_int_equal(semel__relay_leave(relays[0], &err), SEMEL_OK);
    assert_int_equal(owned_by(0), 0);
    assert_int_equal(db.n_peers, 2);
    world.trace[0] = '\0';
    assert_int_equal(semel__relay_leave(relays[0], &err), SEMEL_OK);
    assert_string_equal(world.trace, ""); /* it has left already */
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        assert_int_equal(db.shards[i].losses, 0);
    for (int i = 0; i < 12; i++) {
        step_of(1);
        step_of(2);
        pass(SECOND);
    }
    assert_int_equal(owned_by(1), 32);
    assert_int_equal(owned_by(2), 32);
}

/* P115. The oldest relay says where events go. */
static void relay_with_other_destinations_owns_nothing_and_reports_why_once(void **state)
{
    char why[SEMEL_RELAY_WHY];
    (void)state;
    step_of(0);
    options.destinations = SEMEL_STR("d2");
    make_relay(1);
    options.destinations = SEMEL_STR("d1");
    make_relay(2);
    for (int i = 0; i < 12; i++) {
        step_of(0);
        step_of(1);
        step_of(2);
        pass(SECOND);
    }
    assert_int_equal(semel__relay_owns(relays[1], why), 0);
    assert_string_equal(why, "relay first publishes this outbox to other destinations");
    assert_int_equal(semel__relay_owns(relays[0], why), 32);
    assert_string_equal(why, "");
    assert_int_equal(owned_by(2), 32);
    const char *told = strstr(world.reported, "relay waits: relay first");
    assert_non_null(told);
    assert_null(strstr(told + 1, "relay waits"));
}

/* The lease is renewed after a third of it, and sooner while shards of others are due. */
static void lease_is_renewed_in_time(void **state)
{
    (void)state;
    step_of(0);
    pass(5 * SECOND - 1);
    step_of(0);
    assert_null(strstr(world.trace, "renew"));
    pass(1);
    step_of(0);
    assert_non_null(strstr(world.trace, BEAT));
    assert_null(strstr(world.trace, "join"));
    assert_int_equal(db.peers[0].until_us, world.now_us + 15 * SECOND);
    make_relay(1);
    step_of(1); /* everything is the first one's */
    assert_int_equal(owned_by(1), 0);
    pass(SECOND - 1);
    step_of(1);
    assert_string_equal(world.trace, "");
    pass(1);
    step_of(1);
    assert_non_null(strstr(world.trace, "renew"));
    /* A call must end before the lease does. */
    options.timeout_us = 10 * SECOND;
    make_relay(2);
    step_of(2);
    pass(5 * SECOND - 1);
    step_of(2);
    assert_non_null(strstr(world.trace, "renew")); /* it waits for shards */
}

static void relay_whose_lease_is_over_joins_under_a_new_token_and_gives_up_the_old_one(void **state)
{
    (void)state;
    step_of(0);
    const int64_t token = db.peers[0].token;
    sink.refuse = "a1";
    put("a0", "a1", "x");
    step_of(0);
    SET(db.rows[0].status, "publishing");
    db.rows[0].relay = token;
    db.rows[0].attempts = 2;
    pass(5 * SECOND);
    delete_peer(0);
    world.fail_at = 0;
    step_of(0);
    assert_non_null(strstr(world.trace, "begin expire renew shards_read shards_write leave join peers shards_read "
                                        "shards_write commit"));
    assert_int_equal(db.n_peers, 1);
    assert_int_not_equal(db.peers[0].token, token);
    assert_int_equal(owned_by(0), 64);
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++) {
        assert_int_equal(db.shards[i].token, db.peers[0].token);
        assert_int_equal(db.shards[i].losses, 0);
    }
}

/* A shard that two relays died with: each of its events goes alone, from aside. */
static void shard_that_relays_died_with_is_handled_with_care(void **state)
{
    (void)state;
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        db.shards[i].token = 4711;
    struct row *first = put("a0", "a1", "x"), *second = put("a0", "a2", "x"), *other = put("b0", "b1", "x");
    db.shards[first->shard].losses = 1;
    step_of(0);
    assert_int_equal(db.shards[first->shard].losses, 0); /* what could have killed stands aside now */
    assert_int_equal(db.shards[other->shard].losses, 0); /* it has made progress */
    assert_int_equal(db.shards[3].losses, 1);
    assert_string_equal(sink.got, "b1");
    assert_true(first->aside && first->alone && second->aside && second->alone);
    assert_int_equal(first->due_us, world.now_us);
    assert_int_equal(second->due_us, SEMEL_NONE);
    assert_string_equal(first->status, "waiting");
    put("c0", "c1", "x");
    assert_int_equal(step_of(0), 0);
    assert_int_equal(sink.n, 1); /* alone */
    assert_string_equal(sink.got, "b1 a1");
    step_of(0);
    assert_int_equal(sink.n, 1);
    step_of(0);
    assert_string_equal(sink.got, "b1 a1 a2 c1");
    assert_int_equal(left(), 0);
}

/* ---- starting points ----------------------------------------------------------------------------- */

static int64_t start_of(const char *key)
{
    return world.scan_starts[(key[0] * 7 + key[1]) % SEMEL_RELAY_SHARDS];
}

static void starting_points_are_proven_about_once_per_second(void **state)
{
    (void)state;
    put("a0", "a1", "x");
    step_of(0);
    assert_int_equal(start_of("a0"), SEMEL_STARTS_BOTTOM);
    step_of(0);
    assert_int_equal(start_of("a0"), 0); /* right below the first event that the scan saw */
    assert_int_equal(start_of("b0"), 1);
    world.seq = 50;
    pass(SECOND - 1);
    step_of(0);
    assert_string_equal(world.trace, "read");
    pass(1);
    step_of(0);
    assert_string_equal(world.trace, "note read");
    step_of(0);
    assert_int_equal(start_of("b0"), 50);
    world.holders[0] = (struct semel_relay_holder){.name = SEMEL_STR("3/1"), .pid = 77};
    world.n_holders = 1;
    assert_int_equal(semel__relay_held_by(relays[0]), SEMEL_NONE);
    for (int i = 0; i < 3; i++) {
        pass(SECOND);
        step_of(0);
        assert_int_equal(world.scan.holders_max > 0, i > 0);
    }
    assert_int_equal(semel__relay_held_by(relays[0]), 77);
    world.seq = 60;
    pass(SECOND);
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("b0"), 60);
    world.seq = 55; /* what the holder drew */
    put("b0", "b1", "x");
    world.seq = 60;
    world.n_holders = 0;
    step_of(0);
    assert_string_equal(world.trace, "read read publish begin confirm commit");
    assert_string_equal(sink.got, "a1 b1");
    assert_int_equal(counts()->rescans, 1);
    assert_int_equal(semel__relay_held_by(relays[0]), SEMEL_NONE);
    assert_string_equal(world.reported, "");
}

static void every_scan_starts_at_the_bottom_where_transactions_are_not_visible(void **state)
{
    (void)state;
    world.hidden = true;
    world.seq = 50;
    for (int i = 0; i < 3; i++) {
        step_of(0);
        pass(SECOND);
        assert_int_equal(start_of("a0"), SEMEL_STARTS_BOTTOM);
        assert_int_equal(strstr(world.trace, "visible") != NULL, i == 0);
        assert_null(strstr(world.trace, "note"));
    }
    assert_non_null(strstr(world.reported, "pg_locks does not show transactions here"));
    world.hidden = false;
    semel__relay_forget(relays[0]); /* it is asked again on another connection */
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
}

static void event_below_a_proven_starting_point_is_published_and_reported(void **state)
{
    (void)state;
    world.seq = 50;
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
    world.seq = 6;
    put("a0", "low", "x");
    put("a0", "next", "x");
    world.seq = 51;
    step_of(0);
    assert_string_equal(sink.got, "");
    pass(60 * SECOND);
    step_of(0);
    assert_string_equal(sink.got, "low next");
    assert_non_null(strstr(world.reported, "event below a proven starting point: its transaction did not draw its "
                                           "number low: "));
}

/* A relay that took a shard from another one scans it from the bottom. */
static void shard_that_was_anothers_is_scanned_from_the_bottom(void **state)
{
    (void)state;
    world.seq = 50;
    step_of(0);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
    assert_int_equal(semel__relay_leave(relays[0], &err), SEMEL_OK);
    step_of(0);
    assert_int_equal(start_of("a0"), SEMEL_STARTS_BOTTOM);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        db.shards[i].token = i < 32 ? SEMEL_NONE : db.peers[0].token; /* somebody had them for a moment */
    pass(5 * SECOND);
    step_of(0);
    assert_int_equal(start_of("a0"), 50);
}

/* ---- windows ------------------------------------------------------------------------------------- */

static void rows_per_shard_follow_what_comes(void **state)
{
    (void)state;
    for (int i = 0; i < 600; i++) /* of one shard */
        put("a0", "e", "x");
    step_of(0);
    assert_int_equal(world.scan.limit, 256);
    assert_int_equal(world.scan.most, 600);
    assert_int_equal(world.scan.bytes, 1 << 20);
    assert_int_equal(world.scan.n_events, 256);
    assert_int_equal(world.scan.aside_max, 500);
    assert_int_equal(left(), 344);
    assert_int_equal(step_of(0), 0);         /* there is more */
    assert_int_equal(world.scan.limit, 300); /* the window was full: 256 * 300 / 256 */
    assert_int_equal(left(), 44);
    assert_int_equal(step_of(0), 4);
    assert_int_equal(left(), 0);
}

static void more_rows_than_wanted_narrow_the_window_and_few_widen_it(void **state)
{
    (void)state;
    options.rows = 40;
    make_relay(1); /* beside the first, which does nothing */
    for (int i = 0; i < 5; i++) {
        char key[3] = {(char)('a' + i), '0', '\0'};
        for (int k = 0; k < 60; k++)
            put(key, "e", "x");
    }
    step_of(1);
    assert_int_equal(world.scan.limit, 256);
    assert_int_equal(world.scan.n_events, 80); /* twice what is wanted */
    step_of(1);
    assert_int_equal(world.scan.limit, 128);
    step_of(1);
    assert_int_equal(world.scan.limit, 64);
    step_of(1);
    assert_int_equal(world.scan.limit, 32);
    assert_int_equal(world.scan.n_events, 52);
    step_of(1);
    assert_int_equal(world.scan.limit, 24);
    assert_int_equal(left(), 0);
    for (int i = 0; i < 6; i++) {
        char key[3] = {(char)('a' + i), '0', '\0'};
        for (int k = 0; k < 20; k++)
            put(key, "e", "x");
    }
    step_of(1);
    assert_int_equal(world.scan.limit, 24); /* nothing was full, or wanted to be */
    step_of(1);
    assert_int_equal(world.scan.limit, 16); /* and not below that */
    assert_int_equal(left(), 8);
    step_of(1);
    assert_int_equal(world.scan.limit, 20); /* some were full: 16 * 40 / 32 */
    for (int i = 0; i < 20; i++)
        put("a0", "e", "x");
    step_of(1);
    assert_int_equal(world.scan.limit, 20); /* of 8 rows none was full */
    for (int i = 0; i < 40; i++)
        put("a0", "e", "x");
    step_of(1);
    assert_int_equal(world.scan.limit, 40); /* full, and not more than half of what is wanted: twice as many */
    step_of(1);
    assert_int_equal(world.scan.limit, 40); /* that is wide enough */
}

/* ---- reading ahead ------------------------------------------------------------------------------- */

static void begin_ahead(size_t rows)
{
    begin_again();
    relay_ops.ahead = fake_ahead;
    relay_ops.tend = fake_tend;
    relay_ops.ahead_end = fake_ahead_end;
    options.rows = rows;
    make_relay(0);
    for (int i = 0; i < 300; i++) {
        char type[8];
        snprintf(type, sizeof type, "e%03d", i);
        put("a0", type, "x");
    }
}

static void assert_all_came_once(void)
{
    char text[8192] = "";
    for (int i = 0; i < 300; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%se%03d", i > 0 ? " " : "", i);
    assert_string_equal(sink.got, text);
    assert_int_equal(left(), 0);
}

static void backlog_is_read_ahead_and_deleted_behind(void **state)
{
    (void)state;
    begin_ahead(20);
    assert_int_equal(step_of(0), 0);
    assert_non_null(strstr(world.trace, "read publish begin confirm commit begin sent_purge commit"));
    step_of(0);
    assert_string_equal(world.trace, "read ahead publish ahead_end");
    const size_t before_it = left();
    assert_int_equal(step_of(0), 0);
    assert_string_equal(world.trace, "ahead publish ahead_end");
    assert_true(left() < before_it);
    assert_int_equal(world.tends, 2);
    for (int i = 0; i < 30; i++)
        step_of(0);
    assert_string_equal(world.trace, "read");
    assert_all_came_once();
    assert_in_range(counts()->ahead, 5, 30);
    assert_int_equal(counts()->published, 300);
    assert_int_equal(world.tends, counts()->ahead);
}

/* What was confirmed is deleted before the shards can be anybody else's. */
static void what_was_confirmed_is_deleted_before_the_lease_ends_or_is_renewed(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin_ahead(20);
        step_of(0);
        step_of(0);
        assert_string_equal(world.trace, "read ahead publish ahead_end");
        const size_t before_it = left();
        world.trace[0] = '\0';
        if (i == 0)
            assert_int_equal(semel__relay_leave(relays[0], &err), SEMEL_OK);
        else if (i == 1)
            pass(5 * SECOND);
        else
            semel__relay_forget(relays[0]);
        if (i > 0)
            step_of(0);
        assert_memory_equal(world.trace, "begin confirm commit begin expire", 33);
        assert_true(left() < before_it);
        for (int k = 0; k < 40; k++)
            step_of(0);
        assert_string_equal(world.trace, "read");
        assert_all_came_once();
    }
}

/* Where something is refused, large, put off, or could appear below, nothing is read ahead. */
static void nothing_is_read_ahead_where_something_could_come_before_it(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        begin_ahead(20);
        if (i == 0)
            world.large = true;
        else if (i == 1)
            sink.later = "e299";
        else if (i == 2)
            world.seq = 10; /* nothing above it is proven */
        else if (i == 3)
            world.no_ahead = true;
        else if (i == 4)
            world.hidden = true;
        else
            db.shards[db.rows[0].shard] = (struct semel_relay_shard){db.rows[0].shard, 4711, 0};
        for (int k = 0; k < 4; k++)
            step_of(0);
        if (i == 0 || i == 2 || i == 4)
            assert_null(strstr(world.trace, "ahead"));
        for (int k = 0; k < 60; k++) {
            step_of(0);
            pass(k < 20 ? 1000 : SECOND);
            sink.later = NULL;
            world.seq = 300;
        }
        assert_all_came_once();
        if (i == 0 || i == 3 || i == 4)
            assert_int_equal(counts()->ahead, 0);
    }
}

/* ---- destinations -------------------------------------------------------------------------------- */

static void destination_that_is_down_is_shown_probed_and_comes_back(void **state)
{
    char which[SEMEL_RELAY_WHY];
    struct semel_str name;
    bool is_down;
    (void)state;
    assert_false(semel__relay_destination(relays[0], 0, &name, &is_down));
    put("b0", "b1", "fine");
    step_of(0);
    sink.down = "lost";
    struct row *a1 = put("a0", "a1", "lost"), *a2 = put("a0", "a2", "lost");
    step_of(0);
    assert_int_equal(semel__relay_down(relays[0], which), 1);
    assert_string_equal(which, "lost: no such topic");
    assert_true(semel__relay_destination(relays[0], 0, &name, &is_down));
    assert_true(semel__str_eqz(name, "fine") && !is_down);
    assert_true(semel__relay_destination(relays[0], 1, &name, &is_down));
    assert_true(semel__str_eqz(name, "lost") && is_down);
    assert_false(semel__relay_destination(relays[0], 2, &name, &is_down));
    assert_non_null(strstr(world.reported, "destination is down: lost: no such topic"));
    assert_int_equal(counts()->turns, 1);
    assert_false(a1->aside);
    pass(SECOND); /* the sooner beat shows it to the others */
    step_of(0);
    assert_non_null(strstr(world.trace, "renew"));
    assert_string_equal(db.peers[0].down, "lost: no such topic");
    for (int i = 0; i < 20 && !a1->aside; i++) {
        put("b0", "b", "fine"); /* another destination works: its events stand aside, with what is known of it */
        step_of(0);
        pass(SECOND / 20);
    }
    assert_true(a1->aside && a1->attempts == 0 && a2->attempts == 0);
    assert_string_equal(a1->status, "waiting");
    sink.down = NULL;
    for (int i = 0; i < 40; i++) {
        step_of(0);
        pass(5 * SECOND);
    }
    assert_int_equal(left(), 0);
    assert_true(strstr(sink.got, "a1") < strstr(sink.got, "a2"));
    assert_int_equal(semel__relay_down(relays[0], which), 0);
    assert_string_equal(which, "");
    assert_int_equal(counts()->turns, 2);
    assert_non_null(strstr(world.reported, "destination takes events again: lost"));
    assert_string_equal(db.peers[0].down, "");
}

static void hang(void)
{
    pass(3 * SECOND);
}

/* One that hangs pushes back those that rest already, but none whose time has come: it may have recovered. */
static void destination_that_is_due_stays_due_when_another_hangs(void **state)
{
    (void)state;
    put("b0", "b1", "fine");
    step_of(0);
    sink.down = "lost";
    struct row *discarded = put("a0", "a1", "lost");
    step_of(0);
    discarded->there = false;
    pass(3 * SECOND);
    sink.down = "stuck";
    sink.during = hang;
    put("b0", "b2", "fine");
    put("c0", "c1", "stuck");
    step_of(0);
    sink.during = NULL;
    put("a0", "a2", "lost");
    put("d0", "d1", "stuck");
    step_of(0);
    assert_string_equal(sink.got, "b1 b2 a2");
    pass(20 * SECOND); /* nine times as long as it hung, it rests */
    step_of(0);
    assert_null(strstr(world.trace, "publish"));
    sink.down = NULL;
    pass(40 * SECOND);
    step_of(0);
    assert_non_null(strstr(sink.got, "c1"));
}

/* The sink as a whole fails: the relay waits longer each time, and tells why, once. */
static void sink_that_cannot_be_used_is_left_alone_for_a_while(void **state)
{
    char which[SEMEL_RELAY_WHY];
    (void)state;
    put("a0", "a1", "x");
    sink.status = SEMEL_RETRY;
    const int wait_ms = step_of(0);
    assert_in_range(wait_ms, 1, 51);
    assert_int_equal(sink.calls, 1);
    step_of(0);
    assert_int_equal(sink.calls, 1);
    assert_string_equal(world.trace, "");
    assert_int_equal(semel__relay_down(relays[0], which), 1);
    assert_string_equal(which, "no broker");
    assert_string_equal(world.reported, "cannot publish: no broker\n");
    assert_int_equal(counts()->turns, 1);
    assert_int_equal(sink.reopened, 0);
    sink.status = SEMEL_CLOSED;
    for (int i = 0; i < 12; i++) {
        assert_in_range(step_of(0), 0, 5001);
        pass(5 * SECOND + 1);
    }
    assert_in_range(sink.calls, 8, 14);
    assert_int_equal(sink.reopened, sink.calls - 1);
    assert_string_equal(world.reported, "cannot publish: no broker\n");
    assert_int_equal(db.rows[0].attempts, 0);
    sink.status = SEMEL_OK;
    step_of(0);
    assert_int_equal(left(), 0);
    assert_int_equal(semel__relay_down(relays[0], which), 0);
    assert_int_equal(counts()->turns, 2);
}

static void event_whose_destination_cannot_be_told_now_stops_the_step_and_nothing_else(void **state)
{
    int wait_ms;
    (void)state;
    struct row *row = put("a0", "a1", "broken");
    put("b0", "b1", "x");
    assert_int_equal(semel__relay_step(relays[0], &wait_ms, &err), SEMEL_RETRY);
    assert_string_equal(err.text, "cannot tell");
    assert_false(row->aside);
    assert_int_equal(counts()->dead, 0);
    SET(row->to, "x");
    step_of(0);
    assert_int_equal(left(), 0);
}

/* ---- the purge ----------------------------------------------------------------------------------- */

static void kept_events_are_purged_once_per_minute_or_until_none_are_left(void **state)
{
    (void)state;
    options.keep_us = 3600 * SECOND;
    make_relay(1);
    put("a0", "a1", "x");
    world.purges = 10000;
    step_of(1);
    assert_int_equal(world.purge_before_us, world.now_us - 3600 * SECOND);
    assert_int_equal(world.kept, 1);
    pass(SECOND - 1);
    step_of(1);
    assert_null(strstr(world.trace, "sent_purge"));
    pass(1);
    world.purges = 9999;
    step_of(1);
    assert_non_null(strstr(world.trace, "sent_purge"));
    pass(60 * SECOND - 1);
    step_of(1);
    assert_null(strstr(world.trace, "sent_purge"));
    pass(1);
    step_of(1);
    assert_non_null(strstr(world.trace, "sent_purge"));
}

int main(void)
{
#define ON(test) cmocka_unit_test_setup_teardown(test, up, down)
    const struct CMUnitTest tests[] = {
        ON(step_asks_the_store_for_what_it_needs_and_for_nothing_else),
        ON(event_aside_is_started_and_confirmed_under_the_lock_of_its_shard),
        ON(event_is_dead_after_its_last_attempt),
        ON(event_aside_waits_for_a_lower_number_in_the_outbox),
        ON(every_call_of_the_store_may_fail),
        ON(shares_differ_by_one_shard_at_most),
        ON(relay_with_other_destinations_owns_nothing_and_reports_why_once),
        ON(lease_is_renewed_in_time),
        ON(relay_whose_lease_is_over_joins_under_a_new_token_and_gives_up_the_old_one),
        ON(shard_that_relays_died_with_is_handled_with_care),
        ON(starting_points_are_proven_about_once_per_second),
        ON(every_scan_starts_at_the_bottom_where_transactions_are_not_visible),
        ON(event_below_a_proven_starting_point_is_published_and_reported),
        ON(shard_that_was_anothers_is_scanned_from_the_bottom),
        ON(rows_per_shard_follow_what_comes),
        ON(more_rows_than_wanted_narrow_the_window_and_few_widen_it),
        ON(backlog_is_read_ahead_and_deleted_behind),
        ON(what_was_confirmed_is_deleted_before_the_lease_ends_or_is_renewed),
        ON(nothing_is_read_ahead_where_something_could_come_before_it),
        ON(destination_that_is_down_is_shown_probed_and_comes_back),
        ON(destination_that_is_due_stays_due_when_another_hangs),
        ON(sink_that_cannot_be_used_is_left_alone_for_a_while),
        ON(event_whose_destination_cannot_be_told_now_stops_the_step_and_nothing_else),
        ON(kept_events_are_purged_once_per_minute_or_until_none_are_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
