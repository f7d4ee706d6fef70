/* SPDX-License-Identifier: MIT
 *
 * test_pg.h: what the tests of the PostgreSQL driver share: one private server a program, an empty database a test, and
 * short ways to say what they do with a store.
 */
#ifndef SEMEL_TEST_PG_H
#define SEMEL_TEST_PG_H

#include <libpq-fe.h>
#include <stdlib.h>

#include "base/error.h"
#include "pg/model.h"
#include "pg/server.h"
#include "store/pg.h"
#include "unit/unit.h"

#define NOW INT64_C(1700000000000000)
#define CONSUMER SEMEL_STR("c")

static const struct semel_store_ops *const linked[] = {&semel__store_postgres, &semel__store_postgresql, NULL};
static const struct semel_store_options usual = {.lock_timeout_ms = 200, .migrate = true};
static struct pg_server server;

struct world {
    char url[PG_SERVER_TEXT], conninfo[PG_SERVER_TEXT];
    struct semel_store *store;
    struct semel_arena arena;
    struct semel_error err;
};

#define ok(w, call)                                                         \
    do {                                                                    \
        semel_status status_ = (call);                                      \
        if (status_ != SEMEL_OK)                                            \
            fail_msg("%s: %s", semel__status_name(status_), (w)->err.text); \
    } while (0)

static inline void end_server(void)
{
    pg_server_done(&server);
}

static inline void need_server(void)
{
    struct semel_store *store = NULL;
    struct semel_error err;
    char url[PG_SERVER_TEXT];
    if (server.port != 0)
        return;
    pg_server_start(&server, PG_SERVER_NO_FSYNC);
    atexit(end_server);
    pg_server_database(&server, "model");
    if (semel_store_open(&store, linked, pg_server_url(&server, "model", url), &usual, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    semel_store_close(store);
    pg_model_seal(&server);
}

static inline struct world *world_new(void)
{
    struct world *w = semel__calloc(1, sizeof(*w));
    assert_non_null(w);
    need_server();
    pg_server_url(&server, "t", w->url);
    pg_server_conninfo(&server, "t", w->conninfo);
    semel__arena_init(&w->arena, 64 << 20);
    return w;
}

/* On an empty database, and not opened. */
static inline int world_bare(void **state)
{
    struct world *w = world_new();
    pg_server_database(&server, "t");
    *state = w;
    return 0;
}

static inline int world_open(void **state)
{
    struct world *w = world_new();
    *state = w;
    pg_model_copy(&server, "t");
    ok(w, semel_store_open(&w->store, linked, w->url, &usual, &w->err));
    return 0;
}

static inline int world_close(void **state)
{
    struct world *w = *state;
    semel_store_close(w->store);
    semel__arena_done(&w->arena);
    semel__free(w);
    return 0;
}

static inline void sql(const char *text)
{
    pg_server_sql(&server, "t", text);
}

static inline long long ask(const char *text)
{
    return pg_server_ask(&server, "t", text);
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

static inline struct semel_admit item_of(const char *id, enum semel_state state, const char *key)
{
    struct semel_admit item = {.row = {.source = SEMEL_STR("s"),
                                       .id = semel__str(id),
                                       .order_key = semel__str(key),
                                       .version = SEMEL_NONE,
                                       .message_time_us = SEMEL_NONE,
                                       .received_us = NOW,
                                       .updated_us = NOW,
                                       .live = {.state = state,
                                                .due_us = SEMEL_NONE,
                                                .processed_us = SEMEL_NONE,
                                                .lease_until_us = SEMEL_NONE,
                                                .lease_token = SEMEL_NONE}}};
    if (state == SEMEL_STATE_COMPLETED)
        item.row.live.processed_us = NOW;
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
    struct semel_admit item = item_of(id, SEMEL_STATE_COMPLETED, NULL);
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
