/* SPDX-License-Identifier: MIT
 *
 * server.c: private PostgreSQL servers for tests. See server.h.
 *
 * Invariants: a server that this process started is a child of it, and known by its pid; the folder has a leash before
 * the server starts, so that nothing is left behind whenever the test dies.
 */
#define _GNU_SOURCE /* pipe2 */
#include "pg/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "pg/program.h"

#define READY_MS 60000
#define STEP_MS 5
#define PORT_TRIES 5

/* ---- the end ------------------------------------------------------------------------------------------ */

static void print_log(const struct pg_server *server)
{
    char text[4096];
    int fd = open(server->log, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, end < 4095 ? 0 : end - 4095);

    if (n > 0)
        fprintf(stderr, "--- the end of its log\n%.*s---\n", (int)n, text);
    if (fd >= 0)
        close(fd);
}

static _Noreturn void fail_server(const struct pg_server *server, const char *what)
{
    fprintf(stderr, "PostgreSQL server of this test: %s\n", what);
    print_log(server);
    exit(1);
}

static void put_on_leash(struct pg_server *server)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        fail_server(server, "no pipe");
    server->leash = ends[1];
    server->leash_pid = fork();
    if (server->leash_pid == 0) {
        setsid(); /* what is sent to the test's group does not concern it */
        if (dup2(ends[0], 0) == 0)
            execl("/bin/sh", "sh", PG_LEASH, server->dir, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    if (server->leash_pid < 0)
        fail_server(server, "no process for its leash");
}

void pg_server_done(struct pg_server *server)
{
    int status;

    if (server->dir[0] == '\0')
        return;
    if (server->pid != 0)
        pg_server_stop(server, PG_STOP_IMMEDIATE);
    close(server->leash);
    while (waitpid(server->leash_pid, &status, 0) < 0 && errno == EINTR)
        ;
    *server = (struct pg_server){0};
}

/* ---- the folder --------------------------------------------------------------------------------------- */

static void make_folder(struct pg_server *server, unsigned flags)
{
    const char *tmp = getenv("TMPDIR");

    *server = (struct pg_server){.flags = flags};
    /* The path of a unix socket has no room for a long one. */
    snprintf(server->dir, sizeof server->dir, "%s/semel-pg-XXXXXX", tmp != NULL && strlen(tmp) < 32 ? tmp : "/tmp");
    if (mkdtemp(server->dir) == NULL) {
        server->dir[0] = '\0';
        fail_server(server, "no folder for it");
    }
    snprintf(server->data, sizeof server->data, "%s/data", server->dir);
    snprintf(server->log, sizeof server->log, "%s/log", server->dir);
    put_on_leash(server);
    pg_program_own(server->dir);
}

/* The template, made by the first who needs it; the lock is for the others, who wait. */
static void copy_template(struct pg_server *server)
{
    char template[512], lock[520], made[560];
    int fd;

    pg_program_template(template, sizeof template);
    snprintf(lock, sizeof lock, "%s.lock", template);
    snprintf(made, sizeof made, "%s.%ld", template, (long)getpid());
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || flock(fd, LOCK_EX) != 0)
        fail_server(server, "no lock for the template of its data directory");
    if (access(template, F_OK) != 0) {
        /* Made in our own folder, because user postgres may not enter the build folder. */
        const char *const init[] = {"initdb",   "-D", server->data, "-A",         "trust",     "-U",
                                    "postgres", "-E", "UTF8",       "--locale=C", "--no-sync", NULL};
        if (!pg_program_run(PG_AS_SERVER, server->log, init) ||
            !pg_program_run(PG_AS_OURSELVES, server->log,
                            (const char *const[]){"cp", "-a", server->data, made, NULL}) ||
            rename(made, template) != 0)
            fail_server(server, "initdb, or the copy of its work, failed");
    } else if (!pg_program_run(PG_AS_OURSELVES, server->log,
                               (const char *const[]){"cp", "-a", "--reflink=auto", template, server->data, NULL})) {
        fail_server(server, "the template of its data directory cannot be copied");
    }
    close(fd);
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static void launch(struct pg_server *server)
{
    char port[16], sockets[96];
    const char *argv[16 + 2 * PG_SERVER_SETTINGS] = {"postgres",
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
    snprintf(sockets, sizeof sockets, "unix_socket_directories=%s", server->dir);
    for (int i = 0; i < server->n_settings; i++) {
        argv[n++] = "-c";
        argv[n++] = server->settings[i];
    }
    argv[n] = NULL;
    server->pid = pg_program_start(PG_AS_SERVER, server->log, argv);
    if (server->pid < 0)
        fail_server(server, "no process for it");
}

/* False: it has ended. */
static bool wait_ready(struct pg_server *server)
{
    char conninfo[PG_SERVER_TEXT];

    pg_server_conninfo(server, NULL, conninfo);
    for (int waited_ms = 0; PQping(conninfo) != PQPING_OK; waited_ms += STEP_MS) {
        int status;
        if (waitpid(server->pid, &status, WNOHANG) == server->pid) {
            server->pid = 0;
            return false;
        }
        if (waited_ms > READY_MS)
            fail_server(server, "it does not become ready");
        poll(NULL, 0, STEP_MS);
    }
    return true;
}

void pg_server_again(struct pg_server *server)
{
    /* After a kill, the last of the old processes may need a moment to notice. */
    for (int tries = 0; tries < 100; tries++) {
        launch(server);
        if (wait_ready(server))
            return;
        poll(NULL, 0, 50);
    }
    fail_server(server, "it does not start again");
}

static void first_start(struct pg_server *server)
{
    for (int tries = 0; tries < PORT_TRIES; tries++) {
        server->port = pg_program_port(); /* somebody else may take it before we do */
        launch(server);
        if (wait_ready(server))
            return;
    }
    fail_server(server, "it does not start");
}

void pg_server_start_with(struct pg_server *server, unsigned flags, const char *const *settings)
{
    pg_program_need();
    make_folder(server, flags);
    for (; settings != NULL && *settings != NULL && server->n_settings < PG_SERVER_SETTINGS; settings++)
        server->settings[server->n_settings++] = *settings;
    copy_template(server);
    first_start(server);
}

void pg_server_start(struct pg_server *server, unsigned flags)
{
    pg_server_start_with(server, flags, NULL);
}

/* ---- stopping ----------------------------------------------------------------------------------------- */

void pg_server_stop(struct pg_server *server, enum pg_stop how)
{
    static const int signals[] = {[PG_STOP_FAST] = SIGINT, [PG_STOP_IMMEDIATE] = SIGQUIT, [PG_STOP_KILL] = SIGKILL};
    int status;

    if (server->pid == 0)
        return;
    if (how == PG_STOP_KILL)
        pg_program_kill_children(server->pid);
    kill(server->pid, signals[how]);
    for (int waited_ms = 0; waitpid(server->pid, &status, WNOHANG) != server->pid; waited_ms += STEP_MS) {
        if (waited_ms > READY_MS)
            fail_server(server, "it does not stop");
        poll(NULL, 0, STEP_MS);
    }
    server->pid = 0;
}

void pg_server_restart(struct pg_server *server, enum pg_stop how)
{
    pg_server_stop(server, how);
    pg_server_again(server);
}

/* ---- standbys ----------------------------------------------------------------------------------------- */

void pg_server_standby(struct pg_server *standby, struct pg_server *primary, unsigned flags)
{
    char conninfo[PG_SERVER_TEXT], named[PG_SERVER_TEXT + 32];

    pg_program_need();
    make_folder(standby, flags);
    snprintf(named, sizeof named, "%s application_name=standby", pg_server_conninfo(primary, NULL, conninfo));
    if (!pg_program_run(PG_AS_SERVER, standby->log,
                        (const char *const[]){"pg_basebackup", "-D", standby->data, "-d", named, "-R", "-X", "stream",
                                              "-c", "fast", "--no-sync", NULL}))
        fail_server(standby, "pg_basebackup failed");
    first_start(standby);
}

void pg_server_promote(struct pg_server *standby)
{
    pg_server_sql(standby, NULL, "SELECT pg_promote(true, 60)");
    for (int waited_ms = 0; pg_server_ask(standby, NULL, "SELECT pg_is_in_recovery()::int") != 0;
         waited_ms += STEP_MS) {
        if (waited_ms > READY_MS)
            fail_server(standby, "it is not promoted");
        poll(NULL, 0, STEP_MS);
    }
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
