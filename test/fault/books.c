/* SPDX-License-Identifier: MIT
 *
 * books.c: plain SQL on the database of a process test. See books.h.
 */
#include "fault/books.h"

#include <stdlib.h>

#include <sqlite3.h>
#ifdef SEMEL_WITH_POSTGRES
#include <libpq-fe.h>
#endif

#include "fault/ledger.h"
#include "unit/unit.h"

struct books {
    sqlite3 *db; /* one of the two */
#ifdef SEMEL_WITH_POSTGRES
    PGconn *conn;
#endif
};

bool books_on_postgres(const char *url)
{
    return strncmp(url, "postgres", 8) == 0;
}

/* ---- SQLite ------------------------------------------------------------------------------------------- */

static void lite_open(struct books *books, const char *url)
{
    assert_int_equal(strncmp(url, "sqlite:", 7), 0);
    assert_int_equal(sqlite3_open_v2(url + 7, &books->db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    sqlite3_busy_timeout(books->db, 10000);
}

static void lite_run(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

static int64_t lite_count(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *stmt = NULL;
    int64_t n;

    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK || sqlite3_step(stmt) != SQLITE_ROW)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static size_t add(char *out, size_t n, size_t size, bool first_column, const char *text)
{
    n += (size_t)snprintf(out + n, size - n, "%s%s",
                          n == 0         ? ""
                          : first_column ? "\n"
                                         : "|",
                          text != NULL ? text : "-");
    assert_true(n < size);
    return n;
}

static void lite_text(sqlite3 *db, const char *sql, char *out, size_t size)
{
    sqlite3_stmt *stmt = NULL;
    size_t n = 0;

    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    while (sqlite3_step(stmt) == SQLITE_ROW)
        for (int i = 0; i < sqlite3_column_count(stmt); i++)
            n = add(out, n, size, i == 0, (const char *)sqlite3_column_text(stmt, i));
    sqlite3_finalize(stmt);
}

/* $1 is a parameter with a name here; they are numbered as they come. */
static void lite_line(sqlite3 *db, const char *sql, const char *const texts[3], long long d, int e)
{
    sqlite3_stmt *stmt = NULL;

    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    for (int i = 0; i < 3; i++)
        sqlite3_bind_text(stmt, i + 1, texts[i], -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 4, d);
    sqlite3_bind_int(stmt, 5, e);
    assert_int_equal(sqlite3_step(stmt), SQLITE_DONE);
    sqlite3_finalize(stmt);
}

/* ---- PostgreSQL --------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_POSTGRES

static const char pg_views[] =
    "CREATE VIEW semel_inbox AS SELECT * FROM semel.inbox; CREATE VIEW semel_attempt AS SELECT * FROM semel.attempt;"
    "CREATE VIEW semel_audit AS SELECT * FROM semel.audit; CREATE VIEW semel_outbox AS SELECT * FROM semel.outbox;"
    "CREATE VIEW semel_schema AS SELECT * FROM semel.schema";

static void no_notice(void *ctx, const PGresult *notice)
{
    (void)ctx;
    (void)notice;
}

/* Without the parameter that is Semel's own. */
static PGconn *pg_open(const char *url)
{
    char text[BOOKS_URL];
    PGconn *conn;

    snprintf(text, sizeof text, "%.*s", (int)(strstr(url, "?semel_") != NULL ? strcspn(url, "?") : strlen(url)), url);
    conn = PQconnectdb(text);

    if (PQstatus(conn) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(conn));
    PQsetNoticeReceiver(conn, no_notice, NULL);
    return conn;
}

static PGresult *pg_checked(PGconn *conn, const char *sql, PGresult *result)
{
    const ExecStatusType status = PQresultStatus(result);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    return result;
}

static int64_t pg_count(PGconn *conn, const char *sql)
{
    PGresult *result = pg_checked(conn, sql, PQexec(conn, sql));
    int64_t n = 0;

    if (PQntuples(result) == 0)
        fail_msg("%s: no row", sql);
    n = PQgetvalue(result, 0, 0)[0] == 't' ? 1 : strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return n;
}

static bool pg_ask(PGconn *conn, const char *sql, int64_t *ret)
{
    PGresult *result;
    bool given;

    if (PQstatus(conn) != CONNECTION_OK)
        PQreset(conn);
    result = PQexec(conn, sql);
    given = PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1;
    if (given)
        *ret = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return given;
}

static void pg_text(PGconn *conn, const char *sql, char *out, size_t size)
{
    PGresult *result = pg_checked(conn, sql, PQexec(conn, sql));
    size_t n = 0;

    for (int row = 0; row < PQntuples(result); row++)
        for (int i = 0; i < PQnfields(result); i++)
            n = add(out, n, size, i == 0, PQgetisnull(result, row, i) ? NULL : PQgetvalue(result, row, i));
    PQclear(result);
}

static void pg_line(PGconn *conn, const char *sql, const char *const texts[3], long long d, int e)
{
    char numbers[2][32];
    const char *values[5] = {texts[0], texts[1], texts[2], numbers[0], numbers[1]};

    snprintf(numbers[0], sizeof numbers[0], "%lld", d);
    snprintf(numbers[1], sizeof numbers[1], "%d", e);
    PQclear(pg_checked(conn, sql, PQexecParams(conn, sql, 5, NULL, values, NULL, NULL, 0)));
}

#endif

/* ---- either ------------------------------------------------------------------------------------------- */

#ifdef SEMEL_WITH_POSTGRES
#define EITHER(books, on_pg, on_lite) ((books)->db == NULL ? (on_pg) : (on_lite))
#else
#define EITHER(books, on_pg, on_lite) (on_lite)
#endif

struct books *books_open(const char *url)
{
    struct books *books = calloc(1, sizeof *books);

    assert_non_null(books);
#ifdef SEMEL_WITH_POSTGRES
    if (books_on_postgres(url)) {
        books->conn = pg_open(url);
        return books;
    }
#endif
    lite_open(books, url);
    return books;
}

void books_close(struct books *books)
{
    sqlite3_close(books->db);
#ifdef SEMEL_WITH_POSTGRES
    PQfinish(books->conn);
#endif
    free(books);
}

void books_run(struct books *books, const char *sql)
{
    EITHER(books, PQclear(pg_checked(books->conn, sql, PQexec(books->conn, sql))), lite_run(books->db, sql));
}

int64_t books_count(struct books *books, const char *sql)
{
    return EITHER(books, pg_count(books->conn, sql), lite_count(books->db, sql));
}

bool books_ask(struct books *books, const char *sql, int64_t *ret)
{
#ifdef SEMEL_WITH_POSTGRES
    if (books->conn != NULL)
        return pg_ask(books->conn, sql, ret);
#endif
    *ret = lite_count(books->db, sql);
    return true;
}

void books_text(struct books *books, const char *sql, char *out, size_t size)
{
    out[0] = '\0';
    EITHER(books, pg_text(books->conn, sql, out, size), lite_text(books->db, sql, out, size));
}

void books_line(struct books *books, const char *sql, const char *a, const char *b, const char *c, long long d, int e)
{
    const char *const texts[3] = {a, b, c};

    EITHER(books, pg_line(books->conn, sql, texts, d, e), lite_line(books->db, sql, texts, d, e));
}

void books_prepare(const char *url)
{
    struct books *books = books_open(url);

#ifdef SEMEL_WITH_POSTGRES
    if (books_on_postgres(url))
        books_run(books, pg_views);
#endif
    books_run(books, ledger_schema(url));
    books_close(books);
}
