/* SPDX-License-Identifier: MIT
 *
 * three_lines.c: an application that has its own SQLite connection and its own transactions, and counts orders. Three
 * lines make each order count once, however often it is delivered; they are marked 1, 2 and 3.
 *
 * usage: three_lines FILE.db
 */
#include <semel/semel.h>
#include <sqlite3.h>
#include <stdio.h>

static const char *const orders[][2] = {{"order-1", "tea"}, {"order-2", "coffee"}, {"order-1", "tea"}};

static int run(sqlite3 *db, const char *sql, const char *value)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL);
    if (rc == SQLITE_OK && value != NULL)
        sqlite3_bind_text(stmt, 1, value, -1, SQLITE_TRANSIENT);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    sqlite3_finalize(stmt);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

static int count(sqlite3 *db, const char *item)
{
    return run(db, "INSERT INTO sold (item, n) VALUES (?1, 1) ON CONFLICT (item) DO UPDATE SET n = n + 1", item);
}

/* One delivery. 0: it may be acknowledged. */
static int handle(sqlite3 *db, struct semel *s, const struct semel_msg *msg, const char *item)
{
    struct semel_verdict v;
    struct semel_error err;
    int rc = run(db, "BEGIN IMMEDIATE", NULL);
    if (rc == SQLITE_OK && semel_inbox_begin(s, msg, &v, &err) != SEMEL_OK) /* 1 */
        rc = SQLITE_ERROR;
    if (rc == SQLITE_OK && v.act == SEMEL_RUN) /* 2 */
        rc = count(db, item);
    if (rc == SQLITE_OK && v.act == SEMEL_RUN && semel_inbox_done(s, msg, semel_str(NULL), &err) != SEMEL_OK) /* 3 */
        rc = SQLITE_ERROR;
    if (rc == SQLITE_OK)
        rc = run(db, "COMMIT", NULL);
    if (rc != SQLITE_OK) {
        run(db, "ROLLBACK", NULL);
        return -1;
    }
    printf("%.*s: %s, %s\n", (int)msg->id.n, msg->id.p, semel_act_name(v.act), semel_why_name(v.why));
    return v.act == SEMEL_LATER ? -1 : 0;
}

static int print_sold(void *ctx, int n, char **values, char **names)
{
    (void)ctx;
    (void)n;
    (void)names;
    printf("sold %s %s\n", values[1], values[0]);
    return 0;
}

static int application(sqlite3 *db)
{
    struct semel *s = NULL;
    struct semel_error err;
    int code = 0;
    if (semel_wrap_sqlite(&s, db, SEMEL_MIGRATE, &err) != SEMEL_OK) {
        fprintf(stderr, "three_lines: %s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        struct semel_msg msg;
        semel_msg_init(&msg);
        msg.consumer = semel_str("shop");
        msg.id = semel_str(orders[i][0]);
        msg.payload = semel_str(orders[i][1]);
        code |= handle(db, s, &msg, orders[i][1]) != 0;
    }
    semel_close(s);
    sqlite3_exec(db, "SELECT item, n FROM sold ORDER BY item", print_sold, NULL, NULL);
    return code;
}

int main(int argc, char **argv)
{
    sqlite3 *db = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: three_lines FILE.db\n");
        return 2;
    }
    int rc = sqlite3_open(argv[1], &db);
    if (rc == SQLITE_OK)
        rc = run(db, "PRAGMA journal_mode = WAL", NULL);
    if (rc == SQLITE_OK)
        rc = run(db, "CREATE TABLE IF NOT EXISTS sold (item TEXT PRIMARY KEY, n INTEGER NOT NULL)", NULL);
    if (rc != SQLITE_OK)
        fprintf(stderr, "three_lines: %s\n", sqlite3_errmsg(db));
    int code = rc == SQLITE_OK ? application(db) : 1;
    sqlite3_close(db);
    return code;
}
