/* SPDX-License-Identifier: MIT
 *
 * pooler.c: a private pgbouncer. See pooler.h.
 */
#include "pg/pooler.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "pg/program.h"

#define READY_MS 30000
#define STEP_MS 5

static const char *find_pgbouncer(void)
{
    static const char *const places[] = {"/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"};

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    pg_program_skip("pgbouncer is not installed (apt-get install pgbouncer)");
}

static void write_settings(const char *path, const struct pg_server *server, int port, int connections)
{
    FILE *f = fopen(path, "we");

    if (f == NULL) {
        fprintf(stderr, "pgbouncer of this test: %s cannot be written\n", path);
        exit(1);
    }
    fprintf(f,
            "[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            "listen_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
            "default_pool_size = %d\nmax_client_conn = 200\nserver_round_robin = 1\n",
            server->port, port, connections);
    fclose(f);
}

void pg_pooler_start(struct pg_pooler *pooler, const struct pg_server *server, int connections)
{
    char log[128], conninfo[128];
    const char *program = find_pgbouncer();

    pooler->port = pg_program_port();
    pooler->connections = connections;
    snprintf(pooler->settings, sizeof pooler->settings, "%s/pgbouncer.ini", server->dir);
    snprintf(log, sizeof log, "%s/pgbouncer.log", server->dir);
    write_settings(pooler->settings, server, pooler->port, connections);
    pooler->pid = pg_program_start(PG_AS_SERVER, log, (const char *const[]){program, pooler->settings, NULL});
    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%d user=postgres dbname=postgres", pooler->port);
    for (int waited_ms = 0; PQping(conninfo) != PQPING_OK; waited_ms += STEP_MS) {
        int status;
        if (waited_ms > READY_MS || waitpid(pooler->pid, &status, WNOHANG) == pooler->pid) {
            fprintf(stderr, "pgbouncer of this test does not become ready; see %s\n", log);
            exit(1);
        }
        poll(NULL, 0, STEP_MS);
    }
}

void pg_pooler_point(struct pg_pooler *pooler, const struct pg_server *server)
{
    write_settings(pooler->settings, server, pooler->port, pooler->connections);
    kill(pooler->pid, SIGHUP);
}

void pg_pooler_done(struct pg_pooler *pooler)
{
    int status;

    if (pooler->pid == 0)
        return;
    kill(pooler->pid, SIGKILL);
    while (waitpid(pooler->pid, &status, 0) < 0 && errno == EINTR)
        ;
    *pooler = (struct pg_pooler){0};
}
