/* SPDX-License-Identifier: MIT
 *
 * look.h: rows to be looked at, put into a SQLite store by hand, for the tests of what operators ask.
 */
#ifndef SEMEL_TEST_LOOK_H
#define SEMEL_TEST_LOOK_H

#include <sqlite3.h>

#include "unit/engine.h"

#include "core/look.h"
#include "core/state.h"

#define ANY ((struct semel_filter){.received_before_us = SEMEL_NONE, .received_after_us = SEMEL_NONE})
#define BIT(state) (1u << SEMEL_STATE_##state)
#define UNENDED (BIT(PROCESSING) | BIT(FAILED) | BIT(WAITING) | BIT(UNKNOWN) | BIT(DEAD) | BIT(QUARANTINED))

/* What is not given is NULL; received_us and due_us count from START_US, 0: START_US and NULL. */
struct fake {
    const char *consumer, *source, *id;
    enum semel_state state;
    const char *type, *key, *cls, *text;
    int64_t received_us, due_us;
};

#define FAKE(consumer_, source_, id_, state_, ...) \
    ((struct fake){.consumer = (consumer_), .source = (source_), .id = (id_), .state = (state_), __VA_ARGS__})

static inline void put(struct engine *e, struct fake f)
{
    sqlite3 *db = semel_store_native(e->store);
    sqlite3_stmt *stmt = NULL;
    bool final = semel__state_final(f.state), leased = f.state == SEMEL_STATE_PROCESSING;
    int64_t arrival = sql_int(e,
                              "UPDATE semel_counter SET value = value + 1 WHERE name = 'arrival' RETURNING value - 1");
    const char *texts[] = {f.consumer, f.source, f.id,   semel__state_name(f.state), f.type,
                           f.key,      f.cls,    f.text, leased ? "worker-1" : NULL};
    assert_int_equal(sqlite3_prepare_v2(
                         db,
                         "INSERT INTO semel_inbox (consumer, source, message_id, status, type, order_key, error_class, "
                         "error_text, lease_owner, arrival, received_at, updated_at, due_at, processed_at, "
                         "lease_until, lease_token, attempts, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, "
                         "?10, ?11, ?11, ?12, ?13, ?14, ?15, 1, x'7061')",
                         -1, &stmt, NULL),
                     SQLITE_OK);
    for (int i = 0; i < (int)COUNT(texts); i++)
        sqlite3_bind_text(stmt, i + 1, texts[i], -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 10, arrival);
    sqlite3_bind_int64(stmt, 11, START_US + f.received_us);
    if (f.due_us != 0)
        sqlite3_bind_int64(stmt, 12, START_US + f.due_us);
    if (final)
        sqlite3_bind_int64(stmt, 13, START_US);
    if (leased) {
        sqlite3_bind_int64(stmt, 14, START_US + arrival);
        sqlite3_bind_int64(stmt, 15, arrival);
    }
    if (sqlite3_step(stmt) != SQLITE_DONE)
        fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_finalize(stmt);
}

static inline size_t list(struct engine *e, struct semel_filter filter, int64_t after, size_t max,
                          struct semel_row **ret)
{
    size_t n = 0, damaged = 0;
    semel__arena_reset(&e->arena);
    assert_ok(e, semel_look_list(e->store, &filter, after, max, false, &e->arena, ret, &n, &damaged, &e->err));
    assert_int_equal(damaged, 0);
    return n;
}

/* The ids of all that match, in order, with blanks between. */
static inline void assert_lists(struct engine *e, struct semel_filter filter, const char *ids)
{
    struct semel_row *rows = NULL;
    char got[1000] = "";
    size_t n = list(e, filter, SEMEL_NONE, 1000, &rows);
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", i > 0 ? " " : "", (int)rows[i].id.n,
                 rows[i].id.p);
    assert_string_equal(got, ids);
}

static inline void assert_says(struct engine *e, const char *what)
{
    if (strstr(e->err.text, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", e->err.text, what);
}

static inline void begin(struct engine *e)
{
    int64_t now_us;
    assert_ok(e, semel_store_begin(e->store, SEMEL_TX_OWN, &now_us, &e->err));
}

static inline void commit(struct engine *e)
{
    assert_ok(e, semel_store_commit(e->store, &e->err));
}

#endif
