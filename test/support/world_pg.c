/* SPDX-License-Identifier: MIT
 *
 * world_pg.c: the PostgreSQL server of a test program. See world_pg.h.
 */
#include "support/world_pg.h"

#include <stdio.h>
#include <stdlib.h>

#include "pg/model.h"
#include "store/pg_store.h"

struct pg_server world_server;

static void plant(void)
{
    const char *path = getenv("SEMEL_PLANTED");
    static char text[1 << 16];
    FILE *file = path != NULL ? fopen(path, "r") : NULL;

    if (path == NULL)
        return;
    if (file == NULL || fread(text, 1, sizeof text - 1, file) == 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    pg_server_sql(&world_server, "model", text);
}

void world_pg_unharmed(const char *name)
{
    if (getenv("SEMEL_PLANTED") == NULL ||
        pg_server_ask(&world_server, name, "SELECT is_called::integer FROM public.planted") == 0)
        return;
    fprintf(stderr, "something planted in `public` was called\n");
    exit(1);
}

static void migrate(const char *url)
{
    static const struct semel_store_ops *const stores[] = {&semel__store_postgres, NULL};
    const struct semel_store_options options = {.migrate = true};
    struct semel_store *store = NULL;
    struct semel_error err;

    if (semel_store_open(&store, stores, url, &options, &err) != SEMEL_OK) {
        fprintf(stderr, "%s: %s\n", url, err.text);
        exit(1);
    }
    semel_store_close(store);
}

void world_pg_start(void (*prepare)(const char *url))
{
    char url[PG_SERVER_TEXT];

    pg_server_start(&world_server, PG_SERVER_NO_FSYNC);
    pg_server_database(&world_server, "model");
    pg_server_url(&world_server, "model", url);
    plant();
    migrate(url);
    if (prepare != NULL)
        prepare(url);
    pg_model_seal(&world_server);
}

void world_pg_done(void)
{
    pg_server_done(&world_server);
}

void world_pg_need(void (*prepare)(const char *url))
{
    if (world_server.port != 0)
        return;
    world_pg_start(prepare);
    atexit(world_pg_done);
}

const char *world_pg_database(const char *name, char url[PG_SERVER_TEXT])
{
    pg_model_copy(&world_server, name);
    return pg_server_url(&world_server, name, url);
}
