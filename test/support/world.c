/* SPDX-License-Identifier: MIT
 *
 * world.c: a fresh store per test. The contract stands in world.h.
 *
 * On PostgreSQL all tests of a program share one server and one database, each with empty tables.
 */
#include "support/world.h"

#include <stdlib.h>
#include <unistd.h>

#include "support/mem_store.h"
#ifdef SEMEL_WITH_SQLITE
#include <sqlite3.h>

#include "store/sqlite_store.h"
#endif
#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>

#include "pg/server.h"
#include "store/pg_store.h"
#endif

/* ---- mem ---------------------------------------------------------------------------------------------- */

static void mem_setup(struct world *world)
{
    struct semel_mem_db *db = NULL;

    assert_int_equal(semel__mem_db_new(&db, &world->clock), SEMEL_OK);
    world->place = db;
    assert_ok(world, semel__store_mem_open(&world->store, db, &world->options, &world->err));
    assert_ok(world, semel__store_mem_open(&world->other, db, &world->options, &world->err));
}

static void mem_teardown(struct world *world)
{
    semel_store_close(world->store);
    semel_store_close(world->other);
    semel__mem_db_free(world->place);
}

struct count {
    const char *source, *id;
    int64_t n;
};

static bool counts(const struct count *count, struct semel_str consumer, struct semel_str source, struct semel_str id)
{
    return semel__str_eqz(consumer, "c") && semel__str_eqz(source, count->source) && semel__str_eqz(id, count->id);
}

static void count_attempt(void *ctx, const struct semel_mem_attempt *attempt)
{
    struct count *count = ctx;
    count->n += counts(count, attempt->consumer, attempt->source, attempt->id);
}

static int64_t mem_attempts(struct world *world, const char *source, const char *id)
{
    struct count count = {source, id, 0};
    semel__mem_attempts(world->place, count_attempt, &count);
    return count.n;
}

static void count_conflict(void *ctx, const struct semel_mem_conflict *conflict)
{
    struct count *count = ctx;
    count->n += counts(count, conflict->consumer, conflict->source, conflict->id) ? conflict->count : 0;
}

static int64_t mem_conflicts(struct world *world, const char *source, const char *id)
{
    struct count count = {source, id, 0};
    semel__mem_conflicts(world->place, count_conflict, &count);
    return count.n;
}

static int64_t mem_events(struct world *world)
{
    return (int64_t)semel__mem_events(world->place, NULL, NULL);
}

static int64_t mem_audits(struct world *world)
{
    return (int64_t)semel__mem_audits(world->place, NULL);
}

static bool mem_damage(struct world *world, const char *source, const char *id)
{
    return semel__mem_damage(world->place, SEMEL_STR("c"), semel__str(source), semel__str(id));
}

static const struct driver mem_driver = {
    .name = "mem",
    .setup = mem_setup,
    .teardown = mem_teardown,
    .attempts = mem_attempts,
    .conflicts = mem_conflicts,
    .events = mem_events,
    .audits = mem_audits,
    .damage = mem_damage,
};

/* ---- sqlite ------------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_SQLITE
static void sqlite_setup(struct world *world)
{
    static const struct semel_store_ops *const linked[] = {&semel__store_sqlite, NULL};
    char url[128];
    sqlite3 *db = NULL;

    snprintf(world->dir, sizeof world->dir, "/tmp/semel-conform-XXXXXX");
    assert_non_null(mkdtemp(world->dir));
    snprintf(url, sizeof url, "sqlite:%s/store.db", world->dir);
    assert_ok(world, semel_store_open(&world->store, linked, url, &world->options, &world->err));
    /* One connection of its own a process: the second handle is on a connection of ours. */
    assert_int_equal(sqlite3_open(url + strlen("sqlite:"), &db), SQLITE_OK);
    world->place = db;
    assert_ok(world, semel__store_sqlite_wrap(&world->other, db, &world->options, &world->err));
}

static void sqlite_teardown(struct world *world)
{
    static const char *const files[] = {"store.db", "store.db-wal", "store.db-shm"};
    char path[128];

    semel_store_close(world->other);
    assert_int_equal(sqlite3_close(world->place), SQLITE_OK);
    semel_store_close(world->store);
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", world->dir, files[i]);
        unlink(path);
    }
    rmdir(world->dir);
}

/* The first column of the one row of `sql`, with ?1 and ?2 bound; through the first handle, so that it sees an open
 * transaction. */
static int64_t query(struct world *world, const char *sql, const char *source, const char *id)
{
    sqlite3 *db = semel_store_native(world->store);
    sqlite3_stmt *stmt = NULL;
    int64_t n;

    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    if (source != NULL) {
        sqlite3_bind_text(stmt, 1, source, -1, SQLITE_STATIC);
        sqlite3_bind_text(stmt, 2, id, -1, SQLITE_STATIC);
    }
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static int64_t sqlite_attempts(struct world *world, const char *source, const char *id)
{
    return query(world, "SELECT count(*) FROM semel_attempt WHERE consumer = 'c' AND source = ?1 AND message_id = ?2",
                 source, id);
}

static int64_t sqlite_conflicts(struct world *world, const char *source, const char *id)
{
    return query(world,
                 "SELECT coalesce(sum(count), 0) FROM semel_conflict "
                 "WHERE consumer = 'c' AND source = ?1 AND message_id = ?2",
                 source, id);
}

static int64_t sqlite_events(struct world *world)
{
    return query(world, "SELECT count(*) FROM semel_outbox", NULL, NULL);
}

static int64_t sqlite_audits(struct world *world)
{
    return query(world, "SELECT count(*) FROM semel_audit", NULL, NULL);
}

static bool sqlite_damage(struct world *world, const char *source, const char *id)
{
    return query(world,
                 "UPDATE semel_inbox SET version = -7 WHERE consumer = 'c' AND source = ?1 AND message_id = ?2 "
                 "RETURNING 1",
                 source, id) == 1;
}

static const struct driver sqlite_driver = {
    .name = "sqlite",
    .setup = sqlite_setup,
    .teardown = sqlite_teardown,
    .attempts = sqlite_attempts,
    .conflicts = sqlite_conflicts,
    .events = sqlite_events,
    .audits = sqlite_audits,
    .damage = sqlite_damage,
};
#endif

/* ---- postgres ----------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_POSTGRES
static struct pg_server server;

static void end_server(void)
{
    pg_server_done(&server);
}

/* B3 P85: what is planted in `public`, before anything of ours is there; in its end none of it may have been called. */
static void plant(void)
{
    const char *path = getenv("SEMEL_PLANTED");
    static char text[1 << 16];
    FILE *file = path != NULL ? fopen(path, "r") : NULL;

    if (path == NULL)
        return;
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    pg_server_sql(&server, "conform", text);
}

static void nothing_planted_was_called(void)
{
    if (getenv("SEMEL_PLANTED") != NULL)
        assert_int_equal(pg_server_ask(&server, "conform", "SELECT is_called::integer FROM public.planted"), 0);
}

/* The database of all tests, made and migrated by the first. */
static void need_server(struct world *world, char url[PG_SERVER_TEXT])
{
    static const struct semel_store_ops *const linked[] = {&semel__store_postgres, NULL};

    if (server.port != 0) {
        pg_server_url(&server, "conform", url);
        return;
    }
    pg_server_start(&server, PG_SERVER_NO_FSYNC);
    atexit(end_server);
    pg_server_database(&server, "conform");
    plant();
    pg_server_url(&server, "conform", url);
    assert_ok(world, semel_store_open(&world->store, linked, url, &world->options, &world->err));
    semel_store_close(world->store);
}

/* Much faster than TRUNCATE, which makes new files. */
static void empty_tables(void)
{
    pg_server_sql(&server, "conform",
                  "SET session_replication_role = replica; DO $$ DECLARE t record; BEGIN "
                  "FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'semel' AND tablename <> 'schema' LOOP "
                  "EXECUTE pg_catalog.format('DELETE FROM semel.%I', t.tablename); END LOOP; "
                  "PERFORM pg_catalog.setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S' "
                  "AND relnamespace = 'semel'::regnamespace; END $$");
}

static void postgres_setup(struct world *world)
{
    static const struct semel_store_ops *const linked[] = {&semel__store_postgres, NULL};
    char url[PG_SERVER_TEXT], conninfo[PG_SERVER_TEXT];
    PGconn *conn;

    need_server(world, url);
    empty_tables();
    assert_ok(world, semel_store_open(&world->store, linked, url, &world->options, &world->err));
    conn = PQconnectdb(pg_server_conninfo(&server, "conform", conninfo));
    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    world->place = conn;
    assert_ok(world, semel__store_pg_wrap(&world->other, conn, &world->options, &world->err));
}

static void postgres_teardown(struct world *world)
{
    semel_store_close(world->other);
    PQfinish(world->place);
    semel_store_close(world->store);
    nothing_planted_was_called();
}

/* The first column of the one row of `sql`, with $1 and $2 bound; through the first handle, so that it sees an open
 * transaction. */
static int64_t ask(struct world *world, const char *sql, const char *source, const char *id)
{
    PGconn *conn = semel_store_native(world->store);
    const char *const values[] = {source, id};
    PGresult *res = PQexecParams(conn, sql, source != NULL ? 2 : 0, NULL, values, NULL, NULL, 0);
    int64_t n = 0;

    if (PQresultStatus(res) != PGRES_TUPLES_OK || PQntuples(res) != 1)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    assert_true(semel__str_int64(semel__str(PQgetvalue(res, 0, 0)), &n));
    PQclear(res);
    return n;
}

static int64_t postgres_attempts(struct world *world, const char *source, const char *id)
{
    return ask(world, "SELECT count(*) FROM semel.attempt WHERE consumer = 'c' AND source = $1 AND message_id = $2",
               source, id);
}

static int64_t postgres_conflicts(struct world *world, const char *source, const char *id)
{
    return ask(world,
               "SELECT coalesce(sum(count), 0)::bigint FROM semel.conflict "
               "WHERE consumer = 'c' AND source = $1 AND message_id = $2",
               source, id);
}

static int64_t postgres_events(struct world *world)
{
    return ask(world, "SELECT count(*) FROM semel.outbox", NULL, NULL);
}

static int64_t postgres_audits(struct world *world)
{
    return ask(world, "SELECT count(*) FROM semel.audit", NULL, NULL);
}

static bool postgres_damage(struct world *world, const char *source, const char *id)
{
    return ask(world,
               "UPDATE semel.inbox SET attempts_before = attempts + 7 WHERE consumer = 'c' AND source = $1 AND "
               "message_id = $2 "
               "RETURNING 1",
               source, id) == 1;
}

static const struct driver postgres_driver = {
    .name = "postgres",
    .setup = postgres_setup,
    .teardown = postgres_teardown,
    .attempts = postgres_attempts,
    .conflicts = postgres_conflicts,
    .events = postgres_events,
    .audits = postgres_audits,
    .damage = postgres_damage,
};
#endif

const struct driver *const world_drivers[] = {
    &mem_driver,
#ifdef SEMEL_WITH_SQLITE
    &sqlite_driver,
#endif
#ifdef SEMEL_WITH_POSTGRES
    &postgres_driver,
#endif
    NULL,
};

/* ---- a world ------------------------------------------------------------------------------------------ */

const struct driver *world_driver;

const struct driver *world_driver_named(const char *name)
{
    for (size_t i = 0; world_drivers[i] != NULL; i++)
        if (strcmp(world_drivers[i]->name, name) == 0)
            return world_drivers[i];
    return NULL;
}

static int64_t world_now(void *ctx)
{
    return ((struct world *)ctx)->now_us;
}

int world_setup(void **state)
{
    struct world *world = semel__calloc(1, sizeof *world);

    assert_non_null(world);
    world->driver = world_driver;
    world->now_us = T0;
    world->clock = (struct semel_clock){world_now, world};
    semel__random_seed(&world->rng, 7);
    world->options = (struct semel_store_options){
        .clock = &world->clock, .rng = &world->rng, .lock_timeout_ms = 100, .create = true, .migrate = true};
    semel__arena_init(&world->arena, 64 << 20);
    world->driver->setup(world);
    *state = world;
    return 0;
}

int world_teardown(void **state)
{
    struct world *world = *state;

    world->driver->teardown(world);
    semel__arena_done(&world->arena);
    semel__free(world);
    return 0;
}
