/* SPDX-License-Identifier: MIT
 *
 * sqlite_world.c: the world of the SQLite fault tests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault/sqlite_world.h"

const struct semel_store_ops *const drivers[] = {&semel__store_sqlite, NULL};
const struct semel_store_options usual = {.lock_timeout_ms = 60, .create = true, .migrate = true};

/* ---- failing allocations ------------------------------------------------------------------------- */

static sqlite3_mem_methods real_memory;
unsigned allocation, failing_allocation; /* 0: none fails */

static bool permit(void *ctx)
{
    (void)ctx;
    return ++allocation != failing_allocation;
}

static void *counted_malloc(int size)
{
    return semel__alloc_permitted() ? real_memory.xMalloc(size) : NULL;
}

static void *counted_realloc(void *p, int size)
{
    return semel__alloc_permitted() ? real_memory.xRealloc(p, size) : NULL;
}

void fail_allocation(unsigned n)
{
    allocation = 0;
    failing_allocation = n;
    semel__alloc_set_hook(n > 0 ? permit : NULL, NULL);
}

/* ---- failing writes and syncs -------------------------------------------------------------------- */

static sqlite3_vfs shim;
/* A table for each that SQLite uses: the database's file has locks, the WAL's has none. */
static struct io {
    sqlite3_io_methods shim; /* first: what a file points to */
    const sqlite3_io_methods *real;
} ios[4];
unsigned io_call, failing_io; /* 0: none fails */
static int io_error = SQLITE_IOERR_WRITE;
static bool only_syncs;

static bool io_permitted(bool sync)
{
    if (failing_io == 0 || (only_syncs && !sync))
        return true;
    return ++io_call != failing_io;
}

static const sqlite3_io_methods *real_of(const sqlite3_file *file)
{
    return ((const struct io *)(const void *)file->pMethods)->real;
}

static int shim_write(sqlite3_file *file, const void *p, int n, sqlite3_int64 at)
{
    return io_permitted(false) ? real_of(file)->xWrite(file, p, n, at) : io_error;
}

static int shim_sync(sqlite3_file *file, int flags)
{
    return io_permitted(true) ? real_of(file)->xSync(file, flags) : SQLITE_IOERR_FSYNC;
}

static int shim_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *ret_flags)
{
    sqlite3_vfs *real = vfs->pAppData;
    int rc = real->xOpen(real, name, file, flags, ret_flags);
    if (rc != SQLITE_OK || file->pMethods == NULL)
        return rc;
    for (size_t i = 0; i < COUNT(ios); i++) {
        if (ios[i].real == NULL) {
            ios[i].real = file->pMethods;
            ios[i].shim = *ios[i].real;
            ios[i].shim.xWrite = shim_write;
            ios[i].shim.xSync = shim_sync;
        }
        if (ios[i].real == file->pMethods) {
            file->pMethods = &ios[i].shim;
            return rc;
        }
    }
    abort();
}

void fail_io(unsigned n, int error, bool syncs)
{
    io_call = 0;
    failing_io = n;
    io_error = error;
    only_syncs = syncs;
}

void install(void)
{
    sqlite3_mem_methods memory;
    if (sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_memory) != SQLITE_OK)
        abort();
    memory = real_memory;
    memory.xMalloc = counted_malloc;
    memory.xRealloc = counted_realloc;
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &memory) != SQLITE_OK || sqlite3_initialize() != SQLITE_OK)
        abort();
    sqlite3_vfs *real = sqlite3_vfs_find(NULL);
    shim = *real;
    shim.zName = "shim";
    shim.pAppData = real;
    shim.xOpen = shim_open;
    if (sqlite3_vfs_register(&shim, 1) != SQLITE_OK)
        abort();
}

/* ---- the world ----------------------------------------------------------------------------------- */

int setup_dir(void **state)
{
    world_driver = world_driver_named("sqlite");
    world_options = &usual;
    return world_bare(state);
}

int setup(void **state)
{
    setup_dir(state);
    assert_int_equal(world_open(*state), SEMEL_OK);
    return 0;
}

int teardown(void **state)
{
    fail_allocation(0);
    fail_io(0, 0, false);
    return world_teardown(state);
}

/* Runs fn in a child. 0: it did not complain. */
int in_child(struct world *w, void (*fn)(struct world *))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fn(w);
        _exit(0);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void sql_on(sqlite3 *db, const char *text)
{
    char *message = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", text, message);
}

int64_t ask(struct world *w, const char *text)
{
    sqlite3_stmt *stmt = NULL;
    int64_t v = -1;
    if (sqlite3_prepare_v2(semel_store_native(w->store), text, -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW)
        v = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return v;
}

struct semel_admit item_of(const char *id)
{
    return (struct semel_admit){.row = {.source = SEMEL_STR("orders"),
                                        .id = semel__str(id),
                                        .order_key = SEMEL_STR("k"),
                                        .type = SEMEL_STR("t"),
                                        .version = 3,
                                        .message_time_us = NOW,
                                        .received_us = NOW,
                                        .updated_us = NOW,
                                        .payload = SEMEL_STR("payload"),
                                        .headers = SEMEL_STR("{}"),
                                        .kept = true,
                                        .progress = {.state = SEMEL_ROW_FAILED,
                                                     .attempts = 1,
                                                     .due_us = NOW,
                                                     .processed_us = SEMEL_NONE,
                                                     .lease_until_us = SEMEL_NONE,
                                                     .lease_token = SEMEL_NONE}}};
}

semel_status work(struct world *w, struct semel_admit *item)
{
    struct semel_key key = {.key = SEMEL_STR("k")};
    struct semel_business b = {.key = SEMEL_STR("b"),
                               .source = item->row.source,
                               .id = item->row.id,
                               .expires_us = SEMEL_NONE};
    struct semel_admit_batch batch = {.consumer = CONSUMER,
                                      .now_us = NOW,
                                      .keys = &key,
                                      .n_keys = 1,
                                      .business = &b,
                                      .n_business = 1,
                                      .items = item,
                                      .n_items = 1};
    struct semel_change change = {.source = item->row.source,
                                  .id = item->row.id,
                                  .from = SEMEL_ROW_FAILED,
                                  .fresh = true,
                                  .token = SEMEL_NONE,
                                  .progress = item->row.progress,
                                  .log_attempt = true};
    struct semel_key_change raise = {.key = SEMEL_STR("k"), .last_version = 3, .wake = true};
    struct semel_settle_batch settle = {.consumer = CONSUMER,
                                        .worker = SEMEL_STR("w"),
                                        .now_us = NOW,
                                        .changes = &change,
                                        .n_changes = 1,
                                        .keys = &raise,
                                        .n_keys = 1};
    semel_status status = semel_store_admit(w->store, &batch, &w->arena, &w->err);
    if (status == SEMEL_OK && item->inserted)
        status = semel_store_settle(w->store, &settle, &w->err);
    return status;
}

semel_status process(struct world *w, const char *id, enum at *ret_at)
{
    int64_t now_us = 0;
    struct semel_admit item = item_of(id);
    *ret_at = AT_BEGIN;
    semel_status status = semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err);
    if (status != SEMEL_OK)
        return status;
    *ret_at = AT_WORK;
    status = work(w, &item);
    if (status != SEMEL_OK) {
        semel_store_rollback(w->store);
        return status;
    }
    *ret_at = AT_COMMIT;
    status = semel_store_commit(w->store, &w->err);
    if (status == SEMEL_OK)
        *ret_at = AT_END;
    return status;
}

semel_status process_one(struct world *w, const char *id)
{
    enum at at;
    return process(w, id, &at);
}

void assert_says(struct world *w, const char *what)
{
    if (strstr(w->err.text, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", w->err.text, what);
}
