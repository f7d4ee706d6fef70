/* SPDX-License-Identifier: MIT
 *
 * positions.c: which positions a batch moves. See positions.h for the rules.
 */
#include "core/positions.h"

#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "core/transaction.h"

/* What a worker remembers about a partition between batches. */
struct position_lane {
    char *name; /* the memory of `source` */
    struct semel_str source;
    int32_t partition;
    int64_t epoch; /* the highest so far */
    int64_t hole;  /* the first offset that was given back and has not come again; SEMEL_NONE */
    /* the fields below belong to one batch */
    bool touched;
    int64_t asked; /* the lowest epoch in it: if there are two, the store refuses the older one */
    int64_t end;   /* behind the last delivery that may move it; SEMEL_NONE */
    int64_t stop;  /* the hole, as this batch would leave it */
};

void semel__position_updates_init(struct semel_position_updates *position_updates)
{
    *position_updates = (struct semel_position_updates){0};
}

void semel__position_updates_done(struct semel_position_updates *position_updates)
{
    for (size_t i = 0; i < position_updates->n; i++)
        semel__free(position_updates->lanes[i].name);
    semel__free(position_updates->lanes);
    semel__free(position_updates->items);
    *position_updates = (struct semel_position_updates){0};
}

void semel__position_updates_reopened(struct semel_position_updates *position_updates)
{
    position_updates->blind = false;
}

/* ---- lanes --------------------------------------------------------------------------------------- */

static int cmp_lane(const struct position_lane *lane, struct semel_str source, int32_t partition)
{
    int c = semel__str_cmp(lane->source, source);
    return c != 0 ? c : (lane->partition > partition) - (lane->partition < partition);
}

/* Its index, or where to insert it. */
static size_t place_of(const struct semel_position_updates *position_updates, struct semel_str source,
                       int32_t partition)
{
    size_t low = 0, high = position_updates->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cmp_lane(&position_updates->lanes[middle], source, partition) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool reserve(struct semel_position_updates *position_updates)
{
    size_t room = position_updates->room > 0 ? 2 * position_updates->room : 8;
    if (position_updates->n < position_updates->room)
        return true;
    if (position_updates->n >= SEMEL_POSITIONS_MAX)
        return false;
    struct semel_position *items = semel__realloc(position_updates->items, room, sizeof *items);
    if (items == NULL)
        return false;
    position_updates->items = items;
    struct position_lane *lanes = semel__realloc(position_updates->lanes, room, sizeof *lanes);
    if (lanes == NULL)
        return false;
    position_updates->lanes = lanes;
    position_updates->room = room;
    return true;
}

/* Finds or makes the lane of a delivery. NULL: no memory. */
static struct position_lane *lane_of(struct semel_position_updates *position_updates,
                                     const struct semel_delivery *delivery)
{
    struct semel_str source = semel__str_given(delivery->source) ? delivery->source : SEMEL_STR("");
    size_t at = place_of(position_updates, source, delivery->partition);
    if (at < position_updates->n && cmp_lane(&position_updates->lanes[at], source, delivery->partition) == 0)
        return &position_updates->lanes[at];
    char *name = reserve(position_updates) ? semel__alloc(source.n + 1) : NULL;
    if (name == NULL)
        return NULL;
    memcpy(name, source.p, source.n);
    memmove(&position_updates->lanes[at + 1], &position_updates->lanes[at],
            (position_updates->n - at) * sizeof *position_updates->lanes);
    position_updates->n++;
    position_updates->lanes[at] = (struct position_lane){.name = name,
                                                         .source = {name, source.n},
                                                         .partition = delivery->partition,
                                                         .hole = SEMEL_NONE};
    return &position_updates->lanes[at];
}

/* ---- one batch ----------------------------------------------------------------------------------- */

static bool is_marked(const struct semel_delivery *delivery)
{
    return delivery->epoch > 0 && delivery->partition >= 0 && delivery->offset >= 0 && delivery->offset < INT64_MAX;
}

/* A new epoch starts at the stored position: the source delivers the holes of the old epoch again. */
static void touch(struct position_lane *lane, int64_t epoch)
{
    if (epoch > lane->epoch) {
        lane->epoch = epoch;
        lane->hole = lane->stop = lane->end = SEMEL_NONE;
    }
    if (!lane->touched) {
        lane->stop = lane->hole;
        lane->end = SEMEL_NONE;
    }
    if (!lane->touched || epoch < lane->asked)
        lane->asked = epoch;
    lane->touched = true;
}

static void step(struct position_lane *lane, int64_t offset, bool acked)
{
    if (lane->stop != SEMEL_NONE && offset <= lane->stop)
        lane->stop = SEMEL_NONE; /* the source has gone back: its deliveries are in order again */
    if (lane->stop != SEMEL_NONE)
        return;
    if (acked)
        lane->end = offset + 1;
    else
        lane->stop = offset;
}

/* Computes where each partition would end; settled NULL: as if all were acknowledged. false: no memory. */
static bool look(struct semel_position_updates *position_updates, const struct semel_delivery *deliveries,
                 const struct semel_settled *settled, size_t n)
{
    for (size_t i = 0; i < position_updates->n; i++)
        position_updates->lanes[i].touched = false;
    for (size_t i = 0; i < n; i++) {
        if (!is_marked(&deliveries[i]))
            continue;
        struct position_lane *lane = lane_of(position_updates, &deliveries[i]);
        if (lane == NULL) {
            position_updates->blind = true;
            return false;
        }
        touch(lane, deliveries[i].epoch);
        if (deliveries[i].epoch == lane->epoch)
            step(lane, deliveries[i].offset, settled == NULL || settled[i].act == SEMEL_ACK);
    }
    return true;
}

/* Collects the positions of the touched partitions; with `ends`, only those that move. */
static void gather(struct semel_position_updates *position_updates, bool ends)
{
    position_updates->n_items = 0;
    for (size_t i = 0; i < position_updates->n; i++) {
        const struct position_lane *lane = &position_updates->lanes[i];
        if (!lane->touched || (ends && lane->end == SEMEL_NONE))
            continue;
        position_updates->items[position_updates->n_items++] = (struct semel_position){.source = lane->source,
                                                                                       .partition = lane->partition,
                                                                                       .offset = position_updates->blind
                                                                                                     ? SEMEL_NONE
                                                                                                     : lane->end,
                                                                                       .epoch = lane->asked};
    }
}

static bool any_marked(const struct semel_delivery *deliveries, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_marked(&deliveries[i]))
            return true;
    return false;
}

/* ---- moving -------------------------------------------------------------------------------------- */

static semel_status move(struct semel_position_updates *position_updates, struct semel_inbox *inbox, int64_t now_us,
                         struct semel_error *err)
{
    char name[72];
    semel_status status = semel_store_positions_move(inbox->store, inbox->policy->consumer, position_updates->items,
                                                     position_updates->n_items, now_us, err);
    for (size_t i = 0; status == SEMEL_OK && i < position_updates->n_items; i++) {
        const struct semel_position *item = &position_updates->items[i];
        if (!item->fenced)
            continue;
        semel__str_show(name, sizeof name, item->source);
        status = semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_TRANSIENT,
                             "partition %d of %s was given to somebody else, or its position was set", item->partition,
                             name);
    }
    position_updates->refused |= status == SEMEL_FENCED;
    return status;
}

semel_status semel__position_updates_move(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                          bool all, int64_t now_us, struct semel_error *err)
{
    gather(position_updates, false);
    for (size_t i = 0; !all && i < position_updates->n_items; i++)
        position_updates->items[i].offset = SEMEL_NONE;
    return move(position_updates, inbox, now_us, err);
}

semel_status semel__position_updates_begin(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                           const struct semel_delivery *deliveries, size_t n, struct semel_error *err)
{
    position_updates->moved = position_updates->refused = false;
    position_updates->whole = position_updates->n_items = 0;
    inbox->position_updates = NULL;
    if (!any_marked(deliveries, n))
        return SEMEL_OK;
    if (!look(position_updates, deliveries, NULL, n))
        return semel__fail_memory(err);
    inbox->position_updates = position_updates;
    return SEMEL_OK;
}

struct moving {
    struct semel_position_updates *position_updates;
    struct semel_inbox *inbox;
};

static semel_status move_all(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    const struct moving *moving = ctx;
    (void)undo;
    return move(moving->position_updates, moving->inbox, now_us, err);
}

static semel_status move_behind(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = move_all};
    struct moving moving = {position_updates, inbox};
    gather(position_updates, true);
    if (position_updates->n_items == 0 || position_updates->blind)
        return SEMEL_OK;
    return semel__transaction_run(inbox->store, &tx, &moving, err);
}

static void report_fenced(const struct semel_position_updates *position_updates)
{
    for (size_t i = 0; position_updates->refused && position_updates->fenced != NULL && i < position_updates->n_items;
         i++)
        if (position_updates->items[i].fenced)
            position_updates->fenced(position_updates->fenced_ctx, position_updates->items[i].source,
                                     position_updates->items[i].partition, position_updates->items[i].epoch);
}

semel_status semel__position_updates_end(struct semel_position_updates *position_updates, struct semel_inbox *inbox,
                                         const struct semel_delivery *deliveries, const struct semel_settled *settled,
                                         size_t n, bool may_move, struct semel_error *err)
{
    bool begun = inbox->position_updates == position_updates, moved = begun && position_updates->moved,
         refused = begun && position_updates->refused;
    inbox->position_updates = NULL;
    position_updates->refused = refused;
    if (!any_marked(deliveries, n))
        return SEMEL_OK;
    report_fenced(position_updates); /* before look(): the items of the batch were refused */
    if (!look(position_updates, deliveries, settled, n))
        return SEMEL_OK;
    for (size_t i = 0; i < position_updates->n; i++)
        if (position_updates->lanes[i].touched)
            position_updates->lanes[i].hole = position_updates->lanes[i].stop;
    if (refused)
        return SEMEL_FENCED;
    semel_status status = may_move && !moved ? move_behind(position_updates, inbox, err) : SEMEL_OK;
    report_fenced(position_updates);
    return status;
}
