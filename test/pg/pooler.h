/* SPDX-License-Identifier: MIT
 *
 * pooler.h: a private pgbouncer in transaction mode, in front of a private server. Without pgbouncer the test is
 * skipped with exit code 77 and the reason. Its files lie in the server's folder, and go with it.
 */
#ifndef SEMEL_TEST_PG_POOLER_H
#define SEMEL_TEST_PG_POOLER_H

#include "pg/server.h"

struct pg_pooler {
    const struct server_process *home; /* of the server that it was started with, which must outlive it */
    int port, connections;
    pid_t pid;
};

/* At most `connections` to the server, shared by all clients, a transaction at a time. */
void pg_pooler_start(struct pg_pooler *pooler, const struct pg_server *server, int connections);
/* From now on its transactions go to another server; its clients stay connected. */
void pg_pooler_point(struct pg_pooler *pooler, const struct pg_server *server);
void pg_pooler_done(struct pg_pooler *pooler);

#endif
