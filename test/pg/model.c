/* SPDX-License-Identifier: MIT
 *
 * model.c: many databases alike. See model.h.
 */
#include "pg/model.h"

#include <stdio.h>
#include <stdlib.h>

#include <libpq-fe.h>

void pg_model_seal(const struct pg_server *server)
{
    static char text[1 << 14];
    FILE *file = fopen(PG_MODEL, "r");

    if (file == NULL || fread(text, 1, sizeof text - 1, file) == 0) {
        fprintf(stderr, "%s cannot be read\n", PG_MODEL);
        exit(1);
    }
    fclose(file);
    pg_server_sql(server, "model", text);
}

/* False: it is not there, or no copy of the model any more. */
static bool emptied(const struct pg_server *server, const char *name)
{
    char conninfo[PG_SERVER_TEXT];
    PGconn *conn = PQconnectdb(pg_server_conninfo(server, name, conninfo));
    PGresult *result = PQexec(conn, "SELECT model.reset()");
    const bool done = PQresultStatus(result) == PGRES_TUPLES_OK && PQgetvalue(result, 0, 0)[0] == '1';

    PQclear(result);
    PQfinish(conn);
    return done;
}

void pg_model_copy(const struct pg_server *server, const char *name)
{
    char sql[128];

    if (emptied(server, name))
        return;
    snprintf(sql, sizeof sql, "DROP DATABASE IF EXISTS \"%.40s\" WITH (FORCE)", name);
    pg_server_sql(server, NULL, sql);
    snprintf(sql, sizeof sql, "CREATE DATABASE \"%.40s\" TEMPLATE model", name);
    pg_server_sql(server, NULL, sql);
}
