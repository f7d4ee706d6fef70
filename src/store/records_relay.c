/* SPDX-License-Identifier: MIT
 *
 * records_relay.c: what the relay reads and writes (core/relay.h).
 *
 * Invariants: an event is in one table at a time; every change of outbox_aside comes after the lock of its shards, in
 * an earlier statement; the locks on the sequence are read after the number, and after the scan.
 */
#include "core/relay.h"

#include "store/mapped.h"
#include "store/records.h"

#define EVENT_BYTES_MAX INT64_C(1073741824)
#define NAME_MAX_BYTES 64 /* of a transaction, a role */
#define SHARD_MAX INT16_MAX
#define SMALL_MIN ((size_t)256)

struct args {
    int64_t now_us, token, lease_until_us, limit, most, bytes, cap, due_us, before_us;
    struct semel_str owner, destinations, error, id, place;
    int64_t first_shard, last_shard; /* of the outbox that this handle works on */
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, now_us, now),
    SQL_FIELD(struct args, token, relay_token),
    SQL_FIELD(struct args, lease_until_us, lease_until),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, most, most),
    SQL_FIELD(struct args, bytes, bytes),
    SQL_FIELD(struct args, cap, cap),
    SQL_FIELD(struct args, due_us, due_at),
    SQL_FIELD(struct args, before_us, before),
    SQL_FIELD(struct args, owner, relay_owner),
    SQL_FIELD(struct args, destinations, destinations),
    SQL_FIELD(struct args, error, error_text),
    SQL_FIELD(struct args, id, event_id),
    SQL_FIELD(struct args, place, row_place),
    SQL_FIELD(struct args, first_shard, first_shard),
    SQL_FIELD(struct args, last_shard, last_shard),
};

#define SHARD struct semel_relay_shard
static const struct sql_field shard_fields[] = {
    SQL_FIELD(SHARD, shard, shard),
    SQL_FIELD(SHARD, token, relay_token),
    SQL_FIELD(SHARD, losses, losses),
};
static const struct sql_field shard_read_fields[] = {
    SQL_MUST(SHARD, shard, shard, 0, SHARD_MAX),
    SQL_MAYBE(SHARD, token, relay_token, 1, INT64_MAX),
    SQL_MUST(SHARD, losses, losses, 0, INT32_MAX),
};
static const struct sql_field start_fields[] = {
    SQL_FIELD(struct semel_relay_start, shard, shard),
    SQL_FIELD(struct semel_relay_start, after_seq, after_seq),
};

#define EVENT struct semel_relay_event
static const struct sql_field event_fields[] = {
    SQL_FIELD(EVENT, shard, shard),
    SQL_FIELD(EVENT, seq, seq),
    SQL_FIELD(EVENT, id, event_id),
    SQL_FIELD(EVENT, place, row_place),
    SQL_FIELD(EVENT, aggregatetype, aggregatetype),
    SQL_FIELD(EVENT, aggregateid, aggregateid),
    SQL_FIELD(EVENT, status, event_status),
    SQL_FIELD(EVENT, attempts, attempts),
    SQL_FIELD(EVENT, due_us, due_at),
    SQL_FIELD(EVENT, error, error_text),
    SQL_FIELD(EVENT, alone, alone),
};
/* Applications write the outbox by plain INSERT: whatever a text may be, it is read, and judged by the relay. */
static const struct sql_field event_read_fields[] = {
    SQL_MUST(EVENT, seq, seq, 0, 0),
    SQL_MUST(EVENT, shard, shard, 0, SHARD_MAX),
    SQL_MUST(EVENT, id, event_id, 0, EVENT_BYTES_MAX),
    SQL_MUST(EVENT, aggregatetype, aggregatetype, 0, EVENT_BYTES_MAX),
    SQL_MUST(EVENT, aggregateid, aggregateid, 0, EVENT_BYTES_MAX),
    SQL_MUST(EVENT, type, type, 0, EVENT_BYTES_MAX),
    SQL_MAYBE(EVENT, payload, payload, 0, EVENT_BYTES_MAX),
    SQL_MUST(EVENT, headers, headers, 0, EVENT_BYTES_MAX),
    SQL_MAYBE(EVENT, destination, destination, 0, EVENT_BYTES_MAX),
    SQL_MAYBE(EVENT, created_us, created_at, 0, 0),
    SQL_MAYBE(EVENT, traceparent, traceparent, 0, EVENT_BYTES_MAX),
    SQL_MAYBE(EVENT, place, row_place, 0, EVENT_BYTES_MAX),
    SQL_MUST(EVENT, size, bytes, 0, 0),
    SQL_FIELD(EVENT, held, held),
    SQL_FIELD(EVENT, attempts, attempts),
    SQL_FIELD(EVENT, alone, alone),
};

/* With the shards of the outbox that the handle works on. */
static struct args with_shards(const struct sql *db, struct args args)
{
    const struct sql_mapping *mapping = db->mapping;
    args.first_shard = mapping != NULL ? mapping->shard : 0;
    args.last_shard = mapping != NULL ? mapping->shard : SEMEL_RELAY_SHARDS - 1;
    return args;
}
#define ARGS_OF(db, ...) with_shards(db, (struct args){__VA_ARGS__})
#define ARGS(...) ARGS_OF(semel__db_of(store), __VA_ARGS__)

static semel_status run_one(struct semel_store *store, enum sql_id id, const char *doing, const struct args *args,
                            const struct sql_set *each, sql_reader read, void *ctx, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    semel__db_start(db, doing);
    semel__db_run(db, id, SQL_ONE(args_fields, args), each, read, ctx);
    return semel__db_flush(db, err);
}

/* For what finds many rows by their keys: in front of it, in the same transaction. */
static void go_by_key(struct sql *db)
{
    semel__db_run(db, SQL_relay_by_key, NULL, NULL, NULL, NULL);
}

static semel_status run_by_key(struct semel_store *store, enum sql_id id, const char *doing, const struct args *args,
                               const struct sql_set *each, sql_reader read, void *ctx, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    semel__db_start(db, doing);
    go_by_key(db);
    semel__db_run(db, id, SQL_ONE(args_fields, args), each, read, ctx);
    return semel__db_flush(db, err);
}

static semel_status end_list(struct sql_list *list, semel_status status, void *ret, size_t *ret_n,
                             struct semel_error *err)
{
    status = semel__db_list_end(list, status, err);
    if (status == SEMEL_OK) {
        memcpy(ret, &list->items, sizeof list->items);
        *ret_n = list->n;
    }
    return status;
}

/* ---- leases and shards --------------------------------------------------------------------------- */

static semel_status expire(struct semel_store *store, int64_t now_us, int64_t due_us, int attempts_max,
                           struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = ARGS(.now_us = now_us, .due_us = due_us, .cap = attempts_max,
                                  .error = SEMEL_STR("the relay was lost while it published the event"));
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    semel__db_start(db, "looking for lost relays");
    semel__db_run(db, SQL_shard_make, once, NULL, NULL, NULL);
    semel__db_run(db, SQL_relay_mutex, once, NULL, NULL, NULL);
    semel__db_run(db, SQL_relay_expire, once, NULL, NULL, NULL);
    semel__db_run(db, SQL_aside_recover, once, NULL, NULL, NULL);
    return semel__db_flush(db, err);
}

static semel_status join(struct semel_store *store, const struct semel_relay_peer *self, int64_t now_us,
                         int64_t lease_until_us, struct semel_error *err)
{
    const struct args args = ARGS(.now_us = now_us, .token = self->token, .lease_until_us = lease_until_us,
                                  .owner = self->owner, .destinations = self->destinations);
    return run_one(store, SQL_relay_join, "joining the relays", &args, NULL, NULL, NULL, err);
}

static semel_status renew(struct semel_store *store, int64_t token, int64_t lease_until_us, struct semel_str down,
                          struct semel_error *err)
{
    static const struct sql_field changes[] = {{.name = SQL_NAME_changes, .size = sizeof(int64_t)}};
    const struct args args = {.token = token, .lease_until_us = lease_until_us, .error = down};
    int64_t n = 0;
    struct sql_into into = {SQL_FIELDS(changes), .items = &n, .size = sizeof n};
    semel_status status = run_one(store, SQL_relay_renew, "renewing the relay's lease", &args, NULL,
                                  semel__db_read_item, &into, err);
    if (status == SEMEL_OK && n == 0)
        return semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_ENVIRONMENT, "the relay's lease has expired");
    return status;
}

static semel_status leave(struct semel_store *store, int64_t token, int64_t now_us, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = {.token = token, .now_us = now_us};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    semel__db_start(db, "leaving the relays");
    semel__db_run(db, SQL_aside_release, once, NULL, NULL, NULL);
    semel__db_run(db, SQL_relay_leave, once, NULL, NULL, NULL);
    return semel__db_flush(db, err);
}

static semel_status peers(struct semel_store *store, size_t max, struct semel_arena *arena,
                          struct semel_relay_peer **ret, size_t *ret_n, struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_MUST(struct semel_relay_peer, token, relay_token, 1, INT64_MAX),
        SQL_SHOWN(struct semel_relay_peer, owner, relay_owner, SEMEL_ID_MAX),
        SQL_SHOWN(struct semel_relay_peer, destinations, destinations, SEMEL_ID_MAX),
    };
    const struct args args = ARGS(.limit = semel__db_limit(max));
    struct sql_list list = {SQL_FIELDS(fields), .arena = arena, .size = sizeof **ret};
    semel_status status = run_one(store, SQL_relay_list, "listing relays", &args, NULL, semel__db_read_list, &list,
                                  err);
    return end_list(&list, status, ret, ret_n, err);
}

struct shards {
    struct semel_relay_shard *at;
    size_t n;
};

static semel_status read_shard(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct shards *shards = ctx;
    (void)item;
    if (shards->n == SEMEL_RELAY_SHARDS)
        return semel__db_damage(row, "there are more than 64 shards", err);
    return semel__db_fill(row, SQL_FIELDS(shard_read_fields), NULL, &shards->at[shards->n++], err);
}

static semel_status shards_read(struct semel_store *store, struct semel_relay_shard *ret, size_t *ret_n,
                                struct semel_error *err)
{
    const struct args args = ARGS(.now_us = 0);
    struct shards shards = {.at = ret};
    semel_status status = run_one(store, SQL_shard_list, "reading shards", &args, NULL, read_shard, &shards, err);
    *ret_n = shards.n;
    return status;
}

static semel_status shards_write(struct semel_store *store, const struct semel_relay_shard *shards, size_t n,
                                 struct semel_error *err)
{
    const struct args args = {0};
    return run_one(store, SQL_shard_set, "writing shards", &args, SQL_EACH(shard_fields, shards, n), NULL, NULL, err);
}

static semel_status lock(struct semel_store *store, int64_t token, const struct semel_relay_shard *shards, size_t n,
                         bool *ret_owned, struct semel_error *err)
{
    const struct args args = {0};
    struct semel_relay_shard found[SEMEL_RELAY_SHARDS] = {{0}};
    struct shards locked = {.at = found};
    semel_status status = run_one(store, SQL_shard_lock, "locking shards", &args, SQL_EACH(shard_fields, shards, n),
                                  read_shard, &locked, err);
    *ret_owned = locked.n == n;
    for (size_t i = 0; i < locked.n; i++)
        *ret_owned = *ret_owned && found[i].token == token;
    return status;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

static const struct sql_field holder_fields[] = {
    SQL_MUST(struct semel_relay_holder, name, holder, 0, NAME_MAX_BYTES),
    SQL_FIELD(struct semel_relay_holder, pid, pid),
    SQL_SHOWN(struct semel_relay_holder, user, user, NAME_MAX_BYTES),
    SQL_SHOWN(struct semel_relay_holder, since_us, since, 0),
};

struct last {
    int64_t seq, started_us, pid;
};
static const struct sql_field last_fields[] = {
    SQL_MUST(struct last, seq, seq, 0, 0),
    SQL_FIELD(struct last, started_us, started_at),
    SQL_FIELD(struct last, pid, pid),
};

static semel_status note(struct semel_store *store, int64_t *ret_seq, int64_t *ret_started_us, size_t max,
                         struct semel_arena *arena, struct semel_relay_holder **ret, size_t *ret_n,
                         struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = {.limit = semel__db_limit(max + 1)};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    struct last last = {0};
    struct sql_into into = {SQL_FIELDS(last_fields), .items = &last, .size = sizeof last};
    struct sql_list list = {SQL_FIELDS(holder_fields), .arena = arena, .size = sizeof **ret};
    semel__db_start(db, "noting who has drawn numbers");
    semel__db_run(db, SQL_outbox_last, once, NULL, semel__db_read_item, &into);
    semel__db_run(db, SQL_outbox_holders, once, NULL, semel__db_read_list, &list);
    semel_status status = end_list(&list, semel__db_flush(db, err), ret, ret_n, err);
    *ret_seq = last.seq;
    *ret_started_us = last.started_us;
    return status;
}

static semel_status end(struct semel_store *store, struct semel_arena *arena, struct semel_relay_end *ret,
                        struct semel_error *err)
{
    static const struct sql_field seq_fields[] = {SQL_MUST(struct semel_relay_end, seq, seq, 0, 0)};
    static const struct sql_field row_fields[] = {
        SQL_MUST(struct semel_relay_end, id, event_id, 0, EVENT_BYTES_MAX),
        SQL_MUST(struct semel_relay_end, place, row_place, 0, EVENT_BYTES_MAX),
    };
    struct sql *db = semel__db_of(store);
    const struct args args = ARGS(.limit = 1);
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    *ret = (struct semel_relay_end){0};
    struct sql_into seq = {SQL_FIELDS(seq_fields), .items = ret, .size = sizeof *ret};
    struct sql_into row = {SQL_FIELDS(row_fields), .arena = arena, .items = ret, .size = sizeof *ret};
    semel__db_start(db, "looking for the end of the outbox");
    semel__db_run(db, SQL_outbox_end, once, NULL, semel__db_read_item, &seq);
    if (db->mapping != NULL)
        semel__db_run(db, SQL_mapped_end, once, NULL, semel__db_read_item, &row);
    return semel__db_flush(db, err);
}

static semel_status left(struct semel_store *store, const struct semel_relay_end *end, bool *ret,
                         struct semel_error *err)
{
    static const struct sql_field fields[] = {{.name = SQL_NAME_found, .size = sizeof(bool)}};
    const struct args args = ARGS(.id = end->id, .place = end->place);
    struct sql_into into = {SQL_FIELDS(fields), .items = ret, .size = sizeof *ret};
    *ret = false;
    return run_one(store, SQL_mapped_left, "looking for what is left", &args, NULL, semel__db_read_item, &into, err);
}

static semel_status visible(struct semel_store *store, bool *ret, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct semel_relay_holder *holders;
    struct semel_arena arena;
    struct last last = {0};
    size_t n = 0;
    int64_t seq, started_us;
    struct sql_into into = {SQL_FIELDS(last_fields), .items = &last, .size = sizeof last};
    *ret = false;
    if (!semel__db_needs(db, SQL_outbox_draw))
        return SEMEL_OK;
    const struct args args = {0};
    semel__arena_init(&arena, 1 << 20);
    semel_status status = run_one(store, SQL_outbox_draw, "drawing a number", &args, NULL, semel__db_read_item, &into,
                                  err);
    if (status == SEMEL_OK)
        status = note(store, &seq, &started_us, SEMEL_RELAY_HOLDERS_MAX, &arena, &holders, &n, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        *ret = *ret || holders[i].pid == last.pid;
    semel__arena_done(&arena);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* The statements of one scan, until they are answered. */
struct semel_relay_scanning {
    struct args args, holders_args;
    struct sql_list events, holders, aside;
    int64_t cap; /* 0: the bytes were summed up */
};

/* How many bytes an event may have so that all that may come fit. 0: the bytes must be summed up. */
static int64_t cap_of(const struct sql *db, const struct semel_relay_scan *scan)
{
    const size_t cap = scan->bytes / scan->most;
    if (db->mapping != NULL || !semel__db_needs(db, SQL_outbox_read_small))
        return 0;
    return !scan->large && cap >= SMALL_MIN ? semel__db_limit(cap) : 0;
}

static void run_scan(struct sql *db, struct semel_relay_scan *scan, struct semel_relay_scanning *s)
{
    const struct sql_set *each = SQL_EACH(start_fields, scan->starts, scan->n);
    const struct args args = ARGS_OF(db, .limit = semel__db_limit(scan->limit), .most = semel__db_limit(scan->most),
                                     .bytes = semel__db_limit(scan->bytes), .cap = cap_of(db, scan)),
                      holders = {.limit = semel__db_limit(scan->holders_max)},
                      aside = ARGS_OF(db, .limit = semel__db_limit(scan->aside_max), .bytes = args.bytes,
                                      .now_us = scan->now_us);
    s->cap = args.cap;
    s->events = s->aside = (struct sql_list){SQL_FIELDS(event_read_fields), .arena = scan->arena,
                                             .size = sizeof *scan->events};
    s->holders = (struct sql_list){SQL_FIELDS(holder_fields), .arena = scan->arena, .size = sizeof *scan->holders};
    if (db->mapping == NULL)
        go_by_key(db);
    const enum sql_id read = s->cap > 0 ? SQL_outbox_read_small : SQL_outbox_read;
    semel__db_run(db, db->mapping != NULL ? SQL_mapped_read : read, SQL_ONE(args_fields, &args), each,
                  semel__db_read_list, &s->events);
    if (scan->holders_max > 0)
        semel__db_run(db, SQL_outbox_holders, SQL_ONE(args_fields, &holders), NULL, semel__db_read_list, &s->holders);
    if (scan->aside_max > 0)
        semel__db_run(db, db->mapping != NULL ? SQL_mapped_aside_read : SQL_aside_read, SQL_ONE(args_fields, &aside),
                      each, semel__db_read_list, &s->aside);
}

static semel_status end_scan(struct sql *db, struct semel_relay_scan *scan, struct semel_relay_scanning *s,
                             struct semel_error *err)
{
    semel_status status = semel__db_flush(db, err);
    status = end_list(&s->holders, status, &scan->holders, &scan->n_holders, err);
    status = end_list(&s->aside, status, &scan->aside, &scan->n_aside, err);
    status = end_list(&s->events, status, &scan->events, &scan->n_events, err);
    for (size_t i = 0; s->cap > 0 && status == SEMEL_OK && i < scan->n_events; i++)
        scan->large = scan->large || scan->events[i].size > s->cap;
    return status;
}

static semel_status read(struct semel_store *store, struct semel_relay_scan *scan, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct semel_relay_scanning s;
    semel_status status;
    do {
        semel__db_start(db, "reading the outbox");
        run_scan(db, scan, &s);
        status = end_scan(db, scan, &s, err);
    } while (status == SEMEL_OK && s.cap > 0 && scan->large);
    return status;
}

#define GROUP struct semel_relay_group
static semel_status groups(struct semel_store *store, const struct semel_relay_start *starts, size_t n, size_t limit,
                           size_t most, struct semel_arena *arena, struct semel_relay_group **ret, size_t *ret_n,
                           struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_MUST(GROUP, shard, shard, 0, SHARD_MAX),
        SQL_MUST(GROUP, aggregatetype, aggregatetype, 0, EVENT_BYTES_MAX),
        SQL_MUST(GROUP, aggregateid, aggregateid, 0, EVENT_BYTES_MAX),
        SQL_MUST(GROUP, first_seq, first_seq, 0, 0),
        SQL_MUST(GROUP, last_seq, last_seq, 0, 0),
        SQL_MUST(GROUP, count, count, 1, INT64_MAX),
    };
    const struct args args = ARGS(.limit = semel__db_limit(limit), .most = semel__db_limit(most));
    struct sql_list list = {SQL_FIELDS(fields), .arena = arena, .size = sizeof **ret};
    const semel_status status = run_by_key(store, SQL_outbox_groups, "looking behind a run of events", &args,
                                           SQL_EACH(start_fields, starts, n), semel__db_read_list, &list, err);
    return end_list(&list, status, ret, ret_n, err);
}

/* ---- what becomes of events ---------------------------------------------------------------------- */

static void run_confirm(struct sql *db, struct semel_relay_event *const *events, size_t n, bool aside, bool keep,
                        int64_t now_us)
{
    const struct args args = ARGS_OF(db, .now_us = now_us);
    const struct sql_set *once = SQL_ONE(args_fields, &args), *each = SQL_EACH_OF(event_fields, events, n);
    const enum sql_id gone = db->mapping != NULL ? SQL_mapped_take : SQL_outbox_delete;
    if (keep && db->mapping == NULL)
        semel__db_run(db, aside ? SQL_aside_keep : SQL_outbox_keep, once, each, NULL, NULL);
    semel__db_run(db, aside ? SQL_aside_delete : gone, once, each, NULL, NULL);
    if (aside)
        semel__db_run(db, SQL_aside_wake, once, each, NULL, NULL);
}

static semel_status confirm(struct semel_store *store, struct semel_relay_event *const *events, size_t n, bool aside,
                            bool keep, int64_t now_us, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    semel__db_start(db, "confirming events");
    go_by_key(db);
    run_confirm(db, events, n, aside, keep, now_us);
    return semel__db_flush(db, err);
}

static bool ahead(struct semel_store *store, struct semel_relay_event *const *gone, size_t n_gone, bool keep,
                  struct semel_relay_scan *scan, struct semel_arena *arena)
{
    struct sql *db = semel__db_of(store);
    scan->scanning = semel__arena_alloc(arena, 1, sizeof *scan->scanning);
    if (scan->scanning == NULL)
        return false;
    semel__db_start(db, "confirming events and reading on");
    if (n_gone > 0) {
        go_by_key(db);
        run_confirm(db, gone, n_gone, false, keep, scan->now_us);
        semel__db_part(db);
    }
    run_scan(db, scan, scan->scanning);
    semel__db_send(db);
    return true;
}

static void tend(void *store)
{
    semel__db_tend(semel__db_of(store));
}

static semel_status ahead_end(struct semel_store *store, struct semel_relay_scan *scan, struct semel_error *err)
{
    return end_scan(semel__db_of(store), scan, scan->scanning, err);
}

static semel_status set_aside(struct semel_store *store, struct semel_relay_event *const *events, size_t n,
                              int64_t now_us, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    const struct args args = ARGS(.now_us = now_us);
    const struct sql_set *once = SQL_ONE(args_fields, &args), *each = SQL_EACH_OF(event_fields, events, n);
    static const enum sql_id own[] = {SQL_outbox_set_aside, SQL_outbox_delete},
                             mapped[] = {SQL_mapped_set_aside, SQL_mapped_take, SQL_mapped_drawn, SQL_mapped_renumber,
                                         SQL_mapped_drawn};
    const enum sql_id *steps = db->mapping != NULL ? mapped : own;
    const size_t n_steps = db->mapping != NULL ? sizeof mapped / sizeof mapped[0] : sizeof own / sizeof own[0];
    semel__db_start(db, "setting events aside");
    go_by_key(db);
    for (size_t i = 0; i < n_steps; i++)
        semel__db_run(db, steps[i], once, steps[i] == SQL_mapped_drawn ? NULL : each, NULL, NULL);
    semel__db_run(db, SQL_aside_wake, once, each, NULL, NULL); /* what they stood behind may have gone meanwhile */
    return semel__db_flush(db, err);
}

static semel_status note_started(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    (void)row;
    (void)err;
    ((bool *)ctx)[item] = true;
    return SEMEL_OK;
}

static semel_status aside_start(struct semel_store *store, int64_t token, struct semel_relay_event *const *events,
                                size_t n, int64_t now_us, bool *ret_started, struct semel_error *err)
{
    const struct args args = {.now_us = now_us, .token = token};
    memset(ret_started, 0, n * sizeof *ret_started);
    return run_by_key(store, SQL_aside_start, "starting events", &args, SQL_EACH_OF(event_fields, events, n),
                      note_started, ret_started, err);
}

static semel_status aside_fail(struct semel_store *store, int64_t token, struct semel_relay_event *const *events,
                               size_t n, int64_t now_us, struct semel_error *err)
{
    const struct args args = {.now_us = now_us, .token = token};
    return run_by_key(store, SQL_aside_fail, "recording refused events", &args, SQL_EACH_OF(event_fields, events, n),
                      NULL, NULL, err);
}

static semel_status aside_postpone(struct semel_store *store, struct semel_relay_event *const *events, size_t n,
                                   struct semel_error *err)
{
    const struct args args = {0};
    return run_by_key(store, SQL_aside_postpone, "postponing events", &args, SQL_EACH_OF(event_fields, events, n), NULL,
                      NULL, err);
}

static semel_status sent_purge(struct semel_store *store, int64_t before_us, size_t max, size_t *ret_n,
                               struct semel_error *err)
{
    static const struct sql_field changes[] = {{.name = SQL_NAME_changes, .size = sizeof(int64_t)}};
    const struct args args = {.before_us = before_us, .limit = semel__db_limit(max)};
    int64_t n = 0;
    struct sql_into into = {SQL_FIELDS(changes), .items = &n, .size = sizeof n};
    semel_status status = run_one(store, SQL_sent_purge, "purging published events", &args, NULL, semel__db_read_item,
                                  &into, err);
    *ret_n = (size_t)n;
    return status;
}

#define RELAY_OPS                                                                                                   \
    .inspect = semel__mapped_inspect, .map = semel__mapped_map, .expire = expire, .join = join, .renew = renew,     \
    .leave = leave, .peers = peers, .shards_read = shards_read, .shards_write = shards_write, .lock = lock,         \
    .note = note, .end = end, .left = left, .visible = visible, .read = read, .groups = groups, .confirm = confirm, \
    .set_aside = set_aside, .aside_start = aside_start, .aside_fail = aside_fail, .aside_postpone = aside_postpone, \
    .sent_purge = sent_purge

const struct semel_relay_ops semel__record_relay_sharded = {
    .shards = SEMEL_RELAY_SHARDS, .proves = true, .ahead = ahead, .tend = tend, .ahead_end = ahead_end, RELAY_OPS};
const struct semel_relay_ops semel__record_relay_single = {.shards = 1, .proves = false, RELAY_OPS};
