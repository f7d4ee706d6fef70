/* SPDX-License-Identifier: MIT
 *
 * relay_fake.c: see relay_fake.h.
 */
#include "unit/relay_fake.h"

#include <stdlib.h>

struct db db;
struct fake_world world;
struct fake_sink sink;
struct handle handles[PEERS_MAX];
struct semel_relay_ops relay_ops;
struct semel_relay *relays[PEERS_MAX];
struct semel_relay_options options;
struct semel_error trouble;
static struct db before;
static struct semel_random rng;
static struct semel_clock steady;

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

void delete_peer(size_t i)
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
    if (world.at_read != NULL)
        world.at_read();
    read_into(scan);
    return call("read", e);
}

static struct semel_relay_group *group_of(struct semel_relay_group *groups, size_t n, const struct row *row)
{
    size_t i = 0;
    while (i < n && !semel__str_eqz(groups[i].aggregateid, row->key))
        i++;
    return &groups[i];
}

static semel_status fake_groups(struct semel_store *store, const struct semel_relay_start *starts, size_t n,
                                size_t limit, size_t most, struct semel_arena *arena, struct semel_relay_group **ret,
                                size_t *ret_n, struct semel_error *e)
{
    struct semel_relay_group *groups = semel__arena_alloc(arena, db.n + 1, sizeof *groups);
    size_t n_groups = 0;
    assert_false(store->in_tx);
    assert_true(n > 0 && limit > 0 && most > 0 && groups != NULL);
    for (size_t i = 0; i < n; i++) {
        size_t rows = 0, of_it = 0;
        for (struct row *row = db.rows; row < db.rows + db.n && rows < limit; row++) {
            if (!row->there || row->aside || row->shard != starts[i].shard || row->seq <= starts[i].after_seq)
                continue;
            struct semel_relay_group *g = group_of(groups + n_groups, of_it, row);
            if (g == &groups[n_groups + of_it]) {
                *g = (struct semel_relay_group){row->shard, SEMEL_STR("order"), semel__str(row->key), row->seq, 0, 0};
                of_it++;
            }
            g->last_seq = row->seq;
            g->count++;
            rows++;
        }
        n_groups += of_it < most ? of_it : most;
    }
    *ret = groups;
    *ret_n = n_groups;
    return call("groups", e);
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
        else if (is(sink.down, items[i].destination) || is(sink.down_too, items[i].destination))
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

void make_relay(size_t i)
{
    handles[i].ops = (struct semel_store_ops){
        .name = "fake", .begin = fake_begin, .commit = fake_commit, .rollback = fake_rollback, .relay = &relay_ops};
    handles[i].base = (struct semel_store){.ops = &handles[i].ops};
    options.owner = semel__str(i == 0 ? "first" : i == 1 ? "second" : "third");
    assert_int_equal(semel__relay_new(&relays[i], &handles[i].base, &sink.base, &options, &rng, &steady, &trouble),
                     SEMEL_OK);
}

void begin_again(void)
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
                                         .groups = fake_groups,
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

void let_read_ahead(void)
{
    relay_ops.ahead = fake_ahead;
    relay_ops.tend = fake_tend;
    relay_ops.ahead_end = fake_ahead_end;
}

int up(void **state)
{
    (void)state;
    begin_again();
    make_relay(0);
    return 0;
}

int down(void **state)
{
    (void)state;
    for (size_t i = 0; i < PEERS_MAX; i++) {
        semel__relay_free(relays[i]);
        relays[i] = NULL;
    }
    return 0;
}

void pass(int64_t us)
{
    world.now_us += us;
    world.steady_us += us;
}

struct row *put(const char *key, const char *type, const char *to)
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

int step_of(size_t i)
{
    int wait_ms;
    world.trace[0] = '\0';
    assert_int_equal(semel__relay_step(relays[i], &wait_ms, &trouble), SEMEL_OK);
    assert_false(handles[i].base.in_tx);
    return wait_ms;
}

size_t left(void)
{
    size_t n = 0;
    for (size_t i = 0; i < db.n; i++)
        n += db.rows[i].there;
    return n;
}

const struct semel_relay_counts *counts(void)
{
    return semel__relay_counts(relays[0]);
}

size_t owned_by(size_t i)
{
    char why[SEMEL_RELAY_WHY];
    return semel__relay_owns(relays[i], why);
}
