/* SPDX-License-Identifier: MIT
 *
 * inbox_pg.c: `semel bench inbox` on PostgreSQL: the statements, the processes, the rounds and their results.
 *
 * The handwritten inbox is the usual one at its best: BEGIN; an insert that does nothing on a conflict, whose row
 * count is checked; the effect; COMMIT; all of them prepared, each with a round trip, as drivers do.
 *
 * The handwritten inbox over sets is what a good team writes in a day: for a batch BEGIN, one insert of its ids that
 * returns the new ones, one insert of the effects of these, COMMIT; prepared, with arrays, each with a round trip.
 *
 * The limit is the fastest that a record like ours can be written: the same rows, column by column, with every index
 * and check that is on them, and the same effects, by one statement each in one round trip; ids in the order of the
 * index, parameters in binary. Existing rows are skipped (ON CONFLICT DO NOTHING), because an inbox must not fail on
 * a duplicate; apart from that it asks nothing, checks nothing and decides nothing. `blind` leaves that out.
 *
 * Ours is what users get: semel_inbox_process and semel_inbox_process_set of libsemel, with the handler `sql`, a
 * statement and rules as a route has them: account and amount are found in the JSON of the payload. The accounts of
 * `updates` are order keys of a consumer without an order, which sorts a batch by them (P61).
 *
 * The cases are run on 1, 2, 4 and 8 connections, each in a process of its own which was forked before it connected.
 * For one number of connections the rounds are interleaved as on SQLite. A round's clock runs from the moment when
 * all processes were ready until the last one has done its share. WAL is that of the whole server: nobody else may
 * use it.
 *
 * Every number of connections has lanes, tables and processes of its own. A round of a lane is handed out as two
 * orders: PREPARE makes the messages and what has to be there before, GO is what the clock is on.
 *
 * Invariants: names of tables are made of our own words; every value is bound. At the end every lane has exactly the
 * effects that its messages ask for, or there is no result; every process that was started has been waited for; an
 * order is answered by exactly one report, whatever came of it.
 */
#define _GNU_SOURCE /* pipe2 */
#include "bench/pg.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "handler/sql.h"
#include "lib/handle.h"
#include "store/pg_store.h"

#define SQL_MAX 1200
#define ARRAY_MAX (64u << 20)
#define EPOCH_US INT64_C(946684800000000) /* 2000-01-01: where PostgreSQL's times begin */
#define WORKERS_MAX 8
#define COMMITS 100
#define HANDWRITTEN_SHARE 10 /* one transaction per message is slow: a tenth of the messages is enough for its rate */
#define ACCOUNT_AT 55        /* in a payload */
#define ACCOUNT_DIGITS 5
#define SEED UINT64_C(20261116)
#define LANES_MAX 18

/* ---- the statements ------------------------------------------------------------------------------ */

enum { OID_BYTEA = 17, OID_INT8 = 20, OID_INT4 = 23, OID_TEXT = 25 };

static semel_status failed(PGconn *conn, PGresult *res, const char *doing, struct semel_error *err)
{
    semel_status status = semel__pg_fail(conn, res, doing, err);
    PQclear(res);
    return status;
}

static bool succeeded(const PGresult *res)
{
    ExecStatusType status = PQresultStatus(res);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

__attribute__((format(printf, 4, 5))) static semel_status execute(PGconn *conn, const char *doing,
                                                                  struct semel_error *err, const char *fmt, ...)
{
    char sql[SQL_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sql, sizeof sql, fmt, args);
    va_end(args);
    PGresult *res = PQexec(conn, sql);
    if (!succeeded(res))
        return failed(conn, res, doing, err);
    PQclear(res);
    return SEMEL_OK;
}

semel_status bench_pg_number(PGconn *conn, const char *query, double *ret, struct semel_error *err)
{
    int64_t n = 0;
    PGresult *res = PQexec(conn, query);
    if (!succeeded(res) || PQntuples(res) != 1)
        return failed(conn, res, "bench", err);
    bool sound = PQgetisnull(res, 0, 0) || semel__str_int64(semel__str(PQgetvalue(res, 0, 0)), &n);
    PQclear(res);
    *ret = (double)n;
    return sound ? SEMEL_OK
                 : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "bench: \"%s\" gave no number", query);
}

/* ---- values in binary ---------------------------------------------------------------------------- */

static void put_int4(struct semel_buf *buf, int32_t v)
{
    uint32_t wire = htonl((uint32_t)v);
    semel__buf_add(buf, &wire, sizeof wire);
}

static void put_bytes(struct semel_buf *buf, const void *p, size_t n)
{
    put_int4(buf, (int32_t)n);
    semel__buf_add(buf, p, n);
}

static void to_wire8(int64_t v, unsigned char out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)((uint64_t)v >> (56 - 8 * i));
}

static void put_int8(struct semel_buf *buf, int64_t v)
{
    unsigned char wire[8];
    to_wire8(v, wire);
    put_bytes(buf, wire, sizeof wire);
}

static struct semel_buf *array(struct bench_pg_sql *sql, size_t i, int32_t type, size_t n)
{
    struct semel_buf *buf = &sql->arrays[i];
    buf->n = 0;
    put_int4(buf, 1); /* dimensions */
    put_int4(buf, 0); /* no nulls */
    put_int4(buf, type);
    put_int4(buf, (int32_t)n);
    put_int4(buf, 1); /* the first index */
    return buf;
}

static void put_number(struct semel_buf *buf, int v)
{
    put_int4(buf, sizeof(int32_t));
    put_int4(buf, v);
}

struct params {
    const char *values[BENCH_PG_ARRAYS + 2];
    int lengths[BENCH_PG_ARRAYS + 2], formats[BENCH_PG_ARRAYS + 2];
    int n;
};

static void add_param(struct params *p, const void *value, size_t n)
{
    p->values[p->n] = value;
    p->lengths[p->n] = (int)n;
    p->formats[p->n++] = 1;
}

/* false: no memory. */
static bool add_arrays(struct params *p, const struct bench_pg_sql *sql, size_t from, size_t to)
{
    bool ok = true;
    for (size_t i = from; i < to; i++) {
        add_param(p, sql->arrays[i].p, sql->arrays[i].n);
        ok = ok && !sql->arrays[i].failed;
    }
    return ok;
}

/* ---- tables and statements ----------------------------------------------------------------------- */

semel_status bench_pg_tables(PGconn *conn, enum bench_work work, const char *name, struct semel_error *err)
{
    semel_status status;
    if (work == BENCH_UPDATES) {
        status = execute(conn, name, err,
                         "CREATE TABLE bench_%s (account integer PRIMARY KEY, balance bigint NOT NULL, "
                         "changes bigint NOT NULL) WITH (fillfactor = 50); "
                         "INSERT INTO bench_%s SELECT i, 0, 0 FROM generate_series(%d, %d) AS i; ANALYZE bench_%s",
                         name, name, BENCH_FIRST_ACCOUNT, BENCH_FIRST_ACCOUNT + BENCH_ACCOUNTS - 1, name);
    } else {
        status = execute(conn, name, err,
                         "CREATE TABLE bench_%s (entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                         "message_id text NOT NULL, account integer NOT NULL, amount integer NOT NULL)",
                         name);
    }
    if (status == SEMEL_OK && (work == BENCH_HANDWRITTEN || work == BENCH_HAND_SETS))
        status = execute(conn, name, err,
                         "CREATE TABLE bench_%s_inbox (message_id text COLLATE \"C\" PRIMARY KEY, "
                         "processed_at timestamptz NOT NULL)",
                         name);
    return status;
}

__attribute__((format(printf, 4, 5))) static semel_status prepare(struct bench_pg_sql *sql, const char *what,
                                                                  struct semel_error *err, const char *fmt, ...)
{
    char name[128], text[SQL_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(name, sizeof name, "%s_%s", sql->table, what);
    PGresult *res = PQprepare(sql->conn, name, text, 0, NULL);
    if (!succeeded(res))
        return failed(sql->conn, res, name, err);
    PQclear(res);
    return SEMEL_OK;
}

static semel_status prepare_handwritten(struct bench_pg_sql *sql, struct semel_error *err)
{
    semel_status status = prepare(sql, "begin", err, "BEGIN");
    if (status == SEMEL_OK)
        status = prepare(sql, "commit", err, "COMMIT");
    if (status == SEMEL_OK)
        status = prepare(sql, "take", err,
                         "INSERT INTO %s_inbox (message_id, processed_at) VALUES ($1::text, clock_timestamp()) "
                         "ON CONFLICT DO NOTHING",
                         sql->table);
    if (status == SEMEL_OK)
        status = prepare(sql, "one", err, "%s", sql->effect);
    if (status == SEMEL_OK)
        status = prepare(sql, "fill", err,
                         "INSERT INTO %s_inbox (message_id, processed_at) SELECT id, clock_timestamp() "
                         "FROM unnest($1::text[]) AS b (id)%s",
                         sql->table,
                         sql->work == BENCH_HAND_SETS ? " ON CONFLICT DO NOTHING RETURNING message_id" : "");
    return status;
}

static semel_status prepare_limit(struct bench_pg_sql *sql, const char *consumer, struct semel_error *err)
{
    semel_status status = execute(sql->conn, "limit", err,
                                  "INSERT INTO semel.stream (consumer, source) VALUES ('%s', '" BENCH_SOURCE
                                  "') ON CONFLICT DO NOTHING",
                                  consumer);
    if (status == SEMEL_OK)
        status = prepare(sql, "begin", err, "BEGIN");
    if (status == SEMEL_OK)
        status = prepare(sql, "commit", err, "COMMIT");
    if (status == SEMEL_OK)
        status = prepare(sql, "rows", err,
                         "WITH drawn AS MATERIALIZED (SELECT nextval('semel.arrival') AS v) "
                         "INSERT INTO semel.record (arrival, stream, key, type, fingerprint, received_at) "
                         "SELECT (SELECT v FROM drawn) * 16384 + b.place, (SELECT s.stream FROM semel.stream AS s "
                         "WHERE s.consumer = $1::text AND s.source = '" BENCH_SOURCE "'), b.key, '" BENCH_TYPE
                         "', b.fp, $2::timestamptz FROM unnest($3::bigint[], $4::bytea[], $5::bytea[]) "
                         "AS b (place, key, fp)%s",
                         sql->work == BENCH_BLIND ? "" : " ON CONFLICT (key, stream) DO NOTHING");
    return status;
}

semel_status bench_pg_sql_init(struct bench_pg_sql *sql, PGconn *conn, const struct bench_pg_lane *lane,
                               struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    *sql = (struct bench_pg_sql){.conn = conn, .work = lane->kind->work};
    snprintf(sql->table, sizeof sql->table, "bench_%s", lane->name);
    for (size_t i = 0; i < BENCH_PG_ARRAYS; i++)
        semel__buf_init(&sql->arrays[i], ARRAY_MAX);
    if (sql->work == BENCH_UPDATES)
        snprintf(sql->effect, sizeof sql->effect,
                 "UPDATE %s SET balance = balance + $3::integer, changes = changes + 1 WHERE account = $2::integer "
                 "AND $1::text IS NOT NULL",
                 sql->table);
    else
        snprintf(sql->effect, sizeof sql->effect,
                 "INSERT INTO %s (message_id, account, amount) VALUES ($1::text, $2::integer, $3::integer)",
                 sql->table);
    if (sql->work == BENCH_HANDWRITTEN || sql->work == BENCH_HAND_SETS)
        status = prepare_handwritten(sql, err);
    if (sql->work == BENCH_LIMIT || sql->work == BENCH_BLIND)
        status = prepare_limit(sql, lane->consumer, err);
    if (status == SEMEL_OK && sql->work != BENCH_UPDATES && sql->work != BENCH_LEDGER)
        status = prepare(sql, "set", err,
                         "INSERT INTO %s (message_id, account, amount) "
                         "SELECT * FROM unnest($1::text[], $2::integer[], $3::integer[])%s",
                         sql->table, sql->work == BENCH_SETS ? " RETURNING message_id" : "");
    return status;
}

void bench_pg_sql_done(struct bench_pg_sql *sql)
{
    for (size_t i = 0; i < BENCH_PG_ARRAYS; i++)
        semel__buf_done(&sql->arrays[i]);
}

/* ---- one message --------------------------------------------------------------------------------- */

struct effect_params {
    const char *values[3];
    int lengths[3], formats[3];
    uint32_t account, amount;
};

static void effect_params(struct effect_params *p, struct semel_str id, struct semel_str payload)
{
    struct bench_effect effect = bench_effect(payload);
    p->account = htonl((uint32_t)effect.account);
    p->amount = htonl((uint32_t)effect.amount);
    p->values[0] = id.p;
    p->values[1] = (const char *)&p->account;
    p->values[2] = (const char *)&p->amount;
    p->lengths[0] = (int)id.n;
    p->lengths[1] = p->lengths[2] = sizeof(uint32_t);
    p->formats[0] = p->formats[1] = p->formats[2] = 1;
}

static semel_status step(struct bench_pg_sql *sql, const char *what, const struct effect_params *p, int n,
                         int *ret_rows, struct semel_error *err)
{
    char name[128];
    snprintf(name, sizeof name, "%s_%s", sql->table, what);
    PGresult *res = n > 0 ? PQexecPrepared(sql->conn, name, n, p->values, p->lengths, p->formats, 1)
                          : PQexecPrepared(sql->conn, name, 0, NULL, NULL, NULL, 1);
    sql->trips++;
    if (!succeeded(res))
        return failed(sql->conn, res, name, err);
    *ret_rows = (int)strtol(PQcmdTuples(res), NULL, 10);
    PQclear(res);
    return SEMEL_OK;
}

/* One transaction, a round trip per statement. */
static semel_status pg_handwritten(struct bench_pg_sql *sql, const struct bench_msg *msg, struct semel_error *err)
{
    struct effect_params p;
    int rows = 0, none;
    effect_params(&p, (struct semel_str){msg->id, sizeof msg->id - 1}, (struct semel_str){msg->payload, BENCH_PAYLOAD});
    semel_status status = step(sql, "begin", NULL, 0, &none, err);
    if (status == SEMEL_OK)
        status = step(sql, "take", &p, 1, &rows, err);
    if (status == SEMEL_OK && rows == 1) /* otherwise a duplicate */
        status = step(sql, "one", &p, 3, &none, err);
    return status == SEMEL_OK ? step(sql, "commit", NULL, 0, &none, err) : status;
}

/* ---- many messages ------------------------------------------------------------------------------- */

/* Ids, accounts and amounts are the first three arrays. */
static void start_effects(struct bench_pg_sql *sql, size_t n, struct semel_buf *ret[3])
{
    ret[0] = array(sql, 0, OID_TEXT, n);
    ret[1] = array(sql, 1, OID_INT4, n);
    ret[2] = array(sql, 2, OID_INT4, n);
}

static void put_effect(struct semel_buf *const arrays[3], struct semel_str id, struct semel_str payload)
{
    struct bench_effect effect = bench_effect(payload);
    put_bytes(arrays[0], id.p, id.n);
    put_number(arrays[1], effect.account);
    put_number(arrays[2], effect.amount);
}

static void put_msgs(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n)
{
    struct semel_buf *arrays[3];
    start_effects(sql, n, arrays);
    for (size_t i = 0; i < n; i++)
        put_effect(arrays, (struct semel_str){msgs[i].id, sizeof msgs[i].id - 1},
                   (struct semel_str){msgs[i].payload, BENCH_PAYLOAD});
}

static semel_status run_set(struct bench_pg_sql *sql, const char *what, size_t n_arrays, PGresult **ret,
                            struct semel_error *err)
{
    char name[128];
    struct params p = {0};
    if (!add_arrays(&p, sql, 0, n_arrays))
        return semel__fail_memory(err);
    snprintf(name, sizeof name, "%s_%s", sql->table, what);
    PGresult *res = PQexecPrepared(sql->conn, name, p.n, p.values, p.lengths, p.formats, 1);
    sql->trips++;
    if (!succeeded(res))
        return failed(sql->conn, res, name, err);
    *ret = res;
    return SEMEL_OK;
}

/* Rows of the handwritten inbox and their effects, inserted before the clock starts. */
static semel_status pg_fill(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n, struct semel_error *err)
{
    PGresult *res = NULL;
    put_msgs(sql, msgs, n);
    semel_status status = run_set(sql, "set", 3, &res, err);
    PQclear(res);
    res = NULL;
    if (status == SEMEL_OK)
        status = run_set(sql, "fill", 1, &res, err);
    PQclear(res);
    return status;
}

/* The new ids come back in the given order. */
static size_t put_new(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n, const PGresult *fresh)
{
    struct semel_buf *arrays[3];
    size_t rows = (size_t)PQntuples(fresh), k = 0;
    start_effects(sql, rows, arrays);
    for (size_t i = 0; i < n && k < rows; i++)
        if (strcmp(PQgetvalue(fresh, (int)k, 0), msgs[i].id) == 0 && ++k > 0)
            put_effect(arrays, (struct semel_str){msgs[i].id, sizeof msgs[i].id - 1},
                       (struct semel_str){msgs[i].payload, BENCH_PAYLOAD});
    return k;
}

/* One transaction, a round trip for the ids of a batch and one for the effects of those that are new. */
static semel_status pg_hand_sets(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n, size_t *ret_new,
                                 struct semel_error *err)
{
    PGresult *fresh = NULL, *res = NULL;
    int none;
    *ret_new = 0;
    put_msgs(sql, msgs, n);
    semel_status status = step(sql, "begin", NULL, 0, &none, err);
    if (status == SEMEL_OK)
        status = run_set(sql, "fill", 1, &fresh, err);
    if (status == SEMEL_OK && (*ret_new = put_new(sql, msgs, n, fresh)) > 0)
        status = run_set(sql, "set", 3, &res, err);
    PQclear(fresh);
    PQclear(res);
    return status == SEMEL_OK ? step(sql, "commit", NULL, 0, &none, err) : status;
}

semel_status bench_pg_set(struct bench_pg_sql *sql, const struct semel_msg *msgs, size_t n, struct semel_named *named,
                          struct semel_error *err)
{
    struct semel_buf *arrays[3];
    PGresult *res = NULL;
    start_effects(sql, n, arrays);
    for (size_t i = 0; i < n; i++)
        put_effect(arrays, msgs[i].id, msgs[i].payload);
    semel_status status = run_set(sql, "set", 3, &res, err);
    for (int row = 0; status == SEMEL_OK && row < PQntuples(res); row++)
        semel_named_add(named, SEMEL_STR(BENCH_SOURCE),
                        (struct semel_str){PQgetvalue(res, row, 0), (size_t)PQgetlength(res, row, 0)});
    PQclear(res);
    return status;
}

/* ---- the limit ----------------------------------------------------------------------------------- */

static bool send_limit(struct bench_pg_sql *sql, const char *what, const struct params *p)
{
    char name[128];
    snprintf(name, sizeof name, "%s_%s", sql->table, what);
    return PQsendQueryPrepared(sql->conn, name, p->n, p->values, p->lengths, p->formats, 1) != 0;
}

static semel_status read_limit(struct bench_pg_sql *sql, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (bool synced = false; !synced;) {
        PGresult *res = PQgetResult(sql->conn);
        if (res == NULL && PQstatus(sql->conn) != CONNECTION_OK)
            return failed(sql->conn, NULL, "limit", err);
        synced = PQresultStatus(res) == PGRES_PIPELINE_SYNC;
        if (res != NULL && !synced && !succeeded(res) && status == SEMEL_OK)
            status = semel__pg_fail(sql->conn, res, "limit", err);
        PQclear(res);
    }
    return status;
}

static void put_rows(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n)
{
    unsigned char fp[1 + SEMEL_FP_MAX], uuid[SEMEL_UUID_KEY];
    struct semel_buf *places = array(sql, 3, OID_INT8, n), *digests = array(sql, 4, OID_BYTEA, n);
    struct semel_buf *keys = array(sql, 5, OID_BYTEA, n);
    for (size_t i = 0; i < n; i++) {
        put_int8(places, (int64_t)msgs[i].place);
        put_bytes(digests, fp, semel__fp_encode(&msgs[i].fp, fp));
        struct semel_str key = semel__id_key(semel__str(msgs[i].id), uuid);
        put_bytes(keys, key.p, key.n);
    }
}

/* One transaction and one round trip, with the rows that the inbox would have written. */
static semel_status pg_limit(struct bench_pg_sql *sql, struct semel_str consumer, const struct bench_msg *msgs,
                             size_t n, int64_t now_us, struct semel_error *err)
{
    unsigned char now[8];
    struct params rows = {0}, set = {0}, none = {0};
    bool ok = PQenterPipelineMode(sql->conn) != 0;
    to_wire8(now_us - EPOCH_US, now);
    put_msgs(sql, msgs, n);
    put_rows(sql, msgs, n);
    add_param(&rows, consumer.p, consumer.n);
    add_param(&rows, now, sizeof now);
    ok = ok && add_arrays(&rows, sql, 3, 4) && add_arrays(&rows, sql, 5, 6) && add_arrays(&rows, sql, 4, 5);
    ok = ok && add_arrays(&set, sql, 0, 3);
    ok = ok && send_limit(sql, "begin", &none) && send_limit(sql, "rows", &rows) && send_limit(sql, "set", &set) &&
         send_limit(sql, "commit", &none) && PQpipelineSync(sql->conn) != 0;
    semel_status status = ok ? read_limit(sql, err) : failed(sql->conn, NULL, "limit", err);
    PQexitPipelineMode(sql->conn);
    sql->trips++;
    return status;
}

semel_status bench_pg_effects(PGconn *conn, enum bench_work work, const char *name, int64_t *ret_n,
                              struct semel_error *err)
{
    char query[128];
    double n = 0;
    snprintf(query, sizeof query, "SELECT %s FROM bench_%s", work == BENCH_UPDATES ? "sum(changes)" : "count(*)", name);
    semel_status status = bench_pg_number(conn, query, &n, err);
    *ret_n = (int64_t)n;
    return status;
}

/* ---- one process and its connection -------------------------------------------------------------- */

struct plan {
    const char *url;
    const struct bench_options *options;
    int connections;
    struct bench_pg_lane lanes[LANES_MAX];
    size_t n_lanes;
};

enum op { ORDER_PREPARE, ORDER_GO };
struct order {
    enum op op;
    size_t lane;
};

/* Behind it come n_took doubles: what each batch took, in milliseconds. */
struct report {
    semel_status status;
    struct semel_error err;
    size_t messages, n_took;
    int64_t effects, trips;
    double rss_mb;
};

struct track {
    const struct bench_pg_lane *lane;
    struct bench_pg_sql sql;
    struct semel_sql *effect;
    struct bench_stream stream;
    size_t rounds;
    uint64_t seed;
};

struct worker {
    const struct plan *plan;
    size_t index, batch, mine; /* mine: messages per round */
    struct semel *s;
    struct bench_msg *msgs;
    struct semel_msg *given;
    struct semel_verdict *verdicts;
    struct semel__msg *shown; /* passed to the handler */
    const struct semel__msg **set;
    struct track *setting; /* whose set is processed */
    double *took_ms;
    size_t n_took;
    int64_t effects;
    struct track tracks[LANES_MAX];
};

bool bench_pg_read(int fd, void *to, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)to + done, n - done);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

bool bench_pg_write(int fd, const void *from, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = write(fd, (const char *)from + done, n - done);
        if (put < 0 && errno != EINTR)
            return false;
        done += put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* ---- the cases ----------------------------------------------------------------------------------- */

static bool by_hand(const struct track *track)
{
    return track->lane->kind->work == BENCH_HANDWRITTEN;
}

static bool at_limit(const struct track *track)
{
    return track->lane->kind->work == BENCH_LIMIT || track->lane->kind->work == BENCH_BLIND;
}

static bool is_ours(const struct track *track)
{
    return !by_hand(track) && !at_limit(track) && track->lane->kind->work != BENCH_HAND_SETS;
}

/* libsemel has parsed the payload for the fingerprint. */
static struct semel__msg show(const struct semel_msg *msg)
{
    return (struct semel__msg){.source = msg->source,
                               .id = msg->id,
                               .payload = msg->payload,
                               .fp = {.kind = SEMEL_FP_JSON}};
}

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *err)
{
    struct track *track = ctx;
    const struct semel__handler *effect = semel__sql_handler(track->effect);
    const struct semel__msg shown = show(msg);
    if (track->lane->kind->poison && bench_effect(msg->payload).poison)
        return semel_reply_set(reply, SEMEL_PERMANENT, SEMEL_STR("the account is closed"), (struct semel_str){0});
    return effect->each(effect->ctx, s->store, &shown, attempt, NULL, err);
}

static void name(void *ctx, struct semel_str source, struct semel_str id)
{
    semel_named_add(ctx, source, id);
}

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    struct worker *w = ctx;
    for (size_t i = 0; i < n; i++) {
        w->shown[i] = show(&msgs[i]);
        w->set[i] = &w->shown[i];
    }
    return semel__sql_run_set(w->setting->effect, s->store, w->set, n, name, named, err);
}

static semel_status make_handler(struct worker *w, struct track *track, struct semel_error *err)
{
    static const struct semel_str values[] = {SEMEL_STR("id"), SEMEL_STR("json:/account"), SEMEL_STR("json:/amount")};
    const bool sets = track->lane->kind->work == BENCH_SETS;
    char statement[256];
    if (sets)
        snprintf(statement, sizeof statement,
                 "INSERT INTO %s (message_id, account, amount) SELECT * FROM unnest($1::text[], $2::integer[], "
                 "$3::integer[]) RETURNING message_id",
                 track->sql.table);
    const struct semel_sql_desc desc = {
        .statement = semel__str(sets ? statement : track->sql.effect),
        .mode = sets ? SEMEL_SQL_SET : SEMEL_SQL_EACH,
        .values = values,
        .n_values = sizeof values / sizeof values[0],
    };
    return semel__sql_handler_new(&track->effect, &desc, w->s->store, err);
}

static void give(struct worker *w, const struct track *track, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct bench_msg *from = &w->msgs[first + i];
        struct semel_msg *msg = &w->given[i];
        semel_msg_init(msg);
        msg->consumer = semel__str(track->lane->consumer);
        msg->source = SEMEL_STR(BENCH_SOURCE);
        msg->type = SEMEL_STR(BENCH_TYPE);
        msg->id = (struct semel_str){from->id, SEMEL_UUID_TEXT - 1};
        msg->payload = (struct semel_str){from->payload, BENCH_PAYLOAD};
        if (track->lane->kind->work == BENCH_UPDATES)
            msg->order_key = (struct semel_str){from->payload + ACCOUNT_AT, ACCOUNT_DIGITS};
    }
}

static semel_status ours(struct worker *w, struct track *track, size_t first, size_t n, struct semel_error *err)
{
    give(w, track, first, n);
    w->setting = track;
    semel_status status = track->lane->kind->work == BENCH_SETS
                              ? semel_inbox_process_set(w->s, w->given, n, handle_set, w, w->verdicts, err)
                              : semel_inbox_process(w->s, w->given, n, handle, track, w->verdicts, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        if (w->verdicts[i].act != SEMEL_ACK)
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "%s: a message was put off (%s)",
                               track->lane->name, semel_why_name(w->verdicts[i].why));
        w->effects += w->verdicts[i].why == SEMEL_WHY_NEW && w->verdicts[i].status == SEMEL_ROW_COMPLETED;
    }
    return status;
}

static semel_status run_batch(struct worker *w, struct track *track, size_t first, size_t n, struct semel_error *err)
{
    semel_status status;
    size_t effects = n;
    switch (track->lane->kind->work) {
    case BENCH_HAND_SETS:
        status = pg_hand_sets(&track->sql, w->msgs + first, n, &effects, err);
        break;
    case BENCH_HANDWRITTEN:
        status = pg_handwritten(&track->sql, &w->msgs[first], err);
        break;
    case BENCH_LIMIT:
    case BENCH_BLIND:
        status = pg_limit(&track->sql, semel__str(track->lane->consumer), w->msgs + first, n,
                          semel__now(&semel__clock_real), err);
        break;
    case BENCH_LEDGER:
    case BENCH_SETS:
    case BENCH_UPDATES:
    default:
        return ours(w, track, first, n, err);
    }
    w->effects += (int64_t)effects;
    return status;
}

/* ---- orders -------------------------------------------------------------------------------------- */

static size_t share(const struct worker *w, const struct track *track)
{
    size_t n = by_hand(track) ? w->mine / HANDWRITTEN_SHARE : w->mine;
    return n > 0 ? n : 1;
}

static semel_status make_msgs(struct worker *w, struct track *track, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    bool repeats = track->lane->kind->repeats;
    if (repeats || track->rounds == 0)
        semel__random_seed(&track->stream.rng, track->seed);
    if (!repeats || track->rounds == 0)
        bench_stream_from(&track->stream, w->mine);
    for (size_t i = 0; status == SEMEL_OK && i < w->mine; i++)
        status = bench_msg_make(&track->stream, i, i % w->batch, &w->msgs[i], err);
    for (size_t i = 0; at_limit(track) && i < w->mine; i += w->batch)
        bench_msgs_sort(w->msgs + i, w->mine - i < w->batch ? w->mine - i : w->batch);
    return status;
}

/* What must exist before the clock starts: the messages that are repeated, and a handwritten inbox as large as the
 * others. */
static semel_status get_ready(struct worker *w, struct track *track, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    if (track->sql.conn == NULL)
        status = bench_pg_sql_init(&track->sql, semel_native(w->s), track->lane, err);
    if (status == SEMEL_OK && is_ours(track) && track->effect == NULL)
        status = make_handler(w, track, err);
    if (status == SEMEL_OK)
        status = make_msgs(w, track, err);
    size_t n = share(w, track);
    for (size_t i = n; by_hand(track) && status == SEMEL_OK && i < w->mine; i += w->batch) {
        size_t some = w->mine - i < w->batch ? w->mine - i : w->batch;
        status = pg_fill(&track->sql, w->msgs + i, some, err);
        w->effects += (int64_t)some;
    }
    for (size_t i = 0; track->lane->kind->repeats && track->rounds == 0 && status == SEMEL_OK && i < n; i += w->batch)
        status = ours(w, track, i, n - i < w->batch ? n - i : w->batch, err);
    track->rounds++;
    return status;
}

static semel_status go(struct worker *w, struct track *track, struct semel_error *err)
{
    size_t total = share(w, track), step = by_hand(track) ? 1 : w->batch;
    semel_status status = SEMEL_OK;
    int64_t before_us = semel__now(&semel__clock_real);
    for (size_t i = 0; status == SEMEL_OK && i < total && *w->plan->options->stop == 0; i += step) {
        status = run_batch(w, track, i, total - i < step ? total - i : step, err);
        int64_t now_us = semel__now(&semel__clock_real);
        w->took_ms[w->n_took++] = (double)(now_us - before_us) / 1000;
        before_us = now_us;
    }
    return status;
}

static bool answer(struct worker *w, int out, const struct report *report)
{
    return bench_pg_write(out, report, sizeof *report) &&
           bench_pg_write(out, w->took_ms, report->n_took * sizeof *w->took_ms);
}

static bool obey(struct worker *w, const struct order *order, int out)
{
    struct track *track = &w->tracks[order->lane];
    struct report report = {0};
    w->effects = 0;
    w->n_took = 0;
    int64_t trips = semel__pg_trips(w->s->store) + track->sql.trips;
    report.status = order->op == ORDER_GO ? go(w, track, &report.err) : get_ready(w, track, &report.err);
    report.trips = semel__pg_trips(w->s->store) + track->sql.trips - trips;
    report.messages = share(w, track);
    report.effects = w->effects;
    report.n_took = w->n_took;
    report.rss_mb = bench_rss_mb();
    return answer(w, out, &report);
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static semel_status set_up(struct worker *w, struct semel_error *err)
{
    const struct plan *plan = w->plan;
    size_t messages = (size_t)plan->options->messages, n = (size_t)plan->connections;
    w->batch = (size_t)plan->options->batch;
    w->mine = messages / n + (w->index < messages % n);
    w->mine = w->mine > 0 ? w->mine : 1;
    w->msgs = semel__calloc(w->mine, sizeof *w->msgs);
    w->given = semel__calloc(w->batch, sizeof *w->given);
    w->verdicts = semel__calloc(w->batch, sizeof *w->verdicts);
    w->shown = semel__calloc(w->batch, sizeof *w->shown);
    w->set = semel__calloc(w->batch, sizeof *w->set);
    w->took_ms = semel__calloc(w->mine, sizeof *w->took_ms);
    if (w->msgs == NULL || w->given == NULL || w->verdicts == NULL || w->shown == NULL || w->set == NULL ||
        w->took_ms == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < plan->n_lanes; i++)
        w->tracks[i] = (struct track){
            .lane = &plan->lanes[i],
            .stream = {.ids = plan->lanes[i].ids, .poison = plan->lanes[i].kind->poison},
            .seed = SEED + (n * LANES_MAX + i) * 64 + w->index,
        };
    return semel_open(&w->s, plan->url, 0, err);
}

/* Connects, reports that, and executes orders until there are no more. Returns the exit code. */
static int run_worker(const struct plan *plan, int index, int in, int out)
{
    struct worker w = {.plan = plan, .index = (size_t)index};
    struct report hello = {0};
    struct order order;
    hello.status = set_up(&w, &hello.err);
    bool going = answer(&w, out, &hello) && hello.status == SEMEL_OK && w.s != NULL;
    while (going && bench_pg_read(in, &order, sizeof order))
        going = order.lane < plan->n_lanes && obey(&w, &order, out);
    for (size_t i = 0; i < plan->n_lanes; i++)
        bench_pg_sql_done(&w.tracks[i].sql);
    for (size_t i = 0; i < plan->n_lanes; i++)
        semel__sql_handler_free(w.tracks[i].effect);
    semel_close(w.s);
    semel__free(w.msgs);
    semel__free(w.given);
    semel__free(w.verdicts);
    semel__free(w.shown);
    semel__free(w.set);
    semel__free(w.took_ms);
    return 0;
}

/* ---- the plan and its processes ------------------------------------------------------------------ */

static const struct bench_pg_kind kinds[] = {
    {"handwritten", BENCH_HANDWRITTEN, false, false},
    {"each", BENCH_LEDGER, false, false},
    {"handwritten-sets", BENCH_HAND_SETS, false, false},
    {"sets", BENCH_SETS, false, false},
    {"duplicates", BENCH_LEDGER, true, false},
    {"limit", BENCH_LIMIT, false, false},
    {"blind", BENCH_BLIND, false, false},
    {"updates", BENCH_UPDATES, false, false},
    {"poison", BENCH_LEDGER, false, true},
};

struct child {
    pid_t pid;
    int in, out; /* orders, reports; -1: closed */
};

/* The results of a lane. */
struct tally {
    double *rates, *took_ms;
    size_t n_rates, n_took, room;
    int64_t effects, messages, trips;
    double wal_bytes, rss_mb;
};

struct bench {
    struct semel *s;
    PGconn *conn;
    struct plan plan;
    struct tally tallies[LANES_MAX];
    struct child children[WORKERS_MAX];
    size_t n_children;
};

bool bench_pg_url(const char *url)
{
    return strncmp(url, "postgres:", 9) == 0 || strncmp(url, "postgresql:", 11) == 0;
}

/* ---- processes ----------------------------------------------------------------------------------- */

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Never returns in the child, which uses only our memory: inherited descriptors stay untouched. */
static semel_status start_child(struct bench *b, struct semel_error *err)
{
    int orders[2] = {-1, -1}, reports[2] = {-1, -1};
    struct child *child = &b->children[b->n_children];
    bool ok = pipe2(orders, O_CLOEXEC) == 0 && pipe2(reports, O_CLOEXEC) == 0;
    pid_t pid = ok ? fork() : -1;
    if (pid == 0) {
        close(orders[1]);
        close(reports[0]);
        for (size_t i = 0; i < b->n_children; i++) {
            close_end(&b->children[i].in);
            close_end(&b->children[i].out);
        }
        _exit(run_worker(&b->plan, (int)b->n_children, orders[0], reports[1]));
    }
    close_end(&orders[0]);
    close_end(&reports[1]);
    if (pid < 0) {
        close_end(&orders[1]);
        close_end(&reports[0]);
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process cannot be started (error %d)", errno);
    }
    *child = (struct child){.pid = pid, .in = orders[1], .out = reports[0]};
    b->n_children++;
    return SEMEL_OK;
}

static void end_children(struct bench *b)
{
    for (size_t i = 0; i < b->n_children; i++)
        close_end(&b->children[i].in); /* no more orders */
    for (size_t i = 0; i < b->n_children; i++) {
        close_end(&b->children[i].out);
        while (waitpid(b->children[i].pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    b->n_children = 0;
}

/* ---- a round ------------------------------------------------------------------------------------- */

static bool keep_times(struct tally *tally, const struct child *child, size_t n)
{
    if (tally->n_took + n > tally->room) {
        size_t room = 2 * (tally->n_took + n);
        double *more = semel__realloc(tally->took_ms, room, sizeof *more);
        if (more == NULL)
            return false;
        tally->took_ms = more;
        tally->room = room;
    }
    if (!bench_pg_read(child->out, tally->took_ms + tally->n_took, n * sizeof(double)))
        return false;
    tally->n_took += n;
    return true;
}

/* Reads a report of each process and adds it up. Reports the first failure after all were read. */
static semel_status collect(struct bench *b, struct tally *tally, size_t *ret_messages, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    *ret_messages = 0;
    tally->rss_mb = 0;
    for (size_t i = 0; i < b->n_children; i++) {
        struct report report;
        if (!bench_pg_read(b->children[i].out, &report, sizeof report) ||
            !keep_times(tally, &b->children[i], report.n_took))
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process of the benchmark has died");
        if (status == SEMEL_OK && report.status != SEMEL_OK) {
            status = report.status;
            *err = report.err;
        }
        *ret_messages += report.messages;
        tally->effects += report.effects;
        tally->trips += report.n_took > 0 ? report.trips : 0;
        tally->rss_mb += report.rss_mb;
    }
    return status;
}

static semel_status command(struct bench *b, size_t lane, enum op op, struct semel_error *err)
{
    const struct order order = {.op = op, .lane = lane};
    for (size_t i = 0; i < b->n_children; i++)
        if (!bench_pg_write(b->children[i].in, &order, sizeof order))
            return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a process of the benchmark has died");
    return SEMEL_OK;
}

static semel_status wal_position(struct bench *b, double *ret, struct semel_error *err)
{
    return bench_pg_number(b->conn, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')", ret, err);
}

static semel_status run_round(struct bench *b, size_t lane, struct semel_error *err)
{
    struct tally *tally = &b->tallies[lane];
    double before = 0, after = 0;
    size_t messages = 0;
    semel_status status = command(b, lane, ORDER_PREPARE, err);
    if (status == SEMEL_OK)
        status = collect(b, tally, &messages, err);
    if (status == SEMEL_OK)
        status = wal_position(b, &before, err);
    if (status != SEMEL_OK)
        return status;
    int64_t start_us = semel__now(&semel__clock_real);
    status = command(b, lane, ORDER_GO, err);
    if (status == SEMEL_OK)
        status = collect(b, tally, &messages, err);
    int64_t took_us = semel__now(&semel__clock_real) - start_us;
    if (status == SEMEL_OK)
        status = wal_position(b, &after, err);
    tally->rates[tally->n_rates++] = (double)messages * 1e6 / (double)(took_us > 0 ? took_us : 1);
    tally->messages += (int64_t)messages;
    tally->wal_bytes += after - before;
    return status;
}

static semel_status run_rounds(struct bench *b, struct semel_error *err)
{
    const struct bench_options *options = b->plan.options;
    semel_status status = SEMEL_OK;
    for (int64_t round = 1; status == SEMEL_OK && round <= options->rounds; round++)
        for (size_t i = 0; status == SEMEL_OK && i < b->plan.n_lanes && *options->stop == 0; i++) {
            const struct bench_pg_lane *lane = &b->plan.lanes[i];
            if (options->progress != NULL)
                options->progress(options->ctx, round, lane->name, bench_ids_names[lane->ids]);
            status = run_round(b, i, err);
        }
    return status;
}

/* ---- a number of connections --------------------------------------------------------------------- */

static semel_status open_lane(struct bench *b, const struct bench_pg_kind *kind, enum bench_ids ids,
                              struct semel_error *err)
{
    struct bench_pg_lane *lane = &b->plan.lanes[b->plan.n_lanes];
    struct tally *tally = &b->tallies[b->plan.n_lanes++];
    *lane = (struct bench_pg_lane){.kind = kind, .ids = ids};
    *tally = (struct tally){.rates = semel__calloc((size_t)b->plan.options->rounds, sizeof(double))};
    if (tally->rates == NULL)
        return semel__fail_memory(err);
    bench_name(lane->name, sizeof lane->name, kind->name, ids);
    snprintf(lane->name + strlen(lane->name), sizeof lane->name - strlen(lane->name), "_%d", b->plan.connections);
    snprintf(lane->consumer, sizeof lane->consumer, "bench-%s-%s-%d", kind->name, bench_ids_names[ids],
             b->plan.connections);
    semel_status status = bench_pg_tables(b->conn, kind->work, lane->name, err);
    if (status == SEMEL_OK && kind->work == BENCH_UPDATES)
        status = semel_consumer_set(b->s, lane->consumer, "{\"order\":\"none\"}", err);
    return status;
}

static void close_lanes(struct bench *b)
{
    for (size_t i = 0; i < b->plan.n_lanes; i++) {
        semel__free(b->tallies[i].rates);
        semel__free(b->tallies[i].took_ms);
    }
    b->plan.n_lanes = 0;
}

static semel_status balance(struct bench *b, size_t i, struct semel_error *err)
{
    const struct bench_pg_lane *lane = &b->plan.lanes[i];
    int64_t n = 0;
    semel_status status = bench_pg_effects(b->conn, lane->kind->work, lane->name, &n, err);
    if (status == SEMEL_OK && n != b->tallies[i].effects)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_BROKEN,
                           "the books do not balance: %s has %" PRId64 " effects, and must have %" PRId64, lane->name,
                           n, b->tallies[i].effects);
    return status;
}

static void conclude(const struct bench *b, size_t i, struct bench_case *ret)
{
    const struct bench_pg_lane *lane = &b->plan.lanes[i];
    const struct tally *tally = &b->tallies[i];
    double messages = tally->messages > 0 ? (double)tally->messages : 1;
    *ret = (struct bench_case){
        .name = lane->kind->name,
        .ids = bench_ids_names[lane->ids],
        .connections = b->plan.connections,
        .per_s = bench_percentile(tally->rates, tally->n_rates, 0.5),
        .p50_ms = bench_percentile(tally->took_ms, tally->n_took, 0.5),
        .p99_ms = bench_percentile(tally->took_ms, tally->n_took, 0.99),
        .rss_mb = tally->rss_mb,
        .trips = (double)tally->trips / messages,
        .wal_bytes = tally->wal_bytes / messages,
    };
}

static semel_status run_connections(struct bench *b, struct bench_result *ret, struct semel_error *err)
{
    const volatile sig_atomic_t *stop = b->plan.options->stop;
    struct tally hello = {0};
    size_t none;
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (enum bench_ids ids = BENCH_ORDERED; status == SEMEL_OK && ids < BENCH_IDS; ids++)
            if (bench_wanted(b->plan.options, kinds[i].name))
                status = open_lane(b, &kinds[i], ids, err);
    for (int i = 0; status == SEMEL_OK && i < b->plan.connections; i++)
        status = start_child(b, err);
    if (status == SEMEL_OK)
        status = collect(b, &hello, &none, err);
    if (status == SEMEL_OK)
        status = run_rounds(b, err);
    end_children(b);
    for (size_t i = 0; status == SEMEL_OK && *stop == 0 && i < b->plan.n_lanes; i++) {
        status = balance(b, i, err);
        conclude(b, i, &ret->cases[ret->n++]);
    }
    close_lanes(b);
    return status;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

semel_status bench_pg_measure(PGconn *conn, bool *ret_used, double *ret_commit_us, struct semel_error *err)
{
    double used = 0, none, took_us[COMMITS];
    semel_status status = bench_pg_number(conn,
                                          "SELECT (EXISTS (SELECT 1 FROM semel.inbox) OR EXISTS (SELECT 1 FROM "
                                          "pg_catalog.pg_class WHERE relname LIKE 'bench\\_%'))::integer",
                                          &used, err);
    *ret_used = used != 0;
    if (status != SEMEL_OK || *ret_used)
        return status;
    /* A transaction that writes as little as possible: its time is the wait for the disk. */
    for (size_t i = 0; status == SEMEL_OK && i < COMMITS; i++) {
        int64_t start_us = semel__now(&semel__clock_real);
        status = bench_pg_number(conn, "SELECT pg_logical_emit_message(true, 'semel', 'bench') - '0/0'", &none, err);
        took_us[i] = (double)(semel__now(&semel__clock_real) - start_us);
    }
    *ret_commit_us = status == SEMEL_OK ? bench_percentile(took_us, COMMITS, 0.5) : 0;
    return status;
}

semel_status bench_pg(const char *url, const struct bench_options *options, struct bench_result *ret, bool *ret_opened,
                      bool *ret_used, struct semel_error *err)
{
    static struct bench b; /* its lanes are many */
    b = (struct bench){.plan = {.url = url, .options = options}};
    *ret = (struct bench_result){.name = "inbox-postgres", .server = true, .rss_start_mb = bench_rss_mb()};
    semel_status status = semel_open(&b.s, url, SEMEL_CREATE | SEMEL_MIGRATE, err);
    *ret_opened = status == SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    b.conn = semel_native(b.s);
    status = bench_pg_measure(b.conn, ret_used, &ret->commit_us, err);
    for (int n = 1; status == SEMEL_OK && !*ret_used && n <= options->connections && *options->stop == 0; n *= 2) {
        b.plan.connections = n;
        status = run_connections(&b, ret, err);
    }
    ret->rss_end_mb = bench_rss_mb();
    ret->stopped = *options->stop != 0;
    semel_close(b.s);
    return status;
}
