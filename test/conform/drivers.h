/* SPDX-License-Identifier: MIT
 *
 * drivers.h: the store drivers that the conformance program can be run with, and the world that each test gets.
 *
 * What it is: how to make an empty store, a second handle on it, and how to look at what the contract has no
 * operation for (attempts, conflicts, events, audit lines). What it is not: anything that knows the contract.
 */
#ifndef SEMEL_TEST_DRIVERS_H
#define SEMEL_TEST_DRIVERS_H

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "core/state.h"
#include "core/store.h"
#include "unit/unit.h"

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
    void *place; /* the driver's */
    char dir[64];
};

struct driver {
    const char *name;
    void (*setup)(struct world *world); /* opens world->store, and world->other where it can */
    void (*teardown)(struct world *world);
    /* What consumer "c" has; -1: this driver cannot tell. */
    int64_t (*attempts)(struct world *world, const char *source, const char *id);
    int64_t (*conflicts)(struct world *world, const char *source, const char *id); /* the sum of the counts */
    int64_t (*events)(struct world *world);
    int64_t (*audits)(struct world *world);
    bool (*damage)(struct world *world, const char *source, const char *id); /* makes the row unreadable */
};

extern const struct driver *const drivers[]; /* ended by NULL */

/* ---- for the tests (contract.c) ----------------------------------------------------------------------- */

#define T0 INT64_C(1700000000000000) /* when a world begins */
#define SECOND INT64_C(1000000)

int world_setup(void **state);
int world_teardown(void **state);
extern const struct driver *world_driver; /* which one the next setup uses */

struct semel_str text(const char *z); /* NULL: not given */
/* A live part that fits the status: leases, due times and times of processing as row.h wants them. */
struct semel_live live_as(enum semel_state state);
/* A row of source "s" that was received at T0. `order_key` may be NULL. */
struct semel_row row_of(const char *id, enum semel_state state, const char *order_key, int64_t version);
/* An item for admit of such a row. */
struct semel_admit item_of(const char *id, enum semel_state state, const char *order_key, int64_t version);
/* A change of source "s" from one status to another, under no token. */
struct semel_change change_of(const char *id, enum semel_state from, enum semel_state to);

#define assert_ok(world, call)                                                  \
    do {                                                                        \
        semel_status status_ = (call);                                          \
        if (status_ != SEMEL_OK)                                                \
            fail_msg("%s: %s", semel__status_name(status_), (world)->err.text); \
    } while (0)

int64_t begin(struct world *world); /* returns the store's time */
void commit(struct world *world);
/* In the open transaction. admit gives the items places in their order, unless they have some. */
void admit(struct world *world, struct semel_admit *items, size_t n);
void admit_keyed(struct world *world, struct semel_admit *items, size_t n, struct semel_key *keys, size_t n_keys);
void settle(struct world *world, struct semel_change *changes, size_t n);
/* In a transaction of their own. */
void put(struct world *world, const char *id, enum semel_state state, const char *order_key, int64_t version);
bool move(struct world *world, const char *id, enum semel_state from, enum semel_state to);
struct semel_row *fetch(struct world *world, const char *id); /* which must be there; in the world's arena */
struct semel_key facts(struct world *world, const char *key, bool by_version);
/* The ids of a scan, each followed by a blank, in the world's arena. */
const char *scan_ids(struct world *world, const struct semel_scan *scan);
const char *all_ids(struct world *world);

void assert_str_is(struct semel_str s, struct semel_str expected);
void assert_found_is(const struct semel_row *row,
                     const struct semel_row *expected); /* what admit must give of a final row */
void assert_row_is(const struct semel_row *row, const struct semel_row *expected);

/* The tests of each file, ended by one with no name. */
extern const struct CMUnitTest admit_tests[], settle_tests[], look_tests[], consumer_tests[], position_tests[],
    setting_tests[];

#endif
