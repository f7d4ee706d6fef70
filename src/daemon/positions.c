/* SPDX-License-Identifier: MIT
 *
 * positions.c: epochs and positions of the partitions that are ours. The contract stands in positions.h.
 */
#include "daemon/positions.h"

#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "base/str.h"

#define LOOK_ARENA_MAX ((size_t)64 << 20)
#define TRIES 3 /* each waits for the store's own time-out */

struct taken {
    char *name; /* the memory of `source` */
    struct semel_str source;
    int32_t partition;
    int64_t epoch;
};

struct semel_positions {
    struct semel_store *store;
    struct semel_str consumer;
    pthread_mutex_t lock; /* of what follows */
    struct taken *taken;  /* ascending by (source, partition) */
    size_t n;
    bool stale;
};

struct semel_positions *semel__positions_new(struct semel_store *store, struct semel_str consumer)
{
    struct semel_positions *positions = semel__calloc(1, sizeof *positions);
    if (positions == NULL)
        return NULL;
    positions->store = store;
    positions->consumer = consumer;
    if (pthread_mutex_init(&positions->lock, NULL) != 0) {
        semel__free(positions);
        return NULL;
    }
    return positions;
}

static void free_taken(struct taken *taken, size_t n)
{
    for (size_t i = 0; taken != NULL && i < n; i++)
        semel__free(taken[i].name);
    semel__free(taken);
}

void semel__positions_free(struct semel_positions *positions)
{
    if (positions == NULL)
        return;
    free_taken(positions->taken, positions->n);
    pthread_mutex_destroy(&positions->lock);
    semel__free(positions);
}

/* ---- what is ours -------------------------------------------------------------------------------- */

static int cmp_place(struct semel_str a_source, int32_t a, struct semel_str b_source, int32_t b)
{
    int c = semel__str_cmp(a_source, b_source);
    return c != 0 ? c : (a > b) - (a < b);
}

static int cmp_taken(const void *va, const void *vb)
{
    const struct taken *a = va, *b = vb;
    return cmp_place(a->source, a->partition, b->source, b->partition);
}

static int cmp_position(const void *va, const void *vb)
{
    const struct semel_position *a = va, *b = vb;
    return cmp_place(a->source, a->partition, b->source, b->partition);
}

/* Under the lock, or by the thread that polls, which alone changes the list. */
static struct taken *find(const struct semel_positions *positions, struct semel_str source, int32_t partition)
{
    const struct taken key = {.source = source, .partition = partition};
    return positions->n > 0 ? bsearch(&key, positions->taken, positions->n, sizeof key, cmp_taken) : NULL;
}

/* The list with these in it, which are not in it yet. NULL: no memory. */
static struct taken *joined(const struct semel_positions *positions, const struct semel_position *items, size_t n)
{
    struct taken *list = semel__calloc(positions->n + n, sizeof *list);
    if (list == NULL)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        char *name = semel__alloc(items[i].source.n + 1);
        if (name == NULL) {
            free_taken(list, n); /* those that are not made yet have no name */
            return NULL;
        }
        memcpy(name, items[i].source.p, items[i].source.n);
        list[i] = (struct taken){.name = name, .source = {name, items[i].source.n}, .partition = items[i].partition};
    }
    return list;
}

/* Puts the new ones, which come first in `list`, together with the old ones. */
static void replace_list(struct semel_positions *positions, struct taken *list, const struct semel_position *items,
                         size_t n)
{
    for (size_t i = 0; i < n; i++)
        list[i].epoch = items[i].epoch;
    if (positions->n > 0)
        memcpy(list + n, positions->taken, positions->n * sizeof *list);
    semel__sort(list, positions->n + n, sizeof *list, cmp_taken);
    pthread_mutex_lock(&positions->lock);
    struct taken *old = positions->taken;
    positions->taken = list;
    positions->n += n;
    pthread_mutex_unlock(&positions->lock);
    semel__free(old);
}

void semel__positions_revoked(void *ctx, const struct semel_source_start *starts, size_t n, bool lost)
{
    struct semel_positions *positions = ctx;
    (void)lost;
    pthread_mutex_lock(&positions->lock);
    for (size_t i = 0; i < n; i++) {
        struct taken *gone = find(positions, starts[i].topic, starts[i].partition);
        if (gone == NULL)
            continue;
        size_t at = (size_t)(gone - positions->taken);
        semel__free(gone->name);
        memmove(gone, gone + 1, (positions->n - at - 1) * sizeof *gone);
        positions->n--;
    }
    pthread_mutex_unlock(&positions->lock);
}

void semel__positions_stamp(struct semel_positions *positions, struct semel_delivery *deliveries, size_t n)
{
    const struct taken *last = NULL; /* deliveries of a partition come together */
    for (size_t i = 0; i < n; i++) {
        struct semel_str source = deliveries[i].source;
        if (last == NULL || cmp_place(last->source, last->partition, source, deliveries[i].partition) != 0)
            last = find(positions, source, deliveries[i].partition);
        deliveries[i].epoch = last != NULL ? last->epoch : 0;
    }
}

void semel__positions_fenced(void *ctx, struct semel_str source, int32_t partition, int64_t epoch)
{
    struct semel_positions *positions = ctx;
    pthread_mutex_lock(&positions->lock);
    const struct taken *ours = find(positions, source, partition);
    positions->stale |= ours != NULL && ours->epoch == epoch;
    pthread_mutex_unlock(&positions->lock);
}

bool semel__positions_stale(struct semel_positions *positions)
{
    pthread_mutex_lock(&positions->lock);
    bool stale = positions->stale;
    positions->stale = false;
    pthread_mutex_unlock(&positions->lock);
    return stale;
}

semel_status semel__positions_check(struct semel_positions *positions, struct semel_error *err)
{
    struct semel_position *items;
    struct semel_arena arena;
    size_t n = 0;
    semel__arena_init(&arena, LOOK_ARENA_MAX);
    semel_status status = semel_store_positions_list(positions->store, positions->consumer, SEMEL_POSITIONS_MAX, &arena,
                                                     &items, &n, err);
    if (status == SEMEL_CLOSED)
        status = semel_store_reopen(positions->store, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        const struct taken *ours = find(positions, items[i].source, items[i].partition);
        if (ours != NULL && items[i].epoch > ours->epoch)
            semel__positions_fenced(positions, ours->source, ours->partition, ours->epoch);
    }
    semel__arena_done(&arena);
    return status;
}

/* ---- taking -------------------------------------------------------------------------------------- */

static struct semel_position *find_item(struct semel_position *items, size_t n, const struct semel_source_start *start)
{
    const struct semel_position key = {.source = start->topic, .partition = start->partition};
    return bsearch(&key, items, n, sizeof key, cmp_position);
}

/* A partition of which the store had never heard starts where the group has come to in Kafka, and keeps that. */
static semel_status adopt(struct semel_positions *positions, const struct semel_source_start *starts,
                          struct semel_position *items, size_t n, int64_t now_us, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        struct semel_position *item = find_item(items, n, &starts[i]);
        if (item == NULL || item->epoch != 1 || item->offset != SEMEL_NONE || starts[i].offset < 0)
            continue;
        item->offset = starts[i].offset;
        status = semel_store_positions_move(positions->store, positions->consumer, item, 1, now_us, err);
    }
    return status;
}

static semel_status take_once(struct semel_positions *positions, const struct semel_source_start *starts,
                              struct semel_position *items, size_t n, struct semel_error *err)
{
    int64_t now_us = 0;
    semel_status status = semel_store_begin(positions->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_store_positions_acquire(positions->store, positions->consumer, items, n, now_us, err);
    if (status == SEMEL_OK)
        status = adopt(positions, starts, items, n, now_us, err);
    if (status == SEMEL_OK)
        return semel_store_commit(positions->store, err);
    semel_store_rollback(positions->store);
    return status;
}

/* After a commit of unknown outcome they are taken again: an epoch more does no harm. */
static semel_status take(struct semel_positions *positions, const struct semel_source_start *starts,
                         struct semel_position *items, size_t n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (int i = 0; i < TRIES; i++) {
        status = take_once(positions, starts, items, n, err);
        bool lost = status == SEMEL_UNKNOWN || status == SEMEL_CLOSED;
        if (lost)
            status = semel_store_reopen(positions->store, err);
        if (lost && status != SEMEL_OK)
            return status;
        if (!lost && (status != SEMEL_RETRY || err->cls != SEMEL_CLASS_TRANSIENT))
            return status;
    }
    return status != SEMEL_OK ? status
                              : semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                                            "taking positions: the connection to the store was lost %d times", TRIES);
}

static semel_status make_items(const struct semel_source_start *starts, size_t n, struct semel_position *items,
                               struct semel_error *err)
{
    for (size_t i = 0; i < n; i++)
        items[i] = (struct semel_position){.source = starts[i].topic, .partition = starts[i].partition};
    semel__sort(items, n, sizeof *items, cmp_position);
    for (size_t i = 0; i < n; i++)
        if (items[i].partition < 0 || (i > 0 && cmp_position(&items[i - 1], &items[i]) == 0))
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "a partition was assigned twice, or has no number");
    return SEMEL_OK;
}

semel_status semel__positions_assigned(void *ctx, struct semel_source_start *starts, size_t n, struct semel_error *err)
{
    struct semel_positions *positions = ctx;
    if (n == 0)
        return SEMEL_OK;
    if (n > SEMEL_POSITIONS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "%zu partitions were assigned; at most %d are allowed", n, SEMEL_POSITIONS_MAX);
    semel__positions_revoked(positions, starts, n,
                             false); /* assigned twice without a word: only the new epoch counts */
    struct semel_position *items = semel__calloc(n, sizeof *items);
    semel_status status = items != NULL ? make_items(starts, n, items, err) : semel__fail_memory(err);
    struct taken *list = status == SEMEL_OK ? joined(positions, items, n) : NULL;
    if (status == SEMEL_OK && list == NULL)
        status = semel__fail_memory(err);
    if (status == SEMEL_OK) {
        status = take(positions, starts, items, n, err);
        if (status != SEMEL_OK)
            free_taken(list, n);
    }
    if (status == SEMEL_OK) {
        replace_list(positions, list, items, n);
        for (size_t i = 0; i < n; i++)
            starts[i].offset = find_item(items, n, &starts[i])->offset;
    }
    semel__free(items);
    return status;
}
