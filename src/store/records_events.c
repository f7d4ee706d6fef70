/* SPDX-License-Identifier: MIT
 *
 * records_events.c: what operators ask of the outbox, and do to its events.
 *
 * Invariants: every read is bounded. An event is changed only after the lock of its shard, in an earlier statement, as
 * the relay does (records_relay.c); one that a relay is publishing is not changed. The next event of the aggregate is
 * woken in the same transaction.
 */
#include <assert.h>
#include <ctype.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/ids.h"
#include "store/mapped.h"
#include "store/records.h"

#define EVENT_BYTES_MAX INT64_C(67108864)
#define NAME_MAX_BYTES 64   /* of a role */
#define GID_MAX_BYTES 200   /* of a prepared transaction */
#define QUERY_MAX_BYTES 200 /* of what a transaction runs */
#define STATUSES 80

struct args {
    struct semel_event_filter filter;
    struct semel_str id, statuses;
    int64_t after_seq, limit, cap, now_us, seq, shard;
    bool with_payload;
    struct semel_str uuid;           /* the id, where it is one */
    int64_t first_shard, last_shard; /* what is counted */
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, id, event_id),
    SQL_FIELD(struct args, statuses, statuses),
    SQL_FIELD(struct args, filter.aggregatetype, aggregatetype),
    SQL_FIELD(struct args, filter.aggregateid, aggregateid),
    SQL_FIELD(struct args, filter.type, type),
    SQL_FIELD(struct args, filter.destination, destination),
    SQL_FIELD(struct args, after_seq, after_seq),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, cap, cap),
    SQL_FIELD(struct args, now_us, now),
    SQL_FIELD(struct args, seq, seq),
    SQL_FIELD(struct args, shard, shard),
    SQL_FIELD(struct args, with_payload, with_payload),
    SQL_FIELD(struct args, uuid, event_uuid),
    SQL_FIELD(struct args, first_shard, first_shard),
    SQL_FIELD(struct args, last_shard, last_shard),
};

/* As it is read: the status is still a text. */
struct read_event {
    struct semel_event_row row;
    struct semel_str status;
};

#define EVENT struct read_event
static const struct sql_field event_fields[] = {
    SQL_MUST(EVENT, status, event_status, 1, 32),
    SQL_MUST(EVENT, row.seq, seq, 0, 0),
    SQL_MUST(EVENT, row.shard, shard, 0, INT16_MAX),
    SQL_MUST(EVENT, row.id, event_id, 0, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.aggregatetype, aggregatetype, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.aggregateid, aggregateid, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.type, type, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.headers, headers, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.destination, destination, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.created_us, created_at, 0),
    SQL_SHOWN(EVENT, row.traceparent, traceparent, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.bytes, bytes, 0),
    SQL_SHOWN(EVENT, row.payload, payload, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.attempts, attempts, 0),
    SQL_SHOWN(EVENT, row.due_us, due_at, 0),
    SQL_SHOWN(EVENT, row.error, error_text, EVENT_BYTES_MAX),
    SQL_SHOWN(EVENT, row.alone, alone, 0),
    SQL_SHOWN(EVENT, row.relay_token, relay_token, 0),
    SQL_SHOWN(EVENT, row.updated_us, updated_at, 0),
    SQL_SHOWN(EVENT, row.sent_us, sent_at, 0),
    SQL_SHOWN(EVENT, row.held, held, 0),
};

static bool is_uuid(struct semel_str id)
{
    bool ok = id.n == SEMEL_UUID_TEXT - 1;
    for (size_t i = 0; ok && i < id.n; i++) {
        const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        ok = dash ? id.p[i] == '-' : isxdigit((unsigned char)id.p[i]) != 0;
    }
    return ok;
}

bool semel_event_id(struct semel_str given, char ret_id[SEMEL_EVENT_ID_TEXT])
{
    const bool uuid = is_uuid(given);
    if (given.n == 0 || given.n >= SEMEL_EVENT_ID_TEXT || !semel__utf8_valid(given))
        return false;
    for (size_t i = 0, n; i < given.n; i += n) {
        uint32_t c;
        n = semel__utf8_next((struct semel_str){given.p + i, given.n - i}, &c);
        if (n == 0 || !semel__utf8_shown(c))
            return false;
    }
    for (size_t i = 0; i < given.n; i++)
        ret_id[i] = (char)(uuid ? tolower((unsigned char)given.p[i]) : given.p[i]);
    ret_id[given.n] = '\0';
    return true;
}

static struct semel_str uuid_of(struct semel_str id)
{
    return is_uuid(id) ? id : (struct semel_str){0};
}

static bool parse_status(struct semel_str text, enum semel_event_status *ret)
{
    for (unsigned s = SEMEL_EVENT_CREATED; s <= SEMEL_EVENT_PUBLISHED; s++)
        if (semel__str_eqz(text, semel__event_status_name((enum semel_event_status)s))) {
            *ret = (enum semel_event_status)s;
            return true;
        }
    return false;
}

static semel_status run_one(struct sql *db, enum sql_id id, const char *doing, const struct args *args, sql_reader read,
                            void *ctx, struct semel_error *err)
{
    semel__db_start(db, doing);
    semel__db_run(db, id, SQL_ONE(args_fields, args), NULL, read, ctx);
    return semel__db_flush(db, err);
}

/* ---- reading ------------------------------------------------------------------------------------- */

struct listing {
    struct semel_arena *arena;
    struct sql_list list;
};

static semel_status read_event(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct listing *l = ctx;
    struct read_event read = {0};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(event_fields), l->arena, &read, err);
    if (status == SEMEL_OK && !parse_status(read.status, &read.row.status))
        status = semel__db_damage(row, "an event's status is none that is known", err);
    return status == SEMEL_OK ? semel__db_list_put(&l->list, &read.row, err) : status;
}

static semel_status read_events(struct semel_store *store, enum sql_id id, const struct args *args,
                                struct semel_arena *arena, struct semel_event_row **ret, size_t *ret_n,
                                struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    if (db == NULL)
        return SEMEL_INVALID;
    struct listing l = {.arena = arena, .list = {.arena = arena, .size = sizeof **ret}};
    semel_status status = run_one(db, id, "reading events of the outbox", args, read_event, &l, err);
    status = semel__db_list_end(&l.list, status, err);
    if (status == SEMEL_OK) {
        *ret = l.list.items;
        *ret_n = l.list.n;
    }
    return status;
}

semel_status semel_query_events(struct semel_store *store, const struct semel_event_filter *filter, int64_t after_seq,
                                size_t max, struct semel_arena *arena, struct semel_event_row **ret, size_t *ret_n,
                                struct semel_error *err)
{
    char statuses[STATUSES] = "|";
    size_t at = 1;
    for (unsigned s = SEMEL_EVENT_CREATED; s <= SEMEL_EVENT_PUBLISHED; s++)
        if ((filter->statuses & 1u << s) != 0) /* all six names fit */
            at += (size_t)snprintf(statuses + at, sizeof statuses - at, "%s|",
                                   semel__event_status_name((enum semel_event_status)s));
    const struct args args = {.filter = *filter,
                              .statuses = semel__str(statuses),
                              .after_seq = after_seq != SEMEL_NONE ? after_seq : INT64_MIN + 1,
                              .limit = semel__db_limit(max)};
    return read_events(store, SQL_event_list, &args, arena, ret, ret_n, err);
}

semel_status semel_query_event(struct semel_store *store, const char *id, bool with_payload, struct semel_arena *arena,
                               struct semel_event_row **ret, struct semel_error *err)
{
    const struct args args = {.id = semel__str(id), .uuid = uuid_of(semel__str(id)), .with_payload = with_payload};
    size_t n = 0;
    *ret = NULL;
    semel_status status = read_events(store, SQL_event_find, &args, arena, ret, &n, err);
    if (n == 0)
        *ret = NULL;
    return status;
}

struct first {
    struct semel_str id, status;
};

semel_status semel_query_event_place(struct semel_store *store, const struct semel_event_row *row, int64_t cap,
                                     struct semel_arena *arena, struct semel_event_place *ret, struct semel_error *err)
{
    static const struct sql_field first_fields[] = {
        SQL_SHOWN(struct first, id, event_id, SEMEL_ID_MAX),
        SQL_SHOWN(struct first, status, event_status, 32),
    };
    static const struct sql_field place_fields[] = {
        SQL_SHOWN(struct semel_event_place, relay_owner, relay_owner, SEMEL_ID_MAX),
        SQL_SHOWN(struct semel_event_place, lease_until_us, lease_until, 0),
    };
    static const struct sql_field behind_fields[] = {SQL_SHOWN(struct semel_event_place, behind, count, 0)};
    struct sql *db = semel__db_query(store, err);
    if (db == NULL)
        return SEMEL_INVALID;
    const struct args args = {.filter = {.aggregatetype = row->aggregatetype, .aggregateid = row->aggregateid},
                              .seq = row->seq,
                              .shard = row->shard,
                              .cap = cap};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    struct first first = {0};
    *ret = (struct semel_event_place){.lease_until_us = SEMEL_NONE};
    struct sql_into into_first = {SQL_FIELDS(first_fields), arena, &first, sizeof first, 0};
    struct sql_into into_place = {SQL_FIELDS(place_fields), arena, ret, sizeof *ret, 0};
    struct sql_into into_behind = {SQL_FIELDS(behind_fields), arena, ret, sizeof *ret, 0};
    semel__db_start(db, "reading where an event stands");
    semel__db_run(db, SQL_event_first, once, NULL, semel__db_read_item, &into_first);
    semel__db_run(db, SQL_event_owner, once, NULL, semel__db_read_item, &into_place);
    semel__db_run(db, SQL_event_behind, once, NULL, semel__db_read_item, &into_behind);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK && row->held && parse_status(first.status, &ret->first_status))
        ret->first_id = first.id;
    return status;
}

semel_status semel_query_event_acts(struct semel_store *store, const char *id, size_t max, struct semel_arena *arena,
                                    struct semel_act_line **ret, size_t *ret_n, struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    const struct args args = {.id = semel__str(id), .limit = semel__db_limit(max)};
    return db != NULL ? semel__record_acts(db, SQL_event_acts, SQL_ONE(args_fields, &args), arena, ret, ret_n, err)
                      : SEMEL_INVALID;
}

/* ---- the whole outbox ---------------------------------------------------------------------------- */

struct status_count {
    struct semel_str status;
    int64_t n, oldest_us;
};

static semel_status read_count(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_SHOWN(struct status_count, status, event_status, 32),
        SQL_SHOWN(struct status_count, n, count, 0),
        SQL_SHOWN(struct status_count, oldest_us, oldest_at, 0),
    };
    struct semel_outbox_state *state = ctx;
    struct status_count one = {.oldest_us = SEMEL_NONE};
    enum semel_event_status which;
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(fields), NULL, &one, err);
    if (status == SEMEL_OK && parse_status(one.status, &which)) {
        state->n[which] = one.n != SEMEL_NONE ? one.n : 0;
        state->oldest_us[which] = one.oldest_us;
    }
    return status;
}

static const struct sql_field longest_fields[] = {
    SQL_SHOWN(struct semel_outbox_state, longest_type, aggregatetype, SEMEL_ID_MAX),
    SQL_SHOWN(struct semel_outbox_state, longest_id, aggregateid, SEMEL_ID_MAX),
    SQL_SHOWN(struct semel_outbox_state, longest, count, 0),
};
static const struct sql_field holder_fields[] = {
    SQL_SHOWN(struct semel_outbox_state, holder_pid, pid, 0),
    SQL_SHOWN(struct semel_outbox_state, holder_user, user, NAME_MAX_BYTES),
    SQL_SHOWN(struct semel_outbox_state, holder_since_us, since, 0),
    SQL_SHOWN(struct semel_outbox_state, holder_query, query, QUERY_MAX_BYTES),
    SQL_SHOWN(struct semel_outbox_state, holder_gid, gid, GID_MAX_BYTES),
    SQL_SHOWN(struct semel_outbox_state, holder_shown, shown, 0),
};
static const struct sql_field relay_fields[] = {
    SQL_SHOWN(struct semel_outbox_state, relay_owner, relay_owner, SEMEL_ID_MAX),
    SQL_SHOWN(struct semel_outbox_state, relay_down, error_text, SEMEL_ERROR_TEXT_MAX),
};
static const struct sql_field down_fields[] = {
    SQL_SHOWN(struct semel_outbox_state, down_destination, destination, SEMEL_ID_MAX),
    SQL_SHOWN(struct semel_outbox_state, down_why, error_text, SEMEL_ERROR_TEXT_MAX),
    SQL_SHOWN(struct semel_outbox_state, down, count, 0),
};

static semel_status count_mapped(struct sql *db, const struct args *args, struct semel_outbox_state *ret,
                                 struct semel_error *err)
{
    static const struct sql_field fields[] = {SQL_SHOWN(struct status_count, n, count, 0),
                                              SQL_SHOWN(struct status_count, oldest_us, oldest_at, 0)};
    struct status_count one = {.oldest_us = SEMEL_NONE};
    struct sql_into into = {SQL_FIELDS(fields), NULL, &one, sizeof one, 0};
    semel_status status = run_one(db, SQL_mapped_count, "counting a mapped table", args, semel__db_read_item, &into,
                                  err);
    ret->n[SEMEL_EVENT_CREATED] = one.n != SEMEL_NONE ? one.n : 0;
    ret->oldest_us[SEMEL_EVENT_CREATED] = one.oldest_us;
    return status;
}

semel_status semel_query_outbox_state(struct semel_store *store, const struct semel_relay_table *table, bool all,
                                      int64_t cap, struct semel_arena *arena, struct semel_outbox_state *ret,
                                      struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    int64_t shard = 0;
    if (db == NULL)
        return SEMEL_INVALID;
    struct sql_mapping *before = db->mapping; /* a relay may work on this handle */
    semel_status status = table != NULL ? semel__mapped_map(store, table, arena, &shard, err) : SEMEL_OK;
    if (status != SEMEL_OK) {
        db->mapping = before;
        return status;
    }
    const struct args args = {.cap = cap,
                              .limit = 1,
                              .now_us = semel__now(&semel__clock_real),
                              .first_shard = shard,
                              .last_shard = all             ? INT16_MAX
                                            : table != NULL ? shard
                                                            : SEMEL_RELAY_SHARDS - 1};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    *ret = (struct semel_outbox_state){.holder_pid = SEMEL_NONE, .holder_since_us = SEMEL_NONE};
    for (unsigned s = SEMEL_EVENT_CREATED; s <= SEMEL_EVENT_PUBLISHED; s++)
        ret->oldest_us[s] = SEMEL_NONE;
    struct sql_into longest = {SQL_FIELDS(longest_fields), arena, ret, sizeof *ret, 0};
    struct sql_into holder = {SQL_FIELDS(holder_fields), arena, ret, sizeof *ret, 0};
    struct sql_into down = {SQL_FIELDS(down_fields), arena, ret, sizeof *ret, 0};
    struct sql_into relay = {SQL_FIELDS(relay_fields), arena, ret, sizeof *ret, 0};
    semel__db_start(db, "counting the outbox");
    semel__db_run(db, SQL_event_counts, once, NULL, read_count, ret);
    semel__db_run(db, SQL_event_longest, once, NULL, semel__db_read_item, &longest);
    semel__db_run(db, SQL_event_down, once, NULL, semel__db_read_item, &down);
    semel__db_run(db, SQL_relay_down, once, NULL, semel__db_read_item, &relay);
    if (table == NULL)
        semel__db_run(db, SQL_event_holder, once, NULL, semel__db_read_item, &holder);
    status = semel__db_flush(db, err);
    if (status == SEMEL_OK && table != NULL)
        status = count_mapped(db, &args, ret, err);
    db->mapping = before;
    if (status != SEMEL_OK || table != NULL)
        return status;
    return semel_query_outbox(store, cap, &ret->n[SEMEL_EVENT_CREATED], &ret->oldest_us[SEMEL_EVENT_CREATED], err);
}

/* ---- changing ------------------------------------------------------------------------------------ */

semel_status semel_query_event_lock(struct semel_store *store, const struct semel_event_row *row,
                                    struct semel_error *err)
{
    const struct args args = {.id = row->id, .shard = row->shard};
    assert(store->in_tx);
    return run_one(semel__db_of(store), SQL_event_lock, "locking the shard of an event", &args, NULL, NULL, err);
}

semel_status semel_query_event_change(struct semel_store *store, const struct semel_event_row *row, bool discard,
                                      int64_t now_us, bool *ret_done, struct semel_error *err)
{
    static const struct sql_field fields[] = {SQL_SHOWN(struct first, id, event_id, SEMEL_ID_MAX)};
    struct sql *db = semel__db_of(store);
    const struct args args = {.filter = {.aggregatetype = row->aggregatetype, .aggregateid = row->aggregateid},
                              .id = row->id,
                              .uuid = uuid_of(row->id),
                              .shard = row->shard,
                              .now_us = now_us};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    struct semel_arena arena;
    struct first first = {0};
    assert(store->in_tx);
    semel__arena_init(&arena, 1 << 16);
    struct sql_into into = {SQL_FIELDS(fields), &arena, &first, sizeof first, 0};
    semel__db_start(db, discard ? "discarding an event" : "retrying an event");
    semel__db_run(db, discard ? SQL_event_discard : SQL_event_retry, once, NULL, semel__db_read_item, &into);
    if (discard)
        semel__db_run(db, SQL_event_remove, once, NULL, semel__db_read_item, &into);
    semel__db_run(db, SQL_event_wake, once, NULL, NULL, NULL);
    semel_status status = semel__db_flush(db, err);
    *ret_done = status == SEMEL_OK && into.filled > 0;
    semel__arena_done(&arena);
    return status;
}
