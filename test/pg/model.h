/* SPDX-License-Identifier: MIT
 *
 * model.h: many databases alike: a test migrates the database `model` once, and every test gets a copy.
 *
 * A copy that still has the model's tables, functions and settings is emptied instead of being made again, which takes
 * a tenth of the time; one that a test has changed is dropped. Whoever is still connected to it is sent away first.
 * model.sql does it; test/e2e/pg.py does the same for Python.
 */
#ifndef SEMEL_TEST_PG_MODEL_H
#define SEMEL_TEST_PG_MODEL_H

#include "pg/server.h"

/* The database `model` is complete. */
void pg_model_seal(const struct pg_server *server);
/* `name` is like the model, with empty tables; the migrations and what was seen of the server are left in theirs. */
void pg_model_copy(const struct pg_server *server, const char *name);

#endif
