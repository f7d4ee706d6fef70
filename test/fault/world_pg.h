/* SPDX-License-Identifier: MIT
 *
 * world_pg.h: the PostgreSQL server of the process tests: one a test program, with a fresh database for every world.
 */
#ifndef SEMEL_TEST_WORLD_PG_H
#define SEMEL_TEST_WORLD_PG_H

#include "fault/books.h"
#include "pg/server.h"

extern struct pg_server world_server;

void world_pg_start(unsigned flags, const char *const *settings); /* of pg_server_start_with */
void world_pg_done(void);
/* A database with the tables of Semel and of the ledger, and its URL. */
void world_pg_database(char url[BOOKS_URL]);

#endif
