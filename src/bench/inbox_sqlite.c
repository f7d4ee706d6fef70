/* SPDX-License-Identifier: MIT
 *
 * inbox_sqlite.c: `semel bench inbox` on SQLite: the statements, the cases, and the rounds in which they are run.
 *
 * The handwritten inbox is the usual one at its best: one transaction per message, begun IMMEDIATE; an insert that
 * does nothing on a conflict, whose change count is checked; the effect; COMMIT. Its table has no second index
 * (WITHOUT ROWID), its statements are prepared once, and the settings are those of the connection: WAL,
 * synchronous=FULL.
 *
 * The handwritten inbox over sets is what a good team writes in a day: for a batch one transaction, one statement
 * that inserts the ids and returns the new ones, and one that writes the effects of these. The ids are one bound
 * value, an array in JSON, as the payloads are.
 *
 * The limit is the fastest that a record like ours can be written: the same rows, column by column, with every
 * index that is on them, and the same effects, in the same batches; ids in the order of the index, statements prepared,
 * what stays the same within a batch bound once. It asks nothing, checks nothing and decides nothing.
 *
 * A case is measured with time-ordered ids (UUIDv7) and with random ones (UUIDv4); each of these is a lane. The
 * rounds are interleaved: the first one of every lane, then the second one of every lane, so that a disturbance of
 * the machine hits all of them alike, and the median of a lane's rounds does not depend on one moment.
 *
 * The clock runs while the batches of a round are handed over, and until the write-ahead log that they left is in the
 * database: every lane starts with an empty log and pays for its own pages. Making messages is not measured.
 *
 * Ours is what users get: semel_inbox_process and semel_inbox_process_set of libsemel.
 *
 * Invariants: names of tables are made of our own words; every value is bound. A statement is reset before the
 * function that ran it returns. At the end every lane has exactly the effects that its messages ask for, or there is
 * no result; nothing is allocated here after the first round has begun, so that the memory at the end is the
 * library's.
 */
#include "bench/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <sqlite3.h>

#include "base/clock.h"
#include "base/error.h"

#define SQL_MAX 600
#define HANDWRITTEN_SHARE 10 /* one transaction per message is slow: a tenth of the messages is enough for its rate */
#define SEED UINT64_C(20261115)

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

/* ---- helpers ------------------------------------------------------------------------------------- */

static int done(int rc)
{
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

/* Runs a statement whose rows are not needed. */
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

/* Tables and statements of one lane; free *ret in any case. `name` is ours, not a user's. */
static int sql_new(struct bench_sql **ret, struct semel *s, enum bench_work work, const char *name)
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

static void sql_free(struct bench_sql *sql)
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

static int sql_effect(struct bench_sql *sql, struct semel_str id, struct semel_str payload)
{
    struct bench_effect effect = bench_effect(payload);
    if (sql->work != BENCH_UPDATES)
        text(sql->effect, 1, id.p, id.n);
    sqlite3_bind_int(sql->effect, 2, effect.account);
    sqlite3_bind_int(sql->effect, 3, effect.amount);
    return run(sql->effect);
}

/* A JSON array as one value: begun, added to, bound. */
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

/* The batch is one bound value: an array of the payloads. Returns the rows that were written. */
static int sql_set(struct bench_sql *sql, const struct semel_msg *msgs, size_t n, struct semel_named *named)
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

/* How many effects there are. */
static int sql_effects(struct bench_sql *sql, int64_t *ret_n)
{
    int rc = sqlite3_step(sql->count);
    *ret_n = rc == SQLITE_ROW ? sqlite3_column_int64(sql->count, 0) : 0;
    sqlite3_reset(sql->count);
    return done(rc);
}

/* ---- handwritten --------------------------------------------------------------------------------- */

static int take_id(struct bench_sql *sql, const struct bench_msg *msg, int64_t now_us)
{
    text(sql->take, 1, msg->id, sizeof msg->id - 1);
    sqlite3_bind_int64(sql->take, 2, now_us);
    int rc = run(sql->take);
    if (rc != SQLITE_OK || sqlite3_changes(sql->db) == 0) /* a duplicate */
        return rc;
    return sql_effect(sql, (struct semel_str){msg->id, sizeof msg->id - 1},
                      (struct semel_str){msg->payload, BENCH_PAYLOAD});
}

/* One transaction. */
static int sql_handwritten(struct bench_sql *sql, const struct bench_msg *msg, int64_t now_us)
{
    int rc = run(sql->begin);
    return rc == SQLITE_OK ? end(sql, take_id(sql, msg, now_us)) : rc;
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

/* One transaction: one statement for the ids, one for the effects of those that are new. *ret_new: how many are. */
static int sql_hand_sets(struct bench_sql *sql, const struct bench_msg *msgs, size_t n, int64_t now_us, size_t *ret_new)
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

/* Rows of the handwritten inbox and their effects, many per transaction, inserted before the clock starts. */
static int sql_fill(struct bench_sql *sql, const struct bench_msg *msgs, size_t n, int64_t now_us)
{
    int rc = run(sql->begin);
    if (rc != SQLITE_OK)
        return rc;
    for (size_t i = 0; rc == SQLITE_OK && i < n; i++)
        rc = take_id(sql, &msgs[i], now_us);
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

/* One transaction with the rows that the inbox would have written. */
static int sql_limit(struct bench_sql *sql, struct semel_str consumer, const struct bench_msg *msgs, size_t n,
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
        rc = sql_effect(sql, (struct semel_str){msgs[i].id, sizeof msgs[i].id - 1},
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

/* Moves the write-ahead log into the database. */
static int sql_flush(struct semel *s)
{
    return sqlite3_wal_checkpoint_v2(semel_native(s), NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

/* ---- lanes --------------------------------------------------------------------------------------- */

struct bench;
struct lane;

struct kind {
    const char *name;
    semel_status (*batch)(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err);
    enum bench_work work;
    bool repeats; /* only messages that were completed before */
    bool poison;  /* some of them cannot be handled */
};

struct lane {
    const struct kind *kind;
    enum bench_ids ids;
    char name[32], consumer[32];
    struct bench_sql *sql;
    struct bench_stream stream;
    int64_t effects; /* the expected number */
    double *rates, *took_ms;
    size_t n_rates, n_took;
    double rss_mb;
};

struct bench {
    struct semel *s;
    const struct bench_options *options;
    size_t messages, batch;
    struct bench_msg *msgs;
    struct semel_msg *given;
    struct semel_verdict *verdicts;
    struct lane lanes[BENCH_CASES_MAX];
    size_t n_lanes;
};

static semel_status sql_failed(struct bench *b, const struct lane *lane, int rc, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = semel_fail_sqlite(b->s, rc, &why);
    semel__fail(err, status, why.cls, "%s: %.200s", lane->name, why.text);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------ */

/* The messages of one round. A lane that repeats gets the same ones every time. */
static semel_status make_msgs(struct bench *b, struct lane *lane, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (lane->kind->repeats)
        semel__random_seed(&lane->stream.rng, SEED + (uint64_t)(lane - b->lanes));
    if (!lane->kind->repeats || lane->n_rates == 0)
        bench_stream_from(&lane->stream, b->messages);
    for (size_t i = 0; status == SEMEL_OK && i < b->messages; i++)
        status = bench_msg_make(&lane->stream, i, i % b->batch, &b->msgs[i], err);
    if (lane->kind->work == BENCH_LIMIT)
        for (size_t i = 0; i < b->messages; i += b->batch)
            bench_msgs_sort(b->msgs + i, b->messages - i < b->batch ? b->messages - i : b->batch);
    return status;
}

/* ---- handwritten --------------------------------------------------------------------------------- */

static semel_status handwritten(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    int rc = 0;
    for (size_t i = first; rc == 0 && i < first + n; i++)
        rc = sql_handwritten(lane->sql, &b->msgs[i], semel__now(&semel__clock_real));
    lane->effects += (int64_t)n;
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status hand_sets(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    size_t fresh = 0;
    int rc = sql_hand_sets(lane->sql, b->msgs + first, n, semel__now(&semel__clock_real), &fresh);
    lane->effects += (int64_t)fresh;
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status limit(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    int rc = sql_limit(lane->sql, semel__str(lane->consumer), b->msgs + first, n, semel__now(&semel__clock_real));
    lane->effects += (int64_t)n;
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

/* ---- ours ---------------------------------------------------------------------------------------- */

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *err)
{
    struct lane *lane = ctx;
    (void)attempt;
    if (lane->kind->poison && bench_effect(msg->payload).poison)
        return semel_reply_set(reply, SEMEL_PERMANENT, SEMEL_STR("the account is closed"), (struct semel_str){0});
    int rc = sql_effect(lane->sql, msg->id, msg->payload);
    return rc == 0 ? SEMEL_OK : semel_fail_sqlite(s, rc, err);
}

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    struct lane *lane = ctx;
    int rc = sql_set(lane->sql, msgs, n, named);
    return rc == 0 ? SEMEL_OK : semel_fail_sqlite(s, rc, err);
}

static void give(struct bench *b, struct lane *lane, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct semel_msg *msg = &b->given[i];
        semel_msg_init(msg);
        msg->consumer = semel__str(lane->consumer);
        msg->source = SEMEL_STR(BENCH_SOURCE);
        msg->type = SEMEL_STR(BENCH_TYPE);
        msg->id = (struct semel_str){b->msgs[first + i].id, SEMEL_UUID_TEXT - 1};
        msg->payload = (struct semel_str){b->msgs[first + i].payload, BENCH_PAYLOAD};
    }
}

static semel_status ours(struct bench *b, struct lane *lane, size_t first, size_t n, struct semel_error *err)
{
    give(b, lane, first, n);
    semel_status status = lane->kind->work == BENCH_SETS
                              ? semel_inbox_process_set(b->s, b->given, n, handle_set, lane, b->verdicts, err)
                              : semel_inbox_process(b->s, b->given, n, handle, lane, b->verdicts, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        if (b->verdicts[i].act != SEMEL_ACK)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s: a message was put off (%s)", lane->name,
                               semel_why_name(b->verdicts[i].why));
        lane->effects += b->verdicts[i].why == SEMEL_WHY_NEW && b->verdicts[i].status == SEMEL_ROW_COMPLETED;
    }
    return status;
}

/* Cases that are compared most are neighbours. */
static const struct kind kinds[] = {
    {"handwritten", handwritten, BENCH_HANDWRITTEN, false, false},
    {"each", ours, BENCH_LEDGER, false, false},
    {"limit", limit, BENCH_LIMIT, false, false},
    {"handwritten-sets", hand_sets, BENCH_HAND_SETS, false, false},
    {"sets", ours, BENCH_SETS, false, false},
    {"duplicates", ours, BENCH_LEDGER, true, false},
    {"updates", ours, BENCH_UPDATES, false, false},
    {"poison", ours, BENCH_LEDGER, false, true},
};

/* ---- rounds -------------------------------------------------------------------------------------- */

static bool by_hand(const struct lane *lane)
{
    return lane->kind->work == BENCH_HANDWRITTEN;
}

static size_t share(const struct bench *b, const struct lane *lane)
{
    size_t n = by_hand(lane) ? b->messages / HANDWRITTEN_SHARE : b->messages;
    return n > 0 ? n : 1;
}

/* What must exist before the clock starts: the messages that are repeated, and a handwritten inbox as large as the
 * others. */
static semel_status lead_in(struct bench *b, struct lane *lane, struct semel_error *err)
{
    size_t n = share(b, lane), rest = b->messages - n;
    if (by_hand(lane) && rest > 0) {
        int rc = sql_fill(lane->sql, b->msgs + n, rest, semel__now(&semel__clock_real));
        lane->effects += (int64_t)rest;
        return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
    }
    semel_status status = SEMEL_OK;
    for (size_t i = 0; lane->kind->repeats && lane->n_rates == 0 && status == SEMEL_OK && i < n; i += b->batch)
        status = ours(b, lane, i, n - i < b->batch ? n - i : b->batch, err);
    return status;
}

static semel_status flush(struct bench *b, struct lane *lane, struct semel_error *err)
{
    int rc = sql_flush(b->s);
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status run_batches(struct bench *b, struct lane *lane, struct semel_error *err)
{
    size_t total = share(b, lane), step = by_hand(lane) ? 1 : b->batch;
    semel_status status = SEMEL_OK;
    int64_t start_us = semel__now(&semel__clock_real), before_us = start_us;
    for (size_t i = 0; status == SEMEL_OK && i < total && !*b->options->stop; i += step) {
        status = lane->kind->batch(b, lane, i, total - i < step ? total - i : step, err);
        int64_t now_us = semel__now(&semel__clock_real);
        lane->took_ms[lane->n_took++] = (double)(now_us - before_us) / 1000;
        before_us = now_us;
    }
    if (status == SEMEL_OK)
        status = flush(b, lane, err);
    int64_t took_us = semel__now(&semel__clock_real) - start_us;
    lane->rates[lane->n_rates++] = (double)total * 1e6 / (double)(took_us > 0 ? took_us : 1);
    return status;
}

static semel_status run_round(struct bench *b, struct lane *lane, int64_t round, struct semel_error *err)
{
    const struct bench_options *options = b->options;
    if (options->progress != NULL)
        options->progress(options->ctx, round, lane->kind->name, bench_ids_names[lane->ids]);
    semel_status status = make_msgs(b, lane, err);
    if (status == SEMEL_OK)
        status = lead_in(b, lane, err);
    if (status == SEMEL_OK)
        status = flush(b, lane, err);
    if (status == SEMEL_OK)
        status = run_batches(b, lane, err);
    lane->rss_mb = bench_rss_mb();
    return status;
}

/* ---- books and medians --------------------------------------------------------------------------- */

static semel_status balance(struct bench *b, struct lane *lane, struct semel_error *err)
{
    int64_t n = 0;
    int rc = sql_effects(lane->sql, &n);
    if (rc != 0)
        return sql_failed(b, lane, rc, err);
    if (n != lane->effects)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN,
                           "the books do not balance: %s has %" PRId64 " effects, and must have %" PRId64, lane->name,
                           n, lane->effects);
    return SEMEL_OK;
}

static void conclude(struct lane *lane, struct bench_case *ret)
{
    *ret = (struct bench_case){
        .name = lane->kind->name,
        .ids = bench_ids_names[lane->ids],
        .connections = 1,
        .per_s = bench_percentile(lane->rates, lane->n_rates, 0.5),
        .p50_ms = bench_percentile(lane->took_ms, lane->n_took, 0.5),
        .p99_ms = bench_percentile(lane->took_ms, lane->n_took, 0.99),
        .rss_mb = lane->rss_mb,
    };
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static semel_status open_lane(struct bench *b, const struct kind *kind, enum bench_ids ids, struct semel_error *err)
{
    struct lane *lane = &b->lanes[b->n_lanes++];
    size_t rounds = (size_t)b->options->rounds;
    *lane = (struct lane){.kind = kind, .ids = ids};
    bench_name(lane->name, sizeof lane->name, kind->name, ids);
    snprintf(lane->consumer, sizeof lane->consumer, "bench-%s-%s", kind->name, bench_ids_names[ids]);
    lane->stream = (struct bench_stream){.ids = ids, .poison = kind->poison};
    semel__random_seed(&lane->stream.rng, SEED + (uint64_t)(lane - b->lanes));
    lane->rates = semel__calloc(rounds, sizeof *lane->rates);
    size_t steps = by_hand(lane) ? share(b, lane) : (b->messages + b->batch - 1) / b->batch;
    lane->took_ms = semel__calloc(rounds * steps, sizeof *lane->took_ms);
    if (lane->rates == NULL || lane->took_ms == NULL)
        return semel__fail_memory(err);
    int rc = sql_new(&lane->sql, b->s, kind->work, lane->name);
    return rc == 0 ? SEMEL_OK : sql_failed(b, lane, rc, err);
}

static semel_status set_up(struct bench *b, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    b->messages = (size_t)b->options->messages;
    b->batch = (size_t)b->options->batch;
    b->msgs = semel__calloc(b->messages, sizeof *b->msgs);
    b->given = semel__calloc(b->batch, sizeof *b->given);
    b->verdicts = semel__calloc(b->batch, sizeof *b->verdicts);
    if (b->msgs == NULL || b->given == NULL || b->verdicts == NULL)
        return semel__fail_memory(err);
    for (enum bench_ids ids = BENCH_ORDERED; ids < BENCH_IDS; ids++)
        for (size_t i = 0; status == SEMEL_OK && i < sizeof kinds / sizeof kinds[0]; i++)
            if (bench_wanted(b->options, kinds[i].name))
                status = open_lane(b, &kinds[i], ids, err);
    return status;
}

static void tear_down(struct bench *b)
{
    for (size_t i = 0; i < b->n_lanes; i++) {
        sql_free(b->lanes[i].sql);
        semel__free(b->lanes[i].rates);
        semel__free(b->lanes[i].took_ms);
    }
    semel__free(b->msgs);
    semel__free(b->given);
    semel__free(b->verdicts);
}

semel_status bench_inbox(struct semel *s, const struct bench_options *options, struct bench_result *ret,
                         struct semel_error *err)
{
    struct bench b = {.s = s, .options = options};
    semel_status status = set_up(&b, err);
    *ret = (struct bench_result){.name = "inbox-sqlite", .rss_start_mb = bench_rss_mb()};
    for (int64_t round = 1; status == SEMEL_OK && round <= options->rounds; round++)
        for (size_t i = 0; status == SEMEL_OK && i < b.n_lanes && !*options->stop; i++)
            status = run_round(&b, &b.lanes[i], round, err);
    ret->rss_end_mb = bench_rss_mb();
    ret->stopped = *options->stop != 0;
    for (size_t i = 0; status == SEMEL_OK && !ret->stopped && i < b.n_lanes; i++) {
        status = balance(&b, &b.lanes[i], err);
        conclude(&b.lanes[i], &ret->cases[ret->n++]);
    }
    tear_down(&b);
    return status;
}
