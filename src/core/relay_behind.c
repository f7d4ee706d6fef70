/* SPDX-License-Identifier: MIT
 *
 * relay_behind.c: how far a run of very many events of few aggregates reaches, so that the events behind it need not
 * wait until it has moved aside. See relay.h, "Behind a run".
 *
 * Invariant: above `from`, up to `passed`, a shard has no events but those of the aggregates in `hot`, and none of
 * others can appear there: `passed` is not above the floor. This proof ends with the proof of the floor
 * (starts.given_up).
 */
#include <string.h>

#include "base/error.h"
#include "base/str.h"
#include "core/relay_state.h"

#define SEARCH_ROWS 50000 /* per step, of all shards together */
#define GROUPS_MAX 16     /* of one shard */
#define HOT_PARTS 4       /* so many such aggregates fill a window */

void semel__relay_behind_forget(struct behind *behind)
{
    behind->from = behind->passed = SEMEL_STARTS_BOTTOM;
    behind->n_hot = 0;
    behind->next_us = 0;
    behind->read = false;
}

/* Where nothing has to be proven, a number that was given is never behind one that is committed. */
static int64_t floor_of(const struct semel_relay *relay)
{
    return !relay->ops->proves ? INT64_MAX : relay->proves ? relay->starts.floor : SEMEL_STARTS_BOTTOM;
}

bool semel__relay_behind_usable(const struct semel_relay *relay, const struct shard *shard, int64_t floor)
{
    const struct behind *behind = &shard->behind;
    return behind->passed != SEMEL_STARTS_BOTTOM && behind->given_up == relay->starts.given_up &&
           (!relay->ops->proves || behind->passed <= floor) && !shard->careful && !shard->exhausted &&
           behind->from <= shard->last_seq && shard->last_seq < behind->passed;
}

bool semel__relay_behind_is_hot(const struct behind *behind, struct semel_str aggregatetype,
                                struct semel_str aggregateid)
{
    for (size_t i = 0; i < behind->n_hot; i++) {
        const struct hot *hot = &behind->hot[i];
        if (semel__str_eq((struct semel_str){hot->name, hot->type_n}, aggregatetype) &&
            semel__str_eq((struct semel_str){hot->name + hot->type_n, hot->id_n}, aggregateid))
            return true;
    }
    return false;
}

/* false: there is no room for one more. */
static bool add_hot(struct behind *behind, const struct semel_relay_group *group)
{
    struct hot *hot = &behind->hot[behind->n_hot];
    if (behind->n_hot == RELAY_HOT_MAX || group->aggregatetype.n == 0 || group->aggregateid.n == 0 ||
        group->aggregatetype.n + group->aggregateid.n > sizeof hot->name)
        return false;
    hot->type_n = group->aggregatetype.n;
    hot->id_n = group->aggregateid.n;
    memcpy(hot->name, group->aggregatetype.p, hot->type_n);
    memcpy(hot->name + hot->type_n, group->aggregateid.p, hot->id_n);
    behind->n_hot++;
    return true;
}

/* The shards that have more than was read, of which little went: above which number to search. */
static size_t list_searches(struct semel_relay *relay, int64_t steady_us, int64_t floor,
                            struct semel_relay_start starts[SEMEL_RELAY_SHARDS])
{
    size_t n = 0;
    for (size_t i = 0; i < SEMEL_RELAY_SHARDS; i++) {
        struct shard *shard = &relay->shards[i];
        struct behind *behind = &shard->behind;
        if (!shard->owned || shard->careful || shard->exhausted || shard->last_seq == SEMEL_STARTS_BOTTOM ||
            steady_us < behind->next_us || 2 * shard->stuck < relay->limit)
            continue;
        if (!semel__relay_behind_usable(relay, shard, floor)) {
            semel__relay_behind_forget(behind);
            behind->from = behind->passed = shard->last_seq;
            behind->given_up = relay->starts.given_up;
        } else if (behind->read && behind->exhausted) {
            continue;
        }
        if (behind->passed < floor)
            starts[n++] = (struct semel_relay_start){relay->first_shard + (int64_t)i, behind->passed};
    }
    return n;
}

/* An aggregate that is met in the run belongs to it if it has enough events there; the run ends before any other one.
 * Returns its end. */
static int64_t end_of_run(struct behind *behind, const struct semel_relay_group *groups, size_t n, size_t enough)
{
    int64_t end = behind->passed;
    for (size_t i = 0; i < n; i++) {
        if (!semel__relay_behind_is_hot(behind, groups[i].aggregatetype, groups[i].aggregateid) &&
            ((size_t)groups[i].count < enough || !add_hot(behind, &groups[i])))
            return groups[i].first_seq - 1;
        end = groups[i].last_seq > end ? groups[i].last_seq : end;
    }
    return end;
}

semel_status semel__relay_behind_search(struct semel_relay *relay, int64_t steady_us, struct semel_error *err)
{
    struct semel_relay_start starts[SEMEL_RELAY_SHARDS];
    struct semel_relay_group *groups;
    const int64_t floor = floor_of(relay);
    size_t n_groups;
    const size_t n = list_searches(relay, steady_us, floor, starts);
    if (n == 0)
        return SEMEL_OK;
    semel_status status = relay->ops->groups(relay->store, starts, n, SEARCH_ROWS / n, GROUPS_MAX, relay->arena,
                                             &groups, &n_groups, err);
    for (size_t i = 0, k = 0, of_it = 0; status == SEMEL_OK && i < n; i++, k += of_it) {
        struct behind *behind = &relay->shards[semel__relay_index(starts[i].shard)].behind;
        for (of_it = 0; k + of_it < n_groups && groups[k + of_it].shard == starts[i].shard;)
            of_it++;
        const int64_t end = end_of_run(behind, groups + k, of_it, relay->limit / HOT_PARTS + 1);
        behind->passed = end < floor ? end : floor;
        if (behind->passed <= starts[i].after_seq) /* no further: look again when something may have changed */
            behind->next_us = steady_us + SECOND_US;
    }
    return status;
}
