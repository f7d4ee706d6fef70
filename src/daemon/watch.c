/* SPDX-License-Identifier: MIT
 *
 * watch.c: looks at the store now and then, for the gauges: rows by state, the age of the oldest. Bounded looks, on a
 * connection of its own, so that nobody who measures stands in a worker's way (P44).
 */
#include "base/error.h"
#include "core/look.h"
#include "daemon/run.h"

#define EVERY_MS 5000
#define CAP 10000
#define ARENA_MAX ((size_t)16 << 20)

static semel_status look_at(struct semel_daemon *daemon, struct semel_store *store, struct semel_arena *arena,
                            struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < daemon->n_routes && !run_stopping(daemon); i++) {
        struct semel_count *counts;
        size_t n;
        semel__arena_reset(arena);
        run_beat(&daemon->watch);
        status = semel_look_counts(store, daemon->routes[i].conf->name, CAP, 0, arena, &counts, &n, err);
        if (status == SEMEL_OK)
            semel__stats_look(daemon->routes[i].stats, counts, n, semel__now(&semel__clock_real));
    }
    return status;
}

void *run_watch(void *arg)
{
    struct semel_daemon *daemon = arg;
    struct semel_store *store = NULL;
    struct semel_arena arena;
    semel__arena_init(&arena, ARENA_MAX);
    while (!run_stopping(daemon)) {
        struct semel_error err = {0};
        semel_status status = SEMEL_OK;
        run_beat(&daemon->watch);
        if (store == NULL)
            status = run_open_store(daemon, &store, &err);
        if (status == SEMEL_OK)
            status = look_at(daemon, store, &arena, &err);
        if (status != SEMEL_OK) {
            SEMEL__LOG(daemon->log, SEMEL_LOG_DEBUG, "the store cannot be looked at", SEMEL_F_Z("error", err.text));
            semel_store_close(store);
            store = NULL;
        }
        run_sleep(daemon, EVERY_MS);
    }
    semel_store_close(store);
    semel__arena_done(&arena);
    atomic_store(&daemon->watch.ended, true);
    return NULL;
}
