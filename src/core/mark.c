/* SPDX-License-Identifier: MIT
 *
 * mark.c: which positions a batch moves. The rules stand in mark.h.
 */
#include "core/mark.h"

#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "core/transaction.h"

/* What a worker remembers of a partition from batch to batch. */
struct mark_lane {
    char *name; /* the memory of `source` */
    struct semel_str source;
    int32_t partition;
    int64_t epoch; /* the highest so far */
    int64_t hole;  /* the first offset that was given back and has not come again; SEMEL_NONE */
    /* one look at a batch */
    bool touched;
    int64_t asked; /* the lowest epoch in it: if there are two the store refuses the older one */
    int64_t end;   /* behind the last delivery that may move it; SEMEL_NONE */
    int64_t stop;  /* the hole, as this batch would leave it */
};

void semel__marks_init(struct semel_marks *marks)
{
    *marks = (struct semel_marks){0};
}

void semel__marks_done(struct semel_marks *marks)
{
    for (size_t i = 0; i < marks->n; i++)
        semel__free(marks->lanes[i].name);
    semel__free(marks->lanes);
    semel__free(marks->items);
    *marks = (struct semel_marks){0};
}

void semel__marks_reopened(struct semel_marks *marks)
{
    marks->blind = false;
}

/* ---- lanes --------------------------------------------------------------------------------------- */

static int cmp_lane(const struct mark_lane *lane, struct semel_str source, int32_t partition)
{
    int c = semel__str_cmp(lane->source, source);
    return c != 0 ? c : (lane->partition > partition) - (lane->partition < partition);
}

/* Where it is, or belongs. */
static size_t place_of(const struct semel_marks *marks, struct semel_str source, int32_t partition)
{
    size_t low = 0, high = marks->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cmp_lane(&marks->lanes[middle], source, partition) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool reserve(struct semel_marks *marks)
{
    size_t room = marks->room > 0 ? 2 * marks->room : 8;
    if (marks->n < marks->room)
        return true;
    if (marks->n >= SEMEL_POSITIONS_MAX)
        return false;
    struct semel_position *items = semel__realloc(marks->items, room, sizeof *items);
    if (items == NULL)
        return false;
    marks->items = items;
    struct mark_lane *lanes = semel__realloc(marks->lanes, room, sizeof *lanes);
    if (lanes == NULL)
        return false;
    marks->lanes = lanes;
    marks->room = room;
    return true;
}

/* The lane of a delivery, made when it is new. NULL: no memory. */
static struct mark_lane *lane_of(struct semel_marks *marks, const struct semel_delivery *delivery)
{
    struct semel_str source = semel__str_given(delivery->source) ? delivery->source : SEMEL_STR("");
    size_t at = place_of(marks, source, delivery->partition);
    if (at < marks->n && cmp_lane(&marks->lanes[at], source, delivery->partition) == 0)
        return &marks->lanes[at];
    char *name = reserve(marks) ? semel__alloc(source.n + 1) : NULL;
    if (name == NULL)
        return NULL;
    memcpy(name, source.p, source.n);
    memmove(&marks->lanes[at + 1], &marks->lanes[at], (marks->n - at) * sizeof *marks->lanes);
    marks->n++;
    marks->lanes[at] = (struct mark_lane){.name = name,
                                          .source = {name, source.n},
                                          .partition = delivery->partition,
                                          .hole = SEMEL_NONE};
    return &marks->lanes[at];
}

/* ---- a look at a batch --------------------------------------------------------------------------- */

static bool is_marked(const struct semel_delivery *delivery)
{
    return delivery->epoch > 0 && delivery->partition >= 0 && delivery->offset >= 0 && delivery->offset < INT64_MAX;
}

/* A new epoch starts at the stored position: the holes of the old one lie before us again. */
static void touch(struct mark_lane *lane, int64_t epoch)
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

static void step(struct mark_lane *lane, int64_t offset, bool acked)
{
    if (lane->stop != SEMEL_NONE && offset <= lane->stop)
        lane->stop = SEMEL_NONE; /* the source has gone back, and what follows is in order again */
    if (lane->stop != SEMEL_NONE)
        return;
    if (acked)
        lane->end = offset + 1;
    else
        lane->stop = offset;
}

/* Where each partition would end; settled NULL: if all were acknowledged. False: no memory. */
static bool look(struct semel_marks *marks, const struct semel_delivery *deliveries,
                 const struct semel_settled *settled, size_t n)
{
    for (size_t i = 0; i < marks->n; i++)
        marks->lanes[i].touched = false;
    for (size_t i = 0; i < n; i++) {
        if (!is_marked(&deliveries[i]))
            continue;
        struct mark_lane *lane = lane_of(marks, &deliveries[i]);
        if (lane == NULL) {
            marks->blind = true;
            return false;
        }
        touch(lane, deliveries[i].epoch);
        if (deliveries[i].epoch == lane->epoch)
            step(lane, deliveries[i].offset, settled == NULL || settled[i].act == SEMEL_ACK);
    }
    return true;
}

/* The positions of the partitions that the look has touched; with `ends`, only those that move. */
static void gather(struct semel_marks *marks, bool ends)
{
    marks->n_items = 0;
    for (size_t i = 0; i < marks->n; i++) {
        const struct mark_lane *lane = &marks->lanes[i];
        if (!lane->touched || (ends && lane->end == SEMEL_NONE))
            continue;
        marks->items[marks->n_items++] = (struct semel_position){.source = lane->source,
                                                                 .partition = lane->partition,
                                                                 .offset = marks->blind ? SEMEL_NONE : lane->end,
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

static semel_status move(struct semel_marks *marks, struct semel_inbox *inbox, int64_t now_us, struct semel_error *err)
{
    char name[72];
    semel_status status = semel_store_positions_move(inbox->store, inbox->policy->consumer, marks->items,
                                                     marks->n_items, now_us, err);
    for (size_t i = 0; status == SEMEL_OK && i < marks->n_items; i++) {
        const struct semel_position *item = &marks->items[i];
        if (!item->fenced)
            continue;
        semel__str_show(name, sizeof name, item->source);
        status = semel__fail(err, SEMEL_FENCED, SEMEL_CLASS_TRANSIENT,
                             "partition %d of %s was given to somebody else, or its position was set", item->partition,
                             name);
    }
    marks->refused |= status == SEMEL_FENCED;
    return status;
}

semel_status semel__marks_move(struct semel_marks *marks, struct semel_inbox *inbox, bool all, int64_t now_us,
                               struct semel_error *err)
{
    gather(marks, false);
    for (size_t i = 0; !all && i < marks->n_items; i++)
        marks->items[i].offset = SEMEL_NONE;
    return move(marks, inbox, now_us, err);
}

semel_status semel__marks_begin(struct semel_marks *marks, struct semel_inbox *inbox,
                                const struct semel_delivery *deliveries, size_t n, struct semel_error *err)
{
    marks->moved = marks->refused = false;
    marks->whole = marks->n_items = 0;
    inbox->marks = NULL;
    if (!any_marked(deliveries, n))
        return SEMEL_OK;
    if (!look(marks, deliveries, NULL, n))
        return semel__fail_memory(err);
    inbox->marks = marks;
    return SEMEL_OK;
}

struct moving {
    struct semel_marks *marks;
    struct semel_inbox *inbox;
};

static semel_status move_all(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    const struct moving *moving = ctx;
    (void)undo;
    return move(moving->marks, moving->inbox, now_us, err);
}

static semel_status move_behind(struct semel_marks *marks, struct semel_inbox *inbox, struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = move_all};
    struct moving moving = {marks, inbox};
    gather(marks, true);
    if (marks->n_items == 0 || marks->blind)
        return SEMEL_OK;
    return semel__transaction_run(inbox->store, &tx, &moving, err);
}

static void tell_fenced(const struct semel_marks *marks)
{
    for (size_t i = 0; marks->refused && marks->fenced != NULL && i < marks->n_items; i++)
        if (marks->items[i].fenced)
            marks->fenced(marks->fenced_ctx, marks->items[i].source, marks->items[i].partition, marks->items[i].epoch);
}

semel_status semel__marks_end(struct semel_marks *marks, struct semel_inbox *inbox,
                              const struct semel_delivery *deliveries, const struct semel_settled *settled, size_t n,
                              bool may_move, struct semel_error *err)
{
    bool begun = inbox->marks == marks, moved = begun && marks->moved, refused = begun && marks->refused;
    inbox->marks = NULL;
    marks->refused = refused;
    if (!any_marked(deliveries, n))
        return SEMEL_OK;
    tell_fenced(marks); /* before the look: it is the items of the batch that were refused */
    if (!look(marks, deliveries, settled, n))
        return SEMEL_OK;
    for (size_t i = 0; i < marks->n; i++)
        if (marks->lanes[i].touched)
            marks->lanes[i].hole = marks->lanes[i].stop;
    if (refused)
        return SEMEL_FENCED;
    semel_status status = may_move && !moved ? move_behind(marks, inbox, err) : SEMEL_OK;
    tell_fenced(marks);
    return status;
}
