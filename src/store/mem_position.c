/* SPDX-License-Identifier: MIT
 *
 * mem_position.c: positions of sources in the in-memory store.
 *
 * Invariants: a row is never taken away, so that its epoch is never used again; what another handle's open transaction
 * has written is not listed.
 */
#include <stdlib.h>

#include "store/mem_private.h"

static struct mem_store *self(struct semel_store *store)
{
    return (struct mem_store *)store;
}

static struct mem_position *find(struct semel_mem_db *db, struct mem_consumer *consumer,
                                 const struct semel_position *item)
{
    struct semel_str partition = {(const char *)&item->partition, sizeof item->partition};
    return semel__mem_find(db, MEM_POSITION, consumer, item->source, partition, MEM_NO_STR);
}

/* The item as it is to be stored, in the place of `was`. */
static semel_status put(struct semel_mem_db *db, struct mem_consumer *consumer, struct mem_position *was,
                        const struct semel_position *item, int64_t now_us, struct semel_error *err)
{
    struct mem_position proto = {.position = *item};

    proto.rec.key.consumer = consumer;
    proto.position.updated_us = now_us;
    proto.position.fenced = false;
    void *image = semel__mem_image(MEM_POSITION, &proto);
    return image != NULL && semel__mem_put(db, MEM_POSITION, was, image) ? SEMEL_OK : semel__fail_memory(err);
}

/* take, and with `set` an operator's word. */
static semel_status raise_epochs(struct mem_store *store, struct semel_str name, struct semel_position *items, size_t n,
                                 bool set, int64_t now_us, struct semel_error *err)
{
    struct mem_consumer *consumer = semel__mem_consumer_make(store->db, name);
    semel_status status = consumer != NULL ? SEMEL_OK : semel__fail_memory(err);

    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct mem_position *was = find(store->db, consumer, &items[i]);
        if (!set)
            items[i].offset = was != NULL ? was->position.offset : SEMEL_NONE;
        items[i].epoch = was != NULL ? was->position.epoch + 1 : 1;
        status = put(store->db, consumer, was, &items[i], now_us, err);
    }
    return status;
}

semel_status semel__mem_positions_take(struct semel_store *store, struct semel_str consumer,
                                       struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "positions_take", true, err);
    return status == SEMEL_OK ? raise_epochs(self(store), consumer, items, n, false, now_us, err) : status;
}

semel_status semel__mem_positions_set(struct semel_store *store, struct semel_str consumer,
                                      struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "positions_set", true, err);
    return status == SEMEL_OK ? raise_epochs(self(store), consumer, items, n, true, now_us, err) : status;
}

semel_status semel__mem_positions_move(struct semel_store *store, struct semel_str name, struct semel_position *items,
                                       size_t n, int64_t now_us, struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    semel_status status = semel__mem_enter(self(store), "positions_move", true, err);
    struct mem_consumer *consumer = semel__mem_consumer(db, name);

    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct mem_position *was = find(db, consumer, &items[i]);
        struct semel_position now = items[i];
        items[i].fenced = was == NULL || was->position.epoch != items[i].epoch;
        if (items[i].fenced || items[i].offset == SEMEL_NONE)
            continue;
        if (was->position.offset != SEMEL_NONE && was->position.offset > now.offset)
            now.offset = was->position.offset;
        status = put(db, consumer, was, &now, now_us, err);
    }
    return status;
}

/* What the handle may see of a record: itself, or what it was before another's transaction; NULL: nothing. */
static const struct mem_position *visible(const struct mem_store *store, const struct mem_rec *rec)
{
    const struct semel_mem_db *db = store->db;

    if (db->writer == NULL || db->writer == store || rec->tx != db->tx)
        return (const struct mem_position *)rec;
    for (size_t i = 0; i < db->n_undo; i++) {
        const struct mem_rec *was = db->undo[i].was;
        if (db->undo[i].kind == MEM_POSITION && was != NULL && was->tx != db->tx && was->hash == rec->hash &&
            was->key.consumer == rec->key.consumer && semel__str_eq(was->key.part[0], rec->key.part[0]) &&
            semel__str_eq(was->key.part[1], rec->key.part[1]))
            return (const struct mem_position *)was;
    }
    return NULL;
}

static int cmp_position(const void *va, const void *vb)
{
    const struct semel_position *a = va, *b = vb;
    int c = semel__str_cmp(a->source, b->source);
    return c != 0 ? c : (a->partition > b->partition) - (a->partition < b->partition);
}

semel_status semel__mem_positions_list(struct semel_store *store, struct semel_str name, size_t max,
                                       struct semel_arena *arena, struct semel_position **ret, size_t *ret_n,
                                       struct semel_error *err)
{
    struct semel_mem_db *db = self(store)->db;
    struct mem_consumer *consumer = semel__mem_consumer(db, name);
    struct semel_position *items;
    size_t n = 0;
    semel_status status = semel__mem_enter(self(store), "positions_list", false, err);

    if (status != SEMEL_OK)
        return status;
    items = semel__arena_alloc(arena, db->tables[MEM_POSITION].n + 1, sizeof *items);
    if (items == NULL)
        return semel__fail_memory(err);
    for (struct mem_rec *rec = semel__mem_next(db, MEM_POSITION, NULL); rec != NULL && consumer != NULL;
         rec = semel__mem_next(db, MEM_POSITION, rec)) {
        const struct mem_position *seen = rec->key.consumer == consumer ? visible(self(store), rec) : NULL;
        if (seen != NULL)
            items[n++] = seen->position;
    }
    qsort(items, n, sizeof *items, cmp_position);
    n = n < max ? n : max;
    for (size_t i = 0; i < n; i++)
        if (!semel__arena_copy(arena, items[i].source, &items[i].source))
            return semel__fail_memory(err);
    *ret = items;
    *ret_n = n;
    return SEMEL_OK;
}
