/* SPDX-License-Identifier: MIT
 *
 * held.c: a short list of messages that a handle has begun or claimed.
 *
 * Invariants: the list keeps the order in which they were added; semel__held_add never fails after semel__held_room.
 */
#include <string.h>

#include "base/str.h"
#include "lib/handle.h"

static struct semel_str keep(char **at, struct semel_str s)
{
    struct semel_str kept = {*at, s.n};
    if (s.n > 0)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return kept;
}

struct held *semel__held_new(struct semel_str consumer, const struct semel__msg *msg)
{
    struct held *held = semel__calloc(1, sizeof *held + consumer.n + msg->source.n + msg->id.n);
    if (held == NULL)
        return NULL;
    char *at = held->bytes;
    held->consumer = keep(&at, consumer);
    held->source = keep(&at, msg->source);
    held->id = keep(&at, msg->id);
    held->token = SEMEL_NONE;
    return held;
}

bool semel__held_room(struct held_list *list)
{
    if (list->n < list->cap)
        return true;
    size_t cap = list->cap > 0 ? 2 * list->cap : 8;
    struct held **items = semel__realloc(list->items, cap, sizeof(struct held *));
    if (items == NULL)
        return false;
    list->items = items;
    list->cap = cap;
    return true;
}

void semel__held_add(struct held_list *list, struct held *held)
{
    list->items[list->n++] = held;
}

static bool is_named(const struct held *held, struct semel_str consumer, struct semel_str source, struct semel_str id)
{
    return semel__str_eq(held->id, id) && semel__str_eq(held->source, source) &&
           semel__str_eq(held->consumer, consumer);
}

bool semel__held_is(const struct held *held, const struct semel_row *row)
{
    return is_named(held, row->consumer, row->source, row->id);
}

struct held *semel__held_find(const struct held_list *list, struct semel_str consumer, struct semel_str source,
                              struct semel_str id)
{
    for (size_t i = 0; i < list->n; i++) {
        if (is_named(list->items[i], consumer, source, id))
            return list->items[i];
    }
    return NULL;
}

struct held *semel__held_by_token(const struct held_list *list, int64_t token)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i]->token == token)
            return list->items[i];
    return NULL;
}

/* Removes it from the list and leaves it to the caller. false: it is not in the list. */
static bool take_out(struct held_list *list, const struct held *held)
{
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i] != held)
            continue;
        memmove(&list->items[i], &list->items[i + 1], (list->n - i - 1) * sizeof(struct held *));
        list->n--;
        return true;
    }
    return false;
}

void semel__held_drop(struct held_list *list, struct held *held)
{
    if (take_out(list, held))
        semel__free(held);
}

void semel__held_move(struct held_list *from, struct held_list *to, struct held *held)
{
    if (take_out(from, held))
        semel__held_add(to, held);
}

void semel__held_clear(struct held_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        semel__free(list->items[i]);
    list->n = 0;
}

void semel__held_done(struct held_list *list)
{
    semel__held_clear(list);
    semel__free(list->items);
    *list = (struct held_list){0};
}
