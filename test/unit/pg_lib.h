/* SPDX-License-Identifier: MIT
 *
 * pg_lib.h: for tests of libsemel on PostgreSQL: one private server a program, with a database `model` that has
 * Semel's tables and one for effects. A test works on a copy of it.
 */
#ifndef SEMEL_TEST_PG_LIB_H
#define SEMEL_TEST_PG_LIB_H

#include "base/error.h"
#include "pg/server.h"
#include "semel/semel.h"
#include "unit/unit.h"

static struct pg_server server;

#define assert_fine(d, call)                          \
    do {                                              \
        if ((call) != SEMEL_OK)                       \
            fail_msg("%s: %s", #call, (d)->err.text); \
    } while (0)

static inline int start(void **state)
{
    struct semel *s = NULL;
    struct semel_error err;
    char url[PG_SERVER_TEXT];

    (void)state;
    pg_server_start(&server, PG_SERVER_NO_FSYNC);
    pg_server_database(&server, "model");
    if (semel_open(&s, pg_server_url(&server, "model", url), SEMEL_MIGRATE, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    semel_close(s);
    pg_server_sql(&server, "model", "CREATE TABLE effect (id text NOT NULL)");
    return 0;
}

static inline int stop(void **state)
{
    (void)state;
    pg_server_done(&server);
    return 0;
}

#endif
