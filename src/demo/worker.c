/* SPDX-License-Identifier: MIT
 *
 * worker.c: a worker of the demo. This is all that a consumer with Semel has to do: open, write a handler, pump.
 *
 * The handler books a payment through the store's own connection: a line in the ledger and a change of the account,
 * inside the transaction in which Semel records the message. It does not check whether the payment was booked before,
 * and the ledger has no constraint that would refuse a second line. Now and then a service that it needs after
 * booking does not answer (demo_faults); then the booking must be rolled back.
 *
 * Invariants: a worker ends only on SIGTERM. Whatever fails around it, it tries again.
 */
#include "demo/demo.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/json.h"
#include "demo/spool.h"
#include "core/consumer.h"
#include "core/pump.h"
#include "store/sqlite_store.h"

#define BATCH 32
#define WAIT_MS 20
#define LATER_MS 100
#define OPEN_TRIES 20
#define OPEN_AGAIN_MS 100
#define BREAKER_FAILURES 50
#define BREAKER_FIRST_US 50000
#define BREAKER_CEILING_US 200000
#define VISIBILITY_MS 500
#define ORDER_BYTES 65536
#define FAULT_EVERY 25
#define PAYLOAD_MAX 4096

/* Short times, so that the demo settles within seconds. */
static const char settings[] = "{\"effect\":\"atomic\",\"order\":\"none\",\"retry_max\":10,\"retry_first\":\"50ms\","
                               "\"retry_ceiling\":\"300ms\",\"lease\":\"2s\"}";

const char demo_business_schema[] =
    "CREATE TABLE account (id TEXT PRIMARY KEY, cents INTEGER NOT NULL DEFAULT 0) STRICT;"
    "CREATE TABLE ledger (line INTEGER PRIMARY KEY, payment_id TEXT NOT NULL,"
    " account TEXT NOT NULL REFERENCES account (id), cents INTEGER NOT NULL CHECK (cents > 0)) STRICT;"
    "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 99)"
    " INSERT INTO account (id) SELECT printf('acc-%03d', n) FROM n;";

/* ---- opening ---------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopping;

static void on_term(int signal_number)
{
    (void)signal_number;
    stopping = 1;
}

void demo_worker_listen(void)
{
    const struct sigaction on = {.sa_handler = on_term};

    sigaction(SIGTERM, &on, NULL);
}

bool demo_worker_stopping(void)
{
    return stopping != 0;
}

static semel_status open_store(struct semel_store **ret, bool create, struct semel_error *err)
{
    static const struct semel_store_ops *const stores[] = {&semel__store_sqlite, NULL};
    const struct semel_store_options options = {.create = create, .migrate = create};
    char url[64];

    snprintf(url, sizeof url, "sqlite:%s", demo_files_with.store);
    return semel_store_open(ret, stores, url, &options, err);
}

semel_status demo_broker_open(struct semel_broker **ret, const char *file, struct semel_error *err)
{
    char location[128];

    snprintf(location, sizeof location, "%s?visibility_ms=%d", file, VISIBILITY_MS);
    return semel__spool_open(ret, location, err);
}

static semel_status set_consumer(struct semel_store *store, int64_t now_us, struct semel_error *err)
{
    const struct semel_setter by = {.who = SEMEL_STR("semel demo")};
    struct semel_arena arena;
    struct semel_setting now;

    semel__arena_init(&arena, 1 << 16);
    semel_status status = semel__consumer_set(store, SEMEL_STR(DEMO_CONSUMER), SEMEL_STR(settings), &by, now_us, &arena,
                                              &now, err);
    semel__arena_done(&arena);
    return status;
}

/* Tables, accounts and the consumer's settings, in one transaction. */
bool demo_worker_prepare(struct semel_error *err)
{
    struct semel_store *store = NULL;
    int64_t now_us;
    semel_status status = open_store(&store, true, err);

    if (status != SEMEL_OK)
        return false;
    status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status == SEMEL_OK) {
        if (!demo_db_exec(semel_store_native(store), demo_business_schema, err))
            status = SEMEL_INVALID;
        if (status == SEMEL_OK)
            status = set_consumer(store, now_us, err);
        if (status == SEMEL_OK)
            status = semel_store_commit(store, err);
        else
            semel_store_rollback(store);
    }
    semel_store_close(store);
    return status == SEMEL_OK;
}

/* ---- a payment, as a worker reads it -------------------------------------------------------------------------- */

static semel_status member(const struct semel_json *json, const char *pointer, struct semel_arena *arena,
                           enum semel_json_kind kind, struct semel_str *ret, struct semel_error *err)
{
    enum semel_json_kind found;
    semel_status status = semel__json_get(json, semel__str(pointer), arena, &found, ret, err);

    if (status == SEMEL_OK && found != kind)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the payment has no proper %s", pointer);
    return status;
}

semel_status demo_order_read(struct semel_str payload, struct semel_arena *arena, struct demo_order *ret,
                             struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_str cents;
    semel_status status = semel__json_parse(&json, payload, PAYLOAD_MAX, err);

    if (status == SEMEL_INVALID && err != NULL)
        err->cls = SEMEL_CLASS_PERMANENT;
    if (status != SEMEL_OK)
        return status;
    status = member(json, "/account", arena, SEMEL_JSON_STRING, &ret->account, err);
    if (status == SEMEL_OK)
        status = member(json, "/cents", arena, SEMEL_JSON_INTEGER, &cents, err);
    if (status == SEMEL_OK && !semel__str_int64(cents, &ret->cents))
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "/cents is beyond 64 bits");
    semel__json_free(json);
    return status;
}

/* Every 25th payment; the fault lasts for one, two, one and four attempts in turn. */
int demo_faults(int64_t seed, struct semel_str id)
{
    static const int lengths[] = {1, 2, 1, 4};
    int64_t n;
    const struct semel_str digits = id.n > 4 ? (struct semel_str){id.p + 4, id.n - 4} : (struct semel_str){"", 0};

    if (!semel__str_int64(digits, &n) || n < 0 || n > INT64_MAX / 2)
        return 0;
    n += seed % (4 * FAULT_EVERY);
    return n % FAULT_EVERY == 0 ? lengths[n / FAULT_EVERY % 4] : 0;
}

/* ---- the handler ------------------------------------------------------------------------------------------ */

struct book_context {
    int64_t seed;
    struct semel_arena arena; /* for one payment */
};

static int run_sql(sqlite3 *db, const char *sql, struct semel_str id, const struct demo_order *order)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL);

    if (rc != SQLITE_OK)
        return rc;
    sqlite3_bind_text(stmt, 1, order->account.p, (int)order->account.n, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 2, order->cents);
    if (sqlite3_bind_parameter_count(stmt) > 2)
        sqlite3_bind_text(stmt, 3, id.p, (int)id.n, SQLITE_STATIC);
    rc = sqlite3_step(stmt);
    sqlite3_finalize(stmt);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static semel_status book(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                         struct semel__reply *reply, struct semel_error *err)
{
    struct book_context *booking = ctx;
    sqlite3 *db = semel_store_native(store);
    struct demo_order order;
    semel_status status;
    int rc;

    semel__arena_reset(&booking->arena);
    status = demo_order_read(msg->payload, &booking->arena, &order, err);
    if (status != SEMEL_OK)
        return status;
    rc = run_sql(db, "INSERT INTO ledger (account, cents, payment_id) VALUES (?1, ?2, ?3)", msg->id, &order);
    if (rc == SQLITE_OK)
        rc = run_sql(db, "UPDATE account SET cents = cents + ?2 WHERE id = ?1", msg->id, &order);
    if (rc != SQLITE_OK)
        return semel__sqlite_fail(db, rc, "booking", err);
    if (attempt <= demo_faults(booking->seed, msg->id) &&
        !semel__reply_set(reply, SEMEL_TRANSIENT, SEMEL_STR("the receipt service does not answer"),
                          (struct semel_str){NULL, 0}))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

/* ---- the worker ------------------------------------------------------------------------------------------- */

struct life {
    struct semel_store *store;
    struct semel_broker *broker;
    struct semel_policy policy;
    struct semel_random rng;
    struct semel_arena arena;
    struct book_context booking;
    char owner[48];
};

static semel_status open_all(struct life *life, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    if (life->store == NULL)
        status = open_store(&life->store, false, err);
    if (status == SEMEL_OK && life->broker == NULL)
        status = demo_broker_open(&life->broker, demo_files_with.broker, err);
    if (status == SEMEL_OK)
        status = semel__consumer_load(life->store, SEMEL_STR(DEMO_CONSUMER), &life->arena, &life->policy, NULL, err);
    return status;
}

static void pump(struct life *life)
{
    static const struct semel_rules rules; /* the id, type and time are where CloudEvents puts them */
    const struct semel__handler handler = {.ctx = &life->booking, .each = book};
    struct semel_inbox inbox;
    struct semel_pump pump;
    struct semel_error err;

    semel__inbox_init(&inbox, life->store, &life->policy, &handler, &life->rng, semel__str(life->owner));
    semel__pump_init(&pump, &inbox, life->broker, &rules);
    semel__route_breaker_init(&pump.own, BREAKER_FAILURES, BREAKER_FIRST_US, BREAKER_CEILING_US);
    pump.batch_max = BATCH;
    pump.wait_ms = WAIT_MS;
    pump.later_ms = LATER_MS;
    while (!demo_worker_stopping()) {
        size_t n;
        if (semel__pump_step(&pump, semel__now(&semel__clock_real), &n, &err) != SEMEL_OK)
            fprintf(stderr, "%s: step: %s\n", life->owner, err.text);
        if (semel__pump_tick(&pump, semel__now(&semel__clock_real), &n, &err) != SEMEL_OK)
            fprintf(stderr, "%s: tick: %s\n", life->owner, err.text);
    }
    semel__pump_done(&pump);
    semel__inbox_done(&inbox);
}

int demo_worker_run(int64_t seed, int64_t number)
{
    struct life life = {.booking.seed = seed};
    struct semel_error err = {0};
    semel_status status = SEMEL_RETRY;

    demo_worker_listen();
    snprintf(life.owner, sizeof life.owner, "worker-%lld-%ld", (long long)number, (long)getpid());
    semel__random_seed(&life.rng, (uint64_t)seed ^ (uint64_t)number << 32);
    semel__arena_init(&life.arena, ORDER_BYTES);
    semel__arena_init(&life.booking.arena, ORDER_BYTES);
    for (int i = 0; i < OPEN_TRIES && status == SEMEL_RETRY && !demo_worker_stopping(); i++) {
        status = open_all(&life, &err);
        if (status == SEMEL_RETRY)
            poll(NULL, 0, OPEN_AGAIN_MS);
    }
    if (status == SEMEL_OK)
        pump(&life);
    else if (!demo_worker_stopping())
        fprintf(stderr, "%s: %s\n", life.owner, err.text);
    if (life.broker != NULL)
        semel_broker_close(life.broker);
    if (life.store != NULL)
        semel_store_close(life.store);
    semel__arena_done(&life.booking.arena);
    semel__arena_done(&life.arena);
    return status == SEMEL_OK || demo_worker_stopping() ? CLI_OK : CLI_STORE;
}
