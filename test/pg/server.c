/* SPDX-License-Identifier: MIT
 *
 * server.c: private PostgreSQL servers for tests. See server.h.
 */
#include "pg/server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "pg/program.h"

/* ---- the folder --------------------------------------------------------------------------------------- */

/* The template, made by the first who needs it; the lock is for the others, who wait. */
static void copy_template(struct pg_server *server)
{
    const struct server_process *process = &server->process;
    char template[512], lock[520], made[560], initdb[PG_PROGRAM_TEXT];
    int fd;

    pg_program_template(template, sizeof template);
    snprintf(lock, sizeof lock, "%s.lock", template);
    snprintf(made, sizeof made, "%s.%ld", template, (long)getpid());
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || flock(fd, LOCK_EX) != 0)
        server_fail(process, "no lock for the template of its data directory");
    if (access(template, F_OK) != 0) {
        /* Made in our own folder, because user postgres may not enter the build folder. */
        const char *const init[] = {pg_program("initdb", initdb),
                                    "-D",
                                    server->data,
                                    "-A",
                                    "trust",
                                    "-U",
                                    "postgres",
                                    "-E",
                                    "UTF8",
                                    "--locale=C",
                                    "--no-sync",
                                    NULL};
        if (!server_run(process, SERVER_AS_ITSELF, init) ||
            !server_run(process, SERVER_AS_OURSELVES, (const char *const[]){"cp", "-a", server->data, made, NULL}) ||
            rename(made, template) != 0)
            server_fail(process, "initdb, or the copy of its work, failed");
    } else if (!server_run(process, SERVER_AS_OURSELVES,
                           (const char *const[]){"cp", "-a", "--reflink=auto", template, server->data, NULL})) {
        server_fail(process, "the template of its data directory cannot be copied");
    }
    close(fd);
}

bool pg_server_disk(const struct pg_server *server, const char *dir, const char *options)
{
    if (mkdir(dir, 0700) != 0)
        return false;
    if (mount("tmpfs", dir, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0 || chmod(dir, 0700) != 0 ||
        chown(dir, server->process.uid, server->process.gid) != 0) {
        rmdir(dir);
        return false;
    }
    return true;
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static void prepare(void *at)
{
    struct pg_server *server = at;

    server->port = server_port();
}

static void launch(void *at)
{
    struct pg_server *server = at;
    char postgres[PG_PROGRAM_TEXT], port[16], sockets[96];
    const char *argv[16 + 2 * PG_SERVER_SETTINGS] = {pg_program("postgres", postgres),
                                                     "-D",
                                                     server->data,
                                                     "-p",
                                                     port,
                                                     "-c",
                                                     sockets,
                                                     "-c",
                                                     "listen_addresses=127.0.0.1",
                                                     "-c",
                                                     "dynamic_shared_memory_type=mmap",
                                                     "-c",
                                                     server->flags & PG_SERVER_NO_FSYNC ? "fsync=off" : "fsync=on"};
    size_t n = 13;

    snprintf(port, sizeof port, "%d", server->port);
    snprintf(sockets, sizeof sockets, "unix_socket_directories=%s", server->process.dir);
    for (int i = 0; i < server->n_settings; i++) {
        argv[n++] = "-c";
        argv[n++] = server->settings[i];
    }
    server_launch(&server->process, argv);
}

static bool answers(void *at)
{
    const struct pg_server *server = at;
    char conninfo[PG_SERVER_TEXT];

    return PQping(pg_server_conninfo(server, NULL, conninfo)) == PQPING_OK;
}

static const struct server_kind kind = {.name = "PostgreSQL",
                                        .folder = "pg",
                                        .user = "postgres",
                                        .leash = PG_LEASH,
                                        .death = SIGQUIT,
                                        .prepare = prepare,
                                        .launch = launch,
                                        .answers = answers};

static void make(struct pg_server *server, unsigned flags)
{
    pg_program_need();
    *server = (struct pg_server){.flags = flags};
    server_make(&server->process, &kind);
    snprintf(server->data, sizeof server->data, "%s/data", server->process.dir);
}

void pg_server_start_with(struct pg_server *server, unsigned flags, const char *const *settings)
{
    make(server, flags);
    for (; settings != NULL && *settings != NULL && server->n_settings < PG_SERVER_SETTINGS; settings++)
        server->settings[server->n_settings++] = *settings;
    copy_template(server);
    server_start(&server->process);
}

void pg_server_start(struct pg_server *server, unsigned flags)
{
    pg_server_start_with(server, flags, NULL);
}

void pg_server_again(struct pg_server *server)
{
    /* After a kill, the last of the old processes may need a moment to notice. */
    for (int tries = 0; tries < 100; tries++) {
        if (server_up(&server->process))
            return;
        poll(NULL, 0, 50);
    }
    server_fail(&server->process, "it does not start again");
}

/* ---- stopping ----------------------------------------------------------------------------------------- */

void pg_server_stop(struct pg_server *server, enum pg_stop how)
{
    static const int signals[] = {[PG_STOP_FAST] = SIGINT, [PG_STOP_IMMEDIATE] = SIGQUIT, [PG_STOP_KILL] = SIGKILL};

    if (how == PG_STOP_KILL && server->process.pid != 0)
        pg_program_kill_children(server->process.pid);
    server_stop(&server->process, signals[how]);
}

void pg_server_restart(struct pg_server *server, enum pg_stop how)
{
    pg_server_stop(server, how);
    pg_server_again(server);
}

void pg_server_done(struct pg_server *server)
{
    server_done(&server->process, SIGQUIT);
    *server = (struct pg_server){0};
}

/* ---- standbys ----------------------------------------------------------------------------------------- */

void pg_server_standby(struct pg_server *standby, struct pg_server *primary, unsigned flags)
{
    char program[PG_PROGRAM_TEXT], conninfo[PG_SERVER_TEXT], named[PG_SERVER_TEXT + 32];

    make(standby, flags);
    snprintf(named, sizeof named, "%s application_name=standby", pg_server_conninfo(primary, NULL, conninfo));
    if (!server_run(&standby->process, SERVER_AS_ITSELF,
                    (const char *const[]){pg_program("pg_basebackup", program), "-D", standby->data, "-d", named, "-R",
                                          "-X", "stream", "-c", "fast", "--no-sync", NULL}))
        server_fail(&standby->process, "pg_basebackup failed");
    server_start(&standby->process);
}

static bool is_promoted(void *at)
{
    return pg_server_ask(at, NULL, "SELECT pg_is_in_recovery()::int") == 0;
}

void pg_server_promote(struct pg_server *standby)
{
    pg_server_sql(standby, NULL, "SELECT pg_promote(true, 60)");
    if (!server_wait(&standby->process, &standby->process.pid, is_promoted, standby))
        server_fail(&standby->process, "it ends instead of being promoted");
}

/* ---- talking to it ------------------------------------------------------------------------------------ */

const char *pg_server_conninfo(const struct pg_server *server, const char *database, char out[PG_SERVER_TEXT])
{
    snprintf(out, PG_SERVER_TEXT, "host=127.0.0.1 port=%d user=postgres connect_timeout=30 dbname=%s", server->port,
             database != NULL ? database : "postgres");
    return out;
}

const char *pg_server_url(const struct pg_server *server, const char *database, char out[PG_SERVER_TEXT])
{
    snprintf(out, PG_SERVER_TEXT, "postgres://postgres@127.0.0.1:%d/%s", server->port,
             database != NULL ? database : "postgres");
    return out;
}

static void say_nothing(void *ctx, const PGresult *notice)
{
    (void)ctx;
    (void)notice;
}

static PGresult *run_sql(const struct pg_server *server, PGconn **ret_conn, const char *database, const char *sql)
{
    char conninfo[PG_SERVER_TEXT];
    PGconn *conn = PQconnectdb(pg_server_conninfo(server, database, conninfo));
    PGresult *result;

    PQsetNoticeReceiver(conn, say_nothing, NULL);
    result = PQexec(conn, sql);
    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK) {
        fprintf(stderr, "%s: %s\n", sql, PQerrorMessage(conn));
        exit(1);
    }
    *ret_conn = conn;
    return result;
}

void pg_server_sql(const struct pg_server *server, const char *database, const char *sql)
{
    PGconn *conn;
    PGresult *result = run_sql(server, &conn, database, sql);

    PQclear(result);
    PQfinish(conn);
}

long long pg_server_ask(const struct pg_server *server, const char *database, const char *sql)
{
    PGconn *conn;
    PGresult *result = run_sql(server, &conn, database, sql);
    long long n = 0;

    if (PQntuples(result) < 1 || PQgetisnull(result, 0, 0)) {
        fprintf(stderr, "%s: no number\n", sql);
        exit(1);
    }
    n = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    PQfinish(conn);
    return n;
}

void pg_server_database(struct pg_server *server, const char *name)
{
    char sql[128];

    snprintf(sql, sizeof sql, "DROP DATABASE IF EXISTS \"%.40s\" WITH (FORCE)", name);
    pg_server_sql(server, NULL, sql);
    snprintf(sql, sizeof sql, "CREATE DATABASE \"%.40s\"", name);
    pg_server_sql(server, NULL, sql);
}
