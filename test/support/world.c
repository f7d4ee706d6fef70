/* SPDX-License-Identifier: MIT
 *
 * world.c: a fresh store per test. The contract stands in world.h.
 *
 * On PostgreSQL all tests of a program share one server, and each has a database with empty tables.
 */
#include "support/world.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/mem_store.h"
#ifdef SEMEL_WITH_SQLITE
#include <sqlite3.h>

#include "store/sqlite_store.h"
#endif
#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>

#include "store/pg_store.h"
#include "support/world_pg.h"
#endif

/* ---- mem ---------------------------------------------------------------------------------------------- */

static void mem_make(struct world *world, bool tables)
{
    struct semel_mem_db *db = NULL;

    (void)tables;
    assert_int_equal(semel__mem_db_new(&db, &world->clock), SEMEL_OK);
    world->place = db;
}

static semel_status mem_open(struct world *world)
{
    return semel__store_mem_open(&world->store, world->place, &world->options, &world->err);
}

static void mem_open_other(struct world *world)
{
    assert_ok(world, semel__store_mem_open(&world->other, world->place, &world->options, &world->err));
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
    .make = mem_make,
    .open = mem_open,
    .open_other = mem_open_other,
    .teardown = mem_teardown,
    .attempts = mem_attempts,
    .conflicts = mem_conflicts,
    .events = mem_events,
    .audits = mem_audits,
    .damage = mem_damage,
};

/* ---- sqlite ------------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_SQLITE
static void sqlite_make(struct world *world, bool tables)
{
    (void)tables; /* made when it is opened */
    snprintf(world->dir, sizeof world->dir, "/tmp/semel-world-XXXXXX");
    assert_non_null(mkdtemp(world->dir));
    snprintf(world->path, sizeof world->path, "%s/s.db", world->dir);
    snprintf(world->url, sizeof world->url, "sqlite:%s", world->path);
}

static semel_status sqlite_open(struct world *world)
{
    static const struct semel_store_ops *const linked[] = {&semel__store_sqlite, NULL};
    return semel_store_open(&world->store, linked, world->url, &world->options, &world->err);
}

/* One connection of its own per process: the second handle is on a connection of ours. */
static void sqlite_open_other(struct world *world)
{
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open(world->path, &db), SQLITE_OK);
    world->place = db;
    assert_ok(world, semel__store_sqlite_wrap(&world->other, db, &world->options, &world->err));
}

static void sqlite_teardown(struct world *world)
{
    DIR *dir = opendir(world->dir);

    semel_store_close(world->other);
    assert_int_equal(sqlite3_close(world->place), SQLITE_OK);
    semel_store_close(world->store);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        (void)unlinkat(dirfd(dir), entry->d_name, entry->d_type == DT_DIR ? AT_REMOVEDIR : 0);
    closedir(dir);
    assert_int_equal(rmdir(world->dir), 0);
}

static int keep_number(void *ctx, int n, char **values, char **names)
{
    (void)names;
    assert_int_equal(n, 1);
    assert_true(semel__str_int64(semel__str(values[0]), ctx));
    return 0;
}

static int64_t sqlite_ask(struct world *world, const char *text)
{
    sqlite3 *db = NULL;
    int64_t n = 0;

    assert_int_equal(sqlite3_open(world->path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 1000);
    if (sqlite3_exec(db, text, keep_number, &n, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return n;
}

static void sqlite_sql(struct world *world, const char *text)
{
    (void)sqlite_ask(world, text);
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
    .make = sqlite_make,
    .open = sqlite_open,
    .open_other = sqlite_open_other,
    .teardown = sqlite_teardown,
    .sql = sqlite_sql,
    .ask = sqlite_ask,
    .attempts = sqlite_attempts,
    .conflicts = sqlite_conflicts,
    .events = sqlite_events,
    .audits = sqlite_audits,
    .damage = sqlite_damage,
};
#endif

/* ---- postgres ----------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_POSTGRES
#define DATABASE "t"

static void postgres_make(struct world *world, bool tables)
{
    char url[PG_SERVER_TEXT];

    world_pg_need(NULL);
    if (tables)
        world_pg_database(DATABASE, url);
    else
        pg_server_database(&world_server, DATABASE);
    snprintf(world->url, sizeof world->url, "%s", pg_server_url(&world_server, DATABASE, url));
    pg_server_conninfo(&world_server, DATABASE, world->conninfo);
}

static semel_status postgres_open(struct world *world)
{
    static const struct semel_store_ops *const linked[] = {&semel__store_postgres, NULL};
    return semel_store_open(&world->store, linked, world->url, &world->options, &world->err);
}

static void postgres_open_other(struct world *world)
{
    PGconn *conn = PQconnectdb(world->conninfo);

    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    world->place = conn;
    assert_ok(world, semel__store_pg_wrap(&world->other, conn, &world->options, &world->err));
}

static void postgres_teardown(struct world *world)
{
    semel_store_close(world->other);
    PQfinish(world->place);
    semel_store_close(world->store);
    world_pg_unharmed(DATABASE);
}

static void postgres_sql(struct world *world, const char *text)
{
    (void)world;
    pg_server_sql(&world_server, DATABASE, text);
}

static int64_t postgres_ask(struct world *world, const char *text)
{
    (void)world;
    return pg_server_ask(&world_server, DATABASE, text);
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
    .make = postgres_make,
    .open = postgres_open,
    .open_other = postgres_open_other,
    .teardown = postgres_teardown,
    .sql = postgres_sql,
    .ask = postgres_ask,
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
const struct semel_store_options *world_options;

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

static struct world *world_new(bool tables)
{
    struct world *world = semel__calloc(1, sizeof *world);

    assert_non_null(world);
    world->driver = world_driver;
    world->now_us = T0;
    world->clock = (struct semel_clock){world_now, world};
    semel__random_seed(&world->rng, 7);
    world->options = (struct semel_store_options){
        .clock = &world->clock, .rng = &world->rng, .lock_timeout_ms = 100, .create = true, .migrate = true};
    if (world_options != NULL)
        world->options = *world_options;
    semel__arena_init(&world->arena, 64 << 20);
    world->driver->make(world, tables);
    return world;
}

int world_bare(void **state)
{
    *state = world_new(false);
    return 0;
}

int world_alone(void **state)
{
    struct world *world = world_new(true);

    assert_ok(world, world_open(world));
    *state = world;
    return 0;
}

int world_setup(void **state)
{
    struct world *world;

    world_alone(state);
    world = *state;
    world->driver->open_other(world);
    return 0;
}

semel_status world_open(struct world *world)
{
    semel__error_clear(&world->err);
    world->store = NULL;
    return world->driver->open(world);
}

void world_sql(struct world *world, const char *text)
{
    world->driver->sql(world, text);
}

int64_t world_ask(struct world *world, const char *text)
{
    return world->driver->ask(world, text);
}

int world_teardown(void **state)
{
    struct world *world = *state;

    world->driver->teardown(world);
    semel__arena_done(&world->arena);
    semel__free(world);
    return 0;
}
