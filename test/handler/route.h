/* SPDX-License-Identifier: MIT
 *
 * route.h: a route with the handler `sql` on a real database, for the tests of the handler.
 *
 * argv[1] of a test is the store of its worlds, `sqlite` or `postgres`. What the tests write is SQL that both
 * understand, unless they name the store that it is for.
 */
#ifndef SEMEL_TEST_HANDLER_ROUTE_H
#define SEMEL_TEST_HANDLER_ROUTE_H

#include "handler/sql.h"
#include "support/world.h"

#define ROUTE_BATCH 600

struct route {
    struct world *world;
    struct semel_store *store; /* the world's */
    bool pg;
    struct semel_policy policy;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_sql *sql;
    struct semel_arena keep; /* of what a test keeps until its end */
    struct semel_settled settled[ROUTE_BATCH];
    struct semel_error err;
};

int route_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n);
int route_setup(void **state);
int route_teardown(void **state);
/* The store anew, with a parameter added to its URL (PostgreSQL). */
void route_reopen(struct route *w, const char *parameter);

#define ON_ROUTE(test) cmocka_unit_test_setup_teardown(test, route_setup, route_teardown)

/* ---- the database, on a connection of the test's own ---- */

void sql(struct route *w, const char *text);
int64_t ask(struct route *w, const char *text); /* the one number that it gives */

/* ---- the handler ---- */

/* The rules are separated by blanks. */
semel_status try_make(struct route *w, enum semel_sql_mode mode, const char *statement, const char *rules);
void make(struct route *w, enum semel_sql_mode mode, const char *statement, const char *rules); /* and its inbox */
/* It is refused as BROKEN, and the text says this. */
void assert_refused(struct route *w, enum semel_sql_mode mode, const char *statement, const char *rules,
                    const char *text);

/* ---- messages ---- */

struct semel__msg message(const char *id, const char *payload); /* source "s", with a fingerprint */
/* {"account":ACCOUNT,"amount":AMOUNT} under the id m-N; kept by the route. */
struct semel__msg booking(struct route *w, int n, int account, int amount);
semel_status try_process(struct route *w, const struct semel__msg *msgs, size_t n);
void process(struct route *w, const struct semel__msg *msgs, size_t n); /* asserts OK, and that each is acknowledged */
/* How many rows of the inbox have this status; NULL: any. */
int64_t rows(struct route *w, const char *status);
/* The error that the row has. */
void assert_error_of(struct route *w, const char *id, const char *text);

#endif
