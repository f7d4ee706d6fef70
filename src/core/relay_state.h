/* SPDX-License-Identifier: MIT
 *
 * relay_state.h: what a relay remembers from one step to the next, for the files that make it: relay.c,
 * relay_behind.c and relay_shards.c. See relay.h for what it promises.
 */
#ifndef SEMEL_CORE_RELAY_STATE_H
#define SEMEL_CORE_RELAY_STATE_H

#include "core/destination.h"
#include "core/relay.h"
#include "core/starts.h"
#include "core/token.h"

#define SECOND_US INT64_C(1000000)
#define RELAY_BEAT_SOON_US SECOND_US /* while shards are due to this relay that others still own */
#define RELAY_DESTINATIONS_MAX 256
#define RELAY_HOT_MAX 4

struct destination {
    char name[SEMEL_DESTINATION_MAX];
    size_t n;
    bool down, used; /* used: in this step */
    int failures;
    int64_t until_us; /* down: when to try it again, by the steady clock */
    int64_t worked_us;
    size_t sent, ok, broke; /* of this call; broke: events that it answered with an error of its own */
    uint64_t broke_at;      /* the event at which it last did so since it took one; 0: none */
    int breaks;             /* since it took one */
    bool probed;            /* in this step */
    bool takes_others;      /* it works: an event at which it broke in this call is charged */
    char why[SEMEL_PUBLISH_WHY];
};

/* An aggregate by its name: first the type, then the id. */
struct hot {
    char name[SEMEL_RELAY_AGGREGATE_MAX];
    size_t type_n, id_n;
};

/* Where a shard is read besides, above a run of very many events of few aggregates (relay_behind.c). */
struct behind {
    int64_t from, passed; /* above `from`, up to `passed`, every event is of one of these; BOTTOM: not known */
    uint64_t given_up;    /* starts.given_up when that was proven */
    struct hot hot[RELAY_HOT_MAX];
    size_t n_hot;
    int64_t next_us;  /* no search before, by the steady clock */
    bool read;        /* in this step */
    int64_t last_seq; /* up to which number */
    bool exhausted;   /* and there were no more */
};

struct shard {
    bool owned, careful;
    int64_t losses;
    int64_t last_seq; /* the last one that this step has read */
    bool exhausted;   /* and there were no more */
    size_t stuck;     /* how many of them do not go in this step */
    struct behind behind;
    int64_t peeked; /* the relay has looked at the events up to this number, which it has not read yet */
    int64_t other;  /* the number of one of them that may go: those before it must make room */
};

/* Where a shard is in an array. A mapped table's only one has a multiple of 64 as its number. */
static inline size_t semel__relay_index(int64_t shard)
{
    return (size_t)shard % SEMEL_RELAY_SHARDS;
}

struct semel_relay {
    struct semel_store *store;
    struct semel_broker *sink;
    const struct semel_relay_ops *ops;
    struct semel_relay_options options;
    struct semel_random *rng;
    const struct semel_clock *steady;
    struct semel_tokens tokens;
    struct semel_arena arenas[2], *arena; /* of this step; the other has what was confirmed in the last one */
    struct semel_arena mapping;           /* of a mapped table */
    bool mapped;
    int64_t first_shard; /* those of an outbox have the numbers from it on; arrays are by what is above it */
    bool joined, runs;
    int64_t token; /* 0: none yet */
    int64_t lease_until_us, next_beat_us, next_note_us, next_purge_us, next_step_us, peek_anew_us;
    int64_t now_us, now_steady_us; /* the store's clock at the last beat, and the steady one then */
    char why[SEMEL_RELAY_WHY];
    char trouble[SEMEL_RELAY_WHY]; /* of the sink as a whole; "": none */
    struct shard shards[SEMEL_RELAY_SHARDS];
    size_t n_owned, turn; /* turn: which shard is read first */
    size_t limit;         /* rows per shard */
    bool proof_known, proves;
    struct semel_starts starts;
    struct destination destinations[RELAY_DESTINATIONS_MAX];
    size_t n_destinations;
    int failures, idle_ms;
    bool idle, smooth; /* smooth: every event of the last call was confirmed */
    int large_for;     /* so many scans expect large events */
    /* Events that are confirmed, and not deleted yet. */
    struct semel_relay_event **gone;
    size_t n_gone;
    /* The events that were read while those of the last call were on their way. */
    struct {
        bool ready;
        struct semel_relay_start starts[SEMEL_RELAY_SHARDS];
        size_t n_starts;
        struct semel_relay_event *events;
        size_t n_events;
        int64_t floor;
        int in_a_row;
    } ahead;
    struct semel_relay_counts counts;
};

typedef semel_status (*relay_body)(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err);

/* Begins, calls the body, commits. After a failure it rolls back. After an unknown commit the caller reads again: the
 * events are still there, or they are not. */
semel_status semel__relay_transact(struct semel_relay *relay, relay_body body, void *ctx, struct semel_error *err);
/* Deletes the events that are confirmed but not deleted yet, and forgets the events that were read behind them. */
semel_status semel__relay_delete_gone(struct semel_relay *relay, struct semel_error *err);
/* Renews the lease, or joins, and acquires or gives back the shards that are due. */
semel_status semel__relay_beat(struct semel_relay *relay, int64_t steady_us, struct semel_error *err);

/* relay_behind.c. Forgets what is known of the run. */
void semel__relay_behind_forget(struct behind *behind);
/* May the shard be read above `passed`, too? `floor`: what was proven before the scan that gave last_seq. */
bool semel__relay_behind_usable(const struct semel_relay *relay, const struct shard *shard, int64_t floor);
bool semel__relay_behind_is_hot(const struct behind *behind, struct semel_str aggregatetype,
                                struct semel_str aggregateid);
/* Looks, from where it last stopped, how far the runs of these shards reach. */
semel_status semel__relay_behind_search(struct semel_relay *relay, int64_t steady_us, struct semel_error *err);

static inline void semel__relay_report(const struct semel_relay *relay, int level, const char *text,
                                       const struct semel_relay_event *event, const char *why)
{
    if (relay->options.report != NULL)
        relay->options.report(relay->options.ctx, level, text, event, why);
}

#endif
