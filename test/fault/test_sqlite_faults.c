/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_faults.c: what the world does to the SQLite driver: other processes, full and read-only disks,
 * failing writes, syncs and allocations, files and rows that were damaged by other hands.
 *
 * SQLite's allocations are routed through semel__alloc_permitted, its files through a VFS that can fail any
 * write or sync. Mounts are made in a private mount namespace of a child; where that is not allowed the test
 * is skipped, and says so. A child reports by its exit status: EXPECT ends it, cmocka would end the parent.
 */
#define _GNU_SOURCE /* unshare */

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/migrations.h"
#include "store/sqlite.h"

#define NOW INT64_C(1700000000000000)
#define CONSUMER SEMEL_STR("billing")
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SKIPPED 77

#define EXPECT(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

static const struct semel_store_ops *const drivers[] = {&semel__store_sqlite, NULL};
static const struct semel_store_options usual = {.lock_timeout_ms = 60, .create = true, .migrate = true};

struct world {
    char dir[64], path[128], url[256];
    struct semel_store *store;
    struct semel_arena arena;
    struct semel_error err;
};

/* ---- failing allocations ------------------------------------------------------------------------- */

static sqlite3_mem_methods real_memory;
static unsigned allocation, failing_allocation; /* 0: none fails */

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

static void fail_allocation(unsigned n)
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
static unsigned io_call, failing_io; /* 0: none fails */
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

static void fail_io(unsigned n, int error, bool syncs)
{
    io_call = 0;
    failing_io = n;
    io_error = error;
    only_syncs = syncs;
}

static void install(void)
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

static semel_status open_store(struct world *w)
{
    semel__error_clear(&w->err);
    w->store = NULL;
    return semel_store_open(&w->store, drivers, w->url, &usual, &w->err);
}

static int setup_dir(void **state)
{
    struct world *w = semel__calloc(1, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/semel-fault-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof(w->path), "%s/s.db", w->dir);
    snprintf(w->url, sizeof(w->url), "sqlite:%s", w->path);
    semel__arena_init(&w->arena, 64 << 20);
    *state = w;
    return 0;
}

static int setup(void **state)
{
    setup_dir(state);
    assert_int_equal(open_store(*state), SEMEL_OK);
    return 0;
}

static int teardown(void **state)
{
    static const char *const endings[] = {"", "-wal", "-shm", "-journal"};
    struct world *w = *state;
    char path[160];
    fail_allocation(0);
    fail_io(0, 0, false);
    semel_store_close(w->store);
    semel__arena_done(&w->arena);
    for (size_t i = 0; i < COUNT(endings); i++) {
        snprintf(path, sizeof(path), "%s%s", w->path, endings[i]);
        remove(path);
    }
    assert_int_equal(rmdir(w->dir), 0);
    semel__free(w);
    return 0;
}

/* Runs fn in a child. 0: it did not complain. */
static int in_child(struct world *w, void (*fn)(struct world *))
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

static void sql_on(sqlite3 *db, const char *text)
{
    char *message = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", text, message);
}

/* By a connection of somebody else. */
static void sql_by_another(struct world *w, const char *text)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 1000);
    sql_on(db, text);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static int64_t ask(struct world *w, const char *text)
{
    sqlite3_stmt *stmt = NULL;
    int64_t v = -1;
    if (sqlite3_prepare_v2(semel_store_native(w->store), text, -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW)
        v = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return v;
}

static struct semel_admit item_of(const char *id)
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
                                        .live = {.state = SEMEL_STATE_FAILED,
                                                 .attempts = 1,
                                                 .due_us = NOW,
                                                 .processed_us = SEMEL_NONE,
                                                 .lease_until_us = SEMEL_NONE,
                                                 .lease_token = SEMEL_NONE}}};
}

/* begin, admit, settle, commit of one message with all that can be with it. *ret_at says where it stopped. */
enum at { AT_BEGIN, AT_WORK, AT_COMMIT, AT_END };

static semel_status work(struct world *w, struct semel_admit *item)
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
                                  .from = SEMEL_STATE_FAILED,
                                  .fresh = true,
                                  .token = SEMEL_NONE,
                                  .live = item->row.live,
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

static semel_status process(struct world *w, const char *id, enum at *ret_at)
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

static semel_status process_one(struct world *w, const char *id)
{
    enum at at;
    return process(w, id, &at);
}

static void assert_says(struct world *w, const char *what)
{
    if (strstr(w->err.text, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", w->err.text, what);
}

/* ---- other processes ----------------------------------------------------------------------------- */

static void lock_of_another_process_is_waited_for_and_then_reported(void **state) /* P23 */
{
    struct world *w = *state;
    int ready[2], done[2];
    char byte = 0;
    assert_int_equal(pipe(ready) | pipe(done), 0);
    pid_t pid = fork();
    if (pid == 0) {
        sqlite3 *db = NULL;
        EXPECT(sqlite3_open(w->path, &db) == SQLITE_OK);
        EXPECT(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK);
        EXPECT(write(ready[1], "x", 1) == 1 && read(done[0], &byte, 1) == 1);
        EXPECT(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK);
        sqlite3_close(db);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(process_one(w, "a"), SEMEL_RETRY);
    assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
    assert_says(w, "locked by another program (waited 60 ms)");
    assert_int_equal(write(done[1], "x", 1), 1);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
}

static void open_own(struct world *w)
{
    int64_t now_us = 0;
    EXPECT(semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err) == SEMEL_CLOSED);
    EXPECT(strstr(w->err.text, "fork") != NULL);
    semel_store_close(w->store); /* forgets it, and leaves the file alone */
    EXPECT(open_store(w) == SEMEL_OK);
    EXPECT(process_one(w, "of the child") == SEMEL_OK);
    struct semel_store *own = w->store;
    EXPECT(open_store(w) == SEMEL_INVALID);
    semel_store_close(own);
}

static void child_after_fork_opens_its_own(void **state)
{
    struct world *w = *state;
    assert_int_equal(in_child(w, open_own), 0);
    assert_int_equal(process_one(w, "of the parent"), SEMEL_OK);
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_inbox"), 2);
}

static void die_in_the_middle(struct world *w)
{
    int64_t now_us = 0;
    struct semel_admit item = item_of("a");
    EXPECT(open_store(w) == SEMEL_OK);
    EXPECT(semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err) == SEMEL_OK);
    EXPECT(work(w, &item) == SEMEL_OK);
    raise(SIGKILL);
}

static void killed_process_leaves_nothing_and_holds_nothing(void **state)
{
    struct world *w = *state;
    assert_int_equal(in_child(w, die_in_the_middle), 128 + SIGKILL);
    assert_int_equal(open_store(w), SEMEL_OK);
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_inbox"), 0);
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
}

static void processes_that_migrate_at_once_do_it_once(void **state)
{
    struct world *w = *state;
    int start[2];
    pid_t pids[4];
    char byte = 0;
    assert_int_equal(pipe(start), 0);
    for (size_t i = 0; i < COUNT(pids); i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            struct semel_store_options patient = usual;
            patient.lock_timeout_ms = 20000;
            close(start[1]);
            EXPECT(read(start[0], &byte, 1) == 0); /* all at once, when the parent closes its end */
            semel_status status = semel_store_open(&w->store, drivers, w->url, &patient, &w->err);
            if (status != SEMEL_OK)
                fprintf(stderr, "%s\n", w->err.text);
            EXPECT(status == SEMEL_OK);
            semel_store_close(w->store);
            _exit(0);
        }
    }
    close(start[0]);
    close(start[1]);
    for (size_t i = 0; i < COUNT(pids); i++) {
        int status = -1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(open_store(w), SEMEL_OK);
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_schema"), (int64_t)semel__sqlite_migrations_n);
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_counter"), 2);
}

/* ---- disks --------------------------------------------------------------------------------------- */

/* A small file system of our own on w->dir, gone with this process. */
static void mount_small(struct world *w)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", w->dir, "tmpfs", 0, "size=1m,mode=0700") != 0)
        _exit(SKIPPED);
}

static void use_read_only(struct world *w)
{
    mount_small(w);
    EXPECT(open_store(w) == SEMEL_OK);
    semel_store_close(w->store);
    EXPECT(mount(NULL, w->dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    EXPECT(open_store(w) == SEMEL_RETRY);
    EXPECT(w->err.cls == SEMEL_CLASS_ENVIRONMENT && strstr(w->err.text, "read-only") != NULL);
    snprintf(w->url, sizeof(w->url), "sqlite:%s/new.db", w->dir); /* cannot be made */
    EXPECT(open_store(w) == SEMEL_RETRY);
    EXPECT(w->err.cls == SEMEL_CLASS_ENVIRONMENT);
}

static void use_full_disk(struct world *w)
{
    static char block[4096];
    char filler[160];
    mount_small(w);
    EXPECT(open_store(w) == SEMEL_OK);
    EXPECT(process_one(w, "before") == SEMEL_OK);
    snprintf(filler, sizeof(filler), "%s/filler", w->dir);
    int fd = open(filler, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    while (write(fd, block, sizeof(block)) > 0)
        continue;
    char id[32];
    semel_status status = SEMEL_OK;
    int n = 0;
    for (; status == SEMEL_OK && n < 1000; n++) { /* the WAL may have room left */
        snprintf(id, sizeof(id), "full-%d", n);
        status = process_one(w, id);
    }
    EXPECT(status == SEMEL_RETRY && w->err.cls == SEMEL_CLASS_ENVIRONMENT);
    EXPECT(ask(w, "SELECT count(*) FROM semel_inbox") == n);
    close(fd);
    EXPECT(unlink(filler) == 0);
    EXPECT(process_one(w, id) == SEMEL_OK);
    semel_store_close(w->store);
}

static void check_or_skip(int status, const char *what)
{
    if (status == SKIPPED) {
        print_message("skipped: %s: mounts are not allowed here\n", what);
        skip();
    }
    assert_int_equal(status, 0);
}

static void read_only_file_system_is_the_worlds_fault(void **state)
{
    check_or_skip(in_child(*state, use_read_only), "read-only file system");
}

static void full_disk_is_waited_out(void **state)
{
    check_or_skip(in_child(*state, use_full_disk), "full disk");
}

static void database_at_its_page_limit_is_full(void **state)
{
    struct world *w = *state;
    static char big[1 << 20];
    int64_t now_us = 0;
    struct semel_admit item = item_of("a");
    sql_on(semel_store_native(w->store), "PRAGMA max_page_count = 60");
    item.row.payload = (struct semel_str){big, sizeof(big)};
    assert_int_equal(semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_OK);
    assert_int_equal(work(w, &item), SEMEL_RETRY);
    assert_int_equal(w->err.cls, SEMEL_CLASS_ENVIRONMENT);
    semel_store_rollback(w->store);
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
}

/* ---- failing I/O and memory ---------------------------------------------------------------------- */

static void commit_whose_sync_fails_is_unknown(void **state)
{
    struct world *w = *state;
    enum at at;
    fail_io(1, SQLITE_IOERR_WRITE, true);
    assert_int_equal(process(w, "a", &at), SEMEL_UNKNOWN);
    assert_int_equal(at, AT_COMMIT);
    fail_io(0, 0, false);
    assert_int_equal(semel_store_reopen(w->store, &w->err), SEMEL_OK);
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_inbox"), 1);
}

/* After a fault: what was said is what is there. */
static void check_after(struct world *w, const char *id, semel_status status, enum at at, unsigned n)
{
    char text[128];
    bool honest = status == SEMEL_OK || status == SEMEL_RETRY || (status == SEMEL_UNKNOWN && at == AT_COMMIT);
    if (!honest)
        fail_msg("fault %u: %s: %s", n, semel__status_name(status), w->err.text);
    assert_true(status == SEMEL_OK || w->err.cls == SEMEL_CLASS_ENVIRONMENT);
    if (semel_store_reopen(w->store, &w->err) != SEMEL_OK)
        fail_msg("fault %u: reopen: %s", n, w->err.text);
    snprintf(text, sizeof(text), "SELECT count(*) FROM semel_inbox WHERE message_id = '%s'", id);
    int64_t there = ask(w, text);
    assert_true(status == SEMEL_UNKNOWN ? there == 0 || there == 1 : there == (status == SEMEL_OK));
    assert_int_equal(process_one(w, id), SEMEL_OK);
    assert_int_equal(ask(w, text), 1);
    assert_int_equal(ask(w, "SELECT integrity_check = 'ok' FROM pragma_integrity_check"), 1);
}

static void every_write_and_sync_may_fail(void **state)
{
    struct world *w = *state;
    static const int errors[] = {SQLITE_IOERR_WRITE, SQLITE_FULL};
    char id[32];
    for (size_t e = 0; e < COUNT(errors); e++)
        for (unsigned n = 1;; n++) {
            enum at at = AT_BEGIN;
            snprintf(id, sizeof(id), "io-%zu-%u", e, n);
            fail_io(n, errors[e], false);
            semel_status status = process(w, id, &at);
            bool reached = io_call >= n;
            fail_io(0, 0, false);
            check_after(w, id, status, at, n);
            if (!reached)
                break;
        }
}

static void every_allocation_may_fail_while_processing(void **state)
{
    struct world *w = *state;
    char id[32];
    for (unsigned n = 1;; n++) {
        enum at at = AT_BEGIN;
        snprintf(id, sizeof(id), "mem-%u", n);
        semel__arena_reset(&w->arena);
        fail_allocation(n);
        semel_status status = process(w, id, &at);
        bool reached = allocation >= n;
        fail_allocation(0);
        check_after(w, id, status, at, n);
        if (!reached)
            break;
    }
}

static void every_allocation_may_fail_while_opening(void **state)
{
    struct world *w = *state;
    snprintf(w->url, sizeof(w->url), "sqlite::memory:");
    for (unsigned n = 1;; n++) {
        fail_allocation(n);
        semel_status status = open_store(w);
        bool reached = allocation >= n;
        fail_allocation(0);
        if (status != SEMEL_OK && status != SEMEL_RETRY && status != SEMEL_UNKNOWN)
            fail_msg("allocation %u: %s: %s", n, semel__status_name(status), w->err.text);
        semel_store_close(w->store);
        w->store = NULL;
        if (!reached)
            break;
    }
}

static void every_allocation_may_fail_while_looking(void **state)
{
    struct world *w = *state;
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
    for (unsigned n = 1;; n++) {
        struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .consumer = CONSUMER, .max = 9, .with_payload = true};
        struct semel_row *rows = NULL;
        struct semel_str *sources = NULL;
        size_t found = 0, damaged = 0;
        semel__arena_done(&w->arena);
        semel__arena_init(&w->arena, 1 << 20);
        fail_allocation(n);
        semel_status status = semel_store_scan(w->store, &all, &w->arena, &rows, &found, &damaged, &w->err);
        if (status == SEMEL_OK)
            status = semel_store_sources(w->store, CONSUMER, &w->arena, &sources, &found, &w->err);
        bool reached = allocation >= n;
        fail_allocation(0);
        assert_true(status == SEMEL_OK ? found == 1 : status == SEMEL_RETRY);
        assert_int_equal(damaged, 0);
        if (!reached)
            break;
    }
}

/* ---- files and rows that are not ours ------------------------------------------------------------ */

static void file_that_is_no_database_is_refused_and_left_alone(void **state)
{
    struct world *w = *state;
    static const char text[] =
        "Dear diary, this is a text that is long enough to be taken for a header of a hundred bytes, "
        "but it is none, and it must stay as it is.\n";
    char again[sizeof(text)] = "";
    FILE *file = fopen(w->path, "w");
    fputs(text, file);
    fclose(file);
    assert_int_equal(open_store(w), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_says(w, "not a SQLite database");
    file = fopen(w->path, "r");
    assert_non_null(fgets(again, sizeof(again), file));
    fclose(file);
    assert_string_equal(again, text);
}

static void table_that_was_dropped_stops_the_route(void **state)
{
    struct world *w = *state;
    sql_by_another(w, "DROP TABLE semel_inbox");
    assert_int_equal(process_one(w, "a"), SEMEL_INVALID);
    assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
    assert_says(w, "no such table");
}

/* No STRICT, no NOT NULL and no CHECK any more, as after an edit by hand. */
#define SOFTEN                                                                                                        \
    "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(replace(replace(replace(replace(sql, "       \
    "') STRICT, WITHOUT', ') WITHOUT'), ') STRICT', ')'), 'TEXT NOT NULL', 'TEXT'), 'INTEGER NOT NULL', 'INTEGER'), " \
    "'BLOB NOT NULL', 'BLOB') WHERE type = 'table' AND name LIKE 'semel_%'; PRAGMA writable_schema = RESET; "
#define UNCHECKED "PRAGMA ignore_check_constraints = ON; UPDATE semel_inbox SET "

static void look_at_damage(struct world *w, const char *column)
{
    struct semel_admit again = item_of("a");
    struct semel_fetched fetched = {.source = SEMEL_STR("orders"), .id = SEMEL_STR("a")};
    struct semel_fetch_batch fetch = {.consumer = CONSUMER, .items = &fetched, .n_items = 1};
    struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .consumer = CONSUMER, .with_payload = true, .max = 1};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    int64_t now_us = 0;
    assert_int_equal(semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_OK);
    struct semel_admit_batch batch = {.consumer = CONSUMER, .now_us = NOW, .items = &again, .n_items = 1};
    assert_int_equal(semel_store_admit(w->store, &batch, &w->arena, &w->err), SEMEL_OK);
    assert_true(!again.inserted && again.damaged);
    if (strstr(again.damage.text, "semel_inbox") == NULL || strstr(again.damage.text, column) == NULL ||
        strstr(again.damage.text, "\"a\"") == NULL)
        fail_msg("%s: \"%s\"", column, again.damage.text);
    assert_int_equal(semel_store_fetch(w->store, &fetch, &w->arena, &w->err), SEMEL_OK);
    assert_true(fetched.present && fetched.damaged);
    semel_store_rollback(w->store);
    assert_int_equal(semel_store_scan(w->store, &all, &w->arena, &rows, &n, &damaged, &w->err), SEMEL_OK);
    assert_true(n == 1 && damaged == 1); /* the good row behind the damaged one is still found */
    assert_true(semel__str_eqz(rows[0].id, "b"));
}

static void damaged_row_is_told_with_its_key_and_column(void **state)
{
    struct world *w = *state;
    static const char *const damage[][2] = {
        {"status", "status = 'nonsense'"},
        {"status", "status = NULL"},
        {"status", "status = x'00'"},
        {"status", "status = 'absent'"},
        {"attempts", "attempts = -1"},
        {"attempts", "attempts = 'many'"},
        {"attempts", "attempts = NULL"},
        {"attempts_before", "attempts_before = 7"},
        {"replays", "replays = 3000000000"},
        {"alone", "alone = 2"},
        {"fingerprint", "fingerprint = x'00'"},
        {"fingerprint", "fingerprint = 'rtext'"},
        {"fingerprint", "fingerprint = zeroblob(100)"},
        {"order_key", "order_key = x'6b'"},
        {"order_key", "order_key = CAST(zeroblob(256) AS TEXT)"},
        {"type", "type = CAST(x'ff' AS TEXT)"},
        {"version", "version = -7"},
        {"version", "version = 1.5"},
        {"version", "version = -9223372036854775808"},
        {"message_time", "message_time = 'now'"},
        {"received_at", "received_at = NULL"},
        {"updated_at", "updated_at = x'01'"},
        {"processed_at", "processed_at = 1"},
        {"due_at", "due_at = 'soon'"},
        {"lease_owner", "lease_owner = 'w'"},
        {"lease_until", "lease_until = 5"},
        {"lease_token", "lease_token = 5"},
        {"lease_token", "status = 'processing', due_at = NULL"},
        {"error_class", "error_class = 'bad luck'"},
        {"error_text", "error_text = CAST(zeroblob(1001) AS TEXT)"},
        {"outcome", "outcome = CAST(zeroblob(65537) AS TEXT)"},
        {"position", "position = x'01'"},
        {"headers", "headers = x'7b7d'"},
        {"payload", "payload = 'text'"},
        {"payload", "payload = 5.5"},
        {"payload", "payload = zeroblob(67108865)"},
        {"traceparent", "traceparent = CAST(zeroblob(256) AS TEXT)"},
    };
    char text[512];
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
    assert_int_equal(process_one(w, "b"), SEMEL_OK);
    sql_by_another(w, SOFTEN);
    sql_by_another(w, "CREATE TABLE good AS SELECT * FROM semel_inbox WHERE message_id = 'a'");
    for (size_t i = 0; i < COUNT(damage); i++) {
        snprintf(text, sizeof(text), UNCHECKED "%s WHERE message_id = 'a'", damage[i][1]);
        sql_by_another(w, text);
        look_at_damage(w, damage[i][0]);
        semel__arena_reset(&w->arena);
        sql_by_another(w, "PRAGMA ignore_check_constraints = ON; DELETE FROM semel_inbox WHERE message_id = 'a'; "
                          "INSERT INTO semel_inbox SELECT * FROM good");
    }
    sql_by_another(w,
                   UNCHECKED "source = x'01' WHERE message_id = 'a'"); /* then the key finds nothing, but a scan does */
    struct semel_scan due = {.kind = SEMEL_SCAN_DUE, .consumer = CONSUMER, .now_us = NOW, .max = 1};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    assert_int_equal(semel_store_scan(w->store, &due, &w->arena, &rows, &n, &damaged, &w->err), SEMEL_OK);
    assert_true(n == 1 && damaged == 1);
}

static void damaged_counter_watermark_and_key_stop_the_route(void **state)
{
    struct world *w = *state;
    static const char *const damage[] = {
        "UPDATE semel_counter SET value = 9223372036854775807 WHERE name = 'arrival'",
        "UPDATE semel_counter SET value = 1 WHERE name = 'arrival'", /* behind: arrivals would be given out twice */
        "UPDATE semel_counter SET value = 'one' WHERE name = 'arrival'",
        "DELETE FROM semel_counter",
        "INSERT INTO semel_watermark VALUES ('billing', 'orders', 'always', 1)",
        "UPDATE semel_business_key SET message_id = x'01'",
        "UPDATE semel_schema SET version = 'x' WHERE version = 1",
    };
    assert_int_equal(process_one(w, "a"), SEMEL_OK);
    sql_by_another(
        w, SOFTEN "CREATE TABLE c AS SELECT * FROM semel_counter; CREATE TABLE b AS SELECT * FROM semel_business_key;");
    for (size_t i = 0; i + 1 < COUNT(damage); i++) {
        char text[256];
        snprintf(text, sizeof(text), "PRAGMA ignore_check_constraints = ON; %s", damage[i]);
        sql_by_another(w, text);
        assert_int_equal(process_one(w, "new"), SEMEL_INVALID);
        assert_int_equal(w->err.cls, SEMEL_CLASS_BROKEN);
        sql_by_another(
            w, "DELETE FROM semel_counter; INSERT INTO semel_counter SELECT * FROM c; DELETE FROM semel_watermark; "
               "DELETE FROM semel_business_key; INSERT INTO semel_business_key SELECT * FROM b");
    }
    assert_int_equal(process_one(w, "new"), SEMEL_OK);
}

/* Random bytes anywhere in the file: every call must come back with a status. */
static void file_with_random_damage_never_crashes_the_driver(void **state)
{
    struct world *w = *state;
    char id[32];
    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof(id), "row-%d", i);
        assert_int_equal(process_one(w, id), SEMEL_OK);
    }
    semel_store_close(w->store);
    w->store = NULL;
    static unsigned char good[1 << 20], bad[1 << 20];
    FILE *file = fopen(w->path, "r");
    size_t size = fread(good, 1, sizeof(good), file);
    fclose(file);
    struct semel_random rng;
    semel__random_seed(&rng, 20231115);
    for (unsigned round = 0; round < 150; round++) {
        memcpy(bad, good, size);
        for (unsigned i = 0; i < 1 + round % 40; i++)
            bad[semel__random_below(&rng, size)] = (unsigned char)semel__random_next(&rng);
        file = fopen(w->path, "w");
        assert_int_equal(fwrite(bad, 1, size, file), size);
        fclose(file);
        if (open_store(w) == SEMEL_OK) {
            struct semel_scan all = {.kind = SEMEL_SCAN_ALL, .consumer = CONSUMER, .with_payload = true, .max = 100};
            struct semel_row *rows = NULL;
            size_t n = 0, damaged = 0;
            (void)semel_store_scan(w->store, &all, &w->arena, &rows, &n, &damaged, &w->err);
            (void)process_one(w, "row-3");
            (void)process_one(w, "new");
            semel__arena_reset(&w->arena);
        }
        semel_store_close(w->store);
        w->store = NULL;
    }
}

#define ON(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define BARE(name) cmocka_unit_test_setup_teardown(name, setup_dir, teardown)

int main(void)
{
    install();
    const struct CMUnitTest tests[] = {
        ON(lock_of_another_process_is_waited_for_and_then_reported),
        ON(child_after_fork_opens_its_own),
        BARE(killed_process_leaves_nothing_and_holds_nothing),
        BARE(processes_that_migrate_at_once_do_it_once),
        BARE(read_only_file_system_is_the_worlds_fault),
        BARE(full_disk_is_waited_out),
        ON(database_at_its_page_limit_is_full),
        ON(commit_whose_sync_fails_is_unknown),
        ON(every_write_and_sync_may_fail),
        ON(every_allocation_may_fail_while_processing),
        BARE(every_allocation_may_fail_while_opening),
        ON(every_allocation_may_fail_while_looking),
        BARE(file_that_is_no_database_is_refused_and_left_alone),
        ON(table_that_was_dropped_stops_the_route),
        ON(damaged_row_is_told_with_its_key_and_column),
        ON(damaged_counter_watermark_and_key_stop_the_route),
        ON(file_with_random_damage_never_crashes_the_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
