/* SPDX-License-Identifier: MIT
 *
 * pg_run.c: statements on a connection to PostgreSQL: what a SQLSTATE means, values on the wire, round trips, and the
 * SQL port's run and flush over them (sql.h).
 *
 * Failures. One table of SQLSTATEs and of their beginnings; the longest that fits decides. Message texts are never
 * looked at, they are translated. A code that is in no line is taken for a failure of this message that may pass:
 * retried up to its cap, it neither stops the route (a user's own RAISE ... ERRCODE would) nor is it dead at once (a
 * new code of the environment would be).
 *
 * Values are in binary. Integers are big-endian. A time is a signed 64-bit number of microseconds since 2000-01-01 UTC;
 * the two ends of the range are -infinity and infinity. An array of one dimension is: dimensions (1), has nulls, type
 * of the items, how many, the first index (1); then each item as its length, or -1 for NULL, and its bytes.
 *
 * A trip. Statements are handed to libpq in pipeline mode and go out as they are added; then one Sync, and the answers
 * are read in order. The socket is non-blocking and one loop both writes and reads, so that two full buffers cannot
 * wait for each other. A statement is prepared under its name the first time that a connection meets it, in the same
 * trip; behind a pooler and on a caller's connection it has no name (P17). The end of waiting is counted, not clocked:
 * IDLE_MS without a byte from the server, which is longer than any time-out that the server was given. After that the
 * connection is of no use any more.
 *
 * The port. The statements of all runs up to a flush go in one trip; the items of a run are one parameter per column,
 * an array. The text of a statement with `rows: shaped` depends on the items: a column that is NULL in all of them has
 * no parameter, one that is the same in all is a single value, and only what differs is an array; most batches have
 * four or five. Each such text is prepared under its own name, the first PG_SHAPES_MAX that a connection meets; the
 * others have no name. Where a transaction was begun early (pg_tx.c), the statement for the consumer's settings was
 * sent with it, and is not sent again.
 *
 * Invariants: an error's text never holds a value (P71): DETAIL is not read, and what is quoted in the primary message
 * of a data exception (class 22) is left out. A value above its bound fails the trip, and nothing of it is sent; a time
 * that PostgreSQL cannot hold becomes the nearest that it can; the driver never reads more bytes than the server said,
 * and a number of the wrong size is NULL. After a run the connection is out of pipeline mode with nothing left to read,
 * or it is broken; of the statements after one that failed none has run, but for those behind a part. A trip that run()
 * started is ended by flush(); an item's number is the server's `n`, checked. A text that is written here consists of
 * words of the compiled statement only, every value is bound.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "store/migrations.h"
#include "store/pg.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define EPOCH_US INT64_C(946684800000000)       /* 2000-01-01 as we count */
#define TIME_MIN (INT64_C(-211813488000000000)) /* 4714 BC */
#define TIME_END INT64_C(9223371331200000000)   /* the year 294277: the first that is too late */
#define IDLE_MS 75000
#define SLICE_MS 1000
#define TLS_SLICE_MS 100 /* TLS may hold bytes back that poll() does not see */
#define PARAMETER_BYTES (512u << 20)
#define TEXT_MAX 8192

enum { SLOT_PREPARE = -1, SLOT_OURS = -2, SLOT_SYNC = -3 };

/* ---- what a SQLSTATE means ----------------------------------------------------------------------- */

static const struct meaning {
    const char *code; /* a SQLSTATE, or its beginning */
    semel_status status;
    enum semel_class cls;
} meanings[] = {
    /* the environment */
    {"08", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* connection */
    {"53", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* disk full, out of memory, too many connections */
    {"57", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* shut down, cancelled, statement_timeout */
    {"58", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* I/O */
    {"25006", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, /* read-only: a standby, or a server that ran full */
    {"25P03", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, /* idle_in_transaction_session_timeout */
    {"40", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* rolled back by the server */
    {"55006", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, /* an object is in use */
    {"F0", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* configuration file */
    {"HV", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* a foreign server */
    {"28", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* not let in */
    {"3D", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* no such database */
    /* another transaction at the same time */
    {"40001", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT}, /* serialization failure */
    {"40P01", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT}, /* deadlock */
    {"55P03", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT}, /* lock_timeout, NOWAIT */
    {"72", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT},    /* snapshot too old */
    /* the message */
    {"20", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* no such case */
    {"21", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* more than one row */
    {"22", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* data */
    {"23", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* constraint */
    {"23503", SEMEL_INVALID, SEMEL_CLASS_TRANSIENT}, /* foreign key: what it points to may come */
    {"44", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* WITH CHECK OPTION */
    {"54", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* too complex, too deep */
    {"P0", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* RAISE */
    /* statements that a handler must not send */
    {"25", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* went on after an error */
    {"2D", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* COMMIT in a procedure */
    {"3B", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* no such savepoint */
    {"34", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* no such cursor */
    {"24", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* cursor state */
    /* schema, privileges, server */
    {"0A", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* the server cannot do that */
    {"26", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* no such prepared statement */
    {"3F", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* no such schema */
    {"42", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* no such table, no privilege, syntax */
    {"55", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* an object is not fit for that */
    {"XX", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* internal, damaged data */
};

static const struct meaning *find_meaning(const char *code)
{
    static const struct meaning other = {"", SEMEL_INVALID, SEMEL_CLASS_TRANSIENT};
    const struct meaning *best = &other;
    for (size_t i = 0; i < COUNT(meanings); i++) {
        size_t n = strlen(meanings[i].code);
        if (n > strlen(best->code) && strncmp(code, meanings[i].code, n) == 0)
            best = &meanings[i];
    }
    return best;
}

static bool is_code(const char *code)
{
    return code != NULL && strspn(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && code[5] == '\0';
}

int semel__pg_code(const char *code)
{
    return is_code(code) ? SEMEL_SQLSTATE(code[0], code[1], code[2], code[3], code[4]) : 0;
}

bool semel__pg_data_fault(const struct semel_error *err)
{
    const int cls = err->code & 0xFFF;
    return cls == SEMEL_SQLSTATE('2', '2', '0', '0', '0') || cls == SEMEL_SQLSTATE('2', '3', '0', '0', '0');
}

semel_status semel__pg_meaning(const char *code, enum semel_class *ret_cls)
{
    const struct meaning *m = find_meaning(code);
    *ret_cls = m->cls;
    return m->status;
}

/* Where a typographic quotation mark begins, as translated messages have them. */
static const char *typographic(const char *message)
{
    uint32_t c;
    for (struct semel_str left = semel__str(message); left.n > 0;) {
        size_t n = semel__utf8_next(left, &c);
        if (n > 0 && (c == '\'' || c == '`' || c == 0xAB || c == 0xBB || (c >= 0x2018 && c <= 0x201E) || c == 0x300C))
            return left.p;
        n = n > 0 ? n : 1;
        left = (struct semel_str){left.p + n, left.n - n};
    }
    return NULL;
}

/* The message of a data exception without what it quotes: from the first quotation mark to the last. */
static void without_values(const char *message, char *out, size_t size)
{
    const char *open = strchr(message, '"'), *close = strrchr(message, '"'), *other = typographic(message);
    struct semel_buf buf;
    semel__buf_init(&buf, size - 1);
    if (other != NULL && (open == NULL || other < open)) {
        semel__buf_add(&buf, message, (size_t)(other - message));
        semel__buf_addz(&buf, "...");
    } else if (open != NULL) {
        semel__buf_add(&buf, message, (size_t)(open - message));
        semel__buf_addz(&buf, "\"...\"");
        semel__buf_addz(&buf, close > open ? close + 1 : "");
    } else {
        semel__buf_addz(&buf, message);
    }
    semel__str_show(out, size, semel__buf_str(&buf));
    semel__buf_done(&buf);
}

static void set_text(const PGresult *result, const char *code, const char *doing, semel_status status,
                     enum semel_class cls, struct semel_error *err)
{
    const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *constraint = PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME);
    char shown[160] = "no message", name[72] = "";
    if (message != NULL && strncmp(code, "22", 2) == 0)
        without_values(message, shown, sizeof(shown));
    else if (message != NULL)
        semel__str_show(shown, sizeof(shown), semel__str(message));
    if (constraint != NULL)
        semel__str_show(name, sizeof(name), semel__str(constraint));
    bool named = name[0] != '\0' && strstr(shown, name) == NULL;
    semel__fail(err, status, cls, "%s: %s: %s%s%s", doing, code, shown, named ? ", constraint " : "",
                named ? name : "");
    if (err != NULL)
        err->code = semel__pg_code(code);
}

/* A server that says FATAL closes the connection behind it. */
static bool fatal(const PGresult *result)
{
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    return severity != NULL && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
}

static semel_status report_lost(PGconn *conn, const char *doing, struct semel_error *err)
{
    const char *message = conn != NULL ? PQerrorMessage(conn) : "";
    char shown[160];
    semel__str_show(shown, sizeof(shown), (struct semel_str){message, strcspn(message, "\n")});
    return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "%s: the connection to the server is lost%s%s",
                       doing, shown[0] != '\0' ? ": " : "", shown);
}

semel_status semel__pg_fail(struct pg_conn *conn, const struct pg_result *result, const char *doing,
                            struct semel_error *err)
{
    const char *code = result != NULL ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    if (!is_code(code)) {
        if (conn == NULL || PQstatus(conn) != CONNECTION_OK)
            return report_lost(conn, doing, err);
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: libpq refused the statement", doing);
    }
    const struct meaning *m = find_meaning(code);
    semel_status status = fatal(result) ? SEMEL_CLOSED : m->status;
    set_text(result, code, doing, status, status == SEMEL_CLOSED ? SEMEL_CLASS_ENVIRONMENT : m->cls, err);
    return status;
}

/* Two claims of the same moment may draw one token: then one of them draws again. */
static bool token_is_taken(const PGresult *result)
{
    const char *constraint = PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME);
    return constraint != NULL && strcmp(constraint, "inbox_token") == 0;
}

/* Some codes mean something else when the driver sent the statement, or need a hint. */
static void rejudge(const struct pg_store *d, const PGresult *result, const char *doing, struct semel_error *why)
{
    bool again;
    switch (why->code) {
    case SEMEL_SQLSTATE('2', '5', 'P', '0', '2'):
        semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                    "%s: 25P02: a statement failed before, and whoever sent it went on", doing);
        why->code = SEMEL_SQLSTATE('2', '5', 'P', '0', '2');
        break;
    case SEMEL_SQLSTATE('2', '3', '5', '0', '5'): /* the winner of the race is not in our snapshot (P13) */
        again = d->sql.strict || token_is_taken(result);
        why->status = again ? SEMEL_RETRY : SEMEL_INVALID;
        why->cls = again ? SEMEL_CLASS_TRANSIENT : SEMEL_CLASS_BROKEN;
        break;
    case SEMEL_SQLSTATE('4', '2', '5', '0', '1'):
        snprintf(why->text + strlen(why->text), sizeof(why->text) - strlen(why->text),
                 "; sql/postgres/roles.sql grants roles what they need");
        break;
    case SEMEL_SQLSTATE('0', 'A', '0', '0', '0'): /* the schema was changed under prepared statements, */
    case SEMEL_SQLSTATE('2', '6', '0', '0', '0'): /* or somebody dropped them: a new connection has none */
        why->status = d->n_prepared > 0 ? SEMEL_CLOSED : SEMEL_INVALID;
        why->cls = d->n_prepared > 0 ? SEMEL_CLASS_ENVIRONMENT : SEMEL_CLASS_BROKEN;
        break;
    default:
        break;
    }
}

/* Core checks all values: if one violates a constraint nevertheless, another program has changed the tables. */
semel_status semel__pg_own_fail(struct pg_store *d, const PGresult *result, const char *doing, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = semel__pg_fail(d->conn, result, doing, &why);
    if (status == SEMEL_INVALID) {
        why.cls = SEMEL_CLASS_BROKEN;
        rejudge(d, result, doing, &why);
    }
    if (err != NULL)
        *err = why;
    return why.status;
}

/* ---- values -------------------------------------------------------------------------------------- */

static int64_t time_out(int64_t us)
{
    int64_t v;
    if (us == SQL_NO_TIME)
        return INT64_MIN; /* -infinity */
    if (__builtin_sub_overflow(us, EPOCH_US, &v) || v < TIME_MIN)
        return TIME_MIN;
    return v >= TIME_END ? INT64_MAX : v;
}

static int64_t time_in(int64_t v)
{
    int64_t us;
    if (v == INT64_MIN) /* -infinity: before everything, the same as none */
        return SEMEL_NONE;
    return __builtin_add_overflow(v, EPOCH_US, &us) ? INT64_MAX : us;
}

static void param(struct pg_trip *trip, const char *p, size_t at, size_t n, bool null)
{
    if (trip->n_params < PG_PARAMS_MAX)
        trip->params[trip->n_params++] = (struct pg_param){p, at, n, null};
    else if (trip->status == SEMEL_OK)
        trip->status = semel__fail(&trip->err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: too many parameters",
                                   trip->doing);
}

void semel__pg_text(struct pg_trip *trip, struct semel_str s)
{
    param(trip, s.p, 0, s.n, !semel__str_given(s));
}

/* The bytes of a value that is not NULL: its own, or those of `wire`. */
static struct semel_str encode(enum sql_kind kind, const struct sql_value *value, unsigned char wire[8])
{
    if (!semel__db_is_number(kind))
        return value->text;
    uint64_t number = htobe64((uint64_t)(kind == SQL_TIME ? time_out(value->number) : value->number));
    if (kind == SQL_BOOL)
        wire[0] = value->number != 0;
    else
        memcpy(wire, &number, sizeof(number));
    return (struct semel_str){(const char *)wire, kind == SQL_BOOL ? 1 : sizeof(number)};
}

static void put_single(struct pg_trip *trip, const struct sql_field *field, const void *item)
{
    unsigned char fingerprint[1 + SEMEL_FP_MAX], wire[8];
    enum sql_kind kind = semel__db_kind(field->name);
    struct sql_value value = semel__db_value(field, item, fingerprint);
    struct semel_str s = encode(kind, &value, wire);
    size_t at = trip->bytes.n;
    bool borrowed = !semel__db_is_number(kind) && kind != SQL_FINGERPRINT && kind != SQL_ID;
    if (!value.null && !borrowed)
        semel__buf_add(&trip->bytes, s.p, s.n);
    param(trip, borrowed ? s.p : NULL, borrowed ? 0 : at, s.n, value.null);
}

static void put32(struct pg_trip *trip, uint32_t v)
{
    v = htobe32(v);
    semel__buf_add(&trip->bytes, &v, sizeof(v));
}

/* The types of values by their kind: the name, and the number. */
static const struct {
    const char *name;
    uint32_t oid;
} types[] = {
    [SQL_TEXT] = {"text", 25},  [SQL_KEY] = {"text", 25},           [SQL_STATUS] = {"text", 25},
    [SQL_CLASS] = {"text", 25}, [SQL_BYTES] = {"bytea", 17},        [SQL_FINGERPRINT] = {"bytea", 17},
    [SQL_INT] = {"bigint", 20}, [SQL_TIME] = {"timestamptz", 1184}, [SQL_BOOL] = {"boolean", 16},
    [SQL_ID] = {"bytea", 17},
};

static void put_array(struct pg_trip *trip, const struct sql_field *field, const struct sql_set *set)
{
    unsigned char fingerprint[1 + SEMEL_FP_MAX], wire[8];
    enum sql_kind kind = semel__db_kind(field->name);
    size_t at = trip->bytes.n;
    put32(trip, set->n > 0 ? 1 : 0); /* an empty array has no dimension */
    put32(trip, 1);                  /* it may have nulls */
    put32(trip, types[kind].oid);
    if (set->n > 0) {
        put32(trip, set->n <= INT32_MAX ? (uint32_t)set->n : 0);
        put32(trip, 1);
    }
    for (size_t i = 0; i < set->n; i++) {
        struct sql_value value = semel__db_value(field, semel__db_item(set, i), fingerprint);
        struct semel_str s = encode(kind, &value, wire);
        put32(trip, value.null ? UINT32_MAX : (uint32_t)s.n);
        if (s.n > INT32_MAX)
            trip->bytes.failed = trip->bytes.full = true;
        else if (!value.null)
            semel__buf_add(&trip->bytes, s.p, s.n);
    }
    param(trip, NULL, at, trip->bytes.n - at, false);
}

/* The bytes of a cell; NULL: there is no such cell, or it is null. */
static const char *cell(const PGresult *res, int row, int col, size_t *ret_n)
{
    if (row >= PQntuples(res) || col >= PQnfields(res) || PQgetisnull(res, row, col) || PQfformat(res, col) != 1)
        return NULL;
    *ret_n = (size_t)PQgetlength(res, row, col);
    return PQgetvalue(res, row, col);
}

/* bigint, integer or smallint; SEMEL_NONE: NULL, or no such number. */
static int64_t get_int(const PGresult *res, int row, int col)
{
    size_t n = 0;
    const char *p = cell(res, row, col, &n);
    uint64_t v = 0;
    if (p == NULL || (n != sizeof(int64_t) && n != sizeof(int32_t) && n != sizeof(int16_t)))
        return SEMEL_NONE;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | (unsigned char)p[i];
    return n == sizeof(int64_t) ? (int64_t)v : n == sizeof(int32_t) ? (int32_t)v : (int16_t)v;
}

/* Rows inserted, updated, deleted or given. */
static int64_t affected(const PGresult *res)
{
    int64_t n = 0;
    const char *text = PQcmdTuples((PGresult *)res); /* reads only */
    return semel__str_int64(semel__str(text), &n) && n > 0 ? n : 0;
}

/* ---- a round trip -------------------------------------------------------------------------------- */

bool semel__pg_in_tx(const struct pg_store *d)
{
    if (d->begun || d->joined)
        return true;
    PGTransactionStatusType status = PQtransactionStatus(d->conn);
    return status == PQTRANS_INTRANS || status == PQTRANS_INERROR;
}

semel_status semel__pg_usable(struct pg_store *d, struct semel_error *err)
{
    if (d->pid != getpid())
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the connection was opened before fork(): the child must open its own");
    if (d->conn == NULL || d->broken || PQstatus(d->conn) != CONNECTION_OK)
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT,
                           "the connection to the server is gone: reopen it");
    if (d->queued)
        return SEMEL_OK;
    if (PQpipelineStatus(d->conn) != PQ_PIPELINE_OFF || PQtransactionStatus(d->conn) == PQTRANS_ACTIVE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "the connection is in the middle of something: read all results, and leave pipeline mode");
    return SEMEL_OK;
}

semel_status semel__pg_lost(struct pg_store *d, const char *doing, struct semel_error *err)
{
    d->broken = true;
    return report_lost(d->conn, doing, err);
}

static semel_status wait_for(struct pg_store *d, const char *doing, struct semel_error *err)
{
    const int slice_ms = PQsslInUse(d->conn) ? TLS_SLICE_MS : SLICE_MS;
    int idle_ms = 0;
    for (;;) {
        int unsent = PQflush(d->conn);
        if (unsent < 0)
            return semel__pg_lost(d, doing, err);
        if (PQisBusy(d->conn) == 0)
            return SEMEL_OK;
        struct pollfd fd = {.fd = PQsocket(d->conn), .events = (short)(POLLIN | (unsent > 0 ? POLLOUT : 0))};
        int n = poll(&fd, 1, slice_ms);
        if (n < 0 && errno != EINTR)
            return semel__pg_lost(d, doing, err);
        idle_ms += n == 0 ? slice_ms : 0;
        if (n > 0)
            idle_ms = 0;
        if (idle_ms >= IDLE_MS) {
            d->broken = true;
            return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "%s: the server did not answer for %d s",
                               doing, IDLE_MS / 1000);
        }
        if (PQconsumeInput(d->conn) == 0)
            return semel__pg_lost(d, doing, err);
    }
}

/* The next answer of a pipeline. Each statement has one, and a NULL behind it; a Sync has only the one. */
semel_status semel__pg_answer(struct pg_store *d, const char *doing, PGresult **ret, struct semel_error *err)
{
    semel_status status = wait_for(d, doing, err);
    if (status != SEMEL_OK)
        return status;
    PGresult *result = PQgetResult(d->conn);
    if (result == NULL)
        return semel__pg_lost(d, doing, err);
    if (PQresultStatus(result) != PGRES_PIPELINE_SYNC) {
        status = wait_for(d, doing, err);
        PGresult *more = status == SEMEL_OK ? PQgetResult(d->conn) : NULL;
        if (more != NULL) { /* a statement that copies, or the like: none of ours */
            PQclear(more);
            status = semel__pg_lost(d, doing, err);
        }
    }
    if (status == SEMEL_OK)
        *ret = result;
    else
        PQclear(result);
    return status;
}

bool semel__pg_succeeded(const PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

/* Reads the answer to the Sync and leaves pipeline mode. */
semel_status semel__pg_synced(struct pg_store *d, const char *doing, struct semel_error *err)
{
    PGresult *result = NULL;
    semel_status status = semel__pg_answer(d, doing, &result, err);
    if (status != SEMEL_OK)
        return status;
    if (PQresultStatus(result) != PGRES_PIPELINE_SYNC || PQexitPipelineMode(d->conn) == 0)
        status = semel__pg_lost(d, doing, err);
    PQclear(result);
    return status;
}

void semel__pg_start(struct pg_trip *trip, struct pg_store *d, const char *doing)
{
    memset(trip, 0, sizeof(*trip));
    semel__pg_early_drop(d);
    trip->d = d;
    trip->doing = doing;
    semel__buf_init(&trip->bytes, PARAMETER_BYTES);
    trip->status = semel__pg_usable(d, &trip->err);
    if (trip->status == SEMEL_OK && d->queued)
        trip->status = semel__pg_queue_end(d, &trip->err);
}

static void fail_send(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    if (PQstatus(d->conn) != CONNECTION_OK)
        trip->status = semel__pg_lost(d, trip->doing, &trip->err);
    else
        trip->status = semel__fail_memory(&trip->err); /* nothing else is left: the statements are ours */
}

static bool is_prepared(const struct pg_trip *trip, const struct sql_text *sql)
{
    const struct pg_store *d = trip->d;
    for (size_t i = 0; i < d->n_prepared; i++)
        if (d->prepared[i] == sql)
            return true;
    for (size_t i = 0; i < trip->n_fresh; i++)
        if (trip->fresh[i] == sql)
            return true;
    return false;
}

static bool named(const struct pg_trip *trip)
{
    const struct pg_store *d = trip->d;
    return !d->wrapped && !d->pooler && d->n_prepared + trip->n_fresh < PG_PREPARED_MAX;
}

static int send_one(struct pg_trip *trip, const struct sql_text *sql, int slot)
{
    const char *values[PG_PARAMS_MAX];
    int lengths[PG_PARAMS_MAX], formats[PG_PARAMS_MAX];
    PGconn *conn = trip->d->conn;
    for (int i = 0; i < trip->n_params; i++) {
        const char *p = trip->params[i].p != NULL ? trip->params[i].p : semel__buf_str(&trip->bytes).p;
        values[i] = trip->params[i].null ? NULL : p + trip->params[i].at;
        lengths[i] = (int)trip->params[i].n;
        formats[i] = 1;
    }
    bool prepared = is_prepared(trip, sql);
    if (!prepared && sql->name != NULL && named(trip)) {
        if (PQsendPrepare(conn, sql->name, sql->text, 0, NULL) == 0)
            return 0;
        trip->slots[trip->n_slots++] = SLOT_PREPARE;
        trip->fresh[trip->n_fresh++] = sql;
        prepared = true;
    }
    int sent = prepared ? PQsendQueryPrepared(conn, sql->name, trip->n_params, values, lengths, formats, 1)
                        : PQsendQueryParams(conn, sql->text, trip->n_params, NULL, values, lengths, formats, 1);
    if (sent != 0)
        trip->slots[trip->n_slots++] = slot;
    return sent;
}

/* A caller's connection may be a blocking one. false: libpq refuses. */
bool semel__pg_unblock(struct pg_store *d)
{
    d->blocking = PQisnonblocking(d->conn) == 0;
    return !d->blocking || PQsetnonblocking(d->conn, 1) == 0;
}

void semel__pg_reblock(struct pg_store *d)
{
    if (d->blocking && PQstatus(d->conn) == CONNECTION_OK)
        PQsetnonblocking(d->conn, 0);
}

static bool send_limits(struct pg_trip *trip)
{
    int n_params = trip->n_params;
    trip->n_params = 0;
    bool ok = !trip->limited || send_one(trip, &semel__pg_statements[SQL_trip_limits].sql, SLOT_OURS) != 0;
    trip->n_params = n_params;
    return ok;
}

/* The first statement of a trip. */
static bool enter(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    trip->limited = !trip->bare && !semel__pg_in_tx(d);
    if (!semel__pg_unblock(d) || PQenterPipelineMode(d->conn) == 0)
        return false;
    trip->entered = true;
    d->undone = false;
    return send_limits(trip);
}

static bool parameters_fit(struct pg_trip *trip)
{
    bool fit = trip->bytes.n <= INT32_MAX;
    for (int i = 0; i < trip->n_params; i++)
        fit = fit && trip->params[i].n <= INT32_MAX;
    if (trip->bytes.failed && !trip->bytes.full)
        trip->status = semel__fail_memory(&trip->err);
    else if (trip->bytes.failed || !fit) /* a smaller batch will do */
        trip->status = semel__fail(&trip->err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT,
                                   "%s: the batch is too large for one statement", trip->doing);
    return trip->status == SEMEL_OK;
}

size_t semel__pg_add(struct pg_trip *trip, const struct sql_text *sql)
{
    size_t index = trip->n;
    if (trip->status == SEMEL_OK && index >= PG_TRIP_MAX)
        trip->status = semel__fail(&trip->err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: too many statements",
                                   trip->doing);
    if (trip->status == SEMEL_OK && parameters_fit(trip)) {
        if ((!trip->entered && !enter(trip)) || send_one(trip, sql, (int)index) == 0)
            fail_send(trip);
        else
            trip->n++;
    }
    trip->n_params = 0;
    trip->bytes.n = 0;
    return index < PG_TRIP_MAX ? index : PG_TRIP_MAX - 1;
}

static void failed(struct pg_trip *trip, int slot, const PGresult *result)
{
    struct pg_store *d = trip->d;
    if (trip->status != SEMEL_OK || PQresultStatus(result) == PGRES_PIPELINE_ABORTED)
        return;
    trip->failed = slot >= 0 ? (size_t)slot : slot == SLOT_PREPARE ? trip->preparing : 0;
    trip->status = trip->theirs ? semel__pg_fail(d->conn, result, trip->doing, &trip->err)
                                : semel__pg_own_fail(d, result, trip->doing, &trip->err);
    if (trip->status == SEMEL_CLOSED)
        d->broken = true;
}

static void note_answer(struct pg_trip *trip, int slot, PGresult *result, size_t *fresh)
{
    struct pg_store *d = trip->d;
    bool ok = semel__pg_succeeded(result) || slot == SLOT_SYNC;
    if (!ok)
        failed(trip, slot, result);
    if (slot == SLOT_PREPARE && ok)
        d->prepared[d->n_prepared++] = trip->fresh[*fresh];
    *fresh += slot == SLOT_PREPARE;
    if (slot >= 0) {
        trip->results[slot] = result;
        trip->preparing = (size_t)slot + 1;
    } else {
        PQclear(result);
    }
}

static void receive(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    size_t fresh = 0;
    semel_status status = SEMEL_OK;
    struct semel_error err;
    if (!trip->synced && PQpipelineSync(d->conn) == 0)
        status = semel__pg_lost(d, trip->doing, &err);
    for (size_t i = 0; status == SEMEL_OK && i < trip->n_slots; i++) {
        PGresult *result = NULL;
        status = semel__pg_answer(d, trip->doing, &result, &err);
        if (status == SEMEL_OK && (trip->slots[i] == SLOT_SYNC) != (PQresultStatus(result) == PGRES_PIPELINE_SYNC)) {
            PQclear(result);
            status = semel__pg_lost(d, trip->doing, &err);
        } else if (status == SEMEL_OK) {
            note_answer(trip, trip->slots[i], result, &fresh);
        }
    }
    if (status == SEMEL_OK)
        status = semel__pg_synced(d, trip->doing, &err);
    if (status != SEMEL_OK && trip->status == SEMEL_OK) {
        trip->status = status;
        trip->err = err;
    }
}

semel_status semel__pg_run(struct pg_trip *trip, struct semel_error *err)
{
    struct pg_store *d = trip->d;
    trip->failed = trip->n;
    if (trip->entered) {
        trip->entered = false;
        d->trips++;
        if (d->broken)
            trip->status = semel__pg_usable(d, &trip->err);
        else
            receive(trip);
        semel__pg_reblock(d);
    }
    if (trip->status != SEMEL_OK && err != NULL)
        *err = trip->err;
    return trip->status;
}

void semel__pg_end(struct pg_trip *trip)
{
    if (trip->entered) /* given up half way: what was sent is still answered */
        (void)semel__pg_run(trip, NULL);
    for (size_t i = 0; i < trip->n; i++) {
        PQclear(trip->results[i]);
        trip->results[i] = NULL;
    }
    trip->n = 0;
    semel__buf_done(&trip->bytes);
}

semel_status semel__pg_do(struct pg_store *d, const struct sql_text *sql, const char *doing, struct semel_error *err)
{
    struct pg_trip trip;
    semel__pg_start(&trip, d, doing);
    semel__pg_add(&trip, sql);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- parameters of the port ---------------------------------------------------------------------- */

/* Empty is not NULL. */
static bool same(const struct sql_value *a, const struct sql_value *b)
{
    return a->null == b->null && a->number == b->number && semel__str_eq(a->text, b->text);
}

/* Two members with the same bytes are the same value; others may be, too. */
static inline bool same_bytes(const struct sql_field *field, const char *a, const char *b)
{
    return field->at == NULL && field->size <= 16 && memcmp(a + field->offset, b + field->offset, field->size) == 0;
}

/* Has the item the value of the first one? */
static bool like_first(const struct sql_field *field, const struct sql_value *first, const void *first_item,
                       const void *item)
{
    unsigned char bytes[1 + SEMEL_FP_MAX];
    if (same_bytes(field, first_item, item))
        return true;
    struct sql_value value = semel__db_value(field, item, bytes);
    return same(first, &value);
}

/* Is it the same in all items? */
static bool uniform(const struct sql_field *field, const struct sql_set *set)
{
    unsigned char bytes[1 + SEMEL_FP_MAX];
    struct sql_value first = semel__db_value(field, semel__db_item(set, 0), bytes);
    for (size_t i = 1; i < set->n; i++)
        if (!like_first(field, &first, semel__db_item(set, 0), semel__db_item(set, i)))
            return false;
    return true;
}

/* A column of rows: pairs. Where all items have the same value it goes once, and the array is NULL. */
static void put_pair(struct pg_trip *trip, const struct sql_field *field, const struct sql_set *set)
{
    bool single = uniform(field, set);
    if (single) {
        param(trip, NULL, 0, 0, true);
        put_single(trip, field, semel__db_item(set, 0));
    } else {
        put_array(trip, field, set);
        param(trip, NULL, 0, 0, true);
    }
}

/* Does the column of parameter i have a single value, too? It stands behind the array. */
static bool paired(const struct sql_statement *statement, size_t i)
{
    return i + 1 < statement->n_params && statement->params[i + 1].source == SQL_SINGLE &&
           statement->params[i + 1].name == statement->params[i].name;
}

static void put_params(struct pg_trip *trip, const struct sql_statement *statement, const struct sql_set *once,
                       const struct sql_set *each)
{
    for (size_t i = 0; i < statement->n_params; i++) {
        const struct sql_param *param = &statement->params[i];
        const struct sql_field *field = semel__db_find(param->source == SQL_ONCE ? once : each, param->name);
        if (field == NULL) {
            trip->status = semel__db_no_value(statement, param->name, &trip->err);
            return;
        }
        if (param->source == SQL_ONCE)
            put_single(trip, field, semel__db_item(once, 0));
        else if (param->source == SQL_SINGLE)
            continue; /* put_pair has it */
        else if (paired(statement, i))
            put_pair(trip, field, each);
        else
            put_array(trip, field, each);
    }
}

/* ---- statements by the shape of their items ------------------------------------------------------ */

struct pg_shape {
    const struct sql_statement *statement;
    uint64_t key;
    char name[48];
    char *text;
    struct sql_text sql;
};

/* Item by item, so that each is looked at once: they are large. Returns whether all columns have a field. */
static bool measure(struct pg_spread *spread, const struct sql_statement *statement, const struct sql_set *each,
                    const struct sql_field *fields[PG_SHAPED_MAX])
{
    struct sql_value first[PG_SHAPED_MAX];
    unsigned char bytes[1 + SEMEL_FP_MAX];
    size_t open[PG_SHAPED_MAX], n_open = 0; /* columns that were the same so far */
    for (size_t c = 0; c < statement->n_shaped; c++) {
        fields[c] = semel__db_find(each, statement->shaped[c]);
        if (fields[c] == NULL)
            return false;
        spread->of[c] = PG_EACH;
        if (c < statement->n_always)
            continue;
        first[c] = semel__db_value(fields[c], semel__db_item(each, 0), bytes);
        spread->of[c] = first[c].null ? PG_NULL : PG_SAME;
        open[n_open++] = c;
    }
    for (size_t i = 1; i < each->n && n_open > 0; i++) {
        const void *item = semel__db_item(each, i);
        for (size_t k = 0; k < n_open;) {
            if (like_first(fields[open[k]], &first[open[k]], semel__db_item(each, 0), item)) {
                k++;
                continue;
            }
            spread->of[open[k]] = PG_EACH;
            open[k] = open[--n_open];
        }
    }
    return true;
}

static const char *type_name(uint16_t name)
{
    return types[semel__db_kind(name)].name;
}

/* (SELECT u.id, $3::text AS source, NULL::text AS type FROM (SELECT pg_catalog.unnest($2::text[]) AS id) AS u) AS b: in
 * FROM each array would be copied to a store of rows, with 8 kB of memory for each. */
static void put_rows(struct semel_buf *out, const struct sql_statement *statement, const struct pg_spread *spread)
{
    size_t parameter = statement->n_params + 1;
    const char *comma = "";
    semel__buf_addz(out, "(SELECT ");
    for (size_t c = 0; c < statement->n_shaped; c++) {
        const char *name = semel__db_name(statement->shaped[c]);
        if (spread->of[c] == PG_EACH)
            semel__buf_addf(out, "%su.%s", comma, name);
        else if (spread->of[c] == PG_SAME)
            semel__buf_addf(out, "%s$%zu::%s AS %s", comma, parameter, type_name(statement->shaped[c]), name);
        else
            semel__buf_addf(out, "%sNULL::%s AS %s", comma, type_name(statement->shaped[c]), name);
        parameter += spread->of[c] != PG_NULL;
        comma = ", ";
    }
    semel__buf_addz(out, " FROM (SELECT ");
    parameter = statement->n_params + 1;
    comma = "";
    for (size_t c = 0; c < statement->n_shaped; c++) {
        const char *name = semel__db_name(statement->shaped[c]);
        if (spread->of[c] == PG_EACH)
            semel__buf_addf(out, "%spg_catalog.unnest($%zu::%s[]) AS %s", comma, parameter,
                            type_name(statement->shaped[c]), name);
        parameter += spread->of[c] != PG_NULL;
        comma = ", "; /* the first column is always an array */
    }
    semel__buf_addf(out, ") AS u) AS %s", statement->alias);
}

char *semel__pg_shaped(const struct sql_statement *statement, const struct pg_spread *spread)
{
    const char *rows = strstr(statement->sql.text, ":rows AS ");
    struct semel_buf out;
    semel__buf_init(&out, TEXT_MAX);
    semel__buf_add(&out, statement->sql.text, (size_t)(rows - statement->sql.text));
    put_rows(&out, statement, spread);
    semel__buf_add(&out, rows + strlen(":rows AS ") + strlen(statement->alias),
                   strlen(rows) - strlen(":rows AS ") - strlen(statement->alias) + 1);
    if (!out.failed)
        return out.p;
    semel__buf_done(&out);
    return NULL;
}

static struct pg_shape *find_shape(const struct pg_store *d, const struct sql_statement *statement, uint64_t key)
{
    for (size_t i = 0; i < d->n_shapes; i++)
        if (d->shapes[i].key == key && d->shapes[i].statement == statement)
            return &d->shapes[i];
    return NULL;
}

/* NULL: no room, or no memory. */
static struct pg_shape *keep_shape(struct pg_store *d, const struct sql_statement *statement, uint64_t key, char *text)
{
    if (d->shapes == NULL)
        d->shapes = semel__calloc(PG_SHAPES_MAX, sizeof(*d->shapes));
    if (d->shapes == NULL || d->n_shapes == PG_SHAPES_MAX)
        return NULL;
    struct pg_shape *shape = &d->shapes[d->n_shapes++];
    *shape = (struct pg_shape){.statement = statement, .key = key, .text = text, .sql = {shape->name, text}};
    snprintf(shape->name, sizeof(shape->name), "%s_%" PRIx64, statement->sql.name, key);
    return shape;
}

void semel__pg_shapes_free(struct pg_store *d)
{
    for (size_t i = 0; i < d->n_shapes; i++)
        semel__free(d->shapes[i].text);
    semel__free(d->shapes);
    d->shapes = NULL;
    d->n_shapes = 0;
}

/* Behind the parameters of put_params. Returns the index of the result. */
static size_t add_shaped(struct pg_trip *trip, const struct sql_statement *statement, const struct sql_set *each)
{
    struct pg_spread spread;
    const struct sql_field *fields[PG_SHAPED_MAX];
    uint64_t key = 0;
    if (statement->n_shaped > PG_SHAPED_MAX || !measure(&spread, statement, each, fields)) {
        trip->status = semel__db_no_value(statement, statement->shaped[0], &trip->err);
        return 0;
    }
    for (size_t c = 0; c < statement->n_shaped; c++) {
        key = key << 2 | (uint64_t)spread.of[c];
        if (spread.of[c] == PG_EACH)
            put_array(trip, fields[c], each);
        else if (spread.of[c] == PG_SAME)
            put_single(trip, fields[c], semel__db_item(each, 0));
    }
    struct pg_shape *kept = find_shape(trip->d, statement, key);
    char *text = kept == NULL ? semel__pg_shaped(statement, &spread) : NULL;
    if (kept == NULL && text == NULL) {
        trip->status = semel__fail_memory(&trip->err);
        return 0;
    }
    if (kept == NULL)
        kept = keep_shape(trip->d, statement, key, text);
    if (kept != NULL)
        return semel__pg_add(trip, &kept->sql);
    const struct sql_text nameless = {NULL, text};
    size_t index = semel__pg_add(trip, &nameless);
    semel__free(text);
    return index;
}

/* ---- running ------------------------------------------------------------------------------------- */

static void pg_start(struct sql *db)
{
    struct pg_exec *e = &((struct pg_store *)db)->exec;
    e->n = 0;
    e->started = false;
}

static bool asked_early(const struct pg_store *d, const struct sql_statement *statement, const struct sql_set *once)
{
    if (statement != &semel__pg_statements[SQL_consumer_get])
        return false;
    const struct sql_field *consumer = semel__db_find(once, SQL_NAME_consumer);
    return semel__pg_early_asked(d, semel__db_value(consumer, semel__db_item(once, 0), NULL).text);
}

static void pg_run(struct sql *db, const struct sql_statement *statement, const struct sql_set *once,
                   const struct sql_set *each, sql_reader read, void *ctx)
{
    struct pg_store *d = (struct pg_store *)db;
    struct pg_exec *e = &d->exec;
    static const struct sql_set alone = {.n = 1};
    each = each != NULL ? each : &alone;
    struct pg_reading reading = {.statement = statement, .read = read, .ctx = ctx, .n = each->n};
    if (!e->started && e->n == 0 && asked_early(d, statement, once)) {
        reading.early = true;
        e->readings[e->n++] = reading;
        return;
    }
    if (!e->started) {
        semel__pg_start(&e->trip, d, db->doing);
        if (d->once == PG_ONCE_DUE)
            semel__pg_once_begin(&e->trip);
    }
    e->started = true;
    if (e->trip.status != SEMEL_OK)
        return;
    put_params(&e->trip, statement, once, each);
    if (statement->n_shaped > 0 && e->trip.status == SEMEL_OK)
        reading.at = add_shaped(&e->trip, statement, each);
    else
        reading.at = semel__pg_add(&e->trip, &statement->sql);
    if (e->trip.status == SEMEL_OK)
        e->readings[e->n++] = reading;
}

/* What fails here fails again in flush, which reports it. */
static void pg_tend(struct sql *db)
{
    struct pg_store *d = (struct pg_store *)db;
    if (d->exec.started && d->exec.trip.synced && !d->broken && PQflush(d->conn) >= 0)
        (void)PQconsumeInput(d->conn);
}

/* Commits the statements so far: outside a transaction a Sync ends the one that the server has made of them. */
static void pg_part(struct sql *db)
{
    struct pg_trip *trip = &((struct pg_store *)db)->exec.trip;
    if (!((struct pg_store *)db)->exec.started || trip->status != SEMEL_OK || !trip->limited || trip->parted)
        return;
    trip->parted = true;
    if (PQpipelineSync(trip->d->conn) == 0) {
        fail_send(trip);
        return;
    }
    trip->slots[trip->n_slots++] = SLOT_SYNC;
    if (!send_limits(trip))
        fail_send(trip);
}

static void pg_send(struct sql *db)
{
    struct pg_trip *trip = &((struct pg_store *)db)->exec.trip;
    if (!((struct pg_store *)db)->exec.started || trip->status != SEMEL_OK || !trip->entered)
        return;
    if (PQpipelineSync(trip->d->conn) == 0)
        fail_send(trip);
    else
        trip->synced = true;
    pg_tend(db);
}

/* ---- results ------------------------------------------------------------------------------------- */

static enum sql_cell pg_cell(const struct sql_row *row, int column, enum sql_kind kind, struct sql_value *ret)
{
    size_t n = 0;
    const char *p = cell(row->result, row->row, column, &n);
    *ret = (struct sql_value){.null = p == NULL};
    if (p == NULL)
        return SQL_CELL_OK;
    if (kind == SQL_BOOL)
        ret->number = n == 1 && p[0] != 0;
    else if (kind == SQL_TIME)
        ret->number = time_in(get_int(row->result, row->row, column));
    else if (kind == SQL_INT)
        ret->number = get_int(row->result, row->row, column);
    else
        ret->text = (struct semel_str){p, n};
    return SQL_CELL_OK;
}

static semel_status read_rows(struct pg_store *d, const struct pg_reading *reading, PGresult *res,
                              struct semel_error *err)
{
    const struct sql_statement *statement = reading->statement;
    struct sql_row row = {.db = &d->sql, .statement = statement, .result = res};
    semel_status status = SEMEL_OK;
    if (reading->read == NULL)
        return SEMEL_OK;
    if (statement->n_gives > 0 && statement->gives[0] == SQL_NAME_changes) {
        row.changes = affected(res);
        return reading->read(reading->ctx, 0, &row, err);
    }
    bool numbered = statement->n_gives > 0 && statement->gives[0] == SQL_NAME_n;
    for (; status == SEMEL_OK && row.row < PQntuples(res); row.row++) {
        int64_t item = numbered ? get_int(res, row.row, 0) - 1 : 0;
        if (item < 0 || (uint64_t)item >= reading->n)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: a row of no item", statement->sql.name);
        status = reading->read(reading->ctx, (size_t)item, &row, err);
    }
    return status;
}

static semel_status pg_flush(struct sql *db, struct semel_error *err)
{
    struct pg_store *d = (struct pg_store *)db;
    struct pg_exec *e = &d->exec;
    struct semel_error why;
    semel_status status = SEMEL_OK;
    if (e->started && d->once == PG_ONCE_SENT)
        status = semel__pg_once_commit(&e->trip, &why);
    else if (e->started)
        status = semel__pg_run(&e->trip, &why);
    for (size_t i = 0; status == SEMEL_OK && i < e->n; i++) {
        PGresult *res = NULL;
        if (e->readings[i].early)
            status = semel__pg_early_settings(d, &res, &why);
        else
            res = e->trip.results[e->readings[i].at];
        if (status == SEMEL_OK)
            status = read_rows(d, &e->readings[i], res, &why);
    }
    if (e->started)
        semel__pg_end(&e->trip);
    e->started = false;
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

/* Behind a pooler nobody else notices that the server is another one. */
static semel_status pg_server_same(struct sql *db, struct semel_error *err)
{
    return semel__pg_timeline((struct pg_store *)db, err);
}

/* Several statements in one text, which pipeline mode does not have. */
static semel_status pg_script(struct sql *db, const char *sql, struct semel_error *err)
{
    struct pg_store *d = (struct pg_store *)db;
    static const char doing[] = "migrating";
    semel_status status = SEMEL_OK;
    if (PQsendQuery(d->conn, sql) == 0)
        return semel__pg_own_fail(d, NULL, doing, err);
    for (;;) {
        struct semel_error why;
        semel_status waited = wait_for(d, doing, &why);
        PGresult *result = waited == SEMEL_OK ? PQgetResult(d->conn) : NULL;
        if (waited != SEMEL_OK && err != NULL)
            *err = why;
        if (result == NULL)
            return waited != SEMEL_OK ? waited : status;
        if (status == SEMEL_OK && !semel__pg_succeeded(result))
            status = semel__pg_own_fail(d, result, doing, err);
        PQclear(result);
    }
}

const struct sql_driver semel__pg_driver = {
    .statements = semel__pg_statements,
    .start = pg_start,
    .run = pg_run,
    .part = pg_part,
    .send = pg_send,
    .tend = pg_tend,
    .flush = pg_flush,
    .server_same = pg_server_same,
    .snapshot = semel__pg_snapshot,
    .snapshot_end = semel__pg_snapshot_end,
    .cell = pg_cell,
    .script = pg_script,
    .folder = "postgres",
    .migrations = semel__pg_migrations,
    .n_migrations = &semel__pg_migrations_n,
};
