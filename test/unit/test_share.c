/* SPDX-License-Identifier: MIT
 *
 * test_share.c: handles of one connection (store/share.h): who has it, and that whoever cannot use it lets it go.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/str.h"
#include "store/query.h"
#include "store/share.h"
#include "store/sqlite_store.h"
#include "unit/unit.h"

struct world {
    struct sql_share *share;
    struct semel_store *a, *b;
    struct semel_arena arena;
    struct semel_error err;
};

static int up(void **state)
{
    static const struct semel_store_ops *const drivers[] = {&semel__store_sqlite, NULL};
    static const struct semel_store_options options = {.create = true, .migrate = true};
    struct world *w = semel__calloc(1, sizeof *w);
    assert_non_null(w);
    assert_int_equal(semel__share_open(&w->share, drivers, "sqlite::memory:", &options, &w->err), SEMEL_OK);
    w->a = semel__share_handle(w->share);
    w->b = semel__share_handle(w->share);
    semel__arena_init(&w->arena, 1 << 20);
    *state = w;
    return 0;
}

static int down(void **state)
{
    struct world *w = *state;
    semel_store_close(w->a);
    semel_store_close(w->b);
    semel__share_close(w->share);
    semel__arena_done(&w->arena);
    semel__free(w);
    return 0;
}

static semel_status count(struct world *w, struct semel_store *store)
{
    struct semel_count *counts = NULL;
    size_t n = 0;
    return semel_query_counts(store, (struct semel_str){0}, 10, 10, &w->arena, &counts, &n, &w->err);
}

static void put(struct world *w, struct semel_store *store, const char *consumer)
{
    assert_int_equal(semel_store_consumer_put(store, semel__str(consumer), SEMEL_STR("{}"), 1, &w->err), SEMEL_OK);
}

static size_t consumers(struct world *w, struct semel_store *store)
{
    struct semel_str *names = NULL;
    size_t n = 0;
    assert_int_equal(semel_store_consumers(store, (struct semel_str){0}, 10, &w->arena, &names, &n, &w->err), SEMEL_OK);
    return n;
}

static void handles_see_what_the_others_have_committed(void **state)
{
    struct world *w = *state;
    int64_t now_us;
    assert_int_equal(semel_store_begin(w->a, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_OK);
    assert_true(semel_store_busy(w->a));
    assert_false(semel_store_busy(w->b));
    put(w, w->a, "kept");
    assert_int_equal(semel_store_commit(w->a, &w->err), SEMEL_OK);
    assert_int_equal(semel_store_begin(w->b, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_OK);
    put(w, w->b, "undone");
    semel_store_rollback(w->b);
    assert_int_equal(consumers(w, w->a), 1);
    assert_int_equal(consumers(w, w->b), 1);
    assert_int_equal(count(w, w->a), SEMEL_OK);
}

struct other {
    struct world *w;
    atomic_bool done;
};

static void *write_one(void *ctx)
{
    struct other *other = ctx;
    struct semel_error err;
    int64_t now_us;
    if (semel_store_begin(other->w->b, SEMEL_TX_OWN, &now_us, &err) != SEMEL_OK)
        return NULL;
    atomic_store(&other->done, true);
    (void)semel_store_commit(other->w->b, &err);
    return ctx;
}

static void transaction_keeps_the_others_waiting(void **state)
{
    struct world *w = *state;
    struct other other = {.w = w};
    pthread_t thread;
    void *came = NULL;
    int64_t now_us;
    assert_int_equal(semel_store_begin(w->a, SEMEL_TX_OWN, &now_us, &w->err), SEMEL_OK);
    assert_int_equal(pthread_create(&thread, NULL, write_one, &other), 0);
    for (int i = 0; i < 100; i++) /* statements of its own do not let it go */
        assert_int_equal(consumers(w, w->a), 0);
    assert_false(atomic_load(&other.done));
    assert_int_equal(semel_store_commit(w->a, &w->err), SEMEL_OK);
    assert_int_equal(pthread_join(thread, &came), 0);
    assert_true(came != NULL && atomic_load(&other.done));
}

/* A child process has no use of the connection; what fails must leave the lock as it was. */
static void who_cannot_read_lets_go_once(void **state)
{
    struct world *w = *state;
    pid_t child = fork();
    int end = 0;
    if (child == 0) {
        bool closed = true;
        for (int i = 0; i < 3; i++)
            closed = closed && count(w, i % 2 ? w->a : w->b) == SEMEL_CLOSED;
        _exit(closed ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(handles_see_what_the_others_have_committed, up, down),
        cmocka_unit_test_setup_teardown(transaction_keeps_the_others_waiting, up, down),
        cmocka_unit_test_setup_teardown(who_cannot_read_lets_go_once, up, down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
