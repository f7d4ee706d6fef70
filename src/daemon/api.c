/* SPDX-License-Identifier: MIT
 *
 * api.c: the task that answers operators over HTTP, on a store connection of its own; on SQLite, which has one a
 * process, on a handle of its own, so that a long list holds workers up for as long as it is read.
 */
#include "base/error.h"
#include "daemon/run.h"

#define WAIT_MS 200

void *run_api(void *arg)
{
    struct semel_daemon *daemon = arg;
    struct semel_api *api = semel__serve_api(daemon->serve);
    struct semel_store *store = NULL;
    struct semel_random rng;
    int failures = 0;
    semel__random_seed_os(&rng);
    while (api != NULL && !run_stopping(daemon)) {
        struct semel_error err = {0};
        semel_status status = SEMEL_OK;
        run_beat(&daemon->api);
        if (store == NULL)
            status = run_open_store(daemon, &store, &err);
        if (status == SEMEL_OK)
            status = semel__api_step(api, store, WAIT_MS, &err);
        atomic_store(&daemon->api.up, status == SEMEL_OK);
        failures = status == SEMEL_OK ? 0 : failures + 1;
        if (status == SEMEL_OK)
            continue;
        if (failures == 1)
            SEMEL__LOG(daemon->log, SEMEL_LOG_WARN,
                       "cannot reach the store for the admin API; requests are answered 503",
                       SEMEL_F_Z("error", err.text));
        semel__api_refuse(api, "the store cannot be reached");
        run_sleep(daemon, run_backoff_ms(failures, &rng));
    }
    semel__api_close(api);
    semel_store_close(store);
    atomic_store(&daemon->api.ended, true);
    return NULL;
}
