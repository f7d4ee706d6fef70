/* SPDX-License-Identifier: MIT
 *
 * engine_pg.h: the engine of a test on PostgreSQL: a private server a program, emptied tables a test.
 *
 * Statements are those of the tests on SQLite: a table semel_inbox is semel.inbox here. The tables of the handlers
 * (effect, parent, child) are the same.
 */
#ifndef SEMEL_TEST_ENGINE_PG_H
#define SEMEL_TEST_ENGINE_PG_H

#include "unit/engine.h"

/* The server and the database, made by the first who calls it, with nothing in them. */
void engine_pg_fresh(void);
extern const struct engine_tables engine_pg_tables;

#endif
