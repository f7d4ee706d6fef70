/* SPDX-License-Identifier: MIT
 *
 * ledger.c: bookings, inside the database and outside. See ledger.h.
 */
#include "fault/ledger.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/str.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>

#include "store/pg_store.h"
#endif

#define GATE_MS 20000

/* `chain` depends on the order of the bookings, `balance` does not. */
const char *ledger_schema(const char *url)
{
    return strncmp(url, "postgres", 8) == 0
               ? "CREATE TABLE ledger (line BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id TEXT, account "
                 "TEXT,"
                 " cents BIGINT, version BIGINT, attempt INTEGER, worker TEXT);"
                 "CREATE TABLE accounts (account TEXT PRIMARY KEY, balance BIGINT NOT NULL, chain BIGINT NOT NULL)"
               : "CREATE TABLE ledger (line INTEGER PRIMARY KEY, message_id TEXT, account TEXT, cents INTEGER,"
                 " version INTEGER, attempt INTEGER, worker TEXT);"
                 "CREATE TABLE accounts (account TEXT PRIMARY KEY, balance INTEGER NOT NULL, chain INTEGER NOT NULL)";
}

/* ---- tasks -------------------------------------------------------------------------------------------- */

#define X(name, text) text,
static const char *const kind_names[] = {TASK_MAP(X)};
#undef X

void task_write(const struct task *task, char out[TASK_TEXT])
{
    snprintf(out, TASK_TEXT,
             "{\"do\":\"%s\",\"n\":%d,\"account\":\"%s\",\"cents\":%lld,\"version\":%lld,\"intent\":\"%s\"}",
             kind_names[task->kind], task->n, task->account, task->cents, task->version, task->intent);
}

bool task_read(struct semel_str payload, struct task *ret)
{
    char text[TASK_TEXT], kind[16];

    if (payload.n >= sizeof text)
        return false;
    memcpy(text, payload.p, payload.n);
    text[payload.n] = '\0';
    if (sscanf(text, "{\"do\":\"%15[a-z]\",\"n\":%d,\"account\":\"%31[^\"]\",\"cents\":%lld,\"version\":%lld", kind,
               &ret->n, ret->account, &ret->cents, &ret->version) != 5)
        return false;
    for (int i = 0; i < TASK_COUNT; i++)
        if (strcmp(kind, kind_names[i]) == 0) {
            ret->kind = (enum task_kind)i;
            return true;
        }
    return false;
}

/* ---- effects ------------------------------------------------------------------------------------------ */

static int run_sql(sqlite3 *db, const char *sql, const struct semel__msg *msg, const struct task *task, int attempt,
                   const char *worker)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL);

    if (rc != SQLITE_OK)
        return rc;
    sqlite3_bind_text(stmt, 1, msg->id.p, (int)msg->id.n, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, task->account, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, task->cents);
    sqlite3_bind_int64(stmt, 4, task->version);
    sqlite3_bind_int(stmt, 5, attempt);
    sqlite3_bind_text(stmt, 6, worker, -1, SQLITE_STATIC);
    rc = sqlite3_step(stmt);
    sqlite3_finalize(stmt);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static semel_status book_in_sqlite(const struct ledger *ledger, struct semel_store *store, const struct semel__msg *msg,
                                   const struct task *task, int attempt, struct semel_error *err)
{
    static const char *const statements[] = {
        "INSERT INTO ledger (message_id, account, cents, version, attempt, worker) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        "INSERT INTO accounts (account, balance, chain) VALUES (?2, ?3, ?3 % 1000003) ON CONFLICT DO UPDATE"
        " SET balance = balance + ?3, chain = (chain * 31 + ?3) % 1000003",
        NULL,
    };
    sqlite3 *db = semel_store_native(store);
    int rc = SQLITE_OK;

    for (size_t i = 0; rc == SQLITE_OK && statements[i] != NULL; i++)
        rc = run_sql(db, statements[i], msg, task, attempt, ledger->worker);
    if (rc == SQLITE_OK && task->kind == TASK_MISSING)
        rc = run_sql(db, "INSERT INTO missing (a, b, c, d, e, f) VALUES (?1, ?2, ?3, ?4, ?5, ?6)", msg, task, attempt,
                     ledger->worker);
    return rc == SQLITE_OK ? SEMEL_OK : semel__sqlite_fail(db, rc, "handler", err);
}

#ifdef SEMEL_WITH_POSTGRES

/* Both ways of a handler; it must not mix them. */
static semel_status run_pg(struct semel_store *store, bool queued, const char *sql, const char *const values[6],
                           struct semel_error *err)
{
    static const unsigned types[6] = {25, 25, 20, 20, 23, 25}; /* text, bigint, integer */
    const struct semel_pg_statement statement = {.sql = sql, .n = 6, .types = types, .values = values};
    PGconn *conn = semel_store_native(store);
    PGresult *result;
    semel_status status = SEMEL_OK;

    if (queued)
        return semel__pg_queue(store, &statement, err);
    result = PQexecParams(conn, sql, 6, types, values, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        status = semel__pg_fail(conn, result, "handler", err);
    PQclear(result);
    return status;
}

static semel_status book_in_postgres(const struct ledger *ledger, struct semel_store *store,
                                     const struct semel__msg *msg, const struct task *task, int attempt,
                                     struct semel_error *err)
{
    static const char *const statements[] = {
        "INSERT INTO ledger (message_id, account, cents, version, attempt, worker) VALUES ($1, $2, $3, $4, $5, $6)",
        ("INSERT INTO accounts AS a (account, balance, chain) VALUES ($2, $3, $3 % 1000003) ON CONFLICT (account)"
         " DO UPDATE SET balance = a.balance + $3, chain = (a.chain * 31 + $3) % 1000003"),
        "INSERT INTO missing (a, b, c, d, e, f) VALUES ($1, $2, $3, $4, $5, $6)",
    };
    const size_t n = task->kind == TASK_MISSING ? 3 : 2;
    char id[256], numbers[3][24];
    const char *const values[6] = {id, task->account, numbers[0], numbers[1], numbers[2], ledger->worker};
    semel_status status = SEMEL_OK;

    snprintf(id, sizeof id, "%.*s", (int)msg->id.n, msg->id.p);
    snprintf(numbers[0], sizeof numbers[0], "%lld", task->cents);
    snprintf(numbers[1], sizeof numbers[1], "%lld", task->version);
    snprintf(numbers[2], sizeof numbers[2], "%d", attempt);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = run_pg(store, ledger->queued, statements[i], values, err);
    return status;
}

#endif

static semel_status book_inside(const struct ledger *ledger, struct semel_store *store, const struct semel__msg *msg,
                                const struct task *task, int attempt, struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (strcmp(store->ops->name, "postgres") == 0)
        return book_in_postgres(ledger, store, msg, task, attempt, err);
#endif
    return book_in_sqlite(ledger, store, msg, task, attempt, err);
}

/* One write and one line, so that lines of several processes do not mix. */
static semel_status book_outside(const struct ledger *ledger, const struct semel__msg *msg, const struct task *task,
                                 struct semel_error *err)
{
    char key[SEMEL_STEP_KEY_TEXT], line[512], path[256];
    int fd, n;
    bool written;

    if (!semel__step_key(ledger->consumer, msg->source, msg->id, SEMEL_STR("book"), key))
        return semel__fail_memory(err);
    n = snprintf(line, sizeof line, "%s %.*s %s %lld %s\n", key, (int)msg->id.n, msg->id.p, task->account, task->cents,
                 ledger->worker);
    snprintf(path, sizeof path, "%s/effects", ledger->dir);
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "no file for the effects");
    written = write(fd, line, (size_t)n) == n && fsync(fd) == 0;
    close(fd);
    return written ? SEMEL_OK : semel__fail(err, SEMEL_UNKNOWN, SEMEL_CLASS_UNKNOWN, "the effect may be half written");
}

static semel_status emit(struct semel_store *store, const struct semel__msg *msg, struct semel_error *err)
{
    const struct semel__event event = {.aggregatetype = SEMEL_STR("booking"),
                                       .aggregateid = msg->id,
                                       .type = SEMEL_STR("Booked"),
                                       .payload = msg->payload,
                                       .headers = SEMEL_STR("{}")};
    char id[37];

    return semel_store_outbox_put(store, &event, semel__now(&semel__clock_real), id, err);
}

/* ---- behaviour ---------------------------------------------------------------------------------------- */

/* Says that it is there by gate.ID.WORKER.in, and goes on when gate.ID.WORKER.go appears. */
static void wait_at_gate(const struct ledger *ledger, const struct semel__msg *msg)
{
    char in[256], go[256];
    int fd;

    snprintf(in, sizeof in, "%s/gate.%.*s.%s.in", ledger->dir, (int)msg->id.n, msg->id.p, ledger->worker);
    snprintf(go, sizeof go, "%s/gate.%.*s.%s.go", ledger->dir, (int)msg->id.n, msg->id.p, ledger->worker);
    fd = open(in, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    for (int ms = 0; ms < GATE_MS && access(go, F_OK) != 0; ms++)
        poll(NULL, 0, 1);
}

static void behave(const struct ledger *ledger, const struct task *task, const struct semel__msg *msg, int attempt,
                   struct semel__reply *reply)
{
    const bool early = attempt <= task->n;

    switch (task->kind) {
    case TASK_OK:
    case TASK_MISSING:
        return;
    case TASK_FLAKY:
    case TASK_EMIT:
        if (early)
            semel__reply_set(reply, SEMEL_TRANSIENT, SEMEL_STR("the teller is out"), (struct semel_str){0});
        return;
    case TASK_BAD:
        if (early)
            semel__reply_set(reply, SEMEL_PERMANENT, SEMEL_STR("there is no such account"), (struct semel_str){0});
        return;
    case TASK_REJECT:
        semel__reply_set(reply, SEMEL_REJECTED, SEMEL_STR("over the limit"), (struct semel_str){0});
        return;
    case TASK_DIE:
        if (early)
            raise(SIGKILL);
        return;
    case TASK_GATE:
        wait_at_gate(ledger, msg);
        return;
    case TASK_COUNT:
        return;
    }
}

semel_status ledger_handle(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                           struct semel__reply *reply, struct semel_error *err)
{
    const struct ledger *ledger = ctx;
    struct task task;
    semel_status status = SEMEL_OK;

    if (!task_read(msg->payload, &task))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the payload is no task");
    if (!ledger->outside)
        status = book_inside(ledger, store, msg, &task, attempt, err);
    if (status == SEMEL_OK && task.kind == TASK_EMIT)
        status = emit(store, msg, err);
    if (status == SEMEL_OK)
        behave(ledger, &task, msg, attempt, reply);
    if (status == SEMEL_OK && ledger->outside && reply->result == SEMEL_DONE)
        status = book_outside(ledger, msg, &task, err);
    return status;
}
