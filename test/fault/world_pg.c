/* SPDX-License-Identifier: MIT
 *
 * world_pg.c: databases for the process tests on PostgreSQL. See world_pg.h.
 *
 * The tables are made once, in a database that every world's is a copy of.
 */
#include "fault/world_pg.h"

#include <stdlib.h>

#include "fault/world.h"
#include "pg/model.h"
#include "store/pg_store.h"

struct pg_server world_server;

static const struct semel_store_ops *const stores[] = {&semel__store_postgres, NULL};
void world_pg_start(unsigned flags, const char *const *settings)
{
    const struct semel_store_options options = {.migrate = true};
    struct semel_store *store = NULL;
    struct semel_error err;
    char url[PG_SERVER_TEXT];

    pg_server_start_with(&world_server, flags, settings);
    pg_server_database(&world_server, "model");
    pg_server_url(&world_server, "model", url);
    if (semel_store_open(&store, stores, url, &options, &err) != SEMEL_OK) {
        fprintf(stderr, "%s: %s\n", url, err.text);
        exit(1);
    }
    semel_store_close(store);
    books_prepare(url);
    pg_model_seal(&world_server);
}

void world_pg_done(void)
{
    pg_server_done(&world_server);
}

void world_pg_database(char url[BOOKS_URL])
{
    char text[PG_SERVER_TEXT];

    pg_model_copy(&world_server, "world");
    snprintf(url, BOOKS_URL, "%s", pg_server_url(&world_server, "world", text));
}
