/* SPDX-License-Identifier: MIT
 *
 * keys.c: the housekeeping of idempotency keys, and their gauges: in every daemon, whoever uses keys on its store.
 * There is no task for it: the task that counts does it, on the connection that it has.
 *
 * Invariants: it waits for no lock, and takes a bounded number of rows per transaction; nothing else waits for it.
 */
#include "base/error.h"
#include "core/keys.h"
#include "daemon/internal.h"
#include "store/query.h"

#define COUNT_CAP 10000
#define KEEP_US INT64_C(2000000) /* at a time */

/* Leases that ran out, bodies and keys whose lifetime is over; as many rounds as there is work. */
static semel_status keep(struct semel_daemon *daemon, struct semel_store *store, struct semel_error *err)
{
    const int64_t until_us = semel__steady_us() + KEEP_US, max = daemon->conf->schedule.rows;
    int64_t n = max, now_us;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && n >= max && semel__steady_us() < until_us && !semel__daemon_stopping(daemon)) {
        semel__task_beat(&daemon->counts);
        status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
        if (status != SEMEL_OK)
            break;
        status = store->ops->keys->keep(store, now_us, max, &n, err);
        if (status == SEMEL_OK)
            status = semel_store_commit(store, err);
        else
            semel_store_rollback(store);
    }
    return status == SEMEL_UNKNOWN ? SEMEL_CLOSED : status; /* what it did can be done again */
}

semel_status semel__daemon_keys(struct semel_daemon *daemon, struct semel_store *store, struct semel_arena *arena,
                                struct semel_error *err)
{
    struct semel_keys_state state;
    if (store->ops->keys == NULL)
        return SEMEL_OK;
    semel_status status = keep(daemon, store, err);
    if (status == SEMEL_RETRY) { /* somebody is in the way */
        SEMEL__LOG(daemon->log, SEMEL_LOG_DEBUG, "cannot keep house of idempotency keys; tries again at the next turn",
                   SEMEL_F_Z("error", err->text));
        status = SEMEL_OK;
    }
    if (status == SEMEL_OK)
        status = semel_query_keys_state(store, COUNT_CAP, arena, &state, err);
    if (status == SEMEL_OK)
        semel__stats_keys_look(daemon->stats, &state, semel__now(&semel__clock_real));
    return status;
}
