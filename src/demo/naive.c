/* SPDX-License-Identifier: MIT
 *
 * naive.c: the consumer that is usually written by hand, for comparison: check, write, mark.
 *
 * For each message: is its id among `processed`? If not, write the effect, then mark the id; each statement is a
 * transaction of its own, as it is with any driver whose default is autocommit. A failure is tried three times, then
 * logged, and the message is acknowledged so that it does not block the queue. The database has the same settings as
 * Semel's (WAL, synchronous=FULL, foreign keys), and the fault comes before the first write, which is easier than for
 * Semel's worker.
 *
 * Its failures are not a bug in one line: a crash between the effect and the mark, two workers between check and
 * mark, a failure that is over only after the third try. It must stay as it is; it is the demonstration.
 */
#include "demo/demo.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/inbox.h"

#define BATCH 8
#define WAIT_MS 20
#define TRIES 3
#define OPEN_TRIES 20
#define OPEN_AGAIN_MS 100
#define ARENA_BYTES (1 << 20)

static const char settings[] = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;";
static const char schema[] =
    "CREATE TABLE processed (payment_id TEXT PRIMARY KEY, at INTEGER NOT NULL) STRICT;"
    "CREATE TABLE error_log (line INTEGER PRIMARY KEY, payment_id TEXT NOT NULL, try INTEGER NOT NULL,"
    " error TEXT NOT NULL) STRICT;"
    "CREATE INDEX error_log_payment ON error_log (payment_id);";

bool demo_naive_prepare(struct semel_error *err)
{
    sqlite3 *db = NULL;
    const bool made = demo_db_open(demo_files_without.store, DEMO_CREATE, &db, err) &&
                      demo_db_exec(db, settings, err) && demo_db_exec(db, "BEGIN", err) &&
                      demo_db_exec(db, demo_business_schema, err) && demo_db_exec(db, schema, err) &&
                      demo_db_exec(db, "COMMIT", err);

    demo_db_close(db);
    return made;
}

/* ---- the consumer ----------------------------------------------------------------------------------------- */

struct consumer {
    sqlite3 *db;
    struct semel_broker *broker;
    struct semel_arena arena; /* for one batch */
    int64_t seed;
};

static struct semel_str id_of(const struct semel_delivery *delivery)
{
    for (size_t i = 0; i < delivery->n_headers; i++)
        if (semel__str_eqz(delivery->headers[i].name, "ce_id"))
            return delivery->headers[i].value;
    return SEMEL_STR("");
}

static sqlite3_stmt *statement(sqlite3 *db, const char *sql, struct semel_str id)
{
    sqlite3_stmt *stmt = NULL;

    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) == SQLITE_OK)
        sqlite3_bind_text(stmt, 1, id.p, (int)id.n, SQLITE_STATIC);
    return stmt;
}

static bool done(sqlite3 *db, sqlite3_stmt *stmt, const char *doing, struct semel_error *err)
{
    const bool ok = stmt != NULL && sqlite3_step(stmt) == SQLITE_DONE;

    if (!ok)
        demo_db_failed(db, doing, err);
    sqlite3_finalize(stmt);
    return ok;
}

static bool is_processed(struct consumer *c, struct semel_str id)
{
    sqlite3_stmt *stmt = statement(c->db, "SELECT 1 FROM processed WHERE payment_id = ?1", id);
    const bool found = stmt != NULL && sqlite3_step(stmt) == SQLITE_ROW;

    sqlite3_finalize(stmt);
    return found;
}

static bool write_effect(struct consumer *c, struct semel_str id, const struct demo_order *order,
                         struct semel_error *err)
{
    sqlite3_stmt *stmt = statement(c->db, "INSERT INTO ledger (payment_id, account, cents) VALUES (?1, ?2, ?3)", id);

    if (stmt != NULL) {
        sqlite3_bind_text(stmt, 2, order->account.p, (int)order->account.n, SQLITE_STATIC);
        sqlite3_bind_int64(stmt, 3, order->cents);
    }
    if (!done(c->db, stmt, "booking", err))
        return false;
    stmt = statement(c->db, "UPDATE account SET cents = cents + ?2 WHERE id = ?1", order->account);
    if (stmt != NULL)
        sqlite3_bind_int64(stmt, 2, order->cents);
    return done(c->db, stmt, "booking", err);
}

static bool mark(struct consumer *c, struct semel_str id, struct semel_error *err)
{
    sqlite3_stmt *stmt = statement(c->db,
                                   "INSERT INTO processed (payment_id, at) VALUES (?1, ?2) ON CONFLICT DO NOTHING", id);

    if (stmt != NULL)
        sqlite3_bind_int64(stmt, 2, semel__now(&semel__clock_real));
    return done(c->db, stmt, "marking", err);
}

/* The fault is over after so many attempts, by any worker: the log has their number. */
static bool world_fails(struct consumer *c, struct semel_str id, struct semel_error *err)
{
    const int faults = demo_faults(c->seed, id);
    sqlite3_stmt *stmt;
    int before = 0;

    if (faults == 0)
        return false;
    stmt = statement(c->db, "SELECT count(*) FROM error_log WHERE payment_id = ?1", id);
    if (stmt != NULL && sqlite3_step(stmt) == SQLITE_ROW)
        before = sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    if (before >= faults)
        return false;
    semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_TRANSIENT, "the receipt service does not answer");
    return true;
}

static void log_error(struct consumer *c, struct semel_str id, int try, const struct semel_error *why)
{
    sqlite3_stmt *stmt = statement(c->db, "INSERT INTO error_log (payment_id, try, error) VALUES (?1, ?2, ?3)", id);
    struct semel_error err;

    if (stmt != NULL) {
        sqlite3_bind_int(stmt, 2, try);
        sqlite3_bind_text(stmt, 3, why->text, -1, SQLITE_STATIC);
    }
    if (!done(c->db, stmt, "logging", &err))
        fprintf(stderr, "%s\n", err.text);
}

static void handle(struct consumer *c, const struct semel_delivery *delivery)
{
    const struct semel_str id = id_of(delivery);
    struct semel_error err = {0};

    if (is_processed(c, id))
        return;
    for (int try = 1; try <= TRIES; try++) {
        struct demo_order order;
        if (!world_fails(c, id, &err) && demo_order_read(delivery->payload, &c->arena, &order, &err) == SEMEL_OK &&
            write_effect(c, id, &order, &err) && mark(c, id, &err))
            return;
        log_error(c, id, try, &err);
    }
}

/* ---- the worker ------------------------------------------------------------------------------------------- */

static void consume(struct consumer *c)
{
    struct semel_error err;

    while (!demo_worker_stopping()) {
        struct semel_delivery *deliveries;
        size_t n = 0;
        semel__arena_reset(&c->arena);
        if (semel_broker_poll(c->broker, BATCH, WAIT_MS, &c->arena, &deliveries, &n, &err) != SEMEL_OK)
            fprintf(stderr, "poll: %s\n", err.text);
        for (size_t i = 0; i < n; i++) {
            static const struct semel_settled done = {.act = SEMEL_ACK};
            const struct semel_reply reply = {.tag = deliveries[i].tag, .settled = &done};
            semel_status status;
            handle(c, &deliveries[i]);
            status = semel_broker_answer(c->broker, &reply, 1, &err);
            if (status != SEMEL_OK && status != SEMEL_FENCED)
                fprintf(stderr, "ack: %s\n", err.text);
        }
    }
}

int demo_naive_run(int64_t seed, int64_t number)
{
    struct consumer c = {.seed = seed};
    struct semel_error err = {0};
    bool opened = false;

    demo_worker_listen();
    semel__arena_init(&c.arena, ARENA_BYTES);
    for (int i = 0; i < OPEN_TRIES && !opened && !demo_worker_stopping(); i++) {
        opened = (c.db != NULL || demo_db_open(demo_files_without.store, DEMO_CREATE, &c.db, &err)) &&
                 demo_db_exec(c.db, settings, &err) &&
                 demo_broker_open(&c.broker, demo_files_without.broker, &err) == SEMEL_OK;
        if (!opened)
            poll(NULL, 0, OPEN_AGAIN_MS);
    }
    if (opened)
        consume(&c);
    else if (!demo_worker_stopping())
        fprintf(stderr, "worker %lld: %s\n", (long long)number, err.text);
    if (c.broker != NULL)
        semel_broker_close(c.broker);
    demo_db_close(c.db);
    semel__arena_done(&c.arena);
    return opened || demo_worker_stopping() ? CLI_OK : CLI_STORE;
}
