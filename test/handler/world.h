/* SPDX-License-Identifier: MIT
 *
 * world.h: a route with the handler `sql` on a real database, for the tests of the handler.
 *
 * argv[1] of a test is the store: `sqlite`, a file of its own, or `postgres`, one private server a program and an empty
 * database a test. What the tests write is SQL that both understand, unless they say for which it is.
 */
#ifndef SEMEL_TEST_HANDLER_WORLD_H
#define SEMEL_TEST_HANDLER_WORLD_H

#include "base/error.h"
#include "base/random.h"
#include "handler/sql.h"
#include "unit/unit.h"

#define WORLD_BATCH 600

struct world {
    bool pg;
    char url[192], dir[64];
    struct semel_store *store;
    struct semel_policy policy;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_sql *sql;
    struct semel_arena keep; /* of what a test keeps until its end */
    struct semel_settled settled[WORLD_BATCH];
    struct semel_error err;
};

int world_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n);
int world_setup(void **state);
int world_teardown(void **state);
/* The store anew, with a parameter added to its URL (PostgreSQL). */
void world_reopen(struct world *w, const char *parameter);

#define ON_WORLD(test) cmocka_unit_test_setup_teardown(test, world_setup, world_teardown)

#define assert_ok(w, call)                                                  \
    do {                                                                    \
        semel_status status_ = (call);                                      \
        if (status_ != SEMEL_OK)                                            \
            fail_msg("%s: %s", semel__status_name(status_), (w)->err.text); \
    } while (0)

/* ---- the database, on a connection of the test's own ---- */

void sql(struct world *w, const char *text);
int64_t ask(struct world *w, const char *text); /* the one number that it gives */

/* ---- the handler ---- */

/* The rules are separated by blanks. */
semel_status try_make(struct world *w, enum semel_sql_mode mode, const char *statement, const char *rules);
void make(struct world *w, enum semel_sql_mode mode, const char *statement, const char *rules); /* and its inbox */
/* It is refused as BROKEN, and the text says this. */
void assert_refused(struct world *w, enum semel_sql_mode mode, const char *statement, const char *rules,
                    const char *text);

/* ---- messages ---- */

struct semel__msg message(const char *id, const char *payload); /* source "s", with a fingerprint */
/* {"account":ACCOUNT,"amount":AMOUNT} under the id m-N; kept by the world. */
struct semel__msg booking(struct world *w, int n, int account, int amount);
semel_status try_process(struct world *w, const struct semel__msg *msgs, size_t n);
void process(struct world *w, const struct semel__msg *msgs, size_t n); /* asserts OK, and that each is acknowledged */
/* How many rows of the inbox have this status; NULL: any. */
int64_t rows(struct world *w, const char *status);
/* The error that the row has. */
void assert_error_of(struct world *w, const char *id, const char *text);

#endif
