/* SPDX-License-Identifier: MIT
 *
 * server.h: a private PostgreSQL server for a test: a fresh folder, a free port on loopback, nobody else in it.
 *
 * The data directory is a copy of a template that is initialised once a build folder. The server runs as user
 * postgres when the test runs as root, which PostgreSQL refuses. Connections are trusted; the superuser is
 * `postgres`. It listens on 127.0.0.1 and on a unix socket in its folder. Times and texts are UTC and C; fsync is on.
 *
 * Which server: the folder in SEMEL_PG_BIN, else the newest of Debian's. Its folder and its leash: server/process.h.
 */
#ifndef SEMEL_TEST_PG_SERVER_H
#define SEMEL_TEST_PG_SERVER_H

#include "server/process.h"

#define PG_SERVER_NO_FSYNC 1u /* a commit need not survive the machine: for tests that are about something else */

#define PG_SERVER_SETTINGS 16

struct pg_server {
    struct server_process process;
    char data[80];
    int port;
    unsigned flags;
    const char *settings[PG_SERVER_SETTINGS]; /* NAME=VALUE, borrowed; for every start from now on */
    int n_settings;
};

enum pg_stop {
    PG_STOP_FAST,      /* open transactions are rolled back */
    PG_STOP_IMMEDIATE, /* as after a crash; backends still tell their clients */
    PG_STOP_KILL       /* SIGKILL to all of its processes at once */
};

/* `server` is filled in anew. */
void pg_server_start(struct pg_server *server, unsigned flags);
/* The same with settings, ended by NULL: {"synchronous_commit=off", NULL}. */
void pg_server_start_with(struct pg_server *server, unsigned flags, const char *const *settings);
/* The end: stopped, and its folder removed. */
void pg_server_done(struct pg_server *server);

void pg_server_stop(struct pg_server *server, enum pg_stop how);
void pg_server_again(struct pg_server *server); /* starts a stopped one, on the same port */
void pg_server_restart(struct pg_server *server, enum pg_stop how);

/* A standby of `primary`, streaming, under the application name `standby`. It is asynchronous unless the primary's
 * synchronous_standby_names says otherwise. */
void pg_server_standby(struct pg_server *standby, struct pg_server *primary, unsigned flags);
void pg_server_promote(struct pg_server *standby); /* returns when it takes writes */

/* A file system of its own for the server, in memory, with options such as "size=40m"; false: that is not allowed
 * here. `dir` is DIR/small, which the leash unmounts. */
bool pg_server_disk(const struct pg_server *server, const char *dir, const char *options);

/* For libpq ("host=127.0.0.1 port=... user=postgres dbname=...") and for Semel ("postgres://postgres@127.0.0.1:...").
 * `database` NULL: postgres. The text lies in `out`. */
#define PG_SERVER_TEXT 192
const char *pg_server_conninfo(const struct pg_server *server, const char *database, char out[PG_SERVER_TEXT]);
const char *pg_server_url(const struct pg_server *server, const char *database, char out[PG_SERVER_TEXT]);

/* An empty database; one of that name is dropped first, with whoever is connected to it. */
void pg_server_database(struct pg_server *server, const char *name);

/* Statements on a connection of their own; a failure prints itself and leaves with exit code 1. `ask` gives the one
 * number that the query returns. */
void pg_server_sql(const struct pg_server *server, const char *database, const char *sql);
long long pg_server_ask(const struct pg_server *server, const char *database, const char *sql);

#endif
