/* SPDX-License-Identifier: MIT
 *
 * contract.h: what the tests of the store contract share: rows, and short ways to say "in a transaction of its own".
 */
#ifndef SEMEL_TEST_CONTRACT_H
#define SEMEL_TEST_CONTRACT_H

#include "core/state.h"
#include "support/world.h"

struct semel_str text(const char *z); /* NULL: not given */
/* A changing part that fits the status: leases, due times and times of processing as row.h wants them. */
struct semel_progress progress_as(enum semel_row_status state);
/* A row of source "s" that was received at T0. `order_key` may be NULL. */
struct semel_row row_of(const char *id, enum semel_row_status state, const char *order_key, int64_t version);
/* An item for admit of such a row. */
struct semel_admit item_of(const char *id, enum semel_row_status state, const char *order_key, int64_t version);
/* A change of source "s" from one status to another, under no token. */
struct semel_change change_of(const char *id, enum semel_row_status from, enum semel_row_status to);

int64_t begin(struct world *world); /* returns the store's time */
void commit(struct world *world);
/* In the open transaction. admit gives the items places in their order, unless they have some. */
void admit(struct world *world, struct semel_admit *items, size_t n);
void admit_keyed(struct world *world, struct semel_admit *items, size_t n, struct semel_key *keys, size_t n_keys);
void settle(struct world *world, struct semel_change *changes, size_t n);
/* In a transaction of their own. */
void put(struct world *world, const char *id, enum semel_row_status state, const char *order_key, int64_t version);
bool move(struct world *world, const char *id, enum semel_row_status from, enum semel_row_status to);
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
