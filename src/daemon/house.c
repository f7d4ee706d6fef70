/* SPDX-License-Identifier: MIT
 *
 * house.c: a task of the daemon: housekeeping (core/house.h) of consumers that are no routes of its file, and of
 * idempotency keys. So the messages of a program that uses SQL alone get their leases recovered, their gaps decided and
 * their old rows purged wherever a daemon runs. No handler runs here: nobody but the program itself can do that.
 *
 * On a connection of its own, so that it is in no worker's way; `schedule.others: false` turns it off. The first worker
 * of each route keeps house for that route.
 *
 * Invariants: bounded rounds, at most ROWS rows each; a failure is logged once, and tried again.
 */
#include "core/house.h"

#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"
#include "daemon/internal.h"

#define ROWS 1000
#define PAUSE_US INT64_C(1000000) /* between rounds, at least */
#define QUIET_MAX 3               /* up to eight times as long where nothing happens */

struct others {
    struct semel_daemon *daemon;
    struct semel_store *store;
    struct semel_random rng;
    struct semel_house house;
    char owner[128];
    char said[sizeof((struct semel_error){0}.text)]; /* of the consumer that was reported last */
    int failures, quiet;
    bool down; /* the connection is to be made anew */
};

static bool is_no_route(void *ctx, struct semel_str consumer)
{
    const struct semel_conf *conf = ((const struct others *)ctx)->daemon->conf;
    for (size_t i = 0; i < conf->n_routes; i++)
        if (semel__str_eq(conf->routes[i].name, consumer))
            return false;
    return true;
}

/* A consumer whose settings cannot be read is news once. */
static void report(struct others *o, const struct semel_house_round *round, size_t keys)
{
    const char *damage = round->damage.status != SEMEL_OK ? round->damage.text : "";
    if (round->n + keys > 0)
        SEMEL__LOG(o->daemon->log, SEMEL_LOG_DEBUG, "housekeeping of other consumers",
                   SEMEL_F_INT("recovered", round->done[SEMEL_HOUSE_RECOVERED]),
                   SEMEL_F_INT("decided", round->done[SEMEL_HOUSE_DECIDED]),
                   SEMEL_F_INT("woken", round->done[SEMEL_HOUSE_WOKEN]),
                   SEMEL_F_INT("purged", round->done[SEMEL_HOUSE_PURGED]), SEMEL_F_INT("keys", keys));
    if (damage[0] != '\0' && strcmp(damage, o->said) != 0)
        SEMEL__LOG(o->daemon->log, SEMEL_LOG_WARN, "no housekeeping for a consumer", SEMEL_F_Z("error", damage));
    snprintf(o->said, sizeof o->said, "%s", damage);
}

/* *ret_full: there is more to do. */
static semel_status run_round(struct others *o, bool *ret_full, struct semel_error *err)
{
    struct semel_house_round round = {.wants = is_no_route, .ctx = o, .max = ROWS};
    size_t keys = 0;
    semel_status status = SEMEL_OK;
    if (o->store == NULL) {
        status = semel__daemon_open_store(o->daemon, &o->store, err);
        if (status != SEMEL_OK)
            return status;
        semel__house_init(&o->house, o->store, &o->rng, semel__str(o->owner));
    }
    if (o->down)
        status = semel_store_reopen(o->store, err);
    o->down = status != SEMEL_OK;
    if (status == SEMEL_OK)
        status = semel__house_round(&o->house, &round, err);
    if (status == SEMEL_OK)
        status = semel__house_keys(&o->house, ROWS, &keys, err);
    o->down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    report(o, &round, keys);
    *ret_full = round.n >= ROWS || keys >= ROWS;
    o->quiet = round.n + keys > 0 ? 0 : o->quiet < QUIET_MAX ? o->quiet + 1 : QUIET_MAX;
    return status;
}

static int pause_ms(const struct others *o)
{
    int64_t every_us = o->daemon->conf->schedule.every_us;
    return (int)(((every_us > PAUSE_US ? every_us : PAUSE_US) << o->quiet) / 1000);
}

void semel__daemon_others(void *arg)
{
    struct others o = {.daemon = arg};
    semel__random_seed_os(&o.rng);
    snprintf(o.owner, sizeof o.owner, "%s/%ld/house", o.daemon->host, (long)getpid());
    while (!semel__daemon_stopping(o.daemon)) {
        struct semel_error err = {0};
        bool full = false;
        semel__task_beat(&o.daemon->others);
        semel_status status = run_round(&o, &full, &err);
        int wait_ms = full ? 0 : pause_ms(&o);
        if (status != SEMEL_OK) {
            wait_ms = semel__daemon_backoff_ms(++o.failures, &o.rng);
            if (o.failures == 1)
                SEMEL__LOG(o.daemon->log, SEMEL_LOG_WARN, "cannot keep house for other consumers; retrying",
                           SEMEL_F_Z("error", err.text), SEMEL_F_INT("retry_ms", wait_ms));
        } else
            o.failures = 0;
        semel__daemon_sleep(o.daemon, wait_ms);
    }
    if (o.store != NULL)
        semel__house_done(&o.house);
    semel_store_close(o.store);
}
