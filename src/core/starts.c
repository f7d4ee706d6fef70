/* SPDX-License-Identifier: MIT
 *
 * starts.c: see starts.h.
 */
#include "core/starts.h"

#include <string.h>

#include "base/str.h"

#define PATIENCE_US INT64_C(1000000)
#define FORGET_US (INT64_C(60) * 1000000)

void semel__starts_forget(struct semel_starts *starts, int64_t now_us)
{
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++) {
        if (starts->shards[i].at > starts->shards[i].before)
            starts->shards[i].before = starts->shards[i].at;
        starts->shards[i].at = starts->shards[i].base = SEMEL_STARTS_BOTTOM;
    }
    starts->floor = starts->base_floor = SEMEL_STARTS_BOTTOM;
    starts->noted = false;
    starts->n_holders = starts->n_apart = 0;
    starts->forgotten_us = now_us;
    starts->given_up++;
}

void semel__starts_reset(struct semel_starts *starts, size_t shard)
{
    starts->shards[shard].at = starts->shards[shard].base = starts->shards[shard].before = SEMEL_STARTS_BOTTOM;
}

void semel__starts_init(struct semel_starts *starts, int64_t now_us)
{
    *starts = (struct semel_starts){.started_us = SEMEL_NONE};
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        starts->shards[i].at = starts->shards[i].before = SEMEL_STARTS_BOTTOM;
    semel__starts_forget(starts, now_us);
}

static bool is_among(const struct semel_holder_name *name, const struct semel_relay_holder *holders, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (semel__str_eq((struct semel_str){name->bytes, name->n}, holders[i].name))
            return true;
    return false;
}

/* Leaves those that are still there. */
static size_t still_there(struct semel_holder_name *names, size_t n, const struct semel_relay_holder *holders,
                          size_t n_holders)
{
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        if (is_among(&names[i], holders, n_holders))
            names[left++] = names[i];
    return left;
}

/* A holder whose name is longer than any that PostgreSQL makes cannot be remembered. */
static bool remember(struct semel_starts *starts, const struct semel_relay_holder *holder)
{
    for (size_t i = 0; i < starts->n_apart; i++)
        if (semel__str_eq((struct semel_str){starts->apart[i].bytes, starts->apart[i].n}, holder->name))
            return true;
    struct semel_holder_name *name = &starts->holders[starts->n_holders];
    if (holder->name.n == 0 || holder->name.n > sizeof name->bytes || starts->n_holders == SEMEL_RELAY_HOLDERS_MAX)
        return false;
    memcpy(name->bytes, holder->name.p, holder->name.n);
    name->n = holder->name.n;
    name->pid = holder->pid;
    starts->n_holders++;
    return true;
}

static void raise_floor(struct semel_starts *starts)
{
    starts->noted = false;
    if (starts->noted_seq > starts->floor)
        starts->floor = starts->noted_seq;
    if (starts->n_apart == 0)
        starts->base_floor = starts->floor;
}

static void judge(struct semel_starts *starts, int64_t now_us, const struct semel_relay_holder *holders, size_t n)
{
    starts->n_holders = still_there(starts->holders, starts->n_holders, holders, n);
    if (starts->n_holders > 0) {
        if (now_us - starts->noted_us < PATIENCE_US || starts->n_apart + starts->n_holders > SEMEL_RELAY_HOLDERS_MAX)
            return;
        memcpy(starts->apart + starts->n_apart, starts->holders, starts->n_holders * sizeof starts->holders[0]);
        starts->n_apart += starts->n_holders;
    }
    raise_floor(starts);
}

bool semel__starts_note(struct semel_starts *starts, int64_t now_us, int64_t seq, int64_t started_us,
                        const struct semel_relay_holder *holders, size_t n)
{
    const bool anew = starts->started_us != SEMEL_NONE && seq < starts->noted_seq;
    if (started_us != starts->started_us || anew || seq < starts->floor || now_us - starts->forgotten_us >= FORGET_US)
        semel__starts_forget(starts, now_us);
    if (started_us != starts->started_us || anew) { /* another server, or another sequence */
        starts->noted_seq = seq;
        for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
            starts->shards[i].before = SEMEL_STARTS_BOTTOM;
    }
    starts->started_us = started_us;
    if (n > SEMEL_RELAY_HOLDERS_MAX) {
        starts->noted = false;
        return anew;
    }
    if (starts->noted)
        judge(starts, now_us, holders, n);
    if (starts->noted)
        return anew;
    starts->noted_seq = seq;
    starts->noted_us = now_us;
    starts->n_holders = 0;
    starts->noted = true;
    for (size_t i = 0; starts->noted && i < n; i++)
        starts->noted = remember(starts, &holders[i]);
    if (starts->noted && starts->n_holders == 0) /* nobody is to be waited for */
        raise_floor(starts);
    return anew;
}

bool semel__starts_ended(struct semel_starts *starts, const struct semel_relay_holder *holders, size_t n)
{
    size_t left = still_there(starts->apart, starts->n_apart, holders, n);
    if (left == starts->n_apart)
        return false;
    starts->n_apart = left;
    starts->noted = false;
    starts->given_up++;
    starts->floor = starts->base_floor;
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++)
        starts->shards[i].at = starts->shards[i].base;
    return true;
}

bool semel__starts_scanned(struct semel_starts *starts, size_t shard, int64_t first_seq)
{
    int64_t at = first_seq != SEMEL_NONE && first_seq - 1 < starts->floor ? first_seq - 1 : starts->floor;
    bool late = first_seq != SEMEL_NONE && first_seq <= starts->shards[shard].before;
    starts->shards[shard].before = SEMEL_STARTS_BOTTOM;
    if (at > starts->shards[shard].at)
        starts->shards[shard].at = at;
    if (starts->n_apart == 0)
        starts->shards[shard].base = starts->shards[shard].at;
    return late;
}
