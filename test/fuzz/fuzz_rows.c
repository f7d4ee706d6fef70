/* SPDX-License-Identifier: MIT
 *
 * fuzz_rows.c: stored rows that other hands have written.
 *
 * The input: one byte chooses the status of an otherwise sound row "m"; then, until the end, a column's number and a
 * typed value each (see value()), planted by plain SQL into a copy of the schema without STRICT, NOT NULL and CHECK.
 *
 * What must hold, whatever stands in the row: no crash and no failed assertion; a damaged row is called damaged, is
 * never run and never changed, and no command is obeyed for it; the sound row beside it is retried, and a new message
 * runs. (Not when the planted numbers collide with those that are drawn next: that stops the route, and charges
 * nobody.)
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "core/inbox.h"
#include "store/migrations.h"
#include "store/sqlite_store.h"

#define NOW INT64_C(1700000000000000)
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_rows.c:%d: does not hold: %s\n", line, condition);
    abort();
}

/* ---- a database without its checks -------------------------------------------------------------------- */

/* Blanks what follows `before` wherever the two stand together. */
static void drop_word(char *sql, const char *before, const char *word)
{
    char both[64];
    snprintf(both, sizeof both, "%s%s", before, word);
    for (char *p = sql; (p = strstr(p, both)) != NULL;)
        memset(p + strlen(before), ' ', strlen(word));
}

static void run_sql(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
        return;
    fprintf(stderr, "%s\n", sqlite3_errmsg(db));
    abort();
}

static sqlite3 *loose_database(void)
{
    sqlite3 *db = NULL;
    MUST(sqlite3_open(":memory:", &db) == SQLITE_OK);
    run_sql(db, "PRAGMA ignore_check_constraints = ON");
    for (size_t i = 0; i < semel__sqlite_migrations_n; i++) {
        char note[100], *sql = strdup(semel__sqlite_migrations[i].sql);
        MUST(sql != NULL);
        drop_word(sql, "TEXT ", "NOT NULL");
        drop_word(sql, "INTEGER ", "NOT NULL");
        drop_word(sql, "BLOB ", "NOT NULL");
        drop_word(sql, ") ", "STRICT,");
        drop_word(sql, ") ", "STRICT");
        run_sql(db, sql);
        free(sql);
        snprintf(note, sizeof note, "INSERT INTO semel_schema VALUES (%d, 'x', 1)", semel__sqlite_migrations[i].number);
        run_sql(db, note);
    }
    return db;
}

static void empty(sqlite3 *db)
{
    run_sql(db, "DELETE FROM semel_inbox; DELETE FROM semel_conflict; DELETE FROM semel_order_key;"
                "DELETE FROM semel_business_key; DELETE FROM semel_attempt; DELETE FROM semel_watermark;"
                "DELETE FROM semel_audit; UPDATE semel_counter SET value = 1000");
}

/* ---- the planted row ---------------------------------------------------------------------------------- */

static const char *const columns[] = {
    "arrival",         "consumer",   "source",       "message_id",  "type",        "status",      "attempts",
    "attempts_before", "retries",    "alone",        "fingerprint", "order_key",   "version",     "message_time",
    "received_at",     "updated_at", "processed_at", "due_at",      "lease_owner", "lease_until", "lease_token",
    "error_class",     "error_text", "outcome",      "position",    "headers",     "payload",     "traceparent",
};
#define COLUMNS (sizeof columns / sizeof columns[0])

struct bytes {
    const unsigned char *p;
    size_t n;
};

static unsigned next(struct bytes *in)
{
    if (in->n == 0)
        return 0;
    in->n--;
    return *in->p++;
}

static const char *const words[] = {"processing", "completed", "failed",    "waiting",     "rejected", "unknown",
                                    "dead",       "stale",     "prevented", "quarantined", "absent",   "",
                                    "k",          "gap",       "blocked",   "transient"};

/* Binds a value to parameter 1 as the next bytes say. */
static void value(struct bytes *in, sqlite3_stmt *stmt)
{
    unsigned kind = next(in) & 7;
    size_t n = kind == 3 || kind == 4 ? next(in) : 0;
    int64_t number = 0;
    if (n > in->n)
        n = in->n;
    for (int i = 0; kind == 1 && i < 8; i++)
        number = (int64_t)((uint64_t)number << 8 | next(in));
    if (kind == 0)
        sqlite3_bind_null(stmt, 1);
    else if (kind == 1)
        sqlite3_bind_int64(stmt, 1, number);
    else if (kind == 2)
        sqlite3_bind_double(stmt, 1, (double)next(in) / 3);
    else if (kind == 3)
        sqlite3_bind_text(stmt, 1, (const char *)in->p, (int)n, SQLITE_TRANSIENT);
    else if (kind == 4)
        sqlite3_bind_blob(stmt, 1, in->p, (int)n, SQLITE_TRANSIENT);
    else if (kind == 5)
        sqlite3_bind_int64(stmt, 1, (int64_t)next(in) - 8);
    else if (kind == 6)
        sqlite3_bind_text(stmt, 1, words[next(in) & 15], -1, SQLITE_STATIC);
    else
        sqlite3_bind_int64(stmt, 1, NOW + ((int64_t)next(in) - 128) * 1000000);
    in->p += n;
    in->n -= n;
}

static void sound_row(sqlite3 *db, const char *id, unsigned status, int arrival)
{
    char sql[600];
    bool processing = status == 0, final = status == 1 || status == 4 || status == 7 || status == 8;
    bool due = status == 2 || status == 3;
    snprintf(
        sql, sizeof sql,
        "INSERT INTO semel_inbox (arrival, consumer, source, message_id, status, attempts, received_at, updated_at, "
        "processed_at, due_at, lease_owner, lease_until, lease_token, payload) "
        "VALUES (%d, 'c', 's', '%s', '%s', 1, %lld, %lld, %s, %s, %s, %s, %s, x'01')",
        arrival, id, words[status], (long long)NOW - 5, (long long)NOW - 5, final ? "5" : "NULL", due ? "5" : "NULL",
        processing ? "'w'" : "NULL", processing ? "5" : "NULL", processing ? "7" : "NULL");
    run_sql(db, sql);
}

/* Returns whether a number was planted that may collide with one that is drawn. */
static bool plant(sqlite3 *db, struct bytes *in)
{
    bool collides = false;
    sound_row(db, "m", next(in) % 10, 10);
    while (in->n > 0) {
        char sql[100];
        sqlite3_stmt *stmt = NULL;
        const char *column = columns[next(in) % COLUMNS];
        snprintf(sql, sizeof sql, "UPDATE semel_inbox SET %s = ?1 WHERE rowid <> 11", column);
        MUST(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) == SQLITE_OK);
        value(in, stmt);
        (void)sqlite3_step(stmt); /* one that is not even SQLite's is not planted */
        sqlite3_finalize(stmt);
        collides |= strcmp(column, "arrival") == 0 || strcmp(column, "lease_token") == 0;
    }
    run_sql(db, "DELETE FROM semel_inbox WHERE message_id = 'o'"); /* that one is to be new */
    return collides;
}

/* ---- everything that reads rows ----------------------------------------------------------------------- */

struct runs {
    unsigned m, n, o;
};

static semel_status count_run(void *ctx, struct semel_store *store, const struct semel__msg *m, int attempt,
                              struct semel__reply *reply, struct semel_error *err)
{
    struct runs *runs = ctx;
    (void)store;
    (void)attempt;
    (void)reply;
    (void)err;
    runs->m += semel__str_eqz(m->id, "m");
    runs->n += semel__str_eqz(m->id, "n") && semel__str_eqz(m->source, "s"); /* the planted row may be called so too */
    runs->o += semel__str_eqz(m->id, "o");
    return SEMEL_OK;
}

static int64_t clock_now(void *ctx)
{
    (void)ctx;
    return NOW;
}

static struct semel__msg message(const char *id)
{
    struct semel__msg m;
    semel__msg_init(&m);
    m.source = SEMEL_STR("s");
    m.id = semel__str(id);
    m.payload = SEMEL_STR("x");
    m.delivery = 1;
    return m;
}

static bool is_damaged(struct semel_store *store)
{
    struct semel_arena arena;
    struct semel_error err;
    int64_t now_us;
    struct semel_fetched item = {.source = SEMEL_STR("s"), .id = SEMEL_STR("m")};
    struct semel_fetch_batch batch = {.consumer = SEMEL_STR("c"), .items = &item, .n_items = 1};
    semel__arena_init(&arena, 1 << 22);
    MUST(semel_store_begin(store, SEMEL_TX_OWN, &now_us, &err) == SEMEL_OK);
    MUST(semel_store_fetch(store, &batch, &arena, &err) == SEMEL_OK);
    semel_store_rollback(store);
    if (item.present && !item.damaged)
        MUST(semel__row_check(&item.row, &err) == SEMEL_OK);
    semel__arena_done(&arena);
    return item.damaged;
}

static void scan_all(struct semel_store *store)
{
    for (int kind = SEMEL_SCAN_DUE; kind <= SEMEL_SCAN_ALL; kind++) {
        struct semel_scan scan = {.kind = (enum semel_scan_kind)kind,
                                  .consumer = SEMEL_STR("c"),
                                  .now_us = NOW,
                                  .token = 7,
                                  .order_key = SEMEL_STR("k"),
                                  .with_payload = true,
                                  .max = 10};
        struct semel_arena arena;
        struct semel_error err;
        struct semel_row *rows = NULL;
        size_t n = 0, damaged = 0;
        semel__arena_init(&arena, 1 << 22);
        MUST(semel_store_scan(store, &scan, &arena, &rows, &n, &damaged, &err) == SEMEL_OK);
        for (size_t i = 0; i < n; i++)
            MUST(semel__row_check(&rows[i], &err) == SEMEL_OK);
        semel__arena_done(&arena);
    }
}

static void command_all(struct semel_inbox *inbox, bool damaged)
{
    for (int kind = SEMEL_COMMAND_RETRY; kind <= SEMEL_COMMAND_RESOLVE; kind++) {
        struct semel_arena arena;
        struct semel_fetched found = {.source = SEMEL_STR("s"), .id = SEMEL_STR("m")};
        struct semel_fetch_batch batch = {.consumer = inbox->policy->consumer, .items = &found, .n_items = 1};
        struct semel_row row = {.source = found.source, .id = found.id, .version = SEMEL_NONE};
        struct semel_command_result result;
        struct semel_error err;
        int64_t now_us;
        semel__arena_init(&arena, 1 << 22);
        MUST(semel_store_begin(inbox->store, SEMEL_TX_OWN, &now_us, &err) == SEMEL_OK);
        (void)semel_store_fetch(inbox->store, &batch, &arena, &err);
        semel_store_rollback(inbox->store);
        if (found.present && !found.damaged)
            row = found.row;
        struct semel_command c = {.kind = (enum semel_command_kind)kind,
                                  .row = &row,
                                  .who = SEMEL_STR("ops"),
                                  .reason = SEMEL_STR("why"),
                                  .force = true};
        semel_status status = semel__inbox_command(inbox, &c, &result, &err);
        if (damaged)
            MUST(status == SEMEL_INVALID && !result.done);
        semel__arena_done(&arena);
    }
}

static void deliver(struct semel_inbox *inbox, bool damaged, bool sure)
{
    struct semel_settled settled[2];
    struct semel_error err;
    struct semel__msg msgs[] = {message("m"), message("o")};
    for (int delivery = 1; delivery <= 2; delivery++) {
        msgs[0].delivery = msgs[1].delivery = delivery;
        semel_status status = semel__inbox_process(inbox, msgs, 2, settled, &err);
        MUST(!sure || status == SEMEL_OK);
        if (damaged)
            MUST(settled[0].act == SEMEL_LATER);
        if (damaged && sure)
            MUST(settled[0].why == SEMEL_WHY_DAMAGED);
        if (sure)
            MUST(settled[1].act == SEMEL_ACK && settled[1].state == SEMEL_ROW_COMPLETED);
    }
}

static int64_t row_digest(sqlite3 *db)
{
    sqlite3_stmt *stmt = NULL;
    uint64_t h = 1469598103934665603u;
    MUST(sqlite3_prepare_v2(db, "SELECT * FROM semel_inbox WHERE consumer = 'c' AND source = 's' AND message_id = 'm'",
                            -1, &stmt, NULL) == SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW)
        for (int i = 0; i < sqlite3_column_count(stmt); i++) {
            h = (h ^ (unsigned)sqlite3_column_type(stmt, i)) * 1099511628211u;
            const unsigned char *p = sqlite3_column_blob(stmt, i);
            for (int k = 0; p != NULL && k < sqlite3_column_bytes(stmt, i); k++)
                h = (h ^ p[k]) * 1099511628211u;
        }
    sqlite3_finalize(stmt);
    return (int64_t)h;
}

static void exercise(struct semel_store *store, sqlite3 *db, bool sure)
{
    struct semel_policy policy;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_error err;
    struct runs runs = {0};
    const struct semel__handler handler = {.ctx = &runs, .each = count_run};
    size_t n;
    bool damaged = is_damaged(store);
    int64_t before = row_digest(db);

    semel__random_seed(&rng, 1);
    semel__policy_init(&policy, SEMEL_STR("c"));
    policy.order = SEMEL_ORDER_ARRIVAL;
    semel__inbox_init(&inbox, store, &policy, &handler, &rng, SEMEL_STR("w"));
    scan_all(store);
    deliver(&inbox, damaged, sure);
    semel_status status = semel__inbox_recover(&inbox, 10, &n, &err);
    MUST(!sure || status == SEMEL_OK);
    for (int i = 0; i < 3; i++)
        status = semel__inbox_work(&inbox, 10, &n, &err);
    MUST(!sure || (status == SEMEL_OK && runs.n == 1));
    command_all(&inbox, damaged);
    (void)semel__inbox_work(&inbox, 10, &n, &err);
    if (damaged) {
        MUST(runs.m == 0);
        MUST(row_digest(db) == before);
    }
    (void)semel__inbox_purge(&inbox, 10, &n, &err);
    scan_all(store);
    semel__inbox_done(&inbox);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static const struct semel_clock clock = {clock_now, NULL};
    static const struct semel_store_options options = {.clock = &clock};
    static struct semel_store *store; /* both live as long as the process: making them is most of the work */
    static sqlite3 *db;
    struct bytes in = {data, size};
    struct semel_error err;
    if (db == NULL) {
        db = loose_database();
        MUST(semel__store_sqlite_wrap(&store, db, &options, &err) == SEMEL_OK);
    }
    empty(db);
    sound_row(db, "n", 2, 11);
    bool collides = plant(db, &in);
    exercise(store, db, !collides);
    return 0;
}
