/* SPDX-License-Identifier: MIT
 *
 * relay_shards.c: a relay's lease, and which shards are its own. See relay.h.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "core/relay_state.h"

#define BEAT_PARTS 3 /* the lease is renewed after a third of it */
#define LOSSES_MAX 2
#define PEERS_MAX 1000

struct beat {
    int64_t token;
    struct semel_relay_shard shards[SEMEL_RELAY_SHARDS], changed[SEMEL_RELAY_SHARDS];
    size_t n, n_changed, n_owned;
    bool soon;
    char why[SEMEL_RELAY_WHY];
};

static bool is_peer(const struct semel_relay_peer *peers, size_t n, int64_t token)
{
    for (size_t i = 0; i < n; i++)
        if (peers[i].token == token)
            return true;
    return false;
}

/* How many shards are due to this relay. The oldest relay says where events go; whoever differs gets none. */
static size_t share_of(struct beat *beat, const struct semel_relay *relay, const struct semel_relay_peer *peers,
                       size_t n)
{
    size_t rank = 0, alike = 0;
    for (size_t i = 0; i < n; i++) {
        rank = peers[i].token == beat->token ? alike : rank;
        alike += semel__str_eq(peers[i].destinations, peers[0].destinations);
    }
    if (n == 0 || !semel__str_eq(peers[0].destinations, relay->options.destinations)) {
        char owner[64] = "";
        if (n > 0)
            semel__str_show(owner, sizeof owner, peers[0].owner);
        snprintf(beat->why, sizeof beat->why, "relay %s publishes this outbox to other destinations", owner);
        return 0;
    }
    return beat->n / alike + (rank < beat->n % alike);
}

static void share_out(struct beat *beat, const struct semel_relay *relay, const struct semel_relay_peer *peers,
                      size_t n)
{
    const size_t share = share_of(beat, relay, peers, n);
    for (size_t i = 0; i < beat->n; i++)
        beat->n_owned += beat->shards[i].token == beat->token;
    for (size_t i = 0; i < beat->n; i++) {
        struct semel_relay_shard *s = &beat->shards[i];
        const bool mine = s->token == beat->token, free = s->token == SEMEL_NONE || !is_peer(peers, n, s->token);
        if (mine && beat->n_owned > share) {
            s->token = SEMEL_NONE;
            beat->n_owned--;
        } else if (!mine && free && beat->n_owned < share) {
            s->losses += s->token != SEMEL_NONE; /* its relay died with it */
            s->token = beat->token;
            beat->n_owned++;
        } else {
            continue;
        }
        beat->changed[beat->n_changed++] = *s;
    }
    beat->soon = beat->n_owned < share;
    if (relay->mapped && beat->n_owned == 0 && beat->why[0] == '\0') {
        char owner[64] = "";
        semel__str_show(owner, sizeof owner, peers[0].owner);
        snprintf(beat->why, sizeof beat->why, "a mapped table has one relay: %s works, and this one waits", owner);
        beat->soon = true;
    }
}

static semel_status give_back(struct semel_relay *relay, int64_t token, int64_t now_us, struct semel_error *err)
{
    struct semel_relay_shard shards[SEMEL_RELAY_SHARDS];
    size_t n = 0, k = 0;
    semel_status status = relay->ops->shards_read(relay->store, shards, &n, err);
    for (size_t i = 0; i < n; i++)
        if (shards[i].token == token) {
            shards[k] = shards[i];
            shards[k++].token = SEMEL_NONE;
        }
    if (status == SEMEL_OK && k > 0)
        status = relay->ops->shards_write(relay->store, shards, k, err);
    return status == SEMEL_OK ? relay->ops->leave(relay->store, token, now_us, err) : status;
}

static semel_status beat_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    struct beat *beat = ctx;
    struct semel_relay_peer *peers;
    size_t n_peers = 0;
    const int64_t until_us = semel__time_add(now_us, relay->options.lease_us);
    const struct semel_relay_ops *ops = relay->ops;
    char down[SEMEL_RELAY_WHY], shown[SEMEL_RELAY_WHY];
    const bool any_down = semel__relay_down(relay, down) > 0;
    semel__str_show(shown, sizeof shown, semel__str(down)); /* what a database takes, wherever it was cut */
    beat->token = relay->token;
    semel_status status = ops->expire(relay->store, now_us, now_us, relay->options.attempts_max, err);
    if (status == SEMEL_OK && relay->joined)
        status = ops->renew(relay->store, relay->token, until_us, semel__str(any_down ? shown : NULL), err);
    if (status == SEMEL_FENCED) { /* its lease had run out, and somebody saw it */
        status = SEMEL_OK;
        relay->joined = false;
    }
    if (status == SEMEL_OK && !relay->joined) {
        if (relay->token != 0)
            status = give_back(relay, relay->token, now_us, err);
        beat->token = semel__token_new(&relay->tokens, relay->rng, SEMEL_EFFECT_OUTSIDE, now_us, SEMEL_NONE);
        const struct semel_relay_peer self = {beat->token, relay->options.owner, relay->options.destinations};
        if (status == SEMEL_OK)
            status = ops->join(relay->store, &self, now_us, until_us, err);
    }
    if (status == SEMEL_OK)
        status = ops->peers(relay->store, PEERS_MAX, relay->arena, &peers, &n_peers, err);
    if (status == SEMEL_OK)
        status = ops->shards_read(relay->store, beat->shards, &beat->n, err);
    if (status != SEMEL_OK)
        return status;
    share_out(beat, relay, peers, n_peers);
    return beat->n_changed > 0 ? ops->shards_write(relay->store, beat->changed, beat->n_changed, err) : SEMEL_OK;
}

semel_status semel__relay_beat(struct semel_relay *relay, int64_t steady_us, struct semel_error *err)
{
    struct beat beat = {0};
    semel_status status = semel__relay_delete_gone(relay,
                                                   err); /* whoever gets a shard now sends nothing of that again */
    if (status == SEMEL_OK)
        status = semel__relay_transact(relay, beat_body, &beat, err);
    if (status != SEMEL_OK) {
        relay->joined = relay->joined && status == SEMEL_RETRY;
        return status;
    }
    relay->joined = true;
    relay->ahead.ready &= beat.token == relay->token && beat.n_owned > 0; /* others may have had the shards meanwhile */
    relay->token = beat.token;
    relay->n_owned = beat.n_owned;
    relay->lease_until_us = steady_us + relay->options.lease_us; /* from before it was asked for */
    relay->next_beat_us = steady_us + (beat.soon ? RELAY_BEAT_SOON_US : relay->options.lease_us / BEAT_PARTS);
    if (beat.why[0] != '\0' && strcmp(beat.why, relay->why) != 0)
        semel__relay_report(relay, SEMEL_LOG_WARN, "relay waits", NULL, beat.why);
    memcpy(relay->why, beat.why, sizeof relay->why);
    for (size_t i = 0; i < beat.n; i++) {
        struct shard *shard = &relay->shards[semel__relay_index(beat.shards[i].shard)];
        const bool owned = beat.shards[i].token == beat.token;
        if (owned && !shard->owned) { /* somebody else may have left rows below */
            semel__starts_reset(&relay->starts, semel__relay_index(beat.shards[i].shard));
            shard->peeked = shard->other = SEMEL_STARTS_BOTTOM;
            semel__relay_behind_forget(&shard->behind);
        }
        shard->owned = owned;
        shard->losses = beat.shards[i].losses;
        shard->careful = owned && shard->losses >= LOSSES_MAX;
    }
    return SEMEL_OK;
}

static semel_status leave_body(struct semel_relay *relay, int64_t now_us, void *ctx, struct semel_error *err)
{
    (void)ctx;
    semel_status status = relay->ops->expire(relay->store, now_us, now_us, relay->options.attempts_max, err);
    return status == SEMEL_OK ? give_back(relay, relay->token, now_us, err) : status;
}

semel_status semel__relay_leave(struct semel_relay *relay, struct semel_error *err)
{
    if (relay->token == 0)
        return SEMEL_OK;
    semel_status status = semel__relay_delete_gone(relay, err);
    if (status == SEMEL_OK)
        status = semel__relay_transact(relay, leave_body, NULL, err);
    if (status == SEMEL_OK) {
        relay->joined = false;
        relay->token = 0;
        relay->n_owned = 0;
        memset(relay->shards, 0, sizeof relay->shards);
    }
    return status;
}
