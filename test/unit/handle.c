/* SPDX-License-Identifier: MIT
 *
 * handle.c: what the tests of libsemel share.
 */
#include "unit/handle.h"

#include <stdlib.h>
#include <unistd.h>

const struct handle_db *handle_db;

static int64_t read_clock(void *ctx)
{
    return ((struct handle *)ctx)->now_us;
}

static struct handle *new_handle(void)
{
    struct handle *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->now_us = START_US;
    d->clock = (struct semel_clock){read_clock, d};
    d->options = (struct semel_store_options){.clock = &d->clock};
    return d;
}

static int finish(struct handle *d, void **state)
{
    sql(d, "CREATE TABLE effect (id TEXT NOT NULL)");
    set(d, "{}");
    *state = d;
    return 0;
}

static int up_elsewhere(void **state, bool wrapped)
{
    struct handle *d = new_handle();
    d->wrapped = wrapped;
    handle_db->up(d);
    *state = d;
    return 0;
}

static int open_own(void **state, const char *location)
{
    char url[80];
    if (handle_db != NULL)
        return up_elsewhere(state, false);
    struct handle *d = new_handle();
    snprintf(d->path, sizeof d->path, "%s", location);
    snprintf(url, sizeof url, "sqlite:%s", location[0] != '\0' ? location : ":memory:");
    assert_fine(d, semel__handle_open(&d->s, url, SEMEL_CREATE | SEMEL_MIGRATE, &d->options, &d->err));
    d->db = semel_native(d->s);
    return finish(d, state);
}

int handle_own(void **state)
{
    return open_own(state, "");
}

int handle_file(void **state)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/semel-handle-%ld.db", (long)getpid());
    unlink(path);
    return open_own(state, path);
}

static int wrap(void **state, unsigned flags)
{
    if (handle_db != NULL)
        return up_elsewhere(state, true);
    struct handle *d = new_handle();
    d->wrapped = true;
    assert_int_equal(sqlite3_open(":memory:", &d->db), SQLITE_OK);
    assert_fine(d, semel__handle_wrap(&d->s, d->db, SEMEL_MIGRATE | flags, &d->options, &d->err));
    return finish(d, state);
}

int handle_wrapped(void **state)
{
    return wrap(state, 0);
}

int handle_loose(void **state)
{
    return wrap(state, SEMEL_LOOSE);
}

int handle_down(void **state)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    struct handle *d = *state;
    semel_close(d->s);
    if (handle_db != NULL)
        handle_db->down(d);
    else if (d->wrapped)
        assert_int_equal(sqlite3_close(d->db), SQLITE_OK); /* nothing of ours is left on it */
    for (size_t i = 0; d->path[0] != '\0' && i < COUNT(ends); i++) {
        char path[80];
        snprintf(path, sizeof path, "%s%s", d->path, ends[i]);
        unlink(path);
    }
    free(d);
    return 0;
}

/* ---- messages ----------------------------------------------------------------------------------------- */

struct semel_msg mail(const char *id, const char *payload)
{
    struct semel_msg msg;
    semel_msg_init(&msg);
    msg.consumer = semel_str("c");
    msg.id = semel_str(id);
    msg.payload = semel_str(payload);
    return msg;
}

struct semel_msg keyed(const char *id, const char *order_key, int64_t version)
{
    struct semel_msg msg = mail(id, id);
    msg.order_key = semel_str(order_key);
    msg.version = version;
    return msg;
}

/* ---- the database ------------------------------------------------------------------------------------- */

int sql_try(struct handle *d, const char *text)
{
    if (handle_db != NULL)
        return handle_db->run(d, text);
    int rc = sqlite3_exec(d->db, text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? rc : sqlite3_extended_errcode(d->db);
}

void sql(struct handle *d, const char *text)
{
    if (sql_try(d, text) != SQLITE_OK)
        fail_msg("%s: %s", text, handle_db == NULL ? sqlite3_errmsg(d->db) : "it failed");
}

static sqlite3_stmt *one_row(struct handle *d, const char *text, const char *value)
{
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v2(d->db, text, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(d->db));
    if (value != NULL)
        sqlite3_bind_text(stmt, 1, value, -1, SQLITE_TRANSIENT);
    return stmt;
}

int64_t sql_int(struct handle *d, const char *text)
{
    if (handle_db != NULL)
        return handle_db->ask(d, text);
    sqlite3_stmt *stmt = one_row(d, text, NULL);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return value;
}

void assert_commit_refused(struct handle *d)
{
    if (handle_db != NULL)
        assert_true(handle_db->refused(d));
    else
        assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
}

int64_t all_keys(struct handle *d)
{
    char text[64];
    snprintf(text, sizeof text, "SELECT count(*) FROM %s", handle_db != NULL ? handle_db->keys : "semel_idempotency");
    return sql_int(d, text);
}

void effect(struct handle *d, const char *id)
{
    char text[128];
    if (handle_db != NULL) {
        snprintf(text, sizeof text, "INSERT INTO effect VALUES ('%s')", id);
        sql(d, text);
        return;
    }
    sqlite3_stmt *stmt = one_row(d, "INSERT INTO effect VALUES (?1)", id);
    assert_int_equal(sqlite3_step(stmt), SQLITE_DONE);
    sqlite3_finalize(stmt);
}

int64_t effects(struct handle *d, const char *id)
{
    char text[128];
    if (handle_db != NULL) {
        snprintf(text, sizeof text, "SELECT count(*) FROM effect WHERE id LIKE '%s'", id != NULL ? id : "%");
        return sql_int(d, text);
    }
    sqlite3_stmt *stmt = one_row(d, "SELECT count(*) FROM effect WHERE ?1 IS NULL OR id = ?1", id);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

const char *state_of(struct handle *d, const char *id)
{
    static char text[32];
    sqlite3_stmt *stmt = one_row(d, "SELECT status FROM semel_inbox WHERE consumer = 'c' AND message_id = ?1", id);
    snprintf(text, sizeof text, "%s",
             sqlite3_step(stmt) == SQLITE_ROW ? (const char *)sqlite3_column_text(stmt, 0) : "absent");
    sqlite3_finalize(stmt);
    return text;
}

void set(struct handle *d, const char *settings)
{
    char text[512];
    bool said = strstr(settings, "effect") != NULL, bare = strcmp(settings, "{}") == 0;
    snprintf(text, sizeof text, "{\"effect\": \"atomic\"%s%s", bare ? "" : ", ", settings + 1);
    assert_fine(d, semel_consumer_set(d->s, "c", said ? settings : text, &d->err));
}

void pass(struct handle *d, int64_t us)
{
    d->now_us += us;
    if (handle_db != NULL)
        handle_db->passed(d, us);
}

/* ---- in the caller's transaction ----------------------------------------------------------------------- */

void assert_verdict(const struct semel_verdict *v, enum semel_act act, enum semel_why why, enum semel_row_status state)
{
    if (v->act != act || v->why != why || v->status != state)
        fail_msg("%s, %s, %s instead of %s, %s, %s", semel_act_name(v->act), semel_why_name(v->why),
                 semel_row_status_name(v->status), semel_act_name(act), semel_why_name(why),
                 semel_row_status_name(state));
}

void begin(struct handle *d, const struct semel_msg *msg, enum semel_act act, enum semel_why why)
{
    assert_fine(d, semel_inbox_begin(d->s, msg, &d->v, &d->err));
    assert_verdict(&d->v, act, why, d->v.status);
}

void done(struct handle *d, const struct semel_msg *msg)
{
    assert_fine(d, semel_inbox_done(d->s, msg, semel_str(NULL), &d->err));
}

void run_once(struct handle *d, const struct semel_msg *msg)
{
    char id[SEMEL_ID_MAX + 1];
    snprintf(id, sizeof id, "%.*s", (int)msg->id.n, msg->id.p);
    sql(d, "BEGIN IMMEDIATE");
    assert_fine(d, semel_inbox_begin(d->s, msg, &d->v, &d->err));
    assert_int_equal(d->v.act, SEMEL_RUN);
    effect(d, id);
    done(d, msg);
    sql(d, "COMMIT");
}
