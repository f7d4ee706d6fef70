/* SPDX-License-Identifier: MIT
 *
 * bench_sqlite.c: what the benchmark writes to SQLite by hand.
 *
 * The handwritten inbox is the usual one at its best: one transaction a message, begun IMMEDIATE; an insert that does
 * nothing on a conflict, its count of changes looked at; the effect; COMMIT. Its table has no second index (WITHOUT
 * ROWID), its statements are prepared once, and the settings are those of the connection: WAL, synchronous=FULL.
 *
 * The handwritten inbox over sets is what a good team writes in a day: for a batch one transaction, one statement that
 * inserts the ids and gives back the new ones, and one that writes the effects of these. The ids are one bound value,
 * an array in JSON, as the payloads are.
 *
 * The limit is the fastest that a record like ours can be written: the same rows, column by column, with every
 * index that is on them, and the same effects, in the same batches; ids in the order of the index, statements prepared,
 * what stays the same within a batch bound once. It asks nothing, checks nothing and decides nothing.
 *
 * Invariants: names of tables are made of our own words; every value is bound. A statement is reset before the function
 * that ran it returns.
 */
#include "cli/bench.h"

#include <sqlite3.h>
#include <stdio.h>

#define SQL_MAX 600

struct bench_sql {
    sqlite3 *db;
    enum bench_work work;
    char table[64];
    sqlite3_stmt *begin, *commit, *rollback;
    sqlite3_stmt *take;   /* the handwritten inbox */
    sqlite3_stmt *draw;   /* the limit: numbers for its rows */
    sqlite3_stmt *insert; /* the limit: a row */
    sqlite3_stmt *effect, *count;
    struct semel_buf buf;
};

/* ---- small words --------------------------------------------------------------------------------- */

static int done(int rc)
{
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

/* Runs a statement that gives no rows of interest. */
static int run(sqlite3_stmt *stmt)
{
    int rc = done(sqlite3_step(stmt));
    int reset = sqlite3_reset(stmt);
    return rc != SQLITE_OK ? rc : reset;
}

static void text(sqlite3_stmt *stmt, int i, const char *p, size_t n)
{
    sqlite3_bind_text64(stmt, i, p, n, SQLITE_STATIC, SQLITE_UTF8);
}

__attribute__((format(printf, 3, 4))) static int prepare(sqlite3 *db, sqlite3_stmt **ret, const char *fmt, ...)
{
    char sql[SQL_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(sql, sizeof sql, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof sql)
        return SQLITE_TOOBIG;
    return sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, ret, NULL);
}

__attribute__((format(printf, 2, 3))) static int execute(sqlite3 *db, const char *fmt, ...)
{
    char sql[SQL_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(sql, sizeof sql, fmt, args);
    va_end(args);
    return n < 0 || (size_t)n >= sizeof sql ? SQLITE_TOOBIG : sqlite3_exec(db, sql, NULL, NULL, NULL);
}

/* ---- tables and statements ----------------------------------------------------------------------- */

static int make_ledger(struct bench_sql *sql)
{
    int rc = execute(sql->db,
                     "CREATE TABLE %s (entry INTEGER PRIMARY KEY, message_id TEXT NOT NULL, account INTEGER NOT NULL, "
                     "amount INTEGER NOT NULL) STRICT",
                     sql->table);
    if (rc == SQLITE_OK)
        rc = prepare(sql->db, &sql->count, "SELECT count(*) FROM %s", sql->table);
    if (rc != SQLITE_OK)
        return rc;
    if (sql->work == BENCH_SETS || sql->work == BENCH_HAND_SETS)
        return prepare(sql->db, &sql->effect,
                       "INSERT INTO %s (message_id, account, amount) SELECT value ->> 'id', value ->> 'account', "
                       "value ->> 'amount' FROM json_each(?1) RETURNING message_id",
                       sql->table);
    return prepare(sql->db, &sql->effect, "INSERT INTO %s (message_id, account, amount) VALUES (?1, ?2, ?3)",
                   sql->table);
}

static int make_accounts(struct bench_sql *sql)
{
    int rc =
        execute(sql->db,
                "CREATE TABLE %s (account INTEGER PRIMARY KEY, balance INTEGER NOT NULL, changes INTEGER NOT NULL) "
                "STRICT",
                sql->table);
    if (rc == SQLITE_OK)
        rc = execute(sql->db,
                     "WITH RECURSIVE n (i) AS (SELECT %d UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %d) "
                     "INSERT INTO %s SELECT i, 0, 0 FROM n",
                     BENCH_FIRST_ACCOUNT, BENCH_FIRST_ACCOUNT + BENCH_ACCOUNTS, sql->table);
    if (rc == SQLITE_OK)
        rc = prepare(sql->db, &sql->count, "SELECT sum(changes) FROM %s", sql->table);
    if (rc != SQLITE_OK)
        return rc;
    return prepare(sql->db, &sql->effect,
                   "UPDATE %s SET balance = balance + ?3, changes = changes + 1 WHERE account = ?2", sql->table);
}

static int make_handwritten(struct bench_sql *sql)
{
    const bool sets = sql->work == BENCH_HAND_SETS;
    int rc = execute(sql->db,
                     "CREATE TABLE %s_inbox (message_id TEXT NOT NULL PRIMARY KEY, processed_at INTEGER NOT NULL) "
                     "STRICT, WITHOUT ROWID",
                     sql->table);
    if (rc != SQLITE_OK)
        return rc;
    return prepare(sql->db, &sql->take, "INSERT INTO %s_inbox (message_id, processed_at) %s ON CONFLICT DO NOTHING%s",
                   sql->table, sets ? "SELECT value, ?2 FROM json_each(?1) WHERE true" : "VALUES (?1, ?2)",
                   sets ? " RETURNING message_id" : "");
}

static int make_limit(struct bench_sql *sql)
{
    int rc = prepare(sql->db, &sql->draw,
                     "UPDATE semel_counter SET value = value + ?1 WHERE name = 'arrival' RETURNING value - ?1");
    if (rc != SQLITE_OK)
        return rc;
    return prepare(sql->db, &sql->insert,
                   "INSERT INTO semel_inbox (arrival, consumer, source, message_id, type, status, attempts, "
                   "fingerprint, message_time, received_at, updated_at, processed_at) "
                   "VALUES (?1, ?2, '" BENCH_SOURCE "', ?3, '" BENCH_TYPE "', 'completed', 1, ?4, ?5, ?6, ?6, ?6)");
}

int bench_sql_new(struct bench_sql **ret, struct semel *s, enum bench_work work, const char *name)
{
    struct bench_sql *sql = semel__calloc(1, sizeof *sql);
    *ret = sql;
    if (sql == NULL)
        return SQLITE_NOMEM;
    sql->db = semel_native(s);
    sql->work = work;
    semel__buf_init(&sql->buf, (size_t)SEMEL_PROCESS_MAX * (BENCH_PAYLOAD + 1) + 2);
    snprintf(sql->table, sizeof sql->table, "bench_%s", name);
    int rc = prepare(sql->db, &sql->begin, "BEGIN IMMEDIATE");
    if (rc == SQLITE_OK)
        rc = prepare(sql->db, &sql->commit, "COMMIT");
    if (rc == SQLITE_OK)
        rc = prepare(sql->db, &sql->rollback, "ROLLBACK");
    if (rc == SQLITE_OK)
        rc = work == BENCH_UPDATES ? make_accounts(sql) : make_ledger(sql);
    if (rc == SQLITE_OK && (work == BENCH_HANDWRITTEN || work == BENCH_HAND_SETS))
        rc = make_handwritten(sql);
    if (rc == SQLITE_OK && work == BENCH_LIMIT)
        rc = make_limit(sql);
    return rc;
}

void bench_sql_free(struct bench_sql *sql)
{
    if (sql == NULL)
        return;
    sqlite3_stmt *const all[] = {sql->begin, sql->commit, sql->rollback, sql->take,
                                 sql->draw,  sql->insert, sql->effect,   sql->count};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sqlite3_finalize(all[i]);
    semel__buf_done(&sql->buf);
    semel__free(sql);
}

/* COMMIT, or ROLLBACK when something before it failed. */
static int end(struct bench_sql *sql, int rc)
{
    if (rc == SQLITE_OK)
        rc = run(sql->commit);
    if (rc != SQLITE_OK)
        run(sql->rollback);
    return rc;
}

/* ---- effects ------------------------------------------------------------------------------------- */

int bench_sql_effect(struct bench_sql *sql, struct semel_str id, struct semel_str payload)
{
    struct bench_effect effect = bench_effect(payload);
    if (sql->work != BENCH_UPDATES)
        text(sql->effect, 1, id.p, id.n);
    sqlite3_bind_int(sql->effect, 2, effect.account);
    sqlite3_bind_int(sql->effect, 3, effect.amount);
    return run(sql->effect);
}

/* An array in JSON, as one value: begun, added to, bound. */
static void list_begin(struct bench_sql *sql)
{
    sql->buf.n = 0;
}

static void list_add(struct bench_sql *sql, const char *quote, struct semel_str value)
{
    semel__buf_add(&sql->buf, sql->buf.n == 0 ? "[" : ",", 1);
    semel__buf_addf(&sql->buf, "%s%.*s%s", quote, (int)value.n, value.p, quote);
}

static int list_bind(struct bench_sql *sql, sqlite3_stmt *stmt)
{
    if (!semel__buf_add(&sql->buf, sql->buf.n == 0 ? "[]" : "]", sql->buf.n == 0 ? 2 : 1))
        return SQLITE_NOMEM;
    text(stmt, 1, sql->buf.p, sql->buf.n);
    return SQLITE_OK;
}

/* The batch is one bound value: an array of the payloads. What comes back is what was written. */
int bench_sql_set(struct bench_sql *sql, const struct semel_msg *msgs, size_t n, struct semel_named *named)
{
    list_begin(sql);
    for (size_t i = 0; i < n; i++)
        list_add(sql, "", msgs[i].payload);
    if (list_bind(sql, sql->effect) != SQLITE_OK)
        return SQLITE_NOMEM;
    int rc;
    while ((rc = sqlite3_step(sql->effect)) == SQLITE_ROW) {
        const char *id = (const char *)sqlite3_column_text(sql->effect, 0);
        if (id != NULL)
            semel_named_add(named, SEMEL_STR(BENCH_SOURCE),
                            (struct semel_str){id, (size_t)sqlite3_column_bytes(sql->effect, 0)});
    }
    sqlite3_reset(sql->effect);
    return done(rc);
}

int bench_sql_effects(struct bench_sql *sql, int64_t *ret_n)
{
    int rc = sqlite3_step(sql->count);
    *ret_n = rc == SQLITE_ROW ? sqlite3_column_int64(sql->count, 0) : 0;
    sqlite3_reset(sql->count);
    return done(rc);
}

/* ---- by hand ------------------------------------------------------------------------------------- */

static int take(struct bench_sql *sql, const struct bench_msg *msg, int64_t now_us)
{
    text(sql->take, 1, msg->id, sizeof msg->id - 1);
    sqlite3_bind_int64(sql->take, 2, now_us);
    int rc = run(sql->take);
    if (rc != SQLITE_OK || sqlite3_changes(sql->db) == 0) /* a duplicate */
        return rc;
    return bench_sql_effect(sql, (struct semel_str){msg->id, sizeof msg->id - 1},
                            (struct semel_str){msg->payload, BENCH_PAYLOAD});
}

int bench_sql_handwritten(struct bench_sql *sql, const struct bench_msg *msg, int64_t now_us)
{
    int rc = run(sql->begin);
    return rc == SQLITE_OK ? end(sql, take(sql, msg, now_us)) : rc;
}

/* The ids of those that are new come back in the order of the array. */
static int take_set(struct bench_sql *sql, const struct bench_msg *msgs, size_t n, int64_t now_us, bool *fresh)
{
    list_begin(sql);
    for (size_t i = 0; i < n; i++)
        list_add(sql, "\"", (struct semel_str){msgs[i].id, sizeof msgs[i].id - 1});
    int rc = list_bind(sql, sql->take);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_bind_int64(sql->take, 2, now_us);
    for (size_t at = 0; (rc = sqlite3_step(sql->take)) == SQLITE_ROW; at++) {
        const char *id = (const char *)sqlite3_column_text(sql->take, 0);
        while (id != NULL && at < n && strcmp(msgs[at].id, id) != 0)
            at++;
        if (at < n)
            fresh[at] = true;
    }
    sqlite3_reset(sql->take);
    return done(rc);
}

int bench_sql_hand_sets(struct bench_sql *sql, const struct bench_msg *msgs, size_t n, int64_t now_us, size_t *ret_new)
{
    bool fresh[SEMEL_PROCESS_MAX] = {false};
    size_t k = 0;
    int rc = run(sql->begin);
    if (rc != SQLITE_OK)
        return rc;
    rc = take_set(sql, msgs, n, now_us, fresh);
    list_begin(sql);
    for (size_t i = 0; i < n; i++)
        if (fresh[i] && ++k > 0)
            list_add(sql, "", (struct semel_str){msgs[i].payload, BENCH_PAYLOAD});
    if (rc == SQLITE_OK && k > 0)
        rc = list_bind(sql, sql->effect);
    while (rc == SQLITE_OK && k > 0 && (rc = sqlite3_step(sql->effect)) == SQLITE_ROW)
        rc = SQLITE_OK;
    sqlite3_reset(sql->effect);
    *ret_new = k;
    return end(sql, done(rc));
}

int bench_sql_fill(struct bench_sql *sql, const struct bench_msg *msgs, size_t n, int64_t now_us)
{
    int rc = run(sql->begin);
    if (rc != SQLITE_OK)
        return rc;
    for (size_t i = 0; rc == SQLITE_OK && i < n; i++)
        rc = take(sql, &msgs[i], now_us);
    return end(sql, rc);
}

static int draw(struct bench_sql *sql, size_t n, int64_t *ret_first)
{
    sqlite3_bind_int64(sql->draw, 1, (int64_t)n);
    int rc = sqlite3_step(sql->draw);
    *ret_first = rc == SQLITE_ROW ? sqlite3_column_int64(sql->draw, 0) : 0;
    sqlite3_reset(sql->draw);
    return rc == SQLITE_ROW ? SQLITE_OK : rc == SQLITE_DONE ? SQLITE_NOTFOUND : rc;
}

static int limit_row(struct bench_sql *sql, const struct bench_msg *msg, int64_t arrival)
{
    unsigned char fp[1 + SEMEL_FP_MAX];
    size_t n = semel__fp_encode(&msg->fp, fp);
    sqlite3_bind_int64(sql->insert, 1, arrival);
    text(sql->insert, 3, msg->id, sizeof msg->id - 1);
    sqlite3_bind_blob64(sql->insert, 4, fp, n, SQLITE_STATIC);
    if (msg->time_us != SEMEL_NONE)
        sqlite3_bind_int64(sql->insert, 5, msg->time_us);
    return run(sql->insert);
}

int bench_sql_limit(struct bench_sql *sql, struct semel_str consumer, const struct bench_msg *msgs, size_t n,
                    int64_t now_us)
{
    int64_t arrival = 0;
    int rc = run(sql->begin);
    if (rc != SQLITE_OK)
        return rc;
    rc = draw(sql, n, &arrival);
    text(sql->insert, 2, consumer.p, consumer.n);
    sqlite3_bind_int64(sql->insert, 6, now_us);
    for (size_t i = 0; rc == SQLITE_OK && i < n; i++)
        rc = limit_row(sql, &msgs[i], arrival + (int64_t)msgs[i].place);
    for (size_t i = 0; rc == SQLITE_OK && i < n; i++)
        rc = bench_sql_effect(sql, (struct semel_str){msgs[i].id, sizeof msgs[i].id - 1},
                              (struct semel_str){msgs[i].payload, BENCH_PAYLOAD});
    return end(sql, rc);
}

/* ---- the database -------------------------------------------------------------------------------- */

int bench_sql_used(struct semel *s, bool *ret_used)
{
    sqlite3_stmt *stmt = NULL;
    int rc = prepare(semel_native(s), &stmt,
                     "SELECT EXISTS (SELECT 1 FROM semel_inbox) "
                     "OR EXISTS (SELECT 1 FROM sqlite_schema WHERE name LIKE 'bench\\_%%' ESCAPE '\\')");
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    *ret_used = rc != SQLITE_ROW || sqlite3_column_int(stmt, 0) != 0;
    sqlite3_finalize(stmt);
    return done(rc);
}

int bench_sql_flush(struct semel *s)
{
    return sqlite3_wal_checkpoint_v2(semel_native(s), NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

void bench_sql_folder(struct semel *s, char *out, size_t size)
{
    const char *path = sqlite3_db_filename(semel_native(s), "main");
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    int n = slash == NULL ? 0 : snprintf(out, size, "%.*s", (int)(slash - path > 0 ? slash - path : 1), path);
    if (n <= 0 || (size_t)n >= size)
        out[0] = '\0';
}
