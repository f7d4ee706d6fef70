/* SPDX-License-Identifier: MIT
 *
 * records_admit.c: admit and fetch: order keys, business keys and rows are locked, rows are inserted and read.
 *
 * admit, as round trips of PostgreSQL:
 *   1. lock and read the order keys, insert the business keys, insert all rows, read the watermarks;
 *   2. of the rows that the insert refused, read those that are final;
 *   3. lock the other rows and the business keys that they hold, and read them. A row that was committed while the
 *      insert waited for it can be seen only by a later snapshot (P12).
 *
 * A batch is mostly like the one before. If most messages of that had rows already, the first trip reads final rows,
 * and only the other messages are inserted. The decisions are the same: the primary key refuses, and a final row never
 * changes. Above READ COMMITTED, and where commits wait for a standby, no row is read without a lock: there our own
 * COMMIT has to wait as well, so that no message is acknowledged whose row only this server has (P16).
 *
 * If no message of the last DOUBTFUL batches had a row, all of this one are likely to be new: PostgreSQL inserts them
 * without expecting a conflict (inbox_new), which is a third cheaper. If a row is there all the same, the call takes
 * back what it has inserted and says so, and the batch goes the usual way: one trip more, and some dead rows, for at
 * most one batch in DOUBTFUL. Only rows that are completed and of one source go this way, and only at READ COMMITTED:
 * above it the watermark has to be locked, too.
 *
 * On SQLite the write lock is held since begin: the locks are "none", and each run steps through its items at once. A
 * batch of which all final rows were read first has drawn no number and written nothing: its COMMIT writes nothing, and
 * waits for no disk. A committed row was synchronised before anybody could read it (P24), if every writer of the file
 * has synchronous=FULL (docs/guarantees.md).
 *
 * Invariants: locks are taken in the order of the items; the watermarks are read after the insert (P60); the facts of a
 * key leave out what this transaction inserted; a row that was refused and is gone again, or came back, is contention
 * and not "new".
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/ids.h"
#include "core/state.h"
#include "core/version.h"
#include "store/records.h"

#define DRAWS_TEXT (3 + SQL_DRAWS_MAX * 21)
#define DOUBTFUL 64 /* batches */

struct args {
    struct semel_str consumer, source, draws;
    int64_t now_us, first_arrival, count;
    bool with_payload;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, consumer, consumer),
    SQL_FIELD(struct args, source, source),
    SQL_FIELD(struct args, now_us, now),
    SQL_FIELD(struct args, draws, draws),
    SQL_FIELD(struct args, count, count),
    SQL_FIELD(struct args, first_arrival, first_arrival),
    SQL_FIELD(struct args, with_payload, with_payload),
};

/* ---- order keys ---------------------------------------------------------------------------------- */

/* The keys of a batch, as a trip reads them. */
struct keys {
    struct sql *db;
    struct semel_key *keys;
    struct semel_arena *arena;
    size_t n, n_locked, n_known;
    bool patient; /* all keys are locked, and made where they are missing; else those that are free */
};

struct versions {
    struct semel_key key;
    struct semel_str skipped;
};

static const struct sql_field key_fields[] = {
    SQL_FIELD(struct semel_key, key, order_key),
    SQL_FIELD(struct semel_key, by_version, by_version),
};
static const struct sql_field versions_fields[] = {
    SQL_FIELD(struct versions, key.last_version, last_version),
    SQL_MAYBE(struct versions, skipped, skipped, 0, SEMEL_SKIPPED_TEXT_MAX),
};
static const struct sql_field facts_fields[] = {
    SQL_MUST(struct semel_key, parked, parked, 0, INT64_MAX),
    SQL_MUST(struct semel_key, open, open, 0, 1),
    SQL_FIELD(struct semel_key, head_arrival, head_arrival),
    SQL_FIELD(struct semel_key, head_version, head_version),
};

/* Versions that Semel cannot have written are left out, and the key is marked as damaged. */
static semel_status read_versions(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct keys *keys = ctx;
    struct versions read = {.key = keys->keys[item]};
    keys->n_locked++;
    semel_status status = semel__db_fill(row, SQL_FIELDS(versions_fields), NULL, &read, err);
    if (status == SEMEL_OK)
        status = semel__version_read(read.skipped, keys->arena, &read.key, err);
    read.key.busy = false;
    read.key.damaged = status == SEMEL_INVALID;
    keys->keys[item] = read.key;
    return read.key.damaged ? SEMEL_OK : status;
}

static semel_status read_facts(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct keys *keys = ctx;
    semel_status status = SEMEL_OK;
    keys->n_known++;
    if (!semel__db_needs(keys->db, SQL_key_lock)) /* then the same statement gives both */
        status = read_versions(ctx, item, row, err);
    if (status == SEMEL_OK)
        status = semel__db_fill(row, SQL_FIELDS(facts_fields), NULL, &keys->keys[item], err);
    return status;
}

static void run_keys(struct keys *keys, const struct sql_set *once)
{
    const struct sql_set *each = SQL_EACH(key_fields, keys->keys, keys->n);
    for (size_t i = 0; i < keys->n; i++) {
        struct semel_key *key = &keys->keys[i];
        key->last_version = SEMEL_NONE;
        key->skipped = NULL;
        key->n_skipped = 0;
        key->damaged = false;
        key->busy = true;
    }
    if (keys->patient) /* a row in the order has its key, and an insert would wait for that of another one */
        semel__db_run(keys->db, SQL_key_put, once, each, NULL, NULL);
    semel__db_run(keys->db, keys->patient ? SQL_key_lock : SQL_key_lock_free, once, each, read_versions, keys);
    semel__db_run(keys->db, SQL_key_facts, once, each, read_facts, keys);
}

static semel_status check_keys(const struct keys *keys, struct semel_error *err)
{
    if ((keys->patient && keys->n_locked != keys->n) || keys->n_known != keys->n) /* it was purged: look again */
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "an order key was deleted meanwhile");
    return SEMEL_OK;
}

/* ---- business keys ------------------------------------------------------------------------------- */

struct holders {
    struct semel_business *business;
    size_t n;
    struct semel_arena *arena;
    struct sql_noted inserted;
};

static const struct sql_field business_fields[] = {
    SQL_FIELD(struct semel_business, key, business_key),
    SQL_FIELD(struct semel_business, source, source),
    SQL_FIELD(struct semel_business, id, message_id),
    SQL_FIELD(struct semel_business, expires_us, expires_at),
};
static const struct sql_field holder_fields[] = {
    SQL_MUST(struct semel_business, held_source, source, 0, SEMEL_ID_MAX),
    SQL_MUST(struct semel_business, held_id, message_id, 0, SEMEL_ID_MAX),
    SQL_MUST(struct semel_business, unfinished, unfinished, 0, 1),
    SQL_MUST(struct semel_business, wanted, wanted, 0, INT64_MAX),
};

static semel_status read_holder(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct holders *holders = ctx;
    struct semel_business *b = &holders->business[item];
    if (b->inserted)
        return SEMEL_OK;
    semel_status status = semel__db_fill(row, SQL_FIELDS(holder_fields), holders->arena, b, err);
    b->taken = !semel__str_eq(b->held_source, b->source) || !semel__str_eq(b->held_id, b->id);
    return status;
}

static void run_business(struct sql *db, struct holders *holders, const struct sql_set *once)
{
    const struct sql_set *each = SQL_EACH(business_fields, holders->business, holders->n);
    for (size_t i = 0; i < holders->n; i++) {
        struct semel_business *b = &holders->business[i];
        b->taken = b->inserted = b->unfinished = false;
        b->held_source = b->held_id = (struct semel_str){0};
        b->wanted = 0;
    }
    holders->inserted = (struct sql_noted){holders->business, sizeof(*holders->business),
                                           offsetof(struct semel_business, inserted), true};
    semel__db_run(db, SQL_business_take, once, each, semel__db_read_noted, &holders->inserted);
    semel__db_run(db, SQL_business_holders, once, each, read_holder, holders);
}

static semel_status check_business(const struct holders *holders, struct semel_error *err)
{
    for (size_t i = 0; i < holders->n; i++)
        if (!holders->business[i].inserted && !semel__str_given(holders->business[i].held_id))
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a business key was released meanwhile");
    return SEMEL_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static const void *kept_headers(const void *item)
{
    const struct semel_row *row = &((const struct semel_admit *)item)->row;
    return row->kept ? &row->headers : NULL;
}

static const void *kept_payload(const void *item)
{
    static const struct semel_str empty = {"", 0};
    const struct semel_row *row = &((const struct semel_admit *)item)->row;
    return !row->kept ? NULL : semel__str_given(row->payload) ? &row->payload : &empty;
}

static const void *time_beside(const void *item)
{
    static const int64_t none = SQL_NO_TIME;
    const struct semel_row *row = &((const struct semel_admit *)item)->row;
    int64_t in_key = semel__id_key_time(row->id);
    if (in_key == row->message_time_us)
        return NULL;
    return row->message_time_us == SEMEL_NONE ? &none : &row->message_time_us;
}

#define ADMIT struct semel_admit
/* lean_NAME: what semel.record keeps of a member: nothing, where it is what most rows have. */
#define LEAN(name, member, most)                                   \
    static const void *lean_##name(const void *item)               \
    {                                                              \
        const struct semel_row *row = &((const ADMIT *)item)->row; \
        return row->member == (most) ? NULL : &row->member;        \
    }
LEAN(status, progress.state, SEMEL_ROW_COMPLETED)
LEAN(attempts, progress.attempts, 1)
LEAN(attempts_before, progress.attempts_before, 0)
LEAN(retries, progress.retries, 0)
LEAN(alone, progress.alone, false)
LEAN(updated_at, updated_us, row->received_us)
LEAN(processed_at, progress.processed_us, row->updated_us)
#define SQL_LEAN(name, member) SQL_MEMBER(ADMIT, row.member, lean_##name, .at = lean_##name)

static const struct sql_field item_fields[] = {
    SQL_FIELD(ADMIT, place, place),
    SQL_FIELD(ADMIT, row.arrival, arrival),
    SQL_FIELD(ADMIT, row.id, message_id),
    SQL_FIELD(ADMIT, row.id, record_key),
    SQL_FIELD(ADMIT, row.fp, fingerprint),
    SQL_FIELD(ADMIT, row.source, source),
    SQL_FIELD(ADMIT, row.type, type),
    SQL_PROGRESS(ADMIT, row.progress),
    SQL_FIELD(ADMIT, row.order_key, order_key),
    SQL_FIELD(ADMIT, row.version, version),
    SQL_FIELD(ADMIT, row.message_time_us, message_time),
    SQL_AT(time_beside, time_beside),
    SQL_LEAN(status, progress.state),
    SQL_LEAN(attempts, progress.attempts),
    SQL_LEAN(attempts_before, progress.attempts_before),
    SQL_LEAN(retries, progress.retries),
    SQL_LEAN(alone, progress.alone),
    SQL_LEAN(updated_at, updated_us),
    SQL_LEAN(processed_at, progress.processed_us),
    SQL_FIELD(ADMIT, row.received_us, received_at),
    SQL_FIELD(ADMIT, row.updated_us, updated_at),
    SQL_FIELD(ADMIT, row.position, position),
    SQL_AT(headers, kept_headers),
    SQL_AT(payload, kept_payload),
    SQL_FIELD(ADMIT, row.traceparent, traceparent),
};
static const struct sql_field arrival_field[] = {
    {.name = SQL_NAME_arrival, .size = sizeof(int64_t), .low = 1, .high = INT64_MAX, .required = true}};
static const struct sql_field watermark_field[] = {SQL_MUST(ADMIT, watermark_us, watermark, 0, 0)};

/* Damage is reported of the row and is no failure of the call. */
static semel_status report_damage(semel_status status, const struct semel_error *damage, bool *ret_damaged,
                                  struct semel_error *err)
{
    *ret_damaged = status == SEMEL_INVALID;
    if (*ret_damaged)
        return SEMEL_OK;
    if (status != SEMEL_OK && err != NULL)
        *err = *damage;
    return status;
}

/* ---- admit --------------------------------------------------------------------------------------- */

struct admission {
    struct sql *db;
    struct semel_admit_batch *batch;
    struct semel_arena *arena;
    struct args args;
    struct sql_set once; /* of the args */
    char draws[DRAWS_TEXT];
    struct keys keys;
    struct holders holders;
    struct semel_admit **items; /* what is neither inserted nor found yet, in the order of the batch */
    size_t n, n_found;
    bool *marks;                  /* of these: found, or locked */
    struct semel_admit **sources; /* the first item of each source */
    size_t n_sources;
    size_t *by_place; /* index in the batch plus 1; 0: no item has the place */
    size_t n_places;
};

/* The numbers that were drawn, as PostgreSQL writes an array. */
static struct semel_str draws_text(const struct sql_admitted *admitted, char out[DRAWS_TEXT])
{
    size_t n = 0;
    for (size_t i = 0; i < admitted->n_draws; i++)
        n += (size_t)snprintf(out + n, DRAWS_TEXT - n, "%c%" PRId64, i > 0 ? ',' : '{', admitted->draws[i]);
    n += (size_t)snprintf(out + n, DRAWS_TEXT - n, "%s", n > 0 ? "}" : "{}");
    return (struct semel_str){out, n};
}

/* ---- what is expected ---- */

static bool reads_unlocked(const struct sql *db)
{
    return !db->strict && !db->standby && semel__db_needs(db, SQL_inbox_final);
}

static void learn(struct sql *db, const struct semel_admit_batch *batch)
{
    size_t refused = 0;
    for (size_t i = 0; i < batch->n_items; i++)
        refused += !batch->items[i].inserted;
    if (batch->n_items == 0)
        return;
    db->admitted.mostly_old = 2 * refused > batch->n_items;
    if (refused > 0)
        db->admitted.doubtful = DOUBTFUL;
    else if (db->admitted.doubtful > 0)
        db->admitted.doubtful--;
}

/* ---- the watermarks of all sources of the batch ---- */

static semel_status read_watermark(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    const struct admission *a = ctx;
    return semel__db_fill(row, SQL_FIELDS(watermark_field), NULL, a->sources[item], err);
}

static void run_watermarks(struct admission *a)
{
    const struct sql_set *each = SQL_EACH_OF(item_fields, a->sources, a->n_sources);
    for (size_t i = 0; i < a->batch->n_items; i++)
        a->batch->items[i].watermark_us = SEMEL_NONE;
    if (a->db->strict) {
        semel__db_run(a->db, SQL_watermark_lock, &a->once, each, NULL, NULL);
        semel__db_run(a->db, SQL_watermark_put, &a->once, each, NULL, NULL);
    }
    semel__db_run(a->db, a->db->strict ? SQL_watermark_share : SQL_watermark_read, &a->once, each, read_watermark, a);
}

/* From the first item of a source to the others: the items are sorted by it. */
static void spread_watermarks(struct admission *a)
{
    size_t next = 0;
    for (size_t i = 0; i < a->batch->n_items; i++) {
        struct semel_admit *item = &a->batch->items[i];
        if (next < a->n_sources && a->sources[next] == item)
            next++;
        else
            item->watermark_us = a->batch->items[i - 1].watermark_us;
#ifdef SEMEL_MUTANT_NO_WATERMARK
        item->watermark_us = SEMEL_NONE;
#endif
    }
}

/* ---- the first trip ---- */

static void run_locks(struct admission *a)
{
    run_keys(&a->keys, &a->once);
    run_business(a->db, &a->holders, &a->once);
}

static semel_status check_locks(const struct admission *a, struct semel_error *err)
{
    semel_status status = check_keys(&a->keys, err);
    return status == SEMEL_OK ? check_business(&a->holders, err) : status;
}

/* ---- what is new altogether ---- */

/* Completed at the first attempt, and nothing is kept of it but what inbox_new takes. */
static bool plain(const struct semel_row *row, int64_t now_us)
{
    const struct semel_progress *p = &row->progress;
    const bool first = p->state == SEMEL_ROW_COMPLETED && p->attempts == 1 && p->attempts_before == 0 &&
                       p->retries == 0 && !p->alone && p->error_class == SEMEL_CLASS_NONE;
    const bool now = row->received_us == now_us && row->updated_us == now_us && p->processed_us == now_us;
    const bool free = p->due_us == SEMEL_NONE && p->lease_until_us == SEMEL_NONE && p->lease_token == SEMEL_NONE &&
                      !semel__str_given(p->lease_owner);
    return first && now && free && !row->kept && !semel__str_given(p->error_text) && !semel__str_given(p->outcome);
}

static bool likely_new(const struct admission *a)
{
    bool likely = a->n_sources == 1 && a->db->admitted.doubtful == 0 && !a->db->strict &&
                  semel__db_needs(a->db, SQL_inbox_new);
    for (size_t i = 0; likely && i < a->n; i++)
        likely = plain(&a->items[i]->row, a->args.now_us);
    return likely;
}

struct fresh {
    int64_t arrival, watermark_us;
};

static const struct sql_field fresh_fields[] = {
    SQL_MAYBE(struct fresh, arrival, arrival, SQL_PLACES, INT64_MAX - SQL_PLACES),
    SQL_MAYBE(struct fresh, watermark_us, watermark, 0, 0),
};

/* Inserts all items, and leaves none; or inserts none. */
static semel_status insert_new(struct admission *a, struct semel_error *err)
{
    struct sql_admitted *admitted = &a->db->admitted;
    struct fresh fresh = {SEMEL_NONE, SEMEL_NONE};
    struct sql_into into = {SQL_FIELDS(fresh_fields), .items = &fresh, .size = sizeof fresh};
    a->args.source = a->sources[0]->row.source;
    semel__db_start(a->db, "inserting into the inbox");
    run_locks(a);
    semel__db_run(a->db, SQL_inbox_new, &a->once, SQL_EACH_OF(item_fields, a->items, a->n), semel__db_read_item, &into);
    semel_status status = semel__db_flush(a->db, err);
    if (status == SEMEL_OK)
        status = check_locks(a, err);
    if (status == SEMEL_OK && fresh.arrival == SEMEL_NONE)
        admitted->doubtful = DOUBTFUL; /* also where the rest of this attempt fails */
    if (status != SEMEL_OK || fresh.arrival == SEMEL_NONE)
        return status;
    for (size_t i = 0; i < a->n; i++) {
        a->items[i]->inserted = true;
        a->items[i]->row.arrival = fresh.arrival + (int64_t)a->items[i]->place;
    }
    admitted->draws[admitted->n_draws++] = fresh.arrival / SQL_PLACES;
    a->n = 0;
    a->sources[0]->watermark_us = fresh.watermark_us;
    spread_watermarks(a);
    return SEMEL_OK;
}

/* ---- what may be there already ---- */

/* Where the insert has drawn the number, the arrival says which item it was. */
static semel_status read_inserted(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct admission *a = ctx;
    struct sql_admitted *admitted = &a->db->admitted;
    int64_t arrival = SEMEL_NONE;
    semel_status status = semel__db_fill(row, SQL_FIELDS(arrival_field), NULL, &arrival, err);
    struct semel_admit *inserted = a->items[item];
    if (status != SEMEL_OK)
        return status;
    if (arrival != SEMEL_NONE) {
        size_t place = (size_t)(arrival % SQL_PLACES);
        if (place >= a->n_places || a->by_place[place] == 0)
            return semel__db_damage(row, "the sequence of arrivals must give numbers of 1 or more", err);
        inserted = &a->batch->items[a->by_place[place] - 1];
        inserted->row.arrival = arrival;
        if (a->n_found++ == 0) /* it was drawn once */
            admitted->draws[admitted->n_draws++] = arrival / SQL_PLACES;
    }
    inserted->inserted = true;
    return SEMEL_OK;
}

/* locked: the keys are held already. */
static semel_status insert(struct admission *a, bool locked, struct semel_error *err)
{
    semel__db_start(a->db, "inserting into the inbox");
    if (!locked)
        run_locks(a);
    a->n_found = 0;
    if (a->n > 0)
        semel__db_run(a->db, SQL_stream_put, &a->once, SQL_EACH_OF(item_fields, a->sources, a->n_sources), NULL, NULL);
    semel__db_run(a->db, SQL_inbox_insert, &a->once, SQL_EACH_OF(item_fields, a->items, a->n), read_inserted, a);
    if (a->n > 0)
        run_watermarks(a);
    semel_status status = semel__db_flush(a->db, err);
    if (status == SEMEL_OK && !locked)
        status = check_locks(a, err);
    if (status == SEMEL_OK)
        spread_watermarks(a);
#ifdef SEMEL_MUTANT_NO_INSERT
    for (size_t i = 0; i < a->n; i++)
        if (!a->items[i]->inserted) {
            a->items[i]->inserted = true;
            a->items[i]->row.arrival = 1;
        }
#endif
    return status;
}

/* Draws the arrivals of a batch, on a database that has to do so first. */
static semel_status draw(struct admission *a, struct semel_error *err)
{
    int64_t first = SEMEL_NONE;
    struct sql_into into = {SQL_FIELDS(arrival_field), .items = &first, .size = sizeof first};
    if (a->n == 0 || !semel__db_needs(a->db, SQL_draw_arrival))
        return SEMEL_OK;
    semel_status status = semel__db_do(a->db, "drawing a number", SQL_draw_arrival, &a->once, NULL, semel__db_read_item,
                                       &into, err);
    if (status == SEMEL_OK && into.filled == 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "damaged table %s: the row \"arrival\" is missing",
                             a->db->driver->statements[SQL_draw_arrival].table);
    if (status != SEMEL_OK)
        return status;
    if (first < a->db->admitted.first_arrival)
        a->args.first_arrival = a->db->admitted.first_arrival = first;
    for (size_t i = 0; i < a->batch->n_items; i++)
        a->batch->items[i].row.arrival = first + (int64_t)a->batch->items[i].place;
    return SEMEL_OK;
}

/* ---- what is there already ---- */

/* Leaves the items that are neither marked nor inserted. */
static void only_left(struct admission *a)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++)
        if (!a->marks[i] && !a->items[i]->inserted)
            a->items[n++] = a->items[i];
    a->n = n;
    memset(a->marks, 0, n * sizeof(*a->marks));
}

static semel_status read_final(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct admission *a = ctx;
    struct semel_admit *found = a->items[item];
    const struct semel_row key = {.consumer = a->batch->consumer, .source = found->row.source, .id = found->row.id};
    if (a->marks[item])
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "reading the inbox: a row came twice");
    a->marks[item] = true;
    semel_status status = semel__record_final(row, &key, a->arena, &found->found, &found->damage);
    return report_damage(status, &found->damage, &found->damaged, err);
}

/* locks: the keys are not held yet. first: nothing is inserted yet. */
static semel_status find_finals(struct admission *a, bool locks, bool first, struct semel_error *err)
{
    semel__db_start(a->db, "reading the inbox");
    if (locks)
        run_locks(a);
    semel__db_run(a->db, SQL_inbox_final, &a->once, SQL_EACH_OF(item_fields, a->items, a->n), read_final, a);
    if (first)
        run_watermarks(a);
    semel_status status = semel__db_flush(a->db, err);
    if (status == SEMEL_OK && locks)
        status = check_locks(a, err);
    if (status == SEMEL_OK && first)
        spread_watermarks(a);
    only_left(a);
    return status;
}

static semel_status read_found(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct admission *a = ctx;
    struct semel_admit *found = a->items[item];
    semel_status status = semel__record_row(row, a->arena, &found->found, &found->damage);
    status = report_damage(status, &found->damage, &found->damaged, err);
    a->n_found++;
    if (status == SEMEL_OK && !found->damaged && !a->marks[item] && semel__db_needs(a->db, SQL_inbox_lock) &&
        !semel__state_final(found->found.progress.state))
        status = semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a row of the inbox was replaced meanwhile");
    return status;
}

static semel_status find_locked(struct admission *a, struct semel_error *err)
{
    const struct sql_set *each = SQL_EACH_OF(item_fields, a->items, a->n);
    struct sql_noted locked = {a->marks, sizeof(*a->marks), 0, true};
    semel__db_start(a->db, "reading the inbox");
    /* The messages that run now may free these keys when they end. */
    semel__db_run(a->db, SQL_business_lock, &a->once, each, NULL, NULL);
    semel__db_run(a->db, a->db->standby ? SQL_inbox_lock : SQL_inbox_lock_open, &a->once, each, semel__db_read_noted,
                  &locked);
    a->n_found = 0;
    semel__db_run(a->db, SQL_inbox_read, &a->once, each, read_found, a);
    semel_status status = semel__db_flush(a->db, err);
    if (status != SEMEL_OK || a->n_found == a->n)
        return status;
    if (!semel__db_needs(a->db, SQL_inbox_lock)) /* nobody else can have deleted it */
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the inbox refused a row that it does not have");
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "a row of the inbox was deleted meanwhile");
}

/* ---- all of it ---- */

static semel_status admit(struct admission *a, struct semel_error *err)
{
    struct sql *db = a->db;
    const bool look_first = a->n > 0 && db->admitted.mostly_old && reads_unlocked(db);
    const bool try_new = !look_first && likely_new(a);
    semel_status status = try_new ? insert_new(a, err) : SEMEL_OK;
    const bool refused = try_new && status == SEMEL_OK && a->n > 0;
    if (status == SEMEL_OK && (look_first || (refused && reads_unlocked(db))))
        status = find_finals(a, !try_new, true, err);
    if (status == SEMEL_OK && (a->n > 0 || (!look_first && !try_new)))
        status = draw(a, err);
    if (status == SEMEL_OK && (a->n > 0 || (!look_first && !try_new)))
        status = insert(a, look_first || try_new, err);
    only_left(a);
    if (status == SEMEL_OK && a->n > 0 && reads_unlocked(db))
        status = find_finals(a, false, false, err);
    if (status == SEMEL_OK && a->n > 0)
        status = find_locked(a, err);
    if (status == SEMEL_OK)
        learn(db, a->batch);
    return status;
}

static semel_status prepare(struct admission *a, struct semel_error *err)
{
    struct semel_admit_batch *batch = a->batch;
    size_t n = batch->n_items;
    for (size_t i = 0; i < n; i++)
        a->n_places = batch->items[i].place >= a->n_places ? batch->items[i].place + 1 : a->n_places;
    if (n >= SQL_PLACES || a->n_places > SQL_PLACES)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a batch has at most %d places", SQL_PLACES);
    a->args.count = (int64_t)a->n_places;
    a->items = semel__calloc(2 * n + 1, sizeof(*a->items));
    a->marks = semel__calloc(n + 1, sizeof(*a->marks));
    a->by_place = semel__calloc(a->n_places + 1, sizeof(*a->by_place));
    if (a->items == NULL || a->marks == NULL || a->by_place == NULL)
        return semel__fail_memory(err);
    a->n = n;
    a->sources = a->items + n;
    for (size_t i = 0; i < n; i++) {
        struct semel_admit *item = &batch->items[i];
        item->inserted = item->damaged = false;
        a->items[i] = item;
        a->by_place[item->place] = i + 1;
        if (i == 0 || !semel__str_eq(batch->items[i - 1].row.source, item->row.source))
            a->sources[a->n_sources++] = item;
    }
    return SEMEL_OK;
}

semel_status semel__record_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct admission a = {.db = db, .batch = batch, .arena = arena};
    a.args = (struct args){.consumer = batch->consumer,
                           .draws = draws_text(&db->admitted, a.draws),
                           .now_us = batch->now_us,
                           .first_arrival = db->admitted.first_arrival,
                           .with_payload = true};
    a.once = *SQL_ONE(args_fields, &a.args);
    a.keys = (struct keys){.db = db, .keys = batch->keys, .n = batch->n_keys, .arena = arena, .patient = true};
    a.holders = (struct holders){.business = batch->business, .n = batch->n_business, .arena = arena};
    if (db->admitted.n_draws >= SQL_DRAWS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "more than %d batches in one transaction",
                           SQL_DRAWS_MAX);
    semel_status status = prepare(&a, err);
    if (status == SEMEL_OK)
        status = admit(&a, err);
    semel__free(a.items);
    semel__free(a.marks);
    semel__free(a.by_place);
    return status;
}

/* ---- fetch --------------------------------------------------------------------------------------- */

struct fetching {
    struct semel_fetch_batch *batch;
    struct semel_arena *arena;
    bool *locked;
    struct sql_noted noted; /* of these */
    bool locks;             /* a row that was not locked is somebody else's, or came after the lock: it is not there */
};

static const struct sql_field fetched_fields[] = {
    SQL_FIELD(struct semel_fetched, source, source),
    SQL_FIELD(struct semel_fetched, id, message_id),
    SQL_FIELD(struct semel_fetched, id, record_key),
};

static semel_status read_fetched(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct fetching *f = ctx;
    struct semel_fetched *fetched = &f->batch->items[item];
    if (f->locks && !f->locked[item])
        return SEMEL_OK;
    fetched->present = true;
    semel_status status = semel__record_row(row, f->arena, &fetched->row, &fetched->damage);
    return report_damage(status, &fetched->damage, &fetched->damaged, err);
}

static void run_fetch(struct sql *db, struct fetching *f, const struct sql_set *once, const struct semel_fetched **free)
{
    struct semel_fetch_batch *batch = f->batch;
    const struct sql_set *each = SQL_EACH(fetched_fields, batch->items, batch->n_items);
    size_t n = 0;
    for (size_t i = 0; i < batch->n_items; i++) {
        batch->items[i].present = batch->items[i].damaged = false;
        if (batch->items[i].frees)
            free[n++] = &batch->items[i];
    }
    semel__db_run(db, SQL_business_lock, once, SQL_EACH_OF(fetched_fields, free, n), NULL, NULL);
    semel__db_run(db, batch->impatient ? SQL_inbox_lock_free : SQL_inbox_lock, once, each, semel__db_read_noted,
                  &f->noted);
    semel__db_run(db, SQL_inbox_read, once, each, read_fetched, f);
}

static semel_status fetch(struct sql *db, struct fetching *f, const struct semel_fetched **free,
                          struct semel_error *err)
{
    struct semel_fetch_batch *batch = f->batch;
    char draws[DRAWS_TEXT];
    const struct args args = {.consumer = batch->consumer,
                              .draws = draws_text(&db->admitted, draws),
                              .now_us = batch->now_us,
                              .first_arrival = db->admitted.first_arrival,
                              .with_payload = !batch->bare};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    struct keys keys = {
        .db = db, .keys = batch->keys, .n = batch->n_keys, .arena = f->arena, .patient = !batch->impatient};
    struct holders holders = {.business = batch->business, .n = batch->n_business, .arena = f->arena};
    semel__db_start(db, "reading the inbox");
    run_keys(&keys, once);
    if (holders.n > 0) { /* whoever is taking a key at the moment is not waited for */
        semel__db_run(db, SQL_locks_impatient, NULL, NULL, NULL, NULL);
        run_business(db, &holders, once);
        semel__db_run(db, SQL_locks_patient, NULL, NULL, NULL, NULL);
    }
    run_fetch(db, f, once, free);
    semel_status status = semel__db_flush(db, err);
    if (status == SEMEL_OK)
        status = check_keys(&keys, err);
    return status == SEMEL_OK ? check_business(&holders, err) : status;
}

semel_status semel__record_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                                 struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct fetching f = {.batch = batch,
                         .arena = arena,
                         .locked = semel__calloc(batch->n_items + 1, sizeof(*f.locked)),
                         .locks = batch->impatient && semel__db_needs(db, SQL_inbox_lock_free)};
    const struct semel_fetched **free = semel__calloc(batch->n_items + 1, sizeof(*free));
    semel_status status = SEMEL_OK;
    f.noted = (struct sql_noted){f.locked, sizeof(*f.locked), 0, true};
    if (f.locked == NULL || free == NULL)
        status = semel__fail_memory(err);
    else
        status = fetch(db, &f, free, err);
    semel__free(f.locked);
    semel__free(free);
    return status;
}

semel_status semel_query_rows(struct semel_store *store, struct semel_str consumer, struct semel_fetched *items,
                              size_t n, struct semel_arena *arena, struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    struct semel_fetch_batch batch = {.consumer = consumer, .items = items, .n_items = n};
    struct fetching f = {.batch = &batch, .arena = arena};
    const struct args args = {.consumer = consumer};
    if (db == NULL)
        return SEMEL_INVALID;
    for (size_t i = 0; i < n; i++)
        items[i].present = items[i].damaged = false;
    return semel__db_do(db, "reading the inbox", SQL_inbox_read, SQL_ONE(args_fields, &args),
                        SQL_EACH(fetched_fields, items, n), read_fetched, &f, err);
}
