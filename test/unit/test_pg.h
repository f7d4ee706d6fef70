/* SPDX-License-Identifier: MIT
 *
 * test_pg.h: what the tests of the PostgreSQL driver share: a world on the server's clock, and short ways to do things
 * with a store.
 */
#ifndef SEMEL_TEST_PG_H
#define SEMEL_TEST_PG_H

#include <libpq-fe.h>
#include <stdlib.h>

#include "store/pg.h"
#include "support/world.h"
#include "support/world_pg.h"

#define NOW INT64_C(1700000000000000)
#define CONSUMER SEMEL_STR("c")

static const struct semel_store_ops *const linked[] = {&semel__store_postgres, &semel__store_postgresql, NULL};
static const struct semel_store_options usual = {.lock_timeout_ms = 200, .migrate = true};

#define ok(w, call) assert_ok(w, call)

/* On an empty database, and not opened. */
static inline int bare(void **state)
{
    world_driver = world_driver_named("postgres");
    return world_bare(state);
}

static inline int opened(void **state)
{
    world_driver = world_driver_named("postgres");
    world_options = &usual;
    return world_alone(state);
}

static inline void sql(const char *text)
{
    pg_server_sql(&world_server, "t", text);
}

static inline long long ask(const char *text)
{
    return pg_server_ask(&world_server, "t", text);
}

/* On the store's own connection, as a handler would. */
static inline bool handler(struct world *w, const char *text)
{
    PGresult *result = PQexec(semel_store_native(w->store), text);
    bool done = semel__pg_succeeded(result);
    if (!done)
        semel__pg_fail(semel_store_native(w->store), result, "handler", &w->err);
    PQclear(result);
    return done;
}

static inline void begin(struct world *w)
{
    int64_t now_us = 0;
    ok(w, semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err));
    assert_true(now_us > 0);
}

static inline struct semel_admit item_of(const char *id, enum semel_row_status state, const char *key)
{
    struct semel_admit item = {.row = {.source = SEMEL_STR("s"),
                                       .id = semel__str(id),
                                       .order_key = semel__str(key),
                                       .version = SEMEL_NONE,
                                       .message_time_us = SEMEL_NONE,
                                       .received_us = NOW,
                                       .updated_us = NOW,
                                       .progress = {.state = state,
                                                    .due_us = SEMEL_NONE,
                                                    .processed_us = SEMEL_NONE,
                                                    .lease_until_us = SEMEL_NONE,
                                                    .lease_token = SEMEL_NONE}}};
    if (state == SEMEL_ROW_COMPLETED)
        item.row.progress.processed_us = NOW;
    return item;
}

static inline semel_status try_admit(struct world *w, struct semel_store *store, struct semel_admit *item,
                                     struct semel_key *key)
{
    struct semel_admit_batch batch = {
        .consumer = CONSUMER, .now_us = NOW, .keys = key, .n_keys = key != NULL, .items = item, .n_items = 1};
    return semel_store_admit(store, &batch, &w->arena, &w->err);
}

/* Whether it was new. */
static inline bool admit(struct world *w, const char *id)
{
    struct semel_admit item = item_of(id, SEMEL_ROW_COMPLETED, NULL);
    ok(w, try_admit(w, w->store, &item, NULL));
    return item.inserted;
}

static inline PGconn *connect_to(const struct world *w)
{
    PGconn *conn = PQconnectdb(w->conninfo);
    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    return conn;
}

static inline void exec(PGconn *conn, const char *text)
{
    PGresult *result = PQexec(conn, text);
    if (!semel__pg_succeeded(result))
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    PQclear(result);
}

#endif
