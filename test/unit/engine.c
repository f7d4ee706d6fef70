/* SPDX-License-Identifier: MIT
 *
 * engine.c: the engine around a test. The contract stands in engine.h.
 *
 * The spy takes the place of the store's functions: it notes the call, answers a planned fault, or passes the call
 * on. One store is spied on at a time.
 */
#include "unit/engine.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef SEMEL_WITH_POSTGRES
#include "unit/engine_pg.h"
#endif

static struct {
    struct engine *e;
    const struct semel_store_ops *real;
    struct semel_store_ops ops;
} spy;

/* ---- notes -------------------------------------------------------------------------------------------- */

void note(struct engine *e, const char *word, struct semel_str id)
{
    size_t n = strlen(e->trace), room = sizeof e->trace - n;
    if (id.p != NULL)
        snprintf(e->trace + n, room, "%s:%.*s ", word, (int)id.n, id.p);
    else
        snprintf(e->trace + n, room, "%s ", word);
}

static void note_op(struct engine *e, const char *op)
{
    note(e, op, (struct semel_str){0});
}

void forget(struct engine *e)
{
    e->trace[0] = '\0';
    e->seen = (struct seen){0};
    e->plan = e->then = (struct plan){0};
}

void fail_at(struct engine *e, const char *op, unsigned nth, enum fault fault)
{
    e->plan = (struct plan){.op = op, .nth = nth, .fault = fault};
}

/* ---- the spy ------------------------------------------------------------------------------------------ */

static enum fault ask_plan(struct plan *plan, const char *op, size_t n)
{
    if (plan->op == NULL || strcmp(op, plan->op) != 0 || n <= plan->above)
        return FAULT_NONE;
    plan->seen++;
    return plan->seen == plan->nth || (plan->on && plan->seen > plan->nth) ? plan->fault : FAULT_NONE;
}

static enum fault planned(const char *op, size_t n)
{
    enum fault fault = ask_plan(&spy.e->plan, op, n);
    return fault != FAULT_NONE ? fault : ask_plan(&spy.e->then, op, n);
}

static semel_status answer(struct semel_store *store, enum fault fault, struct semel_error *err)
{
    switch (fault) {
    case FAULT_NONE:
    case FAULT_STALL:
        break;
    case FAULT_CONTENTION:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "spy: contention");
    case FAULT_WORLD:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "spy: the world failed");
    case FAULT_BROKEN:
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "spy: no such table");
    case FAULT_CLOSED:
    case FAULT_UNKNOWN_DONE:
    case FAULT_UNKNOWN_LOST:
        spy.real->rollback(store);
        spy.e->dead = true;
        break;
    }
    if (fault == FAULT_UNKNOWN_DONE || fault == FAULT_UNKNOWN_LOST)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_ENVIRONMENT, "spy: the connection was lost during commit");
    if (spy.e->dead)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "spy: the connection is closed");
    return SEMEL_OK;
}

static semel_status enter(struct semel_store *store, const char *op, size_t n, struct semel_error *err)
{
    return spy.e->dead ? answer(store, FAULT_NONE, err) : answer(store, planned(op, n), err);
}

static semel_status spy_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err)
{
    spy.e->seen.begins++;
    note_op(spy.e, "begin");
    semel_status status = enter(store, "begin", 1, err);
    return status == SEMEL_OK ? spy.real->begin(store, tx, ret_now_us, err) : status;
}

static semel_status spy_commit(struct semel_store *store, struct semel_error *err)
{
    enum fault fault = spy.e->dead ? FAULT_CLOSED : planned("commit", 1);
    spy.e->seen.commits++;
    note_op(spy.e, "commit");
    if (fault == FAULT_UNKNOWN_DONE || fault == FAULT_STALL) {
        semel_status status = spy.real->commit(store, err);
        if (status != SEMEL_OK)
            return status;
        if (fault == FAULT_STALL)
            spy.e->now_us += spy.e->policy.lease_us + 1;
    } else if (fault != FAULT_NONE) {
        spy.real->rollback(store);
    }
    return fault != FAULT_NONE ? answer(store, fault, err) : spy.real->commit(store, err);
}

static void spy_rollback(struct semel_store *store)
{
    spy.e->seen.rollbacks++;
    note_op(spy.e, "rollback");
    spy.real->rollback(store);
}

static semel_status spy_reopen(struct semel_store *store, struct semel_error *err)
{
    note_op(spy.e, "reopen");
    spy.e->dead = planned("reopen", 1) != FAULT_NONE;
    return spy.e->dead ? answer(store, FAULT_CLOSED, err) : spy.real->reopen(store, err);
}

static semel_status spy_admit(struct semel_store *store, struct semel_admit_batch *batch, struct semel_arena *arena,
                              struct semel_error *err)
{
    spy.e->seen.admits++;
    spy.e->seen.items += batch->n_items;
    semel_status status = enter(store, "admit", batch->n_items, err);
    if (status == SEMEL_OK)
        status = spy.real->admit(store, batch, arena, err);
    for (size_t i = 0; status == SEMEL_OK && i < batch->n_items; i++)
        spy.e->seen.inserted += batch->items[i].inserted;
    return status;
}

/* Whoever does not wait for a lock does not get a key that somebody is taking. */
static bool sat_on(const struct semel_fetch_batch *batch)
{
    for (size_t i = 0; batch->impatient && spy.e->sits_on != NULL && i < batch->n_business; i++)
        if (batch->business[i].key.n == 1 && strchr(spy.e->sits_on, batch->business[i].key.p[0]) != NULL)
            return true;
    return false;
}

static semel_status spy_fetch(struct semel_store *store, struct semel_fetch_batch *batch, struct semel_arena *arena,
                              struct semel_error *err)
{
    spy.e->seen.fetches++;
    spy.e->seen.impatient += batch->impatient;
    if (sat_on(batch))
        return answer(store, FAULT_CONTENTION, err);
    for (size_t i = 0; i < batch->n_items; i++)
        spy.e->seen.frees += batch->items[i].frees;
    semel_status status = enter(store, "fetch", batch->n_items, err);
    return status == SEMEL_OK ? spy.real->fetch(store, batch, arena, err) : status;
}

static semel_status spy_settle(struct semel_store *store, struct semel_settle_batch *batch, struct semel_error *err)
{
    spy.e->seen.settles++;
    spy.e->seen.changes += batch->n_changes;
    semel_status status = enter(store, "settle", 1, err);
    return status == SEMEL_OK ? spy.real->settle(store, batch, err) : status;
}

static semel_status spy_savepoint(struct semel_store *store, struct semel_error *err)
{
    spy.e->seen.savepoints++;
    return spy.real->savepoint(store, err);
}

static semel_status spy_parked(struct semel_store *store, struct semel_str consumer, int64_t max, int64_t *ret,
                               struct semel_error *err)
{
    note_op(spy.e, "parked");
    return spy.real->parked(store, consumer, max, ret, err);
}

static void spy_on(struct engine *e)
{
    spy.e = e;
    spy.real = e->store->ops;
    spy.ops = *spy.real;
    spy.ops.begin = spy_begin;
    spy.ops.commit = spy_commit;
    spy.ops.rollback = spy_rollback;
    spy.ops.reopen = spy_reopen;
    spy.ops.admit = spy_admit;
    spy.ops.fetch = spy_fetch;
    spy.ops.settle = spy_settle;
    spy.ops.parked = spy_parked;
    spy.ops.savepoint = spy_savepoint;
    e->store->ops = &spy.ops;
}

/* ---- SQLite ------------------------------------------------------------------------------------------- */

static semel_status sqlite_open(struct engine *e)
{
    static const struct semel_store_ops *const linked[] = {&semel__store_sqlite, NULL};
    const struct semel_store_options options = {.clock = &e->clock, .rng = &e->rng, .create = true, .migrate = true};
    char url[100] = "sqlite::memory:";
    if (e->path[0] != '\0')
        snprintf(url, sizeof url, "sqlite:%s", e->path);
    semel_status status = semel_store_open(&e->store, linked, url, &options, &e->err);
    if (status != SEMEL_OK)
        return status;
    int rc = sqlite3_exec(semel_store_native(e->store),
                          "CREATE TABLE IF NOT EXISTS effect (id TEXT NOT NULL, attempt INTEGER NOT NULL);"
                          "CREATE INDEX IF NOT EXISTS effect_id ON effect (id);"
                          "CREATE TABLE IF NOT EXISTS parent (id INTEGER PRIMARY KEY);"
                          "CREATE TABLE IF NOT EXISTS child (parent INTEGER NOT NULL REFERENCES parent (id) DEFERRABLE "
                          "INITIALLY DEFERRED);"
                          "INSERT OR IGNORE INTO parent VALUES (1)",
                          NULL, NULL, NULL);
    return rc == SQLITE_OK ? SEMEL_OK : semel__sqlite_fail(semel_store_native(e->store), rc, "schema", &e->err);
}

static semel_status sqlite_effect(struct semel_store *store, struct semel_str id, int attempt, struct semel_error *err)
{
    sqlite3 *db = semel_store_native(store);
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, "INSERT INTO effect (id, attempt) VALUES (?1, ?2)", -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(stmt, 1, id.p, (int)id.n, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int(stmt, 2, attempt);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    semel_status status = rc == SQLITE_DONE ? SEMEL_OK : semel__sqlite_fail(db, rc, "handler", err);
    sqlite3_finalize(stmt);
    return status;
}

static semel_status sqlite_handler(struct semel_store *store, const char *sql, struct semel_error *err)
{
    sqlite3 *db = semel_store_native(store);
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? SEMEL_OK : semel__sqlite_fail(db, rc, "handler", err);
}

static int64_t sqlite_number(struct engine *e, const char *sql)
{
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v2(semel_store_native(e->store), sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(semel_store_native(e->store)));
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static void sqlite_run(struct engine *e, const char *sql)
{
    sqlite3 *db = semel_store_native(e->store);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
}

static void sqlite_put(struct engine *e, const char *sql, const char *const *values, int n)
{
    sqlite3 *db = semel_store_native(e->store);
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    for (int i = 0; i < n; i++)
        sqlite3_bind_text(stmt, i + 1, values[i], -1, SQLITE_STATIC);
    if (sqlite3_step(stmt) != SQLITE_DONE)
        fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_finalize(stmt);
}

static const struct engine_tables sqlite_tables = {
    .name = "sqlite",
    .open = sqlite_open,
    .effect = sqlite_effect,
    .handler = sqlite_handler,
    .number = sqlite_number,
    .run = sqlite_run,
    .put = sqlite_put,
};

/* ---- the handler -------------------------------------------------------------------------------------- */

static void outside_effect(struct engine *e, struct semel_str id)
{
    for (size_t i = 0; i < e->n_outside; i++)
        if (semel__str_eqz(id, e->outside[i].id)) {
            e->outside[i].n++;
            return;
        }
    if (e->n_outside == COUNT(e->outside))
        return;
    struct outside *new = &e->outside[e->n_outside++];
    snprintf(new->id, sizeof new->id, "%.*s", (int)id.n, id.p);
    new->n = 1;
}

static semel_status effect(struct engine *e, struct semel_store *store, struct semel_str id, int attempt,
                           struct semel_error *err)
{
    if (e->policy.effect != SEMEL_EFFECT_ATOMIC) {
        outside_effect(e, id);
        return SEMEL_OK;
    }
    if (e->db != NULL)
        return semel__mem_effect_add(store, id, SEMEL_STR("done"), err);
    return e->tables->effect(store, id, attempt, err);
}

/* The word that counts for this attempt. */
static struct semel_str word_of(struct semel_str payload, int attempt)
{
    const char *at = payload.n > 0 ? memchr(payload.p, '@', payload.n) : NULL;
    if (at == NULL)
        return payload;
    int64_t last = 0;
    size_t n = (size_t)(at - payload.p);
    semel__str_int64((struct semel_str){at + 1, payload.n - n - 1}, &last);
    return attempt <= last ? (struct semel_str){payload.p, n} : SEMEL_STR("ok");
}

static semel_status run_sql(struct semel_store *store, struct semel_str text, struct semel_error *err)
{
    char sql[200];
    snprintf(sql, sizeof sql, "%.*s", (int)text.n, text.p);
    return spy.e->tables->handler(store, sql, err);
}

static semel_status lose(struct semel_store *store, struct semel_error *err)
{
    spy.real->rollback(store);
    spy.e->dead = true;
    return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "the connection was lost");
}

static semel_status say(struct semel__reply *reply, enum semel_result result, const char *reason, const char *outcome,
                        struct semel_error *err)
{
    bool said = semel__reply_set(reply, result, semel__str(reason), semel__str(outcome));
    return said ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status obey(struct semel_store *store, struct semel_str word, struct semel__reply *reply,
                         struct semel_error *err)
{
    if (semel__str_eqz(word, "out"))
        return say(reply, SEMEL_DONE, NULL, "{\"made\":1}", err);
    if (semel__str_eqz(word, "fail"))
        return say(reply, SEMEL_TRANSIENT, "try again", NULL, err);
    if (semel__str_eqz(word, "bad"))
        return say(reply, SEMEL_PERMANENT, "cannot be done", NULL, err);
    if (semel__str_eqz(word, "reject"))
        return say(reply, SEMEL_REJECTED, "no stock", "{\"no\":1}", err);
    if (semel__str_eqz(word, "maybe"))
        return say(reply, SEMEL_MAYBE, "timed out", NULL, err);
    if (semel__str_eqz(word, "world"))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the disk is full");
    if (semel__str_eqz(word, "busy"))
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "deadlock");
    if (semel__str_eqz(word, "broken"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "no such table");
    if (semel__str_eqz(word, "closed"))
        return lose(store, err);
    if (word.n > 4 && memcmp(word.p, "sql:", 4) == 0)
        return run_sql(store, (struct semel_str){word.p + 4, word.n - 4}, err);
    return SEMEL_OK;
}

static semel_status handle_each(void *ctx, struct semel_store *store, const struct semel__msg *m, int attempt,
                                struct semel__reply *reply, struct semel_error *err)
{
    struct engine *e = ctx;
    note(e, "run", m->id);
    if (e->on_run != NULL)
        e->on_run(e, m);
    semel_status status = effect(e, store, m->id, attempt, err);
    if (status != SEMEL_OK || e->mended)
        return status;
    return obey(store, word_of(m->payload, attempt), reply, err);
}

static void name_one(struct engine *e, struct semel_set *set, const struct semel__msg *m)
{
    bool odd = e->odd != NULL && semel__str_eqz(m->id, e->odd);
    if (odd && e->set_mode == SET_SKIP)
        return;
    semel__set_add(set, m->source, m->id);
    if (odd && e->set_mode == SET_REPEAT)
        semel__set_add(set, m->source, m->id);
    if (odd && e->set_mode == SET_STRANGER)
        semel__set_add(set, m->source, SEMEL_STR("stranger"));
}

semel_status engine_handle_set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                               struct semel_set *set, struct semel_error *err)
{
    struct engine *e = ctx;
    semel_status status = SEMEL_OK;
    e->set_calls++;
    note_op(e, "set");
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        note(e, "run", msgs[i]->id);
        for (size_t k = 0; k < i; k++)
            e->key_repeated |= semel__str_given(msgs[i]->order_key) &&
                               semel__str_eq(msgs[i]->order_key, msgs[k]->order_key);
        status = effect(e, store, msgs[i]->id, 0, err);
        if (status == SEMEL_OK)
            status = obey(store, word_of(msgs[i]->payload, 1), &(struct semel__reply){.arena = &e->arena}, err);
        name_one(e, set, msgs[i]);
    }
    return status;
}

/* ---- up and down -------------------------------------------------------------------------------------- */

static int64_t read_clock(void *ctx)
{
    return ((struct engine *)ctx)->now_us;
}

static void on_alert(void *ctx, enum semel_alert alert, const struct semel__msg *m, struct semel_str text)
{
    struct engine *e = ctx;
    (void)m;
    snprintf(e->alert_text, sizeof e->alert_text, "%d %.*s", (int)alert, (int)(text.n < 200 ? text.n : 200),
             text.p != NULL ? text.p : "");
}

void engine_init(struct engine *e)
{
    *e = (struct engine){.now_us = START_US, .clock = {read_clock, NULL}, .handler = {.each = handle_each}};
    e->clock.ctx = e->handler.ctx = e;
    semel__random_seed(&e->rng, 7);
    semel__policy_init(&e->policy, SEMEL_STR("c"));
    semel__arena_init(&e->arena, (size_t)1 << 26);
    semel__arena_init(&e->keep, (size_t)1 << 26);
}

static semel_status open_mem(struct engine *e)
{
    const struct semel_store_options options = {.clock = &e->clock, .rng = &e->rng};
    semel_status status = e->db == NULL ? semel__mem_db_new(&e->db, &e->clock) : SEMEL_OK;
    return status == SEMEL_OK ? semel__store_mem_open(&e->store, e->db, &options, &e->err) : status;
}

semel_status engine_open(struct engine *e, const char *kind)
{
    e->tables = &sqlite_tables;
#ifdef SEMEL_WITH_POSTGRES
    if (strcmp(kind, "postgres") == 0)
        e->tables = &engine_pg_tables;
#endif
    semel_status status = strcmp(kind, "mem") == 0 ? open_mem(e) : e->tables->open(e);
    if (status != SEMEL_OK)
        return status;
    spy_on(e);
    semel__inbox_init(&e->inbox, e->store, &e->policy, &e->handler, &e->rng, SEMEL_STR("worker-1"));
    e->inbox.observer = (struct semel_observer){e, on_alert};
    return SEMEL_OK;
}

void engine_close(struct engine *e)
{
    if (e->store != NULL) {
        semel__inbox_done(&e->inbox);
        if (e->store->ops == &spy.ops)
            e->store->ops = spy.real;
        semel_store_close(e->store);
    }
    semel__mem_db_free(e->db);
    semel__arena_done(&e->arena);
    semel__arena_done(&e->keep);
    e->store = NULL;
    e->db = NULL;
}

static int up(void **state, const char *kind)
{
    struct engine *e = malloc(sizeof *e);
    assert_non_null(e);
    engine_init(e);
    if (strcmp(kind, "file") == 0)
        snprintf(e->path, sizeof e->path, "/tmp/semel-unit-%ld.db", (long)getpid());
    assert_ok(e, engine_open(e, kind));
    *state = e;
    return 0;
}

int engine_on_mem(void **state)
{
    return up(state, "mem");
}

int engine_on_sqlite(void **state)
{
    return up(state, "sqlite");
}

int engine_on_file(void **state)
{
    return up(state, "file");
}

int engine_on_postgres(void **state)
{
#ifdef SEMEL_WITH_POSTGRES
    engine_pg_fresh();
    return up(state, "postgres");
#else
    (void)state;
    print_message("skipped: built without the PostgreSQL store\n");
    exit(77);
#endif
}

void engine_stores(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "postgres") == 0)
        cmocka_set_test_filter("*(postgres)");
    else
        cmocka_set_skip_filter("*(postgres)");
}

int engine_down(void **state)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    struct engine *e = *state;
    semel__alloc_set_hook(NULL, NULL); /* a test that failed may have left it */
    engine_close(e);
    for (size_t i = 0; e->path[0] != '\0' && i < COUNT(ends); i++) {
        char path[80];
        snprintf(path, sizeof path, "%s%s", e->path, ends[i]);
        unlink(path);
    }
    free(e);
    return 0;
}

/* ---- messages ----------------------------------------------------------------------------------------- */

struct semel__msg msg(const char *id, const char *payload)
{
    struct semel__msg m;
    semel__msg_init(&m);
    m.source = SEMEL_STR("s");
    m.id = semel__str(id);
    m.payload = semel__str(payload);
    m.delivery = 1;
    assert_int_equal(semel__fp_compute(m.payload, &m.fp, NULL), SEMEL_OK);
    return m;
}

struct semel__msg keyed(const char *id, const char *payload, const char *order_key, int64_t version)
{
    struct semel__msg m = msg(id, payload);
    m.order_key = semel__str(order_key);
    m.version = version;
    return m;
}

semel_status try_process(struct engine *e, const struct semel__msg *msgs, size_t n)
{
    assert_true(n <= BATCH);
    return semel__inbox_process(&e->inbox, msgs, n, e->settled, &e->err);
}

void process(struct engine *e, const struct semel__msg *msgs, size_t n)
{
    assert_ok(e, try_process(e, msgs, n));
}

void process_one(struct engine *e, struct semel__msg m)
{
    process(e, &m, 1);
}

/* ---- what is there ------------------------------------------------------------------------------------ */

struct semel_row row_of(struct engine *e, const char *id)
{
    int64_t now_us;
    struct semel_fetched item = {.source = SEMEL_STR("s"), .id = semel__str(id)};
    struct semel_fetch_batch batch = {.consumer = e->policy.consumer, .items = &item, .n_items = 1};
    semel__arena_reset(&e->arena);
    assert_false(e->store->in_tx);
    assert_ok(e, spy.real->begin(e->store, SEMEL_TX_OWN, &now_us, &e->err));
    assert_ok(e, spy.real->fetch(e->store, &batch, &e->arena, &e->err));
    spy.real->rollback(e->store);
    assert_false(item.damaged);
    return item.present ? item.row : (struct semel_row){0};
}

semel_status command_row(struct engine *e, const char *id, struct semel_command command,
                         struct semel_command_result *ret)
{
    struct semel_row row = row_of(e, id);
    if (row.progress.state == SEMEL_ROW_ABSENT)
        row = (struct semel_row){.source = SEMEL_STR("s"), .id = semel__str(id), .version = SEMEL_NONE};
    row.updated_us = 0;
    command.row = &row;
    return semel__inbox_command(&e->inbox, &command, ret, &e->err);
}

enum semel_row_status state_of(struct engine *e, const char *id)
{
    return row_of(e, id).progress.state;
}

int64_t sql_int(struct engine *e, const char *sql)
{
    return e->tables->number(e, sql);
}

void sql_run(struct engine *e, const char *sql)
{
    e->tables->run(e, sql);
}

bool is_postgres(const struct engine *e)
{
    return strcmp(e->tables->name, "postgres") == 0;
}

void sql_either(struct engine *e, const char *sqlite, const char *postgres)
{
    sql_run(e, is_postgres(e) ? postgres : sqlite);
}

static int64_t sql_count(struct engine *e, const char *what, const char *table, const char *column, const char *id)
{
    char sql[200];
    if (id != NULL)
        snprintf(sql, sizeof sql, "SELECT %s FROM %s WHERE %s = '%s'", what, table, column, id);
    else
        snprintf(sql, sizeof sql, "SELECT %s FROM %s", what, table);
    return sql_int(e, sql);
}

struct count {
    const char *id;
    int64_t n;
};

static bool counts(const struct count *count, struct semel_str id)
{
    return count->id == NULL || semel__str_eqz(id, count->id);
}

static int64_t outside_of(const struct engine *e, const char *id)
{
    int64_t n = 0;
    for (size_t i = 0; i < e->n_outside; i++)
        n += id == NULL || strcmp(e->outside[i].id, id) == 0 ? e->outside[i].n : 0;
    return n;
}

int64_t effects_of(struct engine *e, const char *id)
{
    const struct semel_mem_effect *effects = NULL;
    struct count count = {id, 0};
    if (e->policy.effect != SEMEL_EFFECT_ATOMIC)
        return outside_of(e, id);
    if (e->db == NULL)
        return sql_count(e, "count(*)", "effect", "id", id);
    size_t n = semel__mem_effects(e->db, &effects);
    for (size_t i = 0; i < n; i++)
        count.n += counts(&count, effects[i].key);
    return count.n;
}

static void count_attempt(void *ctx, const struct semel_mem_attempt *attempt)
{
    struct count *count = ctx;
    count->n += counts(count, attempt->id);
}

int64_t attempts_of(struct engine *e, const char *id)
{
    struct count count = {id, 0};
    if (e->db == NULL)
        return sql_count(e, "count(*)", "semel_attempt", "message_id", id);
    semel__mem_attempts(e->db, count_attempt, &count);
    return count.n;
}

static void count_conflict(void *ctx, const struct semel_mem_conflict *conflict)
{
    struct count *count = ctx;
    count->n += counts(count, conflict->id) ? conflict->count : 0;
}

int64_t conflicts_of(struct engine *e, const char *id)
{
    struct count count = {id, 0};
    if (e->db == NULL)
        return sql_count(e, "coalesce(sum(count), 0)", "semel_conflict", "message_id", id);
    semel__mem_conflicts(e->db, count_conflict, &count);
    return count.n;
}

int64_t audits_of(struct engine *e)
{
    return e->db != NULL ? (int64_t)semel__mem_audits(e->db, NULL) : sql_int(e, "SELECT count(*) FROM semel_audit");
}

void damage(struct engine *e, const char *id)
{
    char sql[200];
    if (e->db != NULL) {
        assert_true(semel__mem_damage(e->db, e->policy.consumer, SEMEL_STR("s"), semel__str(id)));
        return;
    }
    snprintf(sql, sizeof sql, "UPDATE semel_inbox SET version = -7, error_class = 'strange' WHERE message_id = '%s'",
             id);
    sql_run(e, sql);
}

void assert_settled(const struct engine *e, size_t i, enum semel_act act, enum semel_why why,
                    enum semel_row_status state)
{
    const struct semel_settled *s = &e->settled[i];
    if (s->act != act || s->why != why || s->state != state)
        fail_msg("delivery %zu is %s, %s, %s; expected %s, %s, %s", i, semel__act_name(s->act), semel__why_name(s->why),
                 semel__row_status_name(s->state), semel__act_name(act), semel__why_name(why),
                 semel__row_status_name(state));
}
