/* SPDX-License-Identifier: MIT
 *
 * mem_table.c: images, hash tables and the undo log of the in-memory store.
 *
 * What it is: the database itself, which knows nothing of messages but which fields of a record are strings and which
 * make its keys; and what tests look at in it. What it is not: a general container, or a driver (mem_store.c).
 *
 * Invariants: every function that can fail allocates before it changes anything; undoing needs no memory. The hash
 * covers contents only, never an address, so that a run can be repeated exactly.
 */
#include "support/mem_table.h"

#include <assert.h>

/* ---- keys --------------------------------------------------------------------------------------------- */

static uint64_t hash_str(uint64_t hash, struct semel_str s)
{
    for (size_t i = 0; i < s.n; i++)
        hash = (hash ^ (unsigned char)s.p[i]) * UINT64_C(0x100000001b3);
    return (hash ^ (s.n + (s.p != NULL))) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t hash_key(const struct mem_key *key)
{
    uint64_t hash = key->consumer != NULL ? key->consumer->hash : 1;

    for (size_t i = 0; i < 3; i++)
        hash = hash_str(hash, key->part[i]);
    return hash ^ (hash >> 32);
}

static bool key_eq(const struct mem_key *a, const struct mem_key *b)
{
    return a->consumer == b->consumer && semel__str_eq(a->part[0], b->part[0]) &&
           semel__str_eq(a->part[1], b->part[1]) && semel__str_eq(a->part[2], b->part[2]);
}

static void name_row(struct mem_rec *rec)
{
    const struct semel_row *row = &((struct mem_row *)rec)->row;

    rec->key.part[0] = row->source;
    rec->key.part[1] = row->id;
    rec->has_side = semel__str_given(row->order_key) && semel__progress_in_order(&row->progress);
    rec->side.part[0] = row->order_key;
}

static void name_order_key(struct mem_rec *rec)
{
    rec->key.part[0] = ((struct mem_order_key *)rec)->key;
}

static void name_business(struct mem_rec *rec)
{
    const struct mem_business *business = (struct mem_business *)rec;

    rec->key.part[0] = business->key;
    rec->has_side = true;
    rec->side.part[0] = business->source;
    rec->side.part[1] = business->id;
}

static void name_watermark(struct mem_rec *rec)
{
    rec->key.part[0] = ((struct mem_watermark *)rec)->source;
}

/* A fingerprint is compared as its kind, its length and its bytes, which stand side by side. */
static void name_conflict(struct mem_rec *rec)
{
    struct semel_mem_conflict *conflict = &((struct mem_conflict *)rec)->conflict;

    rec->key.part[0] = conflict->source;
    rec->key.part[1] = conflict->id;
    rec->key.part[2] = (struct semel_str){(const char *)&conflict->fp, 2 + (size_t)conflict->fp.n};
}

static void name_attempt(struct mem_rec *rec)
{
    struct semel_mem_attempt *attempt = &((struct mem_attempt *)rec)->attempt;

    rec->key.part[0] = attempt->source;
    rec->key.part[1] = attempt->id;
    rec->key.part[2] = (struct semel_str){(const char *)&attempt->seq, sizeof attempt->seq};
    rec->has_side = true;
    rec->side.part[0] = attempt->source;
    rec->side.part[1] = attempt->id;
}

static void name_event(struct mem_rec *rec)
{
    rec->key.part[0] = ((struct mem_event *)rec)->event.event.id;
}

static void name_settings(struct mem_rec *rec)
{
    (void)rec; /* the consumer alone is the key */
}

static void name_position(struct mem_rec *rec)
{
    struct semel_position *position = &((struct mem_position *)rec)->position;

    rec->key.part[0] = position->source;
    rec->key.part[1] = (struct semel_str){(const char *)&position->partition, sizeof position->partition};
}

/* ---- images ------------------------------------------------------------------------------------------- */

#define ROW(f) offsetof(struct mem_row, row.f)
#define ATTEMPT(f) offsetof(struct mem_attempt, attempt.f)
#define CONFLICT(f) offsetof(struct mem_conflict, conflict.f)
#define EVENT(f) offsetof(struct mem_event, event.event.f)
#define AUDIT(f) offsetof(struct semel_mem_audit, line.f)

static const size_t row_strs[] = {ROW(source),
                                  ROW(id),
                                  ROW(type),
                                  ROW(order_key),
                                  ROW(position),
                                  ROW(headers),
                                  ROW(payload),
                                  ROW(traceparent),
                                  ROW(progress.lease_owner),
                                  ROW(progress.error_text),
                                  ROW(progress.outcome),
                                  ROW(wants[0]),
                                  ROW(wants[1]),
                                  ROW(wants[2]),
                                  ROW(wants[3])};
_Static_assert(SEMEL_BUSINESS_MAX == 4, "each wish is one string of the row");
static const size_t order_key_strs[] = {offsetof(struct mem_order_key, key), offsetof(struct mem_order_key, skipped)};
static const size_t business_strs[] = {offsetof(struct mem_business, key), offsetof(struct mem_business, source),
                                       offsetof(struct mem_business, id)};
static const size_t watermark_strs[] = {offsetof(struct mem_watermark, source)};
static const size_t conflict_strs[] = {CONFLICT(source), CONFLICT(id), CONFLICT(payload), CONFLICT(headers)};
static const size_t attempt_strs[] = {ATTEMPT(source), ATTEMPT(id), ATTEMPT(who), ATTEMPT(text)};
static const size_t event_strs[] = {EVENT(id),      EVENT(aggregatetype), EVENT(aggregateid), EVENT(type),
                                    EVENT(payload), EVENT(headers),       EVENT(destination), EVENT(traceparent)};
static const size_t settings_strs[] = {offsetof(struct mem_settings, stored.settings),
                                       offsetof(struct mem_settings, stored.by.host),
                                       offsetof(struct mem_settings, stored.by.file)};
static const size_t position_strs[] = {offsetof(struct mem_position, position.source)};
static const size_t effect_strs[] = {offsetof(struct semel_mem_effect, key), offsetof(struct semel_mem_effect, value)};
static const size_t audit_strs[] = {AUDIT(consumer), AUDIT(source), AUDIT(id), AUDIT(who), AUDIT(what), AUDIT(reason)};

#define STRS(array) array, sizeof(array) / sizeof(array)[0]

static const struct {
    size_t size;
    const size_t *strs; /* where its strings are */
    size_t n_strs;
    void (*name)(struct mem_rec *rec); /* points the keys at them; NULL for an item of a list */
} kinds[MEM_KINDS] = {
    [MEM_ROW] = {sizeof(struct mem_row), STRS(row_strs), name_row},
    [MEM_KEY] = {sizeof(struct mem_order_key), STRS(order_key_strs), name_order_key},
    [MEM_BUSINESS] = {sizeof(struct mem_business), STRS(business_strs), name_business},
    [MEM_WATERMARK] = {sizeof(struct mem_watermark), STRS(watermark_strs), name_watermark},
    [MEM_CONFLICT] = {sizeof(struct mem_conflict), STRS(conflict_strs), name_conflict},
    [MEM_ATTEMPT] = {sizeof(struct mem_attempt), STRS(attempt_strs), name_attempt},
    [MEM_EVENT] = {sizeof(struct mem_event), STRS(event_strs), name_event},
    [MEM_SETTINGS] = {sizeof(struct mem_settings), STRS(settings_strs), name_settings},
    [MEM_POSITION] = {sizeof(struct mem_position), STRS(position_strs), name_position},
    [MEM_EFFECT] = {sizeof(struct semel_mem_effect), STRS(effect_strs), NULL},
    [MEM_AUDIT] = {sizeof(struct semel_mem_audit), STRS(audit_strs), NULL},
};

static void name_rec(enum mem_kind kind, struct mem_rec *rec)
{
    rec->has_side = false;
    kinds[kind].name(rec);
    rec->side.consumer = rec->key.consumer;
    rec->hash = hash_key(&rec->key);
    rec->side_hash = rec->has_side ? hash_key(&rec->side) : 0;
}

/* A copy of `proto` (a struct of that kind, its key's consumer set) with strings of its own and its keys named. */
static void *mem_image(enum mem_kind kind, const void *proto)
{
    size_t total = kinds[kind].size;
    char *image, *at;

    for (size_t i = 0; i < kinds[kind].n_strs; i++) {
        const struct semel_str *s = (const void *)((const char *)proto + kinds[kind].strs[i]);
        if (__builtin_add_overflow(total, s->n + 1, &total)) /* one more: an empty string has an address too */
            return NULL;
    }
    image = semel__alloc(total);
    if (image == NULL)
        return NULL;
    memcpy(image, proto, kinds[kind].size);
    at = image + kinds[kind].size;
    for (size_t i = 0; i < kinds[kind].n_strs; i++) {
        struct semel_str *s = (void *)(image + kinds[kind].strs[i]);
        if (!semel__str_given(*s))
            continue;
        if (s->n > 0)
            memcpy(at, s->p, s->n);
        at[s->n] = '\0';
        s->p = at;
        at += s->n + 1;
    }
    if (kinds[kind].name != NULL)
        name_rec(kind, (struct mem_rec *)(void *)image);
    return image;
}

/* ---- consumers ---------------------------------------------------------------------------------------- */

struct mem_consumer *semel__mem_consumer(struct semel_mem_db *db, struct semel_str name)
{
    struct mem_consumer *consumer = db->consumers;

    while (consumer != NULL && !semel__str_eq(consumer->name, name))
        consumer = consumer->next;
    return consumer;
}

struct mem_consumer *semel__mem_consumer_make(struct semel_mem_db *db, struct semel_str name)
{
    struct mem_consumer *consumer = semel__mem_consumer(db, name);
    size_t size;

    if (consumer != NULL)
        return consumer;
    if (__builtin_add_overflow(sizeof *consumer, name.n, &size))
        return NULL;
    consumer = semel__alloc(size);
    if (consumer == NULL)
        return NULL;
    *consumer = (struct mem_consumer){.next = db->consumers, .hash = hash_str(UINT64_C(0xcbf29ce484222325), name)};
    consumer->name = (struct semel_str){(char *)(consumer + 1), name.n};
    if (name.n > 0)
        memcpy(consumer + 1, name.p, name.n);
    db->consumers = consumer;
    return consumer;
}

/* ---- tables ------------------------------------------------------------------------------------------- */

static bool table_reserve(struct mem_table *table)
{
    size_t n_slots = table->n_slots > 0 ? table->n_slots * 2 : 16;
    struct mem_rec **slots;

    if (table->n < table->n_slots)
        return true;
    slots = semel__calloc(n_slots, 2 * sizeof *slots);
    if (slots == NULL)
        return false;
    for (size_t i = 0; i < table->n_slots; i++) {
        for (struct mem_rec *rec = table->slots[i], *next; rec != NULL; rec = next) {
            struct mem_rec **slot = &slots[rec->hash & (n_slots - 1)];
            struct mem_rec **side = &slots[n_slots + (rec->side_hash & (n_slots - 1))];
            next = rec->next;
            rec->next = *slot;
            *slot = rec;
            if (rec->has_side) {
                rec->side_next = *side;
                *side = rec;
            }
        }
    }
    semel__free(table->slots);
    table->slots = slots;
    table->side = slots + n_slots;
    table->n_slots = n_slots;
    return true;
}

static void attach_row(struct mem_row *row)
{
    struct mem_consumer *consumer = row->rec.key.consumer;

    consumer->rows++;
    if (!semel__state_unfinished(row->row.progress.state))
        return;
    row->prev = NULL;
    row->next = consumer->unfinished;
    if (row->next != NULL)
        row->next->prev = row;
    consumer->unfinished = row;
    if (row->row.progress.state == SEMEL_ROW_WAITING)
        consumer->waiting++;
}

static void detach_row(struct mem_row *row)
{
    struct mem_consumer *consumer = row->rec.key.consumer;

    consumer->rows--;
    if (!semel__state_unfinished(row->row.progress.state))
        return;
    if (row->prev != NULL)
        row->prev->next = row->next;
    else
        consumer->unfinished = row->next;
    if (row->next != NULL)
        row->next->prev = row->prev;
    if (row->row.progress.state == SEMEL_ROW_WAITING)
        consumer->waiting--;
}

static void link_rec(struct semel_mem_db *db, enum mem_kind kind, struct mem_rec *rec)
{
    struct mem_table *table = &db->tables[kind];
    struct mem_rec **slot = &table->slots[rec->hash & (table->n_slots - 1)];
    struct mem_rec **side = &table->side[rec->side_hash & (table->n_slots - 1)];

    rec->next = *slot;
    *slot = rec;
    if (rec->has_side) {
        rec->side_next = *side;
        *side = rec;
    }
    table->n++;
    if (kind == MEM_ROW)
        attach_row((struct mem_row *)rec);
}

static void unlink_rec(struct semel_mem_db *db, enum mem_kind kind, struct mem_rec *rec)
{
    struct mem_table *table = &db->tables[kind];
    struct mem_rec **slot = &table->slots[rec->hash & (table->n_slots - 1)];
    struct mem_rec **side = &table->side[rec->side_hash & (table->n_slots - 1)];

    while (*slot != rec)
        slot = &(*slot)->next;
    *slot = rec->next;
    if (rec->has_side) {
        while (*side != rec)
            side = &(*side)->side_next;
        *side = rec->side_next;
    }
    table->n--;
    if (kind == MEM_ROW)
        detach_row((struct mem_row *)rec);
}

void *semel__mem_find(struct semel_mem_db *db, enum mem_kind kind, struct mem_consumer *consumer, struct semel_str a,
                      struct semel_str b, struct semel_str c)
{
    const struct mem_table *table = &db->tables[kind];
    const struct mem_key key = {consumer, {a, b, c}};
    struct mem_rec *rec;

    if (table->n == 0 || (consumer == NULL && kind != MEM_EVENT))
        return NULL;
    rec = table->slots[hash_key(&key) & (table->n_slots - 1)];
    while (rec != NULL && !key_eq(&rec->key, &key))
        rec = rec->next;
    return rec;
}

struct mem_rec *semel__mem_side_first(struct semel_mem_db *db, enum mem_kind kind, struct mem_consumer *consumer,
                                      struct semel_str a, struct semel_str b)
{
    const struct mem_table *table = &db->tables[kind];
    const struct mem_key key = {consumer, {a, b, MEM_NO_STR}};
    struct mem_rec *rec;

    if (table->n == 0 || consumer == NULL)
        return NULL;
    rec = table->side[hash_key(&key) & (table->n_slots - 1)];
    while (rec != NULL && !key_eq(&rec->side, &key))
        rec = rec->side_next;
    return rec;
}

struct mem_rec *semel__mem_side_next(const struct mem_rec *rec)
{
    struct mem_rec *next = rec->side_next;

    while (next != NULL && !key_eq(&next->side, &rec->side))
        next = next->side_next;
    return next;
}

struct mem_rec *semel__mem_next(const struct semel_mem_db *db, enum mem_kind kind, const struct mem_rec *rec)
{
    const struct mem_table *table = &db->tables[kind];
    size_t slot = 0;

    if (rec != NULL) {
        if (rec->next != NULL)
            return rec->next;
        slot = (rec->hash & (table->n_slots - 1)) + 1;
    }
    while (slot < table->n_slots && table->slots[slot] == NULL)
        slot++;
    return slot < table->n_slots ? table->slots[slot] : NULL;
}

/* ---- changes ------------------------------------------------------------------------------------------ */

static bool undo_reserve(struct semel_mem_db *db)
{
    size_t cap = db->cap_undo > 0 ? db->cap_undo * 2 : 16;
    struct mem_undo *undo;

    if (db->n_undo < db->cap_undo)
        return true;
    undo = semel__realloc(db->undo, cap, sizeof *undo);
    if (undo == NULL)
        return false;
    db->undo = undo;
    db->cap_undo = cap;
    return true;
}

bool semel__mem_put(struct semel_mem_db *db, enum mem_kind kind, void *was, void *is)
{
    struct mem_rec *old = was, *rec = is;

    if (!undo_reserve(db) || (rec != NULL && !table_reserve(&db->tables[kind]))) {
        semel__free(rec);
        return false;
    }
    if (old != NULL)
        unlink_rec(db, kind, old);
    if (rec != NULL) {
        rec->tx = db->tx;
        rec->born = old != NULL ? old->born : db->tx;
        link_rec(db, kind, rec);
    }
    db->undo[db->n_undo++] = (struct mem_undo){kind, old, rec};
    return true;
}

bool semel__mem_write(struct semel_mem_db *db, enum mem_kind kind, void *was, const void *proto)
{
    void *image = mem_image(kind, proto);
    return image != NULL && semel__mem_put(db, kind, was, image);
}

static struct mem_list *list_of(struct semel_mem_db *db, enum mem_kind kind)
{
    return kind == MEM_EFFECT ? &db->effects : &db->audits;
}

bool semel__mem_append(struct semel_mem_db *db, enum mem_kind kind, const void *proto)
{
    struct mem_list *list = list_of(db, kind);
    const size_t size = kinds[kind].size;
    char *image;

    if (!undo_reserve(db))
        return false;
    if (list->n == list->cap) {
        size_t cap = list->cap > 0 ? list->cap * 2 : 16;
        char *items = semel__realloc(list->items, cap, size);
        if (items == NULL)
            return false;
        list->items = items;
        list->cap = cap;
    }
    image = mem_image(kind, proto);
    if (image == NULL)
        return false;
    memcpy(list->items + list->n * size, image, size);
    *(void **)(void *)(list->items + list->n * size) = image; /* `owned` comes first in every item */
    list->n++;
    db->undo[db->n_undo++] = (struct mem_undo){.kind = kind};
    return true;
}

static void list_pop(struct semel_mem_db *db, enum mem_kind kind)
{
    struct mem_list *list = list_of(db, kind);

    list->n--;
    semel__free(*(void **)(void *)(list->items + list->n * kinds[kind].size));
}

void semel__mem_undo_to(struct semel_mem_db *db, size_t mark)
{
    while (db->n_undo > mark) {
        const struct mem_undo undo = db->undo[--db->n_undo];

        if (undo.is != NULL) {
            unlink_rec(db, undo.kind, undo.is);
            semel__free(undo.is);
        }
        if (undo.was != NULL)
            link_rec(db, undo.kind, undo.was);
        if (undo.kind >= MEM_TABLES)
            list_pop(db, undo.kind);
    }
}

void semel__mem_keep(struct semel_mem_db *db)
{
    for (size_t i = 0; i < db->n_undo; i++)
        semel__free(db->undo[i].was);
    db->n_undo = 0;
}

void semel__mem_clear(struct semel_mem_db *db)
{
    semel__mem_undo_to(db, 0);
    for (int kind = 0; kind < MEM_TABLES; kind++) {
        for (struct mem_rec *rec = semel__mem_next(db, kind, NULL), *next; rec != NULL; rec = next) {
            next = semel__mem_next(db, kind, rec);
            semel__free(rec);
        }
        semel__free(db->tables[kind].slots);
    }
    while (db->effects.n > 0)
        list_pop(db, MEM_EFFECT);
    while (db->audits.n > 0)
        list_pop(db, MEM_AUDIT);
    semel__free(db->effects.items);
    semel__free(db->audits.items);
    semel__free(db->undo);
    for (struct mem_consumer *consumer = db->consumers, *next; consumer != NULL; consumer = next) {
        next = consumer->next;
        semel__free(consumer);
    }
}

static bool add_table(struct semel_mem_db *db, struct semel_mem_db *from, enum mem_kind kind)
{
    for (struct mem_rec *rec = NULL; (rec = semel__mem_next(from, kind, rec)) != NULL;) {
        struct mem_consumer *consumer = NULL;
        struct mem_rec *image = mem_image(kind, rec);

        if (rec->key.consumer != NULL)
            consumer = semel__mem_consumer_make(db, rec->key.consumer->name);
        if (image == NULL || (rec->key.consumer != NULL && consumer == NULL) || !table_reserve(&db->tables[kind])) {
            semel__free(image);
            return false;
        }
        image->key.consumer = image->side.consumer = consumer; /* equal names have equal hashes */
        if (kind == MEM_ATTEMPT)
            ((struct mem_attempt *)image)->attempt.consumer = consumer->name;
        if (kind == MEM_CONFLICT)
            ((struct mem_conflict *)image)->conflict.consumer = consumer->name;
        link_rec(db, kind, image);
    }
    return true;
}

static bool add_list(struct semel_mem_db *db, struct semel_mem_db *from, enum mem_kind kind)
{
    const struct mem_list *list = list_of(from, kind);

    for (size_t i = 0; i < list->n; i++)
        if (!semel__mem_append(db, kind, list->items + i * kinds[kind].size))
            return false;
    return true;
}

bool semel__mem_add_all(struct semel_mem_db *db, struct semel_mem_db *from)
{
    bool ok = true;

    for (int kind = 0; ok && kind < MEM_TABLES; kind++)
        ok = add_table(db, from, kind);
    ok = ok && add_list(db, from, MEM_EFFECT) && add_list(db, from, MEM_AUDIT);
    semel__mem_keep(db);
    return ok;
}

/* ---- the database ------------------------------------------------------------------------------------- */

semel_status semel__mem_db_new(struct semel_mem_db **ret, const struct semel_clock *clock)
{
    struct semel_mem_db *db = semel__calloc(1, sizeof *db);

    if (db == NULL)
        return SEMEL_RETRY;
    db->clock = clock != NULL ? clock : &semel__clock_real;
    *ret = db;
    return SEMEL_OK;
}

void semel__mem_db_free(struct semel_mem_db *db)
{
    if (db == NULL)
        return;
    assert(db->handles == 0);
    semel__mem_clear(db);
    semel__free(db);
}

semel_status semel__mem_db_copy(struct semel_mem_db *db, struct semel_mem_db **ret)
{
    if (db->writer != NULL || semel__mem_db_new(ret, db->clock) != SEMEL_OK)
        return SEMEL_RETRY;
    (*ret)->last_arrival = db->last_arrival;
    (*ret)->last_seq = db->last_seq;
    (*ret)->tx = db->tx;
    if (semel__mem_add_all(*ret, db))
        return SEMEL_OK;
    semel__mem_db_free(*ret);
    return SEMEL_RETRY;
}

/* ---- what a handle may see ---------------------------------------------------------------------------- */

bool semel__mem_foreign(const struct mem_store *store)
{
    return store->db->writer != NULL && store->db->writer != store;
}

const struct mem_rec *semel__mem_visible(const struct mem_store *store, enum mem_kind kind, const struct mem_rec *rec)
{
    const struct semel_mem_db *db = store->db;

    if (!semel__mem_foreign(store) || rec->tx != db->tx)
        return rec;
    for (size_t i = 0; i < db->n_undo; i++) {
        const struct mem_rec *was = db->undo[i].was;
        if (db->undo[i].kind == kind && was != NULL && was->tx != db->tx && key_eq(&was->key, &rec->key))
            return was;
    }
    return NULL;
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
        row->row.progress.attempts = -1;
    return row != NULL;
}
