/* SPDX-License-Identifier: MIT
 *
 * pull.c: the thread of a `pull` route that answers those who fetch: one store connection, one inbox. What they fetch
 * was stored by the route's workers.
 */
#include "base/error.h"
#include "daemon/run.h"

#define STEP_MS 250

void *run_pull(void *arg)
{
    struct run_worker *worker = arg;
    struct run_route *route = worker->route;
    struct semel_arena arena;
    semel__arena_init(&arena, (size_t)1 << 24);
    if (run_worker_open(worker)) {
        while (!run_stopping(route->daemon)) {
            struct semel_error err = {0};
            size_t n = 0;
            semel_status status = SEMEL_OK;
            run_beat(&worker->thread);
            if (run_settings_hold(worker)) {
                semel__pull_close(route->pull);
                run_sleep(route->daemon, STEP_MS);
                (void)semel__serve_pull(route->daemon->serve, route->conf);
                continue;
            }
            if (worker->pump.store_down) {
                status = semel_store_reopen(worker->store, &err);
                worker->pump.store_down = status != SEMEL_OK;
            }
            if (semel__pull_unknown(route->pull))
                worker->unknown.next_us = 0;
            run_unknown_count(worker, &arena);
            semel__pull_full(route->pull, worker->unknown.full);
            if (status == SEMEL_OK)
                status = semel__pull_step(route->pull, &worker->inbox, STEP_MS, &n, &err);
            worker->pump.store_down |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
            run_worker_note(worker, status, &err);
        }
        run_worker_close(worker);
    }
    semel__pull_close(route->pull);
    semel__arena_done(&arena);
    atomic_store(&worker->thread.up, false);
    atomic_store(&worker->thread.ended, true);
    return NULL;
}
