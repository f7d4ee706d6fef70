/* SPDX-License-Identifier: MIT
 *
 * mem_look.c: scans, sources, purge, outbox and audit of the in-memory store, and what tests look at.
 *
 * What it is: the operations that read many rows or have nothing to do with order. What it is not: indexed; a scan
 * walks the unfinished rows of its consumer, SCAN_ALL, sources and purge walk all rows.
 *
 * Invariants: a handle sees its own open transaction and, of another's, only what was there before it. The walk sees
 * each row once: those in the table that the other's transaction did not write, and those that it replaced.
 */
#include "store/mem_private.h"

#include <stdlib.h>

#include "base/ids.h"

static struct mem_store *self(struct semel_store *store)
{
    return (struct mem_store *)store;
}

/* ---- walking what a handle may see -------------------------------------------------------------------- */

struct haul {
    const struct mem_store *store;
    const struct semel_scan *scan;
    const struct mem_consumer *consumer;
    const struct mem_row **rows;
    size_t n, cap;
    bool failed;
};

static bool still(const struct semel_row *row)
{
    return row->live.state == SEMEL_STATE_WAITING && row->live.due_us == SEMEL_NONE;
}

static bool matches(const struct haul *haul, const struct mem_row *row)
{
    const struct semel_scan *scan = haul->scan;
    const struct semel_live *live = &row->row.live;

    if (scan->kind != SEMEL_SCAN_TOKEN && row->rec.key.consumer != haul->consumer)
        return false;
    switch (scan->kind) {
    case SEMEL_SCAN_DUE:
        return (live->state == SEMEL_STATE_FAILED || live->state == SEMEL_STATE_WAITING) &&
               live->due_us != SEMEL_NONE && live->due_us <= scan->now_us && (!scan->kept || row->row.kept);
    case SEMEL_SCAN_EXPIRED:
        return live->state == SEMEL_STATE_PROCESSING && live->lease_until_us < scan->now_us;
    case SEMEL_SCAN_TOKEN:
        return live->lease_token != SEMEL_NONE && live->lease_token == scan->token;
    case SEMEL_SCAN_KEY:
        return semel__live_in_order(live) && semel__str_eq(row->row.order_key, scan->order_key);
    case SEMEL_SCAN_STILL:
        if (!semel__str_given(scan->order_key))
            return still(&row->row) && row->row.kept && (scan->any_key || !semel__str_given(row->row.order_key));
        return semel__live_in_order(live) && semel__str_given(row->row.order_key) &&
               semel__str_cmp(row->row.order_key, scan->order_key) > 0;
    case SEMEL_SCAN_ALL:
        return row->row.arrival > scan->after_arrival &&
               (scan->states == 0 || (scan->states >> live->state & 1) != 0) &&
               (!semel__str_given(scan->order_key) || semel__str_eq(row->row.order_key, scan->order_key)) &&
               (!semel__str_given(scan->type) || semel__str_eq(row->row.type, scan->type));
    }
    return false;
}

static void consider(struct haul *haul, const struct mem_row *row)
{
    if (haul->failed || !matches(haul, row))
        return;
    if (haul->n == haul->cap) {
        size_t cap = haul->cap > 0 ? haul->cap * 2 : 32;
        const struct mem_row **rows = semel__realloc(haul->rows, cap, sizeof(const struct mem_row *));
        if (rows == NULL) {
            haul->failed = true;
            return;
        }
        haul->rows = rows;
        haul->cap = cap;
    }
    haul->rows[haul->n++] = row;
}

static void walk(struct haul *haul)
{
    struct semel_mem_db *db = haul->store->db;
    const bool foreign = db->writer != NULL && db->writer != haul->store;

    if (haul->scan->kind == SEMEL_SCAN_ALL) {
        for (struct mem_rec *rec = NULL; (rec = semel__mem_next(db, MEM_ROW, rec)) != NULL;)
            if (!foreign || rec->tx != db->tx)
                consider(haul, (struct mem_row *)rec);
    } else {
        for (const struct mem_consumer *consumer = db->consumers; consumer != NULL; consumer = consumer->next)
            for (struct mem_row *row = consumer->unfinished; row != NULL; row = row->next)
                if (!foreign || row->rec.tx != db->tx)
                    consider(haul, row);
    }
    for (size_t i = 0; foreign && i < db->n_undo; i++)
        if (db->undo[i].kind == MEM_ROW && db->undo[i].was != NULL && db->undo[i].was->tx != db->tx)
            consider(haul, (struct mem_row *)db->undo[i].was);
}

/* ---- scan --------------------------------------------------------------------------------------------- */

static int cmp_int64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static const struct semel_row *row_at(const void *p)
{
    return &(*(const struct mem_row *const *)p)->row;
}

static int cmp_arrival(const void *a, const void *b)
{
    return cmp_int64(row_at(a)->arrival, row_at(b)->arrival);
}

static int cmp_due(const void *a, const void *b)
{
    int cmp = cmp_int64(row_at(a)->live.due_us, row_at(b)->live.due_us);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_lease(const void *a, const void *b)
{
    int cmp = cmp_int64(row_at(a)->live.lease_until_us, row_at(b)->live.lease_until_us);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_version(const void *a, const void *b)
{
    int cmp = cmp_int64(row_at(a)->version, row_at(b)->version);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_key(const void *a, const void *b)
{
    int cmp = semel__str_cmp(row_at(a)->order_key, row_at(b)->order_key);
    return cmp != 0 ? cmp : cmp_arrival(a, b);
}

static int cmp_key_version(const void *a, const void *b)
{
    int cmp = semel__str_cmp(row_at(a)->order_key, row_at(b)->order_key);
    return cmp != 0 ? cmp : cmp_version(a, b);
}

/* Of rows that are sorted by key: the first of each key of which one waits without a due time. */
static void keep_heads(struct haul *haul)
{
    size_t kept = 0;
    for (size_t i = 0, end; i < haul->n; i = end) {
        bool wanted = false;
        for (end = i; end < haul->n && semel__str_eq(haul->rows[end]->row.order_key, haul->rows[i]->row.order_key);
             end++)
            wanted |= still(&haul->rows[end]->row);
        if (wanted)
            haul->rows[kept++] = haul->rows[i];
    }
    haul->n = kept;
}

static int (*order_of(const struct semel_scan *scan))(const void *, const void *)
{
    switch (scan->kind) {
    case SEMEL_SCAN_DUE:
        return cmp_due;
    case SEMEL_SCAN_EXPIRED:
        return cmp_lease;
    case SEMEL_SCAN_KEY:
        return scan->by_version ? cmp_version : cmp_arrival;
    case SEMEL_SCAN_STILL:
        return scan->by_version ? cmp_key_version : cmp_key;
    case SEMEL_SCAN_TOKEN:
    case SEMEL_SCAN_ALL:
        break;
    }
    return cmp_arrival;
}

static semel_status copy_haul(const struct haul *haul, struct semel_arena *arena, struct semel_row **ret_rows,
                              size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    const size_t max = haul->n < haul->scan->max ? haul->n : haul->scan->max;
    struct semel_row *rows = semel__arena_alloc(arena, max, sizeof *rows);
    size_t n = 0, damaged = 0;

    if (rows == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < haul->n && n < max; i++) {
        if (semel__row_check(&haul->rows[i]->row, NULL) != SEMEL_OK)
            damaged++;
        else if (!semel__mem_row_copy(arena, &haul->rows[i]->row, haul->scan->with_payload, &rows[n]) ||
                 !semel__arena_copy(arena, haul->rows[i]->rec.key.consumer->name, &rows[n++].consumer))
            return semel__fail_memory(err);
    }
    *ret_rows = rows;
    *ret_n = n;
    *ret_damaged = damaged;
    return SEMEL_OK;
}

semel_status semel__mem_scan(struct semel_store *store, const struct semel_scan *scan, struct semel_arena *arena,
                             struct semel_row **ret_rows, size_t *ret_n, size_t *ret_damaged, struct semel_error *err)
{
    struct haul haul = {.store = self(store), .scan = scan};
    semel_status status = semel__mem_enter(self(store), "scan", false, err);

    if (status != SEMEL_OK)
        return status;
    haul.consumer = semel__mem_consumer(self(store)->db, scan->consumer);
    walk(&haul);
    if (haul.n > 1)
        qsort(haul.rows, haul.n, sizeof(const struct mem_row *), order_of(scan));
    if (scan->kind == SEMEL_SCAN_STILL && semel__str_given(scan->order_key))
        keep_heads(&haul);
    status = haul.failed ? semel__fail_memory(err) : copy_haul(&haul, arena, ret_rows, ret_n, ret_damaged, err);
    semel__free(haul.rows);
    return status;
}

static int cmp_source(const void *a, const void *b)
{
    return semel__str_cmp(row_at(a)->source, row_at(b)->source);
}

semel_status semel__mem_sources(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                struct semel_str **ret_sources, size_t *ret_n, struct semel_error *err)
{
    const struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .after_arrival = INT64_MIN};
    struct haul haul = {.store = self(store), .scan = &all};
    semel_status status = semel__mem_enter(self(store), "sources", false, err);
    struct semel_str *sources = NULL;
    size_t n = 0;

    if (status != SEMEL_OK)
        return status;
    haul.consumer = semel__mem_consumer(self(store)->db, consumer);
    walk(&haul);
    if (haul.n > 1)
        qsort(haul.rows, haul.n, sizeof(const struct mem_row *), cmp_source);
    for (size_t i = 0; i < haul.n; i++)
        if (n == 0 || cmp_source(&haul.rows[n - 1], &haul.rows[i]) != 0)
            haul.rows[n++] = haul.rows[i];
    sources = haul.failed ? NULL : semel__arena_alloc(arena, n, sizeof *sources);
    for (size_t i = 0; sources != NULL && i < n; i++)
        if (!semel__arena_copy(arena, haul.rows[i]->row.source, &sources[i]))
            sources = NULL;
    semel__free(haul.rows);
    if (sources == NULL)
        return semel__fail_memory(err);
    *ret_sources = sources;
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- watermark and purge ------------------------------------------------------------------------------ */

semel_status semel__mem_raise(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t watermark_us, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    struct mem_watermark proto = {.source = source, .watermark_us = watermark_us};
    struct mem_watermark *stored, *image;
    semel_status status = semel__mem_enter(self(store), "watermark", true, err);

    if (status != SEMEL_OK)
        return status;
    proto.rec.key.consumer = semel__mem_consumer_make(db, consumer);
    if (proto.rec.key.consumer == NULL)
        return semel__fail_memory(err);
    stored = semel__mem_find(db, MEM_WATERMARK, proto.rec.key.consumer, source, MEM_NO_STR, MEM_NO_STR);
    if (stored != NULL && stored->watermark_us >= watermark_us)
        return SEMEL_OK;
    image = semel__mem_image(MEM_WATERMARK, &proto);
    if (image == NULL || !semel__mem_put(db, MEM_WATERMARK, stored, image))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* Its end and its message lie before `before_us`, and the message before `watermark_us` too. */
static bool purgeable(const struct semel_row *row, int64_t watermark_us, int64_t before_us)
{
    if (!semel__state_final(row->live.state) || row->live.processed_us >= before_us)
        return false;
    return row->message_time_us == SEMEL_NONE ||
           (row->message_time_us < before_us && row->message_time_us < watermark_us);
}

semel_status semel__mem_aged(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                             int64_t before_us, size_t max, size_t *ret_n, int64_t *ret_latest_us,
                             struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "aged", true, err);
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);

    if (status != SEMEL_OK)
        return status;
    *ret_n = 0;
    *ret_latest_us = SEMEL_NONE;
    for (struct mem_rec *rec = NULL; *ret_n < max && (rec = semel__mem_next(db, MEM_ROW, rec)) != NULL;) {
        const struct semel_row *row = &((struct mem_row *)rec)->row;
        if (rec->key.consumer != known || !semel__str_eq(rec->key.part[0], source) ||
            !purgeable(row, INT64_MAX, before_us))
            continue;
        ++*ret_n;
        if (*ret_latest_us == SEMEL_NONE || row->message_time_us > *ret_latest_us)
            *ret_latest_us = row->message_time_us;
    }
    return SEMEL_OK;
}

static bool delete_row(struct semel_mem_db *db, struct mem_rec *rec)
{
    struct mem_rec *attempt;

    while ((attempt = semel__mem_side_first(db, MEM_ATTEMPT, rec->key.consumer, rec->key.part[0], rec->key.part[1])) !=
           NULL)
        if (!semel__mem_put(db, MEM_ATTEMPT, attempt, NULL))
            return false;
    return semel__mem_put(db, MEM_ROW, rec, NULL);
}

semel_status semel__mem_purge(struct semel_store *store, struct semel_str consumer, struct semel_str source,
                              int64_t before_us, size_t max, size_t *ret_deleted, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "purge", true, err);
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);
    const int64_t watermark_us = semel__mem_watermark(db, consumer, source);
    const size_t mark = db->n_undo;
    size_t deleted = 0;

    if (status != SEMEL_OK)
        return status;
    for (struct mem_rec *rec = semel__mem_next(db, MEM_ROW, NULL), *next; rec != NULL && deleted < max; rec = next) {
        next = semel__mem_next(db, MEM_ROW, rec);
        if (rec->key.consumer != known || !semel__str_eq(rec->key.part[0], source) ||
            !purgeable(&((struct mem_row *)rec)->row, watermark_us, before_us))
            continue;
        if (!delete_row(db, rec)) {
            semel__mem_undo_to(db, mark);
            return semel__fail_memory(err);
        }
        deleted++;
    }
    *ret_deleted = deleted;
    return SEMEL_OK;
}

/* A key is stored here only with a version, or with skipped ones, which are kept for ever. */
semel_status semel__mem_purge_side(struct semel_store *store, struct semel_str consumer, int64_t before_us, size_t max,
                                   char place[SEMEL_ID_MAX + 1], struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "purge_side", true, err);
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);
    const size_t mark = db->n_undo;
    size_t deleted = 0;

    (void)place;
    if (status != SEMEL_OK)
        return status;
    for (struct mem_rec *rec = semel__mem_next(db, MEM_CONFLICT, NULL), *next; rec != NULL && deleted < max;
         rec = next) {
        next = semel__mem_next(db, MEM_CONFLICT, rec);
        if (rec->key.consumer != known || ((struct mem_conflict *)rec)->conflict.last_us >= before_us)
            continue;
        if (!semel__mem_put(db, MEM_CONFLICT, rec, NULL)) {
            semel__mem_undo_to(db, mark);
            return semel__fail_memory(err);
        }
        deleted++;
    }
    return SEMEL_OK;
}

semel_status semel__mem_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret_n,
                               struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "parked", true, err);
    if (status != SEMEL_OK)
        return status;
    const struct mem_consumer *known = semel__mem_consumer(self(store)->db, consumer);
    int64_t n = known != NULL ? known->waiting : 0;
    *ret_n = n < max ? n : max;
    return SEMEL_OK;
}

semel_status semel__mem_large(struct semel_store *store, struct semel_str consumer, size_t bytes, int64_t max,
                              int64_t *ret_n, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "large", true, err);
    if (status != SEMEL_OK)
        return status;
    struct semel_mem_db *db = self(store)->db;
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);
    int64_t n = 0;
    for (struct mem_rec *rec = NULL; n < max && (rec = semel__mem_next(db, MEM_ROW, rec)) != NULL;) {
        const struct semel_row *row = &((struct mem_row *)rec)->row;
        bool held = row->live.state == SEMEL_STATE_DEAD || row->live.state == SEMEL_STATE_QUARANTINED;
        n += held && rec->key.consumer == known && row->kept && row->payload.n > bytes;
    }
    *ret_n = n;
    return SEMEL_OK;
}

semel_status semel__mem_purge_business(struct semel_store *store, struct semel_str consumer, int64_t now_us, size_t max,
                                       size_t *ret_deleted, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "purge_business", true, err);
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);
    const size_t mark = db->n_undo;
    size_t deleted = 0;

    if (status != SEMEL_OK)
        return status;
    for (struct mem_rec *rec = semel__mem_next(db, MEM_BUSINESS, NULL), *next; rec != NULL && deleted < max;
         rec = next) {
        const struct mem_business *held = (struct mem_business *)rec;
        next = semel__mem_next(db, MEM_BUSINESS, rec);
        if (rec->key.consumer != known || held->expires_us == SEMEL_NONE || held->expires_us > now_us)
            continue;
        if (!semel__mem_put(db, MEM_BUSINESS, rec, NULL)) {
            semel__mem_undo_to(db, mark);
            return semel__fail_memory(err);
        }
        deleted++;
    }
    *ret_deleted = deleted;
    return SEMEL_OK;
}

/* ---- outbox and audit --------------------------------------------------------------------------------- */

static struct semel_random *rng_of(struct mem_store *store)
{
    if (store->base.options.rng != NULL)
        return store->base.options.rng;
    if (!store->rng_ready)
        store->rng_ready = semel__random_seed_os(&store->rng);
    return store->rng_ready ? &store->rng : NULL;
}

semel_status semel__mem_outbox_put(struct semel_store *store, const struct semel__event *event, int64_t now_us,
                                   char ret_id[37], struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    struct mem_event proto = {.event = {.event = *event, .created_us = now_us}};
    struct mem_event *image;
    char id[SEMEL_UUID_TEXT];
    semel_status status = semel__mem_enter(self(store), "outbox_put", true, err);

    if (status != SEMEL_OK)
        return status;
    if (!semel__str_given(event->id)) {
        struct semel_random *rng = rng_of(self(store));
        if (rng == NULL)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "mem: no randomness for a new id");
        semel__uuid7_new(now_us, rng, id);
        proto.event.event.id = semel__str(id);
    } else if (!semel__uuid_valid(event->id)) {
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the event's id is not a UUID");
    }
    if (semel__mem_find(db, MEM_EVENT, NULL, proto.event.event.id, MEM_NO_STR, MEM_NO_STR) != NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "an event with this id is in the outbox already");
    proto.event.seq = ++db->last_seq;
    image = semel__mem_image(MEM_EVENT, &proto);
    if (image == NULL || !semel__mem_put(db, MEM_EVENT, NULL, image))
        return semel__fail_memory(err);
    memcpy(ret_id, image->event.event.id.p, SEMEL_UUID_TEXT);
    return SEMEL_OK;
}

semel_status semel__mem_audit(struct semel_store *store, const struct semel_audit *line, int64_t now_us,
                              struct semel_error *err)
{
    const struct semel_mem_audit audit = {.line = *line, .at_us = now_us};
    semel_status status = semel__mem_enter(self(store), "audit", true, err);

    if (status == SEMEL_OK && !semel__mem_append(self(store)->db, MEM_AUDIT, &audit))
        return semel__fail_memory(err);
    return status;
}

/* ---- what tests look at ------------------------------------------------------------------------------- */

size_t semel__mem_effects(struct semel_mem_db *db, const struct semel_mem_effect **ret)
{
    if (ret != NULL)
        *ret = (const void *)db->effects.items;
    return db->effects.n;
}

size_t semel__mem_audits(struct semel_mem_db *db, const struct semel_mem_audit **ret)
{
    if (ret != NULL)
        *ret = (const void *)db->audits.items;
    return db->audits.n;
}

size_t semel__mem_rows(struct semel_mem_db *db, semel_mem_row_fn fn, void *ctx)
{
    for (struct mem_rec *rec = NULL; fn != NULL && (rec = semel__mem_next(db, MEM_ROW, rec)) != NULL;)
        fn(ctx, rec->key.consumer->name, &((struct mem_row *)rec)->row);
    return db->tables[MEM_ROW].n;
}

size_t semel__mem_attempts(struct semel_mem_db *db, semel_mem_attempt_fn fn, void *ctx)
{
    for (struct mem_rec *rec = NULL; fn != NULL && (rec = semel__mem_next(db, MEM_ATTEMPT, rec)) != NULL;)
        fn(ctx, &((struct mem_attempt *)rec)->attempt);
    return db->tables[MEM_ATTEMPT].n;
}

size_t semel__mem_conflicts(struct semel_mem_db *db, semel_mem_conflict_fn fn, void *ctx)
{
    for (struct mem_rec *rec = NULL; fn != NULL && (rec = semel__mem_next(db, MEM_CONFLICT, rec)) != NULL;)
        fn(ctx, &((struct mem_conflict *)rec)->conflict);
    return db->tables[MEM_CONFLICT].n;
}

size_t semel__mem_events(struct semel_mem_db *db, semel_mem_event_fn fn, void *ctx)
{
    for (struct mem_rec *rec = NULL; fn != NULL && (rec = semel__mem_next(db, MEM_EVENT, rec)) != NULL;)
        fn(ctx, &((struct mem_event *)rec)->event);
    return db->tables[MEM_EVENT].n;
}

int64_t semel__mem_watermark(struct semel_mem_db *db, struct semel_str consumer, struct semel_str source)
{
    const struct mem_watermark *stored = semel__mem_find(db, MEM_WATERMARK, semel__mem_consumer(db, consumer), source,
                                                         MEM_NO_STR, MEM_NO_STR);

    return stored != NULL ? stored->watermark_us : SEMEL_NONE;
}

size_t semel__mem_business_count(struct semel_mem_db *db)
{
    return db->tables[MEM_BUSINESS].n;
}

bool semel__mem_damage(struct semel_mem_db *db, struct semel_str consumer, struct semel_str source, struct semel_str id)
{
    struct mem_row *row = semel__mem_find(db, MEM_ROW, semel__mem_consumer(db, consumer), source, id, MEM_NO_STR);

    if (row != NULL)
        row->row.live.attempts = -1;
    return row != NULL;
}
