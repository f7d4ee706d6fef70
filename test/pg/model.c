/* SPDX-License-Identifier: MIT
 *
 * model.c: many databases alike. See model.h.
 */
#include "pg/model.h"

#include <stdio.h>
#include <stdlib.h>

#include <libpq-fe.h>

/* Whoever is still connected is sent away first, as by DROP DATABASE: the last words of a worker that was killed must
 * not end up in the next world. A clock of the SQL functions that a test has stopped goes again. The functions find
 * only names of pg_catalog: a test may plant hostile ones in `public`.
 * 1: empty; 0: it is no copy of the model any more. */
static const char reset[] =
    "CREATE FUNCTION model_print() RETURNS bigint LANGUAGE sql SET search_path = pg_catalog AS $$"
    "  SELECT sum(hashtext(x)::bigint) FROM ("
    "    SELECT relname::text || relkind::text FROM pg_class WHERE oid >= 16384 AND relname !~ '^pg_toast'"
    "    UNION ALL SELECT tgname::text || tgenabled::text FROM pg_trigger WHERE NOT tgisinternal"
    "    UNION ALL SELECT proname::text || md5(prosrc) FROM pg_proc WHERE oid >= 16384 AND prosrc NOT LIKE '%planted%'"
    "    UNION ALL SELECT 'setting' FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase"
    "              WHERE d.datname = current_database()"
    "    UNION ALL SELECT d.dattablespace::text FROM pg_database AS d WHERE d.datname = current_database()) AS t (x)"
    "$$;"
    "CREATE FUNCTION model_reset() RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog AS $$"
    "DECLARE "
    "  t record; "
    "BEGIN"
    "  LOOP"
    "    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity"
    "      WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend';"
    "    EXIT WHEN NOT FOUND;"
    "    PERFORM pg_sleep(0.002), pg_stat_clear_snapshot();"
    "  END LOOP;"
    "  IF pg_get_functiondef('semel._now'::regproc) <> (SELECT clock FROM public.model_mark) THEN"
    "    EXECUTE (SELECT clock FROM public.model_mark);"
    "  END IF;"
    "  IF public.model_print() <> (SELECT print FROM public.model_mark) THEN"
    "    RETURN 0;"
    "  END IF;"
    "  PERFORM set_config('session_replication_role', 'replica', true);"
    "  FOR t IN SELECT c.oid::regclass AS name, c.relkind AS kind FROM pg_class AS c JOIN pg_namespace AS n ON n.oid ="
    "      c.relnamespace WHERE n.nspname IN ('semel', 'public') AND c.relkind IN ('r', 'S') AND c.relname NOT IN"
    "      ('schema', 'timeline', 'timeline_number_seq', 'model_mark') LOOP"
    "    IF t.kind = 'r' THEN"
    "      EXECUTE format('DELETE FROM %s', t.name);"
    "    ELSE"
    "      PERFORM setval(t.name, (SELECT seqstart FROM pg_sequence WHERE seqrelid = t.name), false);"
    "    END IF;"
    "  END LOOP;"
    "  RETURN 1;"
    "END $$;"
    "CREATE TABLE model_mark AS SELECT model_print() AS print, pg_get_functiondef('semel._now'::regproc) AS clock;"
    "UPDATE model_mark SET print = model_print()"; /* now that it is there itself */

void pg_model_seal(const struct pg_server *server)
{
    pg_server_sql(server, "model", reset);
}

/* False: it is not there, or no copy of the model any more. */
static bool emptied(const struct pg_server *server, const char *name)
{
    char conninfo[PG_SERVER_TEXT];
    PGconn *conn = PQconnectdb(pg_server_conninfo(server, name, conninfo));
    PGresult *result = PQexec(conn, "SELECT model_reset()");
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
