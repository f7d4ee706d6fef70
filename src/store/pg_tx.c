/* SPDX-License-Identifier: MIT
 *
 * pg_tx.c: transactions on PostgreSQL, and the statements of handlers inside them.
 *
 * An own transaction is READ COMMITTED, with time-outs for locks, statements and idleness of its own (P64). It is
 * refused where synchronous_commit is off, and checked again before COMMIT (P72).
 *
 * Once. A transaction of one flush sends BEGIN, the statements and COMMIT together: one round trip instead of three.
 * The time is reckoned from the last answer, also while the machine sleeps; a connection silent for long asks first.
 * The first one sets its limits for the session, unless there is a pooler, and later ones ask for the time every
 * SETTLED_US only; the statements themselves check each time that a commit would be durable. If the connection is lost
 * after the first byte was sent the outcome is unknown, unless the server said what failed.
 *
 * Early. A caller that knows that a batch will follow calls begin_early, which sends BEGIN and the statement for the
 * consumer's settings; their two round trips pass while the batch is prepared. `consumer_get` and `begin` read the
 * answers. Any other use of the connection rolls that transaction back first, in which nothing was done. Only on
 * connections of our own, and not behind a pooler.
 *
 * The guard (P58). A handler has the connection, and nothing keeps it from sending COMMIT. So a cursor WITH HOLD is
 * declared at the beginning: a COMMIT has to fill it, and its query fails, whereby the whole transaction is rolled back
 * before anything is written. Our own COMMIT closes it first; and if it is not there any more, the transaction is
 * another one than we began. A joined transaction has the cursor only while handlers run, a bare one never: nobody
 * else sends statements in it.
 *
 * The queue. With the first statement that a handler queues the connection goes into pipeline mode and stays there
 * until the queue is ended, by collect or by the next trip of the driver. The server stops at the first statement that
 * fails; who queued it is known by the tag. A statement whose answer is wanted is asked by itself, outside pipeline
 * mode. Both are kept prepared, unless there is a pooler or the connection is the caller's (P17).
 *
 * Invariants: OK from commit means that COMMIT was answered by COMMIT, and that no warning said otherwise (P16). A
 * COMMIT that was sent and not answered is UNKNOWN (P15). A savepoint of a joined transaction is released, or rolled
 * back to, before the caller has its transaction back. A transaction that was begun early and that nobody asked for is
 * rolled back; whoever asks first gets its failure, and the transaction is gone then. One answer is read for every
 * queued statement, in order; only statements that read or write data are taken: a transaction that ended in the middle
 * of a pipeline would leave the rest of it to commit by itself at the Sync (P58), so COMMIT and ROLLBACK are refused
 * here, and a procedure that tries them fails inside a transaction block.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/wait.h"
#include "store/pg.h"

#define REPLAN_EVERY 256           /* transactions */
#define RECKON_US INT64_C(1000000) /* so long the server's clock is reckoned, and not asked */
#define RECKON_ERROR_US INT64_C(200000)
#define SETTLED_US INT64_C(100000) /* so long a transaction of one flush asks for nothing */
#define SENT_MAX 65536             /* then the answers so far are waited for */
#define FLUSH_EVERY 32             /* the server works while handlers go on */
#define NAME_BYTES 32
#define SQL_MAX (1 << 20)
#define PARAMS_MAX 64
#define DOING "handler"

static const struct sql_text sql_begin = {"semel_begin", "BEGIN ISOLATION LEVEL READ COMMITTED"};
static const struct sql_text sql_replan = {"semel_replan", "DISCARD PLANS"};
static const struct sql_text sql_commit = {"semel_commit", "COMMIT"};
static const struct sql_text sql_rollback = {"semel_rollback", "ROLLBACK"};
/* pg_backend_pid() keeps the planner from trying it. */
static const struct sql_text sql_guard = {
    "semel_guard",
    "DECLARE semel_guard NO SCROLL CURSOR WITH HOLD FOR "
    "SELECT ('a handler must not end the transaction: '::text || pg_catalog.pg_backend_pid()::text)::integer"};
static const struct sql_text sql_unguard = {"semel_unguard", "CLOSE semel_guard"};
static const struct sql_text sql_save_join = {"semel_save_join", "SAVEPOINT semel_join"};
static const struct sql_text sql_back_join = {"semel_back_join", "ROLLBACK TO SAVEPOINT semel_join"};
static const struct sql_text sql_release_join = {"semel_release_join", "RELEASE SAVEPOINT semel_join"};
static const struct sql_text sql_save = {"semel_save", "SAVEPOINT semel_one"};
static const struct sql_text sql_back = {"semel_back", "ROLLBACK TO SAVEPOINT semel_one"};
static const struct sql_text sql_release = {"semel_release", "RELEASE SAVEPOINT semel_one"};

static semel_status ended(struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "the transaction was ended by a statement inside it (COMMIT, ROLLBACK or CLOSE ALL)");
}

static bool is_over(const struct pg_store *d)
{
    return d->begun_early || (!d->queued && PQtransactionStatus(d->conn) == PQTRANS_IDLE);
}

static bool has_failed(const struct pg_store *d)
{
    return !d->queued && PQtransactionStatus(d->conn) == PQTRANS_INERROR;
}

/* ---- statements that handlers queue -------------------------------------------------------------- */

struct sent {
    size_t tag;
    int prepares; /* which of the kept statements; -1: it is a statement itself */
};

/* Statements that handlers have queued; the connection is in pipeline mode while d->queued. */
struct pg_queue {
    struct sent *sent;
    size_t n, room, unflushed;
    bool failed; /* to be reported by collect */
    size_t tag;
    struct semel_error err;
    /* statements that are kept prepared, by their text */
    char *texts[PG_QUEUED_MAX];
    bool prepared[PG_QUEUED_MAX], asked[PG_QUEUED_MAX];
    size_t n_texts;
};

static const char *skip_comment(const char *p)
{
    if (p[0] == '-')
        return p + strcspn(p, "\n");
    int depth = 0; /* they nest */
    for (; *p != '\0'; p++) {
        if (p[0] == '/' && p[1] == '*') {
            depth++;
            p++;
        } else if (p[0] == '*' && p[1] == '/') {
            p++;
            if (--depth == 0)
                return p + 1;
        }
    }
    return p;
}

/* Is it a statement of an allowed kind? */
static bool allowed(const char *sql)
{
    static const char *const words[] = {"select", "insert", "update", "delete", "merge",
                                        "with",   "values", "call",   "do",     "table"};
    const char *p = sql;
    for (;;) {
        p += strspn(p, " \t\r\n\f(");
        if (!(p[0] == '-' && p[1] == '-') && !(p[0] == '/' && p[1] == '*'))
            break;
        p = skip_comment(p);
    }
    size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == n && strncasecmp(p, words[i], n) == 0)
            return true;
    return false;
}

static bool remember(struct pg_queue *q, size_t tag, int prepares)
{
    if (q->n == q->room) {
        size_t room = q->room > 0 ? 2 * q->room : 256;
        struct sent *sent = semel__realloc(q->sent, room, sizeof(*sent));
        if (sent == NULL)
            return false;
        q->sent = sent;
        q->room = room;
    }
    q->sent[q->n++] = (struct sent){tag, prepares};
    return true;
}

/* Which of the kept statements it is; -1: none, and there is no room for one more. */
static int kept(struct pg_queue *q, const char *sql)
{
    for (size_t i = 0; i < q->n_texts; i++)
        if (strcmp(q->texts[i], sql) == 0)
            return (int)i;
    size_t n = strlen(sql) + 1;
    char *copy = q->n_texts < PG_QUEUED_MAX ? semel__alloc(n) : NULL;
    if (copy == NULL)
        return -1;
    memcpy(copy, sql, n);
    q->texts[q->n_texts] = copy;
    return (int)q->n_texts++;
}

static bool send_queued(struct pg_store *d, const struct semel_pg_statement *s)
{
    struct pg_queue *q = d->queue;
    char name[NAME_BYTES];
    int which = d->wrapped || d->pooler ? -1 : kept(q, s->sql);
    size_t tag = d->sql.store.tag;
    if (which < 0)
        return remember(q, tag, -1) &&
               PQsendQueryParams(d->conn, s->sql, s->n, s->types, s->values, s->lengths, s->formats, 1) != 0;
    snprintf(name, sizeof(name), "semel_handler_%d", which);
    if (!q->prepared[which] && !q->asked[which]) {
        if (!remember(q, tag, which) || PQsendPrepare(d->conn, name, s->sql, s->n, s->types) == 0)
            return false;
        q->asked[which] = true;
    }
    return remember(q, tag, -1) && PQsendQueryPrepared(d->conn, name, s->n, s->values, s->lengths, s->formats, 1) != 0;
}

static semel_status open_queue(struct pg_store *d, struct semel_error *err)
{
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (d->queue == NULL && (d->queue = semel__calloc(1, sizeof(*d->queue))) == NULL)
        return semel__fail_memory(err);
    if (d->queued)
        return SEMEL_OK;
    if (!semel__pg_unblock(d) || PQenterPipelineMode(d->conn) == 0)
        return semel__pg_own_fail(d, NULL, "queue", err);
    d->queued = true;
    d->queue->n = d->queue->unflushed = 0;
    d->undone = d->settled = false;
    return SEMEL_OK;
}

static semel_status queue(struct pg_store *d, const struct semel_pg_statement *statement, struct semel_error *err)
{
    if (!send_queued(d, statement)) {
        d->broken = true; /* what was sent and what was remembered may differ */
        return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "queue: the statement could not be sent");
    }
    if (++d->queue->unflushed >= FLUSH_EVERY) {
        d->queue->unflushed = 0;
        if (PQflush(d->conn) < 0)
            return semel__pg_lost(d, "queue", err);
    }
    return SEMEL_OK;
}

/* Queues statements of ours behind those of handlers. */
static semel_status queue_ours(struct pg_store *d, const struct sql_text *const *texts, size_t n,
                               struct semel_error *err)
{
    semel_status status = semel__pg_usable(d, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        const struct semel_pg_statement statement = {.sql = texts[i]->text};
        status = queue(d, &statement, err);
    }
    return status;
}

semel_status semel__pg_queue(struct semel_store *store, const struct semel_pg_statement *statement,
                             struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    if (!d->begun && !d->joined)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "queue: there is no open transaction");
    if (strnlen(statement->sql, SQL_MAX) == SQL_MAX || !allowed(statement->sql))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "queue: a handler's statement must be one of SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, "
                           "VALUES, CALL, DO");
    semel_status status = SEMEL_OK;
    if (d->queued && d->queue->n >= SENT_MAX)
        status = semel__pg_queue_end(d, err);
    if (status == SEMEL_OK)
        status = open_queue(d, err);
    if (status != SEMEL_OK)
        return status;
    return queue(d, statement, err);
}

static void note_failure(struct pg_queue *q, size_t tag, const struct semel_error *err)
{
    if (q->failed)
        return;
    q->failed = true;
    q->tag = tag;
    q->err = *err;
}

static void note_answer(struct pg_store *d, const struct sent *sent, const PGresult *result)
{
    struct pg_queue *q = d->queue;
    struct semel_error err;
    bool ok = semel__pg_succeeded(result);
    if (sent->prepares >= 0) {
        q->prepared[sent->prepares] = ok;
        q->asked[sent->prepares] = false;
    }
    if (ok || PQresultStatus(result) == PGRES_PIPELINE_ABORTED)
        return;
    if (semel__pg_fail(d->conn, result, "handler", &err) == SEMEL_CLOSED)
        d->broken = true;
    note_failure(q, sent->tag, &err);
}

semel_status semel__pg_queue_end(struct pg_store *d, struct semel_error *err)
{
    struct pg_queue *q = d->queue;
    struct semel_error why;
    semel_status status = SEMEL_OK;
    size_t tag = d->sql.store.tag;
    if (PQpipelineSync(d->conn) == 0)
        status = semel__pg_lost(d, "queue", &why);
    for (size_t i = 0; status == SEMEL_OK && i < q->n; i++) {
        PGresult *result = NULL;
        tag = q->sent[i].tag;
        status = semel__pg_answer(d, "handler", &result, &why);
        if (status == SEMEL_OK)
            note_answer(d, &q->sent[i], result);
        PQclear(result);
    }
    if (status == SEMEL_OK)
        status = semel__pg_synced(d, "handler", &why);
    if (status != SEMEL_OK)
        note_failure(q, tag, &why);
    d->trips++;
    d->queued = false;
    q->n = 0;
    semel__pg_reblock(d);
    if (q->failed && err != NULL)
        *err = q->err;
    return q->failed ? q->err.status : SEMEL_OK;
}

semel_status semel__pg_collect(struct semel_store *store, size_t *ret_tag, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_queue *q = d->queue;
    if (q == NULL || (!d->queued && !q->failed))
        return SEMEL_OK;
    semel_status status = d->queued && !d->broken ? semel__pg_queue_end(d, NULL) : q->err.status;
    if (d->queued) /* broken meanwhile */
        return semel__pg_usable(d, err);
    if (!q->failed)
        return status;
    q->failed = false;
    *ret_tag = q->tag;
    if (err != NULL)
        *err = q->err;
    return q->err.status;
}

/* The transaction will be rolled back: the server still answers queued statements, but nobody needs the answers. */
static void drop_queue(struct pg_store *d)
{
    if (d->queued && !d->broken)
        (void)semel__pg_queue_end(d, NULL);
    if (d->queue != NULL)
        d->queue->failed = false;
}

/* ---- statements that handlers ask ---------------------------------------------------------------- */

static semel_status begin_asking(struct pg_store *d, struct semel_error *err)
{
    if (!d->begun && !d->joined)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, DOING ": there is no open transaction");
    semel_status status = semel__pg_usable(d, err);
    if (status == SEMEL_OK && d->queued)
        status = semel__pg_queue_end(d, err);
    if (status != SEMEL_OK)
        return status;
    if (!semel__pg_unblock(d))
        return semel__pg_own_fail(d, NULL, DOING, err);
    d->undone = d->settled = false;
    return SEMEL_OK;
}

/* The answer to what was sent. A statement that failed is reported as a handler's. */
static semel_status receive(struct pg_store *d, int sent, PGresult **ret, struct semel_error *err)
{
    PGresult *result = NULL;
    if (sent == 0 && PQstatus(d->conn) == CONNECTION_OK)
        return semel__fail_memory(err); /* nothing else is left: our parameters are sound */
    if (sent == 0)
        return semel__pg_lost(d, DOING, err);
    d->trips++;
    semel_status status = semel__pg_answer(d, DOING, &result, err);
    if (status != SEMEL_OK)
        return status;
    if (!semel__pg_succeeded(result)) {
        status = semel__pg_fail(d->conn, result, DOING, err);
        d->broken = d->broken || status == SEMEL_CLOSED;
    }
    *ret = result;
    return status;
}

static bool is_kept(const struct pg_store *d, const struct semel_pg_kept *kept)
{
    return kept->ready && kept->conn == d->conn && kept->backend == PQbackendPID(d->conn);
}

static semel_status prepare_kept(struct pg_store *d, const struct semel_pg_statement *s, struct semel_pg_kept *kept,
                                 struct semel_error *err)
{
    static atomic_uint names;
    PGresult *result = NULL;
    *kept = (struct semel_pg_kept){.conn = d->conn, .backend = PQbackendPID(d->conn)};
    snprintf(kept->name, sizeof(kept->name), "semel_ask_%u", atomic_fetch_add(&names, 1));
    semel_status status = receive(d, PQsendPrepare(d->conn, kept->name, s->sql, s->n, s->types), &result, err);
    PQclear(result);
    kept->ready = status == SEMEL_OK;
    return status;
}

/* Somebody dropped it, or the tables have changed under it. */
static bool is_stale(int code)
{
    return code == SEMEL_SQLSTATE('2', '6', '0', '0', '0') || code == SEMEL_SQLSTATE('0', 'A', '0', '0', '0');
}

static semel_status run_kept(struct pg_store *d, const struct semel_pg_statement *s, struct semel_pg_kept *kept,
                             PGresult **ret, struct semel_error *err)
{
    struct semel_error why;
    bool fresh = !is_kept(d, kept);
    semel_status status = fresh ? prepare_kept(d, s, kept, err) : SEMEL_OK;
    if (status != SEMEL_OK)
        return status;
    status = receive(d, PQsendQueryPrepared(d->conn, kept->name, s->n, s->values, s->lengths, s->formats, 0), ret,
                     &why);
    if (status == SEMEL_INVALID && !fresh && is_stale(why.code)) {
        kept->ready = false;
        why.status = status = SEMEL_RETRY;
        why.cls = SEMEL_CLASS_TRANSIENT;
    }
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

semel_status semel__pg_ask(struct semel_store *store, const struct semel_pg_statement *s, struct semel_pg_kept *kept,
                           struct pg_result **ret, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    PGresult *result = NULL;
    semel_status status = begin_asking(d, err);
    if (status != SEMEL_OK)
        return status;
    if (kept != NULL && !d->wrapped && !d->pooler)
        status = run_kept(d, s, kept, &result, err);
    else
        status = receive(d, PQsendQueryParams(d->conn, s->sql, s->n, s->types, s->values, s->lengths, s->formats, 0),
                         &result, err);
    semel__pg_reblock(d);
    if (status == SEMEL_OK)
        *ret = result;
    else
        PQclear(result);
    return status;
}

/* The server counts characters from 1. */
static void add_position(const PGresult *result, struct semel_error *err)
{
    const char *position = PQresultErrorField(result, PG_DIAG_STATEMENT_POSITION);
    int64_t at;
    size_t n = err != NULL ? strlen(err->text) : 0;
    if (err != NULL && position != NULL && semel__str_int64(semel__str(position), &at))
        snprintf(err->text + n, sizeof(err->text) - n, ", at character %lld of the statement", (long long)at);
}

semel_status semel__pg_describe(struct semel_store *store, const char *sql, struct semel_pg_shape *ret,
                                struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    PGresult *result = NULL;
    semel_status status = begin_asking(d, err);
    if (status != SEMEL_OK)
        return status;
    status = receive(d, PQsendPrepare(d->conn, "", sql, 0, NULL), &result, err);
    if (status == SEMEL_INVALID)
        add_position(result, err);
    PQclear(result);
    result = NULL;
    if (status == SEMEL_OK)
        status = receive(d, PQsendDescribePrepared(d->conn, ""), &result, err);
    if (status == SEMEL_OK) {
        *ret = (struct semel_pg_shape){.n_params = PQnparams(result), .n_columns = PQnfields(result)};
        for (int i = 0; i < ret->n_params && i < SEMEL_PG_SHAPE_MAX; i++)
            ret->params[i] = PQparamtype(result, i);
        ret->first_column = ret->n_columns > 0 ? PQftype(result, 0) : 0;
    } else if (status == SEMEL_INVALID && err != NULL) {
        err->cls = SEMEL_CLASS_BROKEN;
    }
    PQclear(result);
    semel__pg_reblock(d);
    return status;
}

semel_status semel__pg_may_run(struct semel_store *store, struct semel_str statement, size_t n, struct semel_error *err)
{
    const char *nulls[PARAMS_MAX] = {NULL};
    struct semel_buf sql;
    struct pg_result *res = NULL;
    int64_t now_us;
    if (n > PARAMS_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "a statement has at most %d parameters", PARAMS_MAX);
    semel__buf_init(&sql, statement.n + 16);
    semel__buf_addf(&sql, "EXPLAIN %.*s", (int)statement.n, statement.p);
    semel__buf_add(&sql, "", 1);
    const struct semel_pg_statement explain = {.sql = sql.p, .n = (int)n, .values = nulls};
    semel_status status = sql.failed ? semel__fail_memory(err) : semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status == SEMEL_OK) {
        status = semel__pg_ask(store, &explain, NULL, &res, err);
        PQclear(res);
        semel_store_rollback(store);
    }
    semel__buf_done(&sql);
    return status;
}

/* ---- begin --------------------------------------------------------------------------------------- */

/* A plan that was made for an empty table reads all of it, and is kept until the table is analysed: that is long for a
 * table that fills in seconds. So plans are made anew now and then, often in the beginning. */
static bool replan_due(struct pg_store *d)
{
    uint64_t n = ++d->begins;
    return d->n_prepared > 0 && ((n & (n - 1)) == 0 || n % REPLAN_EVERY == 0);
}

static void add_plain_begin(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    d->begun_at_us = semel__boot_us();
    trip->bare = true;
    semel__pg_add(trip, &sql_begin);
    if (replan_due(d))
        semel__pg_add(trip, &sql_replan);
}

/* Adds the statements that begin a transaction of our own. Returns the index of the answer for read_begin. */
static size_t add_begin(struct pg_trip *trip, enum sql_id settings)
{
    struct pg_store *d = trip->d;
    add_plain_begin(trip);
    semel__pg_text(trip, semel__str(d->lock_timeout));
    if (settings == SQL_begin_once) /* for this transaction alone? */
        semel__pg_text(trip, (struct semel_str){d->pooler ? "\1" : "\0", 1});
    size_t at = semel__pg_add(trip, &semel__pg_statements[settings].sql);
    if (!d->bare)
        semel__pg_add(trip, &sql_guard);
    return at;
}

struct pg_early {
    struct pg_trip trip;
    size_t begun, settings; /* their answers */
    char consumer[SEMEL_ID_MAX];
    size_t consumer_n;
    bool answered;
};

static struct semel_str consumer_of(const struct pg_early *a)
{
    return (struct semel_str){a->consumer, a->consumer_n};
}

static bool may_begin_early(const struct pg_store *d, struct semel_str consumer)
{
    return !d->wrapped && !d->pooler && !d->broken && !d->begun && !d->joined && d->conn != NULL && consumer.n > 0 &&
           consumer.n <= SEMEL_ID_MAX && !d->queued && PQtransactionStatus(d->conn) == PQTRANS_IDLE;
}

void semel__pg_early(struct semel_store *store, struct semel_str consumer)
{
    struct pg_store *d = semel__pg_of(store);
    semel__pg_early_drop(d);
    if (!may_begin_early(d, consumer) || (d->early == NULL && (d->early = semel__calloc(1, sizeof(*d->early))) == NULL))
        return;
    struct pg_early *a = d->early;
    memcpy(a->consumer, consumer.p, consumer.n);
    a->consumer_n = consumer.n;
    a->answered = false;
    d->bare = false;
    semel__pg_start(&a->trip, d, "begin");
    a->begun = add_begin(&a->trip, SQL_begin_settings);
    semel__pg_text(&a->trip, consumer_of(a));
    a->settings = semel__pg_add(&a->trip, &semel__pg_statements[SQL_consumer_get].sql);
    d->begun_early = true;
    (void)PQflush(d->conn); /* what does not go now goes when the answer is waited for */
}

/* Waits for the answers, once. A failure ends it. */
static semel_status answer_early(struct pg_store *d, struct semel_error *err)
{
    struct pg_early *a = d->early;
    if (a->answered)
        return SEMEL_OK;
    semel_status status = semel__pg_run(&a->trip, err);
    a->answered = status == SEMEL_OK;
    if (status != SEMEL_OK)
        semel__pg_early_drop(d);
    return status;
}

bool semel__pg_early_asked(const struct pg_store *d, struct semel_str consumer)
{
    return d->begun_early && semel__str_eq(consumer, consumer_of(d->early));
}

semel_status semel__pg_early_settings(struct pg_store *d, PGresult **ret, struct semel_error *err)
{
    semel_status status = answer_early(d, err);
    if (status == SEMEL_OK)
        *ret = d->early->trip.results[d->early->settings];
    return status;
}

/* The transaction is the caller's now. */
static void end_early(struct pg_store *d)
{
    if (!d->begun_early)
        return;
    d->begun_early = false;
    semel__pg_end(&d->early->trip);
}

void semel__pg_early_drop(struct pg_store *d)
{
    bool begun = d->begun;
    if (!d->begun_early)
        return;
    end_early(d);
    d->begun = true; /* it is ours to be rolled back */
    semel__pg_rollback(&d->sql.store);
    d->begun = begun;
}

struct begun {
    int64_t now_us;
    bool standby;
    struct semel_str synchronous_commit, isolation;
};

static const struct sql_field begun_fields[] = {
    SQL_SHOWN(struct begun, now_us, now, 0),
    SQL_SHOWN(struct begun, synchronous_commit, synchronous_commit, 0),
    SQL_SHOWN(struct begun, isolation, isolation, 0),
    SQL_SHOWN(struct begun, standby, standby, 0),
};

static semel_status not_durable(struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_ENVIRONMENT,
                       "synchronous_commit is off: what was answered as committed could be lost; set it to on for "
                       "this role and database");
}

/* The server has read its clock after its begin was sent: what is reckoned from that is never behind it, so that no
 * lease is shorter in the database than its holder thinks. It is ahead by as long as the trip took, at most. */
static void see_now(struct pg_store *d, int64_t now_us)
{
    d->now_us = now_us;
    d->now_seen_us = semel__boot_us() - d->begun_at_us < RECKON_ERROR_US ? d->begun_at_us : 0;
}

static semel_status read_begin(struct pg_store *d, enum sql_id id, PGresult *res, int64_t *ret_now_us,
                               struct semel_error *err)
{
    const struct sql_row row = {.db = &d->sql, .statement = &semel__pg_statements[id], .result = res};
    struct begun b = {0};
    semel_status status = semel__db_fill(&row, SQL_FIELDS(begun_fields), NULL, &b, err);
    *ret_now_us = b.now_us;
    d->sql.standby = b.standby;
    if (status == SEMEL_OK && semel__str_eqz(b.synchronous_commit, "off"))
        return not_durable(err);
    if (status == SEMEL_OK)
        see_now(d, b.now_us);
    return status;
}

static semel_status begin_own(struct pg_store *d, int64_t *ret_now_us, struct semel_error *err)
{
    struct pg_trip trip;
    PGresult *res = NULL;
    bool early = d->begun_early;
    semel_status status;
    d->begun = true;
    d->sql.strict = false;
    if (early) {
        status = answer_early(d, err);
        res = status == SEMEL_OK ? d->early->trip.results[d->early->begun] : NULL;
    } else {
        semel__pg_start(&trip, d, "begin");
        size_t at = add_begin(&trip, SQL_begin_settings);
        status = semel__pg_run(&trip, err);
        res = trip.results[at];
    }
    if (status == SEMEL_OK)
        status = read_begin(d, SQL_begin_settings, res, ret_now_us, err);
    if (early)
        end_early(d);
    else
        semel__pg_end(&trip);
    if (status != SEMEL_OK)
        semel__pg_rollback(&d->sql.store);
    return status;
}

static semel_status read_joined(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct pg_store *d = (struct pg_store *)row->db;
    struct begun b = {0};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(begun_fields), NULL, &b, err);
    *(int64_t *)ctx = b.now_us;
    d->sql.strict = semel__str_eqz(b.isolation, "repeatable read") || semel__str_eqz(b.isolation, "serializable");
    d->sql.standby = b.standby;
    return status;
}

static semel_status begin_joined(struct pg_store *d, int64_t *ret_now_us, struct semel_error *err)
{
    d->joined = true;
    semel_status status = semel__db_do(&d->sql, "joining the transaction", SQL_begin_joined, NULL, NULL, read_joined,
                                       ret_now_us, err);
    d->joined = status == SEMEL_OK;
    return status;
}

static bool may_reckon(const struct pg_store *d)
{
    return d->bare && !d->wrapped && d->now_seen_us != 0 && semel__boot_us() - d->now_seen_us < RECKON_US;
}

/* Nothing is sent yet: the first flush does it. */
static void begin_once(struct pg_store *d, int64_t *ret_now_us)
{
    *ret_now_us = d->now_us + (semel__boot_us() - d->now_seen_us);
    d->once = PG_ONCE_DUE;
    d->begun = true;
    d->sql.strict = false;
}

semel_status semel__pg_begin(struct semel_store *store, enum semel_tx tx, int64_t *ret_now_us, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (tx != SEMEL_TX_JOIN && !is_over(d))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "a transaction is already open on this connection: join it, or end it first");
    if (tx == SEMEL_TX_JOIN && is_over(d))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is no open transaction to join: BEGIN first");
    if (tx == SEMEL_TX_JOIN && has_failed(d))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the open transaction has failed already: roll it back");
    d->saved = 0;
    d->cursor = d->undone = false;
    d->bare = (tx == SEMEL_TX_BARE || tx == SEMEL_TX_ONCE) && !d->begun_early;
    d->once = PG_ONCE_NONE;
    d->sql.admitted.n_draws = 0;
    if (tx == SEMEL_TX_ONCE && may_reckon(d))
        begin_once(d, ret_now_us);
    else
        status = tx != SEMEL_TX_JOIN ? begin_own(d, ret_now_us, err) : begin_joined(d, ret_now_us, err);
    if (status == SEMEL_OK && d->sql.clock != NULL)
        *ret_now_us = semel__now(d->sql.clock);
    return status;
}

/* ---- the end ------------------------------------------------------------------------------------- */

void semel__pg_rollback(struct semel_store *store)
{
    struct pg_store *d = semel__pg_of(store);
    bool begun = d->begun;
    drop_queue(d);
    d->begun = false;
    d->once = PG_ONCE_NONE;
    d->saved = 0;
    if (!begun || d->conn == NULL || d->broken)
        return;
    if (PQtransactionStatus(d->conn) == PQTRANS_IDLE)
        return;
    d->begun = true; /* for the trip */
    if (semel__pg_do(d, &sql_rollback, "rollback", NULL) != SEMEL_OK)
        d->broken = true;
    d->begun = false;
}

static semel_status unknown(const struct semel_error *why, struct semel_error *err)
{
    struct semel_error text = *why;
    return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_ENVIRONMENT, "%s", text.text);
}

static semel_status committed(const struct pg_store *d, PGresult *answer, struct semel_error *err)
{
    if (strcmp(PQcmdStatus(answer), "COMMIT") != 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "commit: the server rolled back: a statement had failed before");
    if (d->lost_wait)
        return semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_ENVIRONMENT,
                           "commit: the wait for the synchronous standby was cancelled: it may not have the commit");
    return SEMEL_OK;
}

/* Which of the statements failed, and what that says. A bare one has COMMIT alone. */
static semel_status commit_failed(struct pg_store *d, const struct pg_trip *trip, struct semel_error *err)
{
    enum { DURABLE, UNGUARD, COMMIT };
    semel_status status = trip->status;
    struct semel_error why = trip->err;
    const size_t failed = trip->failed + (d->bare ? COMMIT : 0);
    if (status == SEMEL_CLOSED && failed >= COMMIT)
        status = unknown(&why, &why);
    else if (failed == DURABLE && why.code == SEMEL_SQLSTATE('2', '2', '0', '1', '2'))
        status = semel__fail(&why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                             "the handler has set synchronous_commit to off: what it did could be lost");
    else if (failed == UNGUARD && status != SEMEL_CLOSED)
        status = ended(&why);
    semel__pg_rollback(&d->sql.store);
    if (err != NULL)
        *err = why;
    return status;
}

static semel_status commit_own(struct pg_store *d, struct semel_error *err)
{
    struct pg_trip trip;
    d->lost_wait = false;
    semel__pg_start(&trip, d, "commit");
    if (!d->bare) {
        semel__pg_add(&trip, &semel__pg_statements[SQL_commit_durable].sql);
        semel__pg_add(&trip, &sql_unguard);
    }
    size_t at = semel__pg_add(&trip, &sql_commit);
    trip.theirs = true;
    semel_status status = semel__pg_run(&trip, err);
    status = status == SEMEL_OK ? committed(d, trip.results[at], err) : commit_failed(d, &trip, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- begin and commit with one flush ---- */

void semel__pg_once_begin(struct pg_trip *trip)
{
    struct pg_store *d = trip->d;
    d->once_asks = !d->settled || semel__boot_us() - d->now_seen_us > SETTLED_US;
    if (d->once_asks)
        d->once_begun = add_begin(trip, SQL_begin_once);
    else
        add_plain_begin(trip);
    d->once = PG_ONCE_SENT;
    d->lost_wait = false;
}

static semel_status once_failed(struct pg_store *d, const struct pg_trip *trip, size_t commit, bool sent,
                                struct semel_error *err)
{
    struct semel_error why = trip->err;
    semel_status status = trip->status;
    const bool reported = trip->failed < commit &&
                          why.code != 0; /* by the server, which did not get as far as COMMIT */
    const bool doubt = status == SEMEL_CLOSED && sent && !reported;
    status = doubt ? unknown(&why, &why) : status;
    if (trip->failed < commit && why.code == SEMEL_SQLSTATE('2', '2', '0', '1', '2'))
        status = not_durable(&why);
    semel__pg_rollback(&d->sql.store);
    if (err != NULL)
        *err = why;
    return status;
}

semel_status semel__pg_once_commit(struct pg_trip *trip, struct semel_error *err)
{
    struct pg_store *d = trip->d;
    const size_t commit = semel__pg_add(trip, &sql_commit);
    const bool sent = trip->entered;
    int64_t now_us;
    semel_status status = semel__pg_run(trip, err);
    if (status != SEMEL_OK)
        return once_failed(d, trip, commit, sent, err);
    d->once = PG_ONCE_COMMITTED;
    d->begun = false;
    status = committed(d, trip->results[commit], err);
    if (status == SEMEL_INVALID)
        return status;
    if (d->once_asks) { /* the settings and the answer of its begin are valid from its commit on */
        (void)read_begin(d, SQL_begin_once, trip->results[d->once_begun], &now_us, NULL);
        d->settled = !d->pooler;
    }
    d->sql.store.ended = true;
    return status;
}

semel_status semel__pg_commit(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    if (d->once == PG_ONCE_COMMITTED || d->once == PG_ONCE_DUE) { /* with its flush; or there was none */
        d->once = PG_ONCE_NONE;
        d->begun = false;
        return SEMEL_OK;
    }
    if (!d->begun) /* joined: the caller commits */
        return SEMEL_OK;
    semel_status status = semel__pg_usable(d, err);
    if (status == SEMEL_OK)
        status = commit_own(d, err);
    else
        semel__pg_rollback(store);
    d->begun = false;
    d->saved = 0;
    return status;
}

/* ---- savepoints ---------------------------------------------------------------------------------- */

semel_status semel__pg_savepoint(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (is_over(d))
        return ended(err);
    bool outer = d->joined && d->saved == 0;
    bool inner = d->saved == (d->joined ? 2 : 1);
    if (inner && d->queued) {
        static const struct sql_text *const again[] = {&sql_release, &sql_save};
        return queue_ours(d, again, 2, err);
    }
    semel__pg_start(&trip, d, "savepoint");
    if (inner)
        semel__pg_add(&trip, &sql_release);
    semel__pg_add(&trip, outer ? &sql_save_join : &sql_save);
    status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    if (status == SEMEL_OK && !inner)
        d->saved++;
    return status;
}

semel_status semel__pg_rollback_to(struct semel_store *store, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    drop_queue(d);
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK)
        return status;
    if (is_over(d))
        return ended(err);
    status = semel__pg_do(d, d->joined && d->saved < 2 ? &sql_back_join : &sql_back, "rollback to savepoint", err);
    d->undone = status == SEMEL_OK;
    d->cursor = false;
    return status;
}

/* Core undoes a joined transaction by rollback_to and then leave. If it had set a second savepoint in between, the
 * first is the one that was meant. */
void semel__pg_leave(struct semel_store *store)
{
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    bool saved = d->saved > 0, undo = d->undone && d->saved > 1;
    drop_queue(d);
    if (saved && !d->broken && d->conn != NULL && PQtransactionStatus(d->conn) == PQTRANS_INTRANS) {
        semel__pg_start(&trip, d, "leaving the transaction");
        if (undo)
            semel__pg_add(&trip, &sql_back_join);
        semel__pg_add(&trip, &sql_release_join);
        (void)semel__pg_run(&trip, NULL);
        semel__pg_end(&trip);
    }
    d->joined = d->cursor = d->undone = false;
    d->saved = 0;
}

bool semel__pg_busy(struct semel_store *store)
{
    const struct pg_store *d = semel__pg_of(store);
    if (d->conn == NULL || PQstatus(d->conn) != CONNECTION_OK)
        return false;
    return PQtransactionStatus(d->conn) != PQTRANS_IDLE;
}

/* ---- the guard ----------------------------------------------------------------------------------- */

/* In a batch the cursor is asked for at COMMIT, at no extra cost. A single message is to be blamed now. */
static semel_status unguard_own(struct pg_store *d, struct semel_error *err)
{
    int64_t n = 1;
    semel_status status = SEMEL_OK;
    if (d->saved > 0)
        status = semel__db_count(&d->sql, SQL_guard_check, "guard", NULL, &n, err);
    return status == SEMEL_OK && n != 1 ? ended(err) : status;
}

static semel_status unguard_joined(struct pg_store *d, struct semel_error *err)
{
    struct semel_error why;
    if (!d->cursor)
        return SEMEL_OK;
    d->cursor = false;
    semel_status status = semel__pg_do(d, &sql_unguard, "guard", &why);
    if (status == SEMEL_INVALID)
        return ended(err);
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

semel_status semel__pg_guard(struct semel_store *store, bool on, struct semel_error *err)
{
    struct pg_store *d = semel__pg_of(store);
    semel_status status = semel__pg_usable(d, err);
    if (status == SEMEL_OK && !on && d->queued)
        status = semel__pg_queue_end(d, err);
    if (status != SEMEL_OK)
        return status;
    if (is_over(d))
        return ended(err);
    if (has_failed(d)) /* its statement failed, and it will be rolled back */
        return SEMEL_OK;
    if (!on)
        return d->joined ? unguard_joined(d, err) : unguard_own(d, err);
    if (!d->joined || d->cursor)
        return SEMEL_OK;
    status = semel__pg_do(d, &sql_guard, "guard", err);
    d->cursor = status == SEMEL_OK;
    return status;
}

/* Constraints are put back as they were: what is rolled back to counts as not checked. */
semel_status semel__pg_check(struct semel_store *store, struct semel_error *err)
{
    static const struct sql_text sql_check = {"semel_check", "SET CONSTRAINTS ALL IMMEDIATE"};
    static const struct sql_text sql_save_check = {"semel_save_check", "SAVEPOINT semel_check"};
    static const struct sql_text sql_back_check = {"semel_back_check", "ROLLBACK TO SAVEPOINT semel_check"};
    static const struct sql_text sql_release_check = {"semel_release_check", "RELEASE SAVEPOINT semel_check"};
    static const struct sql_text *const texts[] = {&sql_save_check, &sql_check, &sql_back_check, &sql_release_check};
    struct pg_store *d = semel__pg_of(store);
    struct pg_trip trip;
    if (d->queued)
        return queue_ours(d, texts, 4, err);
    semel__pg_start(&trip, d, "check of deferred constraints");
    trip.theirs = true;
    for (size_t i = 0; i < 4; i++)
        semel__pg_add(&trip, texts[i]);
    semel_status status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    return status;
}

/* ---- readers ------------------------------------------------------------------------------------- */

semel_status semel__pg_snapshot(struct sql *db, bool *ret_begun, struct semel_error *err)
{
    struct pg_store *d = (struct pg_store *)db;
    static const struct sql_text sql = {"semel_snapshot", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"};
    struct pg_trip trip;
    *ret_begun = false;
    semel_status status = semel__pg_usable(d, err);
    if (status != SEMEL_OK || semel__pg_in_tx(d))
        return status;
    semel__pg_start(&trip, d, "begin");
    trip.bare = true;
    semel__pg_add(&trip, &sql);
    semel__pg_text(&trip, semel__str(d->lock_timeout));
    semel__pg_add(&trip, &semel__pg_statements[SQL_begin_settings].sql);
    status = semel__pg_run(&trip, err);
    semel__pg_end(&trip);
    *ret_begun = status == SEMEL_OK;
    if (status != SEMEL_OK)
        semel__pg_snapshot_end(db, true);
    return status;
}

void semel__pg_snapshot_end(struct sql *db, bool begun)
{
    if (!begun)
        return;
    ((struct pg_store *)db)->begun = true; /* it is ours to be rolled back */
    semel__pg_rollback(&db->store);
}

/* ---- closing ------------------------------------------------------------------------------------- */

/* The connection goes, or went: what is open is rolled back where the connection stays the caller's, and forgotten. */
void semel__pg_tx_abandon(struct pg_store *d, bool ours)
{
    if (d->begun_early) { /* whatever it would be answered */
        d->broken = true;
        end_early(d);
    }
    if (d->conn != NULL && d->wrapped && ours)
        semel__pg_rollback(&d->sql.store);
    d->begun = d->joined = d->cursor = d->queued = false;
    d->once = PG_ONCE_NONE;
    d->settled = false;
    d->now_seen_us = 0;
    d->saved = 0;
    if (d->queue == NULL)
        return;
    d->queue->failed = false;
    d->queue->n = d->queue->unflushed = 0;
    memset(d->queue->prepared, 0, sizeof(d->queue->prepared));
    memset(d->queue->asked, 0, sizeof(d->queue->asked));
}

void semel__pg_tx_free(struct pg_store *d)
{
    for (size_t i = 0; d->queue != NULL && i < d->queue->n_texts; i++)
        semel__free(d->queue->texts[i]);
    if (d->queue != NULL)
        semel__free(d->queue->sent);
    semel__free(d->queue);
    semel__free(d->early);
    d->queue = NULL;
    d->early = NULL;
}
