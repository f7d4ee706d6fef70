/* SPDX-License-Identifier: MIT
 *
 * world_pg.h: the PostgreSQL server of a test program: one private server, and fresh databases that are copies of one
 * with the tables of Semel.
 */
#ifndef SEMEL_TEST_SUPPORT_WORLD_PG_H
#define SEMEL_TEST_SUPPORT_WORLD_PG_H

#include "pg/server.h"

extern struct pg_server world_server;

/* Starts the server, without fsync, and makes the model of its databases: what SEMEL_PLANTED names (B3 P85: hostile
 * objects in `public`), the tables of Semel, and what `prepare` adds; NULL: nothing. */
void world_pg_start(void (*prepare)(const char *url));
void world_pg_done(void);
/* The same once per program; the server ends with the program. */
void world_pg_need(void (*prepare)(const char *url));
/* The database `name` is like the model, with empty tables. Returns its URL, in `url`. */
const char *world_pg_database(const char *name, char url[PG_SERVER_TEXT]);
/* Nothing that was planted has been called in this database. */
void world_pg_unharmed(const char *name);

#endif
