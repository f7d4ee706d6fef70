/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_faults.c: what the world does to the SQLite driver: other processes, full and read-only disks,
 * failing writes, syncs and allocations. Mounts are made in a private mount namespace of a child; where that is not
 * allowed the test is skipped, and says so.
 */
#define _GNU_SOURCE /* unshare */

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault/sqlite_world.h"
#include "store/migrations.h"

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
    EXPECT(world_open(w) == SEMEL_OK);
    EXPECT(process_one(w, "of the child") == SEMEL_OK);
    struct semel_store *own = w->store;
    EXPECT(world_open(w) == SEMEL_INVALID);
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
    EXPECT(world_open(w) == SEMEL_OK);
    EXPECT(semel_store_begin(w->store, SEMEL_TX_OWN, &now_us, &w->err) == SEMEL_OK);
    EXPECT(work(w, &item) == SEMEL_OK);
    raise(SIGKILL);
}

static void killed_process_leaves_nothing_and_holds_nothing(void **state)
{
    struct world *w = *state;
    assert_int_equal(in_child(w, die_in_the_middle), 128 + SIGKILL);
    assert_int_equal(world_open(w), SEMEL_OK);
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
    assert_int_equal(world_open(w), SEMEL_OK);
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_schema"), (int64_t)semel__sqlite_migrations_n);
    assert_int_equal(ask(w, "SELECT count(*) FROM semel_counter"), 1);
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
    EXPECT(world_open(w) == SEMEL_OK);
    semel_store_close(w->store);
    EXPECT(mount(NULL, w->dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    EXPECT(world_open(w) == SEMEL_RETRY);
    EXPECT(w->err.cls == SEMEL_CLASS_ENVIRONMENT && strstr(w->err.text, "read-only") != NULL);
    snprintf(w->url, sizeof(w->url), "sqlite:%s/new.db", w->dir); /* cannot be made */
    EXPECT(world_open(w) == SEMEL_RETRY);
    EXPECT(w->err.cls == SEMEL_CLASS_ENVIRONMENT);
}

static void use_full_disk(struct world *w)
{
    static char block[4096];
    char filler[160];
    mount_small(w);
    EXPECT(world_open(w) == SEMEL_OK);
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

/* The schema takes thousands of them: one in eleven is visited, and every one with SEMEL_LONG=1. */
static void every_allocation_may_fail_while_opening(void **state)
{
    struct world *w = *state;
    const unsigned step = getenv("SEMEL_LONG") != NULL ? 1 : 11;
    snprintf(w->url, sizeof(w->url), "sqlite::memory:");
    for (unsigned n = 1;; n += step) {
        fail_allocation(n);
        semel_status status = world_open(w);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
