/* SPDX-License-Identifier: MIT
 *
 * relay_rig.h: a relay on a real store, with a sink that remembers what it got and can refuse, be down or die. Names
 * are short: only test programs of the relay have them.
 */
#ifndef TEST_RELAY_RIG_H
#define TEST_RELAY_RIG_H

#include "core/relay.h"
#include "support/world.h"

#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>
#endif

#define GOT_MAX 20000

struct got {
    char id[40], key[24], destination[24], type[24], payload[24];
    bool tombstone, has_user_header, has_foreign_id;
    size_t own, headers; /* headers whose names are Semel's; all of them */
    char ce_id[40], ce_time[40], traceparent[60];
};

/* Publishes into memory. */
struct sink {
    struct semel_broker base;
    struct semel_broker_ops ops;
    struct got *got;
    size_t n;
    size_t calls, most; /* most: items in one call */
    const char *refuse; /* type of events that are refused */
    const char *breaks; /* type of events which the destination answers with an error of its own */
    size_t broken;
    const char *down;  /* destination */
    const char *hangs; /* destination, or the beginning of several, that never answers: its call takes all its time */
    int64_t hung_us;
    bool all_down, unknown;
    void (*during)(void); /* what others do while it publishes */
};

struct rig {
    struct world *world;
    struct sink sink, other_sink;
    struct semel_relay *relay, *other;
    struct semel_relay_options options;
    struct semel_random rng;
    int64_t steady_us;
    struct semel_clock steady;
    char reported[4096];
};

extern struct rig rig;
extern bool on_postgres;

struct semel_relay *relay_on(struct semel_store *store, struct sink *sink, const char *owner);
int up(void **state);
int down(void **state);
void pass(int64_t us);
void put(const char *aggregate, const char *type, const char *to);
void step_of(struct semel_relay *relay);
void steps(int n);
int64_t count_in(const char *table, const char *where);
const char *got_of(const struct sink *sink, const char *key);
void again_with(struct semel_relay_options options);
#ifdef SEMEL_WITH_POSTGRES
PGconn *session(void);
void sql(PGconn *conn, const char *text);
void put_by(PGconn *conn, const char *aggregate, const char *type);
#endif

#endif
