/* SPDX-License-Identifier: MIT
 *
 * handle_pg.c: the handles of a test on PostgreSQL. The contract stands in handle_pg.h.
 */
#include "unit/handle_pg.h"

#include <stdlib.h>

#include <libpq-fe.h>

#include "support/world_pg.h"

#define DATABASE "handle"

static void add_effects(const char *url)
{
    (void)url;
    pg_server_sql(&world_server, "model", "CREATE TABLE effect (id text NOT NULL)");
}

static void up(struct handle *d)
{
    char url[PG_SERVER_TEXT], conninfo[PG_SERVER_TEXT];
    PGconn *conn;
    world_pg_need(add_effects);
    world_pg_database(DATABASE, url);
    if (!d->wrapped) {
        assert_fine(d, semel__handle_open(&d->s, url, 0, &d->options, &d->err));
        return;
    }
    d->theirs = conn = PQconnectdb(pg_server_conninfo(&world_server, DATABASE, conninfo));
    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    assert_fine(d, semel_wrap_pg(&d->s, conn, 0, &d->err));
}

static void down(struct handle *d)
{
    PGconn *theirs = d->theirs;
    if (theirs == NULL)
        return;
    assert_int_equal(PQstatus(theirs), CONNECTION_OK); /* it is ours */
    PQfinish(theirs);
}

/* The SQLSTATE, as digits of base 36. */
static int try(struct handle *d, const char *text)
{
    PGresult *result = PQexec(semel_native(d->s), text);
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    int code = state != NULL ? (int)strtol(state, NULL, 36) : 0;
    PQclear(result);
    return code;
}

static int64_t ask(struct handle *d, const char *text)
{
    PGresult *result = PQexec(semel_native(d->s), text);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQresultErrorMessage(result));
    int64_t value = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return value;
}

static void passed(struct handle *d, int64_t us)
{
    char text[160];
    snprintf(text, sizeof text,
             "UPDATE semel.idempotency SET lease_until = lease_until - %lld * interval '1 microsecond'", (long long)us);
    if (d->wrapped)
        assert_int_equal(try(d, text), 0);
}

/* 23000: a begin has no end; 55000: an end was refused. */
static bool refused(struct handle *d)
{
    int code = try(d, "COMMIT");
    return code == strtol("23000", NULL, 36) || code == strtol("55000", NULL, 36);
}

const struct handle_db handle_pg = {
    .keys = "semel.idempotency",
    .up = up,
    .down = down,
    .run = try,
    .ask = ask,
    .passed = passed,
    .refused = refused,
};
