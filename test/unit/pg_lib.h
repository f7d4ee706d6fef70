/* SPDX-License-Identifier: MIT
 *
 * pg_lib.h: for tests of libsemel on PostgreSQL: databases with a table for effects.
 */
#ifndef SEMEL_TEST_PG_LIB_H
#define SEMEL_TEST_PG_LIB_H

#include "base/error.h"
#include "semel/semel.h"
#include "support/world_pg.h"
#include "unit/unit.h"

#define assert_fine(d, call)                          \
    do {                                              \
        if ((call) != SEMEL_OK)                       \
            fail_msg("%s: %s", #call, (d)->err.text); \
    } while (0)

static inline void add_effects(const char *url)
{
    (void)url;
    pg_server_sql(&world_server, "model", "CREATE TABLE effect (id text NOT NULL)");
}

static inline int start(void **state)
{
    (void)state;
    world_pg_start(add_effects);
    return 0;
}

static inline int stop(void **state)
{
    (void)state;
    world_pg_done();
    return 0;
}

#endif
