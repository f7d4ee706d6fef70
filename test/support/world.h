/* SPDX-License-Identifier: MIT
 *
 * world.h: a fresh store per test, on any driver: in memory, SQLite on a temporary file, PostgreSQL on its own server.
 *
 * What it is: an empty store under a clock that stands still, a second handle on the same data, SQL by somebody else,
 * and a look at what the contract of stores has no operation for (attempts, conflicts, events, audit lines). What it is
 * not: anything that knows the contract.
 */
#ifndef SEMEL_TEST_SUPPORT_WORLD_H
#define SEMEL_TEST_SUPPORT_WORLD_H

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "core/store.h"
#include "unit/unit.h"

#define T0 INT64_C(1700000000000000) /* when a world begins */
#define SECOND INT64_C(1000000)

struct driver;

/* A fresh store, for one test. */
struct world {
    const struct driver *driver;
    int64_t now_us; /* the clock of the store */
    struct semel_clock clock;
    struct semel_random rng;
    struct semel_store_options options;
    struct semel_arena arena;
    struct semel_store *store, *other; /* two handles on the same data; `other` is NULL where a driver has none */
    struct semel_error err;
    void *place;                  /* the driver's: a database in memory, or the connection of `other` */
    char dir[64], path[128];      /* SQLite: the folder, which is removed with all its files, and the file in it */
    char url[256], conninfo[192]; /* of the store; for libpq */
};

struct driver {
    const char *name;
    void (*make)(struct world *world, bool tables); /* a place for the store; false: without tables, or a file */
    semel_status (*open)(struct world *world);      /* world->store */
    void (*open_other)(struct world *world);        /* world->other, where it can */
    void (*teardown)(struct world *world);
    void (*sql)(struct world *world, const char *text);
    int64_t (*ask)(struct world *world, const char *text);
    /* What consumer "c" has; -1: this driver cannot tell. */
    int64_t (*attempts)(struct world *world, const char *source, const char *id);
    int64_t (*conflicts)(struct world *world, const char *source, const char *id); /* the sum of the counts */
    int64_t (*events)(struct world *world);
    int64_t (*audits)(struct world *world);
    bool (*damage)(struct world *world, const char *source, const char *id); /* makes the row unreadable */
};

/* "mem", "sqlite", "postgres"; NULL: this build has no such driver. */
const struct driver *world_driver_named(const char *name);
extern const struct driver *const world_drivers[]; /* all of them, ended by NULL */

extern const struct driver *world_driver;               /* which one the next setup uses */
extern const struct semel_store_options *world_options; /* the same; NULL: the clock that stands still */
int world_setup(void **state);                          /* *state is a struct world */
int world_alone(void **state);                          /* the same without `other` */
int world_bare(void **state); /* nothing is there, and nothing opened: no file, a database without tables */
int world_teardown(void **state);

/* Opens world->store, on its URL and with its options. */
semel_status world_open(struct world *world);
/* On a connection of somebody else; `ask` gives the one number that the query returns. SQLite and PostgreSQL. */
void world_sql(struct world *world, const char *text);
int64_t world_ask(struct world *world, const char *text);

#define assert_ok(world, call)                                                  \
    do {                                                                        \
        semel_status status_ = (call);                                          \
        if (status_ != SEMEL_OK)                                                \
            fail_msg("%s: %s", semel__status_name(status_), (world)->err.text); \
    } while (0)

#endif
