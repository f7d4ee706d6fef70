/* SPDX-License-Identifier: MIT
 *
 * mem_consumer.c: the settings of consumers in the in-memory store, and which consumers there are.
 *
 * Invariants: a handle sees its own open transaction and, of another's, only what was there before it; both are told
 * from the undo log. Rows are counted by the tables (mem_table.c), never walked.
 */
#include "store/mem_private.h"

#include <stdlib.h>

static struct mem_store *self(struct semel_store *store)
{
    return (struct mem_store *)store;
}

/* Another handle's transaction is open. */
static bool foreign(const struct mem_store *store)
{
    return store->db->writer != NULL && store->db->writer != store;
}

/* What the handle may see of the consumer's settings, or NULL. */
static const struct mem_settings *visible(const struct mem_store *store, struct mem_consumer *consumer)
{
    struct semel_mem_db *db = store->db;
    const struct mem_settings *found = semel__mem_find(db, MEM_SETTINGS, consumer, MEM_NO_STR, MEM_NO_STR, MEM_NO_STR);

    if (found == NULL || !foreign(store) || found->rec.tx != db->tx)
        return found;
    for (size_t i = 0; i < db->n_undo; i++) {
        const struct mem_rec *was = db->undo[i].was;
        if (db->undo[i].kind == MEM_SETTINGS && was != NULL && was->key.consumer == consumer && was->tx != db->tx)
            return (const struct mem_settings *)was;
    }
    return NULL;
}

semel_status semel__mem_consumer_get(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                     struct semel_str *ret_settings, struct semel_error *err)
{
    const struct mem_settings *found;
    semel_status status = semel__mem_enter(self(store), "consumer_get", false, err);

    if (status != SEMEL_OK)
        return status;
    found = visible(self(store), semel__mem_consumer(self(store)->db, consumer));
    if (!semel__arena_copy(arena, found != NULL ? found->stored.settings : MEM_NO_STR, ret_settings))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* There is one writer: whoever is in a transaction has locked everything. */
semel_status semel__mem_consumer_read(struct semel_store *store, struct semel_str consumer, bool lock,
                                      struct semel_arena *arena, struct semel_consumer *ret, struct semel_error *err)
{
    const struct mem_settings *found;
    struct semel_consumer copy = {.by.at_us = SEMEL_NONE};
    semel_status status = semel__mem_enter(self(store), "consumer_read", lock, err);

    if (status != SEMEL_OK)
        return status;
    found = visible(self(store), semel__mem_consumer(self(store)->db, consumer));
    if (found != NULL) {
        copy.by.at_us = found->stored.by.at_us;
        if (!semel__arena_copy(arena, found->stored.settings, &copy.settings) ||
            !semel__arena_copy(arena, found->stored.by.host, &copy.by.host) ||
            !semel__arena_copy(arena, found->stored.by.file, &copy.by.file))
            return semel__fail_memory(err);
    }
    *ret = copy;
    return SEMEL_OK;
}

/* One of the two that are given; what is not stays as it is. */
static semel_status put(struct mem_store *store, struct semel_str consumer, const struct semel_str *settings,
                        const struct semel_set_by *by, int64_t now_us, struct semel_error *err)
{
    struct semel_mem_db *db = store->db;
    struct mem_settings proto = {.stored.by.at_us = SEMEL_NONE}, *stored;
    void *image;

    proto.rec.key.consumer = semel__mem_consumer_make(db, consumer);
    if (proto.rec.key.consumer == NULL)
        return semel__fail_memory(err);
    stored = semel__mem_find(db, MEM_SETTINGS, proto.rec.key.consumer, MEM_NO_STR, MEM_NO_STR, MEM_NO_STR);
    if (stored == NULL && settings == NULL) /* there is nothing to mark */
        return SEMEL_OK;
    if (stored != NULL) {
        proto.stored = stored->stored;
        proto.updated_us = stored->updated_us;
    }
    if (settings != NULL) {
        proto.stored.settings = *settings;
        proto.updated_us = now_us;
    }
    if (by != NULL)
        proto.stored.by = *by;
    image = semel__mem_image(MEM_SETTINGS, &proto);
    if (image == NULL || !semel__mem_put(db, MEM_SETTINGS, stored, image))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

semel_status semel__mem_consumer_put(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                     int64_t now_us, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "consumer_put", true, err);
    return status == SEMEL_OK ? put(self(store), consumer, &settings, NULL, now_us, err) : status;
}

semel_status semel__mem_consumer_mark(struct semel_store *store, struct semel_str consumer,
                                      const struct semel_set_by *by, struct semel_error *err)
{
    semel_status status = semel__mem_enter(self(store), "consumer_mark", true, err);
    return status == SEMEL_OK ? put(self(store), consumer, NULL, by, 0, err) : status;
}

/* ---- what a change would reinterpret ------------------------------------------------------------------- */

static bool without_last(struct semel_mem_db *db, struct mem_consumer *consumer, struct semel_str key)
{
    const struct mem_order_key *found = semel__mem_find(db, MEM_KEY, consumer, key, MEM_NO_STR, MEM_NO_STR);
    return found == NULL || found->last_version == SEMEL_NONE;
}

static bool is_affected(struct semel_mem_db *db, const struct mem_row *row, enum semel_affected what, int64_t version)
{
    const struct semel_live *live = &row->row.live;
    const bool keyed = semel__str_given(row->row.order_key);
    const bool waits = live->state == SEMEL_STATE_WAITING || live->state == SEMEL_STATE_FAILED;

    switch (what) {
    case SEMEL_AFFECTED_ORDERED:
        return keyed && (waits || live->state == SEMEL_STATE_PROCESSING);
    case SEMEL_AFFECTED_VERSIONED:
        return keyed && row->row.version != SEMEL_NONE &&
               (live->state == SEMEL_STATE_UNKNOWN || live->state == SEMEL_STATE_DEAD);
    case SEMEL_AFFECTED_BELOW:
        return keyed && waits && row->row.version != SEMEL_NONE && row->row.version < version &&
               without_last(db, row->rec.key.consumer, row->row.order_key);
    case SEMEL_AFFECTED_DOUBTED:
        if (live->attempts == 0 || live->state == SEMEL_STATE_WAITING)
            return live->attempts > 0;
        return live->state == SEMEL_STATE_FAILED &&
               (live->attempts > 1 || live->error_class == SEMEL_CLASS_UNKNOWN ||
                live->error_class == SEMEL_CLASS_LEASE || live->error_class == SEMEL_CLASS_RELEASED);
    case SEMEL_AFFECTED_SOURCED:
        return row->row.source.n > 0;
    case SEMEL_AFFECTED_SOURCELESS:
        return row->row.source.n == 0;
    case SEMEL_AFFECTED_ANY:
    case SEMEL_AFFECTED_KEYS:
    case SEMEL_AFFECTED_WATERMARKS:
    case SEMEL_AFFECTED_COUNT:
        break;
    }
    return true;
}

semel_status semel__mem_affected(struct semel_store *store, struct semel_str consumer, enum semel_affected what,
                                 int64_t version, int64_t max, int64_t *ret_n, struct semel_error *err)
{
    const enum mem_kind kind = what == SEMEL_AFFECTED_KEYS         ? MEM_KEY
                               : what == SEMEL_AFFECTED_WATERMARKS ? MEM_WATERMARK
                                                                   : MEM_ROW;
    struct semel_mem_db *db = self(store)->db;
    const struct mem_consumer *known = semel__mem_consumer(db, consumer);
    semel_status status = semel__mem_enter(self(store), "affected", true, err);
    int64_t n = 0;

    if (status != SEMEL_OK)
        return status;
    for (struct mem_rec *rec = NULL; n < max && (rec = semel__mem_next(db, kind, rec)) != NULL;)
        if (rec->key.consumer == known)
            n += kind != MEM_ROW || is_affected(db, (struct mem_row *)rec, what, version);
    *ret_n = n;
    return SEMEL_OK;
}

/* ---- which consumers there are ------------------------------------------------------------------------- */

/* How many rows of the consumer the handle may see: those that are there, less what another's transaction added. */
static int64_t visible_rows(const struct mem_store *store, const struct mem_consumer *consumer)
{
    const struct semel_mem_db *db = store->db;
    int64_t n = consumer->rows;

    for (size_t i = 0; foreign(store) && i < db->n_undo; i++) {
        const struct mem_undo *undo = &db->undo[i];
        if (undo->kind == MEM_ROW && undo->is != NULL && undo->is->key.consumer == consumer)
            n--;
        if (undo->kind == MEM_ROW && undo->was != NULL && undo->was->key.consumer == consumer)
            n++;
    }
    return n;
}

static int cmp_name(const void *a, const void *b)
{
    const struct mem_consumer *const *x = a, *const *y = b;
    return semel__str_cmp((*x)->name, (*y)->name);
}

/* Those that are wanted, ascending; NULL: no memory. */
static const struct mem_consumer **gather(const struct mem_store *store, struct semel_str after, size_t *ret_n)
{
    const struct mem_consumer **list;
    size_t n = 0;

    for (const struct mem_consumer *consumer = store->db->consumers; consumer != NULL; consumer = consumer->next)
        n++;
    list = semel__calloc(n + 1, sizeof *list);
    if (list == NULL)
        return NULL;
    n = 0;
    for (struct mem_consumer *consumer = store->db->consumers; consumer != NULL; consumer = consumer->next)
        if (semel__str_cmp(consumer->name, after) > 0 &&
            (visible(store, consumer) != NULL || visible_rows(store, consumer) > 0))
            list[n++] = consumer;
    qsort(list, n, sizeof *list, cmp_name);
    *ret_n = n;
    return list;
}

semel_status semel__mem_consumers(struct semel_store *store, struct semel_str after, size_t max,
                                  struct semel_arena *arena, struct semel_str **ret, size_t *ret_n,
                                  struct semel_error *err)
{
    const struct mem_consumer **list;
    struct semel_str *names = NULL;
    size_t n = 0;
    semel_status status = semel__mem_enter(self(store), "consumers", false, err);

    if (status != SEMEL_OK)
        return status;
    list = gather(self(store), after, &n);
    if (n > max)
        n = max;
    if (list != NULL)
        names = semel__arena_alloc(arena, n, sizeof *names);
    for (size_t i = 0; names != NULL && i < n; i++)
        if (!semel__arena_copy(arena, list[i]->name, &names[i]))
            names = NULL;
    semel__free(list);
    if (names == NULL)
        return semel__fail_memory(err);
    *ret = names;
    *ret_n = n;
    return SEMEL_OK;
}
