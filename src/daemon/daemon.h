/* SPDX-License-Identifier: MIT
 *
 * daemon.h: `semel run`: the routes of a file of settings, running until somebody stops them.
 *
 * The only room that owns threads. What it runs is made of units; a route is one. A route has one source thread, which
 * polls the broker, hands out deliveries and applies the answers, and never waits for a handler or a store; and some
 * workers, each one thread with one store connection (on SQLite they share one, store/share.h). Between them is a
 * handoff (handoff.h). The workers of a route that listens poll its HTTP endpoint themselves. One thread more answers
 * HTTP, one counts rows for the gauges, one answers operators, and the caller's thread waits for signals.
 *
 * Stopping: the first SIGTERM or SIGINT: nothing new is taken, what runs is finished and answered, what was not begun
 * is given back, within `stop_within`; the second, or the end of that time: at once. Nothing is lost either way: what
 * was committed stays, what was not is rolled back by the database and comes again from the broker. SIGHUP reads
 * certificates, tokens and secrets of signatures again.
 *
 * Invariants: a route that fails waits and tries again, and no other route waits for it. Nothing is acknowledged that
 * is not committed. The order of lanes survives the threads (handoff.h).
 */
#ifndef SEMEL_DAEMON_DAEMON_H
#define SEMEL_DAEMON_DAEMON_H

#include "conf/conf.h"
#include "core/relay.h"
#include "core/store.h"

struct semel_daemon;

struct semel_daemon_options {
    const struct semel_store_ops *const *stores; /* ended by NULL */
    struct semel_log *log;                       /* or NULL */
    const char *file;                            /* where the settings are from, for the mark of consumers */
    /* NULL, or: the settings as they are now, for the tokens in them. It returns NULL when they cannot be used, and has
     * told why. */
    struct semel_conf *(*reread)(void *ctx);
    void *ctx;
};

/* Everything is borrowed for the life of the daemon. Opens the store once, to see whether there is a schema: INVALID
 * says what is wrong there; a server that cannot be reached is no reason not to start. Binds what listens. Blocks the
 * signals of the calling thread that semel__daemon_run waits for, so it is called before other threads exist. */
semel_status semel__daemon_new(struct semel_daemon **ret, const struct semel_conf *conf,
                               const struct semel_daemon_options *options, struct semel_error *err);
/* Runs until it is stopped by a signal. *ret_clean: everything was finished or given back in time. A stop at once does
 * not return: the process ends with 128 + the signal. */
semel_status semel__daemon_run(struct semel_daemon *daemon, bool *ret_clean, struct semel_error *err);
void semel__daemon_free(struct semel_daemon *daemon);

/* `semel relay --once`: publishes what is committed when it begins and can go, without threads, and returns. */
struct semel_relay_once {
    uint64_t published;
    int64_t left, aside;       /* events that are still there: in the outbox, and aside */
    char why[SEMEL_RELAY_WHY]; /* why nothing went; "": see `left` */
};
semel_status semel__daemon_relay_once(const struct semel_conf *conf, const struct semel_daemon_options *options,
                                      struct semel_relay_once *ret, struct semel_error *err);

#endif
