/* SPDX-License-Identifier: MIT
 *
 * bench_pg_sql.c: the statements of `semel bench inbox` on PostgreSQL.
 *
 * The handwritten inbox is the usual one at its best: BEGIN; an insert that does nothing on a conflict, its count of
 * rows looked at; the effect; COMMIT; all of them prepared, each waited for, which is what drivers do.
 *
 * The handwritten inbox over sets is what a good team writes in a day: for a batch BEGIN, one insert of its ids that
 * gives back the new ones, one insert of the effects of these, COMMIT; prepared, with arrays, each waited for.
 *
 * The limit is the fastest that a record like ours can be written: the same rows, column by column, with every index
 * and check that is on them, and the same effects, by one statement each in one round trip; ids in the order of the
 * index, parameters in binary. What is there already is passed over (ON CONFLICT DO NOTHING), for an inbox that fails
 * on a duplicate is none; apart from that it asks nothing, checks nothing and decides nothing. `blind` leaves that out.
 *
 * Invariants: names of tables are made of our own words; every value is bound.
 */
#include "cli/bench_pg.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "store/pg_store.h"

#define SQL_MAX 1200
#define ARRAY_MAX (64u << 20)
#define EPOCH_US INT64_C(946684800000000) /* 2000-01-01: where PostgreSQL's times begin */

enum { OID_BYTEA = 17, OID_INT8 = 20, OID_INT4 = 23, OID_TEXT = 25, OID_TIMESTAMPTZ = 1184 };

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

/* With random ids no message has a time. */
static semel_status prepare_limit(struct bench_pg_sql *sql, enum bench_ids ids, struct semel_error *err)
{
    const bool timed = ids == BENCH_ORDERED, blind = sql->work == BENCH_BLIND;
    semel_status status = prepare(sql, "begin", err, "BEGIN");
    if (status == SEMEL_OK)
        status = prepare(sql, "commit", err, "COMMIT");
    if (status == SEMEL_OK)
        status = prepare(sql, "rows", err,
                         "WITH drawn AS MATERIALIZED (SELECT nextval('semel.arrival') AS v) "
                         "INSERT INTO semel.inbox (arrival, consumer, source, message_id, type, status, attempts, "
                         "fingerprint, received_at, updated_at, processed_at%s) "
                         "SELECT (SELECT v FROM drawn) * 16384 + b.place, $1::text, '" BENCH_SOURCE
                         "', b.id, '" BENCH_TYPE "', 'completed', 1, b.fp, $2::timestamptz, $2, $2%s "
                         "FROM unnest($3::bigint[], $4::text[], $5::bytea[]%s) AS b (place, id, fp%s)%s",
                         timed ? ", message_time" : "", timed ? ", b.t" : "", timed ? ", $6::timestamptz[]" : "",
                         timed ? ", t" : "", blind ? "" : " ON CONFLICT (consumer, source, message_id) DO NOTHING");
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
        status = prepare_limit(sql, lane->ids, err);
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

semel_status bench_pg_handwritten(struct bench_pg_sql *sql, const struct bench_msg *msg, struct semel_error *err)
{
    struct effect_params p;
    int rows = 0, none;
    effect_params(&p, (struct semel_str){msg->id, sizeof msg->id - 1}, (struct semel_str){msg->payload, BENCH_PAYLOAD});
    semel_status status = step(sql, "begin", NULL, 0, &none, err);
    if (status == SEMEL_OK)
        status = step(sql, "take", &p, 1, &rows, err);
    if (status == SEMEL_OK && rows == 1) /* else a duplicate */
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

semel_status bench_pg_fill(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n, struct semel_error *err)
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

/* The new ids come back in the order in which they were given. */
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

semel_status bench_pg_hand_sets(struct bench_pg_sql *sql, const struct bench_msg *msgs, size_t n, size_t *ret_new,
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
    unsigned char fp[1 + SEMEL_FP_MAX];
    struct semel_buf *places = array(sql, 3, OID_INT8, n), *digests = array(sql, 4, OID_BYTEA, n);
    for (size_t i = 0; i < n; i++) {
        put_int8(places, (int64_t)msgs[i].place);
        put_bytes(digests, fp, semel__fp_encode(&msgs[i].fp, fp));
    }
}

static void put_times(struct semel_buf *buf, const struct bench_msg *msgs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_int8(buf, msgs[i].time_us - EPOCH_US);
}

semel_status bench_pg_limit(struct bench_pg_sql *sql, struct semel_str consumer, const struct bench_msg *msgs, size_t n,
                            int64_t now_us, struct semel_error *err)
{
    unsigned char now[8];
    struct params rows = {0}, set = {0}, none = {0};
    bool timed = msgs[0].time_us != SEMEL_NONE, ok = PQenterPipelineMode(sql->conn) != 0;
    to_wire8(now_us - EPOCH_US, now);
    put_msgs(sql, msgs, n);
    put_rows(sql, msgs, n);
    add_param(&rows, consumer.p, consumer.n);
    add_param(&rows, now, sizeof now);
    ok = ok && add_arrays(&rows, sql, 3, 4) && add_arrays(&rows, sql, 0, 1) && add_arrays(&rows, sql, 4, 5);
    ok = ok && add_arrays(&set, sql, 0, 3);
    if (timed) {
        put_times(array(sql, 5, OID_TIMESTAMPTZ, n), msgs, n);
        ok = ok && add_arrays(&rows, sql, 5, 6);
    }
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
