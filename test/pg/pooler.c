/* SPDX-License-Identifier: MIT
 *
 * pooler.c: a private pgbouncer. See pooler.h.
 */
#include "pg/pooler.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <libpq-fe.h>

#define SETTINGS "pgbouncer.ini"

static const char *find_pgbouncer(void)
{
    static const char *const places[] = {"/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"};

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    server_skip("pgbouncer is not installed (apt-get install pgbouncer)");
}

static void write_settings(const struct pg_pooler *pooler, const struct pg_server *server)
{
    char text[512];

    snprintf(text, sizeof text,
             "[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
             "listen_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
             "default_pool_size = %d\nmax_client_conn = 200\nserver_round_robin = 1\n",
             server->port, pooler->port, pooler->connections);
    server_write(pooler->home, SETTINGS, text);
}

static bool answers(void *at)
{
    const struct pg_pooler *pooler = at;
    char conninfo[128];

    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%d user=postgres dbname=postgres", pooler->port);
    return PQping(conninfo) == PQPING_OK;
}

void pg_pooler_start(struct pg_pooler *pooler, const struct pg_server *server, int connections)
{
    const char *program = find_pgbouncer();

    *pooler = (struct pg_pooler){.home = &server->process, .port = server_port(), .connections = connections};
    write_settings(pooler, server);
    pooler->pid = server_spawn(pooler->home, SERVER_AS_ITSELF, (const char *const[]){program, SETTINGS, NULL});
    if (!server_wait(pooler->home, &pooler->pid, answers, pooler))
        server_fail(pooler->home, "its pgbouncer does not start");
}

void pg_pooler_point(struct pg_pooler *pooler, const struct pg_server *server)
{
    write_settings(pooler, server);
    kill(pooler->pid, SIGHUP);
}

void pg_pooler_done(struct pg_pooler *pooler)
{
    server_end(pooler->home, &pooler->pid, SIGKILL);
    *pooler = (struct pg_pooler){0};
}
