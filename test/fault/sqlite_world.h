/* SPDX-License-Identifier: MIT
 *
 * sqlite_world.h: a world on SQLite whose memory and disk can be made to fail.
 *
 * SQLite's allocations are routed through semel__alloc_permitted, its files through a VFS that can fail any
 * write or sync. A child reports by its exit status: EXPECT ends it, cmocka would end the parent.
 */
#ifndef SEMEL_TEST_SQLITE_WORLD_H
#define SEMEL_TEST_SQLITE_WORLD_H

#include <sqlite3.h>

#include "store/records.h"
#include "store/sqlite_store.h"
#include "support/world.h"

#define NOW INT64_C(1700000000000000)
#define CONSUMER SEMEL_STR("billing")
#define SKIPPED 77

#define EXPECT(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

/* begin, admit, settle, commit of one message with all that can be with it. *ret_at says where it stopped. */
enum at { AT_BEGIN, AT_WORK, AT_COMMIT, AT_END };

extern unsigned allocation, failing_allocation; /* how many so far, and which one fails; 0: none */
extern unsigned io_call, failing_io;            /* the same for writes and syncs */
extern const struct semel_store_ops *const drivers[];
extern const struct semel_store_options usual;

void fail_allocation(unsigned n);
void fail_io(unsigned n, int error, bool syncs);
void install(void);
int setup_dir(void **state);
int setup(void **state);
int teardown(void **state);
int in_child(struct world *w, void (*fn)(struct world *));
void sql_on(sqlite3 *db, const char *text);
int64_t ask(struct world *w, const char *text);
struct semel_admit item_of(const char *id);
semel_status work(struct world *w, struct semel_admit *item);
semel_status process(struct world *w, const char *id, enum at *ret_at);
semel_status process_one(struct world *w, const char *id);
void assert_says(struct world *w, const char *what);

#define ON(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define BARE(name) cmocka_unit_test_setup_teardown(name, setup_dir, teardown)

#endif
