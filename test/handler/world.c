/* SPDX-License-Identifier: MIT
 *
 * world.c: a route with the handler `sql` on a real database. The contract stands in world.h.
 */
#define _GNU_SOURCE /* memmem */
#include "handler/world.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "pg/server.h"
#include "store/pg_store.h"

static struct pg_server server;
#endif

static bool on_pg;

static const struct semel_store_ops *const linked[] = {
    &semel__store_sqlite,
#ifdef SEMEL_WITH_POSTGRES
    &semel__store_postgres,
#endif
    NULL,
};

int world_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    const char *store = argc > 1 ? argv[1] : "sqlite";
    on_pg = strcmp(store, "postgres") == 0;
#ifdef SEMEL_WITH_POSTGRES
    if (on_pg)
        pg_server_start(&server, PG_SERVER_NO_FSYNC);
#endif
    int failed = _cmocka_run_group_tests(store, tests, n, NULL, NULL);
#ifdef SEMEL_WITH_POSTGRES
    if (on_pg)
        pg_server_done(&server);
#endif
    return failed;
}

/* ---- up and down --------------------------------------------------------------------------------- */

static void place(struct world *w)
{
#ifdef SEMEL_WITH_POSTGRES
    if (w->pg) {
        pg_server_database(&server, "t");
        pg_server_url(&server, "t", w->url);
        return;
    }
#endif
    snprintf(w->dir, sizeof w->dir, "/tmp/semel-handler-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->url, sizeof w->url, "sqlite:%s/t.db", w->dir);
}

static void open_store(struct world *w)
{
    const struct semel_store_options options = {.lock_timeout_ms = 500, .create = true, .migrate = true};
    assert_ok(w, semel_store_open(&w->store, linked, w->url, &options, &w->err));
}

int world_setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->pg = on_pg;
    semel__random_seed(&w->rng, 11);
    semel__policy_init(&w->policy, SEMEL_STR("c"));
    semel__arena_init(&w->keep, (size_t)1 << 26);
    place(w);
    open_store(w);
    *state = w;
    return 0;
}

static void unmake(struct world *w)
{
    if (w->sql != NULL)
        semel__inbox_done(&w->inbox);
    semel__sql_handler_free(w->sql);
    w->sql = NULL;
}

void world_reopen(struct world *w, const char *parameter)
{
    size_t n = strlen(w->url);
    unmake(w);
    semel_store_close(w->store);
    snprintf(w->url + n, sizeof w->url - n, "?%s", parameter);
    open_store(w);
}

int world_teardown(void **state)
{
    static const char *const files[] = {"t.db", "t.db-wal", "t.db-shm"};
    struct world *w = *state;
    unmake(w);
    semel_store_close(w->store);
    for (size_t i = 0; !w->pg && i < COUNT(files); i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", w->dir, files[i]);
        unlink(path);
    }
    if (!w->pg)
        rmdir(w->dir);
    semel__arena_done(&w->keep);
    free(w);
    return 0;
}

/* ---- the database -------------------------------------------------------------------------------- */

static int take_number(void *ctx, int n, char **values, char **names)
{
    (void)names;
    assert_int_equal(n, 1);
    assert_true(semel__str_int64(semel__str(values[0]), ctx));
    return 0;
}

static int64_t sqlite_run(struct world *w, const char *text)
{
    sqlite3 *db = NULL;
    int64_t n = 0;
    char *why = NULL;
    assert_int_equal(sqlite3_open(w->url + strlen("sqlite:"), &db), SQLITE_OK);
    if (sqlite3_exec(db, text, take_number, &n, &why) != SQLITE_OK)
        fail_msg("%s: %s", text, why);
    sqlite3_close(db);
    return n;
}

void sql(struct world *w, const char *text)
{
#ifdef SEMEL_WITH_POSTGRES
    if (w->pg) {
        pg_server_sql(&server, "t", text);
        return;
    }
#endif
    sqlite_run(w, text);
}

int64_t ask(struct world *w, const char *text)
{
#ifdef SEMEL_WITH_POSTGRES
    if (w->pg)
        return pg_server_ask(&server, "t", text);
#endif
    return sqlite_run(w, text);
}

/* ---- the handler --------------------------------------------------------------------------------- */

semel_status try_make(struct world *w, enum semel_sql_mode mode, const char *statement, const char *rules)
{
    struct semel_str values[SEMEL_SQL_VALUES_MAX + 8];
    struct semel_sql_desc desc = {.statement = semel__str(statement),
                                  .mode = mode,
                                  .values = values,
                                  .ordered = w->policy.order != SEMEL_ORDER_NONE};
    for (const char *p = rules; *p != '\0';) {
        size_t n = strcspn(p, " ");
        assert_true(desc.n_values < COUNT(values));
        values[desc.n_values++] = (struct semel_str){p, n};
        p += n + strspn(p + n, " ");
    }
    unmake(w);
    return semel__sql_handler_new(&w->sql, &desc, w->store, &w->err);
}

void make(struct world *w, enum semel_sql_mode mode, const char *statement, const char *rules)
{
    assert_ok(w, try_make(w, mode, statement, rules));
    semel__inbox_init(&w->inbox, w->store, &w->policy, semel__sql_handler(w->sql), &w->rng, SEMEL_STR("worker-1"));
}

void assert_refused(struct world *w, enum semel_sql_mode mode, const char *statement, const char *rules,
                    const char *text)
{
    assert_int_equal(try_make(w, mode, statement, rules), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_null(w->sql);
    if (strstr(w->err.text, text) == NULL)
        fail_msg("%s\nsays: %s\ninstead of: %s", statement, w->err.text, text);
}

/* ---- messages ------------------------------------------------------------------------------------ */

struct semel__msg message(const char *id, const char *payload)
{
    struct semel__msg msg;
    semel__msg_init(&msg);
    msg.source = SEMEL_STR("s");
    msg.id = semel__str(id);
    msg.payload = semel__str(payload);
    msg.delivery = 1;
    assert_int_equal(semel__fp_compute(msg.payload, &msg.fp, NULL), SEMEL_OK);
    return msg;
}

struct semel__msg booking(struct world *w, int n, int account, int amount)
{
    char id[24], payload[80];
    struct semel_str kept_id, kept_payload;
    snprintf(id, sizeof id, "m-%d", n);
    snprintf(payload, sizeof payload, "{\"account\":%d,\"amount\":%d}", account, amount);
    assert_true(semel__arena_copy(&w->keep, semel__str(id), &kept_id));
    assert_true(semel__arena_copy(&w->keep, semel__str(payload), &kept_payload));
    return message(kept_id.p, kept_payload.p);
}

semel_status try_process(struct world *w, const struct semel__msg *msgs, size_t n)
{
    assert_true(n <= WORLD_BATCH);
    return semel__inbox_process(&w->inbox, msgs, n, w->settled, &w->err);
}

void process(struct world *w, const struct semel__msg *msgs, size_t n)
{
    assert_ok(w, try_process(w, msgs, n));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(w->settled[i].act, SEMEL_ACK);
}

#define TABLE(w) ((w)->pg ? "semel.inbox" : "semel_inbox")

int64_t rows(struct world *w, const char *status)
{
    char text[128];
    snprintf(text, sizeof text, "SELECT count(*) FROM %s WHERE status = '%s' OR %d = 1", TABLE(w),
             status != NULL ? status : "", status == NULL);
    return ask(w, text);
}

void assert_error_of(struct world *w, const char *id, const char *text)
{
    struct semel_scan scan = {.kind = SEMEL_SCAN_ALL, .consumer = SEMEL_STR("c"), .after_arrival = -1, .max = 10000};
    struct semel_row *found = NULL;
    size_t n = 0, damaged = 0;
    assert_ok(w, semel_store_scan(w->store, &scan, &w->keep, &found, &n, &damaged, &w->err));
    for (size_t i = 0; i < n; i++) {
        struct semel_str said = found[i].live.error_text;
        if (!semel__str_eqz(found[i].id, id))
            continue;
        if (!semel__str_given(said) || memmem(said.p, said.n, text, strlen(text)) == NULL)
            fail_msg("%s: \"%.*s\" instead of \"%s\"", id, (int)said.n, said.p, text);
        return;
    }
    fail_msg("there is no row of %s", id);
}
